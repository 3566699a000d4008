//! Which nodes are busy, idle and free. Updated with each change of a node or an allocation, so
//! that no reader scans for them.
//!
//! A node is busy while an allocation on it has not ended, idle otherwise, and free when it is idle
//! and may be given work.

use imbl::{OrdMap, OrdSet};

use super::Node;
use crate::{
    id::{NodeId, Text},
    indexes::broken,
};

const NAME: &str = "occupancy";

/// Nodes by whether something runs there; a derived index.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Occupancy {
    /// Allocations that have not ended, by node. Invariant: no zeros.
    unfinished: OrdMap<NodeId, u32>,
    /// Invariant: `busy` and `idle` together hold each node row once.
    busy: OrdSet<NodeId>,
    idle: OrdSet<NodeId>,
    free: OrdSet<NodeId>,
    /// `busy` and `idle` by affinity key. Invariant: no empty sets.
    busy_by_key: OrdMap<Text, OrdSet<NodeId>>,
    idle_by_key: OrdMap<Text, OrdSet<NodeId>>,
}

impl Occupancy {
    /// Whether something on the node has not ended.
    pub fn is_busy(&self, node: NodeId) -> bool {
        self.unfinished.contains_key(&node)
    }

    /// Nodes on which something runs.
    pub fn busy(&self) -> &OrdSet<NodeId> {
        &self.busy
    }

    /// Nodes on which nothing runs, in any state of service.
    pub fn idle(&self) -> &OrdSet<NodeId> {
        &self.idle
    }

    /// Idle nodes that may be given work.
    pub fn free(&self) -> &OrdSet<NodeId> {
        &self.free
    }

    /// Busy nodes of an affinity key.
    pub fn busy_of(&self, key: &str) -> Option<&OrdSet<NodeId>> {
        self.busy_by_key.get(key)
    }

    /// Idle nodes of an affinity key.
    pub fn idle_of(&self, key: &str) -> Option<&OrdSet<NodeId>> {
        self.idle_by_key.get(key)
    }

    /// Counts an unfinished allocation that was added to a node; `row` is the node's row.
    pub(crate) fn begins(&mut self, node: NodeId, row: Option<&Node>) {
        if let Some(count) = self.unfinished.get_mut(&node) {
            let more = count.checked_add(1);
            *count = more.unwrap_or_else(|| broken(NAME, format_args!("{node} has {count}")));
            return;
        }
        self.unfinished.insert(node, 1);
        if let Some(row) = row {
            self.leave(row, false);
            self.enter(row, true);
        }
    }

    /// Takes an allocation of a node out of the count: it ended or was removed.
    pub(crate) fn ends(&mut self, node: NodeId, row: Option<&Node>) {
        let Some(count) = self.unfinished.get_mut(&node) else {
            broken(NAME, format_args!("nothing runs on {node}, and ends there"))
        };
        if let Some(less) = count.checked_sub(1).filter(|less| *less > 0) {
            *count = less;
            return;
        }
        self.unfinished.remove(&node);
        if let Some(row) = row {
            self.leave(row, true);
            self.enter(row, false);
        }
    }

    /// Indexes a node row that is new, replaces `old`, or is deleted.
    pub(crate) fn node_changed(&mut self, old: Option<&Node>, new: Option<&Node>) {
        if let (Some(old), Some(new)) = (old, new)
            && old.affinity_key == new.affinity_key
            && old.is_schedulable() == new.is_schedulable()
        {
            return;
        }
        if let Some(old) = old {
            self.leave(old, self.is_busy(old.id));
        }
        if let Some(new) = new {
            self.enter(new, self.is_busy(new.id));
        }
    }

    fn enter(&mut self, row: &Node, is_busy: bool) {
        let (all, by_key) = self.sets(is_busy);
        let known = all.insert(row.id).is_some();
        let set = by_key.entry(row.affinity_key.clone()).or_default();
        if known | set.insert(row.id).is_some() {
            broken(NAME, format_args!("{} is there already, busy: {is_busy}", row.id));
        }
        if !is_busy && row.is_schedulable() && self.free.insert(row.id).is_some() {
            broken(NAME, format_args!("{} is free already", row.id));
        }
    }

    fn leave(&mut self, row: &Node, is_busy: bool) {
        let (all, by_key) = self.sets(is_busy);
        let known = all.remove(&row.id).is_some();
        let Some(set) = by_key.get_mut(&row.affinity_key).filter(|_| known) else {
            broken(NAME, format_args!("{} is not there, busy: {is_busy}", row.id))
        };
        if set.remove(&row.id).is_none() {
            broken(NAME, format_args!("{} has another key than {}", row.id, row.affinity_key));
        }
        if set.is_empty() {
            by_key.remove(&row.affinity_key);
        }
        if !is_busy && row.is_schedulable() && self.free.remove(&row.id).is_none() {
            broken(NAME, format_args!("{} is not free", row.id));
        }
    }

    fn sets(&mut self, is_busy: bool) -> (&mut OrdSet<NodeId>, &mut OrdMap<Text, OrdSet<NodeId>>) {
        if is_busy {
            (&mut self.busy, &mut self.busy_by_key)
        } else {
            (&mut self.idle, &mut self.idle_by_key)
        }
    }
}
