//! What a create came to, between its answer and its entry.

use fsm::{command::PoolCommand, pool::InstanceOutcome};

use super::*;

impl World {
    /// Answers all creates; what is proposed for that is lost. Answers with the instances.
    fn lose_outcomes(&mut self, is_made: bool) -> Vec<InstanceId> {
        let mut ids = Vec::new();
        for (id, call) in self.take_calls("create") {
            let Operation::Create(create) = &call.operation else { continue };
            let answer = if is_made {
                Ok(Answer::Created(self.machine(create)))
            } else {
                Err(ProviderError::new(ErrorClass::Quota, "no more"))
            };
            let now = self.at();
            let commands = self.fleet.answered(now, &self.driver.state, id, answer);
            assert!(
                matches!(&commands[..], [Command::Pool(PoolCommand::InstanceOutcome(_))]),
                "{commands:?}"
            );
            ids.push(create.key);
        }
        ids
    }

    /// Everything is looked at anew.
    fn look(&mut self) {
        let now = self.at();
        self.fleet.restore(now, &self.driver.state);
        self.run();
    }
}

/// A look between the answer of a create and its entry does not send the create again, and an
/// answer whose entry was lost is proposed again.
#[test]
fn an_answered_create_is_not_sent_again() {
    let mut world = World::new(9);
    world.lists = false;
    world.job("web", 1);
    let id = world.lose_outcomes(true)[0];
    world.look();
    assert_eq!(
        (world.take_calls("create"), world.row(id).state),
        (vec![], InstanceState::Requested)
    );
    world.pass(3_000);
    assert_eq!(world.take_calls("create"), [], "not while the entry may be on its way");
    world.pass(3_000);
    let row = world.row(id);
    assert_eq!((row.state, &*row.provider_id), (InstanceState::Booting, "m1"));
    world.pass(MINUTE);
    assert_eq!((world.take_calls("create"), world.made), (vec![], 1));
}

/// The same of a refusal.
#[test]
fn a_refused_create_is_not_sent_again() {
    let mut world = World::new(9);
    world.lists = false;
    world.job("web", 1);
    let id = world.lose_outcomes(false)[0];
    world.pass(4_000);
    assert_eq!(
        (world.take_calls("create"), world.row(id).state),
        (vec![], InstanceState::Requested)
    );
    world.pass(2_000);
    assert_eq!(world.rows(), []);
    assert!(world.waits_for("web").contains("quota"), "{}", world.waits_for("web"));
}

/// A refusal that is kept says nothing of an instance that a list has shown meanwhile.
#[test]
fn a_kept_refusal_ends_when_the_machine_is_there() {
    let mut world = World::new(9);
    world.job("web", 1);
    let (_, call) = world.calls[0].clone();
    let Operation::Create(create) = call.operation else { panic!("a create") };
    let id = world.lose_outcomes(false)[0];
    let machine = world.machine(&create);
    let seen = Command::from(InstanceOutcome {
        id,
        provider: "fake".into(),
        pool: "p".into(),
        kind: "small".into(),
        outcome: fsm::pool::CreateOutcome::Made {
            provider_id: machine.provider_id.clone(),
            address: machine.address.clone(),
            scope: machine.scope,
        },
    });
    world.commit(seen);
    world.pass(10_000);
    assert_eq!(world.row(id).state, InstanceState::Booting);
    assert_eq!(world.driver.state.provider_limits().iter().count(), 0);
}

/// An instance that is shut down before the outcome of its create is committed is destroyed as soon
/// as its machine is known, by the outcome or by a list.
#[test]
fn a_kept_outcome_is_not_in_the_way_of_a_destroy() {
    for by_list in [false, true] {
        let mut world = World::new(9);
        world.lists = false;
        world.job("web", 1);
        let id = world.lose_outcomes(true)[0];
        world.stop("web");
        let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
        world.commit(command);
        world.look();
        assert_eq!(world.take_calls("destroy"), [], "its machine is not known");
        if by_list {
            let epoch = world
                .driver
                .state
                .provider_lists()
                .get(&"fake".into())
                .map_or(1, |list| list.epoch + 1);
            let tags = world.machines["m1"].tags.clone();
            assert_eq!(*tags[crate::call::TAG_INSTANCE], *id.to_string());
            world.commit(Command::from(ObserveInstances {
                provider: "fake".into(),
                epoch,
                scope: SCOPE.into(),
                began_at: 0,
                grace_ms: 0,
                present: vec![fsm::pool::SeenMachine {
                    id,
                    provider_id: "m1".into(),
                    address: "".into(),
                    pool: "p".into(),
                    kind: "small".into(),
                }],
                missing: Vec::new(),
                evaluation_ids: Vec::new(),
            }));
            world.pass(1_000);
        } else {
            world.pass(6_000);
        }
        assert_eq!(world.destroy(), [id], "by list: {by_list}");
        world.pass(MINUTE);
        assert_eq!((world.rows().len(), world.machines.len()), (0, 0));
    }
}

/// A good answer for an intent that is gone is kept as well: its machine gets a row and is
/// destroyed, though it has no tags and no list shows it.
#[test]
fn a_machine_of_a_gone_intent_is_destroyed_although_its_entry_was_lost() {
    let mut world = World::new(9);
    world.lists = false;
    world.job("web", 1);
    let id = world.rows()[0].id;
    world.stop("web");
    world.commit(Command::from(InstanceOutcome {
        id,
        provider: "fake".into(),
        pool: "p".into(),
        kind: "small".into(),
        outcome: fsm::pool::CreateOutcome::Failed {
            class: fsm::pool::LimitClass::Fatal,
            scope: fsm::pool::LimitScope::All,
            for_ms: Some(0),
            detail: "".into(),
        },
    }));
    assert_eq!(world.rows(), []);
    assert_eq!(world.lose_outcomes(true), [id]);
    world.pass(6_000);
    assert_eq!(world.cause(id), Some(ShutdownCause::Unknown));
    assert_eq!(world.destroy(), [id]);
    world.pass(MINUTE);
    assert_eq!((world.rows().len(), world.machines.len()), (0, 0));
}
