//! Nodes: heartbeats, deadlines, drains, mass losses, and what changed.
//!
//! [`watch`] is the machine of the first three; [`mass_loss`] and [`changes`] are their own.

pub(crate) mod changes;
pub mod deadlines;
pub mod drain;
pub mod heartbeat;
pub(crate) mod mass_loss;
pub mod watch;
