//! Blocked evaluations: which of them is worth trying again when a node gains room.
//!
//! It owns the wake-up rule and the memory of capacity gains. It never writes state: a woken
//! evaluation keeps its status `blocked` until its outcome is applied, so that a leader that dies
//! in between leaves nothing behind; the next one sees the gain in the state and wakes it again.
//!
//! A gain is of one node. The node's free room is offered to the evaluations that have not seen the
//! gain, in the order in which the broker would serve them ([`room`], [`offers`]): one whose
//! smallest instance does not fit sleeps on, and one that is woken takes of what is left for the
//! next. When it comes back, what it left is offered again. With many jobs that wait, each end
//! would have all of them tried otherwise.
//!
//! An evaluation that met the node's class and found it unfit sleeps through the gain, and so does
//! one of another node pool. One that did not meet the class, or whose constraints look at single
//! nodes (`escaped`), wakes if it fits.
//! Blocked records of per-node jobs are one per (job, node) and wake with their node. A gain at or
//! below an evaluation's snapshot was seen by it and wakes nothing.
//!
//! A caller is never kept waiting: [`BlockedEvals::gained`] queues a look, and
//! [`BlockedEvals::poll`] does a slice of the queued work. On an effect about an evaluation the
//! caller asks the broker first ([`crate::EvalBroker::applied`]), tells of one that the broker does
//! not hold any more ([`BlockedEvals::returned`]) and calls [`BlockedEvals::block`] only with a row
//! that the broker does not hold ([`crate::EvalBroker::contains`]).
//!
//! Invariant: at most one evaluation is tracked per job, or per (job, node) for records of per-node
//! jobs; the rest are duplicates.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Bound::{Excluded, Unbounded},
};

use fsm::{
    ClassId, Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, Node, NodeId, State, Text,
    Trigger, node::GainKey,
};

use crate::limits;

mod offers;
mod room;
#[cfg(test)]
mod tests;

use offers::{Offers, Place};
use room::{OpenNode, Room, Shape};

/// Shapes of sleeping evaluations that cost as much as one evaluation that is looked at.
const SHAPES_PER_EVALUATION: usize = 16;

/// An evaluation to give to the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wake {
    pub evaluation: EvaluationId,
    /// Index of the gain that woke it: the snapshot must be at least of it
    /// ([`crate::EvalBroker::note_job_index`]). 0: it was only time.
    pub index: Index,
}

/// Counts of blocked evaluations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BlockedStats {
    /// Tracked evaluations.
    pub blocked: usize,
    /// Of these, those whose constraints look at single nodes.
    pub escaped: usize,
    /// Of these, records of per-node jobs.
    pub per_node: usize,
    /// Of these, woken and not yet given out.
    pub woken: usize,
    /// Nodes that are still to be looked at.
    pub scans: usize,
    /// Superseded evaluations that are not canceled yet.
    pub duplicates: usize,
}

#[derive(Debug)]
struct Tracked {
    job: JobKey,
    /// The node pool that its job is of now; none: of all, or it is not known.
    pool: Option<Text>,
    /// Set for a record of a per-node job.
    node: Option<NodeId>,
    escaped: bool,
    classes: BTreeMap<ClassId, bool>,
    place: Place,
    shape: Shape,
    /// Instances that lack, as far as it is known.
    count: u32,
    create_index: Index,
    snapshot_index: Index,
    retry_at: Option<u64>,
    woken: Option<Index>,
}

impl Tracked {
    fn new(now: u64, state: &State, evaluation: &Evaluation) -> Self {
        let Evaluation { priority, create_index, order, id, .. } = *evaluation;
        let (shape, count) = Shape::of(state, evaluation);
        Self {
            job: evaluation.job.clone(),
            pool: pool_of(state, &evaluation.job),
            node: evaluation.node.filter(|_| evaluation.kind.is_per_node()),
            escaped: evaluation.escaped,
            classes: evaluation.class_eligibility.clone(),
            place: (Reverse(priority), create_index, order, id),
            shape,
            count,
            create_index,
            snapshot_index: evaluation.snapshot_index,
            retry_at: (evaluation.trigger == Trigger::MaxPlans)
                .then_some(now + limits::UNBLOCK_FAILED_MS),
            woken: None,
        }
    }

    /// Greater is newer.
    fn age(&self, id: EvaluationId) -> (Index, Index, EvaluationId) {
        (self.create_index.max(self.snapshot_index), self.create_index, id)
    }

    fn may_use(&self, node: &Node) -> bool {
        let is_of_pool = self.pool.as_ref().is_none_or(|pool| *pool == node.description.pool);
        self.node.is_none()
            && is_of_pool
            && (self.escaped || self.classes.get(&node.class) != Some(&false))
    }
}

/// What of a job is tracked.
#[derive(Default, Debug)]
struct JobRecords {
    by_class: Option<EvaluationId>,
    by_node: BTreeMap<NodeId, EvaluationId>,
}

/// Where a look at a node's room came to.
struct Looked {
    /// Who is woken, and what each takes.
    woken: Vec<(EvaluationId, Room)>,
    /// The last one looked at, if others are left.
    cut: Option<Place>,
}

/// The one node pool whose nodes a job may use; none: it may use all, or is not there.
fn pool_of(state: &State, job: &JobKey) -> Option<Text> {
    let pool = &state.current_spec(state.jobs().get(job)?)?.node_pool;
    (&**pool != "all").then(|| pool.clone())
}

/// The tracker of blocked evaluations. Starts disabled.
#[derive(Default, Debug)]
pub struct BlockedEvals {
    enabled: bool,
    tracked: BTreeMap<EvaluationId, Tracked>,
    jobs: BTreeMap<JobKey, JobRecords>,
    /// Those that are tracked by class and not woken, by the pool of their job.
    asleep: BTreeMap<Option<Text>, BTreeMap<Shape, BTreeSet<Place>>>,
    by_node: BTreeMap<NodeId, BTreeSet<EvaluationId>>,
    escaped: usize,
    per_node: usize,
    retries: BTreeSet<(u64, EvaluationId)>,
    woken: BTreeSet<EvaluationId>,
    duplicates: BTreeSet<EvaluationId>,
    offers: Offers,
    node_scans: BTreeMap<NodeId, Index>,
}

impl BlockedEvals {
    /// Tracks from now on.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// Drops everything and tracks nothing from now on.
    pub fn disable(&mut self) {
        *self = Self::default();
    }

    /// Whether evaluations are tracked.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Takes over from the state what a new leader has to watch: the gains, then the blocked
    /// evaluations, and looks at all the room that somebody may have missed. Those that are `held`
    /// were woken before and come back with their outcome.
    pub fn restore(&mut self, now: u64, state: &State, held: impl Fn(EvaluationId) -> bool) {
        if !self.enabled {
            return;
        }
        for gain in state.capacity_gains().iter() {
            if let GainKey::Node(node) = gain.key {
                self.offers.gained(node, gain.index);
            }
        }
        for evaluation in state.evaluations().iter().filter(|evaluation| !held(evaluation.id)) {
            self.insert(now, state, evaluation);
        }
        let by_class = self.tracked.values().filter(|tracked| tracked.node.is_none());
        if let Some(oldest) = by_class.map(|tracked| tracked.snapshot_index).min() {
            let missed: Vec<_> = self.offers.gained_after(oldest).collect();
            for node in missed {
                self.offers.look_at(node);
            }
        }
        let gone = self.by_node.keys().filter(|node| !state.nodes().contains(node));
        let gone: Vec<_> = gone.copied().collect();
        for node in gone {
            self.node_gone(node, state.index());
        }
    }

    /// Tracks a blocked evaluation, anew if it was tracked before. It wakes if it missed a gain
    /// since its snapshot.
    pub fn block(&mut self, now: u64, state: &State, evaluation: &Evaluation) {
        if self.enabled && self.insert(now, state, evaluation) {
            self.look_for(state, evaluation.id);
        }
    }

    /// `false`: it is not tracked, or nothing changed.
    fn insert(&mut self, now: u64, state: &State, evaluation: &Evaluation) -> bool {
        if evaluation.status != EvaluationStatus::Blocked {
            return false;
        }
        let id = evaluation.id;
        let known = self.tracked.get(&id);
        if known.is_some_and(|known| known.snapshot_index == evaluation.snapshot_index) {
            return false;
        }
        self.forget(id);
        let tracked = Tracked::new(now, state, evaluation);
        if let Some(rival) = self.rival(&tracked) {
            let rival_age = self.tracked.get(&rival).map(|known| known.age(rival));
            if rival_age > Some(tracked.age(id)) {
                self.duplicates.insert(id);
                return false;
            }
            self.forget(rival);
            self.duplicates.insert(rival);
        }
        self.duplicates.remove(&id);
        let missed = tracked.node.and_then(|node| self.offers.gain(node));
        let missed = missed.filter(|index| *index > tracked.snapshot_index);
        self.track(id, tracked);
        if let Some(index) = missed {
            self.wake(id, index);
        }
        true
    }

    /// Has the room looked at that an evaluation may use and has not seen.
    fn look_for(&mut self, state: &State, id: EvaluationId) {
        let Some(tracked) = self.tracked.get(&id) else { return };
        let missed = self.offers.gained_after(tracked.snapshot_index);
        let may_use =
            |node: &NodeId| state.nodes().get(node).is_some_and(|row| tracked.may_use(row));
        let missed: Vec<_> = missed.filter(may_use).collect();
        for node in missed {
            self.offers.look_at(node);
        }
    }

    /// A node gained room at an index.
    pub fn gained(&mut self, node: NodeId, index: Index) {
        if !self.enabled {
            return;
        }
        self.offers.gained(node, index);
        if !self.asleep.is_empty() {
            self.offers.look_at(node);
        }
        if self.by_node.contains_key(&node) {
            let scan = self.node_scans.entry(node).or_insert(index);
            *scan = (*scan).max(index);
        }
    }

    /// An evaluation is not held by the broker any more, if it was: whatever became of it, the room
    /// that it was woken for is looked at again.
    pub fn returned(&mut self, state: &State, id: EvaluationId) {
        let is_given_out = !self.tracked.contains_key(&id);
        let Some(node) = self.offers.node_of(id).filter(|_| is_given_out) else { return };
        let row = state.evaluations().get(&id);
        let is_refused =
            row.filter(|row| row.status == EvaluationStatus::Blocked).is_some_and(|row| {
                let since = self.offers.gain(node).unwrap_or(0);
                OpenNode::find(state, node).is_some_and(|open| !open.has_new(&row.job, since))
            });
        self.offers.give_back(id, is_refused);
    }

    /// A node is gone at an index: the records on it wake, so that their evaluations end instead of
    /// waiting for ever.
    pub fn node_gone(&mut self, node: NodeId, index: Index) {
        self.offers.node_gone(node);
        if self.by_node.contains_key(&node) {
            self.node_scans.insert(node, index);
        }
    }

    /// Wakes every evaluation that is blocked because its plans were rejected too often.
    /// [`Self::poll`] does so by itself, for each of them a minute after it was blocked.
    pub fn unblock_failed(&mut self) {
        for (_, id) in std::mem::take(&mut self.retries) {
            self.wake(id, 0);
        }
    }

    /// A job has changed: what waits may need something else, and may have missed it.
    pub fn job_changed(&mut self, state: &State, job: &JobKey) {
        let known = self.jobs.get(job).and_then(|records| records.by_class);
        if let Some(id) = known {
            self.renew(state, id);
        }
    }

    /// Who may evict others may have changed.
    pub fn configuration_changed(&mut self, state: &State) {
        let ids: Vec<_> = self.jobs.values().filter_map(|records| records.by_class).collect();
        for id in ids {
            self.renew(state, id);
        }
    }

    fn renew(&mut self, state: &State, id: EvaluationId) {
        let Some(row) = state.evaluations().get(&id) else { return };
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        let ((shape, count), pool) = (Shape::of(state, row), pool_of(state, &tracked.job));
        if (tracked.shape, tracked.count) == (shape, count) && tracked.pool == pool {
            return;
        }
        let is_asleep = tracked.woken.is_none();
        if is_asleep {
            self.rouse(id);
        }
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        (tracked.shape, tracked.count, tracked.pool) = (shape, count, pool);
        if is_asleep {
            self.lay_down(id);
            self.look_for(state, id);
        }
    }

    /// Forgets a job's evaluations: it is done, or its user withdrew it.
    pub fn untrack(&mut self, job: &JobKey) {
        let Some(records) = self.jobs.get(job) else { return };
        let ids: Vec<_> =
            records.by_class.iter().chain(records.by_node.values()).copied().collect();
        for id in ids {
            self.forget(id);
        }
    }

    /// Forgets an evaluation that is terminal or gone.
    pub fn removed(&mut self, id: EvaluationId) {
        self.forget(id);
        self.duplicates.remove(&id);
    }

    /// Superseded blocked evaluations, at most `max`, to be canceled by one entry
    /// ([`crate::reap::duplicates`]). They stay until they are [removed](Self::removed), so that
    /// asking again gives the same ones.
    pub fn duplicates(&self, max: usize) -> Vec<EvaluationId> {
        self.duplicates.iter().take(max.min(limits::REAP_BATCH_MAX)).copied().collect()
    }

    /// Does a slice of the queued work and gives out at most as many woken evaluations; they are
    /// not tracked any more. More is left if [`Self::next_deadline`] is not in the future.
    pub fn poll(&mut self, now: u64, state: &State) -> Vec<Wake> {
        while let Some((at, id)) = self.retries.first().copied()
            && at <= now
        {
            self.retries.remove(&(at, id));
            self.wake(id, 0);
        }
        let mut budget = limits::BLOCKED_SLICE_MAX;
        while budget > 0 && self.scan_node(&mut budget) {}
        while budget > 0 && self.look(state, &mut budget) {}
        let mut wakes = Vec::new();
        while wakes.len() < limits::BLOCKED_SLICE_MAX
            && let Some(evaluation) = self.woken.first().copied()
        {
            let index = self.tracked[&evaluation].woken.expect("it was woken at an index");
            self.untrack_one(evaluation);
            wakes.push(Wake { evaluation, index });
        }
        wakes
    }

    /// When to poll next; 0 when there is work to do now.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.woken.is_empty() && self.offers.due() == 0 && self.node_scans.is_empty() {
            return Some(self.retries.first()?.0);
        }
        Some(0)
    }

    /// Whether an evaluation is tracked, or known as a duplicate.
    pub fn contains(&self, id: EvaluationId) -> bool {
        self.tracked.contains_key(&id) || self.duplicates.contains(&id)
    }

    /// Counts of blocked evaluations.
    pub fn stats(&self) -> BlockedStats {
        BlockedStats {
            blocked: self.tracked.len(),
            escaped: self.escaped,
            per_node: self.per_node,
            woken: self.woken.len(),
            scans: self.offers.due() + self.node_scans.len(),
            duplicates: self.duplicates.len(),
        }
    }

    /// Looks at the next evaluations for the room of one node.
    fn look(&mut self, state: &State, budget: &mut usize) -> bool {
        let Some((node, cursor)) = self.offers.next() else { return false };
        let gain = self.offers.gain(node);
        let open = gain.and_then(|gain| Some((gain, OpenNode::find(state, node)?)));
        let Some((gain, open)) = open else {
            // Its room comes with its next gain.
            self.offers.looked(None);
            return true;
        };
        let Looked { woken, cut } = self.offer(gain, open, cursor, budget);
        for (id, room) in woken {
            self.wake(id, gain);
            self.offers.give(id, node, room);
        }
        self.offers.looked(cut);
        true
    }

    /// Offers a node's room to those behind `cursor`, in their order.
    fn offer(
        &self,
        gain: Index,
        mut open: OpenNode<'_>,
        cursor: Option<Place>,
        budget: &mut usize,
    ) -> Looked {
        let node = open.node;
        let mut left = self.offers.left(node.id, open.free);
        let after = |places: &BTreeSet<Place>, last: Option<Place>| {
            places.range((last.map_or(Unbounded, Excluded), Unbounded)).next().copied()
        };
        let mut lines = Vec::new();
        let mut heads: BTreeSet<(Place, Option<usize>)> = BTreeSet::new();
        for pool in [None, Some(node.description.pool.clone())] {
            for (shape, places) in self.asleep.get(&pool).into_iter().flatten() {
                let beside = open.evictable(shape);
                let first = after(places, cursor);
                if let Some(first) =
                    first.filter(|_| shape.fits(left.least(open.free).plus(beside)))
                {
                    heads.insert((first, Some(lines.len())));
                }
                lines.push((shape, places, beside));
            }
        }
        // Whose own instances are here may need less room.
        for job in open.jobs() {
            let own = self.jobs.get(job).and_then(|records| records.by_class);
            let own = own.and_then(|id| self.tracked.get(&id)).filter(|own| own.woken.is_none());
            let places = own.map(|own| own.place).filter(|place| Some(*place) > cursor);
            heads.extend(places.map(|place| (place, None)));
        }
        let mut looked = Looked { woken: Vec::new(), cut: None };
        let mut most = *budget;
        *budget = budget.saturating_sub(1 + lines.len() / SHAPES_PER_EVALUATION);
        while most > 0
            && let Some((place, line)) = heads.pop_first()
        {
            (most, *budget) = (most - 1, budget.saturating_sub(1));
            looked.cut = Some(place);
            let id = place.3;
            let tracked = &self.tracked[&id];
            let beside = match line {
                Some(line) => lines[line].2,
                None => open.held_by(&tracked.job).plus(open.evictable(&tracked.shape)),
            };
            let room = left.least(open.free).plus(beside);
            if !tracked.shape.fits(room) {
                continue;
            }
            if let Some(line) = line {
                heads.extend(after(lines[line].1, Some(place)).map(|next| (next, Some(line))));
            }
            let is_new = looked.woken.last().is_none_or(|(last, _)| *last != id);
            if is_new && tracked.snapshot_index < gain && tracked.may_use(node) {
                let share = tracked.shape.share(left.plus(beside), tracked.count);
                let taken = share.least(left);
                left = left.minus(taken);
                if let Some(line) = line {
                    lines[line].2 = beside.minus(share.minus(taken));
                }
                looked.woken.push((id, taken));
            }
        }
        if heads.is_empty() {
            looked.cut = None;
        }
        looked
    }

    /// Wakes the records on one node.
    fn scan_node(&mut self, budget: &mut usize) -> bool {
        let Some((node, index)) = self.node_scans.pop_first() else { return false };
        let ids = self.by_node.get(&node).cloned().unwrap_or_default();
        *budget = budget.saturating_sub(ids.len().max(1));
        for id in ids {
            if self.tracked.get(&id).is_some_and(|tracked| tracked.snapshot_index < index) {
                self.wake(id, index);
            }
        }
        true
    }

    fn wake(&mut self, id: EvaluationId, index: Index) {
        self.rouse(id);
        if let Some(tracked) = self.tracked.get_mut(&id) {
            tracked.woken = tracked.woken.max(Some(index));
            self.woken.insert(id);
        }
    }

    /// Takes it out of those that are asleep, if it is tracked by class.
    fn rouse(&mut self, id: EvaluationId) {
        let Some(tracked) = self.tracked.get(&id) else { return };
        let Some(of_pool) = self.asleep.get_mut(&tracked.pool) else { return };
        let Some(places) = of_pool.get_mut(&tracked.shape) else { return };
        places.remove(&tracked.place);
        if places.is_empty() {
            of_pool.remove(&tracked.shape);
        }
        if of_pool.is_empty() {
            self.asleep.remove(&tracked.pool);
        }
    }

    fn lay_down(&mut self, id: EvaluationId) {
        let Some(tracked) = self.tracked.get(&id) else { return };
        let of_pool = self.asleep.entry(tracked.pool.clone()).or_default();
        of_pool.entry(tracked.shape).or_default().insert(tracked.place);
    }

    /// The evaluation tracked in the place that this one would take.
    fn rival(&self, tracked: &Tracked) -> Option<EvaluationId> {
        let records = self.jobs.get(&tracked.job)?;
        match tracked.node {
            Some(node) => records.by_node.get(&node).copied(),
            None => records.by_class,
        }
    }

    fn track(&mut self, id: EvaluationId, tracked: Tracked) {
        let records = self.jobs.entry(tracked.job.clone()).or_default();
        let is_by_class = tracked.node.is_none();
        if let Some(node) = tracked.node {
            let former = records.by_node.insert(node, id);
            assert_eq!(former, None, "one evaluation is tracked per job and node");
            self.by_node.entry(node).or_default().insert(id);
        } else {
            let former = records.by_class.replace(id);
            assert_eq!(former, None, "one evaluation is tracked per job");
        }
        self.per_node += usize::from(!is_by_class);
        self.escaped += usize::from(tracked.escaped);
        self.retries.extend(tracked.retry_at.map(|at| (at, id)));
        self.tracked.insert(id, tracked);
        if is_by_class {
            self.lay_down(id);
        }
    }

    /// Drops it; room that it was woken for is passed on.
    fn forget(&mut self, id: EvaluationId) {
        self.untrack_one(id);
        self.offers.give_back(id, false);
    }

    fn untrack_one(&mut self, id: EvaluationId) {
        self.rouse(id);
        let Some(tracked) = self.tracked.remove(&id) else { return };
        let records = self.jobs.get_mut(&tracked.job).expect("each tracked one has records");
        if let Some(node) = tracked.node {
            records.by_node.remove(&node);
            let on_node = self.by_node.get_mut(&node).expect("each record is on its node");
            on_node.remove(&id);
            if on_node.is_empty() {
                self.by_node.remove(&node);
            }
        } else {
            records.by_class = None;
        }
        if records.by_class.is_none() && records.by_node.is_empty() {
            self.jobs.remove(&tracked.job);
        }
        self.per_node -= usize::from(tracked.node.is_some());
        self.escaped -= usize::from(tracked.escaped);
        if let Some(at) = tracked.retry_at {
            self.retries.remove(&(at, id));
        }
        self.woken.remove(&id);
    }
}
