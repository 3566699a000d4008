//! Service and batch jobs as a whole: placing, blocking, bounds, ends of evaluations.

use fsm::{
    AllocationId, ClassId, ClientStatus, EvaluationStatus, JobKind, NodeId, Trigger,
    job::{Network, PortAsk},
    limits::PLAN_PLACEMENTS_MAX,
    resources::Port,
};

use super::{Cluster, cluster::PlanExt, id, job, node};
use crate::{Pass, ScheduleError, attempts_max, exhausted, schedule};

/// S1.
#[test]
fn s1_ten_instances_on_ten_nodes_in_one_plan() {
    let mut cluster = Cluster::with_nodes(10);
    let spec = job(JobKind::Service);
    let plan = cluster.run(&spec);
    assert_eq!(plan.names(), (0..10).collect::<Vec<_>>());
    assert_eq!(plan.status(), EvaluationStatus::Complete);
    assert_eq!((plan.queued(), plan.blocked().len()), (0, 0));
    assert_eq!(cluster.live(&spec).len(), 10);
    let again = cluster.plan(&spec, Trigger::JobRegister);
    assert!(again.is_no_op());
    assert_eq!(again.status(), EvaluationStatus::Complete);
}

/// S2, S6, SC-26: no node, one blocked evaluation; it re-blocks until there is a node and then
/// places all.
#[test]
fn s2_a_blocked_evaluation_waits_for_nodes() {
    let mut cluster = Cluster::new();
    let spec = job(JobKind::Service);
    let plan = cluster.run(&spec);
    assert!(plan.is_no_op());
    assert_eq!((plan.status(), plan.queued()), (EvaluationStatus::Complete, 10));
    let outcome = plan.outcome.as_ref().unwrap();
    assert_eq!(outcome.failed_groups["web"].coalesced_failures, 9);
    assert_eq!(outcome.failed_groups["web"].nodes_evaluated, 0);
    let blocked = plan.blocked()[0].clone();
    assert_eq!(blocked.trigger, Trigger::QueuedAllocs);
    assert_eq!(blocked.previous, Some(plan.evaluation));
    assert_eq!(blocked.snapshot_index, plan.snapshot_index);
    assert_eq!(&*blocked.status_description, "created to place remaining allocations");
    assert!(blocked.class_eligibility.is_empty() && !blocked.escaped);

    let other = cluster.plan(&spec, Trigger::NodeUpdate);
    assert!(other.blocked().is_empty(), "one blocked evaluation per job");

    let again = cluster.pass(&blocked);
    assert!(again.is_no_op());
    assert_eq!(again.status(), EvaluationStatus::Blocked);
    assert!(again.blocked().is_empty(), "re-blocked, not replaced");

    cluster.put_node(node(1));
    cluster.put_node(node(2));
    let placed = cluster.pass(&blocked);
    assert_eq!((placed.placements.len(), placed.queued()), (10, 0));
    assert_eq!(placed.status(), EvaluationStatus::Complete);
}

/// S2: classes that were looked at are in the blocked evaluation.
#[test]
fn s2_class_eligibility_tells_what_would_do() {
    let mut cluster = Cluster::new();
    for (number, class, kernel) in [(1, 1, "linux"), (2, 2, "windows"), (3, 2, "windows")] {
        let mut row = node(number);
        row.class = ClassId(id(class));
        let mut description = (*row.description).clone();
        description.attributes.insert("kernel.name".into(), kernel.into());
        row.description = description.into();
        cluster.put_node(row);
    }
    let mut spec = job(JobKind::Service);
    spec.groups[0].constraints = vec![fsm::job::Constraint {
        left: "${attr.kernel.name}".into(),
        operand: "=".into(),
        right: "linux".into(),
    }];
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (8, 2));
    let blocked = plan.blocked()[0];
    let eligibility: Vec<_> = blocked.class_eligibility.iter().collect();
    assert_eq!(eligibility, [(&ClassId(id(1)), &true), (&ClassId(id(2)), &false)]);
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    assert_eq!((metrics.nodes_evaluated, metrics.nodes_filtered), (3, 2));
    assert_eq!(metrics.dimension_exhausted["cpu"], 1);
    assert_eq!(metrics.constraint_filtered["${attr.kernel.name} = linux"], 2);
    assert_eq!(metrics.coalesced_failures, 1);
}

/// A node whose machine is short of something gets nothing, and the evaluation says why.
#[test]
fn a_node_that_is_short_gets_nothing_and_is_named_in_the_metrics() {
    let mut cluster = Cluster::new();
    for number in [1, 2, 3] {
        let mut row = node(number);
        if number > 1 {
            row.shortage = Some(fsm::node::Shortage { reason: "disk".into(), since: 1 });
        }
        cluster.put_node(row);
    }
    let plan = cluster.run(&job(JobKind::Service));
    assert!(plan.placements.iter().all(|placement| placement.node == NodeId(id(1))));
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    let short = &metrics.constraint_filtered["machine is short of resources (see node status)"];
    assert_eq!((*short, metrics.nodes_evaluated, metrics.nodes_filtered), (2, 3, 2));
    assert_eq!(metrics.nodes_available.values().sum::<u32>(), 1);
}

/// S3.
#[test]
fn s3_one_group_fits_and_the_other_does_not() {
    let mut cluster = Cluster::with_nodes(10);
    let mut spec = job(JobKind::Service);
    let mut other = spec.groups[0].clone();
    other.name = "gpu".into();
    other.tasks[0].driver = "missing".into();
    spec.groups.push(other);
    let plan = cluster.run(&spec);
    assert_eq!(plan.placements.len(), 10);
    assert!(plan.placements.iter().all(|placement| &*placement.group == "web"));
    let outcome = plan.outcome.as_ref().unwrap();
    assert_eq!(outcome.failed_groups.keys().map(|name| &**name).collect::<Vec<_>>(), ["gpu"]);
    assert_eq!(outcome.failed_groups["gpu"].coalesced_failures, 9);
    assert_eq!(outcome.failed_groups["gpu"].constraint_filtered["missing drivers"], 10);
    assert_eq!((outcome.queued["gpu"], outcome.queued["web"]), (10, 0));
}

/// A blocked evaluation of an older version does not stand in for the new one.
#[test]
fn a_blocked_evaluation_of_another_version_is_not_enough() {
    let mut cluster = Cluster::with_nodes(1);
    let mut spec = job(JobKind::Service);
    spec.groups[0].tasks[0].driver = "missing".into();
    assert_eq!(cluster.run(&spec).blocked().len(), 1);
    spec.groups[0].count = 9;
    assert_eq!(cluster.run(&spec).blocked().len(), 1);
    assert_eq!(cluster.plan(&spec, Trigger::NodeUpdate).blocked().len(), 0);
}

/// A node of a class that is of no use to a group may free the property that the group waits for.
#[test]
fn an_evaluation_that_waits_for_a_property_wakes_with_every_class() {
    let mut cluster = Cluster::new();
    for (number, kernel) in [(1, "linux"), (2, "windows")] {
        let mut row = node(number);
        row.class = ClassId(id(number));
        let mut description = (*row.description).clone();
        description.attributes.insert("kernel.name".into(), kernel.into());
        description.meta.insert("rack".into(), "r1".into());
        row.description = description.into();
        cluster.put_node(row);
    }
    let constraint = |left: &str, operand: &str, right: &str| fsm::job::Constraint {
        left: left.into(),
        operand: operand.into(),
        right: right.into(),
    };
    let mut spec = job(JobKind::Batch);
    spec.constraints = vec![constraint("${meta.rack}", "distinct_property", "1")];
    spec.groups[0].count = 1;
    spec.groups[0].constraints = vec![constraint("${attr.kernel.name}", "=", "linux")];
    let mut other = spec.groups[0].clone();
    other.name = "other".into();
    other.constraints = vec![constraint("${attr.kernel.name}", "=", "windows")];
    spec.groups.push(other);
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.blocked().len()), (1, 1));
    assert!(plan.blocked()[0].escaped);
}

/// One that waits for another group is not enough: what is of no use to that group may be what this
/// one needs.
#[test]
fn a_blocked_evaluation_of_another_group_is_not_enough() {
    let mut cluster = Cluster::new();
    for (number, kernel) in [(1, "linux"), (2, "windows")] {
        let mut row = node(number);
        row.class = ClassId(id(number));
        let mut description = (*row.description).clone();
        description.attributes.insert("kernel.name".into(), kernel.into());
        description.resources.total.cpu_mhz = if kernel == "windows" { 100 } else { 4_000 };
        row.description = description.into();
        cluster.put_node(row);
    }
    let on = |kernel: &str| fsm::job::Constraint {
        left: "${attr.kernel.name}".into(),
        operand: "=".into(),
        right: kernel.into(),
    };
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 1;
    spec.groups[0].constraints = vec![on("windows")];
    let mut other = spec.groups[0].clone();
    other.name = "api".into();
    other.constraints = vec![on("linux")];
    spec.groups.push(other);
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.blocked().len()), (1, 1), "the other group waits");
    cluster.put_evaluation(plan.blocked()[0].clone());
    assert!(!plan.blocked()[0].class_eligibility[&ClassId(id(1))]);

    let lost = plan.placements[0].id;
    cluster.change_node(1, |row| row.liveness = fsm::Liveness::Down);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!(plan.stops[0].id, lost);
    let [blocked] = plan.blocked()[..] else { panic!("nobody waits for the node: {plan:?}") };
    assert_eq!(blocked.failed_groups.len(), 2);
    assert_eq!(blocked.class_eligibility.get(&ClassId(id(1))), None, "it wakes with the node");
    cluster.put_evaluation(blocked.clone());
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).blocked().is_empty());
}

/// S10: a full node makes room for the successor of what it runs.
#[test]
fn s10_a_stop_makes_room_on_a_full_node() {
    let mut cluster = Cluster::with_nodes(1);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 8;
    assert_eq!(cluster.run(&spec).placements.len(), 8);
    spec.groups[0].tasks[0].config_json = "{\"v\":2}".into();
    let plan = cluster.run(&spec);
    assert_eq!(plan.counts(), (8, 8, 0));
}

/// 2.7: a destructive update that cannot be placed leaves what runs alone.
#[test]
fn a_failed_replacement_keeps_its_predecessor() {
    let mut cluster = Cluster::with_nodes(2);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 2;
    cluster.run(&spec);
    spec.groups[0].tasks[0].resources.cpu_mhz = 5_000;
    let plan = cluster.run(&spec);
    assert_eq!(plan.counts(), (0, 0, 0));
    assert_eq!(plan.queued(), 2);
    assert_eq!(cluster.live(&spec).len(), 2);
}

/// Of two instances only the second has a node where the new version fits: it is updated, the first
/// goes on, and a blocked evaluation waits.
#[test]
fn an_instance_without_room_does_not_hold_up_an_update() {
    let mut cluster = Cluster::with_nodes(2);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 2;
    spec.groups[0].update = Some(super::cluster::update(1));
    cluster.run(&spec);
    let first = cluster.live(&spec).into_iter().find(|row| row.name_index == 0).unwrap().node;
    cluster.change_node(u64::from(first.0[15]), |node| {
        let mut description = (*node.description).clone();
        description.resources.total.cpu_mhz = 600;
        node.description = description.into();
    });
    spec.groups[0].tasks[0].resources.cpu_mhz = 3_800;
    let plan = cluster.run(&spec);
    assert_eq!((plan.counts(), plan.names(), plan.queued()), ((1, 1, 0), vec![1], 0));
    let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
    assert_eq!((plan.counts(), plan.queued()), ((0, 0, 0), 1));
    assert_eq!(plan.blocked().len(), 1);
    assert!(plan.waiting().is_empty(), "room has to come first");
}

/// An update whose missing instances have no room makes no step and no follow-up either: it would
/// tick for as long as the cluster is full.
#[test]
fn an_update_on_a_full_cluster_does_not_tick() {
    let mut cluster = Cluster::with_nodes(1);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 8;
    spec.groups[0].update = Some(super::cluster::update(2));
    assert_eq!(cluster.run(&spec).placements.len(), 8);
    spec.groups[0].count = 12;
    spec.groups[0].tasks[0].user = "other".into();
    let plan = cluster.run(&spec);
    assert_eq!((plan.counts(), plan.queued()), ((0, 0, 0), 4));
    assert_eq!((plan.blocked().len(), plan.waiting().len()), (1, 0));
}

/// Several groups are updated in steps by one deployment. A new version has one of its own, and
/// does not wait for the steps of the one before.
#[test]
fn groups_share_a_deployment_and_versions_do_not() {
    let mut cluster = Cluster::with_nodes(10);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 3;
    spec.groups[0].update = Some(super::cluster::update(1));
    let mut other = spec.groups[0].clone();
    other.name = "api".into();
    other.count = 2;
    spec.groups.push(other);
    cluster.run(&spec);
    for user in ["slow", "quick"] {
        for group in &mut spec.groups {
            group.tasks[0].user = user.into();
        }
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert_eq!(plan.counts(), (2, 2, 0), "{user}");
        let goals = &plan.deployment.as_ref().unwrap().goals;
        let totals: Vec<_> = goals.values().map(|goal| (goal.canaries, goal.total)).collect();
        assert_eq!(totals, [(0, 2), (0, 3)]);
        cluster.begin(&plan);
        assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    }
}

/// S13 and 2.1.
#[test]
fn s13_count_zero_stops_all_without_a_blocked_evaluation() {
    let mut cluster = Cluster::with_nodes(2);
    let mut spec = job(JobKind::Service);
    cluster.run(&spec);
    spec.groups[0].count = 0;
    let plan = cluster.run(&spec);
    assert_eq!(plan.counts(), (0, 10, 0));
    assert!(plan.blocked().is_empty());
}

/// NS-13 for all kinds.
#[test]
fn an_unknown_trigger_fails_the_evaluation() {
    let mut cluster = Cluster::with_nodes(1);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::Scheduled);
    assert!(plan.is_no_op());
    assert_eq!(plan.status(), EvaluationStatus::Failed);
    assert_eq!(
        &*plan.outcome.unwrap().description,
        "scheduler cannot handle 'scheduled' evaluation reason"
    );
}

/// S5: five attempts, then failed with one blocked evaluation that the leader retries.
#[test]
fn s5_attempts_used_up() {
    let mut cluster = Cluster::with_nodes(1);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    let evaluation = cluster.evaluation(&spec, Trigger::JobRegister);
    let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt: 5 };
    let plan = exhausted(&pass).unwrap();
    assert!(plan.is_no_op());
    assert_eq!(plan.status(), EvaluationStatus::Failed);
    assert_eq!(&*plan.outcome.as_ref().unwrap().description, "maximum attempts reached (5)");
    assert_eq!(plan.blocked()[0].trigger, Trigger::MaxPlans);
    cluster.apply(&plan);
    let evaluation = cluster.evaluation(&spec, Trigger::NodeUpdate);
    let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt: 5 };
    assert!(exhausted(&pass).unwrap().blocked().is_empty(), "one is enough");
    // What waits for room is woken by other things, and perhaps never.
    let id = plan.blocked()[0].id;
    let mut waits = (**cluster.state.evaluations().get(&id).unwrap()).clone();
    waits.trigger = Trigger::QueuedAllocs;
    fsm::testing::put(&mut cluster.state, &waits);
    let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt: 5 };
    assert_eq!(exhausted(&pass).unwrap().blocked()[0].trigger, Trigger::MaxPlans);
    assert_eq!(JobKind::ALL.map(attempts_max), [5, 2, 5, 2]);
}

/// I45: room for seven more, and two without any; the races that used up the attempts do not make
/// them less.
#[test]
fn missing_instances_are_queued_when_the_attempts_are_used_up() {
    let mut cluster = Cluster::with_nodes(1);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    cluster.allocation(&spec, 0, 1);
    let evaluation = cluster.evaluation(&spec, Trigger::JobRegister);
    let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt: 5 };
    let plan = exhausted(&pass).unwrap();
    assert_eq!((plan.status(), plan.queued()), (EvaluationStatus::Failed, 9));
    cluster.apply(&plan);
    assert_eq!(cluster.state.jobs().get(&spec.key).unwrap().queued["web"], 9);

    cluster.change_job(&spec.key, |row| row.stop = true);
    let evaluation = cluster.evaluation(&spec, Trigger::JobDeregister);
    let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt: 5 };
    assert_eq!(exhausted(&pass).unwrap().queued(), 0, "nothing is wanted");
}

#[test]
fn a_missing_spec_is_an_error() {
    let mut cluster = Cluster::with_nodes(1);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    cluster.change_job(&spec.key, |row| row.version = 7);
    let evaluation = cluster.evaluation(&spec, Trigger::JobRegister);
    let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt: 0 };
    assert!(matches!(schedule(&pass), Err(ScheduleError::SpecMissing { version: 7, .. })));
}

/// Attempts and snapshots get ids of their own.
#[test]
fn ids_differ_between_attempts() {
    let mut cluster = Cluster::with_nodes(4);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    let evaluation = cluster.evaluation(&spec, Trigger::JobRegister);
    let ids = |attempt| -> Vec<AllocationId> {
        let pass = Pass { state: &cluster.state, evaluation: &evaluation, now: 1, attempt };
        schedule(&pass).unwrap().placements.iter().map(|placement| placement.id).collect()
    };
    assert_eq!(ids(0), ids(0));
    assert!(ids(0).iter().all(|id| !ids(1).contains(id)));
}

/// A plan is cut at its bound, has no outcome then, and the next passes do the rest.
#[test]
fn a_plan_is_cut_at_its_bound() {
    let mut cluster = Cluster::new();
    for number in 1..=10 {
        let mut row = node(number);
        let mut description = (*row.description).clone();
        description.resources.total.cpu_mhz = 1_000_000;
        description.resources.total.memory_mb = 1_000_000;
        description.resources.total.disk_mb = 10_000_000;
        row.description = description.into();
        cluster.put_node(row);
    }
    let mut spec = job(JobKind::Batch);
    spec.groups[0].count = u32::try_from(PLAN_PLACEMENTS_MAX).unwrap() + 10;
    cluster.register(&spec);
    let evaluation = cluster.evaluation(&spec, Trigger::JobRegister);
    let first = cluster.pass(&evaluation);
    assert_eq!(first.placements.len(), PLAN_PLACEMENTS_MAX);
    assert_eq!(first.outcome, None);
    cluster.apply(&first);
    let second = cluster.pass(&evaluation);
    assert_eq!(second.placements.len(), 10);
    assert_eq!(second.status(), EvaluationStatus::Complete);
    cluster.apply(&second);

    // The same for stops, and nothing is placed in the place of what was not stopped.
    cluster.change_job(&spec.key, |row| row.stop = true);
    let evaluation = cluster.evaluation(&spec, Trigger::JobDeregister);
    let stops = cluster.pass(&evaluation);
    assert_eq!((stops.stops.len(), stops.outcome.clone()), (PLAN_PLACEMENTS_MAX, None));
    cluster.apply(&stops);
    assert_eq!(cluster.pass(&evaluation).stops.len(), 10);
}

/// What people are told about each placement counts: a plan must fit into an entry of the log.
#[test]
fn a_plan_is_cut_at_its_size() {
    const BOUND: usize = 20 << 20;
    let mut cluster = Cluster::with_nodes(20);
    cluster.change_node(1, |row| {
        let mut description = (*row.description).clone();
        description.resources.total.cpu_mhz = 1_000_000;
        description.resources.total.memory_mb = 1_000_000;
        description.resources.total.disk_mb = 10_000_000;
        row.description = description.into();
    });
    let mut spec = job(JobKind::Batch);
    spec.groups[0].count = 100;
    let names = format!("node-1,{}", "x".repeat(200_000));
    spec.groups[0].constraints = vec![fsm::job::Constraint {
        left: "${node.unique.name}".into(),
        operand: "set_contains_any".into(),
        right: names.as_str().into(),
    }];
    // And one group after the other for which there is nothing.
    for number in 0..40 {
        let mut other = spec.groups[0].clone();
        other.name = format!("other-{number}").into();
        other.count = 1;
        other.constraints[0].right = names.replace("node-1", "node-0").as_str().into();
        spec.groups.push(other);
    }
    cluster.register(&spec);
    let evaluation = cluster.evaluation(&spec, Trigger::JobRegister);
    let mut placed = 0;
    loop {
        let plan = cluster.pass(&evaluation);
        assert!(fsm::codec::encode(&plan).len() < BOUND);
        placed += plan.placements.len();
        cluster.apply(&plan);
        if let Some(outcome) = &plan.outcome {
            assert_eq!((placed, outcome.failed_groups.len()), (100, 40));
            break;
        }
        assert!(!plan.placements.is_empty(), "each plan goes on");
    }
}

/// F2, P3: the reserve is kept, the number of allocations is limited.
#[test]
fn room_is_what_is_left_after_reserve_and_limits() {
    let mut row = node(1);
    let mut description = (*row.description).clone();
    description.resources.reserved.cpu_mhz = 1_000;
    row.description = description.clone().into();
    let mut cluster = Cluster::new();
    cluster.put_node(row.clone());
    let plan = cluster.run(&job(JobKind::Service));
    assert_eq!((plan.placements.len(), plan.queued()), (6, 4));

    description.resources.allocations_max = 3;
    row.description = description.into();
    let mut cluster = Cluster::new();
    cluster.put_node(row);
    let plan = cluster.run(&job(JobKind::Service));
    assert_eq!(plan.placements.len(), 3);
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    assert_eq!(metrics.dimension_exhausted["max allocations"], 1);
}

fn ports(values: &[u16]) -> Network {
    let ports = values
        .iter()
        .enumerate()
        .map(|(number, value)| PortAsk { label: format!("p{number}").into(), value: *value, to: 0 })
        .collect();
    Network { ports, names_mode: false }
}

/// 2.10: a static port is given once per node; its holder may hand it to its successor.
#[test]
fn a_static_port_is_given_once() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = job(JobKind::Service);
    spec.groups[0].network = Some(ports(&[8080]));
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (3, 7));
    let metrics = &plan.outcome.as_ref().unwrap().failed_groups["web"];
    assert_eq!(metrics.dimension_exhausted["network: port collision"], 3);
    let nodes: std::collections::BTreeSet<NodeId> =
        plan.placements.iter().map(|placement| placement.node).collect();
    assert_eq!(nodes.len(), 3);

    for placement in &plan.placements {
        cluster.change(placement.id, |allocation| {
            allocation.ports = vec![Port { label: "p0".into(), value: 8080, to: 0 }];
        });
    }
    spec.groups[0].count = 3;
    spec.groups[0].tasks[0].user = "other".into();
    assert_eq!(cluster.run(&spec).counts(), (3, 3, 0));
}

/// 2.10: only as many dynamic ports as there are; those of a stopping allocation are not free yet.
#[test]
fn dynamic_ports_are_counted() {
    let mut row = node(1);
    let mut description = (*row.description).clone();
    description.resources.dynamic_port_min = 20_000;
    description.resources.dynamic_port_max = 20_004;
    description.resources.reserved_ports = vec![22, 20_000];
    row.description = description.into();
    let mut cluster = Cluster::new();
    cluster.put_node(row);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 5;
    spec.groups[0].network = Some(ports(&[0, 0]));
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (2, 3));

    let held = plan.placements[0].id;
    cluster.change(held, |allocation| {
        allocation.ports = vec![
            Port { label: "p0".into(), value: 20_001, to: 0 },
            Port { label: "p1".into(), value: 20_002, to: 0 },
        ];
        allocation.desired = fsm::DesiredStatus::Stop;
    });
    let other = plan.placements[1].id;
    cluster.end(other, ClientStatus::Complete);
    let plan = cluster.plan(&spec, Trigger::AllocStop);
    assert_eq!(plan.placements.len(), 1, "two of four ports are still held");
}

/// A static port inside the dynamic range, asked for again by what replaces its holder, counts
/// once.
#[test]
fn a_port_that_is_handed_on_counts_once() {
    let mut row = node(1);
    let mut description = (*row.description).clone();
    description.resources.dynamic_port_min = 20_000;
    description.resources.dynamic_port_max = 20_004;
    row.description = description.into();
    let mut cluster = Cluster::new();
    cluster.put_node(row);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 1;
    spec.groups[0].network = Some(ports(&[0, 0, 20_002]));
    assert_eq!(cluster.run(&spec).placements.len(), 1);
    spec.groups[0].tasks[0].user = "other".into();
    assert_eq!(cluster.run(&spec).counts(), (1, 1, 0));
}

/// A job that became a template wants nothing of its own.
#[test]
fn a_template_runs_nothing() {
    let mut cluster = Cluster::with_nodes(2);
    let mut spec = job(JobKind::Batch);
    cluster.run(&spec);
    spec.parameterized = Some(fsm::job::Parameterized::default());
    let plan = cluster.run(&spec);
    assert_eq!(plan.counts(), (0, 10, 0));
}

/// 2.7: what a failed replacement gave back is not given to others.
#[test]
fn a_failed_replacement_frees_nothing() {
    let mut cluster = Cluster::with_nodes(1);
    let mut spec = job(JobKind::Service);
    spec.constraints = vec![fsm::job::Constraint {
        left: "${node.unique.name}".into(),
        operand: "distinct_property".into(),
        right: "2".into(),
    }];
    spec.groups[0].count = 1;
    spec.groups[0].tasks[0].resources.cpu_mhz = 3_000;
    cluster.run(&spec);
    let mut other = spec.groups[0].clone();
    other.name = "other".into();
    other.tasks[0].resources.cpu_mhz = 2_000;
    spec.groups[0].tasks[0].resources.cpu_mhz = 4_500;
    spec.groups.push(other);
    let plan = cluster.run(&spec);
    assert_eq!(plan.counts(), (0, 0, 0), "1000 MHz are free, not 4000");

    spec.groups[1].count = 2;
    spec.groups[1].tasks[0].resources.cpu_mhz = 100;
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (1, 2), "the old one still counts");
}
