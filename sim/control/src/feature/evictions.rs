//! Preemption: which kinds of jobs may evict what is of lower priority, and what came of it. From
//! dice of its own: no throw in here moves one of the older dice. What must hold is in
//! [`crate::invariants`] (I57).

use fsm::{
    Command, JobSpec, Plan, Reply, State, Trigger,
    command::PlanCommand,
    plan::{ApplyPlans, DropReason, PlanVerdict},
    settings::{Preemption, SchedulerConfiguration, SetSchedulerConfiguration},
};

use super::{Entry, Feature, Stage, Watch};
use crate::{
    cluster::{
        coverage::{Coverage, Event},
        log::Applied,
        swarm::Swarm,
    },
    people::{ShapeJobs, World},
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6576_6963_745f_6131;
/// Percent of steps before which an operator sets anew who may evict.
const CHANGES: u64 = 1;

/// Priorities of jobs: any two are far enough apart.
const PRIORITIES: [u16; 5] = [10, 30, 50, 70, 90];
/// Jobs of such a seed: a chain needs three.
const JOBS: usize = 4;
/// Percent of jobs that want more instances than others.
const LARGE: u64 = 60;

/// Who may evict whom.
pub(super) struct Evictions {
    seed: u64,
    /// Dice of the step under way; none: as by default.
    dice: Option<Dice>,
}

/// Dice of one step, if the seed has jobs of other kinds evict than those that may by default.
fn dice(seed: u64, step: u64) -> Option<Dice> {
    let others = Dice::numbered(seed ^ LABEL, u64::MAX).percent(50);
    others.then(|| Dice::numbered(seed ^ LABEL, step))
}

impl Evictions {
    /// Those of a seed: room is scarce then, because where all have room nobody is evicted.
    pub(super) fn draw(seed: u64, swarm: &mut Swarm) -> Self {
        let dice = dice(seed, u64::MAX - 1);
        if dice.is_some() {
            (swarm.scarce, swarm.jobs) = (true, JOBS);
        }
        Self { seed, dice }
    }

    fn set_preemption(&mut self, world: &mut World) {
        let Some(dice) = &mut self.dice else { return };
        let mut may = || dice.percent(75);
        let preemption =
            Preemption { system: may(), sysbatch: may(), batch: may(), service: may() };
        world.cluster.trace(|| format!("an operator sets {preemption:?}"));
        let known = world.cluster.log.truth().scheduler_configuration();
        world.ask(Command::from(SetSchedulerConfiguration {
            configuration: SchedulerConfiguration { preemption, ..known },
            keep_node_life: true,
            enforce_index: None,
        }));
    }
}

impl Feature for Evictions {
    /// Who may evict in the beginning.
    fn prepare(&mut self, world: &mut World, _shapers: &mut dyn ShapeJobs) {
        self.set_preemption(world);
    }

    /// Sometimes others may evict from now on.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        self.dice = dice(self.seed, u64::from(number));
        if self.dice.as_mut().is_some_and(|dice| dice.percent(CHANGES)) {
            self.set_preemption(world);
        }
        None
    }

    /// Gives a job a priority of many, and sometimes so many instances that others lack room.
    fn shape(&mut self, stage: Stage, spec: &mut JobSpec, _coverage: &mut Coverage) {
        let Some(dice) = self.dice.as_mut().filter(|_| stage == Stage::Demand) else { return };
        spec.priority = dice.pick(&PRIORITIES).unwrap_or(spec.priority);
        if !spec.kind.is_per_node() && dice.percent(LARGE) {
            let group = &mut spec.groups[0];
            group.count = group.count.saturating_add(3);
        }
    }

    fn judge(&mut self, entry: &Entry<'_>, coverage: &mut Coverage, _found: &mut Vec<String>) {
        note(entry.before, entry.applied, coverage);
    }
}

/// Counts what was evicted in an entry, and what was not.
fn note(before: &State, applied: &Applied, coverage: &mut Coverage) {
    let Some(proposal) = &applied.entry.proposal else { return };
    let (Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })), Reply::Plans(verdicts)) =
        (&proposal.command, &applied.reply)
    else {
        return;
    };
    for (plan, verdict) in plans.iter().zip(verdicts) {
        note_plan(before, plan, verdict, coverage);
    }
}

fn note_plan(before: &State, plan: &Plan, verdict: &PlanVerdict, coverage: &mut Coverage) {
    if verdict.dropped.iter().any(|(_, why)| *why == DropReason::NotPreemptible) {
        coverage.count(Event::NotPreemptible);
    }
    let is_dropped = |id| verdict.dropped.iter().any(|(other, _)| *other == id);
    let evicts = |one: &fsm::Placement| !one.preempts.is_empty() && !is_dropped(one.id);
    if verdict.refused.is_some() || !plan.placements.iter().any(evicts) {
        return;
    }
    coverage.count(Event::Evicted);
    let evaluation = before.evaluations().get(&plan.evaluation);
    if evaluation.is_some_and(|row| row.trigger == Trigger::Preemption) {
        coverage.count(Event::EvictedInTurn);
    }
}
