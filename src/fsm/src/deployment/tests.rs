//! Deployments: who counts, what follows from it in the same entry, and what is refused (I46, facts
//! 1.8 of Nomad).

use std::collections::{BTreeMap, BTreeSet};

mod nodes;
mod plans;

use super::{
    Deployment, DeploymentGoal, DeploymentStatus, ExpireDeployments, FailDeployment, NewDeployment,
    PauseDeployment, PromoteDeployment, SetAllocationHealth,
};
use crate::{
    allocation::{ClientStatus, Replacement},
    command::{Command, Reply},
    evaluation::{Evaluation, EvaluationStatus, Metrics, Trigger},
    gc::{CollectGarbage, Cutoffs},
    id::{AllocationId, DeploymentId, EvaluationId},
    job::{
        JobKind, JobSpec, MarkJobVersion, RegisterJob, ReschedulePolicy, ScaleJob, UpdateStrategy,
        VersionMark,
    },
    limits,
    plan::Plan,
    testing::{Driver, GROUP, START_MS, job_key, rolling_job, stop_allocation},
    tests::with_leader_changes,
};

use ClientStatus::{Failed, Running};

/// A deployment of the job "t".
struct Rollout {
    driver: Driver,
    node: crate::NodeId,
    made: u8,
}

impl Default for Rollout {
    fn default() -> Self {
        let mut driver = Driver::default();
        let node = driver.node("a");
        Self { driver, node, made: 0 }
    }
}

impl Rollout {
    /// Registers a version and begins its deployment, with `canaries`.
    fn begin(&mut self, spec: JobSpec, canaries: u32) -> DeploymentId {
        self.begin_for(spec, |total| DeploymentGoal { canaries, total })
    }

    /// Registers a version and begins its deployment, with the goal of each group by its count.
    fn begin_for(&mut self, spec: JobSpec, goal: impl Fn(u32) -> DeploymentGoal) -> DeploymentId {
        let goals = spec.groups.iter().map(|group| (group.name.clone(), goal(group.count)));
        let goals: BTreeMap<_, _> = goals.collect();
        let evaluation = self.driver.register_job(spec);
        self.made += 1;
        let id = DeploymentId([self.made; 16]);
        let mut plan = self.driver.plan(evaluation);
        plan.deployment = Some(NewDeployment { id, goals });
        assert!(self.driver.commit_plan(plan).outcome_taken);
        id
    }

    /// A pass finds that so many nodes are left of those of the deployment.
    fn set_total(&mut self, id: DeploymentId, total: u32) {
        let canaries = self.row(id).groups[GROUP].goal.canaries;
        let goals = BTreeMap::from([(GROUP.into(), DeploymentGoal { canaries, total })]);
        let mut plan = self.plan();
        plan.deployment = Some(NewDeployment { id, goals });
        assert!(self.driver.commit_plan(plan).outcome_taken);
    }

    fn lose(&mut self, id: AllocationId) {
        let plan = self.plan().stopping(id, Some(ClientStatus::Lost));
        self.driver.commit_plan(plan);
    }

    /// A pass finds no room for so many instances, some of them of the current version or none.
    fn queued(&mut self, count: u32, current: bool) {
        let mut plan = self.plan();
        let outcome = plan.outcome.as_mut().expect("it has one");
        outcome.queued = BTreeMap::from([(GROUP.into(), count)]);
        outcome.waiting = current.then(|| GROUP.into()).into_iter().collect();
        assert!(self.driver.commit_plan(plan).outcome_taken);
    }

    /// As [`Self::queued`], with the evaluation that waits for the room.
    fn blocked(&mut self, count: u32) {
        let mut plan = self.plan();
        let id = self.driver.evaluation_id();
        let mut row =
            Evaluation::new(id, plan.job.clone(), JobKind::Service, 50, Trigger::QueuedAllocs);
        row.status = EvaluationStatus::Blocked;
        let metrics = Metrics {
            nodes_evaluated: 4,
            dimension_exhausted: BTreeMap::from([("memory".into(), 3)]),
            constraint_filtered: BTreeMap::from([("${attr.cpu.arch} = arm64".into(), 1)]),
            ..Metrics::default()
        };
        row.failed_groups.insert(GROUP.into(), metrics);
        let outcome = plan.outcome.as_mut().expect("it has one");
        outcome.queued = BTreeMap::from([(GROUP.into(), count)]);
        outcome.waiting = BTreeSet::from([GROUP.into()]);
        outcome.failed_groups = row.failed_groups.clone();
        outcome.evaluations.push(row);
        assert!(self.driver.commit_plan(plan).outcome_taken);
    }

    /// Its deadline is said to have passed, so many seconds after the start.
    fn expire(&mut self, id: DeploymentId, seconds: u64) -> DeploymentStatus {
        self.driver.at_seconds(seconds);
        self.driver.accept(ExpireDeployments { ids: vec![id] }.into());
        self.row(id).status
    }

    fn plan(&mut self) -> Plan {
        let evaluation = self.driver.evaluate_job("t");
        self.driver.plan(evaluation)
    }

    fn place(&mut self, name_index: u32, canary: bool) -> AllocationId {
        self.place_in(GROUP, name_index, canary)
    }

    fn place_in(&mut self, group: &str, name_index: u32, canary: bool) -> AllocationId {
        let mut placement = self.driver.placement(group, name_index, self.node);
        placement.canary = canary;
        let id = placement.id;
        let plan = self.plan().with(placement);
        assert!(self.driver.commit_plan(plan).outcome_taken);
        id
    }

    /// A first version of `count` instances that is stable.
    fn stable(&mut self, spec: &JobSpec) -> Vec<AllocationId> {
        self.begin(spec.clone(), 0);
        let ids: Vec<_> =
            (0..spec.groups[0].count).map(|number| self.place(number, false)).collect();
        for id in &ids {
            self.driver.report_health(*id, Running, true);
        }
        ids
    }

    fn row(&self, id: DeploymentId) -> &Deployment {
        self.driver.state.deployments().get(&id).expect("the deployment exists")
    }

    fn status(&self, id: DeploymentId) -> (DeploymentStatus, &str) {
        (self.row(id).status, &self.row(id).description)
    }

    /// Placed, healthy, unhealthy.
    fn counts(&self, id: DeploymentId) -> (u32, u32, u32) {
        let group = &self.row(id).groups[GROUP];
        (group.placed, group.healthy, group.unhealthy)
    }

    /// In ms after the start.
    fn deadline(&self, id: DeploymentId) -> Option<u64> {
        self.row(id).progress_deadline().map(|at| at - START_MS)
    }

    fn triggers(&self, ids: &[EvaluationId]) -> Vec<Trigger> {
        ids.iter().map(|id| self.driver.evaluation(*id).trigger).collect()
    }

    /// Open evaluations that deployments made.
    fn steps(&self) -> usize {
        let open = self.driver.open_evaluations("t");
        self.triggers(&open).iter().filter(|one| **one == Trigger::DeploymentWatcher).count()
    }

    fn reject(&mut self, command: impl Into<Command>) -> String {
        self.driver.reject(command.into()).to_string()
    }
}

fn version(user: &str, count: u32, change: impl FnOnce(&mut UpdateStrategy)) -> JobSpec {
    let mut spec = rolling_job("t", count, change);
    spec.groups[0].tasks[0].user = user.into();
    spec
}

fn policy(unlimited: bool) -> ReschedulePolicy {
    ReschedulePolicy {
        attempts: 0,
        interval_ms: 0,
        delay_ms: 5_000,
        delay_function: crate::job::DelayFunction::Constant,
        delay_ms_max: 0,
        unlimited,
    }
}

fn promote(id: DeploymentId, driver: &mut Driver) -> PromoteDeployment {
    PromoteDeployment { id, groups: None, evaluation: driver.evaluation_id() }
}

/// It would never have the instances that it counts.
#[test]
fn a_place_is_not_left_empty_while_a_deployment_goes_on() {
    let mut rollout = Rollout::default();
    rollout.begin(rolling_job("t", 1, |_| ()), 0);
    let id = rollout.place(0, false);
    let evaluation = rollout.driver.evaluation_id();
    let stop = stop_allocation(id, Replacement::Never, evaluation);
    assert!(rollout.driver.reject(stop.clone()).to_string().starts_with("a deployment goes on"));
    rollout.driver.report_health(id, Running, true);
    rollout.driver.accept(stop);
}

/// The first version has a deployment too. Its end marks the version as stable.
#[test]
fn a_version_whose_instances_are_healthy_is_stable() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 2, |_| {}), 0);
    assert_eq!(rollout.status(id), (DeploymentStatus::Running, "Deployment is running"));
    let (a, b) = (rollout.place(0, false), rollout.place(1, false));
    assert_eq!(rollout.counts(id), (2, 0, 0));
    rollout.driver.report(a, Running);
    assert_eq!(rollout.counts(id), (2, 0, 0), "running is not healthy yet");
    for _ in 0..3 {
        rollout.driver.report_health(a, Running, true);
    }
    assert_eq!(rollout.counts(id), (2, 1, 0), "once for each allocation");
    rollout.driver.report_health(b, Running, true);
    let done = (DeploymentStatus::Successful, "Deployment completed successfully");
    assert_eq!(rollout.status(id), done);
    let created = rollout.driver.job_row("t").create_index;
    let stable = rollout.driver.state.last_stable_version(&job_key("t"), created);
    assert_eq!(stable.map(|row| row.version), Some(0));
    assert_eq!(rollout.steps(), 0, "there is nothing to replace");
}

/// A report of another deployment changes nothing, nor does a second one of the same.
#[test]
fn health_is_said_once_and_of_the_deployment_of_now() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 2, |_| {}), 0);
    let a = rollout.place(0, false);
    let mut late = rollout.driver.update(a, Running);
    late.health = Some((DeploymentId([9; 16]), true));
    rollout.driver.report_update(late);
    assert_eq!(rollout.counts(id), (1, 0, 0));
    rollout.driver.report_health(a, Running, true);
    rollout.driver.report_health(a, Running, false);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Running, "it was healthy");
    assert_eq!(rollout.counts(id), (1, 1, 0));
}

/// What was healthy and fails is unhealthy: it fails the deployment if nothing makes up for it, a
/// canary too.
#[test]
fn an_instance_that_fails_after_it_was_healthy_is_unhealthy() {
    for canary in [false, true] {
        for (deadline, reschedule, fails) in [
            (0, Some(policy(true)), true),
            (600_000, Some(policy(true)), false),
            (600_000, Some(policy(false)), true),
        ] {
            let mut rollout = Rollout::default();
            rollout.stable(&version("one", 2, |_| {}));
            let mut spec = version("two", 2, |update| {
                update.auto_revert = true;
                update.canaries = u32::from(canary);
                update.progress_deadline_ms = deadline;
            });
            spec.groups[0].reschedule = reschedule;
            let id = rollout.begin(spec, u32::from(canary));
            let one = rollout.place(2, canary);
            rollout.driver.report_health(one, Running, true);
            assert_eq!(rollout.counts(id), (1, 1, 0));
            rollout.driver.report(one, Failed);
            assert_eq!(rollout.counts(id), (1, 0, 1), "{canary} {deadline} {reschedule:?}");
            let failed = rollout.status(id).0 == DeploymentStatus::Failed;
            assert_eq!(failed, fails, "{canary} {deadline} {reschedule:?}");
            let version = rollout.driver.job_row("t").version;
            assert_eq!(version, if fails { 2 } else { 1 }, "it goes back");
        }
    }
}

/// An end that somebody asked for says nothing of the version, nor does one after the deployment.
#[test]
fn an_instance_that_is_to_end_is_not_unhealthy() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 2, |_| {}), 0);
    let (a, b) = (rollout.place(0, false), rollout.place(1, false));
    rollout.driver.report_health(a, Running, true);
    let evaluation = rollout.driver.evaluation_id();
    rollout.driver.accept(stop_allocation(a, Replacement::ByKind, evaluation));
    rollout.driver.report(a, Failed);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Running);
    assert_eq!(rollout.counts(id), (2, 0, 0));
    rollout.driver.report_health(b, Running, true);
    let c = rollout.place(0, false);
    rollout.driver.report_health(c, Running, true);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Successful);
    rollout.driver.report(c, Failed);
    let own = rollout.driver.allocation(c).deployment.expect("it belongs to one");
    assert_eq!(own.is_healthy(), Some(true));
}

/// An agent that is told to stop what it has not started, or what is not healthy yet, says that it
/// is not healthy. What was unhealthy before it was stopped stays so.
#[test]
fn the_health_of_an_allocation_that_is_to_end_counts_for_nothing() {
    type End = fn(&mut Rollout, AllocationId);
    let stops: End = |rollout, id| {
        let plan = rollout.plan().stopping(id, None);
        rollout.driver.commit_plan(plan);
    };
    let migrates: End = |rollout, id| {
        let evaluation = rollout.driver.evaluation_id();
        rollout.driver.accept(stop_allocation(id, Replacement::ByKind, evaluation));
    };
    for end in [stops, migrates] {
        for healthy in [false, true] {
            let mut rollout = Rollout::default();
            let id = rollout.begin(version("one", 2, |_| {}), 0);
            let one = rollout.place(0, false);
            end(&mut rollout, one);
            rollout.driver.report_health(one, ClientStatus::Complete, healthy);
            assert_eq!(rollout.status(id).0, DeploymentStatus::Running);
            assert_eq!(rollout.counts(id), (1, 0, 0));
        }
        let mut rollout = Rollout::default();
        let mut spec = version("one", 2, |update| update.progress_deadline_ms = 60_000);
        spec.groups[0].reschedule = Some(policy(true));
        let id = rollout.begin(spec, 0);
        let one = rollout.place(0, false);
        rollout.driver.report_health(one, Running, false);
        end(&mut rollout, one);
        rollout.driver.report_health(one, ClientStatus::Complete, true);
        assert_eq!(rollout.counts(id), (1, 0, 1));
    }
}

/// Each instance that has become healthy lets the next step be looked at, in the entry of the
/// report.
#[test]
fn the_next_step_follows_from_health_while_older_versions_run() {
    let mut rollout = Rollout::default();
    let old = rollout.stable(&version("one", 2, |_| {}));
    let id = rollout.begin(version("two", 2, |_| {}), 0);
    let placement = rollout.driver.placement(GROUP, 0, rollout.node);
    let new = placement.id;
    let plan = rollout.plan().stopping(old[0], None).with(placement);
    rollout.driver.commit_plan(plan);
    assert_eq!(rollout.steps(), 0);
    rollout.driver.report_health(new, Running, true);
    assert_eq!(rollout.steps(), 1);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Running);
}

/// Instances of the older version that have failed for good hold their places: they are replaced
/// step by step like those that run.
#[test]
fn a_rollout_goes_on_over_instances_that_have_failed() {
    let mut rollout = Rollout::default();
    let old = rollout.stable(&version("one", 3, |_| {}));
    for id in &old {
        rollout.driver.report(*id, Failed);
    }
    rollout.begin(version("two", 3, |_| {}), 0);
    let placement = rollout.driver.placement(GROUP, 0, rollout.node);
    let new = placement.id;
    let plan = rollout.plan().stopping(old[0], None).with(placement);
    assert!(rollout.driver.commit_plan(plan).outcome_taken);
    assert_eq!(rollout.steps(), 0);
    rollout.driver.report_health(new, Running, true);
    assert_eq!(rollout.steps(), 1);
}

/// A promotion does not end a pause, and is not said to.
#[test]
fn a_paused_deployment_stays_paused_when_it_is_promoted() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 3, |_| {}));
    let id = rollout.begin(version("two", 3, |update| update.canaries = 1), 1);
    let canary = rollout.place(0, true);
    rollout.driver.report_health(canary, Running, true);
    let evaluation = rollout.driver.evaluation_id();
    rollout.driver.accept(PauseDeployment { id, pause: true, evaluation }.into());
    let command = promote(id, &mut rollout.driver);
    rollout.driver.accept(command.into());
    assert!(rollout.row(id).groups[GROUP].promoted);
    assert_eq!(rollout.status(id), (DeploymentStatus::Paused, "Deployment is paused"));
}

/// As in Nomad: whoever resumes it reads that it runs, also while canaries wait.
#[test]
fn a_resumed_deployment_runs() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 3, |_| {}));
    let id = rollout.begin(version("two", 3, |update| update.canaries = 1), 1);
    for (pause, expected) in [
        (true, (DeploymentStatus::Paused, "Deployment is paused")),
        (false, (DeploymentStatus::Running, "Deployment is running")),
    ] {
        let evaluation = rollout.driver.evaluation_id();
        rollout.driver.accept(PauseDeployment { id, pause, evaluation }.into());
        assert_eq!(rollout.status(id), expected);
    }
    assert!(rollout.row(id).groups[GROUP].is_to_promote());
}

/// D3: canaries wait for a person, who may promote them only when all are healthy, and once.
#[test]
fn healthy_canaries_are_promoted_by_hand_once() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 2, |_| {}));
    let id = rollout.begin(version("two", 2, |update| update.canaries = 2), 2);
    let waits = "Deployment is running but requires manual promotion";
    assert_eq!(rollout.status(id), (DeploymentStatus::Running, waits));
    // Beside those of the same names.
    let canaries = [rollout.place(0, true), rollout.place(1, true)];
    rollout.driver.report_health(canaries[0], Running, true);
    let early = promote(id, &mut rollout.driver);
    let why = format!("Task group \"{GROUP}\" has 1/2 healthy allocations");
    assert_eq!(rollout.reject(early), why);
    let mut other = promote(id, &mut rollout.driver);
    other.groups = Some(vec!["other".into()]);
    assert_eq!(rollout.reject(other), "deployment has no task group \"other\"");
    rollout.driver.report_health(canaries[1], Running, true);
    assert_eq!(rollout.status(id), (DeploymentStatus::Running, waits), "it goes on waiting");
    let command = promote(id, &mut rollout.driver);
    let evaluation = command.evaluation;
    let reply = rollout.driver.accept(command.into());
    assert_eq!(reply, Reply::Deployment { evaluation: Some(evaluation), reverted_to: None });
    assert!(rollout.row(id).groups[GROUP].promoted);
    assert!(canaries.iter().all(|id| !rollout.driver.allocation(*id).is_canary()));
    assert_eq!(rollout.status(id).0, DeploymentStatus::Successful, "two are wanted and healthy");
    assert_eq!(rollout.steps(), 2, "the older ones are to go");
    let again = promote(id, &mut rollout.driver);
    assert_eq!(rollout.reject(again), "can't promote terminal deployment");
    // The next rollout takes them over.
    rollout.begin(version("three", 2, |_| {}), 0);
    assert_eq!(rollout.row(id).placed_canaries[GROUP], canaries);
}

#[test]
fn canaries_are_promoted_by_themselves_when_all_are_healthy() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 3, |_| {}));
    let new = version("two", 3, |update| (update.canaries, update.auto_promote) = (2, true));
    let id = rollout.begin(new, 2);
    assert_eq!(rollout.status(id).1, "Deployment is running pending automatic promotion");
    let canaries = [rollout.place(0, true), rollout.place(1, true)];
    rollout.driver.report_health(canaries[0], Running, true);
    assert!(!rollout.row(id).groups[GROUP].promoted);
    rollout.driver.report_health(canaries[1], Running, true);
    assert!(rollout.row(id).groups[GROUP].promoted);
    assert_eq!(rollout.status(id), (DeploymentStatus::Running, "Deployment is running"));
    assert!(rollout.steps() > 0);
    // To promote it once more changes nothing, and has the job looked at.
    let again = promote(id, &mut rollout.driver);
    let evaluation = again.evaluation;
    let before = rollout.row(id).groups.clone();
    let reply = rollout.driver.accept(again.into());
    assert_eq!(reply, Reply::Deployment { evaluation: Some(evaluation), reverted_to: None });
    assert_eq!(rollout.row(id).groups, before);
    let none = rollout.begin(version("three", 3, |_| {}), 0);
    let again = promote(none, &mut rollout.driver);
    assert_eq!(rollout.reject(again), "no canaries to promote");
}

/// Without a deadline the first unhealthy instance fails the deployment; with one, only when its
/// policy allows no other attempt.
#[test]
fn an_unhealthy_instance_fails_a_deployment_when_nothing_makes_up_for_it() {
    for (deadline, reschedule, fails) in [
        (0, Some(policy(true)), true),
        (600_000, Some(policy(true)), false),
        (600_000, Some(policy(false)), true),
        (600_000, None, true),
    ] {
        let mut rollout = Rollout::default();
        let mut spec = version("one", 1, |update| update.progress_deadline_ms = deadline);
        spec.groups[0].reschedule = reschedule;
        let id = rollout.begin(spec, 0);
        let a = rollout.place(0, false);
        rollout.driver.report_health(a, Failed, false);
        assert_eq!(rollout.counts(id), (1, 0, 1));
        let failed = rollout.status(id).0 == DeploymentStatus::Failed;
        assert_eq!(failed, fails, "{deadline} {reschedule:?}");
    }
}

/// A failed version goes back to the last stable one, as a new version. One that does the same as
/// the failed one is no way back: there is no loop.
#[test]
fn a_failed_version_is_reverted_once() {
    let mut rollout = Rollout::default();
    let reverts = |update: &mut UpdateStrategy| update.auto_revert = true;
    rollout.stable(&version("good", 1, reverts));
    let id = rollout.begin(version("bad", 1, reverts), 0);
    let bad = rollout.place(1, false);
    rollout.driver.report_health(bad, Failed, false);
    let why = "Failed due to unhealthy allocations - rolling back to job version 0";
    assert_eq!(rollout.status(id), (DeploymentStatus::Failed, why));
    let job = rollout.driver.job_row("t").clone();
    assert_eq!(job.version, 2);
    let spec = rollout.driver.state.current_spec(&job).expect("it has a spec");
    assert_eq!(&*spec.groups[0].tasks[0].user, "good");
    assert_eq!(rollout.steps(), 1);
    // The version that it went back to fails as well.
    let id = rollout.begin(version("good", 1, reverts), 0);
    assert_eq!(rollout.driver.job_row("t").version, 2, "it is the same");
    let worse = rollout.place(2, false);
    rollout.driver.report_health(worse, Failed, false);
    let why = "Failed due to unhealthy allocations - not rolling back to stable job version 0 \
               as current job has same specification";
    assert_eq!(rollout.status(id), (DeploymentStatus::Failed, why));
    assert_eq!(rollout.driver.job_row("t").version, 2);
}

#[test]
fn without_a_stable_version_there_is_no_way_back() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 1, |update| update.auto_revert = true), 0);
    let evaluation = rollout.driver.evaluation_id();
    let reply = rollout.driver.accept(FailDeployment { id, evaluation }.into());
    assert_eq!(reply, Reply::Deployment { evaluation: Some(evaluation), reverted_to: None });
    let why = "Deployment marked as failed - no stable job version to auto revert to";
    assert_eq!(rollout.status(id), (DeploymentStatus::Failed, why));
    assert_eq!(rollout.reject(FailDeployment { id, evaluation }), "can't fail terminal deployment");
    let unknown = FailDeployment { id: DeploymentId([99; 16]), evaluation };
    assert_eq!(rollout.reject(unknown), "deployment not found");
}

/// The deadline counts from the beginning, moves with each healthy instance, and not while
/// the deployment is paused. A command that comes early changes nothing.
#[test]
fn a_deployment_without_progress_fails_at_its_deadline() {
    let mut rollout = Rollout::default();
    rollout.driver.at_seconds(1_000);
    let spec = version("one", 3, |update| update.progress_deadline_ms = 60_000);
    let id = rollout.begin(spec, 0);
    assert_eq!(rollout.deadline(id), Some(1_060_000));
    rollout.driver.at_seconds(1_010);
    let a = rollout.place(0, false);
    let b = rollout.place(1, false);
    assert_eq!(rollout.deadline(id), Some(1_060_000));
    rollout.driver.at_seconds(1_050);
    rollout.driver.report_health(a, Running, true);
    assert_eq!(rollout.deadline(id), Some(1_110_000));
    let pause = |rollout: &mut Rollout, pause| {
        let evaluation = rollout.driver.evaluation_id();
        rollout.driver.accept(PauseDeployment { id, pause, evaluation }.into())
    };
    let expire = |rollout: &mut Rollout, seconds| {
        rollout.driver.at_seconds(seconds);
        rollout.driver.accept(ExpireDeployments { ids: vec![id] }.into());
        rollout.row(id).status
    };
    assert_eq!(expire(&mut rollout, 1_109), DeploymentStatus::Running);
    pause(&mut rollout, true);
    assert_eq!(rollout.status(id).1, "Deployment is paused");
    assert_eq!(expire(&mut rollout, 1_200), DeploymentStatus::Paused);
    pause(&mut rollout, false);
    assert_eq!(rollout.deadline(id), Some(1_260_000));
    assert_eq!(expire(&mut rollout, 1_259), DeploymentStatus::Running);
    assert_eq!(expire(&mut rollout, 1_260), DeploymentStatus::Failed);
    assert_eq!(rollout.status(id).1, "Failed due to progress deadline");
    rollout.driver.report_health(b, Running, true);
    assert_eq!(rollout.counts(id), (2, 1, 0), "it is over");
}

/// One that makes up for another is no progress: a version that comes up and falls again and again
/// fails at its deadline. What was on nodes that are gone need not be reached again.
#[test]
fn only_more_healthy_instances_than_ever_are_progress() {
    let mut rollout = Rollout::default();
    rollout.driver.at_seconds(1_000);
    let mut spec = version("one", 4, |update| update.progress_deadline_ms = 60_000);
    spec.groups[0].reschedule = Some(policy(true));
    let id = rollout.begin(spec, 0);
    let (a, b) = (rollout.place(0, false), rollout.place(1, false));
    rollout.driver.at_seconds(1_010);
    rollout.driver.report_health(a, Running, true);
    assert_eq!(rollout.deadline(id), Some(1_070_000));
    rollout.driver.report(a, Failed);
    let again = rollout.place(0, false);
    rollout.driver.at_seconds(1_040);
    rollout.driver.report_health(again, Running, true);
    assert_eq!(rollout.deadline(id), Some(1_070_000), "one was healthy before");
    rollout.driver.at_seconds(1_050);
    rollout.driver.report_health(b, Running, true);
    assert_eq!(rollout.deadline(id), Some(1_110_000));

    rollout.lose(b);
    rollout.set_total(id, 3);
    let c = rollout.place(2, false);
    rollout.driver.at_seconds(1_060);
    rollout.driver.report_health(c, Running, true);
    assert_eq!(rollout.deadline(id), Some(1_120_000), "two of three");
}

/// The time in which canaries waited for a person is not taken from those that make up for them.
#[test]
fn the_deadline_moves_by_the_wait_for_a_promotion() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 2, |_| {}));
    rollout.driver.at_seconds(1_000);
    let mut spec = version("two", 2, |update| {
        (update.canaries, update.progress_deadline_ms) = (1, 60_000);
    });
    spec.groups[0].reschedule = Some(policy(true));
    let id = rollout.begin(spec, 1);
    for (healthy_at, fails_at, deadline) in [(1_010, 2_000, 2_060), (2_020, 2_030, 2_070)] {
        let canary = rollout.place(0, true);
        rollout.driver.at_seconds(healthy_at);
        rollout.driver.report_health(canary, Running, true);
        assert_eq!(rollout.deadline(id), None);
        rollout.driver.at_seconds(fails_at);
        rollout.driver.report(canary, Failed);
        assert_eq!(rollout.deadline(id), Some(deadline * 1_000));
    }
}

/// Nor is the time in which nothing was missing in a group, while another group is rolled out.
#[test]
fn the_time_of_a_group_that_is_complete_stands_still() {
    let mut rollout = Rollout::default();
    rollout.driver.at_seconds(1_000);
    let mut spec = version("one", 1, |update| update.progress_deadline_ms = 60_000);
    let mut other = spec.groups[0].clone();
    (other.name, other.reschedule) = ("other".into(), Some(policy(true)));
    spec.groups.push(other);
    // The other one has no time of its own.
    if let Some(update) = &mut spec.groups[0].update {
        update.progress_deadline_ms = 0;
    }
    let id = rollout.begin(spec, 0);
    let one = rollout.place_in("other", 0, false);
    rollout.driver.at_seconds(1_010);
    rollout.driver.report_health(one, Running, true);
    assert_eq!(rollout.deadline(id), None);
    rollout.driver.at_seconds(5_010);
    rollout.driver.report(one, Failed);
    assert_eq!(rollout.deadline(id), Some(5_070_000));
    let again = rollout.place_in("other", 0, false);
    rollout.driver.at_seconds(5_040);
    rollout.driver.report_health(again, Running, true);
    rollout.driver.at_seconds(6_040);
    rollout.driver.report(again, Failed);
    assert_eq!(rollout.deadline(id), Some(6_070_000), "that was no progress");
}

/// What the failure of one group does, of a job whose first group alone asks for a way back.
#[test]
fn only_a_group_that_fails_takes_its_job_back() {
    let spec = |user: &str| {
        let mut spec = version(user, 1, |update| {
            (update.auto_revert, update.progress_deadline_ms) = (true, 60_000);
        });
        let mut other = spec.groups[0].clone();
        other.name = "other".into();
        if let Some(update) = &mut other.update {
            update.auto_revert = false;
        }
        spec.groups.push(other);
        spec
    };
    let check = |group: &str, reverts: bool, fail: fn(&mut Rollout, DeploymentId, AllocationId)| {
        let mut rollout = Rollout::default();
        rollout.driver.register_job(spec("one"));
        let mark = VersionMark::Stable { version: 0, stable: true };
        rollout.driver.accept(MarkJobVersion { job: job_key("t"), mark }.into());
        let id = rollout.begin(spec("two"), 0);
        let sibling = if group == GROUP { "other" } else { GROUP };
        let healthy = rollout.place_in(sibling, 0, false);
        rollout.driver.report_health(healthy, Running, true);
        let one = rollout.place_in(group, 0, false);
        fail(&mut rollout, id, one);
        assert_eq!(rollout.status(id).0, DeploymentStatus::Failed);
        let version = rollout.driver.job_row("t").version;
        assert_eq!(version, if reverts { 2 } else { 1 }, "{group}: {}", rollout.status(id).1);
    };
    let is_unhealthy = |rollout: &mut Rollout, _, one| {
        rollout.driver.report_health(one, Failed, false);
    };
    let is_late = |rollout: &mut Rollout, id, _| {
        rollout.driver.at_seconds(10_000);
        rollout.driver.accept(ExpireDeployments { ids: vec![id] }.into());
    };
    let by_hand = |rollout: &mut Rollout, id, _| {
        let evaluation = rollout.driver.evaluation_id();
        rollout.driver.accept(FailDeployment { id, evaluation }.into());
    };
    check("other", false, is_unhealthy);
    check(GROUP, true, is_unhealthy);
    check("other", false, is_late);
    check(GROUP, true, is_late);
    check("other", true, by_hand);
}

/// Healthy canaries that wait for a person are no lack of progress.
#[test]
fn nothing_expires_while_canaries_wait_for_their_promotion() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 2, |_| {}));
    let new = version("two", 2, |update| {
        (update.canaries, update.progress_deadline_ms) = (1, 60_000);
    });
    let id = rollout.begin(new, 1);
    let canary = rollout.place(0, true);
    assert!(rollout.row(id).progress_deadline().is_some());
    rollout.driver.report_health(canary, Running, true);
    assert_eq!(rollout.row(id).progress_deadline(), None);
    let command = promote(id, &mut rollout.driver);
    let now = rollout.driver.state.at();
    rollout.driver.accept(command.into());
    assert_eq!(rollout.row(id).progress_deadline(), Some(now + 60_000));
}

/// Instances that find no room are a lack of progress, also if not one of them found any. The time
/// counts anew from when they have found it, and what fails says what is short.
#[test]
fn a_deployment_that_finds_no_room_fails_at_its_deadline() {
    for placed in [0, 1] {
        let mut rollout = Rollout::default();
        rollout.driver.at_seconds(1_000);
        let id = rollout.begin(version("one", 3, |update| update.progress_deadline_ms = 60_000), 0);
        for number in 0..placed {
            rollout.place(number, false);
        }
        rollout.blocked(2);
        assert_eq!(rollout.deadline(id), Some(1_060_000));
        assert_eq!(rollout.expire(id, 1_059), DeploymentStatus::Running);
        // One of an older version says nothing about this one.
        rollout.queued(1, false);
        assert_eq!(rollout.deadline(id), Some(1_119_000));
        rollout.driver.at_seconds(1_100);
        rollout.queued(2, false);
        assert_eq!(rollout.deadline(id), Some(1_119_000));
        rollout.blocked(2);
        assert_eq!(rollout.expire(id, 1_119), DeploymentStatus::Failed);
        assert_eq!(
            rollout.status(id).1,
            "Failed due to progress deadline - no room for 2 instances of group \"web\": memory \
             exhausted on 3 nodes, \"${attr.cpu.arch} = arm64\" filters 1 node"
        );
        let scale = ScaleJob {
            job: job_key("t"),
            group: GROUP.into(),
            count: Some(1),
            enforce_index: None,
            message: "".into(),
            error: false,
            meta_json: "".into(),
            evaluation: rollout.driver.evaluation_id(),
        };
        rollout.driver.accept(scale.into());
    }
}

/// A machine that was asked for in time keeps the deployment from failing until its own deadline,
/// and for a moment after it came. One of another pool, one that was asked for too late and one
/// that goes do not.
#[test]
fn a_deployment_waits_for_a_machine_that_comes() {
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Machine {
        InTime,
        TooLate,
        Elsewhere,
        Goes,
    }
    for machine in [Machine::InTime, Machine::TooLate, Machine::Elsewhere, Machine::Goes] {
        let mut rollout = Rollout::default();
        for pool in ["burst", "other"] {
            rollout.driver.instance_pool(pool, |_| {});
        }
        rollout.driver.at_seconds(1_000);
        let mut spec = version("one", 1, |update| update.progress_deadline_ms = 60_000);
        spec.node_pool = "burst".into();
        let id = rollout.begin(spec, 0);
        rollout.blocked(1);
        let asked = if machine == Machine::TooLate { 1_061 } else { 1_050 };
        rollout.driver.at_seconds(asked);
        let pool = if machine == Machine::Elsewhere { "other" } else { "burst" };
        let instance = rollout.driver.request_instance(pool, "small");
        if machine == Machine::Goes {
            rollout.driver.behave(instance, crate::pool::Behavior::Drain);
        }
        let waits = machine == Machine::InTime;
        let expected = if waits { DeploymentStatus::Running } else { DeploymentStatus::Failed };
        assert_eq!(rollout.expire(id, 1_062), expected, "{machine:?}");
        if waits {
            let deadline = rollout.driver.instance_row(instance).deadline_at - START_MS;
            assert_eq!(rollout.expire(id, deadline / 1_000 - 1), expected);
            assert_eq!(rollout.expire(id, deadline / 1_000), DeploymentStatus::Failed);
        }
    }
}

/// Its node is bound, and the pass that places something there comes.
#[test]
fn a_machine_that_has_just_come_is_waited_for() {
    let mut rollout = Rollout::default();
    rollout.driver.instance_pool("burst", |_| {});
    rollout.driver.at_seconds(1_000);
    let mut spec = version("one", 1, |update| update.progress_deadline_ms = 60_000);
    spec.node_pool = "burst".into();
    let id = rollout.begin(spec, 0);
    rollout.blocked(1);
    let instance = rollout.driver.instance("burst", "small", "b");
    let bound = (rollout.driver.instance_row(instance).bound_at - START_MS) / 1_000;
    assert_eq!(bound, 1_000);
    let last = bound + limits::FIRST_WORK_MS / 1_000;
    assert!(last < 1_060, "it is over before the deadline");
    assert_eq!(rollout.expire(id, 1_060), DeploymentStatus::Failed);
    let mut rollout = Rollout::default();
    rollout.driver.instance_pool("burst", |_| {});
    rollout.driver.at_seconds(1_000);
    let mut spec = version("one", 1, |update| update.progress_deadline_ms = 20_000);
    spec.node_pool = "burst".into();
    let id = rollout.begin(spec, 0);
    rollout.blocked(1);
    rollout.driver.instance("burst", "small", "b");
    assert_eq!(rollout.expire(id, 1_029), DeploymentStatus::Running);
    assert_eq!(rollout.expire(id, 1_030), DeploymentStatus::Failed);
}

/// Room that is lacking before and after a version is lacking for its deployment too.
#[test]
fn a_version_waits_for_room_as_the_one_before_did() {
    let mut rollout = Rollout::default();
    for (number, user) in [(0u8, "one"), (1, "two")] {
        let spec = version(user, 4, |update| update.progress_deadline_ms = 60_000);
        let goals = BTreeMap::from([(GROUP.into(), DeploymentGoal { canaries: 0, total: 4 })]);
        let id = DeploymentId([number + 1; 16]);
        let evaluation = rollout.driver.register_job(spec);
        let placement = rollout.driver.placement(GROUP, number.into(), rollout.node);
        let mut plan = rollout.driver.plan(evaluation).with(placement);
        plan.deployment = Some(NewDeployment { id, goals });
        let outcome = plan.outcome.as_mut().expect("it has one");
        outcome.queued = BTreeMap::from([(GROUP.into(), 2)]);
        outcome.waiting = BTreeSet::from([GROUP.into()]);
        assert!(rollout.driver.commit_plan(plan).outcome_taken);
        assert!(rollout.row(id).groups[GROUP].waits_for_room, "{user}");
    }
}

/// What stands in for what a deployment holds back depends on the stable versions: who marks one
/// has the job looked at.
#[test]
fn a_mark_is_evaluated_while_a_deployment_holds_something_back() {
    let mut rollout = Rollout::default();
    rollout.driver.register_job(version("one", 1, |_| {}));
    let id = rollout.begin(version("two", 1, |_| {}), 0);
    let mark = |rollout: &mut Rollout, stable| {
        let before = rollout.steps();
        let mark = VersionMark::Stable { version: 0, stable };
        rollout.driver.accept(MarkJobVersion { job: job_key("t"), mark }.into());
        rollout.steps() - before
    };
    assert_eq!(mark(&mut rollout, true), 0, "nothing is held back");
    let evaluation = rollout.driver.evaluation_id();
    rollout.driver.accept(FailDeployment { id, evaluation }.into());
    assert_eq!(mark(&mut rollout, true), 0, "nothing has changed");
    assert_eq!(mark(&mut rollout, false), 1);
}

/// A job that is changed, stopped or purged ends its deployment, and says why.
#[test]
fn a_deployment_ends_with_the_version_that_it_rolls_out() {
    let mut rollout = Rollout::default();
    let first = rollout.begin(version("one", 1, |_| {}), 0);
    let second = rollout.begin(version("two", 1, |_| {}), 0);
    let newer = (DeploymentStatus::Cancelled, "Cancelled due to newer version of job");
    assert_eq!(rollout.status(first), newer);
    rollout.driver.deregister_job("t", true);
    let stopped = (DeploymentStatus::Cancelled, "Cancelled because job is stopped");
    assert_eq!(rollout.status(second), stopped);
}

#[test]
fn a_canary_is_placed_only_while_its_deployment_takes_some() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 1, |_| {}));
    let mut canary = rollout.driver.placement(GROUP, 0, rollout.node);
    canary.canary = true;
    let plan = rollout.plan().with(canary);
    let verdict = rollout.driver.commit_plan(plan);
    assert_eq!(verdict.dropped.len(), 1, "there is no deployment");
    rollout.begin(version("two", 1, |update| update.canaries = 1), 1);
    let id = rollout.place(0, true);
    let row = rollout.driver.allocation(id);
    assert!(row.is_canary() && row.canary_of.is_some());
}

/// Health by hand counts as a report does, and only of the allocations of the deployment.
#[test]
fn a_person_may_say_who_is_healthy() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 2, |_| {}), 0);
    let (a, b) = (rollout.place(0, false), rollout.place(1, false));
    let evaluation = rollout.driver.evaluation_id();
    let mut command =
        SetAllocationHealth { id, healthy: vec![a, b], unhealthy: Vec::new(), evaluation };
    command.unhealthy = vec![AllocationId([200; 16])];
    assert!(rollout.reject(command.clone()).contains("is not part of deployment"));
    command.unhealthy = vec![a; limits::HEALTH_WORDS_MAX];
    assert!(rollout.reject(command.clone()).contains("at most 1000"));
    command.unhealthy.clear();
    rollout.driver.report(a, Running);
    rollout.driver.accept(command.into());
    assert_eq!(rollout.status(id).0, DeploymentStatus::Successful);
}

/// The next step waits until what a person called healthy runs, too; nothing but its agent's report
/// tells of that.
#[test]
fn one_that_was_called_healthy_before_it_runs_is_looked_at_when_it_does() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 2, |_| {}), 0);
    let a = rollout.place(0, false);
    let evaluation = rollout.driver.evaluation_id();
    let command = SetAllocationHealth { id, healthy: vec![a], unhealthy: Vec::new(), evaluation };
    rollout.driver.accept(command.into());
    assert_eq!(rollout.driver.report(a, Running).len(), 1);
    assert_eq!(rollout.driver.report(a, Running), []);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Running);
}

/// A person's word fails the deployment at once, and the group goes back if it asks for that; the
/// reply says where to.
#[test]
fn one_that_a_person_calls_unhealthy_fails_the_deployment() {
    for reverts in [false, true] {
        let mut rollout = Rollout::default();
        rollout.stable(&version("one", 2, |_| {}));
        let id = rollout.begin(version("two", 3, |update| update.auto_revert = reverts), 0);
        let a = rollout.place(2, false);
        rollout.driver.report(a, Running);
        let evaluation = rollout.driver.evaluation_id();
        let command =
            SetAllocationHealth { id, healthy: Vec::new(), unhealthy: vec![a], evaluation };
        let reply = rollout.driver.accept(command.into());
        let reverted_to = reverts.then_some(0);
        assert_eq!(reply, Reply::Deployment { evaluation: Some(evaluation), reverted_to });
        let (status, why) = rollout.status(id);
        assert_eq!(status, DeploymentStatus::Failed, "{why}");
        assert_eq!(why.contains("rolling back to job version 0"), reverts, "{why}");
        assert_eq!(rollout.driver.job_row("t").version, if reverts { 2 } else { 1 });
    }
}

/// The steps of a deployment have the priority of the evaluation that began it.
#[test]
fn a_deployment_keeps_the_priority_of_its_evaluation() {
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 2, |_| {}));
    let evaluation = rollout.driver.evaluation_id();
    let spec = version("two", 3, |_| {});
    let command = RegisterJob {
        evaluation_priority: Some(77),
        ..RegisterJob::new(std::sync::Arc::new(spec), evaluation)
    };
    rollout.driver.accept(command.into());
    let mut plan = rollout.driver.plan(evaluation);
    let id = DeploymentId([99; 16]);
    let goal = DeploymentGoal { canaries: 0, total: 3 };
    plan.deployment = Some(NewDeployment { id, goals: BTreeMap::from([(GROUP.into(), goal)]) });
    assert!(rollout.driver.commit_plan(plan).outcome_taken);
    assert_eq!(rollout.row(id).priority, 77);
    let a = rollout.place(2, false);
    rollout.driver.report_health(a, Running, true);
    let open = rollout.driver.open_evaluations("t");
    let steps: Vec<_> = open
        .iter()
        .map(|id| rollout.driver.evaluation(*id))
        .filter(|row| row.trigger == Trigger::DeploymentWatcher)
        .map(|row| row.priority)
        .collect();
    assert_eq!(steps, [77]);
}

/// The oldest go when there are too many, and those that are over for long; that of the current
/// version stays.
#[test]
fn deployments_of_a_job_are_bounded() {
    let mut rollout = Rollout::default();
    let ids: Vec<_> =
        (0..40).map(|n| rollout.begin(version(&format!("{n}"), 1, |_| {}), 0)).collect();
    let known = |rollout: &Rollout| {
        ids.iter().filter(|id| rollout.driver.state.deployments().contains(id)).count()
    };
    assert_eq!(known(&rollout), limits::DEPLOYMENTS_PER_JOB_MAX);
    let evaluation = rollout.driver.evaluation_id();
    let last = *ids.last().expect("there are some");
    rollout.driver.accept(FailDeployment { id: last, evaluation }.into());
    let collect = |rollout: &mut Rollout, before| {
        let cutoffs = Cutoffs {
            evaluations: 0,
            batch_evaluations: 0,
            jobs: 0,
            deployments: before,
            children_max: 0,
        };
        rollout.driver.accept(Command::from(CollectGarbage {
            cutoffs,
            jobs: Vec::new(),
            allocations: Vec::new(),
            evaluations: Vec::new(),
            deployments: ids.clone(),
            classes: Vec::new(),
        }));
    };
    let now = rollout.driver.state.at();
    collect(&mut rollout, 0);
    assert_eq!(known(&rollout), limits::DEPLOYMENTS_PER_JOB_MAX, "none is old");
    collect(&mut rollout, now + 1);
    assert_eq!(known(&rollout), 1);
    assert_eq!(rollout.status(last).0, DeploymentStatus::Failed);
}

/// A promotion and what it brings survive a change of leaders at any place.
#[test]
fn a_rollout_ends_the_same_with_changes_of_leaders() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        let spec = version("one", 1, |update| update.progress_deadline_ms = 60_000);
        let evaluation = driver.register_job(spec);
        let goals = BTreeMap::from([(GROUP.into(), DeploymentGoal { canaries: 0, total: 1 })]);
        let mut plan = driver.plan(evaluation);
        plan.deployment = Some(NewDeployment { id: DeploymentId([1; 16]), goals });
        driver.commit_plan(plan);
        let id = driver.place("t", 0, node);
        driver.report_health(id, Running, true);
        let row = driver.state.deployments().iter().next().expect("it is kept");
        assert_eq!(row.status, DeploymentStatus::Successful);
    });
}

/// Whoever follows an evaluation follows the deployment that it belongs to: also of a version that
/// is registered again after it has failed or succeeded, and of a job that is stopped or purged.
#[test]
fn an_evaluation_names_the_deployment_that_it_belongs_to() {
    let complete = |rollout: &mut Rollout, evaluation| {
        let plan = rollout.driver.plan(evaluation);
        assert!(rollout.driver.commit_plan(plan).outcome_taken);
        rollout.driver.evaluation(evaluation).deployment
    };
    for failed in [true, false] {
        let mut rollout = Rollout::default();
        let id = rollout.begin(version("one", 1, |_| {}), 0);
        let one = rollout.place(0, false);
        if failed {
            let evaluation = rollout.driver.evaluation_id();
            rollout.driver.accept(FailDeployment { id, evaluation }.into());
            assert_eq!(
                rollout.driver.evaluation(evaluation).deployment,
                Some(id),
                "from the start"
            );
        } else {
            rollout.driver.report_health(one, Running, true);
        }
        let again = rollout.driver.register_job(version("one", 1, |_| {}));
        assert_eq!(rollout.driver.evaluation(again).deployment, None);
        assert_eq!(complete(&mut rollout, again), Some(id));
        let asked = rollout.driver.evaluate_job("t");
        assert_eq!(complete(&mut rollout, asked), Some(id));
        let other = rollout.driver.register_job(version("two", 1, |_| {}));
        assert_eq!(complete(&mut rollout, other), None, "the new version has none yet");
        for purge in [false, true] {
            let stop = rollout.driver.deregister_job("t", purge).expect("it makes one");
            assert_eq!(complete(&mut rollout, stop), Some(id), "{purge}");
        }
    }
}
