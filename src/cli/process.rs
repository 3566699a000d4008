//! The door to the long-running parts of this binary: server, agent, executor, benchmarks.
//!
//! Must never hold logic: it only starts logging and the panic hook, and maps configurations.

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use agent::{AfterTask, AgentSettings, ReadinessSettings, ReservedResources};
use fsm::node::InstanceProof;
use ground::{task, telemetry};

use crate::{
    address_space,
    bench::{self, BenchCommand},
    config::{self, AgentConfig, ReadinessConfig},
    reload::{AgentReload, ServerReload},
};

/// Runs a server until it is told to stop.
pub(crate) fn server(reload: &ServerReload) -> anyhow::Result<()> {
    let config = reload.started();
    let exporter = match &config.telemetry.otlp_endpoint {
        Some(to) => Some(telemetry::start_with_traces(&config.log, to.clone(), &config.name)),
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
    agent::run(agent_settings(config), http_api::agents::serve, || reload.again())
        .map_err(task::explained)
}

fn agent_settings(config: AgentConfig) -> AgentSettings {
    AgentSettings {
        name: config.name,
        region: config.region,
        datacenter: config.datacenter,
        node_class: config.node_class,
        node_pool: config.node_pool,
        http_address: config.http_address,
        cpu_mhz: config.resources.cpu_mhz,
        memory_mb: config.resources.memory_mb,
        disk_mb: config.resources.disk_mb,
        reserved: ReservedResources {
            cpu_mhz: config.reserved.cpu_mhz.unwrap_or(0),
            memory_mb: config.reserved.memory_mb.unwrap_or(0),
            disk_mb: config.reserved.disk_mb.unwrap_or(0),
            ports: Vec::new(),
        },
        meta: config.meta,
        drivers: config.drivers,
        dynamic_port_min: config.ports.dynamic_min,
        dynamic_port_max: config.ports.dynamic_max,
        allocations_max: config.max_allocations,
        free_bytes_min: config.free_bytes_min,
        readiness: config.readiness.map(readiness_settings),
        simulate_readiness: config.simulate_readiness,
        stop_tasks_on_exit: config.stop_tasks_on_exit,
        simulate: config.simulate.map(std::num::NonZeroU32::get),
        instance: config.instance.map(|own| InstanceProof { id: own.id, token: own.token }),
        ..AgentSettings::new(
            config.data_dir,
            config.servers.iter().map(ToString::to_string).collect(),
        )
    }
}

fn readiness_settings(config: ReadinessConfig) -> ReadinessSettings {
    ReadinessSettings {
        command: config.command,
        interval: Duration::from_millis(config.interval_ms),
        timeout: Duration::from_millis(config.timeout_ms),
        after_task: match config.after_task {
            config::AfterTask::Never => AfterTask::Never,
            config::AfterTask::Failed => AfterTask::Failed,
            config::AfterTask::Always => AfterTask::Always,
        },
    }
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
