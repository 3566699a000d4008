//! `quorate bench …`: only the flags; the measuring is done elsewhere (see `process.rs`).

use clap::{Args, Subcommand};

/// Measure a running cluster
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Compare-and-set registrations of a small job
    #[command(
        after_help = "Example:\n  quorate bench writes --seconds 60 --in-flight 512 --keys 10000"
    )]
    Writes(WritesArgs),
    /// Linearizable reads of a small job
    #[command(after_help = "Example:\n  quorate bench reads --seconds 30 --in-flight 64")]
    Reads(ReadsArgs),
    /// Scheduling of many allocations on simulated nodes
    #[command(
        after_help = "Example:\n  quorate bench schedule --nodes 5000 --jobs 1000 --count 1000"
    )]
    Schedule(ScheduleArgs),
}

/// Flags of `bench writes`.
#[derive(Debug, Clone, Args)]
pub struct WritesArgs {
    /// gRPC addresses of the servers
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:4647")]
    pub servers: Vec<String>,
    /// How long to measure
    #[arg(long, default_value_t = 60)]
    pub seconds: u64,
    /// Requests under way at once
    #[arg(long, default_value_t = 512)]
    pub in_flight: usize,
    /// Different jobs written; 0: every write a new one
    #[arg(long, default_value_t = 10_000)]
    pub keys: u64,
    /// One call per write instead of the batch stream
    #[arg(long)]
    pub unary: bool,
}

/// Flags of `bench reads`.
#[derive(Debug, Clone, Args)]
pub struct ReadsArgs {
    /// gRPC addresses of the servers
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:4647")]
    pub servers: Vec<String>,
    /// How long to measure
    #[arg(long, default_value_t = 30)]
    pub seconds: u64,
    /// Requests under way at once
    #[arg(long, default_value_t = 64)]
    pub in_flight: usize,
    /// Different jobs read
    #[arg(long, default_value_t = 10_000)]
    pub keys: u64,
}

/// Flags of `bench schedule`.
#[derive(Debug, Clone, Args)]
pub struct ScheduleArgs {
    /// gRPC addresses of the servers
    #[arg(long, value_delimiter = ',', default_value = "127.0.0.1:4647")]
    pub servers: Vec<String>,
    /// Simulated nodes
    #[arg(long, default_value_t = 5_000)]
    pub nodes: u32,
    /// Jobs registered
    #[arg(long, default_value_t = 1_000)]
    pub jobs: u32,
    /// Allocations per job
    #[arg(long, default_value_t = 1_000)]
    pub count: u32,
}
