//! Did each kind of operation succeed at all, and were there enough of them?
//!
//! A run in which one kind of operation was never answered proves nothing, however green the other checkers
//! are: it is `unknown`, never `true`. So is one whose clients hardly worked while nothing was broken yet.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use super::Verdict;
use crate::{
    history::{Function, Kind, Op, Process},
    workload::WorkloadKind,
};

/// Operations per second that are enough, however many more are asked for.
const ENOUGH_PER_SECOND: f64 = 50.0;
/// Operations per second that one client can be expected to do: most take less than a tenth of a second, also on a busy machine.
const PER_CLIENT: f64 = 10.0;
/// The time before the first fault is judged if so many operations can be expected in it: with fewer, the first elections and connections count too much.
const EXPECTED_MIN: f64 = 100.0;

/// How fast the clients of a run are expected to be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Operations per second.
    expected: f64,
    /// The share of them below which a run proves too little.
    share_min: f64,
}

impl Pace {
    /// Of a workload at this rate, all clients together. In 247 runs at 100 per second, on two cores that up to three gates and builds
    /// shared, the slowest did 29 per second (`allocs`), of the workloads without agents that crash 40 (`append`). Nothing waits by
    /// design that counts: the watchers of `watch` come beside its clients and only add.
    pub(crate) fn of(workload: WorkloadKind, rate: f64, clients: usize) -> Self {
        let clients = f64::from(u32::try_from(clients).unwrap_or(u32::MAX));
        let share_min = match workload {
            WorkloadKind::Register
            | WorkloadKind::Set
            | WorkloadKind::Append
            | WorkloadKind::Queue
            | WorkloadKind::Jobs
            | WorkloadKind::Watch => 0.5,
            // Each answer holds all nodes and allocations, and the agents need the same cores.
            WorkloadKind::Bank | WorkloadKind::Allocs | WorkloadKind::Elastic => 0.2,
        };
        Self { expected: rate.min(ENOUGH_PER_SECOND).min(clients * PER_CLIENT), share_min }
    }
}

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
    /// Unknown if some function never succeeded, or too few operations did before the first fault.
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
    /// Successful operations per second of the clients, from the first one to the first fault; nothing if a fault was first.
    pub(crate) ok_per_second_before_faults: Option<f64>,
    /// What that rate has to be at least, if it is less.
    pub(crate) ok_per_second_due: Option<f64>,
}

impl Report {
    /// Judges the rate before the first fault as well.
    pub(crate) fn paced(self, history: &[Op], pace: Pace) -> Self {
        let Some((ok, nanoseconds)) = calm(history) else { return self };
        let rate = per_second(ok, nanoseconds);
        let expected = pace.expected * Duration::from_nanos(nanoseconds).as_secs_f64();
        let due = pace.expected * pace.share_min;
        let is_slow = expected >= EXPECTED_MIN && rate < due;
        Self {
            valid: self.valid.max(Verdict::unless(is_slow, Verdict::Unknown)),
            ok_per_second_before_faults: Some(rate),
            ok_per_second_due: is_slow.then_some(due),
            ..self
        }
    }
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
        ok_per_second_before_faults: None,
        ok_per_second_due: None,
    }
}

/// How many operations succeeded while no fault of a server had been asked for, and in how many nanoseconds: from the first that was
/// begun to the last. The servers' start is no part of it, nor is what clients wait for after the end.
fn calm(history: &[Op]) -> Option<(u64, u64)> {
    let (mut begin, mut end, mut ok) = (None, 0, 0);
    for op in history {
        if matches!(op.f, Function::Fault(_)) {
            break;
        }
        if op.process == Process::Nemesis || op.last_phase {
            continue;
        }
        match op.kind {
            Kind::Invoke => {
                begin.get_or_insert(op.time);
                end = op.time;
            }
            Kind::Ok => ok += 1,
            Kind::Fail | Kind::Info => {}
        }
    }
    Some((ok, end - begin?))
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people; both are far below 2^52")]
fn per_second(count: u64, nanoseconds: u64) -> f64 {
    if nanoseconds == 0 { 0.0 } else { count as f64 * 1e9 / nanoseconds as f64 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fault::FaultClass;

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

    /// The verdict and the rate before the first fault of so many operations in a second, for some seconds after the servers' start.
    fn paced(per_second: u64, seconds: u64, workload: WorkloadKind, rate: f64) -> (Verdict, f64) {
        let mut history = Vec::new();
        for number in 0..=per_second * seconds {
            let time = 4_000_000_000 + number * 1_000_000_000 / per_second;
            for kind in [Kind::Invoke, Kind::Ok] {
                history.push(Op { time, ..entry(0, kind, Function::Read) });
            }
        }
        let kill = Function::Fault(FaultClass::Kill.begin());
        let fault = Op::new(Process::Nemesis, Kind::Info, kill, json!("one"));
        history.push(Op { time: (4 + seconds) * 1_000_000_000, ..fault });
        // What comes after the first fault does not count.
        history.extend((0..1_000).map(|_| entry(60, Kind::Ok, Function::Read)));
        let report = check(&history, &[Function::Read]);
        assert_eq!(report.valid, Verdict::True);
        let report = report.paced(&history, Pace::of(workload, rate, 6));
        assert_eq!(report.ok_per_second_due.is_some(), report.valid == Verdict::Unknown);
        (report.valid, report.ok_per_second_before_faults.expect("there was a time before"))
    }

    #[test]
    fn clients_that_hardly_worked_before_the_first_fault_prove_too_little() {
        let (valid, rate) = paced(20, 5, WorkloadKind::Register, 100.0);
        assert_eq!(valid, Verdict::Unknown);
        assert!((rate - 20.2).abs() < 1e-6, "{rate}");
        let verdict = |per_second, seconds, workload, rate| {
            let (valid, _) = paced(per_second, seconds, workload, rate);
            valid
        };
        assert_eq!(verdict(30, 5, WorkloadKind::Register, 100.0), Verdict::True);
        // Agents need the machine too, the clients were asked for less, or there was hardly any time.
        assert_eq!(verdict(20, 5, WorkloadKind::Allocs, 100.0), Verdict::True);
        assert_eq!(verdict(5, 5, WorkloadKind::Allocs, 100.0), Verdict::Unknown);
        assert_eq!(verdict(20, 5, WorkloadKind::Register, 30.0), Verdict::True);
        assert_eq!(verdict(20, 1, WorkloadKind::Register, 100.0), Verdict::True);
        assert_eq!(verdict(1, 5, WorkloadKind::Register, 10.0), Verdict::True);
    }

    #[test]
    fn without_a_time_before_faults_there_is_no_rate() {
        let kill = Function::Fault(FaultClass::Kill.begin());
        let fault = Op::new(Process::Nemesis, Kind::Info, kill, json!("one"));
        let history =
            [fault, entry(1, Kind::Invoke, Function::Read), entry(9, Kind::Ok, Function::Read)];
        let pace = Pace::of(WorkloadKind::Register, 100.0, 6);
        let report = check(&history, &[Function::Read]).paced(&history, pace);
        assert_eq!((report.valid, report.ok_per_second_before_faults), (Verdict::True, None));
    }
}
