//! Why something could not be placed, in words.
//!
//! Owns the translation of an allocation's metrics; must never judge: it repeats what the scheduler
//! counted.

use serde_json::Value;

use super::view::Fields;

/// Lines about every task group of an evaluation that could not be placed; empty if all were.
pub(crate) fn failures(evaluation: &Value, indent: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (group, metric) in evaluation.entries("FailedTGAllocs") {
        let count = metric.number("CoalescedFailures") + 1;
        let noun = if count == 1 { "allocation" } else { "allocations" };
        lines.push(format!("{indent}Task Group \"{group}\" (failed to place {count} {noun}):"));
        lines.extend(reasons(metric).into_iter().map(|reason| format!("{indent}  * {reason}")));
    }
    lines
}

fn nodes(count: i64) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

/// One sentence per fact of a metric.
pub(crate) fn reasons(metric: &Value) -> Vec<String> {
    let mut reasons = Vec::new();
    let count = |value: &Value| value.as_i64().unwrap_or_default();
    if metric.number("NodesEvaluated") == 0 {
        reasons.push("No nodes were eligible for evaluation".to_owned());
        for (datacenter, available) in metric.entries("NodesAvailable") {
            if count(available) == 0 {
                reasons.push(format!("No nodes are available in datacenter \"{datacenter}\""));
            }
        }
        let pool = metric.text("NodePool");
        if metric.present("NodesInPool").is_some() && metric.number("NodesInPool") == 0 {
            reasons.push(match pool {
                "" => "No nodes are in the node pool of the job".to_owned(),
                pool => format!("No nodes are in node pool \"{pool}\""),
            });
        }
    }
    for (class, filtered) in metric.entries("ClassFiltered") {
        reasons.push(format!("Class \"{class}\": {} excluded by filter", nodes(count(filtered))));
    }
    for (constraint, filtered) in metric.entries("ConstraintFiltered") {
        reasons.push(format!(
            "Constraint \"{constraint}\": {} excluded by filter",
            nodes(count(filtered))
        ));
    }
    let exhausted = metric.number("NodesExhausted");
    if exhausted > 0 {
        reasons.push(format!("Resources exhausted on {}", nodes(exhausted)));
    }
    for (class, number) in metric.entries("ClassExhausted") {
        reasons.push(format!("Class \"{class}\" exhausted on {}", nodes(count(number))));
    }
    for (dimension, number) in metric.entries("DimensionExhausted") {
        reasons.push(format!("Dimension \"{dimension}\" exhausted on {}", nodes(count(number))));
    }
    for limit in metric.items("QuotaExhausted") {
        reasons.push(format!("Quota limit hit: {}", limit.as_str().unwrap_or("unknown")));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::failures;

    #[test]
    fn metrics_become_sentences() {
        let evaluation = json!({"FailedTGAllocs": {
            "db": {"NodesEvaluated": 0, "NodesAvailable": {"dc1": 0, "dc2": 3}},
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
