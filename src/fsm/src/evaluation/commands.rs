//! The command about evaluations.

use serde::{Deserialize, Serialize};

use super::EvaluationStatus;
use crate::id::{EvaluationId, Text, TimeMs};

/// A change of an evaluation's status outside of plans.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EvaluationUpdate {
    /// Evaluation.
    pub id: EvaluationId,
    /// New status.
    pub status: EvaluationStatus,
    /// In words.
    pub description: Text,
    /// A follow-up to create, not before a log time.
    pub follow_up: Option<(EvaluationId, TimeMs)>,
}

/// Status changes of evaluations that no plan carries: failed, canceled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpdateEvaluations {
    /// Changes.
    pub updates: Vec<EvaluationUpdate>,
}
