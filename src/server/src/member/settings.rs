//! The settings of a server.

use std::path::PathBuf;

use fsm::JobKind;
use leader::ServicesConfig;

/// The kernel's id of one boot of one host.
pub type BootId = [u8; 16];

/// Timing of Raft, ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RaftTiming {
    /// Between heartbeats of a leader.
    pub heartbeat_ms: u64,
    /// Shortest election timeout.
    pub election_ms_min: u64,
    /// Longest election timeout.
    pub election_ms_max: u64,
}

/// The settings of a server core.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Unique in the cluster.
    pub name: String,
    pub region: String,
    pub datacenter: String,
    pub data_directory: PathBuf,
    /// Advertised gRPC address.
    pub rpc_address: String,
    /// Advertised HTTP address.
    pub http_address: String,
    /// Advertised gRPC addresses of all servers that form a new cluster.
    pub bootstrap_expect: Vec<String>,
    /// Servers of a running cluster to join.
    pub join: Vec<String>,
    /// Whether a server whose data directory went back joins anew by itself.
    pub rejoin_after_rollback: bool,
    pub timing: RaftTiming,
    /// Scheduling workers at the start.
    pub workers: usize,
    /// Kinds of jobs that they schedule, in the order of [`JobKind::ALL`].
    pub kinds: Vec<JobKind>,
    /// The share of them that works while this server leads others, in thousandths.
    pub leader_share: u32,
    /// Configuration of the leader services.
    pub services: ServicesConfig,
    /// Log bytes after which a snapshot is written.
    pub snapshot_log_bytes: u64,
    /// Log entries that stay behind a snapshot.
    pub log_entries_kept: u64,
    /// Free space below which writes are refused.
    pub free_bytes_min: u64,
    /// The boot of this server's host; none: it cannot be read.
    pub boot: Option<BootId>,
}
