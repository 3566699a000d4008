//! Jobs.

use std::{collections::BTreeMap, sync::Arc};

use super::{AFFINITY, ASK, GROUP, driver::Driver};
use crate::{
    command::{Command, Reply},
    id::{EvaluationId, Index, JobKey},
    job::{
        DeregisterJob, EvaluateJob, HealthCheck, Job, JobKind, JobSpec, JobStatus, JobVersion,
        LogConfig, MigrateStrategy, Network, PortAsk, RegisterJob, RestartPolicy, Task, TaskGroup,
        TaskResources, UpdateStrategy,
    },
    resources::Port,
};

impl Driver {
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
}

/// The key of a job in the default namespace.
pub fn job_key(name: &str) -> JobKey {
    JobKey::new("default", name)
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

/// The row of a job of version 0 that was registered at an index.
pub fn job_at(spec: &JobSpec, index: Index) -> Job {
    Job {
        key: spec.key.clone(),
        kind: spec.kind,
        priority: spec.priority,
        version: 0,
        stop: false,
        status: JobStatus::Pending,
        parameterized: spec.parameterized.is_some(),
        periodic: None,
        token: "".into(),
        waiting: None,
        create_index: index,
        modify_index: index,
        job_modify_index: index,
        last_plan_index: 0,
        submitted_at: 0,
        queued: BTreeMap::new(),
    }
}

/// The row of the current version of a job.
pub fn version_of(job: &Job, spec: JobSpec) -> JobVersion {
    JobVersion {
        stop: job.stop,
        tag: None,
        spec: Arc::new(spec),
        version: job.version,
        stable: false,
        status: JobStatus::Pending,
        create_index: job.create_index,
        job_modify_index: job.job_modify_index,
        modify_index: job.modify_index,
        submitted_at: job.submitted_at,
        submission: None,
    }
}
