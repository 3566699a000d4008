//! Deployments of system jobs, pass by pass: canaries in percent of the nodes, steps by health,
//! nodes that come and go.

use fsm::{
    Allocation, ClientStatus, Deployment, DeploymentStatus, JobKind, JobSpec, JobVersion, Liveness,
    NodeId, Plan, Trigger,
    deployment::{FailDeployment, PromoteDeployment},
    job::Constraint,
};

use super::{
    Cluster,
    cluster::{PlanExt, update},
    id, job, node,
};

/// A healthy first version on so many nodes, and a second one that is registered and waits for its
/// first pass.
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

fn on_linux() -> Constraint {
    Constraint { left: "${attr.kernel.name}".into(), operand: "=".into(), right: "linux".into() }
}

/// A node on which nothing that is [`on_linux`] may run any more.
fn runs_plan9(cluster: &mut Cluster, node: u64) {
    cluster.change_node(node, |node| {
        let mut description = (*node.description).clone();
        description.attributes.insert("kernel.name".into(), "plan9".into());
        node.description = description.into();
        node.class = fsm::node::computed_class(&node.description);
    });
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

/// A quarter of ten nodes are three; two at a time. Nothing else changes before the promotion, and
/// then all do.
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

/// A canary that is unhealthy ends the rollout: its node goes back to the stable version, and no
/// other node was touched.
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

/// Without a version to go back to, a version that has failed goes no further, and is not tried
/// again where it failed.
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

/// While canaries wait, an instance of the older version that ended is run again in its own
/// version.
#[test]
fn an_instance_that_fails_beside_canaries_comes_back_in_its_own_version() {
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

/// What a rollout is to reach follows the nodes: one more, one less, and it ends well with those
/// that are there.
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

/// The newest deployment is marked as failed by a person.
fn fail(cluster: &mut Cluster, spec: &JobSpec) {
    let id = newest(cluster, spec).id;
    cluster.commit(|evaluation| FailDeployment { id, evaluation }.into());
}

fn promote(cluster: &mut Cluster, spec: &JobSpec) {
    let id = newest(cluster, spec).id;
    cluster.commit(|evaluation| PromoteDeployment { id, groups: None, evaluation }.into());
}

/// Canaries on all of `nodes` nodes, healthy, and not promoted.
fn canaries_everywhere(nodes: u64, max_parallel: u32) -> (Cluster, JobSpec) {
    let (mut cluster, spec) = changed(nodes, max_parallel, 100, false);
    while !live(&cluster, &spec, 0).is_empty() {
        let plan = step(&mut cluster, &spec);
        assert!(!plan.placements.is_empty());
        healthy(&mut cluster, &plan);
    }
    (cluster, spec)
}

/// Canaries of a version that nobody promoted are replaced like any other instance: the next
/// version begins with canaries too.
#[test]
fn a_version_after_unpromoted_canaries_begins_with_canaries() {
    for fails in [false, true] {
        let (mut cluster, mut spec) = canaries_everywhere(3, 3);
        if fails {
            fail(&mut cluster, &spec);
        }
        spec.groups[0].tasks[0].user = "three".into();
        cluster.register(&spec);
        let plan = step(&mut cluster, &spec);
        assert_eq!(plan.counts(), (3, 3, 0), "fails: {fails}");
        assert!(plan.placements.iter().all(|placement| placement.canary));
        healthy(&mut cluster, &plan);
        let row = newest(&cluster, &spec);
        let goal = row.groups.values().next().unwrap().goal;
        assert_eq!((row.status, goal.canaries, goal.total), (DeploymentStatus::Running, 3, 3));
        promote(&mut cluster, &spec);
        assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Successful);
    }
}

/// Two canaries of three nodes take the next version as they run. One node is left to be a canary,
/// and no more are asked for.
#[test]
fn no_more_canaries_are_asked_for_than_are_outdated() {
    let (mut cluster, mut spec) = changed(3, 3, 34, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (2, 2, 0));
    healthy(&mut cluster, &plan);
    spec.priority += 1;
    cluster.register(&spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 1, 2));
    assert!(plan.placements[0].canary);
    for row in live(&cluster, &spec, 2) {
        cluster.set_health(row.id, true);
    }
    promote(&mut cluster, &spec);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Successful);
}

/// S11: the nodes of canaries whose deployment a person fails go back to the stable version.
#[test]
fn s11_canaries_of_a_failed_deployment_give_their_nodes_back() {
    let (mut cluster, mut spec) = canaries_everywhere(3, 3);
    fail(&mut cluster, &spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (3, 3, 0));
    assert!(plan.placements.iter().all(|one| (one.version, one.canary) == (Some(0), false)));
    assert!(plan.deployment.is_none());
    assert_eq!((live(&cluster, &spec, 0).len(), live(&cluster, &spec, 1).len()), (3, 0));
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    // What goes back fails and is lost as others are, and a new version begins with canaries.
    let back = live(&cluster, &spec, 0)[0].clone();
    cluster.end(back.id, ClientStatus::Failed);
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.placements[0].version), ((1, 0, 0), Some(0)));
    spec.groups[0].tasks[0].user = "three".into();
    cluster.register(&spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (3, 3, 0));
    assert!(plan.placements.iter().all(|placement| placement.canary));
}

/// Healthy canaries go back `max_parallel` at a time, each step when what came back has run for
/// long enough, and not while another node is down.
#[test]
fn healthy_canaries_go_back_in_steps() {
    let (mut cluster, spec) = canaries_everywhere(3, 1);
    fail(&mut cluster, &spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.waiting().len()), ((1, 1, 0), 1));
    assert_eq!(plan.waiting()[0].wait_until, cluster.now + 10_000);
    let back = plan.placements[0].id;
    for (client, since) in [
        (ClientStatus::Pending, 0),
        (ClientStatus::Running, cluster.now),
        (ClientStatus::Failed, cluster.now),
    ] {
        cluster.change(back, |row| (row.client, row.client_at) = (client, since));
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        let again = usize::from(client == ClientStatus::Failed);
        assert_eq!(plan.counts(), (again, 0, 0), "{client:?}");
        assert!(plan.waiting().is_empty(), "one waits already");
    }
    cluster.change(back, |row| (row.client, row.client_at) = (ClientStatus::Running, 0));
    cluster.now += 10_000;
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.waiting().len()), ((1, 1, 0), 1), "the next has to wait too");
    cluster.now += 10_000;
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.waiting().len()), ((1, 1, 0), 0));
    assert_eq!(live(&cluster, &spec, 0).len(), 3);
}

/// A version that is bad on every node: where its canaries have failed, the stable version runs
/// again, at once.
#[test]
fn failed_canaries_give_their_nodes_back() {
    let (mut cluster, spec) = changed(3, 3, 100, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.placements.len(), 3);
    cluster.end(plan.placements[0].id, ClientStatus::Failed);
    cluster.end(plan.placements[1].id, ClientStatus::Failed);
    cluster.set_health(plan.placements[0].id, false);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Failed);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (3, 1, 0), "the third runs, and is not healthy");
    assert!(plan.placements.iter().all(|one| (one.version, one.canary) == (Some(0), false)));
    assert!(cluster.plan(&spec, Trigger::AllocFailure).is_no_op());
}

/// Without a version that is stable there is nothing to go back to: canaries go on, and those that
/// failed are not tried again.
#[test]
fn canaries_without_a_stable_version_stay() {
    let (mut cluster, spec) = canaries_everywhere(3, 3);
    let first = live(&cluster, &spec, 1)[0].clone();
    let versions = cluster.state.versions_of(&spec.key, first.job_create_index);
    let old = versions.into_iter().find(|version| version.version == 0).unwrap();
    fsm::testing::put(&mut cluster.state, &JobVersion { stable: false, ..(*old).clone() });
    fail(&mut cluster, &spec);
    cluster.end(first.id, ClientStatus::Failed);
    assert!(cluster.plan(&spec, Trigger::DeploymentWatcher).is_no_op());
}

/// Where the stable version may not run any more a canary ends; where it has no room, it goes on.
#[test]
fn a_canary_ends_where_the_stable_version_may_not_run() {
    let mut cluster = Cluster::with_nodes(2);
    let mut spec = job(JobKind::System);
    let mut strategy = update(2);
    strategy.canaries = 100;
    spec.groups[0].update = Some(strategy);
    spec.groups[0].constraints = vec![on_linux()];
    cluster.run(&spec);
    spec.groups[0].constraints.clear();
    spec.groups[0].tasks[0].resources.cpu_mhz /= 2;
    cluster.register(&spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.placements.len(), 2);
    healthy(&mut cluster, &plan);
    runs_plan9(&mut cluster, 1);
    let mut filler = job(JobKind::Service);
    filler.key = fsm::JobKey::new("default", "filler");
    filler.priority = 100;
    filler.groups[0].tasks[0].resources.cpu_mhz = 3_600;
    cluster.register(&filler);
    cluster.allocation(&filler, 0, 2);
    fail(&mut cluster, &spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!((plan.counts(), plan.blocked().len()), ((0, 1, 0), 1));
    let left = live(&cluster, &spec, 1);
    assert_eq!((left.len(), left[0].node), (1, NodeId(id(2))));
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
}

/// A version that comes in the middle of a step of another goes first where that one has just
/// begun.
#[test]
fn a_version_in_the_middle_of_a_step_goes_where_nothing_is_healthy_yet() {
    let (mut cluster, mut spec) = changed(8, 2, 0, false);
    let plan = step(&mut cluster, &spec);
    healthy(&mut cluster, &plan);
    let second = step(&mut cluster, &spec);
    spec.groups[0].tasks[0].user = "three".into();
    cluster.register(&spec);
    let third = cluster.plan(&spec, Trigger::JobRegister);
    let starting: Vec<_> = second.placements.iter().map(|one| one.id).collect();
    assert_eq!(third.counts(), (2, 2, 0));
    assert!(third.stops.iter().all(|stop| starting.contains(&stop.id)), "{third:?}");
}

/// A node that reboots is no proof that the version works.
#[test]
fn a_rollout_without_nodes_is_not_successful() {
    let (mut cluster, spec) = changed(1, 1, 0, false);
    step(&mut cluster, &spec);
    cluster.change_node(1, |node| node.liveness = Liveness::Down);
    step(&mut cluster, &spec);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Running);
    cluster.change_node(1, |node| node.liveness = Liveness::Ready);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 0, 0));
    healthy(&mut cluster, &plan);
    assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Successful);
}

/// Canaries that are wanted are as many as there are nodes for, while nodes go and come.
#[test]
fn canaries_follow_the_nodes() {
    for comes_back in [false, true] {
        let (mut cluster, spec) = canaries_everywhere(3, 3);
        cluster.change_node(1, |node| node.liveness = Liveness::Down);
        step(&mut cluster, &spec);
        if comes_back {
            cluster.change_node(1, |node| node.liveness = Liveness::Ready);
            let plan = step(&mut cluster, &spec);
            assert_eq!(plan.counts(), (1, 0, 0));
            assert_eq!(newest(&cluster, &spec).groups["web"].goal.canaries, 3);
            healthy(&mut cluster, &plan);
        }
        let id = newest(&cluster, &spec).id;
        cluster.commit(|evaluation| PromoteDeployment { id, groups: None, evaluation }.into());
        assert_eq!(newest(&cluster, &spec).status, DeploymentStatus::Successful);
    }
}

/// A canary that was lost with its node has another in its stead when the node comes back: it gets
/// the stable version.
#[test]
fn a_node_that_comes_back_gets_no_canary_too_many() {
    let (mut cluster, spec) = changed(5, 5, 40, false);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.placements.len(), 2);
    healthy(&mut cluster, &plan);
    let on = u64::from(plan.placements[0].node.0[15]);
    cluster.change_node(on, |node| node.liveness = Liveness::Down);
    step(&mut cluster, &spec);
    cluster.change_node(on, |node| node.liveness = Liveness::Ready);
    step(&mut cluster, &spec);
    let live = cluster.live(&spec);
    assert_eq!(live.iter().filter(|row| row.is_canary()).count(), 2);
    assert_eq!(live.len(), 5);
}

/// What has failed of the older version uses up the step: the new one takes its place first, and
/// what runs is left alone meanwhile.
#[test]
fn failed_instances_of_the_older_version_use_up_the_step() {
    let (mut cluster, spec) = changed(5, 1, 0, false);
    let failed: Vec<_> = live(&cluster, &spec, 0).into_iter().take(2).collect();
    for row in &failed {
        cluster.end(row.id, ClientStatus::Failed);
    }
    let plan = step(&mut cluster, &spec);
    let nodes: Vec<NodeId> = plan.placements.iter().map(|placement| placement.node).collect();
    assert_eq!(nodes, failed.iter().map(|row| row.node).collect::<Vec<_>>());
    assert_eq!(live(&cluster, &spec, 0).len(), 3);
    healthy(&mut cluster, &plan);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 1, 0));
}

/// Where the current version may not run an older one ends, and does not come back while canaries
/// wait for their promotion.
#[test]
fn an_older_version_stays_away_from_where_the_current_one_may_not_run() {
    let (mut cluster, mut spec) = changed(3, 1, 30, false);
    runs_plan9(&mut cluster, 1);
    spec.groups[0].constraints = vec![on_linux()];
    cluster.register(&spec);
    let plan = step(&mut cluster, &spec);
    assert_eq!(plan.counts(), (1, 2, 0), "a canary, and the end of the one that may not be there");
    assert!(plan.placements[0].canary && plan.placements[0].node != NodeId(id(1)));
    healthy(&mut cluster, &plan);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
}

/// A canary that finds no room where something runs goes where nothing does, before an older
/// version comes back there: a rollout that cannot begin would wait for ever.
#[test]
fn a_canary_without_room_goes_where_nothing_runs() {
    let (mut cluster, mut spec) = changed(2, 1, 50, false);
    let mut filler = job(JobKind::Service);
    filler.key = fsm::JobKey::new("default", "filler");
    filler.priority = 100;
    filler.groups[0].tasks[0].resources.cpu_mhz = 3_000;
    cluster.register(&filler);
    cluster.allocation(&filler, 0, 2);
    spec.groups[0].tasks[0].resources.cpu_mhz = 2_000;
    cluster.register(&spec);
    let first = live(&cluster, &spec, 0).into_iter().find(|row| row.node == NodeId(id(1))).unwrap();
    cluster.end(first.id, ClientStatus::Complete);
    let plan = step(&mut cluster, &spec);
    let placed: Vec<_> = plan.placements.iter().map(|one| (one.node, one.canary)).collect();
    assert_eq!(placed, [(NodeId(id(1)), true)]);
    assert_eq!(live(&cluster, &spec, 0).len(), 1);
}
