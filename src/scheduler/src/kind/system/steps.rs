//! The steps of a system job's deployment. First canaries replace the instances on a percentage of
//! the nodes, then the other instances are replaced, `max_parallel` at a time. If the deployment
//! fails, the last stable version replaces the canaries.

use std::collections::BTreeMap;

use fsm::{
    Allocation, ClientStatus, Evaluation, EvaluationStatus, JobSpec, JobVersion, TaskGroup, Text,
    Trigger, deployment::DeploymentGoal, job::UpdateStrategy,
};

use super::{Seat, Standing, Work};
use crate::{
    kind::evaluate,
    pass::VersionId,
    place::{older::OlderGroups, stack::Obstacle},
    reconcile::{changes::Reason, rollout::Rollout, update::differ},
};

/// Minimum time between two steps back to the stable version, ms. Instances of the stable version
/// belong to no deployment, so no deployment tells when they are healthy. Time is used instead.
const STEP_BACK_MS_MIN: u64 = 1_000;

/// The older versions that may be placed again while the deployment holds back the current one: the
/// versions that allocations have run, and `stable`, which may replace canaries.
pub(super) fn older_versions(
    rollout: &Rollout<'_>,
    VersionId { created: create_index, number: version }: VersionId,
    spec: &JobSpec,
    allocations: &[&Allocation],
    stable: Option<&JobVersion>,
) -> OlderGroups {
    let mut older = OlderGroups::new();
    for (number, group) in spec.groups.iter().enumerate() {
        if rollout.strategy(group).is_none() {
            continue;
        }
        let own = allocations.iter().filter(|row| row.group == group.name);
        let own = own.filter(|row| row.job_create_index == create_index);
        let versions = own.map(|row| row.job_version).chain(stable.map(|stable| stable.version));
        let others = versions.filter(|other| *other != version);
        older.extend(others.map(|version| (number, version)));
    }
    older.sort_unstable();
    older.dedup();
    older
}

/// What the deployment allows the group in this pass, and what the pass has done so far.
#[derive(Default)]
pub(super) struct Step {
    /// How many canaries are wanted. `None`: the group begins without canaries, or they have been
    /// promoted.
    pub(super) canaries: Option<u32>,
    /// New instances of the current version may be placed, and older ones replaced.
    pub(super) is_open: bool,
    /// How many instances of the current version this pass places.
    pub(super) placed: u32,
    /// How many instances of any version this pass places on nodes without one.
    pub(super) filled: u32,
    /// How many instances a later pass has to replace by the current version.
    pub(super) left: u32,
}

impl Work<'_> {
    /// What the deployment allows the group before this pass has placed anything.
    pub(super) fn step(&self, group: &TaskGroup, standing: &Standing<'_>) -> Step {
        let Some(strategy) = self.rollout.strategy(group) else {
            return Step { is_open: true, ..Step::default() };
        };
        let begins = self.rollout.may_begin_with_canaries()
            && strategy.canaries > 0
            && !standing.updates.is_empty()
            && !self.only_goes_back(group, standing);
        let canaries = if begins {
            let nodes = u64::try_from(standing.settled.len()).unwrap_or(u64::MAX);
            let share = nodes.saturating_mul(strategy.canaries.into()).div_ceil(100);
            // Nodes that run the current version already cannot get a canary.
            let most = u64::try_from(standing.updates.len()).unwrap_or(u64::MAX);
            Some(u32::try_from(share.min(most)).unwrap_or(u32::MAX).max(1))
        } else {
            self.rollout.canaries(group)
        };
        Step { canaries, is_open: self.rollout.is_open(group, begins), ..Step::default() }
    }

    /// Whether this version only undoes a failed rollout: every instance to replace is an
    /// unpromoted canary, and the current version runs what the last stable one runs. Such a
    /// rollout needs no canaries.
    fn only_goes_back(&self, group: &TaskGroup, standing: &Standing<'_>) -> bool {
        let is_same = |stable: &JobVersion| {
            let old = stable.spec.group(&group.name);
            old.is_some_and(|old| !differ(&stable.spec, old, self.spec, group))
        };
        standing.updates.iter().all(|allocation| allocation.is_canary())
            && self.stable.as_deref().is_some_and(is_same)
    }

    /// The number of the last stable version, if that has the group and its tasks differ from the
    /// current ones.
    pub(super) fn proven(&self, group: &TaskGroup) -> Option<u64> {
        let stable = self.stable.as_deref()?;
        let old = stable.spec.group(&group.name).filter(|old| old.count > 0)?;
        differ(&stable.spec, old, self.spec, group).then_some(stable.version)
    }

    /// Replaces the canaries of a failed deployment by the last stable version. Returns `false` if
    /// the plan is full.
    ///
    /// Unhealthy canaries are replaced at once. Healthy ones are replaced `max_parallel` at a time,
    /// less the instances that are down already. If the stable version finds no room, the canary
    /// keeps running. If the stable version may not run on the node, the canary is stopped without
    /// a successor.
    pub(super) fn give_back(
        &mut self,
        number: usize,
        group: &TaskGroup,
        standing: &Standing<'_>,
        step: &mut Step,
    ) -> bool {
        let Some(strategy) = self.rollout.strategy(group) else { return true };
        let version = self.proven(group);
        let (well, others): (Vec<&Allocation>, Vec<&Allocation>) = standing
            .given_up
            .iter()
            .partition(|row| self.rollout.is_well(&self.draft.pass, group, row));
        let down = u32::try_from(others.len()).unwrap_or(u32::MAX);
        let down = down.saturating_add(standing.starting).saturating_add(step.filled);
        let free = strategy.max_parallel.saturating_sub(down) as usize;
        for allocation in others.into_iter().chain(well.iter().copied().take(free)) {
            let Some(position) = self.stack.position(allocation.node) else { continue };
            if !self.draft.has_room() || !self.stop(allocation, Reason::NotNeeded) {
                return false;
            }
            let seat = Seat { number, position, version, canary: false };
            match self.place(group, seat, Some(allocation)) {
                Ok(()) => step.left += 1,
                Err(Obstacle::Filtered) => {}
                Err(Obstacle::Exhausted) => {
                    self.draft.pop_stop();
                    self.stack.restore(allocation);
                }
            }
        }
        if well.len() > free {
            self.look_again(&strategy);
        }
        true
    }

    /// Creates an evaluation that takes the next step back, once the instances placed now have run
    /// for the minimum healthy time. Creates none if one waits already.
    fn look_again(&mut self, strategy: &UpdateStrategy) {
        let due = self.draft.pass.now.saturating_add(strategy.healthy_ms_min.max(STEP_BACK_MS_MIN));
        let own = self.draft.pass.evaluation.id;
        let waits = |open: &Evaluation| {
            open.id != own
                && open.status == EvaluationStatus::Pending
                && open.trigger == Trigger::DeploymentWatcher
                && open.wait_until > self.draft.pass.now
        };
        let mut made = self.draft.evaluations.iter();
        let is_awaited = made.any(waits) || evaluate::open_evaluations(&self.draft).any(waits);
        if !is_awaited {
            evaluate::follow_up(&mut self.draft, Trigger::DeploymentWatcher, due, Vec::new());
        }
    }

    /// Whether an instance has run for less than the group's minimum healthy time.
    pub(super) fn is_starting(&self, group: &TaskGroup, allocation: &Allocation) -> bool {
        let least = self.rollout.strategy(group).map_or(0, |update| update.healthy_ms_min);
        allocation.client != ClientStatus::Running
            || allocation.client_at.saturating_add(least) > self.draft.pass.now
    }

    /// Begins a deployment if this version needs one. A running deployment gets new totals if the
    /// set of nodes has changed. Nodes without room do not count.
    pub(super) fn set_goals(&mut self, standings: &[Standing<'_>], steps: &[Step]) {
        let groups = self.spec.groups.iter().zip(standings).zip(steps).filter_map(
            |((group, standing), step)| {
                self.rollout.strategy(group).filter(|_| group.count > 0)?;
                Some((group, standing, step))
            },
        );
        let mut is_needed = false;
        let mut goals: BTreeMap<Text, DeploymentGoal> = BTreeMap::new();
        for (group, standing, step) in groups {
            let changes = !standing.updates.is_empty() || standing.in_place > 0;
            let does = step.placed > 0 || standing.in_place > 0;
            is_needed |= does && (changes || !standing.has_run);
            let total = if self.draft.is_cut() {
                // The plan is incomplete, so the exact total is unknown. The total is set high, and
                // the next pass corrects it.
                let nodes = self.stack.positions().len().max(standing.settled.len());
                u32::try_from(nodes).unwrap_or(u32::MAX)
            } else {
                standing.members + standing.in_place + step.placed + step.left
            };
            let canaries = step.canaries.unwrap_or(0);
            goals.insert(group.name.clone(), DeploymentGoal { canaries, total });
        }
        if let Some(row) = self.rollout.active() {
            let is_new = |name: &Text, goal: &DeploymentGoal| {
                row.groups.get(name).is_some_and(|group| group.goal.total != goal.total)
            };
            if goals.iter().any(|(name, goal)| is_new(name, goal)) {
                self.draft.set_goals(row.id, goals);
            }
        } else if is_needed && !self.rollout.is_begun() {
            self.draft.begin_deployment(goals);
        }
    }

    /// How many instances of older versions this pass may replace. While canaries are wanted, that
    /// is the number of missing canaries. Otherwise it is `max_parallel`. Either is bounded by
    /// `max_parallel` less the instances that are not healthy yet.
    pub(super) fn limit(
        &mut self,
        number: usize,
        group: &TaskGroup,
        standing: &Standing<'_>,
        step: &Step,
    ) -> usize {
        let Some(strategy) = self.rollout.strategy(group) else { return usize::MAX };
        if standing.is_stuck || (step.canaries.is_some() && !self.rollout.takes_canaries()) {
            return 0;
        }
        let busy = standing.unhealthy.saturating_add(self.failing(number, standing, step));
        let free = strategy.max_parallel.saturating_sub(busy);
        let limit = match step.canaries {
            Some(wanted) => free.min(wanted.saturating_sub(standing.canaries)),
            None if step.is_open => free,
            None => 0,
        };
        limit as usize
    }

    /// What may be placed on a node without an instance while the deployment holds back the current
    /// version. The successor of an earlier allocation runs that allocation's version. A node that
    /// never had an instance may only get a canary, if one is still wanted. `None`: nothing is
    /// placed.
    pub(super) fn held(
        &self,
        standing: &Standing<'_>,
        step: &Step,
        previous: Option<&Allocation>,
        seat: Seat,
    ) -> Option<Seat> {
        let previous = previous.filter(|row| row.job_create_index == self.version.created);
        let left = previous.filter(|row| self.rollout.is_left_canary(row));
        if let Some(version) = left.and_then(|_| self.proven(&self.spec.groups[seat.number])) {
            return Some(Seat { version: Some(version), ..seat });
        }
        let there = standing.canaries.saturating_add(step.placed);
        match previous {
            Some(row) if self.is_given_up(row) => None,
            Some(row) if self.is_current(row) => {
                let canary = self.rollout.is_waiting_canary(row) && row.is_canary();
                // A canary that is lost may have been replaced on another node already.
                let group = &self.spec.groups[seat.number];
                if canary && self.rollout.canaries_max(group).is_some_and(|max| there >= max) {
                    return Some(Seat { version: Some(self.proven(group)?), ..seat });
                }
                Some(Seat { canary, ..seat })
            }
            Some(row) => Some(Seat { version: Some(row.job_version), ..seat }),
            None => self.wants_canary(standing, step).then_some(Seat { canary: true, ..seat }),
        }
    }

    /// Whether canaries are missing and may be placed now.
    pub(super) fn wants_canary(&self, standing: &Standing<'_>, step: &Step) -> bool {
        let there = standing.canaries.saturating_add(step.placed);
        self.rollout.takes_canaries()
            && !standing.is_stuck
            && step.canaries.is_some_and(|wanted| there < wanted)
    }

    /// Whether the allocation failed in a deployment that failed. It is not tried again.
    pub(super) fn is_given_up(&self, allocation: &Allocation) -> bool {
        allocation.client == ClientStatus::Failed
            && self.rollout.has_failed()
            && self.rollout.owns(allocation)
    }

    /// Counts an instance that keeps running, if it belongs to the deployment.
    pub(super) fn count_member(
        &self,
        group: &TaskGroup,
        allocation: &Allocation,
        standing: &mut Standing<'_>,
    ) {
        if !self.rollout.owns(allocation) {
            return;
        }
        let healthy = allocation.deployment.and_then(|own| own.is_healthy());
        standing.members += 1;
        standing.canaries += u32::from(allocation.is_canary());
        standing.unhealthy += u32::from(!self.rollout.is_well(&self.draft.pass, group, allocation));
        standing.is_stuck |= healthy == Some(false);
    }
}
