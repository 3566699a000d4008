//! `quorate up`: a cluster of real processes on this machine.
//!
//! ```text
//! job files parsed ─► folder prepared (lock, ports, old processes) ─► servers, agent started
//!     ─► leader known ─► node ready ─► jobs registered ─► table, until Ctrl-C ─► agent, followers, leader stopped
//! ```
//! Nothing is started before everything that can be checked was checked. Must never stop a process
//! that it did not start itself, and never restart a dead one unless `--restart` was given: a crash
//! is to be seen.

mod children;
mod layout;
mod watch;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;

use super::client::ClientError;
use super::context::{Context, Exit, Outcome};
use super::job::{JobFile, print_warnings, register};
use super::signal;
use super::view::Fields;
use children::{Children, Death, Launch};
use layout::{Layout, Role};
use watch::{Picture, Watcher};

use crate::provider::process::ProcessProvider;

/// How long a cluster may take to elect its first leader.
const LEADER_TIMEOUT: Duration = Duration::from_mins(2);
/// How long the agent's node may take to be ready before jobs are registered anyway.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a server may turn a registration away before that is an error.
const ADMISSION_TIMEOUT: Duration = Duration::from_secs(30);
/// How long one process may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(30);
/// Signals within this time are one request to stop. A program that this runs under (`timeout`, for
/// one) may pass on what was sent to both.
const ONE_REQUEST: Duration = Duration::from_secs(1);
/// Between two looks at the children.
const TICK: Duration = Duration::from_millis(200);

pub(crate) const EXAMPLES: &str = "Examples:
  quorate up                           three servers and an agent; Ctrl-C stops them
  quorate up examples/web.hcl          and run a job
  quorate up --servers 5 --data demo   five servers, state in ./demo
  quorate up --no-agent                servers only; start agents yourself

The same folder started again goes on where it stopped. Job files that are named again are registered
again: a count that was scaled goes back to the file's.

In another terminal: quorate job status";

/// Flags of `up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// Job files to run once the cluster is up
    #[arg(value_name = "JOBFILE")]
    job_files: Vec<String>,
    /// Number of servers
    #[arg(long, default_value = "3", value_parser = ["3", "5"])]
    servers: String,
    /// Folder of state, configuration and logs
    #[arg(long, value_name = "DIR", default_value = "quorate-data")]
    data: PathBuf,
    /// Start a process again when it dies
    #[arg(long)]
    restart: bool,
    /// Servers only
    #[arg(long)]
    no_agent: bool,
}

pub(crate) fn run(context: &Context, arguments: &UpArgs) -> Outcome {
    let servers = arguments.servers.parse()?;
    let jobs = arguments
        .job_files
        .iter()
        .map(|file| JobFile::read(file, false))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let layout = Layout::prepare(&arguments.data, servers, !arguments.no_agent)?;
    layout.check_ports()?;
    // Before the first child: a Ctrl-C from here on must stop what was started.
    let stop = signal::stop_requests()?;
    let program = std::env::current_exe()?;
    let launch = Box::new(move |member: &layout::Member| member.command(&program));
    Up::new(context, layout, launch, arguments.restart, stop)?.run(&jobs)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Started {
    Yes,
    /// It was explained why.
    No,
    StopRequested,
}

struct Up<'a> {
    context: &'a Context,
    layout: Layout,
    children: Children,
    watcher: Watcher,
    stop: Receiver<()>,
    /// A stop was requested: every wait ends at once.
    stopping: Cell<bool>,
}

impl<'a> Up<'a> {
    fn new(
        context: &'a Context,
        layout: Layout,
        launch: Launch,
        restart: bool,
        stop: Receiver<()>,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            context,
            children: Children::new(launch, layout.pid_file(), restart),
            watcher: Watcher::new(context, &layout)?,
            layout,
            stop,
            stopping: Cell::new(false),
        })
    }

    /// From the first child's start to the last one's end, whatever happens between.
    fn run(&mut self, jobs: &[JobFile]) -> Outcome {
        let outcome = self.start().and_then(|started| match started {
            Started::Yes => self.operate(jobs),
            Started::StopRequested => Ok(Exit::Success),
            Started::No => Ok(Exit::Failure),
        });
        let clean = self.shut_down();
        match outcome? {
            Exit::Success if clean => Ok(Exit::Success),
            Exit::Success | Exit::Failure | Exit::NotPlaced | Exit::PlanError => Ok(Exit::Failure),
        }
    }

    /// Starts everything and waits for a leader.
    fn start(&mut self) -> anyhow::Result<Started> {
        let folder = self.layout.folder().display().to_string();
        let verb = if self.layout.is_new() { "new" } else { "existing" };
        self.context.line(format!("Data in {folder} ({verb}), logs in {folder}/logs"))?;
        for member in self.layout.members() {
            let pid = self.children.start(member)?;
            self.context.line(format!("Started {} (process {pid})", member.name))?;
        }
        let begin = Instant::now();
        let mut shown = String::new();
        loop {
            if self.stop_requested(TICK) {
                return Ok(Started::StopRequested);
            }
            self.report_deaths()?;
            let majority = self.layout.server_count() / 2 + 1;
            if self.children.alive(Role::Server) < majority && !self.children.restarts() {
                self.context.output.clear_block()?;
                self.context.output.advice("Error: too few servers are left to elect a leader");
                return Ok(Started::No);
            }
            let picture = self.watcher.latest();
            if let Some(leader) = &picture.leader {
                self.context.output.clear_block()?;
                self.context.line(format!("Leader is {leader}"))?;
                return Ok(Started::Yes);
            }
            if begin.elapsed() > LEADER_TIMEOUT {
                self.context.output.clear_block()?;
                self.context.output.advice(format!(
                    "Error: no leader after {} s; the logs in {folder}/logs say why",
                    LEADER_TIMEOUT.as_secs()
                ));
                return Ok(Started::No);
            }
            self.show_waiting(&picture, begin, &mut shown)?;
        }
    }

    fn show_waiting(
        &self,
        picture: &Picture,
        begin: Instant,
        shown: &mut String,
    ) -> anyhow::Result<()> {
        let count = self.layout.server_count();
        let text = format!("Waiting for a leader: {} of {count} servers answer", picture.answering);
        if self.context.output.is_terminal() {
            let line = format!("{text} ({} s)", begin.elapsed().as_secs());
            self.context.output.block(&[line])?;
        } else if *shown != text {
            self.context.line(&text)?;
            *shown = text;
        }
        Ok(())
    }

    /// Registers the jobs and shows what runs, until a stop is requested.
    fn operate(&mut self, jobs: &[JobFile]) -> anyhow::Result<Exit> {
        let address = self.watcher.address().to_owned();
        self.context.line(format!(
            "HTTP API: {address}   (in another terminal: QUORATE_ADDR={address} quorate job status)"
        ))?;
        if !jobs.is_empty() {
            if self.wait_for_node()? == Started::StopRequested {
                return Ok(Exit::Success);
            }
            for job in jobs {
                self.register(job)?;
            }
        }
        let mut drawn = Vec::new();
        let mut last = Picture::default();
        loop {
            if self.stop_requested(TICK) {
                return Ok(Exit::Success);
            }
            if self.report_deaths()? {
                drawn.clear();
            }
            if self.children.alive(Role::Server) == 0 && !self.children.restarts() {
                self.context.output.advice("Error: no server is left");
                return Ok(Exit::Failure);
            }
            let picture = self.watcher.latest();
            if self.context.output.is_terminal() {
                let lines = picture.table(&self.layout, &self.children);
                if lines != drawn {
                    self.context.output.block(&lines)?;
                    drawn = lines;
                }
            } else {
                for line in picture.changes_since(&last) {
                    self.context.line(line)?;
                }
                last = picture;
            }
        }
    }

    fn wait_for_node(&mut self) -> anyhow::Result<Started> {
        if !self.layout.members().iter().any(|member| member.role == Role::Agent) {
            return Ok(Started::Yes);
        }
        let begin = Instant::now();
        while begin.elapsed() < NODE_TIMEOUT {
            if self.watcher.latest().ready_nodes > 0 {
                return Ok(Started::Yes);
            }
            if self.stop_requested(TICK) {
                return Ok(Started::StopRequested);
            }
            self.report_deaths()?;
        }
        self.context.output.advice("The agent's node is not ready yet; jobs wait until it is");
        Ok(Started::No)
    }

    /// A job that is refused is reported; the cluster stays up so that it can be looked at.
    fn register(&self, job: &JobFile) -> anyhow::Result<()> {
        match self.register_when_admitted(job) {
            Ok(answer) => {
                let evaluation = super::output::short_id(answer.text("EvalID"));
                let of = if evaluation.is_empty() {
                    String::new()
                } else {
                    format!(", evaluation {evaluation}")
                };
                self.context.line(format!("Registered job \"{}\"{of}", job.id()))?;
                print_warnings(self.context, Some(job), &answer)
            }
            Err(error) => {
                self.context.output.advice(format!("Error: job \"{}\": {error}", job.id()));
                Ok(())
            }
        }
    }

    /// A server that has just started turns requests away (503) before it does anything with them:
    /// only then it is asked again.
    fn register_when_admitted(&self, job: &JobFile) -> anyhow::Result<serde_json::Value> {
        let begin = Instant::now();
        loop {
            let result = register(&self.watcher.leader_context(), job);
            let turned_away = result.as_ref().is_err_and(|error| {
                let error = error.downcast_ref::<ClientError>();
                error.is_some_and(|error| {
                    matches!(error, ClientError::Status { status: 429 | 503, .. })
                })
            });
            let late = begin.elapsed() > ADMISSION_TIMEOUT;
            if !turned_away || late || self.stop_requested(self.context.poll_interval) {
                return result;
            }
        }
    }

    /// True when a signal came within the time.
    fn stop_requested(&self, within: Duration) -> bool {
        if !self.stopping.get() {
            let requested = match self.stop.recv_timeout(within) {
                Ok(()) | Err(RecvTimeoutError::Disconnected) => true,
                Err(RecvTimeoutError::Timeout) => false,
            };
            self.stopping.set(requested);
        }
        self.stopping.get()
    }

    /// True when something was printed.
    fn report_deaths(&mut self) -> anyhow::Result<bool> {
        let deaths = self.children.poll(self.layout.members())?;
        if deaths.is_empty() {
            return Ok(false);
        }
        self.context.output.clear_block()?;
        for death in deaths {
            let Death { name, status, log, restart_in } = death;
            self.context.line(format!("{name} died: {status}"))?;
            for line in log.last_lines {
                self.context.line(format!("  | {line}"))?;
            }
            self.context.line(format!("  log: {}", log.path.display()))?;
            if let Some(delay) = restart_in {
                self.context.line(format!("  starting it again in {} s", delay.as_secs()))?;
            }
        }
        Ok(true)
    }

    /// Instances of pools outlive their servers; they do not outlive the cluster.
    fn end_machines(&self) -> bool {
        let folder = self.layout.machines();
        if !folder.exists() {
            return true;
        }
        let machines = ProcessProvider::open(&folder, None);
        match machines.and_then(|machines| machines.end_all(STOP_TIMEOUT)) {
            Ok(0) => {}
            Ok(count) => {
                self.context.line(format!("Ended {count} instances")).ok();
            }
            Err(error) => {
                self.context.output.advice(format!("  instances in {}: {error}", folder.display()));
                return false;
            }
        }
        true
    }

    /// Agent, then followers, then the leader. True when all ended by themselves and without error.
    fn shut_down(&mut self) -> bool {
        let leader = self.watcher.latest().leader;
        self.watcher.stop();
        self.context.output.clear_block().ok();
        let names = |role: Role, wanted: &dyn Fn(&str) -> bool| -> Vec<String> {
            let members = self.layout.members().iter();
            let chosen = members.filter(|member| member.role == role && wanted(&member.name));
            chosen.map(|member| member.name.clone()).collect()
        };
        let leads = |name: &str| leader.as_deref() == Some(name);
        let stages = [
            names(Role::Agent, &|_| true),
            names(Role::Server, &|name| !leads(name)),
            names(Role::Server, &leads),
        ];
        let mut clean = true;
        let deaf_until = Instant::now() + ONE_REQUEST;
        for stage in stages {
            let running: Vec<String> =
                stage.into_iter().filter(|name| self.children.is_alive(name)).collect();
            if running.is_empty() {
                continue;
            }
            self.context.line(format!("Stopping {}", running.join(", "))).ok();
            for problem in self.children.stop(&running, STOP_TIMEOUT, (&self.stop, deaf_until)) {
                clean = false;
                self.context.output.advice(format!("  {problem}"));
            }
        }
        clean &= self.end_machines();
        self.children.forget();
        self.context.line("Stopped").ok();
        clean
    }
}

/// Refuses what a data folder of another shape would turn into a mess.
fn refuse(folder: &std::path::Path, reason: &str) -> anyhow::Error {
    anyhow::anyhow!("the data folder {} {reason}", folder.display())
}

#[cfg(test)]
mod tests;
