//! What a scheduling pass saw: metrics of allocations that it placed, and of groups that found no
//! room.

use fsm::{JobSpec, Metrics, TaskGroup, resources::Dimension};
use serde_json::{Map, Value, json};

use super::{count_map, list_or_null, map_or_null};

/// Parts of a score that Nomad shows as 0 where they do not apply, but for jobs that run once per
/// node.
const SCORED_ALWAYS: [&str; 3] = ["job-anti-affinity", "node-affinity", "node-reschedule-penalty"];

/// What a scheduling pass saw for a group of a job, both of which may be gone.
pub(crate) fn placement_metrics(
    metrics: &Metrics,
    spec: Option<&JobSpec>,
    group: Option<&TaskGroup>,
) -> Value {
    let is_per_node = spec.is_some_and(|spec| spec.kind.is_per_node());
    let unscored = if is_per_node { &[][..] } else { &SCORED_ALWAYS };
    let scores: Vec<Value> = metrics
        .scores
        .iter()
        .map(|score| {
            let own = score.parts.iter();
            let mut parts: Map<_, _> =
                own.map(|(name, millionths)| (name.to_string(), score_json(*millionths))).collect();
            for name in unscored {
                parts.entry(*name).or_insert_with(|| score_json(0));
            }
            json!({
                "NodeID": score.node.to_string(),
                "Scores": parts,
                "NormScore": score_json(score.total),
            })
        })
        .collect();
    json!({
        "NodesEvaluated": metrics.nodes_evaluated,
        "NodesFiltered": metrics.nodes_filtered,
        "NodesInPool": metrics.nodes_in_pool,
        "NodePool": spec.map_or("", |spec| &*spec.node_pool),
        "NodesAvailable": count_map(&metrics.nodes_available),
        "ClassFiltered": map_or_null(count_map(&metrics.class_filtered)),
        "ConstraintFiltered": map_or_null(count_map(&metrics.constraint_filtered)),
        "NodesExhausted": metrics.nodes_exhausted,
        "ClassExhausted": map_or_null(count_map(&metrics.class_exhausted)),
        "DimensionExhausted": map_or_null(count_map(&metrics.dimension_exhausted)),
        "QuotaExhausted": Value::Null,
        "ResourcesExhausted": map_or_null(resources_exhausted(metrics, group)),
        "Scores": Value::Null,
        "ScoreMetaData": list_or_null(scores),
        "AllocationTime": 0,
        "CoalescedFailures": metrics.coalesced_failures,
    })
}

/// What each task asks of the resources that ran out.
fn resources_exhausted(metrics: &Metrics, group: Option<&TaskGroup>) -> Value {
    let ran_out = |dimension: Dimension| metrics.dimension_exhausted.contains_key(dimension.name());
    let (cpu, memory) = (ran_out(Dimension::Cpu), ran_out(Dimension::Memory));
    let tasks = group.map_or(&[][..], |group| &group.tasks);
    let asked: Map<_, _> = tasks
        .iter()
        .filter(|_| cpu || memory)
        .map(|task| {
            let asks = task.resources;
            let shown = json!({
                "CPU": if cpu { asks.cpu_mhz } else { 0 },
                "MemoryMB": if memory { asks.memory_mb } else { 0 },
            });
            (task.name.to_string(), shown)
        })
        .collect();
    asked.into()
}

/// Scores are integers in the state; Nomad shows fractions.
fn score_json(millionths: i32) -> Value {
    Value::from(f64::from(millionths) / 1e6)
}
