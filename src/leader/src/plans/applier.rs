//! The plan applier: turns many plans into few log entries. A machine without I/O; the leader's
//! task feeds it and proposes what it asks for.
//!
//! ```text
//!  plans ─► plan queue ─► try each on an overlay ─► one entry for many ─► Raft
//!                         (committed state and       (at most two in flight)
//!                          entries in flight)
//!                          │
//!                          └─ what does not fit is dropped, ports are chosen
//! ```
//!
//! An entry's outcome is applied as evaluated, applied with losses, or unknown. After a loss or an
//! unknown outcome nothing is proposed until the outcomes of all later entries are in. The overlay
//! is built anew for each entry, so it never grows stale. A plan with an unknown outcome is never
//! proposed again here: its worker waits for its local state and plans anew.
//!
//! Invariant: each plan taken in is answered exactly once, at the latest by [`PlanApplier::flush`].

use std::{collections::VecDeque, sync::Arc};

use fsm::{
    AllocationId, Command, EvaluationId, Index, Placement, Plan, PlanVerdict, State, TaskGroup,
    plan::{ApplyPlans, DropReason, Trial, check_plan},
    plant::{Plant, is_planted},
    resources::{Dimension, Port},
};

use crate::{PlanQueue, PlanQueueError, PlanQueueLimits, Refused, broker::Token, limits, ports};

#[cfg(test)]
mod tests;

/// A plan on its way. `R` is the way back to the worker.
#[derive(Debug)]
pub struct Request<R> {
    pub plan: Plan,
    /// Encoded size.
    pub bytes: usize,
    /// Lease that it belongs to.
    pub token: Token,
    /// Where the answer goes.
    pub reply: R,
}

/// What became of a plan.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PlanAnswer {
    /// All of it was applied, with its outcome.
    Applied { index: Index },
    /// Some was dropped, or the plan had no outcome yet: plan again from `refresh_index` on.
    Partial {
        /// 0 when nothing of the plan was worth an entry.
        index: Index,
        /// The state at this index shows the reason.
        refresh_index: Index,
        reason: String,
    },
    /// Nothing was applied.
    Rejected {
        /// The evaluation is done with.
        closed: bool,
        /// The state at this index shows the reason.
        refresh_index: Index,
        reason: String,
    },
    /// The outcome of its entry is unknown.
    Unknown,
    /// It was not taken in: too many wait. The same plan is submitted again after a while.
    QueueFull,
}

/// What to do next.
#[derive(Debug)]
pub enum Next {
    /// Nothing, until a plan, an outcome, or the index of [`PlanApplier::parked_until`] comes.
    Idle,
    /// Propose this; its outcome goes to [`PlanApplier::settle`], in the order of the proposals.
    Propose(Command),
}

/// What became of a proposed entry.
#[derive(Debug)]
pub enum EntryOutcome {
    /// Applied, with a verdict for each plan.
    Applied {
        index: Index,
        /// In the order of the plans.
        verdicts: Vec<PlanVerdict>,
    },
    /// Refused as a whole, discarded, or without an answer.
    Unknown,
}

#[derive(Debug)]
struct Proposed<R> {
    plan: Arc<Plan>,
    dropped: Vec<(AllocationId, DropReason)>,
    has_outcome: bool,
    reply: R,
}

#[derive(Debug)]
struct InFlight<R> {
    number: u64,
    plans: Vec<Proposed<R>>,
}

/// A plan of which nothing was left. Its answer waits for the entries that may be the reason, so
/// that the worker sees them when it plans again.
#[derive(Debug)]
struct Emptied<R> {
    /// Number of the last entry below it, in flight or being built. 0: none.
    after: u64,
    reply: R,
    reason: String,
}

/// The plan applier of one leadership.
#[derive(Debug)]
pub struct PlanApplier<R> {
    queue: PlanQueue<Request<R>>,
    in_flight: VecDeque<InFlight<R>>,
    emptied: Vec<Emptied<R>>,
    answers: Vec<(R, PlanAnswer)>,
    /// Plans that were taken in and not answered.
    unanswered: usize,
    /// Number of the last entry proposed.
    number: u64,
    /// An outcome was not as evaluated: nothing is proposed until all are in.
    settling: bool,
    /// Placements that did not fit any more, so far.
    dropped: u64,
}

impl<R> PlanApplier<R> {
    /// An applier that takes plans.
    pub fn new(limits: PlanQueueLimits) -> Self {
        let mut queue = PlanQueue::new(limits);
        queue.enable();
        Self {
            queue,
            in_flight: VecDeque::new(),
            emptied: Vec::new(),
            answers: Vec::new(),
            unanswered: 0,
            number: 0,
            settling: false,
            dropped: 0,
        }
    }

    /// Takes a plan in.
    pub fn submit(&mut self, now: u64, request: Request<R>) {
        let (priority, bytes) = (request.plan.priority, request.bytes);
        self.unanswered += 1;
        if let Err(Refused { plan: request, error }) =
            self.queue.enqueue(now, priority, bytes, request)
        {
            self.answers.push((
                request.reply,
                match error {
                    PlanQueueError::Full => PlanAnswer::QueueFull,
                    PlanQueueError::Disabled | PlanQueueError::Flushed => PlanAnswer::Unknown,
                },
            ));
        }
    }

    /// The next entry to propose, if one may be. `outstanding` gives the token of the lease on an
    /// evaluation; `last` is the last index of this leader's log.
    ///
    /// A plan whose snapshot is newer than the local state is parked until the state is there: it
    /// will be, as long as this server leads, for the index is in its log.
    pub fn next(
        &mut self,
        state: &State,
        last: Index,
        outstanding: impl Fn(EvaluationId) -> Option<Token>,
    ) -> Next {
        self.queue.unpark(state.index());
        if self.settling || self.in_flight.len() >= limits::PLAN_ENTRIES_MAX {
            return Next::Idle;
        }
        if self.queue.peek().is_none() {
            return Next::Idle;
        }
        let mut overlay = self.overlay(state);
        let mut entry: Vec<Proposed<R>> = Vec::new();
        let mut bytes = 0;
        while let Some(next) = self.queue.peek() {
            if !entry.is_empty() && bytes + next.bytes > limits::PLAN_ENTRY_BYTES_MAX {
                break;
            }
            // Lease tokens are the leader's alone and checked last, just before proposing.
            let holds = outstanding(next.plan.evaluation) == Some(next.token);
            let snapshot = next.plan.snapshot_index;
            if holds && snapshot > state.index() && snapshot <= last {
                self.queue.park(snapshot);
                continue;
            }
            let Some(request) = self.queue.dequeue() else { break };
            if !holds {
                self.close(request);
                continue;
            }
            if snapshot > last {
                self.refuse_snapshot(request, state.index(), last);
                continue;
            }
            bytes += request.bytes;
            let below = if entry.is_empty() { self.last_in_flight() } else { self.number + 1 };
            entry.extend(self.judge(state, &mut overlay, request, below));
        }
        if entry.is_empty() {
            return Next::Idle;
        }
        let plans = entry.iter().map(|one| Arc::clone(&one.plan)).collect();
        self.number += 1;
        self.in_flight.push_back(InFlight { number: self.number, plans: entry });
        Next::Propose(Command::from(ApplyPlans { plans }))
    }

    /// The lowest index of the local state that a parked plan waits for.
    pub fn parked_until(&self) -> Option<Index> {
        self.queue.parked_until()
    }

    /// Takes the outcome of the oldest entry in flight.
    pub fn settle(&mut self, outcome: EntryOutcome) {
        let Some(entry) = self.in_flight.pop_front() else { return };
        match outcome {
            EntryOutcome::Applied { index, verdicts } if verdicts.len() == entry.plans.len() => {
                for (proposed, verdict) in entry.plans.into_iter().zip(verdicts) {
                    let as_evaluated = verdict.refused.is_none() && verdict.dropped.is_empty();
                    self.settling |= !as_evaluated;
                    let Proposed { dropped, has_outcome, reply, .. } = proposed;
                    self.answers.push((reply, answer(index, &dropped, has_outcome, verdict)));
                }
            }
            EntryOutcome::Applied { .. } | EntryOutcome::Unknown => {
                self.settling = true;
                let replies = entry.plans.into_iter().map(|proposed| proposed.reply);
                self.answers.extend(replies.map(|reply| (reply, PlanAnswer::Unknown)));
            }
        }
        if self.in_flight.is_empty() {
            self.settling = false;
        }
    }

    /// Answers that are due, `applied` being the index of the local state.
    #[must_use = "each answer has a worker waiting for it"]
    pub fn answers(&mut self, applied: Index) -> Vec<(R, PlanAnswer)> {
        let oldest = self.in_flight.front().map_or(u64::MAX, |entry| entry.number);
        let due = self.emptied.extract_if(.., |emptied| emptied.after < oldest);
        self.answers.extend(due.map(|Emptied { reply, reason, .. }| {
            (reply, PlanAnswer::Partial { index: 0, refresh_index: applied, reason })
        }));
        self.hand_out()
    }

    fn hand_out(&mut self) -> Vec<(R, PlanAnswer)> {
        let answers = std::mem::take(&mut self.answers);
        self.unanswered =
            self.unanswered.checked_sub(answers.len()).expect("no plan is answered twice");
        answers
    }

    /// The leadership is over: every plan that is still here has an unknown outcome.
    #[must_use = "each answer has a worker waiting for it"]
    pub fn flush(&mut self) -> Vec<(R, PlanAnswer)> {
        if is_planted(Plant::QueueNotFlushed) {
            return std::mem::take(&mut self.answers);
        }
        let queued = self.queue.disable().into_iter().map(|request| request.reply);
        let in_flight = std::mem::take(&mut self.in_flight).into_iter();
        let in_flight = in_flight.flat_map(|entry| entry.plans).map(|proposed| proposed.reply);
        let emptied = std::mem::take(&mut self.emptied).into_iter().map(|emptied| emptied.reply);
        let unknown = queued.chain(in_flight).chain(emptied);
        self.answers.extend(unknown.map(|reply| (reply, PlanAnswer::Unknown)));
        let answers = self.hand_out();
        assert_eq!(self.unanswered, 0, "each plan is answered");
        answers
    }

    /// Plans that wait.
    pub fn depth(&self) -> usize {
        self.queue.depth()
    }

    /// Placements that did not fit on their nodes any more, so far.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Entries proposed whose outcome is not known.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// The committed state with the entries in flight on top. Plans of entries that are applied
    /// already are refused as stale or closed.
    fn overlay(&self, state: &State) -> State {
        let mut overlay = state.clone();
        for proposed in self.in_flight.iter().flat_map(|entry| &entry.plans) {
            drop(overlay.try_plan(&proposed.plan, &keep_ports));
        }
        overlay
    }

    fn last_in_flight(&self) -> u64 {
        self.in_flight.back().map_or(0, |entry| entry.number)
    }

    /// No server has such a snapshot: what is applied anywhere is in the leader's log.
    fn refuse_snapshot(&mut self, request: Request<R>, applied: Index, last: Index) {
        let snapshot = request.plan.snapshot_index;
        let reason = format!("the plan's snapshot {snapshot} is above the last index {last}");
        let answer = PlanAnswer::Rejected { closed: false, refresh_index: applied, reason };
        self.answers.push((request.reply, answer));
    }

    fn close(&mut self, request: Request<R>) {
        let reason = "the lease is not outstanding any more".to_owned();
        let answer = PlanAnswer::Rejected { closed: true, refresh_index: 0, reason };
        self.answers.push((request.reply, answer));
    }

    /// Tries a plan on the overlay, whose last unapplied entry is number `below`.
    fn judge(
        &mut self,
        state: &State,
        overlay: &mut State,
        request: Request<R>,
        below: u64,
    ) -> Option<Proposed<R>> {
        let Request { plan, reply, .. } = request;
        // The committed state is certain; the entries in the overlay may still be lost.
        if let Err(reason) = check_plan(state, &plan) {
            let closed = reason == DropReason::EvaluationClosed;
            let (refresh_index, reason) = (state.index(), reason.to_string());
            self.answers.push((reply, PlanAnswer::Rejected { closed, refresh_index, reason }));
            return None;
        }
        let tried = overlay.try_plan(&plan, &ports::pick);
        self.dropped += tried.as_ref().map_or(0, |trial| trial.dropped.len() as u64);
        let reason = match tried {
            Err(reason) => reason.to_string(),
            Ok(Trial { plan: left, dropped }) if dropped.is_empty() || !left.is_no_op() => {
                let has_outcome = plan.outcome.is_some();
                return Some(Proposed { plan: Arc::new(left), dropped, has_outcome, reply });
            }
            Ok(Trial { dropped, .. }) => first_reason(&dropped),
        };
        self.emptied.push(Emptied { after: below, reply, reason });
        None
    }
}

#[expect(clippy::unnecessary_wraps, reason = "the shape that try_plan asks for")]
fn keep_ports(_: &State, placement: &Placement, _: &TaskGroup) -> Result<Vec<Port>, Dimension> {
    Ok(placement.ports.clone())
}

fn first_reason(dropped: &[(AllocationId, DropReason)]) -> String {
    match dropped.first() {
        Some((_, reason)) => format!("{} placement(s) dropped: {reason}", dropped.len()),
        None => String::new(),
    }
}

fn answer(
    index: Index,
    dropped: &[(AllocationId, DropReason)],
    has_outcome: bool,
    verdict: PlanVerdict,
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
