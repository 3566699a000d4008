//! The executor as a real process: it must outlive whoever launched it and lose neither exit codes nor output.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use agent::RunSpec;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::PATIENCE;

struct Run {
    root: TempDir,
}

impl Run {
    /// Launches a shell script under an executor and waits for the launcher, as the agent does.
    fn launch(script: &str) -> Self {
        Self::launch_spec(script, |_| {})
    }

    fn launch_spec(script: &str, adjust: impl FnOnce(&mut RunSpec)) -> Self {
        let root = tempfile::tempdir().unwrap();
        let run = Self { root };
        // Longer than the 107 bytes that the path of a socket may have.
        fs::create_dir_all(run.directory()).unwrap();
        fs::create_dir_all(run.path("logs")).unwrap();
        let mut spec = RunSpec {
            command: "sh".to_owned(),
            args: vec!["-c".to_owned(), script.to_owned()],
            env: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
            directory: run.root.path().to_owned(),
            user: String::new(),
            logs_directory: run.path("logs"),
            log_name: "task".to_owned(),
            log_files_max: 10,
            log_file_bytes_max: 1 << 20,
            open_files: None,
        };
        adjust(&mut spec);
        fs::write(run.directory().join("spec.json"), serde_json::to_vec(&spec).unwrap()).unwrap();
        let launcher = Command::new(env!("CARGO_BIN_EXE_quorate"))
            .args(["executor", "launch"])
            .arg(run.directory())
            .output()
            .unwrap();
        assert!(launcher.status.success(), "{}", String::from_utf8_lossy(&launcher.stderr));
        run
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.path().join(name)
    }

    fn directory(&self) -> PathBuf {
        self.path(&"long".repeat(30)).join("run")
    }

    fn connect(&self) -> UnixStream {
        use std::os::fd::AsRawFd;
        let directory = fs::File::open(self.directory()).unwrap();
        UnixStream::connect(format!("/proc/self/fd/{}/control.sock", directory.as_raw_fd()))
            .unwrap()
    }

    fn ask(&self, request: &Value) -> Value {
        let mut stream = self.connect();
        stream.write_all(format!("{request}\n").as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    fn exit(&self) -> Value {
        let path = self.directory().join("exit.json");
        eventually("the exit status is written", || path.exists());
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn log(&self, name: &str) -> String {
        fs::read_to_string(self.path("logs").join(name)).unwrap_or_default()
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        kill(&self.directory());
    }
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Kills the executor of a run and its session, in which is the task, if it still lives; the number may be somebody else's by now.
pub(crate) fn kill(run: &Path) {
    let recorded = fs::read(run.join("executor.json")).ok();
    let identity: Option<Value> = recorded.and_then(|text| serde_json::from_slice(&text).ok());
    let Some(pid) = identity.and_then(|identity| identity["pid"].as_u64()) else { return };
    let works_in = fs::read_link(format!("/proc/{pid}/cwd"));
    if works_in.is_ok_and(|at| fs::canonicalize(run).is_ok_and(|run| at == run)) {
        kill_session(pid);
    }
}

/// Kills the session of a process, which is that of its executor.
pub(crate) fn kill_session_of(pid: &str) {
    if let Some(session) = session(pid) {
        kill_session(session);
    }
}

fn kill_session(number: u64) {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let members = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let members: Vec<String> = members.filter(|other| session(other) == Some(number)).collect();
    kill_all(&members);
}

/// Kills processes, and waits until they are gone: on a busy machine that takes a moment.
pub(crate) fn kill_all(pids: &[String]) {
    Command::new("kill").arg("-9").args(pids).status().unwrap();
    eventually("what was killed is gone", || !pids.iter().any(|pid| is_alive(pid)));
}

fn session(pid: &str) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).ok()?;
    stat.rsplit_once(") ")?.1.split_whitespace().nth(3)?.parse().ok()
}

pub(crate) fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

#[test]
fn an_exit_code_is_kept_although_nobody_waits() {
    let run = Run::launch("exit 7");
    let result = &run.exit()["Exited"]["result"];
    assert_eq!(result["exit_code"], 7);
    assert_eq!(result["signal"], 0);
    let identity: Value =
        serde_json::from_slice(&fs::read(run.directory().join("executor.json")).unwrap()).unwrap();
    let pid = identity["pid"].to_string();
    eventually("the executor ends after its task", || !is_alive(&pid));
}

#[test]
fn the_task_is_in_a_session_of_its_own_and_nobodys_child_here() {
    let run = Run::launch("sleep 60");
    assert_eq!(run.ask(&json!({"request": "started"}))["reply"], "running");
    let identity: Value =
        serde_json::from_slice(&fs::read(run.directory().join("executor.json")).unwrap()).unwrap();
    let stat = fs::read_to_string(format!("/proc/{}/stat", identity["pid"])).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split_whitespace().collect();
    assert_ne!(fields[1], std::process::id().to_string(), "its parent");
    assert_eq!(fields[3], identity["pid"].to_string(), "its session");
    run.ask(&json!({"request": "kill", "signal": "SIGKILL", "timeout_ms": 0}));
    assert_eq!(run.exit()["Exited"]["result"]["signal"], 9);
}

#[test]
fn agents_that_waited_and_died_leave_room_for_others() {
    let run = Run::launch("sleep 60");
    for _ in 0..100 {
        let mut stream = run.connect();
        stream.write_all(b"{\"request\": \"wait\"}\n").unwrap();
    }
    let mut stream = run.connect();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
        .write_all(b"{\"request\": \"kill\", \"signal\": \"SIGKILL\", \"timeout_ms\": 0}\n")
        .unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    assert!(line.contains("done"), "{line}");
    assert_eq!(run.exit()["Exited"]["result"]["signal"], 9);
}

#[test]
fn a_task_that_ignores_the_signal_is_killed_after_the_timeout() {
    let run = Run::launch("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    eventually("the task has set its trap", || run.log("task.stdout.0").contains("ready"));
    let started = Instant::now();
    let reply = run.ask(&json!({"request": "kill", "signal": "SIGTERM", "timeout_ms": 500}));
    assert_eq!(reply["reply"], "done");
    let result = run.exit()["Exited"]["result"].clone();
    assert!(started.elapsed() >= Duration::from_millis(500), "{:?}", started.elapsed());
    assert_eq!(result["signal"], 9);
    assert_eq!(result["exit_code"], 137);
    assert_eq!(result["oom_killed"], false);
}

#[test]
fn a_task_that_obeys_the_signal_says_how_it_ended() {
    let run = Run::launch("trap 'exit 3' INT; echo ready; while :; do sleep 0.05; done");
    eventually("the task has set its trap", || run.log("task.stdout.0").contains("ready"));
    run.ask(&json!({"request": "kill", "signal": "SIGINT", "timeout_ms": 20_000}));
    assert_eq!(run.exit()["Exited"]["result"]["exit_code"], 3);
}

#[test]
fn daemons_that_a_task_leaves_behind_end_with_it() {
    let run = Run::launch(
        "setsid sh -c 'echo $$ > daemon; sleep 600' & while ! test -s daemon; do sleep 0.01; done",
    );
    assert_eq!(run.exit()["Exited"]["result"]["exit_code"], 0);
    let pid = fs::read_to_string(run.path("daemon")).unwrap();
    assert!(!is_alive(pid.trim()), "process {pid} lives on");
}

#[test]
fn the_output_of_a_fast_task_is_complete() {
    let run =
        Run::launch("i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i+1)); done; echo oops >&2");
    run.exit();
    let lines: Vec<String> = run.log("task.stdout.0").lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 5000);
    assert_eq!(lines[4999], "line 4999");
    assert_eq!(run.log("task.stderr.0"), "oops\n");
}

#[test]
fn a_task_has_the_limit_of_open_files_that_it_is_given() {
    let run = Run::launch_spec("ulimit -Sn", |spec| spec.open_files = Some(123));
    run.exit();
    assert_eq!(run.log("task.stdout.0").trim(), "123");
}

#[test]
fn output_that_is_not_to_be_kept_is_not_written() {
    let run = Run::launch_spec("echo out; echo err >&2", |spec| spec.log_files_max = 0);
    run.exit();
    assert!(fs::read_dir(run.path("logs")).unwrap().next().is_none());
}

#[test]
fn logs_rotate_and_the_oldest_go() {
    let script = "i=0; while [ $i -lt 100 ]; do echo 123456789; i=$((i+1)); done";
    let run = Run::launch_spec(script, |spec| {
        spec.log_files_max = 2;
        spec.log_file_bytes_max = 300;
    });
    run.exit();
    let mut names: Vec<_> = fs::read_dir(run.path("logs"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains("stdout"))
        .collect();
    names.sort();
    assert_eq!(names, ["task.stdout.2", "task.stdout.3"]);
    assert_eq!(run.log("task.stdout.2").len(), 300);
    assert_eq!(run.log("task.stdout.3").len(), 100);
}

#[test]
fn the_environment_is_only_what_was_given() {
    let run = Run::launch_spec("env; echo args: \"$@\"", |spec| {
        spec.env.insert("GIVEN".to_owned(), "a b".to_owned());
    });
    run.exit();
    let log = run.log("task.stdout.0");
    assert!(log.contains("GIVEN=a b\n"), "{log}");
    assert!(!log.contains("CARGO"), "{log}");
}

#[test]
fn a_task_that_cannot_start_says_why() {
    let run = Run::launch_spec("", |spec| spec.command = "no-such-program".to_owned());
    let failure = run.exit()["StartFailed"].clone();
    assert_eq!(failure["recoverable"], false);
    assert!(failure["error"].as_str().unwrap().contains("no-such-program"), "{failure}");
    let run = Run::launch_spec("", |spec| spec.user = "nobody-of-that-name".to_owned());
    assert!(run.exit()["StartFailed"]["error"].as_str().unwrap().contains("unknown user"));
}

#[test]
fn a_run_that_was_given_up_never_happens() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("claim"), "").unwrap();
    fs::write(root.path().join("spec.json"), "{}").unwrap();
    let status = Command::new(env!("CARGO_BIN_EXE_quorate"))
        .args(["executor", "run"])
        .arg(root.path())
        .status()
        .unwrap();
    assert!(status.success());
    assert!(!root.path().join("exit.json").exists());
    assert!(!root.path().join("executor.json").exists());
}

#[test]
fn a_request_that_makes_no_sense_is_refused() {
    let run = Run::launch("sleep 60");
    assert_eq!(run.ask(&json!({"request": "dance"}))["reply"], "refused");
    let refused = run.ask(&json!({"request": "signal", "signal": "SIGNONE"}));
    assert!(refused["error"].as_str().unwrap().contains("SIGNONE"), "{refused}");
    let executor_log = run.directory().join("executor.log");
    assert_eq!(fs::read_to_string(executor_log).unwrap(), "");
    run.ask(&json!({"request": "kill", "signal": "SIGKILL", "timeout_ms": 0}));
    run.exit();
}
