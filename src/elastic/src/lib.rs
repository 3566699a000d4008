//! Elastic pools: machines that come when jobs wait, and go when they idle.
//!
//! Pure: no async, no clock, no randomness, ordered iteration. `now` is an argument (log time,
//! milliseconds). The truth is in [`fsm::State`]: pools, one row for each instance from its intent
//! to its end, and the limits that providers named. What is here is built again by the next leader.

pub mod call;
pub mod capacity;
pub mod choice;
pub mod demand;
pub mod explain;
pub mod fake;
pub mod fleet;
pub mod limits;
pub mod overhead;
mod requirements;
pub mod sizes;
pub mod sums;
pub mod sync;
pub mod why;

#[cfg(test)]
mod testing;
#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests;

pub use fleet::{CallId, Fleet, FleetConfig, InstanceStep, late};
