//! How many nodes are in which state, kept with each change of a node row, so that gauges and
//! limits need no scan.

use imbl::OrdSet;

use super::{Liveness, Node, SuspendReason};
use crate::{
    id::{NodeId, TimeMs},
    indexes::broken,
};

/// Counts of nodes; a derived index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Census {
    initializing: u32,
    ready: u32,
    disconnected: u32,
    down: u32,
    readiness_failed: u32,
    unhealthy: u32,
    flaky: u32,
    readiness_fatal: u32,
    operator: u32,
    ineligible: u32,
    draining: u32,
    short: u32,
    /// Silent nodes that were ready before, by the time at which they were missed.
    lost: OrdSet<(TimeMs, NodeId)>,
}

impl Census {
    /// Nodes of a liveness. The four numbers add up to the nodes.
    pub fn of(&self, liveness: Liveness) -> u32 {
        match liveness {
            Liveness::Initializing => self.initializing,
            Liveness::Ready => self.ready,
            Liveness::Disconnected => self.disconnected,
            Liveness::Down => self.down,
        }
    }

    /// Nodes that are suspended for a reason.
    pub fn suspended(&self, reason: SuspendReason) -> u32 {
        match reason {
            SuspendReason::ReadinessFailed => self.readiness_failed,
            SuspendReason::Unhealthy => self.unhealthy,
            SuspendReason::Flaky => self.flaky,
            SuspendReason::ReadinessFatal => self.readiness_fatal,
            SuspendReason::Operator => self.operator,
        }
    }

    /// Nodes that an operator or a drain has made ineligible.
    pub fn ineligible(&self) -> u32 {
        self.ineligible
    }

    /// Nodes with a drain.
    pub fn draining(&self) -> u32 {
        self.draining
    }

    /// Nodes whose machine is short of something.
    pub fn short(&self) -> u32 {
        self.short
    }

    /// Silent nodes that were ready when they were missed, at `since` or later, oldest first.
    pub fn lost_since(&self, since: TimeMs) -> impl Iterator<Item = NodeId> {
        self.lost.range((since, NodeId::default())..).map(|(_, node)| *node)
    }

    /// Counts a node row that is new, replaces `old`, or is deleted.
    pub(crate) fn node_changed(&mut self, old: Option<&Node>, new: Option<&Node>) {
        if let Some(old) = old {
            self.count(old, |count| count.checked_sub(1));
            if let Some(key) = lost_key(old)
                && self.lost.remove(&key).is_none()
            {
                broken("census", format_args!("{} is not among the lost", old.id));
            }
        }
        if let Some(new) = new {
            self.count(new, |count| count.checked_add(1));
            if let Some(key) = lost_key(new)
                && self.lost.insert(key).is_some()
            {
                broken("census", format_args!("{} is among the lost already", new.id));
            }
        }
    }

    fn count(&mut self, node: &Node, change: fn(u32) -> Option<u32>) {
        let step = |count: &mut u32| {
            *count = change(*count)
                .unwrap_or_else(|| broken("census", format_args!("{count} with {}", node.id)));
        };
        step(match node.liveness {
            Liveness::Initializing => &mut self.initializing,
            Liveness::Ready => &mut self.ready,
            Liveness::Disconnected => &mut self.disconnected,
            Liveness::Down => &mut self.down,
        });
        if let Some(suspension) = node.suspension() {
            step(match suspension.reason {
                SuspendReason::ReadinessFailed => &mut self.readiness_failed,
                SuspendReason::Unhealthy => &mut self.unhealthy,
                SuspendReason::Flaky => &mut self.flaky,
                SuspendReason::ReadinessFatal => &mut self.readiness_fatal,
                SuspendReason::Operator => &mut self.operator,
            });
        }
        if node.eligibility.ineligible {
            step(&mut self.ineligible);
        }
        if node.drain.is_some() {
            step(&mut self.draining);
        }
        if node.shortage.is_some() {
            step(&mut self.short);
        }
    }
}

fn lost_key(node: &Node) -> Option<(TimeMs, NodeId)> {
    let is_silent = match node.liveness {
        Liveness::Disconnected | Liveness::Down => true,
        Liveness::Initializing | Liveness::Ready => false,
    };
    (is_silent && node.was_ready).then_some((node.missed_at, node.id))
}
