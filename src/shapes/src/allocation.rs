//! Allocations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AllocatedResources, FlatResources, Nothing, PlacementMetrics, TaskState};

/// An allocation in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocationStub {
    /// Null unless it is asked for.
    pub allocated_resources: Option<AllocatedResources>,
    pub client_description: String,
    /// `pending`, `running`, `complete`, `failed`, `lost` or `unknown`.
    pub client_status: String,
    pub create_index: u64,
    /// Nanoseconds.
    pub create_time: u64,
    pub deployment_status: Option<DeploymentStatus>,
    pub desired_description: String,
    /// `run`, `stop` or `evict`.
    pub desired_status: String,
    pub desired_transition: DesiredTransition,
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    #[serde(rename = "FollowupEvalID")]
    pub followup_eval_id: String,
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job_type: String,
    pub job_version: u64,
    pub modify_index: u64,
    /// Nanoseconds.
    pub modify_time: u64,
    pub name: String,
    pub namespace: String,
    pub next_allocation: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_name: String,
    /// Ids of allocations that it evicted.
    pub preempted_allocations: Option<Vec<String>>,
    pub preempted_by_allocation: String,
    pub reschedule_tracker: Option<RescheduleTracker>,
    pub task_group: String,
    /// By task; null if they were not asked for, or if its agent has reported none.
    pub task_states: Option<BTreeMap<String, TaskState>>,
}

/// An allocation with its job.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Allocation {
    #[serde(flatten)]
    pub stub: AllocationStub,
    pub alloc_modify_index: u64,
    /// Always null.
    pub alloc_states: Nothing,
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    /// The version of the job that it runs; null if that is gone.
    pub job: Value,
    pub metrics: Option<PlacementMetrics>,
    pub network_status: NetworkStatus,
    pub previous_allocation: String,
    /// Of all tasks together.
    pub resources: FlatResources,
    pub task_resources: BTreeMap<String, FlatResources>,
}

/// An allocation that may be gone, of which then only the id is known.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KnownAllocation {
    Stub(Box<AllocationStub>),
    Gone {
        #[serde(rename = "ID")]
        id: String,
    },
}

/// The health of an allocation in its deployment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentStatus {
    pub canary: bool,
    /// Null: not known yet.
    pub healthy: Option<bool>,
    pub modify_index: u64,
    /// RFC 3339.
    pub timestamp: String,
}

/// What is wanted of an allocation besides its desired status; null where it is not.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredTransition {
    /// Always null.
    pub force_reschedule: Option<bool>,
    pub migrate: Option<bool>,
    pub no_shutdown_delay: Option<bool>,
    pub reschedule: Option<bool>,
}

/// The attempts before an allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleTracker {
    pub events: Vec<RescheduleEvent>,
}

/// One attempt.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct RescheduleEvent {
    /// Nanoseconds.
    pub delay: u64,
    #[serde(rename = "PrevAllocID")]
    pub prev_alloc_id: String,
    #[serde(rename = "PrevNodeID")]
    pub prev_node_id: String,
    /// Nanoseconds since the Unix epoch.
    pub reschedule_time: u64,
}

/// The network of an allocation. Always empty: tasks have the network of their host.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkStatus {
    pub address: String,
    #[serde(rename = "AddressIPv6")]
    pub address_ipv6: String,
    #[serde(rename = "DNS")]
    pub dns: Nothing,
    pub interface_name: String,
}
