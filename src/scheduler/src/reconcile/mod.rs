//! What is wanted of a job against what is there: what stays, ends, is replaced, or waits.

pub(crate) mod changes;
pub(crate) mod reschedule;
pub(crate) mod rollout;
pub(crate) mod update;
