//! Checks whether a group would run on a node that does not exist yet, with the same rules as for
//! existing nodes. Used for instance pools.

use fsm::{JobSpec, Node, NodeId, TaskGroup, Text, node::NodeDescription};

use crate::place::{
    constraint::{Condition, Distinct},
    feasible::{Feasibility, group_constraints},
};

/// The checks of one job for nodes that do not exist yet.
pub struct Declared<'a> {
    spec: &'a JobSpec,
    feasibility: Feasibility,
}

impl<'a> Declared<'a> {
    /// Compiles the job's constraints.
    pub fn new(spec: &'a JobSpec) -> Self {
        Self { spec, feasibility: Feasibility::new(spec, spec.groups.iter()) }
    }

    /// Whether group number `group` may run on such a node, apart from room. The error is the
    /// reason.
    pub fn check(&mut self, group: usize, node: NodeDescription) -> Result<(), Text> {
        if !node.matches(&self.spec.node_pool, &self.spec.datacenters) {
            return Err(format!("datacenter {}", node.datacenter).into());
        }
        self.feasibility.check(&Node::new(NodeId::default(), node.into()), group)
    }
}

/// How many instances of a group one node takes at most, apart from room. A group with a static
/// port or `distinct_hosts` gets one per node.
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
