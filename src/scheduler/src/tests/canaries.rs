//! Deployments in exact numbers, ten instances unless a test says otherwise: the conformance
//! scenarios of canaries, promotions, health and failures (S11, R8, R13, R15 to R18, R20, R21).

use fsm::{
    AllocationId, ClientStatus, DeploymentStatus, JobSpec, Liveness, Plan, Trigger,
    job::{DelayFunction, ReschedulePolicy},
};

use super::{
    Cluster,
    cluster::{PlanExt, update},
    rollout::{act, begun, deployment, healthy, names, next, service},
};
use crate::annotate;

/// Goes on to another version of the job, as far as its first plan.
fn goes_on(cluster: &mut Cluster, spec: &JobSpec) -> Plan {
    cluster.register(spec);
    let plan = cluster.plan(spec, Trigger::JobRegister);
    cluster.begin(&plan);
    plan
}

/// Ten healthy instances, and a second version that replaces four at a time.
fn rolling() -> (Cluster, JobSpec, Plan) {
    let mut cluster = Cluster::with_nodes(20);
    let spec = service(10, 4, 0);
    cluster.run(&spec);
    let spec = next(&spec, "two");
    let plan = goes_on(&mut cluster, &spec);
    (cluster, spec, plan)
}

fn desired_canaries(cluster: &Cluster, spec: &JobSpec) -> u32 {
    let id = deployment(cluster, spec);
    cluster.state.deployments().get(&id).unwrap().groups["web"].goal.canaries
}

fn ignored(cluster: &Cluster, spec: &JobSpec, plan: &Plan) -> u32 {
    annotate(&cluster.state, plan, Some(spec))["web"].ignore
}

/// S11: two canaries are placed and none is stopped; a promotion goes on with `max_parallel`, a
/// failure by hand ends the canaries.
#[test]
fn s11_canaries_promoted_or_failed_by_hand() {
    for promoted in [true, false] {
        let (mut cluster, spec, plan) = begun(10, 2);
        assert_eq!((plan.counts(), plan.names()), ((2, 0, 0), vec![0, 1]));
        assert_eq!(desired_canaries(&cluster, &spec), 2);
        healthy(&mut cluster, &plan);
        act(&mut cluster, &spec, if promoted { "promote" } else { "fail" });
        let step = cluster.plan(&spec, Trigger::DeploymentWatcher);
        assert_eq!(step.counts(), if promoted { (2, 4, 0) } else { (0, 2, 0) });
        let canaries: Vec<AllocationId> = plan.placements.iter().map(|one| one.id).collect();
        let ends = step.stops.iter().filter(|stop| canaries.contains(&stop.id)).count();
        assert_eq!(ends, if promoted { 0 } else { 2 });
    }
}

/// R8: a group without instances gets all of them beside one that lacks some; where all are there,
/// an update block of one group changes nothing while its deployment goes on.
#[test]
fn r8_two_groups() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(2, 2, 0);
    spec.groups[0].update = None;
    cluster.run(&spec);
    spec.groups[0].count = 10;
    let mut second = spec.groups[0].clone();
    second.name = "second".into();
    spec.groups.push(second);
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    let of = |name: &str| plan.placements.iter().filter(|one| &*one.group == name).count();
    assert_eq!((of("web"), of("second"), plan.stops.len()), (8, 10, 0));
    cluster.apply(&plan);
    spec.groups[0].update = Some(update(2));
    let spec = next(&spec, "two");
    let plan = goes_on(&mut cluster, &spec);
    assert_eq!(plan.counts(), (2, 2, 10), "the other group takes the version as it runs");
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
}

/// R13: a canary that fails is replaced by a canary as often as the policy allows, and no more.
#[test]
fn r13_failing_canaries() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(10, 2, 2);
    spec.groups[0].reschedule = Some(ReschedulePolicy {
        attempts: 1,
        interval_ms: 86_400_000,
        delay_ms: 0,
        delay_function: DelayFunction::Constant,
        delay_ms_max: 0,
        unlimited: false,
    });
    cluster.run(&spec);
    let spec = next(&spec, "two");
    let mut canaries = goes_on(&mut cluster, &spec);
    for attempts_left in [1, 0] {
        for placement in &canaries.placements {
            cluster.end(placement.id, ClientStatus::Failed);
        }
        cluster.now += 60_000;
        let plan = cluster.plan(&spec, Trigger::AllocFailure);
        assert_eq!(plan.placements.len(), 2 * attempts_left, "{plan:?}");
        assert!(plan.placements.iter().all(|one| one.canary && one.reschedules.len() == 1));
        assert!(plan.waiting().is_empty());
        cluster.begin(&plan);
        canaries = plan;
    }
    assert_eq!(names(&cluster, &spec, 0).len(), 10, "the older ones are untouched");
}

/// R15: canaries have the first names and everything else is left as it is, also when the count
/// rises; what is too much when it falls ends. There are never more canaries than instances, and
/// those that are missing are placed under the missing names.
#[test]
fn r15_a_new_deployment_with_canaries() {
    for (count, canaries, stops) in [(10, 2, 0), (15, 2, 0), (5, 2, 5), (3, 7, 7)] {
        let mut cluster = Cluster::with_nodes(20);
        let spec = service(10, 2, canaries);
        cluster.run(&spec);
        let mut spec = next(&spec, "two");
        spec.groups[0].count = count;
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        let placed = canaries.min(count);
        assert_eq!(plan.names(), (0..placed).collect::<Vec<_>>(), "{count} of {canaries}");
        assert_eq!(plan.stops.len(), stops, "{count} of {canaries}");
        assert_eq!(ignored(&cluster, &spec, &plan), 10 - u32::try_from(stops).unwrap());
        cluster.begin(&plan);
        assert_eq!(desired_canaries(&cluster, &spec), placed);
        assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op());
    }
    // Two groups have two each.
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = service(10, 2, 2);
    let mut second = spec.groups[0].clone();
    second.name = "second".into();
    spec.groups.push(second);
    cluster.run(&spec);
    for group in &mut spec.groups {
        group.tasks[0].user = "two".into();
    }
    cluster.register(&spec);
    assert_eq!(cluster.plan(&spec, Trigger::JobRegister).counts(), (4, 0, 0));
    // One that was dropped from the first plan comes with the next.
    let (mut cluster, spec, plan) = begun(10, 2);
    let gone = plan.placements.iter().find(|one| one.name_index == 0).unwrap().id;
    cluster.end(gone, ClientStatus::Lost);
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    assert_eq!((plan.counts().0, plan.names()), (1, vec![0]));
    assert!(plan.placements[0].canary);
}

/// R16: canaries of an older version end when there is a newer one; one on a drained node moves,
/// one that is lost is replaced, both by canaries.
#[test]
fn r16_canaries_that_end() {
    let (mut cluster, spec, old) = begun(10, 2);
    let spec = next(&spec, "three");
    let plan = goes_on(&mut cluster, &spec);
    let stopped: Vec<_> = plan.stops.iter().map(|stop| stop.id).collect();
    assert!(old.placements.iter().all(|one| stopped.contains(&one.id)));
    assert_eq!((plan.counts(), plan.names()), ((2, 2, 0), vec![0, 1]));
    let [moved, lost] = [plan.placements[0].id, plan.placements[1].id];
    cluster.change(moved, |row| row.transition.migrate = true);
    let step = cluster.plan(&spec, Trigger::NodeDrain);
    assert_eq!(step.counts(), (1, 1, 0));
    assert!(step.placements[0].canary && step.placements[0].previous == Some(moved));
    cluster.begin(&step);
    let node = u64::from(cluster.get(lost).node.0[15]);
    cluster.change_node(node, |node| node.liveness = Liveness::Down);
    let step = cluster.plan(&spec, Trigger::NodeUpdate);
    let canaries: Vec<_> = step.placements.iter().filter(|one| one.canary).collect();
    assert!(canaries.iter().any(|one| one.previous == Some(lost)), "{step:?}");
}

/// R17: of ten and two promoted canaries the two of the same names end, two are replaced, and eight
/// instances are left as they are. Where there are as many canaries as instances all older ones
/// end, nothing is replaced, and the deployment is complete.
#[test]
fn r17_a_promotion() {
    let (mut cluster, spec, plan) = begun(10, 2);
    healthy(&mut cluster, &plan);
    act(&mut cluster, &spec, "promote");
    let step = cluster.plan(&spec, Trigger::DeploymentWatcher);
    let replaced: Vec<_> = step.placements.iter().filter_map(|one| one.previous).collect();
    let ended = step.stops.iter().filter(|stop| !replaced.contains(&stop.id));
    let mut ended: Vec<_> = ended.map(|stop| cluster.get(stop.id).name_index).collect();
    ended.sort_unstable();
    assert_eq!((ended, replaced.len()), (vec![0, 1], 2));
    // Six older ones and the two canaries.
    assert_eq!(ignored(&cluster, &spec, &step), 8);
    let (mut cluster, spec, plan) = begun(3, 3);
    healthy(&mut cluster, &plan);
    act(&mut cluster, &spec, "promote");
    let step = cluster.plan(&spec, Trigger::DeploymentWatcher);
    assert_eq!(step.counts(), (0, 3, 0));
    cluster.apply(&step);
    assert!(cluster.state.active_deployment(&spec.key).is_none());
    assert_eq!(names(&cluster, &spec, 1), [0, 1, 2]);
}

/// R18: as many as are healthy of the four that were placed are replaced next; one that is
/// unhealthy stops everything.
#[test]
fn r18_steps_follow_health() {
    for healthy in 0..=4 {
        let (mut cluster, spec, plan) = rolling();
        assert_eq!(plan.counts(), (4, 4, 0));
        for placement in plan.placements.iter().take(healthy) {
            cluster.set_health(placement.id, true);
        }
        let step = cluster.plan(&spec, Trigger::DeploymentWatcher);
        assert_eq!(step.counts(), (healthy, healthy, 0));
    }
    let (mut cluster, spec, plan) = rolling();
    for (number, placement) in plan.placements.iter().enumerate() {
        cluster.set_health(placement.id, number > 0);
    }
    assert_eq!(cluster.plan(&spec, Trigger::DeploymentWatcher).placements.len(), 0);
}

/// R20: after a failure what is on a drained node is replaced and nothing is updated; a newer
/// version begins with four of its own, and what failed of the older one is not tried again.
#[test]
fn r20_a_failed_deployment() {
    let (mut cluster, spec, plan) = rolling();
    act(&mut cluster, &spec, "fail");
    assert!(cluster.plan(&spec, Trigger::DeploymentWatcher).is_no_op());
    let moved = cluster.live(&spec).into_iter().find(|row| row.job_version == 0).unwrap().id;
    cluster.change(moved, |row| row.transition.migrate = true);
    let step = cluster.plan(&spec, Trigger::NodeDrain);
    assert_eq!(step.counts(), (1, 1, 0));
    assert_eq!((step.placements[0].previous, step.placements[0].version), (Some(moved), Some(0)));
    cluster.apply(&step);
    cluster.end(plan.placements[0].id, ClientStatus::Failed);
    cluster.now += 3_600_000;
    let step = cluster.plan(&spec, Trigger::AllocFailure);
    assert!(step.is_no_op() && step.waiting().is_empty(), "{step:?}");
    let spec = next(&spec, "three");
    let step = goes_on(&mut cluster, &spec);
    let updated = annotate(&cluster.state, &step, Some(&spec));
    let begun = step.placements.iter().filter(|one| one.version.is_none()).count();
    assert_eq!(begun, 4, "{updated:?}");
}

/// R21: a deployment is complete when all are placed and healthy, whatever has failed before; a
/// larger count that is asked for while nobody is healthy yet is placed, and replaces no more.
#[test]
fn r21_a_complete_deployment() {
    let (mut cluster, spec, mut plan) = rolling();
    let failed = plan.placements[0].id;
    cluster.end(failed, ClientStatus::Failed);
    cluster.now += 3_600_000;
    for _ in 0..12 {
        for placement in &plan.placements {
            if cluster.get(placement.id).is_live() {
                cluster.set_health(placement.id, true);
            }
        }
        plan = cluster.plan(&spec, Trigger::DeploymentWatcher);
        cluster.begin(&plan);
    }
    assert!(plan.is_no_op(), "{plan:?}");
    assert_eq!(names(&cluster, &spec, 1), (0..10).collect::<Vec<_>>());
    let last = cluster.state.deployments_of_job(&spec.key);
    let last = last.iter().max_by_key(|row| row.create_index).unwrap();
    assert_eq!(last.status, DeploymentStatus::Successful);
    let (mut cluster, spec, _) = rolling();
    assert!(cluster.plan(&spec, Trigger::JobRegister).is_no_op(), "a second evaluation");
}

/// A version that comes in the middle of a step of another replaces what that one has just begun,
/// and leaves what is healthy alone.
#[test]
fn a_version_in_the_middle_of_a_step_replaces_what_is_not_healthy_yet() {
    let (mut cluster, spec, plan) = rolling();
    healthy(&mut cluster, &plan);
    let second = cluster.plan(&spec, Trigger::DeploymentWatcher);
    cluster.begin(&second);
    let spec = next(&spec, "three");
    let third = goes_on(&mut cluster, &spec);
    let starting: Vec<_> = second.placements.iter().map(|one| one.id).collect();
    assert_eq!(third.counts(), (4, 4, 0));
    assert!(third.stops.iter().all(|stop| starting.contains(&stop.id)), "{third:?}");
}

/// What takes the version as it runs, and is not well, uses up the step of what is replaced.
#[test]
fn an_unhealthy_instance_that_stays_uses_up_the_step() {
    for is_well in [true, false] {
        let mut cluster = Cluster::with_nodes(20);
        let first = service(4, 2, 0);
        cluster.run(&first);
        let second = next(&first, "two");
        let plan = goes_on(&mut cluster, &second);
        healthy(&mut cluster, &plan);
        if !is_well {
            let old = cluster.live(&second).into_iter().find(|row| row.job_version == 0);
            let old = old.unwrap().id;
            cluster.change(old, |row| row.client = ClientStatus::Pending);
        }
        let plan = goes_on(&mut cluster, &first);
        let replaced = if is_well { 2 } else { 1 };
        assert_eq!(plan.counts(), (replaced, replaced, 2));
    }
}
