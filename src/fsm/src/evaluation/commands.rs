//! Commands about evaluations.

use serde::{Deserialize, Serialize};

use super::EvaluationStatus;
use crate::{
    command::commands,
    id::{EvaluationId, Text, TimeMs},
};

commands! {
    /// What changes evaluations, beside plans.
    EvaluationCommand in Evaluation:
    // command          applied by            sent by  needs       makes  fresh
    UpdateEvaluations   update_evaluations    Leader   Internal    -      [];
    DeleteEvaluations   delete_evaluations    Clients  Management  -      [];
}

/// A change of an evaluation's status that is not part of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvaluationUpdate {
    pub id: EvaluationId,
    pub status: EvaluationStatus,
    pub description: Text,
    /// Id of a follow-up evaluation to create, and the log time before which it must not run.
    pub follow_up: Option<(EvaluationId, TimeMs)>,
}

/// Status changes of evaluations that are not part of a plan: failed, canceled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdateEvaluations {
    pub updates: Vec<EvaluationUpdate>,
}

/// Deletes evaluations, all or none: an operator clears a flood of them while the broker is paused.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeleteEvaluations {
    pub ids: Vec<EvaluationId>,
}
