//! Logging of a process: to standard error, for people or as JSON.

use tracing_subscriber::EnvFilter;

use crate::config::{LogConfig, LogFormat, LogLevel};

/// Starts logging; `RUST_LOG` overrides the configured level.
pub fn start(config: &LogConfig) {
    let level = match config.level {
        LogLevel::Error => "error",
        LogLevel::Warn => "warn",
        LogLevel::Info => "info",
        LogLevel::Debug => "debug",
        LogLevel::Trace => "trace",
    };
    // openraft warns ten times a second about a peer that is down; what matters of it is logged here as well.
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        let quiet = if matches!(config.level, LogLevel::Trace) { "debug" } else { "error" };
        // Thousands of simulated allocations are for those who ask for them.
        let simulated = match config.level {
            LogLevel::Debug | LogLevel::Trace => "info",
            LogLevel::Error | LogLevel::Warn | LogLevel::Info => "warn",
        };
        EnvFilter::new(format!(
            "{level},openraft={quiet},quorate::agent::simulate={simulated},sled=warn,h2=warn,hyper=warn,tower=warn"
        ))
    });
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
    let started = match config.format {
        LogFormat::Human => builder.with_target(false).with_ansi(colours).try_init(),
        LogFormat::Json => builder.json().try_init(),
    };
    // A second start in one process keeps the first subscriber.
    drop(started);
}
