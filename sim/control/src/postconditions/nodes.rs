//! Nodes that are taken out of service by the servers themselves.

use fsm::{
    Liveness, NodeId,
    limits::READY_MS_MAX,
    node::{Health, SuspendReason},
};

use super::{Entry, Found};

impl Entry<'_> {
    /// I50: who is suspended because it did not become ready had its whole time for that since it came, or came back, and is still not ready.
    pub(super) fn node_suspended(&self, id: NodeId, reason: SuspendReason, found: &mut Found) {
        let (before, after) = (self.before.nodes().get(&id), self.after.nodes().get(&id));
        let (Some(before), Some(after)) = (before, after) else { return };
        let begins = before.health == Health::Ok && after.health != Health::Ok;
        if reason != SuspendReason::ReadinessFailed || !begins {
            return;
        }
        if before.liveness != Liveness::Initializing {
            let liveness = before.liveness;
            found.push(format!("I50: {id} is {liveness:?}, and is suspended as not ready in time"));
        }
        let had_ms = self.after.at().saturating_sub(before.liveness_at);
        if had_ms < READY_MS_MAX {
            found.push(format!(
                "I50: {id} is suspended because it did not become ready within {had_ms} ms"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use fsm::{Command, node::SuspendNode, testing::Driver};

    use super::super::judge;
    use super::*;

    /// What is found when a node that came back is suspended after so long, as not ready, whatever it is.
    fn suspended_after(ms: u64, liveness: Liveness) -> Vec<String> {
        let mut driver = Driver::default();
        let node = driver.register_node("n1");
        driver.at_ms(READY_MS_MAX);
        driver.liveness("n1", Liveness::Down);
        driver.liveness("n1", Liveness::Initializing);
        if liveness != Liveness::Initializing {
            driver.sync("n1");
            driver.readiness("n1", fsm::node::Readiness::Ok);
        }
        driver.at_ms(READY_MS_MAX + ms);
        let incarnation = driver.node_row("n1").incarnation;
        let suspend = |reason| Command::SuspendNode(SuspendNode { node, incarnation, reason });
        let before = driver.state.clone();
        // For another reason it is done at any time.
        let applied = driver.commit(suspend(SuspendReason::Unhealthy));
        let command = suspend(SuspendReason::ReadinessFailed);
        let (effects, reply) = (&applied.effects[..], &applied.reply);
        let mut found = Vec::new();
        let entry = Entry { before: &before, after: &driver.state, effects, reply };
        judge(&entry, &command, &mut found);
        found
    }

    #[test]
    fn a_node_has_its_whole_time_to_become_ready() {
        assert_eq!(suspended_after(READY_MS_MAX, Liveness::Initializing), [] as [&str; 0]);
        let early = suspended_after(READY_MS_MAX - 1, Liveness::Initializing);
        assert!(early.iter().any(|found| found.contains("did not become ready")), "{early:?}");
        let ready = suspended_after(READY_MS_MAX, Liveness::Ready);
        assert!(ready.iter().any(|found| found.contains("is Ready")), "{ready:?}");
    }
}
