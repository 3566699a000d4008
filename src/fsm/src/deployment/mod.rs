//! Deployments: how a version of a job is rolled out, and what follows from the health of its
//! allocations ([ADR 0018]).
//!
//! ```text
//!  report of an agent ─► put_allocation ─► counts ─► settle: done, promoted, failed, or next step
//!                                             (all in one entry)
//! ```
//!
//! [ADR 0018]: ../../../../docs/adr/0018-deployments-follow-through-in-apply.md

mod commands;
mod counts;
mod goals;
mod room;
mod row;
mod transitions;

#[cfg(test)]
mod tests;

pub(crate) use self::counts::Touched;
pub use self::{commands::*, row::*};
