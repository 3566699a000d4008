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

mod annotate;
mod candidates;
mod constraint;
mod declared;
mod evaluate;
mod feasible;
mod idle;
mod pattern;
mod plan;
mod preempt;
mod rank;
mod reconcile;
mod regexp;
mod reschedule;
mod rollout;
mod service;
mod shuffle;
mod spread;
mod stack;
mod system;
mod tally;
mod update;
mod version;

pub mod check;

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a test that finds nothing to unwrap fails")]
mod tests;

pub use annotate::{Annotations, annotate};
pub use candidates::Memory;
pub use constraint::{NODE_TARGETS, is_target, pattern_problem};
pub use declared::{Declared, per_node_max};
pub use pattern::{Budget, Pattern, Spent};
pub use update::replaces_task;

use fsm::{Evaluation, Index, JobKey, JobKind, Plan, State, TimeMs, plan::Outcome};

/// Version of the scheduling rules. Servers that disagree on it must not schedule for each other.
pub const SCHEDULER_VERSION: u32 = 4;

/// What one pass looks at.
#[derive(Clone, Copy)]
pub struct Pass<'a> {
    /// The snapshot.
    pub state: &'a State,
    /// The evaluation to process.
    pub evaluation: &'a Evaluation,
    /// Log time, not before `state.at()`.
    pub now: TimeMs,
    /// Number of the pass, from 0; part of the seed of ids.
    pub attempt: u32,
}

/// The snapshot cannot be scheduled on.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// A job's current version is not in the versions table.
    #[error(
        "job {job} has no spec for its current version {version} (create index {create_index})"
    )]
    SpecMissing {
        /// Job.
        job: JobKey,
        /// Its incarnation.
        create_index: Index,
        /// The version that is missing.
        version: u64,
    },
}

/// Plans one pass.
pub fn schedule(pass: &Pass<'_>) -> Result<Plan, ScheduleError> {
    schedule_with(pass, &mut Memory::default())
}

/// Plans one pass, faster with the memory of earlier ones; the plan is the same.
pub fn schedule_with(pass: &Pass<'_>, memory: &mut Memory) -> Result<Plan, ScheduleError> {
    let target = plan::Target::of(pass)?;
    let draft = plan::Draft::new(pass, target);
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
    let target = plan::Target::of(pass)?;
    let mut draft = plan::Draft::new(pass, target);
    evaluate::queue_missing(&mut draft, tried);
    let mut plan = evaluate::exhausted(draft, attempts_max(target.kind(pass.evaluation)));
    if let Some(outcome) = &mut plan.outcome {
        outcome.annotations = annotations.unwrap_or_default();
    }
    Ok(plan)
}
