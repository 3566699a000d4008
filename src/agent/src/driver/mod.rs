//! Drivers: how one run of a task is started, waited for, ended, and found again after the agent
//! was restarted. A driver decides nothing about restarts.

pub(crate) mod mock;
pub(crate) mod raw_exec;

use std::{borrow::Cow, collections::BTreeMap, path::PathBuf, sync::Arc};

use self::{
    mock::{MockRun, ProcessTable, RunId},
    raw_exec::RawExecRun,
};
use super::{
    environment,
    executor::Outcome,
    interpolate::{Names, Room, TooLong},
    spec::{AllocationSpec, TaskSpec},
    state::AllocationDirectory,
    task_runner::Fault,
};

/// The drivers there are.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Driver {
    /// Processes without isolation.
    RawExec,
    /// Timers that pretend.
    Mock,
}

impl Driver {
    /// The driver of that name.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "raw_exec" => Some(Self::RawExec),
            "mock" | "mock_driver" => Some(Self::Mock),
            _ => None,
        }
    }

    /// Its name in jobs.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RawExec => "raw_exec",
            Self::Mock => "mock",
        }
    }
}

/// The drivers of a node.
#[derive(Clone, Default)]
pub(crate) struct Drivers {
    offered: Arc<[Driver]>,
    /// Holds the mock driver's runs where the machine is simulated.
    processes: Option<Arc<dyn ProcessTable>>,
}

impl Drivers {
    /// These are offered.
    pub(crate) fn new(offered: impl Into<Arc<[Driver]>>) -> Self {
        Self { offered: offered.into(), processes: None }
    }

    /// The mock driver alone, on a machine with these processes.
    pub(crate) fn simulated(processes: Arc<dyn ProcessTable>) -> Self {
        Self { offered: [Driver::Mock].into(), processes: Some(processes) }
    }

    /// Those that are offered.
    pub(crate) fn offered(&self) -> &[Driver] {
        &self.offered
    }
}

/// Everything a driver needs for one run.
#[derive(Clone)]
pub(crate) struct TaskContext {
    pub(crate) spec: Arc<AllocationSpec>,
    /// Its place among the tasks.
    pub(crate) place: usize,
    /// The node's properties.
    pub(crate) node: Arc<BTreeMap<String, String>>,
    pub(crate) directory: AllocationDirectory,
    pub(crate) attempt: u32,
    pub(crate) executor_binary: Arc<std::path::Path>,
    pub(crate) drivers: Drivers,
}

impl TaskContext {
    /// The task.
    pub(crate) fn task(&self) -> &TaskSpec {
        &self.spec.tasks[self.place]
    }

    /// Where the files of the run are.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.directory.run(&self.task().name, self.attempt)
    }

    /// What the task's texts may refer to.
    fn names(&self, room: &mut Room) -> Result<Names, StartError> {
        Ok(environment::names(&self.spec, self.task(), &self.directory, &self.node, room)?)
    }

    /// The driver's configuration with its references replaced.
    fn config_json(&self, names: &Names, room: &mut Room) -> Result<Cow<'_, str>, StartError> {
        let written = self.task().config_json.as_str();
        if written.contains("${")
            && let Ok(mut config) = serde_json::from_str(written)
        {
            names.expand_all(&mut config, room)?;
            return Ok(config.to_string().into());
        }
        Ok(written.into())
    }
}

impl From<TooLong> for StartError {
    fn from(error: TooLong) -> Self {
        Self::impossible(error.to_string())
    }
}

/// A run that was started.
#[derive(Clone)]
pub(crate) enum Run {
    RawExec(RawExecRun),
    Mock(Arc<MockRun>),
}

/// It could not be started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub(crate) struct StartError {
    pub(crate) message: String,
    /// Another try may help.
    pub(crate) recoverable: bool,
    pub(crate) fault: Fault,
}

impl StartError {
    /// Another try does not help.
    pub(crate) fn impossible(message: impl Into<String>) -> Self {
        Self { message: message.into(), recoverable: false, fault: Fault::Task }
    }
}

/// What is left of a run after the agent was restarted.
pub(crate) enum Recovered {
    /// It is there, or has ended meanwhile.
    Run(Run),
    /// It never began.
    Never,
    /// It was lost together with the agent: nothing lives of it, and how it ended is not known.
    Lost,
}

/// Starts a run; returns when it runs.
pub(crate) async fn start(context: &TaskContext) -> Result<Run, StartError> {
    match offered(context)? {
        Driver::RawExec => raw_exec::start(context).await.map(Run::RawExec),
        Driver::Mock => mock::start(context).await.map(|run| Run::Mock(Arc::new(run))),
    }
}

/// Finds a run again, also when its driver is no longer offered: that only keeps new runs from
/// starting. `run_started_at_ms`: wall clock of its start, 0 when it had not been seen to start.
pub(crate) async fn recover(
    context: &TaskContext,
    run_started_at_ms: u64,
) -> Result<Recovered, StartError> {
    match Driver::parse(&context.task().driver).ok_or_else(|| not_offered(context))? {
        Driver::RawExec => Ok(raw_exec::recover(context).await),
        Driver::Mock => mock::recover(context, run_started_at_ms),
    }
}

impl TaskContext {
    fn run_id(&self) -> RunId {
        let task = self.task().name.clone();
        RunId { allocation: self.spec.id, task, attempt: self.attempt }
    }
}

fn offered(context: &TaskContext) -> Result<Driver, StartError> {
    Driver::parse(&context.task().driver)
        .filter(|driver| context.drivers.offered.contains(driver))
        .ok_or_else(|| not_offered(context))
}

fn not_offered(context: &TaskContext) -> StartError {
    let driver = &context.task().driver;
    let message = format!("driver `{driver}` is not offered by this node");
    StartError { fault: Fault::Node, ..StartError::impossible(message) }
}

impl Run {
    /// Waits until a recovered run has started, or says why it did not.
    pub(crate) async fn started(&self) -> Result<(), StartError> {
        match self {
            Self::RawExec(run) => run.started().await,
            Self::Mock(_) => Ok(()),
        }
    }

    /// Waits for the end. May be dropped and called again.
    pub(crate) async fn wait(&self) -> Outcome {
        match self {
            Self::RawExec(run) => run.wait().await,
            Self::Mock(run) => run.wait().await,
        }
    }

    /// Sends a signal.
    pub(crate) async fn signal(&self, signal: &str) -> std::io::Result<()> {
        match self {
            Self::RawExec(run) => run.signal(signal).await,
            Self::Mock(_) => Ok(()),
        }
    }

    /// Asks for the end: the signal now, SIGKILL after the timeout.
    pub(crate) async fn kill(&self, signal: &str, timeout_ms: u64) -> std::io::Result<()> {
        match self {
            Self::RawExec(run) => run.kill(signal, timeout_ms).await,
            Self::Mock(run) => {
                run.kill(timeout_ms);
                Ok(())
            }
        }
    }
}
