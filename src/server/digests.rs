//! How replicas notice that one of them has diverged.
//!
//! ```text
//!  leader: MarkDigest entry ─► every replica stores its own digest as of the entry before it
//!          asks every voter for it ─► DigestVerdict { what a majority has }
//!  every replica: my digest is not the verdict ─► DIVERGED marker, stop, refuse to start from that state again
//! ```

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use fsm::{Command, Index, digest::Digest};

use super::{core::Core, housekeeping::probe, leadership::LeaderServices};
use crate::{
    disk::Disk,
    raft::WatchReceiver,
    rt::{self, Instant},
    storage::shadow::write_file,
};

/// Between marks while entries are applied.
const MARK_INTERVAL: Duration = Duration::from_secs(30);
/// Between looks at the marks that are there.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// How long the leader waits for a majority of reports.
const GATHER_TIMEOUT: Duration = Duration::from_secs(10);
const ENTRY_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);
const MARKER: &str = "DIVERGED";

/// This server's digest at a mark, as it is reported to the leader.
pub(super) fn digest_at(core: &Core, mark: Index) -> Bytes {
    let state = core.cell.load();
    let row = state.digest_marks.get(&mark);
    row.map(|row| Bytes::copy_from_slice(&row.digest.0.to_le_bytes())).unwrap_or_default()
}

/// A data directory whose state diverged is not started from.
pub(super) fn refuse_diverged(disk: &dyn Disk, directory: &Path) -> anyhow::Result<()> {
    let path = directory.join(MARKER);
    anyhow::ensure!(
        !disk.exists(&path)?,
        "{} exists: this replica's state diverged from the majority's. Keep the directory for analysis, move it away and \
         start with an empty one: the server joins anew and catches up",
        path.display()
    );
    Ok(())
}

pub(super) async fn run(core: Arc<Core>) {
    let mut stop = core.stopping();
    let mut marked = (Instant::now(), 0);
    loop {
        if rt::timeout(LOOK_INTERVAL, rt::until_true(&mut stop)).await.is_ok() {
            return;
        }
        if let Some(why) = divergence(&core) {
            let directory = &core.settings.data_directory;
            if let Err(error) = write_file(&*core.disk, directory, MARKER, why.as_bytes()) {
                tracing::error!(%error, "the {MARKER} marker could not be written");
            }
            core.fail(format!("DIVERGED: {why}"));
            return;
        }
        let due = marked.0.elapsed() >= MARK_INTERVAL && core.applied() > marked.1;
        if due && let Some(services) = core.leading() {
            let last = mark(&core, &services).await.unwrap_or_else(|| core.applied());
            marked = (Instant::now(), last);
        }
    }
}

fn divergence(core: &Core) -> Option<String> {
    let state = core.cell.load();
    state.digest_marks.iter().find_map(|mark| {
        let verdict = mark.verdict?;
        (verdict != mark.digest).then(|| {
            format!(
                "digest before index {} is {}, the majority has {verdict}",
                mark.index, mark.digest
            )
        })
    })
}

/// Commits a mark, gathers reports and commits the verdict; answers with the index after it.
async fn mark(core: &Arc<Core>, services: &LeaderServices) -> Option<Index> {
    let written = services.propose(Command::MarkDigest, None, ENTRY_TIMEOUT).await.ok()?;
    let mark = written.index;
    let digest = gather(core, mark).await?;
    let verdict = Command::DigestVerdict { mark, digest };
    Some(services.propose(verdict, None, ENTRY_TIMEOUT).await.ok()?.index)
}

async fn gather(core: &Arc<Core>, mark: Index) -> Option<Digest> {
    let metrics = core.raft.metrics().borrow_watched().clone();
    let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
    let deadline = Instant::now() + GATHER_TIMEOUT;
    let mut reports: BTreeMap<u64, Digest> = BTreeMap::new();
    loop {
        for (id, member) in metrics.membership_config.nodes() {
            if !voters.contains(id) || reports.contains_key(id) {
                continue;
            }
            let bytes = if *id == core.id {
                digest_at(core, mark)
            } else {
                let reply = probe(core, &member.rpc_address, mark, PROBE_TIMEOUT).await;
                reply.map(|reply| reply.digest).unwrap_or_default()
            };
            if let Ok(bytes) = <[u8; 16]>::try_from(&*bytes) {
                reports.insert(*id, Digest(u128::from_le_bytes(bytes)));
            }
        }
        let mut counts: BTreeMap<Digest, usize> = BTreeMap::new();
        for digest in reports.values() {
            *counts.entry(*digest).or_default() += 1;
        }
        if let Some((digest, _)) = counts.into_iter().find(|(_, count)| count * 2 > voters.len()) {
            return Some(digest);
        }
        if Instant::now() >= deadline {
            tracing::warn!(mark, reports = reports.len(), "no majority reported its digest");
            return None;
        }
        rt::sleep(Duration::from_millis(200)).await;
    }
}
