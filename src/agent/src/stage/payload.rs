//! The payload that a job was dispatched with, in the file that a task names.

use futures_util::{
    FutureExt, TryFutureExt,
    future::{BoxFuture, ready},
};
use ground::rt::run_blocking;

use super::{Abandoned, Again, Scope, Stage, StageContext, StageEntry, StageError};

/// It is put into its file once. The task may change or delete the file.
pub(super) const STAGE: StageEntry = StageEntry {
    name: "payload",
    scope: Scope::Task,
    again: Again::Never,
    undo: None,
    failure: "cannot put the payload into its file",
    stage: &Payload,
};

struct Payload;

impl Stage for Payload {
    fn prepare<'a>(
        &'a self,
        context: &'a StageContext,
        _again: bool,
        _abandoned: Abandoned,
    ) -> BoxFuture<'a, Result<(), StageError>> {
        if context.task().dispatch_payload.is_empty() {
            return ready(Ok(())).boxed();
        }
        let context = context.clone();
        let put = move || context.directory.put_payload(context.task(), &context.spec.payload);
        run_blocking(put).map_err(StageError::from).boxed()
    }
}
