//! Mass loss: what begins and ends it, and that nothing is reaped while it lasts.

use super::*;
use crate::node::EndMassLoss;

const NAMES: [&str; 10] = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];

fn ready(driver: &mut Driver) {
    for name in NAMES {
        driver.node(name);
    }
}

fn lose(driver: &mut Driver, names: &[&str]) {
    for name in names {
        driver.liveness(name, Liveness::Down);
    }
}

fn end(by: Option<&str>) -> Command {
    Command::from(EndMassLoss { by: by.map(Into::into) })
}

/// SC-23: when a large share of the nodes goes silent at once, that is said, and none is reaped
/// until most are back.
#[test]
fn nothing_is_reaped_in_a_mass_loss_until_most_are_back() {
    with_leader_changes(|driver| {
        ready(driver);
        lose(driver, &NAMES[..3]);
        assert!(driver.state.mass_loss().is_none(), "30 % of the ready nodes");
        lose(driver, &NAMES[3..4]);
        let loss = driver.state.mass_loss().unwrap().clone();
        assert_eq!((loss.since, loss.nodes.len()), (START_MS, 4));
        let event = &driver.node_row("a").events.last().unwrap().message;
        assert_eq!(&**event, "Mass loss: 4 of 10 ready nodes went silent");
        lose(driver, &NAMES[4..5]);
        assert_eq!(driver.state.mass_loss().unwrap().nodes.len(), 5);
        driver.at_seconds(3_600);
        let reap = driver.reap("a", false);
        driver.reject(reap.clone());
        for name in ["c", "d"] {
            driver.node(name);
            driver.reject(end(None));
        }
        driver.node("e");
        driver.accept(end(None));
        assert!(driver.state.mass_loss().is_none());
        driver.accept(reap);
        assert!(matches!(driver.reject(end(None)), Rejection::NotFound { .. }));
    });
}

/// Nodes that go one by one, further apart than the window, are no mass loss; nor are few nodes, or
/// nodes that were not ready.
#[test]
fn only_ready_nodes_that_go_together_are_a_mass_loss() {
    let mut driver = Driver::default();
    ready(&mut driver);
    for (number, name) in (1..).zip(NAMES) {
        driver.at_seconds(31 * number);
        driver.liveness(name, Liveness::Down);
        assert!(driver.state.mass_loss().is_none());
    }
    let mut driver = Driver::default();
    for name in &NAMES[..2] {
        driver.node(name);
    }
    lose(&mut driver, &NAMES[..2]);
    assert!(driver.state.mass_loss().is_none(), "two nodes");
    let mut driver = Driver::default();
    for name in NAMES {
        driver.register_node(name);
    }
    lose(&mut driver, &NAMES);
    assert!(driver.state.mass_loss().is_none(), "they were not ready");
}

/// An operator confirms that the nodes are lost: they are reaped, and are no mass loss again.
#[test]
fn an_operator_confirms_the_loss() {
    let mut driver = Driver::default();
    ready(&mut driver);
    lose(&mut driver, &NAMES[..9]);
    driver.at_seconds(1);
    driver.accept(end(Some("alice@web1")));
    let row = driver.state.mass_losses().get(&()).unwrap().clone();
    let row = row.end.as_ref().unwrap();
    assert_eq!((row.at, &*row.by), (START_MS + 1_000, "alice@web1"));
    driver.at_seconds(2);
    driver.liveness("j", Liveness::Down);
    assert!(driver.state.mass_loss().is_none(), "the others were confirmed");
    driver.at_seconds(61);
    let reap = driver.reap("a", false);
    driver.accept(reap);
}

/// A mass loss ends by itself after a day.
#[test]
fn a_mass_loss_lasts_a_day() {
    let mut driver = Driver::default();
    ready(&mut driver);
    lose(&mut driver, &NAMES);
    driver.at_ms(limits::MASS_LOSS_MS_MAX - 1);
    driver.reject(end(None));
    driver.at_ms(limits::MASS_LOSS_MS_MAX);
    driver.accept(end(None));
}
