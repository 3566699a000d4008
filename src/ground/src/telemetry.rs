//! Logging of a process: to standard error, for people or as JSON, at a level that can be changed
//! while it runs. Beside it traces, if a collector is configured; without one nothing of them is
//! set up.

mod export;
mod traces;

use std::{
    io::{IsTerminal, stderr},
    sync::{Arc, Mutex, OnceLock, PoisonError, atomic::Ordering},
};

use tracing_subscriber::{
    EnvFilter, Layer, Registry, fmt, layer::SubscriberExt, reload, util::SubscriberInitExt,
    util::TryInitError,
};

use crate::{address::Address, rt::mpsc};
pub use export::{Exporter, Exporting};
use traces::{Counts, Traces};

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// One readable line per event.
    Human,
    /// One JSON object per line.
    Json,
}

/// The least severe level that is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogLevel {
    /// Data at risk, a person must come.
    Error,
    /// Unexpected but handled.
    Warn,
    /// A state change.
    Info,
    /// Per request.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels, the most severe first.
    pub const ALL: [Self; 5] = [Self::Error, Self::Warn, Self::Info, Self::Debug, Self::Trace];

    /// The level's name as `tracing` spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

/// What is logged and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogConfig {
    /// `log_level`, default `info`.
    pub level: LogLevel,
    /// `log_format`, default `human`.
    pub format: LogFormat,
}

/// How the filter of the one subscriber is replaced.
type Reload = dyn Fn(EnvFilter) -> Result<(), tracing_subscriber::reload::Error> + Send + Sync;

/// The logging of this process.
struct Running {
    level: Mutex<LogLevel>,
    reload: Box<Reload>,
    /// None: there are no traces.
    traces: Option<Arc<Counts>>,
}

static RUNNING: OnceLock<Running> = OnceLock::new();

/// Why the level was not changed.
#[derive(Debug, thiserror::Error)]
pub enum LevelError {
    /// There is no such level.
    #[error("the level must be error, warn, info, debug or trace, not \"{0}\"")]
    Unknown(String),
    /// This process does not log through this module.
    #[error("this process has no log whose level could be changed")]
    NotStarted,
    /// The subscriber is gone.
    #[error("the level was not changed")]
    Reload(#[source] tracing_subscriber::reload::Error),
}

/// Starts logging; `RUST_LOG` overrides the configured level.
pub fn start(config: &LogConfig) {
    let filter = initial_filter(*config);
    let builder = fmt().with_env_filter(filter).with_writer(stderr);
    let (started, reload): (_, Box<Reload>) = match config.format {
        LogFormat::Human => {
            let builder = builder.with_target(false).with_ansi(stderr().is_terminal());
            let builder = builder.with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init().is_ok(), Box::new(move |filter| handle.reload(filter)))
        }
        LogFormat::Json => {
            let builder = builder.json().with_filter_reloading();
            let handle = builder.reload_handle();
            (builder.try_init().is_ok(), Box::new(move |filter| handle.reload(filter)))
        }
    };
    keep(started, Running { level: Mutex::new(config.level), reload, traces: None });
}

/// Starts logging, and traces for a collector; `server` is what they say they are from. What is
/// returned sends them once it is started.
pub fn start_with_traces(config: &LogConfig, collector: Address, server: &str) -> Exporter {
    let (spans, ended) = mpsc::channel(export::SPANS_MAX);
    let counts = Arc::new(Counts::default());
    let traces = Traces::new(spans, Arc::clone(&counts));
    let (started, reload) = start_beside(*config, traces);
    let traces = Some(Arc::clone(&counts));
    keep(started.is_ok(), Running { level: Mutex::new(config.level), reload, traces });
    Exporter::new(ended, counts, collector, server)
}

/// The spans of traces are made at every level of the log: each of the two has a filter of its own.
fn start_beside(config: LogConfig, traces: Traces) -> (Result<(), TryInitError>, Box<Reload>) {
    let (filter, handle) = reload::Layer::new(initial_filter(config));
    let lines = fmt::layer().with_writer(stderr);
    let lines = match config.format {
        LogFormat::Human => lines.with_target(false).with_ansi(stderr().is_terminal()).boxed(),
        LogFormat::Json => lines.json().boxed(),
    };
    let traces = traces.with_filter(traces::filter());
    let subscriber = Registry::default().with(traces).with(lines.with_filter(filter));
    (subscriber.try_init(), Box::new(move |filter| handle.reload(filter)))
}

/// A second start in one process keeps the first subscriber.
fn keep(started: bool, running: Running) {
    if started {
        RUNNING.get_or_init(|| running);
    }
}

fn initial_filter(config: LogConfig) -> EnvFilter {
    EnvFilter::try_from_default_env().unwrap_or_else(|_| filter_of(config.level))
}

/// Spans that the collector has taken, and that were dropped; none if there are no traces.
pub fn traced() -> Option<(u64, u64)> {
    let counts = RUNNING.get()?.traces.as_ref()?;
    Some((counts.sent.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed)))
}

/// The level now; none before the start.
pub fn level() -> Option<LogLevel> {
    RUNNING.get().map(|running| *running.level.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Changes the level by its name, until the process ends. It replaces what `RUST_LOG` said.
pub fn set_level(name: &str) -> Result<LogLevel, LevelError> {
    let level = LogLevel::ALL.into_iter().find(|level| level.as_str() == name.to_lowercase());
    let level = level.ok_or_else(|| LevelError::Unknown(name.chars().take(64).collect()))?;
    let running = RUNNING.get().ok_or(LevelError::NotStarted)?;
    let mut known = running.level.lock().unwrap_or_else(PoisonError::into_inner);
    (running.reload)(filter_of(level)).map_err(LevelError::Reload)?;
    *known = level;
    Ok(level)
}

fn filter_of(level: LogLevel) -> EnvFilter {
    // openraft warns ten times a second about a peer that is down; what matters of it is logged
    // here as well. Its `raft` modules are the calls of ours: they return each error that they log,
    // and log as errors that a call was given up or came while Raft stopped. What goes wrong in
    // Raft itself or in storage is logged by other modules.
    let quiet = match level {
        LogLevel::Trace => "openraft=debug",
        LogLevel::Error | LogLevel::Warn | LogLevel::Info | LogLevel::Debug => {
            "openraft=error,openraft::raft=off"
        }
    };
    // Thousands of simulated allocations are for those who ask for them.
    let simulated = match level {
        LogLevel::Debug | LogLevel::Trace => "info",
        LogLevel::Error | LogLevel::Warn | LogLevel::Info => "warn",
    };
    let level = level.as_str();
    EnvFilter::new(format!(
        "{level},{quiet},agent::simulate={simulated},sled=warn,h2=warn,\
         hyper=warn,tower=warn"
    ))
}

#[cfg(test)]
mod tests {
    use tracing::level_filters::{LevelFilter, STATIC_MAX_LEVEL};

    use super::*;

    /// No feature of `tracing` may leave the lines of `debug`, or the spans of traces, out of a
    /// build: then the level could not be changed to it.
    #[test]
    fn lines_of_debug_are_in_every_build() {
        assert!(STATIC_MAX_LEVEL >= LevelFilter::DEBUG);
        let manifest = include_str!("../../../Cargo.toml");
        let levels: Vec<&str> =
            manifest.split('"').filter(|word| word.contains("max_level_")).collect();
        assert_eq!(levels, ["release_max_level_debug"]);
    }

    #[test]
    fn a_level_that_is_not_known_or_cannot_be_set_is_refused() {
        let error = set_level("loud").expect_err("no level");
        assert_eq!(
            error.to_string(),
            "the level must be error, warn, info, debug or trace, not \"loud\""
        );
        assert!(matches!(set_level("DEBUG"), Err(LevelError::NotStarted)));
        assert_eq!(level(), None);
    }
}
