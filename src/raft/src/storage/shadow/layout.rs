//! How rows lie in the engine. Most are one value each, but
//!
//! * a long row is cut into pieces, with a marker under its key, and
//! * client sessions, of which every write makes one, share values: packs of those that were
//!   written together. They end in the order in which they began, so that whole packs go; one that
//!   loses a part is written anew.
//!
//! Invariant: a session is in one pack at most, and `packed` says in which.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    sync::Arc,
    vec,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use fsm::{
    State, codec,
    digest::{Digest, row_hash},
    table::{StoredRow, TableId},
};

use super::{META_KEY, engine::Engine, pending::Changes};
use crate::storage::{applied::AppliedMeta, other_generation};

/// First byte of keys that hold pieces of long values.
pub(super) const PIECE: u8 = 0xfe;
/// First byte of keys that hold packs.
pub(super) const PACK: u8 = 0xfd;
/// Longest value in the engine; sled keeps longer ones in files of their own that it never syncs.
pub(super) const VALUE_BYTES_MAX: usize = 96 << 10;
/// A pack is ended above it. sled writes a leaf of 16 values as one, which must stay below the same
/// bound.
const PACK_BYTES: usize = 4 << 10;
/// Marks a value that stands for pieces: no frame begins so.
const PIECES_MAGIC: &[u8; 4] = b"PCS1";

/// Rows as the engine takes them.
type Placed = Vec<(Bytes, Option<Bytes>)>;
type SessionKey = [u8; 16];

/// Rows on their way to the engine, encoded one at a time.
pub(super) struct Placing<'a> {
    layout: &'a mut Layout,
    changes: vec::IntoIter<(Bytes, Option<Arc<dyn StoredRow>>)>,
    ready: Placed,
}

impl Iterator for Placing<'_> {
    type Item = (Bytes, Option<Bytes>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.ready.is_empty() {
            let (key, row) = self.changes.next()?;
            self.layout.put_row(&mut self.ready, key, row.map(|row| row.frame()));
        }
        self.ready.pop()
    }
}

/// What is known of the rows in an engine.
#[derive(Default)]
pub(super) struct Layout {
    /// Long values by key, with their number of pieces.
    pieces: BTreeMap<Bytes, u32>,
    /// The pack of each session.
    packed: HashMap<SessionKey, u64>,
    /// Number of the newest pack.
    newest_pack: u64,
}

/// A state whose rows are coming.
#[derive(Default)]
struct Loading {
    state: State,
    /// Sum over the rows of another generation. The digest of them all tells them from damaged
    /// ones: the head of a frame has no checksum.
    unknown: Digest,
    /// What is wrong with the first of them.
    why: Option<String>,
}

impl Loading {
    fn load_row(&mut self, key: &[u8], frame: &[u8]) -> io::Result<()> {
        let Err(error) = self.state.load_row(key, frame) else { return Ok(()) };
        let Some(why) = other_generation::of_row(&error) else {
            return Err(io::Error::other(error));
        };
        self.unknown.add(row_hash(key, frame));
        self.why.get_or_insert(why);
        Ok(())
    }
}

fn session_key(key: &[u8]) -> Option<SessionKey> {
    let (table, rest) = key.split_first()?;
    (*table == TableId::Sessions.byte()).then(|| rest.try_into().ok()).flatten()
}

fn pack_key(number: u64) -> Bytes {
    let mut out = BytesMut::with_capacity(9);
    out.put_u8(PACK);
    out.put_u64(number);
    out.freeze()
}

fn piece_key(number: u32, key: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(9 + key.len());
    out.put_u8(PIECE);
    out.put_u32(u32::try_from(key.len()).unwrap_or(u32::MAX));
    out.put_slice(key);
    out.put_u32(number);
    out.freeze()
}

fn put_packed(out: &mut BytesMut, key: &SessionKey, frame: &[u8]) {
    out.put_slice(key);
    out.put_u32(u32::try_from(frame.len()).unwrap_or(u32::MAX));
    out.put_slice(frame);
}

/// The sessions of a pack.
fn unpack(mut pack: Bytes) -> io::Result<Vec<(SessionKey, Bytes)>> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "a pack of sessions is cut short");
    let mut rows = Vec::new();
    while pack.has_remaining() {
        let mut key = SessionKey::default();
        pack.try_copy_to_slice(&mut key).map_err(|_| short())?;
        let length = pack.try_get_u32().map_err(|_| short())? as usize;
        if pack.remaining() < length {
            return Err(short());
        }
        rows.push((key, pack.split_to(length)));
    }
    Ok(rows)
}

impl Layout {
    /// What the engine is to write for these changes and this meta.
    pub(super) fn place(
        &mut self,
        engine: &dyn Engine,
        changes: Changes,
        meta: Option<&AppliedMeta>,
    ) -> io::Result<Placing<'_>> {
        let mut ready = Placed::new();
        ready.extend(meta.map(|meta| (Bytes::from_static(META_KEY), Some(meta.encode()))));
        let (sessions, changes): (Changes, Changes) =
            changes.into_iter().partition(|(key, _)| session_key(key).is_some());
        let mut new = Vec::new();
        let mut touched = BTreeSet::new();
        for (key, row) in sessions {
            let Some(id) = session_key(&key) else { continue };
            if let Some(pack) = self.packed.remove(&id) {
                touched.insert(pack);
            } else if row.is_none() {
                // One of a time before there were packs.
                ready.push((key, None));
            }
            new.extend(row.map(|row| (id, row.frame())));
        }
        for pack in touched {
            ready.push((pack_key(pack), self.repack(engine, pack)?));
        }
        // In the order of their ids, so that a simulation is repeatable.
        new.sort_unstable_by_key(|(id, _)| *id);
        self.pack(&mut ready, new);
        Ok(Placing { layout: self, changes: changes.into_iter(), ready })
    }

    /// What is left of a pack that lost a part.
    fn repack(&mut self, engine: &dyn Engine, pack: u64) -> io::Result<Option<Bytes>> {
        let missing =
            || io::Error::new(io::ErrorKind::InvalidData, "a pack of sessions is missing");
        let old = engine.read(&pack_key(pack))?.ok_or_else(missing)?;
        let mut left = BytesMut::with_capacity(old.len());
        for (id, frame) in unpack(old)? {
            if self.packed.get(&id) == Some(&pack) {
                put_packed(&mut left, &id, &frame);
            }
        }
        Ok((!left.is_empty()).then(|| left.freeze()))
    }

    fn pack(&mut self, rows: &mut Placed, sessions: Vec<(SessionKey, Bytes)>) {
        let mut sessions = sessions.into_iter().peekable();
        while sessions.peek().is_some() {
            self.newest_pack += 1;
            let mut out = BytesMut::with_capacity(PACK_BYTES * 2);
            while out.len() < PACK_BYTES
                && let Some((id, frame)) = sessions.next()
            {
                put_packed(&mut out, &id, &frame);
                self.packed.insert(id, self.newest_pack);
            }
            rows.push((pack_key(self.newest_pack), Some(out.freeze())));
        }
    }

    fn put_row(&mut self, rows: &mut Placed, key: Bytes, value: Option<Bytes>) {
        let old = if self.pieces.is_empty() { 0 } else { self.pieces.remove(&key).unwrap_or(0) };
        let count = match &value {
            Some(value) if value.len() > VALUE_BYTES_MAX => {
                for (number, piece) in (0u32..).zip(value.chunks(VALUE_BYTES_MAX)) {
                    rows.push((piece_key(number, &key), Some(value.slice_ref(piece))));
                }
                u32::try_from(value.len().div_ceil(VALUE_BYTES_MAX)).unwrap_or(u32::MAX)
            }
            Some(_) | None => 0,
        };
        for number in count..old {
            rows.push((piece_key(number, &key), None));
        }
        if count > 0 {
            // A copy: the key is a part of the row's memory.
            self.pieces.insert(Bytes::copy_from_slice(&key), count);
            let mut marker = PIECES_MAGIC.to_vec();
            marker.extend_from_slice(&count.to_le_bytes());
            rows.push((key, Some(marker.into())));
        } else {
            rows.push((key, value));
        }
    }

    /// Reads every row of an engine into a state.
    pub(super) fn load(engine: &dyn Engine) -> io::Result<(Self, Option<(State, AppliedMeta)>)> {
        let mut layout = Self::default();
        let Some(meta) = engine.read(META_KEY)? else { return Ok((layout, None)) };
        let meta: AppliedMeta =
            codec::decode(&meta).map_err(|error| match other_generation::of_frame(&error) {
                Some(why) => other_generation::refusal(&why),
                None => io::Error::other(error),
            })?;
        let mut loading = Loading::default();
        engine.iterate(&mut |key, value| match key.first() {
            _ if key == META_KEY => Ok(()),
            Some(&PIECE) => Ok(()),
            Some(&PACK) => layout.load_pack(key, value, &mut loading),
            Some(_) | None => layout.load_row(engine, key, value, &mut loading),
        })?;
        let Loading { mut state, unknown, why } = loading;
        state.load_done(meta.head.clone());
        let mut found = state.digest();
        found.add(unknown.0);
        if found != meta.digest {
            let message =
                format!("digest of the loaded state is {found}, stored is {}", meta.digest);
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        if let Some(why) = why {
            return Err(other_generation::refusal(&why));
        }
        Ok((layout, Some((state, meta))))
    }

    fn load_pack(&mut self, key: &[u8], value: &[u8], loading: &mut Loading) -> io::Result<()> {
        let bad = || io::Error::new(io::ErrorKind::InvalidData, "the key of a pack is too short");
        let number = u64::from_be_bytes(key[1..].try_into().map_err(|_| bad())?);
        let rows = unpack(Bytes::copy_from_slice(value))?;
        self.newest_pack = self.newest_pack.max(number);
        let mut disk_key = vec![TableId::Sessions.byte()];
        for (id, frame) in rows {
            disk_key.truncate(1);
            disk_key.extend_from_slice(&id);
            loading.load_row(&disk_key, &frame)?;
            self.packed.insert(id, number);
        }
        Ok(())
    }

    fn load_row(
        &mut self,
        engine: &dyn Engine,
        key: &[u8],
        value: &[u8],
        loading: &mut Loading,
    ) -> io::Result<()> {
        let Some(count) = value.strip_prefix(PIECES_MAGIC) else {
            return loading.load_row(key, value);
        };
        let count: [u8; 4] = count.try_into().map_err(io::Error::other)?;
        let count = u32::from_le_bytes(count);
        let mut whole = Vec::new();
        for number in 0..count {
            let piece = engine.read(&piece_key(number, key))?;
            whole.extend_from_slice(&piece.ok_or_else(|| {
                io::Error::new(io::ErrorKind::InvalidData, "a piece of a long row is missing")
            })?);
        }
        self.pieces.insert(Bytes::copy_from_slice(key), count);
        loading.load_row(key, &whole)
    }
}
