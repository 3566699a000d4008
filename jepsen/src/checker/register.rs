//! Does a history of reads, writes and compare-and-sets fit one register, whatever its values are?
//!
//! Owns registers whose values are neither unique nor versioned, so that only the general search of [`super::wgl`] applies: those of other
//! programs' histories ([`super::foreign`]) and the switches of our own ([`super::capacity`]). Entries have the bare value, a compare-and-set
//! `[old new]`.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::pairs::{Pair, pairs};
use super::shrink::{self, shrink};
use super::visible::without_invisible;
use super::wgl::{self, Budget, Outcome};
use crate::history::{Function, Op};

/// Remembered configurations of one search.
pub(crate) const CONFIGURATIONS_MAX: usize = 16_000_000;

/// A register.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Register<'a> {
    /// What it holds before the first entry.
    pub(crate) start: &'a Value,
    /// Whether it knows compare-and-set.
    pub(crate) cas: bool,
}

/// A step; values are numbered, 0 = the one at the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Action {
    Read(usize),
    Write(usize),
    Cas(usize, usize),
}

impl Action {
    /// The value that it leaves, if it is not a read.
    fn written(self) -> Option<usize> {
        match self {
            Self::Read(_) => None,
            Self::Write(new) | Self::Cas(_, new) => Some(new),
        }
    }

    /// The value that it must find, if it must find one.
    fn demanded(self) -> Option<usize> {
        match self {
            Self::Write(_) => None,
            Self::Read(value) | Self::Cas(value, _) => Some(value),
        }
    }
}

/// A step, and the entries of its start and of its answer.
type Call = (Action, u64, Option<u64>);

impl Register<'_> {
    /// Whether some order of the operations explains every answer.
    pub(crate) fn judge(&self, entries: &[Op], budget: &Budget) -> Result<Outcome> {
        let calls = without_invisible(
            &self.calls(entries)?,
            |(_, _, returned)| returned.is_some(),
            |(action, _, _)| action.written(),
            |(action, _, _)| action.demanded(),
        );
        if shows_what_nobody_wrote(&calls) {
            return Ok(Outcome::No);
        }
        let events = wgl::events(calls.iter().map(|(_, invoked, returned)| (*invoked, *returned)));
        let step = |call: usize, state: &usize| match calls[call].0 {
            Action::Read(value) => (*state == value).then_some(value),
            Action::Write(value) => Some(value),
            Action::Cas(old, new) => (*state == old).then_some(new),
        };
        let observes = |call: usize| matches!(calls[call].0, Action::Read(_));
        let twins = twins(&calls);
        Ok(wgl::solve(&events, calls.len(), 0, budget, step, observes, |call| twins[call]))
    }

    /// A small part of entries that no order explains, which none explains either.
    pub(crate) fn reduce(&self, entries: &[Op]) -> Vec<Op> {
        let budget = shrink::budget(CONFIGURATIONS_MAX);
        let fails = |part: &[Op]| matches!(self.judge(part, &budget), Ok(Outcome::No));
        shrink(entries, fails, |op| op.f == Function::Read)
    }

    fn calls(&self, entries: &[Op]) -> Result<Vec<Call>> {
        let mut numbers: BTreeMap<String, usize> = BTreeMap::from([(self.start.to_string(), 0)]);
        let mut number = |value: &Value| {
            let next = numbers.len();
            *numbers.entry(value.to_string()).or_insert(next)
        };
        let mut calls = Vec::new();
        for pair in pairs(entries)?.iter().filter(|pair| !pair.failed()) {
            let Some(action) = self.action(pair, &mut number)? else { continue };
            calls.push((action, pair.start.index, pair.answer().map(|answer| answer.index)));
        }
        Ok(calls)
    }

    fn action(
        &self,
        pair: &Pair<'_>,
        number: &mut impl FnMut(&Value) -> usize,
    ) -> Result<Option<Action>> {
        let start = pair.start;
        Ok(match (start.f, pair.answer()) {
            (Function::Read, Some(answer)) => Some(Action::Read(number(&answer.value))),
            (Function::Read, None) => None,
            (Function::Write, _) => Some(Action::Write(number(&start.value))),
            (Function::Cas, _) if self.cas => {
                let Some([old, new]) = start.value.as_array().map(Vec::as_slice) else {
                    bail!("entry {}: a cas has [old new]", start.index)
                };
                Some(Action::Cas(number(old), number(new)))
            }
            (f, _) => {
                return Err(anyhow!("this model has no {}", f.keyword()))
                    .with_context(|| format!("entry {}", start.index));
            }
        })
    }
}

/// Whether an answer tells of a value that no operation can have written: that needs no search, which may take long.
fn shows_what_nobody_wrote(calls: &[Call]) -> bool {
    let written: BTreeSet<usize> =
        calls.iter().filter_map(|(action, _, _)| action.written()).chain([0]).collect();
    calls.iter().any(|(action, _, returned)| {
        returned.is_some() && action.demanded().is_some_and(|value| !written.contains(&value))
    })
}

/// For each call without an answer the last one before it that does the same.
fn twins(calls: &[Call]) -> Vec<Option<usize>> {
    let mut last: BTreeMap<Action, usize> = BTreeMap::new();
    let twin = |(call, (action, _, returned)): (usize, &Call)| match returned {
        Some(_) => None,
        None => last.insert(*action, call),
    };
    calls.iter().enumerate().map(twin).collect()
}
