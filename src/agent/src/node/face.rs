//! What an agent's HTTP service needs to know of the agent. The service itself is passed in at the
//! start, because this package does not know HTTP.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;

use crate::{
    node::{local::LocalNode, shell::Shared},
    session::{connection::Servers, meta::NodeMeta},
};

/// Serves an agent's HTTP until it is dropped.
pub type Serve = fn(Face) -> BoxFuture<'static, ()>;

/// What an agent's HTTP service shows.
pub struct Face {
    /// The socket that accepts its clients.
    pub listener: TcpListener,
    /// `None`: the agent runs simulated nodes, which have no files.
    pub node: Option<Shown>,
}

/// The node that an agent's HTTP service shows.
pub struct Shown {
    /// The nonce of this start of the agent.
    pub start: [u8; 16],
    pub node: Arc<LocalNode>,
    pub shared: Arc<Shared>,
    pub own: Own,
}

/// The resources of a machine that its tasks share.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    pub cpu_mhz: u64,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

/// The agent's names and resources.
pub struct Own {
    pub node: fsm::NodeId,
    pub name: String,
    pub region: String,
    pub datacenter: String,
    pub node_class: String,
    pub node_pool: String,
    /// The resources that all its allocations share.
    pub room: Room,
    /// MHz of one core.
    pub core_mhz: u64,
    pub servers: Arc<Servers>,
    pub meta: Arc<NodeMeta>,
}
