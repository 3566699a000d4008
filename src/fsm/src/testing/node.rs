//! Nodes.

use std::{collections::BTreeMap, sync::Arc};

use super::driver::{Driver, evaluations};
use crate::{
    allocation::{NodeReport, UpdateAllocations},
    command::{Command, Reply},
    id::{ClassId, EvaluationId, NodeId},
    node::{
        self, Drain, EndSuspensions, Liveness, LivenessChange, Node, NodeDescription, NodeLiveness,
        NodeReadiness, NodeResources, Readiness, ReapNode, RegisterNode, SetDrain, SetEligibility,
        SuspendNode,
    },
    resources::Resources,
    settings::{NodeLife, SetSchedulerConfiguration},
};

impl Driver {
    /// Registers a node, or registers it again. Its identity is `identity` in every byte.
    pub fn register_node_as(&mut self, name: &str, identity: u8, description: NodeDescription) {
        let evaluation_ids = self.evaluation_ids();
        self.accept(Command::from(RegisterNode {
            instance: None,
            node: node_id(name),
            secret: [7; 16],
            identity: [identity; 16],
            description: Arc::new(description),
            evaluation_ids,
        }));
    }

    /// Registers a node of the usual size, or registers it again after it was heard from.
    pub fn register_node(&mut self, name: &str) -> NodeId {
        self.register_node_as(name, 1, description(name));
        node_id(name)
    }

    /// Reports a readiness check of a node.
    pub fn readiness(&mut self, name: &str, readiness: Readiness) -> Reply {
        self.readiness_as(name, readiness, "")
    }

    /// Reports a readiness check of a node, with the first line of its output.
    pub fn readiness_as(&mut self, name: &str, readiness: Readiness, reason: &str) -> Reply {
        let evaluation_ids = self.evaluation_ids();
        // Rises with each id that was made.
        let sequence = self.ids;
        let (node, incarnation) = (node_id(name), self.incarnation(name));
        self.commit(Command::from(NodeReadiness {
            node,
            incarnation,
            readiness,
            reason: reason.into(),
            sequence,
            evaluation_ids,
        }))
        .reply
    }

    /// Changes settings of node life.
    pub fn node_life(&mut self, change: impl FnOnce(&mut NodeLife)) {
        let mut configuration = self.state.scheduler_configuration();
        change(&mut configuration.node_life);
        self.accept(Command::from(SetSchedulerConfiguration {
            configuration,
            keep_node_life: false,
            enforce_index: None,
        }));
    }

    /// An operator suspends a node, for a while or until that is taken back.
    pub fn suspend(&mut self, name: &str, for_ms: Option<u64>) {
        self.accept(Command::from(SuspendNode {
            node: node_id(name),
            by: "operator".into(),
            reason: "maintenance".into(),
            for_ms,
        }));
    }

    /// Ends suspensions whose time is over, as the leader proposes it.
    pub fn end_suspension(&mut self, name: &str) {
        self.accept(Command::from(EndSuspensions { nodes: vec![node_id(name)] }));
    }

    /// Reports the statuses of a node's allocations: none changed.
    pub fn sync(&mut self, name: &str) {
        let (node, incarnation) = (node_id(name), self.incarnation(name));
        let report =
            NodeReport { node, incarnation, updates: Vec::new(), evaluation_ids: Vec::new() };
        self.accept(Command::from(UpdateAllocations { reports: vec![report] }));
    }

    /// A node that is registered, synced and ready.
    pub fn node(&mut self, name: &str) -> NodeId {
        let id = self.register_node(name);
        self.sync(name);
        let reply = self.readiness(name, Readiness::Ok);
        assert!(matches!(reply, Reply::Node { .. }), "{name} is not ready: {reply:?}");
        id
    }

    /// What the leader saw of a node's liveness. Unknown nodes may be named.
    pub fn liveness(&mut self, name: &str, liveness: Liveness) -> Vec<EvaluationId> {
        let change =
            LivenessChange { node: node_id(name), incarnation: self.incarnation(name), liveness };
        let evaluation_ids = self.evaluation_ids();
        evaluations(self.accept(Command::from(NodeLiveness {
            changes: vec![change],
            window_ms: 30_000,
            evaluation_ids,
        })))
    }

    /// Takes a node out of service by an operator, or brings it back.
    pub fn eligibility(&mut self, name: &str, eligible: bool) -> Reply {
        let evaluation_ids = self.evaluation_ids();
        self.accept(Command::from(SetEligibility {
            node: node_id(name),
            eligible,
            by: "operator".into(),
            reason: "maintenance".into(),
            evaluation_ids,
        }))
    }

    /// Starts a drain without a deadline, or ends it and leaves the node ineligible.
    pub fn drain(&mut self, name: &str, on: bool) {
        let drain = on.then(|| Drain {
            started_at: 0,
            deadline_at: None,
            force: false,
            ignore_system: false,
            owner: "operator".into(),
            cancelable: false,
        });
        let evaluation_ids = self.evaluation_ids();
        self.accept(Command::from(SetDrain {
            node: node_id(name),
            drain,
            mark_eligible: false,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids,
        }));
    }

    /// The command that reaps a node in its incarnation.
    pub fn reap(&mut self, name: &str, force: bool) -> Command {
        let incarnation = Some(self.incarnation(name));
        let evaluation_ids = self.evaluation_ids();
        Command::from(ReapNode { node: node_id(name), incarnation, force, evaluation_ids })
    }

    /// A node's row.
    pub fn node_row(&self, name: &str) -> &Node {
        self.state.nodes.get(&node_id(name)).expect("the node is registered")
    }

    pub(super) fn incarnation(&self, name: &str) -> u64 {
        self.state.nodes.get(&node_id(name)).map_or(0, |node| node.incarnation)
    }
}

/// The id of a node with a name of up to 16 bytes.
pub fn node_id(name: &str) -> NodeId {
    let mut id = [0; 16];
    for (slot, byte) in id.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    NodeId(id)
}

/// A node of 4000 MHz, 8192 MiB and 100 000 MiB of disk, with the driver that [`job`] asks for.
pub fn description(name: &str) -> NodeDescription {
    NodeDescription {
        name: name.into(),
        datacenter: "dc1".into(),
        class: "".into(),
        pool: "default".into(),
        resources: NodeResources {
            total: Resources { cpu_mhz: 4000, memory_mb: 8192, disk_mb: 100_000 },
            reserved_ports: vec![22],
            dynamic_port_min: 20_000,
            dynamic_port_max: 32_000,
            address: "127.0.0.1".into(),
            ..NodeResources::default()
        },
        drivers: BTreeMap::from([(
            "mock".into(),
            node::Driver { detected: true, healthy: true, ..node::Driver::default() },
        )]),
        ..NodeDescription::default()
    }
}

/// The row of a ready node, in its first incarnation.
pub fn ready_node(id: NodeId, description: NodeDescription) -> Node {
    Node {
        liveness: Liveness::Ready,
        class: ClassId::default(),
        create_index: 1,
        modify_index: 1,
        ..Node::new(id, Arc::new(description))
    }
}
