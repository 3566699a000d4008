//! Lists and reads files of an allocation. A path is resolved first, and the result must be inside
//! the allocation's directory; secrets and the executors' files are not shown. The resolved file is
//! kept open by its descriptor and never opened again by its name, because a task can put something
//! else there at any time.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use axum::{
    Json,
    body::Body,
    extract::{Path as UrlPath, State},
    response::{IntoResponse, Response},
};
use ground::caller::Caller;
use rustix::fs::{Mode, OFlags};
use serde_json::Value;
use tokio_stream::wrappers::ReceiverStream;

use super::{
    FileWork, Files, HttpError,
    describe::{self, SNIFFED_BYTES},
    query::Parameters,
};
use crate::serve::CalledBy;

/// Bytes of a file that are read at a time.
const CHUNK_BYTES: usize = 64 * 1024;
/// Entries in a listing.
const ENTRIES_MAX: usize = 10_000;

pub(super) async fn list(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Json<Value>, HttpError> {
    let directory = files.directory(&caller, &allocation)?;
    let (root, asked) = (directory.root().to_owned(), query.text("path").to_owned());
    let entries = files.work.run(move || {
        let found = resolve(&root, &asked).map_err(|error| missing(error, "open", &asked))?;
        let mut entries = Vec::new();
        for entry in fs::read_dir(found.link())?.take(ENTRIES_MAX) {
            let entry = entry?;
            if !is_hidden(&root, &found.path.join(entry.file_name())) {
                entries.extend(describe_entry(&found, &entry)?);
            }
        }
        entries.sort_by_key(|entry| entry["Name"].as_str().map(str::to_owned));
        Ok(entries)
    });
    Ok(Json(Value::Array(entries.await?)))
}

pub(super) async fn stat(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Json<Value>, HttpError> {
    let root = files.directory(&caller, &allocation)?.root().to_owned();
    let asked = asked_file(&query)?;
    let described = files.work.run(move || {
        let found = resolve(&root, &asked).map_err(|error| missing(error, "stat", &asked))?;
        let name = found.path.file_name().map(|name| name.to_string_lossy().into_owned());
        let metadata = found.metadata()?;
        let start = if metadata.is_file() { beginning(fs::File::open(found.link())) } else { None };
        Ok(describe::file(&name.unwrap_or_default(), &metadata, start.as_deref()))
    });
    Ok(Json(described.await?))
}

pub(super) async fn cat(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let found = file(&files, &caller, &allocation, &query).await?;
    copy(files.work, found, 0, u64::MAX).await
}

/// `limit` bytes from `offset`; all that follows without a limit, or with one that is not above 0.
pub(super) async fn read_at(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let found = file(&files, &caller, &allocation, &query).await?;
    let offset = query.number("offset")?.unwrap_or(0);
    let limit = query.limit("limit")?;
    copy(files.work, found, offset, limit.unwrap_or(u64::MAX)).await
}

/// The path of a file, which must be there.
fn asked_file(query: &Parameters) -> Result<String, HttpError> {
    match query.text("path") {
        "" => Err(HttpError::BadRequest("must provide a file name".to_owned())),
        path => Ok(path.to_owned()),
    }
}

/// Nomad's words for a path that leads to nothing; what is not shown is as good as not there.
fn missing(error: HttpError, verb: &str, asked: &str) -> HttpError {
    if let HttpError::NotFound(_) = error {
        return HttpError::NotFound(format!("{verb} {asked}: no such file or directory"));
    }
    error
}

/// The file that `path` asks for. A missing one is a bad request to what reads files, as in Nomad.
pub(super) async fn file(
    files: &Files,
    caller: &Caller,
    allocation: &str,
    query: &Parameters,
) -> Result<Found, HttpError> {
    let root = files.directory(caller, allocation)?.root().to_owned();
    let asked = asked_file(query)?;
    let held = files.work.run(move || {
        let found = resolve(&root, &asked).map_err(|error| {
            let error = missing(error, "stat", &asked);
            if let HttpError::NotFound(text) = error { HttpError::BadRequest(text) } else { error }
        })?;
        let metadata = found.metadata()?;
        if metadata.is_dir() {
            return Err(HttpError::BadRequest(format!("file {asked:?} is a directory")));
        }
        if metadata.is_file() {
            return Ok(found);
        }
        Err(HttpError::BadRequest(format!("{asked:?} is not a file")))
    });
    held.await
}

/// What a path led to, by its descriptor. A task can rename what it owns and put a link or a pipe
/// in its place at any time: what was judged is what is described, listed and read all the same.
pub(super) struct Found {
    held: OwnedFd,
    /// Where it was found.
    path: PathBuf,
}

impl Found {
    /// Holds what is at `path`, which has no link in it below `root`; refuses one that was put
    /// there since.
    fn hold(root: &Path, path: PathBuf) -> io::Result<Self> {
        let inside = path.strip_prefix(root).map_err(io::Error::other)?;
        // Opened with `O_PATH`: that needs no permission to read and does not wait for the other
        // end of a pipe. Opening with links followed and then asking the kernel for the name is no
        // check: a task with its own mount namespace chooses that name.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut held = rustix::fs::open(root, flags, Mode::empty())?;
        for part in inside {
            held = rustix::fs::openat(&held, part, flags, Mode::empty())?;
        }
        let found = Self { held, path };
        // With these flags a link at the end is held itself.
        if found.metadata()?.is_symlink() {
            return Err(io::Error::from(io::ErrorKind::NotFound));
        }
        Ok(found)
    }

    pub(super) fn metadata(&self) -> io::Result<fs::Metadata> {
        fs::metadata(self.link())
    }

    /// Whether it is still what its path leads to.
    pub(super) fn is_in_place(&self) -> io::Result<bool> {
        let own = self.metadata()?;
        Ok(fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
    }

    /// Leads to what was found itself, whatever is at its path by now.
    pub(super) fn link(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.held.as_raw_fd()))
    }
}

/// Copies from a place in a file, or its end, to whoever asked, as fast as that one takes it.
async fn copy(
    work: FileWork,
    found: Found,
    offset: u64,
    limit: u64,
) -> Result<Response, HttpError> {
    let opened = work.run(move || {
        let file = fs::File::open(found.link())?;
        // Some places behind the end cannot even be read from.
        let start = offset.min(file.metadata()?.len());
        Ok((Arc::new(file), start))
    });
    let (file, mut at) = opened.await?;
    let (chunks_in, chunks) = tokio::sync::mpsc::channel::<io::Result<bytes::Bytes>>(4);
    tokio::spawn(async move {
        let mut left = limit;
        while left > 0 {
            let length = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
            let file = Arc::clone(&file);
            let read = work.run(move || {
                let mut buffer = vec![0; length];
                let have = file.read_at(&mut buffer, at)?;
                buffer.truncate(have);
                Ok(bytes::Bytes::from(buffer))
            });
            let read = read.await.map_err(io::Error::other);
            let have = read.as_ref().map_or(0, bytes::Bytes::len);
            if matches!(&read, Ok(chunk) if chunk.is_empty()) {
                return;
            }
            if chunks_in.send(read).await.is_err() || have == 0 {
                return;
            }
            at = at.saturating_add(have as u64);
            left = left.saturating_sub(have as u64);
        }
    });
    Ok(Body::from_stream(ReceiverStream::new(chunks)).into_response())
}

/// An entry of a directory; nothing when it is gone since it was listed.
fn describe_entry(folder: &Found, entry: &fs::DirEntry) -> io::Result<Option<Value>> {
    let metadata = match entry.metadata() {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let name = entry.file_name();
    let start = if metadata.is_file() {
        // The task may have put a link or a pipe in its place since.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&folder.held, &name, flags, Mode::empty());
        beginning(opened.map(fs::File::from).map_err(io::Error::from))
    } else {
        None
    };
    Ok(Some(describe::file(&name.to_string_lossy(), &metadata, start.as_deref())))
}

/// The first bytes of a regular file. Nothing if it cannot be read: what it is a file of is only a
/// guess anyway.
fn beginning(opened: io::Result<fs::File>) -> Option<Vec<u8>> {
    let file = opened.ok().filter(|file| file.metadata().is_ok_and(|found| found.is_file()))?;
    let mut start = vec![0; SNIFFED_BYTES];
    let have = file.read_at(&mut start, 0).ok()?;
    start.truncate(have);
    Some(start)
}

/// What is at a path: inside the allocation's directory and not hidden.
pub(super) fn resolve(root: &Path, asked: &str) -> Result<Found, HttpError> {
    let relative: PathBuf = Path::new(asked)
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
        .collect();
    let refused = || HttpError::NotFound(format!("no file `{asked}`"));
    let real = fs::canonicalize(root.join(relative)).map_err(|_| refused())?;
    let root = fs::canonicalize(root)?;
    if !real.starts_with(&root) || is_hidden(&root, &real) {
        return Err(refused());
    }
    Ok(Found::hold(&root, real)?)
}

fn is_hidden(root: &Path, path: &Path) -> bool {
    let Ok(inside) = path.strip_prefix(root) else { return true };
    let parts: Vec<_> = inside.components().map(Component::as_os_str).collect();
    parts.get(1).is_some_and(|second| *second == "secrets")
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::os::unix::fs::symlink;

    use rustix::fs::{CWD, FileType};

    use super::*;

    #[test]
    fn nothing_outside_and_no_secret_is_shown() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("a");
        for path in ["alloc/logs", "task/secrets", "task/local"] {
            fs::create_dir_all(root.join(path)).unwrap();
        }
        fs::write(directory.path().join("outside"), "x").unwrap();
        fs::write(root.join("task/secrets/key"), "x").unwrap();
        fs::write(root.join("task/local/data"), "x").unwrap();
        symlink("../../../outside", root.join("task/local/link")).unwrap();
        for bad in ["../outside", "task/secrets/key", "task/secrets", "task/local/link", "no"] {
            assert!(resolve(&root, bad).is_err(), "{bad}");
        }
        for good in ["", "/", "task/local/data", "/task/local", "alloc/../task/local"] {
            assert!(resolve(&root, good).is_ok(), "{good}");
        }
    }

    #[test]
    fn a_file_replaced_after_the_check_is_not_read() {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        let (root, foreign) = (base.join("a"), base.join("foreign"));
        let local = root.join("task/local");
        for (path, text) in [(local.join("d"), "own"), (foreign.clone(), "foreign")] {
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("x"), text).unwrap();
        }
        let file = resolve(&root, "task/local/d/x").unwrap();
        let folder = resolve(&root, "task/local/d").unwrap();
        fs::rename(local.join("d"), local.join("moved")).unwrap();
        symlink(&foreign, local.join("d")).unwrap();
        assert_eq!(fs::read_to_string(file.link()).unwrap(), "own");
        assert_eq!(fs::read_to_string(folder.link().join("x")).unwrap(), "own");
        // Put there after the path was judged, and before what it leads to is held.
        for path in ["d/x", "d"] {
            assert!(Found::hold(&root, local.join(path)).is_err(), "{path}");
        }

        let pipe = local.join("moved/x");
        fs::remove_file(&pipe).unwrap();
        rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert_eq!(fs::read_to_string(file.link()).unwrap(), "own");
        assert!(!Found::hold(&root, pipe).unwrap().metadata().unwrap().is_file());
    }

    #[test]
    fn an_entry_that_is_gone_since_it_was_listed_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["gone", "there"] {
            fs::write(directory.path().join(name), "x").unwrap();
        }
        let entries: Vec<_> =
            fs::read_dir(directory.path()).unwrap().collect::<io::Result<_>>().unwrap();
        fs::remove_file(directory.path().join("gone")).unwrap();
        let folder = resolve(directory.path(), "").unwrap();
        let described: Vec<_> =
            entries.iter().filter_map(|entry| describe_entry(&folder, entry).unwrap()).collect();
        assert_eq!(described.len(), 1);
        assert_eq!(described[0]["Name"], "there");
    }
}
