//! Leader-only services: built from the state when this server has become leader and its term's
//! barrier is applied, dropped when it loses leadership. Everything in here carries the epoch (the
//! term); a call with another epoch is refused.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::Ordering},
    time::Duration,
};

use elastic::{
    CallId,
    call::{Answer, Call, ProviderError},
};
use fsm::{
    Command, EvaluationId, Index, JobKind, NodeId, Proposal, State, codec, command::Senders,
};
use ground::{
    histogram::Histogram,
    rt::{self, Instant, Notify, Semaphore, mpsc, watch},
};
use leader::{
    Lease, LogLine, PlanAnswer, Services,
    broker::{Acked, BrokerError, NackReason, Token},
};
use openraft::{ReadPolicy, errors::ClientWriteError, impls::ProgressResponder};
use raft::{EntryData, Raft, WatchReceiver, convert, storage::wal};
use tracing::{Instrument, field::display};
use wire::{
    api::{ApiError, Limit, Sample, Written},
    published::{EffectBatch, EffectFeed, StateCell},
};

use crate::{
    leadership::{
        applier::{self, PlanRequest, PlanStats},
        leading::Leading,
        member_times::MemberTimes,
        requirements,
    },
    member::{
        contact::{Contact, silent_servers},
        time::{self, ServerTime},
    },
};

/// Proposals under way at a time, of clients and services together.
const PROPOSALS_MAX: usize = 8_192;
/// The log's limit, less the byte that tells the kind of payload.
const ENTRY_BYTES_MAX: usize = wal::PAYLOAD_BYTES_MAX - 1;
/// A client's change beyond this is tried before it is logged, bytes.
const UNTRIED_BYTES: usize = 64 << 10;
/// How long a proposal of a leader service may take before its outcome counts as unknown.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before a leader tries again after its entry was refused: it has not heard a majority for a
/// while.
pub(crate) const RETRY_PAUSE: Duration = Duration::from_millis(25);
/// Plans that wait for the applier's queue.
const PLANS_WAITING_MAX: usize = 4_096;

/// Makes the calls to providers that the machine of pools asks for.
pub(crate) trait MakeCalls: Send + Sync {
    /// Makes a call of a leadership. Its answer goes to [`LeaderServices::answered`].
    fn start(self: Arc<Self>, services: &Arc<LeaderServices>, id: CallId, call: Call);

    /// How long the calls of this server took, by the names of their metrics.
    fn samples(&self) -> BTreeMap<String, Sample>;
}

/// What leader services are made of.
pub(crate) struct Ingredients {
    pub(crate) contact: Arc<Contact>,
    pub(crate) cell: Arc<StateCell>,
    pub(crate) leading: Arc<Leading>,
    pub(crate) provider_calls: Arc<dyn MakeCalls>,
}

/// Starts and stops leader services as leadership comes and goes.
pub(crate) async fn watch(of: Ingredients, mut stopping: watch::Receiver<bool>) {
    let (contact, leading) = (&of.contact, &of.leading);
    let mut metrics = contact.raft.metrics();
    loop {
        let term = contact.leads();
        let have = leading.services().map(|services| services.epoch);
        if have.is_some() && have != term {
            tracing::info!(epoch = have, "leadership lost: leader services stop");
            leading.set(None);
        }
        if let Some(term) = term
            && leading.services().is_none()
            && !*stopping.borrow()
        {
            // The barrier: everything of earlier terms is applied before a service looks at the
            // state.
            let barrier = contact.raft.ensure_linearizable(ReadPolicy::ReadIndex);
            let (barrier, asked_ms) = futures_util::join!(barrier, time::ask(contact));
            match barrier {
                Ok(_) if contact.leads() == Some(term) => {
                    leading.set(Some(LeaderServices::start(&of, term, asked_ms)));
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
        leading.set_has_others(contact.has_others());
        rt::select! {
            biased;
            changed = stopping.changed() => {
                if changed.is_err() || *stopping.borrow() {
                    return;
                }
            }
            changed = metrics.changed() => {
                if changed.is_err() {
                    leading.set(None);
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
    contact: Arc<Contact>,
    cell: Arc<StateCell>,
    /// Log time, from the start of these services on.
    time: Arc<ServerTime>,
    machines: Mutex<Services>,
    /// Makes the calls of the machine of pools.
    provider_calls: Arc<dyn MakeCalls>,
    plan_stats: Arc<PlanStats>,
    /// How long a step of the machines took.
    steps: Histogram,
    /// From a requirement of capacity until a member serves.
    member_times: Mutex<MemberTimes>,
    /// An evaluation is ready to be leased.
    ready: Notify,
    /// The machines have to step again.
    kick: Notify,
    /// A command waits to be proposed.
    queued: Notify,
    proposals: Semaphore,
    plans: mpsc::Sender<PlanRequest>,
    /// Where words of sources of capacity go in.
    requirements: requirements::Inlet,
    stop: watch::Sender<bool>,
}

/// Holds the nack timer of a lease while its plan is queued. The drop resumes it, also when the
/// worker is gone and its call was dropped.
struct PausedNack<'a> {
    services: &'a LeaderServices,
    id: EvaluationId,
    token: Token,
}

impl Drop for PausedNack<'_> {
    fn drop(&mut self) {
        let now = self.services.now();
        self.services.machines().dispatch_mut().plan_answered(now, self.id, self.token);
        self.services.kick.notify_one();
    }
}

impl LeaderServices {
    /// Of a server that asked the others at that moment what time it is.
    fn start(of: &Ingredients, epoch: u64, asked_ms: u64) -> Arc<Self> {
        let settings = &of.contact.settings;
        let (state, feed) = of.cell.subscribe();
        let (plans, plan_queue) = mpsc::channel(PLANS_WAITING_MAX);
        let (requirements, words) = requirements::Inlet::new();
        of.contact.time.lead(epoch, state.at(), asked_ms, &of.contact.voters());
        let services = Arc::new(Self {
            epoch,
            raft: of.contact.raft.clone(),
            contact: Arc::clone(&of.contact),
            cell: Arc::clone(&of.cell),
            time: Arc::clone(&of.contact.time),
            machines: Mutex::new(Services::new(&settings.services)),
            provider_calls: Arc::clone(&of.provider_calls),
            plan_stats: Arc::default(),
            steps: Histogram::default(),
            member_times: Mutex::default(),
            ready: Notify::new(),
            kick: Notify::new(),
            queued: Notify::new(),
            proposals: Semaphore::new(PROPOSALS_MAX),
            plans,
            requirements,
            stop: watch::channel(false).0,
        });
        services.restore(&state);
        rt::spawn(Arc::clone(&services).serve(feed));
        rt::spawn(Arc::clone(&services).propose_commands());
        rt::spawn(requirements::run(Arc::clone(&services), words));
        let numbers = Arc::clone(&services.plan_stats);
        let limits = settings.services.plans;
        rt::spawn(applier::run(Arc::clone(&services), limits, plan_queue, numbers));
        services
    }

    /// Builds every machine from the state: in a new leader, and again when effects were missed.
    fn restore(&self, state: &State) {
        let now = self.now();
        self.machines().restore(now, state);
        self.member_times().restore(state);
        self.ready.notify_waiters();
        self.kick.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.stop.send_replace(true);
        self.machines().stop();
        self.time.resign(self.epoch);
        self.ready.notify_waiters();
    }

    pub(crate) fn stopped(&self) -> watch::Receiver<bool> {
        self.stop.subscribe()
    }

    /// Log time.
    pub fn now(&self) -> u64 {
        self.time.now()
    }

    fn machines(&self) -> MutexGuard<'_, Services> {
        self.machines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn member_times(&self) -> MutexGuard<'_, MemberTimes> {
        self.member_times.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The token of the lease on an evaluation.
    pub(crate) fn outstanding(&self, id: EvaluationId) -> Option<Token> {
        self.machines().dispatch().outstanding(id)
    }

    /// The last index of this leader's log.
    pub(crate) fn last_index(&self) -> Index {
        let logged = self.raft.metrics().borrow_watched().last_log_index.unwrap_or(0);
        logged.max(self.cell.applied())
    }

    pub(crate) fn cell(&self) -> &Arc<StateCell> {
        &self.cell
    }

    /// Where words of sources of capacity go in.
    pub(crate) fn requirements(&self) -> &requirements::Inlet {
        &self.requirements
    }

    /// Hands a command to Raft in this leadership, and waits for it to be applied.
    pub async fn propose(
        &self,
        command: Command,
        request: Option<fsm::session::Request>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let span = match command.evaluation() {
            Some(evaluation) => tracing::debug_span!("log entry", %evaluation),
            None => tracing::Span::none(),
        };
        self.propose_untraced(command, request, timeout).instrument(span).await
    }

    async fn propose_untraced(
        &self,
        command: Command,
        request: Option<fsm::session::Request>,
        timeout: Duration,
    ) -> Result<Written, ApiError> {
        let Ok(_permit) = self.proposals.try_acquire() else {
            let limit = PROPOSALS_MAX as u64;
            return Err(ApiError::Overloaded {
                what: Limit::Proposals,
                limit,
                retry_after_ms: 100,
            });
        };
        let proposal = Proposal { at: self.now(), epoch: Some(self.epoch), request, command };
        let data = EntryData(codec::encode(&proposal));
        let bytes = data.0.len();
        check_entry(bytes)?;
        if bytes > UNTRIED_BYTES
            && proposal.command.senders() == Senders::Clients
            && let Some(refused) = self.refusal(&proposal)
        {
            return Ok(refused);
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

    /// What a client's large change would be refused for: the log keeps what it is given, and a
    /// megabyte that is refused, sent again and again, would fill the disks. Whatever was
    /// acknowledged before it is in the state that it is tried on.
    fn refusal(&self, proposal: &Proposal) -> Option<Written> {
        if self.contact.is_majority_lost() {
            return None;
        }
        let mut state = (*self.cell.load()).clone();
        let index = state.index();
        let mut changes = fsm::table::ChangeSet::trial();
        let reply = state.apply(index.saturating_add(1), self.epoch, proposal, &mut changes).reply;
        matches!(reply, fsm::Reply::Rejected(_)).then_some(Written { index, reply })
    }

    /// Proposes what the machines ask for, one after the other.
    async fn propose_commands(self: Arc<Self>) {
        let mut stop = self.stopped();
        while !*stop.borrow() {
            let next = self.machines().next_command();
            let Some(command) = next else {
                rt::select! {
                    biased;
                    () = rt::until_true(&mut stop) => {}
                    () = self.queued.notified() => {}
                }
                continue;
            };
            match self.propose(command, None, SERVICE_TIMEOUT).await {
                Ok(written) => {
                    if let fsm::Reply::Rejected(rejection) = written.reply {
                        tracing::debug!(%rejection, "a service's command was refused");
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "a service's command was not applied");
                    // The machines derive the command again at once, and a leader whose lease has
                    // lapsed refuses at once: without a pause this loop would spin.
                    rt::sleep(RETRY_PAUSE).await;
                }
            }
            self.kick.notify_one();
        }
    }

    /// The loop of the machines: effects and timers in, commands and wake-ups out.
    async fn serve(self: Arc<Self>, mut feed: EffectFeed) {
        let mut stop = self.stopped();
        loop {
            self.step_machines();
            self.start_calls();
            let wait = Duration::from_millis(self.machines().pause_ms(self.now()));
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
            self.member_times().take(now, &state, &effect);
            // Locked for each effect, so that workers get in between.
            self.machines().take(now, &state, index, &effect);
        }
    }

    fn step_machines(&self) {
        let now = self.now();
        let state = self.cell.load();
        let silent = silent_servers(&self.raft);
        let stepped = {
            let mut machines = self.machines();
            let begun = Instant::now();
            for server in silent {
                machines.dispatch_mut().server_lost(now, server);
            }
            let stepped = machines.step(now, &state, rt::random_id);
            self.steps.record(begun.elapsed());
            stepped
        };
        stepped.reports.iter().for_each(|report| log(&report.line()));
        if stepped.has_ready {
            self.ready.notify_waiters();
        }
        if !stepped.commands.is_empty() {
            self.queued.notify_one();
        }
    }

    fn start_calls(self: &Arc<Self>) {
        loop {
            let Some((id, call)) = self.machines().next_call() else { return };
            Arc::clone(&self.provider_calls).start(self, id, call);
        }
    }

    /// A provider has answered a call.
    pub(crate) fn answered(&self, id: CallId, answer: Result<Answer, ProviderError>) {
        let (now, state) = (self.now(), self.cell.load());
        self.machines().answered(now, &state, id, answer);
        self.queued.notify_one();
        self.kick.notify_one();
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
                let mut machines = self.machines();
                let (now, state) = (self.now(), self.cell.load());
                let dispatch = machines.dispatch_mut();
                dispatch.dequeue(now, &state, kinds, max, server, rt::random_id)?
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
        let acked = self.machines().dispatch_mut().ack(self.now(), id, token);
        self.kick.notify_one();
        acked
    }

    /// Gives a lease back.
    pub fn nack(&self, id: EvaluationId, token: Token, why: NackReason) -> Result<(), BrokerError> {
        let nacked = self.machines().dispatch_mut().nack(self.now(), id, token, why);
        self.kick.notify_one();
        nacked
    }

    /// Queues a plan and waits for its outcome.
    pub async fn submit_plan(
        &self,
        plan: fsm::Plan,
        bytes: usize,
        token: Token,
    ) -> Result<PlanAnswer, BrokerError> {
        let id = plan.evaluation;
        // Fails if the evaluation's outcome was applied already: it is not here any more, and
        // `apply` would refuse the plan anyway.
        self.machines().dispatch_mut().plan_queued(id, token)?;
        let _resumed = PausedNack { services: self, id, token };
        let (request, answer) = applier::request(plan, bytes, token);
        if self.plans.send(request).await.is_err() {
            return Err(BrokerError::Disabled);
        }
        let answer = answer.await.map_err(|_| BrokerError::Disabled)?;
        if answer == PlanAnswer::QueueFull {
            self.plan_stats.turned_away.fetch_add(1, Ordering::Relaxed);
        }
        Ok(answer)
    }

    /// A node's heartbeat.
    pub fn heard(
        &self,
        node: NodeId,
        incarnation: u64,
    ) -> Result<leader::heartbeat::Heard, leader::heartbeat::HeartbeatError> {
        let heard = self.machines().heard(self.now(), node, incarnation)?;
        if heard.returned.is_some() {
            self.queued.notify_one();
        }
        Ok(heard)
    }

    /// The time to live of a node's next heartbeat, ms.
    pub fn ttl_ms(&self, node: NodeId) -> u64 {
        self.machines().nodes().ttl_ms(node)
    }

    /// Evaluations that workers have at present.
    pub fn leases_outstanding(&self) -> usize {
        self.machines().dispatch().stats().total.unacked
    }

    /// Whether the broker has nothing to hand out and no lease is outstanding.
    pub fn is_idle(&self) -> bool {
        let total = self.machines().dispatch().stats().total;
        total.ready == 0 && total.unacked == 0 && total.pending == 0
    }

    /// Whether so many evaluations wait that new work is refused.
    pub fn is_overloaded(&self) -> bool {
        self.machines().dispatch().is_full()
    }

    pub(crate) fn gauges(&self, put: &mut impl FnMut(&str, u64)) {
        self.machines().gauges(self.now(), put);
        let PlanStats { depth, turned_away, dropped, .. } = &*self.plan_stats;
        put("plan.queue_depth", depth.load(Ordering::Relaxed));
        put("plan.queue_full", turned_away.load(Ordering::Relaxed));
        put("plan.node_rejected", dropped.load(Ordering::Relaxed));
    }

    pub(crate) fn samples(&self) -> BTreeMap<String, Sample> {
        let mut samples = self.provider_calls.samples();
        let own = [
            ("nomad.leader.step", self.steps.sample()),
            ("nomad.plan.evaluate", self.plan_stats.evaluate.sample()),
            ("nomad.plan.apply", self.plan_stats.apply.sample()),
            ("nomad.capacity.requirement_to_member", self.member_times().sample()),
        ];
        samples.extend(own.map(|(name, sample)| (name.to_owned(), sample)));
        samples
    }
}

/// Refuses what the log refuses for good: the server would end.
pub(crate) fn check_entry(bytes: usize) -> Result<(), ApiError> {
    if bytes > ENTRY_BYTES_MAX {
        let text = format!("a change of {bytes} bytes is over the limit of {ENTRY_BYTES_MAX}");
        return Err(ApiError::Invalid(text));
    }
    Ok(())
}

/// Writes the line of a report; a field without a value is left out.
fn log(line: &LogLine<'_>) {
    let (node, evaluation) = (line.node.map(display), line.evaluation.map(display));
    let instance = line.instance.map(display);
    let LogLine { message, pool, job, change, detail, server, deliveries, count, by, .. } = *line;
    // The level of a line is fixed where it is written.
    macro_rules! write {
        ($level:ident) => {
            tracing::$level!(
                node,
                instance,
                pool,
                job,
                change,
                detail,
                evaluation,
                server,
                deliveries,
                count,
                by,
                "{message}"
            )
        };
    }
    if line.is_warning { write!(warn) } else { write!(info) }
}
