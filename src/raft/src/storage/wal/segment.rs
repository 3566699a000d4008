//! Segment files: names, making the next one ahead, removing old ones, reading entries from them.
//!
//! A segment is made under a temporary name: zeros written for real and synced, then at rollover
//! its header and first batch, synced; then it is renamed and the directory synced. So a file under
//! a segment's name always has a durable header and first batch, and its sectors exist on the
//! medium before the log needs them. [`Housekeeper`] does the slow parts on its own thread in
//! production and at once in simulation. It must never touch a segment that is in use.

use super::format::{RECORD_HEAD, Record, SECTOR};
use super::index::Found;
use super::{EntryId, LOCK, LogEntry, Place};
use bytes::Bytes;
use ground::disk::{Disk, DiskFile, OpenMode};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// Zeros per write, and bytes per sync, while a segment is made: small enough not to hold up the
/// log's own syncs for long.
const FILL_BYTES: usize = 1 << 20;
const FILL_SYNC_BYTES: u64 = 4 << 20;
/// How much may lie between two entries that are read in one go.
const READ_GAP_BYTES: usize = 16 << 10;

/// The file of a segment.
pub(super) fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}.wal"))
}

/// The number in a segment's file name.
pub(super) fn number_in(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(".wal")?;
    (digits.len() == 20 && digits.bytes().all(|byte| byte.is_ascii_digit()))
        .then(|| digits.parse().ok())?
}

/// Whether the name is that of a segment in the making.
pub(super) fn is_temporary(name: &str) -> bool {
    name.strip_suffix(".tmp").is_some_and(|name| number_in(name).is_some())
}

fn temporary_path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{number:020}.wal.tmp"))
}

/// A segment in the making: all zeros, durable, without a name.
#[derive(Debug)]
pub(super) struct Spare {
    pub(super) number: u64,
    pub(super) bytes: u64,
    file: Box<dyn DiskFile>,
}

/// Makes a file of durable zeros.
pub(super) fn prepare(
    disk: &dyn Disk,
    directory: &Path,
    number: u64,
    bytes: u64,
) -> io::Result<Spare> {
    let path = temporary_path(directory, number);
    if disk.exists(&path)? {
        disk.remove_file(&path)?;
    }
    let file = disk.open(&path, OpenMode::CreateNew)?;
    if let Err(error) = fill(&*file, bytes) {
        drop(file);
        // Best effort: the space is needed more than this second error.
        drop(disk.remove_file(&path));
        return Err(error);
    }
    Ok(Spare { number, bytes, file })
}

fn fill(file: &dyn DiskFile, bytes: u64) -> io::Result<()> {
    let zeros = vec![0; FILL_BYTES.min(usize::try_from(bytes).unwrap_or(FILL_BYTES))];
    let mut offset = 0;
    while offset < bytes {
        let length = usize::try_from(bytes - offset).unwrap_or(FILL_BYTES).min(FILL_BYTES);
        file.write_all_at(&zeros[..length], offset)?;
        offset += length as u64;
        if offset.is_multiple_of(FILL_SYNC_BYTES) {
            file.sync_data()?;
        }
    }
    file.sync_all()
}

/// Gives a prepared segment its first bytes and its name, durably.
pub(super) fn activate(
    disk: &dyn Disk,
    directory: &Path,
    spare: Spare,
    first_bytes: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    spare.file.write_all_at(first_bytes, 0)?;
    spare.file.sync_data()?;
    disk.rename(&temporary_path(directory, spare.number), &path(directory, spare.number))?;
    disk.sync_dir(directory)?;
    Ok(Arc::from(spare.file))
}

/// Bytes a segment must have for a first batch and another one.
pub(super) fn bytes_needed(first_batch: usize, batch: usize) -> u64 {
    (SECTOR + first_batch + batch) as u64
}

/// Loads the payloads that are not in memory, neighbours in one read.
pub(super) fn read_entries(
    found: Vec<Found>,
    files: &BTreeMap<u64, Arc<dyn DiskFile>>,
) -> io::Result<Vec<LogEntry>> {
    let mut entries = Vec::with_capacity(found.len());
    let mut run: Vec<(EntryId, Place, usize)> = Vec::new();
    for found in found {
        match found {
            Found::Memory(entry) => {
                read_run(&mut run, files, &mut entries)?;
                entries.push(entry);
            }
            Found::Disk { id, place, payload_bytes } => {
                let near = run.last().is_some_and(|(_, last, length)| {
                    let end = last.offset as usize + length;
                    let gap = (place.offset as usize).checked_sub(end);
                    last.segment == place.segment && gap.is_some_and(|gap| gap <= READ_GAP_BYTES)
                });
                if !near {
                    read_run(&mut run, files, &mut entries)?;
                }
                run.push((id, place, payload_bytes as usize));
            }
        }
    }
    read_run(&mut run, files, &mut entries)?;
    Ok(entries)
}

fn read_run(
    run: &mut Vec<(EntryId, Place, usize)>,
    files: &BTreeMap<u64, Arc<dyn DiskFile>>,
    entries: &mut Vec<LogEntry>,
) -> io::Result<()> {
    let (Some((_, first, _)), Some((_, last, last_bytes))) = (run.first(), run.last()) else {
        return Ok(());
    };
    let damaged = |offset: usize, found: &str| {
        let segment = first.segment;
        let message = format!("log segment {segment} is damaged at byte {offset}: {found}");
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    let start = first.offset as usize - RECORD_HEAD;
    let end = last.offset as usize + last_bytes;
    let file = files.get(&first.segment).ok_or_else(|| damaged(start, "the segment is gone"))?;
    let mut buffer = vec![0; end - start];
    file.read_exact_at(&mut buffer, start as u64)?;
    let image = Bytes::from(buffer);
    for (id, place, payload_bytes) in run.iter() {
        let at = place.offset as usize - RECORD_HEAD - start;
        let (record, _) = Record::decode(&image, at, at + RECORD_HEAD + payload_bytes)
            .map_err(|found| damaged(start + at, &found))?;
        match record {
            Record::Entry { id: found, payload } if found == *id => {
                entries.push(LogEntry { id: found, payload });
            }
            Record::Entry { .. }
            | Record::Vote(_)
            | Record::Truncate(_)
            | Record::Purge(_)
            | Record::Committed(_)
            | Record::Checkpoint(_) => {
                return Err(damaged(start + at, "another record stands where the entry was"));
            }
        }
    }
    run.clear();
    Ok(())
}

/// Does what can wait: makes the next segment and removes old ones.
#[derive(Debug)]
pub(super) struct Housekeeper {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    chores: Arc<(Mutex<Chores>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Chores {
    wanted: Option<(u64, u64)>,
    preparing: bool,
    /// The last try failed; the next one is the rollover's, which reports the error.
    gave_up: bool,
    spare: Option<Spare>,
    /// Oldest first; each removal is durable before the next.
    removals: VecDeque<PathBuf>,
    error: Option<io::Error>,
    closed: bool,
}

enum Chore {
    Prepare { number: u64, bytes: u64 },
    Remove(PathBuf),
}

impl Housekeeper {
    pub(super) fn new(disk: Arc<dyn Disk>, directory: PathBuf) -> Self {
        Self { disk, directory, chores: Arc::default(), thread: None }
    }

    /// Lets a thread of its own do the work from now on.
    pub(super) fn spawn_thread(&mut self, name: &str) -> io::Result<()> {
        let (disk, directory) = (Arc::clone(&self.disk), self.directory.clone());
        let chores = Arc::clone(&self.chores);
        let thread =
            std::thread::Builder::new().name(format!("{name}-files")).spawn(move || {
                let (mutex, changed) = &*chores;
                loop {
                    let mut state = mutex.lock().expect(LOCK);
                    while state.idle() && !state.closed {
                        state = changed.wait(state).expect(LOCK);
                    }
                    if state.closed {
                        return;
                    }
                    drop(state);
                    work(&*disk, &directory, &chores);
                }
            })?;
        self.thread = Some(thread);
        Ok(())
    }

    /// Asks for the next segment, unless it is there or on its way.
    pub(super) fn want(&self, number: u64, bytes: u64) {
        let mut state = self.lock();
        if state.wanted.is_none() && !state.preparing && !state.gave_up && state.spare.is_none() {
            state.wanted = Some((number, bytes));
        }
        self.start(state);
    }

    /// Takes the prepared segment, waiting for it when it is in the making.
    pub(super) fn take(&self) -> Option<Spare> {
        let mut state = self.lock();
        state.wanted = None;
        while state.preparing {
            state = self.chores.1.wait(state).expect(LOCK);
        }
        state.gave_up = false;
        state.spare.take()
    }

    /// Removes a segment, after those asked for before.
    pub(super) fn remove(&self, number: u64) {
        let mut state = self.lock();
        state.removals.push_back(path(&self.directory, number));
        self.start(state);
    }

    /// The error of a removal, once.
    pub(super) fn check(&self) -> io::Result<()> {
        self.lock().error.take().map_or(Ok(()), Err)
    }

    fn start(&self, state: MutexGuard<'_, Chores>) {
        drop(state);
        if self.thread.is_some() {
            self.chores.1.notify_all();
        } else {
            while !self.lock().idle() {
                work(&*self.disk, &self.directory, &self.chores);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Chores> {
        self.chores.0.lock().expect(LOCK)
    }
}

impl Drop for Housekeeper {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            self.lock().closed = true;
            self.chores.1.notify_all();
            drop(thread.join());
        }
    }
}

impl Chores {
    fn idle(&self) -> bool {
        self.error.is_some() || (self.wanted.is_none() && self.removals.is_empty())
    }
}

/// Does one chore without holding the lock.
fn work(disk: &dyn Disk, directory: &Path, chores: &(Mutex<Chores>, Condvar)) {
    let (mutex, changed) = chores;
    let chore = {
        let mut state = mutex.lock().expect(LOCK);
        match (state.wanted.take(), state.removals.front()) {
            (Some((number, bytes)), _) => {
                state.preparing = true;
                Chore::Prepare { number, bytes }
            }
            (None, Some(path)) => Chore::Remove(path.clone()),
            (None, None) => return,
        }
    };
    match chore {
        Chore::Prepare { number, bytes } => {
            let spare = prepare(disk, directory, number, bytes);
            let mut state = mutex.lock().expect(LOCK);
            state.preparing = false;
            state.gave_up = spare.is_err();
            state.spare = spare.ok();
        }
        Chore::Remove(path) => {
            let removed = disk.remove_file(&path).and_then(|()| disk.sync_dir(directory));
            let mut state = mutex.lock().expect(LOCK);
            state.removals.pop_front();
            state.error = removed.err();
        }
    }
    changed.notify_all();
}
