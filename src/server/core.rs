//! The server core: Raft, state, leadership and workers of one server, with nothing of sockets or processes in it, so that a simulation runs
//! several of them in one thread.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock, PoisonError, RwLock},
    time::Duration,
};

use anyhow::Context;
use fsm::{Command, Index, RequestId};
use futures_util::future::Either;
use leader::heartbeat::HeartbeatConfig;
use openraft::SnapshotPolicy;
use serde::{Deserialize, Serialize};

use super::{
    api::{ApiError, MemberInfo},
    leadership::LeaderServices,
    state_cell::StateCell,
    stores::Stores,
};
use crate::{
    clock::Clock,
    disk::{Disk, watched::DiskWatch},
    plant::{Plant, is_planted},
    raft::{
        Member, Metrics, Raft, ServerId, ServerState, WatchReceiver,
        log_store::LogStore,
        network::Network,
        service::{LeaderContact, RaftService},
    },
    rpc::transport::Transport,
    rt::{self, watch},
    storage::{
        shadow::{OpenEngine, Shadow, ShadowLag, write_file},
        snapshot_file::SnapshotDirectory,
        wal::{self, Wal, WalThread, WalWriter},
    },
};

/// A leader that was silent for less than this is still shown as leader.
const LEADER_SILENCE_MIN: Duration = Duration::from_secs(3);
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
    /// Heartbeats of nodes.
    pub heartbeat: HeartbeatConfig,
    /// Garbage collection.
    pub gc: leader::GcConfig,
    /// Log bytes after which a snapshot is written.
    pub snapshot_log_bytes: u64,
    /// Log entries that stay behind a snapshot.
    pub log_entries_kept: u64,
    /// Free space below which writes are turned away.
    pub free_bytes_min: u64,
    /// Pending evaluations above which new work is refused.
    pub pending_evaluations_max: usize,
    /// A lease of an evaluation that is not acknowledged in this time is taken back, ms.
    pub nack_ms: u64,
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
}

/// Who a data directory belongs to.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {
    /// Random, made with the directory.
    server_id: ServerId,
    /// Set when the server has become part of a cluster.
    #[serde(default)]
    cluster_id: Option<String>,
    /// Checksum of the two: a flipped digit would make this another server, which must not go on with this one's log. Older files have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    check: Option<String>,
}

impl Identity {
    fn new(server_id: ServerId, cluster_id: Option<String>) -> Self {
        let mut identity = Self { server_id, cluster_id, check: None };
        identity.check = Some(identity.expected_check());
        identity
    }

    fn expected_check(&self) -> String {
        let cluster = self.cluster_id.as_deref().unwrap_or("");
        format!("{:08x}", crc32c::crc32c(format!("{}:{cluster}", self.server_id).as_bytes()))
    }
}

const IDENTITY_FILE: &str = "server.json";
/// A server that did not answer its leader for so long counts as gone.
const SILENCE_MAX: Duration = Duration::from_secs(5);

/// What a peer answered to a probe.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heard {
    /// When.
    pub(super) at: rt::Instant,
    /// Its disk is nearly full.
    pub(super) disk_full: bool,
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
    snapshots: SnapshotDirectory,
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
        let identity = load_identity(&*parts.disk, &directory, &settings.rpc_address)?;
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
        rt::spawn(super::reports::run(Arc::clone(self), report_queue));
        rt::spawn(super::read_rounds::run(Arc::clone(self), read_queue));
        rt::spawn(super::housekeeping::run(Arc::clone(self)));
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

    /// Whether everything that was committed before the start is applied and a leader was heard.
    pub fn has_recovered(&self) -> bool {
        *self.recovered.borrow()
    }

    /// How far the state on disk is behind.
    pub fn shadow_lag(&self) -> ShadowLag {
        self.shadow.lag()
    }

    /// Evaluations that this server's workers acknowledged.
    pub fn evaluations_acknowledged(&self) -> u64 {
        self.worker_stats.acknowledged()
    }

    /// The leader's number and member entry, as far as this server knows.
    pub fn leader(&self) -> Option<(ServerId, Member)> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let leader = self.leader_heard(&metrics)?;
        let member = metrics.membership_config.membership().get_node(&leader)?.clone();
        Some((leader, member))
    }

    /// The leader by Raft's word, once it was heard since the start: the vote on disk names one too, which may be long gone, and may even be
    /// this server.
    fn leader_heard(&self, metrics: &Metrics) -> Option<ServerId> {
        let leader = metrics.current_leader?;
        let heard = if leader == self.id {
            metrics.state == ServerState::Leader
        } else {
            self.contact.has_heard(metrics.current_term)
        };
        heard.then_some(leader)
    }

    /// The leader as operators are told: one that fell silent is none.
    fn leader_shown(&self, metrics: &Metrics) -> Option<ServerId> {
        let silence_max = Duration::from_millis(4 * self.settings.timing.election_ms_max);
        let silent = self.last_contact() > silence_max.max(LEADER_SILENCE_MIN);
        self.leader_heard(metrics).filter(|_| !silent)
    }

    /// Members of the Raft configuration.
    pub fn member_infos(&self) -> Vec<MemberInfo> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership().clone();
        let voters: Vec<ServerId> = membership.voter_ids().collect();
        let leader = self.leader_shown(&metrics);
        membership
            .nodes()
            .map(|(id, member)| MemberInfo {
                id: *id,
                name: member.name.clone(),
                rpc_address: member.rpc_address.clone(),
                http_address: member.http_address.clone(),
                leader: leader == Some(*id),
                voter: voters.contains(id),
                alive: *id == self.id || self.heard_lately(*id),
            })
            .collect()
    }

    /// Whether a peer answered a probe lately.
    fn heard_lately(&self, id: ServerId) -> bool {
        self.last_heard(id).is_some()
    }

    /// What a peer answered to a probe lately.
    pub(super) fn last_heard(&self, id: ServerId) -> Option<Heard> {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        heard.get(&id).copied().filter(|one| one.at.elapsed() < super::housekeeping::PEER_LOST)
    }

    /// Whether this server or a peer is known to have no room on its disk.
    pub(super) fn is_full(&self, id: ServerId) -> bool {
        if id == self.id {
            return self.disk_full.borrow().is_some();
        }
        self.last_heard(id).is_some_and(|heard| heard.disk_full)
    }

    /// The leader's address, for calls to it.
    pub(super) fn leader_address(&self) -> Result<String, ApiError> {
        self.leader().map(|(_, member)| member.rpc_address).ok_or(ApiError::NoLeader)
    }

    /// Makes a proposal's encoded form and hands it to Raft as the leader of `services`.
    pub(super) async fn propose(
        &self,
        services: &LeaderServices,
        command: Command,
        request: Option<fsm::session::Request>,
        timeout: Duration,
    ) -> Result<super::api::Written, ApiError> {
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

    pub(super) async fn transfer(&self, to: Option<ServerId>) -> Result<ServerId, ApiError> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let Some(replication) = metrics.replication else { return Err(ApiError::NoLeader) };
        let voters: Vec<ServerId> = metrics.membership_config.voter_ids().collect();
        let target = match to {
            Some(to) if voters.contains(&to) => Some(to),
            Some(to) => {
                return Err(ApiError::Invalid(format!("{to:x} is not a voter of this cluster")));
            }
            None => replication
                .iter()
                .filter(|(id, _)| **id != self.id && voters.contains(id))
                .max_by_key(|(id, matched)| {
                    let index = matched.as_ref().map(|one| one.index);
                    (self.heard_lately(**id), !self.is_full(**id), index, **id)
                })
                .map(|(id, _)| *id),
        };
        let target = target.ok_or(ApiError::Invalid("there is no other voter".to_owned()))?;
        if target == self.id {
            return Ok(target);
        }
        self.raft
            .trigger()
            .transfer_leader(target)
            .await
            .map_err(|error| ApiError::NotReady(error.to_string()))?;
        let mut metrics = self.raft.metrics();
        let deadline = rt::Instant::now() + Duration::from_secs(5);
        loop {
            let leader = metrics.borrow_watched().current_leader;
            if leader.is_some_and(|leader| leader != self.id) {
                return Ok(target);
            }
            let left = deadline.saturating_duration_since(rt::Instant::now());
            let what = match rt::timeout(left, metrics.changed()).await {
                Ok(Ok(())) => continue,
                Ok(Err(_)) => "this server stopped while leadership moved",
                Err(_) => "leadership did not move within 5 s",
            };
            return Err(ApiError::NotReady(what.to_owned()));
        }
    }

    pub(super) fn adopt_cluster(&self, cluster: [u8; 16]) -> anyhow::Result<()> {
        if let Some(known) = self.cluster.get() {
            anyhow::ensure!(*known == cluster, "this data directory belongs to another cluster");
            return Ok(());
        }
        let identity = Identity::new(self.id, Some(format_cluster_id(&cluster)));
        save_identity(&*self.disk, &self.settings.data_directory, &identity)?;
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

    /// Index of the first entry that is still in the log; 0: none is.
    pub fn log_first(&self) -> Index {
        self.wal.first().unwrap_or(0)
    }

    /// The voters, when the configuration is not a joint one.
    pub fn settled_voters(&self) -> Option<Vec<ServerId>> {
        let metrics = self.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        (membership.get_joint_config().len() == 1).then(|| membership.voter_ids().collect())
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

/// Servers that this leader heard of once and not any more.
pub(super) fn silent_servers(raft: &Raft) -> Vec<ServerId> {
    let metrics = raft.metrics().borrow_watched().clone();
    let silent = metrics.heartbeat.iter().flatten().filter(|(id, at)| {
        let silence = at.as_ref().map(|at| openraft::Instant::elapsed(&**at));
        **id != metrics.id && silence.is_some_and(|silence| silence >= SILENCE_MAX)
    });
    silent.map(|(id, _)| *id).collect()
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
        replication_lag_threshold: 100_000,
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
    let committed = metrics.borrow_watched().local_committed.map_or(0, |id| id.index);
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
        let applied = now.last_applied.map_or(0, |id| id.index);
        let recovered = core.leader_heard(&now).is_some() && applied >= committed;
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

/// Whether this server leads, and in which term, by Raft's own word.
pub(super) fn leads(core: &Core) -> Option<u64> {
    let metrics = core.raft.metrics();
    let metrics = metrics.borrow_watched();
    (metrics.state == ServerState::Leader && metrics.current_leader == Some(core.id))
        .then_some(metrics.current_term)
}

fn load_identity(disk: &dyn Disk, directory: &Path, rpc_address: &str) -> anyhow::Result<Identity> {
    let path = directory.join(IDENTITY_FILE);
    if disk.exists(&path)? {
        let bytes = disk.read(&path)?;
        let damaged = || {
            format!(
                "{} is damaged: restore it; or, if a majority of the other servers is well, move {} away and start \
                 again: this server then joins anew",
                path.display(),
                directory.display()
            )
        };
        let identity: Identity = serde_json::from_slice(&bytes).with_context(damaged)?;
        let expected = identity.expected_check();
        anyhow::ensure!(identity.check.as_ref().is_none_or(|check| *check == expected), damaged());
        return Ok(identity);
    }
    let others: Vec<String> = disk.list(directory)?;
    anyhow::ensure!(
        !others.iter().any(|name| name == "log" || name == "state"),
        "{} has a log but no {IDENTITY_FILE}: restore that file, or move the directory away and join anew",
        directory.display()
    );
    // 53 bits, so that every JSON reader keeps the number whole.
    let mut server_id = (rt::random_u64() >> 11) | 1;
    if is_planted(Plant::ReusedServerId) {
        server_id = u64::from(crc32c::crc32c(rpc_address.as_bytes())) | 1;
    }
    let identity = Identity::new(server_id, None);
    save_identity(disk, directory, &identity)?;
    Ok(identity)
}

fn save_identity(disk: &dyn Disk, directory: &Path, identity: &Identity) -> anyhow::Result<()> {
    let bytes = serde_json::to_vec_pretty(identity)?;
    write_file(disk, directory, IDENTITY_FILE, &bytes)?;
    Ok(())
}

fn format_cluster_id(id: &[u8; 16]) -> String {
    fsm::NodeId(*id).to_string()
}

fn parse_cluster_id(text: &str) -> anyhow::Result<[u8; 16]> {
    let id: fsm::NodeId = text.parse().with_context(|| format!("cluster id in {IDENTITY_FILE}"))?;
    Ok(id.0)
}

/// Memory of this process that is in use, as the kernel counts it; 0 where it cannot be asked.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("");
    let kib: u64 = line.split_whitespace().next().and_then(|kib| kib.parse().ok()).unwrap_or(0);
    kib << 10
}

/// Processor time that this process has used, ms; 0 where it cannot be asked.
fn cpu_ms() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name in brackets: state is field 3; user and system time are fields 14 and 15, in hundredths of a second (USER_HZ).
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
    let ticks: u64 = fields.skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    ticks * 10
}

/// Numbers of this server for dashboards.
pub(super) fn gauges(core: &Core) -> BTreeMap<String, f64> {
    let mut out = BTreeMap::new();
    let mut put = |name: &str, value: u64| {
        #[expect(clippy::cast_precision_loss, reason = "gauges are approximate beyond 2^53")]
        out.insert(format!("nomad.{name}"), value as f64);
    };
    let metrics = core.raft.metrics().borrow_watched().clone();
    let state = core.cell.load();
    put("raft.term", metrics.current_term);
    put("raft.last_index", metrics.last_log_index.unwrap_or(0));
    put("raft.applied_index", core.applied());
    put("raft.commit_index", metrics.local_committed.map_or(0, |id| id.index));
    put("raft.is_leader", u64::from(leads(core).is_some()));
    let lag = core.shadow_lag();
    put("state.shadow_lag_groups", lag.groups);
    put("state.shadow_lag_bytes", lag.bytes);
    put("state.disk_bytes", lag.disk_bytes);
    let wal = core.wal.stats();
    put("raft.log.first_index", core.wal.first().unwrap_or(0));
    put("raft.log.batches", wal.batches);
    put("raft.log.entries", wal.entries);
    put("raft.log.bytes", wal.bytes);
    put("disk.full", u64::from(core.is_full(core.id)));
    put("worker.acknowledged", core.worker_stats.acknowledged());
    put("worker.released_for_lag", core.worker_stats.released_for_lag());
    put("worker.nacked", core.worker_stats.nacked());
    put("worker.invoke_scheduler", core.worker_stats.invoked());
    put("state.jobs", state.jobs.len() as u64);
    put("state.nodes", state.nodes.len() as u64);
    put("state.evaluations", state.evaluations.len() as u64);
    put("state.allocations", state.allocations.len() as u64);
    put("process.resident_bytes", resident_bytes());
    put("process.cpu_ms", cpu_ms());
    if let Some(services) = core.leading() {
        services.gauges(&mut put);
    }
    out
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::{disk::fault::FaultDisk, plant::must_catch};

    fn id_of_a_new_directory(seed: u64) -> ServerId {
        let disk = FaultDisk::new(seed);
        let directory = Path::new("/data");
        disk.create_dir_all(directory).unwrap();
        let identity = load_identity(&disk, directory, "10.0.0.1:4647").unwrap();
        let again = load_identity(&disk, directory, "10.0.0.1:4647").unwrap();
        assert_eq!(identity.server_id, again.server_id, "it is kept");
        identity.server_id
    }

    /// Found by the simulation: a flipped digit of the number is still good JSON, and made another server of this one.
    #[test]
    fn no_flipped_bit_of_the_identity_makes_another_server() {
        let directory = Path::new("/data");
        let disk = FaultDisk::new(1);
        disk.create_dir_all(directory).unwrap();
        let written = Identity::new(69_269_852, Some(format_cluster_id(&[7; 16])));
        save_identity(&disk, directory, &written).unwrap();
        let path = directory.join(IDENTITY_FILE);
        let bytes = disk.read(&path).unwrap();
        for offset in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[offset] ^= 1 << bit;
                disk.replace(&path, &damaged);
                let loaded = load_identity(&disk, directory, "10.0.0.1:4647");
                let is_another = loaded.is_ok_and(|found| {
                    found.server_id != written.server_id || found.cluster_id != written.cluster_id
                });
                assert!(!is_another, "byte {offset}, bit {bit}");
            }
        }
        disk.replace(&path, br#"{"server_id":5}"#);
        let old = load_identity(&disk, directory, "10.0.0.1:4647").unwrap();
        assert_eq!(old.server_id, 5, "an older file");
    }

    /// A number that comes back with an empty log would vote as if it had promised nothing.
    fn an_empty_disk_makes_another_server() {
        assert_ne!(id_of_a_new_directory(1), id_of_a_new_directory(2));
    }

    #[test]
    fn a_server_with_an_empty_disk_is_a_new_one() {
        an_empty_disk_makes_another_server();
        must_catch(Plant::ReusedServerId, an_empty_disk_makes_another_server);
    }
}
