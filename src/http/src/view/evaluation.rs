//! Evaluations.

use std::collections::BTreeMap;

use fsm::{AllocationId, Evaluation, GroupAnnotation, State, TaskGroup, Text, TimeMs};
use shapes::{DesiredUpdates, EvaluationStub, KnownAllocation, PlanAnnotations};

use super::{
    allocation::allocation_stub, counts_or_none, id_or_none, placement::placement_metrics,
    some_unless_empty,
};
use crate::time;

/// An evaluation, and what it waits for in an instance pool; with `related` also the evaluations
/// that it is chained to.
pub(crate) fn evaluation_in(
    state: &State,
    now: TimeMs,
    row: &Evaluation,
    related: Option<Vec<EvaluationStub>>,
) -> shapes::Evaluation {
    let spec = state.jobs().get(&row.job).and_then(|job| state.current_spec(job));
    // A job may have a thousand groups that all found no room.
    let is_asked = !row.failed_groups.is_empty();
    let spec = spec.filter(|_| is_asked).map(|spec| &**spec);
    let groups = spec.map_or(&[][..], |spec| &spec.groups);
    let groups: BTreeMap<&str, &TaskGroup> =
        groups.iter().map(|group| (&*group.name, group)).collect();
    let failed: BTreeMap<_, _> = row
        .failed_groups
        .iter()
        .map(|(group, metrics)| {
            let asks = groups.get(&**group).copied();
            (group.to_string(), placement_metrics(metrics, spec, asks))
        })
        .collect();
    let classes: BTreeMap<_, _> = row
        .class_eligibility
        .iter()
        .map(|(class, eligible)| (class.to_string(), *eligible))
        .collect();
    let EvaluationStub {
        blocked_eval,
        create_index,
        create_time,
        deployment_id,
        id,
        job_id,
        job_modify_index,
        modify_index,
        modify_time,
        namespace,
        next_eval,
        node_id,
        node_modify_index,
        previous_eval,
        priority,
        status,
        status_description,
        triggered_by,
        kind,
        wait_until,
    } = evaluation_stub(row);
    shapes::Evaluation {
        annotate_plan: false,
        blocked_eval,
        class_eligibility: (!classes.is_empty()).then_some(classes),
        create_index,
        create_time,
        deployment_id,
        escaped_computed_class: row.escaped,
        failed_tg_allocs: (!failed.is_empty()).then_some(failed),
        id,
        job_id,
        job_modify_index,
        modify_index,
        modify_time,
        namespace,
        next_eval,
        node_id,
        node_modify_index,
        plan_annotations: annotations(state, row),
        previous_eval,
        priority,
        queued_allocations: counts_or_none(&row.queued),
        quota_limit_reached: String::new(),
        related_evals: related,
        snapshot_index: row.snapshot_index,
        status,
        status_description,
        triggered_by,
        kind,
        wait: 0,
        wait_until,
        waits_for: elastic::why::evaluation(state, now, row),
    }
}

/// What chains of evaluations show of each.
pub(crate) fn evaluation_stub(row: &Evaluation) -> EvaluationStub {
    EvaluationStub {
        blocked_eval: id_or_none(row.blocked),
        create_index: row.create_index,
        create_time: time::nanoseconds(row.created_at),
        deployment_id: id_or_none(row.deployment),
        id: row.id.to_string(),
        job_id: row.job.id.to_string(),
        job_modify_index: row.job_modify_index,
        modify_index: row.modify_index,
        modify_time: time::nanoseconds(row.modified_at),
        namespace: row.job.namespace.to_string(),
        next_eval: id_or_none(row.next),
        node_id: id_or_none(row.node),
        node_modify_index: row.node_modify_index,
        previous_eval: id_or_none(row.previous),
        priority: row.priority,
        status: row.status.name().to_owned(),
        status_description: row.status_description.to_string(),
        triggered_by: row.trigger.name().to_owned(),
        kind: row.kind.name().to_owned(),
        wait_until: time::rfc3339(row.wait_until),
    }
}

/// What the pass that processed an evaluation wanted; none until it has been processed.
fn annotations(state: &State, row: &Evaluation) -> Option<PlanAnnotations> {
    if row.annotations.is_empty() {
        return None;
    }
    let evicts = row.annotations.values().any(|counts| counts.preemptions > 0);
    let placed = evicts.then(|| state.allocations_of_evaluation(row.id));
    let evicted = placed.into_iter().flatten().flat_map(|row| &row.preempted);
    // One that is over may have been collected.
    let shown = |id: &AllocationId| match state.allocations().get(id) {
        Some(row) => KnownAllocation::Stub(Box::new(allocation_stub(state, row, false, true))),
        None => KnownAllocation::Gone { id: id.to_string() },
    };
    Some(PlanAnnotations {
        desired_tg_updates: desired_updates(&row.annotations),
        preempted_allocs: some_unless_empty(evicted.map(shown).collect()),
    })
}

/// What a plan does to groups.
pub(crate) fn desired_updates(
    of: &BTreeMap<Text, GroupAnnotation>,
) -> BTreeMap<String, DesiredUpdates> {
    let groups = of.iter().map(|(name, counts)| {
        let updates = DesiredUpdates {
            canary: counts.canary,
            destructive_update: counts.destructive_update,
            ignore: counts.ignore,
            in_place_update: counts.in_place_update,
            migrate: counts.migrate,
            place: counts.place,
            preemptions: counts.preemptions,
            stop: counts.stop,
            ..DesiredUpdates::default()
        };
        (name.to_string(), updates)
    });
    groups.collect()
}
