//! Integration tests: real processes, real sockets.

mod agent;
mod executor;
mod harness;
mod recompute;
mod scheduling;
