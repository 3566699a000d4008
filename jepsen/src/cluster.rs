//! The servers: real processes with their own configuration, data and log.
//!
//! Owns every server as a `launch::Member`. All are killed when the cluster is dropped, and by the
//! guard if the harness dies. A server whose disk is away or damaged is *held* and must never be
//! started: on the empty folder below the mount it would be a new server.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use launch::{Group, Log, Member, Settings, Signal};

use crate::{
    checker::crash::Exit,
    client::HttpClient,
    fault::FaultClass,
    guard::Guard,
    loop_disk::LoopDisk,
    network::Network,
    owned::Ledger,
    server_config::{Peer, settings},
    store::server_log,
    system::System,
};

/// How long a killed process may take to be gone, or a stopped one to stop.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to end after SIGTERM.
pub(crate) const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Patience with one status question.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
/// How long after a disk fault a server may still end because of it.
const TOLERANCE: Duration = Duration::from_secs(5);
const POLL: Duration = Duration::from_millis(20);

/// What a cluster is made from.
pub(crate) struct Setup {
    /// What is tested.
    pub(crate) system: System,
    /// The server binary.
    pub(crate) binary: PathBuf,
    /// What servers run before they are upgraded to it.
    pub(crate) old_binary: Option<PathBuf>,
    /// The run's directory; each server gets a directory in it.
    pub(crate) directory: PathBuf,
    /// How many servers.
    pub(crate) servers: usize,
    /// Passed to the servers as `QUORATE_PLANT`.
    pub(crate) plant: Option<String>,
    /// Log bytes after which a server writes a snapshot.
    pub(crate) snapshot_log_bytes: u64,
    /// Servers run in namespaces of their own instead of on loopback behind proxies.
    pub(crate) namespaces: bool,
    /// Every server's data is on a file system of its own.
    pub(crate) loop_disks: bool,
    /// The library with which clocks can jump.
    pub(crate) faketime: Option<PathBuf>,
    /// Further lines of every server's configuration.
    pub(crate) settings: Settings,
    /// Notes what has to be undone; needed for namespaces, disks and machines.
    pub(crate) ledger: Option<Arc<Mutex<Ledger>>>,
    /// Kills the servers if the harness dies.
    pub(crate) guard: Option<Guard>,
}

/// Where a server is; fixed for the whole run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    /// `n1`, `n2`, …
    pub(crate) name: String,
    /// HTTP address, used by clients directly.
    pub(crate) http: SocketAddr,
    /// RPC address, reached by the other servers through the network.
    pub(crate) rpc: SocketAddr,
}

/// Whether a fault took hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It did.
    Done,
    /// There was nothing to do it to.
    Nothing,
    /// The signal was sent and its effect was not seen in time.
    Unclear(String),
}

/// The servers of a run.
pub(crate) struct Cluster {
    endpoints: Vec<Endpoint>,
    nodes: Vec<Node>,
    network: Network,
    exits: Vec<Exit>,
    tolerated: Vec<Exit>,
    setup: Setup,
}

/// What we did to end a process.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Ending {
    /// Nothing: it runs, or has ended by itself.
    #[default]
    None,
    /// We sent SIGTERM and have not seen the end in time: it may come at any time.
    TermSent,
    /// We sent SIGKILL and have not seen the end yet.
    KillSent,
    /// It is down because of us.
    Done,
    /// It ended by itself, because of a fault of its disk.
    Fault,
}

impl Ending {
    /// Whether this is how a process ends to which we did that.
    fn explains(self, status: ExitStatus) -> bool {
        match self {
            Self::TermSent => status.success() || status.signal() == Some(Signal::TERM.as_raw()),
            Self::KillSent => status.signal() == Some(Signal::KILL.as_raw()),
            Self::None | Self::Done | Self::Fault => false,
        }
    }
}

struct Node {
    directory: PathBuf,
    member: Member,
    paused: bool,
    frozen: bool,
    ending: Ending,
    /// Why it must not be started.
    held: Option<FaultClass>,
    /// Faults because of which it may end by itself, each until a time (open: as long as it lasts).
    excuses: BTreeMap<FaultClass, Option<Instant>>,
    disk: Option<LoopDisk>,
    /// It runs the newer of two binaries from its next start on.
    is_upgraded: bool,
}

impl Cluster {
    /// Makes the network and the disks and writes the configuration files; starts no server.
    pub(crate) fn create(setup: Setup) -> Result<Self> {
        let ledger = || setup.ledger.as_ref().context("a ledger is needed for this");
        let (network, addresses) = if setup.namespaces {
            Network::namespaces(setup.servers, ledger()?)?
        } else {
            Network::proxies(setup.servers)?
        };
        let endpoints: Vec<Endpoint> = (1..)
            .zip(addresses)
            .map(|(number, (http, rpc))| Endpoint { name: format!("n{number}"), http, rpc })
            .collect();
        let mut nodes = Vec::new();
        for endpoint in &endpoints {
            let directory = setup.directory.join(&endpoint.name);
            fs::create_dir_all(&directory)
                .with_context(|| format!("cannot create {}", directory.display()))?;
            let disk = if setup.loop_disks {
                let (image, data) = (directory.join("disk.img"), directory.join("data"));
                Some(LoopDisk::create(&image, &data, ledger()?)?)
            } else {
                None
            };
            let log = Log::new(server_log(&setup.directory, &endpoint.name));
            nodes.push(Node {
                directory,
                member: Member::new(&endpoint.name, log),
                paused: false,
                frozen: false,
                ending: Ending::None,
                held: None,
                excuses: BTreeMap::new(),
                disk,
                is_upgraded: false,
            });
        }
        let cluster =
            Self { endpoints, nodes, network, exits: Vec::new(), tolerated: Vec::new(), setup };
        for server in 0..cluster.len() {
            cluster.write_config(server)?;
        }
        Ok(cluster)
    }

    /// How many servers there are.
    pub(crate) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Where they are.
    pub(crate) fn endpoints(&self) -> &[Endpoint] {
        &self.endpoints
    }

    /// What is tested.
    pub(crate) fn system(&self) -> System {
        self.setup.system
    }

    /// The links between them.
    pub(crate) fn network(&self) -> &Network {
        &self.network
    }

    /// Exits so far that nobody here caused.
    pub(crate) fn exits(&self) -> &[Exit] {
        &self.exits
    }

    /// Exits so far of servers that were right to end, because of a disk fault.
    pub(crate) fn tolerated(&self) -> &[Exit] {
        &self.tolerated
    }

    /// The data of a server.
    pub(crate) fn data(&self, server: usize) -> PathBuf {
        self.nodes[server].directory.join("data")
    }

    /// The file that tells a server's disk to fail.
    pub(crate) fn disk_faults(&self, server: usize) -> PathBuf {
        self.nodes[server].directory.join("disk-faults")
    }

    /// The file that tells a server's clock to jump.
    pub(crate) fn clock_file(&self, server: usize) -> PathBuf {
        self.nodes[server].directory.join("clock")
    }

    /// Notes that a server did what no fault excuses; the run is then red.
    pub(crate) fn accuse(&mut self, server: usize, what: &str) {
        let node = self.endpoints[server].name.clone();
        self.exits.push(Exit { node, status: what.to_owned() });
    }

    /// Servers whose process exists.
    pub(crate) fn running(&mut self) -> Vec<usize> {
        self.reap();
        (0..self.len()).filter(|server| self.nodes[*server].member.is_running()).collect()
    }

    /// Running servers that are paused, or not.
    pub(crate) fn running_and(&mut self, paused: bool) -> Vec<usize> {
        let mut servers = self.running();
        servers.retain(|server| self.nodes[*server].paused == paused);
        servers
    }

    /// Why a server must not be started, if so.
    pub(crate) fn held(&self, server: usize) -> Option<FaultClass> {
        self.nodes[server].held
    }

    /// Forbids starting a server that is down, or allows it again.
    pub(crate) fn hold(&mut self, server: usize, why: Option<FaultClass>) {
        self.nodes[server].held = why;
    }

    /// From now on the server may end by itself because of this fault.
    pub(crate) fn excuse(&mut self, server: usize, class: FaultClass) {
        self.nodes[server].excuses.insert(class, None);
    }

    /// The fault is over; what it has already caused may still show for a while.
    pub(crate) fn end_excuse(&mut self, server: usize, class: FaultClass) {
        if let Some(until) = self.nodes[server].excuses.get_mut(&class) {
            until.get_or_insert(Instant::now() + TOLERANCE);
        }
    }

    /// Starts a server that is down and not held.
    pub(crate) fn start(&mut self, server: usize) -> Result<Effect> {
        if self.running().contains(&server) || self.nodes[server].held.is_some() {
            return Ok(Effect::Nothing);
        }
        let command = self.command(server);
        let started = self.nodes[server].member.start(command, Group::Own);
        let pid =
            started.with_context(|| format!("cannot start {}", self.binary(server).display()))?;
        let node = &mut self.nodes[server];
        node.paused = false;
        node.ending = Ending::None;
        if let Some(guard) = &mut self.setup.guard {
            guard.watch(pid)?;
        }
        Ok(Effect::Done)
    }

    /// From its next start on a server runs the newer binary, if there are two.
    pub(crate) fn upgrade(&mut self, server: usize) {
        self.nodes[server].is_upgraded = true;
    }

    /// What a server runs when it is started next.
    pub(crate) fn binary(&self, server: usize) -> &Path {
        let old = self.setup.old_binary.as_ref();
        old.filter(|_| !self.nodes[server].is_upgraded).unwrap_or(&self.setup.binary)
    }

    fn command(&self, server: usize) -> Command {
        let directory = &self.nodes[server].directory;
        let mut command = match self.network.namespace(server) {
            None => Command::new(self.binary(server)),
            Some(namespace) => {
                let mut command = Command::new("nsenter");
                command.arg(format!("--net=/run/netns/{namespace}")).arg(self.binary(server));
                command
            }
        };
        command
            .args(self.setup.system.arguments(directory, &self.endpoints, server))
            .current_dir(directory)
            .env("QUORATE_DISK_FAULTS", self.disk_faults(server));
        match &self.setup.plant {
            Some(plant) => command.env("QUORATE_PLANT", plant),
            None => command.env_remove("QUORATE_PLANT"),
        };
        if let Some(library) = &self.setup.faketime {
            command
                .env("LD_PRELOAD", library)
                .env("FAKETIME_TIMESTAMP_FILE", self.clock_file(server))
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command
    }

    /// The network namespace that a server is in, if it is in one of its own.
    pub(crate) fn namespace(&self, server: usize) -> Option<&str> {
        self.network.namespace(server)
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, server: usize) -> Result<Effect> {
        self.reap();
        let node = &mut self.nodes[server];
        if !node.member.is_running() {
            return Ok(Effect::Nothing);
        }
        let was_asked = node.ending == Ending::TermSent;
        node.member.signal(Signal::KILL).context("cannot send SIGKILL")?;
        node.ending = Ending::KillSent;
        match self.await_exit(server, SIGNAL_TIMEOUT)? {
            Some(status)
                if Ending::KillSent.explains(status)
                    || (was_asked && Ending::TermSent.explains(status)) =>
            {
                self.nodes[server].ending = Ending::Done;
                Ok(Effect::Done)
            }
            Some(status) => {
                self.note_exit(server, &status.to_string());
                Ok(Effect::Unclear(format!("it ended by itself: {status}")))
            }
            None => Ok(Effect::Unclear("it was not gone in time".to_owned())),
        }
    }

    /// Asks a server to end, with SIGTERM, unless it is about to.
    pub(crate) fn ask_to_end(&mut self, server: usize) -> Result<Effect> {
        if !self.running_and(false).contains(&server) || self.is_ending(server) {
            return Ok(Effect::Nothing);
        }
        self.signal(server, Signal::TERM)?;
        self.nodes[server].ending = Ending::TermSent;
        Ok(Effect::Done)
    }

    /// Whether a server was sent a signal that ends it, and has not ended yet.
    pub(crate) fn is_ending(&mut self, server: usize) -> bool {
        self.reap();
        matches!(self.nodes[server].ending, Ending::TermSent | Ending::KillSent)
    }

    /// Whether a server is down because a fault ended it, and not by itself.
    pub(crate) fn was_ended(&self, server: usize) -> bool {
        self.nodes[server].ending == Ending::Done
    }

    /// Stops a server's process with SIGSTOP.
    pub(crate) fn pause(&mut self, server: usize) -> Result<Effect> {
        if !self.running_and(false).contains(&server) {
            return Ok(Effect::Nothing);
        }
        self.signal(server, Signal::STOP)?;
        self.nodes[server].paused = true;
        let end = Instant::now() + SIGNAL_TIMEOUT;
        loop {
            match self.process_state(server)? {
                'T' => break,
                // It was about to end, because of its frozen disk perhaps: noted now, while that
                // is still known to be the reason.
                'Z' | 'X' => {
                    self.reap();
                    return Ok(Effect::Unclear("it ended by itself".to_owned()));
                }
                _ => {}
            }
            if Instant::now() >= end {
                return Ok(Effect::Unclear("it was not stopped in time".to_owned()));
            }
            thread::sleep(POLL);
        }
        Ok(Effect::Done)
    }

    /// Lets a paused server go on.
    pub(crate) fn resume(&mut self, server: usize) -> Result<Effect> {
        if !self.running_and(true).contains(&server) {
            return Ok(Effect::Nothing);
        }
        self.signal(server, Signal::CONT)?;
        self.nodes[server].paused = false;
        Ok(Effect::Done)
    }

    /// Cuts the power of these servers at one moment: first all stand still, then no disk takes anything any more,
    /// then the processes end. Returns those it was done to; they are held until [`Cluster::power_on`].
    pub(crate) fn power_off(&mut self, servers: &[usize]) -> Result<Vec<usize>> {
        let running = self.running();
        let mut struck = servers.to_vec();
        struck.retain(|server| {
            let node = &self.nodes[*server];
            running.contains(server) && node.disk.is_some() && !node.frozen
        });
        for server in &struck {
            self.pause(*server)?;
        }
        for server in &struck {
            let disk = self.nodes[*server].disk.as_ref().context("it has a disk of its own")?;
            disk.cut_power()?;
        }
        for server in &struck {
            self.kill(*server)?;
            self.nodes[*server].held = Some(FaultClass::Power);
        }
        Ok(struck)
    }

    /// Gives a server its disk back, as recovered as a mount makes it, and starts it.
    pub(crate) fn power_on(&mut self, server: usize) -> Result<Effect> {
        if self.nodes[server].held != Some(FaultClass::Power) {
            return Ok(Effect::Nothing);
        }
        let disk = self.nodes[server].disk.as_ref().context("it has a disk of its own")?;
        disk.remount()?;
        self.nodes[server].held = None;
        self.start(server)
    }

    /// Freezes a server's file system.
    pub(crate) fn freeze(&mut self, server: usize) -> Result<Effect> {
        let node = &mut self.nodes[server];
        match &node.disk {
            Some(disk) if node.member.is_running() && !node.frozen => disk.freeze()?,
            Some(_) | None => return Ok(Effect::Nothing),
        }
        node.frozen = true;
        Ok(Effect::Done)
    }

    /// Whether a server's file system is frozen: whoever writes to it waits.
    pub(crate) fn is_frozen(&self, server: usize) -> bool {
        self.nodes[server].frozen
    }

    /// Ends [`Cluster::freeze`].
    pub(crate) fn thaw(&mut self, server: usize) -> Result<Effect> {
        let node = &mut self.nodes[server];
        match &node.disk {
            Some(disk) if node.frozen => disk.thaw()?,
            Some(_) | None => return Ok(Effect::Nothing),
        }
        node.frozen = false;
        Ok(Effect::Done)
    }

    /// Notes servers that ended without being told to.
    pub(crate) fn reap(&mut self) {
        for server in 0..self.len() {
            let ending = self.nodes[server].ending;
            // An error means that it cannot be waited for; it is found at the next signal.
            if let Ok(Some(status)) = self.poll(server) {
                if ending.explains(status) {
                    self.nodes[server].ending = Ending::Done;
                } else if ending == Ending::TermSent {
                    self.note_exit(server, &format!("{status} after SIGTERM"));
                } else {
                    self.note_exit(server, &status.to_string());
                }
            }
        }
    }

    /// Starts what a fault of a disk ended, once that fault is over, as a supervisor does; returns
    /// those started. A process may end long after the fault: one whose write hung ends when the
    /// disk answers again.
    pub(crate) fn revive(&mut self) -> Result<Vec<usize>> {
        self.reap();
        let mut started = Vec::new();
        for server in 0..self.len() {
            let node = &self.nodes[server];
            let is_over = node.excuses.values().all(Option::is_some);
            if node.ending == Ending::Fault && is_over && self.start(server)? == Effect::Done {
                started.push(server);
            }
        }
        Ok(started)
    }

    /// Waits until every server names a leader; `false` if they did not in time. Those that a fault
    /// has ended are started: one that hung in its disk when it was killed ends later than its
    /// faults.
    pub(crate) fn await_ready(&mut self, timeout: Duration) -> Result<bool> {
        let end = Instant::now() + timeout;
        let clients = self.status_clients();
        let exits = self.exits.len();
        loop {
            self.revive()?;
            for server in 0..self.len() {
                if self.was_ended(server) {
                    self.start(server)?;
                }
            }
            let up = self.nodes.iter().all(|node| node.member.is_running());
            let system = self.setup.system;
            let names_one = |(endpoint, client)| system.leadership(endpoint, client).is_some();
            if up && self.endpoints.iter().zip(&clients).all(names_one) {
                return Ok(true);
            }
            // A server that ended by itself does not come back by waiting.
            if Instant::now() >= end || (!up && self.exits.len() > exits) {
                return Ok(false);
            }
            thread::sleep(POLL * 5);
        }
    }

    /// Ends all servers with SIGTERM, those that do not end in time with SIGKILL; returns the latter.
    pub(crate) fn stop(&mut self) -> Result<Vec<String>> {
        let mut slow = Vec::new();
        for server in self.running() {
            self.resume(server)?;
            self.ask_to_end(server)?;
        }
        let end = Instant::now() + STOP_TIMEOUT;
        for server in 0..self.len() {
            while self.is_ending(server) && Instant::now() < end {
                thread::sleep(POLL);
            }
            if self.is_ending(server) {
                slow.push(self.endpoints[server].name.clone());
                self.kill(server)?;
            }
        }
        Ok(slow)
    }

    /// The last lines of a server's log.
    pub(crate) fn log_tail(&self, server: usize) -> String {
        self.nodes[server].member.log().last_lines(5).unwrap_or_default().join("\n")
    }

    /// How long a server's log is, to find later what was added.
    pub(crate) fn log_bytes(&self, server: usize) -> u64 {
        self.nodes[server].member.log().bytes()
    }

    /// What a server's log got since it had this length.
    pub(crate) fn log_since(&self, server: usize, bytes: u64) -> String {
        self.nodes[server].member.log().text_since(bytes).unwrap_or_default()
    }

    fn status_clients(&self) -> Vec<HttpClient> {
        let client = |endpoint: &Endpoint| HttpClient::new(endpoint.http, STATUS_TIMEOUT);
        self.endpoints.iter().map(client).collect()
    }

    fn await_exit(&mut self, server: usize, timeout: Duration) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + timeout;
        loop {
            anyhow::ensure!(self.nodes[server].member.is_running(), "the server is not running");
            let status = self.poll(server)?;
            if status.is_some() || Instant::now() >= end {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    /// How a server ended, if it has ended since it was last asked; the guard then forgets it.
    fn poll(&mut self, server: usize) -> Result<Option<ExitStatus>> {
        let node = &mut self.nodes[server];
        let pid = node.member.pid();
        let status = node.member.poll().context("cannot wait for a server")?;
        if let (Some(pid), true) = (pid, status.is_some()) {
            node.paused = false;
            node.ending = Ending::None;
            if let Some(guard) = &mut self.setup.guard {
                // If the guard is gone there is nobody to forget the process.
                guard.forget(pid).ok();
            }
        }
        Ok(status)
    }

    /// Whether the server is within the time in which a fault may end it.
    fn excused(&self, server: usize) -> bool {
        let now = Instant::now();
        self.nodes[server].excuses.values().any(|until| until.is_none_or(|until| now < until))
    }

    fn note_exit(&mut self, server: usize, status: &str) {
        let exit = Exit { node: self.endpoints[server].name.clone(), status: status.to_owned() };
        if self.excused(server) {
            self.nodes[server].ending = Ending::Fault;
            self.tolerated.push(exit);
        } else {
            self.exits.push(exit);
        }
    }

    fn signal(&self, server: usize, signal: Signal) -> Result<()> {
        self.nodes[server].member.signal(signal).context("cannot signal a server")
    }

    /// The state letter of `/proc/PID/stat`.
    fn process_state(&self, server: usize) -> Result<char> {
        let stat = self.nodes[server].member.stat();
        Ok(stat.context("cannot read the state of a server's process")?.state)
    }

    fn write_config(&self, server: usize) -> Result<()> {
        let endpoint = &self.endpoints[server];
        let directory = &self.nodes[server].directory;
        let peers = (0..self.len()).filter(|peer| *peer != server).map(|peer| Peer {
            rpc: self.endpoints[peer].rpc,
            dial: self.network.detour(server, peer),
        });
        let mut settings = settings(endpoint, directory, peers, self.setup.snapshot_log_bytes);
        settings.extend(&self.setup.settings);
        let path = directory.join("server.toml");
        settings.write(&path).with_context(|| format!("cannot write {}", path.display()))?;
        let clock = self.clock_file(server);
        fs::write(&clock, "+0").with_context(|| format!("cannot write {}", clock.display()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let (Some(disk), true) = (&node.disk, node.frozen) {
                // What stays frozen is in the ledger; but nobody in it can end.
                disk.thaw().ok();
            }
        }
    }
}

/// Asks every server at once for the leader; the servers that name themselves, else the one most of them name.
pub(crate) fn leaders(system: System, endpoints: &[Endpoint]) -> Vec<usize> {
    let answers: Vec<_> = thread::scope(|scope| {
        let ask = move |endpoint: &Endpoint| {
            system.leadership(endpoint, &HttpClient::new(endpoint.http, STATUS_TIMEOUT))
        };
        let asked: Vec<_> =
            endpoints.iter().map(|endpoint| scope.spawn(move || ask(endpoint))).collect();
        asked.into_iter().map(|answer| answer.join().ok().flatten()).collect()
    });
    let mut own = Vec::new();
    let mut votes = vec![0; endpoints.len()];
    for (server, answer) in answers.iter().enumerate() {
        let Some(answer) = answer else { continue };
        if answer.own == answer.leader {
            own.push(server);
        }
        let named = |other: &Option<crate::system::Leadership>| {
            other.as_ref().is_some_and(|other| other.own == answer.leader)
        };
        // A leader that does not answer is only known by an address that is its name.
        let by_address =
            || endpoints.iter().position(|other| other.rpc.to_string() == answer.leader);
        if let Some(named) = answers.iter().position(named).or_else(by_address) {
            votes[named] += 1;
        }
    }
    if own.is_empty() {
        own.extend((0..votes.len()).filter(|server| votes[*server] > 0).max_by_key(|s| votes[*s]));
    }
    own
}

/// A setup for tests: no guard, loopback, ordinary folders.
#[cfg(test)]
pub(crate) fn test_setup() -> Setup {
    Setup {
        system: System::Quorate,
        binary: PathBuf::from("/bin/sh"),
        old_binary: None,
        directory: PathBuf::new(),
        servers: 3,
        plant: None,
        snapshot_log_bytes: crate::server_config::SNAPSHOT_LOG_BYTES,
        namespaces: false,
        loop_disks: false,
        faketime: None,
        settings: Settings::default(),
        ledger: None,
        guard: None,
    }
}

#[cfg(test)]
mod tests;
