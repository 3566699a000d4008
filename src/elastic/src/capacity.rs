//! Capacity groups, decided without I/O: what is wanted of a group, and what follows for its
//! members.
//!
//! ```text
//!  sources ─► sum ─► predictor ─► min and max ─► desired ─► (committed) ─► plan ─► drain, take back,
//!  (requirements.rs)  (predictor)                                          (plan)   machines to make
//! ```
//!
//! A decision is acted on only after it is in the state, and everything that an act depends on is
//! there as well: the pace, the cool-downs, the deadlines of drains. A new leader therefore goes on
//! where the old one was. The one thing it has of its own is which sources it has not heard yet.

pub mod plan;
pub mod predictor;

use fsm::{
    CapacityGroup, CapacityTarget, State, Text,
    capacity::DecidedCapacity,
    plant::{Plant, is_planted},
};

pub use plan::{Plan, Stay, plan};

/// What a predictor makes of a group's sum, before min and max; and that within them.
pub fn wanted(now: u64, group: &CapacityGroup, target: Option<&CapacityTarget>) -> (u64, u64) {
    let predicted = target.map_or(0, |row| predictor::of(group).amount(now, row));
    (predicted, predicted.clamp(group.amount_min(), group.amount_max()))
}

/// The amount that a group's members follow.
pub(crate) fn followed(target: Option<&CapacityTarget>) -> u64 {
    target.map_or(
        0,
        |row| {
            if is_planted(Plant::WantedForDesired) { row.required } else { row.desired() }
        },
    )
}

/// The decision that is due for a group; none: the last one stands.
pub fn decision(
    now: u64,
    state: &State,
    name: &Text,
    group: &CapacityGroup,
) -> Option<DecidedCapacity> {
    let target = state.capacity_targets().get(name);
    let (predicted, desired) = wanted(now, group, target.map(|row| &**row));
    let last = target.and_then(|row| row.decision);
    // A group that was taken out of its pool and declared again begins without one, and its members
    // may be there still.
    let has_members = || state.members_of(name).any(|row| state.member_phase(row).counts());
    let is_new = last.map_or_else(|| desired > 0 || has_members(), |last| last.desired != desired);
    is_new.then(|| DecidedCapacity {
        group: name.clone(),
        desired,
        required: target.map_or(0, |row| row.required),
        predicted,
        requirements_index: target.map_or(0, |row| row.requirements_index),
    })
}
