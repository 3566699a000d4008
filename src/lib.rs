//! Quorate: a Raft-replicated cluster scheduler that speaks Nomad's HTTP API. ARCHITECTURE.md is
//! the map.

mod address_space;
pub mod bench;
pub mod cli;
pub mod config;
pub mod process;
pub mod provider;
pub mod reload;
