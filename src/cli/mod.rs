//! The command line: one file per noun, all of it over the HTTP API.
//!
//! ```text
//! argv ─► argv.rs (-flag → --flag) ─► entry.rs (clap) ─► noun.rs ─► client.rs ─► any server
//!                                                          └──────► output.rs ─► terminal
//! ```
//! Must never print outside `output.rs`, retry a write, or reach into a server's memory: what the
//! API does not say, the command line does not know. `process.rs` is the only door to the server
//! and agent in this binary.

mod agent;
mod alloc;
mod argv;
mod bench;
mod capacity;
mod client;
mod context;
mod demo_web;
mod deployment;
pub mod entry;
mod eval;
mod instance;
mod job;
mod lines;
mod monitor;
mod named;
mod namespace;
mod node;
mod operator;
mod output;
mod placement;
mod pool;
mod process;
mod provider;
mod resolve;
mod scaling;
mod server;
mod signal;
mod stats;
mod status;
mod system;
mod table;
mod time;
mod unbuilt;
mod up;
mod view;

#[cfg(test)]
mod tests;
