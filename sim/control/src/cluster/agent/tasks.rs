//! What runs on a fake agent: allocations whose tasks start, fail and start again, stop and end, each in its time.

use std::collections::BTreeMap;

use fsm::{
    Allocation, AllocationId, ClientStatus, DeploymentId, JobKey, Text,
    allocation::{LiveName, TaskState},
};

use super::Agent;
use crate::cluster::{Cluster, coverage::Event};
use chance::Dice;

/// A task that fails soon after its start does so within this time, ms.
const RESTARTS_MS: (u64, u64) = (100, 12_000);
/// It waits for so long until it starts again, ms.
const RESTART_DELAY_MS: (u64, u64) = (50, 4_000);

/// What runs for so long without a break is healthy, ms.
const HEALTHY_MS: u64 = 1_000;

/// Why a node fails at what it is given.
const NODE_FAILURE: &str = "no executor";

/// What a broken node starts fails after this, ms: time has to pass, or it is replaced there without end.
const FAILS_MS: u64 = 1_000;

/// What goes wrong with tasks.
#[derive(Clone, Debug, Default)]
pub(crate) struct TaskTrouble {
    /// They take their time to start.
    pub(crate) slow_starts: bool,
    /// They fail soon after their start, and start again where they are.
    pub(crate) restarts: bool,
    /// They take their time to stop.
    pub(crate) slow_stops: bool,
}

/// What runs here, or ran and is not forgotten.
pub(super) struct Local {
    pub(super) job: JobKey,
    pub(super) name: LiveName,
    pub(super) status: ClientStatus,
    pub(super) sequence: u64,
    pub(super) reported: u64,
    pub(super) ends_by_itself: bool,
    pub(super) crashes: bool,
    /// It failed by its node's fault: why.
    pub(super) node_failure: Option<Text>,
    /// Is pending until then.
    pub(super) starts_at: Option<u64>,
    /// Was told to stop, and has until then.
    pub(super) stops_at: Option<u64>,
    /// One of its tasks fails then.
    restarts_at: Option<u64>,
    /// The one that failed starts again then.
    again_at: Option<u64>,
    /// Fails then, whatever its restart policy says.
    pub(super) fails_at: Option<u64>,
    /// That is its node's fault.
    fails_by_node: bool,
    /// The deployment in which its health is said.
    deployment: Option<DeploymentId>,
    health: Option<bool>,
    /// It is healthy then, if it runs on.
    healthy_at: Option<u64>,
    /// By the name of each task; the node's clock.
    tasks: BTreeMap<Text, TaskState>,
    /// What the last report said of them, with its sequence number.
    sent: (u64, BTreeMap<Text, TaskState>),
    /// What the servers have of them; none: not known.
    told: Option<BTreeMap<Text, TaskState>>,
}

impl Local {
    /// One that the servers show, and that is as it says from the beginning.
    pub(super) fn new(row: &Allocation, tasks: Vec<Text>, status: ClientStatus) -> Self {
        Self {
            job: row.job.clone(),
            name: row.live_name(),
            status,
            sequence: row.client_sequence + 1,
            reported: row.client_sequence,
            ends_by_itself: false,
            crashes: false,
            node_failure: None,
            starts_at: None,
            stops_at: None,
            restarts_at: None,
            again_at: None,
            fails_at: None,
            fails_by_node: false,
            deployment: row.deployment.map(|own| own.id),
            health: row.deployment.and_then(|own| own.is_healthy()),
            healthy_at: None,
            tasks: tasks.into_iter().map(|name| (name, TaskState::default())).collect(),
            sent: (0, BTreeMap::new()),
            told: None,
        }
    }

    /// When something happens to it by itself.
    pub(super) fn next_look_ms(&self) -> Option<u64> {
        let times = [
            self.starts_at,
            self.stops_at,
            self.restarts_at,
            self.again_at,
            self.fails_at,
            self.healthy_at,
        ];
        times.into_iter().flatten().min()
    }

    /// All of its tasks start.
    fn start(&mut self, wall_ms: u64, restarts_at: Option<u64>) {
        self.status = ClientStatus::Running;
        self.restarts_at = restarts_at;
        for task in self.tasks.values_mut() {
            task.started_at_ms = wall_ms;
        }
    }

    /// It is over.
    fn end(&mut self, status: ClientStatus) {
        self.status = status;
        self.sequence += 1;
        (self.stops_at, self.restarts_at) = (None, None);
        (self.again_at, self.fails_at, self.healthy_at) = (None, None, None);
        self.health = self.health.or(Some(false));
    }

    /// Whether its health is still to be said.
    fn watched(&self) -> bool {
        self.deployment.is_some() && self.health.is_none()
    }

    /// What its agent reports of its health.
    pub(super) fn health(&self) -> Option<(DeploymentId, bool)> {
        self.deployment.zip(self.health)
    }

    /// What its agent reports of its tasks.
    fn tasks(&self) -> BTreeMap<Text, TaskState> {
        let mut tasks = self.tasks.clone();
        let first = tasks.keys().next().cloned();
        for (name, task) in &mut tasks {
            let waits = self.again_at.is_some() && first.as_ref() == Some(name);
            let state = match self.status {
                ClientStatus::Running if !waits => "running",
                ClientStatus::Running | ClientStatus::Pending | ClientStatus::Unknown => "pending",
                ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost => "dead",
            };
            task.state = state.into();
            task.failed = self.status == ClientStatus::Failed;
        }
        tasks
    }

    /// What a report says of the tasks: nothing if the servers have it.
    pub(super) fn say_tasks(&mut self) -> Option<BTreeMap<Text, TaskState>> {
        let tasks = self.tasks();
        self.sent = (self.sequence, tasks.clone());
        if self.told.as_ref() == Some(&tasks) {
            return None;
        }
        // What is sent may come, also when its answer does not.
        self.told = None;
        Some(tasks)
    }

    /// A report was taken.
    pub(super) fn taken(&mut self, sequence: u64) {
        self.reported = self.reported.max(sequence);
        if self.sent.0 == sequence {
            self.told = Some(self.sent.1.clone());
        }
    }
}

/// The clock of a node, which is not the log's.
fn wall_ms(number: usize, now: u64) -> u64 {
    now + 1_000 + 7_000_000 * number as u64
}

impl Cluster {
    /// A task ends by itself.
    pub(crate) fn end_task(&mut self, number: usize, dice: &mut Dice, may_fail: bool) -> bool {
        let agent = &mut self.agents[number];
        let fails = may_fail && dice.percent(40);
        // A service that ends well is not wanted less.
        let ends = may_fail && !fails && dice.percent(30);
        let may_end = |one: &Local| {
            one.status == ClientStatus::Running
                && (one.ends_by_itself || one.crashes || fails || ends)
        };
        let ids: Vec<_> =
            agent.local.iter().filter(|(_, one)| may_end(one)).map(|(id, _)| *id).collect();
        let Some(one) = dice.pick(&ids).and_then(|id| agent.local.get_mut(&id)) else {
            return false;
        };
        let failed = fails || one.crashes;
        one.end(if failed { ClientStatus::Failed } else { ClientStatus::Complete });
        one.node_failure = (fails && dice.percent(20)).then(|| NODE_FAILURE.into());
        agent.check_due = self.swarm.checks_after_tasks;
        let node = agent.node;
        if fails || ends {
            self.failed_on.insert(node);
        }
        true
    }

    /// Most of what an agent runs of a job fails within a time.
    pub(crate) fn fail_instances(
        &mut self,
        number: usize,
        job: &JobKey,
        within_ms: u64,
        dice: &mut Dice,
    ) {
        let now = self.clock_ms;
        let running = self.agents[number].local.values_mut();
        for one in running.filter(|one| one.job == *job && one.status == ClientStatus::Running) {
            if dice.percent(80) {
                one.fails_at = Some(now + dice.below(within_ms));
                self.coverage.count(Event::FailedTogether);
            }
        }
    }

    /// What an agent runs fails within a time by its node's fault, and what it is given until then does so at once.
    pub(crate) fn fail_by_node(
        &mut self,
        number: usize,
        broken_until: u64,
        within_ms: u64,
        dice: &mut Dice,
    ) {
        let now = self.clock_ms;
        let agent = &mut self.agents[number];
        agent.broken_until = broken_until;
        self.failed_on.insert(agent.node);
        let running = agent.local.values_mut();
        for one in running.filter(|one| one.status == ClientStatus::Running) {
            (one.fails_at, one.fails_by_node) = (Some(now + dice.below(within_ms)), true);
        }
    }

    /// When the task that is shown now is to run; none: at once.
    pub(super) fn start_time(&mut self) -> Option<u64> {
        let slow = self.trouble.tasks.slow_starts && self.chance.percent(40);
        slow.then(|| self.clock_ms + self.chance.between(100, 30_000))
    }

    /// A task that is about to start runs when its time has come, or never does when it is not wanted any more.
    pub(super) fn start_task(&mut self, number: usize, row: &Allocation) -> bool {
        let now = self.clock_ms;
        let Some(one) = self.agents[number].local.get_mut(&row.id) else { return false };
        if row.is_live() && one.starts_at.is_some_and(|at| at > now) {
            return false;
        }
        one.starts_at = None;
        if row.is_live() {
            one.sequence += 1;
            self.coverage.count(Event::SlowStart);
            self.run_task(number, row);
        } else {
            one.end(ClientStatus::Complete);
        }
        true
    }

    /// A task runs from now on; in some seeds it fails soon after, and starts again on its node.
    pub(super) fn run_task(&mut self, number: usize, row: &Allocation) {
        let restarts = self.trouble.tasks.restarts && self.chance.percent(50);
        let (low, high) = RESTARTS_MS;
        let restarts_at = restarts.then(|| self.clock_ms + self.chance.between(low, high));
        let wall_ms = wall_ms(number, self.clock_ms);
        let now = self.clock_ms;
        let Agent { local, node, broken_until, .. } = &mut self.agents[number];
        if let Some(one) = local.get_mut(&row.id) {
            one.start(wall_ms, restarts_at);
            one.healthy_at = one.watched().then_some(now + HEALTHY_MS);
            if *broken_until > now {
                (one.fails_at, one.fails_by_node) = (Some(now + FAILS_MS), true);
                self.failed_on.insert(*node);
            }
        }
        self.check_start(number, row);
    }

    /// What is due for something that runs: all of it fails, or one of its tasks does and starts again after a while. The allocation runs meanwhile.
    pub(super) fn go_on(&mut self, number: usize, id: AllocationId) -> bool {
        let now = self.clock_ms;
        let (low, high) = RESTART_DELAY_MS;
        let Some(one) = self.agents[number].local.get_mut(&id) else { return false };
        let is_due = |at: Option<u64>| at.is_some_and(|at| at <= now);
        if is_due(one.fails_at) {
            one.node_failure = one.fails_by_node.then(|| NODE_FAILURE.into());
            one.end(ClientStatus::Failed);
            self.agents[number].check_due = self.swarm.checks_after_tasks;
            return true;
        }
        if is_due(one.restarts_at) {
            (one.restarts_at, one.healthy_at) = (None, None);
            one.again_at = Some(now + self.chance.between(low, high));
        } else if is_due(one.again_at) {
            one.again_at = None;
            one.healthy_at = one.watched().then_some(now + HEALTHY_MS);
            if let Some(task) = one.tasks.values_mut().next() {
                task.restarts += 1;
                task.last_restart_ms = wall_ms(number, now);
            }
            self.coverage.count(Event::TaskRestarted);
        } else if is_due(one.healthy_at) {
            (one.healthy_at, one.health) = (None, Some(true));
        } else {
            return false;
        }
        one.sequence += 1;
        true
    }

    /// What runs on as an instance of another version is watched in the deployment of that one.
    pub(super) fn watch_health(&mut self, number: usize, row: &Allocation) -> bool {
        let now = self.clock_ms;
        let Some(one) = self.agents[number].local.get_mut(&row.id) else { return false };
        let deployment = row.deployment.map(|own| own.id);
        if one.deployment == deployment {
            return false;
        }
        one.deployment = deployment;
        one.health = None;
        one.healthy_at = (one.watched() && one.again_at.is_none()).then_some(now + HEALTHY_MS);
        true
    }

    /// A task that is to stop does so, at once or when its time is up.
    pub(super) fn stop_task(&mut self, number: usize, id: AllocationId) -> bool {
        let now = self.clock_ms;
        let slow = self.trouble.tasks.slow_stops && self.chance.percent(40);
        let until = now + self.chance.between(1_000, 180_000);
        let Some(one) = self.agents[number].local.get_mut(&id) else { return false };
        let stops_at = *one.stops_at.get_or_insert(if slow { until } else { now });
        if stops_at > now {
            self.coverage.count(Event::SlowStop);
            return false;
        }
        one.end(ClientStatus::Complete);
        true
    }

    /// I49: what starts has no other instance of its name that the servers still want and have not lost.
    fn check_start(&mut self, number: usize, row: &Allocation) {
        let truth = self.log.truth();
        let mut twice = None;
        for (other, agent) in self.agents.iter().enumerate().filter(|(other, _)| *other != number) {
            for (id, one) in &agent.local {
                let same = one.job == row.job && one.name == row.live_name();
                let runs = one.status == ClientStatus::Running;
                let wanted = truth.allocations().get(id).is_some_and(|row| row.is_live());
                let this = truth.allocations().get(&row.id).is_some_and(|row| row.is_live());
                if same && runs && wanted && this {
                    twice = Some((*id, other));
                }
            }
        }
        if let Some((id, other)) = twice {
            let name = row.name();
            self.fail(format!(
                "I49: {name} starts on agent {number} while {id} runs on agent {other}"
            ));
        }
    }
}
