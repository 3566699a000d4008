//! The command that carries plans.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Plan;
use crate::command::commands;

commands! {
    /// What comes of scheduling.
    PlanCommand in Plan:
    // command   applied by     sent by  needs     makes  fresh
    ApplyPlans   apply_plans    Leader   Internal  -      [];
}

/// Results of plans, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplyPlans {
    /// Plans as the applier left them.
    pub plans: Vec<Arc<Plan>>,
}
