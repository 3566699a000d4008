//! Canaries, promotions and failures of deployments, pass by pass (D3, facts 2.8 of Nomad).

use std::sync::Arc;

use fsm::{
    AllocationId, ClientStatus, Command, DeploymentId, JobKey, JobKind, JobSpec, Liveness, Plan,
    Trigger,
    deployment::{FailDeployment, PauseDeployment, PromoteDeployment},
    job::Constraint,
    resources::Resources,
    settings::{Preemption, SchedulerConfiguration},
};

use super::{
    Cluster,
    cluster::{PlanExt, update},
    job, node,
};

/// A service of `count` instances that is updated `max_parallel` at a time, with canaries.
pub(super) fn service(count: u32, max_parallel: u32, canaries: u32) -> JobSpec {
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = count;
    let mut strategy = update(max_parallel);
    strategy.canaries = canaries;
    spec.groups[0].update = Some(strategy);
    spec
}

pub(super) fn next(spec: &JobSpec, user: &str) -> JobSpec {
    let mut next = spec.clone();
    next.groups[0].tasks[0].user = user.into();
    next
}

/// A cluster on which the first version is healthy, and the second began with its canaries.
pub(super) fn begun(count: u32, canaries: u32) -> (Cluster, JobSpec, Plan) {
    begun_with(count, 2, canaries)
}

fn begun_with(count: u32, max_parallel: u32, canaries: u32) -> (Cluster, JobSpec, Plan) {
    let mut cluster = Cluster::with_nodes(20);
    let spec = service(count, max_parallel, canaries);
    cluster.run(&spec);
    let spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    (cluster, spec, plan)
}

/// The same with one canary, of instances that have a node each.
fn begun_on(nodes: u64, count: u32) -> (Cluster, JobSpec, Plan) {
    let mut cluster = Cluster::with_nodes(nodes);
    let mut spec = service(count, 1, 1);
    spec.groups[0].tasks[0].resources.cpu_mhz = 3_000;
    cluster.run(&spec);
    let spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    (cluster, spec, plan)
}

pub(super) fn deployment(cluster: &Cluster, spec: &JobSpec) -> DeploymentId {
    cluster.state.active_deployment(&spec.key).unwrap().id
}

pub(super) fn act(cluster: &mut Cluster, spec: &JobSpec, verb: &str) {
    let id = deployment(cluster, spec);
    cluster.commit(|evaluation| -> Command {
        match verb {
            "promote" => PromoteDeployment { id, groups: None, evaluation }.into(),
            "fail" => FailDeployment { id, evaluation }.into(),
            verb => PauseDeployment { id, pause: verb == "pause", evaluation }.into(),
        }
    });
}

pub(super) fn healthy(cluster: &mut Cluster, plan: &Plan) {
    for placement in &plan.placements {
        cluster.set_health(placement.id, true);
    }
}

/// Names of live allocations of a version, sorted.
pub(super) fn names(cluster: &Cluster, spec: &JobSpec, version: u64) -> Vec<u32> {
    let live = cluster.live(spec).into_iter().filter(|row| row.job_version == version);
    let mut names: Vec<_> = live.map(|row| row.name_index).collect();
    names.sort_unstable();
    names
}

#[test]
fn d3_canaries_come_first_and_nothing_else_is_touched() {
    let (mut cluster, spec, plan) = begun(5, 2);
    assert_eq!((plan.counts(), plan.names()), ((2, 0, 0), vec![0, 1]));
    assert!(plan.placements.iter().all(|placement| placement.canary));
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    healthy(&mut cluster, &plan);
    let waits = cluster.plan(&spec, Trigger::NodeUpdate);
    assert!(waits.is_no_op(), "it waits for a person: {waits:?}");
    assert_eq!(names(&cluster, &spec, 0), [0, 1, 2, 3, 4]);
}

/// The instances whose names the canaries have go first, then the rest in steps; in the end names
/// are those of the count.
#[test]
fn d3_a_promotion_replaces_the_rest_in_steps() {
    let (mut cluster, spec, plan) = begun(5, 2);
    healthy(&mut cluster, &plan);
    act(&mut cluster, &spec, "promote");
    let step = cluster.plan(&spec, Trigger::DeploymentWatcher);
    assert_eq!(step.counts(), (2, 4, 0), "two are too many, and two are replaced");
    cluster.begin(&step);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    healthy(&mut cluster, &step);
    let step = cluster.plan(&spec, Trigger::DeploymentWatcher);
    assert_eq!(step.counts(), (1, 1, 0));
    cluster.apply(&step);
    assert_eq!(names(&cluster, &spec, 1), [0, 1, 2, 3, 4]);
    assert!(cluster.state.active_deployment(&spec.key).is_none(), "it was successful");
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
}

/// Canaries of a deployment that failed, or of an older version, end; the others stay.
#[test]
fn d3_canaries_of_a_deployment_that_is_over_end() {
    for newer in [false, true] {
        let (mut cluster, mut spec, _) = begun(5, 2);
        let plan = if newer {
            spec = next(&spec, "three");
            cluster.register(&spec);
            cluster.plan(&spec, Trigger::JobRegister)
        } else {
            act(&mut cluster, &spec, "fail");
            cluster.plan(&spec, Trigger::DeploymentWatcher)
        };
        let canaries = if newer { 2 } else { 0 };
        assert_eq!(plan.counts(), (canaries, 2, 0), "newer: {newer}");
        cluster.begin(&plan);
        assert_eq!(names(&cluster, &spec, 0), [0, 1, 2, 3, 4]);
        assert_eq!(names(&cluster, &spec, 1), [0; 0]);
    }
}

/// While canaries wait, and after the failure, an instance that is lost comes back in its own
/// version, on a node that has what that version needs.
#[test]
fn an_instance_lost_during_a_rollout_comes_back_in_its_own_version() {
    for fails in [false, true] {
        let (mut cluster, spec, plan) = begun(5, 1);
        healthy(&mut cluster, &plan);
        if fails {
            act(&mut cluster, &spec, "fail");
            let ends = cluster.plan(&spec, Trigger::DeploymentWatcher);
            cluster.apply(&ends);
        }
        let lost = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().node;
        let shared = cluster.live(&spec).into_iter().filter(|row| row.node == lost);
        let count = shared.clone().filter(|row| row.job_version == 0).count();
        let of_new = shared.filter(|row| row.job_version == 1).count();
        cluster.change_node(u64::from(lost.0[15]), |node| node.liveness = Liveness::Down);
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        let old: Vec<_> =
            plan.placements.iter().filter(|placement| placement.version == Some(0)).collect();
        assert_eq!(old.len(), count, "fails: {fails}");
        assert_eq!(plan.placements.len(), count + of_new);
        cluster.apply(&plan);
        assert_eq!(names(&cluster, &spec, 0), [0, 1, 2, 3, 4]);
    }
}

/// A failed canary is replaced as the policy says, by a canary; one that is drained moves.
#[test]
fn canaries_are_replaced_by_canaries() {
    let (mut cluster, spec, plan) = begun(5, 2);
    let [failed, moved]: [AllocationId; 2] = [plan.placements[0].id, plan.placements[1].id];
    cluster.end(failed, ClientStatus::Failed);
    cluster.change(moved, |row| row.transition.migrate = true);
    let early = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(early.counts(), (1, 1, 0), "the failed one waits for its time");
    assert_eq!(early.waiting().len(), 1);
    assert!(early.placements[0].canary);
    cluster.now += 3_600_000;
    let due = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(due.counts(), (2, 2, 0));
    assert!(due.placements.iter().all(|placement| placement.canary));
    assert_eq!(due.names(), [0, 1]);
}

/// A paused deployment replaces and adds nothing; what is lost comes back.
#[test]
fn a_paused_deployment_waits() {
    let mut cluster = Cluster::with_nodes(20);
    let spec = service(6, 2, 0);
    cluster.run(&spec);
    let spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.counts(), (2, 2, 0));
    cluster.begin(&plan);
    act(&mut cluster, &spec, "pause");
    healthy(&mut cluster, &plan);
    assert!(cluster.plan(&spec, Trigger::DeploymentWatcher).is_no_op());
    act(&mut cluster, &spec, "resume");
    assert_eq!(cluster.plan(&spec, Trigger::DeploymentWatcher).counts(), (2, 2, 0));
}

/// What a failed deployment placed is not tried again when it fails; a first version that failed
/// places nothing more.
#[test]
fn a_failed_deployment_places_nothing_more() {
    let mut cluster = Cluster::with_nodes(20);
    let spec = service(4, 2, 0);
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    act(&mut cluster, &spec, "fail");
    cluster.end(plan.placements[0].id, ClientStatus::Failed);
    cluster.end(plan.placements[1].id, ClientStatus::Complete);
    cluster.now += 3_600_000;
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert!(plan.is_no_op() && plan.waiting().is_empty(), "{plan:?}");
}

/// A group that begins with canaries does not hold up one without.
#[test]
fn groups_go_their_own_ways() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(3, 1, 1);
    let mut other = spec.groups[0].clone();
    other.name = "api".into();
    other.update = Some(update(2));
    spec.groups.push(other);
    cluster.run(&spec);
    for group in &mut spec.groups {
        group.tasks[0].user = "two".into();
    }
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    let of = |name: &str| plan.placements.iter().filter(|one| &*one.group == name).count();
    assert_eq!((of("web"), of("api"), plan.stops.len()), (1, 2, 2));
}

/// What is replaced in its older version keeps away from the hosts of all versions.
#[test]
fn an_older_version_is_placed_with_regard_to_all_versions() {
    let mut cluster = Cluster::with_nodes(4);
    let mut spec = service(3, 1, 1);
    spec.groups[0].constraints.push(Constraint {
        left: "".into(),
        operand: "distinct_hosts".into(),
        right: "true".into(),
    });
    cluster.run(&spec);
    let spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    let failed = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().id;
    cluster.end(failed, ClientStatus::Failed);
    cluster.now += 3_600_000;
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    let taken: Vec<_> = cluster.live(&spec).iter().map(|row| row.node).collect();
    assert_eq!((taken.len(), plan.placements.len()), (3, 1));
    assert!(!taken.contains(&plan.placements[0].node), "{plan:?}");
}

/// What comes back in its older version heeds the constraints that the job had then, also if the
/// current version has others.
#[test]
fn an_older_version_heeds_the_constraints_of_its_own_job() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = service(3, 1, 1);
    let hosts = Constraint { left: "".into(), operand: "distinct_hosts".into(), right: "".into() };
    spec.constraints.push(hosts);
    cluster.run(&spec);
    let mut spec = next(&spec, "two");
    spec.constraints.clear();
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    let old = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().clone();
    cluster.end(old.id, ClientStatus::Lost);
    let number = u64::from(old.node.0[15]);
    cluster.change_node(number, |node| node.eligibility.ineligible = true);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!((plan.counts(), plan.queued()), ((0, 0, 0), 1), "the others have their hosts");
}

/// What the job asked of all its groups together in that version counts the instances of all of
/// them.
#[test]
fn an_older_version_keeps_away_from_the_other_groups_of_its_job() {
    for (left, operand) in [("", "distinct_hosts"), ("${node.unique.id}", "distinct_property")] {
        let mut cluster = Cluster::with_nodes(5);
        let mut spec = service(2, 1, 1);
        let mut other = spec.groups[0].clone();
        (other.name, other.count) = ("other".into(), 3);
        spec.groups.push(other);
        let apart = |right: &str| Constraint {
            left: left.into(),
            operand: operand.into(),
            right: right.into(),
        };
        spec.constraints.push(apart(if left.is_empty() { "true" } else { "1" }));
        cluster.run(&spec);
        let mut spec = next(&spec, "two");
        spec.constraints.clear();
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        cluster.begin(&plan);
        let mut live = cluster.live(&spec).into_iter();
        let lost = live.find(|row| row.job_version == 0 && &*row.group == "web").unwrap().clone();
        drop(live);
        cluster.end(lost.id, ClientStatus::Lost);
        let number = u64::from(lost.node.0[15]);
        cluster.change_node(number, |node| node.eligibility.ineligible = true);
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        let of_old = plan.placements.iter().filter(|one| one.version == Some(0));
        assert_eq!(
            (of_old.count(), plan.queued()),
            (0, 1),
            "{operand}: the others have their hosts"
        );
    }
}

/// What is replaced in its older version is on its way out: it evicts nothing, whatever the
/// priority of the current version is.
#[test]
fn an_older_version_evicts_nothing() {
    let mut cluster = Cluster::with_nodes(3);
    let preemption = Preemption { service: true, ..Preemption::default() };
    let configuration = SchedulerConfiguration { preemption, ..SchedulerConfiguration::default() };
    fsm::testing::put(&mut cluster.state, &configuration);
    let mut spec = service(2, 1, 1);
    spec.priority = 10;
    cluster.run(&spec);
    let mut spec = next(&spec, "two");
    spec.priority = 90;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    let mut filler = job(JobKind::Service);
    filler.key = JobKey::new("default", "filler");
    filler.priority = 50;
    filler.groups[0].tasks[0].resources.cpu_mhz = 4_000;
    cluster.register(&filler);
    for number in 1..=3 {
        cluster.allocation(&filler, u32::try_from(number).unwrap(), number);
    }
    let [old, canary] = [0, 1].map(|version| {
        cluster.live(&spec).into_iter().find(|row| row.job_version == version).unwrap().id
    });
    for id in [old, canary] {
        cluster.end(id, ClientStatus::Failed);
    }
    cluster.now += 3_600_000;
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(plan.placements.len(), 1, "{plan:?}");
    assert!(plan.placements[0].canary && !plan.placements[0].preempts.is_empty(), "{plan:?}");
}

/// A rollout that is failed after its promotion, and taken back: the promoted canary has the name
/// of an instance that goes on, and only one of both stays.
#[test]
fn a_promoted_canary_that_is_taken_back_leaves_its_name() {
    for count in [3, 4] {
        let mut cluster = Cluster::with_nodes(20);
        let mut spec = service(3, 1, 1);
        spec.groups[0].update.as_mut().unwrap().auto_revert = true;
        cluster.run(&spec);
        let next = next(&spec, "two");
        cluster.register(&next);
        let plan = cluster.plan(&next, Trigger::JobRegister);
        cluster.begin(&plan);
        healthy(&mut cluster, &plan);
        act(&mut cluster, &next, "promote");
        act(&mut cluster, &next, "fail");
        // Back to the first version; the second time somebody has asked for one more meanwhile.
        spec.groups[0].count = count;
        if count > 3 {
            cluster.register(&spec);
        }
        let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
        cluster.apply(&plan);
        if count > 3 {
            // What is left of the other version is replaced after a canary.
            act(&mut cluster, &spec, "promote");
            let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
            cluster.apply(&plan);
        }
        let version = cluster.state.jobs().get(&spec.key).unwrap().version;
        let expected: Vec<u32> = (0..count).collect();
        assert_eq!(names(&cluster, &spec, version), expected);
    }
}

/// Two of four have failed for good; the next version changes nothing that they would need new
/// instances for, but it is another attempt. They come first and use up the step: those that run
/// are left alone until both are healthy again.
#[test]
fn a_failed_instance_is_tried_again_by_a_new_version() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(4, 2, 0);
    spec.groups[0].reschedule = None;
    cluster.run(&spec);
    let mut spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    for placement in &plan.placements {
        cluster.end(placement.id, ClientStatus::Failed);
        cluster.set_health(placement.id, false);
    }
    assert!(cluster.plan(&spec, Trigger::AllocFailure).is_no_op(), "the deployment has failed");
    spec.priority += 1;
    cluster.register(&spec);
    let first = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!((first.counts(), first.names()), ((2, 2, 0), plan.names()));
    let failed: Vec<_> = plan.placements.iter().map(|placement| placement.id).collect();
    assert!(first.stops.iter().all(|stop| failed.contains(&stop.id)));
    cluster.begin(&first);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    healthy(&mut cluster, &first);
    let second = cluster.plan(&spec, Trigger::DeploymentWatcher);
    assert_eq!(second.counts(), (2, 2, 0));
    cluster.apply(&second);
    assert_eq!(names(&cluster, &spec, 2), [0, 1, 2, 3]);
    assert!(cluster.state.active_deployment(&spec.key).is_none(), "it was successful");
}

/// An instance that has failed, or has not started yet, and finds no room is down, and counts:
/// nothing else is taken down for it.
#[test]
fn an_instance_that_is_not_well_and_has_no_room_uses_up_the_step() {
    for how in [ClientStatus::Failed, ClientStatus::Pending] {
        let mut cluster = Cluster::with_nodes(2);
        let mut spec = service(2, 1, 0);
        spec.groups[0].reschedule = None;
        spec.groups[0].tasks[0].resources.cpu_mhz = 3_000;
        cluster.run(&spec);
        let down = cluster.live(&spec)[0].clone();
        cluster.end(down.id, how);
        let number = u64::from(down.node.0[15]);
        cluster.change_node(number, |node| node.eligibility.ineligible = true);
        let spec = next(&spec, "two");
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert_eq!((plan.counts(), plan.queued(), plan.blocked().len()), ((0, 0, 0), 1, 1));
        cluster.apply(&plan);
        cluster.change_node(number, |node| node.eligibility.ineligible = false);
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        assert_eq!((plan.counts(), plan.placements[0].previous), ((1, 1, 0), Some(down.id)));
    }
}

/// What only has to be tried again asks for no canaries: the version is that of those that run.
#[test]
fn a_failed_instance_alone_is_no_reason_for_canaries() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(4, 1, 2);
    spec.groups[0].reschedule = None;
    cluster.run(&spec);
    let failed = cluster.live(&spec)[0].id;
    cluster.end(failed, ClientStatus::Failed);
    spec.priority += 1;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!((plan.counts(), plan.placements[0].canary), ((1, 1, 3), false));
    cluster.apply(&plan);
    assert!(cluster.state.active_deployment(&spec.key).is_none(), "it was successful");
}

/// A smaller count ends first what serves nobody. What is left has numbers below the count once it
/// is replaced.
#[test]
fn a_smaller_count_ends_first_what_is_not_well() {
    for how in [ClientStatus::Failed, ClientStatus::Pending] {
        let mut cluster = Cluster::with_nodes(20);
        let mut spec = service(4, 1, 0);
        spec.groups[0].reschedule = None;
        cluster.run(&spec);
        let down = cluster.live(&spec).into_iter().filter(|row| row.name_index < 2);
        let down: Vec<_> = down.map(|row| row.id).collect();
        for id in &down {
            cluster.end(*id, how);
        }
        spec.groups[0].count = 3;
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert!(!plan.stops.is_empty());
        assert!(plan.stops.iter().all(|stop| down.contains(&stop.id)), "{plan:?}");
        cluster.apply(&plan);
        let mut spec = next(&spec, "two");
        spec.groups[0].update = Some(update(3));
        cluster.run(&spec);
        assert_eq!(names(&cluster, &spec, 2), [0, 1, 2], "{how:?}");
    }
}

/// A promotion ends first what has failed of the older version, and what runs beside the promoted
/// canaries takes the free names.
#[test]
fn a_promotion_ends_first_what_has_failed() {
    let (mut cluster, spec, plan) = begun_with(10, 1, 2);
    healthy(&mut cluster, &plan);
    let old = cluster.live(&spec).into_iter().filter(|row| row.job_version == 0);
    let failed: Vec<_> = old.filter(|row| row.name_index > 7).map(|row| row.id).collect();
    for id in &failed {
        cluster.end(*id, ClientStatus::Failed);
    }
    act(&mut cluster, &spec, "promote");
    let mut plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
    let of_older = |cluster: &Cluster| names(cluster, &spec, 0).len();
    assert_eq!((plan.counts(), of_older(&cluster)), ((1, 3, 0), 8));
    while !plan.is_no_op() {
        cluster.apply(&plan);
        assert!(cluster.live(&spec).len() == 10, "{plan:?}");
        plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
    }
    assert_eq!(names(&cluster, &spec, 1), (0..10).collect::<Vec<_>>());
}

/// What an agent has forgotten comes back while canaries wait and after a failure, although nothing
/// tells what it takes the place of.
#[test]
fn an_instance_forgotten_by_its_agent_comes_back_during_a_rollout() {
    for fails in [false, true] {
        let (mut cluster, spec, plan) = begun(5, 1);
        healthy(&mut cluster, &plan);
        if fails {
            act(&mut cluster, &spec, "fail");
            let ends = cluster.plan(&spec, Trigger::DeploymentWatcher);
            cluster.apply(&ends);
        }
        let old = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().id;
        cluster.end(old, ClientStatus::Lost);
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        let found: Vec<_> = plan.placements.iter().map(|one| one.version).collect();
        assert_eq!(found, [Some(0)], "fails: {fails}");
    }
}

/// What was lost and found no room is no predecessor any more in the next pass, and comes back
/// nevertheless.
#[test]
fn an_instance_lost_without_room_comes_back_when_there_is_some() {
    let (mut cluster, spec, plan) = begun_on(3, 2);
    healthy(&mut cluster, &plan);
    let on = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().node;
    cluster.change_node(u64::from(on.0[15]), |node| node.liveness = Liveness::Down);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!((plan.counts(), plan.queued()), ((0, 1, 0), 1));
    // The canaries lack nothing: their time goes on.
    assert!(plan.outcome.as_ref().unwrap().waiting.is_empty());
    cluster.begin(&plan);
    cluster.put_node(node(4));
    assert_eq!(cluster.plan(&spec, Trigger::NodeUpdate).placements.len(), 1);
}

/// What the rollout itself lacks is told apart from that.
#[test]
fn canaries_without_room_wait() {
    let (_, _, plan) = begun_on(2, 2);
    assert_eq!((plan.counts(), plan.queued()), ((0, 0, 0), 1));
    assert!(plan.outcome.unwrap().waiting.contains("web"));
}

/// Of an older version comes back what that wanted, and no more than is wanted now: a larger count
/// comes with the new version.
#[test]
fn instances_that_come_back_during_a_rollout_are_bounded_by_both_counts() {
    for (count, lost, back) in [(5, 2, 2), (7, 2, 2), (4, 2, 1), (2, 2, 0)] {
        let mut cluster = Cluster::with_nodes(20);
        let spec = service(5, 1, 1);
        cluster.run(&spec);
        let mut spec = next(&spec, "two");
        spec.groups[0].count = count;
        let old: Vec<_> = cluster.live(&spec).into_iter().map(|row| row.id).collect();
        for id in old.into_iter().take(lost) {
            cluster.end(id, ClientStatus::Lost);
        }
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        let (canaries, others): (Vec<_>, Vec<_>) =
            plan.placements.iter().partition(|one| one.canary);
        assert_eq!((canaries.len(), others.len()), (1, back), "{count}");
        assert!(others.iter().all(|one| one.version == Some(0)), "{plan:?}");
        cluster.begin(&plan);
        assert_eq!(names(&cluster, &spec, 0).len(), count.min(5) as usize);
        assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
        act(&mut cluster, &spec, "fail");
        let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
        assert_eq!(plan.counts(), (0, 1, 0), "the canary ends, and nothing takes its place");
        cluster.begin(&plan);
        assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    }
}

/// Instances that come back in an older version, with names beyond its count, are among those that
/// it wants: no free name comes beside them.
#[test]
fn an_older_version_comes_back_as_often_as_it_wants() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(4, 2, 1);
    cluster.run(&spec);
    let first = cluster.live(&spec).into_iter().find(|row| row.name_index == 0).unwrap().id;
    cluster.end(first, ClientStatus::Lost);
    spec.groups[0].count = 3;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    assert_eq!(names(&cluster, &spec, 1), [1, 2, 3]);
    let mut spec = next(&spec, "two");
    spec.groups[0].count = 4;
    cluster.register(&spec);
    let old: Vec<_> = cluster.live(&spec).into_iter().map(|row| row.id).collect();
    for id in old.into_iter().take(2) {
        cluster.end(id, ClientStatus::Lost);
    }
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    cluster.begin(&plan);
    assert_eq!(names(&cluster, &spec, 1).len(), 3);
}

/// A paused deployment fills what is missing, whatever it was, with the older version; a promoted
/// canary that failed is another matter: it holds its place.
#[test]
fn a_paused_deployment_fills_up() {
    let mut cluster = Cluster::with_nodes(20);
    let spec = service(6, 2, 0);
    cluster.run(&spec);
    let spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    act(&mut cluster, &spec, "pause");
    healthy(&mut cluster, &plan);
    let old = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().id;
    for id in [old, plan.placements[0].id] {
        cluster.end(id, ClientStatus::Complete);
    }
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    let versions: Vec<_> = plan.placements.iter().map(|one| one.version).collect();
    assert_eq!(versions, [Some(0), Some(0)]);
    cluster.begin(&plan);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
}

/// When nothing of an older version is left, the last stable one stands in: not if the job was
/// stopped since, nor in a group that is new.
#[test]
fn the_last_stable_version_stands_in_when_nothing_is_left() {
    for (stopped, is_new) in [(false, false), (true, false), (false, true)] {
        let mut cluster = Cluster::with_nodes(20);
        let mut spec = service(2, 2, 0);
        cluster.run(&spec);
        let name = if is_new { "api" } else { "web" };
        if stopped {
            cluster.change_job(&spec.key, |row| row.stop = true);
            let plan = cluster.plan(&spec, Trigger::JobDeregister);
            cluster.apply(&plan);
            cluster.register(&spec);
            cluster.change_version(&spec, |row| row.stop = true);
        }
        spec.groups[0].name = name.into();
        let spec = next(&spec, "two");
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert_eq!(plan.placements.len(), 2);
        cluster.begin(&plan);
        act(&mut cluster, &spec, "fail");
        for placement in &plan.placements {
            cluster.end(placement.id, ClientStatus::Complete);
        }
        let plan = cluster.plan(&spec, Trigger::AllocFailure);
        let versions: Vec<_> = plan.placements.iter().map(|one| one.version).collect();
        let expected = if stopped || is_new { vec![] } else { vec![Some(0), Some(0)] };
        assert_eq!(versions, expected, "stopped: {stopped}, new: {is_new}");
    }
}

/// A drain ends an instance of a version whose deployment failed, and no other node takes that
/// version: the older one stands in at once, or waits for room.
#[test]
fn an_older_version_stands_in_for_what_a_drain_ends() {
    for has_room in [true, false] {
        let mut cluster = Cluster::with_nodes(2);
        let spec = service(1, 1, 0);
        cluster.run(&spec);
        cluster.change_node(2, |node| node.eligibility.ineligible = true);
        let mut spec = next(&spec, "two");
        let larger = &mut spec.groups[0].tasks[0].resources;
        larger.memory_mb *= 2;
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        cluster.begin(&plan);
        act(&mut cluster, &spec, "fail");
        // The other node has room for the older version only.
        let least = spec.groups[0].tasks[0].resources.memory_mb / 2;
        cluster.change_node(2, |node| {
            node.eligibility.ineligible = !has_room;
            Arc::make_mut(&mut node.description).resources.total.memory_mb = least;
        });
        cluster.change(plan.placements[0].id, |row| row.transition.migrate = true);
        cluster.change_node(1, |node| node.eligibility.ineligible = true);
        let plan = cluster.plan(&spec, Trigger::NodeDrain);
        let versions: Vec<_> = plan.placements.iter().map(|one| one.version).collect();
        assert_eq!(versions, if has_room { vec![Some(0)] } else { vec![] });
        assert_eq!((plan.stops.len(), plan.queued()), (1, u32::from(!has_room)));
        cluster.begin(&plan);
        cluster.change_node(2, |node| node.eligibility.ineligible = false);
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        assert_eq!(plan.placements.len(), usize::from(!has_room), "what was wanted, later");
    }
}

/// A drain ends an instance of an older version that no other node takes, while one of a still
/// older version holds its place. The next pass would ask for that one: it stands in at once, or
/// waits for room.
#[test]
fn a_still_older_version_stands_in_for_what_a_drain_ends() {
    for has_room in [true, false] {
        let mut cluster = Cluster::with_nodes(3);
        let mut spec = service(2, 1, 0);
        spec.groups[0].reschedule = None;
        cluster.run(&spec);
        let mut rows = cluster.live(&spec);
        rows.sort_by_key(|row| row.name_index);
        let (moved, failed) = (rows[0].id, rows[1].id);
        let mut spec = next(&spec, "two");
        spec.groups[0].constraints.push(Constraint {
            left: "${node.unique.name}".into(),
            operand: "=".into(),
            right: "no such node".into(),
        });
        cluster.register(&spec);
        // Version 1 has taken one place, and nothing else takes it.
        cluster.change(moved, |row| row.job_version = 1);
        let spec = next(&spec, "three");
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        cluster.begin(&plan);
        act(&mut cluster, &spec, "fail");
        cluster.end(failed, ClientStatus::Failed);
        cluster.change(moved, |row| row.transition.migrate = true);
        for number in 1..=3 {
            cluster.change_node(number, |node| node.eligibility.ineligible = !has_room);
        }
        let plan = cluster.plan(&spec, Trigger::NodeDrain);
        let versions: Vec<_> = plan.placements.iter().map(|one| one.version).collect();
        assert_eq!(versions, if has_room { vec![Some(0)] } else { vec![] });
        assert_eq!((plan.stops.len(), plan.queued()), (1, u32::from(!has_room)));
        cluster.begin(&plan);
        for number in 1..=3 {
            cluster.change_node(number, |node| node.eligibility.ineligible = false);
        }
        let plan = cluster.plan(&spec, Trigger::NodeUpdate);
        assert_eq!(plan.placements.len(), usize::from(!has_room), "what was wanted, later");
    }
}

/// An older version stands in for one of two that end: the other waits for room.
#[test]
fn an_instance_that_nothing_stands_in_for_waits() {
    let mut cluster = Cluster::with_nodes(2);
    let spec = service(1, 2, 0);
    cluster.run(&spec);
    let mut spec = next(&spec, "two");
    spec.groups[0].count = 2;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    cluster.begin(&plan);
    act(&mut cluster, &spec, "fail");
    let rows: Vec<_> = cluster.live(&spec).into_iter().map(|row| row.id).collect();
    for id in rows {
        cluster.change(id, |row| {
            row.job_version = 1;
            row.transition.migrate = true;
        });
    }
    // The other node has room for one of the older version, and for none of the current one.
    let least = spec.groups[0].tasks[0].resources.memory_mb;
    cluster.change_version(&spec, |row| {
        let spec = Arc::make_mut(&mut row.spec);
        spec.groups[0].tasks[0].resources.memory_mb *= 2;
    });
    cluster.change_node(1, |node| node.eligibility.ineligible = true);
    cluster.change_node(2, |node| {
        Arc::make_mut(&mut node.description).resources.total.memory_mb = least;
    });
    let plan = cluster.plan(&spec, Trigger::NodeDrain);
    assert_eq!(plan.placements.iter().map(|one| one.version).collect::<Vec<_>>(), [Some(0)]);
    assert_eq!((plan.queued(), plan.blocked().len()), (1, 1));
}

/// An evaluation that waits for room for the current version does not wait for room for the older
/// one that comes back once the deployment has failed: it sleeps through gains of classes that are
/// of no use to it.
#[test]
fn an_evaluation_that_waits_for_the_current_version_does_not_wait_for_an_older_one() {
    let mut cluster = Cluster::with_nodes(1);
    let spec = service(1, 1, 0);
    cluster.run(&spec);
    let old = cluster.live(&spec)[0].id;
    let mut spec = next(&spec, "two");
    spec.groups[0].constraints.push(Constraint {
        left: "${attr.kind}".into(),
        operand: "=".into(),
        right: "big".into(),
    });
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    let [waiting] = plan.blocked()[..] else { panic!("nobody waits: {plan:?}") };
    assert!(waiting.class_eligibility.values().all(|eligible| !eligible));
    cluster.begin(&plan);
    cluster.put_evaluation(waiting.clone());
    act(&mut cluster, &spec, "fail");
    cluster.end(old, ClientStatus::Lost);
    cluster.change_node(1, |node| node.eligibility.ineligible = true);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!(plan.queued(), 1);
    let [waiting] = plan.blocked()[..] else { panic!("nobody waits for the older: {plan:?}") };
    assert!(waiting.class_eligibility.values().all(|eligible| *eligible));
}

/// A group that is updated all at once is no part of the deployment: what that comes to is nothing
/// to it.
#[test]
fn a_group_without_steps_goes_on_while_a_deployment_is_over() {
    for verb in ["fail", "pause"] {
        let mut cluster = Cluster::with_nodes(20);
        let mut spec = service(2, 1, 1);
        let mut other = spec.groups[0].clone();
        other.name = "api".into();
        other.update = None;
        spec.groups.push(other);
        cluster.run(&spec);
        let mut spec = next(&spec, "two");
        spec.groups[1].tasks[0].user = "two".into();
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        assert_eq!(plan.counts(), (3, 2, 0));
        cluster.begin(&plan);
        act(&mut cluster, &spec, verb);
        let ends = cluster.plan(&spec, Trigger::DeploymentWatcher);
        cluster.begin(&ends);
        let gone = plan.placements.iter().find(|one| &*one.group == "api").unwrap().id;
        cluster.end(gone, ClientStatus::Complete);
        let plan = cluster.plan(&spec, Trigger::AllocFailure);
        assert_eq!(plan.placements.len(), 1, "{verb}");
        assert_eq!((&*plan.placements[0].group, plan.placements[0].version), ("api", None));
    }
}

/// A version whose instance failed is stopped, and the job run again with a mended one: nothing of
/// the first counts, or comes back.
#[test]
fn a_stopped_job_leaves_nothing_that_counts() {
    for canaries in [0, 1] {
        let mut cluster = Cluster::with_nodes(20);
        let spec = service(3, 1, canaries);
        cluster.run(&spec);
        let failed = cluster.live(&spec)[0].id;
        cluster.end(failed, ClientStatus::Failed);
        cluster.change_job(&spec.key, |row| row.stop = true);
        let plan = cluster.plan(&spec, Trigger::JobDeregister);
        assert_eq!(plan.counts(), (0, 3, 0));
        cluster.apply(&plan);
        let mended = next(&spec, "two");
        cluster.register(&mended);
        let plan = cluster.plan(&mended, Trigger::JobRegister);
        assert_eq!((plan.counts(), plan.names()), ((3, 0, 0), vec![0, 1, 2]));
        assert!(plan.placements.iter().all(|one| one.version.is_none() && !one.canary));
    }
}

/// The canary of a version that a promoted canary takes in place finds no room at first: it does
/// not take that one's name later.
#[test]
fn a_canary_that_comes_late_has_a_name_of_its_own() {
    let (mut cluster, mut spec, plan) = begun_on(4, 3);
    healthy(&mut cluster, &plan);
    act(&mut cluster, &spec, "promote");
    spec.groups[0].count = 5;
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!((plan.counts(), plan.queued()), ((0, 0, 1), 1));
    cluster.begin(&plan);
    cluster.put_node(node(5));
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!((plan.placements.len(), plan.placements[0].canary), (1, true));
    assert_eq!(plan.names(), [1]);
}

/// A failed instance whose place is gone with a smaller count ends, and its name is free.
#[test]
fn failed_instances_beyond_the_count_end() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(3, 1, 0);
    cluster.run(&spec);
    let failed = cluster.live(&spec).into_iter().find(|row| row.name_index == 0).unwrap().id;
    cluster.end(failed, ClientStatus::Failed);
    // Its delay is over, and no pass has found room for it.
    cluster.now += 3_600_000;
    spec.groups[0].count = 2;
    let spec = next(&spec, "two");
    cluster.register(&spec);
    for _ in 0..2 {
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        cluster.apply(&plan);
    }
    assert!(cluster.get(failed).is_server_terminal());
    assert_eq!(names(&cluster, &spec, 1), [0, 1]);
}

/// Numbers are below the count also where the highest of the older ones go on.
#[test]
fn canaries_and_successors_have_numbers_below_the_count() {
    let begin = |canaries| {
        let mut cluster = Cluster::with_nodes(20);
        let mut spec = service(3, 2, canaries);
        spec.groups[0].reschedule = None;
        cluster.run(&spec);
        let low = cluster.live(&spec).into_iter().find(|row| row.name_index == 0).unwrap().id;
        cluster.end(low, ClientStatus::Failed);
        spec.groups[0].count = 2;
        (cluster, spec)
    };
    let (mut cluster, spec) = begin(2);
    let spec = next(&spec, "two");
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.names(), [0, 1]);
    let (mut cluster, spec) = begin(0);
    cluster.run(&spec);
    assert_eq!(names(&cluster, &spec, 1), [1, 2], "what runs keeps its number");
    let moved = cluster.live(&spec).into_iter().find(|row| row.name_index == 2).unwrap().id;
    cluster.change(moved, |row| row.transition.migrate = true);
    assert_eq!(cluster.plan(&spec, Trigger::NodeDrain).names(), [0]);
}

/// The last step of a version that was successful already: its deployment wants what is left to be
/// done.
#[test]
fn a_deployment_after_a_successful_one_wants_what_is_left() {
    let (mut cluster, spec, plan) = begun(3, 3);
    healthy(&mut cluster, &plan);
    act(&mut cluster, &spec, "promote");
    assert!(cluster.state.active_deployment(&spec.key).is_none(), "it is successful");
    let lost = plan.placements[0].node;
    cluster.change_node(u64::from(lost.0[15]), |node| node.liveness = Liveness::Down);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    cluster.begin(&plan);
    let id = deployment(&cluster, &spec);
    let members = plan.placements.len();
    let goal = cluster.state.deployments().get(&id).unwrap().groups["web"].goal;
    assert_eq!(goal.total as usize, members);
    healthy(&mut cluster, &plan);
    assert!(cluster.state.active_deployment(&spec.key).is_none(), "it is successful again");
}

/// More than a plan holds take the version as they run: what is to be replaced is seen
/// nevertheless, and begins with a canary.
#[test]
fn a_plan_full_of_updates_in_place_begins_with_canaries() {
    const MORE_THAN_A_PLAN: u32 = 5_001;
    let mut cluster = Cluster::new();
    let mut large = node(1);
    let resources = &mut Arc::make_mut(&mut large.description).resources;
    resources.total = Resources { cpu_mhz: 1 << 30, memory_mb: 1 << 30, disk_mb: 1 << 30 };
    cluster.put_node(large);
    let spec = service(MORE_THAN_A_PLAN + 1, 1, 1);
    cluster.register(&next(&spec, "zero"));
    cluster.allocation(&spec, MORE_THAN_A_PLAN, 1);
    cluster.register(&spec);
    cluster.allocations_on(&spec, MORE_THAN_A_PLAN, 1);
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert!(plan.outcome.is_none() && !plan.in_place.is_empty());
    assert_eq!(plan.deployment.unwrap().goals["web"].canaries, 1);
}

/// A version that fails after its promotion, and was to be reverted, is replaced without canaries:
/// they would wait for a person while it serves. A version that somebody makes of it later has
/// some.
#[test]
fn the_way_back_after_a_promotion_has_no_canaries() {
    for reverts in [true, false] {
        let mut cluster = Cluster::with_nodes(20);
        let mut spec = service(4, 2, 1);
        if let Some(update) = &mut spec.groups[0].update {
            update.auto_revert = reverts;
        }
        cluster.run(&spec);
        let first = spec.clone();
        let spec = next(&spec, "two");
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        cluster.begin(&plan);
        healthy(&mut cluster, &plan);
        act(&mut cluster, &spec, "promote");
        let plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
        cluster.begin(&plan);
        act(&mut cluster, &spec, "fail");
        if !reverts {
            cluster.register(&first);
        }
        let plan = cluster.plan(&first, Trigger::DeploymentWatcher);
        let canaries = plan.placements.iter().filter(|one| one.canary).count();
        assert_eq!(canaries, usize::from(!reverts), "{plan:?}");
        let goals = plan.deployment.as_ref().map(|new| new.goals[&first.groups[0].name].canaries);
        assert_eq!(goals, Some(u32::from(!reverts)));
    }
}
