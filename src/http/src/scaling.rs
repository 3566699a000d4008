//! Scaling: `/v1/job/ID/scale`, `/v1/scaling/policies` and `/v1/scaling/policy/ID`, in the form
//! that Nomad's autoscaler reads.

use fsm::{
    Command, ScalingPolicyId, State,
    job::{GroupScaling, ScaleJob, ScalingPolicy},
    limits::SCALING_TEXT_BYTES_MAX,
    table::TableId,
};
use serde_json::{Value, json};

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    job::job_reply,
    list::IdPrefix,
    route::JobPath,
    route::{Route, Subject, may},
    view,
};

const TABLES: &[TableId] = &[TableId::GroupScalings];
const STATUS_TABLES: &[TableId] = &[TableId::Jobs, TableId::GroupScalings, TableId::Allocations];

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read(
            "/v1/scaling/policies",
            Subject::Namespaces,
            may!(ListScalingPolicies, ListJobs),
            policies,
        ),
        Route::read(
            "/v1/scaling/policy/{id}",
            Subject::ScalingPolicy,
            may!(ReadScalingPolicy, ReadJob),
            policy,
        ),
        Route::read(
            "/v1/job/{job}/scale",
            Subject::Namespace,
            may!(ReadJob, ReadJobScaling),
            status,
        ),
        Route::write("/v1/job/{job}/scale", Subject::Namespace, may!(ScaleJob, SubmitJob), scale),
    ]
}

/// How the groups of a job stand, and what was done to their counts.
async fn status(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    let index = |state: &State| {
        let job = state.jobs().get(key)?;
        let allocations = state.allocations_of_job(key).map(|row| row.modify_index);
        let rows = state.scalings_of(key);
        let events = rows.iter().filter_map(|row| row.events.first()).map(|row| row.create_index);
        allocations.chain(events).chain([job.modify_index]).max()
    };
    let view = |state: &State| view::scale_status(state, state.jobs().get(key)?);
    call.item("job", STATUS_TABLES, index, view).await
}

/// Moves the count of a group, or records what an autoscaler says about it.
async fn scale(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let group = group(call, target, &fields)?;
    let count = match fields.value("Count") {
        None => None,
        Some(value) if value.as_i64().is_some_and(|count| count < 0) => {
            return Err(Error::bad("scaling action count can't be negative"));
        }
        Some(_) => {
            let count = fields.number("Count")?.unwrap_or_default();
            let too_large = |_| Error::bad(format!("Count: {count} is too large"));
            Some(u32::try_from(count).map_err(too_large)?)
        }
    };
    let meta = fields.object("Meta")?.and_then(|_| fields.value("Meta"));
    let enforce_index = fields.number("JobModifyIndex")?.filter(|index| *index > 0);
    let mut warnings = Vec::new();
    let message = kept_message(fields.text("Message")?.unwrap_or(""), &mut warnings);
    let meta_json = kept_meta(meta.map_or_else(String::new, Value::to_string), &mut warnings);
    let command = Command::from(ScaleJob {
        job: target.key(call)?,
        group: group.into(),
        count,
        enforce_index,
        message: message.into(),
        error: fields.flag("Error")?,
        meta_json: meta_json.into(),
        evaluation: call.evaluation_id(),
    });
    let written = call.write(command).await?;
    let mut answer = job_reply(&written);
    answer["Warnings"] = warnings.join("\n").into();
    call.answer_write(&written, answer)
}

/// The message as its event keeps it: one that is too long is cut. No scaling is lost for what is
/// said about it.
fn kept_message(text: &str, warnings: &mut Vec<String>) -> String {
    let bytes = text.len();
    if bytes <= SCALING_TEXT_BYTES_MAX {
        return text.to_owned();
    }
    let mark = format!("… (cut: it had {bytes} bytes)");
    let end = text.floor_char_boundary(SCALING_TEXT_BYTES_MAX.saturating_sub(mark.len()));
    warnings.push(format!(
        "Message has {bytes} bytes, of which {SCALING_TEXT_BYTES_MAX} are kept: it was cut"
    ));
    format!("{}{mark}", text.get(..end).unwrap_or_default())
}

/// The meta as its event keeps it: half of an object is none, so a note takes the place of one that
/// is too long.
fn kept_meta(json: String, warnings: &mut Vec<String>) -> String {
    let bytes = json.len();
    if bytes <= SCALING_TEXT_BYTES_MAX {
        return json;
    }
    let why = format!("Meta has {bytes} bytes, at most {SCALING_TEXT_BYTES_MAX} are kept");
    warnings.push(format!("{why}: it was left out"));
    json!({ "quorate.left_out": why }).to_string()
}

/// The group that the body names. It may name job and namespace too, if they are those of the
/// request.
fn group<'a>(call: &Call, target: &JobPath, fields: &Fields<'a>) -> Result<&'a str, Error> {
    let named = fields.object("Target")?;
    let of = |name: &str| -> Result<&'a str, Error> {
        let Some(named) = &named else { return Ok("") };
        Ok(named.text(name)?.unwrap_or(""))
    };
    if ![target.id.as_str(), ""].contains(&of("Job")?) {
        return Err(Error::bad("job ID in payload did not match URL"));
    }
    if ![&*call.namespace()?, ""].contains(&of("Namespace")?) {
        return Err(Error::bad("namespace in payload did not match the request"));
    }
    match of("Group")? {
        "" => Err(Error::bad("missing task group name for scaling action")),
        group => Ok(group),
    }
}

fn with_policy(row: &GroupScaling) -> Option<(&GroupScaling, &ScalingPolicy)> {
    Some((row, row.policy.as_ref()?))
}

async fn policies(call: Call) -> Result<Answer, Error> {
    let namespaces = call.namespaces();
    let prefix = IdPrefix::of(&call)?;
    let job = call.parameter("job").filter(|job| !job.is_empty()).map(str::to_owned);
    let kind = call.parameter("type").unwrap_or("").to_owned();
    call.list(TABLES, move |state, list| {
        let rows = state.group_scalings().iter().filter_map(|row| with_policy(row));
        let rows = rows.filter(|(row, policy)| {
            namespaces.contains(&row.job.namespace)
                && prefix.matches(&policy.id.0)
                && job.as_ref().is_none_or(|job| **job == *row.job.id)
                && policy.scaling.kind.starts_with(&kind)
        });
        list.fill_stubs(
            rows.collect(),
            |(_, policy)| policy.id,
            |(row, policy)| view::scaling_policy_stub(row, policy),
            |(row, policy)| view::scaling_policy(row, policy),
        )
    })
    .await
}

async fn policy(call: Call) -> Result<Answer, Error> {
    const WHAT: &str = "policy";
    // Nomad knows nothing else of an id that is none.
    let id: ScalingPolicyId = call.segment(2).parse().map_err(|_| Error::not_found(WHAT))?;
    let find = move |state: &State| {
        let mut rows = state.group_scalings().iter();
        rows.find(|row| row.policy.as_ref().is_some_and(|policy| policy.id == id)).cloned()
    };
    let index = |state: &State| Some(with_policy(&*find(state)?)?.1.modify_index);
    let view = |state: &State| {
        let row = find(state)?;
        let (row, policy) = with_policy(&row)?;
        Some(view::scaling_policy(row, policy))
    };
    call.item(WHAT, TABLES, index, view).await
}
