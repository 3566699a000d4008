//! The cluster of one seed: servers with their applied prefixes over one model log, workers, agents and the messages between them, with the
//! trouble that each of them has. What users and operators want of it is in [`crate::people`]; which part acts when is in [`crate::schedule`].

pub(crate) mod agent;
pub(crate) mod coverage;
pub(crate) mod leadership;
pub(crate) mod log;
mod mail;
pub(crate) mod swarm;
pub(crate) mod times;
pub(crate) mod trouble;
mod words;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};

use chance::Dice;
use fsm::{EvaluationId, Index, session::Request};
use leader::{BrokerError, PlanAnswer, ServicesConfig, Token};

use self::{
    agent::Agent,
    coverage::{Coverage, Event},
    leadership::Leadership,
    log::{Log, Ticket},
    mail::Mail,
    swarm::Swarm,
    times::{Mishap, Times},
    trouble::Trouble,
    worker::Worker,
};
use crate::promises::CallId;

/// Log time at which every run starts.
const START_AT: u64 = 1_000_000_000_000;

/// One server.
#[derive(Default)]
pub(crate) struct Server {
    pub(crate) applied: Index,
    pub(crate) leadership: Option<Box<Leadership>>,
    /// Settings of its services when it leads.
    pub(crate) services: ServicesConfig,
    /// The newest term that it served in.
    pub(crate) established: u64,
    /// It applies nothing before this time.
    stalled_until: u64,
    /// No worker leases before this is applied.
    caught_up_at: Index,
    /// What its workers were told not to take.
    left_out: Vec<fsm::JobKind>,
    memory: scheduler::Memory,
}

impl Server {
    /// The kinds that its workers take; none: they are paused.
    fn kinds_taken(&self) -> Vec<fsm::JobKind> {
        fsm::JobKind::ALL.into_iter().filter(|kind| !self.left_out.contains(kind)).collect()
    }
}

/// Ids that look random and repeat with the seed.
pub(crate) struct Ids(Dice);

impl Ids {
    pub(crate) fn next(&mut self) -> [u8; 16] {
        let wide = u128::from(self.0.bits()) << 64 | u128::from(self.0.bits());
        wide.to_be_bytes()
    }

    /// An id for an evaluation.
    pub(crate) fn evaluation(&mut self) -> EvaluationId {
        EvaluationId(self.next())
    }

    /// Ids for so many.
    pub(crate) fn evaluations(&mut self, count: usize) -> Vec<EvaluationId> {
        (0..count).map(|_| self.evaluation()).collect()
    }
}

/// The cluster.
pub(crate) struct Cluster {
    pub(crate) swarm: Swarm,
    pub(crate) trouble: Trouble,
    /// Dice of the trouble, for the step under way.
    pub(crate) chance: Dice,
    /// The clocks of the servers, and what they know of time.
    pub(crate) times: Times,
    pub(crate) clock_ms: u64,
    pub(crate) log: Log,
    pub(crate) servers: Vec<Server>,
    pub(crate) workers: Vec<Worker>,
    pub(crate) agents: Vec<Agent>,
    pub(crate) mail: Vec<Mail>,
    calls: CallId,
    pub(crate) ids: Ids,
    /// Nodes on which something failed.
    pub(crate) failed_on: BTreeSet<fsm::NodeId>,
    /// Server of each lease.
    lessees: BTreeMap<Token, u64>,
    pub(crate) coverage: Coverage,
    pub(crate) failures: Vec<String>,
    lines: Option<Vec<String>>,
}

impl Cluster {
    /// The cluster of a seed before its first step.
    pub(crate) fn new(seed: u64, swarm: Swarm, traced: bool) -> Self {
        let services = || ServicesConfig { gc: swarm.gc, ..ServicesConfig::default() };
        let server = |_| Server { services: services(), ..Server::default() };
        let servers = (0..swarm.servers).map(server).collect();
        let workers = (0..swarm.servers)
            .flat_map(|server| (0..swarm.workers_per_server).map(move |_| Worker::new(server)))
            .collect();
        let agents = (0..swarm.agents)
            .map(|number| Agent::new(number, swarm.scarce, swarm.rich_nodes))
            .collect();
        let mut cluster = Self {
            trouble: Trouble::draw(seed),
            chance: trouble::dice(seed, u64::MAX - 1),
            times: Times::draw(seed, swarm.servers, START_AT),
            clock_ms: 0,
            log: Log::new(START_AT),
            servers,
            workers,
            agents,
            mail: Vec::new(),
            calls: 0,
            ids: Ids(Dice::numbered(seed, u64::MAX - 1)),
            failed_on: BTreeSet::new(),
            lessees: BTreeMap::new(),
            coverage: Coverage::default(),
            failures: Vec::new(),
            lines: traced.then(Vec::new),
            swarm,
        };
        let line = format!("{:?} {:?}", cluster.swarm, cluster.trouble);
        cluster.trace(|| line);
        cluster
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

    /// A line of the trace about a committed entry.
    pub(crate) fn trace_entry(&mut self, index: Index) {
        let line = self.log.at(index).map(|applied| words::reply(&applied.reply, &applied.state));
        self.trace(|| format!("{index} is committed: {}", line.unwrap_or_default()));
    }

    /// The trace.
    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.take().unwrap_or_default()
    }

    /// A server is elected; mostly the old leader hears of it soon.
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
        if dice.percent(60) {
            for server in 0..self.servers.len() {
                self.notice(server);
            }
        }
        true
    }

    /// A server applies some more of what is committed.
    pub(crate) fn apply_some(&mut self, server: usize, dice: &mut Dice) -> bool {
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

    /// Time passes, mostly a little.
    pub(crate) fn pass_time(&mut self, dice: &mut Dice) -> bool {
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

    /// Mostly a server that acts as a leader.
    pub(crate) fn acting(&self, server: usize, dice: &mut Dice) -> usize {
        let acts = |one: &usize| self.servers[*one].leadership.is_some();
        let acting: Vec<_> = (0..self.servers.len()).filter(acts).collect();
        dice.pick(&acting).unwrap_or(server)
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
        self.with_leadership(server, |cluster, leadership| {
            cluster.propose(leadership, command, request, false)
        })
    }

    /// Whether the log stands still; sometimes it begins to.
    pub(crate) fn log_is_stalled(&mut self) -> bool {
        if self.trouble.log.stalls == 0 {
            return false;
        }
        if self.clock_ms >= self.log.stalled_until && self.chance.percent(self.trouble.log.stalls) {
            self.coverage.count(Event::LogStalled);
            self.log.stalled_until = self.clock_ms + self.chance.between(100, 5_000);
        }
        self.clock_ms < self.log.stalled_until
    }

    /// Whether a server stands still and applies nothing.
    pub(crate) fn is_behind(&self, server: usize) -> bool {
        self.clock_ms < self.servers[server].stalled_until
    }

    /// Sometimes a follower begins to stand still, so that its workers have to wait
    /// for what they need to see.
    pub(crate) fn fall_behind(&mut self) {
        if !self.chance.percent(self.trouble.apply_stalls) {
            return;
        }
        let server = self.chance.index(self.servers.len());
        if self.servers[server].leadership.is_none() && !self.is_behind(server) {
            self.coverage.count(Event::ApplyStalled);
            let stalled_until = self.clock_ms + self.chance.between(500, 5_000);
            self.servers[server].stalled_until = stalled_until;
        }
    }

    /// The workers of a server leave these kinds out from now on.
    pub(crate) fn order_workers(&mut self, server: usize, left_out: Vec<fsm::JobKind>) {
        self.servers[server].left_out = left_out;
        self.end_waits_for_work(server);
    }

    /// All workers take everything.
    pub(crate) fn let_all_work(&mut self) {
        for server in 0..self.servers.len() {
            self.order_workers(server, Vec::new());
        }
    }

    /// Servers tell each other what time it is.
    pub(crate) fn tell_time(&mut self) {
        let leads = |server: usize| self.servers[server].leadership.is_some();
        match self.times.go_wrong(self.clock_ms, leads) {
            Some((server, Mishap::Jumped(by))) => {
                self.coverage.count(Event::ClockJumped);
                self.trace(|| format!("the wall clock of server {server} jumps by {by} ms"));
            }
            Some((server, Mishap::Restarted)) => {
                self.coverage.count(Event::TimeForgotten);
                self.trace(|| format!("server {server} restarts: it knows no time"));
            }
            None => {}
        }
        self.times.tell(self.clock_ms);
        let leader = self.servers[self.log.leader].leadership.as_deref();
        let leader = leader.map(|one| (one.epoch, one.now(self.clock_ms)));
        for broken in self.times.judge(self.clock_ms, leader) {
            self.fail(broken);
        }
    }

    /// Log time as the leader has it.
    pub(crate) fn leaders_now(&self) -> u64 {
        let leader = self.servers[self.log.leader].leadership.as_ref();
        leader.map_or(self.log.truth().at(), |one| one.now(self.clock_ms))
    }
}
