//! Jobs that run once on every node.

use serde_json::json;

use super::{Stage, ids, job, nodes_of, task};
use crate::{
    harness::{PATIENCE, wait_for, wait_until},
    recompute::{list_of, text},
};

/// Issue: a system job has one allocation per node, also on a new one, in place when it can be, and none after its stop
/// (NS-01, NS-02, NS-04, NS-05, NS-16, Y1, Y2).
#[test]
fn a_system_job_runs_once_on_every_node() {
    let stage = Stage::start(1);
    let _agents = [stage.node("one", &[]), stage.node("two", &[])];
    let mut logger = job("system", "logger", 1);
    let evaluation = stage.schedule(&logger);
    assert_eq!(text(&evaluation, "Status"), "complete");
    let two = stage.await_running("logger", 2);
    assert_eq!(nodes_of(&two), ["one", "two"]);

    let _three = stage.node("three", &[("node_class", "\"late\"")]);
    let three = stage.await_running("logger", 3);
    assert_eq!(nodes_of(&three), ["one", "three", "two"]);
    assert!(two.iter().all(|one| ids(&three).contains(&text(one, "ID"))), "none was moved");

    logger["Priority"] = 80.into();
    stage.schedule(&logger);
    let updated = stage.await_live("all have the new version", "logger", |live| {
        live.iter().all(|one| one["JobVersion"] == 1)
    });
    let (mut old, mut new) = (ids(&three), ids(&updated));
    old.sort_unstable();
    new.sort_unstable();
    assert_eq!(old, new, "a priority changes in place");

    logger["Constraints"] =
        json!([{ "LTarget": "${node.class}", "Operand": "=", "RTarget": "late" }]);
    stage.schedule(&logger);
    assert_eq!(nodes_of(&stage.await_running("logger", 1)), ["three"]);
    assert!(stage.blocked("logger").is_empty(), "filtered nodes are not waited for (NS-07)");

    stage.stop("logger", false);
    stage.await_ended("logger");
    stage.finish();
}

/// Issue: sysbatch runs to its end once on every node, and on a new node (Y5).
#[test]
fn a_sysbatch_job_ends_once_on_every_node() {
    let stage = Stage::start(1);
    let _agents = [stage.node("one", &[]), stage.node("two", &[])];
    let mut sweep = job("sysbatch", "sweep", 1);
    stage.schedule(&sweep);
    let await_complete = |count: usize| {
        wait_for(&format!("{count} sweeps are complete"), PATIENCE, || {
            let all = stage.allocations("sweep");
            let complete = all.iter().all(|one| one["ClientStatus"] == "complete");
            (complete && all.len() == count).then_some(all)
        })
    };
    assert_eq!(nodes_of(&await_complete(2)), ["one", "two"]);
    let again = stage.client.put("/v1/job/sweep/evaluate", &json!({ "JobID": "sweep" })).ok();
    stage.await_evaluation(text(&again, "EvalID"));
    assert_eq!(stage.allocations("sweep").len(), 2, "what is done is not done again");
    let _three = stage.node("three", &[]);
    assert_eq!(nodes_of(&await_complete(3)), ["one", "three", "two"]);
    task(&mut sweep)["Config"]["run_for"] = "20ms".into();
    stage.schedule(&sweep);
    await_complete(6);
    stage.finish();
}

/// NS-08: the records of many nodes that gain room at once wake together; whichever of them is worked off first and whichever are superseded by it, every
/// node gets its instance. Once more for what is left when room comes to half of the nodes only.
#[test]
fn records_of_many_nodes_wake_together() {
    const NODES: usize = 24;
    let stage = Stage::start(3);
    let _crowd = stage.cluster.agent("crowd", Some(u32::try_from(NODES).unwrap()));
    stage.await_ready_nodes(NODES);
    let cpu = {
        let nodes = list_of(stage.client.get("/v1/nodes?resources=true").ok());
        nodes[0]["NodeResources"]["Cpu"]["CpuShares"].as_u64().unwrap()
    };
    let names: Vec<String> = {
        let nodes = list_of(stage.client.get("/v1/nodes").ok());
        nodes.iter().map(|node| text(node, "Name").to_owned()).collect()
    };
    for (half, nodes) in names.chunks(NODES / 2).enumerate() {
        let mut filler = job("system", &format!("filler-{half}"), 1);
        task(&mut filler)["Resources"]["CPU"] = (cpu - 50).into();
        let pattern = format!("^({})$", nodes.join("|"));
        filler["Constraints"] = json!([{
            "LTarget": "${node.unique.name}", "Operand": "regexp", "RTarget": pattern,
        }]);
        stage.schedule(&filler);
        stage.await_running(&format!("filler-{half}"), NODES / 2);
    }
    let logger = job("system", "logger", 1);
    stage.schedule(&logger);
    assert_eq!(stage.blocked("logger").len(), NODES);
    for half in 0..2 {
        stage.stop(&format!("filler-{half}"), true);
        stage.await_running("logger", NODES / 2 * (half + 1));
        wait_until("the others wait", PATIENCE, || {
            stage.blocked("logger").len() == NODES / 2 * (1 - half)
        });
    }
    stage.finish();
}

/// NS-08: two exhausted nodes have a blocked evaluation each; what frees either retries that one, and only there.
#[test]
fn every_exhausted_node_waits_for_itself() {
    let stage = Stage::start(1);
    let small = [("resources.cpu_mhz", "1000")];
    let _agents = [stage.node("one", &small), stage.node("two", &small)];
    for node in ["one", "two"] {
        let mut full = job("service", &format!("full-{node}"), 1);
        full["Constraints"] =
            json!([{ "LTarget": "${node.unique.name}", "Operand": "=", "RTarget": node }]);
        task(&mut full)["Resources"]["CPU"] = 900.into();
        stage.schedule(&full);
        stage.await_running(&format!("full-{node}"), 1);
    }
    let mut logger = job("system", "logger", 1);
    task(&mut logger)["Resources"]["CPU"] = 200.into();
    let evaluation = stage.schedule(&logger);
    let failed = &evaluation["FailedTGAllocs"]["group"];
    assert_eq!(failed["CoalescedFailures"], 1, "{evaluation}");
    assert_eq!(failed["NodesExhausted"], 1, "of the first one: {evaluation}");
    assert_eq!(evaluation["QueuedAllocations"], json!({ "group": 2 }));
    assert!(stage.live("logger").is_empty());
    let mut blocked: Vec<String> =
        stage.blocked("logger").iter().map(|one| text(one, "NodeID").to_owned()).collect();
    blocked.sort_unstable();
    let mut nodes = [stage.node_id("one"), stage.node_id("two")];
    nodes.sort_unstable();
    assert_eq!(blocked, nodes);

    stage.stop("full-two", true);
    assert_eq!(nodes_of(&stage.await_running("logger", 1)), ["two"]);
    stage.await_settled();
    let left: Vec<String> =
        stage.blocked("logger").iter().map(|one| text(one, "NodeID").to_owned()).collect();
    assert_eq!(left, [stage.node_id("one")]);

    stage.stop("full-one", true);
    assert_eq!(nodes_of(&stage.await_running("logger", 2)), ["one", "two"]);
    wait_until("nothing is blocked", PATIENCE, || stage.blocked("logger").is_empty());
    stage.finish();
}

/// On full nodes a system job of higher priority evicts the fewest of the lowest priority, which
/// block with their reason and come back once there is room (NS-09, S18).
#[test]
fn a_system_job_evicts_what_has_a_lower_priority() {
    const NODES: usize = 10;
    let stage = Stage::start(3);
    let _crowd = stage.cluster.agent("crowd", Some(u32::try_from(NODES).unwrap()));
    stage.await_ready_nodes(NODES);
    let nodes = list_of(stage.client.get("/v1/nodes?resources=true").ok());
    let cpu = nodes[0]["NodeResources"]["Cpu"]["CpuShares"].as_u64().unwrap();
    for (name, priority, mhz) in [("big", 50, cpu - 400), ("little", 30, 300)] {
        let mut filler = job("service", name, NODES.try_into().unwrap());
        filler["Priority"] = priority.into();
        task(&mut filler)["Resources"]["CPU"] = mhz.into();
        stage.schedule(&filler);
        stage.await_running(name, NODES);
    }
    let mut logger = job("system", "logger", 1);
    logger["Priority"] = 80.into();
    task(&mut logger)["Resources"]["CPU"] = 350.into();
    stage.schedule(&logger);
    let placed = stage.await_running("logger", NODES);
    assert_eq!(stage.live("big").len(), NODES, "the higher priority stays");
    for row in &placed {
        let own = stage.client.get(&format!("/v1/allocation/{}", text(row, "ID"))).ok();
        let victims = own["PreemptedAllocations"].as_array().unwrap();
        assert_eq!(victims.len(), 1, "{own}");
        let path = format!("/v1/allocation/{}", victims[0].as_str().unwrap());
        let victim = stage.client.get(&path).ok();
        assert_eq!(victim["PreemptedByAllocation"], row["ID"]);
        assert_eq!((text(&victim, "DesiredStatus"), text(&victim, "JobID")), ("evict", "little"));
    }
    stage.await_settled();
    let blocked = stage.blocked("little");
    assert_eq!(blocked.len(), 1);
    assert_eq!(blocked[0]["FailedTGAllocs"]["group"]["DimensionExhausted"]["cpu"], NODES);
    stage.stop("logger", true);
    stage.await_running("little", NODES);
    stage.finish();
}
