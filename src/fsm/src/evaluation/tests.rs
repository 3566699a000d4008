//! Evaluations that wait, and what ends them; evaluations that an operator deletes.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    allocation::ClientStatus,
    command::{Command, Rejection, Reply},
    evaluation::{
        DeleteEvaluations, Evaluation, EvaluationStatus, EvaluationUpdate, Metrics, Trigger,
        UpdateEvaluations,
    },
    id::{AllocationId, EvaluationId},
    job::{
        DeregisterJob, DispatchJob, Dispatched, JobKind, JobSpec, JobStatus, Parameterized,
        RegisterJob, StopChildren,
    },
    plan::FollowUp,
    settings::{SchedulerConfiguration, SetSchedulerConfiguration},
    testing::{Driver, GROUP, job, job_key, outcome, register},
};

const HOUR_MS: u64 = 3_600_000;
const CHILD: &str = "t/dispatch-1700000000-00000001";
const NEXT_CHILD: &str = "t/dispatch-1700000000-00000002";

/// What an evaluation waits for.
#[derive(Clone, Copy, Debug)]
enum WaitsFor {
    Room,
    /// The delay before a failed allocation is replaced.
    Replacement,
    /// The delay after an evaluation that could not be processed.
    Retry,
}

/// How a job ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    Stop,
    Purge,
    /// A registration that says so.
    StoppedVersion,
    StopChildren,
    PurgeChildren,
}

impl Ends {
    const ALL: [Self; 5] =
        [Self::Stop, Self::Purge, Self::StoppedVersion, Self::StopChildren, Self::PurgeChildren];

    fn command(self, driver: &mut Driver, name: &str) -> Command {
        let evaluation = driver.evaluation_id();
        let purge = matches!(self, Self::Purge | Self::PurgeChildren);
        match self {
            Self::Stop | Self::Purge => Command::from(DeregisterJob {
                job: job_key(name),
                purge,
                evaluation,
                evaluation_priority: None,
                no_shutdown_delay: false,
            }),
            Self::StoppedVersion => {
                let job = driver.job_row(name).clone();
                let spec = Arc::clone(driver.state.current_spec(&job).expect("it has one"));
                Command::from(RegisterJob {
                    stop: true,
                    reverts_to: Some(job.version),
                    ..RegisterJob::new(spec, evaluation)
                })
            }
            Self::StopChildren | Self::PurgeChildren => Command::from(StopChildren {
                parent: job_key("t"),
                children: vec![job_key(name)],
                purge,
                evaluation_ids: vec![evaluation],
                evaluation_priority: None,
                no_shutdown_delay: false,
            }),
        }
    }
}

/// A cluster with a parent of which one child may be alive, that child, and another one behind it.
fn with_children() -> Driver {
    let mut driver = Driver::default();
    driver.node("a");
    let block =
        Parameterized { payload: "optional".into(), max_running: 1, ..Parameterized::default() };
    let spec = JobSpec { parameterized: Some(block), ..job("t", JobKind::Batch, 1) };
    let evaluation = driver.evaluation_id();
    driver.accept(register(spec, evaluation));
    for id in [CHILD, NEXT_CHILD] {
        let child = Dispatched {
            id: id.into(),
            payload: Vec::new(),
            meta: BTreeMap::new(),
            priority: None,
            token: "".into(),
            evaluation: driver.evaluation_id(),
        };
        driver.accept(DispatchJob { parent: job_key("t"), children: vec![child] }.into());
    }
    driver
}

/// A job's evaluation that waits for `waits_for`, and the allocation that failed for it.
fn waiting(
    driver: &mut Driver,
    name: &str,
    waits_for: WaitsFor,
) -> (EvaluationId, Option<AllocationId>) {
    let wait_until = driver.now + HOUR_MS;
    let id = driver.evaluation_id();
    let open = driver.open_evaluations(name)[0];
    let (job, kind) = (job_key(name), JobKind::Batch);
    match waits_for {
        WaitsFor::Room => {
            let mut row = Evaluation::new(id, job, kind, 50, Trigger::QueuedAllocs);
            row.status = EvaluationStatus::Blocked;
            let mut outcome = outcome(EvaluationStatus::Complete);
            outcome.evaluations.push(row);
            outcome.failed_groups.insert(GROUP.into(), Metrics::default());
            let plan = crate::Plan { outcome: Some(outcome), ..driver.plan(open) };
            assert!(driver.commit_plan(plan).outcome_taken);
            (id, None)
        }
        WaitsFor::Replacement => {
            let node = driver.node_row("a").id;
            let placement = driver.placement(GROUP, 0, node);
            let failed = placement.id;
            let plan = driver.plan(open).with(placement);
            assert!(driver.commit_plan(plan).outcome_taken);
            let made = driver.report(failed, ClientStatus::Failed)[0];
            let mut row = Evaluation::new(id, job, kind, 50, Trigger::RetryFailedAlloc);
            (row.wait_until, row.reschedules) = (wait_until, vec![failed]);
            let mut outcome = outcome(EvaluationStatus::Complete);
            outcome.evaluations.push(row);
            let mut plan = crate::Plan { outcome: Some(outcome), ..driver.plan(made) };
            plan.follow_ups.push(FollowUp { id: failed, evaluation: id });
            assert!(driver.commit_plan(plan).outcome_taken);
            (id, Some(failed))
        }
        WaitsFor::Retry => {
            let update = EvaluationUpdate {
                id: open,
                status: EvaluationStatus::Failed,
                description: "evaluation reached delivery limit (3)".into(),
                follow_up: Some((id, wait_until)),
            };
            driver.accept(Command::from(UpdateEvaluations { updates: vec![update] }));
            (id, None)
        }
    }
}

/// Nothing that a job waited for is left when it ends, in whatever way it does: the child behind it
/// starts in the same entry.
#[test]
fn the_blocked_evaluations_of_a_job_end_with_it() {
    for waits_for in [WaitsFor::Room, WaitsFor::Replacement, WaitsFor::Retry] {
        for ends in Ends::ALL {
            let case = format!("{waits_for:?}, {ends:?}");
            let mut driver = with_children();
            let (id, _) = waiting(&mut driver, CHILD, waits_for);
            assert_eq!(driver.job_row(CHILD).status, JobStatus::Pending, "{case}");
            assert!(driver.job_row(NEXT_CHILD).waiting.is_some(), "{case}");
            let command = ends.command(&mut driver, CHILD);
            driver.accept(command);
            assert_eq!(driver.evaluation(id).status, EvaluationStatus::Canceled, "{case}");
            let status = driver.state.jobs().get(&job_key(CHILD)).map(|row| row.status);
            assert!(status.is_none_or(|status| status == JobStatus::Dead), "{case}: {status:?}");
            assert!(driver.job_row(NEXT_CHILD).waiting.is_none(), "{case}");
            for open in driver.open_evaluations(CHILD) {
                assert_eq!(driver.evaluation(open).wait_until, 0, "{case}");
                let plan = driver.plan(open);
                assert!(driver.commit_plan(plan).outcome_taken, "{case}");
            }
            assert!(driver.open_evaluations(CHILD).is_empty(), "{case}");
            assert!(crate::invariant::check(&driver.state).is_empty(), "{case}");
        }
    }
}

/// As often as somebody registers a job, lets it fail and purges it.
#[test]
fn jobs_that_fail_and_are_purged_leave_no_open_evaluations() {
    let mut driver = Driver::default();
    driver.node("a");
    for _ in 0..15 {
        driver.register_job(job("t", JobKind::Batch, 1));
        waiting(&mut driver, "t", WaitsFor::Replacement);
        let stop = driver.deregister_job("t", true).expect("it makes one");
        let plan = driver.plan(stop);
        assert!(driver.commit_plan(plan).outcome_taken);
    }
    let mut rows = driver.state.evaluations().iter();
    assert!(rows.all(|row| row.status.is_terminal()));
}

/// A plan that was made before its job was purged leaves nothing that waits.
#[test]
fn a_late_outcome_of_a_purged_job_makes_nothing_wait() {
    let mut driver = Driver::default();
    driver.register_job(job("t", JobKind::Batch, 1));
    let open = driver.open_evaluations("t")[0];
    let mut plan = driver.plan(open);
    let mut outcome = outcome(EvaluationStatus::Complete);
    let id = driver.evaluation_id();
    let mut row = Evaluation::new(id, job_key("t"), JobKind::Batch, 50, Trigger::QueuedAllocs);
    row.status = EvaluationStatus::Blocked;
    outcome.evaluations.push(row);
    outcome.failed_groups.insert(GROUP.into(), Metrics::default());
    plan.outcome = Some(outcome);
    driver.deregister_job("t", true);
    assert!(driver.commit_plan(plan).outcome_taken);
    assert!(!driver.state.evaluations().contains(&id));
}

/// A follow-up ends when the allocation that it is for has a successor, or is not wanted any more:
/// it would hold a job that is over for the rest of its delay. One that is still waited for stays.
#[test]
fn a_follow_up_ends_with_what_it_is_for() {
    for ends in [true, false] {
        let mut driver = Driver::default();
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let (id, failed) = waiting(&mut driver, "t", WaitsFor::Replacement);
        let evaluation = driver.evaluate_job("t");
        let mut placement = driver.placement(GROUP, 0, node);
        placement.previous = failed;
        let new = placement.id;
        let plan = driver.plan(evaluation);
        let plan = if ends { plan.with(placement) } else { plan };
        assert!(driver.commit_plan(plan).outcome_taken);
        let expected = if ends { EvaluationStatus::Canceled } else { EvaluationStatus::Pending };
        assert_eq!(driver.evaluation(id).status, expected);
        if ends {
            driver.report(new, ClientStatus::Complete);
        }
        let expected = if ends { JobStatus::Dead } else { JobStatus::Pending };
        assert_eq!(driver.job_row("t").status, expected);
    }
}

/// Another attempt at an evaluation is moot when a later one of the job has placed everything.
#[test]
fn a_retry_ends_when_all_was_placed() {
    for placed in [true, false] {
        let mut driver = Driver::default();
        driver.register_job(job("t", JobKind::Batch, 1));
        let (id, _) = waiting(&mut driver, "t", WaitsFor::Retry);
        let evaluation = driver.evaluate_job("t");
        let mut plan = driver.plan(evaluation);
        if !placed {
            let mut outcome = outcome(EvaluationStatus::Complete);
            outcome.failed_groups.insert(GROUP.into(), Metrics::default());
            plan.outcome = Some(outcome);
        }
        assert!(driver.commit_plan(plan).outcome_taken);
        let expected = if placed { EvaluationStatus::Canceled } else { EvaluationStatus::Pending };
        assert_eq!(driver.evaluation(id).status, expected);
    }
}

fn pause(driver: &mut Driver, pause_eval_broker: bool) {
    let configuration =
        SchedulerConfiguration { pause_eval_broker, ..SchedulerConfiguration::default() };
    driver.accept(Command::from(SetSchedulerConfiguration {
        configuration,
        keep_node_life: false,
        enforce_index: None,
    }));
}

fn delete(ids: &[EvaluationId]) -> Command {
    Command::from(DeleteEvaluations { ids: ids.to_vec() })
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
