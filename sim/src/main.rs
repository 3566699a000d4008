//! `sim`: whole servers in one process under virtual time, from a seed (docs/adr/0002).
//!
//! ```text
//!  cli ─► run (one seed) ─► world: servers, each on a fault disk ── network: their messages
//!          │                  ▲ nemesis: crashes, power cuts, cuts, weather, clocks
//!          ├► client ─► oracle: what was acknowledged must hold
//!          └► agent: registers, runs allocations, reports
//! ```
//! Invariant: nothing in here reads a real clock, real randomness or a hash table's order, so that a seed gives the same trace each time.

mod agent;
mod cli;
mod client;
mod dice;
mod nemesis;
mod network;
mod oracle;
mod run;
mod services;
mod trace;
mod world;

fn main() -> std::process::ExitCode {
    cli::main()
}
