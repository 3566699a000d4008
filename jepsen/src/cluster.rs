//! The servers: real processes with their own configuration, data and log, all on loopback.
//!
//! Owns every child process and every port. Ports are chosen by the kernel and stay reserved for the whole
//! run by a socket that is bound but does not listen, so that nobody takes the port of a killed server. A
//! process is signalled only while it is our unreaped child, so a signal can never hit someone else's; all are
//! killed when the cluster is dropped, and by the guard if the harness dies.

use std::fs::{self, File, OpenOptions};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::sockopt::set_socket_reuseaddr;
use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
use rustix::process::{Pid, Signal, kill_process};

use crate::checker::crash::Exit;
use crate::client::HttpClient;
use crate::guard::Guard;
use crate::proxy::Switchboard;
use crate::server_config::{Peer, render};
use crate::store::server_log;

/// How long a killed process may take to be gone, or a stopped one to stop.
const SIGNAL_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a server may take to end after SIGTERM.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
/// Patience with one status question.
const STATUS_TIMEOUT: Duration = Duration::from_millis(500);
const POLL: Duration = Duration::from_millis(20);

/// What a cluster is made from.
pub(crate) struct Setup {
    /// The server binary.
    pub(crate) binary: PathBuf,
    /// The run's directory; each server gets a directory in it.
    pub(crate) directory: PathBuf,
    /// How many servers.
    pub(crate) servers: usize,
    /// Passed to the servers as `QUORATE_PLANT`.
    pub(crate) plant: Option<String>,
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
    /// RPC address, reached by the other servers through the proxies.
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
    setup: Setup,
    endpoints: Vec<Endpoint>,
    nodes: Vec<Node>,
    switchboard: Switchboard,
    exits: Vec<Exit>,
    /// Keeps the ports ours while servers are down.
    _reservations: Vec<OwnedFd>,
}

struct Node {
    directory: PathBuf,
    child: Option<Child>,
    paused: bool,
}

impl Cluster {
    /// Chooses ports, starts the proxies and writes the configuration files; starts no server.
    pub(crate) fn create(setup: Setup) -> Result<Self> {
        let mut reservations = Vec::new();
        let mut endpoints = Vec::new();
        for number in 1..=setup.servers {
            let (http, http_reservation) = reserve_port()?;
            let (rpc, rpc_reservation) = reserve_port()?;
            reservations.extend([http_reservation, rpc_reservation]);
            endpoints.push(Endpoint { name: format!("n{number}"), http, rpc });
        }
        let addresses: Vec<SocketAddr> = endpoints.iter().map(|endpoint| endpoint.rpc).collect();
        let switchboard = Switchboard::start(&addresses)?;
        let nodes = endpoints.iter().map(|endpoint| Node {
            directory: setup.directory.join(&endpoint.name),
            child: None,
            paused: false,
        });
        let nodes = nodes.collect();
        let cluster = Self {
            setup,
            endpoints,
            nodes,
            switchboard,
            exits: Vec::new(),
            _reservations: reservations,
        };
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

    /// The network between them.
    pub(crate) fn switchboard(&self) -> &Switchboard {
        &self.switchboard
    }

    /// Exits so far that nobody here caused.
    pub(crate) fn exits(&self) -> &[Exit] {
        &self.exits
    }

    /// Servers whose process exists.
    pub(crate) fn running(&mut self) -> Vec<usize> {
        self.reap();
        (0..self.len()).filter(|server| self.nodes[*server].child.is_some()).collect()
    }

    /// Running servers that are paused, or not.
    pub(crate) fn running_and(&mut self, paused: bool) -> Vec<usize> {
        let mut servers = self.running();
        servers.retain(|server| self.nodes[*server].paused == paused);
        servers
    }

    /// Starts a server that is down.
    pub(crate) fn start(&mut self, server: usize) -> Result<Effect> {
        if self.running().contains(&server) {
            return Ok(Effect::Nothing);
        }
        let name = &self.endpoints[server].name;
        let node = &mut self.nodes[server];
        let log = append_to(&server_log(&self.setup.directory, name))?;
        let errors = log.try_clone().context("cannot duplicate the log's file")?;
        let mut command = Command::new(&self.setup.binary);
        command
            .arg("server")
            .arg("--config")
            .arg(node.directory.join("server.toml"))
            .current_dir(&node.directory)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(0);
        match &self.setup.plant {
            Some(plant) => command.env("QUORATE_PLANT", plant),
            None => command.env_remove("QUORATE_PLANT"),
        };
        let child = command
            .spawn()
            .with_context(|| format!("cannot start {}", self.setup.binary.display()))?;
        let pid = child.id();
        node.child = Some(child);
        node.paused = false;
        if let Some(guard) = &mut self.setup.guard {
            guard.watch(pid)?;
        }
        Ok(Effect::Done)
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, server: usize) -> Result<Effect> {
        self.reap();
        let Some(child) = &mut self.nodes[server].child else { return Ok(Effect::Nothing) };
        child.kill().context("cannot send SIGKILL")?;
        match self.await_exit(server, SIGNAL_TIMEOUT)? {
            Some(status) if status.signal() == Some(Signal::KILL.as_raw()) => Ok(Effect::Done),
            Some(status) => {
                self.note_exit(server, &status.to_string());
                Ok(Effect::Unclear(format!("it ended by itself: {status}")))
            }
            None => Ok(Effect::Unclear("it was not gone in time".to_owned())),
        }
    }

    /// Stops a server's process with SIGSTOP.
    pub(crate) fn pause(&mut self, server: usize) -> Result<Effect> {
        if !self.running_and(false).contains(&server) {
            return Ok(Effect::Nothing);
        }
        self.signal(server, Signal::STOP)?;
        self.nodes[server].paused = true;
        let end = Instant::now() + SIGNAL_TIMEOUT;
        while self.process_state(server)? != 'T' {
            if Instant::now() >= end {
                return Ok(Effect::Unclear("it was not stopped in time".to_owned()));
            }
            std::thread::sleep(POLL);
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

    /// Notes servers that ended without being told to.
    pub(crate) fn reap(&mut self) {
        for server in 0..self.len() {
            let Some(child) = &mut self.nodes[server].child else { continue };
            // An error means that the child cannot be waited for; it is found at the next signal.
            if let Ok(Some(status)) = child.try_wait() {
                self.gone(server);
                self.note_exit(server, &status.to_string());
            }
        }
    }

    /// Waits until every server names a leader; false if they did not in time.
    pub(crate) fn await_ready(&mut self, timeout: Duration) -> bool {
        let end = Instant::now() + timeout;
        let clients: Vec<HttpClient> = self.status_clients();
        loop {
            self.reap();
            let up = self.nodes.iter().all(|node| node.child.is_some());
            if up && clients.iter().all(|client| client.leader().is_some()) {
                return true;
            }
            if Instant::now() >= end || (!up && self.setup_failed()) {
                return false;
            }
            std::thread::sleep(POLL * 5);
        }
    }

    /// Ends all servers with SIGTERM, those that do not end in time with SIGKILL; returns the latter.
    pub(crate) fn stop(&mut self) -> Result<Vec<String>> {
        let mut slow = Vec::new();
        for server in self.running() {
            self.resume(server)?;
            self.signal(server, Signal::TERM)?;
        }
        let end = Instant::now() + STOP_TIMEOUT;
        for server in 0..self.len() {
            if self.nodes[server].child.is_none() {
                continue;
            }
            match self.await_exit(server, end.saturating_duration_since(Instant::now()))? {
                Some(status) if status.success() => {}
                Some(status) if status.signal() == Some(Signal::TERM.as_raw()) => {}
                Some(status) => self.note_exit(server, &format!("{status} after SIGTERM")),
                None => {
                    slow.push(self.endpoints[server].name.clone());
                    self.kill(server)?;
                }
            }
        }
        Ok(slow)
    }

    /// The last lines of a server's log, for error messages.
    pub(crate) fn log_tail(&self, server: usize) -> String {
        let path = server_log(&self.setup.directory, &self.endpoints[server].name);
        let text = fs::read(&path).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(5)..].join("\n")
    }

    fn status_clients(&self) -> Vec<HttpClient> {
        self.endpoints
            .iter()
            .map(|endpoint| HttpClient::new(endpoint.http, STATUS_TIMEOUT))
            .collect()
    }

    /// A server that ended by itself does not come back by waiting.
    fn setup_failed(&self) -> bool {
        !self.exits.is_empty()
    }

    fn await_exit(&mut self, server: usize, timeout: Duration) -> Result<Option<ExitStatus>> {
        let end = Instant::now() + timeout;
        loop {
            let child = self.nodes[server].child.as_mut().context("the server is not running")?;
            if let Some(status) = child.try_wait().context("cannot wait for a server")? {
                self.gone(server);
                return Ok(Some(status));
            }
            if Instant::now() >= end {
                return Ok(None);
            }
            std::thread::sleep(POLL);
        }
    }

    fn gone(&mut self, server: usize) {
        let node = &mut self.nodes[server];
        node.paused = false;
        if let (Some(child), Some(guard)) = (node.child.take(), &mut self.setup.guard) {
            // If the guard is gone there is nobody to forget the process.
            guard.forget(child.id()).ok();
        }
    }

    fn note_exit(&mut self, server: usize, status: &str) {
        let node = self.endpoints[server].name.clone();
        self.exits.push(Exit { node, status: status.to_owned() });
    }

    fn signal(&self, server: usize, signal: Signal) -> Result<()> {
        let child = self.nodes[server].child.as_ref().context("the server is not running")?;
        kill_process(Pid::from_child(child), signal).context("cannot signal a server")
    }

    /// The state letter of `/proc/PID/stat`; the name before it may hold anything but ends with `)`.
    fn process_state(&self, server: usize) -> Result<char> {
        let child = self.nodes[server].child.as_ref().context("the server is not running")?;
        let path = format!("/proc/{}/stat", child.id());
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        rest.trim_start().chars().next().with_context(|| format!("cannot parse {path}"))
    }

    fn write_config(&self, server: usize) -> Result<()> {
        let endpoint = &self.endpoints[server];
        let directory = &self.nodes[server].directory;
        fs::create_dir_all(directory)
            .with_context(|| format!("cannot create {}", directory.display()))?;
        let peers = (0..self.len()).filter(|peer| *peer != server).map(|peer| Peer {
            rpc: self.endpoints[peer].rpc,
            dial: self.switchboard.address(server, peer),
        });
        let text = render(&endpoint.name, directory, endpoint.http, endpoint.rpc, peers)?;
        let path = directory.join("server.toml");
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(mut child) = node.child.take() {
                // Both fail only if the process has already ended and been reaped.
                child.kill().ok();
                child.wait().ok();
            }
        }
    }
}

/// Asks every server for the leader; the servers that name themselves, else the one most of them name.
pub(crate) fn leaders(endpoints: &[Endpoint]) -> Vec<usize> {
    let mut votes = vec![0; endpoints.len()];
    let mut own = Vec::new();
    for (server, endpoint) in endpoints.iter().enumerate() {
        let Some(leader) = HttpClient::new(endpoint.http, STATUS_TIMEOUT).leader() else {
            continue;
        };
        let named = endpoints.iter().position(|endpoint| endpoint.rpc.to_string() == leader);
        if let Some(named) = named {
            votes[named] += 1;
            if named == server {
                own.push(server);
            }
        }
    }
    if own.is_empty() {
        own.extend((0..votes.len()).filter(|server| votes[*server] > 0).max_by_key(|s| votes[*s]));
    }
    own
}

/// Binds a free port without listening on it. Servers bind with `SO_REUSEADDR` and so can listen there;
/// outgoing connections and other programs' port 0 do not get it.
fn reserve_port() -> Result<(SocketAddr, OwnedFd)> {
    let reservation = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    rustix::io::fcntl_setfd(&reservation, rustix::io::FdFlags::CLOEXEC)?;
    set_socket_reuseaddr(&reservation, true)?;
    bind(&reservation, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .context("cannot reserve a port")?;
    let address = getsockname(&reservation)?;
    match SocketAddr::try_from(address) {
        Ok(address) => Ok((address, reservation)),
        Err(error) => bail!("the reserved port has no address: {error}"),
    }
}

fn append_to(path: &Path) -> Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .open(path)
        .with_context(|| format!("cannot open {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use std::net::TcpListener;

    use super::*;

    /// A cluster whose server binary is the shell: `sh server --config …` runs the script `server` of
    /// the node's directory.
    fn cluster(script: &str) -> (tempfile::TempDir, Cluster) {
        let directory = tempfile::tempdir().unwrap();
        let setup = Setup {
            binary: PathBuf::from("/bin/sh"),
            directory: directory.path().to_owned(),
            servers: 3,
            plant: Some("some-bug".to_owned()),
            guard: None,
        };
        let cluster = Cluster::create(setup).unwrap();
        for node in ["n1", "n2", "n3"] {
            fs::write(directory.path().join(node).join("server"), script).unwrap();
        }
        (directory, cluster)
    }

    const SLEEPER: &str = "echo \"started $QUORATE_PLANT\"; exec sleep 1000";

    #[test]
    fn configurations_name_every_server_and_dial_through_proxies() {
        let (directory, cluster) = cluster(SLEEPER);
        let text = fs::read_to_string(directory.path().join("n2/server.toml")).unwrap();
        let config: toml::Table = text.parse().unwrap();
        assert_eq!(config["name"].as_str(), Some("n2"));
        let rpc = |server: usize| cluster.endpoints()[server].rpc.to_string();
        assert_eq!(config["rpc"]["address"].as_str(), Some(rpc(1).as_str()));
        assert_eq!(config["rpc"]["advertise"].as_str(), Some(rpc(1).as_str()));
        let mut expected: Vec<_> =
            cluster.endpoints().iter().map(|endpoint| endpoint.rpc).collect();
        expected.sort_unstable();
        let expected: Vec<_> =
            expected.iter().map(|address| toml::Value::from(address.to_string())).collect();
        assert_eq!(config["cluster"]["bootstrap_expect"].as_array(), Some(&expected));
        let dial = config["cluster"]["dial"].as_table().unwrap();
        assert_eq!(dial.len(), 2);
        let proxy = cluster.switchboard().address(1, 0).to_string();
        assert_eq!(dial[&rpc(0)].as_str(), Some(proxy.as_str()));
        assert_eq!(config["raft"]["election_max_ms"].as_integer(), Some(600));
        assert_eq!(config["scheduler"]["workers"].as_integer(), Some(1));
        assert!(config["data_dir"].as_str().unwrap().ends_with("/n2/data"));
    }

    #[test]
    fn reserved_ports_can_be_listened_on_and_are_not_given_away() {
        let (address, _reservation) = reserve_port().unwrap();
        let first = TcpListener::bind(address).unwrap();
        drop(first);
        let again = TcpListener::bind(address).unwrap();
        assert_eq!(again.local_addr().unwrap(), address);
    }

    #[test]
    fn kills_pauses_and_restarts_are_seen_to_take_hold() {
        let (directory, mut cluster) = cluster(SLEEPER);
        assert_eq!(cluster.start(0).unwrap(), Effect::Done);
        assert_eq!(cluster.start(0).unwrap(), Effect::Nothing);
        assert_eq!(cluster.kill(1).unwrap(), Effect::Nothing);
        assert_eq!(cluster.pause(1).unwrap(), Effect::Nothing);
        assert_eq!(cluster.running(), [0]);

        assert_eq!(cluster.pause(0).unwrap(), Effect::Done);
        assert_eq!(cluster.process_state(0).unwrap(), 'T');
        assert_eq!(cluster.pause(0).unwrap(), Effect::Nothing);
        assert_eq!(cluster.resume(0).unwrap(), Effect::Done);
        assert_eq!(cluster.resume(0).unwrap(), Effect::Nothing);
        assert_eq!(cluster.pause(0).unwrap(), Effect::Done);
        assert_eq!(cluster.kill(0).unwrap(), Effect::Done);
        assert!(cluster.running().is_empty());

        assert_eq!(cluster.start(0).unwrap(), Effect::Done);
        assert_eq!(cluster.running_and(false), [0]);
        let end = Instant::now() + Duration::from_secs(10);
        while !cluster.log_tail(0).contains("some-bug") && Instant::now() < end {
            std::thread::sleep(POLL);
        }
        assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
        assert_eq!(cluster.exits(), []);
        let log = fs::read_to_string(server_log(directory.path(), "n1")).unwrap();
        assert!(log.ends_with("started some-bug\n"), "{log}");
    }

    #[test]
    fn exits_nobody_asked_for_are_noted() {
        let (_directory, mut cluster) = cluster("exit 3");
        assert_eq!(cluster.start(2).unwrap(), Effect::Done);
        assert!(!cluster.await_ready(Duration::from_secs(20)), "it gives up at once");
        let exit = Exit { node: "n3".to_owned(), status: "exit status: 3".to_owned() };
        assert_eq!(cluster.exits(), [exit]);
    }
}
