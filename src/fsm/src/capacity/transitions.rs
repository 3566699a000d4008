//! Transitions of sources, of what is wanted of groups, and of their members.
//!
//! The sums are kept as words come in; nothing here looks at all sources but the end of a group.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Asked, CapacityDecision, CapacityGroup, CapacitySource, CapacityTarget, DecideCapacity,
    DecidedCapacity, ExpireRequirements, Expiry, MemberDrain, MemberPhase, MoveMembers, Pace,
    Requirements, SetRequirements,
};
use crate::{
    apply::{Outcome, Turn, not_found},
    command::{Rejection, Reply},
    effect::Effect,
    id::{EvaluationId, InstanceId, Text},
    limits,
    plant::{Plant, is_planted},
    pool::{Behavior, Instance, InstancePool, InstanceState},
};

fn invalid<T>(why: impl Into<Text>) -> Result<T, Rejection> {
    Err(Rejection::Invalid(why.into()))
}

fn is_source_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-_.:/@".contains(c);
    (1..=limits::SOURCE_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_allowed)
}

/// What a group's members give, those that are on their way included.
#[derive(Clone, Copy, Default)]
pub(crate) struct Strength {
    pub(crate) amount: u64,
    pub(crate) count: u32,
}

impl Turn<'_> {
    fn put_target(&mut self, mut row: CapacityTarget) {
        row.modify_index = self.index;
        self.effects.insert(Effect::CapacityGroup(row.name.clone()));
        self.state.capacity_targets.put(row, self.changes);
    }

    /// The row of a group; a new one where there is none.
    fn target(&self, name: &Text) -> CapacityTarget {
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
        self.check_order(known.as_deref(), word)?;
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
        }
        self.effects.insert(Effect::CapacitySource(source.clone()));
        let row = CapacitySource {
            name: source.clone(),
            epoch: *epoch,
            seq: *seq,
            ttl_ms,
            heard_at: self.at,
            expires_at: self.at.saturating_add(ttl_ms),
            expired_at: 0,
            amounts: asked,
            modify_index: self.index,
        };
        self.state.capacity_sources.put(row, self.changes);
        Ok(())
    }

    /// A word that comes twice is taken twice: whoever did not hear the answer says it again.
    fn check_order(
        &self,
        known: Option<&CapacitySource>,
        word: &Requirements,
    ) -> Result<(), Rejection> {
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
        if is_newer || is_planted(Plant::OlderSequence) {
            return Ok(());
        }
        let (epoch, seq) = newest;
        Err(Rejection::StaleRequirements { name: known.name.clone(), epoch, seq })
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
            if self.state.is_forgettable(name, self.at) {
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
        let last = row.decision.map_or(0, |last| last.requirements_index);
        if *requirements_index < last {
            return invalid(format!(
                "the decision is about index {requirements_index}, the last one about {last}"
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

    pub(crate) fn move_members(&mut self, command: &MoveMembers) -> Outcome {
        let MoveMembers { group: name, decision_index, drain, take_back, evaluation_ids } = command;
        if drain.len().saturating_add(take_back.len()) > limits::CAPACITY_MOVES_MAX {
            let most = limits::CAPACITY_MOVES_MAX;
            return invalid(format!("an entry moves at most {most} members"));
        }
        let declared = self.state.capacity_group(name).map(|(_, group)| Arc::clone(group));
        let Some(group) = declared else {
            return Err(not_found(&format!("capacity group \"{name}\"")));
        };
        let mut row = self.target(name);
        let Some(decision) = row.decision.filter(|decision| decision.index == *decision_index)
        else {
            return invalid("another decision has been taken since");
        };
        let mut made = Vec::new();
        let mut refused = None;
        let mut moved = 0_u32;
        let mut count = self.strength(&group).count;
        for id in take_back {
            match self.take_back(&group, *id, &mut count, evaluation_ids) {
                Ok(ids) => {
                    made.extend(ids);
                    moved = moved.saturating_add(1);
                }
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        if moved > 0 {
            row.grown_at = self.at;
            self.put_target(row);
        }
        let mut left = self.strength(&group);
        for id in drain {
            match self.release(&group, *id, decision.desired, &mut left, moved, evaluation_ids) {
                Ok(ids) => {
                    made.extend(ids);
                    moved = moved.saturating_add(1);
                }
                Err(why) => refused = refused.or(Some(why)),
            }
        }
        match refused {
            Some(why) if moved == 0 => Err(why),
            _ => Ok(Reply::Evaluations(made)),
        }
    }

    /// What the members of a group give, those that are on their way included.
    pub(crate) fn strength(&self, group: &CapacityGroup) -> Strength {
        let mut strength = Strength::default();
        for row in self.state.members_of(&group.name) {
            if self.state.member_phase(row).counts() {
                strength.count = strength.count.saturating_add(1);
                let amount = self.state.member_amount(group, row);
                strength.amount = strength.amount.saturating_add(amount);
            }
        }
        strength
    }

    fn member_of(&self, group: &Text, id: InstanceId) -> Result<Instance, Rejection> {
        let row = self.instance(id)?;
        if row.group() == Some(group) {
            return Ok(row);
        }
        invalid(format!("the instance is no member of capacity group \"{group}\""))
    }

    fn take_back(
        &mut self,
        group: &CapacityGroup,
        id: InstanceId,
        count: &mut u32,
        ids: &[EvaluationId],
    ) -> Result<Vec<EvaluationId>, Rejection> {
        let mut row = self.member_of(&group.name, id)?;
        if self.state.member_phase(&row) != MemberPhase::Draining {
            return invalid("the member does not drain");
        }
        if *count >= group.max {
            return invalid(format!("the group may have {} members", group.max));
        }
        *count = count.saturating_add(1);
        if let Some(member) = &mut row.member {
            member.drain = None;
        }
        Ok(self.put_service(row, "Taken back by its capacity group", ids))
    }

    /// Begins the drain of a member that the group can do without.
    fn release(
        &mut self,
        group: &CapacityGroup,
        id: InstanceId,
        desired: u64,
        left: &mut Strength,
        place: u32,
        ids: &[EvaluationId],
    ) -> Result<Vec<EvaluationId>, Rejection> {
        let row = self.member_of(&group.name, id)?;
        if is_planted(Plant::DrainAnew) && row.member_drain().is_some() {
            return Ok(self.drain_member(row, group, place, ids));
        }
        if !self.state.member_phase(&row).counts() {
            return invalid("the member neither serves nor is on its way");
        }
        let amount = left.amount.saturating_sub(self.state.member_amount(group, &row));
        let count = left.count.saturating_sub(1);
        if amount < desired || count < group.min {
            return invalid("the group needs the member");
        }
        *left = Strength { amount, count };
        Ok(self.drain_member(row, group, place, ids))
    }

    /// Begins the drain of a member. Its deadline is never moved afterwards.
    pub(crate) fn drain_member(
        &mut self,
        mut row: Instance,
        group: &CapacityGroup,
        place: u32,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        let Some(member) = &mut row.member else { return Vec::new() };
        member.drain = Some(MemberDrain {
            since: self.at,
            order: (self.index, place),
            deadline_at: self.at.saturating_add(group.drain_ms),
            busy: group.busy,
            hard: group.hard,
        });
        self.put_service(row, "Drained by its capacity group", ids)
    }

    /// Whether an intent may be for a group, and what its member will give.
    pub(crate) fn check_intent(
        &self,
        pool: &InstancePool,
        name: &Text,
        asked: Strength,
    ) -> Result<Arc<CapacityGroup>, Rejection> {
        let Some(group) = pool.groups.get(name) else {
            return invalid(format!("pool \"{}\" has no capacity group \"{name}\"", pool.name));
        };
        let target = self.state.capacity_targets.get(name);
        let Some((target, decision)) = target.and_then(|row| Some((row, row.decision?))) else {
            return invalid(format!("nothing is decided for capacity group \"{name}\""));
        };
        if asked.count >= group.max {
            return invalid(format!("capacity group \"{name}\" may have {} members", group.max));
        }
        if asked.amount >= decision.desired && asked.count >= group.min {
            return invalid(format!("capacity group \"{name}\" has what it wants"));
        }
        if target.asked_lately(group, self.at) >= group.step {
            return invalid(format!("capacity group \"{name}\" has made its step"));
        }
        Ok(Arc::clone(group))
    }

    /// Notes that a member was asked for.
    pub(crate) fn note_step(&mut self, group: &CapacityGroup) {
        let mut row = self.target(&group.name);
        let asked = row.asked_lately(group, self.at).saturating_add(1);
        row.pace = Pace { last_at: self.at, asked };
        row.grown_at = self.at;
        self.put_target(row);
    }

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
        (row.sums, row.wants) = (super::Peaks::default(), super::Peaks::default());
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
            return invalid(format!("all pools have at most {most} capacity groups"));
        }
        Ok(())
    }

    /// An operator drains or takes back an instance: a member's drain begins and ends with it, so
    /// that work of others has its time to go.
    pub(crate) fn member_behaves(&self, row: &mut Instance) {
        let Some(member) = &mut row.member else { return };
        let group = self.state.capacity_group(&member.group).map(|(_, group)| group);
        match (row.behavior, group) {
            (Behavior::Drain, Some(group)) if member.drain.is_none() => {
                member.drain = Some(MemberDrain {
                    since: self.at,
                    order: (self.index, 0),
                    deadline_at: self.at.saturating_add(group.drain_ms),
                    busy: group.busy,
                    hard: group.hard,
                });
            }
            (Behavior::Run, Some(_)) => member.drain = None,
            (Behavior::Run | Behavior::Hold | Behavior::Drain, _) => {}
        }
    }
}
