//! Jobs: compare-and-set, versions, stop and purge, derived status and counts (D6, facts 1.17 and
//! 4.2 of Nomad).

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    allocation::{ClientStatus, Replacement, StopAllocation},
    command::{Command, Rejection, Reply},
    evaluation::{EvaluationStatus, EvaluationUpdate, Trigger, UpdateEvaluations},
    id::{EvaluationId, Index},
    job::{
        DeregisterJob, EvaluateJob, JobKind, JobSpec, JobStatus, MarkJobVersion, Parameterized,
        RegisterJob, Submission, Task, TaskResources, VersionMark,
    },
    limits,
    settings::{SchedulerConfiguration, SetSchedulerConfiguration},
    testing::{Driver, GROUP, job, job_key, outcome, register, rows, stop_allocation},
    tests::with_leader_changes,
};

fn enforced(driver: &mut Driver, name: &str, count: u32, index: Index) -> Reply {
    let evaluation = driver.evaluation_id();
    driver
        .commit(Command::from(RegisterJob {
            enforce_index: Some(index),
            ..RegisterJob::new(Arc::new(job(name, JobKind::Service, count)), evaluation)
        }))
        .reply
}

fn complete(driver: &mut Driver, evaluation: EvaluationId) {
    let plan = driver.plan(evaluation);
    assert!(driver.commit_plan(plan).outcome_taken);
}

fn template(name: &str) -> JobSpec {
    JobSpec { parameterized: Some(Parameterized::default()), ..job(name, JobKind::Batch, 1) }
}

/// What failed and waits for its delay, or may not be tried again, is replaced at once; what a user
/// ended is not.
#[test]
fn a_forced_evaluation_marks_what_failed_and_has_no_successor() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 4));
    let ids: Vec<_> = (0..4).map(|number| driver.run("t", number, node)).collect();
    let evaluation = driver.evaluation_id();
    driver.accept(stop_allocation(ids[1], Replacement::ByKind, evaluation));
    for id in &ids[..3] {
        driver.report(*id, ClientStatus::Failed);
    }
    let evaluation = driver.evaluate_job("t");
    let mut placement = driver.placement(GROUP, 2, node);
    placement.previous = Some(ids[2]);
    let plan = driver.plan(evaluation).with(placement);
    assert!(driver.commit_plan(plan).outcome_taken);
    for force_reschedule in [false, true] {
        let evaluation = driver.evaluation_id();
        let job = job_key("t");
        driver.accept(Command::from(EvaluateJob { job, force_reschedule, evaluation }));
        let marked: Vec<_> =
            ids.iter().map(|id| driver.allocation(*id).transition.reschedule).collect();
        assert_eq!(marked, [force_reschedule, false, false, false]);
    }
}

/// Only what would wait is written.
#[test]
fn a_stop_without_delay_is_told_to_what_would_wait() {
    for purge in [false, true] {
        let mut driver = Driver::default();
        let node = driver.node("a");
        let mut spec = job("t", JobKind::Service, 1);
        spec.groups.push(crate::testing::group("late", 1));
        spec.groups[1].tasks[0].shutdown_delay_ms = 5_000;
        driver.register_job(spec);
        let at_once = driver.run("t", 0, node);
        let evaluation = driver.evaluate_job("t");
        let placement = driver.placement("late", 0, node);
        let late = placement.id;
        let plan = driver.plan(evaluation).with(placement);
        assert!(driver.commit_plan(plan).outcome_taken);
        let evaluation = driver.evaluation_id();
        driver.accept(Command::from(DeregisterJob {
            job: job_key("t"),
            purge,
            evaluation,
            evaluation_priority: None,
            no_shutdown_delay: true,
        }));
        let marked = [at_once, late].map(|id| driver.allocation(id).transition.no_shutdown_delay);
        assert_eq!(marked, [false, true]);
    }
}

/// What is to end already, and waits for its delay, is told as well: by a stop of the job and by
/// one of the instance.
#[test]
fn a_second_stop_without_delay_reaches_what_waits_for_it() {
    for of_job in [true, false] {
        let mut driver = Driver::default();
        let node = driver.node("a");
        let mut spec = job("t", JobKind::Service, 1);
        spec.groups[0].shutdown_delay_ms = 5_000;
        driver.register_job(spec);
        let id = driver.run("t", 0, node);
        let stop = |driver: &mut Driver, no_shutdown_delay| DeregisterJob {
            job: job_key("t"),
            purge: false,
            evaluation: driver.evaluation_id(),
            evaluation_priority: None,
            no_shutdown_delay,
        };
        let first = stop(&mut driver, false);
        let evaluation = first.evaluation;
        driver.accept(Command::from(first));
        let plan = driver.plan(evaluation).stopping(id, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        assert!(!driver.allocation(id).transition.no_shutdown_delay);
        if of_job {
            let again = stop(&mut driver, true);
            driver.accept(Command::from(again));
        } else {
            let evaluation = driver.evaluation_id();
            driver.accept(Command::from(StopAllocation {
                id,
                replacement: Replacement::ByKind,
                no_shutdown_delay: true,
                evaluation,
            }));
        }
        assert!(driver.allocation(id).transition.no_shutdown_delay);
    }
}

/// The names of children begin with their parent's.
#[test]
fn an_id_that_leaves_no_room_for_children_is_refused() {
    let long = "x".repeat(limits::PARENT_ID_BYTES_MAX + 1);
    let block = Parameterized::default();
    let mut spec = JobSpec { parameterized: Some(block), ..job(&long, JobKind::Batch, 1) };
    assert!(spec.check().unwrap_err().contains("id of a parameterized job"));
    spec.parameterized = None;
    assert_eq!(spec.check(), Ok(()));
}

/// A job's text goes with its version, and one that is too long comes in by no way.
#[test]
fn a_submission_is_kept_with_its_version_and_bounded() {
    let mut driver = Driver::default();
    let text = |source: &str| Submission { source: source.into(), ..Submission::default() };
    let register = |driver: &mut Driver, count: u32, submission: Option<Submission>| {
        let evaluation = driver.evaluation_id();
        driver
            .commit(Command::from(RegisterJob {
                submission: submission.map(Arc::new),
                ..RegisterJob::new(Arc::new(job("t", JobKind::Batch, count)), evaluation)
            }))
            .reply
    };
    let kept = |driver: &Driver| -> Vec<Option<String>> {
        let rows = driver.state.job_versions().iter();
        rows.map(|row| Some(row.submission.as_ref()?.source.to_string())).collect()
    };
    let some = |text: &str| Some(text.to_owned());
    register(&mut driver, 1, Some(text("one")));
    register(&mut driver, 1, None);
    assert_eq!(kept(&driver), [some("one")], "nobody said otherwise");
    register(&mut driver, 1, Some(text("two")));
    register(&mut driver, 2, Some(text("three")));
    assert_eq!(kept(&driver), [some("two"), some("three")]);
    let long = text(&"x".repeat(limits::SUBMISSION_BYTES_MAX + 1));
    let refused = register(&mut driver, 3, Some(long));
    assert!(matches!(refused, Reply::Rejected(Rejection::Invalid(_))), "{refused:?}");
    for count in 3..20 {
        register(&mut driver, count, Some(text("more")));
    }
    assert_eq!(kept(&driver).len(), limits::JOB_VERSIONS_MAX);
}

/// D6: the error texts are exactly Nomad's.
#[test]
fn a_registration_enforces_the_index() {
    let mut driver = Driver::default();
    let text = |reply: Reply| {
        let Reply::Rejected(rejection) = reply else { panic!("not rejected: {reply:?}") };
        rejection.to_string()
    };
    let missing = enforced(&mut driver, "t", 1, 7);
    assert_eq!(text(missing), "Enforcing job modify index 7: job does not exist");
    let first = enforced(&mut driver, "t", 1, 0);
    let index = driver.job_row("t").job_modify_index;
    assert!(matches!(first, Reply::Job { found: false, job_modify_index, .. }
        if job_modify_index == index));
    let exists = enforced(&mut driver, "t", 1, 0);
    assert_eq!(text(exists), "Enforcing job modify index 0: job already exists");
    let other = enforced(&mut driver, "t", 1, index + 1);
    assert_eq!(
        text(other),
        format!(
            "Enforcing job modify index {}: job exists with conflicting job modify index: {index}",
            index + 1
        )
    );
    assert_eq!(driver.job_row("t").version, 0);
    let second = enforced(&mut driver, "t", 2, index);
    assert!(matches!(second, Reply::Job { found: true, .. }), "{second:?}");
    assert_eq!(driver.job_row("t").version, 1);
    driver.deregister_job("t", false);
    let stopped = enforced(&mut driver, "t", 1, 0);
    assert_eq!(text(stopped), "Enforcing job modify index 0: job already exists");
}

/// D6: registering an unchanged spec creates an evaluation but no version.
#[test]
fn an_unchanged_job_keeps_its_version() {
    with_leader_changes(|driver| {
        let first = driver.register_job(job("t", JobKind::Service, 1));
        let before = driver.job_row("t").clone();
        let second = driver.register_job(job("t", JobKind::Service, 1));
        let row = driver.job_row("t");
        assert_eq!((row.version, row.job_modify_index), (0, before.job_modify_index));
        assert_eq!(row.submitted_at, before.submitted_at);
        assert_eq!(driver.state.versions_of(&job_key("t"), row.create_index).len(), 1);
        let evaluation = driver.evaluation(second);
        assert_eq!((evaluation.trigger, evaluation.priority), (Trigger::JobRegister, 50));
        assert_eq!(evaluation.job_modify_index, before.job_modify_index);
        assert_eq!(driver.open_evaluations("t"), [first, second]);
    });
}

#[test]
fn a_changed_job_gets_a_version_and_its_evaluation_in_one_entry() {
    with_leader_changes(|driver| {
        driver.register_job(job("t", JobKind::Service, 1));
        let made = driver.register_job(JobSpec { priority: 70, ..job("t", JobKind::Service, 2) });
        let index = driver.state.index;
        let row = driver.job_row("t");
        assert_eq!((row.version, row.job_modify_index, row.priority), (1, index, 70));
        let evaluation = driver.evaluation(made);
        assert_eq!((evaluation.create_index, evaluation.priority), (index, 70));
        assert_eq!(driver.state.current_spec(row).unwrap().groups[0].count, 2);
    });
}

#[test]
fn a_jobs_kind_does_not_change() {
    let mut driver = Driver::default();
    driver.register_job(job("t", JobKind::Service, 1));
    let evaluation = driver.evaluation_id();
    let rejection = driver.reject(register(job("t", JobKind::Batch, 1), evaluation));
    let text = "cannot change the type of job \"t\" from service to batch: stop and purge it first";
    assert_eq!(rejection, Rejection::Invalid(text.into()));
    driver.deregister_job("t", true);
    driver.register_job(job("t", JobKind::Batch, 1));
    assert_eq!(driver.job_row("t").kind, JobKind::Batch);
}

#[test]
fn a_running_job_does_not_become_a_template_nor_the_other_way_round() {
    let mut driver = Driver::default();
    let runs = || job("t", JobKind::Batch, 1);
    let refused = |driver: &mut Driver, spec, text: &str| {
        let evaluation = driver.evaluation_id();
        let rejection = driver.reject(register(spec, evaluation));
        assert_eq!(rejection, Rejection::Invalid(text.into()));
    };
    driver.register_job(runs());
    let text = "cannot change job \"t\" from one that runs to a parameterized job: stop and purge it first";
    refused(&mut driver, template("t"), text);
    driver.deregister_job("t", true);
    let evaluation = driver.evaluation_id();
    driver.accept(register(template("t"), evaluation));
    let text = "cannot change job \"t\" from a parameterized job to one that runs: stop and purge it first";
    refused(&mut driver, runs(), text);
}

#[test]
fn a_stopped_job_that_is_registered_again_gets_a_version() {
    with_leader_changes(|driver| {
        driver.register_job(job("t", JobKind::Service, 1));
        let created = driver.job_row("t").create_index;
        driver.deregister_job("t", false);
        assert!(driver.job_row("t").stop);
        driver.register_job(job("t", JobKind::Service, 1));
        let row = driver.job_row("t");
        assert_eq!((row.stop, row.version, row.create_index), (false, 2, created));
        assert_eq!(row.status, JobStatus::Pending);
    });
}

/// Allocations of a purged job are evaluated until they are stopped, even if the only evaluation
/// fails or a template takes the job's name.
#[test]
fn allocations_of_a_purged_job_are_evaluated_until_they_are_stopped() {
    for is_name_taken in [false, true] {
        with_leader_changes(|driver| {
            let node = driver.node("a");
            driver.register_job(job("t", JobKind::Service, 1));
            let running = driver.run("t", 0, node);
            let id = driver.deregister_job("t", true).unwrap();
            if is_name_taken {
                let evaluation = driver.evaluation_id();
                driver.accept(register(template("t"), evaluation));
            }
            let (follow_up, wait_until) = (driver.evaluation_id(), driver.now + 60_000);
            let update = EvaluationUpdate {
                id,
                status: EvaluationStatus::Failed,
                description: "evaluation reached delivery limit (3)".into(),
                follow_up: Some((follow_up, wait_until)),
            };
            driver.accept(Command::from(UpdateEvaluations { updates: vec![update] }));
            assert_eq!(driver.evaluation(follow_up).previous, Some(id));
            let made = driver.liveness("a", crate::node::Liveness::Down);
            assert_eq!(driver.evaluation(made[0]).kind, JobKind::Service);
            let plan = driver.plan(made[0]).stopping(running, Some(ClientStatus::Lost));
            assert!(driver.commit_plan(plan).outcome_taken);
            assert_eq!(driver.allocation(running).client, ClientStatus::Lost);
            assert_eq!(driver.state.to_evaluate(&job_key("t")), None);
        });
    }
}

#[test]
fn a_template_gets_no_evaluation() {
    let mut driver = Driver::default();
    let evaluation = driver.evaluation_id();
    let reply = driver.accept(register(template("t"), evaluation));
    assert!(matches!(reply, Reply::Job { evaluation: None, .. }), "{reply:?}");
    assert!(driver.state.evaluations.is_empty());
    assert_eq!(driver.job_row("t").status, JobStatus::Running);
    let evaluate =
        Command::from(EvaluateJob { job: job_key("t"), force_reschedule: false, evaluation });
    let text = "can't evaluate parameterized job";
    assert_eq!(driver.reject(evaluate), Rejection::Invalid(text.into()));
    assert_eq!(driver.deregister_job("t", false), None);
    assert_eq!(driver.job_row("t").status, JobStatus::Dead);
    assert!(driver.state.evaluations.is_empty());
}

#[test]
fn registrations_are_checked_against_the_cluster() {
    let mut driver = Driver::default();
    let evaluation = driver.evaluation_id();
    let mut spec = job("t", JobKind::Service, 1);
    spec.key.namespace = "nowhere".into();
    let rejection = driver.reject(register(spec, evaluation));
    let text = "namespace \"nowhere\" does not exist";
    assert_eq!(rejection, Rejection::Invalid(text.into()));
    let spec = JobSpec { node_pool: "nowhere".into(), ..job("t", JobKind::Service, 1) };
    let rejection = driver.reject(register(spec, evaluation));
    assert_eq!(rejection, Rejection::Invalid("node pool \"nowhere\" does not exist".into()));

    driver.register_job(job("t", JobKind::Service, 1));
    let used = driver.open_evaluations("t")[0];
    let rejection = driver.reject(register(job("u", JobKind::Service, 1), used));
    assert_eq!(rejection, Rejection::Invalid("evaluation id exists already".into()));

    let configuration = SchedulerConfiguration {
        reject_job_registration: true,
        ..SchedulerConfiguration::default()
    };
    driver.accept(Command::from(SetSchedulerConfiguration {
        configuration,
        keep_node_life: true,
        enforce_index: None,
    }));
    let rejection = driver.reject(register(job("t", JobKind::Service, 1), evaluation));
    assert_eq!(rejection, Rejection::RegistrationDisabled);
}

#[test]
fn the_newest_six_versions_are_kept_and_those_that_run() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 1));
        let id = driver.run("t", 0, node);
        for count in 2..=10 {
            driver.register_job(job("t", JobKind::Service, count));
        }
        let created = driver.job_row("t").create_index;
        let versions = |driver: &Driver| -> Vec<u64> {
            let rows = driver.state.versions_of(&job_key("t"), created);
            rows.iter().map(|row| row.version).collect()
        };
        assert_eq!(versions(driver), [9, 8, 7, 6, 5, 4, 0]);
        assert!(driver.state.allocation_spec(driver.allocation(id)).is_some());
        let evaluation = driver.evaluate_job("t");
        let plan = driver.plan(evaluation).updating(id);
        assert!(driver.commit_plan(plan).outcome_taken);
        let kept: Vec<u64> = (4..10).rev().collect();
        assert_eq!(kept.len(), limits::JOB_VERSIONS_MAX);
        assert_eq!(versions(driver), kept, "nothing runs version 0 any more");
    });
}

/// A version that nothing runs any more leaves the history at once; what ended of it still finds
/// its spec.
#[test]
fn a_version_leaves_the_history_with_what_runs_it() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let submission = Submission { source: "text".into(), ..Submission::default() };
    let evaluation = driver.evaluation_id();
    driver.accept(Command::from(RegisterJob {
        submission: Some(Arc::new(submission)),
        ..RegisterJob::new(Arc::new(job("t", JobKind::Service, 1)), evaluation)
    }));
    let (a, b) = (driver.run("t", 0, node), driver.run("t", 1, node));
    for count in 2..=10 {
        driver.register_job(job("t", JobKind::Service, count));
    }
    let first = |driver: &Driver| {
        let created = driver.job_row("t").create_index;
        let listed = history(driver, "t").iter().any(|(version, _)| *version == 0);
        let row = driver.state.job_versions().get(&(job_key("t"), created, 0)).cloned();
        (listed, row.map(|row| row.submission.is_some()))
    };
    driver.report(a, ClientStatus::Failed);
    driver.report(b, ClientStatus::Complete);
    assert_eq!(first(&driver), (true, Some(true)), "one has failed and waits for its successor");
    let evaluation = driver.evaluate_job("t");
    let mut next = driver.placement(crate::testing::GROUP, 0, node);
    next.previous = Some(a);
    let plan = driver.plan(evaluation).stopping(a, None).with(next);
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(first(&driver), (false, Some(false)));
    assert!(driver.state.allocation_spec(driver.allocation(a)).is_some());
}

/// Facts 1.17: stopping an unknown job gives no error and an empty answer.
#[test]
fn stopping_an_unknown_job_changes_nothing() {
    let mut driver = Driver::default();
    let before = rows(&driver.state);
    assert_eq!(driver.deregister_job("t", false), None);
    assert_eq!(driver.deregister_job("t", true), None);
    assert_eq!(rows(&driver.state), before);
}

#[test]
fn a_stop_cancels_what_is_blocked_and_makes_an_evaluation() {
    with_leader_changes(|driver| {
        driver.register_job(job("t", JobKind::Service, 1));
        let first = driver.open_evaluations("t")[0];
        let mut again = outcome(EvaluationStatus::Blocked);
        again.queued = BTreeMap::from([(GROUP.into(), 1)]);
        let plan = crate::Plan { outcome: Some(again), ..driver.plan(first) };
        assert!(driver.commit_plan(plan).outcome_taken);
        let made = driver.deregister_job("t", false).unwrap();
        assert_eq!(driver.evaluation(first).status, EvaluationStatus::Canceled);
        assert_eq!(driver.evaluation(made).trigger, Trigger::JobDeregister);
        assert_eq!(driver.open_evaluations("t"), [made]);
        let row = driver.job_row("t");
        assert!(row.stop && row.queued.is_empty());
        assert_eq!(row.job_modify_index, driver.state.index);
    });
}

#[test]
fn a_purge_forgets_the_job_and_keeps_what_runs() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 1));
        let id = driver.run("t", 0, node);
        driver.register_job(job("t", JobKind::Service, 2));
        let made = driver.deregister_job("t", true).unwrap();
        assert!(driver.state.jobs.is_empty());
        assert_eq!(driver.state.job_versions.len(), 1, "the version that runs");
        assert_eq!(driver.evaluation(made).status, EvaluationStatus::Pending);
        assert!(driver.allocation(id).is_live());
        let old = driver.allocation(id).job_create_index;
        let running = |driver: &Driver, create_index| {
            let index = driver.state.job_index(&job_key("t")).unwrap();
            index.summary_of(create_index).map(|(_, counts)| counts.running).sum::<u32>()
        };
        assert_eq!(running(driver, old), 1);

        driver.register_job(job("t", JobKind::Batch, 1));
        let row = driver.job_row("t");
        assert_eq!((running(driver, old), running(driver, row.create_index)), (1, 0));
        assert_eq!((row.version, row.kind), (0, JobKind::Batch));
        assert_ne!(row.create_index, driver.allocation(id).job_create_index);
    });
}

/// Facts 4.2: a job is running while an allocation is live, then pending while an evaluation is
/// open, then dead. A new job is pending.
#[test]
fn a_jobs_status_follows_from_what_is_alive() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        let first = driver.register_job(job("t", JobKind::Service, 1));
        assert_eq!(driver.job_row("t").status, JobStatus::Pending);
        complete(driver, first);
        assert_eq!(driver.job_row("t").status, JobStatus::Dead, "nothing is to come");
        let id = driver.run("t", 0, node);
        assert_eq!(driver.job_row("t").status, JobStatus::Running);
        let made = driver.report(id, ClientStatus::Failed);
        assert_eq!(driver.job_row("t").status, JobStatus::Pending, "to be evaluated");
        complete(driver, made[0]);
        assert_eq!(driver.job_row("t").status, JobStatus::Dead);

        let id = driver.run("t", 0, node);
        let stop = driver.deregister_job("t", false).unwrap();
        assert_eq!(driver.job_row("t").status, JobStatus::Running, "until it was stopped");
        let plan = crate::Plan { outcome: None, ..driver.plan(stop).stopping(id, None) };
        driver.commit_plan(plan);
        assert_eq!(driver.job_row("t").status, JobStatus::Dead, "nothing comes of it any more");
        complete(driver, stop);
        assert_eq!(driver.job_row("t").status, JobStatus::Dead);
    });
}

/// Facts 4.2: system jobs and templates run until stopped.
#[test]
fn a_system_job_runs_until_it_is_stopped() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        let first = driver.register_job(job("t", JobKind::System, 1));
        assert_eq!(driver.job_row("t").status, JobStatus::Running);
        complete(driver, first);
        assert_eq!(driver.job_row("t").status, JobStatus::Running);
        driver.run("t", 0, node);
        driver.deregister_job("t", false);
        assert_eq!(driver.job_row("t").status, JobStatus::Dead);
    });
}

/// GH-4949 of Nomad: counts are never negative and add up.
#[test]
fn counts_add_up_whatever_is_reported() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 3));
    let ids: Vec<_> = (0..3).map(|number| driver.place("t", number, node)).collect();
    for id in &ids {
        for status in ClientStatus::ALL.into_iter().cycle().take(13) {
            driver.report(*id, status);
            let index = driver.state.job_index(&job_key("t")).unwrap();
            let group = index.summary.values().next().unwrap();
            let parts = [
                group.starting,
                group.running,
                group.complete,
                group.failed,
                group.lost,
                group.unknown,
            ];
            assert_eq!(parts.iter().sum::<u32>(), 3, "{group:?}");
        }
    }
    let index = driver.state.job_index(&job_key("t")).unwrap();
    let complete: Vec<_> = index.summary.values().map(|group| group.complete).collect();
    assert_eq!(complete, [3], "the first end counts");
}

#[test]
fn a_system_job_is_evaluated_for_nodes_it_may_run_on() {
    let mut driver = Driver::default();
    driver.register_job(job("everywhere", JobKind::System, 1));
    let spec = JobSpec { datacenters: vec!["dc2".into()], ..job("dc2", JobKind::System, 1) };
    driver.register_job(spec);
    driver.register_job(job("stopped", JobKind::Sysbatch, 1));
    driver.deregister_job("stopped", false);
    let before = driver.state.evaluations.len();
    let node = driver.node("a");
    assert_eq!(driver.state.evaluations.len(), before + 1);
    let made = driver.state.evaluations.iter().filter(|row| row.node == Some(node));
    let jobs: Vec<_> = made.map(|row| (&*row.job.id, row.trigger)).collect();
    assert_eq!(jobs, [("everywhere", Trigger::NodeUpdate)]);
}

/// What a revert goes back to: the newest version with the mark, of this incarnation only.
#[test]
fn the_last_stable_version_is_the_newest_one_that_is_marked() {
    let mut driver = Driver::default();
    for count in 1..=4 {
        driver.register_job(job("t", JobKind::Service, count));
    }
    let created = driver.job_row("t").create_index;
    let stable = |driver: &Driver| {
        let found = driver.state.last_stable_version(&job_key("t"), created);
        found.map(|version| version.version)
    };
    let mark = |driver: &mut Driver, version, stable| {
        let index = driver.state.index();
        let mut changes = crate::table::ChangeSet::default();
        let mut turn = crate::apply::Turn::new(&mut driver.state, &mut changes, index);
        turn.set_version_stable(&job_key("t"), created, version, stable)
    };
    assert_eq!(stable(&driver), None);
    assert!(mark(&mut driver, 2, true) && mark(&mut driver, 0, true));
    assert_eq!(stable(&driver), Some(2));
    assert!(mark(&mut driver, 2, false));
    assert_eq!(stable(&driver), Some(0));
    assert!(!mark(&mut driver, 9, true), "there is no such version");
    assert_eq!(driver.state.last_stable_version(&job_key("t"), created + 1), None);
}

/// Whatever number of versions fails after it, there is one to go back to, and no more than one is
/// kept for that.
#[test]
fn the_newest_stable_version_stays_in_the_history() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        let submission = Submission { source: "text".into(), ..Submission::default() };
        let evaluation = driver.evaluation_id();
        driver.accept(Command::from(RegisterJob {
            submission: Some(Arc::new(submission)),
            ..RegisterJob::new(Arc::new(job("t", JobKind::Service, 1)), evaluation)
        }));
        let created = driver.job_row("t").create_index;
        let versions = |driver: &Driver| -> Vec<u64> {
            history(driver, "t").into_iter().map(|(version, _)| version).collect()
        };
        let stable = |driver: &Driver| {
            let found = driver.state.last_stable_version(&job_key("t"), created);
            found.map(|row| (row.version, row.submission.is_some()))
        };
        let set = |driver: &mut Driver, version, stable| {
            driver.accept(mark(VersionMark::Stable { version, stable }));
        };
        let ended = driver.run("t", 0, node);
        set(driver, 0, true);
        for count in 2..=9 {
            driver.register_job(job("t", JobKind::Service, count));
        }
        driver.report(ended, ClientStatus::Complete);
        assert_eq!(versions(driver), [8, 7, 6, 5, 4, 3, 0]);
        assert_eq!(stable(driver), Some((0, true)));
        // It is kept by its mark alone. What has ended of it keeps its spec, not its place in the
        // history.
        set(driver, 4, true);
        assert_eq!(versions(driver), [8, 7, 6, 5, 4, 3]);
        assert!(driver.state.allocation_spec(driver.allocation(ended)).is_some());
        set(driver, 4, false);
        assert_eq!(stable(driver), None, "it has left for good");
        set(driver, 3, true);
        driver.register_job(job("t", JobKind::Service, 10));
        assert_eq!(versions(driver), [9, 8, 7, 6, 5, 4, 3]);
        driver.accept(tag(Some(3), "works"));
        assert_eq!(versions(driver), [9, 8, 7, 6, 5, 4, 3], "once, for two reasons");
        driver.accept(mark(VersionMark::Untag { name: "works".into() }));
        assert_eq!(stable(driver), Some((3, false)));
        set(driver, 3, false);
        assert_eq!(versions(driver), [9, 8, 7, 6, 5, 4]);
        set(driver, 4, true);
        driver.register_job(job("t", JobKind::Service, 11));
        driver.deregister_job("t", true);
        let left = driver.state.job_versions().iter().map(|row| row.version);
        assert_eq!(left.collect::<Vec<_>>(), [0], "what has ended still finds its spec");
    });
}

/// The versions kept, newest first, with whether each is a stop.
fn history(driver: &Driver, name: &str) -> Vec<(u64, bool)> {
    let created = driver.job_row(name).create_index;
    let rows = driver.state.versions_of(&job_key(name), created);
    rows.iter().map(|row| (row.version, row.stop)).collect()
}

#[test]
fn a_stop_is_a_version_of_its_own() {
    with_leader_changes(|driver| {
        driver.register_job(job("t", JobKind::Service, 1));
        driver.deregister_job("t", false);
        assert!(driver.job_row("t").stop);
        assert_eq!(history(driver, "t"), [(1, true), (0, false)]);
        driver.deregister_job("t", false);
        assert_eq!(history(driver, "t"), [(1, true), (0, false)], "it was stopped already");
        driver.register_job(job("t", JobKind::Service, 1));
        assert!(!driver.job_row("t").stop);
        assert_eq!(history(driver, "t"), [(2, false), (1, true), (0, false)]);
    });
}

/// The history says how the job stood then, not how it stands.
#[test]
fn a_version_keeps_the_status_that_the_job_had() {
    use JobStatus::{Dead, Pending, Running};
    with_leader_changes(|driver| {
        let statuses = |driver: &Driver, name: &str| -> Vec<JobStatus> {
            let key = job_key(name);
            let versions = driver.state.versions_of(&key, driver.job_row(name).create_index);
            versions.iter().map(|version| version.status).collect()
        };
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 1));
        let t = driver.run("t", 0, a);
        driver.report(t, ClientStatus::Running);
        driver.register_job(JobSpec { priority: 70, ..job("t", JobKind::Service, 1) });
        assert_eq!(statuses(driver, "t"), [Running, Pending]);
        driver.accept(mark(VersionMark::Stable { version: 0, stable: true }));
        assert_eq!(statuses(driver, "t"), [Running, Running], "marked while it ran");
        driver.deregister_job("t", false);
        driver.report(t, ClientStatus::Complete);
        assert_eq!(statuses(driver, "t"), [Running; 3]);
        driver.register_job(job("s", JobKind::System, 1));
        driver.deregister_job("s", false);
        assert_eq!(statuses(driver, "s"), [Dead, Running], "it runs until it is stopped");
    });
}

fn mark(mark: VersionMark) -> Command {
    Command::from(MarkJobVersion { job: job_key("t"), mark })
}

fn tag(version: Option<u64>, name: &str) -> Command {
    mark(VersionMark::Tag { version, name: name.into(), description: "works".into() })
}

#[test]
fn a_tagged_version_is_kept_until_the_tag_is_taken_off() {
    with_leader_changes(|driver| {
        for count in 1..=3 {
            driver.register_job(job("t", JobKind::Service, count));
        }
        driver.accept(tag(Some(0), "first"));
        driver.accept(tag(None, "third"));
        for count in 4..=10 {
            driver.register_job(job("t", JobKind::Service, count));
        }
        let versions = |driver: &Driver| -> Vec<u64> {
            history(driver, "t").into_iter().map(|(version, _)| version).collect()
        };
        assert_eq!(versions(driver), [9, 8, 7, 6, 5, 4, 2, 0]);
        // The same name on another version is refused; on its own version its description changes.
        let taken = driver.reject(tag(Some(9), "first"));
        assert!(taken.to_string().contains("already exists on version 0"), "{taken}");
        driver.accept(mark(VersionMark::Tag {
            version: Some(0),
            name: "first".into(),
            description: "worked".into(),
        }));
        let created = driver.job_row("t").create_index;
        let row = driver.state.job_versions().get(&(job_key("t"), created, 0)).unwrap().clone();
        assert_eq!(row.tag.as_ref().map(|tag| &*tag.description), Some("worked"));
        driver.accept(mark(VersionMark::Untag { name: "first".into() }));
        assert_eq!(versions(driver), [9, 8, 7, 6, 5, 4, 2], "nothing keeps version 0 any more");
        driver.accept(mark(VersionMark::Stable { version: 2, stable: true }));
        let stable = driver.state.last_stable_version(&job_key("t"), created).unwrap();
        assert_eq!(stable.version, 2);
        assert!(stable.tag.is_some(), "a mark leaves the tag");
        for (command, text) in [
            (tag(Some(1), "gone"), "has no version 1"),
            (tag(Some(9), ""), "no name"),
            (mark(VersionMark::Untag { name: "first".into() }), "not found"),
            (mark(VersionMark::Stable { version: 1, stable: true }), "has no version 1"),
        ] {
            let rejection = driver.reject(command).to_string();
            assert!(rejection.contains(text), "{rejection}");
        }
    });
}

#[test]
fn tags_of_a_job_have_a_bound() {
    let mut driver = Driver::default();
    for count in 0..=limits::JOB_TAGS_MAX {
        driver.register_job(job("t", JobKind::Service, 1 + u32::try_from(count).unwrap()));
        let tag = tag(None, &format!("tag-{count}"));
        if count < limits::JOB_TAGS_MAX {
            driver.accept(tag);
        } else {
            let rejection = driver.reject(tag).to_string();
            assert!(rejection.contains("tagged versions"), "{rejection}");
        }
    }
}

/// Resources of tasks that are there already stay as the job has them; new tasks get what is asked
/// for.
#[test]
fn a_registration_keeps_resources_when_it_is_asked_to() {
    let mut driver = Driver::default();
    let resources = |cpu_mhz| TaskResources { cpu_mhz, memory_mb: 64, memory_mb_max: 0 };
    let mut spec = job("t", JobKind::Service, 1);
    spec.groups[0].tasks[0].resources = resources(100);
    driver.register_job(spec.clone());
    let mut changed = spec;
    changed.groups[0].count = 3;
    changed.groups[0].tasks[0].resources = resources(500);
    let new = Task { name: "new".into(), ..changed.groups[0].tasks[0].clone() };
    changed.groups[0].tasks.push(new);
    let mut registered = |preserve_resources| {
        let evaluation = driver.evaluation_id();
        driver.accept(Command::from(RegisterJob {
            preserve_resources,
            ..RegisterJob::new(Arc::new(changed.clone()), evaluation)
        }));
        let row = driver.state.jobs().get(&job_key("t")).unwrap();
        let group = driver.state.current_spec(row).unwrap().groups[0].clone();
        let cpu: Vec<_> = group.tasks.iter().map(|task| task.resources.cpu_mhz).collect();
        (group.count, cpu)
    };
    assert_eq!(registered(true), (3, vec![100, 500]));
    assert_eq!(registered(false), (3, vec![500, 500]));
}

/// A version that is a stop is registered as one: the job has its spec and does not run.
#[test]
fn a_stop_is_registered_as_a_version() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 1));
    driver.run("t", 0, node);
    let mut other = job("t", JobKind::Service, 2);
    other.meta.insert("a".into(), "b".into());
    let register = |driver: &mut Driver, stop| {
        let evaluation = driver.evaluation_id();
        driver.accept(Command::from(RegisterJob {
            stop,
            ..RegisterJob::new(Arc::new(other.clone()), evaluation)
        }));
        let row = driver.state.jobs().get(&job_key("t")).unwrap().clone();
        let version = driver.state.versions_of(&row.key, row.create_index)[0].clone();
        assert_eq!((version.version, version.stop), (row.version, row.stop));
        assert_eq!(version.spec.groups[0].count, 2);
        (row.version, row.stop)
    };
    assert_eq!(register(&mut driver, true), (1, true));
    assert_eq!(register(&mut driver, true), (1, true), "it is the same version");
    assert_eq!(register(&mut driver, false), (2, false));
}
