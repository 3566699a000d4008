//! Evaluations: requests to bring a job to its desired state, and the explanation of placements.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{AllocationId, ClassId, DeploymentId, EvaluationId, Index, JobKey, NodeId, Text, TimeMs},
    job::JobKind,
    table::Row,
};

/// The status of an evaluation. Pending and blocked are open; the others are final.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum EvaluationStatus {
    /// To be processed.
    Pending,
    /// Waits for capacity.
    Blocked,
    /// Processed.
    Complete,
    /// Could not be processed.
    Failed,
    /// Superseded.
    Canceled,
}

impl EvaluationStatus {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Blocked => "blocked",
            Self::Complete => "complete",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
        }
    }

    /// Whether the status is final.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Complete | Self::Failed | Self::Canceled)
    }
}

/// Why an evaluation was made.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Trigger {
    JobRegister,
    JobDeregister,
    PeriodicJob,
    NodeDrain,
    NodeUpdate,
    AllocStop,
    Scheduled,
    DeploymentWatcher,
    FailedFollowUp,
    MaxPlans,
    AllocFailure,
    QueuedAllocs,
    Preemption,
    JobScaling,
    MaxDisconnectTimeout,
    Reconnect,
    RetryFailedAlloc,
}

impl Trigger {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::JobRegister => "job-register",
            Self::JobDeregister => "job-deregister",
            Self::PeriodicJob => "periodic-job",
            Self::NodeDrain => "node-drain",
            Self::NodeUpdate => "node-update",
            Self::AllocStop => "alloc-stop",
            Self::Scheduled => "scheduled",
            Self::DeploymentWatcher => "deployment-watcher",
            Self::FailedFollowUp => "failed-follow-up",
            Self::MaxPlans => "max-plan-attempts",
            Self::AllocFailure => "alloc-failure",
            Self::QueuedAllocs => "queued-allocs",
            Self::Preemption => "preemption",
            Self::JobScaling => "job-scaling",
            Self::MaxDisconnectTimeout => "max-disconnect-timeout",
            Self::Reconnect => "reconnect",
            Self::RetryFailedAlloc => "alloc-reschedule",
        }
    }
}

/// What a scheduling pass found for one group: how many nodes it looked at, and why it rejected
/// nodes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Metrics {
    /// Nodes looked at.
    pub nodes_evaluated: u32,
    /// Nodes that a constraint excluded.
    pub nodes_filtered: u32,
    /// Nodes in the job's pool.
    pub nodes_in_pool: u32,
    /// Ready nodes by datacenter.
    pub nodes_available: BTreeMap<Text, u32>,
    /// Nodes without room.
    pub nodes_exhausted: u32,
    /// Filtered nodes by class name.
    pub class_filtered: BTreeMap<Text, u32>,
    /// Filtered nodes by constraint.
    pub constraint_filtered: BTreeMap<Text, u32>,
    /// Exhausted nodes by class name.
    pub class_exhausted: BTreeMap<Text, u32>,
    /// Exhausted nodes by dimension.
    pub dimension_exhausted: BTreeMap<Text, u32>,
    /// Best nodes with their scores in millionths, best first, at most `limits::NODE_SCORES_MAX`.
    pub scores: Vec<NodeScore>,
    /// Further instances of the group that failed the same way.
    pub coalesced_failures: u32,
}

/// Scores of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeScore {
    pub node: NodeId,
    /// By component, millionths.
    pub parts: BTreeMap<Text, i32>,
    /// Mean, millionths.
    pub total: i32,
}

/// What a scheduling pass did with one group, in counts (Nomad's `DesiredUpdates`): what is wanted,
/// also when there is no room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct GroupAnnotation {
    /// New instances that replace nothing which runs. A node that a constraint filters is not among
    /// them.
    pub place: u32,
    /// New instances of a version that is not promoted yet, beside those that run, or of a system
    /// job in the place of some.
    pub canary: u32,
    /// Instances that end without a successor in the plan.
    pub stop: u32,
    /// Instances that move to another node.
    pub migrate: u32,
    /// Instances that take the new version as they run.
    pub in_place_update: u32,
    /// Instances that are stopped and started anew for the new version.
    pub destructive_update: u32,
    /// Instances that go on as they are.
    pub ignore: u32,
    /// Allocations of other jobs that are evicted.
    pub preemptions: u32,
}

/// An evaluation row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Evaluation {
    pub id: EvaluationId,
    pub job: JobKey,
    /// Priority; the job's unless given.
    pub priority: u16,
    /// Kind of the job, which selects the scheduler.
    pub kind: JobKind,
    pub trigger: Trigger,
    pub status: EvaluationStatus,
    pub status_description: Text,
    /// The node that a node update or a blocked evaluation of a per-node job is about.
    pub node: Option<NodeId>,
    /// Modify index of that node when the evaluation was made.
    pub node_modify_index: Index,
    /// Modify index of the job's spec when the evaluation was made.
    pub job_modify_index: Index,
    /// The evaluation must not run before this log time; 0: at once.
    pub wait_until: TimeMs,
    /// The follow-up evaluation.
    pub next: Option<EvaluationId>,
    /// The evaluation that this one follows.
    pub previous: Option<EvaluationId>,
    /// The blocked evaluation that this one created.
    pub blocked: Option<EvaluationId>,
    /// Groups that could not be placed.
    pub failed_groups: BTreeMap<Text, Metrics>,
    /// For a blocked evaluation: the classes it met, and whether each is eligible.
    pub class_eligibility: BTreeMap<ClassId, bool>,
    /// For a blocked evaluation: its constraints look at properties of single nodes, so a class
    /// tells nothing.
    pub escaped: bool,
    /// Instances not placed, by group.
    pub queued: BTreeMap<Text, u32>,
    /// What the pass that processed it wanted, by group; empty until then.
    pub annotations: BTreeMap<Text, GroupAnnotation>,
    /// Index of the snapshot on which the evaluation was last processed.
    pub snapshot_index: Index,
    /// The deployment that the evaluation belongs to, whether or not it is over: who follows the
    /// evaluation follows that one. Set when it is processed ([`State::deployment_to_follow`]), or
    /// by the deployment that makes it.
    ///
    /// [`State::deployment_to_follow`]: crate::State::deployment_to_follow
    pub deployment: Option<DeploymentId>,
    /// Failed allocations that this evaluation will reschedule.
    pub reschedules: Vec<AllocationId>,
    pub create_index: Index,
    /// Place among the evaluations that the entry at `create_index` made, from 1.
    pub order: u32,
    pub modify_index: Index,
    /// Log time of creation.
    pub created_at: TimeMs,
    /// Log time of the last change.
    pub modified_at: TimeMs,
}

impl Row for Evaluation {
    type Key = EvaluationId;

    fn key(&self) -> EvaluationId {
        self.id
    }
}

impl Evaluation {
    /// Whether it waits at `at`: for room, or for a later time. Nothing looks at its job by it
    /// meanwhile, so whatever ends the job, or what it waits for, ends it too. One that is pending
    /// without a time is processed, and ends by that.
    pub fn waits(&self, at: TimeMs) -> bool {
        match self.status {
            EvaluationStatus::Blocked => true,
            EvaluationStatus::Pending => self.wait_until > at,
            EvaluationStatus::Complete | EvaluationStatus::Failed | EvaluationStatus::Canceled => {
                false
            }
        }
    }

    /// A pending evaluation; indexes and times are set when it is stored.
    pub fn new(
        id: EvaluationId,
        job: JobKey,
        kind: JobKind,
        priority: u16,
        trigger: Trigger,
    ) -> Self {
        Self {
            id,
            job,
            priority,
            kind,
            trigger,
            status: EvaluationStatus::Pending,
            status_description: "".into(),
            node: None,
            node_modify_index: 0,
            job_modify_index: 0,
            wait_until: 0,
            next: None,
            previous: None,
            blocked: None,
            failed_groups: BTreeMap::new(),
            class_eligibility: BTreeMap::new(),
            escaped: false,
            queued: BTreeMap::new(),
            annotations: BTreeMap::new(),
            snapshot_index: 0,
            deployment: None,
            reschedules: Vec::new(),
            create_index: 0,
            order: 0,
            modify_index: 0,
            created_at: 0,
            modified_at: 0,
        }
    }
}
