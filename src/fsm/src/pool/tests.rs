//! Instance pools: every command and each of its rejections.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use super::*;
use crate::{
    allocation::ClientStatus,
    command::{Command, NodeCommand, PoolCommand, Rejection, Reply},
    id::{InstanceId, Text},
    job::JobKind,
    node::{InstanceProof, Liveness, Readiness},
    settings::DeleteNodePool,
    testing::{Driver, START_MS, instance_pool, job, job_key, node_id, proof, register},
    tests::with_leader_changes,
};

fn words(rejection: &Rejection) -> String {
    rejection.to_string()
}

/// A command that must be rejected, and why.
fn refused(driver: &mut Driver, command: Command) -> String {
    words(&driver.reject(command))
}

fn upsert(change: impl FnOnce(&mut InstancePool)) -> Command {
    let mut pool = instance_pool("gpu");
    change(&mut pool);
    UpsertInstancePool { pool: pool.into(), enforce_index: None }.into()
}

fn pool_row(driver: &Driver) -> InstancePool {
    (**driver.state.instance_pools().get(&"gpu".into()).unwrap()).clone()
}

fn with_pool() -> Driver {
    let mut driver = Driver::default();
    driver.instance_pool("gpu", |_| {});
    driver
}

fn pause(is_paused: bool) -> Command {
    let (by, reason) = ("alice@web1".into(), "repair".into());
    PauseInstancePool { name: "gpu".into(), pause: is_paused, by, reason }.into()
}

fn list(driver: &Driver, epoch: u64, present: Vec<SeenMachine>, missing: &[InstanceId]) -> Command {
    ObserveInstances {
        provider: "local".into(),
        epoch,
        scope: "host".into(),
        began_at: driver.now,
        grace_ms: 60_000,
        present,
        missing: missing.to_vec(),
        evaluation_ids: Vec::new(),
    }
    .into()
}

fn seen(id: InstanceId, provider_id: &str) -> SeenMachine {
    SeenMachine {
        id,
        provider_id: provider_id.into(),
        address: "127.0.0.9".into(),
        pool: "gpu".into(),
        kind: "small".into(),
    }
}

fn failed(id: InstanceId, class: LimitClass, scope: LimitScope) -> Command {
    InstanceOutcome {
        id,
        provider: "local".into(),
        pool: "gpu".into(),
        kind: "small".into(),
        outcome: CreateOutcome::Failed {
            class,
            scope,
            for_ms: Some(30_000),
            detail: "vcpu".into(),
        },
    }
    .into()
}

fn vcpu() -> LimitScope {
    LimitScope::QuotaGroup { group: "vcpu".into(), preemptible: false }
}

/// A job of the pool that runs on the instance's node.
fn run_on(driver: &mut Driver, name: &str) -> crate::id::AllocationId {
    let mut spec = job("t", JobKind::Batch, 1);
    spec.node_pool = "gpu".into();
    driver.register_job(spec);
    driver.run("t", 0, node_id(name))
}

#[test]
fn a_pool_is_stored_with_the_node_pool_of_its_name() {
    let mut driver = with_pool();
    let row = pool_row(&driver);
    assert_eq!((row.create_index, row.modify_index), (1, 1));
    assert!(driver.state.node_pools().contains(&"gpu".into()));
    driver.accept(pause(true));
    driver.accept(upsert(|pool| pool.max = 7));
    let row = pool_row(&driver);
    assert_eq!((row.create_index, row.modify_index, row.max), (1, 3, 7));
    assert!(row.paused.is_some(), "another file does not end a pause");
    let deletes = DeleteNodePool { name: "gpu".into() };
    assert_eq!(
        refused(&mut driver, deletes.into()),
        "node pool \"gpu\" is fed by the instance pool of its name"
    );
}

#[test]
fn a_pool_that_cannot_be_is_refused() {
    type Change = fn(&mut InstancePool);
    fn small(pool: &mut InstancePool) -> &mut InstanceType {
        Arc::make_mut(pool.types.get_mut(&Text::from("small")).unwrap())
    }
    let mut driver = Driver::default();
    let cases: [(&str, Change); 14] = [
        ("pool \"all\" stands for all nodes", |pool| pool.name = "all".into()),
        ("invalid name \"a b\". A pool name must be 1 to 128", |pool| pool.name = "a b".into()),
        ("a pool needs a provider", |pool| pool.provider = "".into()),
        ("max is 10001, at most 10000", |pool| pool.max = 10_001),
        ("min (4) is above max (3)", |pool| pool.min = 4),
        ("price_factor must be from 1 to 1000", |pool| pool.price_factor_milli = 999),
        ("a pool has from 1 to 64 types, not 0", |pool| pool.types.clear()),
        ("idle_timeout must be from 1 ms to a year", |pool| pool.idle_timeout_ms = 0),
        ("boot_timeout must be", |pool| pool.boot_timeout_ms = u64::MAX),
        ("probe_timeout must be", |pool| pool.probe_timeout_ms = 0),
        ("type \"small\" needs a provider_type", |pool| small(pool).provider_type = "".into()),
        ("type \"small\" needs cpu and memory above 0", |pool| small(pool).cpu = 0),
        ("type \"small\": 1099511627777 is above", |pool| small(pool).disk_mb = (1 << 40) + 1),
        ("type \"other\": its name must be", |pool| small(pool).name = "other".into()),
    ];
    for (why, change) in cases {
        let found = refused(&mut driver, upsert(change));
        assert!(found.starts_with(why), "{found:?} for {why:?}");
    }
    let stale = UpsertInstancePool { pool: instance_pool("gpu").into(), enforce_index: Some(9) };
    let conflict = driver.reject(stale.into());
    assert_eq!(conflict, Rejection::IndexConflict { asked: 9, found: 0 });
    let create = UpsertInstancePool { pool: instance_pool("gpu").into(), enforce_index: Some(0) };
    driver.accept(create.clone().into());
    assert!(matches!(driver.reject(create.into()), Rejection::IndexConflict { asked: 0, .. }));
}

#[test]
fn a_pool_with_instances_keeps_its_provider_and_is_not_deleted() {
    let mut driver = with_pool();
    let id = driver.request_instance("gpu", "small");
    let moved = refused(&mut driver, upsert(|pool| pool.provider = "other".into()));
    assert!(moved.starts_with("pool \"gpu\" has 1 instances of provider \"local\""), "{moved}");
    let delete: Command = DeleteInstancePool { name: "gpu".into() }.into();
    let used = refused(&mut driver, delete.clone());
    assert!(
        used.starts_with("pool \"gpu\" has 1 instances: apply it with min and max 0"),
        "{used}"
    );
    driver.accept(failed(id, LimitClass::Fatal, LimitScope::All));
    assert_eq!(driver.state.provider_limits().len(), 1);
    driver.accept(delete.clone());
    assert_eq!(driver.state.provider_limits().len(), 0);
    assert_eq!(refused(&mut driver, delete), "instance pool not found");
    assert_eq!(refused(&mut driver, pause(true)), "instance pool not found");
}

/// Two entries that were decided at the same time, and one entry with too many.
#[test]
fn max_is_never_exceeded() {
    with_leader_changes(|driver| {
        driver.instance_pool("gpu", |_| {});
        let kinds = ["small", "large", "small", "small", "small"];
        let intents: Vec<_> = kinds.iter().map(|kind| driver.intent("gpu", kind)).collect();
        let command = driver.request("gpu", intents);
        driver.accept(command.clone());
        assert_eq!(driver.state.instance_count("gpu"), 3);
        assert_eq!(refused(driver, command), "pool \"gpu\" has its 3 instances");
        let row = driver.state.instances_of("gpu").next().unwrap().clone();
        assert_eq!((row.state, row.deadline_at), (InstanceState::Requested, START_MS + 600_000));
        assert_eq!(driver.state.instance_counts("gpu")[&InstanceState::Requested], 3);
    });
}

/// What a pool's past leaves it is judged where intents are taken, whatever its leader knew: a type
/// that failed pauses, a protected pool makes one at a time, an hour has only so many.
#[test]
fn the_past_of_a_pool_bounds_its_intents() {
    let mut driver = with_pool();
    let declare = |driver: &mut Driver, hour| {
        driver.instance_pool("gpu", |pool| {
            (pool.max, pool.protect_after, pool.max_creates_per_hour) = (9, 1, hour);
        });
    };
    declare(&mut driver, 0);
    let id = driver.request_instance("gpu", "small");
    driver.made(id);
    driver.shut_down(id, ShutdownCause::BootFailed);
    let ask = |driver: &mut Driver, kinds: &[&str]| {
        let intents = kinds.iter().map(|kind| driver.intent("gpu", kind)).collect();
        driver.request("gpu", intents)
    };
    let small = ask(&mut driver, &["small"]);
    assert_eq!(refused(&mut driver, small), "type \"small\" failed: did not boot");
    let two = ask(&mut driver, &["large", "large"]);
    driver.accept(two);
    assert_eq!(driver.state.unproven_of("gpu"), 1);
    let more = ask(&mut driver, &["large"]);
    assert_eq!(refused(&mut driver, more), "pool \"gpu\" makes one instance at a time");
    declare(&mut driver, 2);
    let more = ask(&mut driver, &["large"]);
    assert_eq!(refused(&mut driver, more), "pool \"gpu\" has made its 2 of an hour");
}

/// A machine fails in one way after the other: its readiness says no, twice, it is shut down for
/// that, or lists lack it. That is one failure.
#[test]
fn the_failure_of_a_machine_counts_once() {
    for is_shut_down in [true, false] {
        let mut driver = with_pool();
        let id = driver.request_instance("gpu", "small");
        driver.made(id);
        let command = driver.register_as("a", proof(id));
        driver.accept(command);
        driver.sync("a");
        let failures = |driver: &Driver| {
            let history = driver.state.pool_histories().get(&"gpu".into()).unwrap().clone();
            (history.in_a_row, history.types["small"].failures)
        };
        for _ in 0..2 {
            driver.readiness("a", Readiness::Fatal);
            assert_eq!(failures(&driver), (1, 1));
        }
        if is_shut_down {
            driver.shut_down(id, ShutdownCause::ProbeFailed);
            assert_eq!(driver.instance_row(id).state, InstanceState::ShuttingDown);
        }
        driver.at_seconds(200);
        for epoch in [1, 2] {
            let lacks = list(&driver, epoch, Vec::new(), &[id]);
            driver.accept(lacks);
        }
        assert!(!driver.state.instances().contains(&id), "it is gone");
        assert_eq!(failures(&driver), (1, 1), "shut down: {is_shut_down}");
    }
}

/// The file was put right while machines of the old one booted: their failures are no failures of
/// what the pool makes now, and what it does not make any more has none.
#[test]
fn failures_of_a_type_as_it_was_are_forgotten_with_it() {
    for is_taken_out in [true, false] {
        let mut driver = with_pool();
        let declare = |driver: &mut Driver, is_old: bool| {
            driver.instance_pool("gpu", |pool| {
                pool.protect_after = 1;
                if !is_old && is_taken_out {
                    pool.types.remove(&Text::from("small"));
                } else if !is_old {
                    let small = pool.types.get_mut(&Text::from("small")).unwrap();
                    Arc::make_mut(small).image = "mended".into();
                }
            });
        };
        declare(&mut driver, true);
        let [first, old, other] =
            ["small", "small", "large"].map(|kind| driver.request_instance("gpu", kind));
        let history =
            |driver: &Driver| driver.state.pool_histories().get(&"gpu".into()).unwrap().clone();
        driver.shut_down(first, ShutdownCause::Expired);
        assert_eq!((history(&driver).in_a_row, history(&driver).types.len()), (1, 1));
        declare(&mut driver, false);
        for fails in [false, true] {
            if fails {
                driver.shut_down(old, ShutdownCause::Expired);
                assert!(driver.instance_row(old).failed_at > 0);
            }
            let known = history(&driver);
            assert_eq!((known.types.len(), known.in_a_row, known.protected_since), (0, 0, 0));
        }
        driver.shut_down(other, ShutdownCause::Expired);
        let known = history(&driver);
        assert!(known.types.contains_key(&Text::from("large")), "that type is as it was");
        assert!(known.protected_since > 0);
    }
}

#[test]
fn intents_are_taken_up_to_the_price_of_an_hour() {
    let mut driver = with_pool();
    driver.instance_pool("gpu", |pool| pool.max_price_micro = 120_000);
    let intents = (0..3).map(|_| driver.intent("gpu", "small")).collect();
    let three = driver.request("gpu", intents);
    driver.accept(three);
    assert_eq!(driver.state.price_of_pool("gpu"), 100_000);
    let intents = vec![driver.intent("gpu", "small")];
    let more = driver.request("gpu", intents);
    assert_eq!(refused(&mut driver, more), "pool \"gpu\" would cost more than it may");
}

/// What is refused of a command is left out; the rest is taken.
#[test]
fn intents_are_judged_one_by_one() {
    let mut driver = with_pool();
    let (unknown, good) = (driver.intent("gpu", "none"), driver.intent("gpu", "small"));
    let alone = driver.request("gpu", vec![unknown.clone()]);
    assert_eq!(refused(&mut driver, alone), "pool \"gpu\" has no type \"none\"");
    let both = driver.request("gpu", vec![unknown, good.clone()]);
    driver.accept(both.clone());
    assert_eq!(driver.state.instance_count("gpu"), 1);
    let again = driver.request("gpu", vec![good]);
    assert_eq!(refused(&mut driver, again), "the id of the intent is in use");
    driver.accept(upsert(|_| {}));
    assert!(matches!(driver.reject(both), Rejection::IndexConflict { .. }), "the pool changed");
    let missing =
        RequestInstances { pool: "nowhere".into(), pool_modify_index: 0, intents: Vec::new() };
    assert_eq!(refused(&mut driver, missing.into()), "instance pool not found");
}

#[test]
fn an_instance_is_made_and_bound() {
    with_leader_changes(|driver| {
        driver.instance_pool("gpu", |_| {});
        let id = driver.request_instance("gpu", "small");
        driver.at_seconds(2);
        driver.made(id);
        let row = driver.instance_row(id);
        assert_eq!((row.state, row.made_at), (InstanceState::Booting, START_MS + 2_000));
        let note = NoteInstance { id, address: "".into(), words: "boots".into() };
        driver.accept(note.into());
        driver.at_seconds(5);
        let command = driver.register_as("a", proof(id));
        driver.accept(command);
        let row = driver.instance_row(id);
        assert_eq!((row.state, row.node), (InstanceState::Bound, Some(node_id("a"))));
        assert_eq!((row.bound_at, row.last_busy_at), (START_MS + 5_000, START_MS + 5_000));
        assert_eq!((&*row.last_words, &*row.address), ("boots", "127.0.0.1"));
        assert!(driver.node_row("a").instance.unwrap().open);
    });
}

/// The agent may be there before the answer of the provider.
#[test]
fn an_agent_may_be_faster_than_the_answer() {
    let mut driver = with_pool();
    let id = driver.request_instance("gpu", "small");
    let command = driver.register_as("a", proof(id));
    driver.accept(command);
    driver.made(id);
    assert_eq!(driver.instance_row(id).state, InstanceState::Bound);
    let fails = failed(id, LimitClass::Quota, LimitScope::All);
    assert_eq!(refused(&mut driver, fails), "the instance is not being made");
}

#[test]
fn instance_and_node_are_bound_one_to_one_with_the_token() {
    let mut driver = with_pool();
    let (id, other) =
        (driver.instance("gpu", "small", "a"), driver.request_instance("gpu", "small"));
    let mut check = |name: &str, proof: InstanceProof, why: &str| {
        let command = driver.register_as(name, proof);
        assert_eq!(refused(&mut driver, command), why);
    };
    check("b", proof(id), "another node is bound to the instance");
    check("a", proof(other), "the node is bound to another instance");
    let wrong = InstanceProof { id: other, token: proof(id).token };
    check("b", wrong, "the token is not that of the instance");
    check(
        "b",
        InstanceProof { id: other, token: [0; 16] },
        "the token is not that of the instance",
    );
    check("b", proof(InstanceId([0xff; 16])), "instance not found");
    let command = driver.register_as("a", proof(id));
    driver.accept(command.clone());
    let Command::Node(NodeCommand::RegisterNode(mut register)) = command else { unreachable!() };
    let description = Arc::make_mut(&mut register.description);
    description.pool = "default".into();
    let why = refused(&mut driver, register.clone().into());
    assert_eq!(why, "the instance is of pool \"gpu\", not \"default\"");
    register.instance = None;
    let why = refused(&mut driver, register.into());
    let ends = "of pool \"gpu\" and cannot move to pool \"default\"";
    assert!(why.starts_with("the node is instance ") && why.ends_with(ends), "{why}");
}

#[test]
fn the_node_of_an_instance_is_not_purged_by_itself() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    let purge = driver.reap("a", true);
    let why = format!("the node is instance {id} of pool \"gpu\": shut that down instead");
    assert_eq!(refused(&mut driver, purge), why);
}

#[test]
fn a_held_instance_is_shut_down_by_operators_alone() {
    with_leader_changes(|driver| {
        driver.instance_pool("gpu", |_| {});
        let id = driver.instance("gpu", "small", "a");
        driver.behave(id, Behavior::Hold);
        assert!(!driver.node_row("a").instance.unwrap().open);
        assert!(!driver.node_row("a").is_schedulable());
        for cause in
            ShutdownCause::ALL.into_iter().filter(|cause| *cause != ShutdownCause::Operator)
        {
            let command = driver.shut_down_command(id, cause);
            assert_eq!(refused(driver, command), "the instance is held", "{cause:?}");
        }
        driver.shut_down(id, ShutdownCause::Operator);
        let row = driver.instance_row(id);
        assert_eq!(row.state, InstanceState::ShuttingDown);
        assert_eq!(&*row.shutdown.as_ref().unwrap().by, "alice@web1");
    });
}

#[test]
fn an_instance_whose_node_is_set_aside_is_shut_down_by_operators_alone() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    driver.suspend("a", None);
    let idle = driver.shut_down_command(id, ShutdownCause::Idle);
    assert_eq!(refused(&mut driver, idle), "a person has taken its node out of service");
    driver.shut_down(id, ShutdownCause::Operator);
    assert_eq!(driver.instance_row(id).state, InstanceState::ShuttingDown);
}

#[test]
fn behavior_opens_and_closes_the_node() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    assert!(driver.node_row("a").is_schedulable());
    driver.behave(id, Behavior::Drain);
    let node = driver.node_row("a");
    assert_eq!(&*node.drain.as_ref().unwrap().owner, "instance pool");
    assert_eq!(&*node.events.last().unwrap().message, "Instance set to drain: disk is looked at");
    driver.at_seconds(9);
    driver.behave(id, Behavior::Run);
    let node = driver.node_row("a");
    assert!(node.drain.is_none() && node.is_schedulable());
    let row = driver.instance_row(id);
    assert_eq!(row.last_busy_at, START_MS + 9_000, "the idle time starts anew");
    assert_eq!((&*row.behavior_by, &*row.behavior_reason), ("alice@web1", "disk is looked at"));
    driver.drain("a", true);
    driver.behave(id, Behavior::Drain);
    driver.behave(id, Behavior::Run);
    assert_eq!(&*driver.node_row("a").drain.as_ref().unwrap().owner, "operator");
    driver.shut_down(id, ShutdownCause::Operator);
    let command = SetInstanceBehavior {
        id,
        behavior: Behavior::Run,
        deadline_ms: None,
        by: "".into(),
        reason: "".into(),
        evaluation_ids: Vec::new(),
    };
    assert_eq!(refused(&mut driver, command.into()), "the instance is being shut down");
}

#[test]
fn a_shutdown_by_machine_needs_an_empty_instance() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    let allocation = run_on(&mut driver, "a");
    for cause in [ShutdownCause::Idle, ShutdownCause::Drained, ShutdownCause::Shrink] {
        let command = driver.shut_down_command(id, cause);
        let why = refused(&mut driver, command);
        assert_eq!(why, "allocations on the instance have not ended");
    }
    assert_eq!(driver.instance_row(id).last_allocation, Some(allocation));
    driver.at_seconds(50);
    driver.report(allocation, ClientStatus::Complete);
    assert_eq!(driver.instance_row(id).last_busy_at, START_MS + 50_000);
    driver.shut_down(id, ShutdownCause::Idle);
    let row = driver.instance_row(id).clone();
    assert_eq!(row.state, InstanceState::ShuttingDown);
    driver.shut_down(id, ShutdownCause::Operator);
    assert_eq!(*driver.instance_row(id), row, "the first shutdown stands");
    let command = driver.register_as("a", proof(id));
    assert_eq!(refused(&mut driver, command), "the instance is being shut down");
}

#[test]
fn nothing_is_shut_down_by_machine_in_a_mass_loss() {
    let mut driver = Driver::default();
    driver.instance_pool("gpu", |pool| pool.max = 9);
    let names = ["a", "b", "c", "d", "e", "f"];
    let ids: Vec<_> = names.iter().map(|name| driver.instance("gpu", "small", name)).collect();
    for name in names {
        driver.liveness(name, Liveness::Down);
    }
    assert!(driver.state.mass_loss().is_some());
    let id = ids[0];
    let command = driver.shut_down_command(id, ShutdownCause::ProbeFailed);
    assert_eq!(refused(&mut driver, command), "no instance is destroyed during a mass loss");
    driver.shut_down(id, ShutdownCause::Operator);
    assert_eq!(driver.instance_row(id).state, InstanceState::ShuttingDown);
}

#[test]
fn a_paused_pool_neither_grows_nor_shrinks_by_machine() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    driver.accept(pause(true));
    let paused = pool_row(&driver).paused.unwrap();
    assert_eq!((&*paused.by, &*paused.reason, paused.at), ("alice@web1", "repair", START_MS));
    let intent = driver.intent("gpu", "small");
    let command = driver.request("gpu", vec![intent]);
    assert_eq!(refused(&mut driver, command.clone()), "the pool is paused");
    for cause in [ShutdownCause::Idle, ShutdownCause::Shrink] {
        let command = driver.shut_down_command(id, cause);
        assert_eq!(refused(&mut driver, command), "the pool is paused");
    }
    driver.accept(pause(false));
    driver.accept(command);
    driver.accept(pause(true));
    let reply = driver.shut_down(id, ShutdownCause::ProbeFailed);
    assert_eq!(reply, Reply::Done, "a broken machine goes in a paused pool");
}

#[test]
fn a_type_that_is_taken_out_drains_its_instances() {
    with_leader_changes(|driver| {
        driver.instance_pool("gpu", |_| {});
        let small = driver.instance("gpu", "small", "a");
        let large = driver.instance("gpu", "large", "b");
        let ending = driver.instance("gpu", "small", "c");
        driver.shut_down(ending, ShutdownCause::Operator);
        driver.instance_pool("gpu", |pool| {
            pool.types.remove(&Text::from("small"));
        });
        let row = driver.instance_row(small);
        assert_eq!((row.behavior, &*row.behavior_by), (Behavior::Drain, "pool"));
        assert_eq!(&*row.behavior_reason, "type \"small\" was taken out of the pool");
        assert!(driver.node_row("a").drain.is_some());
        assert_eq!(driver.instance_row(large).behavior, Behavior::Run);
        assert_eq!(driver.instance_row(ending).behavior, Behavior::Run, "it ends anyway");
        driver.shut_down(small, ShutdownCause::Drained);
        assert_eq!(driver.instance_row(small).state, InstanceState::ShuttingDown);
    });
}

#[test]
fn an_instance_is_gone_after_two_lists_and_the_grace() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    let allocation = run_on(&mut driver, "a");
    driver.at_seconds(30);
    let first = list(&driver, 1, Vec::new(), &[id]);
    driver.accept(first.clone());
    assert_eq!(refused(&mut driver, first), "list 1 of \"local\" is not newer than 1");
    driver.at_seconds(40);
    let second = list(&driver, 2, Vec::new(), &[id]);
    driver.accept(second);
    assert_eq!(driver.instance_row(id).missing, 2, "it was seen a short time ago");
    let present = list(&driver, 3, vec![seen(id, &format!("i-{id}"))], &[]);
    driver.accept(present);
    let row = driver.instance_row(id);
    assert_eq!((row.missing, row.seen_at, &*row.address), (0, START_MS + 40_000, "127.0.0.9"));
    driver.at_seconds(200);
    let third = list(&driver, 4, Vec::new(), &[id]);
    driver.accept(third);
    assert_eq!(driver.instance_row(id).missing, 1, "one list may be wrong");
    let fourth = list(&driver, 5, Vec::new(), &[id]);
    let before = driver.open_evaluations("t").len();
    driver.accept(fourth);
    assert!(!driver.state.instances().contains(&id));
    assert!(!driver.state.nodes().contains(&node_id("a")), "its node goes with it");
    assert_eq!(driver.allocation(allocation).client, ClientStatus::Lost);
    assert_eq!(
        &*driver.allocation(allocation).client_description,
        "the machine of the node is gone"
    );
    assert_eq!(driver.open_evaluations("t").len(), before + 1, "the job is looked at again");
}

/// A create whose answer was given up on may be carried out while a list is on its way.
#[test]
fn the_grace_ends_when_a_list_begins_not_when_it_is_answered() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    driver.at_seconds(30);
    let first = list(&driver, 1, Vec::new(), &[id]);
    driver.accept(first);
    driver.at_seconds(40);
    let slow = list(&driver, 2, Vec::new(), &[id]);
    driver.at_seconds(160);
    driver.accept(slow);
    assert_eq!(driver.instance_row(id).missing, 2, "it was seen shortly before the list began");
    driver.shut_down(id, ShutdownCause::Expired);
    for (seconds, epoch) in [(170, 3), (210, 4)] {
        driver.at_seconds(seconds);
        let missing = list(&driver, epoch, Vec::new(), &[id]);
        driver.accept(missing);
    }
    assert_eq!(driver.instance_row(id).missing, 2, "it was given up on shortly before");
    driver.at_seconds(220);
    let fresh = list(&driver, 5, Vec::new(), &[id]);
    driver.accept(fresh);
    assert!(!driver.state.instances().contains(&id));
}

/// The machine may have been made between the two, by the create that was given up on.
#[test]
fn a_list_that_began_before_an_instance_was_given_up_does_not_count() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    driver.at_seconds(30);
    let before = list(&driver, 1, Vec::new(), &[id]);
    driver.at_seconds(40);
    driver.shut_down(id, ShutdownCause::Expired);
    driver.at_seconds(150);
    driver.accept(before);
    assert_eq!(driver.instance_row(id).missing, 0);
    let after = list(&driver, 2, Vec::new(), &[id]);
    driver.accept(after);
    assert_eq!(driver.instance_row(id).missing, 1, "one list is not enough");
}

#[test]
fn a_list_says_nothing_of_other_scopes_or_of_what_came_later() {
    let mut driver = with_pool();
    let id = driver.instance("gpu", "small", "a");
    let asked = list(&driver, 1, Vec::new(), &[id]);
    driver.accept(asked);
    assert_eq!(driver.instance_row(id).missing, 0, "seen since the list was asked for");
    driver.at_seconds(90);
    for (epoch, provider, scope) in [(2, "local", "other"), (2, "other", "host")] {
        let Command::Pool(PoolCommand::ObserveInstances(mut command)) =
            list(&driver, epoch, Vec::new(), &[id])
        else {
            unreachable!()
        };
        (command.provider, command.scope) = (provider.into(), scope.into());
        driver.accept(command.into());
        assert_eq!(driver.instance_row(id).missing, 0, "{provider} {scope}");
    }
}

#[test]
fn a_machine_without_an_intent_gets_a_row_and_is_destroyed() {
    let mut driver = with_pool();
    let id = InstanceId([0xaa; 16]);
    let strayed = list(&driver, 1, vec![seen(id, "i-9")], &[]);
    driver.accept(strayed);
    let row = driver.instance_row(id);
    assert_eq!(row.state, InstanceState::ShuttingDown);
    assert_eq!(row.shutdown.as_ref().unwrap().cause, ShutdownCause::Unknown);
    assert_eq!((&*row.provider_id, row.kind.cpu), ("i-9", 4000));
    let command = driver.register_as("a", InstanceProof { id, token: [0; 16] });
    assert_eq!(refused(&mut driver, command), "the token is not that of the instance");
    driver.destroyed(id);
    assert!(driver.state.instances().is_empty());

    // A second machine for one intent, and an answer to a create that was given up.
    let id = driver.request_instance("gpu", "small");
    driver.made(id);
    let twice = list(&driver, 2, vec![seen(id, "i-other")], &[]);
    driver.accept(twice.clone());
    let stray = driver.state.instances_of("gpu").find(|row| row.id != id).unwrap().clone();
    assert_eq!((&*stray.provider_id, stray.state), ("i-other", InstanceState::ShuttingDown));
    assert_eq!(driver.instance_row(id).state, InstanceState::Booting);
    let third = list(&driver, 3, vec![seen(id, "i-other")], &[]);
    driver.accept(third);
    assert_eq!(driver.state.instances().len(), 2, "the stray has one row");
    driver.shut_down(id, ShutdownCause::Expired);
    driver.destroyed(id);
    let outcome = CreateOutcome::Made {
        provider_id: "i-late".into(),
        address: "".into(),
        scope: "host".into(),
    };
    let (provider, pool, kind) = ("local".into(), "gpu".into(), "small".into());
    driver.accept(InstanceOutcome { id, provider, pool, kind, outcome }.into());
    let row = driver.instance_row(id);
    assert_eq!((&*row.provider_id, row.state), ("i-late", InstanceState::ShuttingDown));
}

/// The list was asked for before the create was answered, and its machine had lost its tags by
/// then.
#[test]
fn a_machine_of_an_instance_is_no_stray_without_its_tags() {
    let mut driver = with_pool();
    let id = driver.request_instance("gpu", "small");
    driver.made(id);
    let machine = driver.instance_row(id).provider_id.clone();
    let untagged = stray_id("local", &machine);
    let listed = list(&driver, 1, vec![seen(untagged, &machine)], &[]);
    driver.accept(listed);
    assert_eq!(driver.state.instances().len(), 1);
    assert_eq!(driver.instance_row(id).state, InstanceState::Booting);
    // The same machine's name at another provider is another machine.
    let mut elsewhere = list(&driver, 1, vec![seen(untagged, &machine)], &[]);
    if let Command::Pool(PoolCommand::ObserveInstances(command)) = &mut elsewhere {
        command.provider = "other".into();
    }
    driver.accept(elsewhere);
    assert_eq!(driver.state.instances().len(), 2);
}

#[test]
fn a_destroy_is_asked_until_the_machine_is_gone() {
    with_leader_changes(|driver| {
        driver.instance_pool("gpu", |_| {});
        let id = driver.instance("gpu", "small", "a");
        let outcome = |machine: &str, gone: bool| DestroyOutcome {
            id,
            provider_id: machine.into(),
            gone,
            error: if gone { "" } else { "busy" }.into(),
            evaluation_ids: Vec::new(),
        };
        let machine = driver.instance_row(id).provider_id.clone();
        let early: Command = outcome(&machine, true).into();
        assert_eq!(refused(driver, early.clone()), "the instance is not being shut down");
        driver.shut_down(id, ShutdownCause::Operator);
        let of_another = outcome("i-old", true).into();
        assert_eq!(refused(driver, of_another), "the instance has another machine by now");
        let fails = outcome(&machine, false);
        driver.accept(fails.clone().into());
        driver.accept(fails.into());
        let shutdown = driver.instance_row(id).shutdown.clone().unwrap();
        assert_eq!((shutdown.attempts, &*shutdown.last_error), (2, "busy"));
        driver.accept(early.clone());
        assert!(driver.state.instances().is_empty());
        assert!(driver.state.nodes().is_empty());
        assert_eq!(refused(driver, early), "instance not found");
    });
}

#[test]
fn a_refusal_of_the_provider_is_a_limit_for_its_scope() {
    let mut driver = with_pool();
    let id = driver.request_instance("gpu", "small");
    driver.accept(failed(id, LimitClass::RateLimited, LimitScope::Type("t-small".into())));
    assert!(driver.state.instances().is_empty(), "no machine was made");
    let pool = pool_row(&driver);
    let (small, large) = (&pool.types["small"], &pool.types["large"]);
    let name: Text = "gpu".into();
    let limit = driver.state.limit_on(&name, small, START_MS).unwrap();
    assert_eq!((limit.until, limit.below, &*limit.detail), (START_MS + 30_000, 0, "vcpu"));
    assert!(driver.state.limit_on(&name, large, START_MS).is_none());
    let intent = driver.intent("gpu", "small");
    let command = driver.request("gpu", vec![intent]);
    assert_eq!(refused(&mut driver, command.clone()), "rate limit: vcpu");
    driver.request_instance("gpu", "large");
    driver.at_seconds(30);
    driver.accept(command);
    let missing = failed(id, LimitClass::Quota, LimitScope::All);
    assert_eq!(refused(&mut driver, missing), "instance not found");
}

/// A quota that is full at two instances is tried again when there are fewer.
#[test]
fn a_quota_ends_early_when_an_instance_of_it_goes() {
    let mut driver = with_pool();
    let first = driver.request_instance("gpu", "small");
    driver.request_instance("gpu", "large");
    let third = driver.request_instance("gpu", "small");
    driver.accept(failed(third, LimitClass::Quota, vcpu()));
    let limit = driver.state.provider_limits().iter().next().unwrap().clone();
    assert_eq!(limit.below, 2);
    assert!(driver.state.is_in_force(&limit, START_MS));
    let intent = driver.intent("gpu", "small");
    let command = driver.request("gpu", vec![intent]);
    assert_eq!(refused(&mut driver, command.clone()), "quota: vcpu");
    driver.shut_down(first, ShutdownCause::Operator);
    assert!(driver.state.is_in_force(&limit, START_MS), "its machine may still count");
    driver.destroyed(first);
    assert!(!driver.state.is_in_force(&limit, START_MS));
    driver.accept(command);
}

#[test]
fn an_instance_type_that_does_not_help_a_job_is_kept_until_job_or_pool_change() {
    let mut driver = with_pool();
    let evaluation = driver.evaluation_id();
    driver.accept(register(job("t", JobKind::Batch, 1), evaluation));
    let job_modify_index = driver.job_row("t").job_modify_index;
    let note = |pool_modify_index| {
        Command::from(NoteUnhelped {
            job: job_key("t"),
            job_modify_index,
            pool: "gpu".into(),
            pool_modify_index,
            types: vec!["small".into()],
        })
    };
    assert_eq!(refused(&mut driver, note(99)), "the job or the pool has changed");
    let pool_modify_index = pool_row(&driver).modify_index;
    driver.accept(note(pool_modify_index));
    let known = |driver: &Driver, index| {
        driver.state.unhelped_by(&job_key("t"), index, driver.now).is_some()
    };
    assert!(known(&driver, job_modify_index));
    assert!(!known(&driver, job_modify_index + 1), "the job changed");
    driver.accept(pause(true));
    assert!(known(&driver, job_modify_index), "a pause changes nothing of it");
    driver.accept(upsert(|_| {}));
    assert!(!known(&driver, job_modify_index));
    assert!(driver.state.unhelped().is_empty());
    let pool_modify_index = pool_row(&driver).modify_index;
    driver.accept(note(pool_modify_index));
    driver.accept(DeleteInstancePool { name: "gpu".into() }.into());
    assert!(driver.state.unhelped().is_empty(), "it goes with the pool");
}

/// Ids of unknown instances, and long texts of clients.
#[test]
fn unknown_instances_are_refused_and_texts_are_cut() {
    let mut driver = with_pool();
    let id = InstanceId([0xee; 16]);
    let behave = SetInstanceBehavior {
        id,
        behavior: Behavior::Hold,
        deadline_ms: None,
        by: "".into(),
        reason: "".into(),
        evaluation_ids: Vec::new(),
    };
    let note = NoteInstance { id, address: "".into(), words: "".into() };
    let shut_down = driver.shut_down_command(id, ShutdownCause::Operator);
    for command in [behave.clone().into(), note.into(), shut_down] {
        assert_eq!(refused(&mut driver, command), "instance not found");
    }
    let id = driver.instance("gpu", "small", "a");
    let long: Text = "x".repeat(100_000).into();
    driver.accept(SetInstanceBehavior { id, reason: long.clone(), ..behave }.into());
    assert!(driver.instance_row(id).behavior_reason.len() <= 256);
    let command = driver.shut_down_command(id, ShutdownCause::Operator);
    let Command::Pool(PoolCommand::ShutDownInstance(command)) = command else { unreachable!() };
    driver.accept(ShutDownInstance { reason: long, ..command }.into());
    let longest = driver.node_row("a").events.iter().map(|event| event.message.len()).max();
    assert!(longest.unwrap() < 400, "{longest:?}");
}

/// The deadline of an instance's drain is that of its node's, also when it is said later.
#[test]
fn a_drain_of_an_instance_can_have_a_deadline() {
    let mut driver = Driver::default();
    driver.instance_pool("gpu", |_| {});
    let id = driver.instance("gpu", "small", "a");
    let drain = |deadline_ms| SetInstanceBehavior {
        id,
        behavior: Behavior::Drain,
        deadline_ms,
        by: "ann".into(),
        reason: "".into(),
        evaluation_ids: Vec::new(),
    };
    let deadline = |driver: &Driver| driver.node_row("a").drain.as_ref().unwrap().deadline_at;
    driver.accept(drain(None).into());
    assert_eq!(deadline(&driver), None);
    driver.at_seconds(5);
    driver.accept(drain(Some(60_000)).into());
    assert_eq!(deadline(&driver), Some(START_MS + 65_000));
    assert_eq!(driver.instance_row(id).drain_deadline_at, Some(START_MS + 65_000));
    let held = SetInstanceBehavior { behavior: Behavior::Hold, ..drain(Some(1)) };
    assert_eq!(refused(&mut driver, held.into()), "a deadline is of a drain");
    driver.accept(SetInstanceBehavior { behavior: Behavior::Run, ..drain(None) }.into());
    assert_eq!(
        (driver.node_row("a").drain.clone(), driver.instance_row(id).drain_deadline_at),
        (None, None)
    );
}

/// A job that asks for a kill signal waits for no machine in vain.
#[test]
fn a_machine_to_come_knows_all_signals_unless_its_type_says_otherwise() {
    let mut pool = instance_pool("gpu");
    let kind = Arc::make_mut(pool.types.values_mut().next().unwrap());
    let signals =
        |kind: &InstanceType| kind.description(&"gpu".into()).attributes["os.signals"].clone();
    assert!(signals(kind).split(',').any(|name| name == "SIGTERM"));
    kind.node.attributes.insert("os.signals".into(), "SIGHUP".into());
    assert_eq!(&*signals(kind), "SIGHUP");
}
