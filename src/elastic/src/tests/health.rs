//! What only the leader sees of a provider reaches the job that waits.

use fsm::pool::ProviderState;

use super::*;

impl World {
    /// Fails the calls of one kind that wait.
    fn break_calls(&mut self, name: &str, class: ErrorClass, detail: &str) -> usize {
        let calls = self.take_calls(name);
        for (id, _) in &calls {
            self.answer(*id, Err(ProviderError::new(class, detail)));
        }
        self.run();
        calls.len()
    }

    fn provider_state(&self) -> Option<ProviderState> {
        let row = self.driver.state.provider_states().get(&"fake".into());
        row.map(|row| (**row).clone())
    }

    fn pool_said(&self) -> String {
        let pool = self.driver.state.instance_pools().get(&"p".into()).unwrap();
        crate::explain::pool(&self.driver.state, self.at(), pool).join("; ")
    }
}

/// A list that is refused (an expired token, say) is told to job and pool, in one line, and not any
/// more once lists come again.
#[test]
fn a_refused_list_reaches_the_job() {
    let mut world = World::new(9);
    world.lists = false;
    world.lead();
    world.break_calls("list", ErrorClass::Fatal, "token\nexpired");
    world.job("web", 1);
    world.pass(1_000);
    let words = "provider fake has not answered as it should since ";
    let detail = "(list): fatal: token expired";
    for said in [world.waits_for("web"), world.pool_said()] {
        assert!(said.contains(words) && said.contains(detail), "{said}");
        assert!(!said.contains("about to make"), "{said}");
    }
    world.lists = true;
    world.pass(2 * MINUTE);
    assert!(world.provider_state().unwrap().is_answering());
    assert!(!world.waits_for("web").contains(words), "{}", world.waits_for("web"));
    assert_eq!(world.make().len(), 1);
}

/// A first list that never comes is told as well.
#[test]
fn a_list_without_an_answer_reaches_the_job() {
    let mut world = World::new(9);
    world.lists = false;
    world.lead();
    world.job("web", 1);
    world.pass(5_000);
    assert!(world.waits_for("web").contains("about to make"), "it may come yet");
    world.pass(10_000);
    let said = world.waits_for("web");
    assert!(said.contains("(list): no answer to its first list yet"), "{said}");
}

/// A create whose program fails: the instance says so, too.
#[test]
fn a_failing_create_reaches_the_instance() {
    let mut world = World::new(9);
    world.job("web", 1);
    world.break_calls("create", ErrorClass::Transient, "no such program");
    world.pass(2_000);
    let row = world.rows()[0].clone();
    let said = crate::explain::instance(&world.driver.state, world.at(), &row);
    assert!(said.contains("(create): transient: no such program"), "{said}");
    // A clear refusal is an answer.
    world.break_calls("create", ErrorClass::Quota, "no more");
    world.pass(12_000);
    assert!(world.provider_state().unwrap().is_answering());
}

/// However fast calls fail, and with however many words, the row changes at a bound rate.
#[test]
fn the_row_of_a_provider_changes_at_a_bound_rate() {
    let mut world = World::new(9);
    let mut indexes = std::collections::BTreeSet::new();
    let mut failed = 0;
    for second in 0..300 {
        if second < 9 {
            world.job(&format!("web{second}"), 1);
        }
        failed += world.break_calls("create", ErrorClass::Transient, &format!("error {second}"));
        world.pass(1_000);
        indexes.extend(world.provider_state().map(|row| row.modify_index));
    }
    assert!(failed > 60, "{failed}");
    assert!((3..=40).contains(&indexes.len()), "{}", indexes.len());
}

/// What failed once and is not asked for any more tells nothing after a while.
#[test]
fn a_failure_that_is_not_repeated_is_forgotten() {
    let mut world = World::new(9);
    world.job("web", 1);
    world.break_calls("create", ErrorClass::Transient, "no such program");
    world.pass(2_000);
    world.stop("web");
    let command = world.driver.shut_down_command(world.rows()[0].id, ShutdownCause::Operator);
    world.commit(command);
    world.run();
    assert!(!world.provider_state().unwrap().is_answering());
    world.pass(6 * MINUTE);
    assert!(world.provider_state().unwrap().is_answering());
}

/// At rest nothing is written.
#[test]
fn at_rest_the_row_stays() {
    let mut world = World::new(9);
    world.job("web", 1);
    world.make_and_boot();
    world.pass(5 * MINUTE);
    let row = world.provider_state().unwrap();
    world.pass(30 * MINUTE);
    assert_eq!(world.provider_state(), Some(row));
}

/// A provider that the state does not know is not spoken of: every entry would be refused, for
/// ever.
#[test]
fn nothing_is_noted_of_a_provider_without_pools() {
    let mut world = World::new(9);
    world.lists = false;
    world.lead();
    let name = "p".into();
    let command = Command::from(fsm::pool::DeleteInstancePool { name });
    assert_eq!(world.commit(command), Reply::Done);
    // The row says that it answers.
    assert_eq!(world.break_calls("list", ErrorClass::Fatal, "token expired"), 1);
    let before = world.driver.state.index();
    world.pass(MINUTE);
    assert_eq!(world.driver.state.index(), before);
}
