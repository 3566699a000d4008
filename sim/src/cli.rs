//! The command line.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Instant,
};

use anyhow::Context;
use bpaf::{Args, Bpaf, ParseFailure};

use crate::{
    child::{Case, Origin, RESULT, Report},
    class::Class,
    control_plane, coverage, flag, many, run, selftest, shrink,
    swarm::Override,
    trace,
};

/// Exit codes as those of `jepsen`: neither says anything about the servers.
const BAD_ARGUMENTS: u8 = 254;
const CRASHED: u8 = 255;
/// Help and errors are wrapped at this width.
const COLUMNS_MAX: usize = 100;

/// The plan to run: exactly one of the two.
#[derive(Bpaf, Debug, PartialEq)]
#[bpaf(ignore_rustdoc, custom_usage("(--seed=SEED | --plan=FILE)"))]
struct Source {
    /// A seed from which it is drawn.
    #[bpaf(long, argument::<String>("SEED"), parse(flag::value("seed")), optional)]
    seed: Option<u64>,
    /// A file that holds it, as `sim plan --save` writes one.
    #[bpaf(long, argument("FILE"))]
    plan: Option<PathBuf>,
}

impl Source {
    fn check(&self) -> Result<(), &'static str> {
        match (&self.seed, &self.plan) {
            (Some(_), None) | (None, Some(_)) => Ok(()),
            (Some(_), Some(_)) => Err("`--seed` and `--plan` cannot be used together"),
            (None, None) => Err("`--seed` or `--plan` is required"),
        }
    }

    fn with(self, change: Change) -> Case {
        let origin = match (self.plan, self.seed) {
            (Some(path), _) => Origin::File(path),
            (None, seed) => Origin::Seed(seed.expect("`check` wants one of the two")),
        };
        Case { origin, change: change.into_override() }
    }
}

/// What is changed of a plan.
#[derive(Bpaf, Debug, PartialEq)]
#[bpaf(ignore_rustdoc)]
struct Change {
    /// Number of servers, 1 to 9; as planned unless given.
    #[bpaf(long, argument::<String>("N"), parse(flag::within("servers", 1..=9)), optional)]
    servers: Option<u8>,
    /// Classes of faults that stay off, separated by commas.
    #[bpaf(long, argument::<String>("CLASSES"), parse(flag::list("without")), many, map(concat))]
    without: Vec<Class>,
    /// How long faults last, ms of virtual time; as planned unless given.
    #[bpaf(long, argument::<String>("MS"), parse(flag::value("safety-ms")), optional)]
    safety_ms: Option<u64>,
}

impl Change {
    fn into_override(self) -> Override {
        Override { servers: self.servers, without: self.without, safety_ms: self.safety_ms }
    }
}

/// Simulates whole servers under virtual time, from a seed
#[derive(Bpaf, Debug, PartialEq)]
#[bpaf(options, generate(arguments))]
enum Verb {
    /// Runs one plan; exit 1 when a promise is broken.
    #[bpaf(command)]
    Run {
        #[bpaf(external)]
        source: Source,
        #[bpaf(external)]
        change: Change,
        /// Writes the trace to this file.
        #[bpaf(long, argument("FILE"))]
        trace: Option<PathBuf>,
        /// Writes the servers' own log to the error output, filtered like `RUST_LOG`.
        #[bpaf(long, argument("FILTER"))]
        log: Option<String>,
        /// Prints the result as a line of JSON as well.
        #[bpaf(long)]
        json: bool,
    },
    /// Prints a plan, and does not run it.
    #[bpaf(command)]
    Plan {
        #[bpaf(external)]
        source: Source,
        #[bpaf(external)]
        change: Change,
        /// Writes all of it to this file, which runs the same when seeds mean something else.
        #[bpaf(long, argument("FILE"))]
        save: Option<PathBuf>,
    },
    /// Runs one plan twice and compares the traces byte for byte; exit 1 when they differ.
    #[bpaf(command)]
    Determinism {
        #[bpaf(external)]
        source: Source,
        #[bpaf(external)]
        change: Change,
    },
    /// Runs the kept plans (`sim/regressions`) and the seeds from `from` up to, without, `to`; exit 1 when any fails, 2 when together they did not meet what they must.
    #[bpaf(command)]
    Many {
        /// First seed.
        #[bpaf(long, argument::<String>("SEED"), parse(flag::value("from")), fallback(0), display_fallback)]
        from: u64,
        /// Seed after the last one.
        #[bpaf(long, argument::<String>("SEED"), parse(flag::value("to")))]
        to: u64,
        #[bpaf(external)]
        change: Change,
        /// Seeds that run at a time.
        #[bpaf(short, long, argument::<String>("N"), parse(flag::within("jobs", flag::JOBS)), fallback(2), display_fallback)]
        jobs: u8,
        /// Begins no other seed once one has failed.
        #[bpaf(long)]
        fail_fast: bool,
        /// Writes the summary to this file as JSON.
        #[bpaf(long, argument("FILE"))]
        json: Option<PathBuf>,
    },
    /// Finds the fewest classes of faults and the shortest time with which a plan still fails.
    #[bpaf(command)]
    Shrink {
        #[bpaf(external)]
        source: Source,
        #[bpaf(external)]
        change: Change,
    },
    /// Runs schedules of the control plane alone, over a model log: much faster, no Raft.
    // `a1` was its name before.
    #[bpaf(command("control"), long("a1"))]
    ControlPlane(#[bpaf(external(control_plane::control_plane))] control_plane::ControlPlane),
    /// Runs seeds with each planted bug until one fails that passes without it; exit 1 when a bug is not found. Needs a build with `--features plant`.
    #[bpaf(command)]
    Selftest {
        /// Only these plants, separated by commas; all that the simulation is meant to find unless given.
        #[bpaf(long, argument::<String>("PLANTS"), parse(flag::list("plants")), many, map(concat))]
        plants: Vec<String>,
        /// Most seeds for one plant, of whole servers.
        #[bpaf(long, argument::<String>("N"), parse(flag::value("seeds")), fallback(1_000), display_fallback)]
        seeds: u64,
        /// Most schedules of the control plane for one plant.
        #[bpaf(long, argument::<String>("N"), parse(flag::value("schedules")), fallback(1_000), display_fallback)]
        schedules: u64,
        /// Seeds of whole servers that run at a time.
        #[bpaf(short, long, argument::<String>("N"), parse(flag::within("jobs", flag::JOBS)), fallback(2), display_fallback)]
        jobs: u8,
    },
}

impl Verb {
    /// Whether its flags go together. bpaf has alternatives for this, but they hide a bad value: with
    /// `--seed x --plan FILE` it takes the second alternative and calls `--seed` unexpected.
    fn check(&self) -> Result<(), &'static str> {
        match self {
            Self::Run { source, .. }
            | Self::Plan { source, .. }
            | Self::Determinism { source, .. }
            | Self::Shrink { source, .. } => source.check(),
            Self::ControlPlane(arguments) => arguments.check(),
            Self::Many { .. } | Self::Selftest { .. } => Ok(()),
        }
    }
}

/// A flag with a list may be given more than once.
fn concat<T>(lists: Vec<Vec<T>>) -> Vec<T> {
    lists.into_iter().flatten().collect()
}

/// Reads the command line, without the program's name. `help VERB` is the same as `VERB --help`.
fn parse(mut words: Vec<OsString>) -> Result<Verb, ParseFailure> {
    if words.first().is_some_and(|word| word == "help") {
        words.remove(0);
        words.push("--help".into());
    }
    let verb = arguments().run_inner(Args::from(&words[..]).set_name("sim"))?;
    verb.check().map_err(|message| ParseFailure::Stderr(message.into()))?;
    Ok(verb)
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let verb = match parse(std::env::args_os().skip(1).collect()) {
        Ok(verb) => verb,
        Err(failure) => {
            failure.print_message(COLUMNS_MAX);
            return exit_of(&failure);
        }
    };
    let done = match verb {
        Verb::Run { source, change, trace, log, json } => {
            run_one(&source.with(change), trace.as_deref(), log, json)
        }
        Verb::Plan { source, change, save } => plan(&source.with(change), save.as_deref()),
        Verb::Determinism { source, change } => determinism(&source.with(change)),
        Verb::Many { from, to, change, jobs, fail_fast, json } => {
            many::run(from..to, &change.into_override(), jobs, fail_fast, json.as_deref())
        }
        Verb::Shrink { source, change } => shrink::run(source.with(change)),
        Verb::ControlPlane(arguments) => control_plane::run(&arguments),
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
fn exit_of(failure: &ParseFailure) -> ExitCode {
    match failure {
        ParseFailure::Stdout(..) | ParseFailure::Completion(_) => ExitCode::SUCCESS,
        ParseFailure::Stderr(_) => ExitCode::from(BAD_ARGUMENTS),
    }
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

    /// What a command line gives, or the error that it prints.
    fn parse_line(line: &str) -> Result<Verb, String> {
        let words = line.split_whitespace().map(OsString::from).collect();
        parse(words).map_err(|failure| match failure {
            ParseFailure::Stderr(_) => failure.unwrap_stderr(),
            ParseFailure::Stdout(..) | ParseFailure::Completion(_) => {
                panic!("`{line}` is a question for help")
            }
        })
    }

    fn seed(seed: u64) -> Source {
        Source { seed: Some(seed), plan: None }
    }

    fn as_planned() -> Change {
        Change { servers: None, without: Vec::new(), safety_ms: None }
    }

    #[test]
    fn good_command_lines() {
        let run = |source| Verb::Run {
            source,
            change: as_planned(),
            trace: None,
            log: None,
            json: false,
        };
        let changed = Change {
            servers: Some(9),
            without: vec![Class::Kill, Class::OneWay, Class::Pause],
            safety_ms: Some(5_000),
        };
        let many = |from, to, change, jobs, fail_fast, json: Option<&str>| {
            let json = json.map(PathBuf::from);
            Verb::Many { from, to, change, jobs, fail_fast, json }
        };
        let selftest = |plants: &[&str], seeds, schedules, jobs| {
            let plants = plants.iter().map(|plant| (*plant).to_owned()).collect();
            Verb::Selftest { plants, seeds, schedules, jobs }
        };
        let table = [
            ("run --seed 1", run(seed(1))),
            ("run --seed=1", run(seed(1))),
            ("run --plan kept.toml", run(Source { seed: None, plan: Some("kept.toml".into()) })),
            // As `Case::run` starts its process.
            (
                "run --seed 3 --servers 9 --without kill,one-way,pause --safety-ms 5000 --json --trace 3.trace",
                Verb::Run {
                    source: seed(3),
                    change: changed,
                    trace: Some("3.trace".into()),
                    log: None,
                    json: true,
                },
            ),
            (
                "plan --servers 1 --without kill --seed 2 --without=pause --save kept.toml",
                Verb::Plan {
                    source: seed(2),
                    change: Change {
                        servers: Some(1),
                        without: vec![Class::Kill, Class::Pause],
                        safety_ms: None,
                    },
                    save: Some("kept.toml".into()),
                },
            ),
            ("determinism --seed 1", Verb::Determinism { source: seed(1), change: as_planned() }),
            ("shrink --seed 1", Verb::Shrink { source: seed(1), change: as_planned() }),
            ("many --to 3", many(0, 3, as_planned(), 2, false, None)),
            (
                "many --from 1 --to 3 -j 64 --fail-fast --json all.json",
                many(1, 3, as_planned(), 64, true, Some("all.json")),
            ),
            ("many --to 3 -j4", many(0, 3, as_planned(), 4, false, None)),
            ("many --to 3 --jobs=4", many(0, 3, as_planned(), 4, false, None)),
            ("selftest", selftest(&[], 1_000, 1_000, 2)),
            (
                "selftest --plants a,b --plants c --seeds 5 --schedules 6 -j 1",
                selftest(&["a", "b", "c"], 5, 6, 1),
            ),
        ];
        for (line, verb) in table {
            assert_eq!(parse_line(line), Ok(verb), "{line}");
        }
    }

    #[test]
    fn good_command_lines_of_control() {
        let control = |seed, from, to, jobs| {
            let (steps, plant) = (None, None);
            control_plane::ControlPlane { seed, steps, from, to, jobs, plant }
        };
        let table = [
            ("control", control(None, None, None, 2)),
            ("a1", control(None, None, None, 2)),
            ("a1 --to 20", control(None, None, Some(20), 2)),
            ("control --to 20", control(None, None, Some(20), 2)),
            ("control --from 1 --to 20 -j 3", control(None, Some(1), Some(20), 3)),
            ("control --seed 7 -j 3", control(Some(7), None, None, 3)),
            (
                "control --plant x",
                control_plane::ControlPlane {
                    plant: Some("x".into()),
                    ..control(None, None, None, 2)
                },
            ),
            (
                "control --seed 7 --steps 0-17,40",
                control_plane::ControlPlane {
                    steps: "0-17,40".parse().ok(),
                    ..control(Some(7), None, None, 2)
                },
            ),
        ];
        for (line, arguments) in table {
            assert_eq!(parse_line(line), Ok(Verb::ControlPlane(arguments)), "{line}");
        }
    }

    /// An error names what is wrong.
    #[test]
    fn bad_command_lines() {
        let table = [
            ("", "expected `COMMAND ...`"),
            ("mnay", "no such command or positional: `mnay`, did you mean `many`?"),
            ("bogus", "got `bogus`"),
            ("--version", "got `--version`"),
            ("run", "`--seed` or `--plan` is required"),
            ("run --seed", "`--seed` requires an argument"),
            ("run --seed one", "`one`: --seed: invalid digit"),
            ("run --seed 18446744073709551616", "--seed: number too large"),
            ("run --seed one --plan kept.toml", "`one`: --seed: invalid digit"),
            ("run --seed 1 --plan", "`--plan` requires an argument"),
            ("run --seed 1 --plan kept.toml", "`--seed` and `--plan` cannot be used together"),
            ("run --seed 1 --seed 2", "`--seed` cannot be used multiple times"),
            ("run --seed 1 more", "`more` is not expected"),
            ("run --sed 1", "`--sed`, did you mean `--seed`?"),
            ("run --seed 1 --json=true", "`true` is not expected"),
            ("run --seed 1 --servers 0", "`0`: --servers: it must be a number from 1 to 9"),
            ("run --seed 1 --servers 10", "`10`: --servers: it must be a number from 1 to 9"),
            ("run --seed 1 --servers 256", "`256`: --servers: it must be a number from 1 to 9"),
            (
                "run --seed 1 --without kill,bogus",
                "--without: no class of faults is called \"bogus\"",
            ),
            ("run --seed 1 --without kill,", "--without: no class of faults is called \"\""),
            ("plan --seed 1 --trace x", "no such flag: `--trace`"),
            ("many", "expected `--to=SEED`"),
            ("many --form 1", "`--form`, did you mean `--from`?"),
            ("many --to 3 -j", "`-j` requires an argument"),
            ("many --to 3 -j 65", "`65`: --jobs: it must be a number from 1 to 64"),
            ("control --seed x", "`x`: --seed: invalid digit"),
            ("control --seed 7 --steps x", "`x`: --steps: steps are numbers and ranges"),
            ("control --steps 0-3 --to 3", "`--steps` needs `--seed`"),
            (
                "control --seed 7 --from 1",
                "`--seed` cannot be used together with `--from` or `--to`",
            ),
            ("control --to 1 --seed 7", "`--seed` cannot be used together with `--from` or `--to`"),
            ("control --jobs 0", "`0`: --jobs: it must be a number from 1 to 64"),
            ("selftest --seeds x", "`x`: --seeds: invalid digit"),
        ];
        for (line, part) in table {
            let error = parse_line(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }

    #[test]
    fn help_names_the_verb_control_and_not_its_old_name() {
        let help = parse(vec!["--help".into()]).expect_err("help is no verb");
        let ParseFailure::Stdout(text, _) = help else { panic!("{help:?}") };
        let text = text.to_string();
        let names =
            |verb: &str| text.lines().any(|line| line.split_whitespace().next() == Some(verb));
        assert!(names("control") && !names("a1") && !names("control-plane"), "{text}");
    }

    #[test]
    fn bad_arguments_have_an_exit_code_of_their_own() {
        let code = |line: &str| {
            let words = line.split_whitespace().map(OsString::from).collect();
            parse(words).err().map(|failure| exit_of(&failure))
        };
        for line in ["", "bogus", "many --form 1", "plan", "plan --seed one", "control --steps 1"] {
            assert_eq!(code(line), Some(ExitCode::from(254)), "{line}");
        }
        for line in ["--help", "-h", "help", "help many", "many --help", "many --to 3 -h"] {
            assert_eq!(code(line), Some(ExitCode::SUCCESS), "{line}");
        }
        assert_eq!(code("plan --seed 1"), None);
    }
}
