//! Is every evaluation that was asked for processed, once and for all?
//!
//! Judges the queue workload from the lists of evaluations of the last phase, which hold all of them: what was
//! acknowledged is there, for the right job, and has reached a status that needs no more work; nothing is
//! there that nobody asked for. During the whole run, what an answer told of is in every later read of its job (evaluations are forgotten with their
//! job, hours after its end), a status that is final stays, one index of an evaluation has one status, and no read shows an older state than one
//! that had ended before it started.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::{Pair, pairs};
use crate::{
    history::{Function, Op},
    workload::queue::ASKED_FOR,
};

/// An evaluation as one read showed it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    job: u64,
    id: String,
    trigger: String,
    status: String,
    modified: u64,
}

/// A read of evaluations.
struct Shown<'a> {
    pair: Pair<'a>,
    answer: &'a Op,
    rows: Vec<Row>,
}

impl Shown<'_> {
    fn place(&self) -> String {
        let node = self.answer.node.as_deref().unwrap_or("a server");
        format!("in the list of entry {} on {node}", self.answer.index)
    }
}

/// An evaluation in a read.
type Seen<'a> = (&'a Row, &'a Shown<'a>);

/// An evaluation that an answer told of.
struct Known<'a> {
    job: u64,
    /// The request or the read that was answered first.
    by: Pair<'a>,
    /// The entry of that answer.
    since: u64,
}

/// What was asked for one job.
#[derive(Default)]
struct Asked<'a> {
    /// Acknowledged, with the id of the evaluation.
    acknowledged: Vec<(String, Pair<'a>)>,
    /// Nobody knows.
    open: Vec<Pair<'a>>,
}

/// Judges a history of the queue workload.
pub(crate) fn check(history: &[Op]) -> Result<Judgement> {
    let started = Instant::now();
    let pairs = pairs(history)?;
    let mut asked: BTreeMap<u64, Asked<'_>> = BTreeMap::new();
    let mut shown = Vec::new();
    for pair in &pairs {
        if is_request(pair) {
            file(&mut asked, pair)?;
        } else if let Some(answer) = pair.answer() {
            shown.push(Shown { pair: *pair, answer, rows: rows(answer)? });
        }
    }
    let mut judgement = Judgement::new("evaluations", pairs.len());
    let acknowledged: usize = asked.values().map(|asked| asked.acknowledged.len()).sum();
    let open: usize = asked.values().map(|asked| asked.open.len()).sum();
    let drains: Vec<&Shown<'_>> =
        shown.iter().filter(|shown| shown.pair.start.f == Function::Drain).collect();
    let mut recovered = 0;
    for drain in &drains {
        recovered = judge_drain(&asked, drain, &mut judgement);
    }
    judge_presence(&asked, &shown, &mut judgement);
    judge_statuses(&shown, &mut judgement);
    judge_ids(&asked, &mut judgement);
    judgement.summary = format!(
        "{acknowledged} evaluations acknowledged, {open} of unknown outcome, {recovered} of them \
         found; {} reads, {} of everything",
        shown.len(),
        drains.len()
    );
    judgement.details = json!({
        "acknowledged": acknowledged,
        "open": open,
        "recovered": recovered,
        "drains": drains.len(),
    });
    if drains.is_empty() && judgement.valid == Verdict::True {
        judgement.lacks("all evaluations were never listed without a pending one");
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

/// Whether it asks for an evaluation; what does not is a read of them.
fn is_request(pair: &Pair<'_>) -> bool {
    pair.start.f == Function::Enqueue || pair.start.f == Function::Evaluate
}

fn file<'a>(asked: &mut BTreeMap<u64, Asked<'a>>, pair: &Pair<'a>) -> Result<()> {
    let job = pair.start.value.as_u64();
    let job = job.with_context(|| format!("entry {}: not a job's number", pair.start.index))?;
    let asked = asked.entry(job).or_default();
    if let Some(answer) = pair.answer() {
        let id = answer.detail.as_ref().and_then(|detail| detail["evaluation"].as_str());
        let id = id.with_context(|| format!("entry {}: no evaluation", answer.index))?;
        asked.acknowledged.push((id.to_owned(), *pair));
    } else if !pair.failed() {
        asked.open.push(*pair);
    }
    Ok(())
}

fn rows(answer: &Op) -> Result<Vec<Row>> {
    let bad = || format!("entry {}: not a list of evaluations", answer.index);
    let rows = answer.detail.as_ref().and_then(|detail| detail["evaluations"].as_array());
    let row = |row: &Value| {
        let text = |position: usize| Some(row.get(position)?.as_str()?.to_owned());
        Some(Row {
            job: row.get(0)?.as_u64()?,
            id: text(1)?,
            trigger: text(2)?,
            status: text(3)?,
            modified: row.get(4)?.as_u64()?,
        })
    };
    rows.with_context(bad)?.iter().map(|value| row(value).with_context(bad)).collect()
}

/// Compares what was asked for with a list of everything; how many of unknown outcome are there.
fn judge_drain(
    asked: &BTreeMap<u64, Asked<'_>>,
    drain: &Shown<'_>,
    judgement: &mut Judgement,
) -> usize {
    let place = drain.place();
    let by_id: BTreeMap<&str, &Row> = drain.rows.iter().map(|row| (row.id.as_str(), row)).collect();
    if by_id.len() < drain.rows.len() {
        judgement.violated(format!("an evaluation is twice {place}"), []);
    }
    for (job, asked) in asked {
        for (id, pair) in &asked.acknowledged {
            let problem = match by_id.get(id.as_str()) {
                Some(row) if row.job != *job => format!("is of job q{}", row.job),
                Some(row) if !is_settled(&row.status) => format!("is {}", row.status),
                Some(_) | None => continue,
            };
            let title =
                format!("evaluation {id} of job q{job} was acknowledged and {problem} {place}");
            judgement.violated(title, pair.entries());
        }
    }
    let mut extra: BTreeMap<u64, Vec<&Row>> = BTreeMap::new();
    for row in drain.rows.iter().filter(|row| row.trigger == ASKED_FOR) {
        let known = asked
            .get(&row.job)
            .is_some_and(|asked| asked.acknowledged.iter().any(|(id, _)| *id == row.id));
        if !known {
            extra.entry(row.job).or_default().push(row);
        }
    }
    for (job, rows) in &extra {
        let open = asked.get(job).map_or(&[][..], |asked| &asked.open);
        if rows.len() > open.len() {
            let title = format!(
                "job q{job} has {} evaluations that nobody was told of {place}; {} requests have \
                 an unknown outcome",
                rows.len(),
                open.len()
            );
            let known = asked.get(job).map_or(&[][..], |asked| &asked.acknowledged);
            let known = known.iter().flat_map(|(_, pair)| pair.entries());
            let list =
                drain.pair.entries().map(|op| only(op, |row| row.get(0) == Some(&json!(job))));
            let open = open.iter().flat_map(Pair::entries);
            judgement.violated(title, known.chain(open).chain(list));
        }
    }
    extra.values().map(Vec::len).sum()
}

/// What an answer told of is in every read of its job, and in every list of everything, that starts afterwards.
fn judge_presence(
    asked: &BTreeMap<u64, Asked<'_>>,
    shown: &[Shown<'_>],
    judgement: &mut Judgement,
) {
    let known = known(asked, shown);
    let mut of_job: BTreeMap<u64, Vec<(&str, &Known<'_>)>> = BTreeMap::new();
    for (id, one) in &known {
        of_job.entry(one.job).or_default().push((*id, one));
    }
    for read in shown {
        let here: BTreeSet<&str> = read.rows.iter().map(|row| row.id.as_str()).collect();
        let start = read.pair.start;
        // A list of everything names no job.
        let jobs = start.value.as_u64().map_or(0..=u64::MAX, |job| job..=job);
        for (id, one) in of_job.range(jobs).flat_map(|(_, known)| known) {
            if one.since > start.index || here.contains(id) {
                continue;
            }
            let told = if is_request(&one.by) {
                "was acknowledged".to_owned()
            } else {
                format!("was shown by entry {}", one.since)
            };
            let title =
                format!("evaluation {id} of job q{} {told} and is lost {}", one.job, read.place());
            judgement.violated(title, both_of(id, &one.by, &read.pair));
        }
    }
}

/// Every evaluation that an answer told of, by its id.
fn known<'a>(
    asked: &'a BTreeMap<u64, Asked<'a>>,
    shown: &'a [Shown<'a>],
) -> BTreeMap<&'a str, Known<'a>> {
    let acknowledged = asked.iter().flat_map(|(job, asked)| {
        asked.acknowledged.iter().map(move |(id, pair)| (id.as_str(), *job, *pair))
    });
    let seen = shown
        .iter()
        .flat_map(|read| read.rows.iter().map(move |row| (row.id.as_str(), row.job, read.pair)));
    let mut known: BTreeMap<&str, Known<'_>> = BTreeMap::new();
    for (id, job, by) in acknowledged.chain(seen) {
        let Some(since) = by.answer().map(|answer| answer.index) else { continue };
        let first = known.entry(id).or_insert(Known { job, by, since });
        if since < first.since {
            (first.by, first.since) = (by, since);
        }
    }
    known
}

/// Each request has an evaluation of its own.
fn judge_ids(asked: &BTreeMap<u64, Asked<'_>>, judgement: &mut Judgement) {
    let mut owners: BTreeMap<&str, &Pair<'_>> = BTreeMap::new();
    for (id, pair) in asked.values().flat_map(|asked| &asked.acknowledged) {
        if let Some(other) = owners.insert(id, pair) {
            let title = format!(
                "entries {} and {} were both answered with evaluation {id}",
                other.start.index, pair.start.index
            );
            judgement.violated(title, other.entries().chain(pair.entries()));
        }
    }
}

fn is_settled(status: &str) -> bool {
    is_terminal(status) || status == "blocked"
}

fn is_terminal(status: &str) -> bool {
    matches!(status, "complete" | "failed" | "canceled")
}

/// The life of each evaluation over all reads.
fn judge_statuses(shown: &[Shown<'_>], judgement: &mut Judgement) {
    let mut lives: BTreeMap<&str, Vec<Seen<'_>>> = BTreeMap::new();
    for read in shown {
        for row in &read.rows {
            lives.entry(&row.id).or_default().push((row, read));
        }
    }
    for (id, mut life) in lives {
        life.sort_by_key(|(row, read)| (row.modified, read.answer.index));
        for window in life.windows(2) {
            let [(before, one), (after, other)] = window else { continue };
            let (old, new) = (&before.status, &after.status);
            if before.modified == after.modified && old != new {
                let title =
                    format!("evaluation {id} is both {old} and {new} at index {}", after.modified);
                judgement.violated(title, both_of(id, &one.pair, &other.pair));
            } else if is_terminal(old) && old != new {
                let title = format!("evaluation {id} was {old} and became {new}");
                judgement.violated(title, both_of(id, &one.pair, &other.pair));
            }
        }
        judge_freshness(id, life, judgement);
    }
}

/// A read that starts after another has ended shows no older state of an evaluation.
fn judge_freshness(id: &str, mut life: Vec<Seen<'_>>, judgement: &mut Judgement) {
    let mut by_start = life.clone();
    by_start.sort_by_key(|(_, read)| read.pair.start.index);
    life.sort_by_key(|(_, read)| read.answer.index);
    let mut ended = life.into_iter().peekable();
    let mut newest: Option<Seen<'_>> = None;
    for (row, read) in by_start {
        while let Some(earlier) =
            ended.next_if(|(_, earlier)| earlier.answer.index < read.pair.start.index)
        {
            if newest.is_none_or(|(seen, _)| seen.modified < earlier.0.modified) {
                newest = Some(earlier);
            }
        }
        if let Some((seen, earlier)) = newest
            && seen.modified > row.modified
        {
            let title = format!(
                "evaluation {id} was seen at index {} and later at index {}",
                seen.modified, row.modified
            );
            judgement.violated(title, both_of(id, &earlier.pair, &read.pair));
        }
    }
}

/// The entries of two operations with nothing but the rows of this evaluation.
fn both_of(id: &str, one: &Pair<'_>, other: &Pair<'_>) -> Vec<Op> {
    let of_it = |row: &Value| row.get(1).and_then(Value::as_str) == Some(id);
    one.entries().chain(other.entries()).map(|op| only(op, of_it)).collect()
}

/// The entry with nothing but these rows.
fn only(mut op: Op, keep: impl Fn(&Value) -> bool) -> Op {
    if let Some(rows) = op.detail.as_mut().and_then(|detail| detail["evaluations"].as_array_mut()) {
        rows.retain(|row| keep(row));
        op.value = Value::Null;
    }
    op
}
