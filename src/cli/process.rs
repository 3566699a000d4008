//! The door to the long-running parts of this binary: server, agent, executor, benchmarks.
//!
//! Must never hold logic: it only starts logging and the panic hook, and maps configurations.

use std::ffi::OsString;
use std::process::ExitCode;

use ground::{task, telemetry};

use crate::{
    address_space,
    bench::{self, BenchCommand},
    reload::{AgentReload, ServerReload},
};

/// Runs a server until it is told to stop.
pub(crate) fn server(reload: &ServerReload) -> anyhow::Result<()> {
    let config = reload.started();
    let exporter = match &config.telemetry.otlp_endpoint {
        Some(to) => {
            Some(telemetry::start_with_traces(&config.log, to.clone(), &config.settings.name))
        }
        None => {
            telemetry::start(&config.log);
            None
        }
    };
    address_space::check()?;
    #[cfg(feature = "plant")]
    ground::plant::select()?;
    task::install_panic_hook();
    crate::process::run(reload, exporter).map_err(task::explained)
}

/// Runs an agent until it is told to stop.
pub(crate) fn agent(reload: AgentReload) -> anyhow::Result<()> {
    let config = reload.started().clone();
    telemetry::start(&config.log);
    address_space::check()?;
    task::install_panic_hook();
    agent::run(config.settings, http_api::agents::serve, || reload.again()).map_err(task::explained)
}

/// Runs one task for an agent.
pub(crate) fn executor(arguments: &[OsString]) -> ExitCode {
    let arguments: Vec<String> =
        arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    agent::executor::main(&arguments)
}

/// Measures a cluster.
pub(crate) fn bench(
    command: &BenchCommand,
    progress: &dyn Fn(&str),
) -> anyhow::Result<bench::Report> {
    bench::run(command, progress)
}
