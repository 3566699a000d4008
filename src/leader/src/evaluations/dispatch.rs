//! Evaluations of one leadership: the broker and the tracker of blocked ones, kept in step with the
//! state.
//!
//! It owns both and the rule which of them holds an evaluation. It never looks at nodes or plans.
//! It proposes the commands of [`reap`] only.
//!
//! Invariant: after every effect is taken in, each open evaluation of the state is in the broker or
//! tracked as blocked.

use std::sync::Arc;

use fsm::{
    Command, Effect, Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, JobKind, NodeId,
    State,
    plant::{Plant, is_planted},
};

use crate::{
    BlockedEvals, EvalBroker,
    blocked::BlockedStats,
    broker::{Acked, BrokerConfig, BrokerError, NackReason, Stats, Token},
    limits,
    machine::{Ids, Machine, Report, Stepped},
    reap,
};

/// A lease with what the worker needs.
#[derive(Clone, Debug)]
pub struct Lease {
    pub evaluation: Arc<Evaluation>,
    pub token: Token,
    /// The worker's state must have reached this index before it plans.
    pub wait_index: Index,
}

/// Broker and blocked evaluations of one leadership.
#[derive(Debug)]
pub struct Dispatch {
    broker: EvalBroker,
    blocked: BlockedEvals,
    /// Of the broker's cancelable ones.
    superseded: Offer,
    /// Of the duplicates of blocked ones.
    duplicates: Offer,
}

impl Dispatch {
    /// Disabled machines.
    pub fn new(config: BrokerConfig) -> Self {
        Self {
            broker: EvalBroker::new(config),
            blocked: BlockedEvals::default(),
            superseded: Offer::default(),
            duplicates: Offer::default(),
        }
    }

    /// An evaluation was created, changed or forgotten.
    fn evaluation_changed(&mut self, now: u64, state: &State, id: EvaluationId) {
        let Some(row) = state.evaluations().get(&id) else {
            self.broker.remove(now, id);
            self.blocked.removed(id);
            return;
        };
        self.broker.applied(now, row);
        if !self.broker.contains(id) {
            self.blocked.returned(state, id);
        }
        match row.status {
            // A woken one is in the broker until its outcome is applied.
            EvaluationStatus::Blocked if !self.broker.contains(id) => {
                self.blocked.block(now, state, row);
                // The node was there when the plan was made; no later effect will tell of it.
                if let Some(node) = row.node.filter(|node| !state.nodes().contains(node)) {
                    self.blocked.node_gone(node, row.modify_index);
                }
            }
            EvaluationStatus::Blocked | EvaluationStatus::Pending => {}
            EvaluationStatus::Complete | EvaluationStatus::Failed | EvaluationStatus::Canceled => {
                self.blocked.removed(id);
            }
        }
    }

    /// A node gained room or became schedulable.
    fn capacity_gained(&mut self, node: NodeId, index: Index) {
        if !is_planted(Plant::NothingWakes) {
            self.blocked.gained(node, index);
        }
    }

    /// A job row changed or went.
    fn job_changed(&mut self, state: &State, job: &JobKey, index: Index) {
        let last = state.jobs().get(job).map_or(index, |row| row.last_plan_index);
        self.broker.note_job_index(job, last);
        self.blocked.job_changed(state, job);
    }

    /// A server does not answer: the evaluations that it leased are delivered again, and that does
    /// not count.
    pub fn server_lost(&mut self, now: u64, server: u64) {
        self.broker.server_lost(now, server);
    }

    fn cancel_superseded(&mut self, now: u64, state: &State) -> Option<Command> {
        if !self.superseded.is_over(now, |id| self.broker.contains(id)) {
            return None;
        }
        let mut ids = self.broker.cancelable(limits::REAP_BATCH_MAX);
        ids.retain(|id| {
            let open = is_open(state, *id);
            // Terminal or gone, and the effect that said so was missed: nothing to cancel.
            if !open {
                self.broker.remove(now, *id);
                self.blocked.returned(state, *id);
            }
            open
        });
        self.superseded = Offer { ids, at: now };
        reap::canceled(state, &self.superseded.ids)
    }

    fn cancel_duplicates(&mut self, now: u64, state: &State) -> Option<Command> {
        if !self.duplicates.is_over(now, |id| self.blocked.contains(id)) {
            return None;
        }
        let mut ids = self.blocked.duplicates(limits::REAP_BATCH_MAX);
        ids.retain(|id| is_open(state, *id));
        self.duplicates = Offer { ids, at: now };
        reap::duplicates(state, &self.duplicates.ids)
    }

    /// Leases up to `max` evaluations; `token` makes a fresh token at each call.
    pub fn dequeue(
        &mut self,
        now: u64,
        state: &State,
        kinds: &[JobKind],
        max: usize,
        server: u64,
        token: impl FnMut() -> Token,
    ) -> Result<Vec<Lease>, BrokerError> {
        let deliveries = self.broker.dequeue(now, kinds, max, server, token)?;
        let mut leases = Vec::with_capacity(deliveries.len());
        for delivery in deliveries {
            let Some(evaluation) = state.evaluations().get(&delivery.evaluation) else {
                self.broker.remove(now, delivery.evaluation);
                self.blocked.returned(state, delivery.evaluation);
                continue;
            };
            let last_plan = state.jobs().get(&evaluation.job).map_or(0, |job| job.last_plan_index);
            leases.push(Lease {
                evaluation: Arc::clone(evaluation),
                token: delivery.token,
                wait_index: delivery.wait_index.max(last_plan).max(evaluation.modify_index),
            });
        }
        Ok(leases)
    }

    /// Ends a lease.
    pub fn ack(&mut self, now: u64, id: EvaluationId, token: Token) -> Result<Acked, BrokerError> {
        self.broker.ack(now, id, token)
    }

    /// Gives a lease back.
    pub fn nack(
        &mut self,
        now: u64,
        id: EvaluationId,
        token: Token,
        why: NackReason,
    ) -> Result<(), BrokerError> {
        self.broker.nack(now, id, token, why)
    }

    /// A plan of this lease is queued: the lease does not run out meanwhile.
    pub fn plan_queued(&mut self, id: EvaluationId, token: Token) -> Result<(), BrokerError> {
        if is_planted(Plant::NackTimerNotPaused) {
            return Ok(());
        }
        self.broker.pause_nack(id, token)
    }

    /// The plan was answered, or its worker does not wait any more: the nack timer of the lease
    /// starts again. The lease may have ended with the plan's outcome.
    pub fn plan_answered(&mut self, now: u64, id: EvaluationId, token: Token) {
        self.broker.resume_nack(now, id, token).ok();
    }

    /// The token of the lease on an evaluation.
    pub fn outstanding(&self, id: EvaluationId) -> Option<Token> {
        self.broker.outstanding(id)
    }

    /// Whether so many evaluations wait that new work is refused.
    pub fn is_full(&self) -> bool {
        self.broker.is_full()
    }

    /// Counts of the broker's evaluations.
    pub fn stats(&self) -> Stats {
        self.broker.stats()
    }

    /// Counts of blocked evaluations.
    pub fn blocked_stats(&self) -> BlockedStats {
        self.blocked.stats()
    }

    /// Whether an evaluation is in the broker.
    pub fn holds(&self, id: EvaluationId) -> bool {
        self.broker.contains(id)
    }

    /// Whether an evaluation is tracked as blocked, or as a duplicate of one.
    pub fn tracks(&self, id: EvaluationId) -> bool {
        self.blocked.contains(id)
    }
}

impl Machine for Dispatch {
    /// Leases stay when effects were missed.
    fn restore(&mut self, now: u64, state: &State) {
        self.broker.enable();
        self.broker.set_paused(state.scheduler_configuration().pause_eval_broker);
        self.broker.catch_up(now, state);
        if !is_planted(Plant::BrokerNotRestored) {
            self.broker.restore(now, state);
        }
        self.blocked.disable();
        self.blocked.enable();
        self.blocked.restore(now, state, |id| self.broker.contains(id));
    }

    fn take(&mut self, now: u64, state: &State, index: Index, effect: &Effect) {
        match effect {
            Effect::Evaluation(id) => self.evaluation_changed(now, state, *id),
            Effect::Capacity { node, .. } => self.capacity_gained(*node, index),
            Effect::Node(id) if !state.nodes().contains(id) => self.blocked.node_gone(*id, index),
            Effect::Job(key) => self.job_changed(state, key, index),
            Effect::SchedulerConfiguration => {
                self.broker.set_paused(state.scheduler_configuration().pause_eval_broker);
                self.blocked.configuration_changed(state);
            }
            Effect::Node(_)
            | Effect::NodeChange { .. }
            | Effect::MassLoss
            | Effect::Deployment(_)
            | Effect::Instance(_)
            | Effect::InstancePool(_)
            | Effect::NodeAllocations(_)
            | Effect::NodeReport(_)
            | Effect::CapacityGroup(_)
            | Effect::CapacitySource(_)
            | Effect::CapacityExpired { .. }
            | Effect::DigestMark => {}
        }
    }

    /// Woken evaluations go to the broker, leases run out, the reapers look.
    fn step(&mut self, now: u64, state: &State, ids: &mut Ids<'_>, stepped: &mut Stepped) {
        for wake in self.blocked.poll(now, state) {
            if let Some(row) = state.evaluations().get(&wake.evaluation) {
                self.broker.enqueue(now, row);
                self.broker.note_job_index(&row.job, wake.index);
            }
            if !self.broker.contains(wake.evaluation) {
                self.blocked.returned(state, wake.evaluation);
            }
        }
        let expired = self.broker.poll(now).into_iter();
        stepped.reports.extend(expired.map(Report::LeaseExpired));
        let failed = self.broker.dequeue_failed(now, limits::REAP_BATCH_MAX, 0, &mut *ids);
        let failed = failed.unwrap_or_default();
        let commands = &mut stepped.commands;
        commands.extend(reap::failed(now, state, &failed, || EvaluationId(ids())));
        commands.extend(self.cancel_superseded(now, state));
        commands.extend(self.cancel_duplicates(now, state));
        stepped.has_ready |= self.broker.has_ready(&JobKind::ALL);
    }

    fn next_deadline(&self) -> Option<u64> {
        let next = [
            self.broker.next_deadline(),
            self.blocked.next_deadline(),
            self.superseded.next_deadline(),
            self.duplicates.next_deadline(),
        ];
        next.into_iter().flatten().min()
    }

    fn stop(&mut self) {
        self.broker.disable();
        self.blocked.disable();
        self.superseded = Offer::default();
        self.duplicates = Offer::default();
    }

    fn gauges(&self, now: u64, put: &mut dyn FnMut(&str, u64)) {
        let Stats { total, by_kind } = self.broker.stats();
        let mut oldest_ms = 0;
        for kind in JobKind::ALL {
            let count = by_kind.get(&kind).copied().unwrap_or_default();
            put(&format!("broker.{}.ready", kind.name()), count.ready as u64);
            put(&format!("broker.{}.unacked", kind.name()), count.unacked as u64);
            put(&format!("broker.{}.waiting", kind.name()), count.waiting as u64);
            put(&format!("broker.{}.pending", kind.name()), count.pending as u64);
            let age_ms = self.broker.oldest_ready_age_ms(now, kind);
            put(&format!("broker.{}.oldest_ready_ms", kind.name()), age_ms);
            oldest_ms = oldest_ms.max(age_ms);
        }
        put("broker.total_ready", total.ready as u64);
        put("broker.total_unacked", total.unacked as u64);
        put("broker.total_pending", total.pending as u64);
        put("broker.total_waiting", total.waiting as u64);
        put("broker.total_cancelable", total.cancelable as u64);
        put("broker.oldest_ready_ms", oldest_ms);
        let blocked = self.blocked.stats();
        put("blocked_evals.total_blocked", blocked.blocked as u64);
        put("blocked_evals.total_escaped", blocked.escaped as u64);
    }
}

/// What one entry is to cancel. While that entry may be under way nothing is offered again: a step
/// comes with every change, and each offer would take a place in the queue of commands.
#[derive(Debug, Default)]
struct Offer {
    ids: Vec<EvaluationId>,
    at: u64,
}

impl Offer {
    /// The entry was applied, or may be lost by now.
    fn is_over(&self, now: u64, is_left: impl Fn(EvaluationId) -> bool) -> bool {
        self.next_deadline().is_none_or(|at| at <= now) || !self.ids.iter().any(|id| is_left(*id))
    }

    /// When to offer again what is left then.
    fn next_deadline(&self) -> Option<u64> {
        (!self.ids.is_empty()).then(|| self.at.saturating_add(limits::CANCEL_RETRY_MS))
    }
}

fn is_open(state: &State, id: EvaluationId) -> bool {
    state.evaluations().get(&id).is_some_and(|row| !row.status.is_terminal())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use fsm::{
        Trigger,
        evaluation::UpdateEvaluations,
        node::{CapacityGain, GainKey},
    };

    use super::*;
    use crate::testing::{
        allocation, evaluation, job_key, job_that_asks, name_of, named, node, put_allocation,
    };
    use fsm::command::EvaluationCommand;

    const NOW: u64 = 1_000_000;
    const AGAIN: u64 = NOW + limits::CANCEL_RETRY_MS;

    /// A leader's machines and the state that they follow.
    struct World {
        state: State,
        dispatch: Dispatch,
    }

    impl World {
        fn new() -> Self {
            let state = State::default();
            let mut dispatch = Dispatch::new(BrokerConfig::default());
            dispatch.restore(NOW, &state);
            Self { state, dispatch }
        }

        /// A node that takes work.
        fn there(&mut self) -> NodeId {
            let row = node("there");
            fsm::testing::put(&mut self.state, &row);
            row.id
        }

        fn put(&mut self, row: Evaluation) {
            let id = row.id;
            fsm::testing::put(&mut self.state, &row);
            self.dispatch.evaluation_changed(NOW, &self.state, id);
        }

        fn put_pending(&mut self, names: &[&str]) {
            for (name, index) in names.iter().zip(1..) {
                self.put(evaluation(name, "web", index));
            }
        }

        fn put_blocked(&mut self, names: &[&str]) {
            for (name, index) in names.iter().zip(1..) {
                let mut row = evaluation(name, "web", index);
                row.status = EvaluationStatus::Blocked;
                row.trigger = Trigger::QueuedAllocs;
                self.put(row);
            }
        }

        /// The job's ready evaluation is processed: of those behind it the newest is ready now, and
        /// the others are superseded.
        fn process_one(&mut self) {
            let token = || [1; 16];
            let leases = self.dispatch.dequeue(NOW, &self.state, &JobKind::ALL, 1, 1, token);
            let id = leases.expect("the broker is enabled")[0].evaluation.id;
            self.dispatch.ack(NOW, id, [1; 16]).expect("the lease is out");
        }

        /// The entry that cancels them is applied.
        fn cancel(&mut self, names: &[&str]) {
            for name in names {
                let id = EvaluationId(named(name));
                let mut row = (**self.state.evaluations().get(&id).expect("it is there")).clone();
                row.status = EvaluationStatus::Canceled;
                self.put(row);
            }
        }

        /// Names of what a step offers to be canceled.
        fn offered(&mut self, now: u64) -> Vec<String> {
            let mut stepped = Stepped::default();
            self.dispatch.step(now, &self.state, &mut || [9; 16], &mut stepped);
            let mut names = Vec::new();
            for command in stepped.commands {
                let Command::Evaluation(EvaluationCommand::UpdateEvaluations(UpdateEvaluations {
                    updates,
                })) = command
                else {
                    panic!("unexpected {command:?}")
                };
                names.extend(updates.iter().map(|update| name_of(update.id.0)));
            }
            names
        }
    }

    /// What waits, and how long the oldest has been ready, is told by kind of job.
    #[test]
    fn waiting_evaluations_are_counted_by_kind() {
        let mut world = World::new();
        let mut batch = evaluation("a", "nightly", 1);
        batch.kind = JobKind::Batch;
        world.put(batch);
        let mut later = evaluation("b", "web", 2);
        later.wait_until = NOW + 30;
        world.put(later);
        world.put(evaluation("c", "api", 3));
        world.put(evaluation("d", "api", 4));
        let mut shown = BTreeMap::new();
        let mut look = |world: &World, at: u64| {
            world.dispatch.gauges(at, &mut |name, value| {
                shown.insert(name.to_owned(), value);
            });
            shown.clone()
        };
        let at_first = look(&world, NOW + 20);
        let expected = [
            ("batch.ready", 1),
            ("batch.oldest_ready_ms", 20),
            ("service.ready", 1),
            ("service.pending", 1),
            ("service.waiting", 1),
            ("service.oldest_ready_ms", 20),
            ("system.oldest_ready_ms", 0),
            ("oldest_ready_ms", 20),
        ];
        for (name, value) in expected {
            assert_eq!(at_first[&format!("broker.{name}")], value, "{name}");
        }
        let leased =
            world.dispatch.dequeue(NOW + 20, &world.state, &[JobKind::Batch], 1, 1, || [1; 16]);
        assert_eq!(leased.map(|leases| leases.len()), Ok(1));
        world.dispatch.step(NOW + 40, &world.state, &mut || [9; 16], &mut Stepped::default());
        let at_last = look(&world, NOW + 50);
        assert_eq!(at_last["broker.batch.oldest_ready_ms"], 0);
        assert_eq!(at_last["broker.batch.unacked"], 1);
        assert_eq!(at_last["broker.service.ready"], 2, "its time has come");
        assert_eq!(at_last["broker.service.oldest_ready_ms"], 50);
    }

    #[test]
    fn an_evaluation_whose_blocked_outcome_was_missed_waits_for_room_again() {
        let mut world = World::new();
        let node = world.there();
        let mut row = evaluation("a", "web", 1);
        (row.status, row.trigger) = (EvaluationStatus::Blocked, Trigger::QueuedAllocs);
        row.snapshot_index = 5;
        world.put(row.clone());
        world.dispatch.capacity_gained(node, 6);
        assert!(world.offered(NOW).is_empty());
        let leases = world.dispatch.dequeue(NOW, &world.state, &JobKind::ALL, 1, 1, || [1; 16]);
        assert_eq!(leases.expect("the broker is enabled").len(), 1, "it was woken");

        // It is blocked again, room is gained, and the leader hears of neither.
        let id = row.id;
        row.snapshot_index = 7;
        fsm::testing::put(&mut world.state, &row);
        let gain = CapacityGain { key: GainKey::Node(node), index: 8 };
        fsm::testing::put(&mut world.state, &gain);
        world.dispatch.restore(NOW, &world.state);
        assert!(world.offered(NOW).is_empty());
        world.dispatch.ack(NOW, id, [1; 16]).expect_err("its lease ended with its outcome");
        assert!(world.dispatch.holds(id), "it was woken again");
    }

    /// The next evaluation of a job must be an open one: a terminal one would supersede the others
    /// and then do nothing.
    #[test]
    fn the_next_evaluation_of_a_job_is_chosen_among_those_left_when_effects_were_missed() {
        let mut world = World::new();
        world.put_pending(&["a", "b", "c"]);
        for name in ["a", "c"] {
            let id = EvaluationId(named(name));
            let mut row = (**world.state.evaluations().get(&id).expect("it is there")).clone();
            row.status = EvaluationStatus::Complete;
            fsm::testing::put(&mut world.state, &row);
        }
        world.dispatch.restore(NOW, &world.state);
        assert!(world.offered(NOW).is_empty(), "it is to be processed, not canceled");
        let leases = world.dispatch.dequeue(NOW, &world.state, &JobKind::ALL, 9, 1, || [1; 16]);
        let leases = leases.expect("the broker is enabled");
        let names: Vec<_> = leases.iter().map(|lease| name_of(lease.evaluation.id.0)).collect();
        assert_eq!(names, ["b"]);
    }

    #[test]
    fn a_woken_evaluation_is_not_tracked_again_when_effects_were_missed() {
        let mut world = World::new();
        world.put_blocked(&["a"]);
        let node = world.there();
        world.dispatch.capacity_gained(node, 6);
        assert!(world.offered(NOW).is_empty());
        world.dispatch.restore(NOW, &world.state);
        let id = EvaluationId(named("a"));
        assert!(world.dispatch.holds(id) && !world.dispatch.tracks(id));
    }

    /// The plan that found no room there was made before, and came after what told of it.
    #[test]
    fn an_evaluation_blocked_for_a_node_that_is_gone_is_woken() {
        let mut world = World::new();
        fsm::testing::put(&mut world.state, &node("there"));
        for (name, job, of) in [("a", "web", "gone"), ("b", "db", "there")] {
            let mut row = evaluation(name, job, 12);
            (row.status, row.kind) = (EvaluationStatus::Blocked, JobKind::System);
            (row.node, row.snapshot_index) = (Some(NodeId(named(of))), 10);
            world.put(row);
        }
        assert!(world.offered(NOW).is_empty());
        let [woken, waiting] = ["a", "b"].map(|name| EvaluationId(named(name)));
        assert!(world.dispatch.holds(woken) && !world.dispatch.tracks(woken));
        assert!(world.dispatch.tracks(waiting) && !world.dispatch.holds(waiting));
    }

    /// Jobs `a` and `b` wait for 60 MiB each on a node of 100 that was gained, and `a` is woken.
    fn with_one_out_for_room() -> World {
        let mut world = World::new();
        let mut row = node("there");
        Arc::make_mut(&mut row.description).resources.total.disk_mb = 100;
        fsm::testing::put(&mut world.state, &row);
        for (name, index) in [("a", 1), ("b", 2)] {
            world.put_waiting(name, index, 60);
        }
        world.dispatch.capacity_gained(row.id, 6);
        world
    }

    impl World {
        /// The blocked evaluation of a job of its name, an instance of which takes so much disk.
        fn put_waiting(&mut self, name: &str, index: Index, disk_mb: u64) {
            job_that_asks(&mut self.state, name, disk_mb, |_| {});
            let mut row = evaluation(name, name, index);
            row.status = EvaluationStatus::Blocked;
            (row.job_modify_index, row.queued) = (1, [("group".into(), 1)].into());
            self.put(row);
        }

        /// An evaluation is gone, and nobody is told.
        fn forget(&mut self, name: &str) -> EvaluationId {
            let id = EvaluationId(named(name));
            self.state = fsm::testing::without::<Evaluation>(&self.state, &id);
            id
        }

        fn steps(&mut self) {
            for _ in 0..2 {
                self.offered(NOW);
            }
        }

        fn is_woken(&self, name: &str) -> bool {
            self.dispatch.holds(EvaluationId(named(name)))
        }
    }

    /// However the evaluation ends that was woken for room, the next one is woken for it.
    #[test]
    fn room_is_passed_on_however_an_evaluation_ends() {
        type End = fn(&mut World);
        let ends: [(&str, End); 4] = [
            ("it is complete", |world| {
                world.steps();
                let mut row = evaluation("a", "a", 1);
                row.status = EvaluationStatus::Complete;
                world.put(row);
            }),
            ("it is forgotten", |world| {
                world.steps();
                let id = world.forget("a");
                world.dispatch.evaluation_changed(NOW, &world.state, id);
            }),
            ("it is gone when it is woken", |world| {
                world.forget("a");
            }),
            ("it is gone when it is leased", |world| {
                world.steps();
                world.forget("a");
                let leases =
                    world.dispatch.dequeue(NOW, &world.state, &JobKind::ALL, 1, 1, || [1; 16]);
                assert_eq!(leases.map(|leases| leases.len()), Ok(0));
            }),
        ];
        for (how, end) in ends {
            let mut world = with_one_out_for_room();
            end(&mut world);
            world.steps();
            assert!(world.is_woken("b"), "{how}");
        }
        let mut world = with_one_out_for_room();
        world.steps();
        assert!(world.is_woken("a") && !world.is_woken("b"), "it may take the room");
    }

    /// One that is blocked again has refused the room: it goes to one more than it was for.
    #[test]
    fn refused_room_is_offered_to_one_more() {
        let mut world = with_one_out_for_room();
        world.put_waiting("c", 3, 60);
        world.steps();
        assert!(world.is_woken("a"));
        let leases = world.dispatch.dequeue(NOW, &world.state, &JobKind::ALL, 1, 1, || [1; 16]);
        assert_eq!(leases.map(|leases| leases.len()), Ok(1));
        let id = EvaluationId(named("a"));
        let mut row = (**world.state.evaluations().get(&id).expect("it is there")).clone();
        (row.snapshot_index, row.modify_index) = (7, 8);
        world.put(row);
        world.steps();
        assert!(world.is_woken("b") && world.is_woken("c") && !world.is_woken("a"));
    }

    /// One that others of its job have superseded gives its room back, also when it is gone before
    /// it is canceled.
    #[test]
    fn room_is_passed_on_by_what_is_superseded() {
        let mut world = with_one_out_for_room();
        world.put(evaluation("c", "a", 3));
        world.steps();
        assert!(world.is_woken("a"), "it waits behind the other of its job");
        world.put(evaluation("d", "a", 4));
        world.process_one();
        world.forget("a");
        world.steps();
        assert!(world.is_woken("b"));
    }

    /// What no effect of the evaluation itself tells: its job asks for less or may evict others,
    /// its node is gone.
    #[test]
    fn changes_around_an_evaluation_wake_it() {
        let mut world = with_one_out_for_room();
        world.put_waiting("big", 3, 200);
        world.put_waiting("bigger", 4, 300);
        let mut row = evaluation("of-node", "system", 5);
        (row.status, row.kind) = (EvaluationStatus::Blocked, JobKind::System);
        row.node = Some(NodeId(named("other")));
        fsm::testing::put(&mut world.state, &node("other"));
        world.put(row);
        world.steps();
        for name in ["big", "bigger", "of-node"] {
            assert!(!world.is_woken(name), "{name}");
        }
        job_that_asks(&mut world.state, "big", 30, |_| {});
        world.dispatch.take(NOW, &world.state, 7, &Effect::Job(job_key("big")));
        world.state = fsm::testing::without::<fsm::Node>(&world.state, &NodeId(named("other")));
        world.dispatch.take(NOW, &world.state, 8, &Effect::Node(NodeId(named("other"))));
        world.steps();
        assert!(world.is_woken("big") && world.is_woken("of-node"));

        job_that_asks(&mut world.state, "low", 10, |spec| spec.priority = 20);
        let mut row = allocation("x", "low", "there");
        row.resources.disk_mb = 300;
        put_allocation(&mut world.state, row);
        let mut configuration = world.state.scheduler_configuration();
        configuration.preemption.service = true;
        fsm::testing::put(&mut world.state, &configuration);
        world.dispatch.take(NOW, &world.state, 9, &Effect::SchedulerConfiguration);
        world.steps();
        assert!(world.is_woken("bigger"));
    }

    /// A copy with every step would fill the queue of the services, and crowd out that a node is
    /// down.
    #[test]
    fn a_superseded_evaluation_is_offered_again_only_after_a_while() {
        let mut world = World::new();
        world.put_pending(&["a", "b", "c", "d"]);
        world.process_one();
        assert_eq!(world.offered(NOW), ["b", "c"]);
        assert!(world.offered(NOW).is_empty(), "it is under way");
        assert_eq!(world.dispatch.next_deadline(), Some(AGAIN));
        assert!(world.offered(AGAIN - 1).is_empty(), "it is under way");
        assert_eq!(world.offered(AGAIN), ["b", "c"], "it may be lost");
    }

    #[test]
    fn the_next_superseded_evaluations_are_offered_once_the_last_ones_are_canceled() {
        let mut world = World::new();
        world.put_pending(&["a", "b", "c"]);
        world.process_one();
        assert_eq!(world.offered(NOW), ["b"]);
        world.put_pending(&["d", "e"]);
        world.process_one();
        assert!(world.offered(NOW).is_empty(), "one entry at a time");
        world.cancel(&["b"]);
        assert_eq!(world.offered(NOW), ["d"]);
        world.cancel(&["d"]);
        assert!(world.offered(NOW).is_empty());
        assert_eq!(world.dispatch.next_deadline(), None);
    }

    #[test]
    fn duplicates_are_offered_again_only_after_a_while() {
        let mut world = World::new();
        world.put_blocked(&["a", "b", "c"]);
        assert_eq!(world.offered(NOW), ["a", "b"]);
        assert!(world.offered(AGAIN - 1).is_empty(), "it is under way");
        assert_eq!(world.offered(AGAIN), ["a", "b"], "it may be lost");
        world.cancel(&["a", "b"]);
        assert!(world.offered(AGAIN).is_empty());
        assert_eq!(world.dispatch.next_deadline(), None);
    }
}
