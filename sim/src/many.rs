//! Many seeds: regressions first, then a range, some of them twice, with progress and a summary.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    collections::BTreeMap,
    ops::Range,
    path::Path,
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use clap::Parser;
use serde::Serialize;

use crate::{
    child::{Case, Report},
    coverage,
    swarm::{Class, Override},
};

/// Seeds that once failed, always run first.
const REGRESSIONS: &str = include_str!("../regressions.txt");
/// Every so many seeds one is run twice.
const TWICE_EVERY: u64 = 100;
/// From so many seeds on they must have met everything that must happen sometimes.
const COVERAGE_SEEDS_MIN: usize = 500;
const PROGRESS: Duration = Duration::from_secs(10);

/// What all runs came to.
#[derive(Default, Serialize)]
struct Summary {
    seeds: usize,
    failed: Vec<Failed>,
    run_twice: u64,
    writes: u64,
    messages: u64,
    virtual_ms: u64,
    elapsed_ms: u64,
    seeds_per_minute: u64,
    coverage: BTreeMap<String, u64>,
    /// What none of the seeds met.
    missing: Vec<String>,
}

#[derive(Serialize)]
struct Failed {
    seed: u64,
    failures: Vec<String>,
    plan: String,
    replay: String,
}

/// A line of the regressions, read like arguments.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    seed: u64,
    #[arg(long)]
    servers: Option<u8>,
    #[arg(long, value_delimiter = ',')]
    without: Vec<Class>,
    #[arg(long)]
    safety_ms: Option<u64>,
}

/// Each line that is not a comment.
fn regressions(text: &str) -> anyhow::Result<Vec<Case>> {
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    lines
        .filter(|line| !line.is_empty())
        .map(|line| {
            let Line { seed, servers, without, safety_ms } =
                Line::try_parse_from(line.split_whitespace())
                    .with_context(|| format!("line of regressions.txt: {line:?}"))?;
            Ok(Case { seed, change: Override { servers, without, safety_ms } })
        })
        .collect()
}

struct Sweep {
    cases: Vec<Case>,
    next: AtomicUsize,
    done: AtomicUsize,
    ended: AtomicBool,
    /// No other case begins once one has failed.
    fail_fast: bool,
    summary: Mutex<Summary>,
    begin: Instant,
}

/// Runs the regressions and these seeds, or those before the first that fails.
pub(crate) fn run(
    seeds: Range<u64>,
    change: &Override,
    jobs: u8,
    fail_fast: bool,
    json: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(!seeds.is_empty(), "there is no seed from {} up to {}", seeds.start, seeds.end);
    let mut cases = regressions(REGRESSIONS)?;
    cases.extend(seeds.map(|seed| Case { seed, change: change.clone() }));
    let sweep = Sweep::new(cases, fail_fast);
    std::thread::scope(|scope| {
        scope.spawn(|| sweep.progress());
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| sweep.work())).collect();
        let ends: Vec<_> = workers.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
        // Before anything else: the scope waits for those who tell of the progress.
        sweep.ended.store(true, Ordering::Relaxed);
        ends.into_iter().try_for_each(|end| match end {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    let judge_coverage = sweep.cases.len() >= COVERAGE_SEEDS_MIN && *change == Override::default();
    let summary = sweep.sum_up();
    if let Some(path) = json {
        let text = serde_json::to_vec_pretty(&summary)?;
        std::fs::write(path, text).with_context(|| format!("summary {}", path.display()))?;
    }
    Ok(if !summary.failed.is_empty() {
        ExitCode::FAILURE
    } else if judge_coverage && !summary.missing.is_empty() {
        println!("the seeds did not meet everything they must: the result is worth nothing");
        ExitCode::from(2)
    } else {
        ExitCode::SUCCESS
    })
}

impl Sweep {
    fn new(cases: Vec<Case>, fail_fast: bool) -> Self {
        Self {
            cases,
            next: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            fail_fast,
            summary: Mutex::default(),
            begin: Instant::now(),
        }
    }

    fn summary(&self) -> MutexGuard<'_, Summary> {
        self.summary.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> anyhow::Result<()> {
        while let Some(case) = self.cases.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            let mut report = case.run(None, None)?;
            if case.seed.is_multiple_of(TWICE_EVERY) {
                let again = case.run(None, None)?;
                self.summary().run_twice += 1;
                if again.trace != report.trace {
                    let (first, second) = (&report.trace, &again.trace);
                    let what = format!("P7: two runs gave the traces {first} and {second}");
                    report.failures.push(what);
                }
            }
            self.take(case, report);
            self.done.fetch_add(1, Ordering::Relaxed);
            if self.fail_fast && !self.summary().failed.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn take(&self, case: &Case, report: Report) {
        let mut summary = self.summary();
        summary.seeds += 1;
        summary.writes += report.writes;
        summary.messages += report.messages;
        summary.virtual_ms += report.virtual_ms;
        for (what, times) in report.coverage {
            *summary.coverage.entry(what).or_default() += times;
        }
        if report.failures.is_empty() {
            return;
        }
        let replay = case.replay();
        println!("PLAN {}", report.plan);
        for failure in &report.failures {
            println!("FAIL seed {}: {failure}", case.seed);
        }
        println!("REPLAY: {replay}");
        let (seed, failures, plan) = (case.seed, report.failures, report.plan);
        summary.failed.push(Failed { seed, failures, plan, replay });
    }

    fn rate(&self, seeds: usize) -> u64 {
        let elapsed_ms = self.begin.elapsed().as_millis().max(1);
        u64::try_from(seeds as u128 * 60_000 / elapsed_ms).unwrap_or(u64::MAX)
    }

    fn progress(&self) {
        let mut told = Instant::now();
        while !self.ended.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() < PROGRESS {
                continue;
            }
            told = Instant::now();
            let done = self.done.load(Ordering::Relaxed);
            println!(
                "{done} of {} seeds, {} failed, {} seeds/min",
                self.cases.len(),
                self.summary().failed.len(),
                self.rate(done)
            );
        }
    }

    fn sum_up(&self) -> Summary {
        let mut summary = std::mem::take(&mut *self.summary());
        let elapsed_ms = self.begin.elapsed().as_millis();
        summary.elapsed_ms = u64::try_from(elapsed_ms).unwrap_or(u64::MAX);
        summary.seeds_per_minute = self.rate(summary.seeds);
        let missing = coverage::missing(&summary.coverage).into_iter();
        summary.missing = missing.map(str::to_owned).collect();
        for what in coverage::REQUIRED {
            println!("  {:>9}  {what}", summary.coverage.get(what).copied().unwrap_or(0));
        }
        println!(
            "{} seeds, {} failed, {} run twice, {:.1} virtual hours, {} writes, {} messages, {} s, {} seeds/min",
            summary.seeds,
            summary.failed.len(),
            summary.run_twice,
            Duration::from_millis(summary.virtual_ms).as_secs_f64() / 3_600.0,
            summary.writes,
            summary.messages,
            summary.elapsed_ms / 1_000,
            summary.seeds_per_minute,
        );
        for failed in &summary.failed {
            println!("  {}: {}", failed.replay, failed.failures[0]);
        }
        summary
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn regressions_are_lines_of_arguments() {
        let text = "# nothing\n7 --servers 3 --without wipe,loss # why\n\n8\n";
        let cases = regressions(text).unwrap();
        assert_eq!(cases.len(), 2);
        assert_eq!(cases[0].arguments().join(" "), "--seed 7 --servers 3 --without wipe,loss");
        assert_eq!(cases[1].change, Override::default());
        assert!(regressions("seven").is_err());
        assert!(regressions("7 --without fire").is_err());
    }

    /// The program that runs the cases is this test's, which knows none of the arguments: each of them fails.
    #[test]
    fn who_fails_fast_begins_nothing_after_a_failure() {
        for (fail_fast, begun) in [(true, 1), (false, 3)] {
            let case = |seed| Case { seed, change: Override::default() };
            let sweep = Sweep::new((1..4).map(case).collect(), fail_fast);
            sweep.work().unwrap();
            assert_eq!(sweep.summary().failed.len(), begun);
        }
    }

    #[test]
    fn the_regressions_of_this_repository_are_read() {
        assert!(!regressions(REGRESSIONS).unwrap().is_empty());
    }
}
