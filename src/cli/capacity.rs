//! `quorate capacity …`: groups of machines that follow what load balancers say they need.

use anyhow::bail;
use clap::{Args, Subcommand};
use http_api::percent::encode;
use serde_json::{Value, json};

use super::client::ClientError;
use super::context::{Context, Exit, Outcome};
use super::output::{Style, pairs, table};
use super::time;
use super::view::{Fields, rows};

/// Groups of machines that follow what load balancers need
#[derive(Debug, Subcommand)]
pub(crate) enum CapacityCommand {
    /// Show a group: what is asked for, what is there, who asks; without a name, list all groups
    #[command(
        after_help = "Examples:\n  quorate capacity status\n  quorate capacity status web\n  quorate capacity status -json web"
    )]
    Status(StatusArgs),
    /// List the members of a group, oldest first
    #[command(after_help = "Example:\n  quorate capacity members web")]
    Members(GroupArgs),
    /// Say in sentences why a group is as large as it is, and what it waits for
    #[command(after_help = "Example:\n  quorate capacity explain web")]
    Explain(ExplainArgs),
    /// Say what a source needs of each group, as a load balancer does
    #[command(after_help = SET_EXAMPLES)]
    Set(SetArgs),
}

const SET_EXAMPLES: &str = "Examples:
  quorate capacity set me web=9000           what the source \"me\" needs, until the group's requirement_ttl is over
  quorate capacity set -ttl 1h me web=9000   … for an hour
  quorate capacity set me                    it needs nothing any more

All that the source said before is replaced.";

/// Flags of `capacity status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The group's name
    group: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `capacity members`.
#[derive(Debug, Args)]
pub(crate) struct GroupArgs {
    /// The group's name
    group: String,
    #[command(flatten)]
    style: Style,
}

/// Flags of `capacity explain`.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The group's name
    group: String,
}

/// Flags of `capacity set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// How long it holds; default: as long as the group says
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    ttl: Option<std::time::Duration>,
    /// The name of who asks
    source: String,
    /// What it needs of each group
    #[arg(value_name = "GROUP=AMOUNT", value_parser = amount)]
    amounts: Vec<(String, u64)>,
}

fn amount(text: &str) -> Result<(String, u64), String> {
    let (group, amount) = text
        .split_once('=')
        .filter(|(group, _)| !group.is_empty())
        .ok_or_else(|| format!("\"{text}\" is not GROUP=AMOUNT; write for example web=9000"))?;
    let amount = amount
        .parse()
        .map_err(|_| format!("\"{amount}\" is not a whole number that is not negative"))?;
    Ok((group.to_owned(), amount))
}

pub(crate) fn run(context: &Context, command: &CapacityCommand) -> Outcome {
    match command {
        CapacityCommand::Status(StatusArgs { group: Some(group), style }) => {
            status(context, group, *style)
        }
        CapacityCommand::Status(StatusArgs { group: None, style }) => list(context, *style),
        CapacityCommand::Members(arguments) => members(context, arguments),
        CapacityCommand::Explain(arguments) => explain(context, &arguments.group),
        CapacityCommand::Set(arguments) => set(context, arguments),
    }
}

fn path_of(group: &str, part: &str) -> String {
    format!("/v1/capacity/{}{part}", encode(group))
}

/// The answer, or that there is no such group.
fn or_missing(answer: Result<Value, ClientError>, group: &str) -> anyhow::Result<Value> {
    match answer {
        Err(error) if error.is_not_found() => bail!(
            "there is no capacity group \"{group}\"; list them with: quorate capacity status\n  A group is declared in the file of its pool: capacity \"{group}\" {{ … }}"
        ),
        other => Ok(other?),
    }
}

fn list(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/capacity", &[])?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line(
            "No capacity groups; declare one in a pool file and apply it: quorate pool apply FILE",
        )?;
        return Ok(Exit::Success);
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|group| {
            let mut line = vec![group.shown("Group"), group.shown("Pool")];
            let numbers = ["Required", "Desired", "Current", "OnTheWay", "Draining", "Members"];
            line.extend(numbers.map(|name| group.number(name).to_string()));
            line.push(group.items("Sources").len().to_string());
            line
        })
        .collect();
    let headers = [
        "Group",
        "Pool",
        "Required",
        "Desired",
        "Current",
        "On The Way",
        "Draining",
        "Members",
        "Sources",
    ];
    context.line(table(&headers, &lines))?;
    Ok(Exit::Success)
}

fn status(context: &Context, name: &str, style: Style) -> Outcome {
    let group = or_missing(context.client.get(&path_of(name, ""), &[]), name)?;
    if style.json {
        context.output.json(&group)?;
        return Ok(Exit::Success);
    }
    let members = or_missing(context.client.get(&path_of(name, "/members"), &[]), name)?;
    let sections = [
        overview(&group),
        format!("Sources\n{}", source_table(&group)),
        format!("Members\n{}", member_table(rows(&members), style)),
    ];
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

fn overview(group: &Value) -> String {
    let span = |name: &str| time::span(group.number(name) / 1_000);
    let amount = |name: &str| format!("{} {}", group.number(name), group.text("Dimension"));
    let hard = if group.flag("Hard") { ", hard" } else { "" };
    let busy = format!("{}{hard}", group.text("Busy"));
    pairs(&[
        ("Group", group.shown("Group")),
        ("Pool", group.shown("Pool")),
        ("Required", amount("Required")),
        ("Desired", amount("Desired")),
        ("Current", amount("Current")),
        ("On The Way", amount("OnTheWay")),
        ("Draining", amount("Draining")),
        ("Unit", amount("Unit")),
        ("Size", format!("{} to {} members", group.number("Min"), group.number("Max"))),
        ("Predictor", predictor(group)),
        ("Step", format!("{} per {} ms", group.number("Step"), group.number("StepIntervalMs"))),
        ("Drain", span("DrainMs")),
        ("Busy", busy),
        ("Cooldown Up", span("CooldownUpMs")),
        ("Cooldown Down", span("CooldownDownMs")),
        ("Requirement TTL", span("RequirementTTLms")),
        ("Member Port", group.shown("MemberPort")),
    ])
}

/// `identity`, `headroom of 20 %`, `peak of 5m`.
fn predictor(group: &Value) -> String {
    let of = |block: &str, name: &str| group.get(block).map_or(0, |block| block.number(name));
    match group.text("Predictor") {
        "headroom" => format!("headroom of {} %", of("Headroom", "Percent")),
        "peak" => format!("peak of {}", time::span(of("Peak", "WindowMs") / 1_000)),
        other => other.to_owned(),
    }
}

fn source_table(group: &Value) -> String {
    let sources = group.items("Sources");
    if sources.is_empty() {
        return "none".to_owned();
    }
    let lines: Vec<Vec<String>> = sources
        .iter()
        .map(|row| {
            let texts = ["Source", "Amount", "Since", "Expires", "Epoch", "Seq"];
            texts.map(|name| row.shown(name)).to_vec()
        })
        .collect();
    table(&["Source", "Amount", "Since", "Expires", "Epoch", "Seq"], &lines)
}

fn members(context: &Context, arguments: &GroupArgs) -> Outcome {
    let GroupArgs { group, style } = arguments;
    let answer = or_missing(context.client.get(&path_of(group, "/members"), &[]), group)?;
    if style.json {
        context.output.json(&answer)?;
    } else {
        context.line(member_table(rows(&answer), *style))?;
    }
    Ok(Exit::Success)
}

fn member_table(members: &[Value], style: Style) -> String {
    if members.is_empty() {
        return "No members".to_owned();
    }
    let lines: Vec<Vec<String>> = members
        .iter()
        .map(|row| {
            vec![
                style.id(row.text("Instance")),
                style.id(row.text("Node")),
                row.shown("Address"),
                row.shown("Port"),
                row.shown("Since"),
            ]
        })
        .collect();
    table(&["Instance", "Node", "Address", "Port", "Since"], &lines)
}

fn explain(context: &Context, group: &str) -> Outcome {
    let answer = or_missing(context.client.get(&path_of(group, "/explain"), &[]), group)?;
    let sentences = answer.items("Sentences").iter().filter_map(Value::as_str);
    context.line(sentences.collect::<Vec<_>>().join("\n"))?;
    Ok(Exit::Success)
}

fn set(context: &Context, arguments: &SetArgs) -> Outcome {
    let SetArgs { ttl, source, amounts } = arguments;
    let groups: Vec<Value> =
        amounts.iter().map(|(group, amount)| json!({ "Group": group, "Amount": amount })).collect();
    // Each run of this command is a source that starts anew.
    let epoch = time::nanoseconds((context.now)()) / 1_000_000;
    let mut body = json!({ "Source": source, "Epoch": epoch, "Seq": 1, "Groups": groups });
    if let Some(ttl) = ttl {
        body["TTLms"] = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).into();
    }
    context.client.put("/v1/capacity/requirements", &[], &body)?;
    let holds = match ttl {
        Some(ttl) => {
            let seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
            format!("for {}", time::span(seconds))
        }
        None => "for the requirement_ttl of the group".to_owned(),
    };
    let said = match amounts.as_slice() {
        [] => "needs nothing".to_owned(),
        amounts => {
            let parts: Vec<String> =
                amounts.iter().map(|(group, amount)| format!("{amount} of {group}")).collect();
            format!("needs {}", parts.join(", "))
        }
    };
    context.line(format!("Source \"{source}\" {said}; this holds {holds}"))?;
    Ok(Exit::Success)
}
