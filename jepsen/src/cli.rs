//! The command line: arguments, and the exit codes of Jepsen.
//!
//! 0 = no violation found, 1 = violation, 2 = unknown, 254 = bad arguments, 255 = the harness crashed.
//! Nothing but a verdict of `true` ever leads to 0.

mod repeat;
mod values;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::{
    binary::{BadArguments, Needs, SkippedRun, locate},
    capture,
    checker::Verdict,
    checker::foreign::{self, Model},
    edn::read_history,
    fault::{FaultClass, Means},
    guard, machine,
    machine::Machine,
    nemesis::Schedule,
    probe::{self, Tools},
    report::{note, print_findings, print_line, print_results, render_judgement},
    run, selftest, serve,
    server_config::{SNAPSHOT_LOG_BYTES, SNAPSHOT_LOG_BYTES_MAX, SNAPSHOT_LOG_BYTES_MIN},
    store::{Cycles, TestRecord},
    system::System,
    task,
    test_all::{self, Matrix},
    workload::{ReadMode, WorkloadKind},
};
use repeat::repeat;
use values::{node_names, other_name};

const BAD_ARGUMENTS: u8 = 254;
const CRASHED: u8 = 255;

/// The bug that leaves the log unsynced (M1).
const NO_FSYNC: &str = "skip-log-sync";
const FOREIGN_PLANT: &str = "a foreign system has no planted bugs";

/// How long clients and faults run unless somebody says.
const TIME_LIMIT: Duration = Duration::from_secs(30);

/// Fault injection on real Quorate servers, with own consistency checkers.
#[derive(Debug, Parser)]
#[command(name = "jepsen", version)]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a workload under faults and judge it.
    Test(TestArguments),
    /// Run every workload under every set of faults, and go on where an interrupted run of this stopped.
    TestAll(TestAllArguments),
    /// Cut the power of all servers at once, again and again, under load.
    PowerCycles(CyclesArguments),
    /// Damage the log or a snapshot of one server after the other, again and again, under load.
    CorruptionCycles(CyclesArguments),
    /// Put an older copy of one server's data directory back, again and again, under load.
    RollbackCycles(CyclesArguments),
    /// Say which faults this machine, user and server binary can do.
    Probe(ProbeArguments),
    /// Show stored runs to a browser.
    Serve(ServeArguments),
    /// Judge a stored run again, or a history that another program wrote.
    Analyze(AnalyzeArguments),
    /// Run servers with deliberate bugs and expect each to be caught.
    Selftest(SelftestArguments),
    /// Kill the processes named on stdin once it closes.
    #[command(name = guard::SUBCOMMAND, hide = true)]
    Guard,
    /// Run until SIGINT, holding an allocation's lock; what real agents of a run are given to do.
    #[command(name = task::SUBCOMMAND, hide = true)]
    Task {
        /// Where the run keeps its tasks' traces.
        directory: PathBuf,
        /// The history's time 0 on the monotonic clock, in nanoseconds.
        origin: u64,
        /// The node's name.
        agent: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Net {
    Proxy,
    Namespaces,
}

#[derive(Debug, Args)]
struct RunArguments {
    /// What the clients do [default: register; with test-all: every workload; with selftest: what shows the bug].
    #[arg(short, long, value_enum)]
    workload: Option<WorkloadKind>,
    /// Mean seconds between two changes of one fault class [default: a sixth of the time limit, 1 to 10].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    nemesis_interval: Option<Duration>,
    /// How long clients and faults run [default: 30; with selftest: what shows the bug].
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time_limit: Option<Duration>,
    /// How many servers [default: 3; with test-all: what the matrix says].
    #[arg(long, value_parser = ["3", "5"])]
    node_count: Option<String>,
    /// The servers by name, which only says how many: n1,n2,n3 or n1,n2,n3,n4,n5.
    #[arg(long = "nodes", value_name = "NAMES", value_parser = node_names, conflicts_with = "node_count")]
    named_nodes: Option<usize>,
    /// Client threads, or threads per server with a trailing n.
    #[arg(long, value_name = "N or Nn", default_value = "2n", value_parser = concurrency)]
    concurrency: Concurrency,
    /// Operations per second, all clients together.
    #[arg(short, long, value_name = "HZ", default_value = "100", value_parser = rate)]
    rate: f64,
    /// Operations per key before a new key takes its place.
    #[arg(long, value_name = "N", default_value = "200", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    ops_per_key: u64,
    /// Bytes of log (not entries) after which a server writes a snapshot.
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = SNAPSHOT_LOG_BYTES,
        value_parser = clap::value_parser!(u64).range(SNAPSHOT_LOG_BYTES_MIN..=SNAPSHOT_LOG_BYTES_MAX)
    )]
    snapshot_threshold: u64,
    /// How long a client waits for an answer.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    timeout: Duration,
    /// The seed of all random choices [default: random, printed].
    #[arg(long)]
    seed: Option<u64>,
    /// What is tested.
    #[arg(long, value_enum, default_value = "quorate")]
    system: System,
    /// How servers reach each other: through proxies, or as packets between network namespaces (root).
    #[arg(long, value_enum, default_value = "proxy")]
    net: Net,
    /// The library for clocks that jump [default: where distributions put libfaketimeMT.so.1].
    #[arg(long, value_name = "PATH")]
    faketime: Option<PathBuf>,
    /// The server binary [default: `quorate` beside this one, built first under `cargo run`; etcd: in PATH].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "store")]
    store: PathBuf,
    /// How long the linearizability search may take.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    check_time_limit: Duration,
}

impl RunArguments {
    fn nodes(&self) -> Result<Option<usize>> {
        let counted = self.node_count.as_deref();
        let counted = counted.map(|count| count.parse::<usize>().context("clap allows 3 and 5"));
        Ok(counted.transpose()?.or(self.named_nodes))
    }

    /// The mean time between two changes of one class, in a run of this length.
    fn interval(&self, time_limit: Duration) -> Duration {
        self.nemesis_interval.unwrap_or_else(|| Schedule::default_interval(time_limit))
    }
}

/// What people look at during a run or after it.
#[derive(Debug, Args)]
struct Keep {
    /// Before the servers are stopped, print where they are and wait for Enter. They need the harness, which carries what they say to each other.
    #[arg(long)]
    leave_db_running: bool,
    /// Keep the packets of the run as *.pcap in its directory; needs tcpdump, and the right to capture.
    #[arg(long)]
    tcpdump: bool,
}

#[derive(Debug, Args)]
struct TestArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Fault classes, separated by commas (`jepsen probe` lists them; also transfer-leader, packet, bitflip-wal, bitflip-snap, truncate-wal); `all` that this machine can do with a server built for it; or none.
    #[arg(long, default_value = "kill,pause,partition", value_parser = nemeses)]
    nemesis: Nemeses,
    /// A deliberate bug; needs a server built with the feature `plant`.
    #[arg(long, value_name = "NAME")]
    plant: Option<String>,
    /// Servers acknowledge what they have not synced: short for `--plant skip-log-sync` (M1). Must fail with the class power.
    #[arg(long, conflicts_with = "plant")]
    unsafe_no_fsync: bool,
    /// Every kill cuts the power of the servers it hits, so that what they have not synced is lost: the class power in the place of
    /// kill, with all that it needs.
    #[arg(long)]
    lose_unsynced: bool,
    /// How fresh reads are asked to be, in register and set; with stale they are expected to fail.
    #[arg(long, value_enum, default_value = "default")]
    read_mode: ReadMode,
    /// What servers run at the start, another binary of the same generation: the class restart, which has to be among the faults, ends each of
    /// them and starts it as `--binary`, while the others go on.
    #[arg(long, value_name = "PATH", conflicts_with = "plant")]
    old_binary: Option<PathBuf>,
    #[command(flatten)]
    keep: Keep,
    /// Run the test so many times, with seeds that rise by one; the exit code is the worst: a violation before an unknown.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    test_count: u64,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

impl TestArguments {
    /// The bug to plant.
    fn planted(&self) -> Option<&str> {
        self.plant.as_deref().or(self.unsafe_no_fsync.then_some(NO_FSYNC))
    }

    /// Refuses what does not go together.
    fn check(&self) -> Result<(), BadArguments> {
        let workload = self.run.workload.unwrap_or(WorkloadKind::Register);
        let is_foreign = self.run.system != System::Quorate;
        let text = if is_foreign && self.planted().is_some() {
            FOREIGN_PLANT.to_owned()
        } else if is_foreign && self.read_mode != ReadMode::Default {
            "a foreign system is only read in its own mode".to_owned()
        } else if self.read_mode != ReadMode::Default && !workload.has_read_modes() {
            format!("--read-mode is for register and set, not for {}", workload.name())
        } else if self.lose_unsynced && !self.nemesis.includes(FaultClass::Kill) {
            "--lose-unsynced is about the class kill, which is not asked for".to_owned()
        } else if self.old_binary.is_some() && !self.nemesis.includes(FaultClass::Restart) {
            "--old-binary needs rolling restarts, in which servers are upgraded: add restart to --nemesis"
                .to_owned()
        } else if let Some(missing) = self.old_binary.as_ref().filter(|path| !path.is_file()) {
            format!("--old-binary {}: there is no such file", missing.display())
        } else if self.keep.leave_db_running && self.test_count > 1 {
            "--leave-db-running is for one run, not for several".to_owned()
        } else {
            return Ok(());
        };
        Err(BadArguments(text))
    }
}

#[derive(Debug, Args)]
struct AnalyzeArguments {
    /// The run's directory, or with --model a history of another program: .edn, .jsonl, .log, .txt.
    #[arg(default_value = "store/latest")]
    path: PathBuf,
    /// What a history of another program is judged against.
    #[arg(short, long, value_enum)]
    model: Option<Model>,
    /// How long the linearizability search may take.
    #[arg(long, value_name = "SECONDS", default_value = "60", value_parser = seconds)]
    check_time_limit: Duration,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct SelftestArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Fault classes for all bugs, as with `test` [default: what shows the bug].
    #[arg(long, value_parser = nemeses)]
    nemesis: Option<Nemeses>,
    /// The planted bugs to catch, by number or word.
    #[arg(long, value_delimiter = ',', default_values_t = selftest::plants())]
    plants: Vec<String>,
    /// Runs per planted bug before it counts as not caught.
    #[arg(long, default_value = "5", value_parser = clap::value_parser!(u64).range(1..=1_000))]
    tries: u64,
}

#[derive(Debug, Args)]
struct TestAllArguments {
    #[command(flatten)]
    run: RunArguments,
    /// Which matrix.
    #[arg(long, value_enum, default_value = "gate")]
    matrix: Matrix,
    /// Leave out workloads that are expected to fail: there is none in any matrix.
    #[arg(long)]
    only_workloads_expected_to_pass: bool,
    /// Begin anew instead of going on.
    #[arg(long)]
    fresh: bool,
    /// Print the table as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct CyclesArguments {
    #[command(flatten)]
    run: RunArguments,
    /// How many times.
    #[arg(long, default_value = "200", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    count: u64,
    /// Time between two of them.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    pace: Duration,
    /// Print the results as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ProbeArguments {
    /// The server binary to look at [default: `quorate` beside this one].
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// The library for clocks that jump.
    #[arg(long, value_name = "PATH")]
    faketime: Option<PathBuf>,
    /// Print the findings as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ServeArguments {
    /// Where runs are kept.
    #[arg(long, value_name = "DIR", default_value = "store")]
    store: PathBuf,
    /// Where to listen.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    address: std::net::SocketAddr,
}

/// The fault classes of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Nemeses {
    /// These.
    Named(Vec<FaultClass>),
    /// All that this machine can do.
    All,
}

impl Nemeses {
    /// The classes, and why some of them cannot be injected here. Of `all` those are asked for that can, and those that could if the
    /// server had been built for it, which needs nobody's leave: a run without them is no pass.
    fn resolve(
        &self,
        system: System,
        tools: &Tools,
    ) -> (Vec<FaultClass>, BTreeMap<FaultClass, String>) {
        let named = match self {
            Self::Named(classes) => classes.as_slice(),
            Self::All => FaultClass::value_variants(),
        };
        let unavailable: BTreeMap<FaultClass, String> = named
            .iter()
            .filter_map(|class| {
                let missing = probe::missing(*class, tools);
                Some((*class, missing.or_else(|| system.bars(*class, tools.namespaces))?))
            })
            .collect();
        let mut classes = named.to_vec();
        if *self == Self::All {
            let can_be_built =
                |class: &FaultClass| system == System::Quorate && needs_disk_faults(*class);
            classes.retain(|class| !unavailable.contains_key(class) || can_be_built(class));
        }
        (classes, unavailable)
    }

    fn includes(&self, class: FaultClass) -> bool {
        match self {
            Self::Named(classes) => classes.contains(&class),
            Self::All => true,
        }
    }

    fn need_disk_faults(&self) -> bool {
        match self {
            Self::Named(classes) => classes.iter().copied().any(needs_disk_faults),
            Self::All => true,
        }
    }
}

fn needs_disk_faults(class: FaultClass) -> bool {
    class.means().contains(&Means::DiskFaults)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Concurrency {
    Total(usize),
    PerServer(usize),
}

/// Parses the command line, does what it says, and maps the outcome to an exit code.
pub(crate) fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Fails only if nobody reads the terminal; the exit code still tells.
            error.print().ok();
            return if error.use_stderr() { BAD_ARGUMENTS.into() } else { ExitCode::SUCCESS };
        }
    };
    // A panic unwinds through the cluster, whose drop kills the servers.
    match std::panic::catch_unwind(|| perform(&cli.command)) {
        Ok(Ok(verdict)) => match verdict {
            Verdict::True => ExitCode::SUCCESS,
            Verdict::False => 1.into(),
            Verdict::Unknown => 2.into(),
        },
        Ok(Err(error)) => {
            note(&format!("error: {error:#}"));
            if error.downcast_ref::<SkippedRun>().is_some() {
                return 2.into();
            }
            let bad = error.downcast_ref::<BadArguments>().is_some();
            if bad { BAD_ARGUMENTS.into() } else { CRASHED.into() }
        }
        Err(_) => CRASHED.into(),
    }
}

fn perform(action: &Action) -> Result<Verdict> {
    match action {
        Action::Test(arguments) => perform_test(arguments),
        Action::TestAll(arguments) => perform_all(arguments),
        Action::PowerCycles(arguments) => perform_cycles(arguments, FaultClass::Power),
        Action::CorruptionCycles(arguments) => perform_cycles(arguments, FaultClass::Corrupt),
        Action::RollbackCycles(arguments) => perform_cycles(arguments, FaultClass::Rollback),
        Action::Probe(arguments) => perform_probe(arguments),
        Action::Serve(arguments) => {
            serve::serve(&arguments.store, arguments.address)?;
            Ok(Verdict::True)
        }
        Action::Analyze(arguments) => analyze(arguments),
        Action::Selftest(arguments) => {
            let run = &arguments.run;
            let verdict = selftest::selftest(
                &hunts(arguments)?,
                arguments.tries,
                &run.store,
                run.check_time_limit,
            )?;
            print_line(match verdict {
                Verdict::True => "selftest: every planted bug was caught",
                Verdict::False => "selftest: a planted bug was not caught",
                Verdict::Unknown => "selftest: a control run did not pass",
            });
            Ok(verdict)
        }
        Action::Task { directory, origin, agent } => {
            task::run(directory, *origin, agent)?;
            Ok(Verdict::True)
        }
        Action::Guard => {
            guard::serve(std::io::stdin().lock())?;
            Ok(Verdict::True)
        }
    }
}

/// The runs of a selftest, one per planted bug: what the command line asks for, and for the rest what is known to show the bug.
fn hunts(arguments: &SelftestArguments) -> Result<Vec<TestRecord>> {
    let run = &arguments.run;
    if run.system != System::Quorate {
        return Err(BadArguments(FOREIGN_PLANT.to_owned()).into());
    }
    let of_all = || {
        let hunts = arguments.plants.iter().map(|plant| selftest::hunt(plant));
        let classes: BTreeSet<FaultClass> = hunts.flat_map(|hunt| hunt.nemesis).copied().collect();
        Nemeses::Named(classes.into_iter().collect())
    };
    let nemesis = arguments.nemesis.clone().unwrap_or_else(of_all);
    let base = record(run, &nemesis, true)?;
    let hunt = |plant: &String| {
        let known = selftest::hunt(plant);
        let mut record = TestRecord { plant: Some(plant.clone()), ..base.clone() };
        if run.workload.is_none() {
            known.workload.name().clone_into(&mut record.workload);
        }
        if arguments.nemesis.is_none() {
            record.nemesis = known.nemesis.to_vec();
            record.unavailable.retain(|class, _| known.nemesis.contains(class));
        }
        if run.time_limit.is_none() {
            record.time_limit_ms = milliseconds(known.time_limit);
            record.nemesis_interval_ms = milliseconds(run.interval(known.time_limit));
        }
        record
    };
    Ok(arguments.plants.iter().map(hunt).collect())
}

fn analyze(arguments: &AnalyzeArguments) -> Result<Verdict> {
    let path = &arguments.path;
    let bad = |text: String| Err(BadArguments(text).into());
    match arguments.model {
        Some(_) if !path.is_file() => bad(format!("{} is not a file", path.display())),
        Some(model) => {
            let history = read_history(path).map_err(|error| BadArguments(format!("{error:#}")))?;
            let judged = foreign::judge(&history, model, arguments.check_time_limit);
            let judgement =
                judged.map_err(|error| BadArguments(format!("{}: {error:#}", path.display())))?;
            print_line(&if arguments.json {
                serde_json::to_string_pretty(&judgement)?
            } else {
                render_judgement(&judgement)
            });
            Ok(judgement.valid)
        }
        None if path.is_file() => {
            bad(format!("{} is one history: say by --model what it is", path.display()))
        }
        None if !path.join("history.jsonl").is_file() => {
            bad(format!("{} holds no history.jsonl", path.display()))
        }
        None => {
            let results = run::judge(path, arguments.check_time_limit)?;
            print_results(&results, path, arguments.json)?;
            Ok(results.valid)
        }
    }
}

fn perform_test(arguments: &TestArguments) -> Result<Verdict> {
    arguments.check()?;
    let (run, plant) = (&arguments.run, arguments.planted());
    let mut record = record(run, &arguments.nemesis, plant.is_some())?;
    record.plant = plant.map(str::to_owned);
    record.read_mode = arguments.read_mode;
    // Servers are started in directories of their own.
    record.old_binary = arguments.old_binary.as_deref().map(fs::canonicalize).transpose()?;
    record.leave_running = arguments.keep.leave_db_running;
    record.tcpdump = arguments.keep.tcpdump;
    if arguments.keep.tcpdump
        && let Err(why) = capture::can()
    {
        return Err(SkippedRun(format!("--tcpdump: {why}")).into());
    }
    if arguments.lose_unsynced {
        let missing = probe::missing(FaultClass::Power, &tools(run, &record));
        lose_unsynced(&mut record, missing);
    }
    let perform = |record: &TestRecord| perform_run(record, run, arguments.json);
    // With --json stdout is for the results alone.
    let tell = if arguments.json { note } else { print_line };
    repeat(&record, arguments.test_count, &perform, &tell)
}

/// Puts cuts of the power in the place of kills; `missing`: why they cannot be done here, if so.
fn lose_unsynced(record: &mut TestRecord, missing: Option<String>) {
    let mut classes = Vec::new();
    for class in &record.nemesis {
        let class = if *class == FaultClass::Kill { FaultClass::Power } else { *class };
        if !classes.contains(&class) {
            classes.push(class);
        }
    }
    record.nemesis = classes;
    record.unavailable.extend(missing.map(|why| (FaultClass::Power, why)));
}

fn perform_run(record: &TestRecord, run: &RunArguments, json: bool) -> Result<Verdict> {
    let finished = run::run(record, &run.store, run.check_time_limit)?;
    print_results(&finished.results, &finished.directory, json)?;
    Ok(finished.results.valid)
}

fn perform_cycles(arguments: &CyclesArguments, class: FaultClass) -> Result<Verdict> {
    let run = &arguments.run;
    let mut record = record(run, &Nemeses::Named(vec![class]), false)?;
    if let Some(why) = record.unavailable.get(&class) {
        return Err(SkippedRun(format!("{}: {why}", class.name())).into());
    }
    record.cycles =
        Some(Cycles { class, count: arguments.count, pace_ms: milliseconds(arguments.pace) });
    perform_run(&record, run, arguments.json)
}

fn perform_all(arguments: &TestAllArguments) -> Result<Verdict> {
    let run = &arguments.run;
    if arguments.only_workloads_expected_to_pass {
        note("every workload is expected to pass: none is left out");
    }
    let base = record(run, &Nemeses::All, false)?;
    let workloads = WorkloadKind::value_variants().iter();
    let workloads = workloads.filter(|one| run.workload.is_none_or(|asked| asked == **one));
    let plan = test_all::Plan {
        matrix: arguments.matrix,
        fresh: arguments.fresh,
        workloads: workloads.map(|workload| workload.name()).collect(),
        servers: run.nodes()?,
    };
    let tools = tools(run, &base);
    let missing = |class| probe::missing(class, &tools);
    let table = test_all::run_all(&base, &plan, &missing, &run.store, run.check_time_limit)?;
    table.print(arguments.json)?;
    table.verdict()
}

fn perform_probe(arguments: &ProbeArguments) -> Result<Verdict> {
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name("quorate"));
    let binary = arguments.binary.clone().or(beside.filter(|path| path.is_file()));
    let tools = Tools { binary, faketime: arguments.faketime.clone(), namespaces: false };
    print_findings(&probe::all(&tools), arguments.json)?;
    Ok(Verdict::True)
}

fn tools(run: &RunArguments, record: &TestRecord) -> Tools {
    Tools {
        binary: Some(record.binary.clone()),
        faketime: run.faketime.clone(),
        namespaces: run.net == Net::Namespaces,
    }
}

fn record(arguments: &RunArguments, nemesis: &Nemeses, plant: bool) -> Result<TestRecord> {
    if arguments.net == Net::Namespaces
        && let Err(why) = probe::can(Means::Namespaces, &Tools::default())
    {
        return Err(SkippedRun(format!("--net namespaces: {why}")).into());
    }
    let workload = arguments.workload.unwrap_or(WorkloadKind::Register);
    if arguments.system != System::Quorate && workload != WorkloadKind::Register {
        let text = "a foreign system knows only the workload register".to_owned();
        return Err(BadArguments(text).into());
    }
    if arguments.system != System::Quorate && arguments.snapshot_threshold != SNAPSHOT_LOG_BYTES {
        let text = "--snapshot-threshold is of our own servers".to_owned();
        return Err(BadArguments(text).into());
    }
    let needs = Needs { plant, faults: nemesis.need_disk_faults() };
    let (system, store) = (arguments.system, &arguments.store);
    let mut record =
        unresolved(arguments, locate(system, arguments.binary.as_deref(), needs, store)?)?;
    let tools = tools(arguments, &record);
    (record.nemesis, record.unavailable) = nemesis.resolve(system, &tools);
    record.faketime = probe::faketime(&tools).ok();
    record.machine = Machine::look(&record);
    Ok(record)
}

/// The record of a run without any fault.
fn unresolved(arguments: &RunArguments, binary: PathBuf) -> Result<TestRecord> {
    let nodes = arguments.nodes()?.unwrap_or(3);
    let workload = arguments.workload.unwrap_or(WorkloadKind::Register);
    let time_limit = arguments.time_limit.unwrap_or(TIME_LIMIT);
    Ok(TestRecord {
        argv: std::env::args().collect(),
        harness_version: env!("CARGO_PKG_VERSION").to_owned(),
        git_commit: machine::git_commit(),
        binary,
        old_binary: None,
        leave_running: false,
        tcpdump: false,
        system: arguments.system,
        workload: workload.name().to_owned(),
        nemesis: Vec::new(),
        unavailable: BTreeMap::new(),
        cycles: None,
        namespaces: arguments.net == Net::Namespaces,
        faketime: None,
        nemesis_interval_ms: milliseconds(arguments.interval(time_limit)),
        time_limit_ms: milliseconds(time_limit),
        nodes: (1..=nodes).map(|number| format!("n{number}")).collect(),
        concurrency: match arguments.concurrency {
            Concurrency::Total(threads) => threads,
            Concurrency::PerServer(threads) => threads * nodes,
        },
        rate: arguments.rate,
        ops_per_key: arguments.ops_per_key,
        timeout_ms: milliseconds(arguments.timeout),
        seed: match arguments.seed {
            Some(seed) => seed,
            None => {
                getrandom::u64().map_err(|error| anyhow::anyhow!("cannot draw a seed: {error}"))?
            }
        },
        plant: None,
        read_mode: ReadMode::Default,
        snapshot_log_bytes: arguments.snapshot_threshold,
        machine: Machine::default(),
    })
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    if !(0.001..=1_000_000.0).contains(&seconds) {
        return Err("must be between 0.001 and 1000000 seconds".to_owned());
    }
    Ok(Duration::from_secs_f64(seconds))
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let possible = (0.1..=100_000.0).contains(&rate);
    possible.then_some(rate).ok_or_else(|| "must be between 0.1 and 100000".to_owned())
}

fn concurrency(text: &str) -> Result<Concurrency, String> {
    let (number, per_server) = match text.strip_suffix('n') {
        Some(number) => (number, true),
        None => (text, false),
    };
    match number.parse::<usize>() {
        Ok(threads @ 1..=1_000) if per_server => Ok(Concurrency::PerServer(threads)),
        Ok(threads @ 1..=1_000) => Ok(Concurrency::Total(threads)),
        Ok(_) | Err(_) => {
            Err("must be a number from 1 to 1000, or one with a trailing n".to_owned())
        }
    }
}

fn nemeses(text: &str) -> Result<Nemeses, String> {
    if text == "none" {
        return Ok(Nemeses::Named(Vec::new()));
    }
    if text == "all" {
        return Ok(Nemeses::All);
    }
    let mut classes = Vec::new();
    for name in text.split(',') {
        for class in classes_named(name.trim())? {
            if !classes.contains(&class) {
                classes.push(class);
            }
        }
    }
    Ok(Nemeses::Named(classes))
}

/// The class of this name, or those that are called so elsewhere.
fn classes_named(name: &str) -> Result<Vec<FaultClass>, String> {
    if let Some(classes) = other_name(name) {
        return Ok(classes.to_vec());
    }
    let class = FaultClass::from_str(name, false).map_err(|_| {
        let known: Vec<&str> =
            FaultClass::value_variants().iter().map(|class| class.name()).collect();
        format!("unknown fault class {name:?}; known are {}, all and none", known.join(", "))
    })?;
    Ok(vec![class])
}

#[cfg(test)]
mod tests;
