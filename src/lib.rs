//! Quorate.

pub mod server;
