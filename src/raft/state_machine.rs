//! The state machine as openraft drives it: decode, apply, publish, answer, hand to the disk; snapshots from an O(1) clone.

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fsm::{Index, Proposal, State, codec, table::ChangeSet};
use futures_util::{Stream, TryStreamExt};
use openraft::{
    EntryPayload, OptionalSend,
    storage::{ApplyResponder, EntryResponder, RaftSnapshotBuilder, RaftStateMachine},
};

use super::{EntryReply, LogId, Snapshot, SnapshotMeta, StoredMembership, TypeConfig};
use crate::{
    rt,
    server::state_cell::StateCell,
    storage::{
        applied::AppliedMeta,
        shadow::{Group, Loaded, Shadow},
        snapshot_file::{self, SnapshotDirectory},
    },
};

/// Entries that are applied before their state is published and their proposers are answered.
const PUBLISH_ENTRIES_MAX: usize = 256;

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
        let membership = base.meta.stored_membership()?;
        let state = base.state;
        tracing::info!(from = base_name, index = state.head.index, digest = %base.meta.digest, "loaded the state");
        let machine = Self {
            cell: StateCell::new(state.clone()),
            shadow,
            snapshots,
            shared: Arc::new(Shared {
                membership: Mutex::new(membership),
                snapshot_index: AtomicU64::new(0),
            }),
            pristine: base.meta.log_id().is_none(),
            genesis: Arc::new(Mutex::new(genesis)),
            state: state.clone(),
            hold,
        };
        let rewrite = rebuilt.then_some(Loaded { state, meta: base.meta });
        Ok((machine, rewrite))
    }

    /// Makes sure that the newest snapshot reaches as far as the log was purged: when a damaged file was set aside, an older one is left, and a
    /// follower that got it would ask for entries that nobody has. The state itself is here: it is written anew.
    pub async fn cover_purged_log(&mut self, purged: Index) -> io::Result<()> {
        let newest = self.snapshots.newest_meta()?.map_or(0, |(_, meta)| meta.head.index);
        if newest >= purged {
            return Ok(());
        }
        tracing::warn!(newest, purged, "no snapshot reaches the begin of the log: writing one");
        self.get_snapshot_builder().await.build_snapshot().await?;
        Ok(())
    }

    /// The index up to which entries are in the state.
    pub fn base_index(&self) -> Index {
        self.state.head.index
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
        AppliedMeta::new(self.state.head.clone(), &self.membership(), self.state.digest())
    }

    fn apply_one(&mut self, entry: super::Entry, turn: &mut Turn) -> io::Result<()> {
        let index = entry.log_id.index;
        let term = crate::rpc::convert::term_of(&entry.log_id);
        self.pristine = false;
        let reply = match entry.payload {
            EntryPayload::Normal(data) => {
                let proposal: Proposal = codec::decode(&data.0).map_err(|error| {
                    let message = format!(
                        "log entry {index} does not decode ({error}): refusing to skip it; \
                         is this program older than the one that wrote it?"
                    );
                    io::Error::new(io::ErrorKind::InvalidData, message)
                })?;
                let applied = self.state.apply(index, term, &proposal, &mut turn.changes);
                turn.effects.push((index, applied.effects));
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
        let head = &self.state.head;
        let last = (!self.pristine).then(|| crate::rpc::convert::log_id(head.term, head.index));
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
            if turn.replies.len() >= PUBLISH_ENTRIES_MAX {
                self.finish(std::mem::take(&mut turn)).await?;
            }
        }
        if turn.replies.is_empty() { Ok(()) } else { self.finish(turn).await }
    }

    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<SnapshotBuilder> {
        Some(self.get_snapshot_builder().await)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        SnapshotBuilder {
            state: self.state.clone(),
            meta: self.meta(),
            shadow: self.shadow.clone(),
            snapshots: self.snapshots.clone(),
            shared: Arc::clone(&self.shared),
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
        if loaded.meta.log_id() != meta.last_log_id {
            let message = "the snapshot file is not at the log id that was announced";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        self.shadow.replace(loaded.state.clone(), loaded.meta.clone()).await?;
        self.snapshots.adopt(&file.path, &loaded.meta)?;
        self.shared.snapshot_index.store(loaded.meta.head.index, Ordering::Relaxed);
        self.set_membership(loaded.meta.stored_membership()?);
        drop(self.genesis.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.state = loaded.state;
        self.pristine = false;
        self.cell.publish(self.state.clone(), Vec::new(), true);
        tracing::info!(index = self.state.head.index, "installed a snapshot");
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snapshot>> {
        let Some((path, meta)) = self.snapshots.newest_meta()? else { return Ok(None) };
        Ok(Some(snapshot(path, &meta)?))
    }
}

fn snapshot(path: PathBuf, meta: &AppliedMeta) -> io::Result<Snapshot> {
    Ok(Snapshot {
        meta: SnapshotMeta {
            last_log_id: meta.log_id(),
            last_membership: meta.stored_membership()?,
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
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotFile;

    async fn build_snapshot(&mut self) -> io::Result<Snapshot> {
        // The log may be purged up to here once this returns, so the engine has to be durable up to here as well.
        let durable = self.shadow.barrier().await?;
        if durable < self.meta.head.index {
            let message = format!("the engine is durable up to {durable} only");
            return Err(io::Error::other(message));
        }
        let snapshots = self.snapshots.clone();
        let state = self.state.clone();
        let meta = self.meta.clone();
        let path = rt::run_blocking(move || snapshots.write(&state, &meta)).await?;
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
        disk::{Disk, fault::FaultDisk},
        storage::shadow::open_twin,
    };

    /// Found by the simulation: the newest snapshot had rotted, the one before it ended below the begin of the log.
    #[tokio::test]
    async fn a_snapshot_is_written_when_none_reaches_the_begin_of_the_log() {
        let disk: Arc<dyn Disk> = Arc::new(FaultDisk::new(1));
        let engine_disk = Arc::clone(&disk);
        let open = Arc::new(move |path: &Path| open_twin(Arc::clone(&engine_disk), path));
        let (shadow, _) =
            Shadow::open(Arc::clone(&disk), Path::new("/data/state"), open).unwrap();
        let snapshots = SnapshotDirectory::open(disk, Path::new("/data/snapshots")).unwrap();
        let mut state = State::genesis(&mut ChangeSet::default());
        state.advance(97, 3);
        let meta = AppliedMeta::new(state.head.clone(), &StoredMembership::default(), state.digest());
        shadow.replace(state.clone(), meta.clone()).await.unwrap();
        let (_hold, held) = rt::watch::channel(false);
        let loaded = Loaded { state, meta };
        let (mut machine, _) =
            StateMachine::open(shadow, Some(loaded), snapshots.clone(), held).unwrap();
        let newest = || snapshots.newest_meta().unwrap().map(|(_, meta)| meta.head.index);
        machine.cover_purged_log(0).await.unwrap();
        assert_eq!(newest(), None, "nothing was purged");
        machine.cover_purged_log(47).await.unwrap();
        assert_eq!(newest(), Some(97));
    }
}
