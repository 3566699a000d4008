//! Integration tests: real processes, real sockets.

mod agent;
mod agent_returns;
mod alerts;
mod bench;
mod cluster;
mod executor;
mod harness;
mod hostile_tasks;
mod loads;
mod log_level;
mod majority;
mod plants;
mod providers;
mod recompute;
mod recovery;
mod removal;
mod reply_cutter;
mod rollback;
mod scheduling;
mod shortages;
mod signals;
mod streams;
mod traces;
