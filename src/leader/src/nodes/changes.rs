//! What happened to nodes, for people: a line in the leader's log for each change, and a count of
//! each kind.
//!
//! A cluster that loses a network has thousands of changes at once, so that only so many lines are
//! written in a second; the rest is counted and said in one line. It decides nothing, and forgets
//! its counts with the leadership.

use std::collections::BTreeMap;

use fsm::{Effect, Index, State, node::NodeChange};

use crate::{
    limits,
    machine::{Ids, Machine, Report, Stepped},
};

/// Lines and counts of node changes.
#[derive(Default, Debug)]
pub(crate) struct NodeChanges {
    counts: BTreeMap<NodeChange, u64>,
    unlogged: u64,
    /// The second of log time that `lines` and `left_out` are about.
    second: u64,
    lines: u32,
    left_out: u64,
    /// Invariant: at most `limits::NODE_LINES_MAX` and one.
    reports: Vec<Report>,
}

impl NodeChanges {
    /// A new second begins: says how many changes of the last one were left out.
    fn begin_second(&mut self, now: u64) {
        let second = now / 1000;
        if second > self.second {
            let left_out = std::mem::take(&mut self.left_out);
            if left_out > 0 {
                self.reports.push(Report::NodeChangesLeftOut(left_out));
            }
            (self.second, self.lines) = (second, 0);
        }
    }
}

impl Machine for NodeChanges {
    /// What happened while effects were missed is not known.
    fn restore(&mut self, _now: u64, _state: &State) {}

    fn take(&mut self, now: u64, _state: &State, _index: Index, effect: &Effect) {
        let Effect::NodeChange { node, change, detail } = effect else { return };
        *self.counts.entry(*change).or_insert(0) += 1;
        self.begin_second(now);
        if self.lines < limits::NODE_LINES_MAX {
            self.lines += 1;
            let (node, change, detail) = (*node, *change, detail.clone());
            self.reports.push(Report::NodeChanged { node, change, detail });
        } else {
            self.left_out += 1;
            self.unlogged += 1;
        }
    }

    fn step(&mut self, now: u64, _state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        self.begin_second(now);
        stepped.reports.append(&mut self.reports);
    }

    fn next_deadline(&self) -> Option<u64> {
        if !self.reports.is_empty() {
            return Some(0);
        }
        (self.left_out > 0).then(|| (self.second + 1) * 1000)
    }

    fn gauges(&self, _now: u64, put: &mut dyn FnMut(&str, u64)) {
        for change in NodeChange::ALL {
            let count = self.counts.get(&change).copied().unwrap_or(0);
            put(&format!("nodes.changes.{}", change.name()), count);
        }
        put("nodes.changes.unlogged", self.unlogged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::node;

    fn step(machine: &mut NodeChanges, now: u64) -> Vec<Report> {
        let mut stepped = Stepped::default();
        machine.step(now, &State::default(), &mut || [0; 16], &mut stepped);
        stepped.reports
    }

    /// Each change is a line, up to the bound of a second; the others are counted, and said once.
    #[test]
    fn lines_are_bounded_by_the_second() {
        let mut machine = NodeChanges::default();
        let state = State::default();
        let take = |machine: &mut NodeChanges, now: u64| {
            let (change, detail) = (NodeChange::Down, "silent".into());
            let effect = Effect::NodeChange { node: node("a").id, change, detail };
            machine.take(now, &state, 1, &effect);
        };
        take(&mut machine, 5_100);
        assert_eq!(machine.next_deadline(), Some(0));
        let line = Report::NodeChanged {
            node: node("a").id,
            change: NodeChange::Down,
            detail: "silent".into(),
        };
        assert_eq!(step(&mut machine, 5_100), [line]);
        assert_eq!(machine.next_deadline(), None);
        for _ in 0..100 {
            take(&mut machine, 5_200);
        }
        assert_eq!(step(&mut machine, 5_999).len(), 19, "twenty in the second");
        assert_eq!(machine.next_deadline(), Some(6_000));
        assert_eq!(step(&mut machine, 6_000), [Report::NodeChangesLeftOut(81)]);
        assert_eq!(machine.next_deadline(), None);
        take(&mut machine, 6_001);
        assert_eq!(step(&mut machine, 6_001).len(), 1, "a new second has its own lines");
        let mut gauges = BTreeMap::new();
        machine.gauges(0, &mut |name, value| {
            gauges.insert(name.to_owned(), value);
        });
        assert_eq!(gauges["nodes.changes.down"], 102);
        assert_eq!(gauges["nodes.changes.ready"], 0);
        assert_eq!(gauges["nodes.changes.unlogged"], 81);
    }
}
