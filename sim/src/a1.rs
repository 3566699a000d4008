//! The verb `a1`: schedules of the control plane over a model log (package `control`), many at a time in this process: they share nothing.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use clap::Args;
use control::{Coverage, Event, Steps};

/// Seeds that failed and are printed; more say no more.
const PRINTED_MAX: usize = 20;
/// Fewer seeds than this need not have met everything.
const COVERAGE_SEEDS: u64 = 500;

/// What to run.
#[derive(Args)]
pub(crate) struct A1 {
    /// One seed: made small when it fails, and its trace is printed.
    #[arg(long, conflicts_with_all = ["from", "to"])]
    seed: Option<u64>,
    /// Only these steps of it, such as `0-17,40`, as a failure prints them; not made smaller then.
    #[arg(long, requires = "seed")]
    steps: Option<Steps>,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Seed after the last one.
    #[arg(long, default_value_t = 2_000)]
    to: u64,
    /// Seeds that run at a time.
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// A bug to plant; needs a build with `--features plant`.
    #[arg(long)]
    plant: Option<String>,
}

/// Runs it. Exit 1: something was broken; 2: it did not meet what it must.
pub(crate) fn run(arguments: &A1) -> anyhow::Result<ExitCode> {
    select(arguments.plant.as_deref())?;
    match arguments.seed {
        Some(seed) => Ok(one(seed, arguments.steps.as_ref())),
        None => {
            let A1 { from, to, .. } = arguments;
            anyhow::ensure!(from < to, "there is no seed from {from} up to {to}");
            Ok(many(arguments))
        }
    }
}

/// Plants this bug in this process; none, if there is none.
#[cfg(feature = "plant")]
pub(crate) fn select(plant: Option<&str>) -> anyhow::Result<()> {
    let Some(plant) = plant else {
        fsm::plant::select("");
        return Ok(());
    };
    let names: Vec<_> = fsm::plant::Plant::PURE.iter().map(|plant| plant.name()).collect();
    let names = names.join(", ");
    anyhow::ensure!(
        fsm::plant::select(plant),
        "no bug {plant:?} can be planted here: it is one of {names}"
    );
    Ok(())
}

/// A build without planted bugs has none to plant.
#[cfg(not(feature = "plant"))]
pub(crate) fn select(plant: Option<&str>) -> anyhow::Result<()> {
    match plant {
        Some(plant) => {
            anyhow::bail!("no bug {plant:?} is in this build: build with `--features plant`")
        }
        None => Ok(()),
    }
}

fn one(seed: u64, steps: Option<&Steps>) -> ExitCode {
    let shrunk = match steps {
        Some(steps) => steps.clone(),
        None => control::shrink(seed).map_or_else(Steps::default, |(steps, _)| steps),
    };
    let outcome = control::run(seed, &shrunk, true);
    for line in &outcome.trace {
        println!("{line}");
    }
    println!(
        "seed {seed}, {} steps, {} entries, digest {:032x}",
        shrunk.len(),
        outcome.entries,
        outcome.digest
    );
    if outcome.failures.is_empty() {
        return ExitCode::SUCCESS;
    }
    for failure in &outcome.failures {
        println!("FAIL seed {seed}: {failure}");
    }
    println!("REPLAY: sim a1 --seed {seed} --steps {shrunk}");
    ExitCode::FAILURE
}

fn many(arguments: &A1) -> ExitCode {
    let began = Instant::now();
    let next = AtomicU64::new(arguments.from);
    let sum: Mutex<(Coverage, Vec<(u64, String)>)> = Mutex::default();
    let work = || {
        let (mut coverage, mut failed) = (Coverage::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= arguments.to {
                break;
            }
            let outcome = control::run(seed, &Steps::default(), false);
            coverage.add(&outcome.coverage);
            failed.extend(outcome.failures.into_iter().next().map(|failure| (seed, failure)));
        }
        let mut sum = sum.lock().unwrap_or_else(PoisonError::into_inner);
        sum.0.add(&coverage);
        sum.1.append(&mut failed);
    };
    std::thread::scope(|scope| {
        for _ in 0..arguments.jobs {
            scope.spawn(work);
        }
    });
    let (coverage, mut failed) = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_unstable();
    for (seed, failure) in failed.iter().take(PRINTED_MAX) {
        println!("FAIL seed {seed}: {failure}\nREPLAY: sim a1 --seed {seed}");
    }
    for event in Event::ALL {
        println!("{:>10}  {}", coverage.of(*event), event.text());
    }
    let count = arguments.to.saturating_sub(arguments.from);
    let elapsed = began.elapsed().as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let rate = count as f64 * 60.0 / elapsed;
    println!("{count} schedules, {} failed, {elapsed:.0} s, {rate:.0} per minute", failed.len());
    if !failed.is_empty() {
        return ExitCode::FAILURE;
    }
    let missing = coverage.missing();
    if count >= COVERAGE_SEEDS && !missing.is_empty() {
        for event in missing {
            println!("NEVER: {}", event.text());
        }
        return ExitCode::from(2);
    }
    ExitCode::SUCCESS
}
