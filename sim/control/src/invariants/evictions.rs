//! I57: what is evicted goes for an instance of a job with a higher priority that takes its room,
//! and its own job is looked at again. Written from the rows, without the rules of planner and
//! `apply`.

use std::sync::Arc;

use fsm::{Allocation, DesiredStatus, Evaluation, JobKind, State, Trigger};

use super::{Broken, needs::is_live};

/// By how much the priority of a job must be above that of one whose allocations it evicts.
const DISTANCE: u32 = 10;

/// Whether jobs of this kind may evict at all, by the cluster's settings.
pub(super) fn may_evict(state: &State, kind: JobKind) -> bool {
    let settings = state.scheduler_configuration().preemption;
    match kind {
        JobKind::System => settings.system,
        JobKind::Sysbatch => settings.sysbatch,
        JobKind::Batch => settings.batch,
        JobKind::Service => settings.service,
    }
}

/// Whether an allocation is of so low a priority that it goes for a job of `priority`.
pub(crate) fn is_below(state: &State, row: &Allocation, priority: u16) -> bool {
    let own = state.allocation_spec(row).map(|spec| u32::from(spec.priority));
    own.is_some_and(|own| own + DISTANCE <= u32::from(priority))
}

/// One state: an allocation is evicted exactly if it names what it went for, and both ends agree.
pub(super) fn both_ends(state: &State, out: &mut Vec<Broken>) {
    let mut broken = |detail: String| out.push(Broken("I57", detail));
    for row in state.allocations().iter() {
        let id = row.id;
        if (row.desired == DesiredStatus::Evict) != row.preempted_by.is_some() {
            broken(format!("{id} is to {:?} and went for {:?}", row.desired, row.preempted_by));
        }
        for victim in &row.preempted {
            let Some(victim) = state.allocations().get(victim) else { continue };
            if victim.preempted_by != Some(id) {
                broken(format!("{id} evicted {}, which does not name it", victim.id));
            }
        }
        let by = row.preempted_by.and_then(|by| state.allocations().get(&by));
        if by.is_some_and(|by| !by.preempted.contains(&id)) {
            broken(format!("{id} went for one that does not name it"));
        }
    }
}

/// One entry: whatever goes was live, goes together with a new instance on its node, of a job that
/// may evict it; and its own job gets an evaluation.
pub(super) fn of_entry(old: &State, new: &State, out: &mut Vec<Broken>) {
    let evicted = new.allocations().iter().filter(|row| row.preempted_by.is_some());
    for row in evicted {
        let before = old.allocations().get(&row.id);
        if before.is_some_and(|before| before.preempted_by == row.preempted_by) {
            continue;
        }
        let id = row.id;
        if !before.is_some_and(|before| is_live(before)) {
            out.push(Broken("I57", format!("{id} was evicted and was not live")));
        }
        let by = row.preempted_by.and_then(|by| new.allocations().get(&by));
        match by.filter(|by| by.create_index == new.index()) {
            Some(by) => goes_rightly(new, row, by, out),
            None => out.push(Broken("I57", format!("{id} was evicted for nothing that came"))),
        }
        let is_looked_at = |evaluation: &Arc<Evaluation>| {
            evaluation.job == row.job
                && evaluation.create_index == new.index()
                && evaluation.trigger == Trigger::Preemption
        };
        if new.jobs().contains(&row.job) && !new.evaluations().iter().any(is_looked_at) {
            let detail = format!("nobody looks at {}, of which {id} was evicted", row.job);
            out.push(Broken("I57", detail));
        }
    }
}

fn goes_rightly(state: &State, row: &Allocation, by: &Allocation, out: &mut Vec<Broken>) {
    let (id, for_id) = (row.id, by.id);
    if row.node != by.node || row.job == by.job {
        let detail = format!("{id} was evicted for {for_id}, which needs no room of it");
        out.push(Broken("I57", detail));
    }
    let Some(spec) = state.allocation_spec(by) else { return };
    if !may_evict(state, spec.kind) || !is_below(state, row, spec.priority) {
        let (kind, priority) = (spec.kind, spec.priority);
        let detail = format!("{id} was evicted for a {kind:?} job of priority {priority}");
        out.push(Broken("I57", detail));
    }
}
