//! Nodes of one leadership: heartbeats, deadlines and drains, kept in step with the state.
//!
//! It owns the three. It never touches evaluations: `apply` decides what a node's change means for
//! them.

use fsm::{Command, Effect, Index, NodeId, State, node::LivenessChange};

use crate::{
    Drainer, Heartbeats, NodeDeadlines,
    heartbeat::{Heard, HeartbeatConfig, HeartbeatError},
    machine::{Ids, Machine, Stepped},
};

/// Heartbeats, deadlines and drains of one leadership.
#[derive(Debug)]
pub struct NodeWatch {
    heartbeats: Heartbeats,
    deadlines: NodeDeadlines,
    drainer: Drainer,
}

impl NodeWatch {
    /// A watch without nodes.
    pub fn new(config: HeartbeatConfig) -> Self {
        Self {
            heartbeats: Heartbeats::new(config),
            deadlines: NodeDeadlines::default(),
            drainer: Drainer::default(),
        }
    }

    /// A node row changed or went.
    fn node_changed(&mut self, now: u64, state: &State, id: NodeId) {
        match state.nodes().get(&id) {
            Some(node) => {
                self.heartbeats.node_changed(now, node);
                self.deadlines.node_changed(state, node);
                self.drainer.node_changed(now, node);
            }
            None => {
                self.heartbeats.node_gone(id);
                self.deadlines.node_gone(id);
                self.drainer.node_gone(id);
            }
        }
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

    /// The command for a node that is heard from again.
    pub fn returned(&self, change: LivenessChange) -> Command {
        self.heartbeats.command(vec![change])
    }

    /// The time to live of a node's next heartbeat, ms.
    pub fn ttl_ms(&self, node: NodeId) -> u64 {
        self.heartbeats.ttl_ms(node)
    }
}

impl Machine for NodeWatch {
    /// Each live node has a whole time to live from now on.
    fn restore(&mut self, now: u64, state: &State) {
        *self = Self::new(self.heartbeats.config());
        self.heartbeats.restore(now, state);
        self.deadlines.restore(state);
        self.drainer.restore(now, state);
    }

    fn take(&mut self, now: u64, state: &State, _index: Index, effect: &Effect) {
        match effect {
            Effect::Node(id) => self.node_changed(now, state, *id),
            Effect::Job(_) | Effect::NodeAllocations(_) => self.drainer.state_changed(now),
            // The grace of lost nodes is a setting.
            Effect::SchedulerConfiguration => self.deadlines.restore(state),
            // What was due meanwhile is asked for at once when it is over.
            Effect::MassLoss if state.mass_loss().is_none() => {
                self.deadlines = NodeDeadlines::default();
                self.deadlines.restore(state);
            }
            Effect::Evaluation(_)
            | Effect::Capacity { .. }
            | Effect::NodeChange { .. }
            | Effect::MassLoss
            | Effect::DigestMark => {}
        }
    }

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        let missed = self.heartbeats.poll(now);
        if !missed.is_empty() {
            stepped.commands.push(self.heartbeats.command(missed));
        }
        stepped.commands.extend(self.deadlines.poll(now, state));
        stepped.commands.extend(self.drainer.poll(now, state));
    }

    fn next_deadline(&self) -> Option<u64> {
        let next = [
            self.heartbeats.next_deadline(),
            self.deadlines.next_deadline(),
            self.drainer.next_deadline(),
        ];
        next.into_iter().flatten().min()
    }

    fn gauges(&self, _now: u64, put: &mut dyn FnMut(&str, u64)) {
        put("heartbeat.active", self.heartbeats.live() as u64);
    }
}
