//! The command line: one seed in this process, or many in processes of their own, because a seed repeats only in a fresh process.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::{Parser, Subcommand};

use crate::{run, trace};

/// Seeds that once failed, with the number of servers; `many` always runs them.
const REGRESSIONS: &str = include_str!("../regressions.txt");
/// Longest real time of one seed.
const SEED_TIMEOUT: Duration = Duration::from_mins(5);

#[derive(Parser)]
#[command(about = "Simulates whole servers under virtual time, from a seed")]
struct Arguments {
    #[command(subcommand)]
    command: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Runs one seed; exit 1 when a promise is broken.
    Run {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Number of servers, 1 to 9; drawn from the seed unless given.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
        servers: Option<u8>,
        /// Writes the trace to this file.
        #[arg(long)]
        trace: Option<PathBuf>,
        /// Writes the servers' own log to the error output, filtered like `RUST_LOG`.
        #[arg(long)]
        log: Option<String>,
    },
    /// Runs one seed twice and compares the traces byte for byte; exit 1 when they differ.
    Determinism {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Number of servers.
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=9))]
        servers: u8,
    },
    /// Runs the regressions and the seeds from `from` up to, without, `to`; exit 1 when any fails.
    Many {
        /// First seed.
        #[arg(long, default_value_t = 0)]
        from: u64,
        /// Seed after the last one.
        #[arg(long)]
        to: u64,
        /// Number of servers; drawn from each seed unless given.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=9))]
        servers: Option<u8>,
        /// Seeds that run at a time.
        #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
        jobs: u8,
    },
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Verb::Run { seed, servers, trace, log } => run_one(seed, servers, trace.as_deref(), log),
        Verb::Determinism { seed, servers } => determinism(seed, servers),
        Verb::Many { from, to, servers, jobs } => many(from, to, servers, jobs),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run_one(
    seed: u64,
    servers: Option<u8>,
    trace_file: Option<&Path>,
    log: Option<String>,
) -> anyhow::Result<bool> {
    quorate::task::install_panic_hook();
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
    let servers = servers.map_or_else(|| run::servers_of(seed), usize::from);
    let begin = Instant::now();
    let outcome = run::run(seed, servers)?;
    let (events, hash) = trace::finish()?;
    for failure in &outcome.failures {
        println!("FAIL seed {seed}: {failure}");
    }
    println!(
        "seed {seed}: {}, {servers} servers, {} writes, {} messages, {:.1} virtual s in {:.2} s, {events} events, trace {hash:016x}",
        if outcome.failures.is_empty() { "passed" } else { "FAILED" },
        outcome.writes,
        outcome.messages,
        outcome.virtual_time.as_secs_f64(),
        begin.elapsed().as_secs_f64(),
    );
    Ok(outcome.failures.is_empty())
}

/// A child of this program that runs one seed.
fn child(seed: u64, servers: Option<u8>, trace_file: Option<&Path>) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["run", "--seed", &seed.to_string()]);
    if let Some(servers) = servers {
        command.args(["--servers", &servers.to_string()]);
    }
    if let Some(path) = trace_file {
        command.arg("--trace").arg(path);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Waits for a child; its output, and whether it passed.
fn finish(mut child: Child) -> io::Result<(bool, String)> {
    let deadline = Instant::now() + SEED_TIMEOUT;
    // A run prints a few lines, which fit the pipe.
    while child.try_wait()?.is_none() {
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            return Ok((false, format!("no end within {SEED_TIMEOUT:?} of real time\n")));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let output = child.wait_with_output()?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        text.push_str(&String::from_utf8_lossy(&output.stderr));
    }
    Ok((output.status.success(), text))
}

fn determinism(seed: u64, servers: u8) -> anyhow::Result<bool> {
    let directory = std::env::temp_dir();
    let name =
        |run| directory.join(format!("quorate-sim-{}-{seed}-{run}.trace", std::process::id()));
    let (first, second) = (name(1), name(2));
    let mut passed = true;
    for path in [&first, &second] {
        let (ok, text) = finish(child(seed, Some(servers), Some(path))?)?;
        print!("{text}");
        passed &= ok;
    }
    let same = compare(&std::fs::read(&first)?, &std::fs::read(&second)?);
    if same && passed {
        std::fs::remove_file(&first)?;
        std::fs::remove_file(&second)?;
    } else {
        println!("the traces are in {} and {}", first.display(), second.display());
    }
    Ok(same && passed)
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

/// Seed and servers of each line that is not a comment.
fn regressions() -> anyhow::Result<Vec<(u64, Option<u8>)>> {
    let lines = REGRESSIONS.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let mut words = line.split_whitespace();
            let seed = words.next().unwrap_or("").parse();
            let servers = words.next().map(str::parse).transpose();
            Ok((
                seed.with_context(|| format!("seed in regressions.txt: {line:?}"))?,
                servers.with_context(|| format!("servers in regressions.txt: {line:?}"))?,
            ))
        })
        .collect()
}

fn many(from: u64, to: u64, servers: Option<u8>, jobs: u8) -> anyhow::Result<bool> {
    let mut runs = regressions()?;
    runs.extend((from..to).map(|seed| (seed, servers)));
    let begin = Instant::now();
    let next = AtomicUsize::new(0);
    let failed: Mutex<Vec<String>> = Mutex::default();
    let work = || -> anyhow::Result<()> {
        while let Some((seed, servers)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (passed, text) = finish(child(*seed, *servers, None)?)?;
            if !passed {
                let option =
                    servers.map(|servers| format!(" --servers {servers}")).unwrap_or_default();
                let replay = format!("sim run --seed {seed}{option} --trace {seed}.trace");
                print!("{text}");
                println!("REPLAY: {replay}");
                failed.lock().unwrap_or_else(PoisonError::into_inner).push(replay);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let failed = failed.into_inner().unwrap_or_else(PoisonError::into_inner);
    let elapsed = begin.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = runs.len() as f64 * 60.0 / elapsed;
    println!("{} seeds, {} failed, {elapsed:.0} s, {rate:.0} seeds/min", runs.len(), failed.len());
    for replay in &failed {
        println!("  {replay}");
    }
    Ok(failed.is_empty())
}
