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
mod run;
mod schedule;
mod shrink;
mod steps;
#[cfg(test)]
mod tests;

pub use self::{
    cluster::coverage::{Coverage, Event},
    run::{Outcome, log_of, run},
    shrink::shrink,
    steps::Steps,
};
