//! Many runs: the kept plans first, then a range of seeds, some of them twice, with progress and a
//! summary.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    collections::BTreeMap,
    fs,
    ops::Range,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::Context;
use serde::Serialize;

use crate::{
    child::{Case, Origin, Report},
    coverage,
    swarm::Override,
};

/// The plans of runs that once failed, always run first.
const REGRESSIONS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/regressions");
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
    /// The seed, or the name of the plan.
    name: String,
    failures: Vec<String>,
    plan: String,
    replay: String,
}

/// The plans in a folder, in the order of their names.
fn plans(folder: &Path) -> anyhow::Result<Vec<Case>> {
    let entries = fs::read_dir(folder).with_context(|| format!("plans {}", folder.display()))?;
    let mut paths = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<PathBuf>, _>>()?;
    paths.sort_unstable();
    let case = |path| Case { origin: Origin::File(path), change: Override::default() };
    Ok(paths.into_iter().map(case).collect())
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

/// Runs the kept plans and these seeds, or those before the first that fails.
pub(crate) fn run(
    seeds: Range<u64>,
    change: &Override,
    jobs: u8,
    fail_fast: bool,
    json: Option<&Path>,
) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(!seeds.is_empty(), "there is no seed from {} up to {}", seeds.start, seeds.end);
    let mut cases = plans(Path::new(REGRESSIONS))?;
    cases.extend(seeds.map(|seed| Case { change: change.clone(), ..Case::of_seed(seed) }));
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
            let is_twice = match case.origin {
                Origin::Seed(seed) => seed.is_multiple_of(TWICE_EVERY),
                Origin::File(_) => false,
            };
            if is_twice {
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
            println!("FAIL {}: {failure}", case.origin);
        }
        println!("REPLAY: {replay}");
        println!("KEEP: {}", case.keep());
        let (name, failures, plan) = (case.origin.name(), report.failures, report.plan);
        summary.failed.push(Failed { name, failures, plan, replay });
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
    fn every_kept_plan_is_whole_and_says_what_it_showed() {
        let cases = plans(Path::new(REGRESSIONS)).unwrap();
        assert!(!cases.is_empty());
        for case in cases {
            case.plan().unwrap();
            let Origin::File(path) = case.origin else { panic!("it is no file") };
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.starts_with("# "), "{} says nothing", path.display());
        }
    }

    /// The program that runs the cases is this test's, which knows none of the arguments: each of them fails.
    #[test]
    fn a_run_that_fails_fast_begins_nothing_after_a_failure() {
        for (fail_fast, begun) in [(true, 1), (false, 3)] {
            let sweep = Sweep::new((1..4).map(Case::of_seed).collect(), fail_fast);
            sweep.work().unwrap();
            assert_eq!(sweep.summary().failed.len(), begun);
        }
    }
}
