//! The applier: what it proposes, when it stops, and that every plan is answered once.

use fsm::{
    EvaluationStatus, JobKind, Reply,
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

    fn next(&mut self, waited: bool) -> Next {
        self.applier.next(&self.driver.state, |_| Some(TOKEN), waited)
    }

    fn propose(&mut self) -> Command {
        let next = self.next(false);
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
    let Command::ApplyPlans(ApplyPlans { plans }) = &command else {
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
    assert!(matches!(bench.next(false), Next::Idle), "two entries are in flight");
    bench.applier.settle(EntryOutcome::Unknown);
    assert_eq!(bench.answers(), [(1, PlanAnswer::Unknown)]);
    assert!(matches!(bench.next(false), Next::Idle), "the second outcome is not in");
    let outcome = bench.commit(second);
    bench.applier.settle(outcome);
    let Command::ApplyPlans(ApplyPlans { plans }) = bench.propose() else { panic!("not plans") };
    assert_eq!(&*plans[0].job.id, "three");
    assert_eq!(bench.answers().len(), 1);
}

/// A follower may be ahead: its plan waits for the local state, and is judged as it is when that
/// does not come.
#[test]
fn a_plan_of_a_newer_snapshot_waits() {
    let mut bench = Bench::new();
    let mut plan = bench.plan("one", 1);
    let ahead = bench.driver.state.index() + 1;
    plan.snapshot_index = ahead;
    bench.submit(1, plan);
    assert!(matches!(bench.next(false), Next::WaitFor(index) if index == ahead));
    assert!(matches!(bench.next(true), Next::Propose(_)));
}

#[test]
fn a_plan_without_its_lease_is_closed() {
    let mut bench = Bench::new();
    let plan = bench.plan("one", 1);
    bench.submit(1, plan);
    let next = bench.applier.next(&bench.driver.state, |_| Some([9; 16]), false);
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
    assert!(matches!(bench.next(false), Next::Idle));
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
