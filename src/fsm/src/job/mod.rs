//! Jobs: what users ask for, and its status.

mod children;
mod commands;
mod dispatch;
mod launch;
mod row;
mod scaling;
pub(crate) mod transitions;

#[cfg(test)]
mod tests;

pub(crate) use self::children::NewChild;
pub use self::{
    children::Children,
    commands::{
        DeregisterJob, DispatchJob, Dispatched, EvaluateJob, ForcePeriodic, JobCommand, Launch,
        LaunchPeriodic, MarkJobVersion, RegisterJob, StopChildren, VersionMark,
    },
    launch::launch_id,
    row::{
        Affinity, Constraint, DelayFunction, Dispatch, GroupSummary, HealthCheck, Job, JobKind,
        JobSpec, JobStatus, JobUpdate, JobVersion, Launches, LogConfig, MigrateStrategy, Network,
        Parameterized, Periodic, PortAsk, ReschedulePolicy, RestartPolicy, SIGNALS,
        SIGNALS_ATTRIBUTE, Spread, SpreadTarget, Submission, Task, TaskGroup, TaskResources,
        UpdateStrategy, VersionTag, Waiting,
    },
    scaling::{GroupScaling, ScaleJob, Scaling, ScalingEvent, ScalingPolicy, scaling_policy_id},
};
pub use crate::bounds::check_payload_file;
