//! Evaluations: which triggers a scheduler handles, how the processed evaluation ends, and which
//! evaluations a pass creates (blocked ones and follow-ups).
//!
//! Invariant: a pass adds a blocked evaluation only if no open blocked evaluation of the job
//! already waits for the same resources.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    AllocationId, Evaluation, EvaluationId, EvaluationStatus, JobKind, NodeId, Plan, TimeMs,
    Trigger,
};

use crate::{
    kind::draft::{Draft, End},
    place::feasible::ClassSummary,
};

const BLOCKED_REMAINING: &str = "created to place remaining allocations";
const BLOCKED_CONFLICTS: &str = "created due to placement conflicts";

/// Whether the scheduler of `kind` processes evaluations made for `trigger`.
pub(crate) fn handles(kind: JobKind, trigger: Trigger) -> bool {
    match trigger {
        Trigger::JobRegister
        | Trigger::JobDeregister
        | Trigger::NodeDrain
        | Trigger::NodeUpdate
        | Trigger::AllocStop
        | Trigger::DeploymentWatcher
        | Trigger::FailedFollowUp
        | Trigger::MaxPlans
        | Trigger::AllocFailure
        | Trigger::QueuedAllocs
        | Trigger::Preemption
        | Trigger::JobScaling
        | Trigger::MaxDisconnectTimeout
        | Trigger::Reconnect
        | Trigger::RetryFailedAlloc => true,
        Trigger::PeriodicJob => kind != JobKind::System,
        Trigger::Scheduled => false,
    }
}

/// Ends the pass of a service or batch job. If groups failed, an evaluation that was blocked is
/// blocked again. Any other completes, and a new blocked evaluation waits for the failed groups.
pub(crate) fn finish(mut draft: Draft<'_>, classes: ClassSummary) -> Plan {
    if draft.failed_groups.is_empty() {
        return complete(draft);
    }
    if was_blocked(draft.pass.evaluation) {
        return reblock(draft, classes);
    }
    if !covered(&draft, &classes) {
        let mut blocked = blocked(&mut draft, Trigger::QueuedAllocs, BLOCKED_REMAINING);
        blocked.class_eligibility = classes.eligibility;
        blocked.escaped = classes.escaped;
        draft.evaluations.push(blocked);
    }
    complete(draft)
}

/// Ends the pass of a system or sysbatch job. Each node without room gets its own blocked
/// evaluation.
pub(crate) fn finish_per_node(mut draft: Draft<'_>, exhausted: &[NodeId]) -> Plan {
    let own = draft.pass.evaluation;
    let reblocked =
        if was_blocked(own) { own.node.filter(|node| exhausted.contains(node)) } else { None };
    let known: BTreeSet<NodeId> = open_evaluations(&draft)
        .filter(|open| open.status == EvaluationStatus::Blocked && open.id != own.id)
        .filter_map(|open| open.node)
        .collect();
    for node in exhausted {
        if reblocked == Some(*node) || known.contains(node) {
            continue;
        }
        let mut blocked = blocked(&mut draft, Trigger::QueuedAllocs, BLOCKED_REMAINING);
        blocked.node = Some(*node);
        draft.evaluations.push(blocked);
    }
    if reblocked.is_some() {
        return reblock(draft, ClassSummary::default());
    }
    complete(draft)
}

/// Counts as queued the instances that the job will lack because `plan` is not submitted.
pub(crate) fn queue_missing(draft: &mut Draft<'_>, plan: Plan) {
    if let Some(outcome) = plan.outcome {
        draft.queued = outcome.queued;
        draft.waiting = outcome.waiting;
    }
    for placement in plan.placements {
        draft.queue(&placement.group, placement.version, 1);
    }
}

/// Fails an evaluation whose attempts are used up, and adds a blocked evaluation if the job still
/// wants instances.
pub(crate) fn exhausted(mut draft: Draft<'_>, attempts: u32) -> Plan {
    let own = draft.pass.evaluation.id;
    let wanted = draft.target.spec.is_some();
    let known = open_evaluations(&draft).any(|open| {
        open.id != own
            && open.trigger == Trigger::MaxPlans
            && open.status == EvaluationStatus::Blocked
    });
    if wanted && !known {
        let blocked = blocked(&mut draft, Trigger::MaxPlans, BLOCKED_CONFLICTS);
        draft.evaluations.push(blocked);
    }
    draft.refuse(format!("maximum attempts reached ({attempts})"))
}

/// Completes the evaluation.
pub(crate) fn complete(draft: Draft<'_>) -> Plan {
    draft.finish(End {
        status: EvaluationStatus::Complete,
        description: "".into(),
        class_eligibility: BTreeMap::new(),
        escaped: false,
    })
}

/// Adds an evaluation that becomes due at `wait_until`, log time ms.
pub(crate) fn follow_up(
    draft: &mut Draft<'_>,
    trigger: Trigger,
    wait_until: TimeMs,
    reschedules: Vec<AllocationId>,
) -> EvaluationId {
    let mut evaluation = new(draft, trigger);
    evaluation.wait_until = wait_until;
    evaluation.reschedules = reschedules;
    let id = evaluation.id;
    draft.evaluations.push(evaluation);
    id
}

/// The job's evaluations that are not terminal.
pub(crate) fn open_evaluations<'a>(
    draft: &Draft<'a>,
) -> impl Iterator<Item = &'a Evaluation> + use<'a> {
    let state = draft.pass.state;
    state
        .job_index(&draft.pass.evaluation.job)
        .into_iter()
        .flat_map(|index| index.open_evaluations.iter())
        .filter_map(|id| state.evaluations().get(id))
        .map(|row| &**row)
}

/// Whether the evaluation is or was a blocked one. An unblocked evaluation keeps its trigger, and
/// only blocked evaluations are created with these two triggers.
fn was_blocked(evaluation: &Evaluation) -> bool {
    evaluation.status == EvaluationStatus::Blocked
        || matches!(evaluation.trigger, Trigger::QueuedAllocs | Trigger::MaxPlans)
}

/// Whether the job already has a blocked evaluation that waits for everything that this one would
/// wait for.
///
/// The existing evaluation must be for the same job version, and must name every group that failed
/// now. It must not ignore a class that this one would wait for: a class that it holds for
/// ineligible must be ineligible here too. The two may differ because one asked for the current
/// version and the other for an older version that stands in for it.
fn covered(draft: &Draft<'_>, classes: &ClassSummary) -> bool {
    let own = draft.pass.evaluation.id;
    let version = draft.target.job.map_or(0, |job| job.job_modify_index);
    open_evaluations(draft).any(|open| {
        open.id != own
            && open.status == EvaluationStatus::Blocked
            && open.trigger == Trigger::QueuedAllocs
            && open.job_modify_index == version
            && (open.escaped || !classes.escaped)
            && draft.failed_groups.keys().all(|group| open.failed_groups.contains_key(group))
            && open.class_eligibility.iter().all(|(class, eligible)| {
                *eligible || classes.eligibility.get(class) == Some(&false)
            })
    })
}

fn reblock(draft: Draft<'_>, classes: ClassSummary) -> Plan {
    draft.finish(End {
        status: EvaluationStatus::Blocked,
        description: BLOCKED_REMAINING.into(),
        class_eligibility: classes.eligibility,
        escaped: classes.escaped,
    })
}

fn blocked(draft: &mut Draft<'_>, trigger: Trigger, why: &str) -> Evaluation {
    let mut evaluation = new(draft, trigger);
    evaluation.status = EvaluationStatus::Blocked;
    evaluation.status_description = why.into();
    evaluation.failed_groups = draft.failed_groups.clone();
    evaluation.queued = draft.queued.clone();
    evaluation
}

fn new(draft: &mut Draft<'_>, trigger: Trigger) -> Evaluation {
    let own = draft.pass.evaluation;
    let kind = draft.target.kind(own);
    let mut evaluation =
        Evaluation::new(draft.next_evaluation_id(), own.job.clone(), kind, own.priority, trigger);
    evaluation.previous = Some(own.id);
    evaluation.snapshot_index = draft.pass.state.index();
    evaluation.job_modify_index = draft.target.job.map_or(0, |job| job.job_modify_index);
    evaluation.created_at = draft.pass.now;
    evaluation.modified_at = draft.pass.now;
    evaluation
}
