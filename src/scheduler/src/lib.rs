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
//! One call is one pass. The worker loops: it submits the plan; while the verdict says that a part
//! was dropped it waits for the refresh index and calls again with the next `attempt`; after
//! [`attempts_max`] passes without progress it submits [`exhausted`] instead.
//!
//! - A plan with an outcome finishes the evaluation if all of it is applied. A plan that changes
//!   nothing still carries its outcome.
//! - A plan **without** an outcome was cut at [`fsm::limits::PLAN_PLACEMENTS_MAX`] changes of a
//!   kind. Applied in full it is progress, not a failure: the worker runs the next pass on the
//!   state that contains it, and counts attempts from zero again.
//!
//! No clock, no randomness, no unordered iteration: ids and orders derive from the evaluation's id,
//! the snapshot's index and the attempt, so the same pass gives the same plan. Floats are used for
//! scores only; what leaves the package is in millionths.

#![forbid(unsafe_code)]

mod explain;
mod kind;
mod pass;
mod place;
mod reconcile;

pub mod check;
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

/// Version of the scheduling rules. Servers that disagree on it must not schedule for each other.
pub const SCHEDULER_VERSION: u32 = 4;

/// Plans one pass.
pub fn schedule(pass: &Pass<'_>) -> Result<Plan, ScheduleError> {
    schedule_with(pass, &mut Memory::default())
}

/// Plans one pass, faster with the memory of earlier ones; the plan is the same.
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

/// Passes without progress before an evaluation fails (Nomad's `maxServiceScheduleAttempts` and its
/// siblings).
pub const fn attempts_max(kind: JobKind) -> u32 {
    match kind {
        JobKind::Service | JobKind::System => 5,
        JobKind::Batch | JobKind::Sysbatch => 2,
    }
}

/// The plan of an evaluation whose attempts are used up: it fails, and a blocked evaluation tries
/// again later. What another pass would place is queued.
///
/// No blocked evaluation is made for a job that is gone or stopped, or that has one of this kind
/// already.
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
