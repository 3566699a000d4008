//! The processes that `quorate up` started: which are alive, how they ended, how they are stopped.
//!
//! Owns every child from its start to its end. Must never signal a process that is not its child.
//! What runs is on disk before the next child starts, so that a killed `up` leaves a trace.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use launch::{Group, Log, Signal};

use super::layout::{Member, ProcessRecord, Role, write_processes};

/// Lines of a dead child's log that are shown.
const LOG_LINES_SHOWN: usize = 8;
/// A log larger than this is put aside when its process starts.
const LOG_BYTES_MAX: u64 = 64 << 20;
const RESTART_DELAY_MIN: Duration = Duration::from_secs(1);
const RESTART_DELAY_MAX: Duration = Duration::from_secs(30);
/// A child that lived this long starts again without delay growing.
const STEADY_AFTER: Duration = Duration::from_mins(1);
const WAIT_STEP: Duration = Duration::from_millis(20);
/// After a SIGKILL nothing but a stuck disk keeps a process.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

/// Makes the command that starts a member.
pub(super) type Launch = Box<dyn Fn(&Member) -> Command>;

/// A child that ended without being asked to.
#[derive(Debug)]
pub(super) struct Death {
    pub(super) name: String,
    pub(super) status: String,
    pub(super) log: LogTail,
    pub(super) restart_in: Option<Duration>,
}

/// The end of a log.
#[derive(Debug)]
pub(super) struct LogTail {
    pub(super) path: PathBuf,
    pub(super) last_lines: Vec<String>,
}

#[derive(Debug)]
struct Slot {
    role: Role,
    process: launch::Member,
    started: Instant,
    restart_delay: Duration,
    /// When it starts again after its death.
    restart_at: Option<Instant>,
}

/// All children.
pub(super) struct Children {
    launch: Launch,
    pid_file: PathBuf,
    restart: bool,
    slots: BTreeMap<String, Slot>,
}

impl Children {
    pub(super) fn new(launch: Launch, pid_file: PathBuf, restart: bool) -> Self {
        Self { launch, pid_file, restart, slots: BTreeMap::new() }
    }

    /// Dead children are started again.
    pub(super) fn restarts(&self) -> bool {
        self.restart
    }

    /// Starts a member and returns its process number.
    pub(super) fn start(&mut self, member: &Member) -> anyhow::Result<u32> {
        let now = Instant::now();
        let slot = self.slots.entry(member.name.clone()).or_insert_with(|| Slot {
            role: member.role,
            process: launch::Member::new(&member.name, Log::new(member.log_path.clone())),
            started: now,
            restart_delay: RESTART_DELAY_MIN,
            restart_at: None,
        });
        let started = slot
            .process
            .log()
            .rotate(LOG_BYTES_MAX)
            .and_then(|()| slot.process.start((self.launch)(member), Group::Own));
        let pid = started.with_context(|| format!("cannot start {}", member.name))?;
        (slot.started, slot.restart_at) = (now, None);
        self.remember()?;
        Ok(pid)
    }

    fn remember(&self) -> anyhow::Result<()> {
        let records: Vec<ProcessRecord> = self
            .slots
            .iter()
            .filter_map(|(name, slot)| Some(ProcessRecord::of(name, slot.process.pid()?)))
            .collect();
        write_processes(&self.pid_file, &records)
    }

    /// Nothing runs any more: the next start has nothing to look for.
    pub(super) fn forget(&self) {
        if self.slots.values().all(|slot| !slot.process.is_running()) {
            std::fs::remove_file(&self.pid_file).ok();
        }
    }

    /// The number of living children of a role.
    pub(super) fn alive(&self, role: Role) -> usize {
        let lives = |slot: &&Slot| slot.role == role && slot.process.is_running();
        self.slots.values().filter(lives).count()
    }

    pub(super) fn is_alive(&self, name: &str) -> bool {
        self.pid(name).is_some()
    }

    /// A living child's process number.
    pub(super) fn pid(&self, name: &str) -> Option<u32> {
        self.slots.get(name)?.process.pid()
    }

    /// Notices deaths, and starts again what is due.
    pub(super) fn poll(&mut self, members: &[Member]) -> anyhow::Result<Vec<Death>> {
        let mut deaths = Vec::new();
        let now = Instant::now();
        for member in members {
            let Some(slot) = self.slots.get_mut(&member.name) else { continue };
            if let Some(status) = slot.process.poll()? {
                let restart_in = slot.die(now, self.restart);
                deaths.push(Death {
                    name: member.name.clone(),
                    status: describe(status),
                    log: LogTail::read(slot.process.log()),
                    restart_in,
                });
            } else if slot.restart_at.is_some_and(|due| due <= now) {
                self.start(member)?;
            }
        }
        if !deaths.is_empty() {
            self.remember()?;
        }
        Ok(deaths)
    }

    /// Asks children to end and waits. A further request on `hurry` after `deaf_until`, or the time
    /// running out, kills them. Returns what went wrong.
    pub(super) fn stop(
        &mut self,
        names: &[String],
        timeout: Duration,
        (hurry, deaf_until): (&Receiver<()>, Instant),
    ) -> Vec<String> {
        let mut problems = Vec::new();
        for name in names {
            self.signal(name, Signal::TERM, &mut problems);
        }
        let mut killed = false;
        let mut deadline = Instant::now() + timeout;
        loop {
            let running = self.reap(names, &mut problems);
            if running.is_empty() {
                return problems;
            }
            let late = Instant::now() >= deadline;
            if killed && late {
                problems.push(format!("{} cannot be killed", running.join(", ")));
                return problems;
            }
            let is_hurried = hurry.try_recv().is_ok() && Instant::now() >= deaf_until;
            if !killed && (late || is_hurried) {
                for name in &running {
                    problems.push(format!("{name} did not stop in time and was killed"));
                    self.signal(name, Signal::KILL, &mut problems);
                }
                killed = true;
                deadline = Instant::now() + KILL_TIMEOUT;
            }
            thread::sleep(WAIT_STEP);
        }
    }

    fn signal(&self, name: &str, signal: Signal, problems: &mut Vec<String>) {
        let running = self.slots.get(name).filter(|slot| slot.process.is_running());
        let Some(slot) = running else { return };
        if let Err(error) = slot.process.signal(signal) {
            problems.push(format!("cannot signal {name}: {error}"));
        }
    }

    /// Waits for those that have ended; returns those that still run.
    fn reap(&mut self, names: &[String], problems: &mut Vec<String>) -> Vec<String> {
        let mut running = Vec::new();
        for name in names {
            let Some(slot) = self.slots.get_mut(name) else { continue };
            match slot.process.poll() {
                Ok(None) if slot.process.is_running() => running.push(name.clone()),
                Ok(Some(status)) if !status.success() => {
                    problems.push(format!("{name} ended with {}", describe(status)));
                }
                Ok(_) => {}
                Err(error) => problems.push(format!("cannot wait for {name}: {error}")),
            }
        }
        running
    }
}

impl Slot {
    /// When it starts again, if it does: after a delay that doubles while it keeps dying young.
    fn die(&mut self, now: Instant, restart: bool) -> Option<Duration> {
        if !restart {
            return None;
        }
        let young = now.duration_since(self.started) < STEADY_AFTER;
        let delay = if young { self.restart_delay } else { RESTART_DELAY_MIN };
        self.restart_delay = (delay * 2).min(RESTART_DELAY_MAX);
        self.restart_at = Some(now + delay);
        Some(delay)
    }
}

fn describe(status: ExitStatus) -> String {
    use std::os::unix::process::ExitStatusExt;
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(9)) => "killed (signal 9)".to_owned(),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "an unknown status".to_owned(),
    }
}

impl LogTail {
    fn read(log: &Log) -> Self {
        let last_lines = log
            .last_lines(LOG_LINES_SHOWN)
            .unwrap_or_else(|error| vec![format!("(the log cannot be read: {error})")]);
        Self { path: log.path().to_owned(), last_lines }
    }
}
