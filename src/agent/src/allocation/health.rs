//! Whether an allocation is healthy in its deployment, as a pure machine: all of its tasks run for
//! long enough, or one has ended, or its time is over.
//!
//! It decides once for each deployment, also over restarts of the agent: it is stored with the
//! allocation. Until checks of services run, tasks are all that is looked at. It must never decide
//! anew: the servers count what it says.

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
    /// All tasks must have been running for so long as what they are now, ms.
    running_ms_min: u64,
    /// And be healthy so long after the agent knew of the deployment, ms.
    deadline_ms: u64,
}

impl HealthPolicy {
    /// What the servers ask for; none: nothing.
    pub(crate) fn of(message: &v1::Allocation) -> Option<Self> {
        Some(Self {
            deployment: DeploymentId::from_slice(&message.deployment_id)?,
            running_ms_min: message.healthy_ms_min,
            deadline_ms: message.healthy_deadline_ms,
        })
    }
}

/// The watch over one allocation's health. Times are since boot, ms.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct HealthWatch {
    policy: Option<HealthPolicy>,
    /// Since when it is watched for this deployment: tasks that run on through an update in place
    /// count from here.
    #[serde(default)]
    since_ms: u64,
    /// Since when all tasks have been running.
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

    /// Watches for another deployment from now on. False: it is the same.
    pub(crate) fn revise(&mut self, policy: Option<HealthPolicy>, now: Moment) -> bool {
        let id = |policy: Option<HealthPolicy>| policy.map(|policy| policy.deployment);
        let is_other = id(self.policy) != id(policy);
        if is_other {
            self.begin(policy, now);
        }
        is_other
    }

    /// The machine has booted: its clock begins anew, and with it what was not decided yet.
    pub(crate) fn begin_again(&mut self, now: Moment) {
        self.running_since_ms = None;
        if self.verdict.is_none() {
            self.begin(self.policy, now);
        }
    }

    /// Looks at the tasks, and decides if it is time to.
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

    /// When to look next though nothing happens, in time since boot.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.policy.filter(|_| self.verdict.is_none())?;
        Some(self.healthy_at_ms().map_or(self.deadline_at_ms, |at| at.min(self.deadline_at_ms)))
    }

    /// What it found; none: nothing yet.
    pub(crate) fn verdict(&self) -> Option<bool> {
        self.verdict
    }

    /// The deployment that it says it of, as bytes; empty: none.
    pub(crate) fn deployment(&self) -> Vec<u8> {
        self.policy.map(|policy| policy.deployment.0.to_vec()).unwrap_or_default()
    }
}
