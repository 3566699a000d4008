//! The node: its settings and what it offers, its allocations, and what each of them does.

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
