//! The machines together, with the real `apply` and the real scheduler, in random orders: whatever
//! happens, and whenever a leader dies, in the end every job has what it wants or an evaluation
//! that waits for room that is not there.
//!
//! ```text
//!  changes (jobs, nodes, agents' reports) ─► apply ─► effects ─► Services ─► commands, applied later
//!                                              ▲                   │ lease
//!                                              └── plan of a snapshot ◄── worker, any time later
//! ```
//! The driver decides only what happens next; the real parts decide what runs where.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use fsm::{
    AllocationId, ClientStatus, Command, DeploymentStatus, EvaluationStatus, JobKind, JobSpec,
    Liveness, Node, NodeId, Plan, Reply, State, Trigger,
    allocation::{ClientUpdate, NodeReport, UpdateAllocations},
    job::{DelayFunction, DeregisterJob, HealthCheck, ReschedulePolicy, UpdateStrategy},
    node::{
        Drain, Driver as TaskDriver, LivenessChange, NodeLiveness, NodeReadiness, Readiness,
        RegisterNode, SetDrain, SetEligibility,
    },
    plan::ApplyPlans,
    testing::{ASK, Driver, description, job, job_key, node_id, register},
    upkeep::Tick,
};
use proptest::prelude::*;
use scheduler::Pass;

use crate::{
    GcConfig, Lease, Machine, NackReason, Services, ServicesConfig,
    broker::{Count, Token},
    heartbeat::HeartbeatConfig,
    limits,
};

const NODES: [&str; 4] = ["a", "b", "c", "d"];
const JOBS: [&str; 4] = ["one", "two", "three", "four"];
const SERVER: u64 = 1;
/// Time from one look at whether all has settled to the next, ms.
const ROUND_MS: u64 = 5_000;
/// So many rounds that what had conflicts has been tried again, and once more.
const ROUNDS_OF_RETRIES: u64 = 2 * limits::UNBLOCK_FAILED_MS / ROUND_MS + 1;
/// Longer than any script.
const NEVER_MS: u64 = 1 << 50;

/// What happens from outside.
#[derive(Clone, Debug)]
enum Event {
    Register { job: usize, count: u32, version: u8 },
    Deregister { job: usize, purge: bool },
    Down(usize),
    Back(usize),
    Eligible(usize, bool),
    Drain(usize, bool),
    End(usize, ClientStatus),
    NewLeader,
    Later(u64),
}

fn event() -> impl Strategy<Value = Event> {
    let node = 0..NODES.len();
    let job = 0..JOBS.len();
    prop_oneof![
        4 => (job.clone(), 0..14u32, 0..3u8)
            .prop_map(|(job, count, version)| Event::Register { job, count, version }),
        1 => (job, any::<bool>()).prop_map(|(job, purge)| Event::Deregister { job, purge }),
        1 => node.clone().prop_map(Event::Down),
        2 => node.clone().prop_map(Event::Back),
        1 => (node.clone(), any::<bool>()).prop_map(|(node, on)| Event::Eligible(node, on)),
        1 => (node, any::<bool>()).prop_map(|(node, on)| Event::Drain(node, on)),
        3 => (0..64usize, prop::sample::select(vec![ClientStatus::Failed, ClientStatus::Complete]))
            .prop_map(|(number, how)| Event::End(number, how)),
        1 => Just(Event::NewLeader),
        2 => (1..40_000u64).prop_map(Event::Later),
    ]
}

/// A leased evaluation, and the state that its worker looks at.
struct Work {
    lease: Lease,
    snapshot: State,
    attempt: u32,
    rejected: u32,
}

/// What became of a plan.
enum Submitted {
    Done,
    /// Something of it was taken.
    Progress,
    Rejected,
}

/// Everything a leader has, the workers, and a state.
struct World {
    driver: Driver,
    services: Services,
    work: Vec<Work>,
    tokens: u64,
}

/// Nobody beats here and nothing is forgotten: nodes go and come as the script says.
fn services() -> Services {
    let heartbeat = HeartbeatConfig { ttl_ms_min: NEVER_MS, ..HeartbeatConfig::default() };
    let gc = GcConfig { interval_ms: NEVER_MS, ..GcConfig::default() };
    Services::new(&ServicesConfig { heartbeat, gc, ..ServicesConfig::default() })
}

fn kind_of(job: usize) -> JobKind {
    [JobKind::Service, JobKind::Service, JobKind::Batch, JobKind::System][job]
}

fn spec(number: usize, count: u32, version: u8) -> JobSpec {
    let kind = kind_of(number);
    let mut spec = job(JOBS[number], kind, if kind.is_per_node() { count.min(1) } else { count });
    let group = &mut spec.groups[0];
    group.tasks[0].user = format!("v{}", version / 2).into();
    group.tasks[0].kill_timeout_ms += u64::from(version);
    if kind == JobKind::System {
        group.tasks[0].resources.cpu_mhz = 1_500;
    }
    if !kind.is_per_node() {
        group.reschedule = Some(ReschedulePolicy {
            attempts: 0,
            interval_ms: 0,
            delay_ms: 20_000,
            delay_function: DelayFunction::Constant,
            delay_ms_max: 0,
            unlimited: true,
        });
    }
    if matches!(number, 1 | 3) {
        group.update = Some(UpdateStrategy {
            stagger_ms: 10_000,
            max_parallel: 2,
            healthy_ms_min: 5_000,
            healthy_deadline_ms: 300_000,
            progress_deadline_ms: 600_000,
            health_check: HealthCheck::TaskStates,
            canaries: if number == 1 { u32::from(version % 3) } else { 0 },
            auto_promote: true,
            auto_revert: version.is_multiple_of(2),
        });
    }
    spec
}

impl World {
    fn new() -> Self {
        let mut world =
            Self { driver: Driver::default(), services: services(), work: Vec::new(), tokens: 0 };
        world.lead();
        for node in 0..NODES.len() {
            world.back(node);
        }
        world
    }

    /// Another leader: what is in flight is lost, and the machines are built from the state.
    fn lead(&mut self) {
        self.work.clear();
        let (now, state) = (self.driver.now, self.driver.state.clone());
        self.services = services();
        self.services.restore(now, &state);
    }

    fn commit(&mut self, command: Command) -> Reply {
        let applied = self.driver.commit(command);
        let (now, index) = (self.driver.now, applied.index);
        for effect in applied.effects {
            self.services.take(now, &self.driver.state, index, &effect);
        }
        applied.reply
    }

    /// One look of the leader's services.
    fn look(&mut self) {
        let now = self.driver.now;
        let state = self.driver.state.clone();
        let driver = &mut self.driver;
        self.services.step(now, &state, || driver.id());
    }

    fn apply_proposed(&mut self) -> bool {
        let Some(command) = self.services.next_command() else { return false };
        self.commit(command);
        true
    }

    /// A worker leases an evaluation; its snapshot is of now.
    fn lease(&mut self) -> bool {
        let now = self.driver.now;
        let tokens = &mut self.tokens;
        let token = || -> Token {
            *tokens += 1;
            u128::from(*tokens).to_be_bytes()
        };
        let snapshot = self.driver.state.clone();
        let dispatch = self.services.dispatch_mut();
        let given = dispatch.dequeue(now, &snapshot, &JobKind::ALL, 1, SERVER, token).unwrap();
        for lease in &given {
            assert!(lease.wait_index <= snapshot.index());
            let (lease, snapshot) = (lease.clone(), snapshot.clone());
            self.work.push(Work { lease, snapshot, attempt: 0, rejected: 0 });
        }
        !given.is_empty()
    }

    /// A worker does one pass and submits its plan.
    fn plan(&mut self, number: usize) -> bool {
        if self.work.is_empty() {
            return false;
        }
        let mut work = self.work.swap_remove(number % self.work.len());
        let (id, token) = (work.lease.evaluation.id, work.lease.token);
        if self.services.dispatch().outstanding(id) != Some(token) {
            return true;
        }
        let row = work.snapshot.evaluations().get(&id).unwrap().clone();
        if row.status.is_terminal() {
            self.services.dispatch_mut().ack(self.driver.now, id, token).unwrap();
            return true;
        }
        let pass = Pass {
            state: &work.snapshot,
            evaluation: &row,
            now: work.snapshot.at().max(row.wait_until),
            attempt: work.attempt,
        };
        let plan = if work.rejected >= scheduler::attempts_max(row.kind) {
            scheduler::exhausted(&pass).unwrap()
        } else {
            scheduler::schedule(&pass).unwrap()
        };
        assert_eq!(scheduler::check::check(&work.snapshot, &plan), Vec::new());
        work.attempt += 1;
        match self.submit(plan) {
            Submitted::Done => return true,
            Submitted::Progress => work.rejected = 0,
            Submitted::Rejected => work.rejected += 1,
        }
        work.snapshot = self.driver.state.clone();
        self.work.push(work);
        true
    }

    /// The applier: tries the plan on the state, and commits what is left of it.
    fn submit(&mut self, plan: Plan) -> Submitted {
        let mut overlay = self.driver.state.clone();
        let id = plan.evaluation;
        if let Ok(trial) = overlay.try_plan(&plan, &|_, _, _| Ok(Vec::new())) {
            let progress = !trial.plan.is_no_op();
            let plans = vec![Arc::new(trial.plan)];
            let Reply::Plans(verdicts) = self.commit(Command::from(ApplyPlans { plans })) else {
                panic!("not a reply to plans");
            };
            return match (verdicts[0].outcome_taken, progress) {
                (true, _) => Submitted::Done,
                (false, true) => Submitted::Progress,
                (false, false) => Submitted::Rejected,
            };
        }
        let row = self.driver.state.evaluations().get(&id);
        let closed = row.is_none_or(|row| row.status.is_terminal());
        if closed { Submitted::Done } else { Submitted::Rejected }
    }

    fn back(&mut self, node: usize) {
        let name = NODES[node];
        let mut description = description(name);
        let usable = TaskDriver { detected: true, healthy: true, ..TaskDriver::default() };
        description.drivers.insert("mock".into(), usable);
        self.commit(Command::from(RegisterNode {
            instance: None,
            node: node_id(name),
            secret: [7; 16],
            identity: [1; 16],
            description: Arc::new(description),
            evaluation_ids: Vec::new(),
        }));
        self.report(node_id(name), Vec::new());
        let (node, incarnation) = (node_id(name), self.driver.node_row(name).incarnation);
        let readiness = Readiness::Ok;
        let evaluation_ids = Vec::new();
        self.commit(Command::from(NodeReadiness {
            node,
            incarnation,
            readiness,
            reason: "".into(),
            sequence: self.driver.state.index(),
            evaluation_ids,
        }));
    }

    /// What an agent says of allocations.
    fn report(&mut self, node: NodeId, statuses: Vec<(AllocationId, ClientStatus)>) {
        let incarnation = self.driver.state.nodes().get(&node).unwrap().incarnation;
        let update = |(id, status): (AllocationId, ClientStatus)| {
            let own = self.driver.allocation(id).deployment;
            // Who runs is healthy at once.
            let health = own.map(|own| (own.id, status == ClientStatus::Running));
            ClientUpdate { health, ..self.driver.update(id, status) }
        };
        let updates = statuses.into_iter().map(update).collect();
        let report = NodeReport { node, incarnation, updates, evaluation_ids: Vec::new() };
        self.commit(Command::from(UpdateAllocations { reports: vec![report] }));
    }

    /// Agents that are heard from start what is new and end what is stopped.
    fn agents(&mut self) {
        for name in NODES {
            let node = node_id(name);
            if self.node(name).is_none_or(|row| row.liveness != Liveness::Ready) {
                continue;
            }
            let rows = self.driver.state.allocations_of_node(node);
            let changed: Vec<_> = rows
                .filter(|row| !row.client.is_terminal())
                .filter_map(|row| match (row.is_server_terminal(), row.client) {
                    (true, _) => Some((row.id, ClientStatus::Complete)),
                    (false, ClientStatus::Pending) => Some((row.id, ClientStatus::Running)),
                    (false, client) => {
                        // It runs on as an instance of another version.
                        let unsaid = row.deployment.is_some_and(|own| own.health.is_none());
                        unsaid.then_some((row.id, client))
                    }
                })
                .collect();
            if !changed.is_empty() {
                self.report(node, changed);
            }
        }
    }

    fn happen(&mut self, event: &Event) {
        match event {
            Event::Register { job, count, version } => {
                let evaluation = self.driver.evaluation_id();
                self.commit(register(spec(*job, *count, *version), evaluation));
            }
            Event::Deregister { job, purge } => {
                let evaluation = self.driver.evaluation_id();
                self.commit(Command::from(DeregisterJob {
                    job: job_key(JOBS[*job]),
                    purge: *purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                }));
            }
            Event::Down(node) => {
                let Some(row) = self.node(NODES[*node]) else { return };
                let (node, incarnation) = (row.id, row.incarnation);
                let changes = vec![LivenessChange { node, incarnation, liveness: Liveness::Down }];
                self.commit(Command::from(NodeLiveness {
                    changes,
                    window_ms: 1,
                    evaluation_ids: Vec::new(),
                }));
            }
            Event::Back(node) => self.back(*node),
            Event::Eligible(node, eligible) => {
                self.commit(Command::from(SetEligibility {
                    node: node_id(NODES[*node]),
                    eligible: *eligible,
                    by: "".into(),
                    reason: "".into(),
                    evaluation_ids: Vec::new(),
                }));
            }
            Event::Drain(node, on) => {
                let drain = on.then(|| Drain {
                    started_at: self.driver.now,
                    deadline_at: Some(self.driver.now + 60_000),
                    force: false,
                    ignore_system: false,
                    owner: "".into(),
                    cancelable: false,
                });
                self.commit(Command::from(SetDrain {
                    node: node_id(NODES[*node]),
                    drain,
                    mark_eligible: true,
                    meta: std::collections::BTreeMap::new(),
                    evaluation_ids: Vec::new(),
                }));
            }
            Event::End(number, how) => {
                let rows = self.driver.state.allocations().iter();
                let running: Vec<_> =
                    rows.filter(|row| row.client == ClientStatus::Running).cloned().collect();
                if let Some(row) = running.get(number % running.len().max(1)) {
                    self.report(row.node, vec![(row.id, *how)]);
                }
            }
            Event::NewLeader => {
                self.driver.term += 1;
                self.lead();
            }
            Event::Later(ms) => {
                self.driver.now += ms;
                self.commit(Command::from(Tick));
            }
        }
    }

    /// One of the things that go on by themselves, as chance has it.
    fn go_on(&mut self, chance: u8) {
        match chance % 8 {
            0 => self.agents(),
            1 | 2 => {
                self.apply_proposed();
            }
            3 | 4 => {
                self.lease();
            }
            5 => self.look(),
            _ => {
                self.plan(usize::from(chance / 8));
            }
        }
    }

    /// All goes well and time passes, until nothing is left to do.
    fn settle(&mut self) {
        for round in 0..100 {
            self.agents();
            self.look();
            while self.apply_proposed() || self.lease() || self.plan(0) {}
            self.look();
            let dispatch = self.services.dispatch();
            let queued = dispatch.stats().total != Count::default()
                || self.services.waiting().next().is_some();
            // What had conflicts is tried again each minute, for as long as it finds no room.
            let retries = |row: &Arc<fsm::Evaluation>| {
                (row.status, row.trigger) == (EvaluationStatus::Blocked, Trigger::MaxPlans)
            };
            let only_retries =
                round >= ROUNDS_OF_RETRIES && self.driver.state.evaluations().iter().any(retries);
            let is_due = dispatch.next_deadline().is_some() && !only_retries;
            let idle = !queued && !is_due && self.work.is_empty();
            let drains = self.driver.state.nodes().iter().any(|node| node.drain.is_some());
            let ends =
                |row: &Arc<fsm::Allocation>| row.is_server_terminal() && !row.client.is_terminal();
            let state = &self.driver.state;
            let waits = |row: &Arc<fsm::Allocation>| {
                let own = row.deployment.filter(|own| own.health.is_none());
                let active = own.and_then(|own| state.deployments().get(&own.id));
                row.is_live() && active.is_some_and(|row| row.is_active())
            };
            if idle && !drains && !state.allocations().iter().any(|row| ends(row) || waits(row)) {
                return;
            }
            self.driver.now += ROUND_MS;
            self.commit(Command::from(Tick));
        }
        let open: Vec<_> = self
            .driver
            .state
            .evaluations()
            .iter()
            .filter(|row| row.status == EvaluationStatus::Pending)
            .collect();
        panic!("not settled: {:?}, {open:?}", self.services.dispatch().stats());
    }

    /// One that is down for long is reaped.
    fn node(&self, name: &str) -> Option<&Node> {
        self.driver.state.nodes().get(&node_id(name)).map(|row| &**row)
    }

    fn has_room(&self, name: &str, spec: &JobSpec) -> bool {
        let Some(node) = self.node(name) else { return false };
        let mut ask = ASK;
        ask.cpu_mhz = spec.groups[0].tasks[0].resources.cpu_mhz;
        let used = self.driver.state.usage(node.id).resources.plus(ask);
        node.is_schedulable() && used.exceeds(node.description.resources.available()).is_none()
    }

    fn check(&self) {
        let state = &self.driver.state;
        for (number, name) in JOBS.iter().enumerate() {
            let key = job_key(name);
            let live: Vec<_> = state.allocations_of_job(&key).filter(|row| row.is_live()).collect();
            let row = state.jobs().get(&key).filter(|row| !row.stop);
            let Some(row) = row else {
                assert!(live.is_empty(), "{name} is stopped and {} live", live.len());
                continue;
            };
            let spec = state.current_spec(row).unwrap();
            let deployment = state.current_deployment(row);
            if deployment.is_some_and(|row| row.status == DeploymentStatus::Failed) {
                // It waits for a person.
                let places = if kind_of(number).is_per_node() { NODES.len() } else { 2 };
                let most = places * spec.groups[0].count as usize;
                assert!(live.len() <= most, "{name}: {} live", live.len());
                continue;
            }
            let blocked: Vec<_> = state
                .evaluations_of_job(&key)
                .filter(|row| row.status == EvaluationStatus::Blocked)
                .collect();
            let waits = |node: Option<NodeId>| blocked.iter().any(|row| row.node == node);
            for one in &live {
                assert_ne!(
                    state.nodes().get(&one.node).unwrap().liveness,
                    Liveness::Down,
                    "{name}"
                );
            }
            if kind_of(number).is_per_node() {
                for node in NODES {
                    let here = live.iter().filter(|one| one.node == node_id(node)).count();
                    let wanted = spec.groups[0].count as usize;
                    assert!(here <= wanted, "{here} of {name} on {node}");
                    // What ended by itself is the agent's to restart: no evaluation is made for it.
                    let ended = state.allocations_of_job(&key).any(|one| {
                        let is_run_once = kind_of(number) == JobKind::Sysbatch;
                        let has_ended = !one.is_server_terminal()
                            && matches!(one.client, ClientStatus::Failed | ClientStatus::Complete);
                        one.node == node_id(node)
                            && (has_ended || (is_run_once && one.is_ended_by_request()))
                            && (one.job_create_index, one.job_version)
                                == (row.create_index, row.version)
                    });
                    let idle = here == 0 && !ended;
                    let is_schedulable = self.node(node).is_some_and(Node::is_schedulable);
                    if wanted > 0 && idle && is_schedulable {
                        assert!(!self.has_room(node, spec), "{name} is missing on {node}");
                        assert!(waits(Some(node_id(node))), "{name} does not wait for {node}");
                    }
                }
                continue;
            }
            let done = state
                .allocations_of_job(&key)
                .filter(|_| kind_of(number) == JobKind::Batch)
                .filter(|one| {
                    let has_ended = !one.is_server_terminal();
                    one.is_ended_by_request() || (has_ended && one.client == ClientStatus::Complete)
                })
                .filter(|one| {
                    (one.job_create_index, one.job_version) == (row.create_index, row.version)
                })
                .count();
            let outdated = live.iter().filter(|one| one.job_version != row.version).count();
            // Canaries stand beside the old instances until all of them have room and are promoted.
            let canaries = live.iter().filter(|one| one.is_canary()).count();
            let wanted = spec.groups[0].count as usize;
            let most = wanted + canaries;
            assert!(live.len() + done <= most, "{name}: {} and {done} of {most}", live.len());
            if live.len() + done < wanted || outdated > 0 {
                assert!(waits(None), "{name}: {} of {wanted}, nobody waits", live.len());
            }
            if live.len() + done < wanted {
                for node in NODES {
                    assert!(!self.has_room(node, spec), "{name} waits and {node} has room");
                }
            }
        }
    }
}

/// Plays a script to its end, and judges what is left.
fn live(script: &[(Event, Vec<u8>)]) {
    let mut world = World::new();
    for (event, chances) in script {
        world.happen(event);
        for chance in chances {
            world.go_on(*chance);
        }
    }
    world.settle();
    world.check();
}

/// Each case is a life of a cluster with every invariant checked after each entry: a quarter of the
/// usual number of them.
fn cases() -> ProptestConfig {
    let usual = ProptestConfig::default();
    ProptestConfig { cases: usual.cases.div_ceil(4), ..usual }
}

proptest! {
    #![proptest_config(cases())]

    /// Accepted jobs reach their state, whatever is lost on the way and however often the leader
    /// changes.
    #[test]
    fn whatever_happens_jobs_get_what_they_want(
        script in prop::collection::vec((event(), prop::collection::vec(any::<u8>(), 0..12)), 1..25),
    ) {
        live(&script);
    }
}

/// A lease that is given back is handed out again.
#[test]
fn a_lease_that_is_given_back_is_not_forgotten() {
    let mut world = World::new();
    world.happen(&Event::Register { job: 0, count: 3, version: 0 });
    assert!(world.lease());
    let Lease { evaluation, token, .. } = world.work.remove(0).lease;
    let now = world.driver.now;
    world.services.dispatch_mut().nack(now, evaluation.id, token, NackReason::Failed).unwrap();
    world.driver.now += limits::NACK_DELAY_FIRST_MS;
    world.settle();
    world.check();
    assert_eq!(world.driver.evaluation(evaluation.id).status, EvaluationStatus::Complete);
}

/// Scripts that random runs have found.
#[test]
fn jobs_get_what_they_want_in_lives_that_once_went_wrong() {
    let register = |job, count, version| Event::Register { job, count, version };
    let failed = |number| Event::End(number, ClientStatus::Failed);
    let scripts: [Vec<(Event, Vec<u8>)>; 2] = [
        // An instance of a system job ends after the pass that left it for the next step has
        // looked.
        vec![
            (Event::Down(0), vec![]),
            (register(3, 1, 0), vec![]),
            (register(0, 0, 0), vec![107, 54]),
            (register(3, 1, 2), vec![200, 203, 211]),
            (Event::End(2, ClientStatus::Complete), vec![]),
        ],
        // Promoted canaries are of an older version when the ones whose names they share are
        // replaced.
        vec![
            (register(1, 4, 0), vec![]),
            (Event::Eligible(0, true), vec![]),
            (register(2, 0, 0), vec![83, 222]),
            (register(1, 8, 2), vec![147]),
            (failed(0), vec![91]),
            (Event::Back(0), vec![142, 200]),
            (failed(7), vec![]),
            (failed(7), vec![]),
            (register(1, 5, 0), vec![]),
        ],
    ];
    for script in &scripts {
        live(script);
    }
}
