//! Schedules system and sysbatch jobs: one instance of each group on every node that may run it.
//!
//! Each node is decided alone. An instance never moves to another node, and a node without room
//! gets its own blocked evaluation.
//!
//! A deployment rolls out a change of a system job (`reconcile/rollout.rs`, `steps.rs`). Its
//! canaries are a percentage of the nodes. A canary replaces the instance on its node, because a
//! node is sized for one instance, not two. If the deployment fails, the last stable version
//! replaces the canaries again.

mod steps;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{Allocation, ClientStatus, JobKind, JobSpec, JobVersion, Node, NodeId, Plan, TaskGroup};

use self::steps::{Step, older_versions};
use crate::{
    kind::{draft::Draft, evaluate, service::Texts},
    pass::VersionId,
    place::{
        candidates::{Memory, holds_what_it_runs, in_pool, matches_datacenter},
        older::{OlderGroups, stack_groups},
        stack::{Obstacle, Stack},
    },
    reconcile::{
        changes::{self, PlaceWish, Reason},
        rollout::Rollout,
        update::Differences,
    },
};

/// Plans the changes that bring each node to one instance of each group.
pub(crate) fn schedule<'a>(
    mut draft: Draft<'a>,
    spec: &'a JobSpec,
    memory: &'a mut Memory,
) -> Plan {
    let job = &draft.pass.evaluation.job;
    let allocations: Vec<&Allocation> =
        draft.pass.state.allocations_of_job(job).map(|allocation| &**allocation).collect();
    for group in &spec.groups {
        draft.queued.insert(group.name.clone(), 0);
    }
    let rollout = Rollout::of(&draft.pass, &draft.target);
    let stable = draft.target.job.and_then(|job| {
        let stable = draft.pass.state.last_stable_version(&job.key, job.create_index);
        stable.filter(|stable| stable.spec.kind == job.kind)
    });
    let left = stable.as_deref().filter(|_| rollout.has_failed());
    let older = older_versions(&rollout, draft.target.version(), spec, &allocations, left);
    let behind = stack_groups(&draft.target, draft.pass.state, &older);
    let offered = (spec, &*behind);
    let stack = Stack::new(&draft.pass, offered, &allocations, memory);
    let mut work = Work {
        version: draft.target.version(),
        kind: draft.target.kind(draft.pass.evaluation),
        draft,
        spec,
        rollout,
        stable,
        older,
        stack,
        exhausted: BTreeSet::new(),
        texts: Texts::default(),
    };
    let mut by_group: BTreeMap<&str, Vec<&Allocation>> = BTreeMap::new();
    for allocation in allocations {
        by_group.entry(&allocation.group).or_default().push(allocation);
    }
    work.all_groups(by_group);
    let exhausted: Vec<NodeId> = work.exhausted.into_iter().collect();
    evaluate::finish_per_node(work.draft, &exhausted)
}

/// The instances of a group, sorted by what is to happen to them. The stops that depend on nothing
/// else have been recorded already.
#[derive(Default)]
struct Standing<'a> {
    /// Instances that the new version is to replace.
    updates: Vec<&'a Allocation>,
    /// Canaries of a failed deployment. The last stable version replaces them.
    given_up: Vec<&'a Allocation>,
    /// Instances of older versions that have not run for the group's minimum healthy time yet.
    starting: u32,
    /// Live instances that belong to the deployment.
    members: u32,
    /// Canaries among `members`.
    canaries: u32,
    /// Instances that belong to the deployment, or are updated in place by this pass, and are not
    /// healthy.
    unhealthy: u32,
    /// The agent has reported a member as unhealthy. Nothing else is replaced then.
    is_stuck: bool,
    /// Instances that this pass updates in place.
    in_place: u32,
    /// The current version has or had an instance.
    has_run: bool,
    /// Nodes that need no new instance: the group runs there or has finished there.
    settled: BTreeSet<NodeId>,
    /// By node, the newest allocation that ended there.
    previous: BTreeMap<NodeId, &'a Allocation>,
}

/// What happens to a live allocation.
enum Fate {
    Keep,
    Stop(Reason),
    InPlace,
    Replace,
    GiveUp,
}

struct Work<'a> {
    draft: Draft<'a>,
    spec: &'a JobSpec,
    version: VersionId,
    kind: JobKind,
    rollout: Rollout<'a>,
    /// The last stable version of the job, if that has the same kind.
    stable: Option<Arc<JobVersion>>,
    older: OlderGroups,
    stack: Stack<'a>,
    /// Nodes without room for an instance of some group.
    exhausted: BTreeSet<NodeId>,
    texts: Texts,
}

impl<'a> Work<'a> {
    /// Plans all groups. All stops are recorded before anything is placed, so that a stop in one
    /// group makes room for another group too.
    fn all_groups(&mut self, mut by_group: BTreeMap<&str, Vec<&'a Allocation>>) {
        let groups = &self.spec.groups;
        let own: Vec<_> =
            groups.iter().map(|group| by_group.remove(&*group.name).unwrap_or_default()).collect();
        for allocation in by_group.into_values().flatten().filter(|row| row.is_live()) {
            let lost = changes::is_lost(&self.draft.pass, allocation);
            if !self.stop(allocation, if lost { Reason::Lost } else { Reason::NotNeeded }) {
                return;
            }
        }
        let mut standings = Vec::with_capacity(groups.len());
        for (number, (group, own)) in groups.iter().zip(&own).enumerate() {
            let Some(standing) = self.look_at(number, group, own) else { return };
            standings.push(standing);
        }
        let mut steps: Vec<Step> =
            groups.iter().zip(&standings).map(|(group, own)| self.step(group, own)).collect();
        for (number, (group, standing)) in groups.iter().zip(&standings).enumerate() {
            let step = &mut steps[number];
            if !self.update(number, group, standing, step)
                || (group.count > 0 && !self.fill(number, group, standing, step))
                || !self.give_back(number, group, standing, step)
            {
                break;
            }
        }
        self.set_goals(&standings, &steps);
    }

    /// Records the stops and in-place updates that follow from an allocation alone, and sorts the
    /// rest. `None`: the plan is full.
    fn look_at(
        &mut self,
        number: usize,
        group: &TaskGroup,
        allocations: &[&'a Allocation],
    ) -> Option<Standing<'a>> {
        let mut differences = Differences::default();
        let mut standing = Standing::default();
        for allocation in allocations {
            let node = allocation.node;
            standing.has_run |= self.is_current(allocation);
            if !allocation.is_live() {
                if self.has_finished(allocation) {
                    standing.settled.insert(node);
                } else if standing
                    .previous
                    .get(&node)
                    .is_none_or(|last| last.create_index < allocation.create_index)
                {
                    standing.previous.insert(node, allocation);
                }
                continue;
            }
            match self.fate(number, group, allocation, &mut differences) {
                Fate::Keep => {
                    self.count_member(group, allocation, &mut standing);
                    standing.settled.insert(node);
                }
                Fate::Stop(reason) => {
                    if !self.stop(allocation, reason) {
                        return None;
                    }
                    // `Reason::Ended` leaves the node without an instance until the job changes.
                    // After another stop, `fill` places a successor if the node may still get one.
                    if reason == Reason::Ended {
                        standing.settled.insert(node);
                    } else {
                        standing.previous.insert(node, allocation);
                    }
                }
                Fate::InPlace => {
                    if !self.draft.update_in_place(allocation) {
                        return None;
                    }
                    standing.in_place += 1;
                    let is_well = self.rollout.is_well(&self.draft.pass, group, allocation);
                    standing.unhealthy += u32::from(!is_well);
                    standing.settled.insert(node);
                }
                Fate::Replace => {
                    standing.starting += u32::from(self.is_starting(group, allocation));
                    standing.updates.push(allocation);
                    standing.settled.insert(node);
                }
                Fate::GiveUp => {
                    standing.given_up.push(allocation);
                    standing.settled.insert(node);
                }
            }
        }
        // Unhealthy instances are replaced first, so that healthy ones serve for as long as
        // possible. Within each half, canaries left from another deployment come first.
        standing.updates.sort_by_cached_key(|allocation| {
            let is_well = self.rollout.is_well(&self.draft.pass, group, allocation);
            (is_well, !allocation.is_canary(), allocation.id)
        });
        Some(standing)
    }

    fn is_current(&self, allocation: &Allocation) -> bool {
        VersionId::of(allocation) == self.version
    }

    /// Whether the previous allocation on the node ran an older version.
    fn is_outdated(&self, previous: Option<&Allocation>) -> bool {
        previous.is_some_and(|row| self.version.is_other_of_same_job(row))
    }

    /// Whether the node needs no new instance although this one has ended. A sysbatch instance that
    /// ended by itself, or was ended by a drain or a user, is done until the job changes. A system
    /// instance is done only if a user ended it and asked for no replacement.
    fn has_finished(&self, allocation: &Allocation) -> bool {
        let runs_once = self.kind == JobKind::Sysbatch;
        let has_ended = !allocation.is_server_terminal()
            && !allocation.transition.reschedule
            && matches!(allocation.client, ClientStatus::Complete | ClientStatus::Failed);
        self.is_current(allocation)
            && ((runs_once && has_ended)
                || (allocation.may_stay_ended(runs_once) && allocation.is_ended_by_request()))
    }

    fn fate(
        &mut self,
        number: usize,
        group: &TaskGroup,
        allocation: &Allocation,
        differences: &mut Differences,
    ) -> Fate {
        if changes::is_lost(&self.draft.pass, allocation) {
            return Fate::Stop(Reason::Lost);
        }
        // An allocation that is not per node belongs to an earlier job with this id, of another
        // kind.
        if group.count == 0 || !allocation.per_node {
            return Fate::Stop(Reason::NotNeeded);
        }
        let transition = allocation.transition;
        if transition.migrate || transition.reschedule {
            let runs_once = self.kind == JobKind::Sysbatch;
            let may_stay = self.is_current(allocation) && allocation.may_stay_ended(runs_once);
            let is_over = may_stay && !transition.reschedule;
            return Fate::Stop(if is_over { Reason::Ended } else { Reason::Migrating });
        }
        let state = self.draft.pass.state;
        let Some(node) = state.nodes().get(&allocation.node) else {
            return Fate::Stop(Reason::Lost);
        };
        if !self.is_wanted_on(node) {
            return Fate::Stop(Reason::NodeNotWanted);
        }
        if self.is_current(allocation) {
            let is_left = self.rollout.is_left_canary(allocation);
            let goes = is_left && node.is_schedulable() && self.proven(group).is_some();
            return if goes { Fate::GiveUp } else { Fate::Keep };
        }
        if !self.stack.may_run_on(number, node) {
            return Fate::Stop(Reason::NodeNotWanted);
        }
        if !differences.replaces(state, allocation, self.spec, group)
            && holds_what_it_runs(state, node)
        {
            return Fate::InPlace;
        }
        // A node that is not schedulable cannot take the new version. The old one runs on until the
        // node can.
        if node.is_schedulable() { Fate::Replace } else { Fate::Keep }
    }

    fn is_wanted_on(&self, node: &Node) -> bool {
        in_pool(node, self.spec) && matches_datacenter(self.spec, &node.description.datacenter)
    }

    fn stop(&mut self, allocation: &Allocation, reason: Reason) -> bool {
        let text = self.texts.of(reason);
        let done = self.draft.stop(allocation, &text, reason == Reason::Lost);
        if done {
            self.stack.release(allocation);
        }
        done
    }

    /// Replaces instances of older versions, up to the limit of the step. Returns `false` if the
    /// plan is full. A node that cannot take the new version does not hold up the other nodes.
    fn update(
        &mut self,
        number: usize,
        group: &TaskGroup,
        standing: &Standing<'_>,
        step: &mut Step,
    ) -> bool {
        if standing.updates.is_empty() {
            return true;
        }
        let limit = self.limit(number, group, standing, step);
        let canary = step.canaries.is_some();
        let mut done = 0;
        for allocation in &standing.updates {
            if done == limit {
                step.left += 1;
                continue;
            }
            let Some(position) = self.stack.position(allocation.node) else { continue };
            if !self.draft.has_room() || !self.stop(allocation, Reason::Updating) {
                return false;
            }
            let seat = Seat { number, position, version: None, canary };
            if self.place(group, seat, Some(allocation)).is_ok() {
                done += 1;
                step.placed += 1;
            } else {
                self.draft.pop_stop();
                self.stack.restore(allocation);
            }
        }
        true
    }

    /// How many failed instances [`Self::fill`] is about to replace by the current version. They
    /// count against `max_parallel`. While the step is open, failed instances of older versions
    /// count too. An instance that finds no room does not count, so that it does not hold up the
    /// rollout.
    fn failing(&mut self, number: usize, standing: &Standing<'_>, step: &Step) -> u32 {
        let mut failing = 0;
        for (node, last) in &standing.previous {
            let failed = last.client == ClientStatus::Failed && !last.is_server_terminal();
            if failed
                && (step.is_open || self.is_current(last))
                && !standing.settled.contains(node)
                && let Some(position) = self.stack.position(*node)
                && self.stack.try_node(number, position).is_ok()
            {
                failing += 1;
            }
        }
        failing
    }

    /// Places an instance on every candidate without one. Returns `false` if the plan is full.
    fn fill(
        &mut self,
        number: usize,
        group: &TaskGroup,
        standing: &Standing<'_>,
        step: &mut Step,
    ) -> bool {
        for position in self.stack.positions() {
            let node = self.stack.node(position).id;
            if standing.settled.contains(&node) {
                continue;
            }
            let previous = standing.previous.get(&node).copied();
            let mut seat = Seat { number, position, version: None, canary: false };
            if !step.is_open {
                // An older version was stopped on the nodes where the current one may not run. It
                // must not be placed there again.
                if !self.stack.may_run_on(number, self.stack.node(position)) {
                    continue;
                }
                // A canary may have found no room on the nodes with an instance. Then it is placed
                // on a node without one, before an older version takes that: otherwise the rollout
                // might never begin.
                if self.is_outdated(previous) && self.wants_canary(standing, step) {
                    if !self.draft.has_room() {
                        return false;
                    }
                    let canary = Seat { canary: true, ..seat };
                    if self.place(group, canary, previous).is_ok() {
                        step.filled += 1;
                        step.placed += 1;
                        continue;
                    }
                }
                let Some(held) = self.held(standing, step, previous, seat) else { continue };
                seat = held;
            }
            if !self.draft.has_room() {
                return false;
            }
            if self.place(group, seat, previous).is_ok() {
                step.filled += 1;
                // An instance of an older version is one that a later pass still has to replace.
                let count = if seat.version.is_none() { &mut step.placed } else { &mut step.left };
                *count += 1;
            }
        }
        true
    }

    /// Places an instance on the seat's node. A node without room is noted in `exhausted`.
    fn place(
        &mut self,
        group: &TaskGroup,
        seat: Seat,
        previous: Option<&Allocation>,
    ) -> Result<(), Obstacle> {
        let Seat { number, position, version, canary } = seat;
        let is_it = |version| self.older.iter().position(|one| *one == (number, version));
        let in_stack = match version.map(is_it) {
            None => number,
            Some(Some(extra)) => self.spec.groups.len() + extra,
            Some(None) => return Err(Obstacle::Filtered),
        };
        match self.stack.try_node(in_stack, position) {
            Ok(choice) => {
                self.stack.take(in_stack, &choice);
                let wish = PlaceWish { version, previous, ..PlaceWish::new(0, canary) };
                self.draft.place(group, &wish, choice);
                Ok(())
            }
            Err((obstacle, metrics)) => {
                if matches!(obstacle, Obstacle::Exhausted) {
                    self.exhausted.insert(self.stack.node(position).id);
                    self.draft.fail(&group.name, version, 1, *metrics);
                }
                Err(obstacle)
            }
        }
    }
}

/// Which group to place on which node, and as what.
#[derive(Clone, Copy)]
struct Seat {
    /// Index of the group in the spec.
    number: usize,
    /// Position of the node in the stack.
    position: usize,
    /// `None`: the job's current version.
    version: Option<u64>,
    canary: bool,
}
