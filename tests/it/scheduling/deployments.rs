//! Deployments on real servers and agents: canaries, promotion by hand and by itself, automatic reverts, steps by health (D3, facts 1.8 of Nomad).

use serde_json::{Value, json};

use super::{SECOND, Stage, group, job, numbers, run_script, task};
use crate::{
    harness::{PATIENCE, is_full, program, wait_for},
    recompute::{list_of, text},
};

/// A service whose instances are healthy after 100 ms, two replaced at a time.
fn service(id: &str, count: u32, change: impl FnOnce(&mut Value)) -> Value {
    let mut job = job("service", id, count);
    job["Update"]["MaxParallel"] = 2.into();
    job["TaskGroups"][0]["ReschedulePolicy"] = json!({ "Attempts": 0, "Unlimited": false, "Interval": 0, "Delay": SECOND, "DelayFunction": "constant" });
    task(&mut job)["Resources"]["CPU"] = 50.into();
    change(&mut job["Update"]);
    job
}

/// Another version, which runs.
fn good(job: &mut Value, name: &str) {
    task(job)["Env"] = json!({ "VERSION": name });
}

/// Another version, whose task ends at once.
fn bad(job: &mut Value) {
    run_script(job, "exit 7");
}

impl Stage {
    fn deployments(&self, job: &str) -> Vec<Value> {
        list_of(self.client.get(&format!("/v1/job/{job}/deployments")).ok())
    }

    /// Waits until the deployment of a version ends as wanted, and returns it.
    #[track_caller]
    fn await_deployment(&self, job: &str, version: u64, status: &str) -> Value {
        wait_for(&format!("the deployment of {job} {version} is {status}"), PATIENCE, || {
            let mut all = self.deployments(job).into_iter();
            all.find(|row| row["JobVersion"] == version && text(row, "Status") == status)
        })
    }

    fn version(&self, job: &str, version: u64) -> Value {
        let answer = self.client.get(&format!("/v1/job/{job}/versions")).ok();
        let mut versions = list_of(answer["Versions"].clone()).into_iter();
        versions.find(|row| row["Version"] == version).unwrap()
    }

    /// How many of a version are live.
    fn live_of(&self, job: &str, version: u64) -> usize {
        self.live(job).iter().filter(|one| one["JobVersion"] == version).count()
    }

    /// What a command of the program prints, and how it ends.
    pub(super) fn quorate(&self, arguments: &[&str]) -> (i32, String) {
        let address = format!("http://{}", self.cluster.http(0));
        let mut command = program();
        command.args(arguments).arg("-address").arg(address);
        let done = command.output().unwrap();
        let text = [done.stdout, done.stderr].concat();
        (done.status.code().unwrap_or(-1), String::from_utf8_lossy(&text).into_owned())
    }
}

fn state(row: &Value) -> &Value {
    &row["TaskGroups"]["group"]
}

/// The first version is stable when it is healthy, and the next one replaces it in steps.
#[test]
fn a_version_is_rolled_out_in_steps_and_is_stable() {
    let stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let mut web = service("web", 4, |_| {});
    stage.schedule(&web);
    let first = stage.await_deployment("web", 0, "successful");
    assert_eq!(text(&first, "StatusDescription"), "Deployment completed successfully");
    assert_eq!(state(&first)["DesiredTotal"], 4);
    assert_eq!(stage.version("web", 0)["Stable"], true);
    good(&mut web, "two");
    let evaluation = stage.schedule(&web);
    let second = stage.await_deployment("web", 1, "successful");
    assert_eq!(text(&evaluation, "DeploymentID"), text(&second, "ID"));
    assert_eq!(state(&second)["HealthyAllocs"], 4);
    let live = stage.await_running("web", 4);
    assert!(live.iter().all(|one| one["JobVersion"] == 1));
    assert!(live.iter().all(|one| one["DeploymentStatus"]["Healthy"] == true), "{live:?}");
    let (code, shown) = stage.quorate(&["deployment", "status", text(&second, "ID")]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("Deployment completed successfully"), "{shown}");
    stage.finish();
}

/// D3: two canaries of a version that ends fail, the deployment fails with them and the job goes back; the old ten are untouched.
#[test]
fn failed_canaries_take_the_job_back_and_leave_the_old_ones_alone() {
    let stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let mut web = service("web", 10, |update| update["AutoRevert"] = true.into());
    stage.schedule(&web);
    stage.await_deployment("web", 0, "successful");
    let before = stage.await_running("web", 10);
    web["Update"]["Canary"] = 2.into();
    bad(&mut web);
    stage.register(&web);
    let failed = stage.await_deployment("web", 1, "failed");
    let why = "Failed due to unhealthy allocations - rolling back to job version 0";
    assert_eq!(text(&failed, "StatusDescription"), why);
    assert_eq!(state(&failed)["DesiredCanaries"], 2);
    assert_eq!(state(&failed)["PlacedCanaries"].as_array().unwrap().len(), 2);
    stage.await_deployment("web", 2, "successful");
    let after = stage.await_running("web", 10);
    assert_eq!(super::ids(&after), super::ids(&before), "they run on");
    assert_eq!(stage.version("web", 2)["Stable"], true);
    stage.finish();
}

/// Canaries wait for a person. After the promotion the rest follows, and names are those of the count.
#[test]
fn healthy_canaries_wait_to_be_promoted() {
    let stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let mut web = service("web", 5, |update| update["Canary"] = 2.into());
    stage.schedule(&web);
    stage.await_deployment("web", 0, "successful");
    good(&mut web, "two");
    stage.schedule(&web);
    let waiting = wait_for("both canaries are healthy", PATIENCE, || {
        let row = stage.await_deployment("web", 1, "running");
        (state(&row)["HealthyAllocs"] == 2).then_some(row)
    });
    assert_eq!((stage.live_of("web", 0), stage.live_of("web", 1)), (5, 2));
    let why = "Deployment is running but requires manual promotion";
    assert_eq!(text(&waiting, "StatusDescription"), why);
    let (code, shown) = stage.quorate(&["job", "promote", "web"]);
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("successful"), "{shown}");
    let live = stage.await_running("web", 5);
    assert!(live.iter().all(|one| one["JobVersion"] == 1));
    assert_eq!(numbers(&live), [0, 1, 2, 3, 4]);
    let (code, shown) = stage.quorate(&["job", "promote", "-detach", "web"]);
    assert_eq!(code, 1, "{shown}");
    assert!(shown.contains("can't promote terminal deployment"), "{shown}");
    stage.finish();
}

#[test]
fn canaries_are_promoted_by_themselves() {
    let stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let mut web = service("web", 4, |update| {
        update["Canary"] = 1.into();
        update["AutoPromote"] = true.into();
    });
    stage.schedule(&web);
    stage.await_deployment("web", 0, "successful");
    good(&mut web, "two");
    stage.schedule(&web);
    let done = stage.await_deployment("web", 1, "successful");
    assert_eq!(state(&done)["Promoted"], true);
    assert_eq!(stage.live_of("web", 1), 4);
    stage.finish();
}

/// A version that never comes up fails at its deadline. A paused deployment goes on when it is resumed, and is failed by hand.
#[test]
fn deployments_are_paused_failed_and_expire() {
    let stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let mut web = service("web", 2, |update| {
        update["MinHealthyTime"] = (SECOND * 2).into();
        update["HealthyDeadline"] = (SECOND * 3).into();
        update["ProgressDeadline"] = (SECOND * 4).into();
    });
    // Restarted for ever, and never up for long.
    run_script(&mut web, "sleep 0.2; exit 1");
    group(&mut web)["RestartPolicy"] =
        json!({ "Attempts": 100, "Interval": SECOND * 60, "Delay": SECOND / 10, "Mode": "delay" });
    group(&mut web)["ReschedulePolicy"] = json!({ "Unlimited": true, "Delay": SECOND * 60, "MaxDelay": SECOND * 60, "DelayFunction": "constant" });
    stage.register(&web);
    let failed = stage.await_deployment("web", 0, "failed");
    assert_eq!(text(&failed, "StatusDescription"), "Failed due to progress deadline");
    assert!(state(&failed)["UnhealthyAllocs"].as_u64().unwrap() > 0);
    let mut api = service("api", 2, |update| update["HealthCheck"] = "manual".into());
    api["Update"]["ProgressDeadline"] = (SECOND * 300).into();
    stage.register(&api);
    let row = stage.await_deployment("api", 0, "running");
    let id = text(&row, "ID");
    let post = |verb: &str, body: Value| {
        stage.client.put(&format!("/v1/deployment/{verb}/{id}"), &body).ok()
    };
    post("pause", json!({ "DeploymentID": id, "Pause": true }));
    assert_eq!(
        text(&stage.await_deployment("api", 0, "paused"), "StatusDescription"),
        "Deployment is paused"
    );
    post("pause", json!({ "DeploymentID": id, "Pause": false }));
    let running = stage.await_running("api", 2);
    let said = json!({ "HealthyAllocationIDs": [running[0]["ID"]] });
    post("allocation-health", said);
    assert_eq!(state(&stage.await_deployment("api", 0, "running"))["HealthyAllocs"], 1);
    let answer = post("fail", json!({}));
    assert_eq!(answer["RevertedJobVersion"], Value::Null);
    let row = stage.await_deployment("api", 0, "failed");
    assert_eq!(text(&row, "StatusDescription"), "Deployment marked as failed");
    let refused = stage.client.put(&format!("/v1/deployment/fail/{id}"), &json!({}));
    assert!(refused.status >= 400);
    stage.stop("web", true);
    stage.stop("api", true);
    stage.finish();
}

/// Where the leader dies while a version fails: what is seen of the rollout by then.
fn seen(stage: &Stage, point: usize, job: &str) -> bool {
    let of_version = |version: u64| {
        let live = list_of(stage.client.get(&format!("/v1/job/{job}/allocations")).ok());
        live.into_iter().filter(move |one| one["JobVersion"] == version)
    };
    let deployment = || stage.deployments(job).into_iter().find(|row| row["JobVersion"] == 1);
    match point {
        0 | 1 => true,
        2 => deployment().is_some(),
        3 => of_version(1).count() > 0,
        4 => of_version(1).any(|one| text(&one, "ClientStatus") != "pending"),
        5 => of_version(1).any(|one| text(&one, "ClientStatus") == "failed"),
        6 => deployment().is_some_and(|row| text(&row, "Status") == "failed"),
        _ => stage.client.get(&format!("/v1/job/{job}")).ok()["Version"] == 2,
    }
}

/// D3: whichever leader dies while canaries fail, at any of eight points, the end is the same: the version has failed, the job has gone back, and the old
/// ten run on.
#[test]
fn a_version_that_fails_goes_back_whatever_leader_dies() {
    let mut stage = Stage::start(3);
    let _agent = stage.node("n1", &[]);
    let points = if is_full() { 0..8 } else { 5..6 };
    for point in points {
        let name = format!("web{point}");
        let mut web = service(&name, 10, |update| update["AutoRevert"] = true.into());
        task(&mut web)["Resources"]["CPU"] = 10.into();
        task(&mut web)["Resources"]["MemoryMB"] = 10.into();
        stage.schedule(&web);
        stage.await_deployment(&name, 0, "successful");
        let before = stage.await_running(&name, 10);
        web["Update"]["Canary"] = 2.into();
        bad(&mut web);
        let leader = stage.cluster.leader();
        if point == 0 {
            stage.cluster.kill(leader);
            stage.cluster.restart(leader);
            stage.cluster.await_ready_all();
        }
        stage.register(&web);
        wait_for(&format!("point {point} is seen"), PATIENCE, || {
            seen(&stage, point, &name).then_some(())
        });
        if point > 0 {
            stage.cluster.kill(leader);
            stage.cluster.restart(leader);
            stage.cluster.await_ready_all();
        }
        let failed = stage.await_deployment(&name, 1, "failed");
        let why = "Failed due to unhealthy allocations - rolling back to job version 0";
        assert_eq!(text(&failed, "StatusDescription"), why, "point {point}");
        stage.await_deployment(&name, 2, "successful");
        let after = stage.await_running(&name, 10);
        assert_eq!(super::ids(&after), super::ids(&before), "point {point}: they run on");
        assert_eq!(stage.version(&name, 2)["Stable"], true);
        stage.stop(&name, true);
    }
    stage.finish();
}

/// A change of a system job: a canary on half of the nodes in the place of what ran there, and the other node after the promotion.
#[test]
fn a_system_job_is_rolled_out_node_by_node() {
    let stage = Stage::start(3);
    let _agents = [stage.node("n1", &[]), stage.node("n2", &[])];
    stage.await_ready_nodes(2);
    let mut log = job("system", "log", 1);
    log["Update"] =
        json!({ "MaxParallel": 1, "MinHealthyTime": SECOND / 10, "HealthCheck": "task_states" });
    stage.schedule(&log);
    let first = stage.await_deployment("log", 0, "successful");
    assert_eq!(state(&first)["DesiredTotal"], 2);
    log["Update"]["Canary"] = 50.into();
    good(&mut log, "two");
    stage.schedule(&log);
    wait_for("the canary is healthy", PATIENCE, || {
        let row = stage.await_deployment("log", 1, "running");
        (state(&row)["HealthyAllocs"] == 1).then_some(())
    });
    assert_eq!((stage.live_of("log", 0), stage.live_of("log", 1)), (1, 1));
    let (code, shown) = stage.quorate(&["job", "promote", "log"]);
    assert_eq!(code, 0, "{shown}");
    let done = stage.await_deployment("log", 1, "successful");
    assert_eq!(state(&done)["PlacedCanaries"].as_array().unwrap().len(), 1);
    assert_eq!((stage.live_of("log", 0), stage.live_of("log", 1)), (0, 2));
    assert_eq!(stage.version("log", 1)["Stable"], true);
    stage.finish();
}
