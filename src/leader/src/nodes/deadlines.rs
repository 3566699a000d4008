//! Deadlines of nodes that are in the state: readiness, the end of a suspension, reaping.
//!
//! The state holds the deadline and `apply` checks it again; this machine only says when to
//! propose. A command that changed nothing (the fleet's share of suspended nodes is used up, say)
//! is offered again after a pause, never in a loop, and only while the state still asks for it.
//!
//! Invariant: `timers` holds exactly one entry per wanted (node, kind).

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Node, NodeId, State,
    command::Command,
    node::{EndSuspensions, ReapNode, SuspendLateNodes},
};

use crate::limits;

/// What is due for a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Due {
    /// It did not become ready in time.
    Readiness,
    /// Its suspension is over.
    SuspensionEnd,
    /// It is lost for good.
    Reap,
}

impl Due {
    const ALL: [Self; 3] = [Self::Readiness, Self::SuspensionEnd, Self::Reap];

    /// When this is due for a node, if ever as it stands. Nodes that go silent in one moment are
    /// missed within `loss_window_ms`: none is reaped before it can be told whether that is a mass
    /// loss.
    fn at(self, state: &State, node: &Node, loss_window_ms: u64) -> Option<u64> {
        match self {
            Self::Readiness => node.must_be_ready_at(),
            Self::SuspensionEnd => node.suspension()?.until,
            Self::Reap => {
                let due = state.reap_due_at(node)?;
                Some(due.max(node.missed_at.saturating_add(loss_window_ms)))
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Timer {
    /// As the node row has it.
    due_at: u64,
    /// Not before the pause after the last offer is over.
    fires_at: u64,
}

/// The deadlines of nodes.
#[derive(Default, Debug)]
pub struct NodeDeadlines {
    /// See [`Due::at`], ms.
    loss_window_ms: u64,
    /// A second of log time, and the nodes that were offered for reaping in it.
    reaped: (u64, u32),
    wanted: BTreeMap<(NodeId, Due), Timer>,
    timers: BTreeSet<(u64, NodeId, Due)>,
}

impl NodeDeadlines {
    /// Takes over the nodes from the state at the start of a leadership.
    pub fn restore(&mut self, state: &State) {
        for node in state.nodes().iter() {
            self.node_changed(state, node);
        }
    }

    /// How long it takes until nodes that went silent in one moment are all missed, ms. It grows
    /// with the number of nodes; deadlines that it puts off are found when they are polled.
    pub fn set_loss_window(&mut self, loss_window_ms: u64) {
        self.loss_window_ms = loss_window_ms;
    }

    /// A node row is new or has changed.
    pub fn node_changed(&mut self, state: &State, node: &Node) {
        for due in Due::ALL {
            let known = self.wanted.get(&(node.id, due)).copied();
            match due.at(state, node, self.loss_window_ms) {
                Some(at) if known.is_some_and(|timer| timer.due_at == at) => {}
                Some(at) => self.set(node.id, due, Timer { due_at: at, fires_at: at }),
                None => self.unset(node.id, due),
            }
        }
    }

    /// A node was reaped or purged.
    pub fn node_gone(&mut self, node: NodeId) {
        for due in Due::ALL {
            self.unset(node, due);
        }
    }

    /// Commands that are due, a bounded batch.
    pub fn poll(&mut self, now: u64, state: &State) -> Vec<Command> {
        let mut commands = Vec::new();
        let (mut late, mut over) = (Vec::new(), Vec::new());
        for _ in 0..limits::NODES_BATCH_MAX {
            let Some((_, id, due)) = self.timers.first().copied().filter(|(at, ..)| *at <= now)
            else {
                break;
            };
            let Some(node) = state.nodes().get(&id) else {
                self.unset(id, due);
                continue;
            };
            let due_at = due.at(state, node, self.loss_window_ms);
            let Some(due_at) = due_at.filter(|at| *at <= now) else {
                self.unset(id, due);
                self.node_changed(state, node);
                continue;
            };
            self.set(id, due, Timer { due_at, fires_at: now + limits::DUE_RETRY_MS });
            match due {
                Due::Readiness => late.push(id),
                Due::SuspensionEnd => over.push(id),
                // Each is an entry of its own: thousands at once would fill the queue of commands.
                Due::Reap if !self.may_reap(now) => {
                    let fires_at = (now / 1000 + 1) * 1000;
                    self.set(id, due, Timer { due_at, fires_at });
                }
                Due::Reap if state.why_not_reaped(node, now).is_none() => {
                    self.reaped.1 += 1;
                    commands.push(Command::from(ReapNode {
                        node: id,
                        incarnation: Some(node.incarnation),
                        force: false,
                        evaluation_ids: Vec::new(),
                    }));
                }
                Due::Reap => {}
            }
        }
        if !late.is_empty() {
            commands.push(Command::from(SuspendLateNodes { nodes: late }));
        }
        if !over.is_empty() {
            commands.push(Command::from(EndSuspensions { nodes: over }));
        }
        commands
    }

    fn may_reap(&mut self, now: u64) -> bool {
        if self.reaped.0 != now / 1000 {
            self.reaped = (now / 1000, 0);
        }
        self.reaped.1 < limits::REAPS_PER_SECOND_MAX
    }

    /// When to poll next.
    pub fn next_deadline(&self) -> Option<u64> {
        Some(self.timers.first()?.0)
    }

    fn set(&mut self, node: NodeId, due: Due, timer: Timer) {
        self.unset(node, due);
        self.wanted.insert((node, due), timer);
        self.timers.insert((timer.fires_at, node, due));
    }

    fn unset(&mut self, node: NodeId, due: Due) {
        if let Some(timer) = self.wanted.remove(&(node, due)) {
            self.timers.remove(&(timer.fires_at, node, due));
        }
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        Liveness,
        node::{Health, SuspendReason, Suspension},
        settings::NodeLife,
    };

    use super::*;
    use crate::testing::{allocation, named, node, put_allocation, state_of_nodes};

    fn id(name: &str) -> NodeId {
        NodeId(named(name))
    }

    fn machine(state: &State) -> NodeDeadlines {
        let mut machine = NodeDeadlines::default();
        machine.restore(state);
        machine
    }

    fn initializing(name: &str, deadline: u64) -> Node {
        let mut row = node(name);
        row.liveness = Liveness::Initializing;
        row.ready_deadline_at = deadline;
        row
    }

    #[test]
    fn a_node_that_never_becomes_ready_is_suspended() {
        let state = state_of_nodes([initializing("a", 1_000), node("b")]);
        let mut machine = machine(&state);
        assert_eq!(machine.next_deadline(), Some(1_000));
        assert_eq!(machine.poll(999, &state), []);
        let suspend = Command::from(SuspendLateNodes { nodes: vec![id("a")] });
        assert_eq!(machine.poll(1_000, &state), std::slice::from_ref(&suspend));
        let mut refused = initializing("a", 1_000);
        refused.modify_index = 5;
        machine.node_changed(&state, &refused);
        assert_eq!(machine.poll(1_001, &state), [], "a changed row does not make it a loop");
        let again = 1_000 + limits::DUE_RETRY_MS;
        assert_eq!(machine.next_deadline(), Some(again));
        assert_eq!(machine.poll(again, &state), [suspend]);
        machine.node_changed(&state, &node("a"));
        assert_eq!(machine.next_deadline(), None);
    }

    #[test]
    fn suspensions_end_in_one_command() {
        let suspended = |name: &str, until: u64| {
            let mut row = initializing(name, 10);
            row.health = Health::Suspended(Suspension {
                reason: SuspendReason::Flaky,
                detail: "".into(),
                by: "".into(),
                since: 0,
                until: Some(until),
                clears_affinity: true,
            });
            row
        };
        let state = state_of_nodes([suspended("a", 500), suspended("b", 700), suspended("c", 900)]);
        let mut machine = machine(&state);
        assert_eq!(machine.next_deadline(), Some(500), "no readiness while suspended");
        let nodes = vec![id("a"), id("b")];
        assert_eq!(machine.poll(800, &state), [Command::from(EndSuspensions { nodes })]);
        assert_eq!(machine.next_deadline(), Some(900));
    }

    #[test]
    fn a_lost_node_is_reaped_after_the_grace_and_when_empty() {
        let mut lost = node("a");
        lost.liveness = Liveness::Down;
        lost.lost_at = Some(5_000);
        let mut state = state_of_nodes([lost]);
        put_allocation(&mut state, allocation("x", "job", "a"));
        let mut machine = machine(&state);
        let due = 5_000 + NodeLife::default().lost_grace_ms;
        assert_eq!(machine.next_deadline(), Some(due));
        assert_eq!(machine.poll(due, &state), [], "an allocation has not ended");
        let mut ended = allocation("x", "job", "a");
        ended.client = fsm::ClientStatus::Lost;
        put_allocation(&mut state, ended);
        let retry = due + limits::DUE_RETRY_MS;
        let reap = Command::from(ReapNode {
            node: id("a"),
            incarnation: Some(1),
            force: false,
            evaluation_ids: Vec::new(),
        });
        assert_eq!(machine.poll(retry, &state), [reap]);
        machine.node_gone(id("a"));
        assert_eq!(machine.next_deadline(), None);
    }

    /// Thousands of nodes that are due at once are reaped over some seconds.
    #[test]
    fn reaping_is_paced() {
        let down = |number: u32| {
            let lost_at = Some(0);
            Node { liveness: Liveness::Down, lost_at, ..node(&format!("n{number}")) }
        };
        let state = state_of_nodes((0..450).map(down));
        let mut machine = machine(&state);
        let begin = 100_000;
        let mut at = |now: u64| machine.poll(now, &state).len() + machine.poll(now, &state).len();
        assert_eq!([0, 500, 1_000, 1_999, 2_000].map(|ms| at(begin + ms)), [200, 0, 200, 0, 50]);
    }

    /// A timer of a row that is not so any more gives nothing.
    #[test]
    fn the_state_has_the_last_word() {
        let state = state_of_nodes([initializing("a", 1_000)]);
        let mut machine = machine(&state);
        let later = state_of_nodes([initializing("a", 9_000)]);
        assert_eq!(machine.poll(1_000, &later), []);
        assert_eq!(machine.next_deadline(), Some(9_000));
        assert_eq!(machine.poll(9_000, &State::default()), []);
        assert_eq!(machine.next_deadline(), None);
    }
}
