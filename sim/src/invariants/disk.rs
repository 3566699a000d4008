//! Invariants of what lies on disks: what a server would come back with is what it said, and what the others have.
//!
//! - I2: entries of one index and term are the same on every disk, and so is what comes before them.
//! - I6: the log is purged no further than the snapshot file, and a server that runs keeps the engine as far.
//! - I7: vote and term never go back across restarts, and no promise that left a server is ahead of its disk.
//! - I11: a disk on which bytes were flipped opens as what it was, or does not open: damage is never taken for the end of a log.
//! - I9: each state on a disk, and what a replay of the log makes of it, is what replicas showed at that index, with the members of then.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use bytes::Bytes;
use fsm::{Index, State, digest::Digest, table::ChangeSet};
use raft::storage::shadow::Loaded;

use super::{Broken, Remains};
use crate::{
    autopsy::{Content, DiskVote, content},
    trace,
};

/// Term and number of a vote.
pub(crate) type Vote = (u64, u64);

/// What was seen on any disk, and promised by any server.
#[derive(Default)]
pub(crate) struct Disks {
    /// Hash of payload and term before, by index and term.
    entries: BTreeMap<(Index, u64), (u64, Option<u64>)>,
    /// Committed changes of the members.
    memberships: BTreeMap<Index, (u64, Bytes)>,
    /// The newest vote that a server gave away, by its number.
    promised: BTreeMap<u64, Vote>,
}

/// Whether a vote on disk keeps what was promised: a newer term, the same vote, or whoever was elected in that term by others.
fn keeps(found: Option<DiskVote>, promised: Vote) -> bool {
    found.is_some_and(|found| {
        found.term > promised.0
            || (found.term == promised.0 && (found.number == promised.1 || found.elected))
    })
}

impl Disks {
    /// A server gave its vote away, and its disk held this at that moment.
    pub(crate) fn votes(
        &mut self,
        server: u64,
        vote: Vote,
        durable: Option<DiskVote>,
    ) -> Result<(), String> {
        let newest = self.promised.entry(server).or_insert(vote);
        *newest = (*newest).max(vote);
        if keeps(durable, vote) {
            return Ok(());
        }
        Err(format!("I7: server {server:x} gave its vote {vote:?}, and its disk holds {durable:?}"))
    }

    /// What lies on the disk of a server. `known` is what replicas showed, by index; `ran`: it was up, and had brought its disk in order.
    pub(crate) fn found(
        &mut self,
        server: u64,
        remains: &Remains,
        known: &BTreeMap<Index, (u64, Digest)>,
        ran: bool,
    ) -> Vec<Broken> {
        let mut out = Vec::new();
        for name in &remains.set_aside {
            out.push(Broken("I11", format!("{name} was set aside on a disk that is whole")));
        }
        let vote = remains.vote;
        if let Some(promised) = self.promised.get(&server)
            && !keeps(vote, *promised)
        {
            let detail = format!("server {server:x} voted {promised:?}, its disk holds {vote:?}");
            out.push(Broken("I7", detail));
        }
        self.matching(remains, &mut out);
        purged(remains, ran, &mut out);
        let committed = committed(remains, known);
        for (what, base) in [("engine", &remains.engine), ("snapshot", &remains.snapshot)] {
            if let Some(base) = base {
                self.replay(what, base, remains, known, committed, &mut out);
            }
        }
        out
    }

    /// I2.
    fn matching(&mut self, remains: &Remains, out: &mut Vec<Broken>) {
        let mut before = remains.purged;
        for (id, payload) in &remains.entries {
            let previous = before.filter(|one| one.index + 1 == id.index).map(|one| one.term);
            let hash = trace::hash(payload);
            let known = self.entries.entry((id.index, id.term)).or_insert((hash, previous));
            if known.0 != hash {
                let detail =
                    format!("entry {} of term {} differs between disks", id.index, id.term);
                out.push(Broken("I2", detail));
            }
            match (known.1, previous) {
                (Some(one), Some(other)) if one != other => {
                    let detail = format!(
                        "entry {} of term {} follows term {one} on one disk and {other} on another",
                        id.index, id.term
                    );
                    out.push(Broken("I2", detail));
                }
                (None, Some(_)) => known.1 = previous,
                (Some(_) | None, Some(_) | None) => {}
            }
            if before.is_some_and(|one| one.term > id.term) {
                out.push(Broken("I2", format!("terms fall before entry {}", id.index)));
            }
            before = Some(*id);
        }
    }

    /// I9: the state itself, and each state that the log leads to.
    fn replay(
        &mut self,
        what: &str,
        base: &Loaded,
        remains: &Remains,
        known: &BTreeMap<Index, (u64, Digest)>,
        committed: Index,
        out: &mut Vec<Broken>,
    ) {
        let mut state = base.state.clone();
        if let Some(broken) = compare(&format!("the {what}"), &state, known) {
            out.push(broken);
            return;
        }
        let derived = fsm::invariant::check(&state).into_iter();
        out.extend(
            derived.map(|one| Broken("I9", format!("the {what}: {}: {}", one.name, one.detail))),
        );
        self.members(what, base, out);
        let rest = remains.entries.iter().filter(|(id, _)| id.index > state.index());
        let rest: Vec<_> = rest.take_while(|(id, _)| id.index <= committed).collect();
        for (id, payload) in rest {
            match content(payload) {
                Ok(Content::Command(proposal)) => {
                    state.apply(id.index, id.term, &proposal, &mut ChangeSet::default());
                }
                Ok(Content::Membership(members)) => {
                    self.memberships.insert(id.index, (id.term, members));
                    state.advance(id.index, id.term);
                }
                Ok(Content::Blank) => state.advance(id.index, id.term),
                Err(why) => {
                    out.push(Broken("I11", format!("entry {} does not decode: {why}", id.index)));
                    return;
                }
            }
            if let Some(broken) = compare(&format!("the {what}, replayed,"), &state, known) {
                out.push(broken);
                return;
            }
        }
    }

    /// The members of a stored state are those of the last change before it.
    fn members(&self, what: &str, base: &Loaded, out: &mut Vec<Broken>) {
        let index = base.state.index();
        let Some((last, (term, members))) = self.memberships.range(..=index).next_back() else {
            return;
        };
        let stored = base.meta.membership_log_id;
        if stored.is_none_or(|(at, _)| at < *last) {
            let detail = format!(
                "the {what} at {index} has the members of {stored:?}, which changed at {last}"
            );
            out.push(Broken("I9", detail));
        } else if stored == Some((*last, *term)) && base.meta.membership != *members {
            out.push(Broken("I9", format!("the {what} at {index} has other members than {last}")));
        }
    }
}

/// I11: what a disk holds after bytes of it were flipped, and it still opens: vote and log as `before`, and no state that replicas did not show.
pub(crate) fn rotten(
    before: &Remains,
    after: &Remains,
    known: &BTreeMap<Index, (u64, Digest)>,
) -> Vec<Broken> {
    let mut out = Vec::new();
    let mut differs = |what: &str, is: String| {
        let detail = format!("after bytes were flipped the log opens with {what} {is}");
        out.push(Broken("I11", detail));
    };
    if after.vote != before.vote {
        differs("vote", format!("{:?} instead of {:?}", after.vote, before.vote));
    }
    if (after.purged, after.last()) != (before.purged, before.last()) {
        let (ends, ended) = (after.last(), before.last());
        differs("its end at", format!("{ends} instead of {ended}"));
    }
    for (one, other) in after.entries.iter().zip(&before.entries) {
        if one != other {
            differs("another entry", format!("{:?}", one.0));
        }
    }
    let states = [("engine", &after.engine), ("snapshot", &after.snapshot)];
    let states = states.into_iter().filter_map(|(what, loaded)| Some((what, loaded.as_ref()?)));
    out.extend(states.filter_map(|(what, loaded)| {
        compare(&format!("the {what}, with flipped bytes,"), &loaded.state, known)
    }));
    out
}

/// I6.
fn purged(remains: &Remains, ran: bool, out: &mut Vec<Broken>) {
    let Some(purged) = remains.purged else { return };
    let at = |base: &Option<Loaded>| base.as_ref().map_or(0, |base| base.state.index());
    let (engine, snapshot) = (at(&remains.engine), at(&remains.snapshot));
    // A start rebuilds the older one from the newer one before anything else.
    let least = if ran { engine.min(snapshot) } else { engine.max(snapshot) };
    if purged.index > least {
        let detail = format!(
            "the log is purged up to {}, the engine ends at {engine}, the snapshot at {snapshot}",
            purged.index
        );
        out.push(Broken("I6", detail));
    }
}

/// How far this log is committed for certain: replicas showed a state of that index and term.
fn committed(remains: &Remains, known: &BTreeMap<Index, (u64, Digest)>) -> Index {
    let agree =
        |(index, (term, _)): &(&Index, &(u64, Digest))| remains.term(**index) == Some(*term);
    let newest = known.range(..=remains.last()).rev().find(agree);
    newest.map_or(0, |(index, _)| *index)
}

fn compare(what: &str, state: &State, known: &BTreeMap<Index, (u64, Digest)>) -> Option<Broken> {
    let index = state.index();
    let (term, digest) = *known.get(&index)?;
    let found = (state.term(), state.digest());
    (found != (term, digest)).then(|| {
        let detail = format!(
            "{what} at {index} has term {} and digest {}, replicas showed term {term} and digest {digest}",
            found.0, found.1
        );
        Broken("I9", detail)
    })
}
