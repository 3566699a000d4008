//! What became of nodes, for the coverage.

use fsm::{
    Command, Liveness, Node, State,
    allocation::{NodeReport, UpdateAllocations},
    command::{AllocationCommand, NodeCommand},
    node::{ReapNode, SetEligibility, SuspendReason},
};

use crate::cluster::{
    coverage::{Coverage, Event},
    log::Applied,
};

/// What became of nodes, whatever the command was.
pub(super) fn note(before: &State, applied: &Applied, command: &Command, coverage: &mut Coverage) {
    for after in applied.state.nodes().iter() {
        let Some(old) = before.nodes().get(&after.id) else { continue };
        note_suspension(old, after, command, coverage);
        if old.strike_at != after.strike_at {
            coverage.count(Event::Strike);
            let is_flaky = after.suspension().is_some_and(|now| now.reason >= SuspendReason::Flaky);
            if !is_flaky {
                coverage.count(Event::StrikeWithoutSuspension);
            }
        }
        let returns = old.liveness == Liveness::Down && after.liveness != old.liveness;
        let due = old.lost_at.map(|at| at + before.node_life().lost_grace_ms);
        if returns && before.mass_loss().is_some() && due.is_some_and(|due| due < before.at()) {
            coverage.count(Event::MassLossKept);
        }
    }
    match (before.mass_loss(), applied.state.mass_losses().get(&())) {
        (None, Some(loss)) if loss.end.is_none() => coverage.count(Event::MassLoss),
        (Some(_), Some(loss)) => match &loss.end {
            Some(end) if end.by.is_empty() => coverage.count(Event::MassLossOver),
            Some(_) => coverage.count(Event::MassLossConfirmed),
            None => {}
        },
        (None | Some(_), _) => {}
    }
    note_command(before, command, coverage);
}

fn note_command(before: &State, command: &Command, coverage: &mut Coverage) {
    let row = |id| before.nodes().get(id);
    if let Command::Node(NodeCommand::NodeReadiness(report)) = command
        && row(&report.node).is_some_and(|row| report.sequence <= row.check_sequence)
    {
        coverage.count(Event::CheckIgnored);
    }
    if let Command::Allocation(AllocationCommand::UpdateAllocations(UpdateAllocations {
        reports,
    })) = command
    {
        let failures = |report: &NodeReport| {
            report.updates.iter().filter(|one| one.node_failure.is_some()).count()
        };
        if reports.iter().any(|report| failures(report) > 1) {
            coverage.count(Event::FailuresTogether);
        }
    }
    if let Command::Node(NodeCommand::ReapNode(ReapNode { node, force: false, .. })) = command
        && row(node).is_some_and(|row| row.eligibility.ineligible)
    {
        coverage.count(Event::OfflineReaped);
    }
    if let Command::Node(NodeCommand::SetEligibility(SetEligibility {
        node, eligible: false, ..
    })) = command
        && row(node).is_some_and(|row| row.drain.is_some())
    {
        coverage.count(Event::OfflineDraining);
    }
}

fn note_suspension(old: &Node, new: &Node, command: &Command, coverage: &mut Coverage) {
    let reason = |node: &Node| node.suspension().map(|one| one.reason);
    let (was, is) = (reason(old), reason(new));
    if was == is {
        return;
    }
    match is {
        Some(SuspendReason::ReadinessFailed) => {}
        Some(SuspendReason::Unhealthy) => coverage.count(Event::SuspendedUnhealthy),
        Some(SuspendReason::Flaky) => coverage.count(Event::SuspendedFlaky),
        Some(SuspendReason::ReadinessFatal) => coverage.count(Event::SuspendedFatal),
        Some(SuspendReason::Operator) => coverage.count(Event::SuspendedByOperator),
        None => {
            if matches!(command, Command::Node(NodeCommand::EndSuspensions(_))) {
                coverage.count(Event::SuspensionOver);
            }
            if matches!(command, Command::Node(NodeCommand::UnsuspendNode(_))) {
                coverage.count(Event::Unsuspended);
            }
            if new.affinity_key != old.affinity_key {
                coverage.count(Event::AffinityCleared);
            }
        }
    }
}
