//! Heartbeats: which nodes were not heard from for too long.
//!
//! It owns the deadlines of this leadership; nothing of it is replicated. It never decides what
//! becomes of a node: it says which one was not heard from, and the state machine checks whether
//! that still holds for that incarnation. A beat costs O(log n): the number of nodes is kept, never
//! counted (Nomad iterates all nodes at each beat).
//!
//! The time to live grows with the number of nodes so that at most `HEARTBEATS_PER_SECOND_MAX`
//! beats arrive per second, plus a share that follows from the node's id, so that nodes that
//! registered together do not beat together. A new leader gives every node a whole time to live and
//! the grace (Nomad gives five minutes, so that nodes that died with the old leader are found late:
//! GH-10341).
//!
//! Invariant: a node has a deadline exactly while it is initializing or ready, and `timers` holds
//! exactly these deadlines.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Liveness, Node, NodeId,
    command::Command,
    node::{LivenessChange, NodeLiveness},
    plant::{Plant, is_planted},
};

use crate::{jitter, limits};

/// Settings of the heartbeats.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HeartbeatConfig {
    /// Shortest time to live, ms.
    pub ttl_ms_min: u64,
    /// Patience after a heartbeat was due, ms.
    pub grace_ms: u64,
    /// Beats per second that the leader takes; 0 counts as 1.
    pub per_second_max: u64,
}

impl Default for HeartbeatConfig {
    fn default() -> Self {
        Self {
            ttl_ms_min: limits::HEARTBEAT_TTL_MS_MIN,
            grace_ms: limits::HEARTBEAT_GRACE_MS,
            per_second_max: limits::HEARTBEATS_PER_SECOND_MAX,
        }
    }
}

/// Why a heartbeat was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeartbeatError {
    /// No such node: it has to register.
    #[error("node not found")]
    UnknownNode,
    /// The node has registered in another incarnation since.
    #[error(
        "the heartbeat is from incarnation {found} of the node, not {expected}: register again"
    )]
    StaleIncarnation { expected: u64, found: u64 },
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heard {
    /// Beat again within this time, ms.
    pub ttl_ms: u64,
    /// The node counts as down or disconnected: propose that it initializes.
    pub returned: Option<LivenessChange>,
}

#[derive(Clone, Copy, Debug)]
struct Beat {
    incarnation: u64,
    deadline: Option<u64>,
}

/// The heartbeats of one leadership.
#[derive(Default, Debug)]
pub struct Heartbeats {
    config: HeartbeatConfig,
    nodes: BTreeMap<NodeId, Beat>,
    timers: BTreeSet<(u64, NodeId)>,
}

impl Heartbeats {
    /// No nodes yet.
    pub fn new(config: HeartbeatConfig) -> Self {
        Self { config, ..Self::default() }
    }

    /// What it was told.
    pub fn config(&self) -> HeartbeatConfig {
        self.config
    }

    /// Takes over the nodes from the state at the start of a leadership: each live one has its time
    /// to live and the grace from now on.
    pub fn restore(&mut self, now: u64, state: &fsm::State) {
        let live = state.nodes().iter().filter(|node| is_live(node)).count();
        for node in state.nodes().iter() {
            let beat = Beat { incarnation: node.incarnation, deadline: None };
            self.nodes.insert(node.id, beat);
            if is_live(node) {
                let since =
                    if is_planted(Plant::HeartbeatsNotReset) { node.liveness_at } else { now };
                self.arm(node.id, since + self.ttl_ms_of(node.id, live) + self.config.grace_ms);
            }
        }
    }

    /// A node beat.
    pub fn heard(
        &mut self,
        now: u64,
        node: NodeId,
        incarnation: u64,
    ) -> Result<Heard, HeartbeatError> {
        let beat = self.nodes.get(&node).copied().ok_or(HeartbeatError::UnknownNode)?;
        if beat.incarnation != incarnation {
            let (expected, found) = (beat.incarnation, incarnation);
            return Err(HeartbeatError::StaleIncarnation { expected, found });
        }
        let ttl_ms = self.ttl_ms(node);
        if beat.deadline.is_none() {
            let liveness = Liveness::Initializing;
            let returned = Some(LivenessChange { node, incarnation, liveness });
            return Ok(Heard { ttl_ms, returned });
        }
        self.arm(node, now + ttl_ms + self.config.grace_ms);
        Ok(Heard { ttl_ms, returned: None })
    }

    /// A node row is new or has changed: one that is newly live, or live in a new incarnation, has
    /// a whole time to live and the grace.
    pub fn node_changed(&mut self, now: u64, node: &Node) {
        let known = self.nodes.get(&node.id).copied();
        let beat =
            Beat { incarnation: node.incarnation, deadline: known.and_then(|beat| beat.deadline) };
        self.nodes.insert(node.id, beat);
        if !is_live(node) {
            self.disarm(node.id);
        } else if beat.deadline.is_none()
            || known.is_some_and(|known| known.incarnation != node.incarnation)
        {
            self.arm(node.id, now + self.ttl_ms(node.id) + self.config.grace_ms);
        }
    }

    /// A node was reaped or purged.
    pub fn node_gone(&mut self, node: NodeId) {
        self.disarm(node);
        self.nodes.remove(&node);
    }

    /// The time to live of a node's next heartbeat, ms.
    pub fn ttl_ms(&self, node: NodeId) -> u64 {
        self.ttl_ms_of(node, self.timers.len())
    }

    /// Nodes that were not heard from in time, a bounded batch, as changes to `Down`. A node stays
    /// here until its row says that it is down; it is named again after another time to live if
    /// that never happens.
    pub fn poll(&mut self, now: u64) -> Vec<LivenessChange> {
        let mut missed = Vec::new();
        while missed.len() < limits::NODES_BATCH_MAX
            && let Some((at, node)) = self.timers.first().copied()
            && at <= now
        {
            let incarnation = self.nodes.get(&node).map_or(0, |beat| beat.incarnation);
            missed.push(LivenessChange { node, incarnation, liveness: Liveness::Down });
            self.arm(node, now + self.ttl_ms(node) + self.config.grace_ms);
        }
        missed
    }

    /// The command for what [`Self::poll`] gave. `apply` makes the ids of its evaluations.
    pub fn command(&self, changes: Vec<LivenessChange>) -> Command {
        let window_ms = self.loss_window_ms();
        Command::from(NodeLiveness { changes, window_ms, evaluation_ids: Vec::new() })
    }

    /// Nodes that go silent in one moment are all missed within this, ms.
    pub fn loss_window_ms(&self) -> u64 {
        2 * self.ttl_ms_base(self.timers.len()) + self.config.grace_ms
    }

    /// When to poll next.
    pub fn next_deadline(&self) -> Option<u64> {
        Some(self.timers.first()?.0)
    }

    /// Nodes that are expected to beat.
    pub fn live(&self) -> usize {
        self.timers.len()
    }

    fn ttl_ms_of(&self, node: NodeId, live: usize) -> u64 {
        let base = self.ttl_ms_base(live);
        base.saturating_add(jitter::below(node.0, base))
    }

    /// The shortest time to live with so many live nodes; the longest is twice as long.
    fn ttl_ms_base(&self, live: usize) -> u64 {
        let live = u64::try_from(live).unwrap_or(u64::MAX);
        let paced = live.saturating_mul(1000) / self.config.per_second_max.max(1);
        paced.max(self.config.ttl_ms_min)
    }

    fn arm(&mut self, node: NodeId, deadline: u64) {
        self.disarm(node);
        if let Some(beat) = self.nodes.get_mut(&node) {
            beat.deadline = Some(deadline);
            self.timers.insert((deadline, node));
        }
    }

    fn disarm(&mut self, node: NodeId) {
        if let Some(beat) = self.nodes.get_mut(&node)
            && let Some(deadline) = beat.deadline.take()
        {
            self.timers.remove(&(deadline, node));
        }
    }
}

fn is_live(node: &Node) -> bool {
    match node.liveness {
        Liveness::Initializing | Liveness::Ready => true,
        Liveness::Disconnected | Liveness::Down => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{named, node, state_of_nodes};

    const GRACE: u64 = limits::HEARTBEAT_GRACE_MS;

    fn id(name: &str) -> NodeId {
        NodeId(named(name))
    }

    /// A node that does not beat is down after its time to live and the grace, not before; a
    /// beat prolongs it.
    #[test]
    fn a_silent_node_is_down_after_ttl_and_grace() {
        let mut beats = Heartbeats::default();
        beats.node_changed(0, &node("a"));
        let ttl = beats.ttl_ms(id("a"));
        assert!((10_000..20_000).contains(&ttl), "{ttl}");
        assert_eq!(beats.heard(5_000, id("a"), 1), Ok(Heard { ttl_ms: ttl, returned: None }));
        let due = 5_000 + ttl + GRACE;
        assert_eq!(beats.next_deadline(), Some(due));
        assert_eq!(beats.poll(due - 1), []);
        let down = LivenessChange { node: id("a"), incarnation: 1, liveness: Liveness::Down };
        assert_eq!(beats.poll(due), [down]);
        assert_eq!(beats.poll(due), []);
        assert_eq!(beats.poll(due + ttl + GRACE), [down], "named again until its row says so");
        let mut row = node("a");
        row.liveness = Liveness::Down;
        beats.node_changed(due, &row);
        assert_eq!((beats.next_deadline(), beats.live()), (None, 0));
    }

    /// A node that is down and beats is to initialize; once it does, it has a deadline again.
    #[test]
    fn a_node_that_returns_initializes() {
        let mut beats = Heartbeats::default();
        let mut row = node("a");
        row.liveness = Liveness::Disconnected;
        beats.node_changed(0, &row);
        let heard = beats.heard(1, id("a"), 1).expect("the node is known");
        let change =
            LivenessChange { node: id("a"), incarnation: 1, liveness: Liveness::Initializing };
        assert_eq!(heard.returned, Some(change));
        assert_eq!(beats.next_deadline(), None);
        row.liveness = Liveness::Initializing;
        beats.node_changed(100, &row);
        assert_eq!(beats.next_deadline(), Some(100 + beats.ttl_ms(id("a")) + GRACE));
    }

    #[test]
    fn unknown_nodes_and_old_incarnations_are_refused() {
        let mut beats = Heartbeats::default();
        assert_eq!(beats.heard(0, id("a"), 1), Err(HeartbeatError::UnknownNode));
        let mut row = node("a");
        row.incarnation = 2;
        beats.node_changed(0, &row);
        let stale = HeartbeatError::StaleIncarnation { expected: 2, found: 1 };
        assert_eq!(beats.heard(0, id("a"), 1), Err(stale));
        beats.node_gone(id("a"));
        assert_eq!(beats.heard(0, id("a"), 2), Err(HeartbeatError::UnknownNode));
        assert_eq!(beats.next_deadline(), None);
    }

    /// A changed row leaves the deadline alone, a new incarnation starts it anew.
    #[test]
    fn only_a_new_incarnation_starts_anew() {
        let mut beats = Heartbeats::default();
        let mut row = node("a");
        beats.node_changed(0, &row);
        let first = beats.next_deadline();
        row.modify_index = 99;
        row.liveness = Liveness::Initializing;
        beats.node_changed(500, &row);
        assert_eq!(beats.next_deadline(), first);
        row.incarnation = 2;
        beats.node_changed(500, &row);
        assert_eq!(beats.next_deadline(), first.map(|at| at + 500));
    }

    /// The time to live grows with the number of nodes, and a new leader gives each a whole
    /// one; expiry comes in bounded batches.
    #[test]
    fn many_nodes_beat_less_often_and_are_spread() {
        let count = 10_000u64;
        let state = state_of_nodes((0..count).map(|number| node(&format!("n{number}"))));
        let mut beats = Heartbeats::default();
        let start = 1_000_000;
        beats.restore(start, &state);
        let base = count * 1000 / limits::HEARTBEATS_PER_SECOND_MAX;
        let first = beats.next_deadline().expect("nodes are armed");
        let last = beats.timers.last().expect("nodes are armed").0;
        assert!(first >= start + base + GRACE, "{first}");
        assert!(last < start + 2 * base + GRACE, "{last}");
        assert!(last - first > base * 9 / 10, "deadlines are spread");
        assert_eq!(beats.poll(start + GRACE), []);
        assert_eq!(beats.poll(last).len(), limits::NODES_BATCH_MAX);
        assert!(beats.next_deadline() <= Some(last), "more are due");
    }
}
