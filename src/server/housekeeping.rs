//! Chores of every server: snapshots when the log has grown, the free-space watermark, who of the peers answers.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use proto::v1 as pb;

use super::core::Core;
use crate::{
    raft::WatchReceiver,
    rpc::transport::{Lane, call},
    rt,
};

const INTERVAL: Duration = Duration::from_secs(1);
/// A peer that did not answer for so long counts as lost, for people who look.
pub(super) const PEER_LOST: Duration = Duration::from_secs(4);
const PROBE_TIMEOUT: Duration = Duration::from_millis(900);

pub(super) async fn run(core: Arc<Core>) {
    let mut stop = core.stopping();
    let mut snapshot_at_bytes = 0u64;
    watch_free_space(&core);
    loop {
        let stopped = rt::timeout(INTERVAL, rt::until_true(&mut stop)).await;
        if stopped.is_ok() {
            return;
        }
        let written = core.wal.stats().bytes;
        if written.saturating_sub(snapshot_at_bytes) > core.settings.snapshot_log_bytes {
            snapshot_at_bytes = written;
            if let Err(error) = core.raft.trigger().snapshot().await {
                tracing::warn!(%error, "a snapshot could not be asked for");
            }
        }
        watch_free_space(&core);
        probe_peers(&core).await;
    }
}

async fn probe_peers(core: &Arc<Core>) {
    if core.cluster.get().is_none() {
        return;
    }
    let metrics = core.raft.metrics().borrow_watched().clone();
    let peers = metrics.membership_config.nodes().filter(|(id, _)| **id != core.id);
    let probes = peers.map(|(id, member)| async move {
        let answer = probe(core, &member.rpc_address, 0, PROBE_TIMEOUT).await;
        answer.is_ok().then_some(*id)
    });
    let answered = futures_util::future::join_all(probes).await;
    let mut heard = core.heard.lock().unwrap_or_else(PoisonError::into_inner);
    for id in answered.into_iter().flatten() {
        heard.insert(id, rt::Instant::now());
    }
}

/// Asks a peer who it is, and for its digest at a mark.
pub(super) async fn probe(
    core: &Core,
    address: &str,
    digest_mark: u64,
    timeout: Duration,
) -> Result<pb::ProbeReply, tonic::Status> {
    let expect = core.settings.bootstrap_expect.clone();
    let request = pb::ProbeRequest { expect, from: core.id, digest_mark };
    let path = "/quorate.v1.Cluster/Probe";
    call(&*core.transport, address, path, Lane::Control, &request, timeout).await
}

fn watch_free_space(core: &Core) {
    let directory = &core.settings.data_directory;
    let Ok(free) = core.disk.free_bytes(directory) else { return };
    let least = core.settings.free_bytes_min;
    let full = (free < least).then(|| {
        format!(
            "{} has {} MiB free, below the limit of {} MiB: free some space",
            directory.display(),
            free >> 20,
            least >> 20
        )
    });
    core.disk_full.send_if_modified(|known| {
        let changed = known.is_some() != full.is_some();
        if changed {
            match &full {
                Some(why) => tracing::error!(why, "writes are turned away"),
                None => tracing::info!("there is enough free space again: writes are taken"),
            }
        }
        *known = full;
        changed
    });
}
