//! The server: Raft, state machine, workers and leader services wired together.

pub mod api;
