//! The allocation's directory, with the folder that its tasks share, and the folder of the
//! executors' files.

use std::io;

use futures_util::{FutureExt, TryFutureExt, future::BoxFuture};
use ground::rt::run_blocking;

use super::{Abandoned, Again, Scope, Stage, StageContext, StageEntry, StageError};
use crate::{allocation::state::AllocationDirectory, executor::process::kill_leftovers};

/// It is made again after each start of the agent, in case somebody has deleted a part of it.
pub(super) const STAGE: StageEntry = StageEntry {
    name: "directory",
    scope: Scope::Allocation,
    again: Again::AfterAgent,
    undo: None,
    failure: "cannot prepare the allocation's directory",
    stage: &Directory,
};

struct Directory;

impl Stage for Directory {
    fn prepare<'a>(
        &'a self,
        context: &'a StageContext,
        again: bool,
        _abandoned: Abandoned,
    ) -> BoxFuture<'a, Result<(), StageError>> {
        let directory = context.directory.clone();
        run_blocking(move || prepare(&directory, again)).map_err(StageError::from).boxed()
    }
}

fn prepare(directory: &AllocationDirectory, again: bool) -> io::Result<()> {
    if !again {
        // An allocation with this id may have run here before, and its state was lost. Its
        // processes would be a second copy.
        kill_leftovers(&directory.runs())?;
        directory.clear()?;
    }
    directory.prepare_shared()
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{fs, sync::Arc};

    use futures_util::future::pending;

    use super::*;
    use crate::{
        allocation::{spec::AllocationSpec, state::StateDirectory},
        testing,
    };

    /// What an allocation whose state was lost has left is not taken for that of the present one.
    #[tokio::test]
    async fn leftovers_are_deleted_unless_a_task_may_use_them() {
        let root = tempfile::tempdir().unwrap();
        let (state, _) = StateDirectory::open(root.path()).unwrap();
        let spec = Arc::new(AllocationSpec::parse(testing::message([1; 16], "j", &["a"])).unwrap());
        let directory = state.allocation(spec.id);
        let context = StageContext { spec, directory: directory.clone(), place: None };
        let prepare = |again| Directory.prepare(&context, again, pending().boxed());
        prepare(false).await.unwrap();
        let files = [directory.shared().join("data/file"), directory.runs().join("file")];
        let is_there = || files.each_ref().map(|file| file.exists());
        for file in &files {
            fs::write(file, "").unwrap();
        }
        fs::remove_dir(directory.logs()).unwrap();
        prepare(true).await.unwrap();
        assert_eq!(is_there(), [true, true]);
        assert!(directory.logs().exists(), "what was deleted is made again");
        prepare(false).await.unwrap();
        assert_eq!(is_there(), [false, false]);
    }
}
