//! The queue workload: an element is the evaluation that a registration or `job evaluate` asks for.
//!
//! Owns what is asked and what an answer means. `enqueue N` registers the job `qN`, whose name is used once;
//! `evaluate N` asks for one more evaluation of it; `read N` looks at its evaluations; `drain` lists all
//! evaluations once none is pending. Every tenth job fits no node, so that blocked evaluations occur too.

use std::sync::{Mutex, PoisonError};

use serde::Deserialize;
use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{Start, Workload, body};
use crate::{
    client::{HttpClient, Reply},
    history::Function,
};
use chance::Dice;

/// What an evaluation is triggered by when a client asks for it.
pub(crate) const ASKED_FOR: &str = "job-register";

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Register a new job.
    Enqueue(u64),
    /// Evaluate a job again.
    Evaluate(u64),
    /// List the evaluations of a job.
    Read(u64),
    /// List all evaluations, none of which may be pending.
    Drain,
}

/// The workload's state.
pub(crate) struct Queue {
    generator: Mutex<Generator>,
}

struct Generator {
    random: Dice,
    next: u64,
    /// Jobs whose registration was acknowledged.
    known: Vec<u64>,
}

impl Queue {
    /// An empty queue.
    pub(crate) fn new(random: Dice) -> Self {
        Self { generator: Mutex::new(Generator { random, next: 0, known: Vec::new() }) }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Generator {
    fn enqueue(&mut self) -> Action {
        self.next += 1;
        Action::Enqueue(self.next - 1)
    }

    fn next(&mut self) -> Action {
        let choice = self.random.index(4);
        if choice < 2 || self.known.is_empty() {
            return self.enqueue();
        }
        let job = self.random.choose(&self.known);
        if choice == 2 { Action::Evaluate(job) } else { Action::Read(job) }
    }
}

#[derive(Deserialize)]
struct Asked {
    #[serde(rename = "EvalID")]
    evaluation: String,
}

/// An evaluation as a server shows it.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Evaluation {
    #[serde(rename = "ID")]
    id: String,
    #[serde(rename = "JobID")]
    job: String,
    triggered_by: String,
    status: String,
    modify_index: u64,
}

impl Evaluation {
    fn job_number(&self) -> Option<u64> {
        self.job.strip_prefix('q')?.parse().ok()
    }

    /// `[job id trigger status index]`, as the checker reads it.
    fn row(&self) -> Option<Value> {
        Some(json!([
            self.job_number()?,
            self.id,
            self.triggered_by,
            self.status,
            self.modify_index
        ]))
    }
}

fn job(number: u64) -> Value {
    let id = format!("q{number}");
    let size = body::Size { cpu_mhz: 1, memory_mb: 10, ports: Vec::new() };
    let mut job = body::batch(&id, &size);
    job["TaskGroups"][0]["Tasks"][0]["Config"] = json!({"run_for": "10ms"});
    if number % 10 == 9 {
        job["Constraints"] =
            json!([{"LTarget": "${attr.kernel.name}", "RTarget": "plan9", "Operand": "="}]);
    }
    job
}

fn asked(reply: &Reply) -> Completion {
    match answer::written::<Asked>(reply) {
        Ok(asked) if asked.evaluation.is_empty() => {
            Completion::info("unexpected answer: no evaluation was made")
        }
        Ok(asked) => {
            Completion { detail: Some(json!({"evaluation": asked.evaluation})), ..Completion::ok() }
        }
        Err(completion) => completion,
    }
}

fn read(client: &HttpClient, path: &str) -> Result<Vec<Evaluation>, Completion> {
    Ok(answer::read::<Vec<Evaluation>>(&client.get(path))?.0)
}

fn rows(evaluations: &[Evaluation]) -> Result<Value, Completion> {
    evaluations
        .iter()
        .map(Evaluation::row)
        .collect::<Option<Value>>()
        .ok_or_else(|| Completion::fail("unexpected answer: an evaluation of another job"))
}

fn drain(client: &HttpClient) -> Result<Completion, Completion> {
    let evaluations = read(client, "/v1/evaluations")?;
    let pending = evaluations.iter().filter(|row| row.status == "pending").count();
    if pending > 0 {
        return Err(Completion::fail(&format!("{pending} evaluations are pending")));
    }
    let elements: Vec<u64> = evaluations
        .iter()
        .filter(|row| row.triggered_by == ASKED_FOR)
        .filter_map(Evaluation::job_number)
        .collect();
    let detail = Some(json!({"evaluations": rows(&evaluations)?}));
    Ok(Completion { detail, ..Completion::ok() }.with_value(json!(elements)))
}

impl Workload for Queue {
    type Request = Action;

    fn next(&self) -> Action {
        self.with_generator(Generator::next)
    }

    fn start(&self, action: &Action) -> Start {
        match action {
            Action::Enqueue(number) => Start::new(Function::Enqueue, json!(number)),
            Action::Evaluate(number) => Start::new(Function::Evaluate, json!(number)),
            Action::Read(number) => Start::new(Function::Read, json!(number)),
            Action::Drain => Start::new(Function::Drain, Value::Null),
        }
    }

    fn perform(&self, client: &HttpClient, action: &Action) -> Completion {
        let completion = match action {
            Action::Enqueue(number) => {
                let completion =
                    asked(&client.put("/v1/jobs", &body::registration(job(*number), None)));
                if completion.detail.is_some() {
                    self.with_generator(|generator| generator.known.push(*number));
                }
                Ok(completion)
            }
            Action::Evaluate(number) => {
                let body = json!({"JobID": format!("q{number}")});
                Ok(asked(&client.put(&format!("/v1/job/q{number}/evaluate"), &body)))
            }
            Action::Read(number) => {
                let path = format!("/v1/job/q{number}/evaluations");
                read(client, &path).and_then(|found| rows(&found)).map(|rows| Completion {
                    detail: Some(json!({"evaluations": rows})),
                    ..Completion::ok()
                })
            }
            Action::Drain => drain(client),
        };
        completion.unwrap_or_else(|completion| completion)
    }

    /// One more element, at any server, then all evaluations from each.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Action)> {
        let one_more = (None, self.with_generator(Generator::enqueue));
        let drains = (0..servers).map(|server| (Some(server), Action::Drain));
        std::iter::once(one_more).chain(drains).collect()
    }

    fn renew(&self, action: &Action) -> Action {
        match action {
            Action::Enqueue(_) => self.with_generator(Generator::enqueue),
            Action::Evaluate(_) | Action::Read(_) | Action::Drain => *action,
        }
    }
}
