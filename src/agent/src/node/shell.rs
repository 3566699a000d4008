//! The shell around the state machine of one allocation. It performs the machine's actions, tells
//! it what happened, stores its state, and reports its status. Each allocation has one shell, which
//! is one async task.
//!
//! Order: a change is stored first, then reported, then acted upon.

mod stages;

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::FuturesUnordered};
use ground::{
    removal::remove_tree,
    rt::{self, Notify, mpsc, oneshot, run_blocking, sleep, sleep_until, watch},
};
use proto::v1;

use crate::{
    allocation::{
        runner::{AllocationRunner, StagePlace, Step},
        spec::AllocationSpec,
        state::{AllocationDirectory, StateDirectory, StoredAllocation},
    },
    driver::{self, Drivers, Recovered, Run, TaskContext},
    executor::process::kill_run,
    machine::shortage::Shortages,
    session::{meta::NodeMeta, status::Outbox},
    stage::{StageError, Stages},
    task::{
        action::Action,
        run::{ExitResult, Fault, Outcome, StartError},
        runner::Phase,
    },
    time::Clock,
};

/// Pause before a kill that could not be delivered is repeated.
const KILL_RETRY: Duration = Duration::from_secs(1);

/// What all shells of a node share.
pub struct Shared {
    pub(crate) clock: Clock,
    pub state: StateDirectory,
    pub(crate) outbox: Arc<Outbox>,
    /// The node's properties (`node.…`, `attr.…`, `meta.…`) for interpolation in job files.
    pub(crate) node_names: Arc<BTreeMap<String, String>>,
    /// Metadata changed at run time. It overrides the `meta.…` in `node_names`.
    pub(crate) meta: Arc<NodeMeta>,
    pub(crate) executor_binary: Arc<Path>,
    pub(crate) drivers: Drivers,
    pub(crate) stages: Stages,
    pub shortages: Arc<Shortages>,
    /// Notified when an allocation has ended.
    pub(crate) ended: Notify,
    /// How many tasks this agent has ended because their allocations ran too long.
    pub(crate) too_long: AtomicU64,
}

impl Shared {
    /// The node's properties with the metadata changed at run time.
    fn names(&self) -> Arc<BTreeMap<String, String>> {
        let changes = self.meta.changes();
        if changes.is_empty() {
            return Arc::clone(&self.node_names);
        }
        let mut names = BTreeMap::clone(&self.node_names);
        for (key, value) in changes {
            let key = format!("meta.{key}");
            match value {
                Some(value) => drop(names.insert(key, value)),
                None => drop(names.remove(&key)),
            }
        }
        Arc::new(names)
    }
}

/// What the servers and the agent want of an allocation. Only the newest wish counts, so wishes do
/// not queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wish {
    /// End the allocation.
    pub(crate) stop: bool,
    /// The servers have said that the allocation runs and that its tasks may start.
    pub(crate) start: bool,
    /// End the processes because the agent ends; the next agent starts them again.
    pub(crate) suspend: bool,
    /// The last status sequence that the servers have, as long as they do not consider the
    /// allocation ended.
    pub(crate) sequence: u64,
    /// The specification to run, which may be that of an in-place update.
    pub(crate) spec: Option<Arc<AllocationSpec>>,
}

/// A user's request to an allocation, carried out once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Order {
    /// Restart running tasks.
    Restart {
        /// The task; all running ones when `None`.
        task: Option<String>,
    },
    /// Restart all tasks, including those that have ended.
    RestartAll,
    /// Send a signal.
    Signal {
        /// The task; all running ones when `None`.
        task: Option<String>,
        /// Name or number.
        signal: String,
    },
}

impl Order {
    /// The task that the order names, if it names one.
    pub fn task(&self) -> Option<&str> {
        match self {
            Self::Restart { task } | Self::Signal { task, .. } => task.as_deref(),
            Self::RestartAll => None,
        }
    }
}

/// An order, with the channel for its result.
pub(crate) type Ordered = (Order, oneshot::Sender<Result<(), String>>);

/// An allocation as other parts of the agent see it.
#[derive(Clone, Debug)]
pub struct View {
    pub spec: Arc<AllocationSpec>,
    pub status: v1::AllocationStatus,
    pub terminal: bool,
    /// It has ended, and what prepared it is undone.
    pub(crate) over: bool,
    pub(crate) stopping: bool,
}

/// How the agent came to an allocation.
pub(crate) enum Origin {
    /// The servers have just sent it.
    New,
    /// Found in the state directory.
    Stored {
        /// The last agent stopped its tasks when it ended, or was about to.
        suspended: bool,
        /// The machine has booted since it was stored.
        booted: bool,
    },
}

enum Happening {
    /// The error comes with what it means for users.
    Prepared(StagePlace, Result<(), (&'static str, StageError)>),
    Undone(StagePlace, io::Result<()>),
    Started(usize, Result<Run, StartError>),
    Recovered(usize, Result<Recovered, StartError>),
    Exited(usize, Outcome),
    /// For the run of a task with this number.
    KillSent(usize, u32, std::io::Result<()>),
    KillAgain(usize, u32),
    Signaled,
}

/// The shell of one allocation.
pub(crate) struct Shell {
    shared: Arc<Shared>,
    spec: Arc<AllocationSpec>,
    /// The specification of the last wish, from which `spec` was made. Wishes repeat it, and this
    /// recognizes the repetition.
    taken: Option<Arc<AllocationSpec>>,
    runner: AllocationRunner,
    directory: AllocationDirectory,
    /// The tasks ended with the agent's suspension or the machine's boot, and wait until the
    /// servers say that they may start. In the meantime the servers may have given the allocation
    /// up and placed it elsewhere. Invariant: nothing runs or starts while this is set.
    held: bool,
    /// The agent has restarted and the servers have not been heard yet. A run that the last agent
    /// did not come to start waits, because the servers may have changed their minds. Running tasks
    /// go on, and are restarted by their policy.
    unheard: bool,
    runs: Vec<Option<Run>>,
    view: Arc<Mutex<View>>,
    wishes: watch::Receiver<Wish>,
    orders: mpsc::Receiver<Ordered>,
    /// Requests for restarts that wait for an answer. Each has a connection of its own, so the
    /// bound on connections bounds them.
    restarts: Vec<AwaitedRestart>,
    happenings: FuturesUnordered<BoxFuture<'static, Happening>>,
    under_way: stages::UnderWay,
    actions: Vec<Action>,
}

/// A request for a restart. It is answered when these runs (position, attempt) have ended.
struct AwaitedRestart {
    runs: Vec<(usize, u32)>,
    answer: oneshot::Sender<Result<(), String>>,
}

impl Shell {
    /// A shell, and the view of it for other parts of the agent.
    pub(crate) fn new(
        shared: Arc<Shared>,
        spec: Arc<AllocationSpec>,
        runner: AllocationRunner,
        (wishes, orders): (watch::Receiver<Wish>, mpsc::Receiver<Ordered>),
    ) -> (Self, Arc<Mutex<View>>) {
        let view = Arc::new(Mutex::new(view_of(&spec, &runner)));
        let directory = shared.state.allocation(spec.id);
        let shell = Self {
            runs: spec.tasks.iter().map(|_| None).collect(),
            view: Arc::clone(&view),
            taken: None,
            happenings: FuturesUnordered::new(),
            under_way: Vec::new(),
            actions: Vec::new(),
            shared,
            spec,
            runner,
            directory,
            held: false,
            unheard: false,
            wishes,
            orders,
            restarts: Vec::new(),
        };
        (shell, view)
    }

    /// The machine, and what a step of it needs.
    fn step(&mut self) -> (&mut AllocationRunner, Step<'_>) {
        let step = Step {
            policy: &self.spec.policy,
            rules: &self.shared.stages.rules,
            now: self.shared.clock.now(),
            out: &mut self.actions,
        };
        (&mut self.runner, step)
    }

    /// Runs the allocation until its tasks have ended and what prepared them is undone.
    pub(crate) async fn run(mut self, origin: Origin) {
        self.begin(origin).await;
        loop {
            self.publish().await;
            self.answer_restarts();
            if self.runner.is_over() {
                break;
            }
            let wish = self.wishes.borrow_and_update().clone();
            if wish.suspend {
                self.suspend().await;
                return;
            }
            self.obey(wish);
            // An allocation that is stopped before its start ends at once, without an action. Store
            // and report that before waiting.
            if !self.actions.is_empty() || self.runner.is_changed() {
                continue;
            }
            // A held allocation starts nothing, so its deadlines wait too. One that has ended has
            // only deadlines of undos.
            let waits = self.held && !self.runner.is_terminal();
            let deadline = self.runner.next_deadline().filter(|_| !waits);
            let due = async {
                match deadline {
                    Some(at) => sleep_until(self.shared.clock.instant(at)).await,
                    None => std::future::pending().await,
                }
            };
            rt::select! {
                biased;
                changed = self.wishes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
                Some(happening) = self.happenings.next() => {
                    self.take(happening);
                    // Take everything that is ready, so that it is stored and reported once.
                    while let Some(Some(more)) = self.happenings.next().now_or_never() {
                        self.take(more);
                    }
                }
                Some((order, answer)) = self.orders.recv() => self.carry_out(&order, answer),
                () = due => {
                    let (runner, mut step) = self.step();
                    let too_long = runner.tick(&mut step);
                    self.shared.too_long.fetch_add(too_long as u64, Ordering::Relaxed);
                }
            }
        }
        self.shared.ended.notify_one();
    }

    async fn begin(&mut self, origin: Origin) {
        if matches!(origin, Origin::Stored { suspended: true, booted: false }) {
            self.end_what_is_left().await;
        }
        let (runner, mut step) = self.step();
        match origin {
            Origin::New => runner.start(&mut step),
            Origin::Stored { suspended, booted } if suspended || booted => {
                runner.rewind(booted, &mut step);
                self.held = true;
            }
            Origin::Stored { .. } => {
                runner.resumed(&mut step);
                self.unheard = true;
                for (position, task) in self.runner.tasks().iter().enumerate() {
                    if task.may_have_process() {
                        let context = self.context(position, task.attempt);
                        let found = recover(context, task.run_started_at_ms);
                        self.happenings.push(
                            found.map(move |found| Happening::Recovered(position, found)).boxed(),
                        );
                    }
                }
            }
        }
    }

    /// Stores and reports a change, then performs the actions. A start, a stage and an undo are not
    /// performed if the state could not be stored.
    async fn publish(&mut self) {
        let mut stored = Ok(());
        let is_unstored = self.runner.take_unstored();
        let is_changed = self.runner.take_changed();
        if is_changed || is_unstored {
            stored = self.store(self.held).await;
            let view = view_of(&self.spec, &self.runner);
            if is_changed {
                self.shared.outbox.report(self.spec.id, view.status.clone());
            }
            *self.view.lock().unwrap_or_else(PoisonError::into_inner) = view;
        }
        let not_stored = stored.as_ref().err();
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Start { task, attempt } => match not_stored {
                    None => self.start(task, attempt),
                    Some(error) => self.start_without_state(task, error),
                },
                Action::Kill { task } => self.kill(task),
                Action::Prepare { stage, task, again } => {
                    self.prepare((stage, task), again, not_stored);
                }
                Action::Abandon { task } => self.abandon(task),
                Action::Undo { stage, task } => self.undo((stage, task), not_stored),
            }
        }
    }

    /// Reports a start as failed, because the state could not be stored.
    fn start_without_state(&self, task: usize, error: &io::Error) {
        let message = format!("cannot store the allocation's state: {error}");
        let fault = Fault::of(error);
        let recoverable = fault != Fault::Task;
        let failed = Err(StartError { message, recoverable, fault });
        self.happenings.push(std::future::ready(Happening::Started(task, failed)).boxed());
    }

    async fn store(&mut self, suspended: bool) -> std::io::Result<()> {
        let directory = self.directory.clone();
        let boot_id = self.shared.state.boot_id;
        let parts = (Arc::clone(&self.spec), self.runner.clone());
        let rules = &self.shared.stages.rules;
        let stored = StoredAllocation::new(boot_id, suspended, rules, parts);
        let stored = run_blocking(move || directory.store(&stored)).await;
        if let Err(error) = &stored {
            tracing::warn!(allocation = %self.spec.id, %error, "cannot store the state of an allocation");
            self.shared.shortages.met(error);
        }
        stored
    }

    fn start(&mut self, task: usize, attempt: u32) {
        let context = self.context(task, attempt);
        let started = async move {
            // Delete the files of the run before the previous one; nothing needs them.
            if let Some(old @ 1..) = attempt.checked_sub(2) {
                let old = context.directory.run(&context.task().name, old);
                if let Err(error) = run_blocking(move || remove_tree(&old)).await {
                    tracing::warn!(%error, "cannot delete the files of an ended run");
                }
            }
            Happening::Started(task, driver::start(&context).await)
        };
        self.happenings.push(started.boxed());
    }

    fn kill(&mut self, task: usize) {
        // No run is known while a recovery is in progress. The recovery asks for the kill again.
        let Some(run) = self.runs[task].clone() else { return };
        let attempt = self.runner.tasks()[task].attempt;
        let (signal, timeout_ms) = self.kill_order(task);
        let sent =
            async move { Happening::KillSent(task, attempt, run.kill(&signal, timeout_ms).await) };
        self.happenings.push(sent.boxed());
    }

    fn obey(&mut self, wish: Wish) {
        let now = self.shared.clock.now();
        if let Some(spec) = wish.spec
            && !self.taken.as_ref().is_some_and(|taken| Arc::ptr_eq(taken, &spec))
        {
            if let Some(spec) = spec.in_order_of(&self.spec) {
                self.spec = spec;
                self.runner.revise(&self.spec.policy, now);
            }
            self.taken = Some(spec);
        }
        self.runner.raise_sequence(wish.sequence);
        let (runner, mut step) = self.step();
        if wish.stop {
            runner.stop(&mut step);
        }
        if (self.held || self.unheard) && wish.start {
            (self.held, self.unheard) = (false, false);
            let (runner, mut step) = self.step();
            runner.start(&mut step);
        }
    }

    /// Answers the restarts whose runs have ended. Their end is stored by now.
    fn answer_restarts(&mut self) {
        let tasks = self.runner.tasks();
        let runs = |(task, attempt): &(usize, u32)| {
            tasks[*task].attempt == *attempt && tasks[*task].may_have_process()
        };
        // The client may have gone. The same holds for every answer.
        self.restarts.retain(|restart| !restart.answer.is_closed());
        for ended in self.restarts.extract_if(.., |restart| !restart.runs.iter().any(runs)) {
            drop(ended.answer.send(Ok(())));
        }
    }

    /// Carries out an order. A restart is answered when the runs have ended, a signal when it was
    /// delivered.
    fn carry_out(&mut self, order: &Order, answer: oneshot::Sender<Result<(), String>>) {
        let now = self.shared.clock.now();
        let name = order.task();
        let chosen: Vec<usize> = self
            .spec
            .tasks
            .iter()
            .enumerate()
            .filter(|(_, task)| name.is_none_or(|name| name == task.name))
            .map(|(position, _)| position)
            .collect();
        let refused = || Err("Task not running".to_owned());
        match order {
            Order::Restart { .. } | Order::RestartAll => {
                let (runner, mut step) = self.step();
                let taken = match order {
                    Order::RestartAll => runner.restart_all(&mut step),
                    Order::Restart { .. } | Order::Signal { .. } => {
                        runner.restart(&chosen, name.is_some(), &mut step) > 0
                    }
                };
                if taken {
                    let runs = self.runner.ending_to_restart(&chosen);
                    self.restarts.push(AwaitedRestart { runs, answer });
                } else {
                    drop(answer.send(refused()));
                }
            }
            Order::Signal { signal, .. } => {
                let runs: Vec<Run> = chosen
                    .into_iter()
                    .filter(|task| self.runner.signaled(*task, signal, now))
                    .filter_map(|task| self.runs[task].clone())
                    .collect();
                let signal = signal.clone();
                self.happenings.push(
                    async move {
                        let mut sent = if runs.is_empty() { refused() } else { Ok(()) };
                        for run in runs {
                            if let Err(error) = run.signal(&signal).await {
                                sent = Err(error.to_string());
                            }
                        }
                        drop(answer.send(sent));
                        Happening::Signaled
                    }
                    .boxed(),
                );
            }
        }
    }

    fn take(&mut self, happening: Happening) {
        let (runner, mut step) = self.step();
        match happening {
            Happening::Prepared(place, prepared) => self.take_prepared(place, prepared),
            Happening::Undone(place, undone) => self.take_undone(place, undone),
            Happening::Started(task, Ok(run)) => {
                runner.started(task, &mut step);
                self.runs[task] = Some(run.clone());
                self.shared.shortages.started();
                self.watch(task, run);
            }
            Happening::Started(task, Err(mut error)) => {
                if error.fault == Fault::Shortage {
                    self.shared.shortages.met_as(&error.message);
                } else if error.fault == Fault::Node
                    && error.recoverable
                    && self.shared.shortages.is_seen()
                {
                    // A shortage causes many kinds of errors, so this one is taken for a part of
                    // it.
                    error.fault = Fault::Shortage;
                }
                let (runner, mut step) = self.step();
                runner.start_failed(task, &error, &mut step);
            }
            Happening::Recovered(task, Ok(Recovered::Run(run))) => {
                if runner.tasks()[task].phase == Phase::Starting {
                    let started =
                        async move { Happening::Started(task, run.started().await.map(|()| run)) };
                    self.happenings.push(started.boxed());
                } else {
                    runner.resume(task, &mut step);
                    self.runs[task] = Some(run.clone());
                    self.watch(task, run);
                }
            }
            Happening::Recovered(task, Ok(Recovered::Never)) => {
                runner.never_started(task, &mut step);
                self.start_if_heard();
            }
            Happening::Recovered(task, Ok(Recovered::Lost)) => {
                runner.lost(task, &mut step);
                self.start_if_heard();
            }
            Happening::Recovered(task, Err(error)) => {
                let exit = ExitResult {
                    exit_code: -1,
                    error: Some(error.message),
                    ..ExitResult::default()
                };
                runner.exited(task, &exit, &mut step);
            }
            Happening::Exited(task, outcome) => {
                self.runs[task] = None;
                let exit = match outcome {
                    // During a shortage the kernel may have killed the executor for lack of memory.
                    // That is not held against the node.
                    Outcome::Exited { result, .. } if self.shared.shortages.is_seen() => {
                        ExitResult { lost: false, ..result }
                    }
                    Outcome::Exited { result, .. } => result,
                    Outcome::StartFailed { error, .. } => {
                        ExitResult { exit_code: -1, error: Some(error), ..ExitResult::default() }
                    }
                };
                let (runner, mut step) = self.step();
                runner.exited(task, &exit, &mut step);
            }
            Happening::KillSent(_, _, Ok(())) | Happening::Signaled => {}
            Happening::KillSent(task, attempt, Err(error)) => {
                tracing::debug!(allocation = %self.spec.id, %error, "a kill was not delivered");
                let again = async move {
                    sleep(KILL_RETRY).await;
                    Happening::KillAgain(task, attempt)
                };
                self.happenings.push(again.boxed());
            }
            Happening::KillAgain(task, attempt) => {
                // Kill again only if it is still the same run: the next run must not be killed for
                // this.
                let present = &self.runner.tasks()[task];
                if (present.phase, present.attempt) == (Phase::Killing, attempt) {
                    self.kill(task);
                }
            }
        }
    }

    /// Starts what has not started, if the servers have said that it may.
    fn start_if_heard(&mut self) {
        if !self.unheard {
            let (runner, mut step) = self.step();
            runner.start(&mut step);
        }
    }

    fn watch(&self, task: usize, run: Run) {
        let ended = async move { Happening::Exited(task, run.wait().await) };
        self.happenings.push(ended.boxed());
    }

    /// Ends the processes because the agent ends. The state machine is rewound, so that the next
    /// agent starts them again.
    async fn suspend(mut self) {
        // Store first that the allocation is suspended. If the agent dies now, the next one does
        // not take the ends for failures of the tasks.
        drop(self.store(true).await);
        let live: Vec<_> = (0..self.runs.len())
            .filter(|task| self.runner.tasks()[*task].may_have_process())
            .collect();
        // Wait for starts in progress, because their processes would stay alive otherwise. A start
        // that is only planned has no process.
        while live.iter().any(|task| self.is_starting(*task)) {
            match self.happenings.next().await {
                Some(happening) => self.take(happening),
                None => break,
            }
        }
        let ends: FuturesUnordered<_> = live
            .into_iter()
            .filter_map(|task| Some(end(self.runs[task].clone()?, self.kill_order(task))))
            .collect();
        ends.collect::<Vec<_>>().await;
        let (runner, mut step) = self.step();
        runner.rewind(false, &mut step);
        // A task may have ended for good meanwhile. Count that as a change, so that the next agent
        // reports it.
        self.runner.take_changed();
        drop(self.store(true).await);
    }

    /// Ends the processes that an earlier agent left because it died while it was suspending.
    async fn end_what_is_left(&mut self) {
        let tasks = self.runner.tasks().iter().enumerate();
        let ends: FuturesUnordered<_> = tasks
            .filter(|(_, task)| task.may_have_process())
            .map(|(position, task)| {
                let found = recover(self.context(position, task.attempt), task.run_started_at_ms);
                let order = self.kill_order(position);
                async move {
                    // A start in progress will become a run, so wait for it.
                    if let Ok(Recovered::Run(run)) = found.await
                        && run.started().await.is_ok()
                    {
                        end(run, order).await;
                    }
                }
            })
            .collect();
        ends.collect::<Vec<_>>().await;
    }

    /// Whether a start is in progress that may become a run.
    fn is_starting(&self, task: usize) -> bool {
        let is_only_asked_for =
            |action: &Action| matches!(action, Action::Start { task: of, .. } if *of == task);
        self.runs[task].is_none()
            && self.runner.tasks()[task].may_have_process()
            && !self.actions.iter().any(is_only_asked_for)
    }

    /// The signal that asks a task to end, and the time until SIGKILL, ms.
    fn kill_order(&self, task: usize) -> (String, u64) {
        let timeout_ms = self.spec.policy.tasks[task].kill_timeout_ms;
        (self.spec.tasks[task].kill_signal.clone(), timeout_ms)
    }

    fn context(&self, task: usize, attempt: u32) -> TaskContext {
        TaskContext {
            spec: Arc::clone(&self.spec),
            place: task,
            node: self.shared.names(),
            directory: self.directory.clone(),
            attempt,
            executor_binary: Arc::clone(&self.shared.executor_binary),
            drivers: self.shared.drivers.clone(),
        }
    }
}

/// Finds a task's run after a restart of the agent. A run that cannot be taken over could be
/// neither watched nor ended, so it is killed before the error is returned.
async fn recover(context: TaskContext, run_started_at_ms: u64) -> Result<Recovered, StartError> {
    let found = driver::recover(&context, run_started_at_ms).await;
    while found.is_err() {
        let run = context.run_directory();
        let Err(error) = run_blocking(move || kill_run(&run)).await else { break };
        tracing::warn!(task = %context.task().name, %error, "cannot kill what is left of a task");
        sleep(KILL_RETRY).await;
    }
    found
}

/// Ends a run, and waits until it has ended.
async fn end(run: Run, (signal, timeout_ms): (String, u64)) {
    let ask = async {
        while let Err(error) = run.kill(&signal, timeout_ms).await {
            tracing::debug!(%error, "a kill was not delivered");
            sleep(KILL_RETRY).await;
        }
        std::future::pending::<()>().await;
    };
    rt::select! {
        biased;
        _ = run.wait() => {}
        () = ask => {}
    }
}

/// The view of an allocation in the state of `runner`.
pub(crate) fn view_of(spec: &Arc<AllocationSpec>, runner: &AllocationRunner) -> View {
    View {
        spec: Arc::clone(spec),
        status: runner.status(&spec.policy, spec.id.0),
        terminal: runner.is_terminal(),
        over: runner.is_over(),
        stopping: runner.is_stopping(),
    }
}

#[cfg(test)]
mod tests;
