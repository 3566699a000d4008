//! Constraints, drivers, datacenters, pools, and what is distinct (F4, F5, S7).

use std::collections::BTreeMap;

use fsm::{ClassId, JobKind, Node, NodeId, Plan, Trigger, job::Constraint};

use super::{Cluster, cluster::PlanExt, id, job, node};
use crate::place::{constraint::Condition, pattern::Budget};

fn constraint(left: &str, operand: &str, right: &str) -> Constraint {
    Constraint { left: left.into(), operand: operand.into(), right: right.into() }
}

fn describe(node: &mut Node, change: impl FnOnce(&mut fsm::node::NodeDescription)) {
    let mut description = (*node.description).clone();
    change(&mut description);
    node.description = description.into();
}

/// F5.
#[test]
fn f5_operands() {
    let mut row = node(7);
    describe(&mut row, |description| {
        description.class = "large".into();
        for (key, value) in [
            ("kernel.name", "linux"),
            ("kernel.version", "4.19.1"),
            ("cpu.numcores", "16"),
            ("ratio", "1.5"),
            ("features", "avx, sse4 ,aes"),
            ("os.version", "1.3.0-beta1"),
            ("copy", "linux"),
        ] {
            description.attributes.insert(key.into(), value.into());
        }
        description.meta.insert("rack".into(), "r1".into());
    });
    for (left, operand, right, met) in [
        ("${attr.kernel.name}", "=", "linux", true),
        ("${attr.kernel.name}", "==", "windows", false),
        ("${attr.kernel.name}", "is", "linux", true),
        ("${attr.kernel.name}", "", "linux", true),
        ("${attr.kernel.name}", "=", "${attr.copy}", true),
        ("${attr.kernel.name}", "!=", "linux", false),
        ("${attr.kernel.name}", "not", "windows", true),
        ("${attr.absent}", "!=", "x", true),
        ("${attr.absent}", "=", "x", false),
        ("${attr.absent}", "is_set", "", false),
        ("${attr.absent}", "is_not_set", "", true),
        ("${meta.rack}", "is_set", "", true),
        ("${attr.cpu.numcores}", ">", "9", true),
        ("${attr.cpu.numcores}", "<=", "16", true),
        ("${attr.cpu.numcores}", "<", "16", false),
        ("${attr.ratio}", ">=", "1.25", true),
        ("${attr.kernel.name}", "<", "windows", true),
        ("${attr.cpu.numcores}", "<", "9x", true),
        ("${attr.kernel.version}", "version", ">= 4.0, < 5.0", true),
        ("${attr.os.version}", "version", ">= 0.6.1", false),
        ("${attr.os.version}", "semver", ">= 0.6.1", true),
        ("${node.unique.name}", "regexp", "^node-[0-9]$", true),
        ("${node.unique.name}", "regexp", "[", false),
        ("${attr.features}", "set_contains", "aes,avx", true),
        ("${attr.features}", "set_contains_all", "aes,neon", false),
        ("${attr.features}", "set_contains_any", "neon, sse4", true),
        ("${node.class}", "=", "large", true),
        ("${node.datacenter}", "=", "dc1", true),
        ("${node.pool}", "=", "default", true),
        ("${node.unique.id}", "=", "00000000-0000-0000-0000-000000000007", true),
        ("${env.HOME}", "is_set", "", false),
        ("${attr.kernel.name", "is_set", "", false),
        ("${attr.kernel.name}", "resembles", "linux", false),
        ("literal", "=", "literal", true),
    ] {
        let condition = Condition::compile(&constraint(left, operand, right));
        assert_eq!(
            condition.met_by(&row, &Budget::new(Budget::OF_PASS)),
            met,
            "{left} {operand} {right}"
        );
    }
}

/// F4: nodes of one class are checked once, and each is counted for the reason; unique attributes
/// escape that.
#[test]
fn f4_class_memo() {
    let mut cluster = Cluster::with_nodes(6);
    let mut spec = job(JobKind::Service);
    spec.constraints = vec![constraint("${attr.kernel.name}", "=", "windows")];
    let plan = cluster.run(&spec);
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    assert_eq!(
        metrics.constraint_filtered,
        BTreeMap::from([("${attr.kernel.name} = windows".into(), 6)])
    );
    assert_eq!(plan.blocked()[0].class_eligibility, BTreeMap::from([(ClassId([0; 16]), false)]));

    spec.constraints = vec![constraint("${node.unique.name}", "=", "node-4")];
    let plan = cluster.run(&spec);
    assert_eq!(plan.placements.len(), 8);
    assert!(plan.placements.iter().all(|placement| placement.node == NodeId(id(4))));
    assert!(plan.blocked()[0].escaped);
}

/// A pass over texts on which a pattern would take minutes ends, and says why.
#[test]
fn patterns_that_cost_too_much_are_a_reason() {
    let mut cluster = Cluster::with_nodes(3);
    for number in 1..=3 {
        cluster.change_node(number, |node| {
            describe(node, |description| {
                description.meta.insert("unique.x".into(), "ab".repeat(100_000).into());
            });
        });
    }
    let mut spec = job(JobKind::Service);
    spec.constraints = vec![constraint("${meta.unique.x}", "regexp", "a(?:[ab]{1000}){1}[^ab]")];
    let plan = cluster.run(&spec);
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    let said = metrics.constraint_filtered.keys().next().unwrap();
    assert!(said.contains("regexp") && said.contains("cost too much"), "{said}");
    assert_eq!((plan.placements.len(), metrics.nodes_filtered), (0, 3));
}

/// A constraint of half a megabyte is not kept again with each evaluation that it leaves without
/// nodes.
#[test]
fn a_long_constraint_is_cut_in_reasons() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = job(JobKind::Service);
    spec.constraints = vec![constraint("${node.datacenter}", "=", &"mars ü".repeat(50_000))];
    let plan = cluster.run(&spec);
    let outcome = plan.outcome.as_ref().unwrap();
    let said = outcome.failed_groups["web"].constraint_filtered.keys().next().unwrap();
    assert!(said.starts_with("${node.datacenter} = mars") && said.ends_with('…'), "{said}");
    assert!(format!("{outcome:?}").len() < 5_000);
}

/// A constraint that comes with an update, and that nobody meets, is named, though each class was
/// looked at for those that run.
#[test]
fn a_constraint_that_nobody_meets_is_named_in_an_update() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 2;
    cluster.run(&spec);
    spec.constraints = vec![constraint("${node.datacenter}", "=", "mars")];
    let plan = cluster.run(&spec);
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    let filtered = BTreeMap::from([("${node.datacenter} = mars".into(), 3)]);
    assert_eq!((metrics.nodes_filtered, &metrics.constraint_filtered), (3, &filtered));
}

/// 2.2: datacenters are patterns, the pool `all` is every node.
#[test]
fn datacenters_and_pools() {
    let mut cluster = Cluster::with_nodes(3);
    cluster.change_node(2, |node| {
        describe(node, |description| description.datacenter = "eu-2".into());
    });
    cluster.change_node(3, |node| describe(node, |description| description.pool = "gpu".into()));
    let nodes = |plan: &Plan| {
        let mut nodes: Vec<_> = plan.placements.iter().map(|placement| placement.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        nodes.into_iter().map(|node| node.0[15]).collect::<Vec<_>>()
    };
    let mut spec = job(JobKind::System);
    for (number, (datacenters, pool, expected)) in [
        (vec!["*"], "default", vec![1, 2]),
        (vec!["eu-*"], "default", vec![2]),
        (vec!["dc1", "eu-2"], "all", vec![1, 2, 3]),
        (vec!["dc1"], "gpu", vec![3]),
        (vec!["none"], "all", vec![]),
    ]
    .into_iter()
    .enumerate()
    {
        spec.key.id = format!("job-{number}").into();
        spec.datacenters = datacenters.into_iter().map(Into::into).collect();
        spec.node_pool = pool.into();
        cluster.register(&spec);
        assert_eq!(nodes(&cluster.plan(&spec, Trigger::JobRegister)), expected);
    }
}

#[test]
fn an_unhealthy_driver_is_missing() {
    let mut cluster = Cluster::with_nodes(2);
    cluster.change_node(1, |node| {
        node.class = ClassId(id(1));
        describe(node, |description| {
            if let Some(driver) = description.drivers.get_mut("mock") {
                driver.healthy = false;
            }
        });
    });
    let plan = cluster.run(&job(JobKind::Service));
    assert!(plan.placements.iter().all(|placement| placement.node == NodeId(id(2))));
    assert_eq!(plan.placements.len(), 8);
}

/// S7.
#[test]
fn s7_distinct_hosts() {
    let mut cluster = Cluster::with_nodes(6);
    let mut spec = job(JobKind::Service);
    spec.constraints = vec![constraint("", "distinct_hosts", "")];
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (6, 4));
    let mut nodes: Vec<_> = plan.placements.iter().map(|placement| placement.node).collect();
    nodes.sort_unstable();
    nodes.dedup();
    assert_eq!(nodes.len(), 6);
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    assert_eq!(metrics.constraint_filtered["distinct_hosts"], 6);

    // What the plan itself stops frees its host.
    spec.groups[0].count = 6;
    spec.groups[0].tasks[0].user = "other".into();
    assert_eq!(cluster.run(&spec).counts(), (6, 6, 0));
}

/// S7: instances that may not share a host any more: one stays, the other moves, one at a time if
/// the job says so.
#[test]
fn s7_distinct_hosts_that_come_later() {
    for (max_parallel, moves) in [(0, 3), (1, 1)] {
        let mut cluster = Cluster::with_nodes(1);
        let mut spec = job(JobKind::Service);
        spec.groups[0].count = 4;
        cluster.run(&spec);
        for number in 2..=5 {
            cluster.put_node(node(number));
        }
        spec.constraints = vec![constraint("", "distinct_hosts", "true")];
        spec.groups[0].update = Some(super::cluster::update(max_parallel));
        let plan = cluster.run(&spec);
        assert_eq!(plan.counts(), (moves, moves, 1), "{max_parallel}");
        for _ in 0..3 {
            let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
            cluster.apply(&plan);
        }
        let mut nodes: Vec<_> = cluster.live(&spec).iter().map(|row| row.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        assert_eq!(nodes.len(), 4);
        assert_eq!(nodes[0], NodeId(id(1)), "one has stayed");
    }
}

/// S7: the same on a node that takes no work any more.
#[test]
fn s7_who_shares_a_node_out_of_service_moves() {
    for distinct in [
        constraint("", "distinct_hosts", "true"),
        constraint("${node.unique.name}", "distinct_property", "1"),
    ] {
        let mut cluster = Cluster::with_nodes(1);
        let mut spec = job(JobKind::Service);
        spec.groups[0].count = 2;
        cluster.run(&spec);
        cluster.change_node(1, |node| node.eligibility.ineligible = true);
        cluster.put_node(node(2));
        spec.constraints = vec![distinct];
        assert_eq!(cluster.run(&spec).counts(), (1, 1, 1), "{:?}", spec.constraints);
    }
}

/// S7: at group level only the group's own instances count.
#[test]
fn s7_distinct_hosts_of_a_group() {
    let mut cluster = Cluster::with_nodes(2);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 2;
    let mut other = spec.groups[0].clone();
    other.name = "api".into();
    other.constraints = vec![constraint("", "distinct_hosts", "true")];
    spec.groups.push(other);
    assert_eq!(cluster.run(&spec).placements.len(), 4);
}

/// S7: an instance that is updated in place keeps its value, and one that comes beside it needs
/// another.
#[test]
fn s7_what_is_updated_in_place_keeps_its_property() {
    for (racks, placed) in [(1, 0), (2, 1)] {
        let mut cluster = Cluster::new();
        for number in 1..=6 {
            let mut row = node(number);
            let rack = format!("r{}", number % racks);
            describe(&mut row, |description| {
                description.meta.insert("rack".into(), rack.into());
            });
            row.class = ClassId(id(number % racks));
            cluster.put_node(row);
        }
        let mut spec = job(JobKind::Service);
        spec.constraints = vec![constraint("${meta.rack}", "distinct_property", "1")];
        spec.groups[0].count = 1;
        assert_eq!(cluster.run(&spec).counts(), (1, 0, 0));
        spec.groups[0].count = 2;
        spec.priority += 1;
        assert_eq!(cluster.run(&spec).counts(), (placed, 0, 1), "{racks} racks");
    }
}

/// S7.
#[test]
fn s7_distinct_property() {
    for (right, placed) in [("", 3), ("2", 6), ("5", 10), ("bad", 0)] {
        let mut cluster = Cluster::new();
        for number in 1..=7 {
            let mut row = node(number);
            describe(&mut row, |description| {
                // Node 7 has no rack.
                if number < 7 {
                    description.meta.insert("rack".into(), format!("r{}", number % 3).into());
                }
            });
            row.class = ClassId(id(number % 3 + 10 * (number / 7)));
            cluster.put_node(row);
        }
        let mut spec = job(JobKind::Service);
        spec.constraints = vec![constraint("${meta.rack}", "distinct_property", right)];
        let plan = cluster.run(&spec);
        assert_eq!(plan.placements.len(), placed, "{right}");
        let mut by_rack: BTreeMap<u8, u32> = BTreeMap::new();
        for placement in &plan.placements {
            assert_ne!(placement.node, NodeId(id(7)));
            *by_rack.entry(placement.node.0[15] % 3).or_default() += 1;
        }
        let max = right.parse().unwrap_or(1);
        assert!(by_rack.values().all(|count| *count <= max), "{by_rack:?}");

        // Values freed by the plan's stops are free for its placements.
        if placed > 0 && placed < 10 {
            spec.groups[0].count = u32::try_from(placed).unwrap();
            spec.groups[0].tasks[0].user = "other".into();
            assert_eq!(cluster.run(&spec).counts(), (placed, placed, 0));
        }
    }
}
