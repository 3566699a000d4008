//! Failed allocations: replaced now, later or never (R9–R11, S15, S16, S22).

use fsm::{
    AllocationId, ClientStatus, DesiredStatus, JobKind, JobSpec, Trigger,
    allocation::RescheduleEvent, job::DelayFunction, limits::RESCHEDULE_EVENTS_MAX,
};

use super::{Cluster, cluster::PlanExt, job};

fn running(kind: JobKind) -> (Cluster, JobSpec, Vec<AllocationId>) {
    let mut cluster = Cluster::with_nodes(20);
    let spec = job(kind);
    cluster.register(&spec);
    let ids = cluster.allocations(&spec, 10);
    (cluster, spec, ids)
}

/// S15: a failure is replaced after its delay, by name, with a history; the failed one is marked
/// stopped.
#[test]
fn s15_later_then_now() {
    let (mut cluster, spec, ids) = running(JobKind::Service);
    cluster.end(ids[3], ClientStatus::Failed);
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(plan.counts(), (0, 0, 0));
    let waiting = plan.waiting()[0].clone();
    assert_eq!(waiting.trigger, Trigger::RetryFailedAlloc);
    assert_eq!(waiting.wait_until, cluster.now + 30_000);
    assert_eq!(waiting.reschedules, [ids[3]]);
    assert_eq!(plan.follow_ups.len(), 1);
    assert_eq!(plan.follow_ups[0].evaluation, waiting.id);
    cluster.apply(&plan);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op(), "awaited: no second follow-up");

    let plan = cluster.pass(&waiting);
    assert_eq!(plan.counts(), (1, 1, 0), "the follow-up itself counts as due");
    assert_eq!(&*plan.stops[0].description, "alloc was rescheduled because it failed");
    assert_eq!(plan.stops[0].client, None);
    let placement = &plan.placements[0];
    assert_eq!((placement.name_index, placement.previous), (3, Some(ids[3])));
    assert_eq!(placement.reschedules.len(), 1);
    assert_eq!(placement.reschedules[0].previous, ids[3]);
    assert_eq!(placement.reschedules[0].delay_ms, 30_000);
    assert_ne!(placement.node, cluster.get(ids[3]).node, "S16: the node of the failure is avoided");
}

/// R9.
#[test]
fn r9_failures_close_together_share_a_follow_up() {
    let (mut cluster, spec, ids) = running(JobKind::Batch);
    for (number, id) in ids[..7].iter().enumerate() {
        cluster.end(*id, ClientStatus::Failed);
        cluster.now += if number == 4 { 10_000 } else { 100 };
    }
    let now = cluster.now;
    for (number, id) in ids[..7].iter().enumerate() {
        let offset = number as u64 * 1_000 + if number >= 5 { 4_000 } else { 0 };
        cluster.change(*id, |allocation| allocation.client_at = now - 1_000 + offset);
    }
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    let sizes: Vec<_> = plan.waiting().iter().map(|waiting| waiting.reschedules.len()).collect();
    assert_eq!(sizes, [5, 2]);
    assert_eq!(plan.placements.len(), 0);
    assert_eq!(plan.follow_ups.len(), 7);
}

/// R10.
#[test]
fn r10_due_within_a_second_is_due_now() {
    let (mut cluster, spec, ids) = running(JobKind::Service);
    cluster.end(ids[0], ClientStatus::Failed);
    cluster.now += 29_000;
    assert_eq!(cluster.plan(&spec, Trigger::AllocFailure).counts(), (1, 1, 0));
}

/// R11, S15: attempts used up, the failure stays and counts.
#[test]
fn r11_a_policy_may_forbid() {
    let (mut cluster, spec, ids) = running(JobKind::Batch);
    cluster.end(ids[0], ClientStatus::Failed);
    let now = cluster.now;
    cluster.change(ids[0], |allocation| {
        allocation.reschedules = vec![RescheduleEvent {
            at: now - 1_000,
            previous: AllocationId::default(),
            node: allocation.node,
            delay_ms: 5_000,
        }];
    });
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert!(plan.is_no_op());
    assert!(plan.waiting().is_empty());

    // R12: a forced one exceeds the limit.
    cluster.change(ids[0], |allocation| allocation.transition.reschedule = true);
    assert_eq!(cluster.plan(&spec, Trigger::AllocStop).counts(), (1, 1, 0));
}

/// A policy without attempts and without limit never reschedules; an old failure is out of the
/// interval.
#[test]
fn attempts_count_within_the_interval() {
    let (mut cluster, spec, ids) = running(JobKind::Batch);
    cluster.end(ids[0], ClientStatus::Failed);
    let now = cluster.now + 100_000_000;
    cluster.now = now;
    cluster.change(ids[0], |allocation| {
        allocation.client_at = now - 10_000;
        allocation.reschedules = vec![RescheduleEvent {
            at: 0,
            previous: AllocationId::default(),
            node: allocation.node,
            delay_ms: 5_000,
        }];
    });
    assert_eq!(cluster.plan(&spec, Trigger::AllocFailure).counts(), (1, 1, 0));
}

/// 2.8.2: delays grow, are capped, and start over after a calm time.
#[test]
fn delays_follow_the_function() {
    for (function, past, delay_ms_max, calm, delay_ms) in [
        (DelayFunction::Constant, vec![30_000], 3_600_000, 0, 30_000),
        (DelayFunction::Constant, vec![30_000], 20_000, 0, 30_000),
        (DelayFunction::Exponential, vec![], 3_600_000, 0, 30_000),
        (DelayFunction::Exponential, vec![30_000], 3_600_000, 0, 60_000),
        (DelayFunction::Exponential, vec![30_000, 60_000], 100_000, 0, 100_000),
        (DelayFunction::Exponential, vec![30_000, 60_000], 100_000, 100_001, 30_000),
        (DelayFunction::Fibonacci, vec![30_000], 3_600_000, 0, 30_000),
        (DelayFunction::Fibonacci, vec![30_000, 30_000], 3_600_000, 0, 60_000),
        (DelayFunction::Fibonacci, vec![60_000, 90_000], 3_600_000, 0, 150_000),
        (DelayFunction::Fibonacci, vec![90_000, 100_000], 100_000, 0, 100_000),
        (DelayFunction::Fibonacci, vec![90_000, 100_000], 100_000, 100_001, 30_000),
        (DelayFunction::Fibonacci, vec![100_000, 30_000], 100_000, 0, 30_000),
    ] {
        let (mut cluster, mut spec, ids) = running(JobKind::Service);
        let mut policy = spec.groups[0].reschedule.unwrap();
        policy.delay_function = function;
        policy.delay_ms_max = delay_ms_max;
        spec.groups[0].reschedule = Some(policy);
        cluster.register(&spec);
        cluster.end(ids[0], ClientStatus::Failed);
        let failed_at = cluster.now;
        cluster.change(ids[0], |allocation| {
            allocation.job_version = 1;
            allocation.reschedules = past
                .iter()
                .map(|delay_ms| RescheduleEvent {
                    at: failed_at - calm,
                    previous: AllocationId::default(),
                    node: allocation.node,
                    delay_ms: *delay_ms,
                })
                .collect();
        });
        let plan = cluster.plan(&spec, Trigger::AllocFailure);
        assert_eq!(plan.waiting()[0].wait_until - failed_at, delay_ms, "{function:?} {past:?}");
    }
}

/// S15: only the newest events are kept.
#[test]
fn s15_history_is_bounded() {
    let (mut cluster, spec, ids) = running(JobKind::Service);
    cluster.end(ids[0], ClientStatus::Failed);
    cluster.change(ids[0], |allocation| {
        allocation.reschedules = (0..5)
            .map(|at| RescheduleEvent {
                at,
                previous: AllocationId::default(),
                node: allocation.node,
                delay_ms: 1,
            })
            .collect();
    });
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    let events = &plan.placements[0].reschedules;
    assert_eq!(events.len(), RESCHEDULE_EVENTS_MAX);
    assert_eq!(events[0].at, 1);
    assert_eq!(events[4].previous, ids[0]);
}

/// S15: a policy of many attempts allows as many within its interval, and no more.
#[test]
fn s15_many_attempts_are_counted() {
    let mut cluster = Cluster::with_nodes(20);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 1;
    let policy = spec.groups[0].reschedule.as_mut().unwrap();
    (policy.unlimited, policy.attempts, policy.interval_ms) = (false, 8, 3_600_000);
    policy.delay_function = DelayFunction::Constant;
    cluster.run(&spec);
    let mut retries = 0;
    while let Some(id) = cluster.live(&spec).first().map(|row| row.id) {
        cluster.end(id, ClientStatus::Failed);
        cluster.now += 30_000;
        let plan = cluster.plan(&spec, Trigger::AllocFailure);
        retries += plan.placements.len();
        cluster.apply(&plan);
    }
    assert_eq!(retries, 8);
}

/// GH-12319: a reschedule that finds no room keeps its failed predecessor, and with it the history.
#[test]
fn a_reschedule_without_room_leaves_the_failed_one_as_it_is() {
    let (mut cluster, spec, ids) = running(JobKind::Service);
    cluster.end(ids[0], ClientStatus::Failed);
    cluster.now += 30_000;
    for number in 1..=20 {
        cluster.change_node(number, |node| node.eligibility.ineligible = true);
    }
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(plan.counts(), (0, 0, 0));
    assert_eq!((plan.queued(), plan.blocked().len()), (1, 1));
}

/// I47: another plan takes the last room first, so that the replacement is dropped: the failed one
/// is not stopped, and what comes of the next pass remembers it.
#[test]
fn a_reschedule_that_lost_its_race_is_remembered() {
    let mut cluster = Cluster::with_nodes(1);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 1;
    spec.groups[0].tasks[0].resources.cpu_mhz = 4_000;
    let mut other = spec.clone();
    other.key.id = "other".into();
    cluster.register(&other);
    cluster.run(&spec);
    let failed = cluster.live(&spec)[0].id;
    cluster.end(failed, ClientStatus::Failed);
    cluster.now += 30_000;

    let first = cluster.plan(&other, Trigger::JobRegister);
    let evaluation = cluster.evaluation(&spec, Trigger::AllocFailure);
    let second = cluster.pass(&evaluation);
    assert_eq!((first.counts(), second.counts()), ((1, 0, 0), (1, 1, 0)));
    cluster.apply(&first);
    let trial = cluster.state.try_plan(&second, &|_, _, _| Ok(Vec::new())).unwrap();
    assert_eq!((trial.dropped.len(), trial.plan.is_no_op()), (1, true));
    assert_eq!(cluster.get(failed).desired, DesiredStatus::Run);

    cluster.end(first.placements[0].id, ClientStatus::Complete);
    let again = cluster.pass(&evaluation);
    assert_eq!(again.counts(), (1, 1, 0));
    assert_eq!(again.placements[0].previous, Some(failed));
    let events = &again.placements[0].reschedules;
    assert_eq!(events.iter().map(|event| event.previous).collect::<Vec<_>>(), [failed]);
}

/// S22: a lost batch instance is replaced, a finished one is not, a failed one after its delay.
#[test]
fn s22_batch_instances_by_what_became_of_them() {
    let (mut cluster, spec, ids) = running(JobKind::Batch);
    cluster.end(ids[0], ClientStatus::Complete);
    cluster.end(ids[1], ClientStatus::Failed);
    cluster.end(ids[2], ClientStatus::Lost);
    cluster.now += 5_000;
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    assert_eq!(plan.counts(), (2, 1, 0));
    assert_eq!(plan.names(), [1, 2]);
}

/// A failure that is waiting is overtaken by an update that replaces it; nobody waits for it any
/// more.
#[test]
fn a_waiting_failure_is_replaced_by_an_update() {
    let (mut cluster, spec, ids) = running(JobKind::Service);
    cluster.end(ids[0], ClientStatus::Failed);
    let mut changed = spec.clone();
    changed.groups[0].tasks[0].user = "other".into();
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    assert_eq!(plan.counts(), (10, 10, 0));
    assert!(plan.follow_ups.is_empty());
    assert!(plan.waiting().is_empty());
}

/// A failure whose name is no longer wanted is not waited for.
#[test]
fn a_waiting_failure_beyond_the_count_is_forgotten() {
    let (mut cluster, spec, ids) = running(JobKind::Service);
    cluster.end(ids[9], ClientStatus::Failed);
    let mut changed = spec.clone();
    changed.groups[0].count = 5;
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    assert_eq!(plan.counts(), (0, 5, 5));
    assert!(plan.waiting().is_empty());
    assert!(plan.follow_ups.is_empty());
}

/// What failed and was not wanted any more is no instance when more are wanted again, or its group
/// is.
#[test]
fn a_failure_of_an_unwanted_instance_does_not_count_again() {
    for count in [9, 0] {
        let (mut cluster, mut spec, ids) = running(JobKind::Service);
        spec.groups[0].reschedule = None;
        cluster.run(&spec);
        cluster.end(ids[9], ClientStatus::Failed);
        assert!(cluster.plan(&spec, Trigger::AllocFailure).is_no_op(), "it stays and counts");
        let mut fewer = spec.clone();
        fewer.groups[0].count = count;
        cluster.run(&fewer);
        let plan = cluster.run(&spec);
        assert_eq!(plan.placements.len(), 10 - count as usize);
    }
    let (mut cluster, mut spec, ids) = running(JobKind::Service);
    spec.groups[0].reschedule = None;
    cluster.run(&spec);
    cluster.end(ids[9], ClientStatus::Failed);
    let mut other = spec.clone();
    other.groups[0].name = "api".into();
    assert_eq!(cluster.run(&other).counts(), (10, 10, 0));
    assert_eq!(cluster.run(&spec).counts(), (10, 10, 0));
}
