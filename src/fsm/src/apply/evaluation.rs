//! Evaluations: status changes that no plan carries.

use super::{Outcome, Turn};
use crate::{
    command::{EvaluationUpdate, Reply},
    evaluation::{Evaluation, EvaluationStatus, Trigger},
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
                && self.state.jobs.contains(&row.job)
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
                self.cancel_replaced(&row);
            }
            changed.push(row.id);
            self.put_evaluation(row);
        }
        Ok(Reply::Evaluations(changed))
    }

    /// Stores an evaluation that a plan made, and cancels the blocked one that it replaces.
    pub(super) fn create_from_plan(&mut self, mut evaluation: Evaluation) {
        if self.state.evaluations.contains(&evaluation.id) {
            return;
        }
        if evaluation.status == EvaluationStatus::Blocked {
            self.cancel_replaced(&evaluation);
        }
        evaluation.create_index = 0;
        self.put_evaluation(evaluation);
    }

    /// One blocked evaluation per job, and per (job, node) for jobs that run once per node.
    pub(super) fn cancel_replaced(&mut self, newer: &Evaluation) {
        let Some(index) = self.state.job_index(&newer.job).cloned() else { return };
        for id in &index.open_evaluations {
            let Some(row) = self.state.evaluations.get(id).cloned() else { continue };
            if row.status == EvaluationStatus::Blocked
                && row.id != newer.id
                && row.node == newer.node
            {
                let mut row = (*row).clone();
                row.status = EvaluationStatus::Canceled;
                row.status_description = "replaced by a newer blocked evaluation".into();
                self.put_evaluation(row);
            }
        }
    }
}
