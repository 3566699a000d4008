//! One allocation as a pure machine: its tasks together, the leader task, the order of stopping, and the status that is reported.
//! It does no I/O: the shell (or the simulation, for thousands at once) performs its actions and feeds back what happened.
//!
//! A terminal status is reported only when no task's process can exist any more: the servers give its resources away then.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use proto::v1;
use serde::{Deserialize, Serialize};

use super::{
    task_runner::{Action, ExitResult, KillReason, Phase, TaskPolicy, TaskRunner},
    time::Moment,
};

/// What the machine needs to know of a task group; shared by all its allocations.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct GroupPolicy {
    /// The tasks, at least one.
    pub(crate) tasks: Vec<TaskPolicy>,
    /// Pause before any task is stopped, ms.
    pub(crate) shutdown_delay_ms: u64,
}

/// What the agent reports of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientStatus {
    /// Nothing started yet.
    Pending,
    /// Something runs.
    Running,
    /// All ended, none with an error.
    Complete,
    /// All ended, at least one with an error.
    Failed,
}

impl ClientStatus {
    /// The name used in the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Running => "running",
            Self::Complete => "complete",
            Self::Failed => "failed",
        }
    }

    /// In words, as Nomad says it.
    const fn description(self) -> &'static str {
        match self {
            Self::Pending => "No tasks have started",
            Self::Running => "Tasks are running",
            Self::Complete => "All tasks have completed",
            Self::Failed => "Failed tasks",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Stopping {
    No,
    /// Until this time since boot.
    Delay(u64),
    Now,
}

/// The machine of one allocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AllocationRunner {
    tasks: Vec<TaskRunner>,
    /// Rises with each change that is reported.
    pub(crate) sequence: u64,
    stopping: Stopping,
    /// The jitter of restarts depends on it.
    seed: u64,
    /// Something changed since the last [`Self::take_changed`].
    #[serde(skip)]
    changed: bool,
}

impl AllocationRunner {
    /// A new allocation. `sequence` is the last one that the servers know of.
    pub(crate) fn new(policy: &GroupPolicy, id: [u8; 16], sequence: u64, now: Moment) -> Self {
        let (high, low) = id.split_at(8);
        let part =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of 16 bytes is 8"));
        Self {
            tasks: policy.tasks.iter().map(|_| TaskRunner::new(now)).collect(),
            sequence,
            stopping: Stopping::No,
            seed: part(high) ^ part(low).rotate_left(17),
            changed: true,
        }
    }

    /// The tasks, in the order of the group.
    pub(crate) fn tasks(&self) -> &[TaskRunner] {
        &self.tasks
    }

    /// Nothing runs any more, for good.
    pub(crate) fn is_terminal(&self) -> bool {
        self.tasks.iter().all(TaskRunner::is_dead)
    }

    /// The servers want it to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping != Stopping::No
    }

    /// When [`Self::tick`] is due, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let stop = match self.stopping {
            Stopping::Delay(until_ms) => Some(until_ms),
            Stopping::No | Stopping::Now => None,
        };
        self.tasks.iter().filter_map(TaskRunner::next_deadline).chain(stop).min()
    }

    /// Starts all tasks that have not started.
    pub(crate) fn start(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.is_stopping() {
            return;
        }
        for (position, task) in self.tasks.iter_mut().enumerate() {
            task.start(position, now, out);
        }
        self.changed = true;
    }

    /// A task has started.
    pub(crate) fn started(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        self.tasks[task].started(task, &policy.tasks[task], now, out);
        self.settle(policy, now, out);
    }

    /// A task could not be started.
    pub(crate) fn start_failed(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        failure: (&str, bool),
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        let seed = self.task_seed(task);
        let (error, recoverable) = failure;
        self.tasks[task].start_failed(&policy.tasks[task], error, recoverable, now, seed);
        self.settle(policy, now, out);
    }

    /// Nothing could be prepared: every task fails.
    pub(crate) fn setup_failed(&mut self, error: &str, now: Moment) {
        for task in self.tasks.iter_mut().filter(|task| !task.is_dead()) {
            task.setup_failed(error, now);
        }
        self.changed = true;
    }

    /// A task's process has ended.
    pub(crate) fn exited(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        exit: &ExitResult,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        let seed = self.task_seed(task);
        self.tasks[task].exited(&policy.tasks[task], exit, now, seed);
        self.settle(policy, now, out);
    }

    /// The servers want it to end. Idempotent.
    pub(crate) fn stop(&mut self, policy: &GroupPolicy, now: Moment, out: &mut Vec<Action>) {
        if self.is_stopping() || self.is_terminal() {
            return;
        }
        let runs = self.tasks.iter().any(TaskRunner::may_have_process);
        self.stopping = if policy.shutdown_delay_ms > 0 && runs {
            Stopping::Delay(now.since_boot_ms.saturating_add(policy.shutdown_delay_ms))
        } else {
            Stopping::Now
        };
        self.settle(policy, now, out);
    }

    /// Does what is due.
    pub(crate) fn tick(&mut self, policy: &GroupPolicy, now: Moment, out: &mut Vec<Action>) {
        if let Stopping::Delay(until_ms) = self.stopping
            && until_ms <= now.since_boot_ms
        {
            self.stopping = Stopping::Now;
        }
        for (position, task) in self.tasks.iter_mut().enumerate() {
            task.tick(position, &policy.tasks[position], now, out);
        }
        self.settle(policy, now, out);
    }

    /// See [`TaskRunner::rewind`].
    pub(crate) fn rewind(&mut self, booted: bool, now: Moment) {
        for task in &mut self.tasks {
            task.rewind(booted, now);
        }
        self.changed = true;
    }

    /// A run that was asked for never began: it is asked for again, and does not count as a restart.
    pub(crate) fn never_started(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        self.tasks[task].rewind(false, now);
        self.start(now, out);
        self.settle(policy, now, out);
    }

    /// Asks again for what was under way when the agent ended.
    pub(crate) fn resume(&mut self, policy: &GroupPolicy, now: Moment, out: &mut Vec<Action>) {
        for (position, task) in self.tasks.iter().enumerate() {
            task.resume_kill(position, out);
        }
        self.settle(policy, now, out);
    }

    /// Whether something changed since the last call; if so the sequence has risen.
    pub(crate) fn take_changed(&mut self) -> bool {
        if !std::mem::take(&mut self.changed) {
            return false;
        }
        self.sequence = self.sequence.saturating_add(1);
        true
    }

    /// Adopts the sequence that the servers know of, when it is higher than ours.
    pub(crate) fn raise_sequence(&mut self, known: u64) {
        if known > self.sequence {
            self.sequence = known;
            self.changed = true;
        }
    }

    /// The status as a whole.
    pub(crate) fn client_status(&self) -> ClientStatus {
        if self.is_terminal() {
            let failed = self.tasks.iter().any(|task| task.failed);
            return if failed { ClientStatus::Failed } else { ClientStatus::Complete };
        }
        let begun = self.tasks.iter().any(|task| match task.phase {
            Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing | Phase::Dead => true,
            Phase::Starting | Phase::Waiting { .. } => task.started_at_ms > 0,
            Phase::Pending => false,
        });
        if begun { ClientStatus::Running } else { ClientStatus::Pending }
    }

    /// The report for the servers.
    pub(crate) fn status(&self, policy: &GroupPolicy, id: [u8; 16]) -> v1::AllocationStatus {
        let status = self.client_status();
        let tasks: HashMap<String, v1::TaskState> = policy
            .tasks
            .iter()
            .zip(&self.tasks)
            .map(|(policy, task)| (policy.name.clone(), task_state(task)))
            .collect();
        v1::AllocationStatus {
            id: id.to_vec().into(),
            sequence: self.sequence,
            client_status: status.name().to_owned(),
            description: status.description().to_owned(),
            tasks,
        }
    }

    fn task_seed(&self, task: usize) -> u64 {
        self.seed.wrapping_add(task as u64)
    }

    /// Lets the state of the group take effect on its tasks.
    fn settle(&mut self, policy: &GroupPolicy, now: Moment, out: &mut Vec<Action>) {
        self.changed = true;
        let leader = policy.tasks.iter().position(|task| task.leader);
        let leader_dead = leader.is_some_and(|leader| self.tasks[leader].is_dead());
        let failed = self.tasks.iter().any(|task| task.is_dead() && task.failed);
        if self.stopping == Stopping::Now {
            // The leader goes first: it may need the others while it ends.
            let only = leader.filter(|_| !leader_dead);
            self.kill_all(policy, KillReason::Stopped, only, now, out);
        } else if failed {
            self.kill_all(policy, KillReason::SiblingFailed, None, now, out);
        } else if leader_dead {
            self.kill_all(policy, KillReason::LeaderDead, None, now, out);
        }
    }

    fn kill_all(
        &mut self,
        policy: &GroupPolicy,
        reason: KillReason,
        only: Option<usize>,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        for (position, task) in self.tasks.iter_mut().enumerate() {
            if only.is_none_or(|only| only == position) {
                task.kill(position, &policy.tasks[position], reason, now, out);
            }
        }
        // Killing what had not started ends it at once, which may let the others go.
        let leader_ended = only.is_some_and(|only| self.tasks[only].is_dead());
        if leader_ended {
            self.kill_all(policy, reason, None, now, out);
        }
    }
}

fn task_state(task: &TaskRunner) -> v1::TaskState {
    let state = match task.phase {
        Phase::Pending | Phase::Starting | Phase::Waiting { .. } => "pending",
        Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing => "running",
        Phase::Dead => "dead",
    };
    v1::TaskState {
        state: state.to_owned(),
        failed: task.failed,
        restarts: task.restarts,
        started_at_ms: task.started_at_ms,
        finished_at_ms: task.finished_at_ms,
        last_restart_ms: task.last_restart_ms,
        events: task
            .events
            .iter()
            .map(|event| v1::TaskEvent {
                kind: event.kind.name().to_owned(),
                at_ms: event.at_ms,
                message: event.message.to_string(),
                exit_code: event.exit.map(|(code, _)| code),
                signal: event.exit.map(|(_, signal)| signal),
            })
            .collect(),
    }
}

/// Keeps one copy of equal group policies.
#[derive(Debug, Default)]
pub(crate) struct Interner {
    known: HashSet<Arc<GroupPolicy>>,
}

impl Interner {
    /// The shared copy.
    pub(crate) fn intern(&mut self, policy: GroupPolicy) -> Arc<GroupPolicy> {
        if let Some(known) = self.known.get(&policy) {
            return Arc::clone(known);
        }
        // Bounded: what only the interner still holds goes when there is much of it.
        if self.known.len() >= 4096 {
            self.known.retain(|policy| Arc::strong_count(policy) > 1);
        }
        let shared = Arc::new(policy);
        self.known.insert(Arc::clone(&shared));
        shared
    }
}
