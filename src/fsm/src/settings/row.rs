//! What holds for the whole cluster: node pools, namespaces, and the scheduler configuration.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    id::{Index, Text},
    table::{Row, TableId},
};

/// A node pool. `all` (every node) and `default` always exist.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodePool {
    pub name: Text,
    /// In words.
    pub description: Text,
    pub meta: BTreeMap<Text, Text>,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for NodePool {
    type Key = Text;
    const TABLE: TableId = TableId::NodePools;

    fn key(&self) -> Text {
        self.name.clone()
    }
}

/// A namespace. `default` always exists.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Namespace {
    pub name: Text,
    /// In words.
    pub description: Text,
    pub meta: BTreeMap<Text, Text>,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for Namespace {
    type Key = Text;
    const TABLE: TableId = TableId::Namespaces;

    fn key(&self) -> Text {
        self.name.clone()
    }
}

/// How nodes are ranked by fullness.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Algorithm {
    /// Fill nodes up.
    #[default]
    Binpack,
    /// Prefer empty nodes.
    Spread,
}

/// Cluster-wide settings of the schedulers.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SchedulerConfiguration {
    /// Ranking.
    pub algorithm: Algorithm,
    /// Let tasks use more memory than reserved.
    pub memory_oversubscription: bool,
    /// Refuse job registrations.
    pub reject_job_registration: bool,
    /// Hand out no evaluations.
    pub pause_eval_broker: bool,
    /// Nodes looked at for a group with affinities or spreads (Nomad's
    /// `NodeLimitForFeasibilityChecks`).
    pub node_limit: u32,
    pub create_index: Index,
    pub modify_index: Index,
}

impl Row for SchedulerConfiguration {
    type Key = ();
    const TABLE: TableId = TableId::SchedulerConfiguration;

    fn key(&self) {}
}

impl Default for SchedulerConfiguration {
    fn default() -> Self {
        Self {
            algorithm: Algorithm::Binpack,
            memory_oversubscription: false,
            reject_job_registration: false,
            pause_eval_broker: false,
            node_limit: 100,
            create_index: 0,
            modify_index: 0,
        }
    }
}
