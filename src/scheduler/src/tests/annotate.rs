//! What a plan would do, told by group.

use fsm::{GroupAnnotation, JobKind, JobSpec, Trigger, job::UpdateStrategy};

use super::{Cluster, cluster::update, job};
use crate::annotate;

fn told(cluster: &mut Cluster, spec: &JobSpec, trigger: Trigger) -> GroupAnnotation {
    let plan = cluster.plan(spec, trigger);
    let made = annotate(&cluster.state, &plan, Some(spec));
    cluster.apply(&plan);
    let outcome = plan.outcome.unwrap();
    assert_eq!(outcome.annotations, made, "the outcome carries them");
    let row = cluster.state.evaluations().get(&plan.evaluation).unwrap();
    assert_eq!(row.annotations, made, "the evaluation keeps them");
    made["web"]
}

const NOTHING: GroupAnnotation = GroupAnnotation {
    place: 0,
    canary: 0,
    stop: 0,
    migrate: 0,
    in_place_update: 0,
    destructive_update: 0,
    ignore: 0,
    preemptions: 0,
};

#[test]
fn each_change_of_a_service_is_counted_once() {
    let mut cluster = Cluster::with_nodes(5);
    let mut spec = job(JobKind::Service);
    cluster.register(&spec);
    let first = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(first, GroupAnnotation { place: 10, ..NOTHING });
    let again = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(again, GroupAnnotation { ignore: 10, ..NOTHING });

    spec.priority = 60;
    cluster.register(&spec);
    let in_place = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(in_place, GroupAnnotation { in_place_update: 10, ..NOTHING });

    spec.groups[0].update = Some(update(3));
    spec.groups[0].tasks[0].config_json = "{\"v\":2}".into();
    cluster.register(&spec);
    let rolling = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(rolling, GroupAnnotation { destructive_update: 3, ignore: 7, ..NOTHING });

    spec.groups[0].count = 4;
    cluster.register(&spec);
    let fewer = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(annotate(&cluster.state, &fewer, Some(&spec))["web"].stop, 6);

    cluster.change_job(&spec.key.clone(), |job| job.stop = true);
    let ended = cluster.plan(&spec, Trigger::JobDeregister);
    assert_eq!(annotate(&cluster.state, &ended, None)["web"].stop, 10);
}

#[test]
fn a_canary_is_not_placed() {
    let mut cluster = Cluster::with_nodes(5);
    let mut spec = job(JobKind::Service);
    spec.groups[0].update = Some(UpdateStrategy { canaries: 2, ..update(3) });
    cluster.register(&spec);
    let first = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(first, GroupAnnotation { place: 10, ..NOTHING }, "there is nothing to protect yet");
    spec.groups[0].tasks[0].config_json = "{\"v\":2}".into();
    cluster.register(&spec);
    let changed = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(changed, GroupAnnotation { canary: 2, ignore: 10, ..NOTHING });
}

/// A canary of a system job takes somebody's place, and is counted once; so is what takes the place
/// of a canary.
#[test]
fn a_canary_in_the_place_of_another_is_counted_once() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = job(JobKind::System);
    spec.groups[0].update = Some(UpdateStrategy { canaries: 34, ..update(3) });
    cluster.run(&spec);
    spec.groups[0].tasks[0].config_json = "{\"v\":2}".into();
    cluster.register(&spec);
    let changed = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(changed, GroupAnnotation { canary: 2, ignore: 1, ..NOTHING });
    let id = cluster.state.active_deployment(&spec.key).unwrap().id;
    cluster.commit(|evaluation| fsm::deployment::FailDeployment { id, evaluation }.into());
    let back = told(&mut cluster, &spec, Trigger::DeploymentWatcher);
    assert_eq!(back, GroupAnnotation { destructive_update: 2, ignore: 1, ..NOTHING });
}

#[test]
fn a_migration_is_not_counted_as_a_placement() {
    let mut cluster = Cluster::with_nodes(3);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 1;
    cluster.run(&spec);
    let id = cluster.live(&spec)[0].id;
    cluster.change(id, |row| row.transition.migrate = true);
    let moved = told(&mut cluster, &spec, Trigger::NodeDrain);
    assert_eq!(moved, GroupAnnotation { migrate: 1, ..NOTHING });
}

/// A filtered node lowers what is placed, and what is evicted is counted and named.
#[test]
fn a_system_job_is_told_by_node() {
    let mut cluster = Cluster::with_nodes(4);
    cluster.change_node(4, |node| node.eligibility.ineligible = true);
    let mut low =
        JobSpec { key: fsm::JobKey::new("default", "low"), priority: 20, ..job(JobKind::Service) };
    low.groups[0].tasks[0].resources.cpu_mhz = 4_000;
    cluster.register(&low);
    let victim = cluster.allocation(&low, 0, 1);
    let spec = job(JobKind::System);
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    let made = annotate(&cluster.state, &plan, Some(&spec));
    assert_eq!(made["web"], GroupAnnotation { place: 3, preemptions: 1, ..NOTHING });
    let evicted = plan.placements.iter().flat_map(|placement| &placement.preempts);
    assert_eq!(evicted.collect::<Vec<_>>(), [&victim]);
}

/// What finds no room is wanted all the same.
#[test]
fn an_instance_that_cannot_be_placed_is_counted() {
    let mut cluster = Cluster::with_nodes(1);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 2;
    spec.groups[0].tasks[0].resources.cpu_mhz = 3_000;
    cluster.register(&spec);
    let first = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(first, GroupAnnotation { place: 2, ..NOTHING }, "one of them has room");
    assert_eq!(cluster.live(&spec).len(), 1);

    spec.groups[0].count = 1;
    spec.groups[0].tasks[0].resources.cpu_mhz = 9_000;
    cluster.register(&spec);
    let update = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(update, GroupAnnotation { destructive_update: 1, ..NOTHING });
}

/// Of a batch job what is done fills its place, and so does what has failed and waits for another
/// attempt: a plan leaves both as they are.
#[test]
fn an_ended_instance_that_stays_is_counted_as_ignored() {
    let mut cluster = Cluster::with_nodes(5);
    let mut spec = job(JobKind::Batch);
    spec.groups[0].count = 3;
    spec.groups[0].reschedule = Some(fsm::job::ReschedulePolicy {
        attempts: 1,
        interval_ms: 86_400_000,
        delay_ms: 3_600_000,
        delay_function: fsm::job::DelayFunction::Constant,
        delay_ms_max: 0,
        unlimited: false,
    });
    cluster.register(&spec);
    told(&mut cluster, &spec, Trigger::JobRegister);
    let ids: Vec<_> = cluster.live(&spec).iter().map(|row| row.id).collect();
    cluster.end(ids[0], fsm::ClientStatus::Complete);
    cluster.end(ids[1], fsm::ClientStatus::Failed);
    let again = told(&mut cluster, &spec, Trigger::JobRegister);
    assert_eq!(again, GroupAnnotation { ignore: 3, ..NOTHING });
}
