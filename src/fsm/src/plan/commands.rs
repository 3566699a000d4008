//! The command that carries plans.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Plan;

/// Results of plans, in order.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ApplyPlans {
    /// Plans as the applier left them.
    pub plans: Vec<Arc<Plan>>,
}
