//! Nodes and their stubs. The secret and the identity stay out.

use std::collections::BTreeMap;

use fsm::{
    Node, Text,
    node::{Drain, Driver, NodeEvent, NodeInstance, NodeResources},
    resources::Resources,
};
use ground::version;
use shapes::{
    Core, DrainStrategy, DriverInfo, FlatResources, LastDrain, NodeAddress, NodeCpu, NodeDisk,
    NodeMemory, NodeNetwork, NodeNetworkOld, NodeStub, Nothing, Processors, ReservedCpu,
    ReservedPorts, ReservedResources, Topology,
};

use super::{
    node_state::{eligibility, health, health_stub, readiness, shortage, status_description},
    texts,
};
use crate::time;

/// The speed of an interface of which none is known, as Nomad has it.
const SPEED_MBITS: u32 = 1_000;

/// Fills the fields that a node has in both forms.
macro_rules! with_common {
    ($shape:path, $node:expr, { $($name:ident: $value:expr),* $(,)? }) => {{
        let node: &Node = $node;
        let description = &node.description;
        let drivers = description.drivers.iter();
        let ineligible = node.eligibility.ineligible || node.drain.is_some();
        $shape {
            create_index: node.create_index,
            datacenter: description.datacenter.to_string(),
            drain: node.drain.is_some(),
            drivers: drivers
                .map(|(name, found)| (name.to_string(), driver(found, node.liveness_at)))
                .collect(),
            id: node.id.to_string(),
            last_drain: node.last_drain.as_ref().map(last_drain),
            modify_index: node.modify_index,
            name: description.name.to_string(),
            node_class: description.class.to_string(),
            node_pool: description.pool.to_string(),
            readiness: readiness(node),
            scheduling_eligibility: if ineligible { "ineligible" } else { "eligible" }.to_owned(),
            shortage: shortage(node),
            status: node.liveness.name().to_owned(),
            status_description: status_description(node),
            $($name: $value,)*
        }
    }};
}

/// A node in a list.
pub(crate) fn node_stub(node: &Node, with_resources: bool, with_os: bool) -> NodeStub {
    let description = &node.description;
    let resources = &description.resources;
    let attribute = |name: &str| description.attributes.get(name).map(ToString::to_string);
    let os = || ("os.name".to_owned(), attribute("os.name").unwrap_or_default());
    with_common!(NodeStub, node, {
        address: host(&description.http_address).to_owned(),
        attributes: with_os.then(|| BTreeMap::from([os()])),
        health: health_stub(node),
        host_volumes: Nothing,
        node_resources: with_resources.then(|| node_resources(resources)),
        reserved_resources: with_resources.then(|| reserved_resources(resources)),
        // That of the interface, by which tools tell what a node understands.
        version: attribute("nomad.version").unwrap_or_else(|| version::NOMAD.to_owned()),
    })
}

/// A node.
pub(crate) fn node(node: &Node) -> shapes::Node {
    let description = &node.description;
    let resources = &description.resources;
    with_common!(shapes::Node, node, {
        attributes: texts(&description.attributes),
        csi_controller_plugins: BTreeMap::new(),
        csi_node_plugins: BTreeMap::new(),
        cgroup_parent: String::new(),
        computed_class: node.class.to_string(),
        drain_strategy: node.drain.as_ref().map(drain_strategy),
        eligibility: eligibility(&node.eligibility),
        events: node.events.iter().map(event).collect(),
        http_addr: description.http_address.to_string(),
        health: health(node),
        host_networks: Nothing,
        host_volumes: Nothing,
        incarnation: node.incarnation,
        instance: node.instance.map(instance),
        links: BTreeMap::new(),
        meta: texts(&description.meta),
        node_max_allocs: resources.allocations_max,
        node_resources: node_resources(resources),
        ready_deadline: time::rfc3339(node.must_be_ready_at().unwrap_or(0)),
        reserved: flat_resources(resources.reserved),
        reserved_resources: reserved_resources(resources),
        resources: flat_resources(resources.total),
        // The agent's own, which nobody is shown.
        secret_id: String::new(),
        status_updated_at: node.liveness_at / 1_000,
        tls_enabled: false,
    })
}

/// The instance that a node is.
fn instance(instance: NodeInstance) -> shapes::NodeInstance {
    shapes::NodeInstance { id: instance.id.to_string(), open: instance.open }
}

/// Without access control nobody has an accessor.
fn last_drain(drain: &fsm::node::LastDrain) -> LastDrain {
    LastDrain {
        accessor_id: String::new(),
        meta: (!drain.meta.is_empty()).then(|| texts(&drain.meta)),
        started_at: time::rfc3339(drain.started_at),
        status: drain.status.name().to_owned(),
        updated_at: time::rfc3339(drain.updated_at),
    }
}

/// A deadline below 0 forces, 0 never forces.
fn drain_strategy(drain: &Drain) -> DrainStrategy {
    let force_deadline = if drain.force { None } else { drain.deadline_at };
    let deadline = match (drain.force, drain.deadline_at) {
        (true, _) => -1,
        (false, None) => 0,
        (false, Some(at)) => {
            let length = time::nanoseconds(at.saturating_sub(drain.started_at));
            i64::try_from(length).unwrap_or(i64::MAX)
        }
    };
    DrainStrategy {
        by: drain.owner.to_string(),
        by_verified: false,
        deadline,
        force_deadline: time::rfc3339_or_null(force_deadline.unwrap_or(0)),
        ignore_system_jobs: drain.ignore_system,
        started_at: time::rfc3339(drain.started_at),
    }
}

fn driver(driver: &Driver, updated_at_ms: u64) -> DriverInfo {
    DriverInfo {
        attributes: texts(&driver.attributes),
        detected: driver.detected,
        health_description: driver.description.to_string(),
        healthy: driver.healthy,
        update_time: time::rfc3339(updated_at_ms),
    }
}

fn event(event: &NodeEvent) -> shapes::NodeEvent {
    let of_drain = event.message.starts_with("Node drain ");
    let details = || BTreeMap::from([("deadline_reached".to_owned(), "true".to_owned())]);
    shapes::NodeEvent {
        create_index: event.index,
        details: event.deadline_reached.then(details),
        message: event.message.to_string(),
        subsystem: if of_drain { "Drain" } else { "Cluster" }.to_owned(),
        timestamp: time::rfc3339(event.at),
    }
}

/// The form that resources had before there were parts in it.
fn flat_resources(resources: Resources) -> FlatResources {
    FlatResources {
        cpu: resources.cpu_mhz,
        memory_mb: resources.memory_mb,
        disk_mb: resources.disk_mb,
        ..FlatResources::default()
    }
}

fn node_resources(resources: &NodeResources) -> shapes::NodeResources {
    let total = resources.total;
    let (networks, node_networks) = networks(&resources.address).unzip();
    shapes::NodeResources {
        cpu: NodeCpu {
            cpu_shares: total.cpu_mhz,
            reservable_cpu_cores: Nothing,
            total_cpu_cores: resources.cores,
        },
        devices: Nothing,
        disk: NodeDisk { disk_mb: total.disk_mb },
        max_dynamic_port: resources.dynamic_port_max,
        memory: NodeMemory { memory_mb: total.memory_mb },
        min_dynamic_port: resources.dynamic_port_min,
        networks,
        node_networks,
        processors: processors(resources),
    }
}

/// The one network of a node, in both forms that it has had; none without an address. An agent
/// tells its address, and nothing of the interface.
fn networks(address: &Text) -> Option<(Vec<NodeNetworkOld>, Vec<NodeNetwork>)> {
    if address.is_empty() {
        return None;
    }
    let (family, length) = if address.contains(':') { ("ipv6", 128) } else { ("ipv4", 32) };
    let network = NodeNetworkOld {
        cidr: format!("{address}/{length}"),
        ip: address.to_string(),
        mbits: SPEED_MBITS,
        mode: "host".to_owned(),
        ..NodeNetworkOld::default()
    };
    let node_network = NodeNetwork {
        addresses: vec![NodeAddress {
            address: address.to_string(),
            alias: "default".to_owned(),
            family: family.to_owned(),
            ..NodeAddress::default()
        }],
        mode: "host".to_owned(),
        speed: SPEED_MBITS,
        ..NodeNetwork::default()
    };
    Some((vec![network], vec![node_network]))
}

/// Cores of the same kind and speed, all on one memory node: more is not known of them.
fn processors(resources: &NodeResources) -> Processors {
    let mhz = resources.total.cpu_mhz.checked_div(u64::from(resources.cores)).unwrap_or(0);
    let core = |id: u32| Core { base_speed: mhz, grade: 1, id, ..Core::default() };
    Processors {
        topology: Topology {
            cores: (0..resources.cores).map(core).collect(),
            distances: vec![vec![10]],
            nodes: vec![0],
            ..Topology::default()
        },
    }
}

fn reserved_resources(resources: &NodeResources) -> ReservedResources {
    let reserved = resources.reserved;
    let ports: Vec<String> = resources.reserved_ports.iter().map(u16::to_string).collect();
    ReservedResources {
        cpu: ReservedCpu { cpu_shares: reserved.cpu_mhz, reserved_cpu_cores: Nothing },
        disk: NodeDisk { disk_mb: reserved.disk_mb },
        memory: NodeMemory { memory_mb: reserved.memory_mb },
        networks: ReservedPorts { reserved_host_ports: ports.join(",") },
    }
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
