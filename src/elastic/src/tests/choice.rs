//! Which types are made: those that cost least for all that waits.

use super::*;
use crate::testing::kind;
use fsm::{command::PoolCommand, pool::InstanceType};

/// A pool of types by name, cpu (MHz) and price.
fn priced(max: u32, types: &[(&str, u64, u64)]) -> InstancePool {
    let mut pool = pool("p", max);
    pool.price_factor_milli = 1_000_000;
    pool.types = types
        .iter()
        .map(|(name, cpu, price_micro)| {
            let (cpu, price_micro, memory_mb) = (*cpu, *price_micro, 100_000);
            ((*name).into(), InstanceType { cpu, memory_mb, price_micro, ..kind(name) }.into())
        })
        .collect();
    pool
}

/// Jobs of one instance each that take so much cpu.
fn jobs(world: &mut World, each_mhz: &[u64]) {
    for (number, mhz) in each_mhz.iter().enumerate() {
        let mut spec = spec(&format!("j{number}"), 1, 1);
        spec.groups[0].tasks[0].resources.cpu_mhz = *mhz;
        // All wait before the pool looks.
        world.driver.register_job(spec);
    }
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.run();
}

fn made(world: &World) -> Vec<String> {
    let mut kinds: Vec<_> = world.rows().iter().map(|row| row.kind.name.to_string()).collect();
    kinds.sort_unstable();
    kinds
}

/// Two of 2 cpu for 1.2 each cost less than four of 1 cpu for 1.0 each.
#[test]
fn the_price_of_all_that_waits_counts() {
    let types = [("t1", 1_000, 1_000), ("t2", 2_000, 1_200)];
    let mut world = World::with(priced(9, &types));
    jobs(&mut world, &[1_000; 4]);
    assert_eq!(made(&world), ["t2", "t2"]);
    world.make_and_boot();
    world.pass(5 * MINUTE);
    assert_eq!((world.made, made(&world).len()), (2, 2), "and all run there");

    // For one alone the small one is the cheaper.
    let mut world = World::with(priced(9, &types));
    jobs(&mut world, &[1_000]);
    assert_eq!(made(&world), ["t1"]);
    // The price factor bounds what may be made for an instance, however good for many.
    let mut pool = priced(9, &types);
    pool.price_factor_milli = 1_100;
    let mut world = World::with(pool);
    jobs(&mut world, &[1_000; 4]);
    assert_eq!(made(&world), ["t1"; 4]);
}

/// What a limit, the pool's max or its price leaves is used, by the first in line.
#[test]
fn bounds_hold_for_what_is_best() {
    let types = [("t1", 1_000, 1_000), ("t2", 2_000, 1_200)];
    let mut pool = priced(9, &types);
    pool.max_price_micro = 2_300;
    let mut world = World::with(pool.clone());
    jobs(&mut world, &[1_000; 4]);
    assert_eq!(made(&world), ["t1", "t2"], "two dearer ones would cost 2,400");
    pool.max_price_micro = 1_100;
    let mut world = World::with(pool.clone());
    jobs(&mut world, &[1_000; 4]);
    assert_eq!(made(&world), ["t1"]);
    (pool.max_price_micro, pool.max) = (0, 1);
    let mut world = World::with(pool);
    jobs(&mut world, &[1_000; 4]);
    assert_eq!(made(&world), ["t2"]);
    // The best type may not be made for a while.
    let mut world = World::with(priced(9, &types));
    jobs(&mut world, &[1_000; 2]);
    world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None);
    assert_eq!(made(&world), ["t1", "t1"]);
}

/// An idle machine of a dearer type that those who wait have not seen yet is counted on for the
/// pool's idle timeout. Then a cheaper one is made, and it goes.
#[test]
fn a_dearer_idle_machine_is_counted_on_for_a_limited_time() {
    let types = [("small", 1_000, 1_000), ("large", 4_000, 4_000)];
    let mut world = World::with(priced(9, &types));
    jobs(&mut world, &[4_000]);
    let large = world.make_and_boot()[0];
    assert_eq!(made(&world), ["large"]);
    world.stop("j0");
    world.pass(1_000);
    // It waits, and nobody wakes it: what it has seen is older than the machine's room.
    let mut waiting = spec("web", 1, 1);
    waiting.groups[0].tasks[0].resources.cpu_mhz = 500;
    world.driver.register_job(waiting);
    let web = job_key("web");
    let evaluations = world.driver.state.evaluations_of_job(&web);
    let pending = evaluations.last().expect("a job has an evaluation").clone();
    let blocked = Evaluation {
        status: EvaluationStatus::Blocked,
        snapshot_index: 1,
        queued: [(spec("web", 1, 1).groups[0].name.clone(), 1)].into(),
        ..(*pending).clone()
    };
    fsm::testing::put(&mut world.driver.state, &blocked);
    let mut look = |after_ms: u64| {
        let now = world.at() + after_ms;
        world.fleet.restore(now, &world.driver.state);
        world.fleet.step(now, &world.driver.state, &mut || [9; 16])
    };
    assert_eq!(look(30_000), []);
    let commands = look(70_000);
    let [
        Command::Pool(PoolCommand::RequestInstances(made)),
        Command::Pool(PoolCommand::ShutDownInstance(end)),
    ] = &commands[..]
    else {
        panic!("{commands:?}")
    };
    assert_eq!((end.id, end.cause), (large, ShutdownCause::Idle));
    assert_eq!(made.intents.iter().map(|one| &*one.kind).collect::<Vec<_>>(), ["small"]);
}
