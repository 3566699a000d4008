//! Each invariant of the history is tripped by a bad one of its own, and a good history trips none. Those of the rows are tested in `control`.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use fsm::{
    AllocationId, JobKind, Liveness,
    node::Readiness,
    testing::{self, Driver},
};

use super::{
    history::{Applied, Leaders, LogTime, NodeDeaths, Votes, check_durable},
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

fn numbers(broken: &[Broken]) -> BTreeSet<&'static str> {
    broken.iter().map(|one| one.0).collect()
}

fn assert_trips(number: &'static str, broken: Vec<Broken>) {
    assert!(numbers(&broken).contains(number), "{number} was not found: {broken:?}");
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
    assert_eq!(applied.shows("s0", &state), []);
    assert_eq!(applied.shows("s1", &state), []);
    let mut row = driver.allocation(one).clone();
    row.client_sequence += 1;
    fsm::testing::put(&mut driver.state, &row);
    assert_trips("I8", applied.shows("s1", &Arc::new(driver.state.clone())));
    let mut other = (*state).clone();
    other.advance(other.index(), other.term() + 1);
    assert_trips("I5", applied.shows("s2", &Arc::new(other)));
}

#[test]
fn i7_a_log_time_that_leaps_is_found() {
    let mut log_time = LogTime::default();
    let shows = |log_time: &mut LogTime, at, ms| log_time.shows(at, Duration::from_millis(ms));
    assert_eq!(shows(&mut log_time, 0, 500), None, "nothing is stamped yet");
    assert_eq!(shows(&mut log_time, 1_000_000, 2_000), None);
    assert_eq!(shows(&mut log_time, 1_010_500, 10_000), None);
    assert_eq!(shows(&mut log_time, 1_000_400, 10_000), None, "another server is behind");
    assert_trips("I7", shows(&mut log_time, 1_010_700, 10_000).into_iter().collect());
    log_time.goes_by_clocks(2_000_000, Duration::from_secs(10));
    assert_eq!(shows(&mut log_time, 2_010_500, 20_000), None);
    assert_trips("I7", shows(&mut log_time, 2_010_700, 20_000).into_iter().collect());
}

#[test]
fn i50_a_node_that_is_given_up_too_early_is_found() {
    let (mut driver, _) = running();
    let mut deaths = NodeDeaths::new(Duration::from_secs(4));
    deaths.leadership(driver.state.term(), Duration::from_secs(100));
    let before = driver.state.clone();
    driver.liveness("n1", Liveness::Down);
    let early = deaths.step(&before, &driver.state, Duration::from_secs(102));
    assert_trips("I50", early);
    assert_eq!(deaths.step(&before, &driver.state, Duration::from_secs(104)), []);
}
