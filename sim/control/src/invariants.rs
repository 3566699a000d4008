//! The invariants of a cluster that rows show, each with its number in the list of promises (I1 to I57), as far as they can be seen from outside of
//! the code that is meant to keep them. They look at rows only, never at derived indexes, and share no code with `apply` or the planner.
//!
//! - [`check_state`]: one state, seen anywhere, at any time.
//! - [`check_suits`]: one state of a cluster whose nodes never change.
//! - [`check_waits`]: one state of a whole log, at any time: what a job lacks is waited for.
//! - [`check_step`]: two states of one log, one after the other.
//! - [`check_kept`]: the same, by somebody who knows which nodes an operator purged.
//! - [`Strikes`]: the same, by somebody who knows which failures were reported.
//! - [`check_quiet`]: the state at the end, when all faults are gone and nothing is left to do.
//! - [`check_round_trip`]: a state and its own bytes.
//!
//! Both simulations use them: the control plane's after each entry, the one of whole nodes on what servers show.

mod ending;
pub(crate) mod evictions;
pub(crate) mod needs;
mod nodes;
mod pools;
mod rollouts;
mod step;
mod strikes;
#[cfg(test)]
mod tests;
mod waiting;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

pub use ending::{check_quiet, check_round_trip};
use fsm::{
    Allocation, AllocationId, EvaluationStatus, Index, JobKind, JobStatus, State, node::GainKey,
    table::TableId,
};
use needs::{has_ended, is_live};
pub use nodes::check_kept;
pub(crate) use nodes::loss_that_is_over;
pub use step::check_step;
pub use strikes::Strikes;
pub use waiting::check_waits;
pub(crate) use waiting::is_woken;

/// A broken invariant: its number, and what was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Broken(pub &'static str, pub String);

impl std::fmt::Display for Broken {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}: {}", self.0, self.1)
    }
}

/// What is wrong with one state.
pub fn check_state(state: &State) -> Vec<Broken> {
    let mut out = Vec::new();
    capacity(state, &mut out);
    ports(state, &mut out);
    names_and_counts(state, &mut out);
    chains(state, &mut out);
    evictions::both_ends(state, &mut out);
    indexes(state, &mut out);
    references(state, &mut out);
    summaries(state, &mut out);
    versions(state, &mut out);
    jobs(state, &mut out);
    places(state, &mut out);
    nodes(state, &mut out);
    blocked_once(state, &mut out);
    distinct_hosts(state, &mut out);
    pools::bindings(state, &mut out);
    out
}

/// I37: what lives is on nodes that suit the version that it runs. Only where nodes never change.
pub fn check_suits(state: &State) -> Vec<Broken> {
    let mut out = Vec::new();
    for row in live(state) {
        let Some(spec) = state.allocation_spec(row) else { continue };
        let node = state.nodes().get(&row.node);
        let Some((group, node)) = spec.group(&row.group).zip(node) else { continue };
        if let Err(why) = needs::suits(spec, group, node) {
            let detail = format!("{} of {} is on {}: {why}", row.id, row.job, row.node);
            out.push(Broken("I37", detail));
        }
    }
    out
}

fn live(state: &State) -> impl Iterator<Item = &Arc<Allocation>> {
    state.allocations().iter().filter(|row| is_live(row))
}

/// I32, I34: what runs or is to run on a node fits it, resource by resource and in number. Simulated agents never shrink.
fn capacity(state: &State, out: &mut Vec<Broken>) {
    let mut by_node: BTreeMap<_, (u32, [u64; 3])> = BTreeMap::new();
    for row in live(state) {
        let (count, sums) = by_node.entry(row.node).or_default();
        *count += 1;
        for (sum, (_, taken)) in sums.iter_mut().zip(needs::taken_by(row)) {
            *sum += taken;
        }
    }
    for (id, (count, sums)) in by_node {
        let Some(node) = state.nodes().get(&id) else { continue };
        for (sum, (name, room)) in sums.into_iter().zip(needs::room_of(node)) {
            if sum > room {
                let detail = format!("node {id} is over-committed in {name}: {sum} of {room}");
                out.push(Broken("I32", detail));
            }
        }
        let most = node.description.resources.allocations_max;
        if most > 0 && count > most {
            out.push(Broken("I34", format!("node {id} has {count} allocations of {most}")));
        }
    }
}

/// I33: no port twice on a node among what is live, none twice in one allocation, dynamic ones in range, none that is reserved. A dynamic port is not
/// given while its holder of before still runs.
fn ports(state: &State, out: &mut Vec<Broken>) {
    let mut holders: BTreeMap<_, AllocationId> = BTreeMap::new();
    let mut stopping: BTreeMap<_, (AllocationId, Index)> = BTreeMap::new();
    for row in state.allocations().iter().filter(|row| !is_live(row) && !has_ended(row)) {
        for port in &row.ports {
            stopping.insert((row.node, port.value), (row.id, row.create_index));
        }
    }
    for row in live(state) {
        let node = state.nodes().get(&row.node);
        for port in &row.ports {
            if let Some(other) = holders.insert((row.node, port.value), row.id) {
                let (node, port) = (row.node, port.value);
                let detail =
                    format!("port {port} of node {node} is held by {other} and {}", row.id);
                out.push(Broken("I33", detail));
            }
            let is_dynamic = is_dynamic(state, row, &port.label);
            if is_dynamic
                && let Some((other, _)) = stopping
                    .get(&(row.node, port.value))
                    .filter(|(_, since)| *since < row.create_index)
            {
                let detail = format!(
                    "dynamic port {} of {} was {other}'s, which still runs",
                    port.value, row.id
                );
                out.push(Broken("I33", detail));
            }
            let Some(node) = node else { continue };
            let resources = &node.description.resources;
            if resources.reserved_ports.contains(&port.value) {
                let detail = format!("{} holds reserved port {}", row.id, port.value);
                out.push(Broken("I33", detail));
            }
            let range = resources.dynamic_port_min..=resources.dynamic_port_max;
            if is_dynamic && !range.contains(&port.value) {
                let detail = format!("dynamic port {} of {} is out of range", port.value, row.id);
                out.push(Broken("I33", detail));
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
        // Canaries come beside those that go on under the new version.
        let deployments = state.deployments_of_job(&job);
        let own = deployments.iter().filter(|row| row.is_of((create_index, version)));
        let canaries = own.filter_map(|row| row.groups.get(&group)).map(|own| own.goal.canaries);
        let count = wanted.count + canaries.max().unwrap_or(0);
        if !spec.kind.is_per_node() && live > count {
            let detail = format!(
                "{live} of {job} version {version} group {group} are live, {count} are wanted"
            );
            out.push(Broken("I38", detail));
        }
    }
}

/// I42: what replaces what is a chain: no cycle, one successor, both ends agree.
fn chains(state: &State, out: &mut Vec<Broken>) {
    let mut successors: BTreeMap<AllocationId, AllocationId> = BTreeMap::new();
    for row in state.allocations().iter() {
        let Some(previous) = row.previous else { continue };
        if let Some(other) = successors.insert(previous, row.id) {
            let detail = format!("{previous} is replaced by {other} and by {}", row.id);
            out.push(Broken("I42", detail));
        }
        if let Some(before) = state.allocations().get(&previous)
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
    let last = state.index();
    let mut check = |table: TableId, created: Index, modified: Index| {
        let of_table = state.table_index(table);
        if created > modified || modified > last || modified > of_table.max(1) {
            let detail = format!(
                "a row of {table:?} was created at {created} and modified at {modified}; its table was at {of_table}, the log at {last}"
            );
            out.push(Broken("I44", detail));
        }
    };
    for row in state.jobs().iter() {
        check(TableId::Jobs, row.create_index, row.modify_index);
    }
    for row in state.nodes().iter() {
        check(TableId::Nodes, row.create_index, row.modify_index);
    }
    for row in state.evaluations().iter() {
        check(TableId::Evaluations, row.create_index, row.modify_index);
    }
    for row in state.allocations().iter() {
        check(TableId::Allocations, row.create_index, row.modify_index);
    }
    for gain in state.capacity_gains().iter().filter(|gain| gain.index > last) {
        out.push(Broken("I44", format!("{:?} gained at {}", gain.key, gain.index)));
    }
}

/// I45: what an allocation refers to is there.
fn references(state: &State, out: &mut Vec<Broken>) {
    for row in state.allocations().iter() {
        if state.allocation_spec(row).is_none() {
            out.push(Broken("I45", format!("{} runs a version that is gone", row.id)));
        }
        if is_live(row) && !state.nodes().contains(&row.node) {
            out.push(Broken("I45", format!("{} is live on a node that is gone", row.id)));
        }
        if !state.evaluations().contains(&row.evaluation) {
            let detail = format!("the evaluation {} of {} is gone", row.evaluation, row.id);
            out.push(Broken("I45", detail));
        }
    }
    for gain in state.capacity_gains().iter() {
        if let GainKey::Node(node) = gain.key
            && !state.nodes().contains(&node)
        {
            out.push(Broken("I45", format!("node {node} is gone and has gained room")));
        }
    }
}

/// I45: a job's summary is what its allocations say.
fn summaries(state: &State, out: &mut Vec<Broken>) {
    let mut counted: BTreeMap<_, [u32; 6]> = BTreeMap::new();
    for row in state.allocations().iter() {
        let key = (row.job_create_index, row.group.clone());
        let counts = counted.entry((row.job.clone(), key)).or_default();
        counts[row.client as usize] += 1;
    }
    for job in state.jobs().iter() {
        let groups = state.job_index(&job.key).map(|index| index.summary.keys().cloned());
        for group in groups.into_iter().flatten() {
            counted.entry((job.key.clone(), group)).or_default();
        }
    }
    for ((job, key), counts) in counted {
        let summary = state.job_index(&job).and_then(|index| index.summary.get(&key).copied());
        let group = key.1;
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

/// I45: a version is kept exactly as long as its job or an allocation may want it.
fn versions(state: &State, out: &mut Vec<Broken>) {
    let used: BTreeSet<_> = state
        .allocations()
        .iter()
        .map(|row| (&row.job, row.job_create_index, row.job_version))
        .collect();
    for row in state.job_versions().iter() {
        let (key, created, version) = (&row.spec.key, row.create_index, row.version);
        let current = state.jobs().get(key).filter(|job| job.create_index == created);
        if current.is_none() && !used.contains(&(key, created, version)) {
            out.push(Broken("I45", format!("version {version} of {key} is left behind")));
        }
        if current.is_some_and(|job| job.version < version) {
            out.push(Broken("I43", format!("version {version} of {key} is newer than its job")));
        }
    }
}

/// I45: a job row is what its spec says; per-node jobs are known as such; and its status is what becomes of it.
fn jobs(state: &State, out: &mut Vec<Broken>) {
    for job in state.jobs().iter() {
        let key = &job.key;
        let Some(spec) = state.current_spec(job) else {
            out.push(Broken("I45", format!("{key} has no spec of version {}", job.version)));
            continue;
        };
        if (spec.priority, spec.kind) != (job.priority, job.kind) {
            out.push(Broken("I45", format!("priority or kind of {key} is not its spec's")));
        }
        if job.status == JobStatus::Dead && needs::goes_on(state, job) {
            out.push(Broken("I45", format!("{key} is dead and goes on")));
        }
    }
    let known: BTreeSet<_> = state.per_node_jobs().cloned().collect();
    let found = state.jobs().iter().filter(|job| job.kind.is_per_node());
    let found: BTreeSet<_> = found.map(|job| job.key.clone()).collect();
    if known != found {
        out.push(Broken("I45", format!("per-node jobs are {known:?}, the rows give {found:?}")));
    }
}

/// I45: what runs or is to run is in a namespace that is there, and wants nodes of a pool that is there.
fn places(state: &State, out: &mut Vec<Broken>) {
    for job in state.jobs().iter() {
        let key = &job.key;
        let runs = match job.kind {
            JobKind::System | JobKind::Sysbatch => !job.stop,
            JobKind::Service | JobKind::Batch => live(state).any(|row| row.job == *key),
        };
        if runs && !state.namespaces().contains(&key.namespace) {
            out.push(Broken("I45", format!("{key} goes on in a namespace that is gone")));
        }
        let pool = state.current_spec(job).map(|spec| &spec.node_pool);
        if let Some(pool) = pool.filter(|pool| !job.stop && !state.node_pools().contains(*pool)) {
            out.push(Broken("I45", format!("{key} wants nodes of pool {pool}, which is gone")));
        }
    }
}

/// I36: who drains gets nothing, also when the drain is over. A class holds nodes that no constraint can tell apart, and only these.
fn nodes(state: &State, out: &mut Vec<Broken>) {
    let mut classes = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for node in state.nodes().iter() {
        // An instance that drains is out of service by what it is set to.
        let is_open = node.instance.is_none_or(|instance| instance.open);
        if node.drain.is_some() && !node.eligibility.ineligible && is_open {
            out.push(Broken("I36", format!("node {} drains and is eligible", node.id)));
        }
        let shared = |map: &BTreeMap<fsm::Text, fsm::Text>| {
            let mut shared = map.clone();
            shared.retain(|key, _| !key.starts_with("unique."));
            shared
        };
        let description = &node.description;
        let drivers = description.drivers.iter();
        let drivers: Vec<_> = drivers
            .map(|(name, driver)| (name.clone(), driver.detected && driver.healthy))
            .collect();
        let kind = (
            (description.datacenter.clone(), description.class.clone(), description.pool.clone()),
            (shared(&description.attributes), shared(&description.meta), drivers),
        );
        let other_class = classes.insert(kind.clone(), node.class);
        let other_kind = kinds.insert(node.class, kind.clone());
        if other_class.is_some_and(|other| other != node.class)
            || other_kind.is_some_and(|other| other != kind)
        {
            out.push(Broken("I37", format!("node {} is in the wrong class", node.id)));
        }
    }
}

/// I21: a job has at most one blocked evaluation (one per node for jobs that run once per node).
fn blocked_once(state: &State, out: &mut Vec<Broken>) {
    let mut seen = BTreeSet::new();
    for row in state.evaluations().iter().filter(|row| row.status == EvaluationStatus::Blocked) {
        if !seen.insert((row.job.clone(), row.node)) {
            out.push(Broken("I21", format!("{} has two blocked evaluations", row.job)));
        }
    }
}

/// I37: who wants hosts of its own, or so many in a datacenter, has them, within one version of its job.
fn distinct_hosts(state: &State, out: &mut Vec<Broken>) {
    let mut seen = BTreeMap::new();
    let mut in_datacenter: BTreeMap<_, usize> = BTreeMap::new();
    for row in live(state).filter(|row| !row.per_node) {
        let Some(spec) = state.allocation_spec(row) else { continue };
        let Some(group) = spec.group(&row.group) else { continue };
        let (of_job, of_group) = needs::wants_own_host(spec, group);
        let version = (row.job.clone(), row.job_create_index, row.job_version);
        let datacenter = state.nodes().get(&row.node).map(|node| &node.description.datacenter);
        if let Some((most, datacenter)) = needs::most_in_datacenter(spec).zip(datacenter) {
            let count = in_datacenter.entry((version.clone(), datacenter)).or_insert(0);
            *count += 1;
            if *count > most {
                let detail = format!("{count} of {} are in {datacenter}, {most} may be", row.job);
                out.push(Broken("I37", detail));
            }
        }
        let scopes = [
            of_job.then(|| (version.clone(), None, row.node)),
            of_group.then(|| (version.clone(), Some(row.group.clone()), row.node)),
        ];
        for scope in scopes.into_iter().flatten() {
            if let Some(other) = seen.insert(scope, row.id) {
                let detail =
                    format!("{other} and {} of {} share node {}", row.id, row.job, row.node);
                out.push(Broken("I37", detail));
            }
        }
    }
}
