//! Chores of every server: snapshots when the log has grown, the free-space watermark, and
//! membership changes that were left half done.

use std::{sync::Arc, time::Duration};

use ground::{
    disk::Disk,
    rt::{self, watch},
};
use raft::{
    WatchReceiver,
    storage::{
        snapshot_file::SnapshotDirectory,
        wal::{Stats, Wal},
    },
};

use crate::{
    leadership::leading::Leading,
    member::contact::Contact,
    upkeep::bootstrap::{finish_membership, is_membership_joint, remove_replaced},
};

const INTERVAL: Duration = Duration::from_secs(1);
/// A membership change that stays joint for this many rounds was left half done by a leader that is
/// gone, or by a caller.
const JOINT_ROUNDS_MAX: u32 = 3;
/// Longest wait for a membership change before the other chores go on.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(2);

/// What the chores use.
pub(crate) struct Chores {
    pub(crate) contact: Arc<Contact>,
    pub(crate) leading: Arc<Leading>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) wal: Wal,
    pub(crate) snapshots: SnapshotDirectory,
}

pub(crate) async fn run(chores: Chores, mut stop: watch::Receiver<bool>) {
    let contact = &*chores.contact;
    let mut growth = LogGrowth::default();
    let mut joint_rounds = 0;
    watch_free_space(contact, &*chores.disk);
    loop {
        let stopped = rt::timeout(INTERVAL, rt::until_true(&mut stop)).await;
        if stopped.is_ok() {
            return;
        }
        let limit = contact.settings.snapshot_log_bytes;
        if is_snapshot_due(&mut growth, limit, &chores.wal.stats(), &chores.snapshots)
            && let Err(error) = contact.raft.trigger().snapshot().await
        {
            tracing::warn!(%error, "a snapshot could not be asked for");
        }
        watch_free_space(contact, &*chores.disk);
        let leads = || chores.leading.services().is_some();
        let joint = leads() && is_membership_joint(contact);
        joint_rounds = if joint { joint_rounds + 1 } else { 0 };
        if joint_rounds >= JOINT_ROUNDS_MAX {
            drop(rt::timeout(CHANGE_TIMEOUT, finish_membership(contact)).await);
        }
        if leads() && !joint {
            let elsewhere = contact.elsewhere();
            drop(rt::timeout(CHANGE_TIMEOUT, remove_replaced(contact, &elsewhere)).await);
        }
        leave_full_disk(contact).await;
    }
}

/// Bytes of the log at some moment.
#[derive(Clone, Copy, Debug, Default)]
struct LogBytes {
    written: u64,
    on_disk: u64,
}

/// How far the log has grown since the last snapshot was begun. All values are 0 at first, so what
/// an earlier process left behind counts: else a server that restarts again and again before it has
/// written enough would never cut its log.
#[derive(Debug, Default)]
struct LogGrowth {
    base: LogBytes,
    looked_at: LogBytes,
    /// Snapshots that were begun when `base` was taken.
    begun: u64,
}

impl LogGrowth {
    /// Whether the log has grown by more than `limit` bytes since the last of `begun` snapshots. A
    /// snapshot that is asked for while another is being built is not begun: it stays due.
    fn exceeds(&mut self, limit: u64, log: &Stats, begun: u64) -> bool {
        if begun != self.begun {
            self.begun = begun;
            self.count_anew();
        }
        self.looked_at = LogBytes { written: log.bytes, on_disk: log.disk_bytes };
        // A purge made the log shorter.
        self.base.on_disk = self.base.on_disk.min(log.disk_bytes);
        log.bytes.saturating_sub(self.base.written) > limit
            || log.disk_bytes.saturating_sub(self.base.on_disk) > limit
    }

    /// Counts growth from the last look on.
    fn count_anew(&mut self) {
        self.base = self.looked_at;
    }
}

/// Whether to ask for a snapshot. A snapshot that fills the disk would end the server, and again at
/// each start, so it waits until there is room.
fn is_snapshot_due(
    growth: &mut LogGrowth,
    limit: u64,
    log: &Stats,
    snapshots: &SnapshotDirectory,
) -> bool {
    let has_grown = growth.exceeds(limit, log, snapshots.begun());
    if has_grown && snapshots.is_put_off() && snapshots.may_have_room() {
        // Until the snapshot is written, the log grows and takes the rest of the disk.
        return true;
    }
    let is_wanted = has_grown || snapshots.is_put_off();
    if is_wanted && !snapshots.has_room() {
        if has_grown {
            growth.count_anew();
        }
        return false;
    }
    is_wanted
}

/// A leader without room hands over to a server with room, so that the cluster goes on taking
/// writes.
async fn leave_full_disk(contact: &Contact) {
    if contact.leads().is_none() || !contact.has_full_disk() {
        return;
    }
    let metrics = contact.raft.metrics().borrow_watched().clone();
    if !metrics.membership_config.voter_ids().any(|id| contact.has_room(id)) {
        return;
    }
    match contact.transfer(None).await {
        Ok(to) => tracing::warn!(to, "handed leadership over because the disk is nearly full"),
        Err(error) => tracing::warn!(%error, "leadership could not be handed over"),
    }
}

fn watch_free_space(contact: &Contact, disk: &dyn Disk) {
    let directory = &contact.settings.data_directory;
    let Ok(free) = disk.free_bytes(directory) else { return };
    contact.set_free_bytes(free);
    let least = contact.settings.free_bytes_min;
    let full = (free < least).then(|| {
        format!(
            "{} has {} MiB free, below the limit of {} MiB: free some space",
            directory.display(),
            free >> 20,
            least >> 20
        )
    });
    contact.disk_full.send_if_modified(|known| {
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

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    use super::*;
    use ground::disk::fault::FaultDisk;

    /// Begins a snapshot if it is due after 100 bytes, as openraft does where none is being built.
    fn begins(growth: &mut LogGrowth, log: &Stats, snapshots: &SnapshotDirectory) -> bool {
        let is_due = is_snapshot_due(growth, 100, log, snapshots);
        if is_due {
            snapshots.note_begun();
        }
        is_due
    }

    #[test]
    fn a_snapshot_without_room_is_asked_for_as_soon_as_there_is_some() {
        let disk = FaultDisk::new(1);
        let snapshots =
            SnapshotDirectory::open(Arc::new(disk.clone()), Path::new("/snapshots")).unwrap();
        let mut growth = LogGrowth::default();
        let mut is_due = |bytes| {
            let log = Stats { bytes, ..Stats::default() };
            begins(&mut growth, &log, &snapshots)
        };
        assert!(!is_due(100));
        disk.set_capacity(Some(1 << 20));
        assert!(!is_due(101));
        assert!(!is_due(102));
        disk.set_capacity(None);
        assert!(is_due(103), "although the log has not grown since");
        assert!(!is_due(104));
    }

    /// Removing jobs to free the disk makes the state smaller than its newest snapshot.
    #[test]
    fn a_snapshot_that_was_put_off_is_tried_when_the_log_has_grown_further() {
        let disk = FaultDisk::new(1);
        let path = Path::new("/snapshots");
        let snapshots = SnapshotDirectory::open(Arc::new(disk.clone()), path).unwrap();
        disk.replace(&path.join("1.snapshot"), &vec![0; 2 << 20]);
        disk.set_capacity(Some(disk.used_bytes() + (65 << 20)));
        let mut growth = LogGrowth::default();
        let mut is_due = |bytes| {
            let log = Stats { bytes, ..Stats::default() };
            begins(&mut growth, &log, &snapshots)
        };
        assert!(!is_due(101), "another one as large does not fit");
        assert!(!is_due(150));
        assert!(is_due(202), "it may be smaller by now");
        assert!(!is_due(203));
    }

    #[test]
    fn a_snapshot_is_due_when_the_log_has_grown_also_over_several_starts() {
        let log = |bytes, disk_bytes| Stats { bytes, disk_bytes, ..Stats::default() };
        let mut growth = LogGrowth::default();
        assert!(!growth.exceeds(100, &log(100, 64), 0));
        assert!(growth.exceeds(100, &log(101, 64), 0), "written since the start");
        assert!(!growth.exceeds(100, &log(200, 128), 1));
        // Segments that are hardly used count as well; a purge removes them.
        assert!(growth.exceeds(100, &log(201, 165), 1));
        assert!(!growth.exceeds(100, &log(202, 20), 2));
        assert!(!growth.exceeds(100, &log(203, 120), 2));
        assert!(growth.exceeds(100, &log(204, 121), 2));
        // A new process counts what earlier processes left behind.
        assert!(LogGrowth::default().exceeds(100, &log(0, 300), 0));
    }

    /// Openraft builds one snapshot at a time and forgets requests that come meanwhile.
    #[test]
    fn a_snapshot_stays_due_until_it_is_begun() {
        let log = |bytes| Stats { bytes, ..Stats::default() };
        let mut growth = LogGrowth::default();
        assert!(growth.exceeds(100, &log(101), 0));
        assert!(!growth.exceeds(100, &log(150), 1), "it is being built");
        assert!(growth.exceeds(100, &log(202), 1));
        assert!(growth.exceeds(100, &log(203), 1), "nothing came of it");
        assert!(!growth.exceeds(100, &log(250), 2));
        assert!(!growth.exceeds(100, &log(303), 2), "it has what was written until it was begun");
        assert!(growth.exceeds(100, &log(304), 2));
    }
}
