//! openraft's own tests of storage, run over the real log, engine and snapshot files.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use ground::{
    disk::{Disk, RealDisk},
    rt::watch,
};
use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tempfile::TempDir;

use super::{TypeConfig, log_store::LogStore, state_machine::StateMachine};
use crate::storage::{
    shadow::{Shadow, open_sled},
    snapshot_file::SnapshotDirectory,
    wal::{Options, Wal, WalThread},
};

struct RealStores;

/// Keeps the directory and the log's thread for as long as a test runs.
struct Guard {
    _thread: WalThread,
    _directory: TempDir,
}

impl StoreBuilder<TypeConfig, LogStore, StateMachine, Guard> for RealStores {
    async fn build(&self) -> Result<(Guard, LogStore, StateMachine), StorageError<TypeConfig>> {
        let directory = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk);
        let path = directory.path();
        let (wal, writer, _) =
            Wal::open(Arc::clone(&disk), &path.join("log"), Options::default()).unwrap();
        let thread = writer.spawn_thread("log").unwrap();
        let (shadow, loaded) =
            Shadow::open(Arc::clone(&disk), &path.join("state"), Arc::new(open_sled)).unwrap();
        let snapshots = SnapshotDirectory::open(disk, &path.join("snapshots")).unwrap();
        let held = watch::channel(false).1;
        let (machine, rewrite) = StateMachine::open(shadow, loaded, snapshots, held).unwrap();
        assert!(rewrite.is_none());
        Ok((Guard { _thread: thread, _directory: directory }, LogStore::new(wal), machine))
    }
}

#[test]
fn the_stores_pass_openrafts_own_suite() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(Suite::test_all(RealStores)).unwrap();
}
