//! gRPC for workers on other servers: only the leader answers. Plans and evaluations travel as
//! frames and are values at both ends.

use std::{sync::Arc, time::Duration};

use fsm::{EvaluationId, Plan, codec};
use ground::caller::Way;
use leader::PlanAnswer;
use proto::v1 as pb;
use tonic::{Request, Response, Status};
use wire::{
    api::{Dequeue, Lease, LeaseKey, WorkerApi},
    rpc::words,
};

use super::caller_of;

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
        let caller = caller_of(Way::Grpc, &request);
        let request = request.into_inner();
        let kinds = request.kinds.into_iter().map(words::job_kind).collect::<Result<_, _>>()?;
        let request = Dequeue {
            server: request.server,
            kinds,
            leases_max: request.leases_max,
            wait: Duration::from_millis(u64::from(request.timeout_ms)),
            scheduler_version: request.scheduler_version,
        };
        let leases = self.0.dequeue(&caller, request).await?;
        let leases = leases.iter().map(lease_to_pb).collect();
        Ok(Response::new(pb::DequeueReply { leases }))
    }

    async fn ack(
        &self,
        request: Request<pb::AckRequest>,
    ) -> Result<Response<pb::AckReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        let request = request.get_ref();
        let lease = key(&request.evaluation_id, &request.token, request.epoch)?;
        self.0.ack(&caller, lease)?;
        Ok(Response::new(pb::AckReply {}))
    }

    async fn nack(
        &self,
        request: Request<pb::NackRequest>,
    ) -> Result<Response<pb::NackReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        let request = request.get_ref();
        let lease = key(&request.evaluation_id, &request.token, request.epoch)?;
        self.0.nack(&caller, lease, words::nack_reason(request.reason)?)?;
        Ok(Response::new(pb::NackReply {}))
    }

    async fn submit_plan(
        &self,
        request: Request<pb::SubmitPlanRequest>,
    ) -> Result<Response<pb::SubmitPlanReply>, Status> {
        let caller = caller_of(Way::Grpc, &request);
        let request = request.into_inner();
        let plan: Plan = codec::decode(&request.plan)
            .map_err(|error| Status::invalid_argument(format!("plan: {error}")))?;
        let lease = key(&plan.evaluation.0, &request.token, request.epoch)?;
        let answer = self.0.submit_plan(&caller, lease, plan, request.plan.len()).await?;
        Ok(Response::new(answer_to_pb(answer)))
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{net::SocketAddr, sync::Mutex};

    use fsm::{
        JobKind,
        testing::{self, Driver},
    };
    use futures_util::{FutureExt, future::BoxFuture};
    use leader::broker::NackReason;
    use proto::v1::scheduler_server::Scheduler as _;
    use tonic::transport::server::TcpConnectInfo;

    use super::*;
    use ground::caller::Caller;

    /// A leader that has nothing to do, and who asked it.
    #[derive(Default)]
    struct Leader(Mutex<Vec<(&'static str, Caller)>>);

    impl Leader {
        fn asked(&self, what: &'static str, caller: &Caller) {
            self.0.lock().unwrap().push((what, caller.clone()));
        }
    }

    impl WorkerApi for Leader {
        fn dequeue<'a>(
            &'a self,
            caller: &'a Caller,
            _: Dequeue,
        ) -> BoxFuture<'a, Result<Vec<Lease>, Status>> {
            self.asked("dequeue", caller);
            async { Ok(Vec::new()) }.boxed()
        }

        fn ack(&self, caller: &Caller, _: LeaseKey) -> Result<(), Status> {
            self.asked("ack", caller);
            Ok(())
        }

        fn nack(&self, caller: &Caller, _: LeaseKey, _: NackReason) -> Result<(), Status> {
            self.asked("nack", caller);
            Ok(())
        }

        fn submit_plan<'a>(
            &'a self,
            caller: &'a Caller,
            _: LeaseKey,
            _: Plan,
            _: usize,
        ) -> BoxFuture<'a, Result<PlanAnswer, Status>> {
            self.asked("submit_plan", caller);
            async { Ok(PlanAnswer::Unknown) }.boxed()
        }
    }

    /// A message that came over a connection from this address.
    fn from<M>(address: SocketAddr, message: M) -> Request<M> {
        let mut request = Request::new(message);
        let connection = TcpConnectInfo { local_addr: None, remote_addr: Some(address) };
        request.extensions_mut().insert(connection);
        request
    }

    #[tokio::test]
    async fn a_worker_is_known_by_its_address_in_every_call() {
        let worker = SocketAddr::from(([10, 0, 0, 7], 4_000));
        let leader = Arc::new(Leader::default());
        let service = SchedulerService(leader.clone());
        let mut driver = Driver::default();
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let evaluation = driver.evaluate_job("web");
        let plan = driver.plan(evaluation);
        let evaluation_id = plan.evaluation.0.to_vec().into();
        let token = vec![2; 16].into();

        service.dequeue(from(worker, pb::DequeueRequest::default())).await.unwrap();
        let ack = pb::AckRequest { evaluation_id, token, epoch: 1, server: 1 };
        service.ack(from(worker, ack.clone())).await.unwrap();
        let pb::AckRequest { evaluation_id, token, epoch, server } = ack;
        let reason = pb::NackReason::Shutdown.into();
        let nack = pb::NackRequest { evaluation_id, token: token.clone(), epoch, server, reason };
        service.nack(from(worker, nack)).await.unwrap();
        let plan = codec::encode(&plan);
        let submit = pb::SubmitPlanRequest { plan, token, epoch, server };
        service.submit_plan(from(worker, submit)).await.unwrap();

        let caller = Caller::anonymous(Way::Grpc, Some(worker));
        let expected = ["dequeue", "ack", "nack", "submit_plan"].map(|what| (what, caller.clone()));
        assert_eq!(*leader.0.lock().unwrap(), expected);
    }
}
