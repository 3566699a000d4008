//! Commands about allocations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{ClientStatus, TaskState};
use crate::{
    command::commands,
    id::{AllocationId, DeploymentId, EvaluationId, NodeId, Text},
};

commands! {
    /// What changes allocations, beside plans.
    AllocationCommand in Allocation:
    // command          applied by            sent by  needs             makes  fresh
    // A server gathers the reports of its agents.
    UpdateAllocations   update_allocations    Servers  Internal          -      [];
    StopAllocation      stop_allocation       Clients  [AllocLifecycle]  -      [evaluation];
    ExpireRuns          expire_runs           Leader   Internal          -      [];
}

/// A change of one allocation as its agent reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientUpdate {
    pub id: AllocationId,
    /// Rises with each report of this allocation.
    pub sequence: u64,
    pub status: ClientStatus,
    pub description: Text,
    /// By task name; none: they are as they were in the last report that was taken.
    pub tasks: Option<BTreeMap<Text, TaskState>>,
    /// It failed and that is the node's fault (driver, executor, directories): why.
    pub node_failure: Option<Text>,
    /// Whether it is healthy in the deployment that it belongs to, once that is known.
    pub health: Option<(DeploymentId, bool)>,
}

/// Allocation reports of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    pub node: NodeId,
    /// Incarnation of the reporting agent; a report of any other incarnation is ignored.
    pub incarnation: u64,
    pub updates: Vec<ClientUpdate>,
    /// One id per job that may need an evaluation, used as needed.
    pub evaluation_ids: Vec<EvaluationId>,
}

/// Reports of agents; one entry carries the reports of many nodes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdateAllocations {
    pub reports: Vec<NodeReport>,
}

/// What comes after an allocation that a user stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Replacement {
    /// As the kind of the job has it: another one, but none of a batch or sysbatch job.
    #[default]
    ByKind,
    /// Another one, also of an instance that has been stopped already.
    Always,
    /// None until the job changes.
    Never,
}

/// A user's stop of one allocation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopAllocation {
    pub id: AllocationId,
    pub replacement: Replacement,
    pub no_shutdown_delay: bool,
    pub evaluation: EvaluationId,
}

/// Stops the allocations that run longer than their group may; `apply` checks each again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExpireRuns {
    pub ids: Vec<AllocationId>,
}
