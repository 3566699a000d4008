//! One allocation as a pure state machine: its tasks, its leader task, the order in which they are
//! stopped, and the reported status. It does no I/O. The shell performs its actions and reports
//! what happened. So does the simulation, for thousands of nodes at once.
//!
//! A terminal status is reported only when no process of a task can exist any more, because the
//! servers then give the allocation's resources to others.

use std::collections::BTreeMap;

use proto::v1;
use serde::{Deserialize, Serialize};

use crate::{
    allocation::health::{HealthPolicy, HealthWatch},
    task::{
        run::{ExitResult, Fault, StartError},
        run_limit::{RUN_TIME_OVER, RunLimit},
        runner::{Action, KillReason, Phase, TaskPolicy, TaskRunner},
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

/// The state machine of one allocation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AllocationRunner {
    tasks: Vec<TaskRunner>,
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
            sequence,
            stopping: Stopping::No,
            health: HealthWatch::new(policy.health, now),
            limit: RunLimit::new(policy.max_run_ms, now),
            seed: part(high) ^ part(low).rotate_left(17),
            changed: true,
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

    /// Whether the allocation is being stopped: by the servers, or because it ran too long.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping != Stopping::No
    }

    /// When [`Self::tick`] is due, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        let stop = match self.stopping {
            Stopping::Delay(until_ms) => Some(until_ms),
            Stopping::No | Stopping::Now => None,
        };
        let watches = [self.health.next_deadline(), self.limit.next_deadline()];
        let watches = watches.into_iter().flatten().filter(|_| !self.is_stopping());
        let watches = watches.filter(|_| !self.is_terminal());
        self.tasks.iter().filter_map(TaskRunner::next_deadline).chain(stop).chain(watches).min()
    }

    /// Starts all tasks that have not started.
    pub(crate) fn start(&mut self, now: Moment, out: &mut Vec<Action>) {
        if self.is_stopping() {
            return;
        }
        let before = out.len();
        for (position, task) in self.tasks.iter_mut().enumerate() {
            task.start(position, now, out);
        }
        self.changed |= out.len() > before;
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

    /// The agent has started again. The limit of the run waits for the servers (see
    /// [`RunLimit::hold`]).
    pub(crate) fn resumed(&mut self, now: Moment) {
        self.limit.hold(now);
    }

    fn watch_health(&mut self, now: Moment) {
        if !self.is_stopping() {
            self.health.look(&self.tasks, now);
        }
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
        error: &StartError,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        let seed = self.task_seed(task);
        self.tasks[task].start_failed(&policy.tasks[task], error, now, seed);
        self.settle(policy, now, out);
    }

    /// The directories cannot be prepared yet. Each task records why.
    pub(crate) fn waits(&mut self, why: &str, now: Moment) {
        for task in self.tasks.iter_mut().filter(|task| !task.is_dead()) {
            task.waits(why, now);
        }
        self.changed = true;
    }

    /// The directories could not be prepared, so every task fails.
    pub(crate) fn setup_failed(&mut self, error: &str, fault: Fault, now: Moment) {
        for task in self.tasks.iter_mut().filter(|task| !task.is_dead()) {
            task.setup_failed(error, fault, now);
        }
        self.watch_health(now);
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

    /// Begins to stop the allocation. Idempotent.
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

    /// Restarts the running ones of `tasks`. `named`: the user chose them by name. Returns how many
    /// are restarted.
    pub(crate) fn restart(
        &mut self,
        tasks: &[usize],
        named: bool,
        now: Moment,
        out: &mut Vec<Action>,
    ) -> usize {
        self.changed = true;
        tasks.iter().filter(|task| self.tasks[**task].restart(**task, named, now, out)).count()
    }

    /// The runs of `tasks` that are ending so that another can begin, as (position, attempt).
    pub(crate) fn ending_to_restart(&self, tasks: &[usize]) -> Vec<(usize, u32)> {
        let runs = tasks.iter().map(|task| (*task, &self.tasks[*task]));
        runs.filter(|(_, run)| run.ends_to_restart()).map(|(at, run)| (at, run.attempt)).collect()
    }

    /// Restarts all tasks, including those that have ended. `false`: the allocation has ended or is
    /// being stopped, so its resources go to others; or no task needed a restart.
    pub(crate) fn restart_all(&mut self, now: Moment, out: &mut Vec<Action>) -> bool {
        if self.is_terminal() || self.is_stopping() {
            return false;
        }
        self.changed = true;
        let mut restarted = false;
        for (position, task) in self.tasks.iter_mut().enumerate() {
            restarted |= task.restart_ended(position, now, out);
        }
        restarted
    }

    /// Records a signal that is sent to a task. `false`: the task does not run.
    pub(crate) fn signaled(&mut self, task: usize, signal: &str, now: Moment) -> bool {
        self.changed = true;
        self.tasks[task].signaled(signal, now)
    }

    /// Does what is due. Returns how many tasks must end because the allocation ran too long.
    pub(crate) fn tick(
        &mut self,
        policy: &GroupPolicy,
        now: Moment,
        out: &mut Vec<Action>,
    ) -> usize {
        let mut too_long = 0;
        if !self.is_stopping() && !self.is_terminal() && self.limit.ends(now) {
            too_long = self.tasks.iter().filter(|task| !task.is_dead()).count();
            self.stop(policy, now, out);
        }
        if let Stopping::Delay(until_ms) = self.stopping
            && until_ms <= now.since_boot_ms
        {
            self.stopping = Stopping::Now;
        }
        for (position, task) in self.tasks.iter_mut().enumerate() {
            task.tick(position, now, out);
        }
        self.settle(policy, now, out);
        too_long
    }

    /// Rewinds all tasks, see [`TaskRunner::rewind`]. No process is left, so a shutdown delay in
    /// progress ends.
    pub(crate) fn rewind(
        &mut self,
        policy: &GroupPolicy,
        booted: bool,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        for task in &mut self.tasks {
            task.rewind(booted, now);
        }
        if booted {
            self.health.begin_again(now);
            self.limit.begin_again(now);
        }
        if self.is_stopping() {
            self.stopping = Stopping::Now;
        }
        self.settle(policy, now, out);
    }

    /// A run that was asked for never began. [`Self::start`] asks for it again. That does not count
    /// as a restart.
    pub(crate) fn never_started(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        self.tasks[task].rewind(false, now);
        self.settle(policy, now, out);
    }

    /// A task's run was lost together with the agent that watched it. That is no failure:
    /// [`Self::start`] runs the task again at once, without counting a restart.
    pub(crate) fn lost(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        self.tasks[task].lost(now);
        self.settle(policy, now, out);
    }

    /// A restarted agent has found a task's run. If a kill was in progress, it is asked for again,
    /// for this task only: other tasks follow when their runs are found. A kill must not be
    /// repeated without need, because some programs end at once, without cleaning up, at a second
    /// signal.
    pub(crate) fn resume(
        &mut self,
        policy: &GroupPolicy,
        task: usize,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        self.tasks[task].resume_kill(task, out);
        self.settle(policy, now, out);
    }

    /// A run of a task may exist of which nothing is stored.
    pub(crate) fn found(&mut self, task: usize, attempt: u32) {
        self.tasks[task].found(attempt);
    }

    /// Whether there is something to store and report.
    pub(crate) fn is_changed(&self) -> bool {
        self.changed
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
            let failed = !self.limit.is_over() && self.tasks.iter().any(|task| task.failed);
            return if failed { ClientStatus::Failed } else { ClientStatus::Complete };
        }
        let begun = self.tasks.iter().any(|task| match task.phase {
            Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing | Phase::Dead => true,
            // A task that ran before and was rewound is pending too.
            Phase::Pending | Phase::Starting | Phase::Waiting { .. } => task.started_at_ms > 0,
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

    fn task_seed(&self, task: usize) -> u64 {
        self.seed.wrapping_add(task as u64)
    }

    /// Applies the rules of the group to its tasks after any change: stop the leader first, stop
    /// all when the leader ends or a task fails.
    fn settle(&mut self, policy: &GroupPolicy, now: Moment, out: &mut Vec<Action>) {
        self.changed = true;
        let leader = policy.tasks.iter().position(|task| task.leader);
        let leader_dead = leader.is_some_and(|leader| self.tasks[leader].is_dead());
        let failed = self.tasks.iter().position(|task| task.is_dead() && task.failed);
        if self.stopping == Stopping::Now {
            // The leader goes first: it may need the others while it ends.
            let only = leader.filter(|_| !leader_dead);
            let is_over = self.limit.is_over();
            let reason = if is_over { KillReason::RunTimeOver } else { KillReason::Stopped };
            self.kill_all(policy, &reason, only, now, out);
        } else if let Some(failed) = failed {
            self.limit.disarm();
            let reason = KillReason::SiblingFailed(policy.tasks[failed].name.as_str().into());
            self.kill_all(policy, &reason, None, now, out);
        } else if leader_dead {
            self.kill_all(policy, &KillReason::LeaderDead, None, now, out);
        }
        self.watch_health(now);
    }

    fn kill_all(
        &mut self,
        policy: &GroupPolicy,
        reason: &KillReason,
        only: Option<usize>,
        now: Moment,
        out: &mut Vec<Action>,
    ) {
        for (position, task) in self.tasks.iter_mut().enumerate() {
            if only.is_none_or(|only| only == position) {
                task.kill(position, &policy.tasks[position], reason, now, out);
            }
        }
        // A leader that had not started is dead at once. Then the other tasks can be killed too.
        let leader_ended = only.is_some_and(|only| self.tasks[only].is_dead());
        if leader_ended {
            self.kill_all(policy, reason, None, now, out);
        }
    }
}

fn task_state(task: &TaskRunner) -> v1::TaskState {
    let phase = match task.phase {
        Phase::Pending | Phase::Starting | Phase::Waiting { .. } => v1::TaskPhase::Pending,
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
mod tests {
    use super::*;
    use crate::{allocation::spec::group_policy, testing};

    const OK: ExitResult =
        ExitResult { exit_code: 0, signal: 0, oom_killed: false, error: None, lost: false };
    const BAD: ExitResult =
        ExitResult { exit_code: 7, signal: 0, oom_killed: false, error: None, lost: false };

    #[derive(Clone)]
    struct Bench {
        policy: GroupPolicy,
        runner: AllocationRunner,
        now: Moment,
        actions: Vec<Action>,
        /// Sum of what [`AllocationRunner::tick`] has returned.
        too_long: usize,
    }

    impl Bench {
        /// An allocation whose tasks have all started.
        fn running(tasks: &[&str], adjust: impl FnOnce(&mut v1::Allocation)) -> Self {
            let mut message = testing::message([5; 16], "job", tasks);
            adjust(&mut message);
            let policy = group_policy(&message).expect("a valid message");
            let now = Moment { since_boot_ms: 1000, wall_ms: 5_000_000 };
            let runner = AllocationRunner::new(&policy, [5; 16], 3, now);
            let mut bench = Self { policy, runner, now, actions: Vec::new(), too_long: 0 };
            bench.runner.start(now, &mut bench.actions);
            for task in 0..tasks.len() {
                bench.runner.started(&bench.policy, task, now, &mut bench.actions);
            }
            bench.actions.clear();
            bench
        }

        fn exited(&mut self, task: usize, exit: &ExitResult) -> Vec<Action> {
            self.runner.exited(&self.policy, task, exit, self.now, &mut self.actions);
            std::mem::take(&mut self.actions)
        }

        fn stop(&mut self) -> Vec<Action> {
            self.runner.stop(&self.policy, self.now, &mut self.actions);
            std::mem::take(&mut self.actions)
        }

        fn after(&mut self, ms: u64) -> Vec<Action> {
            self.now.since_boot_ms += ms;
            self.too_long += self.runner.tick(&self.policy, self.now, &mut self.actions);
            std::mem::take(&mut self.actions)
        }

        fn rewind(&mut self, booted: bool) {
            self.runner.rewind(&self.policy, booted, self.now, &mut self.actions);
        }

        /// The status as the servers get it.
        fn status(&self) -> &'static str {
            let told = self.runner.status(&self.policy, [5; 16]).client_status;
            wire::rpc::words::client_status(told).expect("a known status").name()
        }
    }

    #[test]
    fn a_failing_task_is_restarted_by_policy_then_fails_and_takes_its_siblings_along() {
        let mut bench = Bench::running(&["a", "b"], |_| {});
        assert_eq!(bench.exited(0, &BAD), []);
        assert_eq!(bench.status(), "running");
        assert_eq!(bench.after(13), [Action::Start { task: 0, attempt: 2 }]);
        bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        assert_eq!(bench.exited(0, &BAD), [Action::Kill { task: 1 }]);
        assert_eq!(bench.status(), "running", "the sibling's process may still exist");
        bench.exited(1, &OK);
        assert_eq!(bench.status(), "failed");
        let report = bench.runner.status(&bench.policy, [5; 16]);
        assert_eq!(report.tasks["a"].restarts, 1);
        assert!(!report.tasks["b"].failed);
    }

    #[test]
    fn a_restart_of_all_tasks_starts_those_that_have_ended() {
        let mut bench = Bench::running(&["a", "b", "c"], |_| {});
        bench.exited(0, &OK);
        assert_eq!(bench.exited(1, &BAD), []); // It waits for its restart.
        let ran = bench.runner.restart(&[0, 1], false, bench.now, &mut bench.actions);
        assert_eq!(ran, 0, "a plain restart is for what runs");
        assert!(bench.runner.restart_all(bench.now, &mut bench.actions));
        assert_eq!(std::mem::take(&mut bench.actions), [Action::Kill { task: 2 }]);
        let starts = [0, 1].map(|task| Action::Start { task, attempt: 2 });
        assert_eq!(bench.after(0), starts);
        bench.exited(2, &BAD);
        assert_eq!(bench.after(0), [Action::Start { task: 2, attempt: 2 }], "no failure");
        for task in 0..3 {
            bench.runner.started(&bench.policy, task, bench.now, &mut bench.actions);
        }
        assert_eq!(bench.status(), "running");
        let report = bench.runner.status(&bench.policy, [5; 16]);
        let first = &report.tasks["a"];
        assert_eq!((first.restarts, first.finished_at_ms, first.failed), (1, 0, false));
        assert!(first.events.iter().any(|event| event.kind == "Restart Signaled"));
    }

    #[test]
    fn what_a_failure_took_along_runs_anew_with_it() {
        let mut bench = Bench::running(&["a", "b"], |message| {
            message.tasks[0].restart = Some(v1::RestartPolicy {
                fail: true,
                interval_ms: 1,
                ..v1::RestartPolicy::default()
            });
        });
        assert_eq!(bench.exited(0, &BAD), [Action::Kill { task: 1 }]);
        assert!(bench.runner.restart_all(bench.now, &mut bench.actions));
        assert_eq!(bench.after(0), [Action::Start { task: 0, attempt: 2 }], "none is killed twice");
        bench.exited(1, &BAD);
        assert_eq!(bench.after(0), [Action::Start { task: 1, attempt: 2 }]);
    }

    /// Holds however often it happens, and although the policy allows no restart. The other task
    /// keeps running.
    #[test]
    fn what_was_lost_with_the_agent_runs_again_at_once_and_uncounted() {
        let mut bench = Bench::running(&["a", "b"], |message| {
            message.tasks[0].restart =
                Some(v1::RestartPolicy { fail: true, ..v1::RestartPolicy::default() });
        });
        for attempt in 2..6 {
            bench.runner.lost(&bench.policy, 0, bench.now, &mut bench.actions);
            assert_eq!((bench.status(), bench.after(0)), ("running", vec![]), "not before it may");
            bench.runner.start(bench.now, &mut bench.actions);
            let started = std::mem::take(&mut bench.actions);
            assert_eq!(started, [Action::Start { task: 0, attempt }]);
            bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        }
        let report = bench.runner.status(&bench.policy, [5; 16]);
        assert_eq!((report.tasks["a"].restarts, report.node_failure.as_str()), (0, ""));
        let kinds: Vec<_> = report.tasks["a"].events.iter().map(|event| &*event.kind).collect();
        assert!(kinds.ends_with(&["Terminated", "Restarting", "Started"]), "{kinds:?}");
        assert_eq!(
            bench.exited(0, &BAD),
            [Action::Kill { task: 1 }],
            "an end that was seen counts"
        );
    }

    #[test]
    fn what_was_to_end_and_was_lost_with_the_agent_has_ended() {
        let mut bench = Bench::running(&["a"], |_| {});
        assert_eq!(bench.stop(), [Action::Kill { task: 0 }]);
        bench.runner.lost(&bench.policy, 0, bench.now, &mut bench.actions);
        bench.runner.start(bench.now, &mut bench.actions);
        assert_eq!((bench.status(), bench.after(60_000)), ("complete", vec![]));
    }

    #[test]
    fn what_has_ended_as_a_whole_or_is_to_end_is_not_restarted() {
        let mut ended = Bench::running(&["a"], |_| {});
        ended.exited(0, &OK);
        assert!(!ended.runner.restart_all(ended.now, &mut ended.actions));
        let mut stopped = Bench::running(&["a", "b"], |_| {});
        stopped.exited(0, &OK);
        stopped.stop();
        assert!(!stopped.runner.restart_all(stopped.now, &mut stopped.actions));
        assert_eq!((ended.after(9), stopped.after(9)), (vec![], vec![]));
    }

    #[test]
    fn the_leader_is_stopped_first() {
        let mut bench = Bench::running(&["a", "b"], |message| message.tasks[1].leader = true);
        assert_eq!(bench.stop(), [Action::Kill { task: 1 }]);
        assert_eq!(bench.exited(1, &BAD), [Action::Kill { task: 0 }]);
        bench.exited(0, &BAD);
        assert_eq!(bench.status(), "complete");
    }

    /// The servers give its resources to others once they know of its end.
    #[test]
    fn an_allocation_whose_leader_has_ended_runs_as_long_as_any_of_its_tasks() {
        let mut bench = Bench::running(&["a", "b"], |message| message.tasks[1].leader = true);
        assert_eq!(bench.exited(1, &OK), [Action::Kill { task: 0 }]);
        assert_eq!(bench.status(), "running");
        bench.exited(0, &BAD);
        assert_eq!(bench.status(), "complete");
    }

    #[test]
    fn who_is_stopped_while_it_restarts_does_not_start_again() {
        for booted in [None, Some(false), Some(true)] {
            let mut bench = Bench::running(&["a"], |_| {});
            bench.runner.restart(&[0], true, bench.now, &mut bench.actions);
            assert_eq!(std::mem::take(&mut bench.actions), [Action::Kill { task: 0 }]);
            bench.stop();
            match booted {
                None => assert_eq!(bench.exited(0, &BAD), []),
                Some(booted) => bench.rewind(booted),
            }
            assert_eq!(bench.after(60_000), []);
            assert_eq!(bench.status(), "complete", "{booted:?}");
        }
    }

    #[test]
    fn a_second_restart_is_taken_while_the_first_waits_for_the_end() {
        let mut bench = Bench::running(&["a", "b"], |_| {});
        let restart = |bench: &mut Bench, tasks: &[usize], named| {
            let taken = bench.runner.restart(tasks, named, bench.now, &mut bench.actions);
            (taken, std::mem::take(&mut bench.actions))
        };
        let (taken, asked) = restart(&mut bench, &[0], true);
        assert_eq!((taken, asked), (1, vec![Action::Kill { task: 0 }]));
        assert_eq!(bench.runner.ending_to_restart(&[0, 1]), [(0, 1)]);
        assert_eq!(restart(&mut bench, &[0], true), (1, vec![]), "it is asked to end once");
        let (taken, asked) = restart(&mut bench, &[0, 1], false);
        assert_eq!((taken, asked), (2, vec![Action::Kill { task: 1 }]));
        bench.exited(0, &BAD);
        assert_eq!(bench.runner.ending_to_restart(&[0, 1]), [(1, 1)]);
        assert_eq!(bench.after(0), [Action::Start { task: 0, attempt: 2 }], "one start for both");
        assert_eq!(restart(&mut bench, &[0], true).0, 0, "it does not run yet");
        let report = bench.runner.status(&bench.policy, [5; 16]);
        let said: Vec<_> = report.tasks["a"].events.iter().skip(3).collect();
        let said: Vec<_> = said.iter().map(|event| (&*event.kind, &*event.message)).collect();
        let expected = [
            ("Restart Signaled", "User requested task to restart"),
            ("Restart Signaled", "User requested task to restart"),
            ("Restart Signaled", "User requested running tasks to restart"),
            ("Terminated", "Exit Code: 7"),
            ("Restarting", "Task restarting in 0s"),
        ];
        assert_eq!(said, expected);
        bench.stop();
        assert_eq!(restart(&mut bench, &[1], true).0, 0, "it is to end for good");
    }

    #[test]
    fn signals_reach_what_is_to_end_until_it_has_ended() {
        let mut bench = Bench::running(&["a"], |message| message.tasks[0].shutdown_delay_ms = 50);
        assert_eq!(bench.stop(), []);
        assert!(bench.runner.signaled(0, "SIGUSR1", bench.now), "in its delay");
        assert_eq!(bench.after(50), [Action::Kill { task: 0 }]);
        assert!(bench.runner.signaled(0, "SIGUSR1", bench.now), "in its kill_timeout");
        bench.exited(0, &OK);
        assert!(!bench.runner.signaled(0, "SIGUSR1", bench.now));
        let report = bench.runner.status(&bench.policy, [5; 16]);
        let kinds: Vec<_> = report.tasks["a"].events.iter().map(|event| &*event.kind).collect();
        let (killing, delay) = ("Killing", "Waiting for shutdown delay");
        let expected =
            ["Started", killing, delay, "Signaling", "Signaling", "Terminated", "Killed"];
        assert_eq!(kinds[2..], expected, "the kill begins with its delay");
    }

    #[test]
    fn delays_are_waited_for_before_the_signal() {
        let mut bench = Bench::running(&["a"], |message| {
            message.shutdown_delay_ms = 100;
            message.tasks[0].shutdown_delay_ms = 50;
        });
        assert_eq!(bench.stop(), []);
        assert_eq!(bench.after(99), []);
        assert_eq!(bench.after(1), []);
        assert_eq!(bench.after(49), []);
        assert_eq!(bench.after(1), [Action::Kill { task: 0 }]);
        assert_eq!(bench.stop(), [], "a second wish to stop changes nothing");
    }

    /// The shutdown delay begins when the time is over. Errors of the tasks at that end are no
    /// failure.
    #[test]
    fn what_runs_too_long_is_stopped_and_complete() {
        let mut bench = Bench::running(&["a", "b"], |message| {
            message.max_run_ms = 1_000;
            message.shutdown_delay_ms = 100;
        });
        assert_eq!(bench.runner.next_deadline(), Some(bench.now.since_boot_ms + 1_000));
        assert_eq!(bench.after(999), []);
        assert_eq!((bench.after(1), bench.too_long), (vec![], 2));
        assert_eq!(bench.after(100), [Action::Kill { task: 0 }, Action::Kill { task: 1 }]);
        assert_eq!(bench.too_long, 2, "they are counted once");
        bench.exited(0, &BAD);
        bench.exited(1, &BAD);
        assert_eq!(bench.status(), "complete");
        let report = bench.runner.status(&bench.policy, [5; 16]);
        assert_eq!(report.description, RUN_TIME_OVER);
        assert_eq!(report.client_status, v1::ClientStatus::Complete as i32);
        assert_eq!((bench.after(60_000), bench.runner.next_deadline()), (vec![], None));

        // What failed before its time has failed.
        let mut bench = Bench::running(&["a"], |message| {
            message.max_run_ms = 1_000;
            message.tasks[0].restart = Some(v1::RestartPolicy { fail: true, ..Default::default() });
        });
        bench.exited(0, &BAD);
        bench.after(5_000);
        assert_eq!((bench.status(), bench.too_long), ("failed", 0));
    }

    #[test]
    fn a_task_stopped_while_it_starts_is_killed_once_it_has_started() {
        let mut bench = Bench::running(&["a"], |_| {});
        bench.exited(0, &BAD);
        bench.after(13);
        assert_eq!(bench.stop(), []);
        bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        assert_eq!(bench.actions, [Action::Kill { task: 0 }]);
        bench.exited(0, &BAD);
        assert_eq!(bench.status(), "complete");
    }

    #[test]
    fn a_kill_is_asked_for_again_once_for_each_run_that_is_found() {
        let mut bench = Bench::running(&["a", "b"], |_| {});
        bench.stop();
        for task in [1, 0] {
            bench.runner.resume(&bench.policy, task, bench.now, &mut bench.actions);
            assert_eq!(std::mem::take(&mut bench.actions), [Action::Kill { task }]);
        }
    }

    #[test]
    fn a_task_that_waits_for_its_restart_can_be_stopped() {
        let mut bench = Bench::running(&["a"], |_| {});
        bench.exited(0, &BAD);
        assert_eq!(bench.stop(), []);
        assert_eq!(bench.status(), "complete");
        assert_eq!(bench.runner.next_deadline(), None);
    }

    #[test]
    fn a_boot_ends_what_was_about_to_be_stopped() {
        for booted in [true, false] {
            let mut bench = Bench::running(&["a"], |message| message.shutdown_delay_ms = 100);
            assert_eq!(bench.stop(), []);
            bench.now.since_boot_ms = 5;
            bench.rewind(booted);
            assert_eq!(bench.actions, []);
            assert_eq!(bench.status(), "complete");
            assert_eq!(bench.runner.next_deadline(), None);
        }
    }

    #[test]
    fn a_boot_ends_those_that_waited_for_the_end_of_their_leader() {
        let mut bench = Bench::running(&["a", "b"], |message| message.tasks[1].leader = true);
        assert_eq!(bench.stop(), [Action::Kill { task: 1 }]);
        bench.rewind(true);
        assert_eq!(bench.actions, []);
        assert_eq!(bench.status(), "complete");
    }

    #[test]
    fn a_restart_that_a_boot_cut_off_is_not_made_twice() {
        let mut bench = Bench::running(&["a"], |_| {});
        assert_eq!(bench.runner.restart(&[0], true, bench.now, &mut bench.actions), 1);
        bench.rewind(true);
        bench.actions.clear();
        bench.runner.start(bench.now, &mut bench.actions);
        assert_eq!(bench.actions, [Action::Start { task: 0, attempt: 2 }]);
        bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        bench.actions.clear();
        assert_eq!(bench.exited(0, &OK), []);
        assert_eq!(bench.status(), "complete");
    }

    #[test]
    fn sequences_rise_from_what_the_servers_know() {
        let mut bench = Bench::running(&["a"], |_| {});
        assert!(bench.runner.take_changed());
        assert_eq!(bench.runner.sequence, 4);
        assert!(!bench.runner.take_changed());
        bench.runner.raise_sequence(9);
        assert!(bench.runner.take_changed());
        assert_eq!(bench.runner.sequence, 10);
    }

    #[test]
    fn what_the_agent_ended_itself_starts_again_and_events_are_bounded() {
        let mut bench = Bench::running(&["a", "b"], |_| {});
        bench.exited(1, &OK);
        bench.rewind(false);
        bench.runner.start(bench.now, &mut bench.actions);
        assert_eq!(bench.actions, [Action::Start { task: 0, attempt: 2 }]);
        for _ in 0..20 {
            bench.runner.started(&bench.policy, 0, bench.now, &mut Vec::new());
            bench.rewind(true);
            bench.runner.start(bench.now, &mut Vec::new());
        }
        let report = bench.runner.status(&bench.policy, [5; 16]);
        assert_eq!(report.tasks["a"].events.len(), 10);
        assert_eq!(report.tasks["a"].restarts, 0);
        assert_eq!(report.tasks["b"].phase(), v1::TaskPhase::Dead);
    }

    fn watched(tasks: &[&str], deployment: u8) -> Bench {
        Bench::running(tasks, |message| watch(message, deployment))
    }

    fn watch(message: &mut v1::Allocation, deployment: u8) {
        message.deployment_id = vec![deployment; 16].into();
        (message.healthy_ms_min, message.healthy_deadline_ms) = (1_000, 5_000);
        let restart =
            v1::RestartPolicy { attempts: 1, interval_ms: 60_000, delay_ms: 10, fail: true };
        message.restart = Some(restart);
    }

    impl Bench {
        /// The deployment's number and the verdict.
        fn health(&self) -> (u8, Option<bool>) {
            let status = self.runner.status(&self.policy, [5; 16]);
            (status.deployment_id.first().copied().unwrap_or(0), status.healthy)
        }

        /// The agent ends and starts again after `ms`. Its tasks keep running.
        fn restart_agent(&mut self, ms: u64) {
            let stored = serde_json::to_string(&self.runner).expect("it is stored");
            self.runner = serde_json::from_str(&stored).expect("it is read");
            self.now.since_boot_ms += ms;
            self.runner.resume(&self.policy, 0, self.now, &mut self.actions);
        }
    }

    /// The deadline is when health is decided. The verdict never changes afterwards.
    #[test]
    fn an_allocation_is_healthy_once_all_tasks_ran_for_long_enough() {
        let mut bench = watched(&["a", "b"], 1);
        assert_eq!(bench.runner.next_deadline(), Some(2_000));
        bench.after(999);
        assert_eq!(bench.health(), (1, None));
        bench.after(1);
        assert_eq!(bench.health(), (1, Some(true)));
        assert_eq!(bench.runner.next_deadline(), None);
        bench.exited(0, &BAD);
        bench.after(20_000);
        bench.restart_agent(1);
        assert_eq!(bench.health(), (1, Some(true)));
    }

    /// A restart of a task resets the time; a restart of the agent does not.
    #[test]
    fn only_a_restart_of_a_task_begins_anew() {
        let mut bench = watched(&["a"], 1);
        bench.restart_agent(900);
        assert_eq!(bench.health(), (1, None));
        bench.exited(0, &BAD);
        bench.after(13);
        bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        bench.after(999);
        assert_eq!(bench.health(), (1, None));
        bench.after(1);
        assert_eq!(bench.health(), (1, Some(true)));
    }

    #[test]
    fn an_allocation_is_unhealthy_when_a_task_ends_or_its_time_is_over() {
        let mut bench = watched(&["a"], 1);
        for _ in 0..2 {
            bench.exited(0, &BAD);
            bench.after(13);
            bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        }
        assert_eq!((bench.status(), bench.health()), ("failed", (1, Some(false))));
        let mut bench = watched(&["a"], 1);
        bench.exited(0, &BAD);
        bench.restart_agent(4_999);
        assert_eq!(bench.health(), (1, None));
        bench.after(1);
        assert_eq!(bench.health(), (1, Some(false)), "it has had its time");
    }

    /// After an in-place update the running instance is judged again, for as long as a new one.
    #[test]
    fn another_deployment_asks_again() {
        let mut bench = watched(&["a"], 1);
        bench.after(1_000);
        let mut message = testing::message([5; 16], "job", &["a"]);
        watch(&mut message, 2);
        bench.policy = group_policy(&message).expect("a valid message");
        bench.runner.take_changed();
        bench.runner.revise(&bench.policy, bench.now);
        assert!(bench.runner.take_changed());
        assert_eq!(bench.health(), (2, None));
        assert_eq!(bench.runner.next_deadline(), Some(bench.now.since_boot_ms + 1_000));
        let mut ending = bench.clone();
        for _ in 0..2 {
            ending.exited(0, &BAD);
            ending.after(13);
            ending.runner.started(&ending.policy, 0, ending.now, &mut ending.actions);
        }
        assert_eq!(ending.health(), (2, Some(false)), "it does not do in its new place");
        bench.after(999);
        assert_eq!(bench.health(), (2, None));
        bench.restart_agent(1);
        assert_eq!(bench.health(), (2, Some(true)));
        bench.stop();
        assert_eq!(bench.health(), (2, Some(true)));
    }

    /// A changed limit of the run is a change to store and report; a repeated one is not.
    #[test]
    fn another_run_time_is_a_change() {
        let mut bench = watched(&["a"], 1);
        bench.runner.take_changed();
        bench.runner.revise(&bench.policy, bench.now);
        assert!(!bench.runner.take_changed());
        bench.policy.max_run_ms = 5_000;
        bench.runner.revise(&bench.policy, bench.now);
        assert!(bench.runner.take_changed());
    }

    /// A stop that waits for shutdown delays goes on at once when they are removed.
    #[test]
    fn a_stop_goes_on_when_its_delays_are_taken_away() {
        let mut bench = watched(&["a"], 1);
        bench.policy.shutdown_delay_ms = 60_000;
        bench.policy.tasks[0].shutdown_delay_ms = 60_000;
        bench.stop();
        let due = bench.runner.next_deadline().unwrap_or_default();
        assert!(due >= bench.now.since_boot_ms + 60_000, "the group's delay");
        bench.policy.shutdown_delay_ms = 0;
        bench.runner.revise(&bench.policy, bench.now);
        assert_eq!(bench.runner.next_deadline(), Some(bench.now.since_boot_ms));
        bench.after(0);
        assert!(bench.runner.next_deadline() > Some(bench.now.since_boot_ms), "the task's delay");
        bench.policy.tasks[0].shutdown_delay_ms = 0;
        bench.runner.revise(&bench.policy, bench.now);
        bench.after(0);
        assert_eq!(bench.runner.tasks()[0].phase, Phase::Killing);
    }

    /// After a boot no time of the old boot counts.
    #[test]
    fn a_boot_begins_the_watch_anew() {
        let mut bench = watched(&["a"], 1);
        bench.now.since_boot_ms = 5;
        bench.rewind(true);
        assert_eq!(bench.runner.next_deadline(), Some(5_005));
        bench.runner.start(bench.now, &mut bench.actions);
        bench.runner.started(&bench.policy, 0, bench.now, &mut bench.actions);
        bench.after(1_000);
        assert_eq!(bench.health(), (1, Some(true)));
    }
}
