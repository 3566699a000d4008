//! Boots that fail: what is remembered of them, by whom, and what ends it.

use fsm::{
    node::Readiness,
    pool::{InstanceType, PauseInstancePool},
};

use super::*;
use crate::{
    call::{Description, MachineState},
    testing::kind,
};

impl World {
    /// Machines come and fail as soon as they are there, for so many seconds. Answers with how many
    /// were made of each type.
    fn fail_for(&mut self, seconds: u64, fails: impl Fn(&Instance) -> bool) -> BTreeMap<Text, u32> {
        let mut made = BTreeMap::new();
        for _ in 0..seconds {
            for id in self.make() {
                let row = self.row(id);
                *made.entry(row.kind.name.clone()).or_default() += 1;
                if fails(&row) {
                    self.fail(id);
                } else {
                    self.boot(id);
                }
            }
            self.destroy();
            self.pass(1_000);
        }
        made
    }

    /// A machine's boot fails.
    fn fail(&mut self, id: InstanceId) {
        self.fail_all(&[id]);
    }

    /// The boots of machines fail in the same moment.
    fn fail_all(&mut self, ids: &[InstanceId]) {
        for id in ids {
            let command = self.driver.shut_down_command(*id, ShutdownCause::BootFailed);
            self.commit(command);
        }
        self.run();
    }

    /// The agent registers, and its readiness check says no for good.
    fn boot_in_vain(&mut self, id: InstanceId) {
        self.register_agent(id, &[]);
        let name = name(id);
        self.driver.readiness(&name, Readiness::Fatal);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    fn history(&self) -> fsm::pool::PoolHistory {
        (**self.driver.state.pool_histories().get(&"p".into()).unwrap()).clone()
    }

    fn pool_waits(&self) -> String {
        let pool = self.driver.state.instance_pools().get(&"p".into()).unwrap();
        crate::explain::pool(&self.driver.state, self.at(), pool).join("; ")
    }

    fn resume(&mut self) {
        let (name, by, reason) = ("p".into(), "".into(), "".into());
        self.commit(PauseInstancePool { name, pause: false, by, reason }.into());
        self.run();
    }
}

fn all(_: &Instance) -> bool {
    true
}

/// A boot that fails at once is tried again after 1 s, 2 s, 4 s, …: not 97 times in 30 s. Job and
/// pool say so.
#[test]
fn a_boot_that_fails_is_tried_again_with_doubled_pauses() {
    let mut world = World::new(20);
    world.job("web", 1);
    let made = world.fail_for(30, all);
    assert!((5..=6).contains(&made["small"]), "{made:?}");
    let why = world.waits_for("web");
    assert!(
        why.contains("not creating type small: ") && why.contains("instances failed (did not boot"),
        "{why}"
    );
    let more = world.fail_for(3_600, all)["small"];
    assert!((8..=12).contains(&more), "10 min is the longest pause: {more}");
}

/// The next leader knows of the failures of the last one.
#[test]
fn a_new_leader_does_not_begin_anew() {
    let mut world = World::new(20);
    world.job("web", 1);
    world.fail_for(30, all);
    let level = world.history().types["small"].level;
    world.lead();
    let made = world.fail_for(14, all);
    assert_eq!(made.get("small"), None, "level {level}");
}

/// Machines that were asked for together and fail together are one failure to the backoff, and as
/// many as they are in a row.
#[test]
fn failures_of_one_burst_count_once() {
    let mut world = World::new(8);
    world.job("web", 8);
    let ids = world.make();
    assert_eq!(ids.len(), 8);
    world.fail_all(&ids);
    let history = world.history();
    assert_eq!((history.types["small"].level, history.types["small"].failures), (1, 8));
    assert_eq!((history.in_a_row, history.protected_since), (8, 0));
}

/// A cheaper type that never boots is left alone for a while; a dearer one within the price factor
/// runs the job.
#[test]
fn another_type_is_made_while_one_fails() {
    let mut pool = pool("p", 9);
    let dear = InstanceType { price_micro: 1_400, ..kind("dear") };
    pool.types.insert("dear".into(), dear.into());
    let mut world = World::with(pool);
    world.job("web", 1);
    let made = world.fail_for(10, |row| &*row.kind.name == "small");
    assert_eq!((made["small"], made["dear"], world.running("web")), (1, 1, 1));
}

/// A boot that succeeds takes one step back; a machine that served for the reset time clears it.
#[test]
fn success_takes_back_what_failure_added() {
    let mut world = World::new(20);
    world.job("web", 1);
    world.fail_for(12, all);
    let level = world.history().types["small"].level;
    assert!(level >= 3, "{level}");
    world.pass(20_000);
    let id = world.make_and_boot()[0];
    assert_eq!(world.history().types["small"].level, level - 1);
    world.job("api", 1);
    world.pass(10 * MINUTE);
    let other = world.make()[0];
    world.fail(other);
    assert_eq!(world.history().types["small"].level, 1, "the first one has served for its time");
    assert_eq!(world.cause(id), None);
}

/// What a machine has taken back by serving stays so when the machine is gone.
#[test]
fn a_machine_that_has_served_and_gone_cleared_its_type() {
    let mut world = World::new(20);
    world.job("web", 1);
    world.fail_for(12, all);
    world.pass(20_000);
    let id = world.make_and_boot()[0];
    assert!(world.history().types["small"].level > 1);
    world.pass(10 * MINUTE);
    world.stop("web");
    world.pass(10 * MINUTE);
    assert_eq!(world.destroy(), [id]);
    assert_eq!(world.history().types, BTreeMap::new());
}

/// A machine that serves while its type pauses makes the pause that of one level less.
#[test]
fn success_shortens_the_pause() {
    let mut world = World::new(20);
    world.job("web", 2);
    for pause_ms in [1_000, 2_000] {
        let ids = world.make();
        world.fail_all(&ids);
        world.destroy();
        world.pass(pause_ms + 500);
    }
    let ids = world.make();
    world.fail(ids[0]);
    assert_eq!(world.history().types["small"].level, 3, "that is a pause of 4 s");
    world.boot(ids[1]);
    world.destroy();
    world.pass(2_500);
    assert_eq!(world.make().len(), 1);
}

/// A readiness check that says no for good is a failed boot, though the machine is there until its
/// probe timeout: the pool does not fill up with such.
#[test]
fn a_readiness_that_says_no_is_a_failed_boot() {
    let mut world = World::new(20);
    world.job("web", 1);
    for _ in 0..30 {
        for id in world.make() {
            world.boot_in_vain(id);
        }
        world.pass(1_000);
    }
    assert!((5..=6).contains(&world.made), "{}", world.made);
    let why = world.waits_for("web");
    assert!(why.contains("instances failed (not ready"), "{why}");
}

/// After ten failures in a row for the same reason one machine is made at a time, also when many
/// are wanted; pool, job and instance say so, and one that serves ends it.
#[test]
fn a_protected_pool_tries_one_at_a_time() {
    let mut world = World::new(12);
    world.job("web", 12);
    let ids = world.make();
    world.fail_all(&ids);
    assert_eq!((world.history().in_a_row, world.history().protected_since > 0), (12, true));
    world.destroy();
    world.pass(3_000);
    let probes = world.make();
    assert_eq!(probes.len(), 1);
    let index = world.driver.state.index();
    world.pass(5 * MINUTE);
    // The provider's places are noted once.
    assert!(world.driver.state.index() <= index + 1, "nothing is asked for in vain");
    assert_eq!(world.take_calls("create").len(), 0, "not while the first is not known to fail");
    let why = world.waits_for("web");
    let protected = "12 instances in a row failed (did not boot), so one is made at a time";
    assert!(why.contains(protected) && world.pool_waits().contains(protected), "{why}");
    let row = world.row(probes[0]);
    let said = crate::explain::instance(&world.driver.state, world.at(), &row);
    assert!(said.starts_with("the one that its protected pool tries; booting"), "{said}");
    world.boot(probes[0]);
    assert_eq!(world.history().protected_since, 0);
    world.pass(2_000);
    assert_eq!(world.make().len(), 11);
}

/// What fails beside machines of the same time that serve does not make a pool protected, however
/// many it is: it is some of a burst.
#[test]
fn a_part_of_a_burst_does_not_protect() {
    let mut world = World::new(40);
    world.job("web", 32);
    let ids = world.make();
    let (good, bad) = ids.split_at(17);
    for id in good {
        world.boot(*id);
    }
    world.fail_all(bad);
    assert_eq!((bad.len(), world.history().protected_since), (15, 0));
    world.destroy();
    world.pass(3_000);
    assert_eq!(world.make().len(), 15);
}

/// Failures for different reasons are not in a row.
#[test]
fn different_failures_do_not_protect() {
    let mut world = World::new(20);
    world.job("web", 12);
    let ids = world.make();
    let (first, second) = ids.split_at(6);
    world.fail_all(first);
    for id in second {
        world.boot_in_vain(*id);
    }
    assert_eq!((world.history().in_a_row, world.history().protected_since), (6, 0));
}

/// `pool resume` tries at once, after failures and after refusals.
#[test]
fn resume_tries_at_once() {
    let mut world = World::new(20);
    world.job("web", 12);
    let ids = world.make();
    world.fail_all(&ids);
    world.destroy();
    assert_eq!(world.take_calls("create").len(), 0);
    world.resume();
    world.pass(200);
    assert_eq!(world.refuse(ErrorClass::Fatal, ErrorScope::All, Some(60 * MINUTE)), 12);
    world.pass(1_000);
    assert_eq!(world.take_calls("create").len(), 0);
    world.resume();
    world.pass(200);
    assert_eq!(world.take_calls("create").len(), 12);
}

/// No more machines are made in an hour than the pool may; the pool says until when.
#[test]
fn creates_of_an_hour_are_bounded() {
    let mut pool = pool("p", 20);
    pool.max_creates_per_hour = 5;
    let mut world = World::with(pool);
    world.job("web", 8);
    assert_eq!(world.make_and_boot().len(), 5);
    let index = world.driver.state.index();
    world.pass(50 * MINUTE);
    assert_eq!(world.driver.state.index(), index, "nothing is asked for in vain");
    assert_eq!(world.take_calls("create").len(), 0);
    let why = world.waits_for("web");
    assert!(why.contains("at max_creates_per_hour: 5 of 5, until "), "{why}");
    world.pass(16 * MINUTE);
    assert_eq!(world.make_and_boot().len(), 3);
}

/// A create that was refused made nothing and is not counted.
#[test]
fn refused_creates_are_no_creates_of_the_hour() {
    let mut pool = pool("p", 20);
    pool.max_creates_per_hour = 5;
    let mut world = World::with(pool);
    world.job("web", 5);
    for _ in 0..3 {
        assert_eq!(world.refuse(ErrorClass::Quota, ErrorScope::All, Some(1_000)), 5);
        world.pass(2_000);
    }
    assert_eq!(world.make().len(), 5);
}

/// A pool costs no more in an hour than it may.
#[test]
fn the_price_of_an_hour_is_bounded() {
    let mut pool = pool("p", 20);
    pool.max_price_micro = 2_500;
    let mut world = World::with(pool);
    world.job("web", 4);
    assert_eq!(world.make_and_boot().len(), 2);
    let why = world.waits_for("web");
    assert!(why.contains("at max_price_per_hour: 0.002 of 0.0025"), "{why}");
    world.set_pool(|pool| pool.max_price_micro = 4_000);
    assert_eq!(world.make_and_boot().len(), 2);
}

/// A lack of capacity of which the provider does not say how long it lasts is asked about with
/// doubled pauses, up to two minutes.
#[test]
fn a_lack_of_capacity_is_asked_about_with_doubled_pauses() {
    let mut world = World::new(9);
    world.job("web", 1);
    let mut asked = 0;
    for _ in 0..30 {
        asked += world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None);
        world.pass(1_000);
    }
    assert!((5..=6).contains(&asked), "{asked}");
    for _ in 0..3_600 {
        asked += world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None);
        world.pass(1_000);
    }
    assert!((32..=46).contains(&asked), "two minutes is the longest pause: {asked}");
}

/// A file that is applied again as it is forgets nothing; one with another type does.
#[test]
fn a_changed_type_begins_anew() {
    let mut world = World::new(20);
    world.job("web", 1);
    world.fail_for(12, all);
    let before = world.history().types;
    world.set_pool(|_| {});
    assert_eq!(world.history().types, before);
    world.set_pool(|pool| {
        let mended = InstanceType { image: "mended".into(), ..kind("small") };
        pool.types.insert("small".into(), mended.into());
    });
    assert_eq!(world.history().types, BTreeMap::new());
    assert_eq!(world.take_calls("create").len(), 1);
}

/// Refusals of creates that were asked for together are one lack of capacity.
#[test]
fn refusals_of_one_burst_count_once() {
    let mut world = World::new(9);
    world.job("web", 4);
    assert_eq!(world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None), 4);
    let limits = world.driver.state.provider_limits().iter();
    assert_eq!(limits.map(|row| row.level).collect::<Vec<_>>(), [1]);
}

/// A lack of capacity that is long over begins anew.
#[test]
fn a_lack_of_capacity_of_long_ago_is_forgotten() {
    let mut world = World::new(9);
    let level =
        |world: &World| world.driver.state.provider_limits().iter().map(|row| row.level).max();
    world.job("web", 1);
    for known in [1, 2] {
        assert_eq!(world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None), 1);
        assert_eq!(level(&world), Some(known));
        world.pass(2_000);
    }
    world.stop("web");
    world.pass(15 * MINUTE);
    world.take_calls("create");
    world.job("api", 1);
    world.refuse(ErrorClass::NoCapacity, ErrorScope::Type, None);
    assert_eq!(level(&world), Some(1));
}

/// A machine that is gone before it has served for its time is a failed boot, whether lists lack it
/// or its provider says so; one that served for longer is its provider's to take.
#[test]
fn a_machine_that_vanishes_early_is_a_failed_boot() {
    for (served_ms, failures) in [(MINUTE, 1), (60 * MINUTE, 0)] {
        for is_described in [false, true] {
            let mut world = World::new(9);
            world.job("web", 1);
            let id = world.make_and_boot()[0];
            world.pass(served_ms);
            world.machines.clear();
            world.driver.liveness(&name(id), fsm::Liveness::Down);
            let now = world.at();
            world.fleet.restore(now, &world.driver.state);
            world.run();
            for (call, _) in world.take_calls("describe").into_iter().filter(|_| is_described) {
                let (state, address, words) = (MachineState::Gone, "".into(), "".into());
                let gone = Description { state, address, words };
                world.answer(call, Ok(Answer::Described(gone)));
            }
            world.run();
            world.destroy();
            world.pass(6 * MINUTE);
            assert!(!world.driver.state.instances().contains(&id));
            let known = world.history().types.get("small").map_or(0, |known| known.failures);
            assert_eq!(known, failures, "it served for {served_ms} ms, {is_described}");
        }
    }
}
