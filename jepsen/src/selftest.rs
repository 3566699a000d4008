//! Testing the test: servers with deliberate bugs must turn red.
//!
//! A harness that is always green is worth nothing, and so is one that is always red: first the same binary
//! runs without a bug and must not fail, then once per planted bug until the checkers catch it.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use crate::checker::Verdict;
use crate::report::{print_line, render};
use crate::run::run;
use crate::store::TestRecord;

/// What a short run on real processes is known to catch; who hunts the others stands in jepsen/PLANTED.md.
pub(crate) const PLANTS: [&str; 2] = ["stale-read", "ack-before-commit"];

/// Runs the control and every plant; the worst verdict: `True` if all were caught, `False` if one was not,
/// `Unknown` if the control was not green.
pub(crate) fn selftest(
    base: &TestRecord,
    plants: &[String],
    tries: u64,
    store: &Path,
    check_time_max: Duration,
) -> Result<Verdict> {
    let control = run(base, store, check_time_max)?;
    print_line(&format!("control: {:?} ({})", control.results.valid, control.directory.display()));
    if control.results.valid == Verdict::False {
        print_line(&render(&control.results, &control.directory));
        print_line(
            "the server fails without a planted bug: nothing can be learned from the plants",
        );
        return Ok(Verdict::Unknown);
    }
    let mut verdict = Verdict::True;
    for plant in plants {
        if !catch(base, plant, tries, store, check_time_max)? {
            verdict = Verdict::False;
        }
    }
    Ok(verdict)
}

/// Runs one plant with rising seeds until it is caught: by the checker of the workload, or by the crash checker when a server finds out itself.
fn catch(
    base: &TestRecord,
    plant: &str,
    tries: u64,
    store: &Path,
    check_time_max: Duration,
) -> Result<bool> {
    let begin = std::time::Instant::now();
    for attempt in 1..=tries {
        let record = TestRecord {
            plant: Some(plant.to_owned()),
            seed: base.seed.wrapping_add(attempt),
            ..base.clone()
        };
        let finished = run(&record, store, check_time_max)?;
        let verdicts = [
            ("workload", finished.results.workload.valid),
            ("crash", finished.results.crash.valid),
        ];
        let caught = verdicts.into_iter().find(|(_, verdict)| *verdict == Verdict::False);
        if let Some((checker, _)) = caught {
            print_line(&format!(
                "{plant}: caught by {checker} at try {attempt}, seed {}, after {} s ({})",
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
