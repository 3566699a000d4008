//! Garbage collection (G1 and G3 to G6 of Nomad's cases; facts 1.11): which rows are deleted, which
//! stay, and that the derived totals stay correct.

use crate::{
    allocation::{ClientStatus, Replacement},
    command::{Command, Reply},
    evaluation::EvaluationStatus,
    gc::{CollectGarbage, Cutoffs},
    id::{AllocationId, EvaluationId, JobKey, NodeId},
    job::{JobKind, JobSpec, JobStatus, MarkJobVersion, Parameterized, VersionMark},
    node::{GainKey, Liveness},
    testing::{Driver, GROUP, job, job_key, stop_allocation},
};

const HOUR_S: u64 = 3600;

/// Collects the given rows, with one cut-off for all. Returns the number of deleted rows.
fn collect(
    driver: &mut Driver,
    before: u64,
    jobs: &[&str],
    allocations: &[AllocationId],
    evaluations: &[EvaluationId],
) -> u64 {
    let cutoffs = Cutoffs {
        evaluations: before,
        batch_evaluations: before,
        jobs: before,
        deployments: before,
        children_max: u64::MAX,
    };
    let reply = driver.accept(Command::from(CollectGarbage {
        cutoffs,
        jobs: jobs.iter().map(|name| job_key(name)).collect(),
        allocations: allocations.to_vec(),
        evaluations: evaluations.to_vec(),
        deployments: Vec::new(),
        classes: Vec::new(),
    }));
    let Reply::Collected(count) = reply else { panic!("unexpected reply {reply:?}") };
    count
}

fn complete(driver: &mut Driver, evaluation: EvaluationId) {
    let plan = driver.plan(evaluation);
    assert!(driver.commit_plan(plan).outcome_taken);
}

/// Stops an allocation by a plan of a new evaluation, and reports its end.
fn stop(driver: &mut Driver, name: &str, id: AllocationId) -> EvaluationId {
    let evaluation = driver.evaluate_job(name);
    let plan = driver.plan(evaluation).stopping(id, None);
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.report(id, ClientStatus::Complete);
    evaluation
}

fn all_evaluations(driver: &Driver, name: &str) -> Vec<EvaluationId> {
    driver.state.evaluations_of_job(&job_key(name)).map(|row| row.id).collect()
}

/// G1: an old final evaluation is collected with its ended allocations. If one allocation is live,
/// the evaluation stays and only the ended allocations are collected.
#[test]
fn evaluations_go_with_their_ended_allocations() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let first = driver.register_job(job("t", JobKind::Service, 2));
    let (ended, live) = {
        let (one, two) = (driver.placement(GROUP, 0, node), driver.placement(GROUP, 1, node));
        let plan = driver.plan(first).with(one.clone()).with(two.clone());
        assert!(driver.commit_plan(plan).outcome_taken);
        (one.id, two.id)
    };
    driver.report(live, ClientStatus::Running);
    let stopping = stop(&mut driver, "t", ended);
    let since = driver.now;
    driver.at_seconds(HOUR_S);
    assert_eq!(collect(&mut driver, since, &[], &[ended, live], &[first, stopping]), 0);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &[], &[ended, live], &[first, stopping]), 2);
    assert!(!driver.state.allocations.contains(&ended));
    assert!(!driver.state.evaluations.contains(&stopping), "the one that stopped it, G1");
    assert!(driver.state.evaluations.contains(&first), "partial: it has a live allocation");
    assert!(driver.state.allocations.contains(&live));
}

/// G1: an open evaluation is never collected, nor is an evaluation that still has an allocation.
#[test]
fn rows_in_use_stay() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 1));
    let pending = driver.evaluate_job("t");
    let live = driver.run("t", 0, node);
    driver.at_seconds(HOUR_S);
    let evaluation = driver.allocation(live).evaluation;
    let now = driver.now;
    let asked = [pending, evaluation, EvaluationId([9; 16])];
    assert_eq!(
        collect(&mut driver, now, &["t", "none"], &[live, AllocationId([9; 16])], &asked),
        0
    );
}

/// A failed instance of a live service: old enough, but not collectable.
fn failed_instance() -> (Driver, NodeId, AllocationId) {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 1));
    let failed = driver.run("t", 0, node);
    driver.report(failed, ClientStatus::Failed);
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &[], &[failed], &[]), 0);
    (driver, node, failed)
}

/// A failed instance stays until it is replaced: without it the scheduler would forget the failure.
#[test]
fn a_failed_instance_of_a_living_service_stays_until_it_is_replaced() {
    let (mut driver, node, failed) = failed_instance();
    let evaluation = driver.evaluate_job("t");
    let mut next = driver.placement(GROUP, 0, node);
    next.previous = Some(failed);
    let next_id = next.id;
    let plan = driver.plan(evaluation).with(next);
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(failed).next, Some(next_id));
    stop(&mut driver, "t", next_id);
    driver.at_seconds(2 * HOUR_S);
    let now = driver.now;
    // The replacement stays while the failed instance counts as replaced only because of it.
    // Together they are collectable.
    assert_eq!(collect(&mut driver, now, &[], &[next_id], &[]), 0);
    assert_eq!(collect(&mut driver, now, &[], &[failed, next_id], &[]), 2);
}

/// A failed instance is collected once its group is no longer in the job.
#[test]
fn failed_instances_of_a_removed_group_go() {
    let (mut driver, _, failed) = failed_instance();
    let now = driver.now;
    let mut renamed = job("t", JobKind::Service, 1);
    for group in &mut renamed.groups {
        group.name = "api".into();
    }
    driver.register_job(renamed);
    assert_eq!(collect(&mut driver, now, &[], &[failed], &[]), 1);
}

/// G3: a completed instance stays while its batch job is alive, or the job would run again. It is
/// collected once the job is stopped.
#[test]
fn finished_batch_instances_stay_with_their_job() {
    for kind in [JobKind::Batch, JobKind::Sysbatch] {
        let mut driver = Driver::default();
        let node = driver.node("a");
        let register = driver.register_job(job("t", kind, 2));
        complete(&mut driver, register);
        let done = driver.run("t", 0, node);
        driver.report(done, ClientStatus::Complete);
        let evaluation = driver.allocation(done).evaluation;
        driver.run("t", 1, node);
        driver.at_seconds(HOUR_S);
        let now = driver.now;
        assert_eq!(collect(&mut driver, now, &["t"], &[done], &[evaluation]), 0, "{kind:?}");
        driver.deregister_job("t", false);
        assert_eq!(collect(&mut driver, now, &["t"], &[done], &[evaluation]), 2, "{kind:?}");
    }
}

/// A place that a user left empty is known to be so only as long as its allocation is there.
#[test]
fn an_allocation_ended_without_a_replacement_stays_until_the_job_changes() {
    for kind in [JobKind::Service, JobKind::System] {
        let mut driver = Driver::default();
        let node = driver.node("a");
        driver.register_job(job("t", kind, 1));
        let ended = driver.run("t", 0, node);
        let evaluation = driver.evaluation_id();
        driver.accept(stop_allocation(ended, Replacement::Never, evaluation));
        let plan = driver.plan(evaluation).stopping(ended, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        driver.report(ended, ClientStatus::Complete);
        driver.at_seconds(HOUR_S);
        let now = driver.now;
        assert_eq!(collect(&mut driver, now, &[], &[ended], &[]), 0, "{kind:?}");
        driver.register_job(JobSpec { priority: 51, ..job("t", kind, 1) });
        assert_eq!(collect(&mut driver, now, &[], &[ended], &[]), 1, "{kind:?}");
    }
}

/// G3: an instance that a drain or a user ended is not run again, which is known only as long as it
/// is there.
#[test]
fn batch_instances_that_were_ended_by_request_stay_with_their_job() {
    for kind in [JobKind::Batch, JobKind::Sysbatch] {
        let mut driver = Driver::default();
        let node = driver.node("a");
        driver.register_job(job("t", kind, 2));
        let ended = driver.run("t", 0, node);
        let evaluation = driver.evaluation_id();
        driver.accept(stop_allocation(ended, Replacement::ByKind, evaluation));
        let plan = driver.plan(evaluation).stopping(ended, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        driver.liveness("a", Liveness::Down);
        assert_eq!(driver.allocation(ended).client, ClientStatus::Lost, "while it was stopped");
        driver.at_seconds(HOUR_S);
        let now = driver.now;
        assert_eq!(collect(&mut driver, now, &[], &[ended], &[]), 0, "{kind:?}");
        driver.deregister_job("t", false);
        assert_eq!(collect(&mut driver, now, &[], &[ended], &[]), 1, "{kind:?}");
    }
}

/// G3: a completed sysbatch instance records that the job ran on its node. It is collected once the
/// node is gone and its tombstone too.
#[test]
fn finished_sysbatch_instances_go_with_their_node() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Sysbatch, 1));
    let done = driver.run("t", 0, node);
    driver.report(done, ClientStatus::Complete);
    driver.at_seconds(HOUR_S);
    let reap = driver.reap("a", true);
    driver.accept(reap);
    assert!(!driver.state.nodes.contains(&node));
    let now = driver.now;
    if driver.state.tombstones.contains(&node) {
        assert_eq!(collect(&mut driver, now, &[], &[done], &[]), 0, "it may come back");
        driver.state.tombstones.remove(&node, &mut crate::table::ChangeSet::default());
    }
    assert_eq!(collect(&mut driver, now, &[], &[done], &[]), 1);
}

/// G3: a batch job does not need instances of its older versions.
#[test]
fn instances_of_older_batch_versions_go() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 1));
    let done = driver.run("t", 0, node);
    driver.report(done, ClientStatus::Complete);
    let version = driver.job_row("t").version;
    driver.register_job(job("t", JobKind::Batch, 3));
    assert!(driver.job_row("t").version > version);
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &[], &[done], &[]), 1);
}

/// G4: a job is collected only when it is dead, everything of it has ended and is old, and it is
/// not expected to run again.
#[test]
fn dead_jobs_go_with_all_that_belongs_to_them() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let register = driver.register_job(job("t", JobKind::Batch, 1));
    complete(&mut driver, register);
    let only = driver.run("t", 0, node);
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &["t"], &[], &[]), 0, "it runs");
    driver.report(only, ClientStatus::Complete);
    assert_eq!(driver.job_row("t").status, JobStatus::Dead);
    assert_eq!(collect(&mut driver, now, &["t"], &[], &[]), 0, "it ended just now");
    driver.at_seconds(2 * HOUR_S);
    let (now, evaluations) = (driver.now, all_evaluations(&driver, "t"));
    let expected = 2 + evaluations.len() as u64;
    assert_eq!(collect(&mut driver, now, &["t"], &[only], &evaluations), expected);
    assert!(driver.state.jobs.is_empty() && driver.state.job_versions.is_empty());
    assert!(driver.state.allocations.is_empty() && driver.state.evaluations.is_empty());
    assert!(driver.state.job_index(&job_key("t")).is_none());
}

/// G4: a service or a template stays until a user stops it, even if nothing runs.
#[test]
fn services_and_templates_go_only_when_stopped() {
    let template =
        || JobSpec { parameterized: Some(Parameterized::default()), ..job("t", JobKind::Batch, 1) };
    let mut driver = Driver::default();
    let register = driver.register_job(job("s", JobKind::Service, 0));
    complete(&mut driver, register);
    driver.accept(crate::testing::register(template(), EvaluationId([8; 16])));
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &["s", "t"], &[], &[]), 0);
    let stopping = driver.deregister_job("s", false).expect("an evaluation");
    complete(&mut driver, stopping);
    driver.deregister_job("t", false);
    assert_eq!(collect(&mut driver, now, &["t"], &[], &[]), 0, "it may be started again");
    driver.at_seconds(2 * HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &["s", "t"], &[], &[]), 2);
}

/// A job that was registered again after the collection was proposed stays.
#[test]
fn a_job_that_came_back_stays() {
    let mut driver = Driver::default();
    let register = driver.register_job(job("t", JobKind::Batch, 0));
    complete(&mut driver, register);
    driver.deregister_job("t", false).into_iter().for_each(|id| complete(&mut driver, id));
    driver.at_seconds(HOUR_S);
    let before = driver.now;
    driver.register_job(job("t", JobKind::Batch, 1));
    assert_eq!(collect(&mut driver, before, &["t"], &[], &[]), 0);
    assert!(driver.state.jobs.contains(&JobKey::new("default", "t")));
}

/// A tag keeps a job that is dead, however old it is.
#[test]
fn a_job_with_a_tagged_version_stays() {
    let mut driver = Driver::default();
    let register = driver.register_job(job("t", JobKind::Batch, 0));
    complete(&mut driver, register);
    let mark = |mark| Command::from(MarkJobVersion { job: job_key("t"), mark });
    let (name, description) = ("release".into(), "".into());
    driver.accept(mark(VersionMark::Tag { version: None, name, description }));
    driver.register_job(job("t", JobKind::Batch, 1));
    driver.deregister_job("t", false);
    for evaluation in driver.open_evaluations("t") {
        complete(&mut driver, evaluation);
    }
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &["t"], &[], &[]), 0);
    driver.accept(mark(VersionMark::Untag { name: "release".into() }));
    assert_eq!(collect(&mut driver, now, &["t"], &[], &[]), 1);
    assert!(driver.state.job_versions.is_empty());
}

/// The version that an allocation of a purged job runs is kept, and is deleted with the allocation.
#[test]
fn versions_of_purged_jobs_go_with_the_last_allocation() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 1));
    let id = driver.run("t", 0, node);
    let stopping = driver.deregister_job("t", true).expect("an evaluation");
    assert_eq!(driver.state.job_versions.len(), 1);
    let plan = driver.plan(stopping).stopping(id, None);
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.report(id, ClientStatus::Complete);
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &[], &[id], &[]), 1);
    assert_eq!(driver.state.job_versions.len(), 0);
}

/// The record of a class's capacity gains is deleted when the class has no nodes.
#[test]
fn gains_of_empty_classes_go() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let class = driver.node_row("a").class;
    driver.register_job(job("t", JobKind::Service, 1));
    let id = driver.run("t", 0, node);
    stop(&mut driver, "t", id);
    assert!(driver.state.capacity_gains.contains(&GainKey::Class(class)));
    assert_eq!(driver.state.classes_without_nodes(), []);
    let reap = driver.reap("a", true);
    driver.accept(reap);
    assert_eq!(driver.state.classes_without_nodes(), [class]);
    let cutoffs =
        Cutoffs { evaluations: 0, batch_evaluations: 0, jobs: 0, deployments: 0, children_max: 0 };
    let command = Command::from(CollectGarbage {
        cutoffs,
        jobs: Vec::new(),
        allocations: Vec::new(),
        evaluations: Vec::new(),
        deployments: Vec::new(),
        classes: vec![class],
    });
    assert_eq!(driver.accept(command), Reply::Collected(1));
    assert!(!driver.state.capacity_gains.contains(&GainKey::Class(class)));
}

/// A canceled evaluation without allocations is collected; a blocked one never is.
#[test]
fn only_final_evaluations_go() {
    let mut driver = Driver::default();
    driver.register_job(job("t", JobKind::Service, 1));
    let evaluation = driver.evaluate_job("t");
    let mut plan = driver.plan(evaluation);
    plan.outcome = Some(crate::testing::outcome(EvaluationStatus::Blocked));
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.at_seconds(HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &[], &[], &[evaluation]), 0);
    driver.deregister_job("t", false);
    assert_eq!(driver.evaluation(evaluation).status, EvaluationStatus::Canceled);
    driver.at_seconds(2 * HOUR_S);
    let now = driver.now;
    assert_eq!(collect(&mut driver, now, &[], &[], &[evaluation]), 1);
}
