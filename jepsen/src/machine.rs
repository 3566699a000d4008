//! The machine a run takes place on and what of it was used, for whoever reads the run later; and the state of the sources.
//!
//! It only looks: git and the server binary are asked, nothing is changed. What cannot be found out is left out, and no verdict depends on it.

use std::fs;
use std::io::Read;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::{netns, store::TestRecord, time::timestamp};

/// How long a server binary may take to tell its version.
const VERSION_TIMEOUT: Duration = Duration::from_secs(5);
/// What is read of it.
const VERSION_BYTES_MAX: u64 = 4096;
const POLL: Duration = Duration::from_millis(5);

/// Part of `test.json`: what the harness found and used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Machine {
    /// The release of the kernel.
    pub(crate) kernel: Option<String>,
    /// CPUs that the harness may use.
    pub(crate) cpus: Option<usize>,
    /// How servers reach each other: `proxy`, or `namespaces` with the name of the packet filter.
    pub(crate) network: Option<String>,
    /// The first line of what the server binary says about its version.
    pub(crate) server_version: Option<String>,
    /// Which file the server binary is.
    pub(crate) binary_file: Option<BinaryFile>,
    /// Whether the working directory's checkout had changes that are in no commit.
    pub(crate) is_tree_dirty: Option<bool>,
}

/// What tells one build from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BinaryFile {
    /// Its length.
    pub(crate) bytes: u64,
    /// When it was written: UTC as `YYYYmmddTHHMMSS`.
    pub(crate) written: String,
}

impl Machine {
    /// This machine, as a run of this record uses it.
    pub(crate) fn look(record: &TestRecord) -> Self {
        let network = if record.namespaces {
            format!("namespaces, {}", netns::filter_name())
        } else {
            "proxy".to_owned()
        };
        let mut ask = Command::new(&record.binary);
        Self {
            kernel: Some(rustix::system::uname().release().to_string_lossy().into_owned()),
            cpus: thread::available_parallelism().ok().map(NonZeroUsize::get),
            network: Some(network),
            server_version: first_line(ask.arg("--version"), VERSION_TIMEOUT),
            binary_file: BinaryFile::of(&record.binary),
            is_tree_dirty: is_tree_dirty(Path::new(".")),
        }
    }

    /// The same for people, in parts.
    pub(crate) fn describe(&self) -> Vec<String> {
        let dirty = |dirty: bool| if dirty { "with changes" } else { "as committed" };
        [
            self.kernel.as_ref().map(|release| format!("kernel {release}")),
            self.cpus.map(|count| format!("{count} CPUs")),
            self.network.as_ref().map(|network| format!("links by {network}")),
            self.server_version.clone(),
            self.binary_file
                .as_ref()
                .map(|file| format!("binary of {} bytes from {}", file.bytes, file.written)),
            self.is_tree_dirty.map(|is_dirty| format!("sources {}", dirty(is_dirty))),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

impl BinaryFile {
    fn of(path: &Path) -> Option<Self> {
        let file = fs::metadata(path).ok()?;
        Some(Self { bytes: file.len(), written: timestamp(file.modified().ok()?) })
    }
}

/// The commit of the working directory, if there is one.
pub(crate) fn git_commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    Some(commit.trim().to_owned()).filter(|commit| output.status.success() && !commit.is_empty())
}

/// Whether a checkout has changes, new files included; nothing if it is none. Takes no lock that others could meet.
fn is_tree_dirty(directory: &Path) -> Option<bool> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "status", "--porcelain"]).current_dir(directory);
    let output = command.output().ok()?;
    output.status.success().then_some(!output.stdout.is_empty())
}

/// The first line that a program prints, if it ends well and in time.
fn first_line(command: &mut Command, timeout: Duration) -> Option<String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let end = Instant::now() + timeout;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => thread::sleep(POLL),
            Ok(None) | Err(_) => {
                // Both fail only if it has ended meanwhile.
                child.kill().ok();
                child.wait().ok();
                return None;
            }
        }
    };
    let mut text = String::new();
    child.stdout.take()?.take(VERSION_BYTES_MAX).read_to_string(&mut text).ok()?;
    let line = text.lines().next()?.trim();
    (status.success() && !line.is_empty()).then(|| line.to_owned())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{probe::found, store::test_record};

    fn shell(script: &str, timeout: Duration) -> Option<String> {
        first_line(Command::new("sh").args(["-c", script]), timeout)
    }

    #[test]
    fn missing_figures_of_the_machine_are_left_out() {
        let record = TestRecord { binary: "/no/such/binary".into(), ..test_record() };
        let machine = Machine::look(&record);
        assert!(machine.kernel.as_ref().is_some_and(|release| !release.is_empty()));
        assert!(machine.cpus.is_some_and(|count| count > 0));
        assert_eq!(machine.network.as_deref(), Some("proxy"));
        assert_eq!((&machine.server_version, &machine.binary_file), (&None, &None));
        assert!(machine.describe().contains(&"links by proxy".to_owned()));
        let packets = Machine::look(&TestRecord { namespaces: true, ..record });
        let network = packets.network.unwrap();
        assert!(["namespaces, nft", "namespaces, iptables"].contains(&network.as_str()));
        assert!(Machine::default().describe().is_empty());
    }

    #[test]
    fn a_binary_is_its_length_and_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("server");
        fs::write(&path, "12345").unwrap();
        let file = BinaryFile::of(&path).unwrap();
        assert_eq!((file.bytes, file.written.len()), (5, 15));
    }

    #[test]
    fn a_version_is_one_line_and_comes_in_time() {
        let long = Duration::from_mins(1);
        assert_eq!(shell("echo ' one '; echo two", long).as_deref(), Some("one"));
        assert_eq!(shell("echo one; exit 3", long), None);
        assert_eq!(shell("exit 0", long), None);
        let started = Instant::now();
        assert_eq!(shell("exec sleep 1000", Duration::from_millis(50)), None);
        assert!(started.elapsed() < Duration::from_mins(2));
    }

    #[test]
    fn a_tree_with_a_new_file_is_dirty() {
        // Without git there is nothing to say about trees.
        if found("git").is_err() {
            return;
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let made = Command::new("git").args(["init", "-q"]).current_dir(path).status().unwrap();
        assert!(made.success());
        assert_eq!(is_tree_dirty(path), Some(false));
        fs::write(path.join("file"), "new").unwrap();
        assert_eq!(is_tree_dirty(path), Some(true));
    }
}
