//! Tenants: some seeds have namespaces and node pools that come and go, while jobs are registered, evaluated and ended in them. From dice of its own:
//! no throw in here moves one of the older dice, and three of four seeds have none of it.
//!
//! What is asked for together may come in any order: a namespace goes while a job comes into it, is new, waits for room, or has just ended.

use std::sync::Arc;

use fsm::{
    Command, JobKey,
    job::{DeregisterJob, EvaluateJob, RegisterJob},
    settings::{
        DeleteNamespace, DeleteNodePool, Namespace, NodePool, UpsertNamespace, UpsertNodePool,
    },
};

use super::{Feature, Watch};
use crate::people::{ShapeJobs, World};
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x7465_6e61_6e74_7331;
/// Namespaces; the first is always there.
const NAMESPACES: [&str; 3] = ["default", "red", "blue"];
/// Pools; the first is always there, of the second is a node in some seeds, and none is ever of the third.
const POOLS: [&str; 3] = ["default", "other", "spare"];
/// Jobs of each kind that a user has in each namespace.
const JOBS: [&str; 4] = ["job0", "job1", "job2", "once"];

/// The tenants of a seed.
pub(super) struct Tenants {
    seed: u64,
    /// Percent of steps before which one of them wants something.
    percent: u64,
}

impl Tenants {
    /// The tenants of a seed, if it has any.
    pub(super) fn draw(seed: u64) -> Option<Self> {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
        if dice.percent(75) {
            return None;
        }
        Some(Self { seed, percent: dice.between(1, 8) })
    }
}

impl Feature for Tenants {
    /// Sometimes a tenant wants something, or several things at once.
    fn before_step(
        &mut self,
        number: u32,
        world: &mut World,
        shapers: &mut dyn ShapeJobs,
    ) -> Option<Watch> {
        let mut dice = Dice::numbered(self.seed ^ LABEL, u64::from(number));
        if !dice.percent(self.percent) {
            return None;
        }
        let namespace = draw_name(&NAMESPACES, &mut dice);
        let pool = draw_name(&POOLS, &mut dice);
        for _ in 0..dice.between(1, 2) {
            let mut asked = Asked { namespace, pool, world: &mut *world, shapers: &mut *shapers };
            let command = asked.draw(&mut dice);
            world.ask(command);
        }
        None
    }
}

/// What a tenant asks for, and where.
struct Asked<'a> {
    namespace: &'static str,
    pool: &'static str,
    world: &'a mut World,
    shapers: &'a mut dyn ShapeJobs,
}

impl Asked<'_> {
    fn draw(&mut self, dice: &mut Dice) -> Command {
        let Self { namespace, pool, .. } = *self;
        match dice.below(12) {
            0..2 => Command::from(UpsertNamespace {
                namespace: Namespace {
                    name: namespace.into(),
                    description: dice.pick(&["", "ours"]).unwrap_or("").into(),
                    ..Namespace::default()
                },
            }),
            2 | 3 => Command::from(DeleteNamespace { name: namespace.into() }),
            4 => Command::from(UpsertNodePool {
                pool: NodePool {
                    name: pool.into(),
                    description: dice.pick(&["", "fast"]).unwrap_or("").into(),
                    ..NodePool::default()
                },
            }),
            5 | 6 => Command::from(DeleteNodePool { name: pool.into() }),
            _ => self.draw_job(dice),
        }
    }

    /// Mostly a job comes or changes, sometimes it is evaluated or ends.
    fn draw_job(&mut self, dice: &mut Dice) -> Command {
        let Self { namespace, pool, .. } = *self;
        let evaluation = self.world.cluster.ids.evaluation();
        let name = dice.pick(&JOBS).unwrap_or("job0");
        let key = JobKey::new(namespace, name);
        let choice =
            if self.world.cluster.log.truth().jobs().contains(&key) { dice.below(10) } else { 0 };
        match choice {
            0..5 => {
                let mut spec = self.world.draw_job(name, self.shapers, dice);
                spec.key = key;
                if dice.percent(40) {
                    spec.node_pool = pool.into();
                }
                let spec = Arc::new(spec);
                let (enforce_index, evaluation_priority) = (None, None);
                Command::from(RegisterJob {
                    enforce_index,
                    evaluation_priority,
                    ..RegisterJob::new(spec, evaluation)
                })
            }
            5 | 6 => Command::from(EvaluateJob { job: key, force_reschedule: false, evaluation }),
            _ => {
                let purge = dice.percent(30);
                Command::from(DeregisterJob {
                    job: key,
                    purge,
                    evaluation,
                    evaluation_priority: None,
                    no_shutdown_delay: false,
                })
            }
        }
    }
}

/// Mostly not the first.
fn draw_name(names: &[&'static str; 3], dice: &mut Dice) -> &'static str {
    names[if dice.percent(10) { 0 } else { 1 + dice.index(2) }]
}
