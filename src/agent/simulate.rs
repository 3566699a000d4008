//! Many mock nodes in one process.

use std::sync::Arc;

use tokio::task::JoinSet;

use super::{connection::Servers, settings::AgentSettings, state::NodeIdentity};

/// Nodes in one process.
pub(crate) const NODES_MAX: u32 = 20_000;

pub(crate) fn spawn(
    _settings: &AgentSettings,
    _servers: &Arc<Servers>,
    _identity: &NodeIdentity,
    _boot_id: [u8; 16],
    _nodes: u32,
    _work: &mut JoinSet<()>,
) {
}
