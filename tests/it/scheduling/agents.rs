//! Tasks as real processes behind a real agent: what survives the agent's death, restarts, stops and logs.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::{SECOND, Stage, group, ids, job, run_script, task};
use crate::{
    harness::{Client, Options, PATIENCE, wait_for, wait_until},
    recompute::text,
};

/// A stage whose nodes may be silent for a while.
fn patient_stage(servers: usize) -> Stage {
    Stage::of(Options::new(servers).with("heartbeat.ttl_min_ms", 20_000))
}

fn await_file(path: &Path) -> String {
    wait_for(&format!("{} is written", path.display()), PATIENCE, || {
        fs::read_to_string(path).ok().filter(|text| text.ends_with('\n'))
    })
}

fn is_alive(pid: &str) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", pid.trim()));
    status.is_ok_and(|status| !status.contains("State:\tZ"))
}

/// Issue: an agent killed with SIGKILL and restarted re-attaches to its tasks: same process, same allocation, and it can still stop it.
#[test]
fn a_restarted_agent_finds_its_tasks() {
    let stage = patient_stage(1);
    let mut agent = stage.node("one", &[]);
    let pid_file = stage.cluster.directory().join("pid");
    let mut web = job("service", "web", 1);
    run_script(&mut web, &format!("echo $$ > {}; exec sleep 600", pid_file.display()));
    stage.schedule(&web);
    let before = stage.await_running("web", 1);
    let pid = await_file(&pid_file);

    agent.kill();
    agent.restart();
    // Only an agent that is back can stop one and start another.
    let mut second = job("service", "second", 1);
    run_script(&mut second, "exec sleep 600");
    stage.schedule(&second);
    stage.await_running("second", 1);
    assert!(is_alive(&pid), "the task outlived its agent");
    assert_eq!(await_file(&pid_file), pid, "it was not started again");
    assert_eq!(ids(&stage.await_running("web", 1)), ids(&before));

    stage.stop("web", false);
    stage.stop("second", false);
    stage.await_ended("web");
    stage.await_ended("second");
    wait_until("the task is gone", PATIENCE, || !is_alive(&pid));
    stage.finish();
}

/// The events of a task that say it ended.
fn exits(allocation: &Value) -> Vec<i64> {
    let events = allocation["TaskStates"]["task"]["Events"].as_array().unwrap();
    let ended = events.iter().filter(|event| event["Type"] == "Terminated");
    ended.map(|event| event["ExitCode"].as_i64().unwrap()).collect()
}

/// Issue: a task that exits with 7 while its agent is dead is reported with 7.
#[test]
fn an_exit_without_an_agent_is_reported() {
    let stage = patient_stage(1);
    let mut agent = stage.node("one", &[]);
    let (pid_file, go) =
        (stage.cluster.directory().join("pid"), stage.cluster.directory().join("go"));
    let mut sums = job("batch", "sums", 1);
    group(&mut sums)["ReschedulePolicy"] = json!({ "Attempts": 0, "Unlimited": false });
    let script = format!(
        "echo $$ > {}; while [ ! -e {} ]; do sleep 0.05; done; exit 7",
        pid_file.display(),
        go.display()
    );
    run_script(&mut sums, &script);
    stage.schedule(&sums);
    stage.await_running("sums", 1);
    let pid = await_file(&pid_file);
    agent.kill();
    fs::write(&go, "").unwrap();
    wait_until("the task has ended", PATIENCE, || !is_alive(&pid));
    agent.restart();
    let ended = stage.await_ended("sums");
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["ClientStatus"], "failed");
    assert_eq!(exits(&ended[0]), [7]);
    stage.finish();
}

/// Issue: the restart policy restarts so often and then gives up; `alloc stop` replaces an allocation.
#[test]
fn tasks_restart_by_their_policy_and_stopped_allocations_are_replaced() {
    let stage = Stage::start(1);
    let _agent = stage.node("one", &[]);
    let mut fails = job("batch", "fails", 1);
    run_script(&mut fails, "exit 3");
    group(&mut fails)["RestartPolicy"] =
        json!({ "Attempts": 2, "Interval": SECOND * 600, "Delay": SECOND / 10, "Mode": "fail" });
    group(&mut fails)["ReschedulePolicy"] = json!({ "Attempts": 0, "Unlimited": false });
    stage.schedule(&fails);
    wait_until("the job failed", PATIENCE, || {
        stage.allocations("fails").iter().all(|one| one["ClientStatus"] == "failed")
    });
    let ended = stage.allocations("fails");
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["TaskStates"]["task"]["Restarts"], 2);
    assert_eq!(exits(&ended[0]), [3, 3, 3]);

    stage.schedule(&job("service", "web", 2));
    let before = stage.await_running("web", 2);
    let stopped = text(&before[0], "ID");
    let answer = stage.client.put(&format!("/v1/allocation/{stopped}/stop"), &json!({})).ok();
    stage.await_evaluation(text(&answer, "EvalID"));
    let after = stage.await_running("web", 2);
    assert!(!ids(&after).contains(&stopped));
    assert_eq!(after[1]["ID"], before[1]["ID"], "the other is left alone");
    let old = stage.client.get(&format!("/v1/allocation/{stopped}")).ok();
    assert_eq!(old["DesiredStatus"], "stop");
    assert_eq!(old["NextAllocation"], after[0]["ID"]);
    let new = stage.client.get(&format!("/v1/allocation/{}", text(&after[0], "ID"))).ok();
    assert_eq!(new["PreviousAllocation"], stopped);
    stage.finish();
}

/// Issue: `alloc logs` over any server reaches the agent; an agent that is gone is a clear error.
#[test]
fn logs_come_through_every_server() {
    let stage = Stage::start(3);
    let mut agent = stage.node("one", &[]);
    let mut speak = job("service", "speak", 1);
    run_script(&mut speak, "echo to stdout; echo to stderr >&2; exec sleep 600");
    task(&mut speak)["KillTimeout"] = SECOND.into();
    stage.schedule(&speak);
    let running = stage.await_running("speak", 1);
    let id = text(&running[0], "ID");
    let logs = |server: usize, kind: &str| {
        let path = format!("/v1/client/fs/logs/{id}?task=task&type={kind}&plain=true");
        stage.cluster.client(server).get(&path)
    };
    for server in stage.cluster.all() {
        for kind in ["stdout", "stderr"] {
            wait_until(&format!("{kind} is read over server {server}"), PATIENCE, || {
                logs(server, kind).text == format!("to {kind}\n")
            });
        }
    }
    assert_eq!(logs(0, "nothing").status, 400);
    let missing = "/v1/client/fs/logs/00000000-0000-0000-0000-000000000001?task=task&type=stdout";
    assert_eq!(stage.client.get(missing).status, 404);
    stage.stop("speak", false);
    stage.await_ended("speak");
    agent.kill();
    stage.await_node("one", "down");
    let answer = logs(0, "stdout");
    assert_eq!(answer.status, 502);
    assert!(answer.text.contains("is down: its agent cannot be asked"), "{}", answer.text);
    stage.finish();
}

/// Nomad's clients may be asked anything.
#[test]
fn an_agent_passes_on_what_servers_and_other_agents_answer() {
    let mut stage = Stage::start(3);
    let _agents = [stage.node("one", &[]), stage.node("two", &[])];
    stage.await_ready_nodes(2);
    let address = |name: &str| {
        let node = stage.client.get(&format!("/v1/node/{}", stage.node_id(name))).ok();
        text(&node, "HTTPAddr").parse().unwrap()
    };
    let one = Client::new(address("one"), PATIENCE);
    let this = one.get("/v1/agent/self").ok();
    assert_eq!(this["stats"]["client"]["node_id"], stage.node_id("one"));

    // Writes, reads, errors, waits.
    let mut speak = job("batch", "speak", 2);
    run_script(&mut speak, "echo $NOMAD_ALLOC_ID; exec sleep 600");
    speak["Constraints"] = json!([{ "Operand": "distinct_hosts", "RTarget": "true" }]);
    task(&mut speak)["KillTimeout"] = SECOND.into();
    let registered = one.put("/v1/jobs", &json!({ "Job": speak })).ok();
    stage.await_evaluation(text(&registered, "EvalID"));
    let running = stage.await_running("speak", 2);
    let missing = one.get("/v1/job/none");
    assert_eq!((missing.status, missing.text.as_str()), (404, "job not found"));
    assert_eq!(one.put("/v1/jobs", &json!({ "Job": {} })).status, 400);
    let index = running.iter().map(|one| one["ModifyIndex"].as_u64().unwrap()).max().unwrap();
    let begun = std::time::Instant::now();
    let path = format!("/v1/job/speak/allocations?index={index}&wait=1s");
    assert_eq!(one.get(&path).ok().as_array().unwrap().len(), 2);
    assert!(begun.elapsed().as_millis() >= 900, "a blocking query waits");

    // Of allocations and nodes that are elsewhere.
    for allocation in &running {
        let id = text(allocation, "ID");
        let path = format!("/v1/client/fs/logs/{id}?task=task&type=stdout&plain=true");
        wait_until("the log is read", PATIENCE, || one.get(&path).text == format!("{id}\n"));
        let stats = one.get(&format!("/v1/client/allocation/{id}/stats")).ok();
        assert!(stats["Tasks"]["task"].is_object(), "{stats}");
    }
    let other = stage.node_id("two");
    assert!(one.get(&format!("/v1/client/stats?node_id={other}")).ok()["Memory"].is_object());
    let set = json!({ "NodeID": other, "Meta": { "rack": "r7" } });
    assert_eq!(one.put("/v1/client/metadata", &set).ok()["Meta"]["rack"], "r7");
    wait_until("the servers know the metadata", PATIENCE, || {
        stage.client.get(&format!("/v1/node/{other}")).ok()["Meta"]["rack"] == "r7"
    });
    let unknown = "/v1/client/fs/ls/00000000-0000-0000-0000-000000000001";
    let refused = one.get(unknown);
    assert_eq!(refused.status, 404, "{refused:?}");
    assert!(refused.text.starts_with("Unknown allocation"), "{refused:?}");

    // Another server is asked when one is gone.
    let killed = stage.cluster.leader();
    stage.cluster.kill(killed);
    for _ in 0..3 {
        assert_eq!(one.get("/v1/jobs?stale").status, 200);
    }
    stage.cluster.restart(killed);
    stage.stop("speak", false);
    stage.await_ended("speak");
    stage.finish();
}

/// Two agents with one folder would be one node, and run what is wanted once twice.
#[test]
fn a_copy_of_an_agents_folder_is_refused_while_the_agent_lives() {
    let stage = patient_stage(1);
    let mut agent = stage.node("one", &[]);
    let starts = stage.cluster.directory().join("starts");
    let mut web = job("service", "web", 1);
    run_script(&mut web, &format!("echo start >> {}; exec sleep 600", starts.display()));
    stage.schedule(&web);
    stage.await_running("web", 1);

    let mut copy = agent.copy(stage.cluster.directory(), "copy");
    wait_until("the copy says why it waits", PATIENCE, || {
        copy.log().contains("it has a copy of this node's folder")
    });
    assert!(agent.log().contains("its folder is a copy of this agent's"), "{}", agent.log());
    assert!(stage.cluster.log(0).contains("two agents have one folder"));
    let node = text(&stage.cluster.client(0).get("/v1/nodes").ok()[0], "ID").to_owned();
    let events =
        || stage.cluster.client(0).get(&format!("/v1/node/{node}")).ok()["Events"].to_string();
    assert!(events().contains("has a copy of this node's folder"), "{}", events());
    agent.restart();
    let mut second = job("service", "second", 1);
    run_script(&mut second, "exec sleep 600");
    copy.kill();
    stage.schedule(&second);
    stage.await_running("second", 1);
    assert_eq!(fs::read_to_string(&starts).unwrap().lines().count(), 1, "it runs once");
    stage.stop("web", false);
    stage.stop("second", false);
    stage.await_ended("web");
    stage.await_ended("second");
    stage.finish();
}
