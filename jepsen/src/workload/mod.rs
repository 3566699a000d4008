//! Driving the clients: the main phase under faults, and the last phase after the heal.
//!
//! Owns client threads, pacing and process numbers. Each thread has one request under way at most; after an
//! `info` its process is retired and a new one, with a new connection, takes its place, because the old
//! request may still be running. A request is never sent twice: a retry is a new operation.

pub(crate) mod register;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::client::HttpClient;
use crate::history::{Kind, Op, Process, Recorder};
use crate::random::Random;
use register::{Completion, Content, Generator, Request, perform};

/// How often a waiting client looks whether the run has ended.
const NAP: Duration = Duration::from_millis(20);
/// Pause between two attempts of the last phase.
const LAST_PHASE_PAUSE: Duration = Duration::from_millis(200);

/// The first process of the last phase; the main phase never comes near it.
const LAST_PHASE_PROCESS: u64 = 1_000_000_000;

/// A server as clients see it.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    /// Its name.
    pub(crate) name: String,
    /// Its HTTP address.
    pub(crate) http: SocketAddr,
}

/// What the clients do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Client threads.
    pub(crate) concurrency: usize,
    /// Operations per second, all together.
    pub(crate) rate: f64,
    /// A client's patience.
    pub(crate) timeout: Duration,
    /// The seed of their choices.
    pub(crate) seed: u64,
}

/// Everything client threads share.
pub(crate) struct Clients<'a> {
    targets: &'a [Target],
    load: Load,
    recorder: &'a Recorder,
    generator: Mutex<Generator>,
}

impl<'a> Clients<'a> {
    /// Clients that have done nothing yet.
    pub(crate) fn new(
        targets: &'a [Target],
        load: Load,
        ops_per_key: u64,
        recorder: &'a Recorder,
    ) -> Self {
        let generator = Generator::new(Random::stream(load.seed, 1), ops_per_key);
        Self { targets, load, recorder, generator: Mutex::new(generator) }
    }

    /// Client thread number `number` of the main phase; returns once `stop` is set.
    pub(crate) fn work(&self, number: usize, stop: &AtomicBool) {
        let mut random = Random::stream(self.load.seed, 100 + number as u64);
        let mut process = Identity::new(number, self.load.concurrency);
        let pace = Duration::from_secs_f64(2.0 * to_f64(self.load.concurrency) / self.load.rate);
        let pinned = number % self.targets.len();
        // Every fourth client goes to all servers, the others stay with theirs.
        let wanders = number % 4 == 3;
        let mut connections = self.connections();
        loop {
            nap(random.duration(Duration::ZERO, pace), stop);
            if stop.load(Ordering::Relaxed) {
                return;
            }
            let node = if wanders { random.below(self.targets.len()) } else { pinned };
            let (key, request) = self.with_generator(Generator::next);
            let completion = self.perform(process.number, &connections, node, key, &request, false);
            if completion.kind == Kind::Info {
                process.retire();
                connections = self.connections();
            }
        }
    }

    /// Writes every key once, at any server, then reads it once from each; what fails is tried again as a
    /// new operation until `deadline`.
    pub(crate) fn last_phase(&self, deadline: Instant) {
        let mut process = Identity { number: LAST_PHASE_PROCESS, step: 1 };
        let mut connections = self.connections();
        for key in self.with_generator(|generator| generator.keys()) {
            let read_from = (0..self.targets.len()).map(Some);
            for turn in std::iter::once(None).chain(read_from) {
                for attempt in 0.. {
                    if Instant::now() >= deadline {
                        return;
                    }
                    let (node, request) = match turn {
                        None => {
                            (attempt % self.targets.len(), self.with_generator(Generator::write))
                        }
                        Some(node) => (node, Request::Read),
                    };
                    let done =
                        self.perform(process.number, &connections, node, key, &request, true);
                    match done.kind {
                        Kind::Ok => break,
                        Kind::Info => {
                            process.retire();
                            connections = self.connections();
                        }
                        Kind::Fail | Kind::Invoke => {}
                    }
                    std::thread::sleep(LAST_PHASE_PAUSE);
                }
            }
        }
    }

    fn connections(&self) -> Vec<HttpClient> {
        self.targets.iter().map(|target| HttpClient::new(target.http, self.load.timeout)).collect()
    }

    /// Records the start, performs the request, records the end.
    fn perform(
        &self,
        process: u64,
        connections: &[HttpClient],
        node: usize,
        key: u64,
        request: &Request,
        last_phase: bool,
    ) -> Completion {
        let mut op =
            Op::new(Process::Client(process), Kind::Invoke, request.function(), request.value(key));
        op.expected = request.expected();
        op.node = Some(self.targets[node].name.clone());
        op.last_phase = last_phase;
        self.recorder.record(op.clone());
        let completion = perform(&connections[node], key, request);
        op.kind = completion.kind;
        op.error.clone_from(&completion.error);
        if let Some(content) = completion.content {
            op.version = Some(content.version);
            if *request == Request::Read {
                op.value = serde_json::json!([key, content.value]);
            }
        }
        self.recorder.record(op);
        if let Some(content @ Content { value: Some(_), .. }) = completion.content {
            self.with_generator(|generator| generator.learn(key, content));
        }
        completion
    }

    fn with_generator<T>(&self, act: impl FnOnce(&mut Generator) -> T) -> T {
        act(&mut self.generator.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The process number of one client thread.
struct Identity {
    number: u64,
    step: u64,
}

impl Identity {
    fn new(number: usize, concurrency: usize) -> Self {
        Self { number: number as u64, step: concurrency as u64 }
    }

    fn retire(&mut self) {
        self.number += self.step;
    }
}

fn nap(length: Duration, stop: &AtomicBool) {
    let end = Instant::now() + length;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() || stop.load(Ordering::Relaxed) {
            return;
        }
        std::thread::sleep(left.min(NAP));
    }
}

fn to_f64(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

#[cfg(test)]
#[path = "pipeline_tests.rs"]
mod tests;
