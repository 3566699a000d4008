//! What a job asks of a node, and what a node has, read from the rows by hand: the rules here are written a second time on purpose, because a check
//! that asks the code it checks finds nothing.

use std::collections::BTreeMap;

use fsm::{
    Allocation, ClientStatus, DesiredStatus, Job, JobKind, JobSpec, Liveness, Node, State,
    TaskGroup, Text, job::Constraint, node::Health,
};

/// Nothing runs any more.
pub(crate) fn has_ended(row: &Allocation) -> bool {
    match row.client {
        ClientStatus::Complete | ClientStatus::Failed | ClientStatus::Lost => true,
        ClientStatus::Pending | ClientStatus::Running | ClientStatus::Unknown => false,
    }
}

/// Wanted, and not ended.
pub(crate) fn is_live(row: &Allocation) -> bool {
    row.desired == DesiredStatus::Run && !has_ended(row)
}

/// Since when an allocation that runs does so with all of its tasks, in log time; none: one of them waits to start again. Tasks tell by the node's own
/// clock, of which only counts how long after the first start the last one was; and nobody reports what is yet to come.
pub(crate) fn runs_since(row: &Allocation) -> Option<u64> {
    if row.client != ClientStatus::Running {
        return None;
    }
    let (mut first, mut last) = (u64::MAX, 0);
    for task in row.tasks.values() {
        if &*task.state == "pending" {
            return None;
        }
        if task.started_at_ms > 0 {
            first = first.min(task.started_at_ms);
        }
        last = last.max(task.started_at_ms).max(task.last_restart_ms);
    }
    let since = row.client_at.saturating_add(last.saturating_sub(first));
    Some(since.min(row.modified_at.max(row.client_at)))
}

/// Something of the job lives, or is to be looked at. A system job lasts until it is stopped, with or without instances; of a stopped one only what
/// lives goes on, whatever is looked at.
pub(crate) fn goes_on(state: &State, job: &Job) -> bool {
    if job.kind == JobKind::System {
        return !job.stop;
    }
    let mut evaluations = state.evaluations().iter().filter(|row| row.job == job.key);
    state.allocations().iter().any(|row| row.job == job.key && is_live(row))
        || (!job.stop && evaluations.any(|row| !row.status.is_terminal()))
}

/// Of a system job, which a drain ends last or leaves alone.
pub(crate) fn is_of_system(state: &State, row: &Allocation) -> bool {
    row.per_node && state.allocation_spec(row).is_none_or(|spec| spec.kind == JobKind::System)
}

/// New work may be placed on the node.
pub(crate) fn in_service(node: &Node) -> bool {
    let Node { liveness, health, eligibility, drain, instance, .. } = node;
    *liveness == Liveness::Ready
        && *health == Health::Ok
        && !eligibility.ineligible
        && drain.is_none()
        && instance.is_none_or(|instance| instance.open)
}

/// Cpu, memory and disk.
pub(crate) type Amounts = [(&'static str, u64); 3];

/// What a node can give away.
pub(crate) fn room_of(node: &Node) -> Amounts {
    let (all, kept) = (node.description.resources.total, node.description.resources.reserved);
    [
        ("cpu", all.cpu_mhz.saturating_sub(kept.cpu_mhz)),
        ("memory", all.memory_mb.saturating_sub(kept.memory_mb)),
        ("disk", all.disk_mb.saturating_sub(kept.disk_mb)),
    ]
}

/// What an instance of a group takes.
pub(crate) fn ask_of(group: &TaskGroup) -> Amounts {
    let sum = |of: fn(&fsm::job::TaskResources) -> u64| {
        group.tasks.iter().map(|task| of(&task.resources)).sum()
    };
    [
        ("cpu", sum(|task| task.cpu_mhz)),
        ("memory", sum(|task| task.memory_mb)),
        ("disk", group.disk_mb),
    ]
}

/// What an allocation takes.
pub(crate) fn taken_by(row: &Allocation) -> Amounts {
    let taken = row.resources;
    [("cpu", taken.cpu_mhz), ("memory", taken.memory_mb), ("disk", taken.disk_mb)]
}

/// Whether a group may run on a node as far as pool, datacenter, drivers and constraints say; the reason if not. Constraints other than `=` and `!=`
/// on attributes and meta are not read, nor are datacenter patterns but `*` and a beginning.
pub(crate) fn suits(spec: &JobSpec, group: &TaskGroup, node: &Node) -> Result<(), String> {
    let description = &node.description;
    if &*spec.node_pool != "all" && spec.node_pool != description.pool {
        return Err(format!("it is in pool {}", description.pool));
    }
    let datacenter = &*description.datacenter;
    let matches = |pattern: &Text| match pattern.split_once('*') {
        Some((beginning, _)) => datacenter.starts_with(beginning),
        None => **pattern == *datacenter,
    };
    if !spec.datacenters.iter().any(matches) {
        return Err(format!("it is in datacenter {datacenter}"));
    }
    for task in &group.tasks {
        let usable = description.drivers.get(&task.driver);
        if !usable.is_some_and(|driver| driver.detected && driver.healthy) {
            return Err(format!("it has no driver {}", task.driver));
        }
    }
    let of_tasks = group.tasks.iter().flat_map(|task| &task.constraints);
    let all = spec.constraints.iter().chain(&group.constraints).chain(of_tasks);
    match all.into_iter().find(|one| !holds(one, node)) {
        Some(Constraint { left, operand, right }) => {
            Err(format!("it does not meet {left} {operand} {right}"))
        }
        None => Ok(()),
    }
}

fn holds(constraint: &Constraint, node: &Node) -> bool {
    let name = constraint.left.strip_prefix("${").and_then(|rest| rest.strip_suffix('}'));
    let Some(name) = name else { return true };
    let of = |map: &BTreeMap<Text, Text>, key: &str| map.get(key).cloned();
    let value = if let Some(key) = name.strip_prefix("attr.") {
        of(&node.description.attributes, key)
    } else if let Some(key) = name.strip_prefix("meta.") {
        of(&node.description.meta, key)
    } else {
        return true;
    };
    match &*constraint.operand {
        "=" => value.as_ref() == Some(&constraint.right),
        "!=" => value.as_ref() != Some(&constraint.right),
        _ => true,
    }
}

/// The group wants each of its instances on a host of its own: the whole job does, or the group.
pub(crate) fn wants_own_host(spec: &JobSpec, group: &TaskGroup) -> (bool, bool) {
    let has = |list: &[Constraint]| list.iter().any(|one| &*one.operand == "distinct_hosts");
    (has(&spec.constraints), has(&group.constraints))
}

/// What an instance would notice of another version of its group: the tasks themselves and their ports.
pub(crate) fn same_work(old: &TaskGroup, new: &TaskGroup) -> Result<(), &'static str> {
    if old.network != new.network {
        return Err("network");
    }
    if ask_of(old) != ask_of(new) {
        return Err("resources");
    }
    if old.tasks.len() != new.tasks.len() {
        return Err("tasks");
    }
    for task in &new.tasks {
        let Some(before) = old.tasks.iter().find(|one| one.name == task.name) else {
            return Err("tasks");
        };
        let differs = [
            ("driver", before.driver != task.driver),
            ("user", before.user != task.user),
            ("env", before.env != task.env),
            ("config", before.config_json != task.config_json),
        ];
        if let Some((what, _)) = differs.into_iter().find(|(_, differs)| *differs) {
            return Err(what);
        }
    }
    Ok(())
}

/// How many instances of a job may be in one datacenter, if it says so (`distinct_property` of the datacenter, of the whole job).
pub(crate) fn most_in_datacenter(spec: &JobSpec) -> Option<usize> {
    let one = spec
        .constraints
        .iter()
        .find(|one| &*one.operand == "distinct_property" && &*one.left == "${node.datacenter}")?;
    Some(one.right.parse().unwrap_or(1))
}
