//! Providers of machines: what makes, lists and destroys the machines of instance pools.
//!
//! ```text
//!  leader ──Operation──► Throttled ──► process.rs   agents on this host, each a process
//!         ◄──Answer────  (rates,       exec.rs      a program that speaks lines of JSON
//!                         counts)
//! ```
//! What is asked and answered is in `elastic::call`. Every create has a key, and a second one with
//! the same key answers with the first machine. Must never decide anything: which machines are
//! wanted, and what an answer means, is the business of `elastic`.

mod agent_config;
pub mod check;
mod exec;
pub mod process;

use std::{collections::BTreeMap, os::unix::ffi::OsStrExt as _, process::Command, sync::Arc};

use elastic::call::{TAG_CLUSTER, Tags};
use server::provider::{Context, Provider, ProviderKind, Throttled};

use crate::config::ProviderConfig;

/// The provider that a table of the configuration describes. An error says what is wrong with it,
/// for people.
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

/// A command without the variables that set keys of this server's own configuration: an agent would
/// take its `data_dir` from them.
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
