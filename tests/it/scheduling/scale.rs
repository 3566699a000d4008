//! Many jobs on many nodes, through every server at once.

use std::{thread, time::Duration};

use serde_json::{Value, json};

use super::{Stage, group, job, task};
use crate::{
    harness::{Client, Options, is_full, wait_until},
    recompute::{self, is_live, list_of, text},
};

const JOBS: usize = 200;
/// The same in the short form.
const JOBS_FEW: usize = 40;
const COUNT: usize = 10;
const NODES: u32 = 99;
/// All of it in a debug build on a busy machine.
const PATIENCE: Duration = Duration::from_mins(3);

fn jobs() -> usize {
    if is_full() { JOBS } else { JOBS_FEW }
}

fn acknowledged(client: &Client) -> f64 {
    client.metric("worker.acknowledged")
}

fn crowd_job(number: usize) -> Value {
    let mut job = job("service", &format!("crowd-{number}"), u32::try_from(COUNT).unwrap());
    task(&mut job)["Resources"] = json!({ "CPU": 50 + number % 7 * 10, "MemoryMB": 32 });
    group(&mut job)["Networks"] =
        json!([{ "Mode": "host", "DynamicPorts": [{ "Label": "http" }, { "Label": "admin" }] }]);
    group(&mut job)["Migrate"]["MaxParallel"] = 5.into();
    job
}

fn await_counts(stage: &Stage, what: &str, wanted: impl Fn(&[Value]) -> bool) {
    wait_until(what, PATIENCE, || {
        let mut live = list_of(stage.client.get("/v1/allocations?task_states=false").ok());
        live.retain(is_live);
        live.len() == jobs() * COUNT
            && live.iter().all(|one| text(one, "ClientStatus") == "running")
            && wanted(&live)
    });
    stage.await_settled();
    let seen = recompute::Cluster::read(&stage.client);
    assert_eq!(seen.violations(), [""; 0], "{what}");
    assert_eq!(seen.wrong_counts(), [""; 0], "{what}");
}

/// Many jobs × 10 allocations on 100 simulated nodes: an independent recomputation finds no node over-committed,
/// no name and no port twice, whatever is drained, killed and brought back; every server's workers take part
/// (P3, S1, D1, S14, NW-16).
#[test]
fn a_crowd_of_allocations_survives_a_drain_and_a_dead_node() {
    let options = Options::new(3)
        .with("raft.heartbeat_ms", 250)
        .with("raft.election_min_ms", 1_000)
        .with("raft.election_max_ms", 1_500)
        .with("heartbeat.ttl_min_ms", 5_000)
        .with("heartbeat.grace_ms", 5_000);
    let stage = Stage::of(options);
    let _crowd = stage.cluster.agent("crowd", Some(NODES));
    let mut edge = stage.cluster.agent("edge", Some(1));
    stage.await_ready_nodes(100);

    thread::scope(|scope| {
        for server in stage.cluster.all() {
            let client = stage.cluster.client(server);
            scope.spawn(move || {
                for number in (server..jobs()).step_by(3) {
                    client.put("/v1/jobs", &json!({ "Job": crowd_job(number) })).ok();
                }
            });
        }
    });
    await_counts(&stage, "all run", |_| true);
    for server in stage.cluster.all() {
        let count = acknowledged(&stage.cluster.client(server));
        assert!(count > 0.0, "server {server} acknowledged nothing");
    }

    let drained = stage.node_id("crowd-0007");
    let path = format!("/v1/node/{drained}/drain");
    stage.client.put(&path, &json!({ "DrainSpec": { "Deadline": 3600 * super::SECOND } })).ok();
    await_counts(&stage, "the drained node is empty", |live| {
        live.iter().all(|one| text(one, "NodeID") != drained)
    });

    edge.kill();
    stage.await_node("edge-0001", "down");
    await_counts(&stage, "the dead node's allocations run elsewhere", |live| {
        live.iter().all(|one| text(one, "NodeName") != "edge-0001")
    });
    edge.restart();
    stage.await_node("edge-0001", "ready");
    let eligible = json!({ "Eligibility": "eligible" });
    stage.client.put(&format!("/v1/node/{drained}/eligibility"), &eligible).ok();
    await_counts(&stage, "nothing is lost or doubled", |_| true);
    stage.finish();
}
