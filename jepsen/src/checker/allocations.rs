//! Does every job get what it asks for, however agents come and go?
//!
//! Judges the allocs workload. At every read: the rules of [`super::views`], and no live allocation has a
//! number in its name that no registration so far asked for. At the end, on every server: each job asks for what it was given last, and runs exactly that
//! many, under different names, all running (I39). And in the agents' own records and by the locks that tasks hold: what runs there is what the
//! servers say, nothing less and nothing more, and no allocation ran twice at once (I49); the rest of what tasks tell is judged by
//! [`super::task_records`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::Verdict;
use super::agent_records::Records;
use super::judgement::Judgement;
use super::pairs::Pair;
use super::task_records::{self, Tasks};
use super::views::{self, View, views};
use crate::history::{Function, Op};

/// Judges a history of the allocs workload; `evidence` is what agents and tasks wrote down, if they did.
pub(crate) fn check(history: &[Op], evidence: Option<(Records, &Tasks)>) -> Result<Judgement> {
    let started = Instant::now();
    let evidence = evidence.map(|(mut records, tasks)| {
        tasks.add_to(&mut records);
        (records, tasks)
    });
    let records = evidence.as_ref().map(|(records, _)| records);
    let (pairs, views) = views(history)?;
    let mut judgement = Judgement::new("allocations", pairs.len());
    views::check(&views, &mut judgement);
    let changes: Vec<Change<'_>> = pairs.iter().filter_map(Change::of).collect();
    judge_counts(&changes, &views, &mut judgement);
    let last: Vec<&View<'_>> = views.iter().filter(|view| view.answer.last_phase).collect();
    for view in &last {
        judge_converged(view, &mut judgement);
        judge_last(&changes, view, &mut judgement);
    }
    if let Some((records, tasks)) = &evidence {
        task_records::judge(history, (records, tasks), &views, &mut judgement);
        if let Some(view) = last.last() {
            judge_records(records, view, &mut judgement);
        }
    }
    let faults = views::agent_faults(history);
    let live = |view: &View<'_>| view.snapshot.allocations.iter().filter(|a| a.is_live()).count();
    let live_max = views.iter().map(live).max().unwrap_or(0);
    let starts = records.map_or(0, |records| records.starts);
    let tasks = evidence.as_ref().map(|(_, tasks)| *tasks);
    let task_starts = tasks.map_or(0, Tasks::starts);
    judgement.summary = format!(
        "{} reads, at most {live_max} live allocations, {starts} starts on agents, {task_starts} of them of \
         real processes, {faults} faults of agents, {} reads after everything had settled",
        views.len(),
        last.len()
    );
    judgement.details = json!({
        "reads": views.len(),
        "live_max": live_max,
        "agent_starts": starts,
        "task_starts": task_starts,
        "agent_faults": faults,
        "settled_reads": last.len(),
    });
    if judgement.valid == Verdict::True {
        if live_max == 0 || last.is_empty() {
            judgement.lacks("no settled state with an allocation was ever read");
        }
        if faults == 0 {
            judgement.lacks("no agent was ever killed or frozen");
        }
        if records.is_some() && starts == 0 {
            judgement.lacks("the agents recorded no start");
        }
        if tasks.is_some_and(|tasks| tasks.starts() == 0 || !tasks.tell_the_end()) {
            judgement.lacks("no process of a real node was ever seen");
        }
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

/// A registration or a stop that may have taken effect.
struct Change<'a> {
    /// Where it begins in the history.
    start: u64,
    /// None: nobody knows whether it took effect, or will.
    end: Option<u64>,
    in_last_phase: bool,
    job: &'a str,
    /// 0: the job was stopped.
    count: u64,
}

impl<'a> Change<'a> {
    fn of(pair: &Pair<'a>) -> Option<Self> {
        let is_change = matches!(pair.start.f, Function::Scale | Function::Stop);
        if !is_change || pair.failed() {
            return None;
        }
        let value = &pair.start.value;
        Some(Self {
            start: pair.start.index,
            end: pair.answer().map(|end| end.index),
            in_last_phase: pair.start.last_phase,
            job: value.get(0)?.as_str()?,
            count: value.get(1)?.as_u64()?,
        })
    }
}

/// The largest count asked for by any registration that may have happened before the read ended.
fn judge_counts(changes: &[Change<'_>], views: &[View<'_>], judgement: &mut Judgement) {
    for view in views {
        let mut asked: BTreeMap<&str, u64> = BTreeMap::new();
        for change in changes.iter().filter(|change| change.start < view.answer.index) {
            let most = asked.entry(change.job).or_default();
            *most = (*most).max(change.count);
        }
        for allocation in view.snapshot.allocations.iter().filter(|found| found.is_live()) {
            let most = asked.get(allocation.job.as_str()).copied().unwrap_or(0);
            if allocation.name_index().is_none_or(|index| index >= most) {
                let title = format!(
                    "{} is live at index {}; nobody asked for more than {most}",
                    allocation.name, view.snapshot.index
                );
                judgement.violated(title, view.only(|found| found.id == allocation.id));
            }
        }
    }
}

/// In the last phase one thing is done after the other: what was acknowledged last is what the job asks for, unless a change of unknown outcome may have
/// come after it.
fn judge_last(changes: &[Change<'_>], view: &View<'_>, judgement: &mut Judgement) {
    let mut last: BTreeMap<&str, u64> = BTreeMap::new();
    for change in changes.iter().filter(|change| change.in_last_phase) {
        if change.end.is_some_and(|end| end < view.answer.index) {
            last.insert(change.job, change.count);
        }
    }
    for (job, count) in last {
        let found = view.snapshot.counts.get(job).copied().unwrap_or(0);
        let mut unknown = changes.iter().filter(|change| change.end.is_none());
        if found != count && !unknown.any(|change| change.job == job && change.count == found) {
            let title = format!(
                "{job} was given {count} last, and asks for {found} at index {}",
                view.snapshot.index
            );
            judgement.violated(title, view.only(|found| found.job == job));
        }
    }
}

/// Each job runs as many as it asks for, of different names. Which names is the scheduler's: where the instances 0 and 1 of a job of ten were lost while it
/// was scaled to five, the instances 2 to 6 stay.
fn judge_converged(view: &View<'_>, judgement: &mut Judgement) {
    let snapshot = &view.snapshot;
    let mut found: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for allocation in snapshot.allocations.iter().filter(|found| found.is_live()) {
        let names = found.entry(allocation.job.as_str()).or_default();
        names.insert(allocation.name_index().unwrap_or(u64::MAX));
    }
    let jobs = snapshot.counts.keys().map(String::as_str).chain(found.keys().copied());
    for job in jobs.collect::<BTreeSet<_>>() {
        let wanted = snapshot.counts.get(job).copied().unwrap_or(0);
        let names = found.get(job).cloned().unwrap_or_default();
        if names.len() as u64 != wanted {
            let title = format!(
                "on {} nothing moves any more, and {job} asks for {wanted} and runs {names:?}",
                view.answer.node.as_deref().unwrap_or("a server")
            );
            let of_job = view.only(|found| found.job == job && found.is_live());
            judgement.violated(title, of_job);
        }
    }
}

/// Whether the agents run what the servers said last, if these had settled.
pub(crate) fn agents_agree(history: &[Op], running: &BTreeSet<String>) -> Result<bool> {
    let (_, views) = views(history)?;
    let last = views.iter().rev().find(|view| view.answer.last_phase);
    Ok(last.is_none_or(|view| wanted(view) == running.iter().map(String::as_str).collect()))
}

/// The allocations that the servers want.
fn wanted<'a>(view: &'a View<'_>) -> BTreeSet<&'a str> {
    let live = view.snapshot.allocations.iter().filter(|found| found.is_live());
    live.map(|found| found.id.as_str()).collect()
}

/// The agents' records against what the servers say at the end.
fn judge_records(records: &Records, view: &View<'_>, judgement: &mut Judgement) {
    for twice in &records.twice {
        let id = twice.as_str();
        let title = format!("allocation {id} ran twice at once, by the agents' records");
        judgement.violated(title, view.only(|found| found.id == id));
    }
    for returned in &records.returned {
        let id = returned.as_str();
        let title = format!(
            "allocation {id} was forgotten by its agent while it ran, which was told of it again"
        );
        judgement.violated(title, view.only(|found| found.id == id));
    }
    let wanted = wanted(view);
    let running: BTreeSet<&str> = records.running.iter().map(String::as_str).collect();
    for id in running.difference(&wanted) {
        let title = format!("allocation {id} still runs on its agent; the servers do not want it");
        judgement.violated(title, view.only(|found| found.id == *id));
    }
    for id in wanted.difference(&running) {
        let title = format!("allocation {id} runs in the servers' eyes, but not on its agent");
        judgement.violated(title, view.only(|found| found.id == *id));
    }
}
