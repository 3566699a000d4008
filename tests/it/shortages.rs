//! Agents and servers that are short of open files, memory, threads or disk: they say so, go on with what they do, and come back by
//! themselves.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use launch::{Group, Log, Member, Port, Settings};
use proto::v1;
use rustix::{
    fs::{FallocateFlags, fallocate, statvfs},
    process::{Pid, Resource, Rlimit, prlimit},
};

use crate::{
    agent::{Cluster, allocation, lines, shell_task},
    harness::{self, Agent, Options, PATIENCE, configured, limited, stored_job},
};

/// A limit of a process that runs, lowered to little more than it uses.
pub(crate) struct Squeezed {
    pid: Pid,
    resource: Resource,
    before: Rlimit,
}

impl Squeezed {
    pub(crate) fn new(pid: i32, resource: Resource) -> Self {
        let process = PathBuf::from(format!("/proc/{pid}"));
        let limit = if resource == Resource::Nofile {
            fs::read_dir(process.join("fd")).unwrap().count() as u64 + 3
        } else {
            let status = fs::read_to_string(process.join("status")).unwrap();
            let size = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
            let kib: u64 = size.split_whitespace().next().unwrap().parse().unwrap();
            (kib << 10) + (40 << 20)
        };
        let pid = Pid::from_raw(pid).unwrap();
        let before = rustix::process::getrlimit(resource);
        let low = Rlimit { current: Some(limit), maximum: before.maximum };
        let before = prlimit(Some(pid), resource, low).unwrap();
        Self { pid, resource, before }
    }

    pub(crate) fn lift(self) {
        prlimit(Some(self.pid), self.resource, self.before).unwrap();
    }
}

fn agent_of(cluster: &Cluster, free_bytes_min: u64) -> Agent {
    let (root, servers) = (cluster.directory.path(), [cluster.address()]);
    let free_bytes_min = free_bytes_min.to_string();
    // Its tasks end with the cluster, which looks for them there.
    let keys = [("data_dir", "\".\""), ("limits.free_bytes_min", &*free_bytes_min)];
    Agent::start(root, "agent", &servers, None, &keys)
}

fn beats() -> v1::Task {
    shell_task("main", "while :; do echo x >> ../../beats; sleep 0.05; done")
}

/// Whether the servers were told that it waits, and for what.
fn waits_for(cluster: &Cluster, id: u8, word: &str) -> Option<()> {
    let status = cluster.status(id)?;
    assert_eq!(status.client_status(), v1::ClientStatus::Pending);
    let said = &status.tasks["main"].events.last()?.message;
    (said.starts_with("Waits, the machine is short") && said.contains(word)).then_some(())
}

async fn refuses_and_comes_back(resource: Resource, word: &str) {
    let cluster = Cluster::start().await;
    let agent = agent_of(&cluster, 0);
    let mut running = allocation(1, "service", vec![beats()]);
    cluster.want(vec![running.clone()]);
    cluster.until_status(1, "running").await;
    let squeezed = Squeezed::new(agent.pid(), resource);
    cluster.until(word, |cluster| cluster.shortage().contains(word).then_some(())).await;

    let new = allocation(2, "service", vec![shell_task("main", "sleep 1000")]);
    cluster.want(vec![running.clone(), new.clone()]);
    cluster.until("it is told to wait", |cluster| waits_for(cluster, 2, word)).await;
    let path = cluster.directory.path().join("agent/allocs/beats");
    let before = lines(&path);
    cluster.until("what runs goes on", |_| (lines(&path) > before + 5).then_some(())).await;
    running.run = false;
    cluster.want(vec![running, new.clone()]);
    cluster.until_status(1, "complete").await;
    assert!(!cluster.allocation_directory(2).exists(), "nothing of it was begun");
    assert!(cluster.shortage().contains(word), "{}", cluster.shortage());

    squeezed.lift();
    let status = cluster.until_status(2, "running").await;
    let task = &status.tasks["main"];
    let failed = task.events.iter().find(|event| event.kind.contains("Failure"));
    assert_eq!((failed, task.restarts), (None, 0));
    cluster
        .until("it is short no more", |cluster| cluster.shortage().is_empty().then_some(()))
        .await;
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_open_files_refuses_new_work_and_comes_back() {
    refuses_and_comes_back(Resource::Nofile, "open files").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_without_memory_refuses_new_work_and_comes_back() {
    refuses_and_comes_back(Resource::As, "memory").await;
}

/// A file that takes some of the free space of a disk.
struct Ballast(PathBuf);

impl Ballast {
    /// The file, and a reserve that is a half of it above what is free beside it.
    fn new(folder: &Path) -> (Self, u64) {
        let free = || {
            let status = statvfs(folder).unwrap();
            status.f_bavail * status.f_frsize
        };
        let size = (free() / 4).min(2 << 30);
        let path = folder.join("ballast");
        let file = File::create(&path).unwrap();
        fallocate(&file, FallocateFlags::empty(), 0, size).unwrap();
        (Self(path), free() + size / 2)
    }
}

impl Drop for Ballast {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_whose_disk_is_nearly_full_refuses_new_work_and_comes_back() {
    let cluster = Cluster::start().await;
    let (ballast, reserve) = Ballast::new(cluster.directory.path());
    let agent = agent_of(&cluster, reserve);
    cluster.until("disk", |cluster| cluster.shortage().contains("disk").then_some(())).await;
    cluster.want(vec![allocation(1, "service", vec![beats()])]);
    cluster.until("it is told to wait", |cluster| waits_for(cluster, 1, "disk")).await;
    drop(ballast);
    cluster.until_status(1, "running").await;
    cluster
        .until("it is short no more", |cluster| cluster.shortage().is_empty().then_some(()))
        .await;
    drop(agent);
}

/// A file that the program writes whole, on a disk that is full.
fn full_disk_at(file: &Path) -> PathBuf {
    let temporary = PathBuf::from(format!("{}.tmp", file.display()));
    symlink("/dev/full", &temporary).unwrap();
    temporary
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_on_a_full_disk_waits_for_space_and_fails_nothing() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "echo x >> ../../starts; while [ ! -e ../../end ]; do sleep 0.02; done; exit 1";
    let mut once = allocation(1, "service", vec![shell_task("main", script)]);
    once.restart.as_mut().unwrap().attempts = 1;
    once.tasks[0].restart = once.restart;
    cluster.want(vec![once]);
    cluster.until_status(1, "running").await;
    let full = full_disk_at(&cluster.own_directory(1).join("state.json"));
    let beside = cluster.directory.path().join("agent/allocs");
    fs::write(beside.join("end"), "").unwrap();
    cluster
        .until("the start waits", |cluster| {
            let status = cluster.status(1)?;
            assert_ne!(status.client_status(), v1::ClientStatus::Failed);
            let said = &status.tasks["main"].events.last()?.message;
            said.starts_with("The machine is short").then_some(())
        })
        .await;
    cluster
        .until("it says so", |cluster| cluster.shortage().contains("No space left").then_some(()))
        .await;
    fs::remove_file(beside.join("end")).unwrap();
    fs::remove_file(full).unwrap();
    let starts = beside.join("starts");
    cluster.until("it runs again", |_| (lines(&starts) == 2).then_some(())).await;
    cluster
        .until("it is short no more", |cluster| cluster.shortage().is_empty().then_some(()))
        .await;
    let status = cluster.status(1).unwrap();
    assert_eq!((status.client_status(), &*status.node_failure), (v1::ClientStatus::Running, ""));
    drop(agent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_a_full_disk_ends_is_reported_at_once() {
    let cluster = Cluster::start().await;
    let agent = cluster.agent().await;
    let script = "while [ ! -e ../../end ]; do sleep 0.02; done; exit 3";
    cluster.want(vec![allocation(1, "batch", vec![shell_task("main", script)])]);
    cluster.until_status(1, "running").await;
    let folder = cluster.own_directory(1);
    full_disk_at(&folder.join("tasks/main/1/exit.json"));
    full_disk_at(&folder.join("state.json"));
    let ended = Instant::now();
    fs::write(cluster.directory.path().join("agent/allocs/end"), "").unwrap();
    let status = cluster.until_status(1, "failed").await;
    assert!(ended.elapsed() < Duration::from_secs(20), "{:?}", ended.elapsed());
    let exit = status.tasks["main"].events.iter().find_map(|event| event.exit_code);
    assert_eq!(exit, Some(3));
    drop(agent);
}

/// One connection on which requests are sent one after another.
struct KeptOpen(BufReader<TcpStream>);

impl KeptOpen {
    /// Sends a request; the status of the answer.
    fn put(&mut self, path: &str, body: &str) -> u16 {
        let head =
            format!("PUT {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", body.len());
        self.0.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
        let (mut status, mut length) = (None, 0);
        loop {
            let mut line = String::new();
            self.0.read_line(&mut line).unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            status = status.or_else(|| line.split(' ').nth(1)?.parse().ok());
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        self.0.read_exact(&mut vec![0; length]).unwrap();
        status.unwrap()
    }
}

/// The segments of the log below a folder.
fn segments(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let count = |path: PathBuf| {
        if path.is_dir() {
            segments(&path)
        } else {
            path.extension().is_some_and(|is| is == "wal").into()
        }
    };
    entries.map(|entry| count(entry.path())).sum()
}

/// Without a bound the log could not open its next segment, which ends the server.
#[test]
fn a_server_whose_connections_are_all_taken_still_rotates_its_log() {
    let cluster = harness::Cluster::start(Options::new(1).with_open_files(256));
    let stream = TcpStream::connect(cluster.http(0)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut own = KeptOpen(BufReader::new(stream));
    let stored = |id: &str, value: &str| stored_job(id, value).to_string();
    assert_eq!(own.put("/v1/jobs", &stored("before", "v")), 200);
    let idle = |address: SocketAddr| -> Vec<TcpStream> {
        (0..400).map(|_| TcpStream::connect(address).unwrap()).collect()
    };
    let idle = [idle(cluster.http(0)), idle(cluster.rpc(0))];
    let before = segments(&cluster.data(0));
    let value = "v".repeat(900 << 10);
    for number in 0..12 {
        assert_eq!(own.put("/v1/jobs", &stored(&format!("job-{number}"), &value)), 200);
    }
    let after = segments(&cluster.data(0));
    assert!(after > before, "{before} segments, then {after}");
    drop(idle);
}

/// With more and more address space a server ends at another step of its start each time, and always says why, until it starts.
#[test]
fn a_start_without_memory_or_threads_says_what_is_short() {
    let directory = tempfile::tempdir().unwrap();
    let (http, rpc) = (Port::reserve().unwrap(), Port::reserve().unwrap());
    let mut settings = Settings::server("one", http.address(), rpc.address());
    settings.set_texts("cluster.bootstrap_expect", &[rpc.address()]);
    settings.set_text("data_dir", "data");
    settings.set("limits.free_bytes_min", 0);
    let mut said = 0;
    let mut kib: u64 = 40_000;
    loop {
        let log = Log::new(directory.path().join(format!("{kib}.log")));
        let mut member = Member::new("one", log);
        let command = configured("server", directory.path(), &settings);
        member.start(limited(&command, &format!("-v {kib}")), Group::Owners).unwrap();
        let mut ended = false;
        harness::wait_until("it starts or ends", PATIENCE, || {
            ended = member_ended(&mut member);
            ended || member.log().text().unwrap_or_default().contains("server started")
        });
        let text = member.log().text().unwrap_or_default();
        if !ended {
            break;
        }
        // Where not even the program fits, it does not come to speak.
        if !text.is_empty() && !text.contains("loading shared libraries") {
            assert!(text.contains("ulimit") && text.contains("-v"), "{kib} KiB: {text}");
            assert!(!text.contains("QUORATE-INVARIANT"), "{kib} KiB: {text}");
            said += 1;
        }
        kib += kib / 8;
        assert!(kib < 16 << 20, "it starts with 16 GiB");
    }
    assert!(said > 0, "it started with the first memory that the program fits into");
}

fn member_ended(member: &mut Member) -> bool {
    member.poll().unwrap().is_some()
}
