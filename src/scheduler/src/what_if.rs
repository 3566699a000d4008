//! Predicts what registering a job would do (`job plan`). It runs the real scheduler on a copy of
//! the state. Nothing is written.
//!
//! ```text
//!  state ─► clone ─► RegisterJob as `apply` does it ─► a pass ─► counts, failures, evictions
//!                                                       ▲  │ the plan is full
//!                                                       └──┘
//! ```

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    Allocation, Command, Evaluation, EvaluationId, EvaluationStatus, Job, JobKey, JobSpec,
    JobVersion, Metrics, Plan, Proposal, Rejection, Reply, State, Text, TimeMs, job::RegisterJob,
    plan::Outcome, table::ChangeSet,
};

use crate::{
    Memory, annotate,
    explain::annotate::Annotations,
    pass::{Pass, ScheduleError},
    schedule_with,
};

/// How many passes one prediction runs at most. Each pass places up to
/// `fsm::limits::PLAN_PLACEMENTS_MAX` instances.
const PASSES_MAX: u32 = 64;

/// The result of a prediction.
pub struct Prediction {
    pub key: JobKey,
    /// The job as it is now. `None`: it is not registered yet.
    pub before: Option<VersionedJob>,
    /// The job as it would be after the registration.
    pub after: Option<VersionedJob>,
    /// Counts of placements, stops, updates and so on, by group.
    pub annotations: Annotations,
    /// Why instances could not be placed, by group.
    pub failed: BTreeMap<Text, Metrics>,
    /// The allocations that would be evicted, in their present state.
    pub preempted: Vec<Arc<Allocation>>,
    /// The evaluations that would remain open: blocked ones, and follow-ups that wait for a time.
    pub waiting: Vec<Evaluation>,
    /// The state after the passes that were run. Incomplete if the prediction stopped early.
    pub state: State,
}

/// A job with the row of its current version.
#[derive(Clone, Debug)]
pub struct VersionedJob {
    pub job: Arc<Job>,
    pub row: Arc<JobVersion>,
}

/// Why there is no prediction.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The registration itself would be rejected.
    #[error("the job is refused")]
    Rejected(Rejection),
    /// The state is inconsistent.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// Predicts what this registration would do at log time `now`, ms.
pub fn predict(
    state: &State,
    now: TimeMs,
    command: RegisterJob,
) -> Result<Prediction, WhatIfError> {
    let RegisterJob { evaluation, .. } = command;
    let key = command.spec.key.clone();
    let before = version_of(state, &key);
    let mut trial = with_job(state, now, command).map_err(WhatIfError::Rejected)?;
    let after = version_of(&trial, &key);
    let spec = after.as_ref().map(|version| Arc::clone(&version.row.spec));
    if let Some(spec) = spec.as_ref().filter(|spec| spec.is_parent()) {
        trial = with_child(state, now, spec, evaluation).map_err(WhatIfError::Rejected)?;
    }
    let mut found = Prediction {
        key,
        before,
        after,
        annotations: Annotations::default(),
        failed: BTreeMap::new(),
        preempted: Vec::new(),
        waiting: Vec::new(),
        state: trial,
    };
    let mut memory = Memory::default();
    for attempt in 0..PASSES_MAX {
        let Some(row) = found.state.evaluations().get(&evaluation).cloned() else { break };
        let pass = Pass { state: &found.state, evaluation: &row, now: found.state.at(), attempt };
        let plan = schedule_with(&pass, &mut memory)?;
        let evicted = plan.placements.iter().flat_map(|placement| &placement.preempts);
        let evicted = evicted.filter_map(|id| found.state.allocations().get(id));
        found.preempted.extend(evicted.cloned());
        let made = match &plan.outcome {
            Some(outcome) => outcome.annotations.clone(),
            None => annotate(&found.state, &plan, spec.as_deref()),
        };
        add(&mut found.annotations, made, attempt == 0);
        if let Some(outcome) = plan.outcome {
            found.waiting = left_behind(&found.state, &row, &outcome);
            found.failed = outcome.failed_groups;
            break;
        }
        if !goes_on(&mut found.state, &plan) {
            break;
        }
    }
    Ok(found)
}

/// A copy of the state to which the registration has been applied by the same `apply` that servers
/// run.
pub fn with_job(state: &State, now: TimeMs, command: RegisterJob) -> Result<State, Rejection> {
    let mut trial = state.clone();
    let command = Command::from(command);
    let proposal = Proposal { at: now, epoch: None, request: None, command };
    let index = state.index().saturating_add(1);
    let applied = trial.apply(index, state.term(), &proposal, &mut ChangeSet::trial());
    if let Reply::Rejected(rejection) = applied.reply {
        return Err(rejection);
    }
    Ok(trial)
}

/// A copy of the state with one child of a periodic or parameterized job, because the parent itself
/// runs nothing. A child's spec is that of its parent without the `periodic` and `parameterized`
/// blocks. The child's id contains a NUL, so it cannot collide with a real job.
fn with_child(
    state: &State,
    now: TimeMs,
    parent: &JobSpec,
    evaluation: EvaluationId,
) -> Result<State, Rejection> {
    let mut spec = JobSpec { periodic: None, parameterized: None, ..parent.clone() };
    spec.key.id = format!("{}\u{0}", spec.key.id).into();
    with_job(state, now, RegisterJob::new(Arc::new(spec), evaluation))
}

fn version_of(state: &State, key: &JobKey) -> Option<VersionedJob> {
    let job = state.jobs().get(key)?;
    let row = state.job_versions().get(&(key.clone(), job.create_index, job.version))?;
    Some(VersionedJob { job: Arc::clone(job), row: Arc::clone(row) })
}

/// The evaluations that would remain open after the prediction. If groups failed but the pass made
/// no blocked evaluation, the job already has one that waits for the same resources. In that case
/// the existing blocked evaluations are returned as well.
fn left_behind(state: &State, own: &Evaluation, outcome: &Outcome) -> Vec<Evaluation> {
    let mut left = outcome.evaluations.clone();
    let is_blocked = |row: &Evaluation| row.status == EvaluationStatus::Blocked;
    if !outcome.failed_groups.is_empty() && !left.iter().any(is_blocked) {
        let open = state.job_index(&own.job).into_iter().flat_map(|index| &index.open_evaluations);
        let rows = open.filter_map(|id| state.evaluations().get(id));
        left.extend(
            rows.filter(|row| row.id != own.id && is_blocked(row)).map(|row| (**row).clone()),
        );
    }
    left
}

/// Applies a plan that reached its bound. Returns whether another pass would make progress.
fn goes_on(trial: &mut State, plan: &Plan) -> bool {
    let tried = trial.try_plan(plan, &|_, _, _| Ok(Vec::new()));
    tried.is_ok_and(|tried| tried.dropped.is_empty() && !tried.plan.is_no_op())
}

/// Adds the counts of one pass to the sums. `ignore` is taken from the first pass only, because
/// later passes would count the same instances again.
fn add(sums: &mut Annotations, made: Annotations, is_first: bool) {
    for (name, counts) in made {
        let sum = sums.entry(name).or_default();
        sum.place += counts.place;
        sum.canary += counts.canary;
        sum.stop += counts.stop;
        sum.migrate += counts.migrate;
        sum.in_place_update += counts.in_place_update;
        sum.destructive_update += counts.destructive_update;
        sum.preemptions += counts.preemptions;
        if is_first {
            sum.ignore = counts.ignore;
        }
    }
}
