//! What operators set for the whole cluster: scheduler configuration, node pools, namespaces.

mod commands;
mod row;
mod transitions;

#[cfg(test)]
mod tests;

pub use self::{commands::*, row::*};
pub(crate) use transitions::check_name;
