//! What the leader's reapers propose: evaluations that failed too often fail with a follow-up,
//! superseded ones are canceled.
//!
//! Each function makes one command of the evaluations that the broker, or the tracker of blocked
//! ones, names. What is terminal or gone in the state is left out, so proposing twice changes
//! nothing.

use fsm::{
    EvaluationId, EvaluationStatus, State, Text,
    command::Command,
    evaluation::{EvaluationUpdate, UpdateEvaluations},
};

use crate::{broker::Delivery, jitter, limits};

/// Fails evaluations leased by [`crate::EvalBroker::dequeue_failed`], each with a follow-up after 1
/// to 6 minutes unless its job is gone (GH-27367) and nothing runs of it. `fresh` makes ids for the
/// follow-ups. None: nothing to propose.
pub fn failed(
    now: u64,
    state: &State,
    deliveries: &[Delivery],
    mut fresh: impl FnMut() -> EvaluationId,
) -> Option<Command> {
    let updates = deliveries.iter().filter_map(|delivery| {
        let row = state.evaluations().get(&delivery.evaluation)?;
        if row.status.is_terminal() {
            return None;
        }
        let wait_ms = limits::FOLLOW_UP_MS_MIN
            + jitter::below(delivery.evaluation.0, limits::FOLLOW_UP_SPREAD_MS);
        Some(EvaluationUpdate {
            id: row.id,
            status: EvaluationStatus::Failed,
            description: format!("evaluation reached delivery limit ({})", limits::DELIVERIES_MAX)
                .into(),
            follow_up: state.to_evaluate(&row.job).map(|_| (fresh(), now + wait_ms)),
        })
    });
    command(updates.collect())
}

/// Cancels what [`crate::EvalBroker::cancelable`] names. None: nothing to propose.
pub fn canceled(state: &State, ids: &[EvaluationId]) -> Option<Command> {
    let description: Text = "canceled after more recent eval was processed".into();
    cancel(state, ids, |_| description.clone())
}

/// Cancels what [`crate::BlockedEvals::duplicates`] names. None: nothing to propose.
pub fn duplicates(state: &State, ids: &[EvaluationId]) -> Option<Command> {
    cancel(state, ids, |job| {
        format!("existing blocked evaluation exists for job {:?}", &*job.id).into()
    })
}

fn cancel(
    state: &State,
    ids: &[EvaluationId],
    describe: impl Fn(&fsm::JobKey) -> Text,
) -> Option<Command> {
    let updates = ids.iter().take(limits::REAP_BATCH_MAX).filter_map(|id| {
        let row = state.evaluations().get(id)?;
        (!row.status.is_terminal()).then(|| EvaluationUpdate {
            id: *id,
            status: EvaluationStatus::Canceled,
            description: describe(&row.job),
            follow_up: None,
        })
    });
    command(updates.collect())
}

fn command(updates: Vec<EvaluationUpdate>) -> Option<Command> {
    (!updates.is_empty()).then_some(Command::from(UpdateEvaluations { updates }))
}

#[cfg(test)]
mod tests {
    use fsm::Evaluation;

    use super::*;
    use crate::testing::{evaluation, job, named};
    use fsm::command::EvaluationCommand;

    fn state_of(rows: impl IntoIterator<Item = Evaluation>) -> State {
        let mut state = State::default();
        for row in rows {
            fsm::testing::put(&mut state, &row);
        }
        state
    }

    fn delivery(id: &str) -> Delivery {
        let evaluation = EvaluationId(named(id));
        Delivery { evaluation, token: [1; 16], wait_index: 0, deliveries: 3 }
    }

    fn updates(command: Option<Command>) -> Vec<EvaluationUpdate> {
        match command {
            Some(Command::Evaluation(EvaluationCommand::UpdateEvaluations(
                UpdateEvaluations { updates },
            ))) => updates,
            other => panic!("unexpected {other:?}"),
        }
    }

    /// Failed, with a follow-up in 1 to 6 minutes that is the same on each leader; none
    /// when the job is gone.
    #[test]
    fn failed_evaluations_get_a_follow_up() {
        let mut done = evaluation("done", "kept", 1);
        done.status = EvaluationStatus::Complete;
        let mut state = state_of([evaluation("a", "kept", 1), evaluation("b", "gone", 1), done]);
        job(&mut state, "kept", fsm::JobKind::Service, 1, 1);
        let leases = ["a", "b", "done", "unknown"].map(delivery);
        let fresh = || EvaluationId(named("next"));
        let first = updates(failed(5_000, &state, &leases, fresh));
        assert_eq!(first, updates(failed(5_000, &state, &leases, fresh)));
        assert_eq!(first.len(), 2);
        assert_eq!(first[0].status, EvaluationStatus::Failed);
        assert_eq!(&*first[0].description, "evaluation reached delivery limit (3)");
        let (next, at) = first[0].follow_up.expect("the job is there");
        assert_eq!(next, EvaluationId(named("next")));
        assert!((65_000..365_000).contains(&at), "{at}");
        assert_eq!(first[1].follow_up, None);
    }

    /// Only what is still open is canceled, with Nomad's words.
    #[test]
    fn superseded_evaluations_are_canceled() {
        let mut done = evaluation("done", "web", 1);
        done.status = EvaluationStatus::Canceled;
        let state = state_of([evaluation("a", "web", 1), done]);
        let ids = ["a", "done", "unknown"].map(|id| EvaluationId(named(id)));
        let found = updates(canceled(&state, &ids));
        assert_eq!(found.len(), 1);
        assert_eq!(&*found[0].description, "canceled after more recent eval was processed");
        let found = updates(duplicates(&state, &ids));
        assert_eq!(&*found[0].description, "existing blocked evaluation exists for job \"web\"");
        assert_eq!(canceled(&state, &ids[1..]), None);
    }
}
