//! How long writes stand still when a leader is lost: from the fault to the first acknowledged write elsewhere.
//!
//! Only faults count that took hold, hit the leader, left a majority and came alone: when a fault of another class lasts at any moment
//! of the outage, it cannot be told which of them kept the writes away. A write counts if it was sent after the fault, to a server that the fault did not hit. The clients are the measure,
//! so the resolution is the time between two of their writes; more clients and a higher rate make it finer. Figures for the report:
//! [`super::recovery`] judges those that are too long.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::{
    fault::FaultClass,
    history::{Function, Kind, Op, Process},
};

/// The outages of one fault class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Outages {
    /// Faults that hit the leader.
    pub(crate) count: usize,
    /// Half of the outages were shorter.
    pub(crate) p50_ms: u64,
    /// Ninety-nine of a hundred were shorter.
    pub(crate) p99_ms: u64,
    /// The longest.
    pub(crate) max_ms: u64,
    /// After so many no write got through until the clients ended (those of the last phase come after a pause); not in the figures.
    pub(crate) without_end: usize,
    /// Every outage that ended, shortest first, ms.
    pub(crate) lengths_ms: Vec<u64>,
}

impl Outages {
    /// The figures of outages that ended, ms, in any order, and of how many did not.
    pub(crate) fn of(mut lengths_ms: Vec<u64>, without_end: usize) -> Self {
        lengths_ms.sort_unstable();
        let rank = |percent: usize| {
            let place = (lengths_ms.len() * percent).div_ceil(100).max(1) - 1;
            lengths_ms.get(place).copied().unwrap_or(0)
        };
        Self {
            count: lengths_ms.len() + without_end,
            p50_ms: rank(50),
            p99_ms: rank(99),
            max_ms: rank(100),
            without_end,
            lengths_ms,
        }
    }
}

/// Measures the outages of a history.
pub(crate) fn measure(history: &[Op], servers: usize) -> BTreeMap<&'static str, Outages> {
    let writes = writes(history);
    let mut lengths: BTreeMap<&'static str, Vec<Option<u64>>> = BTreeMap::new();
    let mut over_at = 0;
    let spans = spans(history);
    for op in history {
        let Some((class, victims, at)) = loss_of_leader(op, servers) else { continue };
        if at < over_at {
            continue;
        }
        let end = writes
            .iter()
            .filter(|write| write.sent >= at && !victims.contains(&write.node))
            .map(|write| write.acknowledged)
            .min();
        let until = end.unwrap_or(u64::MAX);
        if spans.iter().any(|span| span.class != class && span.from < until && at < span.to) {
            continue;
        }
        over_at = until;
        lengths.entry(class.name()).or_default().push(end.map(|end| end - at));
    }
    let summary = |lengths: Vec<Option<u64>>| {
        let ended = lengths.iter().flatten().map(|length| length / 1_000_000).collect();
        Outages::of(ended, lengths.iter().filter(|length| length.is_none()).count())
    };
    lengths.into_iter().map(|(class, lengths)| (class, summary(lengths))).collect()
}

struct Write<'a> {
    node: &'a str,
    sent: u64,
    acknowledged: u64,
}

/// Whether it changes nothing.
pub(super) fn is_look(function: Function) -> bool {
    use Function::{Drain, Read, Versions, Watch};
    matches!(function, Read | Versions | Watch | Drain)
}

/// Every acknowledged change, whatever the workload calls it.
fn writes(history: &[Op]) -> Vec<Write<'_>> {
    let mut sent: BTreeMap<Process, u64> = BTreeMap::new();
    let mut writes = Vec::new();
    let clients = history.iter().filter(|op| op.process != Process::Nemesis && !op.last_phase);
    for op in clients.filter(|op| !is_look(op.f)) {
        match op.kind {
            Kind::Invoke => {
                sent.insert(op.process, op.time);
            }
            Kind::Ok => {
                if let (Some(sent), Some(node)) = (sent.remove(&op.process), &op.node) {
                    writes.push(Write { node, sent, acknowledged: op.time });
                }
            }
            Kind::Fail | Kind::Info => {
                sent.remove(&op.process);
            }
        }
    }
    writes
}

/// How long a fault lasted.
pub(super) struct Span {
    pub(super) class: FaultClass,
    pub(super) from: u64,
    pub(super) to: u64,
}

/// Every fault that took hold, or may have. One that does not say when it did (a rolling restart) counts from when it was asked for, and so does
/// one of which nobody told what became of it.
pub(super) fn spans(history: &[Op]) -> Vec<Span> {
    let mut asked: BTreeMap<FaultClass, u64> = BTreeMap::new();
    let mut open: BTreeMap<FaultClass, u64> = BTreeMap::new();
    let mut spans = Vec::new();
    for op in history {
        let Function::Fault(function) = op.f else { continue };
        let (class, begins) = FaultClass::of(function);
        if !begins {
            let (took_hold, was_asked) = (open.remove(&class), asked.remove(&class));
            let from = took_hold.or(was_asked);
            spans.extend(from.map(|from| Span { class, from, to: op.time }));
            continue;
        }
        match op.value.get("outcome").and_then(serde_json::Value::as_str) {
            None => drop(asked.insert(class, op.time)),
            Some("skipped") => {
                // Its server is killed before it is known that there is nothing to damage, or that something else keeps it down.
                let from = asked.remove(&class).filter(|_| {
                    matches!(class, FaultClass::Corrupt | FaultClass::Member | FaultClass::Rollback)
                });
                spans.extend(from.map(|from| Span { class, from, to: op.time }));
            }
            Some(_) => {
                let at = op.value.get("at").and_then(serde_json::Value::as_u64);
                let at = at.or(asked.remove(&class)).unwrap_or(op.time);
                let before = open.insert(class, at);
                spans.extend(before.map(|from| Span { class, from, to: at }));
            }
        }
    }
    let unended = open.into_iter().chain(asked);
    spans.extend(unended.map(|(class, from)| Span { class, from, to: u64::MAX }));
    spans
}

/// If the entry is an installed fault that took the leader and left a majority: its class, the servers it hit, and when.
pub(super) fn loss_of_leader(op: &Op, servers: usize) -> Option<(FaultClass, Vec<&str>, u64)> {
    let Function::Fault(function) = op.f else { return None };
    let (class, true) = FaultClass::of(function) else { return None };
    if op.value.get("outcome")?.as_str()? != "installed" {
        return None;
    }
    let names = |key: &str| -> Option<Vec<&str>> {
        op.value.get(key)?.as_array()?.iter().map(serde_json::Value::as_str).collect()
    };
    let (victims, leaders) = (names("nodes")?, names("leaders")?);
    let [leader] = leaders[..] else { return None };
    let at = op.value.get("at")?.as_u64()?;
    (victims.contains(&leader) && victims.len() * 2 < servers).then_some((class, victims, at))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MS: u64 = 1_000_000;

    fn client(time: u64, process: u64, kind: Kind, f: Function, node: &str) -> Op {
        let node = Some(node.to_owned());
        Op { time: time * MS, node, ..Op::new(Process::Client(process), kind, f, json!([1, 1])) }
    }

    fn fault(class: FaultClass, at: u64, nodes: &[&str], leaders: &[&str]) -> Op {
        let value =
            json!({"outcome": "installed", "at": at * MS, "nodes": nodes, "leaders": leaders});
        let f = Function::Fault(class.begin());
        Op { time: (at + 5) * MS, ..Op::new(Process::Nemesis, Kind::Info, f, value) }
    }

    fn end(class: FaultClass, time: u64) -> Op {
        let f = Function::Fault(class.end());
        Op { time: time * MS, ..Op::new(Process::Nemesis, Kind::Info, f, json!(null)) }
    }

    #[test]
    fn an_outage_ends_with_a_write_sent_afterwards_to_someone_else() {
        use Function::{Read, Write};
        let history = [
            client(90, 1, Kind::Invoke, Write, "n2"),
            client(95, 3, Kind::Invoke, Write, "n1"),
            fault(FaultClass::Kill, 100, &["n1"], &["n1"]),
            // Sent before; answered by the victim; a read: none of them ends it.
            client(110, 1, Kind::Ok, Write, "n2"),
            client(111, 3, Kind::Ok, Write, "n1"),
            client(112, 4, Kind::Invoke, Read, "n2"),
            client(113, 4, Kind::Ok, Read, "n2"),
            client(120, 1, Kind::Invoke, Write, "n2"),
            // A second fault before a write got through is part of the first outage.
            fault(FaultClass::Kill, 150, &["n2"], &["n2"]),
            client(900, 1, Kind::Ok, Write, "n2"),
            // Followers, majorities and faults without a leader do not count.
            fault(FaultClass::Kill, 1_000, &["n3"], &["n1"]),
            fault(FaultClass::Kill, 1_000, &["n1", "n2"], &["n1"]),
            fault(FaultClass::Kill, 1_000, &["n1"], &[]),
            end(FaultClass::Kill, 1_900),
            fault(FaultClass::Pause, 2_000, &["n1"], &["n1"]),
            // The last phase begins after a pause and ends no outage.
            Op { last_phase: true, ..client(7_000, 1, Kind::Invoke, Write, "n2") },
            Op { last_phase: true, ..client(7_010, 1, Kind::Ok, Write, "n2") },
        ];
        let outages = measure(&history, 3);
        assert_eq!(outages["kill"], Outages::of(vec![800], 0));
        assert_eq!((outages["pause"].count, outages["pause"].without_end), (1, 1));
        assert_eq!(outages.len(), 2);
    }

    #[test]
    fn faults_that_overlap_are_not_measured() {
        let history = [
            fault(FaultClass::Partition, 10, &["n3"], &["n1"]),
            fault(FaultClass::Kill, 100, &["n1"], &["n1"]),
            client(120, 1, Kind::Invoke, Function::Write, "n2"),
            client(130, 1, Kind::Ok, Function::Write, "n2"),
            end(FaultClass::Partition, 200),
            end(FaultClass::Kill, 200),
            // Another class begins before the write gets through.
            fault(FaultClass::Kill, 300, &["n1"], &["n1"]),
            fault(FaultClass::Pause, 310, &["n3"], &["n1"]),
            client(320, 1, Kind::Invoke, Function::Write, "n2"),
            client(330, 1, Kind::Ok, Function::Write, "n2"),
        ];
        assert!(measure(&history, 3).is_empty());
    }

    /// Seen in a gate: a leader was paused a moment before a rolling restart, which does not say when it began, took the others down in turn.
    #[test]
    fn a_restart_overlaps_from_when_it_was_asked_for() {
        let restart = |time, value| {
            let f = Function::Fault(FaultClass::Restart.begin());
            Op { time: time * MS, ..Op::new(Process::Nemesis, Kind::Info, f, value) }
        };
        let asked = restart(105, json!("rolling"));
        let write = |at| {
            let invoke = client(at, 1, Kind::Invoke, Function::Write, "n2");
            [invoke, client(at + 10, 1, Kind::Ok, Function::Write, "n2")]
        };
        let done = restart(900, json!({"outcome": "installed", "nodes": ["n1", "n2", "n3"]}));
        let mut history = vec![fault(FaultClass::Pause, 100, &["n1"], &["n1"]), asked];
        history.extend(write(700));
        history.extend([done, end(FaultClass::Restart, 901), end(FaultClass::Pause, 902)]);
        assert!(measure(&history, 3).is_empty());
        history.push(fault(FaultClass::Pause, 1_000, &["n1"], &["n1"]));
        history.extend(write(1_500));
        assert_eq!(measure(&history, 3)["pause"], Outages::of(vec![510], 0));
    }

    #[test]
    fn quantiles_are_ranks() {
        let outages = Outages::of((1..=200).rev().collect(), 1);
        assert_eq!((outages.p50_ms, outages.p99_ms, outages.max_ms), (100, 198, 200));
        assert_eq!((outages.count, outages.without_end), (201, 1));
    }
}
