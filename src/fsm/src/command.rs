//! Commands: the only way state changes. A [`Proposal`] is what the log holds; a [`Reply`] is what
//! its proposer gets.
//!
//! The number of a variant is its place, and a golden test pins every one. An unknown number does
//! not decode, and an entry that does not decode stops the server instead of being skipped.

use serde::{Deserialize, Serialize};

use crate::{
    allocation::{ExpireRuns, StopAllocation, UpdateAllocations},
    capacity::{DecideCapacity, ExpireRequirements, MoveMembers, SetRequirements},
    deployment::{
        ExpireDeployments, FailDeployment, PauseDeployment, PromoteDeployment, SetAllocationHealth,
    },
    digest::DigestVerdict,
    evaluation::{DeleteEvaluations, UpdateEvaluations},
    gc::CollectGarbage,
    id::{EvaluationId, Index, Text, TimeMs},
    job::{
        DeregisterJob, DispatchJob, EvaluateJob, ForcePeriodic, LaunchPeriodic, MarkJobVersion,
        RegisterJob, ScaleJob, StopChildren,
    },
    node::{
        AdvanceDrains, EndMassLoss, EndSuspensions, EvaluateNode, NodeLiveness, NodeReadiness,
        NodeShortage, ReapNode, RegisterNode, SetDrain, SetEligibility, SuspendLateNodes,
        SuspendNode, UnsuspendNode,
    },
    plan::{ApplyPlans, PlanVerdict},
    pool::{
        DeleteInstancePool, DestroyOutcome, InstanceOutcome, LimitPool, NoteInstance, NoteProvider,
        NoteUnhelped, ObserveInstances, PauseInstancePool, RequestInstances, SetInstanceBehavior,
        ShutDownInstance, UpsertInstancePool,
    },
    session::Request,
    settings::{
        DeleteNamespace, DeleteNodePool, SetSchedulerConfiguration, UpsertNamespace, UpsertNodePool,
    },
};

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Proposal {
    /// Log time, stamped by the leader.
    pub at: TimeMs,
    /// Leadership term, for commands of leader services: an entry that lands in another term is
    /// refused.
    pub epoch: Option<u64>,
    /// The client's request, for client commands.
    pub request: Option<Request>,
    pub command: Command,
}

/// A state change.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    RegisterJob(RegisterJob),
    DeregisterJob(DeregisterJob),
    EvaluateJob(EvaluateJob),
    RegisterNode(RegisterNode),
    NodeReadiness(NodeReadiness),
    NodeShortage(NodeShortage),
    NodeLiveness(NodeLiveness),
    SuspendNode(SuspendNode),
    UnsuspendNode(UnsuspendNode),
    SuspendLateNodes(SuspendLateNodes),
    EndSuspensions(EndSuspensions),
    EndMassLoss(EndMassLoss),
    SetEligibility(SetEligibility),
    SetDrain(SetDrain),
    AdvanceDrains(AdvanceDrains),
    ReapNode(ReapNode),
    EvaluateNode(EvaluateNode),
    UpdateAllocations(UpdateAllocations),
    StopAllocation(StopAllocation),
    UpdateEvaluations(UpdateEvaluations),
    ApplyPlans(ApplyPlans),
    SetSchedulerConfiguration(SetSchedulerConfiguration),
    UpsertNodePool(UpsertNodePool),
    DeleteNodePool(DeleteNodePool),
    UpsertNamespace(UpsertNamespace),
    DeleteNamespace(DeleteNamespace),
    /// Lets log time pass on an idle cluster.
    Tick,
    /// Stores this replica's digest.
    MarkDigest,
    DigestVerdict(DigestVerdict),
    CollectGarbage(CollectGarbage),
    UpsertInstancePool(UpsertInstancePool),
    DeleteInstancePool(DeleteInstancePool),
    PauseInstancePool(PauseInstancePool),
    RequestInstances(RequestInstances),
    InstanceOutcome(InstanceOutcome),
    ObserveInstances(ObserveInstances),
    SetInstanceBehavior(SetInstanceBehavior),
    ShutDownInstance(ShutDownInstance),
    DestroyOutcome(DestroyOutcome),
    NoteInstance(NoteInstance),
    NoteUnhelped(NoteUnhelped),
    LimitPool(LimitPool),
    SetRequirements(SetRequirements),
    ExpireRequirements(ExpireRequirements),
    DecideCapacity(DecideCapacity),
    MoveMembers(MoveMembers),
    MarkJobVersion(MarkJobVersion),
    PromoteDeployment(PromoteDeployment),
    FailDeployment(FailDeployment),
    PauseDeployment(PauseDeployment),
    SetAllocationHealth(SetAllocationHealth),
    ExpireDeployments(ExpireDeployments),
    DeleteEvaluations(DeleteEvaluations),
    DispatchJob(DispatchJob),
    ScaleJob(ScaleJob),
    ExpireRuns(ExpireRuns),
    StopChildren(StopChildren),
    LaunchPeriodic(LaunchPeriodic),
    ForcePeriodic(ForcePeriodic),
    NoteProvider(NoteProvider),
}

macro_rules! from_structs {
    ($($name:ident),* $(,)?) => {$(
        impl From<$name> for Command {
            fn from(command: $name) -> Self {
                Self::$name(command)
            }
        }
    )*};
}
from_structs! {
    RegisterJob,
    DeregisterJob,
    EvaluateJob,
    RegisterNode,
    NodeReadiness,
    NodeShortage,
    NodeLiveness,
    SuspendNode,
    UnsuspendNode,
    SuspendLateNodes,
    EndSuspensions,
    EndMassLoss,
    SetEligibility,
    SetDrain,
    AdvanceDrains,
    ReapNode,
    EvaluateNode,
    UpdateAllocations,
    StopAllocation,
    UpdateEvaluations,
    ApplyPlans,
    SetSchedulerConfiguration,
    UpsertNodePool,
    DeleteNodePool,
    UpsertNamespace,
    DeleteNamespace,
    DigestVerdict,
    CollectGarbage,
    UpsertInstancePool,
    DeleteInstancePool,
    PauseInstancePool,
    RequestInstances,
    InstanceOutcome,
    ObserveInstances,
    SetInstanceBehavior,
    ShutDownInstance,
    DestroyOutcome,
    NoteInstance,
    NoteUnhelped,
    LimitPool,
    SetRequirements,
    ExpireRequirements,
    DecideCapacity,
    MoveMembers,
    MarkJobVersion,
    PromoteDeployment,
    FailDeployment,
    PauseDeployment,
    SetAllocationHealth,
    ExpireDeployments,
    DeleteEvaluations,
    DispatchJob,
    ScaleJob,
    ExpireRuns,
    StopChildren,
    LaunchPeriodic,
    ForcePeriodic,
    NoteProvider,
}

/// Why a command changed nothing. The same on every replica.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Rejection {
    /// The entry landed in another leadership term.
    #[error("the command belongs to leadership term {expected}, the log is in term {found}")]
    StaleEpoch { expected: u64, found: u64 },
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
        found: Index,
    },
    /// A source of requirements has said something newer.
    #[error(
        "source \"{name}\" has said something newer: epoch {epoch}, sequence {seq}; a lower epoch is \
         taken when that word has expired"
    )]
    StaleRequirements {
        /// Of the source.
        name: Text,
        /// The newest that is known.
        epoch: u64,
        seq: u64,
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
    /// The command changed nothing.
    Rejected(Rejection),
    /// A job was registered, stopped or evaluated.
    Job {
        /// Its evaluation, if one was made.
        evaluation: Option<EvaluationId>,
        /// Modify index of the spec.
        job_modify_index: Index,
        /// The job was not there (a deregistration of an unknown job changes nothing and is no
        /// error).
        found: bool,
    },
    /// A node was changed.
    Node {
        incarnation: u64,
        modify_index: Index,
        /// Evaluations that were made.
        evaluations: Vec<EvaluationId>,
    },
    Evaluations(Vec<EvaluationId>),
    /// Plans were judged, in order.
    Plans(Vec<PlanVerdict>),
    /// So many rows were forgotten.
    Collected(u64),
    /// The words of several sources, in order; none: taken.
    Requirements(Vec<Option<Rejection>>),
    /// A deployment was changed.
    Deployment {
        /// Its job's evaluation, if one was made.
        evaluation: Option<EvaluationId>,
        /// The version that the job goes back to.
        reverted_to: Option<u64>,
    },
    /// Each dispatch was answered, in order; empty: it was, when the request came first.
    Dispatched(Vec<DispatchAnswer>),
}

impl Reply {
    /// The evaluations that were made; those of children are in the answers of their dispatches.
    pub fn evaluations(&self) -> &[EvaluationId] {
        match self {
            Self::Job { evaluation, .. } | Self::Deployment { evaluation, .. } => {
                evaluation.as_slice()
            }
            Self::Node { evaluations, .. } | Self::Evaluations(evaluations) => evaluations,
            Self::Done
            | Self::Rejected(_)
            | Self::Plans(_)
            | Self::Collected(_)
            | Self::Requirements(_)
            | Self::Dispatched(_) => &[],
        }
    }
}

/// What became of a dispatch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum DispatchAnswer {
    /// There is a child for it.
    Child {
        /// What its id has after its parent's and a slash.
        name: Text,
        /// Its first evaluation; none: it waits, or was there before.
        evaluation: Option<EvaluationId>,
        create_index: Index,
        /// It was there before: the token is known.
        found: bool,
    },
    /// It made nothing.
    Refused(Rejection),
}
