//! Explanations for users: what a plan does, and why instances found no node.

pub(crate) mod annotate;
mod unplaced;

pub use unplaced::{heading, reasons};
