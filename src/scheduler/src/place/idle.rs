//! The order in which idle nodes are offered to an allocation with an affinity key, before any
//! scoring: first nodes that last ran the same key, then nodes that ran no key, then all others.
//! Within each set the order is by id.
//!
//! ```text
//!  idle, same key ─► idle, no key ─► idle and in service, any other key (bounded) ─► none: ranked
//! ```
//!
//! Reads the state's index of idle nodes, so that it finds a warm node without a scan. Must never
//! judge a node itself: the stack says whether a node may be taken.

use std::ops::Bound;

use fsm::{NodeId, Text, node::Occupancy};

/// How many idle nodes of other keys one choice looks at. After that it leaves the choice to the
/// scores.
pub(crate) const OTHER_NODES_MAX: usize = 1_024;

/// The stack's answer about an idle node.
pub(crate) enum Verdict {
    /// Take it. The value is its position.
    Take(usize),
    /// Unsuitable for this instance, but perhaps not for the next.
    NotNow,
    /// Unsuitable for the rest of the pass.
    Never,
}

/// The idle nodes for one group in one pass.
pub(crate) struct IdleOrder<'a> {
    occupancy: &'a Occupancy,
    key: &'a Text,
    same: Walk,
    none: Walk,
    other: Walk,
}

impl<'a> IdleOrder<'a> {
    /// `key` is not empty.
    pub(crate) fn new(occupancy: &'a Occupancy, key: &'a Text) -> Self {
        let [same, none, other] = [Walk::default(), Walk::default(), Walk::default()];
        Self { occupancy, key, same, none, other }
    }

    /// The position of the first node that `judge` takes.
    pub(crate) fn first(&mut self, mut judge: impl FnMut(NodeId) -> Verdict) -> Option<usize> {
        let same = self.occupancy.idle_of(self.key);
        let none = self.occupancy.idle_of("");
        for (walk, nodes) in [(&mut self.same, same), (&mut self.none, none)] {
            let rest = walk.rest();
            let after = nodes.into_iter().flat_map(|nodes| nodes.range(rest));
            if let Some(position) = walk.first(after, &mut judge) {
                return Some(position);
            }
        }
        let after = self.occupancy.free().range(self.other.rest()).take(OTHER_NODES_MAX);
        self.other.first(after, &mut |id| {
            if [same, none].into_iter().flatten().any(|nodes| nodes.contains(&id)) {
                return Verdict::Never;
            }
            judge(id)
        })
    }
}

/// How far the walk over one set of nodes has come.
#[derive(Default)]
struct Walk {
    /// Invariant: no node up to this one can be taken in this pass any more.
    used_up: Option<NodeId>,
}

impl Walk {
    fn rest(&self) -> (Bound<NodeId>, Bound<NodeId>) {
        (self.used_up.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded)
    }

    fn first<'n>(
        &mut self,
        nodes: impl Iterator<Item = &'n NodeId>,
        judge: &mut impl FnMut(NodeId) -> Verdict,
    ) -> Option<usize> {
        let mut all_used_up = true;
        for id in nodes {
            match judge(*id) {
                Verdict::Take(position) => return Some(position),
                Verdict::NotNow => all_used_up = false,
                Verdict::Never if all_used_up => self.used_up = Some(*id),
                Verdict::Never => {}
            }
        }
        None
    }
}
