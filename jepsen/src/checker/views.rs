//! What every read of nodes and allocations must satisfy, and all of them together.
//!
//! Owns the rules that the bank and the allocs workload share: a name is live once, one index shows one
//! state, no read is older than one that had ended before it started, nor is what it shows of a job, an allocation's life goes one way
//! (wanted, then not; alive, then ended; its index rises), and replacements form chains.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use super::judgement::Judgement;
use super::pairs::{Pair, pairs};
use crate::{
    history::{Function, Kind, Op, Process},
    workload::snapshot::{Allocation, Job, Snapshot},
};

/// A read and what it showed.
pub(crate) struct View<'a> {
    /// The operation.
    pub(crate) pair: Pair<'a>,
    /// Its end.
    pub(crate) answer: &'a Op,
    /// What it showed.
    pub(crate) snapshot: Snapshot,
}

impl View<'_> {
    /// The entries of the read, with nothing but these allocations.
    pub(crate) fn only(&self, keep: impl Fn(&Allocation) -> bool) -> Vec<Op> {
        let mut snapshot = self.snapshot.clone();
        snapshot.allocations.retain(|allocation| keep(allocation));
        snapshot.nodes.clear();
        let mut answer = self.answer.clone();
        answer.value = serde_json::to_value(snapshot).expect("names and numbers are always JSON");
        vec![self.pair.start.clone(), answer]
    }
}

/// The operations of a history and its answered reads, in order of their end.
pub(crate) fn views(history: &[Op]) -> Result<(Vec<Pair<'_>>, Vec<View<'_>>)> {
    let pairs = pairs(history)?;
    let mut views = Vec::new();
    for pair in pairs.iter().filter(|pair| pair.start.f == Function::Read) {
        let Some(answer) = pair.answer() else { continue };
        let snapshot = serde_json::from_value(answer.value.clone())
            .with_context(|| format!("entry {}: not a view of the cluster", answer.index))?;
        views.push(View { pair: *pair, answer, snapshot });
    }
    views.sort_by_key(|view| view.answer.index);
    Ok((pairs, views))
}

/// How often an agent process was killed, stopped or frozen.
pub(crate) fn agent_faults(history: &[Op]) -> usize {
    let faults = history.iter().filter(|op| {
        op.process == Process::Nemesis
            && op.kind == Kind::Info
            && matches!(op.f, Function::KillAgent | Function::StopAgent | Function::PauseAgent)
            && op.value.get("outcome").is_some_and(|outcome| outcome == "installed")
    });
    faults.count()
}

/// Checks every rule above.
pub(crate) fn check(views: &[View<'_>], judgement: &mut Judgement) {
    for view in views {
        names(view, judgement);
    }
    freshness(views, judgement);
    jobs(views, judgement);
    let mut ordered: Vec<&View<'_>> = views.iter().collect();
    ordered.sort_by_key(|view| (view.snapshot.index, view.answer.index));
    lives(&ordered, judgement);
    if let Some(last) = views.iter().rev().find(|view| view.answer.last_phase) {
        chains(last, judgement);
    }
}

/// I38: a name is live once.
fn names(view: &View<'_>, judgement: &mut Judgement) {
    let mut live: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for allocation in view.snapshot.allocations.iter().filter(|found| found.is_live()) {
        let name = (allocation.job.as_str(), allocation.name.as_str());
        if let Some(other) = live.insert(name, &allocation.id) {
            let title = format!(
                "{} is live twice at index {}: {other} and {}",
                allocation.name, view.snapshot.index, allocation.id
            );
            judgement.violated(title, view.only(|found| found.name == allocation.name));
        }
    }
}

/// I14: a read that starts after another has ended shows no older state.
fn freshness(views: &[View<'_>], judgement: &mut Judgement) {
    let mut by_start: Vec<&View<'_>> = views.iter().collect();
    by_start.sort_by_key(|view| view.pair.start.index);
    let mut ended = views.iter().peekable();
    let mut newest: Option<&View<'_>> = None;
    for view in by_start {
        while let Some(earlier) =
            ended.next_if(|earlier| earlier.answer.index < view.pair.start.index)
        {
            if newest.is_none_or(|newest| newest.snapshot.index < earlier.snapshot.index) {
                newest = Some(earlier);
            }
        }
        if let Some(newest) = newest
            && newest.snapshot.index > view.snapshot.index
        {
            let title = format!(
                "the read of entry {} shows index {}, although entry {} had shown {} before",
                view.answer.index, view.snapshot.index, newest.answer.index, newest.snapshot.index
            );
            let entries = newest.only(|_| false).into_iter().chain(view.only(|_| false));
            judgement.violated(title, entries);
        }
    }
}

/// What is shown of a job never goes back, within a read and from one to the next, and is one thing at one index.
fn jobs(views: &[View<'_>], judgement: &mut Judgement) {
    let mut by_start: Vec<&View<'_>> = views.iter().collect();
    by_start.sort_by_key(|view| view.pair.start.index);
    let mut ended = views.iter().peekable();
    let mut newest: BTreeMap<&str, (u64, &View<'_>)> = BTreeMap::new();
    let mut shown: BTreeMap<(&str, u64), (&Job, &View<'_>)> = BTreeMap::new();
    for view in by_start {
        while let Some(earlier) =
            ended.next_if(|earlier| earlier.answer.index < view.pair.start.index)
        {
            for job in &earlier.snapshot.jobs {
                let newest = newest.entry(&job.id).or_insert((job.modify, earlier));
                if newest.0 < job.modify {
                    *newest = (job.modify, earlier);
                }
            }
        }
        let mut here: BTreeMap<&str, u64> = BTreeMap::new();
        for job in &view.snapshot.jobs {
            let before = newest.get(job.id.as_str()).copied();
            let within = here.insert(&job.id, job.modify).map(|modify| (modify, view));
            let problem = [before, within].into_iter().flatten().find(|(old, _)| *old > job.modify);
            if let Some((old, earlier)) = problem {
                let title = format!(
                    "job {} is shown as of index {}, and was shown as of {old} before",
                    job.id, job.modify
                );
                let entries = earlier.only(|_| false).into_iter().chain(view.only(|_| false));
                judgement.violated(title, entries);
            }
            let (other, at) = *shown.entry((&job.id, job.modify)).or_insert((job, view));
            if other != job {
                let title = format!(
                    "job {} is {} and {} at index {}",
                    job.id, other.status, job.status, job.modify
                );
                let entries = at.only(|_| false).into_iter().chain(view.only(|_| false));
                judgement.violated(title, entries);
            }
        }
    }
}

/// I41 and one state per index. A read that is not complete leaves out what has ended.
fn lives(ordered: &[&View<'_>], judgement: &mut Judgement) {
    let mut last: BTreeMap<&str, (&Allocation, usize)> = BTreeMap::new();
    let mut gone: BTreeMap<&str, usize> = BTreeMap::new();
    for (position, view) in ordered.iter().enumerate() {
        let index = view.snapshot.index;
        if let Some(before) = position.checked_sub(1).map(|before| ordered[before])
            && before.snapshot.index == index
        {
            same(before, view, judgement);
        }
        let mut here: BTreeSet<&str> = BTreeSet::new();
        for allocation in &view.snapshot.allocations {
            let id = allocation.id.as_str();
            here.insert(id);
            let before = last.insert(id, (allocation, position));
            let since = gone.get(id).copied();
            let problem = match (before, since) {
                (_, Some(since)) if !allocation.has_ended() => {
                    Some((since, "had ended and lives again".to_owned()))
                }
                (Some((old, at)), _) => {
                    broken(old, allocation, ordered[at].snapshot.index == index)
                        .map(|problem| (at, problem))
                }
                (None, _) => None,
            };
            if let Some((at, problem)) = problem {
                let title = format!("allocation {id} ({}) {problem}", allocation.name);
                let entries = ordered[at].only(|found| found.id == id).into_iter();
                judgement.violated(title, entries.chain(view.only(|found| found.id == id)));
            }
        }
        let lives = |id: &&str| last.get(*id).is_some_and(|(found, _)| !found.has_ended());
        let missing: Vec<&str> =
            last.keys().copied().filter(lives).filter(|id| !here.contains(id)).collect();
        for id in missing {
            gone.entry(id).or_insert(position);
        }
    }
}

/// One index shows one state: what has not ended is in both.
fn same(one: &View<'_>, other: &View<'_>, judgement: &mut Judgement) {
    let alive = |view: &View<'_>| -> BTreeSet<String> {
        let found = view.snapshot.allocations.iter().filter(|found| !found.has_ended());
        found.map(|found| found.id.clone()).collect()
    };
    if let Some(id) = alive(one).symmetric_difference(&alive(other)).next() {
        let title = format!(
            "index {} shows allocation {id} by one of entries {} and {} only",
            one.snapshot.index, one.answer.index, other.answer.index
        );
        let entries = one.only(|found| found.id == *id).into_iter();
        judgement.violated(title, entries.chain(other.only(|found| found.id == *id)));
    }
}

/// What is wrong with an allocation that was first `old` and then `new`.
fn broken(old: &Allocation, new: &Allocation, same_index: bool) -> Option<String> {
    if same_index && old != new {
        return Some("shows two states at one index".to_owned());
    }
    if new.modify < old.modify {
        return Some(format!("went back from index {} to {}", old.modify, new.modify));
    }
    if old.desired != "run" && new.desired == "run" {
        return Some(format!("was to {} and is to run again", old.desired));
    }
    if old.has_ended() && old.client != new.client {
        return Some(format!("was {} and became {}", old.client, new.client));
    }
    if (&old.node, &old.name, old.create) != (&new.node, &new.name, new.create) {
        return Some("changed its node, its name or its birth".to_owned());
    }
    None
}

/// I42: replacements form chains: one predecessor at most, and no way back to the start.
fn chains(view: &View<'_>, judgement: &mut Judgement) {
    let next: BTreeMap<&str, &str> = view
        .snapshot
        .allocations
        .iter()
        .filter(|allocation| !allocation.next.is_empty())
        .map(|allocation| (allocation.id.as_str(), allocation.next.as_str()))
        .collect();
    let mut previous: BTreeMap<&str, &str> = BTreeMap::new();
    for (one, replacement) in &next {
        if let Some(other) = previous.insert(replacement, one) {
            let title = format!("allocation {replacement} replaces both {other} and {one}");
            judgement.violated(title, view.only(|found| found.next == *replacement));
        }
    }
    for start in next.keys() {
        let mut at = *start;
        for _ in 0..=next.len() {
            match next.get(at) {
                Some(following) => at = following,
                None => break,
            }
            if at == *start {
                let title = format!("allocation {start} replaces itself after a while");
                judgement.violated(title, view.only(|found| found.id == *start));
                break;
            }
        }
    }
}
