//! Nodes. A node's state is six orthogonal parts (liveness, health, shortage, eligibility, drain,
//! instance), never one enum: an operator's wish survives a flap, a suspension survives an
//! operator's wish.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::computed_class;
use crate::{
    id::{ClassId, Index, InstanceId, JobKey, NodeId, Text, TimeMs},
    resources::Resources,
    table::Row,
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
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Initializing, Self::Ready, Self::Disconnected, Self::Down];

    /// The status name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Initializing => "initializing",
            Self::Ready => "ready",
            Self::Disconnected => "disconnected",
            Self::Down => "down",
        }
    }

    /// Whether this change of liveness is legal (docs/node-life.md).
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

/// Why a node is suspended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum SuspendReason {
    /// It was not ready by its deadline.
    ReadinessFailed,
    /// Its check failed after a task.
    Unhealthy,
    /// It failed too often to run what it was given.
    Flaky,
    /// Its check asked for a person.
    ReadinessFatal,
    Operator,
}

impl SuspendReason {
    /// All reasons, the weakest first: a weaker one does not replace a stronger one.
    pub const ALL: [Self; 5] =
        [Self::ReadinessFailed, Self::Unhealthy, Self::Flaky, Self::ReadinessFatal, Self::Operator];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadinessFailed => "readiness-failed",
            Self::Unhealthy => "unhealthy",
            Self::Flaky => "flaky",
            Self::ReadinessFatal => "readiness-fatal",
            Self::Operator => "operator",
        }
    }

    /// The suspension lasts until a check succeeds, and ends with that success.
    pub const fn ends_with_success(self) -> bool {
        match self {
            Self::ReadinessFailed | Self::Unhealthy => true,
            Self::Flaky | Self::ReadinessFatal | Self::Operator => false,
        }
    }

    /// A readiness check says no.
    pub const fn is_of_check(self) -> bool {
        match self {
            Self::ReadinessFailed | Self::ReadinessFatal => true,
            Self::Unhealthy | Self::Flaky | Self::Operator => false,
        }
    }

    /// What the node last ran may be the cause, so it is not preferred for more of that.
    pub const fn clears_affinity(self) -> bool {
        match self {
            Self::Unhealthy | Self::Flaky => true,
            Self::ReadinessFailed | Self::ReadinessFatal | Self::Operator => false,
        }
    }
}

/// Whether the node is trusted with work.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub enum Health {
    #[default]
    Ok,
    Suspended(Suspension),
}

/// A node gets no new work for a while; what runs there goes on.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Suspension {
    pub reason: SuspendReason,
    /// In words: a check's output, a failure, an operator's reason.
    pub detail: Text,
    /// The operator; empty: the servers.
    pub by: Text,
    pub since: TimeMs,
    /// None: until a check succeeds, or until an operator ends it.
    pub until: Option<TimeMs>,
    /// The node's affinity key is cleared at the end, also when a stronger reason came on top.
    pub clears_affinity: bool,
}

impl Suspension {
    /// Takes in another suspension of the same node. The first `since` is kept, and the later end;
    /// an operator's second word replaces the first.
    pub fn merge(&mut self, new: Self) {
        self.clears_affinity |= new.clears_affinity;
        if new.reason < self.reason {
            if !new.reason.ends_with_success() {
                self.until = later(self.until, new.until);
            }
            return;
        }
        let replaces = self.reason.ends_with_success()
            || (self.reason, new.reason) == (SuspendReason::Operator, SuspendReason::Operator);
        self.until = if replaces { new.until } else { later(self.until, new.until) };
        (self.reason, self.detail, self.by) = (new.reason, new.detail, new.by);
    }
}

/// None is never.
fn later(a: Option<TimeMs>, b: Option<TimeMs>) -> Option<TimeMs> {
    Some(a?.max(b?))
}

/// A failure of the node itself: of a driver, an executor or a directory, not of a task.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeFailure {
    pub at: TimeMs,
    /// The job whose allocation failed by it.
    pub job: JobKey,
    pub detail: Text,
}

/// What the agent's readiness check found.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Readiness {
    Ok,
    /// Not yet.
    Retry,
    /// Not without a person.
    Fatal,
}

impl Readiness {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ready",
            Self::Retry => "not ready",
            Self::Fatal => "fatal",
        }
    }
}

/// The last result of a node's readiness check.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct CheckResult {
    pub readiness: Readiness,
    /// First line of the check's output.
    pub reason: Text,
    pub at: TimeMs,
}

/// The machine is short of something that it cannot work without: its agent refuses new work and
/// goes on with what runs. The node is not to blame, and is not suspended.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Shortage {
    /// Of what, in the agent's words; not empty.
    pub reason: Text,
    /// When it began; the reason may have changed since.
    pub since: TimeMs,
}

/// Whether an operator allows new work. Sticky: only an operator changes it back.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Eligibility {
    /// New work is refused.
    pub ineligible: bool,
    /// A drain took it, and may give it back at its end.
    pub by_drain: bool,
    /// As the client gave it.
    pub by: Text,
    pub reason: Text,
    pub at: TimeMs,
    pub index: Index,
}

impl Eligibility {
    /// This word after another one: an operator who says again that a node takes no work replaces
    /// actor and reason, and the time of the first word stays.
    pub(super) fn after(mut self, old: &Self) -> Self {
        if self.ineligible && old.ineligible && !old.by_drain {
            (self.at, self.index) = (old.at, old.index);
        }
        self
    }
}

/// A node that a person has taken out of service: no machine judges it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetAside<'a> {
    /// How, for sentences.
    pub word: &'static str,
    /// As the client gave it.
    pub by: &'a Text,
    pub reason: &'a Text,
    /// None: until a person ends it.
    pub until: Option<TimeMs>,
}

/// A drain under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Drain {
    pub started_at: TimeMs,
    /// When the rest is forced; none: never.
    pub deadline_at: Option<TimeMs>,
    /// All allocations are stopped at once.
    pub force: bool,
    /// Leave system jobs running.
    pub ignore_system: bool,
    /// Who drains: an operator's name or a service's.
    pub owner: Text,
    /// A service may cancel it without an operator.
    pub cancelable: bool,
}

/// How far a drain came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum DrainStatus {
    Draining,
    /// Nothing was left to move.
    Complete,
    /// An operator ended it before.
    Canceled,
}

impl DrainStatus {
    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Draining => "draining",
            Self::Complete => "complete",
            Self::Canceled => "canceled",
        }
    }
}

/// The last drain of a node, kept over its end.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct LastDrain {
    pub started_at: TimeMs,
    /// When it was changed last, or ended.
    pub updated_at: TimeMs,
    /// Invariant: `Draining` exactly while the node has a drain.
    pub status: DrainStatus,
    /// What users noted about it, last at its end if they did then.
    pub meta: BTreeMap<Text, Text>,
}

/// Resources and ports of a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct NodeResources {
    /// Of the whole machine.
    pub total: Resources,
    /// Not available to tasks.
    pub reserved: Resources,
    /// Ports that tasks do not get, sorted.
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
    pub detected: bool,
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
    pub version: Text,
    pub start: AgentStart,
}

/// One start of an agent.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct AgentStart {
    /// Another one at each start; all zero: the agent has none, as one of many simulated nodes.
    pub nonce: [u8; 16],
    /// Set by the server that takes the registration: the address of the agent of another start,
    /// which lives. Empty in every row, because such a registration is refused.
    pub rival: Text,
}

/// The instance that a node is, with what its row says of new work.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeInstance {
    pub id: InstanceId,
    /// The instance is given work: not held, not draining, not shut down.
    pub open: bool,
}

/// Something that happened to a node, shown to people.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeEvent {
    pub at: TimeMs,
    pub index: Index,
    pub message: Text,
    /// The end of a drain that did not wait for all to leave: its deadline had passed.
    pub deadline_reached: bool,
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
    /// Log time of the last missed heartbeat.
    pub missed_at: TimeMs,
    /// The node was ready when it was missed.
    pub was_ready: bool,
    /// Index of the last allocation sync; `Ready` after a miss needs a later one.
    pub synced_index: Index,
    /// None in an incarnation that has not reported yet.
    pub check: Option<CheckResult>,
    /// Sequence of the last readiness report taken; older ones are ignored.
    pub check_sequence: u64,
    pub health: Health,
    /// As the agent's last heartbeat said it.
    pub shortage: Option<Shortage>,
    /// Newest last, at most `limits::NODE_FAILURES_MAX`; emptied by a strike.
    pub failures: Vec<NodeFailure>,
    /// Not yet forgiven.
    pub strikes: u32,
    /// Log time of the last strike; 0: never.
    pub strike_at: TimeMs,
    pub eligibility: Eligibility,
    pub drain: Option<Drain>,
    /// None: the node was never drained.
    pub last_drain: Option<LastDrain>,
    /// The instance that this node is.
    pub instance: Option<NodeInstance>,
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

    fn key(&self) -> NodeId {
        self.id
    }
}

impl Node {
    /// A node in its first incarnation that initializes, with nothing known but what it says.
    pub fn new(id: NodeId, description: Arc<NodeDescription>) -> Self {
        Self {
            id,
            secret: [0; 16],
            identity: [0; 16],
            incarnation: 1,
            class: computed_class(&description),
            description,
            liveness: Liveness::Initializing,
            liveness_at: 0,
            ready_deadline_at: 0,
            lost_at: None,
            missed_index: 0,
            missed_at: 0,
            was_ready: false,
            synced_index: 0,
            check: None,
            check_sequence: 0,
            health: Health::Ok,
            shortage: None,
            failures: Vec::new(),
            strikes: 0,
            strike_at: 0,
            eligibility: Eligibility::default(),
            drain: None,
            last_drain: None,
            instance: None,
            affinity_key: "".into(),
            create_index: 0,
            modify_index: 0,
            events: Vec::new(),
        }
    }

    /// What a person said who took it out of service; none: nobody did. The ineligibility that a
    /// drain leaves is no such word.
    pub fn set_aside(&self) -> Option<SetAside<'_>> {
        if let Some(one) = self.suspension().filter(|one| one.reason == SuspendReason::Operator) {
            let Suspension { by, detail, until, .. } = one;
            return Some(SetAside { word: "suspended", by, reason: detail, until: *until });
        }
        let Eligibility { ineligible, by_drain, by, reason, .. } = &self.eligibility;
        let is_word = *ineligible && !by_drain;
        is_word.then_some(SetAside { word: "made ineligible", by, reason, until: None })
    }

    /// Whether new work may be placed here.
    pub fn is_schedulable(&self) -> bool {
        self.liveness == Liveness::Ready
            && self.health == Health::Ok
            && self.shortage.is_none()
            && !self.eligibility.ineligible
            && self.drain.is_none()
            && self.instance.is_none_or(|instance| instance.open)
    }

    /// The suspension in force.
    pub fn suspension(&self) -> Option<&Suspension> {
        match &self.health {
            Health::Ok => None,
            Health::Suspended(suspension) => Some(suspension),
        }
    }

    /// Whether the agent is to run its readiness check until it succeeds.
    pub fn wants_check(&self) -> bool {
        match self.suspension().map(|suspension| suspension.reason) {
            Some(SuspendReason::ReadinessFatal) => false,
            Some(reason) if reason.ends_with_success() => true,
            Some(_) | None => self.liveness == Liveness::Initializing,
        }
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
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tombstone {
    pub node: NodeId,
    /// Last incarnation.
    pub incarnation: u64,
    /// When it was reaped.
    pub at: TimeMs,
    pub health: Health,
    pub failures: Vec<NodeFailure>,
    pub strikes: u32,
    pub strike_at: TimeMs,
}

impl Row for Tombstone {
    type Key = NodeId;

    fn key(&self) -> NodeId {
        self.node
    }
}

/// An ineligible node that is not registered: it was reaped, or never came. Only an operator ends
/// that.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OfflineNode {
    pub node: NodeId,
    /// Empty: it was never registered.
    pub name: Text,
    /// What it will get.
    pub eligibility: Eligibility,
}

impl Row for OfflineNode {
    type Key = NodeId;

    fn key(&self) -> NodeId {
        self.node
    }
}

/// Many ready nodes that went silent at the same time: more likely a network than so many machines.
/// While it lasts nothing is reaped. The row of the last one stays.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MassLoss {
    pub since: TimeMs,
    /// Those that went silent, sorted; more may come while it lasts.
    pub nodes: Vec<NodeId>,
    /// None: it lasts.
    pub end: Option<MassLossEnd>,
    pub create_index: Index,
    pub modify_index: Index,
}

/// How a mass loss ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MassLossEnd {
    pub at: TimeMs,
    /// The operator who said that the nodes are lost; empty: the servers.
    pub by: Text,
}

impl Row for MassLoss {
    type Key = ();

    fn key(&self) {}
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
