//! Preemption: which allocations of jobs with a lower priority must be evicted so that one instance
//! fits on a node.
//!
//! ```text
//!  what may go ─► greedily: lowest priority, closest to what is missing ─► spare what is not needed
//! ```
//!
//! The rules are Nomad's:
//!
//! - A victim's priority is lower by at least [`fsm::limits::PREEMPTION_PRIORITY_DISTANCE`].
//! - Lower priorities go first. Within a priority, the allocation whose size comes closest to what
//!   is missing goes first.
//! - A group of which `migrate.max_parallel` allocations are evicted already gets a penalty, so
//!   that others are preferred.
//!
//! [`Candidates`] alone says whether an instance fits, so ports and the other bounds of a node hold
//! here as everywhere.

use std::{cmp::Ordering, collections::BTreeMap};

use fsm::{
    Allocation, JobKey, NodeId, State, Text, limits::PREEMPTED_MAX, plan::is_preemptible,
    resources::Dimension,
};

use crate::place::{
    candidates::{Ask, Candidates},
    rank::real,
};

/// Added to the distance for each evicted allocation above its group's `max_parallel` (Nomad's
/// `maxParallelPenalty`).
const MAX_PARALLEL_PENALTY: f64 = 50.0;
/// Slope and midpoint of the logistic curve of the preemption score (Nomad's constants).
const SCORE_RATE: f64 = 0.0048;
const SCORE_ORIGIN: f64 = 2048.0;

/// The job that preempts, and how many allocations of each group this pass evicts already.
pub(crate) struct Preemptor<'a> {
    state: &'a State,
    job: &'a JobKey,
    priority: u16,
    gone: BTreeMap<(JobKey, Text), u32>,
}

/// An allocation that may be evicted.
struct Victim<'a> {
    row: &'a Allocation,
    priority: u16,
    /// `migrate.max_parallel` of its group; 0: no limit.
    parallel_max: u32,
}

impl<'a> Preemptor<'a> {
    pub(crate) fn new(state: &'a State, job: &'a JobKey, priority: u16) -> Self {
        Self { state, job, priority, gone: BTreeMap::new() }
    }

    /// The allocations to evict so that `ask` fits on the node. `None` if no eviction helps.
    /// `candidates` is unchanged afterwards.
    pub(crate) fn victims(
        &self,
        candidates: &mut Candidates<'_>,
        position: usize,
        ask: &Ask,
    ) -> Option<Vec<&'a Allocation>> {
        let mut left = self.preemptible(candidates, position);
        let mut chosen: Vec<Victim<'a>> = Vec::new();
        let mut gone = self.gone.clone();
        let fits = loop {
            let Err(dimension) = candidates.fit(position, ask) else { break true };
            if chosen.len() >= PREEMPTED_MAX {
                break false;
            }
            let missing = Missing::of(candidates, position, ask);
            let helps = |victim: &Victim<'_>| match dimension {
                Dimension::Ports => victim.row.ports.iter().any(|port| ask.wants_port(port.value)),
                Dimension::Cpu => victim.row.resources.cpu_mhz > 0,
                Dimension::Memory => victim.row.resources.memory_mb > 0,
                Dimension::Disk => victim.row.resources.disk_mb > 0,
                Dimension::Allocations => true,
            };
            let cost = |victim: &Victim<'_>| missing.distance(victim, &gone);
            let best = (0..left.len())
                .filter(|number| helps(&left[*number]))
                .min_by(|one, other| compare(&left[*one], &left[*other], &cost));
            let Some(best) = best else { break false };
            let victim = left.swap_remove(best);
            candidates.release(victim.row);
            *gone.entry(victim.group()).or_default() += 1;
            chosen.push(victim);
        };
        if fits {
            spare(candidates, position, ask, &mut chosen);
        }
        for victim in &chosen {
            candidates.restore(victim.row);
        }
        fits.then(|| chosen.into_iter().map(|victim| victim.row).collect())
    }

    /// The live allocations of a node that may be evicted for this job.
    fn preemptible(&self, candidates: &Candidates<'_>, position: usize) -> Vec<Victim<'a>> {
        let node: NodeId = candidates.node(position).id;
        let mut found = Vec::new();
        for row in self.state.open_allocations_of_node(node) {
            let is_there = row.is_live() && !candidates.is_released(position, row.id);
            if !is_there || !is_preemptible(self.state, row, self.job, self.priority) {
                continue;
            }
            let Some(spec) = self.state.allocation_spec(row) else { continue };
            let parallel_max = spec.group(&row.group).map_or(0, |group| group.migrate.max_parallel);
            found.push(Victim { row, priority: spec.priority, parallel_max });
        }
        found
    }

    /// Counts allocations as evicted, because a placement of the pass needs their room.
    pub(crate) fn take(&mut self, victims: &[&Allocation]) {
        for row in victims {
            *self.gone.entry((row.job.clone(), row.group.clone())).or_default() += 1;
        }
    }

    /// The preemption score of a set of victims, from 1 (best: low priorities) to 0. It is Nomad's
    /// logistic curve over a sum: the highest priority, plus the sum of all priorities divided by
    /// the highest.
    pub(crate) fn score(&self, victims: &[&Allocation]) -> f64 {
        let priority = |row: &&Allocation| {
            self.state.allocation_spec(row).map_or(0, |spec| u64::from(spec.priority))
        };
        let sum: u64 = victims.iter().map(priority).sum();
        let Some(max) = victims.iter().map(priority).max().filter(|max| *max > 0) else {
            return 1.0;
        };
        let net = real(max) + real(sum) / real(max);
        1.0 / (1.0 + (SCORE_RATE * (net - SCORE_ORIGIN)).exp())
    }
}

impl Victim<'_> {
    fn group(&self) -> (JobKey, Text) {
        (self.row.job.clone(), self.row.group.clone())
    }

    fn size(&self) -> (u64, u64, u64) {
        let own = self.row.resources;
        (own.memory_mb, own.cpu_mhz, own.disk_mb)
    }
}

/// The better victim first.
fn compare(one: &Victim<'_>, other: &Victim<'_>, cost: &impl Fn(&Victim<'_>) -> f64) -> Ordering {
    let by_priority = one.priority.cmp(&other.priority);
    let by_cost = || cost(one).total_cmp(&cost(other));
    by_priority.then_with(by_cost).then_with(|| one.row.id.cmp(&other.row.id))
}

/// Removes the victims whose eviction turns out not to be needed. Victims of high priority are
/// spared first, then small ones, so that few large victims of low priority remain.
fn spare(
    candidates: &mut Candidates<'_>,
    position: usize,
    ask: &Ask,
    chosen: &mut Vec<Victim<'_>>,
) {
    chosen.sort_by(|one, other| {
        let by_priority = other.priority.cmp(&one.priority);
        by_priority.then(one.size().cmp(&other.size())).then(one.row.id.cmp(&other.row.id))
    });
    chosen.retain(|victim| {
        candidates.restore(victim.row);
        let is_needed = candidates.fit(position, ask).is_err();
        if is_needed {
            candidates.release(victim.row);
        }
        is_needed
    });
}

/// How much the node lacks for an instance, by dimension.
struct Missing {
    cpu_mhz: u64,
    memory_mb: u64,
    disk_mb: u64,
}

impl Missing {
    fn of(candidates: &mut Candidates<'_>, position: usize, ask: &Ask) -> Self {
        let (used, available) = candidates.load(position);
        let wanted = used.plus(ask.resources);
        let missing = wanted.minus(available);
        Self { cpu_mhz: missing.cpu_mhz, memory_mb: missing.memory_mb, disk_mb: missing.disk_mb }
    }

    /// How far the victim's size is from what is missing, as a distance over the dimensions. A
    /// dimension of which nothing is missing does not count. A group with too many evictions gets a
    /// penalty.
    fn distance(&self, victim: &Victim<'_>, gone: &BTreeMap<(JobKey, Text), u32>) -> f64 {
        let own = victim.row.resources;
        let pairs = [
            (self.cpu_mhz, own.cpu_mhz),
            (self.memory_mb, own.memory_mb),
            (self.disk_mb, own.disk_mb),
        ];
        let squares = pairs.into_iter().map(|(missing, given)| {
            if missing == 0 {
                return 0.0;
            }
            let share = (real(missing) - real(given)) / real(missing);
            share * share
        });
        let already = gone.get(&victim.group()).copied().unwrap_or(0);
        let is_over = victim.parallel_max > 0 && already >= victim.parallel_max;
        let over = if is_over { f64::from(already + 1 - victim.parallel_max) } else { 0.0 };
        squares.sum::<f64>().sqrt() + MAX_PARALLEL_PENALTY * over
    }
}
