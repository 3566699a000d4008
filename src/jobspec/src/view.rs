//! The API's complete JSON of a registered job, as Nomad prints it: every field present, durations
//! in integer nanoseconds, null for what is not there. Owns field names and order of nothing else;
//! [`super::to_spec`] of a view gives the spec back.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::collections::BTreeMap;

use fsm::{
    Index, JobKind, JobSpec, JobStatus, TaskGroup, Text, TimeMs,
    job::{
        Affinity, Constraint, DelayFunction, JobUpdate, MigrateStrategy, Network, ReschedulePolicy,
        RestartPolicy, Scaling, Spread, Task, TaskResources, UpdateStrategy,
    },
};
use serde_json::{Value, json};

/// What a job's JSON says besides its spec.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JobFields {
    /// Stopped by a user.
    pub stop: bool,
    /// Derived status.
    pub status: JobStatus,
    /// This version is known to work.
    pub stable: bool,
    /// Version, from 0.
    pub version: u64,
    /// Index of the first registration.
    pub create_index: Index,
    /// Index of the last change.
    pub modify_index: Index,
    /// Index of the last change of the spec.
    pub job_modify_index: Index,
    /// Log time of the registration.
    pub submitted_at_ms: TimeMs,
}

/// The job as `GET /v1/job/ID` answers it.
pub fn job_json(spec: &JobSpec, fields: &JobFields) -> Value {
    let parent = spec.key.parent().unwrap_or("");
    json!({
        "Affinities": affinities(&spec.affinities),
        "AllAtOnce": spec.all_at_once,
        "Constraints": constraints(&spec.constraints),
        "ConsulNamespace": "",
        "ConsulToken": "",
        "CreateIndex": fields.create_index,
        "Datacenters": spec.datacenters,
        "DispatchIdempotencyToken": spec.dispatch.as_ref().map_or("", |dispatch| &*dispatch.token),
        "Dispatched": spec.dispatch.is_some(),
        "ID": spec.key.id,
        "JobModifyIndex": fields.job_modify_index,
        "Meta": map_or_null(&spec.meta),
        "Migrate": Value::Null,
        "ModifyIndex": fields.modify_index,
        "Multiregion": Value::Null,
        "Name": spec.name,
        "Namespace": spec.key.namespace,
        "NodePool": spec.node_pool,
        "NomadTokenID": "",
        "ParameterizedJob": spec.parameterized.as_ref().map(|template| json!({
            "MaxRunning": template.max_running,
            "MetaOptional": list_or_null(&template.meta_optional),
            "MetaRequired": list_or_null(&template.meta_required),
            "Payload": template.payload,
        })),
        "ParentID": parent,
        "Payload": payload(spec),
        "Periodic": spec.periodic.as_ref().map(|block| json!({
            "Enabled": block.enabled,
            "ProhibitOverlap": block.prohibit_overlap,
            "Spec": if block.is_list { "" } else { block.specs.first().map_or("", |line| line) },
            "SpecType": "cron",
            "Specs": block.is_list.then(|| list_or_null(&block.specs)),
            "TimeZone": block.time_zone,
        })),
        "Priority": spec.priority,
        "Region": spec.region,
        "Reschedule": Value::Null,
        "Spreads": spreads(&spec.spreads),
        "Stable": fields.stable,
        "Status": fields.status.name(),
        "StatusDescription": "",
        "Stop": fields.stop,
        "SubmitTime": nanoseconds(fields.submitted_at_ms),
        "TaskGroups": spec.groups.iter().map(|group| group_json(group, spec.kind)).collect::<Vec<_>>(),
        "Type": spec.kind.name(),
        "UI": Value::Null,
        "Update": job_update(spec.update),
        "VaultNamespace": "",
        "VaultToken": "",
        "Version": fields.version,
        "VersionTag": Value::Null,
    })
}

/// What the job was dispatched with, in base64.
fn payload(spec: &JobSpec) -> Option<String> {
    let payload = &spec.dispatch.as_ref()?.payload;
    (!payload.is_empty()).then(|| BASE64_STANDARD.encode(payload))
}

fn group_json(group: &TaskGroup, kind: JobKind) -> Value {
    let migrates = kind == JobKind::Service;
    json!({
        "Affinities": affinities(&group.affinities),
        "Constraints": constraints(&group.constraints),
        "Consul": Value::Null,
        "Count": group.count,
        "Disconnect": Value::Null,
        "EphemeralDisk": {"Migrate": false, "SizeMB": group.disk_mb, "Sticky": false},
        "MaxClientDisconnect": Value::Null,
        "MaxRunDuration": (group.max_run_ms > 0).then(|| nanoseconds(group.max_run_ms)),
        "Meta": map_or_null(&group.meta),
        "Migrate": migrates.then(|| migrate(group.migrate)),
        "Name": group.name,
        "Networks": group.network.as_ref().map(|network| json!([network_json(network)])),
        "PreventRescheduleOnLost": false,
        "ReschedulePolicy": group.reschedule.map(reschedule),
        "RestartPolicy": restart(group.restart),
        "Scaling": group.scaling.as_ref().map(scaling),
        "Services": services(group),
        "ShutdownDelay": (group.shutdown_delay_ms > 0).then(|| nanoseconds(group.shutdown_delay_ms)),
        "Spreads": spreads(&group.spreads),
        "StopAfterClientDisconnect": Value::Null,
        "Tasks": group.tasks.iter().map(task_json).collect::<Vec<_>>(),
        "Update": group.update.map(update),
        "Volumes": Value::Null,
    })
}

fn task_json(task: &Task) -> Value {
    let config = serde_json::from_str(&task.config_json).unwrap_or_else(|_| json!({}));
    let identity: Value = serde_json::from_str(&task.identity_json).unwrap_or_default();
    json!({
        "Actions": Value::Null,
        "Affinities": affinities(&task.affinities),
        "Artifacts": Value::Null,
        "CSIPluginConfig": Value::Null,
        "Config": config,
        "Constraints": constraints(&task.constraints),
        "Consul": Value::Null,
        "DispatchPayload": (!task.dispatch_payload.is_empty())
            .then(|| json!({"File": task.dispatch_payload})),
        "Driver": task.driver,
        "Env": map_or_null(&task.env),
        "Identities": identity["Identities"],
        "Identity": identity.get("Identity").cloned().unwrap_or_else(default_identity),
        "KillSignal": task.kill_signal,
        "KillTimeout": nanoseconds(task.kill_timeout_ms),
        "Kind": "",
        "Leader": task.leader,
        "Lifecycle": Value::Null,
        "LogConfig": {
            "Disabled": task.logs.disabled,
            "MaxFileSizeMB": task.logs.file_mb_max,
            "MaxFiles": task.logs.files_max,
        },
        "Meta": map_or_null(&task.meta),
        "Name": task.name,
        "Resources": {
            "CPU": task.resources.cpu_mhz,
            "Cores": 0,
            "Devices": Value::Null,
            "DiskMB": 0,
            "IOPS": 0,
            "MemoryMB": task.resources.memory_mb,
            "MemoryMaxMB": memory_max(task.resources.memory_mb_max),
            "NUMA": Value::Null,
            "Networks": Value::Null,
            "SecretsMB": 0,
        },
        "RestartPolicy": restart(task.restart),
        "ScalingPolicies": Value::Null,
        "Schedule": Value::Null,
        "Secrets": Value::Null,
        "Services": Value::Null,
        "ShutdownDelay": nanoseconds(task.shutdown_delay_ms),
        "Templates": Value::Null,
        "User": task.user,
        "Vault": Value::Null,
        "VolumeMounts": Value::Null,
    })
}

/// What Nomad gives a task that says nothing.
fn default_identity() -> Value {
    json!({
        "Audience": ["nomadproject.io"],
        "ChangeMode": "",
        "ChangeSignal": "",
        "Env": false,
        "File": false,
        "Filepath": "",
        "Name": "default",
        "ServiceName": "",
        "TTL": 0,
    })
}

/// What a task may use of memory at most, MiB; -1: all.
pub fn memory_max(mb: u64) -> i64 {
    if mb == TaskResources::UNLIMITED { -1 } else { i64::try_from(mb).unwrap_or(i64::MAX) }
}

/// Milliseconds as the API's integer nanoseconds.
fn nanoseconds(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX).saturating_mul(1_000_000)
}

fn map_or_null(map: &BTreeMap<Text, Text>) -> Option<&BTreeMap<Text, Text>> {
    (!map.is_empty()).then_some(map)
}

fn list_or_null<T>(list: &[T]) -> Option<&[T]> {
    (!list.is_empty()).then_some(list)
}

fn list_of<T>(list: &[T], item: impl Fn(&T) -> Value) -> Option<Vec<Value>> {
    list_or_null(list).map(|list| list.iter().map(item).collect())
}

fn constraints(list: &[Constraint]) -> Option<Vec<Value>> {
    list_of(list, |constraint| {
        json!({
            "LTarget": constraint.left,
            "Operand": constraint.operand,
            "RTarget": constraint.right,
        })
    })
}

fn affinities(list: &[Affinity]) -> Option<Vec<Value>> {
    list_of(list, |affinity| {
        json!({
            "LTarget": affinity.constraint.left,
            "Operand": affinity.constraint.operand,
            "RTarget": affinity.constraint.right,
            "Weight": affinity.weight,
        })
    })
}

fn spreads(list: &[Spread]) -> Option<Vec<Value>> {
    list_of(list, |spread| {
        let targets = list_of(
            &spread.targets,
            |target| json!({"Percent": target.percent, "Value": target.value}),
        );
        json!({
            "Attribute": spread.attribute,
            "SpreadTarget": targets,
            "Weight": spread.weight,
        })
    })
}

fn network_json(network: &Network) -> Value {
    let ports = |reserved: bool| {
        let ports: Vec<_> = network
            .ports
            .iter()
            .filter(|port| (port.value != 0) == reserved)
            .map(|port| {
                json!({
                    "HostNetwork": "default",
                    "IgnoreCollision": false,
                    "Label": port.label,
                    "To": port.to,
                    "Value": port.value,
                })
            })
            .collect();
        (!ports.is_empty()).then_some(ports)
    };
    json!({
        "CIDR": "",
        "CNI": Value::Null,
        "DNS": Value::Null,
        "Device": "",
        "DynamicPorts": ports(false),
        "Hostname": "",
        "IP": "",
        "MBits": Value::Null,
        "Mode": network.mode(),
        "ReservedPorts": ports(true),
    })
}

/// As it was written; its id and indexes are those of `/v1/scaling/policies`.
fn scaling(scaling: &Scaling) -> Value {
    json!({
        "Enabled": scaling.enabled,
        "Max": scaling.max,
        "Min": scaling.min,
        "Policy": scaling_policy(scaling),
        "Type": scaling.kind,
    })
}

/// What an autoscaler reads; null: nothing.
pub fn scaling_policy(scaling: &Scaling) -> Value {
    serde_json::from_str(&scaling.policy_json).unwrap_or_default()
}

fn services(group: &TaskGroup) -> Value {
    if group.services_json.is_empty() {
        return Value::Null;
    }
    serde_json::from_str(&group.services_json).unwrap_or(Value::Null)
}

fn restart(policy: RestartPolicy) -> Value {
    json!({
        "Attempts": policy.attempts,
        "Delay": nanoseconds(policy.delay_ms),
        "Interval": nanoseconds(policy.interval_ms),
        "Mode": if policy.fail { "fail" } else { "delay" },
        "RenderTemplates": false,
    })
}

fn reschedule(policy: ReschedulePolicy) -> Value {
    let function = match policy.delay_function {
        DelayFunction::Constant => "constant",
        DelayFunction::Exponential => "exponential",
        DelayFunction::Fibonacci => "fibonacci",
    };
    json!({
        "Attempts": policy.attempts,
        "Delay": nanoseconds(policy.delay_ms),
        "DelayFunction": function,
        "Interval": nanoseconds(policy.interval_ms),
        "MaxDelay": nanoseconds(policy.delay_ms_max),
        "Unlimited": policy.unlimited,
    })
}

fn update(strategy: UpdateStrategy) -> Value {
    json!({
        "AutoPromote": strategy.auto_promote,
        "AutoRevert": strategy.auto_revert,
        "Canary": strategy.canaries,
        "HealthCheck": strategy.health_check.name(),
        "HealthyDeadline": nanoseconds(strategy.healthy_deadline_ms),
        "MaxParallel": strategy.max_parallel,
        "MinHealthyTime": nanoseconds(strategy.healthy_ms_min),
        "ProgressDeadline": nanoseconds(strategy.progress_deadline_ms),
        "Stagger": nanoseconds(strategy.stagger_ms),
    })
}

/// Of a job's own strategy there is a little: groups hold theirs in full.
fn job_update(update: JobUpdate) -> Value {
    json!({
        "AutoPromote": false,
        "AutoRevert": false,
        "Canary": 0,
        "HealthCheck": "",
        "HealthyDeadline": 0,
        "MaxParallel": update.max_parallel,
        "MinHealthyTime": 0,
        "ProgressDeadline": 0,
        "Stagger": nanoseconds(update.stagger_ms),
    })
}

fn migrate(strategy: MigrateStrategy) -> Value {
    json!({
        "HealthCheck": "checks",
        "HealthyDeadline": nanoseconds(strategy.healthy_deadline_ms),
        "MaxParallel": strategy.max_parallel,
        "MinHealthyTime": nanoseconds(strategy.healthy_ms_min),
    })
}
