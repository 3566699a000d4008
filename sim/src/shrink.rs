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

/// Shrinks a run that fails.
pub(crate) fn run(case: Case) -> anyhow::Result<ExitCode> {
    let first = case.run(None, None)?;
    let failure = first.failures.first().context("this run passes: there is nothing to shrink")?;
    let wanted = kind(failure);
    println!("fails with: {failure}");
    let fails = |change: &Override| -> anyhow::Result<bool> {
        let report = Case { change: change.clone(), ..case.clone() }.run(None, None)?;
        let same = report.failures.first().is_some_and(|failure| kind(failure) == wanted);
        println!("  {} {}", if same { "fails " } else { "passes" }, change.arguments().join(" "));
        Ok(same)
    };
    let plan = Case { change: Override::default(), ..case.clone() }.plan()?;
    let smallest = shrink(&plan, case.change.clone(), fails)?;
    let case = Case { change: smallest, ..case };
    println!("PLAN {}", case.plan()?);
    println!("REPLAY: {}", case.replay());
    println!("KEEP: {}", case.keep());
    Ok(ExitCode::FAILURE)
}

fn shrink(
    plan: &Swarm,
    mut change: Override,
    fails: impl Fn(&Override) -> anyhow::Result<bool>,
) -> anyhow::Result<Override> {
    for class in plan.clone().changed(&change).classes {
        let mut less = change.clone();
        less.without.push(class);
        if fails(&less)? {
            change = less;
        }
    }
    let (mut passes_ms, mut fails_ms) = (0, plan.clone().changed(&change).safety_ms);
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
    use crate::class::Class;

    #[test]
    fn unneeded_troubles_are_switched_off_and_the_time_is_cut() {
        let fits =
            |plan: &Swarm| plan.has(Class::Kill) && plan.has(Class::Wipe) && plan.safety_ms > 9_000;
        let whole = (0..1_000).map(Swarm::draw).find(fits).unwrap();
        let fails = |change: &Override| {
            let plan = whole.clone().changed(change);
            Ok(plan.has(Class::Wipe) && plan.safety_ms >= 3_000)
        };
        let change = shrink(&whole, Override::default(), fails).unwrap();
        let smallest = whole.clone().changed(&change);
        assert_eq!(smallest.classes.into_iter().collect::<Vec<_>>(), [Class::Wipe]);
        assert!((3_000..3_300).contains(&smallest.safety_ms), "{}", smallest.safety_ms);
    }

    #[test]
    fn failures_are_told_apart_by_their_numbers() {
        assert_eq!(kind("I8: s0 has digest 1"), "I8:");
        assert_ne!(kind("s0 does not start: x"), kind("s0 ended itself: y"));
    }
}
