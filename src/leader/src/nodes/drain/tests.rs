//! Drains, with the real `apply` in the loop.
#![expect(clippy::unwrap_used, reason = "tests")]

use fsm::{
    Deployment, DeploymentId, DeploymentStatus, DesiredStatus, Proposal, TaskState,
    command::NodeCommand,
    deployment::{AllocationDeployment, AllocationHealth},
    node::AdvanceDrains,
    table::ChangeSet,
};

use super::*;
use crate::testing::{
    allocation, job, name_of, named, node, put_allocation, put_node, state_of_nodes,
};

const MINUTE: u64 = 60_000;
const DEPLOYMENT: DeploymentId = DeploymentId([1; 16]);

/// A cluster with nodes `a` (draining) and `b`, and the drainer.
struct Cluster {
    state: State,
    drainer: Drainer,
    index: u64,
}

impl Cluster {
    fn new(drain: Drain) -> Self {
        let mut draining = node("a");
        draining.drain = Some(drain);
        let state = state_of_nodes([draining, node("b")]);
        Self { state, drainer: Drainer::default(), index: 100 }
    }

    /// `count` running instances of a new job on node `a`, healthy since 0.
    fn run(&mut self, name: &str, kind: JobKind, count: u32, max_parallel: u32) {
        job(&mut self.state, name, kind, count, max_parallel);
        for number in 0..count {
            let mut row = allocation(&format!("{name}{number}"), name, "a");
            row.name_index = number;
            row.per_node = kind.is_per_node();
            put_allocation(&mut self.state, row);
        }
    }

    fn change(&mut self, id: &str, change: impl FnOnce(&mut Allocation)) {
        let id = AllocationId(named(id));
        let mut row = (**self.state.allocations().get(&id).unwrap()).clone();
        change(&mut row);
        put_allocation(&mut self.state, row);
    }

    /// The job has a deployment.
    fn deploy(&mut self, job: &str, status: DeploymentStatus) {
        let row = Deployment {
            id: DEPLOYMENT,
            job: JobKey::new("default", job),
            job_create_index: 1,
            job_version: 0,
            job_modify_index: 1,
            priority: 50,
            status,
            description: "".into(),
            groups: BTreeMap::new(),
            create_index: 1,
            modify_index: 1,
            created_at: 0,
            placed_canaries: BTreeMap::new(),
            modified_at: 0,
        };
        fsm::testing::put(&mut self.state, &row);
        self.state.rebuild_derived();
    }

    /// The instance is stopped, and a replacement runs on node `b` since `since`.
    fn replace(&mut self, id: &str, since: u64) {
        self.change(id, |row| {
            row.desired = DesiredStatus::Stop;
            row.client = ClientStatus::Complete;
        });
        let old = self.state.allocations().get(&AllocationId(named(id))).unwrap();
        let mut row = (**old).clone();
        row.id = AllocationId(named(&format!("{id}+")));
        row.node = NodeId(named("b"));
        row.transition.migrate = false;
        row.desired = DesiredStatus::Run;
        row.client = ClientStatus::Running;
        row.client_at = since;
        put_allocation(&mut self.state, row);
    }

    /// Polls at `now`, checks that a second look gives the same, applies, and checks that a third
    /// gives nothing.
    fn advance(&mut self, now: u64) -> (Vec<String>, usize) {
        self.drainer.restore(now, &self.state);
        let look = now + limits::DRAIN_COALESCE_MS;
        let Some(command) = self.drainer.poll(look, &self.state) else {
            return (Vec::new(), 0);
        };
        self.drainer.state_changed(now);
        assert_eq!(self.drainer.poll(look, &self.state), Some(command.clone()), "same state");
        let Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { migrate, complete, .. })) =
            &command
        else {
            panic!("unexpected {command:?}")
        };
        let names = migrate.iter().map(|id| name_of(id.0)).collect();
        let found = (names, complete.len());
        self.index += 1;
        let proposal = Proposal { at: look, epoch: None, request: None, command };
        self.state.apply(self.index, 1, &proposal, &mut ChangeSet::default());
        self.drainer.state_changed(now);
        assert_eq!(self.drainer.poll(look, &self.state), None, "after it was applied");
        found
    }
}

fn drain() -> Drain {
    Drain {
        started_at: 0,
        deadline_at: Some(60 * MINUTE),
        force: false,
        ignore_system: false,
        owner: "operator".into(),
        cancelable: false,
    }
}

fn member(healthy: Option<bool>) -> AllocationDeployment {
    let health = healthy.map(|healthy| AllocationHealth { healthy, at: 0, index: 1 });
    AllocationDeployment { id: DEPLOYMENT, canary: false, health }
}

fn names(list: &[&str]) -> Vec<String> {
    list.iter().map(|name| (*name).to_owned()).collect()
}

fn nothing() -> (Vec<String>, usize) {
    (Vec::new(), 0)
}

/// Services move `max_parallel` at a time, the next when the replacement is healthy; then the
/// drain is complete.
#[test]
fn services_move_a_few_at_a_time() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 3, 1);
    assert_eq!(cluster.advance(MINUTE), (names(&["web0"]), 0));
    assert_eq!(cluster.advance(2 * MINUTE), nothing());
    cluster.replace("web0", 3 * MINUTE);
    assert_eq!(cluster.advance(3 * MINUTE), nothing(), "not healthy yet");
    let healthy_at = 3 * MINUTE + 10_000;
    assert_eq!(cluster.drainer.next_deadline(), Some(healthy_at));
    assert_eq!(cluster.advance(healthy_at), (names(&["web1"]), 0));
    cluster.replace("web1", 4 * MINUTE);
    assert_eq!(cluster.advance(5 * MINUTE), (names(&["web2"]), 0));
    cluster.change("web2", |row| row.desired = DesiredStatus::Stop);
    assert_eq!(cluster.advance(6 * MINUTE), nothing(), "the agent has not reported its end");
    cluster.replace("web2", 6 * MINUTE);
    assert_eq!(cluster.advance(7 * MINUTE), (Vec::new(), 1));
    assert!(cluster.drainer.is_empty());
    assert_eq!(cluster.state.nodes().get(&NodeId(named("a"))).unwrap().drain, None);
}

/// A replacement whose task ends and is started again is not there; what is to go goes also when it
/// is started again and again.
#[test]
fn a_replacement_has_to_stay_up() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 2, 1);
    let restarted = |state: &str, last_restart_ms| {
        let (state, started_at_ms) = (Text::from(state), 1_000);
        let task = TaskState { state, started_at_ms, last_restart_ms, ..TaskState::default() };
        BTreeMap::from([(Text::from("web"), task)])
    };
    cluster.change("web0", |row| row.tasks = restarted("pending", 0).into());
    assert_eq!(cluster.advance(MINUTE), (names(&["web0"]), 0));
    cluster.replace("web0", 2 * MINUTE);
    cluster.change("web0+", |row| row.tasks = restarted("pending", 0).into());
    assert_eq!(cluster.advance(3 * MINUTE), nothing(), "it waits for its restart");
    cluster.change("web0+", |row| {
        row.tasks = restarted("running", 1_000 + MINUTE).into();
        row.modified_at = 3 * MINUTE;
    });
    assert_eq!(cluster.advance(3 * MINUTE), nothing(), "not healthy again yet");
    let healthy_at = 3 * MINUTE + 10_000;
    assert_eq!(cluster.drainer.next_deadline(), Some(healthy_at));
    assert_eq!(cluster.advance(healthy_at), (names(&["web1"]), 0));
}

/// An instance on a node that is heard from again counts, and nothing else may change.
#[test]
fn drains_are_looked_at_when_another_node_is_back() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 2, 1);
    cluster.change("web1", |row| row.node = NodeId(named("b")));
    let mut other = node("b");
    other.liveness = fsm::Liveness::Down;
    put_node(&mut cluster.state, &other);
    assert_eq!(cluster.advance(MINUTE), nothing());
    let other = node("b");
    put_node(&mut cluster.state, &other);
    cluster.drainer.node_changed(2 * MINUTE, &other);
    let look = 2 * MINUTE + limits::DRAIN_COALESCE_MS;
    assert_eq!(cluster.drainer.next_deadline(), Some(look));
    assert!(cluster.drainer.poll(look, &cluster.state).is_some());
}

/// Two nodes that drain at once share the job's budget; two groups of instances in two
/// namespaces do not.
#[test]
fn the_budget_is_per_job_and_group() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 4, 2);
    cluster.run("other/web", JobKind::Service, 2, 1);
    cluster.change("web3", |row| row.node = NodeId(named("b")));
    let mut second = node("b");
    second.drain = Some(drain());
    put_node(&mut cluster.state, &second);
    assert_eq!(cluster.advance(MINUTE), (names(&["other/web0", "web0", "web1"]), 0));
}

/// An instance that has not started goes at once; one on a node that is not heard from does not
/// count as there.
#[test]
fn only_healthy_instances_count() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 3, 1);
    cluster.change("web1", |row| row.client = ClientStatus::Pending);
    assert_eq!(cluster.advance(MINUTE), (names(&["web1"]), 0), "two of three are there");
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 3, 1);
    cluster.change("web2", |row| row.node = NodeId(named("b")));
    let mut down = node("b");
    down.liveness = Liveness::Down;
    put_node(&mut cluster.state, &down);
    assert_eq!(cluster.advance(MINUTE), nothing());
}

/// A member of a deployment that goes on counts only while it is healthy: what a rollout has taken
/// down is not taken once more by a drain. Once the deployment is over, its run time counts again.
#[test]
fn members_of_a_deployment_count_when_they_are_healthy() {
    for health in [None, Some(false)] {
        let mut cluster = Cluster::new(drain());
        cluster.run("web", JobKind::Service, 3, 1);
        cluster.deploy("web", DeploymentStatus::Running);
        cluster.change("web2", |row| {
            row.node = NodeId(named("b"));
            row.deployment = Some(member(health));
        });
        assert_eq!(cluster.advance(MINUTE), nothing());
        let before = cluster.state.clone();
        cluster.change("web2", |row| row.deployment = Some(member(Some(true))));
        assert_eq!(cluster.advance(2 * MINUTE), (names(&["web0"]), 0));
        cluster.state = before;
        cluster.deploy("web", DeploymentStatus::Failed);
        assert_eq!(cluster.advance(2 * MINUTE), (names(&["web0"]), 0));
    }
}

/// A member that is not healthy serves nobody: it goes when enough others are there, and does not
/// hold up the drain.
#[test]
fn members_that_are_not_healthy_go_when_enough_others_are_there() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 3, 1);
    cluster.deploy("web", DeploymentStatus::Running);
    cluster.change("web2", |row| row.deployment = Some(member(Some(false))));
    assert_eq!(cluster.advance(MINUTE), (names(&["web2"]), 0), "two of three are there");
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 3, 1);
    cluster.deploy("web", DeploymentStatus::Running);
    for id in ["web1", "web2"] {
        cluster.change(id, |row| row.deployment = Some(member(None)));
    }
    assert_eq!(cluster.advance(MINUTE), nothing());
}

/// Batch work is left to end until the deadline; then everything that is left goes.
#[test]
fn batch_waits_until_the_deadline() {
    let mut cluster = Cluster::new(drain());
    cluster.run("crunch", JobKind::Batch, 2, 1);
    cluster.run("monitor", JobKind::System, 1, 1);
    assert_eq!(cluster.advance(MINUTE), nothing());
    assert_eq!(cluster.drainer.next_deadline(), Some(60 * MINUTE));
    let all = names(&["crunch0", "crunch1", "monitor0"]);
    assert_eq!(cluster.advance(60 * MINUTE), (all, 0));
}

/// System jobs go last, when the others have ended on the node.
#[test]
fn system_jobs_go_last() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 1, 1);
    cluster.run("monitor", JobKind::System, 1, 1);
    assert_eq!(cluster.advance(MINUTE), (names(&["web0"]), 0));
    assert_eq!(cluster.advance(2 * MINUTE), nothing());
    cluster.replace("web0", 0);
    assert_eq!(cluster.advance(3 * MINUTE), (names(&["monitor0"]), 0));
}

#[test]
fn ignored_system_jobs_stay() {
    let mut cluster = Cluster::new(Drain { ignore_system: true, ..drain() });
    cluster.run("monitor", JobKind::System, 1, 1);
    assert_eq!(cluster.advance(MINUTE), (Vec::new(), 1));
}

/// What runs once per node to its end has its time like a batch job, also when system jobs stay.
#[test]
fn sysbatch_jobs_are_left_to_end() {
    for ignore_system in [false, true] {
        let mut cluster = Cluster::new(Drain { ignore_system, ..drain() });
        cluster.run("backup", JobKind::Sysbatch, 1, 1);
        cluster.run("monitor", JobKind::System, 1, 1);
        assert_eq!(cluster.advance(MINUTE), nothing());
        let before = cluster.state.clone();
        let rest = ["backup0", "monitor0"];
        let rest = if ignore_system { &rest[..1] } else { &rest[..] };
        assert_eq!(cluster.advance(60 * MINUTE), (names(rest), 0));
        cluster.state = before;
        cluster.change("backup0", |row| row.client = ClientStatus::Complete);
        let left = if ignore_system { (Vec::new(), 1) } else { (names(&["monitor0"]), 0) };
        assert_eq!(cluster.advance(2 * MINUTE), left);
    }
}

/// An empty node is done at once; `force` moves everything at once.
#[test]
fn empty_nodes_are_done_and_force_takes_all() {
    assert_eq!(Cluster::new(drain()).advance(0), (Vec::new(), 1));
    let mut cluster = Cluster::new(Drain { force: true, deadline_at: None, ..drain() });
    cluster.run("web", JobKind::Service, 2, 1);
    cluster.run("crunch", JobKind::Batch, 1, 1);
    assert_eq!(cluster.advance(0), (names(&["crunch0", "web0", "web1"]), 0));
}

/// What a stopped job still has running is its scheduler's to end.
#[test]
fn stopped_jobs_are_left_to_their_scheduler() {
    let mut cluster = Cluster::new(drain());
    cluster.run("web", JobKind::Service, 1, 1);
    let key = JobKey::new("default", "web");
    let mut row = (**cluster.state.jobs().get(&key).unwrap()).clone();
    row.stop = true;
    fsm::testing::put(&mut cluster.state, &row);
    assert_eq!(cluster.advance(MINUTE), nothing());
}

/// Migrations are named in bounded batches.
#[test]
fn batches_are_bounded() {
    let mut cluster = Cluster::new(Drain { force: true, ..drain() });
    let total = limits::MIGRATIONS_BATCH_MAX + 5;
    job(&mut cluster.state, "crunch", JobKind::Batch, 1, 1);
    for number in 0..u32::try_from(total).unwrap() {
        let mut row = allocation(&format!("c{number}"), "crunch", "a");
        row.name_index = number;
        fsm::testing::put(&mut cluster.state, &row);
    }
    cluster.state.rebuild_derived();
    cluster.drainer.restore(0, &cluster.state);
    let command = cluster.drainer.poll(limits::DRAIN_COALESCE_MS, &cluster.state);
    let Some(Command::Node(NodeCommand::AdvanceDrains(AdvanceDrains { migrate, .. }))) = command
    else {
        panic!("nothing to do")
    };
    assert_eq!(migrate.len(), limits::MIGRATIONS_BATCH_MAX);
    assert_eq!(cluster.drainer.next_deadline(), Some(2 * limits::DRAIN_COALESCE_MS));
}
