//! Nodes of one leadership: heartbeats, deadlines and drains, kept in step with the state.
//!
//! It owns the three machines. It never touches evaluations: what a node's change means for them is for `apply` to say.

use fsm::{Command, NodeId, State};

use crate::{
    Drainer, Heartbeats, NodeDeadlines,
    heartbeat::{Heard, HeartbeatConfig, HeartbeatError},
};

/// What one look at the machines gave.
#[derive(Debug, Default)]
pub struct Watched {
    /// To propose; evaluation ids are for the caller to fill in. What finds no room is derived again later.
    pub commands: Vec<Command>,
    /// Nodes that missed their heartbeat; a command for them is among the others.
    pub missed: Vec<NodeId>,
}

/// Heartbeats, deadlines and drains of one leadership.
#[derive(Debug)]
pub struct NodeWatch {
    heartbeats: Heartbeats,
    deadlines: NodeDeadlines,
    drainer: Drainer,
}

impl NodeWatch {
    /// No nodes yet.
    pub fn new(config: HeartbeatConfig) -> Self {
        Self {
            heartbeats: Heartbeats::new(config),
            deadlines: NodeDeadlines::default(),
            drainer: Drainer::default(),
        }
    }

    /// Takes everything over from the state: at the start, and again when effects were missed. Each live node has a whole time to live then.
    pub fn restore(&mut self, now: u64, state: &State) {
        *self = Self::new(self.heartbeats.config());
        self.heartbeats.restore(now, state);
        self.deadlines.restore(state);
        self.drainer.restore(now, state);
    }

    /// A node row changed or went.
    pub fn node_changed(&mut self, now: u64, state: &State, id: NodeId) {
        match state.nodes.get(&id) {
            Some(node) => {
                self.heartbeats.node_changed(now, node);
                self.deadlines.node_changed(node);
                self.drainer.node_changed(now, node);
            }
            None => {
                self.heartbeats.node_gone(id);
                self.deadlines.node_gone(id);
                self.drainer.node_gone(id);
            }
        }
    }

    /// Allocations or jobs changed, any of them.
    pub fn work_changed(&mut self, now: u64) {
        self.drainer.state_changed(now);
    }

    /// A node beat. When it counts as down the answer carries a change to propose.
    pub fn heard(
        &mut self,
        now: u64,
        node: NodeId,
        incarnation: u64,
    ) -> Result<Heard, HeartbeatError> {
        self.heartbeats.heard(now, node, incarnation)
    }

    /// Lets time pass.
    pub fn step(&mut self, now: u64, state: &State) -> Watched {
        let mut watched = Watched::default();
        let missed = self.heartbeats.poll(now);
        if !missed.is_empty() {
            watched.missed = missed.iter().map(|change| change.node).collect();
            watched.commands.push(Heartbeats::command(missed));
        }
        watched.commands.extend(self.deadlines.poll(now, state));
        watched.commands.extend(self.drainer.poll(now, state));
        watched
    }

    /// When to step next.
    pub fn next_deadline(&self) -> Option<u64> {
        let next = [
            self.heartbeats.next_deadline(),
            self.deadlines.next_deadline(),
            self.drainer.next_deadline(),
        ];
        next.into_iter().flatten().min()
    }

    /// The time to live of a node's next heartbeat, ms.
    pub fn ttl_ms(&self, node: NodeId) -> u64 {
        self.heartbeats.ttl_ms(node)
    }

    /// Nodes that are expected to beat.
    pub fn live(&self) -> usize {
        self.heartbeats.live()
    }
}
