//! Plans on their way from workers into the log.

pub mod applier;
pub mod ports;
pub mod queue;
