//! The door to the long-running parts of this binary: server, agent, executor, benchmarks.
//!
//! Must never hold logic: it only names what is called.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;

use super::bench::BenchCommand;
use crate::config::{AgentConfig, ServerConfig};

/// Runs a server until it is told to stop.
#[expect(clippy::needless_pass_by_value, reason = "what runs owns its configuration")]
pub(crate) fn server(config: ServerConfig) -> anyhow::Result<()> {
    bail!(
        "the server is not built into this binary yet (configuration of {} is valid)",
        config.name
    )
}

/// Runs an agent until it is told to stop.
#[expect(clippy::needless_pass_by_value, reason = "what runs owns its configuration")]
pub(crate) fn agent(config: AgentConfig) -> anyhow::Result<()> {
    bail!("the agent is not built into this binary yet (configuration of {} is valid)", config.name)
}

/// Runs one task for an agent.
pub(crate) fn executor(_arguments: &[OsString], output: &super::output::Output) -> ExitCode {
    output.advice("Error: the executor is not built into this binary yet");
    ExitCode::FAILURE
}

/// Measures a running cluster.
pub(crate) fn bench(_command: BenchCommand) -> anyhow::Result<()> {
    bail!("benchmarks are not built into this binary yet")
}
