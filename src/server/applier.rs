//! The plan applier: one task of the leader that turns many plans into few log entries.
//!
//! ```text
//!  submitted plans ─► plan queue ─► try each on an overlay (committed state + entries in flight) ─► one entry for many ─► Raft
//!                                        └─ what does not fit is dropped, ports are chosen           (at most two in flight)
//! ```
//!
//! An entry's outcome is applied as evaluated, applied with losses, or unknown. On anything but the first nothing more is proposed until every
//! later outcome is in; the overlay is built anew for each entry, so that it never grows stale. An unknown plan is never proposed again here:
//! its worker waits for its local state and plans anew.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fsm::{Command, Index, Plan, Reply, State, apply::Trial, plan::DropReason};
use leader::{PlanQueue, broker::Token, plan_queue::PlanQueueLimits};

use super::{
    api::{ApiError, Written},
    leadership::LeaderServices,
    ports,
};
use crate::rt::{self, mpsc, oneshot};

/// Size of an entry with plans, bytes (`entry_bytes_max`).
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// Entries proposed and not yet applied.
const IN_FLIGHT_MAX: usize = 2;
/// How long an entry may take before its outcome counts as unknown.
const ENTRY_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the applier waits for the local state to reach a plan's snapshot.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(10);

/// A plan on its way.
pub struct PlanRequest {
    /// The plan.
    pub plan: Plan,
    /// Encoded size.
    pub bytes: usize,
    /// Lease that it belongs to.
    pub token: Token,
    /// Where the answer goes.
    pub reply: oneshot::Sender<PlanAnswer>,
}

/// What became of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanAnswer {
    /// All of it was applied, with its outcome.
    Applied {
        /// Index of the entry.
        index: Index,
    },
    /// Some was dropped, or the plan had no outcome yet: plan again from `refresh_index` on.
    Partial {
        /// Index of the entry; 0 when nothing was worth one.
        index: Index,
        /// Index that shows why.
        refresh_index: Index,
        /// In words.
        reason: String,
    },
    /// Nothing was applied.
    Rejected {
        /// The evaluation is done with.
        closed: bool,
        /// Index that shows why.
        refresh_index: Index,
        /// In words.
        reason: String,
    },
    /// Nobody knows yet.
    Unknown,
}

struct Proposed {
    plan: Arc<Plan>,
    dropped: Vec<(fsm::AllocationId, DropReason)>,
    has_outcome: bool,
    reply: oneshot::Sender<PlanAnswer>,
}

struct InFlight {
    number: u64,
    plans: Vec<Proposed>,
    outcome: oneshot::Receiver<Result<Written, ApiError>>,
}

/// A plan of which nothing was left: its answer waits for the entries in flight, which may be why.
struct Emptied {
    /// The last entry in flight when it was judged; 0: none.
    after: u64,
    reply: oneshot::Sender<PlanAnswer>,
    reason: String,
}

struct Applier {
    services: Arc<LeaderServices>,
    queue: PlanQueue<PlanRequest>,
    in_flight: VecDeque<InFlight>,
    emptied: Vec<Emptied>,
    /// Number of the last entry proposed.
    number: u64,
    /// An outcome was not as evaluated: propose nothing until all are in.
    settling: bool,
}

/// Runs until the leadership ends.
pub(super) async fn run(
    services: Arc<LeaderServices>,
    mut submitted: mpsc::Receiver<PlanRequest>,
    depth: Arc<AtomicU64>,
) {
    let mut stop = services.stopped();
    let mut applier = Applier {
        services,
        queue: PlanQueue::new(PlanQueueLimits::default()),
        in_flight: VecDeque::new(),
        emptied: Vec::new(),
        number: 0,
        settling: false,
    };
    applier.queue.enable();
    loop {
        while let Ok(request) = submitted.try_recv() {
            applier.enqueue(request);
        }
        applier.propose_what_fits().await;
        applier.answer_emptied();
        depth.store(applier.queue.depth() as u64, Ordering::Relaxed);
        rt::select! {
            biased;
            () = rt::until_true(&mut stop) => break,
            outcome = next_outcome(&mut applier.in_flight) => applier.settle(outcome),
            request = submitted.recv() => match request {
                Some(request) => applier.enqueue(request),
                None => break,
            },
        }
    }
    applier.flush();
}

async fn next_outcome(in_flight: &mut VecDeque<InFlight>) -> Result<Written, ApiError> {
    match in_flight.front_mut() {
        Some(first) => (&mut first.outcome).await.unwrap_or(Err(ApiError::Unknown)),
        None => std::future::pending().await,
    }
}

impl Applier {
    fn enqueue(&mut self, request: PlanRequest) {
        let (priority, bytes) = (request.plan.priority, request.bytes);
        let now = self.services.now();
        if let Err(refused) = self.queue.enqueue(now, priority, bytes, request) {
            let reason = refused.error.to_string();
            let answer = PlanAnswer::Rejected { closed: false, refresh_index: 0, reason };
            drop(refused.plan.reply.send(answer));
        }
    }

    async fn propose_what_fits(&mut self) {
        while !self.settling && self.in_flight.len() < IN_FLIGHT_MAX && self.queue.depth() > 0 {
            let mut overlay = self.overlay();
            let mut entry = Vec::new();
            let mut bytes = 0;
            while let Some(next) = self.queue.next_bytes() {
                if !entry.is_empty() && bytes + next > ENTRY_BYTES_MAX {
                    break;
                }
                let Some(request) = self.queue.dequeue() else { break };
                if request.plan.snapshot_index > overlay.head.index {
                    let cell = Arc::clone(self.services.cell());
                    cell.wait_for(request.plan.snapshot_index, SNAPSHOT_WAIT).await;
                    overlay = self.overlay();
                    for proposed in &entry {
                        let proposed: &Proposed = proposed;
                        drop(overlay.try_plan(&proposed.plan, &keep_ports));
                    }
                }
                bytes += request.bytes;
                if let Some(proposed) = self.judge(&mut overlay, request) {
                    entry.push(proposed);
                }
            }
            if !entry.is_empty() {
                self.propose(entry);
            }
        }
    }

    /// The committed state with the entries in flight on top. Plans of entries that are applied already are refused as stale or closed.
    fn overlay(&self) -> State {
        let mut overlay = (*self.services.cell().load()).clone();
        for entry in &self.in_flight {
            for proposed in &entry.plans {
                drop(overlay.try_plan(&proposed.plan, &keep_ports));
            }
        }
        overlay
    }

    fn judge(&mut self, overlay: &mut State, request: PlanRequest) -> Option<Proposed> {
        let PlanRequest { plan, token, reply, .. } = request;
        // Lease tokens are the leader's alone and checked last, just before proposing.
        if self.services.broker().outstanding(plan.evaluation) != Some(token) {
            let reason = "the lease is not outstanding any more".to_owned();
            drop(reply.send(PlanAnswer::Rejected { closed: true, refresh_index: 0, reason }));
            return None;
        }
        let has_outcome = plan.outcome.is_some();
        match overlay.try_plan(&plan, &ports::pick) {
            Err(reason) => {
                let closed = reason == DropReason::EvaluationClosed;
                let last = overlay.jobs.get(&plan.job).map_or(0, |job| job.last_plan_index);
                let refresh_index = self.services.cell().applied().max(last);
                let reason = reason.to_string();
                drop(reply.send(PlanAnswer::Rejected { closed, refresh_index, reason }));
                None
            }
            Ok(Trial { plan: left, dropped }) => {
                if !dropped.is_empty() && left.is_no_op() {
                    let reason = first_reason(&dropped);
                    let after = self.in_flight.back().map_or(0, |entry| entry.number);
                    self.emptied.push(Emptied { after, reply, reason });
                    return None;
                }
                Some(Proposed { plan: Arc::new(left), dropped, has_outcome, reply })
            }
        }
    }

    fn propose(&mut self, plans: Vec<Proposed>) {
        let command =
            Command::ApplyPlans { plans: plans.iter().map(|one| Arc::clone(&one.plan)).collect() };
        let (sender, outcome) = oneshot::channel();
        let services = Arc::clone(&self.services);
        rt::spawn(async move {
            drop(sender.send(services.propose(command, None, ENTRY_TIMEOUT).await));
        });
        self.number += 1;
        self.in_flight.push_back(InFlight { number: self.number, plans, outcome });
    }

    fn settle(&mut self, outcome: Result<Written, ApiError>) {
        let Some(entry) = self.in_flight.pop_front() else { return };
        match outcome {
            Ok(Written { index, reply: Reply::Plans(verdicts) })
                if verdicts.len() == entry.plans.len() =>
            {
                for (proposed, verdict) in entry.plans.into_iter().zip(verdicts) {
                    let as_evaluated = verdict.refused.is_none() && verdict.dropped.is_empty();
                    self.settling |= !as_evaluated;
                    drop(proposed.reply.send(answer(
                        index,
                        &proposed.dropped,
                        proposed.has_outcome,
                        verdict,
                    )));
                }
            }
            Ok(written) => {
                tracing::warn!(reply = ?written.reply, "an entry of plans was refused");
                self.settling = true;
                fail(entry);
            }
            Err(error) => {
                tracing::warn!(%error, "the outcome of an entry of plans is unknown");
                self.settling = true;
                fail(entry);
            }
        }
        if self.in_flight.is_empty() {
            self.settling = false;
        }
    }

    fn answer_emptied(&mut self) {
        let oldest = self.in_flight.front().map_or(u64::MAX, |entry| entry.number);
        let refresh_index = self.services.cell().applied();
        for Emptied { reply, reason, .. } in
            self.emptied.extract_if(.., |emptied| emptied.after < oldest)
        {
            drop(reply.send(PlanAnswer::Partial { index: 0, refresh_index, reason }));
        }
    }

    fn flush(mut self) {
        for request in self.queue.disable() {
            drop(request.reply.send(PlanAnswer::Unknown));
        }
        for entry in self.in_flight {
            fail(entry);
        }
        for emptied in self.emptied {
            drop(emptied.reply.send(PlanAnswer::Unknown));
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that try_plan asks for")]
fn keep_ports(
    _: &State,
    placement: &fsm::Placement,
    _: &fsm::TaskGroup,
) -> Result<Vec<fsm::resources::Port>, fsm::resources::Dimension> {
    Ok(placement.ports.clone())
}

fn first_reason(dropped: &[(fsm::AllocationId, DropReason)]) -> String {
    match dropped.first() {
        Some((_, reason)) => format!("{} placement(s) dropped: {reason}", dropped.len()),
        None => String::new(),
    }
}

fn answer(
    index: Index,
    dropped: &[(fsm::AllocationId, DropReason)],
    has_outcome: bool,
    verdict: fsm::PlanVerdict,
) -> PlanAnswer {
    if let Some(reason) = verdict.refused {
        let closed = reason == DropReason::EvaluationClosed;
        return PlanAnswer::Rejected { closed, refresh_index: index, reason: reason.to_string() };
    }
    if verdict.outcome_taken {
        return PlanAnswer::Applied { index };
    }
    let reason = if !verdict.dropped.is_empty() {
        first_reason(&verdict.dropped)
    } else if !dropped.is_empty() {
        first_reason(dropped)
    } else {
        debug_assert!(!has_outcome, "a whole plan with an outcome has its outcome taken");
        "more is left to plan".to_owned()
    };
    PlanAnswer::Partial { index, refresh_index: index, reason }
}

fn fail(entry: InFlight) {
    for proposed in entry.plans {
        drop(proposed.reply.send(PlanAnswer::Unknown));
    }
}
