//! Testing the test: with each planted bug some seed must fail, and without one the same seeds pass. A simulation that is always green proves nothing.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::{
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use crate::{child::Case, swarm::Override};

/// Bugs that the simulation is meant to find, with what they are.
const PLANTS: [(&str, &str); 16] = [
    ("stale-read", "a consistent read is answered from the local state"),
    ("ack-before-commit", "a write is acknowledged before it is committed"),
    (
        "lease-without-margin",
        "a leader answers reads on a lease that outlives its followers' patience",
    ),
    ("hidden-retry", "a write of unknown outcome is sent again as a new request"),
    ("skip-log-sync", "appended entries are acknowledged without a sync"),
    ("skip-vote-sync", "a vote is acknowledged without a sync"),
    ("purge-before-sync", "the log is purged although neither engine nor snapshot file is durable"),
    ("index-before-rows", "the applied index is on disk before its rows"),
    ("no-deadline", "a request to a peer waits for ever"),
    ("skip-checksums", "checksums are not looked at"),
    ("torn-tail-is-fatal", "a torn last batch is treated as damage"),
    ("no-deduplication", "a request that comes twice takes effect twice"),
    ("broker-not-restored", "a new leader does not find the pending evaluations"),
    ("reused-server-id", "a server with an empty disk takes its old number"),
    ("swallow-sync-error", "a failed sync counts as done"),
    ("diverge", "one server changes one row differently from the others"),
];
/// Seeds without a bug, which must pass.
const CLEAN_SEEDS: u64 = 20;

struct Found {
    seed: u64,
    failure: String,
}

/// The first of these seeds that fails.
fn hunt(plant: Option<&str>, seeds: u64, jobs: u8) -> anyhow::Result<Option<Found>> {
    let next = AtomicU64::new(0);
    let found: Mutex<Option<Found>> = Mutex::new(None);
    let work = || -> anyhow::Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds || found.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
                return Ok(());
            }
            let report = Case { seed, change: Override::default() }.run(None, plant)?;
            if let Some(failure) = report.failures.into_iter().next() {
                let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                if found.as_ref().is_none_or(|other| seed < other.seed) {
                    *found = Some(Found { seed, failure });
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(done) => done,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })?;
    Ok(found.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(feature = "plant")]
fn is_known(name: &str) -> bool {
    fsm::plant::TABLE.iter().any(|(_, number, word)| *number == name || *word == name)
}

/// A build without planted bugs knows none.
#[cfg(not(feature = "plant"))]
fn is_known(_name: &str) -> bool {
    false
}

/// Hunts each plant; prints a table.
pub(crate) fn run(only: &[String], seeds: u64, jobs: u8) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        cfg!(feature = "plant"),
        "this build has no planted bugs: build with `--features plant`"
    );
    for name in only {
        anyhow::ensure!(is_known(name), "no plant is called {name:?}");
    }
    if let Some(found) = hunt(None, CLEAN_SEEDS, jobs)? {
        println!("without a bug seed {} fails: {}", found.seed, found.failure);
        return Ok(ExitCode::FAILURE);
    }
    println!("| plant | what it is | found by seed | seconds | as |");
    println!("|---|---|---|---|---|");
    let mut all = true;
    let what_of =
        |name: &str| PLANTS.iter().find(|(known, _)| *known == name).map(|(_, what)| *what);
    let chosen: Vec<&str> = if only.is_empty() {
        PLANTS.iter().map(|(name, _)| *name).collect()
    } else {
        only.iter().map(String::as_str).collect()
    };
    for name in chosen {
        let what = what_of(name).unwrap_or("");
        let begin = Instant::now();
        let found = hunt(Some(name), seeds, jobs)?;
        let seconds = begin.elapsed().as_secs();
        match found {
            Some(Found { seed, failure }) => {
                println!("| {name} | {what} | {seed} | {seconds} | {failure} |");
            }
            None => {
                all = false;
                println!("| {name} | {what} | NOT FOUND in {seeds} | {seconds} | |");
            }
        }
    }
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
