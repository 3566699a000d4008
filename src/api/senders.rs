//! The one table of who may send which command. An edge looks here before a command goes on; a
//! command without a row does not compile.

use fsm::Command;

use super::{ApiError, Caller, Way};

/// Who may send a command through an edge. Each takes in those above it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Senders {
    /// Clients: the HTTP API, and writes over gRPC.
    Clients,
    /// Agents, by a service of their own.
    Agents,
    /// Servers that pass on what they were told, to the leader.
    Servers,
    /// Nobody: the leader's own services propose it, behind all edges.
    Leader,
}

/// The name of a command, and who may send it.
fn row(command: &Command) -> (&'static str, Senders) {
    use Senders::{Agents, Clients, Leader, Servers};
    match command {
        Command::RegisterJob(_) => ("RegisterJob", Clients),
        Command::DeregisterJob(_) => ("DeregisterJob", Clients),
        Command::EvaluateJob(_) => ("EvaluateJob", Clients),
        Command::MarkJobVersion(_) => ("MarkJobVersion", Clients),
        Command::ScaleJob(_) => ("ScaleJob", Clients),
        Command::ExpireRuns(_) => ("ExpireRuns", Leader),
        Command::RegisterNode(_) => ("RegisterNode", Agents),
        Command::NodeReadiness(_) => ("NodeReadiness", Agents),
        Command::NodeShortage(_) => ("NodeShortage", Agents),
        Command::NodeLiveness(_) => ("NodeLiveness", Leader),
        Command::SuspendNode(_) => ("SuspendNode", Clients),
        Command::UnsuspendNode(_) => ("UnsuspendNode", Clients),
        Command::SuspendLateNodes(_) => ("SuspendLateNodes", Leader),
        Command::EndSuspensions(_) => ("EndSuspensions", Leader),
        Command::EndMassLoss(_) => ("EndMassLoss", Clients),
        Command::SetEligibility(_) => ("SetEligibility", Clients),
        Command::SetDrain(_) => ("SetDrain", Clients),
        Command::AdvanceDrains(_) => ("AdvanceDrains", Leader),
        Command::ReapNode(_) => ("ReapNode", Clients),
        Command::EvaluateNode(_) => ("EvaluateNode", Clients),
        // A server gathers the reports of its agents.
        Command::UpdateAllocations(_) => ("UpdateAllocations", Servers),
        Command::StopAllocation(_) => ("StopAllocation", Clients),
        Command::UpdateEvaluations(_) => ("UpdateEvaluations", Leader),
        Command::ApplyPlans(_) => ("ApplyPlans", Leader),
        Command::SetSchedulerConfiguration(_) => ("SetSchedulerConfiguration", Clients),
        Command::UpsertNodePool(_) => ("UpsertNodePool", Clients),
        Command::DeleteNodePool(_) => ("DeleteNodePool", Clients),
        Command::UpsertNamespace(_) => ("UpsertNamespace", Clients),
        Command::DeleteNamespace(_) => ("DeleteNamespace", Clients),
        Command::Tick => ("Tick", Leader),
        // A verdict that names a digest ends every server that has another one.
        Command::MarkDigest => ("MarkDigest", Leader),
        Command::DigestVerdict(_) => ("DigestVerdict", Leader),
        Command::CollectGarbage(_) => ("CollectGarbage", Clients),
        Command::UpsertInstancePool(_) => ("UpsertInstancePool", Clients),
        Command::DeleteInstancePool(_) => ("DeleteInstancePool", Clients),
        Command::PauseInstancePool(_) => ("PauseInstancePool", Clients),
        Command::RequestInstances(_) => ("RequestInstances", Leader),
        // What came of a call of an earlier leadership goes to the next leader.
        Command::InstanceOutcome(_) => ("InstanceOutcome", Servers),
        Command::ObserveInstances(_) => ("ObserveInstances", Leader),
        Command::SetInstanceBehavior(_) => ("SetInstanceBehavior", Clients),
        Command::ShutDownInstance(_) => ("ShutDownInstance", Clients),
        Command::DestroyOutcome(_) => ("DestroyOutcome", Servers),
        Command::NoteInstance(_) => ("NoteInstance", Leader),
        Command::NoteUnhelped(_) => ("NoteUnhelped", Leader),
        Command::LimitPool(_) => ("LimitPool", Leader),
        Command::NoteProvider(_) => ("NoteProvider", Leader),
        Command::SetRequirements(_) => ("SetRequirements", Clients),
        Command::ExpireRequirements(_) => ("ExpireRequirements", Leader),
        Command::DecideCapacity(_) => ("DecideCapacity", Leader),
        Command::MoveMembers(_) => ("MoveMembers", Leader),
        Command::PromoteDeployment(_) => ("PromoteDeployment", Clients),
        Command::FailDeployment(_) => ("FailDeployment", Clients),
        Command::PauseDeployment(_) => ("PauseDeployment", Clients),
        Command::SetAllocationHealth(_) => ("SetAllocationHealth", Clients),
        Command::ExpireDeployments(_) => ("ExpireDeployments", Leader),
        Command::DeleteEvaluations(_) => ("DeleteEvaluations", Clients),
        Command::DispatchJob(_) => ("DispatchJob", Clients),
        Command::StopChildren(_) => ("StopChildren", Clients),
        Command::LaunchPeriodic(_) => ("LaunchPeriodic", Leader),
        Command::ForcePeriodic(_) => ("ForcePeriodic", Clients),
    }
}

/// Whether clients send such commands.
pub fn is_of_clients(command: &Command) -> bool {
    row(command).1 == Senders::Clients
}

/// Refuses a command that a caller of this edge may not send.
pub fn check_caller(caller: Caller, command: &Command) -> Result<(), ApiError> {
    let (name, senders) = row(command);
    let (is_allowed, by) = match caller.way {
        Way::Http | Way::Grpc => (senders == Senders::Clients, "a client"),
        Way::Agent => (senders == Senders::Agents, "an agent"),
    };
    if is_allowed { Ok(()) } else { Err(refused(name, by)) }
}

/// Refuses a command that no server forwards.
pub fn check_forwarded(command: &Command) -> Result<(), ApiError> {
    let (name, senders) = row(command);
    if senders <= Senders::Servers { Ok(()) } else { Err(refused(name, "another server")) }
}

fn refused(name: &str, by: &str) -> ApiError {
    ApiError::Forbidden(format!("command {name} is not taken from {by}"))
}

#[cfg(test)]
mod tests {
    use fsm::{
        allocation::UpdateAllocations,
        digest::{Digest, DigestVerdict},
        settings::DeleteNamespace,
    };

    use super::*;

    /// By which ways a command comes in: HTTP, gRPC, the agents' service, forwarded by a server.
    fn ways(command: &Command) -> [bool; 4] {
        let by = |way| check_caller(Caller::anonymous(way, None), command).is_ok();
        [by(Way::Http), by(Way::Grpc), by(Way::Agent), check_forwarded(command).is_ok()]
    }

    #[test]
    fn a_command_comes_in_by_the_ways_of_its_row_only() {
        let namespace = Command::DeleteNamespace(DeleteNamespace { name: "team".into() });
        assert_eq!(ways(&namespace), [true, true, false, true]);
        let node = fsm::node::EndMassLoss { by: None };
        assert_eq!(ways(&node.into()), [true, true, false, true]);
        let reports = UpdateAllocations { reports: Vec::new() };
        assert_eq!(ways(&reports.into()), [false, false, false, true]);
        let digest = Digest::default();
        let verdict = DigestVerdict { mark: 1, digest };
        for command in [Command::Tick, Command::MarkDigest, verdict.into()] {
            assert_eq!(ways(&command), [false; 4], "{command:?}");
        }
    }

    #[test]
    fn a_refusal_names_command_and_caller() {
        let error = check_caller(Caller::anonymous(Way::Grpc, None), &Command::MarkDigest);
        let text = error.map_err(|error| error.to_string());
        assert_eq!(text, Err("command MarkDigest is not taken from a client".to_owned()));
    }
}
