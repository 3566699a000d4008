//! gRPC for workers on other servers: only the leader answers.

use std::sync::Arc;

use proto::v1 as pb;
use tonic::{Request, Response, Status};

use crate::api::WorkerApi;

/// The service.
#[derive(Clone)]
pub struct SchedulerService(pub Arc<dyn WorkerApi>);

#[tonic::async_trait]
impl pb::scheduler_server::Scheduler for SchedulerService {
    async fn dequeue(
        &self,
        request: Request<pb::DequeueRequest>,
    ) -> Result<Response<pb::DequeueReply>, Status> {
        self.0.dequeue(request.into_inner()).await.map(Response::new)
    }

    async fn ack(
        &self,
        request: Request<pb::AckRequest>,
    ) -> Result<Response<pb::AckReply>, Status> {
        self.0.ack(request.get_ref()).map(Response::new)
    }

    async fn nack(
        &self,
        request: Request<pb::NackRequest>,
    ) -> Result<Response<pb::NackReply>, Status> {
        self.0.nack(request.get_ref()).map(Response::new)
    }

    async fn submit_plan(
        &self,
        request: Request<pb::SubmitPlanRequest>,
    ) -> Result<Response<pb::SubmitPlanReply>, Status> {
        self.0.submit_plan(request.into_inner()).await.map(Response::new)
    }
}
