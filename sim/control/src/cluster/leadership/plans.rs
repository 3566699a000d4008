//! Plans in a leadership: taken from workers, judged by the applier, proposed, settled and
//! answered.

use fsm::{Index, Reply};
use leader::{
    PlanAnswer, PlanQueueLimits,
    applier::{self, EntryOutcome, Next},
    broker::Token,
};

use super::{Leadership, ReplyTo};
use crate::{
    cluster::{Cluster, coverage::Event, log::Fate},
    promises::{CallId, order},
};
use chance::Dice;

/// What goes wrong with the plan applier of a leadership.
#[derive(Clone, Debug, Default)]
pub(crate) struct ApplierTrouble {
    /// Percent of its steps at which it begins to stand still.
    pub(crate) stalls: u64,
    /// Plans that its queue takes; 0: as many as it likes.
    pub(crate) plans_max: usize,
}

impl Cluster {
    pub(super) fn plan_queue_limits(&self) -> PlanQueueLimits {
        let usual = PlanQueueLimits::default();
        match self.trouble.applier.plans_max {
            0 => usual,
            plans_max => PlanQueueLimits { plans_max, ..usual },
        }
    }

    /// Whether the applier stands still; sometimes it begins to.
    fn is_stalled(&mut self, leadership: &mut Leadership) -> bool {
        if self.trouble.applier.stalls == 0 {
            return false;
        }
        let now = self.clock_ms;
        if now >= leadership.stalled_until && self.chance.percent(self.trouble.applier.stalls) {
            self.coverage.count(Event::ApplierStalled);
            leadership.stalled_until = now + self.chance.between(500, 200_000);
        }
        now < leadership.stalled_until
    }

    /// Lets the applier settle what is known and propose what fits.
    pub(crate) fn apply_plans(&mut self, server: usize, dice: &mut Dice) -> bool {
        let applied = self.servers[server].applied;
        let lost = dice.percent(self.swarm.reply_loss);
        self.with_leadership(server, |cluster, leadership| {
            if cluster.is_stalled(leadership) {
                return false;
            }
            let mut acted = cluster.settle(leadership, applied, lost);
            let state = cluster.log.state_at(applied).clone();
            loop {
                let Leadership { applier, services, .. } = &mut *leadership;
                let outstanding = |id| services.dispatch().outstanding(id);
                match applier.next(&state, cluster.log.last(), outstanding) {
                    Next::Idle => break,
                    Next::Propose(mut command) => {
                        if cluster.swarm.bad_plans && dice.percent(10) {
                            order::spoil(&mut command, cluster.log.truth(), dice);
                        }
                        if let Some(broken) = order::judge_plans(&command) {
                            cluster.fail(broken);
                        }
                        let Leadership { promises, services, .. } = &mut *leadership;
                        let dispatch = services.dispatch();
                        if let Some(broken) = promises.proposed(dispatch, &command) {
                            cluster.fail(broken);
                        }
                        let ticket = cluster.propose_as_service(leadership, command);
                        leadership.outcomes.push_back(ticket);
                        acted = true;
                    }
                }
            }
            if leadership.applier.parked_until().is_some() {
                cluster.coverage.count(Event::AheadOfLeader);
            }
            let answers = leadership.applier.answers(applied);
            acted |= !answers.is_empty();
            cluster.answer_plans(leadership, answers);
            acted
        })
        .unwrap_or(false)
    }

    fn settle(&mut self, leadership: &mut Leadership, applied: Index, lost: bool) -> bool {
        let mut acted = false;
        while let Some(ticket) = leadership.outcomes.front().copied() {
            let outcome = match self.log.fate(ticket) {
                Fate::Open => break,
                Fate::Lost => EntryOutcome::Unknown,
                Fate::Committed(_) if lost => {
                    self.coverage.count(Event::CommittedWithoutReply);
                    EntryOutcome::Unknown
                }
                Fate::Committed(index) if index > applied => break,
                Fate::Committed(index) => match self.log.at(index).map(|one| one.reply.clone()) {
                    Some(Reply::Plans(verdicts)) => EntryOutcome::Applied { index, verdicts },
                    _ => EntryOutcome::Unknown,
                },
            };
            leadership.outcomes.pop_front();
            let as_judged = match &outcome {
                EntryOutcome::Applied { verdicts, .. } => verdicts
                    .iter()
                    .all(|verdict| verdict.refused.is_none() && verdict.dropped.is_empty()),
                EntryOutcome::Unknown => false,
            };
            leadership.promises.settled(as_judged, leadership.outcomes.len());
            leadership.applier.settle(outcome);
            acted = true;
        }
        acted
    }

    pub(super) fn answer_plans(
        &mut self,
        leadership: &mut Leadership,
        answers: Vec<(ReplyTo, PlanAnswer)>,
    ) {
        for (to, answer) in answers {
            if let PlanAnswer::Partial { index, reason, .. } = &answer {
                let event = if *index == 0 { Event::EmptiedPlan } else { Event::PartialTrial };
                if reason.contains("dropped") {
                    self.coverage.count(event);
                }
                let early = leadership.promises.emptied(to.call).filter(|_| *index == 0);
                if let Some(broken) = early {
                    self.fail(broken);
                }
            }
            if answer == PlanAnswer::QueueFull {
                self.coverage.count(Event::PlanQueueFull);
            }
            if matches!(&answer, PlanAnswer::Rejected { reason, .. } if reason.contains("older")) {
                self.coverage.count(Event::StalePlan);
            }
            self.end_call(leadership, to.call);
            self.reply_plan(to.worker, to.call, Ok(answer));
        }
    }

    /// A call is answered, or its worker hung up: the lease runs again.
    pub(crate) fn end_call(&mut self, leadership: &mut Leadership, call: CallId) {
        if let Some(to) = leadership.calls.remove(&call) {
            leadership.queued.remove(&(to.evaluation, to.token));
            let now = leadership.now(self.clock_ms);
            leadership.services.dispatch_mut().plan_answered(now, to.evaluation, to.token);
            leadership.promises.answered(now, to.evaluation, to.token);
        }
    }

    /// A worker's plan arrives.
    pub(crate) fn take_plan(
        &mut self,
        leadership: &mut Leadership,
        worker: usize,
        call: CallId,
        plan: fsm::Plan,
        token: Token,
    ) {
        let evaluation = plan.evaluation;
        if let Err(error) = leadership.services.dispatch_mut().plan_queued(evaluation, token) {
            self.coverage.count(Event::StaleToken);
            self.reply_plan(worker, call, Err(error));
            return;
        }
        let to = ReplyTo { worker, call, evaluation, token };
        leadership.calls.insert(call, to);
        leadership.queued.insert((evaluation, token));
        leadership.promises.submitted(call, &plan, token);
        let now = leadership.now(self.clock_ms);
        // Size only matters for the bounds of queue and entry.
        let bytes = 100 + 200 * plan.placements.len();
        leadership.applier.submit(now, applier::Request { plan, bytes, token, reply: to });
        let answers = leadership.applier.answers(leadership.fed);
        self.answer_plans(leadership, answers);
    }
}
