//! Groups of older versions, placed beside those of the current one while a deployment holds back
//! what is new.

use fsm::{JobSpec, State, job::Constraint};

use crate::{pass::Target, place::constraint::Condition};

/// Groups of the stack beyond those of the job: of a group of the job by its number, in an older
/// version.
pub(crate) type Older = Vec<(usize, u64)>;

/// Stands between the name of a group and a version: no name may hold it.
pub(crate) const VERSION_MARK: char = '\u{0}';

/// What a job asks of all its groups in an older version and not in its current one.
pub(crate) type JobConstraints = Vec<Constraint>;

/// The job with the groups of older versions behind its own, under names that no group has, and
/// what their versions ask of them; none: there are none. They heed what the job as a whole asks
/// for in its current version, and the constraints of the job in their own. Those about single
/// nodes are put beside those of the group; how many of the job may share a property or a host
/// counts the instances of all its groups.
pub(crate) fn extended(
    target: &Target<'_>,
    state: &State,
    older: &Older,
) -> Option<(JobSpec, Vec<JobConstraints>)> {
    if older.is_empty() {
        return None;
    }
    let (job, spec) = (target.job?, target.spec?);
    let mut extended = JobSpec::clone(spec);
    let mut of_jobs = Vec::new();
    for (number, version) in older {
        let current = &spec.groups[*number];
        let old = state.job_spec(&job.key, job.create_index, *version);
        let mut group = old.and_then(|old| old.group(&current.name)).unwrap_or(current).clone();
        let more = old.iter().flat_map(|old| &old.constraints);
        let more = more.filter(|one| !spec.constraints.contains(one)).cloned();
        let (of_job, of_nodes): (Vec<_>, Vec<_>) =
            more.partition(|one| Condition::distinct(one).is_some());
        group.constraints.extend(of_nodes);
        group.name = format!("{}{VERSION_MARK}{version}", current.name).into();
        extended.groups.push(group);
        of_jobs.push(of_job);
    }
    Some((extended, of_jobs))
}
