//! Counts what a finished plan does to each group, with the names that Nomad's `job plan` uses.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, AllocationId, ClientStatus, GroupAnnotation, JobKind, JobSpec, Plan, State,
    TaskGroup, Text,
};

use crate::reconcile::changes::Reason;

/// Counts of changes by group. Groups that the job no longer has are included.
pub type Annotations = BTreeMap<Text, GroupAnnotation>;

/// Counts what `plan` does to the job's groups. `state` is the snapshot that the plan was made on.
/// `spec` is the spec of the version that the plan runs; `None`: the job ends.
pub fn annotate(state: &State, plan: &Plan, spec: Option<&JobSpec>) -> Annotations {
    let mut made = Annotations::default();
    for group in spec.into_iter().flat_map(|spec| &spec.groups) {
        made.entry(group.name.clone()).or_default();
    }
    let replaced: BTreeSet<AllocationId> =
        plan.placements.iter().filter_map(|placement| placement.previous).collect();
    let canaries = plan.placements.iter().filter(|placement| placement.canary);
    let replaced_by_canaries: BTreeSet<AllocationId> =
        canaries.filter_map(|placement| placement.previous).collect();
    let updated: BTreeSet<AllocationId> = plan.in_place.iter().map(|one| one.id).collect();
    let stopped: BTreeMap<AllocationId, &str> =
        plan.stops.iter().map(|stop| (stop.id, &*stop.description)).collect();
    // A surplus canary is stopped as "not needed". If the same plan also puts a successor in its
    // place, the pair is one update, not a stop and a placement.
    let is_update = |why: &str| why == Reason::Updating.text() || why == Reason::NotNeeded.text();
    let is_move = |why: &str| why == Reason::Migrating.text();
    for row in state.allocations_of_job(&plan.job) {
        let is_replaced = replaced.contains(&row.id);
        let why = stopped.get(&row.id).copied();
        if is_replaced && why.is_some_and(is_update) {
            // A predecessor of a canary is not counted here: the canary itself is counted below.
            let by_other = !replaced_by_canaries.contains(&row.id);
            counts_of(&mut made, &row.group).destructive_update += u32::from(by_other);
        } else if is_replaced && why.is_some_and(is_move) {
            counts_of(&mut made, &row.group).migrate += 1;
        } else if why.is_some() && row.is_live() && !is_replaced {
            counts_of(&mut made, &row.group).stop += 1;
        } else if why.is_none() && updated.contains(&row.id) {
            counts_of(&mut made, &row.group).in_place_update += 1;
        } else if why.is_none()
            && (row.is_live() || (!is_replaced && stays_ended(state, plan, spec, row)))
        {
            counts_of(&mut made, &row.group).ignore += 1;
        }
    }
    for placement in &plan.placements {
        let why = placement.previous.and_then(|previous| stopped.get(&previous));
        let group = counts_of(&mut made, &placement.group);
        if placement.canary {
            group.canary += 1;
        } else if why.is_none_or(|why| !is_update(why) && !is_move(why)) {
            group.place += 1;
        }
        group.preemptions += u32::try_from(placement.preempts.len()).unwrap_or(u32::MAX);
    }
    for (name, &left) in plan.outcome.iter().flat_map(|outcome| &outcome.queued) {
        let wanted = spec.and_then(|spec| Some((spec, spec.group(name)?)));
        let Some((spec, group)) = wanted.filter(|_| left > 0) else { continue };
        let kept = kept(state, plan, spec, group);
        add_unplaced(counts_of(&mut made, name), left, kept, spec, group);
    }
    made
}

/// Whether an ended allocation still fills a place of the count, and the plan leaves it alone. That
/// holds for an instance of a batch job that is complete, and for a failed one that waits for its
/// next attempt or has no attempts left. A failed instance whose replacement found no room is not
/// counted here: it counts as one to place.
fn stays_ended(state: &State, plan: &Plan, spec: Option<&JobSpec>, row: &Allocation) -> bool {
    let Some(spec) = spec.filter(|spec| !spec.kind.is_per_node()) else { return false };
    let is_superseded = row.next.is_some_and(|next| state.allocations().contains(&next));
    let is_ours = row.job_create_index == plan.job_create_index && !row.per_node;
    if row.is_server_terminal() || is_superseded || !is_ours || spec.group(&row.group).is_none() {
        return false;
    }
    let is_current = row.job_version == plan.job_version;
    let queued = plan.outcome.as_ref().and_then(|outcome| outcome.queued.get(&row.group));
    match row.client {
        ClientStatus::Complete => spec.kind == JobKind::Batch && is_current,
        ClientStatus::Failed => {
            (spec.kind == JobKind::Service || is_current) && queued.is_none_or(|left| *left == 0)
        }
        ClientStatus::Pending
        | ClientStatus::Running
        | ClientStatus::Lost
        | ClientStatus::Unknown => false,
    }
}

fn counts_of<'a>(made: &'a mut Annotations, group: &Text) -> &'a mut GroupAnnotation {
    made.entry(group.clone()).or_default()
}

/// How many instances fill a place of the group's count after the plan: those that keep running,
/// are placed, or (batch) are complete.
fn kept(state: &State, plan: &Plan, spec: &JobSpec, group: &TaskGroup) -> u32 {
    let stopped: BTreeSet<AllocationId> = plan.stops.iter().map(|stop| stop.id).collect();
    let is_filled = |row: &Allocation| {
        let is_done = spec.kind == JobKind::Batch && row.client == ClientStatus::Complete;
        row.job_create_index == plan.job_create_index
            && (row.is_live() && !stopped.contains(&row.id) || is_done && row.next.is_none())
    };
    let rows = state.allocations_of_job(&plan.job).filter(|row| row.group == group.name);
    let placed = plan.placements.iter().filter(|one| one.group == group.name && !one.canary);
    let count = rows.filter(|row| is_filled(row)).count() + placed.count();
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Counts `left` instances that found no room. Up to the group's count they are new placements.
/// Those beyond it have a predecessor that keeps running, so they are canaries or destructive
/// updates.
fn add_unplaced(
    counts: &mut GroupAnnotation,
    left: u32,
    kept: u32,
    spec: &JobSpec,
    group: &TaskGroup,
) {
    let is_per_node = matches!(spec.kind, JobKind::System | JobKind::Sysbatch);
    let missing = if is_per_node { left } else { group.count.saturating_sub(kept).min(left) };
    counts.place += missing;
    let others = left - missing;
    if group.update.as_ref().is_some_and(|update| update.canaries > 0) {
        counts.canary += others;
    } else {
        counts.destructive_update += others;
        counts.ignore = counts.ignore.saturating_sub(others);
    }
}
