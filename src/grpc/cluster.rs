//! gRPC between servers and for clients: forwarded writes, read indexes, bootstrap and membership.

use std::{sync::Arc, time::Duration};

use fsm::{Proposal, codec};
use futures_util::{StreamExt, stream::BoxStream};
use proto::v1 as pb;
use tonic::{Request, Response, Status, Streaming};

use crate::server::Core;

/// Writes of one stream that are under way at a time.
const STREAM_WRITES_MAX: usize = 1_024;

/// The service.
#[derive(Clone)]
pub struct ClusterService(pub Arc<Core>);

impl ClusterService {
    async fn write_one(&self, request: &pb::WriteRequest) -> Result<pb::WriteReply, Status> {
        let proposal: Proposal = codec::decode(&request.command)
            .map_err(|error| Status::invalid_argument(format!("command: {error}")))?;
        let timeout = Duration::from_millis(u64::from(request.timeout_ms.clamp(1, 60_000)));
        let written =
            crate::server::write_for_peer(&self.0, proposal, request.hops, timeout).await?;
        Ok(pb::WriteReply {
            reply: codec::encode(&written.reply),
            index: written.index,
            tag: request.tag,
            error: String::new(),
            unknown: false,
        })
    }
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for ClusterService {
    async fn write(
        &self,
        request: Request<pb::WriteRequest>,
    ) -> Result<Response<pb::WriteReply>, Status> {
        self.write_one(request.get_ref()).await.map(Response::new)
    }

    type WriteStreamStream = BoxStream<'static, Result<pb::WriteReply, Status>>;

    async fn write_stream(
        &self,
        request: Request<Streaming<pb::WriteRequest>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        let service = self.clone();
        let replies = request
            .into_inner()
            .map(move |request| {
                let service = service.clone();
                async move {
                    let request = request?;
                    Ok(match service.write_one(&request).await {
                        Ok(reply) => reply,
                        Err(status) => pb::WriteReply {
                            reply: bytes::Bytes::new(),
                            index: 0,
                            tag: request.tag,
                            unknown: status.code() == tonic::Code::DeadlineExceeded,
                            error: status.message().to_owned(),
                        },
                    })
                }
            })
            .buffer_unordered(STREAM_WRITES_MAX);
        Ok(Response::new(replies.boxed()))
    }

    async fn read_index(
        &self,
        _request: Request<pb::ReadIndexRequest>,
    ) -> Result<Response<pb::ReadIndexReply>, Status> {
        let (index, term) = crate::server::read_index_for_peer(&self.0).await?;
        Ok(Response::new(pb::ReadIndexReply { index, term }))
    }

    async fn probe(
        &self,
        request: Request<pb::ProbeRequest>,
    ) -> Result<Response<pb::ProbeReply>, Status> {
        crate::server::probe_for_peer(&self.0, request.get_ref()).await.map(Response::new)
    }

    async fn join(
        &self,
        request: Request<pb::JoinRequest>,
    ) -> Result<Response<pb::JoinReply>, Status> {
        crate::server::admit_peer(&self.0, request.into_inner()).await.map(Response::new)
    }

    async fn transfer_leadership(
        &self,
        request: Request<pb::TransferLeadershipRequest>,
    ) -> Result<Response<pb::TransferLeadershipReply>, Status> {
        let to = crate::server::transfer_for_peer(&self.0, request.get_ref().to).await?;
        Ok(Response::new(pb::TransferLeadershipReply { to }))
    }
}
