//! Versions of a job: their list with what differs between them, going back to one, marking one as
//! stable or with a tag.

use std::sync::Arc;

use fsm::{
    Command, Index, JobKey, JobVersion, State,
    job::{MarkJobVersion, RegisterJob, VersionMark},
    table::TableId,
};
use serde_json::{Value, json};
use wire::api::Written;

use super::{
    answer::Answer,
    body::Fields,
    call::Call,
    error::Error,
    job::job_reply,
    route::JobPath,
    route::{Route, Subject, may},
    view,
};

pub(super) const TABLES: &[TableId] = &[TableId::Jobs, TableId::JobVersions];

/// What each version is compared with.
enum Against {
    /// The one before it.
    Previous,
    Version(u64),
    Tag(String),
}

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::read("/v1/job/{job}/versions", Subject::Namespace, may!(ReadJob), list),
        Route::write(
            "/v1/job/{job}/revert",
            Subject::Namespace,
            may!(SubmitJob, RevertJob),
            revert,
        ),
        Route::write(
            "/v1/job/{job}/stable",
            Subject::Namespace,
            may!(SubmitJob, StableJob),
            stable,
        ),
        Route::write(
            "/v1/job/{job}/versions/{tag}/tag",
            Subject::Namespace,
            may!(SubmitJob, TagJobVersion),
            tag,
        ),
        Route::delete(
            "/v1/job/{job}/versions/{tag}/tag",
            Subject::Namespace,
            may!(SubmitJob, TagJobVersion),
            untag,
        ),
    ]
}

/// Versions kept, newest first. With `diffs`, how each differs from the one before it, or all from
/// `diff_version` or `diff_tag`.
async fn list(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let key = &call.job_path()?.key(call)?;
    let tag = call.parameter("diff_tag").filter(|tag| !tag.is_empty());
    let against = match (tag, call.number("diff_version")?) {
        (Some(_), Some(_)) => {
            return Err(Error::bad("diff_tag and diff_version exclude each other"));
        }
        (Some(tag), None) => Against::Tag(tag.to_owned()),
        (None, Some(version)) => Against::Version(version),
        (None, None) => Against::Previous,
    };
    let with_diffs = call.flag("diffs")? || !matches!(against, Against::Previous);
    let snapshot_of = |state: &State| {
        let job = state.jobs().get(key)?;
        let rows = state.versions_of(key, job.create_index);
        let shown: Vec<Value> =
            rows.iter().map(|version| view::job_version(job, version)).collect();
        let diffs = if with_diffs { diffs(&rows, &shown, &against) } else { Ok(Vec::new()) };
        // Nomad says in this body what its headers say.
        Some(diffs.map(|diffs| {
            json!({
                "Versions": shown,
                "Diffs": view::list_or_null(diffs),
                "Index": job.modify_index,
                "LastContact": 0,
                "KnownLeader": true,
                "NextToken": "",
            })
        }))
    };
    let index = |state: &State| state.jobs().get(key).map(|job| job.modify_index);
    let body = |state: &State| {
        snapshot_of(state).transpose()?.map(|value| call.body_of(&value)).transpose()
    };
    call.item_body("job versions", TABLES, index, body).await
}

fn diffs(
    rows: &[Arc<JobVersion>],
    shown: &[Value],
    against: &Against,
) -> Result<Vec<Value>, Error> {
    let other = match against {
        Against::Previous => {
            let pairs = shown.iter().zip(shown.iter().skip(1));
            return Ok(pairs.map(|(new, old)| jobspec::job_diff(Some(old), Some(new))).collect());
        }
        Against::Version(version) => rows.iter().position(|row| row.version == *version),
        Against::Tag(tag) => rows.iter().position(|row| is_tagged(row, tag)),
    };
    let other = other.and_then(|position| shown.get(position)).ok_or_else(|| match against {
        Against::Tag(tag) => Error::not_found(&format!("version with tag \"{tag}\"")),
        Against::Version(version) => Error::not_found(&format!("version {version}")),
        Against::Previous => Error::not_found("version"),
    })?;
    Ok(shown.iter().map(|new| jobspec::job_diff(Some(other), Some(new))).collect())
}

fn is_tagged(row: &JobVersion, name: &str) -> bool {
    row.tag.as_ref().is_some_and(|tag| &*tag.name == name)
}

/// Registers a version as a new one, if nobody has changed the job meanwhile. A version that is a
/// stop stops the job: it is as it was then.
async fn revert(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let version = named_version(&fields, target)?;
    let enforced = fields.number("EnforcePriorVersion")?;
    let key = target.key(call)?;
    let snapshot = call.read().await?;
    let (row, index) = version_to_run(&snapshot.state, &key, version, enforced)?;
    let command = Command::from(RegisterJob {
        submission: row.submission.clone(),
        stop: row.stop,
        enforce_index: Some(index),
        now_s: call.now_s(),
        reverts_to: Some(version),
        ..RegisterJob::new(row.spec.clone(), call.evaluation_id())
    });
    let written = call.write(command).await?;
    let mut answer = job_reply(&written);
    answer["Warnings"] = "".into();
    call.answer_write(&written, answer)
}

/// The version that the body names, of the job in the path: it must name both, so that a slip does
/// not mean version 0.
fn named_version(fields: &Fields<'_>, target: &JobPath) -> Result<u64, Error> {
    match fields.text("JobID")?.filter(|id| !id.is_empty()) {
        None => return Err(Error::bad("JobID must be specified")),
        Some(id) if id != target.id => {
            return Err(Error::bad("JobID not same as job in request path"));
        }
        Some(_) => {}
    }
    fields.number("JobVersion")?.ok_or_else(|| Error::bad("JobVersion must be specified"))
}

/// The version to go back to, and the index at which the job is not changed.
fn version_to_run(
    state: &State,
    key: &JobKey,
    version: u64,
    enforced: Option<u64>,
) -> Result<(Arc<JobVersion>, Index), Error> {
    let job = state.jobs().get(key).ok_or_else(|| Error::not_found("job"))?;
    if version == job.version {
        return Err(Error::bad("can't revert to current version"));
    }
    if let Some(enforced) = enforced.filter(|enforced| *enforced != job.version) {
        let text = format!("Current job has version {}; enforcing version {enforced}", job.version);
        return Err(Error::bad(text));
    }
    let rows = state.versions_of(key, job.create_index);
    let Some(row) = rows.into_iter().find(|row| row.version == version) else {
        let what =
            format!("job \"{}\" in namespace \"{}\" at version {version}", key.id, key.namespace);
        return Err(Error::not_found(&what));
    };
    Ok((row, job.job_modify_index))
}

/// Marks a version as one that works, or takes the mark back.
async fn stable(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    let body = call.json_required()?;
    let fields = Fields::of(&body)?;
    let version = named_version(&fields, target)?;
    // auto_revert goes by the mark: a slip must not take it away.
    if body["Stable"].is_null() {
        return Err(Error::bad(
            "Stable must be given: true marks the version, false takes the mark off",
        ));
    }
    let mark = VersionMark::Stable { version, stable: fields.flag("Stable")? };
    let written = mark_version(call, target, mark).await?;
    call.answer_write(&written, json!({ "JobModifyIndex": written.index }))
}

/// Gives a version a name.
async fn tag(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    if target.tag.trim().is_empty() || !target.tag.chars().all(jobspec::is_printable) {
        let name = target.tag.escape_debug();
        return Err(Error::bad(format!(
            "\"{name}\" is no name of a tag: use characters that show"
        )));
    }
    let body = call.json()?;
    let fields = Fields::of(&body)?;
    let mark = VersionMark::Tag {
        version: fields.number("Version")?,
        name: target.tag.as_str().into(),
        description: fields.text("Description")?.unwrap_or("").into(),
    };
    tagged(call, target, mark).await
}

/// Takes a name off its version.
async fn untag(call: Call) -> Result<Answer, Error> {
    let call = &call;
    let target = call.job_path()?;
    tagged(call, target, VersionMark::Untag { name: target.tag.as_str().into() }).await
}

async fn tagged(call: &Call, target: &JobPath, mark: VersionMark) -> Result<Answer, Error> {
    let written = mark_version(call, target, mark).await?;
    call.answer_write(&written, json!({ "Name": target.tag }))
}

async fn mark_version(call: &Call, target: &JobPath, mark: VersionMark) -> Result<Written, Error> {
    call.write(Command::from(MarkJobVersion { job: target.key(call)?, mark })).await
}
