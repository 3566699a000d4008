//! How this server's workers reach the leader: by direct calls when this server leads, by gRPC
//! otherwise.
//!
//! Must never encode a plan or an evaluation that stays in this process: a frame is made for the
//! way to another server, and by the leader for the log.

use std::{sync::Arc, time::Duration};

use fsm::{Plan, codec};
use leader::{PlanAnswer, broker::NackReason};
use proto::v1 as pb;
use raft::ServerId;
use tonic::Status;
use wire::{
    api::{Dequeue, Lease, LeaseKey},
    rpc::{
        method::{self, Method},
        words,
    },
};

use crate::{
    leadership::{leading::Leading, services::LeaderServices, worker_calls},
    member::contact::Contact,
};

const RPC_TIMEOUT: Duration = Duration::from_secs(10);
const PLAN_TIMEOUT: Duration = Duration::from_mins(1);

/// A plan that is submitted until the leader tells its outcome. It is encoded once, and only if the
/// leader is another server.
pub(crate) struct Submission {
    plan: Plan,
    bytes: usize,
    frame: Option<bytes::Bytes>,
}

impl Submission {
    pub(crate) fn new(plan: Plan) -> Self {
        let bytes = codec::encoded_len(&plan);
        Self { plan, bytes, frame: None }
    }
}

async fn ask<Q: prost::Message, P: prost::Message + Default>(
    contact: &Contact,
    method: &Method<Q, P>,
    request: &Q,
    timeout: Duration,
) -> Result<P, Status> {
    let address = contact.leader_address()?;
    contact.call(&address, method, request, timeout).await
}

/// The connection of a server's workers to the leader.
#[derive(Clone)]
pub(crate) struct LeaderLink {
    pub(crate) contact: Arc<Contact>,
    pub(crate) leading: Arc<Leading>,
}

impl LeaderLink {
    /// The server whose workers these are.
    pub(crate) fn server(&self) -> ServerId {
        self.contact.id
    }

    /// The services of this server's leadership, if it leads.
    pub(crate) fn services(&self) -> Option<Arc<LeaderServices>> {
        self.leading.services()
    }

    /// Leases from a leader that is another server. When the future is dropped, leases that are on
    /// their way come back to the broker by their nack timer only.
    pub(crate) async fn dequeue(self, request: Dequeue) -> Result<Vec<Lease>, Status> {
        let message = pb::DequeueRequest {
            server: request.server,
            kinds: request.kinds.iter().map(|kind| words::job_kind_to_pb(*kind).into()).collect(),
            leases_max: request.leases_max,
            timeout_ms: u32::try_from(request.wait.as_millis()).unwrap_or(u32::MAX),
            scheduler_version: request.scheduler_version,
        };
        let reply: pb::DequeueReply =
            ask(&self.contact, &method::DEQUEUE, &message, RPC_TIMEOUT).await?;
        reply.leases.into_iter().map(decode_lease).collect()
    }

    pub(crate) async fn submit(
        &self,
        lease: LeaseKey,
        submission: &mut Submission,
    ) -> Result<PlanAnswer, Status> {
        if let Some(services) = self.leading.services() {
            let plan = submission.plan.clone();
            return worker_calls::submit_plan(&services, lease, plan, submission.bytes).await;
        }
        let frame = submission.frame.get_or_insert_with(|| codec::encode(&submission.plan));
        let message = pb::SubmitPlanRequest {
            plan: frame.clone(),
            token: lease.token.to_vec().into(),
            epoch: lease.epoch,
            server: self.contact.id,
        };
        answer_of(ask(&self.contact, &method::SUBMIT_PLAN, &message, PLAN_TIMEOUT).await?)
    }

    pub(crate) async fn ack(&self, lease: LeaseKey) -> Result<(), Status> {
        if let Some(services) = self.leading.services() {
            return worker_calls::ack(&services, lease);
        }
        let message = pb::AckRequest {
            evaluation_id: lease.evaluation.0.to_vec().into(),
            token: lease.token.to_vec().into(),
            epoch: lease.epoch,
            server: self.contact.id,
        };
        ask(&self.contact, &method::ACK, &message, RPC_TIMEOUT).await.map(drop)
    }

    pub(crate) async fn nack(&self, lease: LeaseKey, why: NackReason) -> Result<(), Status> {
        if let Some(services) = self.leading.services() {
            return worker_calls::nack(&services, lease, why);
        }
        let message = pb::NackRequest {
            evaluation_id: lease.evaluation.0.to_vec().into(),
            token: lease.token.to_vec().into(),
            epoch: lease.epoch,
            server: self.contact.id,
            reason: words::nack_reason_to_pb(why).into(),
        };
        ask(&self.contact, &method::NACK, &message, RPC_TIMEOUT).await.map(drop)
    }
}

fn decode_lease(lease: pb::Lease) -> Result<Lease, Status> {
    let evaluation = codec::decode(&lease.evaluation)
        .map_err(|error| Status::internal(format!("evaluation of a lease: {error}")))?;
    let token =
        lease.token.as_ref().try_into().map_err(|_| Status::internal("token of a lease"))?;
    let (wait_index, epoch) = (lease.wait_index, lease.epoch);
    Ok(Lease { evaluation: Arc::new(evaluation), token, wait_index, epoch })
}

fn answer_of(reply: pb::SubmitPlanReply) -> Result<PlanAnswer, Status> {
    use pb::submit_plan_reply::Outcome;
    let outcome = Outcome::try_from(reply.outcome);
    let pb::SubmitPlanReply { index, refresh_index, reason, .. } = reply;
    Ok(match outcome {
        Ok(Outcome::Applied) => PlanAnswer::Applied { index },
        Ok(Outcome::Partial) => PlanAnswer::Partial { index, refresh_index, reason },
        // A refresh index of 0 says that the evaluation is closed.
        Ok(Outcome::Rejected) => {
            PlanAnswer::Rejected { closed: refresh_index == 0, refresh_index, reason }
        }
        Ok(Outcome::Unknown) => PlanAnswer::Unknown,
        Ok(Outcome::Unspecified) | Err(_) => {
            let text = format!("unknown outcome {} of a plan", reply.outcome);
            return Err(Status::internal(text));
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_that_this_binary_does_not_know_is_an_error_of_the_call() {
        for outcome in [0, 5, -1] {
            let reply = pb::SubmitPlanReply { outcome, index: 3, ..Default::default() };
            assert!(answer_of(reply).is_err(), "{outcome}");
        }
        let reply = pb::SubmitPlanReply { outcome: 1, index: 3, ..Default::default() };
        assert_eq!(answer_of(reply).ok(), Some(PlanAnswer::Applied { index: 3 }));
    }
}
