//! The state on disk: a shadow of the in-memory state, written behind it and off the path of acknowledgements.
//!
//! ```text
//!  apply ──► group {rows, applied meta} ──► bounded channel ──► one thread: merge whole groups ──► one atomic batch ──► engine (sled)
//! ```
//!
//! Invariant: what the engine holds is the state after some whole entry, named by the meta row that travels in the same batch. It may lag; it
//! is durable only up to the last barrier, and the log is never purged beyond that.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use fsm::{Index, State, codec, table::ChangeSet};

use super::applied::AppliedMeta;
use crate::{
    disk::{Disk, OpenMode},
    rt::{self, mpsc, oneshot},
};

/// Key of the meta row: no table has byte 0.
const META_KEY: &[u8] = &[0];
/// First byte of keys that hold pieces of long values.
const PIECE: u8 = 0xfe;
/// Longest value in the engine; sled keeps longer ones in files of their own that it never syncs.
const VALUE_BYTES_MAX: usize = 96 << 10;
/// Marks a value that stands for pieces: no frame begins so.
const PIECES_MAGIC: &[u8; 4] = b"PCS1";
/// Groups that may wait for the engine; `apply` waits above it.
const GROUPS_MAX: usize = 256;
/// Groups merged into one batch.
const MERGE_MAX: usize = 64;

/// Rows of one publication with the meta that belongs to them.
pub struct Group {
    /// Rows.
    pub changes: ChangeSet,
    /// Position after them.
    pub meta: AppliedMeta,
}

/// Called with key and value of each row.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>;

/// An embedded engine: an ordered map with atomic batches.
pub trait Engine: Send {
    /// The value of a key.
    fn read(&self, key: &[u8]) -> io::Result<Option<Bytes>>;
    /// Every row in key order.
    fn iterate(&self, visit: Visit<'_>) -> io::Result<()>;
    /// Applies all rows or none; none as a value removes the key.
    fn write(&mut self, rows: BTreeMap<Vec<u8>, Option<Bytes>>) -> io::Result<()>;
    /// Returns when everything written is durable.
    fn barrier(&mut self) -> io::Result<()>;
    /// Size on disk, bytes.
    fn disk_bytes(&self) -> u64;
}

/// Opens engines: sled in production, the twin in simulation.
pub type OpenEngine = Arc<dyn Fn(&Path) -> io::Result<Box<dyn Engine>> + Send + Sync>;

/// sled 0.34, one tree. Its own flush is no durable barrier on Linux (measured: 26 of 26 power cuts lost data), so the barrier syncs the file.
struct SledEngine {
    db: sled::Db,
    file: std::fs::File,
}

/// The production engine.
pub fn open_sled(directory: &Path) -> io::Result<Box<dyn Engine>> {
    let db = sled::Config::new()
        .path(directory)
        .cache_capacity(64 << 20)
        .flush_every_ms(Some(500))
        .use_compression(false)
        .open()
        .map_err(sled_error)?;
    let file = std::fs::File::open(directory.join("db"))?;
    std::fs::File::open(directory)?.sync_all()?;
    Ok(Box::new(SledEngine { db, file }))
}

fn sled_error(error: sled::Error) -> io::Error {
    match error {
        sled::Error::Io(error) => error,
        other @ (sled::Error::CollectionNotFound(_)
        | sled::Error::Unsupported(_)
        | sled::Error::ReportableBug(_)
        | sled::Error::Corruption { .. }) => io::Error::other(other),
    }
}

impl Engine for SledEngine {
    fn read(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        let value = self.db.get(key).map_err(sled_error)?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn iterate(&self, visit: Visit<'_>) -> io::Result<()> {
        for row in self.db.iter() {
            let (key, value) = row.map_err(sled_error)?;
            visit(&key, &value)?;
        }
        Ok(())
    }

    fn write(&mut self, rows: BTreeMap<Vec<u8>, Option<Bytes>>) -> io::Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in rows {
            match value {
                Some(value) => batch.insert(key, &*value),
                None => batch.remove(key),
            }
        }
        self.db.apply_batch(batch).map_err(sled_error)
    }

    fn barrier(&mut self) -> io::Result<()> {
        self.db.flush().map_err(sled_error)?;
        self.file.sync_all()
    }

    fn disk_bytes(&self) -> u64 {
        self.db.size_on_disk().unwrap_or(0)
    }
}

/// The simulated engine: an ordered map that becomes durable as one file at each barrier.
struct TwinEngine {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    rows: BTreeMap<Vec<u8>, Bytes>,
}

/// An engine over a [`Disk`], for simulation.
pub fn open_twin(disk: Arc<dyn Disk>, directory: &Path) -> io::Result<Box<dyn Engine>> {
    disk.create_dir_all(directory)?;
    let path = directory.join("rows");
    let mut rows = BTreeMap::new();
    if disk.exists(&path)? {
        let bytes = Bytes::from(disk.read(&path)?);
        let mut rest = bytes;
        while !rest.is_empty() {
            let key = take_piece(&mut rest)?;
            rows.insert(key.to_vec(), take_piece(&mut rest)?);
        }
    }
    Ok(Box::new(TwinEngine { disk, directory: directory.to_path_buf(), rows }))
}

fn take_piece(rest: &mut Bytes) -> io::Result<Bytes> {
    let short = || io::Error::new(io::ErrorKind::InvalidData, "the twin's file is cut short");
    if rest.len() < 4 {
        return Err(short());
    }
    let head = rest.split_to(4);
    let length = u32::from_le_bytes((&*head).try_into().map_err(|_| short())?) as usize;
    if rest.len() < length {
        return Err(short());
    }
    Ok(rest.split_to(length))
}

impl Engine for TwinEngine {
    fn read(&self, key: &[u8]) -> io::Result<Option<Bytes>> {
        Ok(self.rows.get(key).cloned())
    }

    fn iterate(&self, visit: Visit<'_>) -> io::Result<()> {
        self.rows.iter().try_for_each(|(key, value)| visit(key, value))
    }

    fn write(&mut self, rows: BTreeMap<Vec<u8>, Option<Bytes>>) -> io::Result<()> {
        for (key, value) in rows {
            match value {
                Some(value) => self.rows.insert(key, value),
                None => self.rows.remove(&key),
            };
        }
        Ok(())
    }

    fn barrier(&mut self) -> io::Result<()> {
        let mut out = Vec::new();
        for (key, value) in &self.rows {
            for piece in [key.as_slice(), value] {
                out.extend_from_slice(
                    &u32::try_from(piece.len()).unwrap_or(u32::MAX).to_le_bytes(),
                );
                out.extend_from_slice(piece);
            }
        }
        write_file(&*self.disk, &self.directory, "rows", &out)
    }

    fn disk_bytes(&self) -> u64 {
        self.rows.values().map(|value| value.len() as u64).sum()
    }
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

/// The directory that holds engines: `CURRENT` names the one in use, `OPENING` stands while one is being opened and loaded.
struct StateDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    open: OpenEngine,
    engine: Box<dyn Engine>,
    name: String,
    /// Long values by key, with their number of pieces.
    pieces: BTreeMap<Vec<u8>, u32>,
}

impl StateDirectory {
    /// Opens the current engine and loads it. An engine that does not open or load, or during whose opening the last process died, is moved
    /// aside; the caller rebuilds from the snapshot file and the log.
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
        if !name.is_empty() && disk.exists(&opening)? {
            tracing::error!(directory = %path.join(&name).display(),
                "the last start died while opening the state: it is set aside and rebuilt");
            set_aside(&*disk, path, &mut name)?;
        }
        let mut pieces = BTreeMap::new();
        if !name.is_empty() {
            write_file(&*disk, path, "OPENING", b"")?;
            let loaded = open(&path.join(&name)).and_then(|engine| {
                let loaded = load(&*engine, &mut pieces)?;
                Ok((engine, loaded))
            });
            match loaded {
                Ok((engine, loaded)) => {
                    disk.remove_file(&opening)?;
                    disk.sync_dir(path)?;
                    if loaded.is_some() {
                        sweep(&*disk, path, &name)?;
                    }
                    let path = path.to_path_buf();
                    return Ok((Self { disk, path, open, engine, name, pieces }, loaded));
                }
                Err(error) => {
                    tracing::error!(%error, directory = %path.join(&name).display(),
                        "the state on disk does not load: it is set aside and rebuilt");
                    set_aside(&*disk, path, &mut name)?;
                }
            }
        }
        let name = next_name(&*disk, path)?;
        let engine = open(&path.join(&name))?;
        write_file(&*disk, path, "CURRENT", name.as_bytes())?;
        if disk.exists(&opening)? {
            disk.remove_file(&opening)?;
            disk.sync_dir(path)?;
        }
        let pieces = BTreeMap::new();
        Ok((Self { disk, path: path.to_path_buf(), open, engine, name, pieces }, None))
    }

    fn write(&mut self, groups: Vec<Group>) -> io::Result<()> {
        let mut rows = BTreeMap::new();
        for group in groups {
            for (key, value) in group.changes.rows {
                put_row(&mut rows, &mut self.pieces, key, value);
            }
            rows.insert(META_KEY.to_vec(), Some(group.meta.encode()));
        }
        self.engine.write(rows)
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
        let name = next_name(&*self.disk, &self.path)?;
        let mut engine = (self.open)(&self.path.join(&name))?;
        let mut pieces = BTreeMap::new();
        let mut rows = BTreeMap::new();
        for (count, (key, value)) in state.frames().enumerate() {
            put_row(&mut rows, &mut pieces, key, Some(value));
            if count % 1000 == 999 {
                engine.write(std::mem::take(&mut rows))?;
            }
        }
        rows.insert(META_KEY.to_vec(), Some(meta.encode()));
        engine.write(rows)?;
        engine.barrier()?;
        write_file(&*self.disk, &self.path, "CURRENT", name.as_bytes())?;
        let old = std::mem::replace(&mut self.name, name);
        self.engine = engine;
        self.pieces = pieces;
        self.disk.remove_dir_all(&self.path.join(old))
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

/// Removes engines that a crash left behind: built halfway, or replaced and not yet removed.
fn sweep(disk: &dyn Disk, path: &Path, current: &str) -> io::Result<()> {
    for name in disk.list(path)? {
        if name.starts_with("engine-") && name != current {
            disk.remove_dir_all(&path.join(name))?;
        }
    }
    Ok(())
}

fn next_name(disk: &dyn Disk, path: &Path) -> io::Result<String> {
    let last = disk
        .list(path)?
        .iter()
        .filter_map(|name| name.strip_prefix("engine-")?.parse::<u64>().ok())
        .max();
    Ok(format!("engine-{:06}", last.unwrap_or(0) + 1))
}

fn piece_key(number: u32, key: &[u8]) -> Vec<u8> {
    let mut out = vec![PIECE];
    out.extend_from_slice(&u32::try_from(key.len()).unwrap_or(u32::MAX).to_be_bytes());
    out.extend_from_slice(key);
    out.extend_from_slice(&number.to_be_bytes());
    out
}

fn put_row(
    rows: &mut BTreeMap<Vec<u8>, Option<Bytes>>,
    pieces: &mut BTreeMap<Vec<u8>, u32>,
    key: Vec<u8>,
    value: Option<Bytes>,
) {
    let old = pieces.remove(&key).unwrap_or(0);
    let count = match &value {
        Some(value) if value.len() > VALUE_BYTES_MAX => {
            for (number, piece) in (0u32..).zip(value.chunks(VALUE_BYTES_MAX)) {
                rows.insert(piece_key(number, &key), Some(value.slice_ref(piece)));
            }
            u32::try_from(value.len().div_ceil(VALUE_BYTES_MAX)).unwrap_or(u32::MAX)
        }
        Some(_) | None => 0,
    };
    for number in count..old {
        rows.insert(piece_key(number, &key), None);
    }
    if count > 0 {
        pieces.insert(key.clone(), count);
        let mut marker = PIECES_MAGIC.to_vec();
        marker.extend_from_slice(&count.to_le_bytes());
        rows.insert(key, Some(marker.into()));
    } else {
        rows.insert(key, value);
    }
}

fn load(engine: &dyn Engine, pieces: &mut BTreeMap<Vec<u8>, u32>) -> io::Result<Option<Loaded>> {
    let Some(meta) = engine.read(META_KEY)? else { return Ok(None) };
    let meta: AppliedMeta = codec::decode(&meta).map_err(io::Error::other)?;
    let mut state = State::default();
    engine.iterate(&mut |key, value| {
        if key == META_KEY || key.first() == Some(&PIECE) {
            return Ok(());
        }
        if let Some(count) = value.strip_prefix(PIECES_MAGIC) {
            let count: [u8; 4] = count.try_into().map_err(io::Error::other)?;
            let count = u32::from_le_bytes(count);
            let mut whole = Vec::new();
            for number in 0..count {
                let piece = engine.read(&piece_key(number, key))?;
                whole.extend_from_slice(&piece.ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidData, "a piece of a long row is missing")
                })?);
            }
            pieces.insert(key.to_vec(), count);
            return state.load_row(key, &whole).map_err(io::Error::other);
        }
        state.load_row(key, value).map_err(io::Error::other)
    })?;
    state.load_done(meta.head.clone());
    let found = state.digest();
    if found != meta.digest {
        let message = format!("digest of the loaded state is {found}, stored is {}", meta.digest);
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    Ok(Some(Loaded { state, meta }))
}

enum Message {
    Group(Box<Group>),
    Barrier(oneshot::Sender<io::Result<Index>>),
    Replace(Box<(State, AppliedMeta)>, oneshot::Sender<io::Result<()>>),
    Close(oneshot::Sender<()>),
}

enum Writer {
    Thread(mpsc::Sender<Message>),
    InPlace(Arc<Mutex<StateDirectory>>),
}

/// The writer of the shadow, shared by the state machine and the snapshot builder.
#[derive(Clone)]
pub struct Shadow {
    writer: Arc<Writer>,
    lag: Arc<Lag>,
}

#[derive(Default)]
struct Lag {
    groups: AtomicU64,
    bytes: AtomicU64,
    disk_bytes: AtomicU64,
}

/// How far the disk is behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShadowLag {
    /// Groups that wait.
    pub groups: u64,
    /// Their bytes.
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
        let lag = Arc::new(Lag::default());
        let writer = if rt::is_simulation() {
            Writer::InPlace(Arc::new(Mutex::new(directory)))
        } else {
            let (sender, receiver) = mpsc::channel(GROUPS_MAX);
            let lag = Arc::clone(&lag);
            std::thread::Builder::new()
                .name("shadow".to_owned())
                .spawn(move || run(directory, receiver, &lag))?;
            Writer::Thread(sender)
        };
        Ok((Self { writer: Arc::new(writer), lag }, loaded))
    }

    /// Hands a group over; waits while too many wait already.
    pub async fn write(&self, group: Group) -> io::Result<()> {
        if crate::plant::is_planted("no-shadow") {
            return Ok(());
        }
        match &*self.writer {
            Writer::Thread(sender) => {
                self.lag.groups.fetch_add(1, Ordering::Relaxed);
                self.lag.bytes.fetch_add(group.changes.bytes() as u64, Ordering::Relaxed);
                sender.send(Message::Group(Box::new(group))).await.map_err(|_| stopped())
            }
            Writer::InPlace(directory) => lock(directory).write(vec![group]),
        }
    }

    /// Returns when everything handed over is durable, with its index.
    pub async fn barrier(&self) -> io::Result<Index> {
        if crate::plant::is_planted("no-shadow") {
            return Ok(Index::MAX);
        }
        match &*self.writer {
            Writer::Thread(sender) => {
                let (reply, answer) = oneshot::channel();
                sender.send(Message::Barrier(reply)).await.map_err(|_| stopped())?;
                answer.await.map_err(|_| stopped())?
            }
            Writer::InPlace(directory) => lock(directory).barrier(),
        }
    }

    /// Replaces the whole state, durably.
    pub async fn replace(&self, state: State, meta: AppliedMeta) -> io::Result<()> {
        match &*self.writer {
            Writer::Thread(sender) => {
                let (reply, answer) = oneshot::channel();
                let message = Message::Replace(Box::new((state, meta)), reply);
                sender.send(message).await.map_err(|_| stopped())?;
                answer.await.map_err(|_| stopped())?
            }
            Writer::InPlace(directory) => lock(directory).replace(&state, &meta),
        }
    }

    /// Writes what waits, makes it durable and stops.
    pub async fn close(&self) {
        if let Writer::Thread(sender) = &*self.writer {
            let (reply, answer) = oneshot::channel();
            if sender.send(Message::Close(reply)).await.is_ok() {
                drop(answer.await);
            }
        }
    }

    /// How far the disk is behind.
    pub fn lag(&self) -> ShadowLag {
        ShadowLag {
            groups: self.lag.groups.load(Ordering::Relaxed),
            bytes: self.lag.bytes.load(Ordering::Relaxed),
            disk_bytes: self.lag.disk_bytes.load(Ordering::Relaxed),
        }
    }
}

fn lock(directory: &Mutex<StateDirectory>) -> std::sync::MutexGuard<'_, StateDirectory> {
    directory.lock().unwrap_or_else(PoisonError::into_inner)
}

fn stopped() -> io::Error {
    io::Error::other("the writer of the state on disk has stopped; its error is in the log")
}

fn run(mut directory: StateDirectory, mut receiver: mpsc::Receiver<Message>, lag: &Lag) {
    while let Some(first) = receiver.blocking_recv() {
        let mut groups = Vec::new();
        let mut next = Some(first);
        let mut other = None;
        while let Some(message) = next {
            match message {
                Message::Group(group) => groups.push(*group),
                message @ (Message::Barrier(_) | Message::Replace(..) | Message::Close(_)) => {
                    other = Some(message);
                    break;
                }
            }
            next = if groups.len() < MERGE_MAX { receiver.try_recv().ok() } else { None };
        }
        if !groups.is_empty() && !write_groups(&mut directory, groups, lag) {
            return;
        }
        match other {
            None | Some(Message::Group(_)) => {}
            Some(Message::Barrier(reply)) => drop(reply.send(directory.barrier())),
            Some(Message::Replace(state, reply)) => {
                drop(reply.send(directory.replace(&state.0, &state.1)));
            }
            Some(Message::Close(reply)) => {
                if let Err(error) = directory.barrier() {
                    tracing::error!(%error, "the state on disk could not be made durable");
                }
                drop(directory);
                reply.send(()).ok();
                return;
            }
        }
    }
}

fn write_groups(directory: &mut StateDirectory, groups: Vec<Group>, lag: &Lag) -> bool {
    let count = groups.len() as u64;
    let bytes: usize = groups.iter().map(|group| group.changes.bytes()).sum();
    let result = directory.write(groups);
    lag.groups.fetch_sub(count, Ordering::Relaxed);
    lag.bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    lag.disk_bytes.store(directory.engine.disk_bytes(), Ordering::Relaxed);
    if let Err(error) = result {
        tracing::error!(%error, "the state could not be written to disk");
        return false;
    }
    true
}

#[cfg(test)]
mod tests;
