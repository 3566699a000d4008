//! The end of a schedule: nothing goes wrong any more, everything is delivered, time passes, and what was promised must come true.

use std::{collections::BTreeSet, sync::Arc};

use fsm::{
    Allocation, AllocationId, ClientStatus, EvaluationStatus, JobKey, Liveness, NodeId, State,
};

use super::Schedule;
use crate::{
    cluster::{agent::TaskTrouble, trouble::Trouble},
    invariants::{check_quiet, check_round_trip, check_state},
};
use chance::Dice;

/// Longest quiet time: suspended nodes come back after up to four hours, follow-ups of failed evaluations after six minutes.
const QUIET_MS_MAX: u64 = 45 * 60_000;
/// A job that no machine helped gets another try after a while: what that one makes may end before the pools are judged.
const SETTLE_MS_MAX: u64 = 10 * 60_000;
/// Rounds in which something was done, of a whole quiet time; more is a loop. Many children that fail and are tried again took more than 4,500, most of them at one time.
const ROUNDS_MAX: usize = 10_000;
/// Rounds in which a feature gets its time.
const SETTLE_ROUNDS: usize = 400;
/// Nothing changed for so long: it stays so.
const STILL_MS: u64 = 50_000;

impl Schedule {
    /// Ends all trouble and runs until nothing changes any more, then judges.
    pub(crate) fn end(&mut self, dice: &mut Dice) {
        let cluster = &mut self.world.cluster;
        cluster.swarm = cluster.swarm.calm();
        cluster.let_all_work();
        if cluster.trouble.operators.pauses {
            self.world.pause(false);
        }
        // A task that starts again once is no trouble: what is new comes up all the same.
        let cluster = &mut self.world.cluster;
        let restarts = cluster.trouble.tasks.restarts;
        cluster.trouble = Trouble::of_tasks(TaskTrouble { restarts, ..TaskTrouble::default() });
        for agent in &mut cluster.agents {
            agent.wake();
        }
        self.features.end_trouble(&mut self.world, dice);
        self.world.cluster.trace(|| "quiet from here".to_owned());
        self.settle(dice);
        self.quieten(dice);
        if self.world.cluster.failures.is_empty() && self.world.cluster.swarm.rich_nodes {
            self.change_nodes_in_the_quiet(dice);
        }
        if self.world.cluster.failures.is_empty() {
            self.judge_end();
        }
        if self.world.cluster.failures.is_empty() {
            self.evaluate_in_the_quiet(dice);
        }
    }

    /// Features that need the undisturbed cluster for some time get it.
    fn settle(&mut self, dice: &mut Dice) {
        for place in 0..self.features.count() {
            let Some(ms) = self.features.settle_ms(place, &mut self.world) else { continue };
            let ends = self.world.cluster.clock_ms + ms;
            for _ in 0..SETTLE_ROUNDS {
                let cluster = &self.world.cluster;
                if cluster.clock_ms >= ends || !cluster.failures.is_empty() {
                    break;
                }
                if !self.round(dice) {
                    self.world.cluster.clock_ms = self.next_look_ms().min(ends);
                }
            }
            let cluster = &self.world.cluster;
            let in_time = cluster.clock_ms >= ends && cluster.failures.is_empty();
            self.features.settled(place, &mut self.world, in_time);
        }
    }

    /// Agents register again with something new. While more happens, another gain of the same class would hide one that nobody heard of.
    fn change_nodes_in_the_quiet(&mut self, dice: &mut Dice) {
        self.world.cluster.trace(|| "nodes change in the quiet".to_owned());
        for agent in &mut self.world.cluster.agents {
            if dice.percent(30) {
                agent.moves(dice);
            }
        }
        self.quieten(dice);
    }

    /// I39: when everything that was promised is done, there is nothing to do: every job is evaluated once more, workers take the leases, and what
    /// runs stays what it is. What only now finds its room slept through its gain.
    fn evaluate_in_the_quiet(&mut self, dice: &mut Dice) {
        let before = self.world.cluster.log.truth().clone();
        self.world.cluster.trace(|| "every job is evaluated once more".to_owned());
        self.world.evaluate_everything();
        self.quieten(dice);
        let after = self.world.cluster.log.truth().clone();
        // A suspended node that came back meanwhile is room that nobody slept through.
        let health = |state: &fsm::State| {
            state.nodes().iter().map(|node| (node.id, node.health.clone())).collect::<Vec<_>>()
        };
        // So is a machine that came meanwhile: what kept its pool from making it was over.
        let machines = |state: &fsm::State| {
            state.instances().iter().map(|row| (row.id, row.node)).collect::<Vec<_>>()
        };
        if health(&before) != health(&after) || machines(&before) != machines(&after) {
            return;
        }
        let mut found = Vec::new();
        judge_evaluations(&after, &mut found);
        let moved = Moved::because_of(&before, &after, &self.world.cluster.failed_on);
        for row in before.allocations().iter().filter(|row| row.is_live()) {
            let is_live = after.allocations().get(&row.id).is_some_and(|now| now.is_live());
            if !is_live && !moved.explains_end(row) {
                found.push(format!("I39: {} goes because somebody asked", row.name()));
            }
        }
        let new = after.allocations().iter().filter(|row| !before.allocations().contains(&row.id));
        // One on a machine that came and went meanwhile had its room from there.
        let new = new.filter(|row| before.nodes().contains(&row.node));
        for row in new.filter(|row| !moved.explains(row)) {
            found.push(format!("I39: {} comes because somebody asked", row.name()));
        }
        for one in found {
            self.world.cluster.fail(format!("evaluated in the quiet: {one}"));
        }
    }

    /// Runs until nothing changes any more.
    fn quieten(&mut self, dice: &mut Dice) {
        let (began, mut changed_at, mut rounds) =
            (self.world.cluster.clock_ms, self.world.cluster.clock_ms, 0);
        while self.world.cluster.failures.is_empty() {
            if self.round(dice) {
                rounds += 1;
                if rounds > ROUNDS_MAX {
                    self.world.cluster.fail("liveness: something goes round and round".to_owned());
                    return;
                }
                changed_at = self.world.cluster.clock_ms;
                continue;
            }
            // Judged after a round that did nothing: what the last one brought about had its turn.
            let passed = self.world.cluster.clock_ms - began;
            let is_late = passed >= QUIET_MS_MAX + SETTLE_MS_MAX && !self.is_begun();
            if passed >= QUIET_MS_MAX && (is_late || self.rests()) {
                break;
            }
            let open = self.has_open_work();
            if !open && self.world.cluster.clock_ms - changed_at > STILL_MS {
                break;
            }
            self.world.cluster.clock_ms = self.next_look_ms();
        }
    }

    /// Nothing is about to happen: a pool's list goes out every few seconds, and a machine that comes late has the jobs that wait tried again.
    fn rests(&self) -> bool {
        let cluster = &self.world.cluster;
        let leader = cluster.servers[cluster.log.leader].leadership.as_ref();
        let blocked = cluster.log.truth().evaluations().iter();
        let mut blocked = blocked.filter(|row| row.status == EvaluationStatus::Blocked);
        let is_at_rest = leader.is_some_and(|leadership| {
            leadership.is_idle() && !blocked.any(|row| leadership.dispatch().holds(row.id))
        });
        is_at_rest && !self.is_begun() && !self.features.are_under_way(cluster)
    }

    /// A job has an evaluation that is new and not done: it may wait for its time, and the leader has nothing to do until then.
    fn is_begun(&self) -> bool {
        let cluster = &self.world.cluster;
        let leader = cluster.servers[cluster.log.leader].leadership.as_ref();
        let now = leader.map_or(0, |leadership| leadership.now(cluster.clock_ms));
        let mut rows = cluster.log.truth().evaluations().iter();
        rows.any(|row| {
            row.status == EvaluationStatus::Pending && row.created_at + SETTLE_MS_MAX > now
        })
    }

    fn has_open_work(&self) -> bool {
        let cluster = &self.world.cluster;
        let truth = cluster.log.truth();
        let pending = truth.evaluations().iter().any(|row| row.status == EvaluationStatus::Pending);
        // One that waits for room, and has no end, waits for ever.
        let mut drains = truth.nodes().iter().filter_map(|row| row.drain.as_ref());
        let draining = drains.any(|drain| drain.force || drain.deadline_at.is_some());
        // One that waits for an operator waits for ever.
        let mut suspended = truth.nodes().iter().filter_map(|row| row.suspension());
        let suspended = suspended.any(|one| one.until.is_some() || one.reason.ends_with_success());
        let unsettled = !self.features.unsettled(cluster).is_empty();
        let busy = cluster.workers.iter().any(|worker| !worker.is_idle());
        pending || draining || suspended || unsettled || busy || self.world.people.open() > 0
    }

    fn judge_end(&mut self) {
        let truth = self.world.cluster.log.truth().clone();
        let mut found = Vec::new();
        judge_evaluations(&truth, &mut found);
        self.judge_broker(&truth, &mut found);
        self.judge_agents(&truth, &mut found);
        found.extend(self.features.unsettled(&self.world.cluster));
        let broken = check_quiet(&truth, &self.world.cluster.failed_on).into_iter();
        let broken = broken.chain(check_round_trip(&truth)).chain(check_state(&truth));
        found.extend(broken.map(|broken| broken.to_string()));
        for one in found {
            self.world.cluster.fail(format!("at the end: {one}"));
        }
    }

    /// I25: the broker is empty exactly when nothing is pending, and every blocked evaluation is watched.
    fn judge_broker(&self, truth: &State, found: &mut Vec<String>) {
        let cluster = &self.world.cluster;
        let leader = &cluster.servers[cluster.log.leader].leadership;
        let Some(leadership) = leader else {
            found.push("liveness: there is no leader".to_owned());
            return;
        };
        if !leadership.is_idle() {
            found.push("liveness: the leader is not idle".to_owned());
        }
        for row in truth.evaluations().iter() {
            let (held, tracked) =
                (leadership.dispatch().holds(row.id), leadership.dispatch().tracks(row.id));
            let right = match row.status {
                EvaluationStatus::Pending => held,
                EvaluationStatus::Blocked => tracked && !held,
                EvaluationStatus::Complete
                | EvaluationStatus::Failed
                | EvaluationStatus::Canceled => !held && !tracked,
            };
            if !right {
                let status = row.status.name();
                found.push(format!(
                    "I25: evaluation {} is {status}, held: {held}, tracked: {tracked}",
                    row.id
                ));
            }
        }
    }

    fn judge_agents(&self, truth: &State, found: &mut Vec<String>) {
        let cluster = &self.world.cluster;
        for agent in &cluster.agents {
            let live = agent.live_in(truth);
            let node = truth.nodes().get(&agent.node);
            if agent.dead {
                let gone = node.is_none_or(|row| row.liveness == Liveness::Down);
                if !gone || !live.is_empty() {
                    let number = agent.number();
                    found.push(format!("I50: agent {number} is dead, its node is not down"));
                }
                continue;
            }
            if agent.is_too_late(truth) {
                continue;
            }
            // Whose check said no for good is not asked again before a person says so.
            let is_fatal = node.and_then(|row| row.suspension()).is_some_and(|suspension| {
                suspension.reason == fsm::node::SuspendReason::ReadinessFatal
            });
            if node.is_none_or(|row| row.liveness != Liveness::Ready && !is_fatal) {
                let liveness = node.map(|row| row.liveness);
                found.push(format!(
                    "I50: agent {} is there, its node is {liveness:?}",
                    agent.number()
                ));
            }
            let ends = |drain: &fsm::node::Drain| drain.force || drain.deadline_at.is_some();
            if node.is_some_and(|row| row.drain.as_ref().is_some_and(ends)) {
                found.push(format!("I48: the drain of {} did not end", agent.node));
            }
            let running: BTreeSet<_> = agent.running().collect();
            if running != live {
                found.push(format!(
                    "I49: agent {} runs {running:?}, wanted is {live:?}",
                    agent.number()
                ));
            }
            for row in truth.allocations_of_node(agent.node).filter(|row| row.is_live()) {
                if row.client != ClientStatus::Running {
                    found.push(format!("I39: {} is {}", row.name(), row.client.name()));
                }
            }
        }
    }
}

/// What may come and go when every job is evaluated once more: a per-node instance that ended is
/// replaced when somebody asks, may evict others for it, and these find another place. Who waits for
/// room takes what they leave.
struct Moved<'a> {
    replaced_on: &'a BTreeSet<NodeId>,
    /// An instance comes back in its own version while a deployment holds back the current one (ADR 18), and takes that one in place when somebody asks: with
    /// a lower priority it may be evicted from then on. Of a group that is not held nothing that is older would be left by now (I46).
    lowered: BTreeSet<AllocationId>,
    /// Jobs that lost something to what came.
    jobs: BTreeSet<JobKey>,
    /// What they lost; it may be collected by now.
    victims: BTreeSet<AllocationId>,
    /// Where they were: who came may need less than they had.
    vacated: BTreeSet<NodeId>,
}

impl<'a> Moved<'a> {
    fn because_of(before: &State, after: &State, replaced_on: &'a BTreeSet<NodeId>) -> Self {
        let live = before.allocations().iter().filter(|row| row.is_live());
        let lowered = live.filter(|row| is_lowered(before, after, row)).map(|row| row.id);
        let mut moved = Self {
            replaced_on,
            lowered: lowered.collect(),
            jobs: BTreeSet::new(),
            victims: BTreeSet::new(),
            vacated: BTreeSet::new(),
        };
        let new = |row: &&Arc<Allocation>| !before.allocations().contains(&row.id);
        let new: Vec<_> = after.allocations().iter().filter(new).collect();
        loop {
            let came = new.iter().filter(|row| moved.explains(row));
            let came: Vec<_> = came.filter(|row| !row.preempted.is_empty()).collect();
            let victims: BTreeSet<_> =
                came.iter().flat_map(|row| row.preempted.iter().copied()).collect();
            let vacated: BTreeSet<_> = came.iter().map(|row| row.node).collect();
            let row_of = |id| before.allocations().get(id).or_else(|| after.allocations().get(id));
            let jobs: BTreeSet<_> =
                victims.iter().filter_map(row_of).map(|row| row.job.clone()).collect();
            moved.victims.extend(victims);
            if jobs.is_subset(&moved.jobs) && vacated.is_subset(&moved.vacated) {
                return moved;
            }
            moved.jobs.extend(jobs);
            moved.vacated.extend(vacated);
        }
    }

    /// Why this one came.
    fn explains(&self, row: &Allocation) -> bool {
        let is_replacement = row.per_node && self.replaced_on.contains(&row.node);
        is_replacement
            || self.jobs.contains(&row.job)
            || self.vacated.contains(&row.node)
            || row.preempted.iter().any(|id| self.lowered.contains(id))
    }

    /// Why this one went.
    fn explains_end(&self, row: &Allocation) -> bool {
        self.victims.contains(&row.id)
    }
}

/// It was of an older version with a higher priority, and has taken the current one in place, as far as it can be told.
fn is_lowered(before: &State, after: &State, row: &Allocation) -> bool {
    let job = after.jobs().get(&row.job).filter(|job| job.create_index == row.job_create_index);
    let now = job.and_then(|job| Some((job.version, after.current_spec(job)?.priority)));
    let was = before.allocation_spec(row).map(|spec| spec.priority);
    let row_now = after.allocations().get(&row.id).map(|row| row.job_version);
    now.is_some_and(|(version, priority)| {
        row.job_version != version
            && row_now.is_none_or(|of| of == version)
            && was.is_some_and(|was| priority < was)
    })
}

/// I56: every evaluation is terminal, or blocked.
fn judge_evaluations(truth: &State, found: &mut Vec<String>) {
    for row in truth.evaluations().iter().filter(|row| row.status == EvaluationStatus::Pending) {
        found.push(format!("I56: evaluation {} of {} is pending", row.id, row.job));
    }
}
