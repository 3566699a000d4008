//! `quorate node …`: status; draining is in `drain.rs`, metadata in `meta.rs`, what operators say
//! in `service.rs`.

mod drain;
mod meta;
mod pool;
mod service;

pub(super) use pool::NodePoolCommand;

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::context::{Context, Exit, Outcome};
use super::named::PageArgs;
use super::output::{Style, pairs, table};
use super::view::{Fields, rows};
use super::{client, resolve, stats, time};

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
        after_help = "Examples:\n  quorate node eligibility -disable -reason \"broken fan\" agent-1\n  quorate node eligibility -enable agent-1"
    )]
    Eligibility(service::EligibilityArgs),
    /// Take a node out of service until `node online`: over restarts, drains and reaping
    #[command(
        after_help = "Example:\n  quorate node offline -reason \"broken fan\" agent-1\n\nWhat runs there goes on. A whole id may also be of a node that is not registered yet."
    )]
    Offline(service::NodeArgs),
    /// Take a node back into service; a suspension goes on
    Online(service::NodeArgs),
    /// Give a node no new work for a while
    #[command(
        after_help = "Examples:\n  quorate node suspend -reason \"new kernel\" -for 1h agent-1\n  quorate node suspend -reason \"looks odd\" agent-1       until: quorate node unsuspend agent-1"
    )]
    Suspend(service::SuspendArgs),
    /// End a node's suspension, whatever its reason; readiness is checked again
    Unsuspend(service::NodeArgs),
    /// Forget a node at once; its allocations are lost
    Purge(service::PurgeArgs),
    /// Show what happened to a node lately
    Events(service::EventsArgs),
    /// Say that the nodes of a mass loss are lost for good
    ConfirmLoss,
    /// Read and set a node's metadata while it runs
    #[command(subcommand)]
    Meta(meta::MetaCommand),
    /// Names for sets of nodes, which jobs ask for
    #[command(subcommand)]
    Pool(pool::NodePoolCommand),
    /// Move what runs on a node elsewhere
    #[command(after_help = drain::EXAMPLES)]
    Drain(drain::DrainArgs),
}

/// Flags of `node status`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct StatusArgs {
    /// The node's id, the beginning of it, or its name; without: list all
    node: Option<String>,
    /// List the ineligible nodes that are not registered
    #[arg(long, conflicts_with = "node")]
    offline: bool,
    /// The node of the agent that is asked
    #[arg(long = "self", conflicts_with_all = ["node", "offline"])]
    own: bool,
    /// What the machine uses just now
    #[arg(long)]
    stats: bool,
    /// Of a node: only what it is and what runs there
    #[arg(long)]
    short: bool,
    /// In the list: the operating system too
    #[arg(long, conflicts_with = "node")]
    os: bool,
    /// Only the ids of the nodes
    #[arg(long, conflicts_with_all = ["node", "json"])]
    quiet: bool,
    #[command(flatten)]
    page: PageArgs,
    #[command(flatten)]
    style: Style,
}

impl StatusArgs {
    /// The status of one node.
    pub(crate) fn of(id: String, style: Style) -> Self {
        Self {
            node: Some(id),
            own: false,
            stats: false,
            offline: false,
            short: false,
            os: false,
            quiet: false,
            page: PageArgs::default(),
            style,
        }
    }
}

pub(crate) fn run(context: &Context, command: &NodeCommand) -> Outcome {
    match command {
        NodeCommand::Status(arguments) => match &arguments.node {
            None if arguments.offline => offline(context, arguments.style),
            None if arguments.own => one(context, arguments, &meta::own_node(context)?),
            None => list(context, arguments),
            Some(typed) => one(context, arguments, typed),
        },
        NodeCommand::Eligibility(arguments) => service::eligibility(context, arguments),
        NodeCommand::Offline(arguments) => service::serve(context, arguments, false),
        NodeCommand::Online(arguments) => service::serve(context, arguments, true),
        NodeCommand::Suspend(arguments) => service::suspend(context, arguments),
        NodeCommand::Unsuspend(arguments) => service::unsuspend(context, arguments),
        NodeCommand::Purge(arguments) => service::purge(context, arguments),
        NodeCommand::Events(arguments) => service::events(context, arguments),
        NodeCommand::Meta(command) => meta::run(context, command),
        NodeCommand::Pool(command) => pool::run(context, command),
        NodeCommand::ConfirmLoss => service::confirm_loss(context),
        NodeCommand::Drain(arguments) => drain::run(context, arguments),
    }
}

fn list(context: &Context, arguments: &StatusArgs) -> Outcome {
    let style = arguments.style;
    let os: &[(&str, &str)] = if arguments.os { &[("os", "true")] } else { &[] };
    let answer = arguments.page.read(context, "/v1/nodes", os)?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line("No nodes; start one with: quorate agent -servers HOST:4647 -data-dir DIR")?;
        return Ok(Exit::Success);
    }
    if arguments.quiet {
        let ids: Vec<String> = rows(&answer).iter().map(|row| style.id(row.text("ID"))).collect();
        context.line(ids.join("\n"))?;
        return Ok(Exit::Success);
    }
    let mut headers =
        vec!["ID", "Node Pool", "DC", "Name", "Class", "Drain", "Eligibility", "Health", "Status"];
    if arguments.os {
        headers.insert(5, "OS");
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|row| {
            let mut line = vec![
                style.id(row.text("ID")),
                row.shown("NodePool"),
                row.shown("Datacenter"),
                row.shown("Name"),
                row.shown("NodeClass"),
                row.flag("Drain").to_string(),
                row.shown("SchedulingEligibility"),
                health(row),
                status(row).to_owned(),
            ];
            if arguments.os {
                let attributes = row.get("Attributes");
                line.insert(5, attributes.map(|all| all.shown("os.name")).unwrap_or_default());
            }
            line
        })
        .collect();
    if let Some(line) = service::mass_loss_line(context)? {
        context.line(line)?;
    }
    context.line(table(&headers, &lines))?;
    context.line(counts(rows(&answer)))?;
    Ok(Exit::Success)
}

fn is_suspended(node: &Value) -> bool {
    node.get("Health").is_some_and(|health| health.text("Status") == "suspended")
}

fn is_short(node: &Value) -> bool {
    node.get("Shortage").is_some_and(|shortage| !shortage.text("Reason").is_empty())
}

/// A suspended node is not called ready.
fn status(node: &Value) -> &str {
    match node.text("Status") {
        "ready" if is_suspended(node) => "suspended",
        status => status,
    }
}

fn health(node: &Value) -> String {
    match node.get("Health") {
        Some(health) if is_suspended(node) => health.shown("Reason"),
        Some(_) if is_short(node) => "short".to_owned(),
        Some(health) => health.shown("Status"),
        None => String::new(),
    }
}

/// How many nodes there are of each kind; kinds without nodes are left out.
fn counts(nodes: &[Value]) -> String {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    let mut count = |kind: &str| *kinds.entry(kind.to_owned()).or_default() += 1;
    for node in nodes {
        match status(node) {
            "suspended" => {}
            status => count(status),
        }
        if is_suspended(node) {
            count(&format!("suspended ({})", health(node)));
        }
        if is_short(node) {
            count("short of resources");
        }
        if node.flag("Drain") {
            count("draining");
        } else if node.text("SchedulingEligibility") == "ineligible" {
            count("ineligible");
        }
    }
    let parts: Vec<String> = kinds.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let word = if nodes.len() == 1 { "node" } else { "nodes" };
    format!("{} {word}: {}", nodes.len(), parts.join(", "))
}

/// Ineligible nodes that are not registered.
fn offline(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/nodes/offline", &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line("No node is offline without being registered")?;
        return Ok(Exit::Success);
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|row| {
            let by = format!("{} (unverified)", row.text("By"));
            let reason = row.shown("Reason");
            vec![row.shown("ID"), row.shown("Name"), reason, by, row.shown("At")]
        })
        .collect();
    context.line(table(&["ID", "Name", "Reason", "By", "Since"], &lines))?;
    Ok(Exit::Success)
}

fn one(context: &Context, arguments: &StatusArgs, typed: &str) -> Outcome {
    let style = arguments.style;
    let id = resolve::id(context, resolve::NODE, typed)?;
    let path = format!("/v1/node/{id}");
    let node = client::or_missing(context.client.get(&path, &[]), "node", &id)?;
    if style.json {
        context.output.json(&node)?;
        return Ok(Exit::Success);
    }
    let allocations = context.client.get(&format!("{path}/allocations"), &[])?;
    if arguments.short {
        let placed = allocation_table(context, &allocations, style);
        context.line(format!("{}\n\nAllocations\n{placed}", overview(&node, style)))?;
        return Ok(Exit::Success);
    }
    let resources = resources(&node, rows(&allocations));
    let mut sections = vec![overview(&node, style), service::conditions(&node), resources];
    if arguments.stats {
        sections.push(stats::of_node(context, &node));
    }
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
    sections.push(format!("Events\n{}", service::event_table(&node)));
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
    let instance = node.present("Instance").map(|instance| {
        let closed = if instance.flag("Open") { "" } else { ", no new work" };
        let id = style.id(instance.text("ID"));
        ("Instance", format!("{id} of pool {}{closed}", node.text("NodePool")))
    });
    let mut shown = vec![
        ("ID", style.id(node.text("ID"))),
        ("Name", node.shown("Name")),
        ("Node Pool", node.shown("NodePool")),
        ("Class", node.shown("NodeClass")),
        ("DC", node.shown("Datacenter")),
        ("Drain", node.flag("Drain").to_string()),
        ("Eligibility", node.shown("SchedulingEligibility")),
        ("Status", status(node).to_owned()),
        ("Status Description", node.shown("StatusDescription")),
        ("Drivers", drivers.join(",")),
        ("HTTP Address", node.shown("HTTPAddr")),
    ];
    shown.extend(instance);
    pairs(&shown)
}

fn resources(node: &Value, allocations: &[Value]) -> String {
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
    let live = allocations.iter().filter(|row| {
        row.text("DesiredStatus") == "run"
            && matches!(row.text("ClientStatus"), "pending" | "running")
    });
    let mut sums = [0; 3];
    for allocation in live {
        for (sum, amount) in sums.iter_mut().zip(asked_for(allocation)) {
            *sum += amount;
        }
    }
    let [cpu, memory, disk] = sums;
    let allocated = [
        "allocated".to_owned(),
        format!("{cpu} MHz"),
        format!("{memory} MiB"),
        format!("{disk} MiB"),
    ];
    let lines =
        [row("has", "NodeResources"), row("reserved", "ReservedResources"), allocated.into()];
    format!("Resources\n{}", table(&["", "CPU", "Memory", "Disk"], &lines))
}

/// What the tasks of an allocation ask for: MHz, MiB of memory, MiB of disk.
fn asked_for(allocation: &Value) -> [i64; 3] {
    let number = |place: &str| allocation.pointer(place).and_then(Value::as_i64).unwrap_or(0);
    let tasks = allocation.pointer("/AllocatedResources/Tasks").and_then(Value::as_object);
    let of_tasks = |place: &str| -> i64 {
        let tasks = tasks.into_iter().flat_map(|tasks| tasks.values());
        tasks.filter_map(|task| task.pointer(place).and_then(Value::as_i64)).sum()
    };
    [
        of_tasks("/Cpu/CpuShares"),
        of_tasks("/Memory/MemoryMB"),
        number("/AllocatedResources/Shared/DiskMB"),
    ]
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
