//! The model log: one sequence of entries, of which a prefix is committed. It stands for Raft with all its followers.
//!
//! What it keeps of Raft: a committed entry stays; only the leader of the newest term appends; at an election any part of the uncommitted tail
//! survives in the new leader's log, in order, before the new term's blank entry; the proposer of an entry that did not survive never hears
//! that it did. What it leaves out: votes, replication, and how long they take: the schedule decides when an entry is committed.
//!
//! Each entry is applied once, when it is committed; a server's state is a clone of the one at its applied index (the oracle replays the log on
//! another state at the end).

use std::{collections::BTreeMap, sync::Arc};

use fsm::{Effect, Index, Proposal, Reply, State, state::Head, table::ChangeSet};

/// Number of a proposal.
pub(crate) type Ticket = u64;

/// An entry; one without a proposal is the first of its term.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub(crate) term: u64,
    pub(crate) proposal: Option<Proposal>,
    ticket: Option<Ticket>,
}

/// A committed entry with what it did.
pub(crate) struct Applied {
    pub(crate) entry: Entry,
    /// The state after it.
    pub(crate) state: Arc<State>,
    pub(crate) reply: Reply,
    pub(crate) effects: Vec<Effect>,
}

/// What became of a proposal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    /// In the tail that is not committed.
    Open,
    /// Committed at this index.
    Committed(Index),
    /// It will never be committed.
    Lost,
}

/// What an election did to the tail.
#[derive(Debug, Default)]
pub(crate) struct Election {
    pub(crate) survived: usize,
    pub(crate) lost: usize,
}

/// What goes wrong with the log.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogTrouble {
    /// Percent of commands of services, and of entries with plans, that never come into the log.
    pub(crate) refusals: u64,
    /// Percent of steps that would commit at which the log begins to stand still.
    pub(crate) stalls: u64,
}

/// The model log.
pub(crate) struct Log {
    genesis: Arc<State>,
    committed: Vec<Applied>,
    tail: Vec<Entry>,
    fates: BTreeMap<Ticket, Fate>,
    tickets: Ticket,
    /// The newest term.
    pub(crate) term: u64,
    /// Its leader.
    pub(crate) leader: usize,
    /// It commits nothing before this time.
    pub(super) stalled_until: u64,
}

impl Log {
    /// An empty log led by server 0 in term 1.
    pub(crate) fn new(start_at: u64) -> Self {
        let mut genesis = State::genesis(&mut ChangeSet::default());
        genesis.load_done(Head { at: start_at, ..genesis.head() });
        let blank = Entry { term: 1, proposal: None, ticket: None };
        Self {
            genesis: Arc::new(genesis),
            committed: Vec::new(),
            tail: vec![blank],
            fates: BTreeMap::new(),
            tickets: 0,
            term: 1,
            leader: 0,
            stalled_until: 0,
        }
    }

    /// The state before the first entry.
    pub(crate) fn genesis(&self) -> &State {
        &self.genesis
    }

    /// Index of the last committed entry.
    pub(crate) fn last(&self) -> Index {
        self.committed.len() as Index
    }

    /// The newest committed state.
    pub(crate) fn truth(&self) -> &Arc<State> {
        self.state_at(self.last())
    }

    /// The state after a committed entry; genesis for 0.
    pub(crate) fn state_at(&self, index: Index) -> &Arc<State> {
        self.at(index).map_or(&self.genesis, |applied| &applied.state)
    }

    /// A committed entry.
    pub(crate) fn at(&self, index: Index) -> Option<&Applied> {
        let place = usize::try_from(index).ok()?.checked_sub(1)?;
        self.committed.get(place)
    }

    /// Committed entries in order.
    pub(crate) fn committed(&self) -> &[Applied] {
        &self.committed
    }

    /// Entries that are not committed.
    pub(crate) fn open(&self) -> usize {
        self.tail.len()
    }

    /// Whether the first entry of the newest term is committed.
    pub(crate) fn has_barrier(&self) -> bool {
        !self.tail.iter().any(|entry| entry.proposal.is_none() && entry.term == self.term)
    }

    /// Appends a proposal that a server made as the leader of a term, if that is the newest, or the server leads again: then the entry is of the new
    /// term, and `apply` has to see what became of the old one.
    pub(crate) fn propose(&mut self, server: usize, term: u64, proposal: Proposal) -> Ticket {
        self.tickets += 1;
        let ticket = self.tickets;
        let leads = term == self.term || (server == self.leader && self.has_barrier());
        let term = self.term;
        self.fates.insert(ticket, if leads { Fate::Open } else { Fate::Lost });
        if leads {
            self.tail.push(Entry { term, proposal: Some(proposal), ticket: Some(ticket) });
        }
        ticket
    }

    /// A proposal that does not come into the log.
    pub(crate) fn refuse(&mut self) -> Ticket {
        self.tickets += 1;
        self.fates.insert(self.tickets, Fate::Lost);
        self.tickets
    }

    /// What became of a proposal.
    pub(crate) fn fate(&self, ticket: Ticket) -> Fate {
        self.fates.get(&ticket).copied().unwrap_or(Fate::Lost)
    }

    /// Another term begins; the first `survivors` entries of the tail stay.
    pub(crate) fn elect(&mut self, leader: usize, survivors: usize) -> Election {
        let survived = survivors.min(self.tail.len());
        let lost = self.tail.split_off(survived);
        for ticket in lost.iter().filter_map(|entry| entry.ticket) {
            self.fates.insert(ticket, Fate::Lost);
        }
        self.term += 1;
        self.leader = leader;
        self.tail.push(Entry { term: self.term, proposal: None, ticket: None });
        Election { survived, lost: lost.len() }
    }

    /// Commits the next entry. False: there is none.
    pub(crate) fn commit(&mut self) -> bool {
        if self.tail.is_empty() {
            return false;
        }
        let entry = self.tail.remove(0);
        let index = self.last() + 1;
        let mut state = State::clone(self.truth());
        let (reply, effects) = match &entry.proposal {
            Some(proposal) => {
                let mut changes = ChangeSet::default();
                let applied = state.apply(index, entry.term, proposal, &mut changes);
                (applied.reply, applied.effects)
            }
            None => {
                state.advance(index, entry.term);
                (Reply::Done, Vec::new())
            }
        };
        if let Some(ticket) = entry.ticket {
            self.fates.insert(ticket, Fate::Committed(index));
        }
        let state = Arc::new(state);
        self.committed.push(Applied { entry, state, reply, effects });
        true
    }
}
