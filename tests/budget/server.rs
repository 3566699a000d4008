//! One server as it is, simulated on this thread: Raft, leader, worker, reports, log and state. Only
//! its disk, its clock and the way to other servers, of which there are none, are not real.
//!
//! It runs what an operation asks for until nothing follows from it any more. What that came to is
//! in the log on its disk.

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use fsm::{Command, Index, JobKind, NodeId, Reply, State, allocation::NodeReport, digest::Digest};
use futures_util::{
    FutureExt,
    future::{self, BoxFuture},
    stream::BoxStream,
};
use ground::{
    caller::{Caller, Way},
    disk::{Disk, fault::FaultDisk},
    rt,
};
use leader::{ServicesConfig, heartbeat::HeartbeatConfig};
use proto::v1 as pb;
use raft::storage::{shadow, wal};
use server::{Core, Parts, RaftTiming, Settings};
use tonic::Status;
use wire::{
    api::{AgentApi, Api},
    rpc::transport::{Lane, ReplyStream, Transport},
};

const DATA: &str = "/data";
const ADDRESS: &str = "10.0.0.1:4647";
/// Asks the server as an agent, without a socket.
static AGENT: Caller = Caller::anonymous(Way::Agent, None);
/// Asks the server as a client, without a socket.
static CLIENT: Caller = Caller::anonymous(Way::Http, None);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Virtual time without an entry after which nothing follows from the last one: reports, drains and
/// the look of the machines at what changed wait a part of it.
const QUIET: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(50);
/// Looks at a server that does not come to rest.
const LOOKS_MAX: usize = 2_000;
/// No node is to be lost for want of heartbeats.
const HEARTBEAT_TTL_MS: u64 = 24 * 3_600_000;
/// First byte of the payload of an entry that holds a command.
const COMMAND: u8 = 1;

/// An entry as it lies in the log.
pub(crate) struct Logged {
    pub(crate) index: Index,
    pub(crate) term: u64,
    /// The frame of its proposal; none: the first of a term, or a membership.
    pub(crate) frame: Option<Bytes>,
}

/// A server that leads itself.
pub(crate) struct Server {
    core: Arc<Core>,
    disk: FaultDisk,
}

struct Alone;

impl Transport for Alone {
    fn unary(
        &self,
        to: &str,
        _path: &'static str,
        _lane: Lane,
        _body: Bytes,
        _timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, Status>> {
        future::ready(Err(Status::unavailable(format!("there is no {to}")))).boxed()
    }

    fn stream(
        &self,
        to: &str,
        _path: &'static str,
        _lane: Lane,
        _input: BoxStream<'static, Bytes>,
    ) -> BoxFuture<'static, Result<ReplyStream, Status>> {
        future::ready(Err(Status::unavailable(format!("there is no {to}")))).boxed()
    }
}

/// Runs something on a runtime of this thread, in virtual time, the same way each time.
pub(crate) fn simulate<T>(work: impl Future<Output = T>) -> T {
    rt::enter_simulation(1);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .rng_seed(tokio::runtime::RngSeed::from_bytes(b"budget"))
        .build()
        .expect("a runtime of one thread");
    let value = runtime.block_on(work);
    runtime.shutdown_background();
    value
}

impl Server {
    /// Starts one on an empty disk, with one worker, so that passes follow each other as in the log.
    pub(crate) async fn start() -> Self {
        let disk = FaultDisk::new(1);
        let shared: Arc<dyn Disk> = Arc::new(disk.clone());
        let of_engine = Arc::clone(&shared);
        let parts = Parts {
            disk: shared,
            transport: Arc::new(Alone),
            open_engine: Arc::new(move |path| shadow::open_twin(Arc::clone(&of_engine), path)),
            wal: wal::Options::default(),
            snapshot_piece_bytes: raft::network::SNAPSHOT_PIECE_BYTES,
            publish_entries_max: raft::state_machine::PUBLISH_ENTRIES_MAX,
            providers: Arc::default(),
            passes: rt::Threads::HERE,
        };
        let core = Box::pin(Core::start(settings(), parts)).await.expect("the server starts");
        core.join_cluster().await.expect("it forms a cluster of its own");
        let server = Self { core, disk };
        server.wait("it leads", |core| core.leading().is_some()).await;
        server.until_quiet().await;
        server
    }

    async fn wait(&self, what: &str, mut is_so: impl FnMut(&Core) -> bool) {
        for _ in 0..LOOKS_MAX {
            if is_so(&self.core) {
                return;
            }
            rt::sleep(LOOK).await;
        }
        panic!("waited in vain: {what}");
    }

    /// Waits until nothing is left to do.
    pub(crate) async fn until_quiet(&self) {
        let mut last = (self.core.applied(), rt::Instant::now());
        self.wait("the server comes to rest", |core| {
            let is_idle = core.leading().is_some_and(|services| services.is_idle());
            if core.applied() != last.0 || !is_idle {
                last = (core.applied(), rt::Instant::now());
            }
            last.1.elapsed() >= QUIET
        })
        .await;
    }

    /// A command of a client, which must not be refused; answers with the index of its entry.
    pub(crate) async fn write(&self, command: impl Into<Command>) -> Index {
        self.write_by(&CLIENT, command.into()).await
    }

    /// A command of an agent.
    pub(crate) async fn write_as_agent(&self, command: impl Into<Command>) {
        self.write_by(&AGENT, command.into()).await;
    }

    async fn write_by(&self, caller: &Caller, command: Command) -> Index {
        let written = self.core.write(caller, command, None, TIMEOUT).await.expect("it is taken");
        let reply = written.reply;
        assert!(!matches!(reply, Reply::Rejected(_)), "a command was refused: {reply:?}");
        written.index
    }

    /// Statuses of a node's allocations, as its agent hands them in.
    pub(crate) async fn report(&self, report: NodeReport) {
        self.core.report(&AGENT, report).await.expect("the report is taken");
    }

    /// A heartbeat of a node.
    pub(crate) async fn heartbeat(&self, node: NodeId, incarnation: u64) {
        let node_id = node.0.to_vec().into();
        let request = pb::HeartbeatRequest { node_id, incarnation, shortage: String::new() };
        self.core.heartbeat(&AGENT, request).await.expect("the node is known");
    }

    /// The state as it is published.
    pub(crate) fn state(&self) -> Arc<State> {
        self.core.cell.load()
    }

    /// A fresh id.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.core.new_id()
    }

    /// Scheduling passes so far.
    pub(crate) fn passes(&self) -> u64 {
        self.core.scheduler_invocations()
    }

    /// The whole log as it lies on the disk, and the digest of the state that it leads to.
    pub(crate) fn log(&self) -> (Vec<Logged>, Digest) {
        let disk = Arc::new(self.disk.copy(1));
        let path = Path::new(DATA).join("log");
        let opened = wal::Wal::open(disk, &path, wal::Options::default());
        let (log, _, _) = opened.expect("the log opens");
        let applied = self.core.applied();
        let entries = log.read(0..applied + 1, usize::MAX).expect("the log can be read");
        let logged = entries.into_iter().map(|entry| Logged {
            index: entry.id.index,
            term: entry.id.term,
            frame: (entry.payload.first() == Some(&COMMAND)).then(|| entry.payload.slice(1..)),
        });
        (logged.collect(), self.state().digest())
    }
}

/// How the machines of its leadership are set.
pub(crate) fn services() -> ServicesConfig {
    let heartbeat = HeartbeatConfig { ttl_ms_min: HEARTBEAT_TTL_MS, ..HeartbeatConfig::default() };
    ServicesConfig { heartbeat, ..ServicesConfig::default() }
}

fn settings() -> Settings {
    Settings {
        name: "s1".to_owned(),
        region: "global".to_owned(),
        datacenter: "dc1".to_owned(),
        data_directory: DATA.into(),
        rpc_address: ADDRESS.to_owned(),
        http_address: "10.0.0.1:4646".to_owned(),
        bootstrap_expect: vec![ADDRESS.to_owned()],
        join: Vec::new(),
        rejoin_after_rollback: true,
        timing: RaftTiming { heartbeat_ms: 250, election_ms_min: 1_000, election_ms_max: 1_500 },
        workers: 1,
        kinds: JobKind::ALL.to_vec(),
        leader_share: 1_000,
        services: services(),
        snapshot_log_bytes: 1 << 30,
        log_entries_kept: 1_000_000,
        free_bytes_min: 0,
        boot: None,
    }
}
