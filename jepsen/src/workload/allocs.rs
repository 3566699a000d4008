//! The allocs workload: counts change while agents crash, freeze and come back.
//!
//! Owns what is asked and what an answer means. There is always room for everything, so that after the last
//! heal every job must have exactly what it asks for, running, in the servers' eyes and in the agents'.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::bank::shown;
use super::{Start, Workload, body, snapshot};
use crate::client::HttpClient;
use crate::history::Function;
use crate::random::Random;

/// Jobs whose counts change.
const JOBS: usize = 4;
/// Most allocations of one job.
const COUNT_MAX: usize = 8;

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Give the job this count.
    Scale(u64, u64),
    /// List nodes and allocations.
    Read,
    /// List them once every job has what it asks for.
    ReadConverged,
}

/// The workload's state.
pub(crate) struct Allocs {
    random: Mutex<Random>,
}

impl Allocs {
    /// No jobs yet.
    pub(crate) fn new(random: Random) -> Self {
        Self { random: Mutex::new(random) }
    }
}

impl Workload for Allocs {
    type Request = Action;

    fn next(&self) -> Action {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        if random.below(10) < 4 {
            return Action::Read;
        }
        Action::Scale(random.below(JOBS) as u64, random.below(COUNT_MAX + 1) as u64)
    }

    fn start(&self, action: &Action) -> Start {
        match action {
            Action::Scale(job, count) => {
                Start::new(Function::Scale, json!([format!("a{job}"), count]))
            }
            Action::Read | Action::ReadConverged => Start::new(Function::Read, Value::Null),
        }
    }

    fn perform(&self, client: &HttpClient, action: &Action) -> Completion {
        let found = match action {
            Action::Read => snapshot::read(client),
            Action::ReadConverged => snapshot::read_converged(client),
            Action::Scale(job, count) => {
                let size = body::Size { cpu_mhz: 50, memory_mb: 32, ports: vec![("dynamic", 0)] };
                let job = body::service(&format!("a{job}"), *count, &size);
                let reply = client.put("/v1/jobs", &body::registration(job, None));
                return match answer::written::<Value>(&reply) {
                    Ok(_) => Completion::ok(),
                    Err(completion) => completion,
                };
            }
        };
        match found {
            Ok(snapshot) => shown(&snapshot),
            Err(completion) => completion,
        }
    }

    /// One count per job, at any server, then everything from each server, converged.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Action)> {
        let scales = (0..JOBS as u64).map(|job| (None, Action::Scale(job, 2 + job)));
        let reads = (0..servers).map(|server| (Some(server), Action::ReadConverged));
        scales.chain(reads).collect()
    }

    fn renew(&self, action: &Action) -> Action {
        *action
    }
}
