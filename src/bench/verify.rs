//! Recomputes from the HTTP API whether placements are right. Shares no code with the scheduler,
//! the state machine or their checks: it adds up what the API shows.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::{cluster::Server, http::Connection};

/// Problems that are told; there may be more.
const PROBLEMS_MAX: usize = 20;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub(super) struct Node {
    #[serde(rename = "ID")]
    pub(super) id: String,
    pub(super) status: String,
    #[serde(rename = "NodeResources")]
    total: NodeResources,
    #[serde(rename = "ReservedResources")]
    reserved: NodeResources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct NodeResources {
    cpu: Cpu,
    memory: Memory,
    disk: Disk,
    networks: Networks,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Cpu {
    cpu_shares: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Memory {
    #[serde(rename = "MemoryMB")]
    memory_mb: u64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Disk {
    #[serde(rename = "DiskMB")]
    disk_mb: u64,
}

/// Networks of a node, or its reserved ports: only the latter matter.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Networks {
    Reserved {
        #[serde(rename = "ReservedHostPorts")]
        ports: String,
    },
    Other(serde::de::IgnoredAny),
}

impl Default for Networks {
    fn default() -> Self {
        Self::Other(serde::de::IgnoredAny)
    }
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Allocation {
    #[serde(rename = "ID")]
    id: String,
    name: String,
    #[serde(rename = "NodeID")]
    node_id: String,
    desired_status: String,
    client_status: String,
    allocated_resources: Allocated,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Allocated {
    tasks: BTreeMap<String, TaskShare>,
    shared: Shared,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct TaskShare {
    cpu: Cpu,
    memory: Memory,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Shared {
    #[serde(rename = "DiskMB")]
    disk_mb: u64,
    /// Null where it has none.
    ports: Option<Vec<Port>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Port {
    value: u32,
}

impl Allocation {
    fn is_live(&self) -> bool {
        let ended = ["complete", "failed", "lost"].contains(&&*self.client_status);
        self.desired_status == "run" && !ended
    }
}

#[derive(Debug, Default)]
struct Used {
    cpu: u64,
    memory: u64,
    disk: u64,
    ports: BTreeSet<u32>,
}

/// Sums over allocations as they are read.
#[derive(Default)]
pub(super) struct Check {
    nodes: BTreeMap<String, Node>,
    used: BTreeMap<String, Used>,
    allocations: u64,
    problems: Vec<String>,
}

impl Check {
    fn of(nodes: Vec<Node>) -> Self {
        let nodes = nodes.into_iter().map(|node| (node.id.clone(), node)).collect();
        Self { nodes, ..Self::default() }
    }

    fn problem(&mut self, text: String) {
        if self.problems.len() < PROBLEMS_MAX {
            self.problems.push(text);
        }
    }

    /// Takes all allocations of one job.
    fn add_job(&mut self, job: &str, wanted: usize, allocations: &[Allocation]) {
        let mut names = BTreeSet::new();
        for allocation in allocations.iter().filter(|allocation| allocation.is_live()) {
            self.allocations += 1;
            if !names.insert(&allocation.name) {
                self.problem(format!("{} is live twice", allocation.name));
            }
            if !self.nodes.contains_key(&allocation.node_id) {
                let text = format!("{} is on unknown node {}", allocation.id, allocation.node_id);
                self.problem(text);
            }
            let resources = &allocation.allocated_resources;
            let used = self.used.entry(allocation.node_id.clone()).or_default();
            for task in resources.tasks.values() {
                used.cpu += task.cpu.cpu_shares;
                used.memory += task.memory.memory_mb;
            }
            used.disk += resources.shared.disk_mb;
            for port in resources.shared.ports.iter().flatten() {
                if port.value == 0 || !used.ports.insert(port.value) {
                    let problem =
                        format!("port {} twice on node {}", port.value, allocation.node_id);
                    self.problem(problem);
                    break;
                }
            }
        }
        if names.len() != wanted {
            self.problem(format!("job {job} has {} of {wanted} instances", names.len()));
        }
    }

    /// Compares the sums with what the nodes have.
    fn finish(mut self) -> (u64, Vec<String>) {
        for (id, used) in std::mem::take(&mut self.used) {
            let Some(node) = self.nodes.get(&id) else { continue };
            let (total, reserved) = (&node.total, &node.reserved);
            let reserved_ports = match &reserved.networks {
                Networks::Reserved { ports } => ports.clone(),
                Networks::Other(_) => String::new(),
            };
            let rows = [
                ("cpu", used.cpu, total.cpu.cpu_shares, reserved.cpu.cpu_shares),
                ("memory", used.memory, total.memory.memory_mb, reserved.memory.memory_mb),
                ("disk", used.disk, total.disk.disk_mb, reserved.disk.disk_mb),
            ];
            for (what, used, total, reserved) in rows {
                if used > total.saturating_sub(reserved) {
                    self.problem(format!(
                        "node {id} is over-committed: {what} {used} of {total} less {reserved}"
                    ));
                }
            }
            for port in reserved_ports.split(',').filter_map(|port| port.trim().parse().ok()) {
                if used.ports.contains(&port) {
                    self.problem(format!("reserved port {port} is used on node {id}"));
                }
            }
        }
        (self.allocations, self.problems)
    }
}

/// Reads all nodes.
pub(super) async fn nodes(server: &Server) -> anyhow::Result<Vec<Node>> {
    Ok(Connection::open(&server.http).await?.get_json("/v1/nodes?resources=true").await?)
}

/// Reads nodes and the jobs' allocations from one server; returns live allocations and what is
/// wrong.
pub(super) async fn check(
    server: &Server,
    jobs: &[String],
    count: u32,
) -> anyhow::Result<(u64, Vec<String>)> {
    let mut check = Check::of(nodes(server).await?);
    let mut connection = Connection::open(&server.http).await?;
    for job in jobs {
        let path = format!("/v1/job/{job}/allocations?resources=true&all=true");
        let allocations: Vec<Allocation> = connection.get_json(&path).await?;
        check.add_job(job, count as usize, &allocations);
    }
    Ok(check.finish())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;

    fn node() -> Node {
        serde_json::from_value(json!({
            "ID": "n1",
            "Status": "ready",
            "NodeResources": {
                "Cpu": { "CpuShares": 1000, "TotalCpuCores": 4 },
                "Memory": { "MemoryMB": 1000 },
                "Disk": { "DiskMB": 1000 },
                "Networks": [{ "Mode": "host", "IP": "10.0.0.1" }],
            },
            "ReservedResources": {
                "Cpu": { "CpuShares": 100 },
                "Memory": { "MemoryMB": 0 },
                "Disk": { "DiskMB": 0 },
                "Networks": { "ReservedHostPorts": "22,80" },
            },
        }))
        .unwrap()
    }

    /// Port 0: it has none.
    fn allocation(name: &str, cpu: u64, port: u32, client_status: &str) -> Allocation {
        let ports = (port > 0).then(|| json!([{ "Label": "http", "Value": port }]));
        serde_json::from_value(json!({
            "ID": name,
            "Name": name,
            "NodeID": "n1",
            "DesiredStatus": "run",
            "ClientStatus": client_status,
            "AllocatedResources": {
                "Tasks": { "t": { "Cpu": { "CpuShares": cpu }, "Memory": { "MemoryMB": 10 } } },
                "Shared": { "DiskMB": 10, "Ports": ports },
            },
        }))
        .unwrap()
    }

    fn problems(wanted: usize, allocations: &[Allocation]) -> Vec<String> {
        let mut check = Check::of(vec![node()]);
        check.add_job("j", wanted, allocations);
        check.finish().1
    }

    #[test]
    fn allocations_that_fit_are_no_problem_and_ended_ones_do_not_count() {
        let good = [
            allocation("j.g[0]", 450, 20_000, "running"),
            allocation("j.g[1]", 450, 20_001, "pending"),
            allocation("j.g[2]", 0, 0, "running"),
            allocation("j.g[0]", 450, 20_000, "failed"),
        ];
        assert_eq!(problems(3, &good), Vec::<String>::new());
    }

    #[test]
    fn every_kind_of_violation_is_found() {
        let one = allocation("j.g[0]", 450, 20_000, "running");
        let cases = [
            (2, allocation("j.g[1]", 451, 20_001, "running"), "node n1 is over-committed: cpu 901"),
            (2, allocation("j.g[1]", 1, 20_000, "running"), "port 20000 twice on node n1"),
            (2, allocation("j.g[1]", 1, 80, "running"), "reserved port 80 is used"),
            (1, allocation("j.g[0]", 1, 20_001, "running"), "j.g[0] is live twice"),
            (3, allocation("j.g[1]", 1, 20_001, "running"), "job j has 2 of 3 instances"),
            (
                2,
                Allocation { node_id: "n2".to_owned(), ..allocation("j.g[1]", 1, 1, "running") },
                "j.g[1] is on unknown node n2",
            ),
        ];
        for (wanted, other, expected) in cases {
            let found = problems(wanted, &[one.clone(), other]);
            assert_eq!(found.len(), 1, "{expected}: {found:?}");
            assert!(found[0].starts_with(expected), "{found:?}");
        }
    }
}
