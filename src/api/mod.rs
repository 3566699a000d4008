//! What the edges (HTTP, gRPC) may ask of a running server. They see these types and snapshots of
//! `fsm::State`, nothing else of a server.

mod error;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fsm::{Command, Index, Reply, RequestId, State, table::TableId};
use futures_util::future::BoxFuture;

pub use self::error::ApiError;

/// How fresh a read must be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadMode {
    /// Reflects every write acknowledged anywhere before the read began.
    Linearizable,
    /// What this server has, with the age of its last contact with a leader.
    Stale,
}

/// A consistent view of the whole state, at one index.
#[derive(Clone)]
pub struct Snapshot {
    /// The state.
    pub state: Arc<State>,
    /// Time since this server heard a leader; zero on the leader and for linearizable reads.
    pub last_contact: Duration,
    /// Whether a leader is known.
    pub known_leader: bool,
}

/// A write that took its place in the log.
#[derive(Clone, Debug)]
pub struct Written {
    /// Index of its entry.
    pub index: Index,
    /// What became of it; `Reply::Rejected` changed nothing.
    pub reply: Reply,
}

/// A server or membership entry as operators see it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberInfo {
    /// Raft node id.
    pub id: u64,
    /// Configured name.
    pub name: String,
    /// Advertised gRPC address.
    pub rpc_address: String,
    /// HTTP address.
    pub http_address: String,
    /// It leads.
    pub leader: bool,
    /// It votes.
    pub voter: bool,
    /// It was heard from recently (as far as this server knows).
    pub alive: bool,
}

/// A running server, as its edges see it.
pub trait Api: Send + Sync + 'static {
    /// A snapshot in the given mode, at least at `index_min`, within `timeout`.
    fn read(
        &self,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Snapshot, ApiError>>;

    /// Proposes a command on the leader, from any server. `request` makes a retry with the same id take effect once.
    fn write(
        &self,
        command: Command,
        request: Option<RequestId>,
        timeout: Duration,
    ) -> BoxFuture<'_, Result<Written, ApiError>>;

    /// Resolves when one of `tables` changed after index `after` on this server, or after `timeout`.
    fn changed(
        &self,
        tables: &'static [TableId],
        after: Index,
        timeout: Duration,
    ) -> BoxFuture<'_, ()>;

    /// A fresh random id.
    fn new_id(&self) -> [u8; 16];

    /// Members of the Raft configuration.
    fn members(&self) -> Vec<MemberInfo>;

    /// This server.
    fn this_member(&self) -> MemberInfo;

    /// Hands leadership to `to` or to the most advanced follower; answers with the new leader's id.
    fn transfer_leadership(&self, to: Option<u64>) -> BoxFuture<'_, Result<u64, ApiError>>;

    /// Numbers for people and dashboards: name (Nomad's where one exists) to value.
    fn gauges(&self) -> BTreeMap<String, f64>;

    /// Words for people: raft state, term, versions.
    fn stats(&self) -> BTreeMap<String, BTreeMap<String, String>>;

    /// Index of the last entry that changed the Raft configuration.
    fn membership_index(&self) -> Index;
}
