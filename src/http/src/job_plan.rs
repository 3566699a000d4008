//! `PUT /v1/job/ID/plan`: what registering a job would do. The real scheduler on a snapshot of the
//! server that is asked; nothing is written.
//!
//! ```text
//!  snapshot ─► clone ─► RegisterJob as `apply` does it ─► the scheduler's pass ─► counts, failures, preemptions
//!                                                           ▲        │ the plan is full
//!                                                           └────────┘
//! ```

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    Command, Evaluation, EvaluationId, EvaluationStatus, Index, Job, JobVersion, Metrics, Plan,
    Proposal, Rejection, Reply, State, Text, TimeMs,
    job::{JobSpec, RegisterJob},
    plan::Outcome,
    table::ChangeSet,
};
use scheduler::{Annotations, Memory, Pass};
use serde_json::{Map, Value, json};

use super::{
    answer::{Answer, Meta},
    body::Fields,
    call::Call,
    error::Error,
    job::job_of,
    job_warnings,
    jobs_bridge::{self, As},
    view,
};

/// Passes of one prediction: each places up to `fsm::limits::PLAN_PLACEMENTS_MAX` instances.
const PASSES_MAX: u32 = 64;
/// Rows for which a prediction counts, so that it has a thread and a turn of its own.
const ROWS: usize = usize::MAX;

/// What a registration would do.
struct Prediction {
    annotations: Annotations,
    failed: BTreeMap<Text, Metrics>,
    /// What would be evicted, as lists show it.
    preempted: Vec<Value>,
    /// See [`left_behind`].
    created: Vec<Value>,
    diff: Value,
    /// The job's index before.
    job_modify_index: Index,
}

pub(super) async fn plan(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let id = call.job_path()?.id.as_str();
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let with_diff = fields.flag("Diff")?;
    fields.flag("PolicyOverride")?;
    let job = job_of(call, &fields)?;
    if Fields::of(&job)?.text("ID")?.unwrap_or("") != id {
        return Err(Error::bad("Job ID does not match"));
    }
    let converted =
        jobs_bridge::convert(&job, call.now_s()).map_err(|errors| Error::bad(errors.join("\n")))?;
    let spec = Arc::new(converted.spec);
    let evaluation = EvaluationId(call.api.new_id());
    let command = RegisterJob {
        preserve_counts: fields.flag("PreserveCounts")?,
        preserve_resources: fields.flag("PreserveResources")?,
        ..RegisterJob::new(Arc::clone(&spec), evaluation)
    };
    let snapshot = call.read().await?;
    let index = snapshot.state.index();
    let meta = Meta::of(&snapshot, index);
    let state = snapshot.state;
    let mut warnings = converted.warnings;
    warnings.extend(job_warnings::of_cluster(&state, &spec));
    let now = call.api.now_ms();
    let prediction = call.in_turn(ROWS, move || predict(&state, now, command, with_diff)).await?;
    let failed: Map<_, _> = prediction
        .failed
        .iter()
        .map(|(name, metrics)| {
            (name.to_string(), view::placement_metrics(metrics, Some(&*spec), spec.group(name)))
        })
        .collect();
    let counts = prediction.annotations.iter();
    let desired: Map<_, _> =
        counts.map(|(name, counts)| (name.to_string(), view::desired(counts))).collect();
    let answer = json!({
        "Annotations": {
            "DesiredTGUpdates": desired,
            "PreemptedAllocs": view::list_or_null(prediction.preempted),
        },
        "CreatedEvals": view::list_or_null(prediction.created),
        "Diff": prediction.diff,
        "FailedTGAllocs": view::map_or_null(failed.into()),
        "Index": index,
        "JobModifyIndex": prediction.job_modify_index,
        "NextPeriodicLaunch": next_launch(&spec, call.now_s()),
        "Warnings": warnings.join("\n"),
    });
    call.answer(&answer, Some(meta))
}

/// When a periodic job would start if it were registered now.
fn next_launch(spec: &JobSpec, now_s: i64) -> Value {
    let next = spec.periodic.as_ref().filter(|block| block.enabled).and_then(|block| {
        let schedule = cron::Schedule::parse(&block.specs, &block.time_zone).ok()?;
        schedule.next_after(now_s)
    });
    next.map_or(Value::Null, |unix_s| calendar::DateTime::from_unix(unix_s).rfc3339().into())
}

fn predict(
    state: &State,
    now: TimeMs,
    command: RegisterJob,
    with_diff: bool,
) -> Result<Prediction, Error> {
    let RegisterJob { evaluation, .. } = command;
    let key = command.spec.key.clone();
    let before = current(state, &key);
    let job_modify_index = before.as_ref().map_or(0, |(job, _)| job.job_modify_index);
    let mut trial = registered(state, now, command)?;
    let after = current(&trial, &key);
    let mut prediction = Prediction {
        annotations: Annotations::default(),
        failed: BTreeMap::new(),
        preempted: Vec::new(),
        created: Vec::new(),
        diff: Value::Null,
        job_modify_index,
    };
    let spec = after.as_ref().map(|(_, version)| &*version.spec);
    if let Some(spec) = spec.filter(|spec| spec.is_parent()) {
        trial = child_of(state, now, spec, evaluation)?;
    }
    let mut memory = Memory::default();
    for attempt in 0..PASSES_MAX {
        let Some(row) = trial.evaluations().get(&evaluation).cloned() else { break };
        let pass = Pass { state: &trial, evaluation: &row, now: trial.at(), attempt };
        let plan = scheduler::schedule_with(&pass, &mut memory)
            .map_err(|error| Error::internal(error.to_string()))?;
        let evicted = plan.placements.iter().flat_map(|placement| &placement.preempts);
        let evicted = evicted.filter_map(|id| trial.allocations().get(id));
        prediction
            .preempted
            .extend(evicted.map(|row| view::allocation_stub(&trial, row, false, true)));
        let made = match &plan.outcome {
            Some(outcome) => outcome.annotations.clone(),
            None => scheduler::annotate(&trial, &plan, spec),
        };
        prediction.add(made, attempt == 0);
        if let Some(outcome) = plan.outcome {
            let left = left_behind(&trial, &row, &outcome);
            let shown = left.iter().map(|row| {
                let mut shown = view::evaluation_in(&trial, trial.at(), row, None);
                shown["JobID"] = (&*key.id).into();
                shown
            });
            prediction.created = shown.collect();
            prediction.failed = outcome.failed_groups;
            break;
        }
        if !goes_on(&mut trial, &plan) {
            break;
        }
    }
    if with_diff {
        let json = |found: &Current| jobs_bridge::job_json(&found.0, &found.1, As::Job);
        // A job that was stopped is compared with what it ran.
        let (old, new) = (before.as_ref().map(json), after.as_ref().map(json));
        let diff = jobspec::job_diff(old.as_ref(), new.as_ref());
        let replaces = |group: &str, task: &str| {
            let old = before.as_ref().map(|(_, version)| &*version.spec);
            let pair = old.zip(spec);
            pair.is_none_or(|(old, new)| scheduler::replaces_task(old, new, group, task))
        };
        prediction.diff = annotated(diff, &prediction.annotations, replaces);
    }
    Ok(prediction)
}

/// The state with what a periodic or parameterized job runs: its children are it, without the block
/// that makes them. The child has an id that no job has.
fn child_of(
    state: &State,
    now: TimeMs,
    parent: &JobSpec,
    evaluation: EvaluationId,
) -> Result<State, Error> {
    let mut spec = JobSpec { periodic: None, parameterized: None, ..parent.clone() };
    spec.key.id = format!("{}\u{0}", spec.key.id).into();
    Ok(registered(state, now, RegisterJob::new(Arc::new(spec), evaluation))?)
}

/// The state with a registration, as `apply` would take it.
pub(super) fn registered(
    state: &State,
    now: TimeMs,
    command: RegisterJob,
) -> Result<State, Rejection> {
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

/// A job, and the version that it has.
type Current = (Arc<Job>, Arc<JobVersion>);

fn current(state: &State, key: &fsm::JobKey) -> Option<Current> {
    let job = state.jobs().get(key)?;
    Some((Arc::clone(job), Arc::clone(view::current_version(state, job)?)))
}

impl Prediction {
    /// Adds what a pass does; what stays as it is was counted by the first one.
    fn add(&mut self, made: Annotations, is_first: bool) {
        for (name, counts) in made {
            let sum = self.annotations.entry(name).or_default();
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
}

/// Writes into the diff what each group and task comes to. `replaces` says whether the change of a
/// task of a group needs new instances.
fn annotated(
    mut diff: Value,
    annotations: &Annotations,
    replaces: impl Fn(&str, &str) -> bool,
) -> Value {
    for group in diff["TaskGroups"].as_array_mut().into_iter().flatten() {
        let name: Text = group["Name"].as_str().unwrap_or_default().into();
        let Some(counts) = annotations.get(&name) else { continue };
        let updates: Map<_, _> = [
            ("create", counts.place),
            ("canary", counts.canary),
            ("destroy", counts.stop),
            ("migrate", counts.migrate),
            ("in-place update", counts.in_place_update),
            ("create/destroy update", counts.destructive_update),
            ("ignore", counts.ignore),
        ]
        .into_iter()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_owned(), count.into()))
        .collect();
        group["Updates"] = updates.into();
        for field in group["Fields"].as_array_mut().into_iter().flatten() {
            let number =
                |field: &Value, name| field[name].as_str().unwrap_or("").parse().unwrap_or(0);
            let (old, new): (u64, u64) = (number(field, "Old"), number(field, "New"));
            if field["Name"] == "Count" && old != new {
                let forces = if new > old { "forces create" } else { "forces destroy" };
                field["Annotations"] = json!([forces]);
            }
        }
        let of_group = group["Type"].clone();
        for task in group["Tasks"].as_array_mut().into_iter().flatten() {
            let forces = match (of_group.as_str(), task["Type"].as_str()) {
                (Some("Added"), _) => "forces create",
                (Some("Deleted"), _) => "forces destroy",
                (_, Some("None")) => continue,
                _ if replaces(&name, task["Name"].as_str().unwrap_or_default()) => {
                    "forces create/destroy update"
                }
                _ => "forces in-place update",
            };
            task["Annotations"] = json!([forces]);
        }
    }
    diff
}
