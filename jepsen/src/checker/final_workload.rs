//! Did the cluster serve every register after the last heal?
//!
//! A cluster that keeps its promises by never answering again is useless: once all faults are gone, every
//! key of the run must take one write and answer one read.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Serialize;

use super::Verdict;
use super::calls::key_of;
use crate::history::{Function, Kind, Op, Process};
use crate::store::Readiness;

/// The final-workload part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// False if a key was not served, unknown if the phase did not run.
    pub(crate) valid: Verdict,
    /// Keys of the run.
    pub(crate) keys: usize,
    /// Keys without a final write.
    pub(crate) not_written: Vec<u64>,
    /// Keys without a final read.
    pub(crate) not_read: Vec<u64>,
    /// How long the servers took to be ready after the heal.
    pub(crate) ready_after_heal: Readiness,
}

/// Looks for the final write and read of each key.
pub(crate) fn check(history: &[Op], ready_after_heal: Readiness) -> Result<Report> {
    let mut served: BTreeMap<u64, BTreeSet<Function>> = BTreeMap::new();
    for op in history.iter().filter(|op| op.process != Process::Nemesis) {
        let functions = served.entry(key_of(op)?).or_default();
        if op.last_phase && op.kind == Kind::Ok {
            functions.insert(op.f);
        }
    }
    let without = |function| {
        let missing = served.iter().filter(|(_, functions)| !functions.contains(&function));
        missing.map(|(key, _)| *key).collect::<Vec<u64>>()
    };
    let (not_written, not_read) = (without(Function::Write), without(Function::Read));
    let valid = match ready_after_heal {
        Readiness::NotReached => Verdict::Unknown,
        Readiness::Never => Verdict::False,
        Readiness::Milliseconds(_) if served.is_empty() => Verdict::Unknown,
        Readiness::Milliseconds(_) => {
            Verdict::unless(!not_written.is_empty() || !not_read.is_empty(), Verdict::False)
        }
    };
    Ok(Report { valid, keys: served.len(), not_written, not_read, ready_after_heal })
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_must_be_served_after_the_heal() {
        let entry = |key: u64, f, last_phase| Op {
            last_phase,
            ..Op::new(Process::Client(0), Kind::Ok, f, json!([key, 1]))
        };
        let mut history = vec![
            entry(1, Function::Write, false),
            entry(2, Function::Write, false),
            entry(1, Function::Write, true),
            entry(1, Function::Read, true),
            entry(2, Function::Read, true),
        ];
        let ready = Readiness::Milliseconds(700);
        let report = check(&history, ready).unwrap();
        assert_eq!(report.valid, Verdict::False);
        assert_eq!((report.not_written, report.not_read), (vec![2], vec![]));
        history.push(entry(2, Function::Write, true));
        assert_eq!(check(&history, ready).unwrap().valid, Verdict::True);
        assert_eq!(check(&history, Readiness::Never).unwrap().valid, Verdict::False);
        assert_eq!(check(&history, Readiness::NotReached).unwrap().valid, Verdict::Unknown);
        assert_eq!(check(&[], ready).unwrap().valid, Verdict::Unknown);
    }
}
