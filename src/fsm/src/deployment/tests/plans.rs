//! Plans that a deployment has overtaken, and where an older version that it holds on to may go.

use super::{FailDeployment, Rollout, version};
use crate::{plan::DropReason, testing::GROUP};

/// A step that was planned before the deployment failed is not taken after it; what is planned then
/// is judged by itself.
#[test]
fn a_step_of_a_deployment_that_has_failed_is_stale() {
    let mut rollout = Rollout::default();
    let id = rollout.begin(version("one", 3, |_| {}), 0);
    let first = rollout.place(0, false);
    let placement = rollout.driver.placement(GROUP, 1, rollout.node);
    let step = rollout.plan().with(placement);
    let stops = rollout.plan().stopping(first, None);
    let evaluation = rollout.driver.evaluation_id();
    rollout.driver.accept(FailDeployment { id, evaluation }.into());
    let verdict = rollout.driver.commit_plan(step);
    assert_eq!(verdict.refused, Some(DropReason::StalePlan));
    assert!(rollout.driver.commit_plan(stops).outcome_taken, "what ends was to end anyway");
    rollout.place(1, false);
}

/// An older version that comes back goes where the current one may run, wherever it could run
/// itself.
#[test]
fn an_older_version_goes_where_the_current_one_may() {
    for (old, new, is_taken) in [("elsewhere", "*", true), ("*", "elsewhere", false)] {
        let mut rollout = Rollout::default();
        let mut spec = version("one", 1, |_| {});
        spec.datacenters = vec![old.into()];
        rollout.driver.register_job(spec);
        let mut spec = version("two", 1, |update| update.canaries = 1);
        spec.datacenters = vec![new.into()];
        rollout.begin(spec, 1);
        let mut placement = rollout.driver.placement(GROUP, 0, rollout.node);
        placement.version = Some(0);
        let plan = rollout.plan().with(placement);
        assert_eq!(rollout.driver.commit_plan(plan).outcome_taken, is_taken, "{old} {new}");
    }
}
