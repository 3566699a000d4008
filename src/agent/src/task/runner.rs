//! One task as a pure state machine, from its first start to its end, through restarts and the
//! steps of a kill. It starts and kills nothing itself. It asks for that with an [`Action`], and is
//! told what happened. Nothing here blocks or reads a clock.
//!
//! ```text
//!  Pending ─start─► Preparing ─launch─► Starting ─started─► Running ─exit─► Waiting ─┐
//!                    │ ▲                 │                   │ └─exit, no restart─► Dead
//!                    │ └────────────────────── delay over ────────────────────────────┘
//!                    └─failed─► Dead     └─failed─► (as exit)└─kill─► ShutdownDelay ─► Killing
//!                                                                          ─exit─► Dead
//! ```
//! In `Preparing` the task waits for the stages of its preparation. The allocation's machine steps
//! those, and launches the task when they are done. If nothing is to be done, that is at once.

use calendar::go_duration;
use serde::{Deserialize, Serialize};

use super::run::{ExitResult, Fault, StartError};
use crate::{
    task::{
        action::Action,
        restart::{Decision, Ending, RestartPolicy, RestartTracker},
        retry::{pause_ms, reason_to_retry},
        run_limit::RUN_TIME_OVER,
    },
    time::Moment,
};

/// How many events are kept for a task. When there are more, the oldest are dropped.
pub(crate) const EVENTS_MAX: usize = fsm::limits::TASK_EVENTS_MAX;

/// Exit code that is reported for a run whose end the agent did not see.
const LOST_EXIT_CODE: i32 = -1;

/// Longest message of an event, bytes. The rest is cut off.
pub(crate) const MESSAGE_BYTES_MAX: usize = 512;

/// The part of a task's specification that its state machine needs.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct TaskPolicy {
    /// Name, unique in the group.
    pub(crate) name: String,
    /// When the task is restarted.
    pub(crate) restart: RestartPolicy,
    /// The task should run for ever (service and system jobs), so it is restarted after exit code 0
    /// too.
    pub(crate) restart_on_success: bool,
    /// Time between the kill signal and SIGKILL, ms.
    pub(crate) kill_timeout_ms: u64,
    /// Pause before the kill signal, ms.
    pub(crate) shutdown_delay_ms: u64,
    /// When this task ends, the other tasks of the group are stopped.
    pub(crate) leader: bool,
}

/// Why a task is killed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum KillReason {
    /// The servers want the allocation to end.
    Stopped,
    /// The leader task of the group has ended.
    LeaderDead,
    /// This other task of the group has failed.
    SiblingFailed(Box<str>),
    /// The allocation ran longer than its group may.
    RunTimeOver,
}

/// The event types that the agent reports. They are Nomad's, except `Node Failure`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum EventKind {
    /// `Received`
    Received,
    /// `Task Setup`
    TaskSetup,
    /// `Setup Failure`
    SetupFailure,
    /// `Driver Failure`
    DriverFailure,
    /// `Started`
    Started,
    /// `Terminated`
    Terminated,
    /// `Restarting`
    Restarting,
    /// `Not Restarting`
    NotRestarting,
    /// `Killing`
    Killing,
    /// `Killed`
    Killed,
    /// `Leader Task Dead`
    LeaderTaskDead,
    /// `Sibling Task Failed`
    SiblingTaskFailed,
    /// `Waiting for shutdown delay`
    WaitingForShutdownDelay,
    /// `Signaling`
    Signaling,
    /// `Node Failure`: the node caused it, not the task. The servers count it against the node's
    /// health.
    NodeFailure,
    /// `Restart Signaled`
    RestartSignaled,
}

impl EventKind {
    /// The name used in the API.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Received => "Received",
            Self::TaskSetup => "Task Setup",
            Self::SetupFailure => "Setup Failure",
            Self::DriverFailure => "Driver Failure",
            Self::Started => "Started",
            Self::Terminated => "Terminated",
            Self::Restarting => "Restarting",
            Self::NotRestarting => "Not Restarting",
            Self::Killing => "Killing",
            Self::Killed => "Killed",
            Self::LeaderTaskDead => "Leader Task Dead",
            Self::SiblingTaskFailed => "Sibling Task Failed",
            Self::WaitingForShutdownDelay => "Waiting for shutdown delay",
            Self::Signaling => "Signaling",
            Self::NodeFailure => "Node Failure",
            Self::RestartSignaled => "Restart Signaled",
        }
    }
}

/// Something that happened to a task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Event {
    /// What.
    pub(crate) kind: EventKind,
    /// Wall clock, ms.
    pub(crate) at_ms: u64,
    /// In words.
    pub(crate) message: Box<str>,
    /// Exit code and signal, for the end of a run.
    pub(crate) exit: Option<(i32, i32)>,
}

/// The phase of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// Not to be started yet.
    Pending,
    /// To be started as soon as it is prepared.
    Preparing,
    /// The driver was asked to start it.
    Starting,
    /// Runs.
    Running,
    /// Runs; the kill signal is sent at this time since boot.
    ShutdownDelay {
        /// When.
        until_ms: u64,
    },
    /// The driver was asked to end it.
    Killing,
    /// The run has ended. The task runs again at this time since boot.
    Waiting {
        /// When.
        until_ms: u64,
    },
    /// The task has ended and will not run again.
    Dead,
}

/// One step of a task's machine: what it is given, and where its actions go.
pub(crate) struct TaskStep<'a> {
    /// Position of the task in its group.
    pub(crate) task: usize,
    pub(crate) policy: &'a TaskPolicy,
    /// Seed of the jitter of restarts.
    pub(crate) seed: u64,
    pub(crate) now: Moment,
    pub(crate) out: &'a mut Vec<Action>,
}

/// The state machine of one task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct TaskRunner {
    /// The present phase.
    pub(crate) phase: Phase,
    /// Ended with an error.
    pub(crate) failed: bool,
    /// Restarts so far.
    pub(crate) restarts: u32,
    /// Wall clock of the first start, ms; 0: not yet.
    pub(crate) started_at_ms: u64,
    /// Wall clock of the end, ms; 0: not yet.
    pub(crate) finished_at_ms: u64,
    /// Wall clock of the last restart, ms; 0: never.
    pub(crate) last_restart_ms: u64,
    /// Wall clock of the start of the present run, ms.
    pub(crate) run_started_at_ms: u64,
    /// Number of the present run, from 1.
    pub(crate) attempt: u32,
    /// Newest last. Invariant: at most [`EVENTS_MAX`].
    pub(crate) events: Vec<Event>,
    kill: Option<KillReason>,
    /// A user has asked for a restart, so the next end of the run is no failure.
    restart_wanted: bool,
    tracker: RestartTracker,
    /// Why the last run did not start or was lost, if the node caused that.
    pub(crate) node_failure: Option<Box<str>>,
    /// How many starts in a row have failed by a shortage or a passing fault.
    shortages: u32,
}

impl TaskRunner {
    /// A task that was just received.
    pub(crate) fn new(now: Moment) -> Self {
        let mut runner = Self {
            phase: Phase::Pending,
            failed: false,
            restarts: 0,
            started_at_ms: 0,
            finished_at_ms: 0,
            last_restart_ms: 0,
            run_started_at_ms: 0,
            attempt: 0,
            events: Vec::with_capacity(4),
            kill: None,
            restart_wanted: false,
            tracker: RestartTracker::default(),
            node_failure: None,
            shortages: 0,
        };
        runner.event(now, EventKind::Received, "Task received by client");
        runner
    }

    /// The task has ended and will not run again.
    pub(crate) fn is_dead(&self) -> bool {
        self.phase == Phase::Dead
    }

    /// Whether a process of the task may exist.
    pub(crate) fn may_have_process(&self) -> bool {
        match self.phase {
            Phase::Starting | Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing => true,
            Phase::Pending | Phase::Preparing | Phase::Waiting { .. } | Phase::Dead => false,
        }
    }

    /// Whether the task starts as soon as it is prepared.
    pub(crate) fn is_preparing(&self) -> bool {
        self.phase == Phase::Preparing
    }

    /// When [`Self::tick`] is due, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::ShutdownDelay { until_ms } | Phase::Waiting { until_ms } => Some(until_ms),
            Phase::Pending
            | Phase::Preparing
            | Phase::Starting
            | Phase::Running
            | Phase::Killing
            | Phase::Dead => None,
        }
    }

    /// Whether the run is being ended so that another can begin.
    pub(crate) fn ends_to_restart(&self) -> bool {
        self.phase == Phase::Killing && self.restart_wanted
    }

    /// A pending task is to start as soon as it is prepared.
    pub(crate) fn start(&mut self) {
        if self.phase == Phase::Pending {
            self.phase = Phase::Preparing;
        }
    }

    /// The task is prepared, so its run begins.
    pub(crate) fn launch(&mut self, step: &mut TaskStep<'_>) {
        assert_eq!(self.phase, Phase::Preparing, "only a prepared task that is to start starts");
        if self.attempt == 0 {
            self.event(step.now, EventKind::TaskSetup, "Building Task Directory");
        }
        self.attempt = self.attempt.saturating_add(1);
        self.phase = Phase::Starting;
        step.out.push(Action::Start { task: step.task, attempt: self.attempt });
    }

    /// The driver has started it.
    pub(crate) fn started(&mut self, step: &mut TaskStep<'_>) {
        if self.phase != Phase::Starting {
            return;
        }
        let now = step.now;
        self.phase = Phase::Running;
        self.node_failure = None;
        self.shortages = 0;
        self.run_started_at_ms = now.wall_ms;
        if self.started_at_ms == 0 {
            self.started_at_ms = now.wall_ms;
        }
        self.event(now, EventKind::Started, "Task started by client");
        if let Some(reason) = self.kill.take() {
            self.kill(&reason, step);
        }
    }

    /// The driver could not start it.
    pub(crate) fn start_failed(&mut self, error: &StartError, step: &TaskStep<'_>) {
        if self.phase != Phase::Starting {
            return;
        }
        let now = step.now;
        let StartError { message, recoverable, fault } = error;
        self.event(now, EventKind::DriverFailure, message);
        self.node_failure = (*fault == Fault::Node).then(|| message.as_str().into());
        if self.kill.is_some() {
            self.die(now, false);
            return;
        }
        if let Some(why) = reason_to_retry(*fault, self.shortages) {
            // Such a failure does not use up the restarts of the job's policy.
            let delay_ms = pause_ms(self.shortages);
            self.shortages = self.shortages.saturating_add(1);
            let delay = go_duration(delay_ms);
            let message = format!("{why}, task restarting in {delay}");
            self.event(now, EventKind::Restarting, &message);
            self.phase = Phase::Waiting { until_ms: now.since_boot_ms.saturating_add(delay_ms) };
            return;
        }
        let ending = if *recoverable { Ending::StartFailed } else { Ending::StartImpossible };
        self.after_end(ending, step);
    }

    /// Records why the task cannot be prepared yet.
    pub(crate) fn waits(&mut self, why: &str, now: Moment) {
        self.event(now, EventKind::TaskSetup, why);
    }

    /// A stage of the preparation has failed for good, so the task fails.
    pub(crate) fn setup_failed(&mut self, error: &str, fault: Fault, now: Moment) {
        assert!(
            !self.may_have_process(),
            "a task with a process is not given up: {:?}",
            self.phase
        );
        self.event(now, EventKind::SetupFailure, error);
        if fault == Fault::Node {
            self.event(now, EventKind::NodeFailure, "The node could not prepare the task");
            self.node_failure = Some(error.into());
        }
        self.die(now, true);
    }

    /// Its process has ended.
    pub(crate) fn exited(&mut self, exit: &ExitResult, step: &TaskStep<'_>) {
        if !self.may_have_process() {
            return;
        }
        let now = step.now;
        let mut message = match &exit.error {
            Some(error) => format!("Exit status unknown: {error}"),
            None => format!("Exit Code: {}", exit.exit_code),
        };
        if exit.signal != 0 {
            message = format!("{message}, Signal: {}", exit.signal);
        }
        if exit.oom_killed {
            message.push_str(", OOM Killed");
        }
        self.event(now, EventKind::Terminated, &message);
        if let Some(event) = self.events.last_mut() {
            event.exit = Some((exit.exit_code, exit.signal));
        }
        if self.kill.is_some() {
            self.event(now, EventKind::Killed, "Task successfully killed");
            self.die(now, false);
            return;
        }
        if exit.lost {
            self.node_failure = exit.error.as_deref().map(Into::into);
        }
        if std::mem::take(&mut self.restart_wanted) {
            self.event(now, EventKind::Restarting, "Task restarting in 0s");
            self.phase = Phase::Waiting { until_ms: now.since_boot_ms };
            return;
        }
        let ending = if exit.is_success() { Ending::Success } else { Ending::Failure };
        self.after_end(ending, step);
    }

    /// Begins to end the task. Idempotent: the first reason stays.
    pub(crate) fn kill(&mut self, reason: &KillReason, step: &mut TaskStep<'_>) {
        if self.kill.is_some() || self.is_dead() {
            return;
        }
        let (policy, now) = (step.policy, step.now);
        self.kill = Some(reason.clone());
        match reason {
            KillReason::Stopped => {}
            KillReason::LeaderDead => {
                self.event(now, EventKind::LeaderTaskDead, "Leader Task in Group dead");
            }
            KillReason::SiblingFailed(sibling) => {
                let message = format!("Task's sibling \"{sibling}\" failed");
                self.event(now, EventKind::SiblingTaskFailed, &message);
            }
            KillReason::RunTimeOver => self.event(now, EventKind::Killing, RUN_TIME_OVER),
        }
        if matches!(self.phase, Phase::Running | Phase::Killing) {
            let timeout = go_duration(policy.kill_timeout_ms);
            let message = format!("Sent interrupt. Waiting {timeout} before force killing");
            self.event(now, EventKind::Killing, &message);
        }
        match self.phase {
            Phase::Starting | Phase::Dead => {}
            Phase::Pending | Phase::Preparing | Phase::Waiting { .. } => {
                self.event(now, EventKind::Killed, "Task successfully killed");
                self.die(now, false);
            }
            Phase::Running if policy.shutdown_delay_ms > 0 => {
                let delay = go_duration(policy.shutdown_delay_ms);
                let message =
                    format!("Waiting for shutdown_delay of {delay} before killing the task.");
                self.event(now, EventKind::WaitingForShutdownDelay, &message);
                let until_ms = now.since_boot_ms.saturating_add(policy.shutdown_delay_ms);
                self.phase = Phase::ShutdownDelay { until_ms };
            }
            Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing => self.send_kill(step),
        }
    }

    /// Takes over a new policy from the servers. If it has no shutdown delay, a delay in progress
    /// ends now.
    pub(crate) fn revise(&mut self, policy: &TaskPolicy, now: Moment) {
        if let Phase::ShutdownDelay { until_ms } = &mut self.phase
            && policy.shutdown_delay_ms == 0
        {
            *until_ms = now.since_boot_ms.min(*until_ms);
        }
    }

    /// Restarts a running task on a user's request. Also accepted while the task ends for an
    /// earlier request; both requests then lead to one restart. `false`: the task does not run, or
    /// is to end for good.
    pub(crate) fn restart(&mut self, named: bool, step: &mut TaskStep<'_>) -> bool {
        let ends_to_restart = self.ends_to_restart();
        if self.kill.is_some() || !(ends_to_restart || self.phase == Phase::Running) {
            return false;
        }
        let which = if named { "task" } else { "running tasks" };
        let message = format!("User requested {which} to restart");
        self.event(step.now, EventKind::RestartSignaled, &message);
        self.restart_wanted = true;
        if !ends_to_restart {
            self.send_kill(step);
        }
        true
    }

    /// Restarts the task as a part of "restart all tasks" of a user. A task that has ended runs
    /// again too. `false`: the task is about to start anyway.
    pub(crate) fn restart_ended(&mut self, step: &mut TaskStep<'_>) -> bool {
        let now = step.now;
        let starts_anyway =
            matches!(self.phase, Phase::Pending | Phase::Preparing | Phase::Starting);
        if starts_anyway && self.kill.is_none() {
            return false;
        }
        self.event(now, EventKind::RestartSignaled, "User requested all tasks to restart");
        // The task was being killed because its leader or a sibling ended. That one restarts too.
        self.kill = None;
        match self.phase {
            Phase::Pending | Phase::Preparing | Phase::Starting => {}
            Phase::Running | Phase::ShutdownDelay { .. } => {
                self.restart_wanted = true;
                self.send_kill(step);
            }
            Phase::Killing => self.restart_wanted = true,
            Phase::Waiting { .. } => self.phase = Phase::Waiting { until_ms: now.since_boot_ms },
            Phase::Dead => {
                self.failed = false;
                self.finished_at_ms = 0;
                self.node_failure = None;
                self.tracker.reset();
                self.phase = Phase::Waiting { until_ms: now.since_boot_ms };
            }
        }
        true
    }

    /// Records that a signal is being sent. `false`: the task does not run. A task that is being
    /// stopped still runs.
    pub(crate) fn signaled(&mut self, signal: &str, now: Moment) -> bool {
        let runs = match self.phase {
            Phase::Running | Phase::ShutdownDelay { .. } | Phase::Killing => true,
            Phase::Pending
            | Phase::Preparing
            | Phase::Starting
            | Phase::Waiting { .. }
            | Phase::Dead => false,
        };
        if runs {
            let message = format!("Task being sent a signal: {signal}");
            self.event(now, EventKind::Signaling, &message);
        }
        runs
    }

    /// Restarts or kills the task if a deadline has passed.
    pub(crate) fn tick(&mut self, step: &mut TaskStep<'_>) {
        let now = step.now;
        match self.phase {
            Phase::Waiting { until_ms } if until_ms <= now.since_boot_ms => {
                self.restarts = self.restarts.saturating_add(1);
                self.last_restart_ms = now.wall_ms;
                self.phase = Phase::Preparing;
            }
            Phase::ShutdownDelay { until_ms } if until_ms <= now.since_boot_ms => {
                self.send_kill(step);
            }
            Phase::Waiting { .. }
            | Phase::ShutdownDelay { .. }
            | Phase::Pending
            | Phase::Preparing
            | Phase::Starting
            | Phase::Running
            | Phase::Killing
            | Phase::Dead => {}
        }
    }

    /// A run with this number may exist, found by its files on disk. Nothing else is known of it.
    pub(crate) fn found(&mut self, attempt: u32) {
        self.attempt = attempt;
        self.phase = Phase::Starting;
    }

    /// The agent has started again. A task that was to start waits until it is asked for again.
    pub(crate) fn interrupted(&mut self) {
        if self.phase == Phase::Preparing {
            self.phase = Phase::Pending;
        }
    }

    /// The process is gone through no fault of the task: the machine booted, or the agent stopped
    /// it. The task becomes pending and starts again. A task that was being killed is dead.
    pub(crate) fn rewind(&mut self, booted: bool, now: Moment) {
        self.interrupted();
        if booted {
            self.tracker.reset();
        }
        if self.is_dead() || !(booted || self.may_have_process()) {
            return;
        }
        if self.kill.is_some() {
            self.event(now, EventKind::Killed, "Task successfully killed");
            self.die(now, false);
        } else {
            // The next start also fulfils a restart that a user asked for.
            self.restart_wanted = false;
            self.phase = Phase::Pending;
        }
    }

    /// The executor went away together with the agent, so it is unknown how the run ended. The task
    /// becomes pending and starts again.
    pub(crate) fn lost(&mut self, now: Moment) {
        if !self.may_have_process() {
            return;
        }
        self.event(now, EventKind::Terminated, "Exit status unknown: the executor is gone");
        if let Some(event) = self.events.last_mut() {
            event.exit = Some((LOST_EXIT_CODE, 0));
        }
        if self.kill.is_none() {
            let message = "Lost together with the agent, task restarting at once: not counted";
            self.event(now, EventKind::Restarting, message);
        }
        self.rewind(false, now);
    }

    /// Sends the kill again, if the agent ended while one was in progress.
    pub(crate) fn resume_kill(&self, step: &mut TaskStep<'_>) {
        if self.phase == Phase::Killing {
            step.out.push(Action::Kill { task: step.task });
        }
    }

    fn after_end(&mut self, ending: Ending, step: &TaskStep<'_>) {
        let (policy, now) = (step.policy, step.now);
        let decision = self.tracker.decide(
            &policy.restart,
            policy.restart_on_success,
            ending,
            now.since_boot_ms,
            step.seed,
        );
        match decision {
            Decision::Complete => self.die(now, false),
            Decision::Fail { reason } => {
                self.event(now, EventKind::NotRestarting, &reason);
                self.die(now, true);
            }
            Decision::Restart { delay_ms, reason } => {
                let message = format!("{reason}, task restarting in {}", go_duration(delay_ms));
                self.event(now, EventKind::Restarting, &message);
                self.phase =
                    Phase::Waiting { until_ms: now.since_boot_ms.saturating_add(delay_ms) };
            }
        }
    }

    fn send_kill(&mut self, step: &mut TaskStep<'_>) {
        self.phase = Phase::Killing;
        step.out.push(Action::Kill { task: step.task });
    }

    fn die(&mut self, now: Moment, failed: bool) {
        self.phase = Phase::Dead;
        self.failed = failed;
        self.finished_at_ms = now.wall_ms;
    }

    fn event(&mut self, now: Moment, kind: EventKind, message: &str) {
        let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
        let message = message[..end].into();
        self.push(Event { kind, at_ms: now.wall_ms, message, exit: None });
    }

    fn push(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.remove(0);
        }
        self.events.push(event);
    }
}

#[cfg(test)]
mod tests;
