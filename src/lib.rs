//! Quorate: a Raft-replicated cluster scheduler that speaks Nomad's HTTP API. ARCHITECTURE.md is the map.

pub mod agent;
pub mod clock;
pub mod disk;
pub mod raft;
pub mod rpc;
pub mod rt;
pub mod server;
pub mod storage;
