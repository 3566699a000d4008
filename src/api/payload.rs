//! What a client asked for, told from what servers add to it: a retry under the same id is the same
//! request, whatever they add then.

use fsm::{
    Command, Proposal,
    allocation::StopAllocation,
    capacity::MoveMembers,
    codec,
    deployment::{FailDeployment, PauseDeployment, PromoteDeployment, SetAllocationHealth},
    job::{
        DeregisterJob, DispatchJob, EvaluateJob, ForcePeriodic, RegisterJob, ScaleJob, StopChildren,
    },
    node::{
        AdvanceDrains, EvaluateNode, NodeLiveness, NodeReadiness, NodeShortage, ReapNode,
        RegisterNode, SetDrain, SetEligibility,
    },
    pool::{DestroyOutcome, ObserveInstances, SetInstanceBehavior, ShutDownInstance},
};

/// A hash of what a client asked for: the same for a retry, another for another request.
pub(crate) fn hash(command: &Command) -> u64 {
    let command = without_fresh_ids(command.clone());
    hash64(&codec::encode(&Proposal { at: 0, epoch: None, request: None, command }))
}

fn hash64(bytes: &[u8]) -> u64 {
    let hash = fsm::digest::row_hash(b"request", bytes).to_le_bytes();
    u64::from_le_bytes([hash[0], hash[1], hash[2], hash[3], hash[4], hash[5], hash[6], hash[7]])
}

/// The command without what a server adds to a client's request, such as ids: a retry of the same
/// request carries other values.
fn without_fresh_ids(mut command: Command) -> Command {
    match &mut command {
        Command::RegisterJob(RegisterJob { now_s, evaluation, .. }) => {
            *now_s = 0;
            *evaluation = fsm::EvaluationId::default();
        }
        Command::DeregisterJob(DeregisterJob { evaluation, .. })
        | Command::EvaluateJob(EvaluateJob { evaluation, .. })
        | Command::ScaleJob(ScaleJob { evaluation, .. })
        | Command::PromoteDeployment(PromoteDeployment { evaluation, .. })
        | Command::FailDeployment(FailDeployment { evaluation, .. })
        | Command::PauseDeployment(PauseDeployment { evaluation, .. })
        | Command::SetAllocationHealth(SetAllocationHealth { evaluation, .. })
        | Command::StopAllocation(StopAllocation { evaluation, .. }) => {
            *evaluation = fsm::EvaluationId::default();
        }
        Command::ForcePeriodic(ForcePeriodic { due_s, evaluation, .. }) => {
            *due_s = 0;
            *evaluation = fsm::EvaluationId::default();
        }
        Command::DispatchJob(DispatchJob { children, .. }) => {
            for child in children {
                child.id = fsm::Text::default();
                child.evaluation = fsm::EvaluationId::default();
            }
        }
        Command::RegisterNode(RegisterNode { evaluation_ids, .. })
        | Command::NodeReadiness(NodeReadiness { evaluation_ids, .. })
        | Command::NodeShortage(NodeShortage { evaluation_ids, .. })
        | Command::NodeLiveness(NodeLiveness { evaluation_ids, .. })
        | Command::SetEligibility(SetEligibility { evaluation_ids, .. })
        | Command::AdvanceDrains(AdvanceDrains { evaluation_ids, .. })
        | Command::ReapNode(ReapNode { evaluation_ids, .. })
        | Command::EvaluateNode(EvaluateNode { evaluation_ids, .. })
        | Command::ObserveInstances(ObserveInstances { evaluation_ids, .. })
        | Command::SetInstanceBehavior(SetInstanceBehavior { evaluation_ids, .. })
        | Command::ShutDownInstance(ShutDownInstance { evaluation_ids, .. })
        | Command::DestroyOutcome(DestroyOutcome { evaluation_ids, .. })
        | Command::StopChildren(StopChildren { evaluation_ids, .. })
        | Command::MoveMembers(MoveMembers { evaluation_ids, .. }) => evaluation_ids.clear(),
        Command::SetDrain(SetDrain { drain, evaluation_ids, .. }) => {
            evaluation_ids.clear();
            if let Some(drain) = drain {
                drain.deadline_at =
                    drain.deadline_at.map(|until| until.saturating_sub(drain.started_at));
                drain.started_at = 0;
            }
        }
        Command::SuspendNode(_)
        | Command::UnsuspendNode(_)
        | Command::SuspendLateNodes(_)
        | Command::EndSuspensions(_)
        | Command::EndMassLoss(_)
        | Command::UpdateAllocations(_)
        | Command::UpdateEvaluations(_)
        | Command::LaunchPeriodic(_)
        | Command::ApplyPlans(_)
        | Command::SetSchedulerConfiguration(_)
        | Command::UpsertNodePool(_)
        | Command::DeleteNodePool(_)
        | Command::UpsertNamespace(_)
        | Command::DeleteNamespace(_)
        | Command::Tick
        | Command::MarkDigest
        | Command::DigestVerdict(_)
        | Command::CollectGarbage(_)
        | Command::UpsertInstancePool(_)
        | Command::DeleteInstancePool(_)
        | Command::PauseInstancePool(_)
        | Command::RequestInstances(_)
        | Command::InstanceOutcome(_)
        | Command::NoteInstance(_)
        | Command::NoteUnhelped(_)
        | Command::LimitPool(_)
        | Command::NoteProvider(_)
        | Command::SetRequirements(_)
        | Command::ExpireRequirements(_)
        | Command::DecideCapacity(_)
        | Command::MarkJobVersion(_)
        | Command::ExpireDeployments(_)
        | Command::ExpireRuns(_)
        | Command::DeleteEvaluations(_) => {}
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retry_has_the_hash_of_its_request_and_another_request_has_not() {
        let register = |count, now_s, id| {
            let spec = fsm::testing::job("web", fsm::JobKind::Service, count);
            let command = RegisterJob::new(spec.into(), fsm::EvaluationId([id; 16]));
            hash(&Command::RegisterJob(RegisterJob { now_s, ..command }))
        };
        assert_eq!(register(1, 1, 1), register(1, 2, 2), "the clock went on");
        assert_ne!(register(1, 1, 1), register(2, 1, 1));
    }
}
