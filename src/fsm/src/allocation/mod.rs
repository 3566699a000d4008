//! Allocations: placed instances of task groups, and what the agents report of them.

mod commands;
mod row;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{commands::*, row::*};
