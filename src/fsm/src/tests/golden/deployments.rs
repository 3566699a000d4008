//! Golden values of deployments.

use std::collections::BTreeMap;

use crate::{
    command::Command,
    deployment::{
        Deployment, DeploymentGoal, DeploymentGroup, DeploymentStatus, ExpireDeployments,
        FailDeployment, PauseDeployment, PromoteDeployment, SetAllocationHealth,
    },
    id::{AllocationId, DeploymentId, EvaluationId},
    testing::job_key,
};

pub(super) fn row() -> Deployment {
    let group = DeploymentGroup {
        auto_revert: true,
        auto_promote: false,
        progress_deadline_ms: 1,
        require_progress_by: Some(2),
        promoted: true,
        goal: DeploymentGoal { canaries: 3, total: 4 },
        canaries_max: 11,
        placed: 5,
        healthy: 6,
        unhealthy: 7,
        healthy_canaries: 8,
        healthy_max: 9,
        waits_for_room: true,
        waits_since: Some(10),
    };
    Deployment {
        id: DeploymentId([9; 16]),
        job: job_key("t"),
        job_create_index: 10,
        job_version: 11,
        job_modify_index: 12,
        priority: 13,
        status: DeploymentStatus::Cancelled,
        description: "Cancelled".into(),
        groups: BTreeMap::from([("web".into(), group)]),
        placed_canaries: BTreeMap::from([("web".into(), vec![AllocationId([18; 16])])]),
        create_index: 14,
        modify_index: 15,
        created_at: 16,
        modified_at: 17,
    }
}

pub(super) fn commands() -> Vec<Command> {
    let id = DeploymentId([1; 16]);
    let evaluation = EvaluationId([2; 16]);
    vec![
        PromoteDeployment { id, groups: Some(vec!["web".into()]), evaluation }.into(),
        FailDeployment { id, evaluation }.into(),
        PauseDeployment { id, pause: true, evaluation }.into(),
        SetAllocationHealth {
            id,
            healthy: vec![AllocationId([3; 16])],
            unhealthy: vec![AllocationId([4; 16])],
            evaluation,
        }
        .into(),
        ExpireDeployments { ids: vec![id] }.into(),
    ]
}
