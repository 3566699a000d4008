//! Checks before anything starts, and life and death of children.
#![expect(clippy::unwrap_used, reason = "tests")]

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use launch::Identity;
use serde_json::json;

use super::Up;
use super::children::{Children, Death, Launch};
use super::layout::{Layout, ProcessRecord, Role, write_processes};
use crate::{
    cli::client::{ADDRESS_DEFAULT, Target},
    cli::context::{Context, Exit},
    cli::job::JobFile,
    cli::output::Output,
    cli::tests::{Canned, Server},
};

const PATIENCE: Duration = Duration::from_mins(1);
const IN_USE: &str = "is in use by another `quorate up`";

fn prepare_now(folder: &Path, servers: usize) -> Result<Layout, String> {
    Layout::prepare(folder, servers, true).map_err(|error| format!("{error:#}"))
}

/// A child that another test forks has this one's lock, too, until it runs its own program: a lock
/// that was given back is waited for.
fn prepare(folder: &Path, servers: usize) -> Result<Layout, String> {
    let end = Instant::now() + PATIENCE;
    loop {
        match prepare_now(folder, servers) {
            Err(error) if error.contains(IN_USE) && Instant::now() < end => {
                thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}

/// Children that run a shell script instead of a server.
fn children(layout: &Layout, script: &'static str, restart: bool) -> Children {
    Children::new(launch(script), layout.pid_file(), restart)
}

fn launch(script: &'static str) -> Launch {
    Box::new(move |_| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    })
}

fn wait_for<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "it did not happen");
        thread::sleep(Duration::from_millis(5));
    }
}

fn no_hurry() -> (std::sync::mpsc::SyncSender<()>, Receiver<()>) {
    sync_channel(1)
}

#[test]
fn folder_is_made_and_found_again() {
    let directory = tempfile::tempdir().unwrap();
    let folder = directory.path().join("data with space");
    let layout = prepare(&folder, 3).unwrap();
    assert!(layout.is_new());
    assert_eq!((layout.server_count(), layout.members().len()), (3, 4));
    let text = std::fs::read_to_string(folder.join("config/server-2.toml")).unwrap();
    assert!(text.contains("data with space/server-2\""), "{text}");
    let in_use = prepare_now(&folder, 3).unwrap_err();
    assert!(in_use.contains(IN_USE), "{in_use}");
    drop(layout);
    let edited = text.replace("127.0.0.1:4656", "127.0.0.1:5656");
    std::fs::write(folder.join("config/server-2.toml"), edited).unwrap();
    let layout = prepare(&folder, 3).unwrap();
    assert!(!layout.is_new());
    assert_eq!(layout.members()[1].http_url().unwrap(), "http://127.0.0.1:5656");
}

#[test]
fn folder_of_another_shape_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    drop(prepare(directory.path(), 5).unwrap());
    let error = prepare(directory.path(), 3).unwrap_err();
    assert!(error.contains("was made for 5 servers, not 3; use --servers 5"), "{error}");
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join("thesis.tex"), "").unwrap();
    let error = prepare(other.path(), 3).unwrap_err();
    assert!(error.contains("did not make (thesis.tex)"), "{error}");
    assert_eq!(std::fs::read_dir(other.path()).unwrap().count(), 1, "nothing may be written there");
}

#[test]
fn broken_configuration_names_file_and_line() {
    let directory = tempfile::tempdir().unwrap();
    drop(prepare(directory.path(), 3).unwrap());
    let path = directory.path().join("config/server-3.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("name = \"server-3\"", "nam = \"server-3\"")).unwrap();
    let error = prepare(directory.path(), 3).unwrap_err();
    assert!(error.ends_with("server-3.toml:1: unknown key nam; did you mean name?"), "{error}");
    std::fs::write(&path, text.replace("name = \"server-3\"", "name = \"x\"")).unwrap();
    let error = prepare(directory.path(), 3).unwrap_err();
    assert!(error.contains("name is \"x\"; allowed: \"server-3\""), "{error}");
}

#[test]
fn taken_port_is_named() {
    let directory = tempfile::tempdir().unwrap();
    drop(prepare(directory.path(), 3).unwrap());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = listener.local_addr().unwrap();
    let path = directory.path().join("config/server-1.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("127.0.0.1:4646", &taken.to_string())).unwrap();
    let error = prepare(directory.path(), 3).unwrap().check_ports().unwrap_err().to_string();
    let expected = format!("port {} (HTTP of server-1, address {taken})", taken.port());
    assert!(error.starts_with("nothing was started") && error.contains(&expected), "{error}");
}

#[test]
fn living_processes_of_a_killed_up_are_found() {
    let directory = tempfile::tempdir().unwrap();
    let layout = prepare(directory.path(), 3).unwrap();
    let own = ProcessRecord::of("server-1", std::process::id());
    let reused = Identity { start_ticks: own.process.start_ticks + 1, ..own.process };
    let reused = ProcessRecord { process: reused, ..own.clone() };
    write_processes(&layout.pid_file(), &[own]).unwrap();
    let pid_file = layout.pid_file();
    drop(layout);
    let error = prepare(directory.path(), 3).unwrap_err();
    let expected = format!("server-1 (process {})", std::process::id());
    assert!(error.contains(&expected) && error.contains("kill "), "{error}");
    write_processes(&pid_file, &[reused]).unwrap();
    drop(prepare(directory.path(), 3).unwrap());
    let mut zombie =
        Command::new("/bin/sh").args(["-c", "read line"]).stdin(Stdio::piped()).spawn().unwrap();
    write_processes(&pid_file, &[ProcessRecord::of("server-1", zombie.id())]).unwrap();
    assert!(prepare(directory.path(), 3).is_err(), "it still runs");
    drop(zombie.stdin.take());
    wait_for(|| prepare(directory.path(), 3).ok());
    zombie.wait().unwrap();
}

#[test]
fn children_stop_when_asked() {
    let directory = tempfile::tempdir().unwrap();
    let layout = prepare(directory.path(), 3).unwrap();
    let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let mut children = children(&layout, script, false);
    for member in layout.members() {
        children.start(member).unwrap();
    }
    assert_eq!((children.alive(Role::Server), children.alive(Role::Agent)), (3, 1));
    let recorded = std::fs::read_to_string(layout.pid_file()).unwrap();
    assert!(recorded.contains(&children.pid("agent-1").unwrap().to_string()), "{recorded}");
    for member in layout.members() {
        let is_up = || std::fs::read_to_string(&member.log_path).unwrap().contains("up");
        wait_for(|| is_up().then_some(()));
    }
    let names: Vec<String> = layout.members().iter().map(|member| member.name.clone()).collect();
    let (_hold, hurry) = no_hurry();
    let problems = children.stop(&names, PATIENCE, (&hurry, Instant::now()));
    assert_eq!(problems, Vec::<String>::new());
    assert!(!children.is_alive("server-1"));
    children.forget();
    assert!(!layout.pid_file().exists());
}

#[test]
fn stubborn_child_is_killed_on_a_second_request() {
    let directory = tempfile::tempdir().unwrap();
    let layout = prepare(directory.path(), 3).unwrap();
    let mut children =
        children(&layout, "trap '' TERM; echo up; while :; do sleep 0.02; done", false);
    let member = &layout.members()[0];
    children.start(member).unwrap();
    wait_for(|| std::fs::read_to_string(&member.log_path).unwrap().contains("up").then_some(()));
    let (sender, hurry) = no_hurry();
    sender.send(()).unwrap();
    let problems = children.stop(&["server-1".to_owned()], PATIENCE, (&hurry, Instant::now()));
    assert_eq!(
        problems,
        ["server-1 did not stop in time and was killed", "server-1 ended with killed (signal 9)"]
    );
}

#[test]
fn two_signals_at_once_are_one_request() {
    let directory = tempfile::tempdir().unwrap();
    let layout = prepare(directory.path(), 3).unwrap();
    let slow = "trap 'sleep 0.2; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let mut children = children(&layout, slow, false);
    let member = &layout.members()[0];
    children.start(member).unwrap();
    wait_for(|| std::fs::read_to_string(&member.log_path).unwrap().contains("up").then_some(()));
    let (sender, hurry) = no_hurry();
    sender.send(()).unwrap();
    let deaf = Instant::now() + PATIENCE;
    let problems = children.stop(&["server-1".to_owned()], PATIENCE, (&hurry, deaf));
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn death_is_reported_with_the_end_of_the_log() {
    let directory = tempfile::tempdir().unwrap();
    let layout = prepare(directory.path(), 3).unwrap();
    let mut children =
        children(&layout, "for i in 1 2 3 4 5 6 7 8 9; do echo line $i; done; exit 3", false);
    children.start(&layout.members()[1]).unwrap();
    let Death { name, status, log, restart_in } =
        wait_for(|| children.poll(layout.members()).unwrap().pop());
    assert_eq!((name.as_str(), status.as_str(), restart_in), ("server-2", "exit status 3", None));
    assert_eq!(log.last_lines.len(), 8);
    assert_eq!(log.last_lines.last().unwrap(), "line 9");
    assert!(children.poll(layout.members()).unwrap().is_empty(), "a death is reported once");
    assert_eq!(children.alive(Role::Server), 0);
}

#[test]
fn dead_child_is_restarted_only_if_asked() {
    let directory = tempfile::tempdir().unwrap();
    let layout = prepare(directory.path(), 3).unwrap();
    let mut children = children(&layout, "exit 1", true);
    children.start(&layout.members()[0]).unwrap();
    let mut delays = Vec::new();
    wait_for(|| {
        delays.extend(
            children.poll(layout.members()).unwrap().into_iter().map(|death| death.restart_in),
        );
        (delays.len() == 2).then_some(())
    });
    assert_eq!(delays, [Some(Duration::from_secs(1)), Some(Duration::from_secs(2))]);
}

/// A cluster of three canned HTTP servers, of which the second leads, with a job that runs.
fn canned_cluster(folder: &Path) -> Vec<Server> {
    let allocation = json!({"ID": "aaaaaaaa-1111-4111-8111-111111111111", "Name": "web.web[0]",
        "NodeName": "agent-1", "CreateIndex": 9, "DesiredStatus": "run", "ClientStatus": "running"});
    let servers: Vec<Server> = (0..3)
        .map(|_| {
            Canned::default()
                .on("GET /v1/status/leader", &json!("127.0.0.1:4657"))
                .on("GET /v1/nodes", &json!([{"Status": "ready"}]))
                .on("GET /v1/allocations", &json!([]))
                .on("GET /v1/allocations", &json!([allocation]))
                .fail("PUT /v1/jobs", 503, "not ready")
                .on("PUT /v1/jobs", &json!({"EvalID": "eeeeeeee-1111"}))
                .start()
        })
        .collect();
    drop(prepare(folder, 3).unwrap());
    for (index, server) in servers.iter().enumerate() {
        let path = folder.join(format!("config/server-{}.toml", index + 1));
        let text = std::fs::read_to_string(&path).unwrap();
        let address = server.address.strip_prefix("http://").unwrap();
        let shipped = format!("127.0.0.1:{}", 4646 + 10 * index);
        std::fs::write(&path, text.replace(&shipped, address)).unwrap();
    }
    servers
}

fn context(output: &Arc<Output>) -> Context {
    let target = Target { address: ADDRESS_DEFAULT.to_owned(), ..Target::default() };
    let mut context = Context::new(target, Arc::clone(output)).unwrap();
    context.poll_interval = Duration::from_millis(10);
    context
}

#[test]
fn cluster_runs_a_job_and_stops_agent_followers_leader() {
    let directory = tempfile::tempdir().unwrap();
    let servers = canned_cluster(directory.path());
    let job_path = directory.path().join("config/web.json");
    std::fs::write(&job_path, json!({"ID": "web"}).to_string()).unwrap();
    let job = JobFile::read(job_path.to_str().unwrap(), false).unwrap();
    let output = Arc::new(Output::memory(false));
    let (sender, stop) = no_hurry();
    let printed = Arc::clone(&output);
    let folder = directory.path().to_owned();
    let thread = thread::spawn(move || {
        let context = context(&output);
        let script = "trap 'exit 0' TERM; echo up; while :; do sleep 0.02; done";
        let layout = prepare(&folder, 3).unwrap();
        Up::new(&context, layout, launch(script), false, stop).unwrap().run(&[job]).unwrap()
    });
    wait_for(|| printed.printed().0.contains("Allocation aaaaaaaa").then_some(()));
    for name in ["server-1", "server-2", "server-3", "agent-1"] {
        let log = directory.path().join(format!("logs/{name}.log"));
        wait_for(|| {
            std::fs::read_to_string(&log).is_ok_and(|text| text.contains("up")).then_some(())
        });
    }
    sender.send(()).unwrap();
    assert_eq!(thread.join().unwrap(), Exit::Success);
    let (out, err) = printed.printed();
    assert_eq!(err, "");
    let expected = [
        "Leader is server-2",
        "Registered job \"web\", evaluation eeeeeeee",
        "Allocation aaaaaaaa web.web[0] on agent-1: running",
        "Stopping agent-1",
        "Stopping server-1, server-3",
        "Stopping server-2",
        "Stopped",
    ];
    let mut rest = out.as_str();
    for line in expected {
        let position = rest.find(line).unwrap_or_else(|| panic!("{line} is not next in\n{out}"));
        rest = &rest[position + line.len()..];
    }
    let writes =
        |server: &Server| server.lines().iter().filter(|line| line.starts_with("PUT")).count();
    assert_eq!(
        servers.iter().map(writes).collect::<Vec<_>>(),
        [0, 2, 0],
        "only the leader is asked"
    );
    assert!(!directory.path().join("up.pids").exists());
}

#[test]
fn servers_that_die_at_once_end_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let output = Arc::new(Output::memory(false));
    let context = context(&output);
    let (_hold, stop) = no_hurry();
    let layout = prepare(directory.path(), 3).unwrap();
    let script = "echo no disk >&2; exit 1";
    let exit = Up::new(&context, layout, launch(script), false, stop).unwrap().run(&[]).unwrap();
    assert_eq!(exit, Exit::Failure);
    let (out, err) = output.printed();
    assert!(out.contains("server-1 died: exit status 1\n  | no disk\n  log: "), "{out}");
    assert_eq!(err, "Error: too few servers are left to elect a leader\n");
}
