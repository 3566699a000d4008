//! Starts a node: builds its registration, and spawns the work that keeps it in touch with the
//! servers.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicU64},
};

use anyhow::Context;
use ground::rt::{self, JoinSet, Notify, watch};
use proto::v1;

use super::{fingerprint::Fingerprint, local::LocalNode, settings::AgentSettings, shell::Shared};
use crate::{
    allocation::state::{NodeIdentity, StateDirectory},
    driver::{DriverEntry, Drivers},
    executor,
    machine::{address::with_port, shortage::Shortages},
    session::{
        connection::{Connection, Servers},
        heartbeat::{self, Standing},
        meta::NodeMeta,
        readiness::{CheckTimer, Checks},
        status::{Outbox, send_statuses},
    },
    stage::Stages,
    time::Clock,
};

/// File in the state directory with the metadata that was changed at run time.
const META_FILE: &str = "meta.json";

/// The parts of a node besides its settings. They differ between a real and a simulated machine.
pub(crate) struct NodeParts {
    /// A random number of this start of the agent. `None`: the agent has no HTTP service that could
    /// show it.
    pub(crate) start: Option<[u8; 16]>,
    pub(crate) servers: Arc<Servers>,
    pub(crate) clock: Clock,
    pub(crate) found: Fingerprint,
    pub(crate) drivers: Drivers,
    pub(crate) checks: Checks,
}

pub(crate) type Started = (Arc<LocalNode>, Arc<Shared>);

pub(crate) fn start_node(
    settings: &AgentSettings,
    parts: NodeParts,
    identity: &NodeIdentity,
    state: StateDirectory,
    http_address: SocketAddr,
    work: &mut JoinSet<()>,
) -> anyhow::Result<Started> {
    let NodeParts { start, servers, clock, found, drivers, checks } = parts;
    let mut registration = registration(settings, identity, state.boot_id, drivers.offered());
    registration.start = start.map(|nonce| nonce.to_vec().into()).unwrap_or_default();
    describe(&mut registration, settings, &found, http_address);
    let binary = match &settings.executor_binary {
        Some(binary) => binary.clone(),
        None => executor::own_binary().context("cannot find this process's binary")?,
    };
    let outbox = Arc::new(Outbox::default());
    let meta = NodeMeta::open(settings.meta.clone(), state.root().join(META_FILE));
    let meta = Arc::new(meta.context("cannot read the node's metadata")?);
    let shared = Arc::new(Shared {
        clock,
        state,
        outbox: Arc::clone(&outbox),
        node_names: Arc::new(node_names(&registration, &settings.region)),
        executor_binary: binary.into(),
        drivers,
        stages: Stages::all(),
        meta: Arc::clone(&meta),
        shortages: Arc::default(),
        ended: Notify::new(),
        too_long: AtomicU64::new(0),
    });
    let node = LocalNode::restore(Arc::clone(&shared), settings.ended_allocations_max)
        .context("cannot read the allocations of the last agent")?;
    rt::spawn_into(work, Arc::clone(&node).tend());
    let seed = u64::from_le_bytes(std::array::from_fn(|i| identity.node_id[i]));
    let connection = Arc::new(Connection::new(servers, 0, seed));
    let shortages = Arc::clone(&shared.shortages);
    let parts = SessionParts { registration, connection, outbox, clock, checks, shortages, meta };
    stand(Arc::clone(&node), parts, work);
    Ok((node, shared))
}

/// What a node needs to stay in touch with the servers.
pub(crate) struct SessionParts {
    pub(crate) registration: v1::RegisterRequest,
    pub(crate) connection: Arc<Connection>,
    pub(crate) outbox: Arc<Outbox>,
    pub(crate) clock: Clock,
    pub(crate) checks: Checks,
    pub(crate) shortages: Arc<Shortages>,
    pub(crate) meta: Arc<NodeMeta>,
}

/// Spawns the tasks that keep a node in touch with the servers: registration and heartbeats,
/// readiness checks, the stream of allocations, and statuses.
pub(crate) fn stand<N: heartbeat::Node>(node: Arc<N>, parts: SessionParts, work: &mut JoinSet<()>) {
    let SessionParts { registration, connection, outbox, clock, checks, shortages, meta } = parts;
    let node_id = std::array::from_fn(|i| registration.node_id[i]);
    let standing = Arc::new(Standing {
        node,
        registration,
        meta,
        connection: Arc::clone(&connection),
        outbox: Arc::clone(&outbox),
        registered: watch::Sender::new(None),
        unknown: Arc::new(Notify::new()),
        nudge: Arc::new(Notify::new()),
        clock,
        timer: Mutex::new(CheckTimer::new(checks.interval)),
        checks,
        shortages,
        timer_changed: Notify::new(),
    });
    let registered = standing.registered.subscribe();
    let unknown = Arc::clone(&standing.unknown);
    rt::spawn_into(work, Arc::clone(&standing).keep());
    rt::spawn_into(work, Arc::clone(&standing).check_readiness());
    rt::spawn_into(work, standing.follow());
    rt::spawn_into(work, send_statuses(node_id, connection, outbox, registered, unknown));
}

/// The part of a registration that real and simulated nodes have in common.
pub(crate) fn registration(
    settings: &AgentSettings,
    identity: &NodeIdentity,
    boot_id: [u8; 16],
    drivers: &[DriverEntry],
) -> v1::RegisterRequest {
    let reserved = &settings.reserved;
    v1::RegisterRequest {
        node_id: identity.node_id.to_vec().into(),
        secret: identity.secret.to_vec().into(),
        identity: identity.incarnation_identity(boot_id).to_vec().into(),
        datacenter: settings.datacenter.clone(),
        node_class: settings.node_class.clone(),
        node_pool: settings.node_pool.clone(),
        meta: settings.meta.clone().into_iter().collect(),
        reserved: Some(v1::NodeReserved {
            cpu_mhz: reserved.cpu_mhz,
            memory_mb: reserved.memory_mb,
            disk_mb: reserved.disk_mb,
            ports: reserved.ports.iter().copied().map(u32::from).collect(),
        }),
        drivers: drivers.iter().map(driver_message).collect(),
        version: ground::version::QUORATE.to_owned(),
        allocations_max: settings.allocations_max,
        instance_id: settings.instance.map(|own| own.id.0.to_vec().into()).unwrap_or_default(),
        instance_token: settings.instance.map(|own| own.token.to_vec().into()).unwrap_or_default(),
        ..Default::default()
    }
}

/// A driver as the servers see it. Its attributes also become attributes of the node.
fn driver_message(entry: &DriverEntry) -> (String, v1::Driver) {
    let (name, found) = (entry.name(), entry.look());
    let own = found.detected.then(|| (format!("driver.{name}"), "1".to_owned()));
    let more = found.attributes.into_iter();
    let more = more.map(|(key, value)| (format!("driver.{name}.{key}"), value));
    let driver = v1::Driver {
        detected: found.detected,
        healthy: found.healthy,
        description: found.description,
        attributes: own.into_iter().chain(more).collect(),
    };
    (name.to_owned(), driver)
}

fn describe(
    registration: &mut v1::RegisterRequest,
    settings: &AgentSettings,
    found: &Fingerprint,
    http_address: SocketAddr,
) {
    registration.name =
        if settings.name.is_empty() { found.host_name.clone() } else { settings.name.clone() };
    registration.attributes = found.attributes.clone().into_iter().collect();
    let of_drivers = registration.drivers.values().flat_map(|driver| driver.attributes.clone());
    registration.attributes.extend(of_drivers);
    registration.resources = Some(v1::NodeResources {
        cpu_mhz: found.cpu_mhz,
        memory_mb: found.memory_mb,
        disk_mb: found.disk_mb,
        cores: found.cores,
        dynamic_port_min: u32::from(settings.dynamic_port_min),
        dynamic_port_max: u32::from(settings.dynamic_port_max),
        address: found.address.clone(),
    });
    // A wildcard address such as `0.0.0.0` cannot be connected to. Use the machine's address
    // instead.
    registration.http_address = if http_address.ip().is_unspecified() {
        with_port(&found.address, http_address.port())
    } else {
        http_address.to_string()
    };
    let own_address = registration.http_address.clone();
    registration.attributes.insert("unique.advertise.address".to_owned(), own_address);
}

/// The node's properties by the names that jobs use in `${…}`.
pub(crate) fn node_names(
    registration: &v1::RegisterRequest,
    region: &str,
) -> std::collections::BTreeMap<String, String> {
    let id = fsm::NodeId::from_slice(&registration.node_id).unwrap_or_default();
    let own = [
        ("node.unique.id", id.to_string()),
        ("node.unique.name", registration.name.clone()),
        ("node.region", region.to_owned()),
        ("node.datacenter", registration.datacenter.clone()),
        ("node.class", registration.node_class.clone()),
        ("node.pool", registration.node_pool.clone()),
    ];
    let own = own.into_iter().map(|(key, value)| (key.to_owned(), value));
    let attributes =
        registration.attributes.iter().map(|(key, value)| (format!("attr.{key}"), value.clone()));
    let meta = registration.meta.iter().map(|(key, value)| (format!("meta.{key}"), value.clone()));
    own.chain(attributes).chain(meta).collect()
}
