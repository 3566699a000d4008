//! Snapshot files: a whole state in one file, written from an O(1) clone, checked chunk by chunk.
//!
//! ```text
//! "QRSNAP01" | length u32 | crc32c u32 | applied meta | { length u32 | crc32c u32 | rows }* | 0 u32 | crc32c u32 of the count | count u64
//! row: key length u32 | key | frame length u32 | frame                                                              (little endian)
//! ```
//!
//! A file gets its name only when it is whole and synced; an older one is removed only after the newer one was read back.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use fsm::{State, codec};

use super::{applied::AppliedMeta, shadow::Loaded};
use crate::disk::{Disk, DiskFile, OpenMode};
use crate::plant::{Plant, is_planted};

const MAGIC: &[u8; 8] = b"QRSNAP01";
const CHUNK_BYTES: usize = 256 << 10;
const CHUNK_BYTES_MAX: usize = 96 << 20;

fn invalid(path: &Path, what: &str) -> io::Error {
    let message = format!("snapshot file {}: {what}", path.display());
    io::Error::new(io::ErrorKind::InvalidData, message)
}

/// Where snapshots are kept.
#[derive(Clone)]
pub struct SnapshotDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
}

impl SnapshotDirectory {
    /// Opens the directory, removes what a crash left half written and sets damaged files aside, so that none is ever sent to a peer.
    pub fn open(disk: Arc<dyn Disk>, path: &Path) -> io::Result<Self> {
        disk.create_dir_all(path)?;
        for name in disk.list(path)? {
            let end = Path::new(&name).extension();
            if end.is_some_and(|end| end == "tmp" || end == "incoming") {
                disk.remove_file(&path.join(name))?;
            }
        }
        let directory = Self { disk, path: path.to_path_buf() };
        for name in directory.names()? {
            let path = directory.path.join(name);
            if let Err(error) = check(&*directory.disk, &path) {
                directory.set_aside(&path, error)?;
            }
        }
        Ok(directory)
    }

    /// The disk it is on.
    pub fn disk(&self) -> &Arc<dyn Disk> {
        &self.disk
    }

    /// Gives a damaged file a name under which nobody looks for it, and keeps it for whoever wants to know. A file that could not be read this
    /// time may be whole, and is left where it is.
    fn set_aside(&self, path: &Path, error: io::Error) -> io::Result<()> {
        if error.kind() != io::ErrorKind::InvalidData {
            return Err(error);
        }
        tracing::error!(%error, "a snapshot file is damaged: it is set aside");
        self.disk.rename(path, &path.with_extension("damaged"))?;
        self.disk.sync_dir(&self.path)
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

    /// The newest file's path and meta, without its rows.
    pub fn newest_meta(&self) -> io::Result<Option<(PathBuf, AppliedMeta)>> {
        let mut names = self.names()?;
        names.sort();
        for name in names.iter().rev() {
            let path = self.path.join(name);
            let file = self.disk.open(&path, OpenMode::Read)?;
            match read_meta(&*file, &path) {
                Ok((meta, _)) => return Ok(Some((path, meta))),
                Err(error) => self.set_aside(&path, error)?,
            }
        }
        Ok(None)
    }

    /// Writes a snapshot, reads it back and removes the older ones.
    pub fn write(&self, state: &State, meta: &AppliedMeta) -> io::Result<PathBuf> {
        let temporary = self.path.join(format!("building-{:020}.tmp", meta.head.index));
        if self.disk.exists(&temporary)? {
            self.disk.remove_file(&temporary)?;
        }
        let file = self.disk.open(&temporary, OpenMode::CreateNew)?;
        write_rows(&*file, state, meta)?;
        if !is_planted(Plant::PurgeBeforeSync) {
            file.sync_all()?;
        }
        drop(file);
        self.adopt(&temporary, meta)
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
                self.disk.remove_file(&self.path.join(other))?;
            }
        }
        Ok(path)
    }

    /// A file to receive a snapshot into.
    pub fn receive(&self, name: &str) -> io::Result<(PathBuf, Box<dyn DiskFile>)> {
        let path = self.path.join(format!("{name}.incoming"));
        let file = self.disk.open(&path, OpenMode::Create)?;
        Ok((path, file))
    }
}

struct Output<'a> {
    file: &'a dyn DiskFile,
    offset: u64,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.offset)?;
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
}

fn write_rows(file: &dyn DiskFile, state: &State, meta: &AppliedMeta) -> io::Result<()> {
    let mut output = Output { file, offset: 0 };
    output.put(MAGIC)?;
    output.chunk(&meta.encode())?;
    let mut chunk = Vec::with_capacity(CHUNK_BYTES);
    let mut count = 0u64;
    for (key, frame) in state.frames() {
        for piece in [key.as_slice(), &frame] {
            let length = u32::try_from(piece.len()).map_err(io::Error::other)?;
            chunk.extend_from_slice(&length.to_le_bytes());
            chunk.extend_from_slice(piece);
        }
        count += 1;
        if chunk.len() >= CHUNK_BYTES {
            output.chunk(&chunk)?;
            chunk.clear();
        }
    }
    if !chunk.is_empty() {
        output.chunk(&chunk)?;
    }
    let mut end = 0u32.to_le_bytes().to_vec();
    end.extend_from_slice(&crc32c::crc32c(&count.to_le_bytes()).to_le_bytes());
    end.extend_from_slice(&count.to_le_bytes());
    output.put(&end)
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
    if input.take(8)? != MAGIC {
        return Err(invalid(path, "not a snapshot file, or of another version"));
    }
    let meta = input.chunk(0)?.ok_or_else(|| invalid(path, "no header"))?;
    let meta = codec::decode(&meta).map_err(|error| invalid(path, &error.to_string()))?;
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
        codec::open(frame).map(drop).map_err(|error| invalid(path, &error.to_string()))
    })
}

/// The state of a snapshot file, with every checksum and the digest checked.
pub fn read(disk: &dyn Disk, path: &Path) -> io::Result<Loaded> {
    let mut state = State::default();
    let meta = visit(disk, path, |key, frame| {
        state.load_row(key, frame).map_err(|error| invalid(path, &error.to_string()))
    })?;
    state.load_done(meta.head.clone());
    if state.digest() != meta.digest {
        return Err(invalid(path, "the digest does not match its rows"));
    }
    Ok(Loaded { state, meta })
}

#[cfg(test)]
mod tests;
