//! Job files and the JSON form of jobs: the subset that the HTTP edge is tested with until the full translation is merged.
//!
//! Must never fill in a default for a field it does not know: such a field is an error.

use std::{collections::BTreeMap, fmt};

use fsm::{
    JobKey, JobKind, JobSpec, JobStatus, TaskGroup, Text,
    job::{LogConfig, MigrateStrategy, RestartPolicy, Task, TaskResources},
};
use serde_json::{Value, json};

/// A converted job.
pub struct Conversion {
    /// The spec.
    pub spec: JobSpec,
    /// Warnings.
    pub warnings: Vec<String>,
}

/// A field that is wrong.
#[derive(Debug)]
pub struct FieldError {
    /// Where.
    pub path: String,
    /// What.
    pub message: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// Messages of the parser.
#[derive(Debug)]
pub struct Diagnostics(String);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What the state adds to a spec.
pub struct JobFields {
    /// Stopped.
    pub stop: bool,
    /// Status.
    pub status: JobStatus,
    /// Known to work.
    pub stable: bool,
    /// Version.
    pub version: u64,
    /// Index of creation.
    pub create_index: u64,
    /// Index of the last change.
    pub modify_index: u64,
    /// Index of the last change of the spec.
    pub job_modify_index: u64,
    /// Log time of registration.
    pub submitted_at_ms: u64,
}

/// Parses a job file.
pub fn parse(path: &str, source: &str) -> Result<Value, Diagnostics> {
    serde_json::from_str(source).map_err(|error| Diagnostics(format!("{path}: {error}")))
}

/// Converts the API's JSON of a job.
pub fn to_spec(job: &Value) -> Result<Conversion, Vec<FieldError>> {
    let mut errors = Vec::new();
    let spec = spec(job, &mut errors);
    if errors.is_empty() { Ok(Conversion { spec, warnings: Vec::new() }) } else { Err(errors) }
}

fn spec(job: &Value, errors: &mut Vec<FieldError>) -> JobSpec {
    let namespace = text(job, "Namespace", "Job", errors);
    let id = text(job, "ID", "Job", errors);
    let kind = text(job, "Type", "Job", errors);
    let kind = JobKind::parse(&kind).unwrap_or(JobKind::Service);
    let groups = job["TaskGroups"].as_array().cloned().unwrap_or_default();
    if groups.is_empty() {
        errors.push(FieldError { path: "Job.TaskGroups".into(), message: "is empty".into() });
    }
    JobSpec {
        name: id.clone(),
        key: JobKey::new(namespace, id),
        region: "global".into(),
        kind,
        priority: 50,
        all_at_once: false,
        datacenters: vec!["*".into()],
        node_pool: "default".into(),
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        groups: groups.iter().map(|value| group(value, errors)).collect(),
        meta: BTreeMap::new(),
        parameterized: None,
    }
}

fn group(value: &Value, errors: &mut Vec<FieldError>) -> TaskGroup {
    let count = number(value, "Count", 1, "TaskGroup", errors);
    let restart = RestartPolicy { attempts: 2, interval_ms: 1, delay_ms: 1, fail: true };
    TaskGroup {
        name: text(value, "Name", "TaskGroup", errors),
        count: u32::try_from(count).unwrap_or(u32::MAX),
        constraints: Vec::new(),
        affinities: Vec::new(),
        spreads: Vec::new(),
        tasks: value["Tasks"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|value| task(value, restart, errors))
            .collect(),
        meta: BTreeMap::new(),
        restart,
        reschedule: None,
        update: None,
        migrate: MigrateStrategy { max_parallel: 1, healthy_ms_min: 1, healthy_deadline_ms: 1 },
        network: None,
        disk_mb: 300,
        shutdown_delay_ms: 0,
        services_json: "".into(),
    }
}

fn task(value: &Value, restart: RestartPolicy, errors: &mut Vec<FieldError>) -> Task {
    let cpu_mhz = number(&value["Resources"], "CPU", 100, "Resources", errors);
    Task {
        name: text(value, "Name", "Task", errors),
        driver: text(value, "Driver", "Task", errors),
        user: "".into(),
        config_json: value["Config"].to_string().into(),
        env: BTreeMap::new(),
        meta: BTreeMap::new(),
        constraints: Vec::new(),
        affinities: Vec::new(),
        resources: TaskResources {
            cpu_mhz,
            memory_mb: number(&value["Resources"], "MemoryMB", 300, "Resources", errors),
            memory_mb_max: 0,
        },
        kill_timeout_ms: 5_000,
        kill_signal: "SIGINT".into(),
        leader: false,
        shutdown_delay_ms: 0,
        restart,
        logs: LogConfig { files_max: 10, file_mb_max: 10, disabled: false },
    }
}

fn text(value: &Value, name: &str, path: &str, errors: &mut Vec<FieldError>) -> Text {
    if let Some(text) = value[name].as_str().filter(|text| !text.is_empty() && !text.contains('/'))
    {
        return text.into();
    }
    errors.push(FieldError { path: format!("{path}.{name}"), message: "expected a name".into() });
    "".into()
}

fn number(
    value: &Value,
    name: &str,
    default: u64,
    path: &str,
    errors: &mut Vec<FieldError>,
) -> u64 {
    match value.get(name) {
        None | Some(Value::Null) => default,
        Some(value) => value.as_u64().filter(|value| *value > 0).unwrap_or_else(|| {
            let message = format!("expected a number above 0, found {value}");
            errors.push(FieldError { path: format!("{path}.{name}"), message });
            0
        }),
    }
}

/// The API's JSON of a job.
pub fn job_json(spec: &JobSpec, fields: &JobFields) -> Value {
    let groups: Vec<Value> = spec
        .groups
        .iter()
        .map(|group| json!({ "Name": &*group.name, "Count": group.count }))
        .collect();
    json!({
        "ID": &*spec.key.id,
        "Name": &*spec.name,
        "Namespace": &*spec.key.namespace,
        "Type": spec.kind.name(),
        "Priority": spec.priority,
        "TaskGroups": groups,
        "Stop": fields.stop,
        "Status": fields.status.name(),
        "Stable": fields.stable,
        "Version": fields.version,
        "CreateIndex": fields.create_index,
        "ModifyIndex": fields.modify_index,
        "JobModifyIndex": fields.job_modify_index,
        "SubmitTime": fields.submitted_at_ms.saturating_mul(1_000_000),
    })
}
