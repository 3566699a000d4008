//! What a registration would do: the real scheduler on a copy of the state. Nothing is written.
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

/// Passes of one prediction: each places up to `fsm::limits::PLAN_PLACEMENTS_MAX` instances.
const PASSES_MAX: u32 = 64;

/// What a registration would do.
pub struct Found {
    pub key: JobKey,
    /// The job before; none: it was not there.
    pub before: Option<Version>,
    /// The job as it would be.
    pub after: Option<Version>,
    /// What would be done, by group.
    pub annotations: Annotations,
    /// What would find no room, by group.
    pub failed: BTreeMap<Text, Metrics>,
    /// Allocations that would be evicted, as they are now.
    pub preempted: Vec<Arc<Allocation>>,
    /// Evaluations that would wait: blocked ones, and those for later.
    pub waiting: Vec<Evaluation>,
    /// The state after it, up to where the passes came.
    pub state: State,
}

/// A job, and the version that it has.
#[derive(Clone, Debug)]
pub struct Version {
    pub job: Arc<Job>,
    pub row: Arc<JobVersion>,
}

/// It cannot be told.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum WhatIfError {
    /// The job would be refused.
    #[error("the job is refused")]
    Rejected(Rejection),
    /// The state cannot be scheduled on.
    #[error(transparent)]
    Schedule(#[from] ScheduleError),
}

/// What this registration would do at `now`.
pub fn registered(state: &State, now: TimeMs, command: RegisterJob) -> Result<Found, WhatIfError> {
    let RegisterJob { evaluation, .. } = command;
    let key = command.spec.key.clone();
    let before = version_of(state, &key);
    let mut trial = with_job(state, now, command).map_err(WhatIfError::Rejected)?;
    let after = version_of(&trial, &key);
    let spec = after.as_ref().map(|version| Arc::clone(&version.row.spec));
    if let Some(spec) = spec.as_ref().filter(|spec| spec.is_parent()) {
        trial = with_child(state, now, spec, evaluation).map_err(WhatIfError::Rejected)?;
    }
    let mut found = Found {
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

/// The state with a registration, as `apply` would take it.
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

/// The state with what a periodic or parameterized job runs: its children are it, without the block
/// that makes them. The child has an id that no job has.
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

fn version_of(state: &State, key: &JobKey) -> Option<Version> {
    let job = state.jobs().get(key)?;
    let row = state.job_versions().get(&(key.clone(), job.create_index, job.version))?;
    Some(Version { job: Arc::clone(job), row: Arc::clone(row) })
}

/// The evaluations that the run leaves: blocked ones and those for later. What finds no room may be
/// waited for by a blocked evaluation that is there already; the run makes no other then, and that
/// one stands for it.
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

/// Takes a plan that was full; whether there is another.
fn goes_on(trial: &mut State, plan: &Plan) -> bool {
    let tried = trial.try_plan(plan, &|_, _, _| Ok(Vec::new()));
    tried.is_ok_and(|tried| tried.dropped.is_empty() && !tried.plan.is_no_op())
}

/// Adds what a pass does; what stays as it is was counted by the first one.
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
