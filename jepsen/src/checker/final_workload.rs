//! Did the cluster serve the clients after the last heal?
//!
//! A cluster that keeps its promises by never answering again is useless: once all faults are gone, every
//! register of the run must take one write and answer one read; in the other workloads every server must
//! answer the last question, which often is answered only once everything has settled.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Serialize;

use super::Verdict;
use super::calls::key_of;
use crate::{
    history::{Function, Kind, Op, Process},
    store::Readiness,
    workload::WorkloadKind,
};

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
    /// Servers that did not answer the last question, and what they said instead.
    pub(crate) silent: Vec<String>,
    /// How long the servers took to be ready after the heal.
    pub(crate) ready_after_heal: Readiness,
}

impl Report {
    /// The report of a checker that could not judge.
    pub(crate) fn unknown(ready_after_heal: Readiness) -> Self {
        Self {
            valid: Verdict::Unknown,
            keys: 0,
            not_written: Vec::new(),
            not_read: Vec::new(),
            silent: Vec::new(),
            ready_after_heal,
        }
    }
}

/// Looks for what the last phase of this workload must have had answered.
pub(crate) fn check(
    workload: WorkloadKind,
    history: &[Op],
    nodes: &[String],
    ready_after_heal: Readiness,
) -> Result<Report> {
    if workload == WorkloadKind::Register {
        return check_registers(history, ready_after_heal);
    }
    let mut report = Report::unknown(ready_after_heal);
    let wanted = workload.last_function();
    for node in nodes {
        let last = |kind| {
            history.iter().rev().find(|op| {
                op.last_phase && op.f == wanted && op.kind == kind && op.node.as_ref() == Some(node)
            })
        };
        if last(Kind::Ok).is_none() {
            let error = last(Kind::Fail).and_then(|op| op.error.as_deref());
            report.silent.push(format!("{node}: {}", error.unwrap_or("was not asked")));
        }
    }
    report.silent.extend(stuck(history).filter(|_| report.silent.is_empty()));
    report.valid = match ready_after_heal {
        Readiness::NotReached => Verdict::Unknown,
        Readiness::Never => Verdict::False,
        Readiness::Milliseconds(_) => Verdict::unless(!report.silent.is_empty(), Verdict::False),
    };
    Ok(report)
}

/// Where the last phase came to a stop: its operations come one after the other, each when the one before has succeeded.
fn stuck(history: &[Op]) -> Option<String> {
    let mut asked = history.iter().filter(|op| op.last_phase && op.process != Process::Nemesis);
    let last = asked.next_back().filter(|op| op.kind != Kind::Ok)?;
    let (node, error) = (last.node.as_deref(), last.error.as_deref());
    Some(format!(
        "{}: {} (entry {}, a {})",
        node.unwrap_or("a server"),
        error.unwrap_or("did not answer"),
        last.index,
        last.f.keyword()
    ))
}

/// Looks for the final write and read of each key.
fn check_registers(history: &[Op], ready_after_heal: Readiness) -> Result<Report> {
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
    let keys = served.len();
    Ok(Report { valid, keys, not_written, not_read, ..Report::unknown(ready_after_heal) })
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
        let report = check_registers(&history, ready).unwrap();
        assert_eq!(report.valid, Verdict::False);
        assert_eq!((report.not_written, report.not_read), (vec![2], vec![]));
        history.push(entry(2, Function::Write, true));
        assert_eq!(check_registers(&history, ready).unwrap().valid, Verdict::True);
        assert_eq!(check_registers(&history, Readiness::Never).unwrap().valid, Verdict::False);
        assert_eq!(
            check_registers(&history, Readiness::NotReached).unwrap().valid,
            Verdict::Unknown
        );
        assert_eq!(check_registers(&[], ready).unwrap().valid, Verdict::Unknown);
    }

    #[test]
    fn every_server_must_answer_the_last_question() {
        let nodes = ["n1".to_owned(), "n2".to_owned()];
        let entry = |node: &str, kind, last_phase| Op {
            node: Some(node.to_owned()),
            last_phase,
            error: Some("3 evaluations are pending".to_owned()),
            ..Op::new(Process::Client(0), kind, Function::Drain, json!([]))
        };
        let ready = Readiness::Milliseconds(700);
        let check = |history: &[Op]| check(WorkloadKind::Queue, history, &nodes, ready).unwrap();
        let mut history = vec![entry("n1", Kind::Ok, true), entry("n2", Kind::Ok, false)];
        assert_eq!(check(&history).silent, ["n2: was not asked"]);
        history.push(entry("n2", Kind::Fail, true));
        let report = check(&history);
        assert_eq!(report.silent, ["n2: 3 evaluations are pending"]);
        assert_eq!(report.valid, Verdict::False);
        history.push(entry("n2", Kind::Ok, true));
        assert_eq!(check(&history).valid, Verdict::True);
        // The next question is put again and again, and no other after it.
        history.push(entry("n1", Kind::Info, true));
        let report = check(&history);
        assert_eq!(report.silent, ["n1: 3 evaluations are pending (entry 0, a drain)"]);
        assert_eq!(report.valid, Verdict::False);
    }
}
