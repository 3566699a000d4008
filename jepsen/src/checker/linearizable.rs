//! Does each key behave as one register, in real time and with rising versions?
//!
//! Keys are independent, so each is judged alone. For a key that fails, the report names the first entry
//! that cannot be explained and carries a small sub-history that fails by itself. Every reduction used
//! keeps a legal history legal (cutting the end off, leaving out a read, leaving out a write nobody saw),
//! so what is left proves the violation without the rest.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;
use serde_json::json;

use super::Verdict;
use super::calls::{Call, by_key};
use super::judgement::Judgement;
use super::search::{Conflict, linearizable, version_conflict};
use super::shares::judge_each;
use super::shrink;
use super::wgl::{Budget, Outcome};
use crate::history::{Kind, Op, Process};

/// About 1 GiB with 200 operations per key.
const CONFIGURATIONS_MAX: usize = 8_000_000;
/// Failing keys that are reduced and printed; the others are only counted.
const COUNTEREXAMPLES_MAX: usize = 3;

/// The linearizability part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// False if any key fails.
    pub(crate) valid: Verdict,
    /// Keys judged.
    pub(crate) keys: usize,
    /// Calls judged.
    pub(crate) calls: usize,
    /// Keys with a violation.
    pub(crate) failed_keys: Vec<u64>,
    /// Keys that were not finished in time, with the reason.
    pub(crate) unknown_keys: Vec<(u64, String)>,
    /// How long judging took.
    pub(crate) elapsed_ms: u128,
    /// Evidence for the first failing keys.
    pub(crate) counterexamples: Vec<Counterexample>,
}

/// A sub-history of one key that no register can have served.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Counterexample {
    /// The key.
    pub(crate) key: u64,
    /// What is wrong, in one sentence.
    pub(crate) explanation: String,
    /// The entries, in order.
    pub(crate) entries: Vec<Op>,
}

impl Report {
    /// The same in the form that all workloads share.
    pub(crate) fn into_judgement(self) -> Judgement {
        let mut judgement = Judgement::new("linearizable", self.calls);
        judgement.summary = format!("{} keys, {} calls", self.keys, self.calls);
        if !self.failed_keys.is_empty() {
            write!(judgement.summary, "; violated by keys {:?}", self.failed_keys)
                .expect("writing to a string cannot fail");
        }
        for (key, reason) in &self.unknown_keys {
            write!(judgement.summary, "; key {key}: {reason}")
                .expect("writing to a string cannot fail");
        }
        judgement.details = json!({
            "keys": self.keys,
            "failed_keys": self.failed_keys,
            "unknown_keys": self.unknown_keys,
        });
        for example in self.counterexamples {
            let title = format!("key {}: {}", example.key, example.explanation);
            judgement.violated(title, example.entries);
        }
        judgement.valid = self.valid;
        judgement.violation_count = self.failed_keys.len();
        judgement.elapsed_ms = self.elapsed_ms;
        judgement
    }
}

/// Judges every key of a history.
pub(crate) fn check(history: &[Op], time_max: Duration) -> Result<Report> {
    let started = Instant::now();
    let budget = Budget { deadline: started + time_max, configurations_max: CONFIGURATIONS_MAX };
    let keys = by_key(history)?;
    let mut report = Report {
        valid: Verdict::True,
        keys: keys.len(),
        calls: keys.values().map(Vec::len).sum(),
        failed_keys: Vec::new(),
        unknown_keys: Vec::new(),
        elapsed_ms: 0,
        counterexamples: Vec::new(),
    };
    let judge = |(_, calls): &(u64, Vec<Call>), budget: &Budget| Ok(linearizable(calls, budget));
    for ((key, calls), outcome) in judge_each(keys, &budget, judge)? {
        match outcome {
            Outcome::Yes => {}
            Outcome::Unknown(reason) => {
                report.valid = report.valid.max(Verdict::Unknown);
                report.unknown_keys.push((key, reason.to_owned()));
            }
            Outcome::No => {
                report.valid = Verdict::False;
                report.failed_keys.push(key);
                if report.counterexamples.len() < COUNTEREXAMPLES_MAX {
                    report.counterexamples.push(counterexample(history, key, &calls));
                }
            }
        }
    }
    report.elapsed_ms = started.elapsed().as_millis();
    Ok(report)
}

fn counterexample(history: &[Op], key: u64, calls: &[Call]) -> Counterexample {
    let budget = shrink::budget(CONFIGURATIONS_MAX);
    let shortest = shortest_failing_prefix(calls, &budget);
    let last = shortest.iter().filter_map(|call| call.returned).max();
    let explanation = explain(history, &shortest, last);
    let small = reduce(shortest, &budget);
    let wanted: BTreeSet<u64> =
        small.iter().flat_map(|call| [Some(call.invoked), call.returned]).flatten().collect();
    let mut entries = Vec::new();
    // Clients of the calls shown whose end is still to come; an `info` is shown too.
    let mut open = BTreeSet::new();
    for op in history.iter().filter(|op| op.process != Process::Nemesis) {
        let shown = wanted.contains(&op.index);
        if op.kind == Kind::Invoke && shown {
            open.insert(op.process);
        }
        let ends = op.kind != Kind::Invoke && open.remove(&op.process);
        if shown || (ends && op.kind == Kind::Info) {
            entries.push(op.clone());
        }
    }
    Counterexample { key, explanation, entries }
}

/// The calls as they stood right after the first answer that cannot be explained.
fn shortest_failing_prefix(calls: &[Call], budget: &Budget) -> Vec<Call> {
    let mut answers: Vec<u64> = calls.iter().filter_map(|call| call.returned).collect();
    answers.sort_unstable();
    let (mut low, mut high) = (0, answers.len());
    // Invariant: the prefix that ends with answer `high - 1` fails.
    while low + 1 < high {
        let middle = low.midpoint(high);
        if linearizable(&prefix(calls, answers[middle - 1]), budget) == Outcome::No {
            high = middle;
        } else {
            low = middle;
        }
    }
    answers[..high].last().map_or_else(|| calls.to_vec(), |end| prefix(calls, *end))
}

fn prefix(calls: &[Call], end: u64) -> Vec<Call> {
    calls
        .iter()
        .filter(|call| call.invoked <= end)
        .filter_map(|call| match call.returned {
            Some(returned) if returned > end => unanswered(*call),
            Some(_) | None => Some(*call),
        })
        .collect()
}

/// The call as if its answer had not come: a read then says nothing, a write loses its version.
fn unanswered(call: Call) -> Option<Call> {
    use super::calls::Action::{Cas, Read, Write};
    let action = match call.action {
        Read { .. } => return None,
        Write { value, .. } => Write { value, version: None },
        Cas { expected, expected_version, value, .. } => {
            Cas { expected, expected_version, value, version: None }
        }
    };
    Some(Call { action, returned: None, ..call })
}

/// Leaves out reads, and writes that nobody saw, for as long as the rest still fails.
fn reduce(mut calls: Vec<Call>, budget: &Budget) -> Vec<Call> {
    loop {
        let before = calls.len();
        let mut position = calls.len();
        while position > 0 {
            position -= 1;
            if !removable(&calls, position) {
                continue;
            }
            let mut without = calls.clone();
            without.remove(position);
            if linearizable(&without, budget) == Outcome::No {
                calls = without;
            }
        }
        if calls.len() == before || Instant::now() >= budget.deadline {
            return calls;
        }
    }
}

fn removable(calls: &[Call], position: usize) -> bool {
    let Some(value) = calls[position].action.written() else { return true };
    let seen = |call: &Call| call.action.observed().is_some_and(|(seen, _)| seen == Some(value));
    !calls.iter().any(seen)
}

fn explain(history: &[Op], calls: &[Call], last: Option<u64>) -> String {
    if let Some(Conflict { value, versions: [one, other] }) = version_conflict(calls) {
        return match value {
            Some(value) => {
                format!("value {value} was seen with version {one} and with version {other}")
            }
            None => format!("a register that does not exist was seen with version {other}"),
        };
    }
    let written: BTreeSet<u64> = calls.iter().filter_map(|call| call.action.written()).collect();
    for call in calls {
        if let Some((Some(value), _)) = call.action.observed()
            && !written.contains(&value)
        {
            let entry = call.returned.unwrap_or(call.invoked);
            return match failed_write(history, value) {
                Some(end) => format!(
                    "entry {entry} saw value {value}, which entry {end} reported as certainly not \
                     written"
                ),
                None => format!("entry {entry} saw value {value} before anyone wrote it"),
            };
        }
    }
    match last {
        Some(last) => format!(
            "the history has a legal order up to entry {}; with entry {last} it has none",
            last.saturating_sub(1)
        ),
        None => "the history has no legal order".to_owned(),
    }
}

/// The entry that says that a write of this value failed.
fn failed_write(history: &[Op], value: u64) -> Option<u64> {
    let start = history.iter().find(|op| {
        let written = op.value.get(1).map(|value| value.get(1).unwrap_or(value));
        op.kind == Kind::Invoke
            && op.f != crate::history::Function::Read
            && written.and_then(serde_json::Value::as_u64) == Some(value)
    })?;
    let end = history
        .iter()
        .find(|op| op.index > start.index && op.process == start.process)
        .filter(|op| op.kind == Kind::Fail)?;
    Some(end.index)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::path::Path;

    use super::*;
    use crate::history::read_jsonl;

    fn judge(name: &str) -> Report {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/register").join(name);
        check(&read_jsonl(&path).unwrap().0, Duration::from_mins(1)).unwrap()
    }

    /// Every file of the corpus, its verdict, and for a bad one the explanation and the entries that
    /// are left after reduction.
    const CORPUS: [(&str, Verdict, &str, &[u64]); 18] = [
        ("good-sequential.jsonl", Verdict::True, "", &[]),
        ("good-concurrent.jsonl", Verdict::True, "", &[]),
        ("good-info-takes-effect-late.jsonl", Verdict::True, "", &[]),
        ("good-info-never.jsonl", Verdict::True, "", &[]),
        ("good-info-cas-chain.jsonl", Verdict::True, "", &[]),
        ("good-without-versions.jsonl", Verdict::True, "", &[]),
        ("good-unfinished.jsonl", Verdict::True, "", &[]),
        ("good-two-keys.jsonl", Verdict::True, "", &[]),
        (
            "bad-stale-read.jsonl",
            Verdict::False,
            "up to entry 6; with entry 7 it has none",
            &[0, 1, 2, 3, 6, 7],
        ),
        (
            "bad-lost-write.jsonl",
            Verdict::False,
            "up to entry 2; with entry 3 it has none",
            &[0, 1, 2, 3],
        ),
        (
            "bad-lost-update-by-cas.jsonl",
            Verdict::False,
            "up to entry 6; with entry 7 it has none",
            &[0, 1, 4, 5, 6, 7],
        ),
        (
            "bad-version-goes-back.jsonl",
            Verdict::False,
            "up to entry 2; with entry 3 it has none",
            &[0, 1, 2, 3],
        ),
        (
            "bad-two-versions-of-one-value.jsonl",
            Verdict::False,
            "value 1 was seen with version 5 and with version 6",
            &[0, 1, 2, 3],
        ),
        (
            "bad-failed-write-seen.jsonl",
            Verdict::False,
            "entry 3 saw value 1, which entry 1 reported as certainly not written",
            &[2, 3],
        ),
        (
            "bad-read-before-write.jsonl",
            Verdict::False,
            "entry 1 saw value 1 before anyone wrote it",
            &[0, 1],
        ),
        (
            "bad-info-takes-effect-twice.jsonl",
            Verdict::False,
            "up to entry 9; with entry 10 it has none",
            &[0, 1, 2, 3, 5, 6, 9, 10],
        ),
        (
            "bad-stale-read-without-versions.jsonl",
            Verdict::False,
            "up to entry 4; with entry 5 it has none",
            &[0, 1, 2, 3, 4, 5],
        ),
        (
            "bad-one-key-of-two.jsonl",
            Verdict::False,
            "up to entry 6; with entry 7 it has none",
            &[0, 1, 6, 7],
        ),
    ];

    #[test]
    fn corpus_is_judged_as_known() {
        for (name, verdict, explanation, entries) in CORPUS {
            let report = judge(name);
            assert_eq!(report.valid, verdict, "{name}: {report:?}");
            if verdict == Verdict::True {
                assert!(report.counterexamples.is_empty(), "{name}");
                continue;
            }
            let [found] = report.counterexamples.as_slice() else { panic!("{name}: {report:?}") };
            assert!(found.explanation.contains(explanation), "{name}: {}", found.explanation);
            let left: Vec<u64> = found.entries.iter().map(|op| op.index).collect();
            assert_eq!(left, entries, "{name}");
        }
    }

    #[test]
    fn every_corpus_file_has_a_known_verdict() {
        let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/register");
        let mut files: Vec<String> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        files.sort_unstable();
        let mut known: Vec<&str> = CORPUS.iter().map(|(name, ..)| *name).collect();
        known.sort_unstable();
        assert_eq!(files, known);
    }
}
