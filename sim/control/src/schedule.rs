//! A schedule of one seed: a number of steps over the cluster, its people and the seed's features, and a quiet end.
//!
//! ```text
//!  form ─► (features before the step ─► the step's own dice choose what acts) × steps ─► quiet: everything promised comes true
//! ```
//!
//! Each step has dice of its own from (seed, number). Before a step the cluster may be left alone for a while: [`calm`], [`stretches`].

mod calm;
mod quiet;
mod round;
mod stretches;

use chance::Dice;

use self::stretches::Stretch;
use crate::{
    cluster::{Cluster, swarm::Swarm, trouble},
    feature::{Features, Watch},
    oracle::{self, Oracle, Seen},
    people::World,
};

/// Steps of a schedule.
pub(crate) const STEPS: u32 = 400;
/// Messages under way; above it a step delivers some.
const MAIL_MAX: usize = 64;
/// Choices made for one step until one can be done.
const TRIES: usize = 6;

/// A schedule under way.
pub(crate) struct Schedule {
    seed: u64,
    pub(crate) world: World,
    features: Features,
    oracle: Oracle,
    /// A long quiet time.
    stretch: Option<Stretch>,
}

impl Schedule {
    /// The schedule of a seed: its cluster has formed, so that it begins with something to break.
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut swarm = Swarm::draw(seed);
        let features = Features::draw(seed, &mut swarm);
        let mut cluster = Cluster::new(seed, swarm, traced);
        features.configure(&mut cluster);
        let (world, oracle) = (World::new(cluster), Oracle::default());
        let mut schedule = Self { seed, world, features, oracle, stretch: Stretch::draw(seed) };
        schedule.features.prepare(&mut schedule.world);
        schedule.form(&mut Dice::numbered(seed, u64::MAX - 3));
        schedule
    }

    /// Whether something was found that must not be.
    pub(crate) fn is_broken(&self) -> bool {
        !self.world.cluster.failures.is_empty()
    }

    /// One step, and what comes before it.
    pub(crate) fn step(&mut self, number: u32) {
        self.before_step(number);
        let mut dice = Dice::numbered(self.seed, u64::from(number));
        for _ in 0..TRIES {
            if self.try_step(&mut dice) {
                break;
            }
        }
        if self.world.cluster.mail.len() > MAIL_MAX {
            self.world.cluster.deliver(&mut dice);
        }
        self.features.serve(&mut self.world.cluster);
    }

    fn before_step(&mut self, number: u32) {
        for place in 0..self.features.count() {
            let watch = self.features.before_step(place, number, &mut self.world);
            if let Some(Watch(mut dice)) = watch {
                self.watch(&mut dice);
            }
        }
        self.world.cluster.chance = trouble::dice(self.seed, u64::from(number));
        self.world.pause_now_and_then();
        self.world.order_workers();
        self.world.cluster.fall_behind();
        self.be_quiet(number);
        self.be_calm();
    }

    fn try_step(&mut self, dice: &mut Dice) -> bool {
        let cluster = &mut self.world.cluster;
        let weights = [
            5,
            16,
            cluster.swarm.elections,
            cluster.swarm.applies,
            14,
            12,
            8,
            24,
            24,
            20,
            12,
            3,
            10,
            if cluster.swarm.agent_trouble { 2 } else { 0 },
            if cluster.swarm.task_failures { 4 } else { 1 },
        ];
        let mut left = dice.below(weights.iter().sum());
        let choice = weights.iter().position(|weight| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let server = dice.index(cluster.servers.len());
        match choice.unwrap_or(0) {
            0 => self.world.use_it(&mut self.features, dice),
            1 if cluster.log_is_stalled() => false,
            1 => {
                let committed = self.commit();
                for _ in 0..dice.below(3) {
                    self.commit();
                }
                committed
            }
            2 => cluster.elect(dice),
            3 if cluster.is_behind(server) => false,
            3 => cluster.apply_some(server, dice),
            4 => cluster.feed(cluster.acting(server, dice), dice),
            5 => cluster.apply_plans(cluster.acting(server, dice), dice),
            6 => cluster.command(cluster.acting(server, dice), dice),
            7 => cluster.work(dice.index(cluster.workers.len()), dice),
            8 => cluster.deliver(dice),
            9 => cluster.live(dice.index(cluster.agents.len()), dice),
            10 => cluster.pass_time(dice),
            11 => cluster.notice(server),
            12 => cluster.establish(cluster.log.leader),
            13 => cluster.disturb_agent(dice.index(cluster.agents.len()), dice),
            _ => cluster.end_task(
                dice.index(cluster.agents.len()),
                dice,
                cluster.swarm.task_failures,
            ),
        }
    }

    /// Commits one entry and judges it.
    fn commit(&mut self) -> bool {
        let Self { world: World { cluster, .. }, features, oracle, .. } = self;
        if !cluster.log.commit() {
            return false;
        }
        let index = cluster.log.last();
        let mut found = Vec::new();
        let before = cluster.log.state_at(index - 1).clone();
        if let Some(applied) = cluster.log.at(index) {
            let (log, gc, failed_on) = (&cluster.log, &cluster.swarm.gc, &cluster.failed_on);
            oracle.judge(&before, applied, &Seen { log, gc, failed_on }, &mut found);
            let (clock_ms, coverage) = (cluster.clock_ms, &mut cluster.coverage);
            oracle::note(&before, applied, coverage);
            features.judge((&before, applied), clock_ms, coverage, &mut found);
        }
        oracle::judge_whole(cluster.log.truth(), index, &mut found);
        cluster.trace_entry(index);
        for one in found {
            cluster.fail(format!("{one} (entry {index})"));
        }
        true
    }

    /// The log gives the same state on another server.
    pub(crate) fn check_replay(&mut self, reload_at: usize) {
        let cluster = &mut self.world.cluster;
        if let Some(broken) = oracle::check_replay(&cluster.log, reload_at) {
            cluster.fail(broken);
        }
    }
}
