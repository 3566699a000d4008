//! What an allocation and its tasks go through before a task starts, as a pure state machine:
//! named stages, in the order of the agent's list. It does no I/O. It asks for each stage with an
//! [`Action`] and is told the result. It knows of a stage only its [`StageRule`]. What the stages
//! do is in the room `stage`.
//!
//! There is one [`Preparation`] for the allocation and one for each task. The stages of the
//! allocation come first, once. Then each task goes through the stages of a task by itself, so that
//! a failure is that task's failure.
//!
//! ```text
//!                    ┌─────────────── the next stage that is missing ──────────────┐
//!                    ▼                                                             │
//!   Idle ─begin─► Doing(stage) ─prepared──────────────────────────────────► Idle ──┴─► ready
//!                    │ ▲   └─failed for good─► Idle: the task or the allocation fails
//!                    │ └──pause over──┐
//!                    └─failed for now─► Paused
//!
//!   end, with a stage under way: Doing ─abandon─► Abandoned ─its result─► Idle
//!   Idle ─undo─► Undoing(last stage begun) ─undone─► Idle … until no stage is begun: clear
//!                   │ ▲
//!                   ▼ └─pause over── UndoPaused
//! ```
//!
//! What is stored are three sets of stages; what is under way is not, because it ends with the
//! agent. Invariant: `due ⊆ done ⊆ begun`, and a stage is
//!
//! - `begun` from before its first action until it is undone: it may have left something;
//! - `done` when it is complete. When the agent or the machine starts again, the rule of the stage
//!   says whether it becomes `due`: it is done again, and the action says so;
//! - *missing* while it is not done, or due. A task starts when nothing is missing.
//!
//! **Failures.** A shortage of the machine is waited out with pauses (`task/retry.rs`), and what
//! may pass is tried again a few times. The first failure is an event of the tasks. Any other fault
//! fails the task, or for a stage of the allocation all tasks. There is one exception: if a task
//! has a process, a stage that fails for good counts as done. A running task is neither held up nor
//! given up, because it is prepared already.
//!
//! **Undo.** When all tasks have ended for good, for whatever reason, the stages that were begun
//! are undone in reverse order: those of each task, then those of the allocation. A task's stages
//! stay until then, because a user may restart a task that has ended while the others run. A stage
//! whose traces are all in the allocation's directory has no undo: garbage collection deletes the
//! directory, which is kept until then for people who look for logs.
//!
//! The report that the tasks have ended does not wait for the undo. What the servers then give to
//! others are shares of this machine. No process is left that uses them, except ports, and what a
//! stage may hold of those is used on this machine alone: the node lets an allocation that needs a
//! port, or replaces this one, wait until all is undone ([`Preparations::is_clear`]). So an undo
//! that fails for a long time holds up its successor, and nobody else.
//!
//! **Order of storing.** The state is stored before a stage is begun that leaves something outside
//! the directory, and before each undo. An agent that is killed in between finds the set of begun
//! stages, and undoes or repeats them. It finds what a stage has made by the allocation's
//! specification and directory alone.
//!
//! **Cost.** A preparation has 32 bytes. A step of an allocation without a missing stage compares
//! two sets per task and allocates nothing. With today's stages, which are all in the directory, an
//! allocation is stored and reported as often as it would be without stages.

use serde::{Deserialize, Serialize};

use crate::{
    task::{
        action::{Action, StageId},
        retry::{pause_ms, reason_to_retry},
        run::Fault,
    },
    time::Moment,
};

/// How many stages a list may have.
pub(crate) const STAGES_MAX: usize = 32;

/// What a stage is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Scope {
    /// The allocation: done once, before any task.
    Allocation,
    /// Each task: done before the task's first start.
    Task,
}

/// When a stage that was complete is done again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Again {
    /// Never: what it made survives the agent and the machine's boot.
    Never,
    /// After the machine has booted.
    AfterBoot,
    /// After each start of the agent.
    AfterAgent,
}

/// Where a stage leaves its traces, which says whether it has an undo.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// In the allocation's directory. They are deleted with it, so there is nothing to undo.
    Directory,
    /// Elsewhere on the machine.
    Outside,
}

/// What the machine must know of a stage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StageRule {
    /// The name that is stored for it.
    pub(crate) name: &'static str,
    pub(crate) scope: Scope,
    pub(crate) again: Again,
    pub(crate) place: Place,
}

/// A set of stages of one list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct StageSet(u32);

impl StageSet {
    fn bit(stage: StageId) -> u32 {
        1_u32.checked_shl(u32::from(stage.0)).expect("a list has at most STAGES_MAX stages")
    }

    fn of(stages: impl Iterator<Item = StageId>) -> Self {
        Self(stages.fold(0, |bits, stage| bits | Self::bit(stage)))
    }

    fn contains(self, stage: StageId) -> bool {
        self.0 & Self::bit(stage) != 0
    }

    fn add(&mut self, stage: StageId) {
        self.0 |= Self::bit(stage);
    }

    fn remove(&mut self, stage: StageId) {
        self.0 &= !Self::bit(stage);
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The first stage in the order of the list.
    fn first(self) -> Option<StageId> {
        self.iter().next()
    }

    /// The last stage in the order of the list.
    fn last(self) -> Option<StageId> {
        self.iter().next_back()
    }

    /// The stages in the order of the list.
    pub(crate) fn iter(self) -> impl DoubleEndedIterator<Item = StageId> {
        const BITS: u8 = 32;
        (0..BITS).map(StageId).filter(move |stage| self.contains(*stage))
    }

    /// The stages with their positions in another list. `Err`: one that is not there.
    fn renumbered(self, places: &[Option<StageId>]) -> Result<Self, StageId> {
        let place =
            |stage: StageId| places.get(usize::from(stage.0)).copied().flatten().ok_or(stage);
        let mut renumbered = Self::default();
        for stage in self.iter() {
            renumbered.add(place(stage)?);
        }
        Ok(renumbered)
    }
}

/// The rules of all stages in a list, in its order.
#[derive(Clone, Debug, Default)]
pub(crate) struct StageRules {
    rules: Vec<StageRule>,
    allocation: StageSet,
    task: StageSet,
    after_boot: StageSet,
    after_agent: StageSet,
    outside: StageSet,
}

impl StageRules {
    /// The rules of a list.
    pub(crate) fn of(rules: Vec<StageRule>) -> Self {
        assert!(rules.len() <= STAGES_MAX, "a list has at most {STAGES_MAX} stages");
        let set = |is_in: &dyn Fn(&StageRule) -> bool| {
            let stages = (0..).map(StageId).zip(&rules);
            StageSet::of(stages.filter(|(_, rule)| is_in(rule)).map(|(stage, _)| stage))
        };
        Self {
            allocation: set(&|rule| rule.scope == Scope::Allocation),
            task: set(&|rule| rule.scope == Scope::Task),
            after_boot: set(&|rule| rule.again >= Again::AfterBoot),
            after_agent: set(&|rule| rule.again == Again::AfterAgent),
            outside: set(&|rule| rule.place == Place::Outside),
            rules,
        }
    }

    /// The stages for an allocation, or for each task.
    pub(crate) fn of_scope(&self, scope: Scope) -> StageSet {
        match scope {
            Scope::Allocation => self.allocation,
            Scope::Task => self.task,
        }
    }

    /// The names of all stages.
    pub(crate) fn names(&self) -> Vec<String> {
        self.rules.iter().map(|rule| rule.name.to_owned()).collect()
    }
}

/// What is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Phase {
    #[default]
    Idle,
    Doing(StageId),
    /// Is prepared again at this time since boot, ms.
    Paused(u64),
    /// Under way, but no longer wanted.
    Abandoned(StageId),
    Undoing(StageId),
    /// Is undone again at this time since boot, ms.
    UndoPaused(u64),
}

/// What follows from a stage that could not be prepared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AfterFailure {
    /// It is tried again after a pause. `is_news`: this is the first failure in a row.
    Waits {
        /// See above.
        is_news: bool,
    },
    /// It failed for good, but a task runs already. The stage counts as done.
    GoesOn,
    /// It failed for good, and nothing runs.
    Failed,
    /// It was no longer wanted.
    Abandoned,
}

/// The preparation of an allocation, or of one of its tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Preparation {
    /// Stages that may have left something.
    begun: StageSet,
    /// Invariant: a subset of `begun`.
    done: StageSet,
    /// Complete stages to be done again. Invariant: a subset of `done`.
    due: StageSet,
    #[serde(skip)]
    phase: Phase,
    /// Failures in a row of the stage that is under way.
    #[serde(skip)]
    failures: u32,
}

impl Preparation {
    fn missing(&self, scope: StageSet) -> StageSet {
        StageSet(scope.0 & !self.done.0 | self.due.0)
    }

    fn is_ready(&self, scope: StageSet) -> bool {
        self.phase == Phase::Idle && self.missing(scope).is_empty()
    }

    /// Asks for the next missing stage, unless something is under way. Returns whether the state
    /// must be stored before that.
    #[must_use]
    fn begin(&mut self, scope: Scope, task: Option<usize>, step: &mut StageStep<'_>) -> bool {
        if self.phase != Phase::Idle {
            return false;
        }
        let missing = self.missing(step.rules.of_scope(scope));
        let Some(stage) = missing.first() else { return false };
        self.begun.add(stage);
        self.phase = Phase::Doing(stage);
        let again = self.done.contains(stage);
        step.out.push(Action::Prepare { stage, task, again });
        step.rules.outside.contains(stage)
    }

    /// The stage under way is complete. One that was abandoned may have been cut short.
    fn prepared(&mut self, stage: StageId) {
        assert_eq!(self.under_way(), Some(stage), "a stage that was not asked for is prepared");
        match self.phase {
            Phase::Abandoned(_) => (self.phase, self.failures) = (Phase::Idle, 0),
            Phase::Doing(_)
            | Phase::Idle
            | Phase::Paused(_)
            | Phase::Undoing(_)
            | Phase::UndoPaused(_) => self.complete(stage),
        }
    }

    fn complete(&mut self, stage: StageId) {
        self.done.add(stage);
        self.due.remove(stage);
        self.failures = 0;
        self.phase = Phase::Idle;
    }

    fn under_way(&self) -> Option<StageId> {
        match self.phase {
            Phase::Doing(stage) | Phase::Abandoned(stage) => Some(stage),
            Phase::Idle | Phase::Paused(_) | Phase::Undoing(_) | Phase::UndoPaused(_) => None,
        }
    }

    /// The stage under way has failed. `has_process`: a task that it is for has a process.
    fn failed(
        &mut self,
        stage: StageId,
        fault: Fault,
        has_process: bool,
        now: Moment,
    ) -> AfterFailure {
        assert_eq!(self.under_way(), Some(stage), "a stage that was not asked for has failed");
        if let Phase::Abandoned(_) = self.phase {
            (self.phase, self.failures) = (Phase::Idle, 0);
            return AfterFailure::Abandoned;
        }
        if reason_to_retry(fault, self.failures).is_some() {
            let until_ms = now.since_boot_ms.saturating_add(pause_ms(self.failures));
            self.phase = Phase::Paused(until_ms);
            self.failures = self.failures.saturating_add(1);
            return AfterFailure::Waits { is_news: self.failures == 1 };
        }
        if has_process {
            self.complete(stage);
            return AfterFailure::GoesOn;
        }
        (self.phase, self.failures) = (Phase::Idle, 0);
        AfterFailure::Failed
    }

    /// The stage under way, if there is one, is no longer wanted.
    fn abandon(&mut self, task: Option<usize>, step: &mut StageStep<'_>) {
        match self.phase {
            Phase::Doing(stage) => {
                self.phase = Phase::Abandoned(stage);
                step.out.push(Action::Abandon { task });
            }
            Phase::Paused(_) => (self.phase, self.failures) = (Phase::Idle, 0),
            Phase::Idle | Phase::Abandoned(_) | Phase::Undoing(_) | Phase::UndoPaused(_) => {}
        }
    }

    /// Asks for the undo of the last stage that was begun, unless something is under way. Returns
    /// whether the state has changed, and must be stored.
    #[must_use]
    fn undo(&mut self, task: Option<usize>, step: &mut StageStep<'_>) -> bool {
        self.abandon(task, step);
        let before = self.begun;
        while self.phase == Phase::Idle
            && let Some(stage) = self.begun.last()
        {
            if step.rules.outside.contains(stage) {
                self.phase = Phase::Undoing(stage);
                step.out.push(Action::Undo { stage, task });
                return true;
            }
            self.forget(stage);
        }
        self.begun != before
    }

    fn forget(&mut self, stage: StageId) {
        assert!(self.begun.contains(stage), "only a stage that was begun is undone: {stage:?}");
        self.begun.remove(stage);
        self.done.remove(stage);
        self.due.remove(stage);
    }

    /// The stage is undone.
    fn undone(&mut self, stage: StageId) {
        assert_eq!(self.phase, Phase::Undoing(stage), "an undo that was not asked for is done");
        self.forget(stage);
        (self.phase, self.failures) = (Phase::Idle, 0);
    }

    /// The undo of the stage has failed. Returns how often in a row.
    fn undo_failed(&mut self, stage: StageId, now: Moment) -> u32 {
        assert_eq!(self.phase, Phase::Undoing(stage), "an undo that was not asked for has failed");
        self.phase = Phase::UndoPaused(now.since_boot_ms.saturating_add(pause_ms(self.failures)));
        self.failures = self.failures.saturating_add(1);
        self.failures
    }

    fn is_clear(&self) -> bool {
        self.begun.is_empty()
    }

    fn next_deadline(&self) -> Option<u64> {
        match self.phase {
            Phase::Paused(until_ms) | Phase::UndoPaused(until_ms) => Some(until_ms),
            Phase::Idle | Phase::Doing(_) | Phase::Abandoned(_) | Phase::Undoing(_) => None,
        }
    }

    fn tick(&mut self, now: Moment) {
        if self.next_deadline().is_some_and(|at| at <= now.since_boot_ms) {
            self.phase = Phase::Idle;
        }
    }

    /// The agent has started again: nothing is under way.
    fn interrupted(&mut self, rules: &StageRules, booted: bool) {
        let lost = if booted { rules.after_boot } else { rules.after_agent };
        self.due.0 |= self.done.0 & lost.0;
        (self.phase, self.failures) = (Phase::Idle, 0);
    }

    /// Nothing is stored of the preparation, but it may have been made. So it is made again, and
    /// undone at the end.
    fn found(&mut self, scope: StageSet) {
        (self.begun, self.done, self.due) = (scope, scope, scope);
    }

    fn renumber(&mut self, places: &[Option<StageId>]) -> Result<(), StageId> {
        self.begun = self.begun.renumbered(places)?;
        self.done = self.done.renumbered(places)?;
        self.due = self.due.renumbered(places)?;
        Ok(())
    }
}

/// A process may simulate a million allocations.
const _: () = assert!(size_of::<Preparation>() == 32);

/// What a step of a preparation needs.
pub(crate) struct StageStep<'a> {
    pub(crate) rules: &'a StageRules,
    pub(crate) out: &'a mut Vec<Action>,
}

/// The preparations of an allocation and of its tasks.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Preparations {
    allocation: Preparation,
    /// In the order of the tasks.
    tasks: Box<[Preparation]>,
    /// The state must be stored before the actions are carried out.
    #[serde(skip)]
    unstored: bool,
}

impl Preparations {
    /// Nothing is prepared for so many tasks.
    pub(crate) fn new(tasks: usize) -> Self {
        let tasks = vec![Preparation::default(); tasks].into();
        Self { allocation: Preparation::default(), tasks, unstored: false }
    }

    /// How many tasks there are.
    pub(crate) fn task_count(&self) -> usize {
        self.tasks.len()
    }

    fn of(&mut self, task: Option<usize>) -> &mut Preparation {
        match task {
            Some(task) => &mut self.tasks[task],
            None => &mut self.allocation,
        }
    }

    fn all(&self) -> impl Iterator<Item = &Preparation> {
        self.tasks.iter().chain([&self.allocation])
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Preparation> {
        self.tasks.iter_mut().chain([&mut self.allocation])
    }

    /// When [`Self::tick`] is due, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.all().filter_map(Preparation::next_deadline).min()
    }

    /// Ends the pauses that are over.
    pub(crate) fn tick(&mut self, now: Moment) {
        self.all_mut().for_each(|one| one.tick(now));
    }

    /// Goes on with the stages of the allocation. Returns whether they are done.
    pub(crate) fn prepare_allocation(&mut self, step: &mut StageStep<'_>) -> bool {
        self.unstored |= self.allocation.begin(Scope::Allocation, None, step);
        self.allocation.is_ready(step.rules.allocation)
    }

    /// Goes on with the stages of a task. Returns whether they are done.
    pub(crate) fn prepare_task(&mut self, task: usize, step: &mut StageStep<'_>) -> bool {
        assert!(
            self.allocation.is_ready(step.rules.allocation),
            "the stages of a task come after those of the allocation"
        );
        let preparation = &mut self.tasks[task];
        self.unstored |= preparation.begin(Scope::Task, Some(task), step);
        preparation.is_ready(step.rules.task)
    }

    /// The task has ended, so a stage that is under way for it is no longer wanted.
    pub(crate) fn abandon_task(&mut self, task: usize, step: &mut StageStep<'_>) {
        self.tasks[task].abandon(Some(task), step);
    }

    /// See [`Preparation::prepared`].
    pub(crate) fn prepared(&mut self, stage: StageId, task: Option<usize>) {
        self.of(task).prepared(stage);
    }

    /// See [`Preparation::failed`].
    pub(crate) fn failed(
        &mut self,
        (stage, task): (StageId, Option<usize>),
        fault: Fault,
        has_process: bool,
        now: Moment,
    ) -> AfterFailure {
        self.of(task).failed(stage, fault, has_process, now)
    }

    /// Goes on with the undo of all stages: of the tasks, then of the allocation. All tasks have
    /// ended for good.
    pub(crate) fn undo(&mut self, step: &mut StageStep<'_>) {
        for (task, one) in self.tasks.iter_mut().enumerate() {
            self.unstored |= one.undo(Some(task), step);
        }
        if self.tasks.iter().all(Preparation::is_clear) {
            self.unstored |= self.allocation.undo(None, step);
        } else {
            self.allocation.abandon(None, step);
        }
    }

    /// A stage is undone.
    pub(crate) fn undone(&mut self, stage: StageId, task: Option<usize>) {
        self.of(task).undone(stage);
        self.unstored = true;
    }

    /// The undo of a stage has failed. Returns how often in a row.
    pub(crate) fn undo_failed(&mut self, stage: StageId, task: Option<usize>, now: Moment) -> u32 {
        self.of(task).undo_failed(stage, now)
    }

    /// Whether nothing is left to undo.
    pub(crate) fn is_clear(&self) -> bool {
        self.all().all(Preparation::is_clear)
    }

    /// The agent has started again: nothing is under way.
    pub(crate) fn interrupted(&mut self, rules: &StageRules, booted: bool) {
        self.all_mut().for_each(|one| one.interrupted(rules, booted));
    }

    /// See [`Preparation::found`].
    pub(crate) fn found(&mut self, rules: &StageRules) {
        self.allocation.found(rules.allocation);
        self.tasks.iter_mut().for_each(|one| one.found(rules.task));
    }

    /// Whether the state must be stored before the actions are carried out. `false` from then on.
    pub(crate) fn take_unstored(&mut self) -> bool {
        std::mem::take(&mut self.unstored)
    }

    /// Whether [`Self::take_unstored`] would say so.
    pub(crate) fn is_unstored(&self) -> bool {
        self.unstored
    }

    /// Takes over what was stored with another list of stages, of these names. `Err`: a stage that
    /// was begun is not in the list, so it could not be undone.
    pub(crate) fn renumber(&mut self, names: &[String], rules: &StageRules) -> Result<(), String> {
        let place = |name: &String| {
            let found = (0..).map(StageId).zip(&rules.rules).find(|(_, rule)| rule.name == name);
            found.map(|(stage, _)| stage)
        };
        let places: Vec<_> = names.iter().map(place).collect();
        for one in self.all_mut() {
            one.renumber(&places).map_err(|stage| {
                let name = names.get(usize::from(stage.0)).map_or("?", String::as_str);
                format!("this agent does not have its stage `{name}`")
            })?;
        }
        Ok(())
    }
}
