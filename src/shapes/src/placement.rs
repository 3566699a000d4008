//! What a scheduling pass saw.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a scheduling pass saw for a group that it placed, or for which it found no room.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct PlacementMetrics {
    /// Always 0: it is not measured.
    pub allocation_time: u64,
    pub class_exhausted: Option<BTreeMap<String, u32>>,
    pub class_filtered: Option<BTreeMap<String, u32>>,
    /// Further instances of the group that failed the same way.
    pub coalesced_failures: u32,
    pub constraint_filtered: Option<BTreeMap<String, u32>>,
    pub dimension_exhausted: Option<BTreeMap<String, u32>>,
    /// The pool of the job; empty if the job is gone.
    pub node_pool: String,
    /// Ready nodes by datacenter.
    pub nodes_available: BTreeMap<String, u32>,
    pub nodes_evaluated: u32,
    pub nodes_exhausted: u32,
    pub nodes_filtered: u32,
    pub nodes_in_pool: u32,
    /// Always null: there are no quotas.
    pub quota_exhausted: Option<Vec<String>>,
    /// What each task asks of the resources that ran out.
    pub resources_exhausted: Option<BTreeMap<String, TaskAsk>>,
    pub score_meta_data: Option<Vec<NodeScore>>,
    /// Always null: a form that Nomad has left.
    pub scores: Option<BTreeMap<String, f64>>,
}

/// What a task asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskAsk {
    /// MHz.
    #[serde(rename = "CPU")]
    pub cpu: u64,
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
}

/// Scores of one node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeScore {
    /// The mean of the components.
    pub norm_score: f64,
    #[serde(rename = "NodeID")]
    pub node_id: String,
    /// By component.
    pub scores: BTreeMap<String, f64>,
}
