//! A server process: configuration in, sockets open, signals out. It puts the edges around a core.

#[cfg(test)]
mod capacity_tests;
#[cfg(test)]
mod cluster_tests;
#[cfg(test)]
mod disk_tests;
#[cfg(test)]
mod fuzz_tests;
#[cfg(test)]
mod host_tests;
#[cfg(test)]
mod hostile_tests;
mod incoming;
#[cfg(test)]
mod testing;

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context;
use futures_util::FutureExt;
use ground::{
    disk::{Disk, RealDisk},
    open_files,
    rt::{Runtimes, Threads},
    server_name::ServerName,
    signals::{Asked, Signals},
};
use proto::capacity::v1::capacity_server::CapacityServer;
use proto::v1::{
    agent_server::AgentServer, cluster_server::ClusterServer, raft_server::RaftServer,
    scheduler_server::SchedulerServer,
};
use raft::storage::{lock::DirectoryLock, shadow, wal};
use server::{
    Core, Parts, Providers, Settings,
    grpc::{
        agent::AgentService,
        capacity::{self, CapacityService},
        cluster::ClusterService,
        gate::{self, Gate},
        scheduler::SchedulerService,
    },
    provider::Provider as _,
};
use tokio::{net::TcpListener, sync::Semaphore, task::JoinHandle};
use tonic::{service::interceptor::InterceptedService, transport::Server};
use wire::rpc::{
    generation,
    transport::{GrpcTransport, MESSAGE_BYTES_MAX},
};

use self::incoming::Sorted;
pub use crate::{
    config::{ProviderConfig, ServerConfig},
    provider::{self, process::host_boot},
    reload::ServerReload,
};
pub use ground::telemetry::Exporter;
pub use http_api::{
    HttpOptions, rival,
    serve::{self, Door},
};

/// How long connections may take to end when the server stops.
const DRAIN: Duration = Duration::from_secs(3);
/// How long a clean stop may take: a disk that hangs would make it wait for ever. What was not
/// written is written again from the log at the next start. Less than the 90 s after which systemd
/// kills (`DefaultTimeoutStopSec`), so that the reason is logged.
const STOP_MAX: Duration = Duration::from_mins(1);

/// Largest message of a call that carries no log and no plan, bytes. A status alone may be larger
/// than tonic's 4 MiB: 1,000 tasks with ten events each.
const CALL_BYTES_MAX: usize = 16 << 20;
/// Streams of a connection at a time; a client makes the others wait.
const STREAMS_MAX: u32 = 1_024;
/// Names and values of a call's headers, bytes.
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// What a connection takes in before it is read, bytes of a stream: much for servers, whose
/// messages are large, little for others, of whom there are many.
const PEER_WINDOW_BYTES: u32 = 4 << 20;
const WINDOW_BYTES: u32 = 512 << 10;

/// A server with its sockets.
pub struct RunningServer {
    pub core: Arc<Core>,
    /// The address on which HTTP listens.
    pub http: SocketAddr,
    /// The address on which gRPC listens.
    pub rpc: SocketAddr,
    tasks: Vec<JoinHandle<()>>,
    _lock: Option<DirectoryLock>,
}

/// Threads for what comes from outside.
#[derive(Clone, Debug)]
pub struct Places {
    /// For connections, and requests that cost little.
    pub edge: Threads,
    /// For requests that cost much, and passes of the scheduler.
    pub heavy: Threads,
}

impl Places {
    /// All on the runtime of whoever asks; for tests.
    pub const HERE: Self = Self { edge: Threads::HERE, heavy: Threads::HERE };
}

/// Bound sockets of a server.
struct Sockets {
    http: TcpListener,
    rpc: TcpListener,
}

fn providers(config: &ServerConfig) -> anyhow::Result<Providers> {
    let open = |one: &ProviderConfig| {
        let opened = provider::open(one).map_err(|why| anyhow::anyhow!(why))?;
        Ok((one.name.as_str().into(), opened))
    };
    config.providers.iter().map(open).collect()
}

impl RunningServer {
    /// Opens the data directory and the sockets, and serves. Joining the cluster goes on in the
    /// background.
    pub async fn start(config: &ServerConfig, places: &Places) -> anyhow::Result<Self> {
        std::fs::create_dir_all(&config.settings.data_directory).with_context(|| {
            format!("data directory {}", config.settings.data_directory.display())
        })?;
        let lock = DirectoryLock::acquire(&config.settings.data_directory)?;
        let http = listen(config.http_address, "http.address").await?;
        let rpc = listen(config.rpc_address, "rpc.address").await?;
        let http_address = http.local_addr()?;
        let dial = config.dial.iter().map(|(from, to)| (from.to_string(), to.to_string()));
        let parts = Parts {
            disk: real_disk(),
            transport: Arc::new(GrpcTransport::between_servers(dial.collect())),
            open_engine: Arc::new(shadow::open_sled),
            wal: wal::Options::default(),
            snapshot_piece_bytes: raft::network::SNAPSHOT_PIECE_BYTES,
            publish_entries_max: raft::state_machine::PUBLISH_ENTRIES_MAX,
            providers: Arc::new(providers(config)?),
            passes: places.heavy.clone(),
        };
        let options = HttpOptions {
            request_bytes_max: config.request_bytes_max,
            region: config.settings.region.clone(),
            datacenter: config.settings.datacenter.clone(),
            heavy: places.heavy.clone(),
            ..HttpOptions::default()
        };
        let settings = Settings {
            http_address: http_address.to_string(),
            boot: host_boot().ok(),
            ..config.settings.clone()
        };
        let sockets = Sockets { http, rpc };
        Box::pin(Self::on(settings, parts, sockets, (options, places), Some(lock))).await
    }

    /// Serves on these parts and sockets.
    async fn on(
        settings: Settings,
        parts: Parts,
        sockets: Sockets,
        (options, places): (HttpOptions, &Places),
        lock: Option<DirectoryLock>,
    ) -> anyhow::Result<Self> {
        let (http, rpc) = (sockets.http.local_addr()?, sockets.rpc.local_addr()?);
        let core = Box::pin(Core::start(settings, parts)).await?;
        let (http_socket, rpc_socket) = (sockets.http.into_std()?, sockets.rpc.into_std()?);
        let edge = &places.edge;
        let (to_peers, to_others, sorting) = edge.within(|| {
            let listener = TcpListener::from_std(rpc_socket)?;
            let places_max = rpc_connections_max(open_files::max());
            io::Result::Ok(incoming::sort(Door::new(listener, places_max, "gRPC")))
        })?;
        let http_listener = edge.within(|| TcpListener::from_std(http_socket))?;
        let tasks = vec![
            tokio::spawn(serve_peers(Arc::clone(&core), to_peers)),
            edge.spawn(sorting),
            edge.spawn(serve_rpc(Arc::clone(&core), to_others)),
            edge.spawn(serve_http(Arc::clone(&core), http_listener, options)),
            tokio::spawn(join(Arc::clone(&core))),
        ];
        Ok(Self { core, http, rpc, tasks, _lock: lock })
    }

    /// Stops cleanly.
    pub async fn stop(self) {
        self.core.stop().await;
        for mut task in self.tasks {
            if tokio::time::timeout(DRAIN, &mut task).await.is_err() {
                task.abort();
            }
        }
    }

    /// Stops cleanly; an error if that takes longer than the limit. No acknowledged write is lost
    /// then: it is in the log.
    async fn stop_within(self, limit: Duration) -> anyhow::Result<()> {
        let directory = self.core.settings.data_directory.clone();
        let mut stop = Box::pin(self.stop());
        if tokio::time::timeout(limit, &mut stop).await.is_err() {
            // A thread may hang in a disk call: do not wait for it.
            let _left_as_it_is = std::mem::ManuallyDrop::new(stop);
            anyhow::bail!(
                "the server did not stop within {limit:?} and ends as it is, as after a crash: nothing that was acknowledged is lost. The disk \
                 under {} may hang: look at it before the next start",
                directory.display()
            );
        }
        Ok(())
    }

    /// Ends at once without handing anything over, as far as a process can do that to itself; for
    /// tests.
    pub fn abort(self) {
        for task in self.tasks {
            task.abort();
        }
    }
}

#[cfg(not(feature = "faults"))]
fn real_disk() -> Arc<dyn Disk> {
    Arc::new(RealDisk)
}

#[cfg(feature = "faults")]
fn real_disk() -> Arc<dyn Disk> {
    ground::disk::controlled::ControlledDisk::from_environment(Arc::new(RealDisk))
}

async fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{key} = \"{address}\" cannot be listened on: is it taken?"))
}

async fn stopped(core: &Core) {
    ground::rt::until_true(&mut core.stopping()).await;
}

/// Serves Raft, and the probes that go with it, to the other servers.
async fn serve_peers(core: Arc<Core>, connections: Sorted) {
    let (check, gate) = (generation::Check::default(), Gate::new(gate::OF_PEERS));
    let raft = RaftServer::new(core.raft_service()).max_decoding_message_size(MESSAGE_BYTES_MAX);
    let cluster =
        ClusterServer::new(ClusterService(core.clone())).max_decoding_message_size(CALL_BYTES_MAX);
    let served = server(PEER_WINDOW_BYTES)
        .add_service(InterceptedService::new(gate.before(raft, MESSAGE_BYTES_MAX), check.clone()))
        .add_service(InterceptedService::new(gate.before(cluster, CALL_BYTES_MAX), check))
        .serve_with_incoming_shutdown(connections, stopped(&core))
        .await;
    ended(&core, served);
}

/// Serves agents, workers, and clients of gRPC.
async fn serve_rpc(core: Arc<Core>, connections: Sorted) {
    let (check, gate) = (generation::Check::default(), Gate::new(gate::OF_CLIENTS));
    let scheduler = SchedulerServer::new(SchedulerService(core.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let cluster = ClusterServer::new(ClusterService(core.clone()))
        .max_decoding_message_size(MESSAGE_BYTES_MAX);
    let agents = AgentServer::new(AgentService::new(core.clone(), Some(Arc::new(rival::start_at))))
        .max_decoding_message_size(CALL_BYTES_MAX);
    let served = server(WINDOW_BYTES)
        .add_service(InterceptedService::new(
            gate.before(scheduler, MESSAGE_BYTES_MAX),
            check.clone(),
        ))
        .add_service(InterceptedService::new(
            gate.before(cluster, MESSAGE_BYTES_MAX),
            check.clone(),
        ))
        .add_service(InterceptedService::new(gate.before(agents, CALL_BYTES_MAX), check))
        // For clients that know no generation.
        .add_service(
            gate.before(
                CapacityServer::new(CapacityService::new(core.clone(), capacity::STREAMS_MAX))
                    .max_decoding_message_size(capacity::MESSAGE_BYTES_MAX),
                capacity::MESSAGE_BYTES_MAX,
            ),
        )
        .serve_with_incoming_shutdown(connections, stopped(&core))
        .await;
    ended(&core, served);
}

/// A gRPC server whose connections take in so many bytes before they are read.
fn server(window_bytes: u32) -> Server {
    Server::builder()
        .initial_stream_window_size(window_bytes)
        .initial_connection_window_size(2 * window_bytes)
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
}

fn ended(core: &Core, served: Result<(), tonic::transport::Error>) {
    if let Err(error) = served {
        core.lifecycle.fail(format!("gRPC is not served any more: {error}"));
    }
}

async fn serve_http(core: Arc<Core>, listener: TcpListener, options: HttpOptions) {
    let router = http_api::router(core.clone(), options);
    let door = Door::new(listener, http_connections_max(open_files::max()), "HTTP");
    serve::serve(door, router, async move { stopped(&core).await }).await;
}

/// Clients may use half of the files that this process may have open, so that the log, the state
/// and the peers always find some free.
fn http_connections_max(open_files_max: u64) -> usize {
    let half = usize::try_from(open_files_max / 2).unwrap_or(usize::MAX);
    half.clamp(1, serve::CONNECTIONS_MAX)
}

/// Servers, agents and workers may use a quarter of the open files. The last quarter is for the
/// log, the state, and the connections that this server makes.
fn rpc_connections_max(open_files_max: u64) -> usize {
    usize::try_from(open_files_max / 4).unwrap_or(usize::MAX).clamp(8, Semaphore::MAX_PERMITS)
}

async fn join(core: Arc<Core>) {
    if let Err(error) = core.join_cluster().await {
        core.lifecycle.fail(format!("{error:#}"));
    }
}

/// Runs a server until it is told to stop or cannot go on; its traces go to the exporter's
/// collector.
pub fn run(reload: &ServerReload, exporter: Option<Exporter>) -> anyhow::Result<()> {
    use_small_pages();
    let runtimes = Runtimes::start(None).context(open_files::NO_THREADS)?;
    let places = Places { edge: runtimes.edge(), heavy: runtimes.heavy() };
    let ended = runtimes.block_on(run_until_stopped(reload, exporter, places).boxed());
    // A thread may hang in a disk call: do not wait for it.
    runtimes.end(ended.is_err());
    ended
}

/// Has the kernel give memory in pages of 4 KiB alone. With those of 2 MiB a server at rest held
/// twice the memory, and zeroing them was an eighth of the processor time of a run with 40,000
/// placements (docs/performance.md). Child processes, which are the programs of providers, inherit
/// it.
fn use_small_pages() {
    if let Err(error) = rustix::thread::disable_transparent_huge_pages(true) {
        tracing::debug!(%error, "the kernel goes on giving memory in huge pages");
    }
}

async fn run_until_stopped(
    reload: &ServerReload,
    exporter: Option<Exporter>,
    places: Places,
) -> anyhow::Result<()> {
    let config = reload.started();
    let exporting = exporter.map(Exporter::start);
    let mut signals = Signals::listen()?;
    open_files::raise();
    while serve(config, &places, reload, &mut signals).await? == Ended::ToStartAnew {}
    if let Some(exporting) = exporting {
        exporting.stop().await;
    }
    tracing::info!("stopped");
    Ok(())
}

/// How a server ended that could stop cleanly.
#[derive(PartialEq, Eq)]
enum Ended {
    Stopped,
    /// Its data directory was retired: the next start empties it, and joins under another id.
    ToStartAnew,
}

async fn serve(
    config: &ServerConfig,
    places: &Places,
    reload: &ServerReload,
    signals: &mut Signals,
) -> anyhow::Result<Ended> {
    let server = Box::pin(RunningServer::start(config, places)).await?;
    tracing::info!(name = config.settings.name, http = %server.http, rpc = %server.rpc,
        server = %ServerName(server.core.id), "server started");
    let mut failed = server.core.failed();
    let why = loop {
        tokio::select! {
            asked = signals.next() => match asked {
                Asked::Stop => break None,
                Asked::Reload => reload.again(|config| {
                    let provider = server.core.provider(&config.name);
                    provider.is_some_and(|provider| provider.reload(&config.kind))
                }),
            },
            why = failed.wait_for(Option::is_some) => break why.ok().and_then(|why| why.clone()),
        }
    };
    if why.is_some() && server.core.starts_anew() {
        server.stop_within(STOP_MAX).await?;
        return Ok(Ended::ToStartAnew);
    }
    if let Some(why) = why {
        // Nothing more may be written or acknowledged: no leadership transfer, no clean close, no
        // waiting for a thread that hangs in a disk call.
        let _left_as_it_is = std::mem::ManuallyDrop::new(server);
        anyhow::bail!("{why}");
    }
    tracing::info!("stopping");
    server.stop_within(STOP_MAX).await?;
    Ok(Ended::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_get_half_of_the_open_files() {
        assert_eq!(http_connections_max(1_024), 512);
        assert_eq!(http_connections_max(u64::MAX), serve::CONNECTIONS_MAX);
        assert_eq!(http_connections_max(1), 1);
    }
}
