//! Decides for an allocation of an older version whether the change of the job needs a destructive
//! update, or an in-place update is enough.

use std::collections::BTreeMap;

use fsm::{
    Allocation, Index, JobSpec, State, TaskGroup, Text,
    job::{PortAsk, Task},
};

/// Compares older versions of one group with the current one. Each version is compared once.
#[derive(Default)]
pub(crate) struct Differences {
    replaced: BTreeMap<(Index, u64), bool>,
}

impl Differences {
    /// Whether the allocation needs a destructive update, because its version differs from `group`
    /// in its tasks. True if the version is unknown.
    pub(crate) fn replaces(
        &mut self,
        state: &State,
        allocation: &Allocation,
        spec: &JobSpec,
        group: &TaskGroup,
    ) -> bool {
        *self.replaced.entry((allocation.job_create_index, allocation.job_version)).or_insert_with(
            || {
                let old = state.allocation_spec(allocation);
                let old = old.and_then(|old| Some((old, old.group(&allocation.group)?)));
                old.is_none_or(|(old, old_group)| differ(old, old_group, spec, group))
            },
        )
    }
}

/// Whether the change of one task needs a destructive update of its group. True if the task was
/// added or removed.
pub fn replaces_task(old: &JobSpec, new: &JobSpec, group: &str, task: &str) -> bool {
    let (Some(old_group), Some(group)) = (old.group(group), new.group(group)) else { return true };
    let found = group.tasks.iter().find(|one| &*one.name == task);
    found.is_none_or(|task| task_differs(old, old_group, new, group, task))
}

/// Whether the change needs a destructive update. Changes of counts, policies, constraints,
/// affinities, spreads, services and shutdown settings do not.
pub(crate) fn differ(
    old: &JobSpec,
    old_group: &TaskGroup,
    new: &JobSpec,
    group: &TaskGroup,
) -> bool {
    old.kind != new.kind
        || old_group.tasks.len() != group.tasks.len()
        || old_group.disk_mb != group.disk_mb
        || ports(old_group) != ports(group)
        || group.tasks.iter().any(|task| task_differs(old, old_group, new, group, task))
}

/// Whether a task of `group` has changed since the older version, or was added.
fn task_differs(
    old: &JobSpec,
    old_group: &TaskGroup,
    new: &JobSpec,
    group: &TaskGroup,
    task: &Task,
) -> bool {
    let old_task = old_group.tasks.iter().find(|old_task| old_task.name == task.name);
    old_task.is_none_or(|old_task| {
        tasks_differ(old_task, task) || meta(old, old_group, old_task) != meta(new, group, task)
    })
}

/// The ports that a group asks for. The network mode is not compared: it is stored for display
/// only.
fn ports(group: &TaskGroup) -> Option<&[PortAsk]> {
    group.network.as_ref().map(|network| &network.ports[..])
}

fn tasks_differ(old: &Task, new: &Task) -> bool {
    old.driver != new.driver
        || old.user != new.user
        || old.config_json != new.config_json
        || old.env != new.env
        || old.resources != new.resources
        || old.logs.disabled != new.logs.disabled
}

/// The meta that the task sees: its own overrides the group's, which overrides the job's.
fn meta<'s>(
    spec: &'s JobSpec,
    group: &'s TaskGroup,
    task: &'s Task,
) -> BTreeMap<&'s Text, &'s Text> {
    spec.meta.iter().chain(&group.meta).chain(&task.meta).collect()
}
