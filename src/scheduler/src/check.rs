//! An independent checker of plans: which rules would a plan break if it were applied to this
//! state? It shares no code with the planner, and sums over all allocations instead of trusting
//! derived indexes. It is slow on purpose: it is for tests, simulation and debugging.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, AllocationId, JobKind, JobSpec, Liveness, Node, NodeId, Placement, Plan, State,
    TaskGroup, Text, job::Constraint,
};

/// A rule that a plan breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Violation {
    /// The plan places or updates instances, but its job or job version does not exist, or the job
    /// is stopped.
    JobNotWanted,
    /// A placement names a group that the job does not have.
    UnknownGroup(Text),
    /// A placement's id is used twice in the plan, or an allocation has it already.
    DuplicateId(AllocationId),
    /// A stop or in-place update names an allocation that does not exist, is of another job, or is
    /// named twice.
    BadChange(AllocationId),
    /// A placement's node does not exist or is not in service.
    NodeUnusable(NodeId),
    /// A placement's node is outside the job's datacenters or pool.
    NodeNotWanted(NodeId),
    /// A placement's node does not meet a constraint or lacks a driver.
    Infeasible(NodeId, Text),
    /// The node would carry more than it has. The text names the dimension: `cpu`, `memory`, `disk`
    /// or `allocations`.
    OverCommitted(NodeId, &'static str),
    /// An allocation is evicted twice, or must not be evicted for this placement.
    BadEviction(AllocationId),
    /// A static port is given twice, or the placements need more dynamic ports than are free.
    Ports(NodeId),
    /// Two live allocations would have the same name after the plan.
    NameTwice(Text, u32),
    /// The group would have more instances than its count, or more canaries than it wants.
    TooMany(Text),
}

/// The rules that `plan` breaks; empty for a correct plan.
pub fn check(state: &State, plan: &Plan) -> Vec<Violation> {
    let mut found = Vec::new();
    let stopped = plan.stops.iter().map(|stop| stop.id);
    let evicted = plan.placements.iter().flat_map(|placement| placement.preempts.iter().copied());
    let ended: BTreeSet<AllocationId> = stopped.chain(evicted).collect();
    check_changes(state, plan, &mut found);
    if plan.placements.is_empty() && plan.in_place.is_empty() {
        return found;
    }
    let spec = state
        .jobs()
        .get(&plan.job)
        .filter(|job| {
            !job.stop
                && job.create_index == plan.job_create_index
                && job.version == plan.job_version
        })
        .and_then(|job| state.job_spec(&job.key, job.create_index, job.version));
    let Some(spec) = spec else {
        found.push(Violation::JobNotWanted);
        return found;
    };
    check_placements(state, plan, spec, &mut found);
    check_evictions(state, plan, spec, &mut found);
    check_names(state, plan, spec, &ended, &mut found);
    check_room(state, plan, spec, &ended, &mut found);
    found
}

fn check_changes(state: &State, plan: &Plan, found: &mut Vec<Violation>) {
    let mut changed = BTreeSet::new();
    let stops = plan.stops.iter().map(|stop| stop.id);
    for id in stops.chain(plan.in_place.iter().map(|in_place| in_place.id)) {
        let known = state.allocations().get(&id).is_some_and(|row| row.job == plan.job);
        if !known || !changed.insert(id) {
            found.push(Violation::BadChange(id));
        }
    }
    let mut ids = BTreeSet::new();
    for placement in &plan.placements {
        if state.allocations().contains(&placement.id) || !ids.insert(placement.id) {
            found.push(Violation::DuplicateId(placement.id));
        }
    }
}

fn check_placements(state: &State, plan: &Plan, spec: &JobSpec, found: &mut Vec<Violation>) {
    for placement in &plan.placements {
        let older = placed_spec(state, plan, placement);
        let placed = if placement.version.is_none() { Some(spec) } else { older };
        let Some(group) = placed.and_then(|placed| placed.group(&placement.group)) else {
            found.push(Violation::UnknownGroup(placement.group.clone()));
            continue;
        };
        // An instance of an older version may fill a gap only below that version's count. A
        // placement with a predecessor is exempt.
        let comes_back = older.is_some() && placement.previous.is_none();
        if comes_back && !spec.kind.is_per_node() && placement.name_index >= group.count {
            found.push(Violation::TooMany(placement.group.clone()));
        }
        let usable = state.nodes().get(&placement.node).filter(|node| {
            node.liveness == Liveness::Ready
                && node.health == fsm::node::Health::Ok
                && !node.eligibility.ineligible
                && node.drain.is_none()
        });
        let Some(node) = usable else {
            found.push(Violation::NodeUnusable(placement.node));
            continue;
        };
        let datacenter = &node.description.datacenter;
        let in_datacenter = spec.datacenters.iter().any(|pattern| {
            // This check accepts every datacenter pattern with a `*`. The planner alone evaluates
            // those.
            pattern == datacenter || pattern.contains('*')
        });
        let in_pool = &*spec.node_pool == "all" || spec.node_pool == node.description.pool;
        if !in_datacenter || !in_pool {
            found.push(Violation::NodeNotWanted(node.id));
        }
        check_feasible(spec, group, node, found);
    }
}

/// The spec of the older version that a placement runs; `None` if it runs the plan's version.
fn placed_spec<'s>(state: &'s State, plan: &Plan, placement: &Placement) -> Option<&'s JobSpec> {
    let version = placement.version?;
    state.job_spec(&plan.job, plan.job_create_index, version).map(|spec| &**spec)
}

/// Checks the evictions. The evicted allocation must be live, on the placement's node, and of
/// another job whose priority is lower by at least 10. It may be evicted only once. Preemption must
/// be switched on for the kind of the placed job.
fn check_evictions(state: &State, plan: &Plan, spec: &JobSpec, found: &mut Vec<Violation>) {
    let settings = state.scheduler_configuration().preemption;
    let may = match spec.kind {
        JobKind::System => settings.system,
        JobKind::Sysbatch => settings.sysbatch,
        JobKind::Batch => settings.batch,
        JobKind::Service => settings.service,
    };
    let mut seen = BTreeSet::new();
    for placement in &plan.placements {
        for id in &placement.preempts {
            let is_lower = state.allocations().get(id).is_some_and(|row| {
                let job = state.job_spec(&row.job, row.job_create_index, row.job_version);
                runs(row)
                    && row.node == placement.node
                    && row.job != plan.job
                    && job
                        .is_some_and(|job| u32::from(job.priority) + 10 <= u32::from(spec.priority))
            });
            if !may || !is_lower || !seen.insert(*id) {
                found.push(Violation::BadEviction(*id));
            }
        }
    }
}

fn check_feasible(spec: &JobSpec, group: &TaskGroup, node: &Node, found: &mut Vec<Violation>) {
    for task in &group.tasks {
        let driver = node.description.drivers.get(&task.driver);
        if !driver.is_some_and(|driver| driver.detected && driver.healthy) {
            found.push(Violation::Infeasible(node.id, task.driver.clone()));
        }
    }
    let of_tasks = group.tasks.iter().flat_map(|task| &task.constraints);
    for constraint in spec.constraints.iter().chain(&group.constraints).chain(of_tasks) {
        if equality_holds(constraint, node) == Some(false) {
            found.push(Violation::Infeasible(node.id, constraint.left.clone()));
        }
    }
}

/// Evaluates `=` and `!=` on attributes, meta and the datacenter. `None`: another kind of
/// constraint, which is not checked here.
fn equality_holds(constraint: &Constraint, node: &Node) -> Option<bool> {
    let name = constraint.left.strip_prefix("${")?.strip_suffix('}')?;
    let description = &node.description;
    let value = if let Some(key) = name.strip_prefix("attr.") {
        description.attributes.get(key)
    } else if let Some(key) = name.strip_prefix("meta.") {
        description.meta.get(key)
    } else if name == "node.datacenter" {
        Some(&description.datacenter)
    } else {
        return None;
    };
    if constraint.right.starts_with("${") {
        return None;
    }
    match &*constraint.operand {
        "=" | "==" | "is" => Some(value == Some(&constraint.right)),
        "!=" | "not" => Some(value != Some(&constraint.right)),
        _ => None,
    }
}

fn check_names(
    state: &State,
    plan: &Plan,
    spec: &JobSpec,
    ended: &BTreeSet<AllocationId>,
    found: &mut Vec<Violation>,
) {
    let per_node = spec.kind.is_per_node();
    // Canaries have names of their own and a count of their own, beside those of other instances.
    let mut live: BTreeSet<(Text, u32, Option<NodeId>, bool)> = BTreeSet::new();
    let mut counts: BTreeMap<(Text, bool), u32> = BTreeMap::new();
    for row in state.allocations().iter() {
        if row.job == plan.job && runs(row) && !ended.contains(&row.id) {
            let canary = row.is_canary();
            live.insert((row.group.clone(), row.name_index, per_node.then_some(row.node), canary));
            *counts.entry((row.group.clone(), canary)).or_default() += 1;
        }
    }
    for placement in &plan.placements {
        let (group, canary) = (&placement.group, placement.canary);
        let node = per_node.then_some(placement.node);
        if !live.insert((group.clone(), placement.name_index, node, canary)) {
            found.push(Violation::NameTwice(group.clone(), placement.name_index));
        }
        let count = counts.entry((group.clone(), canary)).or_default();
        *count += 1;
        let wanted = spec.group(group).map_or(0, |group| {
            let canaries = group.update.map_or(0, |update| update.canaries);
            if canary { canaries } else { group.count }
        });
        if !per_node && *count > wanted {
            found.push(Violation::TooMany(placement.group.clone()));
        }
    }
}

fn check_room(
    state: &State,
    plan: &Plan,
    spec: &JobSpec,
    ended: &BTreeSet<AllocationId>,
    found: &mut Vec<Violation>,
) {
    let nodes: BTreeSet<NodeId> = plan.placements.iter().map(|placement| placement.node).collect();
    for id in nodes {
        let Some(node) = state.nodes().get(&id) else { continue };
        let mut load = Load::default();
        for row in state.allocations().iter().filter(|row| row.node == id) {
            load.existing(row, ended.contains(&row.id));
        }
        for placement in plan.placements.iter().filter(|placement| placement.node == id) {
            let placed = placed_spec(state, plan, placement).unwrap_or(spec);
            if let Some(group) = placed.group(&placement.group) {
                load.placed(group);
            }
        }
        load.check(node, found);
    }
}

fn runs(row: &Allocation) -> bool {
    row.is_live()
}

/// What a node would carry after the plan.
#[derive(Default)]
struct Load {
    cpu_mhz: u64,
    memory_mb: u64,
    disk_mb: u64,
    allocations: u64,
    /// Ports of allocations that keep running. No placement may use them.
    kept_ports: BTreeSet<u16>,
    /// Ports of allocations that are stopping. A placement may ask for such a port as a static
    /// port, but must not get it as a dynamic one.
    stopping_ports: BTreeSet<u16>,
    static_ports: Vec<u16>,
    dynamic_ports: u64,
}

impl Load {
    fn existing(&mut self, row: &Allocation, ended: bool) {
        let goes_on = runs(row) && !ended;
        if goes_on {
            self.cpu_mhz += row.resources.cpu_mhz;
            self.memory_mb += row.resources.memory_mb;
            self.disk_mb += row.resources.disk_mb;
            self.allocations += 1;
        }
        if !row.client.is_terminal() {
            let ports = if goes_on { &mut self.kept_ports } else { &mut self.stopping_ports };
            ports.extend(row.ports.iter().map(|port| port.value));
        }
    }

    fn placed(&mut self, group: &TaskGroup) {
        self.disk_mb += group.disk_mb;
        for task in &group.tasks {
            self.cpu_mhz += task.resources.cpu_mhz;
            self.memory_mb += task.resources.memory_mb;
        }
        self.allocations += 1;
        for port in group.network.iter().flat_map(|network| &network.ports) {
            if port.value == 0 {
                self.dynamic_ports += 1;
            } else {
                self.static_ports.push(port.value);
            }
        }
    }

    fn check(mut self, node: &Node, found: &mut Vec<Violation>) {
        let resources = &node.description.resources;
        let (total, kept) = (resources.total, resources.reserved);
        for (name, used, all, reserved) in [
            ("cpu", self.cpu_mhz, total.cpu_mhz, kept.cpu_mhz),
            ("memory", self.memory_mb, total.memory_mb, kept.memory_mb),
            ("disk", self.disk_mb, total.disk_mb, kept.disk_mb),
        ] {
            if used + reserved > all {
                found.push(Violation::OverCommitted(node.id, name));
            }
        }
        if resources.allocations_max > 0 && self.allocations > u64::from(resources.allocations_max)
        {
            found.push(Violation::OverCommitted(node.id, "allocations"));
        }
        let mut taken = self.kept_ports;
        taken.extend(&resources.reserved_ports);
        for port in &self.static_ports {
            if !taken.insert(*port) {
                found.push(Violation::Ports(node.id));
            }
        }
        taken.append(&mut self.stopping_ports);
        let free = (resources.dynamic_port_min..=resources.dynamic_port_max)
            .filter(|port| !taken.contains(port))
            .count();
        if self.dynamic_ports > free as u64 {
            found.push(Violation::Ports(node.id));
        }
    }
}
