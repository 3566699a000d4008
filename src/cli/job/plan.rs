//! `quorate job plan`: what running a job file would change. Must never write.

use clap::Args;
use http_api::percent::encode;
use serde_json::{Value, json};

use super::{
    JobFile,
    diff::{self, DiffStyle},
    print_warnings,
};
use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::output::{short_id, table},
    cli::placement,
    cli::time,
    cli::view::Fields,
};

pub(super) const EXAMPLES: &str = "Examples:
  quorate job plan web.hcl              what would change, and what would be placed
  quorate job plan -diff=false web.hcl  only the dry run of the scheduler
  quorate job plan -json web.json       the file is JSON

Exit status: 0 no allocation is created or ends, 1 some are or do, 255 error.";

/// Flags of `job plan`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct PlanArgs {
    /// The job file; - reads standard input
    file: String,
    /// Show what differs from the running version
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    diff: bool,
    /// The file is JSON, whatever its name
    #[arg(long)]
    json: bool,
    /// Also show what does not change
    #[arg(long)]
    verbose: bool,
    /// Print the API's JSON
    #[arg(long)]
    output_json: bool,
    /// As it would be with this flag of job run: keep the counts that were set by scaling
    #[arg(long)]
    preserve_counts: bool,
    /// As it would be with this flag of job run: keep the resources that the tasks have
    #[arg(long)]
    preserve_resources: bool,
}

/// Evicted allocations that are listed; of more only their number is said, as in Nomad.
const PREEMPTED_SHOWN: usize = 10;

pub(super) fn run(context: &Context, arguments: &PlanArgs) -> Outcome {
    let file = JobFile::read(&arguments.file, arguments.json)?;
    let path = format!("/v1/job/{}/plan", encode(file.id()));
    let request = json!({
        "Job": file.job,
        "Diff": arguments.diff,
        "PreserveCounts": arguments.preserve_counts,
        "PreserveResources": arguments.preserve_resources,
    });
    let answer = file.judged(context.client.put(&path, &file.query(), &request))?;
    if arguments.output_json {
        context.output.json(&answer)?;
        return Ok(exit(&answer));
    }
    if answer.present("Diff").is_some() {
        let style = DiffStyle { colour: context.colours, verbose: arguments.verbose };
        context.output.painted(&diff::lines(&answer["Diff"], style))?;
    }
    context
        .line(format!("Scheduler dry-run:\n{}", dry_run(&answer, context.now_nanoseconds())?))?;
    print_warnings(context, Some(&file), &answer)?;
    let index = answer.number("JobModifyIndex");
    context.line(format!(
        "Job Modify Index: {index}
To submit the job with version verification run:

quorate job run -check-index {index} {}

When running the job with the check-index flag, the job will only be run if the
job modify index given matches the server-side version. If the index has
changed, another user has modified the job and the plan's results are
potentially invalid.",
        arguments.file
    ))?;
    Ok(exit(&answer))
}

/// As in Nomad, a job that does not differ from what runs changes nothing, whatever is still to be
/// placed.
fn exit(answer: &Value) -> Exit {
    if answer.present("Diff").is_some_and(|diff| diff.text("Type") == "None") {
        return Exit::Success;
    }
    let groups = answer["Annotations"].entries("DesiredTGUpdates");
    let changes = ["Place", "Stop", "Migrate", "DestructiveUpdate", "Canary"];
    let any = groups.iter().any(|(_, counts)| changes.iter().any(|name| counts.number(name) > 0));
    if any { Exit::Failure } else { Exit::Success }
}

fn dry_run(answer: &Value, now_nanoseconds: i64) -> anyhow::Result<String> {
    let mut lines = Vec::new();
    if answer.entries("FailedTGAllocs").is_empty() {
        lines.push("- All tasks successfully allocated.".to_owned());
    } else {
        lines.push("- WARNING: Failed to place all allocations.".to_owned());
    }
    lines.extend(placement::failures(answer, "  ")?);
    let preempted = answer["Annotations"].items("PreemptedAllocs");
    if !preempted.is_empty() {
        let count = preempted.len();
        lines.push(format!("- Preempts {count} allocation(s) of lower priority."));
    }
    if (1..=PREEMPTED_SHOWN).contains(&preempted.len()) {
        let rows: Vec<Vec<String>> = preempted
            .iter()
            .map(|row| {
                vec![
                    short_id(row.text("ID")),
                    row.text("JobID").to_owned(),
                    row.text("TaskGroup").to_owned(),
                ]
            })
            .collect();
        let rows = table(&["Alloc ID", "Job ID", "Task Group"], &rows);
        lines.extend(rows.lines().map(|line| format!("  {line}")));
    }
    let next = answer.text("NextPeriodicLaunch");
    if !next.is_empty() {
        let left = calendar::parse_rfc3339(next)
            .map(|unix_s| time::span(unix_s - now_nanoseconds / 1_000_000_000))
            .map_or_else(String::new, |left| format!(" ({left} from now)"));
        lines.push(format!("- If submitted now, next periodic launch would be at {next}{left}."));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    Ok(text)
}
