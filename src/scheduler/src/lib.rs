//! Schedulers: a pure function from a state snapshot and an evaluation to a plan.
//!
//! ```text
//!  Pass { state, evaluation, now, attempt }
//!        │
//!        ▼            reconcile (service, batch)          stack: feasible → fits → rank → limit
//!   schedule ──► what is wanted against what is there ──► where it goes ──► Draft ──► Plan { stops, placements, …, outcome }
//!                     system (system, sysbatch)
//! ```
//!
//! One call plans one pass. The worker submits the plan. If the leader dropped a part of it, the
//! worker waits for the refresh index and calls again with the next `attempt`. After
//! [`attempts_max`] passes without progress it submits the plan of [`exhausted`] instead.
//!
//! - A plan with an outcome finishes the evaluation if all of it is applied. A plan without changes
//!   has an outcome too.
//! - A plan **without** an outcome is incomplete: it reached [`fsm::limits::PLAN_PLACEMENTS_MAX`]
//!   changes of one kind, or its bound in bytes (`kind/draft.rs`). When it is applied in full, that
//!   counts as progress. The worker then runs the next pass on the new state and counts attempts
//!   from zero again.
//!
//! There is no clock, no randomness and no unordered iteration. Ids and orders derive from the
//! evaluation's id, the snapshot's index and the attempt, so the same pass always gives the same
//! plan. Floats are used for scores only. They leave the package as integers, in millionths.

#![forbid(unsafe_code)]

mod kind;
mod pass;
mod place;
mod reconcile;

pub mod check;
pub mod explain;
pub mod what_if;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that finds nothing to unwrap fails")]
mod tests;

pub use self::{
    explain::annotate::{Annotations, annotate},
    pass::{Pass, ScheduleError},
    place::{
        candidates::Memory,
        constraint::{NODE_TARGETS, is_target, pattern_problem},
        declared::{Declared, per_node_max},
        pattern::{Budget, Pattern, Spent},
    },
    reconcile::update::replaces_task,
};

use fsm::{JobKind, Plan, plan::Outcome};

use self::{
    kind::{draft::Draft, evaluate, service, system},
    pass::Target,
};

/// Version of the scheduling rules. A server must not schedule for a leader with another version.
pub const SCHEDULER_VERSION: u32 = 4;

/// Plans one pass.
pub fn schedule(pass: &Pass<'_>) -> Result<Plan, ScheduleError> {
    schedule_with(pass, &mut Memory::default())
}

/// Plans one pass like [`schedule`], and reuses the node lists in `memory`. The plan is the same
/// with any memory; only the time differs.
pub fn schedule_with(pass: &Pass<'_>, memory: &mut Memory) -> Result<Plan, ScheduleError> {
    let target = Target::of(pass)?;
    let draft = Draft::new(pass, target);
    let kind = target.kind(pass.evaluation);
    if !evaluate::handles(kind, pass.evaluation.trigger) {
        return Ok(draft.refuse(format!(
            "scheduler cannot handle '{}' evaluation reason",
            pass.evaluation.trigger.name()
        )));
    }
    let mut plan = match (target.spec, kind) {
        (None, _) => service::stop_all(draft),
        (Some(spec), JobKind::Service | JobKind::Batch) => service::schedule(draft, spec, memory),
        (Some(spec), JobKind::System | JobKind::Sysbatch) => system::schedule(draft, spec, memory),
    };
    if plan.outcome.is_some() {
        let made = annotate(pass.state, &plan, target.spec.map(|spec| &**spec));
        plan.outcome = plan.outcome.map(|outcome| Outcome { annotations: made, ..outcome });
    }
    Ok(plan)
}

/// How many passes without progress an evaluation may have before it fails. The numbers are those
/// of Nomad's `maxServiceScheduleAttempts`, `maxSystemScheduleAttempts`, `maxBatchScheduleAttempts`
/// and `maxSysBatchScheduleAttempts`.
pub const fn attempts_max(kind: JobKind) -> u32 {
    match kind {
        JobKind::Service | JobKind::System => 5,
        JobKind::Batch | JobKind::Sysbatch => 2,
    }
}

/// The plan for an evaluation whose attempts are used up. The plan changes no allocation. It fails
/// the evaluation and adds a blocked evaluation that tries again later. It still reports as queued
/// the instances that another pass would place.
///
/// No blocked evaluation is added if the job is gone or stopped, or if the job already has a
/// blocked evaluation with the trigger `max-plan-attempts`.
pub fn exhausted(pass: &Pass<'_>) -> Result<Plan, ScheduleError> {
    let tried = schedule(pass)?;
    let annotations = tried.outcome.as_ref().map(|outcome| outcome.annotations.clone());
    let target = Target::of(pass)?;
    let mut draft = Draft::new(pass, target);
    evaluate::queue_missing(&mut draft, tried);
    let mut plan = evaluate::exhausted(draft, attempts_max(target.kind(pass.evaluation)));
    if let Some(outcome) = &mut plan.outcome {
        outcome.annotations = annotations.unwrap_or_default();
    }
    Ok(plan)
}
