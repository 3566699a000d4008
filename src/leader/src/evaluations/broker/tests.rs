//! The broker against its golden script, and against random operations.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::{
    golden::{self, Arguments},
    testing::{evaluation, name_of, named, parse_evaluation},
};

const SERVER: u64 = 1;

impl EvalBroker {
    /// Checks the invariants of the module by recomputation.
    fn check_invariants(&self) {
        let mut queues = Queues::default();
        let mut members: BTreeMap<&JobKey, usize> = BTreeMap::new();
        for entry in self.entries.values() {
            queues.hook(entry);
            *members.entry(&entry.job).or_default() += 1;
            let slot = &self.jobs[&entry.job];
            let holds = slot.holder == Some(entry.id);
            match entry.place {
                Place::Nowhere => panic!("{} is nowhere", entry.id),
                Place::Ready { .. } | Place::Outstanding(_) | Place::Failed => assert!(holds),
                Place::Held => assert!(holds && slot.relied_on > 0),
                Place::Pending => assert!(slot.pending.contains(&entry.rank()) && !holds),
                Place::Waiting { .. } => {}
                Place::Cancelable => assert!(!holds),
            }
            assert!(slot.holder.is_none_or(|holder| self.entries[&holder].job == entry.job));
        }
        for (job, slot) in &self.jobs {
            assert_eq!(members.get(job), Some(&slot.members), "{job}");
            assert!(slot.pending.is_empty() || slot.holder.is_some(), "{job} is stuck");
            let is_relied_on = |entry: &&Entry| {
                entry.job == *job && entry.place == Place::Cancelable && entry.is_relied_on
            };
            let relied_on = self.entries.values().filter(is_relied_on).count();
            assert_eq!(relied_on, slot.relied_on, "{job}");
            let holder = slot.holder.map(|holder| self.entries[&holder].place);
            let leasable = matches!(holder, Some(Place::Ready { .. } | Place::Outstanding(_)));
            assert!(relied_on == 0 || !leasable, "{job} is leased too early");
        }
        assert_eq!(queues.stats().total, self.stats().total);
        let outstanding = queues.outstanding();
        assert_eq!(outstanding, self.queues.outstanding());
        let jobs: std::collections::BTreeSet<_> =
            outstanding.iter().map(|id| &self.entries[id].job).collect();
        assert_eq!(jobs.len(), outstanding.len(), "two leases for one job");
    }
}

/// Order, leases and tokens, nacks with their delays, the delivery limit, superseded evaluations,
/// and what a new leader takes over.
#[test]
fn golden_broker() {
    let mut broker = EvalBroker::default();
    let mut token = 0u32;
    golden::run("broker.txt", |line| {
        let answer = step(&mut broker, &mut token, &Arguments::new(line));
        broker.check_invariants();
        answer
    });
}

fn step(broker: &mut EvalBroker, tokens: &mut u32, line: &Arguments<'_>) -> String {
    let now = line.number("now");
    let mut fresh = || {
        *tokens += 1;
        named(&format!("t{tokens}"))
    };
    let id = || EvaluationId(named(line.text("id")));
    let token = || named(line.text("token"));
    let say = |result: Result<(), BrokerError>| match result {
        Ok(()) => "ok".to_owned(),
        Err(error) => said(error),
    };
    match line.word {
        "reset" => {
            *broker = EvalBroker::default();
            *tokens = 0;
            broker.enable();
            String::new()
        }
        "disable" => {
            broker.disable();
            "disabled".into()
        }
        "pause" => {
            broker.set_paused(line.number("on") == 1);
            String::new()
        }
        "enqueue" => match line.find("token") {
            None => format!("{:?}", broker.enqueue(now, &parse_evaluation(line))),
            Some(_) => format!("{:?}", broker.enqueue_again(now, &parse_evaluation(line), token())),
        },
        "applied" => {
            broker.applied(now, &parse_evaluation(line));
            String::new()
        }
        "note" => {
            broker.note_job_index(&evaluation("", line.text("job"), 0).job, line.number("index"));
            String::new()
        }
        "dequeue" => {
            let kinds: Vec<_> = line
                .find("kinds")
                .map_or(JobKind::ALL.to_vec(), |list| list.split(',').map(kind).collect());
            let max = usize::try_from(line.number("max").max(1)).unwrap();
            leases(broker.dequeue(now, &kinds, max, SERVER, &mut fresh))
        }
        "dequeue-failed" => leases(broker.dequeue_failed(now, 10, SERVER, &mut fresh)),
        "ack" => match broker.ack(now, id(), token()) {
            Ok(acked) => format!("{acked:?}"),
            Err(error) => said(error),
        },
        "nack" => {
            let reason = match line.find("reason").unwrap_or("failed") {
                "failed" => NackReason::Failed,
                "lag" => NackReason::Lag,
                "shutdown" => NackReason::Shutdown,
                other => panic!("unknown reason `{other}`"),
            };
            say(broker.nack(now, id(), token(), reason))
        }
        "reset-timer" => say(broker.outstanding_reset(now, id(), token())),
        "pause-timer" => say(broker.pause_nack(id(), token())),
        "resume-timer" => say(broker.resume_nack(now, id(), token())),
        "server-lost" => {
            broker.server_lost(now, SERVER);
            String::new()
        }
        "outstanding" => broker.outstanding(id()).map_or("no".into(), name_of),
        "cancelable" => {
            let ids: Vec<_> = broker.cancelable(1000).iter().map(|id| name_of(id.0)).collect();
            format!("{} [{}]", ids.len(), ids.join(" "))
        }
        "poll" => {
            let expired = broker.poll(now);
            let names: Vec<_> = expired.iter().map(|one| name_of(one.evaluation.0)).collect();
            format!("expired [{}], next {:?}", names.join(" "), broker.next_deadline())
        }
        "stats" => {
            let Count { waiting, pending, ready, unacked, failed, cancelable } =
                broker.stats().total;
            let oldest = JobKind::ALL.map(|kind| broker.oldest_ready_age_ms(now, kind));
            format!(
                "waiting={waiting} pending={pending} ready={ready} unacked={unacked} failed={failed} \
                 cancelable={cancelable} oldest={}",
                oldest.into_iter().max().unwrap_or(0)
            )
        }
        other => panic!("unknown command `{other}`"),
    }
}

fn kind(name: &str) -> JobKind {
    JobKind::parse(name).unwrap()
}

fn said(error: BrokerError) -> String {
    match error {
        BrokerError::Disabled => error.to_string(),
        BrokerError::NotOutstanding(id) => format!("{} is not outstanding", name_of(id.0)),
        BrokerError::TokenMismatch(id) => format!("token does not match for {}", name_of(id.0)),
    }
}

fn leases(result: Result<Vec<Delivery>, BrokerError>) -> String {
    let show = |one: &Delivery| {
        let (id, token) = (name_of(one.evaluation.0), name_of(one.token));
        format!("{id} token={token} wait={} delivery={}", one.wait_index, one.deliveries)
    };
    match result {
        Ok(list) if list.is_empty() => "nothing".into(),
        Ok(list) => list.iter().map(show).collect::<Vec<_>>().join("\n"),
        Err(error) => said(error),
    }
}

/// Beyond the bound the broker reports and still takes: nothing is dropped silently.
/// Refusing new work is the admission check's part.
#[test]
fn beyond_the_limit_is_reported_and_taken() {
    let config = BrokerConfig { evaluations_max: 2, ..BrokerConfig::default() };
    let mut broker = EvalBroker::new(config);
    broker.enable();
    let outcomes: Vec<_> =
        ["a", "b", "c"].iter().map(|id| broker.enqueue(0, &evaluation(id, id, 1))).collect();
    assert_eq!(outcomes, [Enqueued::New, Enqueued::New, Enqueued::BeyondLimit]);
    assert_eq!(broker.len(), 3);
}

/// A new leader takes the pending evaluations from the state, not the blocked and the complete
/// ones.
#[test]
fn a_new_leader_takes_pending_evaluations() {
    let mut state = fsm::State::default();
    for (id, status) in [
        ("a", EvaluationStatus::Pending),
        ("b", EvaluationStatus::Blocked),
        ("c", EvaluationStatus::Complete),
    ] {
        let mut row = evaluation(id, id, 7);
        row.status = status;
        fsm::testing::put(&mut state, &row);
    }
    let mut broker = EvalBroker::default();
    broker.enable();
    broker.restore(0, &state);
    assert_eq!(broker.stats().total, Count { ready: 1, ..Count::default() });
    assert!(broker.has_ready(&[JobKind::Service]) && !broker.has_ready(&[JobKind::Batch]));
}

fn expired(broker: &mut EvalBroker, now: u64) -> Vec<String> {
    broker.poll(now).iter().map(|one| name_of(one.evaluation.0)).collect()
}

/// A batch of three, and the tokens of its leases.
fn batch_of_three() -> (EvalBroker, Vec<(EvaluationId, Token)>) {
    let mut broker = EvalBroker::default();
    broker.enable();
    for (index, id) in (1..).zip(["a", "b", "c"]) {
        broker.enqueue(0, &evaluation(id, id, index));
    }
    let mut number = 0;
    let fresh = || {
        number += 1;
        named(&format!("t{number}"))
    };
    let given = broker.dequeue(0, &JobKind::ALL, 3, SERVER, fresh).unwrap();
    (broker, given.iter().map(|one| (one.evaluation, one.token)).collect())
}

/// Three passes of 25 s each, one after the other: none is delivered twice, although the last ends
/// 75 s after its delivery.
#[test]
fn a_lease_does_not_run_out_behind_a_long_first() {
    let (mut broker, batch) = batch_of_three();
    let mut now = 0;
    for (id, token) in batch {
        now += 25_000;
        assert_eq!(expired(&mut broker, now), [""; 0], "after {now} ms");
        assert_eq!(broker.ack(now, id, token), Ok(Acked::Now));
    }
    assert!(broker.is_empty());
}

/// A worker that is gone holds a batch for two nack timeouts at most: when the first lease runs
/// out, the clocks of all others begin.
#[test]
fn a_batch_whose_worker_is_gone_comes_back() {
    let (mut broker, _) = batch_of_three();
    assert_eq!(expired(&mut broker, 59_999), [""; 0]);
    assert_eq!(expired(&mut broker, 60_000), ["a"]);
    assert_eq!(expired(&mut broker, 119_999), [""; 0]);
    assert_eq!(expired(&mut broker, 120_000), ["b", "c"]);
    let (mut broker, _) = batch_of_three();
    broker.server_lost(1, SERVER);
    assert_eq!(broker.stats().total, Count { ready: 3, ..Count::default() });
}

/// Leases of a batch that end out of turn, or are given back, let no other one run out early.
#[test]
fn the_clock_of_a_lease_begins_with_the_end_of_the_one_before() {
    let (mut broker, batch) = batch_of_three();
    let [(a, first), (b, second), (c, third)] = batch[..] else { panic!("{batch:?}") };
    broker.remove(30_000, b);
    assert_eq!(expired(&mut broker, 60_000), ["a"], "its clock was never stopped");
    assert_eq!(broker.outstanding(c), Some(third), "begun at 30,000, when what was before it went");
    assert_eq!(expired(&mut broker, 90_000), ["c"]);
    assert!(broker.ack(90_000, a, first).is_err() && broker.ack(90_000, b, second).is_ok());

    let (mut broker, batch) = batch_of_three();
    let [(a, first), (b, second), (c, _)] = batch[..] else { panic!("{batch:?}") };
    broker.pause_nack(a, first).unwrap();
    assert_eq!(expired(&mut broker, 500_000), [""; 0], "the plan of the first is at the leader");
    broker.nack(500_000, a, first, NackReason::Lag).unwrap();
    broker.pause_nack(b, second).unwrap();
    broker.resume_nack(550_000, b, second).unwrap();
    assert_eq!(expired(&mut broker, 609_999), [""; 0]);
    assert_eq!(expired(&mut broker, 610_000), ["b"]);
    assert!(broker.outstanding(c).is_some());
}

/// Ids in the order in which they are leased, one at a time.
fn leased(broker: &mut EvalBroker, count: usize) -> Vec<String> {
    let mut next = || {
        let given = broker.dequeue(0, &JobKind::ALL, 1, SERVER, || [1; 16]).unwrap();
        given.first().map(|one| name_of(one.evaluation.0))
    };
    (0..count).map_while(|_| next()).collect()
}

/// A thousand children that end at once keep no other job waiting, nor the children of another one;
/// a child is not kept waiting by other jobs either.
#[test]
fn children_of_one_job_take_turns_with_everything_else() {
    let mut broker = EvalBroker::default();
    broker.enable();
    for number in 0..1_000u64 {
        let row = evaluation(
            &format!("a{number}"),
            &format!("default/a/dispatch-1-{number}"),
            1 + number,
        );
        broker.enqueue(0, &row);
    }
    assert_eq!(leased(&mut broker, 3), ["a0", "a1", "a2"]);
    broker.enqueue(0, &evaluation("x", "x", 2_000));
    broker.enqueue(0, &evaluation("b0", "default/b/dispatch-1-0", 2_001));
    broker.enqueue(0, &evaluation("b1", "default/b/dispatch-1-1", 2_002));
    assert_eq!(leased(&mut broker, 6), ["a3", "x", "b0", "a4", "b1", "a5"]);
    for number in 0..5u64 {
        broker
            .enqueue(0, &evaluation(&format!("y{number}"), &format!("y{number}"), 3_000 + number));
    }
    let next = leased(&mut broker, 7);
    assert!(next.contains(&"a6".to_owned()) && next.contains(&"y4".to_owned()), "{next:?}");
    broker.check_invariants();
    let mut urgent = evaluation("c", "default/c/dispatch-1-1", 4_000);
    urgent.priority = 60;
    broker.enqueue(0, &urgent);
    assert_eq!(leased(&mut broker, 1), ["c"], "priority goes over turns");
    assert_eq!(leased(&mut broker, 2_000).len(), 1_000 - 8);
}

/// Children that one entry lets in are leased in its order, in whichever order they are taken in,
/// and under a new leader too. Ids say nothing of the order.
#[test]
fn children_of_one_entry_are_leased_in_its_order() {
    let mut rows: Vec<_> = (0..40u64)
        .map(|number| {
            let id = format!("{}x{number}", (number * 7) % 10);
            let mut row = evaluation(&id, &format!("default/a/dispatch-1-{number}"), 9);
            row.order = 1 + u32::try_from(number).unwrap();
            row
        })
        .collect();
    let expected: Vec<_> = rows.iter().map(|row| name_of(row.id.0)).collect();
    let mut state = fsm::State::default();
    for row in &rows {
        fsm::testing::put(&mut state, row);
    }
    rows.sort_by_key(|row| row.id);
    let mut broker = EvalBroker::default();
    broker.enable();
    for row in &rows {
        broker.enqueue(0, row);
        broker.check_invariants();
    }
    assert_eq!(leased(&mut broker, 40), expected);
    let mut next = EvalBroker::default();
    next.enable();
    next.restore(0, &state);
    assert_eq!(leased(&mut next, 40), expected, "a new leader knows no other order");
}

/// The first of a family may change: by priority, and when one that waited before comes again.
#[test]
fn a_sibling_that_comes_first_takes_the_place_of_the_first() {
    let mut broker = EvalBroker::default();
    broker.enable();
    let child = |number: u64, index| {
        evaluation(&format!("a{number}"), &format!("default/a/dispatch-1-{number}"), index)
    };
    for number in 2..5 {
        broker.enqueue(0, &child(number, number));
    }
    broker.enqueue(0, &child(1, 1));
    broker.enqueue(0, &Evaluation { priority: 60, ..child(9, 9) });
    broker.check_invariants();
    assert_eq!(leased(&mut broker, 9), ["a9", "a1", "a2", "a3", "a4"]);
    broker.check_invariants();
}

#[derive(Clone, Copy, Debug)]
enum Operation {
    Enqueue { id: u8, job: u8, priority: u16, wait_ms: u64, blocked: bool },
    Again { lease: usize },
    Dequeue { max: usize },
    DequeueFailed,
    Ack { lease: usize },
    Nack { lease: usize, reason: NackReason },
    Pause { lease: usize },
    Resume { lease: usize },
    CancelBatch,
    Terminal { id: u8 },
    ServerLost,
    Pass { ms: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let reason =
        prop_oneof![Just(NackReason::Failed), Just(NackReason::Lag), Just(NackReason::Shutdown)];
    let lease = 0..64usize;
    prop_oneof![
        6 => (any::<u8>(), 0..6u8, 1..4u16, prop_oneof![3 => Just(0), 1 => 0..5_000u64], prop::bool::weighted(0.2))
            .prop_map(|(id, job, priority, wait_ms, blocked)| Operation::Enqueue { id, job, priority, wait_ms, blocked }),
        1 => lease.clone().prop_map(|lease| Operation::Again { lease }),
        6 => (1..4usize).prop_map(|max| Operation::Dequeue { max }),
        1 => Just(Operation::DequeueFailed),
        3 => lease.clone().prop_map(|lease| Operation::Ack { lease }),
        3 => (lease.clone(), reason).prop_map(|(lease, reason)| Operation::Nack { lease, reason }),
        1 => lease.clone().prop_map(|lease| Operation::Pause { lease }),
        1 => lease.prop_map(|lease| Operation::Resume { lease }),
        1 => Just(Operation::CancelBatch),
        1 => any::<u8>().prop_map(|id| Operation::Terminal { id }),
        1 => Just(Operation::ServerLost),
        4 => (0..70_000u64).prop_map(|ms| Operation::Pass { ms }),
    ]
}

/// What a caller knows of a broker: which evaluations it must still have.
#[derive(Default)]
struct Model {
    open: BTreeMap<EvaluationId, Evaluation>,
    leases: Vec<(EvaluationId, Token)>,
    aside: BTreeMap<EvaluationId, Token>,
    now: u64,
    index: u64,
    tokens: u64,
}

impl Model {
    fn lease(&self, number: usize) -> Option<(EvaluationId, Token)> {
        self.leases.get(number % self.leases.len().max(1)).copied()
    }

    fn apply(&mut self, broker: &mut EvalBroker, operation: Operation) {
        let now = self.now;
        let tokens = &mut self.tokens;
        let mut fresh = || {
            *tokens += 1;
            u128::from(*tokens).to_be_bytes()
        };
        match operation {
            Operation::Enqueue { id, job, priority, wait_ms, blocked } => {
                self.index += 1;
                let id = format!("{id}");
                let job = self
                    .open
                    .get(&EvaluationId(named(&id)))
                    .map_or_else(|| format!("job-{job}"), |known| known.job.id.to_string());
                let mut row = evaluation(&id, &job, self.index);
                row.priority = priority;
                row.wait_until = if wait_ms == 0 { 0 } else { now + wait_ms };
                row.status =
                    if blocked { EvaluationStatus::Blocked } else { EvaluationStatus::Pending };
                broker.enqueue(now, &row);
                self.open.entry(row.id).or_insert(row);
            }
            Operation::Again { lease } => {
                let Some((id, token)) = self.lease(lease) else { return };
                let Some(row) = self.open.get(&id) else { return };
                if broker.enqueue_again(now, row, token) == Enqueued::Aside {
                    self.aside.insert(id, token);
                }
            }
            Operation::Dequeue { max } => {
                let given = broker.dequeue(now, &JobKind::ALL, max, SERVER, &mut fresh).unwrap();
                self.leases.extend(given.iter().map(|one| (one.evaluation, one.token)));
            }
            Operation::DequeueFailed => {
                let given = broker.dequeue_failed(now, 3, SERVER, &mut fresh).unwrap();
                self.leases.extend(given.iter().map(|one| (one.evaluation, one.token)));
            }
            Operation::Ack { lease } => {
                let Some((id, token)) = self.lease(lease) else { return };
                let good = broker.outstanding(id) == Some(token);
                let acked = broker.ack(now, id, token);
                assert_eq!(good, acked == Ok(Acked::Now));
                if good && self.aside.remove(&id) != Some(token) {
                    self.open.remove(&id);
                }
            }
            Operation::Nack { lease, reason } => {
                let Some((id, token)) = self.lease(lease) else { return };
                let good = broker.outstanding(id) == Some(token);
                assert_eq!(broker.nack(now, id, token, reason).is_ok(), good);
            }
            Operation::Pause { lease } => {
                let Some((id, token)) = self.lease(lease) else { return };
                let good = broker.outstanding(id) == Some(token);
                assert_eq!(broker.pause_nack(id, token).is_ok(), good);
            }
            Operation::Resume { lease } => {
                let Some((id, token)) = self.lease(lease) else { return };
                let good = broker.outstanding(id) == Some(token);
                assert_eq!(broker.resume_nack(now, id, token).is_ok(), good);
            }
            Operation::CancelBatch => {
                for id in broker.cancelable(10) {
                    broker.remove(now, id);
                    self.open.remove(&id).unwrap();
                }
            }
            Operation::Terminal { id } => {
                let id = EvaluationId(named(&format!("{id}")));
                broker.remove(now, id);
                self.open.remove(&id);
            }
            Operation::ServerLost => broker.server_lost(now, SERVER),
            Operation::Pass { ms } => {
                self.now += ms;
                broker.poll(self.now);
                assert!(broker.next_deadline().is_none_or(|at| at > self.now));
            }
        }
        self.aside.retain(|id, token| broker.outstanding(*id) == Some(*token));
    }
}

proptest! {
    /// No evaluation is lost, none is leased twice, no job has two leases, and in the end
    /// everything drains.
    #[test]
    fn nothing_is_lost(operations in prop::collection::vec(operation(), 1..200)) {
        let mut broker = EvalBroker::default();
        broker.enable();
        let mut model = Model::default();
        for operation in operations {
            model.apply(&mut broker, operation);
            broker.check_invariants();
            prop_assert_eq!(
                broker.entries.keys().collect::<Vec<_>>(),
                model.open.keys().collect::<Vec<_>>()
            );
        }
        for (id, token) in model.leases.clone() {
            if broker.outstanding(id) == Some(token) {
                broker.resume_nack(model.now, id, token).unwrap();
            }
        }
        for _ in 0..2_000 {
            if broker.is_empty() {
                break;
            }
            model.apply(&mut broker, Operation::Pass { ms: 60_000 });
            model.apply(&mut broker, Operation::Dequeue { max: 64 });
            model.apply(&mut broker, Operation::DequeueFailed);
            for lease in 0..model.leases.len() {
                model.apply(&mut broker, Operation::Ack { lease });
            }
            model.leases.clear();
            model.apply(&mut broker, Operation::CancelBatch);
        }
        prop_assert!(broker.is_empty(), "{:?}", broker.stats());
        prop_assert_eq!(broker.jobs.len(), 0);
    }
}
