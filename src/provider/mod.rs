//! Providers of machines: what makes, lists and destroys the machines of instance pools.
//!
//! ```text
//!  leader ──Operation──► Throttled ──► process.rs   agents on this host, each a process
//!         ◄──Answer────  (rates,       exec.rs      a program that speaks lines of JSON
//!                         counts)
//! ```
//! What is asked and answered is in `elastic::call`. Every create has a key, and a second one with the same key answers with the first
//! machine. Must never decide anything: which machines are wanted, and what an answer means, is the business of `elastic`.

pub mod exec;
pub mod process;
mod throttle;

use std::{sync::Arc, time::Duration};

use elastic::call::{Answer, Create, Operation, ProviderError};
use fsm::{InstanceId, Text};
use futures_util::future::BoxFuture;

pub use self::throttle::{Tally, Throttled};
use crate::config::{ProviderConfig, ProviderKind};

/// What a call needs to know besides what is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Id of the cluster: the value of `elastic::call::TAG_CLUSTER` on its machines. A list has only those.
    pub cluster: Text,
    /// gRPC addresses of the servers, `host:port`, for the agents of new machines.
    pub servers: Vec<String>,
    /// How long an answer is of use.
    pub time_left: Duration,
}

/// Makes, lists and destroys machines.
pub trait Provider: Send + Sync {
    /// Carries out one call. Its answer has the kind of its operation.
    ///
    /// The future may be dropped at any time: what it has begun may then still happen, as after
    /// [`ErrorClass::Transient`](elastic::call::ErrorClass).
    fn call(
        &self,
        operation: Operation,
        context: Context,
    ) -> BoxFuture<'_, Result<Answer, ProviderError>>;
}

/// The provider that a table of the configuration describes. An error says what is wrong with it, for people.
pub fn open(config: &ProviderConfig) -> Result<Arc<Throttled>, String> {
    let inner: Arc<dyn Provider> = match &config.kind {
        ProviderKind::Process { directory, binary } => {
            let opened = process::ProcessProvider::open(directory, binary.clone());
            let fail =
                |error| format!("provider {}: {}: {error}", config.name, directory.display());
            Arc::new(opened.map_err(fail)?)
        }
        ProviderKind::Exec { command } => {
            Arc::new(exec::ExecProvider::new(&config.name, command.clone()))
        }
    };
    Ok(Arc::new(Throttled::new(&config.name, inner)))
}

/// The configuration of the agent of a new machine, but for where it keeps its state.
fn agent_settings(create: &Create, context: &Context) -> launch::Settings {
    let kind = &create.kind;
    let id = create.key.to_string();
    let mut settings = launch::Settings::default();
    settings.set_text("name", &format!("{}-{}", create.pool, id.get(..8).unwrap_or(&id)));
    settings.set_texts("servers", &context.servers);
    settings.set_text("http.address", "127.0.0.1:0");
    settings.set_text("datacenter", &kind.node.datacenter);
    settings.set_text("node_pool", &create.pool);
    if !kind.node.class.is_empty() {
        settings.set_text("node_class", &kind.node.class);
    }
    settings.set("resources.cpu_mhz", kind.cpu);
    settings.set("resources.memory_mb", kind.memory_mb);
    if kind.disk_mb > 0 {
        settings.set("resources.disk_mb", kind.disk_mb);
    }
    for driver in &kind.node.drivers {
        settings.set(&format!("drivers.{driver}"), true);
    }
    if !kind.node.meta.is_empty() {
        let pairs = kind.node.meta.iter();
        let meta: toml::Table = pairs
            .map(|(key, value)| (key.to_string(), toml::Value::String(value.to_string())))
            .collect();
        settings.set("meta", toml::Value::Table(meta));
    }
    settings.set_text("instance.id", &id);
    settings.set_text("instance.token", &InstanceId(create.token).to_string());
    settings
}
