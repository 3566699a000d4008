//! Children: how they are made, counted, bounded and answered for.

#![expect(clippy::unwrap_used, clippy::wildcard_enum_match_arm, reason = "tests")]

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    allocation::{ClientStatus, Replacement, StopAllocation},
    command::{Command, DispatchAnswer, Rejection, Reply},
    evaluation::{EvaluationStatus, Trigger},
    gc::{CollectGarbage, Cutoffs},
    id::{AllocationId, JobKey, Text},
    job::{
        DispatchJob, Dispatched, EvaluateJob, Job, JobKind, JobSpec, JobStatus, Parameterized,
        Periodic, RegisterJob, ScaleJob, StopChildren,
    },
    limits,
    testing::{Driver, GROUP, job, job_key, outcome, register, reload, rows, stop_allocation},
};

fn parent(name: &str, change: impl FnOnce(&mut Parameterized)) -> JobSpec {
    let mut block = Parameterized { payload: "optional".into(), ..Parameterized::default() };
    change(&mut block);
    JobSpec { parameterized: Some(block), ..job(name, JobKind::Batch, 1) }
}

/// A cluster with a parent called `t` of which so many children may be alive.
fn with_parent(max_running: u32) -> Driver {
    let mut driver = Driver::default();
    put_parent(&mut driver, max_running);
    driver
}

fn put_parent(driver: &mut Driver, max_running: u32) {
    let evaluation = driver.evaluation_id();
    let spec = parent("t", |block| block.max_running = max_running);
    driver.accept(register(spec, evaluation));
}

fn child_id(number: u32) -> String {
    format!("t/dispatch-1700000000-{number:08x}")
}

/// The dispatch of that number.
fn dispatched(driver: &mut Driver, number: u32) -> Dispatched {
    Dispatched {
        id: child_id(number).into(),
        payload: Vec::new(),
        meta: BTreeMap::new(),
        priority: None,
        token: "".into(),
        evaluation: driver.evaluation_id(),
    }
}

fn command(children: Vec<Dispatched>) -> Command {
    DispatchJob { parent: job_key("t"), children }.into()
}

fn answers(driver: &mut Driver, children: Vec<Dispatched>) -> Vec<DispatchAnswer> {
    match driver.accept(command(children)) {
        Reply::Dispatched(answers) => answers,
        other => panic!("{other:?}"),
    }
}

/// Dispatches these numbers in one entry.
fn dispatch(driver: &mut Driver, numbers: impl IntoIterator<Item = u32>) {
    let children = numbers.into_iter().map(|number| dispatched(driver, number)).collect();
    for answer in answers(driver, children) {
        assert!(matches!(answer, DispatchAnswer::Child { found: false, .. }), "{answer:?}");
    }
}

fn row(driver: &Driver, number: u32) -> &Job {
    driver.job_row(&child_id(number))
}

/// Ends a child of which nothing was placed.
fn end(driver: &mut Driver, number: u32) {
    for id in driver.open_evaluations(&child_id(number)) {
        let mut plan = driver.plan(id);
        plan.outcome = Some(outcome(EvaluationStatus::Complete));
        assert!(driver.commit_plan(plan).outcome_taken);
    }
    assert_eq!(row(driver, number).status, JobStatus::Dead);
}

/// Numbers of the children that were started, or wait.
fn those(driver: &Driver, numbers: u32, waiting: bool) -> Vec<u32> {
    let waits = |number: &u32| row(driver, *number).waiting.is_some() == waiting;
    (0..numbers).filter(waits).collect()
}

fn counts(driver: &Driver) -> (u64, u64, usize, usize) {
    let children = driver.state.children(&job_key("t")).cloned().unwrap_or_default();
    (children.pending, children.running, children.dead.len(), children.waiting.len())
}

#[test]
fn a_dispatch_makes_a_child_with_its_evaluation_in_one_entry() {
    let mut driver = Driver::default();
    let mut spec = parent("t", |block| {
        block.meta_required = vec!["who".into()];
        block.meta_optional = vec!["why".into()];
    });
    spec.meta = [("who".into(), "nobody".into()), ("kept".into(), "1".into())].into();
    let evaluation = driver.evaluation_id();
    driver.accept(register(spec, evaluation));
    let mut one = dispatched(&mut driver, 1);
    one.meta = [("who".into(), "me".into())].into();
    one.payload = vec![7];
    one.priority = Some(70);
    one.token = "once".into();
    let made = answers(&mut driver, vec![one.clone()]);
    let child = row(&driver, 1).clone();
    assert_eq!(
        made,
        [DispatchAnswer::Child {
            name: "dispatch-1700000000-00000001".into(),
            evaluation: Some(one.evaluation),
            create_index: child.create_index,
            found: false,
        }]
    );
    let first = driver.evaluation(one.evaluation);
    assert_eq!((first.trigger, first.priority), (Trigger::JobRegister, 70));
    assert_eq!(first.create_index, child.create_index);
    let spec = driver.state.current_spec(&child).unwrap();
    assert_eq!((&*spec.name, spec.priority), (&*child.key.id, 70));
    assert!(spec.parameterized.is_some() && !spec.is_parent() && !child.is_parent());
    assert_eq!(spec.meta_left_out().map(|key| &**key).collect::<Vec<_>>(), ["why"]);
    assert_eq!(spec.dispatch.as_ref().map(|row| &row.payload[..]), Some(&[7][..]));
    let meta: Vec<_> = spec.meta.iter().map(|(key, value)| (&**key, &**value)).collect();
    assert_eq!(meta, [("kept", "1"), ("who", "me")]);
    assert_eq!(counts(&driver), (1, 0, 0, 0));
}

/// The children are counted by status through their life, and an index that is computed anew says
/// the same.
#[test]
fn children_are_counted_under_their_parent() {
    let mut driver = with_parent(0);
    let node = driver.node("a");
    dispatch(&mut driver, 0..3);
    assert_eq!(counts(&driver), (3, 0, 0, 0));
    driver.run(&child_id(0), 0, node);
    assert_eq!(counts(&driver), (2, 1, 0, 0));
    end(&mut driver, 1);
    assert_eq!(counts(&driver), (1, 1, 1, 0));
    assert_eq!(reload(&driver.state).children, driver.state.children);
    driver.deregister_job(&child_id(1), true);
    assert_eq!(counts(&driver), (1, 1, 0, 0));
}

#[test]
fn the_same_token_is_the_same_dispatch() {
    let mut driver = with_parent(1);
    let again = |driver: &mut Driver, number, token: &str| {
        let child = Dispatched { token: token.into(), ..dispatched(driver, number) };
        let made = answers(driver, vec![child.clone(), child]);
        let names: Vec<_> = made
            .into_iter()
            .map(|answer| match answer {
                DispatchAnswer::Child { name, found, .. } => (name.to_string(), found),
                DispatchAnswer::Refused(why) => panic!("{why}"),
            })
            .collect();
        <[_; 2]>::try_from(names).unwrap()
    };
    let [first, second] = again(&mut driver, 1, "a");
    assert_eq!((first.1, second.1), (false, true));
    assert_eq!(first.0, second.0);
    let [waits, _] = again(&mut driver, 2, "b");
    assert_ne!(waits.0, first.0);
    assert!(row(&driver, 2).waiting.is_some());
    driver.state = reload(&driver.state);
    let [third, _] = again(&mut driver, 3, "a");
    assert_eq!(third, (first.0.clone(), true));
    let [fourth, _] = again(&mut driver, 4, "b");
    assert_eq!(fourth, (waits.0, true), "a child that waits is there as well");
    end(&mut driver, 1);
    assert_eq!(again(&mut driver, 5, "a")[0], (first.0, true), "as long as the child is kept");
    driver.deregister_job(&child_id(1), true);
    let [anew, _] = again(&mut driver, 6, "a");
    assert_eq!(anew, ("dispatch-1700000000-00000006".into(), false));
}

/// Who asks again after a lost reply hears of the child, whatever has become of its parent.
#[test]
fn the_same_token_is_the_same_dispatch_of_a_parent_that_takes_no_more() {
    let mut driver = with_parent(0);
    let child = |driver: &mut Driver, number, token: &str| Dispatched {
        token: token.into(),
        ..dispatched(driver, number)
    };
    let first = child(&mut driver, 1, "a");
    answers(&mut driver, vec![first]);
    for purge in [false, true] {
        driver.deregister_job("t", purge);
        let again = vec![child(&mut driver, 2, "a"), child(&mut driver, 3, "b")];
        let [known, other] = &answers(&mut driver, again)[..] else { panic!() };
        let DispatchAnswer::Child { name, found, .. } = known else { panic!("{known:?}") };
        assert_eq!((&**name, *found), ("dispatch-1700000000-00000001", true));
        let DispatchAnswer::Refused(why) = other else { panic!("{other:?}") };
        let text = if purge { "job not found" } else { "is stopped: start it" };
        assert!(why.to_string().contains(text), "{why}");
        let alone = vec![child(&mut driver, 3, "b")];
        assert!(driver.reject(command(alone)).to_string().contains(text));
    }
    assert_eq!(counts(&driver), (1, 0, 0, 0));
}

#[test]
fn a_job_that_cannot_be_dispatched_is_refused_with_the_remedy() {
    let mut driver = Driver::default();
    let mut number = 0;
    let mut check = |payload: &str, given: usize, meta: &[&str], expected: &str| {
        number += 1;
        let evaluation = driver.evaluation_id();
        let spec = parent("t", |block| {
            block.payload = payload.into();
            block.meta_required = vec!["who".into()];
        });
        driver.accept(register(spec, evaluation));
        let mut child = dispatched(&mut driver, number);
        child.payload = vec![0; given];
        child.meta = meta.iter().map(|key| (Text::from(*key), Text::default())).collect();
        let before = driver.state.jobs().len();
        let made = answers(&mut driver, vec![child]);
        match &made[..] {
            [DispatchAnswer::Refused(why)] => {
                assert!(!expected.is_empty() && why.to_string().contains(expected), "{why}");
                assert_eq!(driver.state.jobs().len(), before);
            }
            [DispatchAnswer::Child { .. }] => assert_eq!(expected, ""),
            other => panic!("{other:?}"),
        }
    };
    check("forbidden", 0, &["who"], "");
    check("forbidden", 1, &["who"], "Payload: it is forbidden");
    check("required", 1, &["who"], "");
    check("required", 0, &["who"], "Payload: it is required");
    check("optional", limits::PAYLOAD_BYTES_MAX, &["who"], "");
    check("optional", limits::PAYLOAD_BYTES_MAX + 1, &["who"], "at most 16384 may be");
    check("optional", 0, &[], "Meta lacks required keys [\"who\"]");
    check("optional", 0, &["who", "x"], "Meta has keys [\"x\"]");

    let mut refuse = |id: &str, expected: &str| {
        let child = Dispatched { id: id.into(), ..dispatched(&mut driver, 0) };
        let child = Dispatched { meta: [("who".into(), "".into())].into(), ..child };
        let made = answers(&mut driver, vec![child]);
        let [DispatchAnswer::Refused(why)] = &made[..] else { panic!("{made:?}") };
        assert!(why.to_string().contains(expected), "{why}");
    };
    refuse(&child_id(1), "exists already");
    refuse("u/dispatch-1", "is not the id of a child of t");
    refuse(&format!("t/dispatch-{}", "x".repeat(200)), "at most 160 may be");
}

#[test]
fn only_a_parent_that_is_not_stopped_is_dispatched() {
    let mut driver = with_parent(0);
    let refused = |driver: &mut Driver, text: &str| {
        let child = dispatched(driver, 1);
        let why = driver.reject(command(vec![child])).to_string();
        assert!(why.contains(text), "{why}");
    };
    driver.deregister_job("t", false);
    refused(&mut driver, "is stopped: start it");
    driver.deregister_job("t", true);
    refused(&mut driver, "job not found");
    driver.register_job(job("t", JobKind::Batch, 1));
    refused(&mut driver, "is not a parameterized job");
    let child = job(&child_id(1), JobKind::Batch, 1);
    let evaluation = driver.evaluation_id();
    let why = driver.reject(register(child, evaluation)).to_string();
    assert!(why.contains("children are made by their parent"), "{why}");
}

/// D: never more than `max_running` are alive, and those that wait start in the order in which they
/// came, whatever leaders do in between.
#[test]
fn children_beyond_the_bound_wait_and_start_in_order() {
    let mut driver = with_parent(3);
    dispatch(&mut driver, 0..5);
    dispatch(&mut driver, 5..8);
    assert_eq!(those(&driver, 8, false), [0, 1, 2]);
    assert!(driver.open_evaluations(&child_id(3)).is_empty());
    assert_eq!(row(&driver, 3).status, JobStatus::Pending);
    let position = |driver: &Driver, number| driver.state.waiting_position(row(driver, number));
    assert_eq!(position(&driver, 2), None);
    assert_eq!((position(&driver, 3), position(&driver, 7)), (Some(1), Some(5)));
    let evaluate = EvaluateJob {
        job: job_key(&child_id(3)),
        evaluation: driver.evaluation_id(),
        force_reschedule: false,
    };
    let why = driver.reject(evaluate.into()).to_string();
    assert!(why.contains("max_running"), "{why}");
    let mut started = vec![0, 1, 2];
    for ends in [1, 0, 3, 2, 5, 4, 6, 7] {
        driver.state = reload(&driver.state);
        driver.term += 1;
        end(&mut driver, ends);
        for number in those(&driver, 8, false) {
            if !started.contains(&number) {
                started.push(number);
            }
        }
        let alive = driver.state.children(&job_key("t")).unwrap().alive();
        assert!(alive <= 3, "{alive} are alive");
    }
    assert_eq!(started, (0..8).collect::<Vec<_>>());
    assert_eq!(counts(&driver), (0, 0, 8, 0));
}

#[test]
fn a_raised_bound_lets_children_in_at_once() {
    let mut driver = with_parent(1);
    dispatch(&mut driver, 0..6);
    put_parent(&mut driver, 3);
    assert_eq!(those(&driver, 6, false), [0, 1, 2]);
    put_parent(&mut driver, 2);
    end(&mut driver, 0);
    assert_eq!(those(&driver, 6, false), [0, 1, 2], "two are alive, as many as may be");
    put_parent(&mut driver, 0);
    assert_eq!(those(&driver, 6, false), [0, 1, 2, 3, 4, 5]);
}

/// Evaluations that one entry makes say in which order: their ids do not.
#[test]
fn children_that_one_entry_lets_in_have_evaluations_in_their_order() {
    let mut driver = with_parent(3);
    let made = |driver: &Driver, numbers: std::ops::Range<u32>| -> Vec<_> {
        let first = |number| driver.open_evaluations(&child_id(number))[0];
        let rows = numbers.map(|number| driver.evaluation(first(number)));
        rows.map(|row| (row.create_index, row.order)).collect()
    };
    let mut children: Vec<_> = (0..6).map(|number| dispatched(&mut driver, number)).collect();
    let mut ids: Vec<_> = children.iter().map(|child| child.evaluation).collect();
    ids.sort_by_key(|id| std::cmp::Reverse(*id));
    for (child, id) in children.iter_mut().zip(ids) {
        child.evaluation = id;
    }
    answers(&mut driver, children);
    let index = driver.state.index();
    assert_eq!(made(&driver, 0..3), [(index, 1), (index, 2), (index, 3)]);
    for number in 6..9 {
        dispatch(&mut driver, [number]);
    }
    put_parent(&mut driver, 0);
    let index = driver.state.index();
    assert_eq!(made(&driver, 3..9), (1..7).map(|order| (index, order)).collect::<Vec<_>>());
}

/// So many are let in by an entry; the others follow when something becomes of those.
#[test]
fn one_entry_starts_a_bounded_number() {
    let mut driver = with_parent(1);
    driver.checked = false;
    let max = u32::try_from(limits::LET_IN_MAX).unwrap();
    for part in 0..3 {
        dispatch(&mut driver, part * max..(part + 1) * max);
    }
    put_parent(&mut driver, 0);
    assert_eq!(those(&driver, 3 * max, false).len(), limits::LET_IN_MAX + 1);
    for number in [0, 1, 2] {
        end(&mut driver, number);
    }
    assert_eq!(counts(&driver).3, 0, "all were let in");
}

#[test]
fn a_child_that_waits_is_stopped_without_having_run() {
    let mut driver = with_parent(1);
    dispatch(&mut driver, 0..4);
    assert_eq!(driver.deregister_job(&child_id(1), false), None);
    let stopped = row(&driver, 1);
    assert_eq!((stopped.status, stopped.waiting), (JobStatus::Dead, None));
    driver.deregister_job(&child_id(2), true);
    assert_eq!(counts(&driver), (2, 0, 1, 1));
    end(&mut driver, 0);
    assert!(row(&driver, 3).waiting.is_none());
}

/// What was accepted is done, also when the parent is stopped; a parent that is gone could not
/// say how many may run.
#[test]
fn children_go_on_when_their_parent_is_stopped() {
    let mut driver = with_parent(1);
    dispatch(&mut driver, 0..3);
    driver.deregister_job("t", false);
    end(&mut driver, 0);
    assert_eq!(those(&driver, 3, false), [0, 1]);
    let evaluation = driver.evaluation_id();
    let purge = crate::job::DeregisterJob {
        job: job_key("t"),
        purge: true,
        evaluation,
        evaluation_priority: None,
        no_shutdown_delay: false,
    };
    let why = driver.reject(purge.into());
    assert!(matches!(&why, Rejection::InUse(_)), "{why}");
    assert!(why.to_string().contains("1 children of job \"t\" wait"), "{why}");
    let collect = |driver: &mut Driver| {
        driver.at_seconds(100_000);
        let cutoffs = Cutoffs {
            evaluations: driver.now,
            batch_evaluations: driver.now,
            jobs: driver.now,
            deployments: driver.now,
            children_max: u64::MAX,
        };
        driver.accept(
            CollectGarbage {
                cutoffs,
                jobs: vec![job_key("t")],
                allocations: Vec::new(),
                evaluations: Vec::new(),
                deployments: Vec::new(),
                classes: Vec::new(),
            }
            .into(),
        )
    };
    assert_eq!(collect(&mut driver), Reply::Collected(0));
    end(&mut driver, 1);
    assert_eq!(counts(&driver), (1, 0, 2, 0));
    assert_eq!(collect(&mut driver), Reply::Collected(0), "one is alive");
    end(&mut driver, 2);
    assert_eq!(collect(&mut driver), Reply::Collected(1));
    assert_eq!(counts(&driver).2, 3, "they stay");
}

/// A parent that is started again, with another bound, goes on with those that wait; what is
/// dispatched then stands behind them.
#[test]
fn a_parent_that_is_started_again_keeps_its_queue() {
    let mut driver = with_parent(1);
    dispatch(&mut driver, 0..4);
    driver.deregister_job("t", false);
    assert_eq!(those(&driver, 4, true), [1, 2, 3], "a stop starts none and forgets none");
    put_parent(&mut driver, 2);
    assert_eq!(those(&driver, 4, true), [2, 3]);
    dispatch(&mut driver, 4..5);
    driver.state = reload(&driver.state);
    end(&mut driver, 1);
    assert_eq!(those(&driver, 5, true), [3, 4]);
    driver.deregister_job("t", false);
    end(&mut driver, 0);
    end(&mut driver, 2);
    assert_eq!(those(&driver, 5, true), [0; 0], "the bound lasts while it is stopped");
}

/// A token is known as long as its child is; collection forgets both.
#[test]
fn a_token_is_free_when_its_child_was_collected() {
    let mut driver = with_parent(0);
    let with_token = |driver: &mut Driver, number| {
        let child = Dispatched { token: "once".into(), ..dispatched(driver, number) };
        match &answers(driver, vec![child])[..] {
            [DispatchAnswer::Child { found, .. }] => *found,
            other => panic!("{other:?}"),
        }
    };
    assert!(!with_token(&mut driver, 1));
    end(&mut driver, 1);
    assert!(with_token(&mut driver, 2));
    driver.at_seconds(100_000);
    let cutoffs = Cutoffs {
        evaluations: driver.now,
        batch_evaluations: driver.now,
        jobs: driver.now,
        deployments: driver.now,
        children_max: u64::MAX,
    };
    let collect = CollectGarbage {
        cutoffs,
        jobs: vec![job_key(&child_id(1))],
        allocations: Vec::new(),
        evaluations: Vec::new(),
        deployments: Vec::new(),
        classes: Vec::new(),
    };
    assert_eq!(driver.accept(collect.into()), Reply::Collected(1));
    assert!(!with_token(&mut driver, 3));
    assert_eq!(counts(&driver), (1, 0, 0, 0));
}

/// Those that wait never ran, those that are over make no evaluation, and what is no child is left
/// alone.
#[test]
fn children_are_stopped_and_deleted_with_their_parent() {
    let mut driver = with_parent(2);
    let node = driver.node("a");
    dispatch(&mut driver, 0..4);
    let running = driver.run(&child_id(0), 0, node);
    end(&mut driver, 1);
    driver.register_job(job("other", JobKind::Batch, 1));
    let stop = |driver: &mut Driver, purge| {
        let names = ["other", "t/dispatch-gone"].map(str::to_owned).into_iter();
        let children = (0..4).rev().map(child_id).chain(names).map(|id| job_key(&id)).collect();
        let evaluation_ids = (0..4).map(|_| driver.evaluation_id()).collect();
        let command = StopChildren {
            parent: job_key("t"),
            children,
            purge,
            evaluation_ids,
            evaluation_priority: Some(90),
            no_shutdown_delay: true,
        };
        match driver.accept(command.into()) {
            Reply::Evaluations(made) => made.len(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(stop(&mut driver, false), 2, "of the one that runs and of the one that was let in");
    assert!(!row(&driver, 1).stop, "it was over");
    let alive = |driver: &Driver| driver.state.children(&job_key("t")).unwrap().alive();
    assert_eq!((counts(&driver).3, alive(&driver)), (0, 1), "nothing runs of the other one");
    for number in [0, 2] {
        let open = driver.open_evaluations(&child_id(number));
        let priorities = open.iter().map(|id| driver.state.evaluations().get(id).unwrap().priority);
        assert_eq!(priorities.max(), Some(90), "the stop's");
        for id in open {
            let mut plan = driver.plan(id);
            if number == 0 {
                plan = plan.stopping(running, None);
            }
            plan.outcome = Some(outcome(EvaluationStatus::Complete));
            assert!(driver.commit_plan(plan).outcome_taken);
        }
    }
    assert_eq!(counts(&driver), (0, 0, 4, 0));
    assert_eq!(stop(&mut driver, true), 0);
    assert!(driver.state.children(&job_key("t")).is_none());
    assert!(!driver.job_row("other").stop);
    driver.deregister_job("t", true);
    assert!(!driver.state.jobs().contains(&job_key("t")));
}

/// A job that the clock starts is a parent as one that is dispatched: it lasts, and is not run.
#[test]
fn a_periodic_job_lasts_and_gets_no_evaluation() {
    let mut driver = Driver::default();
    let periodic = || JobSpec {
        periodic: Some(Periodic {
            enabled: true,
            specs: vec!["@daily".into()],
            ..Periodic::default()
        }),
        ..job("t", JobKind::Batch, 1)
    };
    let evaluation = driver.evaluation_id();
    driver.accept(register(periodic(), evaluation));
    assert!(driver.state.evaluations().is_empty());
    let created = driver.job_row("t").clone();
    assert_eq!(created.status, JobStatus::Running);
    let launches = created.periodic.unwrap();
    assert_eq!((launches.since_s, launches.last_due_s), (1_000_000_000, 0));
    driver.at_seconds(60);
    let evaluation = driver.evaluation_id();
    driver.accept(register(JobSpec { priority: 60, ..periodic() }, evaluation));
    assert_eq!(driver.job_row("t").periodic, Some(launches), "a change forgets nothing");
    let evaluate = EvaluateJob { job: job_key("t"), evaluation, force_reschedule: false };
    let why = driver.reject(evaluate.into()).to_string();
    assert_eq!(why, "can't evaluate periodic job");
    let why = driver.reject(register(parent("t", |_| ()), evaluation)).to_string();
    assert!(why.contains("from a periodic job to a parameterized job"), "{why}");
    let both = JobSpec { key: job_key("u"), ..parent("u", |_| ()) };
    let both = JobSpec { periodic: periodic().periodic, ..both };
    let why = driver.reject(register(both, evaluation)).to_string();
    assert!(why.contains("one of the two"), "{why}");
    assert_eq!(driver.deregister_job("t", false), None);
    assert_eq!(driver.job_row("t").status, JobStatus::Dead);
}

/// The next dispatch writes as many rows with many finished children as with none: nothing goes
/// over all of them.
#[test]
fn a_dispatch_writes_no_more_with_many_finished_children() {
    let mut driver = with_parent(0);
    driver.checked = false;
    let mut rows_of = |number: u32| {
        let child = dispatched(&mut driver, number);
        let before = driver.changes.rows.len();
        driver.commit(command(vec![child]));
        let written = driver.changes.rows.len() - before;
        end(&mut driver, number);
        written
    };
    let few = rows_of(0);
    for number in 1..3_000 {
        rows_of(number);
    }
    assert_eq!(rows_of(3_000), few);
}

#[test]
fn a_key_says_who_its_parent_is() {
    let key = JobKey::new("team", "a/b/dispatch-1-x");
    assert_eq!(key.parent_key(), Some(JobKey::new("team", "a/b")));
    assert_eq!(JobKey::new("team", "a/b").parent_key(), None);
}

/// Each way in which somebody may ask for a child that is over.
fn asked_again(driver: &mut Driver, number: u32, instance: AllocationId) -> Vec<Command> {
    let job = job_key(&child_id(number));
    let mut evaluations = std::iter::repeat_with(|| driver.evaluation_id());
    let mut next = || evaluations.next().unwrap();
    let scale = ScaleJob {
        job: job.clone(),
        group: GROUP.into(),
        count: Some(2),
        enforce_index: None,
        message: "".into(),
        error: false,
        meta_json: "".into(),
        evaluation: next(),
    };
    let evaluate = |force_reschedule, evaluation| EvaluateJob {
        job: job.clone(),
        force_reschedule,
        evaluation,
    };
    vec![
        evaluate(false, next()).into(),
        evaluate(true, next()).into(),
        stop_allocation(instance, Replacement::ByKind, next()),
        stop_allocation(instance, Replacement::Always, next()),
        scale.into(),
    ]
}

/// Also a child that was over is one of those that are alive when it is run again.
#[test]
fn a_child_that_is_over_is_not_run_again_beyond_the_bound() {
    let ways = asked_again(&mut with_parent(1), 0, AllocationId::default()).len();
    for way in 0..ways {
        let mut driver = with_parent(1);
        let node = driver.node("a");
        dispatch(&mut driver, 0..3);
        let instance = driver.run(&child_id(0), 0, node);
        driver.report(instance, ClientStatus::Failed);
        end(&mut driver, 0);
        assert_eq!(those(&driver, 3, true), [2]);
        let command = asked_again(&mut driver, 0, instance).swap_remove(way);
        let before = rows(&driver.state);
        let why = driver.reject(command.clone()).to_string();
        assert!(why.contains("1 children of \"t\" are alive"), "{why}");
        assert_eq!(rows(&driver.state), before, "{command:?}");
        let children = driver.state.children(&job_key("t")).unwrap();
        assert_eq!(children.alive(), 1, "{command:?}");
        end(&mut driver, 1);
        end(&mut driver, 2);
        driver.accept(command);
        assert_ne!(row(&driver, 0).status, JobStatus::Dead);
    }
}

/// The version of a child as it is registered, and the one that this says it is.
fn registered(driver: &mut Driver, version: u64, reverts_to: Option<u64>) -> Command {
    let create_index = row(driver, 0).create_index;
    let key = (job_key(&child_id(0)), create_index, version);
    let kept = driver.state.job_versions().get(&key).unwrap().clone();
    let evaluation = driver.evaluation_id();
    Command::from(RegisterJob {
        reverts_to,
        stop: kept.stop,
        ..RegisterJob::new(Arc::clone(&kept.spec), evaluation)
    })
}

/// A child that is there goes back to versions of its own, and to nothing else.
#[test]
fn a_child_runs_its_own_versions_again() {
    let mut driver = with_parent(1);
    let payload = vec![1, 2];
    let child =
        Dispatched { payload: payload.clone(), token: "a".into(), ..dispatched(&mut driver, 0) };
    answers(&mut driver, vec![child]);
    let scale = asked_again(&mut driver, 0, AllocationId::default()).pop().unwrap();
    driver.accept(scale);
    driver.deregister_job(&child_id(0), false);
    end(&mut driver, 0);
    assert_eq!((row(&driver, 0).version, row(&driver, 0).stop), (2, true));

    let refuse = |driver: &mut Driver, version, reverts_to| {
        let command = registered(driver, version, reverts_to);
        let why = driver.reject(command).to_string();
        assert!(why.contains("children are made by their parent"), "{why}");
    };
    refuse(&mut driver, 1, None);
    refuse(&mut driver, 1, Some(0));
    refuse(&mut driver, 1, Some(7));

    let start = registered(&mut driver, 1, Some(1));
    driver.accept(start);
    let back = row(&driver, 0).clone();
    assert_eq!((back.version, back.stop, back.status), (3, false, JobStatus::Pending));
    let spec = driver.state.current_spec(&back).unwrap();
    assert_eq!(spec.groups[0].count, 2);
    assert_eq!(spec.dispatch.as_ref().map(|one| &one.payload), Some(&payload));
    let first = registered(&mut driver, 0, Some(0));
    driver.accept(first);
    assert_eq!((row(&driver, 0).version, &*row(&driver, 0).token), (4, "a"));

    // It counts as any other that comes to life again; a stop does not.
    driver.deregister_job(&child_id(0), false);
    end(&mut driver, 0);
    dispatch(&mut driver, 1..2);
    let start = registered(&mut driver, 4, Some(4));
    let why = driver.reject(start.clone()).to_string();
    assert!(why.contains("1 children of \"t\" are alive"), "{why}");
    let stop = registered(&mut driver, 2, Some(2));
    driver.accept(stop);
    end(&mut driver, 0);
    end(&mut driver, 1);
    driver.accept(start);
    driver.deregister_job(&child_id(0), true);
    let evaluation = driver.evaluation_id();
    let gone = register(job(&child_id(0), JobKind::Batch, 1), evaluation);
    assert!(driver.reject(gone).to_string().contains("children are made by their parent"));
}

/// An instance that ends with a delay is told not to wait, however many others are alive: nothing
/// of its job starts by that.
#[test]
fn the_end_of_a_dead_childs_allocations_is_hurried() {
    let mut driver = with_parent(1);
    let node = driver.node("a");
    dispatch(&mut driver, 0..2);
    let instance = driver.run(&child_id(0), 0, node);
    let evaluation = driver.evaluation_id();
    driver.accept(stop_allocation(instance, Replacement::ByKind, evaluation));
    let plan = driver.plan(evaluation).stopping(instance, None);
    assert!(driver.commit_plan(plan).outcome_taken);
    end(&mut driver, 0);
    assert_eq!(those(&driver, 2, true), [] as [u32; 0]);
    let hurry = StopAllocation {
        id: instance,
        replacement: Replacement::ByKind,
        no_shutdown_delay: true,
        evaluation: driver.evaluation_id(),
    };
    assert_eq!(driver.accept(hurry.into()), Reply::Evaluations(Vec::new()));
    assert!(driver.allocation(instance).transition.no_shutdown_delay);
    assert_eq!(counts(&driver), (1, 0, 1, 0));
}
