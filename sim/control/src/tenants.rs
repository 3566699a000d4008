//! Tenants: some seeds have namespaces and node pools that come and go, while jobs are registered, evaluated and ended in them. From dice of its own:
//! no throw in here moves one of the older dice, and three of four seeds have none of it.
//!
//! What is asked for together may come in any order: a namespace goes while a job comes into it, is new, waits for room, or has just ended.

use std::sync::Arc;

use fsm::{
    Command, EvaluationId, JobKey,
    job::{DeregisterJob, EvaluateJob, RegisterJob},
    settings::{
        DeleteNamespace, DeleteNodePool, Namespace, NodePool, UpsertNamespace, UpsertNodePool,
    },
};

use crate::world::World;
use chance::Dice;

/// Makes these dice others than all older ones.
const LABEL: u64 = 0x7465_6e61_6e74_7331;
/// Namespaces; the first is always there.
const NAMESPACES: [&str; 3] = ["default", "red", "blue"];
/// Pools; the first is always there, of the second is a node in some seeds, and none is ever of the third.
const POOLS: [&str; 3] = ["default", "other", "spare"];
/// Jobs of each kind that a user has in each namespace.
const JOBS: [&str; 4] = ["job0", "job1", "job2", "once"];

/// Percent of a seed's steps before which a tenant wants something.
pub(crate) fn draw(seed: u64) -> u64 {
    let mut dice = Dice::numbered(seed ^ LABEL, u64::MAX);
    if dice.percent(75) { 0 } else { dice.between(1, 8) }
}

impl World {
    /// Before a step: sometimes a tenant wants something, or several things at once.
    pub(crate) fn hear_tenants(&mut self, seed: u64, number: u32) {
        let mut dice = Dice::numbered(seed ^ LABEL, u64::from(number));
        if !dice.percent(self.tenants) {
            return;
        }
        let namespace = draw_name(&NAMESPACES, &mut dice);
        let pool = draw_name(&POOLS, &mut dice);
        for _ in 0..dice.between(1, 2) {
            let command = self.draw_for_tenant(namespace, pool, &mut dice);
            self.ask(command);
        }
    }

    fn draw_for_tenant(&mut self, namespace: &str, pool: &str, dice: &mut Dice) -> Command {
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
            _ => self.draw_job_of_tenant(namespace, pool, dice),
        }
    }

    /// Mostly a job comes or changes, sometimes it is evaluated or ends.
    fn draw_job_of_tenant(&mut self, namespace: &str, pool: &str, dice: &mut Dice) -> Command {
        let evaluation = EvaluationId(self.ids.next());
        let name = dice.pick(&JOBS).unwrap_or("job0");
        let key = JobKey::new(namespace, name);
        let choice = if self.log.truth().jobs().contains(&key) { dice.below(10) } else { 0 };
        match choice {
            0..5 => {
                let mut spec = self.draw_job(name, dice);
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
