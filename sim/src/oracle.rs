//! What clients were told, and what that promises.
//!
//! A register is a job; a write is a compare-and-set on its modify index with a value nobody else writes. The index of the entry orders all
//! writes, so linearizability of a register is checked exactly, by comparing indexes:
//! - a read returns a value that was written, at the index its writer was told (no phantom, one index per write);
//! - what a client sees is never older than anything that was acknowledged or read before it asked (fresh, read-your-writes, monotonic);
//! - a write's index is above every index known before it began, and each write follows on exactly the version it named (no lost update);
//! - a write of unknown outcome may turn up later, but once; at the end no acknowledged write is lost.

use std::collections::BTreeMap;

use fsm::Index;

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

    /// A write ended without an answer: it may take effect, now or later, once.
    pub(crate) fn unknown(&mut self, value: u64) {
        if let Some(write) = self.writes.get_mut(&value) {
            write.unknown = true;
        }
    }

    /// A linearizable read begins.
    pub(crate) fn begin_read(&self, key: usize) -> Read {
        Read { key, floor: self.newest.get(&key).copied().unwrap_or(0), log_floor: self.floor }
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

    /// The last word: the registers as they are at the end, by key.
    pub(crate) fn finish(&mut self, registers: &BTreeMap<usize, Version>) -> Vec<String> {
        let mut wrong = Vec::new();
        let keys: Vec<usize> = self.newest.keys().copied().collect();
        for key in keys {
            let read = self.begin_read(key);
            let version = registers.get(&key).copied().unwrap_or((0, 0));
            wrong.extend(self.read(read, version).err());
        }
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
