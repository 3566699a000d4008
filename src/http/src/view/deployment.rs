//! Deployments.

use fsm::{Deployment, deployment::DeploymentGroup};

use super::some_unless_empty;
use crate::time;

/// A deployment.
pub(crate) fn deployment(row: &Deployment) -> shapes::Deployment {
    let groups = row.groups.iter().map(|(name, group)| {
        let canaries = row.placed_canaries.get(name).into_iter().flatten();
        (name.to_string(), group_of(group, canaries.map(ToString::to_string).collect()))
    });
    shapes::Deployment {
        create_index: row.create_index,
        create_time: time::nanoseconds(row.created_at),
        eval_priority: row.priority,
        id: row.id.to_string(),
        is_multiregion: false,
        job_create_index: row.job_create_index,
        job_id: row.job.id.to_string(),
        job_modify_index: row.job_modify_index,
        job_spec_modify_index: row.job_modify_index,
        job_version: row.job_version,
        modify_index: row.modify_index,
        modify_time: time::nanoseconds(row.modified_at),
        namespace: row.job.namespace.to_string(),
        status: row.status.name().to_owned(),
        status_description: row.description.to_string(),
        task_groups: groups.collect(),
    }
}

fn group_of(group: &DeploymentGroup, canaries: Vec<String>) -> shapes::DeploymentGroup {
    shapes::DeploymentGroup {
        auto_promote: group.auto_promote,
        auto_revert: group.auto_revert,
        desired_canaries: group.goal.canaries,
        desired_total: group.goal.total,
        healthy_allocs: group.healthy,
        placed_allocs: group.placed,
        placed_canaries: some_unless_empty(canaries),
        progress_deadline: time::nanoseconds(group.progress_deadline_ms),
        promoted: group.promoted,
        require_progress_by: time::rfc3339_or_null(group.require_progress_by.unwrap_or(0)),
        unhealthy_allocs: group.unhealthy,
    }
}
