//! Does a set keep every element, from the moment anyone could know of it?
//!
//! An element is known once its `add` was acknowledged or a read has shown it. Of the reads that start after
//! that moment each must show it. An element that the last such reads do not show is *lost*; one that is
//! missing and shows again is *stale*, which a linearizable set never is. An element shown twice by one
//! read, or shown although nobody was adding it, is a violation too. Of two reads, concurrent or not, one
//! shows all that the other does, and none shows what was begun after what it lacks was known; that does not
//! go for a read that was put together from pages, each of which shows another moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Instant;

use anyhow::{Result, bail, ensure};
use serde::Serialize;
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
    /// Reads without a version were put together from pages.
    pub(crate) paged: bool,
}

/// For the histories of our own workload.
pub(crate) const OF_PAGES: Options = Options { keyed: true, paged: true };

/// What a set holds: numbers, or the text of anything else.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(untagged)]
enum Element {
    Number(i64),
    Text(String),
}

impl Element {
    fn of(value: &Value) -> Self {
        value.as_i64().map_or_else(|| Self::Text(value.to_string()), Self::Number)
    }
}

impl fmt::Display for Element {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(formatter),
            Self::Text(text) => text.fmt(formatter),
        }
    }
}

/// One set's operations.
#[derive(Default)]
struct Set<'a> {
    /// Of each element every attempt, first to last.
    adds: BTreeMap<Element, Vec<Pair<'a>>>,
    reads: Vec<Read<'a>>,
}

struct Read<'a> {
    pair: Pair<'a>,
    returned: u64,
    elements: BTreeSet<Element>,
    twice: Option<Element>,
}

/// What became of the elements of all sets.
#[derive(Default)]
struct Tally {
    attempted: usize,
    acknowledged: usize,
    stable: usize,
    lost: Vec<Element>,
    stale: Vec<Element>,
    never_read: usize,
    duplicated: Vec<Element>,
    unexpected: Vec<Element>,
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
        let before = judgement.violation_count;
        for read in &set.reads {
            judge_read(set, read, &mut tally, &mut judgement);
        }
        for (element, adds) in &set.adds {
            judge_element(set, element, adds, &mut tally, &mut judgement);
        }
        if judgement.violation_count == before {
            judge_order(set, options, &mut judgement);
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
        // Nil is an element like others if the answer does not tell another one.
        let is_open = value.is_null() && pair.answer().is_none() && !pair.failed();
        ensure!(!is_open, "entry {}: nobody knows what was added", pair.start.index);
        set.adds.entry(Element::of(value)).or_default().push(*pair);
    } else if pair.start.f == Function::Read {
        let Some(answer) = pair.answer() else { return Ok(()) };
        let mut read =
            Read { pair: *pair, returned: answer.index, elements: BTreeSet::new(), twice: None };
        let (_, shown) = split(answer)?;
        // A set that nobody has made is empty.
        let is_list = shown.is_null() || shown.is_array();
        ensure!(is_list, "entry {}: a read's value is no list", answer.index);
        let shown = shown.as_array().map_or(&[][..], Vec::as_slice);
        for element in shown.iter().map(Element::of) {
            if !read.elements.insert(element.clone()) {
                read.twice = Some(element);
            }
        }
        set.reads.push(read);
    } else {
        bail!("entry {}: a set cannot {}", pair.start.index, pair.start.f.keyword());
    }
    Ok(())
}

fn judge_read(set: &Set<'_>, read: &Read<'_>, tally: &mut Tally, judgement: &mut Judgement) {
    if let Some(element) = &read.twice {
        tally.duplicated.push(element.clone());
        let title = format!("element {element} is shown twice by entry {}", read.returned);
        judgement.violated(title, read.pair.entries());
    }
    for element in &read.elements {
        let adds = set.adds.get(element).map_or(&[][..], Vec::as_slice);
        let possible = |add: &Pair<'_>| !add.failed() && add.start.index < read.returned;
        if !adds.iter().any(possible) {
            tally.unexpected.push(element.clone());
            let title = format!(
                "element {element}, shown by entry {}, was not being added by anyone",
                read.returned
            );
            let adds = adds.iter().flat_map(Pair::entries);
            judgement.violated(title, adds.chain(read.pair.entries()));
        }
    }
}

/// The contents that reads show follow one another, and real time allows it: when a read took effect everything it shows was being added already, by it
/// or a smaller read, and nothing that it lacks was known yet.
fn judge_order(set: &Set<'_>, options: Options, judgement: &mut Judgement) {
    let is_whole = |read: &&Read<'_>| {
        !options.paged || read.pair.answer().is_some_and(|answer| answer.version.is_some())
    };
    let mut reads: Vec<&Read<'_>> = set.reads.iter().filter(is_whole).collect();
    reads.sort_by_key(|read| read.elements.len());
    let parted = reads.windows(2).find(|two| !two[0].elements.is_subset(&two[1].elements));
    if let Some([one, other]) = parted {
        let title = format!(
            "the reads that end with entries {} and {} each show what the other does not",
            one.returned, other.returned
        );
        judgement.violated(title, one.pair.entries().chain(other.pair.entries()));
        return;
    }
    let known: Vec<(u64, &Element)> = set
        .adds
        .iter()
        .filter_map(|(element, adds)| Some((known_at(set, element, adds)?, element)))
        .collect();
    let begun = |element: &Element| {
        let adds = set.adds.get(element).map_or(&[][..], Vec::as_slice);
        adds.iter().filter(|add| !add.failed()).map(|add| add.start.index).min()
    };
    let mut earliest = 0;
    for read in reads {
        let begun = read.elements.iter().filter_map(begun).max().unwrap_or(0);
        earliest = earliest.max(begun).max(read.pair.start.index);
        let lacks = known.iter().filter(|(_, element)| !read.elements.contains(*element)).min();
        if let Some((latest, element)) = lacks.filter(|(latest, _)| *latest < earliest) {
            let title = format!(
                "the read that ends with entry {} cannot have come before entry {earliest}, and lacks element \
                 {element}, known since entry {latest}",
                read.returned
            );
            let around = set.adds.values().flatten().flat_map(Pair::entries);
            let around = around.filter(|op| [earliest, *latest].contains(&op.index));
            judgement.violated(title, around.chain(read.pair.entries()));
            return;
        }
    }
}

/// The first entry by which anyone could know of an element.
fn known_at(set: &Set<'_>, element: &Element, adds: &[Pair<'_>]) -> Option<u64> {
    let shown = set.reads.iter().filter(|read| read.elements.contains(element));
    let acknowledged = adds.iter().filter_map(Pair::answer).map(|answer| answer.index);
    acknowledged.chain(shown.map(|read| read.returned)).min()
}

fn judge_element(
    set: &Set<'_>,
    element: &Element,
    adds: &[Pair<'_>],
    tally: &mut Tally,
    judgement: &mut Judgement,
) {
    tally.attempted += 1;
    let acknowledged = adds.iter().filter_map(Pair::answer).map(|answer| answer.index).min();
    tally.acknowledged += usize::from(acknowledged.is_some());
    let shows = |read: &&Read<'_>| read.elements.contains(element);
    let first_shown = set.reads.iter().filter(shows).min_by_key(|read| read.returned);
    let Some(known) = known_at(set, element, adds) else { return };
    let after = |read: &&Read<'_>| read.pair.start.index > known;
    let last = |present: bool| {
        let reads = set.reads.iter().filter(after).filter(|read| shows(read) == present);
        reads.max_by_key(|read| read.pair.start.index)
    };
    let evidence = |missing: &Read<'_>| {
        let witness = first_shown.into_iter().flat_map(|read| read.pair.entries());
        let adds = adds.iter().flat_map(Pair::entries);
        adds.chain(witness).chain(missing.pair.entries()).collect::<Vec<Op>>()
    };
    match (last(true), last(false)) {
        (None, None) => tally.never_read += 1,
        (Some(_), None) => tally.stable += 1,
        (Some(present), Some(absent)) if present.pair.start.index > absent.pair.start.index => {
            tally.stale.push(element.clone());
            let title = format!(
                "element {element}, known since entry {known}, is missing in the read that starts with \
                 entry {}",
                absent.pair.start.index
            );
            judgement.violated(title, evidence(absent));
        }
        (_, Some(absent)) => {
            tally.lost.push(element.clone());
            let title = format!(
                "element {element}, known since entry {known}, is lost: the read that starts with \
                 entry {} does not show it, nor does a later one",
                absent.pair.start.index
            );
            judgement.violated(title, evidence(absent));
        }
    }
}
