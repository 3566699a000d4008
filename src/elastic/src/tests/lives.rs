//! From the intent to the end of a machine.

use super::*;

/// AR-02 (creates that hang are capacity at once, and totals stay when they return).
#[test]
fn an_instance_being_made_counts_at_once() {
    let mut world = World::new(9);
    world.job("web", 3);
    assert_eq!(world.states(), [InstanceState::Requested; 3]);
    assert_eq!(world.calls.len(), 3);
    world.pass(20_000);
    assert_eq!((world.rows().len(), world.calls.len()), (3, 3), "nothing is asked twice");
    world.make();
    assert_eq!(world.states(), [InstanceState::Booting; 3]);
    world.pass(20_000);
    assert_eq!((world.rows().len(), world.made), (3, 3));
}

/// AR-03 (a machine that a list shows before its create returns is counted once).
#[test]
fn a_machine_that_is_listed_before_its_create_returns_counts_once() {
    let mut world = World::new(9);
    world.job("web", 1);
    let (call, create) = world.calls[0].clone();
    let Operation::Create(create) = create.operation else { panic!("a create") };
    let machine = world.machine(&create);
    world.pass(MINUTE);
    let row = world.row(create.key);
    assert_eq!((row.state, &*row.provider_id), (InstanceState::Booting, "m1"));
    world.answer(call, Ok(Answer::Created(machine)));
    world.run();
    assert_eq!((world.rows().len(), world.made), (1, 1));
    assert_eq!(world.row(create.key).state, InstanceState::Booting);
}

/// The whole way: a job waits, a machine comes, the job runs, the machine idles and goes. AR-18
/// (idle for 59 s it stays, for 60 s it goes; what runs in between resets the time).
#[test]
fn a_machine_goes_when_it_was_idle_for_its_time() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    assert_eq!((world.running("web"), world.row(id).state), (1, InstanceState::Bound));
    world.pass(10 * MINUTE);
    assert_eq!(world.cause(id), None, "it is in use");
    world.stop("web");
    world.pass(50_000);
    world.job("api", 1);
    assert_eq!((world.running("api"), world.rows().len()), (1, 1), "on the machine that is there");
    world.stop("api");
    world.pass(57_000);
    assert_eq!(world.cause(id), None);
    world.pass(5_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Idle));
    assert_eq!(world.destroy(), [id]);
    assert_eq!((world.rows().len(), world.machines.len()), (0, 0));
}

/// AR-19 (absent from a list that began before it was last touched it stays; absent from two lists
/// and for longer than the grace it is gone, and what ran there is lost).
#[test]
fn one_absence_says_nothing_and_two_do() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    // Another machine, so that the list is not empty.
    world.job("api", 1);
    let other = world.make_and_boot()[0];
    let hidden = world.machines.remove("m1").unwrap();
    world.pass(3 * MINUTE);
    assert_eq!(world.row(id).missing, 0, "its agent is heard: the list is wrong");
    world.driver.liveness(&name(id), fsm::Liveness::Down);
    for _ in 0..70 {
        if world.row(id).missing == 0 {
            world.pass(1_000);
        }
    }
    assert_eq!(world.row(id).missing, 1);
    world.machines.insert("m1".into(), hidden);
    world.pass(MINUTE);
    assert_eq!(world.row(id).missing, 0, "it is there again");
    world.machines.remove("m1");
    world.pass(4 * MINUTE);
    assert!(!world.driver.state.instances().contains(&id));
    assert!(!world.driver.state.nodes().contains(&node_id(&name(id))), "its node went along");
    assert_eq!(world.row(other).missing, 0);
    world.make_and_boot();
    assert_eq!(world.running("web"), 1, "elsewhere");
}

/// An empty list after a full one is not believed at once.
#[test]
fn an_empty_list_after_a_full_one_is_suspect() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make()[0];
    world.pass(3 * MINUTE);
    let machines = std::mem::take(&mut world.machines);
    world.pass(MINUTE);
    assert_eq!(world.row(id).missing, 0);
    world.machines = machines;
    world.pass(MINUTE);
    world.machines.clear();
    world.pass(2 * MINUTE);
    assert_eq!(world.row(id).missing, 1, "the second empty one counts");
}

/// AR-20 (still listed after the pause the machine is destroyed again, and counts until it is
/// gone).
#[test]
fn a_destroy_is_repeated_until_the_machine_is_gone() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make()[0];
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    world.run();
    for round in 0..3 {
        let destroys = world.take_calls("destroy");
        assert_eq!(destroys.len(), 1, "round {round}");
        let answer = if round == 0 {
            Err(ProviderError::new(ErrorClass::Transient, "try again"))
        } else {
            Ok(Answer::Destroyed(Destroyed::Asked))
        };
        world.answer(destroys[0].0, answer);
        world.pass(8_000);
        assert_eq!(world.take_calls("destroy").len(), 0, "not before its time");
        assert_eq!(world.rows().len(), 1, "it counts: the pool may have one");
        world.pass(4_000);
    }
    assert_eq!(world.row(id).shutdown.unwrap().attempts, 3);
    assert_eq!(world.destroy(), [id]);
    assert_eq!(world.states(), [InstanceState::Requested], "now there is room for another");
}

/// AR-34 (the leader dies after the machine was made and before that was committed: the next one
/// finds it by its tag, and one machine is made in all).
#[test]
fn a_new_leader_finds_what_the_old_one_made() {
    let mut world = World::new(9);
    world.job("web", 1);
    let (_, call) = world.calls[0].clone();
    let Operation::Create(create) = call.operation else { panic!("a create") };
    world.machine(&create);
    world.lead();
    let row = world.row(create.key);
    assert_eq!((row.state, &*row.provider_id), (InstanceState::Booting, "m1"));
    assert_eq!(world.take_calls("create"), []);
    world.boot(create.key);
    assert_eq!((world.running("web"), world.made), (1, 1));
}

/// A leader that dies before the provider acted: the next one asks again with the same key, after
/// it has listed.
#[test]
fn a_new_leader_asks_again_with_the_same_key() {
    let mut world = World::new(9);
    world.job("web", 1);
    let key = world.rows()[0].id;
    world.lists = false;
    world.lead();
    assert_eq!(world.take_calls("create"), [], "not before it has listed");
    world.lists = true;
    world.run();
    assert_eq!(world.make(), [key]);
}

/// The answer of a create that comes when its intent is over is a machine that nobody wants: it
/// gets a row, and is destroyed.
#[test]
fn a_late_answer_is_never_ignored() {
    let mut world = World::new(9);
    world.job("web", 1);
    let (_, call) = world.calls.pop_front().unwrap();
    let Operation::Create(create) = call.operation.clone() else { panic!("a create") };
    world.stop("web");
    world.pass(10 * MINUTE + 2_000);
    assert_eq!(world.cause(create.key), Some(ShutdownCause::Expired));
    world.pass(10 * MINUTE);
    assert_eq!(world.rows(), [], "lists have not shown it");
    let machine = world.machine(&create);
    let command = crate::late(&call, &Ok(Answer::Created(machine))).unwrap();
    world.commit(command);
    world.run();
    assert_eq!(world.cause(create.key), Some(ShutdownCause::Unknown));
    assert_eq!(world.destroy(), [create.key]);
    assert_eq!(world.machines.len(), 0);
}

/// A machine with our tag that no row stands for, and one without: both are destroyed.
#[test]
fn machines_that_nobody_knows_are_destroyed() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    for number in [7, 8] {
        let mut machine = world.machines["m1"].clone();
        machine.provider_id = format!("m{number}").into();
        if number == 8 {
            machine.tags.clear();
        }
        world.machines.insert(machine.provider_id.clone(), machine);
    }
    world.pass(2 * MINUTE);
    assert_eq!(world.destroy().len(), 2);
    world.pass(2 * MINUTE);
    assert_eq!((world.rows().len(), world.machines.len()), (1, 1));
    assert_eq!(world.cause(id), None);
}

/// AR-12, AR-13 (a machine that boots: not registered by its deadline it is shut down, with what
/// the provider said last; one whose provider says that it is broken, at once).
#[test]
fn a_machine_that_does_not_come_up_is_shut_down_with_its_reason() {
    let mut world = World::new(2);
    world.job("web", 2);
    let ids = world.make();
    world.pass(15_000);
    let mut probes = world.take_calls("describe");
    probes.sort_by_key(|(_, call)| format!("{:?}", call.operation));
    let describe = |state, words: &str| {
        Ok(Answer::Described(crate::call::Description {
            state,
            address: "10.0.0.1".into(),
            words: words.into(),
        }))
    };
    let broken = probes.iter().position(|(_, call)| {
        matches!(call.operation, Operation::Describe { instance, .. } if instance == ids[0])
    });
    for (number, (id, _)) in probes.iter().enumerate() {
        let answer = if Some(number) == broken {
            describe(crate::call::MachineState::Broken, "kernel panic")
        } else {
            describe(crate::call::MachineState::Booting, "waits for its disk")
        };
        world.answer(*id, answer);
    }
    world.run();
    let shutdown = world.row(ids[0]).shutdown.unwrap();
    assert_eq!(shutdown.cause, ShutdownCause::BootFailed);
    assert_eq!(&*shutdown.reason, "the provider says that it is broken: kernel panic");
    assert_eq!(&*world.row(ids[1]).last_words, "waits for its disk");
    assert_eq!(world.row(ids[1]).shutdown, None);
    world.pass(10 * MINUTE);
    let shutdown = world.row(ids[1]).shutdown.unwrap();
    assert_eq!(shutdown.cause, ShutdownCause::BootFailed);
    assert!(shutdown.reason.ends_with("in time: waits for its disk"), "{}", shutdown.reason);
}

/// AR-14 (a bound machine whose node is down, or suspended, for longer than the probe timeout goes,
/// also with allocations; one that comes back in time stays). AR-24 (one that cannot be used any
/// more goes in the end).
#[test]
fn a_machine_whose_node_is_down_for_too_long_goes() {
    let mut world = World::new(1);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.driver.liveness(&name(id), fsm::Liveness::Down);
    world.pass(9 * MINUTE);
    assert_eq!(world.cause(id), None);
    world.driver.liveness(&name(id), fsm::Liveness::Initializing);
    world.driver.sync(&name(id));
    world.driver.readiness_as(&name(id), fsm::node::Readiness::Ok, "");
    world.pass(2 * MINUTE);
    assert_eq!(world.cause(id), None, "it came back");
    world.driver.liveness(&name(id), fsm::Liveness::Down);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world.pass(11 * MINUTE);
    assert_eq!(world.cause(id), Some(ShutdownCause::ProbeFailed));
}

/// Nothing is judged by time before a new leader has had the time to hear of it.
#[test]
fn a_new_leader_shuts_nothing_down_before_it_is_warm() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    world.stop("web");
    world.pass(50_000);
    world.lead();
    world.pass(25_000);
    assert_eq!(world.cause(id), None);
    world.pass(10_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Idle));
}

/// While a mass loss lasts no pool grows for what it took, and none of its machines is destroyed.
#[test]
fn a_mass_loss_makes_and_destroys_nothing() {
    let mut world = World::new(9);
    world.job("web", 3);
    let ids = world.make_and_boot();
    let changes = ids
        .iter()
        .map(|id| fsm::node::LivenessChange {
            node: node_id(&name(*id)),
            incarnation: 1,
            liveness: fsm::Liveness::Down,
        })
        .collect();
    let down = fsm::node::NodeLiveness { changes, window_ms: 30_000, evaluation_ids: Vec::new() };
    world.commit(Command::from(down));
    assert!(world.driver.state.mass_loss().is_some());
    world.set_pool(|pool| pool.max = 1);
    world.pass(MINUTE);
    let index = world.driver.state.index();
    world.pass(20 * MINUTE);
    assert_eq!(world.driver.state.index(), index, "what would be refused is not proposed");
    world.set_pool(|pool| pool.max = 9);
    assert_eq!((world.rows().len(), world.made), (3, 3));
    assert!(world.rows().iter().all(|row| row.shutdown.is_none()));
    assert!(world.waits_for("web").contains("a mass loss lasts"), "{}", world.waits_for("web"));
    let by = Some("alice".into());
    world.commit(Command::from(fsm::node::EndMassLoss { by }));
    world.run();
    world.pass(2_000);
    assert!(world.rows().iter().any(|row| row.shutdown.is_some() || row.made_at == 0));
}
