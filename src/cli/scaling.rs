//! `quorate scaling policy …`: the policies that an autoscaler acts by.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::context::{Context, Exit, Outcome};
use super::output::{Style, pairs, table};
use super::resolve;
use super::view::{Fields, rows};

/// Inspect what autoscalers act by
#[derive(Debug, Subcommand)]
pub(crate) enum ScalingCommand {
    /// Policies of the groups of jobs
    #[command(subcommand)]
    Policy(PolicyCommand),
}

/// Policies of the groups of jobs
#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// List policies
    #[command(
        after_help = "Examples:\n  quorate scaling policy list\n  quorate scaling policy list -job web"
    )]
    List(ListArgs),
    /// Show a policy
    #[command(after_help = "Examples:\n  quorate scaling policy info 5b98a6ea")]
    Info(InfoArgs),
}

/// Flags of `scaling policy list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only those of this job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Only those of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `scaling policy info`.
#[derive(Debug, Args)]
pub(crate) struct InfoArgs {
    /// The policy's id or the beginning of it
    policy: String,
    #[command(flatten)]
    style: Style,
}

pub(crate) fn run(context: &Context, command: &ScalingCommand) -> Outcome {
    match command {
        ScalingCommand::Policy(PolicyCommand::List(arguments)) => list(context, arguments),
        ScalingCommand::Policy(PolicyCommand::Info(arguments)) => info(context, arguments),
    }
}

fn list(context: &Context, arguments: &ListArgs) -> Outcome {
    let job = arguments.job.as_deref().map(|job| ("job", job));
    let kind = arguments.kind.as_deref().map(|kind| ("type", kind));
    let query: Vec<_> = job.into_iter().chain(kind).collect();
    let answer = context.client.get("/v1/scaling/policies", &query)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if rows(&answer).is_empty() {
        context.line("No policies found")?;
        return Ok(Exit::Success);
    }
    let lines: Vec<Vec<String>> = rows(&answer)
        .iter()
        .map(|policy| {
            vec![
                arguments.style.id(policy.text("ID")),
                policy.flag("Enabled").to_string(),
                policy.text("Type").to_owned(),
                target(policy),
            ]
        })
        .collect();
    context.line(table(&["ID", "Enabled", "Type", "Target"], &lines))?;
    Ok(Exit::Success)
}

fn target(policy: &Value) -> String {
    let of = |name: &str| format!("{name}:{}", policy["Target"].text(name));
    ["Namespace", "Job", "Group"].map(of).join(",")
}

fn info(context: &Context, arguments: &InfoArgs) -> Outcome {
    let id = resolve::id(context, resolve::SCALING_POLICY, &arguments.policy)?;
    let policy = context.client.get(&format!("/v1/scaling/policy/{id}"), &[])?;
    if arguments.style.json {
        context.output.json(&policy)?;
        return Ok(Exit::Success);
    }
    let facts = [
        ("ID", arguments.style.id(&id)),
        ("Target", target(&policy)),
        ("Type", policy.text("Type").to_owned()),
        ("Enabled", policy.flag("Enabled").to_string()),
        ("Min", policy.shown("Min")),
        ("Max", policy.shown("Max")),
    ];
    context.line(pairs(&facts))?;
    if let Some(kept) = policy.present("Policy") {
        context.line(format!("\nPolicy\n{kept:#}"))?;
    }
    Ok(Exit::Success)
}
