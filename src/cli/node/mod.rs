//! `quorate node …`: status and eligibility; draining is in `drain.rs`.

mod drain;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::context::{Context, Exit, Outcome};
use super::monitor;
use super::output::{Style, pairs, table};
use super::view::{Fields, rows};
use super::{resolve, time};

/// Inspect nodes, take them out of and into service
#[derive(Debug, Subcommand)]
pub(crate) enum NodeCommand {
    /// List nodes, or show one
    #[command(
        after_help = "Examples:\n  quorate node status\n  quorate node status agent-1\n  quorate node status -verbose 4d2ba53b"
    )]
    Status(StatusArgs),
    /// Let the scheduler place on a node, or not
    #[command(
        after_help = "Examples:\n  quorate node eligibility -disable agent-1\n  quorate node eligibility -enable agent-1"
    )]
    Eligibility(EligibilityArgs),
    /// Move what runs on a node elsewhere
    #[command(after_help = drain::EXAMPLES)]
    Drain(drain::DrainArgs),
}

/// Flags of `node status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The node's id, the beginning of it, or its name; without: list all
    node: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `node eligibility`.
#[derive(Debug, Args)]
pub(crate) struct EligibilityArgs {
    #[command(flatten)]
    switch: Switch,
    /// The node's id, the beginning of it, or its name
    node: String,
}

/// Exactly one of two.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Switch {
    /// Place new allocations on it
    #[arg(long)]
    enable: bool,
    /// Place nothing new on it
    #[arg(long)]
    disable: bool,
}

pub(crate) fn run(context: &Context, command: &NodeCommand) -> Outcome {
    match command {
        NodeCommand::Status(arguments) => match &arguments.node {
            None => list(context, arguments.style),
            Some(typed) => one(context, arguments.style, typed),
        },
        NodeCommand::Eligibility(arguments) => eligibility(context, arguments),
        NodeCommand::Drain(arguments) => drain::run(context, arguments),
    }
}

fn list(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/nodes", &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line("No nodes; start one with: quorate agent -servers HOST:4647 -data-dir DIR")?;
        return Ok(Exit::Success);
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|row| {
            vec![
                style.id(row.text("ID")),
                row.shown("NodePool"),
                row.shown("Datacenter"),
                row.shown("Name"),
                row.shown("NodeClass"),
                row.flag("Drain").to_string(),
                row.shown("SchedulingEligibility"),
                row.shown("Status"),
            ]
        })
        .collect();
    context.line(table(
        &["ID", "Node Pool", "DC", "Name", "Class", "Drain", "Eligibility", "Status"],
        &lines,
    ))?;
    Ok(Exit::Success)
}

fn one(context: &Context, style: Style, typed: &str) -> Outcome {
    let id = resolve::id(context, resolve::NODE, typed)?;
    let path = format!("/v1/node/{id}");
    let node = monitor::or_missing(context.client.get(&path, &[]), "node", &id)?;
    if style.json {
        context.output.json(&node)?;
        return Ok(Exit::Success);
    }
    let allocations = context.client.get(&format!("{path}/allocations"), &[])?;
    let mut sections = vec![overview(&node, style), resources(&node)];
    if style.verbose {
        let attributes: Vec<(&str, String)> = ["Attributes", "Meta"]
            .into_iter()
            .flat_map(|field| node.entries(field))
            .map(|(name, value)| {
                (name, value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            })
            .collect();
        sections.push(format!("Attributes and Meta\n{}", pairs(&attributes)));
    }
    sections.push(format!("Allocations\n{}", allocation_table(context, &allocations, style)));
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

fn overview(node: &Value, style: Style) -> String {
    let drivers: Vec<&str> = node
        .entries("Drivers")
        .into_iter()
        .filter(|(_, driver)| driver.flag("Healthy"))
        .map(|(name, _)| name)
        .collect();
    pairs(&[
        ("ID", style.id(node.text("ID"))),
        ("Name", node.shown("Name")),
        ("Node Pool", node.shown("NodePool")),
        ("Class", node.shown("NodeClass")),
        ("DC", node.shown("Datacenter")),
        ("Drain", node.flag("Drain").to_string()),
        ("Eligibility", node.shown("SchedulingEligibility")),
        ("Status", node.shown("Status")),
        ("Status Description", node.shown("StatusDescription")),
        ("Drivers", drivers.join(",")),
        ("HTTP Address", node.shown("HTTPAddr")),
    ])
}

fn resources(node: &Value) -> String {
    let nested = |outer: &str, inner: &str, field: &str| {
        node.get(outer).and_then(|value| value.get(inner)).map_or(0, |value| value.number(field))
    };
    let row = |title: &str, outer: &str| {
        vec![
            title.to_owned(),
            format!("{} MHz", nested(outer, "Cpu", "CpuShares")),
            format!("{} MiB", nested(outer, "Memory", "MemoryMB")),
            format!("{} MiB", nested(outer, "Disk", "DiskMB")),
        ]
    };
    let lines = [row("has", "NodeResources"), row("reserved", "ReservedResources")];
    format!("Resources\n{}", table(&["", "CPU", "Memory", "Disk"], &lines))
}

fn allocation_table(context: &Context, allocations: &Value, style: Style) -> String {
    if rows(allocations).is_empty() {
        return "No allocations placed".to_owned();
    }
    let now = context.now_nanoseconds();
    let lines: Vec<Vec<String>> = rows(allocations)
        .iter()
        .map(|row| {
            vec![
                style.id(row.text("ID")),
                row.shown("JobID"),
                row.shown("TaskGroup"),
                row.shown("DesiredStatus"),
                row.shown("ClientStatus"),
                time::ago(now, row.number("CreateTime")),
            ]
        })
        .collect();
    table(&["ID", "Job ID", "Task Group", "Desired", "Status", "Created"], &lines)
}

fn eligibility(context: &Context, arguments: &EligibilityArgs) -> Outcome {
    let id = resolve::id(context, resolve::NODE, &arguments.node)?;
    let eligibility = if arguments.switch.enable { "eligible" } else { "ineligible" };
    let body = json!({"NodeID": id, "Eligibility": eligibility});
    let answer = context.client.put(&format!("/v1/node/{id}/eligibility"), &[], &body);
    monitor::or_missing(answer, "node", &id)?;
    context.line(format!("Node \"{id}\" is now {eligibility} for scheduling"))?;
    Ok(Exit::Success)
}
