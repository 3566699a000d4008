//! gRPC for workers on other servers: only the leader answers.

use std::sync::Arc;

use proto::v1 as pb;
use tonic::{Request, Response, Status};

use crate::server::{Core, LeaderServices, services};

/// The service.
#[derive(Clone)]
pub struct SchedulerService(pub Arc<Core>);

impl SchedulerService {
    fn leading(&self) -> Result<Arc<LeaderServices>, Status> {
        self.0
            .leading()
            .ok_or_else(|| Status::unavailable("No cluster leader: this server does not lead"))
    }
}

#[tonic::async_trait]
impl pb::scheduler_server::Scheduler for SchedulerService {
    async fn dequeue(
        &self,
        request: Request<pb::DequeueRequest>,
    ) -> Result<Response<pb::DequeueReply>, Status> {
        services::dequeue(&*self.leading()?, request.get_ref()).await.map(Response::new)
    }

    async fn ack(
        &self,
        request: Request<pb::AckRequest>,
    ) -> Result<Response<pb::AckReply>, Status> {
        services::ack(&*self.leading()?, request.get_ref()).map(Response::new)
    }

    async fn nack(
        &self,
        request: Request<pb::NackRequest>,
    ) -> Result<Response<pb::NackReply>, Status> {
        services::nack(&*self.leading()?, request.get_ref()).map(Response::new)
    }

    async fn submit_plan(
        &self,
        request: Request<pb::SubmitPlanRequest>,
    ) -> Result<Response<pb::SubmitPlanReply>, Status> {
        let leading = self.leading()?;
        services::submit_plan(&leading, request.into_inner()).await.map(Response::new)
    }
}
