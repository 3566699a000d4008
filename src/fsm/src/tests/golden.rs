//! Golden bytes: one fixed value of every persisted kind, and one of every command, reply and
//! rejection.
//!
//! `golden/frames.txt` pins the bytes, and with them the numbers of the variants. A difference
//! means that existing data directories and logs would not load. `UPDATE=1` writes the file anew,
//! with another generation in its first line: that is `fsm::GENERATION`, by which they are refused.

#![expect(clippy::disallowed_methods, reason = "tests read what is pinned")]

mod capacity;
mod deployments;
mod pools;
mod scaling;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    sync::Arc,
};

use proptest::prelude::*;

use crate::{
    allocation::{
        Allocation, ClientStatus, ClientUpdate, DesiredStatus, DesiredTransition, ExpireRuns,
        NodeReport, Replacement, RescheduleEvent, StopAllocation, TaskEvent, TaskState,
        UpdateAllocations,
    },
    codec::{self, DecodeError, Frame, HEADER_BYTES},
    command::{Command, DispatchAnswer, IndexConflict, Proposal, Rejection, Reply, Senders},
    deployment::{
        AllocationDeployment, AllocationHealth, Deployment, DeploymentGoal, NewDeployment,
    },
    digest::{Digest, DigestMark, DigestVerdict},
    evaluation::{
        DeleteEvaluations, Evaluation, EvaluationStatus, EvaluationUpdate, GroupAnnotation,
        Metrics, NodeScore, Trigger, UpdateEvaluations,
    },
    gc::{CollectGarbage, Cutoffs},
    generation::GENERATION,
    id::{AllocationId, ClassId, DeploymentId, EvaluationId, InstanceId, NodeId, RequestId},
    job::{
        Affinity, Constraint, DelayFunction, DeregisterJob, Dispatch, DispatchJob, Dispatched,
        EvaluateJob, ForcePeriodic, GroupScaling, HealthCheck, Job, JobKind, JobSpec, JobStatus,
        JobVersion, Launch, LaunchPeriodic, Launches, MarkJobVersion, Parameterized, Periodic,
        RegisterJob, ReschedulePolicy, Spread, SpreadTarget, StopChildren, Submission,
        UpdateStrategy, VersionMark, VersionTag, Waiting,
    },
    node::{
        AdvanceDrains, CapacityGain, CheckResult, Drain, DrainStatus, Driver, Eligibility,
        EndMassLoss, EndSuspensions, EvaluateNode, GainKey, Health, InstanceProof, LastDrain,
        Liveness, LivenessChange, MassLoss, MassLossEnd, Node, NodeDescription, NodeEvent,
        NodeFailure, NodeInstance, NodeLiveness, NodeReadiness, NodeShortage, OfflineNode,
        Readiness, ReapNode, RegisterNode, SetDrain, SetEligibility, Shortage, SuspendLateNodes,
        SuspendNode, SuspendReason, Suspension, Tombstone, UnsuspendNode,
    },
    plan::{
        ApplyPlans, DropReason, FollowUp, InPlace, Outcome, Placement, Plan, PlanVerdict, Stop,
    },
    resources::Dimension,
    right::Right,
    session::{Request, Session},
    settings::{
        Algorithm, DeleteNamespace, DeleteNodePool, Namespace, NodePool, SchedulerConfiguration,
        SetSchedulerConfiguration, UpsertNamespace, UpsertNodePool,
    },
    state::Head,
    table::Row,
    testing::{ASK, description, job_key, job_with_ports, outcome, port},
    upkeep::{MarkDigest, Tick},
};

fn spec() -> JobSpec {
    let constraint = Constraint {
        left: "${attr.kernel.name}".into(),
        operand: "=".into(),
        right: "linux".into(),
    };
    let mut spec = job_with_ports("t", &[("http", 8080), ("admin", 0)]);
    spec.parameterized = Some(Parameterized {
        payload: "optional".into(),
        meta_required: vec!["one".into()],
        meta_optional: vec!["two".into()],
        max_running: 3,
    });
    spec.periodic = Some(Periodic {
        enabled: true,
        specs: vec!["@daily".into()],
        is_list: true,
        prohibit_overlap: true,
        time_zone: "UTC".into(),
    });
    spec.dispatch = Some(Dispatch { payload: vec![1, 2, 3], token: "once".into() });
    spec.meta.insert("key".into(), "value".into());
    spec.affinities = vec![Affinity { constraint: constraint.clone(), weight: -50 }];
    spec.spreads = vec![Spread {
        attribute: "${node.datacenter}".into(),
        weight: 100,
        targets: vec![SpreadTarget { value: "dc1".into(), percent: 70 }],
    }];
    spec.constraints = vec![constraint];
    spec.update = crate::job::JobUpdate { max_parallel: 8, stagger_ms: 9 };
    let group = &mut spec.groups[0];
    group.scaling = Some(scaling::scaling());
    group.max_run_ms = 60_000;
    group.reschedule = Some(ReschedulePolicy {
        attempts: 3,
        interval_ms: 4,
        delay_ms: 5,
        delay_function: DelayFunction::Exponential,
        delay_ms_max: 6,
        unlimited: true,
    });
    group.update = Some(UpdateStrategy {
        stagger_ms: 1,
        max_parallel: 2,
        healthy_ms_min: 3,
        healthy_deadline_ms: 4,
        progress_deadline_ms: 5,
        health_check: HealthCheck::Manual,
        canaries: 6,
        auto_promote: true,
        auto_revert: true,
    });
    spec
}

fn job_row() -> Job {
    Job {
        key: job_key("t"),
        kind: JobKind::Sysbatch,
        priority: 50,
        version: 3,
        stop: true,
        status: JobStatus::Dead,
        parameterized: true,
        periodic: Some(Launches { since_s: 6, last_due_s: 7, missed: 8, overlapped: 9 }),
        token: "once".into(),
        waiting: Some(Waiting { position: 9, evaluation: EvaluationId([9; 16]) }),
        create_index: 4,
        modify_index: 5,
        job_modify_index: 6,
        last_plan_index: 300,
        submitted_at: 1_000_000_000_000,
        queued: BTreeMap::from([("web".into(), 2)]),
    }
}

fn eligibility() -> Eligibility {
    Eligibility {
        ineligible: true,
        by_drain: true,
        by: "operator".into(),
        reason: "repair".into(),
        at: 1000,
        index: 70_000,
    }
}

fn node_description() -> NodeDescription {
    let mut description = description("a");
    description.class = "large".into();
    description.attributes.insert("kernel.name".into(), "linux".into());
    description.meta.insert("rack".into(), "r1".into());
    let driver = Driver {
        detected: true,
        healthy: true,
        description: "Healthy".into(),
        attributes: BTreeMap::from([("driver.mock".into(), "1".into())]),
    };
    description.drivers.insert("mock".into(), driver);
    description.http_address = "127.0.0.1:4646".into();
    description.version = "0.1.0".into();
    description
}

fn drain() -> Drain {
    Drain {
        started_at: 1,
        deadline_at: Some(2),
        force: true,
        ignore_system: false,
        owner: "operator".into(),
        cancelable: true,
    }
}

fn suspended() -> Health {
    Health::Suspended(Suspension {
        reason: SuspendReason::Unhealthy,
        detail: "disk".into(),
        by: "operator".into(),
        since: 11,
        until: Some(12),
        clears_affinity: true,
    })
}

fn failures() -> Vec<NodeFailure> {
    vec![NodeFailure { at: 22, job: job_key("t"), detail: "no executor".into() }]
}

fn node() -> Node {
    Node {
        id: NodeId([1; 16]),
        secret: [2; 16],
        identity: [3; 16],
        incarnation: 4,
        description: Arc::new(node_description()),
        class: ClassId([5; 16]),
        liveness: Liveness::Disconnected,
        liveness_at: 6,
        ready_deadline_at: 7,
        lost_at: Some(8),
        missed_index: 9,
        missed_at: 19,
        was_ready: true,
        synced_index: 10,
        check: Some(CheckResult { readiness: Readiness::Retry, reason: "disk".into(), at: 20 }),
        check_sequence: 21,
        health: suspended(),
        shortage: Some(Shortage { reason: "threads".into(), since: 23 }),
        failures: failures(),
        strikes: 13,
        strike_at: 14,
        eligibility: eligibility(),
        drain: Some(drain()),
        instance: Some(NodeInstance { id: InstanceId([21; 16]), open: true }),
        last_drain: Some(LastDrain {
            started_at: 40,
            updated_at: 41,
            status: DrainStatus::Draining,
            meta: BTreeMap::from([("message".into(), "disk swap".into())]),
        }),
        affinity_key: "snapA".into(),
        create_index: 15,
        modify_index: 16,
        events: vec![NodeEvent {
            at: 17,
            index: 18,
            message: "Node registered".into(),
            deadline_reached: true,
        }],
    }
}

fn metrics() -> Metrics {
    let count = |name: &str| BTreeMap::from([(name.into(), 1)]);
    Metrics {
        nodes_evaluated: 1,
        nodes_filtered: 2,
        nodes_in_pool: 3,
        nodes_available: count("dc1"),
        nodes_exhausted: 4,
        class_filtered: count("large"),
        constraint_filtered: count("${attr.kernel.name} = linux"),
        class_exhausted: count("small"),
        dimension_exhausted: count("cpu"),
        scores: vec![NodeScore {
            node: NodeId([1; 16]),
            parts: BTreeMap::from([("binpack".into(), -250_000)]),
            total: -250_000,
        }],
        coalesced_failures: 5,
    }
}

fn evaluation() -> Evaluation {
    let id = EvaluationId([1; 16]);
    let mut row = Evaluation::new(id, job_key("t"), JobKind::Batch, 50, Trigger::RetryFailedAlloc);
    row.status = EvaluationStatus::Canceled;
    row.node = Some(NodeId([2; 16]));
    row.wait_until = 3;
    row.next = Some(EvaluationId([4; 16]));
    row.failed_groups.insert("web".into(), metrics());
    row.annotations
        .insert("web".into(), GroupAnnotation { place: 2, ..GroupAnnotation::default() });
    row.class_eligibility.insert(ClassId([5; 16]), true);
    row.deployment = Some(DeploymentId([8; 16]));
    row.reschedules.push(AllocationId([6; 16]));
    row.create_index = 7;
    row.order = 9;
    row
}

fn reschedule() -> RescheduleEvent {
    RescheduleEvent { at: 1, previous: AllocationId([2; 16]), node: NodeId([3; 16]), delay_ms: 4 }
}

fn tasks() -> BTreeMap<crate::Text, TaskState> {
    let event = TaskEvent {
        kind: "Terminated".into(),
        at_ms: 1,
        message: "exit".into(),
        exit_code: Some(-1),
        signal: Some(9),
    };
    let state = TaskState {
        state: "dead".into(),
        failed: true,
        restarts: 2,
        started_at_ms: 3,
        finished_at_ms: 4,
        last_restart_ms: 5,
        events: vec![event],
    };
    BTreeMap::from([("server".into(), state)])
}

fn allocation() -> Allocation {
    Allocation {
        id: AllocationId([1; 16]),
        job: job_key("t"),
        job_create_index: 2,
        job_version: 3,
        group: "web".into(),
        name_index: 4,
        per_node: true,
        node: NodeId([5; 16]),
        evaluation: EvaluationId([6; 16]),
        resources: ASK,
        ports: vec![port("http", 8080)],
        desired: DesiredStatus::Evict,
        desired_description: "made room".into(),
        transition: DesiredTransition {
            migrate: true,
            reschedule: false,
            no_replacement: true,
            no_shutdown_delay: true,
        },
        client: ClientStatus::Unknown,
        client_description: "disconnected".into(),
        client_at: 7,
        client_sequence: 8,
        tasks: tasks().into(),
        previous: Some(AllocationId([9; 16])),
        next: None,
        preempted: vec![AllocationId([11; 16])],
        preempted_by: Some(AllocationId([12; 16])),
        follow_up: Some(EvaluationId([10; 16])),
        reschedules: vec![reschedule()],
        deployment: Some(AllocationDeployment {
            id: DeploymentId([13; 16]),
            canary: true,
            health: Some(AllocationHealth { healthy: true, at: 14, index: 15 }),
        }),
        canary_of: Some(DeploymentId([13; 16])),
        metrics: Some(Arc::new(metrics())),
        create_index: 11,
        modify_index: 12,
        server_modify_index: 13,
        created_at: 14,
        modified_at: 15,
    }
}

fn namespace() -> Namespace {
    Namespace {
        name: "team".into(),
        description: "théâtre".into(),
        meta: BTreeMap::from([("a".into(), "b".into())]),
        create_index: 1,
        modify_index: 2,
    }
}

fn node_pool() -> NodePool {
    NodePool { name: "gpu".into(), identity_ttl_ms: 2, create_index: 1, ..NodePool::default() }
}

fn configuration() -> SchedulerConfiguration {
    SchedulerConfiguration { algorithm: Algorithm::Spread, ..SchedulerConfiguration::default() }
}

fn verdict() -> PlanVerdict {
    PlanVerdict {
        evaluation: EvaluationId([1; 16]),
        refused: Some(DropReason::AllAtOnce),
        dropped: vec![(AllocationId([2; 16]), DropReason::NodeFull(Dimension::Allocations))],
        outcome_taken: true,
        refresh_index: 3,
    }
}

fn plan() -> Plan {
    let outcome = Outcome {
        evaluations: vec![evaluation()],
        failed_groups: BTreeMap::from([("web".into(), metrics())]),
        waiting: BTreeSet::from(["web".into()]),
        ..outcome(EvaluationStatus::Blocked)
    };
    Plan {
        evaluation: EvaluationId([1; 16]),
        job: job_key("t"),
        job_create_index: 2,
        job_version: 3,
        snapshot_index: 4,
        priority: 5,
        all_at_once: true,
        stops: vec![Stop {
            id: AllocationId([6; 16]),
            description: "not needed".into(),
            client: Some(ClientStatus::Lost),
        }],
        in_place: vec![InPlace { id: AllocationId([7; 16]) }],
        follow_ups: vec![FollowUp { id: AllocationId([8; 16]), evaluation: EvaluationId([9; 16]) }],
        placements: vec![Placement {
            id: AllocationId([10; 16]),
            group: "web".into(),
            name_index: 11,
            canary: true,
            version: Some(15),
            node: NodeId([12; 16]),
            ports: vec![port("http", 8080)],
            previous: Some(AllocationId([13; 16])),
            preempts: vec![AllocationId([14; 16])],
            reschedules: vec![reschedule()],
            metrics: None,
        }],
        deployment: Some(NewDeployment {
            id: DeploymentId([16; 16]),
            goals: BTreeMap::from([("web".into(), DeploymentGoal { canaries: 1, total: 2 })]),
        }),
        outcome: Some(outcome),
    }
}

fn request() -> Request {
    Request { id: RequestId([1; 16]), stamped_at: 2, payload_hash: 3 }
}

fn node_report(node: NodeId, evaluation_ids: Vec<EvaluationId>) -> NodeReport {
    let update = ClientUpdate {
        id: AllocationId([3; 16]),
        sequence: 4,
        status: ClientStatus::Failed,
        description: "exit 1".into(),
        tasks: Some(tasks()),
        node_failure: Some("no executor".into()),
        health: Some((DeploymentId([6; 16]), true)),
    };
    NodeReport { node, incarnation: 5, updates: vec![update], evaluation_ids }
}

fn shortage(node: NodeId, evaluation_ids: Vec<EvaluationId>) -> Command {
    let reason = "short of disk".into();
    Command::from(NodeShortage { node, incarnation: 12, reason, evaluation_ids })
}

/// Those about the health of nodes, in the order of the enum.
fn health_commands(node: NodeId) -> Vec<Command> {
    vec![
        Command::from(SuspendNode {
            node,
            by: "operator".into(),
            reason: "repair".into(),
            for_ms: Some(13),
        }),
        Command::from(UnsuspendNode { node, by: "operator".into(), reason: "repaired".into() }),
        Command::from(SuspendLateNodes { nodes: vec![node] }),
        Command::from(EndSuspensions { nodes: vec![node] }),
        Command::from(EndMassLoss { by: Some("operator".into()) }),
    ]
}

/// One of each command, in the order of the enum.
pub(super) fn commands() -> Vec<Command> {
    let node = NodeId([1; 16]);
    let evaluation = EvaluationId([2; 16]);
    let evaluation_ids = vec![evaluation];
    let report = node_report(node, evaluation_ids.clone());
    let change = LivenessChange { node, incarnation: 6, liveness: Liveness::Down };
    let evaluation_update = EvaluationUpdate {
        id: evaluation,
        status: EvaluationStatus::Failed,
        description: "gave up".into(),
        follow_up: Some((EvaluationId([7; 16]), 8)),
    };
    let mut commands = vec![
        registration(evaluation),
        Command::from(DeregisterJob {
            job: job_key("t"),
            purge: true,
            evaluation,
            evaluation_priority: None,
            no_shutdown_delay: true,
        }),
        Command::from(EvaluateJob { job: job_key("t"), force_reschedule: true, evaluation }),
        Command::from(RegisterNode {
            instance: Some(InstanceProof { id: InstanceId([21; 16]), token: [22; 16] }),
            node,
            secret: [10; 16],
            identity: [11; 16],
            description: Arc::new(node_description()),
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(NodeReadiness {
            node,
            incarnation: 12,
            readiness: Readiness::Fatal,
            reason: "disk".into(),
            sequence: 13,
            evaluation_ids: evaluation_ids.clone(),
        }),
        shortage(node, evaluation_ids.clone()),
        Command::from(NodeLiveness {
            changes: vec![change],
            window_ms: 30_000,
            evaluation_ids: evaluation_ids.clone(),
        }),
    ];
    commands.extend(health_commands(node));
    commands.extend([
        Command::from(SetEligibility {
            node,
            eligible: false,
            by: "operator".into(),
            reason: "repair".into(),
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(SetDrain {
            node,
            drain: Some(drain()),
            mark_eligible: true,
            meta: BTreeMap::from([("message".into(), "disk swap".into())]),
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(AdvanceDrains {
            migrate: vec![AllocationId([14; 16])],
            complete: vec![node],
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(ReapNode {
            node,
            incarnation: Some(15),
            force: true,
            evaluation_ids: evaluation_ids.clone(),
        }),
        Command::from(EvaluateNode { node, evaluation_ids }),
        Command::from(UpdateAllocations { reports: vec![report] }),
        stop(evaluation),
        Command::from(UpdateEvaluations { updates: vec![evaluation_update] }),
        Command::from(ApplyPlans { plans: vec![Arc::new(plan())] }),
        Command::from(SetSchedulerConfiguration {
            configuration: configuration(),
            keep_node_life: true,
            enforce_index: Some(17),
        }),
        Command::from(UpsertNodePool { pool: node_pool() }),
        Command::from(DeleteNodePool { name: "gpu".into() }),
        Command::from(UpsertNamespace { namespace: namespace() }),
        Command::from(DeleteNamespace { name: "team".into() }),
        Command::from(Tick),
        Command::from(MarkDigest),
        Command::from(DigestVerdict { mark: 18, digest: Digest(19) }),
        collection(),
    ]);
    let more = [
        pools::commands(),
        capacity::commands(),
        vec![mark()],
        deployments::commands(),
        last(evaluation),
    ];
    commands.extend(more.concat());
    commands
}

/// The newest ones.
fn last(evaluation: EvaluationId) -> Vec<Command> {
    vec![
        Command::from(DeleteEvaluations { ids: vec![evaluation] }),
        dispatch(evaluation),
        scaling::command(),
        Command::from(ExpireRuns { ids: vec![AllocationId([28; 16])] }),
        stop_children(evaluation),
        Command::from(LaunchPeriodic {
            launches: vec![Launch {
                job: job_key("t"),
                job_modify_index: 28,
                last_due_s: 1_699_999_999,
                due_s: 1_700_000_000,
                missed: 29,
                evaluation,
            }],
        }),
        Command::from(ForcePeriodic { job: job_key("t"), due_s: 1_700_000_001, evaluation }),
        pools::note_provider(),
    ]
}

fn stop(evaluation: EvaluationId) -> Command {
    Command::from(StopAllocation {
        id: AllocationId([16; 16]),
        replacement: Replacement::Never,
        no_shutdown_delay: true,
        evaluation,
    })
}

fn mark() -> Command {
    Command::from(MarkJobVersion {
        job: job_key("t"),
        mark: VersionMark::Tag {
            version: Some(3),
            name: "golden".into(),
            description: "the one that works".into(),
        },
    })
}

fn dispatch(evaluation: EvaluationId) -> Command {
    Command::from(DispatchJob {
        parent: job_key("t"),
        children: vec![Dispatched {
            id: "t/dispatch-1700000000-0123abcd".into(),
            payload: vec![1, 2],
            meta: BTreeMap::from([("key".into(), "value".into())]),
            priority: Some(60),
            token: "once".into(),
            evaluation,
        }],
    })
}

fn stop_children(evaluation: EvaluationId) -> Command {
    Command::from(StopChildren {
        parent: job_key("t"),
        children: vec![job_key("t/dispatch-1700000000-0123abcd")],
        purge: true,
        evaluation_ids: vec![evaluation],
        evaluation_priority: Some(90),
        no_shutdown_delay: true,
    })
}

fn collection() -> Command {
    Command::from(CollectGarbage {
        cutoffs: Cutoffs {
            evaluations: 20,
            batch_evaluations: 21,
            jobs: 22,
            deployments: 26,
            children_max: 29,
        },
        jobs: vec![job_key("t")],
        allocations: vec![AllocationId([23; 16])],
        evaluations: vec![EvaluationId([24; 16])],
        deployments: vec![DeploymentId([27; 16])],
        classes: vec![ClassId([25; 16])],
    })
}

fn rejections() -> Vec<Rejection> {
    let conflict = |found| Rejection::JobIndexConflict { asked: 1, found };
    vec![
        Rejection::StaleEpoch { expected: 1, found: 2 },
        Rejection::SessionExpired,
        Rejection::RequestIdReused,
        conflict(IndexConflict::Exists),
        conflict(IndexConflict::Missing),
        conflict(IndexConflict::Other(3)),
        Rejection::NotFound { what: "job".into() },
        Rejection::Invalid("bad".into()),
        Rejection::InUse("used".into()),
        Rejection::RegistrationDisabled,
        Rejection::SecretMismatch,
        Rejection::StaleIncarnation,
        Rejection::IndexConflict { asked: 1, found: 2 },
        Rejection::StaleRequirements { name: "lb1".into(), epoch: 1, seq: 2 },
    ]
}

fn replies() -> Vec<Reply> {
    let evaluation = EvaluationId([1; 16]);
    let mut replies = vec![
        Reply::Done,
        Reply::Job { evaluation: Some(evaluation), job_modify_index: 2, found: true },
        Reply::Node { incarnation: 3, modify_index: 4, evaluations: vec![evaluation] },
        Reply::Evaluations(vec![evaluation]),
        Reply::Plans(vec![verdict()]),
    ];
    replies.extend(rejections().into_iter().map(Reply::Rejected));
    replies.push(Reply::Collected(26));
    replies.push(Reply::Deployment { evaluation: Some(evaluation), reverted_to: Some(2) });
    replies.push(Reply::Requirements(vec![None, Some(Rejection::SessionExpired)]));
    replies.push(Reply::Dispatched(vec![
        DispatchAnswer::Child {
            name: "dispatch-1700000000-0123abcd".into(),
            evaluation: Some(evaluation),
            create_index: 28,
            found: true,
        },
        DispatchAnswer::Refused(Rejection::Invalid("bad".into())),
    ]));
    replies
}

/// Lines of names and frames.
#[derive(Default)]
struct Golden {
    lines: Vec<String>,
    kinds: Vec<u16>,
    frames: Vec<Vec<u8>>,
}

impl Golden {
    fn pin<T: Frame + PartialEq + std::fmt::Debug>(&mut self, name: &str, value: &T) {
        let bytes = codec::encode(value);
        assert_eq!(&codec::decode::<T>(&bytes).unwrap(), value, "{name} does not round-trip");
        let payload = &bytes[HEADER_BYTES..];
        assert_eq!(bytes, framed::<T>(payload), "{name} has another header");
        let mut line = format!("{name} {} ", T::KIND);
        for byte in payload {
            write!(line, "{byte:02x}").unwrap();
        }
        self.lines.push(line);
        self.kinds.push(T::KIND);
        self.frames.push(bytes.to_vec());
    }
}

fn registration(evaluation: EvaluationId) -> Command {
    Command::from(RegisterJob {
        spec: Arc::new(spec()),
        enforce_index: Some(9),
        evaluation,
        evaluation_priority: Some(60),
        now_s: 10,
        submission: Some(submission()),
        preserve_counts: true,
        preserve_resources: true,
        stop: true,
        reverts_to: Some(3),
    })
}

fn submission() -> Arc<Submission> {
    Arc::new(Submission {
        source: "job \"web\" {}".into(),
        format: "hcl2".into(),
        variable_flags: [("size".into(), "2".into())].into(),
        variables: "size = 1".into(),
    })
}

fn golden() -> Golden {
    let mut golden = Golden::default();
    golden.pin("job", &job_row());
    let version = JobVersion {
        stop: false,
        tag: Some(VersionTag {
            name: "golden".into(),
            description: "the one that works".into(),
            tagged_at: 1_700_000_000_000,
        }),
        spec: Arc::new(spec()),
        version: 1,
        stable: true,
        status: JobStatus::Running,
        create_index: 2,
        job_modify_index: 3,
        modify_index: 5,
        submitted_at: 4,
        submission: Some(submission()),
    };
    golden.pin("job-version", &version);
    golden.pin("node", &node());
    golden.pin("evaluation", &evaluation());
    golden.pin("allocation", &allocation());
    golden.pin("node-pool", &node_pool());
    golden.pin("namespace", &namespace());
    golden.pin("scheduler-configuration", &configuration());
    let node = NodeId([1; 16]);
    let tombstone = Tombstone {
        node,
        incarnation: 2,
        at: 3,
        health: suspended(),
        failures: failures(),
        strikes: 4,
        strike_at: 5,
    };
    golden.pin("tombstone", &tombstone);
    let offline = OfflineNode { node, name: "n1".into(), eligibility: eligibility() };
    golden.pin("offline-node", &offline);
    let end = Some(MassLossEnd { at: 6, by: "operator".into() });
    let (create_index, modify_index) = (7, 8);
    let loss = MassLoss { since: 5, nodes: vec![node], end, create_index, modify_index };
    golden.pin("mass-loss", &loss);
    golden.pin("deployment", &deployments::row());
    golden.pin("group-scaling", &scaling::row());
    pools::pin(&mut golden);
    capacity::pin(&mut golden);
    let class = ClassId([2; 16]);
    golden.pin("capacity-gain-class", &CapacityGain { key: GainKey::Class(class), index: 3 });
    golden.pin("capacity-gain-node", &CapacityGain { key: GainKey::Node(node), index: 3 });
    golden.pin("session", &Session::new(request(), 4, &Reply::Done));
    let head = Head {
        index: 1,
        term: 2,
        at: 1_000_000_000_000,
        tables: BTreeMap::from([(1, 3)]),
        session_floor: 4,
    };
    golden.pin("head", &head);
    golden
        .pin("digest-mark", &DigestMark { index: 1, digest: Digest(2), verdict: Some(Digest(3)) });
    golden.pin("job-spec", &spec());
    golden.pin("plan", &plan());
    for command in commands() {
        let name = format!("proposal-{}", command.name());
        golden.pin(&name, &Proposal { at: 1, epoch: Some(2), request: Some(request()), command });
    }
    for (number, reply) in replies().iter().enumerate() {
        golden.pin(&format!("reply-{number}"), reply);
    }
    golden
}

/// The row that is pinned of a table.
pub(super) fn row<T: Row>() -> T {
    let golden = golden();
    let at = golden.kinds.iter().position(|kind| *kind == T::KIND).unwrap();
    codec::decode(&golden.frames[at]).unwrap()
}

#[test]
fn frames_are_those_of_the_golden_file() {
    let golden = golden();
    let mut pinned = golden.kinds;
    pinned.sort_unstable();
    pinned.dedup();
    let mut all = codec::kinds();
    all.sort_unstable();
    assert_eq!(pinned, all, "a kind is not pinned");

    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/frames.txt");
    let pinned = std::fs::read_to_string(path).unwrap();
    let text = |generation| format!("generation {generation}\n{}\n", golden.lines.join("\n"));
    if std::env::var_os("UPDATE").is_some() && pinned != text(GENERATION) {
        std::fs::write(path, text(GENERATION + 1)).unwrap();
        return;
    }
    let text = text(GENERATION);
    let (mut old, mut new) = (pinned.lines(), text.lines());
    loop {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) => assert_eq!(old, new, "the bytes changed: see the docs of this file"),
        }
    }
}

/// The numbers of a command are those of its noun and of its row in the noun's table. There is one
/// of each.
#[test]
fn commands_are_numbered_by_their_places() {
    let sent = commands().into_iter().map(|command| {
        let name = command.name();
        let proposal = Proposal { at: 0, epoch: None, request: None, command };
        let bytes = codec::encode(&proposal);
        // After the header: at 0, no epoch, no request, and the numbers as varints of one byte.
        let numbers = [bytes[HEADER_BYTES + 3], bytes[HEADER_BYTES + 4]];
        (numbers.map(usize::from), name)
    });
    let sent: BTreeSet<_> = sent.collect();
    let mut all = BTreeSet::new();
    for (noun, names) in Command::NAMES.iter().enumerate() {
        all.extend(names.iter().enumerate().map(|(number, name)| ([noun, number], *name)));
    }
    assert_eq!(sent, all);
}

/// What servers add to a request does not count as part of it.
#[test]
fn nothing_fresh_is_left_of_a_request() {
    for mut command in commands() {
        let name = command.name();
        let evaluation = command.evaluation();
        command.clear_fresh();
        assert_eq!(command.evaluation(), evaluation.map(|_| EvaluationId::default()));
        if command.senders() != Senders::Clients {
            continue; // What the leader makes is no request.
        }
        let text = format!("{command:?}");
        // The children of a dispatch have one each.
        let has_one = text.contains(" evaluation: ") && name != "DispatchJob";
        assert_eq!(evaluation.is_some(), has_one, "{name}: the row has it first");
        for field in ["evaluation: ", "evaluation_ids: "] {
            let values = text.split(field).skip(1);
            let empty = [format!("{:?}", EvaluationId::default()), "[]".to_owned()];
            for value in values {
                assert!(empty.iter().any(|one| value.starts_with(one)), "{name}: {value}");
            }
        }
    }
}

/// Clients need a right for whatever they send; no other has one.
#[test]
fn commands_of_clients_need_a_right_and_others_have_none() {
    for command in commands() {
        let is_of_clients = command.senders() == Senders::Clients;
        assert_eq!(command.right() != Right::Internal, is_of_clients, "{}", command.name());
    }
}

/// A frame with a correct header around any payload.
fn framed<T: Frame>(payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"RQ".to_vec();
    bytes.extend_from_slice(&T::KIND.to_le_bytes());
    bytes.extend_from_slice(&GENERATION.to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(payload).to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// Decodes a payload as `T`; what decodes encodes to something that decodes to the same.
fn survives<T: Frame + PartialEq + std::fmt::Debug>(payload: &[u8]) {
    if let Ok(value) = codec::decode::<T>(&framed::<T>(payload)) {
        assert_eq!(codec::decode::<T>(&codec::encode(&value)).unwrap(), value);
    }
}

fn survives_as_everything(payload: &[u8]) {
    survives::<Job>(payload);
    survives::<JobVersion>(payload);
    survives::<Node>(payload);
    survives::<Evaluation>(payload);
    survives::<Allocation>(payload);
    survives::<Deployment>(payload);
    survives::<GroupScaling>(payload);
    survives::<NodePool>(payload);
    survives::<SchedulerConfiguration>(payload);
    survives::<OfflineNode>(payload);
    survives::<CapacityGain>(payload);
    survives::<Session>(payload);
    survives::<Head>(payload);
    survives::<DigestMark>(payload);
    survives::<Proposal>(payload);
    survives::<Reply>(payload);
    survives::<Plan>(payload);
    survives::<JobSpec>(payload);
}

/// A length far beyond the payload is refused at once: it must not allocate. A decoder that
/// reserved what is announced would abort here.
#[test]
fn a_hostile_length_is_refused() {
    // A varint of eight bytes that says 2^62, then some of 2^32, where a name or a list begins.
    for length in [1u64 << 62, 1 << 40, 1 << 32, codec::PAYLOAD_BYTES_MAX as u64 + 1] {
        let mut payload = vec![253];
        payload.extend_from_slice(&length.to_le_bytes());
        payload.resize(64, 0);
        let error = codec::decode::<NodePool>(&framed::<NodePool>(&payload)).unwrap_err();
        assert!(matches!(error, DecodeError::Payload { .. }), "{error}");
        let mut reply = vec![4];
        reply.extend_from_slice(&payload);
        let error = codec::decode::<Reply>(&framed::<Reply>(&reply)).unwrap_err();
        assert!(matches!(error, DecodeError::Payload { .. }), "{error}");
        survives_as_everything(&payload);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(codec::decode::<Proposal>(&bytes).is_err());
        survives_as_everything(&bytes);
    }

    #[test]
    fn damaged_payloads_do_not_panic(
        which in any::<prop::sample::Index>(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = golden().frames;
        let frame = &frames[which.index(frames.len())];
        let mut payload = frame[HEADER_BYTES..].to_vec();
        for (at, byte) in edits {
            if !payload.is_empty() {
                let at = at.index(payload.len());
                payload[at] = byte;
            }
        }
        survives_as_everything(&payload);
        payload.truncate(cut.index(payload.len() + 1));
        survives_as_everything(&payload);
    }
}
