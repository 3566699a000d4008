//! The flags of `quorate bench`: what is measured, and against which servers.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Measure a running cluster
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    #[command(flatten)]
    Load(LoadCommand),
    /// Time from the death of a leader to the next write, on three temporary servers
    #[command(after_help = "Example:\n  quorate bench failover --kills 20")]
    Failover(FailoverArgs),
    /// Measure this program against another one: both in turns, several rounds
    #[command(after_help = COMPARE_HELP)]
    Compare(CompareArgs),
}

/// A load on servers that are given, or are started for it.
#[derive(Debug, Clone, Subcommand)]
pub enum LoadCommand {
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
}

const COMPARE_HELP: &str = "\
Examples:
  quorate bench compare --with ../old/quorate schedule --nodes 5000 --jobs 100 --count 1000
  quorate bench compare --with ../old/quorate --rounds 3 --limit 1.05 writes --seconds 10

Each round runs `bench KIND ARGS --up --json` of both programs, one after the other; every start has
three servers and a folder of its own, which is removed (TMPDIR says where). The ratios are this
program against the other: of processor time, latency and memory less is better, of rates more.
The processor time is user and system of the three servers, and suffers least from what else the
machine does; compare release builds on a machine that is otherwise idle.";

impl BenchCommand {
    /// Whether the report is printed as JSON.
    pub(crate) fn prints_json(&self) -> bool {
        match self {
            Self::Load(load) => load.cluster().json,
            Self::Failover(arguments) => arguments.json,
            Self::Compare(arguments) => {
                arguments.json || arguments.args.iter().any(|word| word == "--json")
            }
        }
    }
}

impl LoadCommand {
    /// Which cluster is measured.
    pub(super) fn cluster(&self) -> &ClusterArgs {
        match self {
            Self::Writes(arguments) => &arguments.cluster,
            Self::Reads(arguments) => &arguments.cluster,
            Self::Schedule(arguments) => &arguments.cluster,
            Self::Dispatch(arguments) => &arguments.cluster,
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

/// Flags of `bench compare`.
#[derive(Debug, Clone, Args)]
pub struct CompareArgs {
    /// The other program
    #[arg(long, value_name = "BINARY")]
    pub with: PathBuf,
    /// Rounds; each runs both programs once, and they take turns in being first
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub rounds: u32,
    /// Fail if the median ratio of processor time is above this, for example 1.05
    #[arg(long, value_name = "RATIO", value_parser = parse_ratio)]
    pub limit: Option<f64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// What is measured
    #[arg(value_parser = ["writes", "reads", "schedule", "dispatch"])]
    pub kind: String,
    /// Its flags, as after `quorate bench KIND`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub args: Vec<String>,
}

fn parse_ratio(text: &str) -> Result<f64, String> {
    let ratio = text.parse().ok().filter(|ratio: &f64| ratio.is_finite() && *ratio > 0.0);
    ratio.ok_or_else(|| "a ratio is a number above 0".to_owned())
}

impl CompareArgs {
    /// The load, and the arguments after `bench` that tell a program to put it on servers of its
    /// own and to print JSON.
    pub(super) fn load(&self) -> Result<(LoadCommand, Vec<String>), clap::Error> {
        let mut arguments = vec![self.kind.clone()];
        arguments.extend(self.args.iter().cloned());
        for flag in ["--up", "--json"] {
            if !self.args.iter().any(|given| given == flag) {
                arguments.push(flag.to_owned());
            }
        }
        let words = std::iter::once("quorate bench").chain(arguments.iter().map(String::as_str));
        let Words { load } = Words::try_parse_from(words)?;
        Ok((load, arguments))
    }
}

#[derive(Parser)]
struct Words {
    #[command(subcommand)]
    load: LoadCommand,
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: BenchCommand,
    }

    fn compare(line: &str) -> CompareArgs {
        let words = ["bench", "compare", "--with", "old"].into_iter();
        let line = Line::try_parse_from(words.chain(line.split_whitespace())).unwrap();
        let BenchCommand::Compare(arguments) = line.command else { panic!("another command") };
        arguments
    }

    #[test]
    fn both_programs_get_the_flags_of_the_load_and_start_servers_of_their_own() {
        for line in [
            "--rounds 3 schedule --nodes 20 --jobs 7",
            "--rounds 3 -- schedule --nodes 20 --jobs 7",
        ] {
            let arguments = compare(line);
            assert_eq!(arguments.rounds, 3);
            let (load, words) = arguments.load().unwrap();
            let LoadCommand::Schedule(schedule) = &load else { panic!("{load:?}") };
            assert_eq!((schedule.nodes, schedule.jobs, schedule.cluster.up), (20, 7, true));
            assert_eq!(words.join(" "), "schedule --nodes 20 --jobs 7 --up --json");
        }
        let arguments = compare("writes --seconds 2 --up --json");
        let (load, words) = arguments.load().unwrap();
        assert!(BenchCommand::Compare(arguments).prints_json());
        assert!(load.cluster().json && load.cluster().up);
        assert_eq!(words.iter().filter(|word| *word == "--up").count(), 1, "{words:?}");
    }

    #[test]
    fn a_load_that_cannot_be_compared_is_refused_before_the_first_round() {
        for (line, why) in [
            ("schedule --nodse 20", "--nodse"),
            ("writes --servers 127.0.0.1:1", "cannot be used with"),
        ] {
            let refused = compare(line).load().unwrap_err().to_string();
            assert!(refused.contains(why), "{refused}");
        }
        for words in ["failover", "--limit NaN writes", "--limit 0 writes", "--rounds 0 writes"] {
            let line = ["bench", "compare", "--with", "old"].into_iter().chain(words.split(' '));
            assert!(Line::try_parse_from(line).is_err(), "{words}");
        }
    }
}
