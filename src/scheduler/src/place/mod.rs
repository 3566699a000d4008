//! Chooses the node of an instance: which nodes are feasible, which have room, and how they rank.

pub(crate) mod candidates;
pub(crate) mod constraint;
pub(crate) mod declared;
pub(crate) mod feasible;
pub(crate) mod idle;
pub(crate) mod older;
pub(crate) mod pattern;
pub(crate) mod preempt;
pub(crate) mod rank;
pub(crate) mod regexp;
pub(crate) mod shuffle;
pub(crate) mod spread;
pub(crate) mod stack;
pub(crate) mod tally;
pub(crate) mod version;
