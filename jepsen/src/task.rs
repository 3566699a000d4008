//! The task that real agents run: what runs, and where, by the kernel's word instead of an agent's.
//!
//! An allocation's task holds the lock of the allocation's file for as long as it lives, and that of the port which its job fixed, on its node, and
//! writes a line into the run's journal when it begins and when it has been asked to end. It never ends of its own accord, but for one thing: it waits for the lock that the harness
//! holds during the run, so that nothing outlives the harness, however that ends.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;

use crate::history::Recorder;

/// The hidden subcommand that runs [`run`].
pub(crate) const SUBCOMMAND: &str = "task";

/// The label of the port that a job of such tasks may fix.
pub(crate) const FIXED_PORT: &str = "fixed";

/// How much longer a task with that port takes to end, so that the next one asks for it meanwhile.
const RELUCTANCE_FOR_PORT: Duration = Duration::from_secs(2);

/// How far the tasks' clock may be off the history's, at most.
const ORIGIN_ERROR_NS: u64 = 1_000_000;

/// One line of the journal. Times are those of the history, in nanoseconds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "event")]
pub(crate) enum Line {
    /// A task has begun.
    Start {
        /// Of this allocation.
        allocation: String,
        /// On the node of this name.
        agent: String,
        /// When.
        at: u64,
        /// When its agent decided to start it; up to one clock tick too early.
        decided: u64,
    },
    /// A task has begun while another of the same allocation lived.
    Twice {
        /// The allocation.
        allocation: String,
    },
    /// A task has begun while another on its node had the port that its job fixed.
    Port {
        /// The allocation of the one that began.
        allocation: String,
        /// The node's name.
        agent: String,
    },
    /// A task that was asked to end is about to.
    End {
        /// Of this allocation.
        allocation: String,
        /// When.
        at: u64,
    },
    /// What lived when the run was over.
    Held {
        /// The allocations.
        allocations: BTreeSet<String>,
    },
}

/// Where the tasks of a run leave their traces; they all end once it is dropped.
pub(crate) struct Place {
    directory: PathBuf,
    /// The history's time 0 on the machine's monotonic clock, nanoseconds.
    origin: u64,
    _alive: File,
}

/// The journal of a run's tasks.
pub(crate) fn journal(run: &Path) -> PathBuf {
    run.join("tasks/journal.jsonl")
}

fn locks(directory: &Path) -> PathBuf {
    directory.join("locks")
}

/// Locked by who has a fixed port. A lock, not a socket: the agents share the machine's ports, and each is a node of its own to the servers.
fn ports(directory: &Path) -> PathBuf {
    directory.join("ports")
}

fn alive(directory: &Path) -> PathBuf {
    directory.join("alive")
}

/// Locked while somebody looks at the tasks' locks, which he does by taking them, and shared by tasks that take theirs.
fn look(directory: &Path) -> PathBuf {
    directory.join("look")
}

impl Place {
    /// An empty place in a run's directory.
    pub(crate) fn create(run: &Path, recorder: &Recorder) -> Result<Self> {
        let directory = run.join("tasks");
        let make = || -> std::io::Result<File> {
            fs::create_dir_all(locks(&directory))?;
            fs::create_dir_all(ports(&directory))?;
            File::create(journal(run))?;
            File::create(look(&directory))?;
            let alive = File::create(alive(&directory))?;
            flock(&alive, FlockOperation::LockExclusive)?;
            Ok(alive)
        };
        let alive =
            make().with_context(|| format!("cannot make a place in {}", directory.display()))?;
        // Whoever is not interrupted between the clocks knows what one is on the other.
        let origin = loop {
            let before = recorder.now();
            let now = nanoseconds(ClockId::Monotonic);
            if recorder.now() - before < ORIGIN_ERROR_NS {
                break now.saturating_sub(before);
            }
        };
        Ok(Self { directory, origin, _alive: alive })
    }

    /// What a job says to have the driver `raw_exec` run such a task.
    pub(crate) fn config(&self) -> Result<Value> {
        let executable = env::current_exe().context("cannot find the harness's executable")?;
        let origin = self.origin.to_string();
        let name = "${node.unique.name}";
        Ok(json!({"command": executable, "args": [SUBCOMMAND, self.directory, origin, name]}))
    }

    /// What tasks write down from now on.
    pub(crate) fn trail(&self) -> Result<Trail> {
        let path = self.directory.join("journal.jsonl");
        let journal = File::open(&path);
        let mut journal = journal.with_context(|| format!("cannot open {}", path.display()))?;
        journal.seek(SeekFrom::End(0)).context("cannot seek in the journal")?;
        let journal = BufReader::new(journal);
        Ok(Trail { journal, line: String::new(), agents: BTreeMap::new() })
    }

    /// The allocations whose tasks live.
    pub(crate) fn held(&self) -> Result<BTreeSet<String>> {
        let mut held = BTreeSet::new();
        let looking = File::open(look(&self.directory)).context("cannot open a lock")?;
        flock(&looking, FlockOperation::LockExclusive).context("cannot lock")?;
        for entry in fs::read_dir(locks(&self.directory)).context("cannot list the tasks' locks")? {
            let entry = entry.context("cannot list the tasks' locks")?;
            let file = File::open(entry.path()).context("cannot open a task's lock")?;
            match flock(&file, FlockOperation::NonBlockingLockShared) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => {
                    held.insert(entry.file_name().to_string_lossy().into_owned());
                }
                Err(error) => return Err(error).context("cannot try a task's lock"),
            }
        }
        Ok(held)
    }

    /// Writes down what lives now.
    pub(crate) fn note_held(&self) -> Result<()> {
        append(&self.directory, &Line::Held { allocations: self.held()? })
    }
}

/// Follows the journal.
pub(crate) struct Trail {
    journal: BufReader<File>,
    /// What was read of a line that is not whole yet.
    line: String,
    /// Where each allocation that began runs.
    agents: BTreeMap<String, String>,
}

impl Trail {
    /// The agent whose task was the next to begin or to end, if one has.
    pub(crate) fn next_agent(&mut self) -> Result<Option<String>> {
        loop {
            self.journal.read_line(&mut self.line).context("cannot read the journal")?;
            if !self.line.ends_with('\n') {
                return Ok(None);
            }
            let line = std::mem::take(&mut self.line);
            match serde_json::from_str(&line).context("cannot read the journal")? {
                Line::Start { allocation, agent, .. } => {
                    self.agents.insert(allocation, agent.clone());
                    return Ok(Some(agent));
                }
                Line::End { allocation, .. } => {
                    if let Some(agent) = self.agents.remove(&allocation) {
                        return Ok(Some(agent));
                    }
                }
                Line::Twice { .. } | Line::Port { .. } | Line::Held { .. } => {}
            }
        }
    }
}

/// Runs a task until it is asked to end, or the harness has ended.
pub(crate) fn run(directory: &Path, origin: u64, agent: &str) -> Result<()> {
    let now = || nanoseconds(ClockId::Monotonic).saturating_sub(origin);
    let at = now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start a runtime")?;
    let guard = runtime.enter();
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot wait for a signal")?;
    drop(guard);
    let alive = File::open(alive(directory)).context("the harness has no lock")?;
    let allocation = env::var("NOMAD_ALLOC_ID").context("NOMAD_ALLOC_ID is not set")?;
    let looking = File::open(look(directory)).context("the harness has no lock")?;
    flock(&looking, FlockOperation::LockShared).context("cannot lock")?;
    let lock = File::create(locks(directory).join(&allocation)).context("cannot make a lock")?;
    let locked = flock(&lock, FlockOperation::NonBlockingLockExclusive);
    drop(looking);
    let line = match locked {
        Ok(()) => {
            let decided = decided(parent_id())?.saturating_sub(origin);
            let (allocation, agent) = (allocation.clone(), agent.to_owned());
            Line::Start { allocation, agent, at, decided }
        }
        Err(Errno::WOULDBLOCK) => Line::Twice { allocation: allocation.clone() },
        Err(error) => return Err(error).context("cannot lock"),
    };
    append(directory, &line)?;
    let port = env::var(format!("NOMAD_PORT_{FIXED_PORT}")).ok();
    // Its lock is held until this task ends.
    let taken = port.as_deref().map(|port| take_port(directory, agent, port)).transpose()?;
    if matches!(taken, Some(None)) {
        append(directory, &Line::Port { allocation: allocation.clone(), agent: agent.to_owned() })?;
    }
    let mut reluctance = reluctance(&allocation);
    if port.is_some() {
        reluctance += RELUCTANCE_FOR_PORT;
    }
    let (ended, over) = oneshot::channel();
    thread::spawn(move || {
        // A wait that was interrupted is over as well, and nobody listens to a task that ends.
        ended.send(flock(&alive, FlockOperation::LockShared)).ok();
    });
    let is_asked = runtime.block_on(async {
        tokio::select! {
            _ = interrupt.recv() => true,
            _ = over => false,
        }
    });
    if !is_asked {
        return Ok(());
    }
    thread::sleep(reluctance);
    append(directory, &Line::End { allocation, at: now() })
}

/// Takes the lock of a node's port; none: another has it.
fn take_port(directory: &Path, agent: &str, port: &str) -> Result<Option<File>> {
    let lock = File::create(ports(directory).join(format!("{agent}-{port}")));
    let lock = lock.context("cannot make a port's lock")?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error).context("cannot lock a port"),
    }
}

/// How long an allocation's task takes to end: nothing, or up to 1.2 s, so that others have to wait for it.
fn reluctance(allocation: &str) -> Duration {
    let sum: u32 = allocation.bytes().map(u32::from).sum();
    Duration::from_millis(400) * (sum % 4)
}

/// One line in one write, which does not mix with those of others.
fn append(directory: &Path, line: &Line) -> Result<()> {
    let mut text = serde_json::to_string(line).context("cannot render a line")?;
    text.push('\n');
    let path = directory.join("journal.jsonl");
    let journal = OpenOptions::new().append(true).open(&path);
    let write = journal.and_then(|mut journal| journal.write_all(text.as_bytes()));
    write.with_context(|| format!("cannot write {}", path.display()))
}

fn nanoseconds(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    u64::try_from(now.tv_sec * 1_000_000_000 + now.tv_nsec).expect("a clock since boot")
}

/// When an agent decided to start what this executor runs, on the monotonic clock: it writes `spec.json` into the directory in which the executor
/// works, and launches it then.
fn decided(executor: u32) -> Result<u64> {
    let spec = format!("/proc/{executor}/cwd/spec.json");
    let written = fs::metadata(&spec).and_then(|about| about.modified());
    let written = written.with_context(|| format!("cannot look at {spec}"))?;
    let age = SystemTime::now().duration_since(written).unwrap_or_default();
    let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    Ok(nanoseconds(ClockId::Monotonic).saturating_sub(age))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn a_living_task_holds_its_lock() {
        let run = tempfile::tempdir().unwrap();
        let place = Place::create(run.path(), &Recorder::in_memory()).unwrap();
        let lock = File::create(locks(&place.directory).join("x")).unwrap();
        File::create(locks(&place.directory).join("y")).unwrap();
        flock(&lock, FlockOperation::LockExclusive).unwrap();
        assert_eq!(place.held().unwrap(), BTreeSet::from(["x".to_owned()]));
        drop(lock);
        assert_eq!(place.held().unwrap(), BTreeSet::new());
        place.note_held().unwrap();
        let text = fs::read_to_string(journal(run.path())).unwrap();
        let line: Line = serde_json::from_str(text.trim_end()).unwrap();
        assert_eq!(line, Line::Held { allocations: BTreeSet::new() });
    }

    #[test]
    fn a_port_is_of_one_task_of_its_node_at_a_time() {
        let run = tempfile::tempdir().unwrap();
        let place = Place::create(run.path(), &Recorder::in_memory()).unwrap();
        let take = |agent, port| take_port(&place.directory, agent, port).unwrap();
        let first = take("a1", "7001");
        assert!(first.is_some());
        assert!(take("a1", "7001").is_none());
        assert!(take("a1", "7002").is_some() && take("a2", "7001").is_some());
        drop(first);
        assert!(take("a1", "7001").is_some(), "it has ended");
    }

    #[test]
    fn a_trail_tells_whose_tasks_begin_and_end() {
        let run = tempfile::tempdir().unwrap();
        let place = Place::create(run.path(), &Recorder::in_memory()).unwrap();
        let start = |allocation: &str, agent: &str| {
            let [allocation, agent] = [allocation, agent].map(str::to_owned);
            append(&place.directory, &Line::Start { allocation, agent, at: 1, decided: 0 })
                .unwrap();
        };
        let end = |allocation: &str| {
            let allocation = allocation.to_owned();
            append(&place.directory, &Line::End { allocation, at: 2 }).unwrap();
        };
        start("w", "a3");
        let mut trail = place.trail().unwrap();
        assert_eq!(trail.next_agent().unwrap(), None);
        start("x", "a1");
        start("y", "a2");
        // Of one that began before nobody knows where it ran.
        end("w");
        end("x");
        for agent in ["a1", "a2", "a1"] {
            assert_eq!(trail.next_agent().unwrap().as_deref(), Some(agent));
        }
        assert_eq!(trail.next_agent().unwrap(), None);
        let text = serde_json::to_string(&Line::End { allocation: "y".to_owned(), at: 3 }).unwrap();
        let (one, other) = text.split_at(5);
        let mut journal = OpenOptions::new().append(true).open(journal(run.path())).unwrap();
        journal.write_all(one.as_bytes()).unwrap();
        assert_eq!(trail.next_agent().unwrap(), None);
        writeln!(journal, "{other}").unwrap();
        assert_eq!(trail.next_agent().unwrap().as_deref(), Some("a2"));
    }
}
