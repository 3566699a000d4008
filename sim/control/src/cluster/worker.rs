//! Workers: the real turn and the real schedulers, with the driver in place of the async shell.
//!
//! Modelled of the shell (`src/server/src/worker/mod.rs`): one lease after the other; a pass may take up to 25 s; an index wait of five seconds, woken by apply (or not: then it looks by itself),
//! then the lease is released and no worker of that server leases until it caught up; new orders at any step; a call that got no answer in time is made again with the same plan; a refusal or an unknown outcome
//! lets the lease go. Messages to and from the leader go through [`super::mail`], which loses, delays and repeats them.

use std::collections::VecDeque;

use fsm::{EvaluationStatus, Index, Plan};
use leader::{
    BrokerError, IndexWait, Lease, Looked, NackReason, PlanAnswer, Token,
    limits::NACK_MS,
    turn::{After, Begin, Turn},
};
use scheduler::Pass;

use super::{
    Cluster,
    coverage::Event,
    leadership::Leadership,
    mail::{Ask, Mail},
    words,
};
use crate::promises::CallId;
use chance::Dice;

const INDEX_WAIT_MS: u64 = 5_000;
const CALL_WAIT_MS: u64 = 10_000;
const PLAN_WAIT_MS: u64 = 60_000;
/// Pause between two looks of a worker that waits for an index, at most.
const LOOK_MS_MAX: u64 = 1_000;
/// After a call that failed.
const BACKOFF_MS: u64 = 100;

/// What goes wrong with workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerTrouble {
    /// Percent of a worker's steps at which its process is gone, with its leases.
    pub(crate) deaths: u64,
    /// Percent of scheduling passes that take long.
    pub(crate) slow_passes: u64,
    /// Percent of wake-ups that are lost.
    pub(crate) lost_wake_ups: u64,
}

/// A lease in a worker's hands.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    lease: Lease,
    epoch: u64,
    turn: Turn,
    /// What its plans have to be made on, at least.
    must_see: Index,
}

#[derive(Clone, Debug)]
enum Doing {
    /// Nothing before this time.
    Idle(u64),
    /// Asked for leases; gives up at this time.
    Asking(CallId, u64),
    /// Waits for its server to apply an index.
    Waiting(Box<Held>, IndexWait),
    /// Has made a plan by this time.
    Scheduling(Box<Held>, Box<Plan>, u64),
    /// Plans again at this time: nobody knows what became of the last plan.
    Pausing(Box<Held>, u64),
    /// Submitted a plan; asks again at this time.
    Submitted(Box<Held>, Box<Plan>, CallId, u64),
    /// Submits again at this time.
    Resubmitting(Box<Held>, Box<Plan>, u64),
}

/// A worker.
pub(crate) struct Worker {
    pub(crate) server: usize,
    doing: Doing,
    /// Leases of the last answer that were not begun.
    leases: VecDeque<(Lease, u64)>,
    /// When that answer was asked for: the leases began after it, however late it came.
    asked_at: u64,
    /// When the lease in hand was begun.
    begun_at: u64,
    /// Its server's apply told it that the index is there that it waits for.
    is_woken: bool,
    /// Since when that index is there.
    there_since: Option<u64>,
}

impl Worker {
    /// A worker of a server.
    pub(crate) fn new(server: usize) -> Self {
        let (doing, leases) = (Doing::Idle(0), VecDeque::new());
        let (is_woken, there_since) = (false, None);
        Self { server, doing, leases, asked_at: 0, begun_at: 0, is_woken, there_since }
    }

    /// Has nothing in its hands.
    pub(crate) fn is_idle(&self) -> bool {
        self.leases.is_empty() && matches!(self.doing, Doing::Idle(_) | Doing::Asking(..))
    }

    /// Whether a lease waits behind the one in hand, and neither that one nor the batch has taken so long that it may run out. When a message that ends
    /// a lease is lost, those behind it have twice the time of a lease.
    pub(crate) fn keeps_waiting(&self, token: Token, now: u64) -> bool {
        let is_at_one = !matches!(self.doing, Doing::Idle(_) | Doing::Asking(..));
        let waits = is_at_one && self.leases.iter().any(|(lease, _)| lease.token == token);
        // Leases end by log time, which may run 5 % faster than this worker's clock.
        let nack_ms = NACK_MS - NACK_MS / 20;
        waits && now - self.begun_at < nack_ms && now - self.asked_at < 2 * nack_ms - CALL_WAIT_MS
    }

    /// When something happens here by itself.
    pub(crate) fn next_look_ms(&self) -> u64 {
        match &self.doing {
            Doing::Idle(at)
            | Doing::Asking(_, at)
            | Doing::Scheduling(_, _, at)
            | Doing::Pausing(_, at)
            | Doing::Submitted(_, _, _, at)
            | Doing::Resubmitting(_, _, at) => *at,
            Doing::Waiting(_, wait) => wait.next_look(),
        }
    }
}

impl Cluster {
    /// Lets a worker go on.
    pub(crate) fn work(&mut self, number: usize, dice: &mut Dice) -> bool {
        let now = self.clock_ms;
        self.die(number);
        let doing = std::mem::replace(&mut self.workers[number].doing, Doing::Idle(0));
        let (doing, acted) = match doing {
            Doing::Idle(at) if at > now => (Doing::Idle(at), false),
            Doing::Idle(_) => self.begin(number, dice),
            Doing::Asking(call, at) if at > now => (Doing::Asking(call, at), false),
            Doing::Asking(call, _) => {
                self.hang_up(call);
                (Doing::Idle(now + BACKOFF_MS), true)
            }
            Doing::Waiting(held, wait) => self.look_for_index(number, held, wait, dice),
            Doing::Scheduling(held, plan, at) if at > now => {
                (Doing::Scheduling(held, plan, at), false)
            }
            Doing::Pausing(held, at) if at > now => (Doing::Pausing(held, at), false),
            Doing::Pausing(held, _) => (self.plan(number, held, dice), true),
            Doing::Submitted(held, plan, call, until) if until > now => {
                (Doing::Submitted(held, plan, call, until), false)
            }
            Doing::Submitted(held, plan, call, _) => {
                self.hang_up(call);
                (Doing::Resubmitting(held, plan, now + BACKOFF_MS), true)
            }
            Doing::Resubmitting(held, plan, at) if at > now => {
                (Doing::Resubmitting(held, plan, at), false)
            }
            Doing::Scheduling(held, plan, _) | Doing::Resubmitting(held, plan, _) => {
                (self.submit(number, held, plan, dice), true)
            }
        };
        self.workers[number].doing = doing;
        acted
    }

    /// Sometimes a worker's process is gone: nobody gives its leases back, and its calls end.
    fn die(&mut self, number: usize) {
        let busy = !self.workers[number].is_idle();
        if !busy || !self.chance.percent(self.trouble.workers.deaths) {
            return;
        }
        self.coverage.count(Event::WorkerDied);
        self.trace(|| format!("worker {number} dies"));
        let worker = &mut self.workers[number];
        worker.leases.clear();
        match std::mem::replace(&mut worker.doing, Doing::Idle(self.clock_ms)) {
            Doing::Asking(call, _) | Doing::Submitted(_, _, call, _) => self.hang_up(call),
            Doing::Idle(_)
            | Doing::Waiting(..)
            | Doing::Scheduling(..)
            | Doing::Pausing(..)
            | Doing::Resubmitting(..) => {}
        }
    }

    fn begin(&mut self, number: usize, dice: &mut Dice) -> (Doing, bool) {
        let now = self.clock_ms;
        let server = self.workers[number].server;
        if let Some((lease, epoch)) = self.workers[number].leases.pop_front() {
            let index = lease.wait_index;
            self.workers[number].begun_at = now;
            let attempts_max = scheduler::attempts_max(lease.evaluation.kind);
            let turn = Turn::new(lease.evaluation.id, attempts_max);
            let lags = self.servers[server].applied < self.servers[server].caught_up_at;
            let limit_ms = if lags { 0 } else { INDEX_WAIT_MS };
            let held = Box::new(Held { lease, epoch, turn, must_see: index });
            return (self.wait(number, held, index, limit_ms), true);
        }
        let kinds = self.servers[server].kinds_taken();
        if kinds.is_empty() {
            return (Doing::Idle(now), false);
        }
        if self.servers[server].applied < self.servers[server].caught_up_at {
            return (Doing::Idle(now), false);
        }
        let Some(to) = self.believed_leader(server, dice) else {
            return (Doing::Idle(now + BACKOFF_MS), false);
        };
        let call = self.call(number, to, Ask::Dequeue(kinds), dice);
        self.workers[number].asked_at = now;
        (Doing::Asking(call, now + CALL_WAIT_MS), true)
    }

    /// New orders: a pause between two questions for work is over.
    pub(crate) fn end_waits_for_work(&mut self, server: usize) {
        let now = self.clock_ms;
        for worker in self.workers.iter_mut().filter(|worker| worker.server == server) {
            if let Doing::Idle(at) = &mut worker.doing {
                *at = (*at).min(now);
            }
        }
    }

    fn wait(&mut self, number: usize, held: Box<Held>, index: Index, limit_ms: u64) -> Doing {
        let worker = &mut self.workers[number];
        (worker.is_woken, worker.there_since) = (false, None);
        Doing::Waiting(held, IndexWait::new(index, self.clock_ms, limit_ms))
    }

    /// Its server applied something: workers that wait for it are woken, unless the wake-up is lost.
    pub(crate) fn wake_workers(&mut self, server: usize, before: Index) {
        let (applied, now) = (self.servers[server].applied, self.clock_ms);
        for number in 0..self.workers.len() {
            let worker = &self.workers[number];
            let Doing::Waiting(_, wait) = &worker.doing else { continue };
            if worker.server != server || wait.index() <= before || wait.index() > applied {
                continue;
            }
            let is_lost = self.chance.percent(self.trouble.workers.lost_wake_ups);
            if is_lost {
                self.coverage.count(Event::WakeUpLost);
            }
            let worker = &mut self.workers[number];
            (worker.is_woken, worker.there_since) = (!is_lost, Some(now));
        }
    }

    /// A worker that waits for an index is woken, or looks by itself. NW-05: a wake-up that is lost
    /// costs a second at most.
    fn look_for_index(
        &mut self,
        number: usize,
        held: Box<Held>,
        mut wait: IndexWait,
        dice: &mut Dice,
    ) -> (Doing, bool) {
        let now = self.clock_ms;
        let server = self.workers[number].server;
        if !self.workers[number].is_woken && wait.next_look() > now {
            let since = self.workers[number].there_since;
            if let Some(since) = since.filter(|since| now - since >= LOOK_MS_MAX) {
                let (index, ms) = (wait.index(), now - since);
                self.fail(format!("NW-05: {index} is there for {ms} ms, its worker waits on"));
            }
            return (Doing::Waiting(held, wait), false);
        }
        match wait.look(now, self.servers[server].applied) {
            Looked::There => (self.plan(number, held, dice), true),
            Looked::Until(_) => (Doing::Waiting(held, wait), false),
            Looked::Over => {
                let lag = &mut self.servers[server].caught_up_at;
                *lag = (*lag).max(wait.index());
                self.coverage.count(Event::LeaseReleased);
                self.nack(number, &held, NackReason::Lag, dice);
                (Doing::Idle(now), true)
            }
        }
    }

    /// One pass: the wait index is reached.
    fn plan(&mut self, number: usize, mut held: Box<Held>, dice: &mut Dice) -> Doing {
        let now = self.clock_ms;
        let server = self.workers[number].server;
        let state = self.log.state_at(self.servers[server].applied).clone();
        if state.index() < self.log.last() {
            self.coverage.count(Event::FollowerLagged);
        }
        if state.index() < held.must_see {
            let (id, index) = (held.lease.evaluation.id, state.index());
            let must_see = held.must_see;
            self.fail(format!("I29: {id} is planned on {index}, which does not show {must_see}"));
        }
        let (evaluation, attempt, exhausted) = match held.turn.begin(&state) {
            Begin::Plan { evaluation, pass, exhausted } => (evaluation, pass, exhausted),
            Begin::Acknowledge => {
                self.ack(number, &held, dice);
                return Doing::Idle(now);
            }
            Begin::Nack => {
                self.nack(number, &held, NackReason::Failed, dice);
                return Doing::Idle(now);
            }
        };
        if dice.percent(self.swarm.turn_failures) {
            self.nack(number, &held, NackReason::Failed, dice);
            return Doing::Idle(now);
        }
        let at = state.at().max(evaluation.wait_until);
        let pass = Pass { state: &state, evaluation: &evaluation, now: at, attempt };
        let plan = if exhausted {
            self.coverage.count(Event::Exhausted);
            scheduler::exhausted(&pass)
        } else {
            scheduler::schedule_with(&pass, &mut self.servers[server].memory)
        };
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.fail(format!("scheduler: {error}"));
                return Doing::Idle(now);
            }
        };
        let broken = scheduler::check::check(&state, &plan);
        if !broken.is_empty() {
            self.fail(format!("I37: the plan of {} breaks {broken:?}", plan.evaluation));
        }
        self.trace(|| {
            let index = state.index();
            format!("worker {number} of server {server} at {index}: {}", words::plan(&plan))
        });
        match self.pass_takes_ms() {
            0 => self.submit(number, held, Box::new(plan), dice),
            ms => Doing::Scheduling(held, Box::new(plan), now + ms),
        }
    }

    /// How long a scheduling pass takes.
    fn pass_takes_ms(&mut self) -> u64 {
        if self.trouble.workers.slow_passes == 0
            || !self.chance.percent(self.trouble.workers.slow_passes)
        {
            return 0;
        }
        self.coverage.count(Event::SlowPass);
        self.chance.between(1_000, 25_000)
    }

    fn submit(
        &mut self,
        number: usize,
        held: Box<Held>,
        plan: Box<Plan>,
        dice: &mut Dice,
    ) -> Doing {
        let now = self.clock_ms;
        let Some(to) = self.believed_leader(self.workers[number].server, dice) else {
            return Doing::Resubmitting(held, plan, now + BACKOFF_MS);
        };
        let ask = Ask::Plan(plan.clone(), held.lease.token, held.epoch);
        let call = self.call(number, to, ask, dice);
        Doing::Submitted(held, plan, call, now + PLAN_WAIT_MS)
    }

    fn ack(&mut self, number: usize, held: &Held, dice: &mut Dice) {
        if let Some(to) = self.believed_leader(self.workers[number].server, dice) {
            let ask = Ask::Ack(held.lease.evaluation.id, held.lease.token, held.epoch);
            self.call(number, to, ask, dice);
        }
    }

    fn nack(&mut self, number: usize, held: &Held, why: NackReason, dice: &mut Dice) {
        if let Some(to) = self.believed_leader(self.workers[number].server, dice) {
            let ask = Ask::Nack(held.lease.evaluation.id, held.lease.token, held.epoch, why);
            self.call(number, to, ask, dice);
        }
    }

    /// The leader that a server would ask: mostly the real one, sometimes one that was.
    fn believed_leader(&self, server: usize, dice: &mut Dice) -> Option<usize> {
        if self.servers[server].leadership.is_some() {
            return Some(server);
        }
        let leading = (0..self.servers.len()).filter(|one| self.servers[*one].leadership.is_some());
        let leading: Vec<_> = leading.collect();
        let right = self.log.leader;
        let knows = leading.contains(&right) && dice.percent(85);
        if knows { Some(right) } else { dice.pick(&leading) }
    }

    /// Sends a request; it may be lost or come twice.
    fn call(&mut self, worker: usize, to: usize, ask: Ask, dice: &mut Dice) -> CallId {
        self.calls += 1;
        let call = self.calls;
        if dice.percent(self.swarm.message_loss) {
            return call;
        }
        if dice.percent(self.swarm.message_copies) {
            self.coverage.count(Event::Duplicated);
            self.mail.push(Mail::ToLeader { to, worker, call, ask: ask.clone() });
        }
        self.mail.push(Mail::ToLeader { to, worker, call, ask });
        call
    }

    /// A worker does not wait for this call any more; the server that works on it lets it go.
    fn hang_up(&mut self, call: CallId) {
        for server in 0..self.servers.len() {
            self.with_leadership(server, |cluster, leadership| cluster.end_call(leadership, call));
        }
    }

    /// A worker's request arrives at a server.
    pub(crate) fn take_ask(&mut self, to: usize, worker: usize, call: CallId, ask: Ask) {
        let state = self.log.state_at(self.servers[to].applied).clone();
        let from = self.workers[worker].server;
        let taken = self.with_leadership(to, |cluster, leadership| {
            let epoch = leadership.epoch;
            let is_old = |of: u64| of != epoch;
            match ask {
                Ask::Dequeue(kinds) => {
                    let leases = cluster.grant(leadership, &state, from, &kinds);
                    let reply =
                        leases.map(|list| list.into_iter().map(|one| (one, epoch)).collect());
                    cluster.mail.push(Mail::Leases { worker, call, reply });
                }
                Ask::Plan(_, _, of) | Ask::Ack(_, _, of) | Ask::Nack(_, _, of, _) if is_old(of) => {
                    cluster.coverage.count(Event::StaleToken);
                    cluster.mail.push(Mail::Refused { worker, call });
                }
                Ask::Plan(plan, token, _) => {
                    cluster.take_plan(leadership, worker, call, *plan, token);
                }
                Ask::Ack(id, token, _) => cluster.take_ack(leadership, id, token),
                Ask::Nack(id, token, _, why) => cluster.take_nack(leadership, id, token, why),
            }
        });
        if taken.is_none() {
            // Not a leader: the call fails and is made again elsewhere.
            self.mail.push(Mail::Failed { worker, call });
        }
    }

    /// I22: an acknowledgement ends a lease only with its token.
    fn take_ack(
        &mut self,
        leadership: &mut Leadership,
        id: fsm::EvaluationId,
        token: leader::Token,
    ) {
        let held = leadership.dispatch().outstanding(id);
        let now = leadership.now(self.clock_ms);
        let acked = leadership.services.dispatch_mut().ack(now, id, token);
        if held.is_some_and(|held| held != token) {
            self.coverage.count(Event::StaleToken);
            if acked.is_ok() || leadership.dispatch().outstanding(id) != held {
                self.fail(format!("I22: the lease on {id} was ended with an old token"));
            }
        }
    }

    fn take_nack(
        &mut self,
        leadership: &mut Leadership,
        id: fsm::EvaluationId,
        token: leader::Token,
        why: NackReason,
    ) {
        let held = leadership.dispatch().outstanding(id);
        let now = leadership.now(self.clock_ms);
        let nacked = leadership.services.dispatch_mut().nack(now, id, token, why);
        if nacked.is_ok() && why != NackReason::Failed {
            leadership.uncount(id);
        }
        if nacked.is_ok() && why == NackReason::Failed {
            leadership.promises.failed(now, id);
        }
        if held.is_some_and(|held| held != token) {
            self.coverage.count(Event::StaleToken);
            if nacked.is_ok() {
                self.fail(format!("I22: the lease on {id} was given back with an old token"));
            }
        }
    }

    /// Leases, or why there are none, arrive at a worker.
    pub(crate) fn take_leases(
        &mut self,
        number: usize,
        call: CallId,
        reply: Result<Vec<(Lease, u64)>, BrokerError>,
    ) {
        let now = self.clock_ms;
        let worker = &mut self.workers[number];
        // Leases that nobody waits for any more come back to the broker by their timer.
        if matches!(worker.doing, Doing::Asking(asked, _) if asked == call) {
            let pause =
                if reply.as_ref().is_ok_and(|list| !list.is_empty()) { 0 } else { BACKOFF_MS };
            worker.leases = reply.unwrap_or_default().into();
            worker.begun_at = now;
            worker.doing = Doing::Idle(now + pause);
        }
    }

    /// A call failed without an answer.
    pub(crate) fn take_failure(&mut self, number: usize, call: CallId) {
        let now = self.clock_ms;
        let doing = std::mem::replace(&mut self.workers[number].doing, Doing::Idle(now));
        self.workers[number].doing = match doing {
            Doing::Asking(asked, _) if asked == call => Doing::Idle(now + BACKOFF_MS),
            Doing::Submitted(held, plan, asked, _) if asked == call => {
                Doing::Resubmitting(held, plan, now + BACKOFF_MS)
            }
            other @ (Doing::Idle(_)
            | Doing::Asking(..)
            | Doing::Waiting(..)
            | Doing::Scheduling(..)
            | Doing::Pausing(..)
            | Doing::Submitted(..)
            | Doing::Resubmitting(..)) => other,
        };
    }

    /// A plan's answer arrives at a worker.
    pub(crate) fn take_answer(
        &mut self,
        number: usize,
        call: CallId,
        answer: Result<PlanAnswer, BrokerError>,
        dice: &mut Dice,
    ) {
        let now = self.clock_ms;
        let doing = std::mem::replace(&mut self.workers[number].doing, Doing::Idle(now));
        let Doing::Submitted(mut held, plan, asked, until) = doing else {
            self.workers[number].doing = doing;
            return;
        };
        if asked != call {
            self.workers[number].doing = Doing::Submitted(held, plan, asked, until);
            return;
        }
        match answer {
            Err(BrokerError::Disabled) | Ok(PlanAnswer::QueueFull) => {
                self.workers[number].doing = Doing::Resubmitting(held, plan, now + BACKOFF_MS);
            }
            // Somebody else has the evaluation by now.
            Err(BrokerError::NotOutstanding(_) | BrokerError::TokenMismatch(_)) => {}
            Ok(answer) => {
                self.check_answer(&plan, &answer);
                held.must_see = held.must_see.max(shown_by(&answer));
                match held.turn.answered(&answer) {
                    After::Acknowledge => self.ack(number, &held, dice),
                    After::Pause => {
                        self.workers[number].doing = Doing::Pausing(held, now + BACKOFF_MS);
                    }
                    After::WaitFor(index) => {
                        self.workers[number].doing = self.wait(number, held, index, INDEX_WAIT_MS);
                    }
                }
            }
        }
    }

    /// The worker hears that its lease is of another epoch.
    pub(crate) fn take_refusal(&mut self, number: usize, call: CallId) {
        let now = self.clock_ms;
        if matches!(&self.workers[number].doing, Doing::Submitted(_, _, asked, _) if *asked == call)
        {
            self.workers[number].doing = Doing::Idle(now);
        }
    }

    /// I29: what was not taken in full names an index that exists; what was is in the state.
    fn check_answer(&mut self, plan: &Plan, answer: &PlanAnswer) {
        let last = self.log.last();
        match answer {
            PlanAnswer::Applied { index } => {
                let row = self.log.truth().evaluations().get(&plan.evaluation);
                // What has ended may have been collected since.
                let done = row.is_none_or(|row| {
                    row.status.is_terminal()
                        || row.status == EvaluationStatus::Blocked
                        || row.modify_index > *index
                });
                if !done || *index > last {
                    let id = plan.evaluation;
                    self.fail(format!(
                        "I18: the plan of {id} counts as applied, its evaluation is open"
                    ));
                }
            }
            PlanAnswer::Partial { refresh_index, .. }
            | PlanAnswer::Rejected { refresh_index, .. } => {
                let shown = match answer {
                    PlanAnswer::Partial { index, .. } => *refresh_index >= *index,
                    PlanAnswer::Applied { .. }
                    | PlanAnswer::Rejected { .. }
                    | PlanAnswer::Unknown
                    | PlanAnswer::QueueFull => true,
                };
                if *refresh_index > last || !shown {
                    let id = plan.evaluation;
                    self.fail(format!("I29: the plan of {id} is to wait for {refresh_index}, the log ends at {last}"));
                }
            }
            PlanAnswer::Unknown | PlanAnswer::QueueFull => {}
        }
    }
}

/// Index of the state that an answer refers its worker to.
fn shown_by(answer: &PlanAnswer) -> Index {
    match answer {
        PlanAnswer::Partial { refresh_index, .. } | PlanAnswer::Rejected { refresh_index, .. } => {
            *refresh_index
        }
        PlanAnswer::Applied { .. } | PlanAnswer::Unknown | PlanAnswer::QueueFull => 0,
    }
}
