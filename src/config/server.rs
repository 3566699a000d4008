//! The configuration of a server.
//!
//! Owns its keys, defaults, presets and rules. Must never accept timings with which elections
//! cannot work, or two ways to form a cluster.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;

use elastic::FleetConfig;
use fsm::{JobKind, limits::WORKERS_MAX};
use ground::{address::Address, telemetry::LogConfig};
use leader::{
    GcConfig, PlanQueueLimits, ServicesConfig, broker::BrokerConfig, heartbeat::HeartbeatConfig,
};
use server::{RaftTiming, Settings};

use super::{
    ConfigError, Document, Kind, Origin, ProviderConfig, Schema, Sources, addresses, data_dir,
    listen_address, log_config, name, provider,
};

/// Most servers a cluster may be formed from.
const SERVERS_MAX: usize = 9;
const MINUTE_MS: u64 = 60_000;
const HOUR_MS: u64 = 60 * MINUTE_MS;
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
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// What is logged and how.
    pub log: LogConfig,
    /// Where traces go.
    pub telemetry: TelemetryConfig,
    /// Where the HTTP API listens; port 0 lets the system choose.
    pub http_address: SocketAddr,
    /// Where gRPC listens.
    pub rpc_address: SocketAddr,
    /// Advertised address → address really dialled.
    pub dial: BTreeMap<Address, Address>,
    /// Largest body of one request, bytes.
    pub request_bytes_max: usize,
    /// Where machines of pools come from. Invariant: names are unique.
    pub providers: Vec<ProviderConfig>,
    /// What the core is told. The HTTP address and the boot of the host are those of a start: who
    /// starts the server fills them in.
    pub settings: Settings,
}

/// `[telemetry]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TelemetryConfig {
    /// The collector that traces are sent to by OTLP over gRPC; none: there are no traces.
    pub otlp_endpoint: Option<Address>,
}

/// A named set of timings.
#[derive(Debug, Clone, Copy)]
enum RaftPreset {
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
        let rpc_address = listen_address(document, "rpc.address", loopback(RPC_PORT_DEFAULT))?;
        let advertised = advertised(document, rpc_address)?;
        let (bootstrap_expect, join) = members(document, &advertised)?;
        let http_address = listen_address(document, "http.address", loopback(HTTP_PORT_DEFAULT))?;
        if http_address == rpc_address && http_address.port() != 0 {
            return Err(document.invalid_value(
                "http.address",
                http_address,
                "another address than rpc.address",
            ));
        }
        let texts = |addresses: &[Address]| addresses.iter().map(ToString::to_string).collect();
        let providers = ProviderConfig::all(document)?;
        let settings = Settings {
            name: name(document, "name", None)?,
            region: name(document, "region", Some("global"))?,
            datacenter: name(document, "datacenter", Some("dc1"))?,
            data_directory: data_dir(document)?,
            rpc_address: advertised.to_string(),
            http_address: http_address.to_string(),
            bootstrap_expect: texts(&bootstrap_expect),
            join: texts(&join),
            rejoin_after_rollback: document.flag("cluster.rejoin_after_rollback").unwrap_or(true),
            timing: timing(document)?,
            workers: workers(document)?,
            kinds: kinds(document)?,
            leader_share: document.thousandths("scheduler.leader_share", LEADER_SHARE_DEFAULT),
            services: services(document, &providers)?,
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
            free_bytes_min: document.number_within(
                "limits.free_bytes_min",
                512 << 20,
                0..=1 << 60,
            )?,
            boot: None,
        };
        Ok(Self {
            log: log_config(document)?,
            telemetry: TelemetryConfig::from_document(document)?,
            http_address,
            rpc_address,
            dial: dial(document)?,
            request_bytes_max: size_within(
                document,
                "limits.request_bytes_max",
                4 << 20,
                1024..=256 << 20,
            )?,
            providers,
            settings,
        })
    }

    /// Keys and sections whose values differ from another configuration, but for what a running
    /// server takes over: `log_level` and `[[provider]]`.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let (own, theirs) = (&self.settings, &other.settings);
        let (services, others) = (&own.services, &theirs.services);
        let rpc = |config: &Self| (config.rpc_address, config.settings.rpc_address.clone());
        let cluster = |config: &Self| {
            let of = &config.settings;
            let dial = config.dial.clone();
            (of.bootstrap_expect.clone(), of.join.clone(), dial, of.rejoin_after_rollback)
        };
        let raft = |of: &Settings| (of.timing, of.snapshot_log_bytes, of.log_entries_kept);
        let scheduler = |of: &Settings| (of.workers, of.kinds.clone(), of.leader_share);
        let limits = |config: &Self| {
            let of = &config.settings;
            let (broker, plans) = (of.services.broker, of.services.plans);
            (config.request_bytes_max, broker, plans, of.free_bytes_min)
        };
        // What is derived from the heartbeat is no difference of its own.
        let elastic = |of: FleetConfig| FleetConfig { warm_up_ms: 0, ..of };
        let differ = [
            ("name", own.name != theirs.name),
            ("region", own.region != theirs.region),
            ("datacenter", own.datacenter != theirs.datacenter),
            ("data_dir", own.data_directory != theirs.data_directory),
            ("log_format", self.log.format != other.log.format),
            ("telemetry", self.telemetry != other.telemetry),
            ("http", self.http_address != other.http_address),
            ("rpc", rpc(self) != rpc(other)),
            ("cluster", cluster(self) != cluster(other)),
            ("raft", raft(own) != raft(theirs)),
            ("scheduler", scheduler(own) != scheduler(theirs)),
            ("heartbeat", services.heartbeat != others.heartbeat),
            ("gc", services.gc != others.gc),
            ("limits", limits(self) != limits(other)),
            ("elastic", elastic(services.fleet) != elastic(others.fleet)),
        ];
        differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
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

/// What the other servers and the agents dial; by default the address that is listened on.
fn advertised(document: &Document, address: SocketAddr) -> Result<Address, ConfigError> {
    match document.text("rpc.advertise") {
        Some(text) => {
            text.parse().map_err(|allowed: String| document.invalid("rpc.advertise", &allowed))
        }
        None => address.to_string().parse().map_err(|_| {
            document.invalid_value(
                "rpc.address",
                address,
                "an address that others can dial, or set rpc.advertise to one",
            )
        }),
    }
}

/// The advertised addresses of all the servers that form the cluster, ours among them, and those of
/// a running cluster that this server joins: exactly one of the two is not empty.
fn members(
    document: &Document,
    advertised: &Address,
) -> Result<(Vec<Address>, Vec<Address>), ConfigError> {
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
        (false, true) => check_members(document, &bootstrap_expect, advertised)?,
        // One list may serve all servers.
        (true, false) if join.iter().all(|address| address == advertised) => {
            return Err(document.invalid(
                "cluster.join",
                &format!("the address of another server, beside our own {advertised}"),
            ));
        }
        (true, false) => {}
    }
    Ok((bootstrap_expect, join))
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

/// A number that counts things in memory.
fn size_within(
    document: &Document,
    key: &'static str,
    default: u64,
    allowed: RangeInclusive<u64>,
) -> Result<usize, ConfigError> {
    let number = document.number_within(key, default, allowed)?;
    Ok(usize::try_from(number).unwrap_or(usize::MAX))
}

/// The timing of Raft: twice the heartbeat is at most the shortest election timeout, and that at
/// most the longest.
fn timing(document: &Document) -> Result<RaftTiming, ConfigError> {
    let preset = document.choice(
        "raft.preset",
        &[
            ("default", RaftPreset::Default),
            ("lan", RaftPreset::Lan),
            ("wan", RaftPreset::Wan),
            ("test", RaftPreset::Test),
        ],
    )?;
    let (heartbeat, election_min, election_max) = preset.timings_ms();
    let pause = |key, default| document.number_within(key, default, 1..=10 * MINUTE_MS);
    let heartbeat_ms = document.number_within("raft.heartbeat_ms", heartbeat, 1..=MINUTE_MS)?;
    let election_ms_min = pause("raft.election_min_ms", election_min)?;
    let election_ms_max = pause("raft.election_max_ms", election_max)?;
    let least_ms = heartbeat_ms * 2;
    if election_ms_min < least_ms {
        return Err(document.invalid_value(
            "raft.election_min_ms",
            election_ms_min,
            &format!("at least twice raft.heartbeat_ms ({heartbeat_ms}), so {least_ms} or more"),
        ));
    }
    if election_ms_max < election_ms_min {
        return Err(document.invalid_value(
            "raft.election_max_ms",
            election_ms_max,
            &format!("at least raft.election_min_ms ({election_ms_min})"),
        ));
    }
    Ok(RaftTiming { heartbeat_ms, election_ms_min, election_ms_max })
}

/// Scheduling workers at the start; by default one for each core.
fn workers(document: &Document) -> Result<usize, ConfigError> {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let most = u64::try_from(WORKERS_MAX).unwrap_or(u64::MAX);
    let cores = u64::try_from(cores).unwrap_or(1).min(most);
    size_within(document, "scheduler.workers", cores, 0..=most)
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

/// What the services of a leader are told.
fn services(
    document: &Document,
    providers: &[ProviderConfig],
) -> Result<ServicesConfig, ConfigError> {
    let life = |key| document.number_within(key, 10_000, 100..=HOUR_MS);
    let heartbeat = HeartbeatConfig {
        ttl_ms_min: life("heartbeat.ttl_min_ms")?,
        grace_ms: life("heartbeat.grace_ms")?,
        ..HeartbeatConfig::default()
    };
    let pause = |key, default| document.number_within(key, default, 100..=HOUR_MS);
    Ok(ServicesConfig {
        broker: BrokerConfig {
            evaluations_max: size_within(
                document,
                "limits.pending_evaluations_max",
                100_000,
                1..=100_000_000,
            )?,
            ..BrokerConfig::default()
        },
        heartbeat,
        gc: gc(document)?,
        fleet: FleetConfig {
            list_interval_ms: pause("elastic.list_interval_ms", 60_000)?,
            probe_interval_ms: pause("elastic.probe_interval_ms", 10_000)?,
            destroy_retry_ms: pause("elastic.destroy_retry_ms", 10_000)?,
            // What beats is heard of within the longest time to live and the grace.
            warm_up_ms: 2 * heartbeat.ttl_ms_min + heartbeat.grace_ms,
        },
        plans: PlanQueueLimits {
            plans_max: size_within(document, "limits.plans_max", 4_096, 1..=1_000_000)?,
            ..PlanQueueLimits::default()
        },
        providers: providers
            .iter()
            .map(|one| (one.name.as_str().into(), one.creates_max))
            .collect(),
    })
}

/// When what is over is forgotten.
fn gc(document: &Document) -> Result<GcConfig, ConfigError> {
    const YEAR_MS: u64 = 365 * 24 * HOUR_MS;
    let interval_ms =
        document.number_within("gc.interval_ms", 5 * MINUTE_MS, 100..=24 * HOUR_MS)?;
    let threshold = |key, default| document.number_within(key, default, 0..=YEAR_MS);
    Ok(GcConfig {
        interval_ms,
        evaluation_ms: threshold("gc.evaluation_ms", HOUR_MS)?,
        batch_evaluation_ms: threshold("gc.batch_evaluation_ms", 24 * HOUR_MS)?,
        job_ms: threshold("gc.job_ms", 4 * HOUR_MS)?,
        deployment_ms: threshold("gc.deployment_ms", HOUR_MS)?,
        children_max: document.number_within("gc.children_max", 100_000, 0..=u64::MAX)?,
    })
}
