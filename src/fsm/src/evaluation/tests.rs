//! Evaluations that an operator deletes.

use crate::{
    allocation::ClientStatus,
    command::{Command, Rejection, Reply},
    evaluation::{DeleteEvaluations, EvaluationStatus},
    id::EvaluationId,
    job::{JobKind, JobStatus},
    settings::{SchedulerConfiguration, SetSchedulerConfiguration},
    testing::{Driver, job, job_key},
};

fn pause(driver: &mut Driver, pause_eval_broker: bool) {
    let configuration =
        SchedulerConfiguration { pause_eval_broker, ..SchedulerConfiguration::default() };
    driver.accept(Command::SetSchedulerConfiguration(SetSchedulerConfiguration {
        configuration,
        keep_node_life: false,
        enforce_index: None,
    }));
}

fn delete(ids: &[EvaluationId]) -> Command {
    Command::DeleteEvaluations(DeleteEvaluations { ids: ids.to_vec() })
}

#[test]
fn open_evaluations_are_deleted_while_the_broker_is_paused() {
    let mut driver = Driver::default();
    driver.register_job(job("t", JobKind::Batch, 1));
    let ids: Vec<_> = driver.state.evaluations().iter().map(|row| row.id).collect();
    let words = "eval broker is enabled; eval broker must be paused to delete evals";
    assert_eq!(driver.reject(delete(&ids)), Rejection::Invalid(words.into()));
    pause(&mut driver, true);
    let unknown = EvaluationId([9; 16]);
    let both = [ids[0], unknown];
    assert_eq!(driver.reject(delete(&both)).to_string(), "eval not found");
    assert!(driver.state.evaluations().contains(&ids[0]), "all or none");
    assert_eq!(
        driver.state.jobs().get(&job_key("t")).map(|row| row.status),
        Some(JobStatus::Pending)
    );
    let twice = [ids[0], ids[0]];
    assert!(matches!(driver.commit(delete(&twice)).reply, Reply::Collected(1)));
    assert!(driver.state.evaluations().iter().next().is_none());
    assert!(crate::invariant::check(&driver.state).is_empty());
    pause(&mut driver, false);
    let evaluation = driver.evaluate_job("t");
    assert_eq!(driver.evaluation(evaluation).status, EvaluationStatus::Pending);
}

/// What runs, or may be run again with its history, keeps the evaluation that placed it.
#[test]
fn the_evaluation_of_what_runs_or_may_run_again_is_not_deleted() {
    for (end, is_kept) in
        [(None, true), (Some(ClientStatus::Failed), true), (Some(ClientStatus::Complete), false)]
    {
        let mut driver = Driver::default();
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let id = driver.run("t", 0, node);
        let evaluation = driver.allocation(id).evaluation;
        if let Some(end) = end {
            driver.report(id, end);
        }
        pause(&mut driver, true);
        if is_kept {
            let refused = driver.reject(delete(&[evaluation])).to_string();
            assert_eq!(refused, format!("eval {evaluation} is not safe to delete"));
        } else {
            driver.accept(delete(&[evaluation]));
            assert!(!driver.state.evaluations().contains(&evaluation));
        }
    }
}

#[test]
fn too_many_are_refused() {
    let mut driver = Driver::default();
    pause(&mut driver, true);
    let many = vec![EvaluationId([1; 16]); crate::limits::EVALUATIONS_DELETED_MAX + 1];
    assert!(driver.reject(delete(&many)).to_string().contains("at most 7281"));
}
