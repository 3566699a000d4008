//! Lists as evidence: how a provider's list differs from the state.
//!
//! A list speaks for its scope only, and only of what nothing touched since it was asked for. A
//! machine is not gone because one list lacks it, and an empty list after a full one is not
//! believed at once: providers lose sight of their own machines for a while.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Instance, InstanceId, InstanceState, Liveness, State, Text,
    pool::{ObserveInstances, SeenMachine, ShutdownCause, stray_id},
};

use crate::call::{Listing, Machine, TAG_INSTANCE, TAG_POOL, TAG_TYPE, tags};

/// Machines, and instances that are missing, in one entry. The next list has the others.
const OBSERVED_MAX: usize = 1_000;
/// Rows of a provider's machines that nobody wants: those beyond are taken in when these have gone.
const STRAYS_MAX: usize = 1_000;
/// Machines that are given their tags after a list.
const TAGGED_MAX: usize = 16;

/// What is remembered of the lists of one provider. Lost with the leadership: the next one counts
/// from the state, and needs two lists of its own before it believes an empty one.
#[derive(Default, Debug)]
pub struct Lists {
    /// Machines in the last list of each scope.
    counts: BTreeMap<Text, usize>,
    /// Lists that were taken in.
    pub taken: u64,
}

/// What was asked of a provider.
#[derive(Debug)]
pub struct Asked<'a> {
    pub provider: &'a Text,
    pub began_at: u64,
    /// An instance that was seen, or given up on, within this time before `began_at` is not gone,
    /// ms.
    pub grace_ms: u64,
    /// A create may have made a machine that nobody knows by its id yet.
    pub has_creates: bool,
}

/// How a list differs from the state.
#[derive(Debug)]
pub struct Difference {
    /// None: it does not.
    pub command: Option<ObserveInstances>,
    /// The command has all of it.
    pub is_whole: bool,
    /// Instances whose machines have other tags than their rows say; not all of very many.
    pub wrong_tags: Vec<InstanceId>,
}

impl Lists {
    /// How a list differs from the state.
    pub fn compare(&mut self, state: &State, asked: &Asked<'_>, list: &Listing) -> Difference {
        let Asked { provider, began_at, grace_ms, has_creates } = *asked;
        self.taken += 1;
        let before = self.counts.insert(list.scope.clone(), list.machines.len());
        let is_suspect = list.machines.is_empty() && before != Some(0);
        let of_provider = || state.instances().iter().filter(|row| row.provider == *provider);
        let by_provider_id: BTreeMap<&str, &Instance> =
            of_provider().map(|row| (&*row.provider_id, &**row)).collect();
        let mut present = Vec::new();
        // Machines that no row stands for.
        let mut unknown = Vec::new();
        let mut wrong_tags = Vec::new();
        let mut found = BTreeSet::new();
        // Machines without a tag, each of which may be that of a row whose machine nobody knows.
        let mut unclear = 0;
        for machine in &list.machines {
            let known = by_provider_id.get(&*machine.provider_id);
            let id = match (known, tagged(machine)) {
                (Some(row), _) => row.id,
                (None, Some(id)) => id,
                // It may be what a create under way has just made, before its tags are there.
                (None, None) if has_creates => {
                    unclear += 1;
                    continue;
                }
                (None, None) => stray_id(provider, &machine.provider_id),
            };
            found.insert(id);
            let row = state.instances().get(&id);
            let is_as_known = row.is_some_and(|row| {
                row.provider_id == machine.provider_id
                    && row.missing == 0
                    && row.scope == list.scope
            });
            if let Some(row) = row.filter(|row| has_wrong_tags(row, machine)) {
                wrong_tags.push(row.id);
            }
            if !is_as_known {
                let tag = |name: &str| machine.tags.get(name).cloned().unwrap_or_default();
                let is_of_row = |row: &Arc<Instance>| {
                    row.provider_id.is_empty() || row.provider_id == machine.provider_id
                };
                let seen = if row.is_some_and(is_of_row) { &mut present } else { &mut unknown };
                seen.push(SeenMachine {
                    id,
                    provider_id: machine.provider_id.clone(),
                    address: machine.address.clone(),
                    pool: tag(TAG_POOL),
                    kind: tag(TAG_TYPE),
                });
            }
        }
        // Whose agent is heard has one of them, so that nothing waits for as long as such a row
        // stays.
        let has_one = |row: &&Arc<Instance>| row.provider_id.is_empty() && is_heard(state, row);
        let is_unclear = unclear > of_provider().filter(has_one).count();
        let is_missing = |row: &&Instance| {
            (row.scope == list.scope || row.scope.is_empty())
                && row.state != InstanceState::Requested
                && row.seen_at < began_at
                && !found.contains(&row.id)
                && !(is_unclear && row.provider_id.is_empty())
                && !is_heard(state, row)
        };
        let mut missing: Vec<InstanceId> = if is_suspect {
            Vec::new()
        } else {
            of_provider().map(|row| &**row).filter(is_missing).map(|row| row.id).collect()
        };
        let strays = of_provider().filter(|row| is_stray(row)).count();
        let differences = present.len() + unknown.len() + missing.len();
        unknown.truncate(STRAYS_MAX.saturating_sub(strays));
        present.append(&mut unknown);
        if present.len() > OBSERVED_MAX {
            // What is there comes first: nothing is called missing beside what was left out.
            missing.clear();
        }
        present.truncate(OBSERVED_MAX);
        missing.truncate(OBSERVED_MAX);
        wrong_tags.truncate(TAGGED_MAX);
        let is_whole = present.len() + missing.len() == differences;
        let epoch = state.provider_lists().get(provider).map_or(0, |list| list.epoch) + 1;
        let command = ObserveInstances {
            provider: provider.clone(),
            epoch,
            scope: list.scope.clone(),
            began_at,
            grace_ms,
            present,
            missing,
            evaluation_ids: Vec::new(),
        };
        let is_empty = command.present.is_empty() && command.missing.is_empty();
        Difference { command: (!is_empty).then_some(command), is_whole, wrong_tags }
    }
}

/// Nobody wanted it: it is there until it is destroyed.
fn is_stray(row: &Instance) -> bool {
    row.shutdown.as_ref().is_some_and(|shutdown| shutdown.cause == ShutdownCause::Unknown)
}

/// Whether a machine that stays has other tags than its row says.
fn has_wrong_tags(row: &Instance, machine: &Machine) -> bool {
    let stays = match row.state {
        InstanceState::Booting | InstanceState::Bound => true,
        InstanceState::Requested | InstanceState::ShuttingDown => false,
    };
    stays
        && row.provider_id == machine.provider_id
        && tags(row).iter().any(|(name, value)| machine.tags.get(name) != Some(value))
}

fn tagged(machine: &Machine) -> Option<InstanceId> {
    machine.tags.get(TAG_INSTANCE)?.parse().ok()
}

/// Its agent is heard from: whatever a list says, the machine is there.
fn is_heard(state: &State, row: &Instance) -> bool {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    node.is_some_and(|node| match node.liveness {
        Liveness::Ready | Liveness::Initializing => true,
        Liveness::Disconnected | Liveness::Down => false,
    })
}
