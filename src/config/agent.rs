//! The configuration of a node agent.
//!
//! Owns its keys, defaults and rules. Must never enable a driver that was not asked for: `raw_exec`
//! runs commands without isolation.

use std::{path::Path, sync::LazyLock, time::Duration};

use agent::{AfterTask, AgentSettings, NODES_MAX, ReadinessSettings, ReservedResources};
use fsm::{InstanceId, node::InstanceProof};
use ground::telemetry::LogConfig;

use super::{
    ConfigError, Document, Kind, Schema, Sources, addresses, data_dir, listen_address, log_config,
    name, text_map,
};

/// What an interval or a timeout may be, ms: up to an hour.
const MS_ALLOWED: std::ops::RangeInclusive<u64> = 1..=60 * 60 * 1000;

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
    /// What is logged and how.
    pub log: LogConfig,
    /// What the agent is told. Every driver is off unless it is switched on, and the name is the
    /// host's unless there is another.
    pub settings: AgentSettings,
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
        Ok(Self { log: log_config(document)?, settings: settings(document)? })
    }
}

fn settings(document: &Document) -> Result<AgentSettings, ConfigError> {
    let servers = addresses(document, "servers")?;
    if servers.is_empty() {
        return Err(document
            .missing("servers", "a list of gRPC addresses of servers, [\"127.0.0.1:4647\"]"));
    }
    let servers = servers.iter().map(ToString::to_string).collect();
    let default = AgentSettings::new(data_dir(document)?, servers);
    let node_class = match document.text("node_class") {
        None | Some("") => String::new(),
        Some(_) => name(document, "node_class", None)?,
    };
    let number = |key, otherwise, most| document.number_within(key, otherwise, 0..=most);
    let allocations_max = number("resources.max_allocations", 0, u64::from(u32::MAX))?;
    let simulate = number("simulate", 0, u64::from(NODES_MAX))?;
    let simulate = u32::try_from(simulate).expect("within the bounds");
    let (dynamic_port_min, dynamic_port_max) =
        ports(document, (default.dynamic_port_min, default.dynamic_port_max))?;
    let reserved = |key| document.number(key).unwrap_or(0);
    Ok(AgentSettings {
        name: name(document, "name", Some(&host_name()))?,
        region: name(document, "region", Some(&default.region))?,
        datacenter: name(document, "datacenter", Some(&default.datacenter))?,
        node_class,
        node_pool: name(document, "node_pool", Some(&default.node_pool))?,
        simulate: Some(simulate).filter(|nodes| *nodes > 0),
        simulate_readiness: document.text("simulate_readiness").map(str::to_owned),
        readiness: readiness(document)?,
        allocations_max: u32::try_from(allocations_max).expect("within the bounds"),
        free_bytes_min: number("limits.free_bytes_min", default.free_bytes_min, 1 << 60)?,
        stop_tasks_on_exit: document.flag("stop_tasks_on_exit").unwrap_or(false),
        http_address: listen_address(document, "http.address", default.http_address)?,
        cpu_mhz: positive(document, "resources.cpu_mhz")?,
        memory_mb: positive(document, "resources.memory_mb")?,
        disk_mb: positive(document, "resources.disk_mb")?,
        reserved: ReservedResources {
            cpu_mhz: reserved("reserved.cpu_mhz"),
            memory_mb: reserved("reserved.memory_mb"),
            disk_mb: reserved("reserved.disk_mb"),
            ports: Vec::new(),
        },
        meta: text_map(document, "meta"),
        drivers: agent::driver_keys()
            .filter(|(_, key)| document.flag(key) == Some(true))
            .map(|(name, _)| name.to_owned())
            .collect(),
        dynamic_port_min,
        dynamic_port_max,
        instance: instance(document, simulate)?,
        ..default
    })
}

/// `[readiness]`.
fn readiness(document: &Document) -> Result<Option<ReadinessSettings>, ConfigError> {
    let command: Vec<String> =
        document.list("readiness.command").into_iter().map(str::to_owned).collect();
    let interval_ms = document.number_within("readiness.interval_ms", 5_000, MS_ALLOWED)?;
    let timeout_ms = document.number_within("readiness.timeout_ms", 10_000, MS_ALLOWED)?;
    let words =
        [("failed", AfterTask::Failed), ("never", AfterTask::Never), ("always", AfterTask::Always)];
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
        Some("") => Err(document.invalid("readiness.command", "a list that begins with a program")),
        Some(_) => Ok(Some(ReadinessSettings {
            command,
            interval: Duration::from_millis(interval_ms),
            timeout: Duration::from_millis(timeout_ms),
            after_task,
        })),
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

/// `[instance]`: what a provider of machines tells the agent that it starts.
fn instance(document: &Document, simulated: u32) -> Result<Option<InstanceProof>, ConfigError> {
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
    Ok(Some(InstanceProof { id, token: token.0 }))
}

/// `[ports]`: the lowest and the highest dynamic port; both belong to the range.
fn ports(document: &Document, default: (u16, u16)) -> Result<(u16, u16), ConfigError> {
    let port = |key, default| {
        let number = document.number_within(key, u64::from(default), 1..=u64::from(u16::MAX))?;
        Ok(u16::try_from(number).expect("within the bounds"))
    };
    let lowest = port("ports.dynamic_min", default.0)?;
    let highest = port("ports.dynamic_max", default.1)?;
    if highest < lowest {
        return Err(document.invalid_value(
            "ports.dynamic_max",
            highest,
            &format!("at least ports.dynamic_min ({lowest})"),
        ));
    }
    Ok((lowest, highest))
}
