//! The node agent: offers a machine to the servers, runs the allocations they place on it, and
//! reports their statuses.
//!
//! ```text
//!  session/ ── register, heartbeat, ready ──► servers ◄── session/status.rs (batches, until acknowledged)
//!       │ stream of allocations                                   ▲
//!       ▼                                                         │ statuses
//!    node/local.rs ──one shell per allocation──► node/shell.rs ───┘
//!                                                 │ drives allocation/ and task/ (pure state machines)
//!                                                 ▼ stage/, driver/ ── executor/ (a process per run, outlives the agent)
//! ```
//! Invariants: the servers decide what runs, the agent never invents an allocation; tasks outlive
//! the agent; what the agent must not forget is on disk before it acts on it. With `simulate`, many
//! mock nodes share this process and none of the I/O.

// What comes from jobs, servers, tasks and files is added up here: a sum that does not fit must not
// end the agent, at each of its starts.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod allocation;
mod driver;
pub mod executor;
pub mod machine;
pub mod node;
pub mod session;
mod stage;
mod task;
#[cfg(test)]
mod testing;
pub mod time;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use ground::{
    open_files,
    rt::{self, JoinSet, Runtimes},
    signals::{Asked, Signals},
};
use tokio::net::TcpListener;
use wire::rpc::transport::{GrpcTransport, Transport};

use self::{
    allocation::state::StateDirectory,
    driver::Drivers,
    machine::{filled, shortage},
    node::{
        LocalNode, fingerprint,
        shell::Order,
        simulate,
        start::{NodeParts, start_node},
    },
    session::{connection::Servers, probe::CommandProbe, readiness::Checks},
    time::Clock,
};
pub use self::{
    allocation::state::run_directories,
    driver::{
        driver_keys,
        mock::{Process, ProcessTable, RunId},
    },
    executor::{RunSpec, main as executor_main},
    machine::boot::read_boot_id,
    node::{
        Face, Own, Room, Serve, Shown,
        settings::{AgentSettings, NODES_MAX, ReservedResources, SettingsError},
    },
    session::{
        connection::AddressError,
        readiness::{AfterTask, Checked, ReadinessProbe, ReadinessSettings, ScriptedProbe},
    },
};

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
    /// Starts an agent in the present runtime, or many simulated ones. `serve` serves the agent's
    /// HTTP, on the threads of `edge`, so that no request holds up a heartbeat or a task. Returns
    /// when HTTP is served; the node may not be registered yet.
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
        let start = rt::random_id();
        let allocations = state.allocations();
        let filled = match settings.disk_mb {
            Some(_) => 0,
            None => {
                let allocations = allocations.clone();
                rt::run_blocking(move || filled::filled_bytes(&allocations)).await
            }
        };
        let found = fingerprint::fingerprint(&settings, (&allocations, filled));
        if settings.name.is_empty() {
            settings.name.clone_from(&found.host_name);
        }
        let reserved = &settings.reserved;
        let room = Room {
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
            drivers: Drivers::named(&settings.drivers),
            checks: settings.readiness.as_ref().map_or_else(Checks::none, |readiness| Checks {
                probe: Some(Arc::new(CommandProbe::new(readiness))),
                interval: readiness.interval,
                after_task: readiness.after_task,
            }),
        };
        let (node, shared) =
            start_node(&settings, parts, &identity, state, http_address, &mut work)?;
        let watch = shared.shortages.watch(allocations, settings.free_bytes_min);
        let watch = watch.context(open_files::NO_THREADS)?;
        let own = Own {
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
