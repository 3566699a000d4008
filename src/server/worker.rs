//! Scheduling workers. Every server runs them, leader and follower: lease from the leader, wait
//! until the local state has caught up, plan on a snapshot, submit to the leader, wait for what it
//! says, acknowledge.
//!
//! | wait | sequence |
//! |---|---|
//! | index | woken by apply; after 5 s the lease is released (no delivery), and no worker leases |
//! | | before the server has caught up |
//! | dequeue error | 20 ms, times 4 up to 10 s; not logged in the first 10 s |
//! | resubmit | 500 ms, times 4 up to 10 s; for no leader, a disabled queue, an unknown outcome |
//! | scheduler version mismatch | 30 s |
//!
//! Every wait ends at once when the server stops.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fsm::{Evaluation, Index, JobKind, Plan, State};
use leader::{
    PlanAnswer,
    broker::NackReason,
    turn::{After, Begin, Turn},
};
use scheduler::{Memory, Pass};
use tonic::{Code, Status};

use super::{
    identity::Cluster,
    leader_link::{LeaderLink, Submission},
    leading::Leading,
    members::Contact,
};
use crate::{
    api::{Dequeue, Lease},
    published::StateCell,
    rt::{self, Instant, watch},
    task,
};

const DEQUEUE_WAIT: Duration = Duration::from_millis(500);
const INDEX_WAIT: Duration = Duration::from_secs(5);
/// How long to wait for the local state after a release for lag, before the next check of whether
/// it still lags.
const LAG_WAIT: Duration = Duration::from_secs(5);
const QUIET_START: Duration = Duration::from_secs(10);
const VERSION_WAIT: Duration = Duration::from_secs(30);
/// Leases taken at once when the queue is deep.
const LEASES_MAX: u32 = 4;

/// Waits that grow by four up to a cap, reset on success and not raised once capped.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    first: Duration,
    most: Duration,
    failures: u32,
}

impl Backoff {
    /// A backoff that begins at `first` and is capped at `most`.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most, failures: 0 }
    }

    /// After errors of the leader: 20, 80, 320, 1280, 5120, 10 000 ms.
    pub const fn fast() -> Self {
        Self::new(Duration::from_millis(20), Duration::from_secs(10))
    }

    /// Between resubmissions: 500, 2000, 8000, 10 000 ms.
    pub const fn slow() -> Self {
        Self::new(Duration::from_millis(500), Duration::from_secs(10))
    }

    /// The next wait.
    pub fn next_wait(&mut self) -> Duration {
        let wait = self.first.saturating_mul(4u32.saturating_pow(self.failures));
        if wait >= self.most {
            return self.most;
        }
        self.failures += 1;
        wait
    }

    /// Starts again with the first wait.
    pub fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Counters of a server's workers.
#[derive(Default, Debug)]
pub struct WorkerStats {
    acknowledged: AtomicU64,
    released_for_lag: AtomicU64,
    nacked: AtomicU64,
    invoked: AtomicU64,
    held: AtomicU64,
    paused: AtomicBool,
    /// The index that a lease was released for. Until it is applied here, no worker of this server
    /// leases anything.
    caught_up_at: AtomicU64,
}

impl WorkerStats {
    /// Evaluations brought to their end.
    pub fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Leases released because the local state lagged.
    pub fn released_for_lag(&self) -> u64 {
        self.released_for_lag.load(Ordering::Relaxed)
    }

    /// Leases given back for another reason: a failed turn, a pause, or the server stops.
    pub fn nacked(&self) -> u64 {
        self.nacked.load(Ordering::Relaxed)
    }

    /// Leases that workers of this server hold now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Scheduling passes.
    pub fn invoked(&self) -> u64 {
        self.invoked.load(Ordering::Relaxed)
    }

    /// Stops or resumes taking leases; what is under way is finished.
    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }
}

/// What the workers of a server share.
#[derive(Clone)]
pub(super) struct Workplace {
    pub(super) contact: Arc<Contact>,
    pub(super) cluster: Arc<Cluster>,
    pub(super) cell: Arc<StateCell>,
    pub(super) leading: Arc<Leading>,
    pub(super) stats: Arc<WorkerStats>,
    pub(super) stop: watch::Receiver<bool>,
}

struct Worker {
    link: LeaderLink,
    cell: Arc<StateCell>,
    stats: Arc<WorkerStats>,
    /// Candidate nodes of the last pass, kept as long as the nodes do not change.
    memory: Arc<Mutex<Memory>>,
    stop: watch::Receiver<bool>,
    started: Instant,
}

/// Runs one worker until the server stops.
pub(super) async fn run(place: Workplace, number: usize) {
    let Workplace { contact, cluster, cell, leading, stats, stop } = place;
    let link = LeaderLink { contact, leading };
    let (memory, started) = (Arc::default(), Instant::now());
    let mut worker = Worker { link, cell, stats: Arc::clone(&stats), memory, stop, started };
    let mut backoff = Backoff::fast();
    tracing::debug!(number, "worker started");
    while !worker.is_stopping() {
        if stats.is_paused() || cluster.get().is_none() {
            worker.pause(Duration::from_millis(100)).await;
            continue;
        }
        if let Some(index) = worker.lags_behind() {
            worker.wait_for(index, LAG_WAIT).await;
            continue;
        }
        match worker.dequeue().await {
            Ok(leases) => {
                backoff.reset();
                // These leases were asked for before the pause, and no work on them has begun.
                let paused = stats.is_paused();
                stats.held.fetch_add(leases.len() as u64, Ordering::Relaxed);
                for lease in leases {
                    if paused {
                        worker.nack(&lease, NackReason::Shutdown).await;
                    } else {
                        worker.process(lease).await;
                    }
                    stats.held.fetch_sub(1, Ordering::Relaxed);
                }
            }
            Err(status) if status.code() == Code::Unimplemented => {
                tracing::warn!(%status, "the leader is of another version");
                worker.pause(VERSION_WAIT).await;
            }
            Err(status) => {
                if worker.started.elapsed() > QUIET_START {
                    tracing::debug!(%status, "no leases from the leader");
                }
                let wait = backoff.next_wait();
                worker.pause(wait).await;
            }
        }
    }
}

impl Worker {
    fn is_stopping(&self) -> bool {
        *self.stop.borrow()
    }

    /// Waits, but not longer than the server runs.
    async fn pause(&mut self, wait: Duration) {
        drop(rt::timeout(wait, rt::until_true(&mut self.stop)).await);
    }

    async fn dequeue(&mut self) -> Result<Vec<Lease>, Status> {
        let request = Dequeue {
            server: self.link.server(),
            kinds: JobKind::ALL.to_vec(),
            leases_max: LEASES_MAX,
            wait: DEQUEUE_WAIT,
            scheduler_version: scheduler::SCHEDULER_VERSION,
        };
        self.link.dequeue(&request, &mut self.stop).await
    }

    async fn process(&mut self, lease: Lease) {
        if self.is_stopping() {
            self.nack(&lease, NackReason::Shutdown).await;
            return;
        }
        // This server is known to lag: release the lease without another wait.
        let wait = if self.lags_behind().is_some() { Duration::ZERO } else { INDEX_WAIT };
        if !self.wait_for(lease.wait_index, wait).await {
            let why = self.why_not_there(lease.wait_index);
            self.nack(&lease, why).await;
            return;
        }
        match self.plan_until_done(&lease).await {
            Done::Acknowledge => self.ack(&lease).await,
            Done::Nack(why) => self.nack(&lease, why).await,
            Done::Gone => {}
        }
    }

    async fn wait_for(&mut self, index: Index, wait: Duration) -> bool {
        let cell = Arc::clone(&self.cell);
        rt::select! {
            biased;
            () = rt::until_true(&mut self.stop) => false,
            there = cell.wait_for(index, wait) => there,
        }
    }

    /// The index that this server has to reach before it leases again, if it is behind.
    fn lags_behind(&self) -> Option<Index> {
        let index = self.stats.caught_up_at.load(Ordering::Relaxed);
        (self.cell.applied() < index).then_some(index)
    }

    /// Why a wait for an index ended before the index was applied.
    fn why_not_there(&self, index: Index) -> NackReason {
        if self.is_stopping() {
            return NackReason::Shutdown;
        }
        self.stats.caught_up_at.fetch_max(index, Ordering::Relaxed);
        NackReason::Lag
    }

    async fn plan_until_done(&mut self, lease: &Lease) -> Done {
        let attempts_max = scheduler::attempts_max(lease.evaluation.kind);
        let mut turn = Turn::new(lease.evaluation.id, attempts_max);
        let mut unknown = Backoff::slow();
        loop {
            let state = self.cell.load();
            let (evaluation, pass, exhausted) = match turn.begin(&state) {
                Begin::Plan { evaluation, pass, exhausted } => (evaluation, pass, exhausted),
                Begin::Acknowledge => return Done::Acknowledge,
                Begin::Nack => return Done::Nack(NackReason::Failed),
            };
            self.stats.invoked.fetch_add(1, Ordering::Relaxed);
            let memory = Arc::clone(&self.memory);
            let plan = match schedule(state, *evaluation, pass, exhausted, memory).await {
                Ok(plan) => plan,
                Err(message) => {
                    tracing::error!(evaluation = %lease.evaluation.id, message, "a scheduling turn failed");
                    return Done::Nack(NackReason::Failed);
                }
            };
            let answer = match self.submit(lease, plan).await {
                Ok(answer) => answer,
                Err(done) => return done,
            };
            match turn.answered(&answer) {
                After::Acknowledge => return Done::Acknowledge,
                After::Pause => {
                    let wait = unknown.next_wait();
                    self.pause(wait).await;
                    if self.is_stopping() {
                        return Done::Nack(NackReason::Shutdown);
                    }
                }
                After::WaitFor(index) => {
                    unknown.reset();
                    if !self.wait_for(index, INDEX_WAIT).await {
                        return Done::Nack(self.why_not_there(index));
                    }
                }
            }
        }
    }

    /// Submits a plan until the leader tells its outcome. A leader of another term does not know
    /// the lease: then the lease is gone, there is no answer, and the new leader hands the
    /// evaluation out again.
    async fn submit(&mut self, lease: &Lease, plan: Plan) -> Result<PlanAnswer, Done> {
        let mut submission = Submission::new(plan);
        let mut backoff = Backoff::slow();
        loop {
            let status = match self.link.submit(lease.key(), &mut submission).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if let Some(done) = given_up(&status) {
                return Err(done);
            }
            tracing::debug!(%status, "a plan was not submitted");
            if self.is_stopping() {
                return Err(Done::Gone);
            }
            let wait = backoff.next_wait();
            self.pause(wait).await;
        }
    }

    async fn ack(&mut self, lease: &Lease) {
        self.stats.acknowledged.fetch_add(1, Ordering::Relaxed);
        if let Err(status) = self.link.ack(lease.key()).await {
            tracing::debug!(%status, "an acknowledgement was not taken");
        }
    }

    async fn nack(&mut self, lease: &Lease, why: NackReason) {
        let stats = &self.stats;
        match why {
            NackReason::Lag => &stats.released_for_lag,
            NackReason::Failed | NackReason::Shutdown => &stats.nacked,
        }
        .fetch_add(1, Ordering::Relaxed);
        if let Err(status) = self.link.nack(lease.key(), why).await {
            tracing::debug!(%status, "a lease was not given back");
        }
    }
}

#[derive(Debug, PartialEq)]
enum Done {
    Acknowledge,
    Nack(NackReason),
    Gone,
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

/// One scheduling turn, away from the async threads. A panic inside it becomes an error; anywhere
/// else a panic ends the process.
async fn schedule(
    state: Arc<State>,
    evaluation: Evaluation,
    attempt: u32,
    exhausted: bool,
    memory: Arc<Mutex<Memory>>,
) -> Result<Plan, String> {
    rt::run_blocking(move || {
        let mut memory = memory.lock().unwrap_or_else(PoisonError::into_inner);
        let now = state.at().max(evaluation.wait_until);
        let pass = Pass { state: &state, evaluation: &evaluation, now, attempt };
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
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits grow by four up to their cap and begin anew after a success (NW-07).
    #[test]
    fn backoffs_grow_by_four_to_their_cap_and_reset() {
        let waits = |mut backoff: Backoff| -> Vec<u128> {
            (0..7).map(|_| backoff.next_wait().as_millis()).collect()
        };
        assert_eq!(waits(Backoff::slow()), [500, 2000, 8000, 10_000, 10_000, 10_000, 10_000]);
        assert_eq!(waits(Backoff::fast()), [20, 80, 320, 1280, 5120, 10_000, 10_000]);
        let index = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));
        assert_eq!(waits(index)[..5], [20, 80, 320, 1000, 1000]);
        let mut backoff = Backoff::slow();
        backoff.next_wait();
        backoff.reset();
        assert_eq!(backoff.next_wait().as_millis(), 500);
    }

    #[test]
    fn a_plan_that_cannot_be_taken_is_not_submitted_for_ever() {
        let failed = Some(Done::Nack(NackReason::Failed));
        assert_eq!(given_up(&Status::out_of_range("too large")), failed);
        assert_eq!(given_up(&Status::invalid_argument("plan")), failed);
        assert_eq!(given_up(&Status::aborted("another term")), Some(Done::Gone));
        assert_eq!(given_up(&Status::unavailable("no leader")), None);
    }
}
