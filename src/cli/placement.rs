//! Why something could not be placed: what an answer of the API counts, in the words of
//! [`scheduler::explain`].

use std::collections::BTreeMap;

use fsm::{Metrics, Text};
use scheduler::explain;
use shapes::PlacementMetrics;

/// Lines about every task group that could not be placed; empty if all were.
pub(crate) fn failures(
    groups: Option<&BTreeMap<String, PlacementMetrics>>,
    indent: &str,
) -> Vec<String> {
    let mut lines = Vec::new();
    for (group, found) in groups.into_iter().flatten() {
        lines.push(format!("{indent}{}", explain::heading(group, &metrics(found))));
        lines.extend(reasons(found).into_iter().map(|reason| format!("{indent}  * {reason}")));
    }
    lines
}

/// One sentence per fact that a pass counted.
pub(crate) fn reasons(found: &PlacementMetrics) -> Vec<String> {
    explain::reasons(&metrics(found), &found.node_pool)
}

fn metrics(found: &PlacementMetrics) -> Metrics {
    let counts = |of: &BTreeMap<String, u32>| -> BTreeMap<Text, u32> {
        of.iter().map(|(name, count)| (name.as_str().into(), *count)).collect()
    };
    let of_some = |of: &Option<BTreeMap<String, u32>>| of.as_ref().map(counts).unwrap_or_default();
    Metrics {
        nodes_evaluated: found.nodes_evaluated,
        nodes_in_pool: found.nodes_in_pool,
        nodes_available: counts(&found.nodes_available),
        nodes_exhausted: found.nodes_exhausted,
        class_filtered: of_some(&found.class_filtered),
        constraint_filtered: of_some(&found.constraint_filtered),
        class_exhausted: of_some(&found.class_exhausted),
        dimension_exhausted: of_some(&found.dimension_exhausted),
        coalesced_failures: found.coalesced_failures,
        ..Metrics::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn counts_of_an_answer_become_sentences() {
        let groups = json!({
            "db": {"NodesEvaluated": 0, "NodesInPool": 3, "NodesAvailable": {"dc1": 0, "dc2": 3}},
            "web": {"NodesEvaluated": 4, "NodesExhausted": 1, "CoalescedFailures": 2,
                "ConstraintFiltered": {"${attr.kernel.name} = windows": 3},
                "DimensionExhausted": {"memory": 1}, "ClassFiltered": null},
        });
        let groups: BTreeMap<_, _> = serde_json::from_value(groups).expect("it is read");
        assert_eq!(
            failures(Some(&groups), "  ").join("\n"),
            "  Task Group \"db\" (failed to place 1 allocation):
    * No nodes were eligible for evaluation
    * No nodes are available in datacenter \"dc1\"
  Task Group \"web\" (failed to place 3 allocations):
    * Constraint \"${attr.kernel.name} = windows\": 3 nodes excluded by filter
    * Resources exhausted on 1 node
    * Dimension \"memory\" exhausted on 1 node"
        );
        assert!(failures(None, "").is_empty());
    }
}
