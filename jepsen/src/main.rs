//! `jepsen`: fault injection on real Quorate servers, with own consistency checkers. See `README.md`.
//!
//! ```text
//!  cli ─► run ─► cluster (servers) ── proxy (links between them), agents (simulated nodes)
//!          │  └► nemesis (faults on both)       guard (kills what is left if the harness dies)
//!          ├► workload ─► client ─► history
//!          └► checker ◄── store ─► report
//! ```

mod agents;
mod binary;
mod checker;
mod cli;
mod client;
mod cluster;
mod edn;
mod guard;
mod history;
mod nemesis;
mod partition;
mod proxy;
mod random;
mod report;
mod run;
mod selftest;
mod server_config;
mod store;
mod workload;

fn main() -> std::process::ExitCode {
    cli::main()
}
