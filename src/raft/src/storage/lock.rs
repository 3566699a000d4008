//! The lock on a data directory: one process per directory.
//!
//! It owns the file `lock` inside the directory, held with `flock` and carrying the owner's process
//! id. The kernel drops the lock when the process ends, however it ends, so there is nothing stale
//! to clean up; the file itself stays and must never be removed (a second process could then lock
//! another file of the same name).

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

const FILE_NAME: &str = "lock";

/// Why a data directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process holds the lock.
    #[error("data directory {} is in use by another process (pid {pid})", directory.display())]
    InUse {
        /// The directory.
        directory: PathBuf,
        /// What the lock file says about its owner; "unknown" when it says nothing.
        pid: String,
    },
    /// The lock file could not be opened, locked or written.
    #[error("cannot lock data directory {}{}", directory.display(), advice(source))]
    Io {
        /// The directory.
        directory: PathBuf,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
}

/// What whoever runs the server can do about it, if the error tells.
fn advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::ACCESS | Errno::PERM) => {
            "; the user that the server runs as has to be able to write to it"
        }
        Some(Errno::ROFS) => {
            "; its file system is read-only, as after errors of its disk: look at the kernel's log, repair it and mount it anew"
        }
        Some(Errno::NOSPC | Errno::DQUOT) => "; free some space",
        Some(Errno::IO) => {
            "; its disk or file system fails: look at the kernel's log and repair it, or restore this server: move its data directory away and let it rejoin with a new id"
        }
        _ => "",
    }
}

/// Holds the data directory until it is dropped.
#[derive(Debug)]
pub struct DirectoryLock {
    /// Invariant: locked for as long as this value lives.
    _file: File,
}

impl DirectoryLock {
    /// Locks an existing directory and writes this process's id into the lock file.
    pub fn acquire(directory: &Path) -> Result<Self, LockError> {
        let failed = |source| LockError::Io { directory: directory.to_path_buf(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(directory.join(FILE_NAME))
            .map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                file.read_to_string(&mut pid).map_err(failed)?;
                let pid = pid.trim();
                let pid = if pid.is_empty() { "unknown" } else { pid }.to_owned();
                return Err(LockError::InUse { directory: directory.to_path_buf(), pid });
            }
            Err(TryLockError::Error(source)) => return Err(failed(source)),
        }
        file.set_len(0).map_err(failed)?;
        file.write_all(format!("{}\n", std::process::id()).as_bytes()).map_err(failed)?;
        Ok(Self { _file: file })
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn a_second_lock_names_the_owner_and_a_released_one_is_free() {
        let directory = tempfile::tempdir().unwrap();
        let lock = DirectoryLock::acquire(directory.path()).unwrap();
        let error = DirectoryLock::acquire(directory.path()).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "data directory {} is in use by another process (pid {})",
                directory.path().display(),
                std::process::id()
            )
        );
        drop(lock);
        DirectoryLock::acquire(directory.path()).unwrap();
    }

    #[test]
    fn a_missing_directory_is_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let error = DirectoryLock::acquire(&directory.path().join("no")).unwrap_err();
        assert!(matches!(error, LockError::Io { .. }), "{error}");
        assert!(!error.to_string().contains(';'), "nothing is known of what to do: {error}");
    }

    #[test]
    fn an_error_of_the_disk_says_what_to_do() {
        let failed = |source: io::Error| {
            LockError::Io { directory: PathBuf::from("/data"), source }.to_string()
        };
        let broken = failed(Errno::IO.into());
        assert!(broken.starts_with("cannot lock data directory /data; its disk"), "{broken}");
        assert!(broken.contains("move its data directory away"), "{broken}");
        let denied = failed(Errno::ACCESS.into());
        assert!(denied.contains("has to be able to write to it"), "{denied}");
        assert!(failed(Errno::ROFS.into()).contains("is read-only"));
    }
}
