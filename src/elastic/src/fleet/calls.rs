//! Calls to providers: which are due, and those that have not been answered.
//!
//! Nothing is called before its intent is committed, and no create or destroy goes out before the
//! provider has listed what there is.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{Instance, InstanceId, InstancePool, InstanceState, State, Text, limits, pool::Intent};

use super::{CallId, Fleet, Look, duty::is_silent, health::Health};
use crate::{
    call::{Call, Create, Operation, TAG_INSTANCE, TAG_POOL, TAG_TYPE, tags},
    sync::Lists,
};

/// Descriptions asked of all providers in a second (Arvados' `MaxProbesPerSecond`).
const PROBES_PER_SECOND_MAX: u32 = 10;
/// Destroys of one provider under way.
const DESTROYS_MAX: usize = 32;
/// Calls of one provider under way that are only to know or to show.
const LOOKS_MAX: usize = 16;
/// How long an answer is of use, ms.
const CALL_MS: u64 = 60_000;

/// What is under way with one instance.
#[derive(Default, Debug)]
pub(super) struct Attempt {
    /// What the rest is about: another state has calls of its own.
    pub(super) state: Option<InstanceState>,
    /// A create, destroy or describe of that state that has not been answered.
    pub(super) call: Option<CallId>,
    /// Creates that failed.
    pub(super) failures: u32,
    /// A create may have made a machine although it was not answered so.
    pub(super) is_unknown: bool,
    /// The next call of its state is not before this.
    pub(super) next_at: u64,
    /// When a machine that boots was described last, or was made.
    pub(super) described_at: u64,
    /// Something was proposed; not again before this.
    pub(super) asked_until: u64,
}

/// What is under way with one provider.
#[derive(Default, Debug)]
pub(super) struct ProviderWatch {
    pub(super) lists: Lists,
    pub(super) next_list_at: u64,
    pub(super) listing: Option<CallId>,
    /// Creates that have not been answered, by pool; a pool without one is not in it.
    creates: BTreeMap<Text, usize>,
    /// Destroys that have not been answered.
    destroys: usize,
    /// Descriptions and tags that have not been answered.
    looks: usize,
    /// Pools of this provider.
    pub(super) pools: BTreeSet<Text>,
    /// It was asked for a machine once, by whichever leader: a create that hangs may make one when
    /// its instance and its pool have gone, and only a list shows it.
    pub(super) is_used: bool,
    pub(super) health: Health,
}

impl ProviderWatch {
    /// When its next list is due; none: it is being listed, or no pool has it and none ever used
    /// it.
    fn list_at(&self) -> Option<u64> {
        let is_listed = self.is_used || !self.pools.is_empty();
        (is_listed && self.listing.is_none()).then_some(self.next_list_at)
    }

    /// Whether a call has a place. Each kind has its own, so that a destroy never waits for creates
    /// that hang, and neither for what is only to know or to show.
    fn has_place(&self, lane: Lane<'_>, creates_max: usize) -> bool {
        match lane {
            Lane::Create { pool } => {
                let all: usize = self.creates.values().sum();
                let own = self.creates.get(pool).copied().unwrap_or(0);
                // Beside other pools, a pool has at most half of what they leave: each one that
                // comes finds a place, and all that go on have as many.
                let is_alone = self.pools.len() < 2;
                let left = creates_max.saturating_sub(all - own);
                let share = if is_alone { left } else { left.div_ceil(2) };
                own < share
            }
            Lane::Destroy => self.destroys < DESTROYS_MAX,
            Lane::Look => self.looks < LOOKS_MAX,
            Lane::List => self.listing.is_none(),
        }
    }

    /// Creates and destroys that have not been answered.
    pub(super) fn places(&self) -> (usize, usize) {
        (self.creates.values().sum(), self.destroys)
    }

    /// A call goes out, or is answered.
    fn count(&mut self, operation: &Operation, change: impl Fn(usize) -> usize) {
        match lane(operation) {
            Lane::Create { pool } => {
                let own = change(self.creates.get(pool).copied().unwrap_or(0));
                self.creates.insert(pool.clone(), own);
                self.creates.retain(|_, own| *own > 0);
            }
            Lane::Destroy => self.destroys = change(self.destroys),
            Lane::Look => self.looks = change(self.looks),
            Lane::List => {}
        }
    }
}

/// Calls that wait for each other.
#[derive(Clone, Copy, Debug)]
enum Lane<'a> {
    Create {
        pool: &'a Text,
    },
    Destroy,
    /// What is only to know or to show.
    Look,
    List,
}

fn lane(operation: &Operation) -> Lane<'_> {
    match operation {
        Operation::Create(create) => Lane::Create { pool: &create.pool },
        Operation::Destroy { .. } => Lane::Destroy,
        Operation::SetTags { .. } | Operation::Describe { .. } => Lane::Look,
        Operation::List => Lane::List,
    }
}

/// A call that has not been answered.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    pub(super) call: Call,
    pub(super) began_at: u64,
    pub(super) instance: Option<InstanceId>,
}

impl Fleet {
    /// The next call to make.
    pub fn next_call(&mut self) -> Option<(CallId, Call)> {
        self.outgoing.pop_front()
    }

    /// Whether a call is still waited for, and not by a leadership that is over.
    pub fn waits_for(&self, id: CallId) -> bool {
        self.flights.contains_key(&id)
    }

    /// Lists each provider that a pool has or ever used. Cost: the providers.
    pub(super) fn list(&mut self, now: u64) {
        let due = |watch: &ProviderWatch| watch.list_at().is_some_and(|at| at <= now);
        let is_configured = |name: &Text| self.configured.contains_key(name);
        let named = self.providers.iter().filter(|(name, watch)| is_configured(name) && due(watch));
        for provider in named.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            let id = self.call(now, None, &provider, Operation::List);
            if let Some(watch) = self.providers.get_mut(&provider) {
                watch.listing = Some(id);
            }
        }
    }

    /// When a provider is to be listed next.
    pub(super) fn next_list(&self) -> Option<u64> {
        let providers =
            self.providers.iter().filter(|(name, _)| self.configured.contains_key(*name));
        providers.filter_map(|(_, watch)| watch.list_at()).min()
    }

    /// Gives machines the tags that their rows say.
    pub(super) fn retag(&mut self, now: u64, state: &State, ids: &[InstanceId]) {
        for id in ids {
            let Some(row) = state.instances().get(id).cloned() else { continue };
            let is_asked = self.flights.values().any(|flight| {
                matches!(flight.call.operation, Operation::SetTags { instance, .. } if instance == *id)
            });
            if !is_asked && self.may_call(&row.provider, Lane::Look) {
                let tags = tags(&row);
                let provider_id = row.provider_id.clone();
                let operation = Operation::SetTags { instance: *id, provider_id, tags };
                self.call(now, None, &row.provider, operation);
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
        let watch = self.providers.entry(provider.clone()).or_default();
        watch.count(&call.operation, |calls| calls + 1);
        self.flights.insert(id, Flight { call: call.clone(), began_at: now, instance });
        self.outgoing.push_back((id, call));
        id
    }

    /// Whether a provider is configured here, and has listed what there is.
    pub(super) fn has_listed(&self, provider: &Text) -> bool {
        let watch = self.providers.get(provider);
        self.configured.contains_key(provider) && watch.is_some_and(|watch| watch.lists.taken > 0)
    }

    /// Whether a call about a provider's machines may go out.
    fn may_call(&self, provider: &Text, lane: Lane<'_>) -> bool {
        let watch = self.providers.get(provider);
        let creates_max =
            self.configured.get(provider).copied().unwrap_or(limits::PROVIDER_CREATES);
        self.has_listed(provider) && watch.is_some_and(|watch| watch.has_place(lane, creates_max))
    }

    /// A call was answered. Whether others may have waited for its place.
    pub(super) fn land(&mut self, id: CallId, flight: &Flight) -> bool {
        let creates_max =
            self.configured.get(&flight.call.provider).copied().unwrap_or(limits::PROVIDER_CREATES);
        let Some(watch) = self.providers.get_mut(&flight.call.provider) else { return false };
        // A place that one pool gives back may be one more for each of the others.
        let all: usize = watch.creates.values().sum();
        let was_full = match lane(&flight.call.operation) {
            Lane::Create { .. } => all >= creates_max.div_ceil(2),
            lane @ (Lane::Destroy | Lane::Look) => !watch.has_place(lane, creates_max),
            // No pool waits for it, and a list comes each minute.
            Lane::List => false,
        };
        let one_less = |calls: usize| calls.checked_sub(1).expect("a call that ends has begun");
        watch.count(&flight.call.operation, one_less);
        watch.listing = watch.listing.filter(|listing| *listing != id);
        was_full
    }

    /// The call that is due for an instance in its state.
    pub(super) fn call_for(&mut self, look: &mut Look<'_>, row: &Instance) {
        let now = look.now;
        let attempt = self.attempts.entry(row.id).or_default();
        if attempt.state != Some(row.state) {
            (attempt.state, attempt.call, attempt.next_at) = (Some(row.state), None, 0);
            attempt.described_at = now;
        }
        if attempt.call.is_some() {
            return;
        }
        if attempt.next_at > now {
            return look.due(attempt.next_at);
        }
        let lane = match row.state {
            InstanceState::Requested => Lane::Create { pool: &row.pool },
            InstanceState::Booting | InstanceState::Bound => Lane::Look,
            InstanceState::ShuttingDown => Lane::Destroy,
        };
        if !self.may_call(&row.provider, lane) {
            return;
        }
        let (instance, provider_id) = (row.id, row.provider_id.clone());
        let operation = match row.state {
            // It comes with the outcome's entry.
            InstanceState::Requested if self.is_answered(row.id) => return,
            InstanceState::Requested => Operation::Create(Box::new(create(row))),
            // It may be gone with its machine: the provider can say so before two lists do.
            InstanceState::Bound if provider_id.is_empty() || !is_silent(look.state, row) => return,
            InstanceState::Booting | InstanceState::Bound => {
                if self.probes.0 != now / 1_000 {
                    self.probes = (now / 1_000, 0);
                }
                if self.probes.1 >= PROBES_PER_SECOND_MAX {
                    return look.due((now / 1_000 + 1) * 1_000);
                }
                self.probes.1 += 1;
                let next_at = now.saturating_add(self.config.probe_interval_ms);
                self.attempts.entry(row.id).or_default().next_at = next_at;
                Operation::Describe { instance, provider_id }
            }
            // What a list has to tell first.
            InstanceState::ShuttingDown if provider_id.is_empty() => return,
            InstanceState::ShuttingDown => Operation::Destroy { instance, provider_id },
        };
        self.call(now, Some(row.id), &row.provider, operation);
    }

    /// A planted bug: creates of intents that are not in the log.
    pub(super) fn create_early(&mut self, now: u64, pool: &InstancePool, intents: &[Intent]) {
        for Intent { id, token, kind, .. } in intents {
            let Some(kind) = pool.types.get(kind) else { continue };
            let create = Create {
                key: *id,
                token: *token,
                pool: pool.name.clone(),
                kind: (**kind).clone(),
                tags: [
                    (TAG_INSTANCE.into(), id.to_string().into()),
                    (TAG_POOL.into(), pool.name.clone()),
                    (TAG_TYPE.into(), kind.name.clone()),
                ]
                .into(),
            };
            self.call(now, Some(*id), &pool.provider, Operation::Create(Box::new(create)));
        }
    }
}

fn create(row: &Instance) -> Create {
    Create {
        key: row.id,
        token: row.token,
        pool: row.pool.clone(),
        kind: (*row.kind).clone(),
        tags: tags(row),
    }
}
