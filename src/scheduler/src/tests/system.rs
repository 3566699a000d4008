//! System and sysbatch jobs (NS-01 to NS-08, NS-12 to NS-14, Y1).

use std::collections::BTreeSet;

use fsm::{
    ClientStatus, DeploymentStatus, EvaluationStatus, JobKind, JobSpec, Liveness, NodeId, Trigger,
    job::Constraint,
};

use super::{
    Cluster,
    cluster::{PlanExt, update},
    id, job, node,
};

fn running(nodes: u64) -> (Cluster, JobSpec) {
    let mut cluster = Cluster::with_nodes(nodes);
    let spec = job(JobKind::System);
    cluster.run(&spec);
    (cluster, spec)
}

/// NS-01, Y1.
#[test]
fn ns01_one_instance_per_node() {
    let mut cluster = Cluster::with_nodes(10);
    let spec = job(JobKind::System);
    let plan = cluster.run(&spec);
    let nodes: BTreeSet<NodeId> = plan.placements.iter().map(|placement| placement.node).collect();
    assert_eq!((plan.placements.len(), nodes.len()), (10, 10));
    assert!(plan.placements.iter().all(|placement| placement.name_index == 0));
    assert_eq!((plan.status(), plan.queued()), (EvaluationStatus::Complete, 0));
    assert!(plan.blocked().is_empty());
    let again = cluster.plan(&spec, Trigger::NodeUpdate);
    assert!(again.is_no_op(), "NS-14");
    assert_eq!(again.status(), EvaluationStatus::Complete);
}

#[test]
fn ns02_a_new_node_gets_one_more() {
    let (mut cluster, spec) = running(10);
    cluster.put_node(node(11));
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!(plan.counts(), (1, 0, 0));
    assert_eq!(plan.placements[0].node, NodeId(id(11)));
}

#[test]
fn ns03_a_destructive_change_replaces_on_the_same_node_step_by_step() {
    let (mut cluster, mut spec) = running(10);
    spec.groups[0].tasks[0].config_json = "{\"v\":2}".into();
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.counts(), (10, 10, 0));
    for placement in &plan.placements {
        let previous = cluster.get(placement.previous.unwrap());
        assert_eq!(previous.node, placement.node);
        assert!(plan.stops.iter().any(|stop| stop.id == previous.id));
    }

    spec.groups[0].update = Some(update(3));
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.counts(), (3, 3, 0));
    assert!(plan.waiting().is_empty(), "the next step follows from health");
    cluster.begin(&plan);
    // GH-27284: an evaluation in between must not start another step before these are healthy.
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    cluster.set_health(plan.placements[0].id, true);
    assert_eq!(cluster.plan(&spec, Trigger::DeploymentWatcher).counts(), (1, 1, 0));
    cluster.set_health(plan.placements[1].id, true);
    cluster.set_health(plan.placements[2].id, true);
    assert_eq!(cluster.plan(&spec, Trigger::DeploymentWatcher).counts(), (3, 3, 0));
}

#[test]
fn ns04_an_in_place_change_keeps_ids() {
    let (mut cluster, mut spec) = running(10);
    spec.priority = 60;
    cluster.register(&spec);
    assert_eq!(cluster.plan(&spec, Trigger::JobRegister).counts(), (0, 0, 10));
}

#[test]
fn ns05_a_stopped_or_purged_job_ends_everywhere() {
    for purge in [false, true] {
        let (mut cluster, spec) = running(5);
        if purge {
            cluster.state = fsm::testing::without::<fsm::Job>(&cluster.state, &spec.key);
        } else {
            cluster.change_job(&spec.key, |row| row.stop = true);
        }
        assert_eq!(cluster.plan(&spec, Trigger::JobDeregister).counts(), (0, 5, 0));
    }
}

#[test]
fn ns06_a_lost_node_is_not_made_up_for_elsewhere() {
    let (mut cluster, spec) = running(5);
    cluster.change_node(2, |node| node.liveness = Liveness::Down);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!(plan.counts(), (0, 1, 0));
    assert_eq!(plan.stops[0].client, Some(ClientStatus::Lost));
    assert_eq!(plan.queued(), 0);
    cluster.apply(&plan);
    cluster.change_node(2, |node| node.liveness = Liveness::Ready);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!(plan.counts(), (1, 0, 0));
    assert!(plan.placements[0].previous.is_some(), "chained to the one that was lost");
}

#[test]
fn ns06_a_drained_node_is_left_and_not_filled() {
    let (mut cluster, spec) = running(5);
    cluster.change_node(2, |node| node.eligibility.ineligible = true);
    assert!(cluster.plan(&spec, Trigger::NodeDrain).is_no_op(), "NS-12: not flagged, untouched");
    let on =
        cluster.live(&spec).iter().find(|allocation| allocation.node == NodeId(id(2))).unwrap().id;
    cluster.change(on, |allocation| allocation.transition.migrate = true);
    let plan = cluster.plan(&spec, Trigger::NodeDrain);
    assert_eq!(plan.counts(), (0, 1, 0));

    // A user's stop on a node in service brings a successor.
    cluster.change_node(2, |node| node.eligibility.ineligible = false);
    let plan = cluster.plan(&spec, Trigger::AllocStop);
    assert_eq!(plan.counts(), (1, 1, 0));
    assert_eq!(plan.placements[0].previous, Some(on));
}

#[test]
fn ns07_filtered_nodes_are_not_queued() {
    let mut cluster = Cluster::with_nodes(10);
    for number in [3, 5, 7] {
        cluster.change_node(number, |node| {
            let mut description = (*node.description).clone();
            description.attributes.insert("kernel.name".into(), "windows".into());
            node.description = description.into();
            node.class = fsm::ClassId(id(7));
        });
    }
    let mut spec = job(JobKind::System);
    spec.constraints = vec![Constraint {
        left: "${attr.kernel.name}".into(),
        operand: "=".into(),
        right: "linux".into(),
    }];
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (7, 0));
    assert!(plan.outcome.as_ref().unwrap().failed_groups.is_empty());
    assert!(plan.blocked().is_empty());
}

#[test]
fn ns08_every_exhausted_node_has_a_record() {
    let mut cluster = Cluster::with_nodes(5);
    let mut filler = job(JobKind::System);
    filler.key.id = "filler".into();
    filler.groups[0].tasks[0].resources.cpu_mhz = 3_800;
    filler.constraints = vec![Constraint {
        left: "${node.unique.name}".into(),
        operand: "regexp".into(),
        right: "^node-[24]$".into(),
    }];
    assert_eq!(cluster.run(&filler).placements.len(), 2);

    let spec = job(JobKind::System);
    let plan = cluster.run(&spec);
    assert_eq!((plan.placements.len(), plan.queued()), (3, 2));
    assert_eq!(plan.outcome.as_ref().unwrap().failed_groups["web"].coalesced_failures, 1);
    let records: Vec<_> = plan.blocked().into_iter().cloned().collect();
    let nodes: Vec<_> = records.iter().map(|record| record.node).collect();
    assert_eq!(nodes, [Some(NodeId(id(2))), Some(NodeId(id(4)))]);
    assert!(
        cluster.plan(&spec, Trigger::NodeUpdate).blocked().is_empty(),
        "records are not doubled"
    );

    let again = cluster.pass(&records[1]);
    assert_eq!((again.status(), again.blocked().len()), (EvaluationStatus::Blocked, 0));

    // Freeing either retries it.
    let freed = cluster
        .live(&filler)
        .iter()
        .find(|allocation| allocation.node == NodeId(id(4)))
        .unwrap()
        .id;
    cluster.end(freed, ClientStatus::Complete);
    let plan = cluster.pass(&records[1]);
    assert_eq!(plan.counts(), (1, 0, 0));
    assert_eq!(plan.placements[0].node, NodeId(id(4)));
    assert_eq!(plan.status(), EvaluationStatus::Complete);
    assert_eq!(plan.queued(), 1, "node 2 still waits, with its own record");
    assert!(plan.blocked().is_empty());
}

#[test]
fn ns12_a_node_that_is_not_ready_is_ignored_until_it_is() {
    let (mut cluster, spec) = running(3);
    cluster.change_node(1, |node| node.liveness = Liveness::Initializing);
    let mut late = node(4);
    late.liveness = Liveness::Initializing;
    cluster.put_node(late);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    cluster.change_node(4, |node| node.liveness = Liveness::Ready);
    assert_eq!(cluster.plan(&spec, Trigger::NodeUpdate).counts(), (1, 0, 0));
}

#[test]
fn ns13_periodic_is_for_sysbatch_only() {
    for (kind, status) in [
        (JobKind::System, EvaluationStatus::Failed),
        (JobKind::Sysbatch, EvaluationStatus::Complete),
    ] {
        let mut cluster = Cluster::with_nodes(1);
        let spec = job(kind);
        cluster.register(&spec);
        assert_eq!(cluster.plan(&spec, Trigger::PeriodicJob).status(), status);
    }
}

/// NS-16.
#[test]
fn ns16_a_datacenter_that_is_left_is_stopped() {
    let (mut cluster, mut spec) = running(3);
    cluster.change_node(2, |node| {
        let mut description = (*node.description).clone();
        description.datacenter = "dc2".into();
        node.description = description.into();
    });
    spec.datacenters = vec!["dc1".into()];
    cluster.register(&spec);
    assert_eq!(cluster.plan(&spec, Trigger::JobRegister).counts(), (0, 1, 2));
}

/// Y5: finished instances of sysbatch run again only when the job changes.
#[test]
fn y5_sysbatch_runs_once_per_version() {
    let mut cluster = Cluster::with_nodes(3);
    let spec = job(JobKind::Sysbatch);
    let plan = cluster.run(&spec);
    cluster.end(plan.placements[0].id, ClientStatus::Complete);
    cluster.end(plan.placements[1].id, ClientStatus::Failed);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.counts(), (2, 0, 1));
}

/// A sysbatch instance that a drain or a user stops is not run again when its node is back; a user
/// can ask for it.
#[test]
fn a_sysbatch_instance_that_was_stopped_is_not_run_again() {
    let mut cluster = Cluster::with_nodes(3);
    let spec = job(JobKind::Sysbatch);
    let plan = cluster.run(&spec);
    let stopped = plan.placements[1].id;
    cluster.change(stopped, |row| row.transition.migrate = true);
    let plan = cluster.plan(&spec, Trigger::NodeDrain);
    assert_eq!(plan.counts(), (0, 1, 0));
    assert_eq!(&*plan.stops[0].description, fsm::allocation::ENDED_BY_REQUEST);
    cluster.apply(&plan);
    cluster.change(stopped, |row| row.client = ClientStatus::Complete);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    cluster.change(stopped, |row| row.transition.reschedule = true);
    assert_eq!(cluster.plan(&spec, Trigger::AllocStop).counts(), (1, 0, 0));
}

/// A user may leave a node without its instance until the job changes.
#[test]
fn a_system_instance_that_was_stopped_without_a_replacement_stays_away() {
    let (mut cluster, mut spec) = running(3);
    let stopped = cluster.live(&spec)[0].id;
    cluster.change(stopped, |row| {
        row.transition.migrate = true;
        row.transition.no_replacement = true;
    });
    let plan = cluster.plan(&spec, Trigger::AllocStop);
    assert_eq!(plan.counts(), (0, 1, 0));
    cluster.apply(&plan);
    cluster.change(stopped, |row| row.client = ClientStatus::Complete);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    spec.priority += 1;
    assert_eq!(cluster.run(&spec).placements.len(), 1);
}

/// A system instance that failed for good is replaced on its node.
#[test]
fn a_failed_system_instance_is_replaced_where_it_was() {
    let (mut cluster, spec) = running(3);
    let failed = cluster.live(&spec)[0].id;
    cluster.end(failed, ClientStatus::Failed);
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(plan.counts(), (1, 0, 0));
    assert_eq!(plan.placements[0].previous, Some(failed));
}

/// Two of five nodes have no room for the new version: the others are updated step by step, and
/// when only those two are left nothing ticks any more: their records wait for room.
#[test]
fn a_full_node_does_not_hold_up_an_update() {
    let (mut cluster, mut spec) = running(5);
    for number in [1, 2] {
        cluster.change_node(number, |node| {
            let mut description = (*node.description).clone();
            description.resources.total.cpu_mhz = 600;
            node.description = description.into();
        });
    }
    spec.groups[0].tasks[0].resources.cpu_mhz = 700;
    spec.groups[0].update = Some(update(2));
    cluster.register(&spec);
    let (mut steps, mut queued) = (Vec::new(), 0);
    for _ in 0..3 {
        let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
        queued = plan.queued();
        steps.push(plan.counts().0);
        for placement in &plan.placements {
            assert!(placement.node > NodeId(id(2)));
        }
        cluster.apply(&plan);
    }
    assert_eq!((steps, queued), (vec![2, 1, 0], 2));
    assert_eq!(cluster.live(&spec).len(), 5, "the old ones go on");
    let rows = cluster.state.deployments_of_job(&spec.key);
    assert_eq!(rows[0].status, DeploymentStatus::Successful, "it does not wait for the full ones");
}

/// A group that is removed makes room for what another group wants in the same plan, and what it
/// had on a lost node is lost.
#[test]
fn a_removed_group_makes_room_first() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = job(JobKind::System);
    spec.groups[0].tasks[0].resources.cpu_mhz = 3_000;
    cluster.run(&spec);
    cluster.change_node(3, |node| node.liveness = Liveness::Down);
    spec.groups[0].name = "api".into();
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!((plan.counts(), plan.queued()), ((2, 3, 0), 0));
    let lost: Vec<_> =
        plan.stops.iter().filter(|stop| stop.client == Some(ClientStatus::Lost)).collect();
    assert_eq!(lost.len(), 1);
    assert_eq!(cluster.get(lost[0].id).node, NodeId(id(3)));
}

/// A group that is scaled to none ends, also on nodes out of service, and comes back when it is
/// scaled to one.
#[test]
fn a_count_of_none_ends_a_group() {
    let (mut cluster, mut spec) = running(3);
    cluster.change_node(2, |node| node.eligibility.ineligible = true);
    spec.groups[0].count = 0;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.counts(), (0, 3, 0));
    cluster.apply(&plan);
    spec.groups[0].count = 1;
    cluster.register(&spec);
    assert_eq!(cluster.plan(&spec, Trigger::JobRegister).counts(), (2, 0, 0));
}
