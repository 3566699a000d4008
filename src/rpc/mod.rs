//! RPC between servers, and from workers, agents and clients: one transport, one file per service.

pub mod agent;
pub mod cluster;
pub mod convert;
pub mod scheduler;
pub mod transport;
