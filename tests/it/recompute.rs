//! An independent look at what the scheduler did: sums, names and ports computed anew from what the HTTP API says, with nothing of the
//! program's own code. It only reads, and it names what is wrong instead of repairing or retrying.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::harness::Client;

/// What one look at the API saw. The lists are read one after the other, so compare only what does not change meanwhile.
pub(crate) struct Cluster {
    nodes: Vec<Value>,
    allocations: Vec<Value>,
    jobs: Vec<Value>,
}

/// Room on a node.
#[derive(Clone, Copy, Default, Debug)]
struct Room {
    cpu_mhz: i64,
    memory_mb: i64,
    disk_mb: i64,
}

impl Cluster {
    /// Reads nodes, allocations and jobs of all namespaces.
    pub(crate) fn read(client: &Client) -> Self {
        let list = |path: &str| list_of(client.get(path).ok());
        let jobs = list("/v1/jobs?namespace=*")
            .iter()
            .map(|stub| {
                let (id, namespace) = (text(stub, "ID"), text(stub, "Namespace"));
                client.get(&format!("/v1/job/{id}?namespace={namespace}")).ok()
            })
            .collect();
        Self {
            nodes: list("/v1/nodes?resources=true"),
            allocations: list("/v1/allocations?resources=true&namespace=*"),
            jobs,
        }
    }

    /// Everything that must hold at any time.
    pub(crate) fn violations(&self) -> Vec<String> {
        let mut found = self.over_commitments();
        found.extend(self.duplicate_names());
        found.extend(self.duplicate_ports());
        found.extend(self.impossible_numbers());
        found
    }

    /// Where the number of live allocations is not what the job wants: holds once everything has settled and there is room.
    pub(crate) fn wrong_counts(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for job in &self.jobs {
            let per_node = matches!(text(job, "Type"), "system" | "sysbatch");
            if per_node || text(job, "Type") == "batch" || job["ParameterizedJob"].is_object() {
                continue;
            }
            for group in job["TaskGroups"].as_array().expect("a job has groups") {
                let wanted = if job["Stop"] == true { 0 } else { number(&group["Count"]) };
                let live = self
                    .live()
                    .filter(|one| belongs(one, job) && one["TaskGroup"] == group["Name"])
                    .count();
                if i64::try_from(live) != Ok(wanted) {
                    wrong.push(format!("{}: {live} of {wanted} live", job["ID"]));
                }
            }
        }
        wrong
    }

    fn live(&self) -> impl Iterator<Item = &Value> {
        self.allocations.iter().filter(|one| is_live(one))
    }

    fn over_commitments(&self) -> Vec<String> {
        let mut used: BTreeMap<&str, Room> = BTreeMap::new();
        for allocation in self.live() {
            let room = used.entry(text(allocation, "NodeID")).or_default();
            let resources = &allocation["AllocatedResources"];
            for task in resources["Tasks"].as_object().expect("tasks").values() {
                room.cpu_mhz += number(&task["Cpu"]["CpuShares"]);
                room.memory_mb += number(&task["Memory"]["MemoryMB"]);
            }
            room.disk_mb += number(&resources["Shared"]["DiskMB"]);
        }
        let mut wrong = Vec::new();
        for (id, used) in used {
            let Some(node) = self.nodes.iter().find(|node| text(node, "ID") == id) else {
                wrong.push(format!("node {id} is gone and has live allocations"));
                continue;
            };
            let (all, kept) = (&node["NodeResources"], &node["ReservedResources"]);
            let total =
                |path: [&str; 2]| number(&all[path[0]][path[1]]) - number(&kept[path[0]][path[1]]);
            let fits = used.cpu_mhz <= total(["Cpu", "CpuShares"])
                && used.memory_mb <= total(["Memory", "MemoryMB"])
                && used.disk_mb <= total(["Disk", "DiskMB"]);
            if !fits {
                wrong.push(format!("node {} is over-committed: {used:?}", node["Name"]));
            }
        }
        wrong
    }

    fn duplicate_names(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        self.live()
            .filter_map(|one| {
                // A job that runs once per node uses one name on all of them.
                let node = match text(one, "JobType") {
                    "system" | "sysbatch" => text(one, "NodeID"),
                    _ => "",
                };
                let name = (text(one, "Namespace"), text(one, "JobID"), text(one, "Name"), node);
                (!seen.insert(name)).then(|| format!("{name:?} is live twice"))
            })
            .collect()
    }

    fn duplicate_ports(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut wrong = Vec::new();
        for allocation in self.live() {
            for port in ports(allocation) {
                if !seen.insert((text(allocation, "NodeID"), port)) {
                    wrong.push(format!("port {port} twice on node {}", allocation["NodeName"]));
                }
            }
        }
        wrong
    }

    /// The number in a name lies below the count of the group in that version of the job, so far as it is the current one.
    fn impossible_numbers(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for allocation in self.live() {
            let Some(job) = self.jobs.iter().find(|job| belongs(allocation, job)) else { continue };
            if allocation["JobVersion"] != job["Version"] {
                continue;
            }
            let groups = job["TaskGroups"].as_array().expect("a job has groups");
            let group = groups.iter().find(|group| group["Name"] == allocation["TaskGroup"]);
            let count = group.map_or(0, |group| number(&group["Count"]));
            let per_node = matches!(text(job, "Type"), "system" | "sysbatch");
            if !per_node && index_of(allocation) >= count {
                wrong.push(format!("{} with a count of {count}", allocation["Name"]));
            }
        }
        wrong
    }
}

/// Wanted by the servers and not known to have ended.
pub(crate) fn is_live(allocation: &Value) -> bool {
    text(allocation, "DesiredStatus") == "run"
        && matches!(text(allocation, "ClientStatus"), "pending" | "running" | "unknown")
}

/// The host ports of an allocation.
pub(crate) fn ports(allocation: &Value) -> Vec<i64> {
    let ports = allocation["AllocatedResources"]["Shared"]["Ports"].as_array();
    ports.into_iter().flatten().map(|port| number(&port["Value"])).collect()
}

/// The number in the brackets of an allocation's name.
pub(crate) fn index_of(allocation: &Value) -> i64 {
    let name = text(allocation, "Name");
    let index = name.rsplit_once('[').and_then(|(_, rest)| rest.strip_suffix(']')?.parse().ok());
    index.unwrap_or_else(|| panic!("{name} has no index"))
}

/// A field that is text.
#[track_caller]
pub(crate) fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_else(|| panic!("{field} is no text in {value}"))
}

/// The items of a list.
#[track_caller]
pub(crate) fn list_of(value: Value) -> Vec<Value> {
    let Value::Array(items) = value else { panic!("not a list: {value}") };
    items
}

#[track_caller]
fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| panic!("not a whole number: {value}"))
}

fn belongs(allocation: &Value, job: &Value) -> bool {
    allocation["JobID"] == job["ID"] && allocation["Namespace"] == job["Namespace"]
}
