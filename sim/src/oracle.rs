//! What clients were told, and what that promises.
//!
//! A register is a job; a write is a compare-and-set on its modify index with a value nobody else writes. The index of the entry orders all
//! writes, so linearizability of a register is checked exactly, by comparing indexes:
//! - a read returns a value that was written, at the index its writer was told (no phantom, one index per write);
//! - what a client sees is never older than anything that was acknowledged or read before it asked (fresh, read-your-writes, monotonic);
//! - a write's index is above every index known before it began, and each write follows on exactly the version it named (no lost update);
//! - a refused compare-and-set had a reason: a version newer than the one it named, which somebody wrote;
//! - a write of unknown outcome may turn up later, but once; at the end no acknowledged write is lost.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{Index, command::IndexConflict};

use crate::coverage;

/// Index and value of a register; index 0: not there.
pub(crate) type Version = (Index, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    At(Index),
    Never,
}

#[derive(Clone, Debug)]
struct Write {
    key: usize,
    /// The version it names.
    expected: Index,
    /// The highest index that anyone knew of when it began.
    floor: Index,
    outcome: Outcome,
    /// Its client was told that nobody knows.
    unknown: bool,
}

/// The judge of one run.
#[derive(Default, Debug)]
pub(crate) struct Oracle {
    writes: BTreeMap<u64, Write>,
    /// Value by register and index, as far as anyone saw it.
    versions: BTreeMap<(usize, Index), u64>,
    /// The write at each index: an entry is of one register.
    entries: BTreeMap<Index, u64>,
    /// Newest index of each register that anyone knew of.
    newest: BTreeMap<usize, Index>,
    /// Versions by register that somebody was refused for.
    refused_for: BTreeSet<(usize, Index)>,
    floor: Index,
}

/// A read under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Read {
    key: usize,
    floor: Index,
    /// The highest index of all that anyone knew of.
    log_floor: Index,
}

impl Oracle {
    /// A write begins; its value is the answer.
    pub(crate) fn begin_write(&mut self, key: usize, expected: Index) -> u64 {
        let value = self.writes.len() as u64 + 1;
        let write =
            Write { key, expected, floor: self.floor, outcome: Outcome::Unknown, unknown: false };
        self.writes.insert(value, write);
        value
    }

    /// A write was acknowledged with this index.
    pub(crate) fn acknowledged(&mut self, value: u64, index: Index) -> Result<(), String> {
        let write = self.writes.get(&value).ok_or("a write that nobody began")?.clone();
        if index <= write.floor {
            return Err(format!(
                "write {value} got index {index}, and {} was known before it began",
                write.floor
            ));
        }
        if let Outcome::Never = write.outcome {
            return Err(format!("write {value} was refused and then took effect at {index}"));
        }
        self.saw(write.key, (index, value))
    }

    /// A write was refused and will never take effect.
    pub(crate) fn refused(&mut self, value: u64) -> Result<(), String> {
        let write = self.writes.get_mut(&value).ok_or("a write that nobody began")?;
        if let Outcome::At(index) = write.outcome {
            return Err(format!("write {value} took effect at {index} and was refused"));
        }
        write.outcome = Outcome::Never;
        Ok(())
    }

    /// A compare-and-set was refused by the entry of this index, for what it found.
    pub(crate) fn conflicted(
        &mut self,
        value: u64,
        index: Index,
        found: &IndexConflict,
    ) -> Result<(), String> {
        let write = self.writes.get(&value).ok_or("a write that nobody began")?.clone();
        if index <= write.floor {
            return Err(format!(
                "write {value} was refused at index {index}, and {} was known before it began",
                write.floor
            ));
        }
        let is_reason = match found {
            IndexConflict::Exists => write.expected == 0,
            // Registers stay.
            IndexConflict::Missing => false,
            IndexConflict::Other(other) => {
                self.refused_for.insert((write.key, *other));
                *other > write.expected && *other < index
            }
        };
        if !is_reason {
            return Err(format!(
                "write {value} after version {} of register {} was refused at {index}: {found}",
                write.expected, write.key
            ));
        }
        self.floor = self.floor.max(index);
        self.refused(value)
    }

    /// A write ended without an answer: it may take effect, now or later, once.
    pub(crate) fn unknown(&mut self, value: u64) {
        if let Some(write) = self.writes.get_mut(&value) {
            write.unknown = true;
        }
    }

    /// A linearizable read begins.
    pub(crate) fn begin_read(&self, key: usize) -> Read {
        let refused_for = self.refused_for.range((key, 0)..=(key, Index::MAX)).next_back();
        let floor = self.newest(key).max(refused_for.map_or(0, |(_, index)| *index));
        Read { key, floor, log_floor: self.floor }
    }

    /// The state that a read was answered from has this index: no older than anything known before (I13, I14).
    pub(crate) fn read_at(&mut self, read: Read, index: Index) -> Result<(), String> {
        if index < read.log_floor {
            return Err(format!(
                "a read was answered at index {index}, and {} was known before it began",
                read.log_floor
            ));
        }
        self.floor = self.floor.max(index);
        Ok(())
    }

    /// A read returned this version.
    pub(crate) fn read(&mut self, read: Read, version: Version) -> Result<(), String> {
        if version.0 < read.floor {
            return Err(format!(
                "register {} was read at {}, and {} was known before the read began",
                read.key, version.0, read.floor
            ));
        }
        self.saw(read.key, version)
    }

    /// Somebody was shown this version of a register, perhaps an old one.
    pub(crate) fn was_shown(&mut self, key: usize, version: Version) -> Result<(), String> {
        self.saw(key, version).map_err(|what| format!("I13: {what}"))
    }

    /// The version a client may name in its next write.
    pub(crate) fn newest(&self, key: usize) -> Index {
        self.newest.get(&key).copied().unwrap_or(0)
    }

    /// Acknowledged or seen writes so far.
    pub(crate) fn done(&self) -> usize {
        self.versions.len()
    }

    fn saw(&mut self, key: usize, (index, value): Version) -> Result<(), String> {
        if index == 0 {
            return Ok(());
        }
        let Some(write) = self.writes.get_mut(&value).filter(|write| write.key == key) else {
            return Err(format!(
                "register {key} has value {value} at {index}, which nobody wrote there"
            ));
        };
        match write.outcome {
            Outcome::At(known) if known != index => {
                return Err(format!("write {value} is at {index} and at {known}"));
            }
            Outcome::Never => {
                return Err(format!("write {value} was refused and is there at {index}"));
            }
            Outcome::Unknown => {
                if write.unknown {
                    coverage::hit("a write of unknown outcome was there later");
                }
                write.outcome = Outcome::At(index);
            }
            Outcome::At(_) => {}
        }
        if write.expected >= index {
            return Err(format!("write {value} at {index} follows version {}", write.expected));
        }
        let other = *self.versions.entry((key, index)).or_insert(value);
        if other != value {
            return Err(format!("register {key} has {value} and {other} at {index}"));
        }
        let other = *self.entries.entry(index).or_insert(value);
        if other != value {
            return Err(format!("writes {other} and {value} of two registers are both at {index}"));
        }
        let newest = self.newest.entry(key).or_insert(0);
        *newest = (*newest).max(index);
        self.floor = self.floor.max(index);
        Ok(())
    }

    /// Versions that somebody was refused for, and nobody can have written.
    fn unwritten(&self) -> Vec<String> {
        let mut open: BTreeMap<usize, usize> = BTreeMap::new();
        for write in self.writes.values().filter(|write| write.outcome == Outcome::Unknown) {
            *open.entry(write.key).or_default() += 1;
        }
        let mut wrong = Vec::new();
        for version in self.refused_for.iter().filter(|one| !self.versions.contains_key(one)) {
            let (register, index) = version;
            match open.get_mut(register).filter(|left| **left > 0) {
                // A write of unknown outcome that was replaced before anyone saw it.
                Some(left) => *left -= 1,
                None => wrong.push(format!(
                    "a write was refused for version {index} of register {register}, which nobody wrote"
                )),
            }
        }
        wrong
    }

    /// The last word: the registers as they are at the end, by key.
    pub(crate) fn finish(&mut self, registers: &BTreeMap<usize, Version>) -> Vec<String> {
        let mut wrong = Vec::new();
        let keys: Vec<usize> = self.newest.keys().copied().collect();
        for key in keys {
            let read = self.begin_read(key);
            let version = registers.get(&key).copied().unwrap_or((0, 0));
            wrong.extend(self.read(read, version).err());
        }
        wrong.extend(self.unwritten());
        // Each version is what the next one named, or what lies between was never seen.
        let mut successors: BTreeMap<(usize, Index), u64> = BTreeMap::new();
        for (value, write) in &self.writes {
            let Outcome::At(index) = write.outcome else { continue };
            let after = (write.key, write.expected);
            if let Some(other) = successors.insert(after, *value) {
                wrong.push(format!(
                    "writes {other} and {value} both follow version {} of register {}",
                    write.expected, write.key
                ));
            }
            let skipped = self.versions.range((write.key, write.expected + 1)..(write.key, index));
            for ((key, between), lost) in skipped {
                wrong.push(format!(
                    "write {value} of register {key} at {index} follows version {}, which {lost} at {between} had replaced",
                    write.expected
                ));
            }
        }
        wrong
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn two_writes() -> Oracle {
        let mut oracle = Oracle::default();
        let first = oracle.begin_write(0, 0);
        oracle.acknowledged(first, 5).unwrap();
        let second = oracle.begin_write(0, 5);
        oracle.acknowledged(second, 9).unwrap();
        oracle
    }

    #[test]
    fn a_clean_history_passes() {
        let mut oracle = two_writes();
        let read = oracle.begin_read(0);
        oracle.read(read, (9, 2)).unwrap();
        assert_eq!(oracle.finish(&BTreeMap::from([(0, (9, 2))])), Vec::<String>::new());
    }

    #[test]
    fn a_stale_read_a_phantom_and_a_lost_write_are_found() {
        let mut oracle = two_writes();
        let read = oracle.begin_read(0);
        assert!(oracle.read(read, (5, 1)).unwrap_err().contains("was known before"));
        assert!(oracle.read(read, (11, 7)).unwrap_err().contains("nobody wrote"));
        assert_eq!(oracle.finish(&BTreeMap::from([(0, (5, 1))])).len(), 1);
        assert_eq!(oracle.finish(&BTreeMap::new()).len(), 1);
    }

    #[test]
    fn a_write_that_took_effect_twice_or_on_a_replaced_version_is_found() {
        let mut oracle = two_writes();
        assert!(oracle.acknowledged(2, 12).is_err(), "a second index for the same write");
        let forked = oracle.begin_write(0, 5);
        oracle.acknowledged(forked, 14).unwrap();
        let wrong = oracle.finish(&BTreeMap::from([(0, (14, 3))]));
        assert!(wrong.iter().any(|what| what.contains("both follow version 5")), "{wrong:?}");
        assert!(wrong.iter().any(|what| what.contains("had replaced")), "{wrong:?}");
    }

    #[test]
    fn two_writes_with_one_index_are_found() {
        let mut oracle = two_writes();
        let [one, other] = [1, 2].map(|register| oracle.begin_write(register, 0));
        oracle.acknowledged(one, 12).unwrap();
        assert!(oracle.acknowledged(other, 12).unwrap_err().contains("both at 12"));
    }

    #[test]
    fn a_refusal_without_a_reason_is_found() {
        let mut oracle = two_writes();
        let mut refused = |expected, index, found| {
            let value = oracle.begin_write(0, expected);
            oracle.conflicted(value, index, &found)
        };
        assert_eq!(refused(5, 12, IndexConflict::Other(9)), Ok(()));
        assert_eq!(refused(0, 13, IndexConflict::Exists), Ok(()));
        for (expected, index, found) in [
            (9, 14, IndexConflict::Other(5)),
            (9, 14, IndexConflict::Other(9)),
            (9, 14, IndexConflict::Other(14)),
            (9, 14, IndexConflict::Missing),
            (9, 14, IndexConflict::Exists),
            (9, 13, IndexConflict::Other(12)),
        ] {
            assert!(refused(expected, index, found).is_err(), "{expected}, {index}, {found}");
        }
    }

    #[test]
    fn a_refusal_for_a_version_that_nobody_wrote_is_found() {
        let at_end = |is_written: bool| {
            let mut oracle = two_writes();
            let open = oracle.begin_write(0, 9);
            if is_written {
                oracle.unknown(open);
            } else {
                oracle.refused(open).unwrap();
            }
            let value = oracle.begin_write(0, 9);
            oracle.conflicted(value, 20, &IndexConflict::Other(15)).unwrap();
            let last = oracle.begin_write(0, 15);
            oracle.acknowledged(last, 30).unwrap();
            oracle.finish(&BTreeMap::from([(0, (30, last))]))
        };
        assert_eq!(at_end(true), Vec::<String>::new());
        assert!(at_end(false)[0].contains("nobody wrote"));
    }

    #[test]
    fn a_version_that_somebody_was_refused_for_is_known() {
        let mut oracle = two_writes();
        let value = oracle.begin_write(0, 5);
        oracle.conflicted(value, 20, &IndexConflict::Other(15)).unwrap();
        let read = oracle.begin_read(0);
        assert!(oracle.read(read, (9, 2)).unwrap_err().contains("15 was known"));
    }

    #[test]
    fn an_answer_from_an_older_state_is_found() {
        let mut oracle = two_writes();
        let read = oracle.begin_read(1);
        oracle.read_at(read, 20).unwrap();
        oracle.read_at(read, 10).unwrap();
        let later = oracle.begin_read(1);
        assert!(oracle.read_at(later, 19).unwrap_err().contains("20 was known"));
    }

    #[test]
    fn a_write_of_unknown_outcome_may_turn_up_once() {
        let mut oracle = two_writes();
        let late = oracle.begin_write(0, 9);
        oracle.unknown(late);
        let read = oracle.begin_read(0);
        oracle.read(read, (15, late)).unwrap();
        assert!(oracle.read(read, (16, late)).is_err());
    }

    #[test]
    fn an_index_that_was_known_before_is_found() {
        let mut oracle = two_writes();
        let late = oracle.begin_write(1, 0);
        assert!(oracle.acknowledged(late, 8).is_err());
        let refused = oracle.begin_write(1, 0);
        oracle.refused(refused).unwrap();
        assert!(oracle.acknowledged(refused, 20).is_err());
    }
}
