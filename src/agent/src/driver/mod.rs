//! Drivers: how one run of a task is started, waited for, ended, and found again after the agent
//! was restarted. A driver decides nothing about restarts.

mod environment;
pub(crate) mod interpolate;
pub(crate) mod mock;
pub(crate) mod raw_exec;

use std::{borrow::Cow, collections::BTreeMap, io, path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;

use self::interpolate::{Names, Room, TooLong};
use self::mock::{ProcessTable, RunId};
use crate::{
    allocation::{
        spec::{AllocationSpec, TaskSpec},
        state::AllocationDirectory,
    },
    task::run::{Fault, Outcome, StartError},
};

/// A way of running tasks: a file of this folder, its `mod`, and its line in [`DRIVERS`].
pub(crate) trait Driver: Send + Sync + 'static {
    /// What the machine has for it. Blocks: it reads files, and may run a program.
    fn look(&self) -> Found {
        Found::default()
    }

    /// Starts a run; returns when it runs.
    fn start<'a>(&'a self, context: &'a TaskContext) -> BoxFuture<'a, Result<Run, StartError>>;

    /// Finds a run again after the agent was restarted. `run_started_at_ms`: wall clock of its
    /// start, 0 when it had not been seen to start.
    fn recover<'a>(
        &'a self,
        context: &'a TaskContext,
        run_started_at_ms: u64,
    ) -> BoxFuture<'a, Result<Recovered, StartError>>;
}

/// One run of a task. Its files, if it has any, are in [`TaskContext::run_directory`].
pub(crate) trait Running: Send + Sync + 'static {
    /// Waits until a recovered run has started, or says why it did not.
    fn started(&self) -> BoxFuture<'_, Result<(), StartError>>;

    /// Waits for the end. May be dropped and called again.
    fn wait(&self) -> BoxFuture<'_, Outcome>;

    /// Sends a signal, by name or number.
    fn signal<'a>(&'a self, signal: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// Asks for the end: the signal now (the driver's own if it is empty), SIGKILL after the
    /// timeout.
    fn kill<'a>(&'a self, signal: &'a str, timeout_ms: u64) -> BoxFuture<'a, io::Result<()>>;
}

/// A run that was started.
pub(crate) type Run = Arc<dyn Running>;

/// What a machine has for a driver. A driver that is not detected, or is not healthy, is shown to
/// the servers, and gets no tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Found {
    pub(crate) detected: bool,
    pub(crate) healthy: bool,
    /// For people.
    pub(crate) description: String,
    /// By Nomad's names, without `driver.NAME.`.
    pub(crate) attributes: Vec<(&'static str, String)>,
}

impl Default for Found {
    fn default() -> Self {
        let description = "Healthy".to_owned();
        Self { detected: true, healthy: true, description, attributes: Vec::new() }
    }
}

/// A driver and what it is called.
#[derive(Clone, Copy)]
pub(crate) struct Listed {
    /// The key of the configuration that switches it on.
    key: &'static str,
    /// Its names in jobs; the first is its own.
    names: &'static [&'static str],
    driver: &'static dyn Driver,
}

/// Makes a row of [`DRIVERS`].
macro_rules! listed {
    ($driver:expr, $name:literal $(, $alias:literal)*) => {
        Listed { key: concat!("drivers.", $name), names: &[$name $(, $alias)*], driver: &$driver }
    };
}

/// All drivers. Configuration, settings, fingerprint and the runs of tasks read this list.
static DRIVERS: &[Listed] =
    &[listed!(raw_exec::RawExec, "raw_exec"), listed!(mock::Mock, "mock", "mock_driver")];

/// The name of each driver, and the key of the configuration that switches it on.
pub fn driver_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    DRIVERS.iter().map(|listed| (listed.name(), listed.key))
}

impl Listed {
    /// The driver of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        DRIVERS.iter().find(|listed| listed.names.contains(&name)).copied()
    }

    /// Its own name.
    pub(crate) fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// What the machine has for it. Blocks.
    pub(crate) fn look(&self) -> Found {
        self.driver.look()
    }
}

impl PartialEq for Listed {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// The drivers of a node.
#[derive(Clone, Default)]
pub(crate) struct Drivers {
    offered: Arc<[Listed]>,
    /// Holds the mock driver's runs where the machine is simulated.
    processes: Option<Arc<dyn ProcessTable>>,
}

impl Drivers {
    /// These are offered.
    pub(crate) fn new(offered: impl Into<Arc<[Listed]>>) -> Self {
        Self { offered: offered.into(), processes: None }
    }

    /// Those of these names; a name that no driver has is left out.
    pub(crate) fn named(names: &[String]) -> Self {
        Self::new(names.iter().filter_map(|name| Listed::named(name)).collect::<Vec<_>>())
    }

    /// The mock driver alone, on a machine with these processes.
    pub(crate) fn simulated(processes: Arc<dyn ProcessTable>) -> Self {
        Self { processes: Some(processes), ..Self::named(&[mock::NAME.to_owned()]) }
    }

    /// Those that are offered.
    pub(crate) fn offered(&self) -> &[Listed] {
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
    let listed = Listed::named(&context.task().driver)
        .filter(|listed| context.drivers.offered.contains(listed))
        .ok_or_else(|| not_offered(context))?;
    listed.driver.start(context).await
}

/// Finds a run again, also when its driver is no longer offered: that only keeps new runs from
/// starting.
pub(crate) async fn recover(
    context: &TaskContext,
    run_started_at_ms: u64,
) -> Result<Recovered, StartError> {
    let listed = Listed::named(&context.task().driver).ok_or_else(|| not_offered(context))?;
    listed.driver.recover(context, run_started_at_ms).await
}

impl TaskContext {
    fn run_id(&self) -> RunId {
        let task = self.task().name.clone();
        RunId { allocation: self.spec.id, task, attempt: self.attempt }
    }
}

fn not_offered(context: &TaskContext) -> StartError {
    let driver = &context.task().driver;
    let message = format!("driver `{driver}` is not offered by this node");
    StartError { fault: Fault::Node, ..StartError::impossible(message) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_driver_is_found_by_each_of_its_names_and_by_no_other() {
        let mut names = Vec::new();
        for listed in DRIVERS {
            assert_eq!(listed.key, format!("drivers.{}", listed.name()));
            for name in listed.names {
                assert!(Listed::named(name) == Some(*listed), "{name}");
                names.push(name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "two drivers have one name");
        assert!(Listed::named("docker").is_none());
    }
}
