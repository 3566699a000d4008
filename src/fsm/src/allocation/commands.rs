//! Commands about allocations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClientStatus, TaskState};
use crate::id::{AllocationId, EvaluationId, NodeId, Text};

/// A change of one allocation as its agent reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientUpdate {
    /// Allocation.
    pub id: AllocationId,
    /// Rises with each report of this allocation.
    pub sequence: u64,
    pub status: ClientStatus,
    /// In words.
    pub description: Text,
    /// By task name.
    pub tasks: BTreeMap<Text, TaskState>,
    /// It failed and that is the node's fault (driver, executor, directories): why.
    pub node_failure: Option<Text>,
}

/// Reports of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    pub node: NodeId,
    /// Incarnation that reports; another one's reports are ignored.
    pub incarnation: u64,
    /// Changes.
    pub updates: Vec<ClientUpdate>,
    /// One id per job that may need an evaluation, used as needed.
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Reports of agents, many nodes in one entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdateAllocations {
    /// By node.
    pub reports: Vec<NodeReport>,
}

/// A user's stop of one allocation: it is replaced elsewhere.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopAllocation {
    /// Allocation.
    pub id: AllocationId,
    /// Id for the evaluation.
    pub evaluation: EvaluationId,
}
