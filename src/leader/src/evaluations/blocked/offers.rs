//! Which nodes gained room, and to whom that room is offered.
//!
//! ```text
//!  gain ──► look ──► woken for the room ──► come back ──► look again
//!            ▲ one was blocked that has not seen the gain
//! ```
//! It owns which nodes are to be looked at, and what of a node's room the evaluations hold that
//! were woken for it. Whoever lets go of such an evaluation must call [`Offers::give_back`].
//!
//! Invariant: whenever nobody holds room of a node and no look at it is due, no sleeping evaluation
//! could use a gain of the node that it has not seen.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, VecDeque},
};

use fsm::{
    EvaluationId, Index, NodeId,
    plant::{Plant, is_planted},
};

use super::room::Room;

/// The place of an evaluation in the order in which the broker would serve it.
pub(super) type Place = (Reverse<u16>, Index, u32, EvaluationId);

/// The room of one node.
#[derive(Debug, Default)]
struct Offer {
    /// What those have that were woken for it and have not come back.
    taken: BTreeMap<EvaluationId, Room>,
    /// How many of them could not use it lately. The room is offered to that many more at a time,
    /// so that whoever can use it is found soon, also behind many that cannot.
    refused: u32,
}

#[derive(Debug, Default)]
struct Look {
    /// Last evaluation looked at.
    cursor: Option<Place>,
    /// It is to begin anew when it has ended.
    again: bool,
}

#[derive(Debug, Default)]
pub(super) struct Offers {
    gains: BTreeMap<NodeId, Index>,
    /// The same.
    by_index: BTreeSet<(Index, NodeId)>,
    rooms: BTreeMap<NodeId, Offer>,
    /// For which node each was woken that is in `rooms`.
    woken_for: BTreeMap<EvaluationId, NodeId>,
    looks: BTreeMap<NodeId, Look>,
    /// Invariant: holds the keys of `looks` once each.
    order: VecDeque<NodeId>,
}

impl Offers {
    /// A node gained room.
    pub(super) fn gained(&mut self, node: NodeId, index: Index) {
        let known = self.gains.get(&node).copied();
        if known < Some(index) {
            self.by_index.extend([(index, node)]);
            self.by_index.remove(&(known.unwrap_or(0), node));
            self.gains.insert(node, index);
        }
    }

    /// The last gain of a node.
    pub(super) fn gain(&self, node: NodeId) -> Option<Index> {
        self.gains.get(&node).copied()
    }

    /// Nodes whose last gain came after an index.
    pub(super) fn gained_after(&self, index: Index) -> impl Iterator<Item = NodeId> {
        let first = (index.saturating_add(1), NodeId::default());
        self.by_index.range(first..).map(|(_, node)| *node)
    }

    /// A node is gone, and its room with it.
    pub(super) fn node_gone(&mut self, node: NodeId) {
        if let Some(index) = self.gains.remove(&node) {
            self.by_index.remove(&(index, node));
        }
        for id in self.rooms.remove(&node).unwrap_or_default().taken.keys() {
            self.woken_for.remove(id);
        }
        if self.looks.remove(&node).is_some() {
            self.order.retain(|other| *other != node);
        }
    }

    /// A look at a node is due.
    pub(super) fn look_at(&mut self, node: NodeId) {
        if let Some(look) = self.looks.get_mut(&node) {
            look.again = look.cursor.is_some();
        } else {
            self.looks.insert(node, Look::default());
            self.order.push_back(node);
        }
    }

    /// How many looks are due.
    pub(super) fn due(&self) -> usize {
        self.looks.len()
    }

    /// The node to look at next, and the last evaluation looked at there.
    pub(super) fn next(&self) -> Option<(NodeId, Option<Place>)> {
        let node = self.order.front()?;
        Some((*node, self.looks.get(node)?.cursor))
    }

    /// The next look came as far as `cut`, or to its end.
    pub(super) fn looked(&mut self, cut: Option<Place>) {
        let Some(node) = self.order.front().copied() else { return };
        let look = self.looks.get_mut(&node).expect("the order refers to looks");
        look.cursor = cut;
        if cut.is_some() {
            return;
        }
        let again = look.again;
        self.order.pop_front();
        self.looks.remove(&node);
        if again {
            self.look_at(node);
        } else if self.rooms.get(&node).is_some_and(|offer| offer.taken.is_empty()) {
            // Whoever could use the room has seen it.
            self.rooms.remove(&node);
        }
    }

    /// What of a node's free room is not offered yet.
    pub(super) fn left(&self, node: NodeId, free: Room) -> Room {
        let Some(offer) = self.rooms.get(&node) else { return free };
        let all = free.times(offer.refused.saturating_add(1));
        offer.taken.values().fold(all, |left, taken| left.minus(*taken))
    }

    /// An evaluation is woken for room of a node.
    pub(super) fn give(&mut self, id: EvaluationId, node: NodeId, room: Room) {
        self.rooms.entry(node).or_default().taken.insert(id, room);
        self.woken_for.insert(id, node);
    }

    /// For which node's room an evaluation was woken.
    pub(super) fn node_of(&self, id: EvaluationId) -> Option<NodeId> {
        self.woken_for.get(&id).copied()
    }

    /// An evaluation that was woken for room has come back, or will not: the room is passed on.
    pub(super) fn give_back(&mut self, id: EvaluationId, is_refused: bool) {
        let Some(node) = self.woken_for.remove(&id) else { return };
        let offer = self.rooms.get_mut(&node).expect("who was woken for a node is in its offer");
        offer.taken.remove(&id);
        offer.refused =
            if is_refused { offer.refused.saturating_add(1) } else { offer.refused / 2 };
        if !is_planted(Plant::RoomNotPassedOn) {
            self.look_at(node);
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        assert_eq!(self.gains.len(), self.by_index.len());
        assert!(self.gains.iter().all(|(node, index)| self.by_index.contains(&(*index, *node))));
        let order: BTreeSet<_> = self.order.iter().copied().collect();
        assert_eq!(order.len(), self.order.len());
        assert!(order.iter().eq(self.looks.keys()));
        let taken: usize = self.rooms.values().map(|offer| offer.taken.len()).sum();
        assert_eq!(taken, self.woken_for.len());
        let holds = |(id, node): (&EvaluationId, &NodeId)| self.rooms[node].taken.contains_key(id);
        assert!(self.woken_for.iter().all(holds));
    }
}
