//! Nodes and allocations as one server showed them, in the form the history keeps.
//!
//! Owns the reading of both lists and their rows; workloads write them and checkers read them back. All
//! allocations of an answer are from one state. Nodes are listed after them: a node never goes, and what it
//! offers never changes in a run, so every allocation of the answer finds its node. Allocations that have
//! ended on their node are left out, but for the whole view of [`read_all`].

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::answer::{self, Completion};
use crate::client::HttpClient;

/// What one server showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// The index of the allocations.
    pub(crate) index: u64,
    /// The nodes.
    pub(crate) nodes: Vec<Node>,
    /// The allocations.
    pub(crate) allocations: Vec<Allocation>,
    /// Jobs in the order in which they were looked at, after all else: the list, then one by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) jobs: Vec<Job>,
    /// The count each job asks for, where the reader asked for it; a stopped job asks for none.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) counts: BTreeMap<String, u64>,
}

/// What a job is at an index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Job {
    /// Its id.
    pub(crate) id: String,
    /// `pending`, `running`, `dead`.
    pub(crate) status: String,
    /// Index of its last change.
    pub(crate) modify: u64,
}

/// A node and what it offers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Its id.
    pub(crate) id: String,
    /// `ready`, `down`, …
    pub(crate) status: String,
    /// Whether it is being drained.
    pub(crate) drain: bool,
    /// Whether it takes allocations, where the reader asked for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) eligible: Option<bool>,
    /// CPU for allocations.
    pub(crate) cpu: u64,
    /// Memory for allocations.
    pub(crate) memory: u64,
    /// First and last dynamic port.
    pub(crate) ports: [u16; 2],
}

/// An allocation and what it holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Allocation {
    /// Its id.
    pub(crate) id: String,
    /// `job.group[index]`.
    pub(crate) name: String,
    /// Its job.
    pub(crate) job: String,
    /// Its node.
    pub(crate) node: String,
    /// `run`, `stop`, `evict`.
    pub(crate) desired: String,
    /// `pending`, `running`, …
    pub(crate) client: String,
    /// The job's version.
    pub(crate) version: u64,
    /// CPU.
    pub(crate) cpu: u64,
    /// Memory.
    pub(crate) memory: u64,
    /// Ports asked for by number.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) static_ports: Vec<u16>,
    /// Ports of the node's choice.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) dynamic_ports: Vec<u16>,
    /// The one that replaces it; empty without.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) next: String,
    /// Index at which it was placed.
    pub(crate) create: u64,
    /// Index of its last change.
    pub(crate) modify: u64,
}

impl Allocation {
    /// Ended on its node.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.client.as_str(), "complete" | "failed" | "lost")
    }

    /// Wanted and not ended: it holds its name and its resources.
    pub(crate) fn is_live(&self) -> bool {
        self.desired == "run" && !self.has_ended()
    }

    /// The number in its name.
    pub(crate) fn name_index(&self) -> Option<u64> {
        self.name.rsplit_once('[')?.1.strip_suffix(']')?.parse().ok()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct NodeRow {
    #[serde(rename = "ID")]
    id: String,
    status: String,
    drain: bool,
    scheduling_eligibility: String,
    node_resources: Value,
    reserved_resources: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct AllocationRow {
    #[serde(rename = "ID")]
    id: String,
    name: String,
    #[serde(rename = "JobID")]
    job: String,
    #[serde(rename = "NodeID")]
    node: String,
    desired_status: String,
    client_status: String,
    job_version: u64,
    next_allocation: String,
    create_index: u64,
    modify_index: u64,
    allocated_resources: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JobRow {
    #[serde(rename = "ID")]
    id: String,
    stop: bool,
    version: u64,
    meta: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct JobState {
    #[serde(rename = "ID")]
    id: String,
    status: String,
    modify_index: u64,
}

impl From<JobState> for Job {
    fn from(state: JobState) -> Self {
        Self { id: state.id, status: state.status, modify: state.modify_index }
    }
}

fn number(value: &Value, pointer: &str) -> Result<u64, Completion> {
    value
        .pointer(pointer)
        .and_then(Value::as_u64)
        .ok_or_else(|| Completion::fail(&format!("unexpected answer: no number at {pointer}")))
}

fn port(value: &Value) -> Result<u16, Completion> {
    let port = value.as_u64().and_then(|port| u16::try_from(port).ok());
    port.ok_or_else(|| Completion::fail("unexpected answer: not a port"))
}

fn node(row: NodeRow) -> Result<Node, Completion> {
    let (total, reserved) = (&row.node_resources, &row.reserved_resources);
    let available = |pointer| -> Result<u64, Completion> {
        Ok(number(total, pointer)?.saturating_sub(number(reserved, pointer)?))
    };
    let bound = |name: &str| port(total.get(name).unwrap_or(&Value::Null));
    Ok(Node {
        cpu: available("/Cpu/CpuShares")?,
        memory: available("/Memory/MemoryMB")?,
        ports: [bound("MinDynamicPort")?, bound("MaxDynamicPort")?],
        id: row.id,
        status: row.status,
        drain: row.drain,
        eligible: Some(row.scheduling_eligibility == "eligible"),
    })
}

fn allocation(row: AllocationRow) -> Result<Allocation, Completion> {
    let resources = &row.allocated_resources;
    let ports = |kind: &str| -> Result<Vec<u16>, Completion> {
        let ports = resources.pointer(&format!("/Shared/Networks/0/{kind}"));
        let ports = ports.and_then(Value::as_array).into_iter().flatten();
        ports.map(|found| port(found.get("Value").unwrap_or(&Value::Null))).collect()
    };
    Ok(Allocation {
        cpu: number(resources, "/Tasks/task/Cpu/CpuShares")?,
        memory: number(resources, "/Tasks/task/Memory/MemoryMB")?,
        static_ports: ports("ReservedPorts")?,
        dynamic_ports: ports("DynamicPorts")?,
        id: row.id,
        name: row.name,
        job: row.job,
        node: row.node,
        desired: row.desired_status,
        client: row.client_status,
        version: row.job_version,
        next: row.next_allocation,
        create: row.create_index,
        modify: row.modify_index,
    })
}

/// Nodes and all allocations, those that have ended too.
pub(crate) fn read_all(client: &HttpClient) -> Result<Snapshot, Completion> {
    let reply = client.get("/v1/allocations?resources=true&task_states=false");
    let (rows, index) = answer::read::<Vec<AllocationRow>>(&reply)?;
    let allocations = rows.into_iter().map(allocation).collect::<Result<_, _>>()?;
    let (rows, _) = answer::read::<Vec<NodeRow>>(&client.get("/v1/nodes?resources=true"))?;
    let nodes = rows.into_iter().map(node).collect::<Result<_, _>>()?;
    let jobs = read_job_states(client, index)?;
    Ok(Snapshot { index, nodes, allocations, jobs, counts: BTreeMap::new() })
}

/// All jobs as the list shows them, then one of them by itself; `choice` says which.
fn read_job_states(client: &HttpClient, choice: u64) -> Result<Vec<Job>, Completion> {
    let (rows, _) = answer::read::<Vec<JobState>>(&client.get("/v1/jobs"))?;
    let mut jobs: Vec<Job> = rows.into_iter().map(Job::from).collect();
    let place = usize::try_from(choice).unwrap_or(0) % jobs.len().max(1);
    if let Some(job) = jobs.get(place) {
        let (job, _) = answer::read::<JobState>(&client.get(&format!("/v1/job/{}", job.id)))?;
        jobs.push(Job::from(job));
    }
    Ok(jobs)
}

/// Nodes and the allocations that have not ended on their node.
pub(crate) fn read(client: &HttpClient) -> Result<Snapshot, Completion> {
    let mut snapshot = read_all(client)?;
    snapshot.allocations.retain(|allocation| !allocation.has_ended());
    Ok(snapshot)
}

/// Everything, once every job has exactly what it asks for, in its newest version, or the reason why it has not.
pub(crate) fn read_converged(client: &HttpClient) -> Result<Snapshot, Completion> {
    let jobs = read_jobs(client)?;
    let mut snapshot = read_all(client)?;
    if read_jobs(client)? != jobs {
        return Err(Completion::fail("a job changed meanwhile"));
    }
    snapshot.counts = jobs.iter().map(|(job, (count, _))| (job.clone(), *count)).collect();
    let at_rest = |node: &Node| node.status == "ready" && !node.drain;
    if let Some(node) = snapshot.nodes.iter().find(|node| !at_rest(node)) {
        let text = format!("node {} is {}, drain {}", node.id, node.status, node.drain);
        return Err(Completion::fail(&text));
    }
    let moves = |found: &&Allocation| {
        !found.has_ended() && (found.client != "running" || found.desired != "run")
    };
    if let Some(moving) = snapshot.allocations.iter().find(moves) {
        let text = format!("{} is {} and {}", moving.name, moving.desired, moving.client);
        return Err(Completion::fail(&text));
    }
    let live = |job: &str| {
        snapshot.allocations.iter().filter(|found| found.is_live() && found.job == job).count()
    };
    for (job, (count, _)) in &jobs {
        if live(job) as u64 != *count {
            let text = format!("job {job} has {} of {count} allocations", live(job));
            return Err(Completion::fail(&text));
        }
    }
    let is_old = |found: &&Allocation| {
        found.is_live() && jobs.get(&found.job).is_some_and(|(_, newest)| found.version != *newest)
    };
    if let Some(old) = snapshot.allocations.iter().find(is_old) {
        return Err(Completion::fail(&format!("{} is of version {}", old.name, old.version)));
    }
    Ok(snapshot)
}

/// The count that each job asks for, of those that ask for any.
pub(crate) fn asked(client: &HttpClient) -> Result<BTreeMap<String, u64>, Completion> {
    let counts = read_jobs(client)?.into_iter().map(|(job, (count, _))| (job, count));
    Ok(counts.filter(|(_, count)| *count > 0).collect())
}

/// The count that each job asks for, and its version.
fn read_jobs(client: &HttpClient) -> Result<BTreeMap<String, (u64, u64)>, Completion> {
    let (rows, _) = answer::read::<Vec<JobRow>>(&client.get("/v1/jobs?meta=true"))?;
    let jobs = rows.into_iter().map(|row| {
        let count = row.meta.get("count").and_then(|count| count.parse().ok());
        let count = count.ok_or_else(|| {
            Completion::fail(&format!("unexpected answer: {} has no count", row.id))
        })?;
        Ok((row.id, (if row.stop { 0 } else { count }, row.version)))
    });
    jobs.collect()
}
