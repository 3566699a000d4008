//! A plan tried on a clone of the state, by the rules of `apply` ([ADR 0004]).
//!
//! [ADR 0004]: ../../../../docs/adr/0004-try-plan-on-a-clone.md

use super::{
    DropReason, Placement, Plan, check_plan,
    transitions::{Replaced, drop_the_rest, mark_replaced},
};
use crate::{
    apply::Turn,
    id::AllocationId,
    job::TaskGroup,
    resources::{Dimension, Port},
    state::State,
    table::ChangeSet,
};

/// Chooses concrete ports for a placement on a state.
pub type PickPorts<'a> = &'a dyn Fn(&State, &Placement, &TaskGroup) -> Result<Vec<Port>, Dimension>;

/// What a trial of a plan left of it.
pub struct Trial {
    /// The plan with ports, less what was dropped; without its outcome when something was.
    pub plan: Plan,
    /// What was dropped.
    pub dropped: Vec<(AllocationId, DropReason)>,
}

impl State {
    /// Tries a plan on this state, a clone that is thrown away: what fits is applied, what does not
    /// is dropped. This is how the leader's applier finds out what to propose, with the very rules
    /// that `apply` judges it by.
    pub fn try_plan(&mut self, plan: &Plan, pick: PickPorts<'_>) -> Result<Trial, DropReason> {
        check_plan(self, plan)?;
        let before = plan.all_at_once.then(|| self.clone());
        let index = self.index.saturating_add(1);
        self.index = index;
        let mut changes = ChangeSet::trial();
        changes.index = index;
        let mut turn = Turn::new(self, &mut changes, index);
        turn.is_final = false;
        let mut trial = turn.try_parts(plan, pick);
        if trial.dropped.is_empty() {
            if let Some(outcome) = &plan.outcome {
                turn.take_outcome(plan, outcome);
            }
        } else {
            trial.plan.outcome = None;
        }
        turn.finish();
        if let (Some(before), false) = (before, trial.dropped.is_empty()) {
            *self = before;
            drop_the_rest(plan, &mut trial.dropped);
            trial.plan.placements.clear();
            trial.plan.in_place.clear();
            trial.plan.stops.clear();
            trial.plan.follow_ups.clear();
            trial.plan.deployment = None;
        }
        Ok(trial)
    }
}

impl Turn<'_> {
    /// As [`Self::apply_parts`], choosing ports on the way.
    fn try_parts(&mut self, plan: &Plan, pick: PickPorts<'_>) -> Trial {
        let mut left = Plan { placements: Vec::new(), in_place: Vec::new(), ..plan.clone() };
        let mut dropped = Vec::new();
        let mut ended = self.stop_the_living(plan);
        if let Some(job) = self.state.jobs.get(&plan.job).cloned()
            && let Some(spec) = self.state.current_spec(&job).cloned()
        {
            self.create_deployment(plan, &job, &spec);
            for update in &plan.in_place {
                match self.update_in_place(plan, update, &job, &spec) {
                    Ok(()) => left.in_place.push(update.clone()),
                    Err(reason) => dropped.push((update.id, reason)),
                }
            }
            for placement in &plan.placements {
                let mut placement = placement.clone();
                let placed = self
                    .placed_spec(&placement, &job, &spec)
                    .and_then(|spec| {
                        let group = spec.group(&placement.group).ok_or(DropReason::JobChanged)?;
                        pick(self.state, &placement, group).map_err(DropReason::NodeFull)
                    })
                    .and_then(|ports| {
                        placement.ports = ports;
                        self.place(plan, &placement, &job, &spec)
                    });
                match placed {
                    Ok(()) => {
                        mark_replaced(&mut ended, &placement);
                        left.placements.push(placement);
                    }
                    Err(reason) => dropped.push((placement.id, reason)),
                }
            }
            self.stop_the_ended(plan, &ended);
            self.mark_judged(plan);
        }
        left.stops.retain(|stop| ended.get(&stop.id) != Some(&Replaced::No));
        Trial { plan: left, dropped }
    }
}
