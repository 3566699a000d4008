//! What the log has said of nodes, as far as their rows may not tell it any more: which an operator took offline, and which failed when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{
    AllocationId, ClientStatus, Command, NodeId, State, Text,
    allocation::UpdateAllocations,
    command::{AllocationCommand, NodeCommand},
    node::{ReapNode, SetEligibility},
};

use crate::{invariants::Strikes, postconditions::Entry};

/// What is remembered of nodes.
#[derive(Default)]
pub(crate) struct NodeMemory {
    /// Those that an operator took offline, with actor and reason.
    offline: BTreeMap<NodeId, (Text, Text)>,
    strikes: Strikes,
}

impl NodeMemory {
    /// An entry whose command took effect for the first time.
    pub(crate) fn judge(&mut self, entry: &Entry<'_>, command: &Command, found: &mut Vec<String>) {
        if let Command::Node(NodeCommand::SetEligibility(SetEligibility {
            node,
            eligible,
            by,
            reason,
            ..
        })) = command
        {
            if *eligible {
                self.offline.remove(node);
            } else {
                self.offline.insert(*node, (by.clone(), reason.clone()));
            }
        }
        if let Command::Node(NodeCommand::ReapNode(ReapNode { node, force: true, .. })) = command {
            self.offline.remove(node);
        }
        if let Command::Allocation(AllocationCommand::UpdateAllocations(update)) = command {
            self.note_failures(entry, update);
        }
        // With its machine a node is gone for good.
        for row in
            entry.before.instances().iter().filter(|row| !entry.after.instances().contains(&row.id))
        {
            if let Some(node) = row.node {
                self.offline.remove(&node);
            }
        }
        self.offline_stays(entry.after, found);
        let broken = self.strikes.judge(entry.before, entry.after);
        found.extend(broken.iter().map(ToString::to_string));
    }

    /// I36: what an operator took offline is offline until an operator brings it back or purges it, and says why.
    fn offline_stays(&self, state: &State, found: &mut Vec<String>) {
        for (id, (by, reason)) in &self.offline {
            let of_node = state.nodes().get(id).map(|row| &row.eligibility);
            let row = of_node.or_else(|| Some(&state.offline_nodes().get(id)?.eligibility));
            let Some(row) = row.filter(|row| row.ineligible) else {
                found.push(format!("I36: {id} was taken offline and is not"));
                continue;
            };
            if row.by_drain || (&row.by, &row.reason) != (by, reason) {
                let (by_now, reason_now) = (&row.by, &row.reason);
                found.push(format!(
                    "I36: {id} was taken offline by {by} ({reason}), not by {by_now} ({reason_now})"
                ));
            }
        }
    }

    fn note_failures(&mut self, entry: &Entry<'_>, command: &UpdateAllocations) {
        let at = entry.after.at();
        let has_failed = |id: &AllocationId| {
            let before = entry.before.allocations().get(id)?;
            let after = entry.after.allocations().get(id)?;
            let failed = after.client == ClientStatus::Failed;
            (failed && before.client != ClientStatus::Failed).then(|| Arc::clone(after))
        };
        let updates = command.reports.iter().flat_map(|report| &report.updates);
        let ids: BTreeSet<_> =
            updates.filter(|one| one.node_failure.is_some()).map(|one| one.id).collect();
        for row in ids.iter().filter_map(has_failed) {
            self.strikes.failed(row.node, at, row.job.clone());
        }
    }
}
