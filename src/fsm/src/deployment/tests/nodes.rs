//! Deployments of system jobs: what they are to reach follows nodes that come and go.

use super::{
    AllocationId, DeploymentGoal, DeploymentStatus, JobSpec, Rollout, Running, UpdateStrategy,
    promote, version,
};
use crate::{
    allocation::ClientStatus,
    job::JobKind,
    testing::{GROUP, job_key},
};

impl Rollout {
    /// An instance of a system job on the node of that name.
    fn place_on(&mut self, name: &str, canary: bool) -> AllocationId {
        let node = self.driver.node(name);
        let mut placement = self.driver.placement(GROUP, 0, node);
        placement.canary = canary;
        let id = placement.id;
        let plan = self.plan().with(placement);
        assert!(self.driver.commit_plan(plan).outcome_taken);
        id
    }
}

/// A system job of one group.
fn system(change: impl FnOnce(&mut UpdateStrategy)) -> JobSpec {
    let mut spec = version("one", 1, change);
    spec.kind = JobKind::System;
    spec
}

/// A canary of a system job is known as one also after its promotion.
#[test]
fn canaries_of_a_system_job_stay_marked() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(system(|update| update.canaries = 100), 1);
    let canary = rollout.place(0, true);
    rollout.driver.report_health(canary, Running, true);
    let command = promote(id, &mut rollout.driver);
    rollout.driver.accept(command.into());
    let row = rollout.driver.allocation(canary);
    assert_eq!((row.is_canary(), row.canary_of), (false, Some(id)));
}

/// While its own version would take its place again, an older instance that ends is left to the
/// next pass: it would fail as often as it is placed.
#[test]
fn an_older_instance_that_ends_is_evaluated_when_the_new_version_takes_its_place() {
    for (canaries, expected) in [(0, 1), (100, 0)] {
        let mut rollout = Rollout::default();
        rollout.begin(system(|_| {}), 0);
        let old = rollout.place(0, false);
        let mut next = system(|update| update.canaries = canaries);
        next.groups[0].tasks[0].user = "two".into();
        rollout.begin(next, canaries);
        let made = rollout.driver.report(old, ClientStatus::Failed);
        assert_eq!(made.len(), expected, "{canaries}");
    }
    // Its canaries have found no room yet.
    let mut rollout = Rollout::default();
    rollout.begin(system(|_| {}), 0);
    let old = rollout.place(0, false);
    let mut next = system(|update| update.canaries = 100);
    next.groups[0].tasks[0].user = "two".into();
    rollout.driver.register_job(next);
    assert_eq!(rollout.driver.report(old, ClientStatus::Failed), []);
}

/// A node without room is not waited for, so it is no reason to wait with the deadline either.
#[test]
fn full_nodes_of_a_system_job_hold_no_deadline_up() {
    let mut rollout = Rollout::default();
    rollout.driver.at_seconds(1_000);
    let id = rollout.begin(system(|update| update.progress_deadline_ms = 60_000), 0);
    rollout.place_on("b", false);
    rollout.queued(1, true);
    assert_eq!(rollout.deadline(id), Some(1_060_000));
}

/// Nothing was seen to work. When a node comes the deployment goes on, with its time from then.
#[test]
fn a_rollout_whose_nodes_have_gone_is_not_successful() {
    let mut rollout = Rollout::default();
    rollout.driver.at_seconds(1_000);
    let id = rollout.begin(system(|update| update.progress_deadline_ms = 60_000), 0);
    let one = rollout.place_on("b", false);
    rollout.lose(one);
    rollout.set_total(id, 0);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Running);
    assert_eq!(rollout.deadline(id), None);
    let created = rollout.driver.job_row("t").create_index;
    assert_eq!(rollout.driver.state.last_stable_version(&job_key("t"), created), None);
    rollout.driver.at_seconds(5_000);
    rollout.set_total(id, 1);
    assert_eq!(rollout.deadline(id), Some(5_060_000));
    let again = rollout.place_on("c", false);
    rollout.driver.report_health(again, Running, true);
    assert_eq!(rollout.status(id).0, DeploymentStatus::Successful);
}

/// A group without nodes holds up neither the promotion nor the end of the others, and is not
/// promoted with them.
#[test]
fn a_group_without_nodes_is_not_waited_for() {
    for by_hand in [false, true] {
        let mut rollout = Rollout::default();
        let mut spec = system(|update| {
            (update.canaries, update.auto_promote) = (100, !by_hand);
            update.progress_deadline_ms = 60_000;
        });
        let mut other = spec.groups[0].clone();
        (other.name, other.count) = ("other".into(), 0);
        spec.groups.push(other);
        let id = rollout.begin_for(spec, |total| DeploymentGoal { canaries: 1, total });
        let command = promote(id, &mut rollout.driver);
        assert!(rollout.reject(command).contains("has 0/1 healthy"));
        let one = rollout.place_on("b", true);
        rollout.driver.report_health(one, Running, true);
        if by_hand {
            assert_eq!(rollout.deadline(id), None);
            let mut command = promote(id, &mut rollout.driver);
            command.groups = Some(vec!["other".into()]);
            assert_eq!(rollout.reject(command), "no canaries to promote");
            let command = promote(id, &mut rollout.driver);
            rollout.driver.accept(command.into());
        }
        assert_eq!(rollout.status(id).0, DeploymentStatus::Successful, "{by_hand}");
        let groups = &rollout.row(id).groups;
        assert_eq!((groups[GROUP].promoted, groups["other"].promoted), (true, false));
    }
}

/// Canaries on nodes that are gone are not to be healthy for the promotion; they are wanted again
/// with the nodes.
#[test]
fn canaries_follow_the_number_of_nodes() {
    for auto_promote in [false, true] {
        let mut rollout = Rollout::default();
        let spec = system(|update| {
            (update.canaries, update.auto_promote) = (100, auto_promote);
            update.progress_deadline_ms = 60_000;
        });
        let id = rollout.begin_for(spec, |_| DeploymentGoal { canaries: 3, total: 3 });
        let canaries = ["b", "c", "d"].map(|name| rollout.place_on(name, true));
        rollout.driver.report_health(canaries[0], Running, true);
        rollout.lose(canaries[2]);
        rollout.set_total(id, 2);
        let wanted = |rollout: &Rollout| rollout.row(id).groups[GROUP].goal.canaries;
        assert_eq!(wanted(&rollout), 2);
        rollout.set_total(id, 0);
        assert_eq!(wanted(&rollout), 1, "it begins with canaries whenever a node comes");
        rollout.set_total(id, 4);
        assert_eq!(wanted(&rollout), 3, "no more than it began with");
        assert!(rollout.deadline(id).is_some());
        rollout.driver.report_health(canaries[1], Running, true);
        rollout.set_total(id, 2);
        if !auto_promote {
            assert_eq!(rollout.deadline(id), None, "they wait for a person");
            let command = promote(id, &mut rollout.driver);
            rollout.driver.accept(command.into());
        }
        assert_eq!(rollout.status(id).0, DeploymentStatus::Successful, "{auto_promote}");
    }
}

/// Nodes without room for the version have no canaries from the first pass on, and neither have
/// those where an instance took the version as it ran.
#[test]
fn canaries_are_no_more_than_can_be() {
    let mut rollout = Rollout::default();
    let spec = system(|update| update.canaries = 100);
    let id = rollout.begin_for(spec, |_| DeploymentGoal { canaries: 3, total: 2 });
    assert_eq!(rollout.row(id).groups[GROUP].goal.canaries, 2);
    let one = rollout.place_on("b", false);
    rollout.place_on("c", true);
    rollout.set_total(id, 3);
    assert_eq!(rollout.row(id).groups[GROUP].goal.canaries, 2);
    rollout.lose(one);
    rollout.set_total(id, 2);
    assert_eq!(rollout.row(id).groups[GROUP].goal.canaries, 2);
    // A service has them beside its instances.
    let mut rollout = Rollout::default();
    rollout.stable(&version("one", 2, |_| {}));
    let id = rollout.begin(version("two", 2, |update| update.canaries = 2), 2);
    let (a, b) = (rollout.place(0, true), rollout.place(1, true));
    rollout.place(3, false);
    for canary in [a, b] {
        rollout.driver.report_health(canary, Running, true);
    }
    assert_eq!(rollout.row(id).groups[GROUP].healthy_canaries, 2);
    assert_eq!(rollout.row(id).groups[GROUP].goal.canaries, 2);
}

/// More canaries are wanted, and nobody else says so.
#[test]
fn the_next_canary_follows_from_a_node_that_comes_back() {
    let mut rollout = Rollout::default();
    rollout.begin(system(|_| {}), 0);
    rollout.place_on("b", false);
    let mut spec = system(|update| update.canaries = 100);
    spec.groups[0].tasks[0].user = "two".into();
    let id = rollout.begin_for(spec, |_| DeploymentGoal { canaries: 2, total: 2 });
    rollout.set_total(id, 1);
    assert_eq!(rollout.steps(), 0);
    rollout.set_total(id, 2);
    assert_eq!(rollout.steps(), 1);
}
