//! What a message of a peer may hold, checked before openraft or a file sees it. openraft takes its
//! peers for honest: it adds to terms and indexes without looking, and asserts what a leader never
//! sends. A message that breaks a rule here is refused, and nothing of it is stored.

use fsm::{Proposal, codec};
use openraft::{EntryPayload, entry::RaftEntry, raft::AppendEntriesRequest};
use proto::v1 as pb;
use tonic::Status;

use super::{Entry, LogId, Metrics, ServerId, TypeConfig, Vote, convert};
use crate::storage::wal;

/// Highest term, index or length in a message: far from the end of the type, far above all that a
/// cluster reaches.
pub(super) const NUMBER_MAX: u64 = 1 << 62;
/// How far the term of a message may be above the one that is known here.
pub(super) const TERM_LEAP_MAX: u64 = 1 << 32;
/// Servers in one membership.
pub(super) const MEMBERS_MAX: usize = 1_000;

/// A number of a message, unless it is near the end of its type.
pub(super) fn number(what: &str, value: u64) -> Result<u64, Status> {
    if value <= NUMBER_MAX {
        return Ok(value);
    }
    let message = format!("{what} {value} is above {NUMBER_MAX}: no server sends that");
    Err(Status::invalid_argument(message))
}

/// Refuses a term that no elections can have led to.
pub(super) fn check_leap(known: u64, term: u64) -> Result<(), Status> {
    if term.saturating_sub(known) <= TERM_LEAP_MAX {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "term {term} is more than {TERM_LEAP_MAX} above the known term {known}: \
         no elections can have led to it"
    )))
}

/// The vote of a reply, checked against the term of the request that it answers.
pub(super) fn vote_of_reply(asked: u64, vote: Option<&pb::Vote>) -> Result<Vote, Status> {
    let vote = convert::vote_from_pb(vote)?;
    check_leap(asked, vote.leader_id.term)?;
    Ok(vote)
}

/// What this server knows, to judge a message by.
pub(super) struct Known {
    id: ServerId,
    term: u64,
    /// As far as entries are known to be committed.
    committed: Option<LogId>,
}

/// The state of the sender that a vote in a message stands for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sent {
    ByCandidate,
    ByLeader,
}

impl Known {
    /// What the metrics of this server's Raft say.
    pub(super) fn new(id: ServerId, metrics: &Metrics) -> Self {
        Self { id, term: metrics.current_term, committed: metrics.local_committed }
    }

    /// Checks the vote of a request.
    pub(super) fn check_vote(&self, vote: &Vote, sent: Sent) -> Result<(), Status> {
        check_leap(self.term, vote.leader_id.term)?;
        if vote.leader_id.voted_for == self.id {
            return Err(Status::invalid_argument(
                "the vote is for the server that receives it: no other server sends that",
            ));
        }
        if vote.committed != (sent == Sent::ByLeader) {
            let message = match sent {
                Sent::ByCandidate => "a candidate's vote is not committed yet",
                Sent::ByLeader => "a leader's vote is committed",
            };
            return Err(Status::invalid_argument(message));
        }
        Ok(())
    }

    /// Checks an id of the log of a leader: not above its own term, and in order with what is
    /// committed here, which no leader changes.
    pub(super) fn check_leaders_id(&self, vote: &Vote, id: &LogId) -> Result<(), Status> {
        let (term, leads) = (convert::term_of(id), vote.leader_id.term);
        if term > leads {
            return Err(Status::invalid_argument(format!(
                "log id {id} is of a term above the leader's, {leads}"
            )));
        }
        let Some(committed) = self.committed.filter(|_| leads >= self.term) else { return Ok(()) };
        let known = convert::term_of(&committed);
        let is_in_order = match id.index.cmp(&committed.index) {
            std::cmp::Ordering::Less => term <= known,
            std::cmp::Ordering::Equal => term == known,
            std::cmp::Ordering::Greater => term >= known,
        };
        if is_in_order {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "log id {id} contradicts {committed}, which is committed: \
             a data directory of this cluster was replaced or went back"
        )))
    }

    /// Checks an append in full: the entries too, which are stored as they are.
    pub(super) fn check_append(
        &self,
        append: &AppendEntriesRequest<TypeConfig>,
    ) -> Result<(), Status> {
        let vote = &append.vote;
        self.check_vote(vote, Sent::ByLeader)?;
        let mut last = append.prev_log_id;
        if let Some(id) = &last {
            self.check_leaders_id(vote, id)?;
        }
        for entry in &append.entries {
            let id = entry.log_id;
            let next = last.map_or(0, |id| id.index + 1);
            let is_older = last.is_some_and(|last| convert::term_of(&id) < convert::term_of(&last));
            if id.index != next || is_older {
                return Err(Status::invalid_argument(format!(
                    "entry {id} does not follow the one before it"
                )));
            }
            self.check_leaders_id(vote, &id)?;
            check_entry(entry)?;
            last = Some(id);
        }
        Ok(())
    }
}

/// Refuses an entry that this server could store and never apply.
fn check_entry(entry: &Entry) -> Result<(), Status> {
    let refused = |why: String| {
        tracing::error!(index = entry.index(), why, "refused an entry of a leader");
        Err(Status::invalid_argument(format!("entry {} cannot be taken: {why}", entry.log_id)))
    };
    match &entry.payload {
        EntryPayload::Blank => Ok(()),
        EntryPayload::Normal(data) => {
            let bytes = data.0.len();
            if bytes >= wal::PAYLOAD_BYTES_MAX {
                let max = wal::PAYLOAD_BYTES_MAX - 1;
                return refused(format!("its command has {bytes} bytes, at most {max} may be"));
            }
            match codec::decode::<Proposal>(&data.0) {
                Ok(_) => Ok(()),
                Err(error) => refused(format!("its command does not decode: {error}")),
            }
        }
        EntryPayload::Membership(membership) => {
            // Without a voter any set of servers would be a majority.
            if membership.voter_ids().next().is_none() {
                return refused("its membership has no voter".to_owned());
            }
            let members = membership.nodes().count();
            if members > MEMBERS_MAX {
                return refused(format!("{members} members, at most {MEMBERS_MAX} may be"));
            }
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;

    use bytes::Bytes;
    use fsm::Command;

    use super::{super::EntryData, super::Membership, *};

    type Payload = EntryPayload<EntryData, ServerId, super::super::Member>;

    const KNOWN: Known = Known { id: 1, term: 7, committed: None };

    fn vote(term: u64, voted_for: u64, committed: bool) -> Vote {
        let id = pb::Vote { term, voted_for: Some(voted_for), committed };
        convert::vote_from_pb(Some(&id)).unwrap()
    }

    fn entry(term: u64, index: u64, payload: Payload) -> Entry {
        <Entry as RaftEntry>::new(convert::log_id(term, index), payload)
    }

    fn append(prev: Option<LogId>, entries: Vec<Entry>) -> AppendEntriesRequest<TypeConfig> {
        let vote = vote(7, 2, true);
        AppendEntriesRequest { vote, prev_log_id: prev, entries, leader_commit: None }
    }

    fn command(command: Command) -> Payload {
        let proposal = Proposal { at: 1, epoch: None, request: None, command };
        EntryPayload::Normal(EntryData(codec::encode(&proposal)))
    }

    #[test]
    fn a_number_near_the_end_of_its_type_does_not_convert() {
        let id = |term, index| convert::log_id_from_pb(&pb::LogId { term, index }).is_ok();
        assert!(id(NUMBER_MAX, NUMBER_MAX));
        assert!(!id(NUMBER_MAX + 1, 1) && !id(1, NUMBER_MAX + 1) && !id(u64::MAX, u64::MAX));
        let message = |term| pb::Vote { term, voted_for: Some(2), committed: false };
        assert!(convert::vote_from_pb(Some(&message(NUMBER_MAX))).is_ok());
        assert!(convert::vote_from_pb(Some(&message(u64::MAX))).is_err());
    }

    #[test]
    fn a_vote_leaps_by_few_terms_and_is_of_another_server() {
        let ok = |term, voted_for, committed, sent| {
            KNOWN.check_vote(&vote(term, voted_for, committed), sent).is_ok()
        };
        assert!(ok(7 + TERM_LEAP_MAX, 2, false, Sent::ByCandidate));
        assert!(!ok(8 + TERM_LEAP_MAX, 2, false, Sent::ByCandidate));
        assert!(ok(0, 2, true, Sent::ByLeader), "an old leader is told of the new one");
        assert!(!ok(8, 1, false, Sent::ByCandidate), "nobody else stands for this server");
        assert!(!ok(8, 2, true, Sent::ByCandidate) && !ok(8, 2, false, Sent::ByLeader));
        let reply = |term| pb::Vote { term, voted_for: Some(2), committed: true };
        assert!(vote_of_reply(7, Some(&reply(7 + TERM_LEAP_MAX))).is_ok());
        assert!(vote_of_reply(7, Some(&reply(8 + TERM_LEAP_MAX))).is_err());
    }

    #[test]
    fn a_leader_does_not_contradict_what_is_committed() {
        let known = Known { committed: Some(convert::log_id(5, 20)), ..KNOWN };
        let ok = |leads, term, index| {
            let leader = vote(leads, 2, true);
            known.check_leaders_id(&leader, &convert::log_id(term, index)).is_ok()
        };
        assert!(ok(7, 5, 20) && ok(7, 4, 19) && ok(7, 5, 21) && ok(7, 7, 30));
        assert!(!ok(7, 6, 20) && !ok(7, 4, 20), "another entry at the same place");
        assert!(!ok(7, 6, 19) && !ok(7, 4, 21), "out of order");
        assert!(!ok(7, 8, 30), "above its own term");
        assert!(ok(3, 3, 30), "an old leader is answered with the newer vote");
    }

    #[test]
    fn entries_follow_one_another_and_can_be_applied() {
        let ok = |prev, entries| KNOWN.check_append(&append(prev, entries)).is_ok();
        let blank = |term, index| entry(term, index, EntryPayload::Blank);
        let prev = Some(convert::log_id(3, 4));
        assert!(ok(None, vec![blank(0, 0), blank(1, 1)]));
        assert!(ok(
            prev,
            vec![blank(3, 5), blank(7, 6), entry(7, 7, command(Command::from(fsm::upkeep::Tick)))]
        ));
        assert!(
            !ok(prev, vec![blank(3, 6)]) && !ok(prev, vec![blank(3, 4)]),
            "a gap, a repetition"
        );
        assert!(!ok(prev, vec![blank(2, 5)]) && !ok(prev, vec![blank(8, 5)]), "a term");
        for damaged in [Bytes::new(), Bytes::from_static(b"no frame")] {
            let payload = EntryPayload::Normal(EntryData(damaged));
            assert!(!ok(prev, vec![entry(3, 5, payload)]), "it does not decode");
        }
        let whole = codec::encode(&Proposal {
            at: 1,
            epoch: None,
            request: None,
            command: Command::from(fsm::upkeep::Tick),
        });
        let cut = EntryData(whole.slice(..whole.len() - 1));
        assert!(!ok(prev, vec![blank(3, 5), entry(3, 6, EntryPayload::Normal(cut))]));
        let nobody = EntryPayload::Membership(Membership::default());
        assert!(!ok(prev, vec![entry(3, 5, nobody)]), "no voter");
        let somebody = Membership::new_with_defaults(vec![BTreeSet::from([1])], [1]);
        assert!(ok(prev, vec![entry(3, 5, EntryPayload::Membership(somebody))]));
    }
}
