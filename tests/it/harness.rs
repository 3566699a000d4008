//! Real servers and agents as processes on loopback, for tests of the whole program.
//!
//! Owns every process it starts, their ports and their directories. Ports are chosen by the kernel and stay reserved for the whole test by a
//! socket that is bound but does not listen, so that nobody takes the port of a killed server. A process is signalled only while it is an
//! unreaped child of ours, so a signal can never hit a stranger; all are killed when their owner is dropped. If the test panicked, the last
//! lines of every log are printed. One cluster runs at a time, or the timings of one test would be those of another.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    cell::RefCell,
    fmt::Write as _,
    fs::{self, OpenOptions},
    net::{Ipv4Addr, SocketAddr},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    rc::{Rc, Weak},
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rustix::{
    net::{AddressFamily, SocketType, bind, getsockname, socket, sockopt::set_socket_reuseaddr},
    process::{Pid, Signal, kill_process},
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything that must happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// Whether the tests run in full, as `.ci/run` has them do with `QUORATE_TESTS=full`.
pub(crate) fn is_full() -> bool {
    std::env::var_os("QUORATE_TESTS").is_some_and(|form| form == "full")
}

const POLL: Duration = Duration::from_millis(20);
/// Patience with one request unless the test says otherwise: longer than the server's own deadline of 10 s.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
const LOG_LINES_SHOWN: usize = 60;

/// What the servers of a cluster are configured with.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// How many servers.
    pub(crate) servers: usize,
    /// Further lines of every server's configuration as (`section.key`, TOML value).
    pub(crate) keys: Vec<(String, String)>,
}

impl Options {
    /// So many servers with quick elections and two workers each.
    pub(crate) fn new(servers: usize) -> Self {
        let keys = [
            ("raft.heartbeat_ms", "100"),
            ("raft.election_min_ms", "400"),
            ("raft.election_max_ms", "600"),
            ("scheduler.workers", "2"),
            ("heartbeat.ttl_min_ms", "1000"),
            ("heartbeat.grace_ms", "1000"),
            ("limits.free_bytes_min", "0"),
        ];
        let keys = keys.map(|(key, value)| (key.to_owned(), value.to_owned())).to_vec();
        Self { servers, keys }
    }

    /// Sets one key, `section.key`, to a TOML value.
    pub(crate) fn with(mut self, key: &str, value: impl ToString) -> Self {
        set(&mut self.keys, key, value.to_string());
        self
    }
}

fn set(keys: &mut Vec<(String, String)>, key: &str, value: String) {
    keys.retain(|(known, _)| known != key);
    keys.push((key.to_owned(), value));
}

/// The servers of one test.
pub(crate) struct Cluster {
    servers: Vec<Server>,
    /// Kept for its removal at the end.
    directory: TempDir,
    _turn: Rc<Turn>,
}

struct Server {
    name: String,
    http: SocketAddr,
    rpc: SocketAddr,
    directory: PathBuf,
    /// Advertised addresses of all servers of its cluster.
    expect: Vec<SocketAddr>,
    keys: Vec<(String, String)>,
    process: Option<Process>,
    /// Keep the ports ours while the server is down.
    _reservations: [OwnedFd; 2],
}

/// A process of ours with its log.
struct Process {
    child: Child,
}

impl Process {
    fn start(mut command: Command, log: &Path) -> Self {
        let log = OpenOptions::new().create(true).append(true).open(log).unwrap();
        let errors = log.try_clone().unwrap();
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        Self { child: command.spawn().unwrap() }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    fn await_exit(&mut self, deadline: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + deadline;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            if Instant::now() >= end {
                return None;
            }
            thread::sleep(POLL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only if it has ended and was reaped already.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Tests that run clusters at a time: they wait more than they compute, and on a machine with many cores the disk is shared all the same.
const TURNS: usize = 2;
static TAKEN: Mutex<usize> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// The turn of a test to run clusters; the same thread may hold it for several clusters.
pub(crate) struct Turn(());

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        GIVEN_BACK.notify_one();
    }
}

impl Turn {
    pub(crate) fn take() -> Rc<Self> {
        thread_local! {
            static HELD: RefCell<Weak<Turn>> = const { RefCell::new(Weak::new()) };
        }
        HELD.with(|held| {
            if let Some(turn) = held.borrow().upgrade() {
                return turn;
            }
            let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            let mut taken = GIVEN_BACK
                .wait_while(taken, |taken| *taken >= TURNS)
                .unwrap_or_else(PoisonError::into_inner);
            *taken += 1;
            let turn = Rc::new(Self(()));
            *held.borrow_mut() = Rc::downgrade(&turn);
            turn
        })
    }
}

/// Binds a free port without listening on it. Servers bind with `SO_REUSEADDR` and so can listen there; nobody is given it by chance.
pub(crate) fn reserve_port() -> (SocketAddr, OwnedFd) {
    let reservation = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::io::fcntl_setfd(&reservation, rustix::io::FdFlags::CLOEXEC).unwrap();
    set_socket_reuseaddr(&reservation, true).unwrap();
    bind(&reservation, &SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = getsockname(&reservation).unwrap();
    (SocketAddr::try_from(address).unwrap(), reservation)
}

impl Cluster {
    /// Starts the servers and waits until every one answers linearizable reads.
    pub(crate) fn start(options: Options) -> Self {
        let mut cluster = Self::prepare(options);
        cluster.start_all();
        cluster.await_ready_all();
        cluster
    }

    /// Chooses ports and makes directories; starts nothing.
    pub(crate) fn prepare(options: Options) -> Self {
        let turn = Turn::take();
        let directory = tempfile::tempdir().unwrap();
        let ports: Vec<_> =
            (0..options.servers).map(|_| (reserve_port(), reserve_port())).collect();
        let expect: Vec<SocketAddr> = ports.iter().map(|(_, (rpc, _))| *rpc).collect();
        let mut servers = Vec::new();
        for (number, ((http, first), (rpc, second))) in (1..).zip(ports) {
            let name = format!("server-{number}");
            let directory = directory.path().join(&name);
            fs::create_dir(&directory).unwrap();
            servers.push(Server {
                name,
                http,
                rpc,
                directory,
                expect: expect.clone(),
                keys: options.keys.clone(),
                process: None,
                _reservations: [first, second],
            });
        }
        Self { servers, directory, _turn: turn }
    }

    /// How many servers there are.
    pub(crate) fn len(&self) -> usize {
        self.servers.len()
    }

    /// The numbers of all servers.
    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.len()).collect()
    }

    /// The numbers of all servers but these.
    pub(crate) fn others(&self, than: &[usize]) -> Vec<usize> {
        (0..self.len()).filter(|server| !than.contains(server)).collect()
    }

    /// A client of one server.
    pub(crate) fn client(&self, server: usize) -> Client {
        Client::new(self.servers[server].http, REQUEST_TIMEOUT)
    }

    /// The address a server advertises to its peers.
    pub(crate) fn rpc(&self, server: usize) -> SocketAddr {
        self.servers[server].rpc
    }

    /// The address of a server's HTTP API.
    pub(crate) fn http(&self, server: usize) -> SocketAddr {
        self.servers[server].http
    }

    /// Where everything of this cluster is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A server's data directory.
    pub(crate) fn data(&self, server: usize) -> PathBuf {
        self.servers[server].directory.join("data")
    }

    /// What a server has logged so far.
    pub(crate) fn log(&self, server: usize) -> String {
        fs::read_to_string(self.servers[server].log()).unwrap_or_default()
    }

    /// Gives a server other addresses of its cluster.
    pub(crate) fn expect(&mut self, server: usize, servers: Vec<SocketAddr>) {
        self.servers[server].expect = servers;
    }

    /// Sets a key of a server's configuration, from its next start on.
    pub(crate) fn set(&mut self, server: usize, key: &str, value: impl ToString) {
        set(&mut self.servers[server].keys, key, value.to_string());
    }

    /// Starts a server that is down and returns at once.
    pub(crate) fn start_one(&mut self, server: usize) {
        let server = &mut self.servers[server];
        assert!(server.process.is_none(), "{} runs already", server.name);
        server.write_config();
        let mut command = program();
        command.arg("server").arg("--config").arg(server.directory.join("server.toml"));
        command.current_dir(&server.directory);
        server.process = Some(Process::start(command, &server.log()));
    }

    /// Starts every server.
    pub(crate) fn start_all(&mut self) {
        self.all().into_iter().for_each(|server| self.start_one(server));
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, server: usize) {
        let process = self.servers[server].process.take();
        drop(process.expect("the server runs"));
    }

    /// Kills servers with SIGKILL, the signals sent before the first has ended.
    pub(crate) fn kill_together(&mut self, servers: &[usize]) {
        for server in servers {
            self.servers[*server].process.as_ref().unwrap().signal(Signal::KILL);
        }
        for server in servers {
            self.kill(*server);
        }
    }

    /// Lets a server stand still, with its connections open, or go on.
    pub(crate) fn freeze(&self, server: usize, still: bool) {
        let signal = if still { Signal::STOP } else { Signal::CONT };
        self.servers[server].process.as_ref().unwrap().signal(signal);
    }

    /// Stops a server with SIGTERM and returns how it ended.
    pub(crate) fn terminate(&mut self, server: usize) -> ExitStatus {
        self.servers[server].process.as_ref().unwrap().signal(Signal::TERM);
        self.await_exit(server)
    }

    /// Waits until a server has ended by itself.
    pub(crate) fn await_exit(&mut self, server: usize) -> ExitStatus {
        let process = self.servers[server].process.as_mut().expect("the server was started");
        let status = process.await_exit(PATIENCE);
        let Some(status) = status else {
            panic!("{} did not end in time", self.servers[server].name);
        };
        self.servers[server].process = None;
        status
    }

    /// Kills a server if it runs, starts it again and waits until it takes part.
    pub(crate) fn restart(&mut self, server: usize) {
        self.servers[server].process = None;
        self.start_one(server);
        self.await_ready(&[server]);
    }

    /// Removes everything a server that is down has kept.
    pub(crate) fn wipe(&mut self, server: usize) {
        assert!(self.servers[server].process.is_none(), "it runs");
        fs::remove_dir_all(self.data(server)).unwrap();
    }

    /// Waits until every server answers linearizable reads.
    pub(crate) fn await_ready_all(&mut self) {
        self.await_ready(&self.all());
    }

    /// Waits until these servers answer linearizable reads.
    pub(crate) fn await_ready(&mut self, servers: &[usize]) {
        for server in servers {
            let client = Client::new(self.servers[*server].http, Duration::from_secs(12));
            wait_until(&format!("server {} is ready", server + 1), PATIENCE, || {
                let process = self.servers[*server].process.as_mut().expect("it was started");
                if let Some(status) = process.child.try_wait().unwrap() {
                    panic!("{} ended by itself: {status}", self.servers[*server].name);
                }
                client.try_get("/v1/jobs").is_ok_and(|answer| answer.status == 200)
            });
        }
    }

    /// The server that leads by its own word, once there is one.
    pub(crate) fn leader(&self) -> usize {
        let running: Vec<usize> =
            self.all().into_iter().filter(|one| self.servers[*one].process.is_some()).collect();
        wait_for("a leader", PATIENCE, || {
            running.iter().copied().find(|server| {
                let answer = self.client(*server).try_get("/v1/status/leader");
                answer.is_ok_and(|answer| answer.json == json!(self.rpc(*server).to_string()))
            })
        })
    }

    /// The index and the digest of a server's own state.
    pub(crate) fn digest(&self, server: usize) -> (u64, String) {
        let answer = self.client(server).get("/v1/operator/state-digest").ok();
        (answer["Index"].as_u64().unwrap(), answer["Digest"].as_str().unwrap().to_owned())
    }

    /// Waits until these servers have the same digest at the same index, and returns both.
    pub(crate) fn await_equal(&self, servers: &[usize]) -> (u64, String) {
        wait_for(&format!("servers {servers:?} are equal"), PATIENCE, || {
            let mut digests = servers.iter().map(|server| self.digest(*server));
            let first = digests.next()?;
            digests.all(|digest| digest == first).then_some(first)
        })
    }

    /// Asserts that every invariant holds on these servers.
    pub(crate) fn check_invariants(&self, servers: &[usize]) {
        for server in servers {
            let answer = self.client(*server).get("/v1/operator/invariants").ok();
            assert_eq!(answer["Violations"], json!([]), "server {}", server + 1);
        }
    }

    /// Starts an agent with a real node, or with so many simulated ones, that knows every server.
    pub(crate) fn agent(&self, name: &str, simulate: Option<u32>) -> Agent {
        self.agent_with(name, simulate, &[])
    }

    /// The same with further keys of its configuration as (`section.key`, TOML value).
    pub(crate) fn agent_with(
        &self,
        name: &str,
        simulate: Option<u32>,
        keys: &[(&str, &str)],
    ) -> Agent {
        let servers: Vec<String> = self.servers.iter().map(|one| one.rpc.to_string()).collect();
        Agent::start(self.directory.path(), name, &servers, simulate, keys)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if thread::panicking() {
            for server in &self.servers {
                show_log(&server.name, &server.log());
            }
        }
    }
}

impl Server {
    fn log(&self) -> PathBuf {
        self.directory.join("log.txt")
    }

    fn write_config(&self) {
        let expect: Vec<String> = self.expect.iter().map(|one| format!("\"{one}\"")).collect();
        let mut keys = vec![
            ("http.address".to_owned(), format!("\"{}\"", self.http)),
            ("rpc.address".to_owned(), format!("\"{}\"", self.rpc)),
        ];
        if !self.keys.iter().any(|(key, _)| key == "cluster.join") {
            keys.push(("cluster.bootstrap_expect".to_owned(), format!("[{}]", expect.join(", "))));
        }
        keys.extend(self.keys.iter().cloned());
        if !self.keys.iter().any(|(key, _)| key == "data_dir") {
            keys.push(("data_dir".to_owned(), "\"data\"".to_owned()));
        }
        let mut text = format!("name = \"{}\"\n", self.name);
        for (key, value) in keys {
            writeln!(text, "{key} = {value}").unwrap();
        }
        fs::write(self.directory.join("server.toml"), text).unwrap();
    }
}

/// The program, without what the environment of the tests might tell it.
pub(crate) fn program() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quorate"));
    let ours = |name: &str| name.starts_with("QUORATE_") && name != "QUORATE_PLANT";
    for (name, _) in std::env::vars().filter(|(name, _)| ours(name)) {
        command.env_remove(name);
    }
    // RUST_LOG is kept, for whoever looks for the cause of a failure.
    command.env_remove("NOMAD_ADDR");
    command
}

fn show_log(name: &str, path: &Path) {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let tail = &lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..];
    eprintln!("---- the last {} lines of {name} ----\n{}", tail.len(), tail.join("\n"));
}

/// A node agent.
pub(crate) struct Agent {
    name: String,
    directory: PathBuf,
    process: Option<Process>,
}

impl Agent {
    /// Starts an agent in a directory of its own under `root`.
    pub(crate) fn start(
        root: &Path,
        name: &str,
        servers: &[String],
        simulate: Option<u32>,
        keys: &[(&str, &str)],
    ) -> Self {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        let servers: Vec<String> = servers.iter().map(|one| format!("\"{one}\"")).collect();
        let mut text = format!("name = \"{name}\"\ndata_dir = \"data\"\n");
        writeln!(text, "servers = [{}]", servers.join(", ")).unwrap();
        writeln!(text, "http.address = \"127.0.0.1:0\"").unwrap();
        match simulate {
            Some(nodes) => writeln!(text, "simulate = {nodes}\ndrivers.mock = true").unwrap(),
            None => writeln!(text, "drivers.raw_exec = true\ndrivers.mock = true").unwrap(),
        }
        for (key, value) in keys {
            writeln!(text, "{key} = {value}").unwrap();
        }
        fs::write(directory.join("agent.toml"), text).unwrap();
        let mut agent = Self { name: name.to_owned(), directory, process: None };
        agent.restart();
        agent
    }

    /// Kills the agent if it runs and starts it again.
    pub(crate) fn restart(&mut self) {
        self.process = None;
        let mut command = program();
        command.arg("agent").arg("--config").arg(self.directory.join("agent.toml"));
        command.current_dir(&self.directory);
        self.process = Some(Process::start(command, &self.directory.join("log.txt")));
    }

    /// Kills the agent with SIGKILL; its tasks go on.
    pub(crate) fn kill(&mut self) {
        drop(self.process.take().expect("the agent runs"));
    }

    /// What the agent has logged so far.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.join("log.txt")).unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            show_log(&self.name, &self.directory.join("log.txt"));
        }
    }
}

/// A client of one server; cheap to clone and usable from any thread.
#[derive(Clone)]
pub(crate) struct Client {
    agent: ureq::Agent,
    base: String,
}

/// An HTTP answer.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// The status code.
    pub(crate) status: u16,
    /// The body.
    pub(crate) text: String,
    /// The body, where it is JSON; null otherwise.
    pub(crate) json: Value,
}

impl Answer {
    /// The body of an answer that must be 200.
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert_eq!(self.status, 200, "{}", self.text);
        self.json
    }
}

impl Client {
    /// A client of this address whose requests take at most `timeout`.
    pub(crate) fn new(address: SocketAddr, timeout: Duration) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .proxy(None)
            .build();
        Self { agent: ureq::Agent::new_with_config(config), base: format!("http://{address}") }
    }

    /// GET; an answer of whatever status, or why there was none.
    pub(crate) fn try_get(&self, path: &str) -> Result<Answer, ureq::Error> {
        answer(self.agent.get(format!("{}{path}", self.base)).call())
    }

    /// PUT of JSON.
    pub(crate) fn try_put(&self, path: &str, body: &Value) -> Result<Answer, ureq::Error> {
        let request = self.agent.put(format!("{}{path}", self.base));
        answer(request.content_type("application/json").send(body.to_string()))
    }

    /// DELETE.
    pub(crate) fn try_delete(&self, path: &str) -> Result<Answer, ureq::Error> {
        answer(self.agent.delete(format!("{}{path}", self.base)).call())
    }

    /// A request with any body, sent as JSON.
    #[track_caller]
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("Content-Type", "application/json")
            .body(body)
            .unwrap();
        let answer = answer(self.agent.run(request));
        answer.unwrap_or_else(|error| panic!("{method} {}{path}: {error}", self.base))
    }

    /// GET that must be answered.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap_or_else(|error| panic!("GET {}{path}: {error}", self.base))
    }

    /// PUT that must be answered.
    #[track_caller]
    pub(crate) fn put(&self, path: &str, body: &Value) -> Answer {
        let answer = self.try_put(path, body);
        answer.unwrap_or_else(|error| panic!("PUT {}{path}: {error}", self.base))
    }

    /// DELETE that must be answered.
    #[track_caller]
    pub(crate) fn delete(&self, path: &str) -> Answer {
        self.try_delete(path).unwrap_or_else(|error| panic!("DELETE {}{path}: {error}", self.base))
    }
}

fn answer(
    result: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> Result<Answer, ureq::Error> {
    let mut response = result?;
    let status = response.status().as_u16();
    let text = response.body_mut().read_to_string()?;
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { status, text, json })
}

/// Waits until the condition holds; panics with `what` after the deadline.
#[track_caller]
pub(crate) fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, deadline, || condition().then_some(()));
}

/// Waits until there is a value; panics with `what` after the deadline.
#[track_caller]
pub(crate) fn wait_for<T>(
    what: &str,
    deadline: Duration,
    mut attempt: impl FnMut() -> Option<T>,
) -> T {
    let end = Instant::now() + deadline;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < end, "waited {deadline:?} in vain until {what}");
        thread::sleep(POLL);
    }
}

/// A job that is only kept: parameterized, so nothing is scheduled, with a value of so many bytes in its meta.
pub(crate) fn stored_job(id: &str, value: &str) -> Value {
    json!({ "Job": {
        "ID": id, "Name": id, "Type": "batch", "Datacenters": ["*"],
        "Meta": { "value": value },
        "ParameterizedJob": {},
        "TaskGroups": [{
            "Name": "group", "Count": 1,
            "Tasks": [{ "Name": "task", "Driver": "mock", "Config": { "run_for": "1s" },
                "Resources": { "CPU": 10, "MemoryMB": 10 } }],
        }],
    }})
}

/// A service of `count` mock tasks that run until they are stopped.
pub(crate) fn service_job(id: &str, count: u32) -> Value {
    json!({ "Job": {
        "ID": id, "Name": id, "Type": "service", "Datacenters": ["*"],
        "TaskGroups": [{
            "Name": "group", "Count": count,
            "Tasks": [{ "Name": "task", "Driver": "mock", "Config": { "run_for": "24h" },
                "Resources": { "CPU": 20, "MemoryMB": 16 } }],
        }],
    }})
}
