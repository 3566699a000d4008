//! Where each live entry is: in memory, in a segment, or both.
//!
//! It owns the list of live entries and the cache of recent payloads. The cache is a suffix of the
//! list: everything not yet durable is in it, and older payloads leave it from the front once the
//! byte bound is passed. It must never do I/O and never drop a payload that is not on disk.

use super::{EntryId, LogEntry, LogState};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;

/// Place of an entry's payload on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) segment: u64,
    pub(super) offset: u32,
}

/// Entry in the list: 24 bytes, because a log holds millions.
#[derive(Clone, Copy, Debug)]
struct Slot {
    term: u64,
    /// Invariant: segment 0 exactly as long as the payload is only in the cache.
    place: Place,
    payload_bytes: u32,
}

#[derive(Debug)]
struct Cached {
    payload: Bytes,
    /// Tells this entry from another one appended later at the same index.
    ticket: u64,
    durable: bool,
}

/// One entry as [`Index::select`] finds it.
#[derive(Clone, Debug)]
pub(super) enum Found {
    Memory(LogEntry),
    Disk { id: EntryId, place: Place, payload_bytes: u32 },
}

/// The live entries.
#[derive(Debug)]
pub(super) struct Index {
    /// Live entries without gaps, ending at `last`.
    slots: VecDeque<Slot>,
    /// Invariant: the last `cache.len()` slots, in order.
    cache: VecDeque<Cached>,
    cache_bytes: usize,
    cache_bytes_max: usize,
    tickets: u64,
    /// The entry before the first slot. Only while a log is replayed it can lie above `purged`:
    /// then the entries between are in segments that no longer exist.
    base: Option<EntryId>,
    purged: Option<EntryId>,
    /// The last entry; the last purged one when no entry is live.
    last: Option<EntryId>,
}

impl Index {
    /// The index of a log of which only `state` is known.
    pub(super) fn new(state: &LogState, cache_bytes_max: usize) -> Self {
        Self {
            slots: VecDeque::new(),
            cache: VecDeque::new(),
            cache_bytes: 0,
            cache_bytes_max,
            tickets: 0,
            base: state.last.max(state.purged),
            purged: state.purged,
            last: state.last.max(state.purged),
        }
    }

    pub(super) fn last(&self) -> Option<EntryId> {
        self.last
    }

    pub(super) fn purged(&self) -> Option<EntryId> {
        self.purged
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    pub(super) fn cache_bytes(&self) -> usize {
        self.cache_bytes
    }

    /// The live range of indexes.
    pub(super) fn range(&self) -> Range<u64> {
        let end = self.last.map_or(0, |last| last.index + 1);
        end - self.slots.len() as u64..end
    }

    /// The index the next entry must have; `None` when any will do.
    pub(super) fn expected(&self) -> Option<u64> {
        self.last.map(|last| last.index + 1)
    }

    /// Entries purged from the list whose purge is not on record: a sign of missing segments.
    pub(super) fn hole(&self) -> Option<Range<u64>> {
        let from = self.purged.map_or(0, |purged| purged.index + 1);
        let base = self.base.map_or(0, |base| base.index + 1);
        (base > from).then_some(from..base)
    }

    /// Adds an entry that is not written yet and returns its ticket.
    pub(super) fn push(&mut self, entry: &LogEntry) -> u64 {
        self.tickets += 1;
        self.push_slot(entry.id, Place { segment: 0, offset: 0 }, entry.payload.len());
        self.cache_bytes += entry.payload.len();
        self.cache.push_back(Cached {
            payload: entry.payload.clone(),
            ticket: self.tickets,
            durable: false,
        });
        self.tickets
    }

    /// Adds an entry found on disk.
    pub(super) fn push_durable(&mut self, id: EntryId, place: Place, payload_bytes: usize) {
        assert!(self.cache.is_empty(), "only a log that is being opened is filled from disk");
        self.push_slot(id, place, payload_bytes);
    }

    fn push_slot(&mut self, id: EntryId, place: Place, payload_bytes: usize) {
        let expected = self.expected().unwrap_or(id.index);
        assert_eq!(id.index, expected, "the caller has checked the index");
        let payload_bytes = u32::try_from(payload_bytes).expect("the caller has checked the size");
        self.slots.push_back(Slot { term: id.term, place, payload_bytes });
        self.last = Some(id);
    }

    /// Notes that an entry is durable at this place, unless it was truncated or purged meanwhile.
    pub(super) fn written(&mut self, index: u64, ticket: u64, place: Place) {
        let end = self.range().end;
        let Some(back) = end.checked_sub(index).and_then(|back| usize::try_from(back).ok()) else {
            return;
        };
        if back == 0 || back > self.cache.len() {
            return;
        }
        let cached = self.cache.len() - back;
        let cached = &mut self.cache[cached];
        if cached.ticket == ticket {
            cached.durable = true;
            let slot = self.slots.len() - back;
            self.slots[slot].place = place;
        }
    }

    /// Drops payloads from the front of the cache until it is within its bound.
    pub(super) fn evict(&mut self) {
        while self.cache_bytes > self.cache_bytes_max
            && self.cache.front().is_some_and(|cached| cached.durable)
        {
            self.drop_cached_front();
        }
    }

    /// The id of an entry at or after the purged one; `None` when it is not there.
    pub(super) fn id(&self, index: u64) -> Option<EntryId> {
        let range = self.range();
        if range.contains(&index) {
            let slot = usize::try_from(index - range.start).ok()?;
            return Some(EntryId { index, term: self.slots[slot].term });
        }
        self.purged.filter(|purged| purged.index == index)
    }

    /// Drops every entry after the given one; `None` drops all.
    pub(super) fn truncate(&mut self, after: Option<EntryId>) {
        let keep = after.map_or(0, |after| after.index + 1);
        while self.range().end > keep && !self.slots.is_empty() {
            self.slots.pop_back();
            if let Some(cached) = self.cache.pop_back() {
                self.cache_bytes -= cached.payload.len();
            }
            self.last = match self.slots.back() {
                Some(slot) => {
                    let index = self.last.expect("a log with entries has a last one").index - 1;
                    Some(EntryId { index, term: slot.term })
                }
                None => self.base,
            };
        }
        if self.base.map_or(0, |base| base.index + 1) > keep {
            self.base = after.max(self.purged);
            self.last = self.base;
        }
    }

    /// Drops every entry up to and with the given one.
    pub(super) fn purge(&mut self, upto: EntryId) {
        if self.purged.is_some_and(|purged| purged.index >= upto.index) {
            return;
        }
        self.purged = Some(upto);
        while self.range().start <= upto.index && !self.slots.is_empty() {
            self.slots.pop_front();
            if self.cache.len() > self.slots.len() {
                self.drop_cached_front();
            }
        }
        if self.base.is_none_or(|base| base.index <= upto.index) {
            self.base = Some(upto);
        }
        if self.last.is_none_or(|last| last.index <= upto.index) {
            self.last = Some(upto);
        }
    }

    /// Finds live entries of a range, as many as fit the bytes but at least one.
    pub(super) fn select(&self, range: Range<u64>, bytes_max: usize) -> Vec<Found> {
        let live = self.range();
        let mut found = Vec::new();
        let mut bytes = 0_usize;
        for index in range.start.max(live.start)..range.end.min(live.end) {
            let number = usize::try_from(index - live.start).expect("a slot's number");
            let slot = self.slots[number];
            bytes = bytes.saturating_add(slot.payload_bytes as usize);
            if bytes > bytes_max && !found.is_empty() {
                break;
            }
            let id = EntryId { index, term: slot.term };
            let uncached = self.slots.len() - self.cache.len();
            found.push(match number.checked_sub(uncached) {
                Some(cached) => {
                    Found::Memory(LogEntry { id, payload: self.cache[cached].payload.clone() })
                }
                None => Found::Disk { id, place: slot.place, payload_bytes: slot.payload_bytes },
            });
        }
        found
    }

    fn drop_cached_front(&mut self) {
        if let Some(cached) = self.cache.pop_front() {
            self.cache_bytes -= cached.payload.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> LogEntry {
        LogEntry { id: EntryId { index, term }, payload: Bytes::from(vec![0; 100]) }
    }

    fn filled(cache_bytes_max: usize) -> (Index, Vec<u64>) {
        let mut index = Index::new(&LogState::default(), cache_bytes_max);
        let tickets = (0..10).map(|number| index.push(&entry(number, 1))).collect();
        (index, tickets)
    }

    fn in_memory(index: &Index) -> usize {
        let found = index.select(0..u64::MAX, usize::MAX);
        found.iter().filter(|found| matches!(found, Found::Memory(_))).count()
    }

    #[test]
    fn only_durable_payloads_leave_the_cache_and_only_from_the_front() {
        let (mut index, tickets) = filled(250);
        index.evict();
        assert_eq!(in_memory(&index), 10);
        index.written(1, tickets[1], Place { segment: 1, offset: 1 });
        index.evict();
        assert_eq!(in_memory(&index), 10, "entry 0 is not durable");
        for number in 0..6 {
            index.written(
                number,
                tickets[usize::try_from(number).unwrap_or(0)],
                Place { segment: 1, offset: 1 },
            );
        }
        index.evict();
        assert_eq!((in_memory(&index), index.cache_bytes()), (4, 400));
    }

    #[test]
    fn a_replaced_entry_does_not_take_the_place_of_the_old_one() {
        let (mut index, tickets) = filled(0);
        index.truncate(Some(EntryId { index: 4, term: 1 }));
        let again = index.push(&entry(5, 2));
        // The old one comes to disk after it was replaced: the new one is still in memory only.
        for number in 0..6 {
            let ticket = tickets[usize::try_from(number).unwrap_or(0)];
            index.written(number, ticket, Place { segment: 1, offset: 1 });
        }
        index.evict();
        assert_eq!((in_memory(&index), index.id(5)), (1, Some(EntryId { index: 5, term: 2 })));
        index.written(5, again, Place { segment: 2, offset: 1 });
        index.evict();
        assert_eq!(in_memory(&index), 0);
    }

    #[test]
    fn purge_and_truncate_move_the_ends() {
        let (mut index, _) = filled(usize::MAX);
        index.purge(EntryId { index: 3, term: 1 });
        assert_eq!((index.range(), index.len(), index.cache_bytes()), (4..10, 6, 600));
        index.purge(EntryId { index: 2, term: 1 });
        assert_eq!(index.range(), 4..10, "a purge never goes back");
        index.truncate(None);
        assert_eq!((index.range(), index.last()), (4..4, Some(EntryId { index: 3, term: 1 })));
        index.purge(EntryId { index: 20, term: 2 });
        assert_eq!((index.range(), index.expected()), (21..21, Some(21)));
        assert_eq!(index.id(20), Some(EntryId { index: 20, term: 2 }));
        assert!(index.hole().is_none());
    }

    #[test]
    fn a_replay_without_the_oldest_segments_needs_their_purge() {
        let at = |index| Some(EntryId { index, term: 1 });
        let state = LogState { last: at(9), purged: at(3), ..LogState::default() };
        let mut index = Index::new(&state, 0);
        index.push_durable(EntryId { index: 10, term: 1 }, Place { segment: 1, offset: 1 }, 1);
        assert_eq!(index.hole(), Some(4..10));
        index.truncate(at(7));
        assert_eq!((index.expected(), index.hole()), (Some(8), Some(4..8)));
        index.purge(EntryId { index: 7, term: 1 });
        assert_eq!(index.hole(), None);
    }

    #[test]
    fn a_selection_is_bounded_and_never_empty() {
        let (index, _) = filled(usize::MAX);
        assert_eq!(index.select(2..8, 250).len(), 2);
        assert_eq!(index.select(2..8, 0).len(), 1);
        assert_eq!(index.select(8..99, usize::MAX).len(), 2);
        assert_eq!(index.select(99..100, usize::MAX).len(), 0);
    }
}
