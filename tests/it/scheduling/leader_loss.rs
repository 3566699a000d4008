//! A leader that dies while evaluations are on their way.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

use serde_json::json;

use super::{Stage, job};
use crate::{
    harness::{Client, PATIENCE, wait_until},
    recompute::{self, list_of},
};

const JOBS: usize = 50;
const COUNT: usize = 3;

/// Registers the job until a server says that it did: the retries of one registration change nothing more.
fn register_until_done(clients: &[Client], id: &str) {
    let body = json!({ "Job": job("service", id, u32::try_from(COUNT).unwrap()) });
    let mut turn = 0;
    wait_until(&format!("{id} is registered"), PATIENCE, || {
        turn += 1;
        let answer = clients[turn % clients.len()].try_put("/v1/jobs", &body);
        answer.is_ok_and(|answer| {
            assert!(answer.status >= 500 || answer.status == 200, "{}", answer.text);
            answer.status == 200
        })
    });
}

/// NW-14, L2: the leader is killed while 50 jobs are registered; the next one rebuilds the broker from the state, and each job is placed
/// exactly as often as it wants.
#[test]
fn a_dead_leader_loses_and_doubles_nothing() {
    let mut stage = Stage::start(3);
    let _agent = stage.cluster.agent("sim", Some(10));
    stage.await_ready_nodes(10);
    let leader = stage.cluster.leader();
    let clients: Vec<Client> =
        stage.cluster.all().into_iter().map(|one| stage.cluster.client(one)).collect();
    let registered = AtomicUsize::new(0);
    thread::scope(|scope| {
        for part in 0..4 {
            let (clients, registered) = (&clients, &registered);
            scope.spawn(move || {
                for number in (part..JOBS).step_by(4) {
                    register_until_done(clients, &format!("job-{number}"));
                    registered.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        wait_until("some jobs are registered", PATIENCE, || {
            registered.load(Ordering::Relaxed) > 12
        });
        stage.cluster.kill(leader);
    });
    let survivor = stage.cluster.others(&[leader])[0];
    stage.client = stage.cluster.client(survivor);
    for number in 0..JOBS {
        let id = format!("job-{number}");
        stage.await_running(&id, COUNT);
    }
    stage.await_settled();
    let all = list_of(stage.client.get("/v1/allocations?task_states=false").ok());
    assert_eq!(all.len(), JOBS * COUNT, "nothing was placed twice, not even for a moment");
    assert_eq!(recompute::Cluster::read(&stage.client).wrong_counts(), [""; 0]);
    stage.cluster.restart(leader);
    stage.finish();
}
