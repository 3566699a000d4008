//! Invariants of what servers say over time: votes, leaders, applied states, durable logs, nodes that are called dead.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use control::invariants::Strikes;
use fsm::{Allocation, ClientStatus, Index, Liveness, NodeId, State, TimeMs, digest::Digest};

use super::{Broken, check_kept, check_state, check_step, check_suits};
use crate::running;

/// I1: a server votes once per term, also when it lost power in between.
#[derive(Default, Debug)]
pub(crate) struct Votes(BTreeMap<(u64, u64), u64>);

impl Votes {
    /// A server granted its vote.
    pub(crate) fn granted(&mut self, voter: u64, term: u64, candidate: u64) -> Result<(), String> {
        let first = *self.0.entry((voter, term)).or_insert(candidate);
        if first == candidate {
            return Ok(());
        }
        Err(format!(
            "I1: server {voter:x} voted for {first:x} and for {candidate:x} in term {term}"
        ))
    }
}

/// I1: one leader per term; I3: it has everything that was acknowledged before the term was heard of.
#[derive(Default, Debug)]
pub(crate) struct Leaders {
    by_term: BTreeMap<u64, u64>,
    /// Highest index acknowledged to a client when the term was first heard of.
    floors: BTreeMap<u64, Index>,
}

impl Leaders {
    /// Somebody is in this term; `acknowledged` is the highest index any client was told.
    pub(crate) fn heard_of(&mut self, term: u64, acknowledged: Index) {
        self.floors.entry(term).or_insert(acknowledged);
    }

    /// Somebody takes this server for the leader of the term. True when the term had no leader before.
    pub(crate) fn leads(&mut self, term: u64, server: u64) -> Result<bool, String> {
        let new = !self.by_term.contains_key(&term);
        let first = *self.by_term.entry(term).or_insert(server);
        if first == server {
            return Ok(new);
        }
        Err(format!("I1: servers {first:x} and {server:x} both lead in term {term}"))
    }

    /// A leader begins its work with a state of this index.
    pub(crate) fn begins(&self, term: u64, applied: Index) -> Result<(), String> {
        let floor = self.floors.get(&term).copied().unwrap_or(0);
        if applied >= floor {
            return Ok(());
        }
        Err(format!(
            "I3: the leader of term {term} begins at index {applied}, but {floor} was acknowledged before that term"
        ))
    }
}

/// I5, I8: what is applied at an index is the same everywhere and for ever. Each state is judged by itself and as a step when it is first seen.
#[derive(Default)]
pub(crate) struct Applied {
    seen: BTreeMap<Index, (u64, Digest)>,
    newest: Option<Arc<State>>,
}

impl Applied {
    /// A server shows a state.
    pub(crate) fn shows(&mut self, who: &str, state: &Arc<State>) -> Vec<Broken> {
        let (index, term, digest) = (state.index(), state.term(), state.digest());
        let known = *self.seen.entry(index).or_insert((term, digest));
        if known.0 != term {
            let detail = format!("{who} has term {term} at {index}, another had {}", known.0);
            return vec![Broken("I5", detail)];
        }
        if known.1 != digest {
            let detail = format!("{who} has digest {digest} at {index}, another had {}", known.1);
            return vec![Broken("I8", detail)];
        }
        let is_newest = self.newest.as_ref().is_none_or(|newest| newest.index() < index);
        if !is_newest {
            return Vec::new();
        }
        let mut out = match &self.newest {
            Some(newest) => check_step(newest, state),
            None => Vec::new(),
        };
        out.extend(check_state(state));
        // Simulated agents keep what they say of their nodes.
        out.extend(check_suits(state));
        self.newest = Some(Arc::clone(state));
        out
    }

    /// Term and digest by index, of all states that were shown.
    pub(crate) fn known(&self) -> &BTreeMap<Index, (u64, Digest)> {
        &self.seen
    }

    /// The newest state that anybody showed.
    pub(crate) fn newest(&self) -> Option<&Arc<State>> {
        self.newest.as_ref()
    }
}

/// I50: a node is given up only by a leader that had the time to hear it.
#[derive(Debug)]
pub(crate) struct NodeDeaths {
    /// Shortest time to live and grace.
    patience: Duration,
    /// When services of a term began.
    began: BTreeMap<u64, Duration>,
}

impl NodeDeaths {
    /// Nodes that are given up after this patience. Log time may run 5 % faster than time, and in whole milliseconds.
    pub(crate) fn new(patience: Duration) -> Self {
        let patience = (patience * 95 / 100).saturating_sub(Duration::from_millis(2));
        Self { patience, began: BTreeMap::new() }
    }

    /// The services of a leadership begin.
    pub(crate) fn leadership(&mut self, term: u64, now: Duration) {
        self.began.entry(term).or_insert(now);
    }

    /// A step was applied in the term of `new`. An entry is never applied before its term's services begin, unless it is an earlier term's.
    pub(crate) fn step(&self, old: &State, new: &State, now: Duration) -> Vec<Broken> {
        let term = new.term();
        if old.term() != term || old.head().tables == new.head().tables {
            return Vec::new();
        }
        let Some(began) = self.began.get(&term) else { return Vec::new() };
        let age = now.saturating_sub(*began);
        if age >= self.patience {
            return Vec::new();
        }
        let died = new.nodes().iter().filter(|node| {
            let before = old.nodes().get(&node.id).map(|node| node.liveness);
            node.liveness == Liveness::Down && before.is_some_and(|was| was != Liveness::Down)
                // A node that never got ready has a deadline of its own.
                && before != Some(Liveness::Initializing)
        });
        died.map(|node| {
            let detail = format!(
                "node {} was given up {age:?} after the leader of term {term} began",
                node.id
            );
            Broken("I50", detail)
        })
        .collect()
    }
}

/// I50: nodes have no more strikes than the failures allow that their agents reported.
#[derive(Default, Debug)]
pub(crate) struct NodeStrikes {
    known: Strikes,
    /// Rows have gone that may have failed unseen: up to this log time a strike may be for them.
    unseen_until: TimeMs,
}

impl NodeStrikes {
    /// A later state of the log was shown.
    pub(crate) fn step(&mut self, old: &State, new: &State) -> Vec<Broken> {
        let has_failed = |row: &Allocation| row.client == ClientStatus::Failed;
        let known = |id| old.allocations().get(id).is_some_and(|row| has_failed(row));
        let failed = new.allocations().iter().filter(|row| has_failed(row) && !known(&row.id));
        for row in failed.filter(|row| running::failed_by_node(row.id)) {
            self.known.failed(row.node, row.client_at, row.job.clone());
        }
        let is_one_entry = new.index() == old.index() + 1;
        let mut gone = old.allocations().iter().filter(|row| !new.allocations().contains(&row.id));
        if !is_one_entry && gone.any(|row| running::failed_by_node(row.id) && !has_failed(row)) {
            self.unseen_until = new.at() + new.node_life().strike_window_ms;
        }
        if new.at() < self.unseen_until { Vec::new() } else { self.known.judge(old, new) }
    }
}

/// I50: during a mass loss nothing is reaped but what an operator purges.
#[derive(Default, Debug)]
pub(crate) struct NodeLosses {
    /// What it ever asked to purge: a request of unknown outcome may take effect later.
    purged: BTreeSet<NodeId>,
    /// Nodes of the last mass loss that had not come back when it ended: they may be reaped from then on.
    late: BTreeSet<NodeId>,
}

impl NodeLosses {
    /// An operator asks to purge a node.
    pub(crate) fn purges(&mut self, node: NodeId) {
        self.purged.insert(node);
    }

    /// A later state of the log was shown.
    pub(crate) fn step(&mut self, old: &State, new: &State) -> Vec<Broken> {
        if let Some(loss) = old.mass_loss().filter(|_| new.mass_loss().is_none()) {
            let is_back = |id: &NodeId| {
                new.nodes().get(id).is_some_and(|node| node.liveness != Liveness::Down)
            };
            self.late = loss.nodes.iter().copied().filter(|id| !is_back(id)).collect();
        }
        check_kept(old, new, &self.purged)
    }

    /// Whether this node came back after the last mass loss had ended, or not at all.
    pub(crate) fn is_late(&self, node: NodeId) -> bool {
        self.late.contains(&node)
    }
}

/// I7: log time runs at most 5 % faster than time, whoever leads and whatever the wall clocks do, but for a leader that none of the servers that ran
/// through told what time it is: it goes by the clocks.
#[derive(Default, Debug)]
pub(crate) struct LogTime {
    /// The most that log time may have been when the run began. The first that was shown was stamped when the run was no younger than 0.
    first: Option<TimeMs>,
}

impl LogTime {
    /// Nobody's clock is that far off what it says, in whole milliseconds.
    const SLACK_MS: u64 = 100;

    /// A state of this log time was shown when the run was `now` old.
    pub(crate) fn shows(&mut self, at: TimeMs, now: Duration) -> Option<Broken> {
        if at == 0 {
            return None;
        }
        let first = *self.first.get_or_insert(at);
        let ran_ms = at.saturating_sub(first);
        (ran_ms > most_ms(now).saturating_add(Self::SLACK_MS)).then(|| {
            let detail = format!("log time ran on by {ran_ms} ms within {now:?} of the run");
            Broken("I7", detail)
        })
    }

    /// A leader went on from the clocks, which showed this time when the run was `now` old.
    pub(crate) fn goes_by_clocks(&mut self, at: TimeMs, now: Duration) {
        let begun = at.saturating_sub(most_ms(now));
        self.first = self.first.map(|first| first.max(begun));
    }
}

/// How far log time runs within this time at most.
fn most_ms(time: Duration) -> u64 {
    u64::try_from((time * 105 / 100).as_millis()).unwrap_or(u64::MAX)
}

/// I4: an acknowledged index is in the durable logs or snapshots of a majority. `durable` holds what each voter's disk would come back with.
pub(crate) fn check_durable(index: Index, voters: usize, durable: &[Index]) -> Result<(), String> {
    let holding = durable.iter().filter(|last| **last >= index).count();
    if holding * 2 > voters {
        return Ok(());
    }
    Err(format!(
        "I4: index {index} was acknowledged and is durable on {holding} of {voters} servers, which end at {durable:?}"
    ))
}
