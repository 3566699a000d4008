//! Pools in bulk, in simulated time: how long jobs wait when some boots fail, what that costs in
//! entries and calls, and what a leader does when nothing changes.
//!
//! ```text
//!  jobs ─► State ─► effects ─► Services ─► commands ─────────────────► State
//!                                 │  lease ─► scheduler ─► PlanApplier ──┘
//!                                 └─ calls ─► FakeCloud ─► machines whose agents register, run and report
//! ```
//! All parts are the real ones but the provider and the agents. A test build runs a twentieth of it; the
//! whole, 1,000 instances in 10 pools and 10,000 jobs, with its times:
//! `cargo test --release -p control in_bulk -- --nocapture`.

#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "it measures, and prints what it found"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use chance::Dice;
use elastic::{
    CallId,
    call::{Answer, MachineState, Operation},
    fake::FakeCloud,
};
use fsm::{
    AllocationId, ClientStatus, Command, Effect, JobKind, NodeId, Reply, Text,
    allocation::{NodeReport, UpdateAllocations},
    node::{InstanceProof, NodeReadiness, Readiness, RegisterNode},
    pool::InstanceType,
    testing::{Driver, job, node_id},
};
use leader::{
    GcConfig, Lease, PlanAnswer, PlanApplier, PlanQueueLimits, Services, ServicesConfig,
    applier::{EntryOutcome, Next, Request},
    heartbeat::HeartbeatConfig,
    turn::{After, Begin, Turn},
};
use scheduler::Pass;

/// A twentieth in a test build.
const PARTS: u32 = if cfg!(debug_assertions) { 20 } else { 1 };
const POOLS: u32 = 10;
/// Of each pool.
const INSTANCES: u32 = 100 / PARTS;
const JOBS: u32 = 1_000 / PARTS;
const PROVIDER: &str = "fake";
/// The driver looks so often, and workers take so many leases in that time.
const LOOK_MS: u64 = 100;
const LEASES: usize = 200;
/// Times of the cloud and its machines, ms.
const CREATE_MS: (u64, u64) = (1_000, 3_000);
const CALL_MS: u64 = 300;
const BOOT_MS: (u64, u64) = (20_000, 40_000);
/// How long a job runs, ms.
const RUN_MS: (u64, u64) = (30_000, 90_000);
/// Longer than any run.
const NEVER_MS: u64 = 1 << 50;

/// What happens at its time.
enum Due {
    Answer(CallId, Operation),
    Boot(Text),
    End(AllocationId),
}

/// What a run has cost.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Work {
    entries: u64,
    passes: u64,
    steps: u64,
    creates: u64,
    calls: u64,
}

/// One leadership, its workers, and all that it leads.
struct Run {
    driver: Driver,
    services: Services,
    applier: PlanApplier<(Lease, Turn)>,
    cloud: FakeCloud,
    dice: Dice,
    /// Percent of machines whose boot fails.
    fails: u64,
    /// None: jobs do not end.
    lasts_ms: Option<(u64, u64)>,
    due: BTreeMap<(u64, u64), Due>,
    /// Nodes of which something changed that their agents have not answered.
    changed: BTreeSet<NodeId>,
    ended: u32,
    now: u64,
    order: u64,
    work: Work,
    /// The longest step of the services.
    longest: Duration,
}

impl Run {
    /// All jobs wait, and no machine is there.
    fn new(fails: u64, lasts_ms: Option<(u64, u64)>) -> Self {
        let mut driver = Driver { checked: false, ..Driver::default() };
        for pool in 0..POOLS {
            let name = format!("pool{pool}");
            driver.instance_pool(&name, |row| {
                row.provider = PROVIDER.into();
                row.max = INSTANCES;
                row.max_creates_per_hour = (10 * INSTANCES).max(100);
                let small = InstanceType { cpu: 500, ..(*row.types["small"]).clone() };
                row.types = [("small".into(), small.into())].into();
            });
            for number in 0..JOBS {
                let mut spec = job(&format!("job{pool}-{number}"), JobKind::Batch, 1);
                spec.node_pool = name.as_str().into();
                spec.groups[0].reschedule = None;
                driver.register_job(spec);
            }
        }
        // Nobody beats here.
        let heartbeat = HeartbeatConfig { ttl_ms_min: NEVER_MS, ..HeartbeatConfig::default() };
        let gc = GcConfig { interval_ms: NEVER_MS, ..GcConfig::default() };
        let providers = [(PROVIDER.into(), fsm::limits::PROVIDER_CREATES)].into();
        let config = ServicesConfig { heartbeat, gc, providers, ..ServicesConfig::default() };
        let mut services = Services::new(&config);
        services.restore(driver.now, &driver.state);
        Self {
            driver,
            services,
            applier: PlanApplier::new(PlanQueueLimits::default()),
            cloud: FakeCloud::new("zone"),
            dice: Dice::new(7),
            fails,
            lasts_ms,
            due: BTreeMap::new(),
            changed: BTreeSet::new(),
            ended: 0,
            now: 0,
            order: 0,
            work: Work::default(),
            longest: Duration::ZERO,
        }
    }

    fn commit(&mut self, command: Command) -> Reply {
        self.work.entries += 1;
        let applied = self.driver.commit(command);
        let now = self.driver.now;
        for effect in &applied.effects {
            if let Effect::NodeAllocations(node) = effect {
                self.changed.insert(*node);
            }
            self.services.take(now, &self.driver.state, applied.index, effect);
        }
        applied.reply
    }

    fn later(&mut self, ms: u64, what: Due) {
        self.order += 1;
        self.due.insert((self.now + ms, self.order), what);
    }

    /// Lets everything happen until jobs have ended, or for some time; answers with the time that it took, ms.
    fn run(&mut self, jobs: u32, most_ms: u64) -> u64 {
        let began = self.now;
        while self.ended < jobs && self.now < began + most_ms {
            self.look();
            let next = self.due.first_key_value().map(|((at, _), _)| *at);
            let start = self.driver.now - self.now;
            let services = self.services.next_deadline().map(|at| at.saturating_sub(start));
            let next = [next, services].into_iter().flatten().min();
            let next = next.unwrap_or(u64::MAX).clamp(self.now + LOOK_MS, began + most_ms);
            self.now = next;
            self.driver.at_ms(next);
        }
        self.now - began
    }

    /// What is due at one time.
    fn look(&mut self) {
        while let Some(entry) = self.due.first_entry().filter(|entry| entry.key().0 <= self.now) {
            match entry.remove() {
                Due::Answer(id, operation) => self.answer(id, &operation),
                Due::Boot(machine) => self.boot(&machine),
                Due::End(id) => self.end(id),
            }
        }
        self.step();
        while let Some((id, call)) = self.services.next_call() {
            self.work.calls += 1;
            let ms = match &call.operation {
                Operation::Create(_) => self.dice.between(CREATE_MS.0, CREATE_MS.1),
                Operation::List
                | Operation::Destroy { .. }
                | Operation::Describe { .. }
                | Operation::SetTags { .. } => CALL_MS,
            };
            self.later(ms, Due::Answer(id, call.operation));
        }
        self.schedule();
        self.start();
    }

    fn step(&mut self) {
        let (now, state) = (self.driver.now, self.driver.state.clone());
        if self.services.next_deadline().is_some_and(|at| at <= now) {
            self.work.steps += 1;
            let began = Instant::now();
            let driver = &mut self.driver;
            self.services.step(now, &state, || driver.id());
            self.longest = self.longest.max(began.elapsed());
        }
        while let Some(command) = self.services.next_command() {
            self.commit(command);
        }
    }

    /// Workers lease, plan on one snapshot, and submit; the applier's entries are applied at once.
    fn schedule(&mut self) {
        let (now, snapshot) = (self.driver.now, self.driver.state.clone());
        let driver = &mut self.driver;
        let dispatch = self.services.dispatch_mut();
        let kinds = [JobKind::Batch];
        let leases = dispatch.dequeue(now, &snapshot, &kinds, LEASES, 1, || driver.id()).unwrap();
        for lease in leases {
            let turn = Turn::new(lease.evaluation.id, scheduler::attempts_max(JobKind::Batch));
            self.plan(lease, turn);
        }
        loop {
            let (last, dispatch) = (self.driver.state.index(), self.services.dispatch());
            let outstanding = |id| dispatch.outstanding(id);
            let Next::Propose(command) = self.applier.next(&self.driver.state, last, outstanding)
            else {
                break;
            };
            let reply = self.commit(command);
            let Reply::Plans(verdicts) = reply else { panic!("not a reply to plans: {reply:?}") };
            let index = self.driver.state.index();
            self.applier.settle(EntryOutcome::Applied { index, verdicts });
            for ((lease, mut turn), answer) in self.applier.answers(index) {
                self.plan_answered(lease, &mut turn, &answer);
            }
        }
    }

    fn plan(&mut self, lease: Lease, mut turn: Turn) {
        let (id, token, now) = (lease.evaluation.id, lease.token, self.driver.now);
        let state = self.driver.state.clone();
        let Begin::Plan { evaluation, pass, .. } = turn.begin(&state) else {
            self.services.dispatch_mut().ack(now, id, token).unwrap();
            return;
        };
        self.work.passes += 1;
        let pass = Pass { state: &state, evaluation: &evaluation, now, attempt: pass };
        let plan = scheduler::schedule(&pass).unwrap();
        self.services.dispatch_mut().plan_queued(id, token).unwrap();
        self.applier.submit(now, Request { plan, bytes: 300, token, reply: (lease, turn) });
    }

    fn plan_answered(&mut self, lease: Lease, turn: &mut Turn, answer: &PlanAnswer) {
        let (id, token, now) = (lease.evaluation.id, lease.token, self.driver.now);
        self.services.dispatch_mut().plan_answered(now, id, token);
        match turn.answered(answer) {
            // Its outcome has ended the lease, or has it end now.
            After::Acknowledge => drop(self.services.dispatch_mut().ack(now, id, token)),
            After::WaitFor(_) | After::Pause => self.plan(lease, turn.clone()),
        }
    }

    fn answer(&mut self, id: CallId, operation: &Operation) {
        let answer = self.cloud.call(operation, &[]);
        if let (Operation::Create(_), Ok(Answer::Created(machine))) = (operation, &answer) {
            self.work.creates += 1;
            let ms = self.dice.between(BOOT_MS.0, BOOT_MS.1);
            self.later(ms, Due::Boot(machine.provider_id.clone()));
        }
        self.services.answered(self.driver.now, &self.driver.state, id, answer);
        self.step();
    }

    /// A machine comes up, or does not: it is broken, its agent is never heard, or never ready.
    fn boot(&mut self, machine: &Text) {
        let Some(machine) = self.cloud.machine(machine).cloned() else { return };
        let provider_id = machine.described.provider_id;
        let way = if self.dice.percent(self.fails) { Some(self.dice.below(3)) } else { None };
        match way {
            Some(0) => self.cloud.set_state(&provider_id, MachineState::Broken, "no boot disk"),
            Some(1) => {}
            Some(_) | None => {
                self.cloud.set_state(&provider_id, MachineState::Up, "");
                let mut description = machine.create.kind.description(&machine.create.pool);
                description.name = provider_id.clone();
                let node = node_id(&provider_id);
                self.commit(Command::from(RegisterNode {
                    instance: Some(InstanceProof {
                        id: machine.create.key,
                        token: machine.create.token,
                    }),
                    node,
                    secret: [7; 16],
                    identity: [1; 16],
                    description: Arc::new(description),
                    evaluation_ids: Vec::new(),
                }));
                self.changed.insert(node);
                self.start();
                let readiness = if way.is_some() { Readiness::Fatal } else { Readiness::Ok };
                self.commit(Command::from(NodeReadiness {
                    node,
                    incarnation: self.driver.state.nodes().get(&node).unwrap().incarnation,
                    readiness,
                    reason: "".into(),
                    sequence: 1,
                    evaluation_ids: Vec::new(),
                }));
            }
        }
    }

    /// Agents start what they are shown; what many say is one entry.
    fn start(&mut self) {
        let mut reports = Vec::new();
        let mut started = Vec::new();
        for node in std::mem::take(&mut self.changed) {
            let state = &self.driver.state;
            let Some(row) = state.nodes().get(&node) else { continue };
            let new = state.open_allocations_of_node(node);
            let new: Vec<_> =
                new.filter(|row| row.client == ClientStatus::Pending).map(|row| row.id).collect();
            if new.is_empty() && row.missed_index <= row.synced_index {
                continue;
            }
            let updates = new.iter().map(|id| self.driver.update(*id, ClientStatus::Running));
            let (incarnation, evaluation_ids) = (row.incarnation, Vec::new());
            let updates = updates.collect();
            reports.push(NodeReport { node, incarnation, updates, evaluation_ids });
            started.extend(new);
        }
        for id in started {
            if let Some((least, most)) = self.lasts_ms {
                let ms = self.dice.between(least, most);
                self.later(ms, Due::End(id));
            }
        }
        if !reports.is_empty() {
            self.commit(Command::from(UpdateAllocations { reports }));
        }
    }

    /// A job has done its work.
    fn end(&mut self, id: AllocationId) {
        let node = self.driver.allocation(id).node;
        let incarnation = self.driver.state.nodes().get(&node).unwrap().incarnation;
        let updates = vec![self.driver.update(id, ClientStatus::Complete)];
        let evaluation_ids = vec![self.driver.evaluation_id()];
        let report = NodeReport { node, incarnation, updates, evaluation_ids };
        self.commit(Command::from(UpdateAllocations { reports: vec![report] }));
        self.ended += 1;
    }

    fn print(&self, what: &str, took_ms: u64, began: Instant) {
        let (real, longest) = (began.elapsed(), self.longest);
        println!(
            "{what}: {} s simulated, {real:?} real; longest step {longest:?}; {:?}",
            took_ms / 1_000,
            self.work
        );
    }
}

/// Jobs in bulk, a tenth of the boots failing: all end within 1.3 times the time without failures,
/// and what it costs follows the number of jobs and machines.
#[test]
fn jobs_in_bulk_end_though_some_boots_fail() {
    let mut took = [0; 2];
    let mut work = [Work::default(); 2];
    for (number, fails) in [0, 10].into_iter().enumerate() {
        let began = Instant::now();
        let mut run = Run::new(fails, Some(RUN_MS));
        took[number] = run.run(POOLS * JOBS, 4 * 3_600_000);
        run.print(&format!("{fails} % of boots fail"), took[number], began);
        assert_eq!(run.ended, POOLS * JOBS);
        work[number] = run.work;
    }
    println!("{} % of the time without failures", took[1] * 100 / took[0]);
    assert!(took[1] * 10 <= took[0] * 13, "{took:?}");
    let (jobs, machines) = (u64::from(POOLS * JOBS), u64::from(POOLS * INSTANCES));
    for work in work {
        // Job, plan, start and end; intent, create, registration and readiness.
        assert!(work.entries <= 4 * jobs + 8 * machines, "{work:?}");
        assert!(work.creates * 4 <= machines * 5, "{work:?}");
        // One that finds no room, one that does, and few that were tried in vain.
        assert!(work.passes * 2 <= 5 * jobs, "{work:?}");
        assert!(work.calls <= 10 * machines + took[1] / 1_000, "{work:?}");
    }
    assert!(work[1].passes * 10 <= work[0].passes * 13, "{work:?}");
}

/// Machines in bulk that are all in use, and jobs that wait for more than there may be.
#[test]
fn a_leader_of_pools_in_bulk_rests_when_nothing_changes() {
    let mut run = Run::new(0, None);
    let began = Instant::now();
    run.run(u32::MAX, 1_200_000);
    run.print("until all is in use", 1_200_000, began);
    assert_eq!(run.work.creates, u64::from(POOLS * INSTANCES));
    (run.work, run.longest) = (Work::default(), Duration::ZERO);
    let began = Instant::now();
    run.run(u32::MAX, 600_000);
    run.print("at rest", 600_000, began);
    let Work { entries, passes, steps, creates, calls } = run.work;
    // A list each minute; log time goes on, and is told.
    assert_eq!((passes, creates), (0, 0));
    assert!(entries <= 12 && calls <= 12 && steps <= 60, "{:?}", run.work);
    if !cfg!(debug_assertions) {
        assert!(run.longest <= Duration::from_millis(1), "{:?}", run.longest);
    }
}
