//! The server core: Raft, state, leadership and workers of one server, without sockets or
//! processes, so that a simulation runs several of them in one thread.

use std::{
    sync::{Arc, PoisonError},
    time::Duration,
};

use anyhow::Context;
use fsm::Index;
use futures_util::future::Either;
use ground::{
    clock::Clock,
    disk::{Disk, watched::DiskWatch},
    rt::{self, watch},
};
use openraft::SnapshotPolicy;
use raft::{
    Raft, ServerId, WatchReceiver,
    contact::LeaderContact,
    log_store::LogStore,
    network::Network,
    promises::{Promise, Promises},
    service::RaftService,
    storage::{
        shadow::{OpenEngine, Shadow, ShadowLag},
        snapshot_file::SnapshotDirectory,
        wal::{self, Wal, WalThread, WalWriter},
    },
    stores::Stores,
};
use wire::{api::WorkerSettings, published::StateCell, rpc::transport::Transport};

use crate::provider::Throttled;
use crate::{
    access::{
        provider_calls::{CallTimes, ProviderCalls},
        read_rounds,
        reads::Reads,
        reports,
        writes::Writes,
    },
    leadership::{
        leading::Leading,
        services::{self, Ingredients, LeaderServices},
    },
    member::{
        contact::Contact,
        identity::{self, Cluster},
        lifecycle::Lifecycle,
        majority, peers,
        settings::Settings,
        time::{self, ServerTime},
    },
    provider::Providers,
    said::Said,
    upkeep::{
        bootstrap::{self, Newcomer},
        digests::{self, Comparison},
        housekeeping::{self, Chores},
        removal::{self, Leaver},
        watchdog::{self, Watched},
    },
    worker::{self, Control, WorkerStats, Workplace},
};

/// Time between two checks of whether a leader was heard, after the start.
const RECOVERING_LOOK: Duration = Duration::from_millis(100);

/// What a server core is made of: disk, transport and storage, real or simulated.
#[derive(Clone)]
pub struct Parts {
    pub disk: Arc<dyn Disk>,
    pub transport: Arc<dyn Transport>,
    /// Opens the engine of the state on disk.
    pub open_engine: OpenEngine,
    pub wal: wal::Options,
    /// Longest piece of a snapshot in one message, bytes.
    pub snapshot_piece_bytes: u64,
    /// Entries that are applied before their state is published.
    pub publish_entries_max: usize,
    /// Where machines of pools come from.
    pub providers: Arc<Providers>,
    /// Where passes of the scheduler are made.
    pub passes: rt::Threads,
}

/// A running server core. It creates the parts, gives every task what it uses, and answers the
/// edges and tests for all of them.
pub struct Core {
    pub settings: Arc<Settings>,
    pub id: ServerId,
    pub(crate) cluster: Arc<Cluster>,
    pub raft: Raft,
    /// The published state.
    pub cell: Arc<StateCell>,
    pub contact: Arc<Contact>,
    pub lifecycle: Arc<Lifecycle>,
    pub(crate) leading: Arc<Leading>,
    pub(crate) reads: Reads,
    pub writes: Writes,
    pub(crate) said: Said,
    pub(crate) reports: reports::Reports,
    pub(crate) worker_stats: Arc<WorkerStats>,
    pub(crate) workers: Arc<Control>,
    pub shadow: Shadow,
    pub(crate) wal: Wal,
    /// What opening the log found.
    pub log_recovery: wal::Recovery,
    pub snapshots: SnapshotDirectory,
    raft_service: RaftService,
    hold_apply: watch::Sender<bool>,
    disk: Arc<dyn Disk>,
    /// How often an id of this data directory was retired.
    pub(crate) ids_retired: u64,
    /// Where machines of pools come from.
    pub(crate) providers: Arc<Providers>,
    wal_thread: std::sync::Mutex<Option<WalThread>>,
}

impl Core {
    /// Opens the data directory and starts Raft and the background tasks. The server takes part in
    /// nothing until [`Self::join_cluster`] is done.
    pub async fn start(settings: Settings, parts: Parts) -> anyhow::Result<Arc<Self>> {
        let directory = settings.data_directory.clone();
        let ids_retired = check_directory(&*parts.disk, &settings)?;
        let identity = identity::load(&*parts.disk, &directory, &settings.rpc_address)?;
        let id = identity.server_id;
        let cluster = Cluster::of(&identity, Arc::clone(&parts.disk), directory.clone())?;
        let stores = Stores::open(&parts.disk, &parts.open_engine, parts.wal, &directory).await?;
        let Stores { shadow, snapshots, wal, writer, recovery, log_calls, .. } = stores;
        let (mut machine, hold_apply) = (stores.machine, stores.hold_apply);
        let is_first = settings.bootstrap_expect.iter().min() == Some(&settings.rpc_address);
        machine.set_diverging(is_first);
        machine.set_publish_entries_max(parts.publish_entries_max);
        let wal_thread = start_writer(wal.clone(), writer, &parts.disk, &log_calls)?;
        let cell = Arc::clone(machine.cell());
        let clock = Clock::default();
        let heard = Arc::new(LeaderContact::new(clock));
        let found = Promise::found(&wal, machine.current().0.head()).context("the vote")?;
        let promises = Arc::new(Promises::new(found));
        let network = Network {
            id,
            cluster: cluster.shared(),
            transport: Arc::clone(&parts.transport),
            disk: Arc::clone(&parts.disk),
            snapshot_piece_bytes: parts.snapshot_piece_bytes,
            contact: Arc::clone(&heard),
            promises: Arc::clone(&promises),
        };
        let config = Arc::new(raft_config(&settings)?);
        let raft = Raft::new(id, config, network, LogStore::new(wal.clone()), machine)
            .await
            .map_err(|error| anyhow::anyhow!("raft does not start: {error}"))?;
        let lifecycle = Arc::new(Lifecycle::new());
        let raft_service = RaftService {
            raft: raft.clone(),
            id,
            cluster: cluster.shared(),
            snapshots: snapshots.clone(),
            contact: Arc::clone(&heard),
            promises: Arc::clone(&promises),
            stopping: lifecycle.stopping(),
        };
        let settings = Arc::new(settings);
        let providers = Arc::clone(&parts.providers);
        let time = Arc::new(ServerTime::new(id, clock, Arc::clone(&cell)));
        let known = (heard, time, promises);
        let contact = Contact::new(Arc::clone(&settings), id, raft.clone(), parts.transport, known);
        let contact = Arc::new(contact);
        let leading = Arc::new(Leading::default());
        let (reports, report_queue) = reports::channel();
        let (rounds, read_queue) = read_rounds::channel();
        let (recovered_sender, recovered) = watch::channel(false);
        let inlets =
            Inlets { recovered: recovered_sender, reports: report_queue, reads: read_queue };
        let workers = WorkerSettings { number: settings.workers, kinds: settings.kinds.clone() };
        let core = Arc::new(Self {
            id,
            cluster: Arc::new(cluster),
            raft,
            reads: Reads {
                cell: Arc::clone(&cell),
                contact: Arc::clone(&contact),
                rounds,
                recovered,
            },
            writes: Writes {
                cell: Arc::clone(&cell),
                contact: Arc::clone(&contact),
                leading: Arc::clone(&leading),
                providers: Arc::clone(&providers),
            },
            said: Said::default(),
            cell,
            contact,
            lifecycle,
            leading,
            reports,
            worker_stats: Arc::default(),
            workers: Arc::new(Control::new(workers, settings.leader_share)),
            shadow,
            wal,
            log_recovery: recovery,
            snapshots,
            raft_service,
            hold_apply,
            disk: Arc::clone(&parts.disk),
            ids_retired,
            providers: Arc::clone(&providers),
            wal_thread: std::sync::Mutex::new(wal_thread),
            settings,
        });
        core.start_tasks(&parts.disk, parts.passes, providers, inlets);
        watchdog::start(Watched {
            contact: Arc::clone(&core.contact),
            lifecycle: Arc::clone(&core.lifecycle),
            wal: core.wal.clone(),
            shadow: core.shadow.clone(),
            log_calls,
        })?;
        Ok(core)
    }

    fn start_tasks(
        &self,
        disk: &Arc<dyn Disk>,
        passes: rt::Threads,
        providers: Arc<Providers>,
        inlets: Inlets,
    ) {
        let contact = || Arc::clone(&self.contact);
        let cell = || Arc::clone(&self.cell);
        let leading = || Arc::clone(&self.leading);
        let cluster = || Arc::clone(&self.cluster);
        let provider_calls = Arc::new(ProviderCalls {
            providers,
            contact: contact(),
            writes: self.writes.clone(),
            cluster: cluster(),
            times: CallTimes::default(),
        });
        let of =
            Ingredients { contact: contact(), cell: cell(), leading: leading(), provider_calls };
        rt::spawn(services::watch(of, self.stopping()));
        let lifecycle = || Arc::clone(&self.lifecycle);
        rt::spawn(watch_recovery(contact(), lifecycle(), inlets.recovered));
        rt::spawn(contact().keep());
        rt::spawn(peers::run(contact(), cluster(), self.stopping()));
        rt::spawn(majority::run(contact(), self.stopping()));
        rt::spawn(time::follow(contact(), self.stopping()));
        rt::spawn(reports::run(self.writes.clone(), self.stopping(), inlets.reports));
        rt::spawn(read_rounds::run(contact(), cell(), self.stopping(), inlets.reads));
        let chores = Chores {
            contact: contact(),
            leading: leading(),
            disk: Arc::clone(disk),
            wal: self.wal.clone(),
            snapshots: self.snapshots.clone(),
        };
        rt::spawn(housekeeping::run(chores, self.stopping()));
        rt::spawn(removal::watch(Leaver {
            contact: contact(),
            cluster: cluster(),
            lifecycle: lifecycle(),
            disk: Arc::clone(disk),
        }));
        rt::spawn(digests::run(Comparison {
            contact: contact(),
            cell: cell(),
            leading: leading(),
            lifecycle: lifecycle(),
            disk: Arc::clone(disk),
        }));
        let place = Workplace {
            contact: contact(),
            cluster: cluster(),
            cell: cell(),
            leading: leading(),
            stats: Arc::clone(&self.worker_stats),
            control: Arc::clone(&self.workers),
            passes,
            stop: self.stopping(),
        };
        rt::spawn(worker::run(place));
    }

    fn newcomer(&self) -> Newcomer {
        let (contact, cluster) = (Arc::clone(&self.contact), Arc::clone(&self.cluster));
        let (lifecycle, disk) = (Arc::clone(&self.lifecycle), Arc::clone(&self.disk));
        Newcomer { contact, cluster, lifecycle, disk }
    }

    /// Returns when this server is part of a cluster, or fails when it must not be.
    pub async fn join_cluster(&self) -> anyhow::Result<()> {
        bootstrap::join_cluster(self.newcomer()).await
    }

    /// The Raft service for peers.
    pub fn raft_service(&self) -> RaftService {
        self.raft_service.clone()
    }

    /// The services of this server's leadership, while it leads.
    pub fn leading(&self) -> Option<Arc<LeaderServices>> {
        self.leading.services()
    }

    /// Becomes true when the server stops.
    pub fn stopping(&self) -> watch::Receiver<bool> {
        self.lifecycle.stopping()
    }

    /// Holds the reason once the process has to end.
    pub fn failed(&self) -> watch::Receiver<Option<String>> {
        self.lifecycle.failed()
    }

    /// Whether this server, once it has failed, is to be started again at once.
    pub fn starts_anew(&self) -> bool {
        self.lifecycle.starts_anew()
    }

    /// Stops or resumes applying entries: a hook for tests of workers whose state lags.
    pub fn hold_apply(&self, hold: bool) {
        self.hold_apply.send_replace(hold);
    }

    /// Whether a leader was heard since the start. The entries that the log knew to be committed
    /// are applied by then: `Raft::new` does that before it returns.
    pub fn has_recovered(&self) -> bool {
        *self.reads.recovered.borrow()
    }

    /// Index of the last entry that the log knows to be committed; 0 if there is none.
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

    /// Stops: hands leadership over, stops tasks, makes everything durable.
    pub async fn stop(&self) {
        // First of all, while everything still runs: this server hears of its successor through the
        // sockets that `stopping` closes, and its clients' pending requests go to the successor.
        if self.leading().is_some() && self.contact.member_infos().len() > 1 {
            let handing = std::pin::pin!(self.contact.transfer(None));
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
        self.lifecycle.stop();
        // While Raft still knows the leader.
        self.workers.until_done(worker::GIVE_BACK_MAX).await;
        self.leading.set(None);
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

    /// On a leader: waits until the majority is lost, as when the others stop as well.
    async fn majority_is_silent(&self) {
        let election = Duration::from_millis(self.settings.timing.election_ms_max);
        while !self.contact.is_majority_lost() {
            rt::sleep(election / 4).await;
        }
    }

    /// The provider of a name, if there is one.
    pub fn provider(&self, name: &str) -> Option<&Throttled> {
        self.providers.get(name).map(|provider| &**provider)
    }

    /// The cluster, once it is known.
    pub fn cluster_id(&self) -> Option<String> {
        self.cluster.name()
    }

    /// The applied index.
    pub fn applied(&self) -> Index {
        self.cell.applied()
    }

    /// Asks for a snapshot of the state, after which the log is cut as the settings say.
    pub async fn take_snapshot(&self) -> anyhow::Result<()> {
        self.raft.trigger().snapshot().await.map_err(|error| anyhow::anyhow!("{error}"))
    }

    /// Index of the snapshot that this server would send to a follower that needs purged entries; 0
    /// if it has none.
    pub async fn snapshot_index(&self) -> anyhow::Result<Index> {
        let snapshot = self.raft.get_snapshot().await;
        let snapshot =
            snapshot.map_err(|error| anyhow::anyhow!("no snapshot can be sent: {error}"))?;
        Ok(snapshot.and_then(|one| one.meta.last_log_id).map_or(0, |last| last.index))
    }

    /// Index of the first entry that is still in the log; 0 if there is none.
    pub fn log_first(&self) -> Index {
        self.wal.first().unwrap_or(0)
    }
}

/// Ends of channels that are handed to tasks.
struct Inlets {
    recovered: watch::Sender<bool>,
    reports: reports::Queue,
    reads: read_rounds::Queue,
}

/// Refuses a data directory that no server may start from, and empties one whose id is retired.
/// Returns how many ids were retired in it.
fn check_directory(disk: &dyn Disk, settings: &Settings) -> anyhow::Result<u64> {
    let directory = &settings.data_directory;
    disk.create_dir_all(directory)?;
    digests::refuse_diverged(disk, directory)?;
    removal::refuse_removed(disk, directory)?;
    crate::upkeep::rollback::settle(disk, directory, settings.rejoin_after_rollback)
}

fn raft_config(settings: &Settings) -> anyhow::Result<openraft::Config> {
    let timing = settings.timing;
    let config = openraft::Config {
        cluster_name: "quorate".to_owned(),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_ms_min,
        election_timeout_max: timing.election_ms_max,
        enable_pre_vote: Some(true),
        // Until the others have said what this server promised: `Promises::take_part`.
        enable_elect: false,
        // A leader that restarts in its own term knows only the commit index that it happened to
        // have saved. Its read index could be older than what it acknowledged before. So it has to
        // be elected and commit an entry of the new term, like any other server.
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
            // Between `begin` and `finish` a batch is written and not durable: a power cut here
            // loses some of it.
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

async fn watch_recovery(
    contact: Arc<Contact>,
    lifecycle: Arc<Lifecycle>,
    recovered: watch::Sender<bool>,
) {
    let mut metrics = contact.raft.metrics();
    loop {
        let now = metrics.borrow_watched().clone();
        if contact.leader_heard(&now).is_some() {
            recovered.send_replace(true);
            break;
        }
        // A leader that is heard again in its old term changes no metric, so this checks by time
        // too.
        if matches!(rt::timeout(RECOVERING_LOOK, metrics.changed()).await, Ok(Err(_))) {
            break;
        }
    }
    // All metrics change with every entry; these, with the term, who leads, and the members. They
    // end with Raft, as all do.
    let mut changes = contact.raft.server_metrics();
    while changes.changed().await.is_ok() {}
    let ended = contact.raft.metrics().borrow_watched().running_state.clone();
    if let Err(fatal) = ended
        && !lifecycle.is_stopping()
    {
        // The component that failed reports its own error, which names the file. The first
        // reason counts, so give that component time to report.
        let mut failed = lifecycle.failed();
        drop(rt::timeout(RECOVERING_LOOK, failed.wait_for(Option::is_some)).await);
        lifecycle.fail(format!("raft stopped: {fatal}"));
    }
}
