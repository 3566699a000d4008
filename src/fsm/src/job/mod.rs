//! Jobs: what users ask for, and its status.

mod commands;
mod row;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{
    commands::{DeregisterJob, EvaluateJob, MarkJobVersion, RegisterJob, VersionMark},
    row::{
        Affinity, Constraint, DelayFunction, GroupSummary, HealthCheck, Job, JobKind, JobSpec,
        JobStatus, JobVersion, LogConfig, MigrateStrategy, Network, Parameterized, PortAsk,
        ReschedulePolicy, RestartPolicy, Spread, SpreadTarget, Submission, Task, TaskGroup,
        TaskResources, UpdateStrategy, VersionTag,
    },
};
