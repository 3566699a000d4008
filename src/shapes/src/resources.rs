//! Resources of allocations, tasks and nodes, in the forms that Nomad has had for them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Nothing;

/// The form that resources had before there were tasks in it; clients still read it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct FlatResources {
    /// MHz.
    #[serde(rename = "CPU")]
    pub cpu: u64,
    /// Always 0.
    pub cores: u32,
    /// Always null.
    pub devices: Nothing,
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    /// Always 0.
    #[serde(rename = "IOPS")]
    pub iops: u32,
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    /// 0: as `MemoryMB`; −1: no limit.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
    /// Always null.
    #[serde(rename = "NUMA")]
    pub numa: Nothing,
    pub networks: Option<Vec<AllocatedNetwork>>,
    /// Always 0.
    #[serde(rename = "SecretsMB")]
    pub secrets_mb: u64,
}

/// The network of a group, with the ports that it got.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedNetwork {
    /// Always empty.
    #[serde(rename = "CIDR")]
    pub cidr: String,
    /// Always null.
    #[serde(rename = "CNI")]
    pub cni: Nothing,
    /// Always null.
    #[serde(rename = "DNS")]
    pub dns: Nothing,
    /// Always empty.
    pub device: String,
    pub dynamic_ports: Option<Vec<NetworkPort>>,
    /// Always empty.
    pub hostname: String,
    /// The address of the node.
    #[serde(rename = "IP")]
    pub ip: String,
    /// Always 0.
    #[serde(rename = "MBits")]
    pub mbits: u32,
    pub mode: String,
    pub reserved_ports: Option<Vec<NetworkPort>>,
}

/// A port in a network.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NetworkPort {
    /// Always `default`.
    pub host_network: String,
    pub label: String,
    pub to: u16,
    pub value: u16,
}

/// What an allocation has of its node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedResources {
    pub shared: SharedResources,
    /// By task; null for a task that is no hook.
    pub task_lifecycles: BTreeMap<String, Option<TaskLifecycle>>,
    pub tasks: BTreeMap<String, AllocatedTask>,
}

/// When a task runs beside the others.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct TaskLifecycle {
    /// `prestart`, `poststart` or `poststop`.
    pub hook: String,
    pub sidecar: bool,
}

/// What the tasks of an allocation share.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SharedResources {
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
    pub networks: Option<Vec<AllocatedNetwork>>,
    pub ports: Option<Vec<AllocatedPort>>,
}

/// A port of an allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedPort {
    #[serde(rename = "HostIP")]
    pub host_ip: String,
    pub label: String,
    pub to: u16,
    pub value: u16,
}

/// What a task has of its node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedTask {
    pub cpu: AllocatedCpu,
    /// Always null.
    pub devices: Nothing,
    pub memory: AllocatedMemory,
    /// Always null.
    pub networks: Nothing,
}

/// Processor time of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedCpu {
    /// MHz.
    pub cpu_shares: u64,
    /// Always null.
    pub reserved_cores: Nothing,
}

/// Memory of a task.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct AllocatedMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
    /// 0: as `MemoryMB`; −1: no limit.
    #[serde(rename = "MemoryMaxMB")]
    pub memory_max_mb: i64,
    /// Always 0.
    #[serde(rename = "SecretsMB")]
    pub secrets_mb: u64,
}
