//! What a change of the job means for an allocation of an older version: replaced, or kept and
//! moved to the new version.

use std::collections::BTreeMap;

use fsm::{
    Allocation, Index, JobSpec, State, TaskGroup, Text,
    job::{PortAsk, Task},
};

/// Compares versions of one group with the current one; each version once.
#[derive(Default)]
pub(crate) struct Differences {
    replaced: BTreeMap<(Index, u64), bool>,
}

impl Differences {
    /// Whether tasks of the allocation's version differ from `group`, so that it must be replaced.
    /// An unknown version does.
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

/// Whether the change of one task needs new instances of its group; one that comes or goes does.
pub fn replaces_task(old: &JobSpec, new: &JobSpec, group: &str, task: &str) -> bool {
    let (Some(old_group), Some(group)) = (old.group(group), new.group(group)) else { return true };
    let found = group.tasks.iter().find(|one| &*one.name == task);
    found.is_none_or(|task| task_differs(old, old_group, new, group, task))
}

/// Whether the change needs new instances. Counts, policies, constraints, affinities, spreads,
/// services and shutdown settings do not.
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

/// Whether a task of `group` is another one than in the older version, or was not there.
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

/// The mode is only shown.
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

/// What the task sees: its own meta over the group's over the job's.
fn meta<'s>(
    spec: &'s JobSpec,
    group: &'s TaskGroup,
    task: &'s Task,
) -> BTreeMap<&'s Text, &'s Text> {
    spec.meta.iter().chain(&group.meta).chain(&task.meta).collect()
}
