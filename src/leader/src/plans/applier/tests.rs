//! The applier: what it proposes, when it stops, and that every plan is answered once.

use fsm::{
    EvaluationStatus, JobKind, Reply,
    command::PlanCommand,
    plan::ApplyPlans,
    testing::{Driver, GROUP, job, outcome},
};

use super::*;

const TOKEN: Token = [1; 16];

/// An applier over a driver's state; every lease is outstanding with [`TOKEN`].
struct Bench {
    driver: Driver,
    applier: PlanApplier<u32>,
    node: fsm::NodeId,
}

impl Bench {
    /// A cluster with one node, which has room for eight.
    fn new() -> Self {
        let mut driver = Driver::default();
        let node = driver.node("a");
        Self { driver, applier: PlanApplier::new(PlanQueueLimits::default()), node }
    }

    /// A plan of a new job of `count` instances.
    fn plan(&mut self, name: &str, count: u32) -> Plan {
        let evaluation = self.driver.register_job(job(name, JobKind::Service, count));
        let mut plan = self.driver.plan(evaluation);
        for name_index in 0..count {
            plan = plan.with(self.driver.placement(GROUP, name_index, self.node));
        }
        plan.outcome = Some(outcome(EvaluationStatus::Complete));
        plan
    }

    fn submit(&mut self, reply: u32, plan: Plan) {
        self.applier.submit(0, Request { plan, bytes: 100, token: TOKEN, reply });
    }

    /// With `ahead` entries in the log that are not applied.
    fn next(&mut self, ahead: u64) -> Next {
        let last = self.driver.state.index() + ahead;
        self.applier.next(&self.driver.state, last, |_| Some(TOKEN))
    }

    fn propose(&mut self) -> Command {
        let next = self.next(0);
        let Next::Propose(command) = next else { panic!("nothing to propose: {next:?}") };
        command
    }

    fn commit(&mut self, command: Command) -> EntryOutcome {
        let index = self.driver.state.index() + 1;
        let reply = self.driver.accept(command);
        let Reply::Plans(verdicts) = reply else { panic!("unexpected reply {reply:?}") };
        EntryOutcome::Applied { index, verdicts }
    }

    fn answers(&mut self) -> Vec<(u32, PlanAnswer)> {
        self.applier.answers(self.driver.state.index())
    }
}

/// Two plans for the last room: both are tried before either is applied, and the loser hears of it
/// when the winner is in.
#[test]
fn plans_are_tried_on_top_of_each_other() {
    let mut bench = Bench::new();
    let (first, second) = (bench.plan("first", 8), bench.plan("second", 1));
    bench.submit(1, first);
    bench.submit(2, second);
    let command = bench.propose();
    let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = &command else {
        panic!("unexpected {command:?}")
    };
    assert_eq!(plans.len(), 1, "the second plan has nothing left");
    assert_eq!(bench.answers(), [], "what is in flight may be why");
    let outcome = bench.commit(command);
    let index = bench.driver.state.index();
    bench.applier.settle(outcome);
    let answers = bench.answers();
    assert_eq!(answers[0], (1, PlanAnswer::Applied { index }));
    let PlanAnswer::Partial { index: 0, refresh_index, .. } = answers[1].1 else {
        panic!("unexpected {:?}", answers[1])
    };
    assert_eq!(refresh_index, index);
}

/// After an unknown outcome nothing is proposed until every later one is in, and the plan is not
/// proposed again.
#[test]
fn an_unknown_outcome_stops_the_applier() {
    let mut bench = Bench::new();
    let plans = [bench.plan("one", 1), bench.plan("two", 1), bench.plan("three", 1)];
    let [one, two, three] = plans;
    bench.submit(1, one);
    let _lost = bench.propose();
    bench.submit(2, two);
    let second = bench.propose();
    bench.submit(3, three);
    assert!(matches!(bench.next(0), Next::Idle), "two entries are in flight");
    bench.applier.settle(EntryOutcome::Unknown);
    assert_eq!(bench.answers(), [(1, PlanAnswer::Unknown)]);
    assert!(matches!(bench.next(0), Next::Idle), "the second outcome is not in");
    let outcome = bench.commit(second);
    bench.applier.settle(outcome);
    let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = bench.propose() else {
        panic!("not plans")
    };
    assert_eq!(&*plans[0].job.id, "three");
    assert_eq!(bench.answers().len(), 1);
}

fn jobs_of(command: &Command) -> Vec<String> {
    let Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })) = command else {
        panic!("not plans")
    };
    plans.iter().map(|plan| plan.job.id.to_string()).collect()
}

/// A follower may be ahead: its plan waits for the local state, while others go.
#[test]
fn a_plan_of_a_newer_snapshot_holds_up_no_other() {
    let mut bench = Bench::new();
    let [mut ahead, second, third] =
        [bench.plan("one", 1), bench.plan("two", 1), bench.plan("three", 1)];
    let index = bench.driver.state.index() + 1;
    ahead.snapshot_index = index;
    bench.submit(1, ahead);
    bench.submit(2, second);
    let Next::Propose(command) = bench.next(5) else { panic!("nothing goes") };
    assert_eq!(jobs_of(&command), ["two"]);
    assert_eq!((bench.applier.parked_until(), bench.applier.depth()), (Some(index), 1));
    assert!(matches!(bench.next(5), Next::Idle));
    bench.submit(3, third);
    let outcome = bench.commit(command);
    bench.applier.settle(outcome);
    assert_eq!(bench.driver.state.index(), index);
    assert_eq!(jobs_of(&bench.propose()), ["one", "three"], "back in its place");
    assert_eq!((bench.applier.parked_until(), bench.applier.depth()), (None, 0));
}

/// No server can have a snapshot above the leader's last index.
#[test]
fn a_plan_of_a_forged_snapshot_is_refused() {
    let mut bench = Bench::new();
    let [mut forged, other] = [bench.plan("one", 1), bench.plan("two", 1)];
    forged.snapshot_index = 1 << 60;
    let index = bench.driver.state.index();
    let mut stale = forged.clone();
    stale.priority += 1;
    bench.submit(1, forged);
    bench.submit(2, other);
    assert_eq!(jobs_of(&bench.propose()), ["two"]);
    let answers = bench.answers();
    let [(1, PlanAnswer::Rejected { closed: false, refresh_index, reason })] = &answers[..] else {
        panic!("{answers:?}")
    };
    assert_eq!(*refresh_index, index);
    assert!(reason.contains("above the last index"), "{reason}");
    // The token is looked at before the snapshot.
    bench.submit(3, stale);
    let next = bench.applier.next(&bench.driver.state, index, |_| Some([9; 16]));
    assert!(matches!(next, Next::Idle));
    let answers = bench.answers();
    assert!(matches!(answers[..], [(3, PlanAnswer::Rejected { closed: true, .. })]), "{answers:?}");
}

/// A plan that is not taken in, because too many wait, has had no outcome.
#[test]
fn a_full_queue_is_no_outcome() {
    let mut bench = Bench::new();
    let limits = PlanQueueLimits { plans_max: 1, ..PlanQueueLimits::default() };
    bench.applier = PlanApplier::new(limits);
    let [mut first, second] = [bench.plan("one", 1), bench.plan("two", 1)];
    first.snapshot_index = bench.driver.state.index() + 1;
    bench.submit(1, first);
    assert!(matches!(bench.next(1), Next::Idle));
    bench.submit(2, second);
    assert_eq!(bench.answers(), [(2, PlanAnswer::QueueFull)], "what is parked counts");
    let mut turn = crate::turn::Turn::new(fsm::EvaluationId([0; 16]), 1);
    assert_eq!(turn.answered(&PlanAnswer::QueueFull), crate::turn::After::Pause);
}

/// P13: a token that is not that of the lease is refused.
#[test]
fn a_plan_without_its_lease_is_closed() {
    let mut bench = Bench::new();
    let plan = bench.plan("one", 1);
    bench.submit(1, plan);
    let next = bench.applier.next(&bench.driver.state, u64::MAX, |_| Some([9; 16]));
    assert!(matches!(next, Next::Idle));
    let answers = bench.answers();
    assert!(matches!(answers[..], [(1, PlanAnswer::Rejected { closed: true, .. })]), "{answers:?}");
}

/// Whatever is queued, in flight or emptied is answered when the leadership ends.
#[test]
fn a_flush_answers_everything() {
    let mut bench = Bench::new();
    let plans = [bench.plan("one", 8), bench.plan("two", 1), bench.plan("three", 1)];
    let [one, two, three] = plans;
    bench.submit(1, one);
    bench.submit(2, two);
    let _in_flight = bench.propose();
    bench.submit(3, three);
    let mut answered = bench.applier.flush();
    answered.sort_unstable_by_key(|(reply, _)| *reply);
    let unknown = [1, 2, 3].map(|reply| (reply, PlanAnswer::Unknown));
    assert_eq!(answered, unknown);
    assert_eq!(bench.answers(), []);
}

/// A plan that came twice: what the first will do is not known yet, so that the second is not
/// called closed before.
#[test]
fn a_plan_closed_by_one_in_flight_waits_for_it() {
    let mut bench = Bench::new();
    let plan = bench.plan("one", 1);
    bench.submit(1, plan.clone());
    let command = bench.propose();
    bench.submit(2, plan);
    assert!(matches!(bench.next(0), Next::Idle));
    assert_eq!(bench.answers(), []);
    let outcome = bench.commit(command);
    let index = bench.driver.state.index();
    bench.applier.settle(outcome);
    let answers = bench.answers();
    assert_eq!(answers[0], (1, PlanAnswer::Applied { index }));
    let PlanAnswer::Partial { index: 0, refresh_index, .. } = answers[1].1 else {
        panic!("unexpected {:?}", answers[1])
    };
    assert_eq!(refresh_index, index, "an index that exists");
}
