//! A machine that is short of something: its node gets no new work, and nobody is to blame.

use super::*;
use crate::node::{Health, NodeChange, NodeShortage};

fn short(driver: &Driver, name: &str, reason: &str) -> Command {
    let (node, incarnation) = (node_id(name), driver.node_row(name).incarnation);
    let evaluation_ids = Vec::new();
    NodeShortage { node, incarnation, reason: reason.into(), evaluation_ids }.into()
}

fn say(driver: &mut Driver, name: &str, reason: &str) -> Applied {
    let command = short(driver, name, reason);
    driver.commit(command)
}

fn events(driver: &Driver, name: &str) -> usize {
    driver.node_row(name).events.len()
}

#[test]
fn a_short_node_gets_no_new_work_and_what_runs_there_goes_on() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 2));
        let running = driver.run("t", 0, a);
        let before = events(driver, "a");
        say(driver, "a", "12 MiB of disk are free");
        assert!(free(driver).is_empty());
        assert_eq!(drop_reason(driver, "t", a), DropReason::NodeUnschedulable);
        let row = driver.node_row("a").clone();
        let shortage = row.shortage.clone().unwrap();
        assert_eq!((&*shortage.reason, shortage.since), ("12 MiB of disk are free", START_MS));
        assert_eq!((row.liveness, &row.health), (Liveness::Ready, &Health::Ok));
        assert_eq!((row.strikes, driver.state.census().short()), (0, 1));
        assert_eq!(driver.allocation(running).client, ClientStatus::Running);
        assert_eq!(events(driver, "a"), before + 1);

        // Another number is no other shortage.
        driver.at_seconds(9);
        say(driver, "a", "11 MiB of disk are free");
        let shortage = driver.node_row("a").shortage.clone().unwrap();
        assert_eq!((&*shortage.reason, shortage.since), ("11 MiB of disk are free", START_MS));
        assert_eq!(events(driver, "a"), before + 1, "it is one event");
        let same = rows(&driver.state);
        say(driver, "a", "11 MiB of disk are free");
        assert_eq!(rows(&driver.state), same);
    });
}

#[test]
fn the_end_of_a_shortage_is_room_and_news_for_system_jobs() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    driver.register_job(job("each", JobKind::System, 1));
    say(&mut driver, "a", "no threads");
    let ended = say(&mut driver, "a", "");
    assert_eq!(free(&driver), ["a"]);
    assert_eq!(driver.state.census().short(), 0);
    let Reply::Node { evaluations, .. } = &ended.reply else { panic!("{:?}", ended.reply) };
    assert_eq!(evaluations.len(), 1, "of the system job");
    let is_end = |effect: &Effect| matches!(effect, Effect::NodeChange { node, change: NodeChange::ShortageEnded, .. } if *node == a);
    assert!(ended.effects.iter().any(is_end), "{:?}", ended.effects);
}

#[test]
fn a_shortage_is_of_one_incarnation() {
    let mut driver = Driver::default();
    driver.node("a");
    let old = short(&driver, "a", "no memory");
    driver.accept(old.clone());
    driver.register_node_as("a", 2, description("a"));
    assert_eq!(driver.node_row("a").shortage, None, "it has booted anew");
    driver.reject(old);
    assert_eq!(driver.node_row("a").shortage, None);
    let end = short(&driver, "a", "");
    driver.accept(end);
    add_again(&mut driver, "a");
}
