//! Work follows changes, not the number of instances and jobs.

#![expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "it measures, and prints what it found"
)]

use std::time::{Duration, Instant};

use fsm::{Effect, EvaluationId, testing::put};

use super::*;

const INSTANCES: u32 = 1_000;
const JOBS: u32 = 10_000;

/// A pool with its instances, all in use, and jobs that wait for more than it may have.
fn crowd() -> World {
    let mut world = World::new(INSTANCES);
    world.driver.checked = false;
    world.lists = false;
    let id = |number: u32| InstanceId(u128::from(number + 1).to_be_bytes());
    let pool_modify_index =
        world.driver.state.instance_pools().get(&"p".into()).unwrap().modify_index;
    let intents = (0..INSTANCES)
        .map(|number| fsm::pool::Intent {
            id: id(number),
            token: [1; 16],
            kind: "small".into(),
            wanted_by: None,
            group: None,
        })
        .collect();
    world.driver.accept(RequestInstances { pool: "p".into(), pool_modify_index, intents }.into());
    for number in 0..INSTANCES {
        let outcome = fsm::pool::InstanceOutcome {
            id: id(number),
            provider: "fake".into(),
            pool: "p".into(),
            kind: "small".into(),
            outcome: fsm::pool::CreateOutcome::Made {
                provider_id: format!("m{number}").into(),
                address: "".into(),
                scope: SCOPE.into(),
            },
        };
        world.driver.accept(outcome.into());
        let node = format!("node{number}");
        let command = world
            .driver
            .register_as(&node, fsm::node::InstanceProof { id: id(number), token: [1; 16] });
        world.driver.accept(command);
    }
    for number in 0..JOBS {
        let name = format!("j{number}");
        world.driver.register_job(spec(&name, 1, 600));
        let key = job_key(&name);
        let evaluations = world.driver.state.evaluations_of_job(&key);
        let pending = evaluations.last().expect("a job has an evaluation");
        let blocked = Evaluation {
            id: EvaluationId(u128::from(number + 1).to_be_bytes()),
            status: EvaluationStatus::Blocked,
            queued: [(spec(&name, 1, 600).groups[0].name.clone(), 1)].into(),
            ..(**pending).clone()
        };
        put(&mut world.driver.state, &blocked);
    }
    world.now += 1_000;
    world.driver.at_ms(world.now);
    let now = world.at();
    world.fleet.restore(now, &world.driver.state);
    world
}

/// The shortest, median and longest of some durations.
fn spread(mut durations: Vec<Duration>) -> [Duration; 3] {
    durations.sort_unstable();
    [durations[0], durations[durations.len() / 2], durations[durations.len() - 1]]
}

/// 1,000 instances and 10,000 jobs that wait: a step at rest looks at nothing, and a change of one
/// job is one look at its pool.
#[test]
fn a_step_at_rest_costs_nothing_however_much_there_is() {
    let mut world = crowd();
    let mut ids = || [9; 16];
    let now = world.at();
    world.fleet.step(now, &world.driver.state, &mut ids);
    assert_eq!(world.shown("pools.waiting{pool=p}"), 10_000);
    let mut rest = Vec::new();
    for _ in 0..100 {
        let begun = Instant::now();
        let commands = world.fleet.step(now, &world.driver.state, &mut ids);
        rest.push(begun.elapsed());
        assert_eq!(commands, []);
    }
    let mut looks = Vec::new();
    for number in 0..3_u32 {
        let now = now + u64::from(number + 1) * crate::fleet::COALESCE_MS;
        let effect = Effect::Job(job_key(&format!("j{number}")));
        let begun = Instant::now();
        world.fleet.take(&world.driver.state, &effect);
        world.fleet.step(now, &world.driver.state, &mut ids);
        looks.push(begun.elapsed());
    }
    let (rest, looks) = (spread(rest), spread(looks));
    println!("at rest {rest:?}; a look after a change of one job {looks:?}");
    assert!(rest[0] <= Duration::from_millis(5), "{rest:?}");
    assert!(looks[0] <= Duration::from_secs(2), "{looks:?}");
}
