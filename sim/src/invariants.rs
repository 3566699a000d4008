//! The invariants of a cluster, each with its number in the list of promises (I1 to I56), as far as they can be seen from outside of the code that
//! is meant to keep them. They look at rows and messages only, never at derived indexes, and share no code with `apply` or the planner.
//!
//! - [`check_state`]: one state, seen anywhere, at any time.
//! - [`check_step`]: two states of one log, one after the other.
//! - [`check_quiet`]: the state at the end, when all faults are gone and nothing is left to do.
//! - [`history`]: what servers say and promise over time.
//! - [`disk`]: what lies on disks.

pub(crate) mod disk;
pub(crate) mod history;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

pub(crate) use disk::Disks;
use fsm::{
    Allocation, AllocationId, DesiredStatus, EvaluationStatus, Index, JobKind, State,
    resources::Resources, table::TableId,
};
pub(crate) use history::{Applied, Leaders, NodeDeaths, Votes};

use crate::autopsy::Remains;

/// A broken invariant: its number, and what was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Broken(pub(crate) &'static str, pub(crate) String);

impl std::fmt::Display for Broken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {}", self.0, self.1)
    }
}

/// What is wrong with one state.
pub(crate) fn check_state(state: &State) -> Vec<Broken> {
    let mut out = Vec::new();
    capacity(state, &mut out);
    ports(state, &mut out);
    names_and_counts(state, &mut out);
    chains(state, &mut out);
    indexes(state, &mut out);
    references(state, &mut out);
    blocked_once(state, &mut out);
    distinct_hosts(state, &mut out);
    out
}

fn live(state: &State) -> impl Iterator<Item = &std::sync::Arc<Allocation>> {
    state.allocations.iter().filter(|row| row.is_live())
}

/// I32: what runs or is to run on a node fits it, resource by resource. Simulated agents never shrink.
fn capacity(state: &State, out: &mut Vec<Broken>) {
    for node in state.nodes.iter() {
        let on_node = live(state).filter(|row| row.node == node.id);
        let used = on_node.fold(Resources::default(), |sum, row| sum.plus(row.resources));
        if let Some(dimension) = used.exceeds(node.description.resources.available()) {
            let detail = format!("node {} is over-committed in {}", node.id, dimension.name());
            out.push(Broken("I32", detail));
        }
    }
}

/// I33: no port twice on a node among what is live, none twice in one allocation, dynamic ones in range, none that is reserved.
fn ports(state: &State, out: &mut Vec<Broken>) {
    let mut holders: BTreeMap<_, AllocationId> = BTreeMap::new();
    for row in live(state) {
        let node = state.nodes.get(&row.node);
        for port in &row.ports {
            if let Some(other) = holders.insert((row.node, port.value), row.id) {
                let (node, port) = (row.node, port.value);
                let detail =
                    format!("port {port} of node {node} is held by {other} and {}", row.id);
                out.push(Broken("I33", detail));
            }
            if let Some(node) = node {
                let resources = &node.description.resources;
                if resources.reserved_ports.contains(&port.value) {
                    let detail = format!("{} holds reserved port {}", row.id, port.value);
                    out.push(Broken("I33", detail));
                }
                let range = resources.dynamic_port_min..=resources.dynamic_port_max;
                if is_dynamic(state, row, &port.label) && !range.contains(&port.value) {
                    let detail =
                        format!("dynamic port {} of {} is out of range", port.value, row.id);
                    out.push(Broken("I33", detail));
                }
            }
        }
    }
}

fn is_dynamic(state: &State, row: &Allocation, label: &str) -> bool {
    let spec = state.allocation_spec(row);
    let group = spec.and_then(|spec| spec.group(&row.group));
    let asks = group.and_then(|group| group.network.as_ref()).map(|network| &network.ports);
    asks.is_some_and(|asks| asks.iter().any(|ask| &*ask.label == label && ask.value == 0))
}

/// I38: a name is live once, and of each version of a group at most `count` are live.
fn names_and_counts(state: &State, out: &mut Vec<Broken>) {
    let mut names = BTreeMap::new();
    let mut counts: BTreeMap<_, u32> = BTreeMap::new();
    for row in live(state) {
        if let Some(other) = names.insert((row.job.clone(), row.live_name()), row.id) {
            out.push(Broken(
                "I38",
                format!("{} is live twice: {other} and {}", row.name(), row.id),
            ));
        }
        let version = (row.job.clone(), row.job_create_index, row.job_version, row.group.clone());
        *counts.entry(version).or_default() += 1;
    }
    for ((job, create_index, version, group), live) in counts {
        let Some(spec) = state.job_spec(&job, create_index, version) else { continue };
        let Some(wanted) = spec.group(&group) else { continue };
        if !spec.kind.is_per_node() && live > wanted.count {
            let detail = format!(
                "{live} of {job} version {version} group {group} are live, {} are wanted",
                wanted.count
            );
            out.push(Broken("I38", detail));
        }
    }
}

/// I42: what replaces what is a chain: no cycle, one successor, both ends agree.
fn chains(state: &State, out: &mut Vec<Broken>) {
    let mut successors: BTreeMap<AllocationId, AllocationId> = BTreeMap::new();
    for row in state.allocations.iter() {
        let Some(previous) = row.previous else { continue };
        if let Some(other) = successors.insert(previous, row.id) {
            let detail = format!("{previous} is replaced by {other} and by {}", row.id);
            out.push(Broken("I42", detail));
        }
        if let Some(before) = state.allocations.get(&previous)
            && before.next != Some(row.id)
        {
            let detail = format!("{} replaces {previous}, which names {:?}", row.id, before.next);
            out.push(Broken("I42", detail));
        }
    }
    for first in successors.keys() {
        let mut seen = BTreeSet::new();
        let mut at = Some(*first);
        while let Some(id) = at {
            if !seen.insert(id) {
                out.push(Broken("I42", format!("{first} is replaced in a circle")));
                return;
            }
            at = successors.get(&id).copied();
        }
    }
}

/// I44: created, then modified, then the log's end; and no row is newer than its table.
fn indexes(state: &State, out: &mut Vec<Broken>) {
    let last = state.head.index;
    let mut check = |table: TableId, created: Index, modified: Index| {
        let of_table = state.table_index(table);
        if created > modified || modified > last || modified > of_table.max(1) {
            let detail = format!(
                "a row of {table:?} was created at {created} and modified at {modified}; its table was at {of_table}, the log at {last}"
            );
            out.push(Broken("I44", detail));
        }
    };
    for row in state.jobs.iter() {
        check(TableId::Jobs, row.create_index, row.modify_index);
    }
    for row in state.nodes.iter() {
        check(TableId::Nodes, row.create_index, row.modify_index);
    }
    for row in state.evaluations.iter() {
        check(TableId::Evaluations, row.create_index, row.modify_index);
    }
    for row in state.allocations.iter() {
        check(TableId::Allocations, row.create_index, row.modify_index);
    }
}

/// I45: what an allocation refers to is there, and a job's summary is what its allocations say.
fn references(state: &State, out: &mut Vec<Broken>) {
    let mut counted: BTreeMap<_, [u32; 6]> = BTreeMap::new();
    for row in state.allocations.iter() {
        if state.allocation_spec(row).is_none() {
            out.push(Broken("I45", format!("{} runs a version that is gone", row.id)));
        }
        if row.is_live() && !state.nodes.contains(&row.node) {
            out.push(Broken("I45", format!("{} is live on a node that is gone", row.id)));
        }
        let counts = counted.entry((row.job.clone(), row.group.clone())).or_default();
        counts[row.client as usize] += 1;
    }
    for ((job, group), counts) in counted {
        let summary = state.job_index(&job).and_then(|index| index.summary.get(&group).copied());
        let summary = summary.unwrap_or_default();
        let stored = [
            summary.starting,
            summary.running,
            summary.complete,
            summary.failed,
            summary.lost,
            summary.unknown,
        ];
        if stored != counts {
            let detail =
                format!("summary of {job} {group} is {stored:?}, its allocations give {counts:?}");
            out.push(Broken("I45", detail));
        }
    }
}

/// I21: a job has at most one blocked evaluation (one per node for jobs that run once per node).
fn blocked_once(state: &State, out: &mut Vec<Broken>) {
    let mut seen = BTreeSet::new();
    for row in state.evaluations.iter().filter(|row| row.status == EvaluationStatus::Blocked) {
        if !seen.insert((row.job.clone(), row.node)) {
            out.push(Broken("I21", format!("{} has two blocked evaluations", row.job)));
        }
    }
}

/// I37: a group that wants distinct hosts has them, within one version of its job.
fn distinct_hosts(state: &State, out: &mut Vec<Broken>) {
    let mut seen = BTreeMap::new();
    for row in live(state) {
        let Some(spec) = state.allocation_spec(row) else { continue };
        let of_group = spec.group(&row.group).map(|group| &group.constraints);
        let all = spec.constraints.iter().chain(of_group.into_iter().flatten());
        let is_distinct = all.into_iter().any(|one| &*one.operand == "distinct_hosts");
        let place = (row.job.clone(), row.job_version, row.group.clone(), row.node);
        if is_distinct && let Some(other) = seen.insert(place, row.id) {
            let detail = format!("{other} and {} of {} share node {}", row.id, row.job, row.node);
            out.push(Broken("I37", detail));
        }
    }
}

/// What is wrong with a step from one state to a later one of the same log. `old` and `new` may be several entries apart.
pub(crate) fn check_step(old: &State, new: &State) -> Vec<Broken> {
    let mut out = Vec::new();
    if new.head.index <= old.head.index || new.head.term < old.head.term {
        let (before, after) = (&old.head, &new.head);
        let detail = format!(
            "applied {} of term {} after {} of term {}",
            after.index, after.term, before.index, before.term
        );
        out.push(Broken("I7", detail));
    }
    if new.head.at < old.head.at {
        out.push(Broken("I7", format!("log time went from {} to {}", old.head.at, new.head.at)));
    }
    let one_entry = new.head.index == old.head.index + 1;
    evaluations_step(old, new, &mut out);
    allocations_step(old, new, one_entry, &mut out);
    jobs_step(old, new, one_entry, &mut out);
    nodes_step(old, new, &mut out);
    out
}

/// I24: what has ended stays as it ended, and nobody loses an evaluation that has not (I18).
fn evaluations_step(old: &State, new: &State, out: &mut Vec<Broken>) {
    for before in old.evaluations.iter() {
        let Some(after) = new.evaluations.get(&before.id) else {
            if !before.status.is_terminal() {
                out.push(Broken("I18", format!("evaluation {} vanished unfinished", before.id)));
            }
            continue;
        };
        if before.status.is_terminal() && after.status != before.status {
            let (id, from, to) = (before.id, before.status.name(), after.status.name());
            out.push(Broken("I24", format!("evaluation {id} went from {from} to {to}")));
        }
    }
}

/// I41: an allocation that is to end, or has ended, never lives again. I36, I40: what is new is wanted, on a node in service.
fn allocations_step(old: &State, new: &State, one_entry: bool, out: &mut Vec<Broken>) {
    for before in old.allocations.iter() {
        let Some(after) = new.allocations.get(&before.id) else { continue };
        if std::sync::Arc::ptr_eq(before, after) {
            continue;
        }
        if before.desired != DesiredStatus::Run && after.desired == DesiredStatus::Run {
            out.push(Broken("I41", format!("{} is wanted again", before.id)));
        }
        if before.client.is_terminal() && after.client != before.client {
            let (id, from, to) = (before.id, before.client.name(), after.client.name());
            out.push(Broken("I41", format!("{id} went from {from} to {to}")));
        }
    }
    if !one_entry {
        return;
    }
    for row in new.allocations.iter().filter(|row| row.create_index == new.head.index) {
        if !old.nodes.get(&row.node).is_some_and(|node| node.is_schedulable()) {
            let detail = format!("{} was placed on {}, which is not in service", row.id, row.node);
            out.push(Broken("I36", detail));
        }
        let job = old.jobs.get(&row.job);
        let is_current = job.is_some_and(|job| {
            job.create_index == row.job_create_index && job.version == row.job_version
        });
        if job.is_none_or(|job| job.stop) {
            out.push(Broken("I40", format!("{} was placed for a job that is stopped", row.id)));
        } else if !is_current {
            let detail = format!("{} was placed for an old version of {}", row.id, row.job);
            out.push(Broken("I31", detail));
        }
    }
}

/// I43: versions only rise, by one at a time, within one life of a job.
fn jobs_step(old: &State, new: &State, one_entry: bool, out: &mut Vec<Broken>) {
    for before in old.jobs.iter() {
        let Some(after) = new.jobs.get(&before.key) else { continue };
        if after.create_index < before.create_index {
            out.push(Broken("I43", format!("{} is an older job of that name", before.key)));
        }
        if after.create_index != before.create_index {
            continue;
        }
        let jumped = one_entry && after.version > before.version + 1;
        if after.version < before.version || jumped {
            let (from, to) = (before.version, after.version);
            out.push(Broken("I43", format!("{} went from version {from} to {to}", before.key)));
        }
        let back = after.job_modify_index < before.job_modify_index
            || after.last_plan_index < before.last_plan_index;
        if back {
            out.push(Broken("I43", format!("an index of {} went back", before.key)));
        }
    }
}

/// B14: a node's incarnation never falls.
fn nodes_step(old: &State, new: &State, out: &mut Vec<Broken>) {
    for before in old.nodes.iter() {
        if let Some(after) = new.nodes.get(&before.id)
            && after.incarnation < before.incarnation
        {
            let detail = format!("the incarnation of node {} fell", before.id);
            out.push(Broken("I7", detail));
        }
    }
}

/// What is wrong with a state in which nothing is left to do: open evaluations (I18, I25, I56), and jobs that are not as they should be (I39).
pub(crate) fn check_quiet(state: &State) -> Vec<Broken> {
    let mut out = Vec::new();
    for row in state.evaluations.iter() {
        // One that waits for its time is not late.
        if row.status == EvaluationStatus::Pending && row.wait_until <= state.head.at {
            let (id, trigger) = (row.id, row.trigger.name());
            out.push(Broken(
                "I56",
                format!("evaluation {id} ({trigger}) of {} is pending", row.job),
            ));
        }
    }
    for job in state.jobs.iter().filter(|job| job.kind == JobKind::Service && !job.parameterized) {
        let Some(spec) = state.current_spec(job) else { continue };
        for group in &spec.groups {
            let of_group = |row: &&std::sync::Arc<Allocation>| {
                row.job == job.key && row.group == group.name && row.is_live()
            };
            let live = live(state).filter(of_group).count();
            let wanted = if job.stop { 0 } else { group.count as usize };
            let blocked = state
                .evaluations_of_job(&job.key)
                .filter(|row| row.status == EvaluationStatus::Blocked)
                .count();
            if live > wanted || live < wanted && blocked != 1 {
                let detail = format!(
                    "{} has {live} of {wanted} instances of {} and {blocked} blocked evaluations",
                    job.key, group.name
                );
                out.push(Broken("I39", detail));
            }
        }
    }
    out
}

/// I9: a state that goes through its own bytes comes back the same, with every derived index.
pub(crate) fn check_round_trip(state: &State) -> Vec<Broken> {
    let mut copy = State::default();
    for (key, frame) in state.frames() {
        if let Err(error) = copy.load_row(&key, &frame) {
            return vec![Broken("I9", format!("a row does not load: {error}"))];
        }
    }
    copy.load_done(state.head.clone());
    let (given, loaded) = (state.digest(), copy.digest());
    let mut out = Vec::new();
    if given != loaded {
        out.push(Broken("I9", format!("digest {given} became {loaded} over its own bytes")));
    }
    let inside = fsm::invariant::check(state);
    out.extend(
        inside.into_iter().map(|one| Broken("I45", format!("{}: {}", one.name, one.detail))),
    );
    out
}
