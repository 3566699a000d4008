//! Each invariant is tripped by a bad state of its own, and a good history trips none.
#![expect(clippy::unwrap_used, reason = "tests")]

use fsm::{
    ClientStatus, DesiredStatus, JobKind, Trigger,
    allocation::Replacement,
    command::Command,
    job::{Constraint, UpdateStrategy},
    node::Readiness,
    state::Head,
    testing::{self, Driver},
    upkeep::Tick,
};

use super::*;

mod evictions;
mod nodes;

/// A node that is ready and has the driver of the tests' jobs.
fn ready(driver: &mut Driver, name: &str) -> fsm::NodeId {
    let mut description = testing::description(name);
    let usable =
        fsm::node::Driver { detected: true, healthy: true, ..fsm::node::Driver::default() };
    description.drivers.insert("mock".into(), usable);
    driver.register_node_as(name, 1, description);
    driver.readiness(name, Readiness::Ok);
    driver.sync(name);
    testing::node_id(name)
}

/// A cluster with two nodes and a job of two that run.
fn running() -> (Driver, [AllocationId; 2]) {
    let mut driver = Driver::default();
    let [one, two] = ["n1", "n2"].map(|name| ready(&mut driver, name));
    driver.register_job(testing::job("web", JobKind::Service, 2));
    let ids = [driver.run("web", 0, one), driver.run("web", 1, two)];
    (driver, ids)
}

fn changed(driver: &Driver, id: AllocationId, change: impl FnOnce(&mut Allocation)) -> State {
    let mut state = driver.state.clone();
    let mut row = (**state.allocations().get(&id).unwrap()).clone();
    change(&mut row);
    testing::put(&mut state, &row);
    state
}

/// A later state of the same log.
fn later(mut state: State) -> State {
    state.advance(state.index() + 1, state.term());
    state
}

fn numbers(broken: &[Broken]) -> BTreeSet<&'static str> {
    broken.iter().map(|one| one.0).collect()
}

fn assert_trips(number: &'static str, broken: Vec<Broken>) {
    assert!(numbers(&broken).contains(number), "{number} was not found: {broken:?}");
}

#[test]
fn a_good_history_trips_nothing() {
    let (mut driver, _) = running();
    assert_eq!(check_state(&driver.state), []);
    assert_eq!(check_round_trip(&driver.state), []);
    let before = driver.state.clone();
    driver.register_job(testing::job("web", JobKind::Service, 2));
    driver.accept(Command::from(Tick));
    assert_eq!(check_step(&before, &driver.state), []);
}

#[test]
fn i32_an_over_committed_node_is_found() {
    let (driver, [id, _]) = running();
    let bad = changed(&driver, id, |row| row.resources.cpu_mhz = 4_001);
    assert_trips("I32", check_state(&bad));
}

#[test]
fn i33_a_port_given_twice_or_reserved_is_found() {
    let (driver, [one, two]) = running();
    let node = driver.allocation(one).node;
    let mut bad = changed(&driver, one, |row| row.ports = vec![testing::port("http", 8_080)]);
    let mut other = driver.allocation(two).clone();
    (other.node, other.ports) = (node, vec![testing::port("http", 8_080)]);
    testing::put(&mut bad, &other);
    assert_trips("I33", check_state(&bad));
    let reserved = changed(&driver, one, |row| row.ports = vec![testing::port("ssh", 22)]);
    assert_trips("I33", check_state(&reserved));
}

#[test]
fn i38_a_name_that_is_live_twice_and_too_many_instances_are_found() {
    let (mut driver, [one, _]) = running();
    let twice = changed(&driver, one, |row| row.name_index = 1);
    assert_trips("I38", check_state(&twice));
    let mut more = driver.allocation(one).clone();
    more.id = AllocationId(driver.id());
    more.name_index = 7;
    testing::put(&mut driver.state, &more);
    let broken = check_state(&driver.state);
    assert!(broken.iter().any(|one| one.1.contains("3 of")), "{broken:?}");
}

#[test]
fn i42_two_successors_and_a_circle_are_found() {
    let (driver, [one, two]) = running();
    let mut circle = changed(&driver, one, |row| {
        (row.previous, row.next) = (Some(two), Some(two));
    });
    let mut other = driver.allocation(two).clone();
    (other.previous, other.next) = (Some(one), Some(one));
    testing::put(&mut circle, &other);
    assert_trips("I42", check_state(&circle));
    let one_sided = changed(&driver, one, |row| row.previous = Some(two));
    assert_trips("I42", check_state(&one_sided));
}

#[test]
fn i44_a_row_newer_than_the_log_is_found() {
    let (driver, [one, _]) = running();
    let bad = changed(&driver, one, |row| row.modify_index = 1_000_000);
    assert_trips("I44", check_state(&bad));
}

#[test]
fn i45_a_missing_version_a_missing_node_and_a_wrong_summary_are_found() {
    let (driver, [one, _]) = running();
    assert_trips("I45", check_state(&changed(&driver, one, |row| row.job_version = 9)));
    let gone = testing::node_id("gone");
    assert_trips("I45", check_state(&changed(&driver, one, |row| row.node = gone)));
    // Put beside the indexes, so that the summary still counts it as running.
    let bad = changed(&driver, one, |row| row.client = ClientStatus::Failed);
    assert_trips("I45", check_state(&bad));
    assert_trips("I45", check_round_trip(&bad));
}

#[test]
fn i21_two_blocked_evaluations_are_found() {
    let (mut driver, _) = running();
    for _ in 0..2 {
        let id = driver.evaluation_id();
        let mut row = fsm::Evaluation::new(
            id,
            testing::job_key("web"),
            JobKind::Service,
            50,
            Trigger::JobRegister,
        );
        row.status = EvaluationStatus::Blocked;
        testing::put(&mut driver.state, &row);
    }
    assert_trips("I21", check_state(&driver.state));
}

#[test]
fn i37_instances_that_share_a_node_although_they_must_not_are_found() {
    let mut driver = Driver::default();
    driver.register_node("n1");
    driver.readiness("n1", Readiness::Ok);
    driver.sync("n1");
    let mut spec = testing::job("web", JobKind::Service, 2);
    let text = |text: &str| text.into();
    spec.constraints =
        vec![Constraint { left: text(""), operand: text("distinct_hosts"), right: text("true") }];
    driver.register_job(spec);
    let node = ready(&mut driver, "n1");
    driver.run("web", 0, node);
    driver.run("web", 1, node);
    assert_trips("I37", check_state(&driver.state));
}

#[test]
fn i7_a_state_that_goes_back_is_found() {
    let (mut driver, _) = running();
    let before = driver.state.clone();
    driver.accept(Command::from(Tick));
    assert_trips("I7", check_step(&driver.state, &before));
    assert_trips("I7", check_step(&before, &before));
    let mut younger = later(before.clone());
    younger.load_done(Head { at: 0, ..younger.head() });
    assert_trips("I7", check_step(&before, &younger));
}

#[test]
fn i24_and_i18_an_evaluation_that_lives_again_or_vanishes_is_found() {
    let (mut driver, _) = running();
    let open = driver.evaluate_job("web");
    let before = driver.state.clone();
    let mut gone = later(before.clone());
    gone = testing::without::<fsm::Evaluation>(&gone, &open);
    assert_trips("I18", check_step(&before, &gone));
    let done = before.evaluations().iter().find(|row| row.status.is_terminal()).unwrap();
    let mut again = later(before.clone());
    let mut row = (**done).clone();
    row.status = EvaluationStatus::Pending;
    testing::put(&mut again, &row);
    assert_trips("I24", check_step(&before, &again));
    assert_trips("I56", check_quiet(&again, &BTreeSet::new()));
}

#[test]
fn i41_an_allocation_that_lives_again_is_found() {
    let (mut driver, [one, _]) = running();
    driver.report(one, ClientStatus::Failed);
    let failed = driver.state.clone();
    let again = later(changed(&driver, one, |row| row.client = ClientStatus::Running));
    assert_trips("I41", check_step(&failed, &again));
    let stopped = changed(&driver, one, |row| row.desired = DesiredStatus::Stop);
    assert_trips("I41", check_step(&stopped, &later(driver.state.clone())));
}

#[test]
fn i36_i40_and_i31_a_placement_that_must_not_be_is_found() {
    let (driver, [one, _]) = running();
    let fresh = |node, version| {
        let mut new = later(driver.state.clone());
        let mut row = driver.allocation(one).clone();
        row.id = AllocationId([9; 16]);
        (row.node, row.job_version) = (node, version);
        (row.create_index, row.modify_index) = (new.index(), new.index());
        testing::put(&mut new, &row);
        new
    };
    let node = driver.allocation(one).node;
    let gone = fresh(testing::node_id("gone"), 0);
    assert_trips("I36", check_step(&driver.state, &gone));
    assert_trips("I31", check_step(&driver.state, &fresh(node, 5)));
    let mut stopped = driver.state.clone();
    let mut job = driver.job_row("web").clone();
    job.stop = true;
    testing::put(&mut stopped, &job);
    assert_trips("I40", check_step(&stopped, &fresh(node, 0)));
}

#[test]
fn i43_a_version_that_falls_or_jumps_is_found() {
    let (driver, _) = running();
    let with_version = |version| {
        let mut state = driver.state.clone();
        let mut job = driver.job_row("web").clone();
        job.version = version;
        testing::put(&mut state, &job);
        state
    };
    assert_trips("I43", check_step(&with_version(3), &later(with_version(2))));
    assert_trips("I43", check_step(&with_version(3), &later(with_version(5))));
    let mut next = later(with_version(4));
    let mut row = (**driver.state.job_versions().iter().next().unwrap()).clone();
    row.version = 4;
    std::sync::Arc::make_mut(&mut row.spec).priority = 51;
    testing::put(&mut next, &row);
    assert_eq!(check_step(&with_version(3), &next), []);
}

#[test]
fn i39_a_job_that_is_not_as_it_should_be_is_found() {
    let (driver, [one, _]) = running();
    let lost = changed(&driver, one, |row| row.client = ClientStatus::Lost);
    assert_trips("I39", check_quiet(&lost, &BTreeSet::new()));
    let mut stopped = driver.state.clone();
    let mut job = driver.job_row("web").clone();
    job.stop = true;
    testing::put(&mut stopped, &job);
    assert_trips("I40", check_quiet(&stopped, &BTreeSet::new()));
}

/// A later state of a log in which an allocation was placed by the last entry, as `change` says.
fn placing(driver: &Driver, like: AllocationId, change: impl FnOnce(&mut Allocation)) -> State {
    let mut state = later(driver.state.clone());
    let mut row = driver.allocation(like).clone();
    row.id = AllocationId([9; 16]);
    (row.previous, row.next, row.client) = (None, None, ClientStatus::Pending);
    (row.create_index, row.modify_index) = (state.index(), state.index());
    change(&mut row);
    // Its pass saw everything before.
    let mut evaluation = driver.evaluation(row.evaluation).clone();
    evaluation.snapshot_index = driver.state.index();
    evaluation.modify_index = state.index();
    testing::put(&mut state, &evaluation);
    testing::put(&mut state, &row);
    state
}

fn numbers_of_step(old: &State, new: &State) -> BTreeSet<&'static str> {
    numbers(&check_step(old, new))
}

#[test]
fn i34_more_allocations_than_a_node_may_have_are_found() {
    let (driver, [one, _]) = running();
    let mut state = driver.state.clone();
    let mut node = (**state.nodes().get(&driver.allocation(one).node).unwrap()).clone();
    std::sync::Arc::make_mut(&mut node.description).resources.allocations_max = 1;
    let id = node.id;
    testing::put(&mut state, &node);
    let mut other = driver.allocation(one).clone();
    (other.id, other.node, other.name_index) = (AllocationId([8; 16]), id, 5);
    testing::put(&mut state, &other);
    assert_trips("I34", check_state(&state));
}

#[test]
fn i33_a_dynamic_port_of_one_that_still_runs_is_found() {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    let evaluation = driver.register_job(testing::job_with_ports("web", &[("http", 0)]));
    let port = testing::port("http", 20_007);
    let mut placement = driver.placement("web", 0, node);
    placement.ports = vec![port.clone()];
    let one = placement.id;
    let plan = driver.plan(evaluation).with(placement);
    assert!(driver.commit_plan(plan).outcome_taken);
    let mut state = driver.state.clone();
    let mut stopping = driver.allocation(one).clone();
    (stopping.desired, stopping.ports) = (DesiredStatus::Stop, vec![port.clone()]);
    let mut successor = driver.allocation(one).clone();
    (successor.id, successor.ports) = (AllocationId([9; 16]), vec![port]);
    successor.create_index += 1;
    testing::put(&mut state, &stopping);
    assert!(!numbers(&check_state(&state)).contains("I33"));
    testing::put(&mut state, &successor);
    assert_trips("I33", check_state(&state));
}

#[test]
fn i45_what_is_left_behind_and_what_a_job_is_not_are_found() {
    let (driver, _) = running();
    let job = driver.job_row("web");
    let mut left = driver.state.clone();
    let mut version = (**left.job_versions().iter().next().unwrap()).clone();
    version.create_index = 7_777;
    testing::put(&mut left, &version);
    assert_trips("I45", check_state(&left));
    for change in [
        (|row: &mut fsm::Job| row.priority = 1) as fn(&mut fsm::Job),
        |row| row.version = 9,
        |row| row.status = JobStatus::Dead,
        |row| row.kind = JobKind::System,
    ] {
        let mut row = job.clone();
        change(&mut row);
        let mut bad = driver.state.clone();
        testing::put(&mut bad, &row);
        assert_trips("I45", check_state(&bad));
    }
    let mut gone = driver.state.clone();
    let used = gone.allocations().iter().next().unwrap().evaluation;
    gone = testing::without::<fsm::Evaluation>(&gone, &used);
    assert_trips("I45", check_state(&gone));
}

#[test]
fn i36_and_i37_a_draining_node_in_service_and_a_wrong_class_are_found() {
    let (mut driver, _) = running();
    driver.drain("n1", true);
    let node = driver.node_row("n1").clone();
    let changed = |change: fn(&mut fsm::Node)| {
        let mut state = driver.state.clone();
        let mut row = node.clone();
        change(&mut row);
        testing::put(&mut state, &row);
        state
    };
    assert_trips("I36", check_state(&changed(|row| row.eligibility.ineligible = false)));
    assert_trips("I37", check_state(&changed(|row| row.class = fsm::ClassId([1; 16]))));
}

#[test]
fn i18_and_i39_an_evaluation_without_what_it_made_is_found() {
    let (mut driver, _) = running();
    for id in driver.open_evaluations("web") {
        let plan = driver.plan(id);
        assert!(driver.commit_plan(plan).outcome_taken);
    }
    let id = driver.evaluate_job("web");
    let before = driver.state.clone();
    let changed = |change: &dyn Fn(&mut fsm::Evaluation)| {
        let mut state = later(before.clone());
        let mut row = driver.evaluation(id).clone();
        row.modify_index = state.index();
        change(&mut row);
        testing::put(&mut state, &row);
        state
    };
    let next = fsm::EvaluationId([9; 16]);
    assert!(numbers_of_step(&before, &changed(&|row| row.next = Some(next))).contains("I18"));
    let unplaced = changed(&|row| {
        row.status = EvaluationStatus::Complete;
        row.failed_groups.insert("web".into(), fsm::Metrics::default());
    });
    assert!(numbers_of_step(&before, &unplaced).contains("I39"));
    let unnoted = changed(&|row| (row.modify_index, row.priority) = (row.modify_index - 1, 7));
    assert!(numbers_of_step(&before, &unnoted).contains("I44"));
}

#[test]
fn i47_an_early_a_forgetful_and_a_needless_replacement_are_found() {
    let policy = fsm::job::ReschedulePolicy {
        attempts: 1,
        interval_ms: 24 * 60 * 60_000,
        delay_ms: 30_000,
        delay_function: fsm::job::DelayFunction::Constant,
        delay_ms_max: 0,
        unlimited: false,
    };
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    let mut spec = testing::job("web", JobKind::Service, 2);
    spec.groups[0].reschedule = Some(policy);
    driver.register_job(spec);
    let failed = driver.run("web", 0, node);
    driver.report(failed, ClientStatus::Failed);
    let event = fsm::allocation::RescheduleEvent {
        at: driver.now,
        previous: failed,
        node,
        delay_ms: 30_000,
    };
    let replacing = |driver: &Driver, late_ms: u64, remembers: bool| {
        let mut state = placing(driver, failed, |row| {
            row.previous = Some(failed);
            row.reschedules = if remembers { vec![event] } else { Vec::new() };
        });
        state.load_done(Head { at: state.at() + late_ms, ..state.head() });
        check_step(&driver.state, &state).into_iter().filter(|one| one.0 == "I47").count()
    };
    assert_eq!(replacing(&driver, 30_000, true), 0);
    assert_eq!(replacing(&driver, 20_000, true), 1, "too early");
    assert_eq!(replacing(&driver, 30_000, false), 1, "forgetful");
    // The failed one was a replacement itself: there is no attempt left.
    let mut chain = driver.state.clone();
    let mut first = driver.allocation(failed).clone();
    (first.id, first.next) = (AllocationId([7; 16]), Some(failed));
    testing::put(&mut chain, &first);
    let mut second = driver.allocation(failed).clone();
    second.previous = Some(AllocationId([7; 16]));
    second.reschedules =
        vec![fsm::allocation::RescheduleEvent { previous: AllocationId([7; 16]), ..event }];
    testing::put(&mut chain, &second);
    driver.state = chain;
    assert_eq!(replacing(&driver, 30_000, true), 1, "one attempt too many");
}

#[test]
fn i47_a_finished_batch_instance_that_runs_again_is_found() {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    driver.register_job(testing::job("sum", JobKind::Batch, 1));
    let done = driver.run("sum", 0, node);
    driver.report(done, ClientStatus::Complete);
    let again = placing(&driver, done, |_| ());
    assert!(numbers_of_step(&driver.state, &again).contains("I47"));
}

#[test]
fn i47_one_that_failed_while_it_was_to_end_and_runs_again_is_found() {
    for replacement in [Replacement::ByKind, Replacement::Always] {
        let mut driver = Driver::default();
        let node = ready(&mut driver, "n1");
        driver.register_job(testing::job("sum", JobKind::Batch, 1));
        let id = driver.run("sum", 0, node);
        let evaluation = driver.evaluation_id();
        driver.accept(testing::stop_allocation(id, replacement, evaluation));
        driver.report(id, ClientStatus::Failed);
        let again = placing(&driver, id, |_| ());
        assert_eq!(
            numbers_of_step(&driver.state, &again).contains("I47"),
            replacement == Replacement::ByKind
        );
    }
}

#[test]
fn i47_an_instance_in_a_place_that_is_to_be_empty_is_found() {
    for replacement in [Replacement::ByKind, Replacement::Never] {
        let mut driver = Driver::default();
        let node = ready(&mut driver, "n1");
        driver.register_job(testing::job("web", JobKind::Service, 1));
        let id = driver.run("web", 0, node);
        let evaluation = driver.evaluation_id();
        driver.accept(testing::stop_allocation(id, replacement, evaluation));
        let plan = driver.plan(evaluation).stopping(id, None);
        assert!(driver.commit_plan(plan).outcome_taken);
        driver.report(id, ClientStatus::Complete);
        let again = placing(&driver, id, |_| ());
        assert_eq!(
            numbers_of_step(&driver.state, &again).contains("I47"),
            replacement == Replacement::Never
        );
    }
}

#[test]
fn i46_an_update_of_too_many_and_one_in_place_of_other_work_are_found() {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    let spec = |user: &str| {
        let mut spec = testing::job("web", JobKind::Service, 2);
        spec.groups[0].tasks[0].user = user.into();
        spec.groups[0].update = Some(fsm::job::UpdateStrategy {
            stagger_ms: 0,
            max_parallel: 1,
            healthy_ms_min: 0,
            healthy_deadline_ms: 0,
            progress_deadline_ms: 0,
            health_check: fsm::job::HealthCheck::TaskStates,
            canaries: 0,
            auto_promote: false,
            auto_revert: false,
        });
        spec
    };
    driver.register_job(spec("a"));
    let ids = [driver.run("web", 0, node), driver.run("web", 1, node)];
    driver.register_job(spec("b"));
    let mut new = later(driver.state.clone());
    for (number, id) in ids.into_iter().enumerate() {
        let mut row = driver.allocation(id).clone();
        let mut evaluation = driver.evaluation(row.evaluation).clone();
        evaluation.snapshot_index = driver.state.index();
        testing::put(&mut new, &evaluation);
        row.next = Some(AllocationId([9 + u8::try_from(number).unwrap(); 16]));
        row.desired = DesiredStatus::Stop;
        testing::put(&mut new, &row);
        let mut row = driver.allocation(id).clone();
        row.id = AllocationId([9 + u8::try_from(number).unwrap(); 16]);
        (row.previous, row.job_version) = (Some(id), 1);
        row.create_index = new.index();
        testing::put(&mut new, &row);
    }
    assert!(numbers_of_step(&driver.state, &new).contains("I46"));
    let mut moved = later(driver.state.clone());
    let mut row = driver.allocation(ids[0]).clone();
    row.job_version = 1;
    testing::put(&mut moved, &row);
    assert!(numbers_of_step(&driver.state, &moved).contains("I46"));
    assert_trips("I46", check_quiet(&driver.state, &BTreeSet::new()));
}

#[test]
fn i46_a_deployment_that_goes_on_over_what_has_failed_is_found() {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    let evaluation = driver.register_job(testing::rolling_job("web", 2, |_| ()));
    let id = fsm::DeploymentId([1; 16]);
    let goal = fsm::deployment::DeploymentGoal { canaries: 0, total: 2 };
    let mut plan = driver.plan(evaluation);
    let goals = [(testing::GROUP.into(), goal)].into();
    plan.deployment = Some(fsm::deployment::NewDeployment { id, goals });
    assert!(driver.commit_plan(plan).outcome_taken);
    let one = driver.run("web", 0, node);
    driver.report_health(one, ClientStatus::Running, true);
    let failed = later(changed(&driver, one, |row| row.client = ClientStatus::Failed));
    assert!(numbers_of_step(&driver.state, &failed).contains("I46"));
    let before = driver.state.clone();
    driver.report(one, ClientStatus::Failed);
    assert!(!numbers_of_step(&before, &driver.state).contains("I46"), "it has failed");
}

/// A version that is stable without a healthy instance, and one that nobody can go back to any more.
#[test]
fn i46_success_without_health_and_a_lost_way_back_are_found() {
    let mut driver = Driver::default();
    let evaluation = driver.register_job(testing::rolling_job("web", 1, |_| ()));
    let id = fsm::DeploymentId([1; 16]);
    let goal = fsm::deployment::DeploymentGoal { canaries: 0, total: 1 };
    let mut plan = driver.plan(evaluation);
    let goals = [(testing::GROUP.into(), goal)].into();
    plan.deployment = Some(fsm::deployment::NewDeployment { id, goals });
    assert!(driver.commit_plan(plan).outcome_taken);
    let mut row = (**driver.state.deployments().get(&id).unwrap()).clone();
    row.status = fsm::DeploymentStatus::Successful;
    let mut successful = later(driver.state.clone());
    testing::put(&mut successful, &row);
    assert!(numbers_of_step(&driver.state, &successful).contains("I46"));

    let version = (**driver.state.job_versions().iter().next().unwrap()).clone();
    let mut stable = driver.state.clone();
    testing::put(&mut stable, &fsm::job::JobVersion { stable: true, ..version.clone() });
    let mut lost = later(stable.clone());
    testing::put(&mut lost, &version);
    assert!(numbers_of_step(&stable, &lost).contains("I46"));
}

#[test]
fn i43_a_version_that_moves_without_another_spec_is_found() {
    let (driver, _) = running();
    let mut new = later(driver.state.clone());
    let mut version = (**new.job_versions().iter().next().unwrap()).clone();
    version.version = 1;
    testing::put(&mut new, &version);
    let mut job = driver.job_row("web").clone();
    job.version = 1;
    testing::put(&mut new, &job);
    assert!(numbers_of_step(&driver.state, &new).contains("I43"));
}

#[test]
fn i43_a_job_that_starts_again_as_the_version_that_was_stopped_is_found() {
    let (driver, _) = running();
    let mut stopped = driver.state.clone();
    let mut job = driver.job_row("web").clone();
    job.stop = true;
    testing::put(&mut stopped, &job);
    assert!(numbers_of_step(&stopped, &later(driver.state.clone())).contains("I43"));
}

#[test]
fn i25_room_that_nobody_wrote_down_is_found() {
    let (driver, [one, _]) = running();
    let ended = later(changed(&driver, one, |row| row.client = ClientStatus::Failed));
    assert!(numbers_of_step(&driver.state, &ended).contains("I25"));
}

#[test]
fn i39_room_that_is_not_used_and_constraints_are_seen() {
    let mut driver = Driver::default();
    ready(&mut driver, "n1");
    let mut spec = testing::job("web", JobKind::Service, 1);
    driver.register_job(spec.clone());
    let missing = |state: &State| {
        let broken = check_quiet(state, &BTreeSet::new());
        broken.iter().filter(|one| one.1.contains("has room")).count()
    };
    assert_eq!(missing(&driver.state), 1);
    spec.constraints.push(Constraint {
        left: "${meta.rack}".into(),
        operand: "=".into(),
        right: "r1".into(),
    });
    driver.register_job(spec);
    assert_eq!(missing(&driver.state), 0, "no node suits");
}

#[test]
fn i37_an_instance_on_a_node_that_does_not_suit_is_found() {
    let (driver, [one, _]) = running();
    assert_eq!(check_suits(&driver.state), []);
    let mut node = (**driver.state.nodes().get(&driver.allocation(one).node).unwrap()).clone();
    let changes: [fn(&mut fsm::node::NodeDescription); 2] = [
        |description| description.pool = "other".into(),
        |description| description.drivers.clear(),
    ];
    for change in changes {
        change(std::sync::Arc::make_mut(&mut node.description));
        let mut bad = driver.state.clone();
        testing::put(&mut bad, &node);
        assert_trips("I37", check_suits(&bad));
    }
}

#[test]
fn i37_too_many_instances_in_a_datacenter_are_found() {
    let mut driver = Driver::default();
    let nodes = ["n1", "n2"].map(|name| ready(&mut driver, name));
    let mut spec = testing::job("web", JobKind::Service, 2);
    spec.constraints = vec![Constraint {
        left: "${node.datacenter}".into(),
        operand: "distinct_property".into(),
        right: "1".into(),
    }];
    driver.register_job(spec);
    driver.run("web", 0, nodes[0]);
    assert_eq!(check_state(&driver.state), []);
    driver.run("web", 1, nodes[1]);
    assert_trips("I37", check_state(&driver.state));
}

#[test]
fn i39_an_evaluation_that_waits_for_a_node_that_is_gone_is_found() {
    let (mut driver, _) = running();
    let (id, key) = (driver.evaluation_id(), testing::job_key("web"));
    let mut row = fsm::Evaluation::new(id, key, JobKind::System, 50, Trigger::QueuedAllocs);
    row.status = EvaluationStatus::Blocked;
    row.node = Some(testing::node_id("n1"));
    let waits = |state: &State| {
        let broken = check_quiet(state, &BTreeSet::new());
        broken.iter().any(|one| one.1.contains("that is gone"))
    };
    testing::put(&mut driver.state, &row);
    assert!(!waits(&driver.state));
    row.node = Some(testing::node_id("gone"));
    testing::put(&mut driver.state, &row);
    assert!(waits(&driver.state));
}

/// Nobody looks at any job.
fn idle(mut state: State) -> State {
    let rows: Vec<_> = state.evaluations().iter().cloned().collect();
    for row in rows {
        let mut row = (*row).clone();
        row.status = EvaluationStatus::Complete;
        testing::put(&mut state, &row);
    }
    state
}

/// A blocked evaluation of a job joins, made on the state as it is.
fn blocked(state: &State, job: &str, change: impl FnOnce(&mut fsm::Evaluation)) -> State {
    let mut state = state.clone();
    let job = state.jobs().get(&testing::job_key(job)).unwrap().clone();
    let id = fsm::EvaluationId([9; 16]);
    let trigger = Trigger::QueuedAllocs;
    let mut row = fsm::Evaluation::new(id, job.key.clone(), job.kind, job.priority, trigger);
    row.status = EvaluationStatus::Blocked;
    row.snapshot_index = state.index();
    change(&mut row);
    testing::put(&mut state, &row);
    state
}

fn waits(state: &State) -> Vec<Broken> {
    check_waits(state, &BTreeSet::new())
}

#[test]
fn missing_instances_of_a_job_are_waited_for() {
    let (driver, ids) = running();
    assert_eq!(waits(&idle(driver.state.clone())), []);
    let lost = changed(&driver, ids[0], |row| row.client = ClientStatus::Lost);
    assert_eq!(waits(&lost), [], "its registration is to be looked at");
    let mut lost = idle(lost);
    assert_trips("I39", waits(&lost));
    // Something waits for room, and this is not what it lacks.
    assert_trips("I39", waits(&blocked(&lost, "web", |_| ())));
    let is_tried_again = blocked(&lost, "web", |row| row.trigger = Trigger::MaxPlans);
    assert_eq!(waits(&is_tried_again), []);
    let job = lost.jobs().get(&testing::job_key("web")).unwrap().clone();
    let queued = [(testing::GROUP.into(), 1)].into();
    testing::put(&mut lost, &fsm::Job { queued, ..(*job).clone() });
    assert_eq!(waits(&blocked(&lost, "web", |_| ())), []);
    let class = lost.nodes().iter().next().unwrap().class;
    let deaf = blocked(&lost, "web", |row| {
        row.class_eligibility.insert(class, false);
    });
    assert_trips("I39", waits(&deaf));
    let old = blocked(&lost, "web", |row| row.snapshot_index = job.job_modify_index - 1);
    assert_trips("I39", waits(&old));
}

#[test]
fn an_update_that_nobody_goes_on_with_is_found() {
    let (mut driver, _) = running();
    let mut spec = testing::job("web", JobKind::Service, 2);
    spec.groups[0].tasks[0].user = "other".into();
    driver.register_job(spec);
    assert_eq!(waits(&driver.state), [], "its registration is to be looked at");
    assert_trips("I46", waits(&idle(driver.state.clone())));
}

#[test]
fn an_update_whose_instances_failed_for_good_is_held_up() {
    let held_up = |max_parallel| {
        let (mut driver, ids) = running();
        let mut spec = testing::job("web", JobKind::Service, 2);
        spec.groups[0].tasks[0].user = "other".into();
        spec.groups[0].reschedule = None;
        spec.groups[0].update = Some(UpdateStrategy {
            stagger_ms: 1_000,
            max_parallel,
            healthy_ms_min: 1_000,
            healthy_deadline_ms: 60_000,
            progress_deadline_ms: 120_000,
            health_check: fsm::job::HealthCheck::TaskStates,
            canaries: 0,
            auto_promote: false,
            auto_revert: false,
        });
        driver.register_job(spec);
        let mut state = idle(driver.state.clone());
        let mut failed = driver.allocation(ids[0]).clone();
        (failed.job_version, failed.client) = (1, ClientStatus::Failed);
        testing::put(&mut state, &failed);
        waits(&state)
    };
    assert_eq!(held_up(1), []);
    assert_trips("I46", held_up(2));
}

/// While canaries wait, what is missing of the older version comes back all the same.
#[test]
fn missing_instances_of_a_held_group_are_waited_for() {
    let mut driver = Driver::default();
    let node = ready(&mut driver, "n1");
    driver.register_job(testing::rolling_job("web", 2, |_| ()));
    let ids = [driver.run("web", 0, node), driver.run("web", 1, node)];
    let mut spec = testing::rolling_job("web", 2, |update| update.canaries = 1);
    spec.groups[0].tasks[0].user = "other".into();
    let evaluation = driver.register_job(spec);
    let goal = fsm::deployment::DeploymentGoal { canaries: 1, total: 2 };
    let mut plan = driver.plan(evaluation);
    let goals = [(testing::GROUP.into(), goal)].into();
    plan.deployment =
        Some(fsm::deployment::NewDeployment { id: fsm::DeploymentId([1; 16]), goals });
    assert!(driver.commit_plan(plan).outcome_taken);
    let held = idle(driver.state.clone());
    assert_eq!((waits(&held), check_quiet(&held, &BTreeSet::new())), (vec![], vec![]));
    let lost = idle(changed(&driver, ids[0], |row| row.client = ClientStatus::Lost));
    assert_trips("I39", waits(&lost));
    assert_trips("I39", check_quiet(&lost, &BTreeSet::new()));
    let blocked = blocked(&lost, "web", |_| ());
    assert_eq!((waits(&blocked), check_quiet(&blocked, &BTreeSet::new())), (vec![], vec![]));
}

#[test]
fn a_node_without_its_instance_is_waited_for() {
    let mut driver = Driver::default();
    let [one, two] = ["n1", "n2"].map(|name| ready(&mut driver, name));
    driver.register_job(testing::job("shipper", JobKind::System, 1));
    driver.run("shipper", 0, one);
    assert_eq!(waits(&driver.state), [], "its registration is to be looked at");
    let state = idle(driver.state.clone());
    assert_trips("I39", waits(&state));
    assert_eq!(check_waits(&state, &BTreeSet::from([two])), []);
    assert_trips("I39", waits(&blocked(&state, "shipper", |row| row.node = Some(one))));
    assert_eq!(waits(&blocked(&state, "shipper", |row| row.node = Some(two))), []);
}

#[test]
fn a_job_is_in_a_namespace_and_a_node_pool() {
    let (driver, _) = running();
    let mut state = driver.state.clone();
    state = testing::without::<fsm::settings::Namespace>(&state, &"default".into());
    assert_trips("I45", check_state(&state));
    let mut state = driver.state.clone();
    state = testing::without::<fsm::settings::NodePool>(&state, &"default".into());
    assert_trips("I45", check_state(&state));
}
