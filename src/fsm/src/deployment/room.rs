//! Deployments whose instances find no room: how long machines that are on their way keep one from
//! failing, and what is short when it fails.

use std::collections::BTreeSet;

use super::{Deployment, DeploymentGroup, DeploymentStatus};
use crate::{
    evaluation::{EvaluationStatus, Metrics},
    id::{JobKey, Text, TimeMs},
    limits,
    pool::{Behavior, Instance, InstanceState},
    state::State,
};

/// Reasons of one kind that a description names.
const REASONS_MAX: usize = 3;

impl State {
    /// Groups whose time without progress is over at `at`. One that waits for room has more of it
    /// while a machine for its job comes that was asked for in that time.
    pub fn late_groups(&self, row: &Deployment, at: TimeMs) -> BTreeSet<Text> {
        let groups = row.groups.iter().filter(|_| row.status == DeploymentStatus::Running);
        let late = groups.filter(|(_, group)| {
            group.deadline().is_some_and(|due| {
                due <= at && !(group.waits_for_room && self.is_room_coming(&row.job, due, at))
            })
        });
        late.map(|(name, _)| name.clone()).collect()
    }

    /// Whether a machine of the job's pool that was asked for before `due` may still come at `at`,
    /// or has come just now. One that does not come is given up by its own deadline, so this ends.
    fn is_room_coming(&self, job: &JobKey, due: TimeMs, at: TimeMs) -> bool {
        let spec = self.jobs.get(job).and_then(|job| self.current_spec(job));
        let Some(pool) = spec.map(|spec| &spec.node_pool) else { return false };
        self.instances_of(pool).any(|one| one.requested_at <= due && comes(one) > at)
    }

    /// What groups that wait for room lack; none: none of them does.
    pub(super) fn shortage_of(&self, row: &Deployment, groups: &BTreeSet<Text>) -> Option<String> {
        let waits = |group: &DeploymentGroup| group.waits_for_room;
        let short: Vec<_> = groups
            .iter()
            .filter(|name| row.groups.get(*name).is_some_and(waits))
            .take(REASONS_MAX)
            .map(|name| self.shortage(&row.job, name))
            .collect();
        (!short.is_empty()).then(|| short.join("; "))
    }

    fn shortage(&self, job: &JobKey, group: &Text) -> String {
        let queued = self.jobs.get(job).and_then(|row| row.queued.get(group));
        let said = match queued.copied().unwrap_or_default() {
            0 => format!("no room for instances of group \"{group}\""),
            1 => format!("no room for 1 instance of group \"{group}\""),
            count => format!("no room for {count} instances of group \"{group}\""),
        };
        let open = self.job_index(job).into_iter().flat_map(|index| index.open_evaluations.iter());
        let rows = open.filter_map(|id| self.evaluations.get(id));
        let mut blocked = rows.filter(|row| row.status == EvaluationStatus::Blocked);
        let found = blocked.find_map(|row| row.failed_groups.get(group).map(reasons));
        match found.filter(|reasons| !reasons.is_empty()) {
            Some(reasons) => format!("{said}: {}", reasons.join(", ")),
            None => said,
        }
    }
}

/// Until when a machine may bring room; 0: it brings none.
fn comes(one: &Instance) -> TimeMs {
    if one.behavior != Behavior::Run {
        return 0;
    }
    match one.state {
        InstanceState::Requested | InstanceState::Booting => one.deadline_at,
        InstanceState::Bound => one.bound_at.saturating_add(limits::FIRST_WORK_MS),
        InstanceState::ShuttingDown => 0,
    }
}

/// Why nodes were of no use.
fn reasons(metrics: &Metrics) -> Vec<String> {
    if metrics.nodes_evaluated == 0 {
        return vec!["no node is there for it".to_owned()];
    }
    let nodes = |count: u32| if count == 1 { "node" } else { "nodes" };
    let exhausted = metrics.dimension_exhausted.iter().take(REASONS_MAX);
    let exhausted =
        exhausted.map(|(what, &count)| format!("{what} exhausted on {count} {}", nodes(count)));
    let filtered = metrics.constraint_filtered.iter().take(REASONS_MAX);
    let filtered =
        filtered.map(|(what, &count)| format!("\"{what}\" filters {count} {}", nodes(count)));
    exhausted.chain(filtered).collect()
}
