//! Nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{FlatResources, Nothing};

/// A node in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeStub {
    /// The host of its HTTP address.
    pub address: String,
    /// Null unless `os` is asked for.
    pub attributes: Option<BTreeMap<String, String>>,
    pub create_index: u64,
    pub datacenter: String,
    pub drain: bool,
    /// By name.
    pub drivers: BTreeMap<String, DriverInfo>,
    pub health: NodeHealthStub,
    /// Always null.
    pub host_volumes: Nothing,
    #[serde(rename = "ID")]
    pub id: String,
    pub last_drain: Option<LastDrain>,
    pub modify_index: u64,
    pub name: String,
    pub node_class: String,
    pub node_pool: String,
    /// Null unless `resources` is asked for.
    pub node_resources: Option<NodeResources>,
    pub readiness: NodeReadiness,
    /// Null unless `resources` is asked for.
    pub reserved_resources: Option<ReservedResources>,
    /// `eligible` or `ineligible`.
    pub scheduling_eligibility: String,
    pub shortage: NodeShortage,
    /// `initializing`, `ready`, `disconnected` or `down`.
    pub status: String,
    /// Why it gets no work, in one sentence; empty if nothing is in the way.
    pub status_description: String,
    /// The version of Nomad whose interface it speaks.
    pub version: String,
}

/// A node.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Node {
    pub attributes: BTreeMap<String, String>,
    /// Always empty.
    #[serde(rename = "CSIControllerPlugins")]
    pub csi_controller_plugins: BTreeMap<String, Value>,
    /// Always empty.
    #[serde(rename = "CSINodePlugins")]
    pub csi_node_plugins: BTreeMap<String, Value>,
    /// Always empty.
    pub cgroup_parent: String,
    pub computed_class: String,
    pub create_index: u64,
    pub datacenter: String,
    pub drain: bool,
    /// Null unless it drains.
    pub drain_strategy: Option<DrainStrategy>,
    /// By name.
    pub drivers: BTreeMap<String, DriverInfo>,
    pub eligibility: NodeEligibility,
    /// Oldest first.
    pub events: Vec<NodeEvent>,
    #[serde(rename = "HTTPAddr")]
    pub http_addr: String,
    pub health: NodeHealth,
    /// Always null.
    pub host_networks: Nothing,
    /// Always null.
    pub host_volumes: Nothing,
    #[serde(rename = "ID")]
    pub id: String,
    pub incarnation: u64,
    /// The instance of a pool that it is.
    pub instance: Option<NodeInstance>,
    pub last_drain: Option<LastDrain>,
    /// Always empty.
    pub links: BTreeMap<String, String>,
    pub meta: BTreeMap<String, String>,
    pub modify_index: u64,
    pub name: String,
    pub node_class: String,
    /// 0: as many as fit.
    pub node_max_allocs: u32,
    pub node_pool: String,
    pub node_resources: NodeResources,
    pub readiness: NodeReadiness,
    /// RFC 3339.
    pub ready_deadline: String,
    pub reserved: FlatResources,
    pub reserved_resources: ReservedResources,
    pub resources: FlatResources,
    /// `eligible` or `ineligible`.
    pub scheduling_eligibility: String,
    /// Always empty: nobody is shown it.
    #[serde(rename = "SecretID")]
    pub secret_id: String,
    pub shortage: NodeShortage,
    /// `initializing`, `ready`, `disconnected` or `down`.
    pub status: String,
    /// Why it gets no work, in one sentence; empty if nothing is in the way.
    pub status_description: String,
    /// Seconds since the Unix epoch.
    pub status_updated_at: u64,
    /// Always `false`.
    #[serde(rename = "TLSEnabled")]
    pub tls_enabled: bool,
}

/// A driver on a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DriverInfo {
    pub attributes: BTreeMap<String, String>,
    pub detected: bool,
    pub health_description: String,
    pub healthy: bool,
    /// RFC 3339.
    pub update_time: String,
}

/// A drain under way.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct DrainStrategy {
    pub by: String,
    /// Always `false`: an actor is what a client said.
    pub by_verified: bool,
    /// Nanoseconds from the start; −1: at once; 0: never forced.
    pub deadline: i64,
    /// RFC 3339; null: never.
    pub force_deadline: Option<String>,
    pub ignore_system_jobs: bool,
    /// RFC 3339.
    pub started_at: String,
}

/// The last drain.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct LastDrain {
    /// Always empty: without access control nobody has an accessor.
    #[serde(rename = "AccessorID")]
    pub accessor_id: String,
    pub meta: Option<BTreeMap<String, String>>,
    /// RFC 3339.
    pub started_at: String,
    pub status: String,
    /// RFC 3339.
    pub updated_at: String,
}

/// An event of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeEvent {
    pub create_index: u64,
    pub details: Option<BTreeMap<String, String>>,
    pub message: String,
    /// `Cluster` or `Drain`.
    pub subsystem: String,
    /// RFC 3339.
    pub timestamp: String,
}

/// The instance of a pool that a node is.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeInstance {
    #[serde(rename = "ID")]
    pub id: String,
    /// Whether it takes new work.
    pub open: bool,
}

/// Health in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeHealthStub {
    pub detail: String,
    pub reason: String,
    /// `ok` or `suspended`.
    pub status: String,
    /// RFC 3339.
    pub until: String,
}

/// Health with all that it comes from.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeHealth {
    pub by: String,
    /// Always `false`: an actor is what a client said.
    pub by_verified: bool,
    pub detail: String,
    pub failures: Vec<NodeFailure>,
    pub reason: String,
    /// RFC 3339.
    pub since: String,
    /// `ok` or `suspended`.
    pub status: String,
    /// RFC 3339.
    pub strike_at: String,
    pub strikes: u32,
    /// RFC 3339.
    pub until: String,
}

/// A failure that was the node's fault.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeFailure {
    /// RFC 3339.
    pub at: String,
    pub detail: String,
    pub job: String,
    pub namespace: String,
}

/// The last result of the readiness check.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeReadiness {
    /// RFC 3339.
    pub at: String,
    pub reason: String,
    pub status: String,
}

/// What the machine is short of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeShortage {
    /// Empty: of nothing.
    pub reason: String,
    /// RFC 3339.
    pub since: String,
}

/// Whether an operator allows new work.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeEligibility {
    /// RFC 3339.
    pub at: String,
    pub by: String,
    pub by_drain: bool,
    /// Always `false`: an actor is what a client said.
    pub by_verified: bool,
    pub index: u64,
    pub ineligible: bool,
    pub reason: String,
}

/// What a node has.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeResources {
    pub cpu: NodeCpu,
    /// Always null.
    pub devices: Nothing,
    pub disk: NodeDisk,
    pub max_dynamic_port: u16,
    pub memory: NodeMemory,
    pub min_dynamic_port: u16,
    pub networks: Option<Vec<NodeNetworkOld>>,
    pub node_networks: Option<Vec<NodeNetwork>>,
    pub processors: Processors,
}

/// What a node keeps from tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedResources {
    pub cpu: ReservedCpu,
    pub disk: NodeDisk,
    pub memory: NodeMemory,
    pub networks: ReservedPorts,
}

/// Processor time of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeCpu {
    /// MHz.
    pub cpu_shares: u64,
    /// Always null.
    pub reservable_cpu_cores: Nothing,
    pub total_cpu_cores: u32,
}

/// Processor time that a node keeps from tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedCpu {
    /// MHz.
    pub cpu_shares: u64,
    /// Always null.
    pub reserved_cpu_cores: Nothing,
}

/// Disk of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeDisk {
    #[serde(rename = "DiskMB")]
    pub disk_mb: u64,
}

/// Memory of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeMemory {
    #[serde(rename = "MemoryMB")]
    pub memory_mb: u64,
}

/// Ports that a node keeps from tasks.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct ReservedPorts {
    /// Numbers with commas between them.
    pub reserved_host_ports: String,
}

/// The network of a node, in the form that Nomad had first.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeNetworkOld {
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
    /// Always null.
    pub dynamic_ports: Nothing,
    #[serde(rename = "IP")]
    pub ip: String,
    #[serde(rename = "MBits")]
    pub mbits: u32,
    pub mode: String,
    /// Always null.
    pub reserved_ports: Nothing,
}

/// The network of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeNetwork {
    pub addresses: Vec<NodeAddress>,
    /// Always empty.
    pub device: String,
    /// Always empty.
    pub mac_address: String,
    pub mode: String,
    /// Mbit/s.
    pub speed: u32,
}

/// An address of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct NodeAddress {
    pub address: String,
    pub alias: String,
    /// `ipv4` or `ipv6`.
    pub family: String,
    /// Always empty.
    pub gateway: String,
    /// Always empty.
    pub reserved_ports: String,
}

/// Processors of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Processors {
    pub topology: Topology,
}

/// Cores, all of the same kind and speed and on one memory node: more is not known of them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Topology {
    pub cores: Vec<Core>,
    pub distances: Vec<Vec<u32>>,
    pub nodes: Vec<u32>,
    /// Always 0.
    pub override_total_compute: u64,
    /// Always 0. The name is Nomad's.
    pub override_withold_compute: u64,
}

/// A core.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct Core {
    /// MHz.
    pub base_speed: u64,
    pub disable: bool,
    pub grade: u32,
    pub guess_speed: u64,
    #[serde(rename = "ID")]
    pub id: u32,
    pub max_speed: u64,
    #[serde(rename = "NodeID")]
    pub node_id: u32,
    #[serde(rename = "SocketID")]
    pub socket_id: u32,
}

/// An ineligible node that is not registered.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct OfflineNode {
    /// RFC 3339.
    pub at: String,
    pub by: String,
    /// Always `false`: an actor is what a client said.
    pub by_verified: bool,
    #[serde(rename = "ID")]
    pub id: String,
    pub index: u64,
    pub name: String,
    pub reason: String,
}

/// Many nodes that were lost together.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct MassLoss {
    pub active: bool,
    pub count: usize,
    pub create_index: u64,
    /// RFC 3339.
    pub ended_at: String,
    pub ended_by: String,
    /// Always `false`: an actor is what a client said.
    pub ended_by_verified: bool,
    pub modify_index: u64,
    /// Ids.
    pub nodes: Vec<String>,
    /// RFC 3339.
    pub since: String,
    /// Those that have not come back and are not forgotten.
    pub still_down: usize,
}
