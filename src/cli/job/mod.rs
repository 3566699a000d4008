//! `quorate job …`: what the commands have in common, and the small ones.
//!
//! Must never change a job that was named by a prefix without `-yes`.

mod diff;
mod dispatch;
mod periodic;
mod plan;
mod restart;
mod run;
mod scale;
mod start;
mod status;
mod versions;

use std::io::Read;
use std::path::Path;

use anyhow::{Context as _, bail};
use clap::{Args, Subcommand};
use http_api::percent::encode;
use jobspec::{self, Diagnostics, Severity};
use serde_json::{Value, json};

use super::client::ClientError;
use super::context::{Context, Exit, Outcome};
use super::deployment::{self, OfJobArgs, PromoteJobArgs};
use super::monitor;
use super::output::Style;
use super::output::is_closed_pipe;
use super::resolve;
use super::view::Fields;

pub(crate) use plan::PlanArgs;
pub(crate) use run::{RunArgs, register};
pub(crate) use start::StartArgs;
pub(crate) use status::StatusArgs;

/// How a message begins that shows places of the file.
const UNUSABLE: &str = "the job file cannot be used";
/// Largest job file read.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Register, inspect and stop jobs
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Register a job, or update it, and follow its placement
    #[command(after_help = run::EXAMPLES)]
    Run(RunArgs),
    /// List jobs, or show one
    #[command(
        after_help = "Examples:\n  quorate job status\n  quorate job status web\n  quorate job status -json web"
    )]
    Status(StatusArgs),
    /// Start a parameterized job, with a payload and meta
    #[command(after_help = dispatch::EXAMPLES)]
    Dispatch(dispatch::DispatchArgs),
    /// List the allocations of a job
    #[command(after_help = "Examples:\n  quorate job allocs web\n  quorate job allocs -all web")]
    Allocs(status::AllocsArgs),
    /// Stop jobs
    #[command(
        after_help = "Examples:\n  quorate job stop web\n  quorate job stop -purge -detach web\n  quorate job stop -no-shutdown-delay web db\n\nOf several jobs each is stopped, also when another one cannot be.\nExit status: 0 all were stopped, 1 one was not."
    )]
    Stop(StopArgs),
    /// Run a stopped job again, as it was
    #[command(after_help = "Examples:\n  quorate job start web")]
    Start(start::StartArgs),
    /// Restart or replace the instances of a job, some at a time
    #[command(after_help = restart::EXAMPLES)]
    Restart(restart::RestartArgs),
    /// List the versions of a job
    #[command(
        after_help = "Examples:\n  quorate job history web\n  quorate job history -p web                what each version changed\n  quorate job history -version 2 -json web"
    )]
    History(versions::HistoryArgs),
    /// Show what running a job file would change, without running it
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::PlanArgs),
    /// Run an earlier version of a job again, as a new version
    #[command(
        after_help = "Examples:\n  quorate job revert web 3\n  quorate job revert web good               the version with that tag"
    )]
    Revert(versions::RevertArgs),
    /// Name versions of a job; a named one is kept
    #[command(subcommand)]
    Tag(versions::TagCommand),
    /// Set the count of a group
    #[command(
        after_help = "Examples:\n  quorate job scale web 5\n  quorate job scale web api 5                 of several groups"
    )]
    Scale(scale::ScaleArgs),
    /// List what was done and said about the counts of a job
    #[command(after_help = "Examples:\n  quorate job scaling-events web")]
    ScalingEvents(scale::EventsArgs),
    /// Start periodic jobs
    #[command(subcommand)]
    Periodic(periodic::PeriodicCommand),
    /// List the deployments of a job
    #[command(
        after_help = "Examples:\n  quorate job deployments web\n  quorate job deployments -latest web"
    )]
    Deployments(OfJobArgs),
    /// Promote the canaries of a job's newest deployment
    #[command(
        after_help = "Examples:\n  quorate job promote web\n  quorate job promote -group api web"
    )]
    Promote(PromoteJobArgs),
    /// Print a job as the API has it
    #[command(after_help = "Examples:\n  quorate job inspect web > web.json")]
    Inspect(InspectArgs),
    /// Have the scheduler look at a job again
    #[command(
        after_help = "Examples:\n  quorate job eval web\n  quorate job eval -force-reschedule web     replace what failed now, whatever delay it waits for"
    )]
    Eval(EvalArgs),
    /// Check a job file without registering it
    #[command(
        after_help = "Examples:\n  quorate job validate web.hcl\n  cat web.hcl | quorate job validate -"
    )]
    Validate(ValidateArgs),
}

/// Flags of `job stop`.
#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of Nomad's command")]
pub(crate) struct StopArgs {
    /// The ids of jobs
    #[arg(required = true, value_name = "JOB")]
    jobs: Vec<String>,
    /// Remove the job at once instead of leaving it to garbage collection
    #[arg(long)]
    purge: bool,
    /// Also stop what it has dispatched or launched, even if the job itself is gone
    #[arg(long)]
    children: bool,
    /// Do not follow the evaluation
    #[arg(long)]
    detach: bool,
    /// Accept a prefix of the id
    #[arg(long)]
    yes: bool,
    /// Priority of the evaluation, 1 to 100
    #[arg(long, value_name = "N")]
    eval_priority: Option<u32>,
    /// End its instances without their shutdown delays
    #[arg(long)]
    no_shutdown_delay: bool,
    /// Accepted for scripts: there is one region
    #[arg(long, hide = true)]
    global: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `job inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The job's id
    job: String,
    /// Only this version
    #[arg(long, value_name = "N")]
    version: Option<i64>,
    /// Print the job file as it was registered
    #[arg(long, conflicts_with = "json")]
    hcl: bool,
    /// Nomad's; refused
    #[arg(long, hide = true)]
    with_vars: bool,
    /// Accepted for scripts: the output is JSON in any case
    #[arg(long, hide = true)]
    json: bool,
}

/// Flags of `job eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// The job's id
    job: String,
    /// Replace failed instances at once, whatever delay or bound they wait for
    #[arg(long)]
    force_reschedule: bool,
    /// Do not follow the evaluation
    #[arg(long)]
    detach: bool,
    #[command(flatten)]
    style: Style,
}

/// Flags of `job validate`.
#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// The job file; - reads standard input
    file: String,
    /// The file is JSON, whatever its name
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(context: &Context, command: &JobCommand) -> Outcome {
    match command {
        JobCommand::Run(arguments) => run::run(context, arguments),
        JobCommand::Status(arguments) => status::run(context, arguments),
        JobCommand::Dispatch(arguments) => dispatch::run(context, arguments),
        JobCommand::Periodic(command) => periodic::run(context, command),
        JobCommand::Stop(arguments) => stop_all(context, arguments),
        JobCommand::Start(arguments) => start::start(context, arguments),
        JobCommand::Restart(arguments) => restart::restart(context, arguments),
        JobCommand::Allocs(arguments) => status::allocs(context, arguments),
        JobCommand::History(arguments) => versions::history(context, arguments),
        JobCommand::Plan(arguments) => plan::run(context, arguments),
        JobCommand::Revert(arguments) => versions::revert(context, arguments),
        JobCommand::Tag(command) => versions::tag(context, command),
        JobCommand::Scale(arguments) => scale::scale(context, arguments),
        JobCommand::ScalingEvents(arguments) => scale::events(context, arguments),
        JobCommand::Inspect(arguments) => inspect(context, arguments),
        JobCommand::Eval(arguments) => evaluate(context, arguments),
        JobCommand::Validate(arguments) => validate(context, arguments),
        JobCommand::Deployments(arguments) => deployment::of_job(context, arguments),
        JobCommand::Promote(arguments) => deployment::promote_job(context, arguments),
    }
}

/// A job file's text and the job in it.
#[derive(Debug)]
pub(crate) struct JobFile {
    /// As messages call it.
    path: String,
    pub(crate) source: String,
    /// `hcl2` or `json`, as the API names it.
    pub(crate) format: &'static str,
    pub(crate) job: Value,
    /// What has no effect in it.
    warnings: Diagnostics,
}

impl JobFile {
    /// Reads and parses; `-` is standard input (HCL unless `json`).
    pub(crate) fn read(file: &str, json: bool) -> anyhow::Result<Self> {
        let mut source = String::new();
        let mut reader: Box<dyn Read> = if file == "-" {
            Box::new(std::io::stdin())
        } else {
            Box::new(
                std::fs::File::open(file)
                    .with_context(|| format!("cannot open the job file {file}"))?,
            )
        };
        let bytes = reader
            .by_ref()
            .take(FILE_BYTES_MAX + 1)
            .read_to_string(&mut source)
            .with_context(|| format!("cannot read the job file {file}"))?;
        if u64::try_from(bytes).unwrap_or(u64::MAX) > FILE_BYTES_MAX {
            bail!("the job file {file} is larger than {FILE_BYTES_MAX} bytes");
        }
        Self::parse(file, json, source)
    }

    fn parse(file: &str, json: bool, source: String) -> anyhow::Result<Self> {
        let ending = |path: &str| {
            Path::new(path).extension().is_some_and(|e| e.eq_ignore_ascii_case("json"))
        };
        let json = json || ending(file);
        let path = match (file, json) {
            ("-", true) => "stdin.json".to_owned(),
            ("-", false) => "stdin.hcl".to_owned(),
            (path, true) if !ending(path) => format!("{path}.json"),
            (path, _) => path.to_owned(),
        };
        let (job, warnings) = jobspec::parse_with_warnings(&path, &source)
            .map_err(|diagnostics| anyhow::anyhow!("{UNUSABLE}\n{diagnostics}"))?;
        let format = if json { "json" } else { "hcl2" };
        Ok(Self { path, source, format, job, warnings })
    }

    /// What a server says of the job: at the places of the file that it is about, and what has
    /// none.
    fn placed<'l>(
        &self,
        severity: Severity,
        lines: impl IntoIterator<Item = &'l str>,
    ) -> (Diagnostics, Vec<String>) {
        let lines = lines.into_iter().map(|line| (severity, line.to_owned()));
        jobspec::placed(&self.path, &self.source, lines)
    }

    /// The answer to a request about the job, or why the file cannot be used.
    fn judged(&self, answer: Result<Value, ClientError>) -> anyhow::Result<Value> {
        let error = match answer {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if let ClientError::Status { status: 400, text, .. } = &error {
            let (placed, others) = self.placed(Severity::Error, text.lines());
            if !placed.is_empty() {
                bail!("{UNUSABLE}\n{placed}{}", others.join("\n"));
            }
        }
        Err(error.into())
    }

    pub(crate) fn id(&self) -> &str {
        self.job.text("ID")
    }

    /// The query of what is asked about the job: a namespace in the file goes over that of the
    /// command line.
    fn query(&self) -> Vec<(&str, &str)> {
        match self.job.text("Namespace") {
            "" => Vec::new(),
            namespace => vec![("namespace", namespace)],
        }
    }
}

/// Stops one after the other, also after an error; the status is the worst of all.
fn stop_all(context: &Context, arguments: &StopArgs) -> Outcome {
    let mut worst = Exit::Success;
    for typed in &arguments.jobs {
        let exit = match stop(context, arguments, typed) {
            Err(error) if is_closed_pipe(&error) => return Err(error),
            Err(error) => {
                context.output.error(&error);
                Exit::Failure
            }
            Ok(exit) => exit,
        };
        if worst != Exit::Failure && exit != Exit::Success {
            worst = exit;
        }
    }
    Ok(worst)
}

fn stop(context: &Context, arguments: &StopArgs, typed: &str) -> Outcome {
    let job = if arguments.children {
        resolve::job_or_parent(context, typed)?
    } else {
        resolve::job(context, typed)?
    };
    if !job.exact && !arguments.yes {
        bail!(
            "\"{}\" is not the whole id of a job; the only job that starts with it is \"{}\": repeat the command with that id, or with -yes",
            typed,
            job.id
        );
    }
    let priority = arguments.eval_priority.map(|number| number.to_string());
    let mut query = vec![("purge", if arguments.purge { "true" } else { "false" })];
    if arguments.children {
        query.push(("children", "true"));
    }
    query.extend(priority.as_deref().map(|number| ("eval_priority", number)));
    query.extend(arguments.no_shutdown_delay.then_some(("no_shutdown_delay", "true")));
    query.push(("namespace", job.namespace.as_str()));
    let answer = context.client.delete(&format!("/v1/job/{}", encode(&job.id)), &query)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    if answer.text("EvalID").is_empty() {
        context.line(format!("Job \"{}\" stopped", job.id))?;
    }
    // A stopped job places nothing: the only failure left is that of the evaluation itself.
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}

/// Prints `{"Job": …}`, which `job run -json` takes as it is.
fn inspect(context: &Context, arguments: &InspectArgs) -> Outcome {
    let found = resolve::job(context, &arguments.job)?;
    let namespace = [("namespace", found.namespace.as_str())];
    let path = format!("/v1/job/{}", encode(&found.id));
    if arguments.with_vars {
        bail!("-with-vars is a flag of Nomad's that is not built here yet");
    }
    if arguments.hcl {
        return source(context, arguments, &found, &path);
    }
    let job = match arguments.version {
        None => context.client.get(&path, &namespace)?,
        Some(wanted) => {
            let answer = context.client.get(&format!("{path}/versions"), &namespace)?;
            let mut versions = answer.items("Versions").iter();
            let version = versions.find(|version| version.number("Version") == wanted);
            version
                .cloned()
                .with_context(|| format!("job \"{}\" has no version {wanted}", found.id))?
        }
    };
    context.output.json(&json!({ "Job": job }))?;
    Ok(Exit::Success)
}

/// Prints what a version of the job was made of.
fn source(
    context: &Context,
    arguments: &InspectArgs,
    found: &resolve::FoundJob,
    path: &str,
) -> Outcome {
    let version = arguments.version.map(|version| version.to_string());
    let mut query = vec![("namespace", found.namespace.as_str())];
    query.extend(version.as_deref().map(|version| ("version", version)));
    let answer = context.client.get(&format!("{path}/submission"), &query);
    let id = &found.id;
    let answer = answer.map_err(|error| {
        if error.is_not_found() {
            anyhow::anyhow!(
                "no source is kept of job \"{id}\": it was registered without, or has no such version"
            )
        } else {
            error.into()
        }
    })?;
    if answer.text("Format") == "json" {
        bail!("job \"{id}\" was registered from JSON: leave -hcl out");
    }
    context.output.document(answer.text("Source").as_bytes())?;
    Ok(Exit::Success)
}

fn evaluate(context: &Context, arguments: &EvalArgs) -> Outcome {
    let found = resolve::job(context, &arguments.job)?;
    let path = format!("/v1/job/{}/evaluate", encode(&found.id));
    let namespace = [("namespace", found.namespace.as_str())];
    let options = json!({"ForceReschedule": arguments.force_reschedule});
    let request = json!({"JobID": found.id, "EvalOptions": options});
    let answer = context.client.put(&path, &namespace, &request)?;
    if arguments.style.json {
        context.output.json(&answer)?;
        return Ok(Exit::Success);
    }
    monitor::follow_write(context, &answer, arguments.detach, arguments.style)
}

fn validate(context: &Context, arguments: &ValidateArgs) -> Outcome {
    let file = JobFile::read(&arguments.file, arguments.json)?;
    let answer =
        context.client.put("/v1/validate/job", &file.query(), &json!({"Job": file.job}))?;
    print_warnings(context, Some(&file), &answer)?;
    let errors = answer.items("ValidationErrors");
    if errors.is_empty() && answer.text("Error").is_empty() {
        context.line(format!("Job \"{}\" is valid", file.id()))?;
        return Ok(Exit::Success);
    }
    context.output.advice(format!("Job \"{}\" is not valid:", file.id()));
    let (placed, others) = if errors.is_empty() {
        file.placed(Severity::Error, [answer.text("Error")])
    } else {
        file.placed(Severity::Error, errors.iter().filter_map(Value::as_str))
    };
    if !placed.is_empty() {
        context.output.advice(placed.to_string().trim_end());
    }
    for error in others {
        context.output.advice(format!("  * {error}"));
    }
    Ok(Exit::Failure)
}

/// Prints what is worth telling of a job that is taken, with places where it came from a file.
pub(crate) fn print_warnings(
    context: &Context,
    file: Option<&JobFile>,
    answer: &Value,
) -> anyhow::Result<()> {
    let of_server = answer.text("Warnings");
    let text = match file {
        None => of_server.to_owned(),
        Some(file) => {
            let (placed, others) = file.placed(Severity::Warning, of_server.lines());
            let parts = [file.warnings.to_string(), placed.to_string(), others.join("\n")];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            parts.join("\n")
        }
    };
    if text.is_empty() {
        return Ok(());
    }
    context.line(format!("Job Warnings:\n{}\n", text.trim_end()))
}
