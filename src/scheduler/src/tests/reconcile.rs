//! The reconciler's numbers (R1–R4, R7): what is placed, stopped, updated for a job of ten.

use std::collections::BTreeSet;

use fsm::{
    AllocationId, ClientStatus, EvaluationStatus, JobKind, JobSpec, Liveness, Plan, Trigger,
};

use super::{
    Cluster,
    cluster::{PlanExt, update},
    job,
};

/// A job of ten on twenty nodes, with `existing` running instances of the registered version.
fn existing(existing: u32) -> (Cluster, JobSpec, Vec<AllocationId>) {
    let mut cluster = Cluster::with_nodes(20);
    let spec = job(JobKind::Service);
    cluster.register(&spec);
    let ids = cluster.allocations(&spec, existing);
    (cluster, spec, ids)
}

fn with_count(spec: &JobSpec, count: u32) -> JobSpec {
    let mut changed = spec.clone();
    changed.groups[0].count = count;
    changed
}

fn destructive(spec: &JobSpec) -> JobSpec {
    let mut changed = spec.clone();
    changed.groups[0].tasks[0].config_json = "{\"v\":2}".into();
    changed
}

fn check(plan: &Plan, placements: usize, stops: usize, in_place: usize) {
    assert_eq!(plan.counts(), (placements, stops, in_place), "(placements, stops, in place)");
    assert_eq!(plan.status(), EvaluationStatus::Complete);
    assert_eq!(plan.queued(), 0);
}

fn stopped_names(cluster: &Cluster, plan: &Plan) -> Vec<u32> {
    let mut names: Vec<_> = plan.stops.iter().map(|stop| cluster.get(stop.id).name_index).collect();
    names.sort_unstable();
    names
}

#[test]
fn r1_none_existing_places_ten() {
    let (mut cluster, spec, _) = existing(0);
    check(&cluster.plan(&spec, Trigger::JobRegister), 10, 0, 0);
}

#[test]
fn r1_five_existing_places_the_five_missing_names() {
    let (mut cluster, spec, _) = existing(5);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    check(&plan, 5, 0, 0);
    assert_eq!(plan.names(), [5, 6, 7, 8, 9]);
}

#[test]
fn r1_twenty_existing_stops_the_ten_highest() {
    let (mut cluster, spec, _) = existing(20);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    check(&plan, 0, 10, 0);
    assert_eq!(stopped_names(&cluster, &plan), (10..20).collect::<Vec<_>>());
}

#[test]
fn r1_count_zero_stops_all_also_with_duplicate_names() {
    let (mut cluster, spec, _) = existing(5);
    for on in 11..16 {
        cluster.allocation(&spec, on % 2, u64::from(on));
    }
    let none = with_count(&spec, 0);
    cluster.register(&none);
    check(&cluster.plan(&none, Trigger::JobRegister), 0, 10, 0);
}

#[test]
fn r1_gaps_in_names_are_filled_from_the_lowest() {
    let (mut cluster, spec, _) = existing(0);
    for name in [1, 3, 12] {
        cluster.allocation(&spec, name, u64::from(name) + 1);
    }
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    assert_eq!(plan.names(), [0, 2, 4, 5, 6, 7, 8]);
}

#[test]
fn r2_in_place_updates_keep_ids() {
    for (count, placements, stops, in_place) in [(10, 0, 0, 10), (15, 5, 0, 10), (5, 0, 5, 5)] {
        let (mut cluster, spec, ids) = existing(10);
        let mut changed = with_count(&spec, count);
        changed.groups[0].tasks[0].kill_timeout_ms += 1;
        cluster.register(&changed);
        let plan = cluster.plan(&changed, Trigger::JobRegister);
        check(&plan, placements, stops, in_place);
        assert_eq!(plan.job_version, 1);
        let kept: BTreeSet<_> = plan.in_place.iter().map(|in_place| in_place.id).collect();
        assert_eq!(kept, ids[..in_place].iter().copied().collect());
    }
}

#[test]
fn r3_destructive_updates_replace_all_without_an_update_block() {
    let (mut cluster, spec, _) = existing(10);
    let changed = destructive(&spec);
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    check(&plan, 10, 10, 0);
    for (placement, stop) in plan.placements.iter().zip(&plan.stops) {
        assert_eq!(placement.previous, Some(stop.id), "chained");
        assert_eq!(placement.name_index, cluster.get(stop.id).name_index);
        assert!(placement.reschedules.is_empty());
    }
    cluster.apply(&plan);
    assert!(cluster.plan(&changed, Trigger::JobRegister).is_no_op());
}

#[test]
fn r3_destructive_updates_with_another_count() {
    let (mut cluster, spec, _) = existing(10);
    let more = with_count(&destructive(&spec), 15);
    cluster.register(&more);
    let plan = cluster.plan(&more, Trigger::JobRegister);
    check(&plan, 15, 10, 0);
    assert_eq!(plan.names(), (0..15).collect::<Vec<_>>());

    let (mut cluster, spec, _) = existing(10);
    let fewer = with_count(&destructive(&spec), 5);
    cluster.register(&fewer);
    let plan = cluster.plan(&fewer, Trigger::JobRegister);
    check(&plan, 5, 10, 0);
    assert_eq!(plan.names(), [0, 1, 2, 3, 4]);
}

#[test]
fn r3_max_parallel_zero_replaces_all_at_once() {
    let (mut cluster, spec, _) = existing(10);
    let mut changed = destructive(&spec);
    changed.groups[0].update = Some(update(0));
    cluster.register(&changed);
    check(&cluster.plan(&changed, Trigger::JobRegister), 10, 10, 0);
}

/// A step is followed by the next one as its instances become healthy, and by none while one of
/// them is unhealthy. No evaluation waits for that.
#[test]
fn r3_max_parallel_limits_a_step_and_health_brings_the_next() {
    let (mut cluster, spec, _) = existing(10);
    let mut changed = destructive(&spec);
    changed.groups[0].update = Some(update(4));
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    check(&plan, 4, 4, 0);
    assert_eq!(plan.names(), [0, 1, 2, 3]);
    assert!(plan.waiting().is_empty());
    assert!(plan.deployment.is_some());
    cluster.begin(&plan);
    let early = cluster.plan(&changed, Trigger::NodeUpdate);
    assert!(early.is_no_op() && early.waiting().is_empty(), "nothing is healthy yet");
    for placement in &plan.placements[..3] {
        cluster.set_health(placement.id, true);
    }
    check(&cluster.plan(&changed, Trigger::DeploymentWatcher), 3, 3, 0);
    cluster.set_health(plan.placements[3].id, false);
    assert!(cluster.plan(&changed, Trigger::DeploymentWatcher).is_no_op(), "one is unhealthy");
}

/// One that was healthy and serves nobody now counts against the step.
#[test]
fn an_instance_that_was_healthy_and_failed_counts_against_the_step() {
    let (mut cluster, spec, _) = existing(10);
    let mut changed = destructive(&spec);
    changed.groups[0].update = Some(update(1));
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    cluster.begin(&plan);
    let id = plan.placements[0].id;
    cluster.set_health(id, true);
    check(&cluster.plan(&changed, Trigger::DeploymentWatcher), 1, 1, 0);
    cluster.end(id, ClientStatus::Failed);
    check(&cluster.plan(&changed, Trigger::NodeUpdate), 0, 0, 0);
}

/// Instances of an older version that serve nobody are replaced first.
#[test]
fn an_update_begins_with_those_that_serve_nobody() {
    let (mut cluster, spec, ids) = existing(10);
    cluster.change(ids[7], |row| row.client = ClientStatus::Pending);
    let mut changed = destructive(&spec);
    changed.groups[0].update = Some(update(2));
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    assert_eq!(plan.names(), [0, 7]);
}

/// R21: what is missing goes first and counts against the step.
#[test]
fn missing_instances_count_against_the_step() {
    let (mut cluster, spec, _) = existing(7);
    let mut changed = destructive(&spec);
    changed.groups[0].update = Some(update(4));
    cluster.register(&changed);
    check(&cluster.plan(&changed, Trigger::JobRegister), 4, 1, 0);
}

/// When nothing but room is missing, the blocked evaluation goes on with the update; a step that
/// comes again and again would find nothing new.
#[test]
fn an_update_without_room_waits_for_room_only() {
    let (mut cluster, spec, _) = existing(10);
    let mut next = with_count(&destructive(&spec), 12);
    next.groups[0].update = Some(update(1));
    for number in 1..=20 {
        cluster.change_node(number, |node| node.eligibility.ineligible = true);
    }
    cluster.register(&next);
    let plan = cluster.plan(&next, Trigger::JobRegister);
    assert_eq!(plan.counts(), (0, 0, 0));
    let made = &plan.outcome.as_ref().unwrap().evaluations;
    assert_eq!(made.len(), 1, "{made:?}");
    assert_eq!(made[0].status, EvaluationStatus::Blocked);
}

#[test]
fn r4_lost_instances_are_replaced_up_to_count() {
    for (count, placements, stopped) in
        [(10, 2, vec![0, 1]), (15, 7, vec![0, 1]), (5, 0, vec![0, 1, 7, 8, 9])]
    {
        let (mut cluster, spec, ids) = existing(10);
        for number in [1, 2] {
            cluster.change_node(number, |node| node.liveness = Liveness::Down);
        }
        let changed = with_count(&spec, count);
        cluster.register(&changed);
        let plan = cluster.plan(&changed, Trigger::NodeUpdate);
        assert_eq!(plan.placements.len(), placements);
        assert_eq!(stopped_names(&cluster, &plan), stopped);
        for stop in &plan.stops {
            let lost = ids[..2].contains(&stop.id);
            assert_eq!(stop.client, lost.then_some(ClientStatus::Lost));
        }
    }
}

#[test]
fn r7_a_removed_group_stops_and_a_new_one_is_placed() {
    let (mut cluster, spec, _) = existing(10);
    let mut changed = spec.clone();
    changed.groups[0].name = "api".into();
    cluster.register(&changed);
    let plan = cluster.plan(&changed, Trigger::JobRegister);
    check(&plan, 10, 10, 0);
    assert!(plan.placements.iter().all(|placement| &*placement.group == "api"));
}

/// R7, S13.
#[test]
fn r7_a_stopped_or_purged_job_stops_what_lives() {
    for purge in [false, true] {
        let (mut cluster, spec, ids) = existing(10);
        cluster.end(ids[0], ClientStatus::Complete);
        cluster.end(ids[1], ClientStatus::Failed);
        if purge {
            cluster.state = fsm::testing::without::<fsm::Job>(&cluster.state, &spec.key);
        } else {
            cluster.change_job(&spec.key, |row| row.stop = true);
        }
        let plan = cluster.plan(&spec, Trigger::JobDeregister);
        assert_eq!(plan.counts(), (0, 9, 0), "what has failed ends too");
        assert_eq!(plan.status(), EvaluationStatus::Complete);
        assert!(plan.outcome.as_ref().is_some_and(|outcome| outcome.evaluations.is_empty()));
        assert_eq!(plan.job_create_index == 0, purge);
    }
}

/// A job that is purged and registered as another kind: what is left of the first ends, and the
/// second gets what it wants in one plan.
#[test]
fn a_job_of_another_kind_takes_over_an_id() {
    for kind in [JobKind::System, JobKind::Sysbatch] {
        let mut cluster = Cluster::with_nodes(4);
        let service = job(JobKind::Service);
        cluster.run(&service);
        cluster.state = fsm::testing::without::<fsm::Job>(&cluster.state, &service.key);
        let per_node = job(kind);
        let plan = cluster.run(&per_node);
        check(&plan, 4, 10, 0);
        assert!(cluster.plan(&per_node, Trigger::JobDeregister).is_no_op());

        let on_four = cluster.live(&per_node)[3].id;
        cluster.end(on_four, ClientStatus::Failed);
        cluster.state = fsm::testing::without::<fsm::Job>(&cluster.state, &service.key);
        let plan = cluster.run(&service);
        check(&plan, 10, 3, 0);
        assert_eq!(plan.names(), (0..10).collect::<Vec<_>>());
        assert!(cluster.plan(&service, Trigger::JobDeregister).is_no_op());
    }
}

/// The same kind again: what runs goes on under the new incarnation, finished batch work runs
/// again.
#[test]
fn a_purged_job_that_is_registered_again_takes_over_what_runs() {
    for kind in [JobKind::Service, JobKind::Batch] {
        let mut cluster = Cluster::with_nodes(10);
        let spec = job(kind);
        cluster.register(&spec);
        let ids = cluster.allocations(&spec, 10);
        cluster.end(ids[9], ClientStatus::Complete);
        cluster.state = fsm::testing::without::<fsm::Job>(&cluster.state, &spec.key);
        let plan = cluster.run(&spec);
        check(&plan, 1, 0, 9);
        assert_eq!(plan.names(), [9]);
    }
}

/// It counts for nothing that the garbage collection keeps, either.
#[test]
fn a_failed_instance_of_a_purged_job_is_none_of_the_next() {
    let mut cluster = Cluster::with_nodes(10);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 1;
    let policy = spec.groups[0].reschedule.as_mut().unwrap();
    policy.unlimited = false;
    cluster.register(&spec);
    let ids = cluster.allocations(&spec, 1);
    cluster.end(ids[0], ClientStatus::Failed);
    assert!(cluster.plan(&spec, Trigger::JobRegister).is_no_op(), "it is not to be replaced");
    cluster.state = fsm::testing::without::<fsm::Job>(&cluster.state, &spec.key);
    check(&cluster.run(&spec), 1, 0, 0);
}

/// R22, S22: a changed batch job runs again, an unchanged one does not.
#[test]
fn r22_finished_batch_instances_count_only_for_their_version() {
    let mut cluster = Cluster::with_nodes(10);
    let spec = job(JobKind::Batch);
    cluster.register(&spec);
    for id in cluster.allocations(&spec, 10) {
        cluster.end(id, ClientStatus::Complete);
    }
    assert!(cluster.plan(&spec, Trigger::JobRegister).is_no_op());
    cluster.register(&spec);
    let plan = cluster.plan(&spec, Trigger::JobRegister);
    check(&plan, 10, 0, 0);
    assert_eq!(plan.names(), (0..10).collect::<Vec<_>>());
}

/// R12.
#[test]
fn r12_a_service_instance_that_completed_is_replaced() {
    let (mut cluster, spec, ids) = existing(10);
    cluster.end(ids[4], ClientStatus::Complete);
    let plan = cluster.plan(&spec, Trigger::AllocFailure);
    check(&plan, 1, 0, 0);
    assert_eq!(plan.names(), [4]);
}

/// S14: flagged allocations move; draining alone moves nothing.
#[test]
fn s14_migration_is_by_flag() {
    let (mut cluster, spec, ids) = existing(10);
    cluster.change_node(3, |node| {
        node.drain = Some(fsm::node::Drain {
            started_at: 0,
            deadline_at: None,
            force: false,
            ignore_system: false,
            owner: "".into(),
            cancelable: false,
        });
    });
    assert!(cluster.plan(&spec, Trigger::NodeDrain).is_no_op());
    cluster.change(ids[2], |allocation| allocation.transition.migrate = true);
    let plan = cluster.plan(&spec, Trigger::NodeDrain);
    check(&plan, 1, 1, 0);
    assert_eq!(&*plan.stops[0].description, "alloc is being migrated");
    assert_eq!(plan.placements[0].previous, Some(ids[2]));
    assert_eq!(plan.names(), [2]);
}

/// An instance of a batch job that a drain or a user stops is not run again by itself: it keeps its
/// place until the job changes, or somebody asks for another. That its node is lost while it stops
/// changes nothing.
#[test]
fn a_batch_instance_that_was_stopped_is_not_run_again() {
    let mut cluster = Cluster::with_nodes(4);
    let mut spec = job(JobKind::Batch);
    spec.groups[0].count = 3;
    cluster.register(&spec);
    let ids: Vec<_> =
        (0..3).map(|name| cluster.allocation(&spec, name, u64::from(name) + 1)).collect();
    cluster.change(ids[1], |row| row.transition.migrate = true);
    let plan = cluster.plan(&spec, Trigger::NodeDrain);
    check(&plan, 0, 1, 0);
    assert_eq!(&*plan.stops[0].description, fsm::allocation::ENDED_BY_REQUEST);
    cluster.apply(&plan);
    assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op(), "while it stops");
    for end in [ClientStatus::Lost, ClientStatus::Failed, ClientStatus::Complete] {
        cluster.change(ids[1], |row| row.client = end);
        assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op(), "{end:?}");
    }
    cluster.change(ids[1], |row| row.transition.reschedule = true);
    let plan = cluster.plan(&spec, Trigger::AllocStop);
    check(&plan, 1, 0, 0);
    assert_eq!(plan.names(), [1]);
    cluster.change(ids[1], |row| row.transition.reschedule = false);
    let plan = cluster.run(&destructive(&spec));
    check(&plan, 3, 2, 0);
}

/// A user may leave the place of a service's instance empty until the job changes.
#[test]
fn a_service_instance_that_was_stopped_without_a_replacement_stays_away() {
    let mut cluster = Cluster::with_nodes(4);
    let mut spec = job(JobKind::Service);
    spec.groups[0].count = 3;
    cluster.register(&spec);
    let ids: Vec<_> =
        (0..3).map(|name| cluster.allocation(&spec, name, u64::from(name) + 1)).collect();
    cluster.change(ids[1], |row| {
        row.transition.migrate = true;
        row.transition.no_replacement = true;
    });
    let plan = cluster.plan(&spec, Trigger::AllocStop);
    check(&plan, 0, 1, 0);
    cluster.apply(&plan);
    for end in [ClientStatus::Running, ClientStatus::Failed, ClientStatus::Complete] {
        cluster.change(ids[1], |row| row.client = end);
        assert!(cluster.plan(&spec, Trigger::NodeUpdate).is_no_op(), "{end:?}");
    }
    cluster.change(ids[1], |row| row.transition.reschedule = true);
    let plan = cluster.plan(&spec, Trigger::AllocStop);
    assert_eq!(plan.names(), [1], "somebody asks for another after all");
    cluster.change(ids[1], |row| row.transition.reschedule = false);
    spec.groups[0].count = 4;
    let plan = cluster.run(&spec);
    assert_eq!(plan.names(), [1, 3], "the job has changed");
}

/// One that was to end and fails before its stop is planned has ended by request all the same.
#[test]
fn a_batch_instance_that_fails_while_it_is_to_stop_is_not_run_again() {
    for kind in [JobKind::Batch, JobKind::Service] {
        let mut cluster = Cluster::with_nodes(2);
        let mut spec = job(kind);
        spec.groups[0].count = 1;
        cluster.register(&spec);
        let id = cluster.allocation(&spec, 0, 1);
        cluster.change(id, |row| {
            row.transition.migrate = true;
            row.client = ClientStatus::Failed;
        });
        let plan = cluster.plan(&spec, Trigger::RetryFailedAlloc);
        assert_eq!(plan.is_no_op(), kind == JobKind::Batch, "{kind:?}");
        cluster.change(id, |row| row.transition.reschedule = true);
        let plan = cluster.plan(&spec, Trigger::AllocStop);
        assert_eq!(plan.placements.len(), 1, "{kind:?}");
    }
}

type Edit = fn(&mut JobSpec);

/// 2.8.1: what of a job's changes needs new instances, field by field.
#[test]
fn changes_are_destructive_or_in_place() {
    use fsm::job::{Network, PortAsk};
    let replace: &[(&str, Edit)] = &[
        ("driver", |spec| spec.groups[0].tasks[0].driver = "raw_exec".into()),
        ("user", |spec| spec.groups[0].tasks[0].user = "nobody".into()),
        ("config", |spec| spec.groups[0].tasks[0].config_json = "{\"a\":1}".into()),
        ("env", |spec| {
            spec.groups[0].tasks[0].env.insert("A".into(), "1".into());
        }),
        ("task meta", |spec| {
            spec.groups[0].tasks[0].meta.insert("a".into(), "1".into());
        }),
        ("group meta", |spec| {
            spec.groups[0].meta.insert("a".into(), "1".into());
        }),
        ("job meta", |spec| {
            spec.meta.insert("a".into(), "1".into());
        }),
        ("cpu", |spec| spec.groups[0].tasks[0].resources.cpu_mhz -= 1),
        ("memory", |spec| spec.groups[0].tasks[0].resources.memory_mb -= 1),
        ("memory_max", |spec| spec.groups[0].tasks[0].resources.memory_mb_max = 999),
        ("disk", |spec| spec.groups[0].disk_mb -= 1),
        ("network", |spec| {
            let ports = vec![PortAsk { label: "http".into(), value: 0, to: 0 }];
            spec.groups[0].network = Some(Network { ports, names_mode: false });
        }),
        ("a task more", |spec| {
            let mut task = spec.groups[0].tasks[0].clone();
            task.name = "side".into();
            spec.groups[0].tasks.push(task);
        }),
        ("a task renamed", |spec| spec.groups[0].tasks[0].name = "other".into()),
        ("logs off", |spec| spec.groups[0].tasks[0].logs.disabled = true),
    ];
    let keep: &[(&str, Edit)] = &[
        ("count", |spec| spec.groups[0].count = 10),
        ("priority", |spec| spec.priority = 70),
        ("name", |spec| spec.name = "other".into()),
        ("update", |spec| spec.groups[0].update = Some(update(3))),
        ("reschedule", |spec| spec.groups[0].reschedule = None),
        ("migrate", |spec| spec.groups[0].migrate.max_parallel = 9),
        ("restart", |spec| spec.groups[0].tasks[0].restart.attempts = 9),
        ("constraint", |spec| spec.constraints = vec![on_linux()]),
        ("affinity", |spec| {
            spec.affinities = vec![fsm::job::Affinity { constraint: on_linux(), weight: 50 }];
        }),
        ("spread", |spec| {
            let attribute = "${node.datacenter}".into();
            spec.spreads = vec![fsm::job::Spread { attribute, weight: 50, targets: Vec::new() }];
        }),
        ("datacenters", |spec| spec.datacenters = vec!["dc*".into()]),
        ("node pool", |spec| spec.node_pool = "all".into()),
        ("services", |spec| spec.groups[0].services_json = "[]".into()),
        ("kill_timeout", |spec| spec.groups[0].tasks[0].kill_timeout_ms = 1),
        ("kill_signal", |spec| spec.groups[0].tasks[0].kill_signal = "SIGTERM".into()),
        ("shutdown_delay", |spec| spec.groups[0].shutdown_delay_ms = 1),
        ("max_run_duration", |spec| spec.groups[0].max_run_ms = 1),
        ("log sizes", |spec| spec.groups[0].tasks[0].logs.files_max = 1),
        ("meta moved to another level", |spec| {
            let moved = std::mem::take(&mut spec.meta);
            spec.groups[0].tasks[0].meta.extend(moved);
        }),
    ];
    for (edits, destructive) in [(replace, true), (keep, false)] {
        for (what, edit) in edits {
            for kind in JobKind::ALL {
                if *what == "count" && kind.is_per_node() {
                    continue;
                }
                let mut cluster = Cluster::with_nodes(20);
                let mut spec = job(kind);
                spec.meta.insert("owner".into(), "me".into());
                let there = cluster.run(&spec).placements.len();
                edit(&mut spec);
                let expected = if destructive { (there, there, 0) } else { (0, 0, there) };
                assert_eq!(cluster.run(&spec).counts(), expected, "{what} of {kind:?}");
            }
        }
    }
}

fn on_linux() -> fsm::job::Constraint {
    fsm::job::Constraint {
        left: "${attr.kernel.name}".into(),
        operand: "=".into(),
        right: "linux".into(),
    }
}

/// 2.8.1: in place unless the node no longer suits the job.
#[test]
fn an_update_that_the_node_no_longer_suits_is_destructive() {
    let (mut cluster, spec, _) = existing(10);
    cluster.change_node(4, |node| {
        let mut description = (*node.description).clone();
        description.datacenter = "dc2".into();
        node.description = description.into();
    });
    let mut changed = spec.clone();
    changed.datacenters = vec!["dc1".into()];
    cluster.register(&changed);
    check(&cluster.plan(&changed, Trigger::JobRegister), 1, 1, 9);
}

/// S20.
#[test]
fn s20_a_superseded_instance_is_stopped() {
    let (mut cluster, spec, ids) = existing(9);
    let successor = cluster.allocation(&spec, 9, 15);
    cluster.change(ids[0], |allocation| allocation.next = Some(successor));
    let plan = cluster.plan(&spec, Trigger::NodeUpdate);
    check(&plan, 1, 1, 0);
    assert_eq!(plan.stops[0].id, ids[0]);
}
