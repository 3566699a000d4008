//! Reading the configuration again while a server or an agent runs: the level of the log and the
//! programs of providers take effect; of what else differs the log says that it waits for a
//! restart.
//!
//! A configuration that is wrong changes nothing.

use ground::{telemetry, telemetry::LogLevel};

use crate::config::{AgentConfig, ConfigError, ServerConfig, Sources};

/// The configuration of a server, as it was read last.
pub struct ServerReload {
    sources: Sources,
    /// As the process started: what has not taken effect since differs from it.
    started: ServerConfig,
}

impl ServerReload {
    /// Reads the configuration for the first time.
    pub fn load(sources: Sources) -> Result<Self, ConfigError> {
        let started = ServerConfig::load(&sources)?;
        Ok(Self { sources, started })
    }

    /// The configuration that the server started with.
    pub fn started(&self) -> &ServerConfig {
        &self.started
    }

    /// Reads it again. `reload_provider` takes over what a provider of that name is configured
    /// with, and answers whether it could.
    pub(crate) fn again(&self, reload_provider: impl Fn(&crate::config::ProviderConfig) -> bool) {
        let Some(config) = read(ServerConfig::load(&self.sources)) else { return };
        set_level(config.log.level);
        let mut waiting = self.started.differences(&config);
        let names = |config: &ServerConfig| -> Vec<String> {
            config.providers.iter().map(|provider| provider.name.clone()).collect()
        };
        let taken = config.providers.iter().all(reload_provider);
        if names(&config) != names(&self.started) || !taken {
            waiting.push("provider");
        }
        say(&waiting);
    }
}

/// The configuration of an agent, as it was read last.
pub(crate) struct AgentReload {
    sources: Sources,
    started: AgentConfig,
}

impl AgentReload {
    pub(crate) fn load(sources: Sources) -> Result<Self, ConfigError> {
        let started = AgentConfig::load(&sources)?;
        Ok(Self { sources, started })
    }

    pub(crate) fn started(&self) -> &AgentConfig {
        &self.started
    }

    pub(crate) fn again(&self) {
        let Some(config) = read(AgentConfig::load(&self.sources)) else { return };
        set_level(config.log.level);
        let taken = AgentConfig { log: self.started.log, ..config.clone() };
        let mut waiting = Vec::new();
        if config.log.format != self.started.log.format {
            waiting.push("log_format");
        }
        if taken != self.started {
            waiting.push("other settings of the agent");
        }
        say(&waiting);
    }
}

fn read<C>(read: Result<C, ConfigError>) -> Option<C> {
    read.inspect_err(|error| {
        tracing::warn!(%error, "the configuration is wrong: nothing of it takes effect");
    })
    .ok()
}

fn set_level(level: LogLevel) {
    match telemetry::set_level(level.as_str()) {
        Ok(level) => tracing::info!(level = level.as_str(), "the configuration was read again"),
        Err(error) => tracing::warn!(%error, "the level of the log stays as it is"),
    }
}

/// Says what differs from the start of the process and has no effect yet.
fn say(waiting: &[&str]) {
    if !waiting.is_empty() {
        let keys = waiting.join(", ");
        tracing::warn!(keys, "what was changed here takes effect at the next start only");
    }
}
