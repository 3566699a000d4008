//! The node agent: offers a machine to the servers, runs the allocations they place on it, and
//! tells how they fare.
//!
//! ```text
//!  heartbeat.rs ── register, heartbeat, ready ──► servers ◄── status.rs (batches, until acknowledged)
//!       │ stream of allocations                                   ▲
//!       ▼                                                         │ statuses
//!    node.rs ──one shell per allocation──► shell.rs ──────────────┘
//!                                            │ drives allocation_runner.rs (pure: task_runner.rs, restart.rs)
//!                                            ▼ driver/ ── executor/ (a process per run, outlives the agent)
//! ```
//! Invariants: the servers decide what runs, the agent never invents an allocation; tasks outlive
//! the agent; what the agent must not forget is on disk before it acts on it. With `simulate`, many
//! mock nodes share this process and none of the I/O.

// What comes from jobs, servers, tasks and files is added up here: a sum that does not fit must not
// end the agent, at each of its starts.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod allocation_runner;
pub mod beneath;
mod collected;
mod connection;
mod driver;
mod environment;
pub mod executor;
mod face;
mod files;
mod filled;
mod fingerprint;
mod health;
mod heartbeat;
mod interpolate;
pub mod machine;
pub mod meta;
pub mod node;
mod readiness;
mod restart;
mod run_limit;
mod settings;
pub mod shell;
mod shortage;
mod simulate;
pub mod spec;
pub mod state;
mod status;
mod task_runner;
#[cfg(test)]
mod testing;
pub mod time;

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, atomic::AtomicU64},
    time::Duration,
};

use anyhow::Context;
use ground::{
    open_files,
    rt::{self, JoinSet, Notify, Runtimes, watch},
    signals::{Asked, Signals},
};
use proto::v1;
use tokio::net::TcpListener;
use wire::rpc::transport::{GrpcTransport, Transport};

pub use self::state::{read_boot_id, run_directories};
use self::{
    connection::{Connection, Servers},
    driver::{Driver, Drivers},
    fingerprint::Fingerprint,
    heartbeat::Standing,
    meta::NodeMeta,
    node::LocalNode,
    readiness::{CheckTimer, Checks},
    shell::{Order, Shared},
    shortage::Shortages,
    state::{NodeIdentity, StateDirectory},
    status::{Outbox, send_statuses},
    time::Clock,
};
pub use self::{
    driver::mock::{Process, ProcessTable, RunId},
    executor::{RunSpec, main as executor_main},
    face::{Face, Own, Room, Serve, Shown},
    readiness::{AfterTask, Checked, ReadinessProbe, ReadinessSettings, ScriptedProbe},
    settings::{AgentSettings, ReservedResources, SettingsError},
};

/// In the state directory: what was set of the node's metadata.
const META_FILE: &str = "meta.json";
/// How long a thread for file work stays idle.
const THREAD_KEEP_ALIVE: Duration = Duration::from_hours(24);

/// Runs an agent until SIGTERM or SIGINT; SIGHUP calls `reload`. Blocks; has its own runtime.
pub fn run(settings: AgentSettings, serve: Serve, reload: impl Fn()) -> anyhow::Result<()> {
    // Threads for file work stay, for the time when no more can be had.
    let runtimes = Runtimes::start(Some(THREAD_KEEP_ALIVE)).context(open_files::NO_THREADS)?;
    // Each task that runs takes one.
    open_files::raise();
    let edge = runtimes.edge();
    let ended = runtimes.block_on(async {
        shortage::keep_threads();
        edge.within(shortage::keep_threads);
        let mut signals = Signals::listen().context("cannot listen for signals")?;
        let agent = Agent::start(settings, &edge, serve).await?;
        while signals.next().await == Asked::Reload {
            reload();
        }
        tracing::info!("the agent ends");
        agent.stop().await;
        Ok(())
    });
    runtimes.end(false);
    ended
}

/// A running agent. Dropping it is like killing it: its tasks run on under their executors.
#[derive(Debug)]
pub struct Agent {
    http_address: SocketAddr,
    node_id: fsm::NodeId,
    work: JoinSet<()>,
    node: Option<LocalHandle>,
    /// Looks at the machine as long as the agent lives; simulated ones lack nothing.
    _watch: Option<shortage::Watch>,
    /// Held last: nobody else may open the directory before everything has ended.
    _state: Option<Arc<StateDirectoryGuard>>,
}

/// Keeps the lock of a simulation's directory.
#[derive(Debug)]
struct StateDirectoryGuard(#[expect(dead_code, reason = "held for its lock")] StateDirectory);

struct LocalHandle {
    node: Arc<LocalNode>,
    stop_tasks: bool,
}

impl std::fmt::Debug for LocalHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalHandle").field("stop_tasks", &self.stop_tasks).finish_non_exhaustive()
    }
}

impl Agent {
    /// Starts an agent (or a simulation) in the present runtime, and its HTTP, which `serve`
    /// answers, on the threads of `edge`, so that no request holds up the heartbeats or a task.
    /// Returns when it serves HTTP; it may not be registered yet.
    pub async fn start(
        mut settings: AgentSettings,
        edge: &rt::Threads,
        serve: Serve,
    ) -> anyhow::Result<Self> {
        settings.validate()?;
        let transport = Arc::new(GrpcTransport::from_agents());
        let servers = Servers::new(&settings.servers, transport, settings.rpc_timeout)?;
        let (state, identity) = StateDirectory::open(&settings.data_dir)?;
        let listener = TcpListener::bind(settings.http_address)
            .await
            .with_context(|| format!("cannot listen on {}", settings.http_address))?;
        let http_address = listener.local_addr().context("the listener has no address")?;
        let listener = listener.into_std()?;
        let listener = edge.within(|| TcpListener::from_std(listener))?;
        let mut work = JoinSet::new();
        if let Some(nodes) = settings.simulate {
            let nodes = (nodes, http_address);
            simulate::spawn(&settings, &servers, &identity, state.boot_id, nodes, &mut work);
            edge.spawn_into(&mut work, serve(Face { listener, node: None }));
            let guard = Some(Arc::new(StateDirectoryGuard(state)));
            let node_id = fsm::NodeId(identity.node_id);
            return Ok(Self {
                http_address,
                node_id,
                work,
                node: None,
                _watch: None,
                _state: guard,
            });
        }
        let offered: Arc<[Driver]> =
            settings.drivers.iter().filter_map(|name| Driver::parse(name)).collect();
        let start = rt::random_id();
        let allocations = state.allocations();
        let filled = match settings.disk_mb {
            Some(_) => 0,
            None => {
                let allocations = allocations.clone();
                rt::run_blocking(move || filled::filled_bytes(&allocations)).await
            }
        };
        let found = fingerprint::fingerprint(&settings, (&allocations, filled), &offered);
        if settings.name.is_empty() {
            settings.name.clone_from(&found.host_name);
        }
        let reserved = &settings.reserved;
        let room = face::Room {
            cpu_mhz: found.cpu_mhz.saturating_sub(reserved.cpu_mhz),
            memory_mb: found.memory_mb.saturating_sub(reserved.memory_mb),
            disk_mb: found.disk_mb.saturating_sub(reserved.disk_mb),
        };
        let core_mhz = found.cpu_mhz.checked_div(u64::from(found.cores)).unwrap_or(0);
        let parts = NodeParts {
            start: Some(start),
            servers: Arc::clone(&servers),
            clock: Clock::new(),
            found,
            drivers: Drivers::new(offered),
            checks: settings.readiness.as_ref().map_or_else(Checks::none, |readiness| Checks {
                probe: Some(Arc::new(executor::CommandProbe::new(readiness))),
                interval: readiness.interval,
                after_task: readiness.after_task,
            }),
        };
        let (node, shared) =
            start_node(&settings, parts, &identity, state, http_address, &mut work)?;
        let watch = shared.shortages.watch(allocations, settings.free_bytes_min);
        let watch = watch.context(open_files::NO_THREADS)?;
        let own = face::Own {
            node: fsm::NodeId(identity.node_id),
            name: settings.name.clone(),
            region: settings.region.clone(),
            datacenter: settings.datacenter.clone(),
            node_class: settings.node_class.clone(),
            node_pool: settings.node_pool.clone(),
            room,
            core_mhz,
            servers,
            meta: Arc::clone(&shared.meta),
        };
        let shown = Shown { start, node: Arc::clone(&node), shared, own };
        edge.spawn_into(&mut work, serve(Face { listener, node: Some(shown) }));
        let handle = LocalHandle { node, stop_tasks: settings.stop_tasks_on_exit };
        Ok(Self {
            http_address,
            node_id: fsm::NodeId(identity.node_id),
            work,
            node: Some(handle),
            _watch: Some(watch),
            _state: None,
        })
    }

    /// Starts the agent of a simulated machine: it follows the servers as any other does, and
    /// serves no files.
    pub fn start_simulated(
        settings: AgentSettings,
        machine: SimulatedMachine,
    ) -> anyhow::Result<Self> {
        settings.validate()?;
        let servers = Servers::new(&settings.servers, machine.transport, settings.rpc_timeout)?;
        let (state, identity) = StateDirectory::open_in_boot(&settings.data_dir, machine.boot_id)?;
        let parts = NodeParts {
            start: None,
            servers,
            clock: Clock::of_machine(machine.up_ms),
            found: fingerprint::simulated(&settings),
            drivers: Drivers::simulated(machine.processes),
            checks: Checks { probe: machine.readiness, ..Checks::none() },
        };
        let mut work = JoinSet::new();
        let http_address = settings.http_address;
        let (node, _) = start_node(&settings, parts, &identity, state, http_address, &mut work)?;
        let node = Some(LocalHandle { node, stop_tasks: settings.stop_tasks_on_exit });
        let node_id = fsm::NodeId(identity.node_id);
        Ok(Self { http_address, node_id, work, node, _watch: None, _state: None })
    }

    /// Where logs and files are served.
    pub fn http_address(&self) -> SocketAddr {
        self.http_address
    }

    /// The node's id.
    pub fn node_id(&self) -> fsm::NodeId {
        self.node_id
    }

    /// Has the tasks of an allocation run anew. Returns when that is ordered, or why it is not;
    /// does not wait for their end.
    pub async fn restart_tasks(&self, allocation: fsm::AllocationId) -> Result<(), String> {
        let node = &self.node.as_ref().ok_or("simulated nodes take no orders")?.node;
        node.give(allocation, Order::Restart { task: None }).await.map(drop)
    }

    /// Ends the agent. Its tasks run on, unless the settings say that they end with it.
    pub async fn stop(mut self) {
        if let Some(local) = self.node.take().filter(|local| local.stop_tasks) {
            local.node.suspend().await;
        }
        self.work.shutdown().await;
    }
}

/// A machine that does not exist. Its directories do.
pub struct SimulatedMachine {
    /// Its way to the servers.
    pub transport: Arc<dyn Transport>,
    /// Another one after each boot.
    pub boot_id: [u8; 16],
    /// Milliseconds since then.
    pub up_ms: u64,
    /// What runs on it.
    pub processes: Arc<dyn ProcessTable>,
    /// None: always ready.
    pub readiness: Option<Arc<dyn ReadinessProbe>>,
}

/// What a node is made of besides its settings: real or simulated.
struct NodeParts {
    /// The nonce of this start, if the agent can be asked for it.
    start: Option<[u8; 16]>,
    servers: Arc<Servers>,
    clock: Clock,
    found: Fingerprint,
    drivers: Drivers,
    checks: Checks,
}

type Started = (Arc<LocalNode>, Arc<Shared>);

fn start_node(
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

/// What a node needs to be in touch with the servers.
struct SessionParts {
    registration: v1::RegisterRequest,
    connection: Arc<Connection>,
    outbox: Arc<Outbox>,
    clock: Clock,
    checks: Checks,
    shortages: Arc<Shortages>,
    meta: Arc<NodeMeta>,
}

/// Spawns what keeps a node in touch with the servers.
fn stand<N: heartbeat::Node>(node: Arc<N>, parts: SessionParts, work: &mut JoinSet<()>) {
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

/// What every registration of these settings has in common.
fn registration(
    settings: &AgentSettings,
    identity: &NodeIdentity,
    boot_id: [u8; 16],
    drivers: &[Driver],
) -> v1::RegisterRequest {
    let drivers = drivers.iter().map(|driver| {
        let healthy = v1::Driver {
            detected: true,
            healthy: true,
            description: "Healthy".to_owned(),
            attributes: [(format!("driver.{}", driver.name()), "1".to_owned())].into(),
        };
        (driver.name().to_owned(), healthy)
    });
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
        drivers: drivers.collect(),
        version: ground::version::QUORATE.to_owned(),
        allocations_max: settings.allocations_max,
        instance_id: settings.instance.map(|own| own.id.0.to_vec().into()).unwrap_or_default(),
        instance_token: settings.instance.map(|own| own.token.to_vec().into()).unwrap_or_default(),
        ..Default::default()
    }
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
    registration.resources = Some(v1::NodeResources {
        cpu_mhz: found.cpu_mhz,
        memory_mb: found.memory_mb,
        disk_mb: found.disk_mb,
        cores: found.cores,
        dynamic_port_min: u32::from(settings.dynamic_port_min),
        dynamic_port_max: u32::from(settings.dynamic_port_max),
        address: found.address.clone(),
    });
    // An address that means "all of them" is no address to connect to.
    registration.http_address = if http_address.ip().is_unspecified() {
        fingerprint::with_port(&found.address, http_address.port())
    } else {
        http_address.to_string()
    };
    let own_address = registration.http_address.clone();
    registration.attributes.insert("unique.advertise.address".to_owned(), own_address);
}

/// The node's properties as jobs refer to them.
fn node_names(
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
