//! Random commands on three replicas: one that lives on, one that is saved and loaded now and then,
//! one that is restored from the rows on disk as they were some entries ago and applies those
//! again. Same digests, rows and replies after every step, no invariant broken, nothing panics,
//! every proposal round-trips to the same bytes, a rejection changes nothing.
//!
//! `FSM_RANDOM_SECONDS=300 cargo test -p fsm random -- --nocapture` runs longer;
//! `FSM_RANDOM_SEED=…` runs one seed, as a failure prints it.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a test is told how long to run"
)]

mod capacity;
mod deployments;
mod pools;

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use chance::Dice;

use super::golden::commands;
use crate::{
    Applied,
    allocation::{
        ClientStatus, ClientUpdate, ExpireRuns, NodeReport, Replacement, StopAllocation,
        UpdateAllocations,
    },
    codec,
    command::{Command, NodeCommand, PlanCommand, Proposal, Reply},
    digest::{Digest, DigestVerdict},
    evaluation::{
        DeleteEvaluations, Evaluation, EvaluationStatus, EvaluationUpdate, Metrics, Trigger,
        UpdateEvaluations,
    },
    gc::{CollectGarbage, Cutoffs},
    id::{AllocationId, EvaluationId, JobKey, NodeId, RequestId, Text},
    invariant,
    job::{
        DeregisterJob, DispatchJob, Dispatched, EvaluateJob, ForcePeriodic, Job, JobKind, JobSpec,
        Launch, LaunchPeriodic, MarkJobVersion, Parameterized, Periodic, RegisterJob, ScaleJob,
        Scaling, StopChildren, Submission, VersionMark,
    },
    node::{
        AdvanceDrains, Drain, EndMassLoss, EndSuspensions, EvaluateNode, Liveness, LivenessChange,
        NodeLiveness, NodeReadiness, NodeShortage, Readiness, ReapNode, RegisterNode, SetDrain,
        SetEligibility, SuspendLateNodes, SuspendNode, UnsuspendNode,
    },
    plan::{ApplyPlans, FollowUp, InPlace, Placement, Plan, Stop, is_preemptible},
    session::Request,
    settings::{
        DeleteNamespace, DeleteNodePool, Namespace, NodeLife, NodePool, Preemption,
        SchedulerConfiguration, SetSchedulerConfiguration, UpsertNamespace, UpsertNodePool,
    },
    state::State,
    table::ChangeSet,
    testing::{
        GROUP, START_MS, description, job, job_with_key, job_with_ports, outcome, payload_hash,
        port, reload, rows,
    },
    upkeep::{MarkDigest, Tick},
};

/// Makes commands that mostly fit a state.
struct Maker<'a> {
    dice: &'a mut Dice,
    state: &'a State,
}

const STATUSES: [EvaluationStatus; 5] = [
    EvaluationStatus::Pending,
    EvaluationStatus::Blocked,
    EvaluationStatus::Complete,
    EvaluationStatus::Failed,
    EvaluationStatus::Canceled,
];

impl Maker<'_> {
    /// One of eight, so that commands meet; rarely one of very many.
    fn id(&mut self, few: u64) -> [u8; 16] {
        let number = if self.dice.one_in(40) { u64::MAX } else { few };
        (u128::from(self.dice.below(number)) << 64).to_be_bytes()
    }

    fn node(&mut self) -> NodeId {
        NodeId(self.id(6))
    }

    fn new_evaluation(&mut self) -> EvaluationId {
        let few = if self.dice.one_in(20) { 8 } else { u64::MAX };
        EvaluationId(self.id(few))
    }

    fn evaluation_ids(&mut self) -> Vec<EvaluationId> {
        (0..self.dice.below(3)).map(|_| self.new_evaluation()).collect()
    }

    fn has_open_evaluation(&self) -> bool {
        self.state.evaluations.iter().any(|row| !row.status.is_terminal())
    }

    fn evaluation(&mut self) -> EvaluationId {
        let rows = self.state.evaluations.iter();
        let open: Vec<_> = rows.filter(|row| !row.status.is_terminal()).map(|row| row.id).collect();
        if self.dice.one_in(10) {
            let all: Vec<_> = self.state.evaluations.iter().map(|row| row.id).collect();
            return self.dice.pick(&all).unwrap_or_else(|| self.new_evaluation());
        }
        self.dice.pick(&open).unwrap_or_else(|| self.new_evaluation())
    }

    fn allocation(&mut self) -> AllocationId {
        let rows = self.state.allocations.iter();
        let all_of_them = self.dice.one_in(4);
        let ids: Vec<_> =
            rows.filter(|row| all_of_them || !row.client.is_terminal()).map(|row| row.id).collect();
        let unknown = AllocationId(self.id(4));
        self.dice.pick(&ids).unwrap_or(unknown)
    }

    fn incarnation(&mut self, node: NodeId) -> u64 {
        let real = self.state.nodes.get(&node).map_or(1, |row| row.incarnation);
        if self.dice.one_in(15) { self.dice.below(4) } else { real }
    }

    fn job_name(&mut self) -> &'static str {
        self.dice
            .choose(&["one", "two", "three", "ports", "system", "sysbatch", "template", "clock"])
    }

    /// Any job that is there, or a name.
    fn any_job(&mut self) -> JobKey {
        let keys: Vec<_> = self.state.jobs.iter().map(|job| job.key.clone()).collect();
        let named = crate::testing::job_key(self.job_name());
        if self.dice.one_in(3) { self.dice.pick(&keys).unwrap_or(named) } else { named }
    }

    fn spec(&mut self) -> JobSpec {
        let name = self.job_name();
        let count = u32::try_from(self.dice.below(4)).unwrap();
        let mut spec = match name {
            "ports" => job_with_ports(name, &[("http", 8080), ("admin", 0)]),
            "system" => job(name, JobKind::System, 1),
            "sysbatch" => job(name, JobKind::Sysbatch, 1),
            "two" => job_with_key(name, self.dice.choose(&["snapA", "snapB"])),
            "template" => JobSpec {
                parameterized: Some(Parameterized {
                    max_running: self.dice.choose(&[0, 1, 2]),
                    ..Parameterized::default()
                }),
                ..job(name, JobKind::Batch, 1)
            },
            "clock" => JobSpec {
                periodic: Some(Periodic {
                    enabled: !self.dice.one_in(5),
                    specs: vec![self.dice.choose(&["@daily".into(), "@hourly".into()])],
                    prohibit_overlap: self.dice.one_in(2),
                    ..Periodic::default()
                }),
                ..job(name, JobKind::Batch, 1)
            },
            _ => job(name, JobKind::Service, count),
        };
        // Far enough apart that one may be evicted for another.
        spec.priority = self.dice.choose(&[20, 50, 80]);
        match self.dice.below(12) {
            0 => spec.kind = JobKind::Service,
            1 => spec.node_pool = self.dice.choose(&["gpu".into(), "all".into()]),
            2 => spec.key.namespace = "team".into(),
            3 => spec.groups.clear(),
            4 => spec.groups[0].tasks[0].resources.cpu_mhz = self.dice.choose(&[0, 900, u64::MAX]),
            5 => spec.groups[0].name = "renamed".into(),
            6 => spec.parameterized = Some(Parameterized::default()),
            7 | 8 => self.update_strategy(&mut spec),
            10 => spec.groups[0].max_run_ms = self.dice.choose(&[1, 60_000]),
            9 => {
                let (enabled, min, max) = (true, 1, self.dice.choose(&[3, 5]));
                let (policy_json, kind) = ("".into(), "horizontal".into());
                let scaling = Scaling { enabled, min, max, policy_json, kind };
                spec.groups[0].scaling = Some(scaling);
            }
            _ => spec.priority = 10 * u16::try_from(self.dice.below(3)).unwrap(),
        }
        spec
    }

    fn node_description(&mut self) -> crate::node::NodeDescription {
        let mut made = description("node");
        match self.dice.below(8) {
            0 => made.resources.total.cpu_mhz = self.dice.choose(&[0, 600, 1500, u64::MAX]),
            1 => made.resources.allocations_max = 2,
            2 => made.pool = self.dice.choose(&["gpu".into(), "nowhere".into()]),
            3 => made.datacenter = "dc2".into(),
            4 => made.resources.reserved = made.resources.total.plus(made.resources.total),
            _ => {}
        }
        made
    }

    fn request(&mut self, command: &Command) -> Option<Request> {
        if !self.dice.one_in(4) {
            return None;
        }
        let at = self.state.at;
        let span = self.dice.choose(&[0, 1000, 700_000, u64::MAX]);
        let stamped_at =
            if self.dice.one_in(30) { at.saturating_add(span) } else { at.saturating_sub(span) };
        Some(Request {
            id: RequestId(self.id(30)),
            stamped_at,
            payload_hash: payload_hash(command),
        })
    }

    fn proposal(&mut self) -> Proposal {
        let at = self.state.at;
        let step = self.dice.choose(&[0, 1, 50, 1000, 61_000, 16 * 60_000, 25 * 3_600_000]);
        let at = match self.dice.below(60) {
            0 => 0,
            1 => at.saturating_sub(step),
            _ => at.saturating_add(step),
        };
        let at = if self.dice.one_in(4000) { u64::MAX } else { at };
        let command =
            if self.dice.one_in(25) { self.dice.choose(&commands()) } else { self.command() };
        let epoch = match self.dice.below(20) {
            0 => Some(self.state.term.saturating_add(1)),
            1..5 => Some(self.state.term),
            _ => None,
        };
        Proposal { at, epoch, request: self.request(&command), command }
    }

    fn command(&mut self) -> Command {
        match self.dice.below(45) {
            42.. => self.deployment_command(),
            38..42 => self.capacity_command(),
            30..38 => self.instance_command(),
            0..6 => self.job_command(),
            6..12 => self.node_command(),
            12..14 => self.operator_command(),
            14..18 => self.report(),
            // A plan of an evaluation that is closed places nothing.
            18..27 if !self.has_open_evaluation() && !self.dice.one_in(4) => self.job_command(),
            18..27 => {
                let plans = (0..=self.dice.below(3)).map(|_| Arc::new(self.plan())).collect();
                Command::from(ApplyPlans { plans })
            }
            27 => self.evaluation_command(),
            _ => self.setting(),
        }
    }

    fn job_command(&mut self) -> Command {
        let job = self.any_job();
        let evaluation = self.new_evaluation();
        if self.dice.one_in(6) {
            return self.dispatch();
        }
        if self.dice.one_in(30) {
            let children = (0..4).map(|_| self.any_job()).collect();
            let parent = crate::testing::job_key("template");
            let (purge, evaluation_ids) = (self.dice.one_in(2), self.evaluation_ids());
            return StopChildren {
                parent,
                children,
                purge,
                evaluation_ids,
                evaluation_priority: None,
                no_shutdown_delay: false,
            }
            .into();
        }
        if self.dice.one_in(6) {
            return self.launch();
        }
        match self.dice.below(14) {
            0 => Command::from(DeregisterJob {
                job,
                purge: self.dice.one_in(2),
                evaluation,
                evaluation_priority: None,
                no_shutdown_delay: self.dice.one_in(2),
            }),
            1..7 => Command::from(EvaluateJob {
                job,
                force_reschedule: self.dice.one_in(2),
                evaluation,
            }),
            7 => {
                let version = self.dice.below(9);
                let name = ["a", "b", ""][self.dice.index(3)].into();
                let mark = match self.dice.below(4) {
                    0 => VersionMark::Stable { version, stable: self.dice.one_in(2) },
                    1 => VersionMark::Untag { name },
                    _ => VersionMark::Tag {
                        version: self.dice.one_in(2).then_some(version),
                        name,
                        description: "".into(),
                    },
                };
                Command::from(MarkJobVersion { job, mark })
            }
            8 => Command::from(ScaleJob {
                job,
                group: self.dice.choose(&["web".into(), "nothing".into()]),
                count: (!self.dice.one_in(4)).then(|| self.dice.choose(&[0, 1, 2, 4, 6])),
                enforce_index: self.dice.one_in(6).then(|| self.dice.below(9)),
                message: "because".into(),
                error: self.dice.one_in(4),
                meta_json: "".into(),
                evaluation,
            }),
            _ => {
                let enforce_index = self.dice.one_in(6).then(|| self.dice.below(9));
                Command::from(RegisterJob {
                    enforce_index,
                    evaluation_priority: self.dice.one_in(9).then_some(u16::MAX),
                    submission: self.dice.one_in(3).then(|| self.submission()),
                    preserve_counts: self.dice.one_in(3),
                    preserve_resources: self.dice.one_in(3),
                    stop: self.dice.one_in(30),
                    ..RegisterJob::new(Arc::new(self.spec()), evaluation)
                })
            }
        }
    }

    /// Mostly of the parent, with ids and tokens that meet now and then.
    fn dispatch(&mut self) -> Command {
        let parent = if self.dice.one_in(9) { self.job_name() } else { "template" };
        let children = (0..self.dice.below(4)).map(|_| Dispatched {
            id: format!("{parent}/dispatch-1-{}", self.dice.below(400)).into(),
            payload: vec![0; if self.dice.one_in(30) { 20_000 } else { 3 }],
            meta: BTreeMap::new(),
            priority: self.dice.one_in(9).then(|| self.dice.choose(&[1, 70, u16::MAX])),
            token: self.dice.choose(&["".into(), "".into(), "a".into(), "b".into()]),
            evaluation: self.new_evaluation(),
        });
        let children = children.collect();
        DispatchJob { parent: crate::testing::job_key(parent), children }.into()
    }

    /// Mostly of the periodic job as it is, at due times that meet now and then.
    fn launch(&mut self) -> Command {
        let any_name = self.dice.one_in(9);
        let name = if any_name { self.job_name() } else { "clock" };
        let job = crate::testing::job_key(name);
        let row = self.state.jobs.get(&job);
        let known = row.map_or(0, |row| row.job_modify_index);
        let last = row.and_then(|row| row.periodic).map_or(0, |row| row.last_due_s);
        if self.dice.one_in(4) {
            let due_s = last.saturating_add(self.dice.choose(&[0, 1, 2]));
            return ForcePeriodic { job, due_s, evaluation: self.new_evaluation() }.into();
        }
        let launches = (0..self.dice.below(3)).map(|_| Launch {
            job: job.clone(),
            job_modify_index: if self.dice.one_in(9) { 1 } else { known },
            last_due_s: if self.dice.one_in(9) { 1 } else { last },
            due_s: last.saturating_add(self.dice.choose(&[-1, 0, 1, 2, 60])),
            missed: self.dice.choose(&[0, 1, u64::MAX]),
            evaluation: self.new_evaluation(),
        });
        let launches = launches.collect();
        LaunchPeriodic { launches }.into()
    }

    /// One of a few texts.
    fn submission(&mut self) -> Arc<Submission> {
        let source = self.dice.choose(&["one".into(), "two".into()]);
        let variables = self.dice.choose(&["".into(), "a = 1".into()]);
        Arc::new(Submission { source, variables, ..Submission::default() })
    }

    fn node_command(&mut self) -> Command {
        let node = self.node();
        let incarnation = self.incarnation(node);
        let evaluation_ids = self.evaluation_ids();
        match self.dice.below(13) {
            0..3 => {
                let identity = if self.dice.one_in(9) { 2 } else { 1 };
                let secret = if self.dice.one_in(30) { 8 } else { 7 };
                Command::from(RegisterNode {
                    instance: None,
                    node,
                    secret: [secret; 16],
                    identity: [identity; 16],
                    description: Arc::new(self.node_description()),
                    evaluation_ids,
                })
            }
            3..8 => {
                let all = [Readiness::Ok, Readiness::Ok, Readiness::Retry, Readiness::Fatal];
                let readiness = self.dice.choose(&all);
                Command::from(NodeReadiness {
                    node,
                    incarnation,
                    readiness,
                    reason: self.dice.choose(&["".into(), "disk".into()]),
                    sequence: self.dice.below(1_000),
                    evaluation_ids,
                })
            }
            8 => Command::from(NodeShortage {
                node,
                incarnation,
                reason: self.dice.choose(&["".into(), "short of disk".into()]),
                evaluation_ids,
            }),
            9 | 10 => {
                let all = [
                    Liveness::Initializing,
                    Liveness::Ready,
                    Liveness::Disconnected,
                    Liveness::Down,
                ];
                let changes = (0..self.dice.below(3))
                    .map(|_| {
                        let node = self.node();
                        let incarnation = self.incarnation(node);
                        LivenessChange { node, incarnation, liveness: self.dice.choose(&all) }
                    })
                    .collect();
                let window_ms = self.dice.below(40_000);
                Command::from(NodeLiveness { changes, window_ms, evaluation_ids })
            }
            11 => {
                let incarnation = self.dice.one_in(2).then_some(incarnation);
                let force = self.dice.one_in(3);
                Command::from(ReapNode { node, incarnation, force, evaluation_ids })
            }
            _ => Command::from(EvaluateNode { node, evaluation_ids }),
        }
    }

    fn operator_command(&mut self) -> Command {
        let node = self.node();
        let evaluation_ids = self.evaluation_ids();
        let text: Text = "text".into();
        match self.dice.below(12) {
            0 => {
                let for_ms = self.dice.one_in(2).then(|| self.dice.below(20_000));
                Command::from(SuspendNode { node, by: text.clone(), reason: text, for_ms })
            }
            1 => Command::from(EndSuspensions { nodes: vec![node, self.node()] }),
            2 => Command::from(UnsuspendNode { node, by: text.clone(), reason: text }),
            9 => Command::from(SuspendLateNodes { nodes: vec![node, self.node()] }),
            10 => Command::from(EndMassLoss { by: self.dice.one_in(3).then_some(text) }),
            3..6 => Command::from(SetEligibility {
                node,
                eligible: !self.dice.one_in(4),
                by: text.clone(),
                reason: text,
                evaluation_ids,
            }),
            6 | 7 => {
                let drain = self.dice.one_in(3).then(|| Drain {
                    started_at: self.dice.bits(),
                    deadline_at: Some(self.dice.bits()),
                    force: false,
                    ignore_system: true,
                    owner: text,
                    cancelable: true,
                });
                let mark_eligible = !self.dice.one_in(4);
                Command::from(SetDrain {
                    node,
                    drain,
                    mark_eligible,
                    meta: std::collections::BTreeMap::new(),
                    evaluation_ids,
                })
            }
            _ => Command::from(AdvanceDrains {
                migrate: vec![self.allocation(), self.allocation()],
                complete: vec![node],
                evaluation_ids,
            }),
        }
    }

    fn report(&mut self) -> Command {
        let mut reports = Vec::new();
        if self.dice.one_in(2) {
            // A sync, without which a node that missed a heartbeat is not ready again.
            let node = self.node();
            let incarnation = self.incarnation(node);
            let (updates, evaluation_ids) = (Vec::new(), Vec::new());
            reports.push(NodeReport { node, incarnation, updates, evaluation_ids });
        }
        for _ in 0..=self.dice.below(3) {
            let id = self.allocation();
            let row = self.state.allocations.get(&id);
            let node = match row {
                Some(row) if !self.dice.one_in(15) => row.node,
                _ => self.node(),
            };
            let sequence = row.map_or(0, |row| row.client_sequence);
            let statuses = [ClientStatus::Running, ClientStatus::Running, ClientStatus::Complete];
            let status = if self.dice.one_in(3) {
                self.dice.choose(&ClientStatus::ALL)
            } else {
                self.dice.choose(&statuses)
            };
            let update = ClientUpdate {
                id,
                sequence: if self.dice.one_in(15) { self.dice.bits() } else { sequence + 1 },
                status,
                description: "".into(),
                tasks: Some(BTreeMap::new()),
                node_failure: self.dice.one_in(9).then(|| "no room".into()),
                health: self.health(id),
            };
            let updates = if self.dice.one_in(5) { Vec::new() } else { vec![update] };
            let incarnation = self.incarnation(node);
            let evaluation_ids = self.evaluation_ids();
            reports.push(NodeReport { node, incarnation, updates, evaluation_ids });
        }
        Command::from(UpdateAllocations { reports })
    }

    fn evaluation_command(&mut self) -> Command {
        if self.dice.one_in(4) {
            let ids = (0..self.dice.below(4)).map(|_| self.allocation()).collect();
            return Command::from(ExpireRuns { ids });
        }
        if self.dice.one_in(2) {
            let evaluation = self.new_evaluation();
            let all = [Replacement::ByKind, Replacement::Always, Replacement::Never];
            let replacement = self.dice.choose(&all);
            let no_shutdown_delay = self.dice.one_in(2);
            let id = self.allocation();
            return Command::from(StopAllocation {
                id,
                replacement,
                no_shutdown_delay,
                evaluation,
            });
        }
        if self.dice.one_in(4) {
            let ids = (0..self.dice.below(3)).map(|_| self.evaluation()).collect();
            return Command::from(DeleteEvaluations { ids });
        }
        let updates = (0..self.dice.below(3))
            .map(|_| EvaluationUpdate {
                id: self.evaluation(),
                status: self.dice.choose(&STATUSES),
                description: "".into(),
                follow_up: self.dice.one_in(2).then(|| (self.new_evaluation(), 7)),
            })
            .collect();
        Command::from(UpdateEvaluations { updates })
    }

    fn setting(&mut self) -> Command {
        let name: Text = self.dice.choose(&["gpu".into(), "team".into(), "all".into(), "".into()]);
        match self.dice.below(10) {
            0 => {
                let configuration = SchedulerConfiguration {
                    reject_job_registration: self.dice.one_in(9),
                    pause_eval_broker: self.dice.one_in(2),
                    preemption: Preemption {
                        system: self.dice.one_in(2),
                        sysbatch: self.dice.one_in(2),
                        batch: self.dice.one_in(2),
                        service: !self.dice.one_in(3),
                    },
                    node_limit: u32::try_from(self.dice.below(3)).unwrap(),
                    node_life: NodeLife {
                        strike_failures: u32::try_from(self.dice.below(4)).unwrap(),
                        strike_window_ms: 1 + self.dice.below(20_000),
                        suspend_ms: 1 + self.dice.below(20_000),
                        affinity_meta_key: self.dice.choose(&["".into(), "snapshot".into()]),
                        ..NodeLife::default()
                    },
                    ..SchedulerConfiguration::default()
                };
                let enforce_index = self.dice.one_in(3).then_some(0);
                Command::from(SetSchedulerConfiguration {
                    configuration,
                    keep_node_life: self.dice.one_in(2),
                    enforce_index,
                })
            }
            1 | 2 => {
                Command::from(UpsertNodePool { pool: NodePool { name, ..NodePool::default() } })
            }
            3 => Command::from(DeleteNodePool { name }),
            4 | 5 => Command::from(UpsertNamespace {
                namespace: Namespace { name, ..Namespace::default() },
            }),
            6 => Command::from(DeleteNamespace { name }),
            7 => Command::from(MarkDigest),
            8 => {
                let marks: Vec<_> = self.state.digest_marks.iter().map(|row| row.index).collect();
                let mark = self.dice.pick(&marks).unwrap_or(3);
                Command::from(DigestVerdict { mark, digest: Digest(5) })
            }
            _ if self.dice.one_in(2) => Command::from(Tick),
            _ => self.collection(),
        }
    }

    /// Everything that could be collected and more, with a cut-off somewhere in the past.
    fn collection(&mut self) -> Command {
        let before = self.state.at.saturating_sub(self.dice.below(3) * 1000);
        let mut evaluations: Vec<_> = self.state.evaluations.iter().map(|row| row.id).collect();
        evaluations.retain(|_| !self.dice.one_in(4));
        let mut allocations: Vec<_> = self.state.allocations.iter().map(|row| row.id).collect();
        allocations.retain(|_| !self.dice.one_in(4));
        Command::from(CollectGarbage {
            cutoffs: Cutoffs {
                evaluations: before,
                batch_evaluations: before,
                jobs: before,
                deployments: before,
                children_max: self.dice.choose(&[0, 2, u64::MAX]),
            },
            jobs: self.state.jobs.iter().map(|row| row.key.clone()).collect(),
            allocations,
            evaluations,
            deployments: self.state.deployments.iter().map(|row| row.id).collect(),
            classes: self.state.classes_without_nodes(),
        })
    }

    fn plan(&mut self) -> Plan {
        let evaluation = self.evaluation();
        let key = match self.state.evaluations.get(&evaluation) {
            Some(row) if !self.dice.one_in(30) => row.job.clone(),
            _ => crate::testing::job_key(self.job_name()),
        };
        let job = self.state.jobs.get(&key);
        let last = self.state.index;
        let lag = if self.dice.one_in(8) { self.dice.below(20) } else { 0 };
        let mut plan = Plan {
            evaluation,
            job: key.clone(),
            job_create_index: job.map_or(0, |job| job.create_index),
            job_version: job.map_or(0, |job| job.version),
            snapshot_index: last.saturating_sub(lag),
            priority: 50,
            all_at_once: self.dice.one_in(5),
            stops: Vec::new(),
            in_place: Vec::new(),
            follow_ups: Vec::new(),
            placements: Vec::new(),
            deployment: self.new_deployment(&key),
            outcome: self.dice.one_in(3).then(|| self.outcome(&key)),
        };
        if self.dice.one_in(20) {
            plan.job_version = self.dice.below(3);
        }
        let ended_too = self.dice.one_in(5);
        let of_job = self.state.allocations_of_job(&key);
        let of_job: Vec<_> =
            of_job.filter(|row| ended_too || row.is_live()).map(|row| row.id).collect();
        for _ in 0..self.dice.below(4) {
            self.add_change(&mut plan, &of_job);
        }
        if !self.dice.one_in(4) {
            for _ in 0..self.dice.below(4) {
                plan.placements.push(self.placement(&key, &of_job));
            }
        }
        plan
    }

    fn add_change(&mut self, plan: &mut Plan, of_job: &[AllocationId]) {
        let any = self.allocation();
        let id = self.dice.pick(of_job).filter(|_| !self.dice.one_in(9)).unwrap_or(any);
        match self.dice.below(6) {
            0..3 => {
                let client = self.dice.one_in(3).then(|| self.dice.choose(&ClientStatus::ALL));
                plan.stops.push(Stop { id, description: "".into(), client });
            }
            3 | 4 => plan.in_place.push(InPlace { id }),
            _ => plan.follow_ups.push(FollowUp { id, evaluation: self.evaluation() }),
        }
    }

    fn placement(&mut self, key: &crate::JobKey, of_job: &[AllocationId]) -> Placement {
        let ports = if &*key.id == "ports" || self.dice.one_in(15) {
            let dynamic = 20_000 + u16::try_from(self.dice.below(3)).unwrap();
            let http = self.dice.choose(&[8080, 8080, 8080, 0, 22]);
            vec![port("http", http), port("admin", dynamic)]
        } else {
            Vec::new()
        };
        let few = if self.dice.one_in(20) { 4 } else { u64::MAX };
        let id = AllocationId(self.id(few));
        let spec = self.state.jobs.get(key).and_then(|job| self.state.current_spec(job));
        let suits = |row: &crate::Node| {
            let matches =
                |spec: &Arc<JobSpec>| row.description.matches(&spec.node_pool, &spec.datacenters);
            row.is_schedulable() && spec.is_some_and(matches)
        };
        let in_service = self.state.nodes.iter().filter(|row| suits(row));
        let in_service: Vec<_> = in_service.map(|row| row.id).collect();
        let any = self.node();
        let node =
            if self.dice.one_in(6) { any } else { self.dice.pick(&in_service).unwrap_or(any) };
        // Often where something of another job runs, or evictions would be rare.
        let others = |row: &&Arc<crate::Allocation>| row.is_live() && row.job != *key;
        let held = self.state.allocations.iter().filter(others).map(|row| row.node);
        let held: Vec<_> =
            held.filter(|id| self.state.nodes.get(id).is_some_and(|row| suits(row))).collect();
        let node = if self.dice.one_in(2) { self.dice.pick(&held).unwrap_or(node) } else { node };
        let group = spec.and_then(|spec| spec.groups.first()).map(|group| group.name.clone());
        let group = group.filter(|_| !self.dice.one_in(20)).unwrap_or_else(|| GROUP.into());
        Placement {
            id,
            group,
            name_index: u32::try_from(self.dice.below(9)).unwrap(),
            canary: self.dice.one_in(6),
            version: self.dice.one_in(9).then(|| self.dice.below(4)),
            node,
            ports,
            previous: self.dice.pick(of_job),
            preempts: self.preempts(node, key),
            reschedules: Vec::new(),
            metrics: None,
        }
    }

    fn preempts(&mut self, node: NodeId, key: &crate::JobKey) -> Vec<AllocationId> {
        match self.dice.below(30) {
            0 => return vec![self.allocation()],
            1..15 => {}
            _ => return Vec::new(),
        }
        let job = self.state.jobs.get(key);
        let may = |job: &Arc<Job>| self.state.scheduler_configuration().preemption.allows(job.kind);
        let Some(priority) = job.filter(|job| may(job)).map(|job| job.priority) else {
            return Vec::new();
        };
        let there = self.state.allocations_of_node(node);
        let lower =
            there.filter(|row| row.is_live() && is_preemptible(self.state, row, key, priority));
        lower.map(|row| row.id).take(2).collect()
    }

    fn outcome(&mut self, key: &crate::JobKey) -> crate::plan::Outcome {
        let mut made = outcome(self.dice.choose(&STATUSES));
        if self.dice.one_in(2) {
            made.status = EvaluationStatus::Complete;
        }
        if self.dice.one_in(2) {
            made.failed_groups.insert(GROUP.into(), Metrics::default());
            made.queued.insert(GROUP.into(), 3);
            if self.dice.one_in(2) {
                made.waiting.insert(GROUP.into());
            }
        }
        for _ in 0..self.dice.below(3) {
            let id = self.new_evaluation();
            let key = match self.dice.below(9) {
                0 => crate::testing::job_key(self.job_name()),
                _ => key.clone(),
            };
            let mut row = Evaluation::new(id, key, JobKind::Service, 50, Trigger::QueuedAllocs);
            row.status = self.dice.choose(&STATUSES);
            row.node = self.dice.one_in(3).then(|| self.node());
            row.create_index = self.dice.below(3);
            made.evaluations.push(row);
        }
        made
    }
}

/// The rows on disk as of some entry, and the entries after it.
#[derive(Default)]
struct Checkpoint {
    disk: BTreeMap<Vec<u8>, bytes::Bytes>,
    head: Option<crate::state::Head>,
    since: Vec<(u64, Option<Proposal>)>,
}

impl Checkpoint {
    /// A replica that starts from here.
    fn restore(&self) -> State {
        let mut state = State::default();
        for (key, frame) in &self.disk {
            state.load_row(key, frame).unwrap();
        }
        state.load_done(self.head.clone().unwrap_or_default());
        for (term, proposal) in &self.since {
            let index = state.index + 1;
            match proposal {
                Some(proposal) => {
                    state.apply(index, *term, proposal, &mut ChangeSet::default());
                }
                None => state.advance(index, *term),
            }
        }
        state
    }
}

/// Replicas of one log.
struct Twins {
    first: State,
    second: State,
    changes: ChangeSet,
    disk: BTreeMap<Vec<u8>, bytes::Bytes>,
    checkpoint: Checkpoint,
    /// Replicas that were restored and applied what came since.
    restored: u64,
    term: u64,
    taken: u64,
    /// Registrations of nodes as instances that were taken.
    bound: u64,
}

impl Twins {
    fn new() -> Self {
        let mut changes = ChangeSet::default();
        let mut first = State::genesis(&mut changes);
        first.at = START_MS;
        let mut twins = Self {
            second: first.clone(),
            first,
            changes,
            disk: BTreeMap::new(),
            checkpoint: Checkpoint::default(),
            restored: 0,
            term: 1,
            taken: 0,
            bound: 0,
        };
        twins.flush();
        twins.save();
        twins
    }

    fn save(&mut self) {
        let (disk, head) = (self.disk.clone(), Some(self.first.head()));
        self.checkpoint = Checkpoint { disk, head, since: Vec::new() };
    }

    /// A replica from the last checkpoint is the one that never stopped, byte for byte.
    fn check_restored(&mut self) {
        let third = self.checkpoint.restore();
        assert_eq!(third.head(), self.first.head());
        assert_eq!(third.digest(), self.first.digest());
        assert_eq!(rows(&third), rows(&self.first));
        assert_eq!(invariant::check(&third), []);
        self.restored += 1;
    }

    fn flush(&mut self) {
        for change in self.changes.rows.drain(..) {
            let old = match change.row {
                Some(row) => {
                    assert_eq!(change.frame_bytes, row.frame().len());
                    self.disk.insert(change.key.to_vec(), row.frame())
                }
                None => self.disk.remove(&*change.key),
            };
            assert_eq!(change.existed, old.is_some(), "of {:?}", change.key);
        }
    }

    fn step(&mut self, dice: &mut Dice) {
        if dice.one_in(40) {
            self.term += 1;
            let index = self.first.index + 1;
            self.first.advance(index, self.term);
            self.second.advance(index, self.term);
            self.checkpoint.since.push((self.term, None));
        }
        if dice.one_in(15) {
            self.second = reload(&self.second);
        }
        let proposal = Maker { dice, state: &self.first }.proposal();
        let frame = codec::encode(&proposal);
        let decoded: Proposal = codec::decode(&frame).unwrap();
        assert_eq!(decoded, proposal);
        assert_eq!(codec::encode(&decoded), frame);

        let index = self.first.index + 1;
        let before = self.first.clone();
        let one = self.first.apply(index, self.term, &proposal, &mut self.changes);
        let other = self.second.apply(index, self.term, &decoded, &mut ChangeSet::default());
        assert_eq!(one, other, "replies differ");
        assert_eq!(self.first.head(), self.second.head());
        assert_eq!(self.first.digest(), self.second.digest());
        self.check_reply(&before, &proposal, &one);
        self.flush();
        self.checkpoint.since.push((self.term, Some(proposal)));
        if dice.one_in(20) {
            self.check_restored();
        }
        if dice.one_in(30) {
            self.save();
        }
    }

    fn check_reply(&mut self, before: &State, proposal: &Proposal, applied: &Applied) {
        assert_eq!(codec::decode::<Reply>(&codec::encode(&applied.reply)).unwrap(), applied.reply);
        assert!(self.first.at >= before.at, "log time went back");
        if let Reply::Rejected(_) = applied.reply {
            assert_eq!(applied.effects, []);
            let mut changed = self.changes.rows.iter();
            let sessions = crate::table::TableId::Sessions.byte();
            assert!(changed.all(|change| change.key[0] == sessions), "a rejection changed rows");
            return;
        }
        self.taken += 1;
        if let Command::Node(NodeCommand::RegisterNode(RegisterNode {
            instance: Some(_), ..
        })) = &proposal.command
        {
            self.bound += 1;
        }
        if let (
            Command::Plan(PlanCommand::ApplyPlans(ApplyPlans { plans })),
            Reply::Plans(verdicts),
        ) = (&proposal.command, &applied.reply)
        {
            assert_eq!(plans.len(), verdicts.len());
            for (plan, verdict) in plans.iter().zip(verdicts) {
                let lost = verdict.refused.is_some() || !verdict.dropped.is_empty();
                assert_eq!(verdict.refresh_index != 0, lost);
                assert_eq!(verdict.outcome_taken, !lost && plan.outcome.is_some());
            }
            self.check_delivered_twice(proposal);
        }
    }

    /// The same entry once more places nothing.
    fn check_delivered_twice(&self, proposal: &Proposal) {
        let mut again = self.first.clone();
        let index = again.index + 1;
        again.apply(index, self.term, proposal, &mut ChangeSet::default());
        assert_eq!(again.allocations.digest(), self.first.allocations.digest(), "applied twice");
    }

    fn check(&self) {
        let violations = invariant::check(&self.first);
        assert_eq!(violations, []);
    }
}

/// Runs one seed; answers how many commands were taken, how many allocations were made, and how
/// many times a node registered as an instance.
fn run(seed: u64, steps: usize) -> (u64, usize, u64, usize) {
    let _seed = SeedOnPanic(seed);
    let mut dice = Dice::new(seed);
    let mut twins = Twins::new();
    for _ in 0..steps {
        twins.step(&mut dice);
        twins.check();
    }
    assert_eq!(invariant::check(&twins.second), []);
    twins.check_restored();
    assert!(twins.restored > 1, "only one replica was restored");
    assert_eq!(rows(&twins.second), rows(&twins.first), "the rows of two replicas differ");
    assert_eq!(twins.disk, rows(&twins.first), "the changes do not add up to the rows");
    assert!(twins.first.allocations.len() < 100_000);
    let evicted = twins.first.allocations.iter().filter(|row| row.preempted_by.is_some()).count();
    (twins.taken, twins.first.allocations.len(), twins.bound, evicted)
}

/// Says which seed failed.
struct SeedOnPanic(u64);

impl Drop for SeedOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with FSM_RANDOM_SEED={}", self.0);
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn replicas_agree_on_random_commands() {
    if let Some(seed) = setting("FSM_RANDOM_SEED") {
        run(seed, 400);
        return;
    }
    let limit = setting("FSM_RANDOM_SECONDS").map(Duration::from_secs);
    let started = Instant::now();
    let (mut seed, mut taken, mut placed, mut bound, mut evicted) = (0, 0, 0, 0, 0);
    while limit.map_or(seed < 48, |limit| started.elapsed() < limit) {
        let (more_taken, more_placed, more_bound, more_evicted) = run(seed, 400);
        taken += more_taken;
        placed += more_placed;
        bound += more_bound;
        evicted += more_evicted;
        seed += 1;
    }
    eprintln!(
        "{seed} seeds, {taken} commands taken, {placed} allocations, {bound} bound, {evicted} evicted"
    );
    // Commands that are all refused would test nothing.
    assert!(taken > seed * 150, "{taken} of {} commands were taken", seed * 400);
    assert!(placed > usize::try_from(seed).unwrap() * 5, "{placed} allocations");
    assert!(bound > seed, "{bound} nodes registered as instances");
    assert!(evicted > 0, "nothing was preempted");
}
