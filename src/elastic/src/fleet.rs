//! The machine of all pools: intent → create → boot → work → idle → shut down.
//!
//! ```text
//!  state, effects ─► demand ─► pack ─► RequestInstances ─► (committed) ─► Create ─► InstanceOutcome
//!  time ──────────► deadlines of instances ─► ShutDownInstance ─► Destroy ─► DestroyOutcome
//!  lists ─────────► sync ─► ObserveInstances
//! ```
//!
//! It owns what is under way: calls, when to try again, what was proposed a moment ago. All of that
//! may be lost: the next leader lists first, finds machines by the tag of their intent, and asks
//! again with the same key. Nothing is shut down for a deadline or for idling before the warm-up is
//! over, since until then a new leader has not heard what the old one knew.
//!
//! A pool is looked at when something of it changed, at most once in [`COALESCE_MS`], and when a
//! deadline of it is due; a look costs the instances and the waiting evaluations of that pool.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use fsm::{
    ClassId, Command, Effect, Index, Instance, InstanceId, InstancePool, InstanceState, JobKey,
    Liveness, Node, State, Text,
    node::{GainKey, SuspendReason},
    pool::{
        Behavior, CreateOutcome, DestroyOutcome, InstanceOutcome, Intent, LimitClass, LimitPool,
        NoteInstance, NoteUnhelped, RequestInstances, SetInstanceBehavior, ShutDownInstance,
        ShutdownCause, stray_id,
    },
};

use crate::{
    call::{
        Answer, Call, Create, Destroyed, MachineState, Operation, ProviderError, TAG_BEHAVIOR,
        TAG_INSTANCE, TAG_POOL, TAG_TYPE, Tags,
    },
    demand::{Bin, Demand, Gained, Packed, Waiting, is_of_mass_loss, pack},
    limits, sizes,
    sync::Lists,
};

/// Changes of a pool are looked at together when they come within this time, ms.
pub const COALESCE_MS: u64 = 100;
/// What was proposed is proposed again after this time if the state still asks for it, ms.
const ASK_AGAIN_MS: u64 = 5_000;
/// Intents of one pool in one entry.
const INTENTS_MAX: usize = 64;
/// Jobs that are noted as not helped, and instances that are shut down or set to drain, in a look.
const NOTES_MAX: usize = 16;
/// Descriptions asked of all providers in a second (Arvados' `MaxProbesPerSecond`).
const PROBES_PER_SECOND_MAX: u32 = 10;
/// Calls of one provider under way.
const CALLS_MAX: usize = 32;
/// Pause after a failed create, doubled with each, ms.
const CREATE_RETRY_MS: u64 = 1_000;
const CREATE_RETRY_MS_MAX: u64 = 30_000;
/// How long an answer is of use, ms.
const CALL_MS: u64 = 60_000;

/// Times of pools, ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FleetConfig {
    /// Between two lists of a provider.
    pub list_interval_ms: u64,
    /// Between two looks at an instance that boots.
    pub probe_interval_ms: u64,
    /// Between two destroys of an instance that is still there.
    pub destroy_retry_ms: u64,
    /// From the start of a leadership until anything is judged by time.
    pub warm_up_ms: u64,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            list_interval_ms: 60_000,
            probe_interval_ms: 10_000,
            destroy_retry_ms: 10_000,
            warm_up_ms: 30_000,
        }
    }
}

/// Number of a call, unique in a leadership.
pub type CallId = u64;

/// What is under way with one instance.
#[derive(Default, Debug)]
struct Attempt {
    /// What the rest is about: another state has calls of its own.
    state: Option<InstanceState>,
    /// A create, destroy or describe of that state that has not been answered.
    call: Option<CallId>,
    /// Creates that failed.
    failures: u32,
    /// A create may have made a machine although it was not answered so.
    is_unknown: bool,
    /// The next call of its state is not before this.
    next_at: u64,
    /// Something was proposed; not again before this.
    asked_until: u64,
}

#[derive(Default, Debug)]
struct PoolWatch {
    is_dirty: bool,
    looked_at: u64,
    /// When something of it is due.
    due_at: Option<u64>,
    /// Intents that were proposed and are not in the state; until when they are waited for.
    asked: BTreeSet<InstanceId>,
    asked_until: u64,
}

impl PoolWatch {
    fn look_at(&self) -> Option<u64> {
        let dirty = self.is_dirty.then(|| self.looked_at.saturating_add(COALESCE_MS));
        [dirty, self.due_at].into_iter().flatten().min()
    }
}

#[derive(Default, Debug)]
struct ProviderWatch {
    lists: Lists,
    next_list_at: u64,
    listing: Option<CallId>,
    calls: usize,
}

/// Types of a pool that were proposed as no help to a job, and until when that is waited for.
#[derive(Debug)]
struct AskedNote {
    types: Vec<Text>,
    until: u64,
}

/// The outcome of a create that is not in the state yet. While it is kept the create is not sent
/// again.
#[derive(Debug)]
struct Kept {
    outcome: InstanceOutcome,
    /// When it is proposed again.
    again_at: u64,
}

impl Kept {
    /// Whether the state needs it no more: it has the machine, or a create that made none is not
    /// waited for any longer.
    fn is_known(&self, state: &State) -> bool {
        let InstanceOutcome { id, provider, outcome, .. } = &self.outcome;
        let row = state.instances().get(id);
        match outcome {
            CreateOutcome::Made { provider_id, .. } => {
                let has_machine = |row: &Arc<Instance>| row.provider_id == *provider_id;
                row.is_some_and(has_machine)
                    || state.instances().contains(&stray_id(provider, provider_id))
            }
            CreateOutcome::Failed { .. } => {
                row.is_none_or(|row| row.state != InstanceState::Requested)
            }
        }
    }
}

/// A call that has not been answered.
#[derive(Clone, Debug)]
struct Flight {
    call: Call,
    began_at: u64,
    instance: Option<InstanceId>,
}

/// The pools of one leadership.
#[derive(Debug)]
pub struct Fleet {
    config: FleetConfig,
    /// Providers in the configuration of this server.
    configured: BTreeSet<Text>,
    demand: Demand,
    pools: BTreeMap<Text, PoolWatch>,
    /// Pool of each instance, and how far it had come: an effect about one that went names its id
    /// only.
    homes: BTreeMap<InstanceId, (Text, InstanceState)>,
    outcomes: Outcomes,
    attempts: BTreeMap<InstanceId, Attempt>,
    providers: BTreeMap<Text, ProviderWatch>,
    flights: BTreeMap<CallId, Flight>,
    /// By the key of the create, and the machine that it made: a provider that ignores keys may
    /// have made several.
    kept: BTreeMap<(InstanceId, Text), Kept>,
    outgoing: VecDeque<(CallId, Call)>,
    last_call: CallId,
    /// None: no leadership yet.
    warm_at: Option<u64>,
    /// Notes that were proposed and are not in the state.
    unhelped: BTreeMap<JobKey, AskedNote>,
    /// A second of log time, and the probes in it.
    probes: (u64, u32),
}

impl Fleet {
    /// A fleet that knows nothing before it is restored.
    pub fn new(config: FleetConfig, configured: BTreeSet<Text>) -> Self {
        Self {
            config,
            configured,
            demand: Demand::default(),
            pools: BTreeMap::new(),
            homes: BTreeMap::new(),
            outcomes: Outcomes::default(),
            attempts: BTreeMap::new(),
            providers: BTreeMap::new(),
            flights: BTreeMap::new(),
            kept: BTreeMap::new(),
            outgoing: VecDeque::new(),
            last_call: 0,
            warm_at: None,
            unhelped: BTreeMap::new(),
            probes: (0, 0),
        }
    }

    /// Takes everything over from the state: at the start of a leadership, and again when effects
    /// were missed. Calls under way stay.
    pub fn restore(&mut self, now: u64, state: &State) {
        let is_first = self.warm_at.is_none();
        self.warm_at.get_or_insert(now.saturating_add(self.config.warm_up_ms));
        self.demand.restore(state);
        self.homes.clear();
        self.attempts.retain(|id, _| state.instances().contains(id));
        for row in state.instances().iter() {
            self.homes.insert(row.id, (row.pool.clone(), row.state));
            if is_first && row.state == InstanceState::Requested {
                // The leader before may have asked.
                self.attempts.entry(row.id).or_default().is_unknown = true;
            }
        }
        let names = state.instance_pools().iter().map(|pool| pool.name.clone());
        let names: BTreeSet<Text> =
            names.chain(self.homes.values().map(|(home, _)| home.clone())).collect();
        self.pools.retain(|name, _| names.contains(name));
        for name in &names {
            self.touch(name);
        }
    }

    /// Takes in an effect; `state` is the newest.
    pub fn take(&mut self, state: &State, effect: &Effect) {
        match effect {
            Effect::Instance(id) => {
                self.kept.retain(|_, kept| !kept.is_known(state));
                let row = state.instances().get(id);
                let home = match row {
                    Some(row) => {
                        let known = self.homes.insert(*id, (row.pool.clone(), row.state));
                        self.outcomes.count(known.map(|(_, state)| state), Some(row));
                        Some(row.pool.clone())
                    }
                    None => {
                        self.attempts.remove(id);
                        let known = self.homes.remove(id);
                        self.outcomes.count(known.as_ref().map(|(_, state)| *state), None);
                        known.map(|(home, _)| home)
                    }
                };
                if let Some(home) = home {
                    self.touch(&home);
                    if let Some(watch) = self.pools.get_mut(&home) {
                        watch.asked.remove(id);
                    }
                }
            }
            Effect::InstancePool(name) => {
                self.demand.pool_changed(state, name);
                self.touch(name);
            }
            Effect::Evaluation(id) => {
                for name in self.demand.evaluation_changed(state, *id) {
                    self.touch(&name);
                }
            }
            Effect::Job(key) => {
                self.unhelped.remove(key);
                for name in self.demand.job_changed(state, key) {
                    self.touch(&name);
                }
            }
            Effect::Node(id) | Effect::NodeAllocations(id) => {
                let node = state.nodes().get(id);
                let instance = node.and_then(|node| node.instance).map(|instance| instance.id);
                if let Some(home) =
                    instance.and_then(|id| self.homes.get(&id)).map(|(home, _)| home.clone())
                {
                    self.touch(&home);
                }
            }
            Effect::MassLoss => self.pools.values_mut().for_each(|watch| watch.is_dirty = true),
            Effect::Capacity { .. }
            | Effect::NodeChange { .. }
            | Effect::SchedulerConfiguration
            | Effect::DigestMark => {}
        }
    }

    fn touch(&mut self, name: &Text) {
        self.pools.entry(name.clone()).or_default().is_dirty = true;
    }

    /// Lets time pass; `ids` makes a fresh id at each call. Answers with commands to propose; calls
    /// are taken with [`Self::next_call`].
    pub fn step(
        &mut self,
        now: u64,
        state: &State,
        ids: &mut dyn FnMut() -> [u8; 16],
    ) -> Vec<Command> {
        let mut commands = Vec::new();
        if self.warm_at.is_none() {
            return commands;
        }
        self.list(now, state);
        self.repeat_outcomes(now, state, &mut commands);
        let due = |watch: &PoolWatch| watch.look_at().is_some_and(|at| at <= now);
        let names: Vec<Text> = self
            .pools
            .iter()
            .filter(|(_, watch)| due(watch))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let due_at = self.look(now, state, &name, ids, &mut commands);
            let is_known =
                state.instance_pools().contains(&name) || state.instance_count(&name) > 0;
            if !is_known {
                self.pools.remove(&name);
            } else if let Some(watch) = self.pools.get_mut(&name) {
                (watch.is_dirty, watch.looked_at) = (false, now);
                // Never at once again: what is due now was asked for just now.
                watch.due_at = due_at.map(|at| at.max(now.saturating_add(COALESCE_MS)));
            }
        }
        commands
    }

    /// When to step next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.warm_at?;
        let pools = self.pools.values().filter_map(PoolWatch::look_at);
        let lists = self.providers.values().filter(|watch| watch.listing.is_none());
        let kept = self.kept.values().map(|kept| kept.again_at);
        pools.chain(lists.map(|watch| watch.next_list_at)).chain(kept).min()
    }

    /// The next call to make.
    pub fn next_call(&mut self) -> Option<(CallId, Call)> {
        self.outgoing.pop_front()
    }

    /// Whether a call is still waited for, and not by a leadership that is over.
    pub fn waits_for(&self, id: CallId) -> bool {
        self.flights.contains_key(&id)
    }

    /// A call was answered; commands to propose.
    pub fn answered(
        &mut self,
        now: u64,
        state: &State,
        id: CallId,
        answer: Result<Answer, ProviderError>,
    ) -> Vec<Command> {
        let Some(flight) = self.flights.remove(&id) else { return Vec::new() };
        if let Some(watch) = self.providers.get_mut(&flight.call.provider) {
            watch.calls = watch.calls.saturating_sub(1);
            if watch.listing == Some(id) {
                watch.listing = None;
            }
        }
        let row = flight.instance.and_then(|id| state.instances().get(&id)).cloned();
        if let Some(instance) = flight.instance {
            let attempt = self.attempts.entry(instance).or_default();
            attempt.call = attempt.call.filter(|call| *call != id);
            if row.is_none() {
                self.attempts.remove(&instance);
            }
        }
        if let Some(home) = row.as_ref().map(|row| row.pool.clone()) {
            self.touch(&home);
        }
        match &flight.call.operation {
            Operation::List => self.listed(now, state, &flight, answer),
            Operation::Create(create) => {
                if let Err(error) = &answer {
                    return self.create_failed(now, row.as_deref(), create, error);
                }
                let outcome = made(&flight.call.provider, create, &answer);
                outcome.map(|outcome| self.keep(now, outcome)).into_iter().collect()
            }
            Operation::Destroy { instance, .. } => {
                let pause = self.config.destroy_retry_ms;
                if let Some(attempt) = self.attempts.get_mut(instance) {
                    attempt.next_at = now.saturating_add(pause);
                }
                late(&flight.call, &answer).into_iter().collect()
            }
            Operation::Describe { .. } => row.map_or_else(Vec::new, |row| described(&row, answer)),
            Operation::SetTags { .. } => Vec::new(),
        }
    }

    fn create_failed(
        &mut self,
        now: u64,
        row: Option<&Instance>,
        create: &Create,
        error: &ProviderError,
    ) -> Vec<Command> {
        let Some(row) = row.filter(|row| row.state == InstanceState::Requested) else {
            return Vec::new();
        };
        let attempt = self.attempts.entry(row.id).or_default();
        let refusal = limits::refusal(&create.kind, error);
        attempt.failures = attempt.failures.saturating_add(1);
        let pause = CREATE_RETRY_MS << attempt.failures.min(5).saturating_sub(1);
        attempt.next_at = now.saturating_add(pause.min(CREATE_RETRY_MS_MAX));
        match refusal {
            Some(refusal) if !attempt.is_unknown => {
                let outcome = InstanceOutcome {
                    id: row.id,
                    provider: row.provider.clone(),
                    pool: row.pool.clone(),
                    kind: row.kind.name.clone(),
                    outcome: CreateOutcome::Failed {
                        class: refusal.class,
                        scope: refusal.scope,
                        for_ms: refusal.for_ms,
                        detail: refusal.detail,
                    },
                };
                vec![self.keep(now, outcome)]
            }
            // A machine may be there from another try: lists tell, after the deadline.
            Some(_) | None => {
                attempt.is_unknown = true;
                let (address, words) = (Text::default(), error.to_string().into());
                vec![Command::NoteInstance(NoteInstance { id: row.id, address, words })]
            }
        }
    }

    /// The command of a create's outcome, which is proposed again until the state has it.
    fn keep(&mut self, now: u64, outcome: InstanceOutcome) -> Command {
        let machine = match &outcome.outcome {
            CreateOutcome::Made { provider_id, .. } => provider_id.clone(),
            CreateOutcome::Failed { .. } => Text::default(),
        };
        let command = Command::InstanceOutcome(outcome.clone());
        let again_at = now.saturating_add(ASK_AGAIN_MS);
        self.kept.insert((outcome.id, machine), Kept { outcome, again_at });
        command
    }

    /// Proposes again what a create came to.
    fn repeat_outcomes(&mut self, now: u64, state: &State, commands: &mut Vec<Command>) {
        if self.kept.values().all(|kept| kept.again_at > now) {
            return;
        }
        self.kept.retain(|_, kept| !kept.is_known(state));
        for kept in self.kept.values_mut().filter(|kept| kept.again_at <= now) {
            kept.again_at = now.saturating_add(ASK_AGAIN_MS);
            commands.push(Command::InstanceOutcome(kept.outcome.clone()));
        }
    }

    /// Whether a create of an instance was answered, and the state does not have it yet.
    fn is_answered(&self, id: InstanceId) -> bool {
        let from = (id, Text::default());
        self.kept.range(from..).next().is_some_and(|((kept, _), _)| *kept == id)
    }

    fn listed(
        &mut self,
        now: u64,
        state: &State,
        flight: &Flight,
        answer: Result<Answer, ProviderError>,
    ) -> Vec<Command> {
        let provider = &flight.call.provider;
        let Some(watch) = self.providers.get_mut(provider) else { return Vec::new() };
        let is_settling = state.instances().iter().any(|row| {
            row.provider == *provider
                && (row.missing > 0 || row.state == InstanceState::ShuttingDown)
        });
        let pause = if is_settling {
            self.config.list_interval_ms.min(self.config.destroy_retry_ms)
        } else {
            self.config.list_interval_ms
        };
        watch.next_list_at = now.saturating_add(pause);
        let Ok(Answer::Listed(list)) = answer else { return Vec::new() };
        let is_first = watch.lists.taken == 0;
        let has_creates = state
            .instances()
            .iter()
            .any(|row| row.provider == *provider && row.state == InstanceState::Requested)
            || self.flights.values().any(|flight| {
                flight.call.provider == *provider
                    && matches!(flight.call.operation, Operation::Create(_))
            })
            || self.kept.values().any(|kept| kept.outcome.provider == *provider);
        let grace_ms = self.config.list_interval_ms.saturating_mul(2);
        let difference =
            watch.lists.compare(state, provider, &list, flight.began_at, grace_ms, has_creates);
        if is_first {
            // Creates and destroys waited for it.
            self.pools.values_mut().for_each(|watch| watch.is_dirty = true);
        }
        difference.map(Command::ObserveInstances).into_iter().collect()
    }

    /// Lists each provider that a pool or an instance names.
    fn list(&mut self, now: u64, state: &State) {
        let pools = state.instance_pools().iter().map(|pool| &pool.provider);
        let named: BTreeSet<&Text> = if self.pools.is_empty() {
            BTreeSet::new()
        } else {
            pools
                .chain(
                    self.homes.keys().filter_map(|id| Some(&state.instances().get(id)?.provider)),
                )
                .collect()
        };
        for provider in named {
            if !self.configured.contains(provider) {
                continue;
            }
            let watch = self.providers.entry(provider.clone()).or_default();
            if watch.listing.is_none() && watch.next_list_at <= now {
                let id = self.call(now, None, provider, Operation::List);
                if let Some(watch) = self.providers.get_mut(provider) {
                    watch.listing = Some(id);
                }
            }
        }
    }

    fn call(
        &mut self,
        now: u64,
        instance: Option<InstanceId>,
        provider: &Text,
        operation: Operation,
    ) -> CallId {
        self.last_call += 1;
        let id = self.last_call;
        let call = Call {
            provider: provider.clone(),
            deadline_at: now.saturating_add(CALL_MS),
            operation,
        };
        if let Some(instance) = instance {
            self.attempts.entry(instance).or_default().call = Some(id);
        }
        self.providers.entry(provider.clone()).or_default().calls += 1;
        self.flights.insert(id, Flight { call: call.clone(), began_at: now, instance });
        self.outgoing.push_back((id, call));
        id
    }

    /// Whether calls about this provider's machines may go out: it is configured here, and has
    /// listed what there is.
    fn may_call(&self, provider: &Text) -> bool {
        self.configured.contains(provider)
            && self
                .providers
                .get(provider)
                .is_some_and(|watch| watch.lists.taken > 0 && watch.calls < CALLS_MAX)
    }

    fn is_warm(&self, now: u64) -> bool {
        self.warm_at.is_some_and(|at| at <= now)
    }

    /// Proposes something about an instance, unless it was proposed a moment ago.
    fn ask(
        &mut self,
        now: u64,
        id: InstanceId,
        command: Command,
        commands: &mut Vec<Command>,
    ) -> u64 {
        let attempt = self.attempts.entry(id).or_default();
        if attempt.asked_until <= now {
            attempt.asked_until = now.saturating_add(ASK_AGAIN_MS);
            commands.push(command);
        }
        attempt.asked_until
    }

    /// Does what is due in a pool; answers when something is due next.
    fn look(
        &mut self,
        now: u64,
        state: &State,
        name: &Text,
        ids: &mut dyn FnMut() -> [u8; 16],
        commands: &mut Vec<Command>,
    ) -> Option<u64> {
        let mut due = Due::default();
        let rows: Vec<Arc<Instance>> = state.instances_of(name).cloned().collect();
        let pool = state.instance_pools().get(name).cloned();
        for row in &rows {
            self.duty(now, state, pool.as_deref(), row, &mut due, commands);
        }
        if let Some(pool) = pool.filter(|pool| pool.paused.is_none()) {
            self.balance(now, state, &pool, &rows, ids, &mut due, commands);
        }
        due.0
    }

    /// What one instance asks for, whatever waits.
    fn duty(
        &mut self,
        now: u64,
        state: &State,
        pool: Option<&InstancePool>,
        row: &Instance,
        due: &mut Due,
        commands: &mut Vec<Command>,
    ) {
        let may_end = row.behavior != Behavior::Hold && !is_in_mass_loss(state, row);
        let is_warm = self.is_warm(now);
        if !is_warm {
            due.at(self.warm_at.unwrap_or(now));
        }
        let is_drained = row.behavior == Behavior::Drain && state.is_empty_instance(row);
        let end = match row.state {
            InstanceState::ShuttingDown => None,
            _ if is_drained => {
                Some((now, ShutdownCause::Drained, "it drains and is empty".to_owned()))
            }
            InstanceState::Requested => {
                let why = format!("the provider did not make it in time{}", words(row));
                Some((row.deadline_at, ShutdownCause::Expired, why))
            }
            InstanceState::Booting => {
                let why = format!("its agent did not register in time{}", words(row));
                Some((row.deadline_at, ShutdownCause::BootFailed, why))
            }
            InstanceState::Bound => {
                let timeout = pool.map_or(0, |pool| pool.probe_timeout_ms);
                let node = row.node.and_then(|node| state.nodes().get(&node));
                failing_since(row, node.map(|node| &**node)).map(|(since, what)| {
                    let why = format!("its node was {what} for too long");
                    (since.saturating_add(timeout), ShutdownCause::ProbeFailed, why)
                })
            }
        };
        if let Some((at, cause, why)) = end.filter(|_| may_end) {
            if at > now {
                due.at(at);
            } else if is_warm || cause == ShutdownCause::Drained {
                due.at(self.ask(now, row.id, shut_down(row.id, cause, &why), commands));
                return;
            }
        }
        self.call_for(now, row, due);
    }

    /// The call that is due for an instance in its state.
    fn call_for(&mut self, now: u64, row: &Instance, due: &mut Due) {
        let attempt = self.attempts.entry(row.id).or_default();
        if attempt.state != Some(row.state) {
            (attempt.state, attempt.call, attempt.next_at) = (Some(row.state), None, 0);
        }
        if attempt.call.is_some() {
            return;
        }
        if attempt.next_at > now {
            return due.at(attempt.next_at);
        }
        if !self.may_call(&row.provider) {
            return;
        }
        let (instance, provider_id) = (row.id, row.provider_id.clone());
        let operation = match row.state {
            // It comes with the outcome's entry.
            InstanceState::Requested if self.is_answered(row.id) => return,
            InstanceState::Requested => Operation::Create(Box::new(create(row))),
            InstanceState::Booting => {
                if self.probes.0 != now / 1_000 {
                    self.probes = (now / 1_000, 0);
                }
                if self.probes.1 >= PROBES_PER_SECOND_MAX {
                    return due.at((now / 1_000 + 1) * 1_000);
                }
                self.probes.1 += 1;
                let next_at = now.saturating_add(self.config.probe_interval_ms);
                self.attempts.entry(row.id).or_default().next_at = next_at;
                Operation::Describe { instance, provider_id }
            }
            // What a list has to tell first.
            InstanceState::ShuttingDown if provider_id.is_empty() => return,
            InstanceState::ShuttingDown => Operation::Destroy { instance, provider_id },
            InstanceState::Bound => return,
        };
        self.call(now, Some(row.id), &row.provider, operation);
    }

    /// Grows the pool by what waits, and shrinks it by what idles.
    #[expect(clippy::too_many_arguments, reason = "one look at one pool")]
    fn balance(
        &mut self,
        now: u64,
        state: &State,
        pool: &Arc<InstancePool>,
        rows: &[Arc<Instance>],
        ids: &mut dyn FnMut() -> [u8; 16],
        due: &mut Due,
        commands: &mut Vec<Command>,
    ) {
        let (bins, owners) = bins(state, rows);
        let limited: BTreeMap<&Text, u64> = pool
            .types
            .values()
            .filter_map(|kind| Some((&kind.name, state.limit_on(&pool.name, kind, now)?.until)))
            .collect();
        for until in limited.values() {
            due.at(*until);
        }
        let count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
        let requested = rows.iter().filter(|row| row.state == InstanceState::Requested).count();
        let mut most =
            usize::try_from(pool.max.saturating_sub(count)).unwrap_or(0).min(INTENTS_MAX);
        if pool.max_concurrent_creates > 0 {
            let at_a_time = usize::try_from(pool.max_concurrent_creates).unwrap_or(usize::MAX);
            most = most.min(at_a_time.saturating_sub(requested));
        }
        let may_make = |kind: &Text| !limited.contains_key(kind);
        let mut waiting: Vec<_> = self
            .demand
            .of(&pool.name)
            .filter(|one| !is_of_mass_loss(state, one.evaluation))
            .cloned()
            .collect();
        self.note_unhelped(now, state, pool, rows, &mut waiting, due, commands);
        let mut packed = pack(pool, &waiting, bins, most, may_make);
        let running = rows.iter().filter(|row| {
            row.state != InstanceState::ShuttingDown && row.behavior == Behavior::Run
        });
        let running = u32::try_from(running.count()).unwrap_or(u32::MAX);
        let planned =
            running.saturating_add(u32::try_from(packed.wanted.len()).unwrap_or(u32::MAX));
        let lacking = usize::try_from(pool.min.saturating_sub(planned)).unwrap_or(0);
        let mut wanted: Vec<(Text, Option<JobKey>)> =
            packed.wanted.drain(..).map(|(kind, job)| (kind, Some(job))).collect();
        let cheapest = sizes::candidates(pool, |kind| may_make(&kind.name)).first().copied();
        if let Some(kind) = cheapest {
            let room = most.saturating_sub(wanted.len());
            wanted.extend((0..lacking.min(room)).map(|_| (kind.name.clone(), None)));
        }
        if !self.configured.contains(&pool.provider) {
            if (!wanted.is_empty() || count > 0) && limited.is_empty() {
                commands.push(not_configured(pool));
                due.at(now.saturating_add(ASK_AGAIN_MS));
            }
            return;
        }
        self.request(now, pool, wanted, ids, due, commands);
        if self.is_warm(now) {
            let used: BTreeSet<InstanceId> =
                packed.used.iter().filter_map(|place| owners.get(place).copied()).collect();
            self.shrink(now, state, pool, rows, &used, &packed, running, due, commands);
        }
    }

    fn request(
        &mut self,
        now: u64,
        pool: &InstancePool,
        wanted: Vec<(Text, Option<JobKey>)>,
        ids: &mut dyn FnMut() -> [u8; 16],
        due: &mut Due,
        commands: &mut Vec<Command>,
    ) {
        let is_listed = self.may_call(&pool.provider);
        let Some(watch) = self.pools.get_mut(&pool.name) else { return };
        if wanted.is_empty() || !is_listed {
            return;
        }
        if !watch.asked.is_empty() && watch.asked_until > now {
            return due.at(watch.asked_until);
        }
        let intents: Vec<Intent> = wanted
            .into_iter()
            .map(|(kind, wanted_by)| Intent {
                id: InstanceId(ids()),
                token: ids(),
                kind,
                wanted_by,
            })
            .collect();
        watch.asked = intents.iter().map(|intent| intent.id).collect();
        watch.asked_until = now.saturating_add(ASK_AGAIN_MS);
        due.at(watch.asked_until);
        commands.push(Command::RequestInstances(RequestInstances {
            pool: pool.name.clone(),
            pool_modify_index: pool.modify_index,
            intents,
        }));
    }

    /// An evaluation that has seen an idle machine of a type that should help it, and stays
    /// blocked, is not helped by more of them. What is noted is taken out of its needs at once: the
    /// state has it later.
    #[expect(clippy::too_many_arguments, reason = "one look at one pool")]
    fn note_unhelped(
        &mut self,
        now: u64,
        state: &State,
        pool: &InstancePool,
        rows: &[Arc<Instance>],
        waiting: &mut [Arc<Waiting>],
        due: &mut Due,
        commands: &mut Vec<Command>,
    ) {
        self.unhelped.retain(|_, note| note.until > now);
        let idle = idle_machines(state, rows);
        let mut notes = 0;
        for one in waiting {
            if let Some(note) = self.unhelped.get(&one.job) {
                due.at(note.until);
                Arc::make_mut(one).forget_types(&note.types);
                continue;
            }
            let saw = |kind: &&Text| {
                let gains = idle.get(kind).into_iter().flatten();
                gains
                    .map(|(class, index)| Gained { class: *class, index: *index })
                    .any(|gained| one.has_seen(gained))
            };
            let mut types: Vec<Text> =
                one.needs.iter().flat_map(|need| &need.types).filter(saw).cloned().collect();
            if types.is_empty() {
                continue;
            }
            Arc::make_mut(one).forget_types(&types);
            if notes >= NOTES_MAX {
                due.at(now);
                continue;
            }
            notes += 1;
            let known = state.unhelped_by(&one.job, one.job_modify_index);
            types.extend(known.into_iter().flat_map(|row| row.types.iter().cloned()));
            types.sort_unstable();
            types.dedup();
            let until = now.saturating_add(ASK_AGAIN_MS);
            due.at(until);
            self.unhelped.insert(one.job.clone(), AskedNote { types: types.clone(), until });
            commands.push(Command::NoteUnhelped(NoteUnhelped {
                job: one.job.clone(),
                job_modify_index: one.job_modify_index,
                pool: pool.name.clone(),
                pool_modify_index: pool.modify_index,
                types,
            }));
        }
    }

    /// Shuts down what is too much: above the pool's max, idle for too long, or idle and in the way
    /// of what waits.
    #[expect(clippy::too_many_arguments, reason = "one look at one pool")]
    fn shrink(
        &mut self,
        now: u64,
        state: &State,
        pool: &InstancePool,
        rows: &[Arc<Instance>],
        used: &BTreeSet<InstanceId>,
        packed: &Packed,
        running: u32,
        due: &mut Due,
        commands: &mut Vec<Command>,
    ) {
        let alive = |row: &&Arc<Instance>| {
            row.state != InstanceState::ShuttingDown && row.behavior != Behavior::Hold
        };
        let mut spares: Vec<&Arc<Instance>> =
            rows.iter().filter(alive).filter(|row| state.is_empty_instance(row)).collect();
        // Those that are not there yet first, the newest of them first, then the longest idle.
        spares.sort_by_key(|row| match row.state {
            InstanceState::Bound => (1, idle_since(state, row), row.id),
            InstanceState::Requested | InstanceState::Booting | InstanceState::ShuttingDown => {
                (0, u64::MAX - row.create_index, row.id)
            }
        });
        let mut left = running;
        let mut excess = u32::try_from(rows.iter().filter(alive).count())
            .unwrap_or(u32::MAX)
            .saturating_sub(pool.max);
        let mut ended: BTreeSet<InstanceId> = BTreeSet::new();
        for row in &spares {
            if excess == 0 || ended.len() >= NOTES_MAX {
                break;
            }
            excess -= 1;
            left = left.saturating_sub(u32::from(row.behavior == Behavior::Run));
            ended.insert(row.id);
            let why = format!("the pool may have {} instances", pool.max);
            let command = shut_down(row.id, ShutdownCause::Shrink, &why);
            due.at(self.ask(now, row.id, command, commands));
        }
        if excess > 0 {
            self.drain_excess(now, state, pool, rows, excess, due, commands);
        }
        // Something waits that a limit or the pool's max is in the way of: idle machines of types
        // that nobody waits for make room for the next in line, one at a time.
        let in_the_way = spares.iter().find(|row| {
            row.is_open() && !packed.types.contains(&row.kind.name) && !ended.contains(&row.id)
        });
        if let Some(row) = in_the_way.filter(|_| packed.is_stuck && left > pool.min) {
            left -= 1;
            ended.insert(row.id);
            let command = shut_down(row.id, ShutdownCause::Shrink, "another type is waited for");
            due.at(self.ask(now, row.id, command, commands));
        }
        for row in spares {
            let is_idle = row.is_open() && is_ready(state, row);
            if !is_idle || used.contains(&row.id) || ended.contains(&row.id) {
                continue;
            }
            if left <= pool.min || ended.len() >= NOTES_MAX {
                break;
            }
            let since = idle_since(state, row);
            let at = since.saturating_add(pool.idle_timeout_ms);
            if at > now {
                due.at(at);
                continue;
            }
            left -= 1;
            ended.insert(row.id);
            let why = format!("it was idle for {} s", now.saturating_sub(since) / 1_000);
            let command = shut_down(row.id, ShutdownCause::Idle, &why);
            due.at(self.ask(now, row.id, command, commands));
        }
    }

    /// No empty instance is left, and the pool has too many: those with the fewest allocations
    /// drain.
    #[expect(clippy::too_many_arguments, reason = "one look at one pool")]
    fn drain_excess(
        &mut self,
        now: u64,
        state: &State,
        pool: &InstancePool,
        rows: &[Arc<Instance>],
        excess: u32,
        due: &mut Due,
        commands: &mut Vec<Command>,
    ) {
        let draining = rows.iter().filter(|row| {
            row.behavior == Behavior::Drain && row.state != InstanceState::ShuttingDown
        });
        let draining = u32::try_from(draining.count()).unwrap_or(u32::MAX);
        let mut busy: Vec<_> = rows
            .iter()
            .filter(|row| row.is_open() && !state.is_empty_instance(row))
            .map(|row| (row.node.map_or(0, |node| state.usage(node).allocations), row))
            .collect();
        busy.sort_by_key(|(allocations, row)| (*allocations, Reverse(row.create_index), row.id));
        let wanted = usize::try_from(excess.saturating_sub(draining)).unwrap_or(usize::MAX);
        for (_, row) in busy.into_iter().take(wanted.min(NOTES_MAX)) {
            let command = Command::SetInstanceBehavior(SetInstanceBehavior {
                id: row.id,
                behavior: Behavior::Drain,
                by: "pool".into(),
                reason: format!("the pool may have {} instances", pool.max).into(),
                evaluation_ids: Vec::new(),
            });
            due.at(self.ask(now, row.id, command, commands));
        }
    }

    /// Gives each number for dashboards with its name to `put`.
    pub fn gauges(&self, put: &mut dyn FnMut(&str, u64)) {
        for name in self.pools.keys() {
            put(&format!("pools.{name}.waiting"), self.demand.count(name) as u64);
        }
        if !self.pools.is_empty() {
            put("pools.calls", self.flights.len() as u64);
            self.outcomes.gauges(put);
        }
    }
}

/// What became of instances in this leadership.
#[derive(Default, Debug)]
struct Outcomes {
    bound: u64,
    /// From the intent until the node was bound, ms.
    bound_ms: u64,
    bound_ms_max: u64,
    /// They did not come up.
    failed: u64,
    /// They were ended before they came up, for another reason.
    aborted: u64,
    /// They went without being ended.
    disappeared: u64,
    /// They are gone after they were ended.
    gone: u64,
}

impl Outcomes {
    fn count(&mut self, old: Option<InstanceState>, new: Option<&Instance>) {
        use InstanceState::{Booting, Bound, Requested, ShuttingDown};
        let shutdown = new.and_then(|row| row.shutdown.as_ref());
        match (old, new.map(|row| row.state)) {
            (Some(Requested | Booting), Some(Bound)) => {
                let took = new.map_or(0, |row| row.bound_at.saturating_sub(row.requested_at));
                self.bound += 1;
                self.bound_ms = self.bound_ms.saturating_add(took);
                self.bound_ms_max = self.bound_ms_max.max(took);
            }
            (Some(Requested | Booting), Some(ShuttingDown)) => {
                match shutdown.map(|shutdown| shutdown.cause) {
                    Some(ShutdownCause::Expired | ShutdownCause::BootFailed) => self.failed += 1,
                    Some(_) | None => self.aborted += 1,
                }
            }
            // The provider refused it.
            (Some(Requested), None) => self.failed += 1,
            (Some(Booting | Bound), None) => self.disappeared += 1,
            (Some(ShuttingDown), None) => self.gone += 1,
            _ => {}
        }
    }

    fn gauges(&self, put: &mut dyn FnMut(&str, u64)) {
        put("pools.instances.came_up", self.bound);
        put("pools.instances.came_up_total_ms", self.bound_ms);
        put("pools.instances.came_up_longest_ms", self.bound_ms_max);
        put("pools.instances.failed", self.failed);
        put("pools.instances.aborted", self.aborted);
        put("pools.instances.disappeared", self.disappeared);
        put("pools.instances.gone", self.gone);
    }
}

/// The earliest of some times.
#[derive(Default)]
struct Due(Option<u64>);

impl Due {
    fn at(&mut self, at: u64) {
        self.0 = Some(self.0.map_or(at, |known| known.min(at)));
    }
}

/// What a provider's word about a machine that boots means.
fn described(row: &Instance, answer: Result<Answer, ProviderError>) -> Vec<Command> {
    let Ok(Answer::Described(description)) = answer else { return Vec::new() };
    if row.state != InstanceState::Booting {
        return Vec::new();
    }
    if description.state == MachineState::Broken && row.behavior != Behavior::Hold {
        let reason = format!("the provider says that it is broken: {}", description.words);
        return vec![shut_down(row.id, ShutdownCause::BootFailed, &reason)];
    }
    let is_new = description.words != row.last_words
        || (!description.address.is_empty() && description.address != row.address);
    let (address, words) = (description.address, description.words);
    let note = Command::NoteInstance(NoteInstance { id: row.id, address, words });
    is_new.then_some(note).into_iter().collect()
}

/// What an answer means for the state, whoever asked: an answer to a call of a leadership that is
/// over is proposed through the next one. Lists and descriptions are of no use by then.
pub fn late(call: &Call, answer: &Result<Answer, ProviderError>) -> Option<Command> {
    match (&call.operation, answer) {
        (Operation::Create(create), answer) => {
            made(&call.provider, create, answer).map(Command::InstanceOutcome)
        }
        (Operation::Destroy { instance, .. }, answer) => {
            let gone = matches!(answer, Ok(Answer::Destroyed(Destroyed::Gone)));
            let error: Text = match answer {
                Err(error) => error.to_string().into(),
                Ok(_) => "".into(),
            };
            let id = *instance;
            let outcome = DestroyOutcome { id, gone, error, evaluation_ids: Vec::new() };
            Some(Command::DestroyOutcome(outcome))
        }
        _ => None,
    }
}

/// The outcome of a create that made a machine.
fn made(
    provider: &Text,
    create: &Create,
    answer: &Result<Answer, ProviderError>,
) -> Option<InstanceOutcome> {
    let Ok(Answer::Created(machine)) = answer else { return None };
    let outcome = CreateOutcome::Made {
        provider_id: machine.provider_id.clone(),
        address: machine.address.clone(),
        scope: machine.scope.clone(),
    };
    Some(InstanceOutcome {
        id: create.key,
        provider: provider.clone(),
        pool: create.pool.clone(),
        kind: create.kind.name.clone(),
        outcome,
    })
}

fn create(row: &Instance) -> Create {
    Create {
        key: row.id,
        token: row.token,
        pool: row.pool.clone(),
        kind: (*row.kind).clone(),
        tags: tags(row.id, &row.pool, &row.kind.name, row.behavior),
    }
}

fn tags(id: InstanceId, pool: &Text, kind: &Text, behavior: Behavior) -> Tags {
    let pairs: [(&str, Text); 4] = [
        (TAG_INSTANCE, id.to_string().into()),
        (TAG_POOL, pool.clone()),
        (TAG_TYPE, kind.clone()),
        (TAG_BEHAVIOR, behavior.name().into()),
    ];
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

fn shut_down(id: InstanceId, cause: ShutdownCause, reason: &str) -> Command {
    Command::ShutDownInstance(ShutDownInstance {
        id,
        cause,
        reason: reason.into(),
        by: "".into(),
        evaluation_ids: Vec::new(),
    })
}

fn not_configured(pool: &InstancePool) -> Command {
    let detail = format!(
        "the leader's file has no [[provider]] named \"{}\": add it there, or let another server lead",
        pool.provider
    );
    Command::LimitPool(LimitPool {
        pool: pool.name.clone(),
        class: LimitClass::Fatal,
        for_ms: limits::FATAL_MS,
        detail: detail.into(),
    })
}

fn words(row: &Instance) -> String {
    if row.last_words.is_empty() { String::new() } else { format!(": {}", row.last_words) }
}

fn is_in_mass_loss(state: &State, row: &Instance) -> bool {
    let loss = state.mass_loss();
    row.node.is_some_and(|node| loss.is_some_and(|loss| loss.nodes.contains(&node)))
}

/// Its agent is heard. What is not is no spare machine, and goes by the probe timeout.
fn is_ready(state: &State, row: &Instance) -> bool {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    node.is_some_and(|node| node.liveness == Liveness::Ready)
}

/// Since when nothing runs there although it could. One that was away has its time anew.
fn idle_since(state: &State, row: &Instance) -> u64 {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    row.last_busy_at.max(row.bound_at).max(node.map_or(0, |node| node.liveness_at))
}

/// Since when a bound instance's node is of no use, and how. What an operator suspended is looked
/// at by a person.
fn failing_since(row: &Instance, node: Option<&Node>) -> Option<(u64, &'static str)> {
    let Some(node) = node else { return Some((row.bound_at, "unknown")) };
    match node.liveness {
        Liveness::Down | Liveness::Disconnected => return Some((node.missed_at, "down")),
        Liveness::Initializing | Liveness::Ready => {}
    }
    let suspension = node.suspension().filter(|one| one.reason != SuspendReason::Operator)?;
    Some((suspension.since, "suspended"))
}

fn gained(state: &State, node: &Node) -> Option<Gained> {
    let index = state.capacity_gains().get(&GainKey::Node(node.id))?.index;
    Some(Gained { index, class: node.class })
}

/// Types of which an instance is there, idle and open, and by the class of its node the first gain
/// of such a one.
fn idle_machines<'a>(
    state: &State,
    rows: &'a [Arc<Instance>],
) -> BTreeMap<&'a Text, BTreeMap<ClassId, Index>> {
    let mut idle: BTreeMap<&Text, BTreeMap<ClassId, Index>> = BTreeMap::new();
    for row in rows.iter().filter(|row| row.is_open() && state.is_empty_instance(row)) {
        let node = row.node.and_then(|node| state.nodes().get(&node));
        let Some(node) = node.filter(|node| node.is_schedulable()) else { continue };
        if let Some(Gained { index, class }) = gained(state, node) {
            let first = idle.entry(&row.kind.name).or_default().entry(class).or_insert(index);
            *first = index.min(*first);
        }
    }
    idle
}

/// The room of a pool's instances that are there or coming, and whose each is.
fn bins(state: &State, rows: &[Arc<Instance>]) -> (Vec<Bin>, BTreeMap<usize, InstanceId>) {
    let (mut bins, mut owners) = (Vec::new(), BTreeMap::new());
    for row in rows.iter().filter(|row| row.behavior == Behavior::Run) {
        let kind = row.kind.name.clone();
        let bin = match row.state {
            InstanceState::ShuttingDown => continue,
            InstanceState::Requested | InstanceState::Booting => {
                Bin { kind, room: row.kind.resources(), gained: None }
            }
            InstanceState::Bound => {
                let Some(node) = row.node.and_then(|node| state.nodes().get(&node)) else {
                    continue;
                };
                let available = node.description.resources.available();
                if node.is_schedulable() {
                    let Some(gained) = gained(state, node) else { continue };
                    let room = available.minus(state.usage(node.id).resources);
                    Bin { kind, room, gained: Some(gained) }
                } else if node.liveness == Liveness::Initializing && node.suspension().is_none() {
                    Bin { kind, room: available, gained: None }
                } else {
                    continue;
                }
            }
        };
        owners.insert(bins.len(), row.id);
        bins.push(bin);
    }
    (bins, owners)
}
