//! The configuration file of a server under test.
//!
//! Owns the part of the server's TOML that the harness sets; every key here must exist in the server's own
//! configuration, which refuses unknown ones. Pure: it touches no file.

use std::net::SocketAddr;
use std::path::Path;

use launch::Settings;

use crate::cluster::Endpoint;

/// After so many bytes of log a server writes a snapshot, unless somebody says. Few, so that
/// snapshots are written, sent and installed in every run.
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

/// The configuration of a server, which keeps its data in `directory/data`.
pub(crate) fn settings(
    endpoint: &Endpoint,
    directory: &Path,
    peers: impl Iterator<Item = Peer>,
    snapshot_log_bytes: u64,
) -> Settings {
    let peers: Vec<Peer> = peers.collect();
    // Every server must be given the same list: sorted, so that it does not depend on who asks.
    let mut bootstrap_expect: Vec<SocketAddr> = peers.iter().map(|peer| peer.rpc).collect();
    bootstrap_expect.push(endpoint.rpc);
    bootstrap_expect.sort_unstable();
    let mut settings = Settings::server(&endpoint.name, endpoint.http, endpoint.rpc);
    settings.set_text("region", "global");
    settings.set_text("datacenter", "dc1");
    settings.set_text("data_dir", &directory.join("data").to_string_lossy());
    settings.set_text("rpc.advertise", &endpoint.rpc.to_string());
    settings.set_texts("cluster.bootstrap_expect", &bootstrap_expect);
    for (rpc, dial) in peers.iter().filter_map(|peer| Some((peer.rpc, peer.dial?))) {
        settings.set_text(&format!("cluster.dial.\"{rpc}\""), &dial.to_string());
    }
    settings.set("raft.heartbeat_ms", 100);
    settings.set("raft.election_min_ms", 400);
    settings.set("raft.election_max_ms", 600);
    settings.set("raft.snapshot_log_bytes", snapshot_log_bytes);
    settings.set("raft.log_entries_kept", LOG_ENTRIES_KEPT);
    settings.set("scheduler.workers", 1);
    settings.set("limits.free_bytes_min", FREE_BYTES_MIN);
    // Short, so that the nodes of crashed agents are found down within a run.
    settings.set("heartbeat.ttl_min_ms", 3_000);
    settings.set("heartbeat.grace_ms", 4_000);
    settings
}
