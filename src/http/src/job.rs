//! Jobs: `/v1/jobs…`, `/v1/job/ID…` and `/v1/validate/job`.
//!
//! A job id may contain slashes, encoded or not. So the verb is the text behind the last slash of
//! the path as received, if that is a known verb.

use std::sync::Arc;

use fsm::{
    Command, EvaluationId, Extent, JobKey, Rejection, Reply, State, Text,
    job::{DeregisterJob, EvaluateJob, ForcePeriodic, RegisterJob, Submission},
    limits::{LIST_MAX, SUBMISSION_BYTES_MAX},
    table::TableId,
};
use serde_json::{Value, json};
use wire::api::{ReadMode, Written};

use super::{
    answer::Answer,
    blocking::tables_index,
    body::Fields,
    call::{Call, Namespaces},
    dispatch,
    error::Error,
    job_plan, job_versions, job_warnings, jobs_bridge,
    route::{Route, Subject, may},
    view,
};

const JOB_TABLES: &[TableId] = &[TableId::Jobs];
const JOB_AND_ALLOCATION_TABLES: &[TableId] = &[TableId::Jobs, TableId::Allocations];
/// The region of jobs that name none; in a request it stands, as in Nomad, for the region of
/// whoever is asked.
const REGION_ANY: &str = "global";

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/jobs", Subject::Namespaces, may!(ListJobs), list),
        Route::write("/v1/jobs", Subject::Namespace, may!(SubmitJob, RegisterJob), register),
        Route::write("/v1/jobs/parse", Subject::Namespace, may!(ParseJob, SubmitJob), parse),
        Route::write("/v1/validate/job", Subject::Namespace, may!(ReadJob), validate),
        Route::read("/v1/job/{job}", Subject::Namespace, may!(ReadJob), get_job),
        Route::write(
            "/v1/job/{job}",
            Subject::Namespace,
            may!(SubmitJob, RegisterJob),
            register_at,
        ),
        // Which of them depends on the query: the command's row decides.
        Route::delete(
            "/v1/job/{job}",
            Subject::Namespace,
            may!(SubmitJob, DeregisterJob, PurgeJob),
            deregister,
        ),
        Route::read("/v1/job/{job}/allocations", Subject::Namespace, may!(ReadJob), allocations),
        Route::read("/v1/job/{job}/evaluations", Subject::Namespace, may!(ReadJob), evaluations),
        Route::read("/v1/job/{job}/summary", Subject::Namespace, may!(ReadJob), summary),
        Route::read("/v1/job/{job}/submission", Subject::Namespace, may!(ReadJob), submission),
        Route::write(
            "/v1/job/{job}/evaluate",
            Subject::Namespace,
            may!(SubmitJob, EvaluateJob),
            evaluate,
        ),
        Route::write(
            "/v1/job/{job}/plan",
            Subject::Namespace,
            may!(SubmitJob, PlanJob),
            job_plan::plan,
        ),
        Route::write(
            "/v1/job/{job}/periodic/force",
            Subject::Namespace,
            may!(SubmitJob, ForcePeriodicJob),
            force,
        ),
    ]
}

async fn list(call: Call) -> Result<Answer, Error> {
    let namespaces = call.namespaces();
    let prefix = call.parameter("prefix").unwrap_or("").to_owned();
    let with_meta = call.flag("meta")?;
    call.list(JOB_AND_ALLOCATION_TABLES, move |state, list| {
        let rows: Vec<_> = match &namespaces {
            Namespaces::One(namespace) => {
                let first = JobKey::new(namespace.clone(), prefix.as_str());
                // No id with this prefix stands behind it: it ends in the last of all characters.
                let last = JobKey::new(namespace.clone(), format!("{prefix}{}", char::MAX));
                list.page_of(state.jobs(), first..=last)
            }
            Namespaces::All => {
                state.jobs().iter().filter(|job| job.key.id.starts_with(&prefix)).collect()
            }
        };
        list.fill_stubs(
            rows,
            |job| job.key.clone(),
            |job| view::job_stub(state, job, with_meta).unwrap_or(Value::Null),
            |job| view::job(state, job).unwrap_or(Value::Null),
        )
    })
    .await
}

async fn get_job(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    // The place of a child among those that wait changes with theirs, so its answer is as old as
    // the table, and one of its parent's children wakes who waits for it.
    let index = |state: &State| {
        let job = state.jobs().get(key)?;
        Some(if job.waiting.is_some() { tables_index(state, JOB_TABLES) } else { job.modify_index })
    };
    let extent = |state: &State| match state.jobs().get(key) {
        None => Extent::Nothing,
        Some(job) if job.waiting.is_none() => Extent::Whole,
        Some(job) => match job.key.parent_key().map(|parent| Extent::job(state, &parent)) {
            Some(extent @ Extent::Job(..)) => extent,
            Some(_) | None => Extent::Whole,
        },
    };
    let is_pretty = call.flag("pretty")?;
    let body = |state: &State| {
        let Some(job) = state.jobs().get(key) else { return Ok(None) };
        let Some(version) = view::current_version(state, job) else { return Ok(None) };
        if job.waiting.is_some() || is_pretty {
            return view::job(state, job).map(|job| call.body_of(&job)).transpose();
        }
        let make = || call.body_of(&jobs_bridge::job_json(job, version, jobs_bridge::As::Job));
        call.job_bodies.body(job, version, make).map(Some)
    };
    call.item_within("job", JOB_TABLES, (index, extent), body).await
}

async fn summary(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    let view = |state: &State| view::job_summary(state, state.jobs().get(key)?);
    let extent = |state: &State| Extent::job(state, key);
    call.derived("job", JOB_AND_ALLOCATION_TABLES, extent, view).await
}

/// What a version was made of; the current one unless the query names another.
async fn submission(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    let asked = call.number("version")?;
    let find = move |state: &State| {
        let job = state.jobs().get(key)?;
        let version = (key.clone(), job.create_index, asked.unwrap_or(job.version));
        state.job_versions().get(&version).cloned()
    };
    let view = |state: &State| view::submission(&*find(state)?);
    let index = |state: &State| Some(state.jobs().get(key)?.modify_index);
    call.item("job source", job_versions::TABLES, index, view).await
}

/// Allocations of the current incarnation; with `all` those of older ones too.
async fn allocations(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = call.job_path()?.key(call)?;
    let all = call.flag("all")?;
    let with_resources = call.flag("resources")?;
    let watched = key.clone();
    let extent = move |state: &State| Extent::allocations_of_job(state, &watched);
    call.list_within(&[TableId::Allocations], extent, move |state, list| {
        let current = state.jobs().get(&key).map(|job| job.create_index);
        let rows: Vec<_> = state
            .allocations_of_job(&key)
            .filter(|a| all || current.is_none_or(|current| a.job_create_index == current))
            .collect();
        list.fill_stubs(
            rows,
            |a| (a.create_index, a.id),
            |a| view::allocation_stub(state, a, with_resources, true),
            |a| view::allocation(state, a),
        )
    })
    .await
}

/// Evaluations of the current incarnation; with `all` those of older ones too.
async fn evaluations(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = call.job_path()?.key(call)?;
    let all = call.flag("all")?;
    let watched = key.clone();
    let now = call.clock();
    let extent = move |state: &State| Extent::evaluations_of_job(state, &watched);
    call.list_within(&[TableId::Evaluations], extent, move |state, list| {
        let current = state.jobs().get(&key).map(|job| job.create_index);
        let rows: Vec<_> = state
            .evaluations_of_job(&key)
            .filter(|e| all || current.is_none_or(|current| e.create_index >= current))
            .collect();
        list.fill(rows, |e| (e.create_index, e.id), |e| view::evaluation_in(state, now(), e, None))
    })
    .await
}

async fn register(call: Call) -> Result<Answer, Error> {
    register_as(&call, None).await
}

/// The job in the path.
async fn register_at(call: Call) -> Result<Answer, Error> {
    register_as(&call, Some(&call.job_path()?.id)).await
}

async fn register_as(call: &Call, id_in_path: Option<&str>) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let enforce_index = if fields.flag("EnforceIndex")? {
        Some(fields.number("JobModifyIndex")?.unwrap_or(0))
    } else {
        fields.number("JobModifyIndex")?;
        None
    };
    let evaluation_priority = priority(fields.number("EvalPriority")?)?;
    let job = job_of(call, &fields)?;
    let id = Fields::of(&job)?.text("ID")?.unwrap_or("");
    if id_in_path.is_some_and(|path| path != id) {
        return Err(Error::bad("Job ID does not match name in request path"));
    }
    let converted =
        jobs_bridge::convert(&job, call.now_s()).map_err(|errors| Error::bad(errors.join("\n")))?;
    let (submission, dropped) = submission_of(&fields)?;
    let mut warnings = converted.warnings;
    warnings.extend(dropped);
    let spec = Arc::new(converted.spec);
    let command = Command::from(RegisterJob {
        enforce_index,
        evaluation_priority,
        now_s: call.now_s(),
        submission: submission.map(Arc::new),
        preserve_counts: fields.flag("PreserveCounts")?,
        preserve_resources: fields.flag("PreserveResources")?,
        ..RegisterJob::new(Arc::clone(&spec), call.evaluation_id())
    });
    let written = call.write(command).await?;
    // The job is registered: that this server has no state to look at takes nothing of that back.
    if let Ok(snapshot) =
        call.api.read(&call.caller, ReadMode::Stale, 0, call.options.timeout).await
    {
        warnings.extend(job_warnings::of_cluster(&snapshot.state, &spec));
    }
    let mut answer = job_reply(&written);
    answer["Warnings"] = warnings.join("\n").into();
    call.answer_write(&written, answer)
}

/// What a job was made of, as the client sends it; or why it is not kept.
fn submission_of(fields: &Fields<'_>) -> Result<(Option<Submission>, Option<String>), Error> {
    let Some(block) = fields.object("Submission")? else { return Ok((None, None)) };
    let text = |name| block.text(name).map(|text| Text::from(text.unwrap_or_default()));
    let flags = block.text_map("VariableFlags")?;
    let submission = Submission {
        source: text("Source")?,
        format: text("Format")?,
        variable_flags: flags.into_iter().map(|(key, value)| (key.into(), value.into())).collect(),
        variables: text("Variables")?,
    };
    let (bytes, max) = (submission.bytes(), SUBMISSION_BYTES_MAX);
    if bytes > max || submission.variable_flags.len() > LIST_MAX {
        let why = format!(
            "job source size of {bytes} bytes exceeds maximum of {max} bytes and will be discarded"
        );
        return Ok((None, Some(why)));
    }
    Ok(((!submission.source.is_empty()).then_some(submission), None))
}

/// The job of a request's body. The namespace of the query goes over that of the body, and that
/// over the job's, as in Nomad. A job of another region is none of this server's.
pub(super) fn job_of(call: &Call, fields: &Fields<'_>) -> Result<Value, Error> {
    let job = fields.object("Job")?.ok_or_else(|| Error::bad("Job must be specified"))?;
    let region = job.text("Region")?.unwrap_or("");
    if !["", REGION_ANY, call.options.region.as_str()].contains(&region) {
        return Err(Error::no_region());
    }
    let of_query = call.parameter("namespace");
    let named = [of_query, fields.text("Namespace")?, job.text("Namespace")?];
    let namespace = named.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or("default");
    if namespace == "*" {
        return Err(Error::bad("namespace * is only allowed on lists"));
    }
    let mut value = fields.value("Job").cloned().unwrap_or(Value::Null);
    if let Value::Object(object) = &mut value {
        object.retain(|name, _| !name.eq_ignore_ascii_case("Namespace"));
        object.insert("Namespace".to_owned(), namespace.into());
    }
    Ok(value)
}

fn priority(given: Option<u64>) -> Result<Option<u16>, Error> {
    match given {
        None | Some(0) => Ok(None),
        Some(priority) => match u16::try_from(priority) {
            Ok(priority) if priority <= fsm::limits::JOB_PRIORITY_MAX => Ok(Some(priority)),
            Ok(_) | Err(_) => Err(Error::bad(format!(
                "evaluation priority must be 1 to {}, not {priority}",
                fsm::limits::JOB_PRIORITY_MAX
            ))),
        },
    }
}

pub(super) fn job_reply(written: &Written) -> Value {
    let evaluation = written.reply.evaluations().first().copied();
    let job_modify_index = if let Reply::Job { job_modify_index, .. } = &written.reply {
        *job_modify_index
    } else {
        written.index
    };
    let made = evaluation.map(tracing::field::display);
    tracing::debug!(evaluation = made, index = written.index, "a job is evaluated");
    json!({
        "EvalID": evaluation.map_or_else(String::new, |id: EvaluationId| id.to_string()),
        "EvalCreateIndex": if evaluation.is_some() { written.index } else { 0 },
        "JobModifyIndex": job_modify_index,
    })
}

async fn evaluate(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    if fields.text("JobID")?.is_some_and(|id| !id.is_empty() && id != target.id) {
        return Err(Error::bad("JobID not same as job in request path"));
    }
    let options = fields.object("EvalOptions")?;
    let force = options.map(|options| options.flag("ForceReschedule")).transpose()?;
    let command = Command::from(EvaluateJob {
        job: target.key(call)?,
        force_reschedule: force.unwrap_or(false),
        evaluation: call.evaluation_id(),
    });
    let written = call.write(command).await?;
    call.answer_write(&written, job_reply(&written))
}

/// Starts a periodic job now, beside its due times.
async fn force(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let due_s = call.now_s();
    let evaluation = call.evaluation_id();
    let command = ForcePeriodic { job: target.key(call)?, due_s, evaluation };
    let written = call.write(command.into()).await?;
    call.answer_write(&written, job_reply(&written))
}

async fn deregister(call: Call) -> Result<Answer, Error> {
    // One region: what is global is here.
    call.flag("global")?;
    let key = call.job_path()?.key(&call)?;
    let stop = DeregisterJob {
        job: key,
        purge: call.flag("purge")?,
        evaluation: call.evaluation_id(),
        evaluation_priority: priority(call.number("eval_priority")?)?,
        no_shutdown_delay: call.flag("no_shutdown_delay")?,
    };
    if call.flag("children")? {
        dispatch::stop_children(&call, &stop).await?;
    }
    let written = call.write(stop.into()).await?;
    let mut answer = job_reply(&written);
    answer["VolumeEvalID"] = "".into();
    answer["VolumeEvalIndex"] = 0.into();
    call.answer_write(&written, answer)
}

async fn parse(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let with_defaults = fields.flag("Canonicalize")?;
    if fields.text("Variables")?.is_some_and(|variables| !variables.trim().is_empty()) {
        return Err(Error::bad("Variables are not supported by this server's parser"));
    }
    let source = fields.text("JobHCL")?.unwrap_or("");
    if source.trim().is_empty() {
        return Err(Error::bad("Job spec is empty"));
    }
    call.answer(&jobs_bridge::parse(source, with_defaults)?, None)
}

async fn validate(call: Call) -> Result<Answer, Error> {
    let body = call.json_required()?;
    let job = job_of(&call, &Fields::of(&body)?)?;
    let now_s = call.now_s();
    let (errors, warnings, is_checked) = match jobs_bridge::convert(&job, now_s) {
        Ok(converted) => {
            let spec = Arc::new(converted.spec);
            let state = call.read().await?.state;
            let mut warnings = converted.warnings;
            warnings.extend(job_warnings::of_cluster(&state, &spec));
            let mut tasks = spec.groups.iter().flat_map(|group| &group.tasks);
            let is_checked = tasks.all(|task| jobspec::driver_is_checked(&task.driver));
            let command = RegisterJob::new(spec, EvaluationId(call.api.new_id()));
            let errors = match scheduler::what_if::with_job(&state, call.api.now_ms(), command) {
                // That nothing may be registered now says nothing about the job.
                Ok(_) | Err(Rejection::RegistrationDisabled) => Vec::new(),
                Err(rejection) => vec![rejection.to_string()],
            };
            (errors, warnings, is_checked)
        }
        Err(errors) => (errors, Vec::new(), false),
    };
    let answer = json!({
        "DriverConfigValidated": is_checked,
        "Error": errors.join("\n"),
        "ValidationErrors": errors,
        "Warnings": warnings.join("\n"),
    });
    call.answer(&answer, None)
}
