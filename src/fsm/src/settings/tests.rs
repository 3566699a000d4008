//! Node pools, namespaces and the scheduler configuration: what may not be set, and what is in use.

use super::*;
use crate::{
    command::{Command, Rejection},
    id::EvaluationId,
    job::{DeregisterJob, JobKind, JobSpec, JobStatus},
    testing::{Driver, job},
};

fn complete(driver: &mut Driver, evaluation: EvaluationId) {
    let plan = driver.plan(evaluation);
    assert!(driver.commit_plan(plan).outcome_taken);
}

#[test]
fn settings_are_guarded() {
    let mut driver = Driver::default();
    let configuration = SchedulerConfiguration::default();
    let set = |configuration: &SchedulerConfiguration, enforce_index| {
        let configuration = configuration.clone();
        Command::from(SetSchedulerConfiguration {
            configuration,
            keep_node_life: true,
            enforce_index,
        })
    };
    let conflict = Rejection::IndexConflict { asked: 3, found: 0 };
    assert_eq!(driver.reject(set(&configuration, Some(3))), conflict);
    driver.accept(set(&configuration, Some(0)));
    let found = driver.state.scheduler_configuration().modify_index;
    assert_eq!(found, driver.state.index);
    driver.accept(set(&configuration, Some(found)));

    let pool = |name: &str| crate::settings::NodePool { name: name.into(), ..Default::default() };
    for bad in ["all", "default", "", "with space"] {
        driver.reject(Command::from(UpsertNodePool { pool: pool(bad) }));
    }
    driver.accept(Command::from(UpsertNodePool { pool: pool("gpu") }));
    driver.register_job(JobSpec { node_pool: "gpu".into(), ..job("t", JobKind::Service, 1) });
    let in_use = driver.reject(Command::from(DeleteNodePool { name: "gpu".into() }));
    assert_eq!(in_use, Rejection::InUse("node pool \"gpu\" is used by job \"t\"".into()));
    driver.deregister_job("t", false);
    driver.accept(Command::from(DeleteNodePool { name: "gpu".into() }));

    let space = crate::settings::Namespace { name: "team".into(), ..Default::default() };
    driver.accept(Command::from(UpsertNamespace { namespace: space }));
    let mut spec = job("t", JobKind::Service, 1);
    spec.key.namespace = "team".into();
    driver.register_job(spec);
    assert!(matches!(
        driver.reject(Command::Settings(SettingsCommand::DeleteNamespace(DeleteNamespace {
            name: "team".into()
        }))),
        Rejection::InUse(_)
    ));
    assert!(matches!(
        driver.reject(Command::Settings(SettingsCommand::DeleteNamespace(DeleteNamespace {
            name: "default".into()
        }))),
        Rejection::Invalid(_)
    ));
}

/// A live per-node job gets evaluations whenever a node joins, so its namespace stays in use.
#[test]
fn a_namespace_stays_as_long_as_a_job_in_it_waits_for_nodes() {
    let mut driver = Driver::default();
    let delete = Command::from(DeleteNamespace { name: "team".into() });
    for kind in [JobKind::Sysbatch, JobKind::Batch] {
        let space = crate::settings::Namespace { name: "team".into(), ..Default::default() };
        driver.accept(Command::from(UpsertNamespace { namespace: space }));
        let mut spec = job(&format!("{kind:?}"), kind, 1);
        spec.key.namespace = "team".into();
        let key = spec.key.clone();
        let evaluation = driver.register_job(spec);
        complete(&mut driver, evaluation);
        let status = |driver: &Driver| driver.state.jobs.get(&key).map(|job| job.status);
        assert_eq!(status(&driver), Some(JobStatus::Dead), "{kind:?}");
        if kind.is_per_node() {
            assert!(matches!(driver.reject(delete.clone()), Rejection::InUse(_)));
            let evaluation = driver.evaluation_id();
            driver.accept(Command::from(DeregisterJob {
                job: key,
                purge: false,
                evaluation,
                evaluation_priority: None,
                no_shutdown_delay: false,
            }));
            complete(&mut driver, evaluation);
        }
        driver.accept(delete.clone());
    }
}
