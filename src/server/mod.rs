//! The server: Raft, state machine, workers and leader services wired together.

pub mod api;
pub mod state_cell;
