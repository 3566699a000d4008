//! Plans: what a scheduler proposes, and the verdict on it.
//!
//! A worker builds a [`Plan`] on a snapshot; the leader's applier drops what no longer fits and
//! picks ports; `apply` re-checks what is left against the running state and answers with a
//! [`PlanVerdict`].

mod commands;
mod parts;
mod rules;
mod transitions;
mod trial;

#[cfg(test)]
mod tests;

pub use self::{
    commands::*,
    parts::{DropReason, FollowUp, InPlace, Outcome, Placement, Plan, PlanVerdict, Stop},
    rules::{check_fit, check_placement, check_plan, is_preemptible},
    trial::{PickPorts, Trial},
};
