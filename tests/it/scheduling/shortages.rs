//! A node whose machine is short: the servers place nothing more there, say why, and fail nothing by it.

use rustix::process::Resource;

use super::*;
use crate::shortages::Squeezed;

#[test]
fn a_node_that_is_short_gets_nothing_new_and_is_not_suspended() {
    let stage = Stage::start(1);
    let agent = stage.node("one", &[]);
    let mut running = job("service", "running", 1);
    run_script(&mut running, "sleep 1000");
    stage.schedule(&running);
    stage.await_running("running", 1);

    let squeezed = Squeezed::new(agent.pid(), Resource::Nofile);
    let node = || stage.find_node("one").unwrap();
    let reason = || text(&node()["Shortage"], "Reason").to_owned();
    wait_until("the node says so", PATIENCE, || reason().contains("open files"));
    assert!(text(&node(), "StatusDescription").contains("short of resources: open files"));
    let mut new = job("service", "new", 2);
    run_script(&mut new, "sleep 1000");
    let evaluation = stage.schedule(&new);
    let metrics = &evaluation["FailedTGAllocs"]["group"];
    let filtered = metrics["ConstraintFiltered"].as_object().unwrap();
    assert!(filtered.keys().any(|why| why.contains("short of resources")), "{metrics}");
    assert_eq!(stage.allocations("new").len(), 0);
    stage.await_running("running", 1);

    squeezed.lift();
    wait_until("the node is short no more", PATIENCE, || reason().is_empty());
    stage.await_running("new", 2);
    for name in ["running", "new"] {
        let all = stage.allocations(name);
        assert!(all.iter().all(|one| text(one, "ClientStatus") == "running"), "{all:?}");
    }
    let node = stage.client.get(&format!("/v1/node/{}", stage.node_id("one"))).ok();
    assert_eq!((text(&node["Health"], "Status"), &node["Health"]["Strikes"]), ("ok", &json!(0)));
    assert_eq!(text(&node, "Status"), "ready");
    let said = |words: &str| {
        let events = node["Events"].as_array().unwrap();
        events.iter().any(|event| text(event, "Message").contains(words))
    };
    assert!(said("refuses new work") && said("short of nothing any more"), "{node}");
    stage.finish();
    // Tasks outlive their agent.
    for name in ["running", "new"] {
        stage.stop(name, false);
        stage.await_ended(name);
    }
    drop(agent);
}
