//! What operators set for the whole cluster: scheduler configuration, node pools, namespaces.

mod commands;
mod row;
mod transitions;

pub use self::{
    commands::{
        DeleteNamespace, DeleteNodePool, SetSchedulerConfiguration, SettingsCommand,
        UpsertNamespace, UpsertNodePool,
    },
    row::{Algorithm, Namespace, NodeLife, NodePool, Preemption, SchedulerConfiguration},
};
pub(crate) use transitions::check_name;
