//! Load balancers: in half of the seeds that have a pool it declares capacity groups, and sources say
//! what they need of them. They change their mind, say nothing for a while, say a thing twice, start
//! anew in a new epoch or in one that is older than their last, and old words of theirs come late. When nothing is in the way they repeat
//! themselves, and speak to each new leader. Nobody says a word again that was lost: the next one
//! replaces it. From dice of its own: seeds without groups are what they were.
//!
//! What is owed is judged after each entry by [`crate::oracle`], from the words in the log, and at
//! the end in [`ending`].

mod ending;

use std::{collections::BTreeMap, sync::Arc};

use chance::Dice;
use fsm::{
    CapacityGroup, Command, Text,
    capacity::{BusyRule, Prediction, Requirements, SetRequirements},
    command::PoolCommand,
    limits::CAPACITY_MS_MAX,
    pool::InstancePool,
    testing,
};

use crate::{
    coverage::Event,
    log::{Fate, Ticket},
    pools::POOL,
    world::World,
};

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6261_6c61_6e63_6572;
/// Groups of the pool.
const GROUPS: [&str; 2] = ["web", "api"];
/// Instances that the pool may have more than one without groups.
const MORE_INSTANCES: u32 = 3;
/// Old words of a source that may still come.
const SAID_MAX: usize = 8;
/// Most that one source needs of a group.
const AMOUNT_MAX: u64 = 9_000;
/// How long the words of an undisturbed round hold, ms.
const UNDISTURBED_MS: u64 = 60_000;

/// A source of requirements.
struct Balancer {
    name: Text,
    epoch: u64,
    seq: u64,
    need: BTreeMap<Text, u64>,
    /// It says nothing any more, until it starts anew.
    is_silent: bool,
    /// Its last words, which may come again.
    said: Vec<Requirements>,
    /// The last one's.
    ticket: Option<Ticket>,
    /// When it spoke last.
    said_at: Option<u64>,
}

/// The balancers of a seed, and the groups that they speak of.
pub(crate) struct Balancers {
    /// Percent of steps before which one of them does something.
    percent: u64,
    groups: BTreeMap<Text, Arc<CapacityGroup>>,
    all: Vec<Balancer>,
    /// Nothing changes any more: their words hold for long.
    are_done: bool,
    /// Dice of the step under way.
    dice: Dice,
}

fn dice(seed: u64, step: u64) -> Dice {
    Dice::numbered(seed ^ LABEL, step)
}

/// The balancers of a seed that has a pool; none: its pool has no groups.
pub(crate) fn draw(seed: u64, has_pool: bool) -> Option<Balancers> {
    let mut dice = dice(seed, u64::MAX);
    if !has_pool || dice.percent(50) {
        return None;
    }
    let count = if dice.percent(40) { 2 } else { 1 };
    let groups = GROUPS.iter().take(count).map(|name| Arc::new(draw_group(name, &mut dice)));
    let groups: BTreeMap<Text, _> = groups.map(|group| (group.name.clone(), group)).collect();
    let balancers = dice.between(1, 3);
    let mut all = Vec::new();
    for number in 0..balancers {
        let need = draw_need(&groups, &mut dice);
        let (name, said) = (format!("lb{number}").into(), Vec::new());
        let (is_silent, ticket) = (false, None);
        let said_at = None;
        all.push(Balancer { name, epoch: 3, seq: 0, need, is_silent, said, ticket, said_at });
    }
    let percent = dice.between(5, 30);
    Some(Balancers { percent, groups, all, are_done: false, dice })
}

/// A group with times that come within a schedule.
fn draw_group(name: &str, dice: &mut Dice) -> CapacityGroup {
    let predictors = [
        Prediction::Identity,
        Prediction::Headroom { percent: 60 },
        Prediction::Peak { window_ms: 15_000 },
    ];
    let busy = if dice.percent(30) { BusyRule::Allocations } else { BusyRule::Deadline };
    CapacityGroup {
        min: u32::from(dice.percent(25)),
        max: 3,
        predictor: dice.pick(&predictors).unwrap_or_default(),
        step: 2,
        step_interval_ms: 1_000,
        drain_ms: 20_000,
        busy,
        hard: busy == BusyRule::Allocations && dice.percent(50),
        cooldown_up_ms: dice.pick(&[0, 0, 5_000]).unwrap_or(0),
        cooldown_down_ms: 10_000,
        requirement_ttl_ms: 5_000,
        ..testing::capacity_group(name)
    }
}

/// What a source needs: often nothing of one group or another.
fn draw_need(groups: &BTreeMap<Text, Arc<CapacityGroup>>, dice: &mut Dice) -> BTreeMap<Text, u64> {
    let mut need = BTreeMap::new();
    for name in groups.keys() {
        if dice.percent(75) {
            need.insert(name.clone(), dice.below(AMOUNT_MAX));
        }
    }
    need
}

impl Balancers {
    /// How long the words of an undisturbed round hold.
    fn undisturbed_ms(&self) -> u64 {
        if self.are_done { CAPACITY_MS_MAX } else { UNDISTURBED_MS }
    }

    /// Declares the groups in a pool that an operator applies; seldom one of them is left out.
    pub(crate) fn declare(&mut self, pool: &mut InstancePool) {
        pool.max += MORE_INSTANCES;
        pool.groups = self.groups.clone();
        if self.dice.percent(10) {
            pool.groups.pop_last();
        }
    }
}

impl World {
    /// Before a step: sometimes a balancer speaks, or does what it should not.
    pub(crate) fn balance(&mut self, seed: u64, step: u32) {
        let Some(balancers) = &mut self.balancers else { return };
        balancers.dice = dice(seed, u64::from(step));
        if !balancers.dice.percent(balancers.percent) {
            return;
        }
        let number = balancers.dice.index(balancers.all.len());
        let choice = balancers.dice.below(20);
        let one = &mut balancers.all[number];
        match choice {
            0..8 => {
                one.need = draw_need(&balancers.groups, &mut balancers.dice);
                let ttl_ms = if balancers.dice.percent(50) { None } else { Some(20_000) };
                self.say(number, ttl_ms);
            }
            8..12 => {
                self.say(number, None);
            }
            12..16 => self.say_again(number),
            16 | 17 => {
                (one.seq, one.is_silent) = (0, false);
                if one.epoch > 1 && balancers.dice.percent(40) {
                    one.epoch -= 1;
                    self.coverage.count(Event::SourceFellBack);
                } else {
                    one.epoch += 1;
                    self.coverage.count(Event::SourceRestarted);
                }
                self.say(number, None);
            }
            _ => one.is_silent = true,
        }
    }

    /// In the end the pool is there, with its groups: what was asked before comes no more.
    pub(crate) fn declare_groups_for_good(&mut self) {
        let Some(balancers) = &mut self.balancers else { return };
        balancers.are_done = true;
        let mut dice = balancers.dice.clone();
        self.forget_operations(|command| {
            matches!(command, Command::Pool(PoolCommand::DeleteInstancePool(_)))
        });
        self.apply_pool(&mut dice);
    }

    /// In an undisturbed round, every balancer that speaks says what it needs, unless the leader has
    /// heard it lately.
    pub(crate) fn hear_balancers(&mut self) -> bool {
        let Some(balancers) = &self.balancers else { return false };
        let (count, ttl_ms) = (balancers.all.len(), balancers.undisturbed_ms());
        let mut acted = false;
        for number in 0..count {
            // One that is refused for its epoch is heard when its older words have expired.
            let spoke = self.balancers.as_ref().and_then(|all| all.all[number].said_at);
            let may_speak = spoke != Some(self.clock_ms);
            acted |= may_speak && !self.is_heard(number) && self.say(number, Some(ttl_ms));
        }
        acted
    }

    /// Groups that a source can speak of now, and what it needs of them.
    fn need_of(&self, one: &Balancer) -> BTreeMap<Text, u64> {
        let truth = self.log.truth();
        let declared = |name: &Text| truth.capacity_group(name).is_some();
        let need = one.need.iter().filter(|(name, _)| declared(name));
        need.map(|(name, amount)| (name.clone(), *amount)).collect()
    }

    /// What a balancer needs was said to the leader, and holds; or it does not speak.
    fn is_heard(&self, number: usize) -> bool {
        let Some(balancers) = &self.balancers else { return true };
        let one = &balancers.all[number];
        let need = self.need_of(one);
        let ttl_ms = balancers.undisturbed_ms();
        let Some(row) = self.log.truth().capacity_sources().get(&one.name) else {
            return one.is_silent || need.is_empty();
        };
        let said = row.amounts.iter().map(|(name, asked)| (name, asked.amount));
        let is_there = row.expired_at == 0
            && row.heard_term == self.log.term
            && row.ttl_ms == ttl_ms
            && self.leaders_now() < row.heard_at + ttl_ms / 2
            && (row.epoch, row.seq) == (one.epoch, one.seq)
            && said.eq(need.iter().map(|(name, amount)| (name, *amount)));
        one.is_silent || is_there
    }

    /// Log time as the leader has it.
    pub(crate) fn leaders_now(&self) -> u64 {
        let leader = self.servers[self.log.leader].leadership.as_ref();
        leader.map_or(self.log.truth().at(), |one| one.now(self.clock_ms))
    }

    /// A balancer says what it needs, unless its last word is on its way.
    fn say(&mut self, number: usize, ttl_ms: Option<u64>) -> bool {
        let Some(one) = self.balancers.as_ref().map(|balancers| &balancers.all[number]) else {
            return false;
        };
        if one.is_silent || one.ticket.is_some_and(|last| self.log.fate(last) == Fate::Open) {
            return false;
        }
        let amounts = self.need_of(one);
        let Some(balancers) = &mut self.balancers else { return false };
        let one = &mut balancers.all[number];
        one.seq += 1;
        one.said_at = Some(self.clock_ms);
        let (source, epoch, seq) = (one.name.clone(), one.epoch, one.seq);
        let word = Requirements { source, epoch, seq, ttl_ms, amounts };
        if one.said.len() >= SAID_MAX {
            one.said.remove(0);
        }
        one.said.push(word.clone());
        let ticket = self.propose_word(word);
        if let Some(balancers) = &mut self.balancers {
            balancers.all[number].ticket = ticket;
        }
        ticket.is_some()
    }

    /// An old word comes late, or the last one comes twice.
    fn say_again(&mut self, number: usize) {
        let Some(balancers) = &mut self.balancers else { return };
        let one = &balancers.all[number];
        let last = one.said.last().filter(|_| balancers.dice.percent(30)).cloned();
        if let Some(word) = last.or_else(|| balancers.dice.pick(&one.said)) {
            self.propose_word(word);
        }
    }

    fn propose_word(&mut self, word: Requirements) -> Option<Ticket> {
        let mut dice = self.balancers.as_ref()?.dice.clone();
        let command = Command::from(SetRequirements { words: vec![word] });
        let ticket = self.propose_for_client(command, None, &mut dice);
        if let Some(balancers) = &mut self.balancers {
            balancers.dice = dice;
        }
        ticket
    }

    /// What of the groups is not as it has to be in the end; while there is anything, the quiet goes
    /// on.
    pub(crate) fn unsettled_groups(&self) -> Vec<String> {
        let Some(balancers) = &self.balancers else { return Vec::new() };
        let mut found = Vec::new();
        for number in 0..balancers.all.len() {
            if !self.is_heard(number) {
                let name = &balancers.all[number].name;
                found.push(format!("capacity: what {name} needs is not in the state"));
            }
        }
        let (truth, now) = (self.log.truth(), self.leaders_now());
        if let Some(pool) = truth.instance_pools().get(&POOL.into()) {
            ending::judge(truth, pool, now, &mut found);
        }
        found
    }
}
