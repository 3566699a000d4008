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
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{
    agents::{Fleet, Setup as FleetSetup},
    capture::Capture,
    checker::agent_records::read,
    checker::allocations::agents_agree,
    checker::coverage::Asked,
    checker::{Evidence, Results, Verdict, check},
    cluster::{Cluster, Endpoint, Setup},
    fault::FaultClass,
    guard::Guard,
    history::{Recorder, read_jsonl},
    html,
    machines::{self, Machines},
    nemesis::{Nemesis, Schedule, Turns},
    owned::{Ledger, Thing},
    replicas,
    report::Reporter,
    store::{
        Aftermath, Cycles, Readiness, TestRecord, create_run, read_json, write_edn, write_json,
    },
    system::System,
    task::Place,
    workload::{Drive, Fixtures, LastPhase, Load, ReadMode, Target, WorkloadKind, clients},
};
use chance::Dice;

/// How long the servers may take to be ready, at the start and after the heal.
const READY_TIMEOUT: Duration = Duration::from_mins(1);
/// How long the last phase may try to serve every key; longer while it gets on.
const LAST_PHASE_TIMEOUT: Duration = Duration::from_mins(1);
/// Calm between the last heal and the last phase, at most; a sixth of a short run.
const SETTLE: Duration = Duration::from_secs(10);
/// How long agents may take to run what the servers say, once these have settled: longer than the longest pause
/// between two tries of an agent to reach a server (15 s) and the tries themselves (10 s).
const AGENTS_TIMEOUT: Duration = Duration::from_secs(40);
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(100);
/// A run in which a class of faults has found nothing to break yet goes on for up to so many times its time limit.
const TIME_LIMIT_FACTOR_MAX: u32 = 4;

/// More classes than these are only counted in a run's name.
const NAMED_CLASSES_MAX: usize = 4;

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
        let machines = workload_of(record)?.has_machines();
        let machines =
            machines.then(|| Machines::create(&directory, &record.binary)).transpose()?;
        let cluster = start_cluster(record, &directory, store, machines.as_ref(), &reporter)?;
        let endpoints = cluster.endpoints().to_vec();
        let capture = if record.tcpdump {
            Some(Capture::start(&directory, &cluster, start_guard()?)?)
        } else {
            None
        };
        let tasks = workload_of(record)?.agents().real > 0;
        let tasks = tasks.then(|| Place::create(&directory, &recorder)).transpose()?;
        let fleet = start_agents(record, &directory, &endpoints)?;
        let machines = machines.as_ref();
        let mut agents = Agents { fleet, tasks, machines };
        let cluster = Mutex::new(cluster);
        let watched = watched(machines, &recorder, || {
            let (agents, aftermath) = (&mut agents, &mut aftermath);
            conduct(record, &cluster, &endpoints, agents, &recorder, &reporter, aftermath);
        });
        if let Err(error) = watched {
            aftermath.harness_failures.push(format!("processes of machines: {error:#}"));
        }
        if record.leave_running {
            hold(&endpoints, &reporter);
        }
        let mut fleet = agents.fleet;
        if let Err(error) = fleet.stop() {
            aftermath.harness_failures.push(format!("stop of the agents: {error:#}"));
        }
        let mut cluster = cluster.into_inner().unwrap_or_else(PoisonError::into_inner);
        match cluster.stop() {
            Ok(slow) if slow.is_empty() => {}
            Ok(slow) => reporter.line(&format!("killed, deaf to SIGTERM: {}", slow.join(", "))),
            Err(error) => aftermath.harness_failures.push(format!("stop: {error:#}")),
        }
        // Nobody makes machines any more.
        match machines.map(|machines| machines::end(machines.record())) {
            None | Some(Ok(0)) => {}
            Some(Ok(left)) => reporter.line(&format!("killed, agents of machines: {left}")),
            Some(Err(error)) => {
                aftermath.harness_failures.push(format!("end of the machines: {error:#}"));
            }
        }
        if let Some(Err(error)) = capture.map(Capture::stop) {
            aftermath.harness_failures.push(format!("stop of tcpdump: {error:#}"));
        }
        aftermath.exits = [cluster.exits(), fleet.exits()].concat();
        aftermath.tolerated = cluster.tolerated().to_vec();
    }
    aftermath.harness_failures.extend(recorder.snapshot().1);
    write_json(&directory, "aftermath.json", &aftermath)?;
    if let Some(cycles) = record.cycles {
        reporter.line(&cycles_line(cycles, &aftermath.cycles_ready_ms));
    }
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
    let (history, cut) = read_jsonl(&directory.join("history.jsonl"))?;
    let mut aftermath: Aftermath = if directory.join("aftermath.json").exists() {
        read_json(directory, "aftermath.json")?
    } else {
        let cut_short = "the run was cut short: there is no aftermath.json".to_owned();
        Aftermath { harness_failures: vec![cut_short], ..Aftermath::default() }
    };
    aftermath.harness_failures.extend(cut);
    let workload = workload_of(&record)?;
    let evidence = Evidence {
        record: &record,
        workload,
        history: &history,
        directory,
        nodes: &record.nodes,
        faults: Asked {
            classes: &record.nemesis,
            unavailable: &record.unavailable,
            at_least: record.cycles.map_or(1, |cycles| cycles.count),
        },
        aftermath: &aftermath,
        time_max: check_time_max,
    };
    let results = check(&evidence);
    write_json(directory, "results.json", &results)?;
    write_edn(directory, "results.edn", &results)?;
    html::write(directory, &record, &history, &results)?;
    Ok(results)
}

fn workload_of(record: &TestRecord) -> Result<WorkloadKind> {
    WorkloadKind::named(&record.workload)
        .with_context(|| format!("there is no workload {:?}", record.workload))
}

fn run_name(record: &TestRecord) -> String {
    let mut parts = vec![record.workload.clone()];
    if record.system != System::Quorate {
        parts.insert(0, record.system.binary().to_owned());
    }
    if record.nemesis.len() > NAMED_CLASSES_MAX {
        parts.push(format!("{}-classes", record.nemesis.len()));
    } else {
        parts.extend(record.nemesis.iter().map(|class| class.name().to_owned()));
    }
    parts.extend(record.cycles.map(|cycles| format!("x{}", cycles.count)));
    parts.push(format!("{}n", record.nodes.len()));
    parts.extend(record.plant.clone());
    if record.read_mode != ReadMode::Default {
        parts.push(format!("{}-reads", record.read_mode.name()));
    }
    parts.join("-")
}

fn start_guard() -> Result<Guard> {
    let executable = std::env::current_exe().context("cannot find the harness's executable")?;
    Guard::start(&executable)
}

fn start_cluster(
    record: &TestRecord,
    directory: &Path,
    store: &Path,
    machines: Option<&Machines>,
    reporter: &Reporter,
) -> Result<Cluster> {
    let injected = record.injected();
    let loop_disks =
        injected.contains(&FaultClass::Power) || injected.contains(&FaultClass::Freeze);
    let mut guard = start_guard()?;
    let ledger = if loop_disks || record.namespaces || machines.is_some() {
        let (ledger, undone) = Ledger::open(store)?;
        for thing in undone {
            reporter.line(&format!("undone, left by a harness that died: {thing}"));
        }
        guard.keep(ledger.path())?;
        Some(Arc::new(Mutex::new(ledger)))
    } else {
        None
    };
    if let (Some(ledger), Some(machines)) = (&ledger, machines) {
        let mut ledger = ledger.lock().unwrap_or_else(PoisonError::into_inner);
        ledger.add(Thing::Agents(machines.record().to_owned()))?;
    }
    for (class, why) in &record.unavailable {
        reporter.line(&format!("skipped: {} ({why})", class.name()));
    }
    let setup = Setup {
        system: record.system,
        binary: record.binary.clone(),
        old_binary: record.old_binary.clone(),
        directory: directory.to_owned(),
        servers: record.nodes.len(),
        plant: record.plant.clone(),
        snapshot_log_bytes: record.snapshot_log_bytes,
        namespaces: record.namespaces,
        loop_disks,
        faketime: record.faketime.clone().filter(|_| injected.contains(&FaultClass::Clock)),
        settings: machines.map(Machines::settings).unwrap_or_default(),
        ledger,
        guard: Some(guard),
    };
    let mut cluster = Cluster::create(setup)?;
    for server in 0..cluster.len() {
        cluster.start(server)?;
    }
    let started = Instant::now();
    if !cluster.await_ready(READY_TIMEOUT)? {
        let mut text = format!("the servers named no leader within {READY_TIMEOUT:?} of the start");
        for exit in cluster.exits() {
            text = format!("{} ended before the cluster was ready: {}", exit.node, exit.status);
        }
        for server in 0..cluster.len() {
            let name = &cluster.endpoints()[server].name;
            match cluster.log_tail(server) {
                tail if tail.is_empty() => text = format!("{text}\nthe log of {name} is empty"),
                tail => text = format!("{text}\nlast lines of {name}:\n{tail}"),
            }
        }
        bail!(text);
    }
    reporter.line(&format!("ready after {} ms", started.elapsed().as_millis()));
    Ok(cluster)
}

/// Lets somebody look at the servers, until Enter is pressed or there is nobody.
fn hold(endpoints: &[Endpoint], reporter: &Reporter) {
    for Endpoint { name, http, .. } in endpoints {
        reporter.line(&format!("{name} is left running at http://{http}"));
    }
    reporter.line("press Enter to stop the servers and judge the run");
    // Whoever has closed it does not want to look.
    std::io::stdin().read_line(&mut String::new()).ok();
}

/// Starts the agents that the workload needs, if any.
fn start_agents(record: &TestRecord, directory: &Path, endpoints: &[Endpoint]) -> Result<Fleet> {
    let agents = workload_of(record)?.agents();
    Fleet::start(FleetSetup {
        binary: &record.binary,
        directory,
        servers: endpoints.iter().map(|endpoint| endpoint.rpc).collect(),
        agents,
        guard: if agents.count() > 0 { Some(start_guard()?) } else { None },
    })
}

/// The agents, if some are real the place of their tasks, and the agents that servers start.
struct Agents<'a> {
    fleet: Fleet,
    tasks: Option<Place>,
    machines: Option<&'a Machines>,
}

/// Does all of a run while the processes of its machines, if it has any, are looked at.
fn watched(machines: Option<&Machines>, recorder: &Recorder, run: impl FnOnce()) -> Result<()> {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let told = Told(&stop);
        let watcher = machines.map(|machines| scope.spawn(|| machines.watch(recorder, &stop)));
        run();
        drop(told);
        match watcher.map(ScopedJoinHandle::join) {
            None => Ok(()),
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => bail!("the thread that looks at them panicked"),
        }
    })
}

/// Clients and faults, then the heal and the last phase.
fn conduct(
    record: &TestRecord,
    cluster: &Mutex<Cluster>,
    endpoints: &[Endpoint],
    Agents { fleet, tasks, machines }: &mut Agents<'_>,
    recorder: &Recorder,
    reporter: &Reporter,
    aftermath: &mut Aftermath,
) {
    let Ok(workload) = workload_of(record) else {
        aftermath.harness_failures.push(format!("there is no workload {:?}", record.workload));
        return;
    };
    let targets: Vec<Target> = endpoints
        .iter()
        .map(|endpoint| Target { name: endpoint.name.clone(), http: endpoint.http })
        .collect();
    let load = Load {
        concurrency: record.concurrency,
        rate: record.rate,
        timeout: Duration::from_millis(record.timeout_ms),
        seed: record.seed,
        system: record.system,
        read_mode: record.read_mode,
        last_phase: LastPhase::default(),
    };
    let real_task = match tasks.as_ref().map(Place::config).transpose() {
        Ok(task) => task,
        Err(error) => {
            aftermath.harness_failures.push(format!("tasks of real agents: {error:#}"));
            return;
        }
    };
    let fixtures = Fixtures { real_task: real_task.as_ref(), machines: *machines };
    let clients = clients(workload, &targets, load, record.ops_per_key, recorder, fixtures);
    let turns = Turns::new(&record.injected());
    let nemesis = Nemesis::new(cluster, endpoints, recorder, &turns, record.seed);
    let (ready_ms, not_ready) = (Mutex::new(Vec::new()), Mutex::new(None));
    let watch = Watch { cluster, recorder, reporter, ready_ms: &ready_ms, not_ready: &not_ready };
    let agents = (&mut *fleet, tasks.as_ref());
    aftermath.harness_failures.extend(torment(
        record,
        &*clients,
        (nemesis, &turns),
        agents,
        &watch,
    ));
    let ready_ms = ready_ms.lock().unwrap_or_else(PoisonError::into_inner);
    aftermath.cycles_ready_ms.extend_from_slice(&ready_ms);
    drop(ready_ms);
    aftermath.not_ready_after_cycle = *not_ready.lock().unwrap_or_else(PoisonError::into_inner);

    reporter.line("healing every fault");
    let healed = Instant::now();
    if let Err(error) = nemesis.heal_all().and_then(|()| fleet.heal()) {
        aftermath.harness_failures.push(format!("heal: {error:#}"));
        return;
    }
    let ready = watch.cluster().await_ready(READY_TIMEOUT).unwrap_or_else(|error| {
        aftermath.harness_failures.push(format!("start after the heal: {error:#}"));
        false
    });
    let elapsed = u64::try_from(healed.elapsed().as_millis()).unwrap_or(u64::MAX);
    if ready {
        thread::sleep(SETTLE.min(Duration::from_millis(record.time_limit_ms / 6)));
        aftermath.ready_after_heal = Readiness::Milliseconds(elapsed);
        reporter.line(&format!("ready after {elapsed} ms, last phase"));
        clients.last_phase(Instant::now() + LAST_PHASE_TIMEOUT);
        if let Some(tasks) = tasks {
            await_agents(fleet, tasks, recorder, reporter);
            if let Err(error) = tasks.note_held() {
                aftermath.harness_failures.push(format!("tasks of real agents: {error:#}"));
            }
        }
        if record.system == System::Quorate {
            aftermath.replicas = Some(replicas::look(endpoints));
        }
    } else {
        aftermath.ready_after_heal = Readiness::Never;
        reporter.line(&format!("not ready after {elapsed} ms, no last phase"));
    }
}

/// Lets agents catch up with what the servers said at the end: one that was cut off may take a while to come
/// back. Whether they did is for the checker, which reads the same records.
fn await_agents(fleet: &Fleet, tasks: &Place, recorder: &Recorder, reporter: &Reporter) {
    let started = Instant::now();
    let (history, _) = recorder.snapshot();
    let look = || {
        let mut running = read(&fleet.logs())?.running;
        running.extend(tasks.held()?);
        agents_agree(&history, &running)
    };
    loop {
        match look() {
            Ok(true) => {}
            Ok(false) if started.elapsed() < AGENTS_TIMEOUT => {
                thread::sleep(TICK);
                continue;
            }
            Ok(false) => reporter.line("the agents do not run what the servers say"),
            Err(error) => reporter.line(&format!("cannot read the agents' records: {error:#}")),
        }
        let elapsed = started.elapsed().as_millis();
        reporter.line(&format!("agents looked at for {elapsed} ms after the last phase"));
        return;
    }
}

/// The main phase; returns what went wrong in the harness.
fn torment(
    record: &TestRecord,
    clients: &dyn Drive,
    (nemesis, turns): (Nemesis<'_>, &Turns),
    (fleet, tasks): (&mut Fleet, Option<&Place>),
    watch: &Watch<'_>,
) -> Vec<String> {
    let time_limit = Duration::from_millis(record.time_limit_ms);
    let interval = Duration::from_millis(record.nemesis_interval_ms);
    let schedule = Schedule::new(interval, time_limit);
    let classes = record.injected();
    let stop = AtomicBool::new(false);
    let mut failures = Vec::new();
    thread::scope(|scope| {
        let (stop, classes) = (&stop, &classes);
        let told = Told(stop);
        let workers: Vec<_> = (0..record.concurrency)
            .map(|number| scope.spawn(move || clients.work(number, stop)))
            .collect();
        let injector = scope.spawn(move || match record.cycles {
            Some(cycles) if classes.contains(&cycles.class) => watch.cycle(nemesis, cycles),
            Some(_) => Ok(()),
            None => nemesis.torment(classes, schedule, stop),
        });
        let tormentor = workload_of(record).is_ok_and(WorkloadKind::torments_agents).then(|| {
            let mut random = Dice::numbered(record.seed, 3);
            scope.spawn(move || {
                let trail = tasks.map(Place::trail).transpose()?;
                fleet.torment(watch.recorder, &mut random, trail, stop)
            })
        });
        let begin = Instant::now();
        watch.until(|| {
            let elapsed = begin.elapsed();
            // A run of cycles ends with the last of them, others when every class has had its turn.
            let is_over = record.cycles.is_none()
                && elapsed >= time_limit
                && (turns.all_installed() || elapsed >= time_limit * TIME_LIMIT_FACTOR_MAX);
            is_over
                || workers.iter().any(ScopedJoinHandle::is_finished)
                || (injector.is_finished() && (!classes.is_empty() || record.cycles.is_some()))
        });
        drop(told);
        match injector.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => failures.push(format!("nemesis: {error:#}")),
            Err(_) => failures.push("the nemesis thread panicked".to_owned()),
        }
        match tormentor.map(ScopedJoinHandle::join) {
            None | Some(Ok(Ok(()))) => {}
            Some(Ok(Err(error))) => failures.push(format!("agents: {error:#}")),
            Some(Err(_)) => failures.push("the thread of the agents panicked".to_owned()),
        }
        for worker in workers {
            if worker.join().is_err() {
                failures.push("a client thread panicked".to_owned());
            }
        }
    });
    failures
}

/// Tells the threads of a run to stop when it is dropped, also in a panic: the scope waits for them.
struct Told<'a>(&'a AtomicBool);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The main thread's view of a running test.
struct Watch<'a> {
    cluster: &'a Mutex<Cluster>,
    recorder: &'a Recorder,
    reporter: &'a Reporter,
    /// How long the servers took to be ready after each cycle.
    ready_ms: &'a Mutex<Vec<u64>>,
    /// The cycle after which they were not ready in time.
    not_ready: &'a Mutex<Option<u64>>,
}

impl<'a> Watch<'a> {
    /// Repeats one fault; after each the servers must be ready, and after damage also do without one of them.
    fn cycle(&self, nemesis: Nemesis<'_>, cycles: Cycles) -> Result<()> {
        let pace = Duration::from_millis(cycles.pace_ms);
        nemesis.cycles(cycles.class, cycles.count, pace, &|number| {
            let healed = Instant::now();
            let mut ready = self.cluster().await_ready(READY_TIMEOUT)?;
            let elapsed = u64::try_from(healed.elapsed().as_millis()).unwrap_or(u64::MAX);
            self.reporter.line(&format!("cycle {number} of {}: {elapsed} ms", cycles.count));
            if ready {
                self.ready_ms.lock().unwrap_or_else(PoisonError::into_inner).push(elapsed);
                if cycles.class == FaultClass::Corrupt {
                    nemesis.rely_on_the_others(number, pace)?;
                    ready = self.cluster().await_ready(READY_TIMEOUT)?;
                }
            }
            if !ready {
                self.reporter.line("the servers are not ready: no more cycles");
                *self.not_ready.lock().unwrap_or_else(PoisonError::into_inner) = Some(number);
            }
            Ok(ready)
        })
    }

    fn cluster(&self) -> std::sync::MutexGuard<'a, Cluster> {
        self.cluster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes dead servers and prints progress until `ended` says so.
    fn until(&self, ended: impl Fn() -> bool) {
        let mut seen = 0;
        let mut next_progress = Instant::now() + PROGRESS_INTERVAL;
        let mut exits = self.cluster().exits().len();
        while !ended() {
            thread::sleep(TICK);
            let (news, next) = self.recorder.nemesis_since(seen);
            seen = next;
            // The start of an operation has a plain value, its end an object.
            for op in news.iter().filter(|op| op.value.is_object()) {
                self.reporter.line(&format!("{:<15}  {}", op.f.keyword(), op.value));
            }
            let mut cluster = self.cluster();
            match cluster.revive() {
                Ok(started) => started.iter().for_each(|server| {
                    let name = &cluster.endpoints()[*server].name;
                    self.reporter
                        .line(&format!("{name} had ended by a fault of its disk: started again"));
                }),
                Err(error) => self.reporter.line(&format!("a server cannot be started: {error:#}")),
            }
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

fn cycles_line(cycles: Cycles, ready_ms: &[u64]) -> String {
    let mut sorted = ready_ms.to_vec();
    sorted.sort_unstable();
    let rank = |percent: usize| {
        let place = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(place).copied().unwrap_or(0)
    };
    format!(
        "{} of {} cycles of {}; ready again after p50 {} ms, p99 {} ms, max {} ms",
        sorted.len(),
        cycles.count,
        cycles.class.name(),
        rank(50),
        rank(99),
        rank(100)
    )
}

/// A good run's data is of no use and may be large.
fn remove_data(directory: &Path, nodes: &[String], reporter: &Reporter) {
    if let Err(error) = Machines::remove(directory) {
        reporter.line(&format!("cannot remove the machines' folders: {error}"));
    }
    for node in nodes {
        let node = directory.join(node);
        let Ok(entries) = fs::read_dir(&node) else { continue };
        for path in entries.flatten().map(|entry| entry.path()) {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned());
            let removed = match name.as_deref() {
                Some("disk.img") => fs::remove_file(&path),
                Some(name) if name.starts_with("data") => fs::remove_dir_all(&path),
                Some(_) | None => Ok(()),
            };
            if let Err(error) = removed {
                reporter.line(&format!("cannot remove {}: {error}", path.display()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use serde_json::json;

    use super::*;
    use crate::{
        history::{Function, Kind, Op, Process},
        replicas::{Replicas, Told},
        report::render,
        store::{server_log, test_record},
    };

    /// A stored run of one server in which everything went well.
    fn stored_run() -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let record =
            TestRecord { nemesis: vec![FaultClass::Kill], seed: u64::MAX, ..test_record() };
        write_json(directory.path(), "test.json", &record).unwrap();
        fs::create_dir(directory.path().join("n1")).unwrap();
        fs::write(server_log(directory.path(), "n1"), "started\n").unwrap();
        let recorder = Recorder::create(directory.path()).unwrap();
        let installed = json!({"outcome": "installed"});
        recorder.record(Op::new(
            Process::Nemesis,
            Kind::Info,
            Function::Fault(crate::fault::FaultFunction::Kill),
            installed,
        ));
        let step = |f, value, version, last_phase| {
            let mut op = Op::new(Process::Client(0), Kind::Invoke, f, value);
            op.last_phase = last_phase;
            recorder.record(op.clone());
            recorder.record(Op { kind: Kind::Ok, version: Some(version), ..op });
        };
        step(Function::Write, json!([0, 1]), 4, false);
        step(Function::Cas, json!([0, [1, 2]]), 6, false);
        step(Function::Write, json!([0, 3]), 7, true);
        step(Function::Read, json!([0, 3]), 7, true);
        let aftermath = Aftermath {
            ready_after_heal: Readiness::Milliseconds(3),
            replicas: Some(Replicas { digests: vec![told("n1", "a")], ..Replicas::default() }),
            ..Aftermath::default()
        };
        write_json(directory.path(), "aftermath.json", &aftermath).unwrap();
        directory
    }

    fn told(node: &str, digest: &str) -> Told {
        Told { node: node.to_owned(), index: 9, digest: digest.to_owned() }
    }

    fn judged(directory: &Path) -> (Verdict, String) {
        let results = judge(directory, Duration::from_mins(1)).unwrap();
        let text = render(&results, directory);
        let stored: serde_json::Value = read_json(directory, "results.json").unwrap();
        let valid = serde_json::to_value(results.valid).unwrap();
        assert_eq!(stored["valid"], valid);
        let edn = fs::read_to_string(directory.join("results.edn")).unwrap();
        assert!(edn.contains(&format!(":valid {valid}, :workload {{")), "{edn}");
        (results.valid, text)
    }

    #[test]
    fn the_verdict_is_the_worst_of_all() {
        let run = stored_run();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::True, "{text}");
        assert!(text.contains("PASS: no violation found in 4 operations"), "{text}");

        fs::remove_file(run.path().join("aftermath.json")).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::Unknown, "{text}");
        assert!(text.contains("the run was cut short"), "{text}");

        fs::write(server_log(run.path(), "n1"), "QUORATE-INVARIANT I8\n").unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::False, "{text}");
        assert!(text.contains("n1 line 1: QUORATE-INVARIANT I8"), "{text}");
    }

    #[test]
    fn a_history_that_was_cut_is_at_best_unknown() {
        let run = stored_run();
        let path = run.path().join("history.jsonl");
        let history = fs::read_to_string(&path).unwrap();
        fs::write(&path, format!("{history}{{\"index\":9,\"ti")).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::Unknown, "{text}");
        assert!(text.contains("line 10 of the history was cut and is left out"), "{text}");
    }

    #[test]
    fn a_violation_is_shown_with_its_entries() {
        let run = stored_run();
        let path = run.path().join("history.jsonl");
        let history = fs::read_to_string(&path).unwrap();
        let stale = history.replace(
            r#""f":"read","value":[0,3],"version":7"#,
            r#""f":"read","value":[0,2],"version":6"#,
        );
        assert_ne!(stale, history);
        fs::write(&path, stale).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::False, "{text}");
        assert!(text.contains("violated by keys [0]"), "{text}");
        assert!(text.contains("up to entry 7; with entry 8 it has none"), "{text}");
        assert!(text.contains("read   [0,2]  version 6"), "{text}");
    }

    #[test]
    fn servers_that_differ_at_the_end_fail_the_run() {
        let run = stored_run();
        let mut aftermath: Aftermath = read_json(run.path(), "aftermath.json").unwrap();
        aftermath.replicas.as_mut().unwrap().digests.push(told("n2", "b"));
        write_json(run.path(), "aftermath.json", &aftermath).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::False, "{text}");
        assert!(text.contains("index 9: n1 has a, n2 has b"), "{text}");

        // Nobody was asked.
        aftermath.replicas = None;
        write_json(run.path(), "aftermath.json", &aftermath).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::Unknown, "{text}");
        assert!(text.contains("never seen at one index"), "{text}");
    }

    /// Also if it was the last cycle, and they were ready after the heal.
    #[test]
    fn servers_that_are_not_ready_after_a_cycle_fail_the_run() {
        let run = stored_run();
        let mut aftermath: Aftermath = read_json(run.path(), "aftermath.json").unwrap();
        aftermath.not_ready_after_cycle = Some(200);
        write_json(run.path(), "aftermath.json", &aftermath).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::False, "{text}");
        assert!(text.contains("not ready in time after cycle 200"), "{text}");
    }

    #[test]
    fn a_leader_that_nobody_replaces_fails_the_run() {
        let run = stored_run();
        let mut record: TestRecord = read_json(run.path(), "test.json").unwrap();
        record.nodes = ["n1", "n2", "n3"].map(str::to_owned).to_vec();
        write_json(run.path(), "test.json", &record).unwrap();
        for node in ["n2", "n3"] {
            fs::create_dir(run.path().join(node)).unwrap();
            fs::write(server_log(run.path(), node), "started\n").unwrap();
        }
        let mut lines = String::new();
        let mut index = 0;
        let mut entry = |at_ms: u64, op: Op| {
            let op = Op { index, time: at_ms * 1_000_000, ..op };
            lines.push_str(&serde_json::to_string(&op).unwrap());
            lines.push('\n');
            index += 1;
        };
        let client = |f, value, node: &str| {
            let node = Some(node.to_owned());
            Op { node, ..Op::new(Process::Client(0), Kind::Invoke, f, value) }
        };
        let served = |op: &Op, version| Op { kind: Kind::Ok, version: Some(version), ..op.clone() };
        for (at_ms, node, version) in [(10, "n2", 4), (20, "n3", 5)] {
            let op = client(Function::Write, json!([0, version]), node);
            entry(at_ms, op.clone());
            entry(at_ms + 5, served(&op, version));
        }
        let installed = json!({
            "outcome": "installed", "aim": "primaries", "nodes": ["n1"], "leaders": ["n1"],
            "at": 100_000_000,
        });
        let kill = Function::Fault(crate::fault::FaultFunction::Kill);
        entry(110, Op::new(Process::Nemesis, Kind::Info, kill, installed));
        for number in 0..33_u64 {
            let op = client(Function::Write, json!([0, 100 + number]), "n2");
            entry(200 + number * 500, op.clone());
            let error = Some("503: No cluster leader".to_owned());
            entry(210 + number * 500, Op { kind: Kind::Fail, error, ..op });
        }
        for (at_ms, f) in [(30_000, Function::Write), (30_100, Function::Read)] {
            let op = Op { last_phase: true, ..client(f, json!([0, 7]), "n3") };
            entry(at_ms, op.clone());
            entry(at_ms + 5, served(&op, 7));
        }
        fs::write(run.path().join("history.jsonl"), lines).unwrap();
        let (valid, text) = judged(run.path());
        assert_eq!(valid, Verdict::False, "{text}");
        assert!(text.contains("n1 lost by kill (entry 4): no write for 16100 ms"), "{text}");
        assert_eq!(text.matches("FAILED").count(), 1, "{text}");
        let page = fs::read_to_string(run.path().join(html::FILE)).unwrap();
        assert!(page.contains("<td>recovery</td>"), "{page}");
    }
}
