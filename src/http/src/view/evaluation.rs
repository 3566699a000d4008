//! Evaluations.

use std::collections::BTreeMap;

use fsm::{AllocationId, Evaluation, GroupAnnotation, State, TaskGroup, TimeMs};
use serde_json::{Map, Value, json};

use super::{
    allocation::allocation_stub, count_map, id_or_empty, list_or_null, map_or_null,
    placement::placement_metrics, text,
};
use crate::time;

/// An evaluation; with `related` also the evaluations it is chained to.
fn evaluation(state: &State, evaluation: &Evaluation, related: Option<Vec<Value>>) -> Value {
    let spec = state.jobs().get(&evaluation.job).and_then(|job| state.current_spec(job));
    // A job may have a thousand groups that all found no room.
    let is_asked = !evaluation.failed_groups.is_empty();
    let spec = spec.filter(|_| is_asked).map(|spec| &**spec);
    let groups = spec.map_or(&[][..], |spec| &spec.groups);
    let groups: BTreeMap<&str, &TaskGroup> =
        groups.iter().map(|group| (&*group.name, group)).collect();
    let failed: BTreeMap<_, _> = evaluation
        .failed_groups
        .iter()
        .map(|(group, metrics)| {
            let asks = groups.get(&**group).copied();
            (group.to_string(), placement_metrics(metrics, spec, asks))
        })
        .collect();
    let classes: Map<_, _> = evaluation
        .class_eligibility
        .iter()
        .map(|(class, eligible)| (class.to_string(), (*eligible).into()))
        .collect();
    let queued = count_map(&evaluation.queued);
    let mut value = evaluation_stub(evaluation);
    if let Value::Object(object) = &mut value {
        object.insert("FailedTGAllocs".to_owned(), map_or_null(json!(failed)));
        object.insert("ClassEligibility".to_owned(), map_or_null(classes.into()));
        object.insert("EscapedComputedClass".to_owned(), evaluation.escaped.into());
        object.insert("QueuedAllocations".to_owned(), map_or_null(queued));
        object.insert("PlanAnnotations".to_owned(), annotations(state, evaluation));
        object.insert("SnapshotIndex".to_owned(), evaluation.snapshot_index.into());
        object.insert("QuotaLimitReached".to_owned(), "".into());
        object.insert("AnnotatePlan".to_owned(), false.into());
        object.insert("Wait".to_owned(), 0.into());
        // Null where nobody asked for them.
        object.insert("RelatedEvals".to_owned(), related.into());
    }
    value
}

/// An evaluation, and what it waits for in an instance pool.
pub(crate) fn evaluation_in(
    state: &State,
    now: TimeMs,
    row: &Evaluation,
    related: Option<Vec<Value>>,
) -> Value {
    let mut value = evaluation(state, row, related);
    let waits_for = elastic::why::evaluation(state, now, row);
    if let (Value::Object(object), false) = (&mut value, waits_for.is_empty()) {
        object.insert("WaitsFor".to_owned(), waits_for.into());
    }
    value
}

/// What chains of evaluations show of each.
pub(crate) fn evaluation_stub(evaluation: &Evaluation) -> Value {
    json!({
        "ID": evaluation.id.to_string(),
        "Namespace": text(&evaluation.job.namespace),
        "Priority": evaluation.priority,
        "Type": evaluation.kind.name(),
        "TriggeredBy": evaluation.trigger.name(),
        "JobID": text(&evaluation.job.id),
        "JobModifyIndex": evaluation.job_modify_index,
        "NodeID": id_or_empty(evaluation.node),
        "NodeModifyIndex": evaluation.node_modify_index,
        "DeploymentID": id_or_empty(evaluation.deployment),
        "Status": evaluation.status.name(),
        "StatusDescription": text(&evaluation.status_description),
        "WaitUntil": time::rfc3339(evaluation.wait_until),
        "NextEval": id_or_empty(evaluation.next),
        "PreviousEval": id_or_empty(evaluation.previous),
        "BlockedEval": id_or_empty(evaluation.blocked),
        "CreateIndex": evaluation.create_index,
        "ModifyIndex": evaluation.modify_index,
        "CreateTime": time::nanoseconds(evaluation.created_at),
        "ModifyTime": time::nanoseconds(evaluation.modified_at),
    })
}

/// What the pass that processed an evaluation wanted; null until it has been processed.
fn annotations(state: &State, evaluation: &Evaluation) -> Value {
    if evaluation.annotations.is_empty() {
        return Value::Null;
    }
    let groups = evaluation.annotations.iter();
    let desired: Map<_, _> =
        groups.map(|(name, counts)| (name.to_string(), desired(counts))).collect();
    let evicts = evaluation.annotations.values().any(|counts| counts.preemptions > 0);
    let placed = evicts.then(|| state.allocations_of_evaluation(evaluation.id));
    let evicted = placed.into_iter().flatten().flat_map(|row| &row.preempted);
    // One that is over may have been collected.
    let shown = |id: &AllocationId| match state.allocations().get(id) {
        Some(row) => allocation_stub(state, row, false, true),
        None => json!({ "ID": id.to_string() }),
    };
    let evicted: Vec<Value> = evicted.map(shown).collect();
    json!({
        "DesiredTGUpdates": desired,
        "PreemptedAllocs": list_or_null(evicted),
    })
}

/// What a plan does to a group (Nomad's `DesiredUpdates`).
pub(crate) fn desired(counts: &GroupAnnotation) -> Value {
    json!({
        "Ignore": counts.ignore,
        "Place": counts.place,
        "Migrate": counts.migrate,
        "Stop": counts.stop,
        "InPlaceUpdate": counts.in_place_update,
        "DestructiveUpdate": counts.destructive_update,
        "Canary": counts.canary,
        "Preemptions": counts.preemptions,
        "Reconnect": 0,
        "Disconnect": 0,
        "RescheduleNow": 0,
        "RescheduleLater": 0,
    })
}
