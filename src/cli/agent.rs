//! `quorate agent`: starts a node agent.

use std::path::PathBuf;

use clap::Args;

use super::context::{Exit, Outcome};
use super::process;
use crate::{
    config::{Flag, Sources},
    reload::AgentReload,
};

pub(crate) const EXAMPLES: &str = "Examples:
  quorate agent --config cluster-configs/three/agent.toml
  QUORATE__DRIVERS__RAW_EXEC=true quorate agent --servers 10.0.0.1:4647,10.0.0.2:4647 --data-dir /var/lib/quorate-agent
  quorate agent --servers 127.0.0.1:4647 --data-dir sim --simulate 5000     (simulated nodes for load tests)

Every key of the file can also be set by a variable: QUORATE__DRIVERS__RAW_EXEC=true sets drivers.raw_exec. Without a driver a node
runs nothing; raw_exec runs commands as the agent's user, without isolation.
Order: file, then variables, then flags; the last one wins.";

/// Flags of `agent`.
#[derive(Debug, Args)]
pub(crate) struct AgentArgs {
    /// TOML file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the node (default: the host's name)
    #[arg(long)]
    name: Option<String>,
    /// gRPC addresses of servers, separated by commas
    #[arg(long, value_name = "ADDRESSES")]
    servers: Option<String>,
    /// Folder of the agent's state and of its allocations
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Datacenter of the node
    #[arg(long)]
    datacenter: Option<String>,
    /// Pretend to be this many nodes that run nothing
    #[arg(long, value_name = "N")]
    simulate: Option<u32>,
    /// error, warn, info, debug, trace
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
    /// human, json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
}

/// Starts an agent and returns when it has stopped.
///
/// `region` is the global flag: here it is the region that the node is in.
pub(crate) fn start(arguments: AgentArgs, region: Option<String>) -> Outcome {
    let flags = [
        Flag::given("--name", "name", arguments.name),
        Flag::given("--region", "region", region),
        Flag::given("--servers", "servers", arguments.servers),
        Flag::given("--data-dir", "data_dir", arguments.data_dir),
        Flag::given("--datacenter", "datacenter", arguments.datacenter),
        Flag::given("--simulate", "simulate", arguments.simulate),
        Flag::given("--log-level", "log_level", arguments.log_level),
        Flag::given("--log-format", "log_format", arguments.log_format),
    ];
    let sources = Sources::from_process(arguments.config, flags.into_iter().flatten().collect());
    process::agent(AgentReload::load(sources)?)?;
    Ok(Exit::Success)
}
