//! The validated settings of an agent. Parsing files, the environment and flags is done elsewhere.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use fsm::node::InstanceProof;

use crate::{
    driver::{DriverEntry, driver_keys},
    session::{
        connection::AddressError,
        readiness::{ReadinessSettings, ScriptedProbe},
    },
};

/// Most simulated nodes in one process.
pub const NODES_MAX: u32 = 20_000;

/// All settings of an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AgentSettings {
    /// Name of the node; the host's name when empty.
    pub name: String,
    /// Region.
    pub region: String,
    /// Datacenter.
    pub datacenter: String,
    /// Node class, free text.
    pub node_class: String,
    /// Node pool.
    pub node_pool: String,
    /// Directory of the agent's state and of its allocations.
    pub data_dir: PathBuf,
    /// RPC addresses of servers (`host:port`), at least one.
    pub servers: Vec<String>,
    /// Address of the agent's HTTP service; port 0 takes a free port.
    pub http_address: SocketAddr,
    /// The address at which others reach `http_address` and the tasks' ports; detected when `None`.
    pub advertise_address: Option<String>,
    /// CPU offered, MHz; fingerprinted when `None`.
    pub cpu_mhz: Option<u64>,
    /// Memory offered, MiB; fingerprinted when `None`.
    pub memory_mb: Option<u64>,
    /// Disk offered, MiB; fingerprinted when `None`.
    pub disk_mb: Option<u64>,
    /// Resources that tasks do not get.
    pub reserved: ReservedResources,
    /// Key-value pairs of the operator's choice, for constraints of jobs.
    pub meta: BTreeMap<String, String>,
    /// Names of the drivers that the node offers.
    pub drivers: Vec<String>,
    /// First dynamic port.
    pub dynamic_port_min: u16,
    /// Last dynamic port.
    pub dynamic_port_max: u16,
    /// Most allocations at a time; 0: no limit.
    pub allocations_max: u32,
    /// If the disk of `data_dir` has fewer free bytes than this, the node takes no new work.
    pub free_bytes_min: u64,
    /// How many ended allocations keep their directories.
    pub ended_allocations_max: usize,
    /// Stop the tasks when the agent is asked to end. They do not fail: the next start of the agent
    /// starts them again, in the same allocations.
    pub stop_tasks_on_exit: bool,
    /// Run this many simulated nodes instead of one real node.
    pub simulate: Option<u32>,
    /// What simulated nodes report when they check their readiness ([`ScriptedProbe::parse`]).
    pub simulate_readiness: Option<String>,
    /// How the machine's readiness is checked. `None`: the node is ready as soon as its statuses
    /// are known.
    pub readiness: Option<ReadinessSettings>,
    /// The instance of an instance pool that this machine is.
    pub instance: Option<InstanceProof>,
    /// The binary that runs executors; this process's own when `None`.
    pub executor_binary: Option<PathBuf>,
    /// Timeout of a call to a server.
    pub rpc_timeout: Duration,
}

/// Resources that tasks do not get.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ReservedResources {
    /// CPU, MHz.
    pub cpu_mhz: u64,
    /// Memory, MiB.
    pub memory_mb: u64,
    /// Disk, MiB.
    pub disk_mb: u64,
    /// Ports.
    pub ports: Vec<u16>,
}

impl AgentSettings {
    /// Default settings, for an agent with this data directory and these servers.
    pub fn new(data_dir: impl Into<PathBuf>, servers: Vec<String>) -> Self {
        Self {
            name: String::new(),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
            node_class: String::new(),
            node_pool: "default".to_owned(),
            data_dir: data_dir.into(),
            servers,
            http_address: SocketAddr::from(([127, 0, 0, 1], 0)),
            advertise_address: None,
            cpu_mhz: None,
            memory_mb: None,
            disk_mb: None,
            reserved: ReservedResources::default(),
            meta: BTreeMap::new(),
            drivers: vec!["raw_exec".to_owned(), "mock".to_owned()],
            dynamic_port_min: 20_000,
            dynamic_port_max: 32_000,
            allocations_max: 0,
            free_bytes_min: 128 << 20,
            ended_allocations_max: 50,
            stop_tasks_on_exit: false,
            simulate: None,
            simulate_readiness: None,
            readiness: None,
            instance: None,
            executor_binary: None,
            rpc_timeout: Duration::from_secs(5),
        }
    }

    /// Checks the settings.
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        if self.servers.is_empty() {
            return Err(AddressError::None.into());
        }
        if self.dynamic_port_min == 0 || self.dynamic_port_min > self.dynamic_port_max {
            return Err(SettingsError::PortRange(self.dynamic_port_min, self.dynamic_port_max));
        }
        for driver in &self.drivers {
            if DriverEntry::named(driver).is_none() {
                return Err(SettingsError::UnknownDriver { name: driver.clone() });
            }
        }
        if let Some(nodes) = self.simulate
            && !(1..=NODES_MAX).contains(&nodes)
        {
            return Err(SettingsError::Simulate(nodes));
        }
        if let Some(script) = &self.simulate_readiness {
            ScriptedProbe::parse(script).map_err(SettingsError::SimulateReadiness)?;
        }
        Ok(())
    }
}

fn known_drivers() -> String {
    driver_keys().map(|(name, _)| name).collect::<Vec<_>>().join(", ")
}

/// Why settings are refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// The servers' addresses.
    #[error(transparent)]
    Servers(#[from] AddressError),
    /// Bad range of dynamic ports.
    #[error("dynamic ports {0}..={1} are not a range of ports")]
    PortRange(u16, u16),
    /// No such driver.
    #[error("unknown driver `{name}` (known: {known})", known = known_drivers())]
    UnknownDriver {
        /// The name as it was given.
        name: String,
    },
    /// Too many or too few simulated nodes.
    #[error("cannot simulate {0} nodes (1 to 20000)")]
    Simulate(u32),
    /// The script of simulated readiness does not parse.
    #[error("simulate_readiness: {0}")]
    SimulateReadiness(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let good = AgentSettings::new("x", vec!["127.0.0.1:4647".to_owned()]);
        assert_eq!(good.validate(), Ok(()));
        let bad = AgentSettings { servers: vec![], ..good.clone() };
        assert_eq!(bad.validate(), Err(AddressError::None.into()));
        let bad = AgentSettings { dynamic_port_min: 9, dynamic_port_max: 8, ..good.clone() };
        assert_eq!(bad.validate(), Err(SettingsError::PortRange(9, 8)));
        let bad = AgentSettings { drivers: vec!["docker".to_owned()], ..good.clone() };
        assert_eq!(bad.validate(), Err(SettingsError::UnknownDriver { name: "docker".to_owned() }));
        let bad = AgentSettings { simulate: Some(0), ..good };
        assert_eq!(bad.validate(), Err(SettingsError::Simulate(0)));
    }
}
