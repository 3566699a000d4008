//! The machines of a run's instance pool: agents that the servers themselves start, by a provider of kind `process`.
//!
//! ```text
//!  server ── provider `local` ──► machine-agent agent --config machines/ID/agent.toml
//!                                   │ writes "PID START-TICKS CONFIG" into machines.log
//!                                   └► becomes `quorate agent`, under the same number
//! ```
//! Owns what the kernel says of them: which live, found by the instance's id in their command lines, and which were ever started, by their
//! own record. The servers' word is never asked for here. All are ended with the run, by the numbers in that record, also by the guard or the
//! next run if the harness dies (see [`crate::owned`]).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use launch::{Identity, Settings};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde_json::{Value, json};

use crate::history::{Function, Kind, Op, Process, Recorder};

/// What pools call the provider.
pub(crate) const PROVIDER: &str = "local";
/// The name of an agent's configuration in its machine's folder, as the provider writes it.
const AGENT_CONFIG: &[u8] = b"/agent.toml";
/// Time between two looks at the processes.
const LOOK_PAUSE: Duration = Duration::from_millis(50);
/// A look that shows nothing new is written down after so long.
const SAMPLE_PAUSE: Duration = Duration::from_millis(500);
/// How long killed processes may take to be gone.
const END_TIMEOUT: Duration = Duration::from_secs(10);
/// What servers hand down to the agents that they start, and is meant for servers only.
const SERVERS_ONLY: &str = "QUORATE_PLANT QUORATE_DISK_FAULTS LD_PRELOAD FAKETIME_TIMESTAMP_FILE FAKETIME_NO_CACHE \
                            FAKETIME_DONT_FAKE_MONOTONIC";

/// The agent of an instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Agent {
    /// The instance's id, which is the tag of its machine.
    pub(crate) instance: String,
    /// The number of its process.
    pub(crate) pid: u32,
}

/// Agents as the history keeps them: `[[instance pid] …]`.
pub(crate) fn rows(agents: &[Agent]) -> Value {
    agents.iter().map(|agent| json!([agent.instance, agent.pid])).collect()
}

/// Where the machines of a run are.
pub(crate) struct Machines {
    /// The provider's folder.
    directory: PathBuf,
    /// What the provider runs in the place of the agent.
    program: PathBuf,
    /// Where that writes down each start.
    record: PathBuf,
}

impl Machines {
    /// An empty place in a run's directory, for agents that run this binary.
    pub(crate) fn create(run: &Path, binary: &Path) -> Result<Self> {
        let make = || -> std::io::Result<Self> {
            let directory = run.join("machines");
            fs::create_dir_all(&directory)?;
            // As the provider does: processes are found by the whole path.
            let run = run.canonicalize()?;
            let (program, record) = (run.join("machine-agent"), run.join("machines.log"));
            fs::write(&record, "")?;
            fs::write(&program, script(&record, binary))?;
            fs::set_permissions(&program, fs::Permissions::from_mode(0o755))?;
            Ok(Self { directory: directory.canonicalize()?, program, record })
        };
        make().with_context(|| format!("cannot make a place in {}", run.display()))
    }

    /// The record of starts, by which what was started can be ended.
    pub(crate) fn record(&self) -> &Path {
        &self.record
    }

    /// What every server's configuration says about them. Short times, so that machines come and go within a run.
    pub(crate) fn settings(&self) -> Settings {
        let mut provider = Settings::default();
        provider.set_text("name", PROVIDER);
        provider.set_text("kind", "process");
        provider.set_text("directory", &self.directory.to_string_lossy());
        provider.set_text("binary", &self.program.to_string_lossy());
        let mut settings = Settings::default();
        settings.set("elastic.list_interval_ms", 1_000);
        settings.set("elastic.probe_interval_ms", 500);
        settings.set("elastic.destroy_retry_ms", 500);
        // No machine goes for idling until a new leader has waited for the heartbeats of all.
        settings.set("heartbeat.ttl_min_ms", 1_500);
        settings.set("heartbeat.grace_ms", 1_500);
        settings.add_table("provider", provider);
        settings
    }

    /// The agents that live. All of those returned lived at one moment of this call.
    pub(crate) fn living(&self) -> Result<Vec<Agent>> {
        let mut found: BTreeMap<u32, (Identity, String)> = BTreeMap::new();
        for entry in fs::read_dir("/proc").context("cannot list the processes")? {
            let name = entry.context("cannot list the processes")?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let identity = Identity::of(pid);
            if let Some(instance) = self.instance_of(pid) {
                found.insert(pid, (identity, instance));
            }
        }
        // A child that an agent has just forked has its command line until it runs a program.
        let is_child = |pid: &u32| parent(*pid).is_some_and(|parent| found.contains_key(&parent));
        let children: BTreeSet<u32> = found.keys().copied().filter(is_child).collect();
        let lives = |(pid, (identity, instance)): (u32, (Identity, String))| {
            let lives = identity.is_alive() && !children.contains(&pid);
            lives.then_some(Agent { instance, pid })
        };
        let mut agents: Vec<Agent> = found.into_iter().filter_map(lives).collect();
        agents.sort_unstable();
        Ok(agents)
    }

    /// The instance whose agent a process is, by its command line.
    fn instance_of(&self, pid: u32) -> Option<String> {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut words = line.split(|byte| *byte == 0);
        words.find(|word| *word == b"agent")?;
        words.find_map(|word| self.instance_in(word))
    }

    /// The instance in the path of its agent's configuration.
    fn instance_in(&self, config: &[u8]) -> Option<String> {
        let rest = config.strip_prefix(self.directory.as_os_str().as_bytes())?;
        let id = rest.strip_prefix(b"/")?.strip_suffix(AGENT_CONFIG)?;
        String::from_utf8(id.to_vec()).ok()
    }

    /// Every agent that was ever started, in the order of the starts.
    pub(crate) fn started(&self) -> Result<Vec<Agent>> {
        let agent = |start: Start| {
            let config = start.config.as_bytes();
            let instance = self.instance_in(config).context("a start of another machine")?;
            Ok(Agent { instance, pid: start.identity.pid })
        };
        starts(&self.record)?.into_iter().map(agent).collect()
    }

    /// The instances that the provider was told to destroy: it never forgets that within a run.
    pub(crate) fn destroyed(&self) -> Result<BTreeSet<String>> {
        let directory = self.directory.join("destroyed");
        let mut found = BTreeSet::new();
        // The first server makes it.
        let Ok(entries) = fs::read_dir(&directory) else { return Ok(found) };
        for entry in entries {
            let entry = entry.with_context(|| format!("cannot list {}", directory.display()))?;
            found.insert(entry.file_name().to_string_lossy().into_owned());
        }
        Ok(found)
    }

    /// Writes down which agents live, whenever that changes and now and then, until `stop` is set.
    pub(crate) fn watch(&self, recorder: &Recorder, stop: &AtomicBool) -> Result<()> {
        let mut last: Option<(Vec<Agent>, Instant)> = None;
        while !stop.load(Ordering::Relaxed) {
            let agents = self.living()?;
            let is_known = |(known, at): &(Vec<Agent>, Instant)| {
                *known == agents && at.elapsed() < SAMPLE_PAUSE
            };
            if !last.as_ref().is_some_and(is_known) {
                let value = rows(&agents);
                recorder.record(Op::new(Process::Nemesis, Kind::Info, Function::Machines, value));
                last = Some((agents, Instant::now()));
            }
            thread::sleep(LOOK_PAUSE);
        }
        Ok(())
    }

    /// Removes the folders of the machines, all of which have ended.
    pub(crate) fn remove(directory: &Path) -> std::io::Result<()> {
        let machines = directory.join("machines");
        if machines.exists() { fs::remove_dir_all(machines) } else { Ok(()) }
    }
}

/// The program that the provider runs: it writes down who it is before it becomes the agent. It starts no process, for the servers count those.
fn script(record: &Path, binary: &Path) -> String {
    let quoted = |path: &Path| format!("'{}'", path.to_string_lossy().replace('\'', "'\\''"));
    let (record, binary) = (quoted(record), quoted(binary));
    format!(
        "#!/bin/sh\n\
         # agent --config FILE. Field 22 of the file is when the process started.\n\
         read -r _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ start _ < /proc/$$/stat\n\
         echo \"$$ $start $3\" >> {record}\n\
         unset {SERVERS_ONLY}\n\
         exec {binary} \"$@\"\n"
    )
}

/// A line of the record.
struct Start {
    identity: Identity,
    config: String,
}

fn starts(record: &Path) -> Result<Vec<Start>> {
    let text =
        fs::read_to_string(record).with_context(|| format!("cannot read {}", record.display()))?;
    let start = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (pid, start_ticks) = (u32::try_from(number()?).ok()?, number()?);
        let config = words.next()?.to_owned();
        Some(Start { identity: Identity { pid, start_ticks }, config })
    };
    let start = |line| start(line).with_context(|| format!("bad line {line:?} in the record"));
    text.lines().map(start).collect()
}

/// The parent of a process.
fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

/// Ends every agent in a record that still lives; how many these were. Nobody may start others meanwhile. A record that is gone has none.
pub(crate) fn end(record: &Path) -> Result<usize> {
    if !record.exists() {
        return Ok(0);
    }
    let mut living: Vec<Identity> =
        starts(record)?.into_iter().map(|start| start.identity).collect();
    living.retain(|agent| agent.is_alive());
    let ended = living.len();
    let deadline = Instant::now() + END_TIMEOUT;
    while !living.is_empty() {
        for agent in &living {
            kill(*agent);
        }
        thread::sleep(LOOK_PAUSE);
        living.retain(|agent| agent.is_alive());
        anyhow::ensure!(
            living.is_empty() || Instant::now() < deadline,
            "{} agents of machines have not ended",
            living.len()
        );
    }
    Ok(ended)
}

/// Kills this very process: its number may have been given to another one.
fn kill(agent: Identity) {
    let pid = i32::try_from(agent.pid).ok().and_then(Pid::from_raw);
    let Some(Ok(process)) = pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())) else { return };
    if agent.is_alive() {
        // Fails only if it ended by itself.
        pidfd_send_signal(&process, Signal::KILL).ok();
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::process::{Child, Command, Stdio};

    use super::*;

    /// Starts what a provider would, with a stand-in for the agent, whose forked child waits as it does.
    fn start(machines: &Machines, instance: &str) -> Child {
        let config = machines.directory.join(instance).join("agent.toml");
        Command::new(&machines.program)
            .args(["agent", "--config"])
            .arg(config)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn await_living(machines: &Machines, instances: &[&str]) -> Vec<Agent> {
        let found = launch::wait_for(Duration::from_mins(1), || {
            let found = machines.living().unwrap();
            let names: Vec<&str> = found.iter().map(|agent| &*agent.instance).collect();
            (names == instances).then_some(found)
        });
        found.unwrap_or_else(|| panic!("{instances:?} are not what lives"))
    }

    #[test]
    fn agents_are_counted_by_their_tag_without_their_forked_children() {
        let run = tempfile::tempdir().unwrap();
        let binary = run.path().join("it's an agent");
        // Each pair of parentheses is a child with the same command line.
        fs::write(&binary, "#!/bin/sh\n(read -r _; true)\ntrue\n").unwrap();
        fs::set_permissions(&binary, fs::Permissions::from_mode(0o755)).unwrap();
        let machines = Machines::create(run.path(), &binary).unwrap();
        assert_eq!((machines.living().unwrap(), machines.started().unwrap()), (vec![], vec![]));

        let mut children = [start(&machines, "i1"), start(&machines, "i1"), start(&machines, "i2")];
        let forked = |child: &Child| {
            let path = format!("/proc/{0}/task/{0}/children", child.id());
            fs::read_to_string(path).is_ok_and(|children| !children.trim().is_empty())
        };
        let all = || children.iter().all(forked).then_some(());
        launch::wait_for(Duration::from_mins(1), all).unwrap();
        let living = await_living(&machines, &["i1", "i1", "i2"]);
        let mut started = machines.started().unwrap();
        started.sort_unstable();
        assert_eq!(living, started);

        // Its input ends, and so does the first.
        drop(children[0].stdin.take());
        children[0].wait().unwrap();
        await_living(&machines, &["i1", "i2"]);
        assert_eq!(end(machines.record()).unwrap(), 2);
        assert_eq!(end(machines.record()).unwrap(), 0);
        // What the killed ones have forked ends with its input.
        for child in &mut children {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
        await_living(&machines, &[]);
        assert_eq!(machines.destroyed().unwrap(), BTreeSet::new());
        fs::create_dir_all(machines.directory.join("destroyed/i1")).unwrap();
        assert_eq!(machines.destroyed().unwrap(), BTreeSet::from(["i1".to_owned()]));
    }
}
