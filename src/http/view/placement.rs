//! What a scheduling pass saw: metrics of allocations that it placed, and of groups that found no room.

use fsm::{Metrics, TaskGroup, resources::Dimension};
use serde_json::{Map, Value, json};

use super::count_map;

/// What a scheduling pass saw for a group, which may be gone.
pub(crate) fn placement_metrics(metrics: &Metrics, group: Option<&TaskGroup>) -> Value {
    let scores: Vec<Value> = metrics
        .scores
        .iter()
        .map(|score| {
            let parts: Map<_, _> = score
                .parts
                .iter()
                .map(|(name, millionths)| (name.to_string(), score_json(*millionths)))
                .collect();
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
        "NodesAvailable": count_map(&metrics.nodes_available),
        "ClassFiltered": count_map(&metrics.class_filtered),
        "ConstraintFiltered": count_map(&metrics.constraint_filtered),
        "NodesExhausted": metrics.nodes_exhausted,
        "ClassExhausted": count_map(&metrics.class_exhausted),
        "DimensionExhausted": count_map(&metrics.dimension_exhausted),
        "QuotaExhausted": [],
        "ResourcesExhausted": resources_exhausted(metrics, group),
        "Scores": {},
        "ScoreMetaData": scores,
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
