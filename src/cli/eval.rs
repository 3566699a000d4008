//! `quorate eval …`.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use serde_json::json;
use shapes::{AllocationStub, Count, DesiredUpdates, Evaluation};

use super::client;
use super::context::{Context, Exit, Outcome};
use super::monitor::Monitor;
use super::output::{Cell, Style, listed, pairs, table};
use super::view::{newest_first, shape};
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
    } else {
        let evaluations: Vec<Evaluation> = shape(&answer)?;
        match evaluations.as_slice() {
            [] => context.line("No evaluations")?,
            some => context.line(lines(some, arguments.style))?,
        }
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
    let Count { count } = shape(&answer)?;
    let what = if count == 1 { "evaluation" } else { "evaluations" };
    context.line(format!("Successfully deleted {count} {what}"))?;
    Ok(Exit::Success)
}

fn lines(evaluations: &[Evaluation], style: Style) -> String {
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

fn line(row: &Evaluation, style: Style) -> Vec<String> {
    let failures = match row.status.as_str() {
        "blocked" => "N/A - In Progress".to_owned(),
        _ => row.failed_tg_allocs.as_ref().is_some_and(|failed| !failed.is_empty()).to_string(),
    };
    vec![
        style.id(&row.id),
        row.priority.to_string(),
        row.triggered_by.clone(),
        row.job_id.clone(),
        row.namespace.clone(),
        style.id(&row.node_id),
        row.status.clone(),
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
    let answer = client::or_missing(context.client.get(&path, &[]), "evaluation", &id)?;
    if style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    let evaluation: Evaluation = shape(&answer)?;
    let allocations = context.client.get(&format!("{path}/allocations"), &[])?;
    let allocations: Vec<AllocationStub> = shape(&allocations)?;
    let now = context.now_nanoseconds();
    let failures = placement::failures(evaluation.failed_tg_allocs.as_ref(), "");
    let mut sections = vec![pairs(&[
        ("ID", style.id(&id)),
        ("Create Time", time::ago(now, time::signed(evaluation.create_time))),
        ("Modify Time", time::ago(now, time::signed(evaluation.modify_time))),
        ("Status", evaluation.status),
        ("Status Description", evaluation.status_description),
        ("Type", evaluation.kind),
        ("TriggeredBy", evaluation.triggered_by),
        ("Job ID", evaluation.job_id),
        ("Namespace", evaluation.namespace),
        ("Priority", evaluation.priority.to_string()),
        ("Placement Failures", (!failures.is_empty()).to_string()),
        ("Previous Eval", style.id(&evaluation.previous_eval)),
        ("Next Eval", style.id(&evaluation.next_eval)),
        ("Blocked Eval", style.id(&evaluation.blocked_eval)),
    ])];
    if !failures.is_empty() {
        sections.push(format!("Failed Placements\n{}", failures.join("\n")));
    }
    let wanted = evaluation.plan_annotations.unwrap_or_default().desired_tg_updates;
    if !wanted.is_empty() {
        sections.push(format!("Plan Annotations\n{}", annotations(&wanted, style)));
    }
    if !allocations.is_empty() {
        let columns: [(&str, Cell<'_, AllocationStub>); 5] = [
            ("ID", &|row| style.id(&row.id)),
            ("Node ID", &|row| style.id(&row.node_id)),
            ("Task Group", &|row| row.task_group.clone()),
            ("Desired", &|row| row.desired_status.clone()),
            ("Status", &|row| row.client_status.clone()),
        ];
        sections.push(format!("Allocations\n{}", listed(&allocations, &columns)));
    }
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

/// A column of counts: its heading, and the count of a group.
type CountColumn = (&'static str, fn(&DesiredUpdates) -> u32);

/// What the scheduler wanted, one line for each group; why instances move is shown where some do.
fn annotations(groups: &BTreeMap<String, DesiredUpdates>, style: Style) -> String {
    let always: [CountColumn; 5] = [
        ("Ignore", |of| of.ignore),
        ("Place", |of| of.place),
        ("Stop", |of| of.stop),
        ("InPlace", |of| of.in_place_update),
        ("Destructive", |of| of.destructive_update),
    ];
    let causes: [CountColumn; 3] = [
        ("Migrate", |of| of.migrate),
        ("Canary", |of| of.canary),
        ("Preemptions", |of| of.preemptions),
    ];
    let is_shown =
        |(_, count): &CountColumn| style.verbose || groups.values().any(|of| count(of) > 0);
    let columns: Vec<_> = always.into_iter().chain(causes.into_iter().filter(is_shown)).collect();
    let titles: Vec<_> =
        ["Task Group"].into_iter().chain(columns.iter().map(|(title, _)| *title)).collect();
    let lines: Vec<Vec<String>> = groups
        .iter()
        .map(|(group, counts)| {
            let numbers = columns.iter().map(|(_, count)| count(counts).to_string());
            [group.clone()].into_iter().chain(numbers).collect()
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
        let wanted = serde_json::from_value(wanted).expect("it is read");
        let style = Style { json: false, verbose: false };
        assert_eq!(
            annotations(&wanted, style),
            "Task Group  Ignore  Place  Stop  InPlace  Destructive  Canary
api         1       2      0     3        4            0
web         0       0      5     0        0            6"
        );
        let all = annotations(&wanted, Style { verbose: true, ..style });
        assert!(all.starts_with("Task Group  Ignore  Place  Stop  InPlace  Destructive  Migrate  Canary  Preemptions\n"), "{all}");
    }
}
