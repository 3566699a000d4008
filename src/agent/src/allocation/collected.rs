//! Allocations that have ended here and are kept no more.
//!
//! A server that is behind, or that was restored from a copy, may still say that one of them is to
//! run. It is not run again: how it ended is said again instead, which who knows of the end does
//! not listen to.

use std::collections::{BTreeMap, VecDeque};

use fsm::AllocationId;
use proto::v1::ClientStatus;

/// As many as may end within the time that a server is behind.
const COLLECTED_MAX: usize = 4_096;

/// The latest of them, with the statuses they ended with.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    statuses: BTreeMap<AllocationId, ClientStatus>,
    /// The oldest first.
    order: VecDeque<AllocationId>,
}

impl Collected {
    /// Remembers one.
    pub(crate) fn add(&mut self, id: AllocationId, status: ClientStatus) {
        if self.statuses.insert(id, status).is_none() {
            self.order.push_back(id);
        }
        if self.order.len() > COLLECTED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.statuses.remove(&oldest);
        }
    }

    /// How it ended, if it is one of them.
    pub(crate) fn status(&self, id: AllocationId) -> Option<ClientStatus> {
        self.statuses.get(&id).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_remembered() {
        let id = |number: usize| {
            let mut id = [0; 16];
            id[..8].copy_from_slice(&number.to_le_bytes());
            AllocationId(id)
        };
        let mut collected = Collected::default();
        for number in 0..=COLLECTED_MAX {
            collected.add(id(number), ClientStatus::Complete);
            collected.add(id(number), ClientStatus::Failed);
        }
        assert_eq!(collected.status(id(0)), None);
        assert_eq!(collected.status(id(1)), Some(ClientStatus::Failed));
        assert_eq!(collected.statuses.len(), COLLECTED_MAX);
    }
}
