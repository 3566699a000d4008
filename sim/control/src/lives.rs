//! Nodes that live and die: in half of the seeds checks of agents fail, nodes fail at what they are given, operators suspend nodes and take them
//! offline, settings of node life change, and many agents fall silent together. The settings are small, so that deadlines come within a schedule.
//! From dice of its own: no throw in here moves one of the older dice.

use fsm::{
    Command, JobSpec, NodeId,
    node::{EndMassLoss, Readiness, SetEligibility, SuspendNode, UnsuspendNode},
    settings::{NodeLife, SchedulerConfiguration, SetSchedulerConfiguration},
    testing,
};

use crate::{coverage::Event, world::World};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x6e6f_6465_6c69_6665;
/// Key of a job's meta whose value stays on nodes.
const AFFINITY: &str = "snapshot";
/// Operations under way above which nobody asks for more.
const OPERATIONS_MAX: usize = 8;
/// An agent fails its checks for so long, ms.
const SICK_MS: (u64, u64) = (3_000, 60_000);
/// A node fails at what it is given for so long, ms.
const BROKEN_MS: (u64, u64) = (0, 20_000);
/// What runs on a node when it breaks has failed within this time, ms.
const BREAKS_MS: u64 = 3_000;
/// Nodes are out of reach for so long, ms: a node is called down after 20 s.
const AWAY_MS: (u64, u64) = (25_000, 150_000);
/// The cluster runs for so long after nodes have gone, ms.
const WATCHED_MS: (u64, u64) = (25_000, 60_000);

/// Rounds in which the cluster does so, at most.
const ROUNDS_MAX: usize = 1_000;

/// What a seed's nodes go through.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of trouble of its own")]
pub(crate) struct Lives {
    /// Percent of steps before which something happens to a node.
    percent: u64,
    checks: bool,
    failures: bool,
    operators: bool,
    losses: bool,
}

/// What a seed's nodes go through; none: nothing new.
pub(crate) fn draw(seed: u64) -> Option<Lives> {
    let mut dice = dice(seed, u64::MAX);
    if dice.percent(50) {
        return None;
    }
    Some(Lives {
        percent: dice.between(2, 12),
        checks: dice.percent(60),
        failures: dice.percent(60),
        operators: dice.percent(60),
        losses: dice.percent(60),
    })
}

fn dice(seed: u64, step: u64) -> Dice {
    Dice::numbered(seed ^ LABEL, step)
}

impl World {
    /// Before the cluster forms: its settings of node life.
    pub(crate) fn set_first_node_life(&mut self, seed: u64) {
        if self.lives.is_some() {
            self.set_node_life(&mut dice(seed, u64::MAX - 1));
        }
    }

    /// Before a step: sometimes something happens to a node.
    pub(crate) fn live_and_die(&mut self, seed: u64, step: u32) {
        let Some(lives) = self.lives else { return };
        let mut dice = dice(seed, u64::from(step));
        if !dice.percent(lives.percent) || self.operations.len() > OPERATIONS_MAX {
            return;
        }
        let number = dice.index(self.agents.len());
        match dice.below(14) {
            0..3 if lives.checks => self.fall_sick(number, &mut dice),
            3..6 if lives.failures => self.break_nodes(number, &mut dice),
            6..9 if lives.operators => self.lend_a_hand(number, &mut dice),
            9 | 10 if lives.losses => self.lose_many(&mut dice),
            11 if lives.losses => {
                // The servers' own word comes early, too: it is refused then.
                let by = dice.percent(50).then(|| "ann@desk".into());
                self.ask(Command::from(EndMassLoss { by }));
            }
            12 => self.lose_one(number, &mut dice),
            13 => self.set_node_life(&mut dice),
            _ => {}
        }
    }

    /// A job leaves its name on the nodes that run it.
    pub(crate) fn leave_a_key(&self, spec: &mut JobSpec) {
        if self.lives.is_some() {
            spec.meta.insert(AFFINITY.into(), spec.key.id.clone());
        }
    }

    fn set_node_life(&mut self, dice: &mut Dice) {
        let mut pick = |choices: &[u64]| dice.pick(choices).expect("there are some");
        let small = |number: u64| u32::try_from(number).expect("it is small");
        let node_life = NodeLife {
            ready_deadline_ms: pick(&[20_000, 60_000, 600_000]),
            lost_grace_ms: pick(&[1_000, 10_000, 60_000]),
            tombstone_ms: pick(&[600_000, 86_400_000]),
            suspend_ms: pick(&[1_000, 8_000, 20_000]),
            suspend_ms_max: pick(&[20_000, 90_000]),
            strike_forgive_ms: pick(&[30_000, 86_400_000]),
            strike_window_ms: pick(&[2_000, 20_000, 300_000]),
            strike_failures: small(pick(&[1, 2, 2, 3])),
            suspended_percent_max: small(pick(&[25, 25, 0, 50, 100])),
            mass_loss_percent: small(pick(&[34, 34, 20, 60])),
            mass_loss_nodes_min: small(pick(&[2, 2, 3])),
            affinity_meta_key: AFFINITY.into(),
        };
        let known = self.log.truth().scheduler_configuration();
        self.ask(Command::from(SetSchedulerConfiguration {
            configuration: SchedulerConfiguration { node_life, ..known },
            keep_node_life: false,
            enforce_index: None,
        }));
    }

    /// An agent's checks fail for a while, the first of them after a task.
    fn fall_sick(&mut self, number: usize, dice: &mut Dice) {
        let sickness = if dice.percent(70) { Readiness::Retry } else { Readiness::Fatal };
        let until = self.clock_ms + dice.between(SICK_MS.0, SICK_MS.1);
        self.agents[number].falls_sick(sickness, until);
        self.trace(|| format!("the checks of agent {number} say {sickness:?} until {until}"));
    }

    /// A node, or several, fail at what they run, and for a while at what they are given.
    fn break_nodes(&mut self, first: usize, dice: &mut Dice) {
        let share = dice.pick(&[0, 0, 70]).unwrap_or(0);
        for number in 0..self.agents.len() {
            if number == first || dice.percent(share) {
                let until = self.clock_ms + dice.between(BROKEN_MS.0, BROKEN_MS.1);
                self.trace(|| format!("agent {number} fails at what it is given until {until}"));
                self.fail_by_node(number, until, BREAKS_MS, dice);
            }
        }
        if dice.percent(50) {
            self.watch(dice);
        }
    }

    /// An operator does something about a node.
    fn lend_a_hand(&mut self, number: usize, dice: &mut Dice) {
        let node = self.agents[number].node;
        let by = dice.pick(&["ann@desk", "bob@train"]).unwrap_or_default();
        let reason = format!("reason {}", dice.below(100));
        let (by, reason) = (by.into(), reason.as_str().into());
        let command = match dice.below(10) {
            0..3 => {
                let for_ms = dice.percent(70).then(|| dice.between(2_000, 90_000));
                Command::from(SuspendNode { node, by, reason, for_ms })
            }
            3..6 => Command::from(UnsuspendNode { node, by, reason }),
            choice => {
                let node = match choice {
                    6 => self.draining_node().unwrap_or(node),
                    7 => testing::node_id("nobody"),
                    _ => node,
                };
                let (eligible, evaluation_ids) = (choice == 9, self.evaluation_ids(2));
                Command::from(SetEligibility { node, eligible, by, reason, evaluation_ids })
            }
        };
        self.ask(command);
    }

    fn draining_node(&self) -> Option<NodeId> {
        let mut nodes = self.log.truth().nodes().iter();
        nodes.find(|node| node.drain.is_some()).map(|node| node.id)
    }

    /// Most agents are out of reach together, for about as long.
    fn lose_many(&mut self, dice: &mut Dice) {
        self.trace(|| "many nodes are out of reach".to_owned());
        for number in 0..self.agents.len() {
            if dice.percent(70) {
                self.silence(number, dice.between(AWAY_MS.0, AWAY_MS.1));
            }
        }
        self.watch(dice);
    }

    /// One node is out of reach, mostly one that is out of service, and what was asked for it is done before.
    fn lose_one(&mut self, number: usize, dice: &mut Dice) {
        let nodes = self.log.truth().nodes();
        let is_out = |id| nodes.get(id).is_some_and(|row| row.eligibility.ineligible);
        let out = self.agents.iter().position(|agent| is_out(&agent.node));
        let number = out.filter(|_| dice.percent(70)).unwrap_or(number);
        self.silence(number, dice.between(AWAY_MS.0, AWAY_MS.1));
        self.watch(dice);
    }

    /// The cluster runs for a while.
    pub(crate) fn watch(&mut self, dice: &mut Dice) {
        let until = self.clock_ms + dice.between(WATCHED_MS.0, WATCHED_MS.1);
        for _ in 0..ROUNDS_MAX {
            if self.clock_ms >= until || !self.failures.is_empty() {
                break;
            }
            if !self.round(dice) {
                self.clock_ms = self.next_look_ms();
            }
        }
    }

    /// Counts a report of an agent's check.
    pub(crate) fn note_check(&mut self, readiness: Readiness) {
        match readiness {
            Readiness::Ok => {}
            Readiness::Retry => self.coverage.count(Event::CheckFailed),
            Readiness::Fatal => self.coverage.count(Event::CheckFatal),
        }
    }
}
