//! What the deployment of a job's version allows in a pass. Canaries come first, then
//! `max_parallel` instances at a time, by health. Nothing new is placed while the deployment is
//! paused or has failed. Meanwhile missing instances of an older version may come back in that
//! version.
//!
//! Reads the deployment only. `fsm` decides what an allocation's health means for it. Invariant: a
//! failed deployment places no instance of its version, except successors of its own lost
//! instances.

use std::collections::BTreeMap;

use fsm::{
    Allocation, ClientStatus, Deployment, DeploymentStatus, Job, JobKind, JobSpec, State,
    TaskGroup, Text,
    deployment::{DeploymentGoal, DeploymentGroup},
    job::UpdateStrategy,
};

use crate::pass::{Pass, Target};

/// The deployment that a pass must obey.
#[derive(Clone, Copy)]
pub(crate) struct Rollout<'a> {
    /// The deployment of the job's current version, if it is running, paused or failed.
    deployment: Option<&'a Deployment>,
    /// The deployment of the current version was successful.
    is_proven: bool,
    /// The current version is an automatic revert (see [`goes_back`]).
    goes_back: bool,
    /// Deployments exist for jobs of this kind: service and system.
    has_steps: bool,
}

/// Whether the current version is an automatic revert: the deployment of the version before it
/// failed and had `auto_revert`, and the current version runs what the last stable one ran.
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

    /// The group's update strategy, if the group is rolled out by a deployment.
    pub(crate) fn strategy(&self, group: &TaskGroup) -> Option<UpdateStrategy> {
        group.update.filter(|update| self.has_steps && update.has_steps())
    }

    fn group(&self, group: &TaskGroup) -> Option<&'a DeploymentGroup> {
        self.deployment.and_then(|row| row.groups.get(&group.name))
    }

    pub(crate) fn is_begun(&self) -> bool {
        self.deployment.is_some()
    }

    /// The deployment, if it is running or paused.
    pub(crate) fn active(&self) -> Option<&'a Deployment> {
        self.deployment.filter(|row| row.is_active())
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.deployment.is_some_and(|row| row.status == DeploymentStatus::Failed)
    }

    /// Whether this version's deployment may begin with canaries. It may not if a deployment of the
    /// version was successful before. It may not for an automatic revert either: canaries would
    /// wait for a person to promote them while the failed version serves.
    pub(crate) fn may_begin_with_canaries(&self) -> bool {
        !self.is_begun() && !self.is_proven && !self.goes_back
    }

    pub(crate) fn takes_canaries(&self) -> bool {
        !self.has_failed() && !self.is_paused()
    }

    fn is_paused(&self) -> bool {
        self.deployment.is_some_and(|row| row.status == DeploymentStatus::Paused)
    }

    /// Whether an instance is healthy: it runs, and its agent has reported it as healthy in its
    /// deployment. Agents report that after the deployment's end too. An instance without a
    /// deployment must have run, with all of its tasks, for the group's minimum healthy time, by
    /// log time.
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

    /// Whether a canary still waits for its promotion. A canary for which this is false is left
    /// from a deployment that is over.
    pub(crate) fn is_waiting_canary(&self, allocation: &Allocation) -> bool {
        self.owns(allocation) && !self.has_failed()
    }

    /// Whether the allocation is a canary that was not promoted before its deployment failed.
    pub(crate) fn is_left_canary(&self, allocation: &Allocation) -> bool {
        allocation.is_canary() && self.has_failed() && self.owns(allocation)
    }

    /// How many canaries the group's deployment wants now. `None`: it wants none, or they have been
    /// promoted, or it has failed.
    pub(crate) fn canaries(&self, group: &TaskGroup) -> Option<u32> {
        let own = self.group(group).filter(|own| own.is_canarying())?;
        (!self.has_failed()).then_some(own.goal.canaries)
    }

    /// How many canaries a group of a system job may have, however many nodes come. `None` as in
    /// [`Self::canaries`].
    pub(crate) fn canaries_max(&self, group: &TaskGroup) -> Option<u32> {
        self.canaries(group)?;
        self.group(group).map(|own| own.canaries_max)
    }

    /// Whether the current version may be placed now. Always true for a group without an update
    /// strategy, because no deployment covers it. False while the job's deployment holds the group
    /// back: it is paused or has failed, or canaries must be promoted first. Also false if a
    /// deployment with canaries begins in this pass (`begins_with_canaries`).
    pub(crate) fn is_open(&self, group: &TaskGroup, begins_with_canaries: bool) -> bool {
        let is_held = self.deployment.is_some_and(|row| row.holds_back(&group.name));
        !(is_held || begins_with_canaries) || self.strategy(group).is_none()
    }

    /// For each group, how many instances and canaries a deployment of this spec must have
    /// ([`DeploymentGoal`]). A group is given to `canaries` and `non_members` by its position in
    /// the spec. `canaries` gives its number of canaries. `non_members` gives the number of
    /// instances that run this version already: they do not join a deployment that begins now, so
    /// they do not count for it.
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
