//! The calls between processes: the path of each with the types of its messages, so that no caller
//! can pair the wrong ones.

use std::marker::PhantomData;

use proto::v1 as pb;

/// A call with the types of its request and its reply, or of the items of its streams.
pub struct Method<Q, P> {
    path: &'static str,
    messages: PhantomData<fn(Q) -> P>,
}

impl<Q, P> Method<Q, P> {
    const fn new(path: &'static str) -> Self {
        Self { path, messages: PhantomData }
    }

    /// The path of its gRPC request.
    pub const fn path(&self) -> &'static str {
        self.path
    }
}

// Between servers, for Raft.
pub const APPEND_ENTRIES: Method<pb::AppendEntriesRequest, pb::AppendEntriesReply> =
    Method::new("/quorate.v1.Raft/AppendEntries");
pub const STREAM_APPEND: Method<pb::AppendEntriesRequest, pb::AppendEntriesReply> =
    Method::new("/quorate.v1.Raft/StreamAppend");
pub const VOTE: Method<pb::VoteRequest, pb::VoteReply> = Method::new("/quorate.v1.Raft/Vote");
pub const PRE_VOTE: Method<pb::VoteRequest, pb::VoteReply> =
    Method::new("/quorate.v1.Raft/PreVote");
pub const TRANSFER_LEADER: Method<pb::TransferLeaderRequest, pb::TransferLeaderReply> =
    Method::new("/quorate.v1.Raft/TransferLeader");
pub const SNAPSHOT_CHUNK: Method<pb::SnapshotChunkRequest, pb::SnapshotChunkReply> =
    Method::new("/quorate.v1.Raft/SnapshotChunk");

// Between servers, and from clients.
pub const WRITE: Method<pb::WriteRequest, pb::WriteReply> =
    Method::new("/quorate.v1.Cluster/Write");
pub const READ_INDEX: Method<pb::ReadIndexRequest, pb::ReadIndexReply> =
    Method::new("/quorate.v1.Cluster/ReadIndex");
pub const PROBE: Method<pb::ProbeRequest, pb::ProbeReply> =
    Method::new("/quorate.v1.Cluster/Probe");
pub const JOIN: Method<pb::JoinRequest, pb::JoinReply> = Method::new("/quorate.v1.Cluster/Join");
pub const TRANSFER_LEADERSHIP: Method<pb::TransferLeadershipRequest, pb::TransferLeadershipReply> =
    Method::new("/quorate.v1.Cluster/TransferLeadership");
pub const REMOVE_PEER: Method<pb::RemovePeerRequest, pb::RemovePeerReply> =
    Method::new("/quorate.v1.Cluster/RemovePeer");

// From workers to the leader.
pub const DEQUEUE: Method<pb::DequeueRequest, pb::DequeueReply> =
    Method::new("/quorate.v1.Scheduler/Dequeue");
pub const ACK: Method<pb::AckRequest, pb::AckReply> = Method::new("/quorate.v1.Scheduler/Ack");
pub const NACK: Method<pb::NackRequest, pb::NackReply> = Method::new("/quorate.v1.Scheduler/Nack");
pub const SUBMIT_PLAN: Method<pb::SubmitPlanRequest, pb::SubmitPlanReply> =
    Method::new("/quorate.v1.Scheduler/SubmitPlan");

// From agents.
pub const REGISTER: Method<pb::RegisterRequest, pb::RegisterReply> =
    Method::new("/quorate.v1.Agent/Register");
pub const HEARTBEAT: Method<pb::HeartbeatRequest, pb::HeartbeatReply> =
    Method::new("/quorate.v1.Agent/Heartbeat");
pub const READY: Method<pb::ReadyRequest, pb::ReadyReply> = Method::new("/quorate.v1.Agent/Ready");
pub const STREAM_ALLOCATIONS: Method<pb::StreamAllocationsRequest, pb::AllocationBatch> =
    Method::new("/quorate.v1.Agent/StreamAllocations");
pub const UPDATE_ALLOCATIONS: Method<pb::UpdateAllocationsRequest, pb::UpdateAllocationsReply> =
    Method::new("/quorate.v1.Agent/UpdateAllocations");
