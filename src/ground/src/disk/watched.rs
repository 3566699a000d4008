//! A disk whose calls are watched: who asks finds out which call is the oldest that has not
//! returned.
//!
//! It owns nothing but the list of calls under way. It must never touch the disk when it is asked,
//! nor change what a call does: a medium that hangs hangs the caller, and [`DiskWatch::oldest`]
//! still answers.

use std::{
    collections::BTreeMap,
    io,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use super::{Disk, DiskFile, OpenMode};

/// The calls under way on a disk. Clones are the same list.
#[derive(Clone, Debug, Default)]
pub struct DiskWatch {
    calls: Arc<Mutex<Calls>>,
}

#[derive(Debug, Default)]
struct Calls {
    made: u64,
    /// By number, so the first is the oldest.
    under_way: BTreeMap<u64, &'static str>,
}

/// A call under way, until it is dropped.
#[derive(Debug)]
pub struct Call {
    watch: DiskWatch,
    number: u64,
}

impl DiskWatch {
    /// Notes a call until the value is dropped.
    pub fn enter(&self, what: &'static str) -> Call {
        let mut calls = self.lock();
        calls.made += 1;
        let number = calls.made;
        calls.under_way.insert(number, what);
        drop(calls);
        Call { watch: self.clone(), number }
    }

    /// The oldest call that has not returned: its number, which no other call has, and what it is.
    pub fn oldest(&self) -> Option<(u64, &'static str)> {
        let calls = self.lock();
        calls.under_way.first_key_value().map(|(number, what)| (*number, *what))
    }

    fn lock(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        self.watch.lock().under_way.remove(&self.number);
    }
}

/// A disk that notes its calls in a [`DiskWatch`].
#[derive(Debug)]
pub struct WatchedDisk {
    inner: Arc<dyn Disk>,
    watch: DiskWatch,
}

impl WatchedDisk {
    /// `inner`, watched.
    pub fn new(inner: Arc<dyn Disk>, watch: DiskWatch) -> Self {
        Self { inner, watch }
    }
}

impl Disk for WatchedDisk {
    fn open(&self, path: &Path, mode: OpenMode) -> io::Result<Box<dyn DiskFile>> {
        let _call = self.watch.enter("open");
        let inner = self.inner.open(path, mode)?;
        Ok(Box::new(WatchedFile { inner, watch: self.watch.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let _call = self.watch.enter("rename");
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let _call = self.watch.enter("remove");
        self.inner.remove_file(path)
    }

    fn remove_dir_all(&self, path: &Path) -> io::Result<()> {
        let _call = self.watch.enter("remove");
        self.inner.remove_dir_all(path)
    }

    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let _call = self.watch.enter("create");
        self.inner.create_dir_all(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        let _call = self.watch.enter("sync of the directory");
        self.inner.sync_dir(path)
    }

    fn list(&self, directory: &Path) -> io::Result<Vec<String>> {
        let _call = self.watch.enter("list");
        self.inner.list(directory)
    }

    fn exists(&self, path: &Path) -> io::Result<bool> {
        let _call = self.watch.enter("look");
        self.inner.exists(path)
    }

    fn free_bytes(&self, path: &Path) -> io::Result<u64> {
        let _call = self.watch.enter("look");
        self.inner.free_bytes(path)
    }

    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        let _call = self.watch.enter("read");
        self.inner.read(path)
    }

    fn hangs_for(&self) -> Duration {
        self.inner.hangs_for()
    }
}

#[derive(Debug)]
struct WatchedFile {
    inner: Box<dyn DiskFile>,
    watch: DiskWatch,
}

impl DiskFile for WatchedFile {
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let _call = self.watch.enter("write");
        self.inner.write_all_at(bytes, offset)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let _call = self.watch.enter("read");
        self.inner.read_exact_at(buffer, offset)
    }

    fn size(&self) -> io::Result<u64> {
        let _call = self.watch.enter("look");
        self.inner.size()
    }

    fn set_size(&self, size: u64) -> io::Result<()> {
        let _call = self.watch.enter("write");
        self.inner.set_size(size)
    }

    fn sync_data(&self) -> io::Result<()> {
        let _call = self.watch.enter("sync");
        self.inner.sync_data()
    }

    fn sync_all(&self) -> io::Result<()> {
        let _call = self.watch.enter("sync");
        self.inner.sync_all()
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::disk::fault::FaultDisk;

    #[test]
    fn a_call_that_hangs_is_seen_until_it_returns() {
        let disk = FaultDisk::new(1);
        let watch = DiskWatch::default();
        let watched = WatchedDisk::new(Arc::new(disk.clone()), watch.clone());
        let file = watched.open(Path::new("/file"), OpenMode::CreateNew).unwrap();
        file.write_all_at(b"x", 0).unwrap();
        assert_eq!(watch.oldest(), None);
        disk.stall();
        let writer = std::thread::spawn(move || file.sync_data());
        let (number, what) = loop {
            match watch.oldest() {
                Some(found) => break found,
                None => std::thread::yield_now(),
            }
        };
        assert_eq!(what, "sync");
        let second = watch.enter("write");
        assert_eq!(watch.oldest(), Some((number, "sync")), "the oldest counts");
        disk.resume();
        writer.join().unwrap().unwrap();
        assert_eq!(watch.oldest(), Some((number + 1, "write")));
        drop(second);
        assert_eq!(watch.oldest(), None);
    }
}
