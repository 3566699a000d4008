//! The server core: Raft, state, leadership and workers of one server, with nothing of sockets or processes in it, so that a simulation runs
//! several of them in one thread.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context;
use fsm::{Command, Index, RequestId};
use futures_util::future::Either;
use leader::ServicesConfig;
use openraft::SnapshotPolicy;

use super::{
    identity::{self, Identity, format_cluster_id, parse_cluster_id},
    leadership::LeaderServices,
    members::Heard,
};
use crate::{
    api::ApiError,
    clock::Clock,
    disk::{Disk, watched::DiskWatch},
    published::StateCell,
    raft::{
        Raft, ServerId, WatchReceiver,
        log_store::LogStore,
        network::Network,
        service::{LeaderContact, RaftService},
        stores::Stores,
    },
    rpc::transport::Transport,
    rt::{self, watch},
    storage::{
        shadow::{OpenEngine, Shadow, ShadowLag},
        snapshot_file::SnapshotDirectory,
        wal::{self, Wal, WalThread, WalWriter},
    },
};

/// Between two looks at whether a leader was heard, after the start.
const RECOVERING_LOOK: Duration = Duration::from_millis(100);

/// Timing of Raft, ms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RaftTiming {
    /// Between heartbeats of a leader.
    pub heartbeat_ms: u64,
    /// Shortest election timeout.
    pub election_ms_min: u64,
    /// Longest election timeout.
    pub election_ms_max: u64,
}

/// What a server core is told.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Name, unique in the cluster.
    pub name: String,
    /// Region.
    pub region: String,
    /// Datacenter.
    pub datacenter: String,
    /// Where everything is kept.
    pub data_directory: PathBuf,
    /// Advertised gRPC address.
    pub rpc_address: String,
    /// HTTP address as told to others.
    pub http_address: String,
    /// Advertised gRPC addresses of all servers of a cluster to be.
    pub bootstrap_expect: Vec<String>,
    /// Servers of a running cluster to join.
    pub join: Vec<String>,
    /// Raft timing.
    pub timing: RaftTiming,
    /// Scheduling workers.
    pub workers: usize,
    /// The machines that run where this server leads.
    pub services: ServicesConfig,
    /// Log bytes after which a snapshot is written.
    pub snapshot_log_bytes: u64,
    /// Log entries that stay behind a snapshot.
    pub log_entries_kept: u64,
    /// Free space below which writes are turned away.
    pub free_bytes_min: u64,
}

/// What a server core stands on: real or simulated.
#[derive(Clone)]
pub struct Parts {
    /// Files.
    pub disk: Arc<dyn Disk>,
    /// Peers.
    pub transport: Arc<dyn Transport>,
    /// The engine of the state on disk.
    pub open_engine: OpenEngine,
    /// Sizes of the log.
    pub wal: wal::Options,
    /// Longest piece of a snapshot in one message, bytes.
    pub snapshot_piece_bytes: u64,
    /// Entries that are applied before their state is published.
    pub publish_entries_max: usize,
}

/// A running server core.
pub struct Core {
    /// What it was told.
    pub settings: Settings,
    /// Its number.
    pub id: ServerId,
    pub(super) cluster: Arc<OnceLock<[u8; 16]>>,
    /// Its Raft node.
    pub raft: Raft,
    /// Its state.
    pub cell: Arc<StateCell>,
    /// Its clocks.
    pub clock: Clock,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) shadow: Shadow,
    pub(super) wal: Wal,
    /// What opening the log found.
    pub log_recovery: wal::Recovery,
    pub(super) snapshots: SnapshotDirectory,
    pub(super) contact: Arc<LeaderContact>,
    leadership: RwLock<Option<Arc<LeaderServices>>>,
    stopping: watch::Sender<bool>,
    failed: watch::Sender<Option<String>>,
    recovered: watch::Sender<bool>,
    pub(super) reports: super::reports::Reports,
    pub(super) read_rounds: super::read_rounds::ReadRounds,
    pub(super) worker_stats: super::worker::WorkerStats,
    hold_apply: watch::Sender<bool>,
    wal_thread: std::sync::Mutex<Option<WalThread>>,
    /// Why this server takes no writes: its disk is nearly full.
    pub(super) disk_full: watch::Sender<Option<String>>,
    /// The log's disk has not answered for a while.
    pub(super) disk_hangs: watch::Sender<bool>,
    /// What each peer last answered to a probe.
    pub(super) heard: std::sync::Mutex<BTreeMap<ServerId, Heard>>,
}

impl Core {
    /// Opens the data directory and starts Raft and the background tasks. The server takes part in nothing until [`Self::join_cluster`] is done.
    pub async fn start(settings: Settings, parts: Parts) -> anyhow::Result<Arc<Self>> {
        let directory = settings.data_directory.clone();
        parts.disk.create_dir_all(&directory)?;
        super::digests::refuse_diverged(&*parts.disk, &directory)?;
        let identity = identity::load(&*parts.disk, &directory, &settings.rpc_address)?;
        let cluster = Arc::new(OnceLock::new());
        if let Some(id) = &identity.cluster_id {
            let id = parse_cluster_id(id)?;
            cluster.get_or_init(|| id);
        }
        let stores = Stores::open(&parts.disk, &parts.open_engine, parts.wal, &directory).await?;
        let Stores { shadow, snapshots, wal, writer, recovery, log_calls, .. } = stores;
        let (mut machine, hold_apply) = (stores.machine, stores.hold_apply);
        let is_first = settings.bootstrap_expect.iter().min() == Some(&settings.rpc_address);
        machine.set_diverging(is_first);
        machine.set_publish_entries_max(parts.publish_entries_max);
        let wal_thread = start_writer(wal.clone(), writer, &parts.disk, &log_calls)?;
        let cell = Arc::clone(machine.cell());
        let network = Network {
            id: identity.server_id,
            cluster: Arc::clone(&cluster),
            transport: Arc::clone(&parts.transport),
            disk: Arc::clone(&parts.disk),
            snapshot_piece_bytes: parts.snapshot_piece_bytes,
        };
        let raft = Raft::new(
            identity.server_id,
            Arc::new(raft_config(&settings)?),
            network,
            LogStore::new(wal.clone()),
            machine,
        )
        .await
        .map_err(|error| anyhow::anyhow!("raft does not start: {error}"))?;
        let (reports, report_queue) = super::reports::channel();
        let (read_rounds, read_queue) = super::read_rounds::channel();
        let clock = Clock::default();
        let core = Arc::new(Self {
            id: identity.server_id,
            cluster,
            raft,
            cell,
            clock,
            contact: Arc::new(LeaderContact::new(clock)),
            disk: parts.disk,
            transport: parts.transport,
            shadow,
            wal,
            log_recovery: recovery,
            snapshots,
            leadership: RwLock::new(None),
            stopping: watch::channel(false).0,
            failed: watch::channel(None).0,
            recovered: watch::channel(false).0,
            reports,
            read_rounds,
            worker_stats: super::worker::WorkerStats::default(),
            hold_apply,
            wal_thread: std::sync::Mutex::new(wal_thread),
            disk_full: watch::channel(None).0,
            disk_hangs: watch::channel(false).0,
            heard: std::sync::Mutex::default(),
            settings,
        });
        core.start_tasks(report_queue, read_queue);
        super::watchdog::start(&core, log_calls)?;
        Ok(core)
    }

    fn start_tasks(
        self: &Arc<Self>,
        report_queue: super::reports::Queue,
        read_queue: super::read_rounds::Queue,
    ) {
        rt::spawn(super::leadership::watch(Arc::clone(self)));
        rt::spawn(watch_recovery(Arc::clone(self)));
        rt::spawn(Arc::clone(self).keep_contact());
        rt::spawn(super::reports::run(Arc::clone(self), report_queue));
        rt::spawn(super::read_rounds::run(Arc::clone(self), read_queue));
        rt::spawn(super::housekeeping::run(Arc::clone(self)));
        rt::spawn(super::bootstrap::rejoin_when_removed(Arc::clone(self)));
        rt::spawn(super::digests::run(Arc::clone(self)));
        for number in 0..self.settings.workers {
            rt::spawn(super::worker::run(Arc::clone(self), number));
        }
    }

    /// Raft's side for peers.
    pub fn raft_service(&self) -> RaftService {
        RaftService {
            raft: self.raft.clone(),
            id: self.id,
            cluster: Arc::clone(&self.cluster),
            snapshots: self.snapshots.clone(),
            contact: Arc::clone(&self.contact),
            stopping: self.stopping(),
        }
    }

    /// The services of this server's leadership, while it leads.
    pub fn leading(&self) -> Option<Arc<LeaderServices>> {
        self.leadership.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_leading(&self, services: Option<Arc<LeaderServices>>) {
        let old = {
            let mut slot = self.leadership.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, services)
        };
        if let Some(old) = old {
            old.stop();
        }
    }

    /// Becomes true when the server stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }

    /// Holds something that must not go on: the process has to end with this message.
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.failed.subscribe()
    }

    /// The first reason stands: what comes after follows from it.
    pub(super) fn fail(&self, why: String) {
        tracing::error!(%why, "this server cannot go on");
        self.failed.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(why);
            first
        });
    }

    /// Holds back or lets go the application of entries: a hook for tests of workers behind a lagging state.
    pub fn hold_apply(&self, hold: bool) {
        self.hold_apply.send_replace(hold);
    }

    /// Whether a leader was heard since the start. What the log knew to be committed is applied by then: `Raft::new` does that before it returns.
    pub fn has_recovered(&self) -> bool {
        *self.recovered.borrow()
    }

    /// Index of the last entry that its log knows to be committed; 0: it knows of none.
    pub fn committed_in_log(&self) -> Index {
        self.wal.committed().map_or(0, |id| id.index)
    }

    /// How far the state on disk is behind.
    pub fn shadow_lag(&self) -> ShadowLag {
        self.shadow.lag()
    }

    /// Evaluations that this server's workers acknowledged.
    pub fn evaluations_acknowledged(&self) -> u64 {
        self.worker_stats.acknowledged()
    }

    /// Makes a proposal's encoded form and hands it to Raft as the leader of `services`.
    pub(super) async fn propose(
        &self,
        services: &LeaderServices,
        command: Command,
        request: Option<fsm::session::Request>,
        timeout: Duration,
    ) -> Result<crate::api::Written, ApiError> {
        services.propose(command, request, timeout).await
    }

    /// Stops: hands leadership over, stops tasks, makes everything durable.
    pub async fn stop(&self) {
        // While everything still runs: this server hears of its successor through the sockets that `stopping` closes, and what its clients
        // have under way goes to the successor.
        if self.leading().is_some() && self.member_infos().len() > 1 {
            let handing = std::pin::pin!(self.transfer(None));
            let silence = std::pin::pin!(self.majority_is_silent());
            match futures_util::future::select(handing, silence).await {
                Either::Left((Ok(to), _)) => tracing::info!(to, "handed leadership over"),
                Either::Left((Err(error), _)) => {
                    tracing::warn!(%error, "leadership could not be handed over");
                }
                Either::Right(((), _)) => {
                    tracing::info!("no majority answers: leadership is not handed over");
                }
            }
        }
        self.stopping.send_replace(true);
        self.set_leading(None);
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop cleanly");
        }
        self.shadow.close().await;
        let thread = self.wal_thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let closed = rt::run_blocking(move || thread.close()).await;
            if let Err(error) = closed {
                tracing::error!(%error, "the log did not close cleanly");
            }
        }
    }

    /// Waits, on a leader, until no majority has answered for two elections: the others stop as well.
    async fn majority_is_silent(&self) {
        let election = Duration::from_millis(self.settings.timing.election_ms_max);
        while self.last_contact() <= 2 * election {
            rt::sleep(election / 4).await;
        }
    }

    pub(super) fn adopt_cluster(&self, cluster: [u8; 16]) -> anyhow::Result<()> {
        if let Some(known) = self.cluster.get() {
            anyhow::ensure!(*known == cluster, "this data directory belongs to another cluster");
            return Ok(());
        }
        let identity = Identity::new(self.id, Some(format_cluster_id(&cluster)));
        identity::save(&*self.disk, &self.settings.data_directory, &identity)?;
        self.cluster.get_or_init(|| cluster);
        Ok(())
    }

    /// The cluster, once it is known.
    pub fn cluster_id(&self) -> Option<String> {
        self.cluster.get().map(format_cluster_id)
    }

    /// The applied index.
    pub fn applied(&self) -> Index {
        self.cell.applied()
    }

    /// Asks for a snapshot of the state, after which the log is cut as the settings say.
    pub async fn take_snapshot(&self) -> anyhow::Result<()> {
        self.raft.trigger().snapshot().await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Index of the snapshot that this server would send to one that needs what is no longer in its log; 0: it has none.
    pub async fn snapshot_index(&self) -> anyhow::Result<Index> {
        let snapshot = self.raft.get_snapshot().await;
        let snapshot =
            snapshot.map_err(|error| anyhow::anyhow!("no snapshot can be sent: {error}"))?;
        Ok(snapshot.and_then(|one| one.meta.last_log_id).map_or(0, |last| last.index))
    }

    /// Index of the first entry that is still in the log; 0: none is.
    pub fn log_first(&self) -> Index {
        self.wal.first().unwrap_or(0)
    }

    /// A fresh request id: log time and random bits (a version 7 UUID, RFC 9562), so that sessions, which end in the order of time, lie in that
    /// order in memory and on disk.
    pub(super) fn fresh_request(&self) -> RequestId {
        let mut id = rt::random_id();
        let [_, _, at @ ..] = self.log_time().to_be_bytes();
        id[..at.len()].copy_from_slice(&at);
        id[6] = (id[6] & 0x0f) | 0x70;
        RequestId(id)
    }
}

fn raft_config(settings: &Settings) -> anyhow::Result<openraft::Config> {
    let timing = settings.timing;
    let config = openraft::Config {
        cluster_name: "quorate".to_owned(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_ms_min,
        election_timeout_max: timing.election_ms_max,
        enable_pre_vote: Some(true),
        // A leader that restarts in its own term knows only the commit index that it happened to have saved, and its read index would be older
        // than what it acknowledged before: it has to be elected, and commit an entry of the new term, like anyone else.
        enable_leader_restore: Some(false),
        quorum_loss_probe_interval: Some(timing.election_ms_max * 2),
        max_payload_entries: 1024,
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: settings.log_entries_kept,
        purge_batch_size: settings.log_entries_kept.clamp(1, 1024),
        ..openraft::Config::default()
    };
    config.validate().context("raft timing")
}

fn start_writer(
    wal: Wal,
    mut writer: WalWriter,
    disk: &Arc<dyn Disk>,
    calls: &DiskWatch,
) -> anyhow::Result<Option<WalThread>> {
    if !rt::is_simulation() {
        return Ok(Some(writer.spawn_thread("log")?));
    }
    let (disk, calls) = (Arc::clone(disk), calls.clone());
    rt::spawn(async move {
        loop {
            wal.until_work().await;
            // Between the halves a batch is written and not durable: there a power cut takes some of it.
            let Ok(begun) = writer.begin() else { return };
            if begun {
                let _call = calls.enter("sync");
                rt::sleep(rt::simulated_sync_time() + disk.hangs_for()).await;
            }
            if writer.finish().is_err() {
                return;
            }
        }
    });
    Ok(None)
}

async fn watch_recovery(core: Arc<Core>) {
    let mut metrics = core.raft.metrics();
    loop {
        let now = metrics.borrow_watched().clone();
        if let Err(fatal) = &now.running_state {
            if !*core.stopping.borrow() {
                // What stopped Raft is told by whoever it failed, with the name of the file: the first word counts.
                let mut failed = core.failed();
                drop(rt::timeout(RECOVERING_LOOK, failed.wait_for(Option::is_some)).await);
                core.fail(format!("raft stopped: {fatal}"));
            }
            return;
        }
        let recovered = core.leader_heard(&now).is_some();
        if recovered {
            core.recovered.send_replace(true);
        }
        // A leader that is heard again in its old term changes no metric.
        let ended = if recovered {
            metrics.changed().await.is_err()
        } else {
            matches!(rt::timeout(RECOVERING_LOOK, metrics.changed()).await, Ok(Err(_)))
        };
        if ended {
            return;
        }
    }
}
