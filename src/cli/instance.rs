//! `quorate instance …`: the machines of instance pools, and what operators want of them.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client;
use super::context::{Context, Exit, Outcome, actor};
use super::output::{Style, pairs};
use super::pool;
use super::resolve::{self, INSTANCE};
use super::time;
use super::view::{Fields, rows};

/// Machines of instance pools: what they do, hold, drain, shut down
#[derive(Debug, Subcommand)]
pub(crate) enum InstanceCommand {
    /// List instances
    #[command(after_help = "Examples:\n  quorate instance list\n  quorate instance list -pool gpu")]
    List(ListArgs),
    /// Show an instance
    #[command(after_help = "Example:\n  quorate instance status 3f2a9c01")]
    Status(StatusArgs),
    /// Give an instance no new work and keep it: no machine shuts it down
    #[command(
        after_help = "Example:\n  quorate instance hold -reason \"disk is looked at\" 3f2a9c01\n\nUntil: quorate instance run 3f2a9c01"
    )]
    Hold(InstanceArgs),
    /// Give an instance work again; it goes when it idles
    #[command(after_help = "Example:\n  quorate instance run 3f2a9c01")]
    Run(InstanceArgs),
    /// Move what runs on an instance elsewhere; it goes when nothing runs on it
    #[command(
        after_help = "Examples:\n  quorate instance drain -reason \"old image\" 3f2a9c01\n  quorate instance drain -deadline 10m 3f2a9c01   what still runs then is stopped"
    )]
    Drain(DrainArgs),
    /// Destroy an instance now; what runs on it is lost
    #[command(
        after_help = "Example:\n  quorate instance shutdown -reason broken 3f2a9c01\n\nTo let its allocations move first: quorate instance drain 3f2a9c01"
    )]
    Shutdown(InstanceArgs),
    /// Say what an instance waits for, or why it stays or goes; of a pool: why it makes none
    #[command(
        after_help = "Examples:\n  quorate instance why 3f2a9c01\n  quorate instance why gpu"
    )]
    Why(WhyArgs),
}

/// Flags of `instance list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this pool
    #[arg(long, value_name = "NAME")]
    pool: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `instance status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The instance's id or the beginning of it
    instance: String,
    #[command(flatten)]
    style: Style,
}

/// Flags of `instance why`.
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// The instance's id or the beginning of it, or the name of a pool
    instance: String,
}

/// Flags of `instance drain`.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// Stop what still runs on it after this time, such as 10m; without it, nothing is stopped
    #[arg(long, value_name = "DURATION", value_parser = time::parse_duration)]
    deadline: Option<Duration>,
    #[command(flatten)]
    what: InstanceArgs,
}

/// Flags of `instance hold`, `run` and `shutdown`.
#[derive(Debug, Args)]
pub(crate) struct InstanceArgs {
    /// Why, in a few words; everybody sees it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// The instance's id or the beginning of it
    instance: String,
}

pub(crate) fn run(context: &Context, command: &InstanceCommand) -> Outcome {
    match command {
        InstanceCommand::List(arguments) => list(context, arguments),
        InstanceCommand::Status(arguments) => status(context, arguments),
        InstanceCommand::Hold(arguments) => behave(context, arguments, "hold", None),
        InstanceCommand::Run(arguments) => behave(context, arguments, "run", None),
        InstanceCommand::Drain(arguments) => drain(context, arguments),
        InstanceCommand::Shutdown(arguments) => shut_down(context, arguments),
        InstanceCommand::Why(arguments) => why(context, &arguments.instance),
    }
}

/// The sentence about an instance, or those about a pool: a create that was refused has no
/// instance, and the pool says why.
fn why(context: &Context, typed: &str) -> Outcome {
    if let Some(pool) = pool::find(context, typed)? {
        context.line(pool::why(&pool))?;
    } else {
        let (_, row) = read(context, typed)?;
        context.line(format!("{}: {}", row.text("State"), row.text("Reason")))?;
    }
    Ok(Exit::Success)
}

/// An instance by what a person typed: its path and what it shows.
fn read(context: &Context, typed: &str) -> anyhow::Result<(String, Value)> {
    let id = resolve::id(context, INSTANCE, typed)?;
    let path = format!("/v1/instance/{id}");
    let row = client::or_missing(context.client.get(&path, &[]), "instance", &id)?;
    Ok((path, row))
}

fn list(context: &Context, arguments: &ListArgs) -> Outcome {
    let pool = arguments.pool.as_deref();
    let query: Vec<(&str, &str)> = pool.iter().map(|pool| ("pool", *pool)).collect();
    let answer = context.client.get("/v1/instances", &query)?;
    if arguments.style.json {
        context.output.json(&answer)?;
    } else {
        context.line(pool::instance_table(rows(&answer), arguments.style))?;
    }
    Ok(Exit::Success)
}

fn status(context: &Context, arguments: &StatusArgs) -> Outcome {
    let style = arguments.style;
    let (_, row) = read(context, &arguments.instance)?;
    if style.json {
        context.output.json(&row)?;
        return Ok(Exit::Success);
    }
    let time = |name: &str| match row.text(name) {
        zero if zero.starts_with("0001-") => String::new(),
        time => time.to_owned(),
    };
    let running: Vec<String> =
        row.items("Running").iter().filter_map(Value::as_str).map(|id| style.id(id)).collect();
    context.line(pairs(&[
        ("ID", style.id(row.text("ID"))),
        ("Pool", row.shown("Pool")),
        ("Type", row.shown("Type")),
        ("Provider Type", row.shown("ProviderType")),
        ("Provider ID", row.shown("ProviderID")),
        ("Address", row.shown("Address")),
        ("Price/h", row.shown("Price")),
        ("State", row.shown("State")),
        ("Behavior", row.shown("Behavior")),
        ("Node", style.id(row.text("NodeID"))),
        ("Running", running.join(",")),
        ("Last Allocation", style.id(row.text("LastAllocID"))),
        ("Last Busy", time("LastBusy")),
        ("Must Be Ready By", time("Deadline")),
        ("What It Does", row.shown("Reason")),
    ]))?;
    Ok(Exit::Success)
}

fn put(context: &Context, typed: &str, verb: &str, body: &Value) -> anyhow::Result<String> {
    let id = resolve::id(context, INSTANCE, typed)?;
    let answer = context.client.put(&format!("/v1/instance/{id}/{verb}"), &[], body);
    client::or_missing(answer, "instance", &id)?;
    Ok(id)
}

fn drain(context: &Context, arguments: &DrainArgs) -> Outcome {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let deadline_ms = arguments.deadline.map(ms);
    behave(context, &arguments.what, "drain", deadline_ms)
}

fn behave(
    context: &Context,
    arguments: &InstanceArgs,
    behavior: &str,
    deadline_ms: Option<u64>,
) -> Outcome {
    let reason = arguments.reason.as_deref().unwrap_or("");
    let mut body = json!({ "Behavior": behavior, "Reason": reason, "Actor": actor() });
    if let Some(ms) = deadline_ms {
        body["DeadlineMs"] = ms.into();
    }
    let id = put(context, &arguments.instance, "behavior", &body)?;
    let what = match behavior {
        "hold" => format!("is held, until: quorate instance run {id}"),
        "drain" if deadline_ms.is_some() => {
            "drains: it goes when nothing runs on it; what runs at the deadline is stopped"
                .to_owned()
        }
        "drain" => "drains: it goes when nothing runs on it".to_owned(),
        _ => "is given work, and goes when it idles".to_owned(),
    };
    context.line(format!("Instance \"{id}\" {what}"))?;
    Ok(Exit::Success)
}

fn shut_down(context: &Context, arguments: &InstanceArgs) -> Outcome {
    let reason = arguments.reason.as_deref().unwrap_or("");
    let body = json!({ "Reason": reason, "Actor": actor() });
    let id = put(context, &arguments.instance, "shutdown", &body)?;
    context.line(format!("Instance \"{id}\" is shut down: its provider is asked to destroy it"))?;
    Ok(Exit::Success)
}
