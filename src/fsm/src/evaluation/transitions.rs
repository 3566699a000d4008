//! Evaluations: creation, and status changes that are not part of a plan.

use std::collections::{BTreeMap, BTreeSet};

use super::{DeleteEvaluations, Evaluation, EvaluationStatus, Trigger, UpdateEvaluations};
use crate::{
    allocation::ClientStatus,
    apply::{Outcome, Turn, not_found},
    bounds::{few, refused},
    command::{Rejection, Reply},
    effect::Effect,
    id::{EvaluationId, JobKey, NodeId},
    job::JobStatus,
    limits,
    node::Node,
    plant::{Plant, is_planted, whim},
    state::State,
};

impl Turn<'_> {
    pub(crate) fn put_evaluation(&mut self, mut evaluation: Evaluation) {
        if evaluation.create_index == 0 {
            evaluation.create_index = self.index;
            self.evaluations_made = self.evaluations_made.saturating_add(1);
            evaluation.order = self.evaluations_made;
            evaluation.created_at = self.at;
        }
        evaluation.modify_index = self.index;
        evaluation.modified_at = self.at;
        if let Some(job) = self.state.jobs.get(&evaluation.job) {
            evaluation.job = job.key.clone();
        }
        self.jobs.insert(evaluation.job.clone());
        self.effects.insert(Effect::Evaluation(evaluation.id));
        let old = self.state.evaluations.get(&evaluation.id).cloned();
        let row = self.state.evaluations.put(evaluation, self.changes);
        self.state.index_evaluation(old.as_deref(), &row);
    }

    /// The next id of a command's list, or one derived from the entry when the list has run out.
    pub(crate) fn evaluation_id(
        &mut self,
        ids: &mut std::slice::Iter<'_, EvaluationId>,
    ) -> EvaluationId {
        if let Some(id) = ids.find(|id| !self.state.evaluations.contains(id)) {
            return *id;
        }
        self.derived_ids = self.derived_ids.saturating_add(1);
        let mut bytes = b"evaluation".to_vec();
        bytes.extend_from_slice(&self.index.to_le_bytes());
        bytes.extend_from_slice(&self.derived_ids.to_le_bytes());
        let hash = crate::digest::row_hash(&bytes, &[]);
        EvaluationId(hash.to_le_bytes())
    }

    /// Makes one pending evaluation for each of the jobs that still exist or have live allocations.
    pub(crate) fn evaluate(
        &mut self,
        jobs: &BTreeMap<JobKey, Trigger>,
        node: Option<&Node>,
        ids: &[EvaluationId],
    ) -> Vec<EvaluationId> {
        let mut ids = ids.iter();
        let mut made = Vec::with_capacity(jobs.len());
        let mut jobs: Vec<_> = jobs.iter().collect();
        if is_planted(Plant::UnorderedApply) && whim().is_multiple_of(2) {
            jobs.reverse();
        }
        for (key, trigger) in jobs {
            let Some((kind, priority, job_modify_index)) = self.state.to_evaluate(key) else {
                continue;
            };
            let id = self.evaluation_id(&mut ids);
            let mut evaluation = Evaluation::new(id, key.clone(), kind, priority, *trigger);
            evaluation.job_modify_index = job_modify_index;
            if let Some(node) = node {
                evaluation.node = Some(node.id);
                evaluation.node_modify_index = self.index;
            }
            self.put_evaluation(evaluation);
            made.push(id);
        }
        made
    }

    pub(crate) fn update_evaluations(&mut self, command: &UpdateEvaluations) -> Reply {
        let UpdateEvaluations { updates } = command;
        let mut changed = Vec::new();
        for update in updates {
            let Some(old) = self.state.evaluations.get(&update.id).cloned() else { continue };
            if old.status.is_terminal() {
                continue;
            }
            let mut row = (*old).clone();
            row.status = update.status;
            row.status_description = update.description.clone();
            if let Some((id, wait_until)) = update.follow_up
                && !self.state.evaluations.contains(&id)
                && self.state.to_evaluate(&row.job).is_some()
            {
                let mut next = Evaluation::new(
                    id,
                    row.job.clone(),
                    row.kind,
                    row.priority,
                    Trigger::FailedFollowUp,
                );
                next.wait_until = wait_until;
                next.previous = Some(row.id);
                next.job_modify_index = row.job_modify_index;
                row.next = Some(id);
                self.put_evaluation(next);
            }
            if row.status == EvaluationStatus::Blocked {
                self.cancel_replaced(&row, &mut Blocked::default());
            }
            changed.push(row.id);
            self.put_evaluation(row);
        }
        Reply::Evaluations(changed)
    }

    /// Takes rows that only an operator wants gone: open ones too, whose jobs then wait for another
    /// evaluation.
    pub(crate) fn delete_evaluations(&mut self, command: &DeleteEvaluations) -> Outcome {
        let ids: BTreeSet<_> = command.ids.iter().collect();
        few("evaluations to delete", command.ids.len(), limits::EVALUATIONS_DELETED_MAX)
            .map_err(refused)?;
        if !self.state.scheduler_configuration().pause_eval_broker {
            let why = "eval broker is enabled; eval broker must be paused to delete evals";
            return Err(Rejection::Invalid(why.into()));
        }
        let mut rows = Vec::with_capacity(ids.len());
        for id in ids {
            let row = self.state.evaluations.get(id).cloned().ok_or_else(|| not_found("eval"))?;
            if !self.state.is_evaluation_deletable(&row) {
                return Err(refused(format!("eval {id} is not safe to delete")));
            }
            rows.push(row);
        }
        for row in &rows {
            self.state.unindex_evaluation(row);
            self.state.evaluations.remove(&row.id, self.changes);
            self.jobs.insert(row.job.clone());
            self.effects.insert(Effect::Evaluation(row.id));
        }
        Ok(Reply::Collected(rows.len() as u64))
    }

    /// Stores an evaluation that a plan created, and cancels the blocked evaluation that it
    /// replaces.
    pub(crate) fn create_from_plan(&mut self, mut evaluation: Evaluation, blocked: &mut Blocked) {
        if self.state.evaluations.contains(&evaluation.id) {
            return;
        }
        if evaluation.status == EvaluationStatus::Blocked {
            self.cancel_replaced(&evaluation, blocked);
        }
        evaluation.create_index = 0;
        self.put_evaluation(evaluation);
    }

    /// Cancels the evaluations of a job by which it waits, for room or for a later time: it ends,
    /// and so does what it waits for.
    pub(crate) fn cancel_waiting(&mut self, key: &JobKey) {
        let at = self.at;
        self.cancel_open(key, "the job was stopped", |_, row| row.waits(at));
    }

    /// Cancels what is moot after an outcome of a job: its follow-ups of allocations that do not
    /// wait for them any more, and if `complete`, which is to say that all was placed, also what
    /// waits for room, and for another attempt at an evaluation that could not be processed.
    pub(crate) fn cancel_moot(&mut self, of: &Evaluation, complete: bool) {
        let (at, own, seen) = (self.at, of.id, of.snapshot_index);
        if complete {
            self.cancel_open(
                &of.job,
                "a later evaluation of the job placed everything",
                |_, row| {
                    let again = row.trigger == Trigger::FailedFollowUp && row.create_index <= seen;
                    row.id != own
                        && (row.status == EvaluationStatus::Blocked || (row.waits(at) && again))
                },
            );
        }
        self.cancel_open(&of.job, "nothing waits for it any more", |state, row| {
            row.waits(at) && !row.reschedules.is_empty() && !state.is_awaited(row)
        });
    }

    fn cancel_open(
        &mut self,
        key: &JobKey,
        why: &str,
        is_moot: impl Fn(&State, &Evaluation) -> bool,
    ) {
        let Some(index) = self.state.job_index(key).cloned() else { return };
        for id in &index.open_evaluations {
            let Some(row) = self.state.evaluations.get(id).cloned() else { continue };
            if is_moot(self.state, &row) {
                let mut row = (*row).clone();
                row.status = EvaluationStatus::Canceled;
                row.status_description = why.into();
                self.put_evaluation(row);
            }
        }
    }

    /// Keeps one blocked evaluation per job, or per (job, node) for per-node jobs: cancels the
    /// older one. From here on `newer` is the blocked one.
    pub(crate) fn cancel_replaced(&mut self, newer: &Evaluation, blocked: &mut Blocked) {
        let known = blocked.of(self.state, &newer.job);
        let first = (newer.node, EvaluationId::default());
        let last = (newer.node, EvaluationId([u8::MAX; 16]));
        let replaced: Vec<_> =
            known.range(first..=last).filter(|(_, id)| *id != newer.id).copied().collect();
        for older in replaced {
            known.remove(&older);
            let Some(row) = self.state.evaluations.get(&older.1) else { continue };
            let mut row = (**row).clone();
            row.status = EvaluationStatus::Canceled;
            row.status_description = "replaced by a newer blocked evaluation".into();
            self.put_evaluation(row);
        }
        known.insert((newer.node, newer.id));
    }
}

impl State {
    /// Whether a failed allocation waits for its follow-up.
    fn is_awaited(&self, follow_up: &Evaluation) -> bool {
        let mut rows =
            follow_up.reschedules.iter().filter_map(|allocation| self.allocations.get(allocation));
        rows.any(|row| row.follow_up == Some(follow_up.id) && !row.is_server_terminal())
    }

    /// Whether nothing that runs, or may run again, was placed by an evaluation.
    fn is_evaluation_deletable(&self, row: &Evaluation) -> bool {
        let job = self.jobs.get(&row.job);
        let is_alive = job.is_some_and(|job| !job.stop && job.status != JobStatus::Dead);
        self.allocations_of_evaluation(row.id).all(|allocation| {
            let is_replaced = allocation.next.is_some_and(|next| self.allocations.contains(&next));
            let may_run_again =
                is_alive && allocation.client == ClientStatus::Failed && !is_replaced;
            allocation.client.is_terminal() && !may_run_again
        })
    }
}

/// Blocked evaluations of jobs, by node. The map of a job is built once per entry: one outcome may
/// block an evaluation for each of thousands of nodes.
///
/// Invariant: nothing but [`Turn::cancel_replaced`] blocks or cancels an evaluation of these jobs
/// while this is in use.
#[derive(Default)]
pub(crate) struct Blocked(BTreeMap<JobKey, BTreeSet<(Option<NodeId>, EvaluationId)>>);

impl Blocked {
    fn of(&mut self, state: &State, job: &JobKey) -> &mut BTreeSet<(Option<NodeId>, EvaluationId)> {
        self.0.entry(job.clone()).or_insert_with(|| {
            let index = state.job_index(job).into_iter();
            let open = index.flat_map(|index| index.open_evaluations.iter());
            let rows = open.filter_map(|id| state.evaluations.get(id));
            let blocked = rows.filter(|row| row.status == EvaluationStatus::Blocked);
            blocked.map(|row| (row.node, row.id)).collect()
        })
    }
}
