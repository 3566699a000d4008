//! Scheduling from end to end: what the HTTP API is told, what the nodes run in the end.
//!
//! Every test starts its own cluster and ends with [`Stage::finish`]: an independent recomputation of capacity, names and ports, the program's
//! own invariants, and equal digests on all servers.
#![expect(clippy::unwrap_used, reason = "tests")]

mod agents;
mod bad_input;
mod blocked;
mod clocks;
mod deployments;
mod dispatch;
mod garbage;
mod groups;
mod jobs;
mod leader_loss;
mod lives;
mod metrics;
mod node_life;
mod nodes;
mod nomad_cli;
mod periodic;
mod pools;
mod programs;
mod scale;
mod shortages;
mod system;
mod workers;

use serde_json::{Value, json};

use crate::{
    harness::{Agent, Client, Cluster, Options, PATIENCE, wait_for, wait_until},
    recompute::{self, is_live, list_of, text},
};

/// A cluster and a client of one of its servers.
struct Stage {
    cluster: Cluster,
    client: Client,
}

impl Stage {
    fn start(servers: usize) -> Self {
        Self::of(Options::new(servers).with("log_level", "\"debug\""))
    }

    fn of(options: Options) -> Self {
        let cluster = Cluster::start(options);
        let client = cluster.client(0);
        Self { cluster, client }
    }

    /// Starts an agent with a real node and waits until the node is ready.
    fn node(&self, name: &str, keys: &[(&str, &str)]) -> Agent {
        let agent = self.cluster.agent_with(name, None, keys);
        self.await_node(name, "ready");
        agent
    }

    fn find_node(&self, name: &str) -> Option<Value> {
        let nodes = list_of(self.client.get("/v1/nodes").ok());
        nodes.into_iter().find(|node| text(node, "Name") == name)
    }

    fn node_id(&self, name: &str) -> String {
        let node = self.find_node(name).unwrap_or_else(|| panic!("no node {name}"));
        text(&node, "ID").to_owned()
    }

    fn await_node(&self, name: &str, status: &str) {
        wait_until(&format!("node {name} is {status}"), PATIENCE, || {
            self.find_node(name).is_some_and(|node| text(&node, "Status") == status)
        });
    }

    fn await_ready_nodes(&self, count: usize) {
        wait_until(&format!("{count} nodes are ready"), PATIENCE, || {
            let nodes = list_of(self.client.get("/v1/nodes").ok());
            nodes.iter().filter(|node| text(node, "Status") == "ready").count() == count
        });
    }

    /// Registers a job and returns its evaluation's id.
    #[track_caller]
    fn register(&self, job: &Value) -> String {
        let answer = self.client.put("/v1/jobs", &json!({ "Job": job })).ok();
        text(&answer, "EvalID").to_owned()
    }

    /// Registers a job and waits until its evaluation is done.
    #[track_caller]
    fn schedule(&self, job: &Value) -> Value {
        let evaluation = self.register(job);
        self.await_evaluation(&evaluation)
    }

    #[track_caller]
    fn await_evaluation(&self, id: &str) -> Value {
        wait_for(&format!("evaluation {id} is done"), PATIENCE, || {
            let evaluation = self.client.get(&format!("/v1/evaluation/{id}")).ok();
            (text(&evaluation, "Status") != "pending").then_some(evaluation)
        })
    }

    fn evaluations(&self, job: &str) -> Vec<Value> {
        list_of(self.client.get(&format!("/v1/job/{job}/evaluations")).ok())
    }

    /// The blocked evaluations of a job.
    fn blocked(&self, job: &str) -> Vec<Value> {
        let mut evaluations = self.evaluations(job);
        evaluations.retain(|evaluation| text(evaluation, "Status") == "blocked");
        evaluations
    }

    /// All allocations of a job, ended ones too.
    fn allocations(&self, job: &str) -> Vec<Value> {
        list_of(self.client.get(&format!("/v1/job/{job}/allocations?all=true&resources=true")).ok())
    }

    fn live(&self, job: &str) -> Vec<Value> {
        let mut allocations = self.allocations(job);
        allocations.retain(is_live);
        allocations.sort_by_key(recompute::index_of);
        allocations
    }

    /// Waits until exactly `count` allocations of a job are live and all of them run, and returns them by number.
    #[track_caller]
    fn await_running(&self, job: &str, count: usize) -> Vec<Value> {
        self.await_live(&format!("{count} of {job} run"), job, |live| {
            live.len() == count && live.iter().all(|one| text(one, "ClientStatus") == "running")
        })
    }

    /// Waits until the live allocations of a job are exactly these nodes', sorted by name, and all of them run.
    #[track_caller]
    fn await_running_on(&self, job: &str, nodes: &[&str]) -> Vec<Value> {
        self.await_live(&format!("{job} runs on {nodes:?}"), job, |live| {
            nodes_of(live) == nodes && live.iter().all(|one| text(one, "ClientStatus") == "running")
        })
    }

    /// Waits until the live allocations of a job are as wanted, and returns them by number.
    #[track_caller]
    fn await_live(&self, what: &str, job: &str, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        wait_for(what, PATIENCE, || {
            let live = self.live(job);
            wanted(&live).then_some(live)
        })
    }

    /// Waits until nothing of a job is live or ending any more.
    #[track_caller]
    fn await_ended(&self, job: &str) -> Vec<Value> {
        wait_for(&format!("all of {job} ended"), PATIENCE, || {
            let all = self.allocations(job);
            let ended =
                |one: &Value| matches!(text(one, "ClientStatus"), "complete" | "failed" | "lost");
            all.iter().all(ended).then_some(all)
        })
    }

    #[track_caller]
    fn stop(&self, job: &str, purge: bool) {
        let answer = self.client.delete(&format!("/v1/job/{job}?purge={purge}")).ok();
        self.await_evaluation(text(&answer, "EvalID"));
    }

    /// Waits until no evaluation is pending.
    fn await_settled(&self) {
        wait_until("no evaluation is pending", PATIENCE, || {
            let evaluations = list_of(self.client.get("/v1/evaluations?namespace=*").ok());
            evaluations.iter().all(|evaluation| text(evaluation, "Status") != "pending")
        });
    }

    /// What must hold at the end of every test.
    #[track_caller]
    fn finish(&self) {
        self.await_settled();
        assert_eq!(recompute::Cluster::read(&self.client).violations(), [""; 0]);
        self.check_nobody_is_stranded();
        self.cluster.check_invariants(&self.cluster.all());
        self.cluster.await_equal(&self.cluster.all());
    }
}

impl Stage {
    /// What could not be placed is waited for by an evaluation.
    #[track_caller]
    fn check_nobody_is_stranded(&self) {
        for job in list_of(self.client.get("/v1/jobs?namespace=*").ok()) {
            let queued: u64 = job["JobSummary"]["Summary"]
                .as_object()
                .into_iter()
                .flatten()
                .filter_map(|(_, counts)| counts["Queued"].as_u64())
                .sum();
            let id = text(&job, "ID");
            if queued > 0 && job["Namespace"] == "default" {
                assert!(!self.blocked(id).is_empty(), "{queued} of {id} are queued for ever");
            }
        }
    }
}

/// A job of mock tasks; a service and a system job run until they are stopped, the others end at once.
fn job(kind: &str, id: &str, count: u32) -> Value {
    let run_for = if matches!(kind, "service" | "system") { "24h" } else { "100ms" };
    let mut job = json!({
        "ID": id, "Name": id, "Type": kind, "Datacenters": ["*"],
        "TaskGroups": [{
            "Name": "group", "Count": count,
            "EphemeralDisk": { "SizeMB": 10 },
            "RestartPolicy": { "Attempts": 0, "Interval": SECOND * 60, "Delay": SECOND, "Mode": "fail" },
            "Tasks": [{ "Name": "task", "Driver": "mock", "Config": { "run_for": run_for },
                "LogConfig": { "MaxFiles": 1, "MaxFileSizeMB": 1 },
                "Resources": { "CPU": 100, "MemoryMB": 32 } }],
        }],
    });
    if kind == "service" {
        job["Update"] = json!({
            "MaxParallel": 1, "HealthCheck": "task_states",
            "MinHealthyTime": SECOND / 10, "HealthyDeadline": SECOND * 60,
            "ProgressDeadline": SECOND * 120,
        });
        job["TaskGroups"][0]["Migrate"] = json!({
            "MaxParallel": 1, "HealthCheck": "task_states",
            "MinHealthyTime": SECOND / 10, "HealthyDeadline": SECOND * 60,
        });
    }
    job
}

/// A second in Nomad's JSON.
const SECOND: u64 = 1_000_000_000;

fn group(job: &mut Value) -> &mut Value {
    &mut job["TaskGroups"][0]
}

fn task(job: &mut Value) -> &mut Value {
    &mut job["TaskGroups"][0]["Tasks"][0]
}

/// A shell script in place of the mock task.
fn run_script(job: &mut Value, script: &str) {
    task(job)["Driver"] = "raw_exec".into();
    task(job)["Config"] = json!({ "command": "/bin/sh", "args": ["-c", script] });
}

fn ids(allocations: &[Value]) -> Vec<&str> {
    allocations.iter().map(|one| text(one, "ID")).collect()
}

fn numbers(allocations: &[Value]) -> Vec<i64> {
    allocations.iter().map(recompute::index_of).collect()
}

/// The names of the nodes that allocations are on, sorted.
fn nodes_of(allocations: &[Value]) -> Vec<&str> {
    let mut names: Vec<&str> = allocations.iter().map(|one| text(one, "NodeName")).collect();
    names.sort_unstable();
    names
}
