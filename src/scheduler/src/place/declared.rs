//! Nodes that do not exist yet: would a group run there? The same checks as for nodes that do.

use fsm::{JobSpec, Node, NodeId, TaskGroup, Text, node::NodeDescription};

use crate::{
    place::constraint::{Condition, Distinct},
    place::feasible::{Feasibility, group_constraints},
};

/// What declared nodes are to one job.
pub struct Declared<'a> {
    spec: &'a JobSpec,
    feasibility: Feasibility,
}

impl<'a> Declared<'a> {
    /// Compiles the job's constraints.
    pub fn new(spec: &'a JobSpec) -> Self {
        Self { spec, feasibility: Feasibility::new(spec, spec.groups.iter()) }
    }

    /// Whether group number `group` may run on such a node, room aside; the reason if not.
    pub fn check(&mut self, group: usize, node: NodeDescription) -> Result<(), Text> {
        if !node.matches(&self.spec.node_pool, &self.spec.datacenters) {
            return Err(format!("datacenter {}", node.datacenter).into());
        }
        self.feasibility.check(&Node::new(NodeId::default(), node.into()), group)
    }
}

/// Most instances of a group that one node takes, room aside: those with a static port or distinct
/// hosts take a node each.
pub fn per_node_max(spec: &JobSpec, group: &TaskGroup) -> u32 {
    let has_static = |group: &TaskGroup| {
        group.network.iter().flat_map(|network| &network.ports).any(|port| port.value != 0)
    };
    let is_distinct = spec
        .constraints
        .iter()
        .chain(group_constraints(group))
        .any(|constraint| matches!(Condition::distinct(constraint), Some(Distinct::Hosts)));
    if is_distinct || has_static(group) { 1 } else { u32::MAX }
}
