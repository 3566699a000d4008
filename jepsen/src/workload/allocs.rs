//! The allocs workload: counts change while agents crash, freeze and come back.
//!
//! Owns what is asked and what an answer means. There is always room for everything, so that after the last
//! heal every job must have exactly what it asks for, running, in the servers' eyes and in the agents'. Some jobs are of real processes;
//! they change more seldom, because each process is two to start, and one of them has a fixed port, which is free on a node only when its holder there
//! has ended. Jobs are stopped too, and registered again as they were, as people do.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::bank::shown;
use super::{Start, Workload, body, snapshot};
use crate::{client::HttpClient, history::Function, task::FIXED_PORT};
use chance::Dice;

/// Jobs whose counts change.
const JOBS: usize = 4;
/// Jobs of real processes.
const REAL_JOBS: usize = 2;
/// Of so many changes one is of a job of real processes.
const REAL_SHARE: usize = 8;
/// Most allocations of one job.
const COUNT_MAX: usize = 8;
/// Most allocations of each job of real processes. The last has a fixed port, of which each real node has one.
const REAL_COUNTS_MAX: [usize; REAL_JOBS] = [4, 2];
/// That port. Nobody listens.
const PORT: u16 = 7_001;
/// Of so many changes of other jobs one stops the job.
const STOP_SHARE: usize = 8;
/// Of so many registrations one is the same as the one before.
const AGAIN_SHARE: usize = 4;
/// Kinds of their tasks.
const GENERATIONS: usize = 2;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Give the job this count.
    Scale(u64, u64),
    /// Give the job of real processes this count, and its task this number, which replaces allocations of another.
    ScaleReal(u64, u64, u64),
    /// Stop the job.
    Stop(u64),
    /// List nodes and allocations.
    Read,
    /// List them once every job has what it asks for.
    ReadConverged,
}

/// The workload's state.
pub(crate) struct Allocs {
    generator: Mutex<Generator>,
    /// What real nodes are given to run.
    real_task: Option<Value>,
}

struct Generator {
    random: Dice,
    /// What each job was given last, whether that was taken or not.
    counts: [u64; JOBS],
}

/// How long simulated tasks of the job of this number take to start and to end: of each kind one, so that it is also stopped while it starts, and its
/// agent is gone before it has ended.
fn pace(job: u64) -> Value {
    let mut config = json!({});
    if job & 1 != 0 {
        config["start_block_for"] = "300ms".into();
    }
    if job & 2 != 0 {
        config["kill_after"] = "500ms".into();
    }
    config
}

impl Allocs {
    /// No jobs yet.
    pub(crate) fn new(random: Dice, real_task: Option<Value>) -> Self {
        Self { generator: Mutex::new(Generator { random, counts: [0; JOBS] }), real_task }
    }

    fn job(&self, action: &Action) -> Option<(String, u64, Value)> {
        let mut size = body::Size { cpu_mhz: 50, memory_mb: 32, ports: vec![("dynamic", 0)] };
        match (action, &self.real_task) {
            (Action::Scale(number, count), _) => {
                let id = format!("a{number}");
                let mut job = body::service(&id, *count, &size);
                job["TaskGroups"][0]["Tasks"][0]["Config"] = pace(*number);
                Some((id, *count, job))
            }
            (Action::ScaleReal(job, count, generation), Some(task)) => {
                let id = format!("r{job}");
                if *job == REAL_JOBS as u64 - 1 {
                    size.ports.push((FIXED_PORT, PORT));
                }
                let job = body::real_service(&id, *count, &size, (task, *generation));
                Some((id, *count, job))
            }
            (Action::ScaleReal(..), None)
            | (Action::Stop(_) | Action::Read | Action::ReadConverged, _) => None,
        }
    }
}

impl Workload for Allocs {
    type Request = Action;

    fn next(&self) -> Action {
        let mut generator = self.generator.lock().unwrap_or_else(PoisonError::into_inner);
        let Generator { random, counts } = &mut *generator;
        if random.index(10) < 4 {
            return Action::Read;
        }
        if self.real_task.is_some() && random.index(REAL_SHARE) == 0 {
            let job = random.index(REAL_JOBS);
            let [count, generation] =
                [REAL_COUNTS_MAX[job] + 1, GENERATIONS].map(|below| random.index(below) as u64);
            return Action::ScaleReal(job as u64, count, generation);
        }
        let job = random.index(JOBS);
        if random.index(STOP_SHARE) == 0 {
            return Action::Stop(job as u64);
        }
        if random.index(AGAIN_SHARE) != 0 {
            counts[job] = random.index(COUNT_MAX + 1) as u64;
        }
        Action::Scale(job as u64, counts[job])
    }

    fn start(&self, action: &Action) -> Start {
        if let Action::Stop(job) = action {
            return Start::new(Function::Stop, json!([format!("a{job}"), 0]));
        }
        match self.job(action) {
            Some((id, count, _)) => Start::new(Function::Scale, json!([id, count])),
            None => Start::new(Function::Read, Value::Null),
        }
    }

    fn perform(&self, client: &HttpClient, action: &Action) -> Completion {
        let change = match (action, self.job(action)) {
            (Action::Stop(job), _) => Some(client.delete(&format!("/v1/job/a{job}"))),
            (_, Some((_, _, job))) => Some(client.put("/v1/jobs", &body::registration(job, None))),
            (_, None) => None,
        };
        if let Some(reply) = change {
            return match answer::written::<Value>(&reply) {
                Ok(_) => Completion::ok(),
                Err(completion) => completion,
            };
        }
        let found = if *action == Action::ReadConverged {
            snapshot::read_converged(client)
        } else {
            snapshot::read(client)
        };
        match found {
            Ok(snapshot) => shown(&snapshot),
            Err(completion) => completion,
        }
    }

    /// One count per job, at any server, of some after a stop and as it was before; then everything from each server, converged.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Action)> {
        let jobs = 0..JOBS as u64;
        let scale = |job| (None, Action::Scale(job, 2 + job));
        let again = jobs.clone().step_by(2).flat_map(|job| [(None, Action::Stop(job)), scale(job)]);
        let scales = jobs.map(scale).chain(again);
        let real_jobs = if self.real_task.is_some() { REAL_JOBS as u64 } else { 0 };
        let real_scales = (0..real_jobs).map(|job| (None, Action::ScaleReal(job, 1 + job, job)));
        let reads = (0..servers).map(|server| (Some(server), Action::ReadConverged));
        scales.chain(real_scales).chain(reads).collect()
    }

    fn renew(&self, action: &Action) -> Action {
        *action
    }
}
