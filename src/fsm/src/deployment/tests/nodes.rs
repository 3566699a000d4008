//! Deployments of system jobs: what they are to reach follows nodes that come and go.

use super::{
    AllocationId, DeploymentGoal, DeploymentStatus, JobSpec, Rollout, Running, UpdateStrategy,
    promote, version,
};
use crate::{
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

/// A group without nodes holds up neither the promotion nor the end of the others, and is not promoted
/// with them.
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
