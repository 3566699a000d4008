//! An allocation on the node: its specification, the pure state machine that runs it, and what is
//! stored of it.

pub(crate) mod collected;
pub(crate) mod health;
pub(crate) mod preparation;
pub(crate) mod runner;
pub mod spec;
pub mod state;
