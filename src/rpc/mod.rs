//! RPC between servers, and from workers, agents and clients: one transport, one file per service.

pub mod convert;
pub mod transport;
