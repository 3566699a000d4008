//! Plans: what a scheduler proposes, and what became of it.
//!
//! A worker builds a [`Plan`] on a snapshot; the leader's applier drops what no longer fits and picks ports; `apply` re-checks what is left
//! against the running state and answers with a [`PlanVerdict`].

mod commands;
mod parts;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{
    commands::ApplyPlans,
    parts::{DropReason, FollowUp, InPlace, Outcome, Placement, Plan, PlanVerdict, Stop},
    transitions::{PickPorts, Trial, check_fit, check_placement, check_plan},
};
