//! `FaultDisk`: a disk in memory that loses power, tears writes and returns errors, from a seed.
//!
//! It owns the model of what a disk may do to a program that forgets a sync. Each file has a
//! durable image and a current one (the page cache) with the writes between them; each directory
//! has durable names and changes not yet synced. A [`FaultDisk::power_cut`] keeps a random *subset*
//! of both (not a prefix) and may tear a write at 512-byte sectors; a failed sync marks its pages
//! clean although some are lost. The same seed and the same calls give the same bytes.
//! Not modelled: the loss of an unsynced directory creation. It must never be used in production.

use super::{Disk, DiskFile, OpenMode};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

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
}

#[derive(Debug)]
struct State {
    random: Random,
    /// Raised by a kill or a power cut; handles of an older one are dead.
    generation: u64,
    names: BTreeMap<PathBuf, Arc<Mutex<Node>>>,
    names_durable: BTreeMap<PathBuf, Arc<Mutex<Node>>>,
    names_pending: Vec<NameChange>,
    directories: BTreeSet<PathBuf>,
    capacity_bytes: Option<u64>,
    rates: ErrorRates,
    /// Countdowns: the call that brings one to zero fails.
    read_error_in: Option<u64>,
    write_error_in: Option<u64>,
    sync_error_in: Option<u64>,
    stop_in: Option<u64>,
    stopped: bool,
    counters: Counters,
}

/// One file, independent of its names.
#[derive(Debug, Default)]
struct Node {
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Changes that lead from `durable` to `current`, unless a failed sync lost some.
    pending: Vec<Change>,
}

#[derive(Debug)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Size(usize),
}

#[derive(Debug)]
enum NameChange {
    Link { path: PathBuf, node: Arc<Mutex<Node>> },
    Rename { from: PathBuf, to: PathBuf, node: Arc<Mutex<Node>> },
    Unlink { path: PathBuf },
}

impl FaultDisk {
    /// An empty disk whose every later choice follows from the seed.
    pub fn new(seed: u64) -> Self {
        let state = State {
            random: Random(seed),
            generation: 0,
            names: BTreeMap::new(),
            names_durable: BTreeMap::new(),
            names_pending: Vec::new(),
            directories: BTreeSet::from([PathBuf::from("/")]),
            capacity_bytes: None,
            rates: ErrorRates::default(),
            read_error_in: None,
            write_error_in: None,
            sync_error_in: None,
            stop_in: None,
            stopped: false,
            counters: Counters::default(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    /// Cuts the power: every handle dies, a random subset of what was not synced survives, and all
    /// injected faults except the capacity are gone.
    pub fn power_cut(&self, seed: u64) {
        let mut state = self.lock();
        let mut random = Random(seed ^ state.random.next());
        state.restart();
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
        for node in state.names.values() {
            lock_node(node).power_cut(&mut random, style);
        }
    }

    /// Ends the process that used the disk: handles die, but what was written stays in the page
    /// cache, unsynced, and a later power cut may still lose it. Injected faults are gone.
    pub fn kill(&self) {
        self.lock().restart();
    }

    /// From the `operations`-th changing call on (0 = the next one) every call fails, as if the
    /// machine had stopped there: a write then is pending, a sync has not happened.
    pub fn stop_after(&self, operations: u64) {
        self.lock().stop_in = Some(operations);
    }

    /// Lets the `calls`-th read from now (0 = the next) fail.
    pub fn fail_read_after(&self, calls: u64) {
        self.lock().read_error_in = Some(calls);
    }

    /// Lets the `calls`-th write from now (0 = the next) write a random part and fail.
    pub fn fail_write_after(&self, calls: u64) {
        self.lock().write_error_in = Some(calls);
    }

    /// Lets the `calls`-th file or directory sync from now (0 = the next) fail. The pages are
    /// clean afterwards although some were lost, so a second sync would succeed.
    pub fn fail_sync_after(&self, calls: u64) {
        self.lock().sync_error_in = Some(calls);
    }

    /// Random errors from now on, until a kill or a power cut.
    pub fn set_error_rates(&self, rates: ErrorRates) {
        self.lock().rates = rates;
    }

    /// Bounds the sum of all file sizes; `None` lifts the bound. A write that does not fit writes
    /// what fits and fails with `StorageFull`.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.lock().capacity_bytes = bytes;
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
}

impl State {
    fn restart(&mut self) {
        self.generation += 1;
        self.rates = ErrorRates::default();
        self.read_error_in = None;
        self.write_error_in = None;
        self.sync_error_in = None;
        self.stop_in = None;
        self.stopped = false;
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

    fn used_bytes(&self) -> u64 {
        self.names.values().map(|node| lock_node(node).current.len() as u64).sum()
    }

    fn node(&self, path: &Path) -> io::Result<&Arc<Mutex<Node>>> {
        self.names.get(path).ok_or_else(|| not_found(path))
    }

    fn change_name(&mut self, change: NameChange) {
        change.apply(&mut self.names);
        self.names_pending.push(change);
    }

    fn write(&mut self, node: &mut Node, bytes: &[u8], offset: usize) -> io::Result<()> {
        self.counters.writes += 1;
        let stop = self.operate();
        let failing = stop.is_ok()
            && (due(&mut self.write_error_in) || self.random.chance_ppm(self.rates.write_ppm));
        let mut length = bytes.len();
        if failing {
            length = self.random.below(length as u64 + 1).try_into().unwrap_or(length);
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
            return Err(io::Error::new(io::ErrorKind::StorageFull, "injected: no space left"));
        }
        if failing { Err(io::Error::other("injected: write error")) } else { Ok(()) }
    }

    fn sync(&mut self, node: &mut Node) -> io::Result<()> {
        self.counters.syncs += 1;
        self.operate()?;
        if due(&mut self.sync_error_in) || self.random.chance_ppm(self.rates.sync_ppm) {
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
        if due(&mut self.read_error_in) || self.random.chance_ppm(self.rates.read_ppm) {
            return Err(io::Error::other("injected: read error"));
        }
        Ok(())
    }
}

impl Node {
    fn write(&mut self, bytes: &[u8], offset: usize) {
        let change = Change::Write { offset, bytes: bytes.to_vec() };
        change.apply(&mut self.current);
        self.pending.push(change);
    }

    fn power_cut(&mut self, random: &mut Random, style: u64) {
        let mut image = std::mem::take(&mut self.durable);
        for change in std::mem::take(&mut self.pending) {
            let fate = match style {
                0 => 0,
                1 => 1,
                _ => random.below(4),
            };
            match (fate, change) {
                (1, change) => change.apply(&mut image),
                (2 | 3, Change::Write { offset, bytes }) => {
                    tear(&mut image, offset, &bytes, fate == 2, random);
                }
                (_, Change::Write { offset, bytes }) => {
                    // The size may be durable without the bytes.
                    if style > 1 && random.below(4) == 0 {
                        let end = image.len().max(offset + bytes.len());
                        image.resize(end, 0);
                    }
                }
                (_, Change::Size(_)) => {}
            }
        }
        self.current.clone_from(&image);
        self.durable = image;
    }
}

/// Writes some sectors of a write: a random set, or a random number from the front.
fn tear(image: &mut Vec<u8>, offset: usize, bytes: &[u8], any: bool, random: &mut Random) {
    let end = offset + bytes.len();
    let first = offset / SECTOR;
    let count = end.div_ceil(SECTOR) - first;
    let kept = random.below(count as u64 + 1);
    for number in 0..count {
        let keep = if any { random.below(2) == 0 } else { (number as u64) < kept };
        if keep {
            let from = offset.max((first + number) * SECTOR);
            let to = end.min((first + number + 1) * SECTOR);
            Change::Write { offset: from, bytes: bytes[from - offset..to - offset].to_vec() }
                .apply(image);
        }
    }
}

impl Change {
    fn apply(&self, image: &mut Vec<u8>) {
        match self {
            Self::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if image.len() < end {
                    image.resize(end, 0);
                }
                image[*offset..end].copy_from_slice(bytes);
            }
            Self::Size(size) => image.resize(*size, 0),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Arc<Mutex<Node>>>) {
        match self {
            Self::Link { path, node } => {
                names.insert(path.clone(), Arc::clone(node));
            }
            Self::Rename { from, to, node } => {
                if names.get(from).is_some_and(|found| Arc::ptr_eq(found, node)) {
                    names.remove(from);
                }
                names.insert(to.clone(), Arc::clone(node));
            }
            Self::Unlink { path } => {
                names.remove(path);
            }
        }
    }

    fn directory(&self) -> Option<&Path> {
        match self {
            Self::Link { path, .. } | Self::Unlink { path } => path.parent(),
            Self::Rename { to, .. } => to.parent(),
        }
    }
}

impl Disk for FaultDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut state = self.usable()?;
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
                state.operate()?;
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
        let mut state = self.usable()?;
        let node = Arc::clone(state.node(from)?);
        state.operate()?;
        state.change_name(NameChange::Rename {
            from: from.to_path_buf(),
            to: to.to_path_buf(),
            node,
        });
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut state = self.usable()?;
        state.node(path)?;
        state.operate()?;
        state.change_name(NameChange::Unlink { path: path.to_path_buf() });
        Ok(())
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let mut state = self.usable()?;
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
        let mut state = self.usable()?;
        for directory in path.ancestors() {
            state.directories.insert(directory.to_path_buf());
        }
        Ok(())
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let mut state = self.usable()?;
        if !state.directories.contains(path) {
            return Err(not_found(path));
        }
        state.counters.syncs += 1;
        state.operate()?;
        let rates = state.rates;
        if due(&mut state.sync_error_in) || state.random.chance_ppm(rates.sync_ppm) {
            return Err(io::Error::other("injected: directory sync error"));
        }
        let (inside, outside): (Vec<_>, Vec<_>) = std::mem::take(&mut state.names_pending)
            .into_iter()
            .partition(|change| change.directory() == Some(path));
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
        let state = self.disk.usable()?;
        if state.generation != self.generation {
            return Err(io::Error::other("handle of a process that has ended"));
        }
        Ok(state)
    }

    fn writable(&self) -> io::Result<MutexGuard<'_, State>> {
        if self.mode == OpenMode::Read {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "opened for reading"));
        }
        self.usable()
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
        self.usable()?.sync(&mut lock_node(&self.node))
    }

    fn sync_all(&self) -> io::Result<()> {
        self.sync_data()
    }
}

/// `SplitMix64`: small, and the same on every platform.
#[derive(Debug)]
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn chance_ppm(&mut self, ppm: u32) -> bool {
        ppm > 0 && self.below(1_000_000) < u64::from(ppm)
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

fn lock_node(node: &Mutex<Node>) -> MutexGuard<'_, Node> {
    node.lock().expect("no code panics while it holds a file")
}

fn stopped() -> io::Error {
    io::Error::other("injected: the machine has stopped")
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} not found", path.display()))
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    const PATH: &str = "/data/file";

    fn written(seed: u64) -> (FaultDisk, Box<dyn DiskFile>) {
        let disk = FaultDisk::new(seed);
        disk.create_dir_all(Path::new("/data")).unwrap();
        let file = disk.open(Path::new(PATH), OpenMode::CreateNew).unwrap();
        file.write_all_at(&[1; 2048], 0).unwrap();
        file.sync_all().unwrap();
        disk.sync_dir(Path::new("/data")).unwrap();
        (disk, file)
    }

    #[test]
    fn synced_bytes_and_names_survive_any_power_cut() {
        for seed in 0..200 {
            let (disk, file) = written(seed);
            file.write_all_at(&[2; 2048], 2048).unwrap();
            disk.power_cut(seed);
            let image = disk.read(Path::new(PATH)).unwrap();
            assert_eq!(image[..2048], [1; 2048]);
            assert!(image[2048..].chunks(SECTOR).all(|part| part.iter().all(|b| *b == part[0])));
            assert!(file.sync_data().is_err(), "handles die with the process");
        }
    }

    #[test]
    fn unsynced_bytes_are_sometimes_lost_kept_and_torn_out_of_order() {
        let (mut lost, mut kept, mut holes) = (0, 0, 0);
        for seed in 0..200 {
            let (disk, file) = written(seed);
            file.write_all_at(&[2; 2048], 0).unwrap();
            disk.power_cut(seed);
            let image = disk.read(Path::new(PATH)).unwrap();
            let sectors: Vec<u8> = image.chunks(SECTOR).map(|sector| sector[0]).collect();
            lost += u32::from(sectors == [1; 4]);
            kept += u32::from(sectors == [2; 4]);
            holes += u32::from(sectors.windows(2).any(|pair| pair == [1, 2]));
        }
        assert!(lost > 20 && kept > 20 && holes > 10, "{lost} {kept} {holes}");
    }

    #[test]
    fn an_unsynced_name_can_vanish_and_a_kill_keeps_it() {
        let mut vanished = 0;
        for seed in 0..100 {
            let (disk, _) = written(seed);
            disk.rename(Path::new(PATH), Path::new("/data/other")).unwrap();
            disk.kill();
            assert_eq!(disk.list(Path::new("/data")).unwrap(), ["other"]);
            disk.power_cut(seed);
            vanished += u32::from(disk.list(Path::new("/data")).unwrap() == ["file"]);
        }
        assert!((20..80).contains(&vanished), "{vanished}");
    }

    #[test]
    fn a_failed_sync_leaves_clean_pages_that_are_not_durable() {
        let mut lost = 0;
        for seed in 0..50 {
            let (disk, file) = written(seed);
            file.write_all_at(&[2; 512], 0).unwrap();
            disk.fail_sync_after(0);
            assert!(file.sync_data().is_err());
            file.sync_data().unwrap();
            assert_eq!(disk.read(Path::new(PATH)).unwrap()[0], 2, "still in the page cache");
            disk.power_cut(seed);
            lost += u32::from(disk.read(Path::new(PATH)).unwrap()[0] == 1);
        }
        assert!((10..40).contains(&lost), "{lost}");
    }

    #[test]
    fn a_full_disk_writes_what_fits() {
        let (disk, file) = written(1);
        disk.set_capacity(Some(2560));
        let error = file.write_all_at(&[3; 1024], 2048).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.size().unwrap(), 2560);
        assert_eq!(disk.free_bytes(Path::new("/")).unwrap(), 0);
        file.write_all_at(&[3; 1024], 0).unwrap();
    }

    #[test]
    fn a_stopped_disk_refuses_everything_until_the_restart() {
        let (disk, file) = written(1);
        disk.stop_after(1);
        file.write_all_at(&[2; 512], 0).unwrap();
        assert!(file.sync_data().is_err());
        assert!(disk.is_stopped());
        assert!(disk.read(Path::new(PATH)).is_err());
        disk.kill();
        assert_eq!(disk.read(Path::new(PATH)).unwrap()[0], 2);
    }

    #[test]
    fn the_same_seed_gives_the_same_disk() {
        let run = |seed| {
            let (disk, file) = written(seed);
            for number in 0..20_u8 {
                file.write_all_at(&[number; 1500], u64::from(number) * 700).unwrap();
            }
            disk.power_cut(seed);
            disk.read(Path::new(PATH)).unwrap()
        };
        assert_eq!(run(5), run(5));
        assert_ne!(run(5), run(6));
    }
}
