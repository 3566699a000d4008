//! Garbage collection from end to end.

use serde_json::json;

use super::{Stage, group, ids, job};
use crate::{
    harness::{Options, PATIENCE, wait_until},
    recompute::{list_of, text},
};

/// P6: with short thresholds ended things go by themselves, on every server; what runs, and what a living batch job has finished, stays.
#[test]
fn ended_things_are_forgotten_after_their_thresholds() {
    let thresholds = [
        ("gc.interval_ms", 500),
        ("gc.evaluation_ms", 1_000),
        ("gc.batch_evaluation_ms", 1_000),
        ("gc.job_ms", 1_000),
    ];
    let options = thresholds
        .into_iter()
        .fold(Options::new(3), |options, (key, value)| options.with(key, value));
    let stage = Stage::of(options);
    let agents = [stage.node("one", &[])];
    stage.schedule(&job("service", "web", 2));
    let web = stage.await_running("web", 2);
    stage.schedule(&job("service", "old", 1));
    stage.await_running("old", 1);
    stage.stop("old", false);
    wait_until("job old is forgotten", PATIENCE, || stage.client.get("/v1/job/old").status == 404);
    wait_until("nothing of it is left", PATIENCE, || {
        let allocations = list_of(stage.client.get("/v1/allocations").ok());
        let evaluations = list_of(stage.client.get("/v1/evaluations").ok());
        allocations.iter().chain(&evaluations).all(|row| text(row, "JobID") == "web")
    });
    assert_eq!(ids(&stage.live("web")), ids(&web), "what runs stays as it is");
    drop(agents);
    stage.finish();
}

/// G6: `PUT /v1/system/gc` on any server forgets at once what has ended, and the rest goes on.
#[test]
fn a_collection_can_be_asked_of_any_server() {
    let stage = Stage::start(3);
    let agents = [stage.node("one", &[])];
    let mut web = job("service", "web", 2);
    stage.schedule(&web);
    stage.await_running("web", 2);
    group(&mut web)["Count"] = 1.into();
    stage.schedule(&web);
    stage.schedule(&job("service", "old", 1));
    stage.await_running("old", 1);
    stage.stop("old", false);
    stage.await_ended("old");
    wait_until("the job is dead", PATIENCE, || {
        stage.client.get("/v1/job/old").ok()["Status"] == "dead"
    });
    wait_until("the second instance has ended", PATIENCE, || {
        stage.allocations("web").iter().any(|one| text(one, "ClientStatus") == "complete")
    });
    for server in 0..3 {
        let client = stage.cluster.client(server);
        assert_eq!(client.put("/v1/system/gc", &json!({})).status, 200);
    }
    assert_eq!(stage.client.get("/v1/job/old").status, 404);
    assert_eq!(stage.allocations("web").len(), 1, "the ended instance is forgotten");
    group(&mut web)["Count"] = 3.into();
    stage.schedule(&web);
    stage.await_running("web", 3);
    drop(agents);
    stage.finish();
}
