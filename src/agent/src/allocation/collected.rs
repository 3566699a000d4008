//! Remembers allocations that ended on this node and were garbage-collected.
//!
//! A server that is behind, or that was restored from a snapshot, may still send such an allocation
//! as one to run. The agent does not run it again. It repeats the final status instead. A server
//! that knows the status already ignores the repetition.

use std::collections::{BTreeMap, VecDeque};

use fsm::AllocationId;
use proto::v1::ClientStatus;

/// How many are remembered. Assumed to be more than end on a node while a server is behind.
const COLLECTED_MAX: usize = 4_096;

/// The newest collected allocations, with their final statuses.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    statuses: BTreeMap<AllocationId, ClientStatus>,
    /// The oldest first.
    order: VecDeque<AllocationId>,
}

impl Collected {
    /// Remembers an allocation with its final status.
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

    /// The final status of an allocation, if it is remembered.
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
