//! Snapshot files: a whole state in one file, written from an O(1) clone, checked chunk by chunk.
//!
//! ```text
//! "QRSNAP" | generation, two digits | length u32 | crc32c u32 | applied meta
//!          | { length u32 | crc32c u32 | rows }*
//!          | 0 u32 | crc32c u32 of the count | count u64
//! row: key length u32 | key | frame length u32 | frame                          (little endian)
//! ```
//!
//! A file gets its name only when it is whole and synced; an older one is removed only after the
//! newer one was read back. A snapshot for which the disk has no room is put off, and never takes
//! the log's last space.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use fsm::{GENERATION, State, codec, generation::OtherGeneration};
use ground::{
    disk::{Disk, DiskFile, OpenMode, is_full},
    plant::{Plant, is_planted},
};

use super::{applied::AppliedMeta, other_generation, shadow::Loaded};

/// What every snapshot file begins with; two digits of its generation follow.
const MAGIC_NAME: &[u8] = b"QRSNAP";
const MAGIC: [u8; 8] = magic(GENERATION);
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_BYTES_MAX: usize = 96 << 20;
/// What a snapshot that can wait leaves free for the log: as much as its longest segment.
const RESERVE_BYTES: u64 = 64 << 20;
const INCOMING: &str = ".incoming";
/// How often the directory is listed again because a file that it named was replaced.
const LISTINGS_MAX: usize = 8;

const fn magic(generation: u16) -> [u8; 8] {
    assert!(generation < 100, "the magic of a snapshot file has two digits");
    let [_, ones] = generation.to_be_bytes();
    [b'Q', b'R', b'S', b'N', b'A', b'P', b'0' + ones / 10, b'0' + ones % 10]
}

fn invalid(path: &Path, what: &str) -> io::Error {
    let message = format!("snapshot file {}: {what}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// What is wrong with a part of a file that does not decode: it is of another generation, for the
/// given reason, or damaged.
fn undecodable(path: &Path, other_generation: Option<String>, error: &dyn Display) -> io::Error {
    match other_generation {
        Some(why) => refusal(path, &why),
        None => invalid(path, &error.to_string()),
    }
}

fn refusal(path: &Path, why: &str) -> io::Error {
    other_generation::refusal(&format!("snapshot file {}: {why}", path.display()))
}

/// Where snapshots are kept. Clones are the same directory.
#[derive(Clone)]
pub struct SnapshotDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// Free bytes that the snapshot which was put off waits for; 0: none was put off.
    awaited_bytes: AtomicU64,
    /// States that this process has taken to make snapshots of; their files are begun later.
    begun: AtomicU64,
    /// Files that this process has begun to write, for their names.
    built: AtomicU64,
    /// Pieces are taken in one at a time.
    receiving: Mutex<()>,
}

/// How far a snapshot has been received.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// The next piece has to begin at this byte.
    Part(u64),
    /// The file is whole and synced.
    Whole(PathBuf),
}

impl SnapshotDirectory {
    /// Opens the directory, removes what a crash left half written and sets damaged files aside, so
    /// that none is ever sent to a peer. A file of another generation is an error, before anything
    /// is set aside.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> io::Result<Self> {
        disk.create_dir_all(path)?;
        for name in disk.list(path)? {
            let end = Path::new(&name).extension();
            if end.is_some_and(|end| end == "tmp" || end == "incoming") {
                disk.remove_file(&path.join(name))?;
            }
        }
        // A process that was killed just before it synced a name leaves one that a power cut takes
        // back.
        disk.sync_dir(path)?;
        let directory = Self { disk, path: path.to_path_buf(), shared: Arc::default() };
        let mut damaged = Vec::new();
        for name in directory.names()? {
            let path = directory.path.join(name);
            if let Err(error) = check(&*directory.disk, &path) {
                if error.kind() != io::ErrorKind::InvalidData {
                    return Err(error);
                }
                damaged.push((path, error));
            }
        }
        for (path, error) in damaged {
            directory.set_aside(&path, error)?;
        }
        Ok(directory)
    }

    /// The disk it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Gives a damaged file a name under which nobody looks for it, and keeps it for whoever wants
    /// to know. A file that could not be read this time may be whole, and is left where it is; so
    /// is one of another generation.
    fn set_aside(&self, path: &Path, error: io::Error) -> io::Result<()> {
        if error.kind() != io::ErrorKind::InvalidData {
            return Err(error);
        }
        set_aside(&*self.disk, path, &error)
    }

    fn names(&self) -> io::Result<Vec<String>> {
        let names = self.disk.list(&self.path)?;
        Ok(names.into_iter().filter(|name| name.ends_with(".snapshot")).collect())
    }

    /// The newest file that is whole, loaded. A damaged one is reported and set aside.
    pub fn newest(&self) -> io::Result<Option<(PathBuf, Loaded)>> {
        let mut names = self.names()?;
        names.sort();
        for name in names.iter().rev() {
            let path = self.path.join(name);
            match read(&*self.disk, &path) {
                Ok(loaded) => return Ok(Some((path, loaded))),
                Err(error) => self.set_aside(&path, error)?,
            }
        }
        Ok(None)
    }

    /// The newest file's path and meta, without its rows. A newer one may take its place meanwhile:
    /// then that one is the newest.
    pub fn newest_meta(&self) -> io::Result<Option<(PathBuf, AppliedMeta)>> {
        let mut listings = 0;
        'listing: loop {
            listings += 1;
            let mut names = self.names()?;
            names.sort();
            for name in names.iter().rev() {
                let path = self.path.join(name);
                let file = match self.disk.open(&path, OpenMode::Read) {
                    Err(error)
                        if error.kind() == io::ErrorKind::NotFound && listings < LISTINGS_MAX =>
                    {
                        continue 'listing;
                    }
                    opened => opened?,
                };
                match read_meta(&*file, &path) {
                    Ok((meta, _)) => return Ok(Some((path, meta))),
                    Err(error) => self.set_aside(&path, error)?,
                }
            }
            return Ok(None);
        }
    }

    /// Writes a snapshot, reads it back and removes the older ones.
    pub fn write(&self, state: &State, meta: &AppliedMeta) -> io::Result<PathBuf> {
        let temporary = self.build(state, meta, 0)?;
        self.adopt(&temporary, meta)
    }

    /// As [`Self::write`], for a snapshot that can wait: it is put off if it would take the space
    /// that the log needs.
    pub fn write_if_room(&self, state: &State, meta: &AppliedMeta) -> io::Result<Option<PathBuf>> {
        match self.build(state, meta, RESERVE_BYTES) {
            Ok(temporary) => {
                let path = self.adopt(&temporary, meta)?;
                self.shared.awaited_bytes.store(0, Ordering::Relaxed);
                Ok(Some(path))
            }
            Err(error) if is_full(&error) => {
                let file_bytes = write_rows(&mut |_, _| Ok(()), state, meta)?;
                let free = self.disk.free_bytes(&self.path).unwrap_or(0);
                self.put_off(file_bytes.saturating_add(RESERVE_BYTES), free);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes that a snapshot is to be built of the state as it is now.
    pub fn note_begun(&self) {
        self.shared.begun.fetch_add(1, Ordering::Relaxed);
    }

    /// How many snapshots of its own state this process has begun.
    pub fn begun(&self) -> u64 {
        self.shared.begun.load(Ordering::Relaxed)
    }

    /// Whether a snapshot was put off and waits for [`Self::has_room`].
    pub fn is_put_off(&self) -> bool {
        self.shared.awaited_bytes.load(Ordering::Relaxed) != 0
    }

    /// Whether the next snapshot, taken to be as large as the newest, leaves the log its space. If
    /// not, it is put off.
    pub fn has_room(&self) -> bool {
        // A disk that does not tell is asked by writing to it.
        let Ok(free) = self.disk.free_bytes(&self.path) else { return true };
        let estimate = self.newest_bytes().unwrap_or(0).saturating_add(RESERVE_BYTES);
        let needed = estimate.max(self.shared.awaited_bytes.load(Ordering::Relaxed));
        if free < needed {
            self.put_off(needed, free);
            return false;
        }
        if self.shared.awaited_bytes.swap(0, Ordering::Relaxed) != 0 {
            tracing::info!("there is room for the snapshot that was put off");
        }
        true
    }

    /// Whether there may be room for one that was put off although there is less than it waits for:
    /// the state may be smaller by now, which only writing it tells.
    pub fn may_have_room(&self) -> bool {
        self.disk.free_bytes(&self.path).is_ok_and(|free| free > RESERVE_BYTES)
    }

    fn put_off(&self, needed: u64, free: u64) {
        if self.shared.awaited_bytes.swap(needed, Ordering::Relaxed) == 0 {
            tracing::warn!(
                directory = %self.path.display(),
                needed_mib = needed >> 20,
                free_mib = free >> 20,
                "there is no room for a snapshot: it is put off, and the log grows; free some space"
            );
        }
    }

    /// Size of the newest snapshot, bytes; 0: there is none.
    pub fn newest_bytes(&self) -> io::Result<u64> {
        let Some(name) = self.names()?.into_iter().max() else { return Ok(0) };
        self.disk.open(&self.path.join(name), OpenMode::Read)?.size()
    }

    /// Writes a whole file under a temporary name; after an error nothing of it is left.
    fn build(&self, state: &State, meta: &AppliedMeta, reserve: u64) -> io::Result<PathBuf> {
        // Two may be built at a time, of one index even.
        let number = self.shared.built.fetch_add(1, Ordering::Relaxed);
        let name = format!("building-{:020}-{number}.tmp", meta.head.index);
        let temporary = self.path.join(name);
        let built = self.fill(&temporary, state, meta, reserve);
        if built.is_err() {
            drop(self.disk.remove_file(&temporary));
        }
        built.map(|()| temporary)
    }

    fn fill(
        &self,
        temporary: &Path,
        state: &State,
        meta: &AppliedMeta,
        reserve: u64,
    ) -> io::Result<()> {
        let file = self.disk.open(temporary, OpenMode::CreateNew)?;
        let mut write = |bytes: &[u8], offset: u64| -> io::Result<()> {
            let needed = reserve.saturating_add(bytes.len() as u64);
            if reserve > 0 && self.disk.free_bytes(&self.path)? < needed {
                let message = "what is left of the disk is for the log";
                return Err(io::Error::new(io::ErrorKind::StorageFull, message));
            }
            file.write_all_at(bytes, offset)
        };
        write_rows(&mut write, state, meta)?;
        if is_planted(Plant::PurgeBeforeSync) {
            return Ok(());
        }
        file.sync_all()
    }

    /// Takes a whole file into the directory under its proper name, after reading it back.
    pub fn adopt(&self, temporary: &Path, meta: &AppliedMeta) -> io::Result<PathBuf> {
        check(&*self.disk, temporary)?;
        let name = format!("{:020}-{:020}.snapshot", meta.head.index, meta.head.term);
        let path = self.path.join(&name);
        self.disk.rename(temporary, &path)?;
        self.disk.sync_dir(&self.path)?;
        for other in self.names()? {
            if other < name {
                match self.disk.remove_file(&self.path.join(other)) {
                    // A snapshot that is built and one that is installed both tidy up.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    removed => removed?,
                }
            }
        }
        Ok(path)
    }

    /// A file to receive a snapshot into. `name` is `TERM-INDEX-BYTES`: its last entry and its
    /// size.
    pub fn receive(&self, name: &str) -> io::Result<(PathBuf, Box<dyn DiskFile>)> {
        let path = self.path.join(format!("{name}{INCOMING}"));
        let file = self.disk.open(&path, OpenMode::Create)?;
        Ok((path, file))
    }

    /// Takes in a piece of the snapshot of this name, unless there is a gap before it; `done`: it
    /// is the last one.
    pub fn receive_piece(
        &self,
        name: &str,
        offset: u64,
        piece: &[u8],
        done: bool,
    ) -> io::Result<Received> {
        let _turn = self.shared.receiving.lock().unwrap_or_else(PoisonError::into_inner);
        if offset == 0 {
            self.forget_others(name)?;
        }
        let (path, file) = self.receive(name)?;
        let have = file.size()?;
        if offset > have {
            return Ok(Received::Part(have));
        }
        let written = file.write_all_at(piece, offset);
        let written = written.and_then(|()| if done { file.sync_all() } else { Ok(()) });
        if let Err(error) = written {
            // A second sync would succeed without what the first one lost, and a file without its
            // end keeps room that others need.
            self.disk.remove_file(&path)?;
            return Err(error);
        }
        if done {
            return Ok(Received::Whole(path));
        }
        Ok(Received::Part(file.size()?.min(offset.saturating_add(piece.len() as u64))))
    }

    /// Removes what other transfers have left, when one begins that was not known. A transfer that
    /// is still under way begins anew: it finds itself known by then, and removes nothing. A whole
    /// file may be about to be installed, unless there is a snapshot that is as new.
    fn forget_others(&self, name: &str) -> io::Result<()> {
        let own = format!("{name}{INCOMING}");
        let names = self.disk.list(&self.path)?;
        if names.contains(&own) {
            return Ok(());
        }
        let newest = names.iter().filter_map(|name| snapshot_index(name)).max();
        for other in names.iter().filter(|name| name.ends_with(INCOMING)) {
            let path = self.path.join(other);
            // One that was installed meanwhile is not there any more.
            let Ok(file) = self.disk.open(&path, OpenMode::Read) else { continue };
            let have = file.size()?;
            let is_awaited = announced(other)
                .is_some_and(|(index, bytes)| have >= bytes && Some(index) > newest);
            if !is_awaited {
                self.disk.remove_file(&path)?;
            }
        }
        Ok(())
    }
}

/// The index in the name of a snapshot file.
fn snapshot_index(name: &str) -> Option<u64> {
    name.strip_suffix(".snapshot")?.split('-').next()?.parse().ok()
}

/// Index and size in the name of a file that is being received.
fn announced(name: &str) -> Option<(u64, u64)> {
    let mut numbers = name.strip_suffix(INCOMING)?.split('-').skip(1);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Where the bytes of a file go: called with bytes and their offset.
type Write<'a> = &'a mut dyn FnMut(&[u8], u64) -> io::Result<()>;

struct Output<'a> {
    write: Write<'a>,
    offset: u64,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        (self.write)(bytes, self.offset)?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn chunk(&mut self, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let mut out = Vec::with_capacity(payload.len() + 8);
        out.extend_from_slice(&length.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
        out.extend_from_slice(payload);
        self.put(&out)
    }

    fn end(&mut self, rows: u64) -> io::Result<()> {
        let mut end = 0u32.to_le_bytes().to_vec();
        end.extend_from_slice(&crc32c::crc32c(&rows.to_le_bytes()).to_le_bytes());
        end.extend_from_slice(&rows.to_le_bytes());
        self.put(&end)
    }
}

fn put_row(chunk: &mut Vec<u8>, key: &[u8], frame: &[u8]) -> io::Result<()> {
    for piece in [key, frame] {
        let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
        chunk.extend_from_slice(&length.to_le_bytes());
        chunk.extend_from_slice(piece);
    }
    Ok(())
}

/// Makes a file; answers with its size.
fn write_rows(write: Write<'_>, state: &State, meta: &AppliedMeta) -> io::Result<u64> {
    let mut output = Output { write, offset: 0 };
    output.put(&MAGIC)?;
    output.chunk(&meta.encode())?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    let mut count = 0u64;
    for (key, frame) in state.frames() {
        put_row(&mut chunk, &key, &frame)?;
        count += 1;
        if chunk.len() >= CHUNK_BYTES {
            output.chunk(&chunk)?;
            chunk.clear();
        }
    }
    if !chunk.is_empty() {
        output.chunk(&chunk)?;
    }
    output.end(count)?;
    Ok(output.offset)
}

struct Input<'a> {
    file: &'a dyn DiskFile,
    path: &'a Path,
    offset: u64,
}

impl Input<'_> {
    fn take(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut out = vec![0; length];
        let (path, offset) = (self.path, self.offset);
        self.file.read_exact_at(&mut out, offset).map_err(|error| {
            if error.kind() == io::ErrorKind::UnexpectedEof {
                return invalid(path, &format!("cut short at {offset}"));
            }
            let message = format!("snapshot file {} at {offset}: {error}", path.display());
            io::Error::new(error.kind(), message)
        })?;
        self.offset += length as u64;
        Ok(out)
    }

    fn number(&mut self) -> io::Result<u32> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().map_err(|_| invalid(self.path, "cut short"))?))
    }

    /// The next chunk, or none at the end, where `rows` must be the count stored.
    fn chunk(&mut self, rows: u64) -> io::Result<Option<Vec<u8>>> {
        let length = self.number()? as usize;
        let crc = self.number()?;
        if length > CHUNK_BYTES_MAX {
            return Err(invalid(self.path, &format!("chunk at {} is too long", self.offset)));
        }
        let payload = self.take(if length == 0 { 8 } else { length })?;
        if crc32c::crc32c(&payload) != crc {
            return Err(invalid(self.path, &format!("damaged chunk before {}", self.offset)));
        }
        if length > 0 {
            return Ok(Some(payload));
        }
        if payload == rows.to_le_bytes() {
            Ok(None)
        } else {
            Err(invalid(self.path, "rows are missing"))
        }
    }
}

fn read_meta(file: &dyn DiskFile, path: &Path) -> io::Result<(AppliedMeta, u64)> {
    let mut input = Input { file, path, offset: 0 };
    let magic = input.take(MAGIC.len())?;
    if magic != MAGIC {
        let number = magic.strip_prefix(MAGIC_NAME).and_then(|rest| str::from_utf8(rest).ok());
        if let Some(Ok(found)) = number.map(str::parse) {
            return Err(refusal(path, &format!("it is {}", OtherGeneration(found))));
        }
        return Err(invalid(path, "not a snapshot file"));
    }
    let meta = input.chunk(0)?.ok_or_else(|| invalid(path, "no header"))?;
    let meta = codec::decode(&meta)
        .map_err(|error| undecodable(path, other_generation::of_frame(&error), &error))?;
    Ok((meta, input.offset))
}

fn visit(
    disk: &dyn Disk,
    path: &Path,
    mut row: impl FnMut(&[u8], &[u8]) -> io::Result<()>,
) -> io::Result<AppliedMeta> {
    let file = disk.open(path, OpenMode::Read)?;
    let (meta, offset) = read_meta(&*file, path)?;
    let mut input = Input { file: &*file, path, offset };
    let mut rows = 0u64;
    while let Some(chunk) = input.chunk(rows)? {
        let mut rest = chunk.as_slice();
        while !rest.is_empty() {
            let key = piece(&mut rest).ok_or_else(|| invalid(path, "a row is cut short"))?;
            let frame = piece(&mut rest).ok_or_else(|| invalid(path, "a row is cut short"))?;
            row(key, frame)?;
            rows += 1;
        }
    }
    if input.offset != file.size()? {
        return Err(invalid(path, "bytes after the end"));
    }
    Ok(meta)
}

fn piece<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (length, tail) = rest.split_first_chunk::<4>()?;
    let length = u32::from_le_bytes(*length) as usize;
    let (piece, tail) = tail.split_at_checked(length)?;
    *rest = tail;
    Some(piece)
}

fn check(disk: &dyn Disk, path: &Path) -> io::Result<AppliedMeta> {
    visit(disk, path, |_, frame| {
        codec::open(frame)
            .map(drop)
            .map_err(|error| undecodable(path, other_generation::of_frame(&error), &error))
    })
}

fn set_aside(disk: &dyn Disk, path: &Path, error: &io::Error) -> io::Result<()> {
    tracing::error!(%error, "a snapshot file is damaged: it is set aside");
    disk.rename(path, &path.with_extension("damaged"))?;
    disk.sync_dir(path.parent().unwrap_or(Path::new("/")))
}

/// Sets a file aside that its receiver found damaged, if it is damaged here: it would be sent again
/// and again.
pub fn set_aside_if_damaged(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match check(disk, path) {
        Err(error) if error.kind() == io::ErrorKind::InvalidData => set_aside(disk, path, &error),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// The state of a snapshot file, with every checksum and the digest checked.
pub fn read(disk: &dyn Disk, path: &Path) -> io::Result<Loaded> {
    let mut state = State::default();
    let meta = visit(disk, path, |key, frame| {
        state
            .load_row(key, frame)
            .map_err(|error| undecodable(path, other_generation::of_row(&error), &error))
    })?;
    state.load_done(meta.head.clone());
    if state.digest() != meta.digest {
        return Err(invalid(path, "the digest does not match its rows"));
    }
    Ok(Loaded { state, meta })
}

#[cfg(test)]
mod tests;
