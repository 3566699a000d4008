//! Commands about the scheduler configuration, node pools and namespaces.

use serde::{Deserialize, Serialize};

use super::{Namespace, NodePool, SchedulerConfiguration};
use crate::{
    command::commands,
    id::{Index, Text},
};

commands! {
    /// What changes the settings of the cluster.
    SettingsCommand in Settings:
    // command                  applied by                     sent by  needs           makes  fresh
    SetSchedulerConfiguration   set_scheduler_configuration    Clients  OperatorWrite   -      [];
    UpsertNodePool              upsert_node_pool               Clients  NodePoolWrite   -      [];
    DeleteNodePool              delete_node_pool               Clients  NodePoolDelete  -      [];
    UpsertNamespace             upsert_namespace               Clients  Management      -      [];
    DeleteNamespace             delete_namespace               Clients  Management      -      [];
}

/// Changes the scheduler configuration.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SetSchedulerConfiguration {
    pub configuration: SchedulerConfiguration,
    /// The caller said nothing of node life (Nomad's clients do not know it): it stays as it is.
    pub keep_node_life: bool,
    /// Compare-and-set on its modify index.
    pub enforce_index: Option<Index>,
}

/// Creates or changes a node pool.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpsertNodePool {
    /// The pool; its indexes are set when it is stored.
    pub pool: NodePool,
}

/// Deletes a node pool that nothing uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeleteNodePool {
    /// The pool's name.
    pub name: Text,
}

/// Creates or changes a namespace.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpsertNamespace {
    /// The namespace; its indexes are set when it is stored.
    pub namespace: Namespace,
}

/// Deletes a namespace that nothing uses.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DeleteNamespace {
    /// The namespace's name.
    pub name: Text,
}
