//! Where a run is kept: `store/<name>/<time>/`, and the link `store/latest`.
//!
//! Owns the directory layout and the files that are not the history. A run directory is never reused and
//! nothing outside the store directory is written or removed.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::checker::crash::Exit;
use crate::nemesis::FaultClass;

/// How long the servers took to be ready once everything was healed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Readiness {
    /// The run ended before that phase.
    #[default]
    NotReached,
    /// They were not ready in time.
    Never,
    /// They were, after this time.
    Milliseconds(u64),
}

/// `test.json`: what was run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TestRecord {
    /// The command line.
    pub(crate) argv: Vec<String>,
    /// Version of this harness.
    pub(crate) harness_version: String,
    /// Commit of the working directory, if it is a git checkout.
    pub(crate) git_commit: Option<String>,
    /// The server binary.
    pub(crate) binary: PathBuf,
    /// The workload.
    pub(crate) workload: String,
    /// The fault classes asked for.
    pub(crate) nemesis: Vec<FaultClass>,
    /// The mean time between changes of one fault class.
    pub(crate) nemesis_interval_ms: u64,
    /// How long clients and faults run.
    pub(crate) time_limit_ms: u64,
    /// The servers.
    pub(crate) nodes: Vec<String>,
    /// Client threads.
    pub(crate) concurrency: usize,
    /// Operations per second, all clients together.
    pub(crate) rate: f64,
    /// Operations per key.
    pub(crate) ops_per_key: u64,
    /// A client's patience.
    pub(crate) timeout_ms: u64,
    /// The seed of every random choice.
    pub(crate) seed: u64,
    /// The deliberate bug, if one is planted.
    pub(crate) plant: Option<String>,
}

/// `aftermath.json`: what the run noted outside the history and the checkers need.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Aftermath {
    /// Server exits the harness did not cause.
    pub(crate) exits: Vec<Exit>,
    /// What went wrong in the harness itself.
    pub(crate) harness_failures: Vec<String>,
    /// Readiness after the final heal.
    pub(crate) ready_after_heal: Readiness,
}

/// The log of one server in a run's directory.
pub(crate) fn server_log(directory: &Path, node: &str) -> PathBuf {
    directory.join(node).join("server.log")
}

/// Makes `<root>/<name>/<time>/` and points `<root>/latest` at it.
pub(crate) fn create_run(root: &Path, name: &str) -> Result<PathBuf> {
    let parent = root.join(name);
    fs::create_dir_all(&parent).with_context(|| format!("cannot create {}", parent.display()))?;
    let mut now = SystemTime::now();
    let directory = loop {
        let stamp = timestamp(now);
        let directory = parent.join(&stamp);
        match fs::create_dir(&directory) {
            Ok(()) => {
                point_latest(root, &Path::new(name).join(stamp))?;
                break directory;
            }
            // Another run of this second has it: take the next one.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => now += Duration::from_secs(1),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("cannot create {}", directory.display()));
            }
        }
    };
    directory.canonicalize().with_context(|| format!("cannot resolve {}", directory.display()))
}

/// The link is made under another name and moved, so that `latest` is never absent.
fn point_latest(root: &Path, target: &Path) -> Result<()> {
    let temporary = root.join(format!(".latest-{}", std::process::id()));
    std::os::unix::fs::symlink(target, &temporary)
        .and_then(|()| fs::rename(&temporary, root.join("latest")))
        .with_context(|| format!("cannot make the link {}", root.join("latest").display()))
}

/// Writes a JSON file of a run.
pub(crate) fn write_json<T: Serialize>(directory: &Path, name: &str, content: &T) -> Result<()> {
    let path = directory.join(name);
    let mut text = serde_json::to_string_pretty(content)?;
    text.push('\n');
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

/// Reads a JSON file of a run.
pub(crate) fn read_json<T: DeserializeOwned>(directory: &Path, name: &str) -> Result<T> {
    let path = directory.join(name);
    let text =
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("cannot parse {}", path.display()))
}

/// UTC as `YYYYmmddTHHMMSS`.
fn timestamp(at: SystemTime) -> String {
    let seconds = at.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}")
}

/// Year, month and day of a day since 1970 (Hinnant's `civil_from_days` for days after the epoch).
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn timestamps_are_civil() {
        let check = |seconds, expected: &str| {
            assert_eq!(timestamp(UNIX_EPOCH + Duration::from_secs(seconds)), expected);
        };
        check(0, "19700101T000000");
        check(951_782_399, "20000228T235959");
        check(951_782_400, "20000229T000000");
        check(1_767_225_599, "20251231T235959");
        check(4_107_542_400, "21000301T000000");
    }

    #[test]
    fn runs_get_their_own_directory_and_latest_follows() {
        let root = tempfile::tempdir().unwrap();
        let first = create_run(root.path(), "register").unwrap();
        let second = create_run(root.path(), "register").unwrap();
        assert_ne!(first, second);
        assert_eq!(root.path().join("latest").canonicalize().unwrap(), second);
        let aftermath =
            Aftermath { ready_after_heal: Readiness::Milliseconds(5), ..Aftermath::default() };
        write_json(&first, "aftermath.json", &aftermath).unwrap();
        let read: Aftermath = read_json(&first, "aftermath.json").unwrap();
        assert_eq!(read.ready_after_heal, aftermath.ready_after_heal);
        assert!(read_json::<Aftermath>(&second, "aftermath.json").is_err());
    }
}
