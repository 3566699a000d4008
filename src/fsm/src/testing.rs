//! A small driver for tests, of this package and of others: builds jobs, nodes and plans, and
//! applies commands at given log times.
//!
//! It goes through [`State::apply`] alone, as production does, and checks every invariant after
//! each entry. It must never be used outside tests: it panics on anything unexpected.
//!
//! ```text
//!  let mut driver = Driver::default();
//!  let node = driver.node("a");                             registered and ready
//!  let evaluation = driver.register_job(job("web", JobKind::Service, 1));
//!  let plan = driver.plan(evaluation).with(driver.placement("web", 0, node));
//!  let verdict = driver.commit_plan(plan);
//! ```

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use bytes::Bytes;

use crate::{
    allocation::{
        Allocation, ClientStatus, ClientUpdate, NodeReport, Replacement, StopAllocation,
        UpdateAllocations,
    },
    apply::Applied,
    capacity::{
        BusyRule, CapacityGroup, DecideCapacity, DecidedCapacity, GroupDimension, Prediction,
        Requirements, SetRequirements,
    },
    codec,
    command::{Command, Proposal, Rejection, Reply},
    evaluation::{Evaluation, EvaluationStatus},
    id::{AllocationId, EvaluationId, InstanceId, JobKey, NodeId, RequestId, Text, TimeMs},
    invariant,
    job::{
        DeregisterJob, EvaluateJob, HealthCheck, Job, JobKind, JobSpec, LogConfig, MigrateStrategy,
        Network, PortAsk, RegisterJob, RestartPolicy, Task, TaskGroup, TaskResources,
        UpdateStrategy,
    },
    node::{
        self, Drain, EndSuspensions, InstanceProof, Liveness, LivenessChange, Node,
        NodeDescription, NodeLiveness, NodeReadiness, NodeResources, Readiness, ReapNode,
        RegisterNode, SetDrain, SetEligibility, SuspendNode,
    },
    plan::{ApplyPlans, InPlace, Outcome, Placement, Plan, PlanVerdict, Stop},
    pool::{
        Behavior, CreateOutcome, DeclaredNode, DestroyOutcome, Instance, InstanceOutcome,
        InstancePool, InstanceType, Intent, RequestInstances, SetInstanceBehavior,
        ShutDownInstance, ShutdownCause, UpsertInstancePool,
    },
    resources::{Port, Resources},
    session::Request,
    settings::{Namespace, NodeLife, SetSchedulerConfiguration},
    state::State,
    table::{ChangeSet, Row, disk_key},
    upkeep::Tick,
};

/// Log time at which a [`Driver`] starts.
pub const START_MS: TimeMs = 1_000_000_000_000;
/// Group of the jobs made by [`job`].
pub const GROUP: &str = "web";
/// Meta key of a job that a [`Driver`]'s cluster is configured to take for its affinity.
pub const AFFINITY: &str = "snapshot";
/// What one instance of a [`job`] asks for. A node made by [`description`] has room for eight.
pub const ASK: Resources = Resources { cpu_mhz: 500, memory_mb: 256, disk_mb: 100 };

/// What happens between two commands of a script.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interruption {
    /// A blank entry, as the first of a term is.
    Blank,
    Tick,
    /// The state is saved and loaded, and a blank entry comes.
    Reload,
    /// Another leader: a new term with its blank entry, on a replica that was just loaded.
    NewLeader,
}

/// A state, and what it takes to apply commands to it.
pub struct Driver {
    pub state: State,
    /// Rows changed so far.
    pub changes: ChangeSet,
    /// Log time of the next command.
    pub now: TimeMs,
    /// Term of the next entry.
    pub term: u64,
    /// What comes before each command: the first everywhere, or the second at the step of that
    /// number and the first elsewhere.
    pub interruptions: Option<(Interruption, Option<(usize, Interruption)>)>,
    /// Commands so far.
    pub steps: usize,
    /// Check every invariant after each command.
    pub checked: bool,
    /// Ids made so far.
    pub ids: u64,
}

impl Default for Driver {
    fn default() -> Self {
        let mut changes = ChangeSet::default();
        let state = State::genesis(&mut changes);
        Self {
            state,
            changes,
            now: START_MS,
            term: 1,
            interruptions: None,
            steps: 0,
            checked: true,
            ids: 0,
        }
    }
}

impl Driver {
    /// Sets log time to so many ms after the start.
    pub fn at_ms(&mut self, ms: u64) {
        self.now = START_MS.saturating_add(ms);
    }

    /// Sets log time to so many seconds after the start.
    pub fn at_seconds(&mut self, seconds: u64) {
        self.at_ms(seconds.saturating_mul(1000));
    }

    /// A new id, the same in every run.
    pub fn id(&mut self) -> [u8; 16] {
        self.ids = self.ids.saturating_add(1);
        (u128::from(self.ids) << 64).to_be_bytes()
    }

    /// A new evaluation id.
    pub fn evaluation_id(&mut self) -> EvaluationId {
        EvaluationId(self.id())
    }

    fn evaluation_ids(&mut self) -> Vec<EvaluationId> {
        (0..4).map(|_| self.evaluation_id()).collect()
    }

    /// Applies a command of a leader service at the driver's log time.
    pub fn commit(&mut self, command: Command) -> Applied {
        self.commit_proposal(&Proposal { at: self.now, epoch: None, request: None, command })
    }

    /// Applies a client's command, with a request id stamped at `stamped_at`.
    pub fn commit_request(&mut self, id: u8, stamped_at: TimeMs, command: Command) -> Applied {
        let payload_hash = payload_hash(&command);
        let request = Request { id: RequestId([id; 16]), stamped_at, payload_hash };
        self.commit_proposal(&Proposal {
            at: self.now,
            epoch: None,
            request: Some(request),
            command,
        })
    }

    /// Applies an entry.
    pub fn commit_proposal(&mut self, proposal: &Proposal) -> Applied {
        if let Some((everywhere, single)) = self.interruptions {
            let here = single.filter(|(step, _)| *step == self.steps);
            self.interrupt(here.map_or(everywhere, |(_, interruption)| interruption));
        }
        self.steps = self.steps.saturating_add(1);
        let index = self.state.index.saturating_add(1);
        let applied = self.state.apply(index, self.term, proposal, &mut self.changes);
        if self.checked {
            assert_eq!(invariant::check(&self.state), [], "after {:?}", proposal.command);
        }
        applied
    }

    /// Lets something come between two commands; each takes one entry.
    pub fn interrupt(&mut self, interruption: Interruption) {
        let index = self.state.index.saturating_add(1);
        match interruption {
            Interruption::Blank => self.state.advance(index, self.term),
            Interruption::Tick => {
                let at = self.state.at;
                let tick =
                    Proposal { at, epoch: None, request: None, command: Command::from(Tick) };
                let _applied = self.state.apply(index, self.term, &tick, &mut self.changes);
            }
            Interruption::Reload => {
                self.state = reload(&self.state);
                self.state.advance(index, self.term);
            }
            Interruption::NewLeader => {
                self.term = self.term.saturating_add(1);
                self.state = reload(&self.state);
                self.state.advance(index, self.term);
            }
        }
    }

    /// Applies a command that must not be rejected.
    pub fn accept(&mut self, command: Command) -> Reply {
        let reply = self.commit(command.clone()).reply;
        assert!(!matches!(reply, Reply::Rejected(_)), "{command:?} was rejected: {reply:?}");
        reply
    }

    /// Applies a command that must be rejected, and checks that no row changed.
    pub fn reject(&mut self, command: Command) -> Rejection {
        let before = rows(&self.state);
        let reply = self.commit(command.clone()).reply;
        assert_eq!(rows(&self.state), before, "a rejected command changed rows: {command:?}");
        let Reply::Rejected(rejection) = reply else {
            panic!("{command:?} was not rejected: {reply:?}")
        };
        rejection
    }

    // Nodes.

    /// Registers a node, or registers it again. Its identity is `identity` in every byte.
    pub fn register_node_as(&mut self, name: &str, identity: u8, description: NodeDescription) {
        let evaluation_ids = self.evaluation_ids();
        self.accept(Command::from(RegisterNode {
            instance: None,
            node: node_id(name),
            secret: [7; 16],
            identity: [identity; 16],
            description: Arc::new(description),
            evaluation_ids,
        }));
    }

    /// Registers a node of the usual size, or registers it again after it was heard from.
    pub fn register_node(&mut self, name: &str) -> NodeId {
        self.register_node_as(name, 1, description(name));
        node_id(name)
    }

    /// Reports a readiness check of a node.
    pub fn readiness(&mut self, name: &str, readiness: Readiness) -> Reply {
        self.readiness_as(name, readiness, "")
    }

    /// Reports a readiness check of a node, with the first line of its output.
    pub fn readiness_as(&mut self, name: &str, readiness: Readiness, reason: &str) -> Reply {
        let evaluation_ids = self.evaluation_ids();
        // Rises with each id that was made.
        let sequence = self.ids;
        let (node, incarnation) = (node_id(name), self.incarnation(name));
        self.commit(Command::from(NodeReadiness {
            node,
            incarnation,
            readiness,
            reason: reason.into(),
            sequence,
            evaluation_ids,
        }))
        .reply
    }

    /// Changes settings of node life.
    pub fn node_life(&mut self, change: impl FnOnce(&mut NodeLife)) {
        let mut configuration = self.state.scheduler_configuration();
        change(&mut configuration.node_life);
        self.accept(Command::from(SetSchedulerConfiguration {
            configuration,
            keep_node_life: false,
            enforce_index: None,
        }));
    }

    /// An operator suspends a node, for a while or until that is taken back.
    pub fn suspend(&mut self, name: &str, for_ms: Option<u64>) {
        self.accept(Command::from(SuspendNode {
            node: node_id(name),
            by: "operator".into(),
            reason: "maintenance".into(),
            for_ms,
        }));
    }

    /// Ends suspensions whose time is over, as the leader proposes it.
    pub fn end_suspension(&mut self, name: &str) {
        self.accept(Command::from(EndSuspensions { nodes: vec![node_id(name)] }));
    }

    /// Reports the statuses of a node's allocations: none changed.
    pub fn sync(&mut self, name: &str) {
        let (node, incarnation) = (node_id(name), self.incarnation(name));
        let report =
            NodeReport { node, incarnation, updates: Vec::new(), evaluation_ids: Vec::new() };
        self.accept(Command::from(UpdateAllocations { reports: vec![report] }));
    }

    /// A node that is registered, synced and ready.
    pub fn node(&mut self, name: &str) -> NodeId {
        let id = self.register_node(name);
        self.sync(name);
        let reply = self.readiness(name, Readiness::Ok);
        assert!(matches!(reply, Reply::Node { .. }), "{name} is not ready: {reply:?}");
        id
    }

    /// What the leader saw of a node's liveness. Unknown nodes may be named.
    pub fn liveness(&mut self, name: &str, liveness: Liveness) -> Vec<EvaluationId> {
        let change =
            LivenessChange { node: node_id(name), incarnation: self.incarnation(name), liveness };
        let evaluation_ids = self.evaluation_ids();
        evaluations(self.accept(Command::from(NodeLiveness {
            changes: vec![change],
            window_ms: 30_000,
            evaluation_ids,
        })))
    }

    /// Takes a node out of service by an operator, or brings it back.
    pub fn eligibility(&mut self, name: &str, eligible: bool) -> Reply {
        let evaluation_ids = self.evaluation_ids();
        self.accept(Command::from(SetEligibility {
            node: node_id(name),
            eligible,
            by: "operator".into(),
            reason: "maintenance".into(),
            evaluation_ids,
        }))
    }

    /// Starts a drain without a deadline, or ends it and leaves the node ineligible.
    pub fn drain(&mut self, name: &str, on: bool) {
        let drain = on.then(|| Drain {
            started_at: 0,
            deadline_at: None,
            force: false,
            ignore_system: false,
            owner: "operator".into(),
            cancelable: false,
        });
        let evaluation_ids = self.evaluation_ids();
        self.accept(Command::from(SetDrain {
            node: node_id(name),
            drain,
            mark_eligible: false,
            meta: std::collections::BTreeMap::new(),
            evaluation_ids,
        }));
    }

    /// The command that reaps a node in its incarnation.
    pub fn reap(&mut self, name: &str, force: bool) -> Command {
        let incarnation = Some(self.incarnation(name));
        let evaluation_ids = self.evaluation_ids();
        Command::from(ReapNode { node: node_id(name), incarnation, force, evaluation_ids })
    }

    /// A node's row.
    pub fn node_row(&self, name: &str) -> &Node {
        self.state.nodes.get(&node_id(name)).expect("the node is registered")
    }

    fn incarnation(&self, name: &str) -> u64 {
        self.state.nodes.get(&node_id(name)).map_or(0, |node| node.incarnation)
    }

    // Instances.

    /// Creates or changes an instance pool of up to three instances, of the types `small` and
    /// `large`.
    pub fn instance_pool(&mut self, name: &str, change: impl FnOnce(&mut InstancePool)) {
        let mut pool = instance_pool(name);
        change(&mut pool);
        self.accept(UpsertInstancePool { pool: pool.into(), enforce_index: None }.into());
    }

    /// The command that asks for one instance, with a new id and the token of [`proof`].
    pub fn intent(&mut self, pool: &str, kind: &str) -> Intent {
        let id = InstanceId(self.id());
        assert!(self.state.instance_pools.contains(&pool.into()), "there is no pool {pool}");
        Intent { id, token: proof(id).token, kind: kind.into(), wanted_by: None, group: None }
    }

    /// The command that asks for instances of a pool as it is.
    pub fn request(&self, pool: &str, intents: Vec<Intent>) -> Command {
        let row = self.state.instance_pools.get(&pool.into()).expect("the pool exists");
        let (pool, pool_modify_index) = (pool.into(), row.modify_index);
        Command::from(RequestInstances { pool, pool_modify_index, intents })
    }

    /// Asks for an instance; answers with its id.
    pub fn request_instance(&mut self, pool: &str, kind: &str) -> InstanceId {
        let intent = self.intent(pool, kind);
        let id = intent.id;
        let command = self.request(pool, vec![intent]);
        self.accept(command);
        id
    }

    /// The provider answers that it has made an instance.
    pub fn made(&mut self, id: InstanceId) {
        let row = self.instance_row(id);
        let (provider, pool, kind) =
            (row.provider.clone(), row.pool.clone(), row.kind.name.clone());
        let outcome = CreateOutcome::Made {
            provider_id: format!("i-{id}").into(),
            address: "127.0.0.1".into(),
            scope: "host".into(),
        };
        self.accept(InstanceOutcome { id, provider, pool, kind, outcome }.into());
    }

    /// The command by which a node registers as an instance.
    pub fn register_as(&mut self, name: &str, proof: InstanceProof) -> Command {
        let pool = self.state.instances.get(&proof.id).map_or("gpu".into(), |row| row.pool.clone());
        let evaluation_ids = self.evaluation_ids();
        Command::from(RegisterNode {
            instance: Some(proof),
            node: node_id(name),
            secret: [7; 16],
            identity: [1; 16],
            description: Arc::new(NodeDescription { pool, ..description(name) }),
            evaluation_ids,
        })
    }

    /// An instance that is made, and whose node of the name is ready.
    pub fn instance(&mut self, pool: &str, kind: &str, name: &str) -> InstanceId {
        let id = self.request_instance(pool, kind);
        self.made(id);
        let command = self.register_as(name, proof(id));
        self.accept(command);
        self.sync(name);
        self.readiness(name, Readiness::Ok);
        id
    }

    /// An operator says what is wanted of an instance.
    pub fn behave(&mut self, id: InstanceId, behavior: Behavior) {
        let evaluation_ids = self.evaluation_ids();
        let (by, reason) = ("alice@web1".into(), "disk is looked at".into());
        self.accept(
            SetInstanceBehavior { id, behavior, deadline_ms: None, by, reason, evaluation_ids }
                .into(),
        );
    }

    /// Begins the end of an instance.
    pub fn shut_down(&mut self, id: InstanceId, cause: ShutdownCause) -> Reply {
        let command = self.shut_down_command(id, cause);
        self.commit(command).reply
    }

    /// The command that begins the end of an instance.
    pub fn shut_down_command(&mut self, id: InstanceId, cause: ShutdownCause) -> Command {
        let by = if cause == ShutdownCause::Operator { "alice@web1" } else { "" }.into();
        let evaluation_ids = self.evaluation_ids();
        ShutDownInstance { id, cause, reason: cause.name().into(), by, evaluation_ids }.into()
    }

    /// The provider says that an instance's machine is gone.
    pub fn destroyed(&mut self, id: InstanceId) -> Reply {
        let row = self.state.instances.get(&id);
        let provider_id = row.map_or_else(|| "".into(), |row| row.provider_id.clone());
        let (gone, error, evaluation_ids) = (true, "".into(), self.evaluation_ids());
        let outcome = DestroyOutcome { id, provider_id, gone, error, evaluation_ids };
        self.commit(outcome.into()).reply
    }

    /// An instance's row.
    pub fn instance_row(&self, id: InstanceId) -> &Instance {
        self.state.instances.get(&id).expect("the instance exists")
    }

    // Jobs.

    /// Registers a job; answers with its evaluation.
    pub fn register_job(&mut self, spec: JobSpec) -> EvaluationId {
        let evaluation = self.evaluation_id();
        let command = register(spec, evaluation);
        let reply = self.accept(command);
        let Reply::Job { evaluation: Some(made), .. } = reply else {
            panic!("no evaluation was made: {reply:?}")
        };
        made
    }

    /// Makes an evaluation of a job.
    pub fn evaluate_job(&mut self, name: &str) -> EvaluationId {
        let evaluation = self.evaluation_id();
        self.accept(Command::from(EvaluateJob {
            job: job_key(name),
            force_reschedule: false,
            evaluation,
        }));
        evaluation
    }

    /// Stops a job, or purges it; answers with its evaluation.
    pub fn deregister_job(&mut self, name: &str, purge: bool) -> Option<EvaluationId> {
        let evaluation = self.evaluation_id();
        let command = Command::from(DeregisterJob {
            job: job_key(name),
            purge,
            evaluation,
            evaluation_priority: None,
            no_shutdown_delay: false,
        });
        let reply = self.accept(command);
        let Reply::Job { evaluation, .. } = reply else { panic!("unexpected reply {reply:?}") };
        evaluation
    }

    /// A job's row.
    pub fn job_row(&self, name: &str) -> &Job {
        self.state.jobs.get(&job_key(name)).expect("the job is registered")
    }

    /// An evaluation's row.
    pub fn evaluation(&self, id: EvaluationId) -> &Evaluation {
        self.state.evaluations.get(&id).expect("the evaluation exists")
    }

    /// Ids of a job's pending and blocked evaluations.
    pub fn open_evaluations(&self, name: &str) -> Vec<EvaluationId> {
        let index = self.state.job_index(&job_key(name));
        index.map_or_else(Vec::new, |index| index.open_evaluations.iter().copied().collect())
    }

    // Plans.

    /// An empty plan of an evaluation on the state as it is; it completes the evaluation when all
    /// of it is taken.
    pub fn plan(&self, evaluation: EvaluationId) -> Plan {
        let row = self.evaluation(evaluation);
        let job = self.state.jobs.get(&row.job);
        Plan {
            evaluation,
            job: row.job.clone(),
            job_create_index: job.map_or(0, |job| job.create_index),
            job_version: job.map_or(0, |job| job.version),
            snapshot_index: self.state.index,
            priority: row.priority,
            all_at_once: false,
            stops: Vec::new(),
            in_place: Vec::new(),
            follow_ups: Vec::new(),
            placements: Vec::new(),
            deployment: None,
            outcome: Some(outcome(EvaluationStatus::Complete)),
        }
    }

    /// A placement with a new id and no ports.
    pub fn placement(&mut self, group: &str, name_index: u32, node: NodeId) -> Placement {
        Placement {
            id: AllocationId(self.id()),
            group: group.into(),
            name_index,
            canary: false,
            version: None,
            node,
            ports: Vec::new(),
            previous: None,
            preempts: Vec::new(),
            reschedules: Vec::new(),
            metrics: None,
        }
    }

    /// Applies a plan; answers with the verdict.
    pub fn commit_plan(&mut self, plan: Plan) -> PlanVerdict {
        let verdicts = self.commit_plans(vec![plan]);
        verdicts.into_iter().next().expect("one verdict per plan")
    }

    /// Applies plans in one entry.
    pub fn commit_plans(&mut self, plans: Vec<Plan>) -> Vec<PlanVerdict> {
        let plans = plans.into_iter().map(Arc::new).collect();
        let reply = self.accept(Command::from(ApplyPlans { plans }));
        let Reply::Plans(verdicts) = reply else { panic!("unexpected reply {reply:?}") };
        verdicts
    }

    /// Evaluates a job and places one instance of [`GROUP`] on a node.
    pub fn place(&mut self, job: &str, name_index: u32, node: NodeId) -> AllocationId {
        let evaluation = self.evaluate_job(job);
        let placement = self.placement(GROUP, name_index, node);
        let id = placement.id;
        let plan = self.plan(evaluation).with(placement);
        let verdict = self.commit_plan(plan);
        assert!(verdict.outcome_taken, "not placed: {verdict:?}");
        id
    }

    /// As [`Self::place`], and the agent reports that it runs.
    pub fn run(&mut self, job: &str, name_index: u32, node: NodeId) -> AllocationId {
        let id = self.place(job, name_index, node);
        self.report(id, ClientStatus::Running);
        id
    }

    /// An allocation's row.
    pub fn allocation(&self, id: AllocationId) -> &Allocation {
        self.state.allocations.get(&id).expect("the allocation exists")
    }

    /// The next report of an allocation by its node's present incarnation.
    pub fn update(&self, id: AllocationId, status: ClientStatus) -> ClientUpdate {
        ClientUpdate {
            id,
            sequence: self.allocation(id).client_sequence.saturating_add(1),
            status,
            description: "".into(),
            tasks: Some(BTreeMap::new()),
            node_failure: None,
            health: None,
        }
    }

    /// Reports a status as the allocation's node would; answers with the evaluations made.
    pub fn report(&mut self, id: AllocationId, status: ClientStatus) -> Vec<EvaluationId> {
        let update = self.update(id, status);
        self.report_update(update)
    }

    /// Reports that an allocation runs, or has failed, and whether it is healthy in its deployment;
    /// answers with the evaluations made.
    pub fn report_health(
        &mut self,
        id: AllocationId,
        status: ClientStatus,
        healthy: bool,
    ) -> Vec<EvaluationId> {
        let mut update = self.update(id, status);
        let own = self.allocation(id).deployment.expect("it belongs to a deployment");
        update.health = Some((own.id, healthy));
        self.report_update(update)
    }

    /// Reports that an allocation failed by the node's fault.
    pub fn report_node_failure(&mut self, id: AllocationId) -> Vec<EvaluationId> {
        let mut update = self.update(id, ClientStatus::Failed);
        update.node_failure = Some("cannot start the executor".into());
        self.report_update(update)
    }

    /// A source says what it needs, in epoch 1.
    pub fn require(&mut self, source: &str, seq: u64, amounts: &[(&str, u64)]) {
        let words = vec![requirements(source, seq, amounts)];
        self.accept(Command::from(SetRequirements { words }));
    }

    /// Decides how much a group is to give, from what is required of it now.
    pub fn decide(&mut self, group: &str, desired: u64) {
        let row = self.state.capacity_targets().get(&group.into());
        let (required, requirements_index) =
            row.map_or((0, 0), |row| (row.required, row.requirements_index));
        let decision = DecidedCapacity {
            group: group.into(),
            desired,
            required,
            predicted: required,
            requirements_index,
        };
        self.accept(Command::from(DecideCapacity { decisions: vec![decision] }));
    }

    /// Reports an update as the allocation's node would.
    pub fn report_update(&mut self, update: ClientUpdate) -> Vec<EvaluationId> {
        let node = self.allocation(update.id).node;
        let incarnation = self.state.nodes.get(&node).map_or(0, |node| node.incarnation);
        let evaluation_ids = self.evaluation_ids();
        let report = NodeReport { node, incarnation, updates: vec![update], evaluation_ids };
        evaluations(self.accept(Command::from(UpdateAllocations { reports: vec![report] })))
    }
}

impl Plan {
    /// With one more placement.
    #[must_use]
    pub fn with(mut self, placement: Placement) -> Self {
        self.placements.push(placement);
        self
    }

    /// With one more allocation to end.
    #[must_use]
    pub fn stopping(mut self, id: AllocationId, client: Option<ClientStatus>) -> Self {
        let description = "not wanted any more".into();
        self.stops.push(Stop { id, description, client });
        self
    }

    /// With one more allocation that moves to the plan's version.
    #[must_use]
    pub fn updating(mut self, id: AllocationId) -> Self {
        self.in_place.push(InPlace { id });
        self
    }
}

fn evaluations(reply: Reply) -> Vec<EvaluationId> {
    let Reply::Evaluations(made) = reply else { panic!("unexpected reply {reply:?}") };
    made
}

/// The id of a node with a name of up to 16 bytes.
pub fn node_id(name: &str) -> NodeId {
    let mut id = [0; 16];
    for (slot, byte) in id.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    NodeId(id)
}

/// The key of a job in the default namespace.
pub fn job_key(name: &str) -> JobKey {
    JobKey::new("default", name)
}

/// A node of 4000 MHz, 8192 MiB and 100 000 MiB of disk, with the driver that [`job`] asks for.
pub fn description(name: &str) -> NodeDescription {
    NodeDescription {
        name: name.into(),
        datacenter: "dc1".into(),
        class: "".into(),
        pool: "default".into(),
        resources: NodeResources {
            total: Resources { cpu_mhz: 4000, memory_mb: 8192, disk_mb: 100_000 },
            reserved_ports: vec![22],
            dynamic_port_min: 20_000,
            dynamic_port_max: 32_000,
            address: "127.0.0.1".into(),
            ..NodeResources::default()
        },
        drivers: BTreeMap::from([(
            "mock".into(),
            node::Driver { detected: true, healthy: true, ..node::Driver::default() },
        )]),
        ..NodeDescription::default()
    }
}

/// An instance pool of up to three instances, of the types `small` and `large`.
pub fn instance_pool(name: &str) -> InstancePool {
    let kind = |name: &str, price_micro| {
        let kind = InstanceType {
            name: name.into(),
            provider_type: format!("t-{name}").into(),
            cpu: 4000,
            memory_mb: 8192,
            disk_mb: 100_000,
            price_micro,
            quota_group: "vcpu".into(),
            node: DeclaredNode {
                datacenter: "dc1".into(),
                drivers: vec!["mock".into()],
                ..DeclaredNode::default()
            },
            ..InstanceType::default()
        };
        (name.into(), Arc::new(kind))
    };
    InstancePool {
        name: name.into(),
        provider: "local".into(),
        min: 0,
        max: 3,
        price_factor_milli: 1500,
        idle_timeout_ms: 60_000,
        boot_timeout_ms: 600_000,
        probe_timeout_ms: 600_000,
        max_concurrent_creates: 0,
        max_creates_per_hour: 0,
        max_price_micro: 0,
        protect_after: 10,
        backoff_reset_ms: 600_000,
        types: BTreeMap::from([kind("small", 50_000), kind("large", 100_000)]),
        groups: BTreeMap::new(),
        paused: None,
        create_index: 0,
        modify_index: 0,
    }
}

/// A capacity group of up to three members of 4,096 MB.
pub fn capacity_group(name: &str) -> CapacityGroup {
    CapacityGroup {
        name: name.into(),
        dimension: GroupDimension::MemoryMb,
        unit: 4096,
        min: 0,
        max: 3,
        predictor: Prediction::Identity,
        step: 20,
        step_interval_ms: 1_000,
        drain_ms: 50_000,
        busy: BusyRule::Deadline,
        hard: false,
        cooldown_up_ms: 0,
        cooldown_down_ms: 60_000,
        requirement_ttl_ms: 10_000,
        member_port: 8080,
    }
}

/// What a source says, in epoch 1.
pub fn requirements(source: &str, seq: u64, amounts: &[(&str, u64)]) -> Requirements {
    let amounts = amounts.iter().map(|(group, amount)| ((*group).into(), *amount)).collect();
    Requirements { source: source.into(), epoch: 1, seq, ttl_ms: None, amounts }
}

/// What the agent of an instance shows that a [`Driver`] asked for.
pub fn proof(id: InstanceId) -> InstanceProof {
    let mut token = [0x5a; 16];
    for (slot, byte) in token.iter_mut().zip(id.0.iter().take(8)) {
        *slot = *byte | 1;
    }
    InstanceProof { id, token }
}

/// A job with `count` instances of the group [`GROUP`], each asking for [`ASK`].
pub fn job(name: &str, kind: JobKind, count: u32) -> JobSpec {
    JobSpec {
        key: job_key(name),
        name: name.into(),
        region: "global".into(),
        kind,
        priority: 50,
        all_at_once: false,
        datacenters: vec!["*".into()],
        node_pool: "default".into(),
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        groups: vec![group(GROUP, count)],
        meta: BTreeMap::new(),
        update: crate::job::JobUpdate::default(),
        parameterized: None,
        periodic: None,
        dispatch: None,
    }
}

/// A job with an affinity key.
pub fn job_with_key(name: &str, key: &str) -> JobSpec {
    let mut spec = job(name, JobKind::Batch, 1);
    spec.meta.insert(AFFINITY.into(), key.into());
    spec
}

/// A job whose group asks for ports: a label and a static port, or 0 for a dynamic one.
pub fn job_with_ports(name: &str, ports: &[(&str, u16)]) -> JobSpec {
    let mut spec = job(name, JobKind::Service, 1);
    let ports = ports
        .iter()
        .map(|(label, value)| PortAsk { label: (*label).into(), value: *value, to: 0 })
        .collect();
    for group in &mut spec.groups {
        group.network = Some(Network { ports: Vec::clone(&ports), names_mode: false });
    }
    spec
}

/// A port as the applier would have picked it.
pub fn port(label: &str, value: u16) -> Port {
    Port { label: label.into(), value, to: 0 }
}

/// A group of one task, asking for [`ASK`].
pub fn group(name: &str, count: u32) -> TaskGroup {
    let restart = RestartPolicy { attempts: 2, interval_ms: 1000, delay_ms: 10, fail: true };
    TaskGroup {
        name: name.into(),
        count,
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        tasks: vec![Task {
            name: "server".into(),
            driver: "mock".into(),
            user: "".into(),
            config_json: "{}".into(),
            env: BTreeMap::new(),
            meta: BTreeMap::new(),
            constraints: Vec::new(),
            affinities: Vec::new(),
            resources: TaskResources {
                cpu_mhz: ASK.cpu_mhz,
                memory_mb: ASK.memory_mb,
                memory_mb_max: 0,
            },
            kill_timeout_ms: 5000,
            kill_signal: "SIGINT".into(),
            identity_json: "".into(),
            dispatch_payload: "".into(),
            leader: false,
            shutdown_delay_ms: 0,
            restart,
            logs: LogConfig { files_max: 10, file_mb_max: 10, disabled: false },
        }],
        meta: BTreeMap::new(),
        restart,
        reschedule: None,
        update: None,
        migrate: MigrateStrategy {
            max_parallel: 1,
            healthy_ms_min: 10_000,
            healthy_deadline_ms: 300_000,
        },
        network: None,
        disk_mb: ASK.disk_mb,
        shutdown_delay_ms: 0,
        services_json: "".into(),
        max_run_ms: 0,
        scaling: None,
    }
}

/// A service of one group that is updated one instance at a time, by a deployment without canaries
/// and deadlines unless `change` says otherwise.
pub fn rolling_job(name: &str, count: u32, change: impl FnOnce(&mut UpdateStrategy)) -> JobSpec {
    let mut spec = job(name, JobKind::Service, count);
    let mut update = UpdateStrategy {
        stagger_ms: 0,
        max_parallel: 1,
        healthy_ms_min: 10_000,
        healthy_deadline_ms: 300_000,
        progress_deadline_ms: 0,
        health_check: HealthCheck::TaskStates,
        canaries: 0,
        auto_promote: false,
        auto_revert: false,
    };
    change(&mut update);
    for group in &mut spec.groups {
        group.update = Some(update);
    }
    spec
}

/// The command that registers a job.
pub fn register(spec: JobSpec, evaluation: EvaluationId) -> Command {
    Command::from(RegisterJob::new(Arc::new(spec), evaluation))
}

/// The command that stops an allocation.
pub fn stop_allocation(
    id: AllocationId,
    replacement: Replacement,
    evaluation: EvaluationId,
) -> Command {
    let no_shutdown_delay = false;
    Command::from(StopAllocation { id, replacement, no_shutdown_delay, evaluation })
}

/// An outcome with a status and nothing else.
pub fn outcome(status: EvaluationStatus) -> Outcome {
    Outcome {
        status,
        description: "".into(),
        queued: BTreeMap::new(),
        waiting: BTreeSet::new(),
        failed_groups: BTreeMap::new(),
        annotations: BTreeMap::new(),
        class_eligibility: BTreeMap::new(),
        escaped: false,
        evaluations: Vec::new(),
    }
}

/// A hash of a command, as a server would send it with a request.
pub fn payload_hash(command: &Command) -> u64 {
    let proposal = Proposal { at: 0, epoch: None, request: None, command: command.clone() };
    u64::from(crc32c::crc32c(&codec::encode(&proposal)))
}

/// Puts a row into a state as a disk would have it, beside all commands. The derived indexes stay
/// as they were until [`State::rebuild_derived`].
pub fn put<R: Row>(state: &mut State, row: &R) {
    let key = disk_key::<R>(&row.key());
    state.load_row(&key, &codec::encode(row)).expect("a row that was encoded loads");
}

/// Gives a namespace a description of any length, beside the bounds of commands: what stores rows
/// must keep long ones too.
pub fn describe_namespace(
    state: &mut State,
    name: &Text,
    description: Text,
    changes: &mut ChangeSet,
) {
    let row = state.namespaces.get(name).expect("the namespace is there");
    let row = Namespace { description, ..(**row).clone() };
    state.namespaces.put(row, changes);
}

/// The state without a row, as another process would load it.
pub fn without<R: Row>(state: &State, key: &R::Key) -> State {
    let gone = disk_key::<R>(key);
    let mut left = State::default();
    for (key, frame) in state.frames().filter(|(key, _)| *key != gone) {
        left.load_row(&key, &frame).expect("a row that was saved loads");
    }
    left.load_done(state.head());
    left
}

/// All rows of a state as they go to disk, in the order of their keys on disk.
pub fn rows(state: &State) -> BTreeMap<Vec<u8>, Bytes> {
    state.frames().collect()
}

/// The state as another process would load it.
pub fn reload(state: &State) -> State {
    let mut loaded = State::default();
    for (key, frame) in state.frames() {
        loaded.load_row(&key, &frame).expect("a row that was saved loads");
    }
    let head = codec::decode(&codec::encode(&state.head())).expect("a head that was saved loads");
    loaded.load_done(head);
    assert_eq!(loaded.digest(), state.digest(), "the loaded state has another digest");
    loaded
}
