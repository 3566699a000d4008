//! Lists as evidence: how a provider's list differs from the state.
//!
//! A list speaks for its scope only, and only of what nothing touched since it was asked for. A
//! machine is not gone because one list lacks it, and an empty list after a full one is not
//! believed at once: providers lose sight of their own machines for a while.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Instance, InstanceId, InstanceState, Liveness, State, Text,
    pool::{ObserveInstances, SeenMachine, stray_id},
};

use crate::call::{Listing, Machine, TAG_INSTANCE, TAG_POOL, TAG_TYPE};

/// What is remembered of the lists of one provider. Lost with the leadership: the next one counts
/// from the state, and needs two lists of its own before it believes an empty one.
#[derive(Default, Debug)]
pub struct Lists {
    /// Machines in the last list of each scope.
    counts: BTreeMap<Text, usize>,
    /// Lists that were taken in.
    pub taken: u64,
}

impl Lists {
    /// How a list differs from the state; none: it does not.
    ///
    /// `has_creates`: a create may have made a machine that nobody knows by its id yet.
    pub fn compare(
        &mut self,
        state: &State,
        provider: &Text,
        list: &Listing,
        began_at: u64,
        grace_ms: u64,
        has_creates: bool,
    ) -> Option<ObserveInstances> {
        self.taken += 1;
        let before = self.counts.insert(list.scope.clone(), list.machines.len());
        let is_suspect = list.machines.is_empty() && before != Some(0);
        let of_provider = || state.instances().iter().filter(|row| row.provider == *provider);
        let by_provider_id: BTreeMap<&str, &Instance> =
            of_provider().map(|row| (&*row.provider_id, &**row)).collect();
        let mut present = Vec::new();
        let mut found = BTreeSet::new();
        for machine in &list.machines {
            let known = by_provider_id.get(&*machine.provider_id);
            let id = match (known, tagged(machine)) {
                (Some(row), _) => row.id,
                (None, Some(id)) => id,
                // It may be what a create under way has just made, before its tags are there.
                (None, None) if has_creates => continue,
                (None, None) => stray_id(provider, &machine.provider_id),
            };
            found.insert(id);
            let row = state.instances().get(&id);
            let is_as_known = row.is_some_and(|row| {
                row.provider_id == machine.provider_id
                    && row.missing == 0
                    && row.scope == list.scope
            });
            if !is_as_known {
                let tag = |name: &str| machine.tags.get(name).cloned().unwrap_or_default();
                present.push(SeenMachine {
                    id,
                    provider_id: machine.provider_id.clone(),
                    address: machine.address.clone(),
                    pool: tag(TAG_POOL),
                    kind: tag(TAG_TYPE),
                });
            }
        }
        let is_missing = |row: &&Instance| {
            (row.scope == list.scope || row.scope.is_empty())
                && row.state != InstanceState::Requested
                && row.seen_at < began_at
                && !found.contains(&row.id)
                && !is_heard(state, row)
        };
        let missing: Vec<InstanceId> = if is_suspect {
            Vec::new()
        } else {
            of_provider().map(|row| &**row).filter(is_missing).map(|row| row.id).collect()
        };
        if present.is_empty() && missing.is_empty() {
            return None;
        }
        let epoch = state.provider_lists().get(provider).map_or(0, |list| list.epoch) + 1;
        Some(ObserveInstances {
            provider: provider.clone(),
            epoch,
            scope: list.scope.clone(),
            began_at,
            grace_ms,
            present,
            missing,
            evaluation_ids: Vec::new(),
        })
    }
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
