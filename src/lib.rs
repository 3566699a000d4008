//! Quorate: a Raft-replicated cluster scheduler that speaks Nomad's HTTP API. ARCHITECTURE.md is
//! the map.
#![cfg_attr(
    not(feature = "program"),
    allow(
        dead_code,
        unused_imports,
        reason = "only the command line and the HTTP API use some of it"
    )
)]

#[cfg(feature = "program")]
mod address_space;
pub mod agent;
pub mod api;
mod base64;
#[cfg(feature = "program")]
pub mod bench;
mod body;
pub mod caller;
#[cfg(feature = "program")]
pub mod cli;
pub mod clock;
pub mod config;
pub mod disk;
mod duration;
mod forward;
pub mod grpc;
mod histogram;
#[cfg(feature = "program")]
pub mod http;
pub mod jobspec;
pub mod metrics;
mod open_files;
#[cfg(feature = "program")]
mod percent;
pub mod plant;
#[cfg(feature = "program")]
pub mod process;
pub mod provider;
pub mod published;
pub mod raft;
#[cfg(feature = "program")]
pub mod reload;
mod removal;
pub mod rpc;
pub mod rt;
pub mod serve;
pub mod server;
mod server_name;
mod signals;
pub mod storage;
pub mod task;
pub mod telemetry;
pub mod version;
