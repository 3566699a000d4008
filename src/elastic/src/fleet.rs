//! The machine of all pools: intent → create → boot → work → idle → shut down.
//!
//! ```text
//!  state, effects ─► demand ─► balance ─► RequestInstances ─► (committed) ─► Create ─► InstanceOutcome
//!  time ──────────► duties of instances ─► ShutDownInstance ─► Destroy ─► DestroyOutcome
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
//!
//! | file | what it has |
//! |---|---|
//! | `balance` | how many machines of which types a pool should have |
//! | `bins` | the room that it has already, and what idles |
//! | `groups` | capacity groups: decisions, drains, machines for what is lacking |
//! | `duty` | what one instance asks for by itself: its deadlines, and the end of what drains |
//! | `calls` | calls to providers that are due or under way |
//! | `health` | how providers do, noted for those who wait |
//! | `outcomes` | what answers mean, and outcomes of creates until the state has them |
//! | `steps`, `tally` | what happened to instances, for the log and for dashboards |

mod balance;
mod bins;
mod calls;
mod duty;
mod groups;
mod health;
mod outcomes;
mod steps;
mod tally;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use fsm::{
    Command, Effect, Index, Instance, InstanceId, InstanceState, JobKey, State, Text,
    plant::{Plant, is_planted},
    pool::{Behavior, ShutDownInstance, ShutdownCause},
};

use self::{
    balance::AskedNote,
    calls::{Attempt, Flight, ProviderWatch},
    groups::GroupWatch,
    outcomes::Kept,
    tally::Tally,
};
pub use self::{outcomes::late, steps::InstanceStep};
use crate::{call::Call, demand::Demand, requirements::Sources};

/// Changes of a pool are looked at together when they come within this time, ms.
pub const COALESCE_MS: u64 = 100;
/// What was proposed is proposed again after this time if the state still asks for it, ms.
const ASK_AGAIN_MS: u64 = 5_000;

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

/// Where an instance belongs, and how far it had come.
#[derive(Debug)]
struct Home {
    pool: Text,
    state: InstanceState,
    behavior: Behavior,
    /// Log time; 0: it is not on its way out.
    shutdown_at: u64,
}

impl Home {
    fn of(row: &Instance) -> Self {
        Self {
            pool: row.pool.clone(),
            state: row.state,
            behavior: row.behavior,
            shutdown_at: row.shutdown.as_ref().map_or(0, |shutdown| shutdown.at),
        }
    }
}

/// The pools of one leadership.
#[derive(Debug)]
pub struct Fleet {
    config: FleetConfig,
    /// Providers in the configuration of this server, and how many creates each may be asked for at
    /// a time.
    configured: BTreeMap<Text, usize>,
    demand: Demand,
    sources: Sources,
    groups: BTreeMap<Text, GroupWatch>,
    pools: BTreeMap<Text, PoolWatch>,
    /// What is known of each instance: an effect about one that went names its id only.
    homes: BTreeMap<InstanceId, Home>,
    tally: Tally,
    /// What happened to instances and is not in the log yet.
    steps: Vec<InstanceStep>,
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
    /// The newest entry when the leadership began.
    led_from: Index,
    /// Notes that were proposed and are not in the state.
    unhelped: BTreeMap<JobKey, AskedNote>,
    /// A second of log time, and the probes in it.
    probes: (u64, u32),
}

impl Fleet {
    /// A fleet that knows nothing before it is restored.
    pub fn new(config: FleetConfig, configured: BTreeMap<Text, usize>) -> Self {
        Self {
            config,
            configured,
            demand: Demand::default(),
            sources: Sources::default(),
            groups: BTreeMap::new(),
            pools: BTreeMap::new(),
            homes: BTreeMap::new(),
            tally: Tally::default(),
            steps: Vec::new(),
            attempts: BTreeMap::new(),
            providers: BTreeMap::new(),
            flights: BTreeMap::new(),
            kept: BTreeMap::new(),
            outgoing: VecDeque::new(),
            last_call: 0,
            warm_at: None,
            led_from: 0,
            unhelped: BTreeMap::new(),
            probes: (0, 0),
        }
    }

    /// Takes everything over from the state: at the start of a leadership, and again when effects
    /// were missed. Calls under way stay.
    pub fn restore(&mut self, now: u64, state: &State) {
        let is_first = self.warm_at.is_none();
        if is_first {
            self.led_from = state.index();
        }
        self.warm_at.get_or_insert(now.saturating_add(self.config.warm_up_ms));
        self.demand.restore(state);
        self.sources.restore(now, state);
        self.groups.retain(|name, _| state.capacity_group(name).is_some());
        self.homes.clear();
        for watch in self.providers.values_mut() {
            watch.pools = BTreeSet::new();
        }
        for list in state.provider_lists().iter() {
            self.provider(&list.provider).is_used = true;
        }
        for pool in state.instance_pools().iter() {
            self.provider(&pool.provider).pools.insert(pool.name.clone());
        }
        self.attempts.retain(|id, _| state.instances().contains(id));
        for row in state.instances().iter() {
            self.settle(row);
            if is_first && row.state == InstanceState::Requested {
                // The leader before may have asked.
                self.attempts.entry(row.id).or_default().is_unknown = true;
            }
        }
        let names = state.instance_pools().iter().map(|pool| pool.name.clone());
        let names: BTreeSet<Text> =
            names.chain(self.homes.values().map(|home| home.pool.clone())).collect();
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
                let known = if let Some(row) = row {
                    self.settle(row)
                } else {
                    self.attempts.remove(id);
                    self.homes.remove(id)
                };
                self.tally.count(state.at(), known.as_ref(), row.map(|row| &**row));
                self.steps.extend(steps::between(*id, known.as_ref(), row.map(|row| &**row)));
                let home = row.map(|row| row.pool.clone()).or(known.map(|known| known.pool));
                if let Some(home) = home {
                    self.touch(&home);
                    if let Some(watch) = self.pools.get_mut(&home) {
                        watch.asked.remove(id);
                    }
                }
            }
            Effect::InstancePool(name) => {
                for watch in self.providers.values_mut() {
                    watch.pools.remove(name);
                }
                if let Some(pool) = state.instance_pools().get(name) {
                    self.provider(&pool.provider).pools.insert(name.clone());
                }
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
            Effect::Node(id) | Effect::NodeAllocations(id) | Effect::NodeReport(id) => {
                let node = state.nodes().get(id);
                let instance = node.and_then(|node| node.instance).map(|instance| instance.id);
                let home = instance.and_then(|id| self.homes.get(&id));
                if let Some(pool) = home.map(|home| home.pool.clone()) {
                    self.touch(&pool);
                }
            }
            Effect::CapacityGroup(name) => self.group_changed(state, name),
            Effect::CapacitySource(name) => self.sources.changed(state, name),
            Effect::MassLoss => self.pools.values_mut().for_each(|watch| watch.is_dirty = true),
            Effect::Capacity { .. }
            | Effect::NodeChange { .. }
            | Effect::SchedulerConfiguration
            | Effect::Deployment(_)
            | Effect::CapacityExpired { .. }
            | Effect::DigestMark => {}
        }
    }

    /// Notes where an instance belongs. Answers with what was known of it before.
    fn settle(&mut self, row: &Instance) -> Option<Home> {
        self.provider(&row.provider).is_used = true;
        self.homes.insert(row.id, Home::of(row))
    }

    fn provider(&mut self, name: &Text) -> &mut ProviderWatch {
        self.providers.entry(name.clone()).or_default()
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
        self.list(now);
        self.repeat_outcomes(now, state, &mut commands);
        self.note_providers(now, state, &mut commands);
        commands.extend(self.sources.step(now));
        let due = |watch: &PoolWatch| watch.look_at().is_some_and(|at| at <= now);
        let names: Vec<Text> = self
            .pools
            .iter()
            .filter(|(_, watch)| due(watch))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let rows: Vec<Arc<Instance>> = state.instances_of(&name).cloned().collect();
            let mut look = Look {
                now,
                state,
                rows: &rows,
                ids: &mut *ids,
                commands: Vec::new(),
                due_at: None,
            };
            self.look(&mut look, &name);
            let due_at = look.due_at;
            commands.append(&mut look.commands);
            if rows.is_empty() && !state.instance_pools().contains(&name) {
                self.pools.remove(&name);
            } else if let Some(watch) = self.pools.get_mut(&name) {
                (watch.is_dirty, watch.looked_at) = (false, now);
                // Never at once again: what is due now was asked for just now.
                watch.due_at = due_at.map(|at| at.max(now.saturating_add(COALESCE_MS)));
            }
        }
        commands
    }

    /// Takes what happened to instances since it was taken last.
    pub fn take_steps(&mut self) -> Vec<InstanceStep> {
        std::mem::take(&mut self.steps)
    }

    /// When to step next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.warm_at?;
        let pools = self.pools.values().filter_map(PoolWatch::look_at);
        let kept = self.kept.values().map(|kept| kept.again_at);
        let sources = self.sources.next_deadline();
        let notes = self.providers.values().filter_map(|watch| watch.health.due_at);
        pools.chain(self.next_list()).chain(kept).chain(sources).chain(notes).min()
    }

    fn is_warm(&self, now: u64) -> bool {
        self.warm_at.is_some_and(|at| at <= now || is_planted(Plant::NoWarmUp))
    }

    /// Does what is due in a pool.
    fn look(&mut self, look: &mut Look<'_>, name: &Text) {
        let pool = look.state.instance_pools().get(name).cloned();
        for row in look.rows {
            self.duty(look, pool.as_deref(), row);
        }
        if let Some(pool) = pool.filter(|pool| pool.paused.is_none()) {
            self.balance(look, &pool);
        }
    }

    /// Proposes something about an instance, unless it was proposed a moment ago.
    fn ask(&mut self, look: &mut Look<'_>, id: InstanceId, command: Command) {
        let attempt = self.attempts.entry(id).or_default();
        if attempt.asked_until <= look.now {
            attempt.asked_until = look.now.saturating_add(ASK_AGAIN_MS);
            look.commands.push(command);
        }
        look.due(attempt.asked_until);
    }

    /// Gives each number for dashboards with its name to `put`.
    pub fn gauges(&self, now: u64, put: &mut dyn FnMut(&str, u64)) {
        for name in self.pools.keys() {
            put(&format!("pools.waiting{{pool={name}}}"), self.demand.count(name) as u64);
        }
        if !self.pools.is_empty() {
            put("pools.calls", self.flights.len() as u64);
            self.tally.gauges(put);
            let booting = self.attempts.values();
            let booting = booting.filter(|one| one.state == Some(InstanceState::Booting));
            let oldest = booting.map(|one| now.saturating_sub(one.described_at)).max();
            put("pools.oldest_probe_ms", oldest.unwrap_or(0));
        }
        self.group_gauges(put);
    }
}

/// One look at one pool.
struct Look<'a> {
    now: u64,
    state: &'a State,
    /// The pool's instances, those on their way out included.
    rows: &'a [Arc<Instance>],
    /// Makes a fresh id at each call.
    ids: &'a mut dyn FnMut() -> [u8; 16],
    /// What it proposes.
    commands: Vec<Command>,
    /// When something of the pool is due next.
    due_at: Option<u64>,
}

impl Look<'_> {
    /// Something is due at this time.
    fn due(&mut self, at: u64) {
        self.due_at = Some(self.due_at.map_or(at, |known| known.min(at)));
    }
}

fn shut_down(id: InstanceId, cause: ShutdownCause, reason: &str) -> Command {
    Command::from(ShutDownInstance {
        id,
        cause,
        reason: reason.into(),
        by: "".into(),
        evaluation_ids: Vec::new(),
    })
}
