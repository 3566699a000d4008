//! The node: its settings, its fingerprint, and its allocations with one shell for each.

mod face;
pub(crate) mod fingerprint;
mod local;
pub(crate) mod settings;
pub mod shell;
pub(crate) mod simulate;
pub(crate) mod start;

pub use self::{
    face::{Face, Own, Room, Serve, Shown},
    local::LocalNode,
};
