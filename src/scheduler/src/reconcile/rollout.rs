//! What the deployment of a job's version means for a pass: canaries first, then `max_parallel` at
//! a time by health, nothing while it is paused or has failed, but that what is missing of an older
//! version comes back in that.
//!
//! Reads the deployment only; what an allocation's health brings is decided in `fsm` when it is
//! reported. Invariant: a deployment that has failed places nothing of its version but what takes
//! the place of its own lost instances.

use std::collections::BTreeMap;

use fsm::{
    Allocation, ClientStatus, Deployment, DeploymentStatus, Job, JobKind, JobSpec, State,
    TaskGroup, Text,
    deployment::{DeploymentGoal, DeploymentGroup},
    job::UpdateStrategy,
};

use crate::pass::{Pass, Target};

/// The deployment that a pass goes by.
#[derive(Clone, Copy)]
pub(crate) struct Rollout<'a> {
    /// Of the job's version, if one goes on or has failed.
    deployment: Option<&'a Deployment>,
    /// A deployment of the version was successful.
    is_proven: bool,
    /// The version takes the place of one that failed and asked for it, and runs what the last
    /// stable one ran.
    goes_back: bool,
    /// Jobs of this kind are rolled out by deployments.
    has_steps: bool,
}

/// Whether the version before the job's failed, was to be reverted then, and this one runs what the
/// last stable version ran.
fn goes_back(state: &State, job: &Job) -> bool {
    let Some(before) = job.version.checked_sub(1) else { return false };
    let failed = state.deployments_of_job(&job.key).into_iter().any(|row| {
        row.is_of((job.create_index, before))
            && row.status == DeploymentStatus::Failed
            && row.groups.values().any(|group| group.auto_revert)
    });
    failed
        && state
            .last_stable_version(&job.key, job.create_index)
            .is_some_and(|stable| state.current_spec(job) == Some(&stable.spec))
}

impl<'a> Rollout<'a> {
    pub(crate) fn of(pass: &Pass<'a>, target: &Target<'a>) -> Self {
        let has_steps =
            target.job.is_some_and(|job| matches!(job.kind, JobKind::Service | JobKind::System));
        let deployment = target.job.and_then(|job| pass.state.current_deployment(job));
        let is_proven = deployment.is_some_and(|row| row.status == DeploymentStatus::Successful);
        let counts = |row: &&Deployment| row.is_active() || row.status == DeploymentStatus::Failed;
        let deployment = deployment.map(|row| &**row).filter(counts);
        let goes_back = has_steps
            && deployment.is_none()
            && target.job.is_some_and(|job| goes_back(pass.state, job));
        Self { deployment, is_proven, goes_back, has_steps }
    }

    /// The group's strategy, if it is rolled out in steps.
    pub(crate) fn strategy(&self, group: &TaskGroup) -> Option<UpdateStrategy> {
        group.update.filter(|update| self.has_steps && update.has_steps())
    }

    fn group(&self, group: &TaskGroup) -> Option<&'a DeploymentGroup> {
        self.deployment.and_then(|row| row.groups.get(&group.name))
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.deployment.is_some()
    }

    /// The deployment that goes on, or is paused.
    pub(crate) fn active(&self) -> Option<&'a Deployment> {
        self.deployment.filter(|row| row.is_active())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.deployment.is_some_and(|row| row.status == DeploymentStatus::Failed)
    }

    /// Whether the deployment of this version may begin with canaries: not after one that was
    /// successful, nor on the way back to a version that is known to work: they would wait for a
    /// person while what has failed serves.
    pub(crate) fn may_begin_with_canaries(&self) -> bool {
        !self.is_begun() && !self.is_proven && !self.goes_back
    }

    pub(crate) fn takes_canaries(&self) -> bool {
        !self.has_failed() && !self.is_paused()
    }

    fn is_paused(&self) -> bool {
        self.deployment.is_some_and(|row| row.status == DeploymentStatus::Paused)
    }

    /// Whether an instance does its work: it runs, and is healthy in its deployment, which agents
    /// say also when that is over. One that belongs to none has been running, with all of its
    /// tasks, for as long as a healthy one of the group has to, by the pass's log time.
    pub(crate) fn is_well(
        &self,
        pass: &Pass<'_>,
        group: &TaskGroup,
        allocation: &Allocation,
    ) -> bool {
        if allocation.client != ClientStatus::Running {
            return false;
        }
        if let Some(own) = allocation.deployment {
            return own.is_healthy() == Some(true);
        }
        let least = self.strategy(group).map_or(0, |update| update.healthy_ms_min);
        allocation.all_running_since().is_some_and(|since| since.saturating_add(least) <= pass.now)
    }

    /// Whether the allocation belongs to this deployment.
    pub(crate) fn owns(&self, allocation: &Allocation) -> bool {
        let id = self.deployment.map(|row| row.id);
        id.is_some() && allocation.deployment.map(|own| own.id) == id
    }

    /// Whether the allocation is a canary that still waits for its promotion. Any other that is
    /// marked as a canary is left of a deployment that is over.
    pub(crate) fn is_waiting_canary(&self, allocation: &Allocation) -> bool {
        self.owns(allocation) && !self.has_failed()
    }

    /// Whether the allocation is a canary that was not promoted before its deployment failed.
    pub(crate) fn is_left_canary(&self, allocation: &Allocation) -> bool {
        allocation.is_canary() && self.has_failed() && self.owns(allocation)
    }

    /// Canaries that the group's deployment wants now; none: it wants none, or no more.
    pub(crate) fn canaries(&self, group: &TaskGroup) -> Option<u32> {
        let own = self.group(group).filter(|own| own.is_canarying())?;
        (!self.has_failed()).then_some(own.goal.canaries)
    }

    /// How many canaries a group of a system job may have while nodes go and come.
    pub(crate) fn canaries_max(&self, group: &TaskGroup) -> Option<u32> {
        self.canaries(group)?;
        self.group(group).map(|own| own.canaries_max)
    }

    /// Whether new instances may be placed and older ones replaced: always in a group that is no
    /// part of the deployment. `begins_with_canaries`: the deployment begins with this pass, by
    /// canaries.
    pub(crate) fn is_open(&self, group: &TaskGroup, begins_with_canaries: bool) -> bool {
        let is_held = self.deployment.is_some_and(|row| row.holds_back(&group.name));
        !(is_held || begins_with_canaries) || self.strategy(group).is_none()
    }

    /// What a deployment of this spec is to reach, by group. `canaries`: how many the group begins
    /// with; `non_members`: how many instances of the version it has already, which are not in a
    /// deployment that begins now.
    pub(crate) fn goals(
        &self,
        spec: &JobSpec,
        canaries: impl Fn(usize) -> u32,
        non_members: impl Fn(usize) -> u32,
    ) -> BTreeMap<Text, DeploymentGoal> {
        let goals = spec.groups.iter().enumerate().filter_map(|(number, group)| {
            self.strategy(group)?;
            let total = group.count.saturating_sub(non_members(number));
            let goal = DeploymentGoal { canaries: canaries(number), total };
            (total > 0).then(|| (group.name.clone(), goal))
        });
        goals.collect()
    }
}
