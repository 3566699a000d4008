//! Tests of the fault injector on real processes that do nothing.

#![expect(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::{
    checker::Verdict,
    checker::coverage::{self, Asked},
    cluster::{Effect, Setup, test_setup},
    partition::Shape,
    proxy::Flow,
};

/// Three servers that only sleep, all started.
fn sleepers() -> (tempfile::TempDir, Mutex<Cluster>, Vec<Endpoint>) {
    servers("exec sleep 1000")
}

/// Three servers that run this script, all started.
fn servers(script: &str) -> (tempfile::TempDir, Mutex<Cluster>, Vec<Endpoint>) {
    let directory = tempfile::tempdir().unwrap();
    let old_binary = Some(directory.path().join("old"));
    std::os::unix::fs::symlink("/bin/sh", directory.path().join("old")).unwrap();
    let setup = Setup { directory: directory.path().to_owned(), old_binary, ..test_setup() };
    let mut cluster = Cluster::create(setup).unwrap();
    for (server, endpoint) in cluster.endpoints().to_vec().iter().enumerate() {
        let path = directory.path().join(&endpoint.name).join("server");
        std::fs::write(path, script).unwrap();
        cluster.start(server).unwrap();
    }
    let endpoints = cluster.endpoints().to_vec();
    (directory, Mutex::new(cluster), endpoints)
}

fn covered(recorder: &Recorder, classes: &[FaultClass]) -> coverage::Report {
    let unavailable = std::collections::BTreeMap::new();
    let asked = Asked { classes, unavailable: &unavailable, at_least: 1 };
    coverage::check(&recorder.snapshot().0, &asked)
}

#[test]
fn faults_are_installed_overlap_and_heal() {
    let (_directory, cluster, endpoints) = sleepers();
    let recorder = Recorder::in_memory();
    let turns = Turns::new(&[]);
    // Of the first kills of this seed none is rolling, which waits for servers that answer.
    let nemesis = Nemesis::new(&cluster, &endpoints, &recorder, &turns, 107);
    let stop = AtomicBool::new(false);
    let schedule =
        Schedule { quiet: Duration::from_millis(20), interval: Duration::from_millis(60) };
    let classes = [FaultClass::Kill, FaultClass::Pause];
    std::thread::scope(|scope| {
        scope.spawn(|| nemesis.torment(&classes, schedule, &stop).unwrap());
        let end = Instant::now() + Duration::from_mins(1);
        while Instant::now() < end {
            let covered = covered(&recorder, &classes);
            if covered.classes.values().all(|attempts| attempts.installed >= 3) {
                break;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let report = covered(&recorder, &classes);
    assert_eq!(report.valid, Verdict::True, "{report:?}");
    nemesis.heal_all().unwrap();
    let mut cluster = cluster.lock().unwrap();
    assert_eq!(cluster.running_and(false), [0, 1, 2]);
    assert_eq!(cluster.exits(), []);
}

#[test]
fn a_process_that_does_not_end_when_asked_to_is_killed() {
    let (_directory, cluster, endpoints) =
        servers("trap '' TERM; echo ready; while :; do sleep 0.05; done");
    let recorder = Recorder::in_memory();
    let turns = Turns::new(&[]);
    let nemesis = Nemesis::new(&cluster, &endpoints, &recorder, &turns, 5);
    let turn = Turn::new(nemesis, FaultClass::Restart, &|| false);
    let end = Instant::now() + Duration::from_mins(1);
    while !cluster.lock().unwrap().log_tail(1).contains("ready") && Instant::now() < end {
        std::thread::sleep(NAP);
    }
    let effect = turn.terminate(1, Duration::from_millis(100)).unwrap();
    assert!(matches!(effect, Effect::Unclear(_)), "{effect:?}");
    let mut cluster = cluster.lock().unwrap();
    assert_eq!((cluster.running().as_slice(), cluster.exits()), ([0, 2].as_slice(), [].as_slice()));
}

#[test]
fn a_rolling_restart_upgrades_one_server_after_the_other() {
    let (directory, cluster, endpoints) = sleepers();
    let recorder = Recorder::in_memory();
    let turns = Turns::new(&[]);
    let nemesis = Nemesis::new(&cluster, &endpoints, &recorder, &turns, 5);
    let old = directory.path().join("old");
    let upgraded = || {
        let cluster = cluster.lock().unwrap();
        (0..3).filter(|server| cluster.binary(*server) != old).collect::<Vec<_>>()
    };
    assert_eq!(upgraded(), Vec::<usize>::new());
    // Nobody waits for a server to lead that cannot.
    let halt = || !upgraded().is_empty();
    let mut turn = Turn::new(nemesis, FaultClass::Restart, &halt);
    assert!(turn.strike_restart(Schedule::new(Duration::ZERO, Duration::from_secs(1))).unwrap());
    assert_eq!(upgraded().len(), 1);
    assert_eq!(cluster.lock().unwrap().running().len(), 3);
}

#[test]
fn links_without_traffic_do_not_count_as_partitioned() {
    let (_directory, cluster, endpoints) = sleepers();
    let recorder = Recorder::in_memory();
    let turns = Turns::new(&[]);
    let nemesis = Nemesis::new(&cluster, &endpoints, &recorder, &turns, 5);
    let mut turn = Turn::new(nemesis, FaultClass::Partition, &|| false);
    let outcome = turn.cut(Shape::One, Flow::Held).unwrap();
    turn.conclude(outcome);
    let outcome = turn.cut(Shape::Primaries, Flow::Cut).unwrap();
    turn.conclude(outcome);
    let report = covered(&recorder, &[FaultClass::Partition]);
    assert_eq!(report.valid, Verdict::Unknown);
    let attempts = &report.classes["partition"];
    assert_eq!((attempts.installed, attempts.skipped, attempts.indeterminate), (0, 1, 1));
}

#[test]
fn aims_have_the_size_they_say() {
    let mut random = Dice::numbered(1, 0);
    let mut size = |aim: Aim, count| aim.servers(count, &[2], &mut random).len();
    assert_eq!((size(Aim::One, 5), size(Aim::Minority, 5), size(Aim::Majority, 5)), (1, 2, 3));
    assert_eq!((size(Aim::Minority, 3), size(Aim::Majority, 3), size(Aim::All, 3)), (1, 2, 3));
    assert_eq!(Aim::Primaries.servers(3, &[2], &mut random), [2]);
    assert!(Aim::Primaries.servers(3, &[], &mut random).is_empty());
}

#[test]
fn short_runs_get_short_schedules() {
    let seconds = Duration::from_secs;
    assert_eq!(Schedule::default_interval(seconds(30)), seconds(5));
    assert_eq!(Schedule::default_interval(seconds(300)), seconds(10));
    assert_eq!(Schedule::default_interval(seconds(3)), seconds(1));
    assert_eq!(Schedule::new(seconds(5), seconds(30)).quiet, seconds(5));
    assert_eq!(Schedule::new(seconds(5), seconds(6)).quiet, seconds(1));
}
