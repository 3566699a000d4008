//! From the process's arguments to its exit status.
//!
//! Exit status: 0 done, 1 error (wrong usage too), 2 `job run` could not place everything; of `job
//! plan` 255 is an error, since 1 is an answer there. A closed pipe (`| head`) ends a command
//! quietly.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;

use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use ground::version::Build;
use serde_json::json;

use super::alloc::AllocCommand;
use super::capacity::CapacityCommand;
use super::context::{Context, Exit, GlobalFlags, Outcome};
use super::demo_web::DemoWebArgs;
use super::deployment::DeploymentCommand;
use super::eval::EvalCommand;
use super::instance::InstanceCommand;
use super::job::JobCommand;
use super::namespace::NamespaceCommand;
use super::node::NodeCommand;
use super::operator::OperatorCommand;
use super::output::{Output, is_closed_pipe, pairs};
use super::pool::PoolCommand;
use super::provider::ProviderCommand;
use super::scaling::ScalingCommand;
use super::system::SystemCommand;
use super::up::UpArgs;
use super::{
    agent, alloc, argv, bench, capacity, demo_web, deployment, eval, instance, job, namespace,
    node, operator, pool, process, provider, scaling, server, status, system, unbuilt, up,
};
use crate::bench::BenchCommand;

const EXAMPLES: &str = "Examples:
  quorate up examples/web.hcl     three servers, an agent and a job on this machine
  quorate job run web.hcl         register a job and follow it
  quorate job status web          what runs, and why something does not
  quorate alloc logs -f 5b98a6ea  what a task writes
  quorate node status             the machines

Long flags may be written with one dash, as in Nomad: -json is --json.";

/// A replicated cluster scheduler that speaks Nomad's HTTP API.
#[derive(Debug, Parser)]
#[command(name = "quorate", version, after_help = EXAMPLES, disable_help_subcommand = true)]
pub(super) struct CommandLine {
    #[command(flatten)]
    global: GlobalFlags,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start a cluster on this machine: servers, an agent, jobs
    #[command(after_help = up::EXAMPLES)]
    Up(UpArgs),
    /// Start a server; `server members` lists them
    #[command(after_help = server::EXAMPLES)]
    Server(server::ServerArgs),
    /// Start a node agent
    #[command(after_help = agent::EXAMPLES)]
    Agent(agent::AgentArgs),
    /// Register, inspect and stop jobs
    #[command(subcommand)]
    Job(JobCommand),
    /// Inspect nodes, take them out of and into service
    #[command(subcommand)]
    Node(NodeCommand),
    /// Pools of machines that come when jobs wait and go when they idle
    #[command(subcommand)]
    Pool(PoolCommand),
    /// Groups of machines that follow what load balancers need
    #[command(subcommand)]
    Capacity(CapacityCommand),
    /// Machines of instance pools: what they do, hold, drain, shut down
    #[command(subcommand)]
    Instance(InstanceCommand),
    /// Programs that make machines for instance pools
    #[command(subcommand)]
    Provider(ProviderCommand),
    /// Inspect and stop allocations, read their logs
    #[command(subcommand)]
    Alloc(AllocCommand),
    /// Inspect and steer how versions of jobs are rolled out
    #[command(subcommand)]
    Deployment(DeploymentCommand),
    /// Inspect what autoscalers act by
    #[command(subcommand)]
    Scaling(ScalingCommand),
    /// Inspect evaluations
    #[command(subcommand)]
    Eval(EvalCommand),
    /// Namespaces of jobs
    #[command(subcommand)]
    Namespace(NamespaceCommand),
    /// Look after the cluster
    #[command(subcommand)]
    Operator(OperatorCommand),
    /// Chores of the whole cluster
    #[command(subcommand)]
    System(SystemCommand),
    /// Measure a running cluster
    #[command(subcommand)]
    Bench(BenchCommand),
    /// As `job run`
    #[command(hide = true)]
    Run(job::RunArgs),
    /// As `job plan`
    #[command(hide = true)]
    Plan(job::PlanArgs),
    /// As `job stop`
    #[command(hide = true)]
    Stop(job::StopArgs),
    /// As `job start`
    #[command(hide = true)]
    Start(job::StartArgs),
    /// Show whatever has an id: a job, allocation, node, evaluation, deployment, namespace or node
    /// pool; without an id: the jobs
    #[command(mut_arg("job", |argument| argument.value_name("ID").help(
        "The id, or the beginning of it; without: list all jobs"
    )))]
    Status(job::StatusArgs),
    /// As `job inspect`
    #[command(hide = true)]
    Inspect(job::InspectArgs),
    /// As `job validate`
    #[command(hide = true)]
    Validate(job::ValidateArgs),
    /// As `alloc logs`
    #[command(hide = true)]
    Logs(alloc::LogsArgs),
    /// As `alloc fs`
    #[command(hide = true)]
    Fs(alloc::FsArgs),
    /// Print the version, the commit and the generation of the data
    #[command(
        after_help = "Examples:\n  quorate version\n  quorate version -json\n\nServers and agents work together, and a data folder can be opened, within one generation."
    )]
    Version(VersionArgs),
    /// Run one task for an agent
    #[command(hide = true)]
    Executor {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// A small web server for trying things out
    #[command(hide = true)]
    DemoWeb(DemoWebArgs),
}

/// Flags of `version`.
#[derive(Debug, clap::Args)]
struct VersionArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Command {
    /// Whether the address, token, namespace and region of the command line are used to ask a
    /// server.
    fn asks_a_server(&self) -> bool {
        match self {
            Self::Job(_)
            | Self::Node(_)
            | Self::Pool(_)
            | Self::Capacity(_)
            | Self::Instance(_)
            | Self::Provider(ProviderCommand::Status(_))
            | Self::Alloc(_)
            | Self::Eval(_)
            | Self::Namespace(_)
            | Self::Deployment(_)
            | Self::Scaling(_)
            | Self::Operator(_)
            | Self::System(_)
            | Self::Run(_)
            | Self::Plan(_)
            | Self::Stop(_)
            | Self::Start(_)
            | Self::Status(_)
            | Self::Inspect(_)
            | Self::Validate(_)
            | Self::Logs(_)
            | Self::Fs(_) => true,
            Self::Server(arguments) => arguments.command.is_some(),
            Self::Up(_)
            | Self::Agent(_)
            | Self::Bench(_)
            | Self::Provider(ProviderCommand::Check(_))
            | Self::Version(_)
            | Self::Executor { .. }
            | Self::DemoWeb(_) => false,
        }
    }
}

/// The whole program.
pub fn main() -> ExitCode {
    let output = Arc::new(Output::process());
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // An executor's arguments belong to a task: nothing in them is ours to rewrite.
    if arguments.get(1).is_some_and(|word| word == "executor") {
        return process::executor(&arguments[2..]);
    }
    let variable = |name: &str| std::env::var(name).ok();
    ExitCode::from(run(arguments, &variable, &output, |_| {}))
}

/// Runs one command line; `adjust` lets tests set clocks and intervals.
pub(crate) fn run(
    arguments: Vec<OsString>,
    variable: &dyn Fn(&str) -> Option<String>,
    output: &Arc<Output>,
    adjust: impl FnOnce(&mut Context),
) -> u8 {
    let failure = if is_plan(&arguments) { Exit::PlanError } else { Exit::Failure };
    let outcome = parse(arguments, output).and_then(|parsed| match parsed {
        None => Ok(Exit::Success),
        Some(line) => {
            // A variable meant for clients must not keep a server or a task from starting.
            let target = if line.command.asks_a_server() {
                line.global.target(variable)
            } else {
                GlobalFlags::default().target(&|_| None)
            };
            let mut context = Context::new(target, Arc::clone(output))?;
            context.colours = line.global.colours(variable, context.colours);
            adjust(&mut context);
            dispatch(&context, line)
        }
    });
    match outcome {
        Ok(exit) => exit.code(),
        Err(error) if is_closed_pipe(&error) => Exit::Success.code(),
        Err(error) => {
            output.error(&error);
            failure.code()
        }
    }
}

/// Whether the command line is one of `job plan`, right or wrong.
fn is_plan(arguments: &[OsString]) -> bool {
    let is_at = |place: usize, word: &str| arguments.get(place).is_some_and(|found| found == word);
    is_at(1, "plan") || is_at(1, "job") && is_at(2, "plan")
}

/// Nothing, if help or the version was asked for and printed.
pub(super) fn parse(
    arguments: Vec<OsString>,
    output: &Output,
) -> anyhow::Result<Option<CommandLine>> {
    let command = CommandLine::command();
    let known = argv::known_flags(&command);
    let arguments = argv::help_last(arguments);
    // Before the parser, which takes the letters of an unknown flag for flags of their own.
    if let Some(text) = unbuilt::refusal(&arguments, &known) {
        anyhow::bail!("{text}");
    }
    let normal = argv::normalise(arguments.iter().cloned(), &known);
    let parsed = command
        .try_get_matches_from(normal)
        .and_then(|matches| CommandLine::from_arg_matches(&matches));
    match parsed {
        Ok(line) => Ok(Some(line)),
        Err(error) if error.kind() == ErrorKind::DisplayVersion => {
            output.line(version())?;
            Ok(None)
        }
        // No command at all is a question; a command that lacks a word is a mistake.
        Err(error)
            if !error.use_stderr()
                || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
                    && arguments.len() < 2 =>
        {
            output.help(&error.to_string())?;
            Ok(None)
        }
        Err(error) => {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            anyhow::bail!("{}", argv::as_typed(text.trim_end(), &arguments))
        }
    }
}

fn dispatch(context: &Context, line: CommandLine) -> Outcome {
    let region = line.global.region;
    match line.command {
        Command::Up(arguments) => up::run(context, &arguments),
        Command::Server(arguments) => match &arguments.command {
            Some(command) => server::run(context, command),
            None => server::start(arguments, region),
        },
        Command::Agent(arguments) => agent::start(arguments, region),
        Command::Job(command) => job::run(context, &command),
        Command::Node(command) => node::run(context, &command),
        Command::Pool(command) => pool::run(context, &command),
        Command::Capacity(command) => capacity::run(context, &command),
        Command::Instance(command) => instance::run(context, &command),
        Command::Provider(command) => provider::run(context, command),
        Command::Alloc(command) => alloc::run(context, &command),
        Command::Eval(command) => eval::run(context, &command),
        Command::Namespace(command) => namespace::run(context, &command),
        Command::Deployment(command) => deployment::run(context, &command),
        Command::Scaling(command) => scaling::run(context, &command),
        Command::Operator(command) => operator::run(context, &command),
        Command::System(command) => system::run(context, &command),
        Command::Bench(command) => bench::run(context, &command),
        Command::Run(arguments) => job::run(context, &JobCommand::Run(arguments)),
        Command::Plan(arguments) => job::run(context, &JobCommand::Plan(arguments)),
        Command::Stop(arguments) => job::run(context, &JobCommand::Stop(arguments)),
        Command::Start(arguments) => job::run(context, &JobCommand::Start(arguments)),
        Command::Status(arguments) => status::run(context, arguments),
        Command::Inspect(arguments) => job::run(context, &JobCommand::Inspect(arguments)),
        Command::Validate(arguments) => job::run(context, &JobCommand::Validate(arguments)),
        Command::Logs(arguments) => alloc::run(context, &AllocCommand::Logs(arguments)),
        Command::Fs(arguments) => alloc::run(context, &AllocCommand::Fs(arguments)),
        Command::Version(arguments) => print_version(context, &arguments),
        Command::Executor { .. } => {
            anyhow::bail!("executor takes no flags before its name; it is started by an agent")
        }
        Command::DemoWeb(arguments) => demo_web::run(context, &arguments),
    }
}

fn print_version(context: &Context, arguments: &VersionArgs) -> Outcome {
    let build = Build::own();
    if arguments.json {
        context.output.json(&json!({
            "Version": ground::version::QUORATE,
            "Commit": build.commit,
            "BuildDate": build.date,
            "Generation": fsm::GENERATION,
            "NomadVersion": ground::version::NOMAD,
        }))?;
        return Ok(Exit::Success);
    }
    let [_, (_, commit), (_, date), (_, generation)] = build.facts();
    let rows = [
        ("Commit", commit),
        ("Build Date", date),
        ("Generation", generation),
        ("Speaks", format!("Nomad {}", ground::version::NOMAD)),
    ];
    context.line(format!("{}\n{}", version(), pairs(&rows)))?;
    Ok(Exit::Success)
}

fn version() -> String {
    format!("Quorate v{}", ground::version::QUORATE)
}
