//! The level of a server's log, changed while it runs.

use serde_json::json;

use crate::harness::{Cluster, Options, PATIENCE, wait_until};

const PATH: &str = "/v1/agent/log-level";

/// Lines of `debug` begin with the change and end with the next; a registration can be followed by its evaluation's id, from the request to the
/// acknowledgement.
#[test]
fn debug_lines_come_and_go_with_the_level() {
    let cluster = Cluster::start(Options::new(1));
    let client = cluster.client(0);
    assert_eq!(client.get(PATH).ok(), json!({ "Level": "info" }));
    assert!(!cluster.log(0).contains("request answered"));
    assert_eq!(client.put(PATH, &json!({ "Level": "debug" })).ok(), json!({ "Level": "debug" }));
    let job = crate::harness::service_job("web", 1);
    let answer = client.put("/v1/jobs", &job).ok();
    let evaluation = crate::recompute::text(&answer, "EvalID").to_owned();
    let steps = [
        "a job is evaluated",
        "leased",
        "the state is there",
        "planned",
        "a plan is queued",
        "a plan is answered",
        "acknowledged",
    ];
    wait_until("each step has its line", PATIENCE, || {
        let log = cluster.log(0);
        steps
            .iter()
            .all(|step| log.lines().any(|line| line.contains(&evaluation) && line.contains(step)))
    });
    assert_eq!(client.put(PATH, &json!({ "Level": "loud" })).status, 400);
    assert_eq!(client.put(PATH, &json!({ "Level": "info" })).ok(), json!({ "Level": "info" }));
    let before = cluster.log(0).matches("request answered").count();
    assert!(before > 0);
    client.get("/v1/jobs").ok();
    assert_eq!(cluster.log(0).matches("request answered").count(), before);
}
