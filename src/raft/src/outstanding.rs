//! Which replies of an append stream openraft may see.
//!
//! openraft tells by log ids which of its requests a reply is for, and so takes a request without
//! entries, which only tells a commit index, for answered by the reply to the entries before it. A
//! reply that was long under way would then count as an answer of now, and confirm a leadership
//! that another server has had since: a stale read (seed 31942 of the simulation, openraft
//! 0.10.0-alpha.37). Replies come in the order of the requests, so that each can be told from the
//! others here.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
};

use openraft::raft::{AppendEntriesRequest, StreamAppendResult};

use super::{LogId, TypeConfig};

/// The last log ids of a stream's requests that are not answered, oldest first: as many as openraft
/// keeps of its own, and gone with the stream.
#[derive(Clone, Default)]
pub(super) struct Outstanding(Arc<Mutex<VecDeque<Option<LogId>>>>);

impl Outstanding {
    /// A request goes out.
    pub(super) fn sent(&self, request: &AppendEntriesRequest<TypeConfig>) {
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back(last);
    }

    /// The next reply has come. False: openraft would take it for the reply to a later request too.
    /// That one's own reply says the same and is waited for.
    pub(super) fn answered(&self, result: &StreamAppendResult<TypeConfig>) -> bool {
        let mut outstanding = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        outstanding.pop_front();
        match (result, outstanding.front()) {
            (Ok(matching), Some(next)) => matching < next,
            (Ok(_), None) | (Err(_), _) => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Vote, convert::log_id};

    fn id(index: u64) -> LogId {
        log_id(1, index)
    }

    /// A request behind the entry of this index that only tells the commit index, as heartbeats do.
    fn commit_only(previous: u64) -> AppendEntriesRequest<TypeConfig> {
        AppendEntriesRequest {
            vote: Vote::new_committed(1, 1),
            prev_log_id: Some(id(previous)),
            entries: Vec::new(),
            leader_commit: Some(id(previous)),
        }
    }

    #[test]
    fn an_old_reply_is_not_for_the_request_that_only_tells_a_commit_index() {
        let outstanding = Outstanding::default();
        outstanding.sent(&commit_only(7));
        outstanding.sent(&commit_only(7));
        assert!(!outstanding.answered(&Ok(Some(id(7)))), "the second would count as answered");
        assert!(outstanding.answered(&Ok(Some(id(7)))), "it is answered now");
    }

    #[test]
    fn replies_to_what_later_requests_go_beyond_are_seen_at_once() {
        let outstanding = Outstanding::default();
        outstanding.sent(&commit_only(7));
        outstanding.sent(&commit_only(8));
        assert!(outstanding.answered(&Ok(Some(id(7)))));
        assert!(outstanding.answered(&Ok(Some(id(8)))));
    }
}
