//! Deployments: the rollout of one version of a job, and what an allocation knows of it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{AllocationId, DeploymentId, Index, JobKey, Text, TimeMs},
    job::UpdateStrategy,
    plant::{Plant, is_planted},
    table::Row,
};

/// Why a deployment is as it is, in Nomad's words.
pub mod text {
    pub const RUNNING: &str = "Deployment is running";
    pub const NEEDS_PROMOTION: &str = "Deployment is running but requires manual promotion";
    pub const AUTO_PROMOTION: &str = "Deployment is running pending automatic promotion";
    pub const PAUSED: &str = "Deployment is paused";
    pub const SUCCESSFUL: &str = "Deployment completed successfully";
    pub const JOB_STOPPED: &str = "Cancelled because job is stopped";
    pub const NEWER_JOB: &str = "Cancelled due to newer version of job";
    pub const UNHEALTHY: &str = "Failed due to unhealthy allocations";
    pub const NO_PROGRESS: &str = "Failed due to progress deadline";
    pub const BY_USER: &str = "Deployment marked as failed";
}

/// How a deployment stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum DeploymentStatus {
    Running,
    Paused,
    Failed,
    Successful,
    Cancelled,
}

impl DeploymentStatus {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Failed => "failed",
            Self::Successful => "successful",
            Self::Cancelled => "cancelled",
        }
    }

    /// Whether it goes on, or may.
    pub const fn is_active(self) -> bool {
        match self {
            Self::Running | Self::Paused => true,
            Self::Failed | Self::Successful | Self::Cancelled => false,
        }
    }
}

/// What a deployment is to reach in one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeploymentGoal {
    /// Canaries before anything of an older version is replaced; 0: none. Of a system job no more
    /// than nodes are there for them.
    pub canaries: u32,
    /// Healthy instances in the end.
    pub total: u32,
}

/// The deployment that a plan begins, of the version of its job; with the id of one that goes on,
/// what that one is to reach from now on: nodes of a system job come and go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewDeployment {
    pub id: DeploymentId,
    /// By group; those that are updated all at once have none.
    pub goals: BTreeMap<Text, DeploymentGoal>,
}

/// How a group of a deployment stands.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "settings and marks of a row")]
pub struct DeploymentGroup {
    pub auto_revert: bool,
    pub auto_promote: bool,
    /// Longest time without progress, ms; 0: the first unhealthy allocation fails the deployment.
    pub progress_deadline_ms: u64,
    /// The next allocation must be healthy by this log time; none: there is no deadline.
    pub require_progress_by: Option<TimeMs>,
    pub promoted: bool,
    pub goal: DeploymentGoal,
    /// Canaries that it began with: no more are wanted, however many nodes come.
    pub canaries_max: u32,
    /// Allocations that belong to it, those that ended included.
    pub placed: u32,
    /// Those of them that are healthy and live.
    pub healthy: u32,
    /// Those of them that are unhealthy, those that ended included.
    pub unhealthy: u32,
    /// Canaries among the healthy ones, before the promotion.
    pub healthy_canaries: u32,
    /// The most that were healthy at a time: progress is what goes beyond it.
    pub healthy_max: u32,
    /// Instances wait for room: the deadline holds on while machines for them are on their way.
    pub waits_for_room: bool,
    /// Since when nothing is missing: it is complete or has no nodes, or all canaries are healthy
    /// and wait for their promotion. That is no lack of progress either, and the deadline moves by
    /// it when one is lost.
    pub waits_since: Option<TimeMs>,
}

impl DeploymentGroup {
    pub(super) fn new(update: &UpdateStrategy, goal: DeploymentGoal, at: TimeMs) -> Self {
        let mut group = Self {
            auto_revert: update.auto_revert,
            auto_promote: update.auto_promote,
            progress_deadline_ms: update.progress_deadline_ms,
            goal,
            canaries_max: goal.canaries,
            ..Self::default()
        };
        group.extend(at);
        group
    }

    /// Canaries come first, and nobody has promoted them yet.
    pub fn is_canarying(&self) -> bool {
        self.goal.canaries > 0 && !self.promoted
    }

    /// Whether there are canaries to promote. Where there are no nodes for any, nobody waits for
    /// them.
    pub fn is_to_promote(&self) -> bool {
        self.is_canarying() && self.goal.total > 0
    }

    /// Whether all of its canaries are healthy.
    pub fn has_healthy_canaries(&self) -> bool {
        self.healthy_canaries >= self.goal.canaries || is_planted(Plant::UnhealthyPromoted)
    }

    /// Whether nothing is left to do.
    pub fn is_complete(&self) -> bool {
        !self.is_to_promote() && self.healthy >= self.goal.total
    }

    /// Whether its canaries wait for somebody to promote them.
    fn waits_for_promotion(&self) -> bool {
        self.is_canarying() && self.has_healthy_canaries()
    }

    /// Whether nothing is missing for now.
    fn lacks_nothing(&self) -> bool {
        self.waits_for_promotion() || self.is_complete()
    }

    /// Notes at `at` whether nothing is missing from now on, or something is.
    pub(super) fn note_waiting(&mut self, at: TimeMs) {
        match (self.waits_since, self.lacks_nothing()) {
            (None, true) => self.waits_since = Some(at),
            (Some(since), false) => {
                self.waits_since = None;
                let waited = at.saturating_sub(since);
                self.require_progress_by =
                    self.require_progress_by.map(|by| by.saturating_add(waited));
            }
            (None, false) | (Some(_), true) => {}
        }
    }

    /// When it fails unless it makes progress; none: nothing is missing, or it has no deadline.
    pub(super) fn deadline(&self) -> Option<TimeMs> {
        self.require_progress_by.filter(|_| !self.lacks_nothing())
    }

    /// Progress was made, or begins anew, at `at`.
    pub(super) fn extend(&mut self, at: TimeMs) {
        self.waits_since = self.waits_since.map(|_| at);
        if self.progress_deadline_ms > 0 {
            self.require_progress_by = Some(at.saturating_add(self.progress_deadline_ms));
        }
    }
}

/// The rollout of one version of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Deployment {
    pub id: DeploymentId,
    pub job: JobKey,
    /// Create index of the job; it identifies the job's incarnation.
    pub job_create_index: Index,
    pub job_version: u64,
    /// Modify index of the version's spec.
    pub job_modify_index: Index,
    /// Priority of the evaluations that it makes.
    pub priority: u16,
    pub status: DeploymentStatus,
    pub description: Text,
    /// By name.
    pub groups: BTreeMap<Text, DeploymentGroup>,
    /// By group, the canaries that were placed, in that order, those that ended or are forgotten
    /// included. Beside the groups: few have canaries, and all are copied with each change of an
    /// instance.
    ///
    /// Invariant: at most [`crate::limits::PLACED_CANARIES_KEPT_MAX`] of a group.
    pub placed_canaries: BTreeMap<Text, Vec<AllocationId>>,
    pub create_index: Index,
    pub modify_index: Index,
    /// Log time of creation.
    pub created_at: TimeMs,
    /// Log time of the last change.
    pub modified_at: TimeMs,
}

impl Row for Deployment {
    type Key = DeploymentId;

    fn key(&self) -> DeploymentId {
        self.id
    }
}

impl Deployment {
    /// Whether it goes on, or may.
    pub fn is_active(&self) -> bool {
        self.status.is_active()
    }

    /// Whether it is of that incarnation and version of its job.
    pub fn is_of(&self, (create_index, version): (Index, u64)) -> bool {
        (self.job_create_index, self.job_version) == (create_index, version)
    }

    /// Whether a group waits for the promotion of its canaries.
    pub fn needs_promotion(&self) -> bool {
        self.groups.values().any(DeploymentGroup::is_to_promote)
    }

    /// Whether every group with canaries asks for their automatic promotion, and has what it needs
    /// for it.
    pub(super) fn may_promote_itself(&self) -> bool {
        let mut waiting = self.groups.values().filter(|group| group.is_to_promote()).peekable();
        waiting.peek().is_some()
            && waiting.all(|group| group.auto_promote && group.has_healthy_canaries())
    }

    /// Whether nothing is left to do. With no node left to do it on, nothing was seen to work.
    pub(super) fn is_complete(&self) -> bool {
        let mut groups = self.groups.values();
        groups.clone().all(DeploymentGroup::is_complete) && groups.any(|group| group.goal.total > 0)
    }

    /// Whether nothing new of the group is placed: it has failed or is paused, or canaries are to
    /// be promoted first.
    pub fn holds_back(&self, group: &str) -> bool {
        match self.status {
            DeploymentStatus::Failed | DeploymentStatus::Paused => true,
            DeploymentStatus::Running => {
                self.groups.get(group).is_some_and(DeploymentGroup::is_canarying)
            }
            DeploymentStatus::Successful | DeploymentStatus::Cancelled => false,
        }
    }

    /// When it fails unless it makes progress, or waits for machines ([`State::late_groups`]).
    /// None: it is paused or over, or waits for a person to promote canaries that are healthy, or
    /// has no deadline.
    ///
    /// [`State::late_groups`]: crate::State::late_groups
    pub fn progress_deadline(&self) -> Option<TimeMs> {
        if self.status != DeploymentStatus::Running {
            return None;
        }
        self.groups.values().filter_map(DeploymentGroup::deadline).min()
    }

    /// What is said of one that runs.
    pub(super) fn running_text(&self) -> &'static str {
        let mut waiting = self.groups.values().filter(|group| group.is_canarying()).peekable();
        if self.status == DeploymentStatus::Paused {
            text::PAUSED
        } else if waiting.peek().is_none() {
            text::RUNNING
        } else if waiting.all(|group| group.auto_promote) {
            text::AUTO_PROMOTION
        } else {
            text::NEEDS_PROMOTION
        }
    }
}

/// What was said of an allocation's health.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationHealth {
    pub healthy: bool,
    /// Log time of the report.
    pub at: TimeMs,
    /// Index of the report.
    pub index: Index,
}

/// The deployment that an allocation belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationDeployment {
    pub id: DeploymentId,
    /// It tries the version before the others get it. False after the promotion.
    pub canary: bool,
    /// None: nothing was said yet.
    pub health: Option<AllocationHealth>,
}

impl AllocationDeployment {
    /// Whether it is healthy; none: nothing was said yet.
    pub fn is_healthy(&self) -> Option<bool> {
        self.health.map(|health| health.healthy)
    }
}
