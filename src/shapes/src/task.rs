//! States and events of tasks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Nothing;

/// The state of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskState {
    /// Oldest first.
    pub events: Vec<TaskEvent>,
    pub failed: bool,
    pub finished_at: Option<String>,
    pub last_restart: Option<String>,
    /// Always empty.
    pub paused: String,
    pub restarts: u64,
    /// When the present or last run began.
    pub started_at: Option<String>,
    /// `pending`, `running` or `dead`.
    pub state: String,
    /// Always null.
    pub task_handle: Nothing,
}

/// An event of a task. Fields that the type of the event does not use are empty or 0.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskEvent {
    /// All values are texts.
    pub details: BTreeMap<String, String>,
    pub disk_limit: u64,
    /// What a person is to read.
    pub display_message: String,
    pub download_error: String,
    pub driver_error: String,
    pub driver_message: String,
    pub exit_code: i32,
    pub failed_sibling: String,
    pub fails_task: bool,
    pub generic_source: String,
    pub kill_error: String,
    pub kill_reason: String,
    /// Nanoseconds.
    pub kill_timeout: u64,
    pub message: String,
    pub restart_reason: String,
    pub setup_error: String,
    pub signal: i32,
    /// Nanoseconds.
    pub start_delay: u64,
    pub task_signal: String,
    pub task_signal_reason: String,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    #[serde(rename = "Type")]
    pub kind: String,
    pub validation_error: String,
    pub vault_error: String,
}
