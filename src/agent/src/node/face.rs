//! What an agent's HTTP service stands for. Who serves it is told at the start: this package knows
//! no HTTP.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;

use crate::{
    node::local::LocalNode, node::shell::Shared, session::connection::Servers,
    session::meta::NodeMeta,
};

/// Serves an agent's HTTP until it is dropped.
pub type Serve = fn(Face) -> BoxFuture<'static, ()>;

/// What an agent's HTTP service stands for.
pub struct Face {
    /// Where its clients connect.
    pub listener: TcpListener,
    /// None: the agent has many nodes, without files.
    pub node: Option<Shown>,
}

/// The node that an agent's HTTP service stands for.
pub struct Shown {
    /// The nonce of this start of the agent.
    pub start: [u8; 16],
    pub node: Arc<LocalNode>,
    pub shared: Arc<Shared>,
    pub own: Own,
}

/// Resources of all tasks of a machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Room {
    pub cpu_mhz: u64,
    pub memory_mb: u64,
    pub disk_mb: u64,
}

/// The names of an agent, and what it offers.
pub struct Own {
    pub node: fsm::NodeId,
    pub name: String,
    pub region: String,
    pub datacenter: String,
    pub node_class: String,
    pub node_pool: String,
    /// What its allocations may have together.
    pub room: Room,
    /// MHz of one processor.
    pub core_mhz: u64,
    pub servers: Arc<Servers>,
    pub meta: Arc<NodeMeta>,
}
