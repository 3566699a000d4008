//! Evaluations: requests to look at a job again.

mod commands;
mod row;
mod transitions;

pub(crate) use self::transitions::Blocked;
pub use self::{
    commands::{EvaluationUpdate, UpdateEvaluations},
    row::{Evaluation, EvaluationStatus, Metrics, NodeScore, Trigger},
};
