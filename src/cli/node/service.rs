//! `quorate node suspend|unsuspend|eligibility|offline|online|purge|events|confirm-loss`: what an
//! operator says of a node. The servers keep who said it and why; until there are tokens the actor
//! is what this program says, and is shown as unverified.

use std::time::Duration;

use anyhow::bail;
use clap::Args;
use serde_json::{Value, json};

use super::meta;
use crate::{
    cli::context::{Context, Exit, Outcome, actor},
    cli::output::{Style, table},
    cli::view::{Fields, rows},
    cli::{client, resolve, time},
};

/// Flags of `node suspend`.
#[derive(Debug, Args)]
pub(crate) struct SuspendArgs {
    /// Why, in a few words; everybody sees it
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// End by itself after this time; without it: until `node unsuspend`
    #[arg(long = "for", value_name = "DURATION", value_parser = time::parse_duration)]
    length: Option<Duration>,
    /// The node's id, the beginning of it, or its name
    node: String,
}

/// Flags of `node unsuspend`, `node online` and `node offline`.
#[derive(Debug, Args)]
pub(crate) struct NodeArgs {
    /// Why, in a few words; everybody sees it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The node's id, the beginning of it, or its name
    node: String,
}

/// Flags of `node eligibility`.
#[derive(Debug, Args)]
pub(crate) struct EligibilityArgs {
    /// Accepted as in Nomad; nothing is asked
    #[arg(long, hide = true)]
    yes: bool,
    #[command(flatten)]
    switch: Switch,
    /// Why, in a few words; everybody sees it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    node: NodeOrSelf,
}

/// A node, or that of the agent that is asked.
#[derive(Debug, Args)]
pub(super) struct NodeOrSelf {
    /// The node's id, the beginning of it, or its name
    #[arg(required_unless_present = "own")]
    node: Option<String>,
    /// The node of the agent that is asked
    #[arg(long = "self", conflicts_with = "node")]
    own: bool,
}

impl NodeOrSelf {
    /// What is typed of it.
    pub(super) fn typed(&self, context: &Context) -> anyhow::Result<String> {
        match &self.node {
            Some(typed) => Ok(typed.clone()),
            None => meta::own_node(context),
        }
    }
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

/// Flags of `node purge`.
#[derive(Debug, Args)]
pub(crate) struct PurgeArgs {
    /// Also if it is ready and runs allocations, which are lost
    #[arg(long)]
    force: bool,
    /// The node's id, the beginning of it, or its name
    node: String,
}

/// Flags of `node events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// The node's id, the beginning of it, or its name
    node: String,
    #[command(flatten)]
    style: Style,
}

fn put(context: &Context, id: &str, verb: &str, mut body: Value) -> anyhow::Result<Value> {
    body["Actor"] = actor().into();
    let answer = context.client.put(&format!("/v1/node/{id}/{verb}"), &[], &body);
    client::or_missing(answer, "node", id)
}

pub(super) fn suspend(context: &Context, arguments: &SuspendArgs) -> Outcome {
    let id = resolve::id(context, resolve::NODE, &arguments.node)?;
    let mut body = json!({ "Reason": arguments.reason });
    if let Some(length) = arguments.length {
        body["For"] = u64::try_from(length.as_nanos()).unwrap_or(u64::MAX).into();
    }
    put(context, &id, "suspend", body)?;
    let end = if arguments.length.is_some() { "" } else { ", until: quorate node unsuspend" };
    context.line(format!("Node \"{id}\" is suspended{end}"))?;
    Ok(Exit::Success)
}

pub(super) fn unsuspend(context: &Context, arguments: &NodeArgs) -> Outcome {
    let id = resolve::id(context, resolve::NODE, &arguments.node)?;
    let reason = arguments.reason.as_deref().unwrap_or("");
    put(context, &id, "unsuspend", json!({ "Reason": reason }))?;
    context.line(format!("Node \"{id}\" is not suspended any more: its readiness is checked"))?;
    Ok(Exit::Success)
}

pub(super) fn eligibility(context: &Context, arguments: &EligibilityArgs) -> Outcome {
    let EligibilityArgs { switch, reason, node, yes: _ } = arguments;
    set_eligibility(context, &node.typed(context)?, reason.as_deref(), switch.enable)
}

/// `node online` and `node offline`.
pub(super) fn serve(context: &Context, arguments: &NodeArgs, enable: bool) -> Outcome {
    set_eligibility(context, &arguments.node, arguments.reason.as_deref(), enable)
}

fn set_eligibility(context: &Context, typed: &str, reason: Option<&str>, enable: bool) -> Outcome {
    let id = resolve::id(context, resolve::NODE_OR_OFFLINE, typed)?;
    let eligibility = if enable { "eligible" } else { "ineligible" };
    let reason = reason.unwrap_or("");
    let body = json!({ "NodeID": id, "Eligibility": eligibility, "Reason": reason });
    let answer = put(context, &id, "eligibility", body)?;
    let warning = answer.text("Warnings");
    if !warning.is_empty() {
        context.output.advice(format!("Warning: {warning}"));
    }
    context.line(format!("Node \"{id}\" is now {eligibility} for scheduling"))?;
    Ok(Exit::Success)
}

pub(super) fn purge(context: &Context, arguments: &PurgeArgs) -> Outcome {
    let id = resolve::id(context, resolve::NODE, &arguments.node)?;
    if !arguments.force {
        refuse_busy(context, &id)?;
    }
    put(context, &id, "purge", json!({}))?;
    context.line(format!("Node \"{id}\" is forgotten; its allocations are lost"))?;
    Ok(Exit::Success)
}

/// Purging is for nodes that are gone. One that is ready and runs something comes back by itself,
/// without what it ran.
fn refuse_busy(context: &Context, id: &str) -> anyhow::Result<()> {
    let path = format!("/v1/node/{id}");
    let node = client::or_missing(context.client.get(&path, &[]), "node", id)?;
    if node.text("Status") != "ready" {
        return Ok(());
    }
    let allocations = context.client.get(&format!("{path}/allocations"), &[])?;
    let is_alive = |one: &&Value| matches!(one.text("ClientStatus"), "pending" | "running");
    let count = rows(&allocations).iter().filter(is_alive).count();
    if count > 0 {
        bail!(
            "node \"{id}\" is ready and runs {count} allocation(s), which would be lost: move them with\n  \
             quorate node drain -enable {id}\nor repeat the command with -force"
        );
    }
    Ok(())
}

pub(super) fn events(context: &Context, arguments: &EventsArgs) -> Outcome {
    let id = resolve::id(context, resolve::NODE, &arguments.node)?;
    let answer = context.client.get(&format!("/v1/node/{id}"), &[]);
    let node = client::or_missing(answer, "node", &id)?;
    if arguments.style.json {
        context.output.json(node.present("Events").unwrap_or(&json!([])))?;
    } else {
        context.line(event_table(&node))?;
    }
    Ok(Exit::Success)
}

/// The node's last events, newest last.
pub(super) fn event_table(node: &Value) -> String {
    let lines: Vec<Vec<String>> = node
        .items("Events")
        .iter()
        .map(|event| vec![event.shown("Timestamp"), event.shown("Message")])
        .collect();
    table(&["Time", "Event"], &lines)
}

pub(super) fn confirm_loss(context: &Context) -> Outcome {
    let body = json!({ "Actor": actor() });
    match context.client.put("/v1/operator/mass-loss/confirm", &[], &body) {
        Ok(_) => {}
        Err(error) if error.is_not_found() => bail!("there is no mass loss to confirm"),
        Err(error) => return Err(error.into()),
    }
    context.line("The loss is confirmed: its nodes are reaped as any others that are down")?;
    Ok(Exit::Success)
}

/// A line about the mass loss that lasts, if one does.
pub(super) fn mass_loss_line(context: &Context) -> anyhow::Result<Option<String>> {
    let loss = match context.client.get("/v1/operator/mass-loss", &[]) {
        Ok(loss) => loss,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    if !loss.flag("Active") {
        return Ok(None);
    }
    Ok(Some(format!(
        "Mass loss since {}: {} of {} nodes that went silent together are still down; nothing is \
         reaped.\nIt ends when most are back, or by: quorate node confirm-loss",
        loss.text("Since"),
        loss.number("StillDown"),
        loss.number("Count"),
    )))
}

/// Why the node gets work or not, a line for each condition.
pub(super) fn conditions(node: &Value) -> String {
    let nothing = Value::Null;
    let part = |name: &str| node.get(name).unwrap_or(&nothing);
    let (readiness, health) = (part("Readiness"), part("Health"));
    let eligibility = part("Eligibility");
    let drain = part("DrainStrategy");
    let eligible = match (eligibility.flag("Ineligible"), eligibility.flag("ByDrain")) {
        (false, _) => "eligible",
        (true, false) => "ineligible",
        (true, true) => "ineligible by drain",
    };
    let empty = String::new;
    let rows = [
        (
            "Readiness",
            [
                readiness.shown("Status"),
                readiness.shown("Reason"),
                empty(),
                moment(readiness, "At"),
                moment(node, "ReadyDeadline"),
            ],
        ),
        ("Suspended", suspension(health)),
        ("Short", shortage(part("Shortage"))),
        (
            "Eligibility",
            [
                eligible.to_owned(),
                eligibility.shown("Reason"),
                by(eligibility),
                moment(eligibility, "At"),
                empty(),
            ],
        ),
        (
            "Drain",
            [
                if node.flag("Drain") { "draining" } else { "no" }.to_owned(),
                empty(),
                by(drain),
                moment(drain, "StartedAt"),
                moment(drain, "ForceDeadline"),
            ],
        ),
        (
            "Strikes",
            [
                health.number("Strikes").to_string(),
                empty(),
                empty(),
                moment(health, "StrikeAt"),
                empty(),
            ],
        ),
    ];
    let lines: Vec<Vec<String>> = rows
        .into_iter()
        .map(|(name, cells)| std::iter::once(name.to_owned()).chain(cells).collect())
        .collect();
    table(&["Condition", "State", "Reason", "By", "Since", "Until"], &lines)
}

/// The cells of a suspension: the servers are its actor unless an operator is.
fn suspension(health: &Value) -> [String; 5] {
    let is_suspended = health.text("Status") == "suspended";
    let ended_by = match health.text("Reason") {
        _ if !is_suspended => "",
        "operator" => "it is unsuspended",
        _ => "the check succeeds",
    };
    let until = Some(moment(health, "Until")).filter(|until| !until.is_empty());
    [
        if is_suspended { health.text("Reason") } else { "no" }.to_owned(),
        health.shown("Detail"),
        if is_suspended && by(health).is_empty() { "the servers".to_owned() } else { by(health) },
        moment(health, "Since"),
        until.unwrap_or_else(|| ended_by.to_owned()),
    ]
}

/// The cells of a shortage of the machine.
fn shortage(shortage: &Value) -> [String; 5] {
    let reason = shortage.text("Reason").to_owned();
    let is_short = !reason.is_empty();
    let word = |is: &str| if is_short { is.to_owned() } else { String::new() };
    let state = if is_short { "refuses new work" } else { "no" };
    let since = moment(shortage, "Since");
    [state.to_owned(), reason, word("the agent"), since, word("the machine has enough")]
}

/// An actor; nothing verifies who that is.
fn by(value: &Value) -> String {
    match value.text("By") {
        "" => String::new(),
        by => format!("{by} (unverified)"),
    }
}

/// A time of the API; empty when there is none.
fn moment(value: &Value, name: &str) -> String {
    let text = value.text(name);
    if text.starts_with("0001-") { String::new() } else { text.to_owned() }
}
