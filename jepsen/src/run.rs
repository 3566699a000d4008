//! One run from start to verdict.
//!
//! ```text
//!  servers up ─► clients + faults until the time limit ─► heal all, start all, wait until ready
//!             ─► one write and one read per key and server ─► servers down ─► checkers ─► results.json
//! ```
//! A failure of the harness itself ends the faults early and makes the run `unknown`; the heal, the last
//! phase and the checkers still run. Servers are down when this returns, whichever way it returns.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::checker::{Evidence, Results, Verdict, check};
use crate::cluster::{Cluster, Endpoint, Setup};
use crate::guard::Guard;
use crate::history::{Recorder, read_jsonl};
use crate::nemesis::{Nemesis, Schedule};
use crate::random::Random;
use crate::report::Reporter;
use crate::store::{Aftermath, Readiness, TestRecord, create_run, read_json, write_json};
use crate::workload::{Clients, Load, Target};

/// How long the servers may take to be ready, at the start and after the heal.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the last phase may try to serve every key.
const LAST_PHASE_TIMEOUT: Duration = Duration::from_mins(1);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(100);

/// A run that was judged.
pub(crate) struct Finished {
    /// Where it is kept.
    pub(crate) directory: PathBuf,
    /// The judgement.
    pub(crate) results: Results,
}

/// Runs one test and judges it.
pub(crate) fn run(record: &TestRecord, store: &Path, check_time_max: Duration) -> Result<Finished> {
    let directory = create_run(store, &run_name(record))?;
    write_json(&directory, "test.json", record)?;
    let reporter = Reporter::create(&directory)?;
    let recorder = Recorder::create(&directory)?;
    reporter.line(&format!(
        "{} servers of {}, seed {}, kept in {}",
        record.nodes.len(),
        record.binary.display(),
        record.seed,
        directory.display()
    ));
    let mut aftermath = Aftermath::default();
    {
        let cluster = start_cluster(record, &directory, &reporter)?;
        let endpoints = cluster.endpoints().to_vec();
        let cluster = Mutex::new(cluster);
        conduct(record, &cluster, &endpoints, &recorder, &reporter, &mut aftermath);
        let mut cluster = cluster.into_inner().unwrap_or_else(PoisonError::into_inner);
        match cluster.stop() {
            Ok(slow) if slow.is_empty() => {}
            Ok(slow) => reporter.line(&format!("killed, deaf to SIGTERM: {}", slow.join(", "))),
            Err(error) => aftermath.harness_failures.push(format!("stop: {error:#}")),
        }
        aftermath.exits = cluster.exits().to_vec();
    }
    aftermath.harness_failures.extend(recorder.snapshot().1);
    write_json(&directory, "aftermath.json", &aftermath)?;
    reporter.line("checking");
    let results = judge(&directory, check_time_max)?;
    if results.valid == Verdict::True {
        remove_data(&directory, &record.nodes, &reporter);
    }
    Ok(Finished { directory, results })
}

/// Judges a stored run, the same way at once or years later.
pub(crate) fn judge(directory: &Path, check_time_max: Duration) -> Result<Results> {
    let record: TestRecord = read_json(directory, "test.json")?;
    let history = read_jsonl(&directory.join("history.jsonl"))?;
    let aftermath: Aftermath = if directory.join("aftermath.json").exists() {
        read_json(directory, "aftermath.json")?
    } else {
        let cut_short = "the run was cut short: there is no aftermath.json".to_owned();
        Aftermath { harness_failures: vec![cut_short], ..Aftermath::default() }
    };
    let evidence = Evidence {
        history: &history,
        directory,
        nodes: &record.nodes,
        classes: &record.nemesis,
        aftermath: &aftermath,
        time_max: check_time_max,
    };
    let results = check(&evidence)?;
    write_json(directory, "results.json", &results)?;
    Ok(results)
}

/// The commit of the working directory, if there is one.
pub(crate) fn git_commit() -> Option<String> {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output().ok()?;
    let commit = String::from_utf8(output.stdout).ok()?;
    Some(commit.trim().to_owned()).filter(|commit| output.status.success() && !commit.is_empty())
}

fn run_name(record: &TestRecord) -> String {
    let mut parts = vec![record.workload.clone()];
    parts.extend(record.nemesis.iter().map(|class| class.name().to_owned()));
    parts.push(format!("{}n", record.nodes.len()));
    parts.extend(record.plant.clone());
    parts.join("-")
}

fn start_cluster(record: &TestRecord, directory: &Path, reporter: &Reporter) -> Result<Cluster> {
    let executable = std::env::current_exe().context("cannot find the harness's executable")?;
    let setup = Setup {
        binary: record.binary.clone(),
        directory: directory.to_owned(),
        servers: record.nodes.len(),
        plant: record.plant.clone(),
        guard: Some(Guard::start(&executable)?),
    };
    let mut cluster = Cluster::create(setup)?;
    for server in 0..cluster.len() {
        cluster.start(server)?;
    }
    let started = Instant::now();
    if !cluster.await_ready(READY_TIMEOUT) {
        let mut text = format!("the servers named no leader within {READY_TIMEOUT:?} of the start");
        for exit in cluster.exits() {
            text = format!("{} ended before the cluster was ready: {}", exit.node, exit.status);
        }
        for server in 0..cluster.len() {
            let name = &cluster.endpoints()[server].name;
            text = format!("{text}\nlast lines of {name}:\n{}", cluster.log_tail(server));
        }
        bail!(text);
    }
    reporter.line(&format!("ready after {} ms", started.elapsed().as_millis()));
    Ok(cluster)
}

/// Clients and faults, then the heal and the last phase.
fn conduct(
    record: &TestRecord,
    cluster: &Mutex<Cluster>,
    endpoints: &[Endpoint],
    recorder: &Recorder,
    reporter: &Reporter,
    aftermath: &mut Aftermath,
) {
    let targets: Vec<Target> = endpoints
        .iter()
        .map(|endpoint| Target { name: endpoint.name.clone(), http: endpoint.http })
        .collect();
    let load = Load {
        concurrency: record.concurrency,
        rate: record.rate,
        timeout: Duration::from_millis(record.timeout_ms),
        seed: record.seed,
    };
    let clients = Clients::new(&targets, load, record.ops_per_key, recorder);
    let random = Random::stream(record.seed, 2);
    let mut nemesis = Nemesis::new(cluster, endpoints, recorder, random);
    let watch = Watch { cluster, recorder, reporter };
    aftermath.harness_failures.extend(torment(record, &clients, &mut nemesis, &watch));

    reporter.line("healing every fault");
    let healed = Instant::now();
    if let Err(error) = nemesis.heal_all() {
        aftermath.harness_failures.push(format!("heal: {error:#}"));
        return;
    }
    let ready = watch.cluster().await_ready(READY_TIMEOUT);
    let elapsed = u64::try_from(healed.elapsed().as_millis()).unwrap_or(u64::MAX);
    aftermath.ready_after_heal = if ready {
        reporter.line(&format!("ready after {elapsed} ms, last phase"));
        Readiness::Milliseconds(elapsed)
    } else {
        reporter.line("the servers are not ready; last phase all the same");
        Readiness::Never
    };
    let patience = if ready { LAST_PHASE_TIMEOUT } else { Duration::ZERO };
    clients.last_phase(Instant::now() + patience);
}

/// The main phase; returns what went wrong in the harness.
fn torment(
    record: &TestRecord,
    clients: &Clients<'_>,
    nemesis: &mut Nemesis<'_>,
    watch: &Watch<'_>,
) -> Vec<String> {
    let time_limit = Duration::from_millis(record.time_limit_ms);
    let interval = Duration::from_millis(record.nemesis_interval_ms);
    let schedule = Schedule::new(interval, time_limit);
    let stop = AtomicBool::new(false);
    let mut failures = Vec::new();
    thread::scope(|scope| {
        let stop = &stop;
        let workers: Vec<_> = (0..record.concurrency)
            .map(|number| scope.spawn(move || clients.work(number, stop)))
            .collect();
        let injector = scope.spawn(move || nemesis.torment(&record.nemesis, schedule, stop));
        watch.until(Instant::now() + time_limit, || {
            workers.iter().any(ScopedJoinHandle::is_finished)
                || (injector.is_finished() && !record.nemesis.is_empty())
        });
        stop.store(true, Ordering::Relaxed);
        match injector.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(format!("nemesis: {error:#}")),
            Err(_) => failures.push("the nemesis thread panicked".to_owned()),
        }
        for worker in workers {
            if worker.join().is_err() {
                failures.push("a client thread panicked".to_owned());
            }
        }
    });
    failures
}

/// The main thread's view of a running test.
struct Watch<'a> {
    cluster: &'a Mutex<Cluster>,
    recorder: &'a Recorder,
    reporter: &'a Reporter,
}

impl<'a> Watch<'a> {
    fn cluster(&self) -> std::sync::MutexGuard<'a, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes dead servers and prints progress until the time is up or `broken` says so.
    fn until(&self, end: Instant, broken: impl Fn() -> bool) {
        let mut seen = 0;
        let mut next_progress = Instant::now() + PROGRESS_INTERVAL;
        let mut exits = self.cluster().exits().len();
        while Instant::now() < end && !broken() {
            thread::sleep(TICK.min(end.saturating_duration_since(Instant::now())));
            let (news, next) = self.recorder.nemesis_since(seen);
            seen = next;
            for op in news {
                self.reporter.line(&format!("nemesis  {:<15}  {}", op.f.keyword(), op.value));
            }
            let mut cluster = self.cluster();
            cluster.reap();
            for exit in &cluster.exits()[exits..] {
                self.reporter.line(&format!("{} ended by itself: {}", exit.node, exit.status));
            }
            exits = cluster.exits().len();
            drop(cluster);
            if Instant::now() >= next_progress {
                next_progress += PROGRESS_INTERVAL;
                let [ok, fail, info] = self.recorder.progress();
                self.reporter.line(&format!("{ok} ok, {fail} fail, {info} info"));
            }
        }
    }
}

/// A good run's data is of no use and may be large.
fn remove_data(directory: &Path, nodes: &[String], reporter: &Reporter) {
    for node in nodes {
        let data = directory.join(node).join("data");
        if data.is_dir()
            && let Err(error) = fs::remove_dir_all(&data)
        {
            reporter.line(&format!("cannot remove {}: {error}", data.display()));
        }
    }
}
