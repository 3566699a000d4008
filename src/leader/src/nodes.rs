//! Nodes: who was not heard from, what is due, what drains.
//!
//! [`watch`] is the machine; it holds the other three together.

pub mod deadlines;
pub mod drain;
pub mod heartbeat;
pub mod watch;
