//! Nodes that live and die: in half of the seeds checks of agents fail, nodes fail at what they are given, operators suspend nodes and take them
//! offline, settings of node life change, and many agents fall silent together. The settings are small, so that deadlines come within a schedule.
//! From dice of its own: no throw in here moves one of the older dice.

use fsm::{
    Command, JobSpec, NodeId, State,
    node::{EndMassLoss, Readiness, SetEligibility, SuspendNode, UnsuspendNode},
    settings::{NodeLife, SchedulerConfiguration, SetSchedulerConfiguration},
    testing,
};

use super::{Feature, Stage, Watch};
use crate::{
    cluster::{Cluster, coverage::Coverage, swarm::Swarm},
    people::{ShapeJobs, World},
};
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

/// What a seed's nodes go through.
#[expect(clippy::struct_excessive_bools, reason = "each is a kind of trouble of its own")]
pub(super) struct Lives {
    seed: u64,
    /// Percent of steps before which something happens to a node.
    percent: u64,
    checks: bool,
    failures: bool,
    operators: bool,
    losses: bool,
}

impl Lives {
    /// What a seed's nodes go through; none: nothing new. Agents check their nodes then.
    pub(super) fn draw(seed: u64, swarm: &mut Swarm) -> Option<Self> {
        let mut dice = dice(seed, u64::MAX);
        if dice.percent(50) {
            return None;
        }
        swarm.checks_after_tasks = true;
        Some(Self {
            seed,
            percent: dice.between(2, 12),
            checks: dice.percent(60),
            failures: dice.percent(60),
            operators: dice.percent(60),
            losses: dice.percent(60),
        })
    }
}

fn dice(seed: u64, step: u64) -> Dice {
    Dice::numbered(seed ^ LABEL, step)
}

impl Feature for Lives {
    /// The first settings of node life.
    fn prepare(&mut self, world: &mut World, _shapers: &mut dyn ShapeJobs) {
        set_node_life(world, &mut dice(self.seed, u64::MAX - 1));
    }

    /// Sometimes something happens to a node.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        _shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let mut dice = dice(self.seed, u64::from(number));
        if !dice.percent(self.percent) || world.people.open() > OPERATIONS_MAX {
            return None;
        }
        let number = dice.index(world.cluster.agents.len());
        match dice.below(14) {
            0..3 if self.checks => fall_sick(&mut world.cluster, number, &mut dice),
            3..6 if self.failures => return break_nodes(&mut world.cluster, number, dice),
            6..9 if self.operators => lend_a_hand(world, number, &mut dice),
            9 | 10 if self.losses => return Some(lose_many(&mut world.cluster, dice)),
            11 if self.losses => {
                // The servers' own word comes early, too: it is refused then.
                let by = dice.percent(50).then(|| "ann@desk".into());
                world.ask(Command::from(EndMassLoss { by }));
            }
            12 => return Some(lose_one(&mut world.cluster, number, dice)),
            13 => set_node_life(world, &mut dice),
            _ => {}
        }
        None
    }

    /// A job leaves its name on the nodes that run it.
    fn shape(&mut self, stage: Stage, spec: &mut JobSpec, _coverage: &mut Coverage) {
        if stage == Stage::Updates {
            spec.meta.insert(AFFINITY.into(), spec.key.id.clone());
        }
    }
}

fn set_node_life(world: &mut World, dice: &mut Dice) {
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
    let known = world.cluster.log.truth().scheduler_configuration();
    world.ask(Command::from(SetSchedulerConfiguration {
        configuration: SchedulerConfiguration { node_life, ..known },
        keep_node_life: false,
        enforce_index: None,
    }));
}

/// An agent's checks fail for a while, the first of them after a task.
fn fall_sick(cluster: &mut Cluster, number: usize, dice: &mut Dice) {
    let sickness = if dice.percent(70) { Readiness::Retry } else { Readiness::Fatal };
    let until = cluster.clock_ms + dice.between(SICK_MS.0, SICK_MS.1);
    cluster.agents[number].falls_sick(sickness, until);
    cluster.trace(|| format!("the checks of agent {number} say {sickness:?} until {until}"));
}

/// A node, or several, fail at what they run, and for a while at what they are given.
fn break_nodes(cluster: &mut Cluster, first: usize, mut dice: Dice) -> Option<Watch> {
    let share = dice.pick(&[0, 0, 70]).unwrap_or(0);
    for number in 0..cluster.agents.len() {
        if number == first || dice.percent(share) {
            let until = cluster.clock_ms + dice.between(BROKEN_MS.0, BROKEN_MS.1);
            cluster.trace(|| format!("agent {number} fails at what it is given until {until}"));
            cluster.fail_by_node(number, until, BREAKS_MS, &mut dice);
        }
    }
    dice.percent(50).then_some(Watch(dice))
}

/// An operator does something about a node.
fn lend_a_hand(world: &mut World, number: usize, dice: &mut Dice) {
    let node = world.cluster.agents[number].node;
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
                6 => draining_node(world.cluster.log.truth()).unwrap_or(node),
                7 => testing::node_id("nobody"),
                _ => node,
            };
            let (eligible, evaluation_ids) = (choice == 9, world.cluster.ids.evaluations(2));
            Command::from(SetEligibility { node, eligible, by, reason, evaluation_ids })
        }
    };
    world.ask(command);
}

fn draining_node(state: &State) -> Option<NodeId> {
    let mut nodes = state.nodes().iter();
    nodes.find(|node| node.drain.is_some()).map(|node| node.id)
}

/// Most agents are out of reach together, for about as long.
fn lose_many(cluster: &mut Cluster, mut dice: Dice) -> Watch {
    cluster.trace(|| "many nodes are out of reach".to_owned());
    for number in 0..cluster.agents.len() {
        if dice.percent(70) {
            cluster.silence(number, dice.between(AWAY_MS.0, AWAY_MS.1));
        }
    }
    Watch(dice)
}

/// One node is out of reach, mostly one that is out of service, and what was asked for it is done before.
fn lose_one(cluster: &mut Cluster, number: usize, mut dice: Dice) -> Watch {
    let nodes = cluster.log.truth().nodes();
    let is_out = |id| nodes.get(id).is_some_and(|row| row.eligibility.ineligible);
    let out = cluster.agents.iter().position(|agent| is_out(&agent.node));
    let number = out.filter(|_| dice.percent(70)).unwrap_or(number);
    cluster.silence(number, dice.between(AWAY_MS.0, AWAY_MS.1));
    Watch(dice)
}
