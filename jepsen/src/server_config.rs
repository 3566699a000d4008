//! The configuration file of a server under test.
//!
//! Owns the part of the server's TOML that the harness sets; every key here must exist in the server's own
//! configuration, which refuses unknown ones. Pure: it renders text and touches no file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::cluster::Endpoint;

/// After so many bytes of log a server writes a snapshot, unless somebody says. Few, so that snapshots are written, sent and installed in
/// every run.
pub(crate) const SNAPSHOT_LOG_BYTES: u64 = 64 << 10;
/// What the server takes for it.
pub(crate) const SNAPSHOT_LOG_BYTES_MIN: u64 = 4096;
pub(crate) const SNAPSHOT_LOG_BYTES_MAX: u64 = 1 << 50;
/// Few, so that a server that was away for some seconds needs a snapshot.
const LOG_ENTRIES_KEPT: u64 = 100;
/// Below the free space of a fresh loop disk.
const FREE_BYTES_MIN: u64 = 32 << 20;

/// Another server, as one server is told about it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// The address it advertises.
    pub(crate) rpc: SocketAddr,
    /// The proxy to dial instead, if there is one.
    pub(crate) dial: Option<SocketAddr>,
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
    limits: LimitsConfig,
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
struct RaftConfig {
    heartbeat_ms: u64,
    election_min_ms: u64,
    election_max_ms: u64,
    snapshot_log_bytes: u64,
    log_entries_kept: u64,
}

#[derive(Serialize)]
struct LimitsConfig {
    free_bytes_min: u64,
}

#[derive(Serialize)]
struct SchedulerConfig {
    workers: u64,
}

/// The configuration of a server, which keeps its data in `directory/data`.
pub(crate) fn render(
    endpoint: &Endpoint,
    directory: &Path,
    peers: impl Iterator<Item = Peer>,
    snapshot_log_bytes: u64,
) -> Result<String> {
    let (name, http, rpc) = (endpoint.name.as_str(), endpoint.http, endpoint.rpc);
    let peers: Vec<Peer> = peers.collect();
    let dial = peers.iter().filter_map(|peer| Some((peer.rpc, peer.dial?))).collect();
    // Every server must be given the same list: sorted, so that it does not depend on who asks.
    let mut bootstrap_expect: Vec<SocketAddr> = peers.iter().map(|peer| peer.rpc).collect();
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
        raft: RaftConfig {
            heartbeat_ms: 100,
            election_min_ms: 400,
            election_max_ms: 600,
            snapshot_log_bytes,
            log_entries_kept: LOG_ENTRIES_KEPT,
        },
        scheduler: SchedulerConfig { workers: 1 },
        limits: LimitsConfig { free_bytes_min: FREE_BYTES_MIN },
        heartbeat: HeartbeatConfig { ttl_min_ms: 3_000, grace_ms: 4_000 },
    };
    toml::to_string(&config).context("cannot render a server configuration")
}
