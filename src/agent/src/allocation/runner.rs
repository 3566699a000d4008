//! One allocation as a pure state machine: what prepares it and its tasks, its leader task, the
//! order in which the tasks are stopped, and the reported status. It does no I/O. The shell
//! performs its actions and reports what happened. So does the simulation, for thousands of nodes
//! at once.
//!
//! ```text
//!  stages of the allocation ─► for each task: its stages ─► its runs (task/runner.rs) ─┐
//!                                                                   all tasks ended    ▼
//!  over ◄─ stages of the allocation undone ◄─ stages of each task undone ◄──────── terminal
//! ```
//! `preparation.rs` has the stages. [`AllocationRunner::advance`] is the only place that lets them
//! go on and launches a task, after each step.
//!
//! A terminal status is reported only when no process of a task can exist any more, because the
//! servers then give the allocation's resources to others.

use std::collections::BTreeMap;

use proto::v1;
use serde::{Deserialize, Serialize};

use crate::{
    allocation::{
        health::{HealthPolicy, HealthWatch},
        preparation::{AfterFailure, Preparations, StageRules, StageStep},
    },
    task::{
        action::{Action, StageId},
        run::{ExitResult, Fault, StartError},
        run_limit::{RUN_TIME_OVER, RunLimit},
        runner::{KillReason, Phase, TaskPolicy, TaskRunner, TaskStep},
    },
    time::Moment,
};

/// The part of a task group's specification that the state machine needs. Shared by all allocations
/// of the group.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct GroupPolicy {
    /// The tasks, at least one.
    pub(crate) tasks: Vec<TaskPolicy>,
    /// Pause before any task is stopped, ms.
    pub(crate) shutdown_delay_ms: u64,
    /// Longest run, ms; 0: no limit.
    pub(crate) max_run_ms: u64,
    /// `None`: the allocation is in no deployment, so its health is not reported.
    pub(crate) health: Option<HealthPolicy>,
}

/// The status that the agent reports for an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ClientStatus {
    /// No task has started.
    Pending,
    /// At least one task has started, and not all have ended.
    Running,
    /// All tasks have ended, none with an error.
    Complete,
    /// All tasks have ended, at least one with an error.
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

    fn word(self) -> v1::ClientStatus {
        match self {
            Self::Pending => v1::ClientStatus::Pending,
            Self::Running => v1::ClientStatus::Running,
            Self::Complete => v1::ClientStatus::Complete,
            Self::Failed => v1::ClientStatus::Failed,
        }
    }

    /// The description that Nomad gives with the status.
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
    /// The group's shutdown delay lasts until this time since boot.
    Delay(u64),
    Now,
}

/// One step of the machine: what it is given, and where its actions go.
pub(crate) struct Step<'a> {
    pub(crate) policy: &'a GroupPolicy,
    pub(crate) rules: &'a StageRules,
    pub(crate) now: Moment,
    pub(crate) out: &'a mut Vec<Action>,
}

impl Step<'_> {
    /// The step for one of the tasks.
    fn of_task(&mut self, task: usize, seed: u64) -> TaskStep<'_> {
        let (policy, seed) = (&self.policy.tasks[task], seed.wrapping_add(task as u64));
        TaskStep { task, policy, seed, now: self.now, out: self.out }
    }

    /// The step for the stages.
    fn of_stages(&mut self) -> StageStep<'_> {
        StageStep { rules: self.rules, out: self.out }
    }
}

/// A stage of an allocation, or of the task at this position.
pub(crate) type StagePlace = (StageId, Option<usize>);

/// The state machine of one allocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AllocationRunner {
    tasks: Vec<TaskRunner>,
    preparations: Preparations,
    /// Number of the last reported change.
    pub(crate) sequence: u64,
    stopping: Stopping,
    /// Seed of the jitter of restarts.
    seed: u64,
    health: HealthWatch,
    limit: RunLimit,
    /// There is a change since the last [`Self::take_changed`].
    #[serde(skip)]
    changed: bool,
}

impl AllocationRunner {
    /// A new allocation. `sequence` is the last number that the servers have seen.
    pub(crate) fn new(policy: &GroupPolicy, id: [u8; 16], sequence: u64, now: Moment) -> Self {
        let (high, low) = id.split_at(8);
        let part =
            |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("half of 16 bytes is 8"));
        Self {
            tasks: policy.tasks.iter().map(|_| TaskRunner::new(now)).collect(),
            preparations: Preparations::new(policy.tasks.len()),
            sequence,
            stopping: Stopping::No,
            health: HealthWatch::new(policy.health, now),
            limit: RunLimit::new(policy.max_run_ms, now),
            seed: part(high) ^ part(low).rotate_left(17),
            changed: false,
        }
    }

    /// The tasks, in the order of the group.
    pub(crate) fn tasks(&self) -> &[TaskRunner] {
        &self.tasks
    }

    /// Whether all tasks have ended for good.
    pub(crate) fn is_terminal(&self) -> bool {
        self.tasks.iter().all(TaskRunner::is_dead)
    }

    /// Whether all tasks have ended for good, and what was made for them is undone.
    pub(crate) fn is_over(&self) -> bool {
        self.is_terminal() && self.preparations.is_clear()
    }

    /// Whether the allocation is being stopped: by the servers, or because it ran too long.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping != Stopping::No
    }

    /// When [`Self::tick`] is due, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.next_change().into_iter().chain(self.preparations.next_deadline()).min()
    }

    /// When something besides the preparation is due, in time since boot.
    fn next_change(&self) -> Option<u64> {
        let stop = match self.stopping {
            Stopping::Delay(until_ms) => Some(until_ms),
            Stopping::No | Stopping::Now => None,
        };
        let watches = [self.health.next_deadline(), self.limit.next_deadline()];
        let watches = watches.into_iter().flatten().filter(|_| !self.is_stopping());
        let watches = watches.filter(|_| !self.is_terminal());
        self.tasks.iter().filter_map(TaskRunner::next_deadline).chain(stop).chain(watches).min()
    }

    /// Starts all tasks that have not started, each as soon as it is prepared.
    pub(crate) fn start(&mut self, step: &mut Step<'_>) {
        if self.is_stopping() {
            return;
        }
        self.tasks.iter_mut().for_each(TaskRunner::start);
        self.advance(step);
    }

    /// Takes over a new policy from the servers: after an in-place update, after a start of the
    /// agent, or because the shutdown delays were cancelled.
    pub(crate) fn revise(&mut self, policy: &GroupPolicy, now: Moment) {
        if let Stopping::Delay(until_ms) = &mut self.stopping
            && policy.shutdown_delay_ms == 0
        {
            *until_ms = now.since_boot_ms.min(*until_ms);
        }
        for (task, policy) in self.tasks.iter_mut().zip(&policy.tasks) {
            task.revise(policy, now);
        }
        self.changed |= self.limit.revise(policy.max_run_ms);
        if self.health.revise(policy.health, now) {
            self.watch_health(now);
            self.changed = true;
        }
    }

    /// The agent has started again, and the tasks have run on. The limit of the run waits for the
    /// servers (see [`RunLimit::hold`]). Stages that must be done again are, beside the tasks that
    /// run. Tasks that were to start wait for [`Self::start`].
    pub(crate) fn resumed(&mut self, step: &mut Step<'_>) {
        self.limit.hold(step.now);
        self.tasks.iter_mut().for_each(TaskRunner::interrupted);
        self.preparations.interrupted(step.rules, false);
        self.advance(step);
    }

    fn watch_health(&mut self, now: Moment) {
        if !self.is_stopping() {
            self.health.look(&self.tasks, now);
        }
    }

    /// A stage is prepared.
    pub(crate) fn prepared(&mut self, (stage, task): StagePlace, step: &mut Step<'_>) {
        self.preparations.prepared(stage, task);
        self.advance(step);
    }

    /// A stage could not be prepared. `what`: what that means, `why`: the error.
    pub(crate) fn prepare_failed(
        &mut self,
        (stage, task): StagePlace,
        (what, why, fault): (&str, &str, Fault),
        step: &mut Step<'_>,
    ) -> AfterFailure {
        let has_process = self.of_scope(task).any(|task| task.may_have_process());
        let after = self.preparations.failed((stage, task), fault, has_process, step.now);
        match after {
            AfterFailure::Waits { is_news: true } => {
                let reason = match fault {
                    Fault::Shortage => "the machine is short",
                    Fault::Passing | Fault::Task | Fault::Node => "it may pass",
                };
                self.record_wait(task, &format!("Waits, {reason}: {why}"), step.now);
            }
            AfterFailure::Failed => {
                let message = format!("{what}: {why}");
                for one in self.of_scope(task) {
                    one.setup_failed(&message, fault, step.now);
                }
                self.settle(step);
                return after;
            }
            AfterFailure::Waits { is_news: false }
            | AfterFailure::GoesOn
            | AfterFailure::Abandoned => {}
        }
        self.advance(step);
        after
    }

    /// A stage is undone.
    pub(crate) fn undone(&mut self, (stage, task): StagePlace, step: &mut Step<'_>) {
        self.preparations.undone(stage, task);
        self.advance(step);
    }

    /// A stage could not be undone. It is tried again after a pause. Returns how often it has
    /// failed in a row.
    pub(crate) fn undo_failed(&mut self, (stage, task): StagePlace, now: Moment) -> u32 {
        self.preparations.undo_failed(stage, task, now)
    }

    /// The tasks of a scope that have not ended.
    fn of_scope(&mut self, task: Option<usize>) -> impl Iterator<Item = &mut TaskRunner> {
        let tasks = self.tasks.iter_mut().enumerate();
        tasks
            .filter(move |(position, one)| task.is_none_or(|of| of == *position) && !one.is_dead())
            .map(|(_, one)| one)
    }

    /// The allocation cannot start yet. Each task records why.
    pub(crate) fn waits(&mut self, why: &str, now: Moment) {
        self.record_wait(None, why, now);
    }

    fn record_wait(&mut self, task: Option<usize>, why: &str, now: Moment) {
        for one in self.of_scope(task) {
            one.waits(why, now);
        }
        self.changed = true;
    }

    /// Lets the preparation go on, and launches the tasks that are prepared. When all tasks have
    /// ended, undoes what was prepared.
    fn advance(&mut self, step: &mut Step<'_>) {
        if self.is_terminal() {
            self.preparations.undo(&mut step.of_stages());
            return;
        }
        // A task with a process is prepared, but a stage may have to be done again after a restart.
        let runs_on = !self.is_stopping();
        let is_for =
            |task: &TaskRunner| task.is_preparing() || (runs_on && task.may_have_process());
        let is_ready = self.tasks.iter().any(is_for)
            && self.preparations.prepare_allocation(&mut step.of_stages());
        for (position, task) in self.tasks.iter_mut().enumerate() {
            if task.is_dead() {
                self.preparations.abandon_task(position, &mut step.of_stages());
            } else if is_ready
                && is_for(task)
                && self.preparations.prepare_task(position, &mut step.of_stages())
                && task.is_preparing()
            {
                task.launch(&mut step.of_task(position, self.seed));
                self.changed = true;
            }
        }
    }

    /// A task has started.
    pub(crate) fn started(&mut self, task: usize, step: &mut Step<'_>) {
        self.tasks[task].started(&mut step.of_task(task, self.seed));
        self.settle(step);
    }

    /// A task could not be started.
    pub(crate) fn start_failed(&mut self, task: usize, error: &StartError, step: &mut Step<'_>) {
        self.tasks[task].start_failed(error, &step.of_task(task, self.seed));
        self.settle(step);
    }

    /// A task's process has ended.
    pub(crate) fn exited(&mut self, task: usize, exit: &ExitResult, step: &mut Step<'_>) {
        self.tasks[task].exited(exit, &step.of_task(task, self.seed));
        self.settle(step);
    }

    /// Begins to stop the allocation. Idempotent.
    pub(crate) fn stop(&mut self, step: &mut Step<'_>) {
        if self.is_stopping() || self.is_terminal() {
            return;
        }
        let runs = self.tasks.iter().any(TaskRunner::may_have_process);
        let delay_ms = step.policy.shutdown_delay_ms;
        self.stopping = if delay_ms > 0 && runs {
            Stopping::Delay(step.now.since_boot_ms.saturating_add(delay_ms))
        } else {
            Stopping::Now
        };
        self.settle(step);
    }

    /// Restarts the running ones of `tasks`. `named`: the user chose them by name. Returns how many
    /// are restarted.
    pub(crate) fn restart(&mut self, tasks: &[usize], named: bool, step: &mut Step<'_>) -> usize {
        self.changed = true;
        let mut restart =
            |task: usize| self.tasks[task].restart(named, &mut step.of_task(task, self.seed));
        tasks.iter().filter(|task| restart(**task)).count()
    }

    /// The runs of `tasks` that are ending so that another can begin, as (position, attempt).
    pub(crate) fn ending_to_restart(&self, tasks: &[usize]) -> Vec<(usize, u32)> {
        let runs = tasks.iter().map(|task| (*task, &self.tasks[*task]));
        runs.filter(|(_, run)| run.ends_to_restart()).map(|(at, run)| (at, run.attempt)).collect()
    }

    /// Restarts all tasks, including those that have ended. `false`: the allocation has ended or is
    /// being stopped, so its resources go to others; or no task needed a restart.
    pub(crate) fn restart_all(&mut self, step: &mut Step<'_>) -> bool {
        if self.is_terminal() || self.is_stopping() {
            return false;
        }
        self.changed = true;
        let mut restarted = false;
        for (position, task) in self.tasks.iter_mut().enumerate() {
            restarted |= task.restart_ended(&mut step.of_task(position, self.seed));
        }
        restarted
    }

    /// Records a signal that is sent to a task. `false`: the task does not run.
    pub(crate) fn signaled(&mut self, task: usize, signal: &str, now: Moment) -> bool {
        self.changed = true;
        self.tasks[task].signaled(signal, now)
    }

    /// Does what is due. Returns how many tasks must end because the allocation ran too long.
    pub(crate) fn tick(&mut self, step: &mut Step<'_>) -> usize {
        self.preparations.tick(step.now);
        // A stage that is tried again is nothing to store and report.
        if self.next_change().is_none_or(|at| at > step.now.since_boot_ms) {
            self.advance(step);
            return 0;
        }
        let mut too_long = 0;
        if !self.is_stopping() && !self.is_terminal() && self.limit.ends(step.now) {
            too_long = self.tasks.iter().filter(|task| !task.is_dead()).count();
            self.stop(step);
        }
        if let Stopping::Delay(until_ms) = self.stopping
            && until_ms <= step.now.since_boot_ms
        {
            self.stopping = Stopping::Now;
        }
        for (position, task) in self.tasks.iter_mut().enumerate() {
            task.tick(&mut step.of_task(position, self.seed));
        }
        self.settle(step);
        too_long
    }

    /// Rewinds all tasks, see [`TaskRunner::rewind`]. No process is left, so a shutdown delay in
    /// progress ends.
    pub(crate) fn rewind(&mut self, booted: bool, step: &mut Step<'_>) {
        for task in &mut self.tasks {
            task.rewind(booted, step.now);
        }
        self.preparations.interrupted(step.rules, booted);
        self.limit.hold(step.now);
        if booted {
            self.health.begin_again(step.now);
            self.limit.begin_again(step.now);
        }
        if self.is_stopping() {
            self.stopping = Stopping::Now;
        }
        self.settle(step);
    }

    /// A run that was asked for never began. [`Self::start`] asks for it again. That does not count
    /// as a restart.
    pub(crate) fn never_started(&mut self, task: usize, step: &mut Step<'_>) {
        self.tasks[task].rewind(false, step.now);
        self.settle(step);
    }

    /// A task's run was lost together with the agent that watched it. That is no failure:
    /// [`Self::start`] runs the task again at once, without counting a restart.
    pub(crate) fn lost(&mut self, task: usize, step: &mut Step<'_>) {
        self.tasks[task].lost(step.now);
        self.settle(step);
    }

    /// A restarted agent has found a task's run. If a kill was in progress, it is asked for again,
    /// for this task only: other tasks follow when their runs are found. A kill must not be
    /// repeated without need, because some programs end at once, without cleaning up, at a second
    /// signal.
    pub(crate) fn resume(&mut self, task: usize, step: &mut Step<'_>) {
        self.tasks[task].resume_kill(&mut step.of_task(task, self.seed));
        self.settle(step);
    }

    /// Nothing is stored of the allocation, but folders or processes of it were found. `attempts`:
    /// for each task the newest run that may exist.
    pub(crate) fn found(&mut self, attempts: &[Option<u32>], rules: &StageRules) {
        for (task, attempt) in self.tasks.iter_mut().zip(attempts) {
            if let Some(attempt) = attempt {
                task.found(*attempt);
            }
        }
        self.preparations.found(rules);
        self.changed = true;
    }

    /// Checks what was read from disk, and takes it over from an agent with stages of these names.
    pub(crate) fn check(
        &mut self,
        tasks: usize,
        stages: &[String],
        rules: &StageRules,
    ) -> Result<(), String> {
        if (self.tasks.len(), self.preparations.task_count()) != (tasks, tasks) {
            return Err("it is that of another allocation".to_owned());
        }
        self.preparations.renumber(stages, rules)
    }

    /// Whether there is something to store, and perhaps to report.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed || self.preparations.is_unstored()
    }

    /// Whether something must be stored since the last call that is no change to report.
    pub(crate) fn take_unstored(&mut self) -> bool {
        self.preparations.take_unstored()
    }

    /// Whether something changed since the last call. If so, increments the sequence.
    pub(crate) fn take_changed(&mut self) -> bool {
        if !std::mem::take(&mut self.changed) {
            return false;
        }
        self.sequence = self.sequence.saturating_add(1);
        true
    }

    /// Takes over the sequence that the servers have, if it is higher.
    pub(crate) fn raise_sequence(&mut self, known: u64) {
        if known > self.sequence {
            self.sequence = known;
            self.changed = true;
        }
    }

    /// The status of the allocation as a whole.
    pub(crate) fn client_status(&self) -> ClientStatus {
        if self.is_terminal() {
            let lives = self.tasks.iter().any(TaskRunner::may_have_process);
            assert!(!lives, "an allocation with a process is not reported as ended");
            let failed = !self.limit.is_over() && self.tasks.iter().any(|task| task.failed);
            return if failed { ClientStatus::Failed } else { ClientStatus::Complete };
        }
        let begun = self.tasks.iter().any(|task| match task.phase {
            Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing | Phase::Dead => true,
            // A task that ran before and was rewound is pending too.
            Phase::Pending | Phase::Preparing | Phase::Starting | Phase::Waiting { .. } => {
                task.started_at_ms > 0
            }
        });
        if begun { ClientStatus::Running } else { ClientStatus::Pending }
    }

    /// The report for the servers.
    pub(crate) fn status(&self, policy: &GroupPolicy, id: [u8; 16]) -> v1::AllocationStatus {
        let status = self.client_status();
        let is_over = self.limit.is_over() && self.is_terminal();
        let description = if is_over { RUN_TIME_OVER } else { status.description() };
        let tasks: BTreeMap<String, v1::TaskState> = policy
            .tasks
            .iter()
            .zip(&self.tasks)
            .map(|(policy, task)| (policy.name.clone(), task_state(task)))
            .collect();
        v1::AllocationStatus {
            id: id.to_vec().into(),
            sequence: self.sequence,
            client_status: status.word().into(),
            description: description.to_owned(),
            node_failure: self.node_failure().unwrap_or_default(),
            deployment_id: self.health.deployment().into(),
            healthy: self.health.verdict(),
            tasks,
            same_tasks: false,
        }
    }

    /// Why a task failed, if the node caused it.
    fn node_failure(&self) -> Option<String> {
        let mut ends = self.tasks.iter().filter(|task| task.is_dead() && task.failed);
        if self.limit.is_over() {
            return None;
        }
        ends.find_map(|task| task.node_failure.as_deref()).map(str::to_owned)
    }

    /// Applies the rules of the group to its tasks after any change: stop the leader first, stop
    /// all when the leader ends or a task fails.
    fn settle(&mut self, step: &mut Step<'_>) {
        self.changed = true;
        let policy = step.policy;
        let leader = policy.tasks.iter().position(|task| task.leader);
        let leader_dead = leader.is_some_and(|leader| self.tasks[leader].is_dead());
        let failed = self.tasks.iter().position(|task| task.is_dead() && task.failed);
        if self.stopping == Stopping::Now {
            // The leader goes first: it may need the others while it ends.
            let only = leader.filter(|_| !leader_dead);
            let is_over = self.limit.is_over();
            let reason = if is_over { KillReason::RunTimeOver } else { KillReason::Stopped };
            self.kill_all(&reason, only, step);
        } else if let Some(failed) = failed {
            self.limit.disarm();
            let reason = KillReason::SiblingFailed(policy.tasks[failed].name.as_str().into());
            self.kill_all(&reason, None, step);
        } else if leader_dead {
            self.kill_all(&KillReason::LeaderDead, None, step);
        }
        self.advance(step);
        self.watch_health(step.now);
    }

    fn kill_all(&mut self, reason: &KillReason, only: Option<usize>, step: &mut Step<'_>) {
        for (position, task) in self.tasks.iter_mut().enumerate() {
            if only.is_none_or(|only| only == position) {
                task.kill(reason, &mut step.of_task(position, self.seed));
            }
        }
        // A leader that had not started is dead at once. Then the other tasks can be killed too.
        let leader_ended = only.is_some_and(|only| self.tasks[only].is_dead());
        if leader_ended {
            self.kill_all(reason, None, step);
        }
    }
}

fn task_state(task: &TaskRunner) -> v1::TaskState {
    let phase = match task.phase {
        Phase::Pending | Phase::Preparing | Phase::Starting | Phase::Waiting { .. } => {
            v1::TaskPhase::Pending
        }
        Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing => v1::TaskPhase::Running,
        Phase::Dead => v1::TaskPhase::Dead,
    };
    v1::TaskState {
        phase: phase.into(),
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

#[cfg(test)]
mod tests;
