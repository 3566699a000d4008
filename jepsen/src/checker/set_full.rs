//! Does a set keep every element, from the moment anyone could know of it?
//!
//! An element is known once its `add` was acknowledged or a read has shown it. Of the reads that start after
//! that moment each must show it. An element that the last such reads do not show is *lost*; one that is
//! missing and shows again is *stale*, which a linearizable set never is. An element shown twice by one
//! read, or shown although nobody was adding it, is a violation too.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::{Pair, key_and_value, pairs};
use crate::history::{Function, Op};

/// What is asked of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// Values are `[key value]`: several sets in one history.
    pub(crate) keyed: bool,
    /// A read that misses a known element is a violation even if later reads show it.
    pub(crate) linearizable: bool,
}

/// One set's operations.
#[derive(Default)]
struct Set<'a> {
    adds: BTreeMap<u64, Pair<'a>>,
    reads: Vec<Read<'a>>,
}

struct Read<'a> {
    pair: Pair<'a>,
    returned: u64,
    elements: BTreeSet<u64>,
    twice: Option<u64>,
}

/// What became of the elements of all sets.
#[derive(Default)]
struct Tally {
    attempted: usize,
    acknowledged: usize,
    stable: usize,
    lost: Vec<u64>,
    stale: Vec<u64>,
    never_read: usize,
    duplicated: Vec<u64>,
    unexpected: Vec<u64>,
}

/// Judges every set of a history.
pub(crate) fn check(history: &[Op], options: Options) -> Result<Judgement> {
    let started = Instant::now();
    let pairs = pairs(history)?;
    let mut sets: BTreeMap<u64, Set<'_>> = BTreeMap::new();
    for pair in &pairs {
        file(&mut sets, pair, options)?;
    }
    let mut judgement = Judgement::new("set-full", pairs.len());
    let mut tally = Tally::default();
    for set in sets.values() {
        for read in &set.reads {
            judge_read(set, read, &mut tally, &mut judgement);
        }
        for (element, add) in &set.adds {
            judge_element(set, *element, add, options, &mut tally, &mut judgement);
        }
    }
    judgement.summary = format!(
        "{} sets, {} adds, {} acknowledged, {} stable, {} lost, {} stale, {} never read",
        sets.len(),
        tally.attempted,
        tally.acknowledged,
        tally.stable,
        tally.lost.len(),
        tally.stale.len(),
        tally.never_read
    );
    if tally.stable == 0 && judgement.valid == Verdict::True {
        judgement.lacks("no element was ever read");
    }
    judgement.details = json!({
        "attempted": tally.attempted,
        "acknowledged": tally.acknowledged,
        "stable": tally.stable,
        "lost": tally.lost,
        "stale": tally.stale,
        "never_read": tally.never_read,
        "duplicated": tally.duplicated,
        "unexpected": tally.unexpected,
    });
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

fn file<'a>(sets: &mut BTreeMap<u64, Set<'a>>, pair: &Pair<'a>, options: Options) -> Result<()> {
    let split = |op: &'a Op| if options.keyed { key_and_value(op) } else { Ok((0, &op.value)) };
    let (key, value) = split(pair.start)?;
    let set = sets.entry(key).or_default();
    if pair.start.f == Function::Add {
        let element = number(pair.start, value)?;
        let again = set.adds.insert(element, *pair);
        anyhow::ensure!(
            again.is_none(),
            "entry {}: element {element} is added a second time",
            pair.start.index
        );
    } else if pair.start.f == Function::Read {
        let Some(answer) = pair.answer() else { return Ok(()) };
        let (_, value) = split(answer)?;
        let mut elements = BTreeSet::new();
        let mut twice = None;
        let shown = value
            .as_array()
            .with_context(|| format!("entry {}: a read's value is no list", answer.index))?;
        for element in shown {
            let element = number(answer, element)?;
            if !elements.insert(element) {
                twice = Some(element);
            }
        }
        set.reads.push(Read { pair: *pair, returned: answer.index, elements, twice });
    } else {
        anyhow::bail!("entry {}: a set cannot {}", pair.start.index, pair.start.f.keyword());
    }
    Ok(())
}

fn number(op: &Op, value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("entry {}: {value} is not an element", op.index))
}

fn judge_read(set: &Set<'_>, read: &Read<'_>, tally: &mut Tally, judgement: &mut Judgement) {
    if let Some(element) = read.twice {
        tally.duplicated.push(element);
        let title = format!("element {element} is shown twice by entry {}", read.returned);
        judgement.violated(title, read.pair.entries());
    }
    for element in &read.elements {
        let add = set.adds.get(element);
        let possible = add.is_some_and(|add| !add.failed() && add.start.index < read.returned);
        if !possible {
            tally.unexpected.push(*element);
            let title = format!(
                "element {element}, shown by entry {}, was not being added by anyone",
                read.returned
            );
            let add = add.into_iter().flat_map(Pair::entries);
            judgement.violated(title, add.chain(read.pair.entries()));
        }
    }
}

fn judge_element(
    set: &Set<'_>,
    element: u64,
    add: &Pair<'_>,
    options: Options,
    tally: &mut Tally,
    judgement: &mut Judgement,
) {
    tally.attempted += 1;
    tally.acknowledged += usize::from(add.answer().is_some());
    let shows = |read: &&Read<'_>| read.elements.contains(&element);
    let first_shown = set.reads.iter().filter(shows).min_by_key(|read| read.returned);
    let acknowledged = add.answer().map(|answer| answer.index);
    let seen_at = first_shown.map(|read| read.returned);
    let Some(known) = acknowledged.into_iter().chain(seen_at).min() else { return };
    let after = |read: &&Read<'_>| read.pair.start.index > known;
    let last = |present: bool| {
        let reads = set.reads.iter().filter(after).filter(|read| shows(read) == present);
        reads.max_by_key(|read| read.pair.start.index)
    };
    let evidence = |missing: &Read<'_>| {
        let witness = first_shown.into_iter().flat_map(|read| read.pair.entries());
        add.entries().chain(witness).chain(missing.pair.entries()).collect::<Vec<Op>>()
    };
    match (last(true), last(false)) {
        (None, None) => tally.never_read += 1,
        (Some(_), None) => tally.stable += 1,
        (Some(present), Some(absent)) if present.pair.start.index > absent.pair.start.index => {
            tally.stale.push(element);
            if options.linearizable {
                let title = format!(
                    "element {element}, known since entry {known}, is missing in the read that \
                     starts with entry {}",
                    absent.pair.start.index
                );
                judgement.violated(title, evidence(absent));
            }
        }
        (_, Some(absent)) => {
            tally.lost.push(element);
            let title = format!(
                "element {element}, known since entry {known}, is lost: the read that starts with \
                 entry {} does not show it, nor does a later one",
                absent.pair.start.index
            );
            judgement.violated(title, evidence(absent));
        }
    }
}
