//! The shape of every read endpoint, against `src/http/golden/answers/*.json`; `UPDATE=1` rewrites
//! them.

use std::{fs, path::PathBuf};

use fsm::{EvaluationId, JobKey, NodeId, job::EvaluateJob};
use serde_json::{Map, Value, json};

use super::{
    cluster::{TestCluster, web_job},
    socket::{TestResponse, TestServer},
};

const DAY_NS: u64 = 86_400_000_000_000;
const NODE: NodeId = NodeId([0x11; 16]);

/// Fields of a job that the translation of job files does not own.
const JOB_FIELDS: [&str; 12] = [
    "ID",
    "Name",
    "Namespace",
    "Type",
    "Priority",
    "Stop",
    "Status",
    "Version",
    "CreateIndex",
    "ModifyIndex",
    "JobModifyIndex",
    "SubmitTime",
];

/// One node with one running instance of job `web`.
async fn populated() -> (TestServer, String, String) {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "10.0.0.7:4646");
    let server = TestServer::start(cluster.clone()).await;
    let registered = server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    let allocation = cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    (server, evaluation.to_string(), allocation.to_string())
}

/// Jobs appear in many answers; their inner shape has its own tests where they are translated.
fn without_job_details(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if object.contains_key("TaskGroups") {
                let kept: Map<_, _> = JOB_FIELDS
                    .iter()
                    .filter_map(|name| object.get_key_value(*name))
                    .map(|(name, value)| (name.clone(), value.clone()))
                    .collect();
                *object = kept;
            }
            object.values_mut().for_each(without_job_details);
        }
        Value::Array(list) => list.iter_mut().for_each(without_job_details),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[track_caller]
pub(super) fn check(name: &str, response: &TestResponse) {
    let mut body = response.json();
    without_job_details(&mut body);
    if let Some(version) = body.pointer_mut("/config/Version/Version") {
        *version = "VERSION".into();
    }
    let headers: Map<String, Value> = response
        .headers
        .iter()
        .filter(|(name, _)| name.starts_with("x-nomad") || *name == "content-type")
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let found = json!({ "status": response.status, "headers": headers, "body": body });
    let found = serde_json::to_string_pretty(&found)
        .unwrap()
        .replace(&format!("\"build\": \"{}\"", ground::version::QUORATE), "\"build\": \"VERSION\"")
        + "\n";
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("golden/answers")
        .join(format!("{name}.json"));
    if std::env::var_os("UPDATE").is_some() {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &found).unwrap();
    }
    let expected = fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run with UPDATE=1", path.display()));
    assert_eq!(found, expected, "{name} differs; run with UPDATE=1 if that is meant");
}

#[tokio::test]
async fn every_read_endpoint_has_its_golden_shape() {
    let (server, evaluation, allocation) = populated().await;
    for (name, path) in [
        ("jobs", "/v1/jobs?meta=true".to_owned()),
        ("job", "/v1/job/web".to_owned()),
        ("job_summary", "/v1/job/web/summary".to_owned()),
        ("job_versions", "/v1/job/web/versions".to_owned()),
        ("job_allocations", "/v1/job/web/allocations?resources=true".to_owned()),
        ("job_evaluations", "/v1/job/web/evaluations".to_owned()),
        ("job_deployments", "/v1/job/web/deployments".to_owned()),
        ("job_deployment", "/v1/job/web/deployment".to_owned()),
        ("allocations", "/v1/allocations".to_owned()),
        ("allocation", format!("/v1/allocation/{allocation}")),
        ("evaluations", "/v1/evaluations".to_owned()),
        ("evaluations_count", "/v1/evaluations/count".to_owned()),
        ("evaluation", format!("/v1/evaluation/{evaluation}?related=true")),
        ("evaluation_allocations", format!("/v1/evaluation/{evaluation}/allocations")),
        ("nodes", "/v1/nodes?resources=true&os=true&stale".to_owned()),
        ("node", format!("/v1/node/{NODE}")),
        ("node_allocations", format!("/v1/node/{NODE}/allocations")),
        ("node_pools", "/v1/node/pools".to_owned()),
        ("node_pool", "/v1/node/pool/default".to_owned()),
        ("node_pool_nodes", "/v1/node/pool/all/nodes".to_owned()),
        ("node_pool_jobs", "/v1/node/pool/default/jobs".to_owned()),
        ("namespaces", "/v1/namespaces".to_owned()),
        ("namespace", "/v1/namespace/default".to_owned()),
        ("status_leader", "/v1/status/leader".to_owned()),
        ("status_peers", "/v1/status/peers".to_owned()),
        ("regions", "/v1/regions".to_owned()),
        ("agent_self", "/v1/agent/self".to_owned()),
        ("agent_members", "/v1/agent/members".to_owned()),
        ("agent_servers", "/v1/agent/servers".to_owned()),
        ("agent_health", "/v1/agent/health?type=server".to_owned()),
        ("raft_configuration", "/v1/operator/raft/configuration".to_owned()),
        ("scheduler_configuration", "/v1/operator/scheduler/configuration".to_owned()),
        ("invariants", "/v1/operator/invariants".to_owned()),
        ("deployments", "/v1/deployments".to_owned()),
    ] {
        check(name, &server.get(&path).await);
    }
    server.stop().await;
}

#[tokio::test]
async fn the_state_digest_is_that_of_the_state() {
    let (server, ..) = populated().await;
    let state = server.cluster.state();
    let expected = json!({ "Index": state.index(), "Digest": state.digest().to_string() });
    assert_eq!(server.get("/v1/operator/state-digest").await.ok(), expected);
    server.stop().await;
}

#[tokio::test]
async fn no_answer_holds_a_secret() {
    let (server, ..) = populated().await;
    for path in ["/v1/nodes?resources=true".to_owned(), format!("/v1/node/{NODE}")] {
        // The field is there, as Nomad's clients expect, and empty.
        let text = server.get(&path).await.text.to_ascii_lowercase();
        let text = text.replace("\"secretid\":\"\"", "").replace("\"secretsmb\":0", "");
        assert!(!text.contains("secret") && !text.contains("eeeeeeee"), "{text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn metrics_come_as_json_and_as_prometheus_text() {
    let (server, ..) = populated().await;
    let metrics = server.get("/v1/metrics").await.ok();
    let gauge = json!({ "Name": "nomad.broker.total_ready", "Value": 3.0, "Labels": {} });
    assert_eq!(metrics["Gauges"][0], gauge);
    assert_eq!(metrics["Points"], json!([]));
    let samples = metrics["Samples"].as_array().unwrap();
    let of = |name: &str| samples.iter().find(|sample| sample["Name"] == name).unwrap();
    assert_eq!(of("nomad.http.request")["Labels"]["route"], "jobs");
    let mut sample = of("nomad.leader.step").clone();
    assert!(sample.as_object_mut().unwrap().remove("Stddev").is_some());
    let expected = json!({
        "Name": "nomad.leader.step", "Labels": {}, "Count": 4, "Sum": 0.009, "Mean": 0.00225,
        "Rate": 0.0, "Min": 0.001, "Max": 0.003, "P50": 0.002, "P99": 0.003,
    });
    assert_eq!(sample, expected);
    let text = server.get("/v1/metrics?format=prometheus").await.text;
    assert!(
        text.contains("nomad_http_requests_total{code=\"200\",route=\"metrics\"} 1\n"),
        "{text}"
    );
    let others = text.split_inclusive('\n').filter(|line| !line.contains("nomad_http_request"));
    assert_eq!(
        others.collect::<String>(),
        "# HELP nomad_broker_total_ready Evaluations in the leader's broker.\n\
         # TYPE nomad_broker_total_ready gauge\nnomad_broker_total_ready 3\n\
         # HELP nomad_leader_step_seconds How long a step of the leader's machines took.\n\
         # TYPE nomad_leader_step_seconds histogram\n\
         nomad_leader_step_seconds_sum 0.000009\nnomad_leader_step_seconds_count 4\n\
         nomad_leader_step_seconds_bucket{le=\"0.000001\"} 0\n\
         nomad_leader_step_seconds_bucket{le=\"0.000002\"} 3\n\
         nomad_leader_step_seconds_bucket{le=\"+Inf\"} 4\n\
         # HELP nomad_raft_appliedIndex See docs/operations.md.\n\
         # TYPE nomad_raft_appliedIndex gauge\nnomad_raft_appliedIndex 12.5\n"
    );
    assert_eq!(server.get("/v1/metrics?format=xml").await.status, 400);
    server.stop().await;
}

#[tokio::test]
async fn lists_page_filter_and_reverse() {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/namespaces", &json!({ "Name": "other" })).await.ok();
    for id in ["a", "ab", "b"] {
        server.put("/v1/jobs", &json!({ "Job": web_job(id) })).await.ok();
    }
    server.put("/v1/jobs?namespace=other", &json!({ "Job": web_job("a") })).await.ok();
    let ids = |value: &Value| -> Vec<String> {
        let names = |job: &Value| format!("{}/{}", job["Namespace"], job["ID"]).replace('"', "");
        value.as_array().unwrap().iter().map(names).collect()
    };
    for (query, expected) in [
        ("", vec!["default/a", "default/ab", "default/b"]),
        ("?prefix=a", vec!["default/a", "default/ab"]),
        ("?namespace=other", vec!["other/a"]),
        ("?namespace=*&prefix=a", vec!["default/a", "default/ab", "other/a"]),
        ("?namespace=missing", vec![]),
        ("?reverse=true", vec!["default/b", "default/ab", "default/a"]),
    ] {
        assert_eq!(ids(&server.get(&format!("/v1/jobs{query}")).await.ok()), expected, "{query}");
    }
    let first = server.get("/v1/jobs?namespace=*&per_page=3").await;
    assert_eq!(ids(&first.ok()), ["default/a", "default/ab", "default/b"]);
    let token = &first.headers["x-nomad-nexttoken"];
    let second = server.get(&format!("/v1/jobs?namespace=*&per_page=3&next_token={token}")).await;
    assert_eq!(ids(&second.ok()), ["other/a"]);
    assert!(!second.headers.contains_key("x-nomad-nexttoken"));

    let evaluations = server.get("/v1/evaluations?job=a&namespace=*").await.ok();
    assert_eq!(evaluations.as_array().unwrap().len(), 2);
    let own = server.get("/v1/evaluations?job=a").await.ok();
    assert_eq!(own.as_array().unwrap().len(), 1, "the other is of another namespace's job: {own}");
    let id = evaluations[1]["ID"].as_str().unwrap();
    let by_prefix = server.get(&format!("/v1/evaluations?namespace=*&prefix={id}")).await.ok();
    assert_eq!(by_prefix.as_array().unwrap().len(), 1);
    let none = server.get("/v1/evaluations?status=failed").await.ok();
    assert_eq!(none, json!([]));

    // A page begins behind a row that is gone meanwhile.
    let pages = ["/v1/jobs?per_page=1", "/v1/jobs?per_page=1&reverse=true"];
    let mut tokens = Vec::new();
    for page in pages {
        tokens.push(server.get(page).await.headers["x-nomad-nexttoken"].clone());
    }
    assert_eq!(tokens[0], tokens[1], "both go on with default/ab");
    server.send("DELETE", "/v1/job/ab?purge=true", &[], b"").await.ok();
    for ((page, token), expected) in pages.iter().zip(tokens).zip(["default/b", "default/a"]) {
        let rest = server.get(&format!("{page}&next_token={token}")).await.ok();
        assert_eq!(ids(&rest), [expected], "{page}");
    }
    server.stop().await;
}

#[tokio::test]
async fn pretty_indents_lists_and_items() {
    let (server, ..) = populated().await;
    for path in ["/v1/jobs?pretty", "/v1/job/web?pretty=true"] {
        assert!(server.get(path).await.text.contains("\n  "), "{path}");
    }
    assert!(!server.get("/v1/jobs").await.text.contains('\n'));
    server.stop().await;
}

#[tokio::test]
async fn a_large_list_is_complete() {
    let cluster = TestCluster::new();
    let server = TestServer::start(cluster.clone()).await;
    server.put("/v1/jobs", &json!({ "Job": web_job("web") })).await.ok();
    for number in 0..2_500_u64 {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_be_bytes());
        cluster.must(fsm::Command::from(EvaluateJob {
            job: JobKey::new("default", "web"),
            force_reschedule: false,
            evaluation: EvaluationId(id),
        }));
    }
    let list = server.get("/v1/evaluations").await.ok();
    assert_eq!(list.as_array().unwrap().len(), cluster.state().evaluations().len());
    assert!(cluster.state().evaluations().len() > 2_000);
    server.stop().await;
}

#[tokio::test]
async fn small_values_are_kept_or_empty_as_in_nomad() {
    let (server, ..) = populated().await;
    for (ttl, shown) in
        [(json!("720h"), 2_592_000_000_000_000_u64), (json!(90_000_000_000_u64), 90_000_000_000)]
    {
        let pool = json!({ "Name": "gpu", "NodeIdentityTTL": ttl });
        server.put("/v1/node/pools", &pool).await.ok();
        let kept = server.get("/v1/node/pool/gpu").await.ok();
        assert_eq!(kept["NodeIdentityTTL"], shown);
    }
    assert_eq!(server.get("/v1/node/pool/default").await.ok()["NodeIdentityTTL"], DAY_NS);
    let refused =
        server.put("/v1/node/pools", &json!({ "Name": "a", "NodeIdentityTTL": -1 })).await;
    assert_eq!(refused.status, 400);
    let refused = server.put("/v1/namespace", &json!({ "Name": "*" })).await;
    assert!(refused.text.contains("invalid name \"*\"."), "{refused:?}");

    for (mode, shown) in [(None, ""), (Some("host"), "host")] {
        let mut job = web_job("modes");
        let network = json!({ "Mode": mode, "DynamicPorts": [{ "Label": "http" }] });
        job["TaskGroups"][0]["Networks"] = json!([network]);
        server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
        let kept = server.get("/v1/job/modes").await.ok();
        assert_eq!(kept["TaskGroups"][0]["Networks"][0]["Mode"], shown);
    }

    let path = format!("/v1/node/{NODE}");
    assert_eq!(server.get(&path).await.ok()["LastDrain"], Value::Null);
    let noted = json!({ "message": "disk swap" });
    let drain = json!({ "DrainSpec": { "Deadline": 1_000_000_000 }, "Meta": noted });
    server.put(&format!("{path}/drain"), &drain).await.ok();
    let last = server.get(&path).await.ok()["LastDrain"].clone();
    assert_eq!((&last["Status"], &last["AccessorID"]), (&json!("draining"), &json!("")));
    server.put(&format!("{path}/drain"), &json!({ "DrainSpec": null })).await.ok();
    let node = server.get(&path).await.ok();
    assert_eq!(node["LastDrain"]["Status"], "canceled");
    assert_eq!(node["LastDrain"]["StartedAt"], last["StartedAt"]);
    assert_eq!((&last["Meta"], &node["LastDrain"]["Meta"]), (&noted, &noted));
    let nobody = "/v1/node/00000000-0000-0000-0000-000000000009/allocations";
    assert_eq!(server.get(nobody).await.ok(), json!([]));
    assert_eq!(server.get("/v1/node/nope/allocations").await.ok(), json!([]));
    let unset = json!({ "Name": "gpu", "NodeIdentityTTL": "" });
    server.put("/v1/node/pools", &unset).await.ok();
    assert_eq!(server.get("/v1/node/pool/gpu").await.ok()["NodeIdentityTTL"], DAY_NS);
    server.stop().await;
}

/// Nomad's clients look for it.
#[tokio::test]
async fn a_table_that_was_never_written_has_the_index_0() {
    let server = TestServer::start(TestCluster::new()).await;
    for path in ["/v1/jobs", "/v1/allocations", "/v1/evaluations"] {
        let answer = server.get(path).await;
        assert_eq!((answer.status, answer.index()), (200, 0), "{path}");
    }
    server.stop().await;
}
