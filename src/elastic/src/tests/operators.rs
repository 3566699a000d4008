//! What operators say of pools and instances, and what it means for them.

use fsm::pool::Behavior;

use super::*;

impl World {
    pub(super) fn behave(&mut self, id: InstanceId, behavior: Behavior) {
        self.driver.behave(id, behavior);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }
}

fn large() -> fsm::pool::InstanceType {
    let (memory_mb, price_micro) = (4_000, 9_000);
    fsm::pool::InstanceType { memory_mb, price_micro, ..crate::testing::kind("large") }
}

/// AR-01 (a new leader finds all instances as they were: held ones held, those of a type that left
/// the pool draining).
#[test]
fn a_new_leader_finds_every_instance_as_it_was() {
    let mut pool = pool("p", 9);
    pool.types.insert("large".into(), large().into());
    pool.price_factor_milli = 1_000_000;
    pool.idle_timeout_ms = 60 * MINUTE;
    let mut world = World::with(pool);
    world.job("a", 3);
    world.register(spec("b", 1, 3_000));
    let ids = world.make_and_boot();
    let large = *ids.iter().find(|id| &*world.row(**id).kind.name == "large").unwrap();
    let held = *ids.iter().find(|id| **id != large).unwrap();
    world.behave(held, Behavior::Hold);
    world.set_pool(|pool| {
        pool.types.remove("large");
    });
    world.lead();
    world.pass(MINUTE);
    let behaviors = |behavior| {
        let rows = world.rows().into_iter().filter(|row| row.behavior == behavior);
        rows.map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(behaviors(Behavior::Hold), [held]);
    assert_eq!(behaviors(Behavior::Drain), [large]);
    assert_eq!(behaviors(Behavior::Run).len(), 2);
    assert_eq!(world.made, 4, "none was made anew");
}

/// AR-05 (a held instance is not offered and not shut down; set to run it is offered; set to drain
/// it goes at once when it is empty).
#[test]
fn hold_run_and_drain() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.stop("web");
    world.behave(id, Behavior::Hold);
    world.pass(10 * MINUTE);
    assert_eq!(world.cause(id), None);
    world.job("api", 1);
    assert_eq!((world.running("api"), world.rows().len()), (0, 1), "it counts and is not offered");
    assert!(world.waits_for("api").contains("at max: 1 of 1"), "{}", world.waits_for("api"));
    world.behave(id, Behavior::Run);
    assert_eq!(world.running("api"), 1);
    world.stop("api");
    world.behave(id, Behavior::Drain);
    assert_eq!(world.cause(id), Some(ShutdownCause::Drained));
}

/// A machine that drains goes when it is empty, also while it boots.
#[test]
fn a_draining_instance_goes_when_it_is_empty() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make()[0];
    world.behave(id, Behavior::Drain);
    assert_eq!(world.cause(id), Some(ShutdownCause::Drained));
}

/// AR-16 (a held instance is never shut down by machine, however long its node is down).
#[test]
fn a_held_instance_stays_when_its_node_fails() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.behave(id, Behavior::Hold);
    world.driver.liveness(&name(id), fsm::Liveness::Down);
    world.pass(60 * MINUTE);
    assert_eq!(world.cause(id), None);
}

/// AR-06 (a pool that may have fewer: machines that boot go first, then the longest idle; what runs
/// drains and is not cut off).
#[test]
fn a_smaller_pool_gives_up_what_boots_then_what_idles_then_drains() {
    let mut pool = pool("p", 4);
    pool.idle_timeout_ms = 60 * MINUTE;
    let mut world = World::with(pool);
    world.job("a", 1);
    let first = world.make_and_boot()[0];
    world.job("b", 1);
    let second = world.make_and_boot()[0];
    world.job("c", 1);
    let busy = world.make_and_boot()[0];
    world.stop("a");
    world.pass(5_000);
    world.stop("b");
    // The next waits for a machine of its own: what idles takes it, so it has to be larger.
    world.set_pool(|pool| {
        pool.types.insert("large".into(), large().into());
        pool.price_factor_milli = 1_000_000;
    });
    world.register(spec("d", 1, 3_000));
    let booting = world.make()[0];
    world.driver.deregister_job("d", true);
    world.set_pool(|pool| pool.max = 2);
    world.pass(2_000);
    assert_eq!(world.cause(booting), Some(ShutdownCause::Shrink));
    assert_eq!(world.cause(first), Some(ShutdownCause::Shrink));
    assert_eq!((world.cause(second), world.cause(busy)), (None, None));
    world.destroy();
    world.set_pool(|pool| pool.max = 0);
    world.pass(2_000);
    assert_eq!(world.cause(second), Some(ShutdownCause::Shrink));
    assert_eq!((world.cause(busy), world.row(busy).behavior), (None, Behavior::Drain));
}

/// AR-17 (work goes to the machine that is used more, so that the others can idle out; held and
/// draining ones are not offered).
#[test]
fn work_goes_where_work_is() {
    let mut world = World::new(3);
    world.register(spec("a", 1, 400));
    let first = world.make_and_boot()[0];
    world.register(spec("big", 2, 900));
    world.make_and_boot();
    world.stop("big");
    world.register(spec("b", 1, 400));
    let on: Vec<_> =
        world.driver.state.allocations_of_job(&job_key("b")).map(|row| row.node).collect();
    assert_eq!(on, [node_id(&name(first))]);
}

/// A paused pool neither grows nor shrinks.
#[test]
fn a_paused_pool_stays_as_it_is() {
    let mut world = World::new(3);
    world.job("a", 1);
    let id = world.make_and_boot()[0];
    let pause = |pause| {
        Command::from(fsm::pool::PauseInstancePool {
            name: "p".into(),
            pause,
            by: "alice".into(),
            reason: "audit".into(),
        })
    };
    world.commit(pause(true));
    world.stop("a");
    world.job("b", 2);
    world.stop("b");
    world.pass(10 * MINUTE);
    assert_eq!((world.rows().len(), world.cause(id)), (1, None));
    world.commit(pause(false));
    world.pass(2_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Idle));
}

/// `min` instances are there without demand, of the cheapest type.
#[test]
fn a_minimum_is_kept() {
    let mut pool = pool("p", 3);
    pool.min = 2;
    let mut world = World::with(pool);
    let ids = world.make_and_boot();
    assert_eq!(ids.len(), 2);
    world.pass(10 * MINUTE);
    assert_eq!(world.rows().len(), 2);
    assert!(ids.iter().all(|id| world.cause(*id).is_none()));
}

/// What the pool drains itself runs again when the file is put right, or when others went so that
/// the pool has room; what an operator drains goes on draining.
#[test]
fn a_pools_own_drain_ends_with_its_reason() {
    let mut world = World::new(3);
    world.job("web", 3);
    let ids = world.make_and_boot();
    world.set_pool(|pool| pool.max = 1);
    world.pass(6_000);
    let drained = |world: &World| -> Vec<InstanceId> {
        ids.iter().copied().filter(|id| world.row(*id).behavior == Behavior::Drain).collect()
    };
    assert_eq!(drained(&world).len(), 2);
    world.set_pool(|pool| pool.max = 3);
    world.pass(6_000);
    assert_eq!(drained(&world), [], "there is room again");
    let declared = world.driver.state.instance_pools().get(&"p".into()).unwrap().types.clone();
    world.set_pool(|pool| {
        pool.types = [("large".into(), large().into())].into();
    });
    world.pass(6_000);
    assert_eq!(drained(&world).len(), 3);
    world.behave(ids[0], Behavior::Drain);
    world.set_pool(|pool| pool.types = declared);
    world.pass(6_000);
    assert_eq!(drained(&world), [ids[0]], "an operator wants that one gone");
    let row = world.row(ids[1]);
    assert_eq!(
        (&*row.behavior_by, &*row.behavior_reason),
        ("pool", "the pool has room for it again")
    );
}
