//! Blocked evaluations: which of them is worth trying again when a node gains room.
//!
//! It owns the wake-up rule and the memory of recent capacity gains. It never writes state: a woken
//! evaluation keeps its status `blocked` until its outcome is applied, so that a leader that dies
//! in between leaves nothing behind; the next one sees the gain in the state and wakes it again.
//!
//! An evaluation that met a class of nodes and found it unfit sleeps through gains of that class.
//! One that did not meet the class, or whose constraints look at single nodes (`escaped`), wakes,
//! unless the class is of another node pool than its job: with many pools, each full, what ends in
//! one of them would have the jobs of all others tried again.
//! Blocked records of per-node jobs are one per (job, node) and wake with their node. A gain at or
//! below an evaluation's snapshot was seen by it and wakes nothing.
//!
//! A caller is never kept waiting: [`BlockedEvals::unblock_class`] queues a scan, and
//! [`BlockedEvals::poll`] does a slice of the queued work. On an effect about an evaluation the
//! caller asks the broker first ([`crate::EvalBroker::applied`]) and calls [`BlockedEvals::block`]
//! only with a row that the broker does not hold ([`crate::EvalBroker::contains`]).
//!
//! Invariant: at most one evaluation is tracked per job, or per (job, node) for records of per-node
//! jobs; the rest are duplicates.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use fsm::{
    ClassId, Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, NodeId, State, Text,
    Trigger, node::GainKey,
};

use crate::limits;

#[cfg(test)]
mod tests;

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
    /// Classes and nodes whose gain is not worked off yet.
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
    create_index: Index,
    snapshot_index: Index,
    retry_at: Option<u64>,
    woken: Option<Index>,
}

impl Tracked {
    fn new(now: u64, evaluation: &Evaluation, pool: Option<Text>) -> Self {
        Self {
            job: evaluation.job.clone(),
            pool,
            node: evaluation.node.filter(|_| evaluation.kind.is_per_node()),
            escaped: evaluation.escaped,
            classes: evaluation.class_eligibility.clone(),
            create_index: evaluation.create_index,
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

    /// `pool`: that of the class, if it is known.
    fn may_use(&self, class: ClassId, pool: Option<&Text>) -> bool {
        let is_of_pool = self.pool.as_ref().zip(pool).is_none_or(|(own, other)| own == other);
        self.node.is_none()
            && is_of_pool
            && (self.escaped || self.classes.get(&class) != Some(&false))
    }
}

/// What of a job is tracked.
#[derive(Default, Debug)]
struct JobRecords {
    by_class: Option<EvaluationId>,
    by_node: BTreeMap<NodeId, EvaluationId>,
}

/// A class gain being worked off.
#[derive(Debug)]
struct Scan {
    index: Index,
    /// Last evaluation looked at.
    cursor: Option<EvaluationId>,
    /// A later gain of the class that came meanwhile.
    again: Option<Index>,
}

#[derive(Debug)]
struct Gain {
    index: Index,
    noted_at: u64,
}

/// A gain of a class, and the node pool that is part of what a class is; none: it is not known.
#[derive(Debug)]
struct ClassGain {
    gain: Gain,
    pool: Option<Text>,
}

/// The one node pool whose nodes a job may use; none: it may use all, or is not there.
pub fn pool_of(state: &State, job: &JobKey) -> Option<Text> {
    let pool = &state.current_spec(state.jobs().get(job)?)?.node_pool;
    (&**pool != "all").then(|| pool.clone())
}

/// Gains are remembered this long, ms: much longer than any evaluation is processed (Nomad's
/// `pruneThreshold`).
const GAIN_MS: u64 = 15 * 60_000;
/// Old gains are looked for this often, ms (Nomad's `pruneInterval`).
const PRUNE_MS: u64 = 5 * 60_000;

/// The tracker of blocked evaluations. Starts disabled.
#[derive(Default, Debug)]
pub struct BlockedEvals {
    enabled: bool,
    tracked: BTreeMap<EvaluationId, Tracked>,
    jobs: BTreeMap<JobKey, JobRecords>,
    by_class: BTreeSet<EvaluationId>,
    by_node: BTreeMap<NodeId, BTreeSet<EvaluationId>>,
    escaped: usize,
    retries: BTreeSet<(u64, EvaluationId)>,
    woken: BTreeSet<EvaluationId>,
    duplicates: BTreeSet<EvaluationId>,
    class_gains: BTreeMap<ClassId, ClassGain>,
    class_gains_by_index: BTreeSet<(Index, ClassId)>,
    node_gains: BTreeMap<NodeId, Gain>,
    pruned_at: u64,
    scans: BTreeMap<ClassId, Scan>,
    scan_order: VecDeque<ClassId>,
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
    /// evaluations, of which those that missed a gain wake. Those that are `held` were woken before
    /// and come back with their outcome.
    pub fn restore(&mut self, now: u64, state: &State, held: impl Fn(EvaluationId) -> bool) {
        if !self.enabled {
            return;
        }
        let pools = state.nodes().iter().map(|node| (node.class, &node.description.pool));
        let pools: BTreeMap<ClassId, &Text> = pools.collect();
        for gain in state.capacity_gains().iter() {
            match gain.key {
                GainKey::Class(class) => {
                    self.note_class_gain(now, class, pools.get(&class).copied(), gain.index);
                }
                GainKey::Node(node) => self.note_node_gain(now, node, gain.index),
            }
        }
        for evaluation in state.evaluations().iter().filter(|evaluation| !held(evaluation.id)) {
            self.block(now, evaluation, pool_of(state, &evaluation.job));
        }
        let gone = self.by_node.keys().filter(|node| !state.nodes().contains(node));
        let gone: Vec<_> = gone.copied().collect();
        for node in gone {
            self.node_gone(node, state.index());
        }
    }

    /// Tracks a blocked evaluation of a job that is of one node `pool` ([`pool_of`]), anew if it was
    /// tracked before. It wakes at once if it missed a gain since its snapshot.
    pub fn block(&mut self, now: u64, evaluation: &Evaluation, pool: Option<Text>) {
        if !self.enabled || evaluation.status != EvaluationStatus::Blocked {
            return;
        }
        let id = evaluation.id;
        let known = self.tracked.get(&id);
        if known.is_some_and(|known| known.snapshot_index == evaluation.snapshot_index) {
            return;
        }
        self.untrack_one(id);
        let tracked = Tracked::new(now, evaluation, pool);
        if let Some(rival) = self.rival(&tracked) {
            let rival_age = self.tracked.get(&rival).map(|known| known.age(rival));
            if rival_age > Some(tracked.age(id)) {
                self.duplicates.insert(id);
                return;
            }
            self.untrack_one(rival);
            self.duplicates.insert(rival);
        }
        self.duplicates.remove(&id);
        let missed = self.missed(&tracked);
        self.track(id, tracked);
        if let Some(index) = missed {
            self.wake(id, index);
        }
    }

    /// A class of nodes gained room at an index; `pool` is the node pool of the class, if it is known.
    pub fn unblock_class(&mut self, now: u64, class: ClassId, pool: Option<&Text>, index: Index) {
        if !self.enabled {
            return;
        }
        self.note_class_gain(now, class, pool, index);
        match self.scans.get_mut(&class) {
            Some(scan) if scan.cursor.is_none() => scan.index = scan.index.max(index),
            Some(scan) => scan.again = scan.again.max(Some(index)),
            None => {
                self.scans.insert(class, Scan { index, cursor: None, again: None });
                self.scan_order.push_back(class);
            }
        }
    }

    /// A node gained room at an index: for the records of per-node jobs on it.
    pub fn unblock_node(&mut self, now: u64, node: NodeId, index: Index) {
        if !self.enabled {
            return;
        }
        self.note_node_gain(now, node, index);
        if self.by_node.contains_key(&node) {
            let scan = self.node_scans.entry(node).or_insert(index);
            *scan = (*scan).max(index);
        }
    }

    /// A node is gone at an index: the records on it wake, so that their evaluations end instead of
    /// waiting for ever.
    pub fn node_gone(&mut self, node: NodeId, index: Index) {
        self.node_gains.remove(&node);
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

    /// A job has changed, and is of this pool ([`pool_of`]): what waits wakes when it missed a gain
    /// there.
    pub fn job_changed(&mut self, job: &JobKey, pool: Option<&Text>) {
        let Some(records) = self.jobs.get(job) else { return };
        let Some(id) = records.by_class else { return };
        let Some(tracked) = self.tracked.get_mut(&id) else { return };
        if tracked.pool.as_ref() == pool {
            return;
        }
        tracked.pool = pool.cloned();
        let missed = self.tracked.get(&id).and_then(|tracked| self.missed(tracked));
        if let Some(index) = missed {
            self.wake(id, index);
        }
    }

    /// Forgets a job's evaluations: it is done, or its user withdrew it.
    pub fn untrack(&mut self, job: &JobKey) {
        let Some(records) = self.jobs.get(job) else { return };
        let ids: Vec<_> =
            records.by_class.iter().chain(records.by_node.values()).copied().collect();
        for id in ids {
            self.untrack_one(id);
        }
    }

    /// Forgets an evaluation that is terminal or gone.
    pub fn removed(&mut self, id: EvaluationId) {
        self.untrack_one(id);
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
    pub fn poll(&mut self, now: u64) -> Vec<Wake> {
        while let Some((at, id)) = self.retries.first().copied()
            && at <= now
        {
            self.retries.remove(&(at, id));
            self.wake(id, 0);
        }
        let mut budget = limits::BLOCKED_SLICE_MAX;
        while budget > 0 && self.scan_node(&mut budget) {}
        while budget > 0 && self.scan_class(&mut budget) {}
        self.prune(now);
        let mut wakes = Vec::new();
        while wakes.len() < limits::BLOCKED_SLICE_MAX
            && let Some(evaluation) = self.woken.first().copied()
        {
            let index = self.tracked.get(&evaluation).and_then(|tracked| tracked.woken);
            self.untrack_one(evaluation);
            wakes.push(Wake { evaluation, index: index.unwrap_or(0) });
        }
        wakes
    }

    /// When to poll next; 0 when there is work to do now.
    pub fn next_deadline(&self) -> Option<u64> {
        if self.woken.is_empty() && self.scans.is_empty() && self.node_scans.is_empty() {
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
            per_node: self.tracked.len() - self.by_class.len(),
            woken: self.woken.len(),
            scans: self.scans.len() + self.node_scans.len(),
            duplicates: self.duplicates.len(),
        }
    }

    /// Looks at the next evaluations for one class.
    fn scan_class(&mut self, budget: &mut usize) -> bool {
        use std::ops::Bound::{Excluded, Unbounded};

        let Some(class) = self.scan_order.front().copied() else { return false };
        let scan = self.scans.get_mut(&class).expect("the order refers to scans");
        let from = scan.cursor.map_or(Unbounded, Excluded);
        let slice: Vec<_> = self.by_class.range((from, Unbounded)).take(*budget).copied().collect();
        let index = scan.index;
        let finished = slice.len() < *budget;
        *budget -= slice.len();
        if let Some(last) = slice.last() {
            scan.cursor = Some(*last);
        }
        if finished {
            self.scan_order.pop_front();
            let scan = self.scans.remove(&class).expect("it was just there");
            if let Some(index) = scan.again {
                self.scans.insert(class, Scan { index, cursor: None, again: None });
                self.scan_order.push_back(class);
            }
        }
        let pool = self.class_gains.get(&class).and_then(|gain| gain.pool.clone());
        for id in slice {
            let tracked = self.tracked.get(&id);
            let may_use = |one: &Tracked| one.may_use(class, pool.as_ref());
            if tracked.is_some_and(|one| one.snapshot_index < index && may_use(one)) {
                self.wake(id, index);
            }
        }
        true
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
        if let Some(tracked) = self.tracked.get_mut(&id) {
            tracked.woken = tracked.woken.max(Some(index));
            self.woken.insert(id);
        }
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
        if let Some(node) = tracked.node {
            records.by_node.insert(node, id);
            self.by_node.entry(node).or_default().insert(id);
        } else {
            records.by_class = Some(id);
            self.by_class.insert(id);
        }
        self.escaped += usize::from(tracked.escaped);
        self.retries.extend(tracked.retry_at.map(|at| (at, id)));
        self.tracked.insert(id, tracked);
    }

    fn untrack_one(&mut self, id: EvaluationId) {
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
            self.by_class.remove(&id);
        }
        if records.by_class.is_none() && records.by_node.is_empty() {
            self.jobs.remove(&tracked.job);
        }
        self.escaped -= usize::from(tracked.escaped);
        if let Some(at) = tracked.retry_at {
            self.retries.remove(&(at, id));
        }
        self.woken.remove(&id);
    }

    /// The newest gain after the snapshot that the evaluation could use.
    fn missed(&self, tracked: &Tracked) -> Option<Index> {
        let since = tracked.snapshot_index + 1;
        if let Some(node) = tracked.node {
            return Some(self.node_gains.get(&node)?.index).filter(|index| *index >= since);
        }
        let gains = self.class_gains_by_index.range((since, ClassId::default())..);
        let may_use = |class: ClassId| {
            let known = self.class_gains.get(&class);
            tracked.may_use(class, known.and_then(|gain| gain.pool.as_ref()))
        };
        gains.rev().find(|(_, class)| may_use(*class)).map(|(index, _)| *index)
    }

    fn note_class_gain(&mut self, now: u64, class: ClassId, pool: Option<&Text>, index: Index) {
        let known = self.class_gains.get(&class).map(|known| known.gain.index);
        if known >= Some(index) {
            return;
        }
        if let Some(known) = known {
            self.class_gains_by_index.remove(&(known, class));
        }
        let gain = Gain { index, noted_at: now };
        self.class_gains.insert(class, ClassGain { gain, pool: pool.cloned() });
        self.class_gains_by_index.insert((index, class));
    }

    fn note_node_gain(&mut self, now: u64, node: NodeId, index: Index) {
        let gain = self.node_gains.entry(node).or_insert(Gain { index, noted_at: now });
        if gain.index < index {
            *gain = Gain { index, noted_at: now };
        }
    }

    fn prune(&mut self, now: u64) {
        if now.saturating_sub(self.pruned_at) < PRUNE_MS {
            return;
        }
        self.pruned_at = now;
        let old = now.saturating_sub(GAIN_MS);
        self.node_gains.retain(|_, gain| gain.noted_at >= old);
        self.class_gains.retain(|_, known| known.gain.noted_at >= old);
        let kept = &self.class_gains;
        self.class_gains_by_index.retain(|(_, class)| kept.contains_key(class));
    }
}
