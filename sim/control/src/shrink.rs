//! Making a failing schedule small: steps are cut out as long as what is left still fails.

use crate::{
    run::{Outcome, run},
    steps::Steps,
};

/// Runs that shrinking may take.
const RUNS_MAX: usize = 3_000;

/// The smallest schedule found that breaks the same rule, with its run.
pub fn shrink(seed: u64) -> Option<(Steps, Outcome)> {
    let mut steps = Steps::default();
    let mut outcome = run(seed, &steps, false);
    let rule = rule_of(outcome.failures.first()?);
    let mut runs = 0;
    let mut size = steps.len() / 2;
    while size > 0 && runs < RUNS_MAX {
        let mut from = 0;
        let mut cut = false;
        while from < steps.len() && runs < RUNS_MAX {
            let fewer = steps.without(from, size);
            let tried = run(seed, &fewer, false);
            runs += 1;
            if tried.failures.first().is_some_and(|failure| rule_of(failure) == rule) {
                (steps, outcome, cut) = (fewer, tried, true);
            } else {
                from += size;
            }
        }
        if !cut || size > 1 {
            size /= 2;
        }
    }
    Some((steps, outcome))
}

fn rule_of(failure: &str) -> String {
    failure.trim_start_matches("at the end: ").split(':').next().unwrap_or("").to_owned()
}
