//! Benchmarks against real servers: `quorate bench writes | reads | schedule | dispatch |
//! failover`, and `compare`, which runs one of the first four with two programs in turns.
//!
//! ```text
//!  cluster (given, or `up`: three child processes) ─► load (streams, unary calls, kept HTTP
//!     │                                                connections) ─► latencies ─► Report
//!     └─► what the servers say of themselves, before and after ────────────────────► Report
//! ```
//! Every benchmark also checks what it measured: acknowledged writes are read back, placements are
//! recomputed over the HTTP API. Must never measure what was not acknowledged, and never touch a
//! process, folder or job that it did not make. It prints nothing: it returns a [`Report`], and its
//! caller is told what goes on.

mod arguments;
mod cluster;
mod compare;
mod dispatch;
mod failover;
mod figures;
mod fsync;
mod http;
mod load;
mod measure;
mod reads;
mod schedule;
mod up;
mod verify;
mod writes;

use std::future::Future;

use serde_json::{Map, Value};

pub use arguments::BenchCommand;
use arguments::LoadCommand;
use cluster::Cluster;
use up::TemporaryServers;

/// What a benchmark found.
#[derive(Debug, Default)]
pub struct Report {
    /// Names and values, for people.
    pub lines: Vec<(String, String)>,
    /// The same as JSON.
    pub json: Map<String, Value>,
    /// Checks of the results that failed; empty when all is well.
    pub problems: Vec<String>,
}

impl Report {
    fn add(&mut self, name: &str, shown: String, value: impl Into<Value>) {
        self.lines.push((name.to_owned(), shown));
        let key = name.to_lowercase().replace([' ', ',', '/', '-', '.'], "_").replace("__", "_");
        self.json.insert(key, value.into());
    }
}

/// Tells a person what goes on.
type Progress<'a> = &'a dyn Fn(&str);

/// Runs one benchmark; `progress` is told what goes on.
pub fn run(command: &BenchCommand, progress: &dyn Fn(&str)) -> anyhow::Result<Report> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = stop_request()?;
        tokio::select! {
            report = measure(command, progress) => report,
            () = stop => anyhow::bail!("interrupted"),
        }
    })
}

/// Resolves at SIGINT or SIGTERM, so that temporary servers are stopped by their owner's end.
fn stop_request() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

async fn measure(command: &BenchCommand, progress: Progress<'_>) -> anyhow::Result<Report> {
    match command {
        BenchCommand::Load(load) => measure_load(load, progress).await,
        // It kills and starts its servers itself.
        BenchCommand::Failover(arguments) => failover::run(arguments, progress).await,
        BenchCommand::Compare(arguments) => compare::run(arguments, progress).await,
    }
}

async fn measure_load(load: &LoadCommand, progress: Progress<'_>) -> anyhow::Result<Report> {
    let arguments = load.cluster();
    let mut temporary = if arguments.up {
        Some(TemporaryServers::start(arguments.up_data.as_deref(), progress)?)
    } else {
        None
    };
    let addresses = temporary.as_ref().map_or(&arguments.servers, TemporaryServers::rpc_addresses);
    let report = measure_at(load, addresses, progress).await;
    match (report, temporary.as_mut().and_then(TemporaryServers::death)) {
        (Err(error), Some(death)) => Err(error.context(death)),
        (Ok(mut report), Some(death)) => {
            report.problems.push(death);
            Ok(report)
        }
        (report, None) => report,
    }
}

async fn measure_at(
    load: &LoadCommand,
    addresses: &[String],
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let cluster = Cluster::connect(addresses, progress).await?;
    match load {
        LoadCommand::Writes(arguments) => writes::run(arguments, &cluster, progress).await,
        LoadCommand::Reads(arguments) => reads::run(arguments, &cluster, progress).await,
        LoadCommand::Schedule(arguments) => schedule::run(arguments, &cluster, progress).await,
        LoadCommand::Dispatch(arguments) => dispatch::run(arguments, &cluster, progress).await,
    }
}
