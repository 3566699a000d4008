//! `quorate node pool …`: names for sets of nodes. (Pools of machines that come and go are `quorate pool`.)

use clap::{Args, Subcommand};
use serde_json::Value;

use crate::cli::context::{Context, Exit, Outcome};
use crate::cli::monitor;
use crate::cli::namespace::{merged, meta_line, meta_of};
use crate::cli::output::{Style, pairs, table};
use crate::cli::view::{Fields, rows};
use crate::percent::encode;

/// Names for sets of nodes, which jobs ask for
#[derive(Debug, Subcommand)]
pub(crate) enum NodePoolCommand {
    /// List node pools
    List(ListArgs),
    /// Show one
    Info(NameArgs),
    /// List the nodes of a pool
    Nodes(NameArgs),
    /// List the jobs that ask for a pool
    Jobs(NameArgs),
    /// Make a node pool, or change it
    #[command(
        after_help = "Example:\n  quorate node pool apply -description \"machines with GPUs\" gpu"
    )]
    Apply(ApplyArgs),
    /// Delete a node pool that has no nodes and no jobs
    Delete(NameArgs),
}

/// Flags of `node pool list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    style: Style,
}

/// A node pool.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The node pool
    name: String,
    #[command(flatten)]
    style: Style,
}

/// Flags of `node pool apply`.
#[derive(Debug, Args)]
pub(crate) struct ApplyArgs {
    /// The node pool
    name: String,
    /// What it is for; without: as it is
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
    /// Its metadata, which goes over all that it has; without: as it is
    #[arg(long, value_name = "KEY=VALUE")]
    meta: Vec<String>,
}

pub(super) fn run(context: &Context, command: &NodePoolCommand) -> Outcome {
    match command {
        NodePoolCommand::List(arguments) => {
            let columns = [("Name", "Name"), ("Description", "Description")];
            list(context, "/v1/node/pools", &columns, arguments.style)
        }
        NodePoolCommand::Info(arguments) => info(context, arguments),
        NodePoolCommand::Nodes(arguments) => {
            let columns =
                [("ID", "ID"), ("Name", "Name"), ("DC", "Datacenter"), ("Status", "Status")];
            let path = format!("{}/nodes", path(&arguments.name));
            list(context, &path, &columns, arguments.style)
        }
        NodePoolCommand::Jobs(arguments) => {
            let columns = [("ID", "ID"), ("Type", "Type"), ("Status", "Status")];
            let path = format!("{}/jobs", path(&arguments.name));
            list(context, &path, &columns, arguments.style)
        }
        NodePoolCommand::Apply(arguments) => {
            let name = &arguments.name;
            let wanted = (name.as_str(), arguments.description.as_ref(), meta_of(&arguments.meta)?);
            let body = merged(context, &path(name), wanted)?;
            context.client.put("/v1/node/pools", &[], &body)?;
            context.line(format!("Node pool \"{name}\" is applied"))?;
            Ok(Exit::Success)
        }
        NodePoolCommand::Delete(arguments) => {
            let name = &arguments.name;
            let answer = context.client.delete(&path(name), &[]);
            monitor::or_missing(answer, "node pool", name)?;
            context.line(format!("Node pool \"{name}\" is deleted"))?;
            Ok(Exit::Success)
        }
    }
}

fn path(name: &str) -> String {
    format!("/v1/node/pool/{}", encode(name))
}

fn list(context: &Context, path: &str, columns: &[(&str, &str)], style: Style) -> Outcome {
    let answer = context.client.get(path, &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let cell = |row: &Value, field: &str| match field {
        "ID" if row.present("NodePool").is_some() => style.id(row.text(field)),
        _ => row.shown(field),
    };
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|row| columns.iter().map(|(_, field)| cell(row, field)).collect())
        .collect();
    let heads: Vec<&str> = columns.iter().map(|(head, _)| *head).collect();
    context.line(table(&heads, &lines))?;
    Ok(Exit::Success)
}

fn info(context: &Context, arguments: &NameArgs) -> Outcome {
    let name = &arguments.name;
    let pool = monitor::or_missing(context.client.get(&path(name), &[]), "node pool", name)?;
    if arguments.style.json {
        context.output.json(&pool)?;
        return Ok(Exit::Success);
    }
    let shown = [
        ("Name", pool.shown("Name")),
        ("Description", pool.shown("Description")),
        ("Meta", meta_line(&pool)),
    ];
    context.line(pairs(&shown))?;
    Ok(Exit::Success)
}
