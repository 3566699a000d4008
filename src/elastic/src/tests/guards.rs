//! What is never destroyed on an inference, and calls that do not wait for each other.

use fsm::{
    node::{SetEligibility, SuspendNode},
    pool::Behavior,
};

use super::*;
use crate::call::{Description, MachineState, TAG_INSTANCE};

impl World {
    fn suspend(&mut self, id: InstanceId, for_ms: Option<u64>) {
        let (by, reason) = ("ann".into(), "disk is looked at".into());
        self.commit(SuspendNode { node: node_id(&name(id)), by, reason, for_ms }.into());
        self.run();
    }

    fn make_ineligible(&mut self, id: InstanceId) {
        let command = SetEligibility {
            node: node_id(&name(id)),
            eligible: false,
            by: "ann".into(),
            reason: "".into(),
            evaluation_ids: Vec::new(),
        };
        self.commit(command.into());
        self.run();
    }

    /// The node of an instance is not heard any more.
    fn silence(&mut self, id: InstanceId) {
        self.driver.liveness(&name(id), fsm::Liveness::Down);
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }

    /// Answers every question for a description.
    fn describe(&mut self, state: MachineState) -> usize {
        let calls = self.take_calls("describe");
        for (id, _) in &calls {
            let description = Description { state, address: "".into(), words: "spot".into() };
            self.answer(*id, Ok(Answer::Described(description)));
        }
        self.run();
        calls.len()
    }

    fn said(&self, id: InstanceId) -> String {
        crate::explain::instance(&self.driver.state, self.at(), &self.row(id))
    }
}

/// A machine whose node a person has suspended or made ineligible stays, idle or above the max,
/// until that person's word is over; pool and instance say so.
#[test]
fn an_instance_set_aside_by_a_person_is_not_idled_out() {
    for suspends in [true, false] {
        let mut world = World::new(9);
        world.job("web", 1);
        let id = world.make_and_boot()[0];
        world.stop("web");
        if suspends {
            world.suspend(id, Some(20 * MINUTE));
        } else {
            world.make_ineligible(id);
        }
        world.pass(15 * MINUTE);
        world.set_pool(|pool| pool.max = 0);
        world.pass(MINUTE);
        assert_eq!(world.cause(id), None, "suspended: {suspends}");
        let how = if suspends { "suspended by ann until" } else { "made ineligible by ann" };
        let said = world.said(id);
        assert!(said.starts_with(&format!("stays: its node was {how}")), "{said}");
        let pool = world.driver.state.instance_pools().get(&"p".into()).unwrap();
        let waits = crate::explain::pool(&world.driver.state, world.at(), pool).join("; ");
        assert!(waits.contains(&said), "{waits}");
        world.silence(id);
        world.pass(20 * MINUTE);
        assert_eq!(world.cause(id), None, "a person looks at it, whatever its node does");
        let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
        world.commit(command);
        assert_eq!(world.cause(id), Some(ShutdownCause::Operator));
    }
}

/// A drain of the instance is a later word than what was said of its node: it ends.
#[test]
fn an_instance_set_aside_and_drained_ends() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.stop("web");
    world.make_ineligible(id);
    world.behave(id, Behavior::Drain);
    world.pass(MINUTE);
    assert_eq!(world.cause(id), Some(ShutdownCause::Drained));
}

/// The ineligibility that a drain leaves is nobody's word: the machine idles out.
#[test]
fn an_instance_left_after_a_drain_idles_out() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.stop("web");
    world.driver.drain(&name(id), true);
    world.driver.drain(&name(id), false);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.pass(3 * MINUTE);
    assert_eq!(world.cause(id), Some(ShutdownCause::Idle));
}

/// The answer to a create was lost, the agent came, and the provider sets the tags one after the
/// other: a list that has only the cluster's is no reason to destroy the machine.
#[test]
fn a_machine_whose_tags_come_one_after_the_other_is_kept() {
    let mut world = World::new(9);
    world.job("web", 1);
    let create = world.take_calls("create").pop().unwrap();
    let Operation::Create(asked) = &create.1.operation else { panic!("a create") };
    let machine = world.machine(asked);
    let transient = ProviderError::new(ErrorClass::Transient, "no answer");
    world.answer(create.0, Err(transient));
    world.machines.get_mut("m1").unwrap().tags.remove(TAG_INSTANCE);
    let id = asked.key;
    world.boot(id);
    assert_eq!((world.running("web"), &*world.row(id).provider_id), (1, ""));
    world.pass(3 * MINUTE);
    assert_eq!(world.rows().len(), 1, "no row for a stray");
    assert_eq!(world.take_calls("destroy"), []);
    world.machines.insert("m1".into(), machine);
    world.pass(MINUTE);
    assert_eq!((&*world.row(id).provider_id, world.cause(id)), ("m1", None));
    assert_eq!(world.running("web"), 1);
}

/// A machine that never gets its tags is that of the instance whose agent is heard. Another one
/// that was not made does not wait for it.
#[test]
fn a_machine_without_tags_holds_up_nothing_once_its_agent_is_heard() {
    let mut world = World::new(9);
    world.job("web", 1);
    let create = world.take_calls("create").pop().unwrap();
    let Operation::Create(asked) = &create.1.operation else { panic!("a create") };
    world.machine(asked);
    world.answer(create.0, Err(ProviderError::new(ErrorClass::Transient, "no answer")));
    world.machines.get_mut("m1").unwrap().tags.clear();
    let first = asked.key;
    world.boot(first);
    world.job("other", 4);
    let second = world.rows().iter().find(|row| row.id != first).unwrap().id;
    assert!(world.refuse(ErrorClass::Transient, ErrorScope::All, None) > 0);
    let command = world.driver.shut_down_command(second, ShutdownCause::Operator);
    world.commit(command);
    world.pass(5 * MINUTE);
    assert!(world.rows().iter().all(|row| row.id != second), "{:?}", world.rows());
    assert_eq!((world.running("web"), world.cause(first)), (1, None));
    assert!(world.machines.contains_key("m1"));
}

/// The provider answers two keys with one machine: the second instance has none, and its end is not
/// that of the first one's machine.
#[test]
fn one_machine_for_two_keys_is_the_first_ones() {
    let mut world = World::new(9);
    world.job("web", 1);
    let first = world.make_and_boot()[0];
    world.job("api", 1);
    let (call, _) = world.take_calls("create").pop().unwrap();
    let machine = world.machines["m1"].clone();
    world.answer(call, Ok(Answer::Created(machine)));
    world.run();
    let second = world.rows().into_iter().find(|row| row.id != first).unwrap();
    assert_eq!((second.state, &*second.provider_id), (InstanceState::ShuttingDown, ""));
    let said = world.said(second.id);
    assert!(said.starts_with("shut down as boot-failed"), "{said}");
    let why = world.waits_for("api");
    assert!(why.contains("the provider answered with machine m1"), "{why}");
    for _ in 0..10 {
        world.pass(MINUTE);
        assert!(!world.destroy().contains(&first));
    }
    assert_eq!((world.running("web"), world.machines.len()), (1, 1));
    assert!(!world.driver.state.instances().contains(&second.id), "it is forgotten");
}

/// The node of an instance goes down: its provider is asked at once, and what it says is gone is
/// not waited for.
#[test]
fn a_machine_of_a_silent_node_is_described_at_once() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.describe(MachineState::Up);
    world.pass(MINUTE);
    assert_eq!(world.describe(MachineState::Up), 0, "its agent is heard");
    world.silence(id);
    assert_eq!(world.describe(MachineState::Up), 1);
    assert_eq!(world.cause(id), None);
    world.pass(10_000);
    assert_eq!(world.describe(MachineState::Gone), 1);
    assert_eq!(world.cause(id), Some(ShutdownCause::ProbeFailed));
    assert_eq!(world.destroy(), [id]);
    world.pass(2_000);
    assert_eq!(world.make_and_boot().len(), 1, "its place is another one's");
}

/// What is held or set aside is not ended by such a word.
#[test]
fn a_held_machine_outlives_the_words_of_its_provider() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.suspend(id, None);
    world.silence(id);
    world.describe(MachineState::Broken);
    world.pass(MINUTE);
    assert_eq!(world.cause(id), None);
}

/// Creates of one pool that hang leave places to the other pools of the provider, and destroys
/// never wait for them.
#[test]
fn hanging_creates_leave_places_to_others() {
    let mut world = World::new(60);
    world.driver.instance_pool("q", |row| *row = pool("q", 9));
    world.job("done", 1);
    let id = world.make_and_boot()[0];
    world.stop("done");
    world.job("web", 40);
    let of = |world: &World, pool: &str| {
        let is_of = |(_, call): &&(CallId, Call)| matches!(&call.operation, Operation::Create(create) if &*create.pool == pool);
        world.calls.iter().filter(is_of).count()
    };
    assert_eq!(of(&world, "p"), 16, "half of the places");
    world.register(JobSpec { node_pool: "q".into(), ..spec("other", 5, 600) });
    assert_eq!((of(&world, "p"), of(&world, "q")), (16, 5));
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    world.run();
    assert_eq!(world.destroy(), [id]);
}

/// A destroy goes out though as many creates hang as may be under way.
#[test]
fn a_destroy_does_not_wait_for_creates_that_hang() {
    let mut world = World::new(60);
    world.job("done", 1);
    let id = world.make_and_boot()[0];
    world.stop("done");
    world.job("web", 40);
    let creates = world.calls.iter().filter(|(_, call)| call.operation.name() == "create");
    assert_eq!(creates.count(), fsm::limits::PROVIDER_CREATES);
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    world.run();
    assert_eq!(world.destroy(), [id]);
}
