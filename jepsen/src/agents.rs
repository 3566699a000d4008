//! The agents: real `quorate agent` processes, for workloads that run allocations. Some simulate a few nodes each, the others are real
//! nodes, whose tasks are processes ([`crate::task`]) that live on when their agent is killed.
//!
//! Owns every agent process and its faults. Agents reach the servers directly, not through the proxies: a
//! partition cuts servers from each other. A process is signalled only while it is our unreaped child; all are
//! killed when the fleet is dropped, and by the guard if the harness dies.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use serde::Serialize;
use serde_json::json;

use crate::checker::crash::Exit;
use crate::guard::Guard;
use crate::history::{Function, Kind, Op, Process, Recorder};
use crate::task::Trail;
use crate::workload::Agents;
use chance::Dice;

/// CPU and memory of each simulated node.
const CPU_MHZ: u64 = 1_000;
const MEMORY_MB: u64 = 1_000;
/// The name of an agent's log in its directory.
const LOG: &str = "agent.log";
/// How long a killed process may take to be gone.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long after its start an agent has its tasks again.
const SETTLED: Duration = Duration::from_secs(1);
/// How long an agent may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(10);
/// Time between two faults, and how long one lasts: shorter and longer than a node takes to be down.
const PAUSE_BETWEEN: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(4));
const FAULT_LENGTH: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(14));
/// The same of quick kills of real agents: what these do at that moment matters then, not that they are away.
const QUICK_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(800));
const QUICK_LENGTH: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(600));
/// How long after a task has begun or ended its agent is killed: before it has written that down, or has told a server, or right after.
const AIM: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(200));

/// What the agents are made from.
pub(crate) struct Setup<'a> {
    /// The binary.
    pub(crate) binary: &'a Path,
    /// The run's directory.
    pub(crate) directory: &'a Path,
    /// The servers' RPC addresses.
    pub(crate) servers: Vec<SocketAddr>,
    /// How many of each kind.
    pub(crate) agents: Agents,
    /// Kills them if the harness dies.
    pub(crate) guard: Option<Guard>,
}

/// The agents of a run.
pub(crate) struct Fleet {
    binary: PathBuf,
    agents: Vec<Agent>,
    guard: Option<Guard>,
    exits: Vec<Exit>,
}

struct Agent {
    name: String,
    directory: PathBuf,
    /// Nodes that it simulates; `None`: it is a real one.
    simulate: Option<u32>,
    /// Its tasks end with it, when it is told to.
    ends_tasks: bool,
    child: Option<Child>,
    paused: bool,
    /// It was told to end.
    ending: bool,
    started: Instant,
}

/// What is done to an agent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// SIGKILL.
    Kill,
    /// SIGTERM, as for an upgrade. One of the real agents ends its tasks then and is to start them again, if the servers still want them.
    Stop,
    /// SIGSTOP.
    Pause,
}

/// What is done to an agent at a time.
#[derive(Clone, Copy)]
struct Fault {
    agent: usize,
    way: Way,
}

/// Who does it: one takes its time, with any agent, the other is quick, with real ones.
struct Hand {
    quick: bool,
    /// When its fault ends, or the next begins.
    next: Instant,
    fault: Option<Fault>,
    /// The agent that the next fault is meant for.
    aim: Option<usize>,
}

impl Hand {
    fn new(quick: bool, random: &mut Dice) -> Self {
        let mut hand = Self { quick, next: Instant::now(), fault: None, aim: None };
        let (pause, _) = hand.paces();
        hand.next += random.duration(pause.0, pause.1);
        hand
    }

    /// Bounds of the time between two faults, and of a fault's length.
    fn paces(&self) -> ((Duration, Duration), (Duration, Duration)) {
        if self.quick { (QUICK_PAUSE, QUICK_LENGTH) } else { (PAUSE_BETWEEN, FAULT_LENGTH) }
    }
}

#[derive(Serialize)]
struct AgentConfig<'a> {
    name: &'a str,
    datacenter: &'a str,
    data_dir: PathBuf,
    servers: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    simulate: Option<u32>,
    log_format: &'a str,
    http: BTreeMap<&'a str, &'a str>,
    resources: BTreeMap<&'a str, u64>,
    drivers: BTreeMap<&'a str, bool>,
    stop_tasks_on_exit: bool,
}

/// The names of so many agents; they are directories of the run.
pub(crate) fn names(agents: usize) -> Vec<String> {
    (1..=agents).map(|number| format!("a{number}")).collect()
}

/// The log of one agent in a run's directory.
pub(crate) fn agent_log(directory: &Path, agent: &str) -> PathBuf {
    directory.join(agent).join(LOG)
}

impl Fleet {
    /// Starts the agents.
    pub(crate) fn start(setup: Setup<'_>) -> Result<Self> {
        let Agents { simulating, nodes, .. } = setup.agents;
        let agents = names(setup.agents.count()).into_iter().enumerate().map(|(number, name)| {
            let directory = setup.directory.join(&name);
            let simulate = (number < simulating).then_some(nodes);
            let ends_tasks = number == simulating;
            let (paused, ending) = (false, false);
            let started = Instant::now();
            Agent { name, directory, simulate, ends_tasks, child: None, paused, ending, started }
        });
        let mut fleet = Self {
            binary: setup.binary.to_owned(),
            agents: agents.collect(),
            guard: setup.guard,
            exits: Vec::new(),
        };
        for agent in &fleet.agents {
            write_config(agent, &setup.servers)?;
        }
        for agent in 0..fleet.agents.len() {
            fleet.start_agent(agent)?;
        }
        Ok(fleet)
    }

    /// What the agents wrote down, by name.
    pub(crate) fn logs(&self) -> Vec<(String, PathBuf)> {
        let logs = self.agents.iter();
        logs.map(|agent| (agent.name.clone(), agent.directory.join(LOG))).collect()
    }

    /// Exits so far that nobody here caused.
    pub(crate) fn exits(&self) -> &[Exit] {
        &self.exits
    }

    /// Kills, stops and freezes agents at random and lets them come back, until `stop` is set; at the end all run. Real ones are also killed when the
    /// trail of their tasks says that they have something to write down and to tell.
    pub(crate) fn torment(
        &mut self,
        recorder: &Recorder,
        random: &mut Dice,
        mut trail: Option<Trail>,
        stop: &AtomicBool,
    ) -> Result<()> {
        let mut hands: Vec<Hand> = vec![Hand::new(false, random)];
        if self.agents.iter().any(|agent| agent.simulate.is_none()) {
            hands.push(Hand::new(true, random));
        }
        while !stop.load(Ordering::Relaxed) {
            while let Some(agent) = trail.as_mut().map_or(Ok(None), Trail::next_agent)? {
                self.aim(&mut hands, &agent, random);
            }
            let due = |hand: &usize| hands[*hand].next <= Instant::now();
            let Some(next) = (0..hands.len()).find(due) else {
                std::thread::sleep(POLL);
                continue;
            };
            let (pause, length) = hands[next].paces();
            if let Some(fault) = hands[next].fault.take() {
                self.end_fault(recorder, fault)?;
                hands[next].next = Instant::now() + random.duration(pause.0, pause.1);
                continue;
            }
            let busy: Vec<usize> =
                hands.iter().filter_map(|hand| Some(hand.fault?.agent)).collect();
            let (quick, aim) = (hands[next].quick, hands[next].aim.take());
            let suits = |agent: &usize| {
                !busy.contains(agent) && (!quick || self.agents[*agent].simulate.is_none())
            };
            let free: Vec<usize> = (0..self.agents.len()).filter(suits).collect();
            if !free.is_empty() {
                let agent = aim.filter(suits).unwrap_or_else(|| free[random.index(free.len())]);
                let ways: &[Way] = match &self.agents[agent] {
                    Agent { simulate: Some(_), .. } => &[Way::Kill, Way::Pause],
                    _ if quick => &[Way::Kill],
                    // What its tasks are to do afterwards is of interest if it is away for long.
                    Agent { ends_tasks: true, .. } => &[Way::Stop],
                    Agent { .. } => &[Way::Kill, Way::Stop, Way::Pause],
                };
                let fault = Fault { agent, way: ways[random.index(ways.len())] };
                self.begin_fault(recorder, fault)?;
                hands[next].fault = Some(fault);
            }
            hands[next].next = Instant::now() + random.duration(length.0, length.1);
        }
        for fault in hands.into_iter().filter_map(|hand| hand.fault) {
            self.end_fault(recorder, fault)?;
        }
        self.heal()
    }

    /// The quick hand, if it rests, is to kill this agent soon.
    fn aim(&self, hands: &mut [Hand], agent: &str, random: &mut Dice) {
        let rests = |hand: &&mut Hand| hand.quick && hand.fault.is_none() && hand.aim.is_none();
        if let Some(hand) = hands.iter_mut().find(rests) {
            hand.aim = self.agents.iter().position(|one| one.name == agent);
            hand.next = Instant::now() + random.duration(AIM.0, AIM.1);
        }
    }

    fn begin_fault(&mut self, recorder: &Recorder, Fault { agent, way }: Fault) -> Result<()> {
        match way {
            Way::Kill => {
                self.recorded(recorder, Function::KillAgent, agent, |fleet| fleet.kill(agent))
            }
            Way::Stop => {
                self.recorded(recorder, Function::StopAgent, agent, |fleet| fleet.terminate(agent))
            }
            Way::Pause => {
                self.recorded(recorder, Function::PauseAgent, agent, |fleet| fleet.pause(agent))
            }
        }
    }

    fn end_fault(&mut self, recorder: &Recorder, Fault { agent, way }: Fault) -> Result<()> {
        if way == Way::Pause {
            return self
                .recorded(recorder, Function::ResumeAgent, agent, |fleet| fleet.resume(agent));
        }
        // What it does until it has ended is the old one's doing.
        self.await_end(agent)?;
        self.recorded(recorder, Function::StartAgent, agent, |fleet| fleet.start_agent(agent))
    }

    /// Resumes and starts whatever is not running.
    pub(crate) fn heal(&mut self) -> Result<()> {
        for agent in 0..self.agents.len() {
            self.reap(agent);
            self.resume(agent)?;
            self.await_end(agent)?;
            self.start_agent(agent)?;
        }
        Ok(())
    }

    /// Ends all agents, with SIGTERM first.
    pub(crate) fn stop(&mut self) -> Result<()> {
        for agent in 0..self.agents.len() {
            self.reap(agent);
            self.resume(agent)?;
            self.signal(agent, Signal::TERM)?;
        }
        let end = Instant::now() + STOP_TIMEOUT;
        for agent in 0..self.agents.len() {
            if !self.await_exit(agent, end.saturating_duration_since(Instant::now()))? {
                self.kill(agent)?;
            }
        }
        Ok(())
    }

    /// Writes down both ends of a fault, as every nemesis does.
    fn recorded(
        &mut self,
        recorder: &Recorder,
        f: Function,
        agent: usize,
        act: impl FnOnce(&mut Self) -> Result<()>,
    ) -> Result<()> {
        let name = self.agents[agent].name.clone();
        recorder.record(Op::new(Process::Nemesis, Kind::Info, f, json!(name)));
        self.reap(agent);
        let outcome = act(self);
        let value = match &outcome {
            Ok(()) => json!({"outcome": "installed", "nodes": [name]}),
            Err(error) => json!({"outcome": "indeterminate", "reason": format!("{error:#}")}),
        };
        recorder.record(Op::new(Process::Nemesis, Kind::Info, f, value));
        outcome
    }

    fn start_agent(&mut self, agent: usize) -> Result<()> {
        let Agent { directory, child, paused, started: since, .. } = &mut self.agents[agent];
        if child.is_some() {
            return Ok(());
        }
        let path = directory.join(LOG);
        let mut log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        // The line before may have been cut off by a kill.
        log.write_all(b"\n{\"fields\":{\"agent_started\":true}}\n")
            .with_context(|| format!("cannot write {}", path.display()))?;
        let errors = log.try_clone().context("cannot duplicate the log's file")?;
        let started = Command::new(&self.binary)
            .arg("agent")
            .arg("--config")
            .arg(directory.join("agent.toml"))
            .current_dir(&*directory)
            // Nothing but the allocations' changes, which the checker reads, and what went wrong.
            .env("RUST_LOG", "warn,quorate::agent::simulate=info")
            .env_remove("QUORATE_PLANT")
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        let pid = started.id();
        *child = Some(started);
        (*paused, *since) = (false, Instant::now());
        if let Some(guard) = &mut self.guard {
            guard.watch(pid)?;
        }
        Ok(())
    }

    fn kill(&mut self, agent: usize) -> Result<()> {
        if let Some(child) = &mut self.agents[agent].child {
            child.kill().context("cannot send SIGKILL to an agent")?;
            anyhow::ensure!(
                self.await_exit(agent, SIGNAL_TIMEOUT)?,
                "a killed agent was not gone in time"
            );
        }
        Ok(())
    }

    fn terminate(&mut self, agent: usize) -> Result<()> {
        std::thread::sleep(SETTLED.saturating_sub(self.agents[agent].started.elapsed()));
        self.signal(agent, Signal::TERM)?;
        self.agents[agent].ending = self.agents[agent].child.is_some();
        Ok(())
    }

    /// Waits for an agent that was told to end.
    fn await_end(&mut self, agent: usize) -> Result<()> {
        let end = Instant::now() + STOP_TIMEOUT;
        while self.agents[agent].ending {
            self.reap(agent);
            if self.agents[agent].ending && Instant::now() >= end {
                let status = format!("it did not end within {STOP_TIMEOUT:?} of SIGTERM");
                self.exits.push(Exit { node: self.agents[agent].name.clone(), status });
                self.kill(agent)?;
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn pause(&mut self, agent: usize) -> Result<()> {
        self.signal(agent, Signal::STOP)?;
        self.agents[agent].paused = true;
        Ok(())
    }

    fn resume(&mut self, agent: usize) -> Result<()> {
        if self.agents[agent].paused {
            self.signal(agent, Signal::CONT)?;
            self.agents[agent].paused = false;
        }
        Ok(())
    }

    fn signal(&self, agent: usize, signal: Signal) -> Result<()> {
        match &self.agents[agent].child {
            Some(child) => {
                kill_process(Pid::from_child(child), signal).context("cannot signal an agent")
            }
            None => Ok(()),
        }
    }

    /// Notes an agent that ended without being told to, or not well.
    fn reap(&mut self, agent: usize) {
        let Some(child) = &mut self.agents[agent].child else { return };
        // An error means that the child cannot be waited for; it is found at the next signal.
        if let Ok(Some(status)) = child.try_wait() {
            let Agent { name, ending, .. } = &self.agents[agent];
            // One that has just begun may not listen for it yet.
            let as_told = status.success() || status.signal() == Some(Signal::TERM.as_raw());
            if !(*ending && as_told) {
                self.exits.push(Exit { node: name.clone(), status: status.to_string() });
            }
            self.gone(agent);
        }
    }

    fn await_exit(&mut self, agent: usize, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        while let Some(child) = &mut self.agents[agent].child {
            if child.try_wait().context("cannot wait for an agent")?.is_some() {
                self.gone(agent);
                break;
            }
            if Instant::now() >= end {
                return Ok(false);
            }
            std::thread::sleep(POLL);
        }
        Ok(true)
    }

    fn gone(&mut self, agent: usize) {
        let agent = &mut self.agents[agent];
        (agent.paused, agent.ending) = (false, false);
        if let (Some(child), Some(guard)) = (agent.child.take(), &mut self.guard) {
            // If the guard is gone there is nobody to forget the process.
            guard.forget(child.id()).ok();
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for agent in &mut self.agents {
            if let Some(mut child) = agent.child.take() {
                // Both fail only if the process has already ended and been reaped.
                child.kill().ok();
                child.wait().ok();
            }
        }
    }
}

fn write_config(agent: &Agent, servers: &[SocketAddr]) -> Result<()> {
    fs::create_dir_all(&agent.directory)
        .with_context(|| format!("cannot create {}", agent.directory.display()))?;
    let config = AgentConfig {
        name: &agent.name,
        datacenter: "dc1",
        data_dir: agent.directory.join("data"),
        servers: servers.iter().map(SocketAddr::to_string).collect(),
        simulate: agent.simulate,
        log_format: "json",
        http: BTreeMap::from([("address", "127.0.0.1:0")]),
        resources: BTreeMap::from([("cpu_mhz", CPU_MHZ), ("memory_mb", MEMORY_MB)]),
        drivers: if agent.simulate.is_some() {
            BTreeMap::from([("mock", true)])
        } else {
            BTreeMap::from([("raw_exec", true), ("mock", false)])
        },
        stop_tasks_on_exit: agent.ends_tasks,
    };
    let text = toml::to_string(&config).context("cannot render an agent configuration")?;
    let path = agent.directory.join("agent.toml");
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::collections::BTreeSet;

    use super::*;

    /// A fleet whose binary is the shell: `sh agent --config …` runs the script `agent` of its directory.
    fn fleet(directory: &Path, script: &str) -> Fleet {
        for name in names(2) {
            fs::create_dir_all(directory.join(&name)).unwrap();
            fs::write(directory.join(&name).join("agent"), script).unwrap();
        }
        let servers = vec!["127.0.0.1:4647".parse().unwrap()];
        let binary = Path::new("/bin/sh");
        let agents = Agents { simulating: 1, nodes: 3, real: 1 };
        Fleet::start(Setup { binary, directory, servers, agents, guard: None }).unwrap()
    }

    #[test]
    fn faults_are_recorded_and_healed() {
        let directory = tempfile::tempdir().unwrap();
        let mut fleet = fleet(directory.path(), "exec sleep 1000");
        let config = |agent: &str| -> toml::Table {
            let path = directory.path().join(agent).join("agent.toml");
            fs::read_to_string(path).unwrap().parse().unwrap()
        };
        assert_eq!(config("a1")["simulate"].as_integer(), Some(3));
        assert_eq!(config("a1")["servers"].as_array().unwrap().len(), 1);
        assert!(!config("a2").contains_key("simulate"));
        assert_eq!(config("a2")["drivers"]["raw_exec"].as_bool(), Some(true));

        let recorder = Recorder::in_memory();
        let kill = |fleet: &mut Fleet| fleet.kill(0);
        fleet.recorded(&recorder, Function::KillAgent, 0, kill).unwrap();
        assert!(fleet.agents[0].child.is_none());
        fleet.pause(1).unwrap();
        assert!(fleet.agents[1].paused);
        fleet.heal().unwrap();
        assert!(fleet.agents.iter().all(|agent| agent.child.is_some() && !agent.paused));
        fleet.stop().unwrap();
        assert_eq!(fleet.exits(), []);
        let (history, _) = recorder.snapshot();
        assert_eq!(crate::checker::views::agent_faults(&history), 1);
        let log = fs::read_to_string(agent_log(directory.path(), "a1")).unwrap();
        assert_eq!(log.matches("agent_started").count(), 2, "{log}");
    }

    #[test]
    fn who_has_something_to_tell_is_killed_next() {
        let directory = tempfile::tempdir().unwrap();
        let fleet = fleet(directory.path(), "exec sleep 1000");
        let mut random = Dice::numbered(1, 0);
        let mut hands = [false, true].map(|quick| Hand::new(quick, &mut random));
        let far = Instant::now() + Duration::from_hours(1);
        hands[1].next = far;
        hands[1].fault = Some(Fault { agent: 1, way: Way::Kill });
        fleet.aim(&mut hands, "a2", &mut random);
        assert_eq!((hands[1].aim, hands[1].next), (None, far), "it is at work");
        hands[1].fault = None;
        fleet.aim(&mut hands, "a2", &mut random);
        let aimed = hands[1].next;
        assert!(hands[1].aim == Some(1) && aimed <= Instant::now() + AIM.1);
        fleet.aim(&mut hands, "a1", &mut random);
        assert_eq!((hands[1].aim, hands[1].next), (Some(1), aimed), "one after the other");
        assert_eq!(hands[0].aim, None);
    }

    #[test]
    fn exits_nobody_asked_for_are_noted() {
        let directory = tempfile::tempdir().unwrap();
        let mut fleet = fleet(directory.path(), "exit 3");
        let end = Instant::now() + Duration::from_mins(1);
        while fleet.exits().len() < 2 && Instant::now() < end {
            (0..2).for_each(|agent| fleet.reap(agent));
            std::thread::sleep(POLL);
        }
        let exits = fleet.exits();
        let names: BTreeSet<&str> = exits.iter().map(|exit| exit.node.as_str()).collect();
        assert_eq!(names, BTreeSet::from(["a1", "a2"]));
        assert_eq!(fleet.exits()[0].status, "exit status: 3");
    }

    /// Has both agents of a fleet told to end, with a script that answers so.
    fn told_to_end(answer: &str) -> Vec<Exit> {
        let directory = tempfile::tempdir().unwrap();
        let script = format!("trap '{answer}' TERM\n: > ready\nwhile :; do sleep 0.02; done\n");
        let mut fleet = fleet(directory.path(), &script);
        let recorder = Recorder::in_memory();
        for (agent, name) in names(2).iter().enumerate() {
            let ready = directory.path().join(name).join("ready");
            let end = Instant::now() + Duration::from_mins(1);
            while !ready.exists() && Instant::now() < end {
                std::thread::sleep(POLL);
            }
            assert!(ready.exists(), "it listens for the signal");
            let before = fleet.agents[agent].child.as_ref().unwrap().id();
            let fault = Fault { agent, way: Way::Stop };
            fleet.begin_fault(&recorder, fault).unwrap();
            fleet.end_fault(&recorder, fault).unwrap();
            let after = fleet.agents[agent].child.as_ref().unwrap().id();
            assert_ne!(before, after, "it is another process now");
        }
        let (history, _) = recorder.snapshot();
        let told = history.iter().filter(|op| op.f == Function::StopAgent);
        assert_eq!(told.count(), 4, "two for each");
        fleet.exits().to_vec()
    }

    #[test]
    fn who_is_told_to_end_may_end_well() {
        assert_eq!(told_to_end("exit 0"), []);
    }

    #[test]
    fn who_is_told_to_end_and_fails_is_noted() {
        let exits = told_to_end("exit 3");
        let noted: Vec<_> = exits.iter().map(|exit| (&*exit.node, &*exit.status)).collect();
        assert_eq!(noted, [("a1", "exit status: 3"), ("a2", "exit status: 3")]);
    }
}
