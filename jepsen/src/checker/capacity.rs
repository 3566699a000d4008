//! Does everything fit, at every read of the bank workload?
//!
//! For each node: what its live allocations hold is at most what it offers (I32); no port has two of them,
//! dynamic ports lie in the node's range (I33). A node takes allocations or not, as it was told last (I14). Then the rules of
//! [`super::views`]. A run in which no node was ever nearly full proves nothing.

use std::collections::BTreeMap;
use std::time::Instant;

use anyhow::Result;
use serde_json::json;

use super::Verdict;
use super::judgement::Judgement;
use super::pairs::Pair;
use super::views::{self, View, views};
use crate::history::{Function, Op};
use crate::workload::snapshot::{Allocation, Node};

/// The share of a node that must have been in use at some read, in percent.
const FULL_PERCENT: u64 = 80;

/// The fullest any node was.
#[derive(Default)]
struct Peak {
    percent: u64,
    live: usize,
}

/// Judges a history of the bank workload.
pub(crate) fn check(history: &[Op]) -> Result<Judgement> {
    let started = Instant::now();
    let (pairs, views) = views(history)?;
    let mut judgement = Judgement::new("capacity", pairs.len());
    let mut peak = Peak::default();
    for view in &views {
        judge(view, &mut peak, &mut judgement);
    }
    views::check(&views, &mut judgement);
    judge_marks(&pairs, &views, &mut judgement);
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

/// Something that made a node take allocations, or not.
struct Mark<'a> {
    eligible: bool,
    pair: &'a Pair<'a>,
}

impl Mark<'_> {
    /// The entry by which it had happened, if it certainly has.
    fn end(&self) -> Option<u64> {
        self.pair.answer().map(|answer| answer.index)
    }
}

/// I14: whether a node takes allocations is a register, and this a necessary condition: some change to what is shown could have been the
/// last before the read. A node begins as one that takes them; an end of a drain makes it one again.
fn judge_marks(pairs: &[Pair<'_>], views: &[View<'_>], judgement: &mut Judgement) {
    let mut marks: BTreeMap<&str, Vec<Mark<'_>>> = BTreeMap::new();
    for pair in pairs.iter().filter(|pair| !pair.failed()) {
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
            marks.entry(node).or_default().push(Mark { eligible, pair });
        }
    }
    for view in views {
        let (start, end) = (view.pair.start.index, view.answer.index);
        for node in &view.snapshot.nodes {
            let Some(eligible) = node.eligible else { continue };
            let marks = marks.get(node.id.as_str()).map_or(&[][..], Vec::as_slice);
            let against = marks.iter().filter(|mark| mark.eligible != eligible);
            let against = against.filter(|mark| mark.end().is_some_and(|end| end < start));
            let last_against = against.max_by_key(|mark| mark.pair.start.index);
            let since = last_against.map_or(0, |mark| mark.pair.start.index);
            let explains = |mark: &Mark<'_>| {
                mark.eligible == eligible
                    && mark.pair.start.index < end
                    && mark.end().is_none_or(|end| end > since)
            };
            let is_first = eligible && last_against.is_none();
            if !is_first && !marks.iter().any(explains) {
                let title = format!(
                    "node {} is shown with eligible {eligible}, which it was not made last",
                    node.id
                );
                let told = last_against.into_iter().flat_map(|mark| mark.pair.entries());
                judgement.violated(title, told.chain(view.only(|_| false)));
            }
        }
    }
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
