//! Where the machines of a run keep their directories: removed when it ends, and by a later run when it was killed.

use std::{
    fs::{self, File},
    io,
    path::Path,
};

use tempfile::TempDir;

const PREFIX: &str = "quorate-sim-";
/// A file that is locked for as long as somebody uses the directory that it is in.
const IN_USE: &str = "in-use";

/// The directories of all machines of a run.
pub(crate) struct Directories {
    inner: TempDir,
    _in_use: File,
}

impl Directories {
    /// In memory where there is such a file system: agents sync often.
    pub(crate) fn new() -> io::Result<Self> {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        Self::new_in(&parent)
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        remove_abandoned(parent)?;
        let inner = TempDir::with_prefix_in(PREFIX, parent)?;
        // It gets its name when it is locked: nobody finds it unlocked while this run goes on.
        let unnamed = inner.path().join("new");
        let in_use = File::create(&unnamed)?;
        in_use.lock()?;
        fs::rename(&unnamed, inner.path().join(IN_USE))?;
        Ok(Self { inner, _in_use: in_use })
    }

    pub(crate) fn path(&self) -> &Path {
        self.inner.path()
    }
}

/// Removes what runs left that were killed. What cannot be opened is another user's, or is being removed by its own run.
fn remove_abandoned(parent: &Path) -> io::Result<()> {
    for entry in fs::read_dir(parent)? {
        let entry = entry?;
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let Ok(in_use) = File::open(entry.path().join(IN_USE)) else { continue };
        if in_use.try_lock().is_ok() {
            // Another run may be about to remove it too.
            drop(fs::remove_dir_all(entry.path()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_a_killed_run_are_removed_and_nothing_else() -> io::Result<()> {
        let parent = tempfile::tempdir()?;
        let ended = parent.path().join("quorate-sim-ended");
        let foreign = parent.path().join("other");
        for directory in [&ended, &foreign] {
            fs::create_dir_all(directory.join("a0/state"))?;
            fs::write(directory.join(IN_USE), "")?;
        }
        let first = Directories::new_in(parent.path())?;
        assert!(!ended.exists());
        let second = Directories::new_in(parent.path())?;
        assert!(foreign.exists() && first.path().exists() && second.path().exists());
        let path = first.path().to_owned();
        drop(first);
        assert!(!path.exists() && second.path().exists());
        Ok(())
    }
}
