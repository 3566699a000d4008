//! Integration tests: real processes, real sockets.

mod agent;
mod executor;
