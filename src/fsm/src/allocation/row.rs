//! Allocations: one placed instance of a task group, and what the agent reports of it.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    evaluation::Metrics,
    id::{AllocationId, EvaluationId, Index, JobKey, NodeId, Text, TimeMs},
    resources::{Port, Resources},
    table::{Row, TableId},
};

/// What the servers want of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DesiredStatus {
    Run,
    /// End, no longer wanted.
    Stop,
    /// End, to make room.
    Evict,
}

impl DesiredStatus {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Stop => "stop",
            Self::Evict => "evict",
        }
    }
}

/// What became of an allocation on its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ClientStatus {
    /// Not started yet.
    Pending,
    Running,
    /// Ended well.
    Complete,
    /// Ended with an error.
    Failed,
    /// The node was lost.
    Lost,
    /// The node is disconnected.
    Unknown,
}

impl ClientStatus {
    /// All statuses.
    pub const ALL: [Self; 6] =
        [Self::Pending, Self::Running, Self::Complete, Self::Failed, Self::Lost, Self::Unknown];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Lost => "lost",
            Self::Unknown => "unknown",
        }
    }

    /// The status of that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// Nothing runs any more, for good.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Lost)
    }
}

/// Wishes about an allocation that a scheduler has to act on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct DesiredTransition {
    /// Move away (drain, or a user's stop).
    pub migrate: bool,
    /// Replace even if the job's kind would not (user's stop of a batch allocation).
    pub reschedule: bool,
}

/// Something that happened to a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Nomad's event type: `Received`, `Started`, `Terminated`, `Restarting` …
    pub kind: Text,
    /// Wall clock of the node, ms.
    pub at_ms: u64,
    /// In words.
    pub message: Text,
    /// Exit code, when the task ended.
    pub exit_code: Option<i32>,
    /// Signal, when one ended the task.
    pub signal: Option<i32>,
}

/// State of one task as the agent reports it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct TaskState {
    /// `pending`, `running` or `dead`.
    pub state: Text,
    /// Ended with an error.
    pub failed: bool,
    /// Restarts so far.
    pub restarts: u32,
    /// Wall clock of the node, ms; 0: not yet.
    pub started_at_ms: u64,
    /// Wall clock of the node, ms; 0: not yet.
    pub finished_at_ms: u64,
    /// Wall clock of the node, ms; 0: never.
    pub last_restart_ms: u64,
    /// Newest last, at most `limits::TASK_EVENTS_MAX`.
    pub events: Vec<TaskEvent>,
}

/// One past reschedule.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RescheduleEvent {
    pub at: TimeMs,
    /// The allocation that failed.
    pub previous: AllocationId,
    pub node: NodeId,
    /// Delay that was waited, ms.
    pub delay_ms: u64,
}

/// An allocation row. The job's spec is in the versions table under (job, `job_create_index`,
/// `job_version`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allocation {
    pub id: AllocationId,
    pub job: JobKey,
    /// Incarnation of the job.
    pub job_create_index: Index,
    /// Version of the job that this allocation runs.
    pub job_version: u64,
    /// Task group.
    pub group: Text,
    /// Number in the name `job.group[number]`.
    pub name_index: u32,
    /// Its job runs once per node: the name is unique per node, not per job.
    pub per_node: bool,
    pub node: NodeId,
    /// Evaluation that placed it or changed it last.
    pub evaluation: EvaluationId,
    /// Resources it holds.
    pub resources: Resources,
    /// Ports it holds.
    pub ports: Vec<Port>,
    /// What the servers want.
    pub desired: DesiredStatus,
    pub desired_description: Text,
    /// Wishes a scheduler has to act on.
    pub transition: DesiredTransition,
    /// What the agent reports.
    pub client: ClientStatus,
    /// In words.
    pub client_description: Text,
    /// Log time of the last change of the client status.
    pub client_at: TimeMs,
    /// Sequence of the last report taken; older ones are ignored.
    pub client_sequence: u64,
    /// By task name.
    pub tasks: BTreeMap<Text, TaskState>,
    /// The allocation that this one replaces.
    pub previous: Option<AllocationId>,
    /// The allocation that replaced this one.
    pub next: Option<AllocationId>,
    /// Evaluation that waits to reschedule this failed allocation.
    pub follow_up: Option<EvaluationId>,
    /// Past reschedules, newest last.
    pub reschedules: Vec<RescheduleEvent>,
    /// How the placement was decided.
    pub metrics: Option<Arc<Metrics>>,
    /// Index of the placement.
    pub create_index: Index,
    pub modify_index: Index,
    /// Index of the last change made by servers; agents pull by it.
    pub server_modify_index: Index,
    /// Log time of the placement.
    pub created_at: TimeMs,
    /// Log time of the last change.
    pub modified_at: TimeMs,
}

impl Row for Allocation {
    type Key = AllocationId;
    const TABLE: TableId = TableId::Allocations;

    fn key(&self) -> AllocationId {
        self.id
    }
}

impl Allocation {
    /// The name `job.group[number]`.
    pub fn name(&self) -> String {
        format!("{}.{}[{}]", self.job.id, self.group, self.name_index)
    }

    /// What must be unique among live allocations of the job.
    pub fn live_name(&self) -> (Text, u32, NodeId) {
        let node = if self.per_node { self.node } else { NodeId::default() };
        (self.group.clone(), self.name_index, node)
    }

    /// The servers want it to end.
    pub fn is_server_terminal(&self) -> bool {
        match self.desired {
            DesiredStatus::Run => false,
            DesiredStatus::Stop | DesiredStatus::Evict => true,
        }
    }

    /// Wanted, and not ended: it holds resources and its name.
    pub fn is_live(&self) -> bool {
        !self.is_server_terminal() && !self.client.is_terminal()
    }

    /// Log time of the last start of a task of it. None: it does not run, or a task waits for its
    /// start: it counts as running also while a task has ended and is to be started again.
    pub fn all_running_since(&self) -> Option<TimeMs> {
        let tasks = || self.tasks.values();
        if self.client != ClientStatus::Running || tasks().any(|task| &*task.state == "pending") {
            return None;
        }
        // The node's clock may be another one, and only tells how long after the first start that
        // was.
        let first = tasks().map(|task| task.started_at_ms).filter(|at_ms| *at_ms > 0).min();
        let last = tasks().map(|task| task.started_at_ms.max(task.last_restart_ms)).max();
        let later_ms = last.zip(first).map_or(0, |(last, first)| last.saturating_sub(first));
        let since = self.client_at.saturating_add(later_ms);
        // It was reported by now, whatever that clock did meanwhile.
        Some(since.min(self.modified_at).max(self.client_at))
    }

    /// Ended on its node although nobody asked, and well.
    pub fn ran_successfully(&self) -> bool {
        self.client == ClientStatus::Complete
    }
}
