//! `mock`: a run that only pretends, as its configuration says. It uses timers and has no process,
//! so that one agent can hold thousands. Simulated nodes use the script without these timers. A
//! simulated machine has a table of processes that shows what is running.

use std::{io, sync::Arc, time::Duration};

use fsm::AllocationId;
use futures_util::{FutureExt, future::BoxFuture};
use serde::Deserialize;

use super::{Driver, Recovered, Room, Run, Running, TaskContext};
use crate::{
    task::run::{ExitResult, Fault, Outcome, StartError, code_of_signal},
    time::wall_ms,
};
use calendar::duration;
use ground::rt::{self, sleep, watch};

/// The driver's usual name.
pub(crate) const NAME: &str = "mock";

/// One run of a task.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct RunId {
    /// The allocation.
    pub allocation: AllocationId,
    /// Name of the task in its group.
    pub task: String,
    /// Number of the run, from 1.
    pub attempt: u32,
}

/// The processes of a simulated machine. Like real ones, they go on when the agent is gone, and end
/// with the machine.
pub trait ProcessTable: Send + Sync + 'static {
    /// Records that a run begins. It ends by itself after `lasts`, if that is given.
    fn begins(&self, run: &RunId, lasts: Option<Duration>);
    /// Looks for a run. `None`: it never began on this machine.
    fn find(&self, run: &RunId) -> Option<Process>;
    /// Records that a run was killed.
    fn ends(&self, run: &RunId);
}

/// A run that began, whether or not it still goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Milliseconds since the Unix epoch.
    pub began_at_ms: u64,
    /// An agent has killed it.
    pub killed: bool,
}

/// How a run behaves. The fields are those of Nomad's mock driver.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Script {
    /// How long it runs, ms; `None`: until it is killed.
    pub(crate) run_for_ms: Option<u64>,
    pub(crate) exit_code: i32,
    pub(crate) exit_signal: i32,
    pub(crate) exit_error: Option<String>,
    pub(crate) start_error: Option<String>,
    pub(crate) start_error_recoverable: bool,
    /// The start fails with this message, as the node's fault.
    pub(crate) node_failure: Option<String>,
    /// How long starting takes, ms.
    pub(crate) start_block_for_ms: u64,
    /// How long it lives after a kill, ms. SIGKILL ends it at the kill timeout at the latest.
    pub(crate) kill_after_ms: u64,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Config {
    run_for: Option<DurationValue>,
    exit_code: i32,
    exit_signal: i32,
    exit_err_msg: Option<String>,
    start_error: Option<String>,
    start_error_recoverable: bool,
    node_failure: Option<String>,
    start_block_for: Option<DurationValue>,
    kill_after: Option<DurationValue>,
}

/// A duration in Go's form (`1m30s`), or in nanoseconds as in Nomad's JSON.
#[derive(Deserialize)]
#[serde(untagged)]
enum DurationValue {
    Text(String),
    Nanoseconds(u64),
}

impl Script {
    /// Parses a configuration. Without `run_for` the run lasts until it is killed.
    pub(crate) fn parse(config_json: &str) -> Result<Self, StartError> {
        let text = if config_json.trim().is_empty() { "{}" } else { config_json };
        let config: Config = serde_json::from_str(text).map_err(|error| {
            StartError::impossible(format!("bad config of driver mock: {error}"))
        })?;
        let duration = |value: Option<DurationValue>| value.map(|value| value.ms()).transpose();
        Ok(Self {
            run_for_ms: duration(config.run_for)?,
            exit_code: config.exit_code,
            exit_signal: config.exit_signal,
            exit_error: config.exit_err_msg,
            start_error: config.start_error.filter(|error| !error.is_empty()),
            start_error_recoverable: config.start_error_recoverable,
            node_failure: config.node_failure.filter(|error| !error.is_empty()),
            start_block_for_ms: duration(config.start_block_for)?.unwrap_or(0),
            kill_after_ms: duration(config.kill_after)?.unwrap_or(0),
        })
    }

    /// The error of the start, if the script has one.
    pub(crate) fn start_failure(&self) -> Option<StartError> {
        if let Some(message) = self.node_failure.clone() {
            return Some(StartError { message, recoverable: true, fault: Fault::Node });
        }
        let (message, fault) = (self.start_error.clone()?, Fault::Task);
        Some(StartError { message, recoverable: self.start_error_recoverable, fault })
    }

    /// The result when the run ends by itself.
    pub(crate) fn natural_end(&self) -> ExitResult {
        let exit_code = match (self.exit_code, self.exit_signal) {
            (0, signal) if signal != 0 => code_of_signal(signal),
            (code, _) => code,
        };
        ExitResult {
            exit_code,
            signal: self.exit_signal,
            error: self.exit_error.clone(),
            ..ExitResult::default()
        }
    }

    /// How long the run takes to end after a kill, in ms, and its result.
    pub(crate) fn killed_end(&self, timeout_ms: u64) -> (u64, ExitResult) {
        let signal = if self.kill_after_ms > timeout_ms { 9 } else { 2 };
        let exit =
            ExitResult { exit_code: code_of_signal(signal), signal, ..ExitResult::default() };
        (self.kill_after_ms.min(timeout_ms), exit)
    }
}

impl DurationValue {
    fn ms(&self) -> Result<u64, StartError> {
        match self {
            Self::Nanoseconds(ns) => Ok(ns / 1_000_000),
            Self::Text(text) => match duration::parse(text).map(u64::try_from) {
                Ok(Ok(nanoseconds)) => Ok(nanoseconds / 1_000_000),
                Ok(Err(_)) => Err(StartError::impossible(format!("`{text}` is negative"))),
                Err(message) => Err(StartError::impossible(message)),
            },
        }
    }
}

/// A pretended run.
pub(crate) struct MockRun {
    /// Id of the run and the table that holds it, if the machine is simulated.
    listed: Option<(RunId, Arc<dyn ProcessTable>)>,
    script: Script,
    started_at_ms: u64,
    /// The timeout of the kill, ms. `None`: no kill was asked for.
    killed: watch::Sender<Option<u64>>,
}

/// The driver.
pub(super) struct Mock;

impl Driver for Mock {
    fn start<'a>(&'a self, context: &'a TaskContext) -> BoxFuture<'a, Result<Run, StartError>> {
        start(context).map(|run| Ok(Arc::new(run?) as Run)).boxed()
    }

    /// A mock run goes on while the agent is away, like a real one. If there is no table of
    /// processes, a run exists if its start was seen.
    fn recover<'a>(
        &'a self,
        context: &'a TaskContext,
        run_started_at_ms: u64,
    ) -> BoxFuture<'a, Result<Recovered, StartError>> {
        Box::pin(std::future::ready(recover(context, run_started_at_ms)))
    }
}

async fn start(context: &TaskContext) -> Result<MockRun, StartError> {
    let script = script(context)?;
    sleep(Duration::from_millis(script.start_block_for_ms)).await;
    if let Some(error) = script.start_failure() {
        return Err(error);
    }
    let run = MockRun::new(context, script, wall_ms());
    if let Some((id, processes)) = &run.listed {
        processes.begins(id, run.script.run_for_ms.map(Duration::from_millis));
    }
    Ok(run)
}

fn script(context: &TaskContext) -> Result<Script, StartError> {
    let written = &context.task().config_json;
    if !written.contains("${") {
        return Script::parse(written);
    }
    let room = &mut Room::default();
    let names = context.names(room)?;
    Script::parse(&context.config_json(&names, room)?)
}

fn recover(context: &TaskContext, run_started_at_ms: u64) -> Result<Recovered, StartError> {
    let seen = Process { began_at_ms: run_started_at_ms, killed: false };
    let found = match &context.drivers.processes {
        Some(processes) => processes.find(&context.run_id()),
        None => (run_started_at_ms > 0).then_some(seen),
    };
    let Some(found) = found else { return Ok(Recovered::Never) };
    let run = MockRun::new(context, script(context)?, found.began_at_ms);
    if found.killed {
        run.end_within(0);
    }
    Ok(Recovered::Run(Arc::new(run)))
}

impl MockRun {
    fn new(context: &TaskContext, script: Script, started_at_ms: u64) -> Self {
        let processes = context.drivers.processes.clone();
        let listed = processes.map(|processes| (context.run_id(), processes));
        Self { listed, script, started_at_ms, killed: watch::Sender::new(None) }
    }

    async fn end(&self) -> Outcome {
        let mut killed = self.killed.subscribe();
        let natural = async {
            match self.script.run_for_ms {
                Some(run_for_ms) => {
                    let gone_ms = wall_ms().saturating_sub(self.started_at_ms);
                    sleep(Duration::from_millis(run_for_ms.saturating_sub(gone_ms))).await;
                }
                None => std::future::pending().await,
            }
        };
        let kill = async {
            // The sender lives in `self`: it cannot be gone.
            let timeout_ms = killed.wait_for(Option::is_some).await.ok().and_then(|value| *value);
            let (after_ms, exit) = self.script.killed_end(timeout_ms.unwrap_or(0));
            sleep(Duration::from_millis(after_ms)).await;
            exit
        };
        let result = rt::select! {
            biased;
            () = natural => self.script.natural_end(),
            exit = kill => {
                if let Some((id, processes)) = &self.listed {
                    processes.ends(id);
                }
                exit
            }
        };
        Outcome::Exited { result, at_ms: wall_ms() }
    }

    fn end_within(&self, timeout_ms: u64) {
        self.killed.send_replace(Some(timeout_ms));
    }
}

impl Running for MockRun {
    fn started(&self) -> BoxFuture<'_, Result<(), StartError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn wait(&self) -> BoxFuture<'_, Outcome> {
        self.end().boxed()
    }

    fn signal<'a>(&'a self, _signal: &'a str) -> BoxFuture<'a, io::Result<()>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn kill<'a>(&'a self, _signal: &'a str, timeout_ms: u64) -> BoxFuture<'a, io::Result<()>> {
        self.end_within(timeout_ms);
        Box::pin(std::future::ready(Ok(())))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_script_is_read_and_nonsense_refused() {
        let script = Script::parse(r#"{"run_for":"2s","exit_code":3,"kill_after":1000000}"#);
        let expected =
            Script { run_for_ms: Some(2000), exit_code: 3, kill_after_ms: 1, ..Script::default() };
        assert_eq!(script, Ok(expected));
        assert_eq!(Script::parse(""), Ok(Script::default()));
        assert!(Script::parse(r#"{"run_fro":"2s"}"#).is_err());
        assert!(Script::parse(r#"{"run_for":"soon"}"#).is_err());
    }

    #[test]
    fn a_signal_of_any_number_ends_a_run() {
        for (signal, code) in [(9, 137), (i32::MAX, i32::MAX), (i32::MIN, 128 + i32::MIN)] {
            let script = Script::parse(&json!({"exit_signal": signal}).to_string());
            let end = script.map(|script| script.natural_end());
            assert_eq!(end.map(|end| (end.signal, end.exit_code)), Ok((signal, code)));
        }
    }

    #[test]
    fn a_kill_that_is_ignored_ends_with_sigkill_at_the_timeout() {
        let stubborn = Script { kill_after_ms: 9000, ..Script::default() };
        let (after_ms, exit) = stubborn.killed_end(5000);
        assert_eq!((after_ms, exit.signal, exit.exit_code), (5000, 9, 137));
        assert_eq!(Script::default().killed_end(5000).0, 0);
    }

    /// A server accepts at registration exactly the configurations that this driver can parse.
    #[test]
    fn a_config_that_is_registered_is_one_that_is_read() {
        for (config, is_read) in [
            (json!({}), true),
            (json!({"run_for": "1m30s", "kill_after": 1_000_000, "exit_signal": 9}), true),
            (json!({"run_for": "1.5s", "start_block_for": "250ms", "exit_err_msg": "x"}), true),
            (json!({"start_error": "x", "start_error_recoverable": true}), true),
            (json!({"node_failure": "x", "exit_code": -1, "kill_after": ".5s"}), true),
            (json!({"run_for": null, "exit_code": null}), true),
            (json!({"run_for": ""}), false),
            (json!({"run_for": "10"}), false),
            (json!({"run_for": "-1s"}), false),
            (json!({"run_for": -1}), false),
            (json!({"run_for": 1.5}), false),
            (json!({"run_for": []}), false),
            (json!({"exit_code": "1"}), false),
            (json!({"exit_code": 1_u64 << 33}), false),
            (json!({"exit_err_msg": 1}), false),
            (json!({"start_error_recoverable": "true"}), false),
            (json!({"run_fro": "2s"}), false),
        ] {
            let task = json!({"Name": "t", "Driver": "mock", "Config": config});
            let job = json!({"ID": "j", "TaskGroups": [{"Name": "g", "Tasks": [task]}]});
            let taken = jobspec::to_spec(&job);
            assert_eq!(taken.is_ok(), is_read, "{config}");
            let stored = taken.map_or_else(
                |_| config.to_string(),
                |taken| taken.spec.groups[0].tasks[0].config_json.to_string(),
            );
            assert_eq!(Script::parse(&stored).is_ok(), is_read, "{config}");
        }
    }
}
