//! Reconciles one group of a service or batch job: which allocations end, which names need an
//! instance, and which allocations run an older version.
//!
//! Looks at allocations and counts only. `place/stack.rs` decides on which node an instance goes.
//! Invariant: a name that is placed is not live, or the same plan stops its holder.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Allocation, AllocationId, ClientStatus, JobKind, JobVersion, Liveness, TaskGroup, TimeMs,
    allocation::{ENDED_BY_REQUEST, RescheduleEvent},
    job::ReschedulePolicy,
};

use crate::{
    pass::{Pass, VersionId},
    reconcile::{
        reschedule::{self, When},
        rollout::Rollout,
    },
};

/// Why an allocation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NotNeeded,
    Lost,
    Migrating,
    /// A drain or a user ends the instance, and it must not be replaced until the job changes.
    Ended,
    Updating,
    Rescheduled,
    /// Another allocation has replaced it.
    Superseded,
    /// The system or sysbatch job may no longer run on that node.
    NodeNotWanted,
}

impl Reason {
    /// The description that users see.
    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::NotNeeded => "alloc not needed due to job update",
            Self::Lost => "alloc is lost since its node is down",
            Self::Migrating => "alloc is being migrated",
            Self::Ended => ENDED_BY_REQUEST,
            Self::Updating => "alloc is being updated due to job update",
            Self::Rescheduled => "alloc was rescheduled because it failed",
            Self::Superseded => "alloc was replaced by another allocation",
            Self::NodeNotWanted => "alloc not needed on this node",
        }
    }
}

/// An allocation that is to be stopped, whether or not its successor finds room.
pub(crate) struct StopWish<'a> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) reason: Reason,
}

/// An instance that is to be placed.
pub(crate) struct PlaceWish<'a> {
    pub(crate) name_index: u32,
    /// It is a canary.
    pub(crate) canary: bool,
    /// The older version that it runs; `None`: the current one.
    pub(crate) version: Option<u64>,
    /// The older versions to try in turn if it finds no room, the newest first.
    pub(crate) stand_ins: Vec<u64>,
    /// The allocation that it replaces.
    pub(crate) previous: Option<&'a Allocation>,
    /// `previous` has failed. It is stopped only if this instance is placed, and the nodes where it
    /// and its predecessors failed get a penalty.
    pub(crate) rescheduled: bool,
    pub(crate) history: Vec<RescheduleEvent>,
}

impl PlaceWish<'_> {
    /// An instance without a predecessor.
    pub(crate) fn new(name_index: u32, canary: bool) -> Self {
        Self {
            name_index,
            canary,
            version: None,
            stand_ins: Vec::new(),
            previous: None,
            rescheduled: false,
            history: Vec::new(),
        }
    }

    /// The version of the allocation that it replaces, if that is an older version of the same job.
    pub(crate) fn older_version(&self, version: VersionId) -> Option<u64> {
        let previous = self.previous.filter(|_| !self.canary)?;
        version.is_other_of_same_job(previous).then_some(previous.job_version)
    }

    /// Whether it replaces an allocation of the current version that is stopped in any case.
    fn takes_over_current(&self, version: VersionId) -> bool {
        let is_current = |row: &Allocation| VersionId::of(row) == version;
        !self.canary && !self.rescheduled && self.previous.is_some_and(is_current)
    }

    /// Whether, if it is not placed now, the next pass sees only a missing instance. That is so
    /// when its predecessor, if it has one, is stopped in any case.
    fn is_missing_next(&self) -> bool {
        !self.canary && !self.rescheduled
    }
}

/// What a group needs.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub(crate) stops: Vec<StopWish<'a>>,
    pub(crate) placements: Vec<PlaceWish<'a>>,
    /// The older version that fills gaps while the deployment holds back the current one.
    pub(crate) stand_in: Option<StandIn>,
    /// The older version that the next pass would fill gaps with, if none of the instances that end
    /// now is replaced.
    pub(crate) next_stand_in: Option<StandIn>,
    /// Kept allocations of older versions: unhealthy ones first, then by name.
    pub(crate) outdated: Vec<&'a Allocation>,
    /// Failed allocations to reschedule later, with the log time in ms.
    pub(crate) later: Vec<(TimeMs, AllocationId)>,
    /// Kept allocations that belong to the deployment, or are updated in place by this pass, and
    /// are not healthy.
    pub(crate) unhealthy: u32,
    /// An agent has reported one of these instances as unhealthy. Then nothing else is replaced.
    pub(crate) is_stuck: bool,
    /// The deployment holds back the current version.
    pub(crate) is_held: bool,
    /// The current version has or had an instance.
    pub(crate) has_run: bool,
    /// Names of kept allocations of the current version. Successors of older ones need other names.
    pub(crate) current_names: BTreeSet<u32>,
    /// Kept allocations of the current version that do not belong to its deployment.
    pub(crate) non_members: u32,
    pub(crate) names: Names,
}

/// An older version that fills gaps while the current version is held back, with the count that the
/// group has in it. A name index below that count existed in the older version, so its instance may
/// come back in it. An instance with a higher index exists only in the current version, so it
/// waits.
#[derive(Clone, Copy)]
pub(crate) struct StandIn {
    pub(crate) version: u64,
    count: u32,
}

impl Changes<'_> {
    /// Drops the placements that must wait, because the deployment holds back the current version.
    ///
    /// - A placement with a predecessor stays, and runs the predecessor's version.
    /// - A canary stays if the deployment accepts canaries.
    /// - Another placement stays if an older version lacks an instance; it then runs that version.
    ///
    /// A placement that stays may still find no room. Then its instance lacks, and the next pass
    /// would fill the gap with an older version. No event would start such a pass, so that version
    /// is tried in this one: it is added to the placement's stand-ins.
    pub(crate) fn hold(&mut self, version: VersionId, takes_canaries: bool) {
        self.is_held = true;
        let stand_in = self.stand_in;
        let mut free = stand_in.map_or(0, |older| self.free_of(older, version));
        self.placements.retain_mut(|wish| {
            if wish.previous.is_some() {
                wish.version = wish.older_version(version);
                return true;
            }
            if wish.canary {
                return takes_canaries;
            }
            let older = stand_in.filter(|older| wish.name_index < older.count && free > 0);
            wish.version = older.map(|older| older.version);
            free = free.saturating_sub(u32::from(older.is_some()));
            older.is_some()
        });
        let Some(older) = stand_in else { return };
        let ends = |wish: &&mut PlaceWish<'_>| wish.takes_over_current(version);
        let wishes = self.placements.iter_mut().filter(ends);
        for wish in wishes.filter(|wish| wish.name_index < older.count).take(free as usize) {
            wish.stand_ins.push(older.version);
        }
        let Some(next) = self.next_stand_in.filter(|next| next.version != older.version) else {
            return;
        };
        let free = self.free_of(next, version);
        let is_other = |wish: &PlaceWish<'_>| wish.version != Some(next.version);
        let wishes = self.placements.iter_mut();
        let wishes = wishes.filter(|wish| wish.is_missing_next() && is_other(wish));
        for wish in wishes.filter(|wish| wish.name_index < next.count).take(free as usize) {
            wish.stand_ins.push(next.version);
        }
    }

    /// How many instances an older version still lacks. Kept instances and successors of its
    /// instances count as present.
    fn free_of(&self, older: StandIn, version: VersionId) -> u32 {
        let id = version.with_number(older.version);
        let is_it = |row: &&&Allocation| VersionId::of(row) == id;
        let kept = self.outdated.iter().filter(is_it).count();
        let come = self.placements.iter().filter(|wish| wish.previous.is_some());
        let come = come.filter(|wish| wish.older_version(version) == Some(older.version)).count();
        older.count.saturating_sub(u32::try_from(kept + come).unwrap_or(u32::MAX))
    }
}

/// The allocations of a group, sorted by what is to happen to them.
#[derive(Default)]
struct Sorted<'a> {
    /// These fill a place of the group's count: they run, have finished for good, or have failed
    /// and wait for another attempt.
    kept: Vec<&'a Allocation>,
    migrating: Vec<&'a Allocation>,
    /// Those of `kept` that are to be stopped and not replaced until the job changes.
    ending: Vec<&'a Allocation>,
    lost: Vec<&'a Allocation>,
    failed_now: Vec<&'a Allocation>,
    later: Vec<(TimeMs, AllocationId)>,
    superseded: Vec<&'a Allocation>,
    /// Allocations of an earlier system or sysbatch job with this id.
    foreign: Vec<&'a Allocation>,
}

impl<'a> Sorted<'a> {
    /// Removes the failed and lost allocations that need no replacement, because enough other
    /// instances exist for the group's count. A removed one that failed is stopped in the plan; a
    /// lost one has ended already. Neither gets a successor, so their names stay free for others.
    fn drop_unneeded(&mut self, wanted: usize, changes: &mut Changes<'a>) {
        let missing = wanted.saturating_sub(self.kept.len() + self.migrating.len());
        let cut = self.failed_now.len().min(missing);
        for allocation in self.failed_now.split_off(cut) {
            if is_to_stop(allocation) {
                changes.stops.push(StopWish { allocation, reason: Reason::NotNeeded });
            }
        }
        self.lost.truncate(missing - cut);
    }
}

/// Plans what the group needs, given its `allocations`.
pub(crate) fn group<'a>(
    pass: &Pass<'a>,
    rollout: &Rollout<'a>,
    kind: JobKind,
    version: VersionId,
    group: &TaskGroup,
    allocations: &[&'a Allocation],
) -> Changes<'a> {
    let (canaries, allocations): (Vec<&Allocation>, Vec<&Allocation>) =
        allocations.iter().partition(|allocation| allocation.is_canary());
    let of = GroupPass { pass, rollout, kind, version, group };
    let mut sorted = of.sort(&allocations);
    let mut changes = Changes { later: std::mem::take(&mut sorted.later), ..Changes::default() };
    for (list, reason) in [
        (&sorted.superseded, Reason::Superseded),
        (&sorted.lost, Reason::Lost),
        (&sorted.ending, Reason::Ended),
    ] {
        let stops = list.iter().map(|allocation| StopWish { allocation, reason });
        changes.stops.extend(stops);
    }
    for allocation in &sorted.foreign {
        let lost = is_lost(pass, allocation);
        let reason = if lost { Reason::Lost } else { Reason::NotNeeded };
        changes.stops.push(StopWish { allocation, reason });
    }
    let wanted = group.count as usize;
    of.drop_excess(&mut sorted, wanted, &mut changes);
    sorted.drop_unneeded(wanted, &mut changes);
    let is_current = |allocation: &&&Allocation| VersionId::of(allocation) == version;
    changes.current_names =
        sorted.kept.iter().filter(is_current).map(|allocation| allocation.name_index).collect();
    let names = |list: &[&Allocation]| -> BTreeSet<u32> {
        list.iter().map(|allocation| allocation.name_index).collect()
    };
    let predecessors = [&sorted.migrating[..], &sorted.lost[..], &sorted.failed_now[..]].concat();
    changes.names =
        Names { taken: names(&sorted.kept), reserved: names(&predecessors), free_from: 0 };
    of.place(&sorted, wanted, false, &mut changes);
    if changes.placements.iter().any(PlaceWish::is_missing_next) {
        let stay = [&sorted.kept, &sorted.failed_now];
        let end = [&sorted.migrating, &sorted.lost];
        changes.stand_in = of.stand_in(&[stay, end].concat());
        changes.next_stand_in = of.stand_in(&stay);
    }
    of.keep_canaries(&canaries, &mut changes);
    changes.has_run =
        allocations.iter().chain(&canaries).any(|allocation| VersionId::of(allocation) == version);

    for allocation in sorted.kept {
        if kind == JobKind::Batch && is_over(allocation) {
            continue; // It is ended on purpose, so no update waits for it.
        }
        if VersionId::of(allocation) != version {
            changes.outdated.push(allocation);
            continue;
        }
        changes.non_members += u32::from(!rollout.owns(allocation));
        if rollout.owns(allocation) {
            let healthy = allocation.deployment.and_then(|own| own.is_healthy());
            changes.is_stuck |= healthy == Some(false);
            changes.unhealthy += u32::from(!rollout.is_well(pass, group, allocation));
        }
    }
    // Unhealthy instances are replaced first, so that healthy ones serve for as long as possible.
    changes.outdated.sort_by_cached_key(|allocation| {
        let is_well = rollout.is_well(pass, group, allocation);
        (is_well, allocation.name_index, allocation.id)
    });
    changes
}

/// The group to reconcile, with what the rules read.
struct GroupPass<'a, 'p> {
    pass: &'p Pass<'a>,
    rollout: &'p Rollout<'a>,
    kind: JobKind,
    version: VersionId,
    group: &'p TaskGroup,
}

/// Whether the allocation's node is down or no longer exists.
pub(crate) fn is_lost(pass: &Pass<'_>, allocation: &Allocation) -> bool {
    pass.state.nodes().get(&allocation.node).is_none_or(|node| node.liveness == Liveness::Down)
}

/// Whether a drain or a user has asked for its end, and nobody has asked to reschedule it.
fn is_over(allocation: &Allocation) -> bool {
    allocation.transition.migrate && !allocation.transition.reschedule
}

/// Whether an allocation that the job no longer wants needs a stop. A failed one does: otherwise it
/// would count again when its group or name is wanted again.
pub(crate) fn is_to_stop(allocation: &Allocation) -> bool {
    let has_failed = allocation.client == ClientStatus::Failed && !allocation.is_server_terminal();
    allocation.is_live() || has_failed
}

impl<'a> GroupPass<'a, '_> {
    /// Whether the allocation belongs to a deployment that failed. If it fails, it is not tried
    /// again.
    fn is_given_up(&self, allocation: &Allocation) -> bool {
        self.rollout.has_failed() && self.rollout.owns(allocation)
    }

    /// The reschedule policy for a failed allocation. If its successor runs the current version,
    /// that is the current policy, otherwise the policy of its own version.
    fn policy(&self, allocation: &Allocation) -> Option<ReschedulePolicy> {
        let is_current = VersionId::of(allocation) == self.version;
        if is_current || self.rollout.is_open(self.group, false) {
            return self.group.reschedule;
        }
        let spec = self.pass.state.allocation_spec(allocation)?;
        spec.group(&allocation.group)?.reschedule
    }

    /// The older version that fills gaps while the deployment holds back the current one. It is the
    /// newest older version among the allocations in `lists`. If there is none, it is the last
    /// stable version. `None`: nothing is held back, or no version suits.
    fn stand_in(&self, lists: &[&Vec<&'a Allocation>]) -> Option<StandIn> {
        let strategy = self.rollout.strategy(self.group)?;
        let may_begin = self.rollout.may_begin_with_canaries() && strategy.canaries > 0;
        if self.rollout.is_open(self.group, may_begin) {
            return None;
        }
        let VersionId { created, number: current } = self.version;
        let rows = lists.iter().copied().flatten();
        let rows = rows.filter(|row| row.job_create_index == created);
        let newest = rows.map(|row| row.job_version).filter(|version| *version != current).max();
        let version = newest.or_else(|| self.last_stable())?;
        let spec = self.pass.state.job_spec(&self.pass.evaluation.job, created, version)?;
        Some(StandIn { version, count: spec.group(&self.group.name)?.count })
    }

    /// The last stable version before the current one. `None` if a version since then, or that
    /// version itself, stopped the job, had another kind or wanted no instance of the group: then
    /// the group's instances ended on purpose and must not come back.
    fn last_stable(&self) -> Option<u64> {
        let VersionId { created, number: current } = self.version;
        let versions = self.pass.state.versions_of(&self.pass.evaluation.job, created);
        let is_wanted = |row: &Arc<JobVersion>| {
            let group = row.spec.group(&self.group.name);
            !row.stop && row.spec.kind == self.kind && group.is_some_and(|group| group.count > 0)
        };
        let before = versions.into_iter().skip_while(|row| row.version >= current);
        before.take_while(is_wanted).find(|row| row.stable).map(|row| row.version)
    }

    fn sort(&self, allocations: &[&'a Allocation]) -> Sorted<'a> {
        let Self { pass, kind, version, .. } = *self;
        let mut sorted = Sorted::default();
        for allocation in allocations {
            let superseded =
                allocation.next.is_some_and(|next| pass.state.allocations().contains(&next));
            let current = VersionId::of(allocation) == version;
            let is_run_once = kind == JobKind::Batch && current;
            let may_stay_ended = current && allocation.may_stay_ended(is_run_once);
            if may_stay_ended && !superseded && allocation.is_ended_by_request() {
                sorted.kept.push(allocation);
                continue;
            }
            if allocation.is_server_terminal() || (superseded && allocation.client.is_terminal()) {
                continue;
            }
            if allocation.per_node {
                if allocation.is_live() {
                    sorted.foreign.push(allocation);
                }
                continue;
            }
            match allocation.client {
                ClientStatus::Lost => {}
                ClientStatus::Complete => {
                    if is_run_once {
                        if allocation.transition.reschedule {
                            sorted.failed_now.push(allocation);
                        } else {
                            sorted.kept.push(allocation);
                        }
                    }
                }
                ClientStatus::Failed => {
                    // An allocation of a purged job is not an instance of the job that now has its
                    // name.
                    let is_ours = allocation.job_create_index == version.created;
                    if !is_ours || (kind == JobKind::Batch && !current) {
                        continue;
                    }
                    let policy = self.policy(allocation).filter(|_| !self.is_given_up(allocation));
                    match reschedule::when(policy.as_ref(), allocation, pass) {
                        When::Now => sorted.failed_now.push(allocation),
                        When::At(due) => {
                            sorted.later.push((due, allocation.id));
                            sorted.kept.push(allocation);
                        }
                        When::Awaited | When::Never => sorted.kept.push(allocation),
                    }
                }
                ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => {
                    let list = if superseded {
                        &mut sorted.superseded
                    } else if is_lost(pass, allocation) {
                        &mut sorted.lost
                    } else if may_stay_ended && is_over(allocation) {
                        sorted.ending.push(allocation);
                        &mut sorted.kept
                    } else if allocation.transition.migrate || allocation.transition.reschedule {
                        &mut sorted.migrating
                    } else {
                        &mut sorted.kept
                    };
                    list.push(allocation);
                }
            }
        }
        for list in
            [&mut sorted.kept, &mut sorted.migrating, &mut sorted.lost, &mut sorted.failed_now]
        {
            list.sort_by_key(|allocation| (allocation.name_index, allocation.id));
        }
        sorted
    }

    /// Stops the allocations in excess of `wanted`. Migrating ones go first, then those of older
    /// versions, then those of the current version.
    ///
    /// Among the older ones, and among the current ones, unhealthy instances go first. Then go
    /// older ones whose name another instance keeps: one of the current version, such as a promoted
    /// canary, or an older allocation. Then the highest names go.
    fn drop_excess(&self, sorted: &mut Sorted<'a>, wanted: usize, changes: &mut Changes<'a>) {
        let is_current = |allocation: &Allocation| VersionId::of(allocation) == self.version;
        let is_done = |allocation: &Allocation| {
            self.kind == JobKind::Batch && allocation.client == ClientStatus::Complete
        };
        let current = sorted.kept.iter().filter(|allocation| is_current(allocation));
        let names: BTreeSet<u32> = current.map(|allocation| allocation.name_index).collect();
        let mut first: BTreeMap<u32, (u64, AllocationId)> = BTreeMap::new();
        for allocation in &sorted.kept {
            let age = (allocation.create_index, allocation.id);
            let oldest = first.entry(allocation.name_index).or_insert(age);
            *oldest = age.min(*oldest);
        }
        sorted.kept.sort_by_cached_key(|allocation| {
            let is_well = self.rollout.is_well(self.pass, self.group, allocation);
            let is_down = !is_well && !is_done(allocation);
            let outdated = !is_current(allocation);
            let age = (allocation.create_index, allocation.id);
            let is_second = first.get(&allocation.name_index) != Some(&age);
            let has_successor = outdated && (is_second || names.contains(&allocation.name_index));
            (outdated, is_down, has_successor, allocation.name_index, allocation.id)
        });
        let mut excess = (sorted.kept.len() + sorted.migrating.len()).saturating_sub(wanted);
        for list in [&mut sorted.migrating, &mut sorted.kept] {
            while excess > 0
                && let Some(allocation) = list.pop()
            {
                excess -= 1;
                changes.later.retain(|(_, id)| *id != allocation.id);
                // An ending allocation has a stop already.
                let is_ending = sorted.ending.iter().any(|ending| ending.id == allocation.id);
                if is_to_stop(allocation) && !is_ending {
                    changes.stops.push(StopWish { allocation, reason: Reason::NotNeeded });
                }
            }
        }
    }

    /// Brings the canaries to the number that the deployment wants. Canaries of another deployment,
    /// or of a failed one, are stopped.
    fn keep_canaries(&self, canaries: &[&'a Allocation], changes: &mut Changes<'a>) {
        let waits = |allocation: &&&'a Allocation| self.rollout.is_waiting_canary(allocation);
        for allocation in canaries.iter().filter(|allocation| !waits(allocation)) {
            if is_to_stop(allocation) {
                let lost = allocation.is_live() && is_lost(self.pass, allocation);
                let reason = if lost { Reason::Lost } else { Reason::NotNeeded };
                changes.stops.push(StopWish { allocation, reason });
            }
        }
        let Some(wanted) = self.rollout.canaries(self.group) else { return };
        let own: Vec<&Allocation> = canaries.iter().filter(waits).copied().collect();
        let mut sorted = self.sort(&own);
        changes.later.append(&mut sorted.later);
        for (list, reason) in
            [(&sorted.superseded, Reason::Superseded), (&sorted.lost, Reason::Lost)]
        {
            changes.stops.extend(list.iter().map(|allocation| StopWish { allocation, reason }));
        }
        // A canary may have the name of an instance of an older version, which it may replace
        // later.
        let beside = std::mem::take(&mut changes.names);
        // It must not have the name of an instance of the current version, because those stay.
        changes.names.taken = sorted.kept.iter().map(|allocation| allocation.name_index).collect();
        changes.names.taken.extend(&changes.current_names);
        self.place(&sorted, wanted as usize, true, changes);
        changes.names = beside;
    }

    /// Adds placements for the missing instances. Successors of migrating, failed and lost
    /// allocations keep a name below the group's count. The others take the lowest free names.
    fn place(&self, sorted: &Sorted<'a>, wanted: usize, canary: bool, changes: &mut Changes<'a>) {
        let mut missing = wanted.saturating_sub(sorted.kept.len() + sorted.migrating.len());
        let Changes { names, placements, stops, .. } = changes;
        let mut replace = |allocation: &'a Allocation, history, rescheduled| PlaceWish {
            name_index: if allocation.name_index < self.group.count {
                names.claim(allocation.name_index)
            } else {
                names.next()
            },
            canary,
            version: None,
            stand_ins: Vec::new(),
            previous: Some(allocation),
            rescheduled,
            history,
        };
        for allocation in &sorted.migrating {
            stops.push(StopWish { allocation, reason: Reason::Migrating });
            placements.push(replace(allocation, allocation.reschedules.clone(), false));
        }
        for allocation in sorted.failed_now.iter().take(missing) {
            let policy = self.policy(allocation);
            let history = reschedule::history(policy.as_ref(), allocation, self.pass.now);
            placements.push(replace(allocation, history, true));
        }
        missing = missing.saturating_sub(sorted.failed_now.len());
        for allocation in sorted.lost.iter().take(missing) {
            placements.push(replace(allocation, allocation.reschedules.clone(), false));
        }
        missing = missing.saturating_sub(sorted.lost.len());
        for _ in 0..missing {
            placements.push(PlaceWish::new(names.next(), canary));
        }
    }
}

/// Gives out the numbers of names. Two predecessors may have the same name, left from older
/// scheduling rules; their successors get two names.
#[derive(Default)]
pub(crate) struct Names {
    /// Names of kept allocations, and names given out.
    taken: BTreeSet<u32>,
    /// Names of predecessors, kept for their successors.
    reserved: BTreeSet<u32>,
    free_from: u32,
}

impl Names {
    fn claim(&mut self, name_index: u32) -> u32 {
        if self.taken.insert(name_index) { name_index } else { self.next() }
    }

    /// Takes back a name that [`Self::next`] gave.
    pub(crate) fn put_back(&mut self, name_index: u32) {
        self.taken.remove(&name_index);
        self.free_from = self.free_from.min(name_index);
    }

    pub(crate) fn next(&mut self) -> u32 {
        while self.reserved.contains(&self.free_from) || !self.taken.insert(self.free_from) {
            self.free_from += 1;
        }
        self.free_from
    }
}
