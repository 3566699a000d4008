//! Capacity groups: members follow what sources ask for. Unit 4,096 MB, as in the scenarios.

use fsm::{
    CapacityGroup, CapacityTarget,
    capacity::{BusyRule, MemberPhase, Prediction, Requirements, SetRequirements},
    pool::Behavior,
    testing::{capacity_group, requirements},
};

use super::*;

const UNIT: u64 = 4096;
const DAY: u64 = 24 * 60 * MINUTE;

impl World {
    /// A pool of machines of 4,096 MB that feeds the group `web`, of up to ten members.
    fn group(change: impl FnOnce(&mut CapacityGroup)) -> Self {
        Self::groups(20, vec![with(change)])
    }

    fn groups(max: u32, groups: Vec<CapacityGroup>) -> Self {
        let mut pool = pool("p", max);
        let mut small = (*pool.types[&Text::from("small")]).clone();
        small.memory_mb = UNIT;
        pool.types.insert("small".into(), small.into());
        pool.groups = groups.into_iter().map(|row| (row.name.clone(), row.into())).collect();
        Self::with(pool)
    }

    /// A source says what it needs of `web`, for as long as a test takes.
    fn need(&mut self, amount: u64) {
        self.say("lb1", &[("web", amount)], Some(DAY));
    }

    fn say(&mut self, source: &str, amounts: &[(&str, u64)], ttl_ms: Option<u64>) {
        let known = self.driver.state.capacity_sources().get(&source.into());
        let seq = known.map_or(1, |row| row.seq + 1);
        let word = Requirements { ttl_ms, ..requirements(source, seq, amounts) };
        self.driver.at_ms(self.now);
        let reply = self.commit(SetRequirements { words: vec![word] }.into());
        assert_eq!(reply, Reply::Done);
        self.run();
    }

    fn members(&self, phase: MemberPhase) -> Vec<InstanceId> {
        let state = &self.driver.state;
        let rows = state.members_of("web").filter(|row| state.member_phase(row) == phase);
        let mut rows: Vec<_> = rows.cloned().collect();
        rows.sort_by_key(|row| (row.create_index, row.id));
        rows.iter().map(|row| row.id).collect()
    }

    /// Members that serve, are on their way, and drain.
    fn phases(&self) -> [usize; 3] {
        [MemberPhase::Active, MemberPhase::Coming, MemberPhase::Draining]
            .map(|phase| self.members(phase).len())
    }

    fn target(&self) -> CapacityTarget {
        (**self.driver.state.capacity_targets().get(&"web".into()).unwrap()).clone()
    }

    /// Needs so much, and has the members for it.
    fn filled(&mut self, amount: u64) -> Vec<InstanceId> {
        self.need(amount);
        self.make_and_boot();
        self.members(MemberPhase::Active)
    }
}

fn with(change: impl FnOnce(&mut CapacityGroup)) -> CapacityGroup {
    let mut group = CapacityGroup { max: 10, ..capacity_group("web") };
    change(&mut group);
    group
}

/// FN-01 (an empty group needs 1 to 4,096: one member; 4,097: two; the same again: no more).
#[test]
fn a_group_grows_by_units() {
    let mut world = World::group(|_| {});
    assert_eq!(world.phases(), [0, 0, 0]);
    world.need(1);
    assert_eq!((world.phases(), world.calls.len()), ([0, 1, 0], 1));
    world.need(UNIT);
    assert_eq!(world.phases(), [0, 1, 0]);
    world.need(UNIT + 1);
    assert_eq!(world.phases(), [0, 2, 0]);
    for _ in 0..5 {
        world.need(UNIT + 1);
        world.pass(1_000);
    }
    assert_eq!((world.phases(), world.calls.len()), ([0, 2, 0], 2));
    world.make_and_boot();
    assert_eq!(world.phases(), [2, 0, 0]);
    world.pass(10 * MINUTE);
    assert_eq!(world.phases(), [2, 0, 0], "an active member does not go as idle");
}

/// FN-03 (a need of 200 units at once: 20 are asked for, the rest in the paced interval). The pace
/// is per time: words in between, and a new leader, do not make it faster.
#[test]
fn a_group_grows_in_steps_of_time() {
    let group = with(|web| web.max = 250);
    let mut world = World::groups(300, vec![group]);
    world.need(200 * UNIT);
    let asked = |world: &World| world.driver.state.instances().len();
    assert_eq!(asked(&world), 20);
    for _ in 0..2 {
        world.need(200 * UNIT);
    }
    assert_eq!(asked(&world), 20, "not per word");
    world.lead();
    assert_eq!(asked(&world), 20, "not per leader");
    let mut times = vec![world.target().pace.last_at];
    for _ in 0..60 {
        let before = asked(&world);
        world.pass(100);
        assert!(asked(&world) <= before + 20);
        if asked(&world) > before {
            times.push(world.target().pace.last_at);
        }
    }
    assert_eq!(times.len(), 10);
    assert!(times.windows(2).all(|pair| pair[1] >= pair[0] + 1_000), "{times:?}");
    world.pass(10_000);
    assert_eq!((asked(&world), world.phases()), (200, [0, 200, 0]), "exactly what is wanted");
}

/// FN-04 (three members, one unit is needed: the two newest drain). It waits for the cool-down.
#[test]
fn a_group_shrinks_from_the_newest_after_the_cool_down() {
    let mut world = World::group(|_| {});
    let first = world.filled(UNIT)[0];
    let all = world.filled(3 * UNIT);
    assert_eq!((all.len(), all[0]), (3, first));
    world.need(UNIT);
    world.pass(55_000);
    assert_eq!(world.phases(), [3, 0, 0], "the cool-down is not over");
    world.pass(10_000);
    assert_eq!(world.members(MemberPhase::Active), [first]);
    assert_eq!(world.members(MemberPhase::Draining), all[1..]);
    let active = world.driver.state.active_members("web");
    assert_eq!(active.iter().map(|row| row.id).collect::<Vec<_>>(), [first]);
}

/// The newest is the last of the list of members, whoever was asked for first: a jump hash over the
/// list moves no more than the share of those that went.
#[test]
fn a_group_shrinks_from_the_end_of_its_list_of_members() {
    let mut world = World::group(|group| group.cooldown_down_ms = 0);
    world.need(3 * UNIT);
    for id in world.make().into_iter().rev() {
        world.pass(1_000);
        world.boot(id);
    }
    let list = |world: &World| -> Vec<InstanceId> {
        world.driver.state.active_members("web").iter().map(|row| row.id).collect()
    };
    let all = list(&world);
    assert_eq!(all.len(), 3);
    world.need(2 * UNIT);
    assert_eq!(list(&world), all[..2]);
    world.need(UNIT);
    assert_eq!(list(&world), all[..1]);
}

/// What is wanted again within the cool-down never drained.
#[test]
fn a_need_that_swings_faster_than_the_cool_down_moves_nothing() {
    let mut world = World::group(|_| {});
    world.filled(3 * UNIT);
    for _ in 0..10 {
        world.need(UNIT);
        world.pass(30_000);
        world.need(3 * UNIT);
        world.pass(30_000);
        assert_eq!(world.phases(), [3, 0, 0]);
    }
    assert_eq!(world.made, 3);
}

/// Less than a unit too much is no reason to shrink.
#[test]
fn the_hysteresis_is_one_unit() {
    let mut world = World::group(|_| {});
    world.filled(2 * UNIT);
    world.need(UNIT + 1);
    world.pass(5 * MINUTE);
    assert_eq!(world.phases(), [2, 0, 0]);
    world.need(UNIT);
    world.pass(2 * MINUTE);
    assert_eq!(world.phases()[0], 1);
}

/// FN-06 (two drain; the need rises by one: the last drained comes back without a create; by three:
/// both, and one is made).
#[test]
fn drained_members_are_taken_back_first() {
    for (more, active, coming, creates) in [(1, 2, 0, 0), (3, 3, 1, 1)] {
        let mut world = World::group(|web| web.drain_ms = 10 * MINUTE);
        let all = world.filled(3 * UNIT);
        world.need(UNIT);
        world.pass(62_000);
        let drained = world.members(MemberPhase::Draining);
        assert_eq!(drained.len(), 2);
        let row = |id: &InstanceId| world.row(*id).member_drain().unwrap().order;
        let last = *drained.iter().max_by_key(|id| row(id)).unwrap();
        assert_eq!(last, all[1], "the newest drained first");
        let deadline = world.row(all[2]).member_drain().unwrap().deadline_at;
        world.pass(20_000);
        world.need((1 + more) * UNIT);
        assert_eq!(world.phases()[..2], [active, coming]);
        assert!(world.members(MemberPhase::Active).contains(&last));
        assert_eq!(world.take_calls("create").len(), creates);
        if more == 1 {
            let drain = *world.row(all[2]).member_drain().unwrap();
            assert_eq!(drain.deadline_at, deadline, "it is set once");
        }
    }
}

/// FN-07 (with `allocations` a drained member goes as soon as it is empty, with `deadline` at its
/// deadline; with work it waits for the deadline; a failed removal is tried again).
#[test]
fn a_drained_member_goes_when_its_group_says() {
    for busy in BusyRule::ALL {
        let mut world = World::group(|web| {
            (web.busy, web.cooldown_down_ms) = (busy, 0);
        });
        let all = world.filled(2 * UNIT);
        world.register(spec("web", 2, 3_000));
        assert_eq!(world.running("web"), 2);
        world.need(UNIT);
        assert_eq!(world.members(MemberPhase::Draining), [all[1]]);
        world.pass(20_000);
        assert_eq!(world.cause(all[1]), None, "work runs there");
        world.stop("web");
        world.pass(2_000);
        let is_early = busy == BusyRule::Allocations;
        assert_eq!(world.cause(all[1]).is_some(), is_early);
        world.pass(30_000);
        assert_eq!(world.cause(all[1]), Some(ShutdownCause::Released));
        let refused = world.take_calls("destroy");
        for (id, _) in &refused {
            let error = ProviderError {
                class: ErrorClass::Transient,
                scope: ErrorScope::All,
                retry_after_ms: None,
                detail: "busy".into(),
            };
            world.answer(*id, Err(error));
        }
        assert_eq!(refused.len(), 1);
        world.pass(11_000);
        assert_eq!(world.destroy(), [all[1]]);
        assert_eq!((world.phases(), world.rows().len()), ([1, 0, 0], 1));
    }
}

/// FN-08 (a silent source counts until its time is over, is dropped once, and the target falls).
#[test]
fn a_silent_source_is_dropped_once() {
    let mut world = World::group(|web| web.cooldown_down_ms = 0);
    world.say("lb1", &[("web", UNIT)], Some(DAY));
    world.say("lb2", &[("web", 2 * UNIT)], None);
    world.make_and_boot();
    assert_eq!(world.phases(), [3, 0, 0]);
    world.pass(9_000);
    assert_eq!(world.target().required, 3 * UNIT);
    world.pass(3_000);
    let row = world.target();
    assert_eq!((row.required, row.expired, row.desired()), (UNIT, 1, UNIT));
    assert_eq!(world.phases(), [1, 0, 2]);
    world.pass(5 * MINUTE);
    assert_eq!(world.target().expired, 1);
}

/// FN-12 (a new leader with two members and a need of one: no create, exactly one active, and no
/// oscillation over 100 updates).
#[test]
fn a_new_leader_makes_nothing_twice_and_does_not_swing() {
    let mut world = World::group(|_| {});
    let first = world.filled(2 * UNIT)[0];
    world.need(UNIT);
    world.lead();
    for _ in 0..100 {
        world.need(UNIT);
        world.pass(1_000);
        world.destroy();
    }
    assert_eq!(world.members(MemberPhase::Active), [first]);
    world.pass(2 * MINUTE);
    world.destroy();
    assert_eq!((world.rows().len(), world.made), (1, 2));
}

/// FN-14 (two of three are granted: the third is asked for again; what was granted and does not
/// appear by its deadline, too).
#[test]
fn an_instance_that_does_not_come_is_asked_for_again() {
    let mut world = World::group(|_| {});
    world.need(3 * UNIT);
    let mut creates = world.take_calls("create");
    let (id, _) = creates.remove(0);
    world.calls.extend(creates);
    world.make();
    let detail = "try again".into();
    let (class, scope) = (ErrorClass::RateLimited, ErrorScope::All);
    let error = ProviderError { class, scope, retry_after_ms: Some(5_000), detail };
    world.answer(id, Err(error));
    world.run();
    assert_eq!(world.phases(), [0, 2, 0]);
    world.pass(6_000);
    assert_eq!(world.phases(), [0, 3, 0]);
    for id in world.members(MemberPhase::Coming) {
        if world.row(id).state == InstanceState::Booting {
            world.boot(id);
        }
    }
    assert_eq!((world.make_and_boot().len(), world.phases()), (1, [3, 0, 0]));
}

#[test]
fn a_member_that_does_not_appear_by_its_deadline_is_asked_for_again() {
    let mut world = World::group(|_| {});
    world.need(2 * UNIT);
    let made = world.make();
    world.boot(made[0]);
    world.pass(11 * MINUTE);
    assert_eq!(world.cause(made[1]), Some(ShutdownCause::BootFailed));
    assert_eq!(world.phases(), [1, 1, 0]);
    world.destroy();
    world.make_and_boot();
    assert_eq!((world.phases(), world.made), ([2, 0, 0], 3));
}

/// FN-15 (a machine of 8,192 appears where 4,096 was assumed: 8,192 count, and nothing more is
/// asked for).
#[test]
fn a_member_counts_with_what_it_really_has() {
    let mut world = World::group(|web| web.cooldown_down_ms = 0);
    world.need(2 * UNIT);
    let made = world.make();
    assert_eq!(made.len(), 2);
    let mut row = world.row(made[0]);
    let mut kind = (*row.kind).clone();
    kind.memory_mb = 2 * UNIT;
    row.kind = kind.into();
    fsm::testing::put(&mut world.driver.state, &row);
    world.boot(made[0]);
    assert_eq!(world.members(MemberPhase::Draining), [made[1]], "what is on its way is too much");
    world.need(3 * UNIT);
    assert_eq!((world.phases(), world.made), ([1, 1, 0], 2), "8,192 and one unit");
    world.pass(MINUTE);
    assert_eq!(world.made, 2);
}

/// FN-15 (a type that declares two units: a need of two is one machine, not two of which one goes).
#[test]
fn one_machine_of_two_units_is_enough_for_two() {
    let mut world = World::group(|_| {});
    world.set_pool(|pool| {
        let mut small = (*pool.types[&Text::from("small")]).clone();
        small.memory_mb = 2 * UNIT;
        pool.types.insert("small".into(), small.into());
    });
    world.need(2 * UNIT);
    assert_eq!(world.phases(), [0, 1, 0]);
    world.make_and_boot();
    world.pass(5 * MINUTE);
    assert_eq!((world.phases(), world.made), ([1, 0, 0], 1));
}

/// FN-16 (a predictor that gives the double: what is asked for and drained is desired, not
/// required; one that gives less: down to min).
#[test]
fn members_follow_what_is_desired() {
    let mut world = World::group(|web| {
        web.predictor = Prediction::Headroom { percent: 100 };
        (web.min, web.cooldown_down_ms) = (1, 0);
    });
    assert_eq!(world.phases(), [0, 1, 0], "the least");
    world.need(2 * UNIT);
    assert_eq!(world.phases(), [0, 4, 0]);
    world.make_and_boot();
    world.need(UNIT);
    assert_eq!(world.phases(), [2, 0, 2]);
    world.need(0);
    assert_eq!(world.phases(), [1, 0, 3], "never below min");
    world.need(100 * UNIT);
    assert_eq!(world.target().desired(), 10 * UNIT);
    assert_eq!(world.phases(), [4, 6, 0], "never above max");
}

/// FN-17 (an error of the provider: the state is as it was, it is tried again with a pause, and
/// other groups go on).
#[test]
fn an_error_of_the_provider_is_tried_again_and_others_go_on() {
    let api = CapacityGroup { name: "api".into(), ..with(|_| {}) };
    let mut world = World::groups(20, vec![with(|_| {}), api]);
    world.say("lb1", &[("web", UNIT)], Some(DAY));
    let detail = || "broken".into();
    let error = |class| ProviderError {
        class,
        scope: ErrorScope::All,
        retry_after_ms: None,
        detail: detail(),
    };
    let (id, _) = world.take_calls("create").remove(0);
    world.answer(id, Err(error(ErrorClass::Transient)));
    world.run();
    assert_eq!((world.phases(), world.calls.len()), ([0, 1, 0], 0));
    world.say("lb2", &[("api", UNIT)], Some(DAY));
    assert_eq!(world.take_calls("create").len(), 1, "the other group");
    world.pass(2_000);
    assert_eq!(world.take_calls("create").len(), 1, "again");
}

/// FN-18 (the provider hangs: words of sources are taken all the time, and nothing is asked for
/// twice).
#[test]
fn a_provider_that_hangs_stops_no_word() {
    let mut world = World::group(|_| {});
    world.need(UNIT);
    for _ in 0..10 {
        world.need(UNIT);
        world.pass(1_000);
    }
    assert_eq!((world.phases(), world.calls.len()), ([0, 1, 0], 1));
    world.need(2 * UNIT);
    assert_eq!(world.target().desired(), 2 * UNIT);
    assert_eq!((world.phases(), world.calls.len()), ([0, 2, 0], 2));
}

/// FN-20 (two groups are apart; one without requirement and member is forgotten after a while).
#[test]
fn groups_are_apart_and_a_group_of_nothing_is_forgotten() {
    let api = CapacityGroup { name: "api".into(), ..with(|_| {}) };
    let mut world = World::groups(20, vec![with(|web| web.cooldown_down_ms = 0), api]);
    world.say("lb1", &[("web", UNIT), ("api", 2 * UNIT)], Some(DAY));
    world.make_and_boot();
    assert_eq!(world.driver.state.active_members("api").len(), 2);
    world.say("lb1", &[("api", 2 * UNIT)], Some(DAY));
    assert_eq!(world.phases(), [0, 0, 1]);
    world.pass(MINUTE);
    world.destroy();
    assert_eq!(world.driver.state.active_members("api").len(), 2);
    let state = |world: &World| world.driver.state.capacity_targets().contains(&"web".into());
    assert!(state(&world));
    world.now += 60 * MINUTE;
    world.pass(10_000);
    assert!(!state(&world));
    world.say("lb1", &[("web", 1), ("api", 2 * UNIT)], Some(DAY));
    assert_eq!(world.phases(), [0, 1, 0]);
}

/// FN-22 (a new leader drains nobody before every source has spoken, at most for its time; it grows
/// at once).
#[test]
fn a_new_leader_drains_nobody_before_it_has_heard_every_source() {
    let mut world = World::group(|web| web.cooldown_down_ms = 0);
    world.say("lb1", &[("web", 2 * UNIT)], None);
    world.say("lb2", &[("web", UNIT)], None);
    world.make_and_boot();
    world.lead();
    world.pass(5_000);
    world.say("lb1", &[("web", UNIT)], None);
    assert_eq!(world.target().desired(), 2 * UNIT);
    assert_eq!(world.phases(), [3, 0, 0], "lb2 has not spoken");
    world.say("lb2", &[("web", 3 * UNIT)], None);
    assert_eq!(world.phases(), [3, 1, 0], "growing waits for nobody");
    world.say("lb2", &[("web", UNIT)], None);
    assert_eq!(world.phases(), [2, 0, 2]);
    let came_up =
        |reason: &str| world.shown(&format!("capacity.decisions{{group=web,reason={reason}}}"));
    assert_eq!(["warm_up", "create", "drain", "most"].map(came_up), [1, 1, 1, 0]);

    let mut world = World::group(|web| web.cooldown_down_ms = 0);
    world.say("lb1", &[("web", 2 * UNIT)], Some(DAY));
    world.say("lb2", &[("web", UNIT)], None);
    world.make_and_boot();
    world.pass(8_000);
    world.lead();
    world.pass(8_000);
    assert_eq!(world.phases(), [3, 0, 0]);
    world.say("lb1", &[("web", 2 * UNIT)], Some(DAY));
    world.pass(3_000);
    assert_eq!(world.target().expired, 1, "it had its time anew");
    assert_eq!(world.phases(), [2, 0, 1]);
}

/// Both members vanish: two are made again.
#[test]
fn the_capacity_of_a_vanished_member_is_not_kept() {
    let mut world = World::group(|_| {});
    let all = world.filled(2 * UNIT);
    for id in &all {
        world.driver.liveness(&name(*id), fsm::Liveness::Down);
    }
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.run();
    assert_eq!(world.members(MemberPhase::Away), all);
    assert_eq!(world.phases(), [0, 2, 0]);
    world.make_and_boot();
    assert_eq!(world.phases(), [2, 0, 0]);
}

/// A group whose pool was full gets what it lacks when there is room.
#[test]
fn a_group_whose_pool_was_full_grows_when_there_is_room() {
    let mut world = World::groups(2, vec![with(|_| {})]);
    world.register(spec("job", 2, 4_000));
    world.make_and_boot();
    assert_eq!(world.running("job"), 2);
    world.need(UNIT);
    world.pass(MINUTE);
    assert_eq!(world.phases(), [0, 0, 0]);
    world.stop("job");
    world.pass(5_000);
    world.destroy();
    world.pass(5_000);
    assert_eq!(world.phases(), [0, 1, 0], "an idle machine made room");
}

/// A held member is left alone, and another takes its place.
#[test]
fn a_held_member_is_replaced() {
    let mut world = World::group(|web| web.max = 2);
    let all = world.filled(2 * UNIT);
    world.driver.behave(all[0], Behavior::Hold);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.run();
    assert_eq!(world.phases(), [1, 1, 0]);
    assert_eq!(world.make_and_boot().len(), 1);
    world.pass(10 * MINUTE);
    assert_eq!((world.phases(), world.row(all[0]).shutdown), ([2, 0, 0], None));
}

/// A group that is declared no more drains, and its members go.
#[test]
fn a_deleted_group_drains() {
    let mut world = World::group(|_| {});
    let all = world.filled(2 * UNIT);
    world.set_pool(|pool| pool.groups.clear());
    assert_eq!(world.phases(), [0, 0, 2]);
    world.pass(52_000);
    let mut gone = world.destroy();
    gone.sort();
    assert_eq!(gone, all);
    assert_eq!(world.driver.state.capacity_targets().len(), 0);
}

/// A pool that may have fewer instances drains members; their work has its time to go.
#[test]
fn a_smaller_pool_drains_members() {
    let mut world = World::group(|_| {});
    world.filled(3 * UNIT);
    world.set_pool(|pool| pool.max = 2);
    world.pass(5_000);
    assert_eq!(world.phases()[0], 2);
    assert_eq!(world.destroy(), []);
    world.pass(MINUTE);
    assert_eq!(world.destroy().len(), 1);
    world.pass(5 * MINUTE);
    assert_eq!((world.phases(), world.made), ([2, 0, 0], 3));
}

/// A paused pool moves no member.
#[test]
fn a_paused_pool_moves_no_member() {
    let mut world = World::group(|web| web.cooldown_down_ms = 0);
    world.filled(2 * UNIT);
    let pause = |world: &mut World, pause| {
        let (by, reason) = ("alice".into(), "repair".into());
        let name = "p".into();
        world.commit(fsm::pool::PauseInstancePool { name, pause, by, reason }.into());
        world.run();
    };
    pause(&mut world, true);
    world.need(UNIT);
    world.pass(MINUTE);
    assert_eq!(world.phases(), [2, 0, 0]);
    pause(&mut world, false);
    assert_eq!(world.phases(), [1, 0, 1]);
}

/// The first growth after another waits for the cool-down of growing.
#[test]
fn growing_has_a_cool_down_of_its_own() {
    let mut world = World::group(|web| web.cooldown_up_ms = 30_000);
    world.need(UNIT);
    world.pass(10_000);
    world.need(2 * UNIT);
    world.pass(15_000);
    assert_eq!(world.phases(), [0, 1, 0]);
    world.pass(10_000);
    assert_eq!(world.phases(), [0, 2, 0]);
}

/// The member of the lowest place vanishes: the others keep theirs, and the next that comes fills
/// it. Over the list, every key of a jump hash would have moved.
#[test]
fn a_place_is_filled_again_before_a_new_one_is_opened() {
    let mut world = World::group(|_| {});
    let all = world.filled(3 * UNIT);
    let places = |world: &World| -> Vec<(InstanceId, Option<u32>)> {
        let rows = world.driver.state.active_members("web");
        rows.iter().map(|row| (row.id, row.place())).collect()
    };
    assert_eq!(places(&world), [(all[0], Some(0)), (all[1], Some(1)), (all[2], Some(2))]);
    let command = world.driver.shut_down_command(all[0], ShutdownCause::Operator);
    world.commit(command);
    world.run();
    assert_eq!(places(&world), [(all[1], Some(1)), (all[2], Some(2))]);
    world.destroy();
    world.pass(2_000);
    let new = world.make_and_boot();
    assert_eq!(new.len(), 1);
    assert_eq!(places(&world), [(new[0], Some(0)), (all[1], Some(1)), (all[2], Some(2))]);
}

/// One that was away has its place again, unless another one filled it: then it takes the next.
#[test]
fn a_member_that_was_away_has_a_place_of_its_own_again() {
    let mut world = World::group(|_| {});
    let all = world.filled(2 * UNIT);
    let node = name(all[0]);
    world.driver.liveness(&node, fsm::Liveness::Down);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.pass(2_000);
    let new = world.make_and_boot();
    assert_eq!(
        (new.len(), world.row(new[0]).place(), world.row(all[0]).place()),
        (1, Some(0), None)
    );
    world.driver.liveness(&node, fsm::Liveness::Initializing);
    world.driver.sync(&node);
    world.driver.readiness(&node, fsm::node::Readiness::Ok);
    assert_eq!(world.row(all[0]).place(), Some(2));
}

/// What goes silent with many others serves still, as far as anybody knows: also one whose place
/// was filled before the others went.
#[test]
fn in_a_mass_loss_every_member_has_a_place() {
    let mut world = World::group(|_| {});
    let all = world.filled(2 * UNIT);
    let names: Vec<_> = all.iter().map(|id| name(*id)).collect();
    world.driver.liveness(&names[0], fsm::Liveness::Down);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.pass(2_000);
    world.make_and_boot();
    assert_eq!(world.row(all[0]).place(), None);
    for other in ["x", "y"] {
        world.driver.node(other);
    }
    for name in [&*names[1], "x", "y"] {
        world.driver.liveness(name, fsm::Liveness::Down);
    }
    assert!(world.driver.state.mass_loss().is_some());
    let mut places: Vec<_> =
        world.driver.state.active_members("web").iter().map(|row| row.place()).collect();
    places.sort_unstable();
    assert_eq!(places, [Some(0), Some(1), Some(2)]);
}

/// A group that was taken out of its pool is declared again: no source has spoken of it, and a
/// member that a person takes back is one too many.
#[test]
fn a_group_that_is_declared_again_shrinks_to_what_is_wanted() {
    let mut world = World::group(|_| {});
    let all = world.filled(UNIT);
    let groups = world.driver.state.instance_pools().get(&"p".into()).unwrap().groups.clone();
    world.set_pool(|pool| pool.groups.clear());
    world.driver.behave(all[0], Behavior::Hold);
    world.lead();
    world.set_pool(|pool| pool.groups = groups);
    world.driver.behave(all[0], Behavior::Run);
    world.lead();
    world.pass(5 * MINUTE);
    let decision = world.target().decision.expect("it is decided anew");
    assert_eq!(decision.desired, 0);
    world.pass(5 * MINUTE);
    assert_eq!(world.destroy(), all);
}
