//! One server's storage under test: the real log, state machine, engine and snapshot files, driven
//! as Raft drives them, and the truth to compare it with. A leader that never fails has every entry
//! and every state; whatever a crash leaves has to be a piece of that.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::Bytes;
use fsm::{
    Command, Index, Proposal, State, codec,
    digest::Digest,
    settings::{DeleteNamespace, Namespace, UpsertNamespace},
};
use futures_util::{FutureExt, stream};
use ground::disk::{Disk, fault::FaultDisk};
use openraft::{
    entry::RaftEntry,
    storage::{IOFlushed, RaftLogReader, RaftLogStorage, RaftSnapshotBuilder, RaftStateMachine},
};

use super::{
    Entry, EntryData, Membership, SnapshotMeta, StoredMembership, applied, convert,
    log_store::LogStore,
    state_machine::{SnapshotFile, StateMachine},
    stores::Stores,
};
use crate::storage::{
    shadow::OpenEngine,
    snapshot_file::SnapshotDirectory,
    wal::{EntryId, Options, Wal, WalWriter},
};

/// Everything a server keeps is below.
pub(super) const DIRECTORY: &str = "/server";

/// The leader's whole log with the state after every entry.
pub(super) struct Truth {
    entries: Vec<Entry>,
    states: Vec<State>,
    membership: StoredMembership,
    snapshots: PathBuf,
}

impl Truth {
    /// So many entries: the membership, then namespaces that come, grow, shrink and go.
    pub(super) fn new(count: u64) -> Self {
        let membership = Membership::new_with_defaults(vec![BTreeSet::from([1])], [1]);
        let first = <Entry as RaftEntry>::new_membership(convert::log_id(1, 0), membership.clone());
        let mut truth = Self {
            membership: StoredMembership::new(Some(convert::log_id(1, 0)), membership),
            entries: vec![first],
            states: Vec::new(),
            snapshots: PathBuf::from("/leader/snapshots"),
        };
        let mut state = State::genesis(&mut fsm::table::ChangeSet::default());
        state.advance(0, 1);
        truth.states.push(state.clone());
        for index in 1..count {
            let command = command(index);
            let proposal = Proposal { at: index * 10, epoch: None, request: None, command };
            state.apply(index, 1, &proposal, &mut fsm::table::ChangeSet::default());
            let data = EntryData(codec::encode(&proposal));
            let id = convert::log_id(1, index);
            truth.entries.push(<Entry as RaftEntry>::new_normal(id, data));
            truth.states.push(state.clone());
        }
        truth
    }

    fn at(index: Index) -> usize {
        usize::try_from(index).unwrap()
    }

    /// Entries of a range.
    pub(super) fn entries(&self, range: std::ops::Range<Index>) -> Vec<Entry> {
        self.entries[Self::at(range.start)..Self::at(range.end)].to_vec()
    }

    /// Entries there are.
    pub(super) fn count(&self) -> Index {
        self.entries.len() as Index
    }

    fn digest(&self, index: Index) -> Digest {
        self.states[Self::at(index)].digest()
    }

    /// The leader's snapshot file at an index, with what is announced of it.
    pub(super) fn snapshot(&self, index: Index) -> (SnapshotMeta, Bytes) {
        let state = &self.states[Self::at(index)];
        let meta = applied::meta(state.head(), &self.membership, state.digest());
        let disk = FaultDisk::new(1);
        let directory = SnapshotDirectory::open(Arc::new(disk.clone()), &self.snapshots).unwrap();
        let path = directory.write(state, &meta).unwrap();
        let announced = SnapshotMeta {
            last_log_id: applied::log_id(&meta),
            last_membership: applied::membership(&meta).unwrap(),
        };
        (announced, disk.read(&path).unwrap().into())
    }
}

fn command(index: Index) -> Command {
    let name = format!("namespace-{}", index * 7 % 13);
    if index.is_multiple_of(5) {
        return Command::from(DeleteNamespace { name: name.as_str().into() });
    }
    let length = usize::try_from(index * 131 % 900).unwrap();
    let description = index.to_string().repeat(length / 3 + 1);
    Command::from(UpsertNamespace {
        namespace: Namespace {
            name: name.as_str().into(),
            description: description.as_str().into(),
            ..Namespace::default()
        },
    })
}

/// What others were told, and what therefore has to be there after any crash.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Entries up to here are acknowledged; none before the first.
    pub(super) last: Option<Index>,
    /// The highest term voted in.
    pub(super) term: u64,
}

/// A server's storage, open.
pub(super) struct Storage {
    /// The state machine.
    pub(super) machine: StateMachine,
    /// openraft's view of the log.
    pub(super) log: LogStore,
    /// The log.
    pub(super) wal: Wal,
    /// Its writer, stepped by the test.
    pub(super) writer: WalWriter,
    snapshots: SnapshotDirectory,
}

/// Sizes with which a few entries fill a segment.
pub(super) fn options() -> Options {
    Options {
        segment_bytes_first: 4096,
        segment_bytes_max: 16 << 10,
        batch_bytes_max: 4096,
        cache_bytes_max: 2000,
        ..Options::default()
    }
}

impl Storage {
    /// Opens as a server does.
    pub(super) async fn open(
        disk: &Arc<dyn Disk>,
        open_engine: &OpenEngine,
        directory: &Path,
    ) -> anyhow::Result<Self> {
        let stores = Stores::open(disk, open_engine, options(), directory).await?;
        let Stores { machine, wal, writer, snapshots, .. } = stores;
        Ok(Self { machine, log: LogStore::new(wal.clone()), wal, writer, snapshots })
    }

    /// The last entry that is here, in the log or in the state.
    pub(super) fn last(&self) -> Option<Index> {
        let applied = self.applied();
        self.wal.last().map(|id| id.index).max(applied)
    }

    /// The last applied entry.
    pub(super) fn applied(&self) -> Option<Index> {
        (!self.machine.is_pristine()).then(|| self.machine.base_index())
    }

    /// Appends through openraft's trait; answers whether it was acknowledged as durable.
    pub(super) async fn append(&mut self, entries: Vec<Entry>) -> io::Result<()> {
        let (done, flushed) =
            <super::TypeConfig as openraft::type_config::TypeConfigExt>::oneshot();
        self.log.append(entries, IOFlushed::signal(done)).await?;
        while self.writer.step()? {}
        flushed.now_or_never().expect("the sync was the last step").map_err(io::Error::other)?
    }

    /// Appends, and writes without a sync.
    pub(super) async fn begin_append(&mut self, entries: Vec<Entry>) -> io::Result<bool> {
        self.log.append(entries, IOFlushed::noop()).await?;
        self.writer.begin()
    }

    /// Votes.
    pub(super) fn vote(&mut self, term: u64) -> io::Result<()> {
        let vote = super::Vote::new_committed(term, 1);
        let mut log = self.log.clone();
        let mut saved = std::pin::pin!(async move { log.save_vote(&vote).await });
        assert!(saved.as_mut().now_or_never().is_none_or(|result| result.is_err()), "no sync yet");
        while self.writer.step()? {}
        saved.now_or_never().expect("the sync was the last step")
    }

    /// Applies what is in the log up to `upto`.
    pub(super) async fn apply(&mut self, upto: Index) -> io::Result<()> {
        let next = self.applied().map_or(0, |applied| applied + 1);
        let entries = self.log.try_get_log_entries(next..=upto).await?;
        let entries = entries.into_iter().map(|entry| Ok((entry, None)));
        self.machine.apply(stream::iter(entries.collect::<Vec<_>>())).await?;
        self.log.save_committed(Some(convert::log_id(1, upto))).await
    }

    /// Writes a snapshot and purges the log up to it, as openraft does once the snapshot is said to
    /// be there.
    pub(super) async fn snapshot(&mut self, entries_kept: u64) -> io::Result<()> {
        let Some(applied) = self.applied() else { return Ok(()) };
        self.machine.get_snapshot_builder().await.build_snapshot().await?;
        self.purge(applied.saturating_sub(entries_kept)).await
    }

    /// Receives the leader's snapshot in two pieces, installs it and purges the log up to it.
    pub(super) async fn install(&mut self, truth: &Truth, index: Index) -> io::Result<()> {
        let (meta, bytes) = truth.snapshot(index);
        let (path, file) = self.snapshots.receive(&format!("1-{index}-{}", bytes.len()))?;
        let half = bytes.len() / 2;
        file.write_all_at(&bytes[..half], 0)?;
        file.write_all_at(&bytes[half..], half as u64)?;
        file.sync_all()?;
        drop(file);
        self.machine.install_snapshot(&meta, SnapshotFile { path }).await?;
        self.purge(index).await
    }

    async fn purge(&mut self, upto: Index) -> io::Result<()> {
        self.log.purge(convert::log_id(1, upto)).await?;
        self.writer.step()?;
        Ok(())
    }

    /// Checks what a reopened server has against the truth and against what was told, and applies
    /// all of it, as openraft does.
    pub(super) async fn check(&mut self, truth: &Truth, told: &Told, context: &str) {
        let base = self.applied();
        if let Some(base) = base {
            let digest = self.machine.cell().load().digest();
            assert_eq!(digest, truth.digest(base), "{context}: the state at {base} is another one");
        }
        if let Some(base) = base
            && self.wal.last().is_none_or(|last| last.index < base)
        {
            // A crash came between an install and the purge that follows it; openraft makes up for
            // it.
            self.wal.purge(EntryId { index: base, term: 1 }).unwrap();
            self.writer.step().unwrap();
        }
        let first = self.wal.first();
        let next = base.map_or(0, |base| base + 1);
        assert!(
            first.is_none_or(|first| first <= next),
            "{context}: a hole from {next} to {first:?}"
        );
        let last = self.last();
        assert!(last >= told.last, "{context}: {:?} was acknowledged, {last:?} is left", told.last);
        let vote = self.log.read_vote().await.unwrap();
        let term = vote.map_or(0, |vote| vote.leader_id.term);
        assert!(term >= told.term, "{context}: voted in {}, remembers {term}", told.term);
        let Some(last) = last else { return };
        let found = self.log.try_get_log_entries(first.unwrap_or(0)..=last).await.unwrap();
        let expected = first.map_or_else(Vec::new, |first| truth.entries(first..last + 1));
        assert_eq!(found, expected, "{context}: an entry that nobody wrote");
        if next <= last {
            self.apply(last).await.unwrap();
        }
        let digest = self.machine.cell().load().digest();
        assert_eq!(digest, truth.digest(last), "{context}: replayed to another state");
    }
}

/// Runs a test on a thread of its own as a simulation: nothing runs beside it, so that a seed
/// repeats.
pub(super) fn simulate(seed: u64, test: impl Future<Output = ()> + Send + 'static) {
    let plant = ground::plant::planted_here();
    // Without tokio's budget, which makes ready futures wait for a task that never yields.
    let test = tokio::task::unconstrained(test);
    let run = move || {
        ground::rt::enter_simulation(seed);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        match plant {
            None => runtime.block_on(test),
            Some(plant) => ground::plant::planting(plant, || runtime.block_on(test)),
        }
    };
    let ended = std::thread::spawn(run).join();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}
