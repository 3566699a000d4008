//! I57: evictions that go wrong are found, and one that goes well trips nothing.

use fsm::{
    JobSpec, NodeId,
    plan::{Placement, PlanVerdict},
};

use super::*;

/// A node that a job of priority 50 fills, and an instance of a system job of priority 80 that
/// evicted one of it: states around that entry, the victim, and what it went for.
fn evicted() -> (State, State, AllocationId, AllocationId) {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    driver.register_job(testing::job("web", JobKind::Service, 8));
    let victim = (0..8).map(|name| driver.run("web", name, node)).next().unwrap();
    let (before, id, verdict) = place_evicting(&mut driver, node, &[victim]);
    assert!(verdict.outcome_taken);
    (before, driver.state, victim, id)
}

fn place_evicting(
    driver: &mut Driver,
    node: NodeId,
    victims: &[AllocationId],
) -> (State, AllocationId, PlanVerdict) {
    let urgent = JobSpec { priority: 80, ..testing::job("urgent", JobKind::System, 1) };
    let evaluation = driver.register_job(urgent);
    let preempts = victims.to_vec();
    let placement = Placement { preempts, ..driver.placement(testing::GROUP, 0, node) };
    let (id, plan) = (placement.id, driver.plan(evaluation).with(placement));
    let before = driver.state.clone();
    (before, id, driver.commit_plan(plan))
}

fn with(state: &State, id: AllocationId, change: impl FnOnce(&mut Allocation)) -> State {
    let mut state = state.clone();
    let mut row = (**state.allocations().get(&id).unwrap()).clone();
    change(&mut row);
    testing::put(&mut state, &row);
    state
}

#[test]
fn a_good_eviction_trips_nothing() {
    let (before, after, victim, id) = evicted();
    assert_eq!(check_step(&before, &after), []);
    assert_eq!(check_state(&after), []);
    let row = after.allocations().get(&victim).unwrap();
    assert_eq!((row.desired, row.preempted_by), (DesiredStatus::Evict, Some(id)));
}

#[test]
fn i57_ends_that_do_not_agree_are_found() {
    let (_, after, victim, id) = evicted();
    let unnamed = with(&after, victim, |row| row.preempted_by = None);
    assert_trips("I57", check_state(&unnamed));
    let unknown = with(&after, id, |row| row.preempted.clear());
    assert_trips("I57", check_state(&unknown));
    let stopped = with(&after, victim, |row| row.desired = DesiredStatus::Stop);
    assert_trips("I57", check_state(&stopped));
}

#[test]
fn i57_a_victim_of_too_high_a_priority_or_that_was_not_live_is_found() {
    let (before, after, victim, id) = evicted();
    let of_own_job = with(&after, victim, |row| row.job = testing::job_key("urgent"));
    assert_trips("I57", check_step(&before, &of_own_job));
    let elsewhere = with(&after, victim, |row| row.node = testing::node_id("n2"));
    assert_trips("I57", check_step(&before, &elsewhere));
    let ended = with(&before, victim, |row| row.client = ClientStatus::Complete);
    assert_trips("I57", check_step(&ended, &after));
    let for_nothing = with(&after, id, |row| row.create_index -= 1);
    assert_trips("I57", check_step(&before, &for_nothing));
    let mut off = after.clone();
    let mut settings = off.scheduler_configuration();
    settings.preemption.system = false;
    testing::put(&mut off, &settings);
    assert_trips("I57", check_step(&before, &off));
}

#[test]
fn i57_a_victim_whose_job_nobody_looks_at_is_found() {
    let (before, after, ..) = evicted();
    let mut unseen = after.clone();
    let rows = after.evaluations().iter().filter(|row| row.trigger == Trigger::Preemption);
    for row in rows.cloned().collect::<Vec<_>>() {
        let mut row = (*row).clone();
        row.trigger = Trigger::NodeUpdate;
        testing::put(&mut unseen, &row);
    }
    assert_trips("I57", check_step(&before, &unseen));
}

/// A node on which a job of lower priority leaves no room has room for one that may evict it.
#[test]
fn i39_an_instance_that_could_evict_is_missing() {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    driver.register_job(testing::job("web", JobKind::Service, 8));
    for name in 0..8 {
        driver.run("web", name, node);
    }
    let waits_for_ever = |driver: &mut Driver, priority: u16| {
        let spec = JobSpec { priority, ..testing::job("urgent", JobKind::System, 1) };
        driver.register_job(spec);
        let broken = check_quiet(&driver.state, &BTreeSet::new());
        broken.iter().any(|one| one.0 == "I39" && one.1.contains("urgent"))
    };
    assert!(!waits_for_ever(&mut driver, 59));
    assert!(waits_for_ever(&mut driver, 60));
}
