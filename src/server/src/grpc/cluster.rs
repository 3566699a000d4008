//! gRPC between servers and for clients: forwarded writes, read indexes, bootstrap and membership.

use std::{sync::Arc, time::Duration};

use fsm::{Proposal, codec};
use futures_util::{StreamExt, stream::BoxStream};
use ground::caller::{Caller, Way};
use proto::v1 as pb;
use tonic::{Request, Response, Status, Streaming};
use wire::api::{ApiError, PeerApi};

use super::caller_of;

/// Writes of one stream that are under way at a time.
const STREAM_WRITES_MAX: usize = 1_024;

/// The gRPC service for servers and clients.
#[derive(Clone)]
pub struct ClusterService(pub Arc<dyn PeerApi>);

impl ClusterService {
    async fn write_one(
        &self,
        caller: &Caller,
        request: &pb::WriteRequest,
    ) -> Result<pb::WriteReply, ApiError> {
        let proposal: Proposal = codec::decode(&request.command)
            .map_err(|error| ApiError::Invalid(format!("command: {error}")))?;
        let timeout = Duration::from_millis(u64::from(request.timeout_ms.clamp(1, 60_000)));
        let written =
            self.0.write_forwarded(caller, proposal, request.times_forwarded, timeout).await?;
        Ok(pb::WriteReply {
            reply: codec::encode(&written.reply),
            index: written.index,
            tag: request.tag,
            failure: None,
        })
    }
}

#[tonic::async_trait]
impl pb::cluster_server::Cluster for ClusterService {
    async fn write(
        &self,
        request: Request<pb::WriteRequest>,
    ) -> Result<Response<pb::WriteReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        Ok(Response::new(self.write_one(&caller, request.get_ref()).await?))
    }

    type WriteStreamStream = BoxStream<'static, Result<pb::WriteReply, Status>>;

    async fn write_stream(
        &self,
        request: Request<Streaming<pb::WriteRequest>>,
    ) -> Result<Response<Self::WriteStreamStream>, Status> {
        let (service, caller) = (self.clone(), caller_of(Way::Grpc, &request));
        let replies = request
            .into_inner()
            .map(move |request| {
                let (service, caller) = (service.clone(), caller.clone());
                async move {
                    let request = request?;
                    Ok(match service.write_one(&caller, &request).await {
                        Ok(reply) => reply,
                        Err(error) => pb::WriteReply {
                            tag: request.tag,
                            failure: Some(pb::Failure::from(&error)),
                            ..pb::WriteReply::default()
                        },
                    })
                }
            })
            .buffer_unordered(STREAM_WRITES_MAX);
        Ok(Response::new(replies.boxed()))
    }

    async fn read_index(
        &self,
        request: Request<pb::ReadIndexRequest>,
    ) -> Result<Response<pb::ReadIndexReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        let (index, term) = self.0.read_index(&caller).await?;
        Ok(Response::new(pb::ReadIndexReply { index, term }))
    }

    async fn probe(
        &self,
        request: Request<pb::ProbeRequest>,
    ) -> Result<Response<pb::ProbeReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        self.0.probe(&caller, request.into_inner()).await.map(Response::new)
    }

    async fn join(
        &self,
        request: Request<pb::JoinRequest>,
    ) -> Result<Response<pb::JoinReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        self.0.admit(&caller, request.into_inner()).await.map(Response::new)
    }

    async fn transfer_leadership(
        &self,
        request: Request<pb::TransferLeadershipRequest>,
    ) -> Result<Response<pb::TransferLeadershipReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        let to = self.0.hand_over(&caller, request.get_ref().to).await?;
        Ok(Response::new(pb::TransferLeadershipReply { to }))
    }

    async fn remove_peer(
        &self,
        request: Request<pb::RemovePeerRequest>,
    ) -> Result<Response<pb::RemovePeerReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        let pb::RemovePeerRequest { id, force } = *request.get_ref();
        self.0.take_out(&caller, id, force).await?;
        Ok(Response::new(pb::RemovePeerReply {}))
    }
}
