//! What follows when pools declare other capacity groups than before.

use std::{collections::BTreeMap, sync::Arc};

use super::{CapacityGroup, CapacitySource, Peaks};
use crate::{
    apply::Turn,
    command::Rejection,
    effect::Effect,
    id::Text,
    limits,
    pool::{InstancePool, InstanceState},
};

impl Turn<'_> {
    /// A pool was stored with other groups than before.
    pub(crate) fn groups_changed(
        &mut self,
        old: Option<&InstancePool>,
        new: Option<&InstancePool>,
    ) {
        self.state.index_capacity(old, new);
        let none = BTreeMap::new();
        let before = old.map_or(&none, |pool| &pool.groups);
        let after = new.map_or(&none, |pool| &pool.groups);
        for (name, group) in after {
            if before.get(name) == Some(group) {
                continue;
            }
            self.effects.insert(Effect::CapacityGroup(name.clone()));
            if let Some(row) = self.state.capacity_targets.get(name) {
                let mut row = (**row).clone();
                row.deleted = false;
                row.requirements_index = self.index;
                self.put_target(row);
            }
        }
        for (name, group) in before {
            if !after.contains_key(name) {
                self.retire(group);
            }
        }
    }

    /// A group is declared no more: nobody asks for it, and its members drain.
    fn retire(&mut self, group: &CapacityGroup) {
        let name = &group.name;
        self.effects.insert(Effect::CapacityGroup(name.clone()));
        if !self.state.capacity_targets.contains(name) {
            return;
        }
        let named = |row: &&Arc<CapacitySource>| row.amounts.contains_key(name);
        let sources: Vec<_> = self.state.capacity_sources.iter().filter(named).cloned().collect();
        for source in sources {
            let mut row = (*source).clone();
            row.amounts.remove(name);
            row.modify_index = self.index;
            self.state.capacity_sources.put(row, self.changes);
        }
        let mut row = self.target(name);
        (row.deleted, row.required, row.sources) = (true, 0, 0);
        (row.requirements_index, row.changed_at) = (self.index, self.at);
        row.decision = None;
        (row.sums, row.wants) = (Peaks::default(), Peaks::default());
        self.put_target(row);
        let members: Vec<_> = self.state.members_of(name).cloned().collect();
        for (place, row) in members.into_iter().enumerate() {
            let place = u32::try_from(place).unwrap_or(u32::MAX);
            if row.state != InstanceState::ShuttingDown && row.member_drain().is_none() {
                self.drain_member((*row).clone(), group, place, &[]);
            }
        }
        self.forget_deleted(name);
    }

    /// The row of a deleted group goes with its last member.
    pub(crate) fn forget_deleted(&mut self, name: &Text) {
        let is_deleted = self.state.capacity_targets.get(name).is_some_and(|row| row.deleted);
        if is_deleted && self.state.members_of(name).next().is_none() {
            self.state.capacity_targets.remove(name, self.changes);
            self.effects.insert(Effect::CapacityGroup(name.clone()));
        }
    }

    /// Whether a pool may declare its groups.
    pub(crate) fn check_groups(&self, pool: &InstancePool) -> Result<(), Rejection> {
        let in_use = |why: String| Err(Rejection::InUse(why.into()));
        for name in pool.groups.keys() {
            if let Some(other) = self.state.capacity_pools.get(name)
                && *other != pool.name
            {
                return in_use(format!("pool \"{other}\" has a capacity group \"{name}\" already"));
            }
            if let Some(row) = self.state.capacity_targets.get(name)
                && row.pool != pool.name
            {
                let other = &row.pool;
                return in_use(format!(
                    "members of a capacity group \"{name}\" still drain in pool \"{other}\""
                ));
            }
        }
        let own = self.state.instance_pools.get(&pool.name).map_or(0, |old| old.groups.len());
        let others = self.state.capacity_pools.len().saturating_sub(own);
        if others.saturating_add(pool.groups.len()) > limits::CAPACITY_GROUPS_MAX {
            let most = limits::CAPACITY_GROUPS_MAX;
            let why = format!("all pools have at most {most} capacity groups");
            return Err(Rejection::Invalid(why.into()));
        }
        Ok(())
    }
}
