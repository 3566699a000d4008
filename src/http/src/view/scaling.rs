//! Scaling: the status of a job's groups with their events, and policies.

use fsm::{
    Job, State,
    deployment::AllocationDeployment,
    job::{GroupScaling, ScalingEvent, ScalingPolicy},
};
use serde_json::{Map, Value, json};

use super::{list_or_null, text};
use crate::time;

/// A job's groups with the counts that are wanted and there, and their last events.
pub(crate) fn scale_status(state: &State, job: &Job) -> Option<Value> {
    let spec = state.current_spec(job)?;
    let rows = state.scalings_of(&job.key);
    let groups: Map<String, Value> = spec
        .groups
        .iter()
        .map(|group| {
            let row = rows.iter().find(|row| row.group == group.name);
            let events = row.map(|row| row.events.as_slice()).unwrap_or_default();
            let status = group_status(state, job, &group.name, group.count, events);
            (group.name.to_string(), status)
        })
        .collect();
    Some(json!({
        "JobID": text(&job.key.id),
        "Namespace": text(&job.key.namespace),
        "JobCreateIndex": job.create_index,
        "JobModifyIndex": job.job_modify_index,
        "JobStopped": job.stop,
        "TaskGroups": groups,
    }))
}

/// Canaries do not count: they stand beside the instances that the count is about.
fn group_status(
    state: &State,
    job: &Job,
    group: &str,
    desired: u32,
    events: &[ScalingEvent],
) -> Value {
    let (mut placed, mut running, mut healthy, mut unhealthy) = (0_u32, 0_u32, 0_u32, 0_u32);
    let rows = state.allocations_of_job(&job.key);
    for row in rows.filter(|row| row.job_create_index == job.create_index) {
        if *row.group != *group || !row.is_live() || row.is_canary() {
            continue;
        }
        placed += 1;
        running += u32::from(row.client == fsm::ClientStatus::Running);
        let is_healthy = row.deployment.as_ref().and_then(AllocationDeployment::is_healthy);
        healthy += u32::from(is_healthy == Some(true));
        unhealthy += u32::from(is_healthy == Some(false));
    }
    json!({
        "Desired": desired,
        "Placed": placed,
        "Running": running,
        "Healthy": healthy,
        "Unhealthy": unhealthy,
        "Events": list_or_null(events.iter().map(event).collect()),
    })
}

fn event(event: &ScalingEvent) -> Value {
    let meta: Value = serde_json::from_str(&event.meta_json).unwrap_or_default();
    json!({
        "Time": time::nanoseconds(event.at),
        "Count": event.count,
        "PreviousCount": event.count_before,
        "Message": text(&event.message),
        "Error": event.error,
        "Meta": meta,
        "EvalID": event.evaluation.map(|id| id.to_string()),
        "CreateIndex": event.create_index,
    })
}

fn target(row: &GroupScaling) -> Value {
    json!({
        "Namespace": text(&row.job.namespace),
        "Job": text(&row.job.id),
        "Group": text(&row.group),
    })
}

/// A policy in a list.
pub(crate) fn scaling_policy_stub(row: &GroupScaling, policy: &ScalingPolicy) -> Value {
    json!({
        "ID": policy.id.to_string(),
        "Enabled": policy.scaling.enabled,
        "Type": text(&policy.scaling.kind),
        "Target": target(row),
        "CreateIndex": policy.create_index,
        "ModifyIndex": policy.modify_index,
    })
}

/// A policy with what an autoscaler reads.
pub(crate) fn scaling_policy(row: &GroupScaling, policy: &ScalingPolicy) -> Value {
    let scaling = &policy.scaling;
    json!({
        "ID": policy.id.to_string(),
        "Namespace": text(&row.job.namespace),
        "Enabled": scaling.enabled,
        "Type": text(&scaling.kind),
        "Target": target(row),
        "Min": scaling.min,
        "Max": scaling.max,
        "Policy": jobspec::scaling_policy(scaling),
        "CreateIndex": policy.create_index,
        "ModifyIndex": policy.modify_index,
    })
}
