//! When a failed allocation may be rescheduled, and the history that its replacement carries.

use fsm::{
    Allocation, AllocationId, EvaluationId, NodeId, TimeMs,
    allocation::RescheduleEvent,
    job::{DelayFunction, ReschedulePolicy},
    limits::{RESCHEDULE_EVENTS_COUNTED_MAX, RESCHEDULE_EVENTS_MAX},
};

use crate::pass::Pass;

/// A reschedule due within this time is done now (Nomad's `rescheduleWindowSize`).
const DUE_SLACK_MS: u64 = 1_000;
/// Reschedules due within this time after the first share one follow-up evaluation (Nomad's
/// `batchedFailedAllocWindow`).
const SHARED_FOLLOW_UP_MS: u64 = 5_000;

/// When a failed allocation is to be rescheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// The policy does not allow another attempt.
    Never,
    Now,
    At(TimeMs),
    /// A follow-up evaluation waits for the time already.
    Awaited,
}

pub(crate) fn when(
    policy: Option<&ReschedulePolicy>,
    allocation: &Allocation,
    pass: &Pass<'_>,
) -> When {
    if allocation.transition.reschedule || allocation.transition.migrate {
        return When::Now;
    }
    let Some(policy) = policy else { return When::Never };
    if !allocation.may_retry(policy) {
        return When::Never;
    }
    if allocation.follow_up == Some(pass.evaluation.id) {
        return When::Now;
    }
    let due = allocation.client_at.saturating_add(delay_ms(policy, allocation));
    if due <= pass.now.saturating_add(DUE_SLACK_MS) {
        return When::Now;
    }
    let awaited = |id: EvaluationId| {
        pass.state.evaluations().get(&id).is_some_and(|waiting| !waiting.status.is_terminal())
    };
    if allocation.follow_up.is_some_and(awaited) { When::Awaited } else { When::At(due) }
}

/// The delay before the next attempt, ms. Once a growing delay has reached its maximum, it starts
/// again from `delay_ms` if the last attempt lasted longer than the maximum.
pub(crate) fn delay_ms(policy: &ReschedulePolicy, allocation: &Allocation) -> u64 {
    let mut past = allocation.reschedules.iter().rev();
    let Some(last) = past.next() else { return policy.delay_ms };
    let delay = match policy.delay_function {
        // `delay_ms_max` is for growing delays only.
        DelayFunction::Constant => return policy.delay_ms,
        DelayFunction::Exponential => last.delay_ms.saturating_mul(2),
        DelayFunction::Fibonacci => match past.next() {
            // The series has started again from `delay_ms`; earlier delays do not belong to it.
            Some(before)
                if last.delay_ms == policy.delay_ms && before.delay_ms == policy.delay_ms_max =>
            {
                policy.delay_ms
            }
            Some(before) => last.delay_ms.saturating_add(before.delay_ms),
            None => policy.delay_ms,
        },
    };
    if policy.delay_ms_max == 0 || delay <= policy.delay_ms_max {
        return delay;
    }
    if allocation.client_at.saturating_sub(last.at) > policy.delay_ms_max {
        policy.delay_ms
    } else {
        policy.delay_ms_max
    }
}

/// The reschedule history for the replacement of a failed allocation.
pub(crate) fn history(
    policy: Option<&ReschedulePolicy>,
    allocation: &Allocation,
    now: TimeMs,
) -> Vec<RescheduleEvent> {
    let mut events = allocation.reschedules.clone();
    events.push(RescheduleEvent {
        at: now,
        previous: allocation.id,
        node: allocation.node,
        delay_ms: policy.map_or(0, |policy| delay_ms(policy, allocation)),
    });
    let max = match policy.filter(|policy| !policy.unlimited) {
        Some(policy) => {
            events.retain(|event| allocation.counts(policy, event));
            RESCHEDULE_EVENTS_COUNTED_MAX
        }
        None => RESCHEDULE_EVENTS_MAX,
    };
    let excess = events.len().saturating_sub(max);
    events.drain(..excess);
    events
}

/// Nodes on which the allocation and its predecessors failed.
pub(crate) fn penalties(allocation: &Allocation) -> Vec<NodeId> {
    let mut nodes: Vec<_> = allocation.reschedules.iter().map(|event| event.node).collect();
    nodes.push(allocation.node);
    nodes
}

/// Groups later reschedules into follow-up evaluations: the time of each, and its allocations.
pub(crate) fn batches(mut later: Vec<(TimeMs, AllocationId)>) -> Vec<(TimeMs, Vec<AllocationId>)> {
    later.sort_unstable();
    let mut batches: Vec<(TimeMs, Vec<AllocationId>)> = Vec::new();
    for (due, id) in later {
        match batches.last_mut() {
            Some((first, ids)) if due - *first < SHARED_FOLLOW_UP_MS => ids.push(id),
            Some(_) | None => batches.push((due, vec![id])),
        }
    }
    batches
}
