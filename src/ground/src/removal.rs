//! Removal of folders that tasks have written into. It goes by descriptors, follows no link, and
//! never crosses a mount: what a task has bind-mounted into its folder is somebody else's, also
//! when it is of the same device.
//!
//! What cannot be removed is left and named, and the rest is removed all the same. The kernel
//! refuses to remove what something is mounted on, and says of each folder that is opened whether
//! that would cross a mount. Depth and number of what is removed have no bound; memory and open
//! files do.

use std::{
    ffi::{CStr, CString, OsStr},
    fs::{self, Permissions},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt, fs::PermissionsExt},
    },
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags, RenameFlags, ResolveFlags},
    io::Errno,
};

/// Folders inside each other that are open at a time. What is deeper is moved up to the top of the
/// tree first.
const DEPTH_MAX: usize = 32;
/// Folders that are moved up in one removal: a process that lives on could make more for ever.
const MOVES_MAX: u32 = 1 << 20;
/// Tries to empty a folder into which somebody goes on writing.
const TRIES_MAX: u32 = 8;
/// What the owner needs to remove what is in a folder.
const OWN: u32 = 0o700;

const FOLDER: OFlags = OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Refuses mounts (`EXDEV`), bind mounts of the same device too.
const WITHIN: ResolveFlags = ResolveFlags::NO_XDEV.union(ResolveFlags::NO_SYMLINKS);

/// Removes what is at a path, with all that is in it. What is gone is no error.
///
/// # Errors
///
/// What was left first, by its path. All that could be removed is gone by then.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    };
    let parent = match rustix::fs::open(parent, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
    {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut removal = Removal { top: None, at: path.to_owned(), moves: 0, left: Left::default() };
    removal.remove(parent.as_fd(), &CString::new(name.as_bytes())?, 0);
    removal.left.into_result()
}

/// One removal under way.
struct Removal {
    /// The topmost folder, into which deep ones are moved.
    top: Option<OwnedFd>,
    /// Where it is now.
    at: PathBuf,
    moves: u32,
    left: Left,
}

/// What could not be removed.
#[derive(Default)]
struct Left {
    count: u64,
    first: Option<io::Error>,
}

impl Removal {
    /// Removes the entry of a folder that `self.at` leads to.
    fn remove(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) {
        let refused = match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return,
            Err(Errno::BUSY) => return self.leave_mount(),
            Err(refused) => refused,
        };
        for _ in 0..TRIES_MAX {
            let folder = match open(parent, name) {
                Ok(folder) => folder,
                Err(Errno::NOENT) => return,
                Err(Errno::XDEV) => return self.leave_mount(),
                Err(Errno::NOTDIR | Errno::LOOP) => return self.leave(refused),
                Err(error) => return self.leave(error),
            };
            if depth >= DEPTH_MAX {
                return self.move_up(parent, name);
            }
            let before = self.left.count;
            self.empty(&folder, depth);
            match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
                Ok(()) | Err(Errno::NOENT) => return,
                // What was left in it has been said.
                Err(_) if self.left.count > before => return,
                Err(Errno::BUSY) => return self.leave_mount(),
                Err(Errno::NOTEMPTY | Errno::EXIST) => {}
                Err(error) => return self.leave(error),
            }
        }
        self.leave(Errno::NOTEMPTY);
    }

    /// Removes what is in a folder, as far as that goes.
    fn empty(&mut self, folder: &OwnedFd, depth: usize) {
        let is_top = self.top.is_none();
        if is_top {
            match folder.try_clone() {
                Ok(held) => self.top = Some(held),
                Err(error) => return self.leave(error),
            }
        }
        let mut entries = match Dir::read_from(folder) {
            Ok(entries) => entries,
            Err(error) => return self.leave(error),
        };
        loop {
            let moves = self.moves;
            while let Some(entry) = entries.read() {
                let name = match entry {
                    Ok(entry) => entry.file_name().to_owned(),
                    Err(error) => return self.leave(error),
                };
                if name.as_bytes() == b"." || name.as_bytes() == b".." {
                    continue;
                }
                self.at.push(OsStr::from_bytes(name.as_bytes()));
                self.remove(folder.as_fd(), &name, depth.saturating_add(1));
                self.at.pop();
            }
            // What was moved up need not have been among the names that were read.
            if !is_top || self.moves == moves {
                return;
            }
            entries.rewind();
        }
    }

    /// Moves a folder to the top of the tree, where it is removed later.
    fn move_up(&mut self, parent: BorrowedFd<'_>, name: &CStr) {
        let Some(top) = &self.top else { return self.leave(Errno::NOTEMPTY) };
        let mut moved = Err(Errno::MLINK);
        while self.moves < MOVES_MAX {
            self.moves = self.moves.saturating_add(1);
            let shallow = format!(".removed-{}", self.moves);
            moved = rustix::fs::renameat_with(parent, name, top, &shallow, RenameFlags::NOREPLACE);
            if moved != Err(Errno::EXIST) {
                break;
            }
        }
        match moved {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(error) => self.leave(error),
        }
    }

    fn leave_mount(&mut self) {
        let path = self.at.display();
        let text = format!("{path} is a mount, which is left alone: unmount it (umount {path})");
        self.left.add(io::Error::new(io::ErrorKind::ResourceBusy, text));
    }

    fn leave(&mut self, error: impl Into<io::Error>) {
        let error = error.into();
        let text = format!("{}: {error}", self.at.display());
        self.left.add(io::Error::new(error.kind(), text));
    }
}

impl Left {
    fn add(&mut self, error: io::Error) {
        self.count = self.count.saturating_add(1);
        self.first.get_or_insert(error);
    }

    fn into_result(self) -> io::Result<()> {
        match (self.first, self.count) {
            (None, _) => Ok(()),
            (Some(first), 1) => Err(first),
            (Some(first), count) => {
                let more = count.saturating_sub(1);
                Err(io::Error::new(first.kind(), format!("{first}; and {more} more were left")))
            }
        }
    }
}

/// Opens a folder below another one, on the same mount. An owner who has taken its own rights away
/// gets them back.
fn open(parent: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let open = |flags| rustix::fs::openat2(parent, name, FOLDER | flags, Mode::empty(), WITHIN);
    let opened = open(OFlags::RDONLY);
    let is_open = match &opened {
        Ok(folder) => may_change(folder),
        Err(Errno::ACCESS) => false,
        Err(_) => return opened,
    };
    if is_open {
        return opened;
    }
    let held = open(OFlags::PATH)?;
    let link = format!("/proc/self/fd/{}", held.as_raw_fd());
    match fs::set_permissions(link, Permissions::from_mode(OWN)) {
        Ok(()) => open(OFlags::RDONLY),
        // It is said of what cannot be removed for that.
        Err(_) => opened,
    }
}

fn may_change(folder: &OwnedFd) -> bool {
    rustix::fs::fstat(folder).is_ok_and(|found| found.st_mode & OWN == OWN)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{os::unix::fs::symlink, process::Command};

    use super::*;

    /// Set where a test runs again in a mount namespace of its own, to the folder that it has
    /// mounts in.
    const MOUNTED: &str = "QUORATE_TEST_MOUNTED";

    #[test]
    fn all_kinds_of_things_go_and_what_links_lead_to_stays() {
        let directory = tempfile::tempdir().unwrap();
        let (tree, foreign) = (directory.path().join("tree"), directory.path().join("foreign"));
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("kept"), "x").unwrap();
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        symlink(&foreign, tree.join("a/link")).unwrap();
        symlink("nowhere", tree.join("a/b/dangling")).unwrap();
        fs::hard_link(foreign.join("kept"), tree.join("a/hard")).unwrap();
        for number in 0..2_000 {
            fs::write(tree.join(format!("a/b/c/{number}")), "x").unwrap();
        }
        let no_text = OsStr::from_bytes(b"\xff\n");
        fs::write(tree.join(no_text), "x").unwrap();
        fs::set_permissions(tree.join("a/b"), Permissions::from_mode(0o500)).unwrap();
        fs::set_permissions(tree.join("a/b/c"), Permissions::from_mode(0o000)).unwrap();
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
        remove_tree(&tree).unwrap();
        remove_tree(&tree.join("no/parent")).unwrap();
        symlink(&foreign, &tree).unwrap();
        remove_tree(&tree).unwrap();
        assert!(fs::symlink_metadata(&tree).is_err(), "the link itself goes");
        assert_eq!(fs::read_to_string(foreign.join("kept")).unwrap(), "x");
        remove_tree(&foreign.join("kept")).unwrap();
        assert!(!foreign.join("kept").exists(), "a file is a tree too");
    }

    /// Neither open files nor the stack are used up by what is as deep as it likes.
    #[test]
    fn a_tree_of_any_depth_goes() {
        let directory = tempfile::tempdir().unwrap();
        let tree = directory.path().join("tree");
        fs::create_dir(&tree).unwrap();
        let open = |parent: &OwnedFd| {
            rustix::fs::openat(parent, "d", FOLDER | OFlags::PATH, Mode::empty()).unwrap()
        };
        let top = rustix::fs::open(&tree, FOLDER | OFlags::PATH, Mode::empty()).unwrap();
        let mut held = top;
        for _ in 0..5_000 {
            rustix::fs::mkdirat(&held, "d", Mode::RWXU).unwrap();
            rustix::fs::mkdirat(&held, "e", Mode::RWXU).unwrap();
            held = open(&held);
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists());
    }

    /// Runs a test once more, where it may mount: root and whoever may have a user namespace can.
    /// False: nobody here can.
    fn again_with_mounts(test: &str, mounts: &str) -> bool {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("cd \"$1\" && {mounts} && exec \"$2\" --exact \"$3\"");
        let output = Command::new("unshare")
            .args(["-rm", "sh", "-c", &script, "sh"])
            .arg(directory.path())
            .arg(std::env::current_exe().unwrap())
            .arg(test)
            .env(MOUNTED, directory.path())
            .output();
        let said = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        said.is_ok_and(|said| {
            assert!(!said.contains("FAILED"), "{said}");
            said.contains("1 passed")
        })
    }

    #[test]
    fn a_mount_is_left_and_the_rest_of_the_tree_goes() {
        let Some(root) = std::env::var_os(MOUNTED).map(PathBuf::from) else {
            let test = "removal::tests::a_mount_is_left_and_the_rest_of_the_tree_goes";
            let mounts = "mkdir -p foreign tree/a/folder tree/b tree/c && echo x > foreign/kept && \
                touch tree/a/file tree/b/gone && mount --bind foreign tree/a/folder && \
                mount --bind foreign/kept tree/a/file && mount -t tmpfs none tree/c && echo x > tree/c/kept";
            if !again_with_mounts(test, mounts) {
                eprintln!("skipped: mounting needs root or a user namespace");
            }
            return;
        };
        let tree = root.join("tree");
        let error = remove_tree(&tree).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        let text = error.to_string();
        assert!(text.contains("is a mount") && text.contains("2 more"), "{text}");
        for kept in ["foreign/kept", "tree/a/file", "tree/c/kept"] {
            assert_eq!(fs::read_to_string(root.join(kept)).unwrap(), "x\n", "{kept}");
        }
        assert!(!tree.join("b").exists(), "what is not mounted goes");
        assert!(remove_tree(&tree.join("c")).is_err(), "the whole tree is a mount");
        for mount in ["a/folder", "a/file", "c"] {
            assert!(Command::new("umount").arg(tree.join(mount)).status().unwrap().success());
        }
        remove_tree(&tree).unwrap();
        assert!(!tree.exists() && root.join("foreign/kept").exists());
    }
}
