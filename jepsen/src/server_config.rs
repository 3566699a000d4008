//! The configuration file of a server under test.
//!
//! Owns the part of the server's TOML that the harness sets; every key here must exist in the server's own
//! configuration, which refuses unknown ones. Pure: it renders text and touches no file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

/// Another server, as one server is told about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The address it advertises.
    pub(crate) rpc: SocketAddr,
    /// The proxy to dial instead.
    pub(crate) dial: SocketAddr,
}

#[derive(Serialize)]
struct ServerConfig<'a> {
    name: &'a str,
    region: &'a str,
    datacenter: &'a str,
    data_dir: PathBuf,
    http: AddressConfig,
    rpc: AddressConfig,
    cluster: ClusterConfig,
    raft: RaftConfig,
    scheduler: SchedulerConfig,
    heartbeat: HeartbeatConfig,
}

/// Of the agents: short, so that crashed nodes are found down within a run.
#[derive(Serialize)]
struct HeartbeatConfig {
    ttl_min_ms: u64,
    grace_ms: u64,
}

#[derive(Serialize)]
struct AddressConfig {
    address: SocketAddr,
    #[serde(skip_serializing_if = "Option::is_none")]
    advertise: Option<SocketAddr>,
}

#[derive(Serialize)]
struct ClusterConfig {
    bootstrap_expect: Vec<SocketAddr>,
    dial: BTreeMap<SocketAddr, SocketAddr>,
}

#[derive(Serialize)]
#[expect(clippy::struct_field_names, reason = "the names of the configuration file")]
struct RaftConfig {
    heartbeat_ms: u64,
    election_min_ms: u64,
    election_max_ms: u64,
}

#[derive(Serialize)]
struct SchedulerConfig {
    workers: u64,
}

/// The configuration of the server `name`, which keeps its data in `directory/data`.
pub(crate) fn render(
    name: &str,
    directory: &Path,
    http: SocketAddr,
    rpc: SocketAddr,
    peers: impl Iterator<Item = Peer>,
) -> Result<String> {
    let dial: BTreeMap<SocketAddr, SocketAddr> = peers.map(|peer| (peer.rpc, peer.dial)).collect();
    // Every server must be given the same list: sorted, so that it does not depend on who asks.
    let mut bootstrap_expect: Vec<SocketAddr> = dial.keys().copied().collect();
    bootstrap_expect.push(rpc);
    bootstrap_expect.sort_unstable();
    let config = ServerConfig {
        name,
        region: "global",
        datacenter: "dc1",
        data_dir: directory.join("data"),
        http: AddressConfig { address: http, advertise: None },
        rpc: AddressConfig { address: rpc, advertise: Some(rpc) },
        cluster: ClusterConfig { bootstrap_expect, dial },
        raft: RaftConfig { heartbeat_ms: 100, election_min_ms: 400, election_max_ms: 600 },
        scheduler: SchedulerConfig { workers: 1 },
        heartbeat: HeartbeatConfig { ttl_min_ms: 1_000, grace_ms: 1_500 },
    };
    toml::to_string(&config).context("cannot render a server configuration")
}
