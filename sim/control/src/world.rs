//! The world of one seed: servers with their applied prefixes, workers, agents, users, messages, and the steps that a schedule is made of.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{EvaluationId, Index, Plan, session::Request};
use leader::{BrokerError, Lease, NackReason, PlanAnswer, Token};

use crate::{
    Coverage, STEPS,
    agent::Agent,
    balancers::{self, Balancers},
    client::Operation,
    clocks::{self, Clocks},
    coverage::Event,
    dispatches, evictions,
    extra::{self, Extra},
    failures, groups,
    leadership::Leadership,
    lives,
    log::{Log, Ticket},
    oracle::Oracle,
    pools::{self, Pools},
    rollouts,
    stretches::{self, Stretch},
    swarm::Swarm,
    tenants,
    times::{self, Times},
    updates,
    worker::Worker,
};
use chance::Dice;

/// Log time at which every run starts.
const START_AT: u64 = 1_000_000_000_000;
/// Messages under way; above it a step delivers some.
const MAIL_MAX: usize = 64;
/// Choices made for one step until one can be done.
const TRIES: usize = 6;

/// Number of a call.
pub(crate) type CallId = u64;

/// What a worker asks of a leader.
#[derive(Clone, Debug)]
pub(crate) enum Ask {
    /// Leases of these kinds.
    Dequeue(Vec<fsm::JobKind>),
    Plan(Box<Plan>, Token, u64),
    Ack(EvaluationId, Token, u64),
    Nack(EvaluationId, Token, u64, NackReason),
}

/// A message between a worker and a leader.
pub(crate) enum Mail {
    ToLeader {
        to: usize,
        worker: usize,
        call: CallId,
        ask: Ask,
    },
    Leases {
        worker: usize,
        call: CallId,
        reply: Result<Vec<(Lease, u64)>, BrokerError>,
    },
    Answer {
        worker: usize,
        call: CallId,
        answer: Result<PlanAnswer, BrokerError>,
    },
    /// Not a leader, or no connection.
    Failed {
        worker: usize,
        call: CallId,
    },
    /// The lease is of another epoch.
    Refused {
        worker: usize,
        call: CallId,
    },
}

/// One server.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) applied: Index,
    pub(crate) leadership: Option<Box<Leadership>>,
    /// The newest term that it served in.
    pub(crate) established: u64,
    /// It applies nothing before this time.
    pub(crate) stalled_until: u64,
    /// No worker leases before this is applied.
    pub(crate) caught_up_at: Index,
    /// What its workers were told not to take.
    pub(crate) left_out: Vec<fsm::JobKind>,
    pub(crate) memory: scheduler::Memory,
}

/// Ids that look random and repeat with the seed.
pub(crate) struct Ids(Dice);

impl Ids {
    pub(crate) fn next(&mut self) -> [u8; 16] {
        let wide = u128::from(self.0.bits()) << 64 | u128::from(self.0.bits());
        wide.to_be_bytes()
    }
}

/// The world.
pub(crate) struct World {
    pub(crate) swarm: Swarm,
    pub(crate) extra: Extra,
    /// Percent of steps before which a tenant wants something.
    pub(crate) tenants: u64,
    /// What users dispatch; none: nothing.
    pub(crate) dispatches: Option<dispatches::Dispatches>,
    /// Percent of steps before which instances of a job fail together, or are looked after.
    pub(crate) failures_together: u64,
    /// What nodes go through; none: nothing new.
    pub(crate) lives: Option<lives::Lives>,
    /// Instance pools and the cloud that makes their machines; none: the seed has none.
    pub(crate) pools: Option<Pools>,
    /// Sources of requirements for groups of the pool; none: it has no groups.
    pub(crate) balancers: Option<Balancers>,
    /// Jobs that the clock starts; none: the seed has none.
    pub(crate) clocks: Option<Clocks>,
    /// The clocks of the servers, and what they know of time.
    pub(crate) times: Times,
    /// A long quiet time.
    pub(crate) stretch: Option<Stretch>,
    /// How updates are hurried in the step under way; none: they are not.
    pub(crate) hurry: Option<updates::Hurry>,
    /// What people do with deployments in the step under way; none: nothing.
    pub(crate) steering: Option<rollouts::Steering>,
    /// Dice of how jobs are divided, for the step under way; none: each has one group.
    pub(crate) groups: Option<Dice>,
    /// Dice of who evicts whom, for the step under way; none: as by default.
    pub(crate) ranks: Option<Dice>,
    /// Dice of what is extra, for the step under way.
    pub(crate) chance: Dice,
    pub(crate) log_stalled_until: u64,
    pub(crate) clock_ms: u64,
    pub(crate) log: Log,
    pub(crate) servers: Vec<Server>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) agents: Vec<Agent>,
    pub(crate) operations: Vec<Operation>,
    pub(crate) mail: Vec<Mail>,
    pub(crate) calls: CallId,
    pub(crate) ids: Ids,
    /// Nodes on which something failed.
    pub(crate) failed_on: BTreeSet<fsm::NodeId>,
    /// Server of each lease.
    pub(crate) lessees: BTreeMap<Token, u64>,
    pub(crate) oracle: Oracle,
    pub(crate) coverage: Coverage,
    pub(crate) failures: Vec<String>,
    lines: Option<Vec<String>>,
}

impl World {
    /// The world of a seed before its first step.
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut swarm = Swarm::draw(seed);
        evictions::crowd(seed, &mut swarm);
        let servers = (0..swarm.servers).map(|_| Server::default()).collect();
        let workers = (0..swarm.servers)
            .flat_map(|server| (0..swarm.workers_per_server).map(move |_| Worker::new(server)))
            .collect();
        let agents = (0..swarm.agents)
            .map(|number| Agent::new(number, swarm.scarce, swarm.rich_nodes))
            .collect();
        let pools = pools::draw(seed, swarm.servers);
        let mut world = Self {
            extra: Extra::draw(seed),
            tenants: tenants::draw(seed),
            dispatches: dispatches::draw(seed),
            failures_together: failures::draw(seed),
            lives: lives::draw(seed),
            balancers: balancers::draw(seed, pools.is_some()),
            pools,
            clocks: clocks::draw(seed),
            times: times::draw(seed, swarm.servers),
            stretch: stretches::draw(seed, STEPS),
            hurry: updates::hurry(seed, u64::MAX - 1),
            steering: rollouts::steering(seed, u64::MAX - 1),
            groups: groups::dice(seed, u64::MAX - 1),
            ranks: evictions::dice(seed, u64::MAX - 1),
            chance: extra::dice(seed, u64::MAX - 1),
            log_stalled_until: 0,
            clock_ms: 0,
            log: Log::new(START_AT),
            servers,
            workers,
            agents,
            operations: Vec::new(),
            mail: Vec::new(),
            calls: 0,
            ids: Ids(Dice::numbered(seed, u64::MAX - 1)),
            failed_on: BTreeSet::new(),
            lessees: BTreeMap::new(),
            oracle: Oracle::default(),
            coverage: Coverage::default(),
            failures: Vec::new(),
            lines: traced.then(Vec::new),
            swarm,
        };
        world.trace(|| format!("{:?} {:?}", Swarm::draw(seed), Extra::draw(seed)));
        world
    }

    /// Something that must not be.
    pub(crate) fn fail(&mut self, what: String) {
        self.trace(|| format!("FAIL {what}"));
        self.failures.push(what);
    }

    /// A line of the trace.
    pub(crate) fn trace(&mut self, line: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(format!("{:>8} {}", self.clock_ms, line()));
        }
    }

    /// The trace.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }

    /// One step of the schedule: whatever these dice say, and can be done.
    pub(crate) fn step(&mut self, dice: &mut Dice) {
        for _ in 0..TRIES {
            if self.try_step(dice) {
                break;
            }
        }
        if self.mail.len() > MAIL_MAX {
            self.deliver(dice);
        }
        self.serve_pools();
    }

    fn try_step(&mut self, dice: &mut Dice) -> bool {
        let weights = [
            5,
            16,
            self.swarm.elections,
            self.swarm.applies,
            14,
            12,
            8,
            24,
            24,
            20,
            12,
            3,
            10,
            if self.swarm.agent_trouble { 2 } else { 0 },
            if self.swarm.task_failures { 4 } else { 1 },
        ];
        let mut left = dice.below(weights.iter().sum());
        let choice = weights.iter().position(|weight| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let server = dice.index(self.servers.len());
        match choice.unwrap_or(0) {
            0 => self.use_it(dice),
            1 if self.log_is_stalled() => false,
            1 => {
                let committed = self.commit();
                for _ in 0..dice.below(3) {
                    self.commit();
                }
                committed
            }
            2 => self.elect(dice),
            3 if self.is_behind(server) => false,
            3 => self.apply_some(server, dice),
            4 => self.feed(self.acting(server, dice), dice),
            5 => self.apply_plans(self.acting(server, dice), dice),
            6 => self.command(self.acting(server, dice), dice),
            7 => self.work(dice.index(self.workers.len()), dice),
            8 => self.deliver(dice),
            9 => self.live(dice.index(self.agents.len()), dice),
            10 => self.pass_time(dice),
            11 => self.notice(server),
            12 => self.establish(self.log.leader),
            13 => self.trouble(dice.index(self.agents.len()), dice),
            _ => self.end_task(dice.index(self.agents.len()), dice, self.swarm.task_failures),
        }
    }

    /// Mostly a server that acts as a leader.
    fn acting(&self, server: usize, dice: &mut Dice) -> usize {
        let acts = |one: &usize| self.servers[*one].leadership.is_some();
        let acting: Vec<_> = (0..self.servers.len()).filter(acts).collect();
        dice.pick(&acting).unwrap_or(server)
    }

    pub(crate) fn elect(&mut self, dice: &mut Dice) -> bool {
        let leader = dice.index(self.servers.len());
        let survivors = dice.index(self.log.open() + 1);
        if self.servers[self.log.leader].established < self.log.term {
            self.coverage.count(Event::ElectedTwice);
        }
        let election = self.log.elect(leader, survivors);
        if election.survived > 0 {
            self.coverage.count(Event::SurvivedElection);
        }
        if election.lost > 0 {
            self.coverage.count(Event::LostAtElection);
        }
        let term = self.log.term;
        self.trace(|| format!("server {leader} is elected in term {term}: {election:?}"));
        // Mostly the old leader hears of it soon.
        if dice.percent(60) {
            for server in 0..self.servers.len() {
                self.notice(server);
            }
        }
        true
    }

    fn apply_some(&mut self, server: usize, dice: &mut Dice) -> bool {
        let more = dice.between(1, self.swarm.applied_at_once);
        self.apply_up_to(server, self.servers[server].applied + more)
    }

    /// A server applies what is committed, up to an index.
    pub(crate) fn apply_up_to(&mut self, server: usize, index: Index) -> bool {
        let index = index.min(self.log.last());
        let before = self.servers[server].applied;
        self.servers[server].applied = index.max(before);
        self.wake_workers(server, before);
        index > before
    }

    fn pass_time(&mut self, dice: &mut Dice) -> bool {
        let most = match dice.below(20) {
            0 if self.swarm.time_jumps => 70_000,
            0..4 => 8_000,
            _ => 400,
        };
        self.clock_ms += dice.below(most);
        true
    }

    /// Delivers one message, any of them.
    pub(crate) fn deliver(&mut self, dice: &mut Dice) -> bool {
        if self.mail.is_empty() {
            return false;
        }
        let place = dice.index(self.mail.len());
        let mail = self.mail.remove(place);
        self.deliver_this(mail, dice);
        true
    }

    /// Delivers the oldest message.
    pub(crate) fn deliver_first(&mut self, dice: &mut Dice) -> bool {
        if self.mail.is_empty() {
            return false;
        }
        let mail = self.mail.remove(0);
        self.deliver_this(mail, dice);
        true
    }

    fn deliver_this(&mut self, mail: Mail, dice: &mut Dice) {
        match mail {
            Mail::ToLeader { to, worker, call, ask } => self.take_ask(to, worker, call, ask),
            Mail::Leases { worker, call, reply } => self.take_leases(worker, call, reply),
            Mail::Answer { worker, call, answer } => self.take_answer(worker, call, answer, dice),
            Mail::Failed { worker, call } => self.take_failure(worker, call),
            Mail::Refused { worker, call } => self.take_refusal(worker, call),
        }
    }

    /// A plan's answer is on its way.
    pub(crate) fn reply_plan(
        &mut self,
        worker: usize,
        call: CallId,
        answer: Result<PlanAnswer, BrokerError>,
    ) {
        self.mail.push(Mail::Answer { worker, call, answer });
    }

    /// A server that acts as a leader, mostly the real one.
    pub(crate) fn some_leader(&self, dice: &mut Dice) -> Option<usize> {
        let acts = |one: usize| self.servers[one].leadership.is_some();
        if acts(self.log.leader) && dice.percent(85) {
            return Some(self.log.leader);
        }
        let acting: Vec<_> = (0..self.servers.len()).filter(|one| acts(*one)).collect();
        dice.pick(&acting)
    }

    /// Proposes for a client or an agent through some server.
    pub(crate) fn propose_for_client(
        &mut self,
        command: fsm::Command,
        request: Option<Request>,
        dice: &mut Dice,
    ) -> Option<Ticket> {
        let server = self.some_leader(dice)?;
        self.with_leadership(server, |world, leadership| {
            world.propose(leadership, command, request, false)
        })
    }
}
