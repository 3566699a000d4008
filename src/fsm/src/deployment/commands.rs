//! Commands about deployments.

use serde::{Deserialize, Serialize};

use crate::{
    command::commands,
    id::{AllocationId, DeploymentId, EvaluationId, Text},
};

commands! {
    /// What changes deployments, beside plans.
    DeploymentCommand in Deployment:
    // command          applied by              sent by  needs                          makes  fresh
    PromoteDeployment   promote_deployment      Clients  [SubmitJob PromoteDeployment]  -      [evaluation];
    FailDeployment      fail_deployment         Clients  [SubmitJob FailDeployment]     -      [evaluation];
    PauseDeployment     pause_deployment        Clients  [SubmitJob PauseDeployment]    -      [evaluation];
    SetAllocationHealth set_allocation_health   Clients  [SubmitJob SetAllocHealth]     -      [evaluation];
    ExpireDeployments   expire_deployments      Leader   Internal                       -      [];
}

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
