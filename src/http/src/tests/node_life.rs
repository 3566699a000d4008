//! What operators say of nodes over the API: suspensions, eligibility, mass losses, settings.

use fsm::{
    Command, NodeId,
    node::{Liveness, LivenessChange, NodeLiveness},
};
use serde_json::{Value, json};

use super::{cluster::TestCluster, socket::TestServer};

const NODE: NodeId = NodeId([0x11; 16]);
const OTHER: NodeId = NodeId([0x22; 16]);
const SETTINGS: &str = "/v1/operator/scheduler/configuration";
const HOUR_NS: u64 = 3_600_000_000_000;
const ZERO_TIME: &str = "0001-01-01T00:00:00Z";

async fn with_node() -> TestServer {
    let cluster = TestCluster::new();
    cluster.add_node(NODE, "");
    TestServer::start(cluster).await
}

async fn node(server: &TestServer) -> Value {
    server.get(&format!("/v1/node/{NODE}")).await.ok()
}

async fn node_life(server: &TestServer) -> Value {
    server.get(SETTINGS).await.ok()["SchedulerConfig"]["NodeLife"].clone()
}

/// A suspension shows who asked for it, why and until when, in the node and in the list; the status
/// keeps Nomad's word. Its end asks for readiness again.
#[tokio::test]
async fn a_node_is_suspended_and_unsuspended_by_hand() {
    let server = with_node().await;
    let suspend = format!("/v1/node/{NODE}/suspend");
    let unsuspend = format!("/v1/node/{NODE}/unsuspend");
    let refused = server.put(&unsuspend, &json!({})).await;
    assert_eq!((refused.status, &*refused.text), (400, "the node is not suspended"));

    let word = json!({ "Reason": "disk", "For": HOUR_NS, "Actor": "alice@web1" });
    server.put(&suspend, &word).await.ok();
    let suspended = node(&server).await;
    let health = &suspended["Health"];
    assert_eq!(suspended["Status"], "ready");
    assert_eq!((&health["Status"], &health["Reason"]), (&json!("suspended"), &json!("operator")));
    assert_eq!((&health["Detail"], &health["By"]), (&json!("disk"), &json!("alice@web1")));
    assert_eq!((&health["ByVerified"], &health["Strikes"]), (&json!(false), &json!(0)));
    let until = health["Until"].as_str().unwrap();
    let minutes = |at: &str| at.get(14..19).unwrap().to_owned();
    assert_ne!(until, ZERO_TIME);
    assert_eq!(minutes(until), minutes(health["Since"].as_str().unwrap()), "an hour later");
    let description = format!("suspended (operator) until {until}: disk");
    assert_eq!(suspended["StatusDescription"], description);
    let stub = &server.get("/v1/nodes").await.ok()[0];
    let expected =
        json!({ "Status": "suspended", "Reason": "operator", "Detail": "disk", "Until": until });
    assert_eq!((&stub["Health"], &stub["StatusDescription"]), (&expected, &json!(description)));

    let body = json!({ "Reason": "replaced", "Actor": "bob@web1" }).to_string();
    server.send("POST", &unsuspend, &[], body.as_bytes()).await.ok();
    let lifted = node(&server).await;
    assert_eq!(lifted["Health"]["Status"], "ok");
    assert_eq!(lifted["Status"], "initializing");
    assert_ne!(lifted["ReadyDeadline"], ZERO_TIME);
    let event = lifted["Events"].as_array().unwrap().last().unwrap();
    assert_eq!(event["Message"], "Suspension is over: replaced (lifted by bob@web1)");

    server.put(&suspend, &json!({ "Reason": "again" })).await.ok();
    let health = node(&server).await["Health"].clone();
    assert_eq!((&health["By"], &health["Until"]), (&json!("operator"), &json!(ZERO_TIME)));
    server.stop().await;
}

#[tokio::test]
async fn reasons_of_operators_are_bounded() {
    let server = with_node().await;
    let digest = server.cluster.state().nodes().digest();
    let long = "x".repeat(257);
    let of = |verb: &str| format!("/v1/node/{NODE}/{verb}");
    let unknown = |verb: &str| format!("/v1/node/{OTHER}/{verb}");
    let ineligible = |field: &str| json!({ "Eligibility": "ineligible", field: long });
    let confirm = || "/v1/operator/mass-loss/confirm".to_owned();
    for (path, body, status, text) in [
        (of("suspend"), json!({}), 400, "Reason is required"),
        (of("suspend"), json!({ "Reason": "  " }), 400, "Reason is required"),
        (of("suspend"), json!({ "Reason": 7 }), 400, "Reason: expected a text"),
        (of("suspend"), json!({ "Reason": long }), 400, "Reason has 257 bytes, at most 256"),
        (of("suspend"), json!({ "Reason": "a\nb" }), 400, "Reason must be one line"),
        (of("suspend"), json!({ "Reason": "r", "Actor": long }), 400, "Actor has 257 bytes"),
        (of("suspend"), json!({ "Reason": "r", "For": 0 }), 400, "For must be longer than 0"),
        (of("suspend"), json!({ "Reason": "r", "For": -1 }), 400, "For must be longer than 0"),
        (of("suspend"), json!({ "Reason": "r", "For": 1.5 }), 400, "For: expected a duration"),
        (of("suspend"), json!({ "Reason": "r", "NodeID": OTHER.to_string() }), 400, "NodeID"),
        (unknown("suspend"), json!({ "Reason": "r" }), 404, "node not found"),
        (unknown("unsuspend"), json!({}), 404, "node not found"),
        (of("unsuspend"), json!({ "Actor": long }), 400, "Actor has 257 bytes"),
        (of("eligibility"), ineligible("Reason"), 400, "Reason has 257 bytes"),
        (of("eligibility"), ineligible("Actor"), 400, "Actor has 257 bytes"),
        (of("drain"), json!({ "DrainSpec": {}, "Actor": long }), 400, "Actor has 257 bytes"),
        (of("drain"), json!({ "DrainSpec": {}, "Reason": "r" }), 501, "Reason of a drain"),
        (confirm(), json!({ "Actor": long }), 400, "Actor has 257 bytes"),
        (confirm(), json!({}), 404, "mass loss not found"),
    ] {
        let refused = server.put(&path, &body).await;
        assert_eq!(refused.status, status, "{path} {body}: {refused:?}");
        assert!(refused.text.contains(text), "{path} {body}: {refused:?}");
    }
    assert_eq!(server.cluster.state().nodes().digest(), digest);
    let most = json!({ "Reason": "é".repeat(128), "For": "90s" });
    server.put(&of("suspend"), &most).await.ok();
    assert_eq!(node(&server).await["Health"]["Detail"], most["Reason"]);
    server.stop().await;
}

/// Actor and reason are kept with eligibility and drain; a node that is not registered is taken
/// with a warning, and listed until it registers.
#[tokio::test]
async fn a_node_that_is_not_registered_is_taken_offline_with_a_warning() {
    let server = with_node().await;
    let seen = server.get("/v1/nodes/offline").await;
    assert_eq!(seen.ok(), json!([]));
    let offline = json!({ "Eligibility": "ineligible", "Reason": "fan", "Actor": "alice@web1" });
    let registered = format!("/v1/node/{NODE}/eligibility");
    assert_eq!(server.put(&registered, &offline).await.ok()["Warnings"], "");
    let shown = node(&server).await;
    let eligibility = &shown["Eligibility"];
    assert_eq!((&eligibility["By"], &eligibility["Reason"]), (&json!("alice@web1"), &json!("fan")));
    assert_eq!(
        (&eligibility["ByVerified"], &eligibility["ByDrain"]),
        (&json!(false), &json!(false))
    );
    assert_eq!(shown["StatusDescription"], "ineligible: fan");

    // A query that waits for the list is woken by the change.
    let waiting = format!("/v1/nodes/offline?index={}&wait=60s", seen.index());
    let path = format!("/v1/node/{OTHER}/eligibility");
    let (woken, taken) = tokio::join!(server.get(&waiting), server.put(&path, &offline));
    let warning =
        format!("node {OTHER} is not registered: it will be ineligible when it registers");
    assert_eq!(taken.ok()["Warnings"], warning);
    let rows = woken.ok();
    let row = &rows[0];
    assert_eq!((&row["ID"], &row["Name"]), (&json!(OTHER.to_string()), &json!("")));
    assert_eq!((&row["By"], &row["ByVerified"]), (&json!("alice@web1"), &json!(false)));
    assert_eq!(row["Reason"], "fan");
    assert_ne!(row["At"], ZERO_TIME);
    assert_eq!(rows.as_array().unwrap().len(), 1, "the registered one is not among them");
    assert_eq!(server.get("/v1/nodes/offline?prefix=2222").await.ok(), rows);
    assert_eq!(server.get("/v1/nodes/offline?prefix=11").await.ok(), json!([]));

    let eligible = json!({ "Eligibility": "eligible" });
    let online = server.put(&path, &eligible).await.ok();
    assert!(
        online["Warnings"].as_str().unwrap().ends_with("it will be eligible when it registers")
    );
    assert_eq!(server.get("/v1/nodes/offline").await.ok(), json!([]));

    server.put(&registered, &eligible).await.ok();
    let drain = json!({ "DrainSpec": { "Deadline": HOUR_NS }, "Actor": "bob@web1" });
    server.put(&format!("/v1/node/{NODE}/drain"), &drain).await.ok();
    let draining = node(&server).await;
    assert_eq!(draining["DrainStrategy"]["By"], "bob@web1");
    assert_eq!(draining["Eligibility"]["ByDrain"], true);
    assert_eq!(draining["StatusDescription"], "draining");
    server.stop().await;
}

/// `NodeLife` is changed key by key; a request that does not know of it changes nothing of it.
#[tokio::test]
async fn settings_of_node_life_change_key_by_key() {
    let server = TestServer::start(TestCluster::new()).await;
    let before = node_life(&server).await;
    assert_eq!(before.as_object().unwrap().len(), 12);
    assert_eq!(before["SuspendMs"], 900_000);
    let change = json!({ "NodeLife": { "SuspendMs": 60_000, "affinitymetakey": "snapshot" } });
    assert_eq!(server.put(SETTINGS, &change).await.ok()["Updated"], true);
    let mut expected = before.clone();
    expected["SuspendMs"] = 60_000.into();
    expected["AffinityMetaKey"] = "snapshot".into();
    assert_eq!(node_life(&server).await, expected);

    for without in [json!({ "SchedulerAlgorithm": "spread" }), json!({ "NodeLife": null })] {
        server.put(SETTINGS, &without).await.ok();
        assert_eq!(node_life(&server).await, expected, "{without}");
    }

    let index = server.get(SETTINGS).await.ok()["ModifyIndex"].as_u64().unwrap();
    let change = json!({ "NodeLife": { "StrikeFailures": 5 } });
    let stale = server.put(&format!("{SETTINGS}?cas={}", index - 1), &change).await.ok();
    assert_eq!(stale["Updated"], false);
    assert_eq!(node_life(&server).await, expected);
    let set = server.put(&format!("{SETTINGS}?cas={index}"), &change).await.ok();
    assert_eq!(set["Updated"], true);
    expected["StrikeFailures"] = 5.into();
    assert_eq!(node_life(&server).await, expected);

    // What is shown can be sent back, and a retry under a key is the same request.
    let shown = server.get(SETTINGS).await.ok()["SchedulerConfig"].to_string();
    let key = [("Idempotency-Key", "one")];
    let first = server.send("PUT", SETTINGS, &key, shown.as_bytes()).await.ok();
    assert_eq!(server.send("PUT", SETTINGS, &key, shown.as_bytes()).await.ok(), first);
    assert_eq!(node_life(&server).await, expected);
    server.stop().await;
}

#[tokio::test]
async fn wrong_settings_of_node_life_are_named() {
    let server = TestServer::start(TestCluster::new()).await;
    let before = server.get(SETTINGS).await.ok();
    for (life, text) in [
        (json!(7), "NodeLife: expected an object"),
        (
            json!({ "SuspendMS2": 1 }),
            "NodeLife.SuspendMS2: unknown key; did you mean \"SuspendMs\"?",
        ),
        (json!({ "zzz": 1 }), "NodeLife.zzz: unknown key"),
        (json!({ "SuspendMs": -1 }), "NodeLife.SuspendMs: expected a whole number that is not"),
        (json!({ "SuspendMs": 1.5 }), "NodeLife.SuspendMs: expected a whole number"),
        (json!({ "SuspendMs": "15m" }), "NodeLife.SuspendMs: expected a whole number"),
        (
            json!({ "StrikeFailures": 4_294_967_296_u64 }),
            "NodeLife.StrikeFailures: 4294967296 is too",
        ),
        (json!({ "StrikeFailures": 9 }), "NodeLife.StrikeFailures must be from 1 to 8, not 9"),
        (json!({ "MassLossPercent": 101 }), "NodeLife.MassLossPercent must be from 0 to 100"),
        (json!({ "LostGraceMs": 0 }), "NodeLife.LostGraceMs must be from 1 to"),
        (json!({ "TombstoneMs": u64::MAX }), "NodeLife.TombstoneMs must be from 1 to"),
        (json!({ "SuspendMaxMs": 1_000 }), "NodeLife.SuspendMs (900000) must not be above"),
        (json!({ "AffinityMetaKey": 7 }), "NodeLife.AffinityMetaKey: expected a text"),
    ] {
        let refused = server.put(SETTINGS, &json!({ "NodeLife": life })).await;
        assert_eq!(refused.status, 400, "{life}: {refused:?}");
        assert!(refused.text.contains(text), "{life}: {refused:?}");
    }
    let after = server.get(SETTINGS).await.ok();
    assert_eq!(after["SchedulerConfig"], before["SchedulerConfig"]);
    server.stop().await;
}

/// A mass loss is shown while it lasts and afterwards, and ends by an operator's word.
#[tokio::test]
async fn a_mass_loss_is_shown_and_confirmed() {
    let cluster = TestCluster::new();
    let nodes: Vec<NodeId> = (1..=4).map(|byte| NodeId([byte; 16])).collect();
    for id in &nodes {
        cluster.add_node(*id, "");
    }
    let server = TestServer::start(cluster.clone()).await;
    let path = "/v1/operator/mass-loss";
    let none = server.get(path).await;
    assert_eq!((none.status, &*none.text), (404, "mass loss not found"));
    let waiting = format!("{path}?index={}&wait=60s", none.index());
    let (woken, ()) = tokio::join!(server.get(&waiting), async {
        let lost = nodes.iter().take(3).map(|node| LivenessChange {
            node: *node,
            incarnation: 1,
            liveness: Liveness::Down,
        });
        cluster.must(Command::from(NodeLiveness {
            changes: lost.collect(),
            window_ms: 1_000,
            evaluation_ids: Vec::new(),
        }));
    });
    let loss = woken.ok();
    let ids: Vec<String> = nodes.iter().take(3).map(ToString::to_string).collect();
    assert_eq!((&loss["Nodes"], &loss["Count"]), (&json!(ids), &json!(3)));
    assert_eq!((&loss["Active"], &loss["StillDown"]), (&json!(true), &json!(3)));
    assert_eq!((&loss["EndedAt"], &loss["EndedBy"]), (&json!(ZERO_TIME), &json!("")));
    assert_ne!(loss["Since"], ZERO_TIME);
    let silent = server.get(&format!("/v1/node/{}", nodes[0])).await.ok();
    assert!(silent["StatusDescription"].as_str().unwrap().starts_with("down since 2"), "{silent}");

    let confirm = format!("{path}/confirm");
    server.put(&confirm, &json!({ "Actor": "alice@web1" })).await.ok();
    let ended = server.get(path).await.ok();
    assert_eq!((&ended["Active"], &ended["StillDown"]), (&json!(false), &json!(3)));
    assert_eq!(ended["EndedBy"], "alice@web1");
    assert_eq!(ended["EndedByVerified"], false);
    assert_ne!(ended["EndedAt"], ZERO_TIME);
    assert_eq!(server.put(&confirm, &json!({})).await.status, 404);
    server.stop().await;
}
