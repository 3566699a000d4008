//! The directories of a task.

use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use ground::rt::run_blocking;

use super::{Abandoned, Again, Scope, Stage, StageContext, StageEntry, StageError};

/// They are made again after each start of the agent, in case somebody has deleted a part of them.
pub(super) const STAGE: StageEntry = StageEntry {
    name: "task directories",
    scope: Scope::Task,
    again: Again::AfterAgent,
    undo: None,
    failure: "cannot prepare the task's directories",
    stage: &TaskDirectories,
};

struct TaskDirectories;

impl Stage for TaskDirectories {
    /// A repetition changes nothing that the task has made, so it is the same as the first time.
    fn prepare<'a>(
        &'a self,
        context: &'a StageContext,
        _again: bool,
        _abandoned: Abandoned,
    ) -> BoxFuture<'a, Result<(), StageError>> {
        let context = context.clone();
        run_blocking(move || context.directory.prepare_task(context.task()))
            .map_err(StageError::from)
            .boxed()
    }
}
