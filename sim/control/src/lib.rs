//! The control plane under one seed: the real broker, blocked evaluations, plan queue, plan applier, heartbeats, deadlines, drainer, reapers,
//! schedulers and state machine, run in one thread over a model log. No Raft, no network, no clock.
//!
//! ```text
//!  users ─┐                                       ┌─► server 0: applied prefix ─► (leadership: machines of `leader`) ─┐
//!  agents ┼─► proposals ─► model log ─► committed ┼─► server 1 …                        ▲ leases, plans, answers     │
//!         │                   ▲ elections         └─► server 2 …                        ▼ (lost, late, twice)        │
//!         │                   │                                                     workers: `leader::turn`, `scheduler`
//!         └───────────────────┴──────────────────────── commands of services ◄──────────────────────────────────────┘
//! ```
//!
//! A schedule is a number of steps, each with dice of its own from (seed, number), so that cutting steps out leaves the others what they were:
//! that is how a failure is made small ([`shrink`]). After the steps comes a quiet time in which everything promised must come true.
//!
//! The rooms, each of which uses only what is to the right of it or below:
//!
//! ```text
//!  schedule   which part acts when: steps, undisturbed rounds, calm spells, the quiet end
//!  feature    one file for each thing that goes on beside the steps, with what must hold because of it
//!  people     users and operators, and the jobs that they draw
//!  oracle     what must hold after each entry ─► postconditions of each command
//!  cluster    servers, workers, agents and messages over the model log, with their trouble
//!  promises   what a leadership owes, judged at each of its looks
//!  invariants what the rows show; the simulation of whole nodes uses them too
//! ```
//!
//! Modelled instead of run: the async shells of leadership, applier and worker (their decisions are in `leader`), Raft, and the agents.

#![forbid(unsafe_code)]

#[cfg(test)]
mod bulk;
mod cluster;
mod feature;
pub mod invariants;
mod oracle;
mod people;
mod postconditions;
mod promises;
mod schedule;
mod shrink;
#[cfg(test)]
mod tests;

pub use self::{
    cluster::coverage::{Coverage, Event},
    schedule::STEPS,
    shrink::{Steps, shrink},
};

use self::schedule::Schedule;
use chance::Dice;

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
