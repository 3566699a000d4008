//! Durable small files: whole or not at all, also after power loss. Everything the agent and its
//! executors must not forget goes through here.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use fsm::limits;
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    machine::beneath::read_whole,
    task::runner::{EVENTS_MAX, MESSAGE_BYTES_MAX},
};

/// Largest file that [`read_json`] takes and [`write_json`] makes, bytes: what an allocation of the
/// largest job needs, with all events of its tasks.
pub(crate) const FILE_BYTES_MAX: u64 = 64 << 20;
/// JSON needs up to six bytes for one.
const _: () = {
    let events = limits::LIST_MAX * EVENTS_MAX * MESSAGE_BYTES_MAX;
    assert!(6 * (limits::JOB_BYTES_MAX + events) as u64 <= FILE_BYTES_MAX);
};

/// Replaces `path` by these bytes: temporary file, fsync, rename, fsync of the directory. Readable
/// by the owner alone.
pub(crate) fn write_durable(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("a file needs a directory"))?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    sync_directory(directory)
}

/// Makes the names in a directory durable.
pub(crate) fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// [`write_durable`] of a value as JSON. What [`read_json`] would not take is not written.
pub(crate) fn write_json<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let mut bytes = Bounded(Vec::new());
    serde_json::to_writer(&mut bytes, value)?;
    write_durable(path, &bytes.0)
}

/// Bytes that can be read back.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len().saturating_add(bytes.len()) as u64 > FILE_BYTES_MAX {
            let text = format!("it would have more than {FILE_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The value in a file, or `None` when there is no file.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    // A task may have put a pipe in its place.
    let bytes = match read_whole(path, FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let value = serde_json::from_slice(&bytes).map_err(|error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{}: {error}", path.display()))
    })?;
    Ok(Some(value))
}

/// Makes a directory and those above it, fsynced.
pub(crate) fn create_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        create_directory(parent)?;
        match fs::create_dir(path) {
            Ok(()) => sync_directory(parent)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_large_allocation_that_was_written_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        let meta = "\u{1}".repeat(4 << 20);
        write_json(&path, &meta).unwrap();
        assert!(fs::metadata(&path).unwrap().len() > 5 * (4 << 20), "JSON spells each byte out");
        assert_eq!(read_json::<String>(&path).unwrap(), Some(meta));
    }
}
