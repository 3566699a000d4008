//! Allocations, their stubs, resources and task states.

use std::collections::BTreeMap;

use fsm::{
    Allocation, ClientStatus, State, TaskGroup, TaskState, Text, allocation::DesiredStatus,
    job::JobSpec, resources::Port,
};
use serde_json::Value;
use shapes::{
    AllocatedCpu, AllocatedMemory, AllocatedNetwork, AllocatedPort, AllocatedResources,
    AllocatedTask, AllocationStub, DeploymentStatus, DesiredTransition, FlatResources, NetworkPort,
    NetworkStatus, Nothing, RescheduleEvent, RescheduleTracker, SharedResources,
};

use super::{id_or_none, placement::placement_metrics, some_unless_empty, task_event::task_event};
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
) -> AllocationStub {
    let resources = with_resources.then(|| {
        let spec = state.allocation_spec(allocation);
        allocated_resources(state, allocation, spec.map(|spec| &**spec))
    });
    let tasks = with_task_states.then(|| task_states(&allocation.tasks)).flatten();
    let node = state.nodes().get(&allocation.node);
    let (desired, desired_description) = desired(allocation);
    let set = |mark: bool| mark.then_some(true);
    AllocationStub {
        allocated_resources: resources,
        client_description: allocation.client_description.to_string(),
        client_status: allocation.client.name().to_owned(),
        create_index: allocation.create_index,
        create_time: time::nanoseconds(allocation.created_at),
        deployment_status: deployment_status(allocation),
        desired_description,
        desired_status: desired.name().to_owned(),
        desired_transition: DesiredTransition {
            force_reschedule: None,
            migrate: set(allocation.transition.migrate),
            no_shutdown_delay: set(allocation.transition.no_shutdown_delay),
            reschedule: set(allocation.transition.reschedule),
        },
        eval_id: allocation.evaluation.to_string(),
        followup_eval_id: id_or_none(allocation.follow_up),
        id: allocation.id.to_string(),
        job_id: allocation.job.id.to_string(),
        job_type: state.allocation_spec(allocation).map_or("", |spec| spec.kind.name()).to_owned(),
        job_version: allocation.job_version,
        modify_index: allocation.modify_index,
        modify_time: time::nanoseconds(allocation.modified_at),
        name: allocation.name(),
        namespace: allocation.job.namespace.to_string(),
        next_allocation: id_or_none(allocation.next),
        node_id: allocation.node.to_string(),
        node_name: node.map_or_else(String::new, |node| node.description.name.to_string()),
        preempted_allocations: some_unless_empty(
            allocation.preempted.iter().map(ToString::to_string).collect(),
        ),
        preempted_by_allocation: id_or_none(allocation.preempted_by),
        reschedule_tracker: reschedule_tracker(allocation),
        task_group: allocation.group.to_string(),
        task_states: tasks,
    }
}

/// An allocation with its job.
pub(crate) fn allocation(state: &State, allocation: &Allocation) -> shapes::Allocation {
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
    shapes::Allocation {
        stub: AllocationStub {
            allocated_resources: Some(allocated_resources(state, allocation, spec)),
            ..allocation_stub(state, allocation, false, true)
        },
        alloc_modify_index: allocation.server_modify_index,
        alloc_states: Nothing,
        deployment_id: id_or_none(allocation.deployment.map(|own| own.id)),
        job,
        metrics: metrics.map(|metrics| placement_metrics(metrics, spec, group)),
        network_status: NetworkStatus::default(),
        previous_allocation: id_or_none(allocation.previous),
        resources: all_resources(state, allocation, spec),
        task_resources: task_resources(state, allocation, spec),
    }
}

/// Nomad has none while nothing was said of the health of one that is no canary.
fn deployment_status(allocation: &Allocation) -> Option<DeploymentStatus> {
    let own = allocation.deployment.filter(|own| own.canary || own.health.is_some())?;
    Some(DeploymentStatus {
        canary: own.canary,
        healthy: own.is_healthy(),
        modify_index: own.health.map_or(0, |health| health.index),
        timestamp: time::rfc3339(own.health.map_or(0, |health| health.at)),
    })
}

fn reschedule_tracker(allocation: &Allocation) -> Option<RescheduleTracker> {
    let events = allocation.reschedules.iter().map(|event| RescheduleEvent {
        delay: time::nanoseconds(event.delay_ms),
        prev_alloc_id: event.previous.to_string(),
        prev_node_id: event.node.to_string(),
        reschedule_time: time::nanoseconds(event.at),
    });
    some_unless_empty(events.collect()).map(|events| RescheduleTracker { events })
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

/// Of all tasks together: what one may use at most is what it has where it says nothing.
fn all_resources(state: &State, allocation: &Allocation, spec: Option<&JobSpec>) -> FlatResources {
    let (mut memory_mb_max, mut differs) = (0_u64, false);
    for (task, max) in sized_tasks(state, allocation, spec) {
        differs |= max != 0;
        memory_mb_max = memory_mb_max.saturating_add(task.resources.memory_mb.max(max));
    }
    let max = if differs { memory_mb_max } else { 0 };
    let group = spec.and_then(|spec| spec.group(&allocation.group));
    let resources = allocation.resources;
    FlatResources {
        cpu: resources.cpu_mhz,
        memory_mb: resources.memory_mb,
        memory_max_mb: jobspec::memory_max(max),
        disk_mb: resources.disk_mb,
        networks: networks(allocation, group, &node_address(state, allocation)),
        ..FlatResources::default()
    }
}

fn task_resources(
    state: &State,
    allocation: &Allocation,
    spec: Option<&JobSpec>,
) -> BTreeMap<String, FlatResources> {
    let tasks = sized_tasks(state, allocation, spec).map(|(task, max)| {
        let resources = FlatResources {
            cpu: task.resources.cpu_mhz,
            memory_mb: task.resources.memory_mb,
            memory_max_mb: jobspec::memory_max(max),
            ..FlatResources::default()
        };
        (task.name.to_string(), resources)
    });
    tasks.collect()
}

fn node_address(state: &State, allocation: &Allocation) -> Text {
    let node = state.nodes().get(&allocation.node);
    node.map_or_else(|| Text::from(""), |node| node.description.resources.address.clone())
}

fn allocated_resources(
    state: &State,
    allocation: &Allocation,
    spec: Option<&JobSpec>,
) -> AllocatedResources {
    let group = spec.and_then(|spec| spec.group(&allocation.group));
    let tasks: BTreeMap<_, _> = sized_tasks(state, allocation, spec)
        .map(|(task, max)| {
            let resources = AllocatedTask {
                cpu: AllocatedCpu { cpu_shares: task.resources.cpu_mhz, reserved_cores: Nothing },
                devices: Nothing,
                memory: AllocatedMemory {
                    memory_mb: task.resources.memory_mb,
                    memory_max_mb: jobspec::memory_max(max),
                    secrets_mb: 0,
                },
                networks: Nothing,
            };
            (task.name.to_string(), resources)
        })
        .collect();
    let address = node_address(state, allocation);
    let ports = allocation.ports.iter().map(|port| AllocatedPort {
        host_ip: address.to_string(),
        label: port.label.to_string(),
        to: port.to,
        value: port.value,
    });
    AllocatedResources {
        shared: SharedResources {
            disk_mb: allocation.resources.disk_mb,
            networks: networks(allocation, group, &address),
            ports: some_unless_empty(ports.collect()),
        },
        task_lifecycles: tasks.keys().map(|name| (name.clone(), None)).collect(),
        tasks,
    }
}

/// The group's one host network, with static and dynamic ports apart as Nomad has them.
fn networks(
    allocation: &Allocation,
    group: Option<&TaskGroup>,
    address: &Text,
) -> Option<Vec<AllocatedNetwork>> {
    if allocation.ports.is_empty() {
        return None;
    }
    let network = group.and_then(|group| group.network.as_ref());
    let is_static = |label: &str| {
        network.is_some_and(|network| {
            network.ports.iter().any(|port| &*port.label == label && port.value != 0)
        })
    };
    let (reserved, dynamic): (Vec<_>, Vec<_>) =
        allocation.ports.iter().partition(|port| is_static(&port.label));
    let port = |port: &Port| NetworkPort {
        host_network: "default".to_owned(),
        label: port.label.to_string(),
        to: port.to,
        value: port.value,
    };
    let list = |ports: Vec<&Port>| some_unless_empty(ports.into_iter().map(port).collect());
    Some(vec![AllocatedNetwork {
        dynamic_ports: list(dynamic),
        ip: address.to_string(),
        mode: network.map_or("", fsm::job::Network::mode).to_owned(),
        reserved_ports: list(reserved),
        ..AllocatedNetwork::default()
    }])
}

/// What is wanted of an allocation. Nobody wants one back whose node is gone for good.
fn desired(allocation: &Allocation) -> (DesiredStatus, String) {
    let is_gone =
        allocation.client == ClientStatus::Lost && allocation.desired == DesiredStatus::Run;
    if is_gone {
        return (DesiredStatus::Stop, "alloc is lost since its node is down".to_owned());
    }
    (allocation.desired, allocation.desired_description.to_string())
}

/// When the present or last run of a task began: its first one, unless a later start is known.
fn last_start_ms(task: &TaskState) -> u64 {
    let starts = task.events.iter().filter(|event| &*event.kind == "Started");
    starts.map(|event| event.at_ms).max().unwrap_or(0).max(task.started_at_ms)
}

fn task_states(tasks: &BTreeMap<Text, TaskState>) -> Option<BTreeMap<String, shapes::TaskState>> {
    let states = tasks.iter().map(|(name, task)| {
        let state = shapes::TaskState {
            events: task.events.iter().map(task_event).collect(),
            failed: task.failed,
            finished_at: time::rfc3339_or_null(task.finished_at_ms),
            last_restart: time::rfc3339_or_null(task.last_restart_ms),
            paused: String::new(),
            restarts: task.restarts.into(),
            started_at: time::rfc3339_or_null(last_start_ms(task)),
            state: task.state.to_string(),
            task_handle: Nothing,
        };
        (name.to_string(), state)
    });
    (!tasks.is_empty()).then(|| states.collect())
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
