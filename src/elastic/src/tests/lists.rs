//! What lists show: tags, machines that nobody knows, and who is listed at all.

use fsm::pool::Behavior;

use super::*;
use crate::call::{TAG_BEHAVIOR, TAG_INSTANCE, Tags};

impl World {
    /// Carries out every change of tags.
    fn set_tags(&mut self) -> Vec<Tags> {
        let mut all = Vec::new();
        for (id, call) in self.take_calls("set-tags") {
            let Operation::SetTags { provider_id, tags, .. } = call.operation else { continue };
            self.machines.get_mut(&provider_id).unwrap().tags = tags.clone();
            self.answer(id, Ok(Answer::Tagged));
            all.push(tags);
        }
        self.run();
        all
    }
}

/// A list that shows other tags than the rows say is followed by a change of tags: what an operator
/// said is seen at the provider, and a machine that lost its tags gets them again.
#[test]
fn machines_are_given_the_tags_of_their_rows() {
    let mut world = World::new(9);
    world.job("web", 2);
    let ids = world.make_and_boot();
    world.pass(2 * MINUTE);
    assert_eq!(world.set_tags(), Vec::<Tags>::new(), "they are as they were made");
    let command = fsm::pool::SetInstanceBehavior {
        id: ids[0],
        behavior: Behavior::Hold,
        deadline_ms: None,
        by: "alice".into(),
        reason: "".into(),
        evaluation_ids: Vec::new(),
    };
    world.commit(Command::from(command));
    world.pass(2 * MINUTE);
    let set = world.set_tags();
    assert_eq!(set.len(), 1);
    assert_eq!(&*set[0][TAG_BEHAVIOR], "hold");
    assert_eq!(*set[0][TAG_INSTANCE], *ids[0].to_string());
    let other = world.row(ids[1]).provider_id;
    world.machines.get_mut(&other).unwrap().tags.clear();
    world.pass(2 * MINUTE);
    let set = world.set_tags();
    assert_eq!((set.len(), &*set[0][TAG_BEHAVIOR]), (1, "run"));
    world.pass(5 * MINUTE);
    assert_eq!(world.set_tags(), Vec::<Tags>::new());
    assert_eq!((world.rows().len(), world.made), (2, 2));
}

/// Tags of a machine that is being destroyed are of no use.
#[test]
fn a_machine_that_goes_is_given_no_tags() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    world.machines.values_mut().for_each(|machine| machine.tags.clear());
    world.pass(3 * MINUTE);
    assert_eq!(world.set_tags(), Vec::<Tags>::new());
}

/// A list that invents thousands of machines is taken in by a thousand, and no more of them than
/// that have rows at a time.
#[test]
fn invented_machines_are_taken_in_by_a_thousand() {
    let mut world = World::new(9);
    world.driver.checked = false;
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    let real = world.machines["m1"].clone();
    for number in 0..2_500_u32 {
        let mut machine = real.clone();
        machine.provider_id = format!("x{number}").into();
        // Some with a tag of their own, some with that of the real one, some with none.
        match number % 3 {
            0 => {
                let id = InstanceId(u128::from(number).to_le_bytes());
                machine.tags.insert(TAG_INSTANCE.into(), id.to_string().into());
            }
            1 => {}
            _ => machine.tags.clear(),
        }
        world.machines.insert(machine.provider_id.clone(), machine);
    }
    world.pass(70_000);
    assert_eq!(world.rows().len(), 1_001);
    let mut destroyed = 0;
    for _ in 0..200 {
        destroyed += world.destroy().len();
        assert!(world.rows().len() <= 1_001);
        if world.machines.len() == 1 {
            break;
        }
        world.pass(1_000);
    }
    assert_eq!((destroyed, world.machines.len()), (2_500, 1), "all of them went in the end");
    assert_eq!((world.cause(id), world.row(id).missing), (None, 0));
}

/// Of many machines that a list lacks, a thousand are noted in an entry.
#[test]
fn missing_machines_are_noted_by_a_thousand() {
    let mut driver = Driver { checked: false, ..Driver::default() };
    driver.instance_pool("p", |row| *row = pool("p", 3_000));
    for number in 0..1_500_u32 {
        let mut intent = driver.intent("p", "small");
        intent.id = InstanceId(u128::from(number).to_le_bytes());
        let id = intent.id;
        let pool_modify_index =
            driver.state.instance_pools().get(&"p".into()).unwrap().modify_index;
        let intents = vec![intent];
        driver.accept(RequestInstances { pool: "p".into(), pool_modify_index, intents }.into());
        driver.accept(
            fsm::pool::InstanceOutcome {
                id,
                provider: "fake".into(),
                pool: "p".into(),
                kind: "small".into(),
                outcome: fsm::pool::CreateOutcome::Made {
                    provider_id: format!("m{number}").into(),
                    address: "".into(),
                    scope: SCOPE.into(),
                },
            }
            .into(),
        );
    }
    let provider: Text = "fake".into();
    let asked = crate::sync::Asked {
        provider: &provider,
        began_at: driver.now + 1,
        grace_ms: 0,
        has_creates: false,
    };
    let mut lists = crate::sync::Lists::default();
    let empty = Listing { scope: SCOPE.into(), machines: Vec::new() };
    assert!(lists.compare(&driver.state, &asked, &empty).command.is_none(), "suspect");
    let difference = lists.compare(&driver.state, &asked, &empty);
    assert_eq!((difference.command.unwrap().missing.len(), difference.is_whole), (1_000, false));
}

/// A provider that no pool ever used is not listed, and nothing is due.
#[test]
fn a_provider_that_was_never_used_is_not_listed() {
    let mut world = World::new(9);
    world.commit(Command::from(fsm::pool::DeleteInstancePool { name: "p".into() }));
    world.lists = false;
    world.pass(MINUTE);
    world.take_calls("list");
    world.pass(5 * MINUTE);
    assert_eq!(world.take_calls("list"), []);
    assert_eq!(world.fleet.next_deadline(), None);
}

/// A create that hangs may make its machine when its pool is long gone: the provider is listed for
/// good, by the next leader as well, and the machine is destroyed.
#[test]
fn a_machine_that_comes_after_its_pool_has_gone_is_destroyed() {
    for is_new_leader in [false, true] {
        let mut world = World::new(9);
        world.job("web", 1);
        let creates = world.take_calls("create");
        let Operation::Create(create) = &creates[0].1.operation else { unreachable!() };
        world.stop("web");
        world.pass(60 * MINUTE);
        assert_eq!(world.rows().len(), 0, "it expired");
        let command = fsm::pool::DeleteInstancePool { name: "p".into() };
        assert_eq!(world.commit(Command::from(command)), Reply::Done);
        world.pass(60 * MINUTE);
        if is_new_leader {
            world.lead();
        }
        world.machine(create);
        world.pass(2 * MINUTE);
        assert_eq!(world.destroy(), [create.key]);
        assert_eq!((world.rows().len(), world.machines.len()), (0, 0));
    }
}

/// Descriptions that are never answered leave places for creates and destroys.
#[test]
fn descriptions_that_hang_stop_no_create() {
    let mut world = World::new(60);
    for number in 0..40 {
        world.register(spec(&format!("j{number}"), 1, 600));
    }
    for _ in 0..4 {
        world.make();
    }
    assert_eq!(world.made, 40);
    world.pass(MINUTE);
    assert_eq!(world.take_calls("describe").len(), 16);
    world.register(spec("late", 10, 600));
    assert_eq!(world.make().len(), 10);
}

/// The answer of a create was lost and its machine has no tags: while creates are under way no list
/// tells whose machine it is, and the instance whose agent was there is not called gone.
#[test]
fn an_unclear_machine_may_be_that_of_any_instance_without_one() {
    let mut world = World::new(9);
    world.job("web", 1);
    let (call, create) = world.take_calls("create").pop().unwrap();
    let Operation::Create(create) = create.operation else { panic!("{create:?}") };
    let machine = world.machine(&create);
    world.machines.values_mut().for_each(|machine| machine.tags.clear());
    world.boot(create.key);
    world.driver.liveness(&name(create.key), fsm::Liveness::Down);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.pass(5 * MINUTE);
    let row = world.row(create.key);
    assert_eq!((row.state, &*row.provider_id, row.missing), (InstanceState::Bound, "", 0));
    world.answer(call, Ok(Answer::Created(machine)));
    world.run();
    assert_eq!(&*world.row(create.key).provider_id, "m1");
}

/// A list comes each minute: one that tells nothing new has no pool looked at, however much waits.
#[test]
fn a_list_that_tells_nothing_new_has_no_pool_looked_at() {
    let mut world = World::new(1);
    world.job("web", 3);
    world.make_and_boot();
    world.pass(5 * MINUTE);
    world.lists = false;
    world.pass(2 * MINUTE);
    let [(id, _)] = world.take_calls("list")[..] else { panic!("one list is asked for") };
    let machines = world.machines.values().cloned().collect();
    world.answer(id, Ok(Answer::Listed(Listing { scope: SCOPE.into(), machines })));
    let next = world.fleet.next_deadline().expect("the next list is due some time");
    assert!(next > world.at() + MINUTE / 2, "{next} {}", world.at());
}
