//! Capacity groups as pools declare them, sources, and what is wanted of each group.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::Peaks;
use crate::{
    id::{Index, Text, TimeMs},
    table::Row,
};

/// What a group's amounts are amounts of.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum GroupDimension {
    /// MiB of memory.
    #[default]
    MemoryMb,
    CpuMhz,
    /// Machines, whatever their size.
    Instances,
}

impl GroupDimension {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::MemoryMb, Self::CpuMhz, Self::Instances];

    /// The name used in pool files and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemoryMb => "memory_mb",
            Self::CpuMhz => "cpu_mhz",
            Self::Instances => "instances",
        }
    }

    /// A unit behind a number, for sentences.
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::MemoryMb => " MB",
            Self::CpuMhz => " MHz",
            Self::Instances => " machines",
        }
    }
}

/// How the sum of the requirements becomes the amount that is wanted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
pub enum Prediction {
    /// The sum.
    #[default]
    Identity,
    /// The sum and so many percent of it.
    Headroom { percent: u32 },
    /// The largest sum of the last so many ms.
    Peak { window_ms: u64 },
}

impl Prediction {
    /// The name used in pool files and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "identity",
            Self::Headroom { .. } => "headroom",
            Self::Peak { .. } => "peak",
        }
    }
}

/// How a drained member is known to be free.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum BusyRule {
    /// Its work is not the cluster's: it lives until the deadline of its drain.
    #[default]
    Deadline,
    /// As soon as no allocation runs on it, at the latest at the deadline of its drain.
    Allocations,
}

impl BusyRule {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Deadline, Self::Allocations];

    /// The name used in pool files and the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Allocations => "allocations",
        }
    }
}

/// A capacity group as its pool declares it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CapacityGroup {
    /// Unique over all pools.
    pub name: Text,
    pub dimension: GroupDimension,
    /// What one member is expected to give; also how much too much is no reason to shrink.
    pub unit: u64,
    /// Members that are kept without a requirement.
    pub min: u32,
    /// Most members.
    pub max: u32,
    pub predictor: Prediction,
    /// Most members that are asked for within a step interval.
    pub step: u32,
    pub step_interval_ms: u64,
    /// How long a drained member lives on.
    pub drain_ms: u64,
    pub busy: BusyRule,
    /// What runs on a drained member is stopped at the drain's deadline before its machine goes;
    /// with [`BusyRule::Allocations`] only.
    pub hard: bool,
    /// From one growth of the group to the next.
    pub cooldown_up_ms: u64,
    /// How long less must be wanted before members drain.
    pub cooldown_down_ms: u64,
    /// How long a requirement holds that says nothing of it.
    pub requirement_ttl_ms: u64,
    /// Where members serve; only for whom reads the list of members.
    pub member_port: u16,
}

/// What an instance is to its group.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// The group that it was made for; never another one.
    pub group: Text,
    /// None: it serves, or will.
    pub drain: Option<MemberDrain>,
    /// Its place among those that serve, from 0; none: it has not served yet, or another one has
    /// its place since it was away. Invariant: no two members that may serve have the same.
    pub place: Option<u32>,
}

/// The drain of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MemberDrain {
    pub since: TimeMs,
    /// Orders drains: the entry, and the place in it. The last one is taken back first.
    pub order: (Index, u32),
    /// Invariant: never moved while the drain lasts.
    pub deadline_at: TimeMs,
    /// As its group was when the drain began.
    pub busy: BusyRule,
    pub hard: bool,
}

/// What a source needs of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Asked {
    pub amount: u64,
    /// Since when it has been this amount.
    pub since: TimeMs,
}

/// A source of requirements, such as a load balancer: the last that it said.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CapacitySource {
    pub name: Text,
    /// Rises when the source starts anew.
    pub epoch: u64,
    /// Rises with each word of an epoch.
    pub seq: u64,
    /// How long its word holds.
    pub ttl_ms: u64,
    pub heard_at: TimeMs,
    /// Term of its word: a source that spoke in an earlier one has not spoken to the leader.
    pub heard_term: u64,
    pub expires_at: TimeMs,
    /// When it was found silent; 0: it was not. It is kept for a while, so that a word that comes
    /// late is known to be late.
    pub expired_at: TimeMs,
    /// By group; empty when it expired.
    pub amounts: BTreeMap<Text, Asked>,
    pub modify_index: Index,
}

impl Row for CapacitySource {
    type Key = Text;

    fn key(&self) -> Text {
        self.name.clone()
    }
}

/// What was decided for a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CapacityDecision {
    /// The amount that the group is to give: used everywhere.
    pub desired: u64,
    /// What the predictor made of the sum, before min and max.
    pub predicted: u64,
    /// The sum that it was made from.
    pub required: u64,
    /// [`CapacityTarget::requirements_index`] that it was made from.
    pub requirements_index: Index,
    pub at: TimeMs,
    /// The entry of the decision.
    pub index: Index,
}

/// How many members were asked for lately. In the state, so that a new leader does not begin a
/// new step in the middle of one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pace {
    /// When a member was last asked for; 0: never.
    pub last_at: TimeMs,
    /// Members asked for since there was none for a whole step interval.
    pub asked: u32,
}

/// A source that fell silent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Expiry {
    pub source: Text,
    pub at: TimeMs,
    /// What it had asked for.
    pub amount: u64,
}

/// What is wanted of a capacity group. The row is there from the first requirement or decision; it
/// goes some time after the group has neither requirement nor member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CapacityTarget {
    /// Of the group.
    pub name: Text,
    pub pool: Text,
    /// The group is declared no more: its members drain, and the row goes with the last.
    pub deleted: bool,
    /// Invariant: the sum of the sources' amounts for the group.
    pub required: u64,
    /// Invariant: the number of sources that name the group.
    pub sources: u32,
    /// Index of the last entry that changed the sum or the group's declaration.
    pub requirements_index: Index,
    /// When that was.
    pub changed_at: TimeMs,
    pub decision: Option<CapacityDecision>,
    /// Sums of the predictor's window, where it has one.
    pub sums: Peaks,
    /// Desired amounts of the time in which the group does not shrink below them.
    pub wants: Peaks,
    pub pace: Pace,
    /// When members were last asked for or taken back; 0: never.
    pub grown_at: TimeMs,
    /// Sources that fell silent, ever.
    pub expired: u64,
    pub last_expiry: Option<Expiry>,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for CapacityTarget {
    type Key = Text;

    fn key(&self) -> Text {
        self.name.clone()
    }
}
