//! Preemption: what is evicted goes only with the placement that needs its room, its job is looked
//! at again, and what can be evicted from now on is a gain.

use super::{dropped, full_node};
use crate::{
    allocation::DesiredStatus,
    command::Command,
    evaluation::Trigger,
    id::{AllocationId, Index, NodeId},
    job::{JobKind, JobSpec},
    node::GainKey,
    plan::{DropReason, Placement},
    resources::Dimension,
    settings::{Preemption, SchedulerConfiguration, SetSchedulerConfiguration},
    testing::{Driver, GROUP, job},
};

/// P7. A placement that fits only once others are evicted: they go with it, know what for, and
/// their job gets an evaluation in the same entry.
#[test]
fn a_placement_evicts_what_has_a_lower_priority() {
    let (mut driver, node, ids) = full_node();
    driver.register_job(JobSpec { priority: 60, ..job("urgent", JobKind::System, 1) });
    let evaluation = driver.evaluate_job("urgent");
    let evicting = |driver: &mut Driver, victims: &[AllocationId]| {
        let preempts = victims.to_vec();
        let placement = Placement { preempts, ..driver.placement(GROUP, 0, node) };
        let plan = driver.plan(evaluation).with(placement);
        (plan.placements[0].id, plan)
    };
    let (_, plan) = evicting(&mut driver, &[]);
    dropped(&mut driver, plan, DropReason::NodeFull(Dimension::Cpu));
    let gone = AllocationId([0xee; 16]);
    for victims in [vec![gone], vec![ids[0], ids[0]]] {
        let (_, plan) = evicting(&mut driver, &victims);
        dropped(&mut driver, plan, DropReason::NotPreemptible);
        assert!(driver.allocation(ids[0]).is_live());
    }
    let open = |driver: &Driver| {
        let rows = driver.state.evaluations.iter();
        rows.filter(|row| row.trigger == Trigger::Preemption).count()
    };
    assert_eq!(open(&driver), 0);
    let (id, plan) = evicting(&mut driver, &ids[..1]);
    assert!(driver.commit_plan(plan).outcome_taken);
    let victim = driver.allocation(ids[0]);
    assert_eq!((victim.desired, victim.preempted_by), (DesiredStatus::Evict, Some(id)));
    assert_eq!(driver.allocation(id).preempted, [ids[0]]);
    assert_eq!(open(&driver), 1, "the job that lost it is looked at again");
}

#[test]
fn nothing_is_evicted_for_a_priority_that_is_too_close_or_while_preemption_is_off() {
    let (mut driver, node, ids) = full_node();
    let mut refused = |name: &str, kind: JobKind, priority: u16| {
        driver.register_job(JobSpec { priority, ..job(name, kind, 1) });
        let evaluation = driver.evaluate_job(name);
        let preempts = ids[..1].to_vec();
        let placement = Placement { preempts, ..driver.placement(GROUP, 0, node) };
        let plan = driver.plan(evaluation).with(placement);
        let verdict = driver.commit_plan(plan);
        assert!(driver.allocation(ids[0]).is_live());
        verdict.dropped.iter().any(|(_, reason)| *reason == DropReason::NotPreemptible)
    };
    assert!(refused("close", JobKind::System, 59));
    assert!(refused("service", JobKind::Service, 100), "off for services by default");
    assert!(refused("nightly", JobKind::Sysbatch, 100), "off for sysbatch by default");
}

fn gained(driver: &Driver, node: NodeId) -> Index {
    driver.state.capacity_gains.get(&GainKey::Node(node)).map_or(0, |gain| gain.index)
}

/// A job that waits looks again when others fall so low that it may evict them.
#[test]
fn a_lower_priority_in_place_is_a_gain() {
    let (mut driver, node, ids) = full_node();
    let mut updated_to = |priority: u16| {
        driver.register_job(JobSpec { priority, ..job("t", JobKind::Service, 8) });
        let evaluation = driver.evaluate_job("t");
        let plan = driver.plan(evaluation).updating(ids[0]);
        assert!(driver.commit_plan(plan).outcome_taken);
        gained(&driver, node) == driver.state.index
    };
    assert!(!updated_to(70), "nobody may evict more");
    assert!(updated_to(20));
}

/// A job that waits looks again when its kind may evict.
#[test]
fn preemption_that_is_allowed_is_a_gain_of_every_node() {
    let (mut driver, node, _) = full_node();
    let away = driver.node("away");
    driver.eligibility("away", false);
    let mut gains_when = |preemption: Preemption| {
        let configuration =
            SchedulerConfiguration { preemption, ..SchedulerConfiguration::default() };
        driver.accept(Command::from(SetSchedulerConfiguration {
            configuration,
            keep_node_life: true,
            enforce_index: None,
        }));
        [node, away].map(|node| gained(&driver, node) == driver.state.index)
    };
    let services = Preemption { service: true, ..Preemption::default() };
    assert_eq!(gains_when(services), [true, false], "a node out of service gains nothing");
    assert_eq!(gains_when(services), [false, false]);
    assert_eq!(gains_when(Preemption::default()), [false, false], "it takes something away");
}
