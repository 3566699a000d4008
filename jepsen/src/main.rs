//! `jepsen`: fault injection on real Quorate servers, with own consistency checkers. See `README.md`.
//!
//! ```text
//!  cli ─► run ─► cluster (processes) ── network (proxy or netns: links between them), loop_disk
//!  test_all ─┘│  └► nemesis (faults on all of them)   guard, owned (undo what is left if the harness dies)
//!             ├► workload ─► client ─► history
//!             ├► agents ─► task (what real agents run)
//!             └► checker ◄── store ─► report, html ◄── serve   machine (what a run is on)
//! ```

mod agents;
mod binary;
mod capture;
mod checker;
mod cli;
mod client;
mod cluster;
mod edn;
mod fault;
mod guard;
mod history;
mod html;
mod loop_disk;
mod machine;
mod machines;
mod nemesis;
mod netns;
mod network;
mod owned;
mod partition;
mod probe;
mod proxy;
mod replicas;
mod report;
mod run;
mod selftest;
mod serve;
mod server_config;
mod store;
mod system;
mod task;
mod test_all;
mod time;
mod totals;
mod workload;

fn main() -> std::process::ExitCode {
    cli::main()
}
