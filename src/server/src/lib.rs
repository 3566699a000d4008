//! The server: Raft, state machine, workers and leader services wired together ([`Core`]), without
//! sockets or signals: `process` puts those around it.

mod access;
mod core;
mod edges;
mod gauges;
pub mod grpc;
mod leadership;
mod member;
pub mod provider;
mod said;
mod upkeep;
mod worker;

pub use self::{
    core::{Core, Parts},
    leadership::services::LeaderServices,
    member::{
        contact::Contact,
        lifecycle::Lifecycle,
        settings::{BootId, RaftTiming, Settings},
        time::OfClocks,
    },
    provider::Providers,
    worker::make_pass,
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
