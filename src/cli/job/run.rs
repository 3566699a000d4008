//! `quorate job run`: read, register, follow.
//!
//! Must never send a registration twice.

use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{JobFile, periodic, print_warnings};
use crate::{
    cli::context::{Context, Exit, Outcome},
    cli::monitor::{self, Monitor},
    cli::output::Style,
    cli::view::Fields,
};

pub(super) const EXAMPLES: &str = "Examples:
  quorate job run web.hcl                        register and follow until it runs
  quorate job run -detach web.hcl                register only, print the evaluation
  quorate job run -check-index 42 web.hcl        only if the job was not changed since index 42 (0: only if it is new)
  quorate job run -output web.hcl                print the job as JSON, register nothing
  quorate job run -json -output=json web.json    JSON in, JSON out

Exit status: 0 all runs or has completed, 1 error or a failed allocation, 2 some could not be placed.";

/// What `job run` prints.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Lines as things happen
    #[value(alias = "false")]
    Text,
    /// One JSON document at the end
    Json,
    /// The job as JSON, and nothing is registered (as Nomad's `-output`)
    #[value(alias = "true")]
    Job,
}

/// Flags of `job run`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct RunArgs {
    /// The job file; - reads standard input
    pub(crate) file: String,
    /// Register only, do not follow
    #[arg(long)]
    pub(crate) detach: bool,
    /// Register only if the job's modify index is N; 0: only if it does not exist
    #[arg(long, value_name = "N")]
    pub(crate) check_index: Option<u64>,
    /// The file is JSON, whatever its name
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the job as JSON and register nothing; or the form of the report
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "text", num_args = 0..=1, require_equals = true, default_missing_value = "job")]
    pub(crate) output: OutputFormat,
    /// Priority of the evaluation, 1 to 100
    #[arg(long, value_name = "N")]
    pub(crate) eval_priority: Option<u32>,
    /// Keep the counts that were set by scaling
    #[arg(long)]
    pub(crate) preserve_counts: bool,
    /// Keep the resources that the tasks have
    #[arg(long)]
    pub(crate) preserve_resources: bool,
    /// Show whole ids
    #[arg(long)]
    pub(crate) verbose: bool,
}

pub(super) fn run(context: &Context, arguments: &RunArgs) -> Outcome {
    let file = JobFile::read(&arguments.file, arguments.json)?;
    if arguments.output == OutputFormat::Job {
        context.output.json(&json!({ "Job": file.job }))?;
        return Ok(Exit::Success);
    }
    let mut request = registration(&file);
    if let Some(index) = arguments.check_index {
        request["EnforceIndex"] = json!(true);
        request["JobModifyIndex"] = json!(index);
    }
    if let Some(priority) = arguments.eval_priority {
        request["EvalPriority"] = json!(priority);
    }
    if arguments.preserve_counts {
        request["PreserveCounts"] = json!(true);
    }
    if arguments.preserve_resources {
        request["PreserveResources"] = json!(true);
    }
    let answer = send(context, &file, &request)?;
    if arguments.output == OutputFormat::Json {
        return report_json(context, arguments, &answer);
    }
    print_warnings(context, Some(&file), &answer)?;
    if answer.text("EvalID").is_empty() {
        print_unevaluated(context, &file)?;
        return Ok(Exit::Success);
    }
    if arguments.detach {
        context.line("Job registration successful")?;
    }
    let style = Style { json: false, verbose: arguments.verbose };
    monitor::follow_write(context, &answer, arguments.detach, style)
}

fn report_json(context: &Context, arguments: &RunArgs, answer: &Value) -> Outcome {
    let evaluation = answer.text("EvalID");
    if arguments.detach || evaluation.is_empty() {
        context.output.json(answer)?;
        return Ok(Exit::Success);
    }
    let report = Monitor::new(context, Style::default(), true).follow(evaluation)?;
    let mut document = report.json();
    document["Registration"] = answer.clone();
    context.output.json(&document)?;
    Ok(report.verdict.exit())
}

fn registration(file: &JobFile) -> Value {
    let submission = json!({"Source": file.source, "Format": file.format});
    json!({"Job": file.job, "Submission": submission})
}

/// Registers the job of a file; the answer holds `EvalID`.
pub(crate) fn register(context: &Context, file: &JobFile) -> anyhow::Result<Value> {
    send(context, file, &registration(file))
}

fn send(context: &Context, file: &JobFile, request: &Value) -> anyhow::Result<Value> {
    file.judged(context.client.put("/v1/jobs", &file.query(), request))
}

fn print_unevaluated(context: &Context, file: &JobFile) -> anyhow::Result<()> {
    context.line("Job registration successful")?;
    if let Some(block) = file.job.present("Periodic") {
        match periodic::next_launch_text(block, context.now_nanoseconds()) {
            Some(next) => context.line(format!("Approximate next launch time: {next}")),
            None => {
                context.line("The job is periodic and not enabled: it starts when it is forced")
            }
        }
    } else if file.job.present("ParameterizedJob").is_some() {
        context.line("The job is parameterized: it starts when it is dispatched")
    } else {
        Ok(())
    }
}
