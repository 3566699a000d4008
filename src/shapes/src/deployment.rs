//! Deployments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A deployment.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Deployment {
    pub create_index: u64,
    /// Nanoseconds.
    pub create_time: u64,
    pub eval_priority: u16,
    #[serde(rename = "ID")]
    pub id: String,
    /// Always `false`: there is one region.
    pub is_multiregion: bool,
    pub job_create_index: u64,
    #[serde(rename = "JobID")]
    pub job_id: String,
    pub job_modify_index: u64,
    pub job_spec_modify_index: u64,
    pub job_version: u64,
    pub modify_index: u64,
    /// Nanoseconds.
    pub modify_time: u64,
    pub namespace: String,
    pub status: String,
    pub status_description: String,
    /// By the name of the group.
    pub task_groups: BTreeMap<String, DeploymentGroup>,
}

/// How a group of a deployment stands.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentGroup {
    pub auto_promote: bool,
    pub auto_revert: bool,
    pub desired_canaries: u32,
    pub desired_total: u32,
    pub healthy_allocs: u32,
    pub placed_allocs: u32,
    /// Ids of allocations; null: none.
    pub placed_canaries: Option<Vec<String>>,
    /// Nanoseconds; 0: none.
    pub progress_deadline: u64,
    pub promoted: bool,
    /// RFC 3339; null: nothing was placed yet, or nothing is waited for.
    pub require_progress_by: Option<String>,
    pub unhealthy_allocs: u32,
}

/// What a write to a deployment did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DeploymentWritten {
    pub deployment_modify_index: u64,
    /// 0: no evaluation was made.
    pub eval_create_index: u64,
    /// Empty: no evaluation was made.
    #[serde(rename = "EvalID")]
    pub eval_id: String,
    /// The version that the job goes back to; null: none.
    pub reverted_job_version: Option<u64>,
}
