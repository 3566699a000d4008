//! Commands about capacity groups.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    command::commands,
    id::{EvaluationId, Index, InstanceId, Text},
};

commands! {
    /// What changes the need for members of capacity groups, and the members.
    CapacityCommand in Capacity:
    // command           applied by             sent by  needs          makes  fresh
    // Nomad lacks it: a word of a source makes and ends machines, as a change of the pool does.
    SetRequirements      set_requirements       Clients  OperatorWrite  -      [];
    ExpireRequirements   expire_requirements    Leader   Internal       -      [];
    DecideCapacity       decide_capacity        Leader   Internal       -      [];
    MoveMembers          move_members           Leader   Internal       -      [evaluation_ids];
}

/// What sources need. Each word replaces all that its source said before; one entry holds the words
/// of many sources.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetRequirements {
    pub words: Vec<Requirements>,
}

/// What one source needs of all groups.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Requirements {
    pub source: Text,
    /// Rises when the source starts anew: its word replaces what it said before at once.
    pub epoch: u64,
    /// Rises with each word of the epoch; an older one is refused.
    pub seq: u64,
    /// How long it holds, ms; none: the shortest time of the groups that it names.
    pub ttl_ms: Option<u64>,
    /// By group; empty: a sign of life.
    pub amounts: BTreeMap<Text, u64>,
}

/// Takes silent sources out of the sums, and forgets sources and groups that nothing is left of.
/// What is not due is left as it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ExpireRequirements {
    pub sources: Vec<Text>,
    /// Groups without requirement and member.
    pub groups: Vec<Text>,
}

/// How much groups are to give.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DecideCapacity {
    pub decisions: Vec<DecidedCapacity>,
}

/// How much a group is to give.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DecidedCapacity {
    pub group: Text,
    pub desired: u64,
    /// The sum that it was made from.
    pub required: u64,
    /// What the predictor made of it, before min and max.
    pub predicted: u64,
    /// What it was made from; older than the last decision's: refused.
    pub requirements_index: Index,
}

/// Drains members of a group, and takes drained ones back.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MoveMembers {
    pub group: Text,
    /// The entry of the decision that it follows; another one: refused.
    pub decision_index: Index,
    pub drain: Vec<InstanceId>,
    pub take_back: Vec<InstanceId>,
    pub evaluation_ids: Vec<EvaluationId>,
}
