//! Is there one machine for each intent, and no other, whatever happens to the servers?
//!
//! Judges the elastic workload, from what the servers list and what the kernel says of the instances' agents.
//!
//! - At every moment: no more agents than the pool may have, never two of one instance, no agent whose instance was never in a row although a
//!   consistent read looked for it while the agent lived (the intent comes before the call), no more rows than the pool may have.
//! - What an operator holds stays, and is not shut down, until somebody says otherwise.
//! - Whenever everything has settled after the last heal: instances that were started, less those that were destroyed, are the rows, and the rows are
//!   the agents that live; each instance was started once; every job runs what it was given last.
//!
//! An agent whose row came and went is the late outcome of a create that an older leader had under way: servers find it by its tag and destroy it. It counts only
//! in the settled state, where there must be none.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::{Pair, pairs};
use crate::{
    history::{Function, Op, Process},
    workload::elastic::MACHINES_MAX,
};

/// An instance and the number of its agent's process.
type Agent = (String, u64);

/// What lived at one moment.
struct Look<'a> {
    op: &'a Op,
    agents: Vec<Agent>,
}

/// A row: state and behavior.
type Row = (String, String);

/// An answered list of the instances.
struct Listed<'a> {
    pair: Pair<'a>,
    answer: &'a Op,
    rows: BTreeMap<String, Row>,
}

/// Between two entries of the history, both included, an agent lived for sure.
struct Life<'a> {
    first: &'a Op,
    /// The last look but one that shows it: the last began afterwards, and still found it.
    until: &'a Op,
    last: &'a Op,
}

/// What was counted when everything had settled.
struct Settled {
    agents: Vec<Agent>,
    started: Vec<Agent>,
    destroyed: BTreeSet<String>,
    running: BTreeMap<String, u64>,
}

/// Judges a history of the elastic workload.
pub(crate) fn check(history: &[Op]) -> Result<Judgement> {
    let begin = Instant::now();
    let pairs = pairs(history)?;
    let looks = looks(history)?;
    let lists = lists(&pairs)?;
    let mut judgement = Judgement::new("elastic", pairs.len());
    judge_looks(&looks, &lists, &mut judgement);
    judge_intents(&looks, &lists, &mut judgement);
    judge_rows(&lists, &mut judgement);
    let holds = judge_holds(&pairs, &lists, &mut judgement);
    let (mut settled, mut started) = (0, 0);
    for list in &lists {
        if let Some(counted) = settled_of(list.answer)? {
            judge_settled(list, &counted, &mut judgement);
            judge_counts(&pairs, list, &counted, &mut judgement);
            (settled, started) = (settled + 1, started.max(counted.started.len()));
        }
    }
    let living_max = looks.iter().map(|look| look.agents.len()).max().unwrap_or(0);
    judgement.summary = format!(
        "{} lists of instances, {} looks at processes, {started} machines made, at most {living_max} at a time, \
         {holds} holds, {settled} lists after everything had settled",
        lists.len(),
        looks.len(),
    );
    judgement.details = json!({
        "lists": lists.len(),
        "looks": looks.len(),
        "machines": started,
        "machines_max": living_max,
        "holds": holds,
        "settled": settled,
    });
    if judgement.valid == Verdict::True {
        if living_max == 0 || started == 0 {
            judgement.lacks("no machine was ever seen");
        }
        if settled == 0 {
            judgement.lacks("no settled state was ever read");
        }
    }
    judgement.elapsed_ms = begin.elapsed().as_millis();
    Ok(judgement)
}

fn agents(value: &Value) -> Option<Vec<Agent>> {
    let agent = |row: &Value| Some((row.get(0)?.as_str()?.to_owned(), row.get(1)?.as_u64()?));
    value.as_array()?.iter().map(agent).collect()
}

fn looks(history: &[Op]) -> Result<Vec<Look<'_>>> {
    let looks = history.iter().filter(|op| op.process == Process::Nemesis);
    let look = |op| Some(Look { op, agents: agents(&op.value)? });
    let looks = looks.filter(|op| op.f == Function::Machines);
    looks
        .map(|op| look(op).with_context(|| format!("entry {}: no list of agents", op.index)))
        .collect()
}

/// In the order of their ends.
fn lists<'a>(pairs: &[Pair<'a>]) -> Result<Vec<Listed<'a>>> {
    let text = |row: &Value, place: usize| Some(row.get(place)?.as_str()?.to_owned());
    let row = |row: &Value| Some((text(row, 0)?, (text(row, 1)?, text(row, 2)?)));
    let mut lists = Vec::new();
    for pair in pairs.iter().filter(|pair| pair.start.f == Function::Read) {
        let Some(answer) = pair.answer() else { continue };
        let rows: Option<BTreeMap<String, Row>> =
            answer.value.as_array().and_then(|rows| rows.iter().map(row).collect());
        let rows = rows.with_context(|| format!("entry {}: no list of instances", answer.index))?;
        lists.push(Listed { pair: *pair, answer, rows });
    }
    lists.sort_by_key(|list| list.answer.index);
    Ok(lists)
}

/// What was counted with a list, if anything was.
fn settled_of(answer: &Op) -> Result<Option<Settled>> {
    let Some(detail) = &answer.detail else { return Ok(None) };
    let of = || {
        Some(Settled {
            agents: agents(detail.get("agents")?)?,
            started: agents(detail.get("started")?)?,
            destroyed: serde_json::from_value(detail.get("destroyed")?.clone()).ok()?,
            running: serde_json::from_value(detail.get("running")?.clone()).ok()?,
        })
    };
    of().map(Some).with_context(|| format!("entry {}: not what was counted", answer.index))
}

/// Whether the instance's row had come and gone before this entry.
fn is_late(instance: &str, entry: u64, lists: &[Listed<'_>]) -> bool {
    let before = lists.iter().filter(|list| list.answer.index < entry);
    let shown: Vec<bool> = before.map(|list| list.rows.contains_key(instance)).collect();
    shown.contains(&true) && shown.last() == Some(&false)
}

/// The bound of the pool, and one agent for one instance, at each look.
fn judge_looks(looks: &[Look<'_>], lists: &[Listed<'_>], judgement: &mut Judgement) {
    for look in looks {
        for pair in look.agents.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
            let [(instance, first), (_, second)] = pair else { continue };
            let title = format!("instance {instance} has two agents, {first} and {second}");
            judgement.violated(title, [look.op.clone()]);
        }
        if look.agents.len() > MACHINES_MAX {
            let counts = |agent: &&Agent| !is_late(&agent.0, look.op.index, lists);
            let counted = look.agents.iter().filter(counts).count();
            if counted > MACHINES_MAX {
                let title = format!("{counted} agents live, at most {MACHINES_MAX} may");
                judgement.violated(title, [look.op.clone()]);
            }
        }
    }
}

fn lives<'a>(looks: &'a [Look<'a>]) -> BTreeMap<&'a Agent, Life<'a>> {
    let mut lives: BTreeMap<&Agent, Life<'_>> = BTreeMap::new();
    for look in looks {
        for agent in &look.agents {
            let new = Life { first: look.op, until: look.op, last: look.op };
            let life = lives.entry(agent).or_insert(new);
            (life.until, life.last) = (life.last, look.op);
        }
    }
    lives
}

/// No agent lives before its instance has a row.
fn judge_intents(looks: &[Look<'_>], lists: &[Listed<'_>], judgement: &mut Judgement) {
    for ((instance, pid), life) in lives(looks) {
        let during = |list: &&Listed<'_>| {
            life.first.index < list.pair.start.index && list.answer.index < life.until.index
        };
        let without = |list: &&Listed<'_>| {
            let before = lists.iter().filter(|one| one.answer.index < list.pair.start.index);
            let mut seen = before.chain([*list]);
            !seen.any(|list| list.rows.contains_key(instance))
        };
        if let Some(list) = lists.iter().filter(during).find(without) {
            let title = format!("instance {instance} has no row, and its agent {pid} lives");
            let looks = [life.first.clone(), life.last.clone()];
            judgement.violated(title, list.pair.entries().chain(looks));
        }
    }
}

/// The bound of the pool in the servers' own eyes. What is shut down may be a machine that came too late.
fn judge_rows(lists: &[Listed<'_>], judgement: &mut Judgement) {
    for list in lists {
        let wanted = list.rows.values().filter(|(state, _)| state != "shutdown").count();
        if wanted > MACHINES_MAX {
            let title = format!("{wanted} instances are listed, at most {MACHINES_MAX} may be");
            judgement.violated(title, list.pair.entries());
        }
    }
}

/// What an operator holds stays. How many holds there were that nobody ended.
fn judge_holds(pairs: &[Pair<'_>], lists: &[Listed<'_>], judgement: &mut Judgement) -> usize {
    let mut holds = 0;
    let end = pairs.iter().find(|pair| pair.start.last_phase);
    let end = end.map_or(u64::MAX, |pair| pair.start.index);
    for hold in pairs {
        let (Some((instance, "hold")), Some(answer)) = (behavior(hold), hold.answer()) else {
            continue;
        };
        let ends = |other: &Pair<'_>| {
            let is_over = other.answer().is_some_and(|end| end.index < hold.start.index);
            match behavior(other) {
                Some((id, what)) => id == instance && what != "hold" && !is_over,
                // Also one that had ended before: it may just not have been gone yet.
                None => {
                    other.start.f == Function::ShutDownInstance
                        && other.start.value.as_str() == Some(instance)
                }
            }
        };
        if pairs.iter().any(|other| !other.failed() && ends(other)) {
            continue;
        }
        holds += 1;
        let stays = |list: &&Listed<'_>| {
            list.rows.get(instance).is_some_and(|(state, _)| state != "shutdown")
        };
        let mut after = lists
            .iter()
            .filter(|list| list.pair.start.index > answer.index && list.answer.index < end);
        if let Some(list) = after.find(|list| !stays(list)) {
            let title = format!("instance {instance} is held, and was shut down");
            judgement.violated(title, hold.entries().chain(list.pair.entries()));
        }
    }
    holds
}

/// The instance and what it was set to.
fn behavior<'a>(pair: &Pair<'a>) -> Option<(&'a str, &'a str)> {
    let value = &pair.start.value;
    let is_behavior = pair.start.f == Function::SetBehavior;
    is_behavior.then(|| Some((value.get(0)?.as_str()?, value.get(1)?.as_str()?))).flatten()
}

/// Started less destroyed, rows, and agents are the same instances.
fn judge_settled(list: &Listed<'_>, counted: &Settled, judgement: &mut Judgement) {
    let mut violated = |title: String| judgement.violated(title, list.pair.entries());
    let rows: BTreeSet<&str> = list.rows.keys().map(String::as_str).collect();
    let mut living: BTreeMap<&str, usize> = BTreeMap::new();
    for (instance, _) in &counted.agents {
        *living.entry(instance).or_default() += 1;
    }
    for (instance, agents) in &living {
        if *agents > 1 {
            violated(format!("instance {instance} has {agents} agents after all has settled"));
        }
        if !rows.contains(instance) {
            violated(format!("the agent of instance {instance} was left over, without a row"));
        }
    }
    for instance in rows.iter().filter(|row| !living.contains_key(*row)) {
        violated(format!("instance {instance} has a row, and no agent lives"));
    }
    let mut starts: BTreeMap<&str, usize> = BTreeMap::new();
    for (instance, _) in &counted.started {
        *starts.entry(instance).or_default() += 1;
    }
    for (instance, starts) in starts {
        if starts > 1 {
            violated(format!("instance {instance} was made {starts} times"));
        }
        let (is_destroyed, has_row) =
            (counted.destroyed.contains(instance), rows.contains(instance));
        if !is_destroyed && !has_row {
            violated(format!("instance {instance} was made, never destroyed, and has no row"));
        }
        if is_destroyed && has_row {
            violated(format!("instance {instance} was destroyed, and has a row"));
        }
    }
}

/// Every job runs what it was given last, unless a change of unknown outcome may have come after it.
fn judge_counts(
    pairs: &[Pair<'_>],
    list: &Listed<'_>,
    counted: &Settled,
    judgement: &mut Judgement,
) {
    let changes: Vec<(&Pair<'_>, &str, u64)> = pairs.iter().filter_map(change).collect();
    let mut given: BTreeMap<&str, u64> = BTreeMap::new();
    for (pair, job, count) in &changes {
        let is_before = pair.answer().is_some_and(|end| end.index < list.pair.start.index);
        if pair.start.last_phase && is_before {
            given.insert(job, *count);
        }
    }
    for (job, count) in given {
        let runs = counted.running.get(job).copied().unwrap_or(0);
        let explains = |(pair, other, found): &(&Pair<'_>, &str, u64)| {
            pair.answer().is_none() && *other == job && *found == runs
        };
        if runs != count && !changes.iter().any(explains) {
            let title = format!("{job} was given {count} last, and {runs} run");
            judgement.violated(title, list.pair.entries());
        }
    }
}

/// The job and the count of a change that may have taken effect.
fn change<'a, 'b>(pair: &'b Pair<'a>) -> Option<(&'b Pair<'a>, &'a str, u64)> {
    let is_change = matches!(pair.start.f, Function::Scale | Function::Purge) && !pair.failed();
    let value = &pair.start.value;
    is_change.then(|| Some((pair, value.get(0)?.as_str()?, value.get(1)?.as_u64()?))).flatten()
}
