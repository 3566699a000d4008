//! gRPC for workers on other servers: only the leader answers. Plans and evaluations travel as
//! frames and are values at both ends.

use std::{sync::Arc, time::Duration};

use fsm::{EvaluationId, Plan, codec};
use leader::PlanAnswer;
use proto::v1 as pb;
use tonic::{Request, Response, Status};

use crate::{
    api::{Dequeue, Lease, LeaseKey, WorkerApi},
    rpc::words,
};

/// The gRPC service for workers.
#[derive(Clone)]
pub struct SchedulerService(pub Arc<dyn WorkerApi>);

fn key(id: &[u8], token: &[u8], epoch: u64) -> Result<LeaseKey, Status> {
    let evaluation = EvaluationId::from_slice(id)
        .ok_or_else(|| Status::invalid_argument("evaluation id must be 16 bytes"))?;
    let token = token.try_into().map_err(|_| Status::invalid_argument("token must be 16 bytes"))?;
    Ok(LeaseKey { evaluation, token, epoch })
}

fn lease_to_pb(lease: &Lease) -> pb::Lease {
    pb::Lease {
        evaluation: codec::encode(&*lease.evaluation),
        token: lease.token.to_vec().into(),
        wait_index: lease.wait_index,
        epoch: lease.epoch,
    }
}

fn answer_to_pb(answer: PlanAnswer) -> pb::SubmitPlanReply {
    use pb::submit_plan_reply::Outcome;
    let reply = |outcome: Outcome, index, refresh_index, reason| pb::SubmitPlanReply {
        outcome: outcome.into(),
        index,
        refresh_index,
        reason,
    };
    match answer {
        PlanAnswer::Applied { index } => reply(Outcome::Applied, index, 0, String::new()),
        PlanAnswer::Partial { index, refresh_index, reason } => {
            reply(Outcome::Partial, index, refresh_index, reason)
        }
        // A refresh index of 0 says that the evaluation is closed.
        PlanAnswer::Rejected { closed: true, reason, .. } => reply(Outcome::Rejected, 0, 0, reason),
        PlanAnswer::Rejected { closed: false, refresh_index, reason } => {
            reply(Outcome::Rejected, 0, refresh_index.max(1), reason)
        }
        PlanAnswer::Unknown | PlanAnswer::QueueFull => {
            reply(Outcome::Unknown, 0, 0, "outcome unknown".to_owned())
        }
    }
}

#[tonic::async_trait]
impl pb::scheduler_server::Scheduler for SchedulerService {
    async fn dequeue(
        &self,
        request: Request<pb::DequeueRequest>,
    ) -> Result<Response<pb::DequeueReply>, Status> {
        let request = request.into_inner();
        let kinds = request.kinds.into_iter().map(words::job_kind).collect::<Result<_, _>>()?;
        let request = Dequeue {
            server: request.server,
            kinds,
            leases_max: request.leases_max,
            wait: Duration::from_millis(u64::from(request.timeout_ms)),
            scheduler_version: request.scheduler_version,
        };
        let leases = self.0.dequeue(request).await?;
        let leases = leases.iter().map(lease_to_pb).collect();
        Ok(Response::new(pb::DequeueReply { leases }))
    }

    async fn ack(
        &self,
        request: Request<pb::AckRequest>,
    ) -> Result<Response<pb::AckReply>, Status> {
        let request = request.get_ref();
        let lease = key(&request.evaluation_id, &request.token, request.epoch)?;
        self.0.ack(lease)?;
        Ok(Response::new(pb::AckReply {}))
    }

    async fn nack(
        &self,
        request: Request<pb::NackRequest>,
    ) -> Result<Response<pb::NackReply>, Status> {
        let request = request.get_ref();
        let lease = key(&request.evaluation_id, &request.token, request.epoch)?;
        self.0.nack(lease, words::nack_reason(request.reason)?)?;
        Ok(Response::new(pb::NackReply {}))
    }

    async fn submit_plan(
        &self,
        request: Request<pb::SubmitPlanRequest>,
    ) -> Result<Response<pb::SubmitPlanReply>, Status> {
        let request = request.into_inner();
        let plan: Plan = codec::decode(&request.plan)
            .map_err(|error| Status::invalid_argument(format!("plan: {error}")))?;
        let lease = key(&plan.evaluation.0, &request.token, request.epoch)?;
        let answer = self.0.submit_plan(lease, plan, request.plan.len()).await?;
        Ok(Response::new(answer_to_pb(answer)))
    }
}
