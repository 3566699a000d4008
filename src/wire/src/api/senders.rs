//! Refuses commands that somebody may not send: an edge looks here before a command goes on. Who
//! may send what is in the tables of commands.

use fsm::{Command, command::Senders};
use ground::caller::{Caller, Way};

use super::ApiError;

/// Refuses a command that a caller of this edge may not send.
pub fn check_caller(caller: &Caller, command: &Command) -> Result<(), ApiError> {
    let senders = command.senders();
    let (is_allowed, by) = match caller.way {
        Way::Http | Way::Grpc => (senders == Senders::Clients, "a client"),
        Way::Agent => (senders == Senders::Agents, "an agent"),
    };
    if is_allowed { Ok(()) } else { Err(refused(command.name(), by)) }
}

/// Refuses a command that no server forwards.
pub fn check_forwarded(command: &Command) -> Result<(), ApiError> {
    let may_be = command.senders() <= Senders::Servers;
    if may_be { Ok(()) } else { Err(refused(command.name(), "another server")) }
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
        upkeep::{MarkDigest, Tick},
    };

    use super::*;

    /// By which ways a command comes in: HTTP, gRPC, the agents' service, forwarded by a server.
    fn ways(command: &Command) -> [bool; 4] {
        let by = |way| check_caller(&Caller::anonymous(way, None), command).is_ok();
        [by(Way::Http), by(Way::Grpc), by(Way::Agent), check_forwarded(command).is_ok()]
    }

    #[test]
    fn a_command_comes_in_by_the_ways_of_its_row_only() {
        let namespace = Command::from(DeleteNamespace { name: "team".into() });
        assert_eq!(ways(&namespace), [true, true, false, true]);
        let node = fsm::node::EndMassLoss { by: None };
        assert_eq!(ways(&node.into()), [true, true, false, true]);
        let reports = UpdateAllocations { reports: Vec::new() };
        assert_eq!(ways(&reports.into()), [false, false, false, true]);
        let digest = Digest::default();
        let verdict = DigestVerdict { mark: 1, digest };
        for command in [Tick.into(), MarkDigest.into(), verdict.into()] {
            assert_eq!(ways(&command), [false; 4], "{command:?}");
        }
    }

    #[test]
    fn a_refusal_names_command_and_caller() {
        let error = check_caller(&Caller::anonymous(Way::Grpc, None), &MarkDigest.into());
        let text = error.map_err(|error| error.to_string());
        assert_eq!(text, Err("command MarkDigest is not taken from a client".to_owned()));
    }
}
