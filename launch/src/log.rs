//! The file that takes what a process prints.

use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

/// Bytes of the end of a log that are searched for its last lines.
const TAIL_BYTES: u64 = 64 << 10;

/// A log file; processes append to it.
#[derive(Clone, Debug)]
pub struct Log {
    path: PathBuf,
}

impl Log {
    /// The log at this path, which need not exist yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the file for appending; creates it if it does not exist.
    pub fn open(&self) -> io::Result<File> {
        File::options().create(true).append(true).open(&self.path)
    }

    /// Renames a log of more than `bytes_max` bytes to `NAME.log.1`, in place of an older one.
    pub fn rotate(&self, bytes_max: u64) -> io::Result<()> {
        if self.bytes() > bytes_max {
            fs::rename(&self.path, self.path.with_extension("log.1"))?;
        }
        Ok(())
    }

    /// Length of the file; 0 if it does not exist.
    pub fn bytes(&self) -> u64 {
        fs::metadata(&self.path).map_or(0, |file| file.len())
    }

    /// The whole text.
    pub fn text(&self) -> io::Result<String> {
        self.text_since(0)
    }

    /// The text after the first `bytes` bytes.
    pub fn text_since(&self, bytes: u64) -> io::Result<String> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(bytes))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// The last lines of the log, at most `count`, taken from its last 64 KiB.
    pub fn last_lines(&self, count: usize) -> io::Result<Vec<String>> {
        let text = self.text_since(self.bytes().saturating_sub(TAIL_BYTES))?;
        let lines: Vec<&str> = text.lines().collect();
        let first = lines.len().saturating_sub(count);
        Ok(lines[first..].iter().map(|line| (*line).to_owned()).collect())
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn the_end_of_a_log_is_read_and_a_long_log_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let log = Log::new(folder.path().join("server-1.log"));
        assert_eq!(log.bytes(), 0);
        assert!(log.last_lines(3).is_err(), "it is not there yet");
        fs::write(log.path(), "one\ntwo\nthree\n").unwrap();
        assert_eq!(log.last_lines(2).unwrap(), ["two", "three"]);
        assert_eq!(log.text_since(4).unwrap(), "two\nthree\n");
        assert_eq!(log.text_since(400).unwrap(), "");
        log.rotate(14).unwrap();
        assert_eq!(log.bytes(), 14);
        log.rotate(13).unwrap();
        assert_eq!(log.bytes(), 0);
        assert_eq!(fs::metadata(folder.path().join("server-1.log.1")).unwrap().len(), 14);
        fs::write(log.path(), ["x".repeat(100_000).as_bytes(), b"\nlast \xff"].concat()).unwrap();
        assert_eq!(log.last_lines(1).unwrap(), ["last \u{fffd}"]);
    }
}
