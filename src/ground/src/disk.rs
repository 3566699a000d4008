//! The disk seam: every byte the server core keeps goes through [`Disk`].
//!
//! It owns the two traits and [`RealDisk`], the one over `std::fs`. It must never hide a durability
//! step: creating, renaming and removing a name are durable only after [`Disk::sync_dir`], bytes
//! only after [`DiskFile::sync_data`] or [`DiskFile::sync_all`], and an error of a sync is final
//! (the page cache may have dropped the bytes), so nobody may sync again and go on. Who believes
//! what stands on the disk at a start syncs it first: the process that wrote it may have been
//! killed before it did, and what is seen is then of the page cache only, gone with the power.
//! [`fault::FaultDisk`] is the deterministic twin for tests and simulation.

#[cfg(any(test, feature = "faults"))]
pub mod controlled;
pub mod fault;
pub mod watched;

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// How [`Disk::open`] treats the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, for reading.
    Read,
    /// An existing file, for reading and writing.
    ReadWrite,
    /// A file for reading and writing, created when missing, never truncated.
    Create,
    /// A file for reading and writing which must not exist yet.
    CreateNew,
}

/// A directory tree on some medium. Paths are as for `std::fs`.
pub trait Disk: Debug + Send + Sync {
    /// Opens a file. A created name is durable only after [`Disk::sync_dir`] of its directory.
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>>;
    /// Gives a file or directory another name; a file replaces the file that had it. Atomic,
    /// durable after `sync_dir`.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file's name; durable after `sync_dir`. Open handles stay readable.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Removes a directory with everything in it.
    fn remove_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Creates a directory and its missing parents; no error when it exists.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// Makes the names in this directory durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;
    /// The names (not paths) in a directory, sorted.
    fn list(&self, directory: &Path) -> io::Result<Vec<String>>;
    /// Whether a file or directory has this name.
    fn exists(&self, path: &Path) -> io::Result<bool>;
    /// Bytes an unprivileged process may still allocate on the medium that holds `path`.
    fn free_bytes(&self, path: &Path) -> io::Result<u64>;
    /// The whole content of a file.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// Simulation only: how much longer the medium will hang, as a real one does inside a call.
    fn hangs_for(&self) -> Duration {
        Duration::ZERO
    }
}

/// An open file, addressed by offset; there is no cursor, so handles can be shared.
pub trait DiskFile: Debug + Send + Sync {
    /// Writes all bytes at the offset, growing the file when needed. After an error any part of
    /// them may have been written.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Fills the buffer from the offset; `UnexpectedEof` when the file ends before.
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
    /// The file's size in bytes.
    fn size(&self) -> io::Result<u64>;
    /// Cuts the file or extends it with zeros.
    fn set_size(&self, size: u64) -> io::Result<()>;
    /// Makes the bytes and the size durable.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the bytes and all metadata durable.
    fn sync_all(&self) -> io::Result<()>;
}

/// Whether the medium, or what its user may have of it, is used up.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// The operating system's files.
#[derive(Clone, Copy, Debug, Default)]
pub struct RealDisk;

impl Disk for RealDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        options.read(true);
        match mode {
            OpenMode::Read => &mut options,
            OpenMode::ReadWrite => options.write(true),
            OpenMode::Create => options.write(true).create(true).truncate(false),
            OpenMode::CreateNew => options.write(true).create_new(true),
        };
        Ok(Box::new(RealFile(options.open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir_all(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        fs::create_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(directory)? {
            let name = entry?.file_name();
            names.push(name.into_string().map_err(|name| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("file name {} in {} is not UTF-8", name.display(), directory.display()),
                )
            })?);
        }
        names.sort_unstable();
        Ok(names)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        path.try_exists()
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let status = rustix::fs::statvfs(path)?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        fs::read(path)
    }
}

#[derive(Debug)]
struct RealFile(File);

impl DiskFile for RealFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.0.set_len(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn check(disk: &dyn Disk, root: &Path) {
        let directory = root.join("a/b");
        disk.create_dir_all(&directory).unwrap();
        disk.create_dir_all(&directory).unwrap();
        let path = directory.join("one");
        assert_eq!(disk.open(&path, OpenMode::Read).unwrap_err().kind(), io::ErrorKind::NotFound);
        let file = disk.open(&path, OpenMode::CreateNew).unwrap();
        assert_eq!(
            disk.open(&path, OpenMode::CreateNew).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        file.write_all_at(b"hello", 3).unwrap();
        assert_eq!(file.size().unwrap(), 8);
        file.sync_data().unwrap();
        file.set_size(6).unwrap();
        file.sync_all().unwrap();
        disk.sync_dir(&directory).unwrap();
        let mut buffer = [0; 7];
        assert_eq!(
            file.read_exact_at(&mut buffer, 0).unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
        assert_eq!(disk.read(&path).unwrap(), b"\0\0\0hel");
        disk.open(&directory.join("two"), OpenMode::Create).unwrap();
        assert_eq!(disk.list(&directory).unwrap(), ["one", "two"]);
        disk.rename(&path, &directory.join("two")).unwrap();
        assert_eq!(disk.list(&directory).unwrap(), ["two"]);
        assert!(!disk.exists(&path).unwrap());
        assert_eq!(disk.read(&directory.join("two")).unwrap(), b"\0\0\0hel");
        assert!(disk.free_bytes(&directory).unwrap() > 0);
        disk.remove_file(&directory.join("two")).unwrap();
        let mut rest = [0; 3];
        file.read_exact_at(&mut rest, 3).unwrap();
        assert_eq!(&rest, b"hel", "an open handle outlives the name");
        disk.open(&directory.join("three"), OpenMode::Create).unwrap();
        disk.rename(&root.join("a"), &root.join("z")).unwrap();
        assert_eq!(disk.list(&root.join("z/b")).unwrap(), ["three"]);
        disk.rename(&root.join("z"), &root.join("a")).unwrap();
        disk.remove_dir_all(&root.join("a")).unwrap();
        assert!(!disk.exists(&directory).unwrap());
    }

    #[test]
    fn both_disks_behave_alike() {
        let directory = tempfile::tempdir().unwrap();
        check(&RealDisk, directory.path());
        check(&fault::FaultDisk::new(7), Path::new("/sim"));
    }
}
