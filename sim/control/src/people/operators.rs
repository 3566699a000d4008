//! Operators: they drain nodes and take them out of service, pause the broker, and tell the workers of a server at run time, at any step, to take some
//! kinds of evaluations, or none (`PUT /v1/agent/schedulers/config`). That ends every wait for work; what is leased is finished.

use std::collections::BTreeMap;

use chance::Dice;
use fsm::{
    Command, JobKind,
    command::SettingsCommand,
    job::EvaluateJob,
    node::{Drain, EvaluateNode, ReapNode, SetDrain, SetEligibility},
    settings::{SchedulerConfiguration, SetSchedulerConfiguration},
};

use super::World;
use crate::cluster::coverage::Event;

impl World {
    /// An operator drains the node that runs most, in one way or another.
    pub(crate) fn drain_a_busy_node(&mut self, dice: &mut Dice) {
        let truth = self.cluster.log.truth();
        let busy = self.cluster.agents.iter().max_by_key(|agent| agent.live_in(truth).len());
        let Some(node) = busy.map(|agent| agent.node) else { return };
        let started_at = truth.at();
        // One without a deadline has to be forced: otherwise it may wait for ever.
        let force = dice.percent(30);
        let ends = !force || dice.percent(50);
        let deadline_at = ends.then(|| started_at + dice.between(10, 300) * 1_000);
        let drain = Drain {
            started_at,
            deadline_at,
            force,
            ignore_system: dice.percent(30),
            owner: "operator".into(),
            cancelable: false,
        };
        let evaluation_ids = self.cluster.ids.evaluations(4);
        self.ask(Command::from(SetDrain {
            node,
            drain: Some(drain),
            mark_eligible: false,
            meta: BTreeMap::new(),
            evaluation_ids,
        }));
    }

    /// Somebody has every job evaluated at once: all workers plan at the same time.
    pub(crate) fn evaluate_everything(&mut self) {
        let jobs: Vec<_> =
            self.cluster.log.truth().jobs().iter().map(|row| row.key.clone()).collect();
        for job in jobs {
            let evaluation = self.cluster.ids.evaluation();
            self.ask(Command::from(EvaluateJob { job, force_reschedule: false, evaluation }));
        }
    }

    /// An operator pauses the broker, or lets it go on. What was asked for before and is not in the log does not come after it.
    pub(crate) fn pause(&mut self, pause_eval_broker: bool) {
        self.people.forget(|command| {
            matches!(command, Command::Settings(SettingsCommand::SetSchedulerConfiguration(_)))
        });
        let known = self.cluster.log.truth().scheduler_configuration().clone();
        let configuration = SchedulerConfiguration { pause_eval_broker, ..known };
        self.ask(Command::from(SetSchedulerConfiguration {
            configuration,
            keep_node_life: true,
            enforce_index: None,
        }));
    }

    /// Sometimes the workers of a server get other orders.
    pub(crate) fn order_workers(&mut self) {
        let cluster = &mut self.cluster;
        if !cluster.chance.percent(cluster.trouble.operators.orders) {
            return;
        }
        let server = cluster.chance.index(cluster.servers.len());
        let mut left_out = JobKind::ALL.to_vec();
        match cluster.chance.below(4) {
            0 | 1 => left_out.clear(),
            2 => {}
            _ => left_out.retain(|_| cluster.chance.percent(50)),
        }
        cluster.coverage.count(Event::WorkersOrdered);
        cluster.trace(|| format!("the workers of server {server} leave out {left_out:?}"));
        cluster.order_workers(server, left_out);
    }

    /// Sometimes an operator pauses the broker, or lets it go on.
    pub(crate) fn pause_now_and_then(&mut self) {
        if self.cluster.trouble.operators.pauses && self.cluster.chance.percent(3) {
            let pauses = self.cluster.chance.percent(50);
            self.pause(pauses);
        }
    }

    pub(super) fn draw_operator(&mut self, dice: &mut Dice) -> Command {
        let node = self.cluster.agents[dice.index(self.cluster.agents.len())].node;
        let evaluation_ids = self.cluster.ids.evaluations(2);
        let started_at = self.cluster.log.truth().at();
        match dice.below(10) {
            0..3 => Command::from(SetEligibility {
                node,
                eligible: dice.percent(60),
                by: "operator".into(),
                reason: "".into(),
                evaluation_ids,
            }),
            3..6 => {
                let unit_ms = if self.cluster.swarm.rich_nodes { 4_000 } else { 1_000 };
                let deadline_at = Some(started_at + dice.between(1, 60) * unit_ms);
                let drain = Drain {
                    started_at,
                    deadline_at,
                    force: dice.percent(20),
                    ignore_system: dice.percent(30),
                    owner: "operator".into(),
                    cancelable: false,
                };
                Command::from(SetDrain {
                    node,
                    drain: Some(drain),
                    mark_eligible: false,
                    meta: BTreeMap::new(),
                    evaluation_ids,
                })
            }
            6..8 => Command::from(SetDrain {
                node,
                drain: None,
                mark_eligible: true,
                meta: BTreeMap::new(),
                evaluation_ids,
            }),
            8 => Command::from(EvaluateNode { node, evaluation_ids }),
            _ => Command::from(ReapNode {
                node,
                incarnation: None,
                force: dice.percent(30),
                evaluation_ids,
            }),
        }
    }
}
