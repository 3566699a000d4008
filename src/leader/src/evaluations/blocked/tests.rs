//! Blocked evaluations against their golden script, and the slices.

use super::*;
use crate::{
    golden::{self, Arguments},
    testing::{evaluation, name_of, named, parse_evaluation},
};

/// Which gains wake an evaluation: by class, escaped, by node, missed ones, duplicates.
#[test]
fn golden_blocked() {
    let mut blocked = BlockedEvals::default();
    golden::run("blocked.txt", |line| {
        let answer = step(&mut blocked, &Arguments::new(line));
        check_invariants(&blocked);
        answer
    });
}

fn check_invariants(blocked: &BlockedEvals) {
    let records: usize = blocked
        .jobs
        .values()
        .map(|records| usize::from(records.by_class.is_some()) + records.by_node.len())
        .sum();
    assert_eq!(records, blocked.tracked.len());
    let on_nodes: usize = blocked.by_node.values().map(BTreeSet::len).sum();
    assert_eq!(on_nodes + blocked.by_class.len(), blocked.tracked.len());
    assert_eq!(blocked.escaped, blocked.tracked.values().filter(|one| one.escaped).count());
    assert_eq!(blocked.scan_order.len(), blocked.scans.len());
    assert!(blocked.woken.iter().all(|id| blocked.tracked.contains_key(id)));
    assert!(blocked.duplicates.iter().all(|id| !blocked.tracked.contains_key(id)));
    assert_eq!(blocked.class_gains.len(), blocked.class_gains_by_index.len());
}

fn step(blocked: &mut BlockedEvals, line: &Arguments<'_>) -> String {
    let now = line.number("now");
    let index = line.number("index");
    match line.word {
        "reset" => {
            *blocked = BlockedEvals::default();
            blocked.enable();
        }
        "disable" => blocked.disable(),
        "block" => {
            let mut row = parse_evaluation(line);
            row.status = EvaluationStatus::Blocked;
            blocked.block(now, &row, line.find("pool").map(Into::into));
        }
        "unblock" => {
            if let Some(class) = line.find("class") {
                let pool = line.find("pool").map(Text::from);
                blocked.unblock_class(now, ClassId(named(class)), pool.as_ref(), index);
            }
            if let Some(node) = line.find("node") {
                blocked.unblock_node(now, NodeId(named(node)), index);
            }
        }
        "job" => {
            let pool = line.find("pool").map(Text::from);
            blocked.job_changed(&evaluation("", line.text("id"), 0).job, pool.as_ref());
        }
        "unblock-failed" => blocked.unblock_failed(),
        "node-gone" => blocked.node_gone(NodeId(named(line.text("node"))), index),
        "untrack" => blocked.untrack(&evaluation("", line.text("job"), 0).job),
        "removed" => blocked.removed(EvaluationId(named(line.text("id")))),
        "poll" => {
            let wakes = blocked.poll(now);
            let names: Vec<_> = wakes
                .iter()
                .map(|wake| format!("{}@{}", name_of(wake.evaluation.0), wake.index))
                .collect();
            return format!("woken [{}], next {:?}", names.join(" "), blocked.next_deadline());
        }
        "stats" => {
            let BlockedStats { blocked, escaped, per_node, woken, scans, duplicates } =
                blocked.stats();
            return format!(
                "blocked={blocked} escaped={escaped} per_node={per_node} woken={woken} \
                 scans={scans} duplicates={duplicates}"
            );
        }
        "duplicates" => {
            let ids: Vec<_> = blocked.duplicates(100).iter().map(|id| name_of(id.0)).collect();
            return format!("[{}]", ids.join(" "));
        }
        other => panic!("unknown command `{other}`"),
    }
    String::new()
}

fn blocked_row(number: u64) -> Evaluation {
    let name = format!("e{number:05}");
    let mut row = evaluation(&name, &name, number);
    row.status = EvaluationStatus::Blocked;
    row.snapshot_index = 10;
    row
}

/// A mass of unblocks only queues; each poll does a bounded slice; repeated gains of a class
/// do not keep the last evaluations asleep.
#[test]
fn work_is_done_in_slices_and_reaches_everyone() {
    let total = 3 * limits::BLOCKED_SLICE_MAX + 7;
    let mut blocked = BlockedEvals::default();
    blocked.enable();
    for number in 0..u64::try_from(total).expect("small") {
        blocked.block(0, &blocked_row(number), None);
    }
    let mut woken = BTreeSet::new();
    for index in 100..120 {
        for class in ["a", "b", "c"] {
            blocked.unblock_class(0, ClassId(named(class)), None, index);
        }
        assert!(blocked.stats().scans <= 3);
        let wakes = blocked.poll(0);
        assert!(wakes.len() <= limits::BLOCKED_SLICE_MAX);
        check_invariants(&blocked);
        woken.extend(wakes.into_iter().map(|wake| wake.evaluation));
    }
    assert_eq!(woken.len(), total);
    while blocked.next_deadline() == Some(0) {
        assert!(blocked.poll(0).is_empty());
    }
    assert_eq!(blocked.stats(), BlockedStats::default());
}

/// A new leader wakes what missed its gain while the old one died, and tracks the rest.
#[test]
fn a_new_leader_wakes_what_missed_a_gain() {
    let mut state = fsm::State::default();
    let class = ClassId(named("class"));
    for (number, snapshot) in [(1, 10), (2, 20)] {
        let mut row = blocked_row(number);
        row.snapshot_index = snapshot;
        fsm::testing::put(&mut state, &row);
    }
    fsm::testing::put(&mut state, &evaluation("pending", "pending", 3));
    let gain = fsm::node::CapacityGain { key: GainKey::Class(class), index: 15 };
    fsm::testing::put(&mut state, &gain);
    let mut blocked = BlockedEvals::default();
    blocked.enable();
    blocked.restore(0, &state, |_| false);
    let first = EvaluationId(named("e00001"));
    assert_eq!(blocked.poll(0), [Wake { evaluation: first, index: 15 }]);
    assert_eq!(blocked.stats(), BlockedStats { blocked: 1, ..BlockedStats::default() });
}

/// The leader that saw the node go may not have lived to have its evaluation processed.
#[test]
fn a_new_leader_wakes_what_waits_for_a_node_that_is_gone() {
    let mut state = crate::testing::state_of_nodes([crate::testing::node("there")]);
    for (number, node) in [(1, "gone"), (2, "there")] {
        let mut row = blocked_row(number);
        (row.kind, row.node) = (fsm::JobKind::System, Some(NodeId(named(node))));
        fsm::testing::put(&mut state, &row);
    }
    state.advance(30, 0);
    let mut blocked = BlockedEvals::default();
    blocked.enable();
    blocked.restore(0, &state, |_| false);
    let first = EvaluationId(named("e00001"));
    assert_eq!(blocked.poll(0), [Wake { evaluation: first, index: 30 }]);
    check_invariants(&blocked);
}

/// Gains older than 15 minutes are forgotten, recent ones are not.
#[test]
fn old_gains_are_forgotten() {
    let mut blocked = BlockedEvals::default();
    blocked.enable();
    for (now, name, index) in [(0, "old", 5), (GAIN_MS, "new", 6)] {
        blocked.unblock_class(now, ClassId(named(name)), None, index);
        blocked.unblock_node(now, NodeId(named(name)), index);
    }
    blocked.poll(GAIN_MS + 1);
    check_invariants(&blocked);
    assert_eq!((blocked.class_gains.len(), blocked.node_gains.len()), (1, 1));
}
