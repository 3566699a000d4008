//! The servers of a simulation: each with a disk of its own, started, killed, cut off from power, paused and started again on what the disk kept.
//!
//! It owns the *fault atlas*: which disks may have lost what they had promised to keep. Never more than a minority has, and a disk counts until its
//! server is a voter again that has caught up, so that whatever goes wrong is the servers' fault. It also judges every state that a server shows.

mod disks;

use std::{
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fsm::{Index, JobKind, NodeId, State as Content};
use leader::{ServicesConfig, broker::BrokerConfig, heartbeat::HeartbeatConfig};

use crate::{
    class::Class,
    clocks::Clocks,
    coverage,
    invariants::{Applied, Disks, Leaders, LogTime, NodeDeaths, NodeLosses, NodeStrikes},
    network::Network,
    services::Services,
    swarm::Swarm,
    trace, verdict,
};
use chance::Dice;
use ground::{
    disk::{
        Disk,
        fault::{ErrorRates, FaultDisk},
    },
    rt::{self, Group, Instant, JoinHandle, WallClock},
};
use raft::{
    WatchReceiver,
    state_machine::PUBLISH_ENTRIES_MAX,
    storage::{shadow, wal},
};
use server::{Core, Parts, Settings};

/// How much later than its deadline a call may end.
const DEADLINE_SLACK: Duration = Duration::from_millis(500);

/// One server.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct Slot {
    disk: FaultDisk,
    incarnation: u64,
    live: Option<Live>,
    /// Its disk returned errors or was full in this incarnation: it may end itself.
    excused: bool,
    /// Its machine stops at some change of its disk, or has: only a new process goes on.
    halting: bool,
    /// Bytes of its disk were flipped: it may refuse to start.
    damaged: bool,
    /// Its disk is not what it was, and it has not caught up since.
    incomplete: bool,
    /// It runs a second time or more on this disk.
    has_history: bool,
    /// A start died over it, which gives the state on disk up, rightly.
    died_starting: bool,
    /// Its number, once it is known.
    number: Option<u64>,
    /// It stands still, or did until then.
    still: Still,
}

/// Whether a server stands still and when it last did. A crash ends that, and does not make it forgotten: what was late is answered afterwards.
#[derive(Clone, Copy, Default)]
struct Still {
    now: bool,
    until: Option<Instant>,
}

impl Still {
    fn ends(&mut self, now: Instant) {
        if std::mem::take(&mut self.now) {
            self.until = Some(now);
        }
    }

    fn since(self, begin: Instant) -> bool {
        self.now || self.until.is_some_and(|until| until >= begin)
    }
}

#[derive(Clone)]
struct Live {
    group: Group,
    /// None while it starts.
    core: Option<Arc<Core>>,
}

pub(crate) struct State {
    slots: Vec<Slot>,
    dice: Dice,
    applied: Applied,
    leaders: Leaders,
    deaths: NodeDeaths,
    strikes: NodeStrikes,
    losses: NodeLosses,
    pub(crate) log_time: LogTime,
    pub(crate) clocks: Clocks,
    disks: Disks,
    appends: u64,
    /// Highest index that a client was told.
    acknowledged: Index,
    /// Faults are over.
    calm: bool,
}

/// All servers of one run.
#[derive(Clone)]
pub(crate) struct World {
    state: Arc<Mutex<State>>,
    /// The network between them.
    pub(crate) network: Network,
    /// What this run is about.
    pub(crate) swarm: Arc<Swarm>,
    /// What goes on whoever dies.
    group_of_all: Group,
}

/// How a server ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Crash {
    /// As `kill -9` does.
    Kill,
    /// With everything that its disk had not made durable.
    Power,
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
    /// The servers of a plan, none of them started.
    pub(crate) fn new(swarm: &Arc<Swarm>) -> Self {
        let mut dice = Dice::named(swarm.seed, "world");
        let slots = (0..swarm.servers).map(|_| Slot::new(dice.bits())).collect();
        let patience = Duration::from_millis(swarm.heartbeat_ttl_ms + swarm.heartbeat_grace_ms);
        let state = State {
            slots,
            dice,
            applied: Applied::default(),
            leaders: Leaders::default(),
            deaths: NodeDeaths::new(patience),
            strikes: NodeStrikes::default(),
            losses: NodeLosses::default(),
            log_time: LogTime::default(),
            clocks: Clocks::draw(swarm),
            disks: Disks::default(),
            appends: 0,
            acknowledged: 0,
            calm: false,
        };
        let world = Self {
            state: Arc::new(Mutex::new(state)),
            network: Network::new(swarm.seed),
            swarm: Arc::clone(swarm),
            group_of_all: rt::new_group(),
        };
        let judge = world.clone();
        world.network.judge_promises(Arc::new(move |to, promise| judge.promised(to, promise)));
        world
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many servers there are.
    pub(crate) fn count(&self) -> usize {
        self.swarm.servers
    }

    /// The core of a server that is up.
    pub(crate) fn core(&self, server: usize) -> Option<Arc<Core>> {
        self.lock().slots[server].live.as_ref()?.core.clone()
    }

    /// Whether a server runs, or starts.
    pub(crate) fn is_up(&self, server: usize) -> bool {
        self.lock().slots[server].live.is_some()
    }

    /// The server that leads, by its own word; the one of the highest term when several say so.
    pub(crate) fn leader(&self) -> Option<usize> {
        let leading = |server| {
            let core = self.core(server)?;
            core.leading().map(|services| (services.epoch, server))
        };
        (0..self.count()).filter_map(leading).max().map(|(_, server)| server)
    }

    /// Whether the faults are over.
    pub(crate) fn is_calm(&self) -> bool {
        self.lock().calm
    }

    /// The newest state that any server showed.
    pub(crate) fn newest(&self) -> Option<Arc<Content>> {
        self.lock().applied.newest().cloned()
    }

    /// Its index; 0 before there is one.
    pub(crate) fn newest_index(&self) -> Index {
        self.newest().map_or(0, |state| state.index())
    }

    /// A client was told this index.
    pub(crate) fn acknowledged(&self, index: Index) {
        let mut state = self.lock();
        state.acknowledged = state.acknowledged.max(index);
    }

    /// An operator is about to purge a node.
    pub(crate) fn is_purged(&self, node: NodeId) {
        self.lock().losses.purges(node);
    }

    /// Whether a node was not back when the last mass loss ended.
    pub(crate) fn was_late(&self, node: NodeId) -> bool {
        self.lock().losses.is_late(node)
    }

    fn settings(&self, server: usize) -> Settings {
        let swarm = &self.swarm;
        Settings {
            name: name(server),
            region: "global".to_owned(),
            datacenter: "dc1".to_owned(),
            data_directory: PathBuf::from("/data"),
            rpc_address: address(server),
            http_address: format!("10.0.0.{server}:4646"),
            bootstrap_expect: (0..self.count()).map(address).collect(),
            join: Vec::new(),
            rejoin_after_rollback: true,
            timing: swarm.timing,
            workers: swarm.workers,
            kinds: JobKind::ALL.to_vec(),
            leader_share: 1_000,
            services: ServicesConfig {
                broker: BrokerConfig {
                    nack_ms: swarm.nack_ms,
                    evaluations_max: swarm.pending_evaluations_max,
                    ..BrokerConfig::default()
                },
                heartbeat: HeartbeatConfig {
                    ttl_ms_min: swarm.heartbeat_ttl_ms,
                    grace_ms: swarm.heartbeat_grace_ms,
                    ..HeartbeatConfig::default()
                },
                ..ServicesConfig::default()
            },
            snapshot_log_bytes: swarm.snapshot_log_bytes,
            log_entries_kept: swarm.log_entries_kept(),
            free_bytes_min: swarm.free_bytes_min(),
            boot: None,
        }
    }

    /// Starts a server on what its disk holds; nothing when it is up.
    pub(crate) fn start(&self, server: usize) {
        let settings = self.settings(server);
        let (group, disk, incarnation) = {
            let mut state = self.lock();
            let slot = &mut state.slots[server];
            if slot.live.is_some() {
                return;
            }
            let group = rt::new_group();
            slot.incarnation += 1;
            slot.excused = false;
            slot.halting = false;
            slot.live = Some(Live { group, core: None });
            let (disk, incarnation) = (slot.disk.clone(), slot.incarnation);
            if self.swarm.has(Class::Busy) && !state.calm {
                rt::set_busy(group, self.swarm.busy_us_max);
            }
            if let Some(wall) = state.clocks.of(server) {
                rt::set_wall_clock(group, wall);
            }
            (group, disk, incarnation)
        };
        trace::event(&name(server), format_args!("start {incarnation}"));
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let engine_disk = Arc::clone(&disk);
        let parts = Parts {
            disk,
            transport: Arc::new(self.network.transport(&address(server))),
            open_engine: Arc::new(move |path| shadow::open_twin(Arc::clone(&engine_disk), path)),
            wal: self.log_options(),
            snapshot_piece_bytes: self.swarm.snapshot_piece_bytes,
            publish_entries_max: self.swarm.batch_entries_max.min(PUBLISH_ENTRIES_MAX),
            providers: Arc::default(),
            passes: rt::Threads::HERE,
        };
        let world = self.clone();
        rt::spawn_in(group, async move {
            match Box::pin(Core::start(settings, parts)).await {
                Ok(core) => world.serve(server, (group, incarnation), core).await,
                Err(error) => world.does_not_start(server, &error),
            }
        });
    }

    fn log_options(&self) -> wal::Options {
        wal::Options {
            segment_bytes_first: self.swarm.segment_bytes,
            segment_bytes_max: self.swarm.segment_bytes * 4,
            batch_entries_max: self.swarm.batch_entries_max,
            cache_bytes_max: self.swarm.cache_bytes_max,
            ..wal::Options::default()
        }
    }

    fn does_not_start(&self, server: usize, error: &anyhow::Error) {
        let (damaged, excused) = {
            let state = self.lock();
            (state.slots[server].damaged, state.slots[server].excused)
        };
        trace::event(&name(server), format_args!("does not start: {error:#}"));
        if damaged {
            // As its message says: move the directory away, and join anew.
            coverage::hit("a damaged server refused to start");
            self.crash_later(server, true);
        } else if excused {
            self.crash_later(server, false);
        } else {
            verdict::fail(format!("{} does not start: {error:#}", name(server)));
        }
    }

    /// A server that ended itself is gone, and comes back after a while, on an empty disk when its own is no good.
    fn crash_later(&self, server: usize, wipe: bool) {
        let world = self.clone();
        let pause = Duration::from_millis(self.lock().dice.between(100, 2_000));
        rt::spawn_in(self.group_of_all, async move {
            if wipe {
                world.wipe(server);
            } else {
                world.crash(server, Crash::Kill);
            }
            rt::sleep(pause).await;
            world.start(server);
        });
    }

    async fn serve(self, server: usize, (group, incarnation): (Group, u64), core: Arc<Core>) {
        trace::event(
            &name(server),
            format_args!("up, server {:x}, applied {}", core.id, core.applied()),
        );
        let (applied, committed) = (core.applied(), core.committed_in_log());
        if committed > 0 {
            coverage::hit("a server knew at its start what was committed");
        }
        if applied < committed {
            verdict::fail(format!(
                "I13: {} started at index {applied} and knew {committed} to be committed",
                name(server)
            ));
        }
        {
            let mut state = self.lock();
            let slot = &mut state.slots[server];
            if slot.has_history {
                coverage::hit("a server restarted with a log");
            }
            slot.has_history = true;
            slot.number = Some(core.id);
            if slot.damaged {
                coverage::hit("a server with a damaged disk started and was right");
            }
            if let Some(live) = &mut slot.live {
                live.core = Some(Arc::clone(&core));
            }
        }
        if core.log_recovery.cut.is_some() {
            coverage::hit("a torn write was cut from a log");
        }
        let services = Services::new(&core);
        self.network.listen(&address(server), name(server), group, (incarnation, services));
        rt::spawn(self.clone().watch_leader(server, Arc::clone(&core)));
        rt::spawn(self.clone().watch_state(server, Arc::clone(&core)));
        rt::spawn(self.clone().watch_failure(server, Arc::clone(&core)));
        if let Err(error) = core.join_cluster().await {
            let (damaged, excused) = {
                let state = self.lock();
                (state.slots[server].damaged, state.slots[server].excused)
            };
            trace::event(&name(server), format_args!("does not join: {error:#}"));
            if damaged || excused {
                self.crash_later(server, damaged);
            } else {
                verdict::fail(format!("{} does not join: {error:#}", name(server)));
            }
        }
    }

    /// Every state that a replica shows is judged, and compared with what the others had at that index.
    async fn watch_state(self, server: usize, core: Arc<Core>) {
        let mut last = 0;
        loop {
            let content = core.cell.load();
            let (index, digest) = (content.index(), content.digest());
            trace::event(&name(server), format_args!("applied {index} {digest}"));
            if index < last {
                verdict::fail(format!("I7: {} went from index {last} to {index}", name(server)));
            }
            last = index;
            self.judge(server, &content);
            drop(content);
            core.cell.wait_for(index + 1, Duration::from_hours(1)).await;
        }
    }

    /// A server shows a state.
    pub(crate) fn judge(&self, server: usize, content: &Arc<Content>) {
        let now = rt::simulated_elapsed();
        (0..self.count()).for_each(|server| self.note_clocks(server));
        let mut state = self.lock();
        let before = state.applied.newest().cloned();
        let mut broken = state.applied.shows(&name(server), content);
        broken.extend(state.log_time.shows(content.at(), now));
        broken.extend(state.clocks.shows(content.at()));
        if let Some(before) = before.filter(|before| before.index() < content.index()) {
            broken.extend(state.deaths.step(&before, content, now));
            broken.extend(state.strikes.step(&before, content));
            broken.extend(state.losses.step(&before, content));
            note_changes(&before, content);
        }
        drop(state);
        for one in broken {
            verdict::fail(format!("{one} (seen on {})", name(server)));
        }
    }

    async fn watch_leader(self, server: usize, core: Arc<Core>) {
        let mut metrics = core.raft.metrics();
        let mut last = (0, None);
        let mut led = None;
        loop {
            let seen = {
                let now = metrics.borrow_watched();
                (now.current_term, now.current_leader)
            };
            if seen != last {
                let leader = seen.1.map_or_else(|| "none".to_owned(), |id| format!("{id:x}"));
                trace::event(&name(server), format_args!("term {} leader {leader}", seen.0));
                last = seen;
                let mut state = self.lock();
                let acknowledged = state.acknowledged;
                state.leaders.heard_of(seen.0, acknowledged);
                if let Some(leader) = seen.1 {
                    verdict::note(state.leaders.leads(seen.0, leader).map(drop));
                }
            }
            self.watch_services((server, &core), &mut led);
            // Services begin a little after the metrics say so.
            let begins = last.1 == Some(core.id) && led.is_none();
            let wait = Duration::from_millis(if begins { 5 } else { 250 });
            if let Ok(Err(_)) = rt::timeout(wait, metrics.changed()).await {
                // Raft has ended.
                self.watch_services((server, &core), &mut led);
                return;
            }
        }
    }

    /// What a leadership begins with, and how many leases are out when it ends.
    fn watch_services(&self, (server, core): (usize, &Core), led: &mut Option<(u64, usize)>) {
        let now = core.leading().map(|services| (services.epoch, services.leases_outstanding()));
        let before = led.map(|(term, _)| term);
        if let Some((term, leases)) = *led
            && now.is_none_or(|(other, _)| other != term)
        {
            coverage::hit("a leader was deposed");
            if leases > 0 {
                coverage::hit("a leader was lost while evaluations were leased");
            }
        }
        if let Some((term, _)) = now
            && before != Some(term)
        {
            self.note_clocks(server);
            self.judge_leaders_time(server, core);
            let mut state = self.lock();
            state.deaths.leadership(term, rt::simulated_elapsed());
            verdict::note(state.leaders.begins(term, core.applied()));
        }
        *led = now;
    }

    async fn watch_failure(self, server: usize, core: Arc<Core>) {
        let mut failed = core.failed();
        if failed.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let why = failed.borrow().clone().unwrap_or_default();
        trace::event(&name(server), format_args!("ended itself: {why}"));
        if core.starts_anew() {
            coverage::hit("a server whose disk went back joined anew");
            return self.crash_later(server, false);
        }
        let (excused, damaged) = {
            let state = self.lock();
            (state.slots[server].excused, state.slots[server].damaged)
        };
        if excused {
            coverage::hit("a failed disk ended a server");
            self.crash_later(server, false);
        } else if damaged {
            self.crash_later(server, true);
        } else {
            verdict::fail(format!("{} ended itself: {why}", name(server)));
        }
    }

    /// Ends a server; false when it did not run.
    pub(crate) fn crash(&self, server: usize, how: Crash) -> bool {
        self.note_clocks(server);
        let leases = self
            .core(server)
            .and_then(|core| core.leading())
            .map(|services| services.leases_outstanding());
        let live = {
            let mut state = self.lock();
            let seed = state.dice.bits();
            let slot = &mut state.slots[server];
            let live = slot.live.take();
            if let Some(live) = &live {
                rt::kill_group(live.group);
                match how {
                    Crash::Power => slot.disk.power_cut(seed),
                    Crash::Kill => slot.disk.kill(),
                }
                slot.died_starting |= live.core.is_none();
                slot.disk.set_capacity(None);
                slot.still.ends(Instant::now());
            }
            live
        };
        let Some(live) = live else { return false };
        self.network.close(&address(server));
        trace::event(&name(server), format_args!("{how:?}"));
        self.judge_disk(server, live.core.is_some());
        if let Some(leases) = leases {
            coverage::hit("a leader crashed");
            if leases > 0 {
                coverage::hit("a leader was lost while evaluations were leased");
            }
        }
        true
    }

    fn group(&self, server: usize) -> Option<Group> {
        self.lock().slots[server].live.as_ref().map(|live| live.group)
    }

    /// Sets a server's wall clock.
    pub(crate) fn set_wall_clock(&self, server: usize, offset_ms: i64, drift_per_mille: i64) {
        let Some(group) = self.group(server) else { return };
        trace::event(
            &name(server),
            format_args!("wall clock {offset_ms} ms, drift {drift_per_mille}"),
        );
        let since = rt::simulated_elapsed();
        rt::set_wall_clock(group, WallClock { offset_ms, drift_per_mille, since });
    }

    /// Stops a server as SIGSTOP does, for so long.
    pub(crate) fn pause(&self, server: usize, pause: Duration) {
        let Some(group) = self.group(server) else { return };
        let epoch = self.core(server).and_then(|core| core.leading()).map(|led| led.epoch);
        trace::event(&name(server), format_args!("stands still for {pause:?}"));
        rt::pause_group(group);
        self.lock().slots[server].still.now = true;
        let world = self.clone();
        rt::spawn_in(self.group_of_all, async move {
            rt::sleep(pause).await;
            world.resume(server, group, epoch);
        });
    }

    fn resume(&self, server: usize, group: Group, epoch: Option<u64>) {
        if self.group(server) != Some(group) {
            return;
        }
        trace::event(&name(server), format_args!("goes on"));
        coverage::hit("a paused server went on");
        let newer = self.leader().filter(|leader| *leader != server);
        if epoch.is_some() && newer.is_some() {
            coverage::hit("a paused leader was deposed");
        }
        self.goes_on(server);
        rt::resume_group(group);
    }

    fn goes_on(&self, server: usize) {
        self.lock().slots[server].still.ends(Instant::now());
    }

    /// Takes every fault of the servers away and brings back those that are down.
    pub(crate) fn heal(&self) {
        self.network.set_weather(crate::network::CALM);
        self.network.mend();
        for server in 0..self.count() {
            self.limit_disk(server, None);
            let begins_anew = {
                let mut state = self.lock();
                state.calm = true;
                let slot = &mut state.slots[server];
                slot.disk.set_error_rates(ErrorRates::default());
                // Its disk failed, perhaps unnoticed so far: it begins anew on a good one, or has to go on by itself.
                slot.excused && (slot.halting || !self.swarm.has(Class::Spared))
            };
            if begins_anew {
                self.crash(server, Crash::Kill);
            }
            if !self.is_odd(server) {
                self.set_wall_clock(server, 0, 0);
            }
            self.slow_disk(server, 0);
            if let Some(group) = self.group(server) {
                rt::set_busy(group, 0);
                self.goes_on(server);
                rt::resume_group(group);
            }
            self.start(server);
        }
    }

    /// Whether the node of each agent may be given work.
    pub(crate) fn is_every_node_in_service(&self) -> bool {
        self.newest().is_some_and(|state| {
            state.nodes().iter().filter(|node| node.is_schedulable()).count() >= self.swarm.agents
        })
    }

    /// B15: the configuration is not a joint one, and holds every server as it is now, each a voter, and nobody else.
    pub(crate) fn is_membership_whole(&self) -> bool {
        let Some(leader) = self.leader().and_then(|leader| self.core(leader)) else { return false };
        let now = (0..self.count()).filter_map(|server| self.core(server)).map(|core| core.id);
        let mut now: Vec<u64> = now.collect();
        now.sort_unstable();
        let only_voters = leader.contact.member_infos().iter().all(|member| member.voter);
        only_voters && leader.contact.settled_voters() == Some(now)
    }

    /// Whether a request may reach a server twice, so that a refusal of one says nothing of the other.
    pub(crate) fn may_repeat(&self) -> bool {
        self.swarm.has(Class::Duplicates) || self.swarm.has(Class::Late)
    }

    /// A state that somebody was shown, judged like every other.
    pub(crate) fn shown(&self, server: usize, content: &Arc<Content>) {
        self.judge(server, content);
    }

    /// Whether a server stood still at some time since then: it cannot keep a deadline.
    pub(crate) fn stood_still(&self, server: usize, since: Instant) -> bool {
        self.lock().slots[server].still.since(since)
    }

    /// Which start of a server this is.
    pub(crate) fn incarnation(&self, server: usize) -> u64 {
        self.lock().slots[server].incarnation
    }

    /// A call that was given so much time has ended: no later than that, unless its server stood still, or died over it.
    pub(crate) fn keeps_deadline(
        &self,
        server: usize,
        begin: Instant,
        timeout: Duration,
        answered: bool,
        what: &str,
    ) {
        let took = begin.elapsed();
        if answered && is_late(took, timeout) && !self.stood_still(server, begin) {
            verdict::fail(format!(
                "P6: {what} through s{server} was given {timeout:?} and took {took:?}"
            ));
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

    /// The links between two servers, each in one direction, that this says yes to: from, to.
    pub(crate) fn links(&self, apart: impl Fn(usize, usize) -> bool) -> Vec<(String, String)> {
        let count = self.count();
        let pairs = (0..count).flat_map(|from| (0..count).map(move |to| (from, to)));
        let apart = pairs.filter(|(from, to)| from != to && apart(*from, *to));
        apart.map(|(from, to)| (address(from), address(to))).collect()
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
            if verdict::has_failed() {
                return false;
            }
            if Instant::now() >= deadline {
                verdict::fail(format!("not within {within:?}: {what}"));
                return false;
            }
            rt::sleep(Duration::from_millis(50)).await;
        }
        trace::event("world", format_args!("{what}"));
        true
    }
}

impl Slot {
    fn new(seed: u64) -> Self {
        Self {
            disk: FaultDisk::new(seed),
            incarnation: 0,
            live: None,
            excused: false,
            halting: false,
            damaged: false,
            incomplete: false,
            has_history: false,
            died_starting: false,
            number: None,
            still: Still::default(),
        }
    }
}

/// Whether a call that was given `timeout` ended too late.
fn is_late(took: Duration, timeout: Duration) -> bool {
    took > timeout + DEADLINE_SLACK
}

/// Counts what a step shows.
fn note_changes(old: &Content, new: &Content) {
    if old.head().tables == new.head().tables {
        return;
    }
    let is_down = |node: &fsm::Node| node.liveness == fsm::Liveness::Down;
    let was_down = |id| old.nodes().get(id).is_some_and(|node| is_down(node));
    if new.nodes().iter().any(|node| is_down(node) && !was_down(&node.id)) {
        coverage::hit("a node went down");
    }
    let blocked = |state: &Content| {
        let is_blocked = |row: &&Arc<fsm::Evaluation>| row.status == fsm::EvaluationStatus::Blocked;
        state.evaluations().iter().filter(is_blocked).count()
    };
    if blocked(new) > blocked(old) {
        coverage::hit("an evaluation was blocked");
    }
    if new.allocations().iter().any(|row| row.create_index > old.index() && row.previous.is_some())
    {
        coverage::hit("an allocation was replaced");
    }
    note_nodes(old, new);
}

/// Counts what a step shows of nodes that fail or are lost.
fn note_nodes(old: &Content, new: &Content) {
    let is_down = |node: &fsm::Node| node.liveness == fsm::Liveness::Down;
    for node in new.nodes().iter() {
        let Some(was) = old.nodes().get(&node.id) else { continue };
        if node.strikes > was.strikes {
            let reason = node.suspension().map(|one| one.reason);
            coverage::hit(if reason == Some(fsm::node::SuspendReason::Flaky) {
                "a strike suspended a node"
            } else {
                "a strike suspended no node, for as many were as may be"
            });
        }
        let due_at = was.lost_at.map(|at| at + old.node_life().lost_grace_ms);
        let is_due = due_at.is_some_and(|due| due < old.at());
        if is_down(was) && !is_down(node) && is_due && old.mass_loss().is_some() {
            coverage::hit("a node that was due to be reaped came back from a mass loss");
        }
    }
    match (old.mass_loss(), new.mass_loss()) {
        (None, Some(_)) => coverage::hit("a mass loss began"),
        (Some(_), None) => coverage::hit("the servers ended a mass loss"),
        (None, None) | (Some(_), Some(_)) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p6_a_server_that_stood_still_is_excused_after_a_crash_too_and_only_what_began_before() {
        let mut still = Still { now: true, until: None };
        let begin = Instant::now();
        assert!(still.since(begin));
        let crash = begin + Duration::from_secs(6);
        still.ends(crash);
        still.ends(crash + Duration::from_secs(1));
        assert!(still.since(begin), "seed 5078");
        assert!(!still.since(crash + Duration::from_millis(1)));
    }

    #[test]
    fn p6_a_call_that_ends_after_its_deadline_is_found() {
        let second = Duration::from_secs(1);
        assert!(!is_late(second, second));
        assert!(is_late(2 * second, second));
    }
}
