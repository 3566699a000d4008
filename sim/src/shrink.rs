//! The smallest run that still fails: classes of faults are switched off one by one, then the time with faults is cut.
#![expect(clippy::print_stdout, reason = "this file is the program's output")]

use std::process::ExitCode;

use anyhow::Context;

use crate::{
    child::Case,
    swarm::{Override, Swarm},
};

/// Steps of cutting the time.
const CUTS_MAX: u32 = 8;

/// What kind of failure this is: as much as its number or first words say.
fn kind(failure: &str) -> String {
    let words: Vec<&str> = failure.split_whitespace().take(3).collect();
    match words.first() {
        Some(first) if first.ends_with(':') => (*first).to_owned(),
        Some(_) | None => words.join(" "),
    }
}

/// Shrinks a seed that fails.
pub(crate) fn run(case: Case) -> anyhow::Result<ExitCode> {
    let first = case.run(None, None)?;
    let failure = first.failures.first().context("this seed passes: there is nothing to shrink")?;
    let wanted = kind(failure);
    println!("fails with: {failure}");
    let fails = |change: &Override| -> anyhow::Result<bool> {
        let report = Case { seed: case.seed, change: change.clone() }.run(None, None)?;
        let same = report.failures.first().is_some_and(|failure| kind(failure) == wanted);
        println!("  {} {}", if same { "fails " } else { "passes" }, change.arguments().join(" "));
        Ok(same)
    };
    let smallest = shrink(case.seed, case.change, fails)?;
    let case = Case { seed: case.seed, change: smallest };
    println!("PLAN {}", Swarm::draw(case.seed, &case.change));
    println!("REPLAY: {}", case.replay());
    Ok(ExitCode::FAILURE)
}

fn shrink(
    seed: u64,
    mut change: Override,
    fails: impl Fn(&Override) -> anyhow::Result<bool>,
) -> anyhow::Result<Override> {
    for class in Swarm::draw(seed, &change).classes {
        let mut less = change.clone();
        less.without.push(class);
        if fails(&less)? {
            change = less;
        }
    }
    let (mut passes_ms, mut fails_ms) = (0, Swarm::draw(seed, &change).safety_ms);
    for _ in 0..CUTS_MAX {
        let middle = u64::midpoint(passes_ms, fails_ms);
        if fails_ms - passes_ms < 200 {
            break;
        }
        let shorter = Override { safety_ms: Some(middle), ..change.clone() };
        if fails(&shorter)? {
            (fails_ms, change) = (middle, shorter);
        } else {
            passes_ms = middle;
        }
    }
    Ok(change)
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;
    use crate::swarm::Class;

    #[test]
    fn what_is_not_needed_is_switched_off_and_the_time_is_cut() {
        let none = Override::default();
        let seed = (0..1_000)
            .find(|seed| {
                let plan = Swarm::draw(*seed, &none);
                plan.has(Class::Kill) && plan.has(Class::Wipe) && plan.safety_ms > 9_000
            })
            .unwrap();
        let fails = |change: &Override| {
            let plan = Swarm::draw(seed, change);
            Ok(plan.has(Class::Wipe) && plan.safety_ms >= 3_000)
        };
        let smallest = Swarm::draw(seed, &shrink(seed, none, fails).unwrap());
        assert_eq!(smallest.classes.into_iter().collect::<Vec<_>>(), [Class::Wipe]);
        assert!((3_000..3_300).contains(&smallest.safety_ms), "{}", smallest.safety_ms);
    }

    #[test]
    fn failures_are_told_apart_by_their_numbers() {
        assert_eq!(kind("I8: s0 has digest 1"), "I8:");
        assert_ne!(kind("s0 does not start: x"), kind("s0 ended itself: y"));
    }
}
