//! `PUT /v1/job/ID/plan`: predicts what registering a job would do. It runs the real scheduler on a
//! snapshot of this server. Nothing is written.
//!
//! `scheduler::what_if` makes the prediction. This module converts it to Nomad's form.

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    Allocation, EvaluationId, Index, Metrics, State, Text, TimeMs,
    job::{JobSpec, RegisterJob},
};
use scheduler::{
    Annotations,
    what_if::{self, VersionedJob},
};
use serde_json::{Map, Value, json};
use shapes::{AllocationStub, JobPlan, KnownAllocation, PlanAnnotations};

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

/// The number of rows that a prediction counts as for `Call::in_turn`: always enough for a thread
/// and a permit of its own.
const ROWS: usize = usize::MAX;

/// The predicted effect of a registration, in the API's form.
struct PlanAnswer {
    annotations: Annotations,
    failed: BTreeMap<Text, Metrics>,
    /// Allocations that would be evicted, as lists show them.
    preempted: Vec<AllocationStub>,
    /// Evaluations that would remain open, as lists show them.
    created: Vec<shapes::Evaluation>,
    diff: Value,
    /// The job's modify index before the registration; 0 if it does not exist.
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
    let failed: BTreeMap<_, _> = prediction
        .failed
        .iter()
        .map(|(name, metrics)| {
            (name.to_string(), view::placement_metrics(metrics, Some(&*spec), spec.group(name)))
        })
        .collect();
    let preempted = prediction.preempted.into_iter().map(|row| KnownAllocation::Stub(row.into()));
    let answer = JobPlan {
        annotations: PlanAnnotations {
            desired_tg_updates: view::desired_updates(&prediction.annotations),
            preempted_allocs: view::some_unless_empty(preempted.collect()),
        },
        created_evals: view::some_unless_empty(prediction.created),
        diff: prediction.diff,
        failed_tg_allocs: (!failed.is_empty()).then_some(failed),
        index,
        job_modify_index: prediction.job_modify_index,
        next_periodic_launch: next_launch(&spec, call.now_s()),
        warnings: warnings.join("\n"),
    };
    call.answer(&answer, Some(meta))
}

/// When a periodic job would next start if it were registered now.
fn next_launch(spec: &JobSpec, now_s: i64) -> Option<String> {
    let next = spec.periodic.as_ref().filter(|block| block.enabled).and_then(|block| {
        let schedule = cron::Schedule::parse(&block.specs, &block.time_zone).ok()?;
        schedule.next_after(now_s)
    });
    next.map(|unix_s| calendar::DateTime::from_unix(unix_s).rfc3339())
}

fn predict(
    state: &State,
    now: TimeMs,
    command: RegisterJob,
    with_diff: bool,
) -> Result<PlanAnswer, Error> {
    let found = what_if::predict(state, now, command)?;
    let stub = |row: &Arc<Allocation>| view::allocation_stub(&found.state, row, false, true);
    let preempted = found.preempted.iter().map(stub).collect();
    let created = found.waiting.iter().map(|row| {
        let shown = view::evaluation_in(&found.state, found.state.at(), row, None);
        shapes::Evaluation { job_id: found.key.id.to_string(), ..shown }
    });
    let created = created.collect();
    let mut diff = Value::Null;
    if with_diff {
        let json =
            |version: &VersionedJob| jobs_bridge::job_json(&version.job, &version.row, As::Job);
        // A stopped job is compared with the version that it ran last.
        let (old, new) = (found.before.as_ref().map(json), found.after.as_ref().map(json));
        let made = jobspec::job_diff(old.as_ref(), new.as_ref());
        let replaces = |group: &str, task: &str| {
            let pair = found.before.as_ref().zip(found.after.as_ref());
            pair.is_none_or(|(old, new)| {
                scheduler::replaces_task(&old.row.spec, &new.row.spec, group, task)
            })
        };
        diff = annotated(made, &found.annotations, replaces);
    }
    let job_modify_index = found.before.map_or(0, |version| version.job.job_modify_index);
    let (annotations, failed) = (found.annotations, found.failed);
    Ok(PlanAnswer { annotations, failed, preempted, created, diff, job_modify_index })
}

/// Adds to the diff the effect on each group and task. `replaces` says whether the change of a
/// group's task needs a destructive update.
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
