//! Fixtures for the tests of this package.

use fsm::{
    Allocation, AllocationId, Evaluation, EvaluationId, EvaluationStatus, Index, JobKey, JobKind,
    JobSpec, JobStatus, Node, NodeId, State, Trigger, id::ClassId, node::NodeDescription,
    resources::Resources,
};

use crate::golden::Arguments;

/// The group of the jobs made by [`job`].
const GROUP: &str = "group";

/// An id that shows a short name: its bytes, padded with zeros.
pub(crate) fn named(name: &str) -> [u8; 16] {
    let mut id = [0; 16];
    id[..name.len()].copy_from_slice(name.as_bytes());
    id
}

/// The short name of an id made by [`named`].
pub(crate) fn name_of(id: [u8; 16]) -> String {
    id.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
}

/// The key `namespace/id`; without a namespace `default`.
pub(crate) fn job_key(job: &str) -> JobKey {
    let (namespace, id) = job.split_once('/').unwrap_or(("default", job));
    JobKey::new(namespace, id)
}

/// A pending evaluation of job `default/<job>`, created and changed at `index`.
pub(crate) fn evaluation(id: &str, job: &str, index: Index) -> Evaluation {
    let id = EvaluationId(named(id));
    let mut evaluation =
        Evaluation::new(id, job_key(job), JobKind::Service, 50, Trigger::JobRegister);
    evaluation.create_index = index;
    evaluation.modify_index = index;
    evaluation
}

/// The evaluation that a line of a golden script describes.
pub(crate) fn parse_evaluation(line: &Arguments<'_>) -> Evaluation {
    let id = line.text("id");
    let mut evaluation =
        evaluation(id, line.find("job").unwrap_or(id), line.number("index").max(1));
    if let Some(kind) = line.find("kind") {
        evaluation.kind = JobKind::parse(kind).expect("a scheduler kind");
    }
    if line.find("priority").is_some() {
        evaluation.priority = u16::try_from(line.number("priority")).expect("a priority");
    }
    if line.find("modify").is_some() {
        evaluation.modify_index = line.number("modify");
    }
    evaluation.snapshot_index = line.number("snapshot");
    evaluation.wait_until = line.number("wait_until");
    evaluation.status = match line.find("status").unwrap_or("pending") {
        "pending" => EvaluationStatus::Pending,
        "blocked" => EvaluationStatus::Blocked,
        "complete" => EvaluationStatus::Complete,
        other => panic!("unknown status `{other}`"),
    };
    if let Some(node) = line.find("node") {
        evaluation.node = Some(fsm::NodeId(named(node)));
    }
    match line.find("trigger") {
        None => {}
        Some("max-plans") => evaluation.trigger = Trigger::MaxPlans,
        Some(other) => panic!("unknown trigger `{other}`"),
    }
    if let Some(failed) = line.find("reschedules") {
        evaluation.reschedules = vec![fsm::AllocationId(named(failed))];
    }
    evaluation.escaped = line.find("escaped").is_some();
    for (key, eligible) in [("yes", true), ("no", false)] {
        for class in line.find(key).into_iter().flat_map(|list| list.split(',')) {
            evaluation.class_eligibility.insert(ClassId(named(class)), eligible);
        }
    }
    evaluation
}

/// A ready node, incarnation 1.
pub(crate) fn node(name: &str) -> Node {
    fsm::testing::ready_node(NodeId(named(name)), NodeDescription::default())
}

/// A state that has these nodes.
pub(crate) fn state_of_nodes(nodes: impl IntoIterator<Item = Node>) -> State {
    let mut state = State::default();
    for node in nodes {
        fsm::testing::put(&mut state, &node);
    }
    state.rebuild_derived();
    state
}

/// Puts a job with one group `group`, create index 1, version 0, into a state.
pub(crate) fn job(state: &mut State, name: &str, kind: JobKind, count: u32, max_parallel: u32) {
    let mut spec = fsm::testing::job(name, kind, count);
    spec.key = job_key(name);
    let group = &mut spec.groups[0];
    group.name = GROUP.into();
    group.tasks.clear();
    group.disk_mb = 0;
    group.restart.attempts = 0;
    group.migrate.max_parallel = max_parallel;
    let mut row = fsm::testing::job_at(&spec, 1);
    row.status = JobStatus::Running;
    fsm::testing::put(state, &row);
    fsm::testing::put(state, &fsm::testing::version_of(&row, spec));
}

/// Puts such a job, an instance of which takes so much disk, with a spec that `change` has made.
pub(crate) fn job_that_asks(
    state: &mut State,
    name: &str,
    disk_mb: u64,
    change: impl FnOnce(&mut JobSpec),
) {
    job(state, name, JobKind::Service, 1, 1);
    let key = job_key(name);
    let row = state.jobs().get(&key).expect("it was just put");
    let versions = state.versions_of(&key, row.create_index);
    let mut version =
        (**versions.iter().find(|one| one.version == 0).expect("it was just put")).clone();
    let mut spec = (*version.spec).clone();
    spec.node_pool = "all".into();
    spec.groups[0].disk_mb = disk_mb;
    change(&mut spec);
    version.spec = spec.into();
    fsm::testing::put(state, &version);
}

/// A running allocation of a job made by [`job`], which takes nothing.
pub(crate) fn allocation(name: &str, job: &str, node: &str) -> Allocation {
    let mut spec = fsm::testing::job(job, JobKind::Service, 1);
    spec.key = job_key(job);
    let group = fsm::testing::group(GROUP, 1);
    let row = fsm::testing::job_at(&spec, 1);
    Allocation {
        resources: Resources::default(),
        ..fsm::testing::allocation_at(
            AllocationId(named(name)),
            &row,
            &group,
            NodeId(named(node)),
            1,
        )
    }
}

/// Inserts or replaces a node.
pub(crate) fn put_node(state: &mut State, row: &Node) {
    fsm::testing::put(state, row);
    state.rebuild_derived();
}

/// Inserts or replaces an allocation.
pub(crate) fn put_allocation(state: &mut State, row: Allocation) {
    fsm::testing::put(state, &row);
    state.rebuild_derived();
}
