//! Do writes go on after the loss of a leader?
//!
//! While a majority runs and its servers hear each other, the loss of a leader must not keep writes away for longer than
//! [`RECOVERY_NS_MAX`]. Judged are losses by a kill, a pause or a partition of which that is certain:
//!
//! - a minority was hit, and the leader with it; the others are one part ([`Shape`]s that cut single directions or flap leave the old
//!   leader a voice, and are left out);
//! - no other fault lasted, or may have lasted, at that moment; the next one, of any class, ends what is looked at;
//! - a majority had each served a write since the fault before was over: who was just started again may not be there yet.
//!
//! The clients are the clock: only time in which they tried counts, so a run without clients, or a machine that stood still, is no
//! evidence. A loss that could not be followed for so long and after which no write was seen is *undecided*: it says nothing, and how
//! many there were is told. The end of the fault ends nothing: the majority is still there, and larger.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::Verdict;
use super::outage::{Span, is_look, loss_of_leader, spans};
use crate::{
    fault::FaultClass,
    history::{Kind, Op, Process},
    partition::Shape,
    system::System,
    workload::answer::CONFLICT,
};

/// The longest time without a write. The design's limit is 5 s on an idle machine; machines of CI are busy.
const RECOVERY_NS_MAX: u64 = 15_000_000_000;
/// The longest time between two tries that counts, twice a client's patience: after more the clients themselves stood still.
const TRY_GAP_NS_MAX: u64 = 2_000_000_000;
/// What a server says that takes no writes because its disk is almost full, which is no matter of leaders.
const TURNED_AWAY: &str = "writes are turned away";

/// The recovery part of the results.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    /// False if writes stood still for too long.
    pub(crate) valid: Verdict,
    /// Losses after which a write got through in time.
    pub(crate) in_time: usize,
    /// Losses after which another fault, or the end, came too soon to tell.
    pub(crate) undecided: usize,
    /// Losses after which none got through in time.
    pub(crate) too_slow: Vec<Standstill>,
}

/// A loss after which writes stood still for too long.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Standstill {
    /// The entry of the fault.
    pub(crate) entry: u64,
    /// Its class.
    pub(crate) class: &'static str,
    /// The servers it hit.
    pub(crate) nodes: Vec<String>,
    /// How long writes stood still, at least.
    pub(crate) length_ms: u64,
    /// How many were tried meanwhile at other servers.
    pub(crate) tries: usize,
    /// Whether one got through in the end.
    pub(crate) ended: bool,
}

/// Follows every loss of a leader that came alone. The bound is a promise of Quorate's: other systems are not judged.
pub(crate) fn check(history: &[Op], servers: usize, system: System) -> Report {
    let mut report =
        Report { valid: Verdict::True, in_time: 0, undecided: 0, too_slow: Vec::new() };
    if system != System::Quorate {
        return report;
    }
    let (spans, tries) = (spans(history), tries(history));
    for op in history {
        let Some(loss) = lone_loss(op, servers, &spans, &tries) else { continue };
        let wait = follow(&loss, &tries);
        if wait.length_ns > RECOVERY_NS_MAX {
            report.too_slow.push(Standstill {
                entry: op.index,
                class: loss.class.name(),
                nodes: loss.victims.iter().map(|node| (*node).to_owned()).collect(),
                length_ms: wait.length_ns / 1_000_000,
                tries: wait.tries,
                ended: wait.ended,
            });
        } else if wait.ended {
            report.in_time += 1;
        } else {
            report.undecided += 1;
        }
    }
    report.valid = Verdict::unless(!report.too_slow.is_empty(), Verdict::False);
    report
}

/// A leader that was lost while a majority went on.
struct Loss<'a> {
    class: FaultClass,
    victims: Vec<&'a str>,
    at: u64,
    /// When the fault was over, and its victims could serve again.
    over: u64,
    /// When the next fault came.
    until: u64,
}

/// If the entry is a loss of which the majority is certain: what is to be followed.
fn lone_loss<'a>(
    op: &'a Op,
    servers: usize,
    spans: &[Span],
    tries: &[Try<'_>],
) -> Option<Loss<'a>> {
    let (class, victims, at) = loss_of_leader(op, servers)?;
    if !leaves_one_part(class, &op.value) {
        return None;
    }
    let mut others = spans.iter().filter(|span| span.class != class || span.from < at);
    if others.any(|span| span.from <= at && at < span.to) {
        return None;
    }
    let calm = spans.iter().map(|span| span.to).filter(|to| *to <= at).max().unwrap_or(0);
    let ready: BTreeSet<&str> = tries
        .iter()
        .filter(|one| one.outcome == Outcome::Served && one.sent >= calm && one.ended <= at)
        .map(|one| one.node)
        .filter(|node| !victims.contains(node))
        .collect();
    if ready.len() * 2 <= servers {
        return None;
    }
    let own = spans.iter().find(|span| span.class == class && span.from == at);
    let over = own.map_or(u64::MAX, |span| span.to);
    let next = spans.iter().map(|span| span.from).filter(|from| *from > at).min();
    Some(Loss { class, victims, at, over, until: next.unwrap_or(u64::MAX) })
}

/// Whether those that were not hit all run and hear each other, and hear nothing of those that were.
fn leaves_one_part(class: FaultClass, details: &Value) -> bool {
    let text = |field: &str| details.get(field).and_then(Value::as_str);
    match class {
        FaultClass::Kill | FaultClass::Pause | FaultClass::Member => true,
        FaultClass::Partition => {
            let shapes = [
                Shape::One,
                Shape::LeaderWithMinority,
                Shape::MinorityThird,
                Shape::Halves,
                Shape::Primaries,
            ];
            let lasts = matches!(text("how"), Some("cut" | "held"));
            lasts && shapes.iter().any(|shape| text("aim") == Some(shape.name()))
        }
        FaultClass::Restart
        | FaultClass::Transfer
        | FaultClass::Delay
        | FaultClass::Loss
        | FaultClass::HalfOpen
        | FaultClass::DiskFull
        | FaultClass::SlowDisk
        | FaultClass::HangDisk
        | FaultClass::Corrupt
        | FaultClass::Rollback
        | FaultClass::Power
        | FaultClass::Freeze
        | FaultClass::Clock => false,
    }
}

/// A change that a client asked a server for.
struct Try<'a> {
    node: &'a str,
    sent: u64,
    ended: u64,
    outcome: Outcome,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// A leader answered: it was done, or another had been done before.
    Served,
    /// The server's disk is almost full.
    TurnedAway,
    /// Nobody did it.
    Unserved,
}

/// The changes of the main phase, in the order in which they were sent.
fn tries(history: &[Op]) -> Vec<Try<'_>> {
    let mut sent: BTreeMap<Process, u64> = BTreeMap::new();
    let mut tries = Vec::new();
    for op in history {
        if op.process == Process::Nemesis || op.last_phase || is_look(op.f) {
            continue;
        }
        if op.kind == Kind::Invoke {
            sent.insert(op.process, op.time);
        } else if let (Some(sent), Some(node), Some(outcome)) =
            (sent.remove(&op.process), &op.node, outcome(op))
        {
            tries.push(Try { node, sent, ended: op.time, outcome });
        }
    }
    tries.sort_by_key(|one| one.sent);
    tries
}

/// What the end of a change says; nothing if a server refused it as senseless, which needs no leader.
fn outcome(end: &Op) -> Option<Outcome> {
    let error = end.error.as_deref().unwrap_or_default();
    match end.kind {
        Kind::Ok => Some(Outcome::Served),
        Kind::Fail if error.contains(CONFLICT) => Some(Outcome::Served),
        Kind::Fail if error.contains(TURNED_AWAY) => Some(Outcome::TurnedAway),
        Kind::Fail if has_status_of_client(error) => None,
        Kind::Fail | Kind::Info | Kind::Invoke => Some(Outcome::Unserved),
    }
}

/// Whether an error begins with a status from 400 to 499, as in `404: job not found`.
fn has_status_of_client(error: &str) -> bool {
    matches!(error.as_bytes(), [b'4', b'0'..=b'9', b'0'..=b'9', b':', ..])
}

/// What clients saw after a loss.
struct Wait {
    /// The time in which they tried, up to the first write that got through.
    length_ns: u64,
    /// How many they tried in vain.
    tries: usize,
    /// Whether one got through.
    ended: bool,
}

fn follow(loss: &Loss<'_>, tries: &[Try<'_>]) -> Wait {
    let can_serve = |one: &&Try<'_>| one.sent >= loss.over || !loss.victims.contains(&one.node);
    let elsewhere: Vec<&Try<'_>> =
        tries.iter().filter(|one| one.sent >= loss.at).filter(can_serve).collect();
    let of = |outcome: Outcome| elsewhere.iter().filter(move |one| one.outcome == outcome);
    let turned_away = of(Outcome::TurnedAway).map(|one| one.sent).min();
    let limit = loss.until.min(turned_away.unwrap_or(u64::MAX));
    let served = of(Outcome::Served).map(|one| one.ended).min().filter(|at| *at < limit);
    let until = served.unwrap_or(limit);
    let (mut wait, mut latest) =
        (Wait { length_ns: 0, tries: 0, ended: served.is_some() }, loss.at);
    for one in elsewhere.iter().take_while(|one| one.sent < until) {
        wait.length_ns += (one.sent - latest).min(TRY_GAP_NS_MAX);
        wait.tries += usize::from(one.outcome == Outcome::Unserved);
        latest = one.sent;
    }
    if let Some(at) = served {
        wait.length_ns += (at - latest).min(TRY_GAP_NS_MAX);
    }
    wait
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::history::Function;

    const MS: u64 = 1_000_000;
    /// When the leader, n1, is lost.
    const LOST_MS: u64 = 100;

    fn write(sent_ms: u64, node: &str, kind: Kind, error: Option<&str>) -> [Op; 2] {
        let f = Function::Write;
        let end = |time_ms, kind, error: Option<&str>| Op {
            time: time_ms * MS,
            node: Some(node.to_owned()),
            error: error.map(str::to_owned),
            ..Op::new(Process::Client(1), kind, f, json!([1, 1]))
        };
        [end(sent_ms, Kind::Invoke, None), end(sent_ms + 10, kind, error)]
    }

    fn begin(class: FaultClass, at_ms: u64, details: Value) -> Op {
        let mut value = details;
        value["outcome"] = "installed".into();
        value["at"] = (at_ms * MS).into();
        let f = Function::Fault(class.begin());
        Op { time: (at_ms + 5) * MS, ..Op::new(Process::Nemesis, Kind::Info, f, value) }
    }

    fn loss(class: FaultClass, aim: &str, how: &str) -> Op {
        let details = json!({"aim": aim, "how": how, "nodes": ["n1"], "leaders": ["n1"]});
        begin(class, LOST_MS, details)
    }

    /// Both survivors serve a write, the leader is lost, and from then on none of these tries gets through.
    fn standstill(lost: Op, tries_ms: impl IntoIterator<Item = u64>) -> Vec<Op> {
        let ready = [write(10, "n2", Kind::Ok, None), write(30, "n3", Kind::Ok, None)];
        let mut history: Vec<Op> = ready.into_iter().flatten().collect();
        history.push(Op { index: 77, ..lost });
        for (number, at_ms) in (0..).zip(tries_ms) {
            let node = if number % 2 == 0 { "n2" } else { "n3" };
            history.extend(write(at_ms, node, Kind::Info, Some("timeout: global")));
        }
        history
    }

    fn kill() -> Op {
        loss(FaultClass::Kill, "primaries", "")
    }

    /// Tries twice a second.
    fn until(end_ms: u64) -> impl Iterator<Item = u64> {
        (200..=end_ms).step_by(500)
    }

    /// How many losses were in time, undecided, too slow.
    fn counts(history: &[Op]) -> (usize, usize, usize) {
        let report = check(history, 3, System::Quorate);
        let slow = report.too_slow.len();
        assert_eq!(report.valid, Verdict::unless(slow > 0, Verdict::False));
        (report.in_time, report.undecided, slow)
    }

    #[test]
    fn a_leader_that_nobody_replaces_is_a_violation() {
        let mut history = standstill(kill(), until(16_200));
        let report = check(&history, 3, System::Quorate);
        assert_eq!(report.valid, Verdict::False);
        let expected = Standstill {
            entry: 77,
            class: "kill",
            nodes: vec!["n1".to_owned()],
            length_ms: 16_100,
            tries: 33,
            ended: false,
        };
        assert_eq!(report.too_slow, [expected]);
        // A write that gets through too late does not make it good, nor does the end of the fault. Others have promised nothing.
        history.extend(write(16_700, "n2", Kind::Ok, None));
        let slow = &check(&history, 3, System::Quorate).too_slow[0];
        assert_eq!((slow.length_ms, slow.ended), (16_610, true));
        let f = Function::Fault(FaultClass::Kill.end());
        let end = Op::new(Process::Nemesis, Kind::Info, f, json!({"nodes": ["n1"]}));
        history.splice(9..9, write(720, "n1", Kind::Ok, None));
        assert_eq!(counts(&history), (0, 0, 1));
        history.push(Op { time: 9_000 * MS, ..end.clone() });
        assert_eq!(counts(&history), (0, 0, 1));
        // From then on its victim can serve as well.
        history.pop();
        history.insert(9, Op { time: 715 * MS, ..end });
        assert_eq!(counts(&history), (1, 0, 0));
        history.drain(10..12);
        assert_eq!(counts(&history), (0, 0, 1));
        assert_eq!(check(&history, 3, System::Etcd).valid, Verdict::True);
    }

    #[test]
    fn a_loss_that_was_not_followed_long_enough_says_nothing() {
        assert_eq!(counts(&standstill(kill(), until(14_200))), (0, 1, 0));
        assert_eq!(counts(&standstill(kill(), [])), (0, 1, 0), "no client tried");
        // The machine, or the harness, stood still.
        let tries = until(5_200).chain((60_200..=65_200).step_by(500));
        assert_eq!(counts(&standstill(kill(), tries)), (0, 1, 0));
        // A last phase comes after a pause.
        let mut history = standstill(kill(), until(16_200));
        for op in &mut history {
            op.last_phase = op.time > 9_000 * MS;
        }
        assert_eq!(counts(&history), (0, 1, 0));
        // The next fault may be the reason for what comes after it.
        for class in [FaultClass::Kill, FaultClass::Clock] {
            let mut history = standstill(kill(), until(16_200));
            history.insert(20, begin(class, 3_000, json!({"nodes": ["n3"], "leaders": []})));
            assert_eq!(counts(&history), (0, 1, 0), "{class:?}");
        }
    }

    #[test]
    fn a_write_or_a_conflict_in_time_is_a_recovery() {
        let conflict = "500: Enforcing job modify index 3: job does not exist";
        for (kind, error) in [(Kind::Ok, None), (Kind::Fail, Some(conflict))] {
            let mut history = standstill(kill(), until(3_000));
            history.extend(write(3_500, "n3", kind, error));
            history.extend(standstill(kill(), until(16_200)).split_off(20));
            assert_eq!(counts(&history), (1, 0, 0), "{kind:?}");
        }
        // A full disk is no matter of leaders, and a senseless request needs none.
        let mut history = standstill(kill(), until(16_200));
        let full = Some("503: writes are turned away: the disk has 1 MiB free");
        history.splice(9..9, write(2_000, "n2", Kind::Fail, full));
        assert_eq!(counts(&history), (0, 1, 0));
        let history = standstill(kill(), until(16_200)).into_iter().map(|op| match op.kind {
            Kind::Info if op.process != Process::Nemesis => {
                Op { kind: Kind::Fail, error: Some("400: no such driver".to_owned()), ..op }
            }
            Kind::Invoke | Kind::Ok | Kind::Fail | Kind::Info => op,
        });
        assert_eq!(counts(&history.collect::<Vec<_>>()), (0, 1, 0));
    }

    #[test]
    fn only_losses_that_surely_left_a_majority_are_judged() {
        let judge = |lost: Op| counts(&standstill(lost, until(16_200)));
        let partition = |aim, how| loss(FaultClass::Partition, aim, how);
        assert_eq!(judge(loss(FaultClass::Pause, "one", "")), (0, 0, 1));
        assert_eq!(judge(partition("halves", "held")), (0, 0, 1));
        assert_eq!(judge(partition("primaries", "cut")), (0, 0, 1));
        for other in [
            partition("halves", "flapping"),
            partition("asymmetric-in", "held"),
            partition("asymmetric-out", "held"),
            loss(FaultClass::HangDisk, "one", ""),
        ] {
            assert_eq!(judge(other), (0, 0, 0));
        }
        // One of the others has served nothing yet.
        let mut history = standstill(kill(), until(16_200));
        history.drain(2..4);
        assert_eq!(counts(&history), (0, 0, 0));
        // What it served was before it was hit itself.
        let mut history = standstill(kill(), until(16_200));
        let f = Function::Fault(FaultClass::Pause.end());
        let end = Op::new(Process::Nemesis, Kind::Info, f, json!({"nodes": ["n3"]}));
        history.insert(4, Op { time: 60 * MS, ..end });
        history.insert(4, begin(FaultClass::Pause, 50, json!({"nodes": ["n3"], "leaders": []})));
        assert_eq!(counts(&history), (0, 0, 0));
        // Another fault lasts, or was asked for and nobody knows what became of it.
        for value in [json!("rolling"), json!({"outcome": "indeterminate", "reason": "x"})] {
            let mut history = standstill(kill(), until(16_200));
            let f = Function::Fault(FaultClass::Restart.begin());
            let other = Op::new(Process::Nemesis, Kind::Info, f, value);
            history.insert(0, Op { time: MS, ..other });
            assert_eq!(counts(&history), (0, 0, 0));
        }
    }

    #[test]
    fn skipped_damage_has_killed_its_server_all_the_same() {
        let damage = |time_ms: u64, value: Value| {
            let f = Function::Fault(FaultClass::Corrupt.begin());
            Op { time: time_ms * MS, ..Op::new(Process::Nemesis, Kind::Info, f, value) }
        };
        let skipped = json!({"outcome": "skipped", "reason": "n3 has no such file yet"});
        let mut history = standstill(kill(), until(16_200));
        history.splice(20..20, [damage(2_500, json!("one")), damage(2_600, skipped.clone())]);
        assert_eq!(counts(&history), (0, 1, 0));
        // Of other classes it means that nothing was done.
        let f = Function::Fault(FaultClass::Kill.begin());
        let mut history = standstill(kill(), until(16_200));
        let nobody = Op::new(Process::Nemesis, Kind::Info, f, skipped);
        history.insert(20, Op { time: 2_600 * MS, ..nobody });
        assert_eq!(counts(&history), (0, 0, 1));
    }
}
