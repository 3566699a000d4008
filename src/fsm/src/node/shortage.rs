//! Shortages: what a machine lacks for a while, as its agent says it with each heartbeat.
//!
//! ```text
//!  heartbeat: short of … ──► no new work, what runs goes on
//!             nothing    ──► new work again, at once
//! ```
//! A shortage is nobody's failure: it counts no strike, suspends nothing and has no deadline.

use super::{NodeChange, NodeShortage, Shortage, health::clip};
use crate::{
    apply::{Outcome, Turn},
    evaluation::Trigger,
};

impl Turn<'_> {
    /// Takes in what a heartbeat says. The same word again changes nothing.
    pub(crate) fn node_shortage(&mut self, command: &NodeShortage) -> Outcome {
        let NodeShortage { node: id, incarnation, ref reason, ref evaluation_ids } = *command;
        let mut node = self.node_of(id, incarnation)?;
        let reason = clip(reason);
        let old = node.shortage.take();
        if old.as_ref().map_or("", |old| &*old.reason) == &*reason {
            return self.node(id).map(|node| Self::node_reply(node, Vec::new()));
        }
        if reason.is_empty() {
            let message = "The machine is short of nothing any more: it takes new work";
            self.record(&mut node, NodeChange::ShortageEnded, message);
        } else {
            let since = old.as_ref().map_or(self.at, |old| old.since);
            if old.is_none() {
                let message = format!("The agent refuses new work: {reason}");
                self.record(&mut node, NodeChange::Short, &message);
            }
            node.shortage = Some(Shortage { reason, since });
        }
        self.put_node(node.clone());
        if !node.is_schedulable() {
            return self.node(id).map(|node| Self::node_reply(node, Vec::new()));
        }
        self.gains.insert(id);
        let jobs = self.jobs_of_node(&node, Trigger::NodeUpdate);
        let made = self.evaluate(&jobs, Some(&node), evaluation_ids);
        self.node(id).map(|node| Self::node_reply(node, made))
    }
}
