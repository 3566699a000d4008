//! A table of rows with an O(1) clone, a running digest, and a record of what changed for the disk.

use std::sync::Arc;

use bytes::Bytes;
use imbl::OrdMap;

use crate::{
    codec::{self, DecodeError, Frame},
    digest::{Digest, joined_hash, row_hash},
    id::{
        AllocationId, ClassId, DeploymentId, EvaluationId, Index, InstanceId, JobKey, NodeId,
        RequestId, Text,
    },
    tables::tables,
};

macro_rules! table_ids {
    ($($(#[$doc:meta])* $number:literal $id:ident $field:ident $row:ty,)*) => {
        /// Number of a table: first byte of its keys on disk.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum TableId {
            $($(#[$doc])* $id = $number,)*
        }

        impl TableId {
            /// All tables, in the order of their numbers.
            pub const ALL: [Self; [$($number),*].len()] = [$(Self::$id),*];
        }

        $(impl InTable for $row {
            const TABLE: TableId = TableId::$id;
        })*
    };
}

tables!(table_ids);

impl TableId {
    /// The byte on disk.
    pub const fn byte(self) -> u8 {
        self as u8
    }

    /// The table of that byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|table| table.byte() == byte)
    }
}

/// A key with an unambiguous byte form. Byte order need not be key order.
pub trait Key: Ord + Clone {
    /// Appends the byte form.
    fn write(&self, out: &mut Vec<u8>);
}

macro_rules! id_key {
    ($($type:ty),*) => {$(impl Key for $type {
        fn write(&self, out: &mut Vec<u8>) {
            out.extend_from_slice(&self.0);
        }
    })*};
}
id_key!(NodeId, AllocationId, DeploymentId, EvaluationId, RequestId, ClassId, InstanceId);

impl Key for Text {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.as_bytes());
    }
}

impl Key for () {
    fn write(&self, _out: &mut Vec<u8>) {}
}

impl Key for u64 {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_be_bytes());
    }
}

impl Key for JobKey {
    fn write(&self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.namespace.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(self.namespace.as_bytes());
        out.extend_from_slice(self.id.as_bytes());
    }
}

impl Key for (JobKey, Text) {
    fn write(&self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.1.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(self.1.as_bytes());
        self.0.write(out);
    }
}

impl Key for (JobKey, Index, u64) {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.1.to_be_bytes());
        out.extend_from_slice(&self.2.to_be_bytes());
        self.0.write(out);
    }
}

/// Which table a row is of, as the list of tables says.
pub trait InTable {
    /// Its table.
    const TABLE: TableId;
}

/// A row of a table.
pub trait Row: InTable + Frame + Clone + Send + Sync + 'static {
    /// Its key.
    type Key: Key;
    /// The key of this row.
    fn key(&self) -> Self::Key;
}

/// A row of any table, as it can be written to disk.
pub trait StoredRow: Send + Sync {
    /// Its frame.
    fn frame(&self) -> Bytes;
}

impl<R: Row> StoredRow for R {
    fn frame(&self) -> Bytes {
        codec::encode(self)
    }
}

/// A row that was put or removed. The row itself is shared with the state: most changes are
/// overtaken before they go to disk, and cost neither memory nor time until they do.
#[derive(Clone)]
pub struct RowChange {
    /// Table byte and key.
    pub key: Bytes,
    /// The row; none for a removed one.
    pub row: Option<Arc<dyn StoredRow>>,
    /// Length of the row's frame, bytes.
    pub frame_bytes: usize,
    /// The key had a row before.
    pub existed: bool,
}

/// Rows changed by applied entries.
#[derive(Default)]
pub struct ChangeSet {
    /// In order; a later one of the same key wins.
    pub rows: Vec<RowChange>,
    /// Record nothing and skip the encoding: for a trial on a clone, whose digest means nothing
    /// afterwards.
    pub is_trial: bool,
    /// Index of the entry that is being applied.
    pub(crate) index: Index,
    /// Memory of the row that is hashed.
    joined: Vec<u8>,
}

impl ChangeSet {
    /// A change set for trying something on a clone.
    pub fn trial() -> Self {
        Self { is_trial: true, ..Self::default() }
    }
}

/// The key of a row on disk.
pub fn disk_key<R: Row>(key: &R::Key) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    out.push(R::TABLE.byte());
    key.write(&mut out);
    out
}

/// Bytes of the key's length in front of it.
const LENGTH_BYTES: usize = 4;

/// Writes what the digest hashes of a row into `out`; answers with the key and the length of the
/// frame.
fn join<R: Row>(key: &R::Key, row: &R, out: &mut Vec<u8>) -> (Bytes, usize) {
    out.clear();
    out.extend_from_slice(&[0; LENGTH_BYTES]);
    out.push(R::TABLE.byte());
    key.write(out);
    let disk_key = out.get(LENGTH_BYTES..).map(Bytes::copy_from_slice).unwrap_or_default();
    let length = u32::try_from(disk_key.len()).unwrap_or(u32::MAX);
    if let Some(slot) = out.first_chunk_mut::<LENGTH_BYTES>() {
        *slot = length.to_le_bytes();
    }
    let frame_start = out.len();
    codec::encode_to(row, out);
    (disk_key, out.len().saturating_sub(frame_start))
}

struct Slot<R> {
    row: Arc<R>,
    hash: u128,
}

impl<R> Clone for Slot<R> {
    fn clone(&self) -> Self {
        Self { row: Arc::clone(&self.row), hash: self.hash }
    }
}

/// Rows by key.
///
/// Invariant: `digest` is the wrapping sum of the rows' hashes, and `changed` the index of the last
/// entry that put or removed a row.
pub struct Table<R: Row> {
    rows: OrdMap<R::Key, Slot<R>>,
    digest: Digest,
    changed: Index,
}

impl<R: Row> Clone for Table<R> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone(), digest: self.digest, changed: self.changed }
    }
}

impl<R: Row> Default for Table<R> {
    fn default() -> Self {
        Self { rows: OrdMap::new(), digest: Digest::default(), changed: 0 }
    }
}

impl<R: Row> Table<R> {
    /// The row of a key.
    pub fn get(&self, key: &R::Key) -> Option<&Arc<R>> {
        self.rows.get(key).map(|slot| &slot.row)
    }

    /// Whether the key is there.
    pub fn contains(&self, key: &R::Key) -> bool {
        self.rows.contains_key(key)
    }

    /// All rows in key order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Arc<R>> {
        self.rows.values().map(|slot| &slot.row)
    }

    /// Rows from `first` on, in key order.
    pub fn iter_from<'a>(&'a self, first: &R::Key) -> impl Iterator<Item = &'a Arc<R>> {
        self.rows.range(first.clone()..).map(|(_, slot)| &slot.row)
    }

    /// Rows with keys in a range, in key order.
    pub fn range(
        &self,
        keys: impl std::ops::RangeBounds<R::Key>,
    ) -> impl DoubleEndedIterator<Item = &Arc<R>> {
        self.rows.range(keys).map(|(_, slot)| &slot.row)
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// No rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The running digest.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// Index of the last entry that changed the table; 0: none did.
    pub fn changed(&self) -> Index {
        self.changed
    }

    /// Takes the index of the last change as it was saved, after the rows were loaded.
    pub(crate) fn set_changed(&mut self, index: Index) {
        self.changed = index;
    }

    /// Inserts or replaces a row.
    pub fn put(&mut self, row: R, changes: &mut ChangeSet) -> Arc<R> {
        let key = row.key();
        self.changed = changes.index;
        if changes.is_trial {
            let row = Arc::new(row);
            self.rows.insert(key, Slot { row: Arc::clone(&row), hash: 0 });
            return row;
        }
        let (disk_key, frame_bytes) = join(&key, &row, &mut changes.joined);
        let hash = joined_hash(&changes.joined);
        let row = Arc::new(row);
        let old = self.rows.insert(key, Slot { row: Arc::clone(&row), hash });
        if let Some(old) = &old {
            self.digest.remove(old.hash);
        }
        self.digest.add(hash);
        let stored = Arc::clone(&row) as Arc<dyn StoredRow>;
        let existed = old.is_some();
        changes.rows.push(RowChange { key: disk_key, row: Some(stored), frame_bytes, existed });
        row
    }

    /// Removes a row.
    pub fn remove(&mut self, key: &R::Key, changes: &mut ChangeSet) -> Option<Arc<R>> {
        let slot = self.rows.remove(key)?;
        self.changed = changes.index;
        if changes.is_trial {
            return Some(slot.row);
        }
        self.digest.remove(slot.hash);
        let key = disk_key::<R>(key).into();
        changes.rows.push(RowChange { key, row: None, frame_bytes: 0, existed: true });
        Some(slot.row)
    }

    /// Takes a row as it stands on disk, while loading.
    pub fn load(&mut self, disk: &[u8], frame: &[u8]) -> Result<(), DecodeError> {
        let row: R = codec::decode(frame)?;
        let hash = row_hash(disk, frame);
        if let Some(old) = self.rows.insert(row.key(), Slot { row: Arc::new(row), hash }) {
            self.digest.remove(old.hash);
        }
        self.digest.add(hash);
        Ok(())
    }

    /// All rows with their keys on disk.
    pub fn stored_rows(&self) -> impl Iterator<Item = (Vec<u8>, Arc<dyn StoredRow>)> {
        self.rows
            .iter()
            .map(|(key, slot)| (disk_key::<R>(key), Arc::clone(&slot.row) as Arc<dyn StoredRow>))
    }
}
