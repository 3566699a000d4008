//! Garbage collection: deletes rows that are no longer needed, by the rules of Nomad's core
//! scheduler.
//!
//! This is a file of its own because one collection covers jobs, allocations, evaluations and node
//! classes. The rules exist only here. The proposer of a collection uses them to find candidates.
//! `apply` checks them again, so a row that is in use again stays. A row that a scheduler still
//! counts is never collected: if the completed instance of a live batch job were deleted, the job
//! would run again.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{
    allocation::{Allocation, ClientStatus},
    apply::Turn,
    command::Reply,
    effect::Effect,
    evaluation::Evaluation,
    id::{AllocationId, ClassId, DeploymentId, EvaluationId, JobKey, TimeMs},
    job::{Job, JobKind, JobStatus},
    node::GainKey,
    state::State,
};

/// Deletes rows that ended long ago. `apply` checks each row again by the same rules, so a row that
/// is in use again stays.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CollectGarbage {
    pub cutoffs: Cutoffs,
    /// Dead jobs. They are collected first: that makes their evaluations and allocations
    /// collectable.
    pub jobs: Vec<JobKey>,
    /// Ended allocations.
    pub allocations: Vec<AllocationId>,
    /// Final evaluations; an evaluation that still has an allocation stays.
    pub evaluations: Vec<EvaluationId>,
    /// Deployments that are over.
    pub deployments: Vec<DeploymentId>,
    /// Node classes without nodes, whose records of capacity gains are deleted.
    pub classes: Vec<ClassId>,
}

/// Cut-off times: a row is collected only if it ended before the cut-off of its kind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cutoffs {
    /// Evaluations and allocations of service and system jobs, and of jobs that are gone.
    pub evaluations: TimeMs,
    /// Evaluations and allocations of batch and sysbatch jobs.
    pub batch_evaluations: TimeMs,
    pub jobs: TimeMs,
    pub deployments: TimeMs,
    /// Dead children that a job keeps, however young the others are.
    pub children_max: u64,
}

impl Cutoffs {
    /// The cut-off for evaluations and allocations of a job of this kind; `None`: the job is gone.
    pub const fn of(&self, kind: Option<JobKind>) -> TimeMs {
        match kind {
            Some(JobKind::Batch | JobKind::Sysbatch) => self.batch_evaluations,
            Some(JobKind::Service | JobKind::System) | None => self.evaluations,
        }
    }
}

impl State {
    /// Whether a job may be deleted with its evaluations and allocations. It must be dead and
    /// submitted before `before`, and its evaluations and allocations must be final and unchanged
    /// since then. A service or system job, or one with children, must also be stopped, all
    /// children must be over, and no version may have a tag. Cost: one pass over the evaluations
    /// and allocations.
    pub fn is_job_collectable(&self, job: &Job, before: TimeMs) -> bool {
        let over = match job.kind {
            JobKind::Service | JobKind::System => job.stop,
            JobKind::Batch | JobKind::Sysbatch => job.stop || !job.is_parent(),
        };
        job.status == JobStatus::Dead
            && over
            && job.submitted_at < before
            && self.children(&job.key).is_none_or(|children| children.are_over())
            && self
                .evaluations_of_job(&job.key)
                .all(|row| row.status.is_terminal() && row.modified_at < before)
            && self
                .allocations_of_job(&job.key)
                .all(|row| row.client.is_terminal() && row.modified_at < before)
            && !self.has_tag(job)
    }

    /// Whether a user gave a version of the job a tag, which keeps it.
    fn has_tag(&self, job: &Job) -> bool {
        self.stored_versions(&job.key, job.create_index).any(|version| version.tag.is_some())
    }

    /// Whether an allocation may be deleted. It must have ended and be unchanged since the cut-off
    /// of its job's kind. Also its job must be gone, stopped or registered anew, or no scheduler
    /// may need the allocation any more.
    pub fn is_allocation_collectable(&self, row: &Allocation, cutoffs: &Cutoffs) -> bool {
        let job = self.jobs.get(&row.job).filter(|job| job.create_index == row.job_create_index);
        let kind = job.map(|job| job.kind);
        if !row.client.is_terminal() || row.modified_at >= cutoffs.of(kind) {
            return false;
        }
        let Some(job) = job.filter(|job| !job.stop) else { return true };
        // It counts as an instance that finished does.
        let runs_once = matches!(job.kind, JobKind::Batch | JobKind::Sysbatch);
        let outdated = row.job_version != job.version;
        let stays = runs_once || (row.may_stay_ended(false) && !outdated);
        let is_ended = stays && row.is_ended_by_request();
        if row.is_server_terminal() && !is_ended {
            // Its predecessor counts as replaced only while this allocation exists, so this one
            // stays.
            return row.previous.and_then(|id| self.allocations.get(&id)).is_none_or(|previous| {
                previous.is_server_terminal() || previous.next != Some(row.id)
            });
        }
        let replaced = row.next.is_some_and(|next| self.allocations.contains(&next));
        let is_lost = row.client == ClientStatus::Lost && !is_ended;
        replaced
            || match job.kind {
                // A failed allocation counts as an instance as long as its group exists.
                JobKind::Service => {
                    let has_group = || {
                        let spec = self.current_spec(job);
                        spec.is_some_and(|spec| spec.group(&row.group).is_some())
                    };
                    !is_ended && (row.client != ClientStatus::Failed || !has_group())
                }
                JobKind::System => !is_ended,
                JobKind::Batch => outdated || is_lost,
                // The allocation records that the job has run on this node. That no longer matters
                // when the node is gone and cannot come back.
                JobKind::Sysbatch => {
                    let is_gone = !self.nodes.contains(&row.node);
                    outdated || is_lost || (is_gone && !self.tombstones.contains(&row.node))
                }
            }
    }

    /// Whether an evaluation may be deleted once it has no allocations: it is final and unchanged
    /// since the cut-off.
    pub fn is_evaluation_old(&self, row: &Evaluation, cutoffs: &Cutoffs) -> bool {
        let kind = self.jobs.contains(&row.job).then_some(row.kind);
        row.status.is_terminal() && row.modified_at < cutoffs.of(kind)
    }

    /// Node classes that have a recorded capacity gain but no nodes.
    pub fn classes_without_nodes(&self) -> Vec<ClassId> {
        let classes: BTreeSet<_> = self.nodes.iter().map(|node| node.class).collect();
        let gains = self.capacity_gains.iter().filter_map(|gain| match gain.key {
            GainKey::Class(class) => Some(class),
            GainKey::Node(_) => None,
        });
        gains.filter(|class| !classes.contains(class)).collect()
    }
}

impl Turn<'_> {
    pub(crate) fn collect_garbage(&mut self, command: &CollectGarbage) -> Reply {
        let CollectGarbage { cutoffs, jobs, allocations, evaluations, deployments, classes } =
            command;
        let mut collected = 0u64;
        let mut count = |gone: bool| collected = collected.saturating_add(u64::from(gone));
        let surplus = self.surplus_children(jobs, cutoffs.children_max);
        for key in jobs {
            count(self.collect_job(key, cutoffs.jobs, &surplus));
        }
        for id in allocations {
            count(self.collect_allocation(*id, cutoffs));
        }
        for id in evaluations {
            count(self.collect_evaluation(*id, cutoffs));
        }
        for id in deployments {
            let row = self.state.deployments.get(id).cloned();
            let is_over = row
                .is_some_and(|row| self.state.is_deployment_collectable(&row, cutoffs.deployments));
            count(is_over && self.drop_deployment(*id));
        }
        if !classes.is_empty() {
            let empty: BTreeSet<_> = self.state.classes_without_nodes().into_iter().collect();
            for class in classes.iter().filter(|class| empty.contains(class)) {
                self.state.capacity_gains.remove(&GainKey::Class(*class), self.changes);
                count(true);
            }
        }
        Reply::Collected(collected)
    }

    /// Those of these jobs that go by number: their parents have more dead children than are kept.
    /// Cost: one step for each older one that is over, which is few: only those that may not go.
    fn surplus_children(&self, jobs: &[JobKey], max: u64) -> BTreeSet<JobKey> {
        let mut named: BTreeMap<JobKey, BTreeSet<&JobKey>> = BTreeMap::new();
        for key in jobs {
            if let Some(parent) = key.parent_key() {
                named.entry(parent).or_default().insert(key);
            }
        }
        let mut surplus = BTreeSet::new();
        for (parent, named) in named {
            let Some(children) = self.state.children(&parent) else { continue };
            let dead = children.surplus(max).map(|(_, key)| key);
            surplus.extend(dead.filter(|key| named.contains(key)).take(named.len()).cloned());
        }
        surplus
    }

    fn collect_job(&mut self, key: &JobKey, before: TimeMs, surplus: &BTreeSet<JobKey>) -> bool {
        let Some(job) = self.state.jobs.get(key).cloned() else { return false };
        let before = if surplus.contains(key) { TimeMs::MAX } else { before };
        let collectable = self.state.is_job_collectable(&job, before);
        if collectable {
            self.purge_job(&job);
        }
        collectable
    }

    fn collect_allocation(&mut self, id: AllocationId, cutoffs: &Cutoffs) -> bool {
        let Some(row) = self.state.allocations.get(&id).cloned() else { return false };
        if !self.state.is_allocation_collectable(&row, cutoffs) {
            return false;
        }
        self.state.unindex_allocation(&row);
        self.state.count_allocation(Some(&row), None);
        self.state.allocations.remove(&id, self.changes);
        self.effects.insert(Effect::NodeAllocations(row.node));
        let current = self.state.jobs.get(&row.job).cloned();
        match current.filter(|job| job.create_index == row.job_create_index) {
            Some(job) => self.drop_old_versions(&job),
            None => self.drop_orphaned_version(&row),
        }
        true
    }

    /// Deletes the version that an allocation of a purged job ran, if no other allocation runs it.
    pub(crate) fn drop_orphaned_version(&mut self, row: &Allocation) {
        let version = (row.job_create_index, row.job_version);
        let index = self.state.job_index(&row.job);
        if index.is_none_or(|index| !index.versions.contains_key(&version)) {
            let key = (row.job.clone(), row.job_create_index, row.job_version);
            self.state.job_versions.remove(&key, self.changes);
        }
    }

    fn collect_evaluation(&mut self, id: EvaluationId, cutoffs: &Cutoffs) -> bool {
        let Some(row) = self.state.evaluations.get(&id).cloned() else { return false };
        let used = self.state.allocations_of_evaluation(id).next().is_some();
        if used || !self.state.is_evaluation_old(&row, cutoffs) {
            return false;
        }
        self.state.unindex_evaluation(&row);
        self.state.evaluations.remove(&id, self.changes);
        self.effects.insert(Effect::Evaluation(id));
        true
    }
}

#[cfg(test)]
mod tests;
