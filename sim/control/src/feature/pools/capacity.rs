//! Capacity groups after each entry, by an account of the words in the log: who is heard and who is
//! late, what the sums are, who fell silent, and what members give.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    CapacityGroup, Command, Instance, InstanceState, Liveness, Reply, State, Text,
    capacity::{Prediction, Requirements},
    command::CapacityCommand,
    limits::{CAPACITY_KEPT_MS, REQUIREMENT_TTL_MS},
    pool::Behavior,
};

use crate::cluster::{
    coverage::{Coverage, Event},
    log::Applied,
};

/// What a source said last.
struct Word {
    order: (u64, u64),
    ttl_ms: u64,
    expires_at: u64,
    /// When it was found silent.
    expired_at: Option<u64>,
    amounts: BTreeMap<Text, u64>,
}

/// The words in the log.
#[derive(Default)]
pub(crate) struct Account {
    words: BTreeMap<Text, Word>,
    /// Terms of the last decisions.
    decided: BTreeMap<Text, u64>,
}

/// What the members of a group give, those on their way included.
#[derive(Clone, Copy, Default)]
pub(crate) struct Strength {
    pub(crate) amount: u64,
    pub(crate) count: u32,
}

impl Account {
    /// What is wrong with an entry.
    pub(super) fn judge(
        &mut self,
        before: &State,
        applied: &Applied,
        coverage: &mut Coverage,
        found: &mut Vec<String>,
    ) {
        let Some(proposal) = &applied.entry.proposal else { return };
        let after = &applied.state;
        let fell_silent = self.note(&proposal.command, applied, coverage, found);
        for word in self.words.values_mut() {
            word.amounts.retain(|group, _| after.capacity_group(group).is_some());
        }
        self.judge_sources(before, after, found);
        self.judge_targets(before, after, &fell_silent, found);
        self.judge_members(before, applied, coverage, found);
    }

    /// Takes an entry in. Answers with how many sources of each group fell silent.
    fn note(
        &mut self,
        command: &Command,
        applied: &Applied,
        coverage: &mut Coverage,
        found: &mut Vec<String>,
    ) -> BTreeMap<Text, u64> {
        let after = &applied.state;
        let is_taken = !matches!(applied.reply, Reply::Rejected(_));
        if let Command::Capacity(CapacityCommand::SetRequirements(command)) = command {
            let verdicts = if let Reply::Requirements(verdicts) = &applied.reply {
                verdicts.iter().map(Option::is_none).collect()
            } else {
                vec![is_taken]
            };
            for (word, is_taken) in command.words.iter().zip(verdicts) {
                self.hear(word, after, is_taken, found);
                let is_late = !is_taken && self.words.contains_key(&word.source);
                coverage.count(if is_late { Event::OldWord } else { Event::WordTaken });
            }
        }
        let mut fell_silent = BTreeMap::new();
        if let Command::Capacity(CapacityCommand::ExpireRequirements(command)) = command
            && is_taken
        {
            for group in command.sources.iter().flat_map(|name| self.expire(name, after.at())) {
                coverage.count(Event::SourceSilent);
                *fell_silent.entry(group).or_insert(0) += 1;
            }
        }
        if let Command::Capacity(CapacityCommand::DecideCapacity(command)) = command
            && is_taken
        {
            let terms = command.decisions.iter();
            let terms = terms.map(|one| (one.group.clone(), applied.entry.term));
            self.decided.extend(terms);
        }
        fell_silent
    }

    /// A newer word is taken, and the newest one again; no other.
    fn hear(
        &mut self,
        word: &Requirements,
        after: &State,
        is_taken: bool,
        found: &mut Vec<String>,
    ) {
        let order = (word.epoch, word.seq);
        let known = self.words.get(&word.source);
        let is_due = known.is_none_or(|known| {
            let is_same = known.expired_at.is_none() && known.amounts == word.amounts;
            let is_anew = known.expired_at.is_some() && word.epoch < known.order.0;
            order > known.order || (order == known.order && is_same) || is_anew
        });
        let is_declared = word.amounts.keys().all(|name| after.capacity_group(name).is_some());
        let source = &word.source;
        if is_taken && !is_due {
            found.push(format!("capacity-order: an older word of {source} is taken: {order:?}"));
        }
        if !is_taken && is_due && is_declared {
            found.push(format!("capacity-order: a word of {source} is refused: {order:?}"));
        }
        if !is_taken {
            return;
        }
        let named = word.amounts.keys().filter_map(|name| after.capacity_group(name));
        let shortest = named.map(|(_, group)| group.requirement_ttl_ms).min();
        let last = known.map(|known| known.ttl_ms);
        let ttl_ms = word.ttl_ms.or(shortest).or(last).unwrap_or(REQUIREMENT_TTL_MS);
        let expires_at = after.at() + ttl_ms;
        let amounts = word.amounts.clone();
        let word = Word { order, ttl_ms, expires_at, expired_at: None, amounts };
        self.words.insert(source.clone(), word);
    }

    /// A source falls silent when its time is over, and is forgotten long after. Answers with the
    /// groups that it spoke of.
    fn expire(&mut self, name: &Text, at: u64) -> BTreeSet<Text> {
        let Some(word) = self.words.get_mut(name) else { return BTreeSet::new() };
        match word.expired_at {
            Some(since) if since + CAPACITY_KEPT_MS <= at => {
                self.words.remove(name);
            }
            None if word.expires_at <= at => {
                word.expired_at = Some(at);
                return std::mem::take(&mut word.amounts).into_keys().collect();
            }
            Some(_) | None => {}
        }
        BTreeSet::new()
    }

    /// Rows of sources say what the words said, and never go back.
    fn judge_sources(&self, before: &State, after: &State, found: &mut Vec<String>) {
        for row in before.capacity_sources().iter() {
            let now = after.capacity_sources().get(&row.name).map(|now| (now.epoch, now.seq));
            let is_anew = |now: &(u64, u64)| row.expired_at > 0 && now.0 < row.epoch;
            if now.is_some_and(|now| now < (row.epoch, row.seq) && !is_anew(&now)) {
                let name = &row.name;
                found.push(format!("capacity-order: {name} went back to {now:?}"));
            }
        }
        let rows = after.capacity_sources();
        if rows.iter().count() != self.words.len() {
            found.push("capacity-words: other sources are known than spoke".to_owned());
        }
        for (name, word) in &self.words {
            let is_same = rows.get(name).is_some_and(|row| {
                let amounts = row.amounts.iter().map(|(group, asked)| (group, asked.amount));
                (row.epoch, row.seq) == word.order
                    && row.expired_at == word.expired_at.unwrap_or(0)
                    && amounts.eq(word.amounts.iter().map(|(group, amount)| (group, *amount)))
            });
            if !is_same {
                found.push(format!("capacity-words: {name} is not kept as it spoke"));
            }
        }
    }

    /// Sums are those of what is not silent; each silence is counted once.
    fn judge_targets(
        &self,
        before: &State,
        after: &State,
        fell_silent: &BTreeMap<Text, u64>,
        found: &mut Vec<String>,
    ) {
        for row in after.capacity_targets().iter() {
            let name = &row.name;
            let sum: u64 = self.words.values().filter_map(|word| word.amounts.get(name)).sum();
            if sum != row.required {
                found
                    .push(format!("capacity-sum: {name} is asked for {sum}, not {}", row.required));
            }
            let was = before.capacity_targets().get(name).map_or(0, |was| was.expired);
            let more = fell_silent.get(name).copied().unwrap_or(0);
            if row.expired != was + more {
                let now = row.expired;
                found.push(format!("capacity-expired: {name} counts {now} after {was} and {more}"));
            }
        }
    }

    /// Members are asked for when they lack, and drain when they are too much; a drain's deadline
    /// stays; who reads the members reads those that serve.
    fn judge_members(
        &self,
        before: &State,
        applied: &Applied,
        coverage: &mut Coverage,
        found: &mut Vec<String>,
    ) {
        let after = &applied.state;
        let mut drained = BTreeSet::new();
        let mut asked = BTreeSet::new();
        for row in after.instances().iter() {
            let Some(member) = &row.member else { continue };
            let was = before.instances().get(&row.id);
            let drain = was.and_then(|was| was.member.as_ref()?.drain);
            match (drain, member.drain) {
                (Some(was), Some(now)) if was.deadline_at != now.deadline_at => {
                    let id = row.id;
                    found.push(format!("capacity-drain: the deadline of {id} moved"));
                }
                (None, Some(_)) => {
                    coverage.count(Event::MemberDrained);
                    drained.insert(member.group.clone());
                }
                (Some(_), None) => coverage.count(Event::MemberTakenBack),
                (Some(_), Some(_)) | (None, None) => {}
            }
            if was.is_none() {
                asked.insert(member.group.clone());
                let decided = self.decided.get(&member.group);
                if decided.is_some_and(|term| *term < applied.entry.term) {
                    coverage.count(Event::DecisionInherited);
                }
            }
        }
        let proposal = applied.entry.proposal.as_ref();
        let moves = proposal.is_some_and(|one| {
            matches!(one.command, Command::Capacity(CapacityCommand::MoveMembers(_)))
        });
        for pool in after.instance_pools().iter() {
            for group in pool.groups.values() {
                if asked.contains(&group.name) {
                    judge_growth(before, after, group, found);
                }
                if moves && drained.contains(&group.name) {
                    judge_drains(after, group, found);
                }
                judge_list(after, group, found);
            }
        }
    }
}

/// The last member that was asked for was lacking.
fn judge_growth(before: &State, after: &State, group: &CapacityGroup, found: &mut Vec<String>) {
    let now = strength(after, group);
    let new = members(after, group).filter(|row| !before.instances().contains(&row.id));
    let largest = new.filter_map(|row| given(after, group, row)).max().unwrap_or(0);
    let wanted = desired(after, group);
    let name = &group.name;
    if now.amount - largest >= wanted && now.count > group.min {
        let amount = now.amount;
        found.push(format!("capacity-growth: {name} grows to {amount}, {wanted} is desired"));
    }
    if now.count > group.max {
        found.push(format!("capacity-growth: {name} grows to {} members", now.count));
    }
}

/// What is left gives what is desired.
fn judge_drains(after: &State, group: &CapacityGroup, found: &mut Vec<String>) {
    let Strength { amount, count } = strength(after, group);
    let wanted = desired(after, group);
    if amount < wanted || count < group.min {
        let name = &group.name;
        found.push(format!("capacity-drains: {name} is left with {amount} of {wanted}"));
    }
}

/// The list of members has those whose nodes serve, each with a place of its own.
fn judge_list(after: &State, group: &CapacityGroup, found: &mut Vec<String>) {
    let rows = after.active_members(&group.name);
    let places: BTreeSet<u32> = rows.iter().filter_map(|row| row.place()).collect();
    if places.len() < rows.len() {
        let name = &group.name;
        found.push(format!("capacity-place: members of {name} share a place, or have none"));
    }
    let listed: BTreeSet<_> = after.active_members(&group.name).iter().map(|row| row.id).collect();
    let serving = members(after, group).filter(|row| serves(after, row) == Some(true));
    if !listed.iter().copied().eq(serving.map(|row| row.id)) {
        let name = &group.name;
        found.push(format!("capacity-members: the list of {name} is not who serves: {listed:?}"));
    }
}

fn members<'a>(state: &'a State, group: &CapacityGroup) -> impl Iterator<Item = &'a Instance> {
    let name = group.name.clone();
    let rows = state.instances().iter().map(|row| &**row);
    rows.filter(move |row| row.member.as_ref().is_some_and(|member| member.group == name))
}

/// Whether a member serves; `false`: it is on its way; none: neither.
fn serves(state: &State, row: &Instance) -> Option<bool> {
    let is_in = row.behavior == Behavior::Run && row.member_drain().is_none();
    match row.state {
        _ if !is_in => return None,
        InstanceState::ShuttingDown => return None,
        InstanceState::Requested | InstanceState::Booting => return Some(false),
        InstanceState::Bound => {}
    }
    let Some(node) = row.node.and_then(|node| state.nodes().get(&node)) else { return Some(false) };
    if node.eligibility.ineligible || node.drain.is_some() || node.suspension().is_some() {
        return None;
    }
    let is_lost = state.mass_loss().is_some_and(|loss| loss.nodes.contains(&node.id));
    match node.liveness {
        Liveness::Ready => Some(true),
        Liveness::Initializing => Some(false),
        Liveness::Down | Liveness::Disconnected => is_lost.then_some(true),
    }
}

/// What a member gives, or will: none if it does not count. All groups here are of memory.
pub(crate) fn given(state: &State, group: &CapacityGroup, row: &Instance) -> Option<u64> {
    let node = row.node.and_then(|node| state.nodes().get(&node));
    let resources = node.map(|node| &node.description.resources);
    if serves(state, row)? {
        return resources.map(|all| all.total.memory_mb.saturating_sub(all.reserved.memory_mb));
    }
    Some(row.kind.memory_mb.max(group.unit))
}

/// What the members of a group give.
pub(crate) fn strength(state: &State, group: &CapacityGroup) -> Strength {
    let mut strength = Strength::default();
    for amount in members(state, group).filter_map(|row| given(state, group, row)) {
        strength.count += 1;
        strength.amount += amount;
    }
    strength
}

/// What was decided for a group.
pub(crate) fn desired(state: &State, group: &CapacityGroup) -> u64 {
    let row = state.capacity_targets().get(&group.name);
    row.and_then(|row| row.decision).map_or(0, |decision| decision.desired)
}

/// What is to be decided for a group when its sum has been the same for long.
pub(crate) fn wanted(state: &State, group: &CapacityGroup) -> u64 {
    let asked = state.capacity_sources().iter();
    let sum: u64 = asked.filter_map(|row| Some(row.amounts.get(&group.name)?.amount)).sum();
    let predicted = match group.predictor {
        Prediction::Identity | Prediction::Peak { .. } => sum,
        Prediction::Headroom { percent } => sum + (sum * u64::from(percent)).div_ceil(100),
    };
    let (min, max) = (u64::from(group.min), u64::from(group.max));
    predicted.max(min * group.unit).min(max * group.unit)
}

#[cfg(test)]
mod tests {
    use fsm::testing::{self, Driver};

    use super::*;

    /// What an account that has heard `said` finds wrong with the state of `driver`.
    fn found(driver: &Driver, said: &[Requirements]) -> Vec<String> {
        let (mut account, mut found) = (Account::default(), Vec::new());
        for word in said {
            account.hear(word, &driver.state, true, &mut found);
        }
        account.judge_sources(&driver.state, &driver.state, &mut found);
        account.judge_targets(&driver.state, &driver.state, &BTreeMap::new(), &mut found);
        found.into_iter().map(|one| one.split(':').next().unwrap_or("").to_owned()).collect()
    }

    #[test]
    fn an_older_word_and_another_sum_are_found() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            pool.groups.insert("web".into(), testing::capacity_group("web").into());
        });
        driver.require("lb1", 2, &[("web", 5_000)]);
        let word = |seq, amount| testing::requirements("lb1", seq, &[("web", amount)]);
        assert_eq!(found(&driver, &[word(1, 4_000), word(2, 5_000)]), [] as [&str; 0]);
        assert_eq!(found(&driver, &[word(2, 5_000), word(2, 5_000)]), [] as [&str; 0]);
        assert_eq!(found(&driver, &[word(3, 1), word(2, 5_000)]), ["capacity-order"]);
        assert_eq!(found(&driver, &[word(2, 4_000)]), ["capacity-words", "capacity-sum"]);
    }

    #[test]
    fn a_source_falls_silent_once_and_in_its_time() {
        let mut driver = Driver::default();
        driver.instance_pool("gpu", |pool| {
            pool.groups.insert("web".into(), testing::capacity_group("web").into());
        });
        let mut account = Account::default();
        let word = testing::requirements("lb1", 1, &[("web", 5_000)]);
        account.hear(&word, &driver.state, true, &mut Vec::new());
        let (name, at) = (Text::from("lb1"), driver.state.at() + 10_000);
        assert_eq!(account.expire(&name, at - 1), [].into());
        assert_eq!(account.expire(&name, at), [Text::from("web")].into());
        assert_eq!(account.expire(&name, at), [].into());
        assert_eq!(account.expire(&name, at + CAPACITY_KEPT_MS), [].into());
        assert!(account.words.is_empty());
    }
}
