//! Configuration of servers and agents: TOML file < environment < flags, parsed once into a
//! validated value.
//!
//! ```text
//! file.toml ──┐
//! QUORATE__… ─┼─► Document (flat: dotted key → value, origin) ─► ServerConfig | AgentConfig
//! --flags ────┘       unknown key, wrong type: error                 wrong value: error
//! ```
//! Every error says where the value came from (file and line, variable, or flag), the key, the
//! value, and what is allowed. Must never read a file other than the one named, guess an address,
//! or hand out a value that was not validated.

mod agent;
mod document;
mod provider;
mod server;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;

use ground::{
    address::Address,
    telemetry::{LogConfig, LogFormat, LogLevel},
};

pub use agent::AgentConfig;
pub use document::{ConfigError, Document, Kind, Origin, Schema};
pub use provider::ProviderConfig;
pub use server::{ServerConfig, TelemetryConfig};

/// Variables that begin with this set configuration keys: `QUORATE__RAFT__PRESET` sets
/// `raft.preset`.
pub const ENVIRONMENT_PREFIX: &str = "QUORATE__";

/// Longest name of a server, agent, region or datacenter, in bytes.
pub const NAME_BYTES_MAX: usize = 128;

/// Where the values of one configuration come from, weakest first.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The TOML file, if one was named.
    pub file: Option<PathBuf>,
    /// Environment variables; those without [`ENVIRONMENT_PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Flags of the command line, strongest.
    pub flags: Vec<Flag>,
}

impl Sources {
    /// The named file, the environment of this process, and `flags`.
    ///
    /// Variables that are not UTF-8 are ignored: no key of ours can be set by them.
    pub fn from_process(file: Option<PathBuf>, flags: Vec<Flag>) -> Self {
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self { file, environment, flags }
    }
}

/// One configuration key set on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flag {
    /// The flag as typed, for messages: `--data-dir`.
    pub name: &'static str,
    /// The dotted key it sets: `data_dir`.
    pub key: &'static str,
    /// The value as typed; lists are separated by commas.
    pub value: String,
}

impl Flag {
    /// A flag that was given, or nothing.
    pub fn given(
        name: &'static str,
        key: &'static str,
        value: Option<impl ToString>,
    ) -> Option<Self> {
        value.map(|value| Self { name, key, value: value.to_string() })
    }
}

/// What is logged and how: `log_level`, `log_format`.
fn log_config(document: &Document) -> Result<LogConfig, ConfigError> {
    let level = document.choice(
        "log_level",
        &[
            ("info", LogLevel::Info),
            ("error", LogLevel::Error),
            ("warn", LogLevel::Warn),
            ("debug", LogLevel::Debug),
            ("trace", LogLevel::Trace),
        ],
    )?;
    let format =
        document.choice("log_format", &[("human", LogFormat::Human), ("json", LogFormat::Json)])?;
    Ok(LogConfig { level, format })
}

/// A name that may stand in paths, tables and metrics.
fn name(document: &Document, key: &str, default: Option<&str>) -> Result<String, ConfigError> {
    const ALLOWED: &str =
        "a name without spaces, control characters, or any of /\\{}=,\", 1 to 128 bytes";
    let Some(text) = document.text(key).or(default) else {
        return Err(document.missing(key, ALLOWED));
    };
    let bad = |letter: char| {
        letter.is_whitespace() || letter.is_control() || "/\\{}=,\"".contains(letter)
    };
    if text.is_empty() || text.len() > NAME_BYTES_MAX || text.contains(bad) {
        return Err(document.invalid(key, ALLOWED));
    }
    Ok(text.to_owned())
}

fn data_dir(document: &Document) -> Result<PathBuf, ConfigError> {
    const ALLOWED: &str = "the folder that holds this process's state";
    match document.text("data_dir") {
        None => Err(document.missing("data_dir", ALLOWED)),
        Some(text) if text.trim().is_empty() => Err(document.invalid("data_dir", ALLOWED)),
        Some(text) => Ok(PathBuf::from(text)),
    }
}

/// An address to listen on: an IP address and a port, where port 0 lets the system choose.
fn listen_address(
    document: &Document,
    key: &str,
    default: SocketAddr,
) -> Result<SocketAddr, ConfigError> {
    let Some(text) = document.text(key) else { return Ok(default) };
    text.parse().map_err(|_| {
        document
            .invalid(key, "IP-address:port to listen on, for example 127.0.0.1:4646 or [::1]:4646")
    })
}

/// A list of addresses without duplicates.
fn addresses(document: &Document, key: &str) -> Result<Vec<Address>, ConfigError> {
    let mut found = Vec::new();
    for text in document.list(key) {
        let address: Address =
            text.parse().map_err(|allowed: String| document.invalid_value(key, text, &allowed))?;
        if found.contains(&address) {
            return Err(document.invalid_value(key, text, "each address at most once"));
        }
        found.push(address);
    }
    Ok(found)
}

/// A table of text values.
fn text_map(document: &Document, key: &str) -> BTreeMap<String, String> {
    document.map(key).into_iter().collect()
}

#[cfg(test)]
mod tests;
