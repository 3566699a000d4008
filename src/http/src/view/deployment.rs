//! Deployments.

use fsm::{Deployment, Text, deployment::DeploymentGroup};
use serde_json::{Map, Value, json};

use super::{list_or_null, text};
use crate::time;

/// A deployment.
pub(crate) fn deployment(row: &Deployment) -> Value {
    let state = |(name, group): (&Text, &DeploymentGroup)| {
        let canaries = row.placed_canaries.get(name).into_iter().flatten();
        let canaries = canaries.map(|id| Value::from(id.to_string())).collect();
        (name.to_string(), group_state(group, canaries))
    };
    let groups: Map<_, _> = row.groups.iter().map(state).collect();
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
        "RequireProgressBy": time::rfc3339_or_null(group.require_progress_by.unwrap_or(0)),
        "Promoted": group.promoted,
        "PlacedCanaries": list_or_null(canaries),
        "DesiredCanaries": group.goal.canaries,
        "DesiredTotal": group.goal.total,
        "PlacedAllocs": group.placed,
        "HealthyAllocs": group.healthy,
        "UnhealthyAllocs": group.unhealthy,
    })
}
