//! Allocations that have ended here and are kept no more.
//!
//! A server that is behind, or that was restored from a copy, may still say that one of them is to run. It is not run again: how it ended is said again instead, which who
//! knows of the end does not listen to.

use std::collections::VecDeque;

use fsm::AllocationId;
use proto::v1;

use super::time::wall_ms;

/// As many as may end within the time that a server is behind.
const COLLECTED_MAX: usize = 4_096;

/// The latest of them, with the statuses they ended with.
#[derive(Debug, Default)]
pub(super) struct Collected {
    ended: VecDeque<(AllocationId, String)>,
}

impl Collected {
    /// Remembers one.
    pub(super) fn add(&mut self, id: AllocationId, status: &str) {
        self.ended.push_back((id, status.to_owned()));
        if self.ended.len() > COLLECTED_MAX {
            self.ended.pop_front();
        }
    }

    /// How it ended, if it is one of them.
    pub(super) fn status(&self, id: AllocationId) -> Option<&str> {
        self.ended.iter().rev().find(|(ended, _)| *ended == id).map(|(_, status)| &**status)
    }
}

/// What is said of an allocation that does not run here, whatever a server thinks.
pub(super) fn over(
    message: &v1::Allocation,
    status: &str,
    description: &str,
) -> v1::AllocationStatus {
    let dead = v1::TaskState {
        state: "dead".to_owned(),
        failed: status == "failed",
        finished_at_ms: wall_ms(),
        ..Default::default()
    };
    let tasks = message.tasks.iter().map(|task| (task.name.clone(), dead.clone())).collect();
    v1::AllocationStatus {
        id: message.id.clone(),
        sequence: message.client_sequence.saturating_add(1),
        client_status: status.to_owned(),
        description: description.to_owned(),
        tasks,
    }
}
