//! Nodes and their stubs. The secret and the identity stay out.

use fsm::{
    Node, Text,
    node::{Drain, Driver, LastDrain, NodeEvent, NodeInstance, NodeResources},
    resources::Resources,
};
use ground::version;
use serde_json::{Map, Value, json};

use super::{
    node_state::{eligibility, health, health_stub, readiness, shortage, status_description},
    text, text_map,
};
use crate::time;

/// The speed of an interface of which none is known, as Nomad has it.
const SPEED_MBITS: u32 = 1_000;

/// A node in a list.
pub(crate) fn node_stub(node: &Node, with_resources: bool, with_os: bool) -> Value {
    let mut value = common(node);
    let description = &node.description;
    if let Value::Object(object) = &mut value {
        object.insert("Address".to_owned(), host(&description.http_address).into());
        object.insert("HostVolumes".to_owned(), Value::Null);
        // That of the interface, by which tools tell what a node understands.
        let version = description.attributes.get("nomad.version");
        object.insert("Version".to_owned(), version.map_or_else(|| version::NOMAD.into(), text));
        let os = || description.attributes.get("os.name").map_or(Value::from(""), text);
        let resources = &description.resources;
        for (name, shown) in [
            ("Attributes", with_os.then(|| json!({ "os.name": os() }))),
            ("NodeResources", with_resources.then(|| node_resources(resources))),
            ("ReservedResources", with_resources.then(|| reserved_resources(resources))),
        ] {
            object.insert(name.to_owned(), shown.into());
        }
    }
    value
}

/// A node.
pub(crate) fn node(node: &Node) -> Value {
    let description = &node.description;
    let resources = &description.resources;
    let more = [
        ("HTTPAddr", text(&description.http_address)),
        // The agent's own, which nobody is shown.
        ("SecretID", "".into()),
        ("TLSEnabled", false.into()),
        ("Attributes", text_map(&description.attributes)),
        ("Resources", flat_resources(resources.total)),
        ("Reserved", flat_resources(resources.reserved)),
        ("NodeResources", node_resources(resources)),
        ("ReservedResources", reserved_resources(resources)),
        ("Links", json!({})),
        ("Meta", text_map(&description.meta)),
        ("CgroupParent", "".into()),
        ("ComputedClass", node.class.to_string().into()),
        ("DrainStrategy", node.drain.as_ref().map_or(Value::Null, drain_strategy)),
        ("StatusUpdatedAt", (node.liveness_at / 1_000).into()),
        ("Events", node.events.iter().map(event).collect::<Vec<_>>().into()),
        ("HostVolumes", Value::Null),
        ("HostNetworks", Value::Null),
        ("CSIControllerPlugins", json!({})),
        ("CSINodePlugins", json!({})),
        ("NodeMaxAllocs", resources.allocations_max.into()),
        ("Incarnation", node.incarnation.into()),
        ("Health", health(node)),
        ("ReadyDeadline", time::rfc3339(node.must_be_ready_at().unwrap_or(0)).into()),
        ("Eligibility", eligibility(&node.eligibility)),
        ("Instance", node.instance.map_or(Value::Null, instance)),
    ];
    let mut value = common(node);
    if let Value::Object(object) = &mut value {
        object.extend(more.map(|(name, value)| (name.to_owned(), value)));
    }
    value
}

/// The instance that a node is.
fn instance(instance: NodeInstance) -> Value {
    json!({ "ID": instance.id.to_string(), "Open": instance.open })
}

fn common(node: &Node) -> Value {
    let description = &node.description;
    let drivers: Map<_, _> = description
        .drivers
        .iter()
        .map(|(name, found)| (name.to_string(), driver(found, node.liveness_at)))
        .collect();
    let ineligible = node.eligibility.ineligible || node.drain.is_some();
    json!({
        "ID": node.id.to_string(),
        "Datacenter": text(&description.datacenter),
        "Name": text(&description.name),
        "NodeClass": text(&description.class),
        "NodePool": text(&description.pool),
        "Drain": node.drain.is_some(),
        "SchedulingEligibility": if ineligible { "ineligible" } else { "eligible" },
        "Status": node.liveness.name(),
        "StatusDescription": status_description(node),
        "Drivers": drivers,
        "LastDrain": node.last_drain.as_ref().map_or(Value::Null, last_drain),
        "Health": health_stub(node),
        "Readiness": readiness(node),
        "Shortage": shortage(node),
        "CreateIndex": node.create_index,
        "ModifyIndex": node.modify_index,
    })
}

/// Without access control nobody has an accessor.
fn last_drain(drain: &LastDrain) -> Value {
    json!({
        "StartedAt": time::rfc3339(drain.started_at),
        "UpdatedAt": time::rfc3339(drain.updated_at),
        "Status": drain.status.name(),
        "AccessorID": "",
        "Meta": if drain.meta.is_empty() { Value::Null } else { text_map(&drain.meta) },
    })
}

/// A deadline below 0 forces, 0 never forces.
fn drain_strategy(drain: &Drain) -> Value {
    let force_deadline = if drain.force { None } else { drain.deadline_at };
    let deadline = match (drain.force, drain.deadline_at) {
        (true, _) => Value::from(-1),
        (false, None) => Value::from(0),
        (false, Some(at)) => Value::from(time::nanoseconds(at.saturating_sub(drain.started_at))),
    };
    json!({
        "Deadline": deadline,
        "IgnoreSystemJobs": drain.ignore_system,
        "ForceDeadline": time::rfc3339_or_null(force_deadline.unwrap_or(0)),
        "StartedAt": time::rfc3339(drain.started_at),
        "By": text(&drain.owner),
        "ByVerified": false,
    })
}

fn driver(driver: &Driver, updated_at_ms: u64) -> Value {
    json!({
        "Detected": driver.detected,
        "Healthy": driver.healthy,
        "HealthDescription": text(&driver.description),
        "Attributes": text_map(&driver.attributes),
        "UpdateTime": time::rfc3339(updated_at_ms),
    })
}

fn event(event: &NodeEvent) -> Value {
    let of_drain = event.message.starts_with("Node drain ");
    let details = event.deadline_reached.then(|| json!({ "deadline_reached": "true" }));
    json!({
        "Message": text(&event.message),
        "Subsystem": if of_drain { "Drain" } else { "Cluster" },
        "Details": details,
        "Timestamp": time::rfc3339(event.at),
        "CreateIndex": event.index,
    })
}

/// The form that resources had before there were parts in it.
fn flat_resources(resources: Resources) -> Value {
    json!({
        "CPU": resources.cpu_mhz,
        "Cores": 0,
        "MemoryMB": resources.memory_mb,
        "MemoryMaxMB": 0,
        "DiskMB": resources.disk_mb,
        "IOPS": 0,
        "Networks": Value::Null,
        "Devices": Value::Null,
        "NUMA": Value::Null,
        "SecretsMB": 0,
    })
}

fn node_resources(resources: &NodeResources) -> Value {
    let total = resources.total;
    let (networks, node_networks) = networks(&resources.address);
    json!({
        "Cpu": {
            "CpuShares": total.cpu_mhz,
            "TotalCpuCores": resources.cores,
            "ReservableCpuCores": Value::Null,
        },
        "Memory": { "MemoryMB": total.memory_mb },
        "Disk": { "DiskMB": total.disk_mb },
        "Networks": networks,
        "NodeNetworks": node_networks,
        "Processors": processors(resources),
        "Devices": Value::Null,
        "MinDynamicPort": resources.dynamic_port_min,
        "MaxDynamicPort": resources.dynamic_port_max,
    })
}

/// The one network of a node, in both forms that it has had. An agent tells its address, and
/// nothing of the interface.
fn networks(address: &Text) -> (Value, Value) {
    if address.is_empty() {
        return (Value::Null, Value::Null);
    }
    let (family, length) = if address.contains(':') { ("ipv6", 128) } else { ("ipv4", 32) };
    let network = json!({
        "Mode": "host",
        "Device": "",
        "CIDR": format!("{address}/{length}"),
        "IP": text(address),
        "MBits": SPEED_MBITS,
        "DNS": Value::Null,
        "CNI": Value::Null,
        "ReservedPorts": Value::Null,
        "DynamicPorts": Value::Null,
    });
    let node_network = json!({
        "Mode": "host",
        "Device": "",
        "MacAddress": "",
        "Speed": SPEED_MBITS,
        "Addresses": [{
            "Family": family,
            "Alias": "default",
            "Address": text(address),
            "ReservedPorts": "",
            "Gateway": "",
        }],
    });
    (json!([network]), json!([node_network]))
}

/// Cores of the same kind and speed, all on one memory node: more is not known of them.
fn processors(resources: &NodeResources) -> Value {
    let mhz = resources.total.cpu_mhz.checked_div(u64::from(resources.cores)).unwrap_or(0);
    let core = |id: u32| {
        json!({
            "ID": id,
            "SocketID": 0,
            "NodeID": 0,
            "Grade": 1,
            "Disable": false,
            "BaseSpeed": mhz,
            "MaxSpeed": 0,
            "GuessSpeed": 0,
        })
    };
    json!({
        "Topology": {
            "Nodes": [0],
            "Distances": [[10]],
            "Cores": (0..resources.cores).map(core).collect::<Vec<_>>(),
            "OverrideTotalCompute": 0,
            "OverrideWitholdCompute": 0,
        },
    })
}

fn reserved_resources(resources: &NodeResources) -> Value {
    let reserved = resources.reserved;
    let ports: Vec<String> = resources.reserved_ports.iter().map(u16::to_string).collect();
    json!({
        "Cpu": { "CpuShares": reserved.cpu_mhz, "ReservedCpuCores": Value::Null },
        "Memory": { "MemoryMB": reserved.memory_mb },
        "Disk": { "DiskMB": reserved.disk_mb },
        "Networks": { "ReservedHostPorts": ports.join(",") },
    })
}

/// The host part of `host:port`, without the brackets that IPv6 has there.
fn host(address: &Text) -> &str {
    let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host);
    host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_neither_port_nor_brackets() {
        for (address, expected) in
            [("10.0.0.1:4646", "10.0.0.1"), ("[fd00::1]:4646", "fd00::1"), ("", "")]
        {
            assert_eq!(host(&address.into()), expected);
        }
    }
}
