//! Running the schedule of a seed from its first step to its end.

use chance::Dice;

use crate::{cluster::coverage::Coverage, schedule::Schedule, steps::Steps};

/// Seeds whose log is applied a second time: one in so many.
const REPLAY_EVERY: u64 = 4;

/// What a run gave.
#[derive(Debug)]
pub struct Outcome {
    /// What was broken; empty for a good run.
    pub failures: Vec<String>,
    /// What happened.
    pub coverage: Coverage,
    /// Entries committed.
    pub entries: u64,
    /// A number that two runs of the same schedule share.
    pub digest: u128,
    /// The trace, if it was asked for.
    pub trace: Vec<String>,
}

/// The committed log of a seed's schedule, without its quiet end: term and proposal of each entry, none for the first of a term. A realistic input
/// for tests of what applies, stores and ships entries.
pub fn log_of(seed: u64) -> Vec<(u64, Option<fsm::Proposal>)> {
    let mut schedule = Schedule::new(seed, false);
    for number in Steps::default().iter() {
        schedule.step(number);
    }
    let log = &schedule.world.cluster.log;
    let entries = log.committed().iter().map(|applied| &applied.entry);
    entries.map(|entry| (entry.term, entry.proposal.clone())).collect()
}

/// Runs a schedule.
pub fn run(seed: u64, steps: &Steps, traced: bool) -> Outcome {
    let mut schedule = Schedule::new(seed, traced);
    for number in steps.iter() {
        schedule.step(number);
        if schedule.is_broken() {
            break;
        }
    }
    let mut dice = Dice::numbered(seed, u64::MAX - 2);
    if !schedule.is_broken() {
        schedule.end(&mut dice);
    }
    if !schedule.is_broken() && seed.is_multiple_of(REPLAY_EVERY) {
        let reload_at = dice.index(schedule.world.cluster.log.committed().len());
        schedule.check_replay(reload_at);
    }
    let cluster = &mut schedule.world.cluster;
    Outcome {
        failures: std::mem::take(&mut cluster.failures),
        coverage: cluster.coverage.clone(),
        entries: cluster.log.last(),
        digest: cluster.log.truth().digest().0,
        trace: cluster.take_lines(),
    }
}
