//! The rules by which a plan is judged: whether the plan as a whole may be looked at, and whether a
//! placement fits its node. The applier and `apply` both ask here.

use std::collections::BTreeSet;

use super::{DropReason, Placement, Plan};
use crate::{
    allocation::{Allocation, NameScope},
    deployment::{Deployment, DeploymentGroup, DeploymentStatus},
    id::{DeploymentId, JobKey},
    job::{Job, JobSpec},
    limits,
    node::Node,
    plant::{Plant, is_planted},
    resources::{Dimension, NodeUsage, Port, PortHolder, Resources},
    state::State,
};

/// Whether `node` has room for one instance with these ports, given what is used.
pub fn check_fit(
    node: &Node,
    usage: &NodeUsage,
    ask: Resources,
    ports: &[Port],
) -> Result<(), Dimension> {
    let resources = &node.description.resources;
    let wanted = usage.resources.checked_plus(ask)?;
    if let Some(dimension) = wanted.exceeds(resources.available()) {
        return Err(dimension);
    }
    let limit = resources.allocations_max;
    if limit != 0 && usage.allocations >= limit {
        return Err(Dimension::Allocations);
    }
    let mut seen = BTreeSet::new();
    for port in ports {
        let reserved = resources.reserved_ports.binary_search(&port.value).is_ok()
            && !is_planted(Plant::ReservedPortsForgotten);
        let taken = usage.port(port.value) == Some(PortHolder::Live);
        if port.value == 0 || reserved || taken || !seen.insert(port.value) {
            return Err(Dimension::Ports);
        }
    }
    Ok(())
}

/// Whether the plan as a whole may be judged at all: evaluation open, plan not stale, job as the
/// plan saw it.
pub fn check_plan(state: &State, plan: &Plan) -> Result<(), DropReason> {
    match state.evaluations.get(&plan.evaluation) {
        Some(row) if !row.status.is_terminal() && row.job == plan.job => {}
        _ => return Err(DropReason::EvaluationClosed),
    }
    let Some(job) = state.jobs.get(&plan.job) else {
        // Without a job row an older plan cannot be told from a newer one, so only idempotent
        // changes may be taken.
        let stops_only = plan.placements.is_empty()
            && plan.in_place.is_empty()
            && plan.follow_ups.is_empty()
            && plan.deployment.is_none();
        return if stops_only { Ok(()) } else { Err(DropReason::JobChanged) };
    };
    if job.last_plan_index > plan.snapshot_index && !is_planted(Plant::StalePlansTaken) {
        return Err(DropReason::StalePlan);
    }
    // The next step of a deployment that has failed meanwhile.
    let has_failed = |row: &Deployment| {
        row.status == DeploymentStatus::Failed && row.modify_index > plan.snapshot_index
    };
    let changes_instances = !plan.placements.is_empty() || !plan.in_place.is_empty();
    if changes_instances && state.current_deployment(job).is_some_and(|row| has_failed(row)) {
        return Err(DropReason::StalePlan);
    }
    let same = job.create_index == plan.job_create_index && job.version == plan.job_version;
    if !same || (job.stop && !plan.placements.is_empty()) {
        return Err(DropReason::JobChanged);
    }
    Ok(())
}

/// Whether one placement of `spec` may be taken: node there, in service, where the `current`
/// version of the job may run, and with room; name and id free.
pub fn check_placement(
    state: &State,
    placement: &Placement,
    job: &Job,
    current: &JobSpec,
    spec: &JobSpec,
) -> Result<(), DropReason> {
    let group = spec.group(&placement.group).ok_or(DropReason::JobChanged)?;
    if state.allocations.contains(&placement.id) {
        return Err(DropReason::NameTaken);
    }
    let node = state.nodes.get(&placement.node).ok_or(DropReason::NodeMissing)?;
    // An agent that starts again may have another pool or datacenter. Older versions go where the
    // current one may.
    let is_wanted = node.description.matches(&current.node_pool, &current.datacenters);
    if !node.is_schedulable() || !is_wanted {
        return Err(DropReason::NodeUnschedulable);
    }
    let per_node = spec.kind.is_per_node().then_some(placement.node);
    let canary_of =
        placement.canary.then(|| canary_deployment(state, placement, job)).transpose()?;
    let within = NameScope::of(per_node, canary_of);
    let name = (placement.group.clone(), placement.name_index, within);
    if state.live_name(&job.key, &name).is_some() {
        return Err(DropReason::NameTaken);
    }
    check_preempted(state, placement, job)?;
    let usage = state.usage_without(placement.node, &placement.preempts);
    check_fit(node, &usage, Resources::of_group(group), &placement.ports)
        .map_err(DropReason::NodeFull)?;
    let asks = group.network.as_ref().map_or(&[][..], |network| &network.ports);
    let as_asked = asks.len() == placement.ports.len()
        && asks.iter().zip(&placement.ports).all(|(ask, port)| {
            ask.label == port.label && (ask.value == 0 || ask.value == port.value)
        });
    if as_asked { Ok(()) } else { Err(DropReason::NodeFull(Dimension::Ports)) }
}

/// The deployment that a canary belongs to.
pub(super) fn canary_deployment(
    state: &State,
    placement: &Placement,
    job: &Job,
) -> Result<DeploymentId, DropReason> {
    let row = state.current_deployment(job).filter(|row| row.is_active());
    let row = row
        .filter(|row| row.groups.get(&placement.group).is_some_and(DeploymentGroup::is_canarying));
    row.map(|row| row.id).ok_or(DropReason::NoCanaries)
}

/// Whether what a placement evicts may be evicted for it: live allocations of its node, of other
/// jobs, whose priority is lower by [`limits::PREEMPTION_PRIORITY_DISTANCE`].
fn check_preempted(state: &State, placement: &Placement, job: &Job) -> Result<(), DropReason> {
    if placement.preempts.is_empty() {
        return Ok(());
    }
    let is_allowed = state.scheduler_configuration().preemption.allows(job.kind)
        && placement.preempts.len() <= limits::PREEMPTED_MAX;
    let mut seen = BTreeSet::new();
    let all = placement.preempts.iter().all(|id| {
        seen.insert(id)
            && state.allocations.get(id).is_some_and(|row| {
                row.is_live()
                    && row.node == placement.node
                    && is_preemptible(state, row, &job.key, job.priority)
            })
    });
    if is_allowed && all { Ok(()) } else { Err(DropReason::NotPreemptible) }
}

/// Whether an allocation may be evicted for a job of this priority (Nomad's rule: its own job's
/// priority is lower by at least ten).
pub fn is_preemptible(state: &State, row: &Allocation, by: &JobKey, priority: u16) -> bool {
    let distance =
        if is_planted(Plant::EqualPriority) { 0 } else { limits::PREEMPTION_PRIORITY_DISTANCE };
    let own = state.allocation_spec(row).map(|spec| spec.priority);
    row.job != *by && own.is_some_and(|own| own.saturating_add(distance) <= priority)
}
