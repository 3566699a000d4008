//! One leadership on one server: the real [`leader::Services`] and plan applier, with the driver in
//! place of the async shell.
//!
//! Modelled of the shell (`src/server/src/leadership`): commands of the machines are
//! proposed one after the other; the applier's outcomes come in the order of its proposals; a plan
//! that waits for its snapshot holds the applier up; while a plan is queued its lease does not run
//! out, and dropping the call starts the timer again; a server that lost its term goes on until it
//! notices.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fsm::{
    Command, EvaluationId, Index, JobKey, Liveness, NodeId, Proposal, command::NodeCommand,
    node::NodeLiveness, session::Request,
};
use leader::{
    Basis, Dispatch, PlanApplier, Report, Services,
    broker::Token,
    limits::{DELIVERIES_MAX, HEARTBEAT_GRACE_MS, HEARTBEAT_TTL_MS_MIN},
};

use super::{
    Cluster,
    coverage::Event,
    log::{Fate, Ticket},
    times::Keeper,
    words,
};
use crate::promises::{
    self, CallId, Promises, Seen,
    deployments::Expiries,
    order::{self, History, Overdue},
    pools::PoolPromises,
};
use chance::Dice;

mod plans;

pub(crate) use plans::ApplierTrouble;

/// Where a plan's answer goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ReplyTo {
    pub(crate) worker: usize,
    pub(crate) call: CallId,
    evaluation: EvaluationId,
    token: Token,
}

/// One leadership.
pub(crate) struct Leadership {
    pub(crate) epoch: u64,
    server: usize,
    /// What the server knows of time.
    time: Keeper,
    /// Where its monotonic clock stood when the run began.
    monotonic_ms: i64,
    /// Log time when it began.
    anchor: u64,
    pub(crate) services: Services,
    applier: PlanApplier<ReplyTo>,
    /// Effects up to this index were taken in.
    fed: Index,
    /// The applier's entries in flight.
    outcomes: VecDeque<Ticket>,
    /// The command of a machine that is under way.
    commanding: Option<Ticket>,
    /// Leases given out: job of each, for the oracle.
    granted: BTreeMap<EvaluationId, JobKey>,
    /// Deliveries that count, for the oracle.
    deliveries: BTreeMap<EvaluationId, u32>,
    /// Leases with a plan in the queue, for the oracle.
    queued: BTreeSet<(EvaluationId, Token)>,
    /// Calls that the server still works on.
    calls: BTreeMap<CallId, ReplyTo>,
    /// When each node was last heard or first seen alive, for the oracle.
    heard: BTreeMap<NodeId, u64>,
    /// For the oracle.
    history: History,
    overdue: Overdue,
    expiries: Expiries,
    pub(crate) promises: Promises,
    pool_promises: PoolPromises,
    /// The applier stands still until then.
    stalled_until: u64,
}

impl Leadership {
    /// Log time as this leader stamps it.
    pub(crate) fn now(&self, clock_ms: u64) -> u64 {
        let now = self.time.borrow_mut().now(clock_ms.saturating_add_signed(self.monotonic_ms));
        now.expect("it leads")
    }

    pub(crate) fn dispatch(&self) -> &Dispatch {
        self.services.dispatch()
    }

    /// When to look again, on the driver's clock.
    pub(crate) fn next_look_ms(&self, clock_ms: u64) -> Option<u64> {
        let at = self.services.next_deadline()?;
        Some(clock_ms + at.saturating_sub(self.now(clock_ms)))
    }

    /// Nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.services.waiting().next().is_none()
            && self.commanding.is_none()
            && self.applier.depth() == 0
            && self.applier.in_flight() == 0
            && self.calls.is_empty()
    }
}

impl Cluster {
    /// A server whose term's barrier is applied begins to serve.
    pub(crate) fn establish(&mut self, server: usize) -> bool {
        let (term, leader) = (self.log.term, self.log.leader);
        let applied = self.servers[server].applied;
        let current = self.servers[server].leadership.as_ref().map(|one| one.epoch);
        let state_term = self.log.state_at(applied).term();
        if leader != server || current.is_some() || !self.log.has_barrier() || state_term != term {
            return false;
        }
        let state = self.log.state_at(applied).clone();
        let basis = self.times.lead(server, term, state.at(), self.clock_ms);
        self.coverage.count(match basis {
            Basis::RanThrough => Event::TimeRanThrough,
            Basis::Clocks { .. } => Event::TimeOfClocks,
        });
        self.trace(|| format!("server {server} takes the time: {basis:?}"));
        let mut leadership = Leadership {
            epoch: term,
            server,
            time: self.times.keeper(server),
            monotonic_ms: self.times.begun_ms(server),
            anchor: 0,
            services: Services::new(&self.servers[server].services),
            applier: PlanApplier::new(self.plan_queue_limits()),
            fed: applied,
            outcomes: VecDeque::new(),
            commanding: None,
            granted: BTreeMap::new(),
            deliveries: BTreeMap::new(),
            queued: BTreeSet::new(),
            calls: BTreeMap::new(),
            heard: BTreeMap::new(),
            history: History::default(),
            overdue: Overdue::default(),
            expiries: Expiries::default(),
            promises: Promises::default(),
            pool_promises: PoolPromises::default(),
            stalled_until: 0,
        };
        let now = leadership.now(self.clock_ms);
        leadership.anchor = now;
        leadership.services.restore(now, &state);
        leadership.promises.restored(now, &state);
        self.trace(|| format!("server {server} serves in term {term} from index {applied}"));
        self.servers[server].leadership = Some(Box::new(leadership));
        self.servers[server].established = term;
        true
    }

    /// A server notices that its term is over: its services stop and answer what they hold.
    pub(crate) fn notice(&mut self, server: usize) -> bool {
        let Some(mut leadership) =
            self.servers[server].leadership.take_if(|one| one.epoch != self.log.term)
        else {
            return false;
        };
        self.trace(|| format!("server {server} stops serving term {}", leadership.epoch));
        leadership.services.stop();
        let at = self.times.monotonic_ms(server, self.clock_ms);
        leadership.time.borrow_mut().resign(at, leadership.epoch);
        if leadership.applier.depth() > 0 {
            self.coverage.count(Event::QueueFlushed);
        }
        if leadership.applier.in_flight() > 0 {
            self.coverage.count(Event::LeaderChangedInFlight);
        }
        let answers = leadership.applier.flush();
        self.answer_plans(&mut leadership, answers);
        if let Some(left) = leadership.calls.values().next() {
            let evaluation = left.evaluation;
            self.fail(format!("queue-flushed: the plan of {evaluation} has no answer"));
        }
        true
    }

    /// Runs `act` on a server's leadership.
    pub(crate) fn with_leadership<T>(
        &mut self,
        server: usize,
        act: impl FnOnce(&mut Self, &mut Leadership) -> T,
    ) -> Option<T> {
        let mut leadership = self.servers[server].leadership.take()?;
        let done = act(self, &mut leadership);
        self.servers[server].leadership = Some(leadership);
        Some(done)
    }

    /// Proposes in a leadership, whether or not it still is one.
    pub(crate) fn propose(
        &mut self,
        leadership: &Leadership,
        command: Command,
        request: Option<Request>,
        tagged: bool,
    ) -> Ticket {
        if leadership.epoch != self.log.term {
            self.coverage.count(Event::DeposedActed);
        }
        let at = leadership.now(self.clock_ms);
        let epoch = tagged.then_some(leadership.epoch);
        self.trace(|| format!("term {} proposes {}", leadership.epoch, words::of(&command)));
        let proposal = Proposal { at, epoch, request, command };
        self.log.propose(leadership.server, leadership.epoch, proposal)
    }

    /// Effects in, then a look at every machine.
    pub(crate) fn feed(&mut self, server: usize, dice: &mut Dice) -> bool {
        let missed = dice.percent(self.swarm.resets);
        let applied = self.servers[server].applied;
        let silent = (self.swarm.silent_servers && dice.percent(5)).then(|| dice.below(3));
        self.with_leadership(server, |cluster, leadership| {
            let now = leadership.now(cluster.clock_ms);
            let behind = applied > leadership.fed;
            let state = cluster.log.state_at(applied).clone();
            if missed && behind {
                cluster.coverage.count(Event::EffectsMissed);
                leadership.services.restore(now, &state);
                leadership.overdue = order::Overdue::default();
                leadership.heard.clear();
                leadership.promises.restored(now, &state);
            } else {
                for index in leadership.fed + 1..=applied {
                    let effects = cluster.log.at(index).map_or(&[][..], |one| &one.effects);
                    for effect in effects {
                        leadership.services.take(now, &state, index, effect);
                    }
                }
            }
            leadership.fed = applied;
            let Leadership { deliveries, services, .. } = &mut *leadership;
            deliveries.retain(|id, _| services.dispatch().holds(*id));
            let looked = cluster.look(leadership, &state, silent);
            behind || looked
        })
        .unwrap_or(false)
    }

    fn look(
        &mut self,
        leadership: &mut Leadership,
        state: &fsm::State,
        silent: Option<u64>,
    ) -> bool {
        let now = leadership.now(self.clock_ms);
        let before = leadership.dispatch().blocked_stats().blocked;
        let under_plan = leadership.leases_under_plan();
        if let Some(server) = silent {
            leadership.forgive(server, &self.lessees);
            leadership.services.dispatch_mut().server_lost(now, server);
        }
        let ids = &mut self.ids;
        let stepped = leadership.services.step(now, state, || ids.next());
        if leadership.dispatch().blocked_stats().blocked < before {
            self.coverage.count(Event::Woken);
        }
        if let Some(broken) = leadership.judge_paused(&under_plan) {
            self.fail(broken);
        }
        let mut expired = false;
        for report in &stepped.reports {
            if let Report::LeaseExpired(lease) = report {
                leadership.promises.failed(now, lease.evaluation);
                self.check_expired(leadership, lease.evaluation);
                self.coverage.count(Event::LeaseExpired);
                expired = true;
            }
        }
        let commands = &stepped.commands;
        let missed = missed_by(commands);
        for node in &missed {
            self.check_missed(leadership, state, *node, now);
        }
        let broken = commands.iter().find_map(|command| order::judge_drains(now, state, command));
        let known = commands.iter().chain(leadership.services.waiting());
        let late = leadership.overdue.looked(now, state, known);
        let expired_late = leadership.expiries.looked(now, state, commands);
        leadership.history.saw(state, state.index() == leadership.fed);
        let broken = broken.into_iter().chain(late).chain(expired_late);
        let seen = Seen { now, state, truth: self.log.truth() };
        let late = leadership.judge_promises(&seen, &missed, commands);
        let of_pools = leadership.pool_promises.looked(now, leadership.anchor, state, commands);
        for broken in broken.chain(late).chain(of_pools) {
            self.fail(broken);
        }
        !commands.is_empty() || expired
    }

    /// I23: no lease runs out while its worker is at another one of the batch.
    fn check_expired(&mut self, leadership: &Leadership, evaluation: EvaluationId) {
        let Some(token) = leadership.promises.token_of(evaluation) else { return };
        if self.workers.iter().any(|worker| worker.keeps_waiting(token, self.clock_ms)) {
            let text = "ran out while its worker was at the one before it";
            self.fail(format!("I23: the lease on {evaluation} {text}"));
        }
    }

    /// I50: no node is called down before its time to live and the grace are over, counted from
    /// whichever was last: the start of this leadership, a heartbeat that it took, the node's own
    /// return.
    fn check_missed(
        &mut self,
        leadership: &Leadership,
        state: &fsm::State,
        node: NodeId,
        now: u64,
    ) {
        let Some(row) = state.nodes().get(&node) else { return };
        let heard = leadership.heard.get(&node).copied().unwrap_or(0);
        let alive_since = heard.max(leadership.anchor);
        if now < alive_since + HEARTBEAT_TTL_MS_MIN + HEARTBEAT_GRACE_MS {
            let liveness = row.liveness.name();
            self.fail(format!(
                "I50: node {node} ({liveness}) is called down {} ms after it was heard or the leader began",
                now - alive_since
            ));
        }
    }

    /// Whether a proposal of a leader's service never comes into the log: it timed out, or Raft refused it.
    fn is_refused(&mut self) -> bool {
        let refused = self.chance.percent(self.trouble.log.refusals);
        if refused {
            self.coverage.count(Event::ProposalRefused);
        }
        refused
    }

    /// Proposes for a service: mostly it comes into the log.
    fn propose_as_service(&mut self, leadership: &Leadership, command: Command) -> Ticket {
        if self.is_refused() {
            self.trace(|| format!("refused: {}", words::of(&command)));
            return self.log.refuse();
        }
        self.propose(leadership, command, None, true)
    }

    /// Proposes the next command of the services, when the last one's outcome is known.
    pub(crate) fn command(&mut self, server: usize, dice: &mut Dice) -> bool {
        let applied = self.servers[server].applied;
        let lost = dice.percent(self.swarm.reply_loss);
        self.with_leadership(server, |cluster, leadership| {
            if let Some(ticket) = leadership.commanding {
                match cluster.log.fate(ticket) {
                    Fate::Open => return false,
                    Fate::Committed(index) if index > applied && !lost => return false,
                    Fate::Committed(_) | Fate::Lost => leadership.commanding = None,
                }
            }
            let Some(command) = leadership.services.next_command() else { return false };
            let ticket = cluster.propose_as_service(leadership, command);
            leadership.commanding = Some(ticket);
            true
        })
        .unwrap_or(false)
    }

    /// Leases for a server's worker, with what the oracle says of them.
    pub(crate) fn grant(
        &mut self,
        leadership: &mut Leadership,
        state: &fsm::State,
        server: usize,
        kinds: &[fsm::JobKind],
    ) -> Result<Vec<leader::Lease>, leader::BrokerError> {
        let now = leadership.now(self.clock_ms);
        let ids = &mut self.ids;
        // What the services were not told yet they cannot know.
        let told = state.index() == leadership.fed;
        let mut ready = if told { order::waiting(state) } else { Vec::new() };
        ready.retain(|one| kinds.contains(&one.kind()));
        ready.retain(|one| leadership.is_fresh(one.id()) && !leadership.history.is_passed(one));
        let dispatch = leadership.services.dispatch_mut();
        let leases = dispatch.dequeue(now, state, kinds, 4, server as u64, || ids.next())?;
        if let Some(broken) = order::judge_leases(&ready, &leases, &leadership.history) {
            self.fail(broken);
        }
        let paused = self.log.state_at(leadership.fed).scheduler_configuration().pause_eval_broker;
        if paused {
            self.coverage.count(Event::BrokerPaused);
            if let Some(lease) = leases.first() {
                let id = lease.evaluation.id;
                self.fail(format!("broker-paused: {id} is leased while the broker is paused"));
            }
        }
        if let Some(lease) = leases.iter().find(|one| !kinds.contains(&one.evaluation.kind)) {
            let (id, kind) = (lease.evaluation.id, lease.evaluation.kind);
            self.fail(format!(
                "NW-03: {id} of kind {kind:?} is leased to one that takes {kinds:?}"
            ));
        }
        for (position, lease) in leases.iter().enumerate() {
            self.lessees.insert(lease.token, server as u64);
            leadership.history.leased(lease);
            let before = position.checked_sub(1).map(|before| leases[before].token);
            if let Some(broken) = leadership.promises.leased(now, lease, before) {
                self.fail(broken);
            }
            self.check_grant(leadership, state, lease);
        }
        Ok(leases)
    }

    /// I20, I23, I27.
    fn check_grant(
        &mut self,
        leadership: &mut Leadership,
        state: &fsm::State,
        lease: &leader::Lease,
    ) {
        let row = &lease.evaluation;
        let outstanding = |id: &EvaluationId| leadership.dispatch().outstanding(*id).is_some();
        let others =
            leadership.granted.iter().filter(|(id, job)| **id != row.id && **job == row.job);
        if let Some((other, _)) = others.into_iter().find(|(id, _)| outstanding(id)) {
            self.fail(format!("I20: {} and {other} of job {} are leased", row.id, row.job));
        }
        leadership.granted.insert(row.id, row.job.clone());
        let count = leadership.deliveries.entry(row.id).or_default();
        *count += 1;
        if *count > DELIVERIES_MAX {
            self.fail(format!("I23: {} was delivered {count} times", row.id));
        }
        let last_plan = state.jobs().get(&row.job).map_or(0, |job| job.last_plan_index);
        if lease.wait_index < row.modify_index.max(last_plan) {
            self.fail(format!("I27: {} does not wait for its own row and its job's", row.id));
        }
    }

    /// A heartbeat arrives. The answer is whether the node is known in this incarnation.
    pub(crate) fn beat(&mut self, server: usize, node: NodeId, incarnation: u64) -> Option<bool> {
        self.with_leadership(server, |cluster, leadership| {
            let now = leadership.now(cluster.clock_ms);
            let answer = leadership.services.heard(now, node, incarnation);
            let state = cluster.log.state_at(leadership.fed);
            let beat = (node, incarnation);
            if let Some(broken) = leadership.promises.heard(now, state, beat, answer.ok()) {
                cluster.fail(broken);
            }
            if answer.is_ok() {
                leadership.heard.insert(node, now);
            }
            answer.is_ok()
        })
    }
}

impl Leadership {
    /// Leases that a plan is queued under.
    fn leases_under_plan(&self) -> Vec<(EvaluationId, Token)> {
        let held = |(id, token): &&(EvaluationId, Token)| {
            self.dispatch().outstanding(*id).is_some_and(|held| held == *token)
        };
        self.queued.iter().filter(held).copied().collect()
    }

    /// The time of a lease stands still while a plan is queued under it: no look takes it back.
    fn judge_paused(&self, before: &[(EvaluationId, Token)]) -> Option<String> {
        let lost = |(id, token): &&(EvaluationId, Token)| {
            self.dispatch().holds(*id) && self.dispatch().outstanding(*id) != Some(*token)
        };
        let (id, _) = before.iter().find(lost)?;
        Some(format!("nack-paused: the lease on {id} was taken back under a queued plan"))
    }

    /// What the services owe after a look.
    fn judge_promises(
        &mut self,
        seen: &Seen<'_>,
        missed: &[NodeId],
        commands: &[Command],
    ) -> Vec<String> {
        let Seen { now, state, .. } = *seen;
        let Self { promises, services, queued, deliveries, .. } = self;
        let dispatch = services.dispatch();
        let mut found: Vec<String> =
            commands.iter().filter_map(|one| promises::gave_up(state, one, deliveries)).collect();
        found.extend(promises.looked_at_leases(now, dispatch, queued));
        found.extend(promises.looked_at_nodes(now, state, missed));
        found.extend(promises.looked_at_conflicts(seen, dispatch));
        found.extend(promises.looked_at_sleepers(seen, dispatch));
        let asked = commands.iter().chain(services.waiting());
        found.extend(promises.looked_at_loss(seen, asked));
        found
    }

    /// In the broker, and never leased by this leadership.
    fn is_fresh(&self, id: EvaluationId) -> bool {
        self.dispatch().holds(id) && !self.deliveries.contains_key(&id)
    }

    /// A nack that was taken and does not count.
    pub(crate) fn uncount(&mut self, id: EvaluationId) {
        if let Some(count) = self.deliveries.get_mut(&id) {
            *count = count.saturating_sub(1);
        }
    }

    /// A silent server's leases come back without counting.
    fn forgive(&mut self, server: u64, lessees: &BTreeMap<Token, u64>) {
        let ids: Vec<_> = self.deliveries.keys().copied().collect();
        for id in ids {
            let token = self.dispatch().outstanding(id);
            let of_server = token.is_some_and(|token| lessees.get(&token) == Some(&server));
            let queued = token.is_some_and(|token| self.queued.contains(&(id, token)));
            if of_server
                && !queued
                && let Some(count) = self.deliveries.get_mut(&id)
            {
                *count = count.saturating_sub(1);
            }
        }
    }
}

/// The nodes that commands name as not heard from in time.
fn missed_by(commands: &[Command]) -> Vec<NodeId> {
    let mut missed = Vec::new();
    for command in commands {
        if let Command::Node(NodeCommand::NodeLiveness(NodeLiveness { changes, .. })) = command {
            let down = changes.iter().filter(|change| change.liveness == Liveness::Down);
            missed.extend(down.map(|change| change.node));
        }
    }
    missed
}
