//! Why something could not be placed: what an answer of the API counts, in the words of
//! [`scheduler::explain`].

use std::collections::BTreeMap;

use fsm::{Metrics, Text};
use scheduler::explain;
use serde_json::Value;

use super::view::Fields;

/// Lines about every task group of an evaluation that could not be placed; empty if all were.
pub(crate) fn failures(evaluation: &Value, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (group, metric) in evaluation.entries("FailedTGAllocs") {
        lines.push(format!("{indent}{}", explain::heading(group, &metrics(metric))));
        lines.extend(reasons(metric).into_iter().map(|reason| format!("{indent}  * {reason}")));
    }
    lines
}

/// One sentence per fact of a metric.
pub(crate) fn reasons(metric: &Value) -> Vec<String> {
    explain::reasons(&metrics(metric), metric.text("NodePool"))
}

/// What an answer counts; a count that is absent is 0.
fn metrics(metric: &Value) -> Metrics {
    let number = |value: i64| u32::try_from(value).unwrap_or_default();
    let count = |name| number(metric.number(name));
    let counts = |name| -> BTreeMap<Text, u32> {
        let of = |value: &Value| number(value.as_i64().unwrap_or_default());
        metric.entries(name).into_iter().map(|(key, value)| (key.into(), of(value))).collect()
    };
    Metrics {
        nodes_evaluated: count("NodesEvaluated"),
        nodes_in_pool: count("NodesInPool"),
        nodes_available: counts("NodesAvailable"),
        nodes_exhausted: count("NodesExhausted"),
        class_filtered: counts("ClassFiltered"),
        constraint_filtered: counts("ConstraintFiltered"),
        class_exhausted: counts("ClassExhausted"),
        dimension_exhausted: counts("DimensionExhausted"),
        coalesced_failures: count("CoalescedFailures"),
        ..Metrics::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::failures;

    #[test]
    fn counts_of_an_answer_become_sentences() {
        let evaluation = json!({"FailedTGAllocs": {
            "db": {"NodesEvaluated": 0, "NodesInPool": 3, "NodesAvailable": {"dc1": 0, "dc2": 3}},
            "web": {"NodesEvaluated": 4, "NodesExhausted": 1, "CoalescedFailures": 2,
                "ConstraintFiltered": {"${attr.kernel.name} = windows": 3},
                "DimensionExhausted": {"memory": 1}, "ClassFiltered": null},
        }});
        assert_eq!(
            failures(&evaluation, "  ").join("\n"),
            "  Task Group \"db\" (failed to place 1 allocation):
    * No nodes were eligible for evaluation
    * No nodes are available in datacenter \"dc1\"
  Task Group \"web\" (failed to place 3 allocations):
    * Constraint \"${attr.kernel.name} = windows\": 3 nodes excluded by filter
    * Resources exhausted on 1 node
    * Dimension \"memory\" exhausted on 1 node"
        );
        assert!(failures(&json!({"FailedTGAllocs": null}), "").is_empty());
    }
}
