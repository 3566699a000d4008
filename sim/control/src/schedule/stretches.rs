//! Long quiet times: in one of four seeds the cluster is left alone for many minutes, as it mostly is, and now and then something small happens: a node
//! is out of reach for a while or begins anew, an operator drains one and takes back others, a job is evaluated. What has deadlines of minutes, or would
//! stand still until somebody happens to look, shows only here. From dice of its own: no throw in here moves one of the older dice.

use fsm::{
    Command,
    job::RegisterJob,
    node::{SetDrain, SetEligibility},
};

use super::{STEPS, Schedule};
use crate::{
    cluster::{agent::TaskTrouble, coverage::Event, trouble::Trouble},
    people::World,
};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x7374_7265_7463_6831;
/// How long it is quiet, ms: longer than a node may take to become ready.
const LENGTH_MS: (u64, u64) = (11 * 60_000, 25 * 60_000);
/// A machine takes so long until it is ready, ms: also longer than the servers wait.
const UNREADY_MS: [u64; 3] = [30_000, 12 * 60_000, 12 * 60_000];
/// Percent of the times at which nothing is left to do but to wait, at which something happens.
const HAPPENS: u64 = 5;

/// When a seed's quiet time comes, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    step: u32,
    length_ms: u64,
}

impl Stretch {
    /// The quiet time of a seed, if it has one.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        if !dice.percent(25) {
            return None;
        }
        let step = u32::try_from(dice.below(u64::from(STEPS))).expect("it is below a u32");
        Some(Self { step, length_ms: dice.between(LENGTH_MS.0, LENGTH_MS.1) })
    }
}

impl Schedule {
    /// Before a step: the quiet time, if it comes now.
    pub(super) fn be_quiet(&mut self, number: u32) {
        let Some(Stretch { length_ms, .. }) = self.stretch.filter(|one| one.step == number) else {
            return;
        };
        let mut dice = Dice::numbered(self.seed ^ LABEL, u64::from(number));
        let cluster = &mut self.world.cluster;
        cluster.coverage.count(Event::Stretch);
        cluster.trace(|| format!("a quiet time of {length_ms} ms begins"));
        cluster.let_all_work();
        let tasks = TaskTrouble { restarts: true, ..TaskTrouble::default() };
        let calm = cluster.swarm.calm();
        let swarm = std::mem::replace(&mut cluster.swarm, calm);
        let trouble = std::mem::replace(&mut cluster.trouble, Trouble::of_tasks(tasks));
        let until = cluster.clock_ms + length_ms;
        self.spread_a_service(&mut dice);
        let cluster = &mut self.world.cluster;
        if dice.percent(40) {
            let number = dice.index(cluster.agents.len());
            cluster.restart_machine(number, dice.pick(&UNREADY_MS).unwrap_or(0));
        }
        while self.world.cluster.clock_ms < until && self.world.cluster.failures.is_empty() {
            if self.round(&mut dice) {
                continue;
            }
            if dice.percent(HAPPENS) {
                let_something_happen(&mut self.world, &mut dice);
            }
            self.world.cluster.clock_ms = self.next_look_ms();
        }
        let cluster = &mut self.world.cluster;
        (cluster.swarm, cluster.trouble) = (swarm, trouble);
        cluster.trace(|| "the quiet time is over".to_owned());
    }

    /// A user wants several small instances of a service: of what is on one node all has to find another, one after the other.
    fn spread_a_service(&mut self, dice: &mut Dice) {
        let mut spec = self.world.draw_job("job0", &mut self.features, dice);
        for group in &mut spec.groups {
            group.count = group.count.max(3);
            group.network = None;
            for task in &mut group.tasks {
                task.resources.cpu_mhz = 100;
            }
        }
        let (spec, evaluation) = (spec.into(), self.world.cluster.ids.evaluation());
        let (enforce_index, evaluation_priority) = (None, None);
        self.world.ask(Command::from(RegisterJob {
            enforce_index,
            evaluation_priority,
            ..RegisterJob::new(spec, evaluation)
        }));
    }
}

/// An operator is done with the nodes that are out of service.
fn take_back_nodes(world: &mut World) {
    let nodes = world.cluster.log.truth().nodes().iter();
    let done = nodes.filter(|node| node.eligibility.ineligible && node.drain.is_none());
    let done: Vec<_> = done.map(|node| (node.id, node.eligibility.by_drain)).collect();
    for (node, by_drain) in done {
        let evaluation_ids = world.cluster.ids.evaluations(2);
        world.ask(if by_drain {
            let (drain, mark_eligible) = (None, true);
            Command::from(SetDrain {
                node,
                drain,
                mark_eligible,
                meta: std::collections::BTreeMap::new(),
                evaluation_ids,
            })
        } else {
            let (by, reason) = ("operator".into(), "".into());
            let eligible = true;
            Command::from(SetEligibility { node, eligible, by, reason, evaluation_ids })
        });
    }
}

fn let_something_happen(world: &mut World, dice: &mut Dice) {
    let number = dice.index(world.cluster.agents.len());
    match dice.below(10) {
        0..5 => {
            take_back_nodes(world);
            world.drain_a_busy_node(dice);
        }
        5..8 => world.cluster.silence(number, dice.between(15_000, 90_000)),
        8 => world.cluster.restart_machine(number, dice.pick(&UNREADY_MS).unwrap_or(0)),
        _ => world.evaluate_everything(),
    }
}
