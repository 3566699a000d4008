//! What goes wrong in the cluster besides what [`super::swarm`] switches on: each kind has its name beside what it troubles. From dice of its own:
//! half of the seeds have none of it, and no throw for it moves one of the older dice.

use chance::Dice;

use super::{
    agent::TaskTrouble, leadership::ApplierTrouble, log::LogTrouble, worker::WorkerTrouble,
};

/// Makes these dice others than those of the older settings.
const LABEL: u64 = 0x6578_7472_615f_6131;

/// The trouble of one seed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trouble {
    pub(crate) log: LogTrouble,
    pub(crate) applier: ApplierTrouble,
    pub(crate) workers: WorkerTrouble,
    pub(crate) tasks: TaskTrouble,
    pub(crate) operators: OperatorTrouble,
    /// Percent of steps before which a follower begins to stand still.
    pub(crate) apply_stalls: u64,
    /// Percent of steps that a calm spell comes before: trouble for what needs it to go on.
    pub(crate) calms: u64,
}

/// What operators do besides, at any step.
#[derive(Clone, Debug, Default)]
pub(crate) struct OperatorTrouble {
    /// They pause the broker.
    pub(crate) pauses: bool,
    /// Percent of steps before which workers get other orders.
    pub(crate) orders: u64,
}

impl Trouble {
    /// The trouble of a seed. The order of the throws is a part of every seed.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut dice = dice(seed, u64::MAX);
        if dice.percent(50) {
            return Self::default();
        }
        let mut sometimes = |low, high| if dice.percent(50) { dice.between(low, high) } else { 0 };
        let refusals = sometimes(2, 40);
        let deaths = sometimes(1, 15);
        let applier_stalls = sometimes(5, 40);
        let log_stalls = sometimes(3, 20);
        let plans_max = usize::try_from(sometimes(1, 1)).expect("small");
        let calms = dice.between(1, 4);
        let slow_stops = dice.percent(50);
        let pauses = dice.percent(20);
        let (slow_starts, restarts) = (dice.percent(50), dice.percent(50));
        let slow_passes = if dice.percent(50) { dice.between(5, 60) } else { 0 };
        let apply_stalls = if dice.percent(60) { dice.between(2, 10) } else { 0 };
        let lost_wake_ups = if dice.percent(50) { dice.between(50, 100) } else { 0 };
        let orders = if dice.percent(50) { dice.between(1, 5) } else { 0 };
        Self {
            log: LogTrouble { refusals, stalls: log_stalls },
            applier: ApplierTrouble { stalls: applier_stalls, plans_max },
            workers: WorkerTrouble { deaths, slow_passes, lost_wake_ups },
            tasks: TaskTrouble { slow_starts, restarts, slow_stops },
            operators: OperatorTrouble { pauses, orders },
            apply_stalls,
            calms,
        }
    }

    /// None but that of tasks.
    pub(crate) fn of_tasks(tasks: TaskTrouble) -> Self {
        Self { tasks, ..Self::default() }
    }
}

/// Dice of one step.
pub(crate) fn dice(seed: u64, step: u64) -> Dice {
    Dice::numbered(seed ^ LABEL, step)
}
