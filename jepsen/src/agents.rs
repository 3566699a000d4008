//! The agents: real `quorate agent` processes, for workloads that run allocations. Some simulate a
//! few nodes each, the others are real nodes, whose tasks are processes ([`crate::task`]) that live on
//! when their agent is killed.
//!
//! Owns every agent, as a `launch::Member`, and its faults. Agents reach the servers directly, not
//! through the proxies: a partition cuts servers from each other. All are killed when the fleet is
//! dropped, and by the guard if the harness dies.

use std::fs;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use launch::{Group, Log, Member, Settings, Signal};
use serde_json::json;

use crate::{
    checker::crash::Exit,
    guard::Guard,
    history::{Function, Kind, Op, Process, Recorder},
    task::Trail,
    workload::Agents,
};
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
/// The same of quick kills of real agents: what these do at that moment matters then, not that they
/// are away.
const QUICK_PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(800));
const QUICK_LENGTH: (Duration, Duration) = (Duration::ZERO, Duration::from_millis(600));
/// How long after a task has begun or ended its agent is killed: before it has written that down, or
/// has told a server, or right after.
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
    member: Member,
    directory: PathBuf,
    /// Nodes that it simulates; `None`: it is a real one.
    simulate: Option<u32>,
    /// Its tasks end with it, when it is told to.
    ends_tasks: bool,
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
    /// SIGTERM, as for an upgrade. One of the real agents ends its tasks then and is to start them
    /// again, if the servers still want them.
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
            let member = Member::new(name, Log::new(directory.join(LOG)));
            Agent { member, directory, simulate, ends_tasks, paused, ending, started }
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
        let path = |agent: &Agent| agent.member.log().path().to_owned();
        logs.map(|agent| (agent.member.name().to_owned(), path(agent))).collect()
    }

    /// Exits so far that nobody here caused.
    pub(crate) fn exits(&self) -> &[Exit] {
        &self.exits
    }

    /// Kills, stops and freezes agents at random and lets them come back, until `stop` is set; at the
    /// end all run. Real ones are also killed when the trail of their tasks says that they have
    /// something to write down and to tell.
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
            hand.aim = self.agents.iter().position(|one| one.member.name() == agent);
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
        let name = self.agents[agent].member.name().to_owned();
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
        let agent = &mut self.agents[agent];
        if agent.member.is_running() {
            return Ok(());
        }
        let log = agent.member.log();
        // The line before may have been cut off by a kill.
        log.open()
            .and_then(|mut file| file.write_all(b"\n{\"fields\":{\"agent_started\":true}}\n"))
            .with_context(|| format!("cannot write {}", log.path().display()))?;
        let mut command = Command::new(&self.binary);
        command
            .arg("agent")
            .arg("--config")
            .arg(agent.directory.join("agent.toml"))
            .current_dir(&agent.directory)
            // Nothing but the allocations' changes, which the checker reads, and what went wrong.
            .env("RUST_LOG", "warn,agent::node::simulate=info")
            .env_remove("QUORATE_PLANT");
        let pid = agent
            .member
            .start(command, Group::Own)
            .with_context(|| format!("cannot start {}", self.binary.display()))?;
        (agent.paused, agent.started) = (false, Instant::now());
        if let Some(guard) = &mut self.guard {
            guard.watch(pid)?;
        }
        Ok(())
    }

    fn kill(&mut self, agent: usize) -> Result<()> {
        if self.agents[agent].member.is_running() {
            self.signal(agent, Signal::KILL)?;
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
        self.agents[agent].ending = self.agents[agent].member.is_running();
        Ok(())
    }

    /// Waits for an agent that was told to end.
    fn await_end(&mut self, agent: usize) -> Result<()> {
        let end = Instant::now() + STOP_TIMEOUT;
        while self.agents[agent].ending {
            self.reap(agent);
            if self.agents[agent].ending && Instant::now() >= end {
                let status = format!("it did not end within {STOP_TIMEOUT:?} of SIGTERM");
                let node = self.agents[agent].member.name().to_owned();
                self.exits.push(Exit { node, status });
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
        let member = &self.agents[agent].member;
        if !member.is_running() {
            return Ok(());
        }
        member.signal(signal).context("cannot signal an agent")
    }

    /// Notes an agent that ended without being told to, or not well.
    fn reap(&mut self, agent: usize) {
        let was_told = self.agents[agent].ending;
        // An error means that it cannot be waited for; it is found at the next signal.
        if let Ok(Some(status)) = self.poll(agent) {
            // One that has just begun may not listen for it yet.
            let as_told = status.success() || status.signal() == Some(Signal::TERM.as_raw());
            if !(was_told && as_told) {
                let node = self.agents[agent].member.name().to_owned();
                self.exits.push(Exit { node, status: status.to_string() });
            }
        }
    }

    /// Whether it has ended, at the latest when the time is over.
    fn await_exit(&mut self, agent: usize, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        while self.agents[agent].member.is_running() {
            if self.poll(agent)?.is_none() {
                if Instant::now() >= end {
                    return Ok(false);
                }
                std::thread::sleep(POLL);
            }
        }
        Ok(true)
    }

    /// How an agent ended, if it has ended since it was last asked; the guard then forgets it.
    fn poll(&mut self, agent: usize) -> Result<Option<ExitStatus>> {
        let agent = &mut self.agents[agent];
        let pid = agent.member.pid();
        let status = agent.member.poll().context("cannot wait for an agent")?;
        if let (Some(pid), true) = (pid, status.is_some()) {
            (agent.paused, agent.ending) = (false, false);
            if let Some(guard) = &mut self.guard {
                // If the guard is gone there is nobody to forget the process.
                guard.forget(pid).ok();
            }
        }
        Ok(status)
    }
}

fn write_config(agent: &Agent, servers: &[SocketAddr]) -> Result<()> {
    fs::create_dir_all(&agent.directory)
        .with_context(|| format!("cannot create {}", agent.directory.display()))?;
    let mut settings = Settings::agent(agent.member.name(), servers);
    settings.set_text("datacenter", "dc1");
    settings.set_text("data_dir", &agent.directory.join("data").to_string_lossy());
    settings.set_text("log_format", "json");
    settings.set("resources.cpu_mhz", CPU_MHZ);
    settings.set("resources.memory_mb", MEMORY_MB);
    if let Some(nodes) = agent.simulate {
        settings.set("simulate", nodes);
    } else {
        settings.set("drivers.raw_exec", true);
    }
    settings.set("drivers.mock", agent.simulate.is_some());
    settings.set("stop_tasks_on_exit", agent.ends_tasks);
    let path = agent.directory.join("agent.toml");
    settings.write(&path).with_context(|| format!("cannot write {}", path.display()))
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
        assert!(!fleet.agents[0].member.is_running());
        fleet.pause(1).unwrap();
        assert!(fleet.agents[1].paused);
        fleet.heal().unwrap();
        assert!(fleet.agents.iter().all(|agent| agent.member.is_running() && !agent.paused));
        fleet.stop().unwrap();
        assert_eq!(fleet.exits(), []);
        let (history, _) = recorder.snapshot();
        assert_eq!(crate::checker::views::agent_faults(&history), 1);
        let log = fs::read_to_string(agent_log(directory.path(), "a1")).unwrap();
        assert_eq!(log.matches("agent_started").count(), 2, "{log}");
    }

    #[test]
    fn an_agent_with_something_to_report_is_killed_next() {
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
            let before = fleet.agents[agent].member.pid().unwrap();
            let fault = Fault { agent, way: Way::Stop };
            fleet.begin_fault(&recorder, fault).unwrap();
            fleet.end_fault(&recorder, fault).unwrap();
            let after = fleet.agents[agent].member.pid().unwrap();
            assert_ne!(before, after, "it is another process now");
        }
        let (history, _) = recorder.snapshot();
        let told = history.iter().filter(|op| op.f == Function::StopAgent);
        assert_eq!(told.count(), 4, "two for each");
        fleet.exits().to_vec()
    }

    #[test]
    fn a_process_told_to_end_may_end_well() {
        assert_eq!(told_to_end("exit 0"), []);
    }

    #[test]
    fn a_process_told_to_end_that_fails_is_noted() {
        let exits = told_to_end("exit 3");
        let noted: Vec<_> = exits.iter().map(|exit| (&*exit.node, &*exit.status)).collect();
        assert_eq!(noted, [("a1", "exit status: 3"), ("a2", "exit status: 3")]);
    }
}
