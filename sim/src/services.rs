//! The receiving end of the simulated network: a method path and bytes in, the server's own service code, bytes out.

use std::{future::Future, sync::Arc};

use bytes::Bytes;
use futures_util::{StreamExt, stream::BoxStream};
use ground::caller::{Caller, Way};
use prost::Message;
use proto::v1::{
    self as pb, agent_server::Agent as _, cluster_server::Cluster as _, raft_server::Raft as _,
    scheduler_server::Scheduler as _,
};
use raft::service::RaftService;
use server::{
    Core,
    grpc::{agent::AgentService, cluster::ClusterService, scheduler::SchedulerService},
};
use tonic::{Request, Response, Status};

use crate::streams;

/// Whoever asks a server in a simulation: there are no sockets, so there is no address.
pub(crate) static CALLER: Caller = Caller::anonymous(Way::Grpc, None);

/// Everything one server answers.
#[derive(Clone)]
pub(crate) struct Services {
    server: u64,
    raft: RaftService,
    cluster: ClusterService,
    scheduler: SchedulerService,
    agent: AgentService,
}

/// Encoded messages in order; an error ends the stream.
pub(crate) type Messages = BoxStream<'static, Result<Bytes, Status>>;

async fn answer<Q, P, F>(body: Bytes, call: impl FnOnce(Request<Q>) -> F) -> Result<Bytes, Status>
where
    Q: Message + Default,
    P: Message,
    F: Future<Output = Result<Response<P>, Status>>,
{
    let reply = call(Request::new(decode(body)?)).await?;
    Ok(reply.into_inner().encode_to_vec().into())
}

fn decode<M: Message + Default>(body: Bytes) -> Result<M, Status> {
    M::decode(body).map_err(|error| Status::internal(format!("message: {error}")))
}

impl Services {
    /// The services of a server.
    pub(crate) fn new(core: &Arc<Core>) -> Self {
        Self {
            server: core.id,
            raft: core.raft_service(),
            cluster: ClusterService(core.clone()),
            scheduler: SchedulerService(core.clone()),
            agent: AgentService::new(core.clone(), None),
        }
    }

    /// Answers one request.
    pub(crate) async fn unary(self, path: &'static str, body: Bytes) -> Result<Bytes, Status> {
        match path {
            "/quorate.v1.Raft/AppendEntries" => answer(body, |m| self.raft.append_entries(m)).await,
            "/quorate.v1.Raft/Vote" => answer(body, |m| self.raft.vote(m)).await,
            "/quorate.v1.Raft/PreVote" => answer(body, |m| self.raft.pre_vote(m)).await,
            "/quorate.v1.Raft/TransferLeader" => {
                answer(body, |m| self.raft.transfer_leader(m)).await
            }
            "/quorate.v1.Raft/SnapshotChunk" => answer(body, |m| self.raft.snapshot_chunk(m)).await,
            "/quorate.v1.Cluster/Write" => answer(body, |m| self.cluster.write(m)).await,
            "/quorate.v1.Cluster/ReadIndex" => answer(body, |m| self.cluster.read_index(m)).await,
            "/quorate.v1.Cluster/Probe" => answer(body, |m| self.cluster.probe(m)).await,
            "/quorate.v1.Cluster/Join" => answer(body, |m| self.cluster.join(m)).await,
            "/quorate.v1.Cluster/TransferLeadership" => {
                answer(body, |m| self.cluster.transfer_leadership(m)).await
            }
            "/quorate.v1.Cluster/RemovePeer" => answer(body, |m| self.cluster.remove_peer(m)).await,
            "/quorate.v1.Scheduler/Dequeue" => answer(body, |m| self.scheduler.dequeue(m)).await,
            "/quorate.v1.Scheduler/Ack" => answer(body, |m| self.scheduler.ack(m)).await,
            "/quorate.v1.Scheduler/Nack" => answer(body, |m| self.scheduler.nack(m)).await,
            "/quorate.v1.Scheduler/SubmitPlan" => {
                answer(body, |m| self.scheduler.submit_plan(m)).await
            }
            "/quorate.v1.Agent/Register" => answer(body, |m| self.agent.register(m)).await,
            "/quorate.v1.Agent/Heartbeat" => answer(body, |m| self.agent.heartbeat(m)).await,
            "/quorate.v1.Agent/Ready" => answer(body, |m| self.agent.ready(m)).await,
            "/quorate.v1.Agent/UpdateAllocations" => {
                answer(body, |m| self.agent.update_allocations(m)).await
            }
            _ => Err(unknown(path)),
        }
    }

    /// Answers a stream of requests.
    pub(crate) async fn stream(
        self,
        path: &'static str,
        mut input: Messages,
    ) -> Result<Messages, Status> {
        match path {
            "/quorate.v1.Raft/StreamAppend" => {
                let requests = input.map(|body| decode(body?)).boxed();
                let replies = self.raft.append_stream(requests);
                Ok(replies.map(|reply| Ok(reply?.encode_to_vec().into())).boxed())
            }
            "/quorate.v1.Agent/StreamAllocations" => {
                let first = input.next().await;
                let body = first.ok_or_else(|| Status::invalid_argument("no request"))??;
                let request: pb::StreamAllocationsRequest = decode(body)?;
                let stream = streams::Stream::open(self.server, &request);
                let replies = self.agent.stream_allocations(Request::new(request)).await?;
                let replies = replies.into_inner().map(move |reply| {
                    let reply = reply?;
                    stream.says(&reply);
                    Ok(reply.encode_to_vec().into())
                });
                Ok(replies.boxed())
            }
            _ => Err(unknown(path)),
        }
    }
}

fn unknown(path: &str) -> Status {
    Status::unimplemented(format!("the simulated network does not know {path}"))
}
