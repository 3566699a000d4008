//! Decides whether an allocation is healthy in its deployment, as a pure state machine. It is
//! healthy when all of its tasks have run for long enough. It is unhealthy when a task has ended
//! for good, or the deadline has passed before.
//!
//! There is one verdict for each deployment. It is stored with the allocation, so a restart of the
//! agent does not change it. It must never decide twice, because the servers count each verdict.
//! Service checks do not exist yet, so only tasks are looked at.

use fsm::DeploymentId;
use proto::v1;
use serde::{Deserialize, Serialize};

use crate::{
    task::runner::{Phase, TaskRunner},
    time::Moment,
};

/// When an allocation of a group counts as healthy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(crate) struct HealthPolicy {
    deployment: DeploymentId,
    /// All tasks must have been running without a restart for this long, ms.
    running_ms_min: u64,
    /// The allocation must be healthy this long after the agent learned of the deployment, ms.
    deadline_ms: u64,
}

impl HealthPolicy {
    /// The policy in the servers' message. `None`: the allocation is in no deployment.
    pub(crate) fn of(message: &v1::Allocation) -> Option<Self> {
        Some(Self {
            deployment: DeploymentId::from_slice(&message.deployment_id)?,
            running_ms_min: message.healthy_ms_min,
            deadline_ms: message.healthy_deadline_ms,
        })
    }
}

/// The health of one allocation. Times are since boot, in ms.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HealthWatch {
    policy: Option<HealthPolicy>,
    /// When the watch for this deployment began. Tasks that keep running through an in-place update
    /// count from here.
    #[serde(default)]
    since_ms: u64,
    /// Since when all tasks have been running. `None`: one is not.
    running_since_ms: Option<u64>,
    deadline_at_ms: u64,
    verdict: Option<bool>,
}

impl HealthWatch {
    /// A watch that begins now.
    pub(crate) fn new(policy: Option<HealthPolicy>, now: Moment) -> Self {
        let mut watch = Self::default();
        watch.begin(policy, now);
        watch
    }

    fn begin(&mut self, policy: Option<HealthPolicy>, now: Moment) {
        let deadline_ms = policy.map_or(0, |policy| policy.deadline_ms);
        self.policy = policy;
        self.since_ms = now.since_boot_ms;
        self.deadline_at_ms = now.since_boot_ms.saturating_add(deadline_ms);
        self.verdict = None;
    }

    /// Begins to watch for another deployment. `false`: the deployment is the same.
    pub(crate) fn revise(&mut self, policy: Option<HealthPolicy>, now: Moment) -> bool {
        let id = |policy: Option<HealthPolicy>| policy.map(|policy| policy.deployment);
        let is_other = id(self.policy) != id(policy);
        if is_other {
            self.begin(policy, now);
        }
        is_other
    }

    /// Called after the machine has booted, when time since boot starts from 0. A watch without a
    /// verdict begins again.
    pub(crate) fn begin_again(&mut self, now: Moment) {
        self.running_since_ms = None;
        if self.verdict.is_none() {
            self.begin(self.policy, now);
        }
    }

    /// Looks at the tasks, and gives the verdict if it is due.
    pub(crate) fn look(&mut self, tasks: &[TaskRunner], now: Moment) {
        if tasks.iter().all(|task| task.phase == Phase::Running) {
            self.running_since_ms.get_or_insert(now.since_boot_ms);
        } else {
            self.running_since_ms = None;
        }
        if self.policy.is_none() || self.verdict.is_some() {
            return;
        }
        if tasks.iter().any(TaskRunner::is_dead) {
            self.verdict = Some(false);
        } else if self.healthy_at_ms().is_some_and(|at| at <= now.since_boot_ms) {
            self.verdict = Some(true);
        } else if self.deadline_at_ms <= now.since_boot_ms {
            self.verdict = Some(false);
        }
    }

    fn healthy_at_ms(&self) -> Option<u64> {
        let min = self.policy?.running_ms_min;
        Some(self.running_since_ms?.max(self.since_ms).saturating_add(min))
    }

    /// When to look next if no task changes, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.policy.filter(|_| self.verdict.is_none())?;
        Some(self.healthy_at_ms().map_or(self.deadline_at_ms, |at| at.min(self.deadline_at_ms)))
    }

    /// Whether the allocation is healthy. `None`: not decided yet.
    pub(crate) fn verdict(&self) -> Option<bool> {
        self.verdict
    }

    /// The id of the deployment that the verdict is about, as bytes. Empty: none.
    pub(crate) fn deployment(&self) -> Vec<u8> {
        self.policy.map(|policy| policy.deployment.0.to_vec()).unwrap_or_default()
    }
}
