//! Leader-only services: built from the state when this server has become leader and its term's barrier is applied, dropped when it loses
//! leadership. Everything in here carries the epoch (the term); what comes with another epoch is refused.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{Command, EvaluationId, JobKind, NodeId, Proposal, State, codec};
use leader::{
    Dispatch, GarbageCollector, Heartbeats, Lease, NodeWatch, PlanAnswer,
    broker::{Acked, BrokerConfig, BrokerError, NackReason, Token},
    feed,
};
use openraft::{ReadPolicy, errors::ClientWriteError, impls::ProgressResponder};

use super::{
    applier::{self, PlanRequest},
    core::Core,
    members::{leads, silent_servers},
};
use crate::{
    api::{ApiError, Written},
    clock::LogClock,
    published::{EffectBatch, EffectFeed, StateCell},
    raft::{EntryData, Raft, WatchReceiver, convert},
    rt::{self, Instant, Notify, Semaphore, mpsc, watch},
    storage::wal,
};

/// Proposals under way at a time, of clients and services together.
const PROPOSALS_MAX: usize = 8_192;
/// The log's bound, less the byte that tells what a payload is.
const ENTRY_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX - 1;
/// How long a proposal of a leader service may take before its outcome counts as unknown.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a leader whose entry was refused tries again: it leads by name, and was not heard of by a majority for a while.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(25);
/// Commands of services that wait to be proposed; what finds no room is derived again later.
const SERVICE_COMMANDS_MAX: usize = 1_024;
/// Longest pause between two looks of the machines: silent servers announce themselves by nothing.
const LOOK_MS_MAX: u64 = 2_000;
/// Plans that wait for the applier's queue.
const PLANS_WAITING_MAX: usize = 4_096;

/// An idle cluster's log time is moved on when it is this old, far below the session window: requests are stamped with it, and one that is
/// stamped too early counts as expired.
pub(super) const TICK_AFTER_MS: u64 = 60_000;

/// Starts and stops leader services as leadership comes and goes.
pub(super) async fn watch(core: Arc<Core>) {
    let mut metrics = core.raft.metrics();
    let mut stopping = core.stopping();
    loop {
        let term = leads(&core);
        let have = core.leading().map(|services| services.epoch);
        if have.is_some() && have != term {
            tracing::info!(epoch = have, "leadership lost: leader services stop");
            core.set_leading(None);
        }
        if let Some(term) = term
            && core.leading().is_none()
            && !*stopping.borrow()
        {
            // The barrier: everything of earlier terms is applied before a service looks at the state.
            match core.raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
                Ok(_) if leads(&core) == Some(term) => {
                    core.set_leading(Some(LeaderServices::start(&core, term)));
                    tracing::info!(epoch = term, "leadership gained: leader services run");
                }
                Ok(_) => continue,
                Err(error) => {
                    tracing::debug!(%error, "the barrier of the new term is not there yet");
                    rt::sleep(Duration::from_millis(10)).await;
                    continue;
                }
            }
        }
        rt::select! {
            biased;
            changed = stopping.changed() => {
                if changed.is_err() || *stopping.borrow() {
                    return;
                }
            }
            changed = metrics.changed() => {
                if changed.is_err() {
                    core.set_leading(None);
                    return;
                }
            }
        }
    }
}

/// The services of one leadership.
pub struct LeaderServices {
    /// The term.
    pub epoch: u64,
    raft: Raft,
    cell: Arc<StateCell>,
    log_clock: LogClock,
    dispatch: Mutex<Dispatch>,
    nodes: Mutex<NodeWatch>,
    collector: Mutex<GarbageCollector>,
    plan_depth: Arc<std::sync::atomic::AtomicU64>,
    ticked_at: std::sync::atomic::AtomicU64,
    ready: Notify,
    kick: Notify,
    proposals: Semaphore,
    plans: mpsc::Sender<PlanRequest>,
    commands: mpsc::Sender<Command>,
    stop: watch::Sender<bool>,
}

/// While a plan is queued its lease does not run out; afterwards it does again, also when the asking worker is gone and its call was dropped.
struct PausedNack<'a> {
    services: &'a LeaderServices,
    id: EvaluationId,
    token: Token,
}

impl Drop for PausedNack<'_> {
    fn drop(&mut self) {
        let now = self.services.now();
        self.services.dispatch().plan_answered(now, self.id, self.token);
        self.services.kick.notify_one();
    }
}

impl LeaderServices {
    fn start(core: &Arc<Core>, epoch: u64) -> Arc<Self> {
        let (state, feed) = core.cell.subscribe();
        let (plans, plan_queue) = mpsc::channel(PLANS_WAITING_MAX);
        let (commands, command_queue) = mpsc::channel(SERVICE_COMMANDS_MAX);
        let log_clock = LogClock::new(core.clock, state.head.at);
        let collector = GarbageCollector::new(core.settings.gc, log_clock.now());
        let services = Arc::new(Self {
            epoch,
            raft: core.raft.clone(),
            cell: Arc::clone(&core.cell),
            log_clock,
            dispatch: Mutex::new(Dispatch::new(BrokerConfig {
                evaluations_max: core.settings.pending_evaluations_max,
                nack_ms: core.settings.nack_ms,
                ..BrokerConfig::default()
            })),
            nodes: Mutex::new(NodeWatch::new(core.settings.heartbeat)),
            collector: Mutex::new(collector),
            plan_depth: Arc::default(),
            ticked_at: std::sync::atomic::AtomicU64::default(),
            ready: Notify::new(),
            kick: Notify::new(),
            proposals: Semaphore::new(PROPOSALS_MAX),
            plans,
            commands,
            stop: watch::channel(false).0,
        });
        services.restore(&state);
        rt::spawn(Arc::clone(&services).serve(feed));
        rt::spawn(Arc::clone(&services).propose_commands(command_queue));
        let depth = Arc::clone(&services.plan_depth);
        rt::spawn(applier::run(Arc::clone(&services), plan_queue, depth));
        services
    }

    /// Builds every machine from the state, as a new leader does and as it does again when effects were missed.
    fn restore(&self, state: &State) {
        let now = self.now();
        self.dispatch().restore(now, state);
        self.nodes().restore(now, state);
        self.ready.notify_waiters();
        self.kick.notify_one();
    }

    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
        self.dispatch().stop();
        self.ready.notify_waiters();
    }

    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Log time.
    pub fn now(&self) -> u64 {
        self.log_clock.now()
    }

    pub(super) fn dispatch(&self) -> MutexGuard<'_, Dispatch> {
        lock(&self.dispatch)
    }

    fn nodes(&self) -> MutexGuard<'_, NodeWatch> {
        lock(&self.nodes)
    }

    pub(super) fn cell(&self) -> &Arc<StateCell> {
        &self.cell
    }

    /// Hands a command to Raft in this leadership, and waits for it to be applied.
    pub async fn propose(
        &self,
        command: Command,
        request: Option<fsm::session::Request>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let Ok(_permit) = self.proposals.try_acquire() else {
            let limit = PROPOSALS_MAX as u64;
            return Err(ApiError::Overloaded {
                what: "proposals under way",
                limit,
                retry_after_ms: 100,
            });
        };
        let proposal = Proposal { at: self.now(), epoch: Some(self.epoch), request, command };
        let data = EntryData(codec::encode(&proposal));
        // The log refuses a larger one for good, and takes the whole server with it.
        let bytes = data.0.len();
        if bytes > ENTRY_BYTES_MAX {
            let text = format!("a change of {bytes} bytes is over the limit of {ENTRY_BYTES_MAX}");
            return Err(ApiError::Invalid(text));
        }
        let (responder, done) = ProgressResponder::complete_only();
        let leader = *convert::log_id(self.epoch, 0).committed_leader_id();
        self.raft
            .write(data)
            .with_leader(leader)
            .responder(responder)
            .await
            .map_err(|error| ApiError::NotReady(error.to_string()))?;
        match rt::timeout(timeout, done).await {
            Err(_) => Err(ApiError::Timeout { proposed: true }),
            Ok(Err(_)) => Err(ApiError::Unknown),
            Ok(Ok(Ok(response))) => {
                Ok(Written { index: response.data.index, reply: response.data.reply })
            }
            Ok(Ok(Err(ClientWriteError::ForwardToLeader(_)))) => Err(ApiError::NoLeader),
            Ok(Ok(Err(error))) => {
                tracing::debug!(%error, "a proposal was discarded");
                Err(ApiError::Unknown)
            }
        }
    }

    /// Proposes what services ask for, one after the other.
    async fn propose_commands(self: Arc<Self>, mut queue: mpsc::Receiver<Command>) {
        let mut stop = self.stopped();
        loop {
            let command = rt::select! {
                biased;
                () = rt::until_true(&mut stop) => return,
                command = queue.recv() => command,
            };
            let Some(command) = command else { return };
            match self.propose(command, None, SERVICE_TIMEOUT).await {
                Ok(written) => {
                    if let fsm::Reply::Rejected(rejection) = written.reply {
                        tracing::debug!(%rejection, "a service's command was refused");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a service's command was not applied");
                    // The machines derive it again at once, and a leader whose lease has lapsed refuses at once: without a pause the two chase each other.
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
            self.kick.notify_one();
        }
    }

    /// A command that a service derived; when there is no room it is derived again at the next look.
    pub(super) fn submit(&self, command: Command) {
        if self.commands.try_send(command).is_err() {
            tracing::debug!("no room for a service's command: it is derived again");
        }
    }

    /// The loop of the machines: effects and timers in, commands and wake-ups out.
    async fn serve(self: Arc<Self>, mut feed: EffectFeed) {
        let mut stop = self.stopped();
        loop {
            self.step_machines();
            let wait = self.next_wait();
            rt::select! {
                biased;
                () = rt::until_true(&mut stop) => return,
                batch = feed.next() => match batch {
                    Some(batch) => self.take_effects(batch),
                    None => return,
                },
                () = self.kick.notified() => {}
                () = rt::sleep(wait) => {}
            }
        }
    }

    fn take_effects(&self, batch: EffectBatch) {
        let state = self.cell.load();
        if batch.reset {
            self.restore(&state);
            return;
        }
        let now = self.now();
        for (index, effect) in batch.effects {
            feed::take(now, &state, index, &effect, &mut self.dispatch(), &mut self.nodes());
        }
    }

    fn step_machines(&self) {
        let now = self.now();
        let state = self.cell.load();
        let silent = silent_servers(&self.raft);
        let stepped = self.dispatch().step(now, &state, silent, rt::random_id);
        for expired in stepped.expired {
            tracing::warn!(evaluation = %expired.evaluation, server = expired.server,
                deliveries = expired.deliveries, "a lease was not acknowledged in time");
        }
        if stepped.has_ready {
            self.ready.notify_waiters();
        }
        let watched = self.nodes().step(now, &state);
        for node in watched.missed {
            tracing::info!(%node, "a node missed its heartbeat: it is down");
        }
        // Nodes first: one that is down and finds no room is called so again only after another time to live.
        for command in watched.commands.into_iter().chain(stepped.commands) {
            self.submit(command);
        }
        if let Some(command) = lock(&self.collector).poll(now, &state) {
            self.submit(command);
        }
        let ordering = std::sync::atomic::Ordering::Relaxed;
        let moved_at = state.head.at.max(self.ticked_at.load(ordering));
        if now.saturating_sub(moved_at) >= TICK_AFTER_MS {
            self.ticked_at.store(now, ordering);
            self.submit(Command::Tick);
        }
    }

    fn next_wait(&self) -> Duration {
        let now = self.now();
        let next = [
            self.dispatch().next_deadline(),
            self.nodes().next_deadline(),
            lock(&self.collector).next_deadline(),
        ];
        let next = next.into_iter().flatten().min().unwrap_or(u64::MAX);
        Duration::from_millis(next.saturating_sub(now).clamp(1, LOOK_MS_MAX))
    }

    /// Leases evaluations, waiting up to `wait` for the first.
    pub async fn dequeue(
        &self,
        server: u64,
        kinds: &[JobKind],
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Lease>, BrokerError> {
        let deadline = Instant::now() + wait;
        loop {
            let ready = self.ready.notified();
            let mut ready = std::pin::pin!(ready);
            ready.as_mut().enable();
            // Loaded before the lease is taken: an evaluation that is ready was applied before.
            let leases = {
                let mut dispatch = self.dispatch();
                let state = self.cell.load();
                dispatch.dequeue(self.now(), &state, kinds, max, server, rt::random_id)?
            };
            if !leases.is_empty() {
                self.kick.notify_one();
                return Ok(leases);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if rt::timeout(left, ready).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    /// Ends a lease.
    pub fn ack(&self, id: EvaluationId, token: Token) -> Result<Acked, BrokerError> {
        let acked = self.dispatch().ack(self.now(), id, token);
        self.kick.notify_one();
        acked
    }

    /// Gives a lease back.
    pub fn nack(&self, id: EvaluationId, token: Token, why: NackReason) -> Result<(), BrokerError> {
        let nacked = self.dispatch().nack(self.now(), id, token, why);
        self.kick.notify_one();
        nacked
    }

    /// Queues a plan and waits for what becomes of it.
    pub async fn submit_plan(
        &self,
        plan: fsm::Plan,
        bytes: usize,
        token: Token,
    ) -> Result<PlanAnswer, BrokerError> {
        let id = plan.evaluation;
        // An evaluation whose outcome was applied already is not here any more: `apply` would refuse the plan anyway.
        self.dispatch().plan_queued(id, token)?;
        let _resumed = PausedNack { services: self, id, token };
        let (request, answer) = applier::request(plan, bytes, token);
        if self.plans.send(request).await.is_err() {
            return Err(BrokerError::Disabled);
        }
        answer.await.map_err(|_| BrokerError::Disabled)
    }

    /// A node's heartbeat.
    pub fn heard(
        &self,
        node: NodeId,
        incarnation: u64,
    ) -> Result<leader::heartbeat::Heard, leader::heartbeat::HeartbeatError> {
        let heard = self.nodes().heard(self.now(), node, incarnation)?;
        if let Some(change) = heard.returned {
            self.submit(Heartbeats::command(vec![change]));
        }
        Ok(heard)
    }

    /// The time to live of a node's next heartbeat, ms.
    pub fn ttl_ms(&self, node: NodeId) -> u64 {
        self.nodes().ttl_ms(node)
    }

    /// Evaluations that workers have at present.
    pub fn leases_outstanding(&self) -> usize {
        self.dispatch().stats().total.unacked
    }

    /// Whether the broker has nothing to hand out, and nothing handed out.
    pub fn is_idle(&self) -> bool {
        let total = self.dispatch().stats().total;
        total.ready == 0 && total.unacked == 0 && total.pending == 0
    }

    /// Whether so many evaluations wait that new work is refused.
    pub fn is_overloaded(&self) -> bool {
        self.dispatch().is_full()
    }

    pub(super) fn gauges(&self, put: &mut impl FnMut(&str, u64)) {
        let now = self.now();
        let dispatch = self.dispatch();
        let total = dispatch.stats().total;
        put("broker.total_ready", total.ready as u64);
        put("broker.total_unacked", total.unacked as u64);
        put("broker.total_pending", total.pending as u64);
        put("broker.total_waiting", total.waiting as u64);
        put("broker.total_cancelable", total.cancelable as u64);
        put("broker.oldest_ready_ms", dispatch.oldest_ready_age_ms(now));
        let blocked = dispatch.blocked_stats();
        drop(dispatch);
        put("blocked_evals.total_blocked", blocked.blocked as u64);
        put("blocked_evals.total_escaped", blocked.escaped as u64);
        put("heartbeat.active", self.nodes().live() as u64);
        put("plan.queue_depth", self.plan_depth.load(std::sync::atomic::Ordering::Relaxed));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
