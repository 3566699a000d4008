//! Nodes. A node's state is five orthogonal parts (liveness, health, eligibility, drain, instance),
//! never one enum: an operator's wish survives a flap, a suspension survives an operator's wish.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    id::{ClassId, Index, NodeId, Text, TimeMs},
    resources::Resources,
    table::{Row, TableId},
};

/// Whether the agent is heard from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum Liveness {
    /// Registered; statuses of its allocations are not in yet.
    Initializing,
    /// In service.
    Ready,
    /// Not heard from, and its allocations tolerate that for a while.
    Disconnected,
    /// Not heard from; its allocations are lost.
    Down,
}

impl Liveness {
    /// The status name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Disconnected => "disconnected",
            Self::Down => "down",
        }
    }

    /// The legal transitions (docs: node life).
    pub const fn may_become(self, next: Self) -> bool {
        matches!(
            (self, next),
            (Self::Initializing, Self::Ready | Self::Down)
                | (Self::Ready, Self::Disconnected | Self::Down | Self::Initializing)
                | (Self::Disconnected, Self::Initializing | Self::Down)
                | (Self::Down, Self::Initializing)
        )
    }
}

/// Why a node was suspended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum SuspendReason {
    /// Infrastructure errors of its tasks.
    Flaky,
    /// Found unhealthy after a task.
    Unhealthy,
    /// Never became ready.
    ReadinessFailed,
}

impl SuspendReason {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flaky => "flaky",
            Self::Unhealthy => "unhealthy",
            Self::ReadinessFailed => "readiness-failed",
        }
    }
}

/// Whether the node is trusted with work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Health {
    /// Trusted.
    #[default]
    Ok,
    /// Out of service until `until`, then initializing again.
    Suspended {
        reason: SuspendReason,
        /// Since when.
        since: TimeMs,
        /// Until when.
        until: TimeMs,
    },
}

/// Whether an operator allows new work. Sticky: only an operator changes it back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Eligibility {
    /// New work is refused.
    pub ineligible: bool,
    /// Who said so.
    pub by: Text,
    pub reason: Text,
    pub at: TimeMs,
    /// At which index.
    pub index: Index,
}

/// A drain under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Drain {
    /// Start.
    pub started_at: TimeMs,
    /// When the rest is forced; none: never.
    pub deadline_at: Option<TimeMs>,
    /// Everything at once.
    pub force: bool,
    /// Leave system jobs running.
    pub ignore_system: bool,
    /// Who drains: an operator's name or a service's.
    pub owner: Text,
    /// A service may take it back by itself.
    pub cancelable: bool,
}

/// Resources and ports of a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct NodeResources {
    /// All there is.
    pub total: Resources,
    /// Kept from tasks.
    pub reserved: Resources,
    /// Ports kept from tasks, sorted.
    pub reserved_ports: Vec<u16>,
    /// Lowest dynamic port.
    pub dynamic_port_min: u16,
    /// Highest dynamic port.
    pub dynamic_port_max: u16,
    /// Cpu cores, shown only.
    pub cores: u32,
    /// Address that ports are reached at.
    pub address: Text,
    /// Most allocations at a time; 0: no limit.
    pub allocations_max: u32,
}

impl NodeResources {
    /// What tasks may use.
    pub fn available(&self) -> Resources {
        self.total.minus(self.reserved)
    }
}

/// A driver as the agent found it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Driver {
    /// Present.
    pub detected: bool,
    /// Usable.
    pub healthy: bool,
    /// In words.
    pub description: Text,
    pub attributes: BTreeMap<Text, Text>,
}

/// What an agent says of its node; replaced as a whole at each registration.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct NodeDescription {
    /// Name, usually the host's.
    pub name: Text,
    pub datacenter: Text,
    /// Class, free text.
    pub class: Text,
    /// Node pool.
    pub pool: Text,
    /// Fingerprinted attributes.
    pub attributes: BTreeMap<Text, Text>,
    /// Meta from the agent's configuration.
    pub meta: BTreeMap<Text, Text>,
    pub resources: NodeResources,
    /// Drivers by name.
    pub drivers: BTreeMap<Text, Driver>,
    /// HTTP address of the agent.
    pub http_address: Text,
    /// Version of the agent.
    pub version: Text,
}

/// Something that happened to a node, shown to people.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeEvent {
    pub at: TimeMs,
    /// At which index.
    pub index: Index,
    pub message: Text,
}

/// A node row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Node {
    pub id: NodeId,
    /// Fixed at the first registration; another one is refused.
    pub secret: [u8; 16],
    /// State directory and boot of the agent; another one is another incarnation.
    pub identity: [u8; 16],
    /// Rises when the agent's memory of its allocations is gone.
    ///
    /// Invariant: never falls, also over reaping (the tombstone keeps it).
    pub incarnation: u64,
    /// What the agent says.
    pub description: Arc<NodeDescription>,
    /// Hash of what scheduling depends on, without unique keys.
    pub class: ClassId,
    pub liveness: Liveness,
    /// Log time of the last change of liveness.
    pub liveness_at: TimeMs,
    /// When initializing ends in suspension.
    pub ready_deadline_at: TimeMs,
    /// When it went down; kept until it is ready again.
    pub lost_at: Option<TimeMs>,
    /// Index of the last missed heartbeat.
    pub missed_index: Index,
    /// Index of the last allocation sync; `Ready` after a miss needs a later one.
    pub synced_index: Index,
    pub health: Health,
    /// Suspensions so far, decaying.
    pub strikes: u32,
    /// Log time of the last strike, for decay.
    pub strike_at: TimeMs,
    pub eligibility: Eligibility,
    pub drain: Option<Drain>,
    /// Machine of a provider that this node runs on.
    pub instance: Option<Text>,
    /// Affinity key of the last allocation started here; empty: none.
    pub affinity_key: Text,
    /// Index of the first registration.
    pub create_index: Index,
    pub modify_index: Index,
    /// Newest last, at most `limits::NODE_EVENTS_MAX`.
    pub events: Vec<NodeEvent>,
}

impl Row for Node {
    type Key = NodeId;
    const TABLE: TableId = TableId::Nodes;

    fn key(&self) -> NodeId {
        self.id
    }
}

impl Node {
    /// Whether new work may be placed here.
    pub fn is_schedulable(&self) -> bool {
        self.liveness == Liveness::Ready
            && self.health == Health::Ok
            && !self.eligibility.ineligible
            && self.drain.is_none()
    }

    /// By when it has to be ready, if it is trusted and is not ready yet.
    pub fn must_be_ready_at(&self) -> Option<TimeMs> {
        (self.liveness == Liveness::Initializing && self.health == Health::Ok)
            .then_some(self.ready_deadline_at)
    }
}

impl NodeDescription {
    /// Whether a job of this pool and these datacenter patterns may look at the node.
    pub fn matches(&self, pool: &str, datacenters: &[Text]) -> bool {
        (pool == "all" || pool == &*self.pool)
            && datacenters
                .iter()
                .any(|pattern| glob(pattern.as_bytes(), self.datacenter.as_bytes()))
    }
}

/// Whether `text` matches a pattern in which `*` stands for any run of characters.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0usize, 0usize);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if pattern.get(p) == Some(&b'*') {
            star = Some((p.saturating_add(1), t));
            p = p.saturating_add(1);
        } else if p < pattern.len() && pattern.get(p) == text.get(t) {
            p = p.saturating_add(1);
            t = t.saturating_add(1);
        } else if let Some((after, from)) = star {
            let from = from.saturating_add(1);
            star = Some((after, from));
            p = after;
            t = from;
        } else {
            return false;
        }
    }
    pattern.get(p..).unwrap_or_default().iter().all(|byte| *byte == b'*')
}

/// What is left of a reaped node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tombstone {
    /// Last incarnation.
    pub incarnation: u64,
    /// When it was reaped.
    pub at: TimeMs,
}

/// A reaped node's row.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TombstoneRow {
    pub node: NodeId,
    /// What is left.
    pub tombstone: Tombstone,
}

impl Row for TombstoneRow {
    type Key = NodeId;
    const TABLE: TableId = TableId::Tombstones;

    fn key(&self) -> NodeId {
        self.node
    }
}

/// An eligibility set before its node exists.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct EarlyEligibility {
    /// Node to come.
    pub node: NodeId,
    /// What it will get.
    pub eligibility: Eligibility,
}

impl Row for EarlyEligibility {
    type Key = NodeId;
    const TABLE: TableId = TableId::EarlyEligibilities;

    fn key(&self) -> NodeId {
        self.node
    }
}

/// What a capacity gain is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum GainKey {
    /// Nodes of a class.
    Class(ClassId),
    /// One node.
    Node(NodeId),
}

/// The last index at which a class or node gained room, so that a wake-up that died with a leader
/// is made up for by the next.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CapacityGain {
    /// What gained.
    pub key: GainKey,
    pub index: Index,
}

impl Row for CapacityGain {
    type Key = GainKey;
    const TABLE: TableId = TableId::CapacityGains;

    fn key(&self) -> GainKey {
        self.key
    }
}

impl crate::table::Key for GainKey {
    fn write(&self, out: &mut Vec<u8>) {
        match self {
            Self::Class(class) => {
                out.push(0);
                out.extend_from_slice(&class.0);
            }
            Self::Node(node) => {
                out.push(1);
                out.extend_from_slice(&node.0);
            }
        }
    }
}
