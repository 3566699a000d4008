//! Driving the clients: the main phase under faults, and the last phase after the heal.
//!
//! Owns client threads, pacing and process numbers. Each thread has one request under way at most; after an
//! `info` its process is retired and a new one, with a new connection, takes its place, because the old
//! request may still be running. A request is never sent twice (a retry is a new operation), unless under an
//! idempotency key as a part of one operation.

pub(crate) mod allocs;
pub(crate) mod answer;
pub(crate) mod append;
pub(crate) mod bank;
pub(crate) mod body;
pub(crate) mod elastic;
mod etcd;
#[cfg(test)]
mod fake_server;
pub(crate) mod jobs;
pub(crate) mod queue;
pub(crate) mod register;
pub(crate) mod set;
pub(crate) mod snapshot;
pub(crate) mod watch;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    client::HttpClient,
    history::{Function, Kind, Op, Process, Recorder},
    machines::Machines,
    system::System,
};
use answer::Completion;
use chance::Dice;

/// How often a waiting client looks whether the run has ended.
const NAP: Duration = Duration::from_millis(20);
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

/// The agent processes of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Agents {
    /// How many simulate nodes.
    pub(crate) simulating: usize,
    /// How many nodes each of these simulates.
    pub(crate) nodes: u32,
    /// How many are one real node each, which runs [`crate::task`].
    pub(crate) real: usize,
}

impl Agents {
    /// All of them; those that simulate nodes come first.
    pub(crate) fn count(self) -> usize {
        self.simulating + self.real
    }
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
    /// The system they talk to.
    pub(crate) system: System,
    /// How fresh they ask reads to be.
    pub(crate) read_mode: ReadMode,
    /// How they try again in the last phase.
    pub(crate) last_phase: LastPhase,
}

/// How clients try again in the last phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastPhase {
    /// Pause between two attempts.
    pub(crate) pause: Duration,
    /// Least time for the next request after one was answered.
    pub(crate) step_timeout_min: Duration,
}

impl Default for LastPhase {
    fn default() -> Self {
        Self { pause: Duration::from_millis(200), step_timeout_min: Duration::from_secs(10) }
    }
}

/// How fresh an answer to a read is asked to be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum ReadMode {
    /// Nothing is said about it; the server then answers as of now.
    #[default]
    Default,
    /// Asked for as `consistent`, which the server takes for its default.
    Consistent,
    /// Asked for as `stale`: whatever the server asked holds. Expected to fail under faults, and now and then without.
    Stale,
}

impl ReadMode {
    /// The name on the command line and in `test.json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Consistent => "consistent",
            Self::Stale => "stale",
        }
    }

    /// The path of a read, with what asks for it.
    pub(crate) fn path(self, path: &str) -> String {
        let mark = if path.contains('?') { '&' } else { '?' };
        match self {
            Self::Default => path.to_owned(),
            Self::Consistent | Self::Stale => format!("{path}{mark}{}=true", self.name()),
        }
    }
}

/// What clients can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadKind {
    /// Read, write and compare-and-set registers.
    Register,
    /// Register jobs with unique names and list them.
    Set,
    /// Append to lists and read them in transactions of one to four steps.
    Append,
    /// Ask for evaluations; each must be processed.
    Queue,
    /// Fill nodes up, drain and crash them; read nodes and allocations as one state.
    Bank,
    /// Register, stop and purge jobs and read their versions.
    Jobs,
    /// Change counts while agents crash and come back.
    Allocs,
    /// Change jobs under the eyes of blocking queries, lists and stale reads.
    Watch,
    /// Ask for more machines and for fewer, of a pool whose machines are processes.
    Elastic,
}

impl WorkloadKind {
    /// The name on the command line and in `test.json`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Register => "register",
            Self::Set => "set",
            Self::Append => "append",
            Self::Queue => "queue",
            Self::Bank => "bank",
            Self::Jobs => "jobs",
            Self::Allocs => "allocs",
            Self::Watch => "watch",
            Self::Elastic => "elastic",
        }
    }

    /// The workload of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|kind| kind.name() == name)
    }

    /// The agents it needs.
    pub(crate) fn agents(self) -> Agents {
        match self {
            Self::Register
            | Self::Set
            | Self::Append
            | Self::Jobs
            | Self::Watch
            | Self::Elastic => Agents { simulating: 0, nodes: 0, real: 0 },
            Self::Queue => Agents { simulating: 1, nodes: 4, real: 0 },
            Self::Bank => Agents { simulating: 3, nodes: 3, real: 0 },
            Self::Allocs => Agents { simulating: 3, nodes: 3, real: 2 },
        }
    }

    /// Whether agents crash and freeze during the main phase.
    pub(crate) fn torments_agents(self) -> bool {
        match self {
            Self::Register
            | Self::Set
            | Self::Append
            | Self::Jobs
            | Self::Queue
            | Self::Watch
            | Self::Elastic => false,
            Self::Bank | Self::Allocs => true,
        }
    }

    /// Whether the servers have a provider, whose machines are agents that they start.
    pub(crate) fn has_machines(self) -> bool {
        self == Self::Elastic
    }

    /// Whether its reads can be asked for in another mode; the others mix modes, or read many things as one state.
    pub(crate) fn has_read_modes(self) -> bool {
        match self {
            Self::Register | Self::Set => true,
            Self::Append
            | Self::Queue
            | Self::Bank
            | Self::Jobs
            | Self::Allocs
            | Self::Watch
            | Self::Elastic => false,
        }
    }

    /// The functions that must have succeeded at least once for a run to prove anything.
    pub(crate) fn required(self) -> &'static [Function] {
        use Function::{
            Add, ApplyPool, Cas, Drain, DrainNode, Enqueue, Evaluate, MarkNode, Purge, Read,
            RestoreNode, Scale, SetBehavior, ShutDownInstance, Stop, Txn, Versions, Watch, Write,
        };
        match self {
            Self::Register => &[Read, Write, Cas],
            Self::Set => &[Add, Read],
            Self::Append => &[Txn],
            Self::Queue => &[Enqueue, Evaluate, Drain],
            Self::Bank => &[Scale, Stop, DrainNode, RestoreNode, MarkNode, Read],
            Self::Jobs => &[Write, Cas, Stop, Purge, Read, Versions],
            Self::Allocs => &[Scale, Stop, Read],
            Self::Watch => &[Write, Stop, Purge, Read, Watch],
            Self::Elastic => &[ApplyPool, Scale, Purge, SetBehavior, ShutDownInstance, Read],
        }
    }

    /// The function that every server must answer in the last phase; the register workload asks for more.
    pub(crate) fn last_function(self) -> Function {
        match self {
            Self::Register
            | Self::Set
            | Self::Bank
            | Self::Jobs
            | Self::Allocs
            | Self::Watch
            | Self::Elastic => Function::Read,
            Self::Append => Function::Txn,
            Self::Queue => Function::Drain,
        }
    }
}

/// How an operation starts in the history.
pub(crate) struct Start {
    /// What.
    pub(crate) f: Function,
    /// With what.
    pub(crate) value: Value,
    /// The version it demands.
    pub(crate) expected: Option<u64>,
}

impl Start {
    /// An operation that demands no version.
    pub(crate) fn new(f: Function, value: Value) -> Self {
        Self { f, value, expected: None }
    }
}

/// What the clients of one workload ask, how, and what an answer means.
pub(crate) trait Workload: Sync {
    /// One request.
    type Request;

    /// The next request of the main phase.
    fn next(&self) -> Self::Request;

    /// How it starts in the history.
    fn start(&self, request: &Self::Request) -> Start;

    /// Sends it, once.
    fn perform(&self, client: &HttpClient, request: &Self::Request) -> Completion;

    /// The requests of the last phase, each with the server it must go to (`None` = any), in order. Each is
    /// tried until it succeeds.
    fn last_phase(&self, servers: usize) -> Vec<(Option<usize>, Self::Request)>;

    /// The same request for another try; values that must be unique are new.
    fn renew(&self, request: &Self::Request) -> Self::Request;
}

/// Clients of any workload.
pub(crate) trait Drive: Sync {
    /// Client thread number `number` of the main phase; returns once `stop` is set.
    fn work(&self, number: usize, stop: &AtomicBool);

    /// The requests after the last heal; what fails is tried again as a new operation until `deadline`. A long run has many of them:
    /// the deadline moves on while they are answered.
    fn last_phase(&self, deadline: Instant);
}

/// What a run has besides servers, if its workload needs it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Fixtures<'a> {
    /// What real nodes are given to run.
    pub(crate) real_task: Option<&'a Value>,
    /// The machines of the servers' provider.
    pub(crate) machines: Option<&'a Machines>,
}

/// Clients of this workload that have done nothing yet.
pub(crate) fn clients<'a>(
    kind: WorkloadKind,
    targets: &'a [Target],
    load: Load,
    ops_per_key: u64,
    recorder: &'a Recorder,
    fixtures: Fixtures<'a>,
) -> Box<dyn Drive + 'a> {
    let random = Dice::numbered(load.seed, 1);
    match kind {
        WorkloadKind::Register => {
            let workload = register::Registers::new(load, random, ops_per_key);
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Set => {
            let workload = set::Sets::new(load.read_mode, random, ops_per_key);
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Append => {
            let workload = append::Lists::new(random, ops_per_key);
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Queue => {
            let workload = queue::Queue::new(random);
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Bank => {
            let workload = bank::Bank::new(random);
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Jobs => {
            let workload = jobs::Jobs::new(random, ops_per_key);
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Allocs => {
            let workload = allocs::Allocs::new(random, fixtures.real_task.cloned());
            Box::new(Clients { targets, load, recorder, workload })
        }
        WorkloadKind::Watch => {
            let workload = watch::Watches::new(random, ops_per_key);
            Box::new(watch::Watchers(Clients { targets, load, recorder, workload }))
        }
        WorkloadKind::Elastic => {
            let machines = fixtures.machines.expect("a run of this workload has machines");
            let workload = elastic::Elastic::new(random, machines);
            Box::new(Clients { targets, load, recorder, workload })
        }
    }
}

/// Everything client threads share.
pub(crate) struct Clients<'a, W> {
    targets: &'a [Target],
    load: Load,
    recorder: &'a Recorder,
    workload: W,
}

impl<W: Workload> Drive for Clients<'_, W> {
    fn work(&self, number: usize, stop: &AtomicBool) {
        let mut random = Dice::numbered(self.load.seed, 100 + number as u64);
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
            let node = if wanders { random.index(self.targets.len()) } else { pinned };
            let request = self.workload.next();
            let end = self.perform(process.number, &connections, node, &request, false);
            if end.kind == Kind::Info {
                process.retire();
                connections = self.connections();
            }
        }
    }

    fn last_phase(&self, mut deadline: Instant) {
        let mut process = Identity { number: LAST_PHASE_PROCESS, step: 1 };
        let mut connections = self.connections();
        for (server, mut request) in self.workload.last_phase(self.targets.len()) {
            for attempt in 0.. {
                if Instant::now() >= deadline {
                    return;
                }
                let node = server.unwrap_or(attempt % self.targets.len());
                match self.perform(process.number, &connections, node, &request, true).kind {
                    Kind::Ok => {
                        let step = self.load.last_phase.step_timeout_min;
                        deadline = deadline.max(Instant::now() + step);
                        break;
                    }
                    Kind::Info => {
                        process.retire();
                        connections = self.connections();
                    }
                    Kind::Fail | Kind::Invoke => {}
                }
                request = self.workload.renew(&request);
                std::thread::sleep(self.load.last_phase.pause);
            }
        }
    }
}

impl<W: Workload> Clients<'_, W> {
    fn connections(&self) -> Vec<HttpClient> {
        self.targets.iter().map(|target| HttpClient::new(target.http, self.load.timeout)).collect()
    }

    /// Records the start, performs the request, records the end.
    fn perform(
        &self,
        process: u64,
        connections: &[HttpClient],
        node: usize,
        request: &W::Request,
        last_phase: bool,
    ) -> Completion {
        let start = self.workload.start(request);
        let mut op = Op::new(Process::Client(process), Kind::Invoke, start.f, start.value);
        op.expected = start.expected;
        op.node = Some(self.targets[node].name.clone());
        op.last_phase = last_phase;
        self.recorder.record(op.clone());
        let completion = self.workload.perform(&connections[node], request);
        op.kind = completion.kind;
        op.error.clone_from(&completion.error);
        op.version = completion.version;
        op.detail.clone_from(&completion.detail);
        if let Some(value) = &completion.value {
            op.value.clone_from(value);
        }
        self.recorder.record(op);
        completion
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

/// Changes of unknown outcome after which a key is given up.
const DOUBTS_PER_KEY: u64 = 6;

/// Hands out keys; each is given up after so many requests.
pub(crate) struct KeyPool {
    slots: Vec<(u64, u64)>,
    requests_max: u64,
    next: u64,
}

impl KeyPool {
    /// `at_once` keys in use at the same time.
    pub(crate) fn new(at_once: u64, requests_max: u64) -> Self {
        let slots = (0..at_once).map(|key| (key, requests_max)).collect();
        Self { slots, requests_max, next: at_once }
    }

    /// A key for one request.
    pub(crate) fn take(&mut self, random: &mut Dice) -> u64 {
        let slot = random.index(self.slots.len());
        let (key, left) = &mut self.slots[slot];
        if *left == 0 {
            (*key, *left) = (self.next, self.requests_max);
            self.next += 1;
        }
        *left -= 1;
        *key
    }

    /// The outcome of a change of this key is unknown: it may take effect at any time since, which is what the search for an order takes its time
    /// over. After a few of them another key takes its place.
    pub(crate) fn doubt(&mut self, key: u64) {
        if let Some((_, left)) = self.slots.iter_mut().find(|(used, _)| *used == key) {
            *left = left.saturating_sub(self.requests_max.div_ceil(DOUBTS_PER_KEY));
        }
    }

    /// Every key used so far.
    pub(crate) fn used(&self) -> std::ops::Range<u64> {
        0..self.next
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
