//! Commands about nodes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Drain, Liveness, NodeDescription, SuspendReason};
use crate::id::{AllocationId, EvaluationId, NodeId, Text};

/// What a readiness check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Readiness {
    /// Ready for work.
    Ok,
    /// Not yet.
    Retry,
    /// Not without a person.
    Fatal,
}

/// One change of a node's liveness as the leader saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LivenessChange {
    pub node: NodeId,
    /// Incarnation that it is about.
    pub incarnation: u64,
    /// New liveness: `Down`, `Disconnected` or `Initializing`.
    pub liveness: Liveness,
}

/// Registers a node or refreshes what it says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegisterNode {
    pub node: NodeId,
    /// Fixed at the first registration.
    pub secret: [u8; 16],
    /// Another one is another incarnation.
    pub identity: [u8; 16],
    /// What it says.
    pub description: Arc<NodeDescription>,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// A readiness report of a node that initializes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReadiness {
    pub node: NodeId,
    /// Incarnation that reports.
    pub incarnation: u64,
    /// What was found.
    pub readiness: Readiness,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Nodes that were not heard from, or are heard from again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLiveness {
    /// Changes, in order.
    pub changes: Vec<LivenessChange>,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Takes a node out of service for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuspendNode {
    pub node: NodeId,
    /// Incarnation that it is about.
    pub incarnation: u64,
    pub reason: SuspendReason,
}

/// Brings nodes back whose suspension is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnsuspendNodes {
    pub nodes: Vec<NodeId>,
}

/// Allows or refuses new work: `offline` and `reinstate`. The node need not exist yet.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetEligibility {
    pub node: NodeId,
    pub eligible: bool,
    /// Who.
    pub by: Text,
    pub reason: Text,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Starts, changes or ends a drain.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetDrain {
    pub node: NodeId,
    /// The drain; none ends it.
    pub drain: Option<Drain>,
    /// When it ends: eligible again?
    pub mark_eligible: bool,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Marks allocations of draining nodes for migration, and ends drains that are done.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AdvanceDrains {
    /// To migrate.
    pub migrate: Vec<AllocationId>,
    /// Nodes that are empty.
    pub complete: Vec<NodeId>,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Forgets a node that is down. With `force` (an operator's purge) also one that is not, and its
/// allocations are lost.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ReapNode {
    pub node: NodeId,
    /// Incarnation that it is about; none: any.
    pub incarnation: Option<u64>,
    /// Without waiting for the grace.
    pub force: bool,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Makes evaluations for the jobs of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvaluateNode {
    pub node: NodeId,
    pub evaluation_ids: Vec<EvaluationId>,
}
