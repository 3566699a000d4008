//! The node's standing with the servers: connection, registration and heartbeats, readiness, the
//! stream of allocations, and the statuses that go back.

pub(crate) mod connection;
pub(crate) mod heartbeat;
pub mod meta;
pub(crate) mod probe;
pub(crate) mod readiness;
pub(crate) mod status;
