//! What the edges (HTTP, gRPC) may ask of a running server, one trait for each audience: clients,
//! peers, workers, agents. The edges see these types and the published state, nothing else.
//!
//! Clients use both edges, so [`Api`] has types of its own. Peers, workers and agents use gRPC
//! only: their traits use its messages where these carry everything that is needed.

mod answer;
mod error;
pub mod failure;
mod lease;
pub mod payload;
pub mod senders;
mod workers;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use fsm::{
    Command, Index, Plan, Proposal, Reply, RequestId, State, TimeMs, allocation::NodeReport,
    table::TableId,
};
use futures_util::future::BoxFuture;
use ground::{caller::Caller, rt::watch};
use leader::{PlanAnswer, broker::NackReason};
use proto::v1 as pb;
use tonic::Status;

use crate::published::StateCell;

pub use ground::metrics::Sample;

pub use self::{
    answer::Answer,
    error::{ApiError, Limit},
    lease::{Dequeue, Lease, LeaseKey},
    workers::{WorkerChange, WorkerInfo, WorkerSettings, WorkerStatus, Workload},
};

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
    pub state: Arc<State>,
    /// Time since this server heard a leader; zero on the leader and for linearizable reads.
    pub last_contact: Duration,
    /// There is a leader, and a majority of the servers answers it.
    pub known_leader: bool,
}

/// A write that took its place in the log.
#[derive(Clone, Debug)]
pub struct Written {
    pub index: Index,
    /// The outcome; `Reply::Rejected` changed nothing.
    pub reply: Reply,
}

/// A server or membership entry as operators see it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct MemberInfo {
    /// Raft node id.
    pub id: u64,
    pub name: String,
    /// Advertised gRPC address.
    pub rpc_address: String,
    pub http_address: String,
    pub leader: bool,
    pub voter: bool,
    pub presence: Presence,
    /// Version and commit of its program; empty: it has not said.
    pub version: String,
    /// How far its clock is ahead of the majority's, ms; below 0: behind it. None: that is not
    /// known.
    pub clock_ahead_ms: Option<i64>,
}

/// Whether a server answers the one that is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Presence {
    /// It has not answered since the asked server started.
    #[default]
    NeverHeard,
    Alive,
    /// It answered once, and not lately.
    Lost,
}

/// Two starts of an agent that are one node.
pub struct Rivalry {
    /// Where the start that registered last is asked.
    pub address: String,
    /// That start. After a restart at the same address another one answers.
    pub start: [u8; 16],
    /// Where the start that registers now serves.
    pub newcomer: String,
}

/// A running server, as its edges see it.
pub trait Api: Send + Sync + 'static {
    /// A snapshot in the given mode, at least at `index_min`, within `timeout`.
    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Snapshot, ApiError>>;

    /// Proposes a command on the leader, from any server. `request` makes a retry with the same id
    /// take effect once.
    fn write<'a>(
        &'a self,
        caller: &'a Caller,
        command: Command,
        request: Option<RequestId>,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Written, ApiError>>;

    /// Resolves when one of `tables` changed after index `after` on this server, or after
    /// `timeout`.
    fn changed<'a>(
        &'a self,
        caller: &'a Caller,
        tables: &'static [TableId],
        after: Index,
        timeout: Duration,
    ) -> BoxFuture<'a, ()>;

    /// The time of the cluster now: log time as this server knows it, Unix ms.
    fn now_ms(&self) -> TimeMs;

    /// How far that is behind the clocks of a majority, ms; below 0: ahead of them. None: these do
    /// not agree, or it is not known yet.
    fn behind_ms(&self) -> Option<i64>;

    /// A fresh random id.
    fn new_id(&self) -> [u8; 16];

    /// Members of the Raft configuration.
    fn members(&self) -> Vec<MemberInfo>;

    /// This server.
    fn this_member(&self) -> MemberInfo;

    /// Hands leadership to `to` or to the most advanced follower; answers with the new leader's id.
    fn transfer_leadership<'a>(
        &'a self,
        caller: &'a Caller,
        to: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, ApiError>>;

    /// Takes the member `id` out of the cluster: at once and for good. Without `force` it is
    /// refused where the servers that answer would be no majority of the rest.
    fn remove_member<'a>(
        &'a self,
        caller: &'a Caller,
        id: u64,
        force: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>>;

    /// The scheduling workers of this server.
    fn workers(&self) -> Vec<WorkerInfo>;

    /// How many scheduling workers this server has, and what they take.
    fn worker_settings(&self) -> WorkerSettings;

    /// Changes the scheduling workers of this server until it restarts; answers with the settings
    /// once no worker leases against them any more.
    fn set_workers<'a>(
        &'a self,
        caller: &'a Caller,
        change: WorkerChange,
    ) -> BoxFuture<'a, WorkerSettings>;

    /// Numbers for people and dashboards: name (Nomad's where one exists) to value.
    fn gauges(&self) -> BTreeMap<String, f64>;

    /// Durations for dashboards, by name.
    fn samples(&self) -> BTreeMap<String, Sample>;

    /// Facts as text for people: raft state, term, versions.
    fn stats(&self) -> BTreeMap<String, BTreeMap<String, String>>;

    /// Index of the last entry that changed the Raft configuration.
    fn membership_index(&self) -> Index;
}

/// Requests of other servers, and of clients over gRPC.
pub trait PeerApi: Send + Sync + 'static {
    /// Takes a write that servers have forwarded so many times; 0: it comes from a client.
    fn write_forwarded<'a>(
        &'a self,
        caller: &'a Caller,
        proposal: Proposal,
        times_forwarded: u32,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Written, ApiError>>;

    /// The index that a linearizable read has to wait for, and the term; from the leader only.
    fn read_index<'a>(
        &'a self,
        caller: &'a Caller,
    ) -> BoxFuture<'a, Result<(Index, u64), ApiError>>;

    /// The identity of this server, what it knows of its cluster, and its digest at a mark.
    fn probe<'a>(
        &'a self,
        caller: &'a Caller,
        request: pb::ProbeRequest,
    ) -> BoxFuture<'a, Result<pb::ProbeReply, Status>>;

    /// Makes a server a voter; on the leader only.
    fn admit<'a>(
        &'a self,
        caller: &'a Caller,
        request: pb::JoinRequest,
    ) -> BoxFuture<'a, Result<pb::JoinReply, Status>>;

    /// Hands leadership over; on the leader only.
    fn hand_over<'a>(
        &'a self,
        caller: &'a Caller,
        to: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, ApiError>>;

    /// Takes a member out; on the leader only.
    fn take_out<'a>(
        &'a self,
        caller: &'a Caller,
        id: u64,
        force: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>>;
}

/// What workers on other servers ask of the leader.
pub trait WorkerApi: Send + Sync + 'static {
    /// Leases evaluations, waiting a while for the first.
    fn dequeue<'a>(
        &'a self,
        caller: &'a Caller,
        request: Dequeue,
    ) -> BoxFuture<'a, Result<Vec<Lease>, Status>>;

    /// Ends a lease.
    fn ack(&self, caller: &Caller, lease: LeaseKey) -> Result<(), Status>;

    /// Gives a lease back.
    fn nack(&self, caller: &Caller, lease: LeaseKey, why: NackReason) -> Result<(), Status>;

    /// Queues a plan and waits for its outcome. `bytes` is the length of its frame.
    fn submit_plan<'a>(
        &'a self,
        caller: &'a Caller,
        lease: LeaseKey,
        plan: Plan,
        bytes: usize,
    ) -> BoxFuture<'a, Result<PlanAnswer, Status>>;
}

/// What agents ask of any server.
pub trait AgentApi: Api {
    /// A node's heartbeat: taken here when this server leads, forwarded to the leader otherwise.
    fn heartbeat<'a>(
        &'a self,
        caller: &'a Caller,
        request: pb::HeartbeatRequest,
    ) -> BoxFuture<'a, Result<pb::HeartbeatReply, Status>>;

    /// The shortest time within which a node has to send its next heartbeat, ms.
    fn heartbeat_ttl_ms_min(&self) -> u64;

    /// Hands in statuses of a node's allocations and waits until they are applied.
    fn report<'a>(
        &'a self,
        caller: &'a Caller,
        report: NodeReport,
    ) -> BoxFuture<'a, Result<Written, ApiError>>;

    /// The published state of this server.
    fn published(&self) -> &Arc<StateCell>;

    /// Whether this server heard its leader recently, or a majority if it leads.
    fn is_in_touch(&self) -> bool;

    /// Becomes true when the server stops.
    fn stopping(&self) -> watch::Receiver<bool>;
}
