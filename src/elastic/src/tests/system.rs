//! What runs on every node is part of the model: room, ports and slots.

use fsm::{
    job::{Network, PortAsk},
    pool::InstanceType,
};

use super::*;
use crate::testing::kind;

/// A system job of the pool that takes so much memory, and a port unless it is 0.
fn system(memory_mb: u64, port: u16) -> JobSpec {
    let mut spec = JobSpec { kind: JobKind::System, ..spec("log", 1, memory_mb) };
    with_port(&mut spec, port);
    spec
}

fn with_port(spec: &mut JobSpec, port: u16) {
    let ask = PortAsk { label: "http".into(), value: port, to: 0 };
    let network = Network { ports: vec![ask], names_mode: false };
    spec.groups[0].network = (port > 0).then_some(network);
}

/// A system job takes room of each machine: what does not fit beside it gets no machine, and the
/// job says so. Six machines came in two seconds before.
#[test]
fn no_machine_comes_for_what_has_no_room_beside_a_system_job() {
    let mut world = World::new(6);
    world.register(system(500, 0));
    world.job("web", 1);
    world.pass(20_000);
    assert_eq!(world.rows(), []);
    let why = world.waits_for("web");
    assert!(why.contains("has no room beside the pool's system jobs"), "{why}");
    // It goes, and the job gets its machine.
    world.stop("log");
    world.pass(1_000);
    assert_eq!(world.make_and_boot().len(), 1);
    assert_eq!(world.running("web"), 1);
}

/// The same of a static port.
#[test]
fn no_machine_comes_for_a_port_that_a_system_job_has() {
    let mut world = World::new(6);
    world.register(system(10, 8080));
    let mut web = spec("web", 1, 100);
    with_port(&mut web, 8080);
    world.register(web);
    world.pass(20_000);
    assert_eq!(world.rows(), []);
    let why = world.waits_for("web");
    let words = "port 8080 is taken on each machine of type \"small\" by system job \"log\"";
    assert!(why.contains(words), "{why}");
}

/// What fits beside it is packed beside it: three of 300 beside 100 need one machine, four need
/// two.
#[test]
fn instances_that_fit_are_packed_beside_the_system_job() {
    let mut world = World::new(6);
    world.register(system(100, 0));
    world.register(spec("web", 4, 300));
    assert_eq!(world.make_and_boot().len(), 2);
    assert_eq!((world.running("web"), world.running("log")), (4, 2));
    world.pass(MINUTE);
    assert_eq!((world.made, world.rows().len()), (2, 2));
}

/// What a system job takes of a machine is not counted on before it runs there either.
#[test]
fn resources_that_a_system_job_will_take_are_no_room() {
    let mut world = World::new(6);
    world.register(system(300, 0));
    world.register(spec("web", 1, 400));
    let id = world.make()[0];
    world.register_agent(id, &[]);
    world.run();
    assert_eq!(world.running("log"), 0, "its node is not ready");
    world.register(spec("api", 1, 400));
    assert_eq!(world.take_calls("create").len(), 1, "1,000 have no room for 300 and two of 400");
}

/// A system job that ends on a machine does not begin its idle time anew.
#[test]
fn a_system_job_that_ends_is_no_work() {
    let mut world = World::new(6);
    world.register(system(100, 0));
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.stop("web");
    world.pass(50_000);
    world.stop("log");
    assert_eq!((world.running("log"), world.cause(id)), (0, None));
    world.pass(15_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Idle));
}

/// A machine on which only system jobs run is idle, and goes.
#[test]
fn a_machine_with_system_jobs_only_idles_out() {
    let mut world = World::new(6);
    world.register(system(100, 0));
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    assert_eq!((world.running("web"), world.running("log")), (1, 1));
    world.pass(5 * MINUTE);
    world.stop("web");
    world.pass(50_000);
    assert_eq!((world.cause(id), world.running("log")), (None, 1));
    world.pass(15_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Idle));
    assert_eq!(world.destroy(), [id]);
}

/// A machine takes no more allocations than its type declares: eight jobs get eight machines at
/// once.
#[test]
fn slots_are_part_of_the_packing() {
    let mut pool = pool("p", 20);
    let one = InstanceType { max_allocations: 1, ..kind("small") };
    pool.types.insert("small".into(), one.into());
    let mut world = World::with(pool);
    world.register(spec("web", 8, 10));
    assert_eq!(world.take_calls("create").len(), 8);
}

/// A system job takes a slot of each machine.
#[test]
fn a_system_job_takes_a_slot() {
    let mut pool = pool("p", 20);
    let two = InstanceType { max_allocations: 2, ..kind("small") };
    pool.types.insert("small".into(), two.into());
    let mut world = World::with(pool);
    world.register(system(10, 0));
    world.register(spec("web", 2, 10));
    assert_eq!(world.take_calls("create").len(), 2);
}

/// A static port is given once on a machine.
#[test]
fn jobs_of_one_static_port_get_a_machine_each() {
    let mut world = World::new(6);
    for name in ["web", "api"] {
        let mut job = spec(name, 1, 10);
        with_port(&mut job, 8080);
        world.register(job);
    }
    assert_eq!(world.take_calls("create").len(), 2);
}

/// The slots of a machine that registers are those of its agent.
#[test]
fn a_machine_without_slots_is_not_counted_on() {
    let mut pool = pool("p", 20);
    let one = InstanceType { max_allocations: 1, ..kind("small") };
    pool.types.insert("small".into(), one.into());
    let mut world = World::with(pool);
    world.register(spec("web", 1, 10));
    let id = world.make()[0];
    world.register_agent(id, &[]);
    world.run();
    world.register(spec("api", 1, 10));
    assert_eq!(world.take_calls("create").len(), 1);
}

/// An agent whose own limit differs from its type's is told of.
#[test]
fn another_limit_of_an_agent_is_told() {
    let mut world = World::new(2);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    let mut row = world.row(id);
    let said = |world: &World, row: &Instance| {
        crate::explain::instance(&world.driver.state, world.at(), row)
    };
    assert!(!said(&world, &row).contains("its agent takes"));
    let declared = InstanceType { max_allocations: 8, ..(*row.kind).clone() };
    row.kind = declared.into();
    let words = "its agent takes any number of allocations at a time, its type declares 8";
    assert!(said(&world, &row).contains(words), "{}", said(&world, &row));
}
