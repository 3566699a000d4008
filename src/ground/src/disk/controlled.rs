//! `ControlledDisk`: real files on a disk that is full, slow or hangs whenever a file says so.
//!
//! Owns the disk faults that the harness in `jepsen/` injects into a running server without being
//! root. It exists only in a build with the feature `faults`, and acts only if [`VARIABLE`] names a
//! control file, which is read again before each call that changes something. Its words, separated
//! by white space:
//! ```text
//!  full        no file grows any more, and the medium has no free bytes
//!  slow MS     a sync takes that many milliseconds longer
//!  hang        calls that change something wait until the word is gone
//! ```
//! A fault that was met is noted in the file of the same name with `.met` appended: a harness must
//! see that a fault took hold. It must never pretend that something is durable, and never change
//! bytes.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use super::{Disk, DiskFile, OpenMode};

/// The environment variable that names the control file.
pub const VARIABLE: &str = "QUORATE_DISK_FAULTS";
/// Longest time one sync is held up.
const SLOW_MS_MAX: u64 = 60_000;
/// How often a hanging call looks whether it may go on.
const NAP: Duration = Duration::from_millis(5);

/// A disk under the control of a file.
#[derive(Debug)]
pub struct ControlledDisk {
    inner: Arc<dyn Disk>,
    control: Arc<Control>,
}

#[derive(Debug)]
struct Control {
    path: PathBuf,
    met: PathBuf,
}

/// What the control file says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Faults {
    full: bool,
    slow: Duration,
    hang: bool,
}

impl ControlledDisk {
    /// `inner` under the control of this file, which need not exist.
    pub fn new(inner: Arc<dyn Disk>, control: &Path) -> Self {
        let mut met = OsString::from(control);
        met.push(".met");
        let control = Control { path: control.to_path_buf(), met: met.into() };
        Self { inner, control: Arc::new(control) }
    }

    /// `inner`, under control if [`VARIABLE`] is set.
    pub fn from_environment(inner: Arc<dyn Disk>) -> Arc<dyn Disk> {
        match std::env::var_os(VARIABLE) {
            None => inner,
            Some(path) => {
                let path = PathBuf::from(path);
                tracing::warn!(control = %path.display(), "this build can be told to fail its disk");
                Arc::new(Self::new(inner, &path))
            }
        }
    }
}

impl Faults {
    fn parse(text: &str) -> Self {
        let mut faults = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            match word {
                "full" => faults.full = true,
                "hang" => faults.hang = true,
                "slow" => {
                    let milliseconds = words.next().and_then(|number| number.parse().ok());
                    faults.slow = Duration::from_millis(milliseconds.unwrap_or(0).min(SLOW_MS_MAX));
                }
                other => tracing::warn!(word = other, "unknown word in the control file"),
            }
        }
        faults
    }
}

impl Control {
    fn faults(&self) -> Faults {
        // A missing file is the usual case; one that is just being replaced is read at the next
        // call.
        fs::read_to_string(&self.path)
            .map_or_else(|_| Faults::default(), |text| Faults::parse(&text))
    }

    fn meet(&self, word: &str) {
        if let Err(error) = fs::write(&self.met, word) {
            tracing::error!(%error, path = %self.met.display(), "cannot note a disk fault");
        }
    }

    /// Before a call that changes something: waits while the disk hangs.
    fn change(&self) -> Faults {
        let mut faults = self.faults();
        if faults.hang {
            self.meet("hang");
            while faults.hang {
                thread::sleep(NAP);
                faults = self.faults();
            }
        }
        faults
    }

    fn sync(&self) {
        let faults = self.change();
        if !faults.slow.is_zero() {
            self.meet("slow");
            thread::sleep(faults.slow);
        }
    }

    /// Refuses growth to `size` bytes on a full disk.
    fn grow(&self, file: &dyn DiskFile, size: u64) -> io::Result<()> {
        if self.change().full && size > file.size()? {
            self.meet("full");
            return Err(io::Error::new(io::ErrorKind::StorageFull, "injected: no space left"));
        }
        Ok(())
    }
}

impl Disk for ControlledDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        match mode {
            OpenMode::Create | OpenMode::CreateNew => drop(self.control.change()),
            OpenMode::Read | OpenMode::ReadWrite => {}
        }
        let inner = self.inner.open(path, mode)?;
        Ok(Box::new(ControlledFile { inner, control: Arc::clone(&self.control) }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.control.change();
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.control.change();
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        self.control.change();
        self.inner.remove_dir_all(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.control.change();
        self.inner.create_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.control.sync();
        self.inner.sync_dir(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        self.inner.list(directory)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        self.inner.exists(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        if self.control.faults().full {
            self.control.meet("full");
            return Ok(0);
        }
        self.inner.free_bytes(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.inner.read(path)
    }
}

#[derive(Debug)]
struct ControlledFile {
    inner: Box<dyn DiskFile>,
    control: Arc<Control>,
}

impl DiskFile for ControlledFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.control.grow(&*self.inner, offset.saturating_add(bytes.len() as u64))?;
        self.inner.write_all_at(bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        self.inner.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        self.control.grow(&*self.inner, size)?;
        self.inner.set_size(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.control.sync();
        self.inner.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        self.control.sync();
        self.inner.sync_all()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::RealDisk;
    use super::*;

    fn disk() -> (tempfile::TempDir, ControlledDisk, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let control = directory.path().join("control");
        let disk = ControlledDisk::new(Arc::new(RealDisk), &control);
        (directory, disk, control)
    }

    #[test]
    fn a_full_disk_takes_what_fits_and_nothing_more() {
        let (directory, disk, control) = disk();
        let file = disk.open(&directory.path().join("a"), OpenMode::CreateNew).unwrap();
        file.write_all_at(b"0123456789", 0).unwrap();
        assert!(disk.free_bytes(directory.path()).unwrap() > 0);
        fs::write(&control, "full").unwrap();
        assert_eq!(disk.free_bytes(directory.path()).unwrap(), 0);
        file.write_all_at(b"98765", 5).unwrap();
        file.set_size(4).unwrap();
        assert_eq!(fs::read_to_string(directory.path().join("control.met")).unwrap(), "full");
        let error = file.write_all_at(b"xx", 3).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!(file.set_size(5).unwrap_err().kind(), io::ErrorKind::StorageFull);
        fs::remove_file(&control).unwrap();
        file.write_all_at(b"xx", 3).unwrap();
        assert_eq!(disk.read(&directory.path().join("a")).unwrap(), b"012xx");
    }

    #[test]
    fn a_hanging_disk_goes_on_when_the_word_is_gone() {
        let (directory, disk, control) = disk();
        let path = directory.path().join("a");
        let file = disk.open(&path, OpenMode::CreateNew).unwrap();
        fs::write(&control, "slow 1\nhang").unwrap();
        let met = directory.path().join("control.met");
        let writer = thread::spawn(move || {
            file.write_all_at(b"x", 0).unwrap();
            file.sync_data().unwrap();
        });
        let end = std::time::Instant::now() + Duration::from_mins(1);
        while !met.exists() {
            assert!(std::time::Instant::now() < end, "the hang was never met");
            thread::sleep(NAP);
        }
        assert_eq!(disk.read(&path).unwrap(), b"", "nothing was written while it hung");
        // Replaced whole: a file that is truncated first is empty for a moment, and says neither.
        let next = directory.path().join("control.next");
        fs::write(&next, "slow 1").unwrap();
        fs::rename(&next, &control).unwrap();
        writer.join().unwrap();
        assert_eq!(disk.read(&path).unwrap(), b"x");
        assert_eq!(fs::read_to_string(&met).unwrap(), "slow");
    }

    #[test]
    fn words_are_read_in_any_order() {
        let slow = |milliseconds| Faults {
            slow: Duration::from_millis(milliseconds),
            ..Faults::default()
        };
        assert_eq!(Faults::parse(""), Faults::default());
        assert_eq!(Faults::parse("slow 7"), slow(7));
        assert_eq!(Faults::parse("slow 999999"), slow(SLOW_MS_MAX));
        let both = Faults { full: true, hang: true, ..slow(0) };
        assert_eq!(Faults::parse("hang full"), both);
    }
}
