//! The task around the leader's [`PlanApplier`]: hands plans in, proposes its entries, brings their
//! outcomes and the answers back.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fsm::{Command, Index, Plan, Reply};
use ground::{
    histogram::Histogram,
    rt::{self, mpsc, oneshot},
};
use leader::{
    PlanAnswer, PlanApplier, PlanQueueLimits,
    applier::{EntryOutcome, Next, Request},
    broker::Token,
};
use wire::{
    api::{ApiError, Written},
    published::StateCell,
};

use crate::leadership::services::{LeaderServices, RETRY_PAUSE};

/// How long an entry may take before its outcome counts as unknown.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(30);

/// Pause between two looks at a plan that waits for the local state, beside the wake-up.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// A queued plan, with the channel for its answer.
pub(crate) type PlanRequest = Request<oneshot::Sender<PlanAnswer>>;

/// A plan with the lease that it belongs to.
pub(crate) fn request(
    plan: Plan,
    bytes: usize,
    token: Token,
) -> (PlanRequest, oneshot::Receiver<PlanAnswer>) {
    let (reply, answer) = oneshot::channel();
    (Request { plan, bytes, token, reply }, answer)
}

struct Shell {
    services: Arc<LeaderServices>,
    applier: PlanApplier<oneshot::Sender<PlanAnswer>>,
    /// Outcomes of the entries in flight, oldest first.
    outcomes: VecDeque<oneshot::Receiver<Result<Written, ApiError>>>,
    stats: Arc<PlanStats>,
}

/// Numbers of the plans of one leadership.
#[derive(Debug, Default)]
pub(crate) struct PlanStats {
    /// Plans that wait.
    pub(crate) depth: AtomicU64,
    /// Plans that found the queue full.
    pub(crate) turned_away: AtomicU64,
    /// Placements that did not fit any more.
    pub(crate) dropped: AtomicU64,
    /// How long it took to make an entry of plans.
    pub(crate) evaluate: Histogram,
    /// From the proposal of an entry to its outcome.
    pub(crate) apply: Histogram,
}

/// Runs until the leadership ends.
pub(crate) async fn run(
    services: Arc<LeaderServices>,
    limits: PlanQueueLimits,
    mut submitted: mpsc::Receiver<PlanRequest>,
    stats: Arc<PlanStats>,
) {
    let mut stop = services.stopped();
    let cell = Arc::clone(services.cell());
    let applier = PlanApplier::new(limits);
    let mut shell = Shell { services, applier, outcomes: VecDeque::new(), stats: stats.clone() };
    loop {
        while let Ok(request) = submitted.try_recv() {
            shell.submit(request);
        }
        shell.propose_what_fits();
        shell.answer();
        stats.depth.store(shell.applier.depth() as u64, Ordering::Relaxed);
        stats.dropped.store(shell.applier.dropped(), Ordering::Relaxed);
        rt::select! {
            biased;
            () = rt::until_true(&mut stop) => break,
            outcome = next_outcome(&mut shell.outcomes) => shell.settle(outcome),
            () = until_applied(&cell, shell.applier.parked_until()) => {}
            request = submitted.recv() => match request {
                Some(request) => shell.submit(request),
                None => break,
            },
        }
    }
    send(shell.applier.flush());
}

async fn next_outcome(
    outcomes: &mut VecDeque<oneshot::Receiver<Result<Written, ApiError>>>,
) -> Result<Written, ApiError> {
    match outcomes.front_mut() {
        Some(first) => first.await.unwrap_or(Err(ApiError::Unknown)),
        None => std::future::pending().await,
    }
}

/// Waits for the index of a plan that is parked, if one is.
async fn until_applied(cell: &StateCell, index: Option<Index>) {
    match index {
        // Returning for nothing is no harm: the plans are looked at again.
        Some(index) => drop(cell.wait_for(index, LOOK_AGAIN).await),
        None => std::future::pending().await,
    }
}

fn send(answers: Vec<(oneshot::Sender<PlanAnswer>, PlanAnswer)>) {
    for (reply, answer) in answers {
        // The receiver is gone if the worker's call was dropped.
        drop(reply.send(answer));
    }
}

/// Proposes a command. Tries again while this server leads but refuses writes, because it has not
/// heard a majority for a while.
async fn propose_within(services: &LeaderServices, command: Command) -> Result<Written, ApiError> {
    let stop = services.stopped();
    let deadline = rt::Instant::now() + ENTRY_TIMEOUT;
    loop {
        let result = services.propose(command.clone(), None, ENTRY_TIMEOUT).await;
        // Nothing was proposed.
        let again = matches!(result, Err(ApiError::NoLeader)) && !*stop.borrow();
        if !again || rt::Instant::now() >= deadline {
            return result;
        }
        rt::sleep(RETRY_PAUSE).await;
    }
}

impl Shell {
    fn submit(&mut self, request: PlanRequest) {
        self.applier.submit(self.services.now(), request);
    }

    fn answer(&mut self) {
        send(self.applier.answers(self.services.cell().applied()));
    }

    fn propose_what_fits(&mut self) {
        loop {
            let last = self.services.last_index();
            let state = self.services.cell().load();
            let services = &self.services;
            let begun = rt::Instant::now();
            match self.applier.next(&state, last, |id| services.outstanding(id)) {
                Next::Idle => return,
                Next::Propose(command) => {
                    self.stats.evaluate.record(begun.elapsed());
                    self.propose(command);
                }
            }
        }
    }

    fn propose(&mut self, command: Command) {
        let (sender, outcome) = oneshot::channel();
        let (services, stats) = (Arc::clone(&self.services), Arc::clone(&self.stats));
        rt::spawn(async move {
            let begun = rt::Instant::now();
            let outcome = propose_within(&services, command).await;
            stats.apply.record(begun.elapsed());
            drop(sender.send(outcome));
        });
        self.outcomes.push_back(outcome);
    }

    fn settle(&mut self, outcome: Result<Written, ApiError>) {
        self.outcomes.pop_front();
        self.applier.settle(match outcome {
            Ok(Written { index, reply: Reply::Plans(verdicts) }) => {
                EntryOutcome::Applied { index, verdicts }
            }
            Ok(written) => {
                tracing::warn!(reply = ?written.reply, "an entry of plans was refused");
                EntryOutcome::Unknown
            }
            Err(error) => {
                tracing::warn!(%error, "the outcome of an entry of plans is unknown");
                EntryOutcome::Unknown
            }
        });
    }
}
