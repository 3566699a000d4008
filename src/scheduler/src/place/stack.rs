//! Picks a node for one instance of a group. It must be feasible, meet the `distinct_` constraints
//! and have room. The best of the first few such nodes in this pass's order is taken.
//!
//! ```text
//!  ring ─► class memo, constraints ─► distinct hosts, properties ─► room ─► score ─► limit (non-positive scores aside) ─► best
//! ```
//!
//! A group with an affinity key is offered idle nodes first, in the order of `idle.rs`. They pass
//! the same checks, but are not scored.
//!
//! The stack counts the job's instances by node, by property and by spread value. The counts follow
//! the stops and placements of the pass, because later choices depend on them. Looking at one more
//! node allocates no memory.

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    Allocation, AllocationId, JobKind, JobSpec, Metrics, Node, NodeId, State, TaskGroup, Text,
    job::Constraint,
    resources::{Dimension, Resources},
    settings::Algorithm,
};

use crate::{
    pass::Pass,
    place::{
        candidates::{Ask, Candidates, Memory},
        constraint::{Condition, Distinct},
        feasible::{ClassSummary, Feasibility, group_constraints},
        idle::{IdleOrder, Verdict},
        older::StackGroup,
        preempt::Preemptor,
        rank::{Affinities, Component, Score, anti_affinity, fitness},
        spread::{SpreadCounts, ValueCounts},
        tally::{Field, Scored, Tally},
    },
};

/// How many nodes with a score of 0 or less are put aside in one choice. They are used only if too
/// few others are found (Nomad's `maxSkip`).
const ASIDE_MAX: usize = 3;
/// How many placements of a group in one pass carry scores of nodes. Later ones carry counts only,
/// and most of them share one copy. So a job of thousands of instances does not store thousands of
/// score tables.
const SCORED_PLACEMENTS_MAX: usize = 16;

const REASON_HOSTS: &str = "distinct_hosts";

/// The node chosen for an instance.
pub(crate) struct Choice<'a> {
    pub(crate) position: usize,
    pub(crate) node: NodeId,
    pub(crate) metrics: Arc<Metrics>,
    /// Allocations of other jobs that must be evicted to make room.
    pub(crate) preempts: Vec<&'a Allocation>,
}

impl Choice<'_> {
    /// The ids of the allocations to evict.
    pub(crate) fn preempted_ids(&self) -> Vec<AllocationId> {
        self.preempts.iter().map(|row| row.id).collect()
    }
}

/// Which instances must not share a node with an instance of the group (`distinct_hosts`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Apart {
    /// Instances of the same group.
    FromGroup,
    /// Instances of the same job.
    FromJob,
}

struct Group<'a> {
    /// The number of the group whose instances count for this one: its own number, or, for a group
    /// of an older version, the number of the current group with its name.
    base: usize,
    ask: Ask,
    count: u32,
    apart: Option<Apart>,
    affinities: Affinities,
    /// `None`: the group has no affinity key.
    idle: Option<IdleOrder<'a>>,
    spreads: Vec<SpreadCounts>,
    limit: usize,
    /// Instances of this group, by position.
    counts: Vec<u32>,
    /// By position; empty until the first choice.
    cells: Vec<Cell>,
    scored: usize,
    last: Option<(Tally, Arc<Metrics>)>,
}

/// What is known of one candidate for one group. It is kept because a group with affinities or
/// spreads looks at the same nodes again for each instance.
#[derive(Clone, Default)]
struct Cell {
    feasible: Feasible,
    /// Score of the affinities. `None`: not computed yet.
    affinity: Option<f64>,
    room: Room,
    /// Value of [`Candidates::changes`] when `room` was computed. If it has changed since, `room`
    /// is stale.
    room_changes: u32,
}

#[derive(Clone, Default)]
enum Feasible {
    #[default]
    Unknown,
    Yes,
    No(Text),
}

#[derive(Clone, Copy, Default)]
enum Room {
    #[default]
    Unknown,
    /// There is room. The value is the node's fitness with one more instance.
    Enough(f64),
    TooLittle(Dimension),
}

/// Why a node is refused for an instance.
enum Refusal {
    Infeasible,
    /// Other instances of the job are in the way (`distinct_hosts`, `distinct_property`).
    Rivals,
    NoRoom,
}

struct Property {
    /// The group that must meet the constraint; `None`: all groups.
    group: Option<usize>,
    /// The group whose instances are counted; `None`: all instances of the job.
    counts: Option<usize>,
    max: u32,
    values: ValueCounts,
    reason: Text,
}

/// Why an instance cannot be on a node.
pub(crate) enum Obstacle {
    /// A constraint or a missing driver forbids it.
    Filtered,
    /// The node has too little room.
    Exhausted,
}

/// Chooses the nodes for all instances of one pass.
pub(crate) struct Stack<'a> {
    state: &'a State,
    group_numbers: BTreeMap<&'a str, usize>,
    candidates: Candidates<'a>,
    feasibility: Feasibility,
    algorithm: Algorithm,
    groups: Vec<Group<'a>>,
    /// Instances of the job, by position.
    job_counts: Vec<u32>,
    /// Instances on nodes that are no candidates, by node and group. Counted only if a group has
    /// `distinct_hosts`.
    elsewhere: BTreeMap<NodeId, BTreeMap<usize, u32>>,
    properties: Vec<Property>,
    /// `None`: preemption is switched off for this kind of job.
    preemptor: Option<Preemptor<'a>>,
}

impl<'a> Stack<'a> {
    /// `allocations` are all of the job; the live ones are counted. `older` belongs to the groups
    /// of older versions, which are the last groups of `spec` (see `older.rs`).
    pub(crate) fn new(
        pass: &Pass<'a>,
        (spec, older): (&'a JobSpec, &'a [StackGroup]),
        allocations: &[&Allocation],
        memory: &'a mut Memory,
    ) -> Self {
        let configuration = pass.state.scheduler_configuration();
        let meta_key = &configuration.node_life.affinity_meta_key;
        let candidates = Candidates::new(pass, spec, memory);
        let length = candidates.len();
        // A group on an instance pool scores as many nodes as a group with affinities does. So the
        // fullest nodes are among them, and empty ones can be removed from the pool.
        let is_elastic = pass.state.instance_pools().contains(&spec.node_pool);
        let node_limit = (configuration.node_limit, is_elastic);
        let mut properties = Vec::new();
        let of_all =
            collect_distinct(spec.constraints.iter(), (None, None), length, &mut properties);
        let group_numbers: BTreeMap<&str, usize> =
            spec.groups.iter().enumerate().map(|(number, group)| (&*group.name, number)).collect();
        let own = spec.groups.iter().enumerate().map(|(base, group)| (base, group, &[][..]));
        let older = older.iter().map(|one| (one.base, &one.group, &*one.of_job));
        let all: Vec<(usize, &TaskGroup, &[Constraint])> = own.chain(older).collect();
        let groups = all
            .iter()
            .enumerate()
            .map(|(number, (base, group, of_job))| {
                let own = (Some(number), Some(*base));
                let hosts =
                    collect_distinct(group_constraints(group), own, length, &mut properties);
                let of_version =
                    collect_distinct(of_job.iter(), (Some(number), None), length, &mut properties);
                let apart = if of_all || of_version {
                    Some(Apart::FromJob)
                } else {
                    hosts.then_some(Apart::FromGroup)
                };
                let key = spec.affinity_key_of(Some(group), meta_key);
                Group {
                    base: *base,
                    idle: key.map(|key| IdleOrder::new(pass.state.occupancy(), key)),
                    ..Group::new(spec, group, apart, length, node_limit)
                }
            })
            .collect();
        let mut stack = Self {
            state: pass.state,
            group_numbers,
            candidates,
            feasibility: Feasibility::new(spec, all.iter().map(|(_, group, _)| *group)),
            algorithm: configuration.algorithm,
            groups,
            job_counts: vec![0; length],
            elsewhere: BTreeMap::new(),
            properties,
            preemptor: configuration
                .preemption
                .allows(spec.kind)
                .then(|| Preemptor::new(pass.state, &spec.key, spec.priority)),
        };
        for allocation in allocations.iter().filter(|allocation| allocation.is_live()) {
            stack.count(allocation, true);
        }
        stack
    }

    fn count(&mut self, allocation: &Allocation, add: bool) {
        let Some(group) = self.group_numbers.get(&*allocation.group).copied() else { return };
        let step = |count: &mut u32| {
            assert!(add || *count > 0, "allocation {} ends and was not counted", allocation.id);
            *count = if add { *count + 1 } else { *count - 1 };
        };
        if let Some(position) = self.candidates.position(allocation.node) {
            step(&mut self.job_counts[position]);
            for own in self.groups.iter_mut().filter(|own| own.base == group) {
                step(&mut own.counts[position]);
            }
        } else if self.groups.iter().any(|group| group.apart.is_some()) {
            step(self.elsewhere.entry(allocation.node).or_default().entry(group).or_default());
        }
        if let Some(node) = self.state.nodes().get(&allocation.node) {
            self.count_values(node, group, add);
        }
    }

    /// Counts an instance of the group `base`. It also counts for the groups of older versions of
    /// `base`.
    fn count_values(&mut self, node: &Node, base: usize, add: bool) {
        let properties = self.properties.iter_mut();
        let properties = properties.filter(|one| one.counts.is_none_or(|of| of == base));
        for values in properties.map(|property| &mut property.values) {
            if add {
                values.add(node);
            } else {
                values.remove(node);
            }
        }
        let own = self.groups.iter_mut().filter(|own| own.base == base);
        let spreads = own.flat_map(|own| &mut own.spreads).map(|spread| &mut spread.values);
        for values in spreads {
            if add {
                values.add(node);
            } else {
                values.remove(node);
            }
        }
    }

    /// Counts an allocation as stopped.
    pub(crate) fn release(&mut self, allocation: &Allocation) {
        if allocation.is_live() {
            self.candidates.release(allocation);
            self.count(allocation, false);
        }
    }

    /// Takes [`Self::release`] back.
    pub(crate) fn restore(&mut self, allocation: &Allocation) {
        if allocation.is_live() {
            self.candidates.restore(allocation);
            self.count(allocation, true);
        }
    }

    /// Records an instance on its chosen node, and the evictions that make room for it.
    pub(crate) fn take(&mut self, group: usize, choice: &Choice<'a>) {
        let position = choice.position;
        for row in &choice.preempts {
            self.candidates.release(row);
        }
        if let Some(preemptor) = &mut self.preemptor {
            preemptor.take(&choice.preempts);
        }
        self.candidates.take(position, &self.groups[group].ask);
        self.job_counts[position] += 1;
        let base = self.groups[group].base;
        for own in self.groups.iter_mut().filter(|own| own.base == base) {
            own.counts[position] += 1;
        }
        let node = self.candidates.node(position);
        self.count_values(node, base, true);
    }

    /// Whether constraints and drivers let the group run on `node`, which need not be a candidate.
    pub(crate) fn may_run_on(&mut self, group: usize, node: &Node) -> bool {
        self.feasibility.check(node, group).is_ok()
    }

    /// Whether the `distinct_` constraints let an instance of the group be on `node`, given the
    /// job's other instances. `node` need not be a candidate.
    pub(crate) fn is_distinct_on(&mut self, group: usize, node: &Node) -> bool {
        if let Some(position) = self.position(node.id) {
            return self.distinct(position, group, false).is_ok();
        }
        let own = &self.groups[group];
        let base = own.base;
        let there = self.elsewhere.get(&node.id).into_iter().flatten();
        let mut rivals = there.filter(|(of, count)| {
            let counts = match own.apart {
                None => false,
                Some(Apart::FromGroup) => **of == base,
                Some(Apart::FromJob) => true,
            };
            **count > 0 && counts
        });
        rivals.next().is_none() && self.crowded(group, |values| values.number_on(node)).is_none()
    }

    /// Which node classes suit the groups that failed. A `distinct_property` constraint sets
    /// `escaped`: the end of an instance on any node may free the value that the group waits for.
    pub(crate) fn summary(&self, failed: &[usize]) -> ClassSummary {
        let mut summary = self.feasibility.summary(failed);
        let concerns = |one: &Property| one.group.is_none_or(|group| failed.contains(&group));
        summary.escaped |= self.properties.iter().any(concerns);
        summary
    }

    /// The positions of all candidates, in the order of their node ids.
    pub(crate) fn positions(&self) -> std::ops::Range<usize> {
        0..self.candidates.len()
    }

    pub(crate) fn node(&self, position: usize) -> &'a Node {
        self.candidates.node(position)
    }

    pub(crate) fn position(&self, node: NodeId) -> Option<usize> {
        self.candidates.position(node)
    }

    /// The best node for one more instance. The error tells why every node was refused. `penalties`
    /// are the nodes on which its predecessors failed.
    pub(crate) fn select(
        &mut self,
        group: usize,
        penalties: &[NodeId],
    ) -> Result<Choice<'a>, Box<Metrics>> {
        if self.groups[group].cells.is_empty() {
            self.groups[group].cells = vec![Cell::default(); self.candidates.len()];
        }
        if let Some(choice) = self.select_idle(group, penalties) {
            return Ok(choice);
        }
        for spread in &mut self.groups[group].spreads {
            spread.refresh();
        }
        self.candidates.begin();
        let limit = self.groups[group].limit;
        let mut tally = Tally::default();
        let mut field = Field { best: None, kept: Vec::new(), keeps: self.keeps_scores(group) };
        let mut aside = [None; ASIDE_MAX];
        let mut aside_count = 0;
        let mut seen = 0;
        for _ in 0..self.candidates.len() {
            let Some(position) = self.candidates.next() else { break };
            let Some(score) = self.consider(position, group, penalties, &mut tally) else {
                continue;
            };
            let scored = Scored { position, score, total: score.mean() };
            if scored.total <= 0.0 && aside_count < ASIDE_MAX {
                aside[aside_count] = Some(scored);
                aside_count += 1;
                continue;
            }
            field.offer(scored);
            seen += 1;
            if seen >= limit {
                break;
            }
        }
        for scored in aside.into_iter().flatten().take(limit.saturating_sub(seen)) {
            field.offer(scored);
        }
        let Some(best) = field.best else {
            let refused = Box::new(self.metrics(&tally, &[]));
            return self.select_preempting(group, penalties).ok_or(refused);
        };
        let metrics = self.shared_metrics(group, tally, &field.kept);
        let node = self.node(best.position).id;
        Ok(Choice { position: best.position, node, metrics, preempts: Vec::new() })
    }

    /// The best node on which an instance fits after evictions. `None` if jobs of this kind may not
    /// preempt, or evictions do not help.
    fn select_preempting(&mut self, group: usize, penalties: &[NodeId]) -> Option<Choice<'a>> {
        self.preemptor.as_ref()?;
        self.candidates.begin();
        let limit = self.groups[group].limit;
        let mut tally = Tally::default();
        let mut field = Field { best: None, kept: Vec::new(), keeps: self.keeps_scores(group) };
        let mut best_victims = Vec::new();
        let mut seen = 0;
        for _ in 0..self.candidates.len() {
            let Some(position) = self.candidates.next() else { break };
            let Err(Refusal::NoRoom) = self.admit(position, group, &mut tally) else { continue };
            let Some((fitness, victims)) = self.room_by_preemption(position, group) else {
                continue;
            };
            let mut score = self.preferences(position, group, penalties);
            score.set(Component::Fitness, fitness);
            score.set(Component::Preemption, self.preemption_score(&victims));
            let scored = Scored { position, score, total: score.mean() };
            if field.best.is_none_or(|best| scored.total > best.total) {
                best_victims = victims;
            }
            field.offer(scored);
            seen += 1;
            if seen >= limit {
                break;
            }
        }
        let best = field.best?;
        let metrics = self.shared_metrics(group, tally, &field.kept);
        let node = self.node(best.position).id;
        Some(Choice { position: best.position, node, metrics, preempts: best_victims })
    }

    /// The allocations to evict from a node so that an instance fits, and the node's fitness
    /// afterwards.
    fn room_by_preemption(
        &mut self,
        position: usize,
        group: usize,
    ) -> Option<(f64, Vec<&'a Allocation>)> {
        // An instance of an older version evicts nothing: it is about to be replaced itself.
        if self.groups[group].base != group {
            return None;
        }
        let ask = &self.groups[group].ask;
        let victims = self.preemptor.as_ref()?.victims(&mut self.candidates, position, ask)?;
        let (used, available) = self.candidates.load(position);
        let freed = victims.iter().fold(Resources::default(), |sum, row| sum.plus(row.resources));
        let used = used.minus(freed).plus(ask.resources);
        Some((fitness(self.algorithm, used, available), victims))
    }

    fn preemption_score(&self, victims: &[&Allocation]) -> f64 {
        self.preemptor.as_ref().map_or(0.0, |preemptor| preemptor.score(victims))
    }

    /// The first suitable idle node in the order of the group's affinity key. `None` if the group
    /// has no key or no idle node suits. A node on which a predecessor failed is skipped: the
    /// scored search decides about it.
    fn select_idle(&mut self, group: usize, penalties: &[NodeId]) -> Option<Choice<'a>> {
        let mut idle = self.groups[group].idle.take()?;
        let mut tally = Tally::default();
        let position = idle.first(|id| match self.position(id) {
            // The node is idle in the snapshot, so a change in this pass can only be a placement.
            // With a change it is no longer idle.
            Some(position) if self.candidates.changes(position) == 0 => {
                if penalties.contains(&id) {
                    return Verdict::NotNow;
                }
                match self.admit(position, group, &mut tally) {
                    Ok(_) => Verdict::Take(position),
                    Err(Refusal::Rivals) => Verdict::NotNow,
                    Err(Refusal::Infeasible | Refusal::NoRoom) => Verdict::Never,
                }
            }
            Some(_) | None => Verdict::Never,
        });
        self.groups[group].idle = Some(idle);
        let position = position?;
        let metrics = self.shared_metrics(group, tally, &[]);
        Some(Choice { position, node: self.node(position).id, metrics, preempts: Vec::new() })
    }

    /// Tries exactly one node. For system and sysbatch jobs, which have one instance per node, so
    /// `distinct_hosts` is not checked.
    pub(crate) fn try_node(
        &mut self,
        group: usize,
        position: usize,
    ) -> Result<Choice<'a>, (Obstacle, Box<Metrics>)> {
        let node = self.candidates.node(position);
        let mut tally = Tally::default();
        tally.evaluated = 1;
        let admitted =
            self.feasibility.check(node, group).and_then(|()| self.distinct(position, group, true));
        if let Err(reason) = admitted {
            tally.filter(node, reason);
            return Err((Obstacle::Filtered, Box::new(self.metrics(&tally, &[]))));
        }
        let mut score = Score::default();
        let mut preempts = Vec::new();
        match self.candidates.fit(position, &self.groups[group].ask) {
            Ok((used, available)) => {
                score.set(Component::Fitness, fitness(self.algorithm, used, available));
            }
            Err(dimension) => {
                tally.exhaust(node, dimension);
                let Some((fitness, victims)) = self.room_by_preemption(position, group) else {
                    return Err((Obstacle::Exhausted, Box::new(self.metrics(&tally, &[]))));
                };
                score.set(Component::Fitness, fitness);
                score.set(Component::Preemption, self.preemption_score(&victims));
                preempts = victims;
            }
        }
        let scored = [Scored { position, score, total: score.mean() }];
        let kept = if self.keeps_scores(group) { &scored[..] } else { &[] };
        let metrics = self.shared_metrics(group, tally, kept);
        Ok(Choice { position, node: node.id, metrics, preempts })
    }

    /// Whether the `distinct_` constraints let an instance be there. The error is the reason for
    /// metrics. `per_node`: do not check `distinct_hosts`.
    fn distinct(&mut self, position: usize, group: usize, per_node: bool) -> Result<(), Text> {
        let node = self.candidates.node(position);
        let own = &self.groups[group];
        let rivals = match own.apart {
            None => 0,
            Some(Apart::FromGroup) => own.counts[position],
            Some(Apart::FromJob) => self.job_counts[position],
        };
        if rivals > 0 && !per_node {
            return Err(REASON_HOSTS.into());
        }
        self.crowded(group, |values| values.number_of(position, node)).map_or(Ok(()), Err)
    }

    /// The reason why a `distinct_property` constraint refuses a node, if one does: the node's
    /// value has its maximum of instances, or the node has no value. `number_of` looks up the
    /// value's number.
    fn crowded(
        &mut self,
        group: usize,
        number_of: impl Fn(&mut ValueCounts) -> Option<usize>,
    ) -> Option<Text> {
        let concerns = |property: &&mut Property| property.group.is_none_or(|of| of == group);
        self.properties.iter_mut().filter(concerns).find_map(|property| {
            let number = number_of(&mut property.values);
            let is_full = number.is_none_or(|number| property.values.count(number) >= property.max);
            is_full.then(|| property.reason.clone())
        })
    }

    /// Whether one more instance may go there, and the node's fitness with it. A refusal is counted
    /// in `tally`.
    fn admit(&mut self, position: usize, group: usize, tally: &mut Tally) -> Result<f64, Refusal> {
        tally.evaluated += 1;
        let node = self.candidates.node(position);
        let cell = &mut self.groups[group].cells[position];
        if matches!(cell.feasible, Feasible::Unknown) {
            let checked = self.feasibility.check(node, group);
            cell.feasible = checked.map_or_else(Feasible::No, |()| Feasible::Yes);
        }
        if let Feasible::No(reason) = &cell.feasible {
            tally.filter(node, reason.clone());
            return Err(Refusal::Infeasible);
        }
        if let Err(reason) = self.distinct(position, group, false) {
            tally.filter(node, reason);
            return Err(Refusal::Rivals);
        }
        let own = &mut self.groups[group];
        let cell = &mut own.cells[position];
        let changes = self.candidates.changes(position);
        if cell.room_changes != changes || matches!(cell.room, Room::Unknown) {
            cell.room_changes = changes;
            cell.room = match self.candidates.fit(position, &own.ask) {
                Ok((used, available)) => Room::Enough(fitness(self.algorithm, used, available)),
                Err(dimension) => Room::TooLittle(dimension),
            };
        }
        match cell.room {
            Room::Enough(fitness) => Ok(fitness),
            Room::TooLittle(dimension) => {
                tally.exhaust(node, dimension);
                Err(Refusal::NoRoom)
            }
            Room::Unknown => Err(Refusal::NoRoom),
        }
    }

    fn consider(
        &mut self,
        position: usize,
        group: usize,
        penalties: &[NodeId],
        tally: &mut Tally,
    ) -> Option<Score> {
        let fitness = self.admit(position, group, tally).ok()?;
        let mut score = self.preferences(position, group, penalties);
        score.set(Component::Fitness, fitness);
        Some(score)
    }

    /// The parts of a node's score that do not depend on its room.
    fn preferences(&mut self, position: usize, group: usize, penalties: &[NodeId]) -> Score {
        let mut score = Score::default();
        let node = self.candidates.node(position);
        let own = &mut self.groups[group];
        let cell = &mut own.cells[position];
        if own.counts[position] > 0 {
            score.set(Component::AntiAffinity, anti_affinity(own.counts[position], own.count));
        }
        if penalties.contains(&node.id) {
            score.set(Component::ReschedulePenalty, -1.0);
        }
        if !own.affinities.is_empty() {
            score.set(
                Component::Affinity,
                *cell.affinity.get_or_insert_with(|| own.affinities.score(node)),
            );
        }
        let boost: f64 = own.spreads.iter_mut().map(|spread| spread.score(position, node)).sum();
        if boost != 0.0 {
            score.set(Component::Spread, boost);
        }
        score
    }

    fn keeps_scores(&self, group: usize) -> bool {
        self.groups[group].scored < SCORED_PLACEMENTS_MAX
    }

    fn shared_metrics(&mut self, group: usize, tally: Tally, kept: &[Scored]) -> Arc<Metrics> {
        if !kept.is_empty() {
            self.groups[group].scored += 1;
            return Arc::new(self.metrics(&tally, kept));
        }
        if let Some((last, metrics)) = &self.groups[group].last
            && *last == tally
        {
            return Arc::clone(metrics);
        }
        let metrics = Arc::new(self.metrics(&tally, &[]));
        self.groups[group].last = Some((tally, Arc::clone(&metrics)));
        metrics
    }

    fn metrics(&self, tally: &Tally, kept: &[Scored]) -> Metrics {
        tally.metrics(&self.candidates, kept)
    }
}

impl Group<'_> {
    fn new(
        spec: &JobSpec,
        group: &TaskGroup,
        apart: Option<Apart>,
        candidates: usize,
        (node_limit, is_elastic): (u32, bool),
    ) -> Self {
        let affinities = Affinities::new(
            spec.affinities
                .iter()
                .chain(&group.affinities)
                .chain(group.tasks.iter().flat_map(|task| &task.affinities)),
        );
        let spreads: Vec<_> = group.spreads.iter().chain(&spec.spreads).collect();
        let weight_sum = spreads.iter().map(|spread| u32::from(spread.weight)).sum();
        let spreads: Vec<_> = spreads
            .into_iter()
            .map(|spread| SpreadCounts::new(spread, weight_sum, group.count, candidates))
            .collect();
        let prefers = is_elastic || !affinities.is_empty() || !spreads.is_empty();
        Self {
            base: 0,
            ask: Ask::of(group),
            count: group.count,
            apart,
            affinities,
            idle: None,
            spreads,
            limit: limit(spec.kind, prefers.then_some(group.count.max(node_limit)), candidates),
            counts: vec![0; candidates],
            cells: Vec::new(),
            scored: 0,
            last: None,
        }
    }
}

/// How many nodes are scored before the best is taken. Without affinities and spreads a small
/// sample is good enough. As in Nomad, that is 2 for batch, and log2 of the candidates (rounded up,
/// at least 2) for services. Affinities and spreads need a wider look.
fn limit(kind: JobKind, preferring: Option<u32>, candidates: usize) -> usize {
    if let Some(limit) = preferring {
        return usize::try_from(limit).unwrap_or(usize::MAX);
    }
    match kind {
        JobKind::Batch | JobKind::Sysbatch => 2,
        JobKind::Service | JobKind::System => {
            let bits = usize::BITS - candidates.saturating_sub(1).leading_zeros();
            usize::try_from(bits).unwrap_or(usize::MAX).max(2)
        }
    }
}

/// Returns whether one of the constraints is `distinct_hosts`. Adds each `distinct_property`
/// constraint to `properties`, with the group that must meet it and the group whose instances
/// count.
fn collect_distinct<'c>(
    constraints: impl Iterator<Item = &'c Constraint>,
    (group, counts): (Option<usize>, Option<usize>),
    candidates: usize,
    properties: &mut Vec<Property>,
) -> bool {
    let mut hosts = false;
    for constraint in constraints {
        match Condition::distinct(constraint) {
            None | Some(Distinct::Off) => {}
            Some(Distinct::Hosts) => hosts = true,
            Some(Distinct::Property { target, max }) => properties.push(Property {
                group,
                counts,
                max,
                values: ValueCounts::new(target, candidates),
                reason: format!("distinct_property: {}", constraint.left).into(),
            }),
        }
    }
    hosts
}
