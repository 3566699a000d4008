//! Files that a task can change at any time: its logs and the files of its executor. They are
//! opened by descriptor, one path component at a time, without following links, and only regular
//! files are read or written, because a task can put a link, a pipe or a device in their place.
//! Nothing here waits for another process.

use std::{
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::fs::{FileExt, MetadataExt},
    },
    path::{Component, Path, PathBuf},
};

use rustix::fs::{AtFlags, CWD, Mode, OFlags};

/// Names of one folder that are looked at: a task can make any number of them.
pub(crate) const NAMES_MAX: usize = 20_000;

/// Readable, not run, not waited for.
const REGULAR: OFlags =
    OFlags::NOFOLLOW.union(OFlags::NONBLOCK).union(OFlags::NOCTTY).union(OFlags::CLOEXEC);

/// A folder by its descriptor.
#[derive(Debug)]
pub struct Folder(OwnedFd);

impl Folder {
    /// The folder at a path that has no link in it.
    pub fn open(path: &Path) -> io::Result<Self> {
        // A descriptor of this kind needs no permission to read the folder.
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let start = if path.is_absolute() { "/" } else { "." };
        let mut held = rustix::fs::open(start, flags, Mode::empty())?;
        for part in path.components() {
            match part {
                Component::Normal(name) => {
                    held = rustix::fs::openat(&held, name, flags, Mode::empty())?;
                }
                Component::RootDir | Component::CurDir => {}
                Component::ParentDir | Component::Prefix(_) => {
                    return Err(io::Error::from(io::ErrorKind::InvalidInput));
                }
            }
        }
        Ok(Self(held))
    }

    /// The path of something in it, wherever the folder is by now.
    pub(crate) fn link(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd()))
    }

    /// Names in it, no more than [`NAMES_MAX`], in no order.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let entries = fs::read_dir(self.link(""))?.take(NAMES_MAX);
        let names = entries.map(|entry| Ok(entry?.file_name().into_string().ok()));
        Ok(names.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// A regular file to read, which has no other name.
    pub fn read(&self, name: &str) -> io::Result<File> {
        regular(self.0.as_fd(), Path::new(name), OFlags::RDONLY).and_then(only_name)
    }

    /// A regular file to append to, which has no other name; made if there is nothing.
    pub(crate) fn append(&self, name: &str) -> io::Result<File> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::APPEND;
        regular(self.0.as_fd(), Path::new(name), flags).and_then(only_name)
    }

    /// Removes what has this name, unless it is a folder.
    pub(crate) fn remove(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.0, name, AtFlags::empty())?)
    }
}

/// The regular file at a path; its last part is no link.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    regular(CWD, path, OFlags::RDONLY)
}

/// The end of a regular file, as text.
pub(crate) fn read_tail(path: &Path, bytes_max: u64) -> io::Result<String> {
    let file = open_regular(path)?;
    let start = file.metadata()?.len().saturating_sub(bytes_max);
    let mut tail = vec![0; usize::try_from(bytes_max).unwrap_or(usize::MAX)];
    let mut have = 0;
    while have < tail.len() {
        match file.read_at(&mut tail[have..], start.saturating_add(have as u64))? {
            0 => break,
            more => have = have.saturating_add(more),
        }
    }
    Ok(String::from_utf8_lossy(&tail[..have]).into_owned())
}

/// All bytes of a regular file that has no more than so many.
pub(crate) fn read_whole(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        let message = format!("{} is larger than {bytes_max} bytes", path.display());
        return Err(io::Error::other(message));
    }
    Ok(bytes)
}

/// Whether an error says that a task has put something else in the place of a file or folder.
pub fn is_spoiled(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let found = Errno::from_io_error(error);
    // A pipe that nobody reads cannot be opened for writing, a socket not at all.
    let spoiled = [Errno::LOOP, Errno::NOTDIR, Errno::ISDIR, Errno::NXIO, Errno::NOENT];
    let denied = [Errno::ACCESS, Errno::PERM];
    found.is_some_and(|found| spoiled.contains(&found) || denied.contains(&found))
        || error.kind() == io::ErrorKind::InvalidInput
}

fn regular(at: BorrowedFd<'_>, path: &Path, flags: OFlags) -> io::Result<File> {
    let file = File::from(rustix::fs::openat(at, path, flags | REGULAR, Mode::from(0o644))?);
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"))
}

/// A file with two names may be somebody else's.
fn only_name(file: File) -> io::Result<File> {
    if file.metadata()?.nlink() <= 1 {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a link to another file"))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{io::Write, os::unix::fs::symlink};

    use rustix::fs::FileType;

    use super::*;

    #[test]
    fn only_regular_files_without_another_name_are_opened_and_nothing_waits() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        fs::write(path.join("foreign"), "secret").unwrap();
        fs::create_dir(path.join("logs")).unwrap();
        let logs = path.join("logs");
        symlink("../foreign", logs.join("link")).unwrap();
        fs::hard_link(path.join("foreign"), logs.join("hard")).unwrap();
        rustix::fs::mknodat(CWD, logs.join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        fs::create_dir(logs.join("folder")).unwrap();
        let folder = Folder::open(&logs).unwrap();
        for name in ["link", "hard", "pipe", "folder"] {
            for opened in [folder.read(name), folder.append(name)] {
                let error = opened.unwrap_err();
                assert!(is_spoiled(&error), "{name}: {error}");
            }
        }
        assert!(open_regular(&logs.join("pipe")).is_err());
        folder.append("own").unwrap().write_all(b"text").unwrap();
        let mut text = String::new();
        folder.read("own").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "text");
        assert_eq!(read_tail(&logs.join("own"), 2).unwrap(), "xt");
        assert!(read_whole(&logs.join("own"), 3).is_err());
        assert_eq!(fs::read_to_string(path.join("foreign")).unwrap(), "secret");
    }

    #[test]
    fn a_link_on_the_way_is_not_followed_and_a_folder_that_moves_stays_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        fs::create_dir_all(path.join("a/logs")).unwrap();
        fs::create_dir_all(path.join("other/logs")).unwrap();
        let folder = Folder::open(&path.join("a/logs")).unwrap();
        fs::rename(path.join("a"), path.join("moved")).unwrap();
        symlink("other", path.join("a")).unwrap();
        assert!(Folder::open(&path.join("a/logs")).is_err());
        folder.append("x").unwrap();
        assert!(path.join("moved/logs/x").is_file());
    }
}
