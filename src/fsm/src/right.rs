//! What somebody needs to be allowed: a right for each command and each route. Nothing asks for rights yet.

/// What is done in a namespace, under Nomad's names. Those of reading belong to routes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Capability {
    SubmitJob,
    RegisterJob,
    DeregisterJob,
    PurgeJob,
    EvaluateJob,
    RevertJob,
    StableJob,
    TagJobVersion,
    DispatchJob,
    ForcePeriodicJob,
    ScaleJob,
    AllocLifecycle,
    PromoteDeployment,
    FailDeployment,
    PauseDeployment,
    SetAllocHealth,
}

/// What a caller needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Right {
    /// Nothing that a person or a program may have: servers and agents do it among themselves.
    Internal,
    /// Any of these in the namespace that it is about.
    Namespace(&'static [Capability]),
    /// `node:write`.
    NodeWrite,
    /// `write` on the node pool.
    NodePoolWrite,
    /// `delete` on the node pool.
    NodePoolDelete,
    /// `operator:write`.
    OperatorWrite,
    /// A management token.
    Management,
}
