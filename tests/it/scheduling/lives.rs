//! Jobs that grow, shrink, stop, start and restart, by the command line on real servers and agents.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::{SECOND, Stage, group, ids, job, run_script, task};
use crate::{
    harness::{Agent, Client, Options, PATIENCE, wait_until},
    recompute::text,
};

/// A service that is updated all at once, of at most six instances.
fn service(count: u32) -> Value {
    let mut job = job("service", "web", count);
    job["Update"]["MaxParallel"] = 0.into();
    task(&mut job)["Resources"]["CPU"] = 50.into();
    group(&mut job)["Scaling"] = json!({"Min": 1, "Max": 6, "Policy": {"cooldown": "1m"}});
    job
}

fn running(count: u32) -> (Stage, Agent) {
    let stage = Stage::start(1);
    let agent = stage.node("n1", &[]);
    stage.schedule(&service(count));
    stage.await_running("web", count as usize);
    (stage, agent)
}

fn restarts(stage: &Stage) -> Vec<u64> {
    let live = stage.live("web");
    live.iter().map(|one| one["TaskStates"]["task"]["Restarts"].as_u64().unwrap()).collect()
}

impl Stage {
    /// Runs a command that must succeed.
    #[track_caller]
    fn done(&self, arguments: &[&str]) -> String {
        let (code, printed) = self.quorate(arguments);
        assert_eq!(code, 0, "{arguments:?}: {printed}");
        printed
    }
}

#[test]
fn a_group_is_scaled_within_its_bounds_and_stays_so() {
    let (stage, _agent) = running(2);
    stage.done(&["job", "scale", "web", "4"]);
    stage.await_running("web", 4);
    let (code, printed) = stage.quorate(&["job", "scale", "web", "7"]);
    assert_eq!(code, 1);
    assert!(printed.contains("group count was greater than scaling policy maximum: 7 > 6"));
    let events = stage.done(&["job", "scaling-events", "web"]);
    assert_eq!(events.lines().count(), 2, "{events}");
    let status = stage.client.get("/v1/job/web/scale").ok();
    let group = &status["TaskGroups"]["group"];
    assert_eq!((&group["Desired"], &group["Running"]), (&json!(4), &json!(4)));
    assert!(stage.done(&["scaling", "policy", "list"]).contains("Job:web,Group:group"));
    // A registration that keeps counts, and one that does not.
    let mut again = service(2);
    again["Meta"] = json!({"a": "b"});
    stage.client.put("/v1/jobs", &json!({"Job": again, "PreserveCounts": true})).ok();
    stage.await_running("web", 4);
    stage.schedule(&again);
    stage.await_running("web", 2);
    stage.finish();
}

#[test]
fn instances_are_restarted_in_batches_and_replaced() {
    let (stage, _agent) = running(3);
    let before = stage.await_running("web", 3);
    let printed = stage.done(&["job", "restart", "-batch-size", "50%", "web"]);
    assert!(printed.contains("Finished: 3 allocations restarted"), "{printed}");
    assert_eq!(ids(&stage.await_running("web", 3)), ids(&before));
    assert_eq!(restarts(&stage), [1, 1, 1]);
    stage.done(&["job", "restart", "-reschedule", "-batch-size", "3", "web"]);
    let after = stage.await_running("web", 3);
    assert!(ids(&after).iter().all(|id| !ids(&before).contains(id)));
    stage.finish();
}

#[test]
fn a_place_stays_empty_until_the_job_changes() {
    let (stage, _agent) = running(3);
    let before = stage.await_running("web", 3);
    stage.done(&["alloc", "stop", "-no-reschedule", ids(&before)[1]]);
    stage.await_running("web", 2);
    stage.done(&["job", "eval", "web"]);
    assert_eq!(ids(&stage.await_running("web", 2)), [ids(&before)[0], ids(&before)[2]]);
    stage.done(&["job", "scale", "web", "4"]);
    stage.await_running("web", 4);
    stage.finish();
}

#[test]
fn a_stopped_job_starts_as_it_was() {
    let (stage, _agent) = running(2);
    // Without the flag it would take a minute.
    let mut slow = service(2);
    group(&mut slow)["ShutdownDelay"] = (SECOND * 600).into();
    slow["Meta"] = json!({"slow": "yes"});
    stage.schedule(&slow);
    stage.await_running("web", 2);
    stage.done(&["job", "stop", "-no-shutdown-delay", "web"]);
    stage.await_ended("web");
    stage.done(&["job", "start", "web"]);
    stage.await_running("web", 2);
    let job = stage.client.get("/v1/job/web").ok();
    assert_eq!((&job["Stop"], &job["Meta"]["slow"]), (&json!(false), &json!("yes")));
    stage.done(&["job", "stop", "-no-shutdown-delay", "-purge", "web"]);
    stage.await_ended("web");
    stage.finish();
}

#[test]
fn failed_instances_are_replaced_at_once_when_that_is_forced() {
    let stage = Stage::start(1);
    let _agent = stage.node("n1", &[]);
    let mut broken = service(2);
    task(&mut broken)["Config"] = json!({"run_for": "50ms", "exit_code": 1});
    group(&mut broken)["ReschedulePolicy"] = json!({
        "Unlimited": true, "Delay": SECOND * 3600, "DelayFunction": "constant",
    });
    stage.schedule(&broken);
    let failed = |count: usize| {
        wait_until(&format!("{count} have failed"), PATIENCE, || {
            let all = stage.allocations("web");
            all.iter().filter(|one| text(one, "ClientStatus") == "failed").count() == count
        });
    };
    failed(2);
    stage.quorate(&["job", "eval", "-force-reschedule", "web"]);
    failed(4);
    // Evaluations wait for the hour, so nothing settles.
    stage.cluster.check_invariants(&stage.cluster.all());
    stage.cluster.await_equal(&stage.cluster.all());
}

/// The agent ends it, also when a new version gives it less time, and nothing takes its place.
#[test]
fn a_batch_instance_that_runs_too_long_is_complete_and_not_run_again() {
    let stage = Stage::start(1);
    let _agent = stage.node("n1", &[]);
    let mut long = job("batch", "sum", 2);
    task(&mut long)["Config"] = json!({"run_for": "24h"});
    group(&mut long)["MaxRunDuration"] = (SECOND * 3600).into();
    stage.schedule(&long);
    let before = stage.await_running("sum", 2);
    group(&mut long)["MaxRunDuration"] = SECOND.into();
    stage.schedule(&long);
    let ended = stage.await_ended("sum");
    assert_eq!(ended.len(), 2, "the same instances");
    for one in &ended {
        assert!(ids(&before).contains(&text(one, "ID")));
        assert_eq!(text(one, "ClientStatus"), "complete");
        assert_eq!(text(one, "ClientDescription"), "allocation exceeded max_run_duration");
    }
    let node = stage.client.get(&format!("/v1/node/{}", stage.node_id("n1"))).ok();
    let agent = Client::new(text(&node, "HTTPAddr").parse().unwrap(), PATIENCE);
    let counted = [
        (&agent, "client.tasks.max_run_duration_exceeded", 2.0),
        (&stage.client, "allocations.max_run_duration_exceeded", 0.0),
    ];
    for (asked, name, expected) in counted {
        let count = asked.metric(name);
        assert!((count - expected).abs() < 0.1, "{name}: {count}");
    }
    stage.done(&["job", "eval", "sum"]);
    assert_eq!(stage.allocations("sum").len(), 2);
    stage.finish();
}

/// A version that gives the run more time counts, also when it came while the agent was down.
#[test]
fn an_agent_that_starts_again_asks_how_long_a_run_may_take() {
    let stage = Stage::of(Options::new(1).with("heartbeat.ttl_min_ms", 60_000));
    let mut agent = stage.node("n1", &[]);
    let mut long = job("batch", "sum", 1);
    run_script(&mut long, "sleep 1000");
    group(&mut long)["MaxRunDuration"] = (SECOND * 3).into();
    stage.schedule(&long);
    let before = stage.await_running("sum", 1);
    let began = Instant::now();
    agent.kill();
    group(&mut long)["MaxRunDuration"] = (SECOND * 3600).into();
    stage.schedule(&long);
    wait_until("the first run time is over", PATIENCE, || began.elapsed() > Duration::from_secs(4));
    agent.restart();
    let id = text(&before[0], "ID");
    wait_until("its task is restarted", PATIENCE, || {
        stage.quorate(&["alloc", "restart", id]).0 == 0
    });
    assert_eq!(ids(&stage.await_running("sum", 1)), [id]);
    stage.finish();
}
