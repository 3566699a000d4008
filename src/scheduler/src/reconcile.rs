//! Reconciles one group of a service or batch job: which allocations end, which names need an instance, which are of an older version.
//!
//! Looks at allocations and counts only; where instances go is decided by [`crate::stack`]. Invariant: a name that is placed is not live, or its holder is
//! stopped by the same plan.

use std::collections::BTreeSet;

use fsm::{
    Allocation, AllocationId, ClientStatus, JobKind, Liveness, TaskGroup, TimeMs,
    allocation::{ENDED_BY_REQUEST, RescheduleEvent},
};

use crate::{
    Pass,
    reschedule::{self, When},
};

/// Shortest pause between two steps of a rolling update, so that a job without a health time does not spin.
pub(crate) const LOOK_MS_MIN: u64 = 1_000;
/// Longest pause before an instance that does not come up is looked at again, if its health time is no longer.
const LOOK_MS_MAX: u64 = 60_000;
/// An instance is looked at again after this part of its age.
const LOOKS_PER_AGE: u64 = 8;

/// Why an allocation ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    NotNeeded,
    Lost,
    Migrating,
    /// A drain or a user ends an instance of a job that is not run again for that.
    Ended,
    Updating,
    Rescheduled,
    /// Another allocation has replaced it.
    Superseded,
    /// A per-node job no longer runs on that node.
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

/// An allocation that ends whatever else happens.
pub(crate) struct StopWish<'a> {
    pub(crate) allocation: &'a Allocation,
    pub(crate) reason: Reason,
}

/// An instance that is wanted.
pub(crate) struct PlaceWish<'a> {
    pub(crate) name_index: u32,
    /// The allocation whose place it takes.
    pub(crate) previous: Option<&'a Allocation>,
    /// The previous one failed: it is stopped if this one is placed, and its nodes are avoided.
    pub(crate) rescheduled: bool,
    pub(crate) history: Vec<RescheduleEvent>,
}

/// What a group needs.
#[derive(Default)]
pub(crate) struct Changes<'a> {
    pub(crate) stops: Vec<StopWish<'a>>,
    pub(crate) placements: Vec<PlaceWish<'a>>,
    /// Kept allocations of older versions, by name.
    pub(crate) outdated: Vec<&'a Allocation>,
    /// Failed allocations to be replaced later.
    pub(crate) later: Vec<(TimeMs, AllocationId)>,
    /// Allocations of the current version that are not healthy (yet).
    pub(crate) unhealthy: u32,
    /// When the first of those is to be looked at again; none when all have failed: whoever tries them again makes an evaluation.
    pub(crate) look_again_at: Option<TimeMs>,
}

/// How existing allocations of a group stand.
#[derive(Default)]
struct Sorted<'a> {
    /// Count towards the wanted number: running, finished for good, or failed and waiting.
    kept: Vec<&'a Allocation>,
    migrating: Vec<&'a Allocation>,
    /// Those of the kept ones that are to end and are not run again.
    ending: Vec<&'a Allocation>,
    lost: Vec<&'a Allocation>,
    failed_now: Vec<&'a Allocation>,
    later: Vec<(TimeMs, AllocationId)>,
    superseded: Vec<&'a Allocation>,
    /// Left of a job that had this id and ran once per node.
    foreign: Vec<&'a Allocation>,
}

/// Reconciles `allocations` of one group with what the group wants.
pub(crate) fn group<'a>(
    pass: &Pass<'a>,
    kind: JobKind,
    version: (u64, u64),
    group: &TaskGroup,
    allocations: &[&'a Allocation],
) -> Changes<'a> {
    let mut sorted = sort(pass, kind, version, group, allocations);
    let names: BTreeSet<u32> = [&sorted.kept, &sorted.migrating, &sorted.lost, &sorted.failed_now]
        .into_iter()
        .flatten()
        .map(|allocation| allocation.name_index)
        .collect();
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
    drop_excess(&mut sorted, wanted, &mut changes);
    place(pass, group, &sorted, names, &mut changes);

    let healthy_ms_min = group.update.map_or(0, |update| update.healthy_ms_min);
    for allocation in sorted.kept {
        if kind == JobKind::Batch && is_over(allocation) {
            continue; // No update waits for it.
        }
        if (allocation.job_create_index, allocation.job_version) != version {
            changes.outdated.push(allocation);
        } else if !is_healthy(allocation, healthy_ms_min, pass.now) {
            changes.unhealthy += 1;
            let look = look_again_at(allocation, healthy_ms_min, pass.now);
            changes.look_again_at = changes.look_again_at.into_iter().chain(look).min();
        }
    }
    changes.outdated.sort_by_key(|allocation| (allocation.name_index, allocation.id));
    changes
}

/// Runs for long enough, with all of its tasks, or has ended well.
pub(crate) fn is_healthy(allocation: &Allocation, healthy_ms_min: u64, now: TimeMs) -> bool {
    match allocation.client {
        ClientStatus::Running => allocation
            .all_running_since()
            .is_some_and(|since| now.saturating_sub(since) >= healthy_ms_min),
        ClientStatus::Complete => true,
        ClientStatus::Pending
        | ClientStatus::Failed
        | ClientStatus::Lost
        | ClientStatus::Unknown => false,
    }
}

/// When an allocation that is not healthy may be, and is worth another look: never before it has run for `healthy_ms_min`, and the less often the longer it
/// has not come up, since each look is an evaluation in the log. None: it has failed for good, or its next attempt is an evaluation already.
fn look_again_at(allocation: &Allocation, healthy_ms_min: u64, now: TimeMs) -> Option<TimeMs> {
    if allocation.client.is_terminal() {
        return None;
    }
    let healthy_at = allocation.all_running_since().unwrap_or(now).saturating_add(healthy_ms_min);
    let age_ms = now.saturating_sub(allocation.created_at);
    let pause_ms = (age_ms / LOOKS_PER_AGE).clamp(LOOK_MS_MIN, LOOK_MS_MAX);
    Some(healthy_at.max(now.saturating_add(pause_ms)))
}

/// Whether the allocation's node is gone for good.
pub(crate) fn is_lost(pass: &Pass<'_>, allocation: &Allocation) -> bool {
    pass.state.nodes().get(&allocation.node).is_none_or(|node| node.liveness == Liveness::Down)
}

/// Whether a drain or a user has asked for its end, and nobody for another one.
fn is_over(allocation: &Allocation) -> bool {
    allocation.transition.migrate && !allocation.transition.reschedule
}

/// Whether one that is not wanted any more is to be stopped: also one that has failed, which would count again when its group or name is wanted again.
pub(crate) fn is_to_stop(allocation: &Allocation) -> bool {
    let has_failed = allocation.client == ClientStatus::Failed && !allocation.is_server_terminal();
    allocation.is_live() || has_failed
}

fn sort<'a>(
    pass: &Pass<'a>,
    kind: JobKind,
    version: (u64, u64),
    group: &TaskGroup,
    allocations: &[&'a Allocation],
) -> Sorted<'a> {
    let mut sorted = Sorted::default();
    for allocation in allocations {
        let superseded =
            allocation.next.is_some_and(|next| pass.state.allocations().contains(&next));
        let current = (allocation.job_create_index, allocation.job_version) == version;
        let is_run_once = kind == JobKind::Batch && current;
        if is_run_once && !superseded && allocation.is_ended_by_request() {
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
                // That of a job that was purged is not an instance of the one that took its name.
                let is_ours = allocation.job_create_index == version.0;
                if !is_ours || (kind == JobKind::Batch && !current) {
                    continue;
                }
                match reschedule::when(group.reschedule.as_ref(), allocation, pass) {
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
                } else if is_run_once && is_over(allocation) {
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
    for list in [&mut sorted.kept, &mut sorted.migrating, &mut sorted.lost, &mut sorted.failed_now]
    {
        list.sort_by_key(|allocation| (allocation.name_index, allocation.id));
    }
    sorted
}

/// Stops what is more than `wanted`: migrating ones first, then the highest names.
fn drop_excess<'a>(sorted: &mut Sorted<'a>, wanted: usize, changes: &mut Changes<'a>) {
    let mut excess = (sorted.kept.len() + sorted.migrating.len()).saturating_sub(wanted);
    for list in [&mut sorted.migrating, &mut sorted.kept] {
        while excess > 0
            && let Some(allocation) = list.pop()
        {
            excess -= 1;
            changes.later.retain(|(_, id)| *id != allocation.id);
            // It has a stop already.
            let is_ending = sorted.ending.iter().any(|ending| ending.id == allocation.id);
            if is_to_stop(allocation) && !is_ending {
                changes.stops.push(StopWish { allocation, reason: Reason::NotNeeded });
            }
        }
    }
}

/// Wishes for what is missing: migrated, rescheduled and lost ones keep their names; the rest take the lowest free ones.
fn place<'a>(
    pass: &Pass<'a>,
    group: &TaskGroup,
    sorted: &Sorted<'a>,
    reserved: BTreeSet<u32>,
    changes: &mut Changes<'a>,
) {
    let mut missing =
        (group.count as usize).saturating_sub(sorted.kept.len() + sorted.migrating.len());
    let mut names = Names {
        taken: sorted.kept.iter().map(|allocation| allocation.name_index).collect(),
        reserved,
        free_from: 0,
    };
    let mut replace = |allocation: &'a Allocation, history, rescheduled| PlaceWish {
        name_index: names.claim(allocation.name_index),
        previous: Some(allocation),
        rescheduled,
        history,
    };
    for allocation in &sorted.migrating {
        changes.stops.push(StopWish { allocation, reason: Reason::Migrating });
        changes.placements.push(replace(allocation, allocation.reschedules.clone(), false));
    }
    for allocation in sorted.failed_now.iter().take(missing) {
        let history = reschedule::history(group.reschedule.as_ref(), allocation, pass.now);
        changes.placements.push(replace(allocation, history, true));
    }
    missing = missing.saturating_sub(sorted.failed_now.len());
    for allocation in sorted.lost.iter().take(missing) {
        changes.placements.push(replace(allocation, allocation.reschedules.clone(), false));
    }
    missing = missing.saturating_sub(sorted.lost.len());
    for _ in 0..missing {
        changes.placements.push(PlaceWish {
            name_index: names.next(),
            previous: None,
            rescheduled: false,
            history: Vec::new(),
        });
    }
}

/// Numbers of names. Two predecessors of one name (which older versions of the rules could leave behind) get two names.
struct Names {
    /// Of kept allocations, and given out.
    taken: BTreeSet<u32>,
    /// Of predecessors, which their successors keep.
    reserved: BTreeSet<u32>,
    free_from: u32,
}

impl Names {
    fn claim(&mut self, name_index: u32) -> u32 {
        if self.taken.insert(name_index) { name_index } else { self.next() }
    }

    fn next(&mut self) -> u32 {
        while self.reserved.contains(&self.free_from) || !self.taken.insert(self.free_from) {
            self.free_from += 1;
        }
        self.free_from
    }
}
