//! Evaluations.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{KnownAllocation, PlacementMetrics};

/// An evaluation.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Evaluation {
    /// Always `false`.
    pub annotate_plan: bool,
    pub blocked_eval: String,
    /// By computed class.
    pub class_eligibility: Option<BTreeMap<String, bool>>,
    pub create_index: u64,
    /// Nanoseconds.
    pub create_time: u64,
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    pub escaped_computed_class: bool,
    /// By group: why instances of it found no node.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: Option<BTreeMap<String, PlacementMetrics>>,
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job_modify_index: u64,
    pub modify_index: u64,
    /// Nanoseconds.
    pub modify_time: u64,
    pub namespace: String,
    pub next_eval: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_modify_index: u64,
    /// Null until it has been processed.
    pub plan_annotations: Option<PlanAnnotations>,
    pub previous_eval: String,
    pub priority: u16,
    /// By group: instances that found no node.
    pub queued_allocations: Option<BTreeMap<String, u32>>,
    /// Always empty: there are no quotas.
    pub quota_limit_reached: String,
    /// Null unless they are asked for.
    pub related_evals: Option<Vec<EvaluationStub>>,
    pub snapshot_index: u64,
    /// `pending`, `blocked`, `complete`, `failed` or `canceled`.
    pub status: String,
    pub status_description: String,
    pub triggered_by: String,
    #[serde(rename = "Type")]
    pub kind: String,
    /// Always 0.
    pub wait: u64,
    /// RFC 3339.
    pub wait_until: String,
    /// What it waits for in an instance pool, as sentences; absent if it waits for nothing there.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub waits_for: Vec<String>,
}

/// What chains of evaluations show of each.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct EvaluationStub {
    pub blocked_eval: String,
    pub create_index: u64,
    /// Nanoseconds.
    pub create_time: u64,
    #[serde(rename = "DeploymentID")]
    pub deployment_id: String,
    #[serde(rename = "ID")]
    pub id: String,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job_modify_index: u64,
    pub modify_index: u64,
    /// Nanoseconds.
    pub modify_time: u64,
    pub namespace: String,
    pub next_eval: String,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    pub node_modify_index: u64,
    pub previous_eval: String,
    pub priority: u16,
    pub status: String,
    pub status_description: String,
    pub triggered_by: String,
    #[serde(rename = "Type")]
    pub kind: String,
    /// RFC 3339.
    pub wait_until: String,
}

/// What the pass that processed an evaluation wanted.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PlanAnnotations {
    /// By group.
    #[serde(rename = "DesiredTGUpdates")]
    pub desired_tg_updates: BTreeMap<String, DesiredUpdates>,
    pub preempted_allocs: Option<Vec<KnownAllocation>>,
}

/// What a plan does to a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DesiredUpdates {
    pub canary: u32,
    pub destructive_update: u32,
    /// Always 0.
    pub disconnect: u32,
    pub ignore: u32,
    pub in_place_update: u32,
    pub migrate: u32,
    pub place: u32,
    pub preemptions: u32,
    /// Always 0.
    pub reconnect: u32,
    /// Always 0.
    pub reschedule_later: u32,
    /// Always 0.
    pub reschedule_now: u32,
    pub stop: u32,
}

/// How many evaluations there are, or were deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Count {
    pub count: u64,
}

/// What registering a job would do.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct JobPlan {
    pub annotations: PlanAnnotations,
    /// Evaluations that would stay open.
    pub created_evals: Option<Vec<Evaluation>>,
    /// Null unless it is asked for.
    pub diff: Value,
    /// By group: why instances of it would find no node.
    #[serde(rename = "FailedTGAllocs")]
    pub failed_tg_allocs: Option<BTreeMap<String, PlacementMetrics>>,
    /// Of the snapshot.
    pub index: u64,
    pub job_modify_index: u64,
    /// RFC 3339; null unless the job is periodic.
    pub next_periodic_launch: Option<String>,
    /// A line for each.
    pub warnings: String,
}
