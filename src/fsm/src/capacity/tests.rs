//! Capacity groups: every command and each of its rejections. FN-02, FN-09, FN-10 and the parts of
//! FN-04, FN-06 to FN-08, FN-14 and FN-20 that the state holds.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{collections::BTreeMap, sync::Arc};

use super::*;
use crate::{
    allocation::ClientStatus,
    apply::Applied,
    command::{Command, Rejection, Reply},
    effect::Effect,
    id::{InstanceId, Text},
    job::JobKind,
    limits,
    node::Liveness,
    pool::{Behavior, DeleteInstancePool, InstancePool, ShutdownCause, UpsertInstancePool},
    testing::{Driver, START_MS, capacity_group, instance_pool, job, node_id, proof, requirements},
    upkeep::Tick,
};

const UNIT: u64 = 8192;
const HOUR: u64 = 3_600;

/// A pool `gpu` of up to ten instances with the groups `web` and `api`; its nodes give 8,192 MB.
fn with_groups(change: impl FnOnce(&mut CapacityGroup)) -> Driver {
    let mut driver = Driver::default();
    let mut web = CapacityGroup { unit: UNIT, ..capacity_group("web") };
    change(&mut web);
    declare(&mut driver, vec![web, CapacityGroup { unit: UNIT, ..capacity_group("api") }]);
    driver
}

fn declare(driver: &mut Driver, groups: Vec<CapacityGroup>) {
    driver.accept(upsert("gpu", groups));
}

fn upsert(pool: &str, groups: Vec<CapacityGroup>) -> Command {
    let groups = groups.into_iter().map(|group| (group.name.clone(), Arc::new(group))).collect();
    let pool = InstancePool { max: 10, groups, ..instance_pool(pool) };
    UpsertInstancePool { pool: pool.into(), enforce_index: None }.into()
}

fn refused(driver: &mut Driver, command: impl Into<Command>) -> String {
    driver.reject(command.into()).to_string()
}

fn word(source: &str, epoch: u64, seq: u64, amounts: &[(&str, u64)]) -> Command {
    let word = Requirements { epoch, ..requirements(source, seq, amounts) };
    SetRequirements { words: vec![word] }.into()
}

fn expire(driver: &mut Driver, sources: &[&str], groups: &[&str]) -> Applied {
    let names = |names: &[&str]| names.iter().map(|name| Text::from(*name)).collect();
    let command = ExpireRequirements { sources: names(sources), groups: names(groups) };
    driver.commit(command.into())
}

fn target(driver: &Driver, group: &str) -> CapacityTarget {
    (**driver.state.capacity_targets().get(&group.into()).unwrap()).clone()
}

fn required(driver: &Driver, group: &str) -> (u64, u32) {
    let row = driver.state.capacity_targets().get(&group.into());
    row.map_or((0, 0), |row| (row.required, row.sources))
}

fn intent(driver: &mut Driver, group: &str) -> (InstanceId, Command) {
    let mut intent = driver.intent("gpu", "small");
    intent.group = Some(group.into());
    let id = intent.id;
    (id, driver.request("gpu", vec![intent]))
}

/// A member of `web` on the node of the name.
fn member(driver: &mut Driver, name: &str) -> InstanceId {
    let (id, command) = intent(driver, "web");
    driver.accept(command);
    driver.made(id);
    let command = driver.register_as(name, proof(id));
    driver.accept(command);
    driver.sync(name);
    driver.readiness(name, crate::node::Readiness::Ok);
    id
}

/// `web` wants three units and has them.
fn three(change: impl FnOnce(&mut CapacityGroup)) -> (Driver, [InstanceId; 3]) {
    let mut driver = with_groups(change);
    driver.require("lb1", 1, &[("web", 3 * UNIT)]);
    driver.decide("web", 3 * UNIT);
    let ids = ["a", "b", "c"].map(|name| member(&mut driver, name));
    (driver, ids)
}

fn moves(driver: &Driver, drain: &[InstanceId], take_back: &[InstanceId]) -> Command {
    MoveMembers {
        group: "web".into(),
        decision_index: target(driver, "web").decision.map_or(0, |decision| decision.index),
        drain: drain.to_vec(),
        take_back: take_back.to_vec(),
        evaluation_ids: Vec::new(),
    }
    .into()
}

fn refuse_moves(driver: &mut Driver, drain: &[InstanceId], take_back: &[InstanceId]) -> String {
    let command = moves(driver, drain, take_back);
    refused(driver, command)
}

fn phase(driver: &Driver, id: InstanceId) -> MemberPhase {
    driver.state.member_phase(driver.instance_row(id))
}

/// FN-02 (6,000 and 3,000 are 9,000; the first revises to 1,000: 4,000). FN-09 (a word of zero
/// counts at once, and goes with its source).
#[test]
fn sums_replace_what_a_source_said_before() {
    let mut driver = with_groups(|_| {});
    driver.require("lb1", 1, &[("web", 6_000), ("api", 10)]);
    driver.require("lb2", 1, &[("web", 3_000)]);
    assert_eq!(required(&driver, "web"), (9_000, 2));
    driver.require("lb1", 2, &[("web", 1_000), ("api", 10)]);
    assert_eq!(required(&driver, "web"), (4_000, 2));
    assert_eq!(required(&driver, "api"), (10, 1), "the groups are apart");
    driver.at_seconds(5);
    driver.require("lb1", 3, &[("web", 0)]);
    assert_eq!((required(&driver, "web"), required(&driver, "api")), ((3_000, 2), (0, 0)));
    driver.at_seconds(11);
    driver.require("lb2", 2, &[("web", 3_000)]);
    driver.at_seconds(15);
    expire(&mut driver, &["lb1", "lb2"], &[]);
    assert_eq!(required(&driver, "web"), (3_000, 1), "lb1 is silent, lb2 is not");
}

#[test]
fn how_long_an_amount_has_been_asked_for_is_kept() {
    let mut driver = with_groups(|_| {});
    driver.require("lb1", 1, &[("web", 6_000), ("api", 1)]);
    driver.at_seconds(5);
    let applied = driver.commit(word("lb1", 1, 2, &[("web", 6_000), ("api", 2)]));
    let source = driver.state.capacity_sources().get(&"lb1".into()).unwrap().clone();
    assert_eq!(source.amounts[&Text::from("web")], Asked { amount: 6_000, since: START_MS });
    assert_eq!(source.amounts[&Text::from("api")], Asked { amount: 2, since: START_MS + 5_000 });
    let expected = [Effect::CapacityGroup("api".into()), Effect::CapacitySource("lb1".into())];
    assert_eq!(applied.effects, expected, "web has not changed");
}

/// FN-10 (an older sequence is ignored; the answer has the newest known). A new epoch replaces at
/// once, an empty word is a sign of life.
#[test]
fn an_older_word_is_refused_with_the_newest_known() {
    let mut driver = with_groups(|_| {});
    driver.accept(word("lb1", 2, 7, &[("web", 6_000)]));
    let stale = Rejection::StaleRequirements { name: "lb1".into(), epoch: 2, seq: 7 };
    for (epoch, seq, amount) in [(2, 6, 9), (1, 99, 9), (2, 7, 9)] {
        assert_eq!(driver.reject(word("lb1", epoch, seq, &[("web", amount)])), stale);
    }
    driver.at_seconds(6);
    driver.accept(word("lb1", 2, 7, &[("web", 6_000)]));
    driver.at_seconds(12);
    expire(&mut driver, &["lb1"], &[]);
    assert_eq!(required(&driver, "web"), (6_000, 1), "the same word again is a sign of life");
    driver.accept(word("lb1", 3, 1, &[("web", 500)]));
    assert_eq!(required(&driver, "web"), (500, 1));
    driver.at_seconds(20);
    driver.accept(word("lb1", 3, 2, &[]));
    assert_eq!(required(&driver, "web"), (0, 0));
    driver.at_seconds(29);
    expire(&mut driver, &["lb1"], &[]);
    assert_eq!(driver.state.capacity_sources().get(&"lb1".into()).unwrap().expired_at, 0);
}

/// A balancer that has lost what it counted by begins anew in a lower epoch: refused while its last
/// word holds, taken once that has expired. A late word of the old epoch is late all the same.
#[test]
fn a_lower_epoch_is_taken_when_the_last_word_has_expired() {
    let mut driver = with_groups(|_| {});
    driver.accept(word("lb1", 900, 7, &[("web", 6_000)]));
    driver.at_seconds(9);
    let stale = Rejection::StaleRequirements { name: "lb1".into(), epoch: 900, seq: 7 };
    assert_eq!(driver.reject(word("lb1", 3, 1, &[("web", 5_000)])), stale);
    driver.at_seconds(11);
    expire(&mut driver, &["lb1"], &[]);
    assert_eq!(driver.reject(word("lb1", 900, 6, &[("web", 1)])), stale);
    driver.accept(word("lb1", 3, 1, &[("web", 5_000)]));
    assert_eq!(required(&driver, "web"), (5_000, 1));
    let newest = Rejection::StaleRequirements { name: "lb1".into(), epoch: 3, seq: 1 };
    assert_eq!(driver.reject(word("lb1", 2, 9, &[("web", 1)])), newest);
    driver.accept(word("lb1", 901, 1, &[("web", 4_000)]));
    assert_eq!(required(&driver, "web"), (4_000, 1));
}

/// FN-08 (a silent source counts until its time is over, and is dropped exactly once).
#[test]
fn a_silent_source_expires_once() {
    let mut driver = with_groups(|_| {});
    driver.require("lb1", 1, &[("web", 6_000), ("api", 1)]);
    driver.require("lb2", 1, &[("web", 3_000)]);
    driver.at_ms(9_999);
    assert_eq!(expire(&mut driver, &["lb1"], &[]).effects, []);
    driver.at_ms(10_000);
    let effects = expire(&mut driver, &["lb1", "nobody"], &[]).effects;
    let event = Effect::CapacityExpired { source: "lb1".into(), ttl_ms: 10_000 };
    assert!(effects.contains(&event), "{effects:?}");
    assert_eq!((required(&driver, "web"), required(&driver, "api")), ((3_000, 1), (0, 0)));
    driver.at_ms(30_000);
    assert_eq!(expire(&mut driver, &["lb1"], &[]).effects, [], "once");
    let row = target(&driver, "web");
    let last = Expiry { source: "lb1".into(), at: START_MS + 10_000, amount: 6_000 };
    assert_eq!((row.expired, row.last_expiry), (1, Some(last)));

    // A word that was under way all the time is late, also now.
    let stale = Rejection::StaleRequirements { name: "lb1".into(), epoch: 1, seq: 1 };
    assert_eq!(driver.reject(word("lb1", 1, 1, &[("web", 6_000), ("api", 1)])), stale);
    driver.require("lb1", 2, &[("web", 1_000)]);
    assert_eq!(required(&driver, "web"), (4_000, 2));
    driver.at_ms(60_000);
    expire(&mut driver, &["lb1"], &[]);
    driver.at_seconds(60 + HOUR);
    expire(&mut driver, &["lb1"], &[]);
    assert!(!driver.state.capacity_sources().contains(&"lb1".into()), "forgotten");
    assert_eq!(target(&driver, "web").expired, 2);
}

/// The time of a word is its own, or the shortest of its groups.
#[test]
fn a_word_holds_for_its_time() {
    let mut driver = with_groups(|web| web.requirement_ttl_ms = 4_000);
    let ttl = |driver: &mut Driver, seq, amounts: &[(&str, u64)], ttl_ms| {
        let word = Requirements { ttl_ms, ..requirements("lb1", seq, amounts) };
        driver.accept(SetRequirements { words: vec![word] }.into());
        driver.state.capacity_sources().get(&"lb1".into()).unwrap().ttl_ms
    };
    assert_eq!(ttl(&mut driver, 1, &[], None), limits::REQUIREMENT_TTL_MS);
    assert_eq!(ttl(&mut driver, 2, &[("web", 1), ("api", 1)], None), 4_000);
    assert_eq!(ttl(&mut driver, 3, &[], None), 4_000, "as its last word");
    assert_eq!(ttl(&mut driver, 4, &[("web", 1)], Some(70_000)), 70_000);
    for ms in [0, limits::CAPACITY_MS_MAX + 1] {
        let word = Requirements { ttl_ms: Some(ms), ..requirements("lb1", 5, &[]) };
        let why = refused(&mut driver, SetRequirements { words: vec![word] });
        assert_eq!(why, "a requirement holds from 1 ms to a day");
    }
}

/// FN-20 (an unknown group makes no state).
#[test]
fn too_many_or_unknown_groups_are_refused_by_name() {
    let mut driver = with_groups(|_| {});
    let unknown = word("lb1", 1, 1, &[("web", 1), ("none", 1)]);
    assert_eq!(refused(&mut driver, unknown), "capacity group \"none\" not found");
    assert_eq!(driver.state.capacity_sources().len(), 0);
    assert_eq!(driver.state.capacity_targets().len(), 0);
    let most = limits::CAPACITY_AMOUNT_MAX;
    let why = refused(&mut driver, word("lb1", 1, 1, &[("web", most + 1)]));
    assert_eq!(why, format!("{} for \"web\" is above {most}", most + 1));
    let names: Vec<String> =
        (0..=limits::CAPACITY_SOURCE_GROUPS_MAX).map(|n| n.to_string()).collect();
    let amounts: Vec<(&str, u64)> = names.iter().map(|name| (&**name, 1)).collect();
    let why = refused(&mut driver, word("lb1", 1, 1, &amounts));
    assert_eq!(why, "a source names at most 100 capacity groups");
    let long = "x".repeat(129);
    for name in ["", "a b", &long] {
        let why = refused(&mut driver, word(name, 1, 1, &[]));
        assert_eq!(why, "the name of a source has 1 to 128 letters, digits or \"-_.:/@\"");
    }
    let why = refused(&mut driver, SetRequirements { words: Vec::new() });
    assert_eq!(why, "an entry has the words of 1 to 1000 sources");
}

#[test]
fn many_sources_speak_in_one_entry_and_each_is_judged() {
    let mut driver = with_groups(|_| {});
    driver.require("lb2", 5, &[("web", 1)]);
    let words = vec![
        requirements("lb1", 1, &[("web", 10)]),
        requirements("lb2", 4, &[("web", 100)]),
        requirements("lb3", 1, &[("none", 1)]),
        requirements("lb1", 2, &[("web", 20)]),
    ];
    let reply = driver.accept(SetRequirements { words }.into());
    let Reply::Requirements(verdicts) = reply else { panic!("{reply:?}") };
    let stale = Rejection::StaleRequirements { name: "lb2".into(), epoch: 1, seq: 5 };
    let unknown = Rejection::NotFound { what: "capacity group \"none\"".into() };
    assert_eq!(verdicts, [None, Some(stale), Some(unknown), None]);
    assert_eq!(required(&driver, "web"), (21, 2));
}

/// A source more than there may be takes the place of one that fell silent.
#[test]
fn the_number_of_sources_is_bounded() {
    let mut driver = with_groups(|_| {});
    driver.checked = false;
    let all = limits::CAPACITY_SOURCES_MAX;
    for first in (0..all).step_by(1_000) {
        let word = |n: usize| requirements(&format!("s{n}"), 1, &[]);
        let words = (first..first + 1_000).map(word).collect();
        driver.accept(SetRequirements { words }.into());
    }
    let why = refused(&mut driver, word("more", 1, 1, &[]));
    assert_eq!(why, "there are 10000 sources already");
    driver.at_seconds(20);
    expire(&mut driver, &["s7"], &[]);
    driver.require("more", 1, &[("web", 5)]);
    assert!(!driver.state.capacity_sources().contains(&"s7".into()));
    assert_eq!(driver.state.capacity_sources().len(), all);
    for first in (0..5_000).step_by(1_000) {
        let word = |n: usize| requirements(&format!("s{n}"), 2, &[("web", 1)]);
        let words = (first..first + 1_000).filter(|n| *n != 7).map(word).collect();
        driver.accept(SetRequirements { words }.into());
    }
    let why = refused(&mut driver, word("s5001", 1, 2, &[("web", 1)]));
    assert_eq!(why, "capacity group \"web\" has 5000 sources already");
    driver.checked = true;
    driver.accept(Command::from(Tick));
}

#[test]
fn a_decision_never_goes_back() {
    let mut driver = with_groups(|web| web.min = 1);
    let decide = |index, desired| {
        let (group, required, predicted) = ("web".into(), 0, 0);
        let decision =
            DecidedCapacity { group, desired, required, predicted, requirements_index: index };
        Command::from(DecideCapacity { decisions: vec![decision] })
    };
    driver.require("lb1", 1, &[("web", 3 * UNIT)]);
    let first = target(&driver, "web").requirements_index;
    driver.accept(decide(first, 3 * UNIT));
    driver.require("lb1", 2, &[("web", UNIT)]);
    let second = target(&driver, "web").requirements_index;
    driver.accept(decide(second, UNIT));
    let why = refused(&mut driver, decide(first, 3 * UNIT));
    assert_eq!(why, format!("the decision is about index {first}, the last one about {second}"));
    let why = refused(&mut driver, decide(second + 1, UNIT));
    assert_eq!(why, "the decision is about requirements that are not there");
    for amount in [UNIT - 1, 3 * UNIT + 1] {
        let why = refused(&mut driver, decide(second, amount));
        assert_eq!(why, format!("{amount} is not from 8192 to 24576"));
    }
    assert_eq!(target(&driver, "web").desired(), UNIT);
    let command = DecideCapacity {
        decisions: vec![DecidedCapacity {
            group: "none".into(),
            desired: 0,
            required: 0,
            predicted: 0,
            requirements_index: 0,
        }],
    };
    assert_eq!(refused(&mut driver, command), "capacity group \"none\" not found");
}

/// What was wanted lately holds a group up; sums of the predictor's window are kept.
#[test]
fn recent_requirements_are_known() {
    let mut driver = with_groups(|web| web.predictor = Prediction::Peak { window_ms: 30_000 });
    driver.require("lb1", 1, &[("web", 20_000)]);
    driver.decide("web", 20_000);
    driver.at_seconds(9);
    driver.require("lb1", 2, &[("web", 5_000)]);
    driver.decide("web", 5_000);
    let row = target(&driver, "web");
    let at = |seconds: u64| START_MS + seconds * 1_000;
    assert_eq!(row.sums.largest(row.required, at(38), 30_000), 20_000);
    assert_eq!(row.sums.largest(row.required, at(39), 30_000), 5_000);
    assert_eq!(row.wants.largest(row.desired(), at(68), 60_000), 20_000);
    assert_eq!(row.wants.largest(row.desired(), at(69), 60_000), 5_000);
    assert_eq!(row.wants.falls_at(row.desired(), at(10), 60_000), Some(at(69)));
}

/// FN-04 and FN-06, as far as the state is concerned: the deadline of a drain is set once, and what
/// is taken back serves again.
#[test]
fn a_drain_has_one_deadline_until_it_is_taken_back() {
    let (mut driver, [a, b, c]) = three(|_| {});
    let why = refuse_moves(&mut driver, &[c], &[]);
    assert_eq!(why, "the group needs the member");
    driver.require("lb1", 2, &[("web", 1)]);
    let late = moves(&driver, &[c], &[]);
    driver.decide("web", 1);
    assert_eq!(refused(&mut driver, late), "another decision has been taken since");
    driver.accept(moves(&driver, &[c, b], &[]));
    let drain = *driver.instance_row(c).member_drain().unwrap();
    assert_eq!(drain.deadline_at, START_MS + 50_000);
    assert!(driver.instance_row(b).member_drain().unwrap().order > drain.order);
    let names: Vec<_> = driver.state.active_members("web").iter().map(|row| row.id).collect();
    assert_eq!(names, [a]);
    assert!(!driver.node_row("c").is_schedulable());
    driver.at_seconds(9);
    let why = refuse_moves(&mut driver, &[c], &[]);
    assert_eq!(why, "the member neither serves nor is on its way");
    assert_eq!(*driver.instance_row(c).member_drain().unwrap(), drain);
    driver.accept(moves(&driver, &[], &[b]));
    assert_eq!(
        (phase(&driver, b), phase(&driver, c)),
        (MemberPhase::Active, MemberPhase::Draining)
    );
    assert!(driver.node_row("b").is_schedulable());
    assert_eq!(target(&driver, "web").grown_at, START_MS + 9_000);
    assert_eq!(refuse_moves(&mut driver, &[], &[b]), "the member does not drain");
    let other = driver.request_instance("gpu", "small");
    let why = refuse_moves(&mut driver, &[other], &[]);
    assert_eq!(why, "the instance is no member of capacity group \"web\"");
}

#[test]
fn a_group_keeps_its_least_members() {
    let (mut driver, [_, b, c]) = three(|web| (web.min, web.max, web.unit) = (2, 6, 4096));
    driver.require("lb1", 2, &[("web", 1)]);
    driver.decide("web", 2 * 4096);
    // One member has the amount, and two are the least.
    driver.accept(moves(&driver, &[c], &[]));
    let why = refuse_moves(&mut driver, &[b], &[]);
    assert_eq!(why, "the group needs the member");
}

/// FN-07 (with `deadline` a drained member lives to its deadline, with `allocations` until it is
/// empty).
#[test]
fn a_member_is_shut_down_after_its_drain_only() {
    for busy in BusyRule::ALL {
        let (mut driver, [a, _, c]) = three(|web| web.busy = busy);
        let first = "a member of a capacity group drains before it is shut down";
        for cause in [ShutdownCause::Idle, ShutdownCause::Shrink, ShutdownCause::Released] {
            let command = driver.shut_down_command(a, cause);
            assert_eq!(refused(&mut driver, command), first);
        }
        let mut spec = job("t", JobKind::Batch, 1);
        spec.node_pool = "gpu".into();
        driver.register_job(spec);
        let allocation = driver.run("t", 0, node_id("c"));
        driver.require("lb1", 2, &[]);
        driver.decide("web", 0);
        driver.accept(moves(&driver, &[c], &[]));
        driver.at_seconds(20);
        let command = driver.shut_down_command(c, ShutdownCause::Released);
        assert_eq!(refused(&mut driver, command), first, "something runs");
        driver.report(allocation, ClientStatus::Complete);
        let command = driver.shut_down_command(c, ShutdownCause::Released);
        match busy {
            BusyRule::Allocations => drop(driver.accept(command)),
            BusyRule::Deadline => {
                assert_eq!(refused(&mut driver, command), first);
                driver.at_seconds(50);
                driver.shut_down(c, ShutdownCause::Released);
            }
        }
        assert_eq!(phase(&driver, c), MemberPhase::Ending);
    }
    let mut driver = with_groups(|_| {});
    let id = driver.request_instance("gpu", "small");
    let command = driver.shut_down_command(id, ShutdownCause::Released);
    let why = refused(&mut driver, command);
    assert_eq!(why, "the instance is no member of a capacity group");
}

/// At the deadline a member goes although something runs; with `hard` that is told to stop first.
#[test]
fn an_allocation_that_runs_at_the_deadline_is_lost_unless_it_is_stopped_first() {
    for hard in [false, true] {
        let (mut driver, [_, _, c]) = three(|web| {
            (web.busy, web.hard) = (BusyRule::Allocations, hard);
        });
        let mut spec = job("t", JobKind::Batch, 1);
        spec.node_pool = "gpu".into();
        driver.register_job(spec);
        driver.run("t", 0, node_id("c"));
        driver.require("lb1", 2, &[]);
        driver.decide("web", 0);
        driver.accept(moves(&driver, &[c], &[]));
        let deadline = driver.node_row("c").drain.as_ref().map(|drain| drain.deadline_at);
        assert_eq!(deadline, hard.then_some(Some(START_MS + 50_000)));
        driver.at_seconds(50);
        let command = driver.shut_down_command(c, ShutdownCause::Released);
        if hard {
            refused(&mut driver, command);
            driver.at_ms(50_000 + limits::HARD_STOP_MS);
            let command = driver.shut_down_command(c, ShutdownCause::Released);
            driver.accept(command);
        } else {
            driver.accept(command);
        }
    }
}

#[test]
fn the_end_of_a_hard_drain_is_the_end_of_the_nodes_drain() {
    let (mut driver, [_, _, c]) = three(|web| {
        (web.busy, web.hard) = (BusyRule::Allocations, true);
    });
    driver.require("lb1", 2, &[]);
    driver.decide("web", 0);
    driver.accept(moves(&driver, &[c], &[]));
    assert!(driver.node_row("c").drain.is_some());
    driver.accept(moves(&driver, &[], &[c]));
    assert!(driver.node_row("c").drain.is_none());
    assert_eq!(phase(&driver, c), MemberPhase::Active);
}

/// FN-14, as far as the state is concerned: no more than what is wanted is asked for, in steps.
#[test]
fn no_more_members_are_asked_for_than_are_wanted() {
    let mut driver = with_groups(|web| (web.step, web.max) = (2, 4));
    let (_, command) = intent(&mut driver, "web");
    let why = refused(&mut driver, command);
    assert_eq!(why, "nothing is decided for capacity group \"web\"");
    driver.require("lb1", 1, &[("web", 3 * UNIT)]);
    driver.decide("web", 3 * UNIT);
    let ask = |driver: &mut Driver| {
        let (_, command) = intent(driver, "web");
        driver.commit(command).reply
    };
    let says = |reply: Reply| {
        let Reply::Rejected(rejection) = reply else { return String::new() };
        rejection.to_string()
    };
    assert_eq!([says(ask(&mut driver)), says(ask(&mut driver))], ["", ""]);
    assert_eq!(says(ask(&mut driver)), "capacity group \"web\" has made its step");
    driver.at_ms(999);
    assert_eq!(says(ask(&mut driver)), "capacity group \"web\" has made its step");
    driver.at_ms(1_000);
    assert_eq!(says(ask(&mut driver)), "");
    driver.at_ms(9_000);
    assert_eq!(says(ask(&mut driver)), "capacity group \"web\" has what it wants");
    // What was refused by the provider is asked for again.
    let first = driver.state.instances().iter().next().unwrap().id;
    driver.shut_down(first, ShutdownCause::Operator);
    assert_eq!(says(ask(&mut driver)), "");
    let (_, command) = intent(&mut driver, "none");
    let why = refused(&mut driver, command);
    assert_eq!(why, "pool \"gpu\" has no capacity group \"none\"");
}

/// What is held, away or drained gives nothing, and its place is free for another.
#[test]
fn only_what_serves_or_comes_counts() {
    let (mut driver, [a, b, c]) = three(|_| {});
    let (_, command) = intent(&mut driver, "web");
    assert!(refused(&mut driver, command).ends_with("may have 3 members"));
    driver.behave(a, Behavior::Hold);
    driver.liveness("b", Liveness::Down);
    driver.eligibility("c", false);
    let all = [a, b, c].map(|id| phase(&driver, id));
    assert_eq!(all, [MemberPhase::Apart, MemberPhase::Away, MemberPhase::Apart]);
    assert_eq!(driver.state.active_members("web"), []);
    for _ in 0..3 {
        let (_, command) = intent(&mut driver, "web");
        driver.accept(command);
    }
    let (_, command) = intent(&mut driver, "web");
    assert!(refused(&mut driver, command).ends_with("may have 3 members"));
}

/// An operator's drain of a member gives work of others its time; so does taking it back end it.
#[test]
fn an_operators_drain_of_a_member_has_a_deadline() {
    let (mut driver, [a, ..]) = three(|_| {});
    driver.behave(a, Behavior::Drain);
    assert_eq!(phase(&driver, a), MemberPhase::Apart);
    let command = driver.shut_down_command(a, ShutdownCause::Drained);
    refused(&mut driver, command);
    driver.at_seconds(50);
    let command = driver.shut_down_command(a, ShutdownCause::Drained);
    driver.accept(command);
    let (mut driver, [a, ..]) = three(|_| {});
    driver.behave(a, Behavior::Drain);
    driver.behave(a, Behavior::Run);
    assert_eq!(
        (phase(&driver, a), driver.instance_row(a).member_drain()),
        (MemberPhase::Active, None)
    );
}

/// A group that is declared no more drains, and is forgotten with its last member.
#[test]
fn a_deleted_group_drains() {
    let (mut driver, [a, b, c]) = three(|_| {});
    driver.require("lb1", 2, &[("web", 3 * UNIT), ("api", 5)]);
    driver.decide("web", 3 * UNIT);
    declare(&mut driver, vec![CapacityGroup { unit: UNIT, ..capacity_group("api") }]);
    assert_eq!([a, b, c].map(|id| phase(&driver, id)), [MemberPhase::Draining; 3]);
    assert_eq!((required(&driver, "web"), required(&driver, "api")), ((0, 0), (5, 1)));
    assert!(target(&driver, "web").deleted);
    let why = refused(&mut driver, word("lb1", 1, 3, &[("web", 1)]));
    assert_eq!(why, "capacity group \"web\" not found");
    let why = refused(&mut driver, upsert("cpu", vec![capacity_group("web")]));
    assert_eq!(why, "members of a capacity group \"web\" still drain in pool \"gpu\"");
    driver.at_seconds(50);
    for id in [a, b, c] {
        driver.shut_down(id, ShutdownCause::Released);
        driver.destroyed(id);
    }
    assert!(!driver.state.capacity_targets().contains(&"web".into()));
    driver.accept(upsert("cpu", vec![capacity_group("web")]));
}

#[test]
fn a_group_that_is_declared_again_takes_its_members_back() {
    let (mut driver, [a, ..]) = three(|_| {});
    declare(&mut driver, Vec::new());
    let web = CapacityGroup { unit: UNIT, ..capacity_group("web") };
    declare(&mut driver, vec![web]);
    assert!(!target(&driver, "web").deleted);
    driver.require("lb1", 2, &[("web", UNIT)]);
    driver.decide("web", UNIT);
    driver.accept(moves(&driver, &[], &[a]));
    assert_eq!(phase(&driver, a), MemberPhase::Active);
}

#[test]
fn the_name_of_a_group_is_unique_over_all_pools() {
    let mut driver = with_groups(|_| {});
    let why = refused(&mut driver, upsert("cpu", vec![capacity_group("web")]));
    assert_eq!(why, "pool \"gpu\" has a capacity group \"web\" already");
    declare(&mut driver, vec![CapacityGroup { unit: 5, ..capacity_group("web") }]);
    driver.accept(DeleteInstancePool { name: "gpu".into() }.into());
    driver.accept(upsert("cpu", vec![capacity_group("web")]));
    assert_eq!(&*driver.state.capacity_group("web").unwrap().0.name, "cpu");
}

#[test]
fn a_declaration_that_cannot_be_is_refused_in_the_words_of_its_file() {
    type Change = fn(&mut CapacityGroup);
    let cases: [(&str, Change); 14] = [
        ("unit must be from 1 to 1099511627776", |group| group.unit = 0),
        ("unit must be 1 where the dimension is instances", |group| {
            group.dimension = GroupDimension::Instances;
        }),
        ("max is 10001, at most 10000", |group| group.max = 10_001),
        ("min (4) is above max (3)", |group| group.min = 4),
        ("step must be above 0", |group| group.step = 0),
        ("hard needs busy = \"allocations\"", |group| group.hard = true),
        ("member_port must be from 1 to 65535", |group| group.member_port = 0),
        ("headroom is 1001 percent, at most 1000", |group| {
            group.predictor = Prediction::Headroom { percent: 1_001 };
        }),
        ("window must be from 1 ms to a day", |group| {
            group.predictor = Prediction::Peak { window_ms: 0 };
        }),
        ("step_interval must be from 1 ms to a day", |group| group.step_interval_ms = 0),
        ("drain must be from 0 ms to a day", |group| group.drain_ms = 86_400_001),
        ("cooldown_up must be from 0 ms to a day", |group| group.cooldown_up_ms = 86_400_001),
        ("cooldown_down must be from 0 ms to a day", |group| group.cooldown_down_ms = 86_400_001),
        ("requirement_ttl must be from 1 ms to a day", |group| group.requirement_ttl_ms = 0),
    ];
    let mut driver = Driver::default();
    for (why, change) in cases {
        let mut group = capacity_group("web");
        change(&mut group);
        let said = refused(&mut driver, upsert("gpu", vec![group]));
        assert_eq!(said, format!("capacity \"web\": {why}"));
    }
    let said = refused(&mut driver, upsert("gpu", vec![capacity_group("a/b")]));
    assert!(said.ends_with("its name must be 1 to 128 letters, digits, '-', '_' or '.'"), "{said}");
    let many = (0..=limits::CAPACITY_GROUPS_MAX).map(|n| capacity_group(&n.to_string())).collect();
    let said = refused(&mut driver, upsert("gpu", many));
    assert_eq!(said, "all pools have at most 1000 capacity groups");
}

/// FN-20 (a group with neither requirement nor member is forgotten after a while).
#[test]
fn a_group_that_nothing_is_left_of_costs_nothing_after_an_hour() {
    let mut driver = with_groups(|_| {});
    driver.require("lb1", 1, &[("web", UNIT)]);
    driver.decide("web", UNIT);
    let id = member(&mut driver, "a");
    driver.require("lb1", 2, &[]);
    driver.decide("web", 0);
    driver.at_seconds(HOUR);
    expire(&mut driver, &[], &["web"]);
    assert!(driver.state.capacity_targets().contains(&"web".into()), "it has a member");
    driver.shut_down(id, ShutdownCause::Operator);
    driver.destroyed(id);
    driver.require("lb1", 3, &[("web", 1)]);
    driver.at_seconds(HOUR + 30);
    expire(&mut driver, &["lb1"], &["web"]);
    assert!(driver.state.capacity_targets().contains(&"web".into()), "it has just had a source");
    driver.at_seconds(2 * HOUR + 30);
    expire(&mut driver, &[], &["web"]);
    assert!(!driver.state.capacity_targets().contains(&"web".into()));
}

/// Nodes that went silent together are likely there still.
#[test]
fn members_count_while_a_mass_loss_lasts() {
    let (mut driver, [a, ..]) = three(|_| {});
    for name in ["x", "y", "z"] {
        driver.node(name);
    }
    for name in ["a", "b", "c", "x", "y", "z"] {
        driver.liveness(name, Liveness::Down);
    }
    assert!(driver.state.mass_loss().is_some_and(|loss| loss.nodes.contains(&node_id("a"))));
    assert_eq!(phase(&driver, a), MemberPhase::Active);
    let amounts: BTreeMap<_, _> = driver
        .state
        .members_of("web")
        .map(|row| (row.id, driver.state.member_amount(&capacity_group("web"), row)))
        .collect();
    assert_eq!(amounts[&a], UNIT);
}

/// The place of a suspended member is filled. If its node is part of a mass loss it counts again
/// when the suspension ends, or when it is eligible after that.
#[test]
fn a_member_that_a_mass_loss_brings_back_has_a_place_of_its_own() {
    for is_ineligible in [false, true] {
        let (mut driver, [a, ..]) = three(|group| group.max = 10);
        for name in ["x", "y", "z"] {
            driver.node(name);
        }
        for name in ["a", "b", "c", "x", "y", "z"] {
            driver.liveness(name, Liveness::Down);
        }
        driver.suspend("a", Some(60_000));
        driver.require("lb1", 9, &[("web", 4 * UNIT)]);
        driver.decide("web", 4 * UNIT);
        let successor = member(&mut driver, "d");
        assert_eq!(driver.instance_row(successor).place(), Some(0));
        assert!(driver.state.mass_loss().is_some());
        driver.at_ms(120_000);
        driver.eligibility("a", !is_ineligible);
        driver.end_suspension("a");
        driver.eligibility("a", true);
        assert_eq!(phase(&driver, a), MemberPhase::Active);
        assert_eq!(driver.instance_row(a).place(), Some(3), "{is_ineligible}");
    }
}
