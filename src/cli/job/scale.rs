//! `quorate job scale` and `job scaling-events`: moving the count of a group, and what was done and
//! said about it.

use anyhow::{Context as _, bail};
use clap::Args;
use http_api::percent::encode;
use serde_json::{Value, json};

use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::{Style, table},
    cli::view::Fields,
    cli::{monitor, resolve, time},
};

/// What an event says it was made by.
const MESSAGE: &str = "submitted using the Quorate CLI";

/// Flags of `job scale`.
#[derive(Debug, Args)]
pub(crate) struct ScaleArgs {
    /// The job's id
    job: String,
    /// The group, unless the job has one only; and its new count
    #[arg(required = true, num_args = 1..=2, value_names = ["GROUP", "COUNT"])]
    target: Vec<String>,
    /// Scale only if the job's modify index is N
    #[arg(long, value_name = "N")]
    check_index: Option<u64>,
    /// Do not follow the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `job scaling-events`.
#[derive(Debug, Args)]
pub(crate) struct EventsArgs {
    /// The job's id
    job: String,
    #[command(flatten)]
    style: Style,
}

pub(super) fn scale(context: &Context, arguments: &ScaleArgs) -> Outcome {
    let (group, count) = match arguments.target.as_slice() {
        [group, count] => (Some(group), count),
        [count] => (None, count),
        _ => bail!("name the job, the group unless there is one only, and the count"),
    };
    let count: u32 = count
        .parse()
        .with_context(|| format!("\"{count}\" is not a count: write a whole number"))?;
    let job = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/scale", encode(&job.id));
    let namespace = [("namespace", job.namespace.as_str())];
    let group = match group {
        Some(group) => group.clone(),
        None => only_group(&job.id, &context.client.get(&path, &namespace)?)?,
    };
    let request = json!({
        "Count": count,
        "Target": {"Group": group},
        "Message": MESSAGE,
        "JobModifyIndex": arguments.check_index.unwrap_or(0),
    });
    let answer = context.client.put(&path, &namespace, &request)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    super::print_warnings(context, None, &answer)?;
    if answer.text("EvalID").is_empty() {
        context.line(format!("Group \"{group}\" of job \"{}\" has the count {count}", job.id))?;
        return Ok(Exit::Success);
    }
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}

fn only_group(job: &str, status: &Value) -> anyhow::Result<String> {
    match status.entries("TaskGroups").as_slice() {
        [(only, _)] => Ok((*only).to_owned()),
        groups => {
            let names: Vec<_> = groups.iter().map(|(name, _)| *name).collect();
            bail!("job \"{job}\" has several groups, name one of them: {}", names.join(", "))
        }
    }
}

pub(super) fn events(context: &Context, arguments: &EventsArgs) -> Outcome {
    let job = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/scale", encode(&job.id));
    let status = context.client.get(&path, &[("namespace", job.namespace.as_str())])?;
    if arguments.style.json {
        context.output.json(&status)?;
        return Ok(Exit::Success);
    }
    let mut found: Vec<(&str, &Value)> = Vec::new();
    for (group, of_group) in status.entries("TaskGroups") {
        found.extend(of_group.items("Events").iter().map(|event| (group, event)));
    }
    if found.is_empty() {
        context.line("No events")?;
        return Ok(Exit::Success);
    }
    found.sort_by_key(|(_, event)| std::cmp::Reverse(event.number("Time")));
    let rows: Vec<Vec<String>> =
        found.iter().map(|(group, event)| row(group, event, arguments.style)).collect();
    let headers = ["Time", "Task Group", "Count", "Before", "Error", "Evaluation", "Message"];
    context.line(table(&headers, &rows))?;
    if arguments.style.verbose {
        for (group, event) in found.iter().filter(|(_, event)| event.present("Meta").is_some()) {
            let at = time::timestamp(event.number("Time"));
            context.line(format!("\nMeta of {group} at {at}\n{:#}", event["Meta"]))?;
        }
    }
    Ok(Exit::Success)
}

fn row(group: &str, event: &Value, style: Style) -> Vec<String> {
    vec![
        time::timestamp(event.number("Time")),
        group.to_owned(),
        event.shown("Count"),
        event.shown("PreviousCount"),
        event.flag("Error").to_string(),
        style.id(event.text("EvalID")),
        event.text("Message").to_owned(),
    ]
}
