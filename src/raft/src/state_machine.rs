//! The state machine as openraft drives it: decode, apply, publish, answer, hand to the disk;
//! snapshots from an O(1) clone.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fsm::{
    Index, Proposal, State, codec,
    generation::WHAT_TO_DO,
    settings::{Namespace, UpsertNamespace},
    table::ChangeSet,
};
use futures_util::{Stream, TryStreamExt};
use ground::{
    plant::{Plant, is_planted},
    rt,
};
use openraft::{
    EntryPayload, OptionalSend,
    storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine},
};
use wire::published::StateCell;

use super::{
    EntryReply, LogId, Snapshot, SnapshotMeta, StoredMembership, TypeConfig, applied, convert,
};
use crate::storage::{
    applied::AppliedMeta,
    shadow::{Group, Loaded, Shadow},
    snapshot_file::{self, SnapshotDirectory},
};

/// Entries that are applied before their state is published and their proposers are answered.
pub const PUBLISH_ENTRIES_MAX: usize = 256;

/// The first entry after which a replica with [`Plant::Diverge`] differs.
const DIVERGE_AT: Index = 40;

/// A whole snapshot file.
#[derive(Clone, Debug)]
pub struct SnapshotFile {
    /// Where it is.
    pub path: PathBuf,
}

/// What the state machine shares with its snapshot builder.
struct Shared {
    membership: Mutex<StoredMembership>,
    /// The directory's newest file belongs to this index.
    snapshot_index: AtomicU64,
}

/// openraft's view of the state.
pub struct StateMachine {
    cell: Arc<StateCell>,
    shadow: Shadow,
    snapshots: SnapshotDirectory,
    shared: Arc<Shared>,
    state: State,
    /// Nothing was applied yet, not even the entry at index 0.
    pristine: bool,
    /// Rows that wait for the first group: the state before the first entry.
    genesis: Arc<Mutex<Option<ChangeSet>>>,
    /// A test holds application back while this is true.
    hold: rt::watch::Receiver<bool>,
    publish_entries_max: usize,
    diverges: bool,
}

impl StateMachine {
    /// Starts from the newer of the two durable bases, or from nothing.
    pub fn open(
        shadow: Shadow,
        from_engine: Option<Loaded>,
        snapshots: SnapshotDirectory,
        hold: rt::watch::Receiver<bool>,
    ) -> io::Result<(Self, Option<Loaded>)> {
        // The engine is only ever behind the file when it was rebuilt or set aside.
        let is_newer = |meta: &AppliedMeta| {
            from_engine.as_ref().is_none_or(|engine| meta.head.index > engine.meta.head.index)
        };
        let from_file = match snapshots.newest_meta()? {
            Some((_, meta)) if is_newer(&meta) => snapshots.newest()?.map(|(_, loaded)| loaded),
            Some(_) | None => None,
        };
        let from_file = from_file.filter(|loaded| is_newer(&loaded.meta));
        let rebuilt = from_file.is_some();
        let base_name = match (&from_file, &from_engine) {
            (Some(_), _) => "a snapshot file",
            (None, Some(_)) => "the state on disk",
            (None, None) => "nothing",
        };
        let mut genesis = None;
        let base = match from_file.or(from_engine) {
            Some(loaded) => loaded,
            None => {
                let mut changes = ChangeSet::default();
                let state = State::genesis(&mut changes);
                genesis = Some(changes);
                Loaded { state, meta: AppliedMeta::default() }
            }
        };
        let membership = applied::membership(&base.meta)?;
        let state = base.state;
        tracing::info!(from = base_name, index = state.index(), digest = %base.meta.digest, "loaded the state");
        let machine = Self {
            cell: StateCell::new(state.clone()),
            shadow,
            snapshots,
            shared: Arc::new(Shared {
                membership: Mutex::new(membership),
                snapshot_index: AtomicU64::new(0),
            }),
            pristine: applied::log_id(&base.meta).is_none(),
            genesis: Arc::new(Mutex::new(genesis)),
            state: state.clone(),
            hold,
            publish_entries_max: PUBLISH_ENTRIES_MAX,
            diverges: false,
        };
        let rewrite = rebuilt.then_some(Loaded { state, meta: base.meta });
        Ok((machine, rewrite))
    }

    /// Publishes after so many entries at the latest.
    pub fn set_publish_entries_max(&mut self, entries: usize) {
        self.publish_entries_max = entries;
    }

    /// Lets this replica go its own way: for [`Plant::Diverge`], on one server of a cluster.
    pub fn set_diverging(&mut self, diverges: bool) {
        self.diverges = diverges;
    }

    /// A deliberate bug: a command that only this replica applies.
    fn diverge(&mut self, turn: &mut Turn) {
        let name: fsm::Text = "default".into();
        let Some(namespace) = self.state.namespaces().get(&name) else { return };
        let description: fsm::Text = "changed on one server only".into();
        if namespace.description != description {
            let namespace = Namespace { description, ..(**namespace).clone() };
            let command = UpsertNamespace { namespace }.into();
            let proposal = Proposal { at: self.state.at(), epoch: None, request: None, command };
            let (index, term) = (self.state.index(), self.state.term());
            let _applied = self.state.apply(index, term, &proposal, &mut turn.changes);
        }
    }

    /// The index up to which entries are in the state.
    pub fn base_index(&self) -> Index {
        self.state.index()
    }

    /// The state with its position.
    pub fn current(&self) -> (&State, AppliedMeta) {
        (&self.state, self.meta())
    }

    /// Whether nothing was ever applied, not even the first entry.
    pub fn is_pristine(&self) -> bool {
        self.pristine
    }

    /// Where states are published.
    pub fn cell(&self) -> &Arc<StateCell> {
        &self.cell
    }

    /// Where snapshots are.
    pub fn snapshots(&self) -> &SnapshotDirectory {
        &self.snapshots
    }

    fn membership(&self) -> StoredMembership {
        self.shared.membership.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_membership(&self, membership: StoredMembership) {
        *self.shared.membership.lock().unwrap_or_else(PoisonError::into_inner) = membership;
    }

    fn meta(&self) -> AppliedMeta {
        applied::meta(self.state.head(), &self.membership(), self.state.digest())
    }

    fn apply_one(&mut self, entry: super::Entry, turn: &mut Turn) -> io::Result<()> {
        let index = entry.log_id.index;
        let term = convert::term_of(&entry.log_id);
        self.pristine = false;
        let reply = match entry.payload {
            EntryPayload::Normal(data) => {
                let proposal: Proposal = codec::decode(&data.0).map_err(|error| {
                    let message = format!(
                        "log entry {index} does not decode ({error}) and is not skipped: {WHAT_TO_DO}"
                    );
                    io::Error::new(io::ErrorKind::InvalidData, message)
                })?;
                let applied = self.state.apply(index, term, &proposal, &mut turn.changes);
                turn.effects.push((index, applied.effects));
                if is_planted(Plant::Diverge) && self.diverges && index >= DIVERGE_AT {
                    self.diverge(turn);
                }
                EntryReply { index: applied.index, reply: applied.reply }
            }
            EntryPayload::Membership(membership) => {
                self.state.advance(index, term);
                self.set_membership(StoredMembership::new(Some(entry.log_id), membership));
                EntryReply { index, reply: fsm::Reply::Done }
            }
            EntryPayload::Blank => {
                self.state.advance(index, term);
                EntryReply { index, reply: fsm::Reply::Done }
            }
        };
        turn.replies.push(reply);
        Ok(())
    }

    async fn finish(&mut self, turn: Turn) -> io::Result<()> {
        let mut changes = turn.changes;
        let genesis = self.genesis.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut first) = genesis {
            first.rows.append(&mut changes.rows);
            changes = first;
        }
        self.cell.publish(self.state.clone(), turn.effects, false);
        for (responder, reply) in turn.responders.into_iter().zip(turn.replies) {
            if let Some(responder) = responder {
                responder.send(reply);
            }
        }
        self.shadow.write(Group { changes, meta: self.meta() }).await
    }
}

#[derive(Default)]
struct Turn {
    changes: ChangeSet,
    effects: Vec<(u64, Vec<fsm::Effect>)>,
    replies: Vec<EntryReply>,
    responders: Vec<Option<ApplyResponder<TypeConfig>>>,
}

impl RaftStateMachine<TypeConfig> for StateMachine {
    type SnapshotData = SnapshotFile;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> io::Result<(Option<LogId>, StoredMembership)> {
        let (term, index) = (self.state.term(), self.state.index());
        let last = (!self.pristine).then(|| convert::log_id(term, index));
        Ok((last, self.membership()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<TypeConfig>>> + Unpin + OptionalSend,
    {
        rt::until_false(&mut self.hold).await;
        let mut turn = Turn::default();
        while let Some((entry, responder)) = entries.try_next().await? {
            self.apply_one(entry, &mut turn)?;
            turn.responders.push(responder);
            if turn.replies.len() >= self.publish_entries_max {
                self.finish(std::mem::take(&mut turn)).await?;
            }
        }
        if turn.replies.is_empty() { Ok(()) } else { self.finish(turn).await }
    }

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<SnapshotBuilder> {
        Some(SnapshotBuilder { can_wait: !force, ..self.get_snapshot_builder().await })
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        self.snapshots.note_begun();
        SnapshotBuilder {
            state: self.state.clone(),
            meta: self.meta(),
            shadow: self.shadow.clone(),
            snapshots: self.snapshots.clone(),
            shared: Arc::clone(&self.shared),
            can_wait: false,
        }
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta,
        file: SnapshotFile,
    ) -> io::Result<()> {
        let snapshots = self.snapshots.clone();
        let path = file.path.clone();
        let loaded =
            rt::run_blocking(move || snapshot_file::read(&**snapshots.disk(), &path)).await?;
        if applied::log_id(&loaded.meta) != meta.last_log_id {
            let message = "the snapshot file is not at the log id that was announced";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        // The file first: a crash between the two leaves a file that is ahead of the engine, from
        // which a start rebuilds the engine. The other way round the log would be purged beyond the
        // newest file, and the engine would have nothing behind it.
        self.snapshots.adopt(&file.path, &loaded.meta)?;
        self.shadow.replace(loaded.state.clone(), loaded.meta.clone()).await?;
        self.shared.snapshot_index.store(loaded.meta.head.index, Ordering::Relaxed);
        self.set_membership(applied::membership(&loaded.meta)?);
        drop(self.genesis.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.state = loaded.state;
        self.pristine = false;
        self.cell.publish(self.state.clone(), Vec::new(), true);
        tracing::info!(index = self.state.index(), "installed a snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let newest = self.snapshots.newest_meta()?;
        let index = newest.as_ref().map_or(0, |(_, meta)| meta.head.index);
        let known = self.shared.snapshot_index.fetch_max(index, Ordering::Relaxed);
        if index < known {
            // It was set aside as damaged. The log may be purged up to it, so that nothing older
            // will do, and with none at all openraft ends.
            tracing::warn!(known, "the newest snapshot is gone: another one is written");
            return self.get_snapshot_builder().await.build_snapshot().await.map(Some);
        }
        let Some((path, meta)) = newest else { return Ok(None) };
        Ok(Some(snapshot(path, &meta)?))
    }
}

fn snapshot(path: PathBuf, meta: &AppliedMeta) -> io::Result<Snapshot> {
    Ok(Snapshot {
        meta: SnapshotMeta {
            last_log_id: applied::log_id(meta),
            last_membership: applied::membership(meta)?,
        },
        snapshot: SnapshotFile { path },
    })
}

/// Writes one snapshot file from a clone of the state.
pub struct SnapshotBuilder {
    state: State,
    meta: AppliedMeta,
    shadow: Shadow,
    snapshots: SnapshotDirectory,
    shared: Arc<Shared>,
    /// It is put off, not an error, if the disk has no room.
    can_wait: bool,
}

/// The answer for a snapshot that was put off. openraft ends with any error, but it passes over a
/// snapshot that is not newer than the one it knows, as this never is: it purges nothing, and asks
/// for no file.
fn put_off() -> Snapshot {
    Snapshot { meta: SnapshotMeta::default(), snapshot: SnapshotFile { path: PathBuf::new() } }
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        // The log may be purged up to here once this returns, so the engine has to be durable up to
        // here as well.
        let durable = self.shadow.barrier().await?;
        if durable < self.meta.head.index {
            let message = format!("the engine is durable up to {durable} only");
            return Err(io::Error::other(message));
        }
        let snapshots = self.snapshots.clone();
        let state = self.state.clone();
        let meta = self.meta.clone();
        let can_wait = self.can_wait;
        let written = rt::run_blocking(move || {
            if can_wait {
                snapshots.write_if_room(&state, &meta)
            } else {
                snapshots.write(&state, &meta).map(Some)
            }
        });
        let Some(path) = written.await? else { return Ok(put_off()) };
        self.shared.snapshot_index.store(self.meta.head.index, Ordering::Relaxed);
        tracing::info!(index = self.meta.head.index, "wrote a snapshot");
        snapshot(path, &self.meta)
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::{
        storage::shadow::{OpenEngine, open_twin},
        testing::{DIRECTORY, Storage, Truth, simulate},
    };
    use ground::disk::{Disk, fault::FaultDisk};

    /// Builds as openraft does; answers with the last entry of the snapshot that openraft is told
    /// of.
    async fn build(storage: &mut Storage) -> Option<Index> {
        let builder = storage.machine.try_create_snapshot_builder(false).await;
        let snapshot = builder.unwrap().build_snapshot().await.unwrap();
        snapshot.meta.last_log_id.map(|id| id.index)
    }

    /// A storage with the first 20 entries of 40, applied.
    async fn half_applied(disk: &FaultDisk) -> (Storage, Truth) {
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let engine_disk = Arc::clone(&shared);
        let open: OpenEngine = Arc::new(move |path| open_twin(Arc::clone(&engine_disk), path));
        let mut storage = Storage::open(&shared, &open, Path::new(DIRECTORY)).await.unwrap();
        let truth = Truth::new(40);
        storage.vote(1).unwrap();
        storage.append(truth.entries(0..20)).await.unwrap();
        storage.apply(19).await.unwrap();
        (storage, truth)
    }

    /// A leader has to have one for a follower whose entries are purged.
    #[test]
    fn a_snapshot_that_rots_while_the_server_runs_is_written_anew() {
        simulate(1, async {
            let disk = FaultDisk::new(1);
            let (mut storage, truth) = half_applied(&disk).await;
            assert!(storage.machine.get_current_snapshot().await.unwrap().is_none());
            assert_eq!(build(&mut storage).await, Some(19));
            storage.append(truth.entries(20..40)).await.unwrap();
            storage.apply(39).await.unwrap();
            let first = storage.machine.get_current_snapshot().await.unwrap().unwrap();
            let path = first.snapshot.path;
            let mut rotten = disk.read(&path).unwrap();
            // In the chunk that says what the file is of.
            rotten[20] ^= 1;
            disk.replace(&path, &rotten);
            let another = storage.machine.get_current_snapshot().await.unwrap().unwrap();
            assert_eq!(another.meta.last_log_id.map(|id| id.index), Some(39));
            snapshot_file::read(&disk, &another.snapshot.path).unwrap();
        });
    }

    /// openraft ends with the first error of a builder, and the trigger would come again at each
    /// start.
    #[test]
    fn a_snapshot_without_room_is_no_error_and_no_snapshot() {
        simulate(1, async {
            let disk = FaultDisk::new(1);
            let (mut storage, truth) = half_applied(&disk).await;
            assert_eq!(build(&mut storage).await, Some(19));
            storage.append(truth.entries(20..40)).await.unwrap();
            storage.apply(39).await.unwrap();

            disk.set_capacity(Some(disk.used_bytes() + (256 << 10)));
            assert_eq!(build(&mut storage).await, None);
            let snapshots = storage.machine.snapshots().clone();
            assert!(snapshots.is_put_off() && !snapshots.has_room());
            let (_, newest) = snapshots.newest_meta().unwrap().unwrap();
            assert_eq!(newest.head.index, 19);
            let names = disk.list(&Path::new(DIRECTORY).join("snapshots")).unwrap();
            assert_eq!(names.len(), 1, "{names:?}");

            disk.set_capacity(None);
            assert!(snapshots.has_room());
            assert_eq!(build(&mut storage).await, Some(39));
            assert_eq!(
                snapshots.begun(),
                3,
                "the log's growth counts from there, also when one was put off"
            );
        });
    }
}
