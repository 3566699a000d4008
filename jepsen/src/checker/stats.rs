//! Did each kind of operation succeed at all?
//!
//! A run in which one kind of operation was never answered proves nothing, however green the other checkers
//! are: it is `unknown`, never `true`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Verdict;
use crate::history::{Function, Kind, Op, Process};

/// How often each outcome came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    /// It happened.
    pub(crate) ok: u64,
    /// It certainly did not happen.
    pub(crate) fail: u64,
    /// Nobody knows.
    pub(crate) info: u64,
}

/// The statistics part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// Unknown if some function never succeeded.
    pub(crate) valid: Verdict,
    /// Counts over all functions.
    pub(crate) total: Counts,
    /// Counts by function.
    pub(crate) by_function: BTreeMap<&'static str, Counts>,
    /// Functions that never succeeded.
    pub(crate) without_success: Vec<&'static str>,
    /// Successful operations per second, from the first entry to the last.
    pub(crate) ok_per_second: f64,
    /// The longest time without any success, in milliseconds.
    pub(crate) longest_gap_ms: u64,
}

/// Counts outcomes; each of the `required` functions must have succeeded.
pub(crate) fn check(history: &[Op], required: &[Function]) -> Report {
    let mut by_function: BTreeMap<&'static str, Counts> = BTreeMap::new();
    for function in required {
        by_function.insert(function.keyword(), Counts::default());
    }
    let mut total = Counts::default();
    let mut longest_gap = 0;
    let mut latest = 0;
    for op in history.iter().filter(|op| op.process != Process::Nemesis) {
        let counts = by_function.entry(op.f.keyword()).or_default();
        for counts in [counts, &mut total] {
            match op.kind {
                Kind::Invoke => {}
                Kind::Ok => counts.ok += 1,
                Kind::Fail => counts.fail += 1,
                Kind::Info => counts.info += 1,
            }
        }
        if op.kind == Kind::Ok {
            longest_gap = longest_gap.max(op.time - latest);
            latest = op.time;
        }
    }
    let without_success: Vec<_> =
        by_function.iter().filter(|(_, counts)| counts.ok == 0).map(|(name, _)| *name).collect();
    let end = history.last().map_or(0, |op| op.time);
    Report {
        valid: Verdict::unless(!without_success.is_empty(), Verdict::Unknown),
        total,
        by_function,
        without_success,
        ok_per_second: per_second(total.ok, end),
        longest_gap_ms: longest_gap.max(end - latest) / 1_000_000,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people; both are far below 2^52")]
fn per_second(count: u64, nanoseconds: u64) -> f64 {
    if nanoseconds == 0 { 0.0 } else { count as f64 * 1e9 / nanoseconds as f64 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const REGISTER: [Function; 3] = [Function::Read, Function::Write, Function::Cas];

    fn entry(seconds: u64, kind: Kind, f: Function) -> Op {
        let time = seconds * 1_000_000_000;
        Op { time, ..Op::new(Process::Client(0), kind, f, json!([0, null])) }
    }

    #[test]
    fn a_function_without_success_is_unknown() {
        let mut history = vec![
            entry(0, Kind::Invoke, Function::Read),
            entry(1, Kind::Ok, Function::Read),
            entry(1, Kind::Fail, Function::Cas),
            entry(2, Kind::Info, Function::Write),
            entry(7, Kind::Ok, Function::Write),
        ];
        let report = check(&history, &REGISTER);
        assert_eq!(report.valid, Verdict::Unknown);
        assert_eq!(report.without_success, ["cas"]);
        assert_eq!(report.total, Counts { ok: 2, fail: 1, info: 1 });
        assert_eq!(report.longest_gap_ms, 6_000);
        history.push(entry(8, Kind::Ok, Function::Cas));
        let report = check(&history, &REGISTER);
        assert_eq!(report.valid, Verdict::True);
        assert!((report.ok_per_second - 0.375).abs() < 1e-9);
    }

    #[test]
    fn an_empty_history_is_unknown() {
        assert_eq!(check(&[], &REGISTER).valid, Verdict::Unknown);
    }
}
