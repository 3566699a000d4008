//! What servers have promised to keep, and what the others remember of it ([ADR
//! 0023](../../docs/adr/0023-peers-remember-promises.md)).
//!
//! A server that acknowledges entries, or votes, promises to know them after any restart. Its data
//! directory may come back older than that: a snapshot of a machine was put back. Only others can
//! tell. Each server remembers what it heard of each other one; a server that starts takes part in
//! Raft only once it has asked ([`Promises::may_take_part`]). Must never remember what a server had
//! not made durable: a server that only crashed would be taken for one whose directory went back.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use fsm::state::Head;
use openraft::raft::AppendEntriesRequest;
use prost::Message;
use proto::v1 as pb;

use super::{LogId, Raft, ServerId, TypeConfig, convert, edge};
use crate::storage::wal::Wal;

/// How far a server's vote and log go. The order is that in which a server goes on: within a term
/// of its vote it takes the entries of one leader, and what it has taken of them it never drops.
/// With a newer vote it may drop what an older leader had given it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Promise {
    vote_term: u64,
    last_term: u64,
    last_index: u64,
}

impl Promise {
    /// A vote in this term, whatever the log holds.
    pub(super) fn vote(vote_term: u64) -> Self {
        Self { vote_term, ..Self::default() }
    }

    /// A log up to this entry, under a vote of this term.
    pub(super) fn log(vote_term: u64, last: Option<LogId>) -> Self {
        let (last_term, last_index) = last.map_or((0, 0), |id| (convert::term_of(&id), id.index));
        Self { vote_term, last_term, last_index }
    }

    /// What a data directory holds: its log, or a state that is ahead of the log.
    pub fn found(wal: &Wal, state: Head) -> anyhow::Result<Self> {
        let vote = wal.vote().map(pb::Vote::decode).transpose()?;
        let log = wal.last().or(wal.purged()).map_or((0, 0), |id| (id.term, id.index));
        let (last_term, last_index) = log.max((state.term, state.index));
        Ok(Self { vote_term: vote.map_or(0, |vote| vote.term), last_term, last_index })
    }

    /// What a running server has made durable so far.
    pub fn kept(raft: &Raft) -> Self {
        let flushed = raft.watch_log_progress().get();
        flushed.map_or_else(Self::default, |flushed| {
            Self::log(flushed.vote.leader_id.term, flushed.last_log_id)
        })
    }

    /// Of a message; none if no honest peer sends it.
    pub fn from_pb(message: pb::Promise) -> Option<Self> {
        let pb::Promise { vote_term, last_term, last_index } = message;
        let is_sound =
            [vote_term, last_term, last_index].iter().all(|one| *one <= edge::NUMBER_MAX);
        is_sound.then_some(Self { vote_term, last_term, last_index })
    }

    /// For a message.
    pub fn to_pb(self) -> pb::Promise {
        let Self { vote_term, last_term, last_index } = self;
        pb::Promise { vote_term, last_term, last_index }
    }
}

impl fmt::Display for Promise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { vote_term, last_term, last_index } = self;
        write!(f, "entry {last_index} of term {last_term}, vote of term {vote_term}")
    }
}

/// What this server remembers of the others, in memory only, and whether it may take part itself.
#[derive(Debug)]
pub struct Promises {
    /// What its own data directory held at its start.
    pub found: Promise,
    heard: Mutex<BTreeMap<ServerId, Promise>>,
    takes_part: AtomicBool,
}

impl Promises {
    /// Those of a server that has just opened its data directory.
    pub fn new(found: Promise) -> Self {
        Self { found, heard: Mutex::default(), takes_part: AtomicBool::new(false) }
    }

    fn all(&self) -> MutexGuard<'_, BTreeMap<ServerId, Promise>> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A server has promised this.
    pub fn heard(&self, of: ServerId, promise: Promise) {
        let mut heard = self.all();
        if heard.len() >= edge::MEMBERS_MAX && !heard.contains_key(&of) {
            return;
        }
        let known = heard.entry(of).or_default();
        *known = promise.max(*known);
    }

    /// A follower has acknowledged an append of this request as a whole.
    pub(super) fn acknowledged(&self, by: ServerId, request: &AppendEntriesRequest<TypeConfig>) {
        let last = request.entries.last().map(|entry| entry.log_id).or(request.prev_log_id);
        self.heard(by, Promise::log(request.vote.leader_id.term, last));
    }

    /// The most that a server is known to have promised.
    pub fn of(&self, server: ServerId) -> Option<Promise> {
        self.all().get(&server).copied()
    }

    /// Forgets servers that are no members any more.
    pub fn forget_all_but(&self, is_member: impl Fn(&ServerId) -> bool) {
        self.all().retain(|id, _| is_member(id));
    }

    /// Whether this server knows that it is not behind what it promised. Before that it takes no
    /// entries, grants no vote and does not stand.
    pub fn may_take_part(&self) -> bool {
        self.takes_part.load(Ordering::Acquire)
    }

    /// This server takes part from now on.
    pub fn take_part(&self, raft: &Raft) {
        self.takes_part.store(true, Ordering::Release);
        raft.runtime_config().elect(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log(vote_term: u64, last_term: u64, last_index: u64) -> Promise {
        Promise { vote_term, last_term, last_index }
    }

    #[test]
    fn promises_are_ordered_as_a_server_makes_them() {
        let order = [
            Promise::default(),
            Promise::vote(1),
            log(1, 1, 1),
            log(1, 1, 7),
            Promise::vote(2),
            // A new leader may replace the end of the log by one that is shorter.
            log(2, 2, 5),
            log(2, 2, 6),
        ];
        assert!(order.is_sorted());
    }

    #[test]
    fn the_most_that_was_heard_of_a_member_is_remembered() {
        let promises = Promises::new(Promise::default());
        assert_eq!(promises.of(2), None);
        promises.heard(2, log(3, 3, 9));
        promises.heard(2, log(3, 3, 7));
        promises.heard(2, Promise::vote(2));
        assert_eq!(promises.of(2), Some(log(3, 3, 9)));
        promises.heard(2, Promise::vote(4));
        assert_eq!(promises.of(2), Some(Promise::vote(4)), "a directory with this vote is newer");
        promises.heard(3, Promise::vote(4));
        promises.forget_all_but(|id| *id == 3);
        assert_eq!((promises.of(2), promises.of(3)), (None, Some(Promise::vote(4))));
    }

    #[test]
    fn strangers_take_no_memory_without_bound() {
        let promises = Promises::new(Promise::default());
        let all = edge::MEMBERS_MAX as u64;
        (0..2 * all).for_each(|id| promises.heard(id, Promise::vote(1)));
        promises.heard(0, Promise::vote(2));
        assert_eq!((promises.of(0), promises.of(all)), (Some(Promise::vote(2)), None));
    }

    #[test]
    fn numbers_that_no_cluster_reaches_are_no_promise() {
        let promise = log(3, 2, 9);
        assert_eq!(Promise::from_pb(promise.to_pb()), Some(promise));
        assert_eq!(Promise::from_pb(pb::Promise { vote_term: u64::MAX, ..promise.to_pb() }), None);
    }
}
