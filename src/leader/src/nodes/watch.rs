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
            // What is not healthy in a deployment counts for a drain once that is over.
            Effect::Job(_)
            | Effect::NodeAllocations(_)
            | Effect::NodeReport(_)
            | Effect::Deployment(_) => {
                self.drainer.state_changed(now);
            }
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
            | Effect::Instance(_)
            | Effect::InstancePool(_)
            | Effect::CapacityGroup(_)
            | Effect::CapacitySource(_)
            | Effect::CapacityExpired { .. }
            | Effect::DigestMark => {}
        }
    }

    fn step(&mut self, now: u64, state: &State, _ids: &mut Ids<'_>, stepped: &mut Stepped) {
        let missed = self.heartbeats.poll(now);
        if !missed.is_empty() {
            stepped.commands.push(self.heartbeats.command(missed));
        }
        self.deadlines.set_loss_window(self.heartbeats.loss_window_ms());
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

#[cfg(test)]
mod tests {
    use fsm::{
        Liveness, Node,
        node::{MassLoss, MassLossEnd, ReapNode},
        settings::{NodeLife, SchedulerConfiguration},
        testing::put,
    };

    use super::*;
    use crate::{
        limits,
        testing::{node, state_of_nodes},
    };
    use fsm::command::NodeCommand;

    fn reaped(watch: &mut NodeWatch, now: u64, state: &State) -> Vec<NodeId> {
        let mut stepped = Stepped::default();
        watch.step(now, state, &mut || [0; 16], &mut stepped);
        let node_of = |command: &Command| {
            let Command::Node(NodeCommand::ReapNode(ReapNode { node, .. })) = command else {
                panic!("unexpected {command:?}")
            };
            *node
        };
        stepped.commands.iter().map(node_of).collect()
    }

    /// A short grace does not hide a mass loss: a node is not reaped before the others that went
    /// silent with it are missed, too.
    #[test]
    fn a_node_is_not_reaped_before_a_mass_loss_can_be_told() {
        let silent = Node { liveness: Liveness::Down, lost_at: Some(0), ..node("a") };
        let mut state = state_of_nodes([silent]);
        let life = NodeLife { lost_grace_ms: 1_000, ..NodeLife::default() };
        let settings = SchedulerConfiguration { node_life: life, ..Default::default() };
        put(&mut state, &settings);
        let mut watch = NodeWatch::new(HeartbeatConfig::default());
        watch.restore(0, &state);
        let window = watch.heartbeats.loss_window_ms();
        assert_eq!(window, 2 * limits::HEARTBEAT_TTL_MS_MIN + limits::HEARTBEAT_GRACE_MS);
        assert_eq!(reaped(&mut watch, 1_000, &state), []);
        assert_eq!(watch.next_deadline(), Some(window));
        assert_eq!(reaped(&mut watch, window, &state).len(), 1);
    }

    /// Nothing is reaped while a mass loss lasts, and the nodes do not come up again and again
    /// meanwhile. At its end they are reaped at once, not after the pause.
    #[test]
    fn the_end_of_a_mass_loss_lets_nodes_be_reaped_at_once() {
        let silent = |name: &str| Node { liveness: Liveness::Down, lost_at: Some(0), ..node(name) };
        let nodes = [silent("a"), silent("b"), silent("c")];
        let ids: Vec<_> = nodes.iter().map(|node| node.id).collect();
        let mut state = state_of_nodes(nodes);
        let loss =
            MassLoss { since: 0, nodes: ids.clone(), end: None, create_index: 7, modify_index: 7 };
        put(&mut state, &loss);
        let mut watch = NodeWatch::new(HeartbeatConfig::default());
        watch.restore(0, &state);
        let due = NodeLife::default().lost_grace_ms;
        assert_eq!(watch.next_deadline(), Some(due));
        assert_eq!(reaped(&mut watch, due, &state), []);
        assert_eq!(watch.next_deadline(), Some(due + limits::DUE_RETRY_MS));
        watch.take(due + 1, &state, 8, &Effect::MassLoss);
        assert_eq!(reaped(&mut watch, due + 1, &state), [], "it has grown, and lasts");
        let end = Some(MassLossEnd { at: due + 2, by: "".into() });
        put(&mut state, &MassLoss { end, ..loss });
        watch.take(due + 2, &state, 9, &Effect::MassLoss);
        assert_eq!(watch.next_deadline(), Some(due));
        assert_eq!(reaped(&mut watch, due + 2, &state), ids);
        assert_eq!(reaped(&mut watch, due + 3, &state), [], "asked for, and not again at once");
    }
}
