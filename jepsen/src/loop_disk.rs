//! A server's own disk: an ext4 file system in a file, whose power can be cut.
//!
//! Cutting the power shuts the file system down without writing anything (`EXT4_IOC_SHUTDOWN`, no flush of the journal): what
//! was not synced is gone, as if the machine had lost its power, and the next mount recovers as after one. It needs root. It
//! must never be used on a directory that is not a mount of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use rustix::ioctl;

use crate::owned::{Ledger, Thing, is_mounted, run};

/// The size of the file, which is sparse.
const BYTES: u64 = 512 << 20;
/// `EXT4_IOC_SHUTDOWN` of the kernel's `fs/ext4/ext4.h`, and its flag for "write nothing".
const EXT4_IOC_SHUTDOWN: ioctl::Opcode = 0x8004_587d;
const EXT4_GOING_FLAGS_NOLOGFLUSH: u32 = 2;

/// The file system of one server.
pub(crate) struct LoopDisk {
    image: PathBuf,
    mount_point: PathBuf,
    ledger: Arc<Mutex<Ledger>>,
}

impl LoopDisk {
    /// Makes the file system in `image` and mounts it at `mount_point`.
    pub(crate) fn create(
        image: &Path,
        mount_point: &Path,
        ledger: &Arc<Mutex<Ledger>>,
    ) -> Result<Self> {
        let file = File::create_new(image)
            .with_context(|| format!("cannot create {}", image.display()))?;
        file.set_len(BYTES).with_context(|| format!("cannot extend {}", image.display()))?;
        drop(file);
        run("mkfs.ext4", &["-q", "-F", "-m", "0", &image.to_string_lossy()])?;
        fs::create_dir_all(mount_point)
            .with_context(|| format!("cannot create {}", mount_point.display()))?;
        let disk = Self {
            image: image.to_owned(),
            mount_point: mount_point.to_owned(),
            ledger: Arc::clone(ledger),
        };
        disk.mount()?;
        let lost_and_found = mount_point.join("lost+found");
        fs::remove_dir(&lost_and_found)
            .with_context(|| format!("cannot remove {}", lost_and_found.display()))?;
        // The empty file system itself must survive the first cut.
        File::open(mount_point)
            .and_then(|directory| directory.sync_all())
            .with_context(|| format!("cannot sync {}", mount_point.display()))?;
        Ok(disk)
    }

    /// From now on nothing reaches the disk any more; what was not synced is lost.
    #[expect(unsafe_code, reason = "an ioctl has no safe wrapper")]
    pub(crate) fn cut_power(&self) -> Result<()> {
        ensure!(
            is_mounted(&self.mount_point)?,
            "{} is not a mount of its own",
            self.mount_point.display()
        );
        let directory = File::open(&self.mount_point)
            .with_context(|| format!("cannot open {}", self.mount_point.display()))?;
        // SAFETY: this request reads one u32 through the pointer, and `Setter` passes a pointer to one.
        let done = unsafe {
            let request = ioctl::Setter::<EXT4_IOC_SHUTDOWN, u32>::new(EXT4_GOING_FLAGS_NOLOGFLUSH);
            ioctl::ioctl(&directory, request)
        };
        done.with_context(|| format!("cannot cut the power of {}", self.mount_point.display()))
    }

    /// Unmounts it and mounts it again, which recovers its journal. Nobody may have a file open.
    pub(crate) fn remount(&self) -> Result<()> {
        self.unmount()?;
        self.mount()
    }

    /// Freezes it: whoever changes something waits.
    pub(crate) fn freeze(&self) -> Result<()> {
        self.ledger().add(Thing::Frozen(self.mount_point.clone()))?;
        run("fsfreeze", &["--freeze", &self.mount_point.to_string_lossy()])
    }

    /// Ends [`LoopDisk::freeze`].
    pub(crate) fn thaw(&self) -> Result<()> {
        self.ledger().undo(&Thing::Frozen(self.mount_point.clone()))
    }

    fn mount(&self) -> Result<()> {
        self.ledger().add(Thing::Mount(self.mount_point.clone()))?;
        let (image, mount_point) =
            (self.image.to_string_lossy(), self.mount_point.to_string_lossy());
        run("mount", &["-t", "ext4", "-o", "loop", &image, &mount_point])
    }

    fn unmount(&self) -> Result<()> {
        self.ledger().undo(&Thing::Mount(self.mount_point.clone()))
    }

    fn ledger(&self) -> std::sync::MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        // What fails here stays in the ledger, which tries again when it is dropped itself.
        self.thaw().ok();
        self.unmount().ok();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::io::Write;

    use super::*;
    use crate::{fault::Means, probe};

    /// The whole point: a file that was not synced is gone after a cut, one that was synced is there. On a machine that
    /// cannot do it the test checks that the probe says why.
    #[test]
    fn a_power_cut_loses_exactly_what_was_not_synced() {
        let store = tempfile::tempdir().unwrap();
        if let Err(reason) = probe::can(Means::LoopDisks, &probe::Tools::default()) {
            assert!(!reason.is_empty());
            return;
        }
        let root = store.path().canonicalize().unwrap();
        let (ledger, _) = Ledger::open(&root).unwrap();
        let ledger = Arc::new(Mutex::new(ledger));
        let mount_point = root.join("data");
        let disk = LoopDisk::create(&root.join("disk.img"), &mount_point, &ledger).unwrap();
        let write = |name: &str, sync: bool| {
            let mut file = File::create(mount_point.join(name)).unwrap();
            file.write_all(b"content").unwrap();
            if sync {
                file.sync_all().unwrap();
                File::open(&mount_point).unwrap().sync_all().unwrap();
            }
        };
        write("kept", true);
        write("lost", false);
        disk.cut_power().unwrap();
        assert!(File::create(mount_point.join("late")).is_err(), "the disk has no power");
        disk.remount().unwrap();
        assert_eq!(fs::read(mount_point.join("kept")).unwrap(), b"content");
        assert!(!mount_point.join("lost").exists());
        disk.freeze().unwrap();
        disk.thaw().unwrap();
        write("again", true);
        drop(disk);
        assert!(!is_mounted(&mount_point).unwrap());
    }
}
