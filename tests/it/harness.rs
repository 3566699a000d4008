//! Real servers and agents as processes on loopback, for tests of the whole program.
//!
//! Owns every process that it starts, their ports and their directories; the package `launch` says
//! how. All are killed when their owner is dropped. If the test panicked, the last lines of every
//! log are printed. Few tests run clusters at a time, or the timings of one test would be those of
//! another.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    cell::RefCell,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    rc::{Rc, Weak},
    sync::{Condvar, Mutex, PoisonError},
    thread,
    time::Duration,
};

use launch::{Group, Log, Member, Settings, Signal};
use quorate::provider::process::ProcessProvider;
use serde_json::{Value, json};
use tempfile::TempDir;

/// How long anything that must happen may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(2);
/// Patience with one request unless the test says otherwise: longer than the server's own deadline
/// of 10 s.
const REQUEST_TIMEOUT: Duration = Duration::from_mins(1);
const LOG_LINES_SHOWN: usize = 60;

/// Whether the tests run in full, as `.ci/run` has them do with `QUORATE_TESTS=full`.
pub(crate) fn is_full() -> bool {
    std::env::var_os("QUORATE_TESTS").is_some_and(|form| form == "full")
}

/// What the servers of a cluster are configured with.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    servers: usize,
    /// Further lines of every server's configuration.
    settings: Settings,
    /// What makes the machines of the provider `local`, if the servers have one.
    machines: Option<Machines>,
    /// Files that each server may have open.
    open_files: Option<u32>,
}

/// What makes machines, which are agents on this host.
#[derive(Clone, Debug)]
enum Machines {
    /// The servers themselves.
    Processes,
    /// A program in Python of this text, with the flags of the example.
    Program(String),
}

impl Options {
    /// So many servers with quick elections and two workers each.
    pub(crate) fn new(servers: usize) -> Self {
        let mut settings = Settings::default();
        settings.set("raft.heartbeat_ms", 100);
        settings.set("raft.election_min_ms", 400);
        settings.set("raft.election_max_ms", 600);
        settings.set("scheduler.workers", 2);
        settings.set("heartbeat.ttl_min_ms", 1_000);
        settings.set("heartbeat.grace_ms", 1_000);
        settings.set("limits.free_bytes_min", 0);
        Self { servers, settings, machines: None, open_files: None }
    }

    /// With servers that may have no more files open than this.
    pub(crate) fn with_open_files(mut self, files: u32) -> Self {
        self.open_files = Some(files);
        self
    }

    /// With a provider `local`, whose machines are agents on this host.
    pub(crate) fn with_machines(mut self) -> Self {
        self.machines = Some(Machines::Processes);
        self
    }

    /// With a provider `local` that is a program in Python of this text.
    pub(crate) fn with_program(mut self, text: String) -> Self {
        self.machines = Some(Machines::Program(text));
        self
    }

    /// With a table `[[name]]` in every server's configuration.
    pub(crate) fn with_table(mut self, name: &str, table: Settings) -> Self {
        self.settings.add_table(name, table);
        self
    }

    /// Sets one key, `section.key`, to a TOML value.
    pub(crate) fn with(mut self, key: &str, value: impl ToString) -> Self {
        self.settings.set(key, value.to_string());
        self
    }
}

/// The servers of one test.
pub(crate) struct Cluster {
    servers: launch::Cluster,
    /// What each server is configured with at its next start.
    plans: Vec<Plan>,
    open_files: Option<u32>,
    /// Kept for its removal at the end.
    directory: TempDir,
    _turn: Rc<Turn>,
}

struct Plan {
    /// Advertised addresses of all servers of its cluster.
    expect: Vec<SocketAddr>,
    settings: Settings,
    environment: Vec<(&'static str, String)>,
}

/// Tests that run clusters at a time: they wait more than they compute, and on a machine with many cores the disk is shared all the same.
const TURNS: usize = 3;
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
        let servers = launch::Cluster::prepare(directory.path(), options.servers).unwrap();
        let expect = servers.rpc_addresses();
        let mut settings = options.settings;
        if let Some(made_by) = options.machines {
            settings.add_table("provider", made_by.provider(directory.path()));
        }
        let plan =
            || Plan { expect: expect.clone(), settings: settings.clone(), environment: Vec::new() };
        let plans = (0..options.servers).map(|_| plan()).collect();
        Self { servers, plans, open_files: options.open_files, directory, _turn: turn }
    }

    /// How many servers there are.
    pub(crate) fn len(&self) -> usize {
        self.plans.len()
    }

    /// The numbers of all servers.
    pub(crate) fn all(&self) -> Vec<usize> {
        (0..self.len()).collect()
    }

    /// The numbers of all servers but these.
    pub(crate) fn others(&self, than: &[usize]) -> Vec<usize> {
        (0..self.len()).filter(|server| !than.contains(server)).collect()
    }

    fn member(&mut self, server: usize) -> &mut Member {
        &mut self.servers.server(server).member
    }

    /// A client of one server.
    pub(crate) fn client(&self, server: usize) -> Client {
        Client::new(self.http(server), REQUEST_TIMEOUT)
    }

    /// The address a server advertises to its peers.
    pub(crate) fn rpc(&self, server: usize) -> SocketAddr {
        self.servers.servers()[server].rpc()
    }

    /// The address of a server's HTTP API.
    pub(crate) fn http(&self, server: usize) -> SocketAddr {
        self.servers.servers()[server].http()
    }

    /// Where everything of this cluster is.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// A server's data directory.
    pub(crate) fn data(&self, server: usize) -> PathBuf {
        self.servers.servers()[server].folder().join("data")
    }

    /// What a server has logged so far.
    pub(crate) fn log(&self, server: usize) -> String {
        self.servers.servers()[server].member.log().text().unwrap_or_default()
    }

    /// Gives a server other addresses of its cluster.
    pub(crate) fn expect(&mut self, server: usize, servers: Vec<SocketAddr>) {
        self.plans[server].expect = servers;
    }

    /// Sets a key of a server's configuration, from its next start on.
    pub(crate) fn set(&mut self, server: usize, key: &str, value: impl ToString) {
        self.plans[server].settings.set(key, value.to_string());
    }

    /// Sets a variable of a server's environment, from its next start on.
    pub(crate) fn set_variable(&mut self, server: usize, name: &'static str, value: String) {
        self.plans[server].environment.push((name, value));
    }

    /// Starts a server that is down and returns at once.
    pub(crate) fn start_one(&mut self, server: usize) {
        let plan = &self.plans[server];
        let server = self.servers.server(server);
        let mut settings = Settings::server(server.member.name(), server.http(), server.rpc());
        if !plan.settings.has("cluster.join") {
            settings.set_texts("cluster.bootstrap_expect", &plan.expect);
        }
        settings.set_text("data_dir", "data");
        settings.extend(&plan.settings);
        let mut command = configured("server", server.folder(), &settings);
        // As in its file. An agent has no such key: a machine that took it over would not start.
        command.env("QUORATE__RPC__ADDRESS", server.rpc().to_string());
        command.envs(plan.environment.iter().map(|(name, value)| (name, value)));
        if let Some(files) = self.open_files {
            command = limited(&command, &format!("-n {files}"));
        }
        server.member.start(command, Group::Owners).unwrap();
    }

    /// Starts every server.
    pub(crate) fn start_all(&mut self) {
        self.all().into_iter().for_each(|server| self.start_one(server));
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, server: usize) {
        self.member(server).kill().unwrap();
    }

    /// Kills servers with SIGKILL, the signals sent before the first has ended.
    pub(crate) fn kill_together(&mut self, servers: &[usize]) {
        for server in servers {
            self.member(*server).signal(Signal::KILL).unwrap();
        }
        for server in servers {
            self.await_exit(*server);
        }
    }

    /// Lets a server stand still, with its connections open, or go on.
    pub(crate) fn freeze(&self, server: usize, still: bool) {
        self.signal(server, if still { Signal::STOP } else { Signal::CONT });
    }

    /// Sends a server a signal.
    pub(crate) fn signal(&self, server: usize, signal: Signal) {
        self.servers.servers()[server].member.signal(signal).unwrap();
    }

    /// A server's configuration file.
    pub(crate) fn configuration(&self, server: usize) -> PathBuf {
        self.servers.servers()[server].folder().join("server.toml")
    }

    /// Stops a server with SIGTERM and returns how it ended.
    pub(crate) fn terminate(&mut self, server: usize) -> ExitStatus {
        self.member(server).signal(Signal::TERM).unwrap();
        self.await_exit(server)
    }

    /// Waits until a server has ended by itself.
    pub(crate) fn await_exit(&mut self, server: usize) -> ExitStatus {
        let member = self.member(server);
        let status = member.await_exit(PATIENCE).unwrap();
        status.unwrap_or_else(|| panic!("{} did not end in time", member.name()))
    }

    /// Kills a server if it runs, starts it again and waits until it takes part.
    pub(crate) fn restart(&mut self, server: usize) {
        if self.member(server).is_running() {
            self.kill(server);
        }
        self.start_one(server);
        self.await_ready(&[server]);
    }

    /// Removes everything a server that is down has kept.
    pub(crate) fn wipe(&mut self, server: usize) {
        assert!(!self.member(server).is_running(), "it runs");
        fs::remove_dir_all(self.data(server)).unwrap();
    }

    /// Waits until every server answers linearizable reads.
    pub(crate) fn await_ready_all(&mut self) {
        self.await_ready(&self.all());
    }

    /// Waits until these servers answer linearizable reads.
    pub(crate) fn await_ready(&mut self, servers: &[usize]) {
        self.servers.await_ready(servers, PATIENCE).unwrap_or_else(|error| panic!("{error}"));
    }

    /// The server that leads by its own word, once there is one.
    pub(crate) fn leader(&self) -> usize {
        wait_for("a leader", PATIENCE, || self.servers.leader())
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
        Agent::start(self.directory.path(), name, &self.servers.rpc_addresses(), simulate, keys)
    }
}

impl Machines {
    /// The table of the provider `local` of a cluster in a directory.
    fn provider(self, directory: &Path) -> Settings {
        let machines = machines(directory).display().to_string();
        let mut provider = Settings::default();
        provider.set_text("name", "local");
        match self {
            Self::Processes => {
                provider.set_text("kind", "process");
                provider.set_text("directory", &machines);
            }
            Self::Program(text) => {
                let script = directory.join("provider.py");
                fs::write(&script, text).unwrap();
                let script = script.display().to_string();
                let quorate = env!("CARGO_BIN_EXE_quorate");
                let command = ["python3", &script, "-directory", &machines, "-quorate", quorate];
                provider.set_text("kind", "exec");
                provider.set_texts("command", &command);
            }
        }
        provider
    }
}

/// Where the provider `local` of a cluster keeps its machines.
fn machines(directory: &Path) -> PathBuf {
    directory.join("machines")
}

impl Cluster {
    /// Where the provider `local` keeps its machines.
    pub(crate) fn machines_directory(&self) -> PathBuf {
        machines(self.directory.path())
    }

    /// The processes of the agents that run for instances of pools.
    pub(crate) fn machines(&self) -> Vec<String> {
        let folder = machines(self.directory.path()).display().to_string();
        let is_agent = |process: &str| {
            let line = fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).replace('\0', " ");
            line.contains(" agent ") && line.contains(&folder)
        };
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let names = processes.filter_map(|one| one.file_name().into_string().ok());
        let agents: Vec<String> = names.filter(|name| is_agent(name)).collect();
        // A child that an agent has just forked has its command line until it runs a program.
        let parent = |process: &String| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
            stat.rsplit_once(") ")?.1.split(' ').nth(1).map(str::to_owned)
        };
        let is_child = |process: &String| parent(process).is_none_or(|of| agents.contains(&of));
        agents.iter().filter(|process| !is_child(process)).cloned().collect()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let machines = machines(self.directory.path());
        if machines.exists() {
            // They outlive their servers, which would make new ones.
            for server in self.all() {
                if self.member(server).is_running() {
                    self.member(server).kill().ok();
                }
            }
            let ended = ProcessProvider::open(&machines, None)
                .and_then(|machines| machines.end_all(Duration::from_mins(1)));
            if let Err(error) = ended {
                eprintln!("machines were left behind: {error}");
            }
        }
        if thread::panicking() {
            self.servers.servers().iter().for_each(|server| show_log(&server.member));
        }
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

/// The command under a limit of the shell: `ulimit` with these flags.
pub(crate) fn limited(command: &Command, flags: &str) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", &format!("ulimit {flags}; exec \"$0\" \"$@\"")]);
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        shell.current_dir(directory);
    }
    shell
}

/// `quorate server` or `quorate agent` in a directory, with a configuration that is written there.
pub(crate) fn configured(noun: &str, directory: &Path, settings: &Settings) -> Command {
    let file = directory.join(format!("{noun}.toml"));
    settings.write(&file).unwrap();
    let mut command = program();
    command.arg(noun).arg("--config").arg(file).current_dir(directory);
    command
}

fn show_log(member: &Member) {
    let lines = member.log().last_lines(LOG_LINES_SHOWN).unwrap_or_default();
    let name = member.name();
    eprintln!("---- the last {} lines of {name} ----\n{}", lines.len(), lines.join("\n"));
}

/// A node agent.
pub(crate) struct Agent {
    member: Member,
    directory: PathBuf,
    settings: Settings,
}

impl Agent {
    /// Starts an agent in a directory of its own under `root`.
    pub(crate) fn start(
        root: &Path,
        name: &str,
        servers: &[SocketAddr],
        simulate: Option<u32>,
        keys: &[(&str, &str)],
    ) -> Self {
        let directory = root.join(name);
        fs::create_dir(&directory).unwrap();
        let mut settings = Settings::agent(name, servers);
        settings.set_text("data_dir", "data");
        settings.set("drivers.mock", true);
        match simulate {
            Some(nodes) => settings.set("simulate", nodes),
            None => settings.set("drivers.raw_exec", true),
        }
        for (key, value) in keys {
            settings.set(key, value);
        }
        let member = Member::new(name, Log::new(directory.join("log.txt")));
        let mut agent = Self { member, directory, settings };
        agent.restart();
        agent
    }

    /// A second agent with a copy of this one's folder, started beside it.
    pub(crate) fn copy(&self, root: &Path, name: &str) -> Self {
        let directory = root.join(name);
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg("-a").args([&self.directory, &directory]).status().unwrap();
        assert!(copied.success());
        let log = directory.join("log.txt");
        fs::write(&log, "").unwrap();
        let (member, settings) = (Member::new(name, Log::new(log)), self.settings.clone());
        let mut agent = Self { member, directory, settings };
        agent.restart();
        agent
    }

    /// Kills the agent if it runs and starts it again.
    pub(crate) fn restart(&mut self) {
        if self.member.is_running() {
            self.kill();
        }
        let command = configured("agent", &self.directory, &self.settings);
        self.member.start(command, Group::Owners).unwrap();
    }

    /// Kills the agent with SIGKILL; its tasks go on.
    pub(crate) fn kill(&mut self) {
        self.member.kill().unwrap();
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        self.member.signal(signal).unwrap();
    }

    /// The number of its process.
    pub(crate) fn pid(&self) -> i32 {
        i32::try_from(self.member.pid().unwrap()).unwrap()
    }

    /// What the agent has logged so far.
    pub(crate) fn log(&self) -> String {
        self.member.log().text().unwrap_or_default()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            show_log(&self.member);
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
    /// Whether the server knew a leader (`X-Nomad-KnownLeader`); none without that header.
    pub(crate) known_leader: Option<bool>,
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
        Self { agent: launch::client(timeout), base: format!("http://{address}") }
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
    pub(crate) fn try_send(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<Answer, ureq::Error> {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("Content-Type", "application/json")
            .body(body)
            .unwrap();
        answer(self.agent.run(request))
    }

    /// [`Self::try_send`] that must be answered.
    #[track_caller]
    pub(crate) fn send(&self, method: &str, path: &str, body: &[u8]) -> Answer {
        let answer = self.try_send(method, path, body);
        answer.unwrap_or_else(|error| panic!("{method} {}{path}: {error}", self.base))
    }

    /// GET that must be answered.
    #[track_caller]
    pub(crate) fn get(&self, path: &str) -> Answer {
        self.try_get(path).unwrap_or_else(|error| panic!("GET {}{path}: {error}", self.base))
    }

    /// A gauge or counter of the asked server, without `nomad.`.
    #[track_caller]
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let metrics = self.get("/v1/metrics").ok();
        let of = |list: &str, field: &str| {
            let all = metrics[list].as_array().unwrap().iter();
            let mut named = all.filter(|one| one["Name"] == format!("nomad.{name}"));
            named.next().map(|one| one[field].as_f64().unwrap())
        };
        let found = of("Gauges", "Value").or_else(|| of("Counters", "Sum"));
        found.unwrap_or_else(|| panic!("no metric {name}"))
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
    let known_leader = response.headers().get("x-nomad-knownleader").map(|value| value == "true");
    let text = response.body_mut().read_to_string()?;
    let json = serde_json::from_str(&text).unwrap_or(Value::Null);
    Ok(Answer { status, text, json, known_leader })
}

/// Waits until the condition holds; panics with `what` after the deadline.
#[track_caller]
pub(crate) fn wait_until(what: &str, deadline: Duration, mut condition: impl FnMut() -> bool) {
    wait_for(what, deadline, || condition().then_some(()));
}

/// Waits until there is a value; panics with `what` after the deadline.
#[track_caller]
pub(crate) fn wait_for<T>(what: &str, deadline: Duration, attempt: impl FnMut() -> Option<T>) -> T {
    let Some(value) = launch::wait_for(deadline, attempt) else {
        panic!("waited {deadline:?} in vain until {what}");
    };
    value
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
