//! `sim`: whole servers in one process under virtual time, from a seed (docs/adr/0002).
//!
//! ```text
//!  cli ─► many, shrink, selftest: a process for each run ─► run (one plan)    ─► world: servers, each on a fault disk ── network: their messages
//!                                                             │ swarm, class: the plan, drawn from a seed or read from a file
//!                                                             ├► nemesis: crashes, power cuts, cuts, weather, clocks, disks
//!                                                             ├► nuisance: faults that came later, from dice of their own
//!                                                             ├► losses: several agents cut off from all servers at once
//!                                                             ├► lag: servers that apply nothing for a while
//!                                                             ├► client ─► oracle: what was acknowledged must hold
//!                                                             ├► reader: asks any server for what it has
//!                                                             ├► jobs: an operator who registers, scales, stops and looks
//!                                                             ├► settings: what stands beside jobs is changed and looked at
//!                                                             ├► streams: whether servers tell agents what they know
//!                                                             ├► agent: a model that does what no agent should; machine: the project's own agent
//!                                                             ├► running: what runs where, against what the servers want
//!                                                             ├► autopsy: what a disk would come back with
//!                                                             └► invariants, coverage, verdict: what must hold, what must happen, what went wrong
//! ```
//! Invariant: nothing in here reads a real clock, real randomness or a hash table's order, so that a seed gives the same trace each time.

mod agent;
mod aimed;
mod autopsy;
mod child;
mod class;
mod cli;
mod client;
mod clocks;
mod control_plane;
mod coverage;
mod flag;
mod invariants;
mod jobs;
mod lag;
mod losses;
mod machine;
mod many;
mod nemesis;
mod network;
mod nuisance;
mod oracle;
mod partition;
mod reader;
mod run;
mod running;
mod selftest;
mod services;
mod settings;
mod shrink;
mod streams;
mod swarm;
mod trace;
mod verdict;
mod world;

/// Half of a run is spent on small allocations.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
