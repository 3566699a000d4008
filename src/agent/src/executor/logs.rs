//! Rotated log files: `<name>.<n>` with a rising `n`; the oldest is deleted. A new run of the task
//! goes on with the numbers of the last run.
//!
//! Invariant: only the newest file is written. A reader may rely on it: a file is complete if there
//! is one with a higher number.
//!
//! A log never stops its task. Output that does not fit on the disk is dropped. If the task has put
//! something else in the place of a log file, that is removed, or its number is skipped.

use std::{
    fs::File,
    io::{self, Write},
    path::Path,
};

use crate::machine::beneath::{Folder, is_spoiled};

/// Highest number of a log file: far above what a task can write, far below the end of the type. A
/// file with a higher one is no log.
const INDEX_MAX: u64 = 1 << 40;
/// Places that are tried when something that cannot be removed is in the place of a log.
const PLACES_MAX: u64 = 16;

/// One stream's files.
pub(crate) struct RotatingLog {
    folder: Folder,
    name: String,
    files_max: u64,
    file_bytes_max: u64,
    index: u64,
    file: File,
    bytes: u64,
}

impl RotatingLog {
    /// Opens the newest file, or makes the first.
    pub(crate) fn open(
        directory: &Path,
        name: &str,
        files_max: u32,
        file_bytes_max: u64,
    ) -> io::Result<Self> {
        let folder = Folder::open(directory)?;
        let found = indexes(&folder, name)?;
        let (index, file) = open_from(&folder, name, found.last().copied().unwrap_or(0))?;
        let bytes = file.metadata()?.len();
        let files_max = u64::from(files_max.max(1));
        for old in found.into_iter().filter(|old| old.saturating_add(files_max) <= index) {
            drop(folder.remove(&file_name(name, old)));
        }
        let (name, file_bytes_max) = (name.to_owned(), file_bytes_max.max(1));
        Ok(Self { folder, name, files_max, file_bytes_max, index, file, bytes })
    }

    /// Appends, starting new files as they fill up.
    pub(crate) fn write(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let room = self.file_bytes_max.saturating_sub(self.bytes);
            if room == 0 {
                self.rotate()?;
                continue;
            }
            let room = usize::try_from(room).unwrap_or(usize::MAX);
            let (now, later) = data.split_at(data.len().min(room));
            self.file.write_all(now)?;
            self.bytes = self.bytes.saturating_add(now.len() as u64);
            data = later;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        let before = self.index;
        (self.index, self.file) = open_from(&self.folder, &self.name, before.saturating_add(1))?;
        self.bytes = self.file.metadata()?.len();
        for passed in before..self.index {
            if let Some(old) = passed.saturating_add(1).checked_sub(self.files_max) {
                // It may be gone, or a folder by now.
                drop(self.folder.remove(&file_name(&self.name, old)));
            }
        }
        Ok(())
    }
}

fn file_name(name: &str, index: u64) -> String {
    format!("{name}.{index}")
}

/// The numbers of a log's files, ascending.
pub fn indexes(folder: &Folder, name: &str) -> io::Result<Vec<u64>> {
    let number = |file: &String| {
        let digits = file.strip_prefix(name)?.strip_prefix('.')?;
        let index = digits.parse::<u64>().ok().filter(|index| *index <= INDEX_MAX)?;
        // `+1` and `01` are other files.
        (index.to_string() == digits).then_some(index)
    };
    let mut found: Vec<u64> = folder.names()?.iter().filter_map(number).collect();
    found.sort_unstable();
    Ok(found)
}

/// Opens the file of this number to append to. What a task has put in its place is removed; after a
/// folder comes the next number.
fn open_from(folder: &Folder, name: &str, first: u64) -> io::Result<(u64, File)> {
    let mut last = io::Error::other("the log has no more numbers for files");
    for index in first..first.saturating_add(PLACES_MAX).min(INDEX_MAX) {
        let file = file_name(name, index);
        match folder.append(&file) {
            Ok(opened) => return Ok((index, opened)),
            Err(error) if is_spoiled(&error) => last = error,
            Err(error) => return Err(error),
        }
        if folder.remove(&file).is_ok()
            && let Ok(opened) = folder.append(&file)
        {
            return Ok((index, opened));
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::{fs, os::unix::fs::symlink};

    use rustix::fs::{CWD, FileType, Mode};

    use super::*;

    #[test]
    fn files_fill_up_exactly_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let folder = Folder::open(path).unwrap();
        let mut log = RotatingLog::open(path, "t.stdout", 2, 4).unwrap();
        log.write(b"abcdefghij").unwrap();
        assert_eq!(indexes(&folder, "t.stdout").unwrap(), [1, 2]);
        assert_eq!(fs::read(path.join("t.stdout.1")).unwrap(), b"efgh");
        drop(log);
        let mut log = RotatingLog::open(path, "t.stdout", 2, 4).unwrap();
        log.write(b"KLM").unwrap();
        assert_eq!(fs::read(path.join("t.stdout.2")).unwrap(), b"ijKL");
        assert_eq!(fs::read(path.join("t.stdout.3")).unwrap(), b"M");
        assert_eq!(indexes(&folder, "t.stdout").unwrap(), [2, 3]);
    }

    #[test]
    fn a_file_put_in_the_place_of_a_log_neither_blocks_nor_ends_the_task() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        fs::write(path.join("foreign"), "kept").unwrap();
        let pipe = |name: &str| {
            rustix::fs::mknodat(CWD, path.join(name), FileType::Fifo, Mode::RWXU, 0).unwrap();
        };
        pipe("t.stdout.0");
        symlink("foreign", path.join("t.stdout.1")).unwrap();
        fs::hard_link(path.join("foreign"), path.join("t.stdout.2")).unwrap();
        fs::create_dir(path.join("t.stdout.3")).unwrap();
        for name in ["t.stdout.18446744073709551615", "t.stdout.+7", "t.stdout.07"] {
            fs::write(path.join(name), "no log").unwrap();
        }
        let mut log = RotatingLog::open(path, "t.stdout", 10, 2).unwrap();
        log.write(b"abcd").unwrap();
        pipe("t.stdout.6");
        // A file that is sparse, and near the end of what has a size.
        let wide = fs::File::create(path.join("t.stdout.7")).unwrap();
        wide.set_len(1 << 43).unwrap();
        log.write(b"efgh").unwrap();
        assert_eq!(fs::read(path.join("foreign")).unwrap(), b"kept");
        for (index, text) in [(4, "ab"), (5, "cd"), (6, "ef"), (8, "gh")] {
            assert_eq!(fs::read_to_string(path.join(file_name("t.stdout", index))).unwrap(), text);
        }
    }

    #[test]
    fn a_log_without_a_folder_drops_what_it_cannot_write() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("logs");
        fs::create_dir(&path).unwrap();
        let mut log = RotatingLog::open(&path, "t.stdout", 2, 4).unwrap();
        ground::removal::remove_tree(&path).unwrap();
        assert!(log.write(b"abcdefgh").is_err());
        assert!(RotatingLog::open(&path, "t.stdout", 2, 4).is_err_and(|error| is_spoiled(&error)));
    }
}
