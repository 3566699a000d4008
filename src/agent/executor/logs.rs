//! Rotated log files: `<name>.<n>`, `n` rising, the oldest deleted. A new run of the task goes on where the last one stopped.
//! Invariant: only the newest file is written, so one that has a later one is complete; who reads relies on that.
//! A log that cannot be written never stops the task: what does not fit on the disk is dropped.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
};

/// One stream's files.
pub(crate) struct RotatingLog {
    directory: PathBuf,
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
        let index = indexes(directory, name)?.last().copied().unwrap_or(0);
        let file = open_file(directory, name, index)?;
        let bytes = file.metadata()?.len();
        Ok(Self {
            directory: directory.to_owned(),
            name: name.to_owned(),
            files_max: u64::from(files_max.max(1)),
            file_bytes_max: file_bytes_max.max(1),
            index,
            file,
            bytes,
        })
    }

    /// Appends, starting new files as they fill up.
    pub(crate) fn write(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            if self.bytes >= self.file_bytes_max {
                self.rotate()?;
            }
            let room = usize::try_from(self.file_bytes_max - self.bytes).unwrap_or(usize::MAX);
            let (now, later) = data.split_at(data.len().min(room));
            self.file.write_all(now)?;
            self.bytes += now.len() as u64;
            data = later;
        }
        Ok(())
    }

    fn rotate(&mut self) -> io::Result<()> {
        self.file = open_file(&self.directory, &self.name, self.index + 1)?;
        self.index += 1;
        self.bytes = self.file.metadata()?.len();
        for old in indexes(&self.directory, &self.name)? {
            if old + self.files_max <= self.index {
                fs::remove_file(self.directory.join(format!("{}.{old}", self.name)))?;
            }
        }
        Ok(())
    }
}

/// The numbers of a log's files, ascending.
pub(crate) fn indexes(directory: &Path, name: &str) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory)? {
        let file = entry?.file_name();
        let index = file
            .to_str()
            .and_then(|file| file.strip_prefix(name)?.strip_prefix('.')?.parse::<u64>().ok());
        found.extend(index);
    }
    found.sort_unstable();
    Ok(found)
}

fn open_file(directory: &Path, name: &str, index: u64) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(directory.join(format!("{name}.{index}")))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn files_fill_up_exactly_and_the_oldest_go() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let mut log = RotatingLog::open(path, "t.stdout", 2, 4).unwrap();
        log.write(b"abcdefghij").unwrap();
        assert_eq!(indexes(path, "t.stdout").unwrap(), [1, 2]);
        assert_eq!(fs::read(path.join("t.stdout.1")).unwrap(), b"efgh");
        drop(log);
        let mut log = RotatingLog::open(path, "t.stdout", 2, 4).unwrap();
        log.write(b"KLM").unwrap();
        assert_eq!(fs::read(path.join("t.stdout.2")).unwrap(), b"ijKL");
        assert_eq!(fs::read(path.join("t.stdout.3")).unwrap(), b"M");
        assert_eq!(indexes(path, "t.stdout").unwrap(), [2, 3]);
    }
}
