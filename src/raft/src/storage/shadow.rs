//! The state on disk: a shadow of the in-memory state, written behind it and off the path of
//! acknowledgements.
//!
//! ```text
//!  apply ──► group {rows, applied meta} ──► pending: the newest row of each key ──► one thread, every few seconds: one atomic batch ──► engine
//! ```
//!
//! The engine costs microseconds a row, more than everything else that an entry costs, so it gets
//! as few rows as can be: what changes again while it waits is written once, and a restart replays
//! the seconds that are missing from the log.
//!
//! Invariant: what the engine holds is the state after some whole entry, named by the meta row that
//! travels in the same batch. It may lag; it is durable only up to the last barrier, and the log is
//! never purged beyond that.

mod engine;
mod layout;
mod pending;

use std::{
    collections::VecDeque,
    io, mem,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use bytes::Bytes;
use fsm::{Index, State, codec, table::ChangeSet};
use ground::{
    disk::{Disk, OpenMode, is_full},
    plant::{Plant, is_planted},
    rt::{self, Notify, oneshot, watch},
};

pub use engine::{Engine, OpenEngine, Rows, Visit, open_sled, open_twin};

use self::{
    layout::Layout,
    pending::{Changes, Pending},
};
use super::{applied::AppliedMeta, other_generation};

/// Key of the meta row: no table has byte 0.
const META_KEY: &[u8] = &[0];
/// Rows in one batch while a whole state is written.
const REPLACE_BATCH_ROWS: usize = 1_000;
/// How long changes wait for others of the same rows.
const WAIT: Duration = Duration::from_secs(5);
/// Memory of waiting rows above which they are written at once.
const WRITE_BYTES: usize = 96 << 20;
/// Memory of waiting rows above which `apply` waits; as much again may be on its way to the engine.
const PENDING_BYTES_MAX: usize = 128 << 20;

/// Rows of one publication with the meta that belongs to them.
pub struct Group {
    /// Rows.
    pub changes: ChangeSet,
    /// Position after them.
    pub meta: AppliedMeta,
}

/// Replaces a small file durably: written beside, synced, renamed, directory synced.
pub fn write_file(disk: &dyn Disk, directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = directory.join(format!("{name}.tmp"));
    if disk.exists(&temporary)? {
        disk.remove_file(&temporary)?;
    }
    let file = disk.open(&temporary, OpenMode::CreateNew)?;
    file.write_all_at(bytes, 0)?;
    file.sync_all()?;
    disk.rename(&temporary, &directory.join(name))?;
    disk.sync_dir(directory)
}

/// A loaded state with its position.
pub struct Loaded {
    /// The state.
    pub state: State,
    /// Its meta.
    pub meta: AppliedMeta,
}

/// The directory that holds engines: `CURRENT` names the one in use, `OPENING` stands while one is
/// being opened and loaded.
struct StateDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    open: OpenEngine,
    engine: Box<dyn Engine>,
    name: String,
    layout: Layout,
}

impl StateDirectory {
    /// Opens the current engine and loads it. An engine that does not open or load, or during whose
    /// opening the last process died, is moved aside; the caller rebuilds from the snapshot file
    /// and the log. One of another generation stays where it is, and is an error.
    fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        open: OpenEngine,
    ) -> io::Result<(Self, Option<Loaded>)> {
        disk.create_dir_all(path)?;
        let opening = path.join("OPENING");
        let current = path.join("CURRENT");
        let mut name = if disk.exists(&current)? {
            String::from_utf8_lossy(&disk.read(&current)?).trim().to_owned()
        } else {
            String::new()
        };
        let named = name.clone();
        if !name.is_empty() && disk.exists(&opening)? {
            tracing::error!(directory = %path.join(&name).display(),
                "the last start died while opening the state: it is set aside and rebuilt");
            set_aside(&*disk, path, &mut name)?;
        }
        if !name.is_empty() {
            write_file(&*disk, path, "OPENING", b"")?;
            let loaded = open(&path.join(&name)).and_then(|engine| {
                let (layout, loaded) = Layout::load(&*engine)?;
                Ok((engine, layout, loaded.map(|(state, meta)| Loaded { state, meta })))
            });
            match loaded {
                Ok((engine, layout, loaded)) => {
                    disk.remove_file(&opening)?;
                    disk.sync_dir(path)?;
                    sweep(&*disk, path, &name)?;
                    let path = path.to_path_buf();
                    return Ok((Self { disk, path, open, engine, name, layout }, loaded));
                }
                Err(error) if other_generation::is_refusal(&error) || is_shortage(&error) => {
                    disk.remove_file(&opening)?;
                    disk.sync_dir(path)?;
                    let message = format!("{}: {error}", path.join(&name).display());
                    return Err(io::Error::new(error.kind(), message));
                }
                Err(error) => {
                    tracing::error!(%error, directory = %path.join(&name).display(),
                        "the state on disk does not load: it is set aside and rebuilt");
                    set_aside(&*disk, path, &mut name)?;
                }
            }
        }
        let name = next_name(&*disk, path, &named)?;
        let engine = open(&path.join(&name))?;
        write_file(&*disk, path, "CURRENT", name.as_bytes())?;
        if disk.exists(&opening)? {
            disk.remove_file(&opening)?;
            disk.sync_dir(path)?;
        }
        let layout = Layout::default();
        Ok((Self { disk, path: path.to_path_buf(), open, engine, name, layout }, None))
    }

    fn write(&mut self, pending: &mut Pending) -> io::Result<()> {
        let Some((changes, meta)) = pending.take() else { return Ok(()) };
        let mut rows = self.layout.place(&*self.engine, changes, Some(&meta))?;
        if is_planted(Plant::IndexBeforeRows) {
            let (meta, mut rows): (Vec<_>, Vec<_>) = rows.partition(|(key, _)| &**key == META_KEY);
            self.engine.write(&mut meta.into_iter())?;
            self.engine.barrier()?;
            return self.engine.write(&mut rows.drain(..));
        }
        self.engine.write(&mut rows)
    }

    fn barrier(&mut self) -> io::Result<Index> {
        self.engine.barrier()?;
        let meta = self.engine.read(META_KEY)?;
        let Some(bytes) = meta else { return Ok(0) };
        let meta: AppliedMeta = codec::decode(&bytes).map_err(io::Error::other)?;
        Ok(meta.head.index)
    }

    /// Builds a new engine with the whole state and switches to it.
    fn replace(&mut self, state: &State, meta: &AppliedMeta) -> io::Result<()> {
        if is_planted(Plant::InstallInPlace) {
            return self.replace_in_place(state, meta);
        }
        let name = next_name(&*self.disk, &self.path, &self.name)?;
        let mut engine = (self.open)(&self.path.join(&name))?;
        let mut layout = Layout::default();
        let mut changes = Changes::new();
        for (key, row) in state.stored_rows() {
            changes.push((key.into(), Some(row)));
            if changes.len() == REPLACE_BATCH_ROWS {
                engine.write(&mut layout.place(&*engine, mem::take(&mut changes), None)?)?;
            }
        }
        engine.write(&mut layout.place(&*engine, changes, Some(meta))?)?;
        engine.barrier()?;
        write_file(&*self.disk, &self.path, "CURRENT", name.as_bytes())?;
        let old = std::mem::replace(&mut self.name, name);
        self.engine = engine;
        self.layout = layout;
        self.disk.remove_dir_all(&self.path.join(old))
    }

    /// A deliberate bug, reached with [`Plant::InstallInPlace`] only.
    fn replace_in_place(&mut self, state: &State, meta: &AppliedMeta) -> io::Result<()> {
        let mut gone: Vec<(Bytes, Option<Bytes>)> = Vec::new();
        self.engine.iterate(&mut |key, _| {
            gone.push((Bytes::copy_from_slice(key), None));
            Ok(())
        })?;
        self.engine.write(&mut gone.into_iter())?;
        self.engine.barrier()?;
        self.layout = Layout::default();
        let rows = state.stored_rows().map(|(key, row)| (key.into(), Some(row)));
        let changes: Changes = rows.collect();
        self.engine.write(&mut self.layout.place(&*self.engine, changes, Some(meta))?)?;
        self.engine.barrier()
    }
}

fn set_aside(disk: &dyn Disk, path: &Path, name: &mut String) -> io::Result<()> {
    let aside = path.join("set-aside");
    if disk.exists(&aside)? {
        disk.remove_dir_all(&aside)?;
    }
    let from = path.join(&*name);
    if disk.exists(&from)? {
        disk.rename(&from, &aside)?;
    }
    disk.sync_dir(path)?;
    name.clear();
    Ok(())
}

/// Whether something of the machine was short or held, of which the engine is not to blame: set
/// aside for it, and once more at the next start, a sound one would be gone.
fn is_shortage(error: &io::Error) -> bool {
    let files = rustix::io::Errno::from_io_error(error);
    is_full(error)
        || matches!(error.kind(), io::ErrorKind::OutOfMemory | io::ErrorKind::WouldBlock)
        || matches!(files, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Removes engines that a crash left behind: built halfway, or replaced and not yet removed.
fn sweep(disk: &dyn Disk, path: &Path, current: &str) -> io::Result<()> {
    for name in disk.list(path)? {
        if name.starts_with("engine-") && name != current {
            disk.remove_dir_all(&path.join(name))?;
        }
    }
    Ok(())
}

/// A name that no engine had, `named` (which `CURRENT` names) among them although it may be set
/// aside: whatever a power cut brings back of an older one, it is not taken for the new one.
fn next_name(disk: &dyn Disk, path: &Path, named: &str) -> io::Result<String> {
    let number = |name: &str| name.strip_prefix("engine-")?.parse::<u64>().ok();
    let listed = disk.list(path)?;
    let last = listed.iter().map(String::as_str).chain([named]).filter_map(number).max();
    Ok(format!("engine-{:06}", last.unwrap_or(0) + 1))
}

/// What the writer is asked for beside writing.
enum Order {
    Barrier(oneshot::Sender<io::Result<Index>>),
    Replace(Box<(State, AppliedMeta)>, oneshot::Sender<io::Result<()>>),
    Close(oneshot::Sender<()>),
    /// The server is gone without having closed anything, as in a crash.
    Abandon,
}

/// What waits for the thread that writes.
#[derive(Default)]
struct Queue {
    pending: Pending,
    /// When the oldest of the pending changes came.
    since: Option<Instant>,
    orders: VecDeque<Order>,
    /// Groups and bytes that are being written.
    under_way: (u64, u64),
    disk_bytes: u64,
    /// The thread has ended, after an error or because it was told to.
    ended: bool,
}

impl Queue {
    /// How long the thread may still sleep; none: until it is woken.
    fn sleep(&self) -> Option<Duration> {
        if !self.orders.is_empty() || self.pending.bytes() > WRITE_BYTES {
            return Some(Duration::ZERO);
        }
        Some(WAIT.saturating_sub(self.since?.elapsed()))
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The thread has to look how long it may sleep.
    work: Condvar,
    /// What was pending is being written, or the thread has ended.
    room: Notify,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn order(&self, order: Order) -> io::Result<()> {
        let mut queue = self.lock();
        if queue.ended {
            return Err(stopped());
        }
        queue.orders.push_back(order);
        drop(queue);
        self.work.notify_one();
        Ok(())
    }
}

enum Writer {
    Thread(Arc<Shared>),
    InPlace(Arc<Mutex<StateDirectory>>),
}

/// The writer of the shadow, shared by the state machine and the snapshot builder.
#[derive(Clone)]
pub struct Shadow {
    writer: Arc<Writer>,
    /// The error that ended the writer. After a failed sync a second one proves nothing, so nobody
    /// may try again.
    died: watch::Sender<Option<String>>,
}

/// How far the disk is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShadowLag {
    /// Groups that wait.
    pub groups: u64,
    /// Memory of their rows, bytes.
    pub bytes: u64,
    /// Size of the engine on disk, bytes.
    pub disk_bytes: u64,
}

impl Shadow {
    /// Opens the state directory; answers with what it held, if that is whole.
    pub fn open(
        disk: Arc<dyn Disk>,
        path: &Path,
        open: OpenEngine,
    ) -> io::Result<(Self, Option<Loaded>)> {
        let (directory, loaded) = StateDirectory::open(disk, path, open)?;
        let died = watch::channel(None).0;
        let writer = if rt::is_simulation() {
            Writer::InPlace(Arc::new(Mutex::new(directory)))
        } else {
            let shared = Arc::<Shared>::default();
            let thread = Thread { directory, shared: Arc::clone(&shared), died: died.clone() };
            std::thread::Builder::new().name("shadow".to_owned()).spawn(move || thread.run())?;
            Writer::Thread(shared)
        };
        Ok((Self { writer: Arc::new(writer), died }, loaded))
    }

    /// Works on the directory here and now, unless that failed before.
    fn in_place<T>(
        &self,
        directory: &Mutex<StateDirectory>,
        work: impl FnOnce(&mut StateDirectory) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.died.borrow().is_some() {
            return Err(stopped());
        }
        let done = work(&mut directory.lock().unwrap_or_else(PoisonError::into_inner));
        tell(&self.died, done)
    }

    /// Returns the error once the state could not be written.
    pub async fn until_failed(&self) -> String {
        let mut died = self.died.subscribe();
        // The sender is in `self`, so the wait ends with a reason only.
        let why = died.wait_for(Option::is_some).await.map(|why| why.clone());
        why.ok().flatten().unwrap_or_default()
    }

    /// Hands a group over; waits while too much waits already.
    pub async fn write(&self, group: Group) -> io::Result<()> {
        let shared = match &*self.writer {
            Writer::Thread(shared) => shared,
            Writer::InPlace(directory) => {
                let mut pending = Pending::default();
                pending.add(group);
                return self.in_place(directory, |directory| directory.write(&mut pending));
            }
        };
        loop {
            let room = shared.room.notified();
            let mut room = std::pin::pin!(room);
            room.as_mut().enable();
            {
                let mut queue = shared.lock();
                if queue.ended {
                    return Err(stopped());
                }
                if queue.pending.bytes() <= PENDING_BYTES_MAX {
                    let is_first = queue.since.is_none();
                    queue.since.get_or_insert_with(Instant::now);
                    queue.pending.add(group);
                    if is_first || queue.pending.bytes() > WRITE_BYTES {
                        shared.work.notify_one();
                    }
                    return Ok(());
                }
            }
            room.await;
        }
    }

    /// Returns when everything handed over is durable, with its index.
    pub async fn barrier(&self) -> io::Result<Index> {
        if is_planted(Plant::PurgeBeforeSync) {
            return Ok(Index::MAX);
        }
        match &*self.writer {
            Writer::Thread(shared) => {
                let (reply, answer) = oneshot::channel();
                shared.order(Order::Barrier(reply))?;
                answer.await.map_err(|_| stopped())?
            }
            Writer::InPlace(directory) => self.in_place(directory, StateDirectory::barrier),
        }
    }

    /// Replaces the whole state, durably.
    pub async fn replace(&self, state: State, meta: AppliedMeta) -> io::Result<()> {
        match &*self.writer {
            Writer::Thread(shared) => {
                let (reply, answer) = oneshot::channel();
                shared.order(Order::Replace(Box::new((state, meta)), reply))?;
                answer.await.map_err(|_| stopped())?
            }
            Writer::InPlace(directory) => {
                self.in_place(directory, |directory| directory.replace(&state, &meta))
            }
        }
    }

    /// Writes what waits, makes it durable and stops.
    pub async fn close(&self) {
        if let Writer::Thread(shared) = &*self.writer {
            let (reply, answer) = oneshot::channel();
            if shared.order(Order::Close(reply)).is_ok() {
                drop(answer.await);
            }
        }
    }

    /// How far the disk is behind.
    pub fn lag(&self) -> ShadowLag {
        let Writer::Thread(shared) = &*self.writer else { return ShadowLag::default() };
        let queue = shared.lock();
        ShadowLag {
            groups: queue.pending.groups() + queue.under_way.0,
            bytes: queue.pending.bytes() as u64 + queue.under_way.1,
            disk_bytes: queue.disk_bytes,
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Self::Thread(shared) = self {
            // Refused by a thread that has ended already.
            drop(shared.order(Order::Abandon));
        }
    }
}

/// Lets an error be known to whoever ends the process.
fn tell<T>(died: &watch::Sender<Option<String>>, done: io::Result<T>) -> io::Result<T> {
    done.inspect_err(|error| {
        tracing::error!(%error, "the state could not be written to disk");
        died.send_replace(Some(error.to_string()));
    })
}

fn stopped() -> io::Error {
    io::Error::other("the writer of the state on disk has stopped; its error is in the log")
}

/// The thread that writes.
struct Thread {
    directory: StateDirectory,
    shared: Arc<Shared>,
    died: watch::Sender<Option<String>>,
}

impl Thread {
    fn run(mut self) {
        loop {
            let (mut pending, order) = self.next();
            let written = match &order {
                Some(Order::Abandon) => return,
                // It would be replaced at once.
                Some(Order::Replace(..)) => Ok(()),
                Some(Order::Barrier(_) | Order::Close(_)) | None => {
                    self.directory.write(&mut pending)
                }
            };
            {
                let mut queue = self.shared.lock();
                queue.under_way = (0, 0);
                queue.disk_bytes = self.directory.engine.disk_bytes();
            }
            if tell(&self.died, written).is_err() {
                return;
            }
            let alive = match order {
                None | Some(Order::Abandon) => true,
                Some(Order::Barrier(reply)) => {
                    let done = tell(&self.died, self.directory.barrier());
                    let alive = done.is_ok();
                    drop(reply.send(done));
                    alive
                }
                Some(Order::Replace(state, reply)) => {
                    let done = tell(&self.died, self.directory.replace(&state.0, &state.1));
                    let alive = done.is_ok();
                    drop(reply.send(done));
                    alive
                }
                Some(Order::Close(reply)) => {
                    drop(tell(&self.died, self.directory.barrier()));
                    drop(self);
                    reply.send(()).ok();
                    return;
                }
            };
            if !alive {
                return;
            }
        }
    }

    /// Sleeps until there is something to do.
    fn next(&self) -> (Pending, Option<Order>) {
        let mut queue = self.shared.lock();
        loop {
            queue = match queue.sleep() {
                Some(Duration::ZERO) => break,
                Some(left) => {
                    let waited = self.shared.work.wait_timeout(queue, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.shared.work.wait(queue).unwrap_or_else(PoisonError::into_inner),
            };
        }
        queue.since = None;
        let pending = mem::take(&mut queue.pending);
        queue.under_way = (pending.groups(), pending.bytes() as u64);
        let order = queue.orders.pop_front();
        drop(queue);
        self.shared.room.notify_waiters();
        (pending, order)
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let mut queue = self.shared.lock();
        queue.ended = true;
        // Whoever waits for an answer learns that none comes.
        queue.orders.clear();
        drop(queue);
        self.shared.room.notify_waiters();
    }
}

#[cfg(test)]
mod tests;
