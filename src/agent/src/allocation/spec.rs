//! The specification of an allocation: the servers' message, checked once. Names that become parts
//! of paths are checked here and nowhere else.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use fsm::{AllocationId, EvaluationId, JobKind};
use proto::v1;
use serde::{Deserialize, Serialize};
use wire::rpc::words::{self, UnknownWord};

use crate::{
    allocation::{health::HealthPolicy, runner::GroupPolicy},
    task::{
        restart::{RestartMode, RestartPolicy},
        runner::TaskPolicy,
    },
};

/// Default of `kill_timeout`, ms.
const KILL_TIMEOUT_MS: u64 = 5_000;
/// Longest time between the kill signal and SIGKILL, ms (Nomad's `max_kill_timeout` is 30 s by
/// default and raised by operators).
const KILL_TIMEOUT_MS_MAX: u64 = 24 * 3600 * 1000;
/// Names inside an allocation's directory that no task may have.
const RESERVED_NAMES: [&str; 3] = [".", "..", "alloc"];

/// An allocation to run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct AllocationSpec {
    pub id: AllocationId,
    pub namespace: String,
    pub job_id: String,
    pub(crate) job_name: String,
    pub(crate) job_parent_id: String,
    pub(crate) job_version: u64,
    pub group: String,
    pub(crate) name: String,
    pub(crate) name_index: u32,
    pub(crate) evaluation: Option<EvaluationId>,
    pub(crate) previous: Option<AllocationId>,
    /// The allocations that were evicted from this node to make room for this one.
    pub(crate) preempted: Vec<AllocationId>,
    pub(crate) region: String,
    pub(crate) datacenter: String,
    pub(crate) address: String,
    pub(crate) ports: Vec<PortSpec>,
    pub tasks: Vec<TaskSpec>,
    /// Meta of the job and the group, stored once for all tasks.
    pub(crate) meta: BTreeMap<String, String>,
    /// The payload that the job was dispatched with, in base64.
    pub(crate) payload: String,
    /// Disk that the group asks for. Not enforced, only shown.
    pub disk_mb: u64,
    pub(crate) policy: GroupPolicy,
}

/// A port that the allocation holds.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PortSpec {
    pub(crate) label: String,
    pub(crate) value: u16,
    pub(crate) to: u16,
}

/// One task.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TaskSpec {
    pub name: String,
    pub(crate) driver: String,
    pub(crate) user: String,
    pub(crate) config_json: String,
    pub(crate) env: BTreeMap<String, String>,
    /// Meta of the task. It overrides [`AllocationSpec::meta`].
    pub(crate) meta: BTreeMap<String, String>,
    pub cpu_mhz: u64,
    pub memory_mb: u64,
    pub memory_max_mb: u64,
    pub(crate) cores: u32,
    pub(crate) kill_signal: String,
    /// How many log files to keep; 0: output is discarded.
    pub(crate) log_files_max: u32,
    pub(crate) log_file_mb_max: u32,
    /// File below `local/` that gets the payload; empty: none.
    pub(crate) dispatch_payload: String,
}

/// Why a message of the servers cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SpecError {
    #[error("the allocation has no id of 16 bytes")]
    Id,
    #[error("the allocation has no tasks")]
    NoTasks,
    #[error("`{0}` cannot be the name of a task")]
    TaskName(String),
    #[error("task `{0}` is there twice")]
    Duplicate(String),
    #[error("payload file `{0}` {1}")]
    PayloadFile(String, &'static str),
    #[error("port `{0}` has the value {1}, which is no port")]
    Port(String, u32),
    #[error("the policies are those of other tasks")]
    Policies,
    #[error(transparent)]
    JobKind(#[from] UnknownWord),
}

impl AllocationSpec {
    /// This specification with its tasks in the order of `running`, because a running task is
    /// identified by its position. `None`: the two have different tasks.
    pub(crate) fn in_order_of(self: &Arc<Self>, running: &Self) -> Option<Arc<Self>> {
        let places: BTreeMap<&str, usize> =
            running.tasks.iter().zip(0..).map(|(task, place)| (&*task.name, place)).collect();
        let place = |name: &str| places.get(name).copied();
        let same = self.tasks.len() == running.tasks.len()
            && self.tasks.iter().all(|task| place(&task.name).is_some());
        if !same {
            return None;
        }
        if self.tasks.iter().is_sorted_by_key(|task| place(&task.name)) {
            return Some(Arc::clone(self));
        }
        let mut ordered = Self::clone(self);
        ordered.tasks.sort_by_key(|task| place(&task.name));
        ordered.policy.tasks.sort_by_key(|task| place(&task.name));
        Some(Arc::new(ordered))
    }

    /// Checks a specification that was read from disk. Its names become parts of paths, and its
    /// policies must be in the order of its tasks.
    pub(crate) fn check(&self) -> Result<(), SpecError> {
        if self.tasks.is_empty() {
            return Err(SpecError::NoTasks);
        }
        for task in &self.tasks {
            check_task_name(&task.name)?;
            check_payload_file(&task.dispatch_payload)?;
        }
        let names = self.tasks.iter().map(|task| &task.name);
        let same = names.eq(self.policy.tasks.iter().map(|task| &task.name));
        if same { Ok(()) } else { Err(SpecError::Policies) }
    }

    /// Parses and checks a message of the servers.
    pub(crate) fn parse(message: v1::Allocation) -> Result<Self, SpecError> {
        let id = AllocationId::from_slice(&message.id).ok_or(SpecError::Id)?;
        let policy = group_policy(&message)?;
        let ports = message.ports.iter().map(port).collect::<Result<_, _>>()?;
        let mut names = BTreeSet::new();
        for task in &message.tasks {
            check_task_name(&task.name)?;
            check_payload_file(&task.dispatch_payload)?;
            if !names.insert(task.name.as_str()) {
                return Err(SpecError::Duplicate(task.name.clone()));
            }
        }
        Ok(Self {
            id,
            namespace: message.namespace,
            job_id: message.job_id,
            job_name: message.job_name,
            job_parent_id: message.job_parent_id,
            job_version: message.job_version,
            group: message.group,
            name: message.name,
            name_index: message.name_index,
            evaluation: EvaluationId::from_slice(&message.eval_id),
            previous: AllocationId::from_slice(&message.previous_id),
            preempted: message
                .preempted_ids
                .iter()
                .filter_map(|id| AllocationId::from_slice(id))
                .collect(),
            region: message.region,
            datacenter: message.datacenter,
            address: message.address,
            ports,
            tasks: message.tasks.into_iter().map(task_spec).collect(),
            meta: message.meta,
            payload: BASE64_STANDARD.encode(&message.payload),
            disk_mb: message.disk_mb,
            policy,
        })
    }
}

/// The ids of the allocations to keep when the servers send the complete set: those in this batch,
/// and those that later batches will bring.
pub(crate) fn present(batch: &v1::AllocationBatch) -> BTreeSet<AllocationId> {
    let said = batch.allocations.iter().map(|one| &one.id);
    said.chain(&batch.present).filter_map(|id| AllocationId::from_slice(id)).collect()
}

/// The part of a message that the allocation's state machine needs.
pub(crate) fn group_policy(message: &v1::Allocation) -> Result<GroupPolicy, SpecError> {
    if message.tasks.is_empty() {
        return Err(SpecError::NoTasks);
    }
    let restart_on_success = match words::job_kind(message.job_kind)? {
        JobKind::Service | JobKind::System => true,
        JobKind::Batch | JobKind::Sysbatch => false,
    };
    let default = default_restart(restart_on_success);
    let group = message.restart.map_or(default, restart_policy);
    let tasks = message
        .tasks
        .iter()
        .map(|task| TaskPolicy {
            name: task.name.clone(),
            restart: task.restart.map_or(group, restart_policy),
            restart_on_success,
            kill_timeout_ms: match task.kill_timeout_ms {
                0 => KILL_TIMEOUT_MS,
                given => given.min(KILL_TIMEOUT_MS_MAX),
            },
            shutdown_delay_ms: task.shutdown_delay_ms,
            leader: task.leader,
        })
        .collect();
    let health = HealthPolicy::of(message);
    let (shutdown_delay_ms, max_run_ms) = (message.shutdown_delay_ms, message.max_run_ms);
    Ok(GroupPolicy { tasks, shutdown_delay_ms, max_run_ms, health })
}

fn check_task_name(name: &str) -> Result<(), SpecError> {
    let bad = name.is_empty()
        || name.len() > 255
        || name.contains(['/', '\\', '\0'])
        || RESERVED_NAMES.contains(&name);
    if bad { Err(SpecError::TaskName(name.chars().take(64).collect())) } else { Ok(()) }
}

fn check_payload_file(file: &str) -> Result<(), SpecError> {
    if file.is_empty() {
        return Ok(());
    }
    let refused = |why| SpecError::PayloadFile(file.chars().take(64).collect(), why);
    fsm::job::check_payload_file(file).map_err(refused)
}

fn port(port: &v1::Port) -> Result<PortSpec, SpecError> {
    let narrow =
        |value: u32| u16::try_from(value).map_err(|_| SpecError::Port(port.label.clone(), value));
    let value = narrow(port.value)?;
    let to = if port.to == 0 { value } else { narrow(port.to)? };
    Ok(PortSpec { label: port.label.clone(), value, to })
}

fn task_spec(task: v1::Task) -> TaskSpec {
    TaskSpec {
        name: task.name,
        driver: task.driver,
        user: task.user,
        config_json: task.config_json,
        env: task.env,
        meta: task.meta,
        cpu_mhz: task.cpu_mhz,
        memory_mb: task.memory_mb,
        memory_max_mb: task.memory_max_mb,
        cores: task.cores,
        kill_signal: task.kill_signal,
        log_files_max: match (task.logs_disabled, task.log_files_max) {
            (true, _) => 0,
            (false, 0) => 10,
            (false, files) => files.min(1000),
        },
        dispatch_payload: task.dispatch_payload,
        log_file_mb_max: if task.log_file_mb_max == 0 { 10 } else { task.log_file_mb_max },
    }
}

fn restart_policy(policy: v1::RestartPolicy) -> RestartPolicy {
    RestartPolicy {
        attempts: policy.attempts,
        interval_ms: policy.interval_ms,
        delay_ms: policy.delay_ms,
        mode: if policy.fail { RestartMode::Fail } else { RestartMode::Delay },
    }
}

/// Nomad's defaults: 2 attempts in 30 minutes for service jobs, 3 in 24 hours for batch jobs, with
/// a delay of 15 s.
fn default_restart(for_ever: bool) -> RestartPolicy {
    let (attempts, hours_ms) = if for_ever { (2, 30 * 60 * 1000) } else { (3, 24 * 3600 * 1000) };
    RestartPolicy { attempts, interval_ms: hours_ms, delay_ms: 15_000, mode: RestartMode::Fail }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(task: &str, port: u32, kind: v1::JobKind) -> v1::Allocation {
        v1::Allocation {
            id: vec![7; 16].into(),
            job_kind: kind.into(),
            tasks: vec![v1::Task { name: task.to_owned(), ..Default::default() }],
            ports: vec![v1::Port { label: "web".to_owned(), value: port, to: 0 }],
            ..Default::default()
        }
    }

    #[test]
    fn names_that_would_leave_the_directory_are_refused() {
        for name in ["", "..", "a/b", "alloc", "x\0y"] {
            let error = AllocationSpec::parse(message(name, 80, v1::JobKind::Batch));
            assert_eq!(error, Err(SpecError::TaskName(name.to_owned())));
        }
    }

    #[test]
    fn a_job_file_cannot_ask_for_a_name_that_is_refused_here() {
        let convert = |group: &str, task: &str| {
            let task = serde_json::json!({"Name": task, "Driver": "mock"});
            let group = serde_json::json!({"Name": group, "Tasks": [task]});
            jobspec::to_spec(&serde_json::json!({"ID": "j", "TaskGroups": [group]}))
        };
        let long = "x".repeat(256);
        for name in RESERVED_NAMES.into_iter().chain(["", "a/b", "x\0y", long.as_str()]) {
            assert!(check_task_name(name).is_err(), "{name}");
            let errors = convert("g", name).expect_err(name);
            assert_eq!(errors[0].path, "Job.TaskGroups[0].Tasks[0].Name", "{name}: {errors:?}");
        }
        for name in ["alloc-1", "run", "x", &long[1..]] {
            assert_eq!(check_task_name(name), Ok(()));
            assert!(convert("alloc", name).is_ok(), "{name}");
        }
    }

    #[test]
    fn tasks_keep_the_order_of_those_that_run() {
        let of = |tasks: &[(&str, u64)]| {
            let mut message = message("a", 80, v1::JobKind::Service);
            message.tasks.clear();
            message.tasks.extend(tasks.iter().map(|(name, kill_timeout_ms)| v1::Task {
                name: (*name).to_owned(),
                kill_timeout_ms: *kill_timeout_ms,
                ..Default::default()
            }));
            Arc::new(AllocationSpec::parse(message).expect("a valid message"))
        };
        let running = of(&[("a", 1_000), ("b", 2_000)]);
        let other = of(&[("b", 4_000), ("a", 3_000)]);
        let expected = of(&[("a", 3_000), ("b", 4_000)]);
        assert_eq!(other.in_order_of(&running), Some(expected));
        assert_eq!(of(&[("a", 1), ("c", 1)]).in_order_of(&running), None);
        assert_eq!(of(&[("a", 1)]).in_order_of(&running), None);
    }

    #[test]
    fn bad_ports_and_kinds_are_refused_and_defaults_filled_in() {
        let bad = AllocationSpec::parse(message("a", 70_000, v1::JobKind::Batch));
        assert_eq!(bad, Err(SpecError::Port("web".to_owned(), 70_000)));
        let bad = AllocationSpec::parse(message("a", 80, v1::JobKind::Unspecified));
        assert_eq!(bad.expect_err("no such kind").to_string(), "unknown job kind 0");
        let good =
            AllocationSpec::parse(message("a", 80, v1::JobKind::Service)).expect("a valid message");
        assert_eq!(good.ports[0].to, 80);
        assert_eq!(good.policy.tasks[0].restart.attempts, 2);
        assert_eq!(good.policy.tasks[0].kill_timeout_ms, 5_000);
    }
}
