//! Nodes that are suspended and come back: by checks, by deadlines, by operators.

use fsm::{
    Command, Liveness, Node, NodeId,
    command::NodeCommand,
    node::{EndSuspensions, Health, NodeReadiness, Readiness, SuspendNode, SuspendReason},
};

use super::{Entry, Found};

impl Entry<'_> {
    /// I50: whatever the command is, a node is ready by a successful check alone, and a suspension ends by its time, an operator, or such a check.
    pub(super) fn nodes_live_well(&self, command: &Command, found: &mut Found) {
        for after in self.after.nodes().iter() {
            let Some(before) = self.before.nodes().get(&after.id) else {
                if after.liveness != Liveness::Initializing {
                    found.push(format!("I50: {} begins as {:?}", after.id, after.liveness));
                }
                continue;
            };
            let is_checked = is_success(command, before);
            let becomes_ready =
                before.liveness != Liveness::Ready && after.liveness == Liveness::Ready;
            if becomes_ready && !is_checked {
                found.push(format!("I50: {} is ready without a successful check", after.id));
            }
            let Some(was) = before.suspension().filter(|_| after.health == Health::Ok) else {
                continue;
            };
            let may_end = if let Command::Node(NodeCommand::UnsuspendNode(command)) = command {
                command.node == after.id
            } else if let Command::Node(NodeCommand::EndSuspensions(EndSuspensions { nodes })) =
                command
            {
                let is_over = was.until.is_some_and(|until| until <= self.after.at());
                nodes.contains(&after.id) && is_over
            } else {
                is_checked && was.reason.ends_with_success()
            };
            if !may_end {
                let reason = was.reason.name();
                found.push(format!("I50: the suspension of {} ({reason}) is gone", after.id));
            }
        }
    }

    /// I50: each failed check that counts suspends its node, and a success ends what waits for one.
    pub(super) fn check_reported(&self, report: &NodeReadiness, found: &mut Found) {
        let (before, after) =
            (self.before.nodes().get(&report.node), self.after.nodes().get(&report.node));
        let (Some(before), Some(after)) = (before, after) else { return };
        let id = report.node;
        if !counts(report, before) {
            if before != after {
                found.push(format!("I50: {id} changed by a report of a check that is old"));
            }
            return;
        }
        let reason = after.suspension().map(|now| now.reason);
        let at_least = match report.readiness {
            Readiness::Ok => {
                if reason.is_some_and(SuspendReason::ends_with_success) {
                    found.push(format!("I50: {id} succeeds and is suspended until it does"));
                }
                return;
            }
            Readiness::Retry if before.liveness != Liveness::Ready => return,
            Readiness::Retry => SuspendReason::Unhealthy,
            Readiness::Fatal => SuspendReason::ReadinessFatal,
        };
        if reason.is_none_or(|reason| reason < at_least) {
            found.push(format!("I50: {id} is not suspended: {reason:?}, its check failed"));
        }
    }

    /// I50: an operator's suspension is in force at once, for its time or until it is lifted.
    pub(super) fn node_suspended(&self, command: &SuspendNode, found: &mut Found) {
        let SuspendNode { node: id, by, reason, for_ms } = command;
        let now = self.after.nodes().get(id).and_then(|row| row.suspension());
        let asked = for_ms.map(|length| self.after.at() + length);
        let lasts = now.is_some_and(|now| match (now.until, asked) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(until), Some(asked)) => until >= asked,
        });
        let is_said = now.is_some_and(|now| {
            now.reason == SuspendReason::Operator && (&now.by, &now.detail) == (by, reason)
        });
        if !lasts || !is_said {
            found.push(format!("I50: {id} was suspended by {by} until {asked:?}, not as {now:?}"));
        }
    }

    /// I50: a live node whose suspension is ended is checked before it is ready.
    pub(super) fn checked_again(&self, id: NodeId, found: &mut Found) {
        let (before, after) = (self.before.nodes().get(&id), self.after.nodes().get(&id));
        let (Some(before), Some(after)) = (before, after) else { return };
        let ended = before.health != Health::Ok && after.health == Health::Ok;
        if ended && after.liveness == Liveness::Ready {
            found.push(format!("I50: {id} is ready at the end of its suspension, unchecked"));
        }
    }

    /// I50: who is suspended because it did not become ready had its whole time for that since it came, or came back, and is still not ready.
    pub(super) fn late_node_suspended(&self, id: NodeId, found: &mut Found) {
        let (before, after) = (self.before.nodes().get(&id), self.after.nodes().get(&id));
        let (Some(before), Some(after)) = (before, after) else { return };
        if before.health != Health::Ok || after.health == Health::Ok {
            return;
        }
        if before.liveness != Liveness::Initializing {
            let liveness = before.liveness;
            found.push(format!("I50: {id} is {liveness:?}, and is suspended as not ready in time"));
        }
        let due_at = before.ready_deadline_at;
        if self.after.at() < due_at {
            let left_ms = due_at - self.after.at();
            found.push(format!("I50: {id} is suspended as not ready {left_ms} ms too early"));
        }
        let reason = after.suspension().map(|suspension| suspension.reason);
        if reason != Some(SuspendReason::ReadinessFailed) {
            found.push(format!("I50: {id} is suspended for {reason:?}: it was not ready in time"));
        }
    }
}

/// Whether a report of a check is news of this incarnation of a node that is heard from.
fn counts(report: &NodeReadiness, node: &Node) -> bool {
    let is_heard = matches!(node.liveness, Liveness::Initializing | Liveness::Ready);
    report.incarnation == node.incarnation && is_heard && report.sequence > node.check_sequence
}

/// Whether the command is a report of a check that succeeded, of this node, and counts.
fn is_success(command: &Command, node: &Node) -> bool {
    let Command::Node(NodeCommand::NodeReadiness(report)) = command else { return false };
    report.node == node.id && report.readiness == Readiness::Ok && counts(report, node)
}

#[cfg(test)]
mod tests {
    use fsm::{
        Command,
        node::{SuspendLateNodes, Suspension},
        testing::{self, Driver},
    };

    use super::super::judge;
    use super::*;

    /// What is found when a node is suspended as not ready `early_ms` before its deadline, whatever it is.
    fn found_when_suspended(early_ms: u64, liveness: Liveness) -> Vec<String> {
        let mut driver = Driver::default();
        let node = driver.register_node("n1");
        if liveness == Liveness::Ready {
            driver.sync("n1");
            driver.readiness("n1", fsm::node::Readiness::Ok);
        }
        driver.now = driver.node_row("n1").ready_deadline_at - early_ms;
        let before = driver.state.clone();
        let command = Command::from(SuspendLateNodes { nodes: vec![node] });
        let applied = driver.commit(command.clone());
        let mut after = driver.state.clone();
        let mut row = driver.node_row("n1").clone();
        row.health = Health::Suspended(Suspension {
            reason: SuspendReason::ReadinessFailed,
            detail: "".into(),
            by: "".into(),
            since: driver.now,
            until: None,
            clears_affinity: false,
        });
        testing::put(&mut after, &row);
        let (effects, reply) = (&applied.effects[..], &applied.reply);
        let mut found = Vec::new();
        let entry = Entry { before: &before, after: &after, effects, reply };
        judge(&entry, &command, &mut found);
        found.retain(|one| one.starts_with("I50"));
        found
    }

    #[test]
    fn a_node_has_its_whole_time_to_become_ready() {
        assert_eq!(found_when_suspended(0, Liveness::Initializing), [] as [&str; 0]);
        let early = found_when_suspended(1, Liveness::Initializing);
        assert!(early.iter().any(|found| found.contains("1 ms too early")), "{early:?}");
        let ready = found_when_suspended(0, Liveness::Ready);
        assert!(ready.iter().any(|found| found.contains("is Ready")), "{ready:?}");
    }
}
