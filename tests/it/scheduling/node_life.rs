//! Nodes that live and die: what operators say stays, and a mass loss forgets nobody.

use serde_json::{Value, json};

use super::{SECOND, Stage, job, task};
use crate::{
    harness::{Client, PATIENCE, wait_until},
    recompute::{list_of, text},
};

impl Stage {
    /// Changes settings of node life.
    fn node_life(&self, settings: &Value) {
        let path = "/v1/operator/scheduler/configuration";
        self.client.put(path, &json!({ "NodeLife": settings })).ok();
    }
}

fn node_of(client: &Client, id: &str) -> Value {
    client.get(&format!("/v1/node/{id}")).ok()
}

fn nodes(client: &Client) -> Vec<Value> {
    list_of(client.get("/v1/nodes").ok())
}

/// A node that an operator takes out of service during a drain stays out: over the death of the
/// leader, a restart of its agent, the end of the drain, reaping and its return. Every server shows
/// why (SC-17: only an operator takes that back).
#[test]
fn offline_outlives_everything_but_an_operators_word() {
    let mut stage = Stage::start(3);
    stage.node_life(&json!({ "LostGraceMs": 1_000 }));
    let mut one = stage.node("one", &[]);
    let id = stage.node_id("one");
    let mut long = job("batch", "long", 1);
    task(&mut long)["Config"]["run_for"] = "24h".into();
    stage.schedule(&long);
    stage.await_running("long", 1);
    let drain = json!({ "DrainSpec": { "Deadline": 3_600 * SECOND } });
    stage.client.put(&format!("/v1/node/{id}/drain"), &drain).ok();
    let offline =
        json!({ "Eligibility": "ineligible", "Reason": "broken fan", "Actor": "alice@web1" });
    stage.client.put(&format!("/v1/node/{id}/eligibility"), &offline).ok();

    let leader = stage.cluster.leader();
    stage.cluster.kill(leader);
    let survivor = stage.cluster.others(&[leader])[0];
    let client = stage.cluster.client(survivor);
    one.kill();
    one.restart();
    wait_until("the agent is heard by the new leader", PATIENCE, || {
        client.get("/v1/status/leader").status == 200 && node_of(&client, &id)["Status"] == "ready"
    });
    let no_drain = json!({ "DrainSpec": Value::Null, "MarkEligible": true });
    client.put(&format!("/v1/node/{id}/drain"), &no_drain).ok();
    assert_eq!(node_of(&client, &id)["SchedulingEligibility"], "ineligible");

    one.kill();
    wait_until("the node is reaped", PATIENCE, || nodes(&client).is_empty());
    stage.cluster.start_one(leader);
    stage.cluster.await_ready_all();
    for server in stage.cluster.all() {
        let rows = list_of(stage.cluster.client(server).get("/v1/nodes/offline").ok());
        let rows: Vec<_> = rows.iter().map(|row| (text(row, "ID"), text(row, "Reason"))).collect();
        assert_eq!(rows, [(&*id, "broken fan")]);
    }
    one.restart();
    wait_until("the node is back", PATIENCE, || {
        client.get(&format!("/v1/node/{id}")).json["Status"] == "ready"
    });
    for server in stage.cluster.all() {
        let node = node_of(&stage.cluster.client(server), &id);
        assert_eq!(node["SchedulingEligibility"], "ineligible");
        let eligibility = &node["Eligibility"];
        assert_eq!(
            (&eligibility["By"], &eligibility["ByVerified"]),
            (&json!("alice@web1"), &json!(false))
        );
        assert_eq!(eligibility["Reason"], "broken fan");
        assert_eq!(node["Incarnation"], 2, "it was forgotten in between");
    }
    let online = json!({ "Eligibility": "eligible" });
    client.put(&format!("/v1/node/{id}/eligibility"), &online).ok();
    stage.await_running("long", 1);
    stage.finish();
}

/// Half of the nodes go silent at once: that is said, their allocations are replaced, and none is
/// reaped. When they are back they are who they were. When they do not come back, an operator
/// confirms the loss, and they are reaped (SC-23).
#[test]
fn a_mass_loss_forgets_nobody() {
    let stage = Stage::start(3);
    stage.node_life(&json!({ "LostGraceMs": 1_000 }));
    let _west = stage.cluster.agent("west", Some(10));
    let mut east = stage.cluster.agent("east", Some(10));
    stage.await_ready_nodes(20);
    stage.schedule(&job("service", "web", 20));
    stage.await_running("web", 20);
    let mass_loss = || stage.client.get("/v1/operator/mass-loss");
    assert_eq!(mass_loss().status, 404);

    east.kill();
    wait_until("the mass loss is said", PATIENCE, || mass_loss().json["Active"] == true);
    wait_until("all of them are down", PATIENCE, || mass_loss().json["StillDown"] == 10);
    stage.await_running("web", 20);
    let is_down = |node: &Value| node["Status"] == "down";
    let down: Vec<Value> = nodes(&stage.client).into_iter().filter(is_down).collect();
    assert_eq!(down.len(), 10);
    for name in ["nodes.down", "nodes.ready", "nodes.mass_loss", "nodes.busy"] {
        assert_eq!(json!(stage.client.metric(name)), 10.0, "{name}");
    }
    wait_until("the leader's metrics have the steps of its machines", PATIENCE, || {
        let leader = stage.cluster.client(stage.cluster.leader());
        let samples = list_of(leader.get("/v1/metrics").ok()["Samples"].clone());
        samples.iter().any(|sample| {
            sample["Name"] == "nomad.leader.step" && sample["Count"].as_u64() > Some(0)
        })
    });
    // A suspension that ends by time says that the leader has looked at what was due since.
    let all = nodes(&stage.client);
    let other = all.iter().find(|node| !is_down(node)).map(|node| text(node, "ID")).unwrap();
    let suspend = json!({ "Reason": "clock", "For": 3 * SECOND });
    stage.client.put(&format!("/v1/node/{other}/suspend"), &suspend).ok();
    assert_eq!(node_of(&stage.client, other)["Health"]["Status"], "suspended");
    wait_until("the suspension is over", PATIENCE, || {
        node_of(&stage.client, other)["Health"]["Status"] == "ok"
    });
    assert_eq!(nodes(&stage.client).len(), 20, "nothing was reaped");

    east.restart();
    wait_until("the mass loss is over", PATIENCE, || mass_loss().json["Active"] == false);
    stage.await_ready_nodes(20);
    for row in &down {
        let node = node_of(&stage.client, text(row, "ID"));
        assert_eq!((&node["Incarnation"], &node["CreateIndex"]), (&json!(1), &row["CreateIndex"]));
    }

    east.kill();
    wait_until("the second mass loss is said", PATIENCE, || mass_loss().json["StillDown"] == 10);
    stage.client.put("/v1/operator/mass-loss/confirm", &json!({ "Actor": "alice@web1" })).ok();
    assert_eq!(mass_loss().json["EndedBy"], "alice@web1");
    wait_until("they are reaped", PATIENCE, || nodes(&stage.client).len() == 10);
    stage.finish();
}

/// Readiness from end to end: a check that fails keeps the node initializing with its reason, one
/// that succeeds makes it ready without a restart, a fatal one suspends it, and one that begins to
/// fail after a task suspends it until the next success.
#[test]
fn a_node_is_as_ready_as_its_check_says() {
    let stage = Stage::start(1);
    let file = stage.cluster.directory().join("check");
    let say = |text: &str| {
        let new = file.with_extension("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(&new, &file).unwrap();
    };
    say("no disk\n1");
    let script = format!("head -n 1 {0}; exit $(tail -n 1 {0})", file.display());
    let command = format!("[\"/bin/sh\", \"-c\", \"{script}\"]");
    let keys = [
        ("readiness.command", &*command),
        ("readiness.interval_ms", "200"),
        ("readiness.after_task", "\"always\""),
    ];
    let _one = stage.cluster.agent_with("one", None, &keys);
    let is = |wanted: &dyn Fn(&Value) -> bool| {
        let node = stage.find_node("one").map(|row| text(&row, "ID").to_owned());
        node.is_some_and(|id| wanted(&node_of(&stage.client, &id)))
    };
    wait_until("the node says why it is not ready", PATIENCE, || {
        is(&|node| node["Status"] == "initializing" && node["Readiness"]["Reason"] == "no disk")
    });
    say("fine\n0");
    wait_until("the node is ready", PATIENCE, || is(&|node| node["Status"] == "ready"));

    say("hot\n1");
    stage.schedule(&job("batch", "short", 1));
    wait_until("the node is unhealthy", PATIENCE, || {
        is(&|node| {
            let health = &node["Health"];
            health["Reason"] == "unhealthy"
                && health["Detail"] == "hot"
                && node["Status"] == "ready"
        })
    });
    say("fine\n0");
    wait_until("the node is back", PATIENCE, || is(&|node| node["Health"]["Status"] == "ok"));

    say("memory\n99");
    stage.schedule(&job("batch", "shorter", 1));
    wait_until("the node wants a person", PATIENCE, || {
        is(&|node| {
            node["Health"]["Reason"] == "readiness-fatal"
                && text(node, "StatusDescription").contains("memory; tried again at 20")
        })
    });
    say("fine\n0");
    let id = stage.node_id("one");
    stage.client.put(&format!("/v1/node/{id}/unsuspend"), &json!({ "Reason": "replaced" })).ok();
    wait_until("the node is back by hand", PATIENCE, || {
        is(&|node| node["Health"]["Status"] == "ok" && node["Status"] == "ready")
    });
    stage.finish();
}

/// Many failures that are the nodes' own: one strike each, at most a quarter suspended, and one
/// comes back by hand.
#[test]
fn nodes_that_fail_their_work_are_suspended_up_to_a_share() {
    let stage = Stage::start(1);
    let _agent = stage.cluster.agent("sim", Some(8));
    stage.await_ready_nodes(8);
    for name in ["bad", "worse"] {
        let mut bad = job("batch", name, 40);
        task(&mut bad)["Config"] = json!({ "node_failure": "no executor" });
        bad["TaskGroups"][0]["ReschedulePolicy"] = json!({ "Attempts": 0, "Unlimited": false });
        bad["Spreads"] = json!([{ "Attribute": "${node.unique.name}", "Weight": 100 }]);
        stage.schedule(&bad);
    }
    let all = || -> Vec<Value> {
        let rows = nodes(&stage.client);
        rows.iter().map(|row| node_of(&stage.client, text(row, "ID"))).collect()
    };
    wait_until("every node has its strike", PATIENCE, || {
        all().iter().all(|node| node["Health"]["Strikes"] == 1)
    });
    let is_suspended = |node: &&Value| node["Health"]["Reason"] == "flaky";
    let now = all();
    let suspended: Vec<&Value> = now.iter().filter(is_suspended).collect();
    assert_eq!(suspended.len(), 2, "a quarter of eight");
    let id = text(suspended[0], "ID");
    stage.client.put(&format!("/v1/node/{id}/unsuspend"), &json!({ "Reason": "mended" })).ok();
    wait_until("it is back", PATIENCE, || {
        let node = node_of(&stage.client, id);
        node["Status"] == "ready" && node["Health"]["Status"] == "ok"
    });
    stage.finish();
}
