//! Instance pools and their instances.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    capacity::{CapacityGroup, Member},
    id::{AllocationId, Index, InstanceId, JobKey, NodeId, Text, TimeMs},
    table::Row,
};

/// A pool of machines of one provider. It feeds the node pool of its name.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InstancePool {
    pub name: Text,
    /// The provider's name in the servers' configuration.
    pub provider: Text,
    /// Instances that are kept without demand.
    pub min: u32,
    /// Most instances, those that are being made included.
    pub max: u32,
    /// Types that cost up to this many thousandths of the cheapest that fits may be taken; from
    /// 1,000.
    pub price_factor_milli: u32,
    /// How long an instance may be idle, ms.
    pub idle_timeout_ms: u64,
    /// From the intent until its agent has registered, ms.
    pub boot_timeout_ms: u64,
    /// How long its node may be down or suspended, ms.
    pub probe_timeout_ms: u64,
    /// Instances that are made at a time; 0: no limit.
    pub max_concurrent_creates: u32,
    /// Instances that are asked for in an hour; 0: no limit.
    pub max_creates_per_hour: u32,
    /// What all instances may cost in an hour, millionths of the currency; 0: no limit.
    pub max_price_micro: u64,
    /// After so many failed boots in a row, one instance is made at a time; 0: never.
    pub protect_after: u32,
    /// A machine that has served for so long ends the backoff of its type, ms.
    pub backoff_reset_ms: u64,
    /// By name.
    pub types: BTreeMap<Text, Arc<InstanceType>>,
    /// Capacity groups that it feeds, by name.
    pub groups: BTreeMap<Text, Arc<CapacityGroup>>,
    /// No instance is made or shut down by machine while it is set.
    pub paused: Option<Pause>,
    pub create_index: Index,
    pub modify_index: Index,
}

/// Who paused a pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Pause {
    /// As the client gave it.
    pub by: Text,
    pub reason: Text,
    pub at: TimeMs,
}

/// A kind of machine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct InstanceType {
    pub name: Text,
    /// As the provider calls it.
    pub provider_type: Text,
    /// MHz that tasks may use.
    pub cpu: u64,
    /// MiB that tasks may use.
    pub memory_mb: u64,
    /// MiB that tasks may use; 0: what its agent finds.
    pub disk_mb: u64,
    /// Price of an hour, millionths of the currency.
    pub price_micro: u64,
    /// Allocations that it takes at a time; 0: no limit.
    pub max_allocations: u32,
    /// The provider may take it back at any time.
    pub preemptible: bool,
    /// Types that share a quota at the provider; empty: none.
    pub quota_group: Text,
    /// As the provider calls it; empty: its own default.
    pub image: Text,
    pub node: DeclaredNode,
}

/// The node that a machine of a type will be.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct DeclaredNode {
    pub datacenter: Text,
    pub class: Text,
    pub drivers: Vec<Text>,
    pub attributes: BTreeMap<Text, Text>,
    pub meta: BTreeMap<Text, Text>,
}

impl Row for InstancePool {
    type Key = Text;

    fn key(&self) -> Text {
        self.name.clone()
    }
}

/// What operators want of an instance.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
pub enum Behavior {
    /// It is given work, and goes when it idles.
    #[default]
    Run,
    /// It is given no work, and no machine shuts it down.
    Hold,
    /// It is given no work, and goes when nothing runs on it.
    Drain,
}

impl Behavior {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Run, Self::Hold, Self::Drain];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Hold => "hold",
            Self::Drain => "drain",
        }
    }
}

/// How far an instance has come. What it is doing is derived from its node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum InstanceState {
    /// The intent is committed; the provider may have been asked, and may have made it.
    Requested,
    /// The provider has made it; its agent has not registered.
    Booting,
    /// A node is bound to it.
    Bound,
    /// The provider is asked to destroy it until it is known to be gone.
    ShuttingDown,
}

impl InstanceState {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Requested, Self::Booting, Self::Bound, Self::ShuttingDown];
}

/// Why an instance is shut down.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum ShutdownCause {
    /// Nothing ran on it for the pool's idle timeout.
    Idle,
    /// It drains, and nothing runs on it.
    Drained,
    /// There are more than the pool may have, or another type is wanted and a limit is in the way.
    Shrink,
    /// Its create did not succeed in time.
    Expired,
    /// Its agent did not register in time, or the provider says that it is broken.
    BootFailed,
    /// Its node was down or suspended for the pool's probe timeout.
    ProbeFailed,
    /// It was found at the provider, and no row stands for it.
    Unknown,
    Operator,
    /// Its capacity group drained it, and the drain is over.
    Released,
}

impl ShutdownCause {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Idle,
        Self::Drained,
        Self::Shrink,
        Self::Expired,
        Self::BootFailed,
        Self::ProbeFailed,
        Self::Unknown,
        Self::Operator,
        Self::Released,
    ];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Drained => "drained",
            Self::Shrink => "shrink",
            Self::Expired => "expired",
            Self::BootFailed => "boot-failed",
            Self::ProbeFailed => "probe-failed",
            Self::Unknown => "unknown",
            Self::Operator => "operator",
            Self::Released => "released",
        }
    }

    /// It is not allowed while an allocation on the instance's node has not ended.
    pub const fn needs_empty(self) -> bool {
        match self {
            Self::Idle | Self::Drained | Self::Shrink => true,
            Self::Expired
            | Self::BootFailed
            | Self::ProbeFailed
            | Self::Unknown
            | Self::Operator
            // A drain has a deadline.
            | Self::Released => false,
        }
    }
}

/// An instance on its way out.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Shutdown {
    pub cause: ShutdownCause,
    /// In words.
    pub reason: Text,
    /// The operator; empty: the servers.
    pub by: Text,
    pub at: TimeMs,
    /// Destroys that the provider refused or did not answer.
    pub attempts: u32,
    /// What it said last; empty: nothing.
    pub last_error: Text,
}

/// An instance: one row from the intent to the end of its machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Instance {
    /// Of the intent; also the key of its create and a tag of its machine.
    pub id: InstanceId,
    /// The agent shows it when it registers. Never shown to people.
    pub token: [u8; 16],
    pub pool: Text,
    pub provider: Text,
    /// As it was when the intent was made.
    pub kind: Arc<InstanceType>,
    pub state: InstanceState,
    pub behavior: Behavior,
    /// Who said so last, and why; empty: nobody.
    pub behavior_by: Text,
    pub behavior_reason: Text,
    /// When what still runs on it is stopped, if it drains; none: never.
    pub drain_deadline_at: Option<TimeMs>,
    /// The job that it was made for first; none: for the pool's minimum.
    pub wanted_by: Option<JobKey>,
    /// What it is to a capacity group; none: it is a member of none.
    pub member: Option<Member>,
    /// Empty: not known.
    pub provider_id: Text,
    pub address: Text,
    /// What a list must be about to say anything of it; empty: not known.
    pub scope: Text,
    pub node: Option<NodeId>,
    pub requested_at: TimeMs,
    /// When the provider had made it; 0: not yet.
    pub made_at: TimeMs,
    /// When its node was bound; 0: not yet.
    pub bound_at: TimeMs,
    /// When its node was ready first; 0: never.
    pub ready_at: TimeMs,
    /// When it was known that it does not come to serve; 0: it has served, or may.
    pub failed_at: TimeMs,
    /// By when it must be bound.
    pub deadline_at: TimeMs,
    /// When a list, an answer or its agent last showed that it exists.
    pub seen_at: TimeMs,
    /// Lists of its scope in a row that did not have it.
    pub missing: u32,
    /// When the last allocation on it ended, or it was bound; 0: never.
    pub last_busy_at: TimeMs,
    /// The last allocation that was placed on it.
    pub last_allocation: Option<AllocationId>,
    pub shutdown: Option<Shutdown>,
    /// What the provider said of it last; empty: nothing.
    pub last_words: Text,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for Instance {
    type Key = InstanceId;

    fn key(&self) -> InstanceId {
        self.id
    }
}

impl Instance {
    /// Whether its node may be given work.
    pub fn is_open(&self) -> bool {
        self.state == InstanceState::Bound
            && self.behavior == Behavior::Run
            && self.member_drain().is_none()
    }
}

/// What a limit stops.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
pub enum LimitScope {
    /// Every create in the pool.
    All,
    /// Types of a quota group, preemptible or not.
    QuotaGroup { group: Text, preemptible: bool },
    /// One type, by the provider's name.
    Type(Text),
}

/// Why a provider makes no more machines for a while.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum LimitClass {
    RateLimited,
    Quota,
    NoCapacity,
    /// It failed in a way that a person has to look at.
    Fatal,
}

impl LimitClass {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::RateLimited, Self::Quota, Self::NoCapacity, Self::Fatal];

    /// The name used in the API.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimited => "rate limit",
            Self::Quota => "quota",
            Self::NoCapacity => "no capacity",
            Self::Fatal => "refused",
        }
    }
}

/// A provider's refusal: no creates of its scope until it is over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProviderLimit {
    pub pool: Text,
    pub scope: LimitScope,
    pub class: LimitClass,
    pub since: TimeMs,
    pub until: TimeMs,
    /// It ends before its time when fewer instances than this are in its scope; 0: it does not.
    pub below: u32,
    /// Lacks of capacity in this scope one after the other; 0: it is about something else.
    pub level: u32,
    /// In the provider's words.
    pub detail: Text,
    pub modify_index: Index,
}

impl Row for ProviderLimit {
    type Key = (Text, LimitScope);

    fn key(&self) -> (Text, LimitScope) {
        (self.pool.clone(), self.scope.clone())
    }
}

impl crate::table::Key for (Text, LimitScope) {
    fn write(&self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        out.extend_from_slice(&length.to_be_bytes());
        out.extend_from_slice(self.0.as_bytes());
        match &self.1 {
            LimitScope::All => out.push(0),
            LimitScope::QuotaGroup { group, preemptible } => {
                out.extend_from_slice(&[1, u8::from(*preemptible)]);
                out.extend_from_slice(group.as_bytes());
            }
            LimitScope::Type(name) => {
                out.push(2);
                out.extend_from_slice(name.as_bytes());
            }
        }
    }
}

/// The last list of a provider that changed anything. It is there from the first intent on, and
/// stays: a create may come to an end when its instance and its pool have gone, so what was asked
/// for a machine once is listed for good.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ProviderList {
    pub provider: Text,
    /// Rises with each; an older one is refused. 0: none changed anything yet.
    pub epoch: u64,
    pub at: TimeMs,
}

impl Row for ProviderList {
    type Key = Text;

    fn key(&self) -> Text {
        self.provider.clone()
    }
}

/// A job that stayed blocked although an idle machine of a type was there: the type does not help
/// it. It is no demand for these types for a time that doubles, or until the job or the pool
/// changes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Unhelped {
    pub job: JobKey,
    /// Modify index of the job's spec that this is about.
    pub job_modify_index: Index,
    pub pool: Text,
    /// Invariant: the modify index of the pool as it is now; the row goes when the pool changes.
    pub pool_modify_index: Index,
    /// Names of the types, sorted.
    pub types: Vec<Text>,
    pub at: TimeMs,
    /// Until when it holds: the provider's machines may have become others.
    pub until: TimeMs,
    /// How often it was found so, as job and pool are now; never 0.
    pub level: u32,
}

impl Row for Unhelped {
    type Key = JobKey;

    fn key(&self) -> JobKey {
        self.job.clone()
    }
}
