//! Each invariant is tripped by a bad state of its own, and a good history trips none.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{sync::Arc, time::Duration};

use fsm::{
    ClientStatus, Liveness, Trigger,
    command::{Command, Readiness},
    job::Constraint,
    table::ChangeSet,
    testing::{self, Driver},
};

use super::{
    history::{Applied, Leaders, NodeDeaths, Votes, check_durable},
    *,
};

/// A cluster with two nodes and a job of two that run.
fn running() -> (Driver, [AllocationId; 2]) {
    let mut driver = Driver::default();
    for name in ["n1", "n2"] {
        driver.register_node(name);
        driver.readiness(name, Readiness::Ok);
        driver.sync(name);
    }
    driver.register_job(testing::job("web", JobKind::Service, 2));
    let (one, two) = (driver.node("n1"), driver.node("n2"));
    let ids = [driver.run("web", 0, one), driver.run("web", 1, two)];
    (driver, ids)
}

fn changed(driver: &Driver, id: AllocationId, change: impl FnOnce(&mut Allocation)) -> State {
    let mut state = driver.state.clone();
    let mut row = (**state.allocations.get(&id).unwrap()).clone();
    change(&mut row);
    state.allocations.put(row, &mut ChangeSet::trial());
    state
}

/// A later state of the same log.
fn later(mut state: State) -> State {
    state.head.index += 1;
    state
}

fn numbers(broken: &[Broken]) -> BTreeSet<&'static str> {
    broken.iter().map(|one| one.0).collect()
}

fn assert_trips(number: &'static str, broken: Vec<Broken>) {
    assert!(numbers(&broken).contains(number), "{number} was not found: {broken:?}");
}

#[test]
fn a_good_history_trips_nothing() {
    let (mut driver, _) = running();
    assert_eq!(check_state(&driver.state), []);
    assert_eq!(check_round_trip(&driver.state), []);
    let before = driver.state.clone();
    driver.register_job(testing::job("web", JobKind::Service, 2));
    driver.accept(Command::Tick);
    assert_eq!(check_step(&before, &driver.state), []);
}

#[test]
fn i32_an_over_committed_node_is_found() {
    let (driver, [id, _]) = running();
    let bad = changed(&driver, id, |row| row.resources.cpu_mhz = 4_001);
    assert_trips("I32", check_state(&bad));
}

#[test]
fn i33_a_port_given_twice_or_reserved_is_found() {
    let (driver, [one, two]) = running();
    let node = driver.allocation(one).node;
    let mut bad = changed(&driver, one, |row| row.ports = vec![testing::port("http", 8_080)]);
    let mut other = driver.allocation(two).clone();
    (other.node, other.ports) = (node, vec![testing::port("http", 8_080)]);
    bad.allocations.put(other, &mut ChangeSet::trial());
    assert_trips("I33", check_state(&bad));
    let reserved = changed(&driver, one, |row| row.ports = vec![testing::port("ssh", 22)]);
    assert_trips("I33", check_state(&reserved));
}

#[test]
fn i38_a_name_that_is_live_twice_and_too_many_instances_are_found() {
    let (mut driver, [one, _]) = running();
    let twice = changed(&driver, one, |row| row.name_index = 1);
    assert_trips("I38", check_state(&twice));
    let mut more = driver.allocation(one).clone();
    more.id = AllocationId(driver.id());
    more.name_index = 7;
    driver.state.allocations.put(more, &mut ChangeSet::trial());
    let broken = check_state(&driver.state);
    assert!(broken.iter().any(|one| one.1.contains("3 of")), "{broken:?}");
}

#[test]
fn i42_two_successors_and_a_circle_are_found() {
    let (driver, [one, two]) = running();
    let mut circle = changed(&driver, one, |row| {
        (row.previous, row.next) = (Some(two), Some(two));
    });
    let mut other = driver.allocation(two).clone();
    (other.previous, other.next) = (Some(one), Some(one));
    circle.allocations.put(other, &mut ChangeSet::trial());
    assert_trips("I42", check_state(&circle));
    let one_sided = changed(&driver, one, |row| row.previous = Some(two));
    assert_trips("I42", check_state(&one_sided));
}

#[test]
fn i44_a_row_newer_than_the_log_is_found() {
    let (driver, [one, _]) = running();
    let bad = changed(&driver, one, |row| row.modify_index = 1_000_000);
    assert_trips("I44", check_state(&bad));
}

#[test]
fn i45_a_missing_version_a_missing_node_and_a_wrong_summary_are_found() {
    let (driver, [one, _]) = running();
    assert_trips("I45", check_state(&changed(&driver, one, |row| row.job_version = 9)));
    let gone = testing::node_id("gone");
    assert_trips("I45", check_state(&changed(&driver, one, |row| row.node = gone)));
    // Put beside the indexes, so that the summary still counts it as running.
    let bad = changed(&driver, one, |row| row.client = ClientStatus::Failed);
    assert_trips("I45", check_state(&bad));
    assert_trips("I45", check_round_trip(&bad));
}

#[test]
fn i21_two_blocked_evaluations_are_found() {
    let (mut driver, _) = running();
    for _ in 0..2 {
        let id = driver.evaluation_id();
        let mut row = fsm::Evaluation::new(
            id,
            testing::job_key("web"),
            JobKind::Service,
            50,
            Trigger::JobRegister,
        );
        row.status = EvaluationStatus::Blocked;
        driver.state.evaluations.put(row, &mut ChangeSet::trial());
    }
    assert_trips("I21", check_state(&driver.state));
}

#[test]
fn i37_instances_that_share_a_node_although_they_must_not_are_found() {
    let mut driver = Driver::default();
    driver.register_node("n1");
    driver.readiness("n1", Readiness::Ok);
    driver.sync("n1");
    let mut spec = testing::job("web", JobKind::Service, 2);
    let text = |text: &str| text.into();
    spec.constraints =
        vec![Constraint { left: text(""), operand: text("distinct_hosts"), right: text("true") }];
    driver.register_job(spec);
    let node = driver.node("n1");
    driver.run("web", 0, node);
    driver.run("web", 1, node);
    assert_trips("I37", check_state(&driver.state));
}

#[test]
fn i7_a_state_that_goes_back_is_found() {
    let (mut driver, _) = running();
    let before = driver.state.clone();
    driver.accept(Command::Tick);
    assert_trips("I7", check_step(&driver.state, &before));
    assert_trips("I7", check_step(&before, &before));
    let mut younger = later(before.clone());
    younger.head.at = 0;
    assert_trips("I7", check_step(&before, &younger));
}

#[test]
fn i24_and_i18_an_evaluation_that_lives_again_or_vanishes_is_found() {
    let (mut driver, _) = running();
    let open = driver.evaluate_job("web");
    let before = driver.state.clone();
    let mut gone = later(before.clone());
    gone.evaluations.remove(&open, &mut ChangeSet::trial());
    assert_trips("I18", check_step(&before, &gone));
    let done = before.evaluations.iter().find(|row| row.status.is_terminal()).unwrap();
    let mut again = later(before.clone());
    let mut row = (**done).clone();
    row.status = EvaluationStatus::Pending;
    again.evaluations.put(row, &mut ChangeSet::trial());
    assert_trips("I24", check_step(&before, &again));
    assert_trips("I56", check_quiet(&again));
}

#[test]
fn i41_an_allocation_that_lives_again_is_found() {
    let (mut driver, [one, _]) = running();
    driver.report(one, ClientStatus::Failed);
    let failed = driver.state.clone();
    let again = later(changed(&driver, one, |row| row.client = ClientStatus::Running));
    assert_trips("I41", check_step(&failed, &again));
    let stopped = changed(&driver, one, |row| row.desired = DesiredStatus::Stop);
    assert_trips("I41", check_step(&stopped, &later(driver.state.clone())));
}

#[test]
fn i36_i40_and_i31_a_placement_that_must_not_be_is_found() {
    let (driver, [one, _]) = running();
    let fresh = |node, version| {
        let mut new = later(driver.state.clone());
        let mut row = driver.allocation(one).clone();
        row.id = AllocationId([9; 16]);
        (row.node, row.job_version) = (node, version);
        (row.create_index, row.modify_index) = (new.head.index, new.head.index);
        new.allocations.put(row, &mut ChangeSet::trial());
        new
    };
    let node = driver.allocation(one).node;
    let gone = fresh(testing::node_id("gone"), 0);
    assert_trips("I36", check_step(&driver.state, &gone));
    assert_trips("I31", check_step(&driver.state, &fresh(node, 5)));
    let mut stopped = driver.state.clone();
    let mut job = driver.job_row("web").clone();
    job.stop = true;
    stopped.jobs.put(job, &mut ChangeSet::trial());
    assert_trips("I40", check_step(&stopped, &fresh(node, 0)));
}

#[test]
fn i43_a_version_that_falls_or_jumps_is_found() {
    let (driver, _) = running();
    let with_version = |version| {
        let mut state = driver.state.clone();
        let mut job = driver.job_row("web").clone();
        job.version = version;
        state.jobs.put(job, &mut ChangeSet::trial());
        state
    };
    assert_trips("I43", check_step(&with_version(3), &later(with_version(2))));
    assert_trips("I43", check_step(&with_version(3), &later(with_version(5))));
    assert_eq!(check_step(&with_version(3), &later(with_version(4))), []);
}

#[test]
fn i39_a_job_that_is_not_as_it_should_be_is_found() {
    let (driver, [one, _]) = running();
    let lost = changed(&driver, one, |row| row.client = ClientStatus::Lost);
    assert_trips("I39", check_quiet(&lost));
    let mut stopped = driver.state.clone();
    let mut job = driver.job_row("web").clone();
    job.stop = true;
    stopped.jobs.put(job, &mut ChangeSet::trial());
    assert_trips("I39", check_quiet(&stopped));
}

#[test]
fn i1_a_second_vote_and_a_second_leader_are_found() {
    let mut votes = Votes::default();
    votes.granted(1, 5, 7).unwrap();
    votes.granted(1, 5, 7).unwrap();
    votes.granted(1, 6, 8).unwrap();
    assert!(votes.granted(1, 5, 8).unwrap_err().starts_with("I1"));
    let mut leaders = Leaders::default();
    assert!(leaders.leads(5, 7).unwrap());
    assert!(!leaders.leads(5, 7).unwrap());
    assert!(leaders.leads(5, 8).unwrap_err().starts_with("I1"));
}

#[test]
fn i3_a_leader_without_an_acknowledged_write_is_found() {
    let mut leaders = Leaders::default();
    leaders.heard_of(5, 40);
    leaders.heard_of(5, 60);
    leaders.begins(5, 41).unwrap();
    assert!(leaders.begins(5, 39).unwrap_err().starts_with("I3"));
}

#[test]
fn i4_an_acknowledgement_without_a_durable_majority_is_found() {
    check_durable(10, 3, &[10, 12, 4]).unwrap();
    assert!(check_durable(11, 3, &[10, 12, 4]).unwrap_err().starts_with("I4"));
    assert!(check_durable(1, 5, &[1, 1]).is_err());
}

#[test]
fn i8_and_i5_replicas_that_differ_are_found() {
    let (mut driver, [one, _]) = running();
    let mut applied = Applied::default();
    let state = Arc::new(driver.state.clone());
    assert_eq!(applied.shows("s0", &state, true), []);
    assert_eq!(applied.shows("s1", &state, true), []);
    let mut row = driver.allocation(one).clone();
    row.client_sequence += 1;
    driver.state.allocations.put(row, &mut ChangeSet::default());
    assert_trips("I8", applied.shows("s1", &Arc::new(driver.state.clone()), true));
    let mut other = (*state).clone();
    other.head.term += 1;
    assert_trips("I5", applied.shows("s2", &Arc::new(other), true));
}

#[test]
fn i50_a_node_that_is_given_up_too_early_is_found() {
    let (mut driver, _) = running();
    let mut deaths = NodeDeaths::new(Duration::from_secs(4));
    deaths.leadership(driver.state.head.term, Duration::from_secs(100));
    let before = driver.state.clone();
    driver.liveness("n1", Liveness::Down);
    let early = deaths.step(&before, &driver.state, Duration::from_secs(102));
    assert_trips("I50", early);
    assert_eq!(deaths.step(&before, &driver.state, Duration::from_secs(104)), []);
}

#[test]
fn i50_a_node_that_is_given_up_although_its_leader_heard_it_is_found() {
    let (mut driver, _) = running();
    let mut deaths = NodeDeaths::new(Duration::from_secs(4));
    let (term, node) = (driver.state.head.term, driver.node("n1"));
    let before = driver.state.clone();
    driver.liveness("n1", Liveness::Down);
    deaths.heard(node, term, Duration::from_secs(100));
    assert_trips("I50", deaths.step(&before, &driver.state, Duration::from_secs(102)));
    assert_eq!(deaths.step(&before, &driver.state, Duration::from_secs(104)), []);
    // What another leader heard is nothing to this one.
    deaths.heard(node, term + 1, Duration::from_secs(104));
    assert_eq!(deaths.step(&before, &driver.state, Duration::from_secs(105)), []);
}
