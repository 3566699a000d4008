//! Where each evaluation of the broker is, and the ordered sets that find the next one.
//!
//! Invariant: an entry is in exactly the sets that its [`Place`] asks for; [`Queues::hook`] and
//! [`Queues::unhook`] are the only writers. Who may be where is decided by the parent.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use fsm::{Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, JobKind};

use super::Token;

/// Which of a job's pending evaluations is kept: the greatest. A woken blocked evaluation never
/// supersedes a pending one, because the outcome of another evaluation may cancel the blocked one
/// afterwards, and both would be gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Rank {
    is_pending: bool,
    modify_index: Index,
    create_index: Index,
    pub(super) id: EvaluationId,
}

/// Which was made first: by entry, and by place in its entry.
type Age = (Index, u32, EvaluationId);

/// Order of ready evaluations: higher priority first, then by round, then first created first.
type Turn = (Reverse<u16>, u64, Age);

/// Children of one job, of one scheduler kind.
type FamilyKey = (JobKind, JobKey);

/// Ready evaluations of children of one job. The first of them is in the queue for all.
#[derive(PartialEq, Eq, Debug)]
struct Family {
    /// That of the first.
    round: u64,
    ready: BTreeSet<(Reverse<u16>, Age)>,
}

impl Family {
    fn first(&self) -> Option<Turn> {
        self.ready.first().map(|(priority, age)| (*priority, self.round, *age))
    }
}

/// Rounds, by which the children of one job take turns with everything else: a thousand of them
/// that end at once keep no other job waiting. In each round one child of each job is leased, and
/// every evaluation of a job that is no child of another. Without children there is one round, and
/// the order is that of creation, which is also that of the children of one job.
#[derive(Default, PartialEq, Eq, Debug)]
struct Rounds {
    current: u64,
    families: BTreeMap<FamilyKey, Family>,
}

/// The time of a lease: only that in which its worker is to work on it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Clock {
    /// The lease is taken back then.
    Until(u64),
    /// Its plan waits at the leader.
    Stopped,
    /// Its worker has the lease with this token in hand before it.
    Behind(Token),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lease {
    pub(super) token: Token,
    pub(super) server: u64,
    pub(super) clock: Clock,
    /// The lease after this one in its batch: its clock begins when this one ends.
    pub(super) next: Option<EvaluationId>,
    /// Leased by the reaper of failed evaluations.
    pub(super) failed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// Not hooked yet.
    Nowhere,
    Waiting {
        until: u64,
    },
    Pending,
    /// Holds its job, until what it supersedes is terminal.
    Held,
    Ready {
        since: u64,
    },
    Outstanding(Lease),
    Failed,
    Cancelable,
}

/// What the broker knows of an evaluation.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) id: EvaluationId,
    pub(super) job: JobKey,
    kind: JobKind,
    is_pending: bool,
    /// A scheduler that finds it open makes no other of its sort: a blocked one, a step of an
    /// update, a wait for failed allocations.
    pub(super) is_relied_on: bool,
    pub(super) priority: u16,
    create_index: Index,
    order: u32,
    pub(super) modify_index: Index,
    pub(super) snapshot_index: Index,
    pub(super) deliveries: u32,
    pub(super) place: Place,
    /// Taken in when the lease is acknowledged, not before the log time beside it.
    pub(super) again: Option<Box<(Entry, u64)>>,
}

impl Entry {
    pub(super) fn new(evaluation: &Evaluation) -> Self {
        Self {
            id: evaluation.id,
            job: evaluation.job.clone(),
            kind: evaluation.kind,
            is_pending: evaluation.status == EvaluationStatus::Pending,
            is_relied_on: evaluation.status == EvaluationStatus::Blocked
                || evaluation.wait_until > 0
                || !evaluation.reschedules.is_empty(),
            priority: evaluation.priority,
            create_index: evaluation.create_index,
            order: evaluation.order,
            modify_index: evaluation.modify_index,
            snapshot_index: evaluation.snapshot_index,
            deliveries: 0,
            place: Place::Nowhere,
            again: None,
        }
    }

    pub(super) fn rank(&self) -> Rank {
        Rank {
            is_pending: self.is_pending,
            modify_index: self.modify_index,
            create_index: self.create_index,
            id: self.id,
        }
    }

    pub(super) fn lease(&self) -> Option<Lease> {
        match self.place {
            Place::Outstanding(lease) => Some(lease),
            Place::Nowhere
            | Place::Waiting { .. }
            | Place::Pending
            | Place::Held
            | Place::Ready { .. }
            | Place::Failed
            | Place::Cancelable => None,
        }
    }

    fn age(&self) -> Age {
        (self.create_index, self.order, self.id)
    }

    fn turn(&self, round: u64) -> Turn {
        (Reverse(self.priority), round, self.age())
    }

    /// Of an evaluation of a child.
    fn family(&self) -> Option<FamilyKey> {
        Some((self.kind, self.job.parent_key()?))
    }

    fn timer(&self) -> Option<u64> {
        match self.place {
            Place::Waiting { until } => Some(until),
            Place::Outstanding(lease) => match lease.clock {
                Clock::Until(at) => Some(at),
                Clock::Stopped | Clock::Behind(_) => None,
            },
            Place::Nowhere
            | Place::Pending
            | Place::Held
            | Place::Ready { .. }
            | Place::Failed
            | Place::Cancelable => None,
        }
    }
}

/// Evaluations of one scheduler kind by place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// Not before a time: delayed, or after a nack.
    pub waiting: usize,
    /// Behind another one of their job, or until what they supersede is terminal.
    pub pending: usize,
    /// To be leased.
    pub ready: usize,
    /// Leased.
    pub unacked: usize,
    /// Reached the delivery limit.
    pub failed: usize,
    /// Superseded.
    pub cancelable: usize,
}

/// Evaluations by place.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// All kinds.
    pub total: Count,
    /// By scheduler kind.
    pub by_kind: BTreeMap<JobKind, Count>,
}

#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Queues {
    ready: BTreeMap<JobKind, BTreeSet<Turn>>,
    /// Of each that is ready and of no child.
    rounds_of: BTreeMap<EvaluationId, u64>,
    rounds: Rounds,
    ready_since: BTreeMap<JobKind, BTreeSet<(u64, EvaluationId)>>,
    failed: BTreeSet<Turn>,
    outstanding: BTreeSet<EvaluationId>,
    cancelable: BTreeSet<EvaluationId>,
    timers: BTreeSet<(u64, EvaluationId)>,
    counts: BTreeMap<JobKind, Count>,
}

impl Queues {
    pub(super) fn hook(&mut self, entry: &Entry) {
        if let Some(at) = entry.timer() {
            self.timers.insert((at, entry.id));
        }
        if let Some(count) = self.count(entry) {
            *count += 1;
        }
        match entry.place {
            Place::Nowhere | Place::Waiting { .. } | Place::Pending | Place::Held => {}
            Place::Ready { since } => {
                self.join(entry);
                self.ready_since.entry(entry.kind).or_default().insert((since, entry.id));
            }
            Place::Outstanding(_) => {
                self.outstanding.insert(entry.id);
            }
            Place::Failed => {
                self.failed.insert(entry.turn(0));
            }
            Place::Cancelable => {
                self.cancelable.insert(entry.id);
            }
        }
    }

    pub(super) fn unhook(&mut self, entry: &Entry) {
        if let Some(at) = entry.timer() {
            self.timers.remove(&(at, entry.id));
        }
        if let Some(count) = self.count(entry) {
            *count -= 1;
        }
        match entry.place {
            Place::Nowhere | Place::Waiting { .. } | Place::Pending | Place::Held => {}
            Place::Ready { since } => {
                self.leave(entry);
                self.ready_since.entry(entry.kind).or_default().remove(&(since, entry.id));
            }
            Place::Outstanding(_) => {
                self.outstanding.remove(&entry.id);
            }
            Place::Failed => {
                self.failed.remove(&entry.turn(0));
            }
            Place::Cancelable => {
                self.cancelable.remove(&entry.id);
            }
        }
    }

    /// An evaluation is ready.
    fn join(&mut self, entry: &Entry) {
        if let Some(key) = entry.family() {
            self.change_family(key, |family| {
                family.ready.insert((Reverse(entry.priority), entry.age()));
            });
            return;
        }
        let round = self.rounds.current;
        self.rounds_of.insert(entry.id, round);
        self.ready.entry(entry.kind).or_default().insert(entry.turn(round));
    }

    /// An evaluation that was ready is not.
    fn leave(&mut self, entry: &Entry) {
        if let Some(key) = entry.family() {
            self.change_family(key, |family| {
                family.ready.remove(&(Reverse(entry.priority), entry.age()));
            });
            return;
        }
        let round = self.rounds_of.remove(&entry.id).unwrap_or_default();
        self.ready.entry(entry.kind).or_default().remove(&entry.turn(round));
    }

    /// Keeps the first of a family in the queue for all.
    fn change_family(&mut self, key: FamilyKey, change: impl FnOnce(&mut Family)) {
        let queue = self.ready.entry(key.0).or_default();
        let new = Family { round: self.rounds.current, ready: BTreeSet::new() };
        let mut family = self.rounds.families.remove(&key).unwrap_or(new);
        if let Some(turn) = family.first() {
            queue.remove(&turn);
        }
        change(&mut family);
        if let Some(turn) = family.first() {
            queue.insert(turn);
            self.rounds.families.insert(key, family);
        }
    }

    fn count(&mut self, entry: &Entry) -> Option<&mut usize> {
        let count = self.counts.entry(entry.kind).or_default();
        match entry.place {
            Place::Nowhere => None,
            Place::Waiting { .. } => Some(&mut count.waiting),
            Place::Pending | Place::Held => Some(&mut count.pending),
            Place::Ready { .. } => Some(&mut count.ready),
            Place::Outstanding(_) => Some(&mut count.unacked),
            Place::Failed => Some(&mut count.failed),
            Place::Cancelable => Some(&mut count.cancelable),
        }
    }

    /// The first of all kinds: priorities are compared across kinds too.
    pub(super) fn first_ready(&self, kinds: &[JobKind]) -> Option<EvaluationId> {
        let firsts = kinds.iter().filter_map(|kind| self.ready.get(kind)?.first());
        let (_, _, (_, _, id)) = firsts.min()?;
        Some(*id)
    }

    /// An evaluation is about to be leased. After a ready child, what becomes ready from now on,
    /// and its siblings, are of the next round.
    pub(super) fn leases(&mut self, entry: &Entry) {
        let Place::Ready { .. } = entry.place else { return };
        let Some(key) = entry.family() else { return };
        let Some(family) = self.rounds.families.get(&key) else { return };
        let next = self.rounds.current.max(family.round + 1);
        self.rounds.current = next;
        self.change_family(key, |family| family.round = next);
    }

    pub(super) fn first_failed(&self) -> Option<EvaluationId> {
        let (_, _, (_, _, id)) = self.failed.first()?;
        Some(*id)
    }

    pub(super) fn outstanding(&self) -> Vec<EvaluationId> {
        self.outstanding.iter().copied().collect()
    }

    pub(super) fn cancelable(&self) -> impl Iterator<Item = EvaluationId> + '_ {
        self.cancelable.iter().copied()
    }

    pub(super) fn due(&self, now: u64) -> Option<EvaluationId> {
        self.timers.first().filter(|(at, _)| *at <= now).map(|(_, id)| *id)
    }

    pub(super) fn next_timer(&self) -> Option<u64> {
        Some(self.timers.first()?.0)
    }

    /// Since when the oldest ready evaluation of a kind has been ready.
    pub(super) fn oldest_ready(&self, kind: JobKind) -> Option<u64> {
        Some(self.ready_since.get(&kind)?.first()?.0)
    }

    pub(super) fn stats(&self) -> Stats {
        let mut total = Count::default();
        for count in self.counts.values() {
            total.waiting += count.waiting;
            total.pending += count.pending;
            total.ready += count.ready;
            total.unacked += count.unacked;
            total.failed += count.failed;
            total.cancelable += count.cancelable;
        }
        Stats { total, by_kind: self.counts.clone() }
    }
}
