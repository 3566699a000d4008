//! Schedules service and batch jobs: each group gets `count` instances, on any nodes that fit.
//!
//! A pass decides in this order: stops that do not depend on a successor, in-place updates,
//! destructive updates (each stop makes room for its successor), missing instances. Once a missing
//! instance of a group has found no room, no more nodes are searched for the group; its further
//! failures are only counted.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{Allocation, AllocationId, JobSpec, Metrics, Plan, TaskGroup, Text, Trigger};

use crate::{
    kind::{draft::Draft, evaluate},
    pass::VersionId,
    place::{
        candidates::{Memory, holds_what_it_runs, in_pool, matches_datacenter},
        older::{OlderGroups, stack_groups},
        stack::Stack,
    },
    reconcile::{
        changes::{self, Changes, PlaceWish, Reason},
        reschedule,
        rollout::Rollout,
        update::Differences,
    },
};

/// How many destructive updates of a group may find no room in one pass. The remaining old
/// instances are then left running. The bound exists because each try looks at every node.
const REPLACEMENT_FAILURES_MAX: usize = 16;

/// The result of trying to place one instance.
enum Tried {
    Placed,
    /// The plan is full. The next pass continues.
    PlanFull,
    NoRoom(Box<Metrics>),
}

/// Stops every allocation of a job that may run nothing. Failed allocations are stopped too:
/// otherwise they would count towards the group again when the job is started.
pub(crate) fn stop_all(mut draft: Draft<'_>) -> Plan {
    let allocations = allocations(&draft).into_iter();
    for allocation in allocations.filter(|allocation| changes::is_to_stop(allocation)) {
        let lost = allocation.is_live() && changes::is_lost(&draft.pass, allocation);
        let reason = if lost { Reason::Lost } else { Reason::NotNeeded };
        if !draft.stop(allocation, &reason.text().into(), lost) {
            break;
        }
    }
    evaluate::complete(draft)
}

/// Plans the changes that bring each group to its count.
pub(crate) fn schedule<'a>(
    mut draft: Draft<'a>,
    spec: &'a JobSpec,
    memory: &'a mut Memory,
) -> Plan {
    let allocations = allocations(&draft);
    let mut by_group: BTreeMap<&str, Vec<&Allocation>> = BTreeMap::new();
    for allocation in &allocations {
        by_group.entry(&allocation.group).or_default().push(allocation);
    }
    let version = draft.target.version();
    let kind = draft.target.kind(draft.pass.evaluation);
    let rollout = Rollout::of(&draft.pass, &draft.target);
    let mut changes: Vec<Changes<'_>> = Vec::with_capacity(spec.groups.len());
    for group in &spec.groups {
        draft.queued.insert(group.name.clone(), 0);
        let own = by_group.remove(&*group.name).unwrap_or_default();
        changes.push(changes::group(&draft.pass, &rollout, kind, version, group, &own));
    }
    let removed: Vec<_> = by_group.into_values().flatten().collect();
    let quiet = changes.iter().all(|own| own.placements.is_empty() && own.outdated.is_empty());
    let older = older_versions(&rollout, version, spec, &changes);
    let behind = stack_groups(&draft.target, draft.pass.state, &older);
    let offered = (spec, &*behind);
    let stack = (!quiet).then(|| Stack::new(&draft.pass, offered, &allocations, memory));
    let mut work = Work {
        draft,
        spec,
        rollout,
        older,
        stack,
        failed: BTreeSet::new(),
        stood_in: BTreeMap::new(),
        placed: BTreeSet::new(),
        in_place: BTreeSet::new(),
        retried: BTreeSet::new(),
        replaced: BTreeSet::new(),
    };
    if work.stop(&removed, &changes) {
        work.update_and_place(&mut changes);
        work.follow_up(&changes);
    }
    work.finish()
}

/// The older versions that may be placed in this pass, by group. Older versions are placed only
/// while the deployment holds back the current one.
fn older_versions(
    rollout: &Rollout<'_>,
    version: VersionId,
    spec: &JobSpec,
    changes: &[Changes<'_>],
) -> OlderGroups {
    let mut older = OlderGroups::new();
    for (number, (group, own)) in spec.groups.iter().zip(changes).enumerate() {
        if rollout.strategy(group).is_none() {
            continue;
        }
        let versions = own.placements.iter().filter_map(|wish| wish.older_version(version));
        let stand_ins = [own.stand_in, own.next_stand_in].into_iter().flatten();
        let versions = versions.chain(stand_ins.map(|stand_in| stand_in.version));
        older.extend(versions.map(|version| (number, version)));
    }
    older.sort_unstable();
    older.dedup();
    older
}

fn allocations<'a>(draft: &Draft<'a>) -> Vec<&'a Allocation> {
    let job = &draft.pass.evaluation.job;
    draft.pass.state.allocations_of_job(job).map(|allocation| &**allocation).collect()
}

struct Work<'a> {
    draft: Draft<'a>,
    spec: &'a JobSpec,
    rollout: Rollout<'a>,
    older: OlderGroups,
    /// `None`: the pass neither places nor updates anything, so that no stack is built.
    stack: Option<Stack<'a>>,
    /// Stack groups in which an instance found no room. An older version of a group has a number of
    /// its own in the stack, so that its failure does not end the search for the current version.
    failed: BTreeSet<usize>,
    /// Failed stack groups whose failure is not recorded in the draft yet, because an older version
    /// was tried instead. The value says why the first try failed.
    stood_in: BTreeMap<usize, Box<Metrics>>,
    /// Stack groups of which an instance was placed.
    placed: BTreeSet<usize>,
    /// Groups of which an instance is updated in place.
    in_place: BTreeSet<usize>,
    /// Failed allocations that are replaced although the new version does not change their tasks.
    retried: BTreeSet<AllocationId>,
    /// Allocations that have a successor in this plan.
    replaced: BTreeSet<AllocationId>,
}

impl<'a> Work<'a> {
    /// Records the stops that do not depend on a successor. Returns `false` if the plan is full.
    fn stop(&mut self, removed: &[&Allocation], changes: &[Changes<'_>]) -> bool {
        let removed = removed.iter().filter(|allocation| changes::is_to_stop(allocation));
        let removed = removed.map(|allocation| {
            let lost = allocation.is_live() && changes::is_lost(&self.draft.pass, allocation);
            (*allocation, if lost { Reason::Lost } else { Reason::NotNeeded })
        });
        let wishes = changes
            .iter()
            .flat_map(|own| own.stops.iter().map(|wish| (wish.allocation, wish.reason)));
        let all: Vec<_> = removed.chain(wishes).collect();
        let mut texts = Texts::default();
        for (allocation, reason) in all {
            if !self.draft.stop(allocation, &texts.of(reason), reason == Reason::Lost) {
                return false;
            }
            if let Some(stack) = &mut self.stack {
                stack.release(allocation);
            }
        }
        true
    }

    fn update_and_place(&mut self, changes: &mut [Changes<'a>]) {
        let spec = self.spec;
        let mut destructive = Vec::with_capacity(changes.len());
        let mut released = Vec::new();
        for (number, (group, own)) in spec.groups.iter().zip(changes.iter_mut()).enumerate() {
            let replaced = self.update_in_place(number, group, &own.outdated, &mut released);
            // `replaced` has the order of `outdated`, so both are walked together.
            let mut replaced_next = replaced.iter().peekable();
            for row in &own.outdated {
                if replaced_next.next_if(|one| one.id == row.id).is_some() {
                    continue;
                }
                own.current_names.insert(row.name_index);
                let is_well = self.rollout.is_well(&self.draft.pass, group, row);
                own.unhealthy += u32::from(!is_well);
            }
            destructive.push(replaced);
        }
        if let Some(stack) = &mut self.stack {
            for allocation in released {
                stack.restore(allocation);
            }
        }
        self.begin(changes, &destructive);
        for (number, (group, outdated)) in spec.groups.iter().zip(destructive).enumerate() {
            let limit = update_limit(&self.rollout, group, &changes[number]);
            if !self.replace(number, group, &outdated, limit, &mut changes[number]) {
                return;
            }
        }
        for (number, (group, own)) in spec.groups.iter().zip(changes.iter()).enumerate() {
            for wish in &own.placements {
                let stops = wish.rescheduled.then_some(Reason::Rescheduled);
                if !self.place(number, group, wish, stops) {
                    return;
                }
            }
        }
    }

    /// Begins a deployment if this version needs one. Drops or changes the placements that must
    /// wait for the deployment, and adds its canaries.
    fn begin(&mut self, changes: &mut [Changes<'a>], destructive: &[Vec<&'a Allocation>]) {
        let spec = self.spec;
        // A group never gets more canaries than it has instances.
        let canaries = |number: usize| {
            let group = &spec.groups[number];
            let is_changed = destructive[number].iter().any(|row| !self.retried.contains(&row.id));
            let begins = self.rollout.may_begin_with_canaries() && is_changed;
            let strategy = self.rollout.strategy(group).filter(|_| begins);
            strategy.map_or(0, |update| update.canaries.min(group.count))
        };
        let is_needed = spec.groups.iter().enumerate().any(|(number, group)| {
            let is_updated = !destructive[number].is_empty() || self.in_place.contains(&number);
            self.rollout.strategy(group).is_some()
                && group.count > 0
                && (is_updated || !changes[number].has_run)
        });
        let version = self.draft.target.version();
        for (number, (group, own)) in spec.groups.iter().zip(changes.iter_mut()).enumerate() {
            let wanted = canaries(number);
            if self.rollout.is_open(group, wanted > 0) {
                continue;
            }
            own.hold(version, self.rollout.takes_canaries());
            if wanted > 0 {
                // A canary takes the name of an instance that it may replace later, so that the
                // other instances keep their names.
                let mut names: Vec<u32> = destructive[number]
                    .iter()
                    .map(|row| row.name_index)
                    .filter(|name| *name < group.count && !own.current_names.contains(name))
                    .collect();
                names.sort_unstable();
                names.dedup();
                let free = (0..).filter(|name| !own.current_names.contains(name));
                let more: Vec<u32> =
                    free.filter(|name| !names.contains(name)).take(wanted as usize).collect();
                let names = names.into_iter().chain(more).take(wanted as usize);
                own.placements.extend(names.map(|name| PlaceWish::new(name, true)));
            }
        }
        if is_needed && !self.rollout.is_begun() {
            let non_members = |number: usize| changes[number].non_members;
            let goals = self.rollout.goals(spec, canaries, non_members);
            self.draft.begin_deployment(goals);
        }
    }

    /// Updates in place what can be, and returns the allocations that need a destructive update,
    /// failed ones included.
    ///
    /// An allocation that cannot stay is released before the next one is looked at. So if two
    /// instances must no longer share a host, one of them stays and one is replaced. The released
    /// ones are added to `released`; the caller restores them.
    fn update_in_place(
        &mut self,
        number: usize,
        group: &TaskGroup,
        outdated: &[&'a Allocation],
        released: &mut Vec<&'a Allocation>,
    ) -> Vec<&'a Allocation> {
        let mut differences = Differences::default();
        let mut replaced = Vec::new();
        for allocation in outdated {
            let state = self.draft.pass.state;
            if differences.replaces(state, allocation, self.spec, group) {
                replaced.push(*allocation);
            } else if !allocation.is_live() {
                // A failed allocation counts towards the group, but cannot be updated in place. A
                // new version is a new attempt, so it is replaced.
                self.retried.insert(allocation.id);
                replaced.push(*allocation);
            } else if !self.may_stay(number, allocation) {
                replaced.push(*allocation);
                released.push(*allocation);
            } else if self.draft.update_in_place(allocation) {
                self.in_place.insert(number);
            } else {
                // The plan is full, so a later pass updates this one. The loop goes on all the
                // same: whether an instance needs a destructive update decides about canaries in
                // this pass.
            }
        }
        replaced
    }

    /// Whether the new version may run on the allocation's node with the same resources. If not,
    /// the allocation stays released.
    fn may_stay(&mut self, number: usize, allocation: &Allocation) -> bool {
        let state = self.draft.pass.state;
        let stack = self.stack.as_mut().expect("there is a stack when something is outdated");
        stack.release(allocation);
        let may = state.nodes().get(&allocation.node).is_some_and(|node| {
            in_pool(node, self.spec)
                && matches_datacenter(self.spec, &node.description.datacenter)
                && holds_what_it_runs(state, node)
                && stack.may_run_on(number, node)
                && stack.is_distinct_on(number, node)
        });
        if may {
            stack.restore(allocation);
        }
        may
    }

    /// Replaces up to `limit` instances of older versions, unhealthy ones first. Returns `false` if
    /// the plan is full.
    ///
    /// If the successor of a healthy instance finds no room, the old one keeps running and the next
    /// is tried: each may make room on its own node. An unhealthy instance is down already. If its
    /// successor finds no room, it uses up a part of `limit` for the healthy ones.
    fn replace(
        &mut self,
        number: usize,
        group: &TaskGroup,
        outdated: &[&'a Allocation],
        limit: usize,
        own: &mut Changes<'a>,
    ) -> bool {
        let (mut done, mut down) = (0, 0);
        let mut failures = Vec::new();
        let mut live_names: BTreeMap<u32, usize> = BTreeMap::new();
        for allocation in outdated.iter().filter(|row| row.is_live()) {
            *live_names.entry(allocation.name_index).or_default() += 1;
        }
        for allocation in outdated {
            let is_well = self.rollout.is_well(&self.draft.pass, group, allocation);
            let used = if is_well { done + down } else { done };
            if used >= limit || failures.len() == REPLACEMENT_FAILURES_MAX {
                break;
            }
            // The old name may be unusable for the successor. A promoted canary or another instance
            // of an older version may have it. Or it is beyond the count, and was kept because
            // unhealthy instances with lower names were stopped instead.
            let old_name = allocation.name_index;
            let others = live_names
                .get(&old_name)
                .map_or(0, |live| live - usize::from(allocation.is_live()));
            let is_taken =
                others > 0 || own.current_names.contains(&old_name) || old_name >= group.count;
            let name_index = if is_taken { own.names.next() } else { old_name };
            let wish =
                PlaceWish { previous: Some(allocation), ..PlaceWish::new(name_index, false) };
            match self.try_place(number, group, &wish, Some(Reason::Updating)) {
                Tried::Placed => {
                    done += 1;
                    own.current_names.insert(name_index);
                    if allocation.is_live() {
                        live_names.insert(old_name, others);
                    }
                }
                Tried::PlanFull => return false,
                Tried::NoRoom(metrics) => {
                    failures.push(metrics);
                    if is_taken {
                        own.names.put_back(name_index);
                    }
                    down += usize::from(!is_well);
                }
            }
        }
        let left = outdated.len().min(limit) - done;
        if left > 0
            && let Some(metrics) = failures.into_iter().next()
        {
            let left = u32::try_from(left).unwrap_or(u32::MAX);
            self.draft.fail(&group.name, None, left, *metrics);
            self.failed.insert(number);
        }
        true
    }

    /// Places one instance. With a `reason`, its predecessor is stopped in the same plan, for that
    /// reason. If there is no room, the older versions in `wish.stand_ins` are tried in turn.
    /// Returns `false` if the plan is full.
    fn place(
        &mut self,
        number: usize,
        group: &TaskGroup,
        wish: &PlaceWish<'_>,
        reason: Option<Reason>,
    ) -> bool {
        let in_stack = self.number_in_stack(number, wish.version);
        let mut failure = None;
        if !self.failed.contains(&in_stack) {
            match self.try_place(in_stack, group, wish, reason) {
                Tried::Placed => {
                    self.placed.insert(in_stack);
                    return true;
                }
                Tried::PlanFull => return false,
                Tried::NoRoom(metrics) => failure = Some(metrics),
            }
            self.failed.insert(in_stack);
        }
        // An older version stands in only if no newer stand-in was placed in this pass: the next
        // pass would choose the newest.
        let stands_in = |version: u64| !self.has_placed(number, version.saturating_add(1));
        if let Some((version, rest)) = wish.stand_ins.split_first()
            && stands_in(*version)
        {
            let (version, stand_ins) = (Some(*version), rest.to_vec());
            let older = PlaceWish { version, stand_ins, ..PlaceWish::new(wish.name_index, false) };
            self.stood_in.extend(failure.map(|metrics| (in_stack, metrics)));
            return self.place(number, group, &older, None);
        }
        match failure.or_else(|| self.stood_in.remove(&in_stack)) {
            Some(metrics) => self.draft.fail(&group.name, wish.version, 1, *metrics),
            None => self.count_failure(group, wish.version),
        }
        true
    }

    /// Whether this pass has placed an instance of the group in the version `least` or in a newer
    /// one that is older than the current version.
    fn has_placed(&self, number: usize, least: u64) -> bool {
        self.older.iter().any(|(of, version)| {
            let in_stack = self.number_in_stack(number, Some(*version));
            *of == number && *version >= least && self.placed.contains(&in_stack)
        })
    }

    /// The number in the stack of a group of the job, in an older version if `version` names one.
    fn number_in_stack(&self, number: usize, version: Option<u64>) -> usize {
        let is_it = |version| self.older.iter().position(|one| *one == (number, version));
        let extra = version.and_then(is_it);
        extra.map_or(number, |extra| self.spec.groups.len() + extra)
    }

    fn try_place(
        &mut self,
        number: usize,
        group: &TaskGroup,
        wish: &PlaceWish<'_>,
        reason: Option<Reason>,
    ) -> Tried {
        if !self.draft.has_room() {
            return Tried::PlanFull;
        }
        let stack = self.stack.as_mut().expect("there is a stack when something is placed");
        let stopped = wish.previous.zip(reason);
        if let Some((previous, reason)) = stopped {
            self.draft.stop(previous, &reason.text().into(), false);
            stack.release(previous);
        }
        let penalties = match wish.previous {
            Some(previous) if wish.rescheduled => reschedule::penalties(previous),
            Some(_) | None => Vec::new(),
        };
        match stack.select(number, &penalties) {
            Ok(choice) => {
                stack.take(number, &choice);
                self.draft.place(group, wish, choice);
                self.replaced.extend(wish.previous.map(|previous| previous.id));
                Tried::Placed
            }
            Err(metrics) => {
                if let Some((previous, _)) = stopped {
                    self.draft.pop_stop();
                    stack.restore(previous);
                }
                Tried::NoRoom(metrics)
            }
        }
    }

    fn count_failure(&mut self, group: &TaskGroup, version: Option<u64>) {
        self.draft.queue(&group.name, version, 1);
        if let Some(metrics) = self.draft.failed_groups.get_mut(&group.name) {
            metrics.coalesced_failures += 1;
        }
    }

    /// Creates the evaluations that will reschedule failed allocations later.
    fn follow_up(&mut self, changes: &[Changes<'_>]) {
        let later = changes
            .iter()
            .flat_map(|own| own.later.iter().copied())
            .filter(|(_, id)| !self.replaced.contains(id))
            .collect();
        for (due, ids) in reschedule::batches(later) {
            let evaluation =
                evaluate::follow_up(&mut self.draft, Trigger::RetryFailedAlloc, due, ids.clone());
            for id in ids {
                self.draft.follow_up(id, evaluation);
            }
        }
    }

    fn finish(self) -> Plan {
        let failed: Vec<_> = self.failed.into_iter().collect();
        let classes = self.stack.map(|stack| stack.summary(&failed)).unwrap_or_default();
        evaluate::finish(self.draft, classes)
    }
}

/// How many destructive updates this pass may do in the group: `max_parallel`, less the instances
/// of the deployment that are not healthy, less the other placements of this pass. 0 while the
/// deployment holds back the current version, or after an agent has reported an instance of the
/// deployment as unhealthy.
fn update_limit(rollout: &Rollout<'_>, group: &TaskGroup, own: &Changes<'_>) -> usize {
    let Some(update) = rollout.strategy(group) else { return usize::MAX };
    if own.is_held || own.is_stuck {
        return 0;
    }
    let busy = (own.unhealthy as usize).saturating_add(own.placements.len());
    (update.max_parallel as usize).saturating_sub(busy)
}

/// Descriptions of stops. Each text is made once and shared among the stops of a plan.
#[derive(Default)]
pub(crate) struct Texts(Vec<(Reason, Text)>);

impl Texts {
    pub(crate) fn of(&mut self, reason: Reason) -> Text {
        if let Some((_, text)) = self.0.iter().find(|(known, _)| *known == reason) {
            return text.clone();
        }
        let text: Text = reason.text().into();
        self.0.push((reason, text.clone()));
        text
    }
}
