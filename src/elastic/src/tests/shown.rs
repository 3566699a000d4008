//! What is shown of the fleet: lines of log and numbers.

use super::*;

impl World {
    fn steps(&mut self) -> Vec<String> {
        let steps = self.fleet.take_steps();
        steps.iter().map(|one| format!("{}: {}", one.step, one.detail)).collect()
    }

    pub(super) fn shown(&self, name: &str) -> u64 {
        let mut found = None;
        self.fleet.gauges(self.at(), &mut |shown, value| {
            if shown == name {
                found = Some(value);
            }
        });
        found.unwrap_or_else(|| panic!("no gauge {name}"))
    }
}

/// Each step of an instance is told once, with what there is to say of it.
#[test]
fn each_step_of_an_instance_is_told() {
    let mut world = World::new(9);
    world.job("web", 1);
    assert_eq!(world.steps(), ["requested: type small for job web"]);
    let id = world.make()[0];
    assert_eq!(world.steps(), ["made: m1"]);
    world.boot(id);
    assert_eq!(world.steps(), [format!("bound: node {}", node_id(&name(id)))]);
    let command = fsm::pool::SetInstanceBehavior {
        id,
        behavior: fsm::pool::Behavior::Hold,
        deadline_ms: None,
        by: "alice".into(),
        reason: "disk".into(),
        evaluation_ids: Vec::new(),
    };
    world.commit(Command::from(command));
    assert_eq!(world.steps(), ["hold: by alice: disk"]);
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    let reason = world.row(id).shutdown.unwrap().reason;
    assert_eq!(world.steps(), [format!("shut down: operator: {reason}")]);
    world.run();
    world.destroy();
    assert_eq!(world.steps()[0], "gone: ");
}

/// The age of the oldest probe rises while a provider does not describe what boots, and falls when
/// it does.
#[test]
fn the_oldest_probe_is_shown() {
    let mut world = World::new(9);
    assert_eq!(world.shown("pools.oldest_probe_ms"), 0);
    world.job("web", 1);
    world.make();
    world.pass(40_000);
    let age = world.shown("pools.oldest_probe_ms");
    assert!((39_000..42_000).contains(&age), "{age}");
    let (call, _) = world.take_calls("describe")[0];
    let description = crate::call::Description {
        state: crate::call::MachineState::Booting,
        address: "".into(),
        words: "".into(),
    };
    world.answer(call, Ok(Answer::Described(description)));
    assert_eq!(world.shown("pools.oldest_probe_ms"), 0);
}

/// The time from a shutdown until the machine is gone.
#[test]
fn the_time_until_gone_is_shown() {
    let mut world = World::new(9);
    world.job("web", 1);
    let id = world.make_and_boot()[0];
    let command = world.driver.shut_down_command(id, ShutdownCause::Operator);
    world.commit(command);
    world.pass(7_000);
    world.destroy();
    assert_eq!(world.shown("pools.instances.gone"), 1);
    let took = world.shown("pools.instances.gone_longest_ms");
    assert!((6_000..9_000).contains(&took), "{took}");
    assert_eq!(world.shown("pools.instances.gone_total_ms"), took);
}
