//! The servers of a simulation: each with a disk of its own, started, killed, cut off from power and started again on what the disk kept.
//! It owns what every server does wrong: anything found here or by a server's own word fails the run.

use std::{
    collections::BTreeMap,
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{Index, digest::Digest};
use leader::heartbeat::HeartbeatConfig;
use quorate::{
    disk::{Disk, fault::FaultDisk},
    raft::WatchReceiver,
    rt::{self, Group, Instant, JoinHandle},
    server::{Core, Parts, RaftTiming, Settings, bootstrap},
    storage::{shadow, wal},
};

use crate::{dice::Dice, network::Network, services::Services, trace};

/// Log bytes after which a server writes a snapshot; small, so that runs see many.
const SNAPSHOT_LOG_BYTES: [u64; 3] = [8 << 10, 32 << 10, 256 << 10];

/// One server.
struct Slot {
    disk: FaultDisk,
    incarnation: u64,
    live: Option<Live>,
}

#[derive(Clone)]
struct Live {
    group: Group,
    /// None while it starts.
    core: Option<Arc<Core>>,
}

struct State {
    slots: Vec<Slot>,
    dice: Dice,
    /// What every replica has to have at an index.
    digests: BTreeMap<Index, Digest>,
    failures: Vec<String>,
    snapshot_log_bytes: u64,
    log_entries_kept: u64,
}

/// All servers of one run.
#[derive(Clone)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    /// The network between them.
    pub(crate) network: Network,
    count: usize,
}

/// Name of a server.
pub(crate) fn name(server: usize) -> String {
    format!("s{server}")
}

/// Address of a server.
pub(crate) fn address(server: usize) -> String {
    format!("10.0.0.{server}:4647")
}

impl World {
    /// So many servers, none of them started.
    pub(crate) fn new(seed: u64, count: usize) -> Self {
        let mut dice = Dice::new(seed, "world");
        let slot = |dice: &mut Dice| Slot {
            disk: FaultDisk::new(dice.next()),
            incarnation: 0,
            live: None,
        };
        let slots = (0..count).map(|_| slot(&mut dice)).collect();
        let snapshot_log_bytes = SNAPSHOT_LOG_BYTES[dice.index(SNAPSHOT_LOG_BYTES.len())];
        let log_entries_kept = dice.between(0, 60);
        trace::event(
            "world",
            format_args!(
                "{count} servers, a snapshot every {snapshot_log_bytes} bytes, {log_entries_kept} entries kept"
            ),
        );
        let state = State {
            slots,
            dice,
            digests: BTreeMap::new(),
            failures: Vec::new(),
            snapshot_log_bytes,
            log_entries_kept,
        };
        Self { state: Arc::new(Mutex::new(state)), network: Network::new(seed), count }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many servers there are.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// A promise was broken.
    pub(crate) fn fail(&self, what: String) {
        trace::event("FAIL", format_args!("{what}"));
        self.lock().failures.push(what);
    }

    /// What went wrong so far.
    pub(crate) fn failures(&self) -> Vec<String> {
        self.lock().failures.clone()
    }

    /// The core of a server that is up.
    pub(crate) fn core(&self, server: usize) -> Option<Arc<Core>> {
        self.lock().slots[server].live.as_ref()?.core.clone()
    }

    /// The server that leads, by its own word; the one of the highest term when several say so.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leading = |server| {
            let core = self.core(server)?;
            core.leading().map(|services| (services.epoch, server))
        };
        (0..self.count).filter_map(leading).max().map(|(_, server)| server)
    }

    fn settings(&self, server: usize) -> Settings {
        let state = self.lock();
        Settings {
            name: name(server),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
            data_directory: PathBuf::from("/data"),
            rpc_address: address(server),
            http_address: format!("10.0.0.{server}:4646"),
            bootstrap_expect: (0..self.count).map(address).collect(),
            join: Vec::new(),
            timing: RaftTiming { heartbeat_ms: 100, election_ms_min: 400, election_ms_max: 600 },
            workers: 1,
            gc: leader::GcConfig::default(),
            heartbeat: HeartbeatConfig {
                ttl_ms_min: 2_000,
                grace_ms: 3_000,
                ..HeartbeatConfig::default()
            },
            snapshot_log_bytes: state.snapshot_log_bytes,
            log_entries_kept: state.log_entries_kept,
            free_bytes_min: 0,
            pending_evaluations_max: 100_000,
        }
    }

    /// Starts a server on what its disk holds; nothing when it is up.
    pub(crate) fn start(&self, server: usize) {
        let settings = self.settings(server);
        let group = rt::new_group();
        let (disk, incarnation) = {
            let mut state = self.lock();
            let slot = &mut state.slots[server];
            if slot.live.is_some() {
                return;
            }
            slot.incarnation += 1;
            slot.live = Some(Live { group, core: None });
            (slot.disk.clone(), slot.incarnation)
        };
        trace::event(&name(server), format_args!("start {incarnation}"));
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let engine_disk = Arc::clone(&disk);
        let parts = Parts {
            disk,
            transport: Arc::new(self.network.transport(&address(server))),
            open_engine: Arc::new(move |path| shadow::open_twin(Arc::clone(&engine_disk), path)),
            wal: wal::Options {
                segment_bytes_first: 16 << 10,
                segment_bytes_max: 64 << 10,
                cache_bytes_max: 64 << 10,
                ..wal::Options::default()
            },
        };
        let world = self.clone();
        rt::spawn_in(group, async move {
            match Core::start(settings, parts).await {
                Ok(core) => world.serve(server, group, core).await,
                Err(error) => world.fail(format!("{} does not start: {error:#}", name(server))),
            }
        });
    }

    async fn serve(self, server: usize, group: Group, core: Arc<Core>) {
        trace::event(
            &name(server),
            format_args!("up, server {:x}, applied {}", core.id, core.applied()),
        );
        if let Some(live) = &mut self.lock().slots[server].live {
            live.core = Some(Arc::clone(&core));
        }
        let services = Services::new(&core);
        self.network.listen(&address(server), name(server), group, services);
        rt::spawn(watch_leader(server, Arc::clone(&core)));
        rt::spawn(self.clone().watch_state(server, Arc::clone(&core)));
        rt::spawn(self.clone().watch_failure(server, Arc::clone(&core)));
        if let Err(error) = bootstrap::join_cluster(core).await {
            self.fail(format!("{} does not join: {error:#}", name(server)));
        }
    }

    /// Every state that a replica shows is compared with what the others had at that index.
    async fn watch_state(self, server: usize, core: Arc<Core>) {
        loop {
            let state = core.cell.load();
            let (index, digest) = (state.head.index, state.digest());
            trace::event(&name(server), format_args!("applied {index} {digest}"));
            let known = *self.lock().digests.entry(index).or_insert(digest);
            if known != digest {
                self.fail(format!(
                    "{} has digest {digest} at {index}, another had {known}",
                    name(server)
                ));
            }
            drop(state);
            core.cell.wait_for(index + 1, Duration::from_hours(1)).await;
        }
    }

    async fn watch_failure(self, server: usize, core: Arc<Core>) {
        let mut failed = core.failed();
        if failed.wait_for(Option::is_some).await.is_ok() {
            let why = failed.borrow().clone().unwrap_or_default();
            self.fail(format!("{} ended itself: {why}", name(server)));
        }
    }

    /// Ends a server as `kill -9` does, or as a power cut does, which also takes what its disk had not made durable.
    pub(crate) fn crash(&self, server: usize, power: bool) {
        let live = {
            let mut state = self.lock();
            let seed = state.dice.next();
            let slot = &mut state.slots[server];
            let live = slot.live.take();
            if let Some(live) = &live {
                rt::kill_group(live.group);
                if power {
                    slot.disk.power_cut(seed);
                } else {
                    slot.disk.kill();
                }
            }
            live
        };
        if live.is_some() {
            self.network.close(&address(server));
            let how = if power { "power cut" } else { "kill" };
            trace::event(&name(server), format_args!("{how}"));
        }
    }

    /// Moves a server's wall clock.
    pub(crate) fn jump_wall_clock(&self, server: usize, offset_ms: i64) {
        if let Some(live) = &self.lock().slots[server].live {
            trace::event(&name(server), format_args!("wall clock {offset_ms} ms"));
            rt::set_wall_offset(live.group, offset_ms);
        }
    }

    /// Runs something inside a server, so that it ends with it; none when the server is down or dies meanwhile.
    pub(crate) async fn inside<T, F>(
        &self,
        server: usize,
        work: impl FnOnce(Arc<Core>) -> F,
    ) -> Option<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let (group, core) = {
            let state = self.lock();
            let live = state.slots[server].live.as_ref()?;
            (live.group, live.core.clone()?)
        };
        let task: JoinHandle<T> = rt::spawn_in(group, work(core));
        task.await.ok()
    }

    /// Waits for a condition; false when it did not come true in time.
    pub(crate) async fn wait(
        &self,
        what: &str,
        within: Duration,
        check: impl Fn(&Self) -> bool,
    ) -> bool {
        let deadline = Instant::now() + within;
        while !check(self) {
            if Instant::now() >= deadline {
                self.fail(format!("not within {within:?}: {what}"));
                return false;
            }
            rt::sleep(Duration::from_millis(50)).await;
        }
        trace::event("world", format_args!("{what}"));
        true
    }
}

async fn watch_leader(server: usize, core: Arc<Core>) {
    let mut metrics = core.raft.metrics();
    let mut last = (0, None);
    loop {
        let seen = {
            let now = metrics.borrow_watched();
            (now.current_term, now.current_leader)
        };
        if seen != last {
            let leader = seen.1.map_or_else(|| "none".to_owned(), |id| format!("{id:x}"));
            trace::event(&name(server), format_args!("term {} leader {leader}", seen.0));
            last = seen;
        }
        if metrics.changed().await.is_err() {
            return;
        }
    }
}
