//! `quorate job status`: the list, and one job with its allocations and what keeps it from running.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::Args;
use http_api::percent::encode;
use serde_json::Value;
use shapes::{AllocationStub, Deployment, Evaluation};

use super::periodic;
use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::deployment::groups,
    cli::output::{Cell, Style, listed, pairs, table},
    cli::view::{Fields, into_rows, rows, shape, texts},
    cli::{placement, resolve, time},
};

/// Flags of `job status`.
#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    /// The job's id or the beginning of it; without: list all jobs
    pub(crate) job: Option<String>,
    /// Only the summary, no allocations
    #[arg(long)]
    short: bool,
    /// Also allocations that earlier jobs of the same id made
    #[arg(long)]
    all_allocs: bool,
    /// Also its evaluations
    #[arg(long)]
    evals: bool,
    #[command(flatten)]
    pub(crate) style: Style,
}

/// Flags of `job allocs`.
#[derive(Debug, Args)]
pub(crate) struct AllocsArgs {
    /// The job's id or the beginning of it
    job: String,
    /// Also those of earlier jobs of the same id
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    style: Style,
}

/// `job allocs`.
pub(super) fn allocs(context: &Context, arguments: &AllocsArgs) -> Outcome {
    let found = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/allocations", encode(&found.id));
    let all = if arguments.all { "true" } else { "false" };
    let query = [("all", all), ("namespace", found.namespace.as_str())];
    let answer = context.client.get(&path, &query)?;
    if arguments.style.json {
        context.output.json(&answer)?;
    } else {
        context.line(allocations(context, &shape::<Vec<_>>(&answer)?, arguments.style))?;
    }
    Ok(Exit::Success)
}

pub(super) fn run(context: &Context, arguments: &StatusArgs) -> Outcome {
    match &arguments.job {
        None => list(context, arguments.style),
        Some(typed) => one(context, arguments, typed),
    }
}

fn list(context: &Context, style: Style) -> Outcome {
    let answer = context.client.get("/v1/jobs", &[])?;
    if style.json {
        context.output.json(&answer)?;
    } else if rows(&answer).is_empty() {
        context.line("No jobs; register one with: quorate job run FILE")?;
    } else {
        let mut headers = vec!["ID", "Type", "Priority", "Status", "Submit Date"];
        let in_all_namespaces = context.client.namespace() == Some("*");
        if in_all_namespaces {
            headers.insert(1, "Namespace");
        }
        let lines: Vec<Vec<String>> = rows(&answer)
            .iter()
            .map(|job| {
                let status = if job.flag("Stop") {
                    "dead (stopped)".to_owned()
                } else {
                    job.shown("Status")
                };
                let mut line = vec![
                    job.shown("ID"),
                    job_type(job),
                    job.shown("Priority"),
                    status,
                    time::timestamp(job.number("SubmitTime")),
                ];
                if in_all_namespaces {
                    line.insert(1, job.shown("Namespace"));
                }
                line
            })
            .collect();
        context.line(table(&headers, &lines))?;
    }
    Ok(Exit::Success)
}

fn job_type(job: &Value) -> String {
    let mut text = job.shown("Type");
    let set = |field: &str| job.present(field).is_some_and(|value| value != &Value::Bool(false));
    if set("Periodic") {
        text.push_str("/periodic");
    }
    if set("ParameterizedJob") && !job.flag("Dispatched") {
        text.push_str("/parameterized");
    }
    text
}

/// Everything about one job.
struct Job {
    specification: Value,
    summary: Value,
    allocations: Vec<AllocationStub>,
    evaluations: Vec<Evaluation>,
    deployment: Option<Deployment>,
    /// The newest of its children, if it has any.
    children: Vec<Value>,
}

/// Children that are shown of a job.
const CHILDREN_SHOWN: &str = "20";

impl Job {
    fn read(context: &Context, found: &resolve::FoundJob, all: bool) -> anyhow::Result<Self> {
        let path = format!("/v1/job/{}", encode(&found.id));
        let namespace = ("namespace", found.namespace.as_str());
        // What a server does not offer is shown as empty; only the job itself must be there.
        let read = |suffix: &str, query: &[(&str, &str)]| match context
            .client
            .get(&format!("{path}{suffix}"), query)
        {
            Err(error) if error.is_not_found() && !suffix.is_empty() => Ok(Value::Null),
            other => other,
        };
        let specification = read("", &[namespace])?;
        let children = children(context, found, &specification)?;
        Ok(Self {
            specification,
            children,
            summary: read("/summary", &[namespace])?,
            allocations: shape::<Option<_>>(&read(
                "/allocations",
                &[("all", if all { "true" } else { "false" }), namespace],
            )?)?
            .unwrap_or_default(),
            evaluations: shape::<Option<_>>(&read("/evaluations", &[namespace])?)?
                .unwrap_or_default(),
            deployment: shape(&read("/deployment", &[namespace])?)?,
        })
    }
}

fn one(context: &Context, arguments: &StatusArgs, typed: &str) -> Outcome {
    let style = arguments.style;
    let found = resolve::job(context, typed)?;
    if style.json {
        let path = format!("/v1/job/{}", encode(&found.id));
        let job = context.client.get(&path, &[("namespace", found.namespace.as_str())])?;
        context.output.json(&job)?;
        return Ok(Exit::Success);
    }
    let job = Job::read(context, &found, arguments.all_allocs)?;
    let mut sections = vec![overview(&job.specification, context.now_nanoseconds())];
    if is_parent(&job.specification) {
        sections.extend(parent(&job));
        context.line(sections.join("\n\n"))?;
        return Ok(Exit::Success);
    }
    sections.push(format!("Summary\n{}", summary(&job.summary)));
    if !arguments.short {
        sections.extend(blocked(&job.evaluations));
        sections.extend(ended(&job.specification, &job.allocations));
        if style.verbose || arguments.evals {
            sections.push(format!("Evaluations\n{}", evaluations(&job.evaluations)));
        }
        sections.extend(job.deployment.as_ref().map(|row| deployment(row, style)));
        sections.push(format!("Allocations\n{}", allocations(context, &job.allocations, style)));
    }
    context.line(sections.join("\n\n"))?;
    Ok(Exit::Success)
}

/// Whether children of it run, and not it.
fn is_parent(job: &Value) -> bool {
    is_dispatchable(job) || job.present("Periodic").is_some()
}

/// Whether it starts when it is dispatched. Its children keep the block, and were.
fn is_dispatchable(job: &Value) -> bool {
    job.present("ParameterizedJob").is_some() && !job.flag("Dispatched")
}

/// The newest children: their ids hold the time at which they were made.
fn children(
    context: &Context,
    found: &resolve::FoundJob,
    job: &Value,
) -> anyhow::Result<Vec<Value>> {
    let kind = match (is_dispatchable(job), job.present("Periodic")) {
        (true, _) => "dispatch",
        (false, Some(_)) => "periodic",
        (false, None) => return Ok(Vec::new()),
    };
    let prefix = format!("{}/{kind}-", found.id);
    let query = [
        ("prefix", prefix.as_str()),
        ("namespace", found.namespace.as_str()),
        ("per_page", CHILDREN_SHOWN),
        ("reverse", "true"),
    ];
    Ok(into_rows(context.client.get("/v1/jobs", &query)?))
}

/// What a job says whose children run: what a dispatch needs, how many there are, and the newest.
fn parent(job: &Job) -> Vec<String> {
    let mut sections = Vec::new();
    let block = &job.specification["ParameterizedJob"];
    let title = if block.is_null() { "Children" } else { "Parameterized Job" };
    if !block.is_null() {
        let list = |field: &str| texts(block.items(field)).join(", ");
        let bound = match block.number("MaxRunning") {
            0 => "no bound".to_owned(),
            max => max.to_string(),
        };
        sections.push(format!(
            "{title}\n{}",
            pairs(&[
                ("Payload", block.shown("Payload")),
                ("Required Metadata", list("MetaRequired")),
                ("Optional Metadata", list("MetaOptional")),
                ("Max Running", bound),
            ])
        ));
    }
    let counts = &job.summary["Children"];
    let numbers = ["Pending", "Running", "Dead", "Waiting"];
    let line = numbers.map(|column| counts.number(column).to_string()).to_vec();
    sections.push(format!("{title} Summary\n{}", table(&numbers, &[line])));
    let shown: Vec<Vec<String>> = job
        .children
        .iter()
        .map(|row| {
            let status = match row.text("StatusDescription") {
                "" => row.shown("Status"),
                why => format!("{} ({why})", row.shown("Status")),
            };
            vec![row.shown("ID"), status, time::timestamp(row.number("SubmitTime"))]
        })
        .collect();
    let all = counts.number("Pending") + counts.number("Running") + counts.number("Dead");
    let name = if block.is_null() { "Launched Jobs" } else { "Dispatched Jobs" };
    sections.push(if shown.is_empty() {
        format!("{name}\nNone")
    } else {
        let newest = if i64::try_from(shown.len()).is_ok_and(|number| number < all) {
            format!(" (the newest {} of {all})", shown.len())
        } else {
            String::new()
        };
        format!("{name}{newest}\n{}", table(&["ID", "Status", "Submit Date"], &shown))
    });
    sections
}

/// What became of instances that a drain or a user ended, and how they run again.
fn ended(job: &Value, allocations: &[AllocationStub]) -> Option<String> {
    let is_run_once = matches!(job.text("Type"), "batch" | "sysbatch");
    let version = u64::try_from(job.number("Version")).unwrap_or_default();
    let runs_again = |row: &AllocationStub| {
        let is_newer = |other: &AllocationStub| other.create_index > row.create_index;
        allocations.iter().any(|other| other.name == row.name && is_newer(other))
    };
    let is_ended = |row: &&AllocationStub| {
        row.desired_description == fsm::allocation::ENDED_BY_REQUEST
            && row.job_version == version
            && !runs_again(row)
    };
    let rows: Vec<_> = allocations.iter().filter(is_ended).collect();
    let first = rows.first().filter(|_| is_run_once)?;
    let count = rows.len();
    let what = if count == 1 { "instance was" } else { "instances were" };
    Some(format!(
        "Stopped\n{count} {what} stopped by a drain or a user: nothing runs again by itself for that.\n\
         Run one again with: quorate alloc stop -reschedule {}",
        first.id.get(..8).unwrap_or_default()
    ))
}

fn overview(job: &Value, now: i64) -> String {
    let datacenters = texts(job.items("Datacenters")).join(",");
    let status = match (job.flag("Stop"), job.text("Status")) {
        (true, status) => format!("{status} (stopped)"),
        (false, status) => status.to_owned(),
    };
    let status = match job.text("StatusDescription") {
        "" => status,
        why => format!("{status} ({why})"),
    };
    let mut lines = vec![
        ("ID", job.shown("ID")),
        ("Name", job.shown("Name")),
        ("Submit Date", time::timestamp(job.number("SubmitTime"))),
        ("Type", job.shown("Type")),
        ("Priority", job.shown("Priority")),
        ("Datacenters", datacenters),
        ("Namespace", job.shown("Namespace")),
        ("Node Pool", job.shown("NodePool")),
        ("Status", status),
        ("Periodic", job.present("Periodic").is_some().to_string()),
    ];
    if let Some(block) = job.present("Periodic").filter(|_| !job.flag("Stop")) {
        let next = periodic::next_launch_text(block, now);
        lines.push(("Next Periodic Launch", next.unwrap_or_else(|| "none".to_owned())));
        let counts = &job["PeriodicLaunches"];
        lines.push(("Missed Launches", counts.number("Missed").to_string()));
        lines.push(("Overlaps Skipped", counts.number("Overlapped").to_string()));
    }
    lines.extend([
        ("Parameterized", is_dispatchable(job).to_string()),
        ("Version", job.shown("Version")),
        ("Modify Index", job.shown("JobModifyIndex")),
    ]);
    if !job.text("ParentID").is_empty() {
        lines.push(("Parent", job.shown("ParentID")));
    }
    if !job.text("Payload").is_empty() {
        let bytes = BASE64_STANDARD.decode(job.text("Payload")).map_or(0, |payload| payload.len());
        lines.push(("Payload", format!("{bytes} bytes")));
    }
    pairs(&lines)
}

fn summary(summary: &Value) -> String {
    const COLUMNS: [&str; 7] =
        ["Queued", "Starting", "Running", "Failed", "Complete", "Lost", "Unknown"];
    let lines: Vec<Vec<String>> = summary
        .entries("Summary")
        .into_iter()
        .map(|(group, counts)| {
            let numbers = COLUMNS.iter().map(|column| counts.number(column).to_string());
            std::iter::once(group.to_owned()).chain(numbers).collect()
        })
        .collect();
    let headers: Vec<&str> = std::iter::once("Task Group").chain(COLUMNS).collect();
    table(&headers, &lines)
}

/// Why the newest blocked evaluation waits.
fn blocked(evaluations: &[Evaluation]) -> Option<String> {
    let waiting = evaluations.iter().filter(|evaluation| evaluation.status == "blocked");
    let blocked = waiting.max_by_key(|evaluation| evaluation.create_index)?;
    // The blocked evaluation itself carries the reasons only in some servers; the one that made it
    // always does.
    let parent = evaluations.iter().find(|row| row.blocked_eval == blocked.id);
    let mut lines = placement::failures(blocked.failed_tg_allocs.as_ref(), "");
    if lines.is_empty() {
        let failed = parent.and_then(|parent| parent.failed_tg_allocs.as_ref());
        lines = placement::failures(failed, "");
    }
    if lines.is_empty() {
        lines.push("Waiting for capacity".to_owned());
    }
    let mut text = format!("Placement Failure\n{}", lines.join("\n"));
    if !blocked.waits_for.is_empty() {
        let lines: Vec<String> = blocked.waits_for.iter().map(|one| format!("  * {one}")).collect();
        text = format!("{text}\n\nInstances\n{}", lines.join("\n"));
    }
    Some(text)
}

fn evaluations(evaluations: &[Evaluation]) -> String {
    let failures =
        |row: &Evaluation| row.failed_tg_allocs.as_ref().is_some_and(|of| !of.is_empty());
    let columns: [(&str, Cell<'_, Evaluation>); 5] = [
        ("ID", &|row| row.id.clone()),
        ("Priority", &|row| row.priority.to_string()),
        ("Triggered By", &|row| row.triggered_by.clone()),
        ("Status", &|row| row.status.clone()),
        ("Placement Failures", &|row| failures(row).to_string()),
    ];
    listed(evaluations, &columns)
}

fn deployment(row: &Deployment, style: Style) -> String {
    let head = pairs(&[
        ("ID", style.id(&row.id)),
        ("Status", row.status.clone()),
        ("Description", row.status_description.clone()),
    ]);
    format!("Latest Deployment\n{head}\n\nDeployed\n{}", groups(row))
}

fn allocations(context: &Context, allocations: &[AllocationStub], style: Style) -> String {
    if allocations.is_empty() {
        return "No allocations placed".to_owned();
    }
    let now = context.now_nanoseconds();
    let ago = |at| time::ago(now, time::signed(at));
    let mut newest: Vec<&AllocationStub> = allocations.iter().collect();
    newest.sort_by_key(|row| (std::cmp::Reverse(row.create_index), &row.name));
    let columns: [(&str, Cell<'_, &AllocationStub>); 8] = [
        ("ID", &|row| style.id(&row.id)),
        ("Node ID", &|row| style.id(&row.node_id)),
        ("Task Group", &|row| row.task_group.clone()),
        ("Version", &|row| row.job_version.to_string()),
        ("Desired", &|row| row.desired_status.clone()),
        ("Status", &|row| row.client_status.clone()),
        ("Created", &|row| ago(row.create_time)),
        ("Modified", &|row| ago(row.modify_time)),
    ];
    listed(&newest, &columns)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).expect("it is read")
    }

    #[test]
    fn periodic_and_parameterized_show_in_the_type() {
        assert_eq!(job_type(&json!({"Type": "batch", "Periodic": true})), "batch/periodic");
        assert_eq!(job_type(&json!({"Type": "batch", "Periodic": null})), "batch");
        assert_eq!(
            job_type(&json!({"Type": "batch", "Periodic": false, "ParameterizedJob": {}})),
            "batch/parameterized"
        );
    }

    #[test]
    fn reasons_come_from_the_evaluation_that_was_blocked() {
        let evaluations: Vec<Evaluation> = read(json!([
            {"ID": "a", "Status": "complete", "BlockedEval": "b", "FailedTGAllocs":
                {"web": {"NodesEvaluated": 1, "NodesExhausted": 1}}},
            {"ID": "b", "Status": "blocked"},
        ]));
        assert_eq!(
            blocked(&evaluations).unwrap_or_default(),
            "Placement Failure\nTask Group \"web\" (failed to place 1 allocation):\n  * Resources exhausted on 1 node"
        );
        assert_eq!(blocked(&evaluations[..1]), None);
    }

    #[test]
    fn an_instance_that_was_ended_and_runs_again_nowhere_is_shown_with_the_remedy() {
        let job = json!({"Type": "batch", "Version": 1});
        let row = |id: &str, index: u64, version: u64| {
            read(json!({"ID": id, "Name": "sum.g[0]", "JobVersion": version, "CreateIndex": index,
                "DesiredDescription": fsm::allocation::ENDED_BY_REQUEST}))
        };
        let mut rows: Vec<AllocationStub> = vec![row("bfc63bd7-1", 7, 1)];
        let told = ended(&job, &rows).unwrap_or_default();
        assert!(told.starts_with("Stopped\n1 instance was stopped"), "{told}");
        assert!(told.ends_with("quorate alloc stop -reschedule bfc63bd7"), "{told}");
        assert_eq!(ended(&json!({"Type": "service", "Version": 1}), &rows), None);
        assert_eq!(ended(&json!({"Type": "batch", "Version": 2}), &rows), None);
        rows.push(read(json!({"ID": "c", "Name": "sum.g[0]", "JobVersion": 1, "CreateIndex": 9})));
        assert_eq!(ended(&job, &rows), None, "it runs again");
    }
}
