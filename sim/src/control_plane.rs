//! The verb `control`: schedules of the control plane over a model log (package `control`), many at a time in this process: they share nothing.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    ops::Range,
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use bpaf::Bpaf;
use control::{Coverage, Event, Steps};

use crate::flag;

/// Seeds that failed and are printed; more say no more.
const PRINTED_MAX: usize = 20;
/// Fewer seeds than this need not have met everything.
const COVERAGE_SEEDS: u64 = 500;

/// What to run.
#[derive(Bpaf, Debug, PartialEq)]
#[bpaf(ignore_rustdoc)]
pub(crate) struct ControlPlane {
    /// One seed: made small when it fails, and its trace is printed.
    #[bpaf(long, argument::<String>("SEED"), parse(flag::value("seed")), optional)]
    pub(crate) seed: Option<u64>,
    /// Only these steps of it, such as `0-17,40`, as a failure prints them; not made smaller then.
    #[bpaf(long, argument::<String>("STEPS"), parse(flag::value("steps")), optional)]
    pub(crate) steps: Option<Steps>,
    /// First seed [default: 0].
    #[bpaf(long, argument::<String>("SEED"), parse(flag::value("from")), optional)]
    pub(crate) from: Option<u64>,
    /// Seed after the last one [default: 2000].
    #[bpaf(long, argument::<String>("SEED"), parse(flag::value("to")), optional)]
    pub(crate) to: Option<u64>,
    /// Seeds that run at a time.
    #[bpaf(short, long, argument::<String>("N"), parse(flag::within("jobs", flag::JOBS)), fallback(2), display_fallback)]
    pub(crate) jobs: u8,
    /// A bug to plant; needs a build with `--features plant`.
    #[bpaf(long, argument("PLANT"))]
    pub(crate) plant: Option<String>,
}

impl ControlPlane {
    /// Whether these flags go together.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.seed.is_some() && (self.from.is_some() || self.to.is_some()) {
            return Err("`--seed` cannot be used together with `--from` or `--to`");
        }
        if self.steps.is_some() && self.seed.is_none() {
            return Err("`--steps` needs `--seed`");
        }
        Ok(())
    }
}

/// Runs it. Exit 1: something was broken; 2: it did not meet what it must.
pub(crate) fn run(arguments: &ControlPlane) -> anyhow::Result<ExitCode> {
    select(arguments.plant.as_deref())?;
    if let Some(seed) = arguments.seed {
        return Ok(one(seed, arguments.steps.as_ref()));
    }
    let (from, to) = (arguments.from.unwrap_or(0), arguments.to.unwrap_or(2_000));
    anyhow::ensure!(from < to, "there is no seed from {from} up to {to}");
    Ok(many(from..to, arguments.jobs))
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
    println!("REPLAY: sim control --seed {seed} --steps {shrunk}");
    ExitCode::FAILURE
}

fn many(seeds: Range<u64>, jobs: u8) -> ExitCode {
    let began = Instant::now();
    let next = AtomicU64::new(seeds.start);
    let sum: Mutex<(Coverage, Vec<(u64, String)>)> = Mutex::default();
    let work = || {
        let (mut coverage, mut failed) = (Coverage::default(), Vec::new());
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds.end {
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
        for _ in 0..jobs {
            scope.spawn(work);
        }
    });
    let (coverage, mut failed) = sum.into_inner().unwrap_or_else(PoisonError::into_inner);
    failed.sort_unstable();
    for (seed, failure) in failed.iter().take(PRINTED_MAX) {
        println!("FAIL seed {seed}: {failure}\nREPLAY: sim control --seed {seed}");
    }
    for event in Event::ALL {
        println!("{:>10}  {}", coverage.of(*event), event.text());
    }
    let count = seeds.end.saturating_sub(seeds.start);
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
