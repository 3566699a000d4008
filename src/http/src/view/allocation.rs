//! Allocations, their stubs, resources and task states.

use std::collections::BTreeMap;

use fsm::{
    Allocation, ClientStatus, State, TaskState, Text, allocation::DesiredStatus, job::JobSpec,
};
use serde_json::{Map, Value, json};

use super::{
    id_or_empty, list_or_null, map_or_null, placement::placement_metrics, task_event::task_event,
    text,
};
use crate::{
    jobs_bridge::{self, As},
    time,
};

/// An allocation in a list.
pub(crate) fn allocation_stub(
    state: &State,
    allocation: &Allocation,
    with_resources: bool,
    with_task_states: bool,
) -> Value {
    let mut value = common(state, allocation);
    if let Value::Object(object) = &mut value {
        let tasks = if with_task_states { task_states(&allocation.tasks) } else { Value::Null };
        object.insert("TaskStates".to_owned(), tasks);
        let resources = with_resources.then(|| {
            let spec = state.allocation_spec(allocation);
            allocated_resources(state, allocation, spec.map(|spec| &**spec))
        });
        object.insert("AllocatedResources".to_owned(), resources.into());
    }
    value
}

/// An allocation with its job.
pub(crate) fn allocation(state: &State, allocation: &Allocation) -> Value {
    let key = (allocation.job.clone(), allocation.job_create_index, allocation.job_version);
    let version = state.job_versions().get(&key);
    let job = match (version, state.jobs().get(&allocation.job)) {
        (Some(version), Some(job)) if job.create_index == allocation.job_create_index => {
            jobs_bridge::job_json(job, version, As::Version)
        }
        (Some(version), _) => jobs_bridge::purged_job_json(version),
        (None, _) => Value::Null,
    };
    let spec = version.map(|version| &*version.spec);
    let group = spec.and_then(|spec| spec.group(&allocation.group));
    let metrics = allocation.metrics.as_deref();
    let placed_by = json!(metrics.map(|metrics| placement_metrics(metrics, spec, group)));
    let mut value = common(state, allocation);
    if let Value::Object(object) = &mut value {
        let more = [
            ("Job", job),
            ("TaskStates", task_states(&allocation.tasks)),
            ("Resources", all_resources(state, allocation, spec)),
            ("TaskResources", task_resources(state, allocation, spec)),
            ("AllocatedResources", allocated_resources(state, allocation, spec)),
            ("Metrics", placed_by),
            ("DeploymentID", id_or_empty(allocation.deployment.map(|own| own.id))),
            ("PreviousAllocation", id_or_empty(allocation.previous)),
            // Tasks have the network of their host.
            (
                "NetworkStatus",
                json!({ "InterfaceName": "", "Address": "", "AddressIPv6": "", "DNS": null }),
            ),
            ("AllocModifyIndex", allocation.server_modify_index.into()),
            ("AllocStates", Value::Null),
        ];
        object.extend(more.map(|(name, value)| (name.to_owned(), value)));
    }
    value
}

fn common(state: &State, allocation: &Allocation) -> Value {
    let node_name = state
        .nodes()
        .get(&allocation.node)
        .map_or(Value::from(""), |node| text(&node.description.name));
    let kind = state.allocation_spec(allocation).map_or("", |spec| spec.kind.name());
    let (desired, desired_description) = desired(allocation);
    let transition = allocation.transition;
    let set = |mark: bool| mark.then_some(true);
    let preempted = allocation.preempted.iter().map(|id| Value::from(id.to_string()));
    json!({
        "ID": allocation.id.to_string(),
        "EvalID": allocation.evaluation.to_string(),
        "Name": allocation.name(),
        "Namespace": text(&allocation.job.namespace),
        "NodeID": allocation.node.to_string(),
        "NodeName": node_name,
        "JobID": text(&allocation.job.id),
        "JobType": kind,
        "JobVersion": allocation.job_version,
        "TaskGroup": text(&allocation.group),
        "DesiredStatus": desired.name(),
        "DesiredDescription": desired_description,
        "DesiredTransition": {
            "Migrate": set(transition.migrate),
            "Reschedule": set(transition.reschedule),
            "ForceReschedule": Value::Null,
            "NoShutdownDelay": set(transition.no_shutdown_delay),
        },
        "ClientStatus": allocation.client.name(),
        "ClientDescription": text(&allocation.client_description),
        "DeploymentStatus": deployment_status(allocation),
        "FollowupEvalID": id_or_empty(allocation.follow_up),
        "NextAllocation": id_or_empty(allocation.next),
        "RescheduleTracker": reschedule_tracker(allocation),
        "PreemptedAllocations": list_or_null(preempted.collect()),
        "PreemptedByAllocation": id_or_empty(allocation.preempted_by),
        "CreateIndex": allocation.create_index,
        "ModifyIndex": allocation.modify_index,
        "CreateTime": time::nanoseconds(allocation.created_at),
        "ModifyTime": time::nanoseconds(allocation.modified_at),
    })
}

/// Nomad has none while nothing was said of the health of one that is no canary.
fn deployment_status(allocation: &Allocation) -> Value {
    let Some(own) = allocation.deployment.filter(|own| own.canary || own.health.is_some()) else {
        return Value::Null;
    };
    json!({
        "Healthy": own.is_healthy(),
        "Timestamp": time::rfc3339(own.health.map_or(0, |health| health.at)),
        "Canary": own.canary,
        "ModifyIndex": own.health.map_or(0, |health| health.index),
    })
}

fn reschedule_tracker(allocation: &Allocation) -> Value {
    if allocation.reschedules.is_empty() {
        return Value::Null;
    }
    let events: Vec<Value> = allocation
        .reschedules
        .iter()
        .map(|event| {
            json!({
                "RescheduleTime": time::nanoseconds(event.at),
                "PrevAllocID": event.previous.to_string(),
                "PrevNodeID": event.node.to_string(),
                "Delay": time::nanoseconds(event.delay_ms),
            })
        })
        .collect();
    json!({ "Events": events })
}

/// The tasks of an allocation, with what each may use of memory at most here.
fn sized_tasks<'s>(
    state: &State,
    allocation: &Allocation,
    spec: Option<&'s JobSpec>,
) -> impl Iterator<Item = (&'s fsm::job::Task, u64)> {
    let oversubscription = state.scheduler_configuration().memory_oversubscription;
    let group = spec.and_then(|spec| spec.group(&allocation.group));
    let tasks = group.into_iter().flat_map(|group| &group.tasks);
    tasks.map(move |task| (task, task.resources.memory_mb_max_given(oversubscription)))
}

/// The form that resources had before there were tasks in it; clients still read it.
fn flat_resources(cpu_mhz: u64, memory: (u64, Value), disk_mb: u64, networks: Value) -> Value {
    json!({
        "CPU": cpu_mhz,
        "Cores": 0,
        "MemoryMB": memory.0,
        "MemoryMaxMB": memory.1,
        "DiskMB": disk_mb,
        "IOPS": 0,
        "Networks": networks,
        "Devices": Value::Null,
        "NUMA": Value::Null,
        "SecretsMB": 0,
    })
}

/// Of all tasks together: what one may use at most is what it has where it says nothing.
fn all_resources(state: &State, allocation: &Allocation, spec: Option<&JobSpec>) -> Value {
    let (mut memory_mb_max, mut differs) = (0_u64, false);
    for (task, max) in sized_tasks(state, allocation, spec) {
        differs |= max != 0;
        memory_mb_max = memory_mb_max.saturating_add(task.resources.memory_mb.max(max));
    }
    let max = if differs { memory_mb_max } else { 0 };
    let group = spec.and_then(|spec| spec.group(&allocation.group));
    let resources = allocation.resources;
    flat_resources(
        resources.cpu_mhz,
        (resources.memory_mb, jobspec::memory_max(max)),
        resources.disk_mb,
        list_or_null(networks(allocation, group, &node_address(state, allocation))),
    )
}

fn task_resources(state: &State, allocation: &Allocation, spec: Option<&JobSpec>) -> Value {
    let tasks: Map<_, _> = sized_tasks(state, allocation, spec)
        .map(|(task, max)| {
            let memory = (task.resources.memory_mb, jobspec::memory_max(max));
            let resources = flat_resources(task.resources.cpu_mhz, memory, 0, Value::Null);
            (task.name.to_string(), resources)
        })
        .collect();
    tasks.into()
}

fn node_address(state: &State, allocation: &Allocation) -> Text {
    let node = state.nodes().get(&allocation.node);
    node.map_or_else(|| Text::from(""), |node| node.description.resources.address.clone())
}

fn allocated_resources(state: &State, allocation: &Allocation, spec: Option<&JobSpec>) -> Value {
    let group = spec.and_then(|spec| spec.group(&allocation.group));
    let tasks: Map<_, _> = sized_tasks(state, allocation, spec)
        .map(|(task, max)| {
            let resources = json!({
                "Cpu": { "CpuShares": task.resources.cpu_mhz, "ReservedCores": Value::Null },
                "Memory": {
                    "MemoryMB": task.resources.memory_mb,
                    "MemoryMaxMB": jobspec::memory_max(max),
                    "SecretsMB": 0,
                },
                "Networks": Value::Null,
                "Devices": Value::Null,
            });
            (task.name.to_string(), resources)
        })
        .collect();
    let lifecycles: Map<_, _> = tasks.keys().map(|name| (name.clone(), Value::Null)).collect();
    let address = node_address(state, allocation);
    let ports: Vec<Value> = allocation
        .ports
        .iter()
        .map(|port| {
            json!({
                "Label": text(&port.label),
                "Value": port.value,
                "To": port.to,
                "HostIP": text(&address),
            })
        })
        .collect();
    json!({
        "Tasks": tasks,
        "TaskLifecycles": lifecycles,
        "Shared": {
            "DiskMB": allocation.resources.disk_mb,
            "Networks": list_or_null(networks(allocation, group, &address)),
            "Ports": list_or_null(ports),
        },
    })
}

/// The group's one host network, with static and dynamic ports apart as Nomad has them.
fn networks(allocation: &Allocation, group: Option<&fsm::TaskGroup>, address: &Text) -> Vec<Value> {
    if allocation.ports.is_empty() {
        return Vec::new();
    }
    let is_static = |label: &str| {
        group
            .and_then(|group| group.network.as_ref())
            .is_some_and(|network| network.ports.iter().any(|p| &*p.label == label && p.value != 0))
    };
    let port = |port: &fsm::resources::Port| {
        json!({
            "Label": text(&port.label),
            "Value": port.value,
            "To": port.to,
            "HostNetwork": "default",
        })
    };
    let (reserved, dynamic): (Vec<_>, Vec<_>) =
        allocation.ports.iter().partition(|port| is_static(&port.label));
    let list =
        |ports: Vec<&fsm::resources::Port>| list_or_null(ports.into_iter().map(port).collect());
    let mode = group.and_then(|group| group.network.as_ref()).map_or("", fsm::job::Network::mode);
    vec![json!({
        "Mode": mode,
        "Device": "",
        "CIDR": "",
        "IP": text(address),
        "Hostname": "",
        "MBits": 0,
        "DNS": Value::Null,
        "CNI": Value::Null,
        "ReservedPorts": list(reserved),
        "DynamicPorts": list(dynamic),
    })]
}

/// What is wanted of an allocation. Nobody wants one back whose node is gone for good.
fn desired(allocation: &Allocation) -> (DesiredStatus, Value) {
    let is_gone =
        allocation.client == ClientStatus::Lost && allocation.desired == DesiredStatus::Run;
    if is_gone {
        return (DesiredStatus::Stop, "alloc is lost since its node is down".into());
    }
    (allocation.desired, text(&allocation.desired_description))
}

/// When the present or last run of a task began: its first one, unless a later start is known.
fn last_start_ms(task: &TaskState) -> u64 {
    let starts = task.events.iter().filter(|event| &*event.kind == "Started");
    starts.map(|event| event.at_ms).max().unwrap_or(0).max(task.started_at_ms)
}

fn task_states(tasks: &BTreeMap<Text, TaskState>) -> Value {
    let states: Map<_, _> = tasks
        .iter()
        .map(|(name, task)| {
            let state = json!({
                "State": text(&task.state),
                "Failed": task.failed,
                "Restarts": task.restarts,
                "LastRestart": time::rfc3339_or_null(task.last_restart_ms),
                "StartedAt": time::rfc3339_or_null(last_start_ms(task)),
                "FinishedAt": time::rfc3339_or_null(task.finished_at_ms),
                "Events": task.events.iter().map(task_event).collect::<Vec<_>>(),
                "TaskHandle": Value::Null,
                "Paused": "",
            });
            (name.to_string(), state)
        })
        .collect();
    map_or_null(states.into())
}

#[cfg(test)]
mod tests {
    use fsm::TaskEvent;

    use super::*;

    #[test]
    fn a_task_started_when_it_was_started_last() {
        let event = |kind: &str, at_ms| TaskEvent {
            kind: kind.into(),
            at_ms,
            message: "".into(),
            exit_code: None,
            signal: None,
        };
        let mut task = TaskState { started_at_ms: 5, ..TaskState::default() };
        assert_eq!(last_start_ms(&task), 5, "events are forgotten");
        task.events = vec![event("Started", 5), event("Terminated", 7), event("Started", 9)];
        assert_eq!(last_start_ms(&task), 9);
    }
}
