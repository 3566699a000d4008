//! `quorate node meta …`: the metadata of a node, read from and set at its agent.

use std::collections::BTreeMap;

use anyhow::bail;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::{Style, pairs},
    cli::resolve,
    cli::view::Fields,
};

const PATH: &str = "/v1/client/metadata";

/// Read and set a node's metadata while it runs
#[derive(Debug, Subcommand)]
pub(crate) enum MetaCommand {
    /// Show what holds, and what was set over the configuration
    #[command(
        after_help = "Examples:\n  quorate node meta read -node-id agent-1\n  quorate node meta read -json -node-id 4d2ba53b"
    )]
    Read(ReadArgs),
    /// Set keys, and take others away; the agent keeps it over restarts
    #[command(
        after_help = "Examples:\n  quorate node meta apply -node-id agent-1 rack=r2 role=web\n  quorate node meta apply -node-id agent-1 -unset role,rack"
    )]
    Apply(ApplyArgs),
}

/// Flags of `node meta read`.
#[derive(Debug, Args)]
pub(crate) struct ReadArgs {
    /// The node's id, the beginning of it, or its name; without: the node of the agent that is
    /// asked
    #[arg(long, value_name = "NODE")]
    node_id: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `node meta apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The node's id, the beginning of it, or its name; without: the node of the agent that is
    /// asked
    #[arg(long, value_name = "NODE")]
    node_id: Option<String>,
    /// Keys to take away, separated by commas
    #[arg(long, value_name = "KEYS", value_delimiter = ',')]
    unset: Vec<String>,
    /// Keys to set
    #[arg(value_name = "KEY=VALUE")]
    set: Vec<String>,
}

pub(super) fn run(context: &Context, command: &MetaCommand) -> Outcome {
    match command {
        MetaCommand::Read(arguments) => read(context, arguments),
        MetaCommand::Apply(arguments) => apply(context, arguments),
    }
}

/// The node of the agent that the command line asks.
pub(super) fn own_node(context: &Context) -> anyhow::Result<String> {
    let this = context.client.get("/v1/agent/self", &[])?;
    let client = this.get("stats").and_then(|stats| stats.get("client"));
    match client.map(|client| client.text("node_id")) {
        Some(id) if !id.is_empty() => Ok(id.to_owned()),
        Some(_) | None => bail!(
            "{} is a server, which is no node: name the node, or ask its agent with -address",
            context.client.address()
        ),
    }
}

fn node(context: &Context, typed: Option<&String>) -> anyhow::Result<String> {
    match typed {
        Some(typed) => resolve::id(context, resolve::NODE, typed),
        None => own_node(context),
    }
}

fn read(context: &Context, arguments: &ReadArgs) -> Outcome {
    let id = node(context, arguments.node_id.as_ref())?;
    let answer = context.client.get(PATH, &[("node_id", &id)])?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let shown = |field: &str| {
        let text = |value: &Value| value.as_str().unwrap_or("(unset)").to_owned();
        let entries = answer.entries(field).into_iter().map(|(key, value)| (key, text(value)));
        match entries.collect::<Vec<_>>() {
            none if none.is_empty() => "none".to_owned(),
            some => pairs(&some),
        }
    };
    context.line(format!(
        "All Meta\n{}\n\nSet Meta\n{}\n\nConfigured Meta\n{}",
        shown("Meta"),
        shown("Dynamic"),
        shown("Static")
    ))?;
    Ok(Exit::Success)
}

fn apply(context: &Context, arguments: &ApplyArgs) -> Outcome {
    let mut changes: BTreeMap<&str, Option<&str>> = BTreeMap::new();
    for typed in &arguments.set {
        match typed.split_once('=') {
            Some((key, value)) => drop(changes.insert(key, Some(value))),
            None => bail!("\"{typed}\" is no KEY=VALUE"),
        }
    }
    changes.extend(arguments.unset.iter().map(|key| (key.as_str(), None)));
    if changes.is_empty() {
        bail!("say what to change: KEY=VALUE, or -unset KEY");
    }
    let id = node(context, arguments.node_id.as_ref())?;
    let body = json!({ "NodeID": id, "Meta": changes });
    context.client.put(PATH, &[("node_id", &id)], &body)?;
    context.line(format!("Metadata of node \"{id}\" is changed"))?;
    Ok(Exit::Success)
}
