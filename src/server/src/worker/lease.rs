//! One lease from its delivery to its end: wait for the index, plan, submit, plan again or be done.
//!
//! Nothing in here looks at whether the server stops: `Worker::work_on` drops the whole of it then,
//! and gives the lease back.

use std::{
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use fsm::{Evaluation, Index, Plan, State};
use ground::{
    rt::{self, Instant},
    task,
};
use leader::{
    IndexWait, Looked, PlanAnswer,
    broker::NackReason,
    turn::{After, Begin, Turn},
};
use scheduler::{Memory, Pass};
use tonic::{Code, Status};
use tracing::Instrument;
use wire::{
    api::{Lease, Workload},
    published::StateCell,
};

use super::{Worker, stats::Made};
use crate::worker::leader_link::Submission;

const INDEX_WAIT: Duration = Duration::from_secs(5);

/// How the work on a lease ends.
#[derive(Debug, PartialEq)]
enum Done {
    Acknowledge,
    Nack(NackReason),
    /// Somebody else has the evaluation by now.
    Gone,
}

/// Waits until an index is applied, but not longer than `limit`. It is woken by apply; beside that
/// it looks by itself, so that a wake-up that is lost costs a second and not a lease.
pub(crate) async fn until_applied(cell: &StateCell, index: Index, limit: Duration) -> bool {
    let begun = Instant::now();
    let limit_ms = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    let mut wait = IndexWait::new(index, 0, limit_ms);
    loop {
        let passed = begun.elapsed();
        let passed_ms = u64::try_from(passed.as_millis()).unwrap_or(u64::MAX);
        match wait.look(passed_ms, cell.applied()) {
            Looked::There => return true,
            Looked::Over => return false,
            Looked::Until(at_ms) => {
                let pause = Duration::from_millis(at_ms).saturating_sub(passed);
                // Woken or not: the next look says what is there.
                cell.wait_for(index, pause).await;
            }
        }
    }
}

impl Worker {
    /// Works on a lease in a span of its own, with a line for each step.
    pub(crate) async fn process(&mut self, lease: &Lease) {
        let Evaluation { id, job, .. } = &*lease.evaluation;
        let span = tracing::debug_span!("lease", evaluation = %id, %job, index = lease.wait_index);
        self.work(lease).instrument(span).await;
    }

    async fn work(&mut self, lease: &Lease) {
        tracing::debug!("leased");
        // This server is known to lag: release the lease without another wait.
        let wait = if self.lags_behind().is_some() { Duration::ZERO } else { INDEX_WAIT };
        let done = match self.wait_for(lease.wait_index, wait).await {
            Ok(()) => self.plan_until_done(lease).await,
            Err(why) => why,
        };
        match done {
            Done::Acknowledge => self.acknowledge(lease).await,
            Done::Nack(why) => self.nack(lease, why).await,
            Done::Gone => {}
        }
    }

    /// Waits for the local state. When it does not come, no worker of this server leases until it
    /// is there.
    async fn wait_for(&self, index: Index, wait: Duration) -> Result<(), Done> {
        self.seat.does(Workload::WaitingForIndex);
        let begun = Instant::now();
        let is_there = until_applied(&self.cell, index, wait).await;
        self.stats.times.wait_for_index.record(begun.elapsed());
        if is_there {
            tracing::debug!(index, "the state is there");
            return Ok(());
        }
        self.stats.lags_behind(index);
        Err(Done::Nack(NackReason::Lag))
    }

    async fn plan_until_done(&mut self, lease: &Lease) -> Done {
        let attempts_max = scheduler::attempts_max(lease.evaluation.kind);
        let mut turn = Turn::new(lease.evaluation.id, attempts_max);
        loop {
            let state = self.cell.load();
            let (evaluation, pass, exhausted) = match turn.begin(&state) {
                Begin::Plan { evaluation, pass, exhausted } => (evaluation, pass, exhausted),
                Begin::Acknowledge => return Done::Acknowledge,
                Begin::Nack => return Done::Nack(NackReason::Failed),
            };
            let plan = match self.schedule(state, *evaluation, pass, exhausted).await {
                Ok(plan) => plan,
                Err(message) => {
                    tracing::error!(evaluation = %lease.evaluation.id, message, "a scheduling turn failed");
                    return Done::Nack(NackReason::Failed);
                }
            };
            tracing::debug!(
                snapshot = plan.snapshot_index,
                places = plan.placements.len(),
                stops = plan.stops.len(),
                status = ?plan.outcome.as_ref().map(|outcome| outcome.status),
                "planned"
            );
            let made = Made::of(&plan);
            let answer = match self.submit(lease, plan).await {
                Ok(answer) => answer,
                Err(done) => return done,
            };
            tracing::debug!(?answer, "the plan is answered");
            if matches!(answer, PlanAnswer::Applied { .. }) {
                self.stats.outcomes.add(made);
            }
            match turn.answered(&answer) {
                After::Acknowledge => return Done::Acknowledge,
                After::Pause => {
                    self.seat.does(Workload::BackingOff);
                    rt::sleep(self.backoffs.unknown.next_wait()).await;
                }
                After::WaitFor(index) => {
                    self.backoffs.unknown.reset();
                    if let Err(done) = self.wait_for(index, INDEX_WAIT).await {
                        return done;
                    }
                }
            }
        }
    }

    async fn schedule(
        &self,
        state: Arc<State>,
        evaluation: Evaluation,
        pass: u32,
        exhausted: bool,
    ) -> Result<Plan, String> {
        self.seat.does(Workload::Scheduling);
        self.stats.invoked.fetch_add(1, Ordering::Relaxed);
        let (begun, kind) = (Instant::now(), evaluation.kind);
        let memory = Arc::clone(&self.memory);
        let span = tracing::debug_span!("pass", kind = kind.name(), attempt = pass);
        let turn = move || make_pass(&state, evaluation, pass, exhausted, &memory);
        let plan = self.passes.run_blocking(turn).instrument(span).await;
        self.stats.times.invoke(kind).record(begun.elapsed());
        plan
    }

    /// Submits a plan until the leader tells its outcome. A leader of another term does not know
    /// the lease: then the lease is gone, there is no answer, and the new leader hands the
    /// evaluation out again. A full plan queue is no outcome: the same plan is submitted again.
    async fn submit(&mut self, lease: &Lease, plan: Plan) -> Result<PlanAnswer, Done> {
        let begun = Instant::now();
        let mut submission = Submission::new(plan);
        loop {
            self.seat.does(Workload::Submitting);
            let status = match self.link.submit(lease.key(), &mut submission).await {
                Ok(answer) => {
                    self.backoffs.resubmit.reset();
                    self.backoffs.full_queue.reset();
                    self.stats.times.submit.record(begun.elapsed());
                    return Ok(answer);
                }
                Err(status) => status,
            };
            if let Some(done) = given_up(&status) {
                return Err(done);
            }
            tracing::debug!(%status, "a plan was not submitted");
            self.seat.does(Workload::BackingOff);
            let backoffs = &mut self.backoffs;
            let is_full = status.code() == Code::ResourceExhausted;
            let backoff = if is_full { &mut backoffs.full_queue } else { &mut backoffs.resubmit };
            rt::sleep(backoff.next_wait()).await;
        }
    }

    async fn acknowledge(&self, lease: &Lease) {
        let begun = Instant::now();
        self.stats.acknowledged.fetch_add(1, Ordering::Relaxed);
        let acknowledged = self.link.ack(lease.key());
        if let Err(status) = acknowledged.instrument(tracing::debug_span!("acknowledge")).await {
            tracing::debug!(%status, "an acknowledgement was not taken");
        }
        tracing::debug!("acknowledged");
        self.stats.times.acknowledge.record(begun.elapsed());
    }

    pub(crate) async fn nack(&self, lease: &Lease, why: NackReason) {
        match why {
            NackReason::Lag => &self.stats.released_for_lag,
            NackReason::Failed | NackReason::Shutdown => &self.stats.nacked,
        }
        .fetch_add(1, Ordering::Relaxed);
        if let Err(status) = self.link.nack(lease.key(), why).await {
            tracing::debug!(%status, "a lease was not given back");
        }
        tracing::debug!(?why, "given back");
    }
}

/// How a turn ends whose plan was refused; `None` if the plan may be submitted again.
fn given_up(status: &Status) -> Option<Done> {
    // Not outstanding, or another token or term: another worker has the evaluation by now.
    if matches!(status.code(), Code::NotFound | Code::Aborted) {
        return Some(Done::Gone);
    }
    // The leader cannot read the plan, or it is too large to send: a retry would fail as well.
    if matches!(status.code(), Code::InvalidArgument | Code::OutOfRange) {
        tracing::error!(%status, "a plan is refused for good");
        return Some(Done::Nack(NackReason::Failed));
    }
    None
}

/// One scheduling turn. A panic inside it becomes an error; anywhere else a panic ends the process.
/// `tests/budget` counts what it takes.
pub fn make_pass(
    state: &State,
    evaluation: Evaluation,
    attempt: u32,
    exhausted: bool,
    memory: &Mutex<Memory>,
) -> Result<Plan, String> {
    let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
    let now = state.at().max(evaluation.wait_until);
    let pass = Pass { state, evaluation: &evaluation, now, attempt };
    let plan = task::contained(|| {
        if exhausted {
            scheduler::exhausted(&pass)
        } else {
            scheduler::schedule_with(&pass, &mut memory)
        }
    });
    if plan.is_err() {
        *memory = Memory::default();
    }
    match plan {
        Ok(Ok(plan)) => Ok(plan),
        Ok(Err(error)) => Err(error.to_string()),
        Err(panic) => Err(panic),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_that_cannot_be_taken_is_not_submitted_for_ever() {
        let failed = Some(Done::Nack(NackReason::Failed));
        assert_eq!(given_up(&Status::out_of_range("too large")), failed);
        assert_eq!(given_up(&Status::invalid_argument("plan")), failed);
        assert_eq!(given_up(&Status::aborted("another term")), Some(Done::Gone));
        assert_eq!(given_up(&Status::unavailable("no leader")), None);
        assert_eq!(given_up(&Status::resource_exhausted("plan queue is full")), None);
    }

    fn at(index: Index) -> State {
        let mut state = State::default();
        state.advance(index, 1);
        state
    }

    /// A wait for an index that is not woken sees the index at its next look, after 20, 80, 320,
    /// 1000 ms, and not at its end (NW-05).
    #[tokio::test(start_paused = true)]
    async fn a_lost_wake_up_costs_a_second_and_no_lease() {
        let check = async |published_after_ms: u64, seen_after_ms: u64| {
            let cell = StateCell::new(at(900));
            let begun = Instant::now();
            let waits = rt::spawn({
                let cell = Arc::clone(&cell);
                async move { until_applied(&cell, 1_000, INDEX_WAIT).await }
            });
            rt::sleep(Duration::from_millis(published_after_ms)).await;
            cell.publish_unheard(at(1_000));
            assert!(waits.await.is_ok_and(|seen| seen));
            assert_eq!(begun.elapsed(), Duration::from_millis(seen_after_ms));
        };
        check(1, 20).await;
        check(21, 100).await;
        check(101, 420).await;
        check(421, 1_420).await;
        check(3_421, 4_420).await;
    }

    /// An index that does not come ends the wait after 5 s; one that comes is seen at once (NW-05).
    #[tokio::test(start_paused = true)]
    async fn an_index_is_waited_for_five_seconds() {
        let cell = StateCell::new(at(900));
        let begun = Instant::now();
        assert!(!until_applied(&cell, 1_000, INDEX_WAIT).await);
        assert_eq!(begun.elapsed(), INDEX_WAIT);
        let waits = rt::spawn({
            let cell = Arc::clone(&cell);
            async move { until_applied(&cell, 1_000, INDEX_WAIT).await }
        });
        rt::sleep(Duration::from_secs(3)).await;
        let begun = Instant::now();
        cell.publish(at(1_000), Vec::new(), false);
        assert!(waits.await.is_ok_and(|seen| seen));
        assert_eq!(begun.elapsed(), Duration::ZERO, "woken by apply");
    }
}
