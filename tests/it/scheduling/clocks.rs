//! Servers of which one has a wrong clock: what is stamped and shown is within a second of time, whoever leads and whatever was lost (ADR 0022). The
//! clock is that of `libfaketime` (Debian's package of that name), which leaves the monotonic clock alone; without it the tests are skipped.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde_json::{Value, json};

use super::{SECOND, Stage, job, task};
use crate::{
    harness::{Cluster, Options, PATIENCE, is_full, wait_for, wait_until},
    recompute::{list_of, text},
};

/// How far from time anything may be.
const OFF: Duration = Duration::from_secs(1);
/// Added to what has whole seconds only.
const HALF: Duration = Duration::from_millis(500);
/// How old the last entry is when a leader is lost: much more than it may be off. In full: nearly as old as it gets, for log time moves on each minute.
const QUIET: Duration = Duration::from_secs(4);
const QUIET_FULL: Duration = Duration::from_secs(58);
/// The server with the wrong clock.
const ODD: usize = 0;

fn library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.flatten().map(|one| one.path());
    let found = folders.map(|folder| folder.join("faketime/libfaketimeMT.so.1"));
    found.chain(["/usr/lib/faketime/libfaketimeMT.so.1".into()]).find(|path| path.exists())
}

fn time() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap()
}

/// A cluster of three whose first server has a clock that this file moves.
struct Clocks {
    stage: Stage,
    file: PathBuf,
    /// Numbers jobs.
    made: usize,
}

impl Clocks {
    /// None: there is no such library here.
    fn start(offset: &str) -> Option<Self> {
        let Some(library) = library() else {
            eprintln!("skipped: libfaketime is not installed (Debian's package libfaketime)");
            return None;
        };
        let mut cluster = Cluster::prepare(Options::new(3));
        let file = cluster.directory().join("clock");
        fs::write(&file, offset).unwrap();
        let variables = [
            ("LD_PRELOAD", library.display().to_string()),
            ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("FAKETIME_NO_CACHE", "1".to_owned()),
            ("NO_FAKE_STAT", "1".to_owned()),
        ];
        for (name, value) in variables {
            cluster.set_variable(ODD, name, value);
        }
        cluster.start_all();
        cluster.await_ready_all();
        let client = cluster.client(1);
        Some(Self { stage: Stage { cluster, client }, file, made: 0 })
    }

    fn set(&self, offset: &str) {
        // Never half written.
        let new = self.file.with_extension("new");
        fs::write(&new, offset).unwrap();
        fs::rename(new, &self.file).unwrap();
    }

    /// Waits until nothing has been written for a while.
    fn await_quiet(&self) {
        let quiet = if is_full() { QUIET_FULL } else { QUIET };
        let index = || self.stage.cluster.digest(1).0;
        let mut last = (index(), Instant::now());
        wait_until("nothing is written", PATIENCE * 2, || {
            let now = index();
            if now != last.0 {
                last = (now, Instant::now());
            }
            last.1.elapsed() >= quiet
        });
    }

    fn transfer(&self, to: usize) {
        let address = self.stage.cluster.rpc(to);
        let path = format!("/v1/operator/raft/transfer-leadership?address={address}");
        self.stage.client.put(&path, &Value::Null).ok();
        wait_until("it leads", PATIENCE, || self.stage.cluster.leader() == to);
    }

    /// Asks each of these servers for something that has a time in it.
    #[track_caller]
    fn check(&mut self, edges: &[usize]) {
        for edge in edges {
            self.stage.client = self.stage.cluster.client(*edge);
            self.made += 1;
            self.check_job(&format!("j{}", self.made));
            self.check_child(&format!("p{}", self.made));
        }
    }

    /// Submit time of a job, and its deployment's deadline.
    #[track_caller]
    fn check_job(&self, id: &str) {
        let mut job = job("service", id, 1);
        task(&mut job)["Resources"] = json!({ "CPU": 10, "MemoryMB": 10 });
        job["Update"]["MinHealthyTime"] = (SECOND * 3600).into();
        job["Update"]["HealthyDeadline"] = (SECOND * 3660).into();
        job["Update"]["ProgressDeadline"] = (SECOND * 7200).into();
        let before = time();
        self.stage.register(&job);
        let row = self.stage.client.get(&format!("/v1/job/{id}")).ok();
        let submitted = Duration::from_nanos(row["SubmitTime"].as_u64().unwrap());
        check_between("the submit time", before, submitted);
        let deadline = wait_for("its deployment waits", PATIENCE, || {
            let path = format!("/v1/job/{id}/deployments");
            let deployment = list_of(self.stage.client.get(&path).ok()).pop()?;
            let by = text(&deployment["TaskGroups"]["group"], "RequireProgressBy").to_owned();
            (!by.starts_with("0001")).then_some(by)
        });
        let seconds = calendar::parse_rfc3339(&deadline).unwrap().cast_unsigned() - 7_200;
        check_between("the deadline", before, Duration::from_secs(seconds) + HALF);
    }

    /// The id of a child that is dispatched.
    #[track_caller]
    fn check_child(&self, id: &str) {
        let mut parent = job("batch", id, 1);
        parent["ParameterizedJob"] = json!({});
        self.stage.register(&parent);
        let before = time();
        let made = self.stage.client.put(&format!("/v1/job/{id}/dispatch"), &json!({})).ok();
        let child = text(&made, "DispatchedJobID").to_owned();
        let seconds: u64 = child.rsplit('-').nth(1).unwrap().parse().unwrap();
        check_between("a child's id", before, Duration::from_secs(seconds) + HALF);
    }
}

/// Something was stamped since `before`.
#[track_caller]
fn check_between(what: &str, before: Duration, stamped: Duration) {
    let (from, to) = (before.saturating_sub(OFF), time() + OFF);
    assert!((from..to).contains(&stamped), "{what} is {stamped:?}, not in {from:?} to {to:?}");
}

/// Every way in which leadership goes to another server, each after a quiet time, and over every edge.
fn times_are_right_with_one_clock_off_by(offset: &str) {
    let Some(mut clocks) = Clocks::start(offset) else { return };
    let _agent = clocks.stage.cluster.agent("sim", Some(2));
    clocks.check(&[0, 1, 2]);
    // The wrong clock leads, and leads no more.
    for to in [ODD, 1] {
        clocks.await_quiet();
        clocks.transfer(to);
        clocks.check(&[0, 1, 2]);
    }
    // A leader is killed while another server has the wrong clock, and the wrong clock's server while it leads.
    for (lost, to) in [(1, ODD), (ODD, 2)] {
        clocks.transfer(lost);
        clocks.await_quiet();
        clocks.stage.cluster.kill(lost);
        let others = clocks.stage.cluster.others(&[lost]);
        clocks.check(&others);
        if clocks.stage.cluster.leader() != to {
            clocks.transfer(to);
            clocks.check(&others);
        }
        clocks.stage.cluster.restart(lost);
        clocks.check(&[lost]);
    }
    // Nobody runs through: the median of the clocks counts.
    clocks.await_quiet();
    clocks.stage.cluster.kill_together(&[0, 1, 2]);
    clocks.stage.cluster.start_all();
    clocks.stage.cluster.await_ready_all();
    clocks.check(&[0, 1, 2]);
    clocks.stage.cluster.check_invariants(&[0, 1, 2]);
    let log = clocks.stage.cluster.log(ODD);
    assert!(log.contains("the clock of this server is ahead"), "{log}");
}

#[test]
fn times_are_right_with_one_clock_an_hour_ahead() {
    times_are_right_with_one_clock_off_by("+3600");
}

#[test]
fn times_are_right_with_one_clock_an_hour_behind() {
    times_are_right_with_one_clock_off_by("-3600");
}

/// Of two clocks nobody knows which is right: then the smaller counts, and a line says that they disagree.
#[test]
fn a_line_tells_when_two_clocks_are_all_there_is_and_disagree() {
    let Some(mut clocks) = Clocks::start("+3600") else { return };
    let _agent = clocks.stage.cluster.agent("sim", Some(1));
    clocks.check(&[1]);
    clocks.stage.cluster.kill_together(&[0, 1, 2]);
    clocks.stage.cluster.start_one(0);
    clocks.stage.cluster.start_one(1);
    clocks.stage.cluster.await_ready(&[0, 1]);
    clocks.stage.client = clocks.stage.cluster.client(1);
    let said = "no server has run through, and the clocks of the servers disagree";
    wait_until("a line says so", PATIENCE, || {
        [0, 1].iter().any(|server| clocks.stage.cluster.log(*server).contains(said))
    });
    // Here the smaller one is right.
    clocks.check(&[0, 1]);
}

/// A leader's clock jumps by an hour, and back: jobs that the clock starts go on, for times that have come.
#[test]
fn a_clock_that_jumps_keeps_no_periodic_job_from_starting() {
    let Some(clocks) = Clocks::start("+0") else { return };
    clocks.transfer(ODD);
    let mut tick = job("batch", "tick", 1);
    tick["Periodic"] = json!({ "Spec": "* * * * * * *" });
    clocks.stage.register(&tick);
    for offset in ["+0", "+3600", "+0", "-3600", "+0"] {
        clocks.set(offset);
        let from = time().as_secs();
        let last = || {
            let job = clocks.stage.client.get("/v1/job/tick").ok();
            job["PeriodicLaunches"]["LastDue"].as_u64().unwrap_or(0)
        };
        wait_until("it is started again", PATIENCE, || last() >= from + 4);
        let due = last();
        assert!(due <= time().as_secs() + 1, "{due} is to come, with the clock at {offset}");
    }
    assert_eq!(clocks.stage.cluster.leader(), ODD, "it led all the time");
    let lag_ms = clocks.stage.cluster.client(ODD).metric("log_time.lag_ms");
    assert!(lag_ms.abs() < 1_000.0, "{lag_ms}");
}
