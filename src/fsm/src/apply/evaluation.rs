//! Evaluations: status changes that no plan carries.

use std::collections::{BTreeMap, BTreeSet};

use super::{Outcome, Turn};
use crate::{
    command::{EvaluationUpdate, Reply},
    evaluation::{Evaluation, EvaluationStatus, Trigger},
    id::{EvaluationId, JobKey, NodeId},
    state::State,
};

impl Turn<'_> {
    pub(super) fn update_evaluations(&mut self, updates: &[EvaluationUpdate]) -> Outcome {
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
        Ok(Reply::Evaluations(changed))
    }

    /// Stores an evaluation that a plan made, and cancels the blocked one that it replaces.
    pub(super) fn create_from_plan(&mut self, mut evaluation: Evaluation, blocked: &mut Blocked) {
        if self.state.evaluations.contains(&evaluation.id) {
            return;
        }
        if evaluation.status == EvaluationStatus::Blocked {
            self.cancel_replaced(&evaluation, blocked);
        }
        evaluation.create_index = 0;
        self.put_evaluation(evaluation);
    }

    /// One blocked evaluation per job, and per (job, node) for jobs that run once per node. The newer one is blocked from here on.
    pub(super) fn cancel_replaced(&mut self, newer: &Evaluation, blocked: &mut Blocked) {
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

/// Blocked evaluations of jobs, by node. They are looked up once per job: one outcome may block an evaluation for each of thousands of nodes.
///
/// Invariant: nothing but [`Turn::cancel_replaced`] blocks or cancels an evaluation of these jobs while this is in use.
#[derive(Default)]
pub(super) struct Blocked(BTreeMap<JobKey, BTreeSet<(Option<NodeId>, EvaluationId)>>);

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
