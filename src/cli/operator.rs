//! `quorate operator …`: the cluster itself.

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::context::{Context, Exit, Outcome};
use super::output::{Style, table};
use super::view::Fields;

/// Look after the cluster
#[derive(Debug, Subcommand)]
pub(crate) enum OperatorCommand {
    /// Consensus: who takes part, who leads
    #[command(subcommand)]
    Raft(RaftCommand),
}

/// Consensus.
#[derive(Debug, Subcommand)]
pub(crate) enum RaftCommand {
    /// List the servers that take part
    #[command(
        after_help = "Examples:\n  quorate operator raft list-peers\n  quorate operator raft list-peers -stale"
    )]
    ListPeers(ListPeersArgs),
    /// Make another server the leader
    #[command(
        after_help = "Examples:\n  quorate operator raft transfer-leadership -peer-address 127.0.0.1:4657\n  quorate operator raft transfer-leadership -peer-id ID"
    )]
    TransferLeadership(TransferArgs),
}

/// Flags of `list-peers`.
#[derive(Debug, Args)]
pub(crate) struct ListPeersArgs {
    /// Ask any server, also without a leader
    #[arg(long)]
    stale: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `transfer-leadership`.
#[derive(Debug, Args)]
#[group(skip)]
pub(crate) struct TransferArgs {
    /// Advertised gRPC address of the server that is to lead
    #[arg(
        long,
        value_name = "HOST:PORT",
        required_unless_present = "peer_id",
        conflicts_with = "peer_id"
    )]
    peer_address: Option<String>,
    /// Raft id of the server that is to lead
    #[arg(long, value_name = "ID")]
    peer_id: Option<String>,
}

pub(crate) fn run(context: &Context, command: &OperatorCommand) -> Outcome {
    match command {
        OperatorCommand::Raft(RaftCommand::ListPeers(arguments)) => list_peers(context, arguments),
        OperatorCommand::Raft(RaftCommand::TransferLeadership(arguments)) => {
            transfer(context, arguments)
        }
    }
}

fn list_peers(context: &Context, arguments: &ListPeersArgs) -> Outcome {
    let query: &[(&str, &str)] = if arguments.stale { &[("stale", "true")] } else { &[] };
    let answer = context.client.get("/v1/operator/raft/configuration", query)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let line = |server: &Value| {
        let state = if server.flag("Leader") { "leader" } else { "follower" };
        vec![
            server.shown("Node"),
            server.shown("ID"),
            server.shown("Address"),
            state.to_owned(),
            server.flag("Voter").to_string(),
            server.shown("RaftProtocol"),
        ]
    };
    let lines: Vec<Vec<String>> = answer.items("Servers").iter().map(line).collect();
    context.line(table(&["Node", "ID", "Address", "State", "Voter", "RaftProtocol"], &lines))?;
    Ok(Exit::Success)
}

fn transfer(context: &Context, arguments: &TransferArgs) -> Outcome {
    let (name, value) = match (&arguments.peer_id, &arguments.peer_address) {
        (Some(id), _) => ("id", id),
        (None, Some(address)) => ("address", address),
        (None, None) => bail!("name the server that is to lead: -peer-address or -peer-id"),
    };
    let path = "/v1/operator/raft/transfer-leadership";
    context.client.put(path, &[(name, value)], &json!({}))?;
    context.line(format!("Leadership was transferred to {value}"))?;
    Ok(Exit::Success)
}
