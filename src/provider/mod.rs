//! Providers of machines: what makes, lists and destroys the machines of instance pools.
//!
//! ```text
//!  leader ──Operation──► Throttled ──► process.rs   agents on this host, each a process
//!         ◄──Answer────  (rates,       exec.rs      a program that speaks lines of JSON
//!                         counts)
//! ```
//! What is asked and answered is in `elastic::call`. Every create has a key, and a second one with the same key answers with the first
//! machine. Must never decide anything: which machines are wanted, and what an answer means, is the business of `elastic`.

mod agent_config;
pub mod check;
mod exec;
pub mod process;
mod throttle;

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::ffi::OsStrExt as _,
    process::Command,
    sync::Arc,
    time::Duration,
};

use elastic::call::{Answer, Operation, ProviderError, TAG_CLUSTER, Tags};
use fsm::Text;
use futures_util::future::BoxFuture;

pub use self::throttle::{Tally, Throttled};
use crate::config::{ProviderConfig, ProviderKind};

/// What a call needs to know besides what is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Id of the cluster: the value of `elastic::call::TAG_CLUSTER` on its machines.
    pub cluster: Text,
    /// gRPC addresses of the servers, `host:port`, for the agents of new machines.
    pub servers: Vec<String>,
    /// How long an answer is of use.
    pub time_left: Duration,
    /// Ids of machines that are known to be this cluster's. A list has those also when they lost the tag of the cluster.
    pub known: BTreeSet<Text>,
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

    /// Takes over how it is configured now, for the calls that follow; a program is started anew. Returns `false` if that
    /// needs a restart of the server.
    fn reload(&self, kind: &ProviderKind) -> bool;

    /// Its machines are on the host of the server that makes them: another server of the cluster finds them only on the same host.
    fn needs_one_host(&self) -> bool {
        false
    }
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

/// Variables that begin so set keys of a configuration.
const SETTING_PREFIX: &[u8] = b"QUORATE__";

/// A command without the variables that set keys of this server's own configuration: an agent would take its `data_dir` from them.
fn without_settings(command: &mut Command) -> &mut Command {
    let names = std::env::vars_os().map(|(name, _)| name);
    for name in names.filter(|name| name.as_bytes().starts_with(SETTING_PREFIX)) {
        command.env_remove(name);
    }
    command
}

/// The tags of a machine of a cluster.
fn with_cluster(tags: &Tags, cluster: &str) -> BTreeMap<String, String> {
    let tags = tags.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    tags.chain([(TAG_CLUSTER.to_owned(), cluster.to_owned())]).collect()
}
