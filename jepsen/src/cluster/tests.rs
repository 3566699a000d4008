//! Tests of the cluster, with the shell as server.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;

/// A cluster whose server binary is the shell: `sh server --config …` runs the script `server` of
/// the node's directory.
fn cluster(script: &str) -> (tempfile::TempDir, Cluster) {
    let directory = tempfile::tempdir().unwrap();
    let setup = Setup {
        binary: PathBuf::from("/bin/sh"),
        old_binary: None,
        directory: directory.path().to_owned(),
        servers: 3,
        plant: Some("some-bug".to_owned()),
        snapshot_log_bytes: 12_345,
        ..test_setup()
    };
    let cluster = Cluster::create(setup).unwrap();
    for node in ["n1", "n2", "n3"] {
        fs::write(directory.path().join(node).join("server"), script).unwrap();
    }
    (directory, cluster)
}

const SLEEPER: &str = "echo \"started $QUORATE_PLANT\"; exec sleep 1000";

#[test]
fn configurations_name_every_server_and_dial_through_proxies() {
    let (directory, cluster) = cluster(SLEEPER);
    let text = fs::read_to_string(directory.path().join("n2/server.toml")).unwrap();
    let config: toml::Table = text.parse().unwrap();
    assert_eq!(config["name"].as_str(), Some("n2"));
    let rpc = |server: usize| cluster.endpoints()[server].rpc.to_string();
    assert_eq!(config["rpc"]["address"].as_str(), Some(rpc(1).as_str()));
    assert_eq!(config["rpc"]["advertise"].as_str(), Some(rpc(1).as_str()));
    let mut expected: Vec<_> = cluster.endpoints().iter().map(|endpoint| endpoint.rpc).collect();
    expected.sort_unstable();
    let expected: Vec<_> =
        expected.iter().map(|address| toml::Value::from(address.to_string())).collect();
    assert_eq!(config["cluster"]["bootstrap_expect"].as_array(), Some(&expected));
    let dial = config["cluster"]["dial"].as_table().unwrap();
    assert_eq!(dial.len(), 2);
    let proxy = cluster.network().detour(1, 0).unwrap().to_string();
    assert_eq!(dial[&rpc(0)].as_str(), Some(proxy.as_str()));
    assert_eq!(config["raft"]["election_max_ms"].as_integer(), Some(600));
    assert_eq!(config["raft"]["snapshot_log_bytes"].as_integer(), Some(12_345));
    assert_eq!(config["scheduler"]["workers"].as_integer(), Some(1));
    assert!(config["data_dir"].as_str().unwrap().ends_with("/n2/data"));
}

#[test]
fn a_server_runs_the_old_binary_until_it_is_upgraded() {
    let directory = tempfile::tempdir().unwrap();
    let old_binary = Some(PathBuf::from("/old/server"));
    let setup = Setup { directory: directory.path().to_owned(), old_binary, ..test_setup() };
    let mut cluster = Cluster::create(setup).unwrap();
    cluster.upgrade(1);
    let started = |server| PathBuf::from(cluster.command(server).get_program());
    assert_eq!(
        [0, 1, 2].map(started),
        ["/old/server", "/bin/sh", "/old/server"].map(PathBuf::from)
    );
}

#[test]
fn kills_pauses_and_restarts_are_seen_to_take_hold() {
    let (directory, mut cluster) = cluster(SLEEPER);
    assert_eq!(cluster.start(0).unwrap(), Effect::Done);
    assert_eq!(cluster.start(0).unwrap(), Effect::Nothing);
    assert_eq!(cluster.kill(1).unwrap(), Effect::Nothing);
    assert_eq!(cluster.pause(1).unwrap(), Effect::Nothing);
    assert_eq!(cluster.running(), [0]);

    assert_eq!(cluster.pause(0).unwrap(), Effect::Done);
    assert_eq!(cluster.process_state(0).unwrap(), 'T');
    assert_eq!(cluster.pause(0).unwrap(), Effect::Nothing);
    assert_eq!(cluster.resume(0).unwrap(), Effect::Done);
    assert_eq!(cluster.resume(0).unwrap(), Effect::Nothing);
    assert_eq!(cluster.pause(0).unwrap(), Effect::Done);
    assert_eq!(cluster.kill(0).unwrap(), Effect::Done);
    assert!(cluster.running().is_empty());

    assert_eq!(cluster.start(0).unwrap(), Effect::Done);
    assert_eq!(cluster.running_and(false), [0]);
    let end = Instant::now() + Duration::from_mins(1);
    while !cluster.log_tail(0).contains("some-bug") && Instant::now() < end {
        std::thread::sleep(POLL);
    }
    assert_eq!(cluster.stop().unwrap(), Vec::<String>::new());
    assert_eq!(cluster.exits(), []);
    let log = fs::read_to_string(server_log(directory.path(), "n1")).unwrap();
    assert!(log.ends_with("started some-bug\n"), "{log}");
}

#[test]
fn exits_nobody_asked_for_are_noted() {
    let (_directory, mut cluster) = cluster("exit 3");
    assert_eq!(cluster.start(2).unwrap(), Effect::Done);
    assert!(!cluster.await_ready(Duration::from_mins(1)).unwrap(), "it gives up at once");
    let exit = Exit { node: "n3".to_owned(), status: "exit status: 3".to_owned() };
    assert_eq!(cluster.exits(), [exit]);
}

#[test]
fn a_server_that_ends_late_after_sigterm_did_not_end_by_itself() {
    let (_directory, mut cluster) =
        cluster("trap 'sleep 1; exit 0' TERM; echo ready; while :; do sleep 0.05; done");
    assert_eq!(cluster.start(0).unwrap(), Effect::Done);
    let end = Instant::now() + Duration::from_mins(1);
    while !cluster.log_tail(0).contains("ready") && Instant::now() < end {
        thread::sleep(POLL);
    }
    assert_eq!(cluster.ask_to_end(0).unwrap(), Effect::Done);
    assert!(cluster.is_ending(0));
    while cluster.is_ending(0) && Instant::now() < end {
        thread::sleep(POLL);
    }
    assert_eq!(cluster.exits(), []);
    assert!(cluster.was_ended(0));
    cluster.await_ready(Duration::ZERO).unwrap();
    assert_eq!(cluster.running(), [0], "who waits for all of them starts what a fault has ended");
}

#[test]
fn exits_during_a_disk_fault_are_excused_and_held_servers_stay_down() {
    let (_directory, mut cluster) = cluster("exit 1");
    cluster.excuse(0, FaultClass::HangDisk);
    cluster.hold(1, Some(FaultClass::Corrupt));
    assert_eq!(cluster.start(0).unwrap(), Effect::Done);
    assert_eq!(cluster.start(1).unwrap(), Effect::Nothing);
    let end = Instant::now() + Duration::from_mins(1);
    while cluster.running() == [0] && Instant::now() < end {
        thread::sleep(POLL);
    }
    assert_eq!((cluster.exits(), cluster.tolerated().len()), ([].as_slice(), 1));
    assert!(cluster.revive().unwrap().is_empty(), "its disk still hangs");
    cluster.end_excuse(0, FaultClass::HangDisk);
    assert_eq!(cluster.revive().unwrap(), [0], "and the other one was never started");
    while cluster.running() == [0] && Instant::now() < end {
        thread::sleep(POLL);
    }
    cluster.hold(1, None);
    assert_eq!(cluster.start(1).unwrap(), Effect::Done);
    while cluster.running() == [1] && Instant::now() < end {
        thread::sleep(POLL);
    }
    assert_eq!((cluster.exits().len(), cluster.tolerated().len()), (1, 2));
    assert_eq!(cluster.revive().unwrap(), [0], "what ended without a reason stays down");
}
