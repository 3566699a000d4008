//! Readiness, strikes, suspensions: what makes them, how they merge, how they end.

use super::*;
use crate::{
    id::AllocationId,
    node::{Health, SuspendLateNodes, SuspendNode, UnsuspendNode},
    settings::NodeLife,
};

const MINUTE_MS: u64 = 60_000;

/// Allocations of a job that run on a node.
fn running(driver: &mut Driver, job: &str, first: u32, count: u32, on: &str) -> Vec<AllocationId> {
    (first..first + count).map(|number| driver.run(job, number, node_id(on))).collect()
}

fn fail(driver: &mut Driver, ids: &[AllocationId]) {
    for id in ids {
        driver.report_node_failure(*id);
    }
}

fn is_suspended(driver: &Driver, name: &str) -> bool {
    driver.node_row(name).health != Health::Ok
}

fn last_event(driver: &Driver, name: &str) -> String {
    driver.node_row(name).events.last().unwrap().message.to_string()
}

/// SC-22: when all nodes fail within a minute, at most the configured share is suspended.
#[test]
fn at_most_a_share_of_the_fleet_is_suspended() {
    with_leader_changes(|driver| {
        strike_at_once(driver);
        driver.register_job(job("t", JobKind::Batch, 8));
        let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
        let ids = names.map(|name| driver.node(name));
        for (number, node) in (0..).zip(ids) {
            let id = driver.place("t", number, node);
            driver.at_seconds(u64::from(number));
            driver.report_node_failure(id);
        }
        let suspended = names.iter().filter(|name| is_suspended(driver, name)).count();
        assert_eq!(suspended, 2, "a quarter of eight");
        assert_eq!(driver.state.census().suspended(SuspendReason::Flaky), 2);
        let refused = "Not suspended: more than 25 % of the nodes would be suspended as flaky";
        assert_eq!(last_event(driver, "h"), refused);
        assert_eq!(driver.node_row("h").strikes, 1, "the strike counts");
    });
}

/// Ten failures of two jobs on each of eight nodes: one strike each, also where the share kept the
/// node in service.
#[test]
fn many_failures_on_many_nodes_are_one_strike_each() {
    let mut driver = Driver { checked: false, ..Driver::default() };
    let names = ["a", "b", "c", "d", "e", "f", "g", "h"];
    for name in names {
        driver.node(name);
    }
    for name in ["t", "u"] {
        driver.register_job(job(name, JobKind::Batch, 32));
    }
    let mut all = Vec::new();
    for (number, name) in (0..).zip(names) {
        all.extend(running(&mut driver, "t", number * 4, 4, name));
        all.extend(running(&mut driver, "u", number * 4, 4, name));
    }
    fail(&mut driver, &all);
    let strikes = names.map(|name| driver.node_row(name).strikes);
    assert_eq!(strikes, [1; 8]);
    assert_eq!(names.iter().filter(|name| is_suspended(&driver, name)).count(), 2);
}

/// Failures that come at once are one strike: the first three make it, and it empties the list.
#[test]
fn failures_that_come_together_are_one_strike() {
    let mut driver = Driver::default();
    driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 9));
    driver.register_job(job("u", JobKind::Batch, 9));
    let mut ids = running(&mut driver, "t", 0, 4, "a");
    ids.extend(running(&mut driver, "u", 0, 4, "a"));
    fail(&mut driver, &ids[..4]);
    assert_eq!((driver.node_row("a").strikes, driver.node_row("a").failures.len()), (0, 4));
    fail(&mut driver, &ids[4..]);
    let row = driver.node_row("a");
    assert_eq!((row.strikes, row.failures.len()), (1, 3), "the fifth made the strike");
    let until = Some(START_MS + 15 * MINUTE_MS);
    assert_eq!(suspension(&driver, "a"), Some((SuspendReason::Flaky, START_MS, until)));
}

/// One job that fails on a node may be wrong itself: it counts when it runs elsewhere.
#[test]
fn one_job_makes_a_strike_only_when_it_runs_elsewhere() {
    for runs_elsewhere in [false, true] {
        let mut driver = Driver::default();
        driver.node("a");
        driver.node("b");
        driver.register_job(job("t", JobKind::Batch, 9));
        let ids = running(&mut driver, "t", 0, 4, "a");
        let other = running(&mut driver, "t", 4, 1, "b");
        if !runs_elsewhere {
            driver.report(other[0], ClientStatus::Complete);
        }
        fail(&mut driver, &ids);
        assert_eq!(is_suspended(&driver, "a"), runs_elsewhere);
    }
}

/// Failures further apart than the window are no strike, and none follows a strike within it.
#[test]
fn a_window_bounds_failures_and_strikes() {
    let mut driver = Driver::default();
    driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 99));
    driver.register_job(job("u", JobKind::Batch, 99));
    let mut number = 0;
    let mut fail_at = |driver: &mut Driver, minutes: u64| {
        driver.at_ms(minutes * MINUTE_MS);
        let job = if number % 2 == 0 { "t" } else { "u" };
        // What is placed runs on, also when the node takes no more.
        driver.end_suspension("a");
        driver.readiness("a", Readiness::Ok);
        let id = driver.run(job, number, node_id("a"));
        number += 1;
        driver.report_node_failure(id);
        driver.node_row("a").strikes
    };
    driver.node_life(|life| (life.suspend_ms, life.suspend_ms_max) = (1, 1));
    assert_eq!([0, 3, 6, 9].map(|minute| fail_at(&mut driver, minute)), [0, 0, 0, 0]);
    assert_eq!(fail_at(&mut driver, 10), 1, "at 6, 9 and 10");
    assert_eq!([11, 12, 13, 14].map(|minute| fail_at(&mut driver, minute)), [1, 1, 1, 1]);
    assert_eq!(fail_at(&mut driver, 15), 2);
}

/// Each strike doubles the suspension up to the longest, and one is forgiven each day.
#[test]
fn strikes_double_the_cool_down_and_are_forgiven_by_the_day() {
    let mut driver = Driver::default();
    strike_at_once(&mut driver);
    driver.node("a");
    driver.register_job(job("t", JobKind::Batch, 99));
    let mut number = 0;
    let mut strike = |driver: &mut Driver, at_minutes: u64, minutes: u64, strikes: u32| {
        let at = at_minutes * MINUTE_MS;
        driver.at_ms(at);
        let id = driver.run("t", number, node_id("a"));
        number += 1;
        driver.report_node_failure(id);
        let until = START_MS + at + minutes * MINUTE_MS;
        assert_eq!(suspension(driver, "a").unwrap().2, Some(until));
        assert_eq!(driver.node_row("a").strikes, strikes);
        driver.now = until;
        driver.end_suspension("a");
        assert_eq!(suspension(driver, "a"), None);
        driver.readiness("a", Readiness::Ok);
    };
    strike(&mut driver, 0, 15, 1);
    strike(&mut driver, 15, 30, 2);
    strike(&mut driver, 60, 60, 3);
    strike(&mut driver, 120, 120, 4);
    strike(&mut driver, 300, 240, 5);
    strike(&mut driver, 600, 240, 6);
    strike(&mut driver, 600 + 5 * 24 * 60, 30, 2);
}

/// A node that is not ready by its deadline is suspended, and tried on: its first success ends
/// that. One that became ready or went away before the command came is not.
#[test]
fn a_late_node_is_suspended_until_its_first_success() {
    let mut driver = Driver::default();
    let a = driver.register_node("a");
    let deadline_ms = driver.state.node_life().ready_deadline_ms;
    let late = Command::from(SuspendLateNodes { nodes: vec![a] });
    driver.readiness_as("a", Readiness::Retry, "no disk");
    driver.at_ms(deadline_ms - 1);
    driver.accept(late.clone());
    assert_eq!(suspension(&driver, "a"), None, "it still has time");
    driver.at_ms(deadline_ms);
    driver.liveness("a", Liveness::Down);
    driver.accept(late.clone());
    assert_eq!(suspension(&driver, "a"), None, "it went away");
    driver.liveness("a", Liveness::Initializing);
    driver.accept(late.clone());
    assert_eq!(suspension(&driver, "a"), None, "it came back, and has its time anew");
    driver.sync("a");
    driver.at_ms(2 * deadline_ms);
    driver.accept(late.clone());
    let row = driver.node_row("a").suspension().unwrap().clone();
    assert_eq!((row.reason, &*row.detail), (SuspendReason::ReadinessFailed, "no disk"));
    assert_eq!(row.until, None);
    assert!(driver.node_row("a").wants_check());
    assert_eq!(driver.node_row("a").strikes, 0);
    driver.readiness("a", Readiness::Ok);
    assert_eq!(free(&driver), ["a"]);
    driver.at_ms(9 * deadline_ms);
    driver.accept(late);
    assert_eq!(suspension(&driver, "a"), None, "it is ready");
}

/// A readiness that fails is not limited by the share of nodes that strikes may suspend.
#[test]
fn failed_readiness_knows_no_share() {
    let mut driver = Driver::default();
    for name in ["a", "b", "c"] {
        driver.node(name);
        driver.readiness_as(name, Readiness::Retry, "no disk");
        assert!(is_suspended(&driver, name));
    }
}

/// A check that asks for a person is tried again after the longest suspension, or when a person
/// lifts it; a success in between does not end it.
#[test]
fn a_fatal_check_waits_for_time_or_a_person() {
    with_leader_changes(|driver| {
        driver.node("a");
        driver.node("b");
        for name in ["a", "b"] {
            driver.readiness_as(name, Readiness::Fatal, "bad memory");
        }
        let until = Some(START_MS + 240 * MINUTE_MS);
        let expected = Some((SuspendReason::ReadinessFatal, START_MS, until));
        assert_eq!(suspension(driver, "a"), expected);
        assert!(!driver.node_row("a").wants_check());
        driver.readiness("a", Readiness::Ok);
        assert_eq!(suspension(driver, "a"), expected);
        driver.accept(Command::from(UnsuspendNode {
            node: node_id("b"),
            by: "alice@web1".into(),
            reason: "memory replaced".into(),
        }));
        assert_eq!(suspension(driver, "b"), None);
        let event = "Suspension is over: memory replaced (lifted by alice@web1)";
        assert_eq!(last_event(driver, "b"), event);
        assert!(driver.node_row("b").wants_check(), "readiness comes first");
        driver.at_ms(240 * MINUTE_MS);
        driver.end_suspension("a");
        assert!(driver.node_row("a").wants_check());
        assert!(free(driver).is_empty());
        for name in ["a", "b"] {
            driver.readiness(name, Readiness::Ok);
        }
        assert_eq!(free(driver), ["a", "b"]);
    });
}

/// An operator's suspension: no strike, no share, until its time or the operator's word; its
/// repetition replaces reason and end.
#[test]
fn an_operator_suspends_and_lifts() {
    with_leader_changes(|driver| {
        for name in ["a", "b", "c"] {
            driver.node(name);
            driver.suspend(name, None);
            assert_eq!(driver.node_row(name).strikes, 0);
        }
        driver.at_seconds(10);
        driver.accept(Command::from(SuspendNode {
            node: node_id("a"),
            by: "alice@web1".into(),
            reason: "fan".into(),
            for_ms: Some(5_000),
        }));
        let row = driver.node_row("a").suspension().unwrap().clone();
        assert_eq!((&*row.by, &*row.detail), ("alice@web1", "fan"));
        assert_eq!((row.since, row.until), (START_MS, Some(START_MS + 15_000)));
        driver.at_seconds(15);
        for name in ["a", "b"] {
            driver.end_suspension(name);
        }
        assert!(!is_suspended(driver, "a") && is_suspended(driver, "b"));
        driver.readiness("a", Readiness::Ok);
        assert_eq!(free(driver), ["a"]);
        let lift = |name| {
            let (by, reason) = ("alice@web1".into(), "".into());
            Command::from(UnsuspendNode { node: node_id(name), by, reason })
        };
        driver.accept(lift("b"));
        assert_eq!(driver.node_row("b").liveness, Liveness::Initializing);
        assert!(matches!(driver.reject(lift("b")), Rejection::Invalid(_)));
        assert!(matches!(driver.reject(lift("z")), Rejection::NotFound { .. }));
    });
}

/// Two suspensions of one node: the first start, the stronger reason, the later end; and the
/// affinity is cleared if either asks for it.
#[test]
fn suspensions_merge() {
    let mut driver = Driver::default();
    strike_at_once(&mut driver);
    driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
    driver.node("a");
    driver.register_job(job_with_key("t", "snapA"));
    let t = driver.run("t", 0, node_id("a"));
    driver.readiness_as("a", Readiness::Retry, "no disk");
    driver.at_seconds(60);
    driver.report_node_failure(t);
    let flaky_until = START_MS + 60_000 + 15 * MINUTE_MS;
    let flaky = Some((SuspendReason::Flaky, START_MS, Some(flaky_until)));
    assert_eq!(suspension(&driver, "a"), flaky);
    driver.readiness_as("a", Readiness::Retry, "no disk again");
    assert_eq!(suspension(&driver, "a"), flaky, "a weaker reason does not replace it");
    driver.suspend("a", Some(1_000));
    let operator = Some((SuspendReason::Operator, START_MS, Some(flaky_until)));
    assert_eq!(suspension(&driver, "a"), operator, "the cool-down is not shortened");
    driver.now = flaky_until;
    driver.end_suspension("a");
    driver.readiness("a", Readiness::Ok);
    assert_eq!(idle(&driver, ""), ["a"]);
}

/// Suspension and strikes outlive reaping while the tombstone stands.
#[test]
fn a_suspension_outlives_reaping() {
    with_leader_changes(|driver| {
        strike_at_once(driver);
        driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let t = driver.run("t", 0, node_id("a"));
        driver.report_node_failure(t);
        let before = suspension(driver, "a");
        assert!(before.is_some());
        driver.liveness("a", Liveness::Down);
        driver.at_seconds(61);
        let command = driver.reap("a", false);
        driver.accept(command);
        assert_eq!(driver.state.census().of(Liveness::Down), 0);
        driver.node("a");
        assert_eq!(suspension(driver, "a"), before);
        assert_eq!(driver.node_row("a").strikes, 1);
        assert!(free(driver).is_empty());
    });
}

/// A report that is older than one that was taken changes nothing; a new incarnation begins anew.
#[test]
fn late_readiness_reports_are_ignored() {
    let mut driver = Driver::default();
    let node = driver.register_node("a");
    driver.sync("a");
    let report = |incarnation, readiness, sequence| {
        let (reason, evaluation_ids) = ("late".into(), Vec::new());
        let report =
            NodeReadiness { node, incarnation, readiness, reason, sequence, evaluation_ids };
        Command::from(report)
    };
    driver.accept(report(1, Readiness::Ok, 2_000));
    driver.accept(report(1, Readiness::Retry, 1_999));
    driver.accept(report(1, Readiness::Fatal, 2_000));
    assert_eq!(free(&driver), ["a"]);
    driver.register_node_as("a", 2, description("a"));
    assert_eq!(driver.node_row("a").check, None);
    driver.accept(report(2, Readiness::Ok, 1));
    assert_eq!(free(&driver), ["a"]);
}

/// The same result again changes nothing but the sequence: a copy of it that comes late, after an
/// operator has ended a suspension, does not make the node ready.
#[test]
fn a_result_that_says_nothing_new_still_counts_as_taken() {
    let mut driver = Driver::default();
    driver.register_node("a");
    driver.readiness_as("a", Readiness::Retry, "no disk");
    let check = driver.node_row("a").check.clone().unwrap();
    assert_eq!(
        (check.readiness, &*check.reason, check.at),
        (Readiness::Retry, "no disk", START_MS)
    );
    assert_eq!(last_event(&driver, "a"), "Readiness check: not ready: no disk");
    driver.at_seconds(5);
    driver.readiness_as("a", Readiness::Retry, "no disk");
    assert_eq!(driver.node_row("a").check, Some(check));
    driver.readiness_as("a", Readiness::Retry, &"ä".repeat(200));
    assert_eq!(driver.node_row("a").check.as_ref().unwrap().reason.len(), 256);
}

/// What an operator disables during a drain stays disabled after it; the end of a drain gives back
/// what the drain took.
#[test]
fn offline_outlives_a_drain() {
    for disabled in [false, true] {
        with_leader_changes(|driver| {
            let node = driver.node("a");
            driver.drain("a", true);
            if disabled {
                driver.eligibility("a", false);
            }
            let end = Command::from(SetDrain {
                node,
                drain: None,
                mark_eligible: true,
                meta: std::collections::BTreeMap::new(),
                evaluation_ids: Vec::new(),
            });
            driver.accept(end);
            let eligibility = &driver.node_row("a").eligibility;
            assert_eq!(eligibility.ineligible, disabled);
            assert_eq!(free(driver).is_empty(), disabled);
        });
    }
}

/// When no more offline nodes can be remembered, an ineligible node is not reaped.
#[test]
fn a_full_table_keeps_ineligible_nodes() {
    let mut driver = Driver { checked: false, ..Driver::default() };
    for name in ["a", "b"] {
        driver.node(name);
    }
    driver.eligibility("a", false);
    for number in 0..limits::OFFLINE_NODES_MAX {
        driver.eligibility(&format!("n{number}"), false);
    }
    let more = Command::from(SetEligibility {
        node: node_id("more"),
        eligible: false,
        by: "".into(),
        reason: "".into(),
        evaluation_ids: Vec::new(),
    });
    assert!(matches!(driver.reject(more), Rejection::Invalid(_)));
    for name in ["a", "b"] {
        driver.liveness(name, Liveness::Down);
    }
    driver.at_seconds(61);
    let command = driver.reap("a", false);
    driver.reject(command);
    let command = driver.reap("b", false);
    driver.accept(command);
    driver.eligibility("n0", true);
    let command = driver.reap("a", false);
    driver.accept(command);
}

#[test]
fn settings_that_make_no_sense_are_refused() {
    let check = |change: fn(&mut NodeLife)| {
        let mut life = NodeLife::default();
        change(&mut life);
        life.check()
    };
    assert_eq!(check(|_| ()), Ok(()));
    assert_eq!(
        check(|life| life.suspend_ms = 0),
        Err("NodeLife.SuspendMs must be from 1 to 31536000000, not 0".to_owned())
    );
    assert_eq!(
        check(|life| life.suspend_ms_max = 899_999),
        Err("NodeLife.SuspendMs (900000) must not be above SuspendMaxMs (899999)".to_owned())
    );
    assert_eq!(
        check(|life| life.strike_failures = 9),
        Err("NodeLife.StrikeFailures must be from 1 to 8, not 9".to_owned())
    );
    assert!(check(|life| life.mass_loss_percent = 101).is_err());
    assert!(check(|life| life.affinity_meta_key = "x".repeat(257).into()).is_err());
}

/// A success that was known already and arrives a second time after an operator's suspension does
/// not stand for the check that must follow it.
#[test]
fn a_late_copy_of_a_success_is_no_new_check() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let (reason, evaluation_ids) = ("".into(), Vec::new());
    let (readiness, sequence) = (Readiness::Ok, 5_000);
    let report = Command::from(NodeReadiness {
        node,
        incarnation: 1,
        readiness,
        reason,
        sequence,
        evaluation_ids,
    });
    driver.accept(report.clone());
    driver.suspend("a", None);
    let (by, reason) = ("operator".into(), "".into());
    driver.accept(Command::from(UnsuspendNode { node, by, reason }));
    driver.accept(report);
    assert_eq!(driver.node_row("a").liveness, Liveness::Initializing);
}
