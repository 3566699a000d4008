//! Commands about nodes.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{Drain, Liveness, NodeDescription, Readiness};
use crate::{
    command::commands,
    id::{AllocationId, EvaluationId, InstanceId, NodeId, Text},
};

commands! {
    /// What changes nodes.
    NodeCommand in Node:
    // command       applied by            sent by  needs      makes  fresh
    RegisterNode     register_node         Agents   Internal   -      [evaluation_ids];
    NodeReadiness    node_readiness        Agents   Internal   -      [evaluation_ids];
    NodeShortage     node_shortage         Agents   Internal   -      [evaluation_ids];
    NodeLiveness     node_liveness         Leader   Internal   -      [evaluation_ids];
    // Nomad lacks suspensions: they set a node aside as its eligibility does.
    SuspendNode      suspend_node          Clients  NodeWrite  -      [];
    UnsuspendNode    unsuspend_node        Clients  NodeWrite  -      [];
    SuspendLateNodes suspend_late_nodes    Leader   Internal   -      [];
    EndSuspensions   end_suspensions       Leader   Internal   -      [];
    // Nomad lacks it: nodes that are not heard any more are given up, as a purge of each would.
    EndMassLoss      end_mass_loss         Clients  NodeWrite  -      [];
    SetEligibility   set_eligibility       Clients  NodeWrite  -      [evaluation_ids];
    SetDrain         set_drain             Clients  NodeWrite  -      (SetDrain::clear_fresh);
    AdvanceDrains    advance_drains        Leader   Internal   -      [evaluation_ids];
    ReapNode         reap_node             Clients  NodeWrite  -      [evaluation_ids];
    EvaluateNode     evaluate_node         Clients  NodeWrite  -      [evaluation_ids];
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

/// What an agent shows to be taken for an instance.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceProof {
    pub id: InstanceId,
    /// Made with the intent, and given to the machine by its provider. A secret.
    pub token: [u8; 16],
}

impl std::fmt::Debug for InstanceProof {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceProof").field("id", &self.id).finish_non_exhaustive()
    }
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
    /// The instance that it says it is.
    pub instance: Option<InstanceProof>,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// What a node's readiness check found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReadiness {
    pub node: NodeId,
    /// Incarnation that reports.
    pub incarnation: u64,
    pub readiness: Readiness,
    /// First line of the check's output, at most `limits::NODE_REASON_BYTES_MAX`.
    pub reason: Text,
    /// Rises with each report of the incarnation; an older one is ignored.
    pub sequence: u64,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// What an agent says of its machine with a heartbeat, when that is new.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeShortage {
    pub node: NodeId,
    /// Incarnation that reports.
    pub incarnation: u64,
    /// What the machine is short of, at most `limits::NODE_REASON_BYTES_MAX`; empty: of nothing.
    pub reason: Text,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Nodes that were not heard from, or are heard from again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeLiveness {
    /// Changes, in order.
    pub changes: Vec<LivenessChange>,
    /// Nodes that are missed within this time may have gone silent in the same moment: the longest
    /// time to live and the grace, ms.
    pub window_ms: u64,
    pub evaluation_ids: Vec<EvaluationId>,
}

/// An operator takes a node out of service for a while.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuspendNode {
    pub node: NodeId,
    /// As the client gave it.
    pub by: Text,
    pub reason: Text,
    /// None: until an operator ends it.
    pub for_ms: Option<u64>,
}

/// An operator ends a suspension; readiness is checked again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UnsuspendNode {
    pub node: NodeId,
    /// As the client gave it.
    pub by: Text,
    pub reason: Text,
}

/// Suspends nodes that are not ready by their deadline.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SuspendLateNodes {
    pub nodes: Vec<NodeId>,
}

/// Ends the suspensions whose time is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndSuspensions {
    pub nodes: Vec<NodeId>,
}

/// Ends the mass loss.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EndMassLoss {
    /// The operator who says that the nodes are lost; none: the servers, when most nodes are back
    /// or it lasted too long.
    pub by: Option<Text>,
}

/// Allows or refuses new work: `online` and `offline`. The node need not exist yet.
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
    /// What users note about the drain, kept with the last one of the node.
    pub meta: BTreeMap<Text, Text>,
    pub evaluation_ids: Vec<EvaluationId>,
}

impl SetDrain {
    fn clear_fresh(&mut self) {
        self.evaluation_ids.clear();
        if let Some(drain) = &mut self.drain {
            drain.deadline_at =
                drain.deadline_at.map(|until| until.saturating_sub(drain.started_at));
            drain.started_at = 0;
        }
    }
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

/// Forgets a node that is down. With `force` (an operator's purge) also one that is not, with its
/// allocations, its health and what operators said of it.
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
