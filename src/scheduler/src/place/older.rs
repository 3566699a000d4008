//! Groups of older versions, placed beside those of the current version while a deployment holds
//! back what is new.

use fsm::{JobSpec, State, TaskGroup, job::Constraint};

use crate::{pass::Target, place::constraint::Condition};

/// Groups of the stack beyond those of the job: the number of a group of the job, and an older
/// version.
pub(crate) type OlderGroups = Vec<(usize, u64)>;

/// A group of the job in an older version. Its instances heed what the current version of the job
/// asks of all groups, and also what the older version did.
pub(crate) struct StackGroup {
    /// The number of the group in the job.
    pub(crate) base: usize,
    /// The group, with the constraints on single nodes that its version of the job has.
    pub(crate) group: TaskGroup,
    /// The constraints on all instances of the job (distinct hosts and properties) that its version
    /// has and the current one has not.
    pub(crate) of_job: Vec<Constraint>,
}

/// The groups of the stack for these older versions. A group that its version lacks is taken as it
/// is now.
pub(crate) fn stack_groups(
    target: &Target<'_>,
    state: &State,
    older: &OlderGroups,
) -> Vec<StackGroup> {
    let Some((job, spec)) = target.job.zip(target.spec) else { return Vec::new() };
    let group_of = |(base, version): &(usize, u64)| {
        let old = state.job_spec(&job.key, job.create_index, *version).map(|old| &**old);
        stack_group(*base, spec, old)
    };
    older.iter().map(group_of).collect()
}

fn stack_group(base: usize, spec: &JobSpec, old: Option<&JobSpec>) -> StackGroup {
    let current = &spec.groups[base];
    let mut group = old.and_then(|old| old.group(&current.name)).unwrap_or(current).clone();
    let more = old.into_iter().flat_map(|old| &old.constraints);
    let more = more.filter(|one| !spec.constraints.contains(one)).cloned();
    let (of_job, of_nodes): (Vec<_>, Vec<_>) =
        more.partition(|one| Condition::distinct(one).is_some());
    group.constraints.extend(of_nodes);
    StackGroup { base, group, of_job }
}
