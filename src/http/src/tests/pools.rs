//! Instance pools and instances over the API.

use std::sync::Arc;

use fsm::{
    Command, EvaluationId, InstanceId, JobKey, NodeId,
    node::{NodeReadiness, Readiness, RegisterNode},
    pool::{CreateOutcome, InstanceOutcome, Intent, LimitClass, LimitScope, RequestInstances},
    testing::{description, proof},
};
use serde_json::{Value, json};

use super::{
    cluster::{TestCluster, web_job},
    shapes::check,
    socket::TestServer,
};

const NODE: NodeId = NodeId([0x11; 16]);
const FIRST: InstanceId = InstanceId([0xa1; 16]);
const SECOND: InstanceId = InstanceId([0xa2; 16]);

fn gpu() -> Value {
    json!({
        "Provider": "local",
        "Max": 3,
        "Types": [{
            "Name": "small",
            "ProviderType": "t1",
            "CPU": 4_000,
            "MemoryMB": 8_192,
            "DiskMB": 100_000,
            "Price": 0.05,
            "QuotaGroup": "vcpu",
            "Node": { "Drivers": ["raw_exec"] },
        }],
    })
}

async fn with_pool() -> TestServer {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/instance-pool/gpu", &gpu()).await.ok();
    server
}

fn request(cluster: &TestCluster, id: InstanceId) {
    let pool_modify_index =
        cluster.state().instance_pools().get(&"gpu".into()).unwrap().modify_index;
    let intent =
        Intent { id, token: proof(id).token, kind: "small".into(), wanted_by: None, group: None };
    cluster.must(Command::from(RequestInstances {
        pool: "gpu".into(),
        pool_modify_index,
        intents: vec![intent],
    }));
}

fn outcome(cluster: &TestCluster, id: InstanceId, outcome: CreateOutcome) {
    cluster.must(Command::from(InstanceOutcome {
        id,
        provider: "local".into(),
        pool: "gpu".into(),
        kind: "small".into(),
        outcome,
    }));
}

/// The instance is made, and its node is ready.
fn bind(cluster: &TestCluster, id: InstanceId) {
    let made = CreateOutcome::Made {
        provider_id: "i-1".into(),
        address: "10.0.0.9".into(),
        scope: "host".into(),
    };
    outcome(cluster, id, made);
    let mut description = description("node-1");
    description.pool = "gpu".into();
    description.drivers = std::collections::BTreeMap::from([(
        "raw_exec".into(),
        fsm::node::Driver { detected: true, healthy: true, ..fsm::node::Driver::default() },
    )]);
    cluster.must(Command::from(RegisterNode {
        instance: Some(proof(id)),
        node: NODE,
        secret: [0xee; 16],
        identity: [0xdd; 16],
        description: Arc::new(description),
        evaluation_ids: Vec::new(),
    }));
    cluster.must(Command::from(NodeReadiness {
        node: NODE,
        incarnation: 1,
        readiness: Readiness::Ok,
        reason: "".into(),
        sequence: 1,
        evaluation_ids: Vec::new(),
    }));
}

/// A pool with an instance that runs something, one that was asked for, and a limit.
async fn populated() -> TestServer {
    let server = with_pool().await;
    let cluster = &server.cluster;
    request(cluster, FIRST);
    bind(cluster, FIRST);
    let mut job = web_job("web");
    job["NodePool"] = "gpu".into();
    let registered = server.put("/v1/jobs", &json!({ "Job": job })).await.ok();
    let evaluation: EvaluationId = registered["EvalID"].as_str().unwrap().parse().unwrap();
    cluster.place(&JobKey::new("default", "web"), evaluation, NODE);
    let failing = InstanceId([0xa3; 16]);
    request(cluster, failing);
    request(cluster, SECOND);
    let refused = CreateOutcome::Failed {
        class: LimitClass::Quota,
        scope: LimitScope::QuotaGroup { group: "vcpu".into(), preemptible: false },
        for_ms: Some(60_000),
        detail: "8 of 8 used".into(),
    };
    outcome(cluster, failing, refused);
    server
}

#[tokio::test]
async fn pools_and_instances_have_their_golden_shape() {
    let server = populated().await;
    let word = json!({ "Reason": "repair", "Actor": "alice@web1" });
    server.put("/v1/instance-pool/gpu/pause", &word).await.ok();
    for (name, path) in [
        ("instance_pools", "/v1/instance-pools".to_owned()),
        ("instance_pool", "/v1/instance-pool/gpu".to_owned()),
        ("instances", "/v1/instances".to_owned()),
        ("instance", format!("/v1/instance/{FIRST}")),
    ] {
        check(name, &server.get(&path).await);
    }
    let node = server.get(&format!("/v1/node/{NODE}")).await.ok();
    assert_eq!(node["Instance"], json!({ "ID": FIRST.to_string(), "Open": true }));
    server.stop().await;
}

#[tokio::test]
async fn no_answer_holds_a_token() {
    let server = populated().await;
    let token = format!("{:032x}", u128::from_be_bytes(proof(FIRST).token));
    for path in ["/v1/instances".to_owned(), format!("/v1/instance/{FIRST}")] {
        let text = server.get(&path).await.text.to_ascii_lowercase();
        assert!(!text.contains("token") && !text.replace('-', "").contains(&token), "{text}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_pool_is_written_with_its_index_and_read_back() {
    let server = with_pool().await;
    let read = server.get("/v1/instance-pool/gpu").await.ok();
    assert_eq!((&read["Min"], &read["PriceFactor"]), (&json!(0), &json!(1.5)));
    assert_eq!(read["Types"][0]["Node"]["Datacenter"], "dc1");
    let index = read["ModifyIndex"].as_u64().unwrap();
    let mut changed = read.clone();
    changed["Max"] = 7.into();
    let stale = server.put("/v1/instance-pool/gpu?cas=1", &changed).await;
    assert_eq!(
        (stale.status, &*stale.text),
        (409, &*format!("the modify index is {index}, not 1"))
    );
    let exists = server.put("/v1/instance-pool/gpu?cas=0", &changed).await;
    assert_eq!(exists.status, 409, "0: it must not exist");
    server.put(&format!("/v1/instance-pool/gpu?cas={index}"), &changed).await.ok();
    assert_eq!(server.get("/v1/instance-pool/gpu").await.ok()["Max"], 7);
    let pools = server.get("/v1/instance-pools?prefix=x").await.ok();
    assert_eq!(pools, json!([]));
    assert!(server.get("/v1/node/pool/gpu").await.ok()["Description"].is_string());

    request(&server.cluster, FIRST);
    let used = server.delete("/v1/instance-pool/gpu").await;
    assert_eq!(used.status, 409);
    assert!(used.text.contains("drain them"), "{used:?}");
    server.put(&format!("/v1/instance/{FIRST}/shutdown"), &json!({})).await.ok();
    server.cluster.must(Command::from(fsm::pool::DestroyOutcome {
        id: FIRST,
        provider_id: "".into(),
        gone: true,
        error: "".into(),
        evaluation_ids: Vec::new(),
    }));
    server.delete("/v1/instance-pool/gpu").await.ok();
    assert_eq!(server.get("/v1/instance-pool/gpu").await.status, 404);
    server.stop().await;
}

#[tokio::test]
async fn bad_requests_about_pools_change_nothing() {
    let server = populated().await;
    let digest = |server: &TestServer| {
        let state = server.cluster.state();
        (state.instance_pools().digest(), state.instances().digest())
    };
    let before = digest(&server);
    let pool = || "/v1/instance-pool/gpu".to_owned();
    let with = |name: &str, value: Value| {
        let mut body = gpu();
        body[name] = value;
        body
    };
    let of = |verb: &str| format!("/v1/instance/{FIRST}/{verb}");
    let unknown = |verb: &str| format!("/v1/instance/{}/{verb}", InstanceId([7; 16]));
    let long = "x".repeat(257);
    for (path, body, status, text) in [
        (pool(), json!([]), 400, "expected an object"),
        (pool(), json!({}), 400, "Provider: is required\nMax: is required\nTypes: a pool needs"),
        (pool(), with("Maxx", json!(1)), 400, "Maxx: unknown key: did you mean \"Max\"?"),
        (pool(), with("Max", json!("3")), 400, "Max: expected a whole number"),
        (pool(), with("Min", json!(4)), 400, "min (4) is above max (3)"),
        (pool(), with("PriceFactor", json!(0.5)), 400, "PriceFactor: 0.5 is out of range"),
        (pool(), with("Name", json!("other")), 400, "but the path says \"gpu\""),
        (pool(), with("Types", json!([{ "Name": "a" }])), 400, "Types[0].CPU: is required"),
        (pool(), with("Types", json!([7])), 400, "Types[0]: expected an object"),
        (pool(), with("Provider", json!("other")), 409, "of provider \"local\": drain them"),
        (format!("{}?cas=x", pool()), gpu(), 400, "cas"),
        ("/v1/instance-pool/all".to_owned(), gpu(), 400, "stands for all nodes"),
        ("/v1/instance-pool/gone/pause".to_owned(), json!({ "Reason": "r" }), 404, "not found"),
        ("/v1/instance-pool/gpu/pause".to_owned(), json!({}), 400, "Reason is required"),
        ("/v1/instance-pool/gpu/pause".to_owned(), json!({ "Raeson": "r" }), 400, "\"Reason\"?"),
        (of("behavior"), json!({}), 400, "Behavior must be run, hold or drain, not \"\""),
        (of("behavior"), json!({ "Behavior": "holt" }), 400, "did you mean \"hold\"?"),
        (of("behavior"), json!({ "Behavior": "run", "By": "me" }), 400, "By: unknown key"),
        (of("behavior"), json!({ "Behavior": "run", "Reason": long }), 400, "257 bytes"),
        (unknown("behavior"), json!({ "Behavior": "run" }), 404, "instance not found"),
        (unknown("shutdown"), json!({}), 404, "instance not found"),
        (of("shutdown"), json!({ "Cause": "idle" }), 400, "Cause: unknown key"),
        ("/v1/instance/xyz/shutdown".to_owned(), json!({}), 400, "not a UUID"),
        (format!("/v1/node/{NODE}/purge"), json!({}), 409, "shut that down instead"),
    ] {
        let refused = server.put(&path, &body).await;
        assert_eq!(refused.status, status, "{path} {body}: {refused:?}");
        assert!(refused.text.contains(text), "{path} {body}: {refused:?}");
    }
    for (path, status) in [
        ("/v1/instance-pool/gone".to_owned(), 404),
        (format!("/v1/instance/{}", InstanceId([7; 16])), 404),
        ("/v1/instance/a1".to_owned(), 400),
        ("/v1/instances?prefix=xyz".to_owned(), 400),
    ] {
        assert_eq!(server.get(&path).await.status, status, "{path}");
    }
    assert_eq!(server.delete("/v1/instance-pool/gone").await.status, 404);
    assert_eq!(digest(&server), before);
    server.stop().await;
}

#[tokio::test]
async fn instances_are_listed_by_pool_and_prefix() {
    let server = populated().await;
    for (query, expected) in [
        ("", vec![FIRST, SECOND]),
        ("?pool=gpu", vec![FIRST, SECOND]),
        ("?pool=other", vec![]),
        ("?prefix=a1", vec![FIRST]),
        ("?reverse=true&per_page=1", vec![SECOND]),
    ] {
        let list = server.get(&format!("/v1/instances{query}")).await.ok();
        let ids = list.as_array().unwrap().iter().map(|row| row["ID"].as_str().unwrap());
        let expected: Vec<String> = expected.iter().map(ToString::to_string).collect();
        assert_eq!(ids.collect::<Vec<_>>(), expected, "{query}");
    }
    server.stop().await;
}

#[tokio::test]
async fn operators_hold_drain_and_shut_down_instances() {
    let server = populated().await;
    let path = format!("/v1/instance/{FIRST}");
    let word = json!({ "Behavior": "hold", "Reason": "disk", "Actor": "alice@web1" });
    server.put(&format!("{path}/behavior"), &word).await.ok();
    let held = server.get(&path).await.ok();
    assert_eq!((&held["Behavior"], &held["State"]), (&json!("hold"), &json!("running")));
    assert_eq!(held["Reason"], "held by alice@web1: disk; runs 1 allocation");
    let node = server.get(&format!("/v1/node/{NODE}")).await.ok();
    assert_eq!(node["Instance"]["Open"], false);
    let drain = json!({ "Behavior": "drain" });
    let made = server.put(&format!("{path}/behavior"), &drain).await.ok();
    assert_eq!(made["EvalIDs"].as_array().unwrap().len(), 1, "its job is looked at: {made}");
    let end = json!({ "Reason": "old", "Actor": "bob@web1" });
    server.put(&format!("{path}/shutdown"), &end).await.ok();
    let ending = server.get(&path).await.ok();
    assert_eq!(ending["State"], "shutdown");
    assert_eq!(ending["Reason"], "shut down by bob@web1 (old), destroy was not asked yet");
    let late = server.put(&format!("{path}/behavior"), &drain).await;
    assert_eq!((late.status, &*late.text), (400, "the instance is being shut down"));
    server.stop().await;
}

#[tokio::test]
async fn queries_about_pools_and_instances_wake() {
    let server = populated().await;
    let list = server.get("/v1/instances").await.index();
    let item = server.get(&format!("/v1/instance/{FIRST}")).await.index();
    let pool = server.get("/v1/instance-pool/gpu").await.index();
    let paths = (
        format!("/v1/instances?index={list}&wait=60s"),
        format!("/v1/instance/{FIRST}?index={item}&wait=60s"),
        format!("/v1/instance-pool/gpu?index={pool}&wait=60s"),
        format!("/v1/instance/{FIRST}/behavior"),
    );
    let body = json!({ "Behavior": "hold" });
    let (listed, one, pool, written) = tokio::join!(
        server.get(&paths.0),
        server.get(&paths.1),
        server.get(&paths.2),
        server.put(&paths.3, &body),
    );
    written.ok();
    assert_eq!(listed.ok()[0]["Behavior"], "hold");
    assert_eq!(one.ok()["Behavior"], "hold");
    // A pause is no change of what the pool is, and wakes all the same.
    let path = format!("/v1/instance-pool/gpu?index={}&wait=60s", pool.index());
    let word = json!({ "Reason": "repair" });
    let (woken, paused) =
        tokio::join!(server.get(&path), server.put("/v1/instance-pool/gpu/pause", &word));
    paused.ok();
    assert_eq!(woken.ok()["Paused"]["By"], "operator");
    let (by, since) = ("paused by operator since ", woken.ok()["Waits"][0].clone());
    assert!(since.as_str().unwrap().starts_with(by), "{since}");
    server.put("/v1/instance-pool/gpu/resume", &json!({})).await.ok();
    assert_eq!(server.get("/v1/instance-pool/gpu").await.ok()["Paused"], Value::Null);
    server.stop().await;
}
