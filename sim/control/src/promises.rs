//! What the services of a leadership promise about leases, plans and nodes, and by when: judged from what went in and came out of them, and from the
//! rows that they saw. It keeps its own small account and never looks into their queues.

pub(crate) mod deployments;
pub(crate) mod order;
pub(crate) mod pools;

use std::collections::{BTreeMap, BTreeSet};

use fsm::{
    Command, Evaluation, EvaluationId, EvaluationStatus, Index, Liveness, NodeId, Plan, State,
    Trigger,
    command::{EvaluationCommand, NodeCommand, PlanCommand},
    evaluation::UpdateEvaluations,
    node::EndMassLoss,
    plan::ApplyPlans,
};
use leader::{
    Dispatch, Lease,
    broker::Token,
    heartbeat::Heard,
    limits::{
        DELIVERIES_MAX, DUE_RETRY_MS, HEARTBEAT_GRACE_MS, HEARTBEAT_TTL_MS_MIN, MASS_LOSS_LOOK_MS,
        NACK_DELAY_FIRST_MS, NACK_MS, PLAN_ENTRIES_MAX, UNBLOCK_FAILED_MS,
    },
};

use crate::invariants;

/// Number of a worker's call.
pub(crate) type CallId = u64;

/// Within this time who waits for room and missed a gain is woken: at once, but for a look of the services.
const WOKEN_MS: u64 = 5_000;
/// The time to live of a node in a small cluster is below this.
const TTL_MS_MAX: u64 = 2 * HEARTBEAT_TTL_MS_MIN;

/// Within this time the end of a mass loss that is over is asked for, also when the command was lost once.
const LOSS_ENDED_MS: u64 = DUE_RETRY_MS + MASS_LOSS_LOOK_MS;

/// A lease and since when its time runs.
#[derive(Clone, Copy)]
struct Lent {
    token: Token,
    since: u64,
    /// The lease before it in its batch: its time runs once that one has ended.
    before: Option<Token>,
    snapshot_index: Index,
}

/// A node that is expected to beat.
#[derive(Clone, Copy)]
struct Expected {
    incarnation: u64,
    /// The last time that it was heard, came, or was called down.
    since: u64,
}

/// What the services look at, and what is in the log by then.
#[derive(Clone, Copy)]
pub(crate) struct Seen<'a> {
    pub(crate) now: u64,
    pub(crate) state: &'a State,
    pub(crate) truth: &'a State,
}

/// A blocked evaluation that the services do not hold, although they are to try it again.
#[derive(Clone, Copy)]
struct Sleeper {
    snapshot_index: Index,
    since: u64,
    /// Another one of its job waited too.
    had_rival: bool,
}

/// Those that sleep for one reason.
#[derive(Default)]
struct Sleepers(BTreeMap<EvaluationId, Sleeper>);

impl Sleepers {
    /// The services looked: who has slept for so long, and how long, ms.
    fn looked(
        &mut self,
        seen: &Seen<'_>,
        dispatch: &Dispatch,
        patience_ms: u64,
        sleeps: impl Fn(&Evaluation) -> bool,
    ) -> Option<(EvaluationId, u64)> {
        let Seen { now, state, truth } = *seen;
        let is_blocked = |row: &Evaluation| row.status == EvaluationStatus::Blocked;
        // Who was dealt with in an entry that the services have not seen yet does not sleep.
        let sleeps = |row: &Evaluation| {
            is_blocked(row) && is_latest(truth, row) && !dispatch.holds(row.id) && sleeps(row)
        };
        self.0.retain(|id, _| state.evaluations().get(id).is_some_and(|row| sleeps(row)));
        for row in state.evaluations().iter().filter(|row| sleeps(row)) {
            let snapshot_index = row.snapshot_index;
            let new = Sleeper { snapshot_index, since: now, had_rival: false };
            let known = self.0.entry(row.id).or_insert(new);
            if known.snapshot_index != snapshot_index {
                *known = new;
            }
            known.had_rival |= state
                .evaluations()
                .iter()
                .any(|other| other.job == row.job && other.id != row.id && is_blocked(other));
        }
        let slept = self.0.iter().map(|(id, known)| (*id, now - known.since, known.had_rival));
        let mut late =
            slept.filter(|(_, slept_ms, had_rival)| *slept_ms >= patience_ms && !had_rival);
        late.next().map(|(id, slept_ms, _)| (id, slept_ms))
    }
}

/// Nothing became of it in an entry that the services have not seen.
fn is_latest(truth: &State, row: &Evaluation) -> bool {
    truth.evaluations().get(&row.id).is_some_and(|one| one.modify_index == row.modify_index)
}

/// The account of one leadership.
#[derive(Default)]
pub(crate) struct Promises {
    /// Leases under which plans on a snapshot were handed in.
    /// By lease and snapshot: how much a plan that was handed in places or updates.
    submitted: BTreeMap<(EvaluationId, Index, Token), usize>,
    /// An entry with plans did not come as it was judged, and others were under way.
    unsettled: bool,
    lent: BTreeMap<EvaluationId, Lent>,
    /// Given back as failed: when, and the snapshot of its last pass.
    failed_at: BTreeMap<EvaluationId, (u64, Index)>,
    expected: BTreeMap<NodeId, Expected>,
    /// Who waits because of conflicts.
    conflicts: Sleepers,
    /// Who waits for room, and there was some.
    overslept: Sleepers,
    /// A mass loss that is over, by its create index, and since when nobody asks for its end.
    loss_over: Option<(Index, u64)>,
    /// Entries with plans so far.
    entries: u64,
    entries_settled: u64,
    /// Entries that there were when a call's plan was handed in.
    entries_before: BTreeMap<CallId, u64>,
}

/// What a plan places or updates.
fn parts(plan: &Plan) -> usize {
    plan.placements.len() + plan.in_place.len()
}

impl Promises {
    /// A plan was handed in.
    pub(crate) fn submitted(&mut self, call: CallId, plan: &Plan, token: Token) {
        self.submitted.insert((plan.evaluation, plan.snapshot_index, token), parts(plan));
        self.entries_before.entry(call).or_insert(self.entries);
    }

    /// I22: a plan is proposed only while the lease that it was made under is out. And nothing is, while an entry settles. I30: of an all-at-once plan
    /// that does not fit nothing is left.
    pub(crate) fn proposed(&mut self, dispatch: &Dispatch, command: &Command) -> Option<String> {
        let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = command else {
            return None;
        };
        self.entries += 1;
        let under_way = self.entries - self.entries_settled;
        if under_way > PLAN_ENTRIES_MAX as u64 {
            return Some(format!("applier: {under_way} entries are under way"));
        }
        if self.unsettled {
            return Some(
                "applier: plans are proposed while entries are under way that count on one that failed"
                    .to_owned(),
            );
        }
        for plan in plans {
            let id = plan.evaluation;
            let token = dispatch.outstanding(id);
            let whole =
                token.and_then(|token| self.submitted.get(&(id, plan.snapshot_index, token)));
            let Some(whole) = whole else {
                return Some(format!("I22: a plan of {id} is proposed without its lease"));
            };
            let left = parts(plan);
            let rest = left + plan.stops.len() + plan.follow_ups.len();
            if plan.all_at_once && left < *whole && rest > 0 {
                return Some(format!("I30: a part of the all-at-once plan of {id} is proposed"));
            }
        }
        None
    }

    /// The outcome of the oldest entry with plans is known; `left` others are under way.
    pub(crate) fn settled(&mut self, as_judged: bool, left: usize) {
        self.entries_settled += 1;
        self.unsettled = (self.unsettled || !as_judged) && left > 0;
    }

    /// I29: nothing was left of a plan, and its worker plans again: what was under way when it was handed in is known by then.
    pub(crate) fn emptied(&self, call: CallId) -> Option<String> {
        let before = self.entries_before.get(&call).copied().unwrap_or(0);
        (self.entries_settled < before)
            .then(|| "I29: nothing is left of a plan, and why is not known yet".to_owned())
    }

    /// A lease was given, behind another one of its batch. The second delivery comes after a pause.
    pub(crate) fn leased(
        &mut self,
        now: u64,
        lease: &Lease,
        before: Option<Token>,
    ) -> Option<String> {
        let (id, snapshot_index) = (lease.evaluation.id, lease.evaluation.snapshot_index);
        self.lent.insert(id, Lent { token: lease.token, since: now, before, snapshot_index });
        let (failed_at, of) = self.failed_at.remove(&id)?;
        let paused_ms = now - failed_at;
        // One that was blocked again meanwhile begins anew.
        (paused_ms < NACK_DELAY_FIRST_MS && of == snapshot_index)
            .then(|| format!("I23: {id} failed and was delivered again {paused_ms} ms later"))
    }

    /// A lease was given back as failed, or ran out.
    pub(crate) fn failed(&mut self, now: u64, id: EvaluationId) {
        if let Some(lent) = self.lent.get(&id) {
            self.failed_at.insert(id, (now, lent.snapshot_index));
        }
    }

    /// The token of the last lease on an evaluation.
    pub(crate) fn token_of(&self, id: EvaluationId) -> Option<Token> {
        self.lent.get(&id).map(|lent| lent.token)
    }

    /// A plan was answered: its lease has a whole time again.
    pub(crate) fn answered(&mut self, now: u64, id: EvaluationId, token: Token) {
        if let Some(lent) = self.lent.get_mut(&id).filter(|lent| lent.token == token) {
            lent.since = now;
            lent.before = None;
        }
    }

    /// The services looked: leases whose time is over are not out any more, unless a plan is queued under them.
    pub(crate) fn looked_at_leases(
        &mut self,
        now: u64,
        dispatch: &Dispatch,
        queued: &BTreeSet<(EvaluationId, Token)>,
    ) -> Option<String> {
        self.lent.retain(|id, lent| dispatch.outstanding(*id) == Some(lent.token));
        self.failed_at.retain(|id, _| dispatch.holds(*id));
        let out: BTreeSet<Token> = self.lent.values().map(|lent| lent.token).collect();
        for lent in self.lent.values_mut() {
            if lent.before.is_some_and(|before| !out.contains(&before)) {
                lent.before = None;
                lent.since = now;
            }
        }
        let mut late = self.lent.iter();
        let (id, lent) = late.find(|(id, lent)| {
            let is_over = lent.before.is_none() && now - lent.since >= NACK_MS;
            is_over && !queued.contains(&(**id, lent.token))
        })?;
        Some(format!("I23: the lease on {id} is out after {} ms", now - lent.since))
    }

    /// Everything was taken over from the state: each node has a whole time to live, and who waits begins to wait.
    pub(crate) fn restored(&mut self, now: u64, state: &State) {
        let live = state.nodes().iter().filter(|row| is_expected(row.liveness));
        let expected = |row: &std::sync::Arc<fsm::Node>| {
            (row.id, Expected { incarnation: row.incarnation, since: now })
        };
        self.expected = live.map(expected).collect();
        self.conflicts = Sleepers::default();
        self.overslept = Sleepers::default();
        self.loss_over = None;
    }

    /// A beat was answered. A node of the state is known, and one that counts as away comes back.
    pub(crate) fn heard(
        &mut self,
        now: u64,
        state: &State,
        (node, incarnation): (NodeId, u64),
        answer: Option<Heard>,
    ) -> Option<String> {
        let row = state.nodes().get(&node).filter(|row| row.incarnation == incarnation);
        let (row, heard) = match (row, answer) {
            (Some(row), Some(heard)) => (row, heard),
            (None, None) => return None,
            (Some(_), None) => {
                return Some(format!("I50: {node} is registered, and its beat is refused"));
            }
            (None, Some(_)) => {
                return Some(format!("I50: {node} is not of incarnation {incarnation}, and beats"));
            }
        };
        if let Some(expected) = self.expected.get_mut(&node) {
            expected.since = now;
        }
        let returns = heard.returned.is_some();
        (returns == is_expected(row.liveness)).then(|| {
            let liveness = row.liveness.name();
            format!("I50: {node} is {liveness} and beats; it is to come back: {returns}")
        })
    }

    /// The services looked: who was not heard of for a whole time to live and the grace is called down, and again until the state says so.
    pub(crate) fn looked_at_nodes(
        &mut self,
        now: u64,
        state: &State,
        missed: &[NodeId],
    ) -> Option<String> {
        let shortest_ms = HEARTBEAT_TTL_MS_MIN + HEARTBEAT_GRACE_MS;
        let early = missed.iter().find(|id| {
            let of = state.nodes().get(id).map(|row| row.incarnation);
            self.expected.get(id).is_some_and(|known| {
                of == Some(known.incarnation) && now - known.since < shortest_ms
            })
        });
        if let Some(id) = early {
            return Some(format!("I50: {id} is called down before its time"));
        }
        self.expected
            .retain(|id, _| state.nodes().get(id).is_some_and(|row| is_expected(row.liveness)));
        for row in state.nodes().iter().filter(|row| is_expected(row.liveness)) {
            let incarnation = row.incarnation;
            let new = Expected { incarnation, since: now };
            let known = self.expected.entry(row.id).or_insert(new);
            if known.incarnation != incarnation || missed.contains(&row.id) {
                *known = new;
            }
        }
        let silent_ms = TTL_MS_MAX + HEARTBEAT_GRACE_MS;
        let mut silent = self.expected.iter();
        let (id, known) = silent.find(|(_, known)| now - known.since >= silent_ms)?;
        Some(format!("I50: {id} is not called down after {} ms", now - known.since))
    }

    /// The services looked: who waits because of conflicts tries again after a while, although no room was gained.
    pub(crate) fn looked_at_conflicts(
        &mut self,
        seen: &Seen<'_>,
        dispatch: &Dispatch,
    ) -> Option<String> {
        let is_conflict = |row: &Evaluation| row.trigger == Trigger::MaxPlans;
        let conflicts = &mut self.conflicts;
        let (id, slept_ms) = conflicts.looked(seen, dispatch, UNBLOCK_FAILED_MS, is_conflict)?;
        Some(format!("I25: {id} failed for conflicts and waits for {slept_ms} ms"))
    }

    /// I39. The services looked: who waits for room is not left asleep when there was some since it looked that it fits into, whoever led then. As
    /// long as others are out that were woken, the room may be offered to them.
    pub(crate) fn looked_at_sleepers(
        &mut self,
        seen: &Seen<'_>,
        dispatch: &Dispatch,
    ) -> Option<String> {
        let state = seen.state;
        if state.scheduler_configuration().pause_eval_broker {
            self.overslept = Sleepers::default();
            return None;
        }
        // One that is neither held nor tracked was given back by a worker that saw an entry that ended it, and the services have not seen that entry
        // yet: with it they pass the room on.
        let is_ended = |row: &Evaluation| !is_latest(seen.truth, row) && !dispatch.tracks(row.id);
        let is_out = |row: &Evaluation| {
            row.status == EvaluationStatus::Blocked && (dispatch.holds(row.id) || is_ended(row))
        };
        let is_offered = state.evaluations().iter().any(|row| is_out(row));
        // Who waits because of conflicts is woken by time as well, and looked at by that.
        let missed = |row: &Evaluation| {
            // For room on a node that is gone one could wait for ever.
            let is_gone = row.node.is_some_and(|node| !state.nodes().contains(&node));
            let is_excused = is_offered && row.node.is_none();
            row.trigger != Trigger::MaxPlans
                && !is_excused
                && (is_gone || invariants::is_woken(state, row))
        };
        let (id, slept_ms) = self.overslept.looked(seen, dispatch, WOKEN_MS, missed)?;
        Some(format!("I39: {id} waits for room, missed some, and sleeps on for {slept_ms} ms"))
    }

    /// I50. The services looked, and these commands are new or wait to be proposed: the end of a mass loss of which most nodes are heard again is
    /// asked for in time.
    pub(crate) fn looked_at_loss<'a>(
        &mut self,
        seen: &Seen<'_>,
        mut commands: impl Iterator<Item = &'a Command>,
    ) -> Option<String> {
        let Seen { now, state, truth } = *seen;
        let is_asked = commands.any(|one| {
            matches!(one, Command::Node(NodeCommand::EndMassLoss(EndMassLoss { by: None })))
        });
        let over = invariants::loss_that_is_over(state).map(|loss| loss.create_index);
        // It may have ended in an entry that the services have not seen yet.
        let lasts = |began: &Index| {
            let loss = truth.mass_losses().get(&());
            loss.is_some_and(|loss| loss.create_index == *began && loss.end.is_none())
        };
        let Some(began) = over.filter(|began| !is_asked && lasts(began)) else {
            self.loss_over = None;
            return None;
        };
        let known = self.loss_over.filter(|(other, _)| *other == began);
        let (_, since) = *self.loss_over.insert(known.unwrap_or((began, now)));
        let waits_ms = now - since;
        (waits_ms >= LOSS_ENDED_MS).then(|| {
            format!("I50: the mass loss that began at {began} is over, and nobody ends it for {waits_ms} ms")
        })
    }
}

/// I23: who gives up on an evaluation because of its deliveries has delivered it that often, and tries again later.
pub(crate) fn gave_up(
    state: &State,
    command: &Command,
    deliveries: &BTreeMap<EvaluationId, u32>,
) -> Option<String> {
    let Command::Evaluation(EvaluationCommand::UpdateEvaluations(UpdateEvaluations { updates })) =
        command
    else {
        return None;
    };
    for update in updates.iter().filter(|update| update.status == EvaluationStatus::Failed) {
        let id = update.id;
        let count = deliveries.get(&id).copied().unwrap_or(0);
        if count < DELIVERIES_MAX {
            return Some(format!("I23: {id} failed after {count} deliveries"));
        }
        let row = state.evaluations().get(&id);
        let wanted = row.is_some_and(|row| state.jobs().contains(&row.job));
        if wanted && update.follow_up.is_none() {
            return Some(format!("I18: {id} failed, and nobody tries again"));
        }
    }
    None
}

fn is_expected(liveness: Liveness) -> bool {
    match liveness {
        Liveness::Initializing | Liveness::Ready => true,
        Liveness::Disconnected | Liveness::Down => false,
    }
}

#[cfg(test)]
mod tests {
    use fsm::{
        JobKind,
        node::{CapacityGain, GainKey, MassLoss, MassLossEnd},
        testing::{self, Driver},
    };

    use super::*;

    /// Two wait for room of a node; a worker saw that the one that was woken has ended, and gave it back before the services see it.
    #[test]
    fn room_is_not_missed_before_the_services_see_who_had_it_end() {
        let mut driver = Driver::default();
        let node = driver.node("n1");
        let mut blocked = |name: &str| {
            let (id, key) = (driver.evaluation_id(), testing::job_key(name));
            let mut row = Evaluation::new(id, key, JobKind::Service, 50, Trigger::QueuedAllocs);
            (row.status, row.snapshot_index) = (EvaluationStatus::Blocked, 5);
            testing::put(&mut driver.state, &row);
            row
        };
        let (woken, _) = (blocked("one"), blocked("two"));
        let mut state = driver.state;
        let gain = CapacityGain { key: GainKey::Node(node), index: 6 };
        testing::put(&mut state, &gain);
        let mut row = (**state.nodes().get(&node).expect("it is there")).clone();
        row.liveness = Liveness::Ready;
        testing::put(&mut state, &row);
        let ended = testing::without::<Evaluation>(&state, &woken.id);
        let dispatch = Dispatch::new(leader::broker::BrokerConfig::default());
        for (truth, is_found) in [(&ended, false), (&state, true)] {
            let mut promises = Promises::default();
            let mut look =
                |now| promises.looked_at_sleepers(&Seen { now, state: &state, truth }, &dispatch);
            assert_eq!(look(0), None);
            assert_eq!(look(WOKEN_MS).is_some(), is_found);
        }
    }

    #[test]
    fn an_evaluation_that_missed_room_does_not_sleep_on() {
        let state = |snapshot_index, gain| {
            let mut driver = Driver::default();
            let (id, node) = (driver.evaluation_id(), driver.node("n1"));
            let key = testing::job_key("shipper");
            let mut row = Evaluation::new(id, key, JobKind::System, 50, Trigger::QueuedAllocs);
            row.status = EvaluationStatus::Blocked;
            (row.node, row.snapshot_index) = (Some(node), snapshot_index);
            let mut state = driver.state;
            fsm::testing::put(&mut state, &row);
            let gain = CapacityGain { key: GainKey::Node(node), index: gain };
            fsm::testing::put(&mut state, &gain);
            state
        };
        let dispatch = Dispatch::new(leader::broker::BrokerConfig::default());
        let mut promises = Promises::default();
        let mut look = |now, state: &State, truth: &State| {
            promises.looked_at_sleepers(&Seen { now, state, truth }, &dispatch)
        };
        let missed = state(5, 6);
        assert_eq!(look(0, &missed, &missed), None);
        assert_eq!(look(WOKEN_MS - 1, &missed, &missed), None);
        let found = look(WOKEN_MS, &missed, &missed);
        assert!(found.is_some_and(|found| found.contains("sleeps on for 5000 ms")));
        assert_eq!(look(WOKEN_MS, &missed, &State::default()), None, "it is done in the log");
        assert_eq!(look(4 * WOKEN_MS, &state(6, 6), &state(6, 6)), None, "it saw what there was");
        let there = state(6, 6);
        let gone = testing::without::<fsm::Node>(&there, &testing::node_id("n1"));
        assert_eq!(look(5 * WOKEN_MS, &gone, &gone), None);
        assert!(look(6 * WOKEN_MS, &gone, &gone).is_some(), "the node is gone");
        assert_eq!(look(8 * WOKEN_MS, &state(6, 6), &state(6, 6)), None);
        // A new leader has as much time.
        assert_eq!(look(9 * WOKEN_MS, &missed, &missed), None);
        promises.restored(14 * WOKEN_MS, &missed);
        let seen = Seen { now: 14 * WOKEN_MS, state: &missed, truth: &missed };
        assert_eq!(promises.looked_at_sleepers(&seen, &dispatch), None);
    }

    #[test]
    fn the_end_of_a_mass_loss_that_is_over_is_asked_for_in_time() {
        let mut driver = Driver::default();
        let nodes: Vec<_> = ["n1", "n2", "n3"].map(|name| driver.node(name)).into();
        let loss = |end| MassLoss {
            since: 1,
            nodes: nodes.clone(),
            end,
            create_index: 7,
            modify_index: 7,
        };
        let with = |state: &State, end| {
            let mut state = state.clone();
            testing::put(&mut state, &loss(end));
            state
        };
        let over = with(&driver.state, None);
        let ended = with(&driver.state, Some(MassLossEnd { at: 2, by: "".into() }));
        driver.liveness("n1", Liveness::Down);
        let one_down = with(&driver.state, None);
        driver.liveness("n2", Liveness::Down);
        let two_down = with(&driver.state, None);
        let asks = [Command::from(EndMassLoss { by: None })];
        let mut promises = Promises::default();
        let mut look = |now, state: &State, truth: &State, commands: &[Command]| {
            promises.looked_at_loss(&Seen { now, state, truth }, commands.iter())
        };
        assert_eq!(look(0, &two_down, &two_down, &[]), None);
        assert_eq!(look(LOSS_ENDED_MS, &two_down, &two_down, &[]), None, "most are down");
        assert_eq!(look(LOSS_ENDED_MS, &over, &over, &[]), None);
        assert_eq!(look(2 * LOSS_ENDED_MS - 1, &one_down, &one_down, &[]), None);
        let late = look(2 * LOSS_ENDED_MS, &over, &over, &[]);
        assert!(late.is_some_and(|late| late.contains("nobody ends it for 31000 ms")));
        assert_eq!(look(2 * LOSS_ENDED_MS, &over, &over, &asks), None);
        assert_eq!(look(3 * LOSS_ENDED_MS, &over, &over, &[]), None, "it was asked for since");
        assert_eq!(look(4 * LOSS_ENDED_MS, &over, &ended, &[]), None, "it has ended in the log");
        assert_eq!(look(5 * LOSS_ENDED_MS, &over, &over, &[]), None);
        promises.restored(6 * LOSS_ENDED_MS, &over);
        let seen = Seen { now: 6 * LOSS_ENDED_MS, state: &over, truth: &over };
        assert_eq!(promises.looked_at_loss(&seen, [].iter()), None, "a new leader has its time");
    }
}
