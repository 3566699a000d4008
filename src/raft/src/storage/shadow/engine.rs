//! The embedded engine under the state on disk: sled in production, its twin over a [`Disk`] in
//! simulation.
//!
//! An engine is an ordered map with atomic batches; it knows nothing of what the rows mean.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use ground::disk::Disk;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::write_file;
use crate::storage::other_generation;

/// Rows to write: key and value, none to remove; each key once. Made one by one as the engine takes
/// them.
pub type Rows<'a> = &'a mut dyn Iterator<Item = (Bytes, Option<Bytes>)>;

/// Called with key and value of each row.
pub type Visit<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> io::Result<()>;

/// An embedded engine: an ordered map with atomic batches.
pub trait Engine: Send {
    /// The value of a key.
    fn read(&self, key: &[u8]) -> io::Result<Option<Bytes>>;
    /// Every row in key order.
    fn iterate(&self, visit: Visit<'_>) -> io::Result<()>;
    /// Applies all rows or none; none as a value removes the key.
    fn write(&mut self, rows: Rows<'_>) -> io::Result<()>;
    /// Returns when everything written is durable.
    fn barrier(&mut self) -> io::Result<()>;
    /// Size on disk, bytes.
    fn disk_bytes(&self) -> u64;
}

/// Opens engines: sled in production, the twin in simulation.
pub type OpenEngine = Arc<dyn Fn(&Path) -> io::Result<Box<dyn Engine>> + Send + Sync>;

/// sled 0.34, one tree. Its own flush is no durable barrier on Linux (measured: 26 of 26 power cuts
/// lost data), so the barrier syncs the file.
struct SledEngine {
    db: sled::Db,
    file: std::fs::File,
}

/// How long the threads of an engine that was closed may hold its file.
const UNLOCK_WAIT: Duration = Duration::from_secs(10);

/// Waits until nobody holds the engine's file. sled's threads let go of it some time after its
/// handle is dropped, and sled refuses a file that is held; that says nothing of what is in it.
fn wait_until_unlocked(directory: &Path) -> io::Result<()> {
    let file = match std::fs::File::open(directory.join("db")) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    let begin = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(flock(&file, FlockOperation::Unlock)?),
            Err(Errno::WOULDBLOCK) if begin.elapsed() < UNLOCK_WAIT => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// The production engine. An error of the kind `WouldBlock`: something else has it open.
pub fn open_sled(directory: &Path) -> io::Result<Box<dyn Engine>> {
    wait_until_unlocked(directory)?;
    let db = sled::Config::new()
        .path(directory)
        .cache_capacity(64 << 20)
        .flush_every_ms(Some(500))
        .use_compression(false)
        .open()
        .map_err(open_error)?;
    let file = std::fs::File::open(directory.join("db"))?;
    // What it has just read a killed process may have left unsynced: the log is purged by what was
    // loaded.
    file.sync_all()?;
    std::fs::File::open(directory)?.sync_all()?;
    Ok(Box::new(SledEngine { db, file }))
}

/// sled refuses only what was written in another format than this version's.
fn open_error(error: sled::Error) -> io::Error {
    if let sled::Error::Unsupported(why) = &error {
        return other_generation::refusal(why);
    }
    sled_error(error)
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

    fn write(&mut self, rows: Rows<'_>) -> io::Result<()> {
        let mut batch = sled::Batch::default();
        for (key, value) in rows {
            match value {
                Some(value) => batch.insert(&*key, &*value),
                None => batch.remove(&*key),
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
    rows: BTreeMap<Bytes, Bytes>,
}

/// An engine over a [`Disk`], for simulation.
pub fn open_twin(disk: Arc<dyn Disk>, directory: &Path) -> io::Result<Box<dyn Engine>> {
    disk.create_dir_all(directory)?;
    disk.sync_dir(directory)?;
    let path = directory.join("rows");
    let mut rows = BTreeMap::new();
    if disk.exists(&path)? {
        let bytes = Bytes::from(disk.read(&path)?);
        let mut rest = bytes;
        while !rest.is_empty() {
            let key = take_piece(&mut rest)?;
            rows.insert(key, take_piece(&mut rest)?);
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

    fn write(&mut self, rows: Rows<'_>) -> io::Result<()> {
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
            for piece in [key, value] {
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
