//! The bank workload: more is asked for than the nodes can hold, while nodes are drained and crash.
//!
//! Owns what is asked and what an answer means. Some nodes are drained and restored, the others are marked as taking no allocations and
//! as taking them again; a node's eligibility is a register. Jobs differ in size; half of them want a port by number, so
//! that at most one of their allocations fits a node. A read lists nodes and allocations as one state; what
//! is on a node must fit it at every read.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::answer::{self, Completion};
use super::{Start, Workload, body, snapshot};
use crate::{client::HttpClient, history::Function};
use chance::Dice;

/// Jobs that are scaled and stopped.
const JOBS: u32 = 8;
/// Most allocations of one job.
const COUNT_MAX: usize = 12;
/// Nodes drained at the same time, by our knowledge.
const DRAINED_MAX: usize = 2;
/// Nodes that take no allocations at the same time, by our knowledge.
const INELIGIBLE_MAX: usize = 2;
/// How long a drain waits before it stops what is left, in nanoseconds.
const DRAIN_DEADLINE_NS: u64 = 3_000_000_000;

/// One request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Give the job this count.
    Scale(u64, u64),
    /// Stop the job.
    Stop(u64),
    /// Drain the node.
    Drain(String),
    /// End the node's drain and let it take allocations.
    Restore(String),
    /// Let the node take allocations, or not.
    Mark(String, bool),
    /// List nodes and allocations.
    Read,
}

/// The workload's state.
pub(crate) struct Bank {
    generator: Mutex<Generator>,
}

struct Generator {
    random: Dice,
    nodes: BTreeSet<String>,
    drained: BTreeSet<String>,
    ineligible: BTreeSet<String>,
    /// A mark that was just made, to be taken back at once, most likely at another server, which may not know of it yet.
    chase: Option<(String, bool)>,
    /// Nodes of which a mark is under way.
    marking: BTreeSet<String>,
    /// Nodes whose marks nobody has looked at yet: another mark would hide what became of them.
    unread: BTreeSet<String>,
}

impl Bank {
    /// No jobs yet.
    pub(crate) fn new(random: Dice) -> Self {
        let [nodes, drained, ineligible, marking, unread] = [const { BTreeSet::new() }; 5];
        let generator =
            Generator { random, nodes, drained, ineligible, chase: None, marking, unread };
        Self { generator: Mutex::new(generator) }
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn read(&self, client: &HttpClient) -> Result<Completion, Completion> {
        let unread = self.with_generator(|generator| generator.unread.clone());
        let snapshot = snapshot::read(client)?;
        self.with_generator(|generator| {
            generator.unread.retain(|node| !unread.contains(node));
            generator.nodes.extend(snapshot.nodes.iter().map(|node| node.id.clone()));
        });
        Ok(shown(&snapshot))
    }
}

/// A read's end.
pub(crate) fn shown(snapshot: &snapshot::Snapshot) -> Completion {
    let value = serde_json::to_value(snapshot).expect("names and numbers are always JSON");
    Completion { version: Some(snapshot.index), ..Completion::ok() }.with_value(value)
}

impl Generator {
    fn next(&mut self) -> Action {
        if let Some((node, eligible)) = self.chase.take() {
            return self.marked(node, !eligible);
        }
        let job = self.random.index(JOBS as usize) as u64;
        match self.random.index(11) {
            0..=3 => Action::Read,
            4 => Action::Stop(job),
            5 => self.drain(),
            6 => self.restore(),
            7 => self.mark(),
            _ => Action::Scale(job, self.random.index(COUNT_MAX + 1) as u64),
        }
    }

    fn drain(&mut self) -> Action {
        let free: Vec<String> =
            self.kind(false).filter(|node| !self.drained.contains(*node)).cloned().collect();
        if free.is_empty() || self.drained.len() >= DRAINED_MAX {
            return self.restore();
        }
        let node = free[self.random.index(free.len())].clone();
        self.drained.insert(node.clone());
        Action::Drain(node)
    }

    /// Every other node is marked, the others are drained.
    fn kind(&self, marked: bool) -> impl Iterator<Item = &String> {
        let nodes = self.nodes.iter().enumerate();
        nodes.filter(move |(place, _)| place.is_multiple_of(2) == marked).map(|(_, node)| node)
    }

    /// One of the marked nodes gets another mark, or the same once more.
    fn mark(&mut self) -> Action {
        let is_free =
            |node: &&String| !self.marking.contains(*node) && !self.unread.contains(*node);
        let free: Vec<String> = self.kind(true).filter(is_free).cloned().collect();
        if free.is_empty() {
            return Action::Read;
        }
        let node = free[self.random.index(free.len())].clone();
        let turns = self.ineligible.contains(&node) || self.random.index(4) > 0;
        let eligible = self.ineligible.contains(&node) == turns;
        let is_one_too_many = !eligible && self.ineligible.len() >= INELIGIBLE_MAX;
        self.marked(node, eligible || is_one_too_many)
    }

    fn marked(&mut self, node: String, eligible: bool) -> Action {
        if eligible {
            self.ineligible.remove(&node);
        } else {
            self.ineligible.insert(node.clone());
        }
        self.marking.insert(node.clone());
        Action::Mark(node, eligible)
    }

    /// A mark has ended. Every other one that was made is taken back at once.
    fn ended(&mut self, action: &Action, is_made: bool) {
        let Action::Mark(node, eligible) = action else { return };
        self.marking.remove(node);
        self.unread.insert(node.clone());
        if is_made && self.random.index(2) == 0 {
            self.chase = Some((node.clone(), *eligible));
        }
    }

    fn restore(&mut self) -> Action {
        match self.drained.pop_first() {
            Some(node) => Action::Restore(node),
            None => Action::Read,
        }
    }
}

fn job(number: u64, count: u64) -> Value {
    let mut ports = vec![("dynamic", 0)];
    if number.is_multiple_of(2) {
        ports.push(("static", 8_000 + u16::try_from(number % 4).expect("below 4")));
    }
    let size = body::Size { cpu_mhz: 100 + 60 * number, memory_mb: 64 + 16 * number, ports };
    body::service(&format!("b{number}"), count, &size)
}

fn drain_body(drain: bool) -> Value {
    if drain {
        json!({"DrainSpec": {"Deadline": DRAIN_DEADLINE_NS, "IgnoreSystemJobs": false}})
    } else {
        json!({"DrainSpec": null, "MarkEligible": true})
    }
}

impl Workload for Bank {
    type Request = Action;

    fn next(&self) -> Action {
        self.with_generator(Generator::next)
    }

    fn start(&self, action: &Action) -> Start {
        match action {
            Action::Scale(job, count) => {
                Start::new(Function::Scale, json!([format!("b{job}"), count]))
            }
            Action::Stop(job) => Start::new(Function::Stop, json!([format!("b{job}"), null])),
            Action::Drain(node) => Start::new(Function::DrainNode, json!(node)),
            Action::Restore(node) => Start::new(Function::RestoreNode, json!(node)),
            Action::Mark(node, eligible) => Start::new(Function::MarkNode, json!([node, eligible])),
            Action::Read => Start::new(Function::Read, Value::Null),
        }
    }

    fn perform(&self, client: &HttpClient, action: &Action) -> Completion {
        let reply = match action {
            Action::Read => return self.read(client).unwrap_or_else(|completion| completion),
            Action::Scale(number, count) => {
                client.put("/v1/jobs", &body::registration(job(*number, *count), None))
            }
            Action::Stop(number) => client.delete(&format!("/v1/job/b{number}")),
            Action::Drain(node) => client.put(&format!("/v1/node/{node}/drain"), &drain_body(true)),
            Action::Restore(node) => {
                client.put(&format!("/v1/node/{node}/drain"), &drain_body(false))
            }
            Action::Mark(node, eligible) => {
                let eligibility = if *eligible { "eligible" } else { "ineligible" };
                let body = json!({"Eligibility": eligibility});
                client.put(&format!("/v1/node/{node}/eligibility"), &body)
            }
        };
        let written = answer::written::<Value>(&reply);
        self.with_generator(|generator| generator.ended(action, written.is_ok()));
        match written {
            Ok(_) => Completion::ok(),
            Err(completion) => completion,
        }
    }

    /// Ends every drain, gives every job a modest count, and lists everything at each server.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Action)> {
        let nodes = self.with_generator(|generator| generator.nodes.clone());
        let restores = nodes.into_iter().map(|node| (None, Action::Restore(node)));
        let scales = (0..u64::from(JOBS)).map(|job| (None, Action::Scale(job, 2)));
        let reads = (0..servers).map(|server| (Some(server), Action::Read));
        restores.chain(scales).chain(reads).collect()
    }

    fn renew(&self, action: &Action) -> Action {
        action.clone()
    }
}
