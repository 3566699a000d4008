//! `FaultDisk`: a disk in memory that loses power, tears writes and returns errors, from a seed.
//!
//! It owns the model of what a disk may do to a program that forgets a sync. Each file has a
//! durable image and a current one (the page cache) with the writes between them; each directory
//! has durable names and changes not yet synced. A [`FaultDisk::power_cut`] keeps a random *subset*
//! of both (not a prefix) and may tear a write at 512-byte sectors; a failed sync marks its pages
//! clean although some are lost; a stalled disk lets its callers wait. The same seed and the same
//! calls give the same bytes. Not modelled: the loss of an unsynced creation or renaming of a
//! directory. It must never be used in production.

mod image;
#[cfg(test)]
mod tests;

use super::{Disk, DiskFile, OpenMode};
use chance::Dice;
use image::{Change, NameChange, Names, Node, lock_node, strikes};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use crate::rt::Instant;

/// What the medium writes as a whole or not at all.
const SECTOR: usize = 512;

/// Chances of an error per million calls, for long simulations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorRates {
    /// A read fails.
    pub read_ppm: u32,
    /// A write fails after writing a part of its bytes.
    pub write_ppm: u32,
    /// A sync fails and its bytes may be lost.
    pub sync_ppm: u32,
}

/// What happened on a disk so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Calls that change something: writes, syncs, creations, renames, removals.
    pub operations: u64,
    /// Writes to files.
    pub writes: u64,
    /// Syncs of files and directories.
    pub syncs: u64,
    /// Power cuts so far.
    pub power_cuts: u64,
}

/// A deterministic in-memory disk. Clones share the same content.
#[derive(Clone, Debug)]
pub struct FaultDisk {
    state: Arc<Mutex<State>>,
    resumed: Arc<Condvar>,
}

#[derive(Debug)]
struct State {
    random: Dice,
    /// Raised by a kill or a power cut; handles of an older one are dead.
    generation: u64,
    names: Names,
    names_durable: Names,
    names_pending: Vec<NameChange>,
    directories: BTreeSet<PathBuf>,
    capacity_bytes: Option<u64>,
    full_kind: io::ErrorKind,
    rates: ErrorRates,
    /// Countdowns: the call that brings one to zero fails.
    read_error_in: Option<u64>,
    write_error_in: Option<u64>,
    sync_error_in: Option<u64>,
    stop_in: Option<u64>,
    /// The first change of a name in this directory starts the countdown of `stop_in` at this
    /// number.
    stop_in_at: Option<(PathBuf, u64)>,
    stopped: bool,
    stalled: bool,
    /// In virtual time.
    hangs_until: Option<Instant>,
    counters: Counters,
}

impl FaultDisk {
    /// An empty disk whose every later choice follows from the seed.
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Dice::new(seed),
            generation: 0,
            names: BTreeMap::new(),
            names_durable: BTreeMap::new(),
            names_pending: Vec::new(),
            directories: BTreeSet::from([PathBuf::from("/")]),
            capacity_bytes: None,
            full_kind: io::ErrorKind::StorageFull,
            rates: ErrorRates::default(),
            read_error_in: None,
            write_error_in: None,
            sync_error_in: None,
            stop_in: None,
            stop_in_at: None,
            stopped: false,
            stalled: false,
            hangs_until: None,
            counters: Counters::default(),
        };
        Self::with(state)
    }

    fn with(state: State) -> Self {
        Self { state: Arc::new(Mutex::new(state)), resumed: Arc::default() }
    }

    /// Another disk with the same content, all of it durable, for trying out damage.
    #[must_use]
    pub fn copy(&self, seed: u64) -> Self {
        let copy = Self::new(seed);
        {
            let state = self.lock();
            let mut target = copy.lock();
            target.directories.clone_from(&state.directories);
            for (path, node) in &state.names {
                let bytes = lock_node(node).current.clone();
                let node = Node { current: bytes.clone(), durable: bytes, pending: Vec::new() };
                let node = Arc::new(Mutex::new(node));
                target.names.insert(path.clone(), Arc::clone(&node));
                target.names_durable.insert(path.clone(), node);
            }
        }
        copy
    }

    /// Cuts the power: every handle dies, a random subset of what was not synced survives, and all
    /// injected faults except the capacity are gone.
    pub fn power_cut(&self, seed: u64) {
        let mut state = self.lock();
        let mut random = Dice::new(seed ^ state.random.bits());
        state.restart();
        self.resumed.notify_all();
        state.counters.power_cuts += 1;
        let style = random.below(4);
        for change in std::mem::take(&mut state.names_pending) {
            let keep = match style {
                0 => false,
                1 => true,
                _ => random.below(2) == 0,
            };
            if keep {
                change.apply(&mut state.names_durable);
            }
        }
        state.names = state.names_durable.clone();
        state.restore_directories();
        for node in state.names.values() {
            lock_node(node).power_cut(&mut random, style);
        }
    }

    /// Ends the process that used the disk: handles die, but what was written stays in the page
    /// cache, unsynced, and a later power cut may still lose it. Injected faults are gone.
    pub fn kill(&self) {
        self.lock().restart();
        self.resumed.notify_all();
    }

    /// Takes back every fault that was injected and has not come yet, except the capacity.
    pub fn stop_injecting(&self) {
        self.lock().forget_faults();
    }

    /// From now on every call that changes something hangs, until [`Self::resume`], a kill or a
    /// power cut. Not for simulations, whose servers share a thread: see [`Self::hang`].
    pub fn stall(&self) {
        self.lock().stalled = true;
    }

    /// Ends a stall.
    pub fn resume(&self) {
        self.lock().stalled = false;
        self.resumed.notify_all();
    }

    /// In a simulation: what is written from now on takes at least until this much virtual time has
    /// passed.
    pub fn hang(&self, duration: Duration) {
        self.lock().hangs_until = Some(Instant::now() + duration);
    }

    /// From the `operations`-th changing call on (0 = the next one) every call fails, as if the
    /// machine had stopped there: a write then is pending, a sync has not happened.
    pub fn stop_after(&self, operations: u64) {
        self.lock().stop_in = Some(operations);
    }

    /// As [`Self::stop_after`], counted from the first creation, renaming or removal of a file in
    /// this directory on, which is operation 0.
    pub fn stop_after_touching(&self, directory: impl Into<PathBuf>, operations: u64) {
        self.lock().stop_in_at = Some((directory.into(), operations));
    }

    /// Lets the `calls`-th read from now (0 = the next) fail.
    pub fn fail_read_after(&self, calls: u64) {
        self.lock().read_error_in = Some(calls);
    }

    /// Lets the `calls`-th write from now (0 = the next) write a random number of its sectors and
    /// fail.
    pub fn fail_write_after(&self, calls: u64) {
        self.lock().write_error_in = Some(calls);
    }

    /// Lets the `calls`-th file or directory sync from now (0 = the next) fail. The pages are
    /// clean afterwards although some were lost, so a second sync would succeed.
    pub fn fail_sync_after(&self, calls: u64) {
        self.lock().sync_error_in = Some(calls);
    }

    /// Dice errors from now on, until a kill or a power cut.
    pub fn set_error_rates(&self, rates: ErrorRates) {
        self.lock().rates = rates;
    }

    /// Bounds the sum of all file sizes; `None` lifts the bound. A write that does not fit writes
    /// what fits and fails with `StorageFull`, or as tests ask for.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity_bytes = bytes;
    }

    /// What writes beyond the capacity fail with from now on: a quota that is used up has an error
    /// of its own.
    pub fn set_full_kind(&self, kind: io::ErrorKind) {
        self.lock().full_kind = kind;
    }

    /// Bit rot: changes one byte of a file on the medium, under every layer above.
    ///
    /// # Panics
    /// When the file does not exist or is shorter.
    pub fn corrupt(&self, path: &Path, offset: usize, mask: u8) {
        let state = self.lock();
        let mut node = lock_node(state.names.get(path).expect("the file to corrupt exists"));
        node.current[offset] ^= mask;
        if let Some(byte) = node.durable.get_mut(offset) {
            *byte ^= mask;
        }
    }

    /// Replaces the file's content on the medium.
    pub fn replace(&self, path: &Path, bytes: &[u8]) {
        let node = Node { current: bytes.to_vec(), durable: bytes.to_vec(), pending: Vec::new() };
        let node = Arc::new(Mutex::new(node));
        let mut state = self.lock();
        state.names.insert(path.to_path_buf(), Arc::clone(&node));
        state.names_durable.insert(path.to_path_buf(), node);
    }

    /// The files with their sizes, in the order of their paths.
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        let state = self.lock();
        let size = |node: &Mutex<Node>| lock_node(node).current.len();
        state.names.iter().map(|(path, node)| (path.clone(), size(node))).collect()
    }

    /// Another disk with only what is durable on this one now, as a power cut that keeps nothing
    /// else would leave it.
    #[must_use]
    pub fn durable_copy(&self) -> Self {
        let state = self.lock();
        let copy = Self::new(0);
        {
            let mut into = copy.lock();
            for (path, node) in &state.names_durable {
                let bytes = lock_node(node).durable.clone();
                let node = Node { current: bytes.clone(), durable: bytes, pending: Vec::new() };
                let node = Arc::new(Mutex::new(node));
                into.names.insert(path.clone(), Arc::clone(&node));
                into.names_durable.insert(path.clone(), node);
            }
            into.directories.clone_from(&state.directories);
            into.restore_directories();
        }
        copy
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.lock().used_bytes()
    }

    /// How many writes to this file are not durable yet; 0 for a missing file.
    pub fn unsynced_writes(&self, path: &Path) -> usize {
        self.lock().names.get(path).map_or(0, |node| lock_node(node).pending.len())
    }

    /// Whether the disk was stopped by [`FaultDisk::stop_after`].
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.lock().counters
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no code panics while it holds the disk")
    }

    fn usable(&self) -> io::Result<MutexGuard<'_, State>> {
        let state = self.lock();
        if state.stopped { Err(stopped()) } else { Ok(state) }
    }

    /// As [`Self::usable`], for a call that changes something: waits while the disk stalls.
    fn changeable(&self) -> io::Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while state.stalled {
            state = self.resumed.wait(state).expect("no code panics while it holds the disk");
        }
        if state.stopped { Err(stopped()) } else { Ok(state) }
    }
}

impl State {
    fn restart(&mut self) {
        self.stalled = false;
        self.hangs_until = None;
        self.generation += 1;
        self.forget_faults();
        self.stopped = false;
    }

    fn forget_faults(&mut self) {
        self.rates = ErrorRates::default();
        self.read_error_in = None;
        self.write_error_in = None;
        self.sync_error_in = None;
        self.stop_in = None;
        self.stop_in_at = None;
    }

    /// A directory whose removal was lost is there again: no file is without one.
    fn restore_directories(&mut self) {
        let parents = self.names.keys().flat_map(|path| path.ancestors().skip(1));
        self.directories.extend(parents.map(Path::to_path_buf));
    }

    /// Counts a changing call; the error says that the machine stops at this call.
    fn operate(&mut self) -> io::Result<()> {
        self.counters.operations += 1;
        if due(&mut self.stop_in) {
            self.stopped = true;
            return Err(stopped());
        }
        Ok(())
    }

    /// A name is about to be changed.
    fn touch(&mut self, path: &Path) -> io::Result<()> {
        let here = self.stop_in_at.take_if(|(directory, _)| path.starts_with(directory));
        if let Some((_, operations)) = here {
            self.stop_in = Some(operations);
        }
        self.operate()
    }

    fn used_bytes(&self) -> u64 {
        self.names.values().map(|node| lock_node(node).current.len() as u64).sum()
    }

    fn node(&self, path: &Path) -> io::Result<&Arc<Mutex<Node>>> {
        self.names.get(path).ok_or_else(|| not_found(path))
    }

    /// Moves everything below a directory, at once and durably.
    fn rename_directory(&mut self, from: &Path, to: &Path) {
        let moved = |path: &PathBuf| match path.strip_prefix(from) {
            Ok(rest) if rest.as_os_str().is_empty() => to.to_path_buf(),
            Ok(rest) => to.join(rest),
            Err(_) => path.clone(),
        };
        for names in [&mut self.names, &mut self.names_durable] {
            *names = std::mem::take(names)
                .into_iter()
                .map(|(path, node)| (moved(&path), node))
                .collect();
        }
        for change in &mut self.names_pending {
            change.each_path(|path| *path = moved(path));
        }
        self.directories = self.directories.iter().map(moved).collect();
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.names_pending.push(change);
    }

    fn write(&mut self, node: &mut Node, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.counters.writes += 1;
        let stop = self.operate();
        let failing = stop.is_ok()
            && (due(&mut self.write_error_in) || strikes(&mut self.random, self.rates.write_ppm));
        let mut length = bytes.len();
        if failing {
            // A kernel copies by pages, so a write that fails half way ends on a sector.
            let sectors = (offset + length) / SECTOR - offset / SECTOR;
            let kept = usize::try_from(self.random.below(sectors as u64 + 1)).unwrap_or(0);
            length = ((offset / SECTOR + kept) * SECTOR).saturating_sub(offset);
        }
        let grown = (offset + length).saturating_sub(node.current.len()) as u64;
        let mut full = false;
        if let Some(capacity) = self.capacity_bytes
            && grown > 0
        {
            // The node is locked by the caller and may also be counted by `used_bytes`.
            let others: u64 = self
                .names
                .values()
                .filter_map(|other| other.try_lock().ok())
                .map(|other| other.current.len() as u64)
                .sum();
            let free = capacity.saturating_sub(others + node.current.len() as u64);
            if grown > free {
                full = true;
                let missing = usize::try_from(grown - free).unwrap_or(usize::MAX);
                length = length.saturating_sub(missing);
            }
        }
        if length > 0 {
            node.write(&bytes[..length], offset);
        }
        stop?;
        if full {
            return Err(io::Error::new(self.full_kind, "injected: no space left"));
        }
        if failing { Err(io::Error::other("injected: write error")) } else { Ok(()) }
    }

    fn sync(&mut self, node: &mut Node) -> io::Result<()> {
        self.counters.syncs += 1;
        self.operate()?;
        if due(&mut self.sync_error_in) || strikes(&mut self.random, self.rates.sync_ppm) {
            for change in std::mem::take(&mut node.pending) {
                if self.random.below(2) == 0 {
                    change.apply(&mut node.durable);
                }
            }
            return Err(io::Error::other("injected: sync error"));
        }
        for change in std::mem::take(&mut node.pending) {
            change.apply(&mut node.durable);
        }
        Ok(())
    }

    fn read_fault(&mut self) -> io::Result<()> {
        if due(&mut self.read_error_in) || strikes(&mut self.random, self.rates.read_ppm) {
            return Err(io::Error::other("injected: read error"));
        }
        Ok(())
    }
}

impl Disk for FaultDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut state = match mode {
            OpenMode::Read | OpenMode::ReadWrite => self.usable()?,
            OpenMode::Create | OpenMode::CreateNew => self.changeable()?,
        };
        let found = state.names.get(path).cloned();
        let node = match (found, mode) {
            (Some(_), OpenMode::CreateNew) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    format!("{} exists", path.display()),
                ));
            }
            (Some(node), OpenMode::Read | OpenMode::ReadWrite | OpenMode::Create) => node,
            (None, OpenMode::Read | OpenMode::ReadWrite) => return Err(not_found(path)),
            (None, OpenMode::Create | OpenMode::CreateNew) => {
                if !path.parent().is_some_and(|parent| state.directories.contains(parent)) {
                    return Err(not_found(path));
                }
                state.touch(path)?;
                let node = Arc::new(Mutex::new(Node::default()));
                state.change_name(NameChange::Link {
                    path: path.to_path_buf(),
                    node: Arc::clone(&node),
                });
                node
            }
        };
        let generation = state.generation;
        drop(state);
        Ok(Box::new(FaultFile { disk: self.clone(), node, generation, mode }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut state = self.changeable()?;
        if state.directories.contains(from) {
            state.operate()?;
            state.rename_directory(from, to);
            return Ok(());
        }
        let node = Arc::clone(state.node(from)?);
        state.touch(to)?;
        state.change_name(NameChange::Rename {
            from: from.to_path_buf(),
            to: to.to_path_buf(),
            node,
        });
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changeable()?;
        state.node(path)?;
        state.touch(path)?;
        state.change_name(NameChange::Unlink { path: path.to_path_buf() });
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changeable()?;
        if !state.directories.contains(path) {
            return Err(not_found(path));
        }
        state.operate()?;
        let inside: Vec<PathBuf> =
            state.names.keys().filter(|name| name.starts_with(path)).cloned().collect();
        for path in inside {
            state.change_name(NameChange::Unlink { path });
        }
        state.directories.retain(|directory| !directory.starts_with(path));
        Ok(())
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changeable()?;
        for directory in path.ancestors() {
            state.directories.insert(directory.to_path_buf());
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.changeable()?;
        if !state.directories.contains(path) {
            return Err(not_found(path));
        }
        state.counters.syncs += 1;
        state.operate()?;
        let rates = state.rates;
        if due(&mut state.sync_error_in) || strikes(&mut state.random, rates.sync_ppm) {
            return Err(io::Error::other("injected: directory sync error"));
        }
        let pending = std::mem::take(&mut state.names_pending);
        let (inside, outside): (Vec<_>, Vec<_>) = pending.into_iter().partition(|change| {
            change.directory().is_some_and(|directory| {
                // What was below a directory goes with it once its removal is durable.
                let is_removed = !state.directories.contains(directory);
                directory == path || (is_removed && directory.starts_with(path))
            })
        });
        for change in inside {
            change.apply(&mut state.names_durable);
        }
        state.names_pending = outside;
        Ok(())
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let state = self.usable()?;
        if !state.directories.contains(directory) {
            return Err(not_found(directory));
        }
        let names: BTreeSet<String> = state
            .names
            .keys()
            .chain(&state.directories)
            .filter(|path| path.parent() == Some(directory))
            .filter_map(|path| path.file_name())
            .map(|name| name.to_string_lossy().into_owned())
            .collect();
        Ok(names.into_iter().collect())
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let state = self.usable()?;
        Ok(state.names.contains_key(path) || state.directories.contains(path))
    }

    fn free_bytes(&self, _path: &Path) -> io::Result<u64> {
        let state = self.usable()?;
        Ok(state
            .capacity_bytes
            .map_or(u64::MAX, |capacity| capacity.saturating_sub(state.used_bytes())))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let mut state = self.usable()?;
        state.read_fault()?;
        Ok(lock_node(state.node(path)?).current.clone())
    }

    fn hangs_for(&self) -> Duration {
        let until = self.lock().hangs_until;
        until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }
}

#[derive(Debug)]
struct FaultFile {
    disk: FaultDisk,
    node: Arc<Mutex<Node>>,
    generation: u64,
    mode: OpenMode,
}

impl FaultFile {
    fn usable(&self) -> io::Result<MutexGuard<'_, State>> {
        self.of_this_process(self.disk.usable()?)
    }

    fn changeable(&self) -> io::Result<MutexGuard<'_, State>> {
        self.of_this_process(self.disk.changeable()?)
    }

    fn of_this_process<'a>(
        &self,
        state: MutexGuard<'a, State>,
    ) -> io::Result<MutexGuard<'a, State>> {
        if state.generation != self.generation {
            return Err(io::Error::other("handle of a process that has ended"));
        }
        Ok(state)
    }

    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        if self.mode == OpenMode::Read {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading"));
        }
        self.changeable()
    }
}

impl DiskFile for FaultFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut state = self.writable()?;
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        state.write(&mut lock_node(&self.node), bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let mut state = self.usable()?;
        state.read_fault()?;
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let node = lock_node(&self.node);
        let found = offset.checked_add(buffer.len()).and_then(|end| node.current.get(offset..end));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn size(&self) -> io::Result<u64> {
        let _state = self.usable()?;
        Ok(lock_node(&self.node).current.len() as u64)
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let mut state = self.writable()?;
        state.operate()?;
        let change = Change::Size(usize::try_from(size).map_err(io::Error::other)?);
        let mut node = lock_node(&self.node);
        change.apply(&mut node.current);
        node.pending.push(change);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.changeable()?.sync(&mut lock_node(&self.node))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
}

fn due(countdown: &mut Option<u64>) -> bool {
    match countdown {
        None => false,
        Some(0) => {
            *countdown = None;
            true
        }
        Some(left) => {
            *left -= 1;
            false
        }
    }
}

fn stopped() -> io::Error {
    io::Error::other("injected: the machine has stopped")
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} not found", path.display()))
}
