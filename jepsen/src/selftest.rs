//! Testing the test: servers with deliberate bugs must turn red.
//!
//! A harness that is always green is worth nothing, and so is one that is always red: first the same binary
//! runs without a bug and must not fail, once under each workload and set of faults that a bug is hunted
//! with, then once per planted bug until the checkers catch it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::{
    checker::Verdict,
    fault::FaultClass,
    report::{print_line, render},
    run::run,
    store::TestRecord,
    workload::WorkloadKind,
};

/// What shows a planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hunt {
    /// The bug's number.
    number: &'static str,
    /// Its other name.
    word: &'static str,
    /// What the clients do.
    pub(crate) workload: WorkloadKind,
    /// The classes of faults.
    pub(crate) nemesis: &'static [FaultClass],
    /// How long clients and faults run.
    pub(crate) time_limit: Duration,
}

/// What a short run on real processes is known to catch, and with what; who hunts the others stands in jepsen/PLANTED.md.
const KNOWN: [Hunt; 4] = [
    Hunt {
        number: "M4",
        word: "stale-read",
        workload: WorkloadKind::Register,
        nemesis: &[FaultClass::Partition],
        time_limit: Duration::from_secs(20),
    },
    Hunt {
        number: "M3",
        word: "ack-before-commit",
        workload: WorkloadKind::Register,
        nemesis: &[FaultClass::Partition],
        time_limit: Duration::from_secs(20),
    },
    Hunt {
        number: "M21",
        word: "late-registration",
        workload: WorkloadKind::Watch,
        nemesis: &[],
        time_limit: Duration::from_secs(30),
    },
    Hunt {
        number: "M6",
        word: "no-deduplication",
        workload: WorkloadKind::Watch,
        nemesis: &[FaultClass::Kill, FaultClass::Pause],
        time_limit: Duration::from_secs(30),
    },
];

/// How a bug is hunted that no short run is known to catch.
const UNKNOWN: Hunt = Hunt {
    number: "",
    word: "",
    workload: WorkloadKind::Register,
    nemesis: &[FaultClass::Kill, FaultClass::Pause, FaultClass::Partition],
    time_limit: Duration::from_secs(30),
};

/// The bugs that a selftest hunts unless it is told which.
pub(crate) fn plants() -> Vec<String> {
    KNOWN.iter().map(|hunt| hunt.word.to_owned()).collect()
}

/// How the bug of this name is hunted.
pub(crate) fn hunt(plant: &str) -> Hunt {
    let named = |hunt: &&Hunt| hunt.number == plant || hunt.word == plant;
    KNOWN.iter().find(named).copied().unwrap_or(UNKNOWN)
}

/// Runs every plant, and before it a control without a bug unless one like it has passed; the worst verdict: `True` if all were caught, `False` if
/// one was not, `Unknown` if a control failed: what a short run cannot tell is no objection.
pub(crate) fn selftest(
    hunts: &[TestRecord],
    tries: u64,
    store: &Path,
    check_time_max: Duration,
) -> Result<Verdict> {
    let mut controlled: Vec<&TestRecord> = Vec::new();
    for hunt in hunts {
        if controlled.iter().any(|other| are_alike(other, hunt)) {
            continue;
        }
        if !is_clean(hunt, store, check_time_max)? {
            return Ok(Verdict::Unknown);
        }
        controlled.push(hunt);
    }
    let mut verdict = Verdict::True;
    for hunt in hunts {
        if !catch(hunt, tries, store, check_time_max)? {
            verdict = Verdict::False;
        }
    }
    Ok(verdict)
}

/// Whether two runs differ in the bug alone.
fn are_alike(one: &TestRecord, other: &TestRecord) -> bool {
    one.workload == other.workload
        && one.nemesis == other.nemesis
        && one.time_limit_ms == other.time_limit_ms
}

/// Whether the run passes without its bug.
fn is_clean(hunt: &TestRecord, store: &Path, check_time_max: Duration) -> Result<bool> {
    let control = run(&TestRecord { plant: None, ..hunt.clone() }, store, check_time_max)?;
    let (results, directory) = (&control.results, &control.directory);
    print_line(&format!(
        "control, {}: {:?} ({})",
        described(hunt),
        results.valid,
        directory.display()
    ));
    if results.valid != Verdict::True {
        print_line(&render(results, directory));
        print_line(
            "the run does not pass without a planted bug: nothing can be learned from the plants",
        );
    }
    Ok(results.valid == Verdict::True)
}

/// The workload and the faults, for people.
fn described(hunt: &TestRecord) -> String {
    let classes: Vec<&str> = hunt.nemesis.iter().map(|class| class.name()).collect();
    let classes = if classes.is_empty() { "no faults".to_owned() } else { classes.join(", ") };
    format!("{} with {classes}", hunt.workload)
}

/// Runs one plant with rising seeds until it is caught: by the checker of the workload, or by the crash checker when a server finds out itself.
fn catch(hunt: &TestRecord, tries: u64, store: &Path, check_time_max: Duration) -> Result<bool> {
    let begin = std::time::Instant::now();
    let plant = hunt.plant.as_deref().unwrap_or_default();
    for attempt in 1..=tries {
        let record = TestRecord { seed: hunt.seed.wrapping_add(attempt), ..hunt.clone() };
        let finished = run(&record, store, check_time_max)?;
        let verdicts = [
            ("workload", finished.results.workload.valid),
            ("crash", finished.results.crash.valid),
        ];
        let caught = verdicts.into_iter().find(|(_, verdict)| *verdict == Verdict::False);
        if let Some((checker, _)) = caught {
            print_line(&format!(
                "{plant}, {}: caught by {checker} at try {attempt}, seed {}, after {} s ({})",
                described(hunt),
                record.seed,
                begin.elapsed().as_secs(),
                finished.directory.display()
            ));
            return Ok(true);
        }
        print_line(&format!("{plant}: not caught at try {attempt}, seed {}", record.seed));
    }
    print_line(&format!(
        "{plant}: NOT CAUGHT in {tries} tries; was the server built with `--features plant`?"
    ));
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bug_is_hunted_with_what_shows_it_under_either_name() {
        assert_eq!(hunt("M21"), hunt("late-registration"));
        assert_eq!(hunt("M21").workload, WorkloadKind::Watch);
        assert_eq!(hunt("stale-read").nemesis, [FaultClass::Partition]);
        assert_eq!(hunt("M5"), UNKNOWN);
        assert_eq!(plants().len(), KNOWN.len());
    }
}
