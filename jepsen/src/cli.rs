//! The command line: arguments, and the exit codes of Jepsen.
//!
//! 0 = no violation found, 1 = violation, 2 = unknown, 254 = bad arguments, 255 = the harness crashed.
//! Nothing but a verdict of `true` ever leads to 0.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::binary::{BadArguments, locate};
use crate::checker::Verdict;
use crate::checker::foreign::{self, Model};
use crate::edn::read_history;
use crate::nemesis::{FaultClass, Schedule};
use crate::report::{note, print_line, print_results, render_judgement};
use crate::store::TestRecord;
use crate::workload::WorkloadKind;
use crate::{guard, run, selftest};

const BAD_ARGUMENTS: u8 = 254;
const CRASHED: u8 = 255;

/// Fault injection on real Quorate servers, with own consistency checkers.
#[derive(Debug, Parser)]
#[command(name = "jepsen", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a workload under faults and judge it.
    Test(TestArguments),
    /// Judge a stored run again, or a history that another program wrote.
    Analyze(AnalyzeArguments),
    /// Run servers with deliberate bugs and expect each to be caught.
    Selftest(SelftestArguments),
    /// Kill the processes named on stdin once it closes.
    #[command(name = guard::SUBCOMMAND, hide = true)]
    Guard,
}

#[derive(Debug, Args)]
struct RunArguments {
    /// What the clients do.
    #[arg(short, long, value_enum, default_value = "register")]
    workload: WorkloadKind,
    /// Mean seconds between two changes of one fault class [default: a sixth of the time limit, 1 to 10].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    nemesis_interval: Option<Duration>,
    /// How long clients and faults run.
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = seconds)]
    time_limit: Duration,
    /// How many servers.
    #[arg(long, default_value = "3", value_parser = ["3", "5"])]
    node_count: String,
    /// Client threads, or threads per server with a trailing n.
    #[arg(long, value_name = "N or Nn", default_value = "2n", value_parser = concurrency)]
    concurrency: Concurrency,
    /// Operations per second, all clients together.
    #[arg(short, long, value_name = "HZ", default_value = "100", value_parser = rate)]
    rate: f64,
    /// Operations per key before a new key takes its place.
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ops_per_key: u64,
    /// How long a client waits for an answer.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    timeout: Duration,
    /// The seed of all random choices [default: random, printed].
    #[arg(long)]
    seed: Option<u64>,
    /// The server binary [default: `quorate` beside this one, built first under `cargo run`].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "store")]
    store: PathBuf,
    /// How long the linearizability search may take.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    check_time_limit: Duration,
}

#[derive(Debug, Args)]
struct TestArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Fault classes, separated by commas: kill, pause, partition; or none.
    #[arg(long, default_value = "kill,pause,partition", value_parser = nemeses)]
    nemesis: Nemeses,
    /// A deliberate bug; needs a server built with the feature `plant`.
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct AnalyzeArguments {
    /// The run's directory, or with --model a history of another program: .edn, .jsonl, .log, .txt.
    #[arg(default_value = "store/latest")]
    path: PathBuf,
    /// What a history of another program is judged against.
    #[arg(short, long, value_enum)]
    model: Option<Model>,
    /// How long the linearizability search may take.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    check_time_limit: Duration,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SelftestArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Fault classes, separated by commas: kill, pause, partition; or none.
    #[arg(long, default_value = "kill,pause,partition", value_parser = nemeses)]
    nemesis: Nemeses,
    /// The planted bugs to catch.
    #[arg(long, value_delimiter = ',', default_values_t = selftest::PLANTS.map(str::to_owned))]
    plants: Vec<String>,
    /// Runs per planted bug before it counts as not caught.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    tries: u64,
}

/// A list of fault classes; a type of its own, so that clap takes it as one value.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Nemeses(Vec<FaultClass>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrency {
    Total(usize),
    PerServer(usize),
}

/// Parses the command line, does what it says, and maps the outcome to an exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Fails only if nobody reads the terminal; the exit code still tells.
            error.print().ok();
            return if error.use_stderr() { BAD_ARGUMENTS.into() } else { ExitCode::SUCCESS };
        }
    };
    // A panic unwinds through the cluster, whose drop kills the servers.
    match std::panic::catch_unwind(|| perform(&cli.command)) {
        Ok(Ok(verdict)) => match verdict {
            Verdict::True => ExitCode::SUCCESS,
            Verdict::False => 1.into(),
            Verdict::Unknown => 2.into(),
        },
        Ok(Err(error)) => {
            note(&format!("error: {error:#}"));
            let bad = error.downcast_ref::<BadArguments>().is_some();
            if bad { BAD_ARGUMENTS.into() } else { CRASHED.into() }
        }
        Err(_) => CRASHED.into(),
    }
}

fn perform(action: &Action) -> Result<Verdict> {
    match action {
        Action::Test(arguments) => {
            let record = record(
                &arguments.run,
                &arguments.nemesis,
                arguments.plant.clone(),
                arguments.plant.is_some(),
            )?;
            let run = &arguments.run;
            let finished = run::run(&record, &run.store, run.check_time_limit)?;
            print_results(&finished.results, &finished.directory, arguments.json)?;
            Ok(finished.results.valid)
        }
        Action::Analyze(arguments) => analyze(arguments),
        Action::Selftest(arguments) => {
            let run = &arguments.run;
            let record = record(run, &arguments.nemesis, None, true)?;
            let verdict = selftest::selftest(
                &record,
                &arguments.plants,
                arguments.tries,
                &run.store,
                run.check_time_limit,
            )?;
            print_line(match verdict {
                Verdict::True => "selftest: every planted bug was caught",
                Verdict::False => "selftest: a planted bug was not caught",
                Verdict::Unknown => "selftest: the control run failed",
            });
            Ok(verdict)
        }
        Action::Guard => {
            guard::serve(std::io::stdin().lock())?;
            Ok(Verdict::True)
        }
    }
}

fn analyze(arguments: &AnalyzeArguments) -> Result<Verdict> {
    let path = &arguments.path;
    let bad = |text: String| Err(BadArguments(text).into());
    match arguments.model {
        Some(_) if !path.is_file() => bad(format!("{} is not a file", path.display())),
        Some(model) => {
            let history = read_history(path)?;
            let judgement = foreign::judge(&history, model, arguments.check_time_limit)?;
            print_line(&if arguments.json {
                serde_json::to_string_pretty(&judgement)?
            } else {
                render_judgement(&judgement)
            });
            Ok(judgement.valid)
        }
        None if path.is_file() => {
            bad(format!("{} is one history: say by --model what it is", path.display()))
        }
        None if !path.join("history.jsonl").is_file() => {
            bad(format!("{} holds no history.jsonl", path.display()))
        }
        None => {
            let results = run::judge(path, arguments.check_time_limit)?;
            print_results(&results, path, arguments.json)?;
            Ok(results.valid)
        }
    }
}

fn record(
    arguments: &RunArguments,
    nemesis: &Nemeses,
    plant: Option<String>,
    planted_binary: bool,
) -> Result<TestRecord> {
    let nodes: usize = arguments.node_count.parse().context("clap allows 3 and 5")?;
    let time_limit = arguments.time_limit;
    let interval =
        arguments.nemesis_interval.unwrap_or_else(|| Schedule::default_interval(time_limit));
    Ok(TestRecord {
        argv: std::env::args().collect(),
        harness_version: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: run::git_commit(),
        binary: locate(arguments.binary.as_deref(), planted_binary, &arguments.store)?,
        workload: arguments.workload.name().to_owned(),
        nemesis: nemesis.0.clone(),
        nemesis_interval_ms: milliseconds(interval),
        time_limit_ms: milliseconds(time_limit),
        nodes: (1..=nodes).map(|number| format!("n{number}")).collect(),
        concurrency: match arguments.concurrency {
            Concurrency::Total(threads) => threads,
            Concurrency::PerServer(threads) => threads * nodes,
        },
        rate: arguments.rate,
        ops_per_key: arguments.ops_per_key,
        timeout_ms: milliseconds(arguments.timeout),
        seed: match arguments.seed {
            Some(seed) => seed,
            None => {
                getrandom::u64().map_err(|error| anyhow::anyhow!("cannot draw a seed: {error}"))?
            }
        },
        plant,
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.001..=1_000_000.0).contains(&seconds) {
        return Err("must be between 0.001 and 1000000 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let possible = (0.1..=100_000.0).contains(&rate);
    possible.then_some(rate).ok_or_else(|| "must be between 0.1 and 100000".to_owned())
}

fn concurrency(text: &str) -> Result<Concurrency, String> {
    let (number, per_server) = match text.strip_suffix('n') {
        Some(number) => (number, true),
        None => (text, false),
    };
    match number.parse::<usize>() {
        Ok(threads @ 1..=1_000) if per_server => Ok(Concurrency::PerServer(threads)),
        Ok(threads @ 1..=1_000) => Ok(Concurrency::Total(threads)),
        Ok(_) | Err(_) => {
            Err("must be a number from 1 to 1000, or one with a trailing n".to_owned())
        }
    }
}

fn nemeses(text: &str) -> Result<Nemeses, String> {
    if text == "none" {
        return Ok(Nemeses(Vec::new()));
    }
    let mut classes = Vec::new();
    for name in text.split(',') {
        let class = FaultClass::from_str(name.trim(), false).map_err(|_| {
            format!("unknown fault class {name:?}; known are kill, pause, partition and none")
        })?;
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    Ok(Nemeses(classes))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn arguments_are_parsed_or_refused() {
        let parse = |line: &str| Cli::try_parse_from(line.split(' '));
        let line = "jepsen test -w register --nemesis kill,pause --time-limit 5 --node-count 5 \
                    --concurrency 3n -r 50 --seed 9";
        let Action::Test(test) = parse(line).unwrap().command else { panic!("not a test") };
        assert_eq!(test.nemesis.0, [FaultClass::Kill, FaultClass::Pause]);
        assert_eq!(test.run.concurrency, Concurrency::PerServer(3));
        assert_eq!((test.run.time_limit, test.run.seed), (Duration::from_secs(5), Some(9)));
        let Action::Test(test) = parse("jepsen test --nemesis none").unwrap().command else {
            panic!("not a test")
        };
        assert_eq!(test.nemesis.0, []);
        for bad in [
            "jepsen",
            "jepsen test --nemesis fire",
            "jepsen test --node-count 4",
            "jepsen test --concurrency n",
            "jepsen test --rate 0",
            "jepsen test --time-limit -1",
            "jepsen test -w water",
            "jepsen analyze x.edn --model list",
            "jepsen test --ops-per-key 0",
        ] {
            assert!(parse(bad).unwrap_err().use_stderr(), "{bad}");
        }
    }
}
