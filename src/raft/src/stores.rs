//! What a server finds in its data directory: the state with its two durable bases and the log,
//! opened in the order in which they are needed.
//!
//! It owns that order and the check that the parts fit together. It must never go on from parts
//! with a gap between them: a log that begins after the end of the state would leave out what was
//! purged between them, silently and on this server alone.

use std::{path::Path, sync::Arc};

use anyhow::Context;
use fsm::Index;
use ground::{
    disk::{
        Disk,
        watched::{DiskWatch, WatchedDisk},
    },
    rt::watch,
};

use super::state_machine::StateMachine;
use crate::storage::{
    shadow::{OpenEngine, Shadow},
    snapshot_file::SnapshotDirectory,
    wal::{Options, Recovery, Wal, WalWriter},
};

/// The opened stores of a data directory.
pub struct Stores {
    /// The state on disk, which follows the one in memory.
    pub shadow: Shadow,
    pub snapshots: SnapshotDirectory,
    /// The state in memory.
    pub machine: StateMachine,
    /// While true, no entries are applied; for tests.
    pub hold_apply: watch::Sender<bool>,
    pub wal: Wal,
    pub writer: WalWriter,
    /// What opening the log found.
    pub recovery: Recovery,
    /// The calls under way on the log's disk.
    pub log_calls: DiskWatch,
}

impl Stores {
    /// Opens a data directory, also an empty one.
    pub async fn open(
        disk: &Arc<dyn Disk>,
        open_engine: &OpenEngine,
        options: Options,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let (shadow, loaded) =
            Shadow::open(Arc::clone(disk), &directory.join("state"), Arc::clone(open_engine))
                .context("the state on disk does not open")?;
        let path = directory.join("snapshots");
        let snapshots = SnapshotDirectory::open(Arc::clone(disk), &path)
            .with_context(|| format!("{} does not open", path.display()))?;
        let (hold_apply, held) = watch::channel(false);
        let (machine, rewrite) =
            StateMachine::open(shadow.clone(), loaded, snapshots.clone(), held)?;
        if let Some(base) = rewrite {
            tracing::warn!(
                index = base.meta.head.index,
                "rebuilding the state on disk from a snapshot file"
            );
            let rebuilt = shadow.replace(base.state, base.meta).await;
            rebuilt.context("the state on disk cannot be rebuilt")?;
        }
        let log_calls = DiskWatch::default();
        let log_disk = Arc::new(WatchedDisk::new(Arc::clone(disk), log_calls.clone()));
        let (wal, writer, recovery) = Wal::open(log_disk, &directory.join("log"), options)
            .context("the log does not open")?;
        let cut = recovery.cut.as_ref();
        tracing::info!(
            entries = recovery.entries,
            segments = recovery.segments,
            cut_file = cut.map(|cut| cut.file.display().to_string()),
            cut_at = cut.map(|cut| cut.offset),
            last_batch_copied = recovery.copied,
            "opened the log"
        );
        check_continuity(machine.base_index(), &wal, directory)?;
        cut_what_was_replaced(&machine, &wal)?;
        keep_two_bases(&machine, &wal, &snapshots)
            .with_context(|| format!("cannot write a snapshot in {}", path.display()))?;
        Ok(Self { shadow, snapshots, machine, hold_apply, wal, writer, recovery, log_calls })
    }
}

/// Writes a snapshot if none is as new as the log needs it. A log that ends before the state is
/// purged up to the state as the first thing Raft does, and the log must never be purged beyond the
/// older of the two bases. This happens when a server dies while it installs a snapshot, or when it
/// applied entries that a majority of the others had on disk before its own log had them. Also,
/// when a damaged snapshot file was set aside, an older one is left that may end before the log
/// begins: a follower that got it would ask for entries that no server has.
fn keep_two_bases(
    machine: &StateMachine,
    wal: &Wal,
    snapshots: &SnapshotDirectory,
) -> anyhow::Result<()> {
    let base = machine.base_index();
    let purged = wal.purged().map_or(0, |id| id.index);
    let log_reaches = wal.last().is_some_and(|last| last.index >= base);
    let least = if log_reaches { purged } else { base };
    if machine.is_pristine() || least == 0 {
        return Ok(());
    }
    let newest = snapshots.newest_meta()?;
    if newest.is_none_or(|(_, meta)| meta.head.index < least) {
        tracing::warn!(index = base, least, "no snapshot is as new as it has to be: writing one");
        let (state, meta) = machine.current();
        snapshots.write(state, &meta)?;
    }
    Ok(())
}

/// Cuts the end of the log where a newer leader replaced it. An entry is applied as soon as it is
/// committed. The state after it may be durable while this log still holds what an older leader had
/// written at its index. Such an entry was never committed, and Raft does not start with it. (An
/// entry of a newer term at an applied index would break Raft's promise: nothing is cut, and
/// openraft refuses to start.)
fn cut_what_was_replaced(machine: &StateMachine, wal: &Wal) -> anyhow::Result<()> {
    let (state, _) = machine.current();
    let head = state.head();
    if let Some(id) = wal.id(head.index)
        && id.term < head.term
    {
        tracing::warn!(
            index = head.index,
            term = id.term,
            applied = head.term,
            "the log ends in entries that were replaced: they are cut"
        );
        wal.truncate_after(head.index.checked_sub(1))?;
    }
    Ok(())
}

fn check_continuity(base: Index, wal: &Wal, directory: &Path) -> anyhow::Result<()> {
    anyhow::ensure!(
        base == 0 || wal.vote().is_some(),
        "{0} has a state but its log is gone, and with it entries and votes that this server has promised to keep: \
         restore {0}/log; or, if a majority of the other servers is well, move {0} away and start again: \
         this server then joins anew",
        directory.display()
    );
    let Some(purged) = wal.purged() else { return Ok(()) };
    anyhow::ensure!(
        purged.index <= base,
        "the log in {0} begins after entry {1}, but the state on disk and the snapshot files end at entry {base}: \
         what lies between is not on this server any more. Restore {0}/state or {0}/snapshots; or, if a majority \
         of the other servers is well, move {0} away and start again: this server then joins anew and gets everything from them",
        directory.display(),
        purged.index
    );
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    use bytes::Bytes;
    use fsm::{State, table::ChangeSet};

    use super::*;
    use crate::{
        StoredMembership, applied,
        storage::{
            shadow::open_twin,
            wal::{EntryId, LogEntry},
        },
    };
    use ground::disk::{RealDisk, fault::FaultDisk};

    async fn open(disk: &Arc<dyn Disk>) -> Stores {
        let engine_disk = Arc::clone(disk);
        let open: OpenEngine =
            Arc::new(move |path: &Path| open_twin(Arc::clone(&engine_disk), path));
        Stores::open(disk, &open, Options::default(), Path::new("/data")).await.unwrap()
    }

    #[tokio::test]
    async fn snapshots_that_do_not_open_are_named() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("snapshots"), "").unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let engine_disk = Arc::clone(&disk);
        let engine: OpenEngine = Arc::new(move |path| open_twin(Arc::clone(&engine_disk), path));
        let opened = Stores::open(&disk, &engine, Options::default(), directory.path()).await;
        let error = opened.err().unwrap().to_string();
        assert!(error.contains("/snapshots does not open"), "{error}");
    }

    fn id(index: u64) -> EntryId {
        EntryId { index, term: 1 }
    }

    /// Leaves on disk a state after the entry of this index and term, no snapshot, and a log of
    /// term 1 with entries up to `last`, purged up to `purged`.
    async fn leave(disk: &Arc<dyn Disk>, (index, term): (u64, u64), last: u64, purged: u64) {
        let mut stores = open(disk).await;
        let mut state = State::genesis(&mut ChangeSet::default());
        state.advance(index, term);
        let membership = StoredMembership::default();
        let meta = applied::meta(state.head(), &membership, state.digest());
        stores.shadow.replace(state, meta).await.unwrap();
        let entries = (1..=last).map(|index| LogEntry { id: id(index), payload: Bytes::new() });
        stores.wal.save_vote(Bytes::from_static(b"vote"), Box::new(|done| done.unwrap())).unwrap();
        stores.wal.append(entries.collect(), Box::new(|done| done.unwrap())).unwrap();
        if purged > 0 {
            stores.wal.purge(id(purged)).unwrap();
        }
        while stores.writer.begin().unwrap() {
            stores.writer.finish().unwrap();
        }
        assert!(stores.snapshots.newest_meta().unwrap().is_none());
        stores.shadow.close().await;
    }

    /// A power cut came when the state was durable and the log, on a slow disk, still had the
    /// entries of another leader at its end.
    #[tokio::test]
    async fn a_log_whose_end_was_replaced_is_cut_to_where_the_state_goes_on() {
        let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new(1));
        leave(&disk, (7, 2), 9, 0).await;
        let stores = open(&disk).await;
        assert_eq!(stores.wal.last(), Some(id(6)));
        // What Raft purges next has to be in both bases.
        assert_eq!(stores.snapshots.newest_meta().unwrap().unwrap().1.head.index, 7);
    }

    #[tokio::test]
    async fn a_log_that_goes_on_where_the_state_ends_is_kept() {
        for state in [(0, 0), (7, 1)] {
            let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new(1));
            leave(&disk, state, 9, 0).await;
            assert_eq!(open(&disk).await.wal.last(), Some(id(9)), "{state:?}");
        }
    }

    /// Found by the simulation: the newest snapshot was damaged, and the one before it ended below
    /// the begin of the log.
    #[tokio::test]
    async fn a_snapshot_is_written_when_none_reaches_the_begin_of_the_log() {
        let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new(1));
        leave(&disk, (97, 1), 99, 47).await;
        let second = open(&disk).await;
        let (_, newest) = second.snapshots.newest_meta().unwrap().unwrap();
        assert_eq!(newest.head.index, 97);
    }
}
