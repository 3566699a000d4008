//! The elastic workload: jobs that need machines, in a pool whose machines are agents that the servers start.
//!
//! Owns what is asked and what an answer means. Every allocation fills a machine, and the jobs ask for more at a time than the pool may have.
//! Times in which jobs are scaled up take turns with times in which all go to nothing, so that machines come and idle out; operators hold, drain,
//! release and shut down instances meanwhile. After the last heal a fixed set of jobs gets exactly its machines, and then none is left.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{Start, Workload, body, snapshot};
use crate::{
    client::{HttpClient, Reply},
    history::Function,
    machines::{Machines, PROVIDER, rows},
};
use chance::Dice;

/// The pool's name.
const POOL: &str = "burst";
/// Most machines of the pool.
pub(crate) const MACHINES_MAX: usize = 4;
/// Short, so that machines go within a run; an intent of unknown outcome keeps its place until the second.
const IDLE_TIMEOUT_MS: u64 = 1_000;
const BOOT_TIMEOUT_MS: u64 = 15_000;
const PROBE_TIMEOUT_MS: u64 = 15_000;
/// Jobs whose counts change.
const JOBS: usize = 3;
/// Most allocations of a job.
const COUNT_MAX: usize = 2;
/// What each job asks for after the last heal.
const LAST_COUNTS: [u64; JOBS] = [1, 2, 0];
/// Requests in which jobs are scaled up, and in which they go to nothing.
const BUSY: u64 = 200;
const QUIET: u64 = 400;
/// Of so many requests one shuts down, drains or holds an instance, or ends a hold.
const OPERATOR_SHARE: usize = 30;
/// Of so many of these one ends the hold, while there is one.
const RELEASE_SHARE: usize = 8;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Create the pool, or leave it as it is.
    Apply,
    /// Give the job this count.
    Scale(usize, u64),
    /// Stop the job and forget it.
    Purge(usize),
    /// Let an instance run, hold it or drain it.
    Behave(String, &'static str),
    /// Shut an instance down.
    ShutDown(String),
    /// Shut any instance down.
    ShutDownAny,
    /// List the instances.
    Read,
    /// List them, and count processes, once every job runs what it asks for and no instance is left over. What is held or drained is released
    /// first: a request of the main phase may have come late.
    ReadSettled,
}

/// The workload's state.
pub(crate) struct Elastic<'a> {
    generator: Mutex<Generator>,
    machines: &'a Machines,
}

struct Generator {
    random: Dice,
    requests: u64,
    /// The pool is known to be there.
    is_applied: bool,
    /// As they were listed last.
    instances: Vec<Row>,
}

/// An instance as a server shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Row {
    #[serde(rename = "ID")]
    id: String,
    state: String,
    behavior: String,
}

impl Row {
    fn has_node(&self) -> bool {
        matches!(&*self.state, "idle" | "running")
    }

    fn is_held(&self) -> bool {
        self.behavior == "hold"
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AllocationRow {
    #[serde(rename = "JobID")]
    job: String,
    desired_status: String,
    client_status: String,
}

impl Generator {
    fn next(&mut self) -> Action {
        if !self.is_applied {
            return Action::Apply;
        }
        let turn = self.requests % (BUSY + QUIET);
        self.requests += 1;
        if self.random.index(OPERATOR_SHARE) == 0
            && let Some(action) = self.operate()
        {
            return action;
        }
        let job = self.random.index(JOBS);
        match self.random.index(20) {
            0..12 => Action::Read,
            12 => Action::Purge(job),
            _ if turn < BUSY => Action::Scale(job, self.random.index(COUNT_MAX + 1) as u64),
            _ => Action::Scale(job, 0),
        }
    }

    /// Something for an operator to do, if there is an instance to do it to. At most one is held at a time, for rather long: it must stay.
    fn operate(&mut self) -> Option<Action> {
        let held = self.instances.iter().find(|row| row.is_held());
        if let (Some(held), true) = (held, self.random.index(RELEASE_SHARE) == 0) {
            return Some(Action::Behave(held.id.clone(), "run"));
        }
        let others: Vec<&Row> = self.instances.iter().filter(|row| !row.is_held()).collect();
        if others.is_empty() {
            return None;
        }
        let row = others[self.random.index(others.len())];
        Some(match self.random.index(4) {
            0 => Action::ShutDown(row.id.clone()),
            1 => Action::Behave(row.id.clone(), "drain"),
            _ if held.is_none() && row.has_node() => Action::Behave(row.id.clone(), "hold"),
            _ => return None,
        })
    }
}

fn job_id(job: usize) -> String {
    format!("e{job}")
}

fn pool() -> Value {
    json!({
        "Provider": PROVIDER,
        "Max": MACHINES_MAX,
        "IdleTimeoutMs": IDLE_TIMEOUT_MS,
        "BootTimeoutMs": BOOT_TIMEOUT_MS,
        "ProbeTimeoutMs": PROBE_TIMEOUT_MS,
        "Types": [{
            "Name": "small", "ProviderType": "small", "CPU": 500, "MemoryMB": 256,
            "Node": { "Datacenter": "dc1", "Drivers": ["mock"] },
        }],
    })
}

/// A job whose allocations fill a machine each.
fn job(job: usize, count: u64) -> Value {
    let size = body::Size { cpu_mhz: 400, memory_mb: 200, ports: Vec::new() };
    let mut job = body::service(&job_id(job), count, &size);
    job["NodePool"] = POOL.into();
    let group = &mut job["TaskGroups"][0];
    group["EphemeralDisk"] = json!({"SizeMB": 10});
    group["Tasks"][0]["LogConfig"] = json!({"MaxFiles": 1, "MaxFileSizeMB": 1});
    job
}

fn instances(client: &HttpClient) -> Result<(Vec<Row>, u64), Completion> {
    answer::read(&client.get("/v1/instances"))
}

/// How many allocations of each job run; an error while one is about to start or to end.
fn running(client: &HttpClient) -> Result<BTreeMap<String, u64>, Completion> {
    let (allocations, _) = answer::read::<Vec<AllocationRow>>(&client.get("/v1/allocations"))?;
    let mut counts = BTreeMap::new();
    for row in allocations {
        match (&*row.desired_status, &*row.client_status) {
            (_, "complete" | "failed" | "lost") => {}
            ("run", "running") => *counts.entry(row.job).or_default() += 1,
            (desired, client) => {
                let text = format!("an allocation of {} is {client}, to be {desired}", row.job);
                return Err(Completion::fail(&text));
            }
        }
    }
    Ok(counts)
}

/// `[[id state behavior] …]`, as the checker reads it.
fn shown(rows: &[Row]) -> Value {
    rows.iter().map(|row| json!([row.id, row.state, row.behavior])).collect()
}

fn scanned(error: &anyhow::Error) -> Completion {
    Completion::fail(&format!("cannot look at the processes: {error:#}"))
}

impl<'a> Elastic<'a> {
    /// No pool and no jobs yet.
    pub(crate) fn new(random: Dice, machines: &'a Machines) -> Self {
        let generator = Generator { random, requests: 0, is_applied: false, instances: Vec::new() };
        Self { generator: Mutex::new(generator), machines }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn apply(&self, client: &HttpClient) -> Completion {
        match answer::written::<Value>(&client.put(&format!("/v1/instance-pool/{POOL}"), &pool())) {
            Ok(_) => {
                self.with_generator(|generator| generator.is_applied = true);
                Completion::ok()
            }
            Err(completion) => completion,
        }
    }

    fn read(&self, client: &HttpClient) -> Result<Completion, Completion> {
        let (rows, index) = instances(client)?;
        let value = shown(&rows);
        self.with_generator(|generator| generator.instances = rows);
        Ok(Completion { version: Some(index), ..Completion::ok() }.with_value(value))
    }

    /// The processes are counted between two looks at the rows that show the same.
    fn read_settled(&self, client: &HttpClient) -> Result<Completion, Completion> {
        release(client)?;
        let (asked, counts) = (snapshot::asked(client)?, running(client)?);
        if counts != asked {
            return Err(Completion::fail(&format!("{counts:?} run, and {asked:?} are asked for")));
        }
        let (before, index) = instances(client)?;
        let idle = before.iter().find(|row| row.state != "running");
        if let Some(Row { id, state, .. }) = idle {
            return Err(Completion::fail(&format!("instance {id} is {state}")));
        }
        let agents = self.machines.living().map_err(|error| scanned(&error))?;
        let started = self.machines.started().map_err(|error| scanned(&error))?;
        let destroyed = self.machines.destroyed().map_err(|error| scanned(&error))?;
        let (after, _) = instances(client)?;
        if before != after {
            return Err(Completion::fail("the instances changed while processes were counted"));
        }
        let detail = json!({
            "running": counts,
            "agents": rows(&agents),
            "started": rows(&started),
            "destroyed": destroyed,
        });
        let read = Completion { version: Some(index), detail: Some(detail), ..Completion::ok() };
        Ok(read.with_value(shown(&after)))
    }
}

/// Ends the holds and drains that there are; an error while there was one.
fn release(client: &HttpClient) -> Result<(), Completion> {
    let (rows, _) = instances(client)?;
    match rows.iter().find(|row| row.behavior != "run" && row.state != "shutdown") {
        None => Ok(()),
        Some(row) => {
            answer::written::<Value>(&behave(client, &row.id, "run"))?;
            Err(Completion::fail(&format!("instance {} was released only now", row.id)))
        }
    }
}

fn behave(client: &HttpClient, id: &str, behavior: &str) -> Reply {
    let body = json!({"Behavior": behavior, "Reason": "jepsen"});
    client.put(&format!("/v1/instance/{id}/behavior"), &body)
}

fn shut_down(client: &HttpClient, id: &str) -> Reply {
    client.put(&format!("/v1/instance/{id}/shutdown"), &json!({"Reason": "jepsen"}))
}

impl Workload for Elastic<'_> {
    type Request = Action;

    fn next(&self) -> Action {
        self.with_generator(Generator::next)
    }

    fn start(&self, action: &Action) -> Start {
        match action {
            Action::Apply => Start::new(Function::ApplyPool, json!(MACHINES_MAX)),
            Action::Scale(job, count) => Start::new(Function::Scale, json!([job_id(*job), count])),
            Action::Purge(job) => Start::new(Function::Purge, json!([job_id(*job), 0])),
            Action::Behave(id, behavior) => {
                Start::new(Function::SetBehavior, json!([id, behavior]))
            }
            Action::ShutDown(id) => Start::new(Function::ShutDownInstance, json!(id)),
            Action::ShutDownAny => Start::new(Function::ShutDownInstance, Value::Null),
            Action::Read | Action::ReadSettled => Start::new(Function::Read, Value::Null),
        }
    }

    fn perform(&self, client: &HttpClient, action: &Action) -> Completion {
        let reply = match action {
            Action::Apply => return self.apply(client),
            Action::Read => return self.read(client).unwrap_or_else(|completion| completion),
            Action::ReadSettled => {
                return self.read_settled(client).unwrap_or_else(|completion| completion);
            }
            Action::Scale(number, count) => {
                client.put("/v1/jobs", &body::registration(job(*number, *count), None))
            }
            Action::Purge(job) => client.delete(&format!("/v1/job/{}?purge=true", job_id(*job))),
            Action::Behave(id, behavior) => behave(client, id, behavior),
            Action::ShutDown(id) => shut_down(client, id),
            Action::ShutDownAny => match instances(client) {
                Ok((rows, _)) => match rows.first() {
                    Some(row) => shut_down(client, &row.id),
                    None => return Completion::fail("there is no instance"),
                },
                Err(completion) => return completion,
            },
        };
        match answer::written::<Value>(&reply) {
            Ok(_) => Completion::ok(),
            Err(completion) => completion,
        }
    }

    /// Fixed counts, at any server, and what there is from each; the same after one machine was taken away; then nothing is asked for, and from each that
    /// nothing is left.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Action)> {
        let to = |counts: [u64; JOBS]| {
            let scales = counts.into_iter().enumerate();
            let scales = scales.map(|(job, count)| (None, Action::Scale(job, count)));
            let reads = (0..servers).map(|server| (Some(server), Action::ReadSettled));
            scales.chain(reads).collect::<Vec<_>>()
        };
        let take_one = vec![(None, Action::ShutDownAny)];
        [vec![(None, Action::Apply)], to(LAST_COUNTS), take_one, to(LAST_COUNTS), to([0; JOBS])]
            .concat()
    }

    fn renew(&self, action: &Action) -> Action {
        action.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(id: &str, state: &str, behavior: &str) -> Row {
        let text = str::to_owned;
        Row { id: text(id), state: text(state), behavior: text(behavior) }
    }

    /// The requests of a whole turn of busy and quiet, with these instances.
    fn turn(instances: &[Row]) -> Vec<Action> {
        let random = Dice::numbered(7, 1);
        let instances = instances.to_vec();
        let mut generator = Generator { random, requests: 0, is_applied: false, instances };
        assert_eq!(generator.next(), Action::Apply);
        generator.is_applied = true;
        (0..BUSY + QUIET).map(|_| generator.next()).collect()
    }

    #[test]
    fn jobs_are_scaled_up_and_then_to_nothing() {
        let requests = turn(&[]);
        let busy = usize::try_from(BUSY).expect("it is small");
        let asks = |action: &Action| matches!(action, Action::Scale(_, count) if *count > 0);
        assert!(requests[..busy].iter().any(asks));
        assert!(!requests[busy..].iter().any(asks));
        assert!(requests.contains(&Action::Purge(0)) && requests.contains(&Action::Read));
    }

    #[test]
    fn one_instance_at_a_time_is_held_and_nothing_else_is_done_to_it() {
        let holds = |action: &Action| matches!(action, Action::Behave(_, "hold"));
        let free = turn(&[row("a", "running", "run"), row("b", "booting", "run")]);
        let held: Vec<&Action> = free.iter().filter(|action| holds(action)).collect();
        assert!(held.iter().all(|action| **action == Action::Behave("a".to_owned(), "hold")));
        assert!(!held.is_empty());
        assert!(free.contains(&Action::ShutDown("b".to_owned())));

        let requests = turn(&[row("a", "running", "hold"), row("b", "idle", "run")]);
        let of_a = |action: &&Action| matches!(action, Action::Behave(id, _) | Action::ShutDown(id) if id == "a");
        let of_a: Vec<&Action> = requests.iter().filter(of_a).collect();
        assert!(of_a.iter().all(|action| **action == Action::Behave("a".to_owned(), "run")));
        assert!(!requests.iter().any(holds));
    }
}
