//! The agent against a server that is only pretended: register, stream, run, report, and what survives the agent's death.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    path::{Path, PathBuf},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use agent::{Agent, AgentSettings};
use futures_util::{Stream, StreamExt};
use ground::rt::Threads;
use proto::v1::{self, agent_server};
use tokio::{
    net::TcpListener,
    sync::watch,
    task::JoinHandle,
    time::{sleep, timeout},
};
use tokio_stream::wrappers::{TcpListenerStream, WatchStream};
use tonic::{Request, Response, Status};
use wire::rpc::words;

use crate::harness::PATIENCE;

/// What the pretended servers know.
#[derive(Default)]
struct Known {
    registrations: Vec<v1::RegisterRequest>,
    ready: u32,
    heartbeats: u32,
    statuses: HashMap<Vec<u8>, v1::AllocationStatus>,
    /// Reports refused while this is above zero.
    refuse: u32,
    /// Nodes that are not ready yet.
    initializing: HashSet<bytes::Bytes>,
    forgets_node: bool,
    /// An allocation whose statuses cannot be read.
    unreadable: Option<u8>,
    /// Where the servers are in their log.
    index: u64,
    /// Streams of allocations that were opened.
    streams: u32,
    /// What the last heartbeat said that the machine is short of.
    shortage: String,
}

#[derive(Clone)]
struct Server {
    known: Arc<Mutex<Known>>,
    allocations: Arc<watch::Sender<Vec<v1::Allocation>>>,
    ttl_ms: u64,
}

#[tonic::async_trait]
impl agent_server::Agent for Server {
    type StreamAllocationsStream =
        Pin<Box<dyn Stream<Item = Result<v1::AllocationBatch, Status>> + Send>>;

    async fn register(
        &self,
        request: Request<v1::RegisterRequest>,
    ) -> Result<Response<v1::RegisterReply>, Status> {
        let request = request.into_inner();
        let mut known = self.known.lock().unwrap();
        known.forgets_node = false;
        known.initializing.insert(request.node_id.clone());
        known.registrations.push(request);
        Ok(Response::new(v1::RegisterReply {
            incarnation: 1,
            heartbeat_ttl_ms: self.ttl_ms,
            ..Default::default()
        }))
    }

    async fn heartbeat(
        &self,
        request: Request<v1::HeartbeatRequest>,
    ) -> Result<Response<v1::HeartbeatReply>, Status> {
        let mut known = self.known.lock().unwrap();
        if known.forgets_node {
            return Err(Status::not_found("unknown node"));
        }
        known.heartbeats += 1;
        let request = request.into_inner();
        let waits = known.initializing.contains(&request.node_id);
        known.shortage = request.shortage;
        let liveness = if waits { v1::Liveness::Initializing } else { v1::Liveness::Ready }.into();
        Ok(Response::new(v1::HeartbeatReply {
            heartbeat_ttl_ms: self.ttl_ms,
            liveness,
            ..Default::default()
        }))
    }

    async fn ready(
        &self,
        request: Request<v1::ReadyRequest>,
    ) -> Result<Response<v1::ReadyReply>, Status> {
        let mut known = self.known.lock().unwrap();
        known.ready += 1;
        known.initializing.remove(&request.into_inner().node_id);
        Ok(Response::new(v1::ReadyReply { index: 1 }))
    }

    async fn stream_allocations(
        &self,
        _: Request<v1::StreamAllocationsRequest>,
    ) -> Result<Response<Self::StreamAllocationsStream>, Status> {
        self.known.lock().unwrap().streams += 1;
        let sets = WatchStream::new(self.allocations.subscribe());
        let known = Arc::clone(&self.known);
        let mut before = Vec::new();
        let batches = sets.map(move |allocations| {
            let known = known.lock().unwrap();
            let index = known.index;
            let ids = allocations.iter().map(|one| one.id.clone()).collect();
            // What goes while the stream is open is gone from their state, unless it has ended.
            let mut removed: Vec<bytes::Bytes> = std::mem::replace(&mut before, ids);
            removed.retain(|id| {
                let status = known.statuses.get(&id[..]).map(|status| status.client_status);
                let ended = status
                    .is_some_and(|status| words::client_status(status).unwrap().is_terminal());
                !before.contains(id) && !ended
            });
            let complete = true;
            Ok(v1::AllocationBatch { complete, allocations, removed, index, ..Default::default() })
        });
        Ok(Response::new(Box::pin(batches)))
    }

    async fn update_allocations(
        &self,
        request: Request<v1::UpdateAllocationsRequest>,
    ) -> Result<Response<v1::UpdateAllocationsReply>, Status> {
        let mut known = self.known.lock().unwrap();
        if known.refuse > 0 {
            known.refuse -= 1;
            return Err(Status::unavailable("no leader"));
        }
        let statuses = request.into_inner().statuses;
        if statuses.iter().any(|status| known.unreadable == Some(status.id[0])) {
            return Err(Status::invalid_argument("unreadable"));
        }
        for mut status in statuses {
            let old = known.statuses.get(&status.id[..]);
            if old.is_some_and(|old| old.sequence >= status.sequence) {
                continue;
            }
            if status.same_tasks {
                status.tasks = old.expect("tasks that were never told").tasks.clone();
            }
            known.statuses.insert(status.id.to_vec(), status);
        }
        Ok(Response::new(v1::UpdateAllocationsReply { index: 1 }))
    }
}

pub(crate) struct Cluster {
    server: Server,
    address: String,
    serving: JoinHandle<()>,
    pub(crate) directory: tempfile::TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let server = Server {
            known: Arc::default(),
            allocations: Arc::new(watch::Sender::new(Vec::new())),
            ttl_ms: 1000,
        };
        let service = agent_server::AgentServer::new(server.clone());
        let serving = tokio::spawn(async move {
            tonic::transport::Server::builder()
                .add_service(service)
                .serve_with_incoming(TcpListenerStream::new(listener))
                .await
                .unwrap();
        });
        Self { server, address, serving, directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address.parse().unwrap()
    }

    /// What the agent says that its machine is short of.
    pub(crate) fn shortage(&self) -> String {
        self.server.known.lock().unwrap().shortage.clone()
    }

    pub(crate) fn settings(&self) -> AgentSettings {
        // The first address leads nowhere: the agent has to find the other.
        let servers = vec!["127.0.0.1:1".to_owned(), self.address.clone()];
        let mut settings = AgentSettings::new(self.directory.path().join("agent"), servers);
        settings.executor_binary = Some(PathBuf::from(env!("CARGO_BIN_EXE_quorate")));
        settings
    }

    /// An agent; the one before, which was dropped, may take a moment to let go of the directory.
    pub(crate) async fn agent(&self) -> Agent {
        Self::agent_of(self.settings()).await
    }

    /// Ends an agent as a kill would, and waits until all of it is gone: what happens next it sees no more.
    pub(crate) async fn end(&self, agent: Agent) {
        drop(agent);
        let lock = std::fs::File::open(self.directory.path().join("agent/LOCK")).unwrap();
        self.until("the directory is free", |_| lock.try_lock().ok()).await;
    }

    async fn agent_of(settings: AgentSettings) -> Agent {
        let started = timeout(PATIENCE, async {
            loop {
                match Agent::start(settings.clone(), &Threads::HERE, http_api::agents::serve).await
                {
                    Ok(agent) => return agent,
                    Err(error) => assert!(error.to_string().contains("held by another"), "{error}"),
                }
                sleep(Duration::from_millis(5)).await;
            }
        });
        started.await.unwrap()
    }

    pub(crate) fn want(&self, allocations: Vec<v1::Allocation>) {
        self.server.allocations.send_replace(allocations);
    }

    pub(crate) fn status(&self, id: u8) -> Option<v1::AllocationStatus> {
        self.server.known.lock().unwrap().statuses.get(&vec![id; 16]).cloned()
    }

    pub(crate) async fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let found = timeout(PATIENCE, async {
            loop {
                if let Some(found) = look(self) {
                    return found;
                }
                sleep(Duration::from_millis(10)).await;
            }
        });
        match found.await {
            Ok(found) => found,
            Err(elapsed) => {
                let known = self.server.known.lock().unwrap();
                panic!("never ({elapsed}): {what}; known: {:?}", known.statuses)
            }
        }
    }

    pub(crate) async fn until_status(&self, id: u8, wanted: &str) -> v1::AllocationStatus {
        self.until(wanted, |cluster| cluster.status(id).filter(|status| name(status) == wanted))
            .await
    }

    /// How often the agent has said that it is ready.
    pub(crate) fn times_ready(&self) -> u32 {
        self.server.known.lock().unwrap().ready
    }

    /// How the agent has registered, the last time last.
    pub(crate) fn registrations(&self) -> Vec<v1::RegisterRequest> {
        self.server.known.lock().unwrap().registrations.clone()
    }

    pub(crate) fn allocation_directory(&self, id: u8) -> PathBuf {
        let id = quorate_id(id);
        self.directory.path().join("agent/allocs").join(id)
    }

    /// The agent's own folder of an allocation.
    pub(crate) fn own_directory(&self, id: u8) -> PathBuf {
        self.directory.path().join("agent/runs").join(quorate_id(id))
    }
}

impl Drop for Cluster {
    /// Tasks outlive their agent: what a test leaves running ends with its directory.
    fn drop(&mut self) {
        self.serving.abort();
        let below = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
        let runs = below(self.directory.path().join("agent/runs"))
            .flat_map(|allocation| below(allocation.path().join("tasks")))
            .flat_map(|task| below(task.path()));
        for run in runs {
            super::executor::kill(&run.path());
        }
    }
}

pub(crate) fn quorate_id(id: u8) -> String {
    fsm::AllocationId([id; 16]).to_string()
}

pub(crate) fn shell_task(name: &str, script: &str) -> v1::Task {
    v1::Task {
        name: name.to_owned(),
        driver: "raw_exec".to_owned(),
        config_json: serde_json::json!({"command": "sh", "args": ["-c", script]}).to_string(),
        kill_timeout_ms: 500,
        ..Default::default()
    }
}

/// The name of an allocation's status.
fn name(status: &v1::AllocationStatus) -> &'static str {
    words::client_status(status.client_status).unwrap().name()
}

pub(crate) fn allocation(id: u8, kind: &str, tasks: Vec<v1::Task>) -> v1::Allocation {
    v1::Allocation {
        id: vec![id; 16].into(),
        namespace: "default".to_owned(),
        job_id: "job".to_owned(),
        job_name: "job".to_owned(),
        job_kind: words::job_kind_to_pb(fsm::JobKind::parse(kind).unwrap()).into(),
        client_status: v1::ClientStatus::Pending.into(),
        group: "group".to_owned(),
        name: "job.group[0]".to_owned(),
        run: true,
        task_starts_allowed: true,
        restart: Some(v1::RestartPolicy {
            attempts: 0,
            interval_ms: 60_000,
            delay_ms: 10,
            fail: true,
        }),
        tasks,
        ..Default::default()
    }
}

fn kinds(status: &v1::AllocationStatus, task: &str) -> Vec<String> {
    status.tasks[task].events.iter().map(|event| event.kind.clone()).collect()
}

pub(crate) fn lines(path: &Path) -> usize {
    std::fs::read_to_string(path).unwrap_or_default().lines().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_batch_task_is_run_and_its_end_reported() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    cluster.want(vec![allocation(
        1,
        "batch",
        vec![shell_task("main", "echo hello $NOMAD_TASK_NAME")],
    )]);
    let status = cluster.until_status(1, "complete").await;
    assert_eq!(kinds(&status, "main"), ["Received", "Task Setup", "Started", "Terminated"]);
    let url = format!(
        "http://{}/v1/client/fs/logs/{}?task=main&plain=true",
        agent.http_address(),
        quorate_id(1)
    );
    let text = tokio::task::spawn_blocking(move || {
        ureq::get(&url).call().unwrap().into_body().read_to_string().unwrap()
    });
    assert_eq!(text.await.unwrap(), "hello main\n");
    let known = cluster.server.known.lock().unwrap();
    assert_eq!(known.registrations[0].http_address, agent.http_address().to_string());
    assert!(known.registrations[0].attributes.contains_key("unique.hostname"));
    assert_eq!(known.ready, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exit_while_the_agent_is_dead_is_reported_by_the_next() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let node_id = agent.node_id();
    cluster.want(vec![allocation(
        1,
        "batch",
        vec![shell_task("main", "while ! test -e ../go; do sleep 0.02; done; exit 7")],
    )]);
    cluster.until_status(1, "running").await;
    cluster.end(agent).await;
    std::fs::write(cluster.allocation_directory(1).join("go"), "").unwrap();
    let exit = cluster.own_directory(1).join("tasks/main/1/exit.json");
    cluster.until("the exit status", |_| exit.exists().then_some(())).await;
    let agent = cluster.agent().await;
    assert_eq!(agent.node_id(), node_id);
    let status = cluster.until_status(1, "failed").await;
    let ended =
        status.tasks["main"].events.iter().find(|event| event.kind == "Terminated").unwrap();
    assert_eq!(ended.exit_code, Some(7));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_running_task_survives_the_agent_and_is_stopped_by_the_next() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let mut wanted = allocation(
        1,
        "service",
        vec![shell_task("main", "echo start >> ../starts; exec sleep 600")],
    );
    cluster.want(vec![wanted.clone()]);
    cluster.until_status(1, "running").await;
    drop(agent);
    let _agent = cluster.agent().await;
    cluster
        .until("ready again", |cluster| {
            (cluster.server.known.lock().unwrap().ready == 2).then_some(())
        })
        .await;
    assert_eq!(lines(&cluster.allocation_directory(1).join("starts")), 1);
    assert_eq!(name(&cluster.status(1).unwrap()), "running");
    wanted.run = false;
    cluster.want(vec![wanted]);
    let status = cluster.until_status(1, "complete").await;
    assert!(kinds(&status, "main").contains(&"Killed".to_owned()), "{status:?}");
    assert!(!status.tasks["main"].failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_that_end_with_the_agent_start_again_with_the_next_once_they_may() {
    let cluster = Cluster::start().await;
    let settings = AgentSettings { stop_tasks_on_exit: true, ..cluster.settings() };
    let agent =
        Agent::start(settings.clone(), &Threads::HERE, http_api::agents::serve).await.unwrap();
    let script = "echo start >> ../starts; exec sleep 600";
    let mut wanted = allocation(1, "service", vec![shell_task("main", script)]);
    cluster.want(vec![wanted.clone()]);
    cluster.until_status(1, "running").await;
    agent.stop().await;
    let exit = cluster.own_directory(1).join("tasks/main/1/exit.json");
    assert!(exit.exists(), "the task should have ended with the agent");
    assert_eq!(name(&cluster.status(1).unwrap()), "running", "nothing was reported");
    wanted.task_starts_allowed = false;
    cluster.want(vec![wanted.clone()]);
    let agent = Cluster::agent_of(settings).await;
    cluster
        .until("ready again", |cluster| {
            (cluster.server.known.lock().unwrap().ready == 2).then_some(())
        })
        .await;
    let starts = cluster.allocation_directory(1).join("starts");
    assert_eq!(lines(&starts), 1, "it may run elsewhere by now");
    assert_eq!(name(&cluster.status(1).unwrap()), "running");
    wanted.task_starts_allowed = true;
    cluster.want(vec![wanted]);
    cluster.until("a second start", |_| (lines(&starts) == 2).then_some(())).await;
    cluster.until_status(1, "running").await;
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_handed_over_only_when_its_holder_has_ended() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let port = v1::Port { label: "web".to_owned(), value: 20_001, to: 0 };
    let stubborn = "trap '' INT; while :; do date +%s%N >> ../../last; sleep 0.02; done";
    let mut first = allocation(1, "service", vec![shell_task("main", stubborn)]);
    first.ports.push(port.clone());
    cluster.want(vec![first.clone()]);
    let last = cluster.allocation_directory(1).parent().unwrap().join("last");
    cluster.until("the first runs", |_| last.exists().then_some(())).await;
    let mut second = allocation(
        2,
        "service",
        vec![shell_task("main", "date +%s%N > ../../second; exec sleep 600")],
    );
    second.ports.push(port);
    first.run = false;
    cluster.want(vec![first, second]);
    cluster.until_status(2, "running").await;
    let second_started = last.with_file_name("second");
    cluster.until("the second runs", |_| (lines(&second_started) == 1).then_some(())).await;
    // The last line may be cut short by the kill.
    let time = |path: &Path| {
        let text = std::fs::read_to_string(path).unwrap();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole.map(|line| line.trim().parse::<u128>().unwrap()).max().unwrap()
    };
    assert!(time(&second_started) > time(&last));
    assert_eq!(name(&cluster.status(1).unwrap()), "complete");
    cluster.want(Vec::new());
    cluster
        .until("the second is gone", |cluster| {
            (!cluster.allocation_directory(2).exists()).then_some(())
        })
        .await;
    assert!(cluster.allocation_directory(1).exists(), "what ended by itself keeps its logs");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_forgot_the_node_is_told_everything_again() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let mock =
        v1::Task { name: "main".to_owned(), driver: "mock".to_owned(), ..Default::default() };
    cluster.want(vec![allocation(1, "service", vec![mock])]);
    cluster.server.known.lock().unwrap().refuse = 3;
    cluster.until_status(1, "running").await;
    {
        let mut known = cluster.server.known.lock().unwrap();
        known.statuses.clear();
        known.forgets_node = true;
    }
    cluster.until_status(1, "running").await;
    cluster
        .until("registered again", |cluster| {
            let known = cluster.server.known.lock().unwrap();
            (known.registrations.len() == 2 && known.ready == 2).then_some(())
        })
        .await;
}

/// In the whole set of a server that lags the newest allocations are missing, and must not be taken for gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_lags_does_not_end_what_runs() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let mock =
        v1::Task { name: "main".to_owned(), driver: "mock".to_owned(), ..Default::default() };
    cluster.server.known.lock().unwrap().index = 7;
    cluster.want(vec![allocation(1, "service", vec![mock.clone()])]);
    cluster.until_status(1, "running").await;
    let streams = {
        let mut known = cluster.server.known.lock().unwrap();
        known.index = 5;
        known.streams
    };
    cluster.want(Vec::new());
    cluster
        .until("another stream was tried twice", |cluster| {
            (cluster.server.known.lock().unwrap().streams >= streams + 2).then_some(())
        })
        .await;
    // Once the server has caught up, what it says counts; had the agent forgotten the allocation, this report would be its first.
    cluster.server.known.lock().unwrap().index = 8;
    let mut stopped = allocation(1, "service", vec![mock]);
    stopped.run = false;
    cluster.want(vec![stopped]);
    let status = cluster.until_status(1, "complete").await;
    assert!(status.sequence > 1, "{status:?}");
    assert!(kinds(&status, "main").contains(&"Started".to_owned()), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_cannot_run_fails_with_a_reason_and_never_leaves_the_servers_waiting() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let mut nameless = allocation(1, "batch", vec![shell_task("../x", "true")]);
    nameless.client_sequence = 4;
    let missing = v1::Task {
        config_json: r#"{"command":"no-such-program"}"#.to_owned(),
        ..shell_task("main", "")
    };
    let mut never = allocation(3, "batch", vec![shell_task("main", "true")]);
    never.run = false;
    cluster.want(vec![nameless, allocation(2, "batch", vec![missing]), never]);
    let status = cluster.until_status(1, "failed").await;
    assert!(status.description.contains("../x"), "{status:?}");
    assert_eq!(status.sequence, 5);
    let status = cluster.until_status(2, "failed").await;
    assert!(kinds(&status, "main").contains(&"Driver Failure".to_owned()), "{status:?}");
    cluster.until_status(3, "complete").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_leader_ends_the_others() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    let leader = v1::Task { leader: true, ..shell_task("leader", "sleep 0.3") };
    cluster.want(vec![allocation(1, "batch", vec![leader, shell_task("side", "exec sleep 600")])]);
    let status = cluster.until_status(1, "complete").await;
    assert!(kinds(&status, "side").contains(&"Leader Task Dead".to_owned()), "{status:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn hundreds_of_simulated_nodes_register_and_run() {
    let cluster = Cluster::start().await;
    let mut mock =
        v1::Task { name: "main".to_owned(), driver: "mock".to_owned(), ..Default::default() };
    mock.config_json = r#"{"run_for":"100ms"}"#.to_owned();
    cluster.want(vec![allocation(1, "batch", vec![mock])]);
    let settings = AgentSettings { simulate: Some(300), ..cluster.settings() };
    let agent = Agent::start(settings, &Threads::HERE, http_api::agents::serve).await.unwrap();
    cluster
        .until("all are ready", |cluster| {
            let known = cluster.server.known.lock().unwrap();
            let ids: std::collections::HashSet<_> =
                known.registrations.iter().map(|node| &node.node_id).collect();
            (ids.len() == 300 && known.ready >= 300).then_some(())
        })
        .await;
    cluster.until_status(1, "complete").await;
    let last = |node: &v1::RegisterRequest| node.name == "sim-0300";
    assert!(cluster.server.known.lock().unwrap().registrations.iter().any(last));
    agent.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_whose_executor_is_killed_ends_too_and_counts_as_failed() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.want(vec![allocation(
        1,
        "batch",
        vec![shell_task("main", "echo $$ > ../pid; exec sleep 600")],
    )]);
    cluster.until_status(1, "running").await;
    let pid = cluster.allocation_directory(1).join("pid");
    cluster.until("the task runs", |_| (lines(&pid) == 1).then_some(())).await;
    let identity = cluster.own_directory(1).join("tasks/main/1/executor.json");
    let identity: serde_json::Value =
        serde_json::from_slice(&std::fs::read(identity).unwrap()).unwrap();
    let kill = std::process::Command::new("kill")
        .args(["-9", &identity["pid"].to_string()])
        .status()
        .unwrap();
    assert!(kill.success());
    let status = cluster.until_status(1, "failed").await;
    let ended =
        status.tasks["main"].events.iter().find(|event| event.kind == "Terminated").unwrap();
    assert!(ended.message.contains("the executor is gone"), "{status:?}");
    assert!(status.node_failure.contains("the executor is gone"), "the node is judged by it");
    let task = std::fs::read_to_string(pid).unwrap();
    cluster
        .until("the task is gone", |_| (!super::executor::is_alive(task.trim())).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_followed_log_ends_with_its_task() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "echo one; while ! test -e ../go; do sleep 0.02; done; echo two";
    cluster.want(vec![allocation(1, "batch", vec![shell_task("main", script)])]);
    cluster.until_status(1, "running").await;
    let base =
        format!("http://{}/v1/client/fs/logs/{}?task=main", agent.http_address(), quorate_id(1));
    let read = |url: String| {
        tokio::task::spawn_blocking(move || {
            ureq::get(&url).call().unwrap().into_body().read_to_string().unwrap()
        })
    };
    let followed = read(format!("{base}&plain=true&follow=true"));
    std::fs::write(cluster.allocation_directory(1).join("go"), "").unwrap();
    assert_eq!(followed.await.unwrap(), "one\ntwo\n");
    let framed: serde_json::Value =
        serde_json::from_str(&read(base.clone()).await.unwrap()).unwrap();
    let expected = serde_json::json!({"Data": "b25lCnR3bwo=", "File": "alloc/logs/main.stdout.0", "Offset": 8});
    assert_eq!(framed, expected);
    assert_eq!(read(format!("{base}&plain=true&origin=end&offset=4")).await.unwrap(), "two\n");
    assert_eq!(read(format!("{base}&plain=true&type=stderr")).await.unwrap(), "");
    assert_eq!(read(format!("{base}&plain=True&follow=False")).await.unwrap(), "one\ntwo\n");

    // The same file by its path, as Nomad's clients ask for it.
    let by_path = |verb: &str, rest: &str| {
        let (agent, id) = (agent.http_address(), quorate_id(1));
        read(format!("http://{agent}/v1/client/fs/{verb}/{id}?path=alloc/logs/main.stdout.0{rest}"))
    };
    assert_eq!(by_path("cat", "").await.unwrap(), "one\ntwo\n");
    assert_eq!(by_path("readat", "&offset=4&limit=2").await.unwrap(), "tw");
    assert_eq!(by_path("readat", "&offset=4&limit=-1").await.unwrap(), "two\n");
    assert_eq!(by_path("readat", "&offset=18446744073709551615").await.unwrap(), "");
    assert_eq!(by_path("stream", "&offset=4&plain=true").await.unwrap(), "two\n");
    let framed: serde_json::Value =
        serde_json::from_str(&by_path("stream", "&follow=false").await.unwrap()).unwrap();
    assert_eq!(framed, expected);
    let described: serde_json::Value =
        serde_json::from_str(&by_path("stat", "").await.unwrap()).unwrap();
    assert_eq!(described["ContentType"], "text/plain; charset=utf-8");
    let log = cluster.allocation_directory(1).join("alloc/logs/main.stdout.0");
    let modified = std::fs::metadata(log).unwrap().modified().unwrap();
    let seconds = modified.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let expected = calendar::DateTime::from_unix(seconds.try_into().unwrap()).rfc3339();
    let shown = described["ModTime"].as_str().unwrap();
    assert!(shown.starts_with(expected.trim_end_matches('Z')) && shown.ends_with('Z'), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_is_followed_over_its_rotation() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    // Three files of at most 1 MiB.
    let script = "echo first; while ! test -e ../go; do sleep 0.02; done; \
        i=0; while test $i -lt 40; do head -c 65535 /dev/zero | tr '\\0' x; echo; i=$((i+1)); done";
    let task = v1::Task { log_files_max: 5, log_file_mb_max: 1, ..shell_task("main", script) };
    cluster.want(vec![allocation(1, "batch", vec![task])]);
    cluster.until_status(1, "running").await;
    let base = format!(
        "http://{}/v1/client/fs/logs/{}?task=main&type=stdout&plain=true",
        agent.http_address(),
        quorate_id(1)
    );
    let read = |url: String| {
        tokio::task::spawn_blocking(move || {
            let body = ureq::get(&url).call().unwrap().into_body();
            let limited = body.into_with_config().limit(16 << 20);
            limited.read_to_string().unwrap()
        })
    };
    let followed = read(format!("{base}&follow=true"));
    std::fs::write(cluster.allocation_directory(1).join("go"), "").unwrap();
    let followed = followed.await.unwrap();
    assert_eq!(followed.len(), 6 + 40 * 65_536);
    let newest =
        std::fs::read_to_string(cluster.allocation_directory(1).join("alloc/logs/main.stdout.2"));
    assert_eq!(read(format!("{base}&origin=end&offset=0")).await.unwrap(), newest.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_the_agent_cannot_answer_is_refused_by_name() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "echo start >> ../starts; while :; do sleep 0.02; done";
    cluster.want(vec![allocation(1, "service", vec![shell_task("main", script)])]);
    cluster.until_status(1, "running").await;
    let base = format!("http://{}/v1/client", agent.http_address());
    let id = quorate_id(1);
    let cases = [
        ("GET", format!("allocation/{id}/exec"), "", 501, "is not supported by this agent"),
        ("GET", format!("allocation/{id}/gc"), "", 400, "not eligible for GC"),
        ("GET", "gc".to_owned(), "", 200, "{}"),
        ("PUT", "metadata".to_owned(), "{}", 400, "missing required Meta object"),
        (
            "PUT",
            "metadata".to_owned(),
            "{\"Meta\": {\"a\": 7}}",
            400,
            "Meta.a: expected a text or null",
        ),
        ("PUT", "metadata".to_owned(), "{\"meta\": {\"a\": \"7\"}}", 200, "\"a\":\"7\""),
        ("GET", format!("allocation/{id}/stats?task=x"), "", 404, "has no task \"x\""),
        ("PUT", format!("fs/cat/{id}?path=x"), "", 405, "method PUT is not allowed"),
        ("GET", format!("fs/logs/{id}"), "", 400, "must provide task name"),
        ("GET", format!("fs/logs/{id}?task=x"), "", 400, "unknown task name \"x\""),
        ("GET", format!("fs/logs/{id}?task=main&type=x"), "", 400, "must provide log type"),
        ("GET", format!("fs/ls/{id}?path=no"), "", 404, "open no: no such file or directory"),
        ("GET", format!("fs/stat/{id}?path=no"), "", 404, "stat no: no such file or directory"),
        ("GET", format!("fs/stat/{id}"), "", 400, "must provide a file name"),
        ("GET", format!("fs/cat/{id}?path=no"), "", 400, "stat no: no such file or directory"),
        ("GET", format!("fs/readat/{id}?path=main"), "", 400, "file \"main\" is a directory"),
        ("GET", format!("fs/stream/{id}?path=no"), "", 400, "stat no: no such file or directory"),
        ("GET", format!("fs/logs/{id}?task=main&follow=yes"), "", 400, "follow: expected true"),
        ("GET", format!("fs/logs/{id}?task=main&offset=-1"), "", 400, "offset: expected a whole"),
        ("PUT", format!("allocation/{id}/signal"), "", 400, "Signal is required"),
        ("PUT", format!("allocation/{id}/signal"), "{\"Signal\": 7}", 400, "expected a text"),
        (
            "PUT",
            format!("allocation/{id}/signal"),
            "{\"signal\": \"X\"}",
            400,
            "invalid signal \"X\"",
        ),
        (
            "PUT",
            format!("allocation/{id}/restart"),
            "{\"taskname\": \"x\"}",
            404,
            "unknown task name",
        ),
        ("PUT", format!("allocation/{id}/restart"), "[]", 400, "expected an object"),
        ("PUT", format!("allocation/{id}/restart"), "{", 400, "not what is expected"),
        ("PUT", format!("allocation/{id}/restart"), "", 200, "{}"),
    ];
    for (method, path, body, status, text) in cases {
        let url = format!("{base}/{path}");
        // Nomad's clients name no content type.
        let request = ureq::http::Request::builder().method(method).uri(&url).body(body).unwrap();
        let sent = tokio::task::spawn_blocking(move || {
            let config = ureq::Agent::config_builder().http_status_as_error(false);
            let agent: ureq::Agent = config.allow_non_standard_methods(true).build().into();
            let response = agent.run(request).unwrap();
            (response.status().as_u16(), response.into_body().read_to_string().unwrap())
        });
        let (found, answer) = sent.await.unwrap();
        assert_eq!(found, status, "{method} {path}: {answer}");
        assert!(answer.contains(text), "{method} {path}: {answer}");
    }
    // What would only now be started nobody would end.
    let starts = cluster.allocation_directory(1).join("starts");
    cluster.until("the restart", |_| (lines(&starts) == 2).then_some(())).await;
}

/// The files of what has ended go on request, once the servers know of the end.
#[tokio::test(flavor = "multi_thread")]
async fn an_ended_allocation_is_collected_on_request() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let allocations = [(1, "true"), (2, "true"), (3, "while :; do sleep 0.02; done")];
    let wanted =
        allocations.map(|(id, script)| allocation(id, "batch", vec![shell_task("main", script)]));
    cluster.want(wanted.into());
    for id in [1, 2] {
        cluster.until_status(id, "complete").await;
    }
    cluster.until_status(3, "running").await;
    let base = format!("http://{}/v1/client", agent.http_address());
    let get = |path: String| {
        let url = format!("{base}/{path}");
        tokio::task::spawn_blocking(move || ureq::get(url).call().is_ok())
    };
    let gone = |id: u8| {
        let folder = cluster.allocation_directory(id);
        move |_: &Cluster| (!folder.exists()).then_some(())
    };
    let one = format!("allocation/{}/gc", quorate_id(1));
    // A report that was sent is known once the server has answered it.
    while !get(one.clone()).await.unwrap() {
        tokio::task::yield_now().await;
    }
    cluster.until("one is gone", gone(1)).await;
    assert!(cluster.allocation_directory(2).exists());
    while cluster.allocation_directory(2).exists() {
        assert!(get("gc".to_owned()).await.unwrap());
    }
    assert!(cluster.allocation_directory(3).exists(), "what runs stays");
}

#[tokio::test(flavor = "multi_thread")]
async fn usage_of_the_machine_and_its_tasks_is_reported() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "echo start >> ../starts; while :; do :; done";
    cluster.want(vec![allocation(1, "service", vec![shell_task("main", script)])]);
    cluster.until_status(1, "running").await;
    let starts = cluster.allocation_directory(1).join("starts");
    cluster.until("the task runs", |_| (lines(&starts) == 1).then_some(())).await;
    let address = agent.http_address();
    let get = |path: String| {
        tokio::task::spawn_blocking(move || {
            let body = ureq::get(format!("http://{address}/v1/client/{path}")).call().unwrap();
            body.into_body().read_json::<serde_json::Value>().unwrap()
        })
    };
    let used = get(format!("allocation/{}/stats", quorate_id(1))).await.unwrap();
    let task = &used["Tasks"]["main"];
    let cpu = &task["ResourceUsage"]["CpuStats"];
    // A task that does nothing but count; the machine may have much else to do.
    assert!(cpu["Percent"].as_f64().unwrap() > 0.0, "{used:#}");
    assert!(cpu["TotalTicks"].as_f64().unwrap() > 0.0, "{used:#}");
    assert!(task["ResourceUsage"]["MemoryStats"]["RSS"].as_u64().unwrap() > 0, "{used:#}");
    assert_eq!(task["Pids"].as_object().unwrap().len(), 1, "the executor is not the task");
    assert_eq!(used["ResourceUsage"]["CpuStats"]["Percent"], cpu["Percent"]);

    let host = get("stats".to_owned()).await.unwrap();
    let cores = host["CPU"].as_array().unwrap();
    assert!(!cores.is_empty() && host["CPUTicksConsumed"].as_f64().unwrap() > 0.0, "{host:#}");
    for core in cores {
        let [idle, used] = ["Idle", "TotalPercent"].map(|field| core[field].as_f64().unwrap());
        assert!((99.0..=101.0).contains(&(idle + used)), "{core}");
    }
    assert!(host["Memory"]["Total"].as_u64() > host["Memory"]["Used"].as_u64(), "{host:#}");
    assert!(host["AllocDirStats"]["Size"].as_u64().unwrap() > 0, "{host:#}");
    assert!(host["Uptime"].as_u64().unwrap() > 0 && host["Timestamp"].as_u64().unwrap() > 0);
    let metrics = format!("http://{address}/v1/metrics");
    let told = tokio::task::spawn_blocking(move || {
        let body = |url: &str| ureq::get(url).call().unwrap().into_body();
        let json = body(&metrics).read_json::<serde_json::Value>().unwrap();
        (json, body(&format!("{metrics}?format=prometheus")).read_to_string().unwrap())
    });
    let (json, prometheus) = told.await.unwrap();
    let gauges = json["Gauges"].as_array().unwrap();
    let value = |name: &str| {
        let gauge = gauges.iter().find(|gauge| gauge["Name"] == name);
        gauge
            .and_then(|gauge| gauge["Value"].as_f64())
            .unwrap_or_else(|| panic!("{name}: {json:#}"))
    };
    for name in ["allocations", "tasks"] {
        let running = value(&format!("nomad.client.{name}.running"));
        assert!((running - 1.0).abs() < 0.1, "{name}: {running}");
    }
    for name in ["uptime", "host.memory.total", "host.disk.size", "host.cpu.total_ticks"] {
        assert!(value(&format!("nomad.client.{name}")) > 0.0, "{name}");
    }
    let node = format!("node_id=\"{}\"}} 1\n", agent.node_id());
    let line = prometheus.lines().find(|line| line.starts_with("nomad_client_tasks_running{host="));
    assert!(line.is_some_and(|line| format!("{line}\n").ends_with(&node)), "{prometheus}");
    let known = cluster.server.known.lock().unwrap();
    let volume = &known.registrations[0].attributes["unique.storage.volume"];
    assert_eq!(Some(volume.as_str()), host["AllocDirStats"]["Device"].as_str());
}

#[tokio::test(flavor = "multi_thread")]
async fn metadata_is_set_while_the_agent_runs_and_kept() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let url = format!("http://{}/v1/client/metadata", agent.http_address());
    let body = serde_json::json!({"NodeID": agent.node_id().to_string(), "Meta": {"rack": "r2"}});
    let sent = tokio::task::spawn_blocking(move || {
        let answer = ureq::put(&url).send_json(body).unwrap();
        answer.into_body().read_json::<serde_json::Value>().unwrap()
    });
    assert_eq!(sent.await.unwrap()["Dynamic"], serde_json::json!({"rack": "r2"}));
    let told = |cluster: &Cluster| {
        let known = cluster.server.known.lock().unwrap();
        let last = known.registrations.last().unwrap();
        (last.meta.get("rack").map(String::as_str) == Some("r2")).then_some(())
    };
    cluster.until("the servers know it", told).await;
    cluster.end(agent).await;
    cluster.server.known.lock().unwrap().registrations.truncate(1);
    let agent = cluster.agent().await;
    cluster.until("the next agent says it too", told).await;
    // The environment of what starts from now on has it.
    let script = "test \"$RACK\" = r2";
    let mut task = shell_task("main", script);
    task.env.insert("RACK".to_owned(), "${meta.rack}".to_owned());
    cluster.want(vec![allocation(1, "batch", vec![task])]);
    cluster.until_status(1, "complete").await;
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_signalled_and_restarted_on_request() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script =
        "trap 'echo got >> ../signals' HUP; echo start >> ../starts; while :; do sleep 0.02; done";
    cluster.want(vec![allocation(1, "service", vec![shell_task("main", script)])]);
    let directory = cluster.allocation_directory(1);
    let (starts, signals) = (directory.join("starts"), directory.join("signals"));
    cluster.until("the task runs", |_| (lines(&starts) == 1).then_some(())).await;
    cluster.until_status(1, "running").await;
    let base = format!("http://{}/v1/client/allocation/{}", agent.http_address(), quorate_id(1));
    let put = |what: &str, body: serde_json::Value| {
        let url = format!("{base}/{what}");
        tokio::task::spawn_blocking(move || match ureq::put(&url).send_json(body) {
            Ok(response) => response.status().as_u16(),
            Err(ureq::Error::StatusCode(code)) => code,
            Err(error) => panic!("{error}"),
        })
    };
    assert_eq!(put("signal", serde_json::json!({"Signal": "SIGHUP"})).await.unwrap(), 200);
    cluster.until("the signal arrives", |_| (lines(&signals) >= 1).then_some(())).await;
    assert_eq!(put("signal", serde_json::json!({"Signal": "SIGNONE"})).await.unwrap(), 400);
    assert_eq!(put("restart", serde_json::json!({"TaskName": "other"})).await.unwrap(), 404);
    assert_eq!(put("restart", serde_json::json!({"TaskName": "main"})).await.unwrap(), 200);
    cluster.until("a second start", |_| (lines(&starts) == 2).then_some(())).await;
    let restarted = |cluster: &Cluster| {
        cluster.status(1).filter(|status| {
            status.tasks["main"].restarts == 1
                && status.tasks["main"].phase() == v1::TaskPhase::Running
        })
    };
    let status = cluster.until("running again", restarted).await;
    assert!(kinds(&status, "main").contains(&"Restart Signaled".to_owned()), "{status:?}");
    cluster.want(Vec::new());
    cluster.until("it is gone", |_| (!directory.exists()).then_some(())).await;
}

/// Not a test of its own: the agent of the test below, in a process that can be killed.
#[tokio::test(flavor = "multi_thread")]
async fn agent_process() {
    let Ok(given) = std::env::var("QUORATE_TEST_AGENT") else { return };
    let (directory, server) = given.split_once(' ').unwrap();
    let mut settings = AgentSettings::new(directory, vec![server.to_owned()]);
    settings.executor_binary = Some(PathBuf::from(env!("CARGO_BIN_EXE_quorate")));
    let _agent = Agent::start(settings, &Threads::HERE, http_api::agents::serve).await.unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_survive_a_kill_of_the_agents_whole_process_group() {
    use std::os::unix::process::CommandExt;

    let cluster = Cluster::start().await;
    let directory = cluster.directory.path().join("agent");
    let mut agent = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "agent::agent_process"])
        .env("QUORATE_TEST_AGENT", format!("{} {}", directory.display(), cluster.address))
        .stdout(std::process::Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let script = "echo $QUORATE_TEST_AGENT $$ >> ../starts; while ! test -e ../go; do sleep 0.02; done; exit 9";
    cluster.want(vec![allocation(1, "batch", vec![shell_task("main", script)])]);
    cluster.until_status(1, "running").await;
    let starts = cluster.allocation_directory(1).join("starts");
    cluster.until("the task runs", |_| (lines(&starts) == 1).then_some(())).await;
    for signal in ["-INT", "-KILL"] {
        let group = format!("-{}", agent.id());
        assert!(
            std::process::Command::new("kill")
                .args([signal, "--", &group])
                .status()
                .unwrap()
                .success()
        );
    }
    agent.wait().unwrap();
    let task = std::fs::read_to_string(&starts).unwrap();
    assert!(super::executor::is_alive(task.trim()), "the task {task} died with the agent");
    let _agent = cluster.agent().await;
    cluster
        .until("ready again", |cluster| {
            (cluster.server.known.lock().unwrap().ready == 2).then_some(())
        })
        .await;
    std::fs::write(cluster.allocation_directory(1).join("go"), "").unwrap();
    let status = cluster.until_status(1, "failed").await;
    let ended =
        status.tasks["main"].events.iter().find(|event| event.kind == "Terminated").unwrap();
    assert_eq!(ended.exit_code, Some(9));
    assert_eq!(lines(&starts), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_status_that_is_refused_for_good_does_not_hold_up_the_others() {
    let cluster = Cluster::start().await;
    let _agent = cluster.agent().await;
    cluster.server.known.lock().unwrap().unreadable = Some(2);
    let mock =
        v1::Task { name: "main".to_owned(), driver: "mock".to_owned(), ..Default::default() };
    cluster.want((1..=4).map(|id| allocation(id, "service", vec![mock.clone()])).collect());
    for id in [1, 3, 4] {
        cluster.until_status(id, "running").await;
    }
    assert!(cluster.status(2).is_none());
}
