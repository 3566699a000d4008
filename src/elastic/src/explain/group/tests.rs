//! Each case in which a group moves or does not, and what is said of it.

#![expect(clippy::unwrap_used, reason = "tests")]

use fsm::{
    InstanceId, Liveness,
    capacity::{BusyRule, DecideCapacity, DecidedCapacity, MoveMembers},
    node::Readiness,
    pool::{Behavior, CreateOutcome, InstanceOutcome, LimitClass, LimitScope, PauseInstancePool},
    testing::{Driver, Interruption, START_MS, capacity_group, proof},
};

use super::*;

const UNIT: u64 = 8192;

fn driver(max: u32, change: impl FnOnce(&mut CapacityGroup)) -> Driver {
    let mut driver = Driver::default();
    let mut web = CapacityGroup { unit: UNIT, ..capacity_group("web") };
    change(&mut web);
    driver.instance_pool("gpu", |pool| {
        pool.max = max;
        pool.groups.insert("web".into(), web.into());
    });
    driver
}

fn ask(driver: &mut Driver) -> InstanceId {
    let mut intent = driver.intent("gpu", "small");
    intent.group = Some("web".into());
    let id = intent.id;
    let command = driver.request("gpu", vec![intent]);
    driver.accept(command);
    id
}

fn member(driver: &mut Driver, name: &str) -> InstanceId {
    let id = ask(driver);
    driver.made(id);
    let command = driver.register_as(name, proof(id));
    driver.accept(command);
    driver.sync(name);
    driver.readiness(name, Readiness::Ok);
    id
}

/// Decides as the machine would.
fn decide(driver: &mut Driver) {
    let (_, group) = driver.state.capacity_group("web").unwrap();
    let made = crate::capacity::decision(driver.now, &driver.state, &"web".into(), group);
    let decisions: Vec<DecidedCapacity> = made.into_iter().collect();
    driver.accept(DecideCapacity { decisions }.into());
}

fn drain(driver: &mut Driver, ids: &[InstanceId]) {
    let target = driver.state.capacity_targets().get(&"web".into()).unwrap();
    let command = MoveMembers {
        group: "web".into(),
        decision_index: target.decision.unwrap().index,
        drain: ids.to_vec(),
        take_back: Vec::new(),
        evaluation_ids: Vec::new(),
    };
    driver.accept(command.into());
}

/// 2001-09-09T01:46:40Z is the start.
fn said(driver: &Driver, second: u64) -> Vec<String> {
    group(&driver.state, START_MS + second * 1_000, "web").unwrap()
}

#[track_caller]
fn says(driver: &Driver, second: u64, sentence: &str) {
    let said = said(driver, second);
    assert!(said.iter().any(|one| one == sentence), "{sentence}\n{said:#?}");
}

#[test]
fn a_group_of_nothing_says_so_and_an_unknown_one_nothing() {
    let driver = driver(9, |_| {});
    let expected = [
        "no source asks for anything",
        "the sum is 0 MB, the predictor identity takes it as it is",
        "0 members serve and give 0 MB",
    ];
    assert_eq!(said(&driver, 0), expected);
    assert_eq!(group(&driver.state, START_MS, "none"), None);
}

#[test]
fn the_sentence_names_sources_requirement_and_members_on_their_way() {
    let mut driver = driver(9, |web| web.predictor = Prediction::Headroom { percent: 50 });
    driver.require("lb1", 1, &[("web", 6_000)]);
    driver.at_seconds(5);
    driver.require("lb2", 1, &[("web", 30_000)]);
    driver.require("lb1", 2, &[("web", 6_000)]);
    decide(&mut driver);
    member(&mut driver, "a");
    driver.at_seconds(20);
    ask(&mut driver);
    let expected = [
        "lb2 asks for 30000 MB since 01:46:45, last heard at 01:46:45",
        "lb1 asks for 6000 MB since 01:46:40, last heard at 01:46:45",
        "the sum is 36000 MB, with 50 percent of headroom 54000 MB",
        "clamped to 24576 MB: at most 3 members of 8192 MB (max)",
        "desired: 24576 MB, decided at 01:46:45",
        "1 member serves and gives 8192 MB",
        "on the way: 1 member, expected to give 8192 MB, the first asked for 4 s ago",
        "next: 1 member to be made",
    ];
    assert_eq!(said(&driver, 24), expected);
    for seq in 0..6 {
        driver.require(&format!("lb{}", seq + 3), 1, &[("web", 10)]);
    }
    says(&driver, 24, "3 other sources together: 30 MB");
}

#[test]
fn a_silent_source_is_named() {
    let mut driver = driver(9, |web| web.min = 1);
    driver.require("lb1", 1, &[("web", 6_000)]);
    driver.at_seconds(12);
    let (sources, groups) = (vec!["lb1".into()], Vec::new());
    driver.accept(fsm::capacity::ExpireRequirements { sources, groups }.into());
    says(&driver, 12, "lb1 fell silent at 01:46:52: 6000 MB of it do not count any more");
    says(&driver, 12, "raised to 8192 MB: at least 1 member of 8192 MB (min)");
    says(&driver, 12, "desired: not decided yet");
}

#[test]
fn why_a_group_does_not_shrink() {
    let mut driver = driver(9, |web| web.predictor = Prediction::Peak { window_ms: 5_000 });
    driver.require("lb1", 1, &[("web", 3 * UNIT)]);
    decide(&mut driver);
    let ids = ["a", "b", "c"].map(|name| member(&mut driver, name));
    driver.at_seconds(10);
    driver.require("lb1", 2, &[("web", 2 * UNIT + 1)]);
    says(&driver, 10, "the sum is 16385 MB, the largest of the last 5 s is 24576 MB");
    driver.at_seconds(20);
    decide(&mut driver);
    let hysteresis = "nothing drains: less than a unit of 8192 MB is too much (hysteresis)";
    says(&driver, 20, hysteresis);
    driver.require("lb1", 3, &[("web", UNIT)]);
    driver.at_seconds(30);
    decide(&mut driver);
    let cool_down = "nothing drains before 01:48:00: 24576 MB were wanted less than 60 s ago \
                     (cool-down)";
    says(&driver, 31, cool_down);
    says(&driver, 95, "next: 2 members to drain");
    driver.interrupt(Interruption::NewLeader);
    let warm_up = "nothing drains until every source has spoken to the new leader (warm-up): lb1 \
                   has not, and has 10 s for it";
    says(&driver, 95, warm_up);
    driver.require("lb1", 4, &[("web", UNIT)]);
    says(&driver, 95, "next: 2 members to drain");
    driver.at_seconds(95);
    drain(&mut driver, &[ids[2]]);
    let told = |id| {
        let now = START_MS + 96_000;
        super::super::instance(&driver.state, now, driver.instance_row(id))
    };
    assert_eq!(told(ids[0]), "idle for 96 s, stays: a member of capacity group web");
    assert_eq!(told(ids[2]), "drained by capacity group web until 01:49:05; idle for 96 s");
    let short = ids[2].to_string()[..8].to_owned();
    says(&driver, 96, &format!("member {short} drains since 01:48:15 until 01:49:05"));
}

#[test]
fn why_a_group_does_not_grow() {
    let mut driver = driver(2, |web| (web.step, web.cooldown_up_ms) = (1, 0));
    driver.require("lb1", 1, &[("web", 3 * UNIT)]);
    decide(&mut driver);
    let first = ask(&mut driver);
    says(&driver, 0, "the rest is asked for at 01:46:41: at most 1 member in 1 s (step)");
    driver.at_seconds(5);
    ask(&mut driver);
    says(&driver, 7, "at max: 2 of 2 instances");
    driver.shut_down(first, fsm::pool::ShutdownCause::Operator);
    driver.destroyed(first);
    let id = ask_again(&mut driver);
    driver.accept(
        InstanceOutcome {
            id,
            provider: "local".into(),
            pool: "gpu".into(),
            kind: "small".into(),
            outcome: CreateOutcome::Failed {
                class: LimitClass::Quota,
                scope: LimitScope::All,
                for_ms: Some(30_000),
                detail: "vcpu is used up".into(),
            },
        }
        .into(),
    );
    let quota = "not creating any instance: quota until 01:47:20 or fewer than 1 instances: vcpu is \
                 used up";
    says(&driver, 12, quota);
    let (by, reason) = ("alice".into(), "repair".into());
    driver.accept(PauseInstancePool { name: "gpu".into(), pause: true, by, reason }.into());
    says(&driver, 12, "paused by alice since 01:46:50: repair");
}

fn ask_again(driver: &mut Driver) -> InstanceId {
    driver.at_seconds(10);
    ask(driver)
}

#[test]
fn members_that_do_not_count_are_told_of() {
    let mut driver = driver(9, |web| {
        (web.max, web.busy, web.cooldown_up_ms) = (3, BusyRule::Allocations, 60_000);
    });
    driver.require("lb1", 1, &[("web", 3 * UNIT)]);
    decide(&mut driver);
    let ids = ["a", "b", "c"].map(|name| member(&mut driver, name));
    driver.behave(ids[0], Behavior::Hold);
    driver.liveness("b", Liveness::Down);
    driver.shut_down(ids[2], fsm::pool::ShutdownCause::Operator);
    for sentence in [
        "1 member out of service by an operator, not counted",
        "1 member away (its node is not heard, or suspended), not counted",
        "1 member shut down, not yet gone",
        "nothing grows before 01:47:40: the group grew less than 60 s ago (cool-down)",
    ] {
        says(&driver, 9, sentence);
    }
}

#[test]
fn a_deleted_group_says_that_it_ends() {
    let mut driver = driver(9, |_| {});
    driver.require("lb1", 1, &[("web", UNIT)]);
    decide(&mut driver);
    let id = member(&mut driver, "a");
    driver.instance_pool("gpu", |_| {});
    let short = id.to_string()[..8].to_owned();
    let expected = [
        "the group is declared no more: what is left drains and goes (1 member)".to_owned(),
        format!("member {short} drains since 01:46:40 until 01:47:30"),
    ];
    assert_eq!(said(&driver, 1), expected);
}
