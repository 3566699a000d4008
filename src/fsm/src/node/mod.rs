//! Nodes: machines with an agent.

mod census;
mod change;
mod commands;
mod health;
mod mass_loss;
mod occupancy;
mod row;
mod rules;
mod service;
mod shortage;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{
    census::Census, change::NodeChange, commands::*, occupancy::Occupancy, row::*,
    rules::computed_class,
};
pub(crate) use health::clip;
