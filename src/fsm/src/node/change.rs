//! The changes of a node that people read of: in the leader's log, in its counters, and among the
//! node's events.

use super::Node;
use crate::{
    apply::Turn,
    effect::Effect,
    id::{NodeId, Text},
};

/// What happened to a node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NodeChange {
    Registered,
    Initializing,
    Ready,
    Disconnected,
    Down,
    Suspended,
    SuspensionEnded,
    /// Its machine is short of something.
    Short,
    ShortageEnded,
    /// A strike that does not suspend is one as well.
    Strike,
    Ineligible,
    Eligible,
    DrainBegan,
    DrainEnded,
    Reaped,
    Purged,
}

impl NodeChange {
    /// All changes.
    pub const ALL: [Self; 16] = [
        Self::Registered,
        Self::Initializing,
        Self::Ready,
        Self::Disconnected,
        Self::Down,
        Self::Suspended,
        Self::SuspensionEnded,
        Self::Short,
        Self::ShortageEnded,
        Self::Strike,
        Self::Ineligible,
        Self::Eligible,
        Self::DrainBegan,
        Self::DrainEnded,
        Self::Reaped,
        Self::Purged,
    ];

    /// The name in the log and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Disconnected => "disconnected",
            Self::Down => "down",
            Self::Suspended => "suspended",
            Self::SuspensionEnded => "suspension_ended",
            Self::Short => "short",
            Self::ShortageEnded => "shortage_ended",
            Self::Strike => "strike",
            Self::Ineligible => "ineligible",
            Self::Eligible => "eligible",
            Self::DrainBegan => "drain_began",
            Self::DrainEnded => "drain_ended",
            Self::Reaped => "reaped",
            Self::Purged => "purged",
        }
    }
}

impl Turn<'_> {
    /// Records a change with a node that stays: among its events, and for the leader.
    pub(super) fn record(&mut self, node: &mut Node, change: NodeChange, message: &str) {
        self.event(node, message);
        self.announce(node.id, change, message.into());
    }

    /// Tells the leader of a change.
    pub(crate) fn announce(&mut self, node: NodeId, change: NodeChange, detail: Text) {
        self.effects.insert(Effect::NodeChange { node, change, detail });
    }
}
