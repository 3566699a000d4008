//! What crosses the boundary to a provider of machines: calls, answers and errors. Drivers (folder
//! `provider`) do the calls; everything else here only decides them.

use std::collections::BTreeMap;

use fsm::{Instance, InstanceId, Text, pool::InstanceType};

/// Tag with the id of the cluster that a machine belongs to. A list has only machines of one.
pub const TAG_CLUSTER: &str = "quorate-cluster";
/// Tag with the id of the instance, which is the idempotency key of its create.
pub const TAG_INSTANCE: &str = "quorate-instance";
/// Tag with the pool's name.
pub const TAG_POOL: &str = "quorate-pool";
/// Tag with the name of the type in the pool.
pub const TAG_TYPE: &str = "quorate-type";
/// Tag with what operators said: `run`, `hold` or `drain`. A hint for people; the state is right.
pub const TAG_BEHAVIOR: &str = "quorate-behavior";

/// Tags of a machine.
pub type Tags = BTreeMap<Text, Text>;

/// The tags that the machine of an instance should have, besides that of its cluster.
pub fn tags(row: &Instance) -> Tags {
    let Instance { id, pool, kind, behavior, .. } = row;
    let pairs: [(&str, Text); 4] = [
        (TAG_INSTANCE, id.to_string().into()),
        (TAG_POOL, pool.clone()),
        (TAG_TYPE, kind.name.clone()),
        (TAG_BEHAVIOR, behavior.name().into()),
    ];
    pairs.into_iter().map(|(name, value)| (name.into(), value)).collect()
}

/// A call to a provider.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// The provider's name in the configuration.
    pub provider: Text,
    /// Log time by which an answer is of use.
    pub deadline_at: u64,
    pub operation: Operation,
}

/// What a provider is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    Create(Box<Create>),
    /// All machines of this cluster.
    List,
    Destroy {
        instance: InstanceId,
        provider_id: Text,
    },
    /// Replaces all tags.
    SetTags {
        instance: InstanceId,
        provider_id: Text,
        tags: Tags,
    },
    Describe {
        instance: InstanceId,
        provider_id: Text,
    },
}

/// A machine that is wanted. A second create with the same key answers with the first machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Create {
    /// The instance; also the idempotency key.
    pub key: InstanceId,
    /// The agent shows it when it registers.
    pub token: [u8; 16],
    pub pool: Text,
    /// What to make, and the node that its agent has to be.
    pub kind: InstanceType,
    pub tags: Tags,
}

/// A machine as its provider describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    pub provider_id: Text,
    /// Empty: none yet.
    pub address: Text,
    /// What the list that had it speaks for: a host, a region.
    pub scope: Text,
    pub tags: Tags,
}

/// All machines of this cluster that a provider can see in one scope.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listing {
    /// It says nothing of machines of another scope.
    pub scope: Text,
    pub machines: Vec<Machine>,
}

/// What a destroy did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destroyed {
    /// The machine is gone, or there was none.
    Gone,
    /// It will go; lists tell when.
    Asked,
}

/// How far a machine has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MachineState {
    Booting,
    /// Its boot check has succeeded.
    Up,
    /// It has stopped, or its boot check has failed for good.
    Broken,
    /// There is none of this id.
    Gone,
}

/// What a provider says of one machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Description {
    pub state: MachineState,
    /// Empty: none yet.
    pub address: Text,
    /// For people: why it is like that, at most [`DETAIL_BYTES_MAX`].
    pub words: Text,
}

/// A provider's answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    Created(Machine),
    Listed(Listing),
    Destroyed(Destroyed),
    Tagged,
    Described(Description),
}

/// Kinds of failure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum ErrorClass {
    /// Asked too often.
    RateLimited,
    /// The account may have no more. No machine was made.
    Quota,
    /// The provider has no more of these now. No machine was made.
    NoCapacity,
    /// Unknown outcome: a machine may have been made. Worth trying again.
    Transient,
    /// It will fail again until a person changes something. No machine was made.
    Fatal,
}

impl ErrorClass {
    /// All classes.
    pub const ALL: [Self; 5] =
        [Self::RateLimited, Self::Quota, Self::NoCapacity, Self::Transient, Self::Fatal];

    /// Its name in metrics, logs and the protocol of programs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RateLimited => "rate-limited",
            Self::Quota => "quota",
            Self::NoCapacity => "no-capacity",
            Self::Transient => "transient",
            Self::Fatal => "fatal",
        }
    }
}

/// What a refusal is about; of [`ErrorClass::Quota`] and [`ErrorClass::NoCapacity`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum ErrorScope {
    /// Every create in the pool.
    #[default]
    All,
    /// The quota group of the type that was asked for, preemptible or not as it was.
    QuotaGroup,
    /// The type that was asked for.
    Type,
}

/// Why a call failed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{}: {detail}", class.name())]
pub struct ProviderError {
    pub class: ErrorClass,
    pub scope: ErrorScope,
    /// When to ask again, ms from now; none: the provider does not say.
    pub retry_after_ms: Option<u64>,
    /// In the provider's words, at most [`DETAIL_BYTES_MAX`].
    pub detail: Text,
}

/// Longest [`ProviderError::detail`] and [`Description::words`], bytes.
pub const DETAIL_BYTES_MAX: usize = 256;

impl ProviderError {
    /// An error of that class about every create, with the beginning of this detail.
    pub fn new(class: ErrorClass, detail: &str) -> Self {
        let (scope, retry_after_ms) = (ErrorScope::All, None);
        Self { class, scope, retry_after_ms, detail: clip(detail) }
    }
}

/// The first [`DETAIL_BYTES_MAX`] bytes of a text, or fewer where a character would be cut.
pub fn clip(text: &str) -> Text {
    text[..text.floor_char_boundary(DETAIL_BYTES_MAX)].into()
}

impl Operation {
    /// Its name in metrics, logs and the protocol of programs.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Create(_) => "create",
            Self::List => "list",
            Self::Destroy { .. } => "destroy",
            Self::SetTags { .. } => "set-tags",
            Self::Describe { .. } => "describe",
        }
    }
}
