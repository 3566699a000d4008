//! The parts of a plan, and the answer to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use crate::{
    allocation::{ClientStatus, RescheduleEvent},
    deployment::NewDeployment,
    evaluation::{Evaluation, EvaluationStatus, GroupAnnotation, Metrics},
    id::{AllocationId, EvaluationId, Index, JobKey, NodeId, Text},
    resources::{Dimension, Port},
};

/// A new allocation. Resources follow from the job version's group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Placement {
    /// Id of the allocation to be.
    pub id: AllocationId,
    pub group: Text,
    /// Number in the name.
    pub name_index: u32,
    /// It is a canary of the deployment of the plan's version.
    pub canary: bool,
    /// The version that it runs when that is not the plan's: of the allocation it replaces.
    pub version: Option<u64>,
    pub node: NodeId,
    /// Ports; empty from the worker, filled in by the applier.
    pub ports: Vec<Port>,
    /// The allocation it replaces.
    pub previous: Option<AllocationId>,
    /// Allocations of jobs with a lower priority on this node that are evicted for it, at most
    /// `limits::PREEMPTED_MAX`. They go only together with this placement.
    pub preempts: Vec<AllocationId>,
    /// Past reschedules, this one included.
    pub reschedules: Vec<RescheduleEvent>,
    /// How the scheduler chose the node.
    pub metrics: Option<Arc<Metrics>>,
}

/// An allocation of the plan's job that must end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Stop {
    pub id: AllocationId,
    pub description: Text,
    /// Client status decided by the servers: `Lost` when the node is gone.
    pub client: Option<ClientStatus>,
}

/// An allocation that stays as it is and moves to the plan's job version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InPlace {
    pub id: AllocationId,
}

/// A failed allocation that an evaluation of this plan will reschedule later.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FollowUp {
    pub id: AllocationId,
    /// One of `Outcome::evaluations`.
    pub evaluation: EvaluationId,
}

/// The evaluation's result, taken if the whole plan is applied.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// New status; `Blocked` re-blocks a woken blocked evaluation.
    pub status: EvaluationStatus,
    /// In words.
    pub description: Text,
    /// Instances not placed, by group.
    pub queued: BTreeMap<Text, u32>,
    /// Of these the groups in which an instance of the plan's version found no room; in the others
    /// only older ones did not.
    pub waiting: BTreeSet<Text>,
    /// Groups that could not be placed.
    pub failed_groups: BTreeMap<Text, Metrics>,
    /// What the pass wanted, by group.
    pub annotations: BTreeMap<Text, GroupAnnotation>,
    /// Class eligibility and escape, when the evaluation itself is re-blocked.
    pub class_eligibility: BTreeMap<crate::id::ClassId, bool>,
    /// See [`Evaluation::escaped`].
    pub escaped: bool,
    /// Evaluations made by this one: blocked ones and follow-ups.
    pub evaluations: Vec<Evaluation>,
}

/// A proposal of a scheduler.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// Evaluation that is processed.
    pub evaluation: EvaluationId,
    pub job: JobKey,
    /// Incarnation of the job; 0 when the job was gone in the snapshot.
    pub job_create_index: Index,
    /// Version of the job that placements and in-place updates run.
    pub job_version: u64,
    pub snapshot_index: Index,
    /// Priority in the plan queue.
    pub priority: u16,
    /// If a part is dropped, the whole plan is.
    pub all_at_once: bool,
    /// Allocations to end.
    pub stops: Vec<Stop>,
    /// Allocations that move to the new version as they are.
    pub in_place: Vec<InPlace>,
    /// Failed allocations that a follow-up will reschedule.
    pub follow_ups: Vec<FollowUp>,
    /// New allocations.
    pub placements: Vec<Placement>,
    /// The deployment that begins with this plan. It is taken also when a part of the plan is
    /// dropped.
    pub deployment: Option<NewDeployment>,
    /// Taken if nothing of the plan was dropped. `None` once the applier has dropped a part.
    pub outcome: Option<Outcome>,
}

impl Plan {
    /// Whether the plan changes no allocation and begins no deployment.
    pub fn is_no_op(&self) -> bool {
        self.stops.is_empty()
            && self.in_place.is_empty()
            && self.follow_ups.is_empty()
            && self.placements.is_empty()
            && self.deployment.is_none()
    }
}

/// Why a placement or a whole plan was not taken.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, thiserror::Error,
)]
pub enum DropReason {
    /// The evaluation is not there or is final.
    #[error("the evaluation is not open")]
    EvaluationClosed,
    /// A later plan of the job was applied already, or its deployment has failed since.
    #[error("the plan is older than the job's last plan, or than the failure of its deployment")]
    StalePlan,
    /// The job is gone, stopped, or of another version.
    #[error("the job changed")]
    JobChanged,
    /// The node does not exist.
    #[error("node does not exist")]
    NodeMissing,
    /// The node is not in service, or not of the job's pool and datacenters.
    #[error("node is not schedulable for the job")]
    NodeUnschedulable,
    /// The node lacks room in this dimension.
    #[error("node is full: {}", .0.name())]
    NodeFull(Dimension),
    /// The id exists already, or the name is live.
    #[error("an allocation of this name or id is live")]
    NameTaken,
    /// An allocation to preempt is gone or is not to be evicted for this job.
    #[error("an allocation to preempt is gone or may not be preempted")]
    NotPreemptible,
    /// The allocation to be changed is not there any more or is final.
    #[error("the allocation to change is gone")]
    AllocationGone,
    /// The deployment no longer takes canaries.
    #[error("the deployment takes no canaries any more")]
    NoCanaries,
    /// Another part of an all-at-once plan was dropped.
    #[error("part of an all-at-once plan was dropped")]
    AllAtOnce,
}

/// The verdict on a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PlanVerdict {
    /// Evaluation of the plan.
    pub evaluation: EvaluationId,
    /// The plan as a whole was refused.
    pub refused: Option<DropReason>,
    /// Placements and in-place updates that were dropped.
    pub dropped: Vec<(AllocationId, DropReason)>,
    /// The outcome was taken: the evaluation needs no other plan.
    pub outcome_taken: bool,
    /// The worker waits for this index before it plans again; 0 when everything was applied.
    pub refresh_index: Index,
}
