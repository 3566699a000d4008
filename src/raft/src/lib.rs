//! Raft, through openraft. Nothing outside this folder names openraft's generic types.

pub mod applied;
pub mod contact;
pub mod convert;
#[cfg(test)]
mod crash;
mod edge;
#[cfg(test)]
mod kill;
pub mod log_store;
pub mod network;
mod outstanding;
pub mod promises;
pub mod service;
pub mod state_machine;
pub mod storage;
pub mod stores;
#[cfg(test)]
mod suite;
#[cfg(test)]
mod testing;

use std::fmt;

use bytes::Bytes;
use fsm::{Index, Reply};

pub use openraft::{ServerState, async_runtime::watch::WatchReceiver};

/// A log entry's command: the encoded proposal, as it stands in the log.
#[derive(Clone, PartialEq, Eq)]
pub struct EntryData(pub Bytes);

impl fmt::Debug for EntryData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "command of {} bytes", self.0.len())
    }
}

impl fmt::Display for EntryData {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// What applying an entry answers to its proposer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EntryReply {
    /// Index at which it took effect.
    pub index: Index,
    /// What became of it.
    pub reply: Reply,
}

/// A server in the Raft configuration.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Member {
    /// Configured name.
    pub name: String,
    /// Advertised gRPC address.
    pub rpc_address: String,
    /// HTTP address.
    pub http_address: String,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.rpc_address)
    }
}

/// Number of a server: random, made with its data directory.
pub type ServerId = u64;

openraft::declare_raft_types!(
    /// openraft's types as used here: one leader per term.
    pub TypeConfig:
        D = EntryData,
        R = EntryReply,
        NodeId = ServerId,
        Node = Member,
        Term = u64,
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, ServerId>,
        AsyncRuntime = ground::rt::Rt,
);

/// The Raft node of this server.
pub type Raft = openraft::Raft<TypeConfig, state_machine::StateMachine>;
/// What a Raft node tells of itself.
pub type Metrics = openraft::RaftMetrics<TypeConfig>;
/// Term and index of an entry.
pub type LogId = openraft::alias::LogIdOf<TypeConfig>;
/// A vote.
pub type Vote = openraft::alias::VoteOf<TypeConfig>;
/// A log entry.
pub type Entry = openraft::alias::EntryOf<TypeConfig>;
/// A membership and the entry that set it.
pub type StoredMembership = openraft::alias::StoredMembershipOf<TypeConfig>;
/// The voters and learners.
pub type Membership = openraft::Membership<ServerId, Member>;
/// Position and membership of a snapshot.
pub type SnapshotMeta = openraft::alias::SnapshotMetaOf<TypeConfig>;
/// A snapshot.
pub type Snapshot = openraft::alias::SnapshotOf<TypeConfig, state_machine::SnapshotFile>;
