//! Instance pools: machines come when jobs wait and go when they idle, whatever happens to the
//! leader meanwhile. The machines are real agents, counted as processes.

use serde_json::{Value, json};

use super::{Options, Stage, task};
use crate::{
    harness::{PATIENCE, wait_until},
    recompute::{list_of, text},
};

/// Three servers with a provider, and a pool of at most three machines that idle for half a second.
fn stage() -> Stage {
    let stage = Stage::of(options().with_machines());
    stage.pool(3, json!([kind("small")]));
    stage
}

/// Three servers that look at their machines often.
pub(super) fn options() -> Options {
    Options::new(3)
        .with("elastic.list_interval_ms", 1_000)
        .with("elastic.probe_interval_ms", 500)
        .with("elastic.destroy_retry_ms", 500)
        .with("log_level", "\"debug\"")
}

pub(super) fn kind(name: &str) -> Value {
    json!({
        "Name": name, "ProviderType": name, "CPU": 500, "MemoryMB": 256,
        "Node": { "Datacenter": "dc1", "Drivers": ["raw_exec"] },
    })
}

/// A job of tasks that fill a machine each.
pub(super) fn job(name: &str, count: u32) -> Value {
    let mut job = super::job("service", name, count);
    job["NodePool"] = "burst".into();
    task(&mut job)["Driver"] = "raw_exec".into();
    task(&mut job)["Config"] = json!({ "command": "/bin/sleep", "args": ["1000000"] });
    task(&mut job)["Resources"] = json!({ "CPU": 400, "MemoryMB": 200 });
    job
}

impl Stage {
    pub(super) fn pool(&self, max: u32, types: Value) {
        self.pool_that_idles(500, max, types);
    }

    pub(super) fn pool_that_idles(&self, idle_ms: u64, max: u32, types: Value) {
        let pool = json!({
            "Provider": "local", "Max": max, "IdleTimeoutMs": idle_ms, "Types": types,
        });
        self.client.put("/v1/instance-pool/burst", &pool).ok();
    }

    pub(super) fn instances(&self) -> Vec<Value> {
        list_of(self.client.get("/v1/instances").ok())
    }

    /// Neither rows nor processes are left.
    pub(super) fn await_empty(&self) {
        wait_until("the last machine is gone", PATIENCE, || {
            self.instances().is_empty() && self.cluster.machines().is_empty()
        });
    }

    /// What the newest blocked evaluation of a job waits for.
    pub(super) fn waits_for(&self, job: &str) -> String {
        let blocked = self.blocked(job);
        blocked.iter().map(|one| one["WaitsFor"].to_string()).collect()
    }
}

/// A pool grows from nothing for a job and goes to nothing after it. A job that no type can run
/// gets no machine, and its sentence says why (AR-18: shut down after the idle time; AR-31: nothing
/// fits).
#[test]
fn a_pool_comes_with_a_job_and_goes_after_it() {
    let stage = stage();
    let mut alien = job("alien", 1);
    alien["Constraints"] =
        json!([{ "LTarget": "${attr.moon}", "RTarget": "full", "Operand": "=" }]);
    stage.register(&alien);
    let mut giant = job("giant", 1);
    task(&mut giant)["Resources"]["MemoryMB"] = 32_768.into();
    stage.register(&giant);
    wait_until("both are blocked", PATIENCE, || {
        stage.waits_for("alien").contains("no type of pool \\\"burst\\\" meets: ${attr.moon}")
            && stage.waits_for("giant").contains("32768 MiB of memory are asked, the largest")
    });

    stage.register(&job("web", 3));
    let live = stage.await_running("web", 3);
    let mut nodes: Vec<_> = live.iter().map(|one| text(one, "NodeID").to_owned()).collect();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 3, "one machine each");
    assert_eq!((stage.instances().len(), stage.cluster.machines().len()), (3, 3));
    for row in stage.instances() {
        assert_eq!((text(&row, "State"), text(&row, "Pool")), ("running", "burst"));
    }
    stage.stop("web", true);
    stage.await_empty();
    stage.stop("alien", true);
    stage.stop("giant", true);
    stage.finish();
}

/// The leader is killed while it makes machines, again and again: there is one machine for each
/// row, never more than the pool may have, and nothing is left in the end (AR-34: the new leader
/// finds what the old one made by its tag).
#[test]
fn no_machine_is_made_twice_or_forgotten_when_leaders_die() {
    let mut stage = stage();
    for round in 0..3 {
        let name = format!("web{round}");
        let leader = stage.cluster.leader();
        let client = stage.cluster.client(stage.cluster.others(&[leader])[0]);
        client.put("/v1/jobs", &json!({ "Job": job(&name, 3) })).ok();
        wait_until("machines are being made", PATIENCE, || {
            !list_of(client.get("/v1/instances?stale=true").ok()).is_empty()
        });
        stage.cluster.kill(leader);
        stage.cluster.start_one(leader);
        stage.cluster.await_ready_all();
        stage.client = client;
        let mut most = 0;
        wait_until("the job runs", PATIENCE, || {
            most = most.max(stage.cluster.machines().len());
            let live = stage.live(&name);
            live.len() == 3 && live.iter().all(|one| text(one, "ClientStatus") == "running")
        });
        assert!(most <= 3, "{most} machines");
        assert_eq!((stage.instances().len(), stage.cluster.machines().len()), (3, 3));
        stage.stop(&name, true);
        stage.await_empty();
    }
    stage.finish();
}

/// What operators say of instances holds over a change of leader: one that is held stays when it
/// idles, one that drains goes when it is empty, one that is shut down goes with what runs on it,
/// which runs elsewhere then. A type that leaves the pool takes its instances along.
#[test]
fn operators_hold_drain_and_shut_down_instances() {
    let mut stage = stage();
    stage.register(&job("web", 3));
    stage.await_running("web", 3);
    let ids: Vec<String> = stage.instances().iter().map(|row| text(row, "ID").to_owned()).collect();
    let behave = |stage: &Stage, id: &str, behavior: &str| {
        let body = json!({ "Behavior": behavior, "Reason": "look", "Actor": "alice@web1" });
        stage.client.put(&format!("/v1/instance/{id}/behavior"), &body).ok();
    };
    behave(&stage, &ids[0], "hold");
    let reason = json!({ "Reason": "noise", "Actor": "alice@web1" });
    stage.client.put(&format!("/v1/instance/{}/shutdown", ids[1]), &reason).ok();
    wait_until("another has taken its place", PATIENCE, || {
        let rows = stage.instances();
        rows.len() == 3 && !rows.iter().any(|row| text(row, "ID") == ids[1])
    });
    stage.await_running("web", 3);

    let leader = stage.cluster.leader();
    stage.client = stage.cluster.client(stage.cluster.others(&[leader])[0]);
    stage.cluster.kill(leader);
    stage.cluster.start_one(leader);
    stage.cluster.await_ready_all();
    stage.stop("web", true);
    wait_until("only the held one is left", PATIENCE, || {
        let rows = stage.instances();
        rows.len() == 1 && stage.cluster.machines().len() == 1
    });
    let held = &stage.instances()[0];
    assert_eq!((text(held, "ID"), text(held, "Behavior")), (&*ids[0], "hold"));
    assert!(text(held, "Reason").starts_with("held by alice@web1: look"), "{held}");
    behave(&stage, &ids[0], "drain");
    stage.await_empty();

    stage.register(&job("api", 1));
    stage.await_running("api", 1);
    stage.pool(3, json!([kind("other")]));
    wait_until("the job has moved to a type that is in the pool", PATIENCE, || {
        let rows = stage.instances();
        rows.len() == 1 && text(&rows[0], "Type") == "other" && text(&rows[0], "State") == "running"
    });
    stage.stop("api", true);
    stage.await_empty();
    stage.finish();
}
