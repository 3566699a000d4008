//! Why instances of a group found no node, as sentences for people. A plan, an evaluation and an
//! allocation show the same words.
//!
//! A sentence judges nothing: it repeats what the pass counted in [`Metrics`].

use fsm::Metrics;

/// The line above the reasons of a group, some of whose instances found no node.
pub fn heading(group: &str, metrics: &Metrics) -> String {
    let count = u64::from(metrics.coalesced_failures) + 1;
    let noun = if count == 1 { "allocation" } else { "allocations" };
    format!("Task Group \"{group}\" (failed to place {count} {noun}):")
}

/// One sentence per fact that was counted. `pool` is the node pool of the job; empty if the job is
/// gone.
pub fn reasons(metrics: &Metrics, pool: &str) -> Vec<String> {
    let mut reasons = Vec::new();
    if metrics.nodes_evaluated == 0 {
        reasons.push("No nodes were eligible for evaluation".to_owned());
        let empty = metrics.nodes_available.iter().filter(|(_, nodes)| **nodes == 0);
        reasons.extend(empty.map(|(datacenter, _)| {
            format!("No nodes are available in datacenter \"{datacenter}\"")
        }));
        if metrics.nodes_in_pool == 0 {
            reasons.push(match pool {
                "" => "No nodes are in the node pool of the job".to_owned(),
                pool => format!("No nodes are in node pool \"{pool}\""),
            });
        }
    }
    for (class, count) in &metrics.class_filtered {
        reasons.push(format!("Class \"{class}\": {} excluded by filter", nodes(*count)));
    }
    for (constraint, count) in &metrics.constraint_filtered {
        reasons.push(format!("Constraint \"{constraint}\": {} excluded by filter", nodes(*count)));
    }
    if metrics.nodes_exhausted > 0 {
        reasons.push(format!("Resources exhausted on {}", nodes(metrics.nodes_exhausted)));
    }
    for (class, count) in &metrics.class_exhausted {
        reasons.push(format!("Class \"{class}\" exhausted on {}", nodes(*count)));
    }
    for (dimension, count) in &metrics.dimension_exhausted {
        reasons.push(format!("Dimension \"{dimension}\" exhausted on {}", nodes(*count)));
    }
    reasons
}

fn nodes(count: u32) -> String {
    if count == 1 { "1 node".to_owned() } else { format!("{count} nodes") }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fsm::{Metrics, Text};

    use super::{heading, reasons};

    fn counts(of: &[(&str, u32)]) -> BTreeMap<Text, u32> {
        of.iter().map(|(name, count)| ((*name).into(), *count)).collect()
    }

    #[test]
    fn a_pass_that_saw_no_node_says_which_datacenter_and_pool_are_empty() {
        let metrics =
            Metrics { nodes_available: counts(&[("dc1", 0), ("dc2", 3)]), ..Metrics::default() };
        let expected = [
            "No nodes were eligible for evaluation",
            "No nodes are available in datacenter \"dc1\"",
            "No nodes are in node pool \"gpu\"",
        ];
        assert_eq!(reasons(&metrics, "gpu"), expected);
        let gone = reasons(&metrics, "");
        assert_eq!(gone[2], "No nodes are in the node pool of the job");
        let others = Metrics { nodes_in_pool: 3, ..metrics };
        assert_eq!(reasons(&others, "gpu"), expected[..2]);
    }

    #[test]
    fn nodes_that_were_filtered_and_full_are_counted_by_class_constraint_and_dimension() {
        let metrics = Metrics {
            nodes_evaluated: 9,
            nodes_exhausted: 1,
            class_filtered: counts(&[("large", 2)]),
            constraint_filtered: counts(&[("${attr.kernel.name} = windows", 3)]),
            class_exhausted: counts(&[("small", 1)]),
            dimension_exhausted: counts(&[("memory", 1)]),
            ..Metrics::default()
        };
        let expected = [
            "Class \"large\": 2 nodes excluded by filter",
            "Constraint \"${attr.kernel.name} = windows\": 3 nodes excluded by filter",
            "Resources exhausted on 1 node",
            "Class \"small\" exhausted on 1 node",
            "Dimension \"memory\" exhausted on 1 node",
        ];
        assert_eq!(reasons(&metrics, "default"), expected);
    }

    #[test]
    fn the_heading_counts_the_instances_that_failed_alike() {
        let alone = Metrics::default();
        assert_eq!(heading("db", &alone), "Task Group \"db\" (failed to place 1 allocation):");
        let more = Metrics { coalesced_failures: 2, ..alone };
        assert_eq!(heading("db", &more), "Task Group \"db\" (failed to place 3 allocations):");
    }
}
