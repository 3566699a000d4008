//! The control plane under one seed: the real broker, blocked evaluations, plan queue, plan applier, heartbeats, deadlines, drainer, reapers,
//! schedulers and state machine, run in one thread over a model log ([`log`]). No Raft, no network, no clock.
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
//! that is how a failure is made small ([`shrink`]). After the steps comes a quiet time in which everything promised must come true ([`quiet`]).
//! What is judged after each entry is in [`oracle`]: [`invariants`] that the rows show, which the simulation of whole nodes uses too, and
//! [`postconditions`] of each command.
//!
//! Modelled instead of run: the async shells of leadership, applier and worker (their decisions are in `leader`), Raft, and the agents.

#![forbid(unsafe_code)]

mod agent;
mod balancers;
#[cfg(test)]
mod bulk;
mod client;
mod clocks;
mod coverage;
mod dispatches;
mod evictions;
mod extra;
mod failures;
mod groups;
pub mod invariants;
mod leadership;
mod lives;
mod log;
mod node_memory;
mod oracle;
mod order;
mod orders;
mod pools;
mod postconditions;
mod promises;
mod quiet;
mod rollouts;
mod shrink;
mod stretches;
mod swarm;
mod tenants;
#[cfg(test)]
mod tests;
mod times;
mod updates;
mod words;
mod worker;
mod world;

pub use coverage::{Coverage, Event};
pub use shrink::{Steps, shrink};

use chance::Dice;
use world::World;

/// Steps of a schedule.
pub const STEPS: u32 = 400;
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
    let mut world = World::new(seed, false);
    world.set_first_node_life(seed);
    world.set_first_pool(seed);
    world.set_first_preemption();
    world.form(&mut Dice::numbered(seed, u64::MAX - 3));
    for number in Steps::default().iter() {
        world.before_step(seed, number);
        world.step(&mut Dice::numbered(seed, u64::from(number)));
    }
    let entries = world.log.committed().iter().map(|applied| &applied.entry);
    entries.map(|entry| (entry.term, entry.proposal.clone())).collect()
}

/// Runs a schedule.
pub fn run(seed: u64, steps: &Steps, traced: bool) -> Outcome {
    let mut world = World::new(seed, traced);
    world.set_first_node_life(seed);
    world.set_first_pool(seed);
    world.set_first_preemption();
    world.form(&mut Dice::numbered(seed, u64::MAX - 3));
    for number in steps.iter() {
        world.before_step(seed, number);
        world.step(&mut Dice::numbered(seed, u64::from(number)));
        if !world.failures.is_empty() {
            break;
        }
    }
    let mut dice = Dice::numbered(seed, u64::MAX - 2);
    if world.failures.is_empty() {
        world.end(&mut dice);
    }
    if world.failures.is_empty() && seed.is_multiple_of(REPLAY_EVERY) {
        let reload_at = dice.index(world.log.committed().len());
        world.check_replay(reload_at);
    }
    Outcome {
        failures: std::mem::take(&mut world.failures),
        coverage: world.coverage.clone(),
        entries: world.log.last(),
        digest: world.log.truth().digest().0,
        trace: world.take_lines(),
    }
}
