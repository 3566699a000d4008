//! The configuration of a node agent.
//!
//! Owns its keys, defaults and rules. Must never enable a driver that was not asked for: `raw_exec`
//! runs commands without isolation.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use fsm::InstanceId;
use ground::{address::Address, telemetry::LogConfig};

use super::{
    ConfigError, Document, Kind, Schema, Sources, addresses, data_dir, listen_address, log_config,
    name, text_map,
};

/// What an interval or a timeout may be, ms: up to an hour.
const MS_ALLOWED: std::ops::RangeInclusive<u64> = 1..=60 * 60 * 1000;
/// Most simulated nodes of one agent process.
const SIMULATED_NODES_MAX: u64 = 20_000;

/// The keys of an agent's file, but for those of the drivers.
const KEYS: Schema = &[
    ("name", Kind::Text),
    ("region", Kind::Text),
    ("datacenter", Kind::Text),
    ("node_class", Kind::Text),
    ("node_pool", Kind::Text),
    ("data_dir", Kind::Text),
    ("servers", Kind::List),
    ("simulate", Kind::Number),
    ("simulate_readiness", Kind::Text),
    ("stop_tasks_on_exit", Kind::Flag),
    ("log_level", Kind::Text),
    ("log_format", Kind::Text),
    ("http.address", Kind::Text),
    ("resources.cpu_mhz", Kind::Number),
    ("resources.memory_mb", Kind::Number),
    ("resources.disk_mb", Kind::Number),
    ("resources.max_allocations", Kind::Number),
    ("reserved.cpu_mhz", Kind::Number),
    ("reserved.memory_mb", Kind::Number),
    ("reserved.disk_mb", Kind::Number),
    ("limits.free_bytes_min", Kind::Number),
    ("readiness.command", Kind::List),
    ("readiness.interval_ms", Kind::Number),
    ("readiness.timeout_ms", Kind::Number),
    ("readiness.after_task", Kind::Text),
    ("meta", Kind::Map),
    ("ports.dynamic_min", Kind::Number),
    ("ports.dynamic_max", Kind::Number),
    ("instance.id", Kind::Text),
    ("instance.token", Kind::Text),
];

/// All keys of an agent's file.
pub(super) fn schema() -> Schema {
    static ALL: LazyLock<Vec<(&str, Kind)>> = LazyLock::new(|| {
        let drivers = agent::driver_keys().map(|(_, key)| (key, Kind::Flag));
        KEYS.iter().copied().chain(drivers).collect()
    });
    &ALL
}

/// A validated agent configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentConfig {
    /// The node's name, default the host's name.
    pub name: String,
    /// The region, default `global`.
    pub region: String,
    /// The datacenter, default `dc1`.
    pub datacenter: String,
    /// The node class; empty if not set.
    pub node_class: String,
    /// The node pool, default `default`.
    pub node_pool: String,
    /// The folder of this agent's state and of its allocations.
    pub data_dir: PathBuf,
    /// gRPC addresses of servers; any of them leads to the leader. Invariant: not empty.
    pub servers: Vec<Address>,
    /// Simulated nodes in this process instead of one real node.
    pub simulate: Option<NonZeroU32>,
    /// What simulated nodes find when they check whether they are ready.
    pub simulate_readiness: Option<String>,
    /// How the machine is checked before it takes work.
    pub readiness: Option<ReadinessConfig>,
    /// Allocations at a time; 0: no limit.
    pub max_allocations: u32,
    /// Free bytes on the disk of `data_dir` below which no new work is taken.
    pub free_bytes_min: u64,
    /// Stop the tasks with the agent, without failing them; they start again with it. Default
    /// false: tasks outlive the agent.
    pub stop_tasks_on_exit: bool,
    /// What is logged and how.
    pub log: LogConfig,
    /// Where the agent's HTTP API listens; port 0 (the default) lets the system choose.
    pub http_address: SocketAddr,
    /// What the node offers instead of what was found.
    pub resources: ResourcesConfig,
    /// What is kept from the scheduler.
    pub reserved: ResourcesConfig,
    /// Free metadata of the node.
    pub meta: BTreeMap<String, String>,
    /// `[drivers]`: the names of those that are switched on. Every driver is off by default.
    pub drivers: Vec<String>,
    /// Range of dynamic ports.
    pub ports: PortsConfig,
    /// The instance of a pool that this machine is; none: it is of no pool of machines.
    pub instance: Option<InstanceConfig>,
}

/// `[resources]` and `[reserved]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourcesConfig {
    /// CPU, in MHz.
    pub cpu_mhz: Option<u64>,
    /// Memory, in MiB.
    pub memory_mb: Option<u64>,
    /// Disk, in MiB.
    pub disk_mb: Option<u64>,
}

/// `[readiness]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReadinessConfig {
    /// Program and arguments. Invariant: not empty.
    pub command: Vec<String>,
    pub interval_ms: u64,
    pub timeout_ms: u64,
    pub after_task: AfterTask,
}

/// After which allocations the machine is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterTask {
    Never,
    Failed,
    Always,
}

impl ReadinessConfig {
    fn from_document(document: &Document) -> Result<Option<Self>, ConfigError> {
        let command: Vec<String> =
            document.list("readiness.command").into_iter().map(str::to_owned).collect();
        let interval_ms = document.number_within("readiness.interval_ms", 5_000, MS_ALLOWED)?;
        let timeout_ms = document.number_within("readiness.timeout_ms", 10_000, MS_ALLOWED)?;
        let words = [
            ("failed", AfterTask::Failed),
            ("never", AfterTask::Never),
            ("always", AfterTask::Always),
        ];
        let after_task = document.choice("readiness.after_task", &words)?;
        let keys = ["readiness.interval_ms", "readiness.timeout_ms"];
        let has_others = keys.iter().any(|key| document.number(key).is_some())
            || document.text("readiness.after_task").is_some();
        match command.first().map(String::as_str) {
            None if has_others => Err(document.missing(
                "readiness.command",
                "a list of a program and its arguments, [\"/bin/true\"]",
            )),
            None => Ok(None),
            Some("") => {
                Err(document.invalid("readiness.command", "a list that begins with a program"))
            }
            Some(_) => Ok(Some(Self { command, interval_ms, timeout_ms, after_task })),
        }
    }
}

/// `[instance]`: what a provider of machines tells the agent that it starts.
#[derive(Clone, PartialEq, Eq)]
pub struct InstanceConfig {
    pub id: InstanceId,
    /// The servers take the agent for the instance because it knows this.
    pub token: [u8; 16],
}

impl std::fmt::Debug for InstanceConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InstanceConfig").field("id", &self.id).finish_non_exhaustive()
    }
}

/// `[ports]`: both ends belong to the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortsConfig {
    /// Lowest dynamic port.
    pub dynamic_min: u16,
    /// Highest dynamic port.
    pub dynamic_max: u16,
}

impl AgentConfig {
    /// Reads and validates file, environment and flags.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        Self::from_document(&Document::load(schema(), sources)?)
    }

    /// Validates the text of one file; `path` is for messages.
    pub fn parse(path: &Path, source: &str) -> Result<Self, ConfigError> {
        let mut document = Document::load(schema(), &Sources::default())?;
        document.add_file(path, source)?;
        Self::from_document(&document)
    }

    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let servers = addresses(document, "servers")?;
        if servers.is_empty() {
            return Err(document
                .missing("servers", "a list of gRPC addresses of servers, [\"127.0.0.1:4647\"]"));
        }
        let node_class = match document.text("node_class") {
            None | Some("") => String::new(),
            Some(_) => name(document, "node_class", None)?,
        };
        let simulate = document.number_within("simulate", 0, 0..=SIMULATED_NODES_MAX)?;
        let simulate = u32::try_from(simulate).expect("at most 20,000");
        Ok(Self {
            name: name(document, "name", Some(&host_name()))?,
            region: name(document, "region", Some("global"))?,
            datacenter: name(document, "datacenter", Some("dc1"))?,
            node_class,
            node_pool: name(document, "node_pool", Some("default"))?,
            data_dir: data_dir(document)?,
            servers,
            simulate: NonZeroU32::new(simulate),
            simulate_readiness: document.text("simulate_readiness").map(str::to_owned),
            readiness: ReadinessConfig::from_document(document)?,
            max_allocations: u32::try_from(document.number_within(
                "resources.max_allocations",
                0,
                0..=u64::from(u32::MAX),
            )?)
            .expect("within the bounds"),
            free_bytes_min: document.number_within(
                "limits.free_bytes_min",
                128 << 20,
                0..=1 << 60,
            )?,
            stop_tasks_on_exit: document.flag("stop_tasks_on_exit").unwrap_or(false),
            log: log_config(document)?,
            http_address: listen_address(
                document,
                "http.address",
                SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            )?,
            resources: ResourcesConfig {
                cpu_mhz: positive(document, "resources.cpu_mhz")?,
                memory_mb: positive(document, "resources.memory_mb")?,
                disk_mb: positive(document, "resources.disk_mb")?,
            },
            reserved: ResourcesConfig {
                cpu_mhz: document.number("reserved.cpu_mhz"),
                memory_mb: document.number("reserved.memory_mb"),
                disk_mb: document.number("reserved.disk_mb"),
            },
            meta: text_map(document, "meta"),
            drivers: agent::driver_keys()
                .filter(|(_, key)| document.flag(key) == Some(true))
                .map(|(name, _)| name.to_owned())
                .collect(),
            ports: PortsConfig::from_document(document)?,
            instance: InstanceConfig::from_document(document, simulate)?,
        })
    }
}

/// The host's name, or `localhost` where the system's is not UTF-8 or empty.
fn host_name() -> String {
    let system = rustix::system::uname();
    match system.nodename().to_str() {
        Ok(text) if !text.is_empty() => text.to_owned(),
        Ok(_) | Err(_) => "localhost".to_owned(),
    }
}

fn positive(document: &Document, key: &str) -> Result<Option<u64>, ConfigError> {
    match document.number(key) {
        Some(0) => Err(document.invalid(key, "1 or more; leave it out to use what the host has")),
        other => Ok(other),
    }
}

impl InstanceConfig {
    fn from_document(document: &Document, simulated: u32) -> Result<Option<Self>, ConfigError> {
        const ALLOWED: &str = "32 hexadecimal digits, with or without dashes as a UUID has them";
        let (id, token) = match (document.text("instance.id"), document.text("instance.token")) {
            (None, None) => return Ok(None),
            (Some(_), None) => return Err(document.missing("instance.token", ALLOWED)),
            (None, Some(_)) => return Err(document.missing("instance.id", ALLOWED)),
            (Some(id), Some(token)) => (id, token),
        };
        if simulated > 0 {
            return Err(document.invalid("instance.id", "no instance together with simulate"));
        }
        let id = id.parse().map_err(|_| document.invalid("instance.id", ALLOWED))?;
        // A token is a secret: the message does not repeat it.
        let token: InstanceId = token
            .parse()
            .map_err(|_| document.invalid_value("instance.token", "(not shown)", ALLOWED))?;
        Ok(Some(Self { id, token: token.0 }))
    }
}

impl PortsConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let port = |key, default| {
            let number = document.number_within(key, default, 1..=u64::from(u16::MAX))?;
            Ok(u16::try_from(number).expect("within the bounds"))
        };
        let ports = Self {
            dynamic_min: port("ports.dynamic_min", 20_000)?,
            dynamic_max: port("ports.dynamic_max", 32_000)?,
        };
        if ports.dynamic_max < ports.dynamic_min {
            return Err(document.invalid_value(
                "ports.dynamic_max",
                ports.dynamic_max,
                &format!("at least ports.dynamic_min ({})", ports.dynamic_min),
            ));
        }
        Ok(ports)
    }
}
