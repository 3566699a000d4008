//! Workers that are set while they work, a full plan queue, forged plans, and a stop with a plan under way.

use std::{thread, time::Duration};

use fsm::{EvaluationStatus, JobKind, codec};
use proto::v1 as pb;
use serde_json::{Value, json};

use super::{NOTHING_HAPPENS, Servers};
use crate::{
    harness::{PATIENCE, wait_until},
    scheduling::job,
};

const CONFIG: &str = "/v1/agent/schedulers/config";
/// Clients that register jobs at a time.
const CLIENTS: usize = 8;

impl Servers {
    fn put_workers(&self, number: usize, change: &Value) -> Value {
        self.client(number).put(CONFIG, change).ok()
    }

    fn workers(&self, number: usize) -> Vec<Value> {
        let answer = self.client(number).get("/v1/agent/schedulers").ok();
        answer["schedulers"].as_array().unwrap().clone()
    }

    /// Registers jobs that want nothing to run: each has an evaluation and a plan.
    fn register_idle(&self, kind: &str, names: &str, count: usize) {
        let leader = self.leader();
        thread::scope(|scope| {
            for first in 0..CLIENTS {
                let client = self.client(leader);
                scope.spawn(move || {
                    for number in (first..count).step_by(CLIENTS) {
                        let id = format!("{names}-{number}");
                        client.put("/v1/jobs", &json!({ "Job": job(kind, &id, 0) })).ok();
                    }
                });
            }
        });
    }

    /// Evaluations by status, as the leader has them.
    fn evaluations(&self, status: EvaluationStatus) -> usize {
        let state = self.core(self.leader()).cell.load();
        state.evaluations().iter().filter(|row| row.status == status).count()
    }

    fn await_complete(&self, count: usize) {
        wait_until(&format!("{count} evaluations are complete"), PATIENCE, || {
            self.evaluations(EvaluationStatus::Complete) == count
        });
    }

    /// Passes for jobs of a kind on a server.
    fn passes(&self, number: usize, kind: JobKind) -> u64 {
        let metrics = self.client(number).get("/v1/metrics").ok();
        let name = format!("nomad.worker.invoke_scheduler.{}", kind.name());
        let samples = metrics["Samples"].as_array().unwrap();
        let sample = samples.iter().find(|sample| sample["Name"] == name.as_str()).unwrap();
        sample["Count"].as_u64().unwrap()
    }

    fn metric(&self, number: usize, name: &str) -> Value {
        self.client(number).metric(name).into()
    }

    /// No worker gave a lease back, but for lag.
    fn check_nothing_was_nacked(&self) {
        for number in self.running.keys() {
            assert_eq!(self.metric(*number, "worker.nacked"), json!(0.0), "server {number}");
        }
    }
}

/// Workers of two of three servers at 0: the third does all. Back at 4 each: all do. With `batch` on one it takes no evaluation of a service.
#[test]
fn workers_are_set_for_each_server() {
    let servers = Servers::start(3);
    let leader = servers.leader();
    let [one, other] = servers.followers()[..] else { panic!("three servers") };
    for number in [leader, one, other] {
        servers.put_workers(number, &json!({ "num_schedulers": 2 }));
    }
    for number in [leader, other] {
        let set = servers.put_workers(number, &json!({ "num_schedulers": 0 }));
        assert_eq!(set["num_schedulers"], 0);
        let workers = servers.workers(number);
        assert_eq!(workers.len(), 2, "{workers:?}");
        for worker in workers {
            assert_eq!(
                (&worker["status"], &worker["workload_status"]),
                (&json!("paused"), &json!("paused"))
            );
        }
    }
    servers.register_idle("service", "first", 40);
    servers.await_complete(40);
    assert!(servers.core(one).scheduler_invocations() >= 40);
    assert_eq!(servers.core(leader).scheduler_invocations(), 0);
    assert_eq!(servers.core(other).scheduler_invocations(), 0);

    for number in [leader, one, other] {
        servers.put_workers(number, &json!({ "num_schedulers": 4 }));
        let workers = servers.workers(number);
        assert_eq!(workers.len(), 4);
        assert!(workers.iter().all(|worker| worker["status"] == "started"), "{workers:?}");
    }
    let before = servers.core(one).scheduler_invocations();
    let mut registered = 40;
    wait_until("all servers schedule", PATIENCE, || {
        servers.register_idle("service", &format!("at-{registered}"), 40);
        registered += 40;
        servers.await_complete(registered);
        let passes = |number| servers.core(number).scheduler_invocations();
        passes(leader) > 0 && passes(other) > 0 && passes(one) > before
    });

    let set = servers.put_workers(one, &json!({ "enabled_schedulers": ["batch", "_core"] }));
    assert_eq!(set["enabled_schedulers"], json!(["batch"]));
    let before = servers.passes(one, JobKind::Service);
    servers.register_idle("service", "later", 40);
    servers.await_complete(registered + 40);
    assert_eq!(servers.passes(one, JobKind::Service), before);
    for number in [leader, other] {
        servers.put_workers(number, &json!({ "enabled_schedulers": ["service"] }));
    }
    servers.register_idle("batch", "batch", 10);
    servers.await_complete(registered + 50);
    assert!(servers.passes(one, JobKind::Batch) >= 10);
    servers.check_nothing_was_nacked();
}

/// Workers that are set again and again while 1,000 evaluations wait give none of them back.
#[test]
fn no_evaluation_is_nacked_by_a_change_of_the_workers() {
    let servers = Servers::start(3);
    servers.register_idle("service", "job", 1_000);
    assert_eq!(servers.evaluations(EvaluationStatus::Pending), 1_000);
    let numbers: Vec<usize> = servers.running.keys().copied().collect();
    let mut round = 0;
    while servers.evaluations(EvaluationStatus::Pending) > 0 {
        // Always some worker takes services somewhere, and each server is paused now and then.
        for number in &numbers {
            let workers = [2, 0, 4, 1][(round + number) % 4];
            let kinds = if (round + number).is_multiple_of(2) {
                json!(["service"])
            } else {
                json!(["service", "batch"])
            };
            let change = json!({ "num_schedulers": workers, "enabled_schedulers": kinds });
            servers.put_workers(*number, &change);
        }
        round += 1;
        assert!(round < 10_000, "no end");
    }
    servers.await_complete(1_000);
    assert!(round > 1, "{round} changes are few");
    servers.check_nothing_was_nacked();
    let state = servers.core(servers.leader()).cell.load();
    assert_eq!(state.evaluations().len(), 1_000, "no follow-up of a failed one");
}

/// A full plan queue makes workers wait; it fails no evaluation and costs no attempt.
#[test]
fn a_full_plan_queue_fails_no_evaluation() {
    let servers = Servers::start_with(3, "limits.plans_max = 1\n");
    servers.register_idle("service", "job", 500);
    let leader = servers.leader();
    let core = servers.core(leader);
    core.hold_apply(true);
    for number in servers.running.keys() {
        servers.set_workers(*number, 8);
    }
    // Two entries are under way, one plan waits, and the others find the queue full.
    wait_until("a worker found the queue full", PATIENCE, || {
        servers.metric(leader, "plan.queue_full").as_f64() >= Some(3.0)
    });
    core.hold_apply(false);
    servers.await_complete(500);
    servers.check_nothing_was_nacked();
    assert_eq!(core.cell.load().evaluations().len(), 500, "no follow-up of a failed one");
}

/// A plan with a snapshot that no server can have is refused at once, while others go on; what is planned on a real one is taken under the same lease.
#[test]
fn a_plan_of_a_forged_snapshot_is_refused_and_holds_up_none() {
    let servers = Servers::start(3);
    let evaluation = servers.register("web");
    let lease = servers.lease(1);
    let plan = servers.plan(&lease);
    let mut forged: fsm::Plan = codec::decode(&plan.plan).unwrap();
    forged.snapshot_index = 1 << 60;
    let forged = pb::SubmitPlanRequest { plan: codec::encode(&forged), ..plan.clone() };
    servers.set_workers(servers.leader(), 1);
    let begun = std::time::Instant::now();
    let reply = servers.submit(forged).unwrap();
    assert_eq!(reply.outcome(), pb::submit_plan_reply::Outcome::Rejected, "{reply:?}");
    assert!(reply.reason.contains("above the last index"), "{reply:?}");
    let other = servers.register("other");
    servers.await_placed("other", &other);
    assert!(begun.elapsed() < Duration::from_secs(9), "nothing waited for that index");
    let reply = servers.submit(plan).unwrap();
    assert_eq!(reply.outcome(), pb::submit_plan_reply::Outcome::Applied, "{reply:?}");
    servers.await_placed("web", &evaluation);
}

/// NW-13: a server that stops while a plan is under way gives its lease back first. The plan is applied once, or not at all and then planned anew.
#[test]
fn a_server_that_stops_with_a_plan_under_way_gives_its_lease_back() {
    let mut servers = Servers::start(3);
    let (stopping, other) = (servers.followers()[0], servers.followers()[1]);
    let evaluation = servers.register("web");
    let leader = servers.leader();
    // The plan is committed, and the leader does not come to know.
    servers.core(leader).hold_apply(true);
    servers.set_workers(stopping, 1);
    wait_until("the plan is applied elsewhere", PATIENCE, || {
        !servers.core(other).cell.load().allocations().is_empty()
    });
    let status = servers.workers(stopping)[0]["workload_status"].clone();
    assert_eq!(status, "submitting");
    servers.stop_one(stopping);
    let unacked = servers.metric(leader, "broker.total_unacked");
    assert_eq!(unacked, json!(0.0), "it came back with the stop, and not by a timer");
    servers.core(leader).hold_apply(false);
    servers.set_workers(other, 1);
    servers.await_placed("web", &evaluation);
}

/// NW-01: an evaluation is leased with a token and acknowledged, and the broker is empty. NW-02: the second evaluation of a job comes after the end of
/// the first.
#[test]
fn evaluations_of_one_job_come_one_after_the_other() {
    let servers = Servers::start(1);
    let leader = servers.leader();
    servers.register("web");
    let first = servers.lease(1);
    assert_eq!(first.token.len(), 16);
    let client = servers.client(leader);
    client.put("/v1/job/web/evaluate", &json!({ "JobID": "web" })).ok();
    let mut workers = servers.scheduler(leader);
    let short = pb::DequeueRequest {
        timeout_ms: u32::try_from(NOTHING_HAPPENS.as_millis()).unwrap(),
        ..super::dequeue(1)
    };
    let reply = servers.runtime.block_on(workers.dequeue(short)).unwrap().into_inner();
    assert_eq!(reply.leases, [], "the first is not acknowledged");
    let plan = servers.plan(&first);
    assert_eq!(servers.submit(plan).unwrap().outcome(), pb::submit_plan_reply::Outcome::Applied);
    let second = servers.lease(1);
    let id = |lease: &pb::Lease| codec::decode::<fsm::Evaluation>(&lease.evaluation).unwrap().id;
    assert_ne!(id(&first), id(&second));
    servers.submit(servers.plan(&second)).unwrap();
    let acknowledge = pb::AckRequest {
        evaluation_id: id(&second).0.to_vec().into(),
        token: second.token.clone(),
        epoch: second.epoch,
        server: 1,
    };
    servers.runtime.block_on(workers.ack(acknowledge)).unwrap();
    for place in ["ready", "unacked", "pending", "waiting"] {
        let left = servers.metric(leader, &format!("broker.total_{place}"));
        assert_eq!(left, json!(0.0), "{place}");
    }
}
