//! Is the life of each job one sequence of versions?
//!
//! A linearizability check (see [`super::wgl`]) against a job as the promise describes it: a registration that
//! changes the spec, or follows a stop, makes version + 1; an equal one changes nothing; a stop makes
//! version + 1 of the same spec, unless the job is stopped already; after a purge the count begins again at 0, under a new create index. The index of the job rises
//! with every change, whatever life it is in. Jobs are independent, so each is judged alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::{Pair, key_and_value, pairs};
use super::shares::judge_each;
use super::shrink::{self, shrink};
use super::wgl::{self, Budget, Outcome};
use crate::history::{Function, Kind, Op, Process};

/// Versions a server keeps.
const VERSIONS_KEPT: usize = 6;
/// Remembered configurations of one search.
const CONFIGURATIONS_MAX: usize = 4_000_000;

/// An index of the log: exactly this one, or one above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Index {
    Exactly(u64),
    Above(u64),
}

impl Index {
    /// The index once it was seen to be this one.
    fn seen(self, seen: u64) -> Option<Self> {
        let possible = match self {
            Self::Exactly(index) => index == seen,
            Self::Above(floor) => seen > floor,
        };
        possible.then_some(Self::Exactly(seen))
    }

    fn floor(self) -> u64 {
        match self {
            Self::Exactly(index) => index,
            Self::Above(floor) => floor + 1,
        }
    }
}

/// A job that exists.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Life {
    /// Values of the versions kept, oldest first; the last one is current.
    values: Vec<u64>,
    version: u64,
    stop: bool,
    create: Index,
    modify: Index,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    life: Option<Life>,
    /// Every later change has a greater index.
    floor: u64,
}

/// What `read` showed.
#[derive(Clone, Copy, Debug)]
struct Shown {
    value: u64,
    version: u64,
    stop: bool,
    create: u64,
    modify: u64,
}

#[derive(Clone, Debug)]
enum Action {
    /// Value, demanded index, index of the answer.
    Write {
        value: u64,
        expected: Option<u64>,
        index: Option<u64>,
    },
    /// Whether it is a purge, index of the answer.
    Stop {
        purge: bool,
        index: Option<u64>,
    },
    Read(Option<Shown>),
    /// Version and value, newest first.
    Versions(Option<Vec<(u64, u64)>>),
}

impl State {
    /// The index of a change whose answer carried this one.
    fn change(&mut self, index: Option<u64>) -> Option<Index> {
        let change = match index {
            Some(index) if index > self.floor => Index::Exactly(index),
            Some(_) => return None,
            None => Index::Above(self.floor),
        };
        self.floor = change.floor();
        Some(change)
    }

    fn after(&self, action: &Action) -> Option<Self> {
        let mut next = self.clone();
        match action {
            Action::Write { value, expected, index } => next.write(*value, *expected, *index)?,
            Action::Stop { purge, index } => next.stop(*purge, *index)?,
            Action::Read(shown) => next.read(shown.as_ref())?,
            Action::Versions(shown) => {
                let real = next.life.as_ref().map(Life::versions);
                if real != *shown {
                    return None;
                }
            }
        }
        Some(next)
    }

    fn write(&mut self, value: u64, expected: Option<u64>, index: Option<u64>) -> Option<()> {
        match (expected, &mut self.life) {
            (None, _) | (Some(0), None) => {}
            (Some(0), Some(_)) | (Some(_), None) => return None,
            (Some(expected), Some(life)) => {
                life.modify = life.modify.seen(expected)?;
                self.floor = self.floor.max(expected);
            }
        }
        if let Some(life) = &mut self.life
            && !life.stop
            && life.values.last() == Some(&value)
        {
            if let Some(index) = index {
                life.modify = life.modify.seen(index)?;
                self.floor = self.floor.max(index);
            }
            return Some(());
        }
        let change = self.change(index)?;
        match &mut self.life {
            Some(life) => {
                life.stop = false;
                life.modify = change;
                life.add(value);
            }
            None => {
                self.life = Some(Life {
                    values: vec![value],
                    version: 0,
                    stop: false,
                    create: change,
                    modify: change,
                });
            }
        }
        Some(())
    }

    fn stop(&mut self, purge: bool, index: Option<u64>) -> Option<()> {
        if self.life.is_none() {
            // Nothing was there, and the answer says so by an index of 0.
            return index.is_none_or(|index| index == 0).then_some(());
        }
        let change = self.change(index)?;
        if purge {
            self.life = None;
        } else if let Some(life) = &mut self.life {
            if let (false, Some(value)) = (life.stop, life.values.last().copied()) {
                life.add(value);
            }
            life.stop = true;
            life.modify = change;
        }
        Some(())
    }

    fn read(&mut self, shown: Option<&Shown>) -> Option<()> {
        let (life, shown) = match (&mut self.life, shown) {
            (None, None) => return Some(()),
            (Some(_), None) | (None, Some(_)) => return None,
            (Some(life), Some(shown)) => (life, shown),
        };
        life.create = life.create.seen(shown.create)?;
        life.modify = life.modify.seen(shown.modify)?;
        self.floor = self.floor.max(shown.modify);
        let same = life.values.last() == Some(&shown.value)
            && life.version == shown.version
            && life.stop == shown.stop
            && shown.create <= shown.modify;
        same.then_some(())
    }
}

impl Life {
    /// The next version.
    fn add(&mut self, value: u64) {
        self.version += 1;
        self.values.push(value);
        if self.values.len() > VERSIONS_KEPT {
            self.values.remove(0);
        }
    }

    fn versions(&self) -> Vec<(u64, u64)> {
        let newest_first = self.values.iter().rev();
        (0..).zip(newest_first).map(|(back, value)| (self.version - back, *value)).collect()
    }
}

/// Judges every job of a history.
pub(crate) fn check(history: &[Op], time_max: Duration) -> Result<Judgement> {
    let started = Instant::now();
    let budget = Budget { deadline: started + time_max, configurations_max: CONFIGURATIONS_MAX };
    let pairs = pairs(history)?;
    let mut judgement = Judgement::new("job-versions", pairs.len());
    let mut keys: BTreeMap<u64, Vec<Op>> = BTreeMap::new();
    for op in history.iter().filter(|op| op.process != Process::Nemesis) {
        keys.entry(key_and_value(op)?.0).or_default().push(op.clone());
    }
    let mut failed = Vec::new();
    let judge_job = |(_, entries): &(&u64, &Vec<Op>), budget: &Budget| judge(entries, budget);
    for ((key, entries), outcome) in judge_each(&keys, &budget, judge_job)? {
        match outcome {
            Outcome::Yes => {}
            Outcome::Unknown(reason) => judgement.lacks(&format!("job j{key}: {reason}")),
            Outcome::No => {
                failed.push(*key);
                let budget = shrink::budget(CONFIGURATIONS_MAX);
                let fails = |part: &[Op]| matches!(judge(part, &budget), Ok(Outcome::No));
                let read = |op: &Op| op.f == Function::Read || op.f == Function::Versions;
                let small = shrink(entries, fails, read);
                let last = small.iter().filter(|op| op.kind == Kind::Ok).map(|op| op.index).max();
                let title = format!(
                    "job j{key}: no order of these operations explains entry {}",
                    last.unwrap_or(0)
                );
                judgement.violated(title, small);
            }
        }
    }
    let text = format!("{} jobs, {} violated", keys.len(), failed.len());
    judgement.summary =
        if judgement.summary.is_empty() { text } else { format!("{text}; {}", judgement.summary) };
    judgement.details = json!({"jobs": keys.len(), "failed": failed});
    if keys.is_empty() && judgement.valid == Verdict::True {
        judgement.lacks("there were no operations");
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

/// Judges the entries of one job.
fn judge(entries: &[Op], budget: &Budget) -> Result<Outcome> {
    let mut calls: Vec<(Action, u64, Option<u64>)> = Vec::new();
    for pair in pairs(entries)?.iter().filter(|pair| !pair.failed()) {
        if let Some(action) = action(pair)? {
            calls.push((action, pair.start.index, pair.answer().map(|answer| answer.index)));
        }
    }
    let events = wgl::events(calls.iter().map(|(_, invoked, returned)| (*invoked, *returned)));
    let start = State { life: None, floor: 0 };
    let step = |call: usize, state: &State| state.after(&calls[call].0);
    let observes = |call: usize| matches!(calls[call].0, Action::Read(_) | Action::Versions(_));
    Ok(wgl::solve(&events, calls.len(), start, budget, step, observes, |_| None))
}

/// What an operation did; nothing for a read without an answer.
fn action(pair: &Pair<'_>) -> Result<Option<Action>> {
    let (start, answer) = (pair.start, pair.answer());
    let index = answer.and_then(|answer| answer.version);
    let (_, value) = key_and_value(start)?;
    let action = if start.f == Function::Write || start.f == Function::Cas {
        let bad = || format!("entry {}: {value} is not a value", start.index);
        let value = value.as_u64().with_context(bad)?;
        Action::Write { value, expected: start.expected, index }
    } else if start.f == Function::Stop || start.f == Function::Purge {
        Action::Stop { purge: start.f == Function::Purge, index }
    } else if let Some(answer) = answer {
        let bad = || format!("entry {}: not what a job shows", answer.index);
        let (_, value) = key_and_value(answer)?;
        if start.f == Function::Read {
            Action::Read(shown(value).with_context(bad)?)
        } else if start.f == Function::Versions {
            Action::Versions(versions(value).with_context(bad)?)
        } else {
            bail!("entry {}: a job cannot {}", start.index, start.f.keyword())
        }
    } else {
        return Ok(None);
    };
    Ok(Some(action))
}

#[expect(
    clippy::option_option,
    reason = "the outer one: can it be read; the inner: is there a job"
)]
fn shown(value: &Value) -> Option<Option<Shown>> {
    if value.is_null() {
        return Some(None);
    }
    let number = |name: &str| value.get(name)?.as_u64();
    Some(Some(Shown {
        value: number("value")?,
        version: number("version")?,
        stop: value.get("stop")?.as_bool()?,
        create: number("create")?,
        modify: number("modify")?,
    }))
}

#[expect(
    clippy::option_option,
    reason = "the outer one: can it be read; the inner: is there a job"
)]
fn versions(value: &Value) -> Option<Option<Vec<(u64, u64)>>> {
    if value.is_null() {
        return Some(None);
    }
    let pair = |row: &Value| Some((row.get(0)?.as_u64()?, row.get(1)?.as_u64()?));
    Some(Some(value.as_array()?.iter().map(pair).collect::<Option<_>>()?))
}
