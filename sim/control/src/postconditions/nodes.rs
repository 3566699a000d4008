//! Nodes that are taken out of service by the servers themselves.

use fsm::{
    Liveness, NodeId,
    node::{Health, SuspendReason},
};

use super::{Entry, Found};

impl Entry<'_> {
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
        let command = Command::SuspendLateNodes(SuspendLateNodes { nodes: vec![node] });
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
