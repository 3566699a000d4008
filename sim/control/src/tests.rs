//! The control plane under many seeds: `cargo test -p control`.
//!
//! A few seeds here; `.ci/run` runs many with `sim control`, the program for long runs and for looking at one seed.
//! `CONTROL_SEEDS=5000 cargo test -p control` runs more here, too.

use super::*;

/// Seeds of the test; fixed, so that it gives the same each time.
const SEEDS: u64 = 30;
/// From so many seeds on, or with some more, everything must have happened.
const COVERAGE_SEEDS: u64 = 150;
/// How many times as many at most, until everything has happened.
const LONGER_MAX: u64 = 4;

/// A planted bug is the whole process's: one test at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
    TURN.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn seeds() -> u64 {
    std::env::var("CONTROL_SEEDS").ok().and_then(|text| text.parse().ok()).unwrap_or(SEEDS)
}

/// `CONTROL_SEED=17 cargo test -p control one_seed -- --nocapture` makes a seed small and prints its trace.
#[test]
fn one_seed_is_made_small() {
    let Some(seed) = std::env::var("CONTROL_SEED").ok().and_then(|text| text.parse().ok()) else {
        return;
    };
    let Some((steps, outcome)) = shrink(seed) else {
        eprintln!("seed {seed} passes");
        return;
    };
    let traced = run(seed, &steps, true);
    eprintln!("{}", traced.trace.join("\n"));
    eprintln!("{:?}\nREPLAY: sim control --seed {seed} --steps {steps}", outcome.failures);
}

/// Each planted bug, with the number of seeds until it is seen: `CONTROL_PLANTS=3000 cargo test -p control --features plant planted -- --nocapture`.
#[cfg(feature = "plant")]
#[test]
fn every_planted_bug_is_seen() {
    let _alone = alone();
    let most = std::env::var("CONTROL_PLANTS").ok().and_then(|text| text.parse().ok());
    let mut unseen = Vec::new();
    for plant in fsm::plant::Plant::PURE {
        assert!(fsm::plant::select(plant.name()), "{} can be asked for", plant.name());
        let failing = (0..most.unwrap_or(400)).find_map(|seed| {
            let outcome = run(seed, &Steps::default(), false);
            outcome.failures.first().map(|failure| (seed, failure.clone()))
        });
        match failing {
            Some((seed, failure)) => eprintln!("{:<24} seed {seed:>5}: {failure}", plant.name()),
            None => unseen.push(plant.name()),
        }
    }
    fsm::plant::select("");
    assert_eq!(unseen, [] as [&str; 0], "these were not seen");
}

#[test]
fn nothing_is_broken_under_many_schedules() {
    let _alone = alone();
    let mut coverage = Coverage::default();
    let mut failed = Vec::new();
    let from = std::env::var("CONTROL_FROM").ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    let (count, all_happens) = (seeds(), seeds() >= COVERAGE_SEEDS);
    for seed in from..from + count * LONGER_MAX {
        // What is rare may need some more.
        if seed >= from + count && (!all_happens || coverage.missing().is_empty()) {
            break;
        }
        let outcome = run(seed, &Steps::default(), false);
        coverage.add(&outcome.coverage);
        if let Some(failure) = outcome.failures.first() {
            eprintln!("seed {seed}: {failure}\nREPLAY: sim control --seed {seed}");
            failed.push(seed);
        }
    }
    for event in Event::ALL {
        eprintln!("{:>8}  {}", coverage.of(*event), event.text());
    }
    assert_eq!(failed, [] as [u64; 0]);
    if all_happens {
        let missing: Vec<_> = coverage.missing().iter().map(|event| event.text()).collect();
        assert_eq!(
            missing,
            [] as [&str; 0],
            "these never happened: the run tests less than it says"
        );
    }
}

/// P7.
#[test]
fn the_same_seed_gives_the_same_run() {
    let _alone = alone();
    for seed in 0..3 {
        let (first, second) =
            (run(seed, &Steps::default(), true), run(seed, &Steps::default(), true));
        assert_eq!(first.trace, second.trace);
        assert_eq!(first.digest, second.digest);
    }
}

#[test]
fn steps_are_written_and_read() {
    let steps: Steps = "0-3,7,9-10".parse().expect("it is well formed");
    assert_eq!(steps.iter().collect::<Vec<_>>(), [0, 1, 2, 3, 7, 9, 10]);
    assert_eq!(steps.to_string(), "0-3,7,9-10");
    assert!("3-x".parse::<Steps>().is_err());
}
