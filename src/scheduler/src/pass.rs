//! One pass: what it looks at, and the job that it is about.

use std::sync::Arc;

use fsm::{Allocation, Evaluation, Index, Job, JobKey, JobKind, JobSpec, State, TimeMs};

/// What one pass looks at.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The snapshot.
    pub state: &'a State,
    /// The evaluation to process.
    pub evaluation: &'a Evaluation,
    /// Log time, not before `state.at()`.
    pub now: TimeMs,
    /// Number of the pass, from 0; part of the seed of ids.
    pub attempt: u32,
}

/// The snapshot cannot be scheduled on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A job's current version is not in the versions table.
    #[error(
        "job {job} has no spec for its current version {version} (create index {create_index})"
    )]
    SpecMissing {
        /// Job.
        job: JobKey,
        /// Its incarnation.
        create_index: Index,
        /// The version that is missing.
        version: u64,
    },
}

/// A version of a job. A job that was purged and is registered again counts from 0 once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VersionId {
    /// The index at which the job was created.
    pub(crate) created: Index,
    pub(crate) number: u64,
}

impl VersionId {
    /// That of an allocation.
    pub(crate) fn of(allocation: &Allocation) -> Self {
        Self { created: allocation.job_create_index, number: allocation.job_version }
    }

    /// Another version of the same job.
    pub(crate) fn with_number(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Whether the allocation is of the same job, in another version.
    pub(crate) fn is_other_of_same_job(self, allocation: &Allocation) -> bool {
        let own = Self::of(allocation);
        own.created == self.created && own.number != self.number
    }
}

/// The job that is evaluated, and what it wants.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// None: purged.
    pub(crate) job: Option<&'a Arc<Job>>,
    /// None: nothing is wanted, because the job is gone, stopped or a template.
    pub(crate) spec: Option<&'a Arc<JobSpec>>,
}

impl<'a> Target<'a> {
    pub(crate) fn of(pass: &Pass<'a>) -> Result<Self, ScheduleError> {
        let Some(job) = pass.state.jobs().get(&pass.evaluation.job) else {
            return Ok(Self { job: None, spec: None });
        };
        if job.stop || !job.is_scheduled() {
            return Ok(Self { job: Some(job), spec: None });
        }
        let spec = pass.state.current_spec(job).ok_or_else(|| ScheduleError::SpecMissing {
            job: job.key.clone(),
            create_index: job.create_index,
            version: job.version,
        })?;
        Ok(Self { job: Some(job), spec: Some(spec) })
    }

    /// The scheduler: the job's, or the evaluation's when the job is gone.
    pub(crate) fn kind(&self, evaluation: &Evaluation) -> JobKind {
        self.job.map_or(evaluation.kind, |job| job.kind)
    }

    /// The current version of the job.
    pub(crate) fn version(&self) -> VersionId {
        let version = |job: &Arc<Job>| VersionId { created: job.create_index, number: job.version };
        self.job.map_or_else(VersionId::default, version)
    }
}
