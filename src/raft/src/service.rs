//! The peers' side of Raft: requests of other servers, checked for cluster and receiver before
//! openraft sees them.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, stream::BoxStream};
use ground::{
    rt::{self, watch},
    server_name::ServerName,
};
use openraft::raft::{AppendEntriesRequest, TransferLeaderRequest, VoteRequest, VoteResponse};
use proto::v1 as pb;
use tonic::{Request, Response, Status, Streaming};

use super::{
    Raft, ServerId, Snapshot, SnapshotMeta, TypeConfig, Vote, WatchReceiver, applied,
    contact::LeaderContact,
    convert,
    edge::{self, Known, Sent},
    network::{append_result_to_pb, stream_result_to_pb},
    promises::{Promise, Promises},
    state_machine::SnapshotFile,
};
use crate::storage::snapshot_file::{self, Received, SnapshotDirectory};

/// Answers the Raft requests of peers.
#[derive(Clone)]
pub struct RaftService {
    /// This server's Raft node.
    pub raft: Raft,
    /// This server.
    pub id: ServerId,
    /// The cluster, once it is known.
    pub cluster: Arc<OnceLock<[u8; 16]>>,
    /// Where snapshots are received.
    pub snapshots: SnapshotDirectory,
    /// When a leader last sent something.
    pub contact: Arc<LeaderContact>,
    /// What the peers promised by their requests, and whether this server may answer them.
    pub promises: Arc<Promises>,
    /// Becomes true when this server stops: streams end then, which the leader would keep open.
    pub stopping: watch::Receiver<bool>,
}

impl RaftService {
    fn check(&self, header: Option<&pb::PeerHeader>) -> Result<(), Status> {
        let header = header.ok_or_else(|| Status::invalid_argument("no peer header"))?;
        let Some(cluster) = self.cluster.get() else {
            return Err(Status::unavailable("this server has not joined a cluster yet"));
        };
        if header.cluster_id.as_ref() != cluster {
            tracing::warn!(from = %ServerName(header.from), "refused a request of a peer of another cluster");
            return Err(Status::permission_denied(
                "peer of another cluster: check bootstrap_expect and the data directories",
            ));
        }
        if header.to != self.id {
            return Err(Status::permission_denied(format!(
                "the request is for server {}, this is {}: \
                 its data directory was replaced; join it anew",
                ServerName(header.to),
                ServerName(self.id)
            )));
        }
        if !self.promises.may_take_part() {
            return Err(Status::unavailable(
                "this server asks the others first what it has acknowledged",
            ));
        }
        Ok(())
    }

    fn known(&self) -> Known {
        Known::new(self.id, &self.raft.metrics().borrow_watched())
    }

    /// The request of a leader, checked in full.
    fn append_request(
        &self,
        message: pb::AppendEntriesRequest,
    ) -> Result<AppendEntriesRequest<TypeConfig>, Status> {
        self.check(message.header.as_ref())?;
        let from = message.header.as_ref().map_or(0, |header| header.from);
        let silence = Duration::from_millis(message.silence_ms);
        let append = convert::append_from_pb(message)?;
        self.known().check_append(&append)?;
        self.hear(from, append.vote.leader_id.term, silence);
        Ok(append)
    }

    /// A leader of an older term, which does not know that it leads no more, says nothing about
    /// now.
    fn hear(&self, from: ServerId, term: u64, silence: Duration) {
        if term >= self.raft.metrics().borrow_watched().current_term {
            self.contact.heard(term, silence);
            self.promises.heard(from, Promise::vote(term));
        }
    }

    /// Appends what comes, answering in order, up to the first request that is not for us or does
    /// not decode: skipping one would leave a hole. The last answer says why: from a stream that
    /// just ends, openraft's leader takes what it sent to be still under way, and keeps its log for
    /// it.
    pub fn append_stream(
        &self,
        requests: BoxStream<'static, Result<pb::AppendEntriesRequest, Status>>,
    ) -> BoxStream<'static, Result<pb::AppendEntriesReply, Status>> {
        let service = self.clone();
        let mut stopping = self.stopping.clone();
        let stopped = async move { rt::until_true(&mut stopping).await };
        let refusal = Arc::new(OnceLock::new());
        let refuse = Arc::clone(&refusal);
        let input = requests
            .map(move |message| service.append_request(message?))
            .scan((), move |(), request: Result<_, Status>| {
                if let Err(status) = &request {
                    refuse.get_or_init(|| status.clone());
                }
                futures_util::future::ready(request.ok())
            })
            .take_until(stopped)
            .boxed();
        let replies = self.raft.stream_append(input).map(|reply| match reply {
            Ok(result) => Ok(stream_result_to_pb(result)),
            Err(fatal) => Err(failed(fatal)),
        });
        let last = futures_util::future::lazy(move |_| refusal.get().cloned().map(Err));
        replies.chain(last.into_stream().filter_map(futures_util::future::ready)).boxed()
    }

    fn vote_request(&self, message: &pb::VoteRequest) -> Result<VoteRequest<TypeConfig>, Status> {
        self.check(message.header.as_ref())?;
        let vote = convert::vote_from_pb(message.vote.as_ref())?;
        self.known().check_vote(&vote, Sent::ByCandidate)?;
        let last = message.last_log_id.as_ref().map(convert::log_id_from_pb).transpose()?;
        let mut request = VoteRequest::new(vote, last);
        request.leadership_transfer = message.leadership_transfer;
        Ok(request)
    }

    /// What is announced with a piece of a snapshot, checked before a byte of it is stored.
    fn announced(
        &self,
        message: &pb::SnapshotChunkRequest,
    ) -> Result<(Vote, SnapshotMeta), Status> {
        self.check(message.header.as_ref())?;
        let vote = convert::vote_from_pb(message.vote.as_ref())?;
        let known = self.known();
        known.check_vote(&vote, Sent::ByLeader)?;
        let last = message.last_log_id.as_ref().map(convert::log_id_from_pb).transpose()?;
        if let Some(last) = &last {
            known.check_leaders_id(&vote, last)?;
        }
        let size = edge::number("size", message.size)?;
        let offset = edge::number("offset", message.offset)?;
        let end = offset.saturating_add(message.data.len() as u64);
        if end > size || (message.done && end != size) {
            return Err(Status::invalid_argument(format!(
                "a piece from {offset} to {end} is none of a file of {size} bytes"
            )));
        }
        let last_membership = convert::stored_membership_from_pb(
            message.membership_log_id.as_ref(),
            message.membership.as_ref(),
        )?;
        Ok((vote, SnapshotMeta { last_log_id: last, last_membership }))
    }

    fn store_piece(&self, message: &pb::SnapshotChunkRequest) -> Result<Received, Status> {
        let id = message.last_log_id.unwrap_or_default();
        let name = format!("{}-{}-{}", id.term, id.index, message.size);
        self.snapshots
            .receive_piece(&name, message.offset, &message.data, message.done)
            .map_err(|error| Status::internal(format!("snapshot file: {error}")))
    }
}

fn failed<E: std::fmt::Display>(error: E) -> Status {
    Status::internal(error.to_string())
}

#[tonic::async_trait]
impl pb::raft_server::Raft for RaftService {
    type StreamAppendStream = BoxStream<'static, Result<pb::AppendEntriesReply, Status>>;

    async fn stream_append(
        &self,
        request: Request<Streaming<pb::AppendEntriesRequest>>,
    ) -> Result<Response<Self::StreamAppendStream>, Status> {
        Ok(Response::new(self.append_stream(request.into_inner().boxed())))
    }

    async fn append_entries(
        &self,
        request: Request<pb::AppendEntriesRequest>,
    ) -> Result<Response<pb::AppendEntriesReply>, Status> {
        let request = self.append_request(request.into_inner())?;
        let result = self.raft.append_entries(request).await.map_err(failed)?;
        Ok(Response::new(append_result_to_pb(&result)))
    }

    async fn vote(
        &self,
        request: Request<pb::VoteRequest>,
    ) -> Result<Response<pb::VoteReply>, Status> {
        let message = request.get_ref();
        let (from, request) = (message.header.as_ref(), self.vote_request(message)?);
        let term = request.vote.leader_id.term;
        let reply = self.raft.vote(request).await.map_err(failed)?;
        // A candidate votes for itself first.
        if let Some(header) = from.filter(|_| reply.vote_granted) {
            self.promises.heard(header.from, Promise::vote(term));
        }
        Ok(Response::new(vote_reply(&reply)))
    }

    async fn pre_vote(
        &self,
        request: Request<pb::VoteRequest>,
    ) -> Result<Response<pb::VoteReply>, Status> {
        let request = self.vote_request(request.get_ref())?;
        let reply = self.raft.pre_vote(request).await.map_err(failed)?;
        Ok(Response::new(vote_reply(&reply)))
    }

    async fn transfer_leader(
        &self,
        request: Request<pb::TransferLeaderRequest>,
    ) -> Result<Response<pb::TransferLeaderReply>, Status> {
        let message = request.into_inner();
        self.check(message.header.as_ref())?;
        let last = message.last_log_id.as_ref().map(convert::log_id_from_pb).transpose()?;
        let from = convert::vote_from_pb(message.from_leader.as_ref())?;
        self.known().check_vote(&from, Sent::ByLeader)?;
        let request = TransferLeaderRequest::new(from, message.to_node, last);
        self.raft
            .handle_transfer_leader(request)
            .await
            .map_err(failed)?
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        Ok(Response::new(pb::TransferLeaderReply {}))
    }

    async fn snapshot_chunk(
        &self,
        request: Request<pb::SnapshotChunkRequest>,
    ) -> Result<Response<pb::SnapshotChunkReply>, Status> {
        let message = request.into_inner();
        let (vote, meta) = self.announced(&message)?;
        let path = match self.store_piece(&message)? {
            Received::Part(next_offset) => {
                return Ok(Response::new(pb::SnapshotChunkReply { next_offset, vote: None }));
            }
            Received::Whole(path) => path,
        };
        // Checked in full before openraft hears of it.
        let (snapshots, received) = (self.snapshots.clone(), path.clone());
        let whole = rt::run_blocking(move || {
            let read = snapshot_file::read(&**snapshots.disk(), &received);
            read.inspect_err(|_| drop(snapshots.disk().remove_file(&received)))
        })
        .await
        .map_err(|error| Status::data_loss(error.to_string()))?;
        let membership = applied::membership(&whole.meta).map_err(failed)?;
        if applied::log_id(&whole.meta) != meta.last_log_id || membership != meta.last_membership {
            return Err(Status::data_loss("the snapshot is not the one that was announced"));
        }
        drop(whole);
        let snapshot = Snapshot { meta, snapshot: SnapshotFile { path } };
        let reply = self.raft.install_full_snapshot(vote, snapshot).await.map_err(failed)?;
        let vote = Some(convert::vote_to_pb(&reply.vote));
        Ok(Response::new(pb::SnapshotChunkReply { next_offset: message.size, vote }))
    }
}

fn vote_reply(reply: &VoteResponse<TypeConfig>) -> pb::VoteReply {
    pb::VoteReply {
        vote: Some(convert::vote_to_pb(&reply.vote)),
        granted: reply.vote_granted,
        last_log_id: reply.last_log_id.as_ref().map(convert::log_id_to_pb),
    }
}
