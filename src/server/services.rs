//! What workers ask of the leader, checked for epoch and token. Used by the gRPC service and, in place, by the leader's own workers.

use std::time::Duration;

use fsm::{EvaluationId, JobKind, codec};
use leader::{
    PlanAnswer,
    broker::{BrokerError, NackReason},
};
use proto::v1 as pb;
use tonic::Status;

use super::leadership::LeaderServices;

/// Longest long poll of a dequeue.
const WAIT_MAX: Duration = Duration::from_secs(5);
/// Leases in one reply.
const LEASES_MAX: usize = 64;

fn status_of(error: BrokerError) -> Status {
    match error {
        BrokerError::Disabled => Status::unavailable(error.to_string()),
        BrokerError::NotOutstanding(_) => Status::not_found(error.to_string()),
        BrokerError::TokenMismatch(_) => Status::aborted(error.to_string()),
    }
}

fn check_epoch(services: &LeaderServices, epoch: u64) -> Result<(), Status> {
    if services.epoch == epoch {
        return Ok(());
    }
    Err(Status::aborted(format!("lease of term {epoch}, the leader is in term {}", services.epoch)))
}

fn id_and_token(id: &[u8], token: &[u8]) -> Result<(EvaluationId, [u8; 16]), Status> {
    let id = EvaluationId::from_slice(id);
    let id = id.ok_or_else(|| Status::invalid_argument("evaluation id must be 16 bytes"))?;
    let token = token.try_into();
    Ok((id, token.map_err(|_| Status::invalid_argument("token must be 16 bytes"))?))
}

pub(super) async fn dequeue(
    services: &LeaderServices,
    request: &pb::DequeueRequest,
) -> Result<pb::DequeueReply, Status> {
    if request.scheduler_version != scheduler::SCHEDULER_VERSION {
        return Err(Status::unimplemented(format!(
            "scheduler version {} is not the leader's {}",
            request.scheduler_version,
            scheduler::SCHEDULER_VERSION
        )));
    }
    let kinds: Vec<JobKind> =
        request.schedulers.iter().filter_map(|name| JobKind::parse(name)).collect();
    if kinds.len() != request.schedulers.len() {
        return Err(Status::invalid_argument("unknown scheduler name"));
    }
    let wait = Duration::from_millis(u64::from(request.timeout_ms)).min(WAIT_MAX);
    let max = usize::try_from(request.leases_max).unwrap_or(1).clamp(1, LEASES_MAX);
    let leases = services.dequeue(request.server, &kinds, max, wait).await.map_err(status_of)?;
    let leases = leases.into_iter().map(|lease| pb::Lease {
        evaluation: codec::encode(&*lease.evaluation),
        token: lease.token.to_vec().into(),
        wait_index: lease.wait_index,
        epoch: services.epoch,
    });
    Ok(pb::DequeueReply { leases: leases.collect() })
}

pub(super) fn ack(
    services: &LeaderServices,
    request: &pb::AckRequest,
) -> Result<pb::AckReply, Status> {
    check_epoch(services, request.epoch)?;
    let (id, token) = id_and_token(&request.evaluation_id, &request.token)?;
    services.ack(id, token).map_err(status_of)?;
    Ok(pb::AckReply {})
}

pub(super) fn nack(
    services: &LeaderServices,
    request: &pb::NackRequest,
) -> Result<pb::NackReply, Status> {
    check_epoch(services, request.epoch)?;
    let (id, token) = id_and_token(&request.evaluation_id, &request.token)?;
    let why = match request.reason() {
        pb::NackReason::Unspecified | pb::NackReason::Failed => NackReason::Failed,
        pb::NackReason::Lag => NackReason::Lag,
        pb::NackReason::Shutdown => NackReason::Shutdown,
    };
    services.nack(id, token, why).map_err(status_of)?;
    Ok(pb::NackReply {})
}

pub(super) async fn submit_plan(
    services: &LeaderServices,
    request: pb::SubmitPlanRequest,
) -> Result<pb::SubmitPlanReply, Status> {
    use pb::submit_plan_reply::Outcome;
    check_epoch(services, request.epoch)?;
    let plan: fsm::Plan = codec::decode(&request.plan)
        .map_err(|error| Status::invalid_argument(format!("plan: {error}")))?;
    let (_, token) = id_and_token(&plan.evaluation.0, &request.token)?;
    let answer = services.submit_plan(plan, request.plan.len(), token).await.map_err(status_of)?;
    let reply = |outcome: Outcome, index, refresh_index, reason| pb::SubmitPlanReply {
        outcome: outcome.into(),
        index,
        refresh_index,
        reason,
    };
    Ok(match answer {
        PlanAnswer::Applied { index } => reply(Outcome::Applied, index, 0, String::new()),
        PlanAnswer::Partial { index, refresh_index, reason } => {
            reply(Outcome::Partial, index, refresh_index, reason)
        }
        // A refresh index of 0 says that the evaluation is done with.
        PlanAnswer::Rejected { closed: true, reason, .. } => reply(Outcome::Rejected, 0, 0, reason),
        PlanAnswer::Rejected { closed: false, refresh_index, reason } => {
            reply(Outcome::Rejected, 0, refresh_index.max(1), reason)
        }
        PlanAnswer::Unknown => reply(Outcome::Unknown, 0, 0, "outcome unknown".to_owned()),
    })
}
