//! Plans against a model that shares nothing with the planner: what a plan places may be there,
//! what it leaves out could not be placed, what it stops had to stop, and the numbers add up.
//! Random clusters with other jobs, pools, datacenters, ports, constraints; random changes.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Allocation, AllocationId, ClientStatus, DeploymentStatus, DesiredStatus, EvaluationStatus,
    JobKind, JobSpec, Liveness, Node, NodeId, Placement, Plan, State, TaskGroup, Text, Trigger,
    deployment::{DeploymentGroup, FailDeployment, PromoteDeployment},
    job::{Affinity, Constraint, Network, PortAsk, Spread},
    node::Health,
    resources::Resources,
};
use proptest::prelude::*;
use regex::Regex;

use super::{
    Cluster,
    cluster::{PlanExt, update},
    job, node,
};

/// Nodes of a random cluster.
const NODES: usize = 7;

fn glob(pattern: &str, text: &str) -> bool {
    let parts: Vec<_> = pattern.split('*').map(regex::escape).collect();
    Regex::new(&format!("^{}$", parts.join(".*"))).unwrap().is_match(text)
}

fn read(node: &Node, target: &str) -> Option<String> {
    let Some(name) = target.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')) else {
        return Some(target.to_owned());
    };
    let description = &node.description;
    let text = match name.split_once('.') {
        Some(("attr", key)) => description.attributes.get(key)?,
        Some(("meta", key)) => description.meta.get(key)?,
        Some(("node", "datacenter")) => &description.datacenter,
        Some(("node", "unique.name")) => &description.name,
        _ => return None,
    };
    Some(text.to_string())
}

/// The operands that the generator uses.
fn holds(node: &Node, constraint: &Constraint) -> bool {
    let (left, right) = (read(node, &constraint.left), read(node, &constraint.right));
    let (Some(left), Some(right)) = (&left, &right) else {
        return match &*constraint.operand {
            "is_not_set" => left.is_none(),
            "is_set" => left.is_some(),
            "!=" => left != right,
            _ => false,
        };
    };
    let set = |text: &str| text.split(',').map(str::to_owned).collect::<BTreeSet<String>>();
    match &*constraint.operand {
        "=" => left == right,
        "!=" => left != right,
        "is_set" => true,
        "is_not_set" => false,
        "<" => left.parse::<i64>().unwrap() < right.parse::<i64>().unwrap(),
        ">=" => left.parse::<i64>().unwrap() >= right.parse::<i64>().unwrap(),
        "regexp" => Regex::new(right).unwrap().is_match(left),
        "set_contains_any" => !set(left).is_disjoint(&set(right)),
        "set_contains_all" => set(left).is_superset(&set(right)),
        "version" => {
            let least: u32 = right.strip_prefix(">= ").unwrap().parse().unwrap();
            left.parse::<u32>().unwrap() >= least
        }
        other => panic!("the generator does not use {other}"),
    }
}

fn constraints<'a>(spec: &'a JobSpec, group: &'a TaskGroup) -> Vec<(bool, &'a Constraint)> {
    let of_job = spec.constraints.iter().map(|constraint| (true, constraint));
    let of_group = group.constraints.iter().chain(&group.tasks[0].constraints);
    of_job.chain(of_group.map(|constraint| (false, constraint))).collect()
}

fn is_distinct(constraint: &Constraint) -> bool {
    constraint.operand.starts_with("distinct_")
}

/// Whether the group may be on the node, whatever else runs.
fn suits(spec: &JobSpec, group: &TaskGroup, node: &Node) -> bool {
    let description = &node.description;
    (&*spec.node_pool == "all" || spec.node_pool == description.pool)
        && spec.datacenters.iter().any(|pattern| glob(pattern, &description.datacenter))
        && group.tasks.iter().all(|task| {
            let driver = description.drivers.get(&task.driver);
            driver.is_some_and(|driver| driver.detected && driver.healthy)
        })
        && constraints(spec, group)
            .iter()
            .all(|(_, constraint)| is_distinct(constraint) || holds(node, constraint))
}

fn takes_work(node: &Node) -> bool {
    node.liveness == Liveness::Ready
        && node.health == Health::Ok
        && !node.eligibility.ineligible
        && node.drain.is_none()
}

fn is_lost(state: &State, row: &Allocation) -> bool {
    state.nodes().get(&row.node).is_none_or(|node| node.liveness == Liveness::Down)
}

/// One instance after a plan.
struct Instance<'a> {
    node: NodeId,
    group: &'a str,
    resources: Resources,
    static_ports: Vec<u16>,
    dynamic_ports: usize,
    of_job: bool,
}

/// Everything that lives after the plan, and the ports that are not free for other reasons.
struct After<'a> {
    state: &'a State,
    spec: &'a JobSpec,
    instances: Vec<Instance<'a>>,
    stopping_ports: BTreeMap<NodeId, BTreeSet<u16>>,
}

/// The group of a placement in the version that it runs.
fn placed_group<'a>(
    state: &'a State,
    spec: &'a JobSpec,
    plan: &Plan,
    placement: &Placement,
) -> &'a TaskGroup {
    let older = placement
        .version
        .and_then(|version| state.job_spec(&plan.job, plan.job_create_index, version));
    older.map_or(spec, |older| &**older).group(&placement.group).unwrap()
}

/// The group's deployment holds back what is new: its canaries wait, or it has failed.
fn is_held(state: &State, spec: &JobSpec, group: &TaskGroup, plan: &Plan) -> bool {
    let begins = plan.deployment.as_ref().and_then(|new| new.goals.get(&group.name));
    let job = state.jobs().get(&spec.key).unwrap();
    let deployment = state.current_deployment(job);
    let has_steps = group.update.is_some_and(|update| update.max_parallel > 0);
    let begins = begins.is_some_and(|goal| goal.canaries > 0);
    let is_held = begins
        || deployment.is_some_and(|row| {
            let canarying = row.groups.get(&group.name).is_some_and(DeploymentGroup::is_canarying);
            row.status == DeploymentStatus::Failed || (row.is_active() && canarying)
        });
    has_steps && is_held
}

/// How many a held group has at least: as many as the newest older version of which an instance
/// holds its place wants, and no more than are wanted now.
fn least_while_held(state: &State, spec: &JobSpec, group: &TaskGroup, plan: &Plan) -> usize {
    let older = state.allocations_of_job(&spec.key).filter(|row| {
        row.group == group.name
            && row.job_version != plan.job_version
            && row.holds_its_place()
            && row.next.is_none()
            && !row.is_canary()
            && !row.per_node
    });
    let newest = older.max_by_key(|row| row.job_version);
    let old = newest.and_then(|row| state.allocation_spec(row)?.group(&group.name));
    old.map_or(0, |old| old.count.min(group.count)) as usize
}

fn ask(group: &TaskGroup) -> Resources {
    Resources {
        cpu_mhz: group.tasks.iter().map(|task| task.resources.cpu_mhz).sum(),
        memory_mb: group.tasks.iter().map(|task| task.resources.memory_mb).sum(),
        disk_mb: group.disk_mb,
    }
}

fn asked_ports(group: &TaskGroup) -> (Vec<u16>, usize) {
    let ports: Vec<u16> =
        group.network.iter().flat_map(|network| &network.ports).map(|port| port.value).collect();
    let fixed: Vec<u16> = ports.iter().copied().filter(|port| *port != 0).collect();
    let dynamic = ports.len() - fixed.len();
    (fixed, dynamic)
}

impl<'a> After<'a> {
    fn new(state: &'a State, spec: &'a JobSpec, plan: &'a Plan) -> Self {
        let ended: BTreeSet<AllocationId> = plan.stops.iter().map(|stop| stop.id).collect();
        let mut instances = Vec::new();
        let mut stopping_ports: BTreeMap<NodeId, BTreeSet<u16>> = BTreeMap::new();
        for row in state.allocations().iter().filter(|row| !row.client.is_terminal()) {
            let ports: Vec<u16> = row.ports.iter().map(|port| port.value).collect();
            if row.desired != DesiredStatus::Run || ended.contains(&row.id) {
                stopping_ports.entry(row.node).or_default().extend(ports);
                continue;
            }
            instances.push(Instance {
                node: row.node,
                group: &row.group,
                resources: row.resources,
                static_ports: ports,
                dynamic_ports: 0,
                of_job: row.job == spec.key,
            });
        }
        for placement in &plan.placements {
            let group = placed_group(state, spec, plan, placement);
            let (static_ports, dynamic_ports) = asked_ports(group);
            instances.push(Instance {
                node: placement.node,
                group: &placement.group,
                resources: ask(group),
                static_ports,
                dynamic_ports,
                of_job: true,
            });
        }
        Self { state, spec, instances, stopping_ports }
    }

    fn on(&self, node: NodeId) -> impl Iterator<Item = &Instance<'a>> {
        self.instances.iter().filter(move |instance| instance.node == node)
    }

    fn count(&self, group: &str) -> usize {
        self.instances.iter().filter(|one| one.of_job && one.group == group).count()
    }

    /// Instances of the job that a distinct constraint on `group` looks at.
    fn rivals(&self, of_job: bool, group: &'a str) -> impl Iterator<Item = &Instance<'a>> {
        self.instances.iter().filter(move |one| one.of_job && (of_job || one.group == group))
    }

    /// Whether `more` instances of the group may be on the node, given who else there is of the
    /// job.
    fn is_distinct_with(&self, group: &'a TaskGroup, node: &Node, more: usize) -> bool {
        constraints(self.spec, group).into_iter().all(|(of_job, constraint)| {
            match &*constraint.operand {
                "distinct_hosts" => {
                    self.spec.kind.is_per_node()
                        || self
                            .rivals(of_job, &group.name)
                            .filter(|one| one.node == node.id)
                            .count()
                            + more
                            <= 1
                }
                "distinct_property" => {
                    let max: usize = constraint.right.parse().unwrap();
                    let Some(value) = read(node, &constraint.left) else { return false };
                    let shares = |one: &&Instance<'_>| {
                        let row = self.state.nodes().get(&one.node);
                        row.and_then(|row| read(row, &constraint.left)).as_ref() == Some(&value)
                    };
                    self.rivals(of_job, &group.name).filter(shares).count() + more <= max
                }
                _ => true,
            }
        })
    }

    fn has_room(&self, group: &TaskGroup, node: &Node) -> bool {
        let resources = &node.description.resources;
        let mut used = ask(group);
        for one in self.on(node.id) {
            used = used.plus(one.resources);
        }
        let count = u32::try_from(self.on(node.id).count()).unwrap();
        if used.exceeds(resources.total.minus(resources.reserved)).is_some()
            || (resources.allocations_max > 0 && count >= resources.allocations_max)
        {
            return false;
        }
        let mut taken: BTreeSet<u16> = resources.reserved_ports.iter().copied().collect();
        taken.extend(self.on(node.id).flat_map(|one| &one.static_ports));
        let (fixed, dynamic) = asked_ports(group);
        if fixed.iter().any(|port| !taken.insert(*port)) {
            return false;
        }
        taken.extend(self.stopping_ports.get(&node.id).into_iter().flatten());
        let promised: usize = self.on(node.id).map(|one| one.dynamic_ports).sum();
        let free = (resources.dynamic_port_min..=resources.dynamic_port_max)
            .filter(|port| !taken.contains(port))
            .count();
        dynamic == 0 || promised + dynamic <= free
    }

    fn could_take_one_more(&self, group: &'a TaskGroup, node: &Node) -> bool {
        takes_work(node)
            && suits(self.spec, group, node)
            && self.is_distinct_with(group, node, 1)
            && self.has_room(group, node)
    }
}

/// Whether the tasks of two versions of the generated jobs are the same.
fn same_tasks(old: &JobSpec, new: &JobSpec, group: &str) -> bool {
    match (old.group(group), new.group(group)) {
        (Some(old), Some(new)) => {
            (&old.tasks[0].user, old.tasks[0].resources, &old.network)
                == (&new.tasks[0].user, new.tasks[0].resources, &new.network)
        }
        _ => false,
    }
}

/// Why each stop had to be, by its description.
fn check_stops(state: &State, spec: &JobSpec, after: &After<'_>, plan: &Plan) {
    let mut not_needed: BTreeMap<&Text, usize> = BTreeMap::new();
    for stop in &plan.stops {
        let row = state.allocations().get(&stop.id).unwrap();
        let group = spec.group(&row.group);
        assert_eq!(row.desired, DesiredStatus::Run, "stopped twice");
        let old = state.allocation_spec(row).unwrap();
        match &*stop.description {
            "alloc is lost since its node is down" => assert!(is_lost(state, row)),
            "alloc is being migrated" => {
                assert!(row.transition.migrate || row.transition.reschedule);
            }
            fsm::allocation::ENDED_BY_REQUEST => {
                assert!(row.transition.migrate && !row.transition.reschedule);
                assert!(matches!(spec.kind, JobKind::Batch | JobKind::Sysbatch));
                assert_eq!(row.job_version, plan.job_version);
            }
            "alloc was rescheduled because it failed" => {
                assert!(matches!(row.client, ClientStatus::Failed | ClientStatus::Complete));
            }
            "alloc was replaced by another allocation" => assert!(row.next.is_some()),
            "alloc is being updated due to job update" => {
                let group = group.unwrap();
                let node = state.nodes().get(&row.node).unwrap();
                assert_ne!(row.job_version, plan.job_version, "it was of this version");
                assert!(
                    !same_tasks(old, spec, &row.group)
                        || !suits(spec, group, node)
                        || constraints(spec, group).iter().any(|(_, one)| is_distinct(one))
                        || !row.is_live(),
                    "it could have stayed: {stop:?}"
                );
            }
            "alloc not needed on this node" => {
                let node = state.nodes().get(&row.node).unwrap();
                assert!(!suits(spec, group.unwrap(), node));
            }
            "alloc not needed due to job update" => {
                // A canary of a deployment that is over is not needed, however many there are.
                if group.is_some_and(|group| group.count > 0) && !row.is_canary() {
                    *not_needed.entry(&row.group).or_default() += 1;
                }
            }
            other => panic!("unknown reason {other}"),
        }
    }
    for (group, stopped) in not_needed {
        let wanted = spec.group(group).unwrap().count as usize;
        let counted = state
            .allocations()
            .iter()
            .filter(|row| {
                row.job == spec.key && row.group == *group && counts(state, row, spec, plan)
            })
            .count();
        assert!(stopped <= counted.saturating_sub(wanted), "{stopped} of {counted} for {wanted}");
        assert!(after.count(group) <= wanted + canaries(state, spec, group, plan));
    }
}

/// Canaries of the group that live after the plan.
fn canaries(state: &State, spec: &JobSpec, group: &str, plan: &Plan) -> usize {
    let stopped = |row: &Allocation| plan.stops.iter().any(|stop| stop.id == row.id);
    let rows = state.allocations_of_job(&spec.key).filter(|row| &*row.group == group);
    let kept = rows.filter(|row| row.is_live() && row.is_canary() && !stopped(row)).count();
    let placed = plan.placements.iter().filter(|one| one.canary && &*one.group == group).count();
    let most = spec.group(group).and_then(|group| group.update).map_or(0, |update| update.canaries);
    assert!(kept + placed <= most as usize, "{kept} and {placed} canaries of {most}");
    kept + placed
}

/// Whether a row counts towards what its group wants: it lives where it can, has done its work, or
/// has failed and not been made up for.
fn counts(state: &State, row: &Allocation, spec: &JobSpec, plan: &Plan) -> bool {
    if is_over(state, row, spec, plan) {
        return true;
    }
    if row.desired != DesiredStatus::Run || row.is_canary() {
        return false;
    }
    let replaced = row.next.is_some_and(|next| state.allocations().contains(&next))
        || plan.placements.iter().any(|placement| placement.previous == Some(row.id));
    let current = row.job_version == plan.job_version;
    match row.client {
        ClientStatus::Lost => false,
        ClientStatus::Complete => spec.kind == JobKind::Batch && current && !replaced,
        ClientStatus::Failed => (spec.kind == JobKind::Service || current) && !replaced,
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => {
            !is_lost(state, row)
        }
    }
}

/// Whether a drain or a user has ended an instance that is not run again for that, or this plan
/// does.
fn is_over(state: &State, row: &Allocation, spec: &JobSpec, plan: &Plan) -> bool {
    let is_asked = row.transition.migrate && !row.transition.reschedule;
    let ends = plan
        .stops
        .iter()
        .any(|stop| stop.id == row.id && &*stop.description == fsm::allocation::ENDED_BY_REQUEST);
    matches!(spec.kind, JobKind::Batch | JobKind::Sysbatch)
        && row.job_version == plan.job_version
        && is_asked
        && row.next.is_none_or(|next| !state.allocations().contains(&next))
        && (ends || row.desired != DesiredStatus::Run || row.client == ClientStatus::Failed)
}

fn check_places(after: &After<'_>, plan: &Plan) {
    for placement in &plan.placements {
        let group = placed_group(after.state, after.spec, plan, placement);
        let node = after.state.nodes().get(&placement.node).unwrap();
        assert!(takes_work(node) && suits(after.spec, group, node), "{placement:?}");
        assert!(after.is_distinct_with(group, node, 0), "{placement:?}");
    }
}

fn check_counted(state: &State, spec: &JobSpec, after: &After<'_>, plan: &Plan) {
    let outcome = plan.outcome.as_ref().unwrap();
    let stopped: BTreeSet<AllocationId> = plan.stops.iter().map(|stop| stop.id).collect();
    let replaces = plan.stops.iter().any(|stop| stop.description.contains("updated"));
    for group in &spec.groups {
        let queued = outcome.queued[&group.name] as usize;
        assert_eq!(queued > 0, outcome.failed_groups.contains_key(&group.name));
        let ended = state
            .allocations()
            .iter()
            .filter(|row| row.job == spec.key && row.group == group.name)
            .filter(|row| {
                let has_ended = !row.is_live() && !stopped.contains(&row.id);
                has_ended || is_over(state, row, spec, plan)
            })
            .filter(|row| counts(state, row, spec, plan))
            .count();
        let living = after.count(&group.name) - canaries(state, spec, &group.name, plan);
        let there = living + ended;
        let wanted = group.count as usize;
        assert!(living <= wanted);
        if is_held(state, spec, group, plan) {
            let least = least_while_held(state, spec, group, plan);
            assert!(there + queued >= least, "{there} and {queued} of {least} {plan:?}");
            continue;
        }
        assert!(there + queued >= wanted, "{there} and {queued} of {wanted} {plan:?}");
        // What an update of another group stops may make room that was looked for before.
        if queued > 0 && !replaces {
            for node in state.nodes().iter() {
                assert!(
                    !after.could_take_one_more(group, node),
                    "room on {}",
                    node.description.name
                );
            }
        }
    }
}

fn check_per_node(state: &State, spec: &JobSpec, after: &After<'_>, plan: &Plan) {
    let replaces = plan.stops.iter().any(|stop| stop.description.contains("updated"));
    for group in &spec.groups {
        for node in state.nodes().iter() {
            let here: Vec<_> =
                after.on(node.id).filter(|one| one.of_job && one.group == &*group.name).collect();
            assert!(here.len() <= group.count as usize, "{} times", here.len());
            let finished = spec.kind == JobKind::Sysbatch
                && state.allocations_of_node(node.id).any(|row| {
                    row.job == spec.key
                        && row.group == group.name
                        && (is_over(state, row, spec, plan)
                            || row.desired == DesiredStatus::Run
                                && row.job_version == plan.job_version
                                && matches!(
                                    row.client,
                                    ClientStatus::Complete | ClientStatus::Failed
                                ))
                });
            let held = is_held(state, spec, group, plan);
            if group.count > 0 && here.is_empty() && !finished && !replaces && !held {
                assert!(!after.could_take_one_more(group, node), "{}", node.description.name);
            }
        }
    }
}

fn check(cluster: &Cluster, spec: &JobSpec, plan: &Plan) {
    assert_eq!(plan.status(), EvaluationStatus::Complete);
    let state = &cluster.state;
    let after = After::new(state, spec, plan);
    check_places(&after, plan);
    check_stops(state, spec, &after, plan);
    if spec.kind.is_per_node() {
        check_per_node(state, spec, &after, plan);
    } else {
        check_counted(state, spec, &after, plan);
    }
    let blocked = plan.blocked().len();
    if plan.queued() == 0 {
        assert_eq!(blocked, 0, "nothing to wait for");
    } else {
        let open = cluster
            .state
            .evaluations()
            .iter()
            .any(|row| row.job == spec.key && row.status == EvaluationStatus::Blocked);
        assert!(blocked > 0 || open, "somebody waits for room");
    }
}

fn constraint(left: &str, operand: &str, right: &str) -> Constraint {
    Constraint { left: left.into(), operand: operand.into(), right: right.into() }
}

fn any_constraint() -> impl Strategy<Value = Constraint> {
    prop::sample::select(vec![
        constraint("${meta.rack}", "=", "r1"),
        constraint("${meta.rack}", "!=", "r1"),
        constraint("${meta.rack}", "is_set", ""),
        constraint("${meta.rack}", "is_not_set", ""),
        constraint("${attr.cores}", ">=", "9"),
        constraint("${attr.cores}", "<", "10"),
        constraint("${attr.cores}", "version", ">= 4"),
        constraint("${node.unique.name}", "regexp", "[1-4]$"),
        constraint("${attr.flags}", "set_contains_any", "a,x"),
        constraint("${attr.flags}", "set_contains_all", "a,b"),
        constraint("${node.datacenter}", "=", "${attr.twin}"),
        constraint("", "distinct_hosts", "true"),
        constraint("${meta.rack}", "distinct_property", "2"),
    ])
}

#[derive(Clone, Debug)]
struct NodeShape {
    rack: u8,
    cores: u8,
    flags: &'static str,
    datacenter: u8,
    gpu: bool,
    allocations_max: u32,
    ports: u16,
    reserved_mhz: u64,
    has_driver: bool,
}

fn node_shape() -> impl Strategy<Value = NodeShape> {
    (
        0..4u8,
        prop::sample::select(vec![2u8, 4, 9, 16]),
        prop::sample::select(vec!["a", "a,b", "b,c", ""]),
        1..3u8,
        prop::bool::weighted(0.2),
        prop::sample::select(vec![0u32, 0, 0, 3]),
        0..6u16,
        prop::sample::select(vec![0u64, 1_500]),
        prop::bool::weighted(0.9),
    )
        .prop_map(
            |(
                rack,
                cores,
                flags,
                datacenter,
                gpu,
                allocations_max,
                ports,
                reserved_mhz,
                has_driver,
            )| {
                NodeShape {
                    rack,
                    cores,
                    flags,
                    datacenter,
                    gpu,
                    allocations_max,
                    ports,
                    reserved_mhz,
                    has_driver,
                }
            },
        )
}

fn shaped(number: u64, shape: &NodeShape) -> Node {
    let mut row = node(number);
    let mut description = (*row.description).clone();
    if shape.rack > 0 {
        description.meta.insert("rack".into(), format!("r{}", shape.rack).into());
    }
    description.attributes.insert("cores".into(), shape.cores.to_string().into());
    if !shape.flags.is_empty() {
        description.attributes.insert("flags".into(), shape.flags.into());
    }
    description.attributes.insert("twin".into(), "dc1".into());
    description.datacenter = format!("dc{}", shape.datacenter).into();
    description.pool = if shape.gpu { "gpu" } else { "default" }.into();
    description.resources.allocations_max = shape.allocations_max;
    description.resources.reserved.cpu_mhz = shape.reserved_mhz;
    description.resources.dynamic_port_max = 20_000 + shape.ports;
    description.resources.reserved_ports = vec![20_001];
    if !shape.has_driver {
        description.drivers.remove("mock");
    }
    row.class = fsm::node::computed_class(&description);
    row.description = description.into();
    row
}

#[derive(Clone, Debug)]
struct JobShape {
    kind: JobKind,
    count: u32,
    cpu_mhz: u64,
    ports: Vec<u16>,
    of_job: Vec<Constraint>,
    of_group: Vec<Constraint>,
    datacenters: &'static str,
    pool: &'static str,
    max_parallel: u32,
    canaries: u32,
    prefers: bool,
    two_groups: bool,
}

fn job_shape() -> impl Strategy<Value = JobShape> {
    (
        prop::sample::select(JobKind::ALL.to_vec()),
        0..12u32,
        prop::sample::select(vec![100u64, 900, 2_000, 4_000]),
        prop::sample::select(vec![vec![], vec![8080], vec![0], vec![0, 0, 20_002]]),
        prop::collection::vec(any_constraint(), 0..2),
        prop::collection::vec(any_constraint(), 0..2),
        prop::sample::select(vec!["*", "dc1", "dc*", "*2"]),
        prop::sample::select(vec!["default", "default", "all", "gpu"]),
        (0..4u32, prop::sample::select(vec![0u32, 0, 1, 3])),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(
            |(
                kind,
                count,
                cpu_mhz,
                ports,
                of_job,
                of_group,
                datacenters,
                pool,
                (max_parallel, canaries),
                prefers,
                two_groups,
            )| JobShape {
                kind,
                count,
                cpu_mhz,
                ports,
                of_job,
                of_group,
                datacenters,
                pool,
                max_parallel,
                canaries,
                prefers,
                two_groups,
            },
        )
}

fn spec_of(shape: &JobShape) -> JobSpec {
    let mut spec = job(shape.kind);
    let per_node = shape.kind.is_per_node();
    spec.constraints.clone_from(&shape.of_job);
    spec.datacenters = vec![shape.datacenters.into()];
    spec.node_pool = shape.pool.into();
    let group = &mut spec.groups[0];
    group.count =
        if per_node { shape.count % 4 } else { shape.count }.min(if per_node { 1 } else { 99 });
    group.tasks[0].resources.cpu_mhz = shape.cpu_mhz;
    group.constraints.clone_from(&shape.of_group);
    if !shape.ports.is_empty() {
        let ask = |(number, value): (usize, &u16)| PortAsk {
            label: format!("p{number}").into(),
            value: *value,
            to: 0,
        };
        group.network = Some(Network {
            ports: shape.ports.iter().enumerate().map(ask).collect(),
            names_mode: false,
        });
    }
    if matches!(shape.kind, JobKind::Service | JobKind::System) {
        let mut strategy = update(shape.max_parallel);
        // Of a system job in percent of the nodes.
        strategy.canaries =
            if per_node { shape.canaries.saturating_mul(40).min(100) } else { shape.canaries };
        group.update = Some(strategy);
    }
    if shape.prefers {
        group.spreads =
            vec![Spread { attribute: "${meta.rack}".into(), weight: 50, targets: Vec::new() }];
        spec.affinities =
            vec![Affinity { constraint: constraint("${attr.cores}", "<", "9"), weight: -60 }];
    }
    if shape.two_groups {
        let mut second = spec.groups[0].clone();
        second.name = "second".into();
        second.network = None;
        second.constraints.clear();
        spec.groups.push(second);
    }
    spec
}

#[derive(Clone, Debug)]
enum Change {
    Count(u32),
    Destructive,
    InPlace,
    Constrain(Constraint),
    Unconstrain,
    DropGroup,
    Liveness(u64, Liveness),
    Eligible(u64, bool),
    Move(u64),
    End(usize, ClientStatus),
    Flag(usize),
    Promote,
    FailDeployment,
    Stop,
    Later(u64),
}

fn change() -> impl Strategy<Value = Change> {
    let number = 1..=NODES as u64;
    prop_oneof![
        (0..12u32).prop_map(Change::Count),
        Just(Change::Destructive),
        Just(Change::InPlace),
        any_constraint().prop_map(Change::Constrain),
        Just(Change::Unconstrain),
        Just(Change::DropGroup),
        (
            number.clone(),
            prop::sample::select(vec![Liveness::Down, Liveness::Initializing, Liveness::Ready])
        )
            .prop_map(|(number, liveness)| Change::Liveness(number, liveness)),
        (number.clone(), any::<bool>()).prop_map(|(number, on)| Change::Eligible(number, on)),
        number.prop_map(Change::Move),
        (
            0..30usize,
            prop::sample::select(vec![
                ClientStatus::Failed,
                ClientStatus::Complete,
                ClientStatus::Lost
            ])
        )
            .prop_map(|(number, how)| Change::End(number, how)),
        (0..30usize).prop_map(Change::Flag),
        Just(Change::Promote),
        Just(Change::Promote),
        Just(Change::FailDeployment),
        Just(Change::Stop),
        (0..60_000u64).prop_map(Change::Later),
    ]
}

fn live(cluster: &Cluster, spec: &JobSpec, number: usize) -> Option<AllocationId> {
    let live = cluster.live(spec);
    live.get(number % live.len().max(1)).map(|row| row.id)
}

/// Promotes the canaries of a job, if it has some and they are healthy.
fn promote(cluster: &mut Cluster, spec: &JobSpec) {
    let Some(row) = cluster.state.active_deployment(&spec.key).cloned() else { return };
    let mut waiting = row.groups.values().filter(|group| group.is_canarying()).peekable();
    if waiting.peek().is_some() && waiting.all(DeploymentGroup::has_healthy_canaries) {
        let id = row.id;
        cluster.commit(|evaluation| PromoteDeployment { id, groups: None, evaluation }.into());
    }
}

fn take(cluster: &mut Cluster, spec: &mut JobSpec, change: &Change) {
    match change {
        Change::Count(count) => {
            let max = if spec.kind.is_per_node() { 1 } else { 99 };
            spec.groups[0].count = (*count).min(max);
        }
        Change::Destructive => {
            spec.groups[0].tasks[0].user = format!("{}x", spec.groups[0].tasks[0].user).into();
        }
        Change::InPlace => spec.groups[0].tasks[0].kill_timeout_ms += 1,
        Change::Constrain(constraint) => spec.groups[0].constraints.push(constraint.clone()),
        Change::Unconstrain => {
            spec.constraints.clear();
            spec.groups[0].constraints.clear();
        }
        Change::DropGroup => spec.groups.truncate(1),
        Change::Liveness(number, liveness) => {
            return cluster.change_node(*number, |node| node.liveness = *liveness);
        }
        Change::Eligible(number, eligible) => {
            return cluster.change_node(*number, |node| node.eligibility.ineligible = !eligible);
        }
        Change::Move(number) => {
            return cluster.change_node(*number, |node| {
                let mut description = (*node.description).clone();
                let moved = if &*description.datacenter == "dc1" { "dc2" } else { "dc1" };
                description.datacenter = moved.into();
                node.class = fsm::node::computed_class(&description);
                node.description = description.into();
            });
        }
        Change::End(number, how) => {
            if let Some(id) = live(cluster, spec, *number) {
                cluster.end(id, *how);
            }
            return;
        }
        Change::Flag(number) => {
            if let Some(id) = live(cluster, spec, *number) {
                cluster.change(id, |row| row.transition.migrate = true);
            }
            return;
        }
        Change::Promote => return promote(cluster, spec),
        Change::FailDeployment => {
            if let Some(id) = cluster.state.active_deployment(&spec.key).map(|row| row.id) {
                cluster.commit(|evaluation| FailDeployment { id, evaluation }.into());
            }
            return;
        }
        Change::Stop => {
            cluster.change_job(&spec.key, |row| row.stop = true);
            let plan = cluster.plan(spec, Trigger::JobDeregister);
            assert!(plan.placements.is_empty() && plan.in_place.is_empty());
            cluster.apply(&plan);
            assert!(cluster.live(spec).is_empty());
        }
        Change::Later(ms) => {
            cluster.now += ms;
            return;
        }
    }
    cluster.register(spec);
}

proptest! {
    #[test]
    fn plans_do_what_the_model_says(
        nodes in prop::collection::vec(node_shape(), NODES),
        other in job_shape(),
        shape in job_shape(),
        changes in prop::collection::vec(change(), 0..8),
    ) {
        let mut cluster = Cluster::new();
        for (number, shape) in (1..).zip(&nodes) {
            cluster.put_node(shaped(number, shape));
        }
        let mut neighbour = spec_of(&other);
        neighbour.key.id = "neighbour".into();
        cluster.register(&neighbour);
        let plan = cluster.plan(&neighbour, Trigger::JobRegister);
        check(&cluster, &neighbour, &plan);
        cluster.apply(&plan);

        let mut spec = spec_of(&shape);
        cluster.register(&spec);
        let plan = cluster.plan(&spec, Trigger::JobRegister);
        check(&cluster, &spec, &plan);
        cluster.apply(&plan);
        for change in &changes {
            take(&mut cluster, &mut spec, change);
            let plan = cluster.plan(&spec, Trigger::JobRegister);
            check(&cluster, &spec, &plan);
            cluster.apply(&plan);
        }
    }
}
