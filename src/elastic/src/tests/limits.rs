//! What providers refuse, and who waits for what.

use fsm::pool::{InstanceType, LimitClass};

use super::*;
use crate::testing::kind;

/// AR-07 (a quota without an instance holds for its minute, with one wake-up at its end).
#[test]
fn a_quota_holds_for_its_time() {
    let mut world = World::new(9);
    world.job("web", 1);
    assert_eq!(world.refuse(ErrorClass::Quota, ErrorScope::All, None), 1);
    assert_eq!(world.rows(), [], "nothing was made");
    world.pass(55_000);
    assert_eq!(world.take_calls("create"), []);
    let why = world.waits_for("web");
    assert!(why.contains("not creating any instance: quota until"), "{why}");
    world.pass(8_000);
    assert_eq!(world.take_calls("create").len(), 1);
}

/// A quota ends before its time when one of its instances has gone.
#[test]
fn a_quota_ends_when_an_instance_goes() {
    let mut world = World::new(9);
    world.job("a", 1);
    let id = world.make_and_boot()[0];
    world.job("b", 1);
    world.refuse(ErrorClass::Quota, ErrorScope::All, Some(60 * MINUTE));
    world.pass(2 * MINUTE);
    assert_eq!(world.take_calls("create"), []);
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    world.run();
    world.destroy();
    world.pass(2_000);
    assert!(!world.take_calls("create").is_empty());
}

/// AR-09 (asked too often, the provider is left alone until its time; a time in the past has no
/// effect).
#[test]
fn a_rate_limit_holds_until_its_time() {
    let mut world = World::new(9);
    world.job("web", 1);
    world.refuse(ErrorClass::RateLimited, ErrorScope::Type, Some(20_000));
    world.pass(15_000);
    assert_eq!(world.take_calls("create"), []);
    world.pass(6_000);
    assert_eq!(world.refuse(ErrorClass::RateLimited, ErrorScope::Type, Some(0)), 1);
    world.pass(1_000);
    assert_eq!(world.take_calls("create").len(), 1);
}

/// AR-10 (no capacity of a quota group stops its types, not the preemptible ones of that group; one
/// of a type stops that type; what another type can run goes ahead).
#[test]
fn a_lack_of_capacity_stops_its_scope_only() {
    let mut pool = pool("p", 9);
    let kinds = [
        ("a1", "a", false, 10),
        ("a2", "a", false, 11),
        ("a1p", "a", true, 12),
        ("b4p", "b", true, 13),
    ];
    pool.types = kinds
        .into_iter()
        .map(|(name, group, preemptible, price_micro)| {
            let quota_group = group.into();
            let kind = InstanceType { quota_group, preemptible, price_micro, ..kind(name) };
            (name.into(), kind.into())
        })
        .collect();
    pool.price_factor_milli = 2_000;
    let mut world = World::with(pool);
    let asked = |world: &World| -> Vec<Text> {
        world.rows().iter().map(|row| row.kind.name.clone()).collect()
    };
    world.job("web", 1);
    assert_eq!(asked(&world), ["a1".into()]);
    world.refuse(ErrorClass::NoCapacity, ErrorScope::QuotaGroup, None);
    assert_eq!(asked(&world), ["a1p".into()], "a2 is of the group");
    world.refuse(ErrorClass::NoCapacity, ErrorScope::QuotaGroup, None);
    assert_eq!(asked(&world), ["b4p".into()]);
    world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None);
    assert_eq!(asked(&world), Vec::<Text>::new());
    let classes = world.driver.state.provider_limits().iter().map(|row| row.class);
    assert_eq!(classes.collect::<Vec<_>>(), [LimitClass::NoCapacity; 3]);
    world.pass(62_000);
    assert_eq!(asked(&world), ["a1".into()]);
}

/// AR-11 (so many creates at a time; 0 is no limit).
#[test]
fn creates_are_bounded_at_a_time() {
    let mut pool = pool("p", 9);
    pool.max_concurrent_creates = 1;
    let mut world = World::with(pool);
    world.job("web", 3);
    assert_eq!(world.rows().len(), 1);
    world.make();
    assert_eq!(world.rows().len(), 2, "the first is there");
    world.set_pool(|pool| pool.max_concurrent_creates = 0);
    assert_eq!(world.rows().len(), 3);
}

/// AR-25 (at its quota the pool gives up idle machines of a type that nobody waits for, so that the
/// next in line fits, and no machine of a type that is waited for).
#[test]
fn at_quota_idle_machines_make_room_for_what_waits() {
    let mut pool = pool("p", 9);
    pool.idle_timeout_ms = 60 * MINUTE;
    pool.price_factor_milli = 1_000_000;
    let large = InstanceType { memory_mb: 4_000, price_micro: 9_000, ..kind("large") };
    pool.types.insert("large".into(), large.into());
    let mut world = World::with(pool);
    world.job("old", 2);
    world.make_and_boot();
    world.stop("old");
    world.register(spec("next", 1, 3_000));
    world.refuse(ErrorClass::Quota, ErrorScope::All, Some(60 * MINUTE));
    world.pass(2_000);
    let gone = world.destroy();
    assert!(!gone.is_empty(), "a small one made room");
    world.pass(3_000);
    let made = world.make_and_boot();
    assert_eq!((made.len(), world.running("next")), (1, 1));
}

/// A limit on creates at a time is in nobody's way: an idle machine stays for its time.
#[test]
fn creates_at_a_time_push_no_idle_machine_out() {
    let mut pool = pool("p", 9);
    pool.price_factor_milli = 1_000_000;
    let large = InstanceType { memory_mb: 4_000, price_micro: 9_000, ..kind("large") };
    pool.types.insert("large".into(), large.into());
    pool.max_concurrent_creates = 1;
    let mut world = World::with(pool);
    world.job("old", 1);
    let id = world.make_and_boot()[0];
    world.stop("old");
    world.register(spec("next", 3, 3_000));
    world.pass(30_000);
    assert_eq!((world.rows().len(), world.cause(id)), (2, None));
    world.set_pool(|pool| pool.max = 2);
    world.pass(1_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Shrink), "the pool's max is");
}

/// AR-26 (equal jobs at quota: machines are not given up for each other, round after round).
#[test]
fn equal_jobs_at_quota_do_not_push_each_other_out() {
    let mut world = World::new(2);
    for number in 0..8 {
        world.job(&format!("j{number}"), 1);
    }
    world.make_and_boot();
    for _ in 0..30 {
        world.pass(10_000);
        world.make_and_boot();
    }
    let causes: Vec<_> = world.rows().iter().map(|row| row.shutdown.clone()).collect();
    assert_eq!((causes, world.made), (vec![None, None], 2));
}

/// AR-32 (a thousand changes are one look).
#[test]
fn many_changes_are_one_look() {
    let mut world = World::new(1);
    world.job("web", 1);
    world.make_and_boot();
    let row = world.rows()[0].id;
    let now = world.at();
    assert_eq!(world.fleet.step(now, &world.driver.state, &mut || [0; 16]), []);
    for _ in 0..1_000 {
        world.fleet.take(&world.driver.state, &fsm::Effect::Instance(row));
    }
    let due = world.fleet.next_deadline().unwrap();
    assert!(due > now - crate::fleet::COALESCE_MS, "{due} {now}");
    world.fleet.step(due.max(now), &world.driver.state, &mut || [0; 16]);
    assert!(world.fleet.next_deadline().unwrap() > due);
}

/// A pool whose machines do not have what their type declares.
fn liar() -> InstancePool {
    let mut pool = pool("p", 9);
    let mut liar = kind("small");
    liar.node.attributes.insert("gpu".into(), "1".into());
    pool.types.insert("small".into(), liar.into());
    pool
}

/// A job that needs what only the type declares.
fn picky(name: &str) -> JobSpec {
    let constraint =
        fsm::job::Constraint { left: "${attr.gpu}".into(), operand: "=".into(), right: "1".into() };
    JobSpec { constraints: vec![constraint], ..spec(name, 1, 600) }
}

/// A job that has ruled out the class of a machine before it came is not woken by it: it is not
/// helped all the same, and the machine idles out.
#[test]
fn a_machine_of_a_class_that_is_ruled_out_is_no_help() {
    let mut world = World::with(InstancePool { max: 30, ..liar() });
    world.job("plain", 1);
    world.make_and_boot();
    for number in 0..20 {
        world.register(picky(&format!("web{number}")));
    }
    let ids = world.make_and_boot();
    assert_eq!(ids.len(), 20);
    world.pass(MINUTE + 2_000);
    for id in &ids {
        assert_eq!(world.cause(*id), Some(ShutdownCause::Idle));
    }
    while !world.destroy().is_empty() {}
    world.pass(5 * MINUTE);
    assert_eq!((world.rows().len(), world.made), (1, 21), "no more are made");
    for number in 0..20 {
        let why = world.waits_for(&format!("web{number}"));
        assert!(why.contains("a machine of type \"small\" came and"), "{why}");
    }
}

/// What does not help by one type is given another at once.
#[test]
fn a_job_that_one_type_does_not_help_gets_another() {
    let mut pool = liar();
    let declared = pool.types["small"].node.clone();
    let dear = InstanceType { price_micro: 1_200, node: declared, ..kind("dear") };
    pool.types.insert("dear".into(), dear.into());
    let mut world = World::with(pool);
    world.register(picky("web"));
    world.make_and_boot();
    let kinds: Vec<Text> = world.rows().iter().map(|row| row.kind.name.clone()).collect();
    assert_eq!(kinds, ["small".into(), "dear".into()]);
}

/// A job that stays blocked although an idle machine of a type came is not helped by more of them.
#[test]
fn a_job_that_is_not_helped_gets_no_second_machine() {
    let mut world = World::with(liar());
    world.register(picky("web"));
    let ids = world.make_and_boot();
    assert_eq!((ids.len(), world.running("web")), (1, 0), "the real node has no such attribute");
    world.pass(5 * MINUTE);
    world.destroy();
    world.pass(5 * MINUTE);
    assert_eq!((world.rows().len(), world.made), (0, 1));
    let why = world.waits_for("web");
    assert!(why.contains("a machine of type \"small\" came and the job stayed blocked"), "{why}");
    world.set_pool(|pool| pool.max = 8);
    assert_eq!(world.rows().len(), 1, "the pool has changed");
}

/// The state may be ahead of what the fleet was told: what was placed meanwhile has filled the
/// machine that came for it, and still seems to wait.
#[test]
fn a_job_that_was_placed_meanwhile_gets_no_second_machine() {
    let mut world = World::new(8);
    world.job("web", 4);
    let made = world.make();
    let requested = world.rows().len();
    for id in &made {
        world.register_agent(*id, &[]);
        world.driver.readiness(&name(*id), fsm::node::Readiness::Ok);
    }
    let state = world.driver.state.clone();
    let rows = state.evaluations().iter();
    for row in rows.filter(|row| row.status == EvaluationStatus::Blocked) {
        let pass = Pass { state: &state, evaluation: row, now: world.at(), attempt: 0 };
        let plan = scheduler::schedule(&pass).unwrap();
        world.driver.commit(Command::from(ApplyPlans { plans: vec![plan.into()] }));
    }
    assert_eq!(world.running("web"), 4);
    world.pass(2_000);
    assert_eq!(world.rows().len(), requested);
}

/// A machine that is smaller than its type declares does not help either, though the job is not
/// even tried there: what does not fit is not woken.
#[test]
fn a_job_that_does_not_fit_on_the_real_machine_gets_no_second_one() {
    let mut world = World::new(8);
    world.job("web", 1);
    let [id] = world.make()[..] else { panic!("one machine") };
    let total = Resources { memory_mb: 500, ..world.row(id).kind.resources() };
    world.register_agent_of(id, total, &[]);
    world.ready(id);
    world.pass(5 * MINUTE);
    world.destroy();
    world.pass(5 * MINUTE);
    assert_eq!((world.rows().len(), world.made), (0, 1));
    let why = world.waits_for("web");
    assert!(why.contains("a machine of type \"small\" came and the job stayed blocked"), "{why}");
}

/// What did not help is tried again after a time that doubles, since the provider's machines may be
/// others by then; the job says when.
#[test]
fn a_type_that_did_not_help_is_tried_again() {
    let mut world = World::with(liar());
    world.register(picky("web"));
    world.make_and_boot();
    let why = world.waits_for("web");
    assert!(why.contains("others hold it; tried again at "), "{why}");
    let mut made_at = Vec::new();
    let mut last = None;
    for minute in 0..230 {
        let made = world.make();
        last = made.first().copied().or(last);
        made_at.extend(made.iter().map(|_| minute));
        if made_at.len() == 4 {
            break;
        }
        for id in made {
            world.boot(id);
        }
        world.destroy();
        world.pass(MINUTE);
    }
    let pauses: Vec<u64> = made_at.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(matches!(pauses[..], [28..=34, 55..=65, 110..=125]), "{made_at:?}");
    let id = last.unwrap();
    // A machine that has what the type declares.
    world.boot_with(id, &[("gpu", "1")]);
    assert_eq!(world.running("web"), 1);
}

/// A list that is older than one that was taken changes nothing; intents above the pool's max are
/// not taken, whoever proposes them.
#[test]
fn the_state_refuses_what_is_old_or_too_much() {
    let mut world = World::new(1);
    world.job("web", 1);
    world.make();
    world.pass(2 * MINUTE);
    let list = |epoch| {
        Command::from(ObserveInstances {
            provider: "fake".into(),
            epoch,
            scope: SCOPE.into(),
            began_at: u64::MAX,
            grace_ms: 0,
            present: Vec::new(),
            missing: Vec::new(),
            evaluation_ids: Vec::new(),
        })
    };
    assert_eq!(world.commit(list(1_000)), Reply::Done);
    assert!(matches!(world.commit(list(1_000)), Reply::Rejected(_)));
    let pool = world.driver.state.instance_pools().get(&"p".into()).unwrap().modify_index;
    let request = Command::from(RequestInstances {
        pool: "p".into(),
        pool_modify_index: pool,
        intents: vec![world.driver.intent("p", "small")],
    });
    assert!(matches!(world.commit(request), Reply::Rejected(_)));
}
