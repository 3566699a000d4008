//! Undisturbed rounds: everything that can happen now happens once, in a fixed order.

use chance::Dice;
use leader::limits::LOOK_MS_MAX;

use super::Schedule;
use crate::cluster::{Cluster, agent::Agent, worker::Worker};

/// Rounds in which the cluster forms.
const BEGIN_ROUNDS: usize = 5;
/// The cluster is watched for so long, ms.
const WATCHED_MS: (u64, u64) = (25_000, 60_000);
/// Rounds in which it is, at most.
const ROUNDS_MAX: usize = 1_000;

impl Schedule {
    /// Lets the cluster form, so that the schedule begins with something to break.
    pub(super) fn form(&mut self, dice: &mut Dice) {
        for _ in 0..BEGIN_ROUNDS {
            self.round(dice);
        }
    }

    /// The cluster runs for a while.
    pub(super) fn watch(&mut self, dice: &mut Dice) {
        let until = self.world.cluster.clock_ms + dice.between(WATCHED_MS.0, WATCHED_MS.1);
        for _ in 0..ROUNDS_MAX {
            let cluster = &self.world.cluster;
            if cluster.clock_ms >= until || !cluster.failures.is_empty() {
                break;
            }
            self.round_or_wait(dice);
        }
    }

    /// A round; time passes if nothing was to be done. Whether something was.
    pub(super) fn round_or_wait(&mut self, dice: &mut Dice) -> bool {
        let acted = self.round(dice);
        if !acted {
            self.world.cluster.clock_ms = self.next_look_ms();
        }
        acted
    }

    /// Everything that can happen now happens once. False: nothing changed but time may pass.
    pub(super) fn round(&mut self, dice: &mut Dice) -> bool {
        let mut acted = false;
        let cluster = &mut self.world.cluster;
        cluster.tell_time();
        for server in 0..cluster.servers.len() {
            acted |= cluster.notice(server);
        }
        while self.commit() {
            acted = true;
        }
        acted |= act_once(&mut self.world.cluster, dice);
        acted |= self.features.serve(&mut self.world.cluster);
        acted |= self.features.speak(&mut self.world.cluster);
        while self.world.people.open() > 0 && self.world.look_after(dice) {
            acted = true;
        }
        acted
    }

    /// When something happens by itself.
    pub(super) fn next_look_ms(&self) -> u64 {
        let cluster = &self.world.cluster;
        let leaders = cluster.servers.iter().filter_map(|server| server.leadership.as_ref());
        let leaders = leaders.filter_map(|leadership| leadership.next_look_ms(cluster.clock_ms));
        let workers = cluster.workers.iter().map(Worker::next_look_ms);
        let agents = cluster.agents.iter().filter_map(Agent::next_look_ms);
        let outside = self.features.next_look_ms();
        let next = leaders
            .chain(workers)
            .chain(agents)
            .chain(outside)
            .filter(|at| *at > cluster.clock_ms)
            .min();
        // Idle workers ask twice a second; a cluster in which nothing else is due is looked at every two seconds, as the server does.
        let idle = cluster.workers.iter().all(Worker::is_idle);
        let step = if idle { LOOK_MS_MAX } else { 500 };
        next.map_or(cluster.clock_ms + step, |at| {
            at.clamp(cluster.clock_ms + step, cluster.clock_ms + 8_000)
        })
    }
}

/// Servers, workers and agents act on what is committed. Whether anything of it matters.
fn act_once(cluster: &mut Cluster, dice: &mut Dice) -> bool {
    let mut acted = false;
    for server in 0..cluster.servers.len() {
        acted |= cluster.apply_up_to(server, cluster.log.last());
    }
    let leader = cluster.log.leader;
    acted |= cluster.establish(leader);
    acted |= cluster.feed(leader, dice);
    acted |= cluster.apply_plans(leader, dice);
    acted |= cluster.command(leader, dice);
    while cluster.deliver_first(dice) {
        acted = true;
    }
    for number in 0..cluster.workers.len() {
        let was_idle = cluster.workers[number].is_idle();
        let worked = cluster.work(number, dice);
        acted |= worked && !was_idle;
    }
    for number in 0..cluster.agents.len() {
        acted |= cluster.live(number, dice);
        acted |= cluster.end_task(number, dice, false);
    }
    acted
}
