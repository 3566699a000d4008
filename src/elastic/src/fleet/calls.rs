//! Calls to providers: which are due, and those that have not been answered.
//!
//! Nothing is called before its intent is committed, and no create or destroy goes out before the
//! provider has listed what there is.

use std::collections::BTreeSet;

use fsm::{Instance, InstanceId, InstanceState, State, Text, pool::Behavior};

use super::{CallId, Fleet, Look};
use crate::{
    call::{Call, Create, Operation, TAG_BEHAVIOR, TAG_INSTANCE, TAG_POOL, TAG_TYPE, Tags},
    sync::Lists,
};

/// Descriptions asked of all providers in a second (Arvados' `MaxProbesPerSecond`).
const PROBES_PER_SECOND_MAX: u32 = 10;
/// Calls of one provider under way.
const CALLS_MAX: usize = 32;
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
    /// Something was proposed; not again before this.
    pub(super) asked_until: u64,
}

/// What is under way with one provider.
#[derive(Default, Debug)]
pub(super) struct ProviderWatch {
    pub(super) lists: Lists,
    pub(super) next_list_at: u64,
    pub(super) listing: Option<CallId>,
    pub(super) calls: usize,
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

    /// Lists each provider that a pool or an instance names.
    pub(super) fn list(&mut self, now: u64, state: &State) {
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
    pub(super) fn may_call(&self, provider: &Text) -> bool {
        self.configured.contains(provider)
            && self
                .providers
                .get(provider)
                .is_some_and(|watch| watch.lists.taken > 0 && watch.calls < CALLS_MAX)
    }

    /// The call that is due for an instance in its state.
    pub(super) fn call_for(&mut self, look: &mut Look<'_>, row: &Instance) {
        let now = look.now;
        let attempt = self.attempts.entry(row.id).or_default();
        if attempt.state != Some(row.state) {
            (attempt.state, attempt.call, attempt.next_at) = (Some(row.state), None, 0);
        }
        if attempt.call.is_some() {
            return;
        }
        if attempt.next_at > now {
            return look.due(attempt.next_at);
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
            InstanceState::Bound => return,
        };
        self.call(now, Some(row.id), &row.provider, operation);
    }
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
