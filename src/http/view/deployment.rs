//! Deployments.

use fsm::{Deployment, State, deployment::DeploymentGroup};
use serde_json::{Map, Value, json};

use super::text;
use crate::http::time;

/// A deployment; its canaries are found among the allocations of its job.
pub(crate) fn deployment(state: &State, row: &Deployment) -> Value {
    let groups: Map<_, _> = row
        .groups
        .iter()
        .map(|(name, group)| {
            let canaries: Vec<Value> = state
                .allocations_of_deployment(row)
                .filter(|one| one.group == *name && one.canary_of == Some(row.id))
                .map(|one| one.id.to_string().into())
                .collect();
            (name.to_string(), group_state(group, canaries))
        })
        .collect();
    json!({
        "ID": row.id.to_string(),
        "Namespace": text(&row.job.namespace),
        "JobID": text(&row.job.id),
        "JobVersion": row.job_version,
        "JobModifyIndex": row.job_modify_index,
        "JobSpecModifyIndex": row.job_modify_index,
        "JobCreateIndex": row.job_create_index,
        "IsMultiregion": false,
        "TaskGroups": groups,
        "Status": row.status.name(),
        "StatusDescription": text(&row.description),
        "EvalPriority": row.priority,
        "CreateIndex": row.create_index,
        "ModifyIndex": row.modify_index,
        "CreateTime": time::nanoseconds(row.created_at),
        "ModifyTime": time::nanoseconds(row.modified_at),
    })
}

fn group_state(group: &DeploymentGroup, canaries: Vec<Value>) -> Value {
    json!({
        "AutoRevert": group.auto_revert,
        "AutoPromote": group.auto_promote,
        "ProgressDeadline": time::nanoseconds(group.progress_deadline_ms),
        "RequireProgressBy": time::rfc3339(group.require_progress_by.unwrap_or(0)),
        "Promoted": group.promoted,
        "PlacedCanaries": canaries,
        "DesiredCanaries": group.goal.canaries,
        "DesiredTotal": group.goal.total,
        "PlacedAllocs": group.placed,
        "HealthyAllocs": group.healthy,
        "UnhealthyAllocs": group.unhealthy,
    })
}
