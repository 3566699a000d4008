//! How this server's Raft reaches its peers: openraft's network traits over [`Transport`]. Every
//! request says for whom it is; every call has a deadline.

use std::{
    future::Future,
    io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, stream};
use ground::disk::{Disk, OpenMode};
use openraft::{
    AnyError, OptionalSend,
    base::{BoxFuture, BoxStream},
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable},
    network::{RPCOption, RPCTypes, RaftNetworkFactory, v2::RaftNetworkV2},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError,
        StreamAppendResult, TransferLeaderRequest, TransferLeaderResponse, VoteRequest,
        VoteResponse,
    },
};
use prost::Message;
use proto::v1 as pb;
use tonic::{Code, Status};
use wire::rpc::{
    method::{self, Method},
    transport::{Lane, Transport, call},
};

use super::{
    Member, ServerId, Snapshot, TypeConfig, Vote, applied,
    contact::LeaderContact,
    convert, edge,
    outstanding::Outstanding,
    promises::{Promise, Promises},
    state_machine::SnapshotFile,
};
use crate::storage::snapshot_file;

/// Piece of a snapshot in one message of production, bytes.
pub const SNAPSHOT_PIECE_BYTES: u64 = 1 << 20;
/// A piece of a snapshot that is not answered in this time is sent again.
const SNAPSHOT_PIECE_TIMEOUT: Duration = Duration::from_secs(10);
/// Attempts for one piece.
const SNAPSHOT_ATTEMPTS_MAX: u32 = 5;
/// The last piece is answered after the install.
const INSTALL_TIMEOUT: Duration = Duration::from_mins(10);

/// Makes connections to peers.
#[derive(Clone)]
pub struct Network {
    /// This server.
    pub id: ServerId,
    /// The cluster, once it is known.
    pub cluster: Arc<OnceLock<[u8; 16]>>,
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// Where snapshot files are read from.
    pub disk: Arc<dyn Disk>,
    /// Longest piece of a snapshot in one message, bytes; not 0.
    pub snapshot_piece_bytes: u64,
    /// When a majority last answered this server.
    pub contact: Arc<LeaderContact>,
    /// What the peers promised by their answers.
    pub promises: Arc<Promises>,
}

/// One peer, over one lane.
pub struct Peer {
    network: Network,
    to: ServerId,
    address: String,
    lane: Lane,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: ServerId, member: &Member) -> Peer {
        self.peer(target, member, Lane::Append)
    }

    async fn new_heartbeat_client(&mut self, target: ServerId, member: &Member) -> Peer {
        self.peer(target, member, Lane::Heartbeat)
    }

    async fn new_snapshot_client(&mut self, target: ServerId, member: &Member) -> Peer {
        self.peer(target, member, Lane::Snapshot)
    }
}

impl Network {
    fn peer(&self, to: ServerId, member: &Member, lane: Lane) -> Peer {
        Peer { network: self.clone(), to, address: member.rpc_address.clone(), lane }
    }
}

fn header(network: &Network, to: ServerId) -> pb::PeerHeader {
    let cluster = network.cluster.get().map_or_else(Bytes::new, |id| Bytes::copy_from_slice(id));
    pb::PeerHeader { cluster_id: cluster, from: network.id, to }
}

fn append_to_pb(
    network: &Network,
    to: ServerId,
    request: &AppendEntriesRequest<TypeConfig>,
) -> pb::AppendEntriesRequest {
    pb::AppendEntriesRequest {
        header: Some(header(network, to)),
        silence_ms: network.contact.age_ms(),
        vote: Some(convert::vote_to_pb(&request.vote)),
        prev_log_id: request.prev_log_id.as_ref().map(convert::log_id_to_pb),
        entries: request.entries.iter().map(convert::entry_to_pb).collect(),
        leader_commit: request.leader_commit.as_ref().map(convert::log_id_to_pb),
    }
}

/// The reply to one append in a stream.
pub(crate) fn stream_result_to_pb(
    result: StreamAppendResult<TypeConfig>,
) -> pb::AppendEntriesReply {
    use pb::append_entries_reply::Outcome;
    let outcome = match result {
        Ok(Some(id)) => Outcome::StreamSuccess(convert::log_id_to_pb(&id)),
        Ok(None) => Outcome::StreamSuccessEmpty(true),
        Err(StreamAppendError::Conflict(id)) => Outcome::StreamConflict(convert::log_id_to_pb(&id)),
        Err(StreamAppendError::HigherVote(vote)) => Outcome::HigherVote(convert::vote_to_pb(&vote)),
    };
    pb::AppendEntriesReply { outcome: Some(outcome) }
}

/// The reply to one append, sent in `term`, of a stream.
fn stream_result_from_pb(
    term: u64,
    reply: pb::AppendEntriesReply,
) -> Result<StreamAppendResult<TypeConfig>, Status> {
    use pb::append_entries_reply::Outcome;
    match reply.outcome {
        Some(Outcome::StreamSuccess(id)) => Ok(Ok(Some(convert::log_id_from_pb(&id)?))),
        Some(Outcome::StreamSuccessEmpty(_)) => Ok(Ok(None)),
        Some(Outcome::StreamConflict(id)) => {
            Ok(Err(StreamAppendError::Conflict(convert::log_id_from_pb(&id)?)))
        }
        Some(Outcome::HigherVote(vote)) => {
            Ok(Err(StreamAppendError::HigherVote(edge::vote_of_reply(term, Some(&vote))?)))
        }
        Some(
            Outcome::Success(_)
            | Outcome::PartialSuccess(_)
            | Outcome::Conflict(_)
            | Outcome::LogError(_),
        )
        | None => Err(Status::internal("unexpected reply in an append stream")),
    }
}

/// The reply to a single append.
pub(crate) fn append_result_to_pb(
    result: &AppendEntriesResponse<TypeConfig>,
) -> pb::AppendEntriesReply {
    use pb::append_entries_reply::Outcome;
    let outcome = match result {
        AppendEntriesResponse::Success => Outcome::Success(true),
        AppendEntriesResponse::PartialSuccess(Some(id)) => {
            Outcome::PartialSuccess(convert::log_id_to_pb(id))
        }
        AppendEntriesResponse::PartialSuccess(None) => Outcome::StreamSuccessEmpty(true),
        AppendEntriesResponse::Conflict => Outcome::Conflict(true),
        AppendEntriesResponse::HigherVote(vote) => Outcome::HigherVote(convert::vote_to_pb(vote)),
    };
    pb::AppendEntriesReply { outcome: Some(outcome) }
}

/// The reply to a single append, sent in `term`.
fn append_result_from_pb(
    term: u64,
    reply: pb::AppendEntriesReply,
) -> Result<AppendEntriesResponse<TypeConfig>, Status> {
    use pb::append_entries_reply::Outcome;
    match reply.outcome {
        Some(Outcome::Success(_)) => Ok(AppendEntriesResponse::Success),
        Some(Outcome::PartialSuccess(id)) => {
            Ok(AppendEntriesResponse::PartialSuccess(Some(convert::log_id_from_pb(&id)?)))
        }
        Some(Outcome::StreamSuccessEmpty(_)) => Ok(AppendEntriesResponse::PartialSuccess(None)),
        Some(Outcome::Conflict(_)) => Ok(AppendEntriesResponse::Conflict),
        Some(Outcome::HigherVote(vote)) => {
            Ok(AppendEntriesResponse::HigherVote(edge::vote_of_reply(term, Some(&vote))?))
        }
        Some(Outcome::StreamSuccess(_) | Outcome::StreamConflict(_) | Outcome::LogError(_))
        | None => Err(Status::internal("unexpected reply to an append")),
    }
}

impl Peer {
    fn error(&self, status: &Status, action: RPCTypes, within: Duration) -> RPCError<TypeConfig> {
        if status.code() == Code::DeadlineExceeded {
            return RPCError::Timeout(Timeout {
                action,
                id: self.network.id,
                target: self.to,
                timeout: within,
            });
        }
        // Nothing changes by asking again at once, neither there nor where another server answers:
        // openraft pauses after this one.
        let codes = [Code::Unavailable, Code::PermissionDenied, Code::Unimplemented];
        if codes.contains(&status.code()) {
            return RPCError::Unreachable(Unreachable::new(&text(status)));
        }
        RPCError::Network(NetworkError::new(&text(status)))
    }

    async fn call<Q: Message, P: Message + Default>(
        &self,
        method: &Method<Q, P>,
        request: &Q,
        timeout: Duration,
    ) -> Result<P, Status> {
        call(&*self.network.transport, &self.address, method, self.lane, request, timeout).await
    }

    async fn ask_vote(
        &self,
        method: &Method<pb::VoteRequest, pb::VoteReply>,
        request: VoteRequest<TypeConfig>,
        timeout: Duration,
    ) -> Result<VoteResponse<TypeConfig>, Status> {
        let message = pb::VoteRequest {
            header: Some(header(&self.network, self.to)),
            vote: Some(convert::vote_to_pb(&request.vote)),
            last_log_id: request.last_log_id.as_ref().map(convert::log_id_to_pb),
            leadership_transfer: request.leadership_transfer,
        };
        let reply = self.call(method, &message, timeout).await?;
        Ok(VoteResponse {
            vote: edge::vote_of_reply(request.vote.leader_id.term, reply.vote.as_ref())?,
            vote_granted: reply.granted,
            last_log_id: reply.last_log_id.as_ref().map(convert::log_id_from_pb).transpose()?,
        })
    }

    /// The receiver found this file damaged. If it has rotted here the state machine writes another
    /// one for the next try.
    async fn look_at_damage(&self, file: &SnapshotFile) {
        let (disk, path) = (Arc::clone(&self.network.disk), file.path.clone());
        let look = move || snapshot_file::set_aside_if_damaged(&*disk, &path);
        if let Err(error) = ground::rt::run_blocking(look).await {
            tracing::warn!(%error, "a damaged snapshot could not be set aside");
        }
    }

    async fn send_snapshot(&self, sender: Vote, snapshot: Snapshot) -> Result<Vote, Status> {
        let failed = |error: io::Error| Status::internal(format!("snapshot file: {error}"));
        let SnapshotFile { path } = &snapshot.snapshot;
        let file = self.network.disk.open(path, OpenMode::Read).map_err(failed)?;
        let size = file.size().map_err(failed)?;
        let membership = &snapshot.meta.last_membership;
        let mut offset = 0;
        let mut furthest = 0;
        let mut attempts = 0;
        loop {
            let length = self.network.snapshot_piece_bytes.min(size - offset);
            let mut data = vec![0; usize::try_from(length).map_err(|_| Status::internal("size"))?];
            file.read_exact_at(&mut data, offset).map_err(failed)?;
            let done = offset + length == size;
            let message = pb::SnapshotChunkRequest {
                header: Some(header(&self.network, self.to)),
                vote: Some(convert::vote_to_pb(&sender)),
                last_log_id: snapshot.meta.last_log_id.as_ref().map(convert::log_id_to_pb),
                membership_log_id: membership.log_id().as_ref().map(convert::log_id_to_pb),
                membership: Some(convert::membership_to_pb(membership.membership())),
                size,
                offset,
                data: data.into(),
                done,
            };
            let timeout = if done { INSTALL_TIMEOUT } else { SNAPSHOT_PIECE_TIMEOUT };
            let reply = match self.call(&method::SNAPSHOT_CHUNK, &message, timeout).await {
                Ok(reply) => reply,
                // What the receiver has found to be damaged is so here too, as far as anyone knows.
                Err(status)
                    if attempts < SNAPSHOT_ATTEMPTS_MAX && status.code() != Code::DataLoss =>
                {
                    tracing::warn!(to = self.to, %status, offset, "a piece of a snapshot failed");
                    attempts += 1;
                    ground::rt::sleep(Duration::from_millis(200)).await;
                    continue;
                }
                Err(status) => {
                    if status.code() == Code::DataLoss {
                        self.look_at_damage(&snapshot.snapshot).await;
                    }
                    return Err(status);
                }
            };
            if reply.next_offset > furthest {
                (furthest, attempts) = (reply.next_offset, 0);
            } else if reply.next_offset < offset {
                // It was restarted, or its disk does not keep what comes.
                attempts += 1;
                if attempts > SNAPSHOT_ATTEMPTS_MAX {
                    return Err(Status::unavailable("the receiver begins anew each time"));
                }
            }
            if let Some(vote) = &reply.vote {
                return edge::vote_of_reply(sender.leader_id.term, Some(vote));
            }
            if reply.next_offset > size {
                return Err(Status::internal("the receiver asks for bytes beyond the end"));
            }
            offset = reply.next_offset;
        }
    }
}

fn text(status: &Status) -> AnyError {
    AnyError::error(format!("{}: {}", status.code(), status.message()))
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = SnapshotFile;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, RPCError<TypeConfig>> {
        let message = append_to_pb(&self.network, self.to, &request);
        let timeout = option.hard_ttl();
        let result = async {
            let reply = self.call(&method::APPEND_ENTRIES, &message, timeout).await?;
            let result = append_result_from_pb(request.vote.leader_id.term, reply)?;
            if matches!(result, AppendEntriesResponse::Success) {
                self.network.promises.acknowledged(self.to, &request);
            }
            Ok(result)
        };
        result.await.map_err(|status| self.error(&status, RPCTypes::AppendEntries, timeout))
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<
        's,
        Result<
            BoxStream<'s, Result<StreamAppendResult<TypeConfig>, RPCError<TypeConfig>>>,
            RPCError<TypeConfig>,
        >,
    >
    where
        S: futures_util::Stream<Item = AppendEntriesRequest<TypeConfig>>
            + OptionalSend
            + Unpin
            + 'static,
    {
        let timeout = option.hard_ttl();
        async move {
            let (network, to) = (self.network.clone(), self.to);
            let outstanding = Outstanding::default();
            let sent = outstanding.clone();
            let mut input = input;
            // openraft's pause after errors is in this stream: taking the first request before
            // connecting keeps a peer that is down from being dialled thousands of times a second.
            let Some(first) = input.next().await else { return Ok(stream::empty().boxed()) };
            // One stream serves one leadership.
            let term = first.vote.leader_id.term;
            let input = stream::iter([first]).chain(input).map(move |request| {
                sent.sent(&request);
                Bytes::from(append_to_pb(&network, to, &request).encode_to_vec())
            });
            let input = input.boxed();
            let path = method::STREAM_APPEND.path();
            let replies = self
                .network
                .transport
                .stream(&self.address, path, self.lane, input)
                .await
                .map_err(|status| self.error(&status, RPCTypes::AppendEntries, timeout))?;
            let peer: &'s Self = self;
            let replies = replies.filter_map(move |reply| {
                let decode = move |bytes: Bytes| {
                    let reply = pb::AppendEntriesReply::decode(bytes)
                        .map_err(|error| Status::internal(error.to_string()))?;
                    let result = stream_result_from_pb(term, reply)?;
                    if let Ok(Some(id)) = &result {
                        peer.network.promises.heard(to, Promise::log(term, Some(*id)));
                    }
                    Ok(result)
                };
                let reply = reply
                    .and_then(decode)
                    .map_err(|status| peer.error(&status, RPCTypes::AppendEntries, timeout));
                let may_be_seen =
                    reply.as_ref().map_or(true, |result| outstanding.answered(result));
                std::future::ready(may_be_seen.then_some(reply))
            });
            Ok(replies.boxed() as BoxStream<'s, _>)
        }
        .boxed()
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let (timeout, term) = (option.hard_ttl(), request.vote.leader_id.term);
        let reply = self.ask_vote(&method::VOTE, request, timeout).await;
        let reply = reply.map_err(|status| self.error(&status, RPCTypes::Vote, timeout))?;
        if reply.vote_granted {
            self.network.promises.heard(self.to, Promise::vote(term));
        }
        Ok(reply)
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, RPCError<TypeConfig>> {
        let timeout = option.hard_ttl();
        self.ask_vote(&method::PRE_VOTE, request, timeout)
            .await
            .map_err(|status| self.error(&status, RPCTypes::Vote, timeout))
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let installed = Promise::log(vote.leader_id.term, snapshot.meta.last_log_id);
        let send = self.send_snapshot(vote, snapshot);
        let (send, cancel) = (std::pin::pin!(send), std::pin::pin!(cancel));
        match futures_util::future::select(send, cancel).await {
            futures_util::future::Either::Left((Ok(reply), _)) => {
                if reply == vote {
                    self.network.promises.heard(self.to, installed);
                }
                Ok(SnapshotResponse::new(reply))
            }
            futures_util::future::Either::Left((Err(status), _)) => {
                Err(StreamingError::Unreachable(Unreachable::new(&text(&status))))
            }
            futures_util::future::Either::Right((closed, _)) => Err(StreamingError::Closed(closed)),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, RPCError<TypeConfig>> {
        let timeout = option.hard_ttl();
        let message = pb::TransferLeaderRequest {
            header: Some(header(&self.network, self.to)),
            from_leader: Some(convert::vote_to_pb(request.from_leader())),
            to_node: *request.to_node_id(),
            last_log_id: request.last_log_id().map(convert::log_id_to_pb),
        };
        let _reply: pb::TransferLeaderReply = self
            .call(&method::TRANSFER_LEADER, &message, timeout)
            .await
            .map_err(|status| self.error(&status, RPCTypes::TransferLeader, timeout))?;
        Ok(Ok(()))
    }
}

/// Reads a snapshot file's announced position, for tests and tools.
pub fn snapshot_position(disk: &dyn Disk, file: &SnapshotFile) -> io::Result<Option<super::LogId>> {
    Ok(applied::log_id(&snapshot_file::read(disk, &file.path)?.meta))
}

#[cfg(test)]
mod tests;
