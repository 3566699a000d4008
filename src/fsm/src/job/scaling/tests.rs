//! Scaling: bounds, active deployments, events, policies, and counts that a registration keeps.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::{
    command::{Command, Rejection, Reply},
    deployment::{DeploymentGoal, NewDeployment},
    id::DeploymentId,
    job::{JobKind, RegisterJob},
    testing::{Driver, GROUP, job, job_key, register, rolling_job},
};

fn bounded(count: u32, min: u32, max: u32) -> JobSpec {
    let mut spec = job("t", JobKind::Service, count);
    let (policy_json, kind) = ("{}".into(), "horizontal".into());
    spec.groups[0].scaling = Some(Scaling { enabled: true, min, max, policy_json, kind });
    spec
}

fn to(driver: &mut Driver, count: Option<u32>) -> ScaleJob {
    ScaleJob {
        job: job_key("t"),
        group: GROUP.into(),
        count,
        enforce_index: None,
        message: "because".into(),
        error: false,
        meta_json: "".into(),
        evaluation: driver.evaluation_id(),
    }
}

fn scale(driver: &mut Driver, count: u32) -> Reply {
    let command = to(driver, Some(count));
    driver.commit(command.into()).reply
}

fn why(reply: Reply) -> String {
    let Reply::Rejected(rejection) = reply else { panic!("{reply:?}") };
    rejection.to_string()
}

fn count(driver: &Driver) -> u32 {
    driver.state.current_spec(driver.job_row("t")).unwrap().groups[0].count
}

fn events(driver: &Driver) -> Vec<ScalingEvent> {
    driver.state.scalings_of(&job_key("t")).first().map_or_else(Vec::new, |row| row.events.clone())
}

#[test]
fn a_scale_is_a_version_an_evaluation_and_an_event() {
    let mut driver = Driver::default();
    let evaluation = driver.evaluation_id();
    driver.accept(register(bounded(2, 1, 5), evaluation));
    let command = to(&mut driver, Some(4));
    let asked = command.evaluation;
    let reply = driver.accept(command.into());
    let index = driver.state.index;
    let job_modify_index = index;
    assert_eq!(reply, Reply::Job { evaluation: Some(asked), job_modify_index, found: true });
    let row = driver.job_row("t");
    assert_eq!((row.version, count(&driver)), (1, 4));
    let evaluation = driver.state.evaluations().get(&asked).unwrap();
    assert_eq!(evaluation.trigger, Trigger::JobScaling);
    let [event] = &events(&driver)[..] else { panic!("{:?}", events(&driver)) };
    assert_eq!((event.count, event.count_before, event.create_index), (Some(4), 2, index));
    assert_eq!((event.evaluation, &*event.message), (Some(asked), "because"));

    // The same count is no new version, but it is evaluated.
    assert!(matches!(scale(&mut driver, 4), Reply::Job { evaluation: Some(_), .. }));
    assert_eq!(driver.job_row("t").version, 1);
}

#[test]
fn a_count_outside_of_the_bounds_changes_nothing() {
    let mut driver = Driver::default();
    let evaluation = driver.evaluation_id();
    driver.accept(register(bounded(2, 2, 3), evaluation));
    let above = why(scale(&mut driver, 4));
    assert_eq!(above, "group count was greater than scaling policy maximum: 4 > 3");
    let below = why(scale(&mut driver, 1));
    assert_eq!(below, "group count was less than scaling policy minimum: 1 < 2");
    let mut command = to(&mut driver, Some(3));
    command.group = "nothing".into();
    let nothing = why(driver.commit(command.into()).reply);
    assert!(nothing.contains("does not exist in job"), "{nothing}");
    let mut command = to(&mut driver, Some(3));
    command.error = true;
    assert!(why(driver.commit(command.into()).reply).contains("should not contain count"));
    let mut command = to(&mut driver, Some(3));
    command.enforce_index = Some(99);
    let reply = driver.commit(command.into()).reply;
    assert!(matches!(reply, Reply::Rejected(Rejection::JobIndexConflict { asked: 99, .. })));
    assert_eq!((driver.job_row("t").version, count(&driver), events(&driver).len()), (0, 2, 0));

    let evaluation = driver.evaluation_id();
    let refused = driver.commit(register(bounded(4, 2, 3), evaluation)).reply;
    assert!(why(refused).contains("group count was greater"));
    driver.deregister_job("t", false);
    assert!(why(scale(&mut driver, 3)).contains("stopped"));
}

#[test]
fn a_deployment_that_goes_on_blocks_scaling_but_not_words() {
    let mut driver = Driver::default();
    let evaluation = driver.register_job(rolling_job("t", 1, |_| ()));
    let goals = BTreeMap::from([(GROUP.into(), DeploymentGoal { canaries: 0, total: 1 })]);
    let mut plan = driver.plan(evaluation);
    plan.deployment = Some(NewDeployment { id: DeploymentId([1; 16]), goals });
    assert!(driver.commit_plan(plan).outcome_taken);
    assert!(driver.state.active_deployment(&job_key("t")).is_some());
    let blocked = why(scale(&mut driver, 2));
    assert_eq!(blocked, "job scaling blocked due to active deployment");
    let mut command = to(&mut driver, None);
    command.error = true;
    let reply = driver.accept(command.into());
    assert!(matches!(reply, Reply::Job { evaluation: None, .. }), "{reply:?}");
    let [event] = &events(&driver)[..] else { panic!("{:?}", events(&driver)) };
    assert_eq!((event.error, event.count, event.count_before), (true, None, 1));
}

#[test]
fn the_last_events_are_kept_newest_first() {
    let mut driver = Driver::default();
    let evaluation = driver.evaluation_id();
    driver.accept(register(bounded(1, 0, 50), evaluation));
    for count in 1..=25 {
        scale(&mut driver, count);
    }
    let counts: Vec<_> = events(&driver).iter().map(|event| event.count.unwrap()).collect();
    assert_eq!(counts, (6..=25).rev().collect::<Vec<_>>());
    assert_eq!(counts.len(), limits::SCALING_EVENTS_MAX);
    let mut command = to(&mut driver, None);
    command.message = "x".repeat(limits::SCALING_TEXT_BYTES_MAX + 1).into();
    assert!(why(driver.commit(command.into()).reply).contains("bytes"));
    driver.deregister_job("t", true);
    assert!(driver.state.group_scalings().is_empty());
}

/// The index by which autoscalers see a policy change stays while only counts move.
#[test]
fn a_policy_changes_with_its_own_words_only_and_ends_with_the_job() {
    let mut driver = Driver::default();
    let policy = |driver: &Driver| {
        let row = driver.state.scalings_of(&job_key("t")).pop()?;
        let policy = row.policy.clone()?;
        Some((policy.id, policy.create_index, policy.modify_index))
    };
    let register = |driver: &mut Driver, spec: JobSpec| {
        let evaluation = driver.evaluation_id();
        driver.accept(register(spec, evaluation));
        driver.state.index
    };
    let first = register(&mut driver, bounded(2, 1, 5));
    let id = scaling_policy_id(&job_key("t"), GROUP);
    assert_eq!(policy(&driver), Some((id, first, first)));
    scale(&mut driver, 3);
    assert_eq!(policy(&driver), Some((id, first, first)));
    let second = register(&mut driver, bounded(3, 1, 6));
    assert_eq!(policy(&driver), Some((id, first, second)));
    driver.deregister_job("t", false);
    assert_eq!((policy(&driver), events(&driver).len()), (None, 1));
    let third = register(&mut driver, bounded(3, 1, 6));
    assert_eq!(policy(&driver), Some((id, third, third)));
    let mut renamed = bounded(3, 1, 6);
    renamed.groups[0].name = "renamed".into();
    register(&mut driver, renamed);
    let groups: Vec<_> =
        driver.state.group_scalings().iter().map(|row| row.group.to_string()).collect();
    assert_eq!(groups, ["renamed"], "the events of a group that is gone went with it");
}

#[test]
fn a_registration_keeps_counts_when_it_is_asked_to() {
    let mut driver = Driver::default();
    let evaluation = driver.evaluation_id();
    driver.accept(register(bounded(2, 1, 5), evaluation));
    scale(&mut driver, 4);
    let mut kept = |mut spec: JobSpec, preserve_counts: bool| {
        spec.meta.insert("a".into(), "b".into());
        let evaluation = driver.evaluation_id();
        let reply = driver
            .commit(Command::from(RegisterJob {
                preserve_counts,
                ..RegisterJob::new(Arc::new(spec), evaluation)
            }))
            .reply;
        (matches!(reply, Reply::Job { .. }), count(&driver))
    };
    let mut wider = bounded(2, 1, 5);
    wider.groups.push(TaskGroup { name: "new".into(), ..wider.groups[0].clone() });
    assert_eq!(kept(wider, true), (true, 4));
    // What is kept must be within the new bounds.
    assert_eq!(kept(bounded(2, 1, 3), true), (false, 4));
    assert_eq!(kept(bounded(2, 1, 3), false), (true, 2));
}
