//! The configuration of a server.
//!
//! Owns its keys, defaults, presets and rules. Must never accept timings with which elections
//! cannot work, or two ways to form a cluster.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use fsm::{JobKind, limits::WORKERS_MAX};
use ground::{address::Address, telemetry::LogConfig};

use super::{
    ConfigError, Document, Kind, Origin, ProviderConfig, Schema, Sources, addresses, data_dir,
    listen_address, log_config, name, provider,
};

/// Most servers a cluster may be formed from.
const SERVERS_MAX: usize = 9;
const HTTP_PORT_DEFAULT: u16 = 4646;
const RPC_PORT_DEFAULT: u16 = 4647;
/// All of them (docs/performance.md).
const LEADER_SHARE_DEFAULT: u32 = 1_000;

/// All keys of a server's file.
pub(super) const SCHEMA: Schema = &[
    ("name", Kind::Text),
    ("region", Kind::Text),
    ("datacenter", Kind::Text),
    ("data_dir", Kind::Text),
    ("log_level", Kind::Text),
    ("log_format", Kind::Text),
    ("telemetry.otlp_endpoint", Kind::Text),
    ("http.address", Kind::Text),
    ("rpc.address", Kind::Text),
    ("rpc.advertise", Kind::Text),
    ("cluster.bootstrap_expect", Kind::List),
    ("cluster.join", Kind::List),
    ("cluster.dial", Kind::Map),
    ("cluster.rejoin_after_rollback", Kind::Flag),
    ("raft.preset", Kind::Text),
    ("raft.heartbeat_ms", Kind::Number),
    ("raft.election_min_ms", Kind::Number),
    ("raft.election_max_ms", Kind::Number),
    ("raft.snapshot_log_bytes", Kind::Number),
    ("raft.log_entries_kept", Kind::Number),
    ("scheduler.workers", Kind::Number),
    ("scheduler.enabled", Kind::List),
    ("scheduler.leader_share", Kind::Fraction),
    ("heartbeat.ttl_min_ms", Kind::Number),
    ("heartbeat.grace_ms", Kind::Number),
    ("gc.interval_ms", Kind::Number),
    ("gc.evaluation_ms", Kind::Number),
    ("gc.batch_evaluation_ms", Kind::Number),
    ("gc.job_ms", Kind::Number),
    ("gc.deployment_ms", Kind::Number),
    ("gc.children_max", Kind::Number),
    ("limits.request_bytes_max", Kind::Number),
    ("limits.pending_evaluations_max", Kind::Number),
    ("limits.plans_max", Kind::Number),
    ("limits.free_bytes_min", Kind::Number),
    ("elastic.list_interval_ms", Kind::Number),
    ("elastic.probe_interval_ms", Kind::Number),
    ("elastic.destroy_retry_ms", Kind::Number),
    ("provider", Kind::Tables(provider::SCHEMA)),
];

/// A validated server configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerConfig {
    /// The server's name, unique in the cluster.
    pub name: String,
    /// The region, default `global`.
    pub region: String,
    /// The datacenter, default `dc1`.
    pub datacenter: String,
    /// The folder of this server's state.
    pub data_dir: PathBuf,
    /// What is logged and how.
    pub log: LogConfig,
    /// Where traces go.
    pub telemetry: TelemetryConfig,
    /// Where the HTTP API listens; port 0 lets the system choose.
    pub http_address: SocketAddr,
    /// Where gRPC listens and how others reach it.
    pub rpc: RpcConfig,
    /// How the cluster is formed or joined.
    pub cluster: ClusterConfig,
    /// Timings of consensus.
    pub raft: RaftConfig,
    /// Scheduling workers.
    pub scheduler: SchedulerConfig,
    /// Heartbeats of nodes.
    pub heartbeat: HeartbeatConfig,
    /// What is forgotten, and when.
    pub gc: GcConfig,
    /// Bounds.
    pub limits: LimitsConfig,
    /// Times of pools.
    pub elastic: ElasticConfig,
    /// Where machines of pools come from. Invariant: names are unique.
    pub providers: Vec<ProviderConfig>,
}

/// `[telemetry]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// The collector that traces are sent to by OTLP over gRPC; none: there are no traces.
    pub otlp_endpoint: Option<Address>,
}

/// `[rpc]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RpcConfig {
    /// Where gRPC listens.
    pub address: SocketAddr,
    /// What the other servers and the agents dial; default: `address`.
    pub advertise: Address,
}

/// `[cluster]`. Invariant: exactly one of `bootstrap_expect` and `join` is not empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterConfig {
    /// Advertised addresses of all the servers that form the cluster; holds our own.
    pub bootstrap_expect: Vec<Address>,
    /// Addresses of a running cluster that this server joins.
    pub join: Vec<Address>,
    /// Advertised address → address really dialled.
    pub dial: BTreeMap<Address, Address>,
    /// Whether a server whose data directory is older than what it acknowledged joins anew by
    /// itself.
    pub rejoin_after_rollback: bool,
}

impl ClusterConfig {
    /// The address to dial for an advertised one.
    pub fn dialled<'a>(&'a self, advertised: &'a Address) -> &'a Address {
        self.dial.get(advertised).unwrap_or(advertised)
    }
}

/// A named set of timings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RaftPreset {
    /// One rack to one region: heartbeat 100 ms, election 400–600 ms.
    Default,
    /// One switch: 50 ms, 150–300 ms.
    Lan,
    /// Across regions: 500 ms, 2–3 s.
    Wan,
    /// Many servers on a slow test machine: 250 ms, 1–1.5 s.
    Test,
}

impl RaftPreset {
    /// (heartbeat, election min, election max), in milliseconds.
    fn timings_ms(self) -> (u64, u64, u64) {
        match self {
            Self::Default => (100, 400, 600),
            Self::Lan => (50, 150, 300),
            Self::Wan => (500, 2_000, 3_000),
            Self::Test => (250, 1_000, 1_500),
        }
    }
}

/// `[raft]`. Invariant: `heartbeat_ms × 2 ≤ election_min_ms ≤ election_max_ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RaftConfig {
    /// The preset the timings start from.
    pub preset: RaftPreset,
    /// Between two heartbeats of the leader.
    pub heartbeat_ms: u64,
    /// Shortest silence after which a follower stands for election.
    pub election_min_ms: u64,
    /// Longest silence after which a follower stands for election.
    pub election_max_ms: u64,
    /// Log bytes since the last snapshot that trigger the next one.
    pub snapshot_log_bytes: u64,
    /// Log entries that stay behind a snapshot, so that a server that was away for a moment needs
    /// no snapshot.
    pub log_entries_kept: u64,
}

/// `[scheduler]`: what this server begins with; it can be set otherwise while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerConfig {
    /// Scheduling workers of this server; 0: this server does not schedule.
    pub workers: usize,
    /// Kinds of jobs that they schedule, in the order of [`JobKind::ALL`].
    pub kinds: Vec<JobKind>,
    /// The share of the workers that works while this server leads others, in thousandths.
    pub leader_share: u32,
}

/// `[heartbeat]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatConfig {
    /// Shortest time to live given to a node.
    pub ttl_min_ms: u64,
    /// Added to the time to live before a node counts as lost.
    pub grace_ms: u64,
}

/// `[gc]`: garbage collection. Thresholds count from the end of a thing, or from a job's
/// submission.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GcConfig {
    /// Between two walks through the state.
    pub interval_ms: u64,
    /// Final evaluations and ended allocations.
    pub evaluation_ms: u64,
    /// The same of batch jobs that are alive.
    pub batch_evaluation_ms: u64,
    /// Dead jobs.
    pub job_ms: u64,
    /// Deployments that are over.
    pub deployment_ms: u64,
    /// Dead children of one job; the oldest beyond go however young they are.
    pub children_max: u64,
}

/// `[elastic]`: instance pools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ElasticConfig {
    /// Between two lists of what a provider has.
    pub list_interval_ms: u64,
    /// Between two looks at an instance that boots.
    pub probe_interval_ms: u64,
    /// Between two tries to destroy an instance.
    pub destroy_retry_ms: u64,
}

/// `[limits]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitsConfig {
    /// Largest body of one request.
    pub request_bytes_max: u64,
    /// Pending evaluations above which new work is turned away with 429.
    pub pending_evaluations_max: u64,
    /// Plans that wait at the leader, beyond which workers wait with theirs.
    pub plans_max: u64,
    /// Free bytes on the disk below which writes are turned away.
    pub free_bytes_min: u64,
}

impl ServerConfig {
    /// Reads and validates file, environment and flags.
    pub fn load(sources: &Sources) -> Result<Self, ConfigError> {
        Self::from_document(&Document::load(SCHEMA, sources)?)
    }

    /// Validates the text of one file; `path` is for messages.
    pub fn parse(path: &Path, source: &str) -> Result<Self, ConfigError> {
        let mut document = Document::load(SCHEMA, &Sources::default())?;
        document.add_file(path, source)?;
        Self::from_document(&document)
    }

    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let rpc = RpcConfig::from_document(document)?;
        let cluster = ClusterConfig::from_document(document, &rpc.advertise)?;
        let http_address = listen_address(document, "http.address", loopback(HTTP_PORT_DEFAULT))?;
        if http_address == rpc.address && http_address.port() != 0 {
            return Err(document.invalid_value(
                "http.address",
                http_address,
                "another address than rpc.address",
            ));
        }
        Ok(Self {
            name: name(document, "name", None)?,
            region: name(document, "region", Some("global"))?,
            datacenter: name(document, "datacenter", Some("dc1"))?,
            data_dir: data_dir(document)?,
            log: log_config(document)?,
            telemetry: TelemetryConfig::from_document(document)?,
            http_address,
            rpc,
            cluster,
            raft: RaftConfig::from_document(document)?,
            scheduler: SchedulerConfig::from_document(document)?,
            heartbeat: HeartbeatConfig::from_document(document)?,
            gc: GcConfig::from_document(document)?,
            limits: LimitsConfig::from_document(document)?,
            elastic: ElasticConfig::from_document(document)?,
            providers: ProviderConfig::all(document)?,
        })
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

impl TelemetryConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        const KEY: &str = "telemetry.otlp_endpoint";
        const ALLOWED: &str = "http://host:port of a collector that takes OTLP over gRPC, for example \
                               http://127.0.0.1:4317 (TLS is not built in)";
        let parse = |text: String| {
            let address = text.strip_prefix("http://").and_then(|rest| rest.parse().ok());
            address.ok_or_else(|| document.invalid(KEY, ALLOWED))
        };
        Ok(Self {
            otlp_endpoint: document.text(KEY).map(|text| parse(text.to_owned())).transpose()?,
        })
    }
}

impl RpcConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let address = listen_address(document, "rpc.address", loopback(RPC_PORT_DEFAULT))?;
        let advertise = match document.text("rpc.advertise") {
            Some(text) => text
                .parse()
                .map_err(|allowed: String| document.invalid("rpc.advertise", &allowed))?,
            None => address.to_string().parse().map_err(|_| {
                document.invalid_value(
                    "rpc.address",
                    address,
                    "an address that others can dial, or set rpc.advertise to one",
                )
            })?,
        };
        Ok(Self { address, advertise })
    }
}

impl ServerConfig {
    /// Keys and sections whose values differ from another configuration, but for what a running
    /// server takes over: `log_level` and `[[provider]]`.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let differ = [
            ("name", self.name != other.name),
            ("region", self.region != other.region),
            ("datacenter", self.datacenter != other.datacenter),
            ("data_dir", self.data_dir != other.data_dir),
            ("log_format", self.log.format != other.log.format),
            ("telemetry", self.telemetry != other.telemetry),
            ("http", self.http_address != other.http_address),
            ("rpc", self.rpc != other.rpc),
            ("cluster", self.cluster != other.cluster),
            ("raft", self.raft != other.raft),
            ("scheduler", self.scheduler != other.scheduler),
            ("heartbeat", self.heartbeat != other.heartbeat),
            ("gc", self.gc != other.gc),
            ("limits", self.limits != other.limits),
            ("elastic", self.elastic != other.elastic),
        ];
        differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
    }
}

impl ClusterConfig {
    fn from_document(document: &Document, advertise: &Address) -> Result<Self, ConfigError> {
        const EXPECT: &str = "cluster.bootstrap_expect";
        let bootstrap_expect = addresses(document, EXPECT)?;
        let join = addresses(document, "cluster.join")?;
        match (bootstrap_expect.is_empty(), join.is_empty()) {
            (true, true) => {
                return Err(document.missing(
                    EXPECT,
                    "the advertised addresses of all servers, or cluster.join to those of a running cluster",
                ));
            }
            (false, false) => {
                return Err(document.invalid(
                    "cluster.join",
                    "either cluster.bootstrap_expect or cluster.join, not both",
                ));
            }
            (false, true) => check_members(document, &bootstrap_expect, advertise)?,
            // One list may serve all servers.
            (true, false) if join.iter().all(|address| address == advertise) => {
                return Err(document.invalid(
                    "cluster.join",
                    &format!("the address of another server, beside our own {advertise}"),
                ));
            }
            (true, false) => {}
        }
        let rejoin_after_rollback = document.flag("cluster.rejoin_after_rollback").unwrap_or(true);
        Ok(Self { bootstrap_expect, join, dial: dial(document)?, rejoin_after_rollback })
    }
}

fn check_members(
    document: &Document,
    members: &[Address],
    advertise: &Address,
) -> Result<(), ConfigError> {
    const EXPECT: &str = "cluster.bootstrap_expect";
    if !members.contains(advertise) {
        return Err(document.invalid(
            EXPECT,
            &format!("a list that holds this server's own advertised address {advertise}"),
        ));
    }
    if members.len().is_multiple_of(2) || members.len() > SERVERS_MAX {
        return Err(document.invalid(
            EXPECT,
            &format!("an odd number of servers, 1 to {SERVERS_MAX} (here {})", members.len()),
        ));
    }
    Ok(())
}

fn dial(document: &Document) -> Result<BTreeMap<Address, Address>, ConfigError> {
    const KEY: &str = "cluster.dial";
    document
        .map(KEY)
        .into_iter()
        .map(|(advertised, dialled)| {
            let parse = |text: &str| {
                text.parse().map_err(|allowed: String| document.invalid_value(KEY, text, &allowed))
            };
            Ok((parse(&advertised)?, parse(&dialled)?))
        })
        .collect()
}

impl RaftConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        const MINUTE_MS: u64 = 60_000;
        let preset = document.choice(
            "raft.preset",
            &[
                ("default", RaftPreset::Default),
                ("lan", RaftPreset::Lan),
                ("wan", RaftPreset::Wan),
                ("test", RaftPreset::Test),
            ],
        )?;
        let (heartbeat_ms, election_min_ms, election_max_ms) = preset.timings_ms();
        let config = Self {
            preset,
            heartbeat_ms: document.number_within(
                "raft.heartbeat_ms",
                heartbeat_ms,
                1..=MINUTE_MS,
            )?,
            election_min_ms: document.number_within(
                "raft.election_min_ms",
                election_min_ms,
                1..=10 * MINUTE_MS,
            )?,
            election_max_ms: document.number_within(
                "raft.election_max_ms",
                election_max_ms,
                1..=10 * MINUTE_MS,
            )?,
            snapshot_log_bytes: document.number_within(
                "raft.snapshot_log_bytes",
                256 << 20,
                4096..=1 << 50,
            )?,
            log_entries_kept: document.number_within(
                "raft.log_entries_kept",
                10_000,
                0..=10_000_000,
            )?,
        };
        config.check(document)?;
        Ok(config)
    }

    fn check(&self, document: &Document) -> Result<(), ConfigError> {
        let least_ms = self.heartbeat_ms * 2;
        if self.election_min_ms < least_ms {
            return Err(document.invalid_value(
                "raft.election_min_ms",
                self.election_min_ms,
                &format!(
                    "at least twice raft.heartbeat_ms ({}), so {least_ms} or more",
                    self.heartbeat_ms
                ),
            ));
        }
        if self.election_max_ms < self.election_min_ms {
            return Err(document.invalid_value(
                "raft.election_max_ms",
                self.election_max_ms,
                &format!("at least raft.election_min_ms ({})", self.election_min_ms),
            ));
        }
        Ok(())
    }
}

impl SchedulerConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let most = u64::try_from(WORKERS_MAX).unwrap_or(u64::MAX);
        let cores = u64::try_from(cores).unwrap_or(1).min(most);
        let workers = document.number_within("scheduler.workers", cores, 0..=most)?;
        let leader_share = document.thousandths("scheduler.leader_share", LEADER_SHARE_DEFAULT);
        Ok(Self {
            workers: usize::try_from(workers).expect("at most 256"),
            kinds: kinds(document)?,
            leader_share,
        })
    }
}

/// The kinds of jobs in `scheduler.enabled`; all if it is not set. Nomad's `_core` names work that
/// is not done by workers here.
fn kinds(document: &Document) -> Result<Vec<JobKind>, ConfigError> {
    const KEY: &str = "scheduler.enabled";
    let words = document.list(KEY);
    if words.is_empty() && document.origin(KEY) == Origin::Default {
        return Ok(JobKind::ALL.to_vec());
    }
    if words.is_empty() {
        return Err(document.invalid(KEY, "a list with a kind; scheduler.workers = 0 pauses"));
    }
    JobKind::parse_all(&words)
        .map_err(|unknown| document.invalid_value(KEY, unknown, "service, batch, system, sysbatch"))
}

impl HeartbeatConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        const HOUR_MS: u64 = 3_600_000;
        Ok(Self {
            ttl_min_ms: document.number_within("heartbeat.ttl_min_ms", 10_000, 100..=HOUR_MS)?,
            grace_ms: document.number_within("heartbeat.grace_ms", 10_000, 100..=HOUR_MS)?,
        })
    }
}

impl GcConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        const MINUTE_MS: u64 = 60_000;
        const YEAR_MS: u64 = 365 * 24 * 60 * MINUTE_MS;
        let interval_ms =
            document.number_within("gc.interval_ms", 5 * MINUTE_MS, 100..=24 * 60 * MINUTE_MS)?;
        let threshold = |key, default| document.number_within(key, default, 0..=YEAR_MS);
        Ok(Self {
            interval_ms,
            evaluation_ms: threshold("gc.evaluation_ms", 60 * MINUTE_MS)?,
            batch_evaluation_ms: threshold("gc.batch_evaluation_ms", 24 * 60 * MINUTE_MS)?,
            job_ms: threshold("gc.job_ms", 4 * 60 * MINUTE_MS)?,
            deployment_ms: threshold("gc.deployment_ms", 60 * MINUTE_MS)?,
            children_max: document.number_within("gc.children_max", 100_000, 0..=u64::MAX)?,
        })
    }
}

impl ElasticConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        const HOUR_MS: u64 = 60 * 60_000;
        let pause = |key, default| document.number_within(key, default, 100..=HOUR_MS);
        Ok(Self {
            list_interval_ms: pause("elastic.list_interval_ms", 60_000)?,
            probe_interval_ms: pause("elastic.probe_interval_ms", 10_000)?,
            destroy_retry_ms: pause("elastic.destroy_retry_ms", 10_000)?,
        })
    }
}

impl LimitsConfig {
    fn from_document(document: &Document) -> Result<Self, ConfigError> {
        Ok(Self {
            request_bytes_max: document.number_within(
                "limits.request_bytes_max",
                4 << 20,
                1024..=256 << 20,
            )?,
            pending_evaluations_max: document.number_within(
                "limits.pending_evaluations_max",
                100_000,
                1..=100_000_000,
            )?,
            plans_max: document.number_within("limits.plans_max", 4_096, 1..=1_000_000)?,
            free_bytes_min: document.number_within(
                "limits.free_bytes_min",
                512 << 20,
                0..=1 << 60,
            )?,
        })
    }
}
