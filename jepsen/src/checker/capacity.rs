//! Does everything fit, at every read of the bank workload?
//!
//! For each node: what its live allocations hold is at most what it offers (I32); no port has two of them,
//! dynamic ports lie in the node's range (I33). A node takes allocations or not, as it was told last (I14). Then the rules of
//! [`super::views`]. A run in which no node was ever nearly full proves nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::{Value, json};

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::Pair;
use super::register::{CONFIGURATIONS_MAX, Register};
use super::shares::judge_each;
use super::views::{self, View, views};
use super::wgl::{Budget, Outcome};
use crate::{
    history::{Function, Kind, Op},
    workload::snapshot::{Allocation, Node},
};

/// The share of a node that must have been in use at some read, in percent.
const FULL_PERCENT: u64 = 80;

/// The fullest any node was.
#[derive(Default)]
struct Peak {
    percent: u64,
    live: usize,
}

/// Judges a history of the bank workload.
pub(crate) fn check(history: &[Op], time_max: Duration) -> Result<Judgement> {
    let started = Instant::now();
    let budget = Budget { deadline: started + time_max, configurations_max: CONFIGURATIONS_MAX };
    let (pairs, views) = views(history)?;
    let mut judgement = Judgement::new("capacity", pairs.len());
    let mut peak = Peak::default();
    for view in &views {
        judge(view, &mut peak, &mut judgement);
    }
    views::check(&views, &mut judgement);
    let faults = views::agent_faults(history);
    judgement.summary = format!(
        "{} reads, at most {} live allocations, a node {} % full, {faults} faults of agents",
        views.len(),
        peak.live,
        peak.percent
    );
    judgement.details = json!({
        "reads": views.len(),
        "live_max": peak.live,
        "full_percent_max": peak.percent,
        "agent_faults": faults,
    });
    judge_marks(&pairs, &views, &budget, &mut judgement);
    if judgement.valid == Verdict::True {
        if peak.percent < FULL_PERCENT {
            judgement.lacks("no node was ever nearly full");
        }
        if faults == 0 {
            judgement.lacks("no agent was ever killed or frozen");
        }
    }
    judgement.elapsed_ms = started.elapsed().as_millis();
    Ok(judgement)
}

fn judge(view: &View<'_>, peak: &mut Peak, judgement: &mut Judgement) {
    let mut on_node: BTreeMap<&str, Vec<&Allocation>> = BTreeMap::new();
    for allocation in view.snapshot.allocations.iter().filter(|found| found.is_live()) {
        on_node.entry(&allocation.node).or_default().push(allocation);
    }
    peak.live = peak.live.max(on_node.values().map(Vec::len).sum());
    for (id, allocations) in on_node {
        let problem = match view.snapshot.nodes.iter().find(|node| node.id == id) {
            None => Some("does not exist".to_owned()),
            Some(node) => {
                overcommitted(node, &allocations, peak).or_else(|| clash(node, &allocations))
            }
        };
        if let Some(problem) = problem {
            let title = format!("node {id} {problem} at index {}", view.snapshot.index);
            judgement.violated(title, view.only(|found| found.node == id && found.is_live()));
        }
    }
}

/// I14: whether a node takes allocations is a register. A node begins as one that takes them; an end of a drain makes it one again.
fn judge_marks(pairs: &[Pair<'_>], views: &[View<'_>], budget: &Budget, judgement: &mut Judgement) {
    let register = Register { start: &json!(true), cas: false };
    let judge = |(_, entries): &(&str, Vec<Op>), budget: &Budget| register.judge(entries, budget);
    let judged = judge_each(marks(pairs, views), budget, judge);
    for ((node, entries), outcome) in judged.expect("these are reads and writes") {
        match outcome {
            Outcome::Yes => {}
            Outcome::Unknown(reason) => judgement.lacks(&format!("node {node}: {reason}")),
            Outcome::No => {
                let small = register.reduce(&entries);
                let last = small.iter().rfind(|op| op.f == Function::Read && op.kind == Kind::Ok);
                let shown = last.map_or(&Value::Null, |op| &op.value);
                let title = format!(
                    "node {node} is shown with eligible {shown}, which it was not made last"
                );
                judgement.violated(title, small);
            }
        }
    }
}

/// For each node what made it take allocations or not, and what reads showed of that, as the writes and reads of a register.
fn marks<'a>(pairs: &'a [Pair<'_>], views: &'a [View<'_>]) -> BTreeMap<&'a str, Vec<Op>> {
    let mut marks: BTreeMap<&str, Vec<Op>> = BTreeMap::new();
    let mut add = |node: &'a str, pair: &Pair<'_>, f: Function, eligible: bool| {
        let entries = pair.entries().map(|op| Op { f, value: json!(eligible), ..op });
        marks.entry(node).or_default().extend(entries);
    };
    for pair in pairs {
        let value = &pair.start.value;
        let f = pair.start.f;
        let (node, eligible) = if f == Function::MarkNode {
            (value[0].as_str(), value[1].as_bool())
        } else if f == Function::DrainNode || f == Function::RestoreNode {
            (value.as_str(), Some(f == Function::RestoreNode))
        } else {
            continue;
        };
        if let (Some(node), Some(eligible)) = (node, eligible) {
            add(node, pair, Function::Write, eligible);
        }
    }
    for view in views {
        for node in &view.snapshot.nodes {
            if let Some(eligible) = node.eligible {
                add(&node.id, &view.pair, Function::Read, eligible);
            }
        }
    }
    for entries in marks.values_mut() {
        entries.sort_by_key(|op| op.index);
    }
    marks
}

fn overcommitted(node: &Node, allocations: &[&Allocation], peak: &mut Peak) -> Option<String> {
    let cpu: u64 = allocations.iter().map(|found| found.cpu).sum();
    let memory: u64 = allocations.iter().map(|found| found.memory).sum();
    for (used, offered) in [(cpu, node.cpu), (memory, node.memory)] {
        peak.percent = peak.percent.max((used * 100).checked_div(offered).unwrap_or(0));
    }
    if cpu > node.cpu {
        return Some(format!("offers {} MHz, of which {cpu} are taken,", node.cpu));
    }
    if memory > node.memory {
        return Some(format!("offers {} MB, of which {memory} are taken,", node.memory));
    }
    None
}

fn clash(node: &Node, allocations: &[&Allocation]) -> Option<String> {
    let mut holders: BTreeMap<u16, &str> = BTreeMap::new();
    let [first, last] = node.ports;
    for allocation in allocations {
        let out_of_range =
            allocation.dynamic_ports.iter().find(|port| !(first..=last).contains(*port));
        if let Some(port) = out_of_range {
            return Some(format!("gives out port {port}, which is not in {first}-{last},"));
        }
        for port in allocation.static_ports.iter().chain(&allocation.dynamic_ports) {
            if let Some(other) = holders.insert(*port, &allocation.id) {
                return Some(format!("gives port {port} to {other} and {},", allocation.id));
            }
        }
    }
    None
}
