//! A derived index that disagrees with the rows stops the replica, with the index's name, at the
//! first entry that uses it.

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use crate::{
    allocation::ClientStatus,
    command::Command,
    evaluation::{Evaluation, EvaluationStatus, EvaluationUpdate, UpdateEvaluations},
    id::RequestId,
    indexes::JobIndex,
    job::{DeregisterJob, DispatchJob, Dispatched, JobKind, JobSpec, Parameterized},
    node::Occupancy,
    pool::{Behavior, DestroyOutcome, SetInstanceBehavior, ShutdownCause},
    state::State,
    testing::{
        Driver, capacity_group, job, job_key, job_with_ports, node_id, outcome, port, register,
    },
    upkeep::Tick,
};

/// A parent and a child of it.
fn dispatch(driver: &mut Driver) {
    let block = Parameterized { payload: "optional".into(), ..Parameterized::default() };
    let parent = job("parent", JobKind::Batch, 1);
    let evaluation = driver.evaluation_id();
    driver.accept(register(JobSpec { parameterized: Some(block), ..parent }, evaluation));
    let child = Dispatched {
        id: "parent/dispatch-1".into(),
        payload: Vec::new(),
        meta: BTreeMap::new(),
        priority: None,
        token: "".into(),
        evaluation: driver.evaluation_id(),
    };
    driver.accept(DispatchJob { parent: job_key("parent"), children: vec![child] }.into());
}

/// A service with a port runs on node `a`, has an open evaluation, a job runs once per node, and
/// of two instances of a pool one is shut down.
fn cluster() -> Driver {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let evaluation = driver.register_job(job_with_ports("t", &[("http", 8080)]));
    let mut placement = driver.placement("web", 0, node);
    placement.ports = vec![port("http", 8080)];
    let mut plan = driver.plan(evaluation).with(placement);
    plan.outcome = Some(outcome(EvaluationStatus::Complete));
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.evaluate_job("t");
    driver.register_job(job("everywhere", JobKind::System, 1));
    dispatch(&mut driver);
    driver.instance_pool("gpu", |pool| {
        pool.groups.insert("web".into(), Arc::new(capacity_group("web")));
    });
    driver.require("lb1", 1, &[("web", 5)]);
    driver.decide("web", 5);
    driver.request_instance("gpu", "small");
    let second = driver.request_instance("gpu", "small");
    driver.shut_down(second, ShutdownCause::Operator);
    driver
}

/// The message of the panic that stops the replica.
fn ends(damage: impl FnOnce(&mut State), entry: impl FnOnce(&mut Driver)) -> String {
    let mut driver = cluster();
    damage(&mut driver.state);
    let ended = catch_unwind(AssertUnwindSafe(|| entry(&mut driver)));
    let words = ended.expect_err("the entry was applied on a damaged index");
    words.downcast_ref::<String>().expect("a panic with words").clone()
}

fn check(index: &str, damage: impl FnOnce(&mut State), entry: impl FnOnce(&mut Driver)) {
    let words = ends(damage, entry);
    assert!(words.starts_with(&format!("derived index {index} is broken: ")), "{index}: {words}");
}

fn of_job(state: &mut State) -> &mut JobIndex {
    Arc::make_mut(state.by_job.get_mut(&job_key("t")).unwrap())
}

/// The instance of the service ends.
fn end(driver: &mut Driver) {
    let id = driver.state.allocations.iter().next().unwrap().id;
    driver.report(id, ClientStatus::Failed);
}

/// The open evaluation of the service is canceled.
fn cancel(driver: &mut Driver) {
    let is_open = |row: &&Arc<Evaluation>| row.job == job_key("t") && !row.status.is_terminal();
    let id = driver.state.evaluations.iter().find(is_open).unwrap().id;
    let update = EvaluationUpdate {
        id,
        status: EvaluationStatus::Canceled,
        description: "".into(),
        follow_up: None,
    };
    driver.accept(UpdateEvaluations { updates: vec![update] }.into());
}

fn purge(driver: &mut Driver) {
    let evaluation = driver.evaluation_id();
    let job = job_key("everywhere");
    driver.accept(Command::from(DeregisterJob {
        job,
        purge: true,
        evaluation,
        evaluation_priority: None,
        no_shutdown_delay: false,
    }));
}

#[test]
fn a_damaged_index_of_deadlines_ends_the_replica() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let mut spec = job("t", JobKind::Batch, 1);
    spec.groups[0].max_run_ms = 1_000;
    driver.register_job(spec);
    let id = driver.run("t", 0, node);
    driver.state.run_deadlines.clear();
    let ended = catch_unwind(AssertUnwindSafe(|| driver.report(id, ClientStatus::Complete)));
    let words = ended.expect_err("the entry was applied on a damaged index");
    let words = words.downcast_ref::<String>().expect("a panic with words");
    assert!(words.starts_with("derived index run-deadlines is broken: "), "{words}");
}

fn purge_child(driver: &mut Driver) {
    let evaluation = driver.evaluation_id();
    let job = job_key("parent/dispatch-1");
    let command = DeregisterJob {
        job,
        purge: true,
        evaluation,
        evaluation_priority: None,
        no_shutdown_delay: false,
    };
    driver.accept(command.into());
}

#[test]
fn a_damaged_index_of_allocations_ends_the_replica() {
    check("allocations-by-node", |state| drop(state.by_node.remove(&node_id("a"))), end);
    check("open-allocations-by-node", |state| state.open_by_node.clear(), end);
    check("allocations-by-evaluation", |state| state.by_evaluation.clear(), end);
    check("allocations-by-job", |state| of_job(state).allocations.clear(), end);
    check("allocations-by-job", |state| state.by_job.clear(), end);
    check("live-names", |state| of_job(state).live_names.clear(), end);
    check("versions", |state| of_job(state).versions.clear(), end);
    check("summary", |state| of_job(state).summary.clear(), end);
    let miscounted = |state: &mut State| {
        let mut summaries = of_job(state).summary.values_mut();
        let summary = summaries.next().unwrap();
        (summary.starting, summary.running) = (0, 1);
    };
    check("summary", miscounted, end);
    check("occupancy", |state| state.occupancy = Occupancy::default(), end);
}

#[test]
fn a_damaged_usage_ends_the_replica() {
    fn usage(state: &mut State) -> &mut crate::resources::NodeUsage {
        Arc::make_mut(state.usage.get_mut(&node_id("a")).unwrap())
    }
    check("usage", |state| state.usage.clear(), end);
    check("usage", |state| usage(state).resources.memory_mb -= 1, end);
    check("usage", |state| usage(state).allocations = 0, end);
    check("usage", |state| usage(state).ports.clear(), end);
}

#[test]
fn a_damaged_index_of_evaluations_jobs_or_sessions_ends_the_replica() {
    check("evaluations-by-job", |state| of_job(state).evaluations.clear(), cancel);
    check("open-evaluations", |state| of_job(state).open_evaluations.clear(), cancel);
    check("per-node-jobs", |state| state.per_node_jobs.clear(), purge);
    check("children", |state| state.children.clear(), purge_child);
    let stray = |state: &mut State| {
        state.sessions_by_time.insert((0, RequestId([9; 16])));
    };
    check("sessions-by-time", stray, |driver| {
        let now = driver.now;
        driver.commit_request(1, now, Command::from(Tick));
    });
}

/// A member is asked for or its machine is gone, a pool declares its groups anew, a source says
/// less than it said.
#[test]
fn a_damaged_index_of_capacity_groups_ends_the_replica() {
    let member = |driver: &mut Driver| {
        let mut intent = driver.intent("gpu", "small");
        intent.group = Some("web".into());
        let id = intent.id;
        let command = driver.request("gpu", vec![intent]);
        driver.accept(command);
        id
    };
    let gone = |damage: fn(&mut State)| {
        let mut driver = cluster();
        let id = member(&mut driver);
        driver.shut_down(id, ShutdownCause::Operator);
        damage(&mut driver.state);
        let ended = catch_unwind(AssertUnwindSafe(|| driver.destroyed(id)));
        let words = ended.expect_err("the entry was applied on a damaged index");
        words.downcast_ref::<String>().expect("a panic with words").clone()
    };
    for damage in [
        |state: &mut State| state.members_by_group.clear(),
        |state: &mut State| {
            state.members_by_group.insert("web".into(), imbl::OrdSet::new());
        },
    ] {
        let words = gone(damage);
        assert!(words.starts_with("derived index members-by-group is broken: "), "{words}");
    }
    let again = |driver: &mut Driver| driver.instance_pool("gpu", |_| {});
    check("capacity-pools", |state| state.capacity_pools.clear(), again);
    let less = |driver: &mut Driver| driver.require("lb1", 2, &[]);
    let damage = |state: &mut State| {
        let mut row = (**state.capacity_targets.get(&"web".into()).unwrap()).clone();
        row.required = 1;
        crate::testing::put(state, &row);
    };
    check("capacity-sums", damage, less);
}

/// An instance is held, or its machine is gone.
#[test]
fn a_damaged_index_of_instances_ends_the_replica() {
    let hold = |driver: &mut Driver| {
        let row = driver.state.instances.iter().find(|row| row.shutdown.is_none()).unwrap();
        let id = row.id;
        driver.accept(
            SetInstanceBehavior {
                id,
                behavior: Behavior::Hold,
                deadline_ms: None,
                by: "alice".into(),
                reason: "look".into(),
                evaluation_ids: Vec::new(),
            }
            .into(),
        );
    };
    let gone = |driver: &mut Driver| {
        let row = driver.state.instances.iter().find(|row| row.shutdown.is_some()).unwrap();
        let (id, provider_id) = (row.id, row.provider_id.clone());
        let (gone, error, evaluation_ids) = (true, "".into(), Vec::new());
        let command = DestroyOutcome { id, provider_id, gone, error, evaluation_ids };
        driver.accept(command.into());
    };
    check("instances-by-pool", |state| state.instances_by_pool.clear(), hold);
    check("instances-by-pool", |state| state.instances_by_pool.clear(), gone);
    let emptied = |state: &mut State| {
        state.instances_by_pool.insert("gpu".into(), imbl::OrdSet::new());
    };
    check("instances-by-pool", emptied, gone);
}
