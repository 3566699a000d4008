//! Capacity groups: machines that follow what sources outside the cluster say they need.
//!
//! ```text
//!  SetRequirements ─► CapacitySource (amounts by group) ─► sum in CapacityTarget
//!                                                            │ predictor, min and max (leader)
//!  DecideCapacity ◄──────────────────────────────────────────┘
//!       └─► desired ─► MoveMembers (drain, take back), RequestInstances with a group
//! ```
//!
//! It owns who needs how much, the last decision of each group, and how fast a group may grow. It
//! must never count a source twice, take an older word over a newer one, or move the deadline of a
//! drain that has begun.

mod commands;
mod declared;
mod members;
mod peaks;
mod row;
mod rules;
#[cfg(test)]
mod tests;
mod transitions;

pub use commands::*;
pub(crate) use members::Strength;
pub use peaks::Peaks;
pub use row::*;
pub use rules::MemberPhase;
