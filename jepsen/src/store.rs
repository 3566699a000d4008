//! Where a run is kept: `store/<name>/<time>/`, and the link `store/latest`.
//!
//! Owns the directory layout and the files that are not the history. A run directory is never reused and
//! nothing outside the store directory is written or removed.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{
    checker::crash::Exit, fault::FaultClass, history, machine::Machine, replicas::Replicas,
    server_config::SNAPSHOT_LOG_BYTES, system::System, time::timestamp, workload::ReadMode,
};

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
    /// What servers run until a rolling restart brings them to that binary.
    #[serde(default)]
    pub(crate) old_binary: Option<PathBuf>,
    /// What is tested.
    #[serde(default)]
    pub(crate) system: System,
    /// The workload.
    pub(crate) workload: String,
    /// The fault classes asked for.
    pub(crate) nemesis: Vec<FaultClass>,
    /// Classes that cannot be injected on this machine, with the reason; some may have been asked for.
    #[serde(default)]
    pub(crate) unavailable: BTreeMap<FaultClass, String>,
    /// Instead of a schedule: one class so many times.
    #[serde(default)]
    pub(crate) cycles: Option<Cycles>,
    /// Servers run in network namespaces.
    #[serde(default)]
    pub(crate) namespaces: bool,
    /// The library for clocks that jump.
    #[serde(default)]
    pub(crate) faketime: Option<PathBuf>,
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
    /// How fresh the clients asked reads to be.
    #[serde(default)]
    pub(crate) read_mode: ReadMode,
    /// Log bytes after which a server writes a snapshot.
    #[serde(default = "snapshot_log_bytes")]
    pub(crate) snapshot_log_bytes: u64,
    /// Somebody looks at the servers before they are stopped.
    #[serde(default)]
    pub(crate) leave_running: bool,
    /// Packets are kept.
    #[serde(default)]
    pub(crate) tcpdump: bool,
    /// The machine, and what of it was used.
    #[serde(default)]
    pub(crate) machine: Machine,
}

/// That of runs which do not say.
fn snapshot_log_bytes() -> u64 {
    SNAPSHOT_LOG_BYTES
}

impl TestRecord {
    /// The classes that are really injected.
    pub(crate) fn injected(&self) -> Vec<FaultClass> {
        let here = |class: &&FaultClass| !self.unavailable.contains_key(class);
        self.nemesis.iter().filter(here).copied().collect()
    }
}

/// A run that counts faults, not seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Cycles {
    /// The class.
    pub(crate) class: FaultClass,
    /// How many times.
    pub(crate) count: u64,
    /// Time between two of them.
    pub(crate) pace_ms: u64,
}

/// `aftermath.json`: what the run noted outside the history and the checkers need.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Aftermath {
    /// Server exits the harness did not cause.
    pub(crate) exits: Vec<Exit>,
    /// Exits of servers that a disk fault was right to end.
    #[serde(default)]
    pub(crate) tolerated: Vec<Exit>,
    /// How long the servers took to be ready after each cycle.
    #[serde(default)]
    pub(crate) cycles_ready_ms: Vec<u64>,
    /// The cycle after which the servers were not ready in time.
    #[serde(default)]
    pub(crate) not_ready_after_cycle: Option<u64>,
    /// What went wrong in the harness itself.
    pub(crate) harness_failures: Vec<String>,
    /// Readiness after the final heal.
    pub(crate) ready_after_heal: Readiness,
    /// What the servers told of their states at the end.
    #[serde(default)]
    pub(crate) replicas: Option<Replicas>,
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

/// Writes the same content as a file in EDN.
pub(crate) fn write_edn<T: Serialize>(directory: &Path, name: &str, content: &T) -> Result<()> {
    let path = directory.join(name);
    let mut text = history::edn(&serde_json::to_value(content)?);
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

/// A record for tests: the workload register on one server, without faults.
#[cfg(test)]
pub(crate) fn test_record() -> TestRecord {
    TestRecord {
        argv: vec!["jepsen".to_owned()],
        harness_version: "0".to_owned(),
        git_commit: None,
        binary: PathBuf::from("quorate"),
        old_binary: None,
        leave_running: false,
        tcpdump: false,
        system: System::Quorate,
        workload: "register".to_owned(),
        nemesis: Vec::new(),
        unavailable: BTreeMap::new(),
        cycles: None,
        namespaces: false,
        faketime: None,
        nemesis_interval_ms: 1,
        time_limit_ms: 1,
        nodes: vec!["n1".to_owned()],
        concurrency: 1,
        rate: 1.0,
        ops_per_key: 1,
        timeout_ms: 1,
        seed: 7,
        plant: None,
        read_mode: ReadMode::Default,
        snapshot_log_bytes: SNAPSHOT_LOG_BYTES,
        machine: Machine::default(),
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn records_of_older_runs_are_read() {
        let record =
            TestRecord { read_mode: ReadMode::Stale, snapshot_log_bytes: 4096, ..test_record() };
        let mut stored = serde_json::to_value(&record).unwrap();
        let read = |stored: &serde_json::Value| -> TestRecord {
            serde_json::from_value(stored.clone()).unwrap()
        };
        assert_eq!(stored["read_mode"], "stale");
        assert_eq!(read(&stored).snapshot_log_bytes, 4096);
        let fields = stored.as_object_mut().unwrap();
        for field in ["read_mode", "snapshot_log_bytes", "machine"] {
            assert!(fields.remove(field).is_some(), "{field}");
        }
        let old = read(&stored);
        assert_eq!((old.read_mode, old.snapshot_log_bytes), (ReadMode::Default, 64 << 10));
        assert_eq!(old.machine, Machine::default());
        stored["machine"] = serde_json::json!({"cpus": 2});
        assert_eq!(read(&stored).machine, Machine { cpus: Some(2), ..Machine::default() });
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
        write_edn(&first, "aftermath.edn", &aftermath).unwrap();
        let text = fs::read_to_string(first.join("aftermath.edn")).unwrap();
        assert!(text.contains(":ready_after_heal {:milliseconds 5}") && text.ends_with("}\n"));
    }
}
