//! Commands about jobs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::JobSpec;
use crate::id::{EvaluationId, Index, JobKey};

/// Registers a job, and its evaluation in the same entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegisterJob {
    /// The job.
    pub spec: Arc<JobSpec>,
    /// Compare-and-set: the job's modify index must be this (0: must not exist).
    pub enforce_index: Option<Index>,
    /// Id for the evaluation.
    pub evaluation: EvaluationId,
    /// Priority of the evaluation, the job's unless given.
    pub evaluation_priority: Option<u16>,
}

/// Stops a job, or forgets it with `purge`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeregisterJob {
    pub job: JobKey,
    /// Forget it.
    pub purge: bool,
    /// Id for the evaluation.
    pub evaluation: EvaluationId,
    /// Priority of the evaluation, the job's unless given.
    pub evaluation_priority: Option<u16>,
}

/// Makes an evaluation of a job as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvaluateJob {
    pub job: JobKey,
    /// Id for the evaluation.
    pub evaluation: EvaluationId,
}
