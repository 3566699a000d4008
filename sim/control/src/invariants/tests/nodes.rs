//! What nodes must not do from one state to the next, and what no mass loss and no strike may be.

use fsm::{
    Liveness, Node, NodeId,
    node::{Health, MassLoss, MassLossEnd, SuspendReason, Suspension, Tombstone},
    upkeep::Tick,
};

use super::*;

#[test]
fn i50_too_many_suspended_nodes_are_found() {
    let (driver, _) = running();
    let mut bad = later(driver.state.clone());
    let health = fsm::node::Health::Suspended(fsm::node::Suspension {
        reason: fsm::node::SuspendReason::Flaky,
        detail: "".into(),
        by: "".into(),
        since: 1,
        until: Some(2),
        clears_affinity: true,
    });
    for name in ["n1", "n2"] {
        let mut row = driver.node_row(name).clone();
        row.health = health.clone();
        testing::put(&mut bad, &row);
    }
    assert!(numbers_of_step(&driver.state, &bad).contains("I50"));
}

/// The state of the driver, one entry later, with one node changed.
fn node_changed(driver: &Driver, name: &str, change: impl FnOnce(&mut fsm::Node)) -> fsm::State {
    let mut after = later(driver.state.clone());
    let mut row = driver.node_row(name).clone();
    change(&mut row);
    testing::put(&mut after, &row);
    after
}

#[test]
fn i50_a_step_of_liveness_that_is_none_is_found() {
    let (mut driver, _) = running();
    driver.liveness("n1", fsm::Liveness::Down);
    let good = node_changed(&driver, "n1", |_| {});
    assert_eq!(check_step(&driver.state, &good), []);
    let bad = node_changed(&driver, "n1", |row| row.liveness = fsm::Liveness::Ready);
    assert!(numbers_of_step(&driver.state, &bad).contains("I50"));
}

#[test]
fn i50_strikes_that_come_together_are_found() {
    let (driver, _) = running();
    let good = node_changed(&driver, "n1", |row| (row.strikes, row.strike_at) = (1, 5));
    assert!(!numbers_of_step(&driver.state, &good).contains("I50"));
    let two = node_changed(&driver, "n1", |row| (row.strikes, row.strike_at) = (2, 5));
    assert!(numbers_of_step(&driver.state, &two).contains("I50"));
}

#[test]
fn i50_a_strike_within_the_window_of_the_last_is_found() {
    let (driver, _) = running();
    let window_ms = driver.state.node_life().strike_window_ms;
    let now = driver.state.at();
    let strike = |strike_at| {
        let mut row = driver.node_row("n1").clone();
        (row.strikes, row.strike_at) = (1, strike_at);
        let mut before = driver.state.clone();
        testing::put(&mut before, &row);
        let mut after = later(before.clone());
        (row.strikes, row.strike_at) = (2, now);
        testing::put(&mut after, &row);
        numbers_of_step(&before, &after)
    };
    assert!(strike(now - window_ms + 1).contains("I50"));
    assert!(!strike(now - window_ms).contains("I50"));
}

/// The driver's state with a row put into it.
fn with<R: fsm::table::Row>(driver: &Driver, row: &R) -> State {
    let mut state = driver.state.clone();
    testing::put(&mut state, row);
    state
}

fn tombstone(node: NodeId, incarnation: u64) -> Tombstone {
    let (health, failures) = (Health::Ok, Vec::new());
    Tombstone { node, incarnation, at: 1, health, failures, strikes: 2, strike_at: 5 }
}

#[test]
fn i7_an_incarnation_that_falls_or_comes_again_is_found() {
    let (driver, _) = running();
    let known = driver.node_row("n1").incarnation;
    let newer = node_changed(&driver, "n1", |row| row.incarnation = known + 1);
    assert!(!numbers_of_step(&driver.state, &newer).contains("I7"));
    let older = node_changed(&driver, "n1", |row| row.incarnation = known - 1);
    assert!(numbers_of_step(&driver.state, &older).contains("I7"));
    let reaped = |incarnation| with(&driver, &tombstone(testing::node_id("n1"), incarnation));
    assert!(!numbers_of_step(&reaped(known - 1), &later(reaped(known - 1))).contains("I7"));
    assert!(numbers_of_step(&reaped(known), &later(reaped(known))).contains("I7"));
}

/// A mass loss of both nodes, one of which is down.
fn losing() -> (Driver, MassLoss) {
    let (mut driver, _) = running();
    driver.liveness("n1", Liveness::Down);
    let nodes = ["n1", "n2"].map(testing::node_id).into();
    let since = driver.state.at();
    (driver, MassLoss { since, nodes, end: None, create_index: 7, modify_index: 7 })
}

#[test]
fn i50_a_mass_loss_that_ends_too_early_is_found() {
    let (driver, loss) = losing();
    let before = with(&driver, &loss);
    let step = |changed: &MassLoss| {
        let mut after = later(before.clone());
        testing::put(&mut after, changed);
        numbers_of_step(&before, &after).contains("I50")
    };
    let ended = |at, by: &str| {
        step(&MassLoss { end: Some(MassLossEnd { at, by: by.into() }), ..loss.clone() })
    };
    assert!(!step(&loss));
    assert!(ended(loss.since, ""), "half of its nodes are down");
    assert!(!ended(loss.since, "ann@desk"), "an operator may");
    assert!(!ended(loss.since + fsm::limits::MASS_LOSS_MS_MAX, ""), "a day has passed");
    assert!(step(&MassLoss { since: loss.since + 1, ..loss.clone() }), "it is another one");
    assert!(step(&MassLoss { nodes: loss.nodes[1..].into(), ..loss.clone() }), "one is forgotten");
    let gone = later(testing::without::<MassLoss>(&before, &()));
    assert!(numbers_of_step(&before, &gone).contains("I50"), "all of it is forgotten");
}

#[test]
fn i50_a_mass_loss_that_does_not_end_is_found() {
    let (mut driver, loss) = losing();
    let found = |driver: &Driver| numbers(&check_quiet(&with(driver, &loss), &BTreeSet::new()));
    assert!(!found(&driver).contains("I50"), "half of its nodes are down");
    driver.liveness("n1", Liveness::Initializing);
    assert!(found(&driver).contains("I50"));
}

#[test]
fn i50_a_node_that_is_reaped_in_a_mass_loss_is_found() {
    let (driver, loss) = losing();
    let before = with(&driver, &loss);
    let id = testing::node_id("n1");
    let gone = later(testing::without::<Node>(&before, &id));
    let nobody = BTreeSet::new();
    assert_eq!(check_kept(&before, &later(before.clone()), &nobody), []);
    assert_trips("I50", check_kept(&before, &gone, &nobody));
    assert_eq!(check_kept(&before, &gone, &BTreeSet::from([id])), [], "an operator purged it");
    let mut again = gone.clone();
    let row = Node { create_index: 1_000, ..driver.node_row("n1").clone() };
    testing::put(&mut again, &row);
    assert_trips("I50", check_kept(&before, &later(again), &nobody));
    let mut over = later(gone);
    let end = Some(MassLossEnd { at: 1, by: "".into() });
    testing::put(&mut over, &MassLoss { end, ..loss });
    assert_eq!(check_kept(&before, &over, &nobody), [], "it may have ended before");
}

#[test]
fn i50_a_node_that_has_too_little_time_to_become_ready_is_found() {
    let (driver, _) = running();
    let due_at = driver.state.at() + driver.state.node_life().ready_deadline_ms;
    let begins = |due_at| {
        let after = node_changed(&driver, "n1", |row| {
            (row.liveness, row.ready_deadline_at) = (Liveness::Initializing, due_at);
        });
        numbers_of_step(&driver.state, &after).contains("I50")
    };
    assert!(!begins(due_at));
    assert!(begins(due_at - 1));
}

#[test]
fn i50_a_key_that_nothing_brought_or_a_cool_down_left_is_found() {
    let (mut driver, _) = running();
    let bad = node_changed(&driver, "n1", |row| row.affinity_key = "other".into());
    assert!(numbers_of_step(&driver.state, &bad).contains("I50"));
    let suspended = |clears_affinity| Suspension {
        reason: SuspendReason::Flaky,
        detail: "".into(),
        by: "".into(),
        since: 1,
        until: Some(2),
        clears_affinity,
    };
    let mut cooled_down = |clears_affinity, key: &str| {
        let mut row = driver.node_row("n1").clone();
        (row.health, row.affinity_key) =
            (Health::Suspended(suspended(clears_affinity)), "kept".into());
        testing::put(&mut driver.state, &row);
        let after = node_changed(&driver, "n1", |row| {
            (row.health, row.affinity_key) = (Health::Ok, key.into());
        });
        numbers_of_step(&driver.state, &after).contains("I50")
    };
    assert!(cooled_down(true, "kept"));
    assert!(!cooled_down(true, ""));
    assert!(!cooled_down(false, "kept"));
}

#[test]
fn i50_a_node_that_comes_back_without_its_strikes_is_found() {
    let (driver, _) = running();
    let was = tombstone(testing::node_id("n1"), 0);
    let before = testing::without::<Node>(&with(&driver, &was), &was.node);
    let comes_back = |strikes, strike_at, health: &Health| {
        let mut after = later(before.clone());
        let health = health.clone();
        testing::put(
            &mut after,
            &Node { strikes, strike_at, health, ..driver.node_row("n1").clone() },
        );
        numbers_of_step(&before, &after).contains("I50")
    };
    assert!(!comes_back(2, 5, &Health::Ok));
    assert!(comes_back(0, 0, &Health::Ok));
    let suspended = Health::Suspended(Suspension {
        reason: SuspendReason::Operator,
        detail: "".into(),
        by: "".into(),
        since: 1,
        until: None,
        clears_affinity: false,
    });
    assert!(comes_back(2, 5, &suspended));
}

/// What is found when a node of a job of two gets its first strike, after failures of these jobs so long ago.
fn found_of_strike(failures: &[(u64, &str)]) -> Vec<Broken> {
    let (mut driver, _) = running();
    driver.node_life(|life| (life.strike_failures, life.strike_window_ms) = (2, 1_000));
    driver.at_ms(10_000);
    driver.accept(Command::from(Tick));
    let now = driver.state.at();
    let mut strikes = Strikes::default();
    for (ago_ms, job) in failures {
        strikes.failed(testing::node_id("n1"), now - ago_ms, testing::job_key(job));
    }
    let after = node_changed(&driver, "n1", |row| (row.strikes, row.strike_at) = (1, now));
    strikes.judge(&driver.state, &after)
}

#[test]
fn i50_a_strike_without_a_cause_is_found() {
    assert_eq!(found_of_strike(&[(999, "web"), (0, "other")]), []);
    assert_eq!(found_of_strike(&[(9, "web"), (0, "web")]), [], "it runs on the other node");
    for too_little in [&[(0, "web")][..], &[(1_000, "web"), (0, "other")]] {
        let found = found_of_strike(too_little);
        assert!(found.iter().any(|one| one.1.contains("1 failures of 2")), "{found:?}");
    }
    let alone = found_of_strike(&[(9, "other"), (0, "other")]);
    assert!(alone.iter().any(|one| one.1.contains("runs nowhere else")), "{alone:?}");
}

#[test]
fn i50_more_strikes_than_windows_between_two_states_are_found() {
    let (mut driver, _) = running();
    driver.node_life(|life| (life.strike_failures, life.strike_window_ms) = (1, 1_000));
    let before = driver.state.clone();
    driver.at_ms(1_000);
    driver.accept(Command::from(Tick));
    let now = driver.state.at();
    let mut strikes = Strikes::default();
    strikes.failed(testing::node_id("n1"), now, testing::job_key("web"));
    let struck = |count| {
        let after = node_changed(&driver, "n1", |row| (row.strikes, row.strike_at) = (count, now));
        strikes.judge(&before, &after)
    };
    assert_eq!(struck(2), []);
    assert_trips("I50", struck(3));
}
