//! Drivers: how one run of a task is started, waited for, ended, and found again after a restart of
//! the agent. A driver decides nothing about restarts of tasks.

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

/// A driver. To add one, add a file to this folder, its `mod` line, and its line in [`DRIVERS`].
pub(crate) trait Driver: Send + Sync + 'static {
    /// Looks for what the driver needs on this machine. Blocks: it may read files and run a
    /// program.
    fn look(&self) -> Detection {
        Detection::default()
    }

    /// Starts a run. Returns when it is running.
    fn start<'a>(&'a self, context: &'a TaskContext) -> BoxFuture<'a, Result<Run, StartError>>;

    /// Finds a run again after a restart of the agent. `run_started_at_ms`: when it started, wall
    /// clock; 0 if its start was not seen.
    fn recover<'a>(
        &'a self,
        context: &'a TaskContext,
        run_started_at_ms: u64,
    ) -> BoxFuture<'a, Result<Recovered, StartError>>;
}

/// One run of a task. Its files, if it has any, are in [`TaskContext::run_directory`].
pub(crate) trait Running: Send + Sync + 'static {
    /// Waits until a recovered run has started. The error says why it did not.
    fn started(&self) -> BoxFuture<'_, Result<(), StartError>>;

    /// Waits for the end of the run. The future may be dropped and the function called again.
    fn wait(&self) -> BoxFuture<'_, Outcome>;

    /// Sends a signal, by name or number.
    fn signal<'a>(&'a self, signal: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// Asks the run to end: sends the signal now (the driver's default if it is empty), and SIGKILL
    /// after the timeout.
    fn kill<'a>(&'a self, signal: &'a str, timeout_ms: u64) -> BoxFuture<'a, io::Result<()>>;
}

/// A run that was started.
pub(crate) type Run = Arc<dyn Running>;

/// What a driver has found on the machine. A driver that is not detected or not healthy is shown to
/// the servers, but gets no tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Detection {
    pub(crate) detected: bool,
    pub(crate) healthy: bool,
    /// Explanation for users.
    pub(crate) description: String,
    /// Attributes by Nomad's names, without the prefix `driver.NAME.`.
    pub(crate) attributes: Vec<(&'static str, String)>,
}

impl Default for Detection {
    fn default() -> Self {
        let description = "Healthy".to_owned();
        Self { detected: true, healthy: true, description, attributes: Vec::new() }
    }
}

/// A driver with its names.
#[derive(Clone, Copy)]
pub(crate) struct DriverEntry {
    /// The configuration key that enables it.
    key: &'static str,
    /// Its names in jobs; the first is the usual one, the others are aliases.
    names: &'static [&'static str],
    driver: &'static dyn Driver,
}

/// Makes a row of [`DRIVERS`].
macro_rules! entry {
    ($driver:expr, $name:literal $(, $alias:literal)*) => {
        DriverEntry { key: concat!("drivers.", $name), names: &[$name $(, $alias)*], driver: &$driver }
    };
}

/// All drivers. Configuration, settings, fingerprint and the runs of tasks read this list.
static DRIVERS: &[DriverEntry] =
    &[entry!(raw_exec::RawExec, "raw_exec"), entry!(mock::Mock, "mock", "mock_driver")];

/// The name of each driver, and the configuration key that enables it.
pub fn driver_keys() -> impl Iterator<Item = (&'static str, &'static str)> {
    DRIVERS.iter().map(|entry| (entry.name(), entry.key))
}

impl DriverEntry {
    /// The driver of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        DRIVERS.iter().find(|entry| entry.names.contains(&name)).copied()
    }

    /// Its usual name.
    pub(crate) fn name(&self) -> &'static str {
        self.names.first().copied().unwrap_or_default()
    }

    /// See [`Driver::look`]. Blocks.
    pub(crate) fn look(&self) -> Detection {
        self.driver.look()
    }
}

impl PartialEq for DriverEntry {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

/// The drivers of a node.
#[derive(Clone, Default)]
pub(crate) struct Drivers {
    offered: Arc<[DriverEntry]>,
    /// The runs of the mock driver, if the machine is simulated.
    processes: Option<Arc<dyn ProcessTable>>,
}

impl Drivers {
    /// A node that offers the drivers with these names. An unknown name is ignored.
    pub(crate) fn named(names: &[String]) -> Self {
        let offered = names.iter().filter_map(|name| DriverEntry::named(name)).collect();
        Self { offered, processes: None }
    }

    /// A simulated node with the mock driver only, whose runs are in `processes`.
    pub(crate) fn simulated(processes: Arc<dyn ProcessTable>) -> Self {
        Self { processes: Some(processes), ..Self::named(&[mock::NAME.to_owned()]) }
    }

    /// The drivers that the node offers.
    pub(crate) fn offered(&self) -> &[DriverEntry] {
        &self.offered
    }
}

/// Everything a driver needs for one run.
#[derive(Clone)]
pub(crate) struct TaskContext {
    pub(crate) spec: Arc<AllocationSpec>,
    /// Position of the task in the group.
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

    /// The names that `${…}` in the task's texts may use.
    fn names(&self, room: &mut Room) -> Result<Names, StartError> {
        Ok(environment::names(&self.spec, self.task(), &self.directory, &self.node, room)?)
    }

    /// The driver's configuration, with `${…}` replaced.
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
    /// It is still running, or its end can still be read.
    Run(Run),
    /// It never began.
    Never,
    /// It was lost together with the agent: no process is left, and how it ended is unknown.
    Lost,
}

/// Starts a run. Returns when it is running.
pub(crate) async fn start(context: &TaskContext) -> Result<Run, StartError> {
    let entry = DriverEntry::named(&context.task().driver)
        .filter(|entry| context.drivers.offered.contains(entry))
        .ok_or_else(|| not_offered(context))?;
    entry.driver.start(context).await
}

/// Finds a run again. Works even if its driver is no longer offered, because that only prevents new
/// runs.
pub(crate) async fn recover(
    context: &TaskContext,
    run_started_at_ms: u64,
) -> Result<Recovered, StartError> {
    let entry = DriverEntry::named(&context.task().driver).ok_or_else(|| not_offered(context))?;
    entry.driver.recover(context, run_started_at_ms).await
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
        for entry in DRIVERS {
            assert_eq!(entry.key, format!("drivers.{}", entry.name()));
            for name in entry.names {
                assert!(DriverEntry::named(name) == Some(*entry), "{name}");
                names.push(name);
            }
        }
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count, "two drivers have one name");
        assert!(DriverEntry::named("docker").is_none());
    }
}
