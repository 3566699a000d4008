//! Real cores over loopback sockets, each on a [`FaultDisk`], for tests.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{net::SocketAddr, path::PathBuf, sync::Arc, time::Duration};

use fsm::{
    JobKind, Reply,
    settings::{Namespace, UpsertNamespace},
};
use ground::{
    caller::{Caller, Way},
    disk::{Disk, fault::FaultDisk},
};
use http_api::HttpOptions;
use leader::{ServicesConfig, broker::BrokerConfig};
use raft::storage::{shadow, wal};
use server::{Core, Parts, RaftTiming, Settings};
use tokio::{net::TcpListener, runtime::Runtime};
use wire::{
    api::{Api, ApiError, ReadMode},
    rpc::transport::GrpcTransport,
};

use super::{Places, RunningServer, Sockets};

pub(super) const PATIENCE: Duration = Duration::from_mins(1);
/// Asks the cores of tests, without a socket.
pub(super) static CALLER: Caller = Caller::anonymous(Way::Grpc, None);
pub(super) const FREE_BYTES_MIN: u64 = 1 << 20;

pub(super) struct Servers {
    /// `None` only during the drop.
    runtime: Option<Runtime>,
    pub(super) disks: Vec<FaultDisk>,
    running: Vec<RunningServer>,
    equip: Equip,
}

/// What is special about a server, by its number, before it starts.
type Equip = Box<dyn Fn(usize, &mut Settings, &mut Parts)>;

impl Servers {
    pub(super) fn start(count: usize) -> Self {
        Self::start_with(count, Box::new(|_, _, _| {}))
    }

    /// Servers that are made another way than usual.
    pub(super) fn start_with(count: usize, equip: Equip) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let runtime = runtime.unwrap();
        let disks: Vec<FaultDisk> = (0..count).map(|seed| FaultDisk::new(seed as u64)).collect();
        let running = runtime.block_on(async {
            let mut sockets = Vec::new();
            for _ in 0..count {
                let http = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let rpc = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sockets.push(Sockets { http, rpc });
            }
            let address = |sockets: &Sockets| sockets.rpc.local_addr().unwrap().to_string();
            let addresses: Vec<String> = sockets.iter().map(address).collect();
            let mut running = Vec::new();
            for (number, sockets) in sockets.into_iter().enumerate() {
                let mut settings = settings(number, &addresses);
                let mut parts = parts(&disks[number]);
                equip(number, &mut settings, &mut parts);
                let options = HttpOptions::default();
                let server =
                    RunningServer::on(settings, parts, sockets, (options, &Places::HERE), None);
                running.push(Box::pin(server).await.unwrap());
            }
            running
        });
        Self { runtime: Some(runtime), disks, running, equip }
    }

    /// Stops a server, runs `meanwhile`, and starts it again on the same disk and addresses.
    pub(super) fn restart(&mut self, server: usize, meanwhile: impl FnOnce(&Self)) {
        let addresses = self.running[0].core.settings.bootstrap_expect.clone();
        let old = self.running.remove(server);
        let (http, rpc) = (old.http, old.rpc);
        self.runtime().block_on(old.stop());
        meanwhile(self);
        let new = self.runtime().block_on(async {
            let http = TcpListener::bind(http).await.unwrap();
            let rpc = TcpListener::bind(rpc).await.unwrap();
            let mut settings = settings(server, &addresses);
            let mut parts = parts(&self.disks[server]);
            (self.equip)(server, &mut settings, &mut parts);
            let sockets = Sockets { http, rpc };
            let options = (HttpOptions::default(), &Places::HERE);
            let server = RunningServer::on(settings, parts, sockets, options, None);
            Box::pin(server).await.unwrap()
        });
        self.running.insert(server, new);
    }

    pub(super) fn stop_within(&mut self, server: usize, limit: Duration) -> anyhow::Result<()> {
        let server = self.running.remove(server);
        self.runtime().block_on(server.stop_within(limit))
    }

    pub(super) fn runtime(&self) -> &Runtime {
        self.runtime.as_ref().expect("taken by the drop only")
    }

    /// Where a server's gRPC listens.
    pub(super) fn rpc(&self, server: usize) -> SocketAddr {
        self.running[server].rpc
    }

    pub(super) fn core(&self, server: usize) -> Arc<Core> {
        Arc::clone(&self.running[server].core)
    }

    pub(super) fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let end = std::time::Instant::now() + PATIENCE;
        loop {
            if let Some(found) = look() {
                return found;
            }
            assert!(std::time::Instant::now() < end, "not within {PATIENCE:?}: {what}");
            self.runtime().block_on(async { tokio::time::sleep(Duration::from_millis(20)).await });
        }
    }

    pub(super) fn leader_among(&self, servers: &[usize]) -> usize {
        self.wait("a leader", || {
            servers.iter().copied().find(|server| self.running[*server].core.leading().is_some())
        })
    }

    pub(super) fn write(&self, server: usize, name: &str) -> Result<u64, ApiError> {
        self.write_within(server, name, PATIENCE)
    }

    pub(super) fn write_within(
        &self,
        server: usize,
        name: &str,
        within: Duration,
    ) -> Result<u64, ApiError> {
        let namespace = Namespace { name: name.into(), ..Namespace::default() };
        let core = self.core(server);
        let written = self.runtime().block_on(core.write(
            &CALLER,
            UpsertNamespace { namespace }.into(),
            None,
            within,
        ))?;
        assert_eq!(written.reply, Reply::Done);
        Ok(written.index)
    }

    pub(super) fn has(&self, server: usize, name: &str) -> bool {
        let core = self.core(server);
        let read = core.read(&CALLER, ReadMode::Linearizable, 0, PATIENCE);
        let snapshot = self.runtime().block_on(read).unwrap();
        snapshot.state.namespaces().get(&name.into()).is_some()
    }

    /// Leaves less free space than the watermark, but enough that no write fails.
    pub(super) fn fill(&self, server: usize) {
        let disk = &self.disks[server];
        disk.set_capacity(Some(disk.used_bytes() + FREE_BYTES_MIN / 2));
    }

    pub(super) fn why_failed(&self, server: usize) -> String {
        let failed = self.running[server].core.failed();
        self.wait("the server ends itself", || failed.borrow().clone())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for disk in &self.disks {
            disk.set_capacity(None);
            // The drop would wait for a thread that hangs in a disk call.
            disk.kill();
        }
        for server in std::mem::take(&mut self.running) {
            server.abort();
        }
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn settings(number: usize, addresses: &[String]) -> Settings {
    Settings {
        name: format!("s{number}"),
        region: "global".to_owned(),
        datacenter: "dc1".to_owned(),
        data_directory: PathBuf::from("/data"),
        rpc_address: addresses[number].clone(),
        http_address: "127.0.0.1:1".to_owned(),
        bootstrap_expect: addresses.to_vec(),
        join: Vec::new(),
        rejoin_after_rollback: true,
        timing: RaftTiming { heartbeat_ms: 250, election_ms_min: 1_000, election_ms_max: 1_500 },
        workers: 1,
        kinds: JobKind::ALL.to_vec(),
        leader_share: 1_000,
        services: ServicesConfig {
            broker: BrokerConfig { evaluations_max: 1_000, ..BrokerConfig::default() },
            ..ServicesConfig::default()
        },
        snapshot_log_bytes: 1 << 30,
        log_entries_kept: 1_000,
        free_bytes_min: FREE_BYTES_MIN,
        boot: None,
    }
}

fn parts(disk: &FaultDisk) -> Parts {
    let disk: Arc<dyn Disk> = Arc::new(disk.clone());
    let engine_disk = Arc::clone(&disk);
    Parts {
        disk,
        transport: Arc::new(GrpcTransport::between_servers(std::collections::BTreeMap::new())),
        open_engine: Arc::new(move |path| shadow::open_twin(Arc::clone(&engine_disk), path)),
        wal: wal::Options {
            segment_bytes_first: 16 << 10,
            segment_bytes_max: 64 << 10,
            ..wal::Options::default()
        },
        snapshot_piece_bytes: raft::network::SNAPSHOT_PIECE_BYTES,
        publish_entries_max: raft::state_machine::PUBLISH_ENTRIES_MAX,
        providers: Arc::default(),
        passes: ground::rt::Threads::HERE,
    }
}
