//! Nodes that go, come back, and are drained.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{SECOND, Stage, group, ids, job, nodes_of};
use crate::{
    harness::{PATIENCE, wait_until},
    recompute::text,
};

/// Issue: a node whose agent is killed goes down, its allocations are lost and replaced elsewhere; when it comes back it takes part again and
/// runs nothing twice (S14, L8, R4, NS-06).
#[test]
fn a_dead_node_is_replaced_and_comes_back() {
    let stage = Stage::start(1);
    let _one = stage.node("one", &[]);
    let mut two = stage.node("two", &[]);
    let mut web = job("service", "web", 4);
    web["Constraints"] = json!([{ "Operand": "distinct_hosts", "RTarget": "false" }]);
    web["Spreads"] = json!([{ "Attribute": "${node.unique.name}", "Weight": 100 }]);
    stage.schedule(&web);
    stage.schedule(&job("system", "logger", 1));
    let before = stage.await_running("web", 4);
    assert_eq!(nodes_of(&before), ["one", "one", "two", "two"]);
    stage.await_running("logger", 2);

    two.kill();
    stage.await_node("two", "down");
    let after = stage.await_running_on("web", &["one"; 4]);
    let lost: Vec<Value> =
        stage.allocations("web").into_iter().filter(|one| text(one, "NodeName") == "two").collect();
    assert_eq!(lost.len(), 2);
    assert!(lost.iter().all(|one| one["ClientStatus"] == "lost" && one["DesiredStatus"] == "stop"));
    stage.await_running_on("logger", &["one"]);
    stage.await_settled();
    assert_eq!(stage.allocations("logger").len(), 2, "no system allocation moves elsewhere");

    two.restart();
    stage.await_node("two", "ready");
    stage.await_running_on("logger", &["one", "two"]);
    let still = stage.await_running("web", 4);
    assert_eq!(ids(&still), ids(&after), "the replacements stay");
    stage.await_ended_of(&lost);
    stage.finish();
}

impl Stage {
    /// Waits until these allocations are known to have ended.
    #[track_caller]
    fn await_ended_of(&self, allocations: &[Value]) {
        for id in ids(allocations) {
            wait_until(&format!("allocation {id} ended"), PATIENCE, || {
                let allocation = self.client.get(&format!("/v1/allocation/{id}")).ok();
                matches!(text(&allocation, "ClientStatus"), "complete" | "failed" | "lost")
            });
        }
    }

    #[track_caller]
    fn drain(&self, node: &str, spec: Value) {
        let path = format!("/v1/node/{}/drain", self.node_id(node));
        self.client.put(&path, &json!({ "DrainSpec": spec })).ok();
    }

    #[track_caller]
    fn await_drained(&self, node: &str) {
        wait_until(&format!("{node} is drained"), PATIENCE, || {
            let node = self.find_node(node).unwrap();
            node["Drain"] == false && node["SchedulingEligibility"] == "ineligible"
        });
    }
}

/// Issue: a drain moves services by `migrate.max_parallel`, batch jobs may end, system jobs go last; afterwards the node is empty,
/// ineligible, and takes work again when it is made eligible (D1, S14, Y3).
#[test]
fn a_drain_moves_a_few_at_a_time() {
    let stage = Stage::start(1);
    let _one = stage.node("one", &[]);
    let mut web = job("service", "web", 4);
    group(&mut web)["Migrate"]["MaxParallel"] = 2.into();
    stage.schedule(&web);
    stage.schedule(&job("system", "logger", 1));
    let before = stage.await_running("web", 4);
    stage.await_running("logger", 1);
    let _two = stage.node("two", &[]);
    stage.await_running("logger", 2);

    stage.drain("one", json!({ "Deadline": 3600 * SECOND, "IgnoreSystemJobs": false }));
    let after = stage.await_live("all have moved", "web", |live| {
        live.len() == 4
            && live.iter().all(|one| one["NodeName"] == "two" && one["ClientStatus"] == "running")
    });
    let mut steps: Vec<u64> =
        after.iter().map(|one| one["CreateIndex"].as_u64().unwrap()).collect();
    steps.dedup();
    let distinct: BTreeSet<u64> = steps.iter().copied().collect();
    assert!(distinct.len() >= 2, "at most two at a time: {steps:?}");
    for old in &before {
        let old = stage.client.get(&format!("/v1/allocation/{}", text(old, "ID"))).ok();
        assert_eq!(old["DesiredStatus"], "stop");
        assert!(after.iter().any(|new| new["ID"] == old["NextAllocation"]), "{old}");
    }
    stage.await_drained("one");
    stage.await_running_on("logger", &["two"]);

    let path = format!("/v1/node/{}/eligibility", stage.node_id("one"));
    stage.client.put(&path, &json!({ "Eligibility": "eligible" })).ok();
    stage.await_running_on("logger", &["one", "two"]);
    stage.finish();
}

/// Issue: the deadline of a drain forces what is left: a service that nobody can take over, and a batch job; what has no other place is
/// blocked and runs when the node takes work again (D1).
#[test]
fn a_drain_is_forced_at_its_deadline() {
    let stage = Stage::start(1);
    let _one = stage.node("one", &[]);
    let mut long = job("batch", "long", 1);
    super::task(&mut long)["Config"]["run_for"] = "24h".into();
    stage.schedule(&long);
    let mut web = job("service", "web", 3);
    group(&mut web)["Migrate"]["MaxParallel"] = 1.into();
    stage.schedule(&web);
    stage.await_running("long", 1);
    stage.await_running("web", 3);

    stage.drain("one", json!({ "Deadline": SECOND * 2, "IgnoreSystemJobs": false }));
    stage.await_drained("one");
    assert!(stage.live("web").is_empty());
    assert!(stage.live("long").is_empty());
    stage.await_settled();
    assert_eq!(stage.blocked("web").len(), 1);

    let path = format!("/v1/node/{}/eligibility", stage.node_id("one"));
    stage.client.put(&path, &json!({ "Eligibility": "eligible" })).ok();
    stage.await_running("web", 3);
    stage.drain("one", json!({ "Deadline": -1 }));
    stage.await_drained("one");
    assert!(stage.live("web").is_empty());
    stage.finish();
}

/// Issue: a node that runs nothing goes down and comes back like any other, without knocking at the servers all the time.
#[test]
fn an_idle_node_comes_back() {
    let stage = Stage::start(1);
    let mut one = stage.node("one", &[]);
    let mut simulated = stage.cluster.agent("simulated", Some(1));
    stage.await_node("simulated-0001", "ready");
    one.kill();
    simulated.kill();
    stage.await_node("one", "down");
    stage.await_node("simulated-0001", "down");
    one.restart();
    simulated.restart();
    stage.await_node("one", "ready");
    stage.await_node("simulated-0001", "ready");
    for agent in [&one, &simulated] {
        assert_eq!(agent.log().matches(" registered ").count(), 2, "{}", agent.log());
    }
    stage.finish();
}

/// Issue: an ineligible node keeps what it runs and gets nothing new; a purged node's allocations are placed elsewhere (P8, Y3).
#[test]
fn an_ineligible_node_keeps_what_it_runs() {
    let stage = Stage::start(1);
    let mut one = stage.node("one", &[]);
    stage.schedule(&job("service", "old", 2));
    let old = stage.await_running("old", 2);
    let path = format!("/v1/node/{}/eligibility", stage.node_id("one"));
    stage.client.put(&path, &json!({ "Eligibility": "ineligible" })).ok();
    stage.schedule(&job("service", "new", 2));
    assert!(stage.live("new").is_empty());
    assert_eq!(ids(&stage.await_running("old", 2)), ids(&old));
    let _two = stage.node("two", &[]);
    assert_eq!(nodes_of(&stage.await_running("new", 2)), ["two", "two"]);
    assert_eq!(ids(&stage.await_running("old", 2)), ids(&old));

    one.kill();
    stage.await_node("one", "down");
    stage.await_running_on("old", &["two", "two"]);
    let purge = format!("/v1/node/{}/purge", stage.node_id("one"));
    stage.client.put(&purge, &json!({})).ok();
    assert!(stage.find_node("one").is_none());
    stage.finish();
}
