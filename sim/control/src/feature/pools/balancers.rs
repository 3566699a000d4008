//! Load balancers: in half of the seeds that have a pool it declares capacity groups, and sources say
//! what they need of them. They change their mind, say nothing for a while, say a thing twice, start
//! anew in a new epoch or in one that is older than their last, and old words of theirs come late. When nothing is in the way they repeat
//! themselves, and speak to each new leader. Nobody says a word again that was lost: the next one
//! replaces it. From dice of its own: seeds without groups are what they were.
//!
//! What is owed is judged after each entry by [`super::capacity`], from the words in the log, and at
//! the end in [`ending`].

mod ending;

use std::{collections::BTreeMap, sync::Arc};

use chance::Dice;
use fsm::{
    CapacityGroup, Command, State, Text,
    capacity::{BusyRule, Prediction, Requirements, SetRequirements},
    limits::CAPACITY_MS_MAX,
    pool::InstancePool,
    testing,
};

use super::POOL;
use crate::cluster::{
    Cluster,
    coverage::Event,
    log::{Fate, Ticket},
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
pub(super) struct Balancers {
    seed: u64,
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
    /// The balancers of a seed that has a pool; none: its pool has no groups.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = self::dice(seed, u64::MAX);
        if dice.percent(50) {
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
        Some(Self { seed, percent, groups, all, are_done: false, dice })
    }

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

    /// Before a step: sometimes a balancer speaks, or does what it should not.
    pub(super) fn before_step(&mut self, step: u64, cluster: &mut Cluster) {
        self.dice = dice(self.seed, step);
        if !self.dice.percent(self.percent) {
            return;
        }
        let number = self.dice.index(self.all.len());
        let choice = self.dice.below(20);
        let one = &mut self.all[number];
        match choice {
            0..8 => {
                one.need = draw_need(&self.groups, &mut self.dice);
                let ttl_ms = if self.dice.percent(50) { None } else { Some(20_000) };
                self.say(cluster, number, ttl_ms);
            }
            8..12 => {
                self.say(cluster, number, None);
            }
            12..16 => self.say_again(cluster, number),
            16 | 17 => {
                (one.seq, one.is_silent) = (0, false);
                if one.epoch > 1 && self.dice.percent(40) {
                    one.epoch -= 1;
                    cluster.coverage.count(Event::SourceFellBack);
                } else {
                    one.epoch += 1;
                    cluster.coverage.count(Event::SourceRestarted);
                }
                self.say(cluster, number, None);
            }
            _ => one.is_silent = true,
        }
    }

    /// In the end the pool is there, with its groups: dice for it.
    pub(super) fn declare_for_good(&mut self) -> Dice {
        self.are_done = true;
        self.dice.clone()
    }

    /// In an undisturbed round, every balancer that speaks says what it needs, unless the leader has
    /// heard it lately.
    pub(super) fn repeat(&mut self, cluster: &mut Cluster) -> bool {
        let (count, ttl_ms) = (self.all.len(), self.undisturbed_ms());
        let mut acted = false;
        for number in 0..count {
            // One that is refused for its epoch is heard when its older words have expired.
            let spoke = self.all[number].said_at;
            let may_speak = spoke != Some(cluster.clock_ms);
            acted |= may_speak
                && !self.is_heard(cluster, number)
                && self.say(cluster, number, Some(ttl_ms));
        }
        acted
    }

    /// Groups that a source can speak of now, and what it needs of them.
    fn need_of(truth: &State, one: &Balancer) -> BTreeMap<Text, u64> {
        let declared = |name: &Text| truth.capacity_group(name).is_some();
        let need = one.need.iter().filter(|(name, _)| declared(name));
        need.map(|(name, amount)| (name.clone(), *amount)).collect()
    }

    /// What a balancer needs was said to the leader, and holds; or it does not speak.
    fn is_heard(&self, cluster: &Cluster, number: usize) -> bool {
        let one = &self.all[number];
        let need = Self::need_of(cluster.log.truth(), one);
        let ttl_ms = self.undisturbed_ms();
        let Some(row) = cluster.log.truth().capacity_sources().get(&one.name) else {
            return one.is_silent || need.is_empty();
        };
        let said = row.amounts.iter().map(|(name, asked)| (name, asked.amount));
        let is_there = row.expired_at == 0
            && row.heard_term == cluster.log.term
            && row.ttl_ms == ttl_ms
            && cluster.leaders_now() < row.heard_at + ttl_ms / 2
            && (row.epoch, row.seq) == (one.epoch, one.seq)
            && said.eq(need.iter().map(|(name, amount)| (name, *amount)));
        one.is_silent || is_there
    }

    /// A balancer says what it needs, unless its last word is on its way.
    fn say(&mut self, cluster: &mut Cluster, number: usize, ttl_ms: Option<u64>) -> bool {
        let one = &self.all[number];
        if one.is_silent || one.ticket.is_some_and(|last| cluster.log.fate(last) == Fate::Open) {
            return false;
        }
        let amounts = Self::need_of(cluster.log.truth(), one);
        let one = &mut self.all[number];
        one.seq += 1;
        one.said_at = Some(cluster.clock_ms);
        let (source, epoch, seq) = (one.name.clone(), one.epoch, one.seq);
        let word = Requirements { source, epoch, seq, ttl_ms, amounts };
        if one.said.len() >= SAID_MAX {
            one.said.remove(0);
        }
        one.said.push(word.clone());
        let ticket = self.propose_word(cluster, word);
        self.all[number].ticket = ticket;
        ticket.is_some()
    }

    /// An old word comes late, or the last one comes twice.
    fn say_again(&mut self, cluster: &mut Cluster, number: usize) {
        let one = &self.all[number];
        let last = one.said.last().filter(|_| self.dice.percent(30)).cloned();
        if let Some(word) = last.or_else(|| self.dice.pick(&one.said)) {
            self.propose_word(cluster, word);
        }
    }

    fn propose_word(&mut self, cluster: &mut Cluster, word: Requirements) -> Option<Ticket> {
        let command = Command::from(SetRequirements { words: vec![word] });
        cluster.propose_for_client(command, None, &mut self.dice)
    }

    /// What of the groups is not as it has to be in the end; while there is anything, the quiet goes
    /// on.
    pub(super) fn unsettled(&self, cluster: &Cluster) -> Vec<String> {
        let mut found = Vec::new();
        for number in 0..self.all.len() {
            if !self.is_heard(cluster, number) {
                let name = &self.all[number].name;
                found.push(format!("capacity: what {name} needs is not in the state"));
            }
        }
        let (truth, now) = (cluster.log.truth(), cluster.leaders_now());
        if let Some(pool) = truth.instance_pools().get(&POOL.into()) {
            ending::judge(truth, pool, now, &mut found);
        }
        found
    }
}
