//! One test again and again, with rising seeds: `test --test-count N`.
//!
//! Owns the order and the summary. A violation, or a run that proves nothing, does not end it; only a harness that crashes does. The
//! verdict is the worst of all runs, ordered as the verdicts of one run are: a violation is never hidden behind an unknown.

use anyhow::Result;

use crate::{checker::Verdict, report::note, store::TestRecord};

/// How the runs so far ended, by seed.
#[derive(Debug, Default)]
struct Tally {
    endings: Vec<(u64, Verdict)>,
}

impl Tally {
    /// One line for people; says with which seeds it was not good.
    fn summary(&self) -> String {
        let seeds = |verdict: Verdict| -> Vec<String> {
            let of = self.endings.iter().filter(|(_, ending)| *ending == verdict);
            of.map(|(seed, _)| seed.to_string()).collect()
        };
        let part = |verdict: Verdict, word: &str| match &seeds(verdict)[..] {
            [] => format!("0 {word}"),
            some => format!("{} {word} (seeds {})", some.len(), some.join(", ")),
        };
        format!(
            "{} tests: {} passed, {}, {}",
            self.endings.len(),
            seeds(Verdict::True).len(),
            part(Verdict::Unknown, "unknown"),
            part(Verdict::False, "failed")
        )
    }

    fn verdict(&self) -> Verdict {
        self.endings.iter().map(|(_, verdict)| *verdict).max().unwrap_or(Verdict::Unknown)
    }
}

/// Performs the test so many times; several are told in one line at the end, also when the harness crashes on the way.
pub(super) fn repeat(
    record: &TestRecord,
    count: u64,
    perform: &dyn Fn(&TestRecord) -> Result<Verdict>,
    tell: &dyn Fn(&str),
) -> Result<Verdict> {
    if count == 1 {
        return perform(record);
    }
    let mut tally = Tally::default();
    for number in 0..count {
        let seed = record.seed.wrapping_add(number);
        let place = format!("test {} of {count}, seed {seed}", number + 1);
        note(&format!("=== {place}"));
        match perform(&TestRecord { seed, ..record.clone() }) {
            Ok(verdict) => tally.endings.push((seed, verdict)),
            Err(error) => {
                tell(&tally.summary());
                return Err(error.context(place));
            }
        }
    }
    tell(&tally.summary());
    Ok(tally.verdict())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::cell::RefCell;

    use anyhow::bail;

    use super::*;
    use crate::{binary::SkippedRun, store::test_record};

    /// The outcome, the seeds that were run, and the lines that were told.
    fn repeated(
        seed: u64,
        count: u64,
        ending: &dyn Fn(u64) -> Result<Verdict>,
    ) -> (Result<Verdict>, Vec<u64>, Vec<String>) {
        let (seeds, lines) = (RefCell::new(Vec::new()), RefCell::new(Vec::new()));
        let record = TestRecord { seed, ..test_record() };
        let perform = |record: &TestRecord| {
            seeds.borrow_mut().push(record.seed);
            ending(record.seed)
        };
        let tell = |line: &str| lines.borrow_mut().push(line.to_owned());
        let outcome = repeat(&record, count, &perform, &tell);
        (outcome, seeds.into_inner(), lines.into_inner())
    }

    #[test]
    fn seeds_rise_and_the_worst_run_decides() {
        let ending = |seed: u64| -> Result<Verdict> {
            Ok(match seed {
                8 => Verdict::False,
                9 => Verdict::Unknown,
                _ => Verdict::True,
            })
        };
        let (outcome, seeds, lines) = repeated(7, 4, &ending);
        assert_eq!(outcome.unwrap(), Verdict::False);
        assert_eq!(seeds, [7, 8, 9, 10]);
        assert_eq!(lines, ["4 tests: 2 passed, 1 unknown (seeds 9), 1 failed (seeds 8)"]);
        let (outcome, seeds, _) = repeated(u64::MAX, 2, &|_| Ok(Verdict::True));
        assert_eq!((outcome.unwrap(), seeds), (Verdict::True, vec![u64::MAX, 0]));
        assert_eq!(repeated(9, 2, &ending).0.unwrap(), Verdict::Unknown);
    }

    #[test]
    fn one_test_has_no_summary() {
        let (outcome, seeds, lines) = repeated(7, 1, &|_| Ok(Verdict::Unknown));
        assert_eq!((outcome.unwrap(), seeds, lines), (Verdict::Unknown, vec![7], Vec::new()));
    }

    #[test]
    fn only_a_crash_of_the_harness_ends_it_early() {
        let ending = |seed: u64| -> Result<Verdict> {
            match seed {
                7 => Ok(Verdict::False),
                8 => Err(SkippedRun("no disk".to_owned()).into()),
                _ => bail!("never reached"),
            }
        };
        let (outcome, seeds, lines) = repeated(7, 4, &ending);
        let error = outcome.unwrap_err();
        assert_eq!(seeds, [7, 8]);
        assert_eq!(lines, ["1 tests: 0 passed, 0 unknown, 1 failed (seeds 7)"]);
        assert_eq!(format!("{error:#}"), "test 2 of 4, seed 8: skipped: no disk");
        // The exit code is that of the error below.
        assert!(error.downcast_ref::<SkippedRun>().is_some());
    }
}
