//! A server without Raft: commands are applied to a real state as they come, one entry each, with
//! ids and times that a test can predict.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fsm::{
    AllocationId, ClientStatus, Command, EvaluationId, EvaluationStatus, Index, JobKey, JobKind,
    NodeId, Placement, Plan, Proposal, Reply, RequestId, State, TaskEvent, TaskState, TimeMs,
    allocation::{ClientUpdate, NodeReport, UpdateAllocations},
    evaluation::{Metrics, NodeScore},
    node::{Driver, NodeDescription, NodeReadiness, NodeResources, Readiness, RegisterNode},
    plan::{ApplyPlans, Outcome},
    resources::Resources,
    session::Request,
    table::{ChangeSet, TableId},
};
use futures_util::future::BoxFuture;
use ground::caller::Caller;
use serde_json::{Value, json};
use tokio::sync::watch;
use wire::api::{
    Api, ApiError, MemberInfo, Presence, ReadMode, Sample, Snapshot, WorkerChange, WorkerInfo,
    WorkerSettings, WorkerStatus, Workload, Written, payload, senders,
};

const START_MS: u64 = 1_700_000_000_000;

pub(super) struct TestCluster {
    state: Mutex<Arc<State>>,
    index: watch::Sender<Index>,
    ids_made: AtomicU64,
    /// What every request is answered with, if set.
    pub(super) failure: Mutex<Option<ApiError>>,
    /// Reads that were asked for.
    pub(super) reads: Mutex<Vec<(ReadMode, Index)>>,
    /// Who asked for reads and waited for changes.
    pub(super) callers: Mutex<Vec<(&'static str, Caller)>>,
    workers: Mutex<WorkerSettings>,
}

impl TestCluster {
    pub(super) fn new() -> Arc<Self> {
        let mut state = State::genesis(&mut ChangeSet::default());
        state.advance(9, 1);
        Arc::new(Self {
            state: Mutex::new(Arc::new(state)),
            index: watch::Sender::new(9),
            ids_made: AtomicU64::new(0),
            failure: Mutex::new(None),
            reads: Mutex::new(Vec::new()),
            callers: Mutex::new(Vec::new()),
            workers: Mutex::new(WorkerSettings { number: 2, kinds: JobKind::ALL.to_vec() }),
        })
    }

    pub(super) fn state(&self) -> Arc<State> {
        Arc::clone(&self.state.lock().unwrap())
    }

    /// Applies a command as the next entry.
    pub(super) fn apply(&self, command: Command, request: Option<RequestId>) -> Written {
        let mut guard = self.state.lock().unwrap();
        let mut state = State::clone(&guard);
        let index = state.index() + 1;
        let at = START_MS + 1_000 * index;
        let request =
            request.map(|id| Request { id, stamped_at: at, payload_hash: payload::hash(&command) });
        let proposal = Proposal { at, epoch: None, request, command };
        let applied = state.apply(index, 1, &proposal, &mut ChangeSet::default());
        *guard = Arc::new(state);
        drop(guard);
        self.index.send_replace(index);
        Written { index: applied.index, reply: applied.reply }
    }

    /// Lets a driver of the state machine go on from here.
    pub(super) fn with_driver(&self, script: impl FnOnce(&mut fsm::testing::Driver)) {
        let mut guard = self.state.lock().unwrap();
        let now = guard.at().max(fsm::testing::START_MS);
        let mut driver =
            fsm::testing::Driver { state: State::clone(&guard), now, ..Default::default() };
        script(&mut driver);
        *guard = Arc::new(driver.state);
        let index = guard.index();
        drop(guard);
        self.index.send_replace(index);
    }

    #[track_caller]
    pub(super) fn must(&self, command: Command) -> Reply {
        let reply = self.apply(command, None).reply;
        assert!(!matches!(reply, Reply::Rejected(_)), "{reply:?}");
        reply
    }

    /// A ready node.
    pub(super) fn add_node(&self, id: NodeId, http_address: &str) {
        let description = Arc::new(NodeDescription {
            name: "node-1".into(),
            datacenter: "dc1".into(),
            class: "small".into(),
            pool: "default".into(),
            attributes: BTreeMap::from([("os.name".into(), "debian".into())]),
            meta: BTreeMap::from([("rack".into(), "r1".into())]),
            resources: NodeResources {
                total: Resources { cpu_mhz: 4_000, memory_mb: 8_192, disk_mb: 50_000 },
                reserved: Resources { cpu_mhz: 100, memory_mb: 256, disk_mb: 1_000 },
                reserved_ports: vec![22, 80],
                dynamic_port_min: 20_000,
                dynamic_port_max: 32_000,
                cores: 4,
                address: "10.0.0.7".into(),
                allocations_max: 0,
            },
            drivers: BTreeMap::from([(
                "raw_exec".into(),
                Driver { detected: true, healthy: true, ..Driver::default() },
            )]),
            http_address: http_address.into(),
            version: "0.0.1".into(),
            ..NodeDescription::default()
        });
        let reply = self.must(Command::from(RegisterNode {
            instance: None,
            node: id,
            secret: [0xee; 16],
            identity: [0xdd; 16],
            description,
            evaluation_ids: Vec::new(),
        }));
        let Reply::Node { incarnation, .. } = reply else { panic!("{reply:?}") };
        // Copied out: `must` writes it.
        let sequence = *self.index.borrow() + 1;
        self.must(Command::from(NodeReadiness {
            node: id,
            incarnation,
            readiness: Readiness::Ok,
            reason: "".into(),
            sequence,
            evaluation_ids: Vec::new(),
        }));
    }

    /// Places one instance of the job's first group for its evaluation, and reports it as running.
    pub(super) fn place(
        &self,
        key: &JobKey,
        evaluation: EvaluationId,
        node: NodeId,
    ) -> AllocationId {
        let id = AllocationId(self.new_id());
        let state = self.state();
        let job = state.jobs().get(key).unwrap().clone();
        let group = state.current_spec(&job).unwrap().groups[0].name.clone();
        let metrics = Metrics {
            nodes_evaluated: 1,
            nodes_in_pool: 1,
            nodes_available: BTreeMap::from([("dc1".into(), 1)]),
            scores: vec![NodeScore {
                node,
                parts: BTreeMap::from([("binpack".into(), 250_000)]),
                total: 250_000,
            }],
            ..Metrics::default()
        };
        let failed = Metrics {
            nodes_evaluated: 1,
            nodes_exhausted: 1,
            dimension_exhausted: BTreeMap::from([("memory".into(), 1)]),
            ..Metrics::default()
        };
        let outcome = Outcome {
            status: EvaluationStatus::Complete,
            description: "".into(),
            queued: BTreeMap::from([(group.clone(), 1)]),
            waiting: BTreeSet::from([group.clone()]),
            failed_groups: BTreeMap::from([(group.clone(), failed)]),
            annotations: BTreeMap::new(),
            class_eligibility: BTreeMap::new(),
            escaped: false,
            evaluations: Vec::new(),
        };
        let plan = Plan {
            evaluation,
            job: key.clone(),
            job_create_index: job.create_index,
            job_version: job.version,
            snapshot_index: self.state().index(),
            priority: 50,
            all_at_once: false,
            stops: Vec::new(),
            in_place: Vec::new(),
            follow_ups: Vec::new(),
            deployment: None,
            placements: vec![Placement {
                id,
                group,
                name_index: 0,
                canary: false,
                version: None,
                node,
                ports: Vec::new(),
                previous: None,
                preempts: Vec::new(),
                reschedules: Vec::new(),
                metrics: Some(Arc::new(metrics)),
            }],
            outcome: Some(outcome),
        };
        let reply = self.must(Command::from(ApplyPlans { plans: vec![Arc::new(plan)] }));
        assert!(self.state().allocations().contains(&id), "{reply:?}");
        self.report(id, node, 1);
        id
    }

    /// The agent reports the allocation's task as running.
    pub(super) fn report(&self, id: AllocationId, node: NodeId, sequence: u64) {
        let event = TaskEvent {
            kind: "Started".into(),
            at_ms: START_MS + 500,
            message: "Task started by client".into(),
            exit_code: None,
            signal: None,
        };
        let task = TaskState {
            state: "running".into(),
            started_at_ms: START_MS + 500,
            events: vec![event],
            ..TaskState::default()
        };
        let update = ClientUpdate {
            id,
            sequence,
            status: ClientStatus::Running,
            description: "Tasks are running".into(),
            tasks: Some(BTreeMap::from([("server".into(), task)])),
            node_failure: None,
            health: None,
        };
        let report =
            NodeReport { node, incarnation: 1, updates: vec![update], evaluation_ids: Vec::new() };
        self.must(Command::from(UpdateAllocations { reports: vec![report] }));
    }

    fn asked(&self, what: &'static str, caller: &Caller) {
        self.callers.lock().unwrap().push((what, caller.clone()));
    }

    fn fail(&self) -> Result<(), ApiError> {
        self.failure.lock().unwrap().clone().map_or(Ok(()), Err)
    }
}

/// The job of the tests, in Nomad's JSON.
pub(super) fn web_job(id: &str) -> Value {
    json!({
        "ID": id,
        "Name": id,
        "Type": "service",
        "TaskGroups": [{
            "Name": "web",
            "Count": 2,
            "Tasks": [{
                "Name": "server",
                "Driver": "raw_exec",
                "Config": { "command": "/bin/sleep", "args": ["1"] },
                "Resources": { "CPU": 100, "MemoryMB": 64 },
            }],
        }],
    })
}

impl Api for TestCluster {
    fn read<'a>(
        &'a self,
        caller: &'a Caller,
        mode: ReadMode,
        index_min: Index,
        timeout: Duration,
    ) -> BoxFuture<'a, Result<Snapshot, ApiError>> {
        self.asked("read", caller);
        Box::pin(async move {
            self.fail()?;
            self.reads.lock().unwrap().push((mode, index_min));
            let mut index = self.index.subscribe();
            tokio::time::timeout(timeout, index.wait_for(|index| *index >= index_min))
                .await
                .map_err(|_| ApiError::Timeout { proposed: false })?
                .unwrap();
            let last_contact = match mode {
                ReadMode::Linearizable => Duration::ZERO,
                ReadMode::Stale => Duration::from_millis(42),
            };
            Ok(Snapshot { state: self.state(), last_contact, known_leader: true })
        })
    }

    fn write<'a>(
        &'a self,
        caller: &'a Caller,
        command: Command,
        request: Option<RequestId>,
        _timeout: Duration,
    ) -> BoxFuture<'a, Result<Written, ApiError>> {
        Box::pin(async move {
            self.fail()?;
            senders::check_caller(caller, &command)?;
            Ok(self.apply(command, request))
        })
    }

    fn changed<'a>(
        &'a self,
        caller: &'a Caller,
        tables: &'static [TableId],
        after: Index,
        timeout: Duration,
    ) -> BoxFuture<'a, ()> {
        self.asked("changed", caller);
        Box::pin(async move {
            let mut index = self.index.subscribe();
            let changed = index
                .wait_for(|_| tables.iter().any(|table| self.state().table_index(*table) > after));
            drop(tokio::time::timeout(timeout, changed).await);
        })
    }

    fn now_ms(&self) -> TimeMs {
        self.state().at().max(START_MS)
    }

    fn behind_ms(&self) -> Option<i64> {
        Some(0)
    }

    fn new_id(&self) -> [u8; 16] {
        let number = self.ids_made.fetch_add(1, Ordering::Relaxed) + 1;
        let mut id = [0xab; 16];
        id[8..].copy_from_slice(&number.to_be_bytes());
        id
    }

    fn members(&self) -> Vec<MemberInfo> {
        let member = |id: u64, leader| MemberInfo {
            id,
            name: format!("server-{id}"),
            rpc_address: format!("10.0.0.{id}:4647"),
            http_address: format!("10.0.0.{id}:4646"),
            leader,
            voter: true,
            presence: if id == 3 { Presence::NeverHeard } else { Presence::Alive },
            version: "0.1.0".to_owned(),
            clock_ahead_ms: (id != 3).then_some(0),
        };
        vec![member(1, true), member(2, false), member(3, false)]
    }

    fn this_member(&self) -> MemberInfo {
        self.members().swap_remove(0)
    }

    fn transfer_leadership<'a>(
        &'a self,
        _caller: &'a Caller,
        to: Option<u64>,
    ) -> BoxFuture<'a, Result<u64, ApiError>> {
        Box::pin(async move {
            self.fail()?;
            Ok(to.unwrap_or(2))
        })
    }

    fn remove_member<'a>(
        &'a self,
        _caller: &'a Caller,
        id: u64,
        force: bool,
    ) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(async move {
            self.fail()?;
            let refused = ApiError::Invalid("a majority would not answer".to_owned());
            if id == 2 && !force { Err(refused) } else { Ok(()) }
        })
    }

    fn workers(&self) -> Vec<WorkerInfo> {
        let settings = self.worker_settings();
        let worker = |id| WorkerInfo {
            id,
            kinds: settings.kinds.clone(),
            since_ms: START_MS,
            status: WorkerStatus::Started,
            workload: Workload::WaitingToDequeue,
        };
        (0..settings.number).map(worker).collect()
    }

    fn worker_settings(&self) -> WorkerSettings {
        self.workers.lock().unwrap().clone()
    }

    fn set_workers<'a>(
        &'a self,
        _caller: &'a Caller,
        change: WorkerChange,
    ) -> BoxFuture<'a, WorkerSettings> {
        Box::pin(async move {
            let mut workers = self.workers.lock().unwrap();
            workers.number = change.number.unwrap_or(workers.number);
            workers.kinds = change.kinds.unwrap_or_else(|| workers.kinds.clone());
            workers.clone()
        })
    }

    fn samples(&self) -> BTreeMap<String, Sample> {
        let buckets = vec![(1, 0), (2, 3), (4, 1)];
        BTreeMap::from([("nomad.leader.step".to_owned(), Sample { buckets, sum_us: 9, max_us: 3 })])
    }

    fn gauges(&self) -> BTreeMap<String, f64> {
        BTreeMap::from([
            ("nomad.broker.total_ready".to_owned(), 3.0),
            ("nomad.raft.appliedIndex".to_owned(), 12.5),
        ])
    }

    fn stats(&self) -> BTreeMap<String, BTreeMap<String, String>> {
        let raft = BTreeMap::from([("state".to_owned(), "Leader".to_owned())]);
        BTreeMap::from([("raft".to_owned(), raft)])
    }

    fn membership_index(&self) -> Index {
        7
    }
}
