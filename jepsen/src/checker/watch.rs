//! Do all observers of the jobs see one sequence of states, in time, and is every index header true?
//!
//! Every change of a job has an index of the log, which its acknowledgement and every row that shows it carry. That makes the promises simple:
//!
//! - *One sequence.* A job has one state per index, whoever shows it: an acknowledgement, a read, a list, its versions, a blocking query, stale
//!   or not. What is shown was written, and not by a write that failed.
//! - *Once.* A registration has one index, also one that was sent twice under an idempotency key.
//! - *True headers* (I15). `X-Nomad-Index` H says that the answer is the state of H: no index in the body is above it, and no change up to it is missing.
//! - *Real time* (I12, I14). A consistent answer shows everything that anyone knew of before it was asked for, and a list's index never goes back.
//! - *Stale reads* (I13) show some earlier state, which does not go back per process and server while no fault is being made, and is at most
//!   [`GRACE`] old while there are none.
//! - *Blocking queries* (I16) answer with an index above the one asked for, or at their time with this very one; and while there are no faults at most
//!   [`GRACE`] after the change they wait for was acknowledged.
//! - *Contact.* Consistent reads are as of now; the rest says since when no leader was heard, which is at most [`GRACE`] while there are no faults, and
//!   for each server grows with time, no faster: also for one that begins to lead, or ends.
//!
//! Lateness counts only if the same server answered others in the meantime: a machine that stands still proves nothing.
//!
//! There are no faults before the first entry of the nemesis and in the last phase.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use serde_json::json;

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::{Pair, key_and_value, pairs};
use crate::{
    fault::FaultClass,
    history::{Function, Kind, Op, Process},
};

/// How late news may be on servers without faults, however busy the machine.
pub(crate) const GRACE: std::time::Duration = std::time::Duration::from_secs(8);
/// In so many different seconds a server has to answer others for its lateness to count.
const LIVELY_SECONDS_MIN: usize = 5;
const GRACE_NS: u64 = 8_000_000_000;
/// A busy server notes late what it was answered.
const AGE_SLACK_NS: i128 = 2_000_000_000;

/// What a look was asked for, and what it showed; the value of its end.
#[derive(Clone, Debug, Deserialize)]
struct Shown {
    of: String,
    /// The jobs it is about.
    keys: Vec<u64>,
    stale: bool,
    rows: Vec<Row>,
    known_leader: Option<bool>,
    last_contact_ms: Option<u64>,
}

/// A job as an answer shows it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
struct Row {
    key: Option<u64>,
    #[serde(default)]
    id: String,
    value: u64,
    version: u64,
    stop: bool,
    create: u64,
    modify: u64,
    job_modify: u64,
}

struct Look<'a> {
    pair: Pair<'a>,
    answer: &'a Op,
    shown: Shown,
    /// The index header.
    index: u64,
}

impl Look<'_> {
    fn is_list(&self) -> bool {
        self.shown.of == "list"
    }

    fn row(&self, key: u64) -> Option<&Row> {
        self.shown.rows.iter().find(|row| row.key == Some(key))
    }

    /// The newest index that the answer speaks of for this job: that of its row, or that at which it was not there.
    fn reaches(&self, key: u64) -> u64 {
        self.row(key).map_or(self.index, |row| row.modify)
    }
}

/// What someone was told of one index of one job.
#[derive(Clone, Copy)]
struct Fact<'a> {
    /// What the job is from this index on; `None` after a purge.
    state: Told,
    /// By whom.
    pair: Pair<'a>,
    /// When it was first known: position in the history, and time.
    known: (u64, u64),
}

/// How much is known of a state.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Told {
    /// Registered with this value.
    Registered(u64),
    /// Stopped.
    Stopped,
    /// Purged.
    Gone,
    /// Shown by a row: value, version, stop, create index, job modify index.
    Row(u64, u64, bool, u64, u64),
}

impl Told {
    fn of(row: &Row) -> Self {
        Self::Row(row.value, row.version, row.stop, row.create, row.job_modify)
    }

    fn agrees(self, other: Self) -> bool {
        match (self, other) {
            (Self::Registered(value), Self::Row(shown, _, stop, ..))
            | (Self::Row(shown, _, stop, ..), Self::Registered(value)) => value == shown && !stop,
            (Self::Stopped, Self::Row(_, _, stop, ..))
            | (Self::Row(_, _, stop, ..), Self::Stopped) => stop,
            (one, other) => one == other,
        }
    }

    fn describe(self) -> String {
        match self {
            Self::Registered(value) => format!("registered with value {value}"),
            Self::Stopped => "stopped".to_owned(),
            Self::Gone => "purged".to_owned(),
            Self::Row(value, version, stop, create, _) => format!(
                "value {value}, version {version}, {}born at {create}",
                if stop { "stopped, " } else { "" }
            ),
        }
    }
}

/// A registration.
struct Write<'a> {
    key: u64,
    pair: Pair<'a>,
}

/// Everything the rules look at.
#[derive(Default)]
struct Run<'a> {
    looks: Vec<Look<'a>>,
    /// Blocking queries without an answer.
    unanswered: Vec<Pair<'a>>,
    writes: BTreeMap<u64, Write<'a>>,
    /// Acknowledged stops and purges: key, index, what they say, by whom.
    ends: Vec<(u64, u64, Told, Pair<'a>)>,
    /// By key and index.
    facts: BTreeMap<(u64, u64), Fact<'a>>,
    /// Purges of each key that may have happened at an index nobody was told.
    hidden_purges: BTreeMap<u64, Vec<u64>>,
    /// Positions of the nemesis's entries.
    faults: Vec<u64>,
    /// When the first fault was.
    calm_until: Option<u64>,
    /// Seconds in which each server answered someone.
    lively: BTreeMap<&'a str, BTreeSet<u64>>,
    /// Positions between which a fault was being made, perhaps at one server after the other.
    under_way: Vec<(u64, u64)>,
}

impl Run<'_> {
    /// Whether there were no faults during an operation.
    fn is_calm(&self, pair: &Pair<'_>) -> bool {
        let ended = pair.end.map_or(u64::MAX, |end| end.time);
        pair.start.last_phase || self.calm_until.is_none_or(|until| ended < until)
    }

    /// Whether the server of an operation answered others in several of the seconds between: if not, the machine stood still, and lateness proves
    /// nothing.
    fn lives(&self, pair: &Pair<'_>, from: u64, to: u64) -> bool {
        let seconds = pair.start.node.as_deref().and_then(|node| self.lively.get(node));
        let (from, to) = (from / 1_000_000_000 + 1, to / 1_000_000_000);
        from < to && seconds.is_some_and(|all| all.range(from..to).count() >= LIVELY_SECONDS_MIN)
    }

    /// The changes of a job in a range of indexes.
    fn changes(
        &self,
        key: u64,
        range: impl std::ops::RangeBounds<u64>,
    ) -> impl DoubleEndedIterator<Item = (u64, &Fact<'_>)> {
        use std::ops::Bound;
        let bound = |bound: Bound<&u64>, unbounded| match bound {
            Bound::Included(index) => Bound::Included((key, *index)),
            Bound::Excluded(index) => Bound::Excluded((key, *index)),
            Bound::Unbounded => Bound::Included((key, unbounded)),
        };
        let range = (bound(range.start_bound(), 0), bound(range.end_bound(), u64::MAX));
        self.facts.range(range).map(|((_, index), fact)| (*index, fact))
    }

    /// Whether a purge of unknown index may have taken the job away before the look ended.
    fn may_be_purged(&self, key: u64, look: &Look<'_>) -> bool {
        let purges = self.hidden_purges.get(&key);
        purges.is_some_and(|starts| starts.iter().any(|start| *start < look.answer.index))
    }
}

/// Judges a history of the watch workload.
pub(crate) fn check(history: &[Op]) -> Result<Judgement> {
    let started = Instant::now();
    let pairs = pairs(history)?;
    let mut judgement = Judgement::new("watch", pairs.len());
    let mut run = Run::default();
    for op in history.iter().filter(|op| op.process == Process::Nemesis) {
        run.faults.push(op.index);
        run.calm_until.get_or_insert(op.time);
    }
    run.under_way = under_way(history);
    for pair in &pairs {
        if let (Some(answer), Some(node)) = (pair.answer(), pair.start.node.as_deref()) {
            run.lively.entry(node).or_default().insert(answer.time / 1_000_000_000);
        }
        file(&mut run, pair)?;
    }
    gather(&mut run, &mut judgement);
    for look in &run.looks {
        body(look, &mut judgement);
        origin(&run, look, &mut judgement);
        header(&run, look, &mut judgement);
        contact(&run, look, &mut judgement);
        blocking(look, &mut judgement);
        punctual(&run, look, &mut judgement);
    }
    for pair in &run.unanswered {
        answered(&run, pair, &mut judgement)?;
    }
    once(&run, &mut judgement);
    real_time(&run, &mut judgement);
    sessions(&run, &mut judgement);
    contact_ages(&run, &mut judgement);
    conclude(&run, &mut judgement);
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

fn conclude(run: &Run<'_>, judgement: &mut Judgement) {
    let watches = run.looks.iter().filter(|look| look.pair.start.f == Function::Watch);
    let woken = watches.clone().filter(|look| look.pair.start.expected < Some(look.index)).count();
    let stale = run.looks.iter().filter(|look| look.shown.stale).count();
    judgement.summary = format!(
        "{} changes, {} looks, {stale} of them stale; {} blocking queries, {woken} with news",
        run.facts.len(),
        run.looks.len(),
        watches.count(),
    );
    judgement.details = json!({
        "changes": run.facts.len(), "looks": run.looks.len(), "stale": stale, "woken": woken,
    });
    if judgement.valid == Verdict::True && (woken == 0 || stale == 0) {
        judgement.lacks("no blocking query or no stale read was answered with news");
    }
}

/// From where a fault was announced to where it was there: a rolling one kills and starts server after server in between.
fn under_way(history: &[Op]) -> Vec<(u64, u64)> {
    let mut announced: BTreeMap<FaultClass, u64> = BTreeMap::new();
    let mut under_way = Vec::new();
    for op in history {
        let Function::Fault(function) = op.f else { continue };
        let (class, true) = FaultClass::of(function) else { continue };
        if op.value.get("outcome").is_none() {
            announced.entry(class).or_insert(op.index);
        } else if let Some(from) = announced.remove(&class) {
            under_way.push((from, op.index));
        }
    }
    under_way.extend(announced.into_values().map(|from| (from, u64::MAX)));
    under_way
}

/// Sorts an operation into what the rules look at.
fn file<'a>(run: &mut Run<'a>, pair: &Pair<'a>) -> Result<()> {
    let start = pair.start;
    let (key, value) = key_and_value(start)?;
    if start.f == Function::Write {
        let value = value
            .as_u64()
            .with_context(|| format!("entry {}: the value is not a number", start.index))?;
        let before = run.writes.insert(value, Write { key, pair: *pair });
        if before.is_some() {
            bail!("entry {}: value {value} is written a second time", start.index);
        }
    } else if start.f == Function::Stop || start.f == Function::Purge {
        let purges = start.f == Function::Purge;
        if purges && pair.end.is_none_or(|end| end.kind == Kind::Info) {
            run.hidden_purges.entry(key).or_default().push(start.index);
        }
        // Index 0: there was no such job.
        let index = pair.answer().and_then(|answer| answer.version).filter(|index| *index > 0);
        let state = if purges { Told::Gone } else { Told::Stopped };
        run.ends.extend(index.map(|index| (key, index, state, *pair)));
    } else if start.f == Function::Read || start.f == Function::Watch {
        match pair.answer() {
            Some(answer) => {
                let (_, shown) = key_and_value(answer)?;
                let shown: Shown = serde_json::from_value(shown.clone())
                    .with_context(|| format!("entry {}: not what a look shows", answer.index))?;
                let index = answer.version.unwrap_or(0);
                run.looks.push(Look { pair: *pair, answer, shown, index });
            }
            None if start.f == Function::Watch => run.unanswered.push(*pair),
            None => {}
        }
    } else {
        bail!("entry {}: this workload does not {}", start.index, start.f.keyword());
    }
    Ok(())
}

/// Collects every fact; two that do not agree are a violation.
fn gather<'a>(run: &mut Run<'a>, judgement: &mut Judgement) {
    let mut told: Vec<(u64, u64, Told, Pair<'a>)> = Vec::new();
    for (value, write) in &run.writes {
        if let Some(index) = write.pair.answer().and_then(|answer| answer.version) {
            told.push((write.key, index, Told::Registered(*value), write.pair));
        }
    }
    told.extend(run.ends.iter().copied());
    for look in &run.looks {
        for row in &look.shown.rows {
            if let Some(key) = row.key {
                told.push((key, row.modify, Told::of(row), look.pair));
            }
        }
    }
    told.sort_by_key(|(.., pair)| pair.end.map(|end| end.index));
    for (key, index, state, pair) in told {
        let known = pair.end.map_or((u64::MAX, u64::MAX), |end| (end.index, end.time));
        match run.facts.get_mut(&(key, index)) {
            None => {
                run.facts.insert((key, index), Fact { state, pair, known });
            }
            Some(fact) if !fact.state.agrees(state) => {
                let title = format!(
                    "two states of job {key} at index {index}: {}; {}",
                    fact.state.describe(),
                    state.describe()
                );
                judgement.violated(title, fact.pair.entries().chain(pair.entries()));
            }
            // A row says more than an acknowledgement.
            Some(fact) if matches!(state, Told::Row(..)) => fact.state = state,
            Some(_) => {}
        }
    }
}

/// The body by itself: jobs that were asked for, each once, with indexes in order below the header's.
fn body(look: &Look<'_>, judgement: &mut Judgement) {
    let mut violated = |title: String| judgement.violated(title, look.pair.entries());
    let entry = look.answer.index;
    for (position, row) in look.shown.rows.iter().enumerate() {
        match row.key {
            Some(key) if look.shown.keys.contains(&key) => {
                if look.shown.rows[..position].iter().any(|other| other.key == Some(key)) {
                    violated(format!("entry {entry} shows job {key} twice"));
                }
            }
            Some(_) | None => {
                violated(format!("entry {entry} shows job {:?}, which it is not about", row.id));
            }
        }
        if row.modify > look.index {
            violated(format!(
                "the index of entry {entry} is {}, that of a job in it {}",
                look.index, row.modify
            ));
        }
        if row.create > row.modify || row.job_modify > row.modify || row.job_modify < row.create {
            violated(format!(
                "entry {entry} shows a job born at {}, registered at {} and changed at {}",
                row.create, row.job_modify, row.modify
            ));
        }
    }
}

/// What is shown was written: to this job, by a write that began before and did not fail.
fn origin(run: &Run<'_>, look: &Look<'_>, judgement: &mut Judgement) {
    for row in &look.shown.rows {
        let write = run.writes.get(&row.value);
        let possible = write.is_some_and(|write| {
            Some(write.key) == row.key
                && !write.pair.failed()
                && write.pair.start.index < look.answer.index
        });
        if !possible {
            let title = format!(
                "value {}, shown by entry {}, was not being written to this job by anyone",
                row.value, look.answer.index
            );
            let write = write.into_iter().flat_map(|write| write.pair.entries());
            judgement.violated(title, write.chain(look.pair.entries()));
        }
    }
}

/// A registration takes effect once: its value, when not stopped, has one index.
fn once(run: &Run<'_>, judgement: &mut Judgement) {
    for write in run.writes.values() {
        let Some(answer) = write.pair.answer() else { continue };
        let again = answer.detail.as_ref().and_then(|detail| detail.get("again")?.as_u64());
        if let Some(again) = again.filter(|again| Some(*again) != answer.version) {
            let title = format!(
                "entry {} was acknowledged at index {}, and at {again} when it was sent again under its \
                 idempotency key",
                write.pair.start.index,
                answer.version.unwrap_or(0)
            );
            judgement.violated(title, write.pair.entries());
        }
    }
    let mut places: BTreeMap<u64, (u64, &Fact<'_>)> = BTreeMap::new();
    for ((_, index), fact) in &run.facts {
        let value = match fact.state {
            Told::Registered(value) | Told::Row(value, _, false, ..) => value,
            Told::Row(..) | Told::Stopped | Told::Gone => continue,
        };
        if let Some((other, before)) = places.insert(value, (*index, fact)) {
            let title = format!("value {value} was registered at index {other} and at {index}");
            judgement.violated(title, before.pair.entries().chain(fact.pair.entries()));
        }
    }
}

/// I15: no change up to the header's index is missing in the body.
fn header(run: &Run<'_>, look: &Look<'_>, judgement: &mut Judgement) {
    for key in &look.shown.keys {
        let missed = match look.row(*key) {
            Some(row) if row.modify < look.index => {
                run.changes(*key, row.modify + 1..=look.index).next_back()
            }
            Some(_) => None,
            None => run
                .changes(*key, ..=look.index)
                .next_back()
                .filter(|(_, fact)| fact.state != Told::Gone && !run.may_be_purged(*key, look)),
        };
        if let Some((index, fact)) = missed {
            let title = format!(
                "entry {} claims index {}, but job {key} as of index {index} is missing in it",
                look.answer.index, look.index
            );
            judgement.violated(title, fact.pair.entries().chain(look.pair.entries()));
        }
    }
}

fn contact(run: &Run<'_>, look: &Look<'_>, judgement: &mut Judgement) {
    let Shown { known_leader, last_contact_ms, stale, .. } = &look.shown;
    // A query that has waited is answered from what its server has then.
    let asked_at = look.pair.start.time;
    let is_immediate = look.pair.start.f == Function::Read;
    let problem = match (known_leader, last_contact_ms) {
        (None, _) | (_, None) => "does not say whether a leader is known, or since when",
        (Some(_), Some(ms)) if is_immediate && !stale && *ms > 0 => {
            "is consistent, but not from the leader of now"
        }
        (Some(_), Some(ms))
            if run.is_calm(&look.pair)
                && *ms > GRACE_NS / 1_000_000
                && run.lives(
                    &look.pair,
                    asked_at.saturating_sub(ms.saturating_mul(1_000_000)),
                    asked_at,
                ) =>
        {
            "says that no leader was heard of for long, although there are no faults"
        }
        (Some(_), Some(_)) => return,
    };
    judgement.violated(format!("entry {} {problem}", look.answer.index), look.pair.entries());
}

/// A server that was in touch at some time cannot say later that it last was before that time.
fn contact_ages(run: &Run<'_>, judgement: &mut Judgement) {
    // One that does not say it is a violation by itself.
    let contact_ms = |look: &Look<'_>| look.shown.last_contact_ms.unwrap_or_default();
    let age_ns = |look: &Look<'_>| i128::from(contact_ms(look)) * 1_000_000;
    // It answered between the start and the end of the look.
    let at_earliest = |look: &Look<'_>| i128::from(look.pair.start.time) - age_ns(look);
    let at_latest = |look: &Look<'_>| i128::from(look.answer.time) - age_ns(look);
    let mut servers: BTreeMap<&str, Vec<&Look<'_>>> = BTreeMap::new();
    for look in &run.looks {
        if look.shown.stale
            && look.shown.last_contact_ms.is_some()
            && let Some(node) = look.answer.node.as_deref()
        {
            servers.entry(node).or_default().push(look);
        }
    }
    for looks in servers.values_mut() {
        looks.sort_by_key(|look| look.answer.time);
        // Of each beginning of the list: the look with the latest time of contact.
        let mut latest: Vec<&Look<'_>> = Vec::new();
        for look in looks.iter().copied() {
            let before = latest.last().copied().unwrap_or(look);
            latest.push(if at_earliest(before) > at_earliest(look) { before } else { look });
        }
        for look in looks.iter().copied() {
            let ended = looks.partition_point(|other| other.answer.time < look.pair.start.time);
            let Some(before) = ended.checked_sub(1).map(|last| latest[last]) else { continue };
            if at_latest(look) + AGE_SLACK_NS < at_earliest(before) {
                let title = format!(
                    "entry {} says that its server was in touch {} ms ago, but it was when entry {} was answered",
                    look.answer.index,
                    contact_ms(look),
                    before.answer.index
                );
                judgement.violated(title, before.pair.entries().chain(look.pair.entries()));
            }
        }
    }
}

/// I16, without a look at others.
fn blocking(look: &Look<'_>, judgement: &mut Judgement) {
    let Some((seen, wait_ms)) = asked(look.pair.start) else { return };
    let elapsed = look.answer.time.saturating_sub(look.pair.start.time);
    let entry = look.answer.index;
    if look.index < seen {
        let title = format!("entry {entry} answers with index {}, below {seen}", look.index);
        judgement.violated(title, look.pair.entries());
    } else if look.index == seen && elapsed < wait_ms * 1_000_000 {
        let title = format!(
            "entry {entry} answers without news after {} of {wait_ms} ms",
            elapsed / 1_000_000
        );
        judgement.violated(title, look.pair.entries());
    }
}

/// The index and the milliseconds that a blocking query asked for.
fn asked(start: &Op) -> Option<(u64, u64)> {
    let wait_ms = start.value.get(1)?.get("wait_ms")?.as_u64()?;
    Some((start.expected?, wait_ms))
}

/// What was known [`GRACE`] before: without faults nothing of it is missing, and a query that waits for it has its answer.
fn punctual(run: &Run<'_>, look: &Look<'_>, judgement: &mut Judgement) {
    if !run.is_calm(&look.pair) {
        return;
    }
    for key in &look.shown.keys {
        let reaches = look.reaches(*key);
        let missed = run.changes(*key, reaches + 1..).find(|(_, fact)| {
            let (known, asked) = (fact.known.1, look.pair.start.time);
            known.saturating_add(GRACE_NS) < asked && run.lives(&look.pair, known, asked)
        });
        if let Some((index, fact)) = missed {
            let title = format!(
                "entry {} shows job {key} as of index {reaches}, although {index} was known for more \
                 than {} s and there are no faults",
                look.answer.index,
                GRACE.as_secs()
            );
            judgement.violated(title, fact.pair.entries().chain(look.pair.entries()));
        }
    }
    late(run, (&look.pair, &look.shown.keys, look.is_list()), look.answer.time, judgement);
}

/// The same of a query that nobody answered; one that was answered with an error is excused.
fn answered(run: &Run<'_>, pair: &Pair<'_>, judgement: &mut Judgement) -> Result<()> {
    let Some(end) = pair.end.filter(|_| run.is_calm(pair)) else { return Ok(()) };
    if end.error.as_ref().is_some_and(|error| error.starts_with("timeout")) {
        let (_, value) = key_and_value(pair.start)?;
        let keys: Vec<u64> = serde_json::from_value(value["keys"].clone()).with_context(|| {
            format!("entry {}: the query does not say which jobs it is about", pair.start.index)
        })?;
        late(run, (pair, &keys, value["of"] == "list"), end.time, judgement);
        if let Some((_, wait_ms)) = asked(pair.start)
            && let due = pair.start.time + (wait_ms + wait_ms / 16) * 1_000_000
            && end.time.saturating_sub(due) > GRACE_NS
            && run.lives(pair, due, end.time)
        {
            let title =
                format!("the query of entry {} has no answer at its time", pair.start.index);
            judgement.violated(title, pair.entries());
        }
    }
    Ok(())
}

fn late(
    run: &Run<'_>,
    (pair, keys, is_list): (&Pair<'_>, &[u64], bool),
    ended: u64,
    judgement: &mut Judgement,
) {
    let Some((seen, _)) = asked(pair.start) else { return };
    let overdue = |(_, fact): &(u64, &Fact<'_>)| {
        let since = fact.known.1.max(pair.start.time);
        ended.saturating_sub(since) > GRACE_NS && run.lives(pair, since, ended)
    };
    // A list is that of a table: any change of it is news.
    let missed = if is_list {
        let later = run.facts.iter().filter(|((_, index), _)| *index > seen);
        later.map(|((_, index), fact)| (*index, fact)).find(overdue)
    } else {
        keys.iter().find_map(|key| run.changes(*key, seen + 1..).find(overdue))
    };
    if let Some((index, fact)) = missed {
        let title = format!(
            "the query of entry {} waits for news after index {seen}, but slept for more than {} s after \
             {index} was known",
            pair.start.index,
            GRACE.as_secs()
        );
        judgement.violated(title, fact.pair.entries().chain(pair.entries()));
    }
}

/// I12, I14: a consistent answer shows what anyone knew before it was asked for.
fn real_time(run: &Run<'_>, judgement: &mut Judgement) {
    let mut news: Vec<(u64, u64, u64, &Fact<'_>)> =
        run.facts.iter().map(|((key, index), fact)| (fact.known.0, *key, *index, fact)).collect();
    news.sort_by_key(|(known, ..)| *known);
    let mut news = news.into_iter().peekable();
    let mut by_end: Vec<&Look<'_>> = run.looks.iter().filter(|look| look.is_list()).collect();
    by_end.sort_by_key(|look| look.answer.index);
    let mut lists = by_end.into_iter().peekable();
    let mut floor: BTreeMap<u64, (u64, &Fact<'_>)> = BTreeMap::new();
    let mut newest: Option<(u64, Pair<'_>)> = None;
    // Looks are in the order of their start.
    for look in run.looks.iter().filter(|look| !look.shown.stale) {
        let start = look.pair.start.index;
        while let Some((_, key, index, fact)) = news.next_if(|(known, ..)| *known < start) {
            if floor.get(&key).is_none_or(|(before, _)| *before < index) {
                floor.insert(key, (index, fact));
            }
            if newest.is_none_or(|(before, _)| before < index) {
                newest = Some((index, fact.pair));
            }
        }
        while let Some(list) = lists.next_if(|list| list.answer.index < start) {
            if newest.is_none_or(|(before, _)| before < list.index) {
                newest = Some((list.index, list.pair));
            }
        }
        for key in &look.shown.keys {
            let reaches = look.reaches(*key);
            if let Some((index, fact)) = floor.get(key)
                && *index > reaches
            {
                let title = format!(
                    "entry {} shows job {key} as of index {reaches}, although {index} was known before it \
                     was asked for",
                    look.answer.index
                );
                judgement.violated(title, fact.pair.entries().chain(look.pair.entries()));
            }
        }
        if let Some((index, pair)) = newest
            && look.is_list()
            && index > look.index
        {
            let title = format!(
                "the list of entry {} has index {}, although {index} was known before it was asked for",
                look.answer.index, look.index
            );
            judgement.violated(title, pair.entries().chain(look.pair.entries()));
        }
    }
}

/// What one process was last shown by one server.
#[derive(Default)]
struct Session<'a> {
    /// Entries of the nemesis up to then.
    faults: usize,
    jobs: BTreeMap<u64, (u64, Option<Pair<'a>>)>,
    list: u64,
}

/// I13: what one server shows one process does not go back, unless there was a fault.
fn sessions(run: &Run<'_>, judgement: &mut Judgement) {
    let mut sessions: BTreeMap<(Process, Option<&str>), Session<'_>> = BTreeMap::new();
    for look in &run.looks {
        let faults = |position| run.faults.partition_point(|fault| *fault < position);
        let session =
            sessions.entry((look.answer.process, look.answer.node.as_deref())).or_default();
        let position = look.answer.index;
        let is_under_way = run.under_way.iter().any(|(from, to)| (*from..*to).contains(&position));
        if session.faults != faults(position) || is_under_way {
            *session = Session { faults: faults(position), ..Session::default() };
        }
        for key in &look.shown.keys {
            let reaches = look.reaches(*key);
            let (before, shown) = session.jobs.entry(*key).or_default();
            if let Some(pair) = shown.filter(|_| *before > reaches) {
                let title = format!(
                    "process {:?} saw job {key} as of index {before} and then, on the same server, as of \
                     {reaches}",
                    look.answer.process
                );
                judgement.violated(title, pair.entries().chain(look.pair.entries()));
            }
            if look.row(*key).is_some() {
                (*before, *shown) = (reaches, Some(look.pair));
            }
        }
        if look.is_list() {
            if session.list > look.index {
                let title = format!(
                    "process {:?} saw a list of index {} and then, on the same server, one of {}",
                    look.answer.process, session.list, look.index
                );
                judgement.violated(title, look.pair.entries());
            }
            session.list = look.index;
        }
    }
}
