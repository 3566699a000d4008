//! Where instances go among nodes that could take them (S8, S9, S16, F3).

use std::collections::BTreeMap;

use fsm::{
    JobKind, NodeId, Plan, Trigger,
    job::{Affinity, Constraint, Spread, SpreadTarget},
    settings::{Algorithm, SchedulerConfiguration},
};

use super::{Cluster, id, job, node};

/// `count` nodes whose datacenter is `dc1` or `dc2` and whose rack is one of three, by number.
fn racks(count: u64) -> Cluster {
    let mut cluster = Cluster::new();
    for number in 1..=count {
        let mut row = node(number);
        let mut description = (*row.description).clone();
        description.datacenter = format!("dc{}", number % 2 + 1).into();
        description.meta.insert("rack".into(), format!("r{}", number % 3 + 1).into());
        row.description = description.into();
        row.class = fsm::ClassId(id(number % 6));
        cluster.put_node(row);
    }
    cluster
}

fn spread(attribute: &str, targets: &[(&str, u16)]) -> Spread {
    Spread {
        attribute: attribute.into(),
        weight: 50,
        targets: targets
            .iter()
            .map(|(value, percent)| SpreadTarget { value: (*value).into(), percent: *percent })
            .collect(),
    }
}

fn by(cluster: &Cluster, plan: &Plan, rack: bool) -> BTreeMap<String, u32> {
    let mut counts = BTreeMap::new();
    for placement in &plan.placements {
        let description = &cluster.state.nodes().get(&placement.node).unwrap().description;
        let value = if rack { &description.meta["rack"] } else { &description.datacenter };
        *counts.entry(value.to_string()).or_default() += 1;
    }
    counts
}

fn configure(cluster: &mut Cluster, algorithm: Algorithm) {
    let row = SchedulerConfiguration { algorithm, ..SchedulerConfiguration::default() };
    fsm::testing::put(&mut cluster.state, &row);
}

/// S8.
#[test]
fn s8_spread_targets_are_met() {
    for (first, second, expected) in [(50, 50, (5, 5)), (70, 30, (7, 3)), (100, 0, (10, 0))] {
        let mut cluster = racks(12);
        let mut spec = job(JobKind::Service);
        spec.spreads = vec![spread("${node.datacenter}", &[("dc1", first), ("dc2", second)])];
        let plan = cluster.run(&spec);
        let counts = by(&cluster, &plan, false);
        let count = |name: &str| counts.get(name).copied().unwrap_or(0);
        assert_eq!((count("dc1"), count("dc2")), expected);
    }
}

/// S8: what has no target shares what the targets leave.
#[test]
fn s8_an_implicit_target_takes_the_rest() {
    let mut cluster = racks(12);
    let mut spec = job(JobKind::Service);
    spec.spreads = vec![spread("${node.datacenter}", &[("dc1", 80)])];
    let plan = cluster.run(&spec);
    assert_eq!(by(&cluster, &plan, false), BTreeMap::from([("dc1".into(), 8), ("dc2".into(), 2)]));
}

/// S8.
#[test]
fn s8_even_spread_over_racks() {
    let mut cluster = racks(12);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 9;
    spec.groups[0].spreads = vec![spread("${meta.rack}", &[])];
    let plan = cluster.run(&spec);
    assert_eq!(
        by(&cluster, &plan, true),
        BTreeMap::from([("r1".into(), 3), ("r2".into(), 3), ("r3".into(), 3)])
    );
}

/// S8: a group with preferences looks at as many nodes as the configuration says, others at a few.
#[test]
fn s8_limits() {
    let evaluated = |spreads: bool, kind: JobKind, nodes: u64| {
        let mut cluster = racks(nodes);
        let mut spec = job(kind);
        if spreads {
            spec.spreads = vec![spread("${meta.rack}", &[])];
        }
        spec.groups[0].count = 1;
        let plan = cluster.run(&spec);
        plan.placements[0].metrics.as_ref().unwrap().nodes_evaluated
    };
    assert_eq!(evaluated(true, JobKind::Service, 150), 100);
    assert!(evaluated(false, JobKind::Service, 150) <= 8 + 3);
    assert!(evaluated(false, JobKind::Batch, 150) <= 2 + 3);
}

/// S9.
#[test]
fn s9_the_algorithm_is_configured() {
    for (algorithm, expected) in [(Algorithm::Binpack, 1), (Algorithm::Spread, 2)] {
        let mut cluster = Cluster::with_nodes(2);
        configure(&mut cluster, algorithm);
        let mut filler = job(JobKind::Service);
        filler.key.id = "filler".into();
        filler.groups[0].count = 1;
        filler.constraints = vec![Constraint {
            left: "${node.unique.name}".into(),
            operand: "=".into(),
            right: "node-1".into(),
        }];
        cluster.run(&filler);
        let mut spec = job(JobKind::Service);
        spec.groups[0].count = 1;
        assert_eq!(cluster.run(&spec).placements[0].node, NodeId(id(expected)), "{algorithm:?}");
    }
}

/// F3: instances of one group keep apart while that costs nothing.
#[test]
fn f3_anti_affinity() {
    let mut cluster = Cluster::with_nodes(4);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 4;
    let plan = cluster.run(&spec);
    let mut nodes: Vec<_> = plan.placements.iter().map(|placement| placement.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 4);
}

/// F3, GH-25800: a weak affinity still beats no affinity; a negative one repels.
#[test]
fn f3_affinities() {
    for (weight, wanted) in [(100, true), (1, true), (-100, false)] {
        let mut cluster = racks(6);
        let mut spec = job(JobKind::Service);
        spec.groups[0].count = 1;
        spec.affinities = vec![Affinity {
            constraint: Constraint {
                left: "${node.datacenter}".into(),
                operand: "=".into(),
                right: "dc2".into(),
            },
            weight,
        }];
        let plan = cluster.run(&spec);
        assert_eq!(by(&cluster, &plan, false).contains_key("dc2"), wanted, "{weight}");
        let metrics = plan.placements[0].metrics.as_ref().unwrap();
        let best = &metrics.scores[0];
        assert_eq!(best.node, plan.placements[0].node);
        assert!(best.parts.contains_key("binpack") && best.parts.contains_key("node-affinity"));
        let mean = best.parts.values().sum::<i32>() / i32::try_from(best.parts.len()).unwrap();
        assert!((best.total - mean).abs() <= 1, "the mean of the parts");
        assert!(metrics.scores.is_sorted_by(|a, b| a.total >= b.total));
    }
}

/// Placements of one group that were decided alike share one record.
#[test]
fn metrics_are_shared() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 100;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    let metrics: Vec<_> =
        plan.placements.iter().map(|placement| placement.metrics.as_ref().unwrap()).collect();
    assert!(!metrics[0].scores.is_empty());
    assert!(metrics[99].scores.is_empty());
    assert!(std::sync::Arc::ptr_eq(metrics[30], metrics[31]));
    assert_eq!(metrics[30].nodes_in_pool, 20);
    assert_eq!(metrics[30].nodes_available["dc1"], 20);
}
