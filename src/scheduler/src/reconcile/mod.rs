//! Compares what a job wants with its allocations: which stay, end, are replaced, or wait.

pub(crate) mod changes;
pub(crate) mod reschedule;
pub(crate) mod rollout;
pub(crate) mod update;
