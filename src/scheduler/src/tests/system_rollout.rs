//! Deployments of system jobs, pass by pass: canaries in percent of the nodes, steps by health, nodes that come and go.

use fsm::{
    Allocation, ClientStatus, Deployment, DeploymentStatus, JobKind, JobSpec, Liveness, NodeId,
    Plan, Trigger, deployment::PromoteDeployment,
};

use super::{
    Cluster,
    cluster::{PlanExt, update},
    id, job, node,
};

/// A healthy first version on so many nodes, and a second one that is registered and waits for its first pass.
fn changed(nodes: u64, max_parallel: u32, canaries: u32, auto_revert: bool) -> (Cluster, JobSpec) {
    let mut cluster = Cluster::with_nodes(nodes);
    let mut spec = job(JobKind::System);
    let mut strategy = update(max_parallel);
    strategy.canaries = canaries;
    strategy.auto_revert = auto_revert;
    spec.groups[0].update = Some(strategy);
    cluster.run(&spec);
    spec.groups[0].tasks[0].user = "two".into();
    cluster.register(&spec);
    (cluster, spec)
}

fn newest(cluster: &Cluster, spec: &JobSpec) -> Deployment {
    (*cluster.state.deployments_of_job(&spec.key)[0]).clone()
}

fn total(cluster: &Cluster, spec: &JobSpec) -> u32 {
    newest(cluster, spec).groups.values().next().unwrap().goal.total
}

fn step(cluster: &mut Cluster, spec: &JobSpec) -> Plan {
    let plan = cluster.plan(spec, Trigger::DeploymentWatcher);
    cluster.begin(&plan);
    plan
}

fn healthy(cluster: &mut Cluster, plan: &Plan) {
    for placement in &plan.placements {
        cluster.set_health(placement.id, true);
    }
}

fn live(cluster: &Cluster, spec: &JobSpec, version: u64) -> Vec<Allocation> {
    let live = cluster.live(spec).into_iter().filter(|row| row.job_version == version);
    live.cloned().collect()
}

/// A quarter of ten nodes are three; two at a time. Nothing else changes before the promotion, and then all do.
#[test]
fn canaries_are_a_share_of_the_nodes_and_take_the_place_of_what_runs_there() {
    let (mut cluster, spec) = changed(10, 2, 25, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (2, 2, 0));
    assert!(plan.placements.iter().all(|placement| placement.canary));
    let row = newest(&cluster, &spec);
    let group = row.groups.values().next().unwrap();
    assert_eq!((group.goal.canaries, group.goal.total, group.promoted), (3, 10, false));
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    healthy(&mut cluster, &plan);
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.placements[0].canary), ((1, 1, 0), true));
    healthy(&mut cluster, &plan);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op(), "they wait for a person");
    assert_eq!((live(&cluster, &spec, 0).len(), live(&cluster, &spec, 1).len()), (7, 3));

    let deployment = row.id;
    cluster
        .commit(|evaluation| PromoteDeployment { id: deployment, groups: None, evaluation }.into());
    for (placed, status) in [
        (2, DeploymentStatus::Running),
        (2, DeploymentStatus::Running),
        (2, DeploymentStatus::Running),
        (1, DeploymentStatus::Successful),
    ] {
        let plan = step(&mut cluster, &spec);
        assert_eq!(plan.counts(), (placed, placed, 0));
        healthy(&mut cluster, &plan);
        assert_eq!(newest(&cluster, &spec).status, status);
    }
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    // A node that comes later gets one without a deployment.
    cluster.put_node(node(11));
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.deployment.is_some()), ((1, 0, 0), false));
}

/// A canary that is unhealthy ends the rollout: its node goes back to the stable version, and no other node was touched.
#[test]
fn a_canary_that_fails_is_reverted_where_it_was() {
    let (mut cluster, spec) = changed(10, 2, 25, true);
    let before = live(&cluster, &spec, 0);
    let plan = step(&mut cluster, &spec);
    let canaries: Vec<NodeId> = plan.placements.iter().map(|placement| placement.node).collect();
    cluster.set_health(plan.placements[0].id, false);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Failed);
    let old = (**cluster.state.job_spec(&spec.key, before[0].job_create_index, 0).unwrap()).clone();
    let plan = cluster.plan(&old, Trigger::DeploymentWatcher);
    assert_eq!(plan.counts(), (2, 2, 8), "the canaries go, and the others stay as they run");
    assert!(plan.placements.iter().all(|placement| canaries.contains(&placement.node)));
    assert!(plan.placements.iter().all(|placement| !placement.canary));
    cluster.begin(&plan);
    for row in live(&cluster, &spec, 2) {
        cluster.set_health(row.id, true);
    }
    let row = newest(&cluster, &spec);
    assert_eq!((row.job_version, row.status), (2, DeploymentStatus::Successful));
}

/// Without a version to go back to, a version that has failed goes no further, and is not tried again where it failed.
#[test]
fn a_version_that_fails_goes_no_further() {
    let (mut cluster, spec) = changed(3, 1, 0, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 1, 0));
    let failed = plan.placements[0].id;
    cluster.end(failed, ClientStatus::Failed);
    cluster.set_health(failed, false);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Failed);
    assert!(cluster.plan(&spec, Trigger::AllocFailure).is_no_op());
    assert_eq!(live(&cluster, &spec, 0).len(), 2);
}

/// While canaries wait, an instance of the older version that ended is run again in its own version.
#[test]
fn what_fails_beside_canaries_comes_back_in_its_own_version() {
    let (mut cluster, spec) = changed(5, 5, 20, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 1, 0));
    healthy(&mut cluster, &plan);
    let old = live(&cluster, &spec, 0)[0].clone();
    cluster.end(old.id, ClientStatus::Failed);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 0, 0));
    let placement = &plan.placements[0];
    assert_eq!((placement.node, placement.version, placement.canary), (old.node, Some(0), false));
    // A node that is new waits for the promotion.
    cluster.put_node(node(6));
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
}

/// What a rollout is to reach follows the nodes: one more, one less, and it ends well with those that are there.
#[test]
fn the_total_follows_the_nodes() {
    let (mut cluster, spec) = changed(4, 2, 0, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), total(&cluster, &spec)), ((2, 2, 0), 4));
    cluster.put_node(node(5));
    let more = step(&mut cluster, &spec);
    assert_eq!((more.counts(), total(&cluster, &spec)), ((1, 0, 0), 5));
    healthy(&mut cluster, &plan);
    healthy(&mut cluster, &more);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (2, 2, 0));
    cluster.set_health(plan.placements[0].id, true);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Running);
    let gone = plan.placements[1].node;
    let number = (1..=5).find(|number| NodeId(id(*number)) == gone).unwrap();
    cluster.change_node(number, |node| node.liveness = Liveness::Down);
    step(&mut cluster, &spec);
    assert_eq!(total(&cluster, &spec), 4);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Successful);
}
