//! The invariants of a cluster, each with its number in the list of promises (I1 to I58), as far as they can be seen from outside of the code that
//! is meant to keep them.
//!
//! - What rows show, in one state and from one to the next: `control::invariants`, which the simulation of the control plane uses too.
//! - [`history`]: what servers say and promise over time.
//! - [`disk`]: what lies on disks.

pub(crate) mod disk;
pub(crate) mod history;
#[cfg(test)]
mod tests;

pub(crate) use control::invariants::{
    Broken, check_kept, check_quiet, check_round_trip, check_state, check_step, check_suits,
};
pub(crate) use disk::Disks;
pub(crate) use history::{Applied, Leaders, LogTime, NodeDeaths, NodeLosses, NodeStrikes, Votes};

use crate::autopsy::Remains;
