//! The operations of the budget, asked of one server after the other: what each is, and where in the
//! log is what it came to.
//!
//! An operation is all that the servers do until nothing follows from it any more. What follows a
//! registration is a placement, and counts as one.

use std::{collections::BTreeMap, sync::Arc};

use fsm::{
    AllocationId, ClientStatus, EvaluationId, Index, JobKind, JobSpec, NodeId, TaskEvent,
    TaskState,
    allocation::{ClientUpdate, NodeReport},
    job::{
        Constraint, DispatchJob, Dispatched, HealthCheck, Parameterized, PortAsk, RegisterJob,
        Task, UpdateStrategy,
    },
    node::{Drain, NodeReadiness, Readiness, RegisterNode, SetDrain},
    resources::Resources,
    testing,
};

use crate::server::Server;

/// Nodes of the datacenter of most jobs, and room for so many instances on each.
const NODES: usize = 40;
const ROOM: u64 = 300;
/// Tasks of a job, and what each has of several things.
const TASKS: usize = 4;
/// How often what is small is done: now and then a table's tree gets another node, which is not to
/// count.
const ROUNDS: usize = 5;
/// Allocations that leave the drained node.
const DRAINED: usize = 8;

/// Where an operation is in the log.
pub(crate) struct Operation {
    pub(crate) name: &'static str,
    /// The entry before its first.
    pub(crate) after: Index,
    /// Its last entry.
    pub(crate) upto: Index,
    /// Scheduling passes.
    pub(crate) passes: u64,
    /// The node that was heard from: that makes no entry.
    pub(crate) heard: Option<(NodeId, u64)>,
}

/// A job with what jobs have: several tasks with environments, ports, meta, constraints, and an
/// update strategy, by which a service gets deployments.
pub(crate) fn spec(name: &str, kind: JobKind, count: u32) -> JobSpec {
    let constraint = |left: &str, operand: &str, right: &str| Constraint {
        left: left.into(),
        operand: operand.into(),
        right: right.into(),
    };
    let values = |prefix: &str, many: usize| -> BTreeMap<_, _> {
        let pair = |number| (format!("{prefix}_{number}").into(), format!("value {number}").into());
        (0..many).map(pair).collect()
    };
    let mut spec = testing::job(name, kind, count);
    spec.datacenters = vec!["dc1".into()];
    spec.constraints = vec![constraint("${attr.kernel.name}", "=", "linux")];
    spec.meta = values("owner", 4);
    let is_service = kind == JobKind::Service;
    let group = &mut spec.groups[0];
    let task = group.tasks[0].clone();
    group.tasks = (0..TASKS)
        .map(|number| Task {
            name: format!("task-{number}").into(),
            config_json: r#"{"run_for":"1h"}"#.into(),
            env: values("VARIABLE", 8),
            meta: values("task", 2),
            constraints: vec![constraint("${node.class}", "!=", "spare")],
            resources: fsm::job::TaskResources { cpu_mhz: 50, memory_mb: 32, memory_mb_max: 0 },
            ..task.clone()
        })
        .collect();
    group.constraints = vec![constraint("${attr.cpu.arch}", "=", "amd64")];
    group.meta = values("group", 2);
    let port = |label: &str| PortAsk { label: label.into(), value: 0, to: 0 };
    let ports = vec![port("http"), port("admin")];
    group.network = Some(fsm::job::Network { ports, names_mode: false });
    group.update = is_service.then_some(UpdateStrategy {
        stagger_ms: 0,
        max_parallel: 1,
        healthy_ms_min: 10_000,
        healthy_deadline_ms: 300_000,
        progress_deadline_ms: 24 * 3_600_000,
        health_check: HealthCheck::TaskStates,
        canaries: 0,
        auto_promote: false,
        auto_revert: false,
    });
    spec
}

/// What a node says of itself that [`spec`] may be placed on.
pub(crate) fn description(name: &str, datacenter: &str) -> fsm::node::NodeDescription {
    let mut description = testing::description(name);
    description.datacenter = datacenter.into();
    description.resources.total =
        Resources { cpu_mhz: ROOM * 200, memory_mb: ROOM * 128, disk_mb: ROOM * 100 };
    let attributes = [("kernel.name", "linux"), ("cpu.arch", "amd64"), ("cpu.numcores", "64")];
    description.attributes =
        attributes.into_iter().map(|(key, value)| (key.into(), value.into())).collect();
    description
}

/// Runs all of them.
pub(crate) async fn run(server: Server) -> (Server, Vec<Operation>) {
    let mut script = Script { server, operations: Vec::new(), sequence: 0 };
    for number in 0..NODES {
        script.node(&format!("node-{number}"), "dc1").await;
    }
    // Nothing is measured while it is done for the first time.
    script.register(spec("first", JobKind::Service, 1)).await;
    script.server.until_quiet().await;
    for round in 0..ROUNDS {
        script.life_of_a_job(&format!("web-{round}")).await;
        script.batch_jobs(&format!("once-{round}"), &format!("parent-{round}")).await;
    }
    script.many_at_once().await;
    script.drain().await;
    (script.server, script.operations)
}

struct Script {
    server: Server,
    operations: Vec<Operation>,
    /// Of the next report of an allocation.
    sequence: u64,
}

/// The log and the passes before an operation.
#[derive(Clone, Copy)]
struct Begun {
    after: Index,
    passes: u64,
}

impl Script {
    fn begin(&self) -> Begun {
        Begun { after: self.server.state().index(), passes: self.server.passes() }
    }

    /// What was done since is an operation, with all that follows from it.
    async fn end(&mut self, name: &'static str, begun: Begun) {
        self.server.until_quiet().await;
        let (upto, passes) = (self.server.state().index(), self.server.passes() - begun.passes);
        self.operations.push(Operation { name, after: begun.after, upto, passes, heard: None });
    }

    fn evaluation(&self) -> EvaluationId {
        EvaluationId(self.server.id())
    }

    async fn register(&self, spec: JobSpec) -> Index {
        let spec = RegisterJob::new(Arc::new(spec), self.evaluation());
        self.server.write(spec).await
    }

    async fn node(&mut self, name: &str, datacenter: &str) {
        let node = testing::node_id(name);
        let evaluation_ids = vec![self.evaluation()];
        let description = Arc::new(description(name, datacenter));
        let (secret, identity, instance) = ([7; 16], [1; 16], None);
        let register =
            RegisterNode { node, secret, identity, description, instance, evaluation_ids };
        self.server.write_as_agent(register).await;
        self.report(node, Vec::new()).await;
        let incarnation = self.incarnation(node);
        self.sequence += 1;
        self.server
            .write_as_agent(NodeReadiness {
                node,
                incarnation,
                readiness: Readiness::Ok,
                reason: "".into(),
                sequence: self.sequence,
                evaluation_ids: vec![self.evaluation()],
            })
            .await;
    }

    fn incarnation(&self, node: NodeId) -> u64 {
        self.server.state().nodes().get(&node).expect("the node is registered").incarnation
    }

    async fn report(&self, node: NodeId, updates: Vec<ClientUpdate>) {
        let evaluation_ids = (0..4).map(|_| self.evaluation()).collect();
        let incarnation = self.incarnation(node);
        self.server.report(NodeReport { node, incarnation, updates, evaluation_ids }).await;
    }

    /// What an agent says of an allocation that comes into this status; healthy in its deployment,
    /// if it is.
    fn update(&mut self, id: AllocationId, status: ClientStatus, healthy: bool) -> ClientUpdate {
        self.sequence += 1;
        let state = self.server.state();
        let row = state.allocations().get(&id).expect("the allocation is there");
        let event = |kind: &str| TaskEvent {
            kind: kind.into(),
            at_ms: 1_000_000_000_000,
            message: "Task is as its event says".into(),
            exit_code: None,
            signal: None,
        };
        let task = TaskState {
            state: if status == ClientStatus::Running { "running" } else { "dead" }.into(),
            failed: false,
            restarts: 0,
            started_at_ms: 1_000_000_000_000,
            finished_at_ms: 0,
            last_restart_ms: 0,
            events: vec![event("Received"), event("Started")],
        };
        let tasks = (0..TASKS).map(|number| (format!("task-{number}").into(), task.clone()));
        let health = row.deployment.as_ref().filter(|_| healthy).map(|own| (own.id, true));
        ClientUpdate {
            id,
            sequence: self.sequence,
            status,
            description: "".into(),
            tasks: (!healthy).then(|| tasks.collect()),
            node_failure: None,
            health,
        }
    }

    /// Live allocations of a job with their nodes.
    fn allocations(&self, job: &str) -> Vec<(AllocationId, NodeId)> {
        let (state, key) = (self.server.state(), testing::job_key(job));
        let live = state.allocations().iter().filter(|row| row.job == key && row.is_live());
        live.map(|row| (row.id, row.node)).collect()
    }

    fn only(&self, job: &str) -> (AllocationId, NodeId) {
        let all = self.allocations(job);
        assert_eq!(all.len(), 1, "{job} has one allocation");
        all[0]
    }

    /// One allocation comes into a status.
    async fn comes(&mut self, job: &str, status: ClientStatus, healthy: bool) {
        let (id, node) = self.only(job);
        let update = self.update(id, status, healthy);
        self.report(node, vec![update]).await;
    }

    async fn life_of_a_job(&mut self, name: &str) {
        let begun = self.begin();
        let registered = self.register(spec(name, JobKind::Service, 1)).await;
        self.end("place 1", begun).await;
        let placed = self.operations.pop().expect("it was noted");
        let register = Operation { name: "register", upto: registered, passes: 0, ..placed };
        self.operations.extend([register, Operation { after: registered, ..placed }]);

        let begun = self.begin();
        self.comes(name, ClientStatus::Running, false).await;
        self.end("start", begun).await;

        let begun = self.begin();
        self.comes(name, ClientStatus::Running, true).await;
        self.end("health", begun).await;

        let begun = self.begin();
        self.register(spec(name, JobKind::Service, 1)).await;
        self.end("re-register, unchanged", begun).await;

        let begun = self.begin();
        let mut changed = spec(name, JobKind::Service, 1);
        changed.groups[0].tasks[0].env.insert("VARIABLE_0".into(), "another value".into());
        self.register(changed).await;
        self.end("re-register, changed", begun).await;
    }

    async fn many_at_once(&mut self) {
        let passes = self.server.passes();
        let after = self.register(spec("many", JobKind::Service, 1_000)).await;
        self.end("place 1,000", Begun { after, passes }).await;

        let mut by_node = BTreeMap::<NodeId, Vec<AllocationId>>::new();
        for (id, node) in self.allocations("many") {
            by_node.entry(node).or_default().push(id);
        }
        let (node, ids) = by_node.iter().find(|(_, ids)| ids.len() >= 100).expect("a full node");
        let ids = ids[..100].to_vec();
        let updates =
            ids.into_iter().map(|id| self.update(id, ClientStatus::Running, false)).collect();
        let begun = self.begin();
        self.report(*node, updates).await;
        self.end("statuses of 100", begun).await;

        let begun = self.begin();
        let heard = (*node, self.incarnation(*node));
        self.server.heartbeat(heard.0, heard.1).await;
        self.end("heartbeat", begun).await;
        self.operations.last_mut().expect("it was noted").heard = Some(heard);
    }

    async fn batch_jobs(&mut self, name: &str, parent: &str) {
        self.register(spec(name, JobKind::Batch, 1)).await;
        self.server.until_quiet().await;
        self.comes(name, ClientStatus::Running, false).await;
        self.server.until_quiet().await;
        let begun = self.begin();
        self.comes(name, ClientStatus::Complete, false).await;
        self.end("finish", begun).await;

        let mut spec = spec(parent, JobKind::Batch, 1);
        let payload = "required".into();
        spec.parameterized = Some(Parameterized { payload, ..Parameterized::default() });
        self.register(spec).await;
        self.server.until_quiet().await;
        let begun = self.begin();
        let child = Dispatched {
            id: format!("{parent}/dispatch-1").into(),
            payload: vec![b'x'; 1_000],
            meta: BTreeMap::new(),
            priority: None,
            token: "token".into(),
            evaluation: self.evaluation(),
        };
        let parent = testing::job_key(parent);
        self.server.write(DispatchJob { parent, children: vec![child] }).await;
        self.end("dispatch", begun).await;
    }

    /// A node with an allocation of each of several jobs, which leave it for another one.
    async fn drain(&mut self) {
        self.node("drained", "dc2").await;
        let names: Vec<String> = (0..DRAINED).map(|number| format!("moves-{number}")).collect();
        for name in &names {
            let mut spec = spec(name, JobKind::Service, 1);
            spec.datacenters = vec!["dc2".into()];
            self.register(spec).await;
            self.server.until_quiet().await;
            self.comes(name, ClientStatus::Running, true).await;
        }
        self.node("other", "dc2").await;
        self.server.until_quiet().await;
        let node = testing::node_id("drained");
        let begun = self.begin();
        let drain = Drain {
            started_at: 0,
            deadline_at: None,
            force: false,
            ignore_system: false,
            owner: "operator".into(),
            cancelable: false,
        };
        let (drain, meta, evaluation_ids) =
            (Some(drain), BTreeMap::new(), (0..DRAINED).map(|_| self.evaluation()).collect());
        let command = SetDrain { node, drain, mark_eligible: false, meta, evaluation_ids };
        self.server.write(command).await;
        self.server.until_quiet().await;
        let state = self.server.state();
        let left = state.allocations().iter().filter(|row| row.node == node);
        let ids: Vec<AllocationId> = left.map(|row| row.id).collect();
        assert_eq!(ids.len(), DRAINED, "each of the jobs had an allocation there");
        let ended = |id| self.update(id, ClientStatus::Complete, false);
        let ended: Vec<ClientUpdate> = ids.into_iter().map(ended).collect();
        self.report(node, ended).await;
        self.end("drain", begun).await;
        let state = self.server.state();
        let row = state.nodes().get(&node).expect("the node is registered");
        assert!(row.drain.is_none(), "the drain has come to its end");
        for name in &names {
            assert_ne!(self.only(name).1, node, "{name} has moved");
        }
    }
}
