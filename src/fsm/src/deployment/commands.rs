//! Commands about deployments.

use serde::{Deserialize, Serialize};

use crate::id::{AllocationId, DeploymentId, EvaluationId, Text};

/// Promotes the canaries of a deployment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PromoteDeployment {
    pub id: DeploymentId,
    /// Of these groups; none: of all.
    pub groups: Option<Vec<Text>>,
    pub evaluation: EvaluationId,
}

/// Marks a deployment as failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FailDeployment {
    pub id: DeploymentId,
    pub evaluation: EvaluationId,
}

/// Pauses a deployment, or lets it go on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PauseDeployment {
    pub id: DeploymentId,
    pub pause: bool,
    pub evaluation: EvaluationId,
}

/// Says of allocations whether they are healthy, in the place of their agents.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetAllocationHealth {
    pub id: DeploymentId,
    pub healthy: Vec<AllocationId>,
    pub unhealthy: Vec<AllocationId>,
    pub evaluation: EvaluationId,
}

/// Fails the deployments that have made no progress until their deadline; `apply` checks each
/// again.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExpireDeployments {
    pub ids: Vec<DeploymentId>,
}
