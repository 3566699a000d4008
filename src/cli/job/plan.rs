//! `quorate job plan`: what running a job file would change. Must never write.

use std::collections::BTreeMap;

use clap::Args;
use http_api::percent::encode;
use serde_json::json;
use shapes::{DesiredUpdates, JobPlan, KnownAllocation};

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
    cli::view::{Fields, shape},
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
    let plan: JobPlan = shape(&answer)?;
    if arguments.output_json {
        context.output.json(&answer)?;
        return Ok(exit(&plan));
    }
    if !plan.diff.is_null() {
        let style = DiffStyle { colour: context.colours, verbose: arguments.verbose };
        context.output.painted(&diff::lines(&plan.diff, style))?;
    }
    context.line(format!("Scheduler dry-run:\n{}", dry_run(&plan, context.now_nanoseconds())))?;
    print_warnings(context, Some(&file), &answer)?;
    let index = plan.job_modify_index;
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
    Ok(exit(&plan))
}

/// As in Nomad, a job that does not differ from what runs changes nothing, whatever is still to be
/// placed.
fn exit(plan: &JobPlan) -> Exit {
    if plan.diff.text("Type") == "None" {
        return Exit::Success;
    }
    let changes = |of: &DesiredUpdates| {
        [of.place, of.stop, of.migrate, of.destructive_update, of.canary].iter().any(|n| *n > 0)
    };
    let any = plan.annotations.desired_tg_updates.values().any(changes);
    if any { Exit::Failure } else { Exit::Success }
}

fn dry_run(plan: &JobPlan, now_nanoseconds: i64) -> String {
    let mut lines = Vec::new();
    let failed = plan.failed_tg_allocs.as_ref();
    if failed.is_none_or(BTreeMap::is_empty) {
        lines.push("- All tasks successfully allocated.".to_owned());
    } else {
        lines.push("- WARNING: Failed to place all allocations.".to_owned());
    }
    lines.extend(placement::failures(failed, "  "));
    let preempted = plan.annotations.preempted_allocs.as_deref().unwrap_or_default();
    if !preempted.is_empty() {
        let count = preempted.len();
        lines.push(format!("- Preempts {count} allocation(s) of lower priority."));
    }
    if (1..=PREEMPTED_SHOWN).contains(&preempted.len()) {
        let rows: Vec<Vec<String>> = preempted
            .iter()
            .map(|row| match row {
                KnownAllocation::Stub(row) => {
                    vec![short_id(&row.id), row.job_id.clone(), row.task_group.clone()]
                }
                KnownAllocation::Gone { id } => {
                    vec![short_id(id), String::new(), String::new()]
                }
            })
            .collect();
        let rows = table(&["Alloc ID", "Job ID", "Task Group"], &rows);
        lines.extend(rows.lines().map(|line| format!("  {line}")));
    }
    if let Some(next) = plan.next_periodic_launch.as_deref() {
        let left = calendar::parse_rfc3339(next)
            .map(|unix_s| time::span(unix_s - now_nanoseconds / 1_000_000_000))
            .map_or_else(String::new, |left| format!(" ({left} from now)"));
        lines.push(format!("- If submitted now, next periodic launch would be at {next}{left}."));
    }
    let mut text = lines.join("\n");
    text.push('\n');
    text
}
