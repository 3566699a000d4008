//! The command line.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::Context;
use clap::{Args, Parser, Subcommand};

use crate::{
    a1,
    child::{Case, Origin, RESULT, Report},
    class::Class,
    coverage, many, run, selftest, shrink,
    swarm::Override,
    trace,
};

/// Exit codes as those of `jepsen`: neither says anything about the servers.
const BAD_ARGUMENTS: u8 = 254;
const CRASHED: u8 = 255;

#[derive(Parser)]
#[command(about = "Simulates whole servers under virtual time, from a seed")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

/// The plan to run.
#[derive(Args)]
#[group(required = true, multiple = false)]
struct Source {
    /// A seed from which it is drawn.
    #[arg(long)]
    seed: Option<u64>,
    /// A file that holds it, as `sim plan --save` writes one.
    #[arg(long)]
    plan: Option<PathBuf>,
}

impl Source {
    fn with(self, change: Change) -> Case {
        let origin = match (self.plan, self.seed) {
            (Some(path), _) => Origin::File(path),
            (None, seed) => Origin::Seed(seed.expect("one of the two is required")),
        };
        Case { origin, change: change.into_override() }
    }
}

/// What is changed of a plan.
#[derive(Args)]
struct Change {
    /// Number of servers, 1 to 9; as planned unless given.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
    servers: Option<u8>,
    /// Classes of faults that stay off, separated by commas.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Class>,
    /// How long faults last, ms of virtual time; as planned unless given.
    #[arg(long)]
    safety_ms: Option<u64>,
}

impl Change {
    fn into_override(self) -> Override {
        Override { servers: self.servers, without: self.without, safety_ms: self.safety_ms }
    }
}

#[derive(Subcommand)]
enum Verb {
    /// Runs one plan; exit 1 when a promise is broken.
    Run {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        change: Change,
        /// Writes the trace to this file.
        #[arg(long)]
        trace: Option<PathBuf>,
        /// Writes the servers' own log to the error output, filtered like `RUST_LOG`.
        #[arg(long)]
        log: Option<String>,
        /// Prints the result as a line of JSON as well.
        #[arg(long)]
        json: bool,
    },
    /// Prints a plan, and does not run it.
    Plan {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        change: Change,
        /// Writes all of it to this file, which runs the same when seeds mean something else.
        #[arg(long)]
        save: Option<PathBuf>,
    },
    /// Runs one plan twice and compares the traces byte for byte; exit 1 when they differ.
    Determinism {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        change: Change,
    },
    /// Runs the kept plans (`sim/regressions`) and the seeds from `from` up to, without, `to`; exit 1 when any fails, 2 when together they did not meet what they must.
    Many {
        /// First seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Seed after the last one.
        #[arg(long)]
        to: u64,
        #[command(flatten)]
        change: Change,
        /// Seeds that run at a time.
        #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        jobs: u8,
        /// Begins no other seed once one has failed.
        #[arg(long)]
        fail_fast: bool,
        /// Writes the summary to this file as JSON.
        #[arg(long)]
        json: Option<PathBuf>,
    },
    /// Finds the fewest classes of faults and the shortest time with which a plan still fails.
    Shrink {
        #[command(flatten)]
        source: Source,
        #[command(flatten)]
        change: Change,
    },
    /// Runs schedules of the control plane alone, over a model log: much faster, no Raft.
    A1(a1::A1),
    /// Runs seeds with each planted bug until one fails that passes without it; exit 1 when a bug is not found. Needs a build with `--features plant`.
    Selftest {
        /// Only these plants, separated by commas; all that the simulation is meant to find unless given.
        #[arg(long, value_delimiter = ',')]
        plants: Vec<String>,
        /// Most seeds for one plant, of whole servers.
        #[arg(long, default_value_t = 1_000)]
        seeds: u64,
        /// Most schedules of the control plane for one plant.
        #[arg(long, default_value_t = 1_000)]
        schedules: u64,
        /// Seeds of whole servers that run at a time.
        #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        jobs: u8,
    },
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Fails only if nobody reads the terminal; the exit code still tells.
            error.print().ok();
            return exit_of(&error);
        }
    };
    let done = match arguments.command {
        Verb::Run { source, change, trace, log, json } => {
            run_one(&source.with(change), trace.as_deref(), log, json)
        }
        Verb::Plan { source, change, save } => plan(&source.with(change), save.as_deref()),
        Verb::Determinism { source, change } => determinism(&source.with(change)),
        Verb::Many { from, to, change, jobs, fail_fast, json } => {
            many::run(from..to, &change.into_override(), jobs, fail_fast, json.as_deref())
        }
        Verb::Shrink { source, change } => shrink::run(source.with(change)),
        Verb::A1(arguments) => a1::run(&arguments),
        Verb::Selftest { plants, seeds, schedules, jobs } => {
            selftest::run(&plants, seeds, schedules, jobs)
        }
    };
    done.unwrap_or_else(|error| {
        println!("error: {error:#}");
        ExitCode::from(CRASHED)
    })
}

/// How the program ends that was asked for help, or for what it does not know.
fn exit_of(error: &clap::Error) -> ExitCode {
    if error.use_stderr() { ExitCode::from(BAD_ARGUMENTS) } else { ExitCode::SUCCESS }
}

fn exit(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn plan(case: &Case, save: Option<&Path>) -> anyhow::Result<ExitCode> {
    let plan = case.plan()?;
    println!("{plan}");
    if let Some(path) = save {
        plan.save(path)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn run_one(
    case: &Case,
    trace_file: Option<&Path>,
    log: Option<String>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    ground::task::install_panic_hook();
    #[cfg(feature = "plant")]
    ground::plant::select()?;
    if let Some(filter) = log {
        let filter = tracing_subscriber::EnvFilter::try_new(&filter)
            .with_context(|| format!("log filter {filter:?}"))?;
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(io::stderr)
            .without_time()
            .init();
    }
    if let Some(path) = trace_file {
        trace::write_to(path).with_context(|| format!("trace file {}", path.display()))?;
    }
    let swarm = case.plan()?;
    let (servers, plan) = (swarm.servers, swarm.to_string());
    println!("PLAN {plan}");
    let begin = Instant::now();
    let outcome = run::run(swarm)?;
    let (events, hash) = trace::finish()?;
    for failure in &outcome.failures {
        println!("FAIL {}: {failure}", case.origin);
    }
    let passed = outcome.failures.is_empty();
    println!(
        "{}: {}, {servers} servers, {} writes, {} messages, {:.1} virtual s in {:.2} s, {events} events, trace {hash:016x}",
        case.origin,
        if passed { "passed" } else { "FAILED" },
        outcome.writes,
        outcome.messages,
        outcome.virtual_time.as_secs_f64(),
        begin.elapsed().as_secs_f64(),
    );
    if !passed {
        println!("REPLAY: {}", case.replay());
        println!("KEEP: {}", case.keep());
    }
    if json {
        let counts = coverage::counts().into_iter();
        let report = Report {
            failures: outcome.failures,
            servers,
            plan,
            writes: outcome.writes as u64,
            messages: outcome.messages,
            virtual_ms: u64::try_from(outcome.virtual_time.as_millis()).unwrap_or(u64::MAX),
            events,
            trace: format!("{hash:016x}"),
            coverage: counts.map(|(what, times)| (what.to_owned(), times)).collect(),
        };
        println!("{RESULT}{}", serde_json::to_string(&report)?);
    }
    Ok(exit(passed))
}

fn determinism(case: &Case) -> anyhow::Result<ExitCode> {
    let directory = std::env::temp_dir();
    let name = |run| {
        let name = case.origin.name();
        directory.join(format!("quorate-sim-{}-{name}-{run}.trace", std::process::id()))
    };
    let (first, second) = (name(1), name(2));
    let mut passed = true;
    for path in [&first, &second] {
        let report = case.run(Some(path), None)?;
        for failure in &report.failures {
            println!("FAIL {}: {failure}", case.origin);
        }
        passed &= report.failures.is_empty();
    }
    let same = compare(&std::fs::read(&first)?, &std::fs::read(&second)?);
    if same && passed {
        std::fs::remove_file(&first)?;
        std::fs::remove_file(&second)?;
    } else {
        println!("the traces are in {} and {}", first.display(), second.display());
    }
    Ok(exit(same && passed))
}

fn compare(first: &[u8], second: &[u8]) -> bool {
    if first == second {
        println!("the traces are equal: {} bytes", first.len());
        return true;
    }
    let lines = |bytes: &[u8]| -> Vec<String> {
        String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect()
    };
    let (first, second) = (lines(first), lines(second));
    let at = first.iter().zip(&second).take_while(|(one, other)| one == other).count();
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or_else(|| "end".to_owned());
    println!("the traces differ from line {}:", at + 1);
    println!("  {}\n  {}", line(&first), line(&second));
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_arguments_have_an_exit_code_of_their_own() {
        let code = |arguments: &[&str]| {
            Arguments::try_parse_from(arguments).err().map(|error| exit_of(&error))
        };
        assert_eq!(code(&["sim", "many", "--form", "1"]), Some(ExitCode::from(254)));
        assert_eq!(code(&["sim", "plan", "--seed", "one"]), Some(ExitCode::from(254)));
        assert_eq!(code(&["sim", "--help"]), Some(ExitCode::SUCCESS));
        assert_eq!(code(&["sim", "plan", "--seed", "1"]), None);
        assert_eq!(code(&["sim", "plan"]), Some(ExitCode::from(254)));
        let two = ["sim", "plan", "--seed", "1", "--plan", "kept.toml"];
        assert_eq!(code(&two), Some(ExitCode::from(254)));
    }
}
