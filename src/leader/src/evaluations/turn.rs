//! One lease as its worker goes through it: plan, submit, look at the answer, plan again or be
//! done. The worker does the waiting and the talking.
//!
//! ```text
//!  begin ─► Plan ─► (schedule, submit) ─► answered ─► WaitFor(index), Pause ─► begin …
//!    └────► Acknowledge, Nack                 └─────► Acknowledge
//! ```

use fsm::{Evaluation, EvaluationId, Index, State};

use crate::{applier::PlanAnswer, limits};

/// What to do with the lease now.
#[derive(Debug)]
pub enum Begin {
    /// Schedule, and submit the plan.
    Plan {
        /// The evaluation as it is now.
        evaluation: Box<Evaluation>,
        /// Number of the pass, from 0.
        pass: u32,
        /// The attempts are used up: the plan says so instead of planning.
        exhausted: bool,
    },
    /// The evaluation is done with: acknowledge.
    Acknowledge,
    /// Too many passes: give the lease back as failed.
    Nack,
}

/// What to do after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// Acknowledge.
    Acknowledge,
    /// Wait for the index, then begin again.
    WaitFor(Index),
    /// Whether the plan was applied is unknown, or it was not taken in: wait a while, then begin
    /// again. If it was applied, the evaluation is done with by then. If not, the lease is good as
    /// long as the leader is the same, and another leader refuses it.
    Pause,
}

/// A lease being processed.
#[derive(Clone, Debug)]
pub struct Turn {
    evaluation: EvaluationId,
    /// Passes without progress before the evaluation fails.
    attempts_max: u32,
    attempts: u32,
    pass: u32,
}

impl Turn {
    /// A lease on an evaluation whose scheduler gives up after so many passes without progress.
    pub fn new(evaluation: EvaluationId, attempts_max: u32) -> Self {
        Self { evaluation, attempts_max, attempts: 0, pass: 0 }
    }

    /// What to do, as seen from the worker's state, which has reached the index last waited for.
    pub fn begin(&mut self, state: &State) -> Begin {
        let row = state.evaluations().get(&self.evaluation);
        let Some(row) = row.filter(|row| !row.status.is_terminal()) else {
            return Begin::Acknowledge;
        };
        if self.pass >= limits::PASSES_MAX {
            return Begin::Nack;
        }
        let pass = self.pass;
        self.pass += 1;
        let exhausted = self.attempts >= self.attempts_max;
        Begin::Plan { evaluation: Box::new((**row).clone()), pass, exhausted }
    }

    /// What to do after the leader's answer to the plan.
    pub fn answered(&mut self, answer: &PlanAnswer) -> After {
        match answer {
            PlanAnswer::Applied { .. } | PlanAnswer::Rejected { closed: true, .. } => {
                After::Acknowledge
            }
            PlanAnswer::Partial { index, refresh_index, .. } => {
                self.attempts = if *index > 0 { 0 } else { self.attempts + 1 };
                After::WaitFor(*refresh_index)
            }
            PlanAnswer::Rejected { closed: false, refresh_index, .. } => {
                self.attempts += 1;
                After::WaitFor(*refresh_index)
            }
            PlanAnswer::Unknown | PlanAnswer::QueueFull => After::Pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use fsm::{EvaluationStatus, JobKind};

    use super::*;
    use crate::testing;

    #[test]
    fn an_unknown_outcome_neither_ends_the_lease_nor_counts_as_an_attempt() {
        let mut state = State::default();
        let mut evaluation = testing::evaluation("one", "job", 50);
        fsm::testing::put(&mut state, &evaluation);
        let mut turn = Turn::new(evaluation.id, 1);
        for number in 0..10 {
            let begun = turn.begin(&state);
            let Begin::Plan { pass, exhausted: false, .. } = begun else {
                panic!("{begun:?} in place of pass {number}")
            };
            assert_eq!(pass, number);
            assert_eq!(turn.answered(&PlanAnswer::Unknown), After::Pause);
            assert_eq!(turn.answered(&PlanAnswer::QueueFull), After::Pause);
        }
        // It was applied after all.
        evaluation.status = EvaluationStatus::Complete;
        fsm::testing::put(&mut state, &evaluation);
        assert!(matches!(turn.begin(&state), Begin::Acknowledge));
    }

    /// Plans that are always rejected: five tries for a system job and two for a sysbatch job, then
    /// the evaluation fails; each progress begins the count anew (NS-10).
    #[test]
    fn tries_without_progress_are_counted() {
        let mut state = State::default();
        let evaluation = testing::evaluation("one", "job", 50);
        fsm::testing::put(&mut state, &evaluation);
        let reason = String::new;
        let rejected =
            || PlanAnswer::Rejected { closed: false, refresh_index: 7, reason: reason() };
        let progress = || PlanAnswer::Partial { index: 7, refresh_index: 7, reason: reason() };
        let nothing = || PlanAnswer::Partial { index: 0, refresh_index: 7, reason: reason() };
        for (kind, tries) in [(JobKind::System, 5), (JobKind::Sysbatch, 2)] {
            let mut turn = Turn::new(evaluation.id, scheduler::attempts_max(kind));
            let mut tried = |answer: PlanAnswer| {
                let begun = turn.begin(&state);
                let Begin::Plan { exhausted, .. } = begun else { panic!("{begun:?}") };
                assert_eq!(turn.answered(&answer), After::WaitFor(7));
                !exhausted
            };
            assert!((0..tries - 1).all(|_| tried(rejected())));
            assert!(tried(progress()), "the last try makes progress");
            assert!((0..tries).all(|_| tried(nothing())), "{kind:?} has as many tries again");
            assert!(!tried(nothing()), "{kind:?} has no further try");
        }
    }
}
