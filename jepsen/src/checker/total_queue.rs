//! Does everything that goes into a queue come out?
//!
//! Elements are counted: what was acknowledged and never came out is *lost*, what came out and nobody put in,
//! or not yet, is *unexpected*, what came out more often than it was put in is *duplicated*, what came out although its
//! `enqueue` was not acknowledged is *recovered*. The first two are violations; a queue that delivers at
//! least once may duplicate.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::{Pair, pairs};
use crate::history::{Function, Kind, Op};

#[derive(Default)]
struct Element<'a> {
    attempts: Vec<Pair<'a>>,
    out: Vec<&'a Op>,
}

/// Judges a history of `enqueue`, `dequeue` and `drain`.
pub(crate) fn check(history: &[Op], duplicates_allowed: bool) -> Result<Judgement> {
    let started = Instant::now();
    let pairs = pairs(history)?;
    let mut elements: BTreeMap<String, Element<'_>> = BTreeMap::new();
    for pair in &pairs {
        file(&mut elements, pair)?;
    }
    let mut judgement = Judgement::new("total-queue", pairs.len());
    let mut counts: BTreeMap<&'static str, usize> = BTreeMap::new();
    for (name, element) in &elements {
        judge(name, element, duplicates_allowed, &mut counts, &mut judgement);
    }
    let count = |name: &str| counts.get(name).copied().unwrap_or(0);
    judgement.summary = format!(
        "{} elements, {} acknowledged, {} out, {} lost, {} unexpected, {} duplicated, {} recovered",
        elements.len(),
        count("acknowledged"),
        count("out"),
        count("lost"),
        count("unexpected"),
        count("duplicated"),
        count("recovered")
    );
    judgement.details = json!(counts);
    if count("out") == 0 && judgement.valid == Verdict::True {
        judgement.lacks("nothing ever came out");
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

fn file<'a>(elements: &mut BTreeMap<String, Element<'a>>, pair: &Pair<'a>) -> Result<()> {
    let start = pair.start;
    let mut element = |value: &Value, op: &'a Op| {
        elements.entry(value.to_string()).or_default().out.push(op);
    };
    if start.f == Function::Enqueue {
        elements.entry(start.value.to_string()).or_default().attempts.push(*pair);
    } else if start.f == Function::Dequeue {
        // Nil came out of an empty queue.
        if let Some(answer) = pair.answer().filter(|answer| !answer.value.is_null()) {
            element(&answer.value, answer);
        }
    } else if start.f == Function::Drain {
        // A drain that broke off may still have taken out what it shows; one that shows nil found nothing.
        let tells =
            |end: &&Op| end.value.is_array() || (end.kind == Kind::Ok && !end.value.is_null());
        if let Some(end) = pair.end.filter(tells) {
            let shown = end
                .value
                .as_array()
                .with_context(|| format!("entry {}: a drain's value is no list", end.index))?;
            for value in shown {
                element(value, end);
            }
        }
    } else {
        bail!("entry {}: a queue cannot {}", start.index, start.f.keyword());
    }
    Ok(())
}

fn judge(
    name: &str,
    element: &Element<'_>,
    duplicates_allowed: bool,
    counts: &mut BTreeMap<&'static str, usize>,
    judgement: &mut Judgement,
) {
    let mut count = |name, amount| *counts.entry(name).or_default() += amount;
    let possible = element.attempts.iter().filter(|pair| !pair.failed()).count();
    let acknowledged = element.attempts.iter().filter(|pair| pair.answer().is_some()).count();
    let out = element.out.len();
    let put_in = element.attempts.iter().filter(|pair| !pair.failed());
    let first_in = put_in.map(|pair| pair.start.index).min().unwrap_or(u64::MAX);
    let first_out = element.out.iter().map(|op| op.index).min().unwrap_or(u64::MAX);
    count("acknowledged", acknowledged);
    count("out", out);
    let entries = || {
        let attempts = element.attempts.iter().flat_map(Pair::entries);
        attempts.chain(element.out.iter().map(|op| (*op).clone())).collect::<Vec<Op>>()
    };
    if out < acknowledged {
        count("lost", acknowledged - out);
        let title = format!("{name} was acknowledged and never came out");
        judgement.violated(title, entries());
    } else if possible == 0 && out > 0 {
        count("unexpected", out);
        judgement.violated(format!("{name} came out and was not put in"), entries());
    } else if first_out < first_in {
        count("unexpected", 1);
        judgement.violated(format!("{name} came out before anyone put it in"), entries());
    } else if out > possible {
        count("duplicated", out - possible);
        if !duplicates_allowed {
            let title = format!("{name} was put in {possible} times and came out {out} times");
            judgement.violated(title, entries());
        }
    } else {
        count("recovered", out - acknowledged);
    }
}
