//! Rows that are too large are refused by `apply` with the bound in the text, whatever way the
//! command came, and change nothing.

use std::sync::Arc;

use crate::{
    Rejection, Text,
    allocation::{ClientStatus, TaskEvent, TaskState},
    command::Command,
    job::{Affinity, Constraint, JobKind, JobSpec},
    limits,
    node::{Driver as NodeDriver, NodeDescription, RegisterNode},
    pool::UpsertInstancePool,
    settings::{Namespace, NodePool, UpsertNamespace, UpsertNodePool},
    testing::{Driver, description, instance_pool, job, node_id, put, register, rows},
};

fn refused(driver: &mut Driver, command: Command) -> String {
    let before = rows(&driver.state);
    let rejection = driver.reject(command);
    assert_eq!(rows(&driver.state), before);
    let Rejection::Invalid(why) = rejection else { panic!("{rejection:?}") };
    why.to_string()
}

fn texts(count: usize, bytes: usize) -> std::collections::BTreeMap<Text, Text> {
    (0..count).map(|n| (format!("{n}").into(), "x".repeat(bytes).into())).collect()
}

#[test]
fn a_job_over_a_bound_is_refused() {
    type Change = fn(&mut JobSpec);
    let wide: Change = |job| job.groups[0].count = u32::MAX;
    let sum: Change = |job| {
        let mut other = job.groups[0].clone();
        other.name = "other".into();
        job.groups[0].count = 30_000;
        other.count = 30_000;
        job.groups.push(other);
    };
    let groups: Change = |job| {
        let group = job.groups[0].clone();
        job.groups = (0..=limits::LIST_MAX)
            .map(|n| crate::TaskGroup { name: format!("g{n}").into(), count: 0, ..group.clone() })
            .collect();
    };
    let tasks: Change = |job| {
        let task = job.groups[0].tasks[0].clone();
        job.groups[0].tasks = (0..=limits::LIST_MAX)
            .map(|n| crate::job::Task { name: format!("t{n}").into(), ..task.clone() })
            .collect();
    };
    let affinity: Change = |job| {
        let text = || Text::from("x");
        let constraint = Constraint { left: text(), operand: text(), right: text() };
        job.affinities = vec![Affinity { constraint, weight: i16::MAX }];
    };
    let cases: [(Change, &str); 15] = [
        (wide, "count of all groups is 4294967295, at most 50000 may be"),
        (sum, "count of all groups is 60000, at most 50000 may be"),
        (groups, "1001 task groups in the job, at most 1000 may be"),
        (tasks, "1001 tasks, at most 1000 may be"),
        (affinity, "weight of an affinity is 32767"),
        (|job| job.priority = 101, "priority is 101, at most 100 may be"),
        (|job| job.key.id = "x".repeat(257).into(), "job has 257 bytes, at most 256 may be"),
        (|job| job.groups.push(job.groups[0].clone()), "two task groups are called"),
        (
            |job| {
                let task = job.groups[0].tasks[0].clone();
                job.groups[0].tasks.push(task);
            },
            "two tasks are called",
        ),
        (|job| job.groups[0].disk_mb = u64::MAX, "disk is 18446744073709551615, at most"),
        (|job| job.groups[0].tasks[0].resources.cpu_mhz = (1 << 40) + 1, "cpu is 1099511627777"),
        (
            |job| job.groups[0].tasks[0].kill_timeout_ms = u64::MAX,
            "group \"web\": task \"server\": kill_timeout, in ms, is 18446744073709551615",
        ),
        (
            |job| job.groups[0].max_run_ms = 9_223_372_036_855,
            "group \"web\": max_run_duration, in ms, is 9223372036855, at most 9223372036854 may be",
        ),
        (|job| job.groups[0].tasks[0].logs.files_max = 1_001, "max_files of logs is 1001"),
        (|job| job.meta = texts(2_000, 1_000), "bytes, at most 1048576 may be"),
    ];
    for (change, expected) in cases {
        let mut driver = Driver::default();
        let mut spec = job("web", JobKind::Service, 1);
        change(&mut spec);
        let evaluation = driver.evaluation_id();
        let why = refused(&mut driver, register(spec, evaluation));
        assert!(why.contains(expected), "{why}");
    }
    let mut driver = Driver::default();
    let mut most = job("web", JobKind::Service, 50_000);
    most.meta = texts(900, 1_000);
    driver.register_job(most);
}

#[test]
fn a_node_over_a_bound_is_refused_also_when_it_is_known() {
    type Change = fn(&mut NodeDescription);
    let drivers: Change = |node| {
        let driver = NodeDriver::default();
        node.drivers = (0..50_000).map(|n| (format!("d{n}").into(), driver.clone())).collect();
    };
    let cases: [(Change, &str); 6] = [
        (drivers, "50000 drivers of the node, at most 64 may be"),
        (|node| node.attributes = texts(1_001, 1), "1001 attributes of the node, at most 1000"),
        (|node| node.meta = texts(1_000, 8_000), "bytes, at most 262144 may be"),
        (|node| node.name = "x".repeat(5_000).into(), "5000 bytes, at most 4096 may be"),
        (|node| node.resources.total.memory_mb = u64::MAX, "memory of the node is"),
        (|node| node.resources.reserved_ports = vec![1; 70_000], "70000 reserved ports"),
    ];
    let mut driver = Driver::default();
    driver.node("known");
    for name in ["known", "new"] {
        for (change, expected) in cases {
            let mut node = description(name);
            change(&mut node);
            let command = RegisterNode {
                node: node_id(name),
                secret: driver.state.nodes.get(&node_id(name)).map_or([1; 16], |row| row.secret),
                identity: [1; 16],
                description: Arc::new(node),
                instance: None,
                evaluation_ids: Vec::new(),
            };
            let why = refused(&mut driver, command.into());
            assert!(why.contains(expected), "{why}");
        }
    }
}

#[test]
fn namespaces_and_pools_over_a_bound_are_refused() {
    let mut driver = Driver::default();
    let wide = texts(1_000, 3_900);
    let namespace = Namespace { name: "n".into(), meta: wide.clone(), ..Namespace::default() };
    let why = refused(&mut driver, UpsertNamespace { namespace }.into());
    assert!(why.contains("meta has") && why.contains("at most 65536 may be"), "{why}");
    let description: Text = "x".repeat(4_097).into();
    let namespace = Namespace { name: "n".into(), description, ..Namespace::default() };
    let why = refused(&mut driver, UpsertNamespace { namespace }.into());
    assert_eq!(why, "description has 4097 bytes, at most 4096 may be");
    let pool = NodePool { name: "p".into(), meta: texts(1_001, 1), ..NodePool::default() };
    let why = refused(&mut driver, UpsertNodePool { pool }.into());
    assert_eq!(why, "1001 entries of meta, at most 1000 may be");
    let mut pool = instance_pool("p");
    let kind = pool.types.values_mut().next().unwrap();
    Arc::make_mut(kind).node.attributes = wide;
    let why =
        refused(&mut driver, UpsertInstancePool { pool: pool.into(), enforce_index: None }.into());
    assert!(why.contains("attributes of type") && why.contains("at most 16384 may be"), "{why}");
}

#[test]
fn a_table_that_is_full_takes_changes_and_no_more_rows() {
    let mut driver = Driver::default();
    let row = |n: usize| Namespace { name: format!("n{n}").into(), ..Namespace::default() };
    let namespace = |n: usize| UpsertNamespace { namespace: row(n) };
    for n in 1..limits::NAMESPACES_MAX {
        put(&mut driver.state, &row(n));
    }
    assert_eq!(driver.state.namespaces.len(), limits::NAMESPACES_MAX);
    let full = limits::NAMESPACES_MAX;
    let Rejection::Invalid(why) = driver.reject(namespace(full).into()) else { panic!() };
    assert_eq!(&*why, "there are 10000 namespaces, at most 10000 may be: delete some");
    driver.accept(namespace(1).into());
}

#[test]
fn an_agents_report_is_kept_for_the_tasks_of_its_group_and_cut() {
    let mut driver = Driver::default();
    let node = driver.node("a");
    driver.register_job(job("web", JobKind::Service, 1));
    let id = driver.place("web", 0, node);
    let spec = driver.state.allocation_spec(driver.allocation(id)).unwrap();
    let task = spec.groups[0].tasks[0].name.clone();
    let mut update = driver.update(id, ClientStatus::Running);
    let long: Text = "x".repeat(1 << 20).into();
    let event = TaskEvent {
        kind: "Started".into(),
        at_ms: 1,
        message: long.clone(),
        exit_code: None,
        signal: None,
    };
    let events = vec![event; limits::TASK_EVENTS_MAX + 5];
    update.description = long;
    let tasks = update.tasks.get_or_insert_default();
    tasks.insert(task.clone(), TaskState { events, ..TaskState::default() });
    for n in 0..5_000 {
        tasks.insert(format!("other{n}").into(), TaskState::default());
    }
    driver.report_update(update);
    let row = driver.allocation(id);
    assert_eq!(row.client_description.len(), limits::REPORT_TEXT_BYTES_MAX);
    let kept: Vec<_> = row.tasks.keys().cloned().collect();
    assert_eq!(kept, std::slice::from_ref(&task));
    let events = &row.tasks[&task].events;
    assert_eq!(events.len(), limits::TASK_EVENTS_MAX);
    assert!(events.iter().all(|one| one.message.len() == limits::REPORT_TEXT_BYTES_MAX));
}
