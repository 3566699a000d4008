//! Keeps the node in touch with the servers: connection, registration and heartbeats, readiness,
//! the stream of allocations, and the statuses that are sent back.

pub(crate) mod connection;
pub(crate) mod heartbeat;
pub mod meta;
pub(crate) mod probe;
pub(crate) mod readiness;
pub(crate) mod status;
