//! Changes that wait for the engine: the newest row of each key, whole groups at a time.
//!
//! A row that is put and removed again while it waits never reaches the engine. Must never hold a
//! part of a group: what is taken is the state after some whole entry.

use std::{collections::HashMap, mem, sync::Arc};

use bytes::Bytes;
use fsm::table::{RowChange, StoredRow};

use super::Group;
use crate::storage::applied::AppliedMeta;

/// What a waiting row takes beside its key. The row is shared with the state, as long as nothing
/// newer is there.
const ROW_OVERHEAD_BYTES: usize = 128;

/// Changed rows by key; none for a removed one.
pub(super) type Changes = Vec<(Bytes, Option<Arc<dyn StoredRow>>)>;

struct Waiting {
    row: Option<Arc<dyn StoredRow>>,
    frame_bytes: usize,
    /// The engine, or the batch on its way there, has a row of this key.
    in_engine: bool,
}

/// Groups that were merged.
#[derive(Default)]
pub(super) struct Pending {
    rows: HashMap<Bytes, Waiting>,
    meta: Option<AppliedMeta>,
    groups: u64,
    bytes: usize,
}

fn size(key: &Bytes, row: &Waiting) -> usize {
    ROW_OVERHEAD_BYTES + key.len() + row.frame_bytes
}

impl Pending {
    /// Groups merged into it.
    pub(super) fn groups(&self) -> u64 {
        self.groups
    }

    /// Memory that its rows take at most, and take while they are written.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn add(&mut self, group: Group) {
        for change in group.changes.rows {
            self.change(change);
        }
        self.meta = Some(group.meta);
        self.groups += 1;
    }

    fn change(&mut self, change: RowChange) {
        let RowChange { key, row, frame_bytes, existed } = change;
        let in_engine = match self.rows.remove(&key) {
            Some(old) => {
                self.bytes -= size(&key, &old);
                old.in_engine
            }
            None => existed,
        };
        if row.is_some() || in_engine {
            let row = Waiting { row, frame_bytes, in_engine };
            self.bytes += size(&key, &row);
            self.rows.insert(key, row);
        }
    }

    /// All there is: rows in no order, and the position after them.
    pub(super) fn take(&mut self) -> Option<(Changes, AppliedMeta)> {
        let Self { rows, meta, .. } = mem::take(self);
        Some((rows.into_iter().map(|(key, row)| (key, row.row)).collect(), meta?))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeMap;

    use fsm::table::ChangeSet;
    use proptest::prelude::*;

    use super::*;

    struct Byte(u8);

    impl StoredRow for Byte {
        fn frame(&self) -> Bytes {
            Bytes::copy_from_slice(&[self.0])
        }
    }

    /// Changes of a table as `fsm` reports them.
    fn changes(rows: &mut BTreeMap<Bytes, Bytes>, steps: &[(u8, Option<u8>)]) -> Group {
        let mut changes = ChangeSet::default();
        for (key, value) in steps {
            let key = Bytes::copy_from_slice(&[*key]);
            let row = value.map(|value| Arc::new(Byte(value)) as Arc<dyn StoredRow>);
            let old = match &row {
                Some(row) => rows.insert(key.clone(), row.frame()),
                None => rows.remove(&key),
            };
            if row.is_some() || old.is_some() {
                let frame_bytes = usize::from(row.is_some());
                changes.rows.push(RowChange { key, row, frame_bytes, existed: old.is_some() });
            }
        }
        Group { changes, meta: AppliedMeta::default() }
    }

    proptest! {
        #[test]
        fn batches_add_up_to_the_rows_and_hold_nothing_for_nothing(
            windows in prop::collection::vec(
                prop::collection::vec(prop::collection::vec((0u8..6, any::<Option<u8>>()), 0..6), 1..4),
                1..5,
            )
        ) {
            let (mut rows, mut engine) = (BTreeMap::new(), BTreeMap::new());
            let mut pending = Pending::default();
            for window in windows {
                for group in &window {
                    pending.add(changes(&mut rows, group));
                }
                let rows_waiting: usize =
                    pending.rows.iter().map(|(key, row)| size(key, row)).sum();
                prop_assert_eq!(pending.bytes(), rows_waiting);
                let (batch, _) = pending.take().unwrap();
                for (key, value) in batch {
                    let old = match value {
                        Some(value) => engine.insert(key, value.frame()),
                        None => {
                            let old = engine.remove(&key);
                            prop_assert!(old.is_some(), "a removal of a row that was never written");
                            old
                        }
                    };
                    drop(old);
                }
                prop_assert_eq!(&engine, &rows);
                prop_assert!(pending.bytes() == 0 && pending.take().is_none());
            }
        }
    }
}
