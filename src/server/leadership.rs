//! Leader-only services: built from the state when this server has become leader and its term's barrier is applied, dropped when it loses
//! leadership. Everything in here carries the epoch (the term); what comes with another epoch is refused.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{
    Command, Effect, Evaluation, EvaluationId, EvaluationStatus, Index, JobKind, NodeId, Proposal,
    State, codec,
};
use leader::{
    BlockedEvals, Drainer, EvalBroker, Heartbeats, NodeDeadlines,
    broker::{Acked, BrokerConfig, BrokerError, NackReason, Token},
};
use openraft::{ReadPolicy, errors::ClientWriteError, impls::ProgressResponder};

use super::{
    api::{ApiError, Written},
    applier::{self, PlanAnswer, PlanRequest},
    core::{Core, leads, silent_servers},
    state_cell::{EffectBatch, EffectFeed, StateCell},
};
use crate::{
    clock::LogClock,
    raft::{EntryData, Raft, WatchReceiver},
    rpc::convert,
    rt::{self, Instant, Notify, Semaphore, mpsc, oneshot, watch},
};

/// Proposals under way at a time, of clients and services together.
const PROPOSALS_MAX: usize = 8_192;
/// How long a proposal of a leader service may take before its outcome counts as unknown.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);
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
    broker: Mutex<EvalBroker>,
    blocked: Mutex<BlockedEvals>,
    heartbeats: Mutex<Heartbeats>,
    deadlines: Mutex<NodeDeadlines>,
    drainer: Mutex<Drainer>,
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
        // Not outstanding any more when the plan's outcome ended the lease.
        self.services.broker().resume_nack(now, self.id, self.token).ok();
        self.services.kick.notify_one();
    }
}

/// A lease with what the worker needs.
pub struct Lease {
    /// The evaluation.
    pub evaluation: Arc<Evaluation>,
    /// Token.
    pub token: Token,
    /// Index to wait for.
    pub wait_index: Index,
}

impl LeaderServices {
    fn start(core: &Arc<Core>, epoch: u64) -> Arc<Self> {
        let (state, feed) = core.cell.subscribe();
        let (plans, plan_queue) = mpsc::channel(PLANS_WAITING_MAX);
        let (commands, command_queue) = mpsc::channel(SERVICE_COMMANDS_MAX);
        let services = Arc::new(Self {
            epoch,
            raft: core.raft.clone(),
            cell: Arc::clone(&core.cell),
            log_clock: LogClock::new(core.clock, state.head.at),
            broker: Mutex::new(EvalBroker::new(BrokerConfig {
                evaluations_max: core.settings.pending_evaluations_max,
                nack_ms: core.settings.nack_ms,
                ..BrokerConfig::default()
            })),
            blocked: Mutex::default(),
            heartbeats: Mutex::new(Heartbeats::new(core.settings.heartbeat)),
            deadlines: Mutex::default(),
            drainer: Mutex::default(),
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
        {
            let mut broker = self.broker();
            broker.enable();
            broker.set_paused(state.scheduler_configuration().pause_eval_broker);
            broker.restore(now, state);
        }
        {
            let mut blocked = lock(&self.blocked);
            blocked.enable();
            blocked.restore(now, state);
        }
        lock(&self.heartbeats).restore(now, state);
        lock(&self.deadlines).restore(state);
        lock(&self.drainer).restore(now, state);
        self.ready.notify_waiters();
        self.kick.notify_one();
    }

    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
        self.broker().disable();
        lock(&self.blocked).disable();
        self.ready.notify_waiters();
    }

    pub(super) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Log time.
    pub fn now(&self) -> u64 {
        self.log_clock.now()
    }

    pub(super) fn broker(&self) -> MutexGuard<'_, EvalBroker> {
        lock(&self.broker)
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
                Err(error) => tracing::debug!(%error, "a service's command was not applied"),
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
            match effect {
                Effect::Evaluation(id) => self.evaluation_changed(now, &state, id),
                Effect::Capacity { class, node } => {
                    lock(&self.blocked).unblock(now, class, node, index);
                }
                Effect::Node(id) => self.node_changed(now, &state, id, index),
                Effect::Job(key) => {
                    let last = state.jobs.get(&key).map_or(index, |job| job.last_plan_index);
                    self.broker().note_job_index(&key, last);
                    lock(&self.drainer).state_changed(now);
                }
                Effect::SchedulerConfiguration => {
                    let paused = state.scheduler_configuration().pause_eval_broker;
                    self.broker().set_paused(paused);
                }
                Effect::NodeAllocations(_) => lock(&self.drainer).state_changed(now),
                Effect::DigestMark => {}
            }
        }
    }

    fn evaluation_changed(&self, now: u64, state: &State, id: EvaluationId) {
        let Some(row) = state.evaluations.get(&id) else {
            self.broker().remove(now, id);
            lock(&self.blocked).removed(id);
            return;
        };
        self.broker().applied(now, row);
        let mut blocked = lock(&self.blocked);
        match row.status {
            // A woken one is in the broker until its outcome is applied.
            EvaluationStatus::Blocked if !self.broker().contains(id) => blocked.block(now, row),
            EvaluationStatus::Blocked | EvaluationStatus::Pending => {}
            EvaluationStatus::Complete | EvaluationStatus::Failed | EvaluationStatus::Canceled => {
                blocked.removed(id);
            }
        }
    }

    fn node_changed(&self, now: u64, state: &State, id: NodeId, index: Index) {
        match state.nodes.get(&id) {
            Some(node) => {
                lock(&self.heartbeats).node_changed(now, node);
                lock(&self.deadlines).node_changed(node);
                lock(&self.drainer).node_changed(now, node);
            }
            None => {
                lock(&self.heartbeats).node_gone(id);
                lock(&self.deadlines).node_gone(id);
                lock(&self.drainer).node_gone(id);
                lock(&self.blocked).node_gone(id, index);
            }
        }
    }

    fn step_machines(&self) {
        let now = self.now();
        let state = self.cell.load();
        let wakes = lock(&self.blocked).poll(now);
        let silent = silent_servers(&self.raft);
        {
            let mut broker = self.broker();
            for server in silent {
                broker.server_lost(now, server);
            }
            for wake in wakes {
                if let Some(row) = state.evaluations.get(&wake.evaluation) {
                    broker.enqueue(now, row);
                    broker.note_job_index(&row.job, wake.index);
                }
            }
            for expired in broker.poll(now) {
                tracing::warn!(evaluation = %expired.evaluation, server = expired.server,
                    deliveries = expired.deliveries, "a lease was not acknowledged in time");
            }
            let failed = broker
                .dequeue_failed(now, leader::limits::REAP_BATCH_MAX, 0, rt::random_id)
                .unwrap_or_default();
            if let Some(command) =
                leader::reap::failed(now, &state, &failed, || EvaluationId(rt::random_id()))
            {
                self.submit(command);
            }
            let cancelable = broker.cancelable(leader::limits::REAP_BATCH_MAX);
            if let Some(command) = leader::reap::canceled(&state, &cancelable) {
                self.submit(command);
            }
            if broker.has_ready(&JobKind::ALL) {
                self.ready.notify_waiters();
            }
        }
        let duplicates = lock(&self.blocked).duplicates(leader::limits::REAP_BATCH_MAX);
        if let Some(command) = leader::reap::duplicates(&state, &duplicates) {
            self.submit(command);
        }
        let missed = lock(&self.heartbeats).poll(now);
        if !missed.is_empty() {
            for change in &missed {
                tracing::info!(node = %change.node, "a node missed its heartbeat: it is down");
            }
            self.submit(Heartbeats::command(missed));
        }
        for command in lock(&self.deadlines).poll(now, &state) {
            self.submit(command);
        }
        if let Some(command) = lock(&self.drainer).poll(now, &state) {
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
            self.broker().next_deadline(),
            lock(&self.blocked).next_deadline(),
            lock(&self.heartbeats).next_deadline(),
            lock(&self.deadlines).next_deadline(),
            lock(&self.drainer).next_deadline(),
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
            {
                let now = self.now();
                let mut broker = self.broker();
                if !broker.is_enabled() {
                    return Err(BrokerError::Disabled);
                }
                let deliveries = broker.dequeue(now, kinds, max, server, rt::random_id)?;
                if !deliveries.is_empty() {
                    drop(broker);
                    self.kick.notify_one();
                    return Ok(self.leases(deliveries));
                }
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if rt::timeout(left, ready).await.is_err() {
                return Ok(Vec::new());
            }
        }
    }

    fn leases(&self, deliveries: Vec<leader::broker::Delivery>) -> Vec<Lease> {
        let state = self.cell.load();
        let mut leases = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let Some(evaluation) = state.evaluations.get(&delivery.evaluation) else {
                self.broker().remove(self.now(), delivery.evaluation);
                continue;
            };
            let last_plan = state.jobs.get(&evaluation.job).map_or(0, |job| job.last_plan_index);
            leases.push(Lease {
                evaluation: Arc::clone(evaluation),
                token: delivery.token,
                wait_index: delivery.wait_index.max(last_plan).max(evaluation.modify_index),
            });
        }
        leases
    }

    /// Ends a lease.
    pub fn ack(&self, id: EvaluationId, token: Token) -> Result<Acked, BrokerError> {
        let acked = self.broker().ack(self.now(), id, token);
        self.kick.notify_one();
        acked
    }

    /// Gives a lease back.
    pub fn nack(&self, id: EvaluationId, token: Token, why: NackReason) -> Result<(), BrokerError> {
        let nacked = self.broker().nack(self.now(), id, token, why);
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
        {
            let mut broker = self.broker();
            // An evaluation whose outcome was applied already is not here any more: `apply` would refuse the plan anyway.
            broker.pause_nack(id, token)?;
        }
        let _resumed = PausedNack { services: self, id, token };
        let (reply, answer) = oneshot::channel();
        let request = PlanRequest { plan, bytes, token, reply };
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
        let heard = lock(&self.heartbeats).heard(self.now(), node, incarnation)?;
        if let Some(change) = heard.returned {
            self.submit(Heartbeats::command(vec![change]));
        }
        Ok(heard)
    }

    /// The time to live of a node's next heartbeat, ms.
    pub fn ttl_ms(&self, node: NodeId) -> u64 {
        lock(&self.heartbeats).ttl_ms(node)
    }

    /// Evaluations that workers have at present.
    pub fn leases_outstanding(&self) -> usize {
        self.broker().stats().total.unacked
    }

    /// Whether the broker has nothing to hand out, and nothing handed out.
    pub fn is_idle(&self) -> bool {
        let total = self.broker().stats().total;
        total.ready == 0 && total.unacked == 0 && total.pending == 0
    }

    /// Whether so many evaluations wait that new work is refused.
    pub fn is_overloaded(&self) -> bool {
        self.broker().is_full()
    }

    pub(super) fn gauges(&self, put: &mut impl FnMut(&str, u64)) {
        let now = self.now();
        let broker = self.broker();
        let stats = broker.stats();
        let total = stats.total;
        put("broker.total_ready", total.ready as u64);
        put("broker.total_unacked", total.unacked as u64);
        put("broker.total_pending", total.pending as u64);
        put("broker.total_waiting", total.waiting as u64);
        put("broker.total_cancelable", total.cancelable as u64);
        put("broker.oldest_ready_ms", broker.oldest_ready_age_ms(now));
        drop(broker);
        let blocked = lock(&self.blocked).stats();
        put("blocked_evals.total_blocked", blocked.blocked as u64);
        put("blocked_evals.total_escaped", blocked.escaped as u64);
        put("heartbeat.active", lock(&self.heartbeats).live() as u64);
        put("plan.queue_depth", self.plan_depth.load(std::sync::atomic::Ordering::Relaxed));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
