//! Calm spells: the opposite of trouble. The cluster works undisturbed for some rounds, so that what follows meets jobs that run, drains that
//! are under way and stops that are not reported yet, and not only a cluster that never got so far.

use super::Schedule;
use crate::cluster::{coverage::Event, trouble::Trouble};

/// Rounds of a calm spell.
const CALM_ROUNDS: (u64, u64) = (3, 16);

impl Schedule {
    /// Before a step: sometimes a calm spell, which ends with something to do.
    pub(super) fn be_calm(&mut self) {
        let cluster = &mut self.world.cluster;
        if !cluster.chance.percent(cluster.trouble.calms) {
            return;
        }
        let mut dice = cluster.chance.clone();
        cluster.coverage.count(Event::Calm);
        cluster.trace(|| "a calm spell begins".to_owned());
        cluster.let_all_work();
        let (swarm, trouble) = (cluster.swarm.clone(), cluster.trouble.clone());
        cluster.swarm = swarm.calm();
        cluster.trouble = Trouble::of_tasks(trouble.tasks.clone());
        for _ in 0..dice.between(CALM_ROUNDS.0, CALM_ROUNDS.1) {
            self.round_or_wait(&mut dice);
        }
        let cluster = &mut self.world.cluster;
        (cluster.swarm, cluster.trouble) = (swarm, trouble);
        cluster.trace(|| "the calm spell is over".to_owned());
        match dice.below(8) {
            0..4 => self.world.drain_a_busy_node(&mut dice),
            4 | 5 => {
                let number = dice.index(cluster.agents.len());
                cluster.silence(number, dice.between(20_000, 300_000));
            }
            6 => {
                cluster.elect(&mut dice);
            }
            _ => self.world.evaluate_everything(),
        }
        self.world.cluster.chance = dice;
    }
}
