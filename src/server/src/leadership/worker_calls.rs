//! Requests of workers to the leader, checked for epoch and token, as values. The leader's own
//! workers call these functions directly; `grpc::scheduler` calls them for workers of other
//! servers. Frames of plans and evaluations are made there and in `leader_link`, for the way
//! between servers only.

use std::time::Duration;

use fsm::Plan;
use leader::{
    PlanAnswer, PlanQueueError,
    broker::{BrokerError, NackReason},
};
use tonic::Status;
use tracing::Instrument;
use wire::api::{Dequeue, Lease, LeaseKey};

use crate::leadership::services::LeaderServices;

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

pub(crate) async fn dequeue(
    services: &LeaderServices,
    request: &Dequeue,
) -> Result<Vec<Lease>, Status> {
    if request.scheduler_version != scheduler::SCHEDULER_VERSION {
        return Err(Status::unimplemented(format!(
            "scheduler version {} is not the leader's {}",
            request.scheduler_version,
            scheduler::SCHEDULER_VERSION
        )));
    }
    let wait = request.wait.min(WAIT_MAX);
    let max = usize::try_from(request.leases_max).unwrap_or(1).clamp(1, LEASES_MAX);
    let leases =
        services.dequeue(request.server, &request.kinds, max, wait).await.map_err(status_of)?;
    let leases = leases.into_iter().map(|lease| Lease {
        evaluation: lease.evaluation,
        token: lease.token,
        wait_index: lease.wait_index,
        epoch: services.epoch,
    });
    Ok(leases.collect())
}

pub(crate) fn ack(services: &LeaderServices, lease: LeaseKey) -> Result<(), Status> {
    check_epoch(services, lease.epoch)?;
    services.ack(lease.evaluation, lease.token).map(drop).map_err(status_of)
}

pub(crate) fn nack(
    services: &LeaderServices,
    lease: LeaseKey,
    why: NackReason,
) -> Result<(), Status> {
    check_epoch(services, lease.epoch)?;
    services.nack(lease.evaluation, lease.token, why).map_err(status_of)
}

/// Queues a plan and waits for its outcome; a full queue is an error, after which the same plan is
/// to be submitted again. For the bounds of the queue and the entry it counts as `bytes`, the
/// length of its frame.
pub(crate) async fn submit_plan(
    services: &LeaderServices,
    lease: LeaseKey,
    plan: Plan,
    bytes: usize,
) -> Result<PlanAnswer, Status> {
    check_epoch(services, lease.epoch)?;
    let (evaluation, snapshot) = (plan.evaluation, plan.snapshot_index);
    let span = tracing::debug_span!("plan", %evaluation, snapshot, bytes);
    let answered = async {
        tracing::debug!("a plan is queued");
        let answer = services.submit_plan(plan, bytes, lease.token).await;
        tracing::debug!(?answer, "a plan is answered");
        answer
    };
    let answer = answered.instrument(span).await.map_err(status_of)?;
    if answer == PlanAnswer::QueueFull {
        return Err(Status::resource_exhausted(PlanQueueError::Full.to_string()));
    }
    Ok(answer)
}
