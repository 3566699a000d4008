//! What does not fit, or not there: constraints, ports, and evaluations that wait for room.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::{Stage, group, ids, job, nodes_of, task};
use crate::recompute::{self, text};

/// Issue: blocked, then unblocked when capacity appears: by a new node, and by a job that stops (S2, S6, U5).
#[test]
fn a_blocked_job_runs_when_there_is_room() {
    let stage = Stage::start(1);
    let small = [("resources.cpu_mhz", "1000"), ("resources.memory_mb", "1000")];
    let _one = stage.node("one", &small);
    let mut first = job("service", "first", 3);
    task(&mut first)["Resources"]["CPU"] = 400.into();
    let evaluation = stage.schedule(&first);
    assert_eq!(evaluation["QueuedAllocations"], json!({ "group": 1 }));
    let failed = &evaluation["FailedTGAllocs"]["group"];
    assert_eq!(failed["NodesExhausted"], 1);
    assert_eq!(failed["DimensionExhausted"], json!({ "cpu": 1 }));
    stage.await_running("first", 2);
    assert_eq!(stage.blocked("first").len(), 1);

    let _two = stage.node("two", &small);
    let three = stage.await_running("first", 3);
    assert_eq!(nodes_of(&three), ["one", "one", "two"]);
    stage.await_settled();
    assert!(stage.blocked("first").is_empty());

    let mut second = job("service", "second", 4);
    task(&mut second)["Resources"]["MemoryMB"] = 450.into();
    stage.schedule(&second);
    stage.await_running("second", 4);
    let mut third = job("batch", "third", 2);
    task(&mut third)["Resources"]["MemoryMB"] = 450.into();
    stage.schedule(&third);
    assert!(stage.live("third").is_empty());
    assert_eq!(stage.blocked("third").len(), 1);
    stage.stop("second", false);
    let done = crate::harness::wait_for("the third job ran", crate::harness::PATIENCE, || {
        let all = stage.allocations("third");
        (all.len() == 2 && all.iter().all(|one| one["ClientStatus"] == "complete")).then_some(all)
    });
    assert_eq!(done.len(), 2);
    stage.finish();
}

fn constrained(id: &str, left: &str, operand: &str, right: &str) -> Value {
    let mut job = job("service", id, 1);
    job["Constraints"] = json!([{ "LTarget": left, "Operand": operand, "RTarget": right }]);
    task(&mut job)["Resources"]["CPU"] = 10.into();
    job
}

/// Issue: every kind of constraint picks its nodes; a job that fits nowhere says why and runs once a node fits (F4, F5, S7, U4).
#[test]
fn constraints_pick_nodes() {
    let stage = Stage::start(1);
    let _blue = stage.node("blue", &[("node_class", "\"blue\""), ("meta.rack", "\"r1\"")]);
    let _red = stage.node(
        "red",
        &[("node_class", "\"red\""), ("meta.rack", "\"r2\""), ("meta.roles", "\"a,b,c\"")],
    );
    let cases = [
        ("equal", "${meta.rack}", "=", "r1", "blue"),
        ("unequal", "${meta.rack}", "!=", "r1", "red"),
        ("class", "${node.class}", "=", "red", "red"),
        ("regexp", "${meta.rack}", "regexp", "^r[2-9]$", "red"),
        ("order", "${meta.rack}", ">", "r1", "red"),
        ("contains", "${meta.roles}", "set_contains", "a,c", "red"),
        ("any", "${meta.roles}", "set_contains_any", "x,b", "red"),
        ("is-set", "${meta.roles}", "is_set", "", "red"),
        ("not-set", "${meta.roles}", "is_not_set", "", "blue"),
        ("name", "${node.unique.name}", "=", "blue", "blue"),
    ];
    for (id, left, operand, right, _) in cases {
        stage.register(&constrained(id, left, operand, right));
    }
    for (id, _, operand, _, node) in cases {
        assert_eq!(nodes_of(&stage.await_running(id, 1)), [node], "{operand}");
    }
    let nowhere = stage.schedule(&constrained("nowhere", "${meta.rack}", "=", "r3"));
    let failed = &nowhere["FailedTGAllocs"]["group"];
    assert_eq!(failed["NodesFiltered"], 2, "{nowhere}");
    assert_eq!(failed["ConstraintFiltered"], json!({ "${meta.rack} = r3": 2 }));
    assert_eq!(stage.blocked("nowhere").len(), 1);

    let mut apart = job("service", "apart", 3);
    apart["Constraints"] = json!([{ "Operand": "distinct_hosts", "RTarget": "true" }]);
    stage.schedule(&apart);
    assert_eq!(nodes_of(&stage.await_running("apart", 2)), ["blue", "red"]);
    assert_eq!(stage.blocked("apart").len(), 1);

    let _green = stage.node("green", &[("node_class", "\"green\""), ("meta.rack", "\"r3\"")]);
    assert_eq!(nodes_of(&stage.await_running("nowhere", 1)), ["green"]);
    assert_eq!(nodes_of(&stage.await_running("apart", 3)), ["blue", "green", "red"]);
    stage.finish();
}

/// Issue: a static port is held once per node, dynamic ports are distinct and in the node's range; freed ports are given again (F2, U5).
#[test]
fn ports_are_given_once_per_node() {
    let stage = Stage::start(1);
    let range = [("ports.dynamic_min", "21000"), ("ports.dynamic_max", "21004")];
    let _one = stage.node("one", &range);
    let mut fixed = job("service", "fixed", 2);
    group(&mut fixed)["Networks"] =
        json!([{ "Mode": "host", "ReservedPorts": [{ "Label": "http", "Value": 8080 }] }]);
    let evaluation = stage.schedule(&fixed);
    let failed = &evaluation["FailedTGAllocs"]["group"];
    assert_eq!(failed["NodesExhausted"], 1, "{evaluation}");
    let held = stage.await_running("fixed", 1);
    assert_eq!(recompute::ports(&held[0]), [8080]);

    let mut web = job("service", "web", 3);
    group(&mut web)["Networks"] = json!([{
        "Mode": "host", "DynamicPorts": [{ "Label": "http" }, { "Label": "admin" }],
    }]);
    stage.schedule(&web);
    let two = stage.await_running("web", 2);
    let ports: BTreeSet<i64> = two.iter().flat_map(recompute::ports).collect();
    assert_eq!(ports.len(), 4, "{ports:?}");
    assert!(ports.iter().all(|port| (21_000..=21_004).contains(port)), "{ports:?}");
    assert_eq!(stage.blocked("web").len(), 1, "one port is left where two are needed");

    let mut rival = job("service", "rival", 1);
    group(&mut rival)["Networks"] =
        json!([{ "Mode": "host", "ReservedPorts": [{ "Label": "http", "Value": 8080 }] }]);
    stage.schedule(&rival);
    assert_eq!(stage.blocked("rival").len(), 1);
    stage.stop("fixed", false);
    let held = stage.await_running("rival", 1);
    assert_eq!(recompute::ports(&held[0]), [8080]);

    let _two = stage.node("two", &range);
    let three = stage.await_running("web", 3);
    assert_eq!(nodes_of(&three), ["one", "one", "two"]);
    assert!(two.iter().all(|one| ids(&three).contains(&text(one, "ID"))));
    stage.finish();
}
