//! Commands about jobs.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{JobSpec, ScaleJob, Submission};
use crate::{
    command::commands,
    id::{EvaluationId, Index, JobKey, Text},
    right::{Capability, Right},
};

commands! {
    /// What changes jobs and their children.
    JobCommand in Job:
    // command       applied by         sent by  needs                             makes  fresh
    RegisterJob      register_job       Clients  (RegisterJob::right)              work   [evaluation now_s];
    DeregisterJob    deregister_job     Clients  (DeregisterJob::right)            -      [evaluation];
    EvaluateJob      evaluate_job       Clients  [SubmitJob EvaluateJob]           work   [evaluation];
    MarkJobVersion   mark_job_version   Clients  (MarkJobVersion::right)           -      [];
    DispatchJob      dispatch_job       Clients  [DispatchJob]                     work   (DispatchJob::clear_fresh);
    ScaleJob         scale_job          Clients  [SubmitJob ScaleJob]              work   [evaluation];
    // Nomad lacks it: it ends children as a deregistration of each would.
    StopChildren     stop_children      Clients  [SubmitJob DeregisterJob]         -      [evaluation_ids];
    LaunchPeriodic   launch_periodic    Leader   Internal                          -      [];
    ForcePeriodic    force_periodic     Clients  [SubmitJob ForcePeriodicJob]      work   [evaluation due_s];
}

/// Registers a job and creates its evaluation in the same entry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RegisterJob {
    pub spec: Arc<JobSpec>,
    /// Compare-and-set: the job's modify index must be this (0: must not exist).
    pub enforce_index: Option<Index>,
    pub evaluation: EvaluationId,
    /// Priority of the evaluation; the job's unless given.
    pub evaluation_priority: Option<u16>,
    /// What the server that took it knows as log time, Unix seconds; 0: not given. From then on due
    /// times of a periodic job count.
    pub now_s: i64,
    /// What the spec was made of, kept with the version.
    pub submission: Option<Arc<Submission>>,
    /// Groups that the job has already keep their counts.
    pub preserve_counts: bool,
    /// Tasks that the job has already keep their resources.
    pub preserve_resources: bool,
    /// The new version is a stop: nothing of it runs.
    pub stop: bool,
    /// The version of the job that this one runs again. A child gets versions in no other way: it
    /// is made by its parent.
    pub reverts_to: Option<u64>,
}

impl RegisterJob {
    fn right(&self) -> Right {
        Right::Namespace(match self.reverts_to {
            Some(_) => &[Capability::SubmitJob, Capability::RevertJob],
            None => &[Capability::SubmitJob, Capability::RegisterJob],
        })
    }

    /// A registration that asks for nothing special.
    pub fn new(spec: Arc<JobSpec>, evaluation: EvaluationId) -> Self {
        Self {
            spec,
            enforce_index: None,
            evaluation,
            evaluation_priority: None,
            now_s: 0,
            submission: None,
            preserve_counts: false,
            preserve_resources: false,
            stop: false,
            reverts_to: None,
        }
    }
}

/// Stops a job; with `purge`, also deletes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeregisterJob {
    pub job: JobKey,
    pub purge: bool,
    pub evaluation: EvaluationId,
    /// Priority of the evaluation; the job's unless given.
    pub evaluation_priority: Option<u16>,
    /// Its allocations end without their shutdown delays.
    pub no_shutdown_delay: bool,
}

impl DeregisterJob {
    fn right(&self) -> Right {
        Right::Namespace(if self.purge {
            &[Capability::SubmitJob, Capability::PurgeJob]
        } else {
            &[Capability::SubmitJob, Capability::DeregisterJob]
        })
    }
}

/// Stops children of a job; with `purge`, also deletes them.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct StopChildren {
    pub parent: JobKey,
    /// What is none of its children, or gone, is passed over.
    pub children: Vec<JobKey>,
    pub purge: bool,
    pub evaluation_ids: Vec<EvaluationId>,
    /// As of [`DeregisterJob`], for each of them.
    pub evaluation_priority: Option<u16>,
    /// As of [`DeregisterJob`], for each of them.
    pub no_shutdown_delay: bool,
}

/// Makes children of a parameterized job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DispatchJob {
    pub parent: JobKey,
    /// In the order in which they start, when not all may at once.
    pub children: Vec<Dispatched>,
}

impl DispatchJob {
    fn clear_fresh(&mut self) {
        for child in &mut self.children {
            child.id = Text::default();
            child.evaluation = EvaluationId::default();
        }
    }
}

/// One dispatch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dispatched {
    /// Id of the child, should one be made.
    pub id: Text,
    pub payload: Vec<u8>,
    /// Over the parent's.
    pub meta: BTreeMap<Text, Text>,
    /// The parent's unless given.
    pub priority: Option<u16>,
    /// The same dispatch, sent again, has the same token; empty: it is not sent again.
    pub token: Text,
    pub evaluation: EvaluationId,
}

/// Starts children of periodic jobs, each for a due time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LaunchPeriodic {
    /// In the order in which they were due.
    pub launches: Vec<Launch>,
}

/// One launch.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Launch {
    pub job: JobKey,
    /// The spec from which the due time follows: [`super::Job::job_modify_index`].
    pub job_modify_index: Index,
    /// The last due time that the proposer knew of: [`super::Launches::last_due_s`]. A job that has
    /// another one by now was launched meanwhile, so `missed` counts too many.
    pub last_due_s: i64,
    /// Unix seconds.
    pub due_s: i64,
    /// Due times before it that passed without a launch, and are not counted yet.
    pub missed: u64,
    pub evaluation: EvaluationId,
}

/// Starts a child of a periodic job that is not due.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ForcePeriodic {
    pub job: JobKey,
    /// The second after which the child is called, Unix time.
    pub due_s: i64,
    pub evaluation: EvaluationId,
}

/// Creates an evaluation of an unchanged job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvaluateJob {
    pub job: JobKey,
    /// Failed allocations are replaced at once, whatever delay or bound they wait for.
    pub force_reschedule: bool,
    pub evaluation: EvaluationId,
}

/// Marks a version of a job, which stays the same version.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MarkJobVersion {
    pub job: JobKey,
    pub mark: VersionMark,
}

impl MarkJobVersion {
    fn right(&self) -> Right {
        Right::Namespace(match self.mark {
            VersionMark::Stable { .. } => &[Capability::SubmitJob, Capability::StableJob],
            VersionMark::Tag { .. } | VersionMark::Untag { .. } => {
                &[Capability::SubmitJob, Capability::TagJobVersion]
            }
        })
    }
}

/// What a version is marked with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VersionMark {
    /// It is known to work, or no longer.
    Stable { version: u64, stable: bool },
    /// It gets a name, or the description of its name changes; none: the current version.
    Tag { version: Option<u64>, name: Text, description: Text },
    /// Its name is taken off.
    Untag { name: Text },
}
