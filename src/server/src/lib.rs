//! The server: Raft, state machine, workers and leader services wired together ([`Core`]), without
//! sockets or signals: `process` puts those around it.

pub mod access;
pub mod applier;
mod bootstrap;
pub mod core;
mod digests;
mod edges;
pub mod elastic;
mod gauges;
pub mod grpc;
mod hosts;
mod housekeeping;
mod identity;
mod leader_link;
pub mod leadership;
mod leading;
mod lifecycle;
mod majority;
mod member_times;
mod members;
mod peers;
pub mod provider;
mod read_rounds;
mod removal;
pub mod reports;
mod requirements;
mod rollback;
mod said;
mod server_time;
mod services;
mod watchdog;
pub mod worker;

pub use self::{
    core::{Core, Parts, RaftTiming, Settings},
    hosts::BootId,
    leadership::LeaderServices,
    lifecycle::Lifecycle,
    members::Contact,
    server_time::OfClocks,
};

impl Core {
    /// Leases that this server released because its state lagged.
    pub fn leases_released_for_lag(&self) -> u64 {
        self.worker_stats.released_for_lag()
    }

    /// Leases that workers of this server hold now.
    pub fn leases_held(&self) -> u64 {
        self.worker_stats.held()
    }

    /// When log time last went on from wall clocks on this server, since its start.
    pub fn log_time_of_clocks(&self) -> Option<OfClocks> {
        self.contact.time.of_clocks()
    }

    /// Whether this server takes no writes of clients because its disk is nearly full.
    pub fn has_full_disk(&self) -> bool {
        self.contact.has_full_disk()
    }

    /// Scheduling passes on this server.
    pub fn scheduler_invocations(&self) -> u64 {
        self.worker_stats.invoked()
    }
}
