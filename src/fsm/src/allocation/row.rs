//! Allocations: one placed instance of a task group, and what the agent reports of it.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    deployment::AllocationDeployment,
    evaluation::Metrics,
    id::{AllocationId, DeploymentId, EvaluationId, Index, JobKey, NodeId, Text, TimeMs},
    job::ReschedulePolicy,
    limits,
    resources::{Port, Resources},
    table::Row,
};

/// Why an instance of a batch or sysbatch job ended: what is shown of it, and nothing is decided
/// by.
pub const ENDED_BY_REQUEST: &str =
    "alloc was stopped by a drain or a user, and is not run again by itself";

/// Why an allocation ended that ran longer than its group may.
pub const RUN_TIME_OVER: &str = "allocation exceeded max_run_duration";

/// What the servers want of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DesiredStatus {
    Run,
    /// The allocation is no longer wanted and must end.
    Stop,
    /// The allocation must end to make room for another.
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

/// The state of an allocation on its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ClientStatus {
    /// Not started yet.
    Pending,
    Running,
    /// Ended successfully.
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

    /// The status with that name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }

    /// Whether the allocation has ended for good.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Lost)
    }
}

/// Requests about an allocation that a scheduler must act on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "marks that are set one by one")]
pub struct DesiredTransition {
    /// Move the allocation to another node (drain, or a user's stop). That ends an instance of a
    /// batch or sysbatch job, which is not run again by itself.
    pub migrate: bool,
    /// Replace the allocation even if the job's kind or policy would not, or not yet (a user's stop
    /// or evaluation that asks for it).
    pub reschedule: bool,
    /// Do not replace it until the job changes (a user's stop that asks for it).
    pub no_replacement: bool,
    /// It ends without the shutdown delays of its group and tasks.
    pub no_shutdown_delay: bool,
}

/// Something that happened to a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct TaskEvent {
    /// Nomad's event type: `Received`, `Started`, `Terminated`, `Restarting` …
    pub kind: Text,
    /// Wall clock of the node, ms.
    pub at_ms: u64,
    pub message: Text,
    /// Exit code, when the task ended.
    pub exit_code: Option<i32>,
    /// The signal that ended the task, if any.
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
    /// How long the reschedule was delayed, ms.
    pub delay_ms: u64,
}

/// An allocation row. The job's spec is in the versions table under (job, `job_create_index`,
/// `job_version`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Allocation {
    pub id: AllocationId,
    pub job: JobKey,
    /// Create index of the job; it identifies the job's incarnation.
    pub job_create_index: Index,
    /// Version of the job that this allocation runs.
    pub job_version: u64,
    pub group: Text,
    /// Number in the name `job.group[number]`.
    pub name_index: u32,
    /// Its job runs once per node: the name is unique per node, not per job.
    pub per_node: bool,
    pub node: NodeId,
    /// Evaluation that placed it or changed it last.
    pub evaluation: EvaluationId,
    pub resources: Resources,
    pub ports: Vec<Port>,
    pub desired: DesiredStatus,
    pub desired_description: Text,
    pub transition: DesiredTransition,
    pub client: ClientStatus,
    pub client_description: Text,
    /// Log time of the last change of the client status.
    pub client_at: TimeMs,
    /// Sequence number of the last accepted report; older reports are ignored.
    pub client_sequence: u64,
    /// By task name.
    pub tasks: Arc<BTreeMap<Text, TaskState>>,
    /// The allocation that this one replaces.
    pub previous: Option<AllocationId>,
    /// The allocation that replaced this one.
    pub next: Option<AllocationId>,
    /// Allocations of this node that were evicted to make room for this one.
    pub preempted: Vec<AllocationId>,
    /// The allocation that this one was evicted for.
    pub preempted_by: Option<AllocationId>,
    /// Evaluation that waits to reschedule this failed allocation.
    pub follow_up: Option<EvaluationId>,
    /// Past reschedules, newest last.
    pub reschedules: Vec<RescheduleEvent>,
    /// The deployment of its version, if it belongs to one.
    pub deployment: Option<AllocationDeployment>,
    /// It was placed as a canary of this deployment: beside the instance of the same name, or in
    /// the place of that on its node if its job runs once per node.
    pub canary_of: Option<DeploymentId>,
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

/// Where the number of a name is unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NameScope {
    /// In the job's group.
    Group,
    /// In the group on one node.
    Node(NodeId),
    /// Among the canaries of one deployment.
    Canary(DeploymentId),
}

impl NameScope {
    /// The scope of an instance of a job that runs once per node, of a canary, or of any other.
    pub fn of(node: Option<NodeId>, canary_of: Option<DeploymentId>) -> Self {
        node.map(Self::Node).or(canary_of.map(Self::Canary)).unwrap_or(Self::Group)
    }
}

/// A name in use: group, number, and where that is unique.
pub type LiveName = (Text, u32, NameScope);

impl Row for Allocation {
    type Key = AllocationId;

    fn key(&self) -> AllocationId {
        self.id
    }
}

impl Allocation {
    /// The name `job.group[number]`.
    pub fn name(&self) -> String {
        format!("{}.{}[{}]", self.job.id, self.group, self.name_index)
    }

    /// The part of the name that must be unique among live allocations of the job.
    pub fn live_name(&self) -> LiveName {
        let within = NameScope::of(self.per_node.then_some(self.node), self.canary_of);
        (self.group.clone(), self.name_index, within)
    }

    /// Whether it is a canary that was not promoted.
    pub fn is_canary(&self) -> bool {
        self.deployment.is_some_and(|own| own.canary)
    }

    /// Whether a policy allows another attempt after this one has failed.
    pub fn may_retry(&self, policy: &ReschedulePolicy) -> bool {
        if policy.unlimited {
            return true;
        }
        // Only so many events are kept, so that more attempts could not be counted.
        let attempts = usize::try_from(policy.attempts)
            .unwrap_or(usize::MAX)
            .min(limits::RESCHEDULE_EVENTS_COUNTED_MAX);
        self.reschedules.iter().filter(|event| self.counts(policy, event)).count() < attempts
    }

    /// Whether a past reschedule is within the policy's interval before the allocation's end.
    pub fn counts(&self, policy: &ReschedulePolicy, event: &RescheduleEvent) -> bool {
        self.client_at.saturating_sub(event.at) < policy.interval_ms
    }

    /// Whether the servers want the allocation to end.
    pub fn is_server_terminal(&self) -> bool {
        match self.desired {
            DesiredStatus::Run => false,
            DesiredStatus::Stop | DesiredStatus::Evict => true,
        }
    }

    /// Whether the end that a drain or a user asked for lasts until the job changes: of a job that
    /// runs once, and wherever the user said so.
    pub fn may_stay_ended(&self, runs_once: bool) -> bool {
        runs_once || self.transition.no_replacement
    }

    /// A drain or a user ended it, and nobody asked for another: it is not run again until the job
    /// changes, if [`Self::may_stay_ended`]. One that ended by itself after it was to end, before
    /// its stop was planned, is the same.
    pub fn is_ended_by_request(&self) -> bool {
        let completed = self.client == ClientStatus::Complete && self.transition.no_replacement;
        let is_over = self.is_server_terminal() || self.client == ClientStatus::Failed || completed;
        is_over && self.transition.migrate && !self.transition.reschedule
    }

    /// Wanted, and not ended: it holds resources and its name.
    pub fn is_live(&self) -> bool {
        !self.is_server_terminal() && !self.client.is_terminal()
    }

    /// Wanted, and alive, or failed and not replaced yet.
    pub fn holds_its_place(&self) -> bool {
        self.is_live() || (self.client == ClientStatus::Failed && !self.is_server_terminal())
    }

    /// The log time since which all tasks have been running, measured from their last start.
    /// `None`: the allocation does not run, or a task waits for its start. (Such an allocation
    /// still has the status running while a task has ended and is about to be restarted.)
    pub fn all_running_since(&self) -> Option<TimeMs> {
        let tasks = || self.tasks.values();
        if self.client != ClientStatus::Running || tasks().any(|task| &*task.state == "pending") {
            return None;
        }
        // The node's clock may differ from log time, so only differences between its times are
        // used.
        let first = tasks().map(|task| task.started_at_ms).filter(|at_ms| *at_ms > 0).min();
        let last = tasks().map(|task| task.started_at_ms.max(task.last_restart_ms)).max();
        let later_ms = last.zip(first).map_or(0, |(last, first)| last.saturating_sub(first));
        let since = self.client_at.saturating_add(later_ms);
        // The report proves that the start is not later than `modified_at`, whatever the node's
        // clock did.
        Some(since.min(self.modified_at).max(self.client_at))
    }

    /// Whether the allocation ended successfully on its node.
    pub fn ran_successfully(&self) -> bool {
        self.client == ClientStatus::Complete
    }
}
