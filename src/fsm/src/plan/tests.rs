//! Plans: every check of the last line of defence, one test each, and what a plan that is taken
//! writes.

#![expect(clippy::unwrap_used, reason = "tests")]

mod preemption;

use std::collections::BTreeMap;

use crate::{
    allocation::{ClientStatus, DesiredStatus, Replacement},
    command::Command,
    evaluation::{Evaluation, EvaluationStatus, Metrics, Trigger},
    id::{AllocationId, EvaluationId, NodeId},
    job::JobKind,
    node::Liveness,
    plan::{ApplyPlans, DropReason, FollowUp, Plan, PlanVerdict},
    resources::Dimension,
    table::ChangeSet,
    testing::{
        ASK, Driver, GROUP, description, job, job_key, job_with_ports, outcome, port, rows,
        stop_allocation,
    },
    tests::with_leader_changes,
};

fn cluster(count: u32) -> (Driver, NodeId, EvaluationId) {
    let mut driver = Driver::default();
    let node = driver.node("a");
    let evaluation = driver.register_job(job("t", JobKind::Service, count));
    (driver, node, evaluation)
}

/// The plan is refused as a whole and changes no row.
fn refused(driver: &mut Driver, plan: Plan, reason: DropReason) {
    let before = rows(&driver.state);
    let evaluation = plan.evaluation;
    let verdict = driver.commit_plan(plan);
    let refresh_index = driver.state.index;
    let expected = PlanVerdict {
        evaluation,
        refused: Some(reason),
        dropped: Vec::new(),
        outcome_taken: false,
        refresh_index,
    };
    assert_eq!(verdict, expected);
    assert_eq!(rows(&driver.state), before);
}

/// One placement is dropped, nothing is placed and the outcome is not taken.
fn dropped(driver: &mut Driver, plan: Plan, reason: DropReason) {
    let before = driver.state.allocations.digest();
    let id = plan.placements.last().unwrap().id;
    let verdict = driver.commit_plan(plan);
    assert_eq!(verdict.refused, None);
    assert_eq!(verdict.dropped, [(id, reason)]);
    assert!(!verdict.outcome_taken);
    assert_eq!(verdict.refresh_index, driver.state.index);
    assert_eq!(driver.state.allocations.digest(), before);
    assert_eq!(driver.evaluation(verdict.evaluation).status, EvaluationStatus::Pending);
}

/// P2, P4 (one index for a plan; stops say why): allocations, stops and the evaluation change at
/// one index; the stopped one says why and what became of it.
#[test]
fn a_plan_is_written_at_one_index() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 2));
        let old = driver.run("t", 0, node);
        driver.liveness("a", Liveness::Down);
        let b = driver.node("b");
        let evaluation = driver.evaluate_job("t");
        let mut placement = driver.placement(GROUP, 0, b);
        placement.previous = Some(old);
        let new = placement.id;
        let plan = driver.plan(evaluation).with(placement).stopping(old, Some(ClientStatus::Lost));
        let verdict = driver.commit_plan(plan);
        assert_eq!((verdict.outcome_taken, verdict.refresh_index), (true, 0));

        let index = driver.state.index;
        let (old, new) = (driver.allocation(old), driver.allocation(new));
        assert_eq!((old.modify_index, old.server_modify_index), (index, index));
        assert_eq!((old.desired, old.client), (DesiredStatus::Stop, ClientStatus::Lost));
        assert_eq!(&*old.desired_description, "not wanted any more");
        assert_eq!(old.next, Some(new.id));
        assert_eq!((new.create_index, new.modify_index), (index, index));
        assert_eq!((new.desired, new.client), (DesiredStatus::Run, ClientStatus::Pending));
        assert_eq!((new.evaluation, new.resources), (evaluation, ASK));
        let row = driver.evaluation(evaluation);
        assert_eq!((row.status, row.modify_index), (EvaluationStatus::Complete, index));
        assert_eq!(driver.job_row("t").last_plan_index, index);
    });
}

#[test]
fn a_plan_of_a_closed_or_unknown_evaluation_is_refused() {
    let (mut driver, node, evaluation) = cluster(2);
    let first = driver.placement(GROUP, 0, node);
    let plan = driver.plan(evaluation).with(first);
    assert!(driver.commit_plan(plan).outcome_taken);
    let second = driver.placement(GROUP, 1, node);
    let plan = driver.plan(evaluation).with(second.clone());
    refused(&mut driver, plan.clone(), DropReason::EvaluationClosed);
    let unknown = Plan { evaluation: EvaluationId([9; 16]), ..plan };
    refused(&mut driver, unknown, DropReason::EvaluationClosed);

    driver.register_job(job("other", JobKind::Service, 1));
    let evaluation = driver.evaluate_job("t");
    let foreign = Plan { job: job_key("other"), ..driver.plan(evaluation) };
    refused(&mut driver, foreign, DropReason::EvaluationClosed);
}

/// The plan is partial, so that only the plan index tells the second delivery from the first.
#[test]
fn a_plan_older_than_the_last_one_of_its_job_is_refused() {
    let (mut driver, node, evaluation) = cluster(2);
    let other = driver.evaluate_job("t");
    let first = driver.placement(GROUP, 0, node);
    let second = driver.placement(GROUP, 1, node);
    let stale = driver.plan(other).with(second);
    let plan = driver.plan(evaluation).with(first);
    assert!(driver.commit_plan(plan).outcome_taken);
    refused(&mut driver, stale.clone(), DropReason::StalePlan);
    let fresh = Plan { snapshot_index: driver.job_row("t").last_plan_index, ..stale };
    assert!(driver.commit_plan(fresh).outcome_taken);
}

#[test]
fn the_same_plan_again_is_a_no_op() {
    let (mut driver, node, evaluation) = cluster(3);
    let placement = driver.placement(GROUP, 0, node);
    let whole = driver.plan(evaluation).with(placement);
    let verdicts = driver.commit_plans(vec![whole.clone(), whole.clone()]);
    assert!(verdicts[0].outcome_taken);
    assert_eq!(verdicts[1].refused, Some(DropReason::EvaluationClosed), "in the same entry");
    refused(&mut driver, whole, DropReason::EvaluationClosed);

    let evaluation = driver.evaluate_job("t");
    let placement = driver.placement(GROUP, 1, node);
    let partial = Plan { outcome: None, ..driver.plan(evaluation).with(placement) };
    let verdicts = driver.commit_plans(vec![partial.clone(), partial.clone()]);
    assert_eq!((verdicts[0].refused, verdicts[0].dropped.len()), (None, 0));
    assert_eq!(verdicts[1].refused, Some(DropReason::StalePlan), "in the same entry");
    refused(&mut driver, partial, DropReason::StalePlan);
    assert_eq!(driver.state.allocations.len(), 2);
}

/// An entry of a plan that lands in another term than its leader's changes nothing, log time
/// included.
#[test]
fn a_plan_of_another_epoch_is_refused() {
    let (mut driver, node, evaluation) = cluster(1);
    let placement = driver.placement(GROUP, 0, node);
    let plans = vec![driver.plan(evaluation).with(placement).into()];
    let mut proposal = crate::Proposal {
        at: driver.now + 1000,
        epoch: Some(2),
        request: None,
        command: Command::from(ApplyPlans { plans }),
    };
    let before = rows(&driver.state);
    let applied = driver.commit_proposal(&proposal);
    let stale = crate::Rejection::StaleEpoch { expected: 2, found: 1 };
    assert_eq!(applied.reply, crate::Reply::Rejected(stale));
    assert_eq!(applied.effects, []);
    assert_eq!(rows(&driver.state), before);
    assert_eq!(driver.state.at, driver.now);
    proposal.epoch = Some(1);
    assert!(matches!(driver.commit_proposal(&proposal).reply, crate::Reply::Plans(_)));
    assert_eq!(driver.state.allocations.len(), 1);
}

#[test]
fn a_plan_of_another_version_is_refused() {
    let (mut driver, node, evaluation) = cluster(1);
    let placement = driver.placement(GROUP, 0, node);
    let plan = driver.plan(evaluation).with(placement);
    driver.register_job(job("t", JobKind::Service, 2));
    refused(&mut driver, plan.clone(), DropReason::JobChanged);
    let other = Plan { job_version: 1, job_create_index: 1, ..plan };
    refused(&mut driver, other, DropReason::JobChanged);
}

#[test]
fn a_stopped_job_gets_no_placements_but_its_stops() {
    let (mut driver, node, _) = cluster(1);
    let id = driver.run("t", 0, node);
    let evaluation = driver.deregister_job("t", false).unwrap();
    let placement = driver.placement(GROUP, 1, node);
    let plan = driver.plan(evaluation).with(placement);
    refused(&mut driver, plan, DropReason::JobChanged);
    let plan = driver.plan(evaluation).stopping(id, None);
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(id).desired, DesiredStatus::Stop);
    assert_ne!(driver.allocation(id).evaluation, evaluation, "it stays that of its placement");
}

/// P8: a node that is not there, or not in service for any reason, gets no placement.
#[test]
fn nodes_out_of_service_get_no_placements() {
    let (mut driver, node, evaluation) = cluster(1);
    let place = |driver: &mut Driver, node, reason| {
        let placement = driver.placement(GROUP, 0, node);
        let plan = driver.plan(evaluation).with(placement);
        dropped(driver, plan, reason);
    };
    place(&mut driver, NodeId([9; 16]), DropReason::NodeMissing);
    let initializing = driver.register_node("b");
    place(&mut driver, initializing, DropReason::NodeUnschedulable);
    for name in ["c", "d", "e", "f", "g"] {
        driver.node(name);
    }
    driver.liveness("c", Liveness::Down);
    driver.liveness("d", Liveness::Disconnected);
    driver.drain("e", true);
    driver.eligibility("f", false);
    driver.suspend("g", None);
    for name in ["c", "d", "e", "f", "g"] {
        place(&mut driver, crate::testing::node_id(name), DropReason::NodeUnschedulable);
    }
    // Its agent has started again in another pool since the plan was made.
    let moved = driver.node("h");
    let mut elsewhere = description("h");
    elsewhere.pool = "other".into();
    driver.register_node_as("h", 1, elsewhere);
    assert!(driver.node_row("h").is_schedulable());
    place(&mut driver, moved, DropReason::NodeUnschedulable);
    let placement = driver.placement(GROUP, 0, node);
    let plan = driver.plan(evaluation).with(placement);
    assert!(driver.commit_plan(plan).outcome_taken);
}

/// A drain alone is enough, also when eligibility was given back meanwhile.
#[test]
fn a_draining_node_gets_no_placements() {
    let mut node = Driver::default();
    node.node("a");
    node.drain("a", true);
    let mut row = node.node_row("a").clone();
    row.eligibility = crate::node::Eligibility::default();
    assert!(!row.is_schedulable());
    row.drain = None;
    assert!(row.is_schedulable());
}

/// P8: full in each dimension.
#[test]
fn a_full_node_gets_no_placements() {
    let limit = |change: fn(&mut crate::node::NodeDescription), dimension| {
        let mut driver = Driver::default();
        let mut description = description("a");
        change(&mut description);
        driver.register_node_as("a", 1, description);
        let node = driver.node_row("a").id;
        driver.readiness("a", crate::node::Readiness::Ok);
        let evaluation = driver.register_job(job("t", JobKind::Service, 3));
        let first = driver.placement(GROUP, 0, node);
        let plan = Plan { outcome: None, ..driver.plan(evaluation).with(first) };
        assert_eq!(driver.commit_plan(plan).dropped, [], "the first fits");
        let second = driver.placement(GROUP, 1, node);
        let plan = driver.plan(evaluation).with(second);
        dropped(&mut driver, plan, DropReason::NodeFull(dimension));
    };
    limit(|node| node.resources.total.cpu_mhz = 999, Dimension::Cpu);
    limit(|node| node.resources.reserved.memory_mb = 8192 - 511, Dimension::Memory);
    limit(|node| node.resources.total.disk_mb = 199, Dimension::Disk);
    limit(|node| node.resources.allocations_max = 1, Dimension::Allocations);
}

/// P5: what fits of a plan is kept when another part does not fit; the outcome is not taken.
#[test]
fn the_part_of_a_plan_that_fits_is_kept() {
    let (mut driver, node, evaluation) = cluster(2);
    let mut small = description("b");
    small.resources.total.cpu_mhz = 100;
    driver.register_node_as("b", 1, small);
    driver.readiness("b", crate::node::Readiness::Ok);
    let fits = driver.placement(GROUP, 0, node);
    let misfit = driver.placement(GROUP, 1, crate::testing::node_id("b"));
    let (kept, lost) = (fits.id, misfit.id);
    let plan = driver.plan(evaluation).with(misfit).with(fits);
    let verdict = driver.commit_plan(plan);
    assert_eq!(verdict.dropped, [(lost, DropReason::NodeFull(Dimension::Cpu))]);
    assert!(!verdict.outcome_taken);
    assert_eq!(verdict.refresh_index, driver.state.index);
    assert!(driver.allocation(kept).is_live());
    assert!(!driver.state.allocations.contains(&lost));
    assert_eq!(driver.evaluation(evaluation).status, EvaluationStatus::Pending);
}

/// P6: an all-at-once plan that loses a part keeps nothing: neither what fits nor the stops.
#[test]
fn an_all_at_once_plan_with_a_misfit_changes_nothing() {
    with_leader_changes(|driver| {
        let a = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 9));
        let running = driver.run("t", 7, a);
        let moving = driver.run("t", 6, a);
        let evaluation = driver.evaluate_job("t");
        let before = rows(&driver.state);
        let fits = driver.placement(GROUP, 0, a);
        let misfit = driver.placement(GROUP, 1, NodeId([9; 16]));
        let (fits_id, misfit_id) = (fits.id, misfit.id);
        let mut plan = driver.plan(evaluation).with(fits).with(misfit);
        plan = plan.stopping(running, None).updating(moving);
        plan.all_at_once = true;
        let changed = driver.changes.rows.len();
        let job_before = driver.job_row("t").clone();
        let verdict = driver.commit_plan(plan.clone());
        let expected = [
            (misfit_id, DropReason::NodeMissing),
            (moving, DropReason::AllAtOnce),
            (fits_id, DropReason::AllAtOnce),
        ];
        assert_eq!(verdict.dropped, expected);
        assert_eq!(verdict.refresh_index, driver.state.index);
        assert!(!verdict.outcome_taken);
        assert_eq!(driver.changes.rows.len(), changed + 1, "one row goes to the disk: the job's");
        let last_plan_index = driver.state.index;
        assert_eq!(*driver.job_row("t"), crate::Job { last_plan_index, ..job_before });
        let mut after = rows(&driver.state);
        after.retain(|key, row| before.get(key) != Some(row));
        assert_eq!(after.len(), 1);

        driver.node("b");
        plan.placements[1].node = crate::testing::node_id("b");
        let again = driver.commit_plan(plan.clone());
        assert_eq!(again.refused, Some(DropReason::StalePlan), "what was lost stays lost");
        plan.snapshot_index = driver.state.index;
        plan.placements.pop();
        let verdict = driver.commit_plan(plan);
        assert!(verdict.outcome_taken, "without the misfit it is taken: {verdict:?}");
        assert_eq!(driver.state.allocations.len(), 3);
    });
}

/// P8: an update of what runs on an ineligible or draining node is taken, and a stop on a node that
/// is down.
#[test]
fn allocations_may_be_updated_and_stopped_on_nodes_out_of_service() {
    let (mut driver, node, _) = cluster(2);
    let (kept, stopped) = (driver.run("t", 0, node), driver.run("t", 1, node));
    driver.register_job(job("t", JobKind::Service, 3));
    driver.drain("a", true);
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).updating(kept);
    let verdict = driver.commit_plan(plan);
    assert!(verdict.outcome_taken, "{verdict:?}");
    assert_eq!(driver.allocation(kept).job_version, 1);

    driver.liveness("a", Liveness::Down);
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).stopping(stopped, Some(ClientStatus::Lost));
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(stopped).client, ClientStatus::Lost);
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).updating(kept);
    assert_eq!(driver.commit_plan(plan).dropped, [(kept, DropReason::NodeUnschedulable)]);
}

/// P8: what is to be stopped or evicted does not count.
#[test]
fn room_of_what_is_being_stopped_may_be_given_again() {
    let (mut driver, node, ids) = full_node();
    let evaluation = driver.evaluate_job("t");
    let ninth = driver.placement(GROUP, 8, node);
    let plan = driver.plan(evaluation).with(ninth);
    dropped(&mut driver, plan, DropReason::NodeFull(Dimension::Cpu));
    let ninth = driver.placement(GROUP, 8, node);
    let plan = driver.plan(evaluation).with(ninth).stopping(ids[0], None);
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(ids[0]).client, ClientStatus::Running);

    driver.register_job(job("urgent", JobKind::Service, 1));
    let evaluation = driver.evaluate_job("urgent");
    let placement = driver.placement(GROUP, 0, node);
    let plan = driver.plan(evaluation).with(placement).stopping(ids[1], None);
    let verdict = driver.commit_plan(plan);
    assert_eq!(verdict.dropped.len(), 1, "a stop concerns the plan's own job only");
    assert!(driver.allocation(ids[1]).is_live());
}

/// A node that eight allocations of a job with priority 50 fill.
fn full_node() -> (Driver, NodeId, Vec<AllocationId>) {
    let (mut driver, node, _) = cluster(8);
    let ids = (0..8).map(|number| driver.run("t", number, node)).collect();
    (driver, node, ids)
}

#[test]
fn a_name_or_id_that_is_live_is_not_given_twice() {
    let (mut driver, node, _) = cluster(3);
    let other = driver.node("b");
    let id = driver.run("t", 0, node);
    let evaluation = driver.evaluate_job("t");
    let same_name = driver.placement(GROUP, 0, other);
    let plan = driver.plan(evaluation).with(same_name.clone());
    dropped(&mut driver, plan, DropReason::NameTaken);
    let mut same_id = driver.placement(GROUP, 1, other);
    same_id.id = id;
    let plan = driver.plan(evaluation).with(same_id);
    dropped(&mut driver, plan, DropReason::NameTaken);

    let twice = [driver.placement(GROUP, 2, node), driver.placement(GROUP, 2, other)];
    let second = twice[1].id;
    let mut plan = driver.plan(evaluation);
    plan.placements.extend(twice);
    assert_eq!(driver.commit_plan(plan).dropped, [(second, DropReason::NameTaken)]);

    let plan = driver.plan(evaluation).with(same_name).stopping(id, None);
    assert!(driver.commit_plan(plan).outcome_taken, "stopped in the same plan");
}

/// A job that runs once per node has its name once per node.
#[test]
fn a_per_node_name_is_unique_on_its_node() {
    let mut driver = Driver::default();
    let (a, b) = (driver.node("a"), driver.node("b"));
    driver.register_job(job("sys", JobKind::System, 1));
    driver.run("sys", 0, a);
    driver.run("sys", 0, b);
    let evaluation = driver.evaluate_job("sys");
    let again = driver.placement(GROUP, 0, a);
    let plan = driver.plan(evaluation).with(again);
    dropped(&mut driver, plan, DropReason::NameTaken);
}

#[test]
fn static_ports_have_one_holder() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    for name in ["one", "two"] {
        driver.register_job(job_with_ports(name, &[("http", 8080), ("admin", 0)]));
    }
    let place = |driver: &mut Driver, job: &str, ports: &[(&str, u16)]| {
        let evaluation = driver.evaluate_job(job);
        let mut placement = driver.placement(GROUP, 0, node);
        placement.ports = ports.iter().map(|(label, value)| port(label, *value)).collect();
        driver.plan(evaluation).with(placement)
    };
    let taken = DropReason::NodeFull(Dimension::Ports);
    for bad in [
        &[("http", 8080)][..],
        &[("http", 8081), ("admin", 20_000)],
        &[("admin", 20_000), ("http", 8080)],
        &[("http", 8080), ("admin", 8080)],
        &[("http", 8080), ("admin", 0)],
        &[("http", 8080), ("admin", 22)],
    ] {
        let plan = place(&mut driver, "one", bad);
        dropped(&mut driver, plan, taken);
    }
    let plan = place(&mut driver, "one", &[("http", 8080), ("admin", 20_000)]);
    let one = plan.placements[0].id;
    assert!(driver.commit_plan(plan).outcome_taken);
    driver.report(one, ClientStatus::Running);
    let plan = place(&mut driver, "two", &[("http", 8080), ("admin", 20_001)]);
    dropped(&mut driver, plan, taken);

    let evaluation = driver.evaluate_job("one");
    let plan = driver.plan(evaluation).stopping(one, None);
    assert!(driver.commit_plan(plan).outcome_taken);
    let plan = place(&mut driver, "two", &[("http", 8080), ("admin", 20_001)]);
    assert!(driver.commit_plan(plan).outcome_taken, "its successor may ask for a static port");
}

/// Somebody asks for the end of an instance after the plan was made that updates it.
#[test]
fn an_allocation_that_is_to_end_is_not_updated_in_place() {
    let (mut driver, node, _) = cluster(1);
    let id = driver.run("t", 0, node);
    driver.register_job(job("t", JobKind::Service, 2));
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).updating(id);
    let stop = driver.evaluation_id();
    driver.accept(stop_allocation(id, Replacement::Never, stop));
    assert_eq!(driver.commit_plan(plan).dropped, [(id, DropReason::AllocationGone)]);
}

#[test]
fn an_in_place_update_is_checked() {
    let (mut driver, node, _) = cluster(2);
    let (running, ended) = (driver.run("t", 0, node), driver.run("t", 1, node));
    driver.report(ended, ClientStatus::Failed);
    driver.register_job(job("other", JobKind::Service, 1));
    let foreign = driver.run("other", 0, node);
    let mut bigger = job("t", JobKind::Service, 2);
    bigger.groups[0].tasks[0].resources.cpu_mhz = 3500;
    driver.register_job(bigger);
    let evaluation = driver.evaluate_job("t");
    let update = |driver: &mut Driver, id, reason| {
        let plan = driver.plan(evaluation).updating(id);
        let before = driver.state.allocations.digest();
        assert_eq!(driver.commit_plan(plan).dropped, [(id, reason)]);
        assert_eq!(driver.state.allocations.digest(), before);
    };
    update(&mut driver, AllocationId([9; 16]), DropReason::AllocationGone);
    update(&mut driver, ended, DropReason::AllocationGone);
    update(&mut driver, foreign, DropReason::AllocationGone);
    driver.run("other", 1, node);
    update(&mut driver, running, DropReason::NodeFull(Dimension::Cpu));
    driver.report(foreign, ClientStatus::Complete);
    let plan = driver.plan(evaluation).updating(running);
    assert!(driver.commit_plan(plan).outcome_taken);
    let row = driver.allocation(running);
    assert_eq!((row.job_version, row.resources.cpu_mhz), (1, 3500));

    let mut renamed = job("t", JobKind::Service, 2);
    renamed.groups[0].name = "renamed".into();
    driver.register_job(renamed);
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).updating(running);
    assert_eq!(driver.commit_plan(plan).dropped, [(running, DropReason::JobChanged)]);
    let unknown_group = driver.placement(GROUP, 5, node);
    let plan = driver.plan(evaluation).with(unknown_group);
    dropped(&mut driver, plan, DropReason::JobChanged);
}

/// Only the agent reports how an allocation ended: a stop sets `lost` or nothing.
#[test]
fn a_stop_does_not_make_up_what_became_of_an_allocation() {
    let (mut driver, node, _) = cluster(1);
    let id = driver.run("t", 0, node);
    driver.report(id, ClientStatus::Complete);
    let before = driver.allocation(id).clone();
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).stopping(id, Some(ClientStatus::Lost));
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(id).client, ClientStatus::Complete);
    assert_eq!(driver.allocation(id).client_at, before.client_at);

    let id = driver.run("t", 0, node);
    let evaluation = driver.evaluate_job("t");
    let plan = driver.plan(evaluation).stopping(id, Some(ClientStatus::Complete));
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(id).client, ClientStatus::Running);
}

/// A plan made before a node went down stops an allocation there. No agent can report its end, so
/// the stop ends it; the node would stay busy for ever otherwise.
#[test]
fn a_stop_that_meets_a_dead_node_ends_the_allocation() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 2));
        let id = driver.run("t", 0, node);
        let evaluation = driver.evaluate_job("t");
        let in_flight = driver.plan(evaluation).stopping(id, None);
        driver.liveness("a", Liveness::Down);
        assert!(driver.commit_plan(in_flight).outcome_taken);
        let row = driver.allocation(id);
        assert_eq!((row.desired, row.client), (DesiredStatus::Stop, ClientStatus::Lost));
        assert!(!driver.state.is_busy(node));
        driver.at_seconds(61);
        let command = driver.reap("a", false);
        driver.accept(command);
    });
}

fn blocked(driver: &mut Driver, job: &str) -> Evaluation {
    let id = driver.evaluation_id();
    let row = driver.job_row(job);
    let (key, kind) = (row.key.clone(), row.kind);
    let mut made = Evaluation::new(id, key, kind, 50, Trigger::QueuedAllocs);
    made.status = EvaluationStatus::Blocked;
    made
}

fn failing(driver: &mut Driver, evaluation: EvaluationId) -> (Plan, EvaluationId) {
    let made = blocked(driver, "t");
    let id = made.id;
    let mut outcome = outcome(EvaluationStatus::Complete);
    outcome.failed_groups.insert(GROUP.into(), Metrics::default());
    outcome.queued.insert(GROUP.into(), 2);
    outcome.evaluations.push(made);
    (Plan { outcome: Some(outcome), ..driver.plan(evaluation) }, id)
}

/// A no-op plan with an outcome makes a blocked evaluation; the next one replaces it, and a full
/// success cancels it.
#[test]
fn a_blocked_evaluation_is_replaced_and_canceled() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        let first = driver.register_job(job("t", JobKind::Service, 2));
        let (plan, waiting) = failing(driver, first);
        assert!(driver.commit_plan(plan).outcome_taken);
        let row = driver.evaluation(first);
        assert_eq!((row.status, row.blocked), (EvaluationStatus::Complete, Some(waiting)));
        assert_eq!(driver.job_row("t").queued, BTreeMap::from([(GROUP.into(), 2)]));
        assert_eq!(driver.job_row("t").last_plan_index, 0, "no allocation was changed");
        let made = driver.evaluation(waiting);
        assert_eq!(made.create_index, driver.state.index);
        assert_eq!(driver.open_evaluations("t"), [waiting]);

        let second = driver.evaluate_job("t");
        let (plan, newer) = failing(driver, second);
        assert!(driver.commit_plan(plan).outcome_taken);
        assert_eq!(driver.evaluation(waiting).status, EvaluationStatus::Canceled);
        assert_eq!(driver.open_evaluations("t"), [newer]);

        let third = driver.evaluate_job("t");
        let placements = [driver.placement(GROUP, 0, node), driver.placement(GROUP, 1, node)];
        let mut plan = driver.plan(third);
        plan.placements.extend(placements);
        assert!(driver.commit_plan(plan).outcome_taken);
        assert_eq!(driver.evaluation(newer).status, EvaluationStatus::Canceled);
        assert!(driver.open_evaluations("t").is_empty());
        assert!(driver.job_row("t").queued.is_empty());
    });
}

/// Makes an outcome that blocks an evaluation for each of these nodes.
fn block_on(driver: &mut Driver, evaluation: EvaluationId, nodes: &[NodeId]) -> Vec<EvaluationId> {
    let mut outcome = outcome(EvaluationStatus::Complete);
    outcome.failed_groups.insert(GROUP.into(), Metrics::default());
    for node in nodes {
        let mut made = blocked(driver, "sys");
        made.node = Some(*node);
        outcome.evaluations.push(made);
    }
    let ids = outcome.evaluations.iter().map(|made| made.id).collect();
    let plan = Plan { outcome: Some(outcome), ..driver.plan(evaluation) };
    assert!(driver.commit_plan(plan).outcome_taken);
    ids
}

/// I21 (one blocked evaluation per job, or per job and node): blocked evaluations of an outcome
/// replace older ones of their nodes, and each other. The evaluation itself, blocked again,
/// replaces one that it created.
#[test]
fn blocked_evaluations_are_one_per_node() {
    with_leader_changes(|driver| {
        let [a, b, c] = ["a", "b", "c"].map(|name| driver.node(name));
        let first = driver.register_job(job("sys", JobKind::System, 1));
        let older = block_on(driver, first, &[a, b, c]);
        assert_eq!(driver.open_evaluations("sys"), older);
        let second = driver.evaluate_job("sys");
        let newer = block_on(driver, second, &[c, a, c]);
        assert_eq!(driver.open_evaluations("sys"), [older[1], newer[1], newer[2]]);
        for id in [older[0], older[2], newer[0]] {
            let row = driver.evaluation(id);
            assert_eq!(row.status, EvaluationStatus::Canceled);
            assert_eq!(&*row.status_description, "replaced by a newer blocked evaluation");
        }

        let mut again = outcome(EvaluationStatus::Blocked);
        again.failed_groups.insert(GROUP.into(), Metrics::default());
        let mut made = blocked(driver, "sys");
        made.node = Some(b);
        let made_id = made.id;
        again.evaluations.push(made);
        let plan = Plan { outcome: Some(again), ..driver.plan(older[1]) };
        assert!(driver.commit_plan(plan).outcome_taken);
        assert_eq!(driver.open_evaluations("sys"), [older[1], newer[1], newer[2]]);
        assert_eq!(driver.evaluation(made_id).status, EvaluationStatus::Canceled);
    });
}

/// NW-12: a woken blocked evaluation blocks again under its id, with the snapshot that it saw and
/// the new count of what is queued, and takes the place of any other.
#[test]
fn a_woken_evaluation_is_blocked_again() {
    let (mut driver, _, first) = cluster(2);
    let (plan, waiting) = failing(&mut driver, first);
    driver.commit_plan(plan);
    let mut again = outcome(EvaluationStatus::Blocked);
    again.failed_groups.insert(GROUP.into(), Metrics::default());
    again.queued.insert(GROUP.into(), 1);
    again.escaped = true;
    let plan = Plan { outcome: Some(again.clone()), ..driver.plan(waiting) };
    let snapshot_index = plan.snapshot_index;
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.job_row("t").queued, BTreeMap::from([(GROUP.into(), 1)]));
    let row = driver.evaluation(waiting);
    assert_eq!(row.snapshot_index, snapshot_index);
    assert_eq!((row.status, row.escaped), (EvaluationStatus::Blocked, true));
    assert_eq!(row.modify_index, driver.state.index);

    let other = driver.evaluate_job("t");
    let plan = Plan { outcome: Some(again), ..driver.plan(other) };
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.open_evaluations("t"), [other], "one blocked evaluation per job");
    assert_eq!(driver.evaluation(waiting).status, EvaluationStatus::Canceled);
}

#[test]
fn the_outcome_is_taken_only_when_nothing_was_dropped() {
    let (mut driver, node, evaluation) = cluster(2);
    let (mut plan, waiting) = failing(&mut driver, evaluation);
    plan.placements.push(driver.placement(GROUP, 0, node));
    plan.placements.push(driver.placement(GROUP, 0, node));
    let verdict = driver.commit_plan(plan);
    assert_eq!((verdict.dropped.len(), verdict.outcome_taken), (1, false));
    assert!(!driver.state.evaluations.contains(&waiting));
    assert!(driver.job_row("t").queued.is_empty());
    assert_eq!(driver.open_evaluations("t"), [evaluation]);
}

#[test]
fn a_failed_allocation_waits_for_its_follow_up() {
    let (mut driver, node, _) = cluster(1);
    let id = driver.run("t", 0, node);
    let made = driver.report(id, ClientStatus::Failed);
    let mut later = blocked(&mut driver, "t");
    later.status = EvaluationStatus::Pending;
    later.wait_until = driver.now + 30_000;
    let follow_up = later.id;
    let mut outcome = outcome(EvaluationStatus::Complete);
    outcome.evaluations.push(later);
    let mut plan = Plan { outcome: Some(outcome), ..driver.plan(made[0]) };
    plan.follow_ups.push(FollowUp { id, evaluation: follow_up });
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!(driver.allocation(id).follow_up, Some(follow_up));
    assert_eq!(driver.evaluation(made[0]).next, Some(follow_up));

    let mut placement = driver.placement(GROUP, 0, node);
    placement.previous = Some(id);
    let new = placement.id;
    let plan = driver.plan(follow_up).with(placement);
    assert!(driver.commit_plan(plan).outcome_taken);
    assert_eq!((driver.allocation(id).next, driver.allocation(id).follow_up), (Some(new), None));
}

/// I47 (a failure is not forgotten): the stop of an ended allocation frees nothing, so it is taken
/// only with its successor. The stop of a running one is taken: it may have made the room.
#[test]
fn an_ended_allocation_is_stopped_only_with_its_successor() {
    let (mut driver, node, _) = cluster(2);
    let (failed, running) = (driver.run("t", 0, node), driver.run("t", 1, node));
    driver.report(failed, ClientStatus::Failed);
    driver.register_job(job("other", JobKind::Service, 7));
    let others: Vec<_> = (0..7).map(|number| driver.run("other", number, node)).collect();
    let evaluation = driver.evaluate_job("t");
    let mut moved = driver.placement(GROUP, 1, node);
    moved.previous = Some(running);
    let mut retried = driver.placement(GROUP, 0, node);
    retried.previous = Some(failed);
    let retry = retried.clone();
    let full = [(retried.id, DropReason::NodeFull(Dimension::Cpu))];
    let plan = driver.plan(evaluation).with(moved).with(retried);
    let plan = plan.stopping(failed, None).stopping(running, None);
    let trial = driver.state.clone().try_plan(&plan, &|_, _, _| Ok(Vec::new())).unwrap();
    assert_eq!(trial.dropped, full);
    assert_eq!(trial.plan.stops.iter().map(|stop| stop.id).collect::<Vec<_>>(), [running]);
    assert_eq!(driver.commit_plan(plan).dropped, full);
    let row = driver.allocation(failed);
    assert_eq!((row.desired, row.next), (DesiredStatus::Run, None));
    assert_eq!(driver.allocation(running).desired, DesiredStatus::Stop);

    driver.report(others[0], ClientStatus::Complete);
    let plan = driver.plan(evaluation).with(retry.clone()).stopping(failed, None);
    let trial = driver.state.clone().try_plan(&plan, &|_, _, _| Ok(Vec::new())).unwrap();
    assert_eq!(trial.plan.stops, plan.stops);
    assert!(driver.commit_plan(plan).outcome_taken);
    let row = driver.allocation(failed);
    assert_eq!((row.desired, row.next), (DesiredStatus::Stop, Some(retry.id)));
}

#[test]
fn a_placement_replaces_allocations_of_its_own_job_only() {
    let (mut driver, node, evaluation) = cluster(1);
    driver.register_job(job("other", JobKind::Service, 1));
    let foreign = driver.run("other", 0, node);
    let evaluation_plan = driver.plan(evaluation);
    let mut placement = driver.placement(GROUP, 0, node);
    placement.previous = Some(foreign);
    assert!(driver.commit_plan(evaluation_plan.with(placement)).outcome_taken);
    assert_eq!(driver.allocation(foreign).next, None);
}

/// P3: a plan names its job and carries changes only; a job that is purged, or purged and
/// registered anew, while it is in flight makes it void.
#[test]
fn a_plan_in_flight_meets_a_purged_job() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 2));
        let running = driver.run("t", 0, node);
        let evaluation = driver.evaluate_job("t");
        let placement = driver.placement(GROUP, 1, node);
        let in_flight = driver.plan(evaluation).with(placement);
        let deregistered = driver.deregister_job("t", true).unwrap();
        let before = driver.state.allocations.digest();
        let verdict = driver.commit_plan(in_flight.clone());
        assert_eq!(verdict.refused, Some(DropReason::JobChanged));
        assert_eq!(driver.state.allocations.digest(), before);
        let update = Plan { placements: Vec::new(), ..in_flight.clone() }.updating(running);
        assert_eq!(driver.commit_plan(update).refused, Some(DropReason::JobChanged));

        driver.register_job(job("t", JobKind::Service, 2));
        let verdict = driver.commit_plan(in_flight);
        assert_eq!(verdict.refused, Some(DropReason::JobChanged), "another incarnation");
        driver.deregister_job("t", true);
        let plan = driver.plan(deregistered).stopping(running, None);
        assert!(driver.commit_plan(plan).outcome_taken, "its stops are taken");
        assert_eq!(driver.allocation(running).desired, DesiredStatus::Stop);
    });
}

/// I45: found by `sim control`: the version of the earlier job stayed for good.
#[test]
fn the_version_of_a_purged_job_goes_when_the_last_allocation_leaves_it_in_place() {
    with_leader_changes(|driver| {
        let node = driver.node("a");
        driver.register_job(job("t", JobKind::Service, 2));
        let running = [driver.run("t", 0, node), driver.run("t", 1, node)];
        driver.deregister_job("t", true);
        driver.register_job(job("t", JobKind::Service, 2));
        for (id, versions) in running.into_iter().zip([2, 1]) {
            let evaluation = driver.evaluate_job("t");
            let plan = driver.plan(evaluation).updating(id);
            assert!(driver.commit_plan(plan).refused.is_none());
            let job = driver.job_row("t");
            assert_eq!(driver.allocation(id).job_create_index, job.create_index);
            assert_eq!(driver.state.job_versions.len(), versions);
        }
    });
}

/// The applier's trial finds what apply will find, and leaves the state it was made from alone.
#[test]
fn a_trial_agrees_with_apply() {
    let (mut driver, node, evaluation) = cluster(9);
    let mut plan = driver.plan(evaluation);
    for number in 0..9 {
        plan.placements.push(driver.placement(GROUP, number, node));
    }
    let before = driver.state.digest();
    let mut overlay = driver.state.clone();
    let trial = overlay.try_plan(&plan, &|_, _, _| Ok(Vec::new())).unwrap();
    assert_eq!(driver.state.digest(), before);
    assert_eq!(trial.dropped.len(), 1);
    assert_eq!((trial.plan.placements.len(), trial.plan.outcome.is_none()), (8, true));
    let verdict = driver.commit_plan(plan.clone());
    assert_eq!(verdict.dropped, trial.dropped);
    assert_eq!(overlay.allocations.len(), driver.state.allocations.len());

    let (driver, _, _) = cluster(9);
    let all = Plan { all_at_once: true, ..plan };
    let mut overlay = driver.state.clone();
    let trial = overlay.try_plan(&all, &|_, _, _| Ok(Vec::new())).unwrap();
    assert_eq!((trial.plan.placements.len(), trial.dropped.len()), (0, 9));
    assert!(overlay.allocations.is_empty());
    assert!(ChangeSet::trial().is_trial);
}
