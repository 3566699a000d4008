//! Transitions of sources, and of what is wanted of groups.
//!
//! The sums are kept as words come in; nothing here looks at all sources but the end of a group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Asked, CapacityDecision, CapacitySource, CapacityTarget, DecideCapacity, DecidedCapacity,
    ExpireRequirements, Expiry, Pace, Requirements, SetRequirements,
};
use crate::{
    apply::{Outcome, Turn, not_found},
    command::{Rejection, Reply},
    effect::Effect,
    id::Text,
    limits,
    plant::{Plant, is_planted},
    pool::Instance,
};

fn invalid<T>(why: impl Into<Text>) -> Result<T, Rejection> {
    Err(Rejection::Invalid(why.into()))
}

fn is_source_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    (1..=limits::SOURCE_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_allowed)
}

/// A word that comes twice is taken twice: whoever did not hear the answer says it again.
fn check_order(known: Option<&CapacitySource>, word: &Requirements) -> Result<(), Rejection> {
    let Some(known) = known else { return Ok(()) };
    let (newest, this) = ((known.epoch, known.seq), (word.epoch, word.seq));
    let is_same = || {
        known.expired_at == 0
            && known
                .amounts
                .iter()
                .map(|(name, asked)| (name, asked.amount))
                .eq(word.amounts.iter().map(|(name, amount)| (name, *amount)))
    };
    let is_newer = this > newest || (this == newest && is_same());
    if is_newer || known.may_begin_anew(word.epoch) || is_planted(Plant::OlderSequence) {
        return Ok(());
    }
    let (epoch, seq) = newest;
    Err(Rejection::StaleRequirements { name: known.name.clone(), epoch, seq })
}

impl Turn<'_> {
    pub(super) fn put_target(&mut self, mut row: CapacityTarget) {
        row.modify_index = self.index;
        self.effects.insert(Effect::CapacityGroup(row.name.clone()));
        self.state.capacity_targets.put(row, self.changes);
    }

    /// The row of a group; a new one where there is none.
    pub(super) fn target(&self, name: &Text) -> CapacityTarget {
        if let Some(row) = self.state.capacity_targets.get(name) {
            return (**row).clone();
        }
        CapacityTarget {
            name: name.clone(),
            pool: self.state.capacity_pools.get(name).cloned().unwrap_or_default(),
            deleted: false,
            required: 0,
            sources: 0,
            requirements_index: self.index,
            changed_at: self.at,
            decision: None,
            sums: super::Peaks::default(),
            wants: super::Peaks::default(),
            pace: Pace::default(),
            grown_at: 0,
            expired: 0,
            last_expiry: None,
            create_index: self.index,
            modify_index: self.index,
        }
    }

    pub(crate) fn set_requirements(&mut self, command: &SetRequirements) -> Outcome {
        let SetRequirements { words } = command;
        if words.is_empty() || words.len() > limits::CAPACITY_WORDS_MAX {
            let most = limits::CAPACITY_WORDS_MAX;
            return invalid(format!("an entry has the words of 1 to {most} sources"));
        }
        if let [word] = words.as_slice() {
            self.hear(word)?;
            return Ok(Reply::Done);
        }
        Ok(Reply::Requirements(words.iter().map(|word| self.hear(word).err()).collect()))
    }

    /// Takes the word of a source.
    fn hear(&mut self, word: &Requirements) -> Result<(), Rejection> {
        let Requirements { source, epoch, seq, ttl_ms, amounts } = word;
        let known = self.state.capacity_sources.get(source).cloned();
        if !is_source_name(source) {
            return invalid("the name of a source has 1 to 128 letters, digits or \"-_.:/@\"");
        }
        check_order(known.as_deref(), word)?;
        self.check_amounts(known.as_deref(), amounts)?;
        let ttl_ms = ttl_ms.unwrap_or_else(|| self.state.requirement_ttl(source, amounts));
        if !(1..=limits::CAPACITY_MS_MAX).contains(&ttl_ms) {
            return invalid("a requirement holds from 1 ms to a day");
        }
        if known.is_none() {
            self.make_room_for_a_source()?;
        }
        let old = known.map(|known| known.amounts.clone()).unwrap_or_default();
        let mut asked = BTreeMap::new();
        for (group, amount) in amounts {
            let before = old.get(group).filter(|before| before.amount == *amount);
            let since = before.map_or(self.at, |before| before.since);
            asked.insert(group.clone(), Asked { amount: *amount, since });
        }
        let groups: BTreeSet<&Text> = old.keys().chain(asked.keys()).collect();
        for group in groups {
            let amount = |amounts: &BTreeMap<Text, Asked>| Some(amounts.get(group)?.amount);
            self.adjust(group, amount(&old), amount(&asked));
            if is_planted(Plant::DrainAnew) {
                self.drain_anew(group);
            }
        }
        self.effects.insert(Effect::CapacitySource(source.clone()));
        let row = CapacitySource {
            name: source.clone(),
            epoch: *epoch,
            seq: *seq,
            ttl_ms,
            heard_at: self.at,
            heard_term: self.state.term,
            expires_at: self.at.saturating_add(ttl_ms),
            expired_at: 0,
            amounts: asked,
            modify_index: self.index,
        };
        self.state.capacity_sources.put(row, self.changes);
        Ok(())
    }

    /// Only ever planted: drains that last begin again.
    fn drain_anew(&mut self, name: &Text) {
        let declared = self.state.capacity_group(name).map(|(_, group)| Arc::clone(group));
        let drained = self.state.members_of(name).filter(|row| row.member_drain().is_some());
        let drained: Vec<Instance> = drained.map(|row| (**row).clone()).collect();
        for (group, row) in drained.into_iter().filter_map(|row| Some((declared.as_ref()?, row))) {
            self.drain_member(row, group, 0, &[]);
        }
    }

    fn check_amounts(
        &self,
        known: Option<&CapacitySource>,
        amounts: &BTreeMap<Text, u64>,
    ) -> Result<(), Rejection> {
        if amounts.len() > limits::CAPACITY_SOURCE_GROUPS_MAX {
            let most = limits::CAPACITY_SOURCE_GROUPS_MAX;
            return invalid(format!("a source names at most {most} capacity groups"));
        }
        for (group, amount) in amounts {
            if self.state.capacity_group(group).is_none() {
                return Err(not_found(&format!("capacity group \"{group}\"")));
            }
            let most = limits::CAPACITY_AMOUNT_MAX;
            if *amount > most {
                return invalid(format!("{amount} for \"{group}\" is above {most}"));
            }
            let is_new = known.is_none_or(|known| !known.amounts.contains_key(group));
            let sources = self.state.capacity_targets.get(group).map_or(0, |row| row.sources);
            if is_new && sources >= limits::CAPACITY_GROUP_SOURCES_MAX {
                return invalid(format!(
                    "capacity group \"{group}\" has {sources} sources already"
                ));
            }
        }
        Ok(())
    }

    /// A source more than there may be takes the place of the one that fell silent first.
    fn make_room_for_a_source(&mut self) -> Result<(), Rejection> {
        let sources = self.state.capacity_sources.len();
        if sources < limits::CAPACITY_SOURCES_MAX {
            return Ok(());
        }
        let silent = self.state.capacity_sources.iter().filter(|row| row.expired_at > 0);
        let Some(oldest) = silent.min_by_key(|row| row.expired_at).map(|row| row.name.clone())
        else {
            return invalid(format!("there are {sources} sources already"));
        };
        self.forget_source(&oldest);
        Ok(())
    }

    fn forget_source(&mut self, name: &Text) {
        self.state.capacity_sources.remove(name, self.changes);
        self.effects.insert(Effect::CapacitySource(name.clone()));
    }

    /// Brings the sum of a group to what a source says in place of what it said before.
    fn adjust(&mut self, group: &Text, old: Option<u64>, new: Option<u64>) {
        if old == new {
            return;
        }
        let mut row = self.target(group);
        let rest = row.required.checked_sub(old.unwrap_or(0));
        let sum = rest.and_then(|rest| rest.checked_add(new.unwrap_or(0)));
        let left = row.sources.checked_sub(u32::from(old.is_some()));
        let sources = left.and_then(|left| left.checked_add(u32::from(new.is_some())));
        let (Some(sum), Some(sources)) = (sum, sources) else {
            crate::indexes::broken("capacity-sums", format_args!("{row:?}: {old:?} to {new:?}"))
        };
        row.sources = sources;
        if sum != row.required {
            let declared = self.state.capacity_group(group);
            let window_ms = declared.map_or(0, |(_, group)| group.sums_window_ms());
            row.sums.note(row.required, self.at, window_ms);
            row.required = sum;
            (row.requirements_index, row.changed_at) = (self.index, self.at);
        }
        self.put_target(row);
    }

    pub(crate) fn expire_requirements(&mut self, command: &ExpireRequirements) -> Reply {
        let ExpireRequirements { sources, groups } = command;
        for name in sources {
            let Some(row) = self.state.capacity_sources.get(name).cloned() else { continue };
            if row.expired_at > 0 {
                if row.expired_at.saturating_add(limits::CAPACITY_KEPT_MS) <= self.at {
                    self.forget_source(name);
                }
            } else if row.expires_at <= self.at {
                self.expire((*row).clone());
            }
        }
        for name in groups {
            if self.state.forgettable_at(name).is_some_and(|at| at <= self.at) {
                self.state.capacity_targets.remove(name, self.changes);
                self.effects.insert(Effect::CapacityGroup(name.clone()));
            }
        }
        Reply::Done
    }

    fn expire(&mut self, mut row: CapacitySource) {
        for (group, asked) in std::mem::take(&mut row.amounts) {
            self.adjust(&group, Some(asked.amount), None);
            let mut target = self.target(&group);
            target.expired = target.expired.saturating_add(1);
            let (source, at, amount) = (row.name.clone(), self.at, asked.amount);
            target.last_expiry = Some(Expiry { source, at, amount });
            self.put_target(target);
        }
        self.effects.insert(Effect::CapacitySource(row.name.clone()));
        let (source, ttl_ms) = (row.name.clone(), row.ttl_ms);
        self.effects.insert(Effect::CapacityExpired { source, ttl_ms });
        row.expired_at = self.at;
        row.modify_index = self.index;
        self.state.capacity_sources.put(row, self.changes);
    }

    pub(crate) fn decide_capacity(&mut self, command: &DecideCapacity) -> Outcome {
        let mut refused = None;
        let mut is_any_taken = false;
        for decision in &command.decisions {
            match self.decide(decision) {
                Ok(()) => is_any_taken = true,
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        match refused {
            Some(why) if !is_any_taken => Err(why),
            _ => Ok(Reply::Done),
        }
    }

    fn decide(&mut self, decided: &DecidedCapacity) -> Result<(), Rejection> {
        let DecidedCapacity { group: name, desired, required, predicted, requirements_index } =
            decided;
        let Some((_, group)) = self.state.capacity_group(name) else {
            return Err(not_found(&format!("capacity group \"{name}\"")));
        };
        let window_ms = group.cooldown_down_ms;
        let (least, most) = (group.amount_min(), group.amount_max());
        let mut row = self.target(name);
        let decided = row.decision.map_or(0, |last| last.requirements_index);
        if *requirements_index < decided {
            return invalid(format!(
                "the decision is about index {requirements_index}, the last one about {decided}"
            ));
        }
        if *requirements_index > row.requirements_index {
            return invalid("the decision is about requirements that are not there");
        }
        if !(least..=most).contains(desired) {
            return invalid(format!("{desired} is not from {least} to {most}"));
        }
        if let Some(last) = row.decision
            && last.desired != *desired
        {
            row.wants.note(last.desired, self.at, window_ms);
        }
        row.decision = Some(CapacityDecision {
            desired: *desired,
            predicted: *predicted,
            required: *required,
            requirements_index: *requirements_index,
            at: self.at,
            index: self.index,
        });
        self.put_target(row);
        Ok(())
    }
}
