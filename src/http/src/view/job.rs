//! Jobs, their stubs, summaries and versions.

use std::sync::Arc;

use fsm::{Job, JobVersion, State, job::GroupSummary, job::JobSpec};
use serde_json::{Map, Value, json};

use super::{
    super::jobs_bridge::{self, As},
    map_or_null, text, text_map,
};
use crate::time;

/// A job with its current spec.
pub(crate) fn job(state: &State, job: &Job) -> Option<Value> {
    let mut shown = jobs_bridge::job_json(job, current_version(state, job)?, As::Job);
    if let Some(why) = waits(state, job) {
        shown["StatusDescription"] = why.into();
    }
    Some(shown)
}

/// Why a child does not start, and how many start before it.
fn waits(state: &State, job: &Job) -> Option<String> {
    let position = state.waiting_position(job)?;
    let parent = job.key.parent_key()?;
    let waiting = state.children(&parent)?.waiting.len();
    let max = state.running_max(&parent);
    Some(format!(
        "waits to start: position {position} of {waiting}, max_running of \"{}\" is {max}",
        parent.id
    ))
}

/// The version that a job is at.
pub(crate) fn current_version<'a>(state: &'a State, job: &Job) -> Option<&'a Arc<JobVersion>> {
    state.job_versions().get(&(job.key.clone(), job.create_index, job.version))
}

/// A version of a job as it was.
pub(crate) fn job_version(job: &Job, version: &JobVersion) -> Value {
    jobs_bridge::job_json(job, version, As::Version)
}

/// What a version was made of, if its client said.
pub(crate) fn submission(version: &JobVersion) -> Option<Value> {
    let submission = version.submission.as_ref()?;
    let flags = &submission.variable_flags;
    Some(json!({
        "Source": text(&submission.source),
        "Format": text(&submission.format),
        "VariableFlags": if flags.is_empty() { Value::Null } else { text_map(flags) },
        "Variables": text(&submission.variables),
        "Namespace": text(&version.spec.key.namespace),
        "JobID": text(&version.spec.key.id),
        "Version": version.version,
        "JobModifyIndex": version.job_modify_index,
    }))
}

/// A job in a list.
pub(crate) fn job_stub(state: &State, job: &Job, with_meta: bool) -> Option<Value> {
    let spec = state.current_spec(job)?;
    let meta = if with_meta { map_or_null(text_map(&spec.meta)) } else { Value::Null };
    Some(json!({
        "ID": text(&job.key.id),
        "ParentID": job.key.parent().unwrap_or(""),
        "Name": text(&spec.name),
        "Namespace": text(&job.key.namespace),
        "Datacenters": spec.datacenters.iter().map(text).collect::<Vec<_>>(),
        "NodePool": text(&spec.node_pool),
        "Multiregion": Value::Null,
        "Type": job.kind.name(),
        "Priority": job.priority,
        "Periodic": job.periodic.is_some(),
        "ParameterizedJob": job.parameterized,
        "Stop": job.stop,
        "Status": job.status.name(),
        "StatusDescription": if job.waiting.is_some() { "waits to start: max_running" } else { "" },
        "JobSummary": summary_of(state, job, spec),
        "CreateIndex": job.create_index,
        "ModifyIndex": job.modify_index,
        "JobModifyIndex": job.job_modify_index,
        "SubmitTime": time::nanoseconds(job.submitted_at),
        "Version": job.version,
        "Meta": meta,
    }))
}

/// Counts by group of the allocations of a job's incarnation.
pub(crate) fn job_summary(state: &State, job: &Job) -> Option<Value> {
    Some(summary_of(state, job, state.current_spec(job)?))
}

fn summary_of(state: &State, job: &Job, spec: &JobSpec) -> Value {
    let index = state.job_index(&job.key);
    let counted = index.into_iter().flat_map(|index| index.summary_of(job.create_index));
    let mut groups = Map::new();
    for group in &spec.groups {
        groups.insert(group.name.to_string(), group_summary(GroupSummary::default()));
    }
    for (group, summary) in counted {
        groups.insert(group.to_string(), group_summary(*summary));
    }
    for (group, queued) in &job.queued {
        if let Some(Value::Object(counts)) = groups.get_mut(&**group) {
            counts.insert("Queued".to_owned(), (*queued).into());
        }
    }
    let children = state.children(&job.key).map(AsRef::as_ref).cloned().unwrap_or_default();
    json!({
        "JobID": text(&job.key.id),
        "Namespace": text(&job.key.namespace),
        "Summary": groups,
        "Children": {
            "Pending": children.pending.saturating_sub(children.waiting.len() as u64),
            "Running": children.running,
            "Dead": children.dead.len(),
            "Waiting": children.waiting.len(),
        },
        "CreateIndex": job.create_index,
        "ModifyIndex": job.modify_index,
    })
}

fn group_summary(summary: GroupSummary) -> Value {
    json!({
        "Queued": summary.queued,
        "Complete": summary.complete,
        "Failed": summary.failed,
        "Running": summary.running,
        "Starting": summary.starting,
        "Lost": summary.lost,
        "Unknown": summary.unknown,
    })
}
