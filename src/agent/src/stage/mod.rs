//! Stages: what an allocation and its tasks go through before a task starts. A stage does its work
//! and undoes it. The pure machine in `allocation/preparation.rs` decides when a stage is done,
//! repeated and undone; `node/` calls the stages.

mod directory;
mod payload;
mod task_directories;

use std::{io, sync::Arc};

use futures_util::future::BoxFuture;

use crate::{
    allocation::{
        preparation::{Again, Place, STAGES_MAX, Scope, StageRule, StageRules},
        spec::{AllocationSpec, TaskSpec},
        state::AllocationDirectory,
    },
    task::{action::StageId, run::Fault},
};

/// All stages, in the order in which they are prepared. Each is undone before those above it. To
/// add one, add a file to this folder, its `mod` line, and its line here.
static STAGES: &[StageEntry] = &[directory::STAGE, task_directories::STAGE, payload::STAGE];

const _: () = assert!(STAGES.len() <= STAGES_MAX);

/// The work of a stage.
pub(crate) trait Stage: Send + Sync + 'static {
    /// Prepares the stage. The agent may be killed at any point of it, and then it is called again.
    ///
    /// `again`: the stage was complete before the agent or the machine started again. A task may be
    /// using what it made, so that is repaired and not replaced. Otherwise no task has used
    /// anything: what is there was left by an earlier try, or by an allocation whose state was
    /// lost.
    ///
    /// When `abandoned` resolves, the stage is no longer wanted, and returns an error soon.
    fn prepare<'a>(
        &'a self,
        context: &'a StageContext,
        again: bool,
        abandoned: Abandoned,
    ) -> BoxFuture<'a, Result<(), StageError>>;
}

/// How a stage that leaves something outside the allocation's directory is undone.
pub(crate) trait Undo: Send + Sync + 'static {
    /// Undoes the stage. It may be complete, half-finished, not begun at all, or undone already. An
    /// error means that something is left; the undo is called again.
    fn undo<'a>(&'a self, context: &'a StageContext) -> BoxFuture<'a, io::Result<()>>;
}

/// Resolves when a preparation is no longer wanted, for example because the allocation is stopped.
pub(crate) type Abandoned = BoxFuture<'static, ()>;

/// A stage, with what the machine must know of it.
#[derive(Clone, Copy)]
pub(crate) struct StageEntry {
    /// Its name in the log and in stored states.
    pub(crate) name: &'static str,
    /// Whether it is done once for the allocation, or for each task.
    pub(crate) scope: Scope,
    pub(crate) again: Again,
    /// `None`: all that the stage makes is in the allocation's directory. Garbage collection
    /// deletes that; until then it is kept for people. Otherwise the stage is undone when the tasks
    /// have ended for good.
    pub(crate) undo: Option<&'static dyn Undo>,
    /// What it means for users if the stage fails; the error follows after a colon.
    pub(crate) failure: &'static str,
    pub(crate) stage: &'static dyn Stage,
}

impl StageEntry {
    fn rule(&self) -> StageRule {
        let place = if self.undo.is_some() { Place::Outside } else { Place::Directory };
        StageRule { name: self.name, scope: self.scope, again: self.again, place }
    }
}

/// Why a stage could not be prepared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub(crate) struct StageError {
    pub(crate) why: String,
    /// Decides whether it is tried again.
    pub(crate) fault: Fault,
}

impl StageError {
    /// An error of the agent's own work on this machine.
    pub(crate) fn new(error: &io::Error) -> Self {
        Self { why: error.to_string(), fault: Fault::of(error) }
    }
}

impl From<io::Error> for StageError {
    fn from(error: io::Error) -> Self {
        Self::new(&error)
    }
}

/// Everything that a stage may know. A stage must find again what it made from those parts alone
/// that an update in place does not change: the allocation's id, the names of its tasks, and its
/// directory.
#[derive(Clone)]
pub(crate) struct StageContext {
    pub(crate) spec: Arc<AllocationSpec>,
    pub(crate) directory: AllocationDirectory,
    /// Position of the task; `None` for a stage of the allocation.
    pub(crate) place: Option<usize>,
}

impl StageContext {
    /// The task that a stage of a task is for.
    pub(crate) fn task(&self) -> &TaskSpec {
        let place = self.place.expect("only a stage of the scope `Task` has a task");
        &self.spec.tasks[place]
    }
}

/// The stages of a node.
#[derive(Clone)]
pub(crate) struct Stages {
    entries: &'static [StageEntry],
    /// For the machines.
    pub(crate) rules: StageRules,
}

impl Stages {
    /// All stages.
    pub(crate) fn all() -> Self {
        Self::of(STAGES)
    }

    /// These stages.
    pub(crate) fn of(entries: &'static [StageEntry]) -> Self {
        Self { entries, rules: StageRules::of(entries.iter().map(StageEntry::rule).collect()) }
    }

    /// A stage.
    pub(crate) fn entry(&self, stage: StageId) -> &'static StageEntry {
        &self.entries[usize::from(stage.0)]
    }

    /// Undoes all stages of an allocation whose machine is lost, each once. Errors are logged.
    pub(crate) async fn undo_all(
        &self,
        spec: &Arc<AllocationSpec>,
        directory: &AllocationDirectory,
    ) {
        let places = (0..spec.tasks.len()).map(Some).chain([None]);
        for place in places {
            let (spec, directory) = (Arc::clone(spec), directory.clone());
            let context = StageContext { spec, directory, place };
            let scope = if place.is_some() { Scope::Task } else { Scope::Allocation };
            for stage in self.rules.of_scope(scope).iter().rev() {
                let entry = self.entry(stage);
                let Some(undo) = entry.undo else { continue };
                if let Err(error) = undo.undo(&context).await {
                    tracing::error!(allocation = %context.spec.id, stage = entry.name, %error, "cannot undo what prepared an allocation");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// States are stored by these names.
    #[test]
    fn stages_have_names_of_their_own() {
        let names: BTreeSet<_> = STAGES.iter().map(|stage| stage.name).collect();
        assert_eq!(names.len(), STAGES.len());
        assert!(names.iter().all(|name| !name.is_empty()));
    }
}
