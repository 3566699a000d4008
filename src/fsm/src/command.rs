//! Commands: the only way state changes. A [`Proposal`] is what the log holds; a [`Reply`] is what its proposer gets.
//!
//! The number of a variant is its place, and a golden test pins every one. An unknown number does not decode, and an entry that does not decode
//! stops the server instead of being skipped.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    allocation::{ClientStatus, TaskState},
    digest::Digest,
    evaluation::EvaluationStatus,
    id::{AllocationId, ClassId, EvaluationId, Index, JobKey, NodeId, Text, TimeMs},
    job::{JobKind, JobSpec},
    node::{Drain, NodeDescription, SuspendReason},
    plan::{Plan, PlanVerdict},
    session::Request,
    state::{Namespace, NodePool, SchedulerConfiguration},
};

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Log time, stamped by the leader.
    pub at: TimeMs,
    /// Leadership term, for commands of leader services: an entry that lands in another term is refused.
    pub epoch: Option<u64>,
    /// The client's request, for client commands.
    pub request: Option<Request>,
    /// What to do.
    pub command: Command,
}

/// A change of one allocation as its agent reports it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientUpdate {
    /// Allocation.
    pub id: AllocationId,
    /// Rises with each report of this allocation.
    pub sequence: u64,
    /// Status.
    pub status: ClientStatus,
    /// In words.
    pub description: Text,
    /// By task name.
    pub tasks: BTreeMap<Text, TaskState>,
    /// The end was the infrastructure's fault (the driver or node failed, not the task): feeds the node's suspension.
    pub infrastructure_failure: bool,
}

/// Reports of one node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeReport {
    /// Node.
    pub node: NodeId,
    /// Incarnation that reports; another one's reports are ignored.
    pub incarnation: u64,
    /// Changes.
    pub updates: Vec<ClientUpdate>,
    /// One id per job that may need an evaluation, used as needed.
    pub evaluation_ids: Vec<EvaluationId>,
}

/// What a readiness check found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Readiness {
    /// Ready for work.
    Ok,
    /// Not yet.
    Retry,
    /// Not without a person.
    Fatal,
}

/// A change of an evaluation's status outside of plans.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvaluationUpdate {
    /// Evaluation.
    pub id: EvaluationId,
    /// New status.
    pub status: EvaluationStatus,
    /// In words.
    pub description: Text,
    /// A follow-up to create, not before a log time.
    pub follow_up: Option<(EvaluationId, TimeMs)>,
}

/// A state change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Registers a job, and its evaluation in the same entry.
    RegisterJob {
        /// The job.
        spec: Arc<JobSpec>,
        /// Compare-and-set: the job's modify index must be this (0: must not exist).
        enforce_index: Option<Index>,
        /// Id for the evaluation.
        evaluation: EvaluationId,
        /// Priority of the evaluation, the job's unless given.
        evaluation_priority: Option<u16>,
    },
    /// Stops a job, or forgets it with `purge`.
    DeregisterJob {
        /// The job.
        job: JobKey,
        /// Forget it.
        purge: bool,
        /// Id for the evaluation.
        evaluation: EvaluationId,
        /// Priority of the evaluation, the job's unless given.
        evaluation_priority: Option<u16>,
    },
    /// Makes an evaluation of a job as it is.
    EvaluateJob {
        /// The job.
        job: JobKey,
        /// Id for the evaluation.
        evaluation: EvaluationId,
    },
    /// Registers a node or refreshes what it says of itself.
    RegisterNode {
        /// Node.
        node: NodeId,
        /// Fixed at the first registration.
        secret: [u8; 16],
        /// Another one is another incarnation.
        identity: [u8; 16],
        /// What it says.
        description: Arc<NodeDescription>,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// A readiness report of a node that initializes.
    NodeReadiness {
        /// Node.
        node: NodeId,
        /// Incarnation that reports.
        incarnation: u64,
        /// What was found.
        readiness: Readiness,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Nodes that were not heard from, or are heard from again.
    NodeLiveness {
        /// Changes, in order.
        changes: Vec<LivenessChange>,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Takes a node out of service for a while.
    SuspendNode {
        /// Node.
        node: NodeId,
        /// Incarnation that it is about.
        incarnation: u64,
        /// Why.
        reason: SuspendReason,
    },
    /// Brings nodes back whose suspension is over.
    UnsuspendNodes {
        /// Nodes.
        nodes: Vec<NodeId>,
    },
    /// Allows or refuses new work: `offline` and `reinstate`. The node need not exist yet.
    SetEligibility {
        /// Node.
        node: NodeId,
        /// Allowed?
        eligible: bool,
        /// Who.
        by: Text,
        /// Why.
        reason: Text,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Starts, changes or ends a drain.
    SetDrain {
        /// Node.
        node: NodeId,
        /// The drain; none ends it.
        drain: Option<Drain>,
        /// When it ends: eligible again?
        mark_eligible: bool,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Marks allocations of draining nodes for migration, and ends drains that are done.
    AdvanceDrains {
        /// To migrate.
        migrate: Vec<AllocationId>,
        /// Nodes that are empty.
        complete: Vec<NodeId>,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Forgets a node that is down. With `force` (an operator's purge) also one that is not, and its allocations are lost.
    ReapNode {
        /// Node.
        node: NodeId,
        /// Incarnation that it is about; none: any.
        incarnation: Option<u64>,
        /// Without waiting for the grace.
        force: bool,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Makes evaluations for the jobs of a node.
    EvaluateNode {
        /// Node.
        node: NodeId,
        /// Ids for evaluations.
        evaluation_ids: Vec<EvaluationId>,
    },
    /// Reports of agents, many nodes in one entry.
    UpdateAllocations {
        /// By node.
        reports: Vec<NodeReport>,
    },
    /// A user's stop of one allocation: it is replaced elsewhere.
    StopAllocation {
        /// Allocation.
        id: AllocationId,
        /// Id for the evaluation.
        evaluation: EvaluationId,
    },
    /// Status changes of evaluations that no plan carries: failed, canceled.
    UpdateEvaluations {
        /// Changes.
        updates: Vec<EvaluationUpdate>,
    },
    /// Results of plans, in order.
    ApplyPlans {
        /// Plans as the applier left them.
        plans: Vec<Arc<Plan>>,
    },
    /// Changes the scheduler configuration.
    SetSchedulerConfiguration {
        /// The configuration.
        configuration: SchedulerConfiguration,
        /// Compare-and-set on its modify index.
        enforce_index: Option<Index>,
    },
    /// Creates or changes a node pool.
    UpsertNodePool(NodePool),
    /// Deletes a node pool that nothing uses.
    DeleteNodePool(Text),
    /// Creates or changes a namespace.
    UpsertNamespace(Namespace),
    /// Deletes a namespace that nothing uses.
    DeleteNamespace(Text),
    /// Lets log time pass on an idle cluster.
    Tick,
    /// Stores this replica's digest.
    MarkDigest,
    /// What the majority found for a mark.
    DigestVerdict {
        /// Index of the mark.
        mark: Index,
        /// The majority's digest.
        digest: Digest,
    },
    /// Forgets what has ended long ago. Each row is judged again by the same rules; what is in use again stays.
    CollectGarbage {
        /// What counts as long ago.
        cutoffs: Cutoffs,
        /// Dead jobs, first of all: what they leave behind is free after that.
        jobs: Vec<JobKey>,
        /// Ended allocations.
        allocations: Vec<AllocationId>,
        /// Final evaluations; one that still has an allocation stays.
        evaluations: Vec<EvaluationId>,
        /// Node classes without nodes, whose record of capacity gains goes.
        classes: Vec<ClassId>,
    },
}

/// Log times before which something must have come to its end to be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cutoffs {
    /// Evaluations and allocations of service and system jobs, and of jobs that are gone.
    pub evaluations: TimeMs,
    /// Evaluations and allocations of batch and sysbatch jobs.
    pub batch_evaluations: TimeMs,
    /// Jobs.
    pub jobs: TimeMs,
}

impl Cutoffs {
    /// For evaluations and allocations of a job of that kind; none: the job is gone.
    pub const fn of(&self, kind: Option<JobKind>) -> TimeMs {
        match kind {
            Some(JobKind::Batch | JobKind::Sysbatch) => self.batch_evaluations,
            Some(JobKind::Service | JobKind::System) | None => self.evaluations,
        }
    }
}

/// One change of a node's liveness as the leader saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LivenessChange {
    /// Node.
    pub node: NodeId,
    /// Incarnation that it is about.
    pub incarnation: u64,
    /// New liveness: `Down`, `Disconnected` or `Initializing`.
    pub liveness: crate::node::Liveness,
}

/// Why a command changed nothing. The same on every replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// The entry landed in another leadership term.
    #[error("the command belongs to leadership term {expected}, the log is in term {found}")]
    StaleEpoch {
        /// Term of the command.
        expected: u64,
        /// Term of the entry.
        found: u64,
    },
    /// The request is too old to know whether it was applied.
    #[error(
        "the request is older than the session window: its outcome is unknown, read before retrying"
    )]
    SessionExpired,
    /// The request id was used for something else.
    #[error("the idempotency key was used before for another request")]
    RequestIdReused,
    /// Compare-and-set failed. The text is Nomad's.
    #[error("Enforcing job modify index {asked}: {found}")]
    JobIndexConflict {
        /// Index that was asked for.
        asked: Index,
        /// What was found.
        found: IndexConflict,
    },
    /// No such thing.
    #[error("{what} not found")]
    NotFound {
        /// `job`, `node`, `alloc` …
        what: Text,
    },
    /// The thing is not as the command needs it.
    #[error("{0}")]
    Invalid(Text),
    /// Something still uses it.
    #[error("{0}")]
    InUse(Text),
    /// Registrations are turned off by the scheduler configuration.
    #[error("job registration is disabled by the scheduler configuration")]
    RegistrationDisabled,
    /// The secret is not that of the first registration.
    #[error("node secret does not match the one of the first registration")]
    SecretMismatch,
    /// The node's incarnation is another one.
    #[error("the report is from another incarnation of the node: register again")]
    StaleIncarnation,
    /// Compare-and-set of a configuration failed.
    #[error("the modify index is {found}, not {asked}")]
    IndexConflict {
        /// Index that was asked for.
        asked: Index,
        /// Index found.
        found: Index,
    },
}

/// What a job registration found instead of the index asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum IndexConflict {
    /// Asked for 0.
    #[error("job already exists")]
    Exists,
    /// Asked for an index.
    #[error("job does not exist")]
    Missing,
    /// Another index.
    #[error("job exists with conflicting job modify index: {0}")]
    Other(Index),
}

/// What became of a command.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Reply {
    /// Applied; nothing to say.
    Done,
    /// Nothing was changed.
    Rejected(Rejection),
    /// A job was registered, stopped or evaluated.
    Job {
        /// Its evaluation, if one was made.
        evaluation: Option<EvaluationId>,
        /// Modify index of the spec.
        job_modify_index: Index,
        /// The job was not there (a deregistration of an unknown job changes nothing and is no error).
        found: bool,
    },
    /// A node was changed.
    Node {
        /// Its incarnation.
        incarnation: u64,
        /// Its modify index.
        modify_index: Index,
        /// Evaluations that were made.
        evaluations: Vec<EvaluationId>,
    },
    /// Evaluations were made.
    Evaluations(Vec<EvaluationId>),
    /// Plans were judged, in order.
    Plans(Vec<PlanVerdict>),
    /// So many rows were forgotten.
    Collected(u64),
}
