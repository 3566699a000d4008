//! The evaluation broker: which evaluation a worker processes next.
//!
//! It owns the queues of evaluations to be processed and the leases on those being processed. It
//! never decides what an evaluation does, never writes state, and is never the truth: the next
//! leader rebuilds it from the pending evaluations.
//!
//! ```text
//!            ┌─► waiting ─┐                            ┌─► cancelable ─► terminal
//!  enqueue ──┼────────────┴─► pending ─► (job is free) ┤
//!            └────────────────────────────────────► ready ─lease─► outstanding ─► acknowledged
//!                                                     ▲  waiting ◄──nack──┤
//!                                                     └──lag, shutdown────┤
//!                                             failed ◄──delivery limit────┘
//! ```
//!
//! Invariants: at most one evaluation of a job holds the job, that is, is ready, outstanding,
//! failed, or waits after a nack; a job with pending evaluations is held; an evaluation leaves only
//! by acknowledgement, by becoming terminal, or when the broker is disabled; none is leased while
//! one that it supersedes, and that a scheduler would rely on, is still open.
//!
//! The leases of one dequeue are a batch, which its worker goes through in order: the clock of each
//! begins when the one before it ends, so that none runs out while its worker is at another one.
//!
//! Time moves only in [`EvalBroker::poll`]: a lease is good until a poll took it back. Cost: each
//! operation is a handful of ordered-map updates, O(log n); 100 k evaluations/s on one core are 10
//! µs each.

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, JobKind,
    plant::{Plant, is_planted},
};

use crate::limits;

mod queues;
#[cfg(test)]
mod tests;

use queues::{Clock, Entry, Lease, Place, Queues, Rank};
pub use queues::{Count, Stats};

/// Names a lease; new at each delivery.
pub type Token = [u8; 16];

/// Settings of the broker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BrokerConfig {
    /// A lease not acknowledged in this time is taken back, ms.
    pub nack_ms: u64,
    /// Deliveries before an evaluation counts as failed.
    pub deliveries_max: u32,
    /// Pause before the second delivery, ms.
    pub delay_first_ms: u64,
    /// Pause before later deliveries, times the deliveries so far less one, ms.
    pub delay_step_ms: u64,
    /// Evaluations beyond which [`Enqueued::BeyondLimit`] is reported.
    pub evaluations_max: usize,
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self {
            nack_ms: limits::NACK_MS,
            deliveries_max: limits::DELIVERIES_MAX,
            delay_first_ms: limits::NACK_DELAY_FIRST_MS,
            delay_step_ms: limits::NACK_DELAY_STEP_MS,
            evaluations_max: limits::EVALUATIONS_MAX,
        }
    }
}

/// Why a lease operation was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BrokerError {
    /// This server is not the leader, or not yet.
    #[error("eval broker disabled")]
    Disabled,
    /// Nobody holds a lease on the evaluation.
    #[error("evaluation {0} is not outstanding")]
    NotOutstanding(EvaluationId),
    /// Somebody else holds the lease by now.
    #[error("evaluation token does not match for {0}")]
    TokenMismatch(EvaluationId),
}

/// Why a worker gives a lease back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NackReason {
    /// The scheduling turn failed: counts as a delivery, and the next one comes later.
    Failed,
    /// The worker's state did not catch up: does not count, ready at once.
    Lag,
    /// The worker's server is going down: does not count, ready at once.
    Shutdown,
}

/// What became of an evaluation handed to the broker.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Enqueued {
    /// Taken.
    New,
    /// Taken, and there are more than `evaluations_max`: the admission check should refuse new
    /// work.
    BeyondLimit,
    /// Already here.
    Known,
    /// Outstanding under this token: kept aside until it is acknowledged.
    Aside,
    /// Nothing to do: the evaluation is terminal.
    Terminal,
    /// The broker is disabled: the leader to come takes it from the state.
    Disabled,
}

/// What became of an acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Acked {
    /// The lease ended with it.
    Now,
    /// The evaluation was done before: its applied outcome had acknowledged it.
    Before,
}

/// A lease on an evaluation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delivery {
    /// If its row is not in the state, [`EvalBroker::remove`] it.
    pub evaluation: EvaluationId,
    /// Needed to acknowledge, and checked before its plan is applied.
    pub token: Token,
    /// The worker's snapshot must be at least of this index. The caller raises it to the job's
    /// `last_plan_index`.
    pub wait_index: Index,
    /// Which delivery this is, from 1.
    pub deliveries: u32,
}

/// A lease that was taken back because it was not acknowledged in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expired {
    pub evaluation: EvaluationId,
    /// Server that had the lease.
    pub server: u64,
    pub deliveries: u32,
}

/// Evaluations of one job that are in the broker.
#[derive(Default, Debug)]
struct JobSlot {
    holder: Option<EvaluationId>,
    pending: BTreeSet<Rank>,
    members: usize,
    /// Cancelable ones that a scheduler would rely on if it found them open
    /// ([`Entry::is_relied_on`]).
    relied_on: usize,
    index: Index,
}

impl JobSlot {
    /// Where the evaluation that holds the job is. It must not be leased before a snapshot can show
    /// that what it supersedes is terminal: a scheduler that finds a blocked evaluation or a
    /// follow-up open makes no other one, and the job would be left with none.
    fn place_of_holder(&self, now: u64) -> Place {
        if self.relied_on == 0 { Place::Ready { since: now } } else { Place::Held }
    }
}

/// The evaluation broker. Starts disabled.
#[derive(Debug)]
pub struct EvalBroker {
    config: BrokerConfig,
    enabled: bool,
    paused: bool,
    entries: BTreeMap<EvaluationId, Entry>,
    jobs: BTreeMap<JobKey, JobSlot>,
    queues: Queues,
}

impl EvalBroker {
    /// An empty, disabled broker.
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            config,
            enabled: false,
            paused: false,
            entries: BTreeMap::new(),
            jobs: BTreeMap::new(),
            queues: Queues::default(),
        }
    }

    /// Takes evaluations from now on.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// Drops everything and takes nothing from now on.
    pub fn disable(&mut self) {
        *self = Self { paused: self.paused, ..Self::new(self.config) };
    }

    /// Whether evaluations are taken.
    pub fn is_enabled(&self) -> bool {
        self.enabled
    }

    /// Hands out nothing while paused (the scheduler configuration's `pause_eval_broker`);
    /// everything else goes on.
    pub fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    /// Takes over from the state what a new leader has to process: pending evaluations. Blocked
    /// ones go to [`crate::BlockedEvals`].
    pub fn restore(&mut self, now: u64, state: &fsm::State) {
        for evaluation in state.evaluations().iter() {
            if evaluation.status == EvaluationStatus::Pending {
                self.enqueue(now, evaluation);
            }
        }
    }

    /// Compares its evaluations with the state after effects were missed. What is terminal or gone,
    /// or was blocked again by its outcome, is let go. A lease on an evaluation of the last kind
    /// would keep it from being woken, and nothing would wait for room when the lease ends.
    pub fn catch_up(&mut self, now: u64, state: &fsm::State) {
        let holds = |entry: &Entry| {
            self.jobs.get(&entry.job).is_some_and(|slot| slot.holder == Some(entry.id))
        };
        // Holders last: the next holder is chosen among the evaluations that are left.
        let (holders, others): (Vec<_>, Vec<_>) = self.entries.values().partition(|one| holds(one));
        let ids: Vec<_> = others.into_iter().chain(holders).map(|entry| entry.id).collect();
        for id in ids {
            match state.evaluations().get(&id) {
                Some(row) => self.applied(now, row),
                None => self.remove(now, id),
            }
        }
    }

    /// Takes an evaluation to be processed: a pending one, or a blocked one that was woken.
    pub fn enqueue(&mut self, now: u64, evaluation: &Evaluation) -> Enqueued {
        if !self.enabled {
            return Enqueued::Disabled;
        }
        if evaluation.status.is_terminal() {
            return Enqueued::Terminal;
        }
        self.note_job_index(&evaluation.job, evaluation.modify_index);
        if self.entries.contains_key(&evaluation.id) {
            return Enqueued::Known;
        }
        self.admit(now, Entry::new(evaluation), evaluation.wait_until);
        if self.is_full() { Enqueued::BeyondLimit } else { Enqueued::New }
    }

    /// Takes an evaluation back that the holder of `token` is still processing: it is kept aside
    /// until that lease is acknowledged, and dropped when the lease is nacked, because the
    /// evaluation is delivered again then anyway.
    pub fn enqueue_again(&mut self, now: u64, evaluation: &Evaluation, token: Token) -> Enqueued {
        let lease = self.entries.get_mut(&evaluation.id).filter(|_| self.enabled);
        let Some(entry) = lease.filter(|_| !evaluation.status.is_terminal()) else {
            return self.enqueue(now, evaluation);
        };
        if entry.lease().is_none_or(|lease| lease.token != token) {
            return Enqueued::Known;
        }
        entry.again = Some(Box::new((Entry::new(evaluation), evaluation.wait_until)));
        self.note_job_index(&evaluation.job, evaluation.modify_index);
        Enqueued::Aside
    }

    /// What an applied change of an evaluation means here: a terminal one is acknowledged, one that
    /// was blocked again by its outcome too, a pending one is taken. The worker's own
    /// acknowledgement, when it comes later, changes nothing.
    pub fn applied(&mut self, now: u64, evaluation: &Evaluation) {
        match evaluation.status {
            EvaluationStatus::Pending => {
                self.enqueue(now, evaluation);
            }
            EvaluationStatus::Blocked => {
                let known = self.entries.get(&evaluation.id);
                if known.is_some_and(|entry| evaluation.snapshot_index > entry.snapshot_index) {
                    self.release(now, evaluation.id);
                }
            }
            EvaluationStatus::Complete | EvaluationStatus::Failed | EvaluationStatus::Canceled => {
                self.note_job_index(&evaluation.job, evaluation.modify_index);
                self.remove(now, evaluation.id);
            }
        }
    }

    /// Forgets an evaluation that is terminal or gone, wherever it is; the job's next one becomes
    /// ready.
    pub fn remove(&mut self, now: u64, id: EvaluationId) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.again = None;
            self.release(now, id);
        }
    }

    /// A snapshot for this job must be at least of this index: an unblock or an applied plan.
    /// Forgotten with the job's last evaluation.
    pub fn note_job_index(&mut self, job: &JobKey, index: Index) {
        if let Some(slot) = self.jobs.get_mut(job) {
            slot.index = slot.index.max(index);
        }
    }

    /// Leases up to `max` evaluations (and `limits::LEASES_MAX`) of different jobs, highest
    /// priority first over all of `kinds`, oldest first inside a priority. They go to `server`;
    /// `token` makes a fresh token at each call.
    pub fn dequeue(
        &mut self,
        now: u64,
        kinds: &[JobKind],
        max: usize,
        server: u64,
        mut token: impl FnMut() -> Token,
    ) -> Result<Vec<Delivery>, BrokerError> {
        if !self.enabled {
            return Err(BrokerError::Disabled);
        }
        let mut deliveries: Vec<Delivery> = Vec::new();
        while !self.paused && deliveries.len() < max.min(limits::LEASES_MAX) {
            let Some(id) = self.queues.first_ready(kinds) else { break };
            let Some(delivery) = self.lease(now, id, server, token(), false) else { break };
            if let Some(before) = deliveries.last() {
                self.chain(before.evaluation, id);
            }
            deliveries.push(delivery);
        }
        Ok(deliveries)
    }

    /// Leases evaluations that reached the delivery limit, for the leader's reaper
    /// ([`crate::reap::failed`]).
    pub fn dequeue_failed(
        &mut self,
        now: u64,
        max: usize,
        server: u64,
        mut token: impl FnMut() -> Token,
    ) -> Result<Vec<Delivery>, BrokerError> {
        if !self.enabled {
            return Err(BrokerError::Disabled);
        }
        let mut deliveries = Vec::new();
        while deliveries.len() < max {
            let Some(id) = self.queues.first_failed() else { break };
            deliveries.extend(self.lease(now, id, server, token(), true));
        }
        Ok(deliveries)
    }

    /// Ends a lease: the evaluation is done. Its job's newest pending evaluation becomes ready and
    /// the older ones become cancelable. For an evaluation that is not here any more this is a
    /// success: whatever ended it was applied.
    pub fn ack(&mut self, now: u64, id: EvaluationId, token: Token) -> Result<Acked, BrokerError> {
        if self.enabled && !self.entries.contains_key(&id) {
            return Ok(Acked::Before);
        }
        self.check(id, token)?;
        self.release(now, id);
        Ok(Acked::Now)
    }

    /// Ends a lease: the evaluation is delivered again.
    pub fn nack(
        &mut self,
        now: u64,
        id: EvaluationId,
        token: Token,
        reason: NackReason,
    ) -> Result<(), BrokerError> {
        let lease = self.check(id, token)?;
        self.take_back(now, id, lease, reason);
        Ok(())
    }

    /// The token of the lease on an evaluation.
    pub fn outstanding(&self, id: EvaluationId) -> Option<Token> {
        Some(self.entries.get(&id)?.lease()?.token)
    }

    /// Starts the nack timer of a lease anew: its holder is alive.
    pub fn outstanding_reset(
        &mut self,
        now: u64,
        id: EvaluationId,
        token: Token,
    ) -> Result<(), BrokerError> {
        let lease = self.check(id, token)?;
        if matches!(lease.clock, Clock::Until(_)) {
            self.set_clock(id, lease, Clock::Until(now + self.config.nack_ms));
        }
        Ok(())
    }

    /// Stops the nack timer of a lease: its plan waits at the leader, so that the wait is not the
    /// worker's.
    pub fn pause_nack(&mut self, id: EvaluationId, token: Token) -> Result<(), BrokerError> {
        let lease = self.check(id, token)?;
        self.set_clock(id, lease, Clock::Stopped);
        Ok(())
    }

    /// Starts the nack timer of a lease again, from the beginning.
    pub fn resume_nack(
        &mut self,
        now: u64,
        id: EvaluationId,
        token: Token,
    ) -> Result<(), BrokerError> {
        let lease = self.check(id, token)?;
        self.set_clock(id, lease, Clock::Until(now + self.config.nack_ms));
        Ok(())
    }

    /// A server is gone: its leases are ready again at once instead of after the nack timeout, and
    /// do not count. Leases whose plan is at the leader (paused timer) stay: the plan's outcome
    /// ends them.
    pub fn server_lost(&mut self, now: u64, server: u64) {
        for id in self.queues.outstanding() {
            let lease = self.entries.get(&id).and_then(Entry::lease);
            if let Some(lease) = lease
                && lease.server == server
                && lease.clock != Clock::Stopped
            {
                self.take_back(now, id, lease, NackReason::Shutdown);
            }
        }
    }

    /// Superseded evaluations, at most `max`, to be canceled by one entry
    /// ([`crate::reap::canceled`]). They stay until they are terminal, so that asking again gives
    /// the same ones.
    pub fn cancelable(&self, max: usize) -> Vec<EvaluationId> {
        self.queues.cancelable().take(max.min(limits::REAP_BATCH_MAX)).collect()
    }

    /// Lets time pass: delays end, and leases not acknowledged in time are taken back and reported.
    pub fn poll(&mut self, now: u64) -> Vec<Expired> {
        let mut expired = Vec::new();
        while let Some(id) = self.queues.due(now) {
            let entry = self.entry(id);
            if let Some(lease) = entry.lease() {
                let (server, deliveries) = (lease.server, entry.deliveries);
                expired.push(Expired { evaluation: id, server, deliveries });
                // Its worker may be gone, or may be at a later one of the batch, whose end would
                // begin the clock of the next.
                self.begin_all_behind(now, lease);
                self.take_back(now, id, lease, NackReason::Failed);
            } else {
                self.admit_to_job(now, id);
            }
        }
        expired
    }

    /// When to poll next.
    pub fn next_deadline(&self) -> Option<u64> {
        self.queues.next_timer()
    }

    /// Whether a dequeue of these kinds would give something: when to wake long polls.
    pub fn has_ready(&self, kinds: &[JobKind]) -> bool {
        !self.paused && self.queues.first_ready(kinds).is_some()
    }

    /// Counts of evaluations.
    pub fn stats(&self) -> Stats {
        self.queues.stats()
    }

    /// Whether an evaluation is anywhere in the broker.
    pub fn contains(&self, id: EvaluationId) -> bool {
        self.entries.contains_key(&id)
    }

    /// Evaluations in the broker.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Nothing to process.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// More than `evaluations_max` are here.
    pub fn is_full(&self) -> bool {
        self.entries.len() > self.config.evaluations_max
    }

    /// How long the oldest ready evaluation of a kind has been ready, ms; 0 when none is.
    pub fn oldest_ready_age_ms(&self, now: u64, kind: JobKind) -> u64 {
        self.queues.oldest_ready(kind).map_or(0, |since| now.saturating_sub(since))
    }

    fn entry(&self, id: EvaluationId) -> &Entry {
        self.entries.get(&id).expect("queues refer to entries")
    }

    fn admit(&mut self, now: u64, entry: Entry, wait_until: u64) {
        let id = entry.id;
        let slot = self.jobs.entry(entry.job.clone()).or_default();
        slot.members += 1;
        slot.index = slot.index.max(entry.modify_index);
        self.entries.insert(id, entry);
        if wait_until > now {
            self.put(id, Place::Waiting { until: wait_until });
        } else {
            self.admit_to_job(now, id);
        }
    }

    /// Ready if the job is free or held by this very evaluation, otherwise pending.
    fn admit_to_job(&mut self, now: u64, id: EvaluationId) {
        let entry = self.entries.get(&id).expect("the caller found the entry");
        let slot = self.jobs.get_mut(&entry.job).expect("each entry has a slot");
        let holder = *slot.holder.get_or_insert(id);
        if holder == id || is_planted(Plant::JobsNotSerialised) {
            let place = slot.place_of_holder(now);
            self.put(id, place);
        } else {
            slot.pending.insert(entry.rank());
            self.put(id, Place::Pending);
        }
    }

    fn lease(
        &mut self,
        now: u64,
        id: EvaluationId,
        server: u64,
        token: Token,
        failed: bool,
    ) -> Option<Delivery> {
        let entry = self.entries.get_mut(&id)?;
        entry.deliveries += u32::from(!failed);
        let (deliveries, index) = (entry.deliveries, entry.modify_index);
        let wait_index = self.jobs.get(&entry.job).map_or(0, |slot| slot.index).max(index);
        let clock = Clock::Until(now + self.config.nack_ms);
        self.queues.leases(entry);
        self.put(id, Place::Outstanding(Lease { token, server, clock, next: None, failed }));
        Some(Delivery { evaluation: id, token, wait_index, deliveries })
    }

    fn check(&self, id: EvaluationId, token: Token) -> Result<Lease, BrokerError> {
        if !self.enabled {
            return Err(BrokerError::Disabled);
        }
        let lease = self.entries.get(&id).and_then(Entry::lease);
        let lease = lease.ok_or(BrokerError::NotOutstanding(id))?;
        if lease.token == token || is_planted(Plant::AnyTokenAcknowledges) {
            Ok(lease)
        } else {
            Err(BrokerError::TokenMismatch(id))
        }
    }

    fn set_clock(&mut self, id: EvaluationId, lease: Lease, clock: Clock) {
        self.put(id, Place::Outstanding(Lease { clock, ..lease }));
    }

    /// Lets the clock of one lease begin when the other one ends.
    fn chain(&mut self, before: EvaluationId, after: EvaluationId) {
        if is_planted(Plant::BatchClocksTogether) {
            return;
        }
        let lease_of = |entry: &Entry| entry.lease().expect("it was leased just now");
        let (first, second) = (lease_of(self.entry(before)), lease_of(self.entry(after)));
        self.put(before, Place::Outstanding(Lease { next: Some(after), ..first }));
        self.set_clock(after, second, Clock::Behind(first.token));
    }

    /// A lease has ended: the clock of the one behind it begins. That one's lease, if it is still
    /// of the same batch.
    fn begin_behind(&mut self, now: u64, ended: Lease) -> Option<Lease> {
        let next = ended.next?;
        let lease = self.entries.get(&next)?.lease()?;
        if lease.clock != Clock::Behind(ended.token) {
            return None;
        }
        self.set_clock(next, lease, Clock::Until(now + self.config.nack_ms));
        Some(lease)
    }

    fn begin_all_behind(&mut self, now: u64, ended: Lease) {
        let mut last = Some(ended);
        while let Some(lease) = last {
            last = self.begin_behind(now, lease);
        }
    }

    /// Ends a lease without success. The evaluation keeps its job: a newer one of that job must not
    /// overtake the pause.
    fn take_back(&mut self, now: u64, id: EvaluationId, lease: Lease, reason: NackReason) {
        let entry = self.entries.get_mut(&id).expect("the caller found the lease");
        entry.again = None;
        let place = match reason {
            NackReason::Failed | NackReason::Lag | NackReason::Shutdown if lease.failed => {
                Place::Failed
            }
            NackReason::Lag | NackReason::Shutdown => {
                assert!(entry.deliveries > 0, "evaluation {id} is leased and was never delivered");
                entry.deliveries -= 1;
                Place::Ready { since: now }
            }
            NackReason::Failed if entry.deliveries >= self.config.deliveries_max => Place::Failed,
            NackReason::Failed => {
                let delay_ms = match entry.deliveries {
                    0 | 1 => self.config.delay_first_ms,
                    more => u64::from(more - 1) * self.config.delay_step_ms,
                };
                Place::Waiting { until: now + delay_ms }
            }
        };
        self.put(id, place);
        self.begin_behind(now, lease);
    }

    /// Takes an evaluation out, gives its job on, and takes in what was kept aside for it.
    fn release(&mut self, now: u64, id: EvaluationId) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.queues.unhook(&entry);
        let slot = self.jobs.get_mut(&entry.job).expect("each entry has a slot");
        slot.pending.remove(&entry.rank());
        slot.members -= 1;
        if entry.place == Place::Cancelable && entry.is_relied_on {
            slot.relied_on -= 1;
            self.let_holder_go(now, &entry.job);
        }
        let slot = self.jobs.get_mut(&entry.job).expect("each entry has a slot");
        let held = slot.holder == Some(id);
        if held {
            slot.holder = None;
            self.promote(now, &entry.job);
        }
        if let Some(lease) = entry.lease() {
            self.begin_behind(now, lease);
        }
        if let Some(again) = entry.again {
            let (again, wait_until) = *again;
            self.admit(now, again, wait_until);
        }
        if self.jobs.get(&entry.job).is_some_and(|slot| slot.members == 0) {
            self.jobs.remove(&entry.job);
        }
    }

    /// The job is free: its newest pending evaluation becomes ready at the highest priority of all,
    /// and the older ones are superseded by it.
    fn promote(&mut self, now: u64, job: &JobKey) {
        let slot = self.jobs.get_mut(job).expect("the caller found the slot");
        let Some(newest) = slot.pending.pop_last() else { return };
        slot.holder = Some(newest.id);
        let superseded = std::mem::take(&mut slot.pending);
        let mut priority = 0;
        for rank in &superseded {
            let entry = self.entries.get(&rank.id).expect("pending refers to entries");
            priority = entry.priority.max(priority);
            slot.relied_on += usize::from(entry.is_relied_on);
        }
        let place = slot.place_of_holder(now);
        for rank in &superseded {
            self.put(rank.id, Place::Cancelable);
        }
        let entry = self.entries.get_mut(&newest.id).expect("pending refers to entries");
        entry.priority = entry.priority.max(priority);
        self.put(newest.id, place);
    }

    /// One that the job's holder supersedes is terminal: the holder is ready once none of them is
    /// open.
    fn let_holder_go(&mut self, now: u64, job: &JobKey) {
        let slot = self.jobs.get(job).expect("the caller found the slot");
        if let Some(holder) = slot.holder
            && slot.relied_on == 0
            && self.entry(holder).place == Place::Held
        {
            self.put(holder, Place::Ready { since: now });
        }
    }

    fn put(&mut self, id: EvaluationId, place: Place) {
        let entry = self.entries.get_mut(&id).expect("the caller found the entry");
        self.queues.unhook(entry);
        entry.place = place;
        self.queues.hook(entry);
    }
}

impl Default for EvalBroker {
    fn default() -> Self {
        Self::new(BrokerConfig::default())
    }
}
