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
    child::{Case, RESULT, Report},
    coverage, many, run, selftest, shrink,
    swarm::{Class, Override, Swarm},
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

/// What is changed of a seed's plan.
#[derive(Args)]
struct Change {
    /// Number of servers, 1 to 9; drawn from the seed unless given.
    #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
    servers: Option<u8>,
    /// Classes of faults that stay off, separated by commas.
    #[arg(long, value_delimiter = ',')]
    without: Vec<Class>,
    /// How long faults last, ms of virtual time; drawn from the seed unless given.
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
    /// Runs one seed; exit 1 when a promise is broken.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
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
    /// Prints what a seed is about, and does not run it.
    Plan {
        /// The seed.
        #[arg(long)]
        seed: u64,
        #[command(flatten)]
        change: Change,
    },
    /// Runs one seed twice and compares the traces byte for byte; exit 1 when they differ.
    Determinism {
        /// The seed.
        #[arg(long)]
        seed: u64,
        #[command(flatten)]
        change: Change,
    },
    /// Runs the regressions and the seeds from `from` up to, without, `to`; exit 1 when any fails, 2 when together they did not meet what they must.
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
    /// Finds the fewest classes of faults and the shortest time with which a seed still fails.
    Shrink {
        /// The seed.
        #[arg(long)]
        seed: u64,
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
        Verb::Run { seed, change, trace, log, json } => {
            run_one(&Case { seed, change: change.into_override() }, trace.as_deref(), log, json)
        }
        Verb::Plan { seed, change } => {
            println!("{}", Swarm::draw(seed, &change.into_override()));
            Ok(ExitCode::SUCCESS)
        }
        Verb::Determinism { seed, change } => {
            determinism(&Case { seed, change: change.into_override() })
        }
        Verb::Many { from, to, change, jobs, fail_fast, json } => {
            many::run(from..to, &change.into_override(), jobs, fail_fast, json.as_deref())
        }
        Verb::Shrink { seed, change } => shrink::run(Case { seed, change: change.into_override() }),
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

fn run_one(
    case: &Case,
    trace_file: Option<&Path>,
    log: Option<String>,
    json: bool,
) -> anyhow::Result<ExitCode> {
    quorate::task::install_panic_hook();
    #[cfg(feature = "plant")]
    quorate::plant::select()?;
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
    let swarm = Swarm::draw(case.seed, &case.change);
    let (servers, plan) = (swarm.servers, swarm.to_string());
    println!("PLAN {plan}");
    let begin = Instant::now();
    let outcome = run::run(swarm)?;
    let (events, hash) = trace::finish()?;
    for failure in &outcome.failures {
        println!("FAIL seed {}: {failure}", case.seed);
    }
    let passed = outcome.failures.is_empty();
    println!(
        "seed {}: {}, {servers} servers, {} writes, {} messages, {:.1} virtual s in {:.2} s, {events} events, trace {hash:016x}",
        case.seed,
        if passed { "passed" } else { "FAILED" },
        outcome.writes,
        outcome.messages,
        outcome.virtual_time.as_secs_f64(),
        begin.elapsed().as_secs_f64(),
    );
    if !passed {
        println!("REPLAY: {}", case.replay());
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
        directory.join(format!("quorate-sim-{}-{}-{run}.trace", std::process::id(), case.seed))
    };
    let (first, second) = (name(1), name(2));
    let mut passed = true;
    for path in [&first, &second] {
        let report = case.run(Some(path), None)?;
        for failure in &report.failures {
            println!("FAIL seed {}: {failure}", case.seed);
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
    }
}
