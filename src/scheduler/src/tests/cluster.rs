//! A cluster in a test: builders for rows, one pass, and applying its plan without the state
//! machine's checks (the checker is asked instead).

use std::{cell::RefCell, collections::BTreeMap, sync::Arc};

use fsm::{
    Allocation, AllocationId, ClientStatus, Command, Deployment, DeploymentStatus, Evaluation,
    EvaluationId, EvaluationStatus, Job, JobKey, JobKind, JobSpec, JobVersion, Node, NodeId,
    Placement, Plan, Proposal, Reply, State, TaskGroup, TimeMs, Trigger,
    deployment::SetAllocationHealth,
    job::{DelayFunction, ReschedulePolicy, UpdateStrategy},
    resources::{Dimension, Port},
    table::ChangeSet,
};

use crate::{Memory, Pass, check, schedule, schedule_with};

/// An id from a number.
pub(crate) fn id(number: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    bytes
}

/// A ready node of 4000 MHz, 8192 MiB, with drivers `mock` and `raw_exec`.
pub(crate) fn node(number: u64) -> Node {
    let mut description = fsm::testing::description(&format!("node-{number}"));
    description.attributes = BTreeMap::from([("kernel.name".into(), "linux".into())]);
    let driver = description.drivers.values().next().expect("it has a driver").clone();
    description.drivers.insert("raw_exec".into(), driver);
    description.resources.reserved_ports.clear();
    fsm::testing::ready_node(NodeId(id(number)), description)
}

/// A job `job` with one group `web` of ten instances of 500 MHz, 256 MiB.
pub(crate) fn job(kind: JobKind) -> JobSpec {
    let service = ReschedulePolicy {
        attempts: 0,
        interval_ms: 0,
        delay_ms: 30_000,
        delay_function: DelayFunction::Exponential,
        delay_ms_max: 3_600_000,
        unlimited: true,
    };
    let batch = ReschedulePolicy {
        attempts: 1,
        interval_ms: 86_400_000,
        delay_ms: 5_000,
        delay_function: DelayFunction::Constant,
        delay_ms_max: 0,
        unlimited: false,
    };
    let mut spec = fsm::testing::job("job", kind, if kind.is_per_node() { 1 } else { 10 });
    let group = &mut spec.groups[0];
    group.disk_mb = 150;
    group.tasks[0].name = "web".into();
    group.reschedule = match kind {
        JobKind::Service => Some(service),
        JobKind::Batch => Some(batch),
        JobKind::System | JobKind::Sysbatch => None,
    };
    spec
}

/// An update block of Nomad's defaults with another `max_parallel`.
pub(crate) fn update(max_parallel: u32) -> UpdateStrategy {
    UpdateStrategy {
        stagger_ms: 30_000,
        max_parallel,
        healthy_ms_min: 10_000,
        healthy_deadline_ms: 300_000,
        progress_deadline_ms: 600_000,
        health_check: fsm::job::HealthCheck::TaskStates,
        canaries: 0,
        auto_promote: false,
        auto_revert: false,
    }
}

/// A state under test, with a clock and counters.
pub(crate) struct Cluster {
    pub(crate) state: State,
    pub(crate) now: TimeMs,
    memory: RefCell<Memory>,
    evaluations: u64,
    allocations: u64,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let mut state = State::default();
        state.advance(100, 1);
        Self { state, now: 1_000_000, memory: RefCell::default(), evaluations: 0, allocations: 0 }
    }

    /// A cluster of `count` nodes, numbered from 1.
    pub(crate) fn with_nodes(count: u64) -> Self {
        let mut cluster = Self::new();
        for number in 1..=count {
            cluster.put_node(node(number));
        }
        cluster
    }

    pub(crate) fn put_node(&mut self, node: Node) {
        fsm::testing::put(&mut self.state, &node);
    }

    pub(crate) fn change_node(&mut self, number: u64, change: impl FnOnce(&mut Node)) {
        let mut node = (**self.state.nodes().get(&NodeId(id(number))).unwrap()).clone();
        change(&mut node);
        self.put_node(node);
    }

    /// Registers a new version of the job.
    pub(crate) fn register(&mut self, spec: &JobSpec) {
        self.state.advance(self.state.index() + 1, 1);
        let index = self.state.index();
        let old = self.state.jobs().get(&spec.key).cloned();
        let version = old.as_ref().map_or(0, |job| job.version + 1);
        let create_index = old.as_ref().map_or(index, |job| job.create_index);
        let row = Job {
            version,
            create_index,
            submitted_at: self.now,
            ..fsm::testing::job_at(spec, index)
        };
        fsm::testing::put(&mut self.state, &fsm::testing::version_of(&row, spec.clone()));
        fsm::testing::put(&mut self.state, &row);
        self.end_deployments(&spec.key);
        self.state.rebuild_derived();
    }

    /// Changes the row of the job's current version.
    pub(crate) fn change_version(&mut self, spec: &JobSpec, change: impl FnOnce(&mut JobVersion)) {
        let job = self.state.jobs().get(&spec.key).unwrap();
        let key = (spec.key.clone(), job.create_index, job.version);
        let mut row = (**self.state.job_versions().get(&key).unwrap()).clone();
        change(&mut row);
        fsm::testing::put(&mut self.state, &row);
    }

    fn end_deployments(&mut self, job: &JobKey) {
        for deployment in self.state.deployments_of_job(job) {
            if deployment.is_active() {
                let status = DeploymentStatus::Cancelled;
                let ended = Deployment { status, ..(*deployment).clone() };
                fsm::testing::put(&mut self.state, &ended);
            }
        }
    }

    pub(crate) fn change_job(&mut self, key: &JobKey, change: impl FnOnce(&mut Job)) {
        let mut row = (**self.state.jobs().get(key).unwrap()).clone();
        change(&mut row);
        fsm::testing::put(&mut self.state, &row);
        if row.stop {
            self.end_deployments(key);
        }
    }

    /// A running allocation of the job's current version, healthy for a long time.
    pub(crate) fn allocation(&mut self, spec: &JobSpec, name_index: u32, on: u64) -> AllocationId {
        let allocation = self.new_allocation(spec, name_index, on);
        let id = allocation.id;
        self.put_allocation(allocation);
        id
    }

    fn new_allocation(&mut self, spec: &JobSpec, name_index: u32, on: u64) -> Allocation {
        let row = self.state.jobs().get(&spec.key).unwrap().clone();
        self.allocations += 1;
        let id = AllocationId(id(1_000_000 + self.allocations));
        let node = NodeId(self::id(on));
        let index = self.state.index();
        Allocation {
            name_index,
            ..fsm::testing::allocation_at(id, &row, &spec.groups[0], node, index)
        }
    }

    /// `count` running allocations with names from 0, one per node from 1.
    pub(crate) fn allocations(&mut self, spec: &JobSpec, count: u32) -> Vec<AllocationId> {
        (0..count).map(|name| self.allocation(spec, name, u64::from(name) + 1)).collect()
    }

    /// `count` running allocations with names from 0, all on one node.
    pub(crate) fn allocations_on(&mut self, spec: &JobSpec, count: u32, on: u64) {
        for name in 0..count {
            let allocation = self.new_allocation(spec, name, on);
            fsm::testing::put(&mut self.state, &allocation);
        }
        self.state.rebuild_derived();
    }

    fn put_allocation(&mut self, allocation: Allocation) {
        fsm::testing::put(&mut self.state, &allocation);
        self.state.rebuild_derived();
    }

    pub(crate) fn get(&self, id: AllocationId) -> &Allocation {
        self.state.allocations().get(&id).unwrap()
    }

    pub(crate) fn change(&mut self, id: AllocationId, change: impl FnOnce(&mut Allocation)) {
        let mut allocation = self.get(id).clone();
        change(&mut allocation);
        self.put_allocation(allocation);
    }

    /// The allocation ends, now.
    pub(crate) fn end(&mut self, id: AllocationId, how: ClientStatus) {
        let now = self.now;
        self.change(id, |allocation| {
            allocation.client = how;
            allocation.client_at = now;
        });
    }

    /// A new evaluation of the job, stored.
    pub(crate) fn evaluation(&mut self, spec: &JobSpec, trigger: Trigger) -> Evaluation {
        self.evaluations += 1;
        let id = EvaluationId(id(self.evaluations));
        let evaluation = Evaluation::new(id, spec.key.clone(), spec.kind, spec.priority, trigger);
        self.put_evaluation(evaluation.clone());
        evaluation
    }

    pub(crate) fn put_evaluation(&mut self, evaluation: Evaluation) {
        fsm::testing::put(&mut self.state, &evaluation);
        self.state.rebuild_derived();
    }

    /// One pass, checked.
    pub(crate) fn pass(&self, evaluation: &Evaluation) -> Plan {
        let pass = Pass { state: &self.state, evaluation, now: self.now, attempt: 0 };
        let plan = schedule(&pass).unwrap();
        let again = schedule_with(&pass, &mut self.memory.borrow_mut()).unwrap();
        assert_eq!(again, plan, "the same pass gives the same plan, with and without memory");
        assert_eq!(check::check(&self.state, &plan), Vec::new());
        plan
    }

    /// One pass for a new evaluation.
    pub(crate) fn plan(&mut self, spec: &JobSpec, trigger: Trigger) -> Plan {
        let evaluation = self.evaluation(spec, trigger);
        self.pass(&evaluation)
    }

    /// Registers the job and applies passes until nothing is left.
    pub(crate) fn run(&mut self, spec: &JobSpec) -> Plan {
        self.register(spec);
        let plan = self.plan(spec, Trigger::JobRegister);
        self.apply(&plan);
        plan
    }

    /// Applies a plan by the state machine's own rules, none of which it may break; new allocations
    /// run, healthy for a long time, and stopped ones end.
    pub(crate) fn apply(&mut self, plan: &Plan) {
        self.begin(plan);
        let waiting =
            |row: &&Arc<Allocation>| row.deployment.is_some_and(|own| own.health.is_none());
        let rows = self.state.allocations_of_job(&plan.job).filter(|row| row.is_live());
        let ids: Vec<_> = rows.filter(waiting).map(|row| row.id).collect();
        for id in ids {
            self.set_health(id, true);
        }
    }

    /// Says whether an allocation is healthy, as its agent would.
    pub(crate) fn set_health(&mut self, id: AllocationId, healthy: bool) {
        let deployment = self.get(id).deployment.unwrap().id;
        if self.state.deployments().get(&deployment).is_none_or(|row| !row.is_active()) {
            return;
        }
        let (healthy, unhealthy) =
            if healthy { (vec![id], Vec::new()) } else { (Vec::new(), vec![id]) };
        self.commit(|evaluation| {
            SetAllocationHealth { id: deployment, healthy, unhealthy, evaluation }.into()
        });
    }

    /// Applies a command, which must not be refused.
    pub(crate) fn commit(&mut self, command: impl FnOnce(EvaluationId) -> Command) {
        self.evaluations += 1;
        let command = command(EvaluationId(id(self.evaluations)));
        let proposal = Proposal { at: self.now, epoch: None, request: None, command };
        let applied =
            self.state.apply(self.state.index() + 1, 1, &proposal, &mut ChangeSet::default());
        assert!(!matches!(applied.reply, Reply::Rejected(_)), "{applied:?}");
    }

    /// The same, but that nothing is said of anyone's health yet.
    pub(crate) fn begin(&mut self, plan: &Plan) {
        // A trial takes no follow-ups, and an outcome cancels those that nothing waits for.
        for follow_up in &plan.follow_ups {
            let mut row = self.get(follow_up.id).clone();
            row.follow_up = Some(follow_up.evaluation);
            fsm::testing::put(&mut self.state, &row);
        }
        let trial = self.state.try_plan(plan, &pick).unwrap();
        assert_eq!(trial.dropped, Vec::new());
        for stop in &plan.stops {
            let mut row = self.get(stop.id).clone();
            if !row.client.is_terminal() {
                row.client = ClientStatus::Complete;
                fsm::testing::put(&mut self.state, &row);
            }
        }
        for placement in &plan.placements {
            let mut row = self.get(placement.id).clone();
            row.client = ClientStatus::Running;
            row.client_at = 0;
            fsm::testing::put(&mut self.state, &row);
        }
        self.state.rebuild_derived();
        // A trial keeps no digest, and tests end allocations without a report.
        let broken = fsm::invariant::check(&self.state).into_iter();
        assert_eq!(
            broken
                .filter(|broken| !["digest", "deployment-counts"].contains(&broken.name))
                .collect::<Vec<_>>(),
            []
        );
    }

    /// Live allocations of a job.
    pub(crate) fn live(&self, spec: &JobSpec) -> Vec<&Allocation> {
        self.state
            .allocations_of_job(&spec.key)
            .map(|allocation| &**allocation)
            .filter(|allocation| allocation.is_live())
            .collect()
    }
}

/// The lowest free ports.
fn pick(state: &State, placement: &Placement, group: &TaskGroup) -> Result<Vec<Port>, Dimension> {
    let Some(network) = &group.network else { return Ok(Vec::new()) };
    let resources = &state.nodes().get(&placement.node).unwrap().description.resources;
    let usage = state.usage(placement.node);
    let mut taken: Vec<u16> = network.ports.iter().map(|ask| ask.value).collect();
    let mut ports = Vec::new();
    for ask in &network.ports {
        let mut value = ask.value;
        if value == 0 {
            value = (resources.dynamic_port_min..=resources.dynamic_port_max)
                .find(|port| {
                    usage.port(*port).is_none()
                        && !taken.contains(port)
                        && !resources.reserved_ports.contains(port)
                })
                .ok_or(Dimension::Ports)?;
            taken.push(value);
        }
        ports.push(Port { label: ask.label.clone(), value, to: ask.to });
    }
    Ok(ports)
}

/// What the tests ask of plans.
pub(crate) trait PlanExt {
    /// Placed name indexes, sorted.
    fn names(&self) -> Vec<u32>;
    /// Placements, stops, in-place updates.
    fn counts(&self) -> (usize, usize, usize);
    fn status(&self) -> EvaluationStatus;
    fn queued(&self) -> u32;
    /// Blocked evaluations made.
    fn blocked(&self) -> Vec<&Evaluation>;
    /// Waiting evaluations made.
    fn waiting(&self) -> Vec<&Evaluation>;
}

impl PlanExt for Plan {
    fn names(&self) -> Vec<u32> {
        let mut names: Vec<_> =
            self.placements.iter().map(|placement| placement.name_index).collect();
        names.sort_unstable();
        names
    }

    fn counts(&self) -> (usize, usize, usize) {
        (self.placements.len(), self.stops.len(), self.in_place.len())
    }

    fn status(&self) -> EvaluationStatus {
        self.outcome.as_ref().unwrap().status
    }

    fn queued(&self) -> u32 {
        self.outcome.as_ref().unwrap().queued.values().sum()
    }

    fn blocked(&self) -> Vec<&Evaluation> {
        let made = &self.outcome.as_ref().unwrap().evaluations;
        made.iter().filter(|made| made.status == EvaluationStatus::Blocked).collect()
    }

    fn waiting(&self) -> Vec<&Evaluation> {
        let made = &self.outcome.as_ref().unwrap().evaluations;
        made.iter().filter(|made| made.status == EvaluationStatus::Pending).collect()
    }
}
