//! Testing the test: with each planted bug some seed must fail, and without one the same seed passes. A simulation that is always green proves nothing,
//! and neither does one that is always red.
//!
//! Hunts on the control plane first (milliseconds a schedule), then on whole servers; which bug where is in [`plants`]. What neither finds is named
//! with the command that does, so that the output tells of every plant.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

mod plants;

use std::{
    process::ExitCode,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use anyhow::Context;
use control::Steps;

use self::plants::{Finder, PLANTS, Planted, Tier};
use crate::{child::Case, control_plane};

/// Seeds without a bug, which must pass before any hunt begins.
const CLEAN_SEEDS: u64 = 20;

#[derive(Debug, PartialEq, Eq)]
struct Found {
    seed: u64,
    failure: String,
}

/// What a hunt for one bug came to.
struct Hunt {
    /// The first seed that fails with the bug and passes without it.
    found: Option<Found>,
    /// Seeds that fail without the bug, too: they tell nothing about it, and something about the program.
    broken: Vec<Found>,
}

impl Tier {
    /// What it runs, for people.
    fn text(self) -> &'static str {
        match self {
            Self::ControlPlane => "the control plane alone (`sim control`)",
            Self::Servers => "whole servers (`sim run`)",
        }
    }

    /// The first broken promise of a seed, with a bug or without.
    fn run(self, seed: u64, plant: Option<&str>) -> anyhow::Result<Option<String>> {
        let failures = match self {
            Self::ControlPlane => {
                control_plane::select(plant)?;
                control::run(seed, &Steps::default(), false).failures
            }
            Self::Servers => Case::of_seed(seed).run(None, plant)?.failures,
        };
        Ok(failures.into_iter().next())
    }

    /// Hunts these, each in so many seeds at most; prints a table. Whether each was found and no seed fails without a bug.
    fn hunt_all(self, plants: &[Planted], seeds: u64, jobs: u8) -> anyhow::Result<bool> {
        if plants.is_empty() {
            return Ok(true);
        }
        println!("On {}, up to {seeds} seeds each:", self.text());
        if let Some(found) = first(CLEAN_SEEDS, jobs, |seed| self.run(seed, None))? {
            println!("without a bug seed {} fails: {}", found.seed, found.failure);
            return Ok(false);
        }
        println!("| plant | what it is | found by seed | seconds | as |");
        println!("|---|---|---|---|---|");
        let mut all = true;
        for Planted { number, word, what, .. } in plants {
            let begin = Instant::now();
            let run = |seed: u64, plant: Option<&str>| self.run(seed, plant);
            let Hunt { found, broken } = hunt(run, number, seeds, jobs)?;
            let seconds = begin.elapsed().as_secs();
            match found {
                Some(Found { seed, failure }) => {
                    println!("| {number} {word} | {what} | {seed} | {seconds} | {failure} |");
                }
                None => {
                    all = false;
                    println!("| {number} {word} | {what} | NOT FOUND in {seeds} | {seconds} | |");
                }
            }
            for Found { seed, failure } in broken {
                all = false;
                println!("| none | without a bug seed {seed} fails, too | {seed} | | {failure} |");
            }
        }
        println!();
        Ok(all)
    }
}

/// The first of these seeds of which there is something to tell, and what.
fn first(
    seeds: u64,
    jobs: u8,
    tell: impl Fn(u64) -> anyhow::Result<Option<String>> + Sync,
) -> anyhow::Result<Option<Found>> {
    let next = AtomicU64::new(0);
    let found: Mutex<Option<Found>> = Mutex::new(None);
    let work = || -> anyhow::Result<()> {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_earlier = |other: &Found| other.seed < seed;
            if seed >= seeds || lock(&found).as_ref().is_some_and(is_earlier) {
                return Ok(());
            }
            if let Some(failure) = tell(seed)? {
                let mut found = lock(&found);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks for a seed that fails with the bug and, run once more, passes without it: any other failure is not the bug's.
fn hunt(
    run: impl Fn(u64, Option<&str>) -> anyhow::Result<Option<String>> + Sync,
    plant: &str,
    seeds: u64,
    jobs: u8,
) -> anyhow::Result<Hunt> {
    let broken: Mutex<Vec<Found>> = Mutex::default();
    let found = first(seeds, jobs, |seed| {
        let Some(failure) = run(seed, Some(plant))? else { return Ok(None) };
        // The first ones have passed before the hunt.
        let clean = if seed < CLEAN_SEEDS { None } else { run(seed, None)? };
        let Some(other) = clean else { return Ok(Some(failure)) };
        lock(&broken).push(Found { seed, failure: other });
        Ok(None)
    })?;
    Ok(Hunt { found, broken: broken.into_inner().unwrap_or_else(PoisonError::into_inner) })
}

/// Those of these names; all, when there are none.
fn chosen(only: &[String]) -> anyhow::Result<Vec<Planted>> {
    if only.is_empty() {
        return Ok(PLANTS.to_vec());
    }
    let named = |name: &String| {
        Planted::named(name).with_context(|| format!("no plant is called {name:?}"))
    };
    only.iter().map(named).collect()
}

/// Hunts each plant; prints a table for each tier, and who finds the others. One that no tier is known to find is hunted on whole servers if it was
/// asked for by name.
pub(crate) fn run(
    only: &[String],
    seeds: u64,
    schedules: u64,
    jobs: u8,
) -> anyhow::Result<ExitCode> {
    anyhow::ensure!(
        cfg!(feature = "plant"),
        "this build has no planted bugs: build with `--features plant`"
    );
    #[cfg(feature = "plant")]
    plants::check()?;
    let chosen = chosen(only)?;
    let of_tier = |tier: Tier| -> Vec<Planted> {
        let asked = !only.is_empty() && tier == Tier::Servers;
        let here = |plant: &&Planted| {
            plant.is_found_by(tier) || (asked && matches!(plant.finder, Finder::Other(_)))
        };
        chosen.iter().filter(here).copied().collect()
    };
    // A bug is planted in the whole process, so schedules of the control plane run one after the other.
    let mut all = Tier::ControlPlane.hunt_all(&of_tier(Tier::ControlPlane), schedules, 1)?;
    control_plane::select(None)?;
    all &= Tier::Servers.hunt_all(&of_tier(Tier::Servers), seeds, jobs)?;
    print_others(&chosen);
    Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Says of each that the simulation is not known to find who does.
fn print_others(chosen: &[Planted]) {
    let others = chosen.iter().filter_map(|plant| match plant.finder {
        Finder::Other(command) => Some((plant, command)),
        Finder::Simulation(_) => None,
    });
    let others: Vec<_> = others.collect();
    if others.is_empty() {
        return;
    }
    println!("Not for the simulation to find, and not hunted by it unless asked for by name:");
    println!("| plant | what it is | caught by |");
    println!("|---|---|---|");
    for (Planted { number, word, what, .. }, command) in others {
        println!("| {number} {word} | {what} | {command} |");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_seed_that_passes_without_the_bug_counts() {
        let run = |seed: u64, plant: Option<&str>| -> anyhow::Result<Option<String>> {
            let fails = seed == 25 || (plant == Some("M4") && seed >= 30);
            Ok(fails.then(|| format!("{plant:?}")))
        };
        for jobs in [1, 2] {
            let Ok(Hunt { found, broken }) = hunt(run, "M4", 100, jobs) else {
                panic!("nothing here can fail")
            };
            assert_eq!(found, Some(Found { seed: 30, failure: "Some(\"M4\")".to_owned() }));
            assert_eq!(broken, [Found { seed: 25, failure: "None".to_owned() }]);
        }
        let nothing = hunt(run, "M3", 25, 2).ok().and_then(|hunt| hunt.found);
        assert_eq!(nothing, None);
    }

    #[test]
    fn all_are_chosen_unless_some_are_named() {
        assert_eq!(chosen(&[]).map(|all| all.len()).ok(), Some(PLANTS.len()));
        let named = chosen(&["M4".to_owned(), "keep-ttl".to_owned()]).unwrap_or_default();
        let numbers: Vec<_> = named.iter().map(|plant| plant.number).collect();
        assert_eq!(numbers, ["M4", "M22"]);
        assert!(chosen(&["fire".to_owned()]).is_err());
    }
}
