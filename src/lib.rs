//! Quorate: a Raft-replicated cluster scheduler that speaks Nomad's HTTP API. ARCHITECTURE.md is
//! the map.

mod address_space;
pub mod agent;
pub mod api;
mod base64;
pub mod bench;
mod body;
pub mod cli;
pub mod clock;
pub mod config;
pub mod disk;
mod forward;
pub mod grpc;
pub mod http;
pub mod jobspec;
pub mod metrics;
mod open_files;
mod percent;
pub mod plant;
pub mod process;
pub mod provider;
pub mod published;
pub mod raft;
pub mod rpc;
pub mod rt;
pub mod serve;
pub mod server;
pub mod storage;
pub mod task;
pub mod telemetry;
pub mod version;
