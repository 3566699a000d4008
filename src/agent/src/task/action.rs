//! What the state machines ask for. The shell of an allocation, or a simulated node, carries it
//! out and tells the machine the result.

use serde::{Deserialize, Serialize};

/// A stage of the preparation: its position in the agent's list.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub(crate) struct StageId(pub(crate) u8);

/// Something to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Prepare this stage. Exactly one result follows: prepared, or failed.
    Prepare {
        /// Which.
        stage: StageId,
        /// Position of the task; `None` for a stage of the allocation.
        task: Option<usize>,
        /// The stage was complete before the agent or the machine started again. A task may be
        /// using what it made.
        again: bool,
    },
    /// The preparation that is under way in this scope is no longer wanted. Its result still
    /// follows.
    Abandon {
        /// As in [`Self::Prepare`].
        task: Option<usize>,
    },
    /// Undo this stage. Exactly one result follows: undone, or failed.
    Undo {
        /// Which.
        stage: StageId,
        /// As in [`Self::Prepare`].
        task: Option<usize>,
    },
    /// Start this attempt.
    Start {
        /// Position of the task in its group.
        task: usize,
        /// Number of the run, from 1.
        attempt: u32,
    },
    /// Send the kill signal, and SIGKILL after the task's timeout.
    Kill {
        /// Position of the task in its group.
        task: usize,
    },
}
