//! Affinity as an order of idle nodes before any score (SC-25), and nodes of a single slot (SC-26,
//! SC-28).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    Allocation, ClientStatus, JobKind, JobSpec, Metrics, NodeId, Trigger,
    job::{Constraint, Spread},
    node::{Drain, Health, SuspendReason, Suspension},
    settings::SchedulerConfiguration,
};

use super::{Cluster, cluster::PlanExt, id, job};
use crate::place::idle::OTHER_NODES_MAX;

const META_KEY: &str = "snapshot";

type Change = Box<dyn FnOnce(&mut fsm::Node)>;

/// Turns affinity on.
fn configure(cluster: &mut Cluster) {
    let mut row = SchedulerConfiguration::default();
    row.node_life.affinity_meta_key = META_KEY.into();
    fsm::testing::put(&mut cluster.state, &row);
}

/// Nodes with affinity keys, numbered from 1.
fn warm(keys: &[&str]) -> Cluster {
    let mut cluster = Cluster::with_nodes(keys.len() as u64);
    for (number, key) in (1..).zip(keys) {
        cluster.change_node(number, |node| node.affinity_key = (*key).into());
    }
    configure(&mut cluster);
    cluster
}

/// A small task with an affinity key.
fn task(name: &str, key: &str) -> JobSpec {
    let mut spec = job(JobKind::Batch);
    spec.key.id = name.into();
    spec.groups[0].count = 1;
    spec.meta.insert(META_KEY.into(), key.into());
    spec
}

/// Where one pass puts the job's only instance, and what it saw. Nothing is applied.
fn chosen(cluster: &mut Cluster, spec: &JobSpec) -> (NodeId, Arc<Metrics>) {
    cluster.register(spec);
    let plan = cluster.plan(spec, Trigger::JobRegister);
    assert_eq!(plan.placements.len(), 1);
    (plan.placements[0].node, plan.placements[0].metrics.clone().unwrap())
}

fn number(node: NodeId) -> u64 {
    u64::from_be_bytes(node.0[8..].try_into().unwrap())
}

/// The node's allocations complete, as the state machine would record it.
fn complete(cluster: &mut Cluster, spec: &JobSpec) {
    let live: Vec<_> = cluster.live(spec).iter().map(|row| (row.id, row.node)).collect();
    for (id, node) in live {
        let key = spec.affinity_key("web", META_KEY).cloned().unwrap_or_default();
        cluster.change_node(number(node), |node| node.affinity_key = key);
        cluster.end(id, ClientStatus::Complete);
    }
}

fn single_slots(cluster: &mut Cluster, count: u64) {
    for number in 1..=count {
        cluster.change_node(number, |node| {
            let mut description = (*node.description).clone();
            description.resources.allocations_max = 1;
            node.description = description.into();
        });
    }
}

/// SC-25: five nodes, two keys: after a task of each ended, the next tasks go to the node that last
/// ran the same key.
#[test]
fn sc25_the_next_task_goes_to_the_node_that_last_ran_its_key() {
    let mut cluster = warm(&[""; 5]);
    let run = |cluster: &mut Cluster, name: &str, key: &str| {
        let spec = task(name, key);
        (cluster.run(&spec).placements[0].node, spec)
    };
    let (a, first) = run(&mut cluster, "a1", "snapA");
    let (b, second) = run(&mut cluster, "b1", "snapB");
    assert_ne!(a, b);
    complete(&mut cluster, &first);
    complete(&mut cluster, &second);
    assert_eq!(run(&mut cluster, "b2", "snapB").0, b);
    assert_eq!(run(&mut cluster, "a2", "snapA").0, a);
}

/// Idle with the key, idle without a key, idle with another key, then any node with room; ties by
/// id. Each node takes a place in turn.
#[test]
fn the_order_of_idle_nodes() {
    let mut cluster = warm(&["c", "", "a", "b", "", "a"]);
    let mut spec = task("job", "a");
    spec.groups[0].count = 7;
    let plan = cluster.run(&spec);
    let order: Vec<_> = plan.placements.iter().map(|place| number(place.node)).collect();
    assert_eq!(order[..6], [3, 6, 2, 5, 1, 4]);
    assert_eq!(order.len(), 7, "the last goes to a node with room");
    let metrics = plan.placements[0].metrics.as_ref().unwrap();
    assert_eq!((metrics.nodes_evaluated, metrics.scores.len()), (1, 0));
    assert!(!plan.placements[6].metrics.as_ref().unwrap().scores.is_empty());
}

/// A key of the group goes over that of the job; an empty setting turns the order off.
#[test]
fn the_key_is_the_groups_else_the_jobs() {
    let mut cluster = warm(&["a", "b", "b", "b"]);
    let mut spec = task("job", "b");
    spec.groups[0].meta.insert(META_KEY.into(), "a".into());
    let (node, metrics) = chosen(&mut cluster, &spec);
    assert_eq!((number(node), metrics.scores.len()), (1, 0));
    fsm::testing::put(&mut cluster.state, &SchedulerConfiguration::default());
    assert!(!chosen(&mut cluster, &spec).1.scores.is_empty(), "ranked");
}

/// A warm node that is out of service, infeasible or too small is not taken; nor one with work.
#[test]
fn a_warm_node_must_be_usable() {
    let suspension = Suspension {
        reason: SuspendReason::Operator,
        detail: "".into(),
        by: "".into(),
        since: 0,
        until: None,
        clears_affinity: false,
    };
    let drain = Drain {
        started_at: 0,
        deadline_at: None,
        force: false,
        ignore_system: false,
        owner: "".into(),
        cancelable: false,
    };
    let out: [(&str, Change); 5] = [
        ("suspended", Box::new(move |node| node.health = Health::Suspended(suspension))),
        ("ineligible", Box::new(|node| node.eligibility.ineligible = true)),
        ("draining", Box::new(move |node| node.drain = Some(drain))),
        ("down", Box::new(|node| node.liveness = fsm::Liveness::Down)),
        (
            "small",
            Box::new(|node| {
                let mut description = (*node.description).clone();
                description.resources.total.cpu_mhz = 100;
                node.description = description.into();
            }),
        ),
    ];
    for (name, change) in out {
        let mut cluster = warm(&["b", "a", "a"]);
        cluster.change_node(2, change);
        assert_eq!(number(chosen(&mut cluster, &task("job", "a")).0), 3, "{name}");
    }
    let mut cluster = warm(&["b", "a", "a"]);
    let mut spec = task("job", "a");
    spec.constraints = vec![Constraint {
        left: "${node.unique.name}".into(),
        operand: "!=".into(),
        right: "node-2".into(),
    }];
    let (node, metrics) = chosen(&mut cluster, &spec);
    assert_eq!((number(node), metrics.nodes_evaluated, metrics.nodes_filtered), (3, 2, 1));
    cluster.run(&task("busy", "a"));
    assert_eq!(number(chosen(&mut cluster, &task("job", "a")).0), 3, "node 2 is busy");
}

/// Infeasible idle nodes of other keys are walked over up to the limit, then scores decide.
#[test]
fn the_walk_over_other_keys_is_bounded() {
    for (infeasible, ranked) in [(OTHER_NODES_MAX - 1, false), (OTHER_NODES_MAX, true)] {
        let mut cluster = warm(&vec!["b"; infeasible + 1]);
        let last = infeasible as u64 + 1;
        for number in 1..=last {
            cluster.change_node(number, |node| {
                node.class = fsm::ClassId(id(u64::from(number == last)));
                let mut description = (*node.description).clone();
                description.meta.insert("last".into(), (number == last).to_string().into());
                node.description = description.into();
            });
        }
        let mut spec = task("job", "a");
        spec.constraints = vec![Constraint {
            left: "${meta.last}".into(),
            operand: "=".into(),
            right: "true".into(),
        }];
        let (node, metrics) = chosen(&mut cluster, &spec);
        assert_eq!((number(node), !metrics.scores.is_empty()), (last, ranked));
    }
}

/// Of 5,000 nodes the warm idle one is found each time of 100, also when partly full nodes score
/// higher.
#[test]
fn a_warm_node_among_5000_is_found_each_time() {
    let mut cluster = Cluster::with_nodes(5_000);
    configure(&mut cluster);
    let mut filler = job(JobKind::Service);
    filler.key.id = "filler".into();
    filler.groups[0].count = 200;
    cluster.run(&filler);
    let busy: Vec<_> = cluster.live(&filler).iter().map(|row| number(row.node)).collect();
    let idle = (1..=5_000).filter(|number| !busy.contains(number)).step_by(45);
    for (round, number) in idle.take(100).enumerate() {
        let key = format!("key-{round}");
        cluster.change_node(number, |node| node.affinity_key = key.as_str().into());
        let (node, metrics) = chosen(&mut cluster, &task("job", &key));
        assert_eq!((self::number(node), metrics.nodes_evaluated), (number, 1));
    }
}

/// SC-26, single slots: no nodes, no placements; no tasks, none; ten tasks on five nodes, exactly
/// five.
#[test]
fn sc26_ten_tasks_on_five_single_slot_nodes() {
    for nodes in [0, 5] {
        let mut cluster = Cluster::with_nodes(nodes);
        single_slots(&mut cluster, nodes);
        let mut spec = job(JobKind::Batch);
        spec.groups[0].count = 0;
        assert!(cluster.run(&spec).placements.is_empty());
        spec.groups[0].count = 10;
        let plan = cluster.run(&spec);
        assert_eq!((plan.placements.len() as u64, u64::from(plan.queued())), (nodes, 10 - nodes));
        let mut used: Vec<_> = plan.placements.iter().map(|place| place.node).collect();
        used.dedup();
        assert_eq!(used.len() as u64, nodes, "one on each");
    }
}

/// SC-28: of 1000 equal tasks on 5 nodes with single slots and spread, each node runs 150 to 220.
/// Four run at a time, so that each round has a choice of nodes.
#[test]
fn sc28_tasks_are_distributed_evenly() {
    let mut cluster = Cluster::with_nodes(5);
    single_slots(&mut cluster, 5);
    let mut spec = job(JobKind::Batch);
    spec.groups[0].count = 4;
    spec.spreads =
        vec![Spread { attribute: "${node.unique.name}".into(), weight: 50, targets: Vec::new() }];
    cluster.register(&spec);
    let mut counts: BTreeMap<NodeId, u32> = BTreeMap::new();
    for _ in 0..250 {
        let plan = cluster.run(&spec);
        assert_eq!(plan.placements.len(), 4);
        let nodes: BTreeSet<NodeId> = plan.placements.iter().map(|place| place.node).collect();
        assert_eq!(nodes.len(), 4, "one slot each");
        for place in &plan.placements {
            *counts.entry(place.node).or_default() += 1;
            cluster.state = fsm::testing::without::<Allocation>(&cluster.state, &place.id);
        }
    }
    assert!(counts.len() == 5 && counts.values().all(|n| (150..=220).contains(n)), "{counts:?}");
}
