//! Evaluations: requests to look at a job again.

mod commands;
mod row;
mod transitions;

#[cfg(test)]
mod tests;

pub(crate) use self::transitions::Blocked;
pub use self::{commands::*, row::*};
