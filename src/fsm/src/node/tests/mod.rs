//! Nodes: the scenarios SC of node life, each also with a leader change at every point (SC-24:
//! deadlines and outcome are the same), and reaping and drains.

#![expect(clippy::unwrap_used, reason = "tests")]

mod health;
mod mass_loss;
mod shortage;

use std::sync::Arc;

use crate::{
    allocation::ClientStatus,
    apply::Applied,
    command::{Command, Rejection, Reply},
    effect::Effect,
    id::NodeId,
    job::{JobKind, JobStatus},
    limits,
    node::{
        AdvanceDrains, AgentStart, DrainStatus, Liveness, NodeDescription, NodeReadiness,
        Readiness, RegisterNode, SetDrain, SetEligibility, SuspendReason,
    },
    plan::DropReason,
    testing::{
        AFFINITY, Driver, GROUP, START_MS, description, job, job_key, job_with_key, node_id, rows,
    },
    tests::with_leader_changes,
    upkeep::Tick,
};

fn names(nodes: impl Iterator<Item = impl AsRef<crate::node::Node>>) -> Vec<String> {
    nodes.map(|node| node.as_ref().description.name.to_string()).collect()
}

fn idle(driver: &Driver, key: &str) -> Vec<String> {
    names(driver.state.idle_nodes(key))
}

fn busy(driver: &Driver, key: &str) -> Vec<String> {
    names(driver.state.busy_nodes(key))
}

fn free(driver: &Driver) -> Vec<String> {
    let free = names(driver.state.free_nodes());
    assert_eq!(driver.state.occupancy().free().len(), free.len());
    free
}

fn suspension(driver: &Driver, name: &str) -> Option<(SuspendReason, u64, Option<u64>)> {
    let row = driver.node_row(name);
    row.suspension().map(|suspension| (suspension.reason, suspension.since, suspension.until))
}

/// One failure makes a strike, as in Scoot.
fn strike_at_once(driver: &mut Driver) {
    driver.node_life(|life| life.strike_failures = 1);
}

fn drop_reason(driver: &mut Driver, job: &str, node: NodeId) -> DropReason {
    let evaluation = driver.evaluate_job(job);
    let placement = driver.placement(GROUP, 90, node);
    let plan = driver.plan(evaluation).with(placement);
    let verdict = driver.commit_plan(plan);
    assert_eq!(verdict.dropped.len(), 1, "{verdict:?}");
    verdict.dropped[0].1
}

/// The node is back: registered, its allocations' statuses reported, ready.
fn add_again(driver: &mut Driver, name: &str) {
    driver.node(name);
}

/// SC-01: a node without a readiness check is ready, idle and free, and in the affinity group "".
#[test]
fn a_node_without_a_check_is_ready_idle_and_free() {
    with_leader_changes(|driver| {
        driver.node("a");
        assert_eq!(driver.node_row("a").liveness, Liveness::Ready);
        assert_eq!(free(driver), ["a"]);
        assert_eq!(idle(driver, ""), ["a"]);
        assert!(busy(driver, "").is_empty());
    });
}

/// SC-02: a node that is not heard from is lost: known, in its affinity group, not assignable.
#[test]
fn a_removed_node_is_lost_known_and_not_assignable() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        driver.liveness("a", Liveness::Down);
        assert_eq!(driver.node_row("a").liveness, Liveness::Down);
        assert_eq!(driver.node_row("a").lost_at, Some(START_MS));
        assert!(free(driver).is_empty());
        assert_eq!(idle(driver, ""), ["a"]);
        assert_eq!(drop_reason(driver, "t", a), DropReason::NodeUnschedulable);
    });
}

/// SC-03: the removal of an unknown node changes nothing.
#[test]
fn removing_an_unknown_node_changes_nothing() {
    with_leader_changes(|driver| {
        driver.node("a");
        let before = rows(&driver.state);
        assert_eq!(driver.liveness("nobody", Liveness::Down), []);
        assert_eq!(rows(&driver.state), before);
        let command = driver.reap("nobody", false);
        assert_eq!(driver.reject(command), Rejection::NotFound { what: "node".into() });
    });
}

/// SC-04: a node that registers again keeps what it runs.
#[test]
fn adding_a_node_twice_keeps_what_runs_there() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let t = driver.run("t", 0, a);
        driver.register_node("a");
        assert_eq!(driver.node_row("a").liveness, Liveness::Ready);
        assert_eq!(driver.node_row("a").incarnation, 1);
        assert_eq!(driver.allocation(t).client, ClientStatus::Running);
        assert!(idle(driver, "").is_empty());
        assert_eq!(busy(driver, ""), ["a"]);
    });
}

/// SC-05: an offline node gets no new work, keeps its task, and is offline once however often
/// that is said.
#[test]
fn an_offlined_node_gets_no_work_and_keeps_its_task() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 2));
        let t = driver.run("t", 0, a);
        driver.eligibility("a", false);
        let once = driver.node_row("a").clone();
        driver.at_seconds(5);
        driver.eligibility("a", false);
        assert_eq!(*driver.node_row("a"), once, "offlined once only");
        driver.accept(Command::from(SetEligibility {
            node: a,
            eligible: false,
            by: "alice@web1".into(),
            reason: "fan".into(),
            evaluation_ids: Vec::new(),
        }));
        let twice = driver.node_row("a").eligibility.clone();
        assert_eq!((&*twice.by, &*twice.reason, twice.at), ("alice@web1", "fan", START_MS));
        assert!(once.eligibility.ineligible);
        assert_eq!((&*once.eligibility.by, once.eligibility.at), ("operator", START_MS));
        assert_eq!(drop_reason(driver, "t", a), DropReason::NodeUnschedulable);
        assert!(driver.allocation(t).is_live());
    });
}

/// SC-06: a node that is brought online twice is ready once.
#[test]
fn an_offlined_node_is_reinstated_once() {
    with_leader_changes(|driver| {
        driver.node("a");
        driver.eligibility("a", false);
        driver.eligibility("a", true);
        let once = driver.node_row("a").clone();
        driver.eligibility("a", true);
        assert_eq!(*driver.node_row("a"), once);
        assert!(!once.eligibility.ineligible);
        assert_eq!(free(driver), ["a"]);
    });
}

/// SC-07, SC-08: with a readiness check nodes initialize, and one is ready after its own success.
#[test]
fn nodes_wait_for_their_readiness_check() {
    with_leader_changes(|driver| {
        for name in ["a", "b", "c", "d"] {
            driver.register_node(name);
        }
        let waiting = |driver: &Driver| {
            let nodes = driver.state.nodes.iter();
            nodes.filter(|node| node.liveness == Liveness::Initializing).count()
        };
        assert_eq!((free(driver).len(), waiting(driver)), (0, 4));
        for name in ["a", "b"] {
            driver.readiness(name, Readiness::Retry);
        }
        assert_eq!((free(driver).len(), waiting(driver)), (0, 4));

        driver.readiness("a", Readiness::Ok);
        driver.at_ms(250);
        driver.accept(Command::from(Tick));
        assert_eq!(driver.state.at, START_MS + 250);
        assert_eq!(free(driver), ["a"]);
        assert_eq!(waiting(driver), 3);
    });
}

/// SC-10: a node that comes back while it initializes is not reaped later.
#[test]
fn a_node_lost_while_initializing_comes_back() {
    with_leader_changes(|driver| {
        driver.register_node("b");
        driver.liveness("b", Liveness::Down);
        driver.at_seconds(10);
        driver.register_node("b");
        assert_eq!(driver.node_row("b").liveness, Liveness::Initializing);
        driver.sync("b");
        driver.at_seconds(50);
        driver.readiness("b", Readiness::Ok);
        driver.at_seconds(120);
        let command = driver.reap("b", false);
        driver.reject(command);
        assert_eq!(free(driver), ["b"]);
        assert_eq!(driver.node_row("b").lost_at, None);
    });
}

/// SC-10: the grace of a node that is present but not ready yet does not run on.
#[test]
fn an_initializing_node_is_not_reaped() {
    with_leader_changes(|driver| {
        driver.register_node("b");
        driver.liveness("b", Liveness::Down);
        driver.at_seconds(10);
        driver.register_node("b");
        driver.at_seconds(120);
        let command = driver.reap("b", false);
        driver.reject(command);
        assert_eq!(driver.node_row("b").liveness, Liveness::Initializing);
    });
}

/// SC-11: re-added and ready in one batch, in either order.
#[test]
fn a_node_that_is_added_with_its_success_is_assignable() {
    with_leader_changes(|driver| {
        driver.register_job(job("t", JobKind::Batch, 2));
        let b = driver.register_node("b");
        driver.liveness("b", Liveness::Down);
        driver.readiness("b", Readiness::Ok);
        assert_eq!(driver.node_row("b").liveness, Liveness::Down, "a success alone is not enough");
        driver.register_node("b");
        let early = driver.readiness("b", Readiness::Ok);
        assert!(matches!(early, Reply::Rejected(Rejection::Invalid(_))), "{early:?}");
        driver.sync("b");
        driver.readiness("b", Readiness::Ok);
        assert_eq!(free(driver), ["b"]);
        driver.place("t", 0, b);
    });
}

/// SC-12: affinity groups hold a node once: by its last key, and busy or idle.
#[test]
fn busy_and_idle_follow_from_allocations() {
    with_leader_changes(|driver| {
        driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
        let nodes = ["a", "b", "c", "d"].map(|name| driver.node(name));
        for (name, key) in [("one", "snapA"), ("two", "snapA"), ("three", "snapB")] {
            driver.register_job(job_with_key(name, key));
        }
        let first = driver.run("one", 0, nodes[0]);
        driver.run("two", 0, nodes[1]);
        driver.run("three", 0, nodes[2]);
        assert_eq!(idle(driver, ""), ["d"]);
        assert_eq!(busy(driver, "snapA"), ["a", "b"]);
        assert_eq!(busy(driver, "snapB"), ["c"]);

        driver.report(first, ClientStatus::Complete);
        assert_eq!(idle(driver, "snapA"), ["a"]);
        assert_eq!(busy(driver, "snapA"), ["b"]);

        driver.register_job(job_with_key("four", "snapB"));
        driver.run("four", 0, nodes[0]);
        assert_eq!(busy(driver, "snapB"), ["a", "c"]);
        assert_eq!(busy(driver, "snapA"), ["b"]);
        assert!(idle(driver, "snapA").is_empty());
        assert!(busy(driver, "").is_empty());
    });
}

/// SC-12: a task that ended before its start was reported still leaves its key, that of the version
/// it ran.
#[test]
fn a_short_task_leaves_its_affinity_key() {
    with_leader_changes(|driver| {
        driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
        let a = driver.node("a");
        driver.register_job(job_with_key("one", "snapA"));
        let id = driver.place("one", 0, a);
        driver.register_job(job_with_key("one", "snapB"));
        driver.report(id, ClientStatus::Complete);
        assert_eq!(idle(driver, "snapA"), ["a"]);
    });
}

/// SC-13: a flaky node is out for 15 minutes, and back only after a check.
#[test]
fn a_flaky_node_cools_down_and_is_checked_again() {
    with_leader_changes(|driver| {
        driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
        strike_at_once(driver);
        driver.node("a");
        let a = node_id("a");
        driver.register_job(job_with_key("t", "snapA"));
        let t = driver.run("t", 0, a);
        driver.report_node_failure(t);
        let until = Some(START_MS + 15 * 60 * 1000);
        assert_eq!(suspension(driver, "a"), Some((SuspendReason::Flaky, START_MS, until)));
        assert!(free(driver).is_empty());

        driver.at_seconds(14 * 60 + 59);
        driver.register_node("a");
        driver.end_suspension("a");
        assert!(suspension(driver, "a").is_some(), "neither time nor an addition shortens it");

        driver.at_seconds(15 * 60);
        driver.end_suspension("a");
        assert_eq!(suspension(driver, "a"), None);
        assert_eq!(driver.node_row("a").liveness, Liveness::Initializing);
        assert!(free(driver).is_empty());
        driver.readiness("a", Readiness::Retry);
        assert!(free(driver).is_empty());
        driver.readiness("a", Readiness::Ok);
        assert_eq!(free(driver), ["a"]);
        assert_eq!(idle(driver, ""), ["a"], "what it last ran may be the cause");
        assert!(idle(driver, "snapA").is_empty());
    });
}

/// SC-15: a lost node is back with its affinity within the grace, and gone from every index
/// after it.
#[test]
fn a_lost_node_returns_within_the_grace_and_is_forgotten_after_it() {
    with_leader_changes(|driver| {
        driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
        let b = driver.node("b");
        let c = driver.node("c");
        driver.register_job(job_with_key("one", "snapA"));
        driver.register_job(job_with_key("two", "snapB"));
        let one = driver.run("one", 0, b);
        driver.report(one, ClientStatus::Complete);
        let two = driver.run("two", 0, c);
        driver.liveness("b", Liveness::Down);
        let made = driver.liveness("c", Liveness::Down);
        let plan = driver.plan(made[0]).stopping(two, Some(ClientStatus::Lost));
        assert!(driver.commit_plan(plan).outcome_taken);

        driver.at_seconds(59);
        for name in ["b", "c"] {
            let command = driver.reap(name, false);
            driver.reject(command);
        }
        add_again(driver, "b");
        assert_eq!(idle(driver, "snapA"), ["b"]);
        assert_eq!(free(driver), ["b"]);

        driver.at_seconds(61);
        let command = driver.reap("b", false);
        driver.reject(command);
        let command = driver.reap("c", false);
        driver.accept(command);
        assert!(driver.state.nodes.get(&c).is_none());
        assert!(idle(driver, "snapB").is_empty() && busy(driver, "snapB").is_empty());
        assert_eq!(*driver.state.usage(c), crate::resources::NodeUsage::default());
        let before = rows(&driver.state);
        driver.report(two, ClientStatus::Complete);
        assert_eq!(rows(&driver.state), before, "a late completion changes nothing");
    });
}

/// SC-15: at exactly one minute the grace is over.
#[test]
fn the_grace_ends_on_the_millisecond() {
    let mut driver = Driver::default();
    driver.node("c");
    driver.liveness("c", Liveness::Down);
    let grace_ms = driver.state.node_life().lost_grace_ms;
    driver.at_ms(grace_ms - 1);
    let command = driver.reap("c", false);
    driver.reject(command);
    driver.at_ms(grace_ms);
    let command = driver.reap("c", false);
    driver.accept(command);
}

/// SC-16: a node that is unhealthy after its task is checked again, and returns when it is healthy
/// without having to disappear.
#[test]
fn an_unhealthy_node_returns_without_disappearing() {
    with_leader_changes(|driver| {
        driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
        let a = driver.node("a");
        driver.register_job(job_with_key("t", "snapA"));
        let t = driver.run("t", 0, a);
        driver.readiness_as("a", Readiness::Retry, "disk is full");
        let row = driver.node_row("a").suspension().unwrap().clone();
        assert_eq!((row.reason, &*row.detail), (SuspendReason::Unhealthy, "disk is full"));
        assert_eq!((row.since, row.until), (START_MS, None));
        assert!(driver.node_row("a").wants_check() && driver.allocation(t).is_live());
        assert_eq!(driver.node_row("a").strikes, 0);
        driver.report(t, ClientStatus::Complete);
        assert!(free(driver).is_empty());
        driver.at_seconds(100);
        let command = driver.reap("a", false);
        driver.reject(command);
        driver.readiness("a", Readiness::Ok);
        assert_eq!(driver.node_row("a").liveness, Liveness::Ready, "at once");
        assert_eq!(free(driver), ["a"]);
        assert_eq!(idle(driver, ""), ["a"], "its affinity is cleared");
    });
}

/// SC-17: an offline node that is added again stays offline, also after it was reaped: only an
/// operator takes an operator's word back.
#[test]
fn an_offlined_node_stays_offlined() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        driver.eligibility("a", false);
        add_again(driver, "a");
        assert_eq!(drop_reason(driver, "t", a), DropReason::NodeUnschedulable);
        driver.liveness("a", Liveness::Down);
        add_again(driver, "a");
        assert_eq!(drop_reason(driver, "t", a), DropReason::NodeUnschedulable);

        driver.liveness("a", Liveness::Down);
        driver.at_seconds(61);
        let command = driver.reap("a", false);
        driver.accept(command);
        add_again(driver, "a");
        assert_eq!(driver.node_row("a").incarnation, 2);
        assert_eq!(driver.node_row("a").liveness, Liveness::Ready);
        assert_eq!(drop_reason(driver, "t", a), DropReason::NodeUnschedulable);
        driver.eligibility("a", true);
        driver.place("t", 0, a);
    });
}

/// SC-18: a node whose task failed while it was lost is idle when it is back, and gets work.
#[test]
fn a_node_whose_task_failed_while_it_was_lost_gets_work_again() {
    with_leader_changes(|driver| {
        driver.node_life(|life| life.affinity_meta_key = AFFINITY.into());
        let a = driver.node("a");
        driver.register_job(job_with_key("t", "snapA"));
        let t = driver.run("t", 0, a);
        driver.liveness("a", Liveness::Down);
        driver.register_node("a");
        driver.report(t, ClientStatus::Failed);
        driver.readiness("a", Readiness::Ok);
        assert_eq!(idle(driver, "snapA"), ["a"]);
        assert_eq!(free(driver), ["a"]);
        driver.place("t", 0, a);
    });
}

/// SC-20: online gives eligibility back, and a suspension goes on until its own end.
#[test]
fn reinstating_does_not_end_a_suspension() {
    with_leader_changes(|driver| {
        strike_at_once(driver);
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let t = driver.run("t", 0, a);
        driver.report_node_failure(t);
        let before = suspension(driver, "a");
        assert!(before.is_some());
        driver.at_seconds(60);
        driver.eligibility("a", false);
        driver.eligibility("a", true);
        assert!(!driver.node_row("a").eligibility.ineligible);
        assert_eq!(suspension(driver, "a"), before);
        assert!(free(driver).is_empty());
        driver.at_seconds(15 * 60);
        driver.end_suspension("a");
        driver.readiness("a", Readiness::Ok);
        assert_eq!(free(driver), ["a"]);
    });
}

/// SC-21: a duplicate completion changes no count, and none falls below zero.
#[test]
fn a_duplicate_completion_changes_no_count() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Batch, 1));
        let t = driver.run("t", 0, a);
        let completion = driver.update(t, ClientStatus::Complete);
        driver.report_update(completion.clone());
        let before = rows(&driver.state);
        let summary = driver.state.job_index(&job_key("t")).unwrap().summary.clone();
        driver.report_update(completion);
        driver.report(t, ClientStatus::Complete);
        driver.report(t, ClientStatus::Failed);
        assert_eq!(rows(&driver.state), before);
        let index = driver.state.job_index(&job_key("t")).unwrap();
        assert_eq!(index.summary, summary);
        let counts: Vec<_> =
            index.summary.values().map(|one| (one.complete, one.running)).collect();
        assert_eq!(counts, [(1, 0)]);
        assert_eq!(*driver.state.usage(a), crate::resources::NodeUsage::default());
    });
}

#[test]
fn only_legal_changes_of_liveness_are_taken() {
    let all = [Liveness::Initializing, Liveness::Ready, Liveness::Disconnected, Liveness::Down];
    for from in all {
        for to in all {
            let mut driver = Driver::default();
            driver.node("a");
            match from {
                Liveness::Ready => {}
                Liveness::Initializing | Liveness::Disconnected | Liveness::Down => {
                    driver.liveness("a", from);
                }
            }
            assert_eq!(driver.node_row("a").liveness, from);
            driver.liveness("a", to);
            let legal = from.may_become(to) && to != Liveness::Ready;
            let expected = if legal { to } else { from };
            assert_eq!(driver.node_row("a").liveness, expected, "{from:?} to {to:?}");
        }
    }
}

/// A missed heartbeat: ready only after the allocations' statuses are newer than it.
#[test]
fn a_disconnected_node_initializes_and_syncs_before_it_is_ready() {
    let mut driver = Driver::default();
    driver.node("a");
    driver.liveness("a", Liveness::Disconnected);
    driver.readiness("a", Readiness::Ok);
    assert_eq!(driver.node_row("a").liveness, Liveness::Disconnected);
    driver.liveness("a", Liveness::Initializing);
    let reply = driver.readiness("a", Readiness::Ok);
    assert!(matches!(reply, Reply::Rejected(Rejection::Invalid(_))), "{reply:?}");
    driver.sync("a");
    driver.readiness("a", Readiness::Ok);
    assert_eq!(driver.node_row("a").liveness, Liveness::Ready);
}

#[test]
fn another_identity_is_another_incarnation_and_loses_what_ran() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    driver.register_job(job("t", JobKind::Service, 1));
    let t = driver.run("t", 0, a);
    driver.register_node_as("a", 2, description("a"));
    assert_eq!(driver.node_row("a").incarnation, 2);
    assert_eq!(driver.node_row("a").liveness, Liveness::Initializing);
    assert_eq!(driver.allocation(t).client, ClientStatus::Lost);
    let open = driver.open_evaluations("t");
    assert!(open.iter().any(|id| driver.evaluation(*id).node == Some(a)), "{open:?}");
    let evaluation_ids = Vec::new();
    let old = Command::from(NodeReadiness {
        node: a,
        incarnation: 1,
        readiness: Readiness::Ok,
        reason: "".into(),
        sequence: 1_000,
        evaluation_ids,
    });
    assert_eq!(driver.reject(old), Rejection::StaleIncarnation);
    assert_eq!(
        driver.reject(Command::from(RegisterNode {
            instance: None,
            node: a,
            secret: [8; 16],
            identity: [2; 16],
            description: description("a").into(),
            evaluation_ids: Vec::new(),
        })),
        Rejection::SecretMismatch
    );
}

#[test]
fn an_eligibility_may_come_before_its_node() {
    with_leader_changes(|driver| {
        driver.eligibility("a", false);
        driver.node("a");
        assert!(driver.node_row("a").eligibility.ineligible);
        assert!(driver.state.offline_nodes.is_empty());
        driver.eligibility("b", false);
        driver.eligibility("b", true);
        driver.node("b");
        assert_eq!(free(driver), ["b"]);
    });
}

#[test]
fn a_purged_node_comes_back_as_a_new_incarnation_in_service() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 1));
        let t = driver.run("t", 0, a);
        driver.eligibility("a", false);
        driver.suspend("a", None);
        let command = driver.reap("a", false);
        driver.reject(command);
        let command = driver.reap("a", true);
        driver.accept(command);
        assert_eq!(driver.allocation(t).client, ClientStatus::Lost);
        assert!(driver.state.tombstones.contains(&a));
        driver.node("a");
        assert_eq!(driver.node_row("a").incarnation, 2);
        assert!(driver.state.tombstones.is_empty());
        assert_eq!(free(driver), ["a"]);
    });
}

/// What was to end on a machine that booted is missed by nobody: a job that is over stays so.
#[test]
fn an_allocation_that_was_to_end_is_lost_without_an_evaluation() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let evaluation = driver.register_job(job("b", JobKind::Batch, 1));
    let stopped = driver.run("b", 0, node);
    let plan = driver.plan(evaluation).stopping(stopped, None);
    driver.commit_plan(plan);
    assert_eq!(driver.job_row("b").status, JobStatus::Dead);
    driver.register_node_as("a", 9, description("a"));
    assert_eq!(driver.allocation(stopped).client, ClientStatus::Lost);
    assert_eq!(driver.open_evaluations("b"), []);
    assert_eq!(driver.job_row("b").status, JobStatus::Dead);
}

/// Strikes go with the tombstone; what an operator said stays.
#[test]
fn offline_outlives_the_tombstone() {
    let mut driver = Driver::default();
    for name in ["a", "b"] {
        driver.node(name);
        driver.eligibility(name, false);
        driver.liveness(name, Liveness::Down);
    }
    driver.at_seconds(61);
    let command = driver.reap("a", false);
    driver.accept(command);
    driver.at_ms(61_000 + driver.state.node_life().tombstone_ms);
    let command = driver.reap("b", false);
    driver.accept(command);
    assert!(!driver.state.tombstones.contains(&node_id("a")));
    let rows = driver.state.offline_nodes.iter();
    let names: Vec<_> = rows.map(|row| (&*row.name, &*row.eligibility.reason)).collect();
    assert_eq!(names, [("a", "maintenance"), ("b", "maintenance")]);
    driver.node("a");
    assert!(driver.node_row("a").eligibility.ineligible);
}

/// L10: a drain makes ineligible, and eligibility cannot be given while it lasts.
#[test]
fn a_drain_makes_ineligible_and_stays_so() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 1));
        let t = driver.run("t", 0, a);
        driver.drain("a", true);
        assert!(driver.node_row("a").eligibility.ineligible);
        assert!(driver.open_evaluations("t").len() > 1);
        let eligible = Command::from(SetEligibility {
            node: a,
            eligible: true,
            by: "operator".into(),
            reason: "".into(),
            evaluation_ids: Vec::new(),
        });
        assert!(matches!(driver.reject(eligible), Rejection::Invalid(_)));

        let evaluation_ids = vec![driver.evaluation_id()];
        let advance =
            Command::from(AdvanceDrains { migrate: vec![t], complete: vec![], evaluation_ids });
        driver.accept(advance.clone());
        assert!(driver.allocation(t).transition.migrate);
        let before = rows(&driver.state);
        driver.accept(advance);
        assert_eq!(rows(&driver.state), before, "marked once");

        let complete = Command::from(AdvanceDrains {
            migrate: vec![],
            complete: vec![a],
            evaluation_ids: vec![],
        });
        driver.accept(complete.clone());
        assert!(driver.node_row("a").drain.is_some(), "something runs there");
        driver.report(t, ClientStatus::Complete);
        driver.accept(complete);
        assert_eq!(driver.node_row("a").drain, None);
        let last = driver.node_row("a").last_drain.clone().unwrap();
        assert_eq!(last.status, DrainStatus::Complete);
        assert!(last.updated_at >= last.started_at && last.started_at > 0);
        assert!(driver.node_row("a").eligibility.ineligible, "until an operator says otherwise");
        driver.drain("a", true);
        let again = driver.node_row("a").last_drain.clone().unwrap();
        assert_eq!(again.status, DrainStatus::Draining);
        driver.drain("a", false);
        let canceled = driver.node_row("a").last_drain.clone().unwrap();
        let expected = (again.started_at, DrainStatus::Canceled);
        assert_eq!((canceled.started_at, canceled.status), expected);
        driver.drain("a", false);
        assert_eq!(driver.node_row("a").last_drain.as_ref(), Some(&canceled), "nothing to end");
    });
}

/// Each step of a drain is told, and whether its end was forced by its deadline.
#[test]
fn a_drain_tells_how_it_began_and_ended() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    let drain = |deadline_at: Option<u64>, force: bool| {
        Command::from(SetDrain {
            node: a,
            drain: Some(crate::node::Drain {
                started_at: 0,
                deadline_at,
                force,
                ignore_system: false,
                owner: "operator".into(),
                cancelable: false,
            }),
            mark_eligible: false,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids: Vec::new(),
        })
    };
    let complete =
        Command::from(AdvanceDrains { migrate: vec![], complete: vec![a], evaluation_ids: vec![] });
    let told = |driver: &Driver, last: usize| -> Vec<(String, bool)> {
        let events = &driver.node_row("a").events;
        let told = events.iter().rev().take(last);
        told.map(|one| (one.message.to_string(), one.deadline_reached)).collect()
    };
    let said = |what: &str, late: bool| (format!("Node drain {what}"), late);
    for (deadline_at, force, late) in [
        (None, false, false),
        (Some(3_600_000), false, false),
        (None, true, true),
        (Some(0), false, true),
    ] {
        driver.accept(drain(deadline_at, force));
        driver.accept(drain(deadline_at, force));
        driver.accept(complete.clone());
        let expected =
            [said("complete", late), said("strategy updated", false), said("strategy set", false)];
        assert_eq!(told(&driver, 3), expected, "{deadline_at:?} {force}");
    }
    driver.drain("a", true);
    driver.drain("a", false);
    assert_eq!(told(&driver, 1), [said("disabled", false)]);
}

/// L10: the end of a drain that leaves jobs of every node alone does not end one that came in its
/// place and does not.
#[test]
fn a_drain_in_place_of_another_does_not_end_with_it() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    driver.register_job(job("t", JobKind::System, 1));
    let t = driver.run("t", 0, a);
    assert!(driver.allocation(t).per_node);
    let drain = |ignore_system| {
        Command::from(SetDrain {
            node: a,
            drain: Some(crate::node::Drain {
                started_at: 0,
                deadline_at: None,
                force: false,
                ignore_system,
                owner: "operator".into(),
                cancelable: false,
            }),
            mark_eligible: false,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids: Vec::new(),
        })
    };
    let complete =
        Command::from(AdvanceDrains { migrate: vec![], complete: vec![a], evaluation_ids: vec![] });
    driver.accept(drain(true));
    driver.accept(drain(false));
    driver.accept(complete.clone());
    assert!(driver.node_row("a").drain.is_some());
    driver.accept(drain(true));
    driver.accept(complete);
    assert_eq!(driver.node_row("a").drain, None);
}

/// L10: what becomes eligible or frees room says so, for the blocked evaluations of its class.
#[test]
fn eligibility_and_ends_are_capacity_gains() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    let class = driver.node_row("a").class;
    driver.register_job(job("t", JobKind::Service, 1));
    let t = driver.run("t", 0, a);
    let gain = |driver: &Driver| {
        let key = crate::node::GainKey::Class(class);
        driver.state.capacity_gains.get(&key).map(|row| row.index)
    };
    driver.eligibility("a", false);
    let before = gain(&driver);
    let eligible = Command::from(SetEligibility {
        node: a,
        eligible: true,
        by: "".into(),
        reason: "".into(),
        evaluation_ids: Vec::new(),
    });
    let applied = driver.commit(eligible);
    assert!(applied.effects.contains(&Effect::Capacity { class, node: a }));
    assert!(gain(&driver) > before);
    let before = gain(&driver);
    driver.report(t, ClientStatus::Failed);
    assert!(gain(&driver) > before);
}

/// What is unique to a node is not in its class, and may be what somebody waits for.
#[test]
fn a_node_that_comes_back_with_other_words_about_itself_is_a_capacity_gain() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    let class = driver.node_row("a").class;
    let changes: [fn(&mut NodeDescription); 3] = [
        |description| description.name = "other".into(),
        |description| drop(description.meta.insert("unique.rack".into(), "r1".into())),
        |description| drop(description.attributes.insert("unique.hostname".into(), "h".into())),
    ];
    for change in changes {
        let mut description = (*driver.node_row("a").description).clone();
        change(&mut description);
        let command = Command::from(RegisterNode {
            instance: None,
            node: a,
            secret: [7; 16],
            identity: [1; 16],
            description: description.into(),
            evaluation_ids: Vec::new(),
        });
        let gained = |applied: &crate::apply::Applied| {
            applied.effects.contains(&Effect::Capacity { class, node: a })
        };
        assert!(gained(&driver.commit(command.clone())));
        assert!(!gained(&driver.commit(command)), "nothing is new");
        assert_eq!(driver.node_row("a").class, class);
    }
}

/// What runs once on each node of a datacenter is looked at when its node, which left the
/// datacenter while it took no work, takes work again.
#[test]
fn allocations_of_a_node_that_changed_are_evaluated_when_it_is_eligible() {
    let mut driver = Driver::default();
    let a = driver.node("a");
    let mut spec = job("t", JobKind::System, 1);
    spec.datacenters = vec!["dc1".into()];
    driver.register_job(spec);
    driver.run("t", 0, a);
    driver.eligibility("a", false);
    let elsewhere = NodeDescription { datacenter: "dc2".into(), ..description("a") };
    driver.register_node_as("a", 1, elsewhere);
    let before = driver.open_evaluations("t").len();
    driver.eligibility("a", true);
    assert_eq!(driver.open_evaluations("t").len(), before + 1);
}

/// A drain's times as proposed say how long it may last; it counts from the log time of its entry,
/// and from its first start when changed.
#[test]
fn a_drains_deadline_counts_from_log_time() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let drain = |from: u64, length: u64| {
        let drain = crate::node::Drain {
            started_at: from,
            deadline_at: Some(from + length),
            force: false,
            ignore_system: false,
            owner: "operator".into(),
            cancelable: false,
        };
        let (mark_eligible, evaluation_ids) = (false, Vec::new());
        Command::from(SetDrain {
            node,
            drain: Some(drain),
            mark_eligible,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids,
        })
    };
    driver.accept(drain(5, 600));
    let row = driver.node_row("a").drain.clone().unwrap();
    assert_eq!((row.started_at, row.deadline_at), (START_MS, Some(START_MS + 600)));
    driver.at_ms(100);
    driver.accept(drain(5, 50));
    let row = driver.node_row("a").drain.clone().unwrap();
    assert_eq!((row.started_at, row.deadline_at), (START_MS, Some(START_MS + 150)));
}

/// The server that takes the registration has asked the agent of the last start, and it answered.
#[test]
fn another_start_is_refused_while_the_first_lives() {
    let mut driver = Driver::default();
    let register = |driver: &mut Driver, nonce: u8, rival: &str| {
        let mut description = description("a");
        description.http_address = format!("10.0.0.{nonce}:4646").into();
        description.start = AgentStart { nonce: [nonce; 16], rival: rival.into() };
        driver.commit(Command::from(RegisterNode {
            node: node_id("a"),
            secret: [1; 16],
            identity: [1; 16],
            description: Arc::new(description),
            instance: None,
            evaluation_ids: Vec::new(),
        }))
    };
    let accepted = |applied: Applied| !matches!(applied.reply, Reply::Rejected(_));
    assert!(accepted(register(&mut driver, 1, "")));
    assert!(accepted(register(&mut driver, 1, "10.0.0.1:4646")), "the same start is no rival");
    for _ in 0..2 {
        let refused = register(&mut driver, 2, "10.0.0.1:4646").reply;
        assert!(matches!(refused, Reply::Rejected(Rejection::InUse(_))), "{refused:?}");
    }
    let row = driver.node_row("a");
    assert_eq!(row.description.start.nonce, [1; 16]);
    let said = row.events.iter().filter(|event| event.message.contains("10.0.0.2:4646 is refused"));
    assert_eq!(said.count(), 1, "a repetition is no news");
    assert!(accepted(register(&mut driver, 2, "")), "the first has ended");
    assert_eq!(driver.node_row("a").description.start.nonce, [2; 16]);
}
