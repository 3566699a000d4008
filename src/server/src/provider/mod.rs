//! What a provider of machines is, and what every one is called through.
//!
//! What is asked and answered is in `elastic::call`. Every create has a key, and a second one with
//! the same key answers with the first machine. Must never decide anything: which machines are
//! wanted, and what an answer means, is the business of `elastic`.

mod throttle;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use elastic::call::{Answer, Operation, ProviderError};
use fsm::Text;
use futures_util::future::BoxFuture;

pub use self::throttle::{Tally, Throttled};

/// The providers of a server's configuration, by name.
pub type Providers = BTreeMap<Text, Arc<Throttled>>;

/// What makes the machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProviderKind {
    /// Agents on the server's own host, each a process.
    Process {
        /// Where their folders are. Servers of one host may share it.
        directory: PathBuf,
        /// The program that they run; none: the server's own.
        binary: Option<PathBuf>,
    },
    /// A program that speaks the protocol of docs/providers.md.
    Exec {
        /// Program and arguments. Invariant: not empty.
        command: Vec<String>,
    },
}

/// What a call needs to know besides what is asked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// Id of the cluster: the value of `elastic::call::TAG_CLUSTER` on its machines.
    pub cluster: Text,
    /// gRPC addresses of the servers, `host:port`, for the agents of new machines.
    pub servers: Vec<String>,
    /// How long an answer is of use.
    pub time_left: Duration,
    /// Ids of machines that are known to be this cluster's. A list has those also when they lost
    /// the tag of the cluster.
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

    /// Takes over how it is configured now, for the calls that follow; a program is started anew.
    /// Returns `false` if that needs a restart of the server.
    fn reload(&self, kind: &ProviderKind) -> bool;

    /// Its machines are on the host of the server that makes them: another server of the cluster
    /// finds them only on the same host.
    fn needs_one_host(&self) -> bool {
        false
    }
}
