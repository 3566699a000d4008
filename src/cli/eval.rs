//! `quorate eval …`.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::client;
use super::context::{Context, Exit, Outcome};
use super::monitor::Monitor;
use super::output::{Style, pairs, table};
use super::view::{Fields, newest_first, rows};
use super::{placement, resolve, time};

/// Inspect evaluations
#[derive(Debug, Subcommand)]
pub(crate) enum EvalCommand {
    /// List evaluations
    #[command(
        after_help = "Examples:\n  quorate eval list\n  quorate eval list -status blocked -job web"
    )]
    List(ListArgs),
    /// Show an evaluation and what it placed
    #[command(
        after_help = "Examples:\n  quorate eval status 8f9c5b52\n  quorate eval status -monitor 8f9c5b52"
    )]
    Status(StatusArgs),
    /// Delete evaluations; the broker must be paused
    #[command(
        after_help = "Examples:\n  quorate operator scheduler set-config -pause-eval-broker=true\n  quorate eval delete 8f9c5b52 e0a1b2c3"
    )]
    Delete(DeleteArgs),
}

/// Flags of `eval delete`.
#[derive(Debug, Args)]
pub(crate) struct DeleteArgs {
    /// Ids of evaluations or the beginnings of them
    #[arg(required_unless_present = "filter", conflicts_with = "filter")]
    evaluations: Vec<String>,
    /// Delete what this expression matches
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    /// Accepted as in Nomad; nothing is asked
    #[arg(long, hide = true)]
    yes: bool,
}

/// Flags of `eval list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Only evaluations of this job
    #[arg(long, value_name = "ID")]
    job: Option<String>,
    /// Only evaluations in this status: pending, blocked, complete, failed, canceled
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Evaluations per page
    #[arg(long, value_name = "N")]
    per_page: Option<u32>,
    /// The page that follows the one which printed this token
    #[arg(long, value_name = "TOKEN")]
    page_token: Option<String>,
    /// Expression that evaluations must match
    #[arg(long, value_name = "EXPRESSION")]
    filter: Option<String>,
    #[command(flatten)]
    style: Style,
}

/// Flags of `eval status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The evaluation's id or the beginning of it
    evaluation: String,
    /// Follow it until it and its allocations are settled
    #[arg(long)]
    monitor: bool,
    #[command(flatten)]
    style: Style,
}

impl StatusArgs {
    /// The status of one evaluation.
    pub(crate) fn of(id: String, style: Style) -> Self {
        Self { evaluation: id, monitor: false, style }
    }
}

pub(crate) fn run(context: &Context, command: &EvalCommand) -> Outcome {
    match command {
        EvalCommand::List(arguments) => list(context, arguments),
        EvalCommand::Status(arguments) => status(context, arguments),
        EvalCommand::Delete(arguments) => delete(context, arguments),
    }
}

fn list(context: &Context, arguments: &ListArgs) -> Outcome {
    let per_page = arguments.per_page.map(|number| number.to_string());
    let query: Vec<(&str, &str)> = [
        ("job", &arguments.job),
        ("status", &arguments.status),
        ("per_page", &per_page),
        ("next_token", &arguments.page_token),
        ("filter", &arguments.filter),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value.as_deref()?)))
    .collect();
    let (answer, next) = context.client.get_page("/v1/evaluations", &query)?;
    let answer = newest_first(answer);
    if arguments.style.json {
        context.output.json(&answer)?;
    } else if rows(&answer).is_empty() {
        context.line("No evaluations")?;
    } else {
        context.line(lines(rows(&answer), arguments.style))?;
    }
    if let Some(token) = next {
        let advice = format!("\nThere are more: repeat the command with -page-token={token}");
        context.output.advice(advice);
    }
    Ok(Exit::Success)
}

fn delete(context: &Context, arguments: &DeleteArgs) -> Outcome {
    let body = match &arguments.filter {
        Some(filter) => json!({ "Filter": filter }),
        None => {
            let ids = arguments.evaluations.iter();
            let ids = ids.map(|typed| resolve::id(context, resolve::EVALUATION, typed));
            json!({ "EvalIDs": ids.collect::<Result<Vec<_>, _>>()? })
        }
    };
    let answer = context.client.delete_these("/v1/evaluations", &body)?;
    let count = answer.number("Count");
    let what = if count == 1 { "evaluation" } else { "evaluations" };
    context.line(format!("Successfully deleted {count} {what}"))?;
    Ok(Exit::Success)
}

fn lines(evaluations: &[Value], style: Style) -> String {
    let lines: Vec<Vec<String>> = evaluations.iter().map(|row| line(row, style)).collect();
    table(
        &[
            "ID",
            "Priority",
            "Triggered By",
            "Job ID",
            "Namespace",
            "Node ID",
            "Status",
            "Placement Failures",
        ],
        &lines,
    )
}

fn line(row: &Value, style: Style) -> Vec<String> {
    let failures = match row.text("Status") {
        "blocked" => "N/A - In Progress".to_owned(),
        _ => (!row.entries("FailedTGAllocs").is_empty()).to_string(),
    };
    vec![
        style.id(row.text("ID")),
        row.shown("Priority"),
        row.shown("TriggeredBy"),
        row.shown("JobID"),
        row.shown("Namespace"),
        style.id(row.text("NodeID")),
        row.shown("Status"),
        failures,
    ]
}

fn status(context: &Context, arguments: &StatusArgs) -> Outcome {
    let style = arguments.style;
    let id = resolve::id(context, resolve::EVALUATION, &arguments.evaluation)?;
    if arguments.monitor {
        return Ok(Monitor::new(context, style, false).follow(&id)?.verdict.exit());
    }
    let path = format!("/v1/evaluation/{id}");
    let evaluation = client::or_missing(context.client.get(&path, &[]), "evaluation", &id)?;
    if style.json {
        context.output.json(&evaluation)?;
        return Ok(Exit::Success);
    }
    let allocations = context.client.get(&format!("{path}/allocations"), &[])?;
    let now = context.now_nanoseconds();
    let failures = placement::failures(&evaluation, "")?;
    let mut sections = vec![pairs(&[
        ("ID", style.id(&id)),
        ("Create Time", time::ago(now, evaluation.number("CreateTime"))),
        ("Modify Time", time::ago(now, evaluation.number("ModifyTime"))),
        ("Status", evaluation.shown("Status")),
        ("Status Description", evaluation.shown("StatusDescription")),
        ("Type", evaluation.shown("Type")),
        ("TriggeredBy", evaluation.shown("TriggeredBy")),
        ("Job ID", evaluation.shown("JobID")),
        ("Namespace", evaluation.shown("Namespace")),
        ("Priority", evaluation.shown("Priority")),
        ("Placement Failures", (!failures.is_empty()).to_string()),
        ("Previous Eval", style.id(evaluation.text("PreviousEval"))),
        ("Next Eval", style.id(evaluation.text("NextEval"))),
        ("Blocked Eval", style.id(evaluation.text("BlockedEval"))),
    ])];
    if !failures.is_empty() {
        sections.push(format!("Failed Placements\n{}", failures.join("\n")));
    }
    let wanted = evaluation["PlanAnnotations"].entries("DesiredTGUpdates");
    if !wanted.is_empty() {
        sections.push(format!("Plan Annotations\n{}", annotations(&wanted, style)));
    }
    if !rows(&allocations).is_empty() {
        let lines: Vec<Vec<String>> = rows(&allocations)
            .iter()
            .map(|row| {
                vec![
                    style.id(row.text("ID")),
                    style.id(row.text("NodeID")),
                    row.shown("TaskGroup"),
                    row.shown("DesiredStatus"),
                    row.shown("ClientStatus"),
                ]
            })
            .collect();
        let shown = table(&["ID", "Node ID", "Task Group", "Desired", "Status"], &lines);
        sections.push(format!("Allocations\n{shown}"));
    }
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

/// What the scheduler wanted, one line for each group; why instances move is shown where some do.
fn annotations(groups: &[(&str, &Value)], style: Style) -> String {
    let is_shown =
        |name: &str| style.verbose || groups.iter().any(|(_, counts)| counts.number(name) > 0);
    let always = [
        ("Ignore", "Ignore"),
        ("Place", "Place"),
        ("Stop", "Stop"),
        ("InPlace", "InPlaceUpdate"),
        ("Destructive", "DestructiveUpdate"),
    ];
    let causes = ["Migrate", "Canary", "Preemptions"].map(|name| (name, name));
    let columns: Vec<_> =
        always.into_iter().chain(causes.into_iter().filter(|(_, name)| is_shown(name))).collect();
    let titles: Vec<_> =
        ["Task Group"].into_iter().chain(columns.iter().map(|(title, _)| *title)).collect();
    let lines: Vec<Vec<String>> = groups
        .iter()
        .map(|(group, counts)| {
            let numbers = columns.iter().map(|(_, name)| counts.number(name).to_string());
            [(*group).to_owned()].into_iter().chain(numbers).collect()
        })
        .collect();
    table(&titles, &lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wanted_changes_are_a_line_for_each_group() {
        let wanted = json!({
            "api": { "Ignore": 1, "Place": 2, "Stop": 0, "InPlaceUpdate": 3, "DestructiveUpdate": 4, "Migrate": 0 },
            "web": { "Ignore": 0, "Place": 0, "Stop": 5, "InPlaceUpdate": 0, "DestructiveUpdate": 0, "Canary": 6 },
        });
        let value = json!({ "groups": wanted });
        let style = Style { json: false, verbose: false };
        assert_eq!(
            annotations(&value.entries("groups"), style),
            "Task Group  Ignore  Place  Stop  InPlace  Destructive  Canary
api         1       2      0     3        4            0
web         0       0      5     0        0            6"
        );
        let all = annotations(&value.entries("groups"), Style { verbose: true, ..style });
        assert!(all.starts_with("Task Group  Ignore  Place  Stop  InPlace  Destructive  Migrate  Canary  Preemptions\n"), "{all}");
    }
}
