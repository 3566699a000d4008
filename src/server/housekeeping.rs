//! Chores of every server: snapshots when the log has grown, the free-space watermark.

use std::{sync::Arc, time::Duration};

use super::core::Core;
use crate::rt;

const INTERVAL: Duration = Duration::from_secs(1);

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
    }
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
