//! The flags of `quorate bench`: what is measured, and against which servers.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// Measure a running cluster
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Compare-and-set registrations of a small job
    #[command(
        after_help = "Examples:\n  quorate bench writes --seconds 60 --in-flight 512 --keys 10000\n  quorate bench writes --up --in-flight 1 --fsync-baseline .    (three temporary servers)"
    )]
    Writes(WritesArgs),
    /// Linearizable reads of a small job
    #[command(after_help = "Example:\n  quorate bench reads --seconds 30 --in-flight 64")]
    Reads(ReadsArgs),
    /// Scheduling of many allocations on simulated nodes
    #[command(
        after_help = "Examples:\n  quorate bench schedule --nodes 5000 --jobs 1000 --count 1000\n  quorate bench schedule --up --nodes 1000 --jobs 100 --count 100"
    )]
    Schedule(ScheduleArgs),
    /// Dispatches of a parameterized job, before and after many of its children are over
    #[command(
        after_help = "Example:\n  QUORATE__GC__CHILDREN_MAX=1000000 quorate bench dispatch --up --children 100000"
    )]
    Dispatch(DispatchArgs),
    /// Time from the death of a leader to the next write, on three temporary servers
    #[command(after_help = "Example:\n  quorate bench failover --kills 20")]
    Failover(FailoverArgs),
}

impl BenchCommand {
    /// Whether the report is printed as JSON.
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Self::Writes(arguments) => arguments.cluster.json,
            Self::Reads(arguments) => arguments.cluster.json,
            Self::Schedule(arguments) => arguments.cluster.json,
            Self::Dispatch(arguments) => arguments.cluster.json,
            Self::Failover(arguments) => arguments.json,
        }
    }
}

/// Which cluster is measured.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    /// gRPC addresses of the servers
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:4647")]
    pub servers: Vec<String>,
    /// Start three temporary servers on free ports and stop them afterwards
    #[arg(long, conflicts_with = "servers")]
    pub up: bool,
    /// Where the temporary servers keep their state [default: the system's temporary folder]
    #[arg(long, value_name = "DIR", requires = "up")]
    pub up_data: Option<PathBuf>,
    /// Leave the jobs of the benchmark registered
    #[arg(long)]
    pub keep: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Which servers are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Ask {
    Leader,
    /// Servers that do not lead.
    Followers,
    /// Every server in turn.
    All,
}

/// Flags of `bench writes`.
#[derive(Debug, Clone, Args)]
pub struct WritesArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// How long to measure
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// How long to write before measuring, seconds
    #[arg(long, default_value_t = 3)]
    pub warm_up: u64,
    /// Requests under way at once
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub in_flight: u32,
    /// Different jobs written; 0: every write a new one
    #[arg(long, default_value_t = 10_000)]
    pub keys: u32,
    /// One call per write instead of the batch stream
    #[arg(long)]
    pub unary: bool,
    /// Streams, or connections of unary calls
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub streams: u32,
    /// Servers that take the writes
    #[arg(long, value_enum, default_value = "leader")]
    pub ask: Ask,
    /// Also measure append + fdatasync in this folder, three loops at once, before and after
    #[arg(long, value_name = "DIR")]
    pub fsync_baseline: Option<PathBuf>,
}

/// Flags of `bench reads`.
#[derive(Debug, Clone, Args)]
pub struct ReadsArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// How long to measure
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// How long to read before measuring, seconds
    #[arg(long, default_value_t = 2)]
    pub warm_up: u64,
    /// Requests under way at once, each on its own kept connection
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4_000))]
    pub in_flight: u32,
    /// Different jobs read
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub keys: u32,
    /// Servers that are read from
    #[arg(long, value_enum, default_value = "all")]
    pub ask: Ask,
    /// Read what the asked server has, without asking the leader
    #[arg(long)]
    pub stale: bool,
    /// Ask the leader for read indexes over gRPC instead of reading jobs over HTTP
    #[arg(long, conflicts_with = "stale")]
    pub read_index: bool,
}

/// Flags of `bench schedule`.
#[derive(Debug, Clone, Args)]
pub struct ScheduleArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Simulated nodes to start; 0: use the nodes that are there
    #[arg(long, default_value_t = 5_000)]
    pub nodes: u32,
    /// Jobs registered
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub jobs: u32,
    /// Allocations per job
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub count: u32,
    /// MHz of each allocation
    #[arg(long, default_value_t = 10)]
    pub cpu: u32,
    /// MiB of each allocation
    #[arg(long, default_value_t = 10)]
    pub memory: u32,
    /// Dynamic ports of each allocation
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=8))]
    pub ports: u32,
    /// Spread over datacenters and prefer a node class
    #[arg(long)]
    pub spread: bool,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 900)]
    pub timeout: u64,
}

/// Flags of `bench dispatch`.
#[derive(Debug, Clone, Args)]
pub struct DispatchArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// Simulated nodes to start; 0: use the nodes that are there
    #[arg(long, default_value_t = 100)]
    pub nodes: u32,
    /// Children that run and end between the two measurements
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..))]
    pub children: u32,
    /// Dispatches of each measurement, one after the other
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(50..=10_000))]
    pub singles: u32,
    /// Give up after this many seconds
    #[arg(long, default_value_t = 1_800)]
    pub timeout: u64,
}

/// Flags of `bench failover`.
#[derive(Debug, Clone, Args)]
pub struct FailoverArgs {
    /// Leaders killed, one after the other
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub kills: u32,
    /// Seconds between the return of a server and the next kill
    #[arg(long, default_value_t = 2)]
    pub pause: u64,
    /// Where the temporary servers keep their state [default: the system's temporary folder]
    #[arg(long, value_name = "DIR")]
    pub up_data: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
