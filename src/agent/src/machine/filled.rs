//! How many bytes of the disk the allocations of this agent use, including ended ones whose folders
//! are kept. These bytes become free when the allocations go, so they count as part of the node's
//! disk, also after a restart of the agent.
//!
//! Tasks write into these folders, so the walk uses descriptors, follows no link, crosses no mount,
//! and stops at [`ENTRIES_MAX`] and [`DEPTH_MAX`]. Bytes beyond these bounds count as used by
//! others.

use std::{collections::BTreeMap, os::fd::OwnedFd, path::Path};

use rustix::{
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, ResolveFlags, Stat},
    io::Errno,
};

/// Files and folders that are looked at; about a second's work.
const ENTRIES_MAX: u32 = 200_000;
/// Folders inside each other that are looked into. Each is an open file.
const DEPTH_MAX: u32 = 64;
/// What `st_blocks` counts in, whatever the file system's blocks are.
const BLOCK_BYTES: u64 = 512;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Refuses mounts, bind mounts of the same device too.
const WITHIN: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS);

/// Bytes that are filled below a folder. Blocks. What cannot be looked at is left out.
pub(crate) fn filled_bytes(folder: &Path) -> u64 {
    let mut look = Look { left: ENTRIES_MAX, ..Look::default() };
    match rustix::fs::openat(CWD, folder, FOLDER, Mode::empty()) {
        Ok(opened) => look.look_into(&opened, 0),
        Err(error) => {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "cannot see how much of the disk allocations have filled");
        }
    }
    if look.left == 0 {
        let folder = folder.display();
        tracing::warn!(
            %folder, entries = ENTRIES_MAX,
            "allocations have more files than are counted: the rest of the disk that they have filled is taken from the node's"
        );
    }
    look.bytes
}

#[derive(Default)]
struct Look {
    bytes: u64,
    /// Entries that are still looked at.
    left: u32,
    /// Of files with several names, those that were seen. One that has a name elsewhere does not go
    /// with an allocation.
    names_seen: BTreeMap<(u64, u64), u64>,
}

impl Look {
    fn look_into(&mut self, folder: &OwnedFd, depth: u32) {
        let Ok(mut entries) = Dir::read_from(folder) else { return };
        while let Some(Ok(entry)) = entries.read() {
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let Some(left) = self.left.checked_sub(1) else { return };
            self.left = left;
            let Ok(stat) = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
                self.add_file(&stat);
                continue;
            }
            let opened = rustix::fs::openat2(folder, name, FOLDER, Mode::empty(), WITHIN);
            match opened {
                Err(Errno::XDEV) => continue,
                Ok(inner) if depth < DEPTH_MAX => self.look_into(&inner, depth.saturating_add(1)),
                Ok(_) | Err(_) => {}
            }
            self.add(&stat);
        }
    }

    fn add_file(&mut self, stat: &Stat) {
        if stat.st_nlink > 1 {
            let seen = self.names_seen.entry((stat.st_dev, stat.st_ino)).or_default();
            *seen = seen.saturating_add(1);
            if *seen < stat.st_nlink {
                return;
            }
        }
        self.add(stat);
    }

    fn add(&mut self, stat: &Stat) {
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK_BYTES));
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{fs, os::unix::fs::symlink, path::PathBuf};

    use super::*;

    const MIB: usize = 1 << 20;

    /// Whole MiB below a folder: folders themselves take a few KiB.
    fn filled_mb(folder: &Path) -> u64 {
        filled_bytes(folder) >> 20
    }

    fn written(path: PathBuf, mb: usize) -> PathBuf {
        fs::write(&path, vec![1; mb * MIB]).unwrap();
        path
    }

    #[test]
    fn bytes_that_would_go_with_the_allocations_are_counted_once() {
        let root = tempfile::tempdir().unwrap();
        let allocations = root.path().join("allocs");
        let inner = allocations.join("one/task/local");
        fs::create_dir_all(&inner).unwrap();
        assert_eq!(filled_mb(&allocations), 0);
        let own = written(inner.join("own"), 3);
        written(allocations.join("two"), 2);
        assert_eq!(filled_mb(&allocations), 5);
        // Not what a link leads to, a file without blocks, or one that has a name elsewhere.
        let foreign = written(root.path().join("foreign"), 7);
        symlink(&foreign, inner.join("link")).unwrap();
        symlink(root.path(), inner.join("folder")).unwrap();
        fs::hard_link(&foreign, inner.join("hard")).unwrap();
        fs::File::create(inner.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        assert_eq!(filled_mb(&allocations), 5);
        fs::hard_link(&own, inner.join("again")).unwrap();
        assert_eq!(filled_mb(&allocations), 5);
        ground::removal::remove_tree(&allocations.join("one")).unwrap();
        assert_eq!(filled_mb(&allocations), 2);
        assert_eq!(filled_mb(&root.path().join("none")), 0);
    }

    /// A task can make folders in folders, and files, without end.
    #[test]
    fn a_look_is_bounded_in_depth_and_entries() {
        let root = tempfile::tempdir().unwrap();
        let mut deep = root.path().to_owned();
        for _ in 0..=DEPTH_MAX + 1 {
            deep.push("d");
        }
        fs::create_dir_all(&deep).unwrap();
        written(deep.join("too-deep"), 4);
        assert_eq!(filled_mb(root.path()), 0);
        written(deep.parent().unwrap().parent().unwrap().join("deep"), 4);
        assert_eq!(filled_mb(root.path()), 4);
        let mut look = Look { left: 2, ..Look::default() };
        let opened = rustix::fs::openat(CWD, root.path(), FOLDER, Mode::empty()).unwrap();
        look.look_into(&opened, 0);
        assert_eq!((look.left, look.bytes >> 20), (0, 0));
    }
}
