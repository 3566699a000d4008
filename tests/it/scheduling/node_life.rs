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

fn node(client: &Client, id: &str) -> Value {
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
        client.get("/v1/status/leader").status == 200 && node(&client, &id)["Status"] == "ready"
    });
    let no_drain = json!({ "DrainSpec": Value::Null, "MarkEligible": true });
    client.put(&format!("/v1/node/{id}/drain"), &no_drain).ok();
    assert_eq!(node(&client, &id)["SchedulingEligibility"], "ineligible");

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
        let node = node(&stage.cluster.client(server), &id);
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
    // A suspension that ends by time says that the leader has looked at what was due since.
    let all = nodes(&stage.client);
    let other = all.iter().find(|node| !is_down(node)).map(|node| text(node, "ID")).unwrap();
    let suspend = json!({ "Reason": "clock", "For": 3 * SECOND });
    stage.client.put(&format!("/v1/node/{other}/suspend"), &suspend).ok();
    assert_eq!(node(&stage.client, other)["Health"]["Status"], "suspended");
    wait_until("the suspension is over", PATIENCE, || {
        node(&stage.client, other)["Health"]["Status"] == "ok"
    });
    assert_eq!(nodes(&stage.client).len(), 20, "nothing was reaped");

    east.restart();
    wait_until("the mass loss is over", PATIENCE, || mass_loss().json["Active"] == false);
    stage.await_ready_nodes(20);
    for row in &down {
        let node = node(&stage.client, text(row, "ID"));
        assert_eq!((&node["Incarnation"], &node["CreateIndex"]), (&json!(1), &row["CreateIndex"]));
    }

    east.kill();
    wait_until("the second mass loss is said", PATIENCE, || mass_loss().json["StillDown"] == 10);
    stage.client.put("/v1/operator/mass-loss/confirm", &json!({ "Actor": "alice@web1" })).ok();
    assert_eq!(mass_loss().json["EndedBy"], "alice@web1");
    wait_until("they are reaped", PATIENCE, || nodes(&stage.client).len() == 10);
    stage.finish();
}
