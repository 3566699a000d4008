//! The input of a scheduling pass ([`Pass`]), and the job that the pass is about ([`Target`]).

use std::sync::Arc;

use fsm::{Allocation, Evaluation, Index, Job, JobKey, JobKind, JobSpec, State, TimeMs};

/// The input of one pass.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The snapshot to plan on.
    pub state: &'a State,
    /// The evaluation to process.
    pub evaluation: &'a Evaluation,
    /// Log time, ms; not before `state.at()`.
    pub now: TimeMs,
    /// Number of this pass for the evaluation, from 0. It is part of the seed of new ids.
    pub attempt: u32,
}

/// The snapshot is inconsistent, so nothing can be planned on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A job's current version is not in the versions table.
    #[error(
        "job {job} has no spec for its current version {version} (create index {create_index})"
    )]
    SpecMissing {
        /// Job.
        job: JobKey,
        /// The index at which the job was created.
        create_index: Index,
        /// The version that is missing.
        version: u64,
    },
}

/// Identifies a version of a job. A job that was purged and registered again counts its versions
/// from 0 again, so the number alone does not identify a version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct VersionId {
    /// The index at which the job was created.
    pub(crate) created: Index,
    pub(crate) number: u64,
}

impl VersionId {
    /// The version that an allocation runs.
    pub(crate) fn of(allocation: &Allocation) -> Self {
        Self { created: allocation.job_create_index, number: allocation.job_version }
    }

    /// Another version of the same job.
    pub(crate) fn with_number(self, number: u64) -> Self {
        Self { number, ..self }
    }

    /// Whether the allocation belongs to the same job (not to a purged one with its name) and runs
    /// another version of it.
    pub(crate) fn is_other_of_same_job(self, allocation: &Allocation) -> bool {
        let own = Self::of(allocation);
        own.created == self.created && own.number != self.number
    }
}

/// The job that is evaluated, and the spec to bring it to.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    /// `None`: the job was purged.
    pub(crate) job: Option<&'a Arc<Job>>,
    /// `None`: no instance may run. The job is purged or stopped, is a parent (periodic or
    /// parameterized; only its children run), or waits for a sibling to end.
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

    /// The kind of the job. If the job is gone, the kind that the evaluation carries.
    pub(crate) fn kind(&self, evaluation: &Evaluation) -> JobKind {
        self.job.map_or(evaluation.kind, |job| job.kind)
    }

    /// The current version of the job.
    pub(crate) fn version(&self) -> VersionId {
        let version = |job: &Arc<Job>| VersionId { created: job.create_index, number: job.version };
        self.job.map_or_else(VersionId::default, version)
    }
}
