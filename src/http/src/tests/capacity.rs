//! Capacity groups over the API: requirements in, members and status out.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use fsm::{
    Command, InstanceId, NodeId,
    capacity::{DecideCapacity, DecidedCapacity},
    node::{NodeReadiness, Readiness, RegisterNode},
    pool::{CreateOutcome, InstanceOutcome, Intent, RequestInstances},
    testing::{description, proof},
};
use serde_json::{Value, json};

use super::{
    blocking::begun,
    cluster::TestCluster,
    shapes::check,
    socket::{TestResponse, TestServer},
};

const FIRST: u8 = 0xa1;
const SECOND: u8 = 0xa2;
const REQUIREMENTS: &str = "/v1/capacity/requirements";

fn pool() -> Value {
    json!({
        "Provider": "local",
        "Max": 9,
        "Types": [{ "Name": "small", "CPU": 4_000, "MemoryMB": 8_192 }],
        "Capacity": [
            { "Name": "web", "Unit": 4_096, "Max": 9, "MemberPort": 8_080, "Headroom": { "Percent": 20 } },
            { "Name": "api", "Dimension": "instances", "Unit": 1, "Max": 3, "MemberPort": 8_081 },
        ],
    })
}

async fn with_groups() -> TestServer {
    let server = TestServer::start(TestCluster::new()).await;
    server.put("/v1/instance-pool/burst", &pool()).await.ok();
    server
}

/// The group is to have all members that it may have.
fn decide(cluster: &TestCluster, group: &str) {
    let state = cluster.state();
    let (_, declared) = state.capacity_group(group).unwrap();
    let target = state.capacity_targets().get(&group.into());
    let decision = DecidedCapacity {
        group: group.into(),
        desired: declared.amount_max(),
        required: target.map_or(0, |row| row.required),
        predicted: declared.amount_max(),
        requirements_index: target.map_or(0, |row| row.requirements_index),
    };
    cluster.must(Command::from(DecideCapacity { decisions: vec![decision] }));
}

/// An instance of a group that was asked for.
fn request(cluster: &TestCluster, number: u8, group: &str) -> InstanceId {
    decide(cluster, group);
    let id = InstanceId([number; 16]);
    let row = cluster.state().instance_pools().get(&"burst".into()).unwrap().clone();
    let intent = Intent {
        id,
        token: proof(id).token,
        kind: "small".into(),
        wanted_by: None,
        group: Some(group.into()),
    };
    cluster.must(Command::from(RequestInstances {
        pool: "burst".into(),
        pool_modify_index: row.modify_index,
        intents: vec![intent],
    }));
    id
}

/// A member of a group that serves.
fn serve(cluster: &TestCluster, number: u8, group: &str) -> InstanceId {
    let id = request(cluster, number, group);
    let address: String = format!("10.0.0.{number}");
    let made = CreateOutcome::Made {
        provider_id: format!("i-{number}").into(),
        address: address.into(),
        scope: "host".into(),
    };
    let (provider, pool, kind) = ("local".into(), "burst".into(), "small".into());
    cluster.must(Command::from(InstanceOutcome { id, provider, pool, kind, outcome: made }));
    let node = NodeId([number; 16]);
    let mut description = description(&format!("node-{number}"));
    description.pool = "burst".into();
    cluster.must(Command::from(RegisterNode {
        instance: Some(proof(id)),
        node,
        secret: [0xee; 16],
        identity: [number; 16],
        description: Arc::new(description),
        evaluation_ids: Vec::new(),
    }));
    ready(cluster, number, Readiness::Ok, 1);
    id
}

fn ready(cluster: &TestCluster, number: u8, readiness: Readiness, sequence: u64) {
    cluster.must(Command::from(NodeReadiness {
        node: NodeId([number; 16]),
        incarnation: 1,
        readiness,
        reason: "".into(),
        sequence,
        evaluation_ids: Vec::new(),
    }));
}

fn word(seq: u64, amount: u64) -> Value {
    let groups = json!([{ "Group": "web", "Amount": amount }]);
    json!({ "Source": "lb1", "Epoch": 7, "Seq": seq, "TTLms": 10_000, "Groups": groups })
}

#[tokio::test]
async fn groups_and_members_have_their_golden_shape() {
    let server = with_groups().await;
    server.put(REQUIREMENTS, &word(1, 9_000)).await.ok();
    serve(&server.cluster, FIRST, "web");
    request(&server.cluster, SECOND, "web");
    for (name, path) in [
        ("capacity", "/v1/capacity"),
        ("capacity_group", "/v1/capacity/web"),
        ("capacity_members", "/v1/capacity/web/members"),
    ] {
        check(name, &server.get(path).await);
    }
    let names = |answer: Value| -> Vec<String> {
        let rows = answer.as_array().unwrap().iter();
        rows.map(|row| row["Group"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(server.get("/v1/capacity?prefix=w").await.ok()), ["web"]);
    assert_eq!(names(server.get("/v1/capacity?per_page=1").await.ok()), ["api"]);
    let explained = server.get("/v1/capacity/web/explain").await.ok();
    let text = explained["Sentences"].to_string();
    assert!(text.contains("lb1") && text.contains("9000"), "{explained}");
    server.stop().await;
}

#[tokio::test]
async fn a_requirement_replaces_what_its_source_said() {
    let server = with_groups().await;
    let required = async |group: &str| {
        server.get(&format!("/v1/capacity/{group}")).await.ok()["Required"].as_u64().unwrap()
    };
    let say = async |source: &str, epoch: u64, seq: u64, groups: Value| {
        let body = json!({ "Source": source, "Epoch": epoch, "Seq": seq, "Groups": groups });
        server.put(REQUIREMENTS, &body).await
    };
    let both = json!([{ "Group": "web", "Amount": 6_000 }, { "Group": "api", "Amount": 2 }]);
    assert!(say("lb1", 1, 1, both).await.ok()["Index"].as_u64().unwrap() > 0);
    say("lb2", 1, 1, json!([{ "Group": "web", "Amount": 3_000 }])).await.ok();
    assert_eq!((required("web").await, required("api").await), (9_000, 2));
    // A group that is not named is not needed any more.
    say("lb1", 1, 2, json!([{ "Group": "web", "Amount": 1_000 }])).await.ok();
    assert_eq!((required("web").await, required("api").await), (4_000, 0));
    let older = say("lb1", 1, 1, json!([{ "Group": "web", "Amount": 9 }])).await;
    assert_eq!(older.status, 409);
    assert!(older.text.contains("epoch 1, sequence 2"), "{older:?}");
    let anew = json!([{ "Group": "web", "Amount": 500 }]);
    say("lb1", 2, 1, anew).await.ok();
    assert_eq!(required("web").await, 3_500, "a new epoch begins with any sequence");
    assert_eq!(say("lb1", 1, 9, json!([])).await.status, 409, "the old one is over");
    say("lb1", 2, 2, json!([])).await.ok();
    assert_eq!(required("web").await, 3_000, "an empty list needs nothing");
    server.stop().await;
}

#[tokio::test]
async fn bad_requirements_change_nothing() {
    let server = with_groups().await;
    let digest = |server: &TestServer| {
        let state = server.cluster.state();
        (state.capacity_sources().digest(), state.capacity_targets().digest())
    };
    let before = digest(&server);
    let with = |name: &str, value: Value| {
        let mut body = word(1, 1);
        body[name] = value;
        body
    };
    let of =
        |group: &str, amount: Value| with("Groups", json!([{ "Group": group, "Amount": amount }]));
    let many: Vec<Value> =
        (0..101).map(|number| json!({ "Group": format!("g{number}"), "Amount": 1 })).collect();
    let twice = json!([{ "Group": "web", "Amount": 1 }, { "Group": "web", "Amount": 2 }]);
    for (body, status, text) in [
        (json!([]), 400, "expected an object"),
        (json!({}), 400, "Source is required"),
        (with("Source", json!("")), 400, "Source is required"),
        (with("Source", json!("a b")), 400, "source"),
        (with("Epoch", Value::Null), 400, "Epoch is required"),
        (with("Seq", Value::Null), 400, "Seq is required"),
        (with("Seq", json!(-1)), 400, "Seq: expected a whole number that is not negative"),
        (with("Groups", Value::Null), 400, "Groups is required"),
        (with("Groups", json!({})), 400, "Groups: expected a list"),
        (with("Groups", json!([7])), 400, "Groups[0]"),
        (with("Groups", twice), 400, "Groups[1].Group: group \"web\" is there twice"),
        (with("Groups", many.into()), 400, "at most 100 capacity groups"),
        (with("TTLmz", json!(1)), 400, "TTLmz: unknown key; did you mean \"TTLms\"?"),
        (with("TTLms", json!(0)), 400, "from 1 ms to a day"),
        (with("TTLms", json!(86_400_001)), 400, "from 1 ms to a day"),
        (of("web", json!(-1)), 400, "Groups[0].Amount: expected a whole number"),
        (of("web", json!(1e30)), 400, "Groups[0].Amount: expected a whole number"),
        (of("web", json!(1.5)), 400, "Groups[0].Amount: expected a whole number"),
        (of("web", json!(u64::MAX)), 400, "is above 1099511627776"),
        (of("gone", json!(1)), 404, "capacity group \"gone\" not found"),
    ] {
        let refused = server.put(REQUIREMENTS, &body).await;
        assert_eq!(refused.status, status, "{body}: {refused:?}");
        assert!(refused.text.contains(text), "{body}: {refused:?}");
    }
    for path in ["", "/members", "/explain"] {
        let missing = server.get(&format!("/v1/capacity/gone{path}")).await;
        assert_eq!((missing.status, &*missing.text), (404, "capacity group not found"), "{path}");
    }
    assert_eq!(digest(&server), before, "nothing is left of them");
    server.stop().await;
}

fn ids(response: &TestResponse) -> Vec<String> {
    let rows = response.ok();
    rows.as_array()
        .unwrap()
        .iter()
        .map(|row| row["Instance"].as_str().unwrap().to_owned())
        .collect()
}

/// The oldest is first, so that a jump hash moves little; who drains, is away, or is not there yet
/// is no member. A query that waits is woken by another list, and by nothing else.
#[tokio::test]
async fn a_query_for_members_is_woken_by_another_list_only() {
    let server = with_groups().await;
    let path = "/v1/capacity/web/members";
    assert_eq!(server.get(path).await.ok(), json!([]));
    let second = serve(&server.cluster, SECOND, "web").to_string();
    serve(&server.cluster, 0xb1, "api");
    let seen = server.get(path).await;
    assert_eq!(ids(&seen), [&*second]);

    let started = Instant::now();
    let waiting = format!("{path}?index={}&wait=300ms", seen.index());
    server.cluster.reads.lock().unwrap().clear();
    let (slept, ()) = tokio::join!(server.get(&waiting), async {
        begun(&server.cluster).await;
        server.put(REQUIREMENTS, &word(1, 9_000)).await.ok();
        request(&server.cluster, FIRST, "web");
        serve(&server.cluster, 0xb2, "api");
    });
    assert_eq!(ids(&slept), [&*second]);
    assert!(started.elapsed() >= Duration::from_millis(300), "it woke");

    let seen = server.get(path).await.index();
    let waiting = format!("{path}?index={seen}&wait=60s");
    server.cluster.reads.lock().unwrap().clear();
    let (woken, first) = tokio::join!(server.get(&waiting), async {
        begun(&server.cluster).await;
        server.put(REQUIREMENTS, &word(2, 9_001)).await.ok();
        serve(&server.cluster, 0xa3, "web").to_string()
    });
    assert_eq!(ids(&woken), [&*second, &*first], "the oldest is first");

    let waiting = format!("{path}?index={}&wait=60s", woken.index());
    server.cluster.reads.lock().unwrap().clear();
    let (woken, ()) = tokio::join!(server.get(&waiting), async {
        begun(&server.cluster).await;
        ready(&server.cluster, SECOND, Readiness::Fatal, 2);
    });
    assert_eq!(ids(&woken), [first], "who is suspended does not serve");
    server.stop().await;
}

#[tokio::test]
async fn a_group_that_is_not_there_is_waited_for() {
    let server = TestServer::start(TestCluster::new()).await;
    let seen = server.get("/v1/capacity/web/members").await;
    assert_eq!(seen.status, 404);
    let waiting = format!("/v1/capacity/web/members?index={}&wait=60s", seen.index());
    server.cluster.reads.lock().unwrap().clear();
    let (woken, ()) = tokio::join!(server.get(&waiting), async {
        begun(&server.cluster).await;
        server.put("/v1/instance-pool/burst", &pool()).await.ok();
    });
    assert_eq!(woken.ok(), json!([]));
    server.stop().await;
}
