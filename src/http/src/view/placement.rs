//! What a scheduling pass saw: metrics of allocations that it placed, and of groups that found no
//! room.

use std::collections::BTreeMap;

use fsm::{JobSpec, Metrics, TaskGroup, Text, resources::Dimension};
use shapes::{NodeScore, PlacementMetrics, TaskAsk};

use super::{counts_or_none, some_unless_empty};

/// Parts of a score that Nomad shows as 0 where they do not apply, but for jobs that run once per
/// node.
const SCORED_ALWAYS: [&str; 3] = ["job-anti-affinity", "node-affinity", "node-reschedule-penalty"];

/// What a scheduling pass saw for a group of a job, both of which may be gone.
pub(crate) fn placement_metrics(
    metrics: &Metrics,
    spec: Option<&JobSpec>,
    group: Option<&TaskGroup>,
) -> PlacementMetrics {
    let is_per_node = spec.is_some_and(|spec| spec.kind.is_per_node());
    let unscored = if is_per_node { &[][..] } else { &SCORED_ALWAYS };
    let scores = metrics.scores.iter().map(|score| {
        let own = score.parts.iter();
        let mut scores: BTreeMap<_, _> =
            own.map(|(name, millionths)| (name.to_string(), fraction(*millionths))).collect();
        for name in unscored {
            scores.entry((*name).to_owned()).or_insert_with(|| fraction(0));
        }
        NodeScore { norm_score: fraction(score.total), node_id: score.node.to_string(), scores }
    });
    PlacementMetrics {
        allocation_time: 0,
        class_exhausted: counts_or_none(&metrics.class_exhausted),
        class_filtered: counts_or_none(&metrics.class_filtered),
        coalesced_failures: metrics.coalesced_failures,
        constraint_filtered: counts_or_none(&metrics.constraint_filtered),
        dimension_exhausted: counts_or_none(&metrics.dimension_exhausted),
        node_pool: spec.map_or_else(String::new, |spec| spec.node_pool.to_string()),
        nodes_available: counts(&metrics.nodes_available),
        nodes_evaluated: metrics.nodes_evaluated,
        nodes_exhausted: metrics.nodes_exhausted,
        nodes_filtered: metrics.nodes_filtered,
        nodes_in_pool: metrics.nodes_in_pool,
        quota_exhausted: None,
        resources_exhausted: resources_exhausted(metrics, group),
        score_meta_data: some_unless_empty(scores.collect()),
        scores: None,
    }
}

fn counts(map: &BTreeMap<Text, u32>) -> BTreeMap<String, u32> {
    map.iter().map(|(key, count)| (key.to_string(), *count)).collect()
}

/// What each task asks of the resources that ran out.
fn resources_exhausted(
    metrics: &Metrics,
    group: Option<&TaskGroup>,
) -> Option<BTreeMap<String, TaskAsk>> {
    let ran_out = |dimension: Dimension| metrics.dimension_exhausted.contains_key(dimension.name());
    let (cpu, memory) = (ran_out(Dimension::Cpu), ran_out(Dimension::Memory));
    let tasks = group.map_or(&[][..], |group| &group.tasks);
    let asked: BTreeMap<_, _> = tasks
        .iter()
        .filter(|_| cpu || memory)
        .map(|task| {
            let asks = task.resources;
            let shown = TaskAsk {
                cpu: if cpu { asks.cpu_mhz } else { 0 },
                memory_mb: if memory { asks.memory_mb } else { 0 },
            };
            (task.name.to_string(), shown)
        })
        .collect();
    (!asked.is_empty()).then_some(asked)
}

/// Scores are integers in the state; Nomad shows fractions.
fn fraction(millionths: i32) -> f64 {
    f64::from(millionths) / 1e6
}
