//! Allocations and evaluations: reports of agents, a user's stop, status changes of evaluations.

use crate::{
    allocation::{
        ClientStatus, ExpireRuns, NodeReport, RUN_TIME_OVER, Replacement, TaskEvent, TaskState,
        UpdateAllocations,
    },
    command::{Command, Rejection},
    effect::Effect,
    evaluation::{EvaluationStatus, EvaluationUpdate, Trigger, UpdateEvaluations},
    id::AllocationId,
    job::JobKind,
    limits,
    node::EvaluateNode,
    testing::{Driver, START_MS, description, job, rows, stop_allocation},
    tests::with_leader_changes,
};

fn running(kind: JobKind) -> (Driver, AllocationId) {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", kind, 1));
    let id = driver.run("t", 0, node);
    (driver, id)
}

/// A report is ignored when it is late or comes from another node or incarnation. An agent cannot
/// report an end that only the servers decide.
#[test]
fn reports_that_do_not_count_change_nothing() {
    let (mut driver, id) = running(JobKind::Service);
    let other = driver.node("b");
    let before = rows(&driver.state);
    let mut late = driver.update(id, ClientStatus::Failed);
    late.sequence = driver.allocation(id).client_sequence;
    driver.report_update(late);
    driver.report(id, ClientStatus::Lost);
    let good = driver.update(id, ClientStatus::Failed);
    let node = driver.allocation(id).node;
    for (node, incarnation) in [(other, 1), (node, 2), (node, 0)] {
        let report = NodeReport {
            node,
            incarnation,
            updates: vec![good.clone()],
            evaluation_ids: Vec::new(),
        };
        driver.accept(Command::from(UpdateAllocations { reports: vec![report] }));
    }
    assert_eq!(rows(&driver.state), before);
    driver.report_update(good);
    assert_eq!(driver.allocation(id).client, ClientStatus::Failed);
}

#[test]
fn an_end_nobody_asked_for_is_evaluated() {
    for (kind, status, evaluated) in [
        (JobKind::Service, ClientStatus::Failed, true),
        (JobKind::Service, ClientStatus::Complete, true),
        (JobKind::Service, ClientStatus::Running, false),
        (JobKind::Batch, ClientStatus::Failed, true),
        (JobKind::Batch, ClientStatus::Complete, false),
        (JobKind::Sysbatch, ClientStatus::Complete, false),
    ] {
        let (mut driver, id) = running(kind);
        let made = driver.report(id, status);
        assert_eq!(made.len(), usize::from(evaluated), "{kind:?} {status:?}");
        for id in made {
            assert_eq!(driver.evaluation(id).trigger, Trigger::AllocFailure);
        }
    }
    let (mut driver, id) = running(JobKind::Service);
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).stopping(id, None);
    driver.commit_plan(plan);
    assert_eq!(driver.report(id, ClientStatus::Complete), [], "it was asked for");
}

/// A deployment takes a system job's nodes step by step: one whose instance ends while it waits for
/// its step gets the new version.
#[test]
fn an_older_instance_of_a_system_job_that_ends_is_evaluated() {
    let (mut driver, id) = running(JobKind::System);
    assert_eq!(driver.report(id, ClientStatus::Complete), [], "its agent starts it again");
    let (mut driver, id) = running(JobKind::System);
    let mut changed = job("t", JobKind::System, 1);
    changed.groups[0].tasks[0].user = "other".into();
    driver.register_job(changed);
    assert_eq!(driver.report(id, ClientStatus::Complete).len(), 1);
}

/// An agent's report changes `modify_index` only; agents pull by the index of the servers' changes.
#[test]
fn a_report_is_not_a_change_by_the_servers() {
    let (driver, id) = running(JobKind::Service);
    let placed = driver.allocation(id).create_index;
    assert_eq!(driver.allocation(id).server_modify_index, placed);
    assert!(driver.allocation(id).modify_index > placed);
}

#[test]
fn events_of_a_task_are_bounded() {
    let (mut driver, id) = running(JobKind::Service);
    let mut update = driver.update(id, ClientStatus::Running);
    let event = |at_ms| TaskEvent {
        kind: "Restarting".into(),
        at_ms,
        message: "".into(),
        exit_code: Some(1),
        signal: None,
    };
    let events = (0..25).map(event).collect();
    let task = TaskState { events, ..TaskState::default() };
    update.tasks = Some([("server".into(), task)].into());
    driver.report_update(update);
    let kept = &driver.allocation(id).tasks["server"].events;
    assert_eq!((kept.len(), kept[0].at_ms), (limits::TASK_EVENTS_MAX, 15));
}

/// A report that says nothing of the tasks leaves them; one that says that there are none does not.
#[test]
fn tasks_that_a_report_leaves_out_stay() {
    let (mut driver, id) = running(JobKind::Service);
    let task = TaskState { restarts: 3, ..TaskState::default() };
    for (tasks, restarts) in [
        (Some([("server".into(), task)].into()), Some(3)),
        (None, Some(3)),
        (Some([].into()), None),
    ] {
        let mut update = driver.update(id, ClientStatus::Running);
        update.tasks = tasks;
        driver.report_update(update);
        let kept = driver.allocation(id).tasks.get("server");
        assert_eq!(kept.map(|task| task.restarts), restarts);
    }
}

#[test]
fn past_reschedules_are_bounded() {
    let (mut driver, id) = running(JobKind::Service);
    let node = driver.allocation(id).node;
    let evaluation = driver.evaluate_job("t");
    let mut placement = driver.placement(crate::testing::GROUP, 1, node);
    let event = |at| crate::allocation::RescheduleEvent { at, previous: id, node, delay_ms: 5 };
    placement.reschedules = (0..104).map(event).collect();
    let new = placement.id;
    let plan = driver.plan(evaluation).with(placement);
    assert!(driver.commit_plan(plan).outcome_taken);
    let kept = &driver.allocation(new).reschedules;
    assert_eq!((kept.len(), kept[0].at), (limits::RESCHEDULE_EVENTS_COUNTED_MAX, 4));
}

#[test]
fn a_users_stop_marks_the_allocation_and_makes_an_evaluation() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let id = driver.run("t", 0, node);
        let evaluation = driver.evaluation_id();
        let command = stop_allocation(id, Replacement::ByKind, evaluation);
        driver.accept(command.clone());
        let row = driver.allocation(id);
        assert!(row.transition.migrate && !row.transition.reschedule && row.is_live());
        assert_eq!(driver.evaluation(evaluation).trigger, Trigger::AllocStop);
        assert!(matches!(driver.reject(command), Rejection::Invalid(_)));
        let unknown = stop_allocation(AllocationId([9; 16]), Replacement::ByKind, evaluation);
        assert_eq!(driver.reject(unknown).to_string(), "alloc not found");
        let plan = driver.plan(evaluation).stopping(id, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        assert!(driver.allocation(id).is_ended_by_request());
        let evaluation = driver.evaluation_id();
        driver.accept(stop_allocation(id, Replacement::Always, evaluation));
        assert!(driver.allocation(id).transition.reschedule, "also what has ended is run again");
    });
}

#[test]
fn an_allocation_that_fails_before_its_stop_has_ended_by_request() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 1));
    let id = driver.run("t", 0, node);
    let stop = |driver: &mut Driver, replacement| {
        let evaluation = driver.evaluation_id();
        driver.accept(stop_allocation(id, replacement, evaluation));
    };
    stop(&mut driver, Replacement::ByKind);
    driver.report(id, ClientStatus::Failed);
    let row = driver.allocation(id);
    assert!(row.is_ended_by_request() && !row.is_server_terminal());
    stop(&mut driver, Replacement::Always);
    let row = driver.allocation(id);
    assert!(row.transition.reschedule && !row.is_ended_by_request(), "it may be run again");
}

/// A stop with a replacement runs an instance again that has failed and has no attempts left; of
/// one that has ended otherwise it says so.
#[test]
fn a_failed_instance_is_run_again_when_that_is_asked_for() {
    let (mut driver, id) = running(JobKind::Batch);
    driver.report(id, ClientStatus::Failed);
    let command = |driver: &mut Driver, replacement| {
        let evaluation = driver.evaluation_id();
        stop_allocation(id, replacement, evaluation)
    };
    let plain = command(&mut driver, Replacement::ByKind);
    driver.accept(plain);
    assert!(!driver.allocation(id).transition.reschedule);
    for _ in 0..2 {
        let again = command(&mut driver, Replacement::Always);
        driver.accept(again);
        assert!(driver.allocation(id).transition.reschedule);
        assert!(!driver.allocation(id).transition.migrate);
    }
    let (mut driver, id) = running(JobKind::Batch);
    driver.report(id, ClientStatus::Complete);
    let command = |driver: &mut Driver| {
        let evaluation = driver.evaluation_id();
        stop_allocation(id, Replacement::Always, evaluation)
    };
    let refused = command(&mut driver);
    let why = driver.reject(refused).to_string();
    assert!(why.contains("has ended (complete)"), "{why}");
}

/// An instance that has ended is not replaced when its place is taken or gone, and its place is not
/// left empty: the refusal says why nothing would happen.
#[test]
fn a_stop_of_what_has_ended_that_would_change_nothing_is_refused() {
    let with = |count, kind| {
        let mut driver = Driver::default();
        let node = driver.node("a");
        driver.register_job(job("t", kind, count));
        let id = driver.run("t", 0, node);
        (driver, node, id)
    };
    let stop = |driver: &mut Driver, id, replacement| {
        let evaluation = driver.evaluation_id();
        stop_allocation(id, replacement, evaluation)
    };
    let end = |driver: &mut Driver, id, replacement| {
        let command = stop(driver, id, replacement);
        driver.accept(command);
        let evaluation = driver.evaluate_job("t");
        let plan = driver.plan(evaluation).stopping(id, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        driver.report(id, ClientStatus::Complete);
    };
    let refuse = |driver: &mut Driver, id, replacement, text: &str| {
        let command = stop(driver, id, replacement);
        let before = rows(&driver.state);
        let why = driver.reject(command).to_string();
        assert!(why.contains(text), "{why}");
        assert_eq!(rows(&driver.state), before);
    };

    let (mut driver, _, id) = with(1, JobKind::Service);
    driver.report(id, ClientStatus::Failed);
    refuse(&mut driver, id, Replacement::Never, "has ended (failed): only one that runs");

    // Its place was filled by a new version with a higher count.
    let (mut driver, node, id) = with(1, JobKind::Service);
    end(&mut driver, id, Replacement::Never);
    let again = stop(&mut driver, id, Replacement::Never);
    driver.accept(again);
    driver.register_job(job("t", JobKind::Service, 2));
    let filled = driver.run("t", 0, node);
    let text = format!("has ended (complete), and alloc {filled} has its place");
    refuse(&mut driver, id, Replacement::Always, &text);

    // Fewer are wanted by now, and they are there.
    let (mut driver, node, id) = with(3, JobKind::Batch);
    let others = [1, 2].map(|index| driver.run("t", index, node));
    end(&mut driver, id, Replacement::ByKind);
    driver.register_job(job("t", JobKind::Batch, 2));
    refuse(&mut driver, id, Replacement::Always, "group \"web\" has all of its instances: 2");
    driver.report(others[0], ClientStatus::Failed);
    let again = stop(&mut driver, id, Replacement::Always);
    driver.accept(again);

    // There is nothing of which it could be an instance.
    driver.deregister_job("t", false);
    refuse(&mut driver, id, Replacement::Always, "and its job is stopped");
    driver.deregister_job("t", true);
    driver.register_job(job("t", JobKind::Batch, 2));
    refuse(&mut driver, id, Replacement::Always, "and its job was purged");
}

/// What is lost before it was stopped did not end by request: it is made up for.
#[test]
fn an_allocation_lost_before_its_stop_has_not_ended_by_request() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 1));
    let id = driver.run("t", 0, node);
    let evaluation = driver.evaluation_id();
    driver.accept(stop_allocation(id, Replacement::ByKind, evaluation));
    let plan = driver.plan(evaluation).stopping(id, Some(ClientStatus::Lost));
    assert!(driver.commit_plan(plan).outcome_taken);
    assert!(driver.allocation(id).is_server_terminal());
    assert!(!driver.allocation(id).is_ended_by_request());
}

/// Also a command that comes early, or late, stops only what is over.
#[test]
fn an_allocation_that_runs_too_long_ends_and_is_not_run_again() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        let mut spec = job("t", JobKind::Batch, 2);
        spec.groups[0].max_run_ms = 60_000;
        driver.register_job(spec);
        let ids = [driver.run("t", 0, node), driver.place("t", 1, node)];
        let deadline = driver.state.run_deadline(driver.allocation(ids[0])).expect("it runs");
        // The grace, and the kill timeout of the task.
        assert_eq!(deadline, driver.allocation(ids[0]).client_at + 60_000 + 30_000 + 5_000);
        assert_eq!(driver.state.run_deadline(driver.allocation(ids[1])), None, "it does not run");
        for at in [deadline - 1_000, deadline] {
            driver.at_ms(at - START_MS);
            driver.accept(ExpireRuns { ids: ids.to_vec() }.into());
            let row = driver.allocation(ids[0]);
            assert_eq!(row.is_server_terminal(), at == deadline);
            assert!(driver.allocation(ids[1]).is_live());
        }
        let row = driver.allocation(ids[0]);
        assert!(row.is_ended_by_request() && row.server_modify_index == driver.state.index);
        assert_eq!(&*row.desired_description, RUN_TIME_OVER);
    });
}

/// A user may ask for an end that lasts until the job changes, and take that back.
#[test]
fn an_end_without_a_replacement_is_one_by_request_in_a_service_too() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 1));
    let id = driver.run("t", 0, node);
    let stop = |driver: &mut Driver, replacement| {
        let evaluation = driver.evaluation_id();
        driver.accept(stop_allocation(id, replacement, evaluation));
        let row = driver.allocation(id);
        row.may_stay_ended(false) && row.is_ended_by_request()
    };
    assert!(!stop(&mut driver, Replacement::Never), "it runs");
    driver.report(id, ClientStatus::Complete);
    assert!(driver.allocation(id).is_ended_by_request());
    assert!(!stop(&mut driver, Replacement::Always), "another one is wanted after all");
}

/// L3: a failed evaluation gets a follow-up, and the two refer to each other.
#[test]
fn a_failed_evaluation_is_followed_up() {
    with_leader_changes(|driver| {
        let id = driver.register_job(job("t", JobKind::Service, 1));
        let follow_up = driver.evaluation_id();
        let wait_until = driver.now + 60_000;
        let update = EvaluationUpdate {
            id,
            status: EvaluationStatus::Failed,
            description: "evaluation reached delivery limit (3)".into(),
            follow_up: Some((follow_up, wait_until)),
        };
        let command = Command::from(UpdateEvaluations { updates: vec![update] });
        driver.accept(command.clone());
        let failed = driver.evaluation(id);
        assert_eq!((failed.status, failed.next), (EvaluationStatus::Failed, Some(follow_up)));
        let next = driver.evaluation(follow_up);
        assert_eq!(
            (next.status, next.trigger),
            (EvaluationStatus::Pending, Trigger::FailedFollowUp)
        );
        assert_eq!((next.wait_until, next.previous), (wait_until, Some(id)));
        let before = rows(&driver.state);
        driver.accept(command);
        assert_eq!(rows(&driver.state), before, "final is final");
    });
}

#[test]
fn one_evaluation_per_job_is_blocked_also_without_a_plan() {
    let mut driver = Driver::default();
    let first = driver.register_job(job("t", JobKind::Service, 1));
    let second = driver.evaluate_job("t");
    let block = |id| EvaluationUpdate {
        id,
        status: EvaluationStatus::Blocked,
        description: "".into(),
        follow_up: None,
    };
    driver.accept(Command::from(UpdateEvaluations { updates: vec![block(first), block(second)] }));
    assert_eq!(driver.evaluation(first).status, EvaluationStatus::Canceled);
    assert_eq!(driver.open_evaluations("t"), [second]);
}

#[test]
fn a_changed_node_is_evaluated_for_what_runs_there() {
    let (mut driver, id) = running(JobKind::Service);
    let node = driver.allocation(id).node;
    let before = driver.open_evaluations("t").len();
    let mut bigger = description("a");
    bigger.resources.total.cpu_mhz = 8000;
    driver.register_node_as("a", 1, bigger);
    assert_eq!(driver.open_evaluations("t").len(), before + 1);
    let evaluation_ids = vec![driver.evaluation_id()];
    driver.accept(Command::from(EvaluateNode { node, evaluation_ids: evaluation_ids.clone() }));
    assert_eq!(driver.evaluation(evaluation_ids[0]).node, Some(node));
}

/// Thousands of agents report at once when a large job starts; each has nothing to be told for it.
#[test]
fn an_agent_is_woken_by_what_it_is_told_and_not_by_what_it_says() {
    let (mut driver, id) = running(JobKind::Service);
    let node = driver.allocation(id).node;
    let incarnation = driver.state.nodes.get(&node).map_or(0, |node| node.incarnation);
    let said = |driver: &Driver, status| {
        let updates = vec![driver.update(id, status)];
        let report = NodeReport { node, incarnation, updates, evaluation_ids: Vec::new() };
        Command::from(UpdateAllocations { reports: vec![report] })
    };
    let (told, reported) = (Effect::NodeAllocations(node), Effect::NodeReport(node));
    let goes_on = said(&driver, ClientStatus::Running);
    let effects = driver.commit(goes_on).effects;
    assert!(effects.contains(&reported) && !effects.contains(&told), "{effects:?}");
    let evaluation = driver.evaluation_id();
    let effects = driver.commit(stop_allocation(id, Replacement::Never, evaluation)).effects;
    assert!(effects.contains(&told), "{effects:?}");
    let ends = said(&driver, ClientStatus::Complete);
    let effects = driver.commit(ends).effects;
    assert!(effects.contains(&told), "{effects:?}");
}
