//! Named checks of a whole state. They run in tests, in simulation, in debug builds and on request
//! of an operator; none of them is cheap.

use crate::{
    id::{Index, Text},
    limits::LET_IN_MAX,
    node::DrainStatus,
    pool::{Behavior, InstanceState, ShutdownCause},
    resources::{NodeUsage, PortHolder},
    state::State,
};

/// An invariant that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    pub name: &'static str,
    pub detail: String,
}

type Check = (&'static str, fn(&State, &mut Vec<String>));

const CHECKS: &[Check] = &[
    ("derived-indexes", derived_indexes),
    ("node-capacity", node_capacity),
    ("node-ports", node_ports),
    ("live-names", live_names),
    ("references", references),
    ("indexes-ordered", indexes_ordered),
    ("blocked-once", blocked_once),
    ("children-wait", children_wait),
    ("deployment-once", deployment_once),
    ("deployment-counts", deployment_counts),
    ("instance-binding", instance_binding),
    ("instance-life", instance_life),
    ("pool-memory", pool_memory),
    ("capacity-sums", capacity_sums),
    ("capacity-members", capacity_members),
    ("last-drain", last_drain),
    ("digest", digest),
];

/// Runs every check.
pub fn check(state: &State) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (name, run) in CHECKS {
        let mut details = Vec::new();
        run(state, &mut details);
        violations.extend(details.into_iter().map(|detail| Violation { name, detail }));
    }
    violations
}

fn derived_indexes(state: &State, out: &mut Vec<String>) {
    let mut fresh = state.clone();
    fresh.rebuild_derived();
    if fresh.usage != state.usage {
        let nodes = fresh.usage.keys().chain(state.usage.keys());
        for node in nodes.filter(|node| fresh.usage.get(*node) != state.usage.get(*node)) {
            let (found, expected) = (state.usage(*node), fresh.usage(*node));
            out.push(format!("usage of node {node} is {found:?}, recomputed {expected:?}"));
        }
    }
    if fresh.by_node != state.by_node {
        out.push("allocations by node differ from a recomputation".into());
    }
    if fresh.open_by_node != state.open_by_node {
        out.push("open allocations by node differ from a recomputation".into());
    }
    if fresh.by_evaluation != state.by_evaluation {
        out.push("allocations by evaluation differ from a recomputation".into());
    }
    if fresh.by_job != state.by_job {
        for (key, index) in &fresh.by_job {
            if state.by_job.get(key) != Some(index) {
                out.push(format!(
                    "index of job {key} differs: {:?} / {index:?}",
                    state.by_job.get(key)
                ));
            }
        }
        for key in state.by_job.keys().filter(|key| !fresh.by_job.contains_key(*key)) {
            out.push(format!("job {key} has an index and no rows"));
        }
    }
    if fresh.children != state.children {
        let parents = fresh.children.keys().chain(state.children.keys());
        for key in parents.filter(|key| fresh.children.get(*key) != state.children.get(*key)) {
            let (found, expected) = (state.children.get(key), fresh.children.get(key));
            out.push(format!("children of {key} are {found:?}, recomputed {expected:?}"));
        }
    }
    if fresh.occupancy != state.occupancy {
        out.push(format!("occupancy is {:?}, recomputed {:?}", state.occupancy, fresh.occupancy));
    }
    if fresh.census != state.census {
        out.push(format!("census is {:?}, recomputed {:?}", state.census, fresh.census));
    }
    if fresh.instances_by_pool != state.instances_by_pool {
        out.push("instances by pool differ from a recomputation".into());
    }
    if fresh.members_by_group != state.members_by_group {
        out.push("members by group differ from a recomputation".into());
    }
    if fresh.capacity_pools != state.capacity_pools {
        out.push("pools of capacity groups differ from a recomputation".into());
    }
    if fresh.run_deadlines != state.run_deadlines {
        out.push("deadlines of runs differ from a recomputation".into());
    }
    if fresh.per_node_jobs != state.per_node_jobs {
        out.push("per-node jobs differ from a recomputation".into());
    }
    if fresh.sessions_by_time != state.sessions_by_time {
        out.push("sessions by time differ from a recomputation".into());
    }
}

/// What is kept of a node's last drain says whether it lasts.
fn last_drain(state: &State, out: &mut Vec<String>) {
    for node in state.nodes.iter() {
        let status = node.last_drain.as_ref().map(|last| last.status);
        if node.drain.is_some() != (status == Some(DrainStatus::Draining)) {
            out.push(format!("node {}: its last drain is {status:?}", node.id));
        }
    }
}

/// I32: the live allocations of a node fit its resources.
fn node_capacity(state: &State, out: &mut Vec<String>) {
    for node in state.nodes.iter() {
        let usage: &NodeUsage = &state.usage(node.id);
        let available = node.description.resources.available();
        // An agent may shrink its own resources below what runs already; placements are judged at
        // their time.
        let placed_since = state
            .allocations_of_node(node.id)
            .filter(|row| row.is_live())
            .map(|row| row.create_index)
            .max()
            .unwrap_or(0);
        if placed_since >= node.modify_index
            && let Some(dimension) = usage.resources.exceeds(available)
        {
            out.push(format!("node {} is over-committed in {}", node.id, dimension.name()));
        }
    }
}

/// I33: no port has two live holders.
fn node_ports(state: &State, out: &mut Vec<String>) {
    for (node, usage) in &state.usage {
        let mut last: Option<u16> = None;
        for ((port, _), holder) in &usage.ports {
            if *holder == PortHolder::Live {
                if last == Some(*port) {
                    out.push(format!("port {port} of node {node} has two live holders"));
                }
                last = Some(*port);
            }
        }
    }
}

/// I38: a name is live once.
fn live_names(state: &State, out: &mut Vec<String>) {
    let mut seen = std::collections::BTreeMap::new();
    for row in state.allocations.iter().filter(|row| row.is_live()) {
        if let Some(other) = seen.insert((row.job.clone(), row.live_name()), row.id) {
            out.push(format!("{} is live twice: {} and {other}", row.name(), row.id));
        }
    }
}

/// I45: the job version and the node that an allocation refers to exist.
fn references(state: &State, out: &mut Vec<String>) {
    for row in state.allocations.iter() {
        if state.allocation_spec(row).is_none() {
            out.push(format!("allocation {} runs a version that is gone", row.id));
        }
        if row.is_live() && !state.nodes.contains(&row.node) {
            out.push(format!("allocation {} is live on a node that is gone", row.id));
        }
    }
    for job in state.jobs.iter() {
        if state.current_spec(job).is_none() {
            out.push(format!("job {} has no spec", job.key));
        }
    }
}

/// I44: no row was created after its last change, and no index is above the log's.
fn indexes_ordered(state: &State, out: &mut Vec<String>) {
    let last = state.index;
    let mut check = |what: &str, created: Index, modified: Index| {
        if created > modified || modified > last {
            out.push(format!("{what}: created {created}, modified {modified}, log at {last}"));
        }
    };
    for row in state.jobs.iter() {
        check("job", row.create_index, row.modify_index);
    }
    for row in state.nodes.iter() {
        check("node", row.create_index, row.modify_index);
    }
    for row in state.evaluations.iter() {
        check("evaluation", row.create_index, row.modify_index);
    }
    for row in state.allocations.iter() {
        check("allocation", row.create_index, row.modify_index);
    }
    for row in state.deployments.iter() {
        check("deployment", row.create_index, row.modify_index);
    }
    for row in state.instance_pools.iter() {
        check("instance pool", row.create_index, row.modify_index);
    }
    for row in state.instances.iter() {
        check("instance", row.create_index, row.modify_index);
    }
    for row in state.capacity_targets.iter() {
        check("capacity group", row.create_index, row.modify_index);
    }
}

/// I21: at most one blocked evaluation per job, and per (job, node) for jobs that run once per
/// node.
fn blocked_once(state: &State, out: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    for row in state.evaluations.iter() {
        let blocked = row.status == crate::evaluation::EvaluationStatus::Blocked;
        if blocked && !seen.insert((row.job.clone(), row.node)) {
            out.push(format!("job {} has two blocked evaluations", row.job));
        }
    }
}

/// A child that waits has a parent, was not started, and does not wait for nothing.
fn children_wait(state: &State, out: &mut Vec<String>) {
    for row in state.jobs.iter().filter(|row| row.waiting.is_some()) {
        let parent = row.key.parent_key().and_then(|key| state.jobs.get(&key));
        if parent.is_none() || row.stop {
            out.push(format!("job {} waits: stopped {}, {parent:?}", row.key, row.stop));
        }
    }
    for (key, children) in &state.children {
        let bound = match state.running_max(key) {
            0 => LET_IN_MAX as u64,
            max => u64::from(max).min(LET_IN_MAX as u64),
        };
        let (alive, waiting) = (children.alive(), children.waiting.len());
        if waiting > 0 && alive < bound {
            out.push(format!("{waiting} children of {key} wait, and {alive} are alive"));
        }
    }
}

/// I46: at most one deployment of a job goes on, and it is of the job's current version.
fn deployment_once(state: &State, out: &mut Vec<String>) {
    let mut seen = std::collections::BTreeSet::new();
    for row in state.deployments.iter().filter(|row| row.is_active()) {
        if !seen.insert(row.job.clone()) {
            out.push(format!("job {} has two deployments that go on", row.job));
        }
        let job = state.jobs.get(&row.job).filter(|job| !job.stop);
        if job.is_none_or(|job| !row.is_of((job.create_index, job.version))) {
            out.push(format!("deployment {} goes on, its job does not", row.id));
        }
    }
}

/// The counts of a deployment that goes on are those of a recount.
fn deployment_counts(state: &State, out: &mut Vec<String>) {
    for row in state.deployments.iter().filter(|row| row.is_active()) {
        for (name, group) in &row.groups {
            let own = || {
                let rows = state.allocations_of_deployment(row);
                rows.filter(|one| one.group == *name).filter_map(|one| Some((one, one.deployment?)))
            };
            let healthy =
                || own().filter(|(one, part)| one.is_live() && part.is_healthy() == Some(true));
            let canaries = healthy().filter(|(_, part)| part.canary);
            if group.healthy > group.healthy_max {
                out.push(format!("deployment {}: {name} had fewer healthy than it has", row.id));
            }
            let found = (healthy().count(), canaries.count());
            let said = (group.healthy as usize, group.healthy_canaries as usize);
            if found != said {
                out.push(format!(
                    "deployment {}: {name} has {found:?} healthy, says {said:?}",
                    row.id
                ));
            }
        }
    }
}

/// An instance and its node name each other, and the node says as the instance does whether it is
/// given work.
fn instance_binding(state: &State, out: &mut Vec<String>) {
    for node in state.nodes.iter() {
        let Some(named) = node.instance else { continue };
        let Some(row) = state.instances.get(&named.id) else {
            out.push(format!("node {} is instance {}, which is gone", node.id, named.id));
            continue;
        };
        if row.node != Some(node.id) {
            out.push(format!("node {} is instance {} of node {:?}", node.id, row.id, row.node));
        }
        if named.open != row.is_open() {
            let (on_node, on_row) = (named.open, row.is_open());
            out.push(format!("instance {}: open is {on_node}, the row says {on_row}", row.id));
        }
    }
    for row in state.instances.iter() {
        let Some(node) = row.node else { continue };
        let named = state.nodes.get(&node).and_then(|node| node.instance);
        if named.is_none_or(|named| named.id != row.id) {
            out.push(format!("instance {} has node {node}, which is {named:?}", row.id));
        }
    }
}

/// What is remembered for a pool is about the pool and the types that it has now.
fn pool_memory(state: &State, out: &mut Vec<String>) {
    for row in state.unhelped.iter() {
        let pool = state.instance_pools.get(&row.pool);
        if pool.is_none_or(|pool| pool.modify_index != row.pool_modify_index) {
            out.push(format!("job {} is not helped by a pool as it was: {row:?}", row.job));
        }
    }
    for row in state.pool_histories.iter() {
        let pool = state.instance_pools.get(&row.pool);
        let is_known = |kind: &Text| pool.is_some_and(|pool| pool.types.contains_key(kind));
        for kind in row.types.keys().filter(|kind| !is_known(kind)) {
            out.push(format!("type {kind} backs off, and pool {} has none such", row.pool));
        }
    }
}

/// An instance has a deadline until it is shut down, which is not done by machine while it is
/// held.
fn instance_life(state: &State, out: &mut Vec<String>) {
    for row in state.instances.iter() {
        let is_ending = row.state == InstanceState::ShuttingDown;
        if is_ending != row.shutdown.is_some() {
            out.push(format!("instance {} is {:?}: {:?}", row.id, row.state, row.shutdown));
        }
        if !is_ending && row.deadline_at == 0 {
            out.push(format!("instance {} has no deadline", row.id));
        }
        let Some(shutdown) = &row.shutdown else { continue };
        let by_machine = match shutdown.cause {
            ShutdownCause::Operator | ShutdownCause::Unknown | ShutdownCause::Expired => false,
            ShutdownCause::Idle
            | ShutdownCause::Drained
            | ShutdownCause::Shrink
            | ShutdownCause::BootFailed
            | ShutdownCause::ProbeFailed
            | ShutdownCause::Released => shutdown.by.is_empty(),
        };
        if row.behavior == Behavior::Hold && by_machine {
            out.push(format!("instance {} is held, and shut down: {:?}", row.id, shutdown.cause));
        }
    }
}

/// A group's sum is that of its sources, who name declared groups only, and its last decision is
/// about requirements that were there.
fn capacity_sums(state: &State, out: &mut Vec<String>) {
    let mut sums: std::collections::BTreeMap<_, (u64, u32)> = std::collections::BTreeMap::new();
    for source in state.capacity_sources.iter() {
        if source.expired_at > 0 && !source.amounts.is_empty() {
            out.push(format!("source {} has expired and asks for more", source.name));
        }
        for (group, asked) in &source.amounts {
            let (sum, sources) = sums.entry(group.clone()).or_default();
            *sum = sum.saturating_add(asked.amount);
            *sources = sources.saturating_add(1);
            if state.capacity_targets.get(group).is_none_or(|row| row.deleted) {
                out.push(format!("source {} names group {group}, which is gone", source.name));
            }
        }
    }
    for row in state.capacity_targets.iter() {
        let (required, sources) = sums.get(&row.name).copied().unwrap_or_default();
        if (required, sources) != (row.required, row.sources) {
            out.push(format!(
                "group {} needs {} of {} sources, they say {required} of {sources}",
                row.name, row.required, row.sources
            ));
        }
        if row.deleted == state.capacity_group(&row.name).is_some() {
            out.push(format!("group {}: deleted is {}", row.name, row.deleted));
        }
        let Some(decision) = row.decision else { continue };
        if decision.requirements_index > row.requirements_index {
            out.push(format!("group {}: {decision:?} is ahead of {row:?}", row.name));
        }
    }
}

/// A member has a group's row beside it, and is of the group's pool.
fn capacity_members(state: &State, out: &mut Vec<String>) {
    for row in state.instances.iter() {
        let Some(group) = row.group() else { continue };
        let target = state.capacity_targets.get(group);
        if target.is_none_or(|target| target.pool != row.pool) {
            out.push(format!("instance {} of {} is of {group}: {target:?}", row.id, row.pool));
        }
    }
}

/// The running digest is that of the rows.
fn digest(state: &State, out: &mut Vec<String>) {
    let mut sum = crate::digest::Digest::default();
    for (key, frame) in state.frames() {
        sum.add(crate::digest::row_hash(&key, &frame));
    }
    sum.add(crate::digest::row_hash(&[0], &crate::codec::encode(&state.head())));
    if sum != state.digest() {
        out.push(format!("digest is {}, rows give {sum}", state.digest()));
    }
}
